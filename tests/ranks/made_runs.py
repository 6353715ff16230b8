"""Runs of several ranks whose meetings are known: a program that all ranks follow, then faults in what each of them
recorded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphlink.model import NOWHERE, CommKind
from graphlink.ranks.records import GroupKey, RankComms

NS_OF_US = 1_000


@dataclass(frozen=True)
class Step:
    """A collective of ``group``, or with ``ends`` (source, target) a message."""

    group: GroupKey
    type: int = 0
    bytes: int = 1024
    ends: tuple[int, int] | None = None
    tag: int = 0

    def members(self) -> Sequence[int]:
        return self.group[0] if self.ends is None else self.ends


@dataclass(frozen=True)
class Op:
    """What a rank recorded of a step; ``meeting`` is the truth."""

    step: Step
    meeting: int
    seq: int
    start_ns: int
    end_ns: int
    uneven: bool = False
    on_host: bool = False


@dataclass
class Run:
    world: int
    ops: dict[int, list[Op]]
    names: dict[tuple[int, GroupKey], str] = field(default_factory=dict)  # by rank, where a rank has a name of its own

    def comms(self, *, seq: bool = True) -> list[RankComms]:
        return [self._of(rank, ops, seq) for rank, ops in sorted(self.ops.items())]

    def meetings(self, rank: int) -> list[int]:
        return [op.meeting for op in self.ops[rank]]

    def _of(self, rank: int, ops: list[Op], seq: bool) -> RankComms:
        groups: dict[GroupKey, int] = {}
        group = [
            groups.setdefault((o.step.group[0], self.names.get((rank, o.step.group), o.step.group[1])), len(groups))
            for o in ops
        ]
        nothing = np.zeros(0, np.int64)
        return RankComms(
            rank=rank,
            world_size=self.world,
            host="",
            resolution_ns=1,
            began_ns=ops[0].start_ns if ops else 0,
            ended_ns=ops[-1].end_ns if ops else 0,
            groups=tuple(groups),
            node=np.arange(len(ops), dtype=np.int32),
            row=np.arange(len(ops), dtype=np.int32),
            name=np.zeros(len(ops), np.int32),
            names=("",),
            kind=np.array([self._kind(rank, o) for o in ops], np.uint8),
            type=np.array([o.step.type if o.step.ends is None else NOWHERE for o in ops], np.int32),
            bytes=np.array([o.step.bytes for o in ops], np.int64),
            group=np.array(group, np.int32),
            peer=np.array([NOWHERE if o.step.ends is None else sum(o.step.ends) - rank for o in ops], np.int64),
            tag=np.array([o.step.tag for o in ops], np.int64),
            seq=np.array([o.seq if seq else NOWHERE for o in ops], np.int64),
            start_ns=np.array([o.start_ns for o in ops], np.int64),
            end_ns=np.array([o.end_ns for o in ops], np.int64),
            on_host=np.array([o.on_host for o in ops], np.bool_),
            uneven=np.array([o.uneven for o in ops], np.bool_),
            overhead_start_ns=nothing,
            overhead_end_ns=nothing,
        )

    @staticmethod
    def _kind(rank: int, op: Op) -> CommKind:
        if op.step.ends is None:
            return CommKind.COLLECTIVE
        return CommKind.SEND if op.step.ends[0] == rank else CommKind.RECV


def recorded(program: Sequence[Step], world: int, seed: int = 0, *, on_host: bool = False) -> Run:
    """Every rank records all of its steps. Steps take turns, 0.1 to 4 ms apart; the members of one end within 2 us of
    each other.

    Clocks differ by up to 50 ms, and by up to 20 ppm of drift. Sequence numbers count collectives of a group and
    messages of a pair.
    """
    rng = random.Random(seed)
    offset = {rank: rng.randint(-50_000_000, 50_000_000) for rank in range(world)}
    drift = {rank: rng.uniform(-20e-6, 20e-6) for rank in range(world)}
    run = Run(world, {rank: [] for rank in range(world)})
    at, counts = 1_000_000_000_000, {}
    for meeting, step in enumerate(program):
        took = rng.randint(20, 60) * NS_OF_US
        at += took + rng.randint(80, 4_000) * NS_OF_US + rng.randint(0, 999)
        which = step.group, step.ends
        counts[which] = counts.get(which, -1) + 1
        last = rng.choice(step.members())
        for rank in step.members():
            waited = 0 if rank == last else rng.randint(0, 30) * NS_OF_US
            start, end = at - took - waited, at + rng.randint(0, 2 * NS_OF_US)
            on_own = [t + offset[rank] + round(drift[rank] * (t - 1_000_000_000_000)) for t in (start, end)]
            run.ops[rank].append(Op(step, meeting, counts[which], *on_own, on_host=on_host))
    return run


def without(run: Run, rank: int, positions: Sequence[int]) -> None:
    """``rank`` did not record these."""
    gone = set(positions)
    run.ops[rank] = [op for k, op in enumerate(run.ops[rank]) if k not in gone]


def resized(run: Run, rank: int, position: int, size: int) -> None:
    op = run.ops[rank][position]
    run.ops[rank][position] = replace(op, step=replace(op.step, bytes=size))


def swapped(run: Run, rank: int, one: int, other: int) -> None:
    """``rank`` called two steps in the other order."""
    a, b = run.ops[rank][one], run.ops[rank][other]
    run.ops[rank][one], run.ops[rank][other] = replace(a, step=b.step), replace(b, step=a.step)
