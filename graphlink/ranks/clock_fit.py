"""Shift and drift of all clocks at once from their ties: least squares, reweighted so that wrong matches do not count.

Of a tie the residual is the difference of its two ends on the common clock. Sums over each pair of ranks make normal
equations with the shape of a graph's Laplacian, which conjugate gradients solve from where medians along a tree began;
no matrix is ever made. Huber's weights bring all ranks near, then Tukey's take what is still far off out altogether.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import F64, I64, Bool
from graphlink.ranks.clock_ties import FEW, Affine, Pairs, Ties, Tree, middles, summed
from graphlink.ranks.columns import added
from graphlink.ranks.records import RankComms
from graphlink.records import first_few
from graphlink.student import TO_SIGMA
from graphlink.tables import grouped, medians, numbered_texts

_HUBER: Final = 1.345  # of sigma: 95 % efficient on normal errors, as is Tukey's
_TUKEY: Final = 4.685
_LEAST_SIGMA_NS: Final = 100.0
_PRIOR: Final = 8  # ties: as much as all pairs together count for the deviation of one
_PRIOR_DRIFT: Final = 3e-5  # sigma of what oscillators differ by, which holds a drift that ends hardly tell
_ENOUGH: Final = 1e-10  # squared error, in sigmas
_MOST_ROUNDS: Final = 3_000
_SAME_NS: Final = 2_000
_SAME_HOST_NS: Final = (
    10_000  # ends of kernels of one machine differ by up to 7 us, the same way each time (megatron-tp2-v100: 2.7 us)
)
_ERRORS: Final = 3.0  # standard errors


def fitted(ties: Ties, pairs: Pairs, start: Affine, free: Bool, deviation: F64, resolution_ns: int) -> Fit:
    """Fit all clocks, linear in ties for each of about ten rounds.

    ``free``: (2, ranks), the clocks whose shift is fitted, and of these the ones with a drift. ``deviation``: the
    median one of each pair's ends from a line of its own.
    """
    clock = Affine(start.shift_ns.copy(), np.where(free[1], start.drift, 0.0))
    span = max(float(np.abs(np.concatenate([ties.hub_ns, ties.other_ns])).max(initial=0)), 1.0)
    least = max(_LEAST_SIGMA_NS, 0.3 * resolution_ns)
    sigma = _sigma(deviation, pairs, least)[pairs.of]
    for step in range(9):
        if step == 3:
            sigma = _sigma(_deviation(ties, pairs, _residual(ties, clock), sigma), pairs, least)[pairs.of]
        clock = Fit(ties, pairs, clock, sigma, span, tukey=step >= 5).better(free)
    return Fit(ties, pairs, clock, sigma, span, tukey=True)


def _residual(ties: Ties, clock: Affine) -> F64:
    return (
        ties.other_ns
        - ties.hub_ns
        + (clock.shift_ns[ties.other] + clock.drift[ties.other] * ties.other_ns)
        - (clock.shift_ns[ties.hub] + clock.drift[ties.hub] * ties.hub_ns)
    )


def _sigma(deviation: F64, pairs: Pairs, least: float) -> F64:
    """Estimate sigma: that of a pair with few ties is that of all as well."""
    own = np.square(TO_SIGMA * deviation)
    usual = float(np.median(np.repeat(own, pairs.count))) if len(own) else 0.0
    return np.maximum(np.sqrt((pairs.count * own + _PRIOR * usual) / (pairs.count + _PRIOR)), least)


def _deviation(ties: Ties, pairs: Pairs, residual: F64, sigma: F64) -> F64:
    """Return the median deviation of the residuals of a pair from their own line, so that a pair which contradicts
    others gets no wider for it."""
    weight, number = _huber(residual, sigma), len(pairs.count)

    def mean(value: F64) -> F64:
        return added(pairs.of, weight * value, number) / total

    total = added(pairs.of, weight, number)
    z = ties.other_ns - mean(ties.other_ns)[pairs.of]
    off = residual - mean(residual)[pairs.of]
    spread = mean(z * z)
    slope = np.where((pairs.count >= FEW) & (spread > 0), mean(z * off) / np.where(spread > 0, spread, 1), 0)
    return medians(np.abs(off - slope[pairs.of] * z), pairs.of, number)


def _huber(residual: F64, sigma: F64) -> F64:
    return np.minimum(1, _HUBER * sigma / np.maximum(np.abs(residual), 1e-9))


class Fit:
    """Clocks, what ties differ by on them (``residual_ns``), and sums over the ties of each pair: all that the normal
    equations need.

    ``weight`` of each tie: 0 (taken out) to 1. ``w``: 1 / variance; ``i`` and ``h`` multiply it by the time of
    ``other`` and ``hub`` over ``span_ns``, ``r`` by the residual.
    """

    def __init__(self, ties: Ties, pairs: Pairs, clock: Affine, sigma: F64, span_ns: float, *, tukey: bool) -> None:
        self.pairs, self.clock, self.span_ns = pairs, clock, span_ns
        residual = self.residual_ns = _residual(ties, clock)
        tame = (
            np.square(np.maximum(0, 1 - np.square(residual / (_TUKEY * sigma)))) if tukey else _huber(residual, sigma)
        )
        self.weight = tame
        w = tame / np.square(sigma)
        zi, zh = ties.other_ns / span_ns, ties.hub_ns / span_ns
        wi, wh, wr = w * zi, w * zh, w * residual
        sums = (
            added(pairs.of, v, len(pairs.count)) for v in (w, wi, wh, wi * zi, wi * zh, wh * zh, wr, wr * zi, wr * zh)
        )
        self.w, self.wi, self.wh, self.wii, self.wih, self.whh, self.wr, self.wri, self.wrh = sums

    def gathered(self, one: F64, by_other: F64, by_hub: F64, count: int) -> F64:
        """Sum the terms of each pair for its two ranks: (shift, drift * span)."""
        at = np.concatenate([self.pairs.other, self.pairs.hub])
        return np.stack([added(at, w, count) for w in (np.append(one, -one), np.append(by_other, -by_hub))])

    def times(self, x: F64) -> F64:
        """Multiply the normal matrix by ``x``."""
        (ai, di), (ah, dh) = x[:, self.pairs.other], x[:, self.pairs.hub]
        a = ai - ah
        return self.gathered(
            a * self.w + di * self.wi - dh * self.wh,
            a * self.wi + di * self.wii - dh * self.wih,
            a * self.wh + di * self.wih - dh * self.whh,
            x.shape[1],
        )

    def diagonal(self, count: int) -> F64:
        both = np.concatenate([self.pairs.other, self.pairs.hub])
        return np.stack(
            [
                added(both, np.append(self.w, self.w), count),
                added(both, np.append(self.wii, self.whh), count),
            ]
        )

    def level_variance(self, drifting: Bool, at: F64) -> F64:
        """Return the variance of the difference of each pair's clocks, ns^2, when ``other_ns`` is ``at``; ``drifting``:
        a drift was fitted to it."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = self.wi / self.w
            slope = np.where(drifting, (at / self.span_ns - z) ** 2 / (self.wii - self.wi * z), 0.0)
            return np.nan_to_num(1 / self.w + np.maximum(slope, 0), nan=np.inf, posinf=np.inf)

    def drift_variance(self) -> F64:
        """Return the variance of the difference of each pair's drifts, infinite where too few ends tell."""
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = self.wii - self.wi**2 / self.w
            counted = added(self.pairs.of, self.weight, len(self.pairs.count))
            return np.where((counted >= FEW - 0.5) & (spread > 0), 1 / spread / self.span_ns**2, np.inf)

    def better(self, free: Bool) -> Affine:
        """Return the clocks after one step of reweighted least squares. A drift is bound to what oscillators do, a
        shift hardly (1 s).
        """
        ridge = np.array([[1e-18], [1 / (_PRIOR_DRIFT * self.span_ns) ** 2]])
        x = np.stack([np.zeros_like(self.clock.shift_ns), self.clock.drift * self.span_ns])
        wrong = -self.gathered(self.wr, self.wri, self.wrh, x.shape[1]) - ridge * x
        step = solved(self, wrong * free, free.astype(float), ridge)
        return Affine(self.clock.shift_ns + step[0], self.clock.drift + step[1] / self.span_ns)


