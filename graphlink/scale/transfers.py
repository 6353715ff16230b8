"""The time of collectives in larger communicators: a rule, fitted to those that were recorded.

A transfer takes steps x latency + bytes on the wire / bandwidth. Bytes on the wire are those of ring algorithms
(nccl-tests' bus bandwidth). How steps grow with the ranks is fitted where communicators of several sizes were recorded;
where all have one size nothing shows it, and steps are taken as those of a tree, which NCCL uses where latency matters:
log2 of the ranks, for ALL_REDUCE twice. Each recorded time changes by the difference that the rule gives, so that what
one transfer had more than another stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from graphlink.graph_model import NO_GROUP, Groups
from graphlink.linking.commtypes import CollectiveType, wire_share
from graphlink.model import F64, I64
from graphlink.replay.matching import COLLECTIVE, Matched, Messages, messages, shortest_ns
from graphlink.replay.network import Transfers, transfers
from graphlink.replay.workload import Workload
from graphlink.scale.copies import Copies
from graphlink.tables import spread, take

Size = TypeVar("Size", int, I64)
TREE: Final = "tree"
_RING: Final = "ring"
_STEPS: Final = ("one step, whatever the ranks", TREE, _RING)
_NAMES: Final = {TREE: "log2 of the ranks (tree)", _RING: "as many as the ranks less one (ring)"}
_WIRES: Final = ("as in a ring", "the buffer itself, whatever the ranks")
_FEWEST: Final = 2  # transfers of different sizes from which both latency and bandwidth are told


@dataclass(frozen=True, slots=True)
class Rule:
    """``latency_ns`` of a step, ``ns_per_byte`` on the wire; how both grow with the ranks, and ``why``, for people.

    ``given``: latency or bandwidth are the user's, so that recorded times do not count.
    """

    steps: str
    wire: str
    latency_ns: float
    ns_per_byte: float
    why: tuple[str, ...]
    given: bool = False

    def ns(self, kind: I64, members: F64, size_bytes: F64) -> F64:
        """Return what the rule gives for transfers of these types, numbers of ranks and sizes."""
        steps, wire = _terms(self.steps, self.wire, kind, members, size_bytes)
        return steps * self.latency_ns + wire * self.ns_per_byte

    def grown(self, took_ns: I64, kind: I64, members: tuple[F64, F64], size_bytes: tuple[F64, F64]) -> I64:
        """Return what transfers take with other numbers of ranks and sizes, each given before and after."""
        after = self.ns(kind, members[1], size_bytes[1])
        took = after if self.given else took_ns + after - self.ns(kind, members[0], size_bytes[0])
        same = (members[0] == members[1]) & (size_bytes[0] == size_bytes[1])
        return np.where(same, took_ns, np.maximum(np.rint(took), 1)).astype(np.int64)


def fit(found: Transfers, gigabytes_per_s: float | None, latency_ns: float | None) -> Rule:
    """Fit the rule to the transfers of the communicators that grow. What is given holds instead.

    The relative error of every transfer counts alike. Of the ways in which steps and bytes may grow that are told
    apart, the one with the least error is taken; of equal ones the first of tree and ring.
    """
    sizes = np.unique(found.members)
    ways = [(TREE, _WIRES[0])]
    if len(sizes) > 1:
        ways += [(steps, wire) for steps in _STEPS for wire in _WIRES if (steps, wire) != ways[0]]
    errors = [_fitted(found, *way) for way in ways]
    best = min(range(len(ways)), key=lambda k: (round(errors[k][0], 9), k))
    error, latency, per_byte = errors[best]
    rule = Rule(*ways[best], latency, per_byte, _why(found, sizes, *ways[best], error))
    return _given(rule, gigabytes_per_s, latency_ns)


def grown_bytes(
    kinds: Mapping[int, frozenset[int]], group: int, kind: int, size_bytes: Size, before: int, after: int
) -> Size:
    """Return the size of a collective, or of several, in a larger communicator. ``kinds``: the types of collectives of
    each communicator.

    Sums stay: gradients are as many. What is gathered is a shard of parameters where their gradients are scattered in
    the same communicator, and of ``1 / ranks``; else it is each rank's own, and stays. An exchange of tokens keeps a
    rank's bytes.
    """
    shards = kind == CollectiveType.ALL_GATHER and CollectiveType.REDUCE_SCATTER in kinds[group]
    return -(-size_bytes * before // after) if shards else size_bytes


def _terms(steps: str, wire: str, kind: I64, members: F64, size_bytes: F64) -> tuple[F64, F64]:
    """Return the steps of transfers and their bytes on the wire."""
    counts = {TREE: np.ceil(np.log2(np.maximum(members, 2))), _RING: np.maximum(members - 1, 1.0)}
    twice = np.where(kind == CollectiveType.ALL_REDUCE, 2, 1)
    count = counts[steps] * twice if steps in counts else np.ones(len(kind))
    return count, size_bytes * wire_share(kind, members) if wire == _WIRES[0] else size_bytes


def _fitted(found: Transfers, steps: str, wire: str) -> tuple[float, float, float]:
    """Return the root mean square of relative errors, the latency of a step and the time of a byte, neither below 0."""
    if not len(found.took_ns):
        return 0.0, 0.0, 0.0
    terms = np.stack(_terms(steps, wire, found.type, found.members.astype(np.float64), found.size_bytes), axis=1)
    scaled = terms / found.took_ns[:, None]
    candidates = []
    for use in ((0, 1), (0,), (1,)):
        part, *_ = np.linalg.lstsq(scaled[:, use], np.ones(len(scaled)), rcond=None)
        both = np.zeros(2)
        both[list(use)] = part
        if both.min() >= 0:
            candidates.append((float(np.sqrt(np.mean((scaled @ both - 1) ** 2))), float(both[0]), float(both[1])))
    return min(candidates)


def _why(found: Transfers, sizes: I64, steps: str, wire: str, error: float) -> tuple[str, ...]:
    many, ranks = len(found.took_ns), ", ".join(f"{n:,}" for n in sizes.tolist())
    how = f"steps of a transfer: {_NAMES.get(steps, steps)}; bytes on the wire: {wire}"
    if not many:
        return (f"{how}; no collective was recorded that would tell latency and bandwidth",)
    told = f"fitted to {many:,} collectives of communicators of {ranks} ranks, {100 * error:.1f} % off"
    if len(sizes) == 1:
        return (f"{how}: an assumption, as all recorded communicators that grow have {ranks} ranks", told)
    return (f"{how}: the law of growth that fits best", told)


def _given(rule: Rule, gigabytes_per_s: float | None, latency_ns: float | None) -> Rule:
    if gigabytes_per_s is not None:
        why = (*rule.why, f"bandwidth {gigabytes_per_s:g}e9 bytes/s: as given with --bandwidth")
        rule = replace(rule, ns_per_byte=1 / gigabytes_per_s, why=why, given=True)
    if latency_ns is not None:
        why = (*rule.why, f"latency {latency_ns:g} ns a step: as given with --latency")
        rule = replace(rule, latency_ns=latency_ns, why=why, given=True)
    return rule


@dataclass(frozen=True, slots=True)
class Communication:
    """What becomes of communication in the larger run, by ``rule``. Of each node: ``size_bytes``, and what it takes
    once nobody is waited for, ``NOWHERE`` where it does not communicate (``took_ns``). Of each collective (matched over
    ranks): its ``first`` node, and its time as ``recorded_ns`` and ``now_ns``. ``members``: how many ranks
    communicators had and have.
    """

    rule: Rule
    size_bytes: I64
    took_ns: I64
    messages: Messages
    first: I64
    recorded_ns: I64
    now_ns: I64
    members: tuple[dict[int, int], dict[int, int]]


def communication(
    work: Workload,
    match: Matched,
    groups: Groups,
    made: Copies,
    asked: tuple[float | None, float | None],
) -> Communication:
    """Tell what becomes of the communication of ``work`` in the run of the copies ``made``. ``asked``: bandwidth in
    GB/s and latency in ns that hold instead of what is fitted."""
    kind, group, size = work.column("comm_type"), work.column("group"), work.column("comm_size")
    used = np.unique(group).tolist()
    recorded = {g: len(groups[g]) if g in groups and g != NO_GROUP else len(work.ranks) for g in used}
    now = {g: made.members(g, recorded[g]) for g in used}
    growing = [g for g in used if now[g] != recorded[g]]
    kinds = {g: frozenset(np.unique(kind[group == g]).tolist()) for g in used}
    found = transfers(work, groups)
    rule = fit(take(found, np.isin(found.group, growing)), *asked)
    size_bytes, member = size.copy(), np.flatnonzero(match.code == COLLECTIVE)
    for g in growing:
        for t in kinds[g]:
            node = member[(group[member] == g) & (kind[member] == t)]
            size_bytes[node] = grown_bytes(kinds, g, t, size[node], recorded[g], now[g])
    first = spread(len(match.expected), match.partner[member], member, 0)
    own = work.cost_ns - work.fixed_ns
    recorded_ns = shortest_ns(match, own)
    ranks = [np.array([count[g] for g in match.group.tolist()], np.float64) for count in (recorded, now)]
    sizes = [column[first].astype(np.float64) for column in (size, size_bytes)]
    now_ns = rule.grown(recorded_ns, kind[first], (ranks[0], ranks[1]), (sizes[0], sizes[1]))
    took_ns = spread(len(work), member, now_ns[match.partner[member]])
    pairs = messages(work, match)
    took_ns[pairs.send], took_ns[pairs.receive] = pairs.costs_ns(own)
    return Communication(rule, size_bytes, took_ns, pairs, first, recorded_ns, now_ns, (recorded, now))
