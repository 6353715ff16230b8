"""The time of a step by what the GPU did, before and after: parts whose changes add up to that of the step exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from graphlink.causes import CAUSES
from graphlink.diff.facts import Basis, RankFacts, RankPair, RunFacts
from graphlink.diff.records import Amount, Split
from graphlink.gpu.records import DeviceTime

BUSY: Final = ("compute", "exposed communication", "exposed copies")
IDLE: Final = tuple(f"idle: {cause}" for cause in CAUSES)
HOST: Final = "no device ops recorded"
UNEVEN: Final = "the slowest rank less the mean"
CLOCK: Final = "clock of the device less the host's"
AROUND: Final = "before the first and behind the last device op"
Parts = dict[str, Fraction]


def run_split(before: RunFacts, after: RunFacts, pairs: Sequence[RankPair], basis: Basis) -> Split:
    """Return the split of the run: the mean over ranks of each one's busiest device, and what the slowest rank takes
    longer than that.
    """
    sides = []
    for run, ranks, count in (
        (before, [pair.before for pair in pairs], basis.before),
        (after, [pair.after for pair in pairs], basis.after),
    ):
        total = _mean([Fraction(int(value)) for value in basis.steps(run).tolist()])
        parts = _mean_parts([_rank(rank, basis, count, _busiest(rank)) for rank in ranks])
        rest = total - sum(parts.values())
        sides.append(parts | ({UNEVEN: rest} if rest else {}))
    return _split(None, None, *sides)


def rank_splits(pairs: Sequence[RankPair], basis: Basis) -> Iterator[Split]:
    """Yield the split of each device of each rank; the only devices of a rank are compared, whatever their numbers."""
    for pair in pairs:
        one, other = ([time.device for time in rank.entry.gpu] for rank in (pair.before, pair.after))
        if len(one) == len(other) == 1:
            both: list[tuple[int | None, int | None]] = [(0, 0)]
        else:
            both = [(one.index(device), other.index(device)) for device in one if device in other] or [(None, None)]
        for at, at_after in both:
            device = None if at is None else one[at]
            sides = _rank(pair.before, basis, basis.before, at), _rank(pair.after, basis, basis.after, at_after)
            yield _split(pair.rank, device, *sides)


def _busiest(rank: RankFacts) -> int | None:
    busy = [one.to_ns - one.from_ns - one.idle_ns for one in rank.entry.gpu]
    return busy.index(max(busy)) if busy else None


def _rank(rank: RankFacts, basis: Basis, count: int, place: int | None) -> Parts:
    """Return the parts of a step of a device of a rank, a mean over the steps that count; without device ops all is the
    host's.
    """
    if basis.per == "run":
        took, times = [rank.entry.replay.measured_ns], [] if place is None else [rank.entry.gpu[place]]
    else:
        chosen = rank.entry.steps[1 : count + 1] if basis.per == "step" else rank.entry.steps[:1]
        took = [step.end_ns - step.start_ns for step in chosen]
        times = [] if place is None else [step.gpu[place] for step in chosen]
    complete = _mean([Fraction(ns) for ns in took])
    if not times:
        return {HOST: complete}
    parts = _mean_parts([_of_device(one) for one in times])
    rest = complete - sum(parts.values())
    return parts | ({CLOCK if basis.per != "run" else AROUND: rest} if rest else {})


def _of_device(one: DeviceTime) -> Parts:
    busy = (one.compute_ns, one.exposed_comm_ns, one.exposed_copy_ns)
    named = dict(zip(BUSY, busy, strict=True)) | {f"idle: {cause}": ns for cause, ns in one.idle_by_cause_ns.items()}
    return {name: Fraction(ns) for name, ns in named.items()}


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / max(len(values), 1)


def _mean_parts(parts: Sequence[Parts]) -> Parts:
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: _mean([one.get(name, Fraction(0)) for one in parts]) for name in names}


def _split(rank: int | None, device: int | None, before: Parts, after: Parts) -> Split:
    """Return the parts rounded so that they, and their changes, add up to those of the step."""
    names = [name for name in (*BUSY, *IDLE, HOST, CLOCK, AROUND, UNEVEN) if before.get(name) or after.get(name)]
    columns = [_rounded([side.get(name, Fraction(0)) for name in names]) for side in (before, after)]
    amounts = [
        Amount(what=name, before_ns=one, after_ns=other, change_ns=other - one)
        for name, one, other in zip(names, *columns, strict=True)
    ]
    sums = [sum(column) for column in columns]
    return Split(
        rank=rank, device=device, before_ns=sums[0], after_ns=sums[1], change_ns=sums[1] - sums[0], parts=amounts
    )


def _rounded(values: Sequence[Fraction]) -> list[int]:
    """Return numbers rounded by their sums from the first on, so that what is rounded off goes into the next one."""
    out, exact, given = [], Fraction(0), 0
    for value in values:
        exact += value
        out.append(round(exact) - given)
        given += out[-1]
    return out
