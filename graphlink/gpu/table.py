"""What is printed of GPU time, and what ``graphlink idle --json`` holds: time of each device, why it was idle, and the
longest idle intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median, median_low
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from graphlink.causes import MEANING, CauseName
from graphlink.choices import LATENCY_NS
from graphlink.figures import column, columns, figure, table
from graphlink.gpu.records import DeviceTime, GroupTime, IdleEntry, IdleFile, StepTime, StreamTime
from graphlink.ranks.summary import Run, Straggler
from graphlink.records import Lines, Short, Table, counted, first_few, ms, percent, shares_words, shortened
from graphlink.student import TO_SIGMA
from graphlink.tables import grouped
from graphlink.wings import Telling

SPENT: Final = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
_FEW_RANKS = 2
_EVIDENCE = 110  # characters
_OUTSIDE = (
    "  more idle time than above: steps go from mark to mark, the time above from the GPU's first work to its last"
)
_MOST = 10  # groups or streams of a device
_MEMBERS = 8  # of a group that are named
MOST_LANES: Final = 64  # GPUs on the strip of a page


class CauseTime(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a device: its time, how many intervals, and what says so most often by time, with how long."""

    cause: Annotated[CauseName, figure(name="")]
    ns: Annotated[int, figure(means="idle", name=".")]
    intervals: Annotated[int, figure(name="")]
    evidence: dict[str, int]

    @property
    def meaning(self) -> Annotated[str, figure("what it is", unit="word", head="meaning", spare=1)]:
        return MEANING[self.cause]


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank waited for others in communication, as ``run.waits`` of ``summary.json`` has it.

    ``stragglers``: of the groups of the rank, where another one stands out or may. ``apart``: the ranks that came last
    in meetings in no figure, and what GPUs waited in these.
    """

    ns: int
    stragglers: dict[str, Straggler]
    apart: list[int]
    apart_ns: int


class RankIdle(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A rank. ``causes`` (the longest first), ``late_starts`` (where they are regular): by device, in the order of
    ``gpu``.

    ``longest``: idle intervals, the longest first; ``waited``: absent for a rank alone.
    """

    rank: int
    gpu: list[DeviceTime]
    steps: list[StepTime]
    causes: list[list[CauseTime]]
    late_starts: list[LateStarts | None]
    waited: Waited | UnsetType = UNSET
    longest: list[IdleEntry]


class IdleReport(Short, msgspec.Struct, frozen=True, kw_only=True):
    ranks: list[RankIdle]


def rank_idle(file: IdleFile, top: int, run: Run | None = None) -> RankIdle:
    """Sum up the file of a rank; ``run``: what the ranks say together. O(n log n) in its intervals."""
    each = [[entry for entry in file.idle if entry.device == one.device] for one in file.gpu]
    causes = [sorted(_causes(mine, top), key=lambda one: -one.ns) for mine in each]
    late = [late_starts(mine) if one.replays is UNSET else None for one, mine in zip(file.gpu, each, strict=True)]
    longest = sorted(file.idle, key=lambda entry: (entry.start_ns - entry.end_ns, entry.start_ns))[:top]
    excluded_ns = sum(one.excluded_ns or 0 for one in file.gpu)
    waited = _waited(file.rank, run, excluded_ns) if run is not None else UNSET
    return RankIdle(
        rank=file.rank, gpu=file.gpu, steps=file.steps, causes=causes, late_starts=late, waited=waited, longest=longest
    )


def _waited(rank: int, run: Run, excluded_ns: int) -> Waited:
    mine = {
        f"group {one.name or '(unnamed)' if one.id is None else one.id}": one for one in run.groups if rank in one.ranks
    }
    apart = [one for one in run.set_apart if one.group in mine and one.late_rank not in (None, rank)]
    return Waited(
        ns=sum(one.wait_ns for one in run.waits if one.rank == rank),
        stragglers={
            name: late
            for name, one in mine.items()
            if (late := one.straggler or one.suspect) is not None and late.rank != rank
        },
        apart=[one.late_rank for one in apart if one.late_rank is not None],
        apart_ns=excluded_ns,
    )


def _causes(entries: Sequence[IdleEntry], top: int) -> Iterator[CauseTime]:
    for cause, mine in grouped((entry.cause, entry) for entry in entries).items():
        spent = Counter[str]()
        for entry in mine:
            spent[entry.evidence] += entry.duration_ns
        yield CauseTime(cause=cause, ns=spent.total(), intervals=len(mine), evidence=dict(spent.most_common(top)))


