"""The band of a prediction: what a second run with the changes takes, in 90 of 100 cases (docs/replay.md, "How sure").

Three things keep a prediction from being exact: steps that differ from each other, time that nothing explains and that
may change with the rest, and communication whose latency may stay. The first is jitter, whose half width is known. The
others either are so or are not, each as likely, so the truth lies at either of two places, with jitter around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from graphlink.errors import UsageError
from graphlink.graph_model import Graph
from graphlink.model import F64, I32, I64, NOWHERE, Bool
from graphlink.records import ms, percent
from graphlink.replay.changes import Changes, TimeChange
from graphlink.replay.path import ReplayPath, critical_path
from graphlink.replay.played import Ended, Played
from graphlink.replay.records import Band, Span
from graphlink.replay.workload import OF_HOST, Work, Workload
from graphlink.student import quantile
from graphlink.tables import begins, codes, largest, least, spread, sums, turns

LEVEL: Final = 0.9
WEIGHT: Final = 4  # steps: what the spread of equal nodes counts beside that of the steps. Measured: docs/fidelity.md
ALIKE: Final = 1.5  # of nodes of one name: work of another size takes longer than that. Measured there too
# Of a run's time, what another run of the same program differs by (standard deviation). Measured: docs/fidelity.md
FLOOR: Final = {
    Work.HOST: 0.03, Work.GAP: 0.03, Work.KERNEL: 0.005, Work.COMM: 0.005, Work.COPY: 0.005, Work.DELAY: 0.005
}  # fmt: skip
FLOOROF_HOST_COMM: Final = 0.055
_OF_FLOOR: Final = 10  # degrees of freedom: it is of other machines
_LEAST_KNOWN: Final = 0.5  # of the path in nodes that repeat, below which their spread tells nothing
_PINNED: Final = (Work.GAP, Work.DELAY)
_MEASURED: Final = frozenset(
    {"scale", "launch_us", "remove_wait", "remove", "most_us", "add_us", "dataloader"}
)  # docs/fidelity.md, "Bands", as are the figures here
_SELDOM: Final = {
    "network": "of 200 second runs with another bandwidth only about half were in the band of 90 %",
    "even_out": "no band: one of 90 % held the steps of only 15 of 40 second runs in which ranks were evened out",
}
_TOO_WIDE: Final = "steps differ, or time is unexplained, by as much as the run would take"
BOUND: Final = "a bound, no prediction: a real change may leave some of it"
_NUMBERS: Final = {0: "no steps are marked", 1: "one step", 2: "two steps"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What ``summary.json`` records of a rank beside its graph: when its steps began, which share of its path is in
    calls that blocked for no reason that an edge names, what its steps take bare, of which nothing is recorded (0 where
    that is not known), and what they take on average in this run and in others of the same program."""

    steps_ns: I64
    blocked_share: float = 0.0
    bare_ns: int = 0
    runs_ns: tuple[int, ...] = ()

    @property
    def recorder_ns(self) -> int:
        """Return what recording costs its steps in all; 0 where that is not known."""
        return max(self.runs_ns[0] - self.bare_ns, 0) * len(self.steps_ns) if self.bare_ns and self.runs_ns else 0


