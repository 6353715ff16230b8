"""What ``graphlink idle`` prints and its ``--json`` holds: time of each device, why it was idle, and the longest idle
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.gpu.file import CauseName, IdleEntry, IdleFile
from graphlink.gpu.records import DeviceTime, GroupTime, StepTime
from graphlink.gpu.regular import LateStarts, late_starts
from graphlink.gpu.summary import busy_words
from graphlink.ranks.summary import Run, Straggler
from graphlink.records import Short, Table, counted, first_few, ms, percent, shortened

_FEW_RANKS = 2
_EVIDENCE = 110  # characters
_MOST = 10  # groups or streams of a device
_MEMBERS = 8  # of a group that are named
MEANING: dict[CauseName, str] = {
    "profiler_artefact": "the profiler worked",
    "straggler_wait": "the host waited for a rank that came late",
    "dependency_stall": "waited for work of another device or rank",
    "memory_management": "the host allocated or freed memory",
    "data_loading": "the host loaded data",
    "host_blocked": "the host was in a call that waits",
    "start_delay": "launched, not begun",
    "host_work": "the host was busy with ops",
    "python": "the host was between ops",
    "no_work": "nothing was asked for",
    "unknown": "the recording does not tell",
}


class CauseTime(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a device: its time, how many intervals, and what says so most often by time, with how long."""

    cause: CauseName
    ns: int
    intervals: int
    evidence: dict[str, int]


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank waited for others in communication, as ``run.waits`` of ``summary.json`` has it.

    ``stragglers``: of the groups of the rank, where another one stands out. ``apart``: meetings in no figure, and by
    how much others came later to them.
    """

    ns: int
    stragglers: dict[str, Straggler]
    apart: int
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
    causes, late = [], []
    for one in file.gpu:
        mine = [entry for entry in file.idle if entry.device == one.device]
        by_cause: dict[CauseName, list[IdleEntry]] = {}
        for entry in mine:
            by_cause.setdefault(entry.cause, []).append(entry)
        found = [_cause(cause, entries, top) for cause, entries in by_cause.items()]
        causes.append(sorted(found, key=lambda one: -one.ns))
        late.append(late_starts(mine))
    longest = sorted(file.idle, key=lambda entry: (entry.start_ns - entry.end_ns, entry.start_ns))[:top]
    waited = _waited(file.rank, run) if run is not None else UNSET
    return RankIdle(
        rank=file.rank, gpu=file.gpu, steps=file.steps, causes=causes, late_starts=late, waited=waited, longest=longest
    )


def _waited(rank: int, run: Run) -> Waited:
    mine = {
        f"group {one.name or '(unnamed)' if one.id is None else one.id}": one for one in run.groups if rank in one.ranks
    }
    apart = [one for one in run.set_apart if one.group in mine and one.late_rank not in (None, rank)]
    return Waited(
        ns=sum(one.wait_ns for one in run.waits if one.rank == rank),
        stragglers={
            name: one.straggler
            for name, one in mine.items()
            if one.straggler is not None and one.straggler.rank != rank
        },
        apart=len(apart),
        apart_ns=sum(one.skew_ns for one in apart),
    )


def _cause(cause: CauseName, entries: Sequence[IdleEntry], top: int) -> CauseTime:
    spent: dict[str, int] = {}
    for entry in entries:
        spent[entry.evidence] = spent.get(entry.evidence, 0) + entry.end_ns - entry.start_ns
    first = sorted(spent.items(), key=lambda item: -item[1])[:top]
    return CauseTime(cause=cause, ns=sum(spent.values()), intervals=len(entries), evidence=dict(first))


def idle_table(report: IdleReport) -> list[str | Table]:
    """Return the report for people: of few ranks all, of many a line each, the most idle first, and the causes of the
    most idle.
    """
    bare = [rank.rank for rank in report.ranks if not rank.gpu]
    ranks = sorted(
        (rank for rank in report.ranks if rank.gpu),
        key=lambda rank: -max((_share(one) for one in rank.gpu), default=0.0),
    )
    out: list[str | Table] = []
    if len(ranks) > _FEW_RANKS:
        out += [_devices(ranks), "compute: kernels and memsets; comm, copies: what of them no compute hides", ""]
        ranks = ranks[:1]
    out += [part for rank in ranks for part in _rank(rank)]
    return [*out, *(f"rank {rank}: no device ops were recorded" for rank in bare)]


def _share(one: DeviceTime) -> float:
    return one.idle_ns / (one.to_ns - one.from_ns or 1)


def _devices(ranks: Sequence[RankIdle]) -> Table:
    head = ("rank", "device", "ms", "compute", "comm", "copies", "idle", "most by")
    rows = [
        (
            str(rank.rank),
            str(one.device),
            ms(one.to_ns - one.from_ns),
            *(
                percent(ns, one.to_ns - one.from_ns)
                for ns in (one.compute_ns, one.exposed_comm_ns, one.exposed_copy_ns, one.idle_ns)
            ),
            f"{causes[0].cause} {percent(causes[0].ns, one.idle_ns)}" if causes else "",
        )
        for rank in ranks
        for one, causes in zip(rank.gpu, rank.causes, strict=True)
    ]
    return Table(rows, head, ">>>>>>><", indent=0, spare=("device", "copies", "ms"))


def _rank(rank: RankIdle) -> list[str | Table]:
    out: list[str | Table] = []
    for one, causes, late in zip(rank.gpu, rank.causes, rank.late_starts, strict=True):
        whole = one.to_ns - one.from_ns
        out.append(
            f"rank {rank.rank}, device {one.device}: idle {percent(one.idle_ns, whole)} of {ms(whole)} ms; "
            f"{busy_words(one)}"
        )
        out += _utilisation(one)
        if one.comm_ns:
            out.append(_communication(one))
            out += wait_lines(rank.waited) if rank.waited is not UNSET else []
            out += _groups(one)
        rows = [
            (ms(cause.ns), percent(cause.ns, one.idle_ns), cause.cause, MEANING[cause.cause], _first(cause.evidence))
            for cause in causes
        ]
        out += [
            Table(rows, ("ms", "of idle", "cause", "meaning", "most by"), ">><<<", spare=("meaning",)),
            *(late_lines(late) if late else []),
            "",
            *_streams(one),
        ]
    if rank.steps:
        out += ["steps", _steps(rank.steps), ""]
    longest = [
        (
            ms(entry.end_ns - entry.start_ns),
            ms(entry.start_ns),
            entry.cause,
            shortened(entry.evidence, _EVIDENCE),
            "" if entry.stream is UNSET else str(entry.stream),
            "" if entry.op is UNSET else shortened(entry.op),
        )
        for entry in rank.longest
    ]
    if longest:
        head = ("ms", "at ms", "cause", "evidence", "stream", "until")
        out += ["longest", Table(longest, head, ">><<><", spare=("stream", "until")), ""]
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
    return [f"  utilisation {percent(one.utilisation, 1)}{fills}"]


def _communication(one: DeviceTime) -> str:
    """Return the communication and the hidden share of it; beside kernels alone, as HTA counts it, where that
    differs.
    """
    hidden = percent(one.comm_ns - one.exposed_comm_ns, one.comm_ns)
    theirs = "" if one.hta_overlap_share is UNSET else percent(one.hta_overlap_share, 1)
    differs = f" ({theirs} as HTA counts overlap)" if theirs not in ("", hidden) else ""
    return f"  communication {ms(one.comm_ns)} ms, {hidden} of it hidden{differs}"


def _groups(one: DeviceTime) -> list[str | Table]:
    """Return the communication of each group, where there are several."""
    groups = [] if one.by_group is UNSET else one.by_group
    rows = [
        (
            ms(group.comm_ns),
            ms(group.exposed_ns),
            percent(group.comm_ns - group.exposed_ns, group.comm_ns),
            _group(group),
        )
        for group in groups[:_MOST]
    ]
    more = [f"  ... and {counted(len(groups) - _MOST, 'more group')} in idle.N.json"] if len(groups) > _MOST else []
    return [Table(rows, ("ms", "exposed ms", "hidden", "group"), ">>><"), *more] if len(groups) > 1 else []


def _group(group: GroupTime) -> str:
    """Return the recorded name of a group and its members: ``dp (ranks 0, 4)``."""
    named = first_few(group.ranks, _MEMBERS)
    members = f"{'rank' if len(group.ranks) == 1 else 'ranks'} {named}" if group.ranks else ""
    name = shortened(group.name)
    return f"{name} ({members})" if name and members else name or members or "not recorded"


def _streams(one: DeviceTime) -> list[str | Table]:
    """Return the streams, the busiest first, where there are several."""
    streams = [] if one.by_stream is UNSET else sorted(one.by_stream, key=lambda stream: -stream.busy_ns)
    rows = [
        (
            str(stream.stream),
            ms(stream.busy_ns),
            percent(stream.busy_ns, stream.busy_ns + stream.idle_ns),
            ms(stream.idle_ns),
        )
        for stream in streams[:_MOST]
    ]
    more = [f"  ... and {counted(len(streams) - _MOST, 'more stream')} in idle.N.json"] if len(streams) > _MOST else []
    return (
        ["streams", Table(rows, ("stream", "busy ms", "busy", "idle ms"), ">>>>"), *more, ""]
        if len(streams) > 1
        else []
    )


def wait_lines(waited: Waited) -> list[str]:
    """Return on a line what communication waited for ranks that came late, and who did."""
    if not (waited.ns or waited.apart_ns):
        return []
    who = [
        f"mostly for rank {one.rank}, last in {one.times_late:,} of {counted(one.meetings, 'meeting')} of {name}"
        for name, one in waited.stragglers.items()
    ]
    apart = (
        [f"not counted: up to {ms(waited.apart_ns)} ms in {counted(waited.apart, 'meeting')} set apart"]
        if waited.apart
        else []
    )
    return [
        f"  in communication it waited {ms(waited.ns)} ms for ranks that came "
        f"late{''.join(f'; {part}' for part in [*who, *apart])}"
    ]


def late_lines(late: LateStarts) -> list[str]:
    """Return the hint that lies in late starts of one length."""
    return [
        f"  {late.alike:,} of {counted(late.count, 'late start')} end idle time of {ms(late.gap_ns)} ms (within 5 %): "
        f"{ms(late.late_ns + late.other_ns)} ms in all, {ms(late.other_ns)} ms of it before the launch calls had "
        "returned.",
        "  Ops begin as regularly on a GPU that another process shares in time slices: look with nvidia-smi, record "
        "without that process.",
    ]


def _first(evidence: dict[str, int]) -> str:
    """Return what most of the time goes to."""
    text, ns = next(iter(evidence.items()), ("", 0))
    return f"{shortened(text, _EVIDENCE)} ({ms(ns)} ms)" if text else ""


def _steps(steps: Sequence[StepTime]) -> Table:
    rows = []
    for step in steps:
        for one in step.gpu:
            cause, ns = max(one.idle_by_cause_ns.items(), key=lambda item: item[1], default=("", 0))
            whole = one.to_ns - one.from_ns
            rows.append((step.name, str(one.device), ms(whole), percent(whole - one.idle_ns, whole), cause, ms(ns)))
    return Table(rows, ("step", "device", "ms", "busy", "idle most by", "idle ms"), "<>>><>", spare=("device",))
