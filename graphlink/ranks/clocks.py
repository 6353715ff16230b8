"""Estimate one clock for all ranks: offset and drift of each, from what they did together.

Kernels of a match end together, so ends tie clocks (``ties``); all are fitted at once (``fit``). A drift is fitted
only where its standard error is below 1 ppm, against a rank that it is tied to, or below half the drift. Ranks that
then agree share one clock (``shared``), for which they are fitted together. Host rows bound clocks only by what cannot
be (``repair``). The run's clock is that of the lowest rank of the largest set of ranks that something ties; what
nothing ties to it is not ``known``, and its lowest rank keeps its clock as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.model import F64, I64, NOWHERE, Bool
from graphlink.ranks.clock_bounds import OPEN, Room, Shifts, rooms, shifts
from graphlink.ranks.clock_fit import Fit, fitted, named, shared
from graphlink.ranks.clock_ties import (
    FEW,
    Affine,
    Ties,
    Tree,
    along,
    components,
    lines,
    middles,
    pairs_of,
    summed,
    ties,
    tree,
)
from graphlink.ranks.columns import added, blocks, column
from graphlink.ranks.records import AlignedClock, AlignedClocks, Matches, RankComms
from graphlink.tables import codes, marked, medians, spread, take, tuples

_SURE_DRIFT: Final = 1e-6
_ERRORS: Final = 2.0  # standard errors, never too small, that make a drift significant
_UNSEEN_NS: Final = 7_000  # by how much ends of a match differ on real machines (dlrm8-v100), where too few tell


def clocks(ranks: Sequence[RankComms], matches: Matches) -> AlignedClocks:
    """Estimate how the clock of each rank maps onto the run's. ``ranks`` ascending.

    n log n in matches; the fit is linear in ties (at most 512 matches of a group or a pair of ranks), each of some
    twenty times.
    """
    if not ranks:
        return AlignedClocks((), 0, ())
    resolution = max(r.resolution_ns for r in ranks)
    base, root = _found(ranks, ties(ranks, matches), resolution)
    # for each rank the lowest position that device work or a common host ties it to: what host rows cannot move apart
    first: dict[str, int] = {}
    host = np.array([first.setdefault(r.host, k) if r.host else k for k, r in enumerate(ranks)], np.int64)
    here = np.arange(len(ranks))
    body = components(len(ranks), np.concatenate([here, here]), np.concatenate([root, host]))
    start_ns, end_ns = (on_run(ranks, base.clocks, name) for name in ("start_ns", "end_ns"))
    room = rooms(ranks, matches, start_ns, end_ns)
    tolerance = max(resolution, base.residual_ns)
    # shifts repair what cannot be between bodies that only host rows tie
    none = np.zeros(len(ranks), np.int64)
    wrong = room.on_host & (room.ns < -tolerance) & (body[room.begun] != body[room.ended])
    moved = shifts(ranks, matches, start_ns, end_ns, body, room) if wrong.any() else Shifts(none, none, 0)
    tied = _tied(ranks, matches, root)
    labels, sizes = np.unique(tied, return_counts=True)
    known = tied == labels[sizes.argmax()]  # of equal ones the first: it has the lowest rank
    run = tuple(
        replace(clock, offset_ns=clock.offset_ns + shift, residual_ns=max(clock.residual_ns, uncertainty), known=ok)
        for clock, shift, uncertainty, ok in zip(
            base.clocks, moved.shift_ns.tolist(), moved.uncertainty_ns.tolist(), known.tolist(), strict=True
        )
    )
    warnings = (
        *(
            _unknown(ranks, tied, known) if any(len(r.start_ns) for r in ranks) else ()
        ),  # without communication nothing is compared
        *base.warnings,
        *_shifted(ranks, body, moved),
        *_impossible(ranks, room, moved.shift_ns, max(tolerance, moved.slack_ns)),
    )
    return AlignedClocks(run, max(tolerance, int(moved.uncertainty_ns.max()), moved.slack_ns), warnings)


def on_run(ranks: Sequence[RankComms], run: Sequence[AlignedClock], name: str) -> I64:
    """Map a column of times of all ranks, one rank after the other, onto the run's clock."""
    return np.concatenate([clock.of(getattr(rank, name)) for rank, clock in zip(ranks, run, strict=True)])


def _found(ranks: Sequence[RankComms], found: Ties, resolution_ns: int) -> tuple[AlignedClocks, I64]:
    """Return clocks as ties tell, and of each rank the position of the lowest that device work ties it to."""
    count, middle = len(ranks), middles(ranks)
    pairs = pairs_of(found, count)
    line, deviation, near = lines(found, pairs)
    grown = tree(pairs, near, count)
    pinned = grown.pair == NOWHERE
    start, free = along(grown, pairs, line), np.stack([~pinned, ~pinned])
    fit = fitted(found, pairs, start, free, deviation, resolution_ns)
    drifting = ~pinned & _drifts(fit, grown)
    if (drifting != ~pinned).any():
        fit = fitted(found, pairs, fit.clock, np.stack([~pinned, drifting]), deviation, resolution_ns)
    like, warnings = shared(ranks, fit, pairs, grown, drifting)
    clock = fit.clock
    if (like != np.arange(count)).any():
        any_drifting = marked(count, like[drifting]) & ~pinned
        clock = _together(found, middle, like, fit, np.stack([~pinned, any_drifting]), resolution_ns)
    # what ties differ by on the clocks of all ranks
    own = _onto(found, middle, like)
    ends = [
        ns + clock.shift_ns[rank] + clock.drift[rank] * ns
        for rank, ns in ((own.hub, own.hub_ns), (own.other, own.other_ns))
    ]
    all_clocks, residual = Affine(clock.shift_ns[like], clock.drift[like]), ends[1] - ends[0]
    counted = fit.weight > 0
    off = np.abs(residual[counted])
    tolerance = round(float(np.percentile(off, 95))) if len(off) else 0
    if (pairs.count[grown.pair[~pinned]] < FEW).any():
        tolerance = max(tolerance, _UNSEEN_NS)
    of_rank = _residuals(found, residual, fit.weight, count).tolist()
    out = []
    for k, (first, root) in enumerate(tuples(like, grown.root)):
        offset = int(middle[root] - middle[first]) + round(float(all_clocks.shift_ns[first])) if first != root else 0
        drift = float(all_clocks.drift[first])
        out.append(
            AlignedClock(offset, drift, int(middle[first]), ranks[k].rank, of_rank[k], ranks[first].rank, known=True)
        )
    return AlignedClocks(tuple(out), tolerance, tuple(warnings)), grown.root