def recorded(ranks: Iterable[Any], others: Mapping[str, Iterable[Any]] = MappingProxyType({})) -> dict[int, Recorded]:
    """Return what the entries of ranks in ``summary.json`` record beside the graphs; steps and standstill are of wings,
    and may be absent. ``others``: those of other runs, by their folder.

    Raises:
        UsageError: another run has no such rank, or no two steps of it, or is of the same recording, or there is
            nothing known of the run itself.
    """
    runs = [(folder, {rank.rank: rank for rank in entries}) for folder, entries in others.items()]
    todo = "name output folders of the same program on as many ranks, with two steps or more, recorded another time"
    ranks, out = [*ranks], {}
    if runs and not ranks:
        raise UsageError("--runs: the run itself has no summary.json with its steps", todo="link it anew")
    for rank in ranks:
        known = [getattr(rank, "steps", ())]
        for folder, run in runs:
            if rank.rank not in run or not _mean_ns(run[rank.rank]):
                raise UsageError(f"--runs {folder}: no mean step of rank {rank.rank} is known there", todo=todo)
            known.append(getattr(run[rank.rank], "steps", ()))
            if known[-1] and known[-1] in known[:-1]:
                raise UsageError(f"--runs {folder}: is of a recording that counts already", todo=todo)
        steps_ns = np.array([step.start_ns for step in getattr(rank, "steps", ())], np.int64)
        path, blocked = getattr(getattr(rank, "standstill", None), "path", None), 0.0
        if path is not None and path.ns > 0:
            blocked = path.pinned_ns / path.ns - (rank.replay.gap_share + rank.replay.delay_share)
        bare_ns = getattr(getattr(rank, "iterations", UNSET), "bare_ns", UNSET) or 0
        runs_ns = (_mean_ns(rank), *(_mean_ns(run[rank.rank]) for _, run in runs))
        out[rank.rank] = Recorded(steps_ns, min(max(blocked, 0.0), 1.0), bare_ns, runs_ns)
    return out


def _mean_ns(rank: Any) -> int:
    """Return what the steps of a rank after the first take on average, on the GPU where the host ran ahead of it; 0
    where that is not known."""
    told = getattr(rank, "iterations", UNSET)
    return getattr(told, "on_device_ns", UNSET) or getattr(told, "mean_ns", UNSET) or 0


def band(
    changes: Changes,
    work: Workload,
    changed: Workload,
    before_ns: int,
    after: Ended,
    path: ReplayPath | None,
    records: Mapping[int, Recorded],
) -> Band:
    """Return the band of ``after``, a replay of ``changed`` in which all nodes ran, with its critical ``path``; without
    it only that there is none, and why. O(n log n) in nodes.

    ``work`` is the run as recorded, replayed in ``before_ns``. The band is that of a second run of as many steps of the
    changed program, with its own jitter. So it is as wide as two runs may differ, not as a mean. There is none for
    ``changes`` of kinds whose bands were not measured, and none that reaches down to no time at all.
    """
    if path is None or not isinstance(after, Played):
        count, why = _count(changed, records), unmeasured(changes)
        return Band(level_pct=round(100 * LEVEL), steps=count, unexplained_ns=[], latency_ns=[], why=why)
    steps = _Steps(changed, after, records)
    pinned_ns = _unexplained_ns(work, changed, path, records)
    factors = [after.total_ns / before_ns if before_ns else 1.0, *_factors(work, changed)]
    unexplained_ns = [pinned_ns * (1 - min(1.0, *factors)), pinned_ns * (max(1.0, *factors) - 1)]
    latency_ns = _latency_ns(work, changed, path)
    jitter, why = _jitter(changed, after, path, steps)
    apart, of_runs = _between_runs(changed, path, steps, records)
    out = Band(
        level_pct=round(100 * LEVEL),
        steps=steps.count,
        unexplained_ns=[round(ns) for ns in unexplained_ns],
        latency_ns=[round(ns) for ns in latency_ns],
        why=why,
    )
    if jitter is None or (why := unmeasured(changes)):
        return replace(out, why=why)
    count, some = max(steps.count, 1), len(steps.took_ns)
    other_ns = [a + b for a, b in zip(unexplained_ns, latency_ns, strict=True)]

    def widths(ns: float, runs: float) -> tuple[float, float]:
        """Return by how much two runs of so many steps differ: on each side, and to one side alone."""
        own, between = jitter[0] * runs, (apart * ns) ** 2
        if not own + between:  # they take no time
            return 0.0, 0.0
        free = (own + between) ** 2 / max(own**2 / jitter[1] + between**2 / of_runs, 1e-9)
        deviation = sqrt(2 * (own + between))
        return quantile((1 + LEVEL) / 2, free) * deviation, quantile(LEVEL, free) * deviation

    def span(ns: float, runs: float, share: float) -> Span:
        """Return the ends of so many steps' worth of jitter and this share of what is else uncertain."""
        both_sides, one_side = widths(ns, runs)
        below, above = (max(both_sides, share * other + one_side) for other in other_ns)
        return Span(ns=round(ns), low_ns=max(round(ns - below), 0), high_ns=round(ns + above))

    whole = span(after.total_ns, count, 1)
    if not whole.low_ns:
        return replace(out, why=_TOO_WIDE)
    return replace(
        out,
        run=whole,
        step=span(float(steps.took_ns.mean()), 1 / some, 1 / count) if some > 1 else None,
        spread_ns=round(widths(after.total_ns, count)[0]),
        between_runs_pct=round(100 * apart, 3),
    )


