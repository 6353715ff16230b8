"""The coupled replay of a run and all copies of its ranks: one pass over the recorded nodes, each with the times of all
its copies.

The rules are those of ``replay.coupled``. Copies of a rank have the same nodes and dependencies, and what meets on
recorded ranks meets on their copies. So the nodes of one step of the pass are the recorded ones, and of each the times
of all copies are a vector. Vectors live until all that waits for them has run; what stays are those of communication,
by which each copy can be replayed by itself (``alone``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.edges import successors
from graphlink.errors import InputError
from graphlink.graph_model import NO_GROUP, Graph
from graphlink.model import I64, NOWHERE, U64
from graphlink.replay.matching import COLLECTIVE, PLAIN, RECEIVE, Matched, Messages, messages
from graphlink.replay.workload import Workload
from graphlink.scale.copies import Copies
from graphlink.scale.spread import Spread


@dataclass(frozen=True, slots=True)
class Costs:
    """What communication takes in the larger run. ``took_ns``: of each node of a collective, send or receive its own
    time, once nobody is waited for (0 for other nodes)."""

    took_ns: I64
    messages: Messages


@dataclass(frozen=True, slots=True)
class PlayedCopies:
    """``end_ns``: of each node that meets others, its end on each copy. ``last_ns``: of each recorded rank the end of
    each copy. ``total_ns``: of all, from the first begin."""

    end_ns: dict[int, I64]
    last_ns: dict[int, I64]
    total_ns: int


def costs(work: Workload, match: Matched, took_ns: I64) -> Costs:
    """Return what communication takes. ``took_ns``: of each meeting, in the larger run."""
    own = work.cost_ns - work.fixed_ns
    out = np.zeros(len(work), np.int64)
    node = np.flatnonzero(match.code == COLLECTIVE)
    out[node] = took_ns[match.partner[node]]
    m = messages(work, match)
    free = own[m.send] == 0  # gloo, see ``replay.coupled``
    out[m.send] = np.where(free, 0, np.minimum(own[m.send], own[m.receive]))
    out[m.receive] = np.where(free, np.clip(m.received_ns - m.both_ns, 0, own[m.receive]), out[m.send])
    return Costs(out, m)


def play(work: Workload, match: Matched, cost: Costs, copies: Copies, spreads: dict[int, Spread]) -> PlayedCopies:
    """Replay all copies. Linear in nodes and edges times copies.

    Raises:
        InputError: the ranks wait for each other for ever.
    """
    return _Pass(work, match, cost, copies, spreads).run()


class _Pass:
    def __init__(self, work: Workload, match: Matched, cost: Costs, copies: Copies, spreads: dict[int, Spread]) -> None:
        self.work, self.match = work, match
        self.ranks: list[U64] = [copies.ranks[rank].astype(np.uint64) for rank in work.ranks]
        self.spreads = [spreads[rank] for rank in work.ranks]
        self.meets = match.code != PLAIN
        self.moved = np.isin(np.arange(len(work)), np.concatenate([cost.messages.send, np.flatnonzero(self.meets)]))
        self.cost, self.own = cost.took_ns.tolist(), (work.cost_ns - work.fixed_ns).tolist()
        self.fixed, self.member = work.fixed_ns.tolist(), work.member.tolist()
        self.place, self.offset = work.position.tolist(), work.offset.tolist()
        self.begin = match.clock.begin_ns.tolist()
        self.meeting = np.where(match.code == COLLECTIVE, match.partner, NOWHERE).tolist()
        self.instance = self._instances(copies)
        self.missing = match.expected.tolist()
        self.present: list[list[int]] = [[] for _ in self.missing]
        self.latest: dict[int, I64] = {}
        self.world = copies.world
        self._edges(cost.messages)

    def _instances(self, copies: Copies) -> dict[tuple[int, int], I64]:
        """Return, by communicator and rank of the workload, which of the communicator's copies each copy of the rank is
        in, from 0.
        """
        of_group: dict[int, list[I64]] = {}
        for (group, _), numbers in copies.numbers.items():
            of_group.setdefault(group, []).append(numbers)
        every = {group: np.unique(np.concatenate(numbers)) for group, numbers in of_group.items()}
        found = {key: np.searchsorted(every[key[0]], numbers) for key, numbers in copies.numbers.items()}
        return found | {(NO_GROUP, rank): np.zeros(len(ranks), np.int64) for rank, ranks in copies.ranks.items()}

    def _edges(self, m: Messages) -> None:
        """Lay the edges by source: dependencies, and from each send to its receive, which can end no sooner."""
        work, n = self.work, len(self.work)
        targets = np.concatenate([work.target, m.receive]).astype(np.int32)
        sources = np.concatenate([work.source, m.send.astype(np.int32)])
        early = np.zeros(len(sources), np.int64)
        # a receive is ready when its send begins: from then on both take the transfer
        early[len(work.source) :] = np.array(self.cost)[m.send] + work.fixed_ns[m.receive]
        starts, edge = successors(sources, np.arange(len(sources)), n)
        self.first, self.target, self.early = starts.tolist(), targets[edge].tolist(), early[edge].tolist()
        waits = np.bincount(targets, minlength=n)
        waits[(self.match.code == RECEIVE) & (self.match.partner == NOWHERE)] += 1  # its send is not there
        self.left = waits.tolist()

    def _cost(self, node: int) -> I64:
        """Return what a node takes on each copy, with its start delay."""
        of = self.member[node]
        if self.moved[node]:
            mine = 0 if self.meeting[node] != NOWHERE else self.cost[node]
            return np.full(len(self.ranks[of]), mine + self.fixed[node], np.int64)
        spread = self.spreads[of]
        out: I64 = spread.of_node(self.place[node], self.own[node], self.ranks[of]) + np.int64(self.fixed[node])
        return out

    def run(self) -> PlayedCopies:
        ready: dict[int, I64] = {}
        ends: dict[int, I64] = {}
        last = {k: np.full(len(ranks), self.begin[k], np.int64) for k, ranks in enumerate(self.ranks)}
        free = [node for node, left in enumerate(self.left) if not left]
        ran = 0
        while free:
            node = free.pop()
            of = self.member[node]
            at = ready.pop(node, self.begin[of]) + self._cost(node)
            for one, end in [(node, at)] if self.meeting[node] == NOWHERE else self._arrive(node, at):
                ran += 1
                of = self.member[one]
                np.maximum(last[of], end, out=last[of])
                if self.meets[one]:
                    ends[one] = end
                for k in range(self.first[one], self.first[one + 1]):
                    after, then = self.target[k], end - self.early[k] if self.early[k] else end
                    ready[after] = (
                        np.maximum(ready[after], then)
                        if after in ready
                        else np.maximum(then, self.begin[self.member[after]])
                    )
                    self.left[after] -= 1
                    if not self.left[after]:
                        free.append(after)
        if ran < len(self.work):
            self._refuse()
        total = max(int(one.max()) for one in last.values())
        return PlayedCopies(ends, {self.work.ranks[k]: one for k, one in last.items()}, total)

    def _arrive(self, node: int, at: I64) -> list[tuple[int, I64]]:
        """Note that a member of a collective is ready; once the last is, return all of them and when each copy ends."""
        where = self.meeting[node]
        rank, group = self.work.ranks[self.member[node]], int(self.match.group[where])
        if where not in self.latest:
            self.latest[where] = np.zeros(self.world, np.int64)
        np.maximum.at(self.latest[where], self.instance[group, rank], at)
        self.present[where].append(node)
        if len(self.present[where]) < self.missing[where]:
            return []
        latest = self.latest.pop(where) + self.cost[node]
        return [(one, latest[self.instance[group, self.work.ranks[self.member[one]]]]) for one in self.present[where]]

    def _refuse(self) -> None:
        node = next(node for node, left in enumerate(self.left) if left > 0)
        raise InputError(
            f"rank {self.work.rank(node)} waits for ever in node {self.work.id(node)} ({self.work.name(node)[:60]})",
            todo="graphlink replay DIR --machine coupled says for what; record all ranks of the run",
        )


@dataclass(frozen=True, slots=True)
class Alone:
    """When the nodes of one copy start, as recordings have it (after the start delay), and end."""

    start_ns: I64
    end_ns: I64


def alone(graph: Graph, took_ns: I64, meets: I64, end_ns: I64, begin_ns: int) -> Alone:
    """Replay one copy. ``took_ns``: of its nodes, without start delays; ``meets``: the nodes of which ``end_ns`` is
    known. Linear.
    """
    fixed = np.where(graph.host, 0, graph.start_delay_ns)
    given = np.full(len(took_ns), NOWHERE, np.int64)
    given[meets] = end_ns
    first, source = graph.first.tolist(), graph.source.tolist()
    end: list[int] = []
    for node, (cost, known) in enumerate(zip((took_ns + fixed).tolist(), given.tolist(), strict=True)):
        if known != NOWHERE:
            end.append(known)
            continue
        ready = begin_ns
        for k in range(first[node], first[node + 1]):
            ready = max(ready, end[source[k]])
        end.append(ready + cost)
    ended = np.array(end, np.int64)
    return Alone(ended - took_ns, ended)
