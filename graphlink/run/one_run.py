"""Check that recordings are of one run: they have the same number of ranks and job, began within 10 minutes, and
overlap in time.

Several hosts are no reason against it, nor are starts some seconds apart: ranks that communicate overlap once their
clocks are aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from graphlink.errors import InputError
from graphlink.ranks.records import AlignedClocks, RankComms
from graphlink.run.state import Manifest
from graphlink.tables import grouped
from graphlink.wings import RecordT

APART_NS: Final = 600 * 10**9
JOB: Final = "the job"


def of_other_runs(jobs: Sequence[Manifest], ranks: Sequence[RankComms]) -> InputError | None:
    """Return the error to raise where recordings differ in number of ranks or job, or began more than 10 minutes apart
    on their own clocks."""
    labels = (
        ("the number of ranks", [f"{one.recorded_world_size:,}" if one.recorded_world_size else None for one in jobs]),
        of_jobs([one.job for one in jobs]),
    )
    for how, ones, others in differences(jobs, labels):
        return _error(ones[0], others[0], how)
    there = [k for k, rank in enumerate(ranks) if rank.ended_ns > rank.began_ns]
    first, last = (end(there, key=lambda k: ranks[k].began_ns, default=0) for end in (min, max))
    apart_ns = ranks[last].began_ns - ranks[first].began_ns
    if apart_ns > APART_NS:
        return _error(jobs[first], jobs[last], f"it began {apart_ns / 60e9:,.1f} min later")
    return None


def of_jobs(jobs: Sequence[str]) -> tuple[str, list[str | None]]:
    """Return the label of the ``jobs`` of recordings, as ``read.comms.job_of`` has them: the keys that tell them, never
    what they hold.
    """
    keys = sorted({job.partition(" ")[2] for job in jobs if job})
    return f"{JOB} ({' and '.join(keys)})", [job.partition(" ")[0] or None for job in jobs]


def differences(
    recordings: Sequence[RecordT], labels: Iterable[tuple[str, Sequence[str | None]]]
) -> Iterator[tuple[str, list[RecordT], list[RecordT]]]:
    """Yield how recordings differ in what is the same in all of a run, in words, and those that have each of the two
    commonest labels.

    ``labels``: what may differ, in words, and what each recording has there, None or empty where that is not known.
    What a recording has is shown but for jobs.
    """
    for what, of_each in labels:
        sets = grouped((label, one) for one, label in zip(recordings, of_each, strict=True) if label)
        if len(sets) > 1:
            (label, ones), (other, others) = sorted(sets.items(), key=lambda item: -len(item[1]))[:2]
            shown = "" if what.startswith(JOB) else f", {label} and {other}"
            yield f"they differ by {what}{shown}", ones, others


def of_other_times(jobs: Sequence[Manifest], ranks: Sequence[RankComms], clocks: AlignedClocks) -> InputError | None:
    """Return the error to raise where some recordings ended before all others began, on the run's clock where something
    ties them to it.
    """
    clock_of = {clock.rank: clock for clock in clocks.clocks}
    times = np.array([(rank.began_ns, rank.ended_ns) for rank in ranks], np.int64)
    for at, rank in zip(times, ranks, strict=True):
        if rank.rank in clock_of:
            at[:] = clock_of[rank.rank].of(at)
    order = [k for k in np.argsort(times[:, 0], kind="stable").tolist() if times[k, 1] > times[k, 0]]
    if not order:
        return None
    last = order[0]
    for k in order[1:]:
        if times[k, 0] > times[last, 1]:
            between_ns = int(times[k, 0] - times[last, 1])
            return _error(
                jobs[last],
                jobs[k],
                f"it began {between_ns / 1e6:,.3f} ms after that one, and all that began before, had ended",
            )
        last = k if times[k, 1] > times[last, 1] else last
    return None


def _error(one: Manifest, other: Manifest, why: str) -> InputError:
    todo = "give the recordings of one run, or insist with --same-run"
    return InputError(
        f"belongs to another run than {one.recordings[0].name}: {why}", path=other.recordings[0].name, todo=todo
    )