def solved(sums: Fit, right: F64, free: F64, ridge: F64) -> F64:
    """Solve by conjugate gradients for the unknowns that are ``free``, preconditioned by the diagonal."""
    scale = free / (sums.diagonal(right.shape[1]) + ridge)
    x, rest = np.zeros_like(right), right
    ahead = scale * rest
    direction, energy = ahead, float((rest * ahead).sum())
    for _ in range(_MOST_ROUNDS):
        if energy < _ENOUGH:
            break
        image = free * (sums.times(direction) + ridge * direction)
        stride = energy / float((direction * image).sum())
        x = x + stride * direction
        rest = rest - stride * image
        ahead = scale * rest
        before, energy = energy, float((rest * ahead).sum())
        direction = ahead + energy / before * direction
    return x


def shared(ranks: Sequence[RankComms], fit: Fit, pairs: Pairs, grown: Tree, drifting: Bool) -> tuple[I64, list[str]]:
    """Return for each rank the position of the one whose clock it has, its own for the first, and warnings of hosts
    with several clocks.

    Each rank joins the first that it agrees with, among those of its host first. Errors are those along the tree: never
    too small.

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
    return like, _split_hosts(ranks, like, grown.root, at)


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
        self.of_pair = np.stack(
            [fit.level_variance(tilted, m[pairs.other] - clock.shift_ns[pairs.other]) for m in moment]
        )
        self.variance = np.stack([summed(grown, v) for v in self.of_pair])
        self.depth = summed(grown, np.ones(len(pairs.count)))
        self.host = numbered_texts(["", *(r.host for r in ranks)])[0][1:]  # 0: not known
        self.least = np.array([max(_SAME_NS, r.resolution_ns) for r in ranks], np.float64)

    def off_ns(self, rank: int, others: I64) -> F64:
        """Return by how much the clocks of ``others`` differ from that of ``rank``: (moment, other)."""
        return np.asarray(np.abs(self.offset_ns[:, others] - self.offset_ns[:, rank, None]))

    def may_agree(self, rank: int, others: I64) -> list[int]:
        near = self._fits(rank, others, self.variance[:, others] + self.variance[:, rank, None])
        return list(others[near].tolist())

    def agree(self, rank: int, other: int) -> bool:
        return bool(
            self._fits(
                rank, np.array([other]), self.of_pair[:, self._path(rank, other)].sum(axis=1, keepdims=True)
            ).all()
        )

    def _fits(self, rank: int, others: I64, variance: F64) -> Bool:
        """Tell whether clocks are no farther apart than their errors at both moments, or than what does not tell two
        clocks apart anyway."""
        one_host = (self.host[others] == self.host[rank]) & (self.host[rank] != 0)
        least = np.where(one_host, _SAME_HOST_NS, np.maximum(self.least[others], self.least[rank]))
        return np.asarray(
            np.logical_and.reduce(self.off_ns(rank, others) <= np.maximum(_ERRORS * np.sqrt(variance), least))
        )

    def _path(self, a: int, b: int) -> list[int]:
        """Find the pairs on the path between two ranks."""
        out = []
        while a != b:
            if self.depth[a] < self.depth[b]:
                a, b = b, a
            out.append(int(self.tree.pair[a]))
            a = int(self.tree.parent[a])
        return out


def _split_hosts(ranks: Sequence[RankComms], like: I64, root: I64, at: _Moments) -> list[str]:
    """Find the hosts whose ranks do not agree on one clock."""
    out = []
    groups = grouped(((rank.host, int(root[k])), k) for k, rank in enumerate(ranks) if rank.host)
    for (host, _), positions in groups.items():
        own = np.unique(like[positions])
        if len(own) < 2:
            continue
        apart = float(max(at.off_ns(int(k), own).max() for k in own.tolist()))
        sets = "; ".join(named([ranks[p].rank for p in positions if like[p] == k]) for k in own[:3].tolist()) + (
            "; ..." if len(own) > 3 else ""
        )
        out.append(
            f"the ranks of host {host} have {len(own)} clocks, up to {apart / 1e3:.1f} us apart, though one machine "
            "has one: "
            f"each is fitted alone (ranks {sets})"
        )
    return out


def named(numbers: Sequence[int], most: int = 8) -> str:
    """Format rank numbers, shortened: ``0, 1, 2, ...``."""
    return first_few(numbers, most) + f" ({len(numbers)} in all)" * (len(numbers) > most)
