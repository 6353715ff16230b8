"""Whether recordings are of one run: they have the same number of ranks and job, began within 10 minutes, and overlap in time.

Several hosts are no reason against it, nor are starts some seconds apart: ranks that communicate overlap once their clocks are aligned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.errors import InputError
from graphlink.ranks.clocks import onto_run
from graphlink.ranks.records import Clocks, RankComms

APART_NS: Final = 600 * 10**9


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank's recording, named ``path``, says of its run. None and "" where it does not."""

    path: str
    world_size: int | None
    job: str


def of_other_runs(told: Sequence[Told], ranks: Sequence[RankComms]) -> InputError | None:
    """What to raise where recordings differ in number of ranks or job, or began more than 10 minutes apart on their own clocks."""
    for what, labels in (
        ("the number of ranks", [f"{one.world_size:,}" if one.world_size else "" for one in told]),
        ("the job", [one.job for one in told]),
    ):
        sets: dict[str, list[Told]] = defaultdict(list)
        for one, label in zip(told, labels, strict=True):
            if label:
                sets[label].append(one)
        if len(sets) > 1:
            (label, ones), (other, others) = sorted(sets.items(), key=lambda item: -len(item[1]))[:2]
            return _error(ones[0], others[0], f"they differ by {what}, {label} and {other}")
    there = [k for k, rank in enumerate(ranks) if rank.ended_ns > rank.began_ns]
    first, last = (end(there, key=lambda k: ranks[k].began_ns, default=0) for end in (min, max))
    apart_ns = ranks[last].began_ns - ranks[first].began_ns
    if apart_ns > APART_NS:
        return _error(told[first], told[last], f"it began {apart_ns / 60e9:,.1f} min later")
    return None


def of_other_times(told: Sequence[Told], ranks: Sequence[RankComms], clocks: Clocks) -> InputError | None:
    """What to raise where some recordings ended before all others began, on the run's clock (their own where nothing ties them to it)."""
    clock_of = {clock.rank: clock for clock in clocks.clocks}
    times = np.array([(rank.began_ns, rank.ended_ns) for rank in ranks], np.int64)
    for at, rank in zip(times, ranks, strict=True):
        if rank.rank in clock_of:
            at[:] = onto_run(clock_of[rank.rank], at)
    order = [k for k in np.argsort(times[:, 0], kind="stable").tolist() if times[k, 1] > times[k, 0]]
    if not order:
        return None
    last = order[0]
    for k in order[1:]:
        if times[k, 0] > times[last, 1]:
            between_ns = int(times[k, 0] - times[last, 1])
            return _error(told[last], told[k], f"it began {between_ns / 1e6:,.3f} ms after that one, and all that began before, had ended")
        last = k if times[k, 1] > times[last, 1] else last
    return None


def _error(one: Told, other: Told, why: str) -> InputError:
    todo = "give the recordings of one run, or insist with --same-run"
    return InputError(f"is of another run than {one.path}: {why}", path=other.path, todo=todo)