def unmeasured(changes: Changes) -> str:
    """Return why no band can be right for ``changes``; "" where it can: second runs of each were compared."""
    kinds = [change.kind for change in changes.each() if change.kind not in _MEASURED]
    kinds += ["start delays" for change in changes.time if change.sort == "delay" and not kinds]
    kinds += ["workers that are recorded" for change in changes.dataloader if change.recorded and not kinds]
    if kinds and kinds[0] in _SELDOM:
        return _SELDOM[kinds[0]]
    if kinds:
        return f"not yet compared with a second recording: predictions of {kinds[0].replace('_', ' ')}"
    none = any(isinstance(change, TimeChange) and change.scale == 0 for change in changes.each())
    return BOUND if none else ""


def step_ns(work: Workload, played: Ended, records: Mapping[int, Recorded]) -> float | None:
    """Return what a step of a replay takes on average, without the first, which may hold what comes once; None where
    fewer than two are marked."""
    took_ns = _Steps(work, played, records).took_ns
    return float(took_ns.mean()) if len(took_ns) else None


def bare_steps_ns(
    still: tuple[Workload, Played],
    changed: tuple[Workload, ReplayPath],
    steps_ns: Sequence[float],
    records: Mapping[int, Recorded],
    unrecorded: Bool | None = None,
) -> list[float] | None:
    """Return what a step takes of which nothing is recorded, as capture kept it and with the changes; None where that
    is not known. ``steps_ns``: what recorded steps take, without and with them. ``unrecorded``: nodes that cost nothing
    to record with them, as workers make them.

    Recording costs each op of the host as much, and nothing else: of an op that is gone this is gone, and of one
    that takes a share of its time the same share stays.
    """
    kept_ns = [records[rank].bare_ns if rank in records else 0 for rank in still[0].ranks]
    if not all(kept_ns) or len(still[0]) != len(changed[0]):
        return None
    bare_ns, own = max(kept_ns), (still[0], critical_path(*still))
    ops = [_recorded_ops(still[0], *own, None), _recorded_ops(still[0], *changed, unrecorded)]
    costs_ns = (steps_ns[0] - bare_ns) * ops[1] / max(ops[0], 1)
    return [float(bare_ns), max(steps_ns[1] - costs_ns, 0.0)]


def _recorded_ops(before: Workload, work: Workload, path: ReplayPath, unrecorded: Bool | None) -> float:
    """Count the ops of the host on a path; each as the share that its time is of that in ``before``."""
    was_ns, own_ns = (each.cost_ns[path.node] - each.fixed_ns[path.node] for each in (before, work))
    ops = (work.work[path.node] == Work.HOST) & (was_ns > 0) & ~work.is_part[path.node]
    ops &= True if unrecorded is None else ~unrecorded[path.node]
    return float((own_ns[ops] / was_ns[ops]).sum())


