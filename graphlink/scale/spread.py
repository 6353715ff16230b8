"""How long the ops of copied ranks take: drawn by a seed from what the ranks of one role were recorded to take.

The ranks of one role do the same: they lie at different places of the data axis and at one place of all others. An op
of theirs is found on each by its name and its turn in the step. A copy takes for it the mean over them, times a
deviation that was recorded on one of them in one of the steps. Ops in a row that deviate together, by their
correlation, take it from the same rank and step, others from one drawn anew: so the times of a step spread as recorded,
and the slowest of many ranks is slower than the slowest of few. What a rank is slower throughout a step, beyond what
such draws give, is drawn for the step as a whole. Deviations are widened by sqrt(n / (n - 1)), as the mean is of the
same n. Communication, delays and gaps stay as recorded, and so does what the ranks do not have equally often. The
recorded ranks keep their own times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from graphlink.graph_model import Graph
from graphlink.model import F64, I64, NOWHERE, U64
from graphlink.replay.workload import Work, works_of
from graphlink.scale.layout import Axis, step_of
from graphlink.tables import begins, codes, grouped, nowhere, tuples, turns

_TOGETHER: Final = 0.7  # correlation of two ops in a row from which they are drawn as one
_THROUGHOUT: Final = (
    2.0  # times the variance that separate draws give, from which a rank is taken to be slower throughout
)
_CLASSES: Final = ((Work.HOST,), (Work.KERNEL, Work.COPY))  # drawn apart from each other
_WHOLE: Final = 1 << 31  # in the place of a block: what holds for a step as a whole


@dataclass(frozen=True, slots=True)
class Donors:
    """The recorded deviations of some steps that are alike. ``deviation``: of each donor (rank and step) and place, 1
    on average; ``throughout``: of each donor, the part that goes on through the step; ``block``: which places are drawn
    as one."""

    deviation: F64
    throughout: F64
    block: I64


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn for the ops of one class in one step, of the ranks of a role.

    ``node``: of each of the role's ranks the nodes of the places. ``mean_ns``: of each place. ``number``: of this
    record, which no other has.
    """

    node: dict[int, I64]
    mean_ns: F64
    donors: Donors
    number: int

    def ns(self, places: Any, ranks: U64, seed: int) -> I64:
        """Draw what copies take: the ``places`` of one rank, or one place of many ranks."""
        count = np.uint64(len(self.donors.throughout))
        of_step = np.uint64(self.number << 32)
        donor = (_hashed(seed, ranks, of_step + self.donors.block[places].astype(np.uint64)) % count).astype(np.int64)
        whole = (_hashed(seed, ranks, of_step + np.uint64(_WHOLE)) % count).astype(np.int64)
        took = self.mean_ns[places] * self.donors.deviation[donor, places] * self.donors.throughout[whole]
        return np.asarray(np.maximum(np.rint(took), 0).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Spread:
    """All that is drawn for copies of one recorded rank, whose number in the larger run is ``rank``.

    ``of`` has for each node its entry of ``drawn`` and ``place`` its place there; ``NOWHERE`` for nodes that keep their
    time.
    """

    rank: int
    seed: int
    drawn: tuple[Drawn, ...]
    nodes: tuple[I64, ...]  # of each entry of ``drawn`` the nodes of its places on this rank
    of: I64
    place: I64

    def ns(self, duration_ns: I64, rank: int) -> I64:
        """Return what the nodes of the copy ``rank`` take."""
        out = duration_ns.copy()
        if rank != self.rank:
            for one, nodes in zip(self.drawn, self.nodes, strict=True):
                out[nodes] = one.ns(np.arange(len(nodes)), np.array([rank], np.uint64), self.seed)
        return out

    def of_node(self, node: int, duration_ns: int, ranks: U64) -> I64:
        """Return what one node takes on each of the copies ``ranks``, the first of which is the recorded one."""
        out = np.full(len(ranks), duration_ns, np.int64)
        of = int(self.of[node])
        if of != NOWHERE and len(ranks) > 1:
            out[1:] = self.drawn[of].ns(int(self.place[node]), ranks[1:], self.seed)
        return out


def spreads(graphs: Mapping[int, Graph], numbers: Mapping[int, int], axis: Axis, seed: int | None) -> dict[int, Spread]:
    """Find what is drawn for the copies of each rank; nothing without a ``seed``. n log n in nodes.

    ``numbers``: of the recorded ranks in the larger run.
    """
    out: dict[int, Spread] = {}
    count = 0
    for ranks in grouped((axis.moved(rank, 0, axis.size), rank) for rank in graphs).values():
        role = {rank: graphs[rank] for rank in ranks}
        drawn: list[Drawn] = []
        for works in _CLASSES if seed is not None else ():
            drawn += _drawn(role, works, count + len(drawn))
        count += len(drawn)
        for rank in ranks:
            of, place = (nowhere(len(graphs[rank].name)) for _ in range(2))
            nodes = tuple(one.node[rank] for one in drawn)
            for k, mine in enumerate(nodes):
                of[mine], place[mine] = k, np.arange(len(mine))
            out[rank] = Spread(numbers[rank], seed or 0, tuple(drawn), nodes, of, place)
    return out


_Place = tuple[str, int]  # the name of an op, and its turn among those of that name in the step


def _drawn(role: Mapping[int, Graph], works: Sequence[Work], number: int) -> list[Drawn]:
    """Return what is drawn for one class of ops of the ranks of a role, an entry for each step."""
    node_of = {rank: _places(graph, works) for rank, graph in role.items()}
    first, *others = node_of.values()
    equal = grouped(
        (tuple(place for place in first[step] if all(place in other[step] for other in others)), step)
        for step in sorted(set(first).intersection(*others))
    )
    out: list[Drawn] = []
    for places, steps in equal.items():
        if not places or len(role) * len(steps) < 2:
            continue
        nodes = {
            rank: np.array([[of_step[step][place] for place in places] for step in steps], np.int64)
            for rank, of_step in node_of.items()
        }
        took = np.stack([role[rank].duration_ns[node] for rank, node in nodes.items()], axis=1).astype(
            np.float64
        )  # step, rank, place
        mean = took.mean(axis=1) if len(role) > 1 else np.broadcast_to(took.mean(axis=0), (len(steps), len(places)))
        donors = _donors(took, mean, len(role) if len(role) > 1 else len(steps))
        for k in range(len(steps)):
            out.append(Drawn({rank: node[k] for rank, node in nodes.items()}, mean[k], donors, number + len(out)))
    return out


def _places(graph: Graph, works: Sequence[Work]) -> dict[int, dict[_Place, int]]:
    """Return the nodes of a class by step and place, each step in the order of nodes. A place is one only with all of
    its name: the number of those is part of the name."""
    nodes = np.flatnonzero(np.isin(works_of(graph), works))
    step, name = step_of(graph)[nodes], graph.name[nodes]
    turn, of_name = turns(step, name), codes(step, name)
    count = np.bincount(of_name)[of_name]
    out: dict[int, dict[_Place, int]] = {}
    texts = graph.strings
    for node, of, code, k, all_ in tuples(nodes, step, name, turn, count):
        out.setdefault(of, {})[f"{all_} {texts[code]}", k] = node
    return out


def _donors(took: F64, mean: F64, ranks: int) -> Donors:
    """Split what was recorded into deviations and what holds throughout a step. ``took``: by step, rank, place;
    ``mean``: by step, place.

    ``ranks``: how many the means are of.
    """
    places = took.shape[2]
    wide = np.sqrt(ranks / (ranks - 1))
    whole = np.maximum(mean.sum(axis=1), 1)[:, None]
    throughout = np.maximum(took.sum(axis=2) / whole, 1e-9)
    rest = took / throughout[:, :, None]
    known = mean[:, None, :]
    block = _blocks(np.divide(rest, known, out=np.ones_like(took), where=known > 0).reshape(-1, places))
    starts = np.flatnonzero(begins(block))
    free = len(starts) / max(len(starts) - 1, 1)  # the rests of all blocks add up to nothing
    apart = free * (np.add.reduceat(rest - known, starts, axis=2) ** 2).sum(axis=2) / whole**2
    expected, seen = float(apart.mean()), float(((throughout - 1) ** 2).mean())
    part = np.sqrt(1 - expected / seen) if seen > _THROUGHOUT * expected else 0.0
    throughout = (1 + part * (throughout - 1)).reshape(-1)
    deviation = (
        np.divide(took, known, out=np.ones_like(took), where=known > 0).reshape(-1, places) / throughout[:, None]
    )
    return Donors(np.maximum(1 + wide * (deviation - 1), 0), throughout, block)


def _blocks(deviation: F64) -> I64:
    """Number the blocks of places whose deviations go together, from place to place."""
    off = deviation - deviation.mean(axis=0)
    size = np.sqrt((off**2).sum(axis=0))
    both = size[1:] * size[:-1]
    together = np.divide((off[:, 1:] * off[:, :-1]).sum(axis=0), both, out=np.zeros_like(both), where=both > 0)
    return np.append(0, np.cumsum(together < _TOGETHER))


def _hashed(seed: int, ranks: U64, what: Any) -> U64:
    """Return a number for each rank, or for each of ``what``, that looks drawn: splitmix64 of both and the seed."""
    factors = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
    shifts = np.array([30, 27, 31], np.uint64)
    mixed: U64 = (
        ranks * factors[0]
        + np.atleast_1d(what) * factors[1]
        + np.array([seed * 0x8CB92BA72F3D8DD7 % (1 << 64)], np.uint64)
    )
    mixed = (mixed ^ (mixed >> shifts[0])) * factors[2]
    mixed = (mixed ^ (mixed >> shifts[1])) * factors[3]
    return np.asarray(mixed ^ (mixed >> shifts[2]))
