"""ASTRA-sim's machine: of each rank one CPU slot, one slot for GPU computation, one for communication; receives need
none.

What ends at one instant ends one by one, in the order in which it was started, and after each whatever is ready and has
a free slot starts, lowest id first. A node takes at least 1 ns. Over several ranks, collectives and messages may be
coupled (``meetings``). Source of the rules: ``Workload::issue_dep_free_nodes`` and ``Sys::call_events`` of ASTRA-sim,
checked against two versions as run (tests/e2e/test_astra_sim.py).
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from graphlink.depend.edges import successors
from graphlink.model import I64, NOWHERE
from graphlink.replay.meetings import COLLECTIVE, PLAIN, RECEIVE, Rendezvous, messages, shortest_ns
from graphlink.replay.played import NOT_RUN, SLOT, Played, binding
from graphlink.replay.workload import Slot, Workload

ASTRA_SIM: Final = "astra-sim"
RANKS: Final = "ranks"


def play_slots(work: Workload) -> Played:
    """Replay every rank by itself: a collective or receive takes its own time. n log n in nodes, linear in edges."""
    return _play(work, None)


def play_ranks(work: Workload, meetings: Rendezvous) -> Played:
    """Replay all ranks at once: a collective's time begins when its last member has started, a receive ends no sooner
    than its send.

    Each rank begins at its ``meetings.begin_ns``.
    """
    return _play(work, meetings)


def _play(work: Workload, meetings: Rendezvous | None) -> Played:
    run = _Run(work, meetings)
    run.simulate()
    start, begin, end = (np.array(c, np.int64) for c in (run.start, run.begin, run.end[: len(work)]))
    bound = binding(work, end)
    # a node that started later than its dependencies allowed waited for the one that had the slot before it
    begins = np.zeros(len(work.ranks), np.int64) if meetings is None else meetings.begin_ns
    ready = np.maximum(bound.ended_ns, begins[work.member])
    waited = (start != NOT_RUN) & (start > ready)
    held = np.where(waited, np.array(run.before, np.int64), bound.dependency).astype(np.int32)
    kind = np.where(waited, SLOT, bound.kind).astype(np.uint8)
    return Played(start, begin, end, held, kind, np.array(run.joined, np.int32), begins, has_lags=False)


def meeting_costs(work: Workload, meetings: Rendezvous) -> tuple[I64, I64]:
    """Return the cost of each node and of each meeting, in ns.

    A send costs the shorter of its own and its receive's time (the other one waited), a receive what it takes after its
    send has ended. A meeting takes the shortest time of a member, since the one that came last waited for nobody.
    """
    node = work.micros_ns.copy()
    took = shortest_ns(meetings, node)
    m = messages(work, meetings)
    sent, received = node[m.send], node[m.receive]
    # gloo's sends cost nothing (their rows end when somebody waits for them): the receive shows the transfer, from when
    # both are there
    node[m.receive] = np.where(sent == 0, np.clip(m.received_ns - m.both_ns, 0, received), 0)
    node[m.send] = np.minimum(sent, received)
    return node, np.maximum(took, 1)


class _Run:
    """One simulation; the columns are lists while it runs."""

    def __init__(self, work: Workload, meetings: Rendezvous | None) -> None:
        n, members = len(work), len(work.ranks)
        self.start, self.begin, self.end = [NOT_RUN] * n, [NOT_RUN] * n, [NOT_RUN] * (n + members)
        self.before, self.joined = [NOWHERE] * n, [NOWHERE] * n
        lane = work.member.astype(np.int64) * len(Slot) + work.slot
        self._lane: list[int] = [*lane.tolist(), *range(int(Slot.NONE), members * len(Slot), len(Slot))]
        self._lanes = members * len(Slot)
        none = np.zeros(0, np.int64)
        cost_ns, took_ns = (work.micros_ns, none) if meetings is None else meeting_costs(work, meetings)
        self._cost: list[int] = np.maximum(cost_ns, 1).tolist()
        left = np.diff(work.first)
        roots = np.flatnonzero(left == 0)
        first, target = successors(work.source, work.target, n)
        ends = first[-1] + np.searchsorted(roots, work.offset[1:])
        self._left: list[int] = np.maximum(left, 1).tolist()
        self._first, self._target = [*first.tolist(), *ends.tolist()], [*target.tolist(), *roots.tolist()]
        self._code = bytes(n) if meetings is None else meetings.code.tobytes()
        self._partner: list[int] = [] if meetings is None else meetings.partner.tolist()
        self._missing = [] if meetings is None else meetings.expected.tolist()
        self._took = took_ns.tolist()
        self._present: list[list[int]] = [[] for _ in self._missing]
        self._posted: dict[int, int] = {}  # a send that has not ended -> the receive that waits for it
        # a rank begins when an event of its own, numbered after the nodes, releases what depends on nothing
        begins = [0] * members if meetings is None else meetings.begin_ns.tolist()
        self._events = sorted(
            (at, i, n + i) for i, at in enumerate(begins)
        )  # when, how many were scheduled before, node
        self._scheduled = members

    def simulate(self) -> None:
        events, lane_of, left = self._events, self._lane, self._left
        first, target, end, before = self._first, self._target, self.end, self.before
        push, pop = heapq.heappush, heapq.heappop
        ready: list[list[int]] = [[] for _ in range(self._lanes)]  # of a lane without slots always empty
        free = [True] * self._lanes
        last = [NOWHERE] * self._lanes
        slotless = [lane % len(Slot) == Slot.NONE for lane in range(self._lanes)]
        while events:
            now, _, node = pop(events)
            end[node] = now
            lane = lane_of[node]
            last[lane] = node
            free[lane] = True
            touched = [lane]
            starting: list[int] = []
            for after in target[first[node] : first[node + 1]]:
                left[after] -= 1
                if left[after]:
                    continue
                lane = lane_of[after]
                if slotless[lane]:
                    starting.append(after)
                else:
                    push(ready[lane], after)
                    touched.append(lane)
            for lane in touched:
                if free[lane] and ready[lane]:
                    free[lane] = False
                    before[ready[lane][0]] = last[lane]
                    starting.append(pop(ready[lane]))
            starting.sort()
            for after in starting:
                self._start(after, now)
            if node in self._posted:
                self._deliver(self._posted.pop(node), node, now)

    def _start(self, node: int, now: int) -> None:
        self.start[node] = now
        if self._code[node] == PLAIN:
            self.begin[node] = now
            self._end_at(now + self._cost[node], node)
        else:
            self._meet(node, now)

    def _end_at(self, at: int, node: int) -> None:
        heapq.heappush(self._events, (at, self._scheduled, node))
        self._scheduled += 1

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
                self._end_at(now + self._took[other], member)
        elif self._code[node] == RECEIVE:
            if other == NOWHERE:
                return  # for ever: its send is not there
            if self.end[other] == NOT_RUN:
                self._posted[other] = node
            else:
                self._deliver(node, other, now)

    def _deliver(self, receive: int, send: int, now: int) -> None:
        self.begin[receive] = now
        if self.start[receive] < now:
            self.joined[receive] = send
        cost = (
            self._cost[receive] if self._cost[receive] > 1 else 0
        )  # once the send has ended, none of the 1 ns that ASTRA-sim adds
        self._end_at(now + cost, receive)