class _Steps:
    """``of_node``: the step of each node, that in which it began on the host, or the op that launched it; all 0 where
    the ranks have no steps in common. ``equal``: a number for the nodes that come as the k-th of their name in each
    step. ``took_ns``: from the end of the work of one step to that of the next, of all ranks, times what makes that the
    mean of their marks, on the slowest rank, where it is as recorded."""

    def __init__(self, work: Workload, played: Ended, records: Mapping[int, Recorded]) -> None:
        self.work, self.count = work, _count(work, records)
        self.of_node, self.took_ns = np.zeros(len(work), np.int64), np.zeros(0)
        if self.count > 1:
            begin_ns = played.rank_begin_ns
            known, begun_ns, *_ = kept = work.kept.get("steps", (None, begin_ns))
            if known is not records or not np.array_equal(begun_ns, begin_ns):
                for rank, file, (low, high) in zip(work.ranks, work.files, work.bounds, strict=True):
                    self.of_node[low:high] = _step_of(file, records[rank].steps_ns)[work.position[low:high]]
                recorded_ns = work.per_file(lambda file: file.start_ns + file.duration_ns) + begin_ns[work.member]
                kept = records, begin_ns, self.of_node, self._took(work, recorded_ns)
                work.kept["steps"] = kept  # the same for all what-ifs
            _, _, self.of_node, was_ns = kept
            self.took_ns = self._took(work, played.end_ns)
            marked_ns = max(max(records[rank].runs_ns[:1], default=0) for rank in work.ranks)
            if marked_ns and was_ns.any():
                self.took_ns = self.took_ns * (marked_ns / was_ns.mean())

    def _took(self, work: Workload, ends_ns: I64) -> F64:
        works = work.work != Work.GAP
        ended_ns = np.maximum.accumulate(largest(self.count, self.of_node[works], ends_ns[works]))
        return np.diff(ended_ns).astype(np.float64)

    @cached_property
    def equal(self) -> I64:
        member, name, kept = self.work.member, self.work.names()[0], self.work.kept
        if kept.get("equal", (None,))[0] is not self.of_node:  # else the same as in another what-if
            kept["equal"] = self.of_node, codes(member, name, turns(member, name, self.of_node))
        return np.asarray(kept["equal"][1])


def _count(work: Workload, records: Mapping[int, Recorded]) -> int:
    """Return how many steps the ranks have in common; 0 where they have other numbers of them."""
    counts = {len(records[rank].steps_ns) if rank in records else 0 for rank in work.ranks}
    return counts.pop() if len(counts) == 1 else 0


def _step_of(file: Graph, starts_ns: I64) -> I64:
    """Return the step of each node of a file: what comes before the first belongs to it."""
    step = np.maximum(np.searchsorted(np.sort(starts_ns), file.start_ns, side="right") - 1, 0)
    launched = np.flatnonzero(~file.host & (file.caller != NOWHERE))
    step[launched] = step[file.caller[launched]]
    return step


def _jitter(work: Workload, played: Played, path: ReplayPath, steps: _Steps) -> tuple[tuple[float, float] | None, str]:
    """Return the variance of a step in ns², and by how many degrees of freedom; or None, and why that is not known.

    The variance of a step is that of the steps after the first, which may warm up; and beside it, counting as
    ``WEIGHT`` steps, the sum of the variances of the nodes on the path, each among its equals: those of its name that
    come as the k-th in these steps; in two steps as the k-th of both, in one step all of its name.
    """
    count = max(steps.count, 1)
    took_ns = (played.end_ns - played.begin_ns).astype(np.float64)
    equal = steps.equal if count > 1 else _equal_times(work.member, work.names()[0], took_ns)
    variance = _variance(equal, took_ns, steps.of_node > 0 if count > 2 else np.ones(len(equal), np.bool_))[path.node]
    repeats = ~np.isnan(variance)
    known = float(path.own_ns[repeats].sum()) / max(path.length_ns, 1)
    # what nothing repeats differs as much as the rest
    of_nodes = float(variance[repeats].sum()) / count / max(known, _LEAST_KNOWN) ** 2
    weight, free = WEIGHT if known >= _LEAST_KNOWN else 0, max(len(steps.took_ns) - 1, 0)
    if not weight + free:
        return None, f"{_NUMBERS[steps.count]}, and most of what takes its time is there once: record more steps"
    of_steps = float(steps.took_ns.var(ddof=1)) if free else 0.0
    return ((weight * of_nodes + free * of_steps) / (weight + free), weight + free), ""