def idle_table(report: IdleReport) -> Lines:
    """Return the report for people: of few ranks all, of many a line each, the most idle first, and the causes of the
    most idle.
    """
    bare = [rank.rank for rank in report.ranks if not rank.gpu]
    ranks = sorted(
        (rank for rank in report.ranks if rank.gpu),
        key=lambda rank: -max(_share([gpu], "idle_ns") for gpu in rank.gpu),
    )
    out: Lines = []
    if len(ranks) > _FEW_RANKS:
        head = ("rank", "device", "ms", "compute", "comm", "copies", "idle", "most by")
        rows = [
            (
                str(rank.rank),
                str(gpu.device),
                ms(spent([gpu]).total()),
                *(f"{_share([gpu], part):.1f} %" for part in SPENT),
                f"{causes[0].cause} {percent(causes[0].ns, gpu.idle_ns)}{replay_words(gpu)}" if causes else "",
            )
            for rank in ranks
            for gpu, causes in zip(rank.gpu, rank.causes, strict=True)
        ]
        out += [
            Table(rows, head, ">>>>>>><", indent=0, spare=("device", "copies", "ms")),
            "compute: kernels and memsets; comm, copies: the part beside which nothing computes",
            "",
        ]
        ranks = ranks[:1]
    out += [part for rank in ranks for part in _rank(rank)]
    others = "no device ops were recorded; graphlink critical-path and graphlink ops tell what the host did"
    return [*out, *([f"rank{'s' * (len(bare) > 1)} {first_few(bare, _MEMBERS)}: {others}"] if bare else [])]


def _rank(rank: RankIdle) -> Lines:
    out: Lines = []
    for gpu, causes, late in zip(rank.gpu, rank.causes, rank.late_starts, strict=True):
        out.append(
            f"rank {rank.rank}, device {gpu.device}: idle {percent(*gpu.idle_share)} of {ms(gpu.idle_share[1])} ms"
            f"{f', {ms(gpu.excluded_ns)} ms of waiting that is not counted left out' if gpu.excluded_ns else ''}; "
            f"{shares_words(_parts(gpu), gpu.idle_share[1]) or 'no work'}{replay_words(gpu)}"
        )
        out += _utilisation(gpu)
        if gpu.comm_ns:
            out.append(_communication(gpu))
            out += wait_lines(rank.waited) if rank.waited is not UNSET else []
            out += _groups(gpu)
        share = column("of idle", "part", [(cause.ns, gpu.idle_ns) for cause in causes])
        most = column("most by", "word", [_first(cause.evidence) for cause in causes])
        out += [table(columns(CauseTime, causes, "ns", share, "cause", "meaning", most))] * bool(causes)
        out += [*(late_lines(late) if late else []), "", *_streams(gpu)]
    if rank.steps:
        idle_ns = sum(gpu.idle_ns for step in rank.steps for gpu in step.gpu)
        out += [
            "steps",
            _steps(rank.steps),
            *([_OUTSIDE] if idle_ns > sum(gpu.idle_ns for gpu in rank.gpu) else []),
            "",
        ]
    if rank.longest:
        evidence = column("evidence", "word", [shortened(entry.evidence, _EVIDENCE) for entry in rank.longest])
        names = ("duration_ns", "start_ns", "cause", evidence, "stream", "op")
        out += ["longest", table(columns(IdleEntry, rank.longest, *names)), ""]
    return out


def _utilisation(one: DeviceTime) -> list[str]:
    """Return on a line how much of the time the device worked, and how much of it its kernels can fill."""
    if one.utilisation is UNSET:
        return []
    fills = (
        ""
        if one.est_sm_efficiency is UNSET
        else f"; while kernels run, SM efficiency {percent(one.est_sm_efficiency, 1)} (estimated)"
    )
    whole = f" of all {ms(one.whole_ns)} ms" if one.excluded_ns else ""
    return [f"  utilisation {percent(one.utilisation, 1)}{whole}{fills}"]


