"""Which ranks have one clock: those whose clocks differ by no more, over the whole recording, than the estimate can tell.

That is 2 us, the recordings' resolution or three standard errors, whichever is most; of ranks on one host 10 us or the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, Bool
from graphlink.ranks.clocks.fit import Fit
from graphlink.ranks.clocks.pairs import Pairs, Tree, summed
from graphlink.ranks.clocks.ties import F64, middles
from graphlink.ranks.records import RankComms

_SAME_NS: Final = 2_000
_SAME_HOST_NS: Final = 10_000  # ends of kernels of one machine differ by up to 7 us, the same way each time (megatron-tp2-v100: 2.7 us)
_ERRORS: Final = 3.0  # standard errors


@dataclass(frozen=True, slots=True)
class Shared:
    """``like[r]``: position of the rank whose clock the r-th has, its own for the first. ``warnings``: hosts with several clocks."""

    like: I64
    warnings: tuple[str, ...]


def shared(ranks: Sequence[RankComms], fit: Fit, pairs: Pairs, grown: Tree, drifting: Bool) -> Shared:
    """Each rank joins the first that it agrees with, among those of its host first. Errors are those along the tree: never too small.

    O(ranks x clocks), and the length of the tree's path for each pair that may agree.
    """
    at = _Moments(ranks, fit, pairs, grown, drifting)
    firsts: dict[int, list[int]] = {}
    like = np.arange(len(ranks))
    for rank, root in enumerate(grown.root.tolist()):
        known = firsts.setdefault(root, [])
        near = at.may_agree(rank, np.array(known, np.int64))
        host = ranks[rank].host
        near.sort(key=lambda k: not (host and ranks[k].host == host))
        found = next((k for k in near if at.agree(rank, k)), None)
        if found is None:
            known.append(rank)
        else:
            like[rank] = found
    return Shared(like, tuple(_split_hosts(ranks, like, grown.root, at)))


class _Moments:
    """Offsets of all clocks, and their errors, at the first and the last moment of each component's recordings."""

    def __init__(self, ranks: Sequence[RankComms], fit: Fit, pairs: Pairs, grown: Tree, drifting: Bool) -> None:
        self.tree = grown
        clock, middle, root = fit.clock, middles(ranks), grown.root
        half = np.array([(r.ended_ns - r.began_ns) / 2 for r in ranks])
        first, last = np.full(len(ranks), np.inf), np.full(len(ranks), -np.inf)
        np.minimum.at(first, root, clock.shift_ns - half * (1 + clock.drift))
        np.maximum.at(last, root, clock.shift_ns + half * (1 + clock.drift))
        moment = np.stack([first[root], last[root]])
        self.offset_ns = (middle[root] - middle) + (clock.shift_ns + clock.drift * moment) / (1 + clock.drift)
        tilted = drifting[pairs.hub] | drifting[pairs.other]
        self.of_pair = np.stack([fit.level_variance(tilted, m[pairs.other] - clock.shift_ns[pairs.other]) for m in moment])
        self.variance = np.stack([summed(grown, v) for v in self.of_pair])
        self.depth = summed(grown, np.ones(len(pairs.count)))
        names = {"": 0}
        self.host = np.array([names.setdefault(r.host, len(names)) for r in ranks])
        self.least = np.array([max(_SAME_NS, r.resolution_ns) for r in ranks], np.float64)

    def off_ns(self, rank: int, others: I64) -> F64:
        """By how much the clocks of ``others`` differ from that of ``rank``: (moment, other)."""
        out: F64 = np.abs(self.offset_ns[:, others] - self.offset_ns[:, rank, None])
        return out

    def may_agree(self, rank: int, others: I64) -> list[int]:
        error = _ERRORS * np.sqrt(self.variance[:, others] + self.variance[:, rank, None])
        fits = self.off_ns(rank, others) <= np.maximum(error, self._least(rank, others))
        found: list[int] = others[fits.all(axis=0)].tolist()
        return found

    def agree(self, rank: int, other: int) -> bool:
        error = _ERRORS * np.sqrt(self.of_pair[:, self._path(rank, other)].sum(axis=1))
        one = np.array([other])
        return bool((self.off_ns(rank, one)[:, 0] <= np.maximum(error, self._least(rank, one))).all())

    def _least(self, rank: int, others: I64) -> F64:
        """What does not tell two clocks apart, whatever the error."""
        one_host = (self.host[others] == self.host[rank]) & (self.host[rank] != 0)
        return np.where(one_host, _SAME_HOST_NS, np.maximum(self.least[others], self.least[rank]))

    def _path(self, a: int, b: int) -> list[int]:
        """Pairs between two ranks."""
        out = []
        while a != b:
            if self.depth[a] < self.depth[b]:
                a, b = b, a
            out.append(int(self.tree.pair[a]))
            a = int(self.tree.parent[a])
        return out


def _split_hosts(ranks: Sequence[RankComms], like: I64, root: I64, at: _Moments) -> list[str]:
    """Hosts whose ranks do not agree on one clock."""
    out = []
    groups: dict[tuple[str, int], list[int]] = {}
    for position, rank in enumerate(ranks):
        if rank.host:
            groups.setdefault((rank.host, int(root[position])), []).append(position)
    for (host, _), mine in groups.items():
        own = np.unique(like[mine])
        if len(own) < 2:
            continue
        apart = float(max(at.off_ns(int(k), own).max() for k in own.tolist()))
        sets = "; ".join(named([ranks[p].rank for p in mine if like[p] == k]) for k in own[:3].tolist()) + ("; ..." if len(own) > 3 else "")
        out.append(
            f"the ranks of host {host} have {len(own)} clocks, up to {apart / 1e3:.1f} us apart, though one machine has one: "
            f"they are fitted apart (ranks {sets})"
        )
    return out


def named(numbers: Sequence[int], most: int = 8) -> str:
    """``0, 1, 2, ...``: rank numbers, shortened."""
    return ", ".join(map(str, numbers[:most])) + (f", ... ({len(numbers)} in all)" if len(numbers) > most else "")