def _drifts(fit: Fit, grown: Tree) -> Bool:
    """Return where the data tell a drift: against the rank next to it in the tree, or by its size against the root."""
    variance = fit.drift_variance()
    near = np.full(len(grown.pair), np.inf)
    hung = grown.pair != NOWHERE
    near[hung] = np.sqrt(variance[grown.pair[hung]])
    return (near < _SURE_DRIFT) | (np.abs(fit.clock.drift) > _ERRORS * np.sqrt(summed(grown, variance)))


def _together(found: Ties, middle: I64, like: I64, fit: Fit, free: Bool, resolution_ns: int) -> Affine:
    """Return the fit of ``like`` only: ties of all that share a clock are its ties."""
    mine = take(_onto(found, middle, like), like[found.hub] != like[found.other])
    pairs = pairs_of(mine, len(like))
    deviation = medians(np.abs(fit.residual_ns[like[found.hub] != like[found.other]]), pairs.of, len(pairs.count))
    return fitted(mine, pairs, fit.clock, free, deviation, resolution_ns).clock


def _onto(found: Ties, middle: I64, like: I64) -> Ties:
    """Return ties with times counted as those of the ranks whose clocks are shared."""
    step = (middle - middle[like]).astype(float)
    return Ties(
        found.match,
        like[found.hub],
        like[found.other],
        found.hub_ns + step[found.hub],
        found.other_ns + step[found.other],
    )


def _residuals(found: Ties, residual: F64, weight: F64, count: int) -> I64:
    """Return the median difference of the ends of each rank from the common end: the mean of the match, without what
    the fit took out.
    """
    kept = weight > 0
    hub, other, off = found.hub[kept], found.other[kept], residual[kept]
    of = codes(found.match[kept])
    size = np.bincount(of)
    common = added(of, off, len(size)) / (size + 1)
    rank = np.concatenate([other, spread(len(size), of, hub)])
    middle = medians(np.abs(np.concatenate([off - common[of], common])), rank, count)
    return np.rint(np.nan_to_num(middle)).astype(np.int64)


def _tied(ranks: Sequence[RankComms], matches: Matches, root: I64) -> I64:
    """Find for each rank the lowest that device work or host rows tie it to."""
    on_host = column(ranks, "on_host")
    pairs = [np.stack([np.arange(len(ranks)), root])]
    for at in blocks(ranks, matches):
        host = at.spread(np.logical_or.reduceat(on_host[at.op], at.first))
        pairs.append(np.unique(np.stack([at.rank[at.spread(at.first)], at.rank])[:, host], axis=1).astype(np.int64))
    a, b = np.concatenate(pairs, axis=1)
    return components(len(ranks), a, b)


def _unknown(ranks: Sequence[RankComms], tied: I64, known: Bool) -> list[str]:
    if known.all():
        return []
    lost = [r.rank for r, ok in zip(ranks, known.tolist(), strict=True) if not ok]
    run = ranks[int(tied[known][0])].rank
    return [
        f"nothing connects the clocks of ranks {named(lost)} with that of rank {run}: their times cannot be compared "
        "with those of the others"
    ]


def _shifted(ranks: Sequence[RankComms], body: I64, moved: Shifts) -> list[str]:
    some = [k for k in np.flatnonzero(moved.shift_ns).tolist() if body[k] == k]
    if not some and not moved.slack_ns:
        return []
    told = [
        f"rank {ranks[k].rank} {moved.shift_ns[k] / 1e6:+.3f} ms (within {moved.uncertainty_ns[k] / 1e6:.3f} ms)"
        for k in some[:4]
    ]
    text = "clocks are shifted so that no receive or collective on the host ends before it can: " + ", ".join(told)
    text += f", ... ({len(some)} in all)" if len(some) > 4 else ""
    return [
        text + (f"; no shift corrects all of it, {moved.slack_ns / 1e6:.3f} ms are missing" if moved.slack_ns else "")
    ]


def _impossible(ranks: Sequence[RankComms], room: Room, shift_ns: I64, tolerance_ns: int) -> list[str]:
    """Warn of matches that are impossible: shifted rooms are exact for the two ranks that bounded them, and those are
    what is counted.
    """
    left = np.where(room.ns < OPEN // 2, room.ns + shift_ns[room.ended] - shift_ns[room.begun], 0)
    wrong = left < -tolerance_ns
    left[~wrong] = 0
    if not wrong.any():
        return []
    worst = int(left.argmin())
    begun, ended = ranks[int(room.begun[worst])].rank, ranks[int(room.ended[worst])].rank
    return [
        f"{np.count_nonzero(wrong)} collectives end on one rank before another began, by up to "
        f"{-int(left[worst]) / 1e3:.1f} us "
        f"(ranks {ended} and {begun}): they are matched wrongly, or the clocks are off by as much"
    ]