def _communication(one: DeviceTime) -> str:
    """Return the communication and the hidden share of it; beside kernels alone, as HTA counts it, where that
    differs.
    """
    hidden = percent(one.comm_ns - one.exposed_comm_ns, one.comm_ns)
    theirs = hidden if one.hta_overlap_share is UNSET else percent(one.hta_overlap_share, 1)
    differs = f" ({theirs} as HTA counts overlap)" * (theirs != hidden)
    return f"  communication {ms(one.comm_ns)} ms, {hidden} of it hidden{differs}"


def _groups(gpu: DeviceTime) -> Lines:
    """Return the communication of each group, where there are several."""
    groups = [] if gpu.by_group is UNSET else gpu.by_group
    names = column("group", "word", [_group(group) for group in groups[:_MOST]])
    shown = columns(GroupTime, groups[:_MOST], "comm_ns", "exposed_ns", "hidden", names)
    return [table(shown), *_more(len(groups), "group")] if len(groups) > 1 else []


def _more(count: int, what: str) -> list[str]:
    return [f"  ... and {counted(count - _MOST, f'more {what}')} in idle.N.json"] if count > _MOST else []


def _group(group: GroupTime) -> str:
    """Return the recorded name of a group and its members: ``dp (ranks 0, 4)``."""
    named = first_few(group.ranks, _MEMBERS)
    members = f"{'rank' if len(group.ranks) == 1 else 'ranks'} {named}" if group.ranks else ""
    name = shortened(group.name)
    return f"{name} ({members})" if name and members else name or members or "not recorded"


def _streams(gpu: DeviceTime) -> Lines:
    """Return the streams, the busiest first, where there are several."""
    streams = [] if gpu.by_stream is UNSET else sorted(gpu.by_stream, key=lambda stream: -stream.busy_ns)
    shown = columns(StreamTime, streams[:_MOST], "stream", "busy_ns", "busy", "idle_ns")
    return ["streams", table(shown), *_more(len(streams), "stream"), ""] if len(streams) > 1 else []


def wait_lines(waited: Waited) -> list[str]:
    """Return on a line what communication waited for ranks that arrived late, and who did."""
    if not (waited.ns or waited.apart_ns):
        return []
    who = [
        f"rank {one.rank} came last in {one.times_late:,} of {counted(one.meetings, 'collective')} of {name}"
        for name, one in waited.stragglers.items()
    ]
    apart = (
        [
            f"not counted: {ms(waited.apart_ns)} ms in {counted(len(waited.apart), 'collective')} that counts in no "
            "figure" + f" (rank {first_few(sorted({*waited.apart}), _MEMBERS)} came last)" * bool(waited.apart)
        ]
        if waited.apart_ns
        else []
    )
    return [
        f"  in communication it waited {ms(waited.ns)} ms for ranks that "
        f"arrived late{''.join(f'; {part}' for part in [*who, *apart])}"
    ]


def late_lines(late: LateStarts) -> list[str]:
    """Return the hint that lies in late starts of one length."""
    return [
        f"  {late.alike:,} of {counted(late.count, 'late start')} end idle time of {ms(late.gap_ns)} ms (within 5 %): "
        f"{ms(late.late_ns + late.other_ns)} ms in all, {ms(late.other_ns)} ms of it before the launch calls had "
        "returned.",
        "  Ops begin as regularly on a GPU that another process shares in time slices: look with nvidia-smi or "
        "rocm-smi, record without that process.",
    ]


def _first(evidence: dict[str, int]) -> str:
    """Return what most of the time goes to."""
    text, ns = next(iter(evidence.items()), ("", 0))
    return f"{shortened(text, _EVIDENCE)} ({ms(ns)} ms)" if text else ""


def _steps(steps: Sequence[StepTime]) -> Table:
    gpus = [(step.name, gpu) for step in steps for gpu in step.gpu]
    names = column("step", "word", [name for name, _ in gpus])
    shown = ("device", "whole_ns", "busy", "idle_ns", "mostly", *replays_column([gpu for _, gpu in gpus]))
    return table(columns(DeviceTime, [gpu for _, gpu in gpus], names, *shown))


def replays_column(devices: Sequence[Any]) -> list[str]:
    """Return the column that says how many replays are recorded, where any are not."""
    return ["replays"] if any(one.replays is not UNSET for one in devices) else []


# lines in the printed summary of a rank, and how ranks compare by their idle time

_FEW: Final = 3  # causes on a line


