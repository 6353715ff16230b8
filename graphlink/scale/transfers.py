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
from typing import Final

import numpy as np

from graphlink.linking.commtypes import CollectiveType, wire_share
from graphlink.model import F64, I64
from graphlink.replay.network import Transfers
from graphlink.tables import take

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
        out: F64 = steps * self.latency_ns + wire * self.ns_per_byte
        return out

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
    kinds: Mapping[int, frozenset[int]], group: int, kind: int, size_bytes: int, before: int, after: int
) -> int:
    """Return the size of a collective in a larger communicator. ``kinds``: the types of collectives of each
    communicator.

    Sums stay: gradients are as many. What is gathered is a shard of parameters where their gradients are scattered in
    the same communicator, and of ``1 / ranks``; else it is each rank's own, and stays. An exchange of tokens keeps a
    rank's bytes.
    """
    shards = kind == CollectiveType.ALL_GATHER and CollectiveType.REDUCE_SCATTER in kinds[group]
    return -(-size_bytes * before // after) if shards else size_bytes


def _terms(steps: str, wire: str, kind: I64, members: F64, size_bytes: F64) -> tuple[F64, F64]:
    twice = np.where((kind == CollectiveType.ALL_REDUCE) & (steps in _NAMES), 2.0, 1.0)
    share = wire_share(kind, members) if wire == _WIRES[0] else np.ones(len(kind))
    return twice * _steps(steps, members), size_bytes * share


def _steps(steps: str, members: F64) -> F64:
    if steps == TREE:
        out: F64 = np.ceil(np.log2(np.maximum(members, 2)))
        return out
    return np.maximum(members - 1, 1.0) if steps == _RING else np.ones(len(members))


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
    return (f"{how}: of the ways to grow the one that fits best", told)


def _given(rule: Rule, gigabytes_per_s: float | None, latency_ns: float | None) -> Rule:
    if gigabytes_per_s is not None:
        told = f"bandwidth {gigabytes_per_s:g}e9 bytes/s: as given with --bandwidth"
        rule = replace(rule, ns_per_byte=1 / gigabytes_per_s, why=(*rule.why, told), given=True)
    if latency_ns is not None:
        told = f"latency {latency_ns:g} ns a step: as given with --latency"
        rule = replace(rule, latency_ns=latency_ns, why=(*rule.why, told), given=True)
    return rule


def of_growing(found: Transfers, growing: set[int]) -> Transfers:
    """Return the collectives of communicators that grow."""
    return take(found, np.isin(found.group, list(growing)))