def _between_runs(
    work: Workload, path: ReplayPath, steps: _Steps, records: Mapping[int, Recorded]
) -> tuple[float, float]:
    """Return by which share of its time a run differs from the mean of many (a standard deviation), and by how many
    degrees of freedom that is known.

    Of other runs of the program their mean steps tell, beside which ``FLOOR`` counts as one more run. Without them it
    is that, or what it and the own steps tell together, if that is more: what disturbs a host lasts longer than a step,
    so that runs differ by as much as their steps do (docs/fidelity.md, "Bands").
    """
    floor = np.array([FLOOR[Work(sort)] for sort in range(len(Work))])[work.work[path.node]]
    floor[(work.work[path.node] == Work.COMM) & (work.column("device")[path.node] < 0)] = FLOOROF_HOST_COMM
    least = float((floor * path.own_ns).sum()) / max(path.length_ns, 1)
    others = [
        np.array(record.runs_ns) for record in records.values() if len(record.runs_ns) > 1 and all(record.runs_ns)
    ]
    if others:
        more = len(others[0]) - 1
        variance = float(np.mean([(ns.std(ddof=1) / ns.mean()) ** 2 for ns in others]))
        return sqrt((least**2 + more * variance) / (1 + more)), 1 + more
    variance, free = _of_host(work, path, steps)
    together = (_OF_FLOOR * least**2 + free * variance) / (_OF_FLOOR + free)
    return max(least, sqrt(together)), _OF_FLOOR + free


def _of_host(work: Workload, path: ReplayPath, steps: _Steps) -> tuple[float, int]:
    """Return the variance of what the host takes in a step for nodes that are in each, as a share of the time of the
    path, and its degrees of freedom; the first step does not count."""
    free = steps.count - 2
    if free < 1:
        return 0.0, 0
    host = np.isin(work.work, OF_HOST) & (steps.of_node > 0)
    host &= np.bincount(steps.equal[host], minlength=len(work))[steps.equal] == steps.count - 1
    step = work.member[host] * np.int64(steps.count) + steps.of_node[host]
    took_ns = sums(len(work.ranks) * steps.count, step, (work.cost_ns - work.fixed_ns)[host])
    of_rank_ns = took_ns.reshape(len(work.ranks), -1)[:, 1:]
    of_rank_ns = of_rank_ns[of_rank_ns.any(1)]
    if not len(of_rank_ns):
        return 0.0, 0
    share = float(path.own_ns[np.isin(work.work[path.node], OF_HOST)].sum()) / max(path.length_ns, 1)
    return float(np.mean((of_rank_ns.std(1, ddof=1) / of_rank_ns.mean(1)) ** 2)) * share**2, free


def _equal_times(member: I32, family: I64, took_ns: F64) -> I64:
    """Number the nodes so that those of equal number are of one name and rank and take alike: of those, in order of
    time, none takes ``ALIKE`` times the one before."""
    order = np.lexsort((took_ns, family, member))
    first = begins(member[order], family[order])
    first[1:] |= took_ns[order[1:]] > ALIKE * took_ns[order[:-1]]
    return spread(len(order), order, np.cumsum(first) - 1)


def _variance(same: I64, value: F64, counts: Bool) -> F64:
    """Return the variance among the nodes of the number of each that ``counts``; nan where fewer than two do."""
    many = np.bincount(same, counts)
    mean = np.bincount(same, value * counts) / np.maximum(many, 1)
    squares = np.bincount(same, (value - mean[same]) ** 2 * counts)
    return np.where(many > 1, squares / np.maximum(many - 1, 1), np.nan)[same]


def _unexplained_ns(work: Workload, changed: Workload, path: ReplayPath, records: Mapping[int, Recorded]) -> float:
    """Return the time on the path that nothing explains: gaps, what of delays is no latency, and of ops what is in
    calls that blocked; but for gaps and delays that were changed themselves."""
    node, sort = path.node, changed.work[path.node]
    of_rank = np.array([records[rank].blocked_share if rank in records else 0.0 for rank in changed.ranks])
    delay_ns = np.where(sort == Work.DELAY, changed.cost_ns[node], changed.fixed_ns[node])
    pinned_ns = np.where(sort == Work.GAP, path.own_ns, np.minimum(delay_ns, path.own_ns))
    is_pinned = np.isin(sort, _PINNED)
    pinned_ns[is_pinned & (work.micros_ns[node] != changed.micros_ns[node])] = 0
    ops_ns = np.where(is_pinned, 0, path.own_ns - pinned_ns)
    return float((pinned_ns + ops_ns * of_rank[changed.member[node]]).sum())


