"""Runs the ops of all ranks: true times.

A kernel starts when its stream, what it waits for and its launch let it. The members of a meeting end together, once the last has
started and the transfer is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.testing.cluster_program import Op
from graphlink.testing.cluster_records import I32, I64, NOWHERE, ClusterTraining

FILLER_NS = 5_000  # of the host, an op and a launch
CALL_NS = 1_500  # of the host, a wait
COMM_NS = 22_000  # of the host, a communication call
LAUNCHED_NS = 15_000  # into one its kernel may start
FILLER_LAUNCHED_NS = 5_000
GAP_NS = 1_000  # between kernels
SYNC_NS, RETURN_NS, BETWEEN_NS = 3_000, 4_000, 40_000  # the synchronisation at a step's end


@dataclass(frozen=True, slots=True)
class Step:
    """Of the host of a rank: when it began to issue, when the call that waits for the device began and returned."""

    begin_ns: int
    sync_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One entry an op of the rank: when the host began to issue it, when it ran. ``held_ns``: overhead, (start, end) each."""

    issue_ns: I64
    start_ns: I64
    end_ns: I64
    meeting: I32  # NOWHERE for compute
    steps: tuple[Step, ...]
    held_ns: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """``members``: (rank, position in its ops), by rank; of a message source first."""

    op: Op
    members: tuple[tuple[int, int], ...]


def host_ns(op: Op, kernels: int) -> int:
    """What issuing an op takes the host; ``kernels``: of a compute block a forward layer long."""
    own_ns = COMM_NS if op.group != NOWHERE else kernels * op.weight * FILLER_NS
    return len(op.waits) * CALL_NS + own_ns