def gpu_lines(device: DeviceTime) -> list[tuple[str, str]]:
    """Return what a device spent its time on, the most first, and why it was idle, each with its name."""
    parts, whole_ns = {**_parts(device), "idle": device.idle_ns}, device.idle_share[1]
    why = {f"{cause} ({MEANING.get(cause, cause)})": ns for cause, ns in device.idle_by_cause_ns.items()}
    return [
        (
            f"GPU {device.device}",
            f"{ms(whole_ns)} ms: {shares_words(parts, whole_ns) or 'nothing ran'}{replay_words(device)}",
        ),
        ("  idle because", shares_words(why, device.idle_ns, _FEW)),
    ]


def replay_words(*devices: Any) -> str:
    """Return how many replays of CUDA graphs are recorded, "" where all are: what others ran counts as idle."""
    recorded, every = replays_of(*devices) or (0, 0)
    return f"; recorded {recorded:,} of {every:,} replays" if recorded < every else ""


def replays_of(*devices: Any) -> tuple[int, int] | UnsetType:
    """Return how many replays are recorded, of all; UNSET where none says so."""
    told = [one.replays for one in devices if one.replays is not UNSET]
    return (sum(recorded for recorded, _ in told), sum(every for _, every in told)) if told else UNSET


def spent(devices: Sequence[Any]) -> Counter[str]:
    """Return the time of devices together by ``SPENT``, in ns, without what is excluded."""
    times = Counter({part: sum(getattr(one, part) for one in devices) for part in SPENT})
    times["exposed_comm_ns"] -= sum(one.excluded_ns or 0 for one in devices)
    return times


def _parts(device: DeviceTime) -> dict[str, int]:
    """Return the time of a device in which it was busy, by what with."""
    return dict(zip(("compute", "exposed communication", "exposed copies"), spent([device]).values(), strict=False))


def steps_line(rank: Any) -> str:
    """Format the steps: ``4: the first 30.000 ms, the others 10.000 ms +- 0.100 on average; slowest: 12.000 ms (step
    3), ...``.
    """
    told = rank.iterations
    if told is UNSET:
        return ""
    if told.mean_ns is None:
        return f"{told.count:,} of {ms(told.first_ns)} ms ({rank.steps[0].name})"
    key = "" if told.found_by == "mark" else f", found by {shortened(told.key)}"
    why = "".join(f", {ms(one.ns)} ms more {one.what} than usual" for one in told.why[:1])
    slowest = (
        f"; slowest: {ms(told.longest_ns or 0)} ms ({shortened(rank.steps[told.slowest].name)}{why})"
        if told.count > 2 and told.slowest is not None and ms(told.longest_ns or 0) != ms(told.mean_ns)
        else ""
    )
    others = (
        f"the others {ms(told.mean_ns)} ms +- {ms(told.spread_ns or 0)} on average"
        if told.count > 2
        else f"the other {ms(told.mean_ns)} ms"
    )
    bare = (
        "" if told.bare_ns is UNSET else f"; {told.median_ns / told.bare_ns:.1f} x the bare ones, {ms(told.bare_ns)} ms"
    )
    ahead = (
        ""
        if told.on_device_ns is UNSET
        else f"; on the GPU {ms(told.on_device_ns)} ms each: the host ran ahead of it, and cannot for long"
    )
    return f"{told.count:,}{key}: the first {ms(told.first_ns)} ms, {others}{ahead}{slowest}{bare}"


def idle_percent(rank: Any) -> float:
    """Return the idle share of all GPUs of a rank, in per cent; 0 without any."""
    return _share(rank.gpu, "idle_ns")


def with_fewer_strips(ranks: Sequence[Any]) -> Sequence[Any]:
    """Return the ranks with ``over_time`` of no more GPUs, or hosts of ranks without, than the strip of a page shows,
    those of the most idle ranks: it is 12 kB of each."""
    most = sorted(ranks, key=lambda rank: -idle_percent(rank))
    before = np.cumsum([0, *(max(len(rank.gpu), 1) for rank in most)])
    kept = {rank.rank: MOST_LANES - int(k) for rank, k in zip(most, before, strict=False)}
    return [
        rank
        if kept[rank.rank] >= max(len(rank.gpu), 1)
        else replace(
            rank,
            host_over_time=UNSET,
            gpu=[
                replace(gpu, over_time=gpu.over_time if k < kept[rank.rank] else UNSET)
                for k, gpu in enumerate(rank.gpu)
            ],
        )
        for rank in ranks
    ]