def _factors(work: Workload, changed: Workload) -> list[float]:
    """Return how much longer each sort of work takes than before, on all ranks; of what is not there, nothing."""
    ns, changed_ns = (sums(len(Work), each.work, each.micros_ns).tolist() for each in (work, changed))
    return [changed_ns[sort] / ns[sort] for sort in (Work.HOST, Work.KERNEL, Work.COMM, Work.COPY) if ns[sort]]


def _latency_ns(work: Workload, changed: Workload, path: ReplayPath) -> list[float]:
    """Return by how much less, and by how much more, communication on the path may take if what the quickest one of its
    rank takes is latency, which a change of its time leaves as it is."""
    own_ns, comm = work.cost_ns - work.fixed_ns, work.work == Work.COMM
    some = np.flatnonzero(comm & (own_ns > 0))
    quickest = least(len(work.ranks), work.member[some], own_ns[some])
    node = path.node[comm[path.node] & (own_ns[path.node] > 0) & (path.own_ns > path.fixed_ns)]
    stays_ns = -(changed.micros_ns - work.micros_ns)[node] / own_ns[node] * quickest[work.member[node]]
    return [float(-stays_ns[stays_ns < 0].sum()), float(stays_ns[stays_ns > 0].sum())]


def band_words(band: Band, before_ns: int, path_ns: int) -> list[str]:
    """Return the band in words, of the run, of its steps, and what makes it so wide; or why there is none.
    ``before_ns``: what the run takes as recorded, gains are of ``path_ns``."""
    if band.run is None:
        return [band.why]
    again = f"a second run of {band.steps} steps" if band.steps > 1 else "a second run"
    doubt = "too uncertain to tell from no gain: " if uncertain(band, before_ns) else ""
    apart = 100 * path_ns < 99 * before_ns  # as where recordings began apart: gains are of less than the run
    was, of = (f" in place of {ms(before_ns)}", " of the critical path") if apart else ("", "")
    step = band.step and f"its steps take {_span(band.step)} on average; predicted are {ms(band.step.ns)} ms"
    differ = (
        f"{'steps' if band.steps > 2 else 'nodes of one name'} differ, and runs by {band.between_runs_pct or 0:.1f} %"
    )
    return [
        f"{doubt}{again} with this change takes {_span(band.run)}{was}: {_gain(band.run, before_ns, path_ns)}{of}",
        *([step] if step else []),
        f"+- {ms(band.spread_ns or 0)} ms: {differ}",
        *_sides(band.unexplained_ns, "time that nothing explains may change too, or may not"),
        *_sides(band.latency_ns, "latency of communication may stay as it is"),
    ]


def uncertain(band: Band | None, before_ns: int) -> bool:
    """Tell whether a second run may as well end earlier as later: then the gain cannot be told from none."""
    return band is not None and band.run is not None and band.run.low_ns < before_ns < band.run.high_ns


def band_head(band: Band) -> str:
    """Return what ``band_words`` are about."""
    return "second run" if band.run is None else f"{band.level_pct} % band"


def _span(span: Span) -> str:
    return f"{ms(span.low_ns)} to {ms(span.high_ns)} ms"


def _gain(span: Span, before_ns: int, path_ns: int) -> str:
    """Return between which gains it lies, the least first."""
    ends = [before_ns - span.high_ns, before_ns - span.low_ns]
    least, most = (percent(abs(gain), path_ns) for gain in ends)
    if ends[0] < 0 <= ends[1]:
        return f"between {least} more and {most} less"
    return f"{most} to {least} more" if ends[0] < 0 else f"saves {least} to {most}"


def _sides(sides_ns: Sequence[int], why: str) -> list[str]:
    parts = [f"{sign} {ms(ns)}" for sign, ns in zip("-+", sides_ns, strict=True) if ns]
    return [f"{' '.join(parts)} ms: {why}"] if parts else []