def find_meetings(ops: list[list[Op]]) -> list[Meeting]:
    """By key, in the order in which the first rank issues them."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for rank, mine in enumerate(ops):
        for position, op in enumerate(mine):
            if op.group != NOWHERE:
                found.setdefault(op.key, []).append((rank, position))
    meetings = []
    for members in found.values():
        ordered = sorted(members, key=lambda m: (ops[m[0]][m[1]].kind, m[0]))
        meetings.append(Meeting(ops[ordered[0][0]][ordered[0][1]], tuple(ordered)))
    return meetings


class _Simulation:
    def __init__(self, training: ClusterTraining, ops: list[list[Op]], meetings: list[Meeting], kernels: int):
        self.training, self.ops, self.kernels = training, ops, kernels
        rng = np.random.default_rng([training.seed, 1])
        self.scale = [1 + training.jitter * rng.random(len(mine)) for mine in ops]
        self.end_jitter = [rng.integers(0, training.end_jitter_ns, len(mine), endpoint=True).tolist() for mine in ops]
        host = np.random.default_rng([training.seed, 12])
        self.host_jitter_ns = [host.exponential(training.host_jitter_ns, len(mine)).astype(np.int64).tolist() for mine in ops]
        self.meetings = meetings
        self.meeting = [[NOWHERE] * len(mine) for mine in ops]
        self.transfer_ns: list[int] = []
        for m, meeting in enumerate(meetings):
            for rank, position in meeting.members:
                self.meeting[rank][position] = m
            size = max(ops[rank][position].bytes for rank, position in meeting.members)
            self.transfer_ns.append(training.transfer_ns(size))
        self.absent = [len(meeting.members) for meeting in meetings]
        self.last_start_ns = [0] * len(meetings)
        self.ready_ns = [[0] * len(mine) for mine in ops]
        self.end_ns = [[0] * len(mine) for mine in ops]
        self.issue_ns = [[0] * len(mine) for mine in ops]
        self.lacks = [[1] * len(mine) for mine in ops]  # 1: its step
        self.next: list[list[list[int]]] = [[[] for _ in mine] for mine in ops]
        self.steps: list[list[Step]] = [[] for _ in ops]
        self.in_step: list[list[list[int]]] = [[[] for _ in range(training.steps)] for _ in ops]
        for rank, mine in enumerate(ops):
            tail: dict[int, int] = {}
            for i, op in enumerate(mine):
                self.in_step[rank][op.step].append(i)
                before = set(op.after)
                if op.stream in tail:
                    before.add(tail[op.stream])
                tail[op.stream] = i
                self.lacks[rank][i] += len(before)
                for j in before:
                    self.next[rank][j].append(i)
        self.unfinished = [[len(members) for members in steps] for steps in self.in_step]
        self.held: list[list[tuple[int, int]]] = [[] for _ in ops]

    def run(self, began_ns: list[int], held_ns: dict[tuple[int, int], int]) -> None:
        self.held_ns = held_ns
        self.stack: list[tuple[int, int]] = []
        for rank, ns in enumerate(began_ns):
            self.begin_step(rank, 0, ns + BETWEEN_NS)
        while self.stack:
            rank, i = self.stack.pop()
            op, start_ns = self.ops[rank][i], self.ready_ns[rank][i]
            if op.group == NOWHERE:
                self.finish(rank, i, start_ns + self.block_ns(rank, i))
                continue
            m = self.meeting[rank][i]
            self.absent[m] -= 1
            self.last_start_ns[m] = max(self.last_start_ns[m], start_ns)
            if not self.absent[m]:
                for other, j in self.meetings[m].members:
                    self.finish(other, j, self.last_start_ns[m] + self.transfer_ns[m] + self.end_jitter[other][j])
        assert not any(map(any, self.unfinished)), "valid sizes never wait in a circle"

    def block_ns(self, rank: int, i: int) -> int:
        """Compute, and at least what the host takes to launch its kernels, so that they follow each other closely."""
        training, weight = self.training, self.ops[rank][i].weight
        slow, factor = training.straggler or (rank, 1.0)
        least_ns = self.kernels * FILLER_NS * weight
        wanted_ns = max(training.compute_ns * weight, least_ns) * float(self.scale[rank][i])
        return max(round(wanted_ns * (factor if slow == rank else 1.0)), least_ns)

    def begin_step(self, rank: int, step: int, begin_ns: int) -> None:
        now_ns = begin_ns
        held_ns = self.held_ns.get((rank, step), 0)
        if held_ns:
            self.held[rank].append((now_ns + 1_000, now_ns + 1_000 + held_ns))
            now_ns += held_ns + 2_000
        for i in self.in_step[rank][step]:
            op = self.ops[rank][i]
            self.issue_ns[rank][i] = now_ns
            launched_ns = LAUNCHED_NS if op.group != NOWHERE else FILLER_LAUNCHED_NS
            self.release(rank, i, now_ns + len(op.waits) * CALL_NS + launched_ns)
            now_ns += host_ns(op, self.kernels) + self.host_jitter_ns[rank][i]
        self.steps[rank].append(Step(begin_ns, now_ns, 0))

    def release(self, rank: int, i: int, ns: int) -> None:
        self.ready_ns[rank][i] = max(self.ready_ns[rank][i], ns)
        self.lacks[rank][i] -= 1
        if not self.lacks[rank][i]:
            self.stack.append((rank, i))

    def finish(self, rank: int, i: int, end_ns: int) -> None:
        self.end_ns[rank][i] = end_ns
        for j in self.next[rank][i]:
            self.release(rank, j, end_ns + GAP_NS)
        step = self.ops[rank][i].step
        self.unfinished[rank][step] -= 1
        if not self.unfinished[rank][step]:
            begun = self.steps[rank][step]
            last_ns = max(self.end_ns[rank][j] for j in self.in_step[rank][step])
            returned_ns = max(begun.sync_ns + SYNC_NS, last_ns + RETURN_NS)
            self.steps[rank][step] = Step(begun.begin_ns, begun.sync_ns, returned_ns)
            if step + 1 < self.training.steps:
                self.begin_step(rank, step + 1, returned_ns + BETWEEN_NS)


def simulate(
    training: ClusterTraining,
    ops: list[list[Op]],
    meetings: list[Meeting],
    kernels: int,
    began_ns: list[int],
    held_ns: dict[tuple[int, int], int],
) -> tuple[RankTimes, ...]:
    """True times of all ranks, in ns since the run began; linear in ops.

    ``began_ns``: when the program of each rank goes on. ``held_ns``: how long the profiler holds up the host of (rank, step).
    """
    run = _Simulation(training, ops, meetings, kernels)
    run.run(began_ns, held_ns)

    def column(values: list[int]) -> I64:
        return np.array(values, np.int64)

    return tuple(
        RankTimes(
            column(run.issue_ns[rank]),
            column(run.ready_ns[rank]),
            column(run.end_ns[rank]),
            np.array(run.meeting[rank], np.int32),
            tuple(run.steps[rank]),
            tuple(run.held[rank]),
        )
        for rank in range(len(ops))
    )