def exposed_percent(rank: Any) -> float:
    """Return the share of exposed communication in the time of all GPUs of a rank, in per cent; 0 without any."""
    return _share(rank.gpu, "exposed_comm_ns")


def idle_causes(*ranks: Any) -> Counter[str]:
    """Return the idle time of all GPUs of ranks by cause, in ns."""
    return sum((Counter(device.idle_by_cause_ns) for rank in ranks for device in rank.gpu), Counter[str]())


def _share(devices: Sequence[DeviceTime], part: str) -> float:
    times = spent(devices)
    return 100 * times[part] / (times.total() or 1)


def far_from_usual(ranks: Sequence[Any]) -> tuple[float, list[Any]]:
    """Return the usual idle share of ranks in per cent, and those that are far from it, the most idle first."""
    idle = {one.rank: idle_percent(one) for one in ranks}
    usual = median(idle.values())
    far = 3 * TO_SIGMA * median(abs(value - usual) for value in idle.values())
    order = sorted(ranks, key=lambda one: (-idle[one.rank], one.rank))
    return usual, [one for one in order if abs(idle[one.rank] - usual) > far > 0]


def telling(ranks: Sequence[Any]) -> Telling:
    """Choose the most idle rank, the median one and the one with most exposed communication, and those that are far
    from the usual.
    """
    idle = {rank.rank: idle_percent(rank) for rank in ranks}
    first = dict[int, str]()
    if any(rank.gpu for rank in ranks):
        first[max(ranks, key=lambda rank: (idle[rank.rank], -rank.rank)).rank] = "most idle"
        usual = median_low(idle.values())
        first.setdefault(next(rank for rank, share in idle.items() if share == usual), "median idle time")
        exposed = {rank.rank: exposed_percent(rank) for rank in ranks}
        most = max(exposed, key=lambda rank: (exposed[rank], -rank))
        if exposed[most] > idle[most]:
            first.setdefault(most, "most exposed communication")
    return Telling(first, {rank.rank: "far from the usual idle time" for rank in far_from_usual(ranks)[1]})


# late starts that end idle time of one length again and again, as where a GPU is shared in time slices (docs/idle.md)

_FEWEST: Final = 10
_TIMES_USUAL: Final = 10  # start delays of a device, beyond which one is late
_WITHIN: Final = 0.05  # of the median, on either side
_SHARE: Final = 0.75  # of all late starts


class LateStarts(msgspec.Struct, frozen=True, kw_only=True):
    """Late starts on a device: ``count`` of them, ``alike`` of which end idle time of ``gap_ns`` (the median), within 5
    %.

    ``late_ns``: what those waited after their launch calls had returned; ``other_ns``: the rest of the same idle time,
    before.
    """

    count: int
    alike: int
    gap_ns: int
    late_ns: int
    other_ns: int


def late_starts(entries: Sequence[IdleEntry]) -> LateStarts | None:
    """Return the regular late starts among the idle intervals of a device, ascending; None where there are none.
    Linear, and a sort.

    Late is what exceeds ten times the usual start delay of the device, so that a slow launch is not. Regular are ten
    and three quarters.
    """
    start, end = (np.array([getattr(entry, name) for entry in entries], np.int64) for name in ("start_ns", "end_ns"))
    delays = np.array([entry.cause == "start_delay" for entry in entries], np.bool_)
    if not delays.any():
        return None
    first = np.flatnonzero(np.append(True, start[1:] != end[:-1]))  # of each gap
    took_ns = end - start
    whole_ns, delay_ns = (np.add.reduceat(ns, first) for ns in (took_ns, np.where(delays, took_ns, 0)))
    late = np.flatnonzero(delay_ns > max(LATENCY_NS, _TIMES_USUAL * float(np.median(delay_ns[delay_ns > 0]))))
    if len(late) < _FEWEST:
        return None
    usual = float(np.median(whole_ns[late]))
    alike = late[np.abs(whole_ns[late] - usual) <= _WITHIN * usual]
    if len(alike) < max(_FEWEST, _SHARE * len(late)):
        return None
    late_ns = int(delay_ns[alike].sum())
    return LateStarts(
        count=len(late),
        alike=len(alike),
        gap_ns=round(usual),
        late_ns=late_ns,
        other_ns=int(whole_ns[alike].sum()) - late_ns,
    )
