"""ASTRA-sim's machine: of each rank one CPU slot, one slot for GPU computation, one for communication; receives need none.

Among the nodes of a slot that are ready the lowest id starts first. All that ends at one instant has ended before anything starts.
A node takes at least 1 ns, as in ASTRA-sim. Over several ranks, collectives and messages may be coupled (``meetings``).
Source of the rules: the scheduler of ASTRA-sim's feeder as run (docs/replay.md).
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.replay.meetings import COLLECTIVE, PLAIN, RECEIVE, Meetings
from graphlink.replay.played import FREE, NOT_RUN, SLOT, Binding, Played, binding
from graphlink.replay.workload import Slot, Workload, successors

ASTRA_SIM: Final = "astra-sim"
RANKS: Final = "ranks"


def play_slots(work: Workload) -> Played:
    """Every rank by itself: a collective or receive takes its own time. n log n in nodes, linear in edges."""
    return _play(work, None, ASTRA_SIM)


def play_ranks(work: Workload, meetings: Meetings) -> Played:
    """All ranks at once: a collective's time begins when its last member has started, a receive ends no sooner than its send.

    Each rank begins at its ``meetings.begin_ns``.
    """
    return _play(work, meetings, RANKS)


def _play(work: Workload, meetings: Meetings | None, machine: str) -> Played:
    run = _Run(work, meetings)
    run.simulate()
    start, begin, end = (np.array(c, np.int64) for c in (run.start, run.begin, run.end[: len(work)]))
    bound = binding(work.first, work.source, end)
    # a node that started later than its dependencies allowed waited for the one that had the slot before it
    begins = np.zeros(len(work.ranks), np.int64) if meetings is None else meetings.begin_ns
    ready = np.maximum(bound.ready_ns, begins[work.member])
    waited = (start != NOT_RUN) & (start > ready)
    held = np.where(waited, np.array(run.before, np.int64), bound.node).astype(np.int32)
    kind = np.where(waited, SLOT, _kinds(work, bound)).astype(np.uint8)
    return Played(machine, start, begin, end, held, kind, np.array(run.joined, np.int32), begins)


def _kinds(work: Workload, bound: Binding) -> I64:
    if not len(work.kind):
        return np.full(len(work), FREE, np.int64)
    return np.where(bound.edge == NOWHERE, FREE, work.kind[bound.edge].astype(np.int64))


class _Run:
    """One simulation; the columns are lists while it runs."""

    def __init__(self, work: Workload, meetings: Meetings | None) -> None:
        n, members = len(work), len(work.ranks)
        self.start, self.begin, self.end = [NOT_RUN] * n, [NOT_RUN] * n, [NOT_RUN] * (n + members)
        self.before, self.joined = [NOWHERE] * n, [NOWHERE] * n
        lane = work.member.astype(np.int64) * len(Slot) + work.slot
        self._lane: list[int] = [*lane.tolist(), *range(int(Slot.NONE), members * len(Slot), len(Slot))]
        self._lanes = len(work.ranks) * len(Slot)
        self._cost: list[int] = np.maximum(work.micros_ns if meetings is None else meetings.cost_ns, 1).tolist()
        left = np.diff(work.first)
        roots = np.flatnonzero(left == 0)
        first, target = successors(work.first, work.source)
        ends = first[-1] + np.searchsorted(roots, work.offset[1:])
        self._left: list[int] = np.maximum(left, 1).tolist()
        self._first, self._target = [*first.tolist(), *ends.tolist()], [*target.tolist(), *roots.tolist()]
        self._code = bytes(n) if meetings is None else meetings.code.tobytes()
        self._partner: list[int] = [] if meetings is None else meetings.partner.tolist()
        self._missing = [] if meetings is None else meetings.expected.tolist()
        self._took = [] if meetings is None else meetings.took_ns.tolist()
        self._present: list[list[int]] = [[] for _ in self._missing]
        self._posted: dict[int, int] = {}  # a send that has not ended -> the receive that waits for it
        # a rank begins when an event of its own, numbered after the nodes, releases what depends on nothing
        begins = [0] * len(work.ranks) if meetings is None else meetings.begin_ns.tolist()
        self._events = sorted((at, n + i) for i, at in enumerate(begins))

    def simulate(self) -> None:
        events, lane_of, left, code = self._events, self._lane, self._left, self._code
        first, target, end, start, begin, cost = self._first, self._target, self.end, self.start, self.begin, self._cost
        before, push, pop = self.before, heapq.heappush, heapq.heappop
        ready: list[list[int]] = [[] for _ in range(self._lanes)]
        free = [True] * self._lanes
        last = [NOWHERE] * self._lanes
        slotless = [lane % len(Slot) == Slot.NONE for lane in range(self._lanes)]
        touched: set[int] = set()
        now = 0
        while True:
            for lane in sorted(touched):
                waiting = ready[lane]
                while waiting and free[lane]:
                    node = pop(waiting)
                    start[node] = now
                    if not slotless[lane]:
                        free[lane] = False
                        before[node] = last[lane]
                    if code[node] == PLAIN:
                        begin[node] = now
                        push(events, (now + cost[node], node))
                    else:
                        self._meet(node, now)
            if not events:
                return
            touched.clear()
            now = events[0][0]
            while events and events[0][0] == now:
                node = pop(events)[1]
                end[node] = now
                lane = lane_of[node]
                last[lane] = node
                free[lane] = True
                touched.add(lane)
                for after in target[first[node] : first[node + 1]]:
                    left[after] -= 1
                    if not left[after]:
                        lane = lane_of[after]
                        push(ready[lane], after)
                        touched.add(lane)
                if node in self._posted:
                    self._deliver(self._posted.pop(node), node, now)

    def _meet(self, node: int, now: int) -> None:
        other = self._partner[node]
        if self._code[node] == COLLECTIVE:
            present = self._present[other]
            present.append(node)
            if len(present) < self._missing[other]:
                return
            for member in present:
                self.begin[member] = now
                if self.start[member] < now:
                    self.joined[member] = node
                heapq.heappush(self._events, (now + self._took[other], member))
        elif self._code[node] == RECEIVE:
            if other == NOWHERE:
                return  # for ever: its send is not there
            if self.end[other] == NOT_RUN:
                self._posted[other] = node
            else:
                self.begin[node] = now
                heapq.heappush(self._events, (now + self._cost_after(node), node))

    def _deliver(self, receive: int, send: int, now: int) -> None:
        self.begin[receive] = now
        if self.start[receive] < now:
            self.joined[receive] = send
        heapq.heappush(self._events, (now + self._cost_after(receive), receive))

    def _cost_after(self, receive: int) -> int:
        """What a receive takes once its send has ended; none of the 1 ns that ASTRA-sim adds."""
        return self._cost[receive] if self._cost[receive] > 1 else 0
