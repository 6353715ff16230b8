"""ASTRA-sim's machine: of each rank one CPU slot, one slot for GPU computation, one for communication; receives need
none.

What ends at one instant ends one by one, in the order in which it was started, and after each whatever is ready and has
a free slot starts, lowest id first. A node takes at least 1 ns. Over several ranks, collectives and messages may be
coupled (``matching``). Source of the rules: ``Workload::issue_dep_free_nodes`` and ``Sys::call_events`` of ASTRA-sim,
checked against two versions as run (tests/e2e/test_astra_sim.py).
"""

from __future__ import annotations

import heapq

import numpy as np

from graphlink.depend.edges import successors
from graphlink.model import I64, NOWHERE
from graphlink.replay.matching import COLLECTIVE, PLAIN, Matched, messages, shortest_ns, unmatched
from graphlink.replay.played import NOT_RUN, SLOT, Played, binding
from graphlink.replay.workload import Slot, Workload


def play_slots(work: Workload, match: Matched | None = None) -> Played:
    """Replay every rank by itself, where a collective or receive takes its own time; or with ``match`` all ranks at
    once: then a collective's time begins when its last member has started, and a receive ends no sooner than its send.
    n log n in nodes, linear in edges.

    Each rank begins at its ``match.clock.begin_ns``.
    """
    match = match or unmatched(work)
    run = _Run(work, match)
    run.simulate()
    start, begin, end = (np.array(times, np.int64) for times in (run.start, run.begin, run.end[: len(work)]))
    bound = binding(work, end)
    # a node that started later than its dependencies allowed waited for the one that had the slot before it
    ready = np.maximum(bound.ended_ns, match.clock.begin_ns[work.member])
    waited = (start != NOT_RUN) & (start > ready)
    held = np.where(waited, np.array(run.before, np.int64), bound.dependency).astype(np.int32)
    kind = np.where(waited, SLOT, bound.kind).astype(np.uint8)
    joined = np.array(run.joined, np.int32)
    return Played(end, match, start, begin, held, kind, joined, has_lags=False)


def matched_costs(work: Workload, match: Matched) -> tuple[I64, I64]:
    """Return the cost of each node and of each collective over its ranks, in ns.

    A send costs the shorter of its own and its receive's time (the other one waited), a receive what it takes after its
    send has ended. A collective takes the shortest time of a member, since the one that came last waited for nobody.
    """
    node = work.micros_ns.copy()
    took = shortest_ns(match, node)
    pairs = messages(work, match)
    sent_ns, transfer_ns = pairs.costs_ns(node)
    node[pairs.send], node[pairs.receive] = sent_ns, transfer_ns - sent_ns
    return node, np.maximum(took, 1)


class _Run:
    """One simulation; the columns are lists while it runs."""

    def __init__(self, work: Workload, match: Matched) -> None:
        n, ranks = len(work), len(work.ranks)
        self.start, self.begin = [NOT_RUN] * n, [NOT_RUN] * n
        self.before, self.joined = [NOWHERE] * n, [NOWHERE] * n
        # a rank begins when an event of its own, numbered after the nodes, releases what depends on nothing
        self.end = [NOT_RUN] * (n + ranks)
        self._lanes = ranks * len(Slot)
        lane = work.member.astype(np.int64) * len(Slot) + work.slot
        self._lane: list[int] = [*lane.tolist(), *range(int(Slot.NONE), self._lanes, len(Slot))]
        cost_ns, took_ns = matched_costs(work, match)
        self._cost: list[int] = np.maximum(cost_ns, 1).tolist()
        self._took: list[int] = took_ns.tolist()
        degree = np.diff(work.first)
        roots = np.flatnonzero(degree == 0)
        self._left: list[int] = np.maximum(degree, 1).tolist()
        first, target = successors(work.source, work.target, n)
        ends = first[-1] + np.searchsorted(roots, work.offset[1:])
        self._first, self._target = [*first.tolist(), *ends.tolist()], [*target.tolist(), *roots.tolist()]
        self._code = match.code.tobytes()
        self._partner: list[int] = match.partner.tolist()
        self._missing: list[int] = match.expected.tolist()
        self._present: list[list[int]] = [[] for _ in self._missing]
        self._posted: dict[int, int] = {}  # a send that has not ended -> the receive that waits for it
        # when, how many were scheduled before, node
        self._events = sorted((at_ns, i, n + i) for i, at_ns in enumerate(match.clock.begin_ns.tolist()))
        self._scheduled = ranks

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
            self._begin(node, now, node, self._cost[node])
            return
        other = self._partner[node]
        if self._code[node] == COLLECTIVE:
            present = self._present[other]
            present.append(node)
            if len(present) == self._missing[other]:
                for member in present:
                    self._begin(member, now, node, self._took[other])
        elif other == NOWHERE:
            pass  # its send is not there: it waits for ever
        elif self.end[other] == NOT_RUN:
            self._posted[other] = node
        else:
            self._deliver(node, other, now)

    def _deliver(self, receive: int, send: int, now: int) -> None:
        cost = self._cost[receive]
        # once the send has ended, none of the 1 ns that ASTRA-sim adds
        self._begin(receive, now, send, cost if cost > 1 else 0)

    def _begin(self, node: int, now: int, waited_for: int, took: int) -> None:
        """Begin the own time of a node, and schedule its end."""
        self.begin[node] = now
        if self.start[node] < now:
            self.joined[node] = waited_for
        heapq.heappush(self._events, (now + took, self._scheduled, node))
        self._scheduled += 1
