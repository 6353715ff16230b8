"""The coupled replay of a run and all copies of its ranks: one pass over the recorded nodes, each with the times of all
its copies.

The rules are those of ``replay.coupled``. Copies of a rank have the same nodes and dependencies, and what ranks wait
for each other in, their copies do too. So the nodes of one step of the pass are the recorded ones, and of each the
times of all copies are a vector. Vectors live until all that waits for them has run; what stays are those of
communication, by which each copy can be replayed by itself (``scale.copy``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from graphlink.depend.edges import successors
from graphlink.errors import InputError
from graphlink.graph_model import NO_GROUP
from graphlink.model import I64, NOWHERE, U64
from graphlink.replay.matching import COLLECTIVE, PLAIN, RECEIVE, Matched
from graphlink.replay.workload import Workload
from graphlink.scale.copies import Copies
from graphlink.scale.spread import Spread
from graphlink.scale.transfers import Communication
from graphlink.tables import grouped

_AT_ONCE: Final = 1 << 24  # nodes of all copies up to which what they take is drawn for a rank at once


def play(
    work: Workload, match: Matched, comm: Communication, copies: Copies, spreads: dict[int, Spread]
) -> tuple[dict[int, I64], int]:
    """Replay all copies; return of each node that waits for other ranks its end on each copy, and the time of all from
    the first begin. Linear in nodes and edges times copies.

    Raises:
        InputError: the ranks wait for each other for ever.
    """
    return _Pass(work, match, comm, copies, spreads).run()


class _Pass:
    def __init__(
        self, work: Workload, match: Matched, comm: Communication, copies: Copies, spreads: dict[int, Spread]
    ) -> None:
        self.work, self.match, self.world = work, match, copies.world
        self.ranks: list[U64] = [copies.ranks[rank].astype(np.uint64) for rank in work.ranks]
        self.spreads = [spreads[rank] for rank in work.ranks]
        self.waits_for_ranks = match.code != PLAIN
        self.comm_ns, self.own = comm.took_ns.tolist(), (work.cost_ns - work.fixed_ns).tolist()
        self.fixed, self.member = work.fixed_ns.tolist(), work.member.tolist()
        self.place, self.begin = work.position.tolist(), match.clock.begin_ns.tolist()
        nodes = sum(len(ranks) * len(file.name) for ranks, file in zip(self.ranks, work.files, strict=True))
        self.drawn = [*self._drawn()] if nodes <= _AT_ONCE else []
        self.collective = np.where(match.code == COLLECTIVE, match.partner, NOWHERE).tolist()
        self.instance = self._instances(copies)
        self.missing = match.expected.tolist()
        self.present: list[list[int]] = [[] for _ in self.missing]
        self.latest: dict[int, I64] = {}
        # edges by source: dependencies, and from each send to its receive, which can end no sooner: it is ready when
        # its send begins, and from then on both take the transfer
        n, send, receive = len(work), comm.messages.send, comm.messages.receive
        targets = np.append(work.target, receive).astype(np.int32)
        sources = np.append(work.source, send).astype(np.int32)
        early = np.append(np.zeros(len(work.source), np.int64), comm.took_ns[send] + work.fixed_ns[receive])
        starts, edge = successors(sources, np.arange(len(sources)), n)
        self.first, self.target, self.early = starts.tolist(), targets[edge].tolist(), early[edge].tolist()
        left = np.bincount(targets, minlength=n)
        left[(match.code == RECEIVE) & (match.partner == NOWHERE)] += 1  # its send is not there
        self.left = left.tolist()

    def _instances(self, copies: Copies) -> dict[tuple[int, int], I64]:
        """Return, by communicator and rank of the workload, which of the communicator's copies each copy of the rank is
        in, from 0.
        """
        of_group = grouped((group, numbers) for (group, _), numbers in copies.numbers.items())
        every = {group: np.unique(np.concatenate(numbers)) for group, numbers in of_group.items()}
        known = {key: np.searchsorted(every[key[0]], numbers) for key, numbers in copies.numbers.items()}
        return known | {(NO_GROUP, rank): np.zeros(len(ranks), np.int64) for rank, ranks in copies.ranks.items()}

    def _drawn(self) -> Iterator[I64]:
        """Yield of each rank what its nodes take on each copy, one row per node."""
        own_ns = self.work.cost_ns - self.work.fixed_ns
        for spread, ranks, (low, high) in zip(self.spreads, self.ranks, self.work.bounds, strict=True):
            of_file = np.empty(high - low, np.int64)
            of_file[self.work.position[low:high]] = own_ns[low:high]
            yield np.stack([spread.ns(of_file, rank) for rank in ranks.tolist()], axis=1)

    def _cost(self, node: int) -> I64:
        """Return what a node takes on each copy, with its start delay."""
        member, fixed_ns, comm_ns = self.member[node], self.fixed[node], self.comm_ns[node]
        if comm_ns != NOWHERE:
            alone_ns = 0 if self.collective[node] != NOWHERE else comm_ns
            return np.full(len(self.ranks[member]), alone_ns + fixed_ns, np.int64)
        if self.drawn:
            own_ns = self.drawn[member][self.place[node]]
        else:
            own_ns = self.spreads[member].of_node(self.place[node], self.own[node], self.ranks[member])
        return np.asarray(own_ns + np.int64(fixed_ns))

    def run(self) -> tuple[dict[int, I64], int]:
        ready: dict[int, I64] = {}
        ends: dict[int, I64] = {}
        last_ns, ran = max(self.begin, default=0), 0
        free = [node for node, left in enumerate(self.left) if not left]
        while free:
            node = free.pop()
            end = ready.pop(node, self.begin[self.member[node]]) + self._cost(node)
            for ended, end_ns in [(node, end)] if self.collective[node] == NOWHERE else self._arrive(node, end):
                ran, last_ns = ran + 1, max(last_ns, int(end_ns.max()))
                if self.waits_for_ranks[ended]:
                    ends[ended] = end_ns
                for k in range(self.first[ended], self.first[ended + 1]):
                    after, ready_ns = self.target[k], end_ns - self.early[k] if self.early[k] else end_ns
                    ready[after] = np.maximum(
                        ready[after] if after in ready else self.begin[self.member[after]], ready_ns
                    )
                    self.left[after] -= 1
                    if not self.left[after]:
                        free.append(after)
        if ran < len(self.work):
            node = next(node for node, left in enumerate(self.left) if left > 0)
            raise InputError(
                f"rank {self.work.rank(node)} waits for ever in node {self.work.id(node)} "
                f"({self.work.name(node)[:60]})",
                todo="graphlink replay DIR --machine coupled says for what; record all ranks of the run",
            )
        return ends, last_ns

    def _arrive(self, node: int, end_ns: I64) -> list[tuple[int, I64]]:
        """Note that a member of a collective is ready; once the last is, return all of them and when each copy ends."""
        collective = self.collective[node]
        group = int(self.match.group[collective])
        if collective not in self.latest:
            self.latest[collective] = np.zeros(self.world, np.int64)
        np.maximum.at(self.latest[collective], self._copies_of(group, node), end_ns)
        present = self.present[collective]
        present.append(node)
        if len(present) < self.missing[collective]:
            return []
        latest = self.latest.pop(collective) + self.comm_ns[node]
        return [(member, latest[self._copies_of(group, member)]) for member in present]

    def _copies_of(self, group: int, node: int) -> I64:
        return self.instance[group, self.work.ranks[self.member[node]]]
