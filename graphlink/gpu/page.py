"""GPU time by cause, by rank and by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET

from graphlink.causes import CAUSES
from graphlink.figures import column, columns, declared
from graphlink.gpu.fact import main_fact
from graphlink.gpu.phases import Phase
from graphlink.gpu.records import DeviceTime, GroupTime, IdleEntry
from graphlink.gpu.table import (
    CauseTime,
    RankIdle,
    late_lines,
    rank_idle,
    replay_words,
    replays_column,
    wait_lines,
)
from graphlink.page.charts import LOOKS
from graphlink.page.found import Found
from graphlink.page.parts import (
    Bar,
    Bars,
    Cell,
    Figure,
    Folded,
    Heat,
    Part,
    Section,
    Segment,
    Sentence,
    Table,
    Words,
)
from graphlink.page.sections import MOST_GROUPS, more_groups
from graphlink.page.words import entries, share_of_one, table
from graphlink.records import counted, shortened, time
from graphlink.report.summary import Rank

MOST_BARS: Final = 16
MOST_ROWS: Final = 100  # of a table of a rank
BUSY: Final = {"compute": "compute_ns", "exposed_communication": "exposed_comm_ns", "exposed_copy": "exposed_copy_ns"}


def gpu_time(found: Found) -> Section | None:
    """Return the section; None without GPUs."""
    if not found.has_gpus:
        return None
    devices = [(rank, one.counting()) for rank in found.ranks for one in rank.gpu]
    shown = [pair for pair in devices if pair[0].rank in found.told] if len(devices) > MOST_BARS else devices
    parts: list[Part] = []
    if len(devices) > len(shown):
        parts.append(_heat(devices))
        parts += _steps_heat(found.ranks)
    parts.append(_bars(shown, found, len(devices)))
    if len(devices) > 1:
        parts.append(_devices(found))
    parts += _phases(found)
    parts += [part for number in found.told for part in _told(found, number)]
    bare = [f"{rank.rank}" for rank in found.ranks if not rank.gpu]
    parts += [Sentence([f"No device ops were recorded on rank {', '.join(bare[:8])}."], note=True)] if bare else []
    return Section("gpu", "GPU time by cause", parts)


def _phases(found: Found) -> list[Part]:
    """Return the steps of prefill and decode, of ranks that serve."""
    some = entries(found.ranks, "phases")[:MOST_ROWS]
    ranks = column("rank", "number", [rank.rank for _, rank, _ in some])
    names = ("phase", "steps", "mean_ns", "longest_ns", "gpu_ns", "idle_ns", "idle_share")
    recorded = replays_column([phase for *_, phase in some])
    shown = columns(Phase, [phase for *_, phase in some], ranks, *names, *recorded, "mean_batch", "tokens")
    return [table("phases", "Phases of serving", shown, "summary.json#/ranks", rows=some)] if some else []


def segments(one: DeviceTime) -> list[Segment]:
    """Return the time of a device: what it was busy with, then the causes of its idle time, in the order of the
    causes.
    """
    busy = [Segment(key, getattr(one, field)) for key, field in BUSY.items()]
    return [*busy, *(Segment(cause, one.idle_by_cause_ns[cause]) for cause in CAUSES if cause in one.idle_by_cause_ns)]


def _bars(devices: Sequence[tuple[Rank, DeviceTime]], found: Found, every: int) -> Bars:
    order = sorted(devices, key=lambda pair: -pair[1].idle_ns / (pair[1].to_ns - pair[1].from_ns or 1))
    bars = [
        Bar(
            f"rank {rank.rank}{f', GPU {one.device}' * (len(rank.gpu) > 1)}",
            segments(one),
            time(one.whole_ns) + replay_words(one),
        )
        for rank, one in order
    ]
    return Bars(
        "gpu-by-rank",
        f"GPU time by rank{f', {len(devices)} of {every}' * (every > len(devices))}",
        "From the first to the last op of each GPU, the most idle first"
        + ", without waiting that is excluded" * any(one.excluded_ns for rank in found.ranks for one in rank.gpu)
        + ". After compute, communication and copies: "
        "why it was idle.",
        bars,
    )


def _heat(devices: Sequence[tuple[Rank, DeviceTime]]) -> Heat:
    """Return the share of each part and cause on all GPUs, a column each."""
    keys = [
        key
        for key in (*BUSY, *CAUSES)
        if any(one.value for _, gpu in devices for one in segments(gpu) if one.key == key)
    ]
    of = [{one.key: one.value / (gpu.whole_ns or 1) for one in segments(gpu)} for _, gpu in devices]
    return Heat(
        "gpu-heat",
        f"What all {len(devices)} GPUs spent their time on",
        "Each column is a GPU, each row what it was busy with or why it was idle, as a share of its time: the darker, "
        "the more.",
        [LOOKS[key].words for key in keys],
        [str(rank.rank) for rank, _ in devices],
        "rank",
        [[one.get(key, 0.0) for one in of] for key in keys],
        "share",
    )


def _steps_heat(ranks: Sequence[Rank]) -> Iterator[Heat]:
    """Yield how long each step took on each rank, where all have the same few steps."""
    names = [step.name for step in ranks[0].steps]
    if not 1 < len(names) <= 32 or any([step.name for step in rank.steps] != names for rank in ranks):
        return
    values: list[list[int | float | None]] = [
        [rank.steps[k].end_ns - rank.steps[k].start_ns for rank in ranks] for k in range(len(names))
    ]
    yield Heat(
        "steps-heat",
        "How long each step took on each rank",
        "Each column is a rank, each row a step: the darker, the longer it took.",
        names,
        [str(one.rank) for one in ranks],
        "rank",
        values,
    )


def _busy(gpus: Sequence[DeviceTime]) -> list[str]:
    """Return the fields of the sorts of busy time that any of these has."""
    return [field for field in BUSY.values() if any(getattr(gpu, field) for gpu in gpus)]


def _devices(found: Found) -> Table:
    every = entries(found.ranks, "gpu")
    every.sort(key=lambda entry: -(entry[-1].idle_ns / (entry[-1].idle_share[1] or 1)))
    gpus = [gpu.counting() for *_, gpu in every]
    ranks = column("rank", "number", [rank.rank for _, rank, _ in every])
    known = [
        name for name in ("est_sm_efficiency", "hidden_share") if any(getattr(gpu, name) is not UNSET for gpu in gpus)
    ]
    shown = columns(
        DeviceTime,
        gpus,
        ranks,
        "device",
        "whole_ns",
        *_busy(gpus),
        "idle_ns",
        "idle_share",
        *replays_column(gpus),
        "mostly",
        *known,
    )
    return table("gpus", "All GPUs, the most idle first", shown, "summary.json#/ranks", rows=every)


def _told(found: Found, number: int) -> list[Part]:
    """Return causes, steps and the longest intervals of a rank."""
    told = rank_idle(found.parts["gpu"][number], MOST_ROWS, found.summary.run)
    if not told.gpu:
        return []
    why = f" ({found.told[number]})" if found.told[number] else ""
    waited = [] if told.waited is UNSET else wait_lines(told.waited)
    late = [line for one in told.late_starts if one for line in late_lines(one)]
    lines = [line.strip().removesuffix(".") for line in [*waited, *late]]
    parts: list[Part] = [
        _utilisation(found, number),
        *(Sentence([f"{line[0].upper()}{line[1:]}."]) for line in lines),
    ]
    parts += [_causes(found, told), *_steps(found, found.rank(number)), _longest(found, told)]
    return [Folded(f"Rank {number}{why}: why it was idle", parts, open=number == next(iter(found.told)))]


def _utilisation(found: Found, number: int) -> Sentence:
    """Tell how much of its time each GPU of a rank worked, and how much of it its kernels can fill."""
    out: Words = []
    gpus = found.rank(number).gpu
    for k, one in enumerate(gpus):
        at = f"summary.json#/ranks/{found.at[number]}/gpu/{k}"
        who = "The GPU" if len(gpus) == 1 else f"GPU {one.device}"
        if one.utilisation is not UNSET:
            out += [
                f"{' ' if out else ''}{who} worked for ",
                share_of_one(one.utilisation, "utilisation", f"{at}/utilisation"),
                f" of its time{replay_words(one)}",
            ]
            if one.est_sm_efficiency is not UNSET:
                fills = share_of_one(one.est_sm_efficiency, "sm_efficiency", f"{at}/est_sm_efficiency")
                out += ["; while kernels ran, SM efficiency was ", fills, " (estimated)"]
            out.append(".")
    return Sentence(out)


def _causes(found: Found, told: RankIdle) -> Table:
    every = [
        (f"/{j}/idle_by_cause_ns/{cause.cause}", gpu, cause)
        for j, gpu in enumerate(told.gpu)
        for cause in told.causes[j]
    ]
    most = [next(iter(cause.evidence.items()), ("", 0)) for *_, cause in every]
    first = [Cell(f"{shortened(text)} ({time(ns)})" if text else "", whole=text) for text, ns in most]
    shown = columns(
        CauseTime,
        [cause for *_, cause in every],
        "cause",
        column("GPU", "number", [gpu.device for _, gpu, _ in every]),
        "ns",
        column("of idle", "part", [(cause.ns, gpu.idle_ns) for _, gpu, cause in every], means="idle"),
        "intervals",
        "meaning",
        column("most by", "text", first, means="evidence"),
    )
    at = f"summary.json#/ranks/{found.at[told.rank]}/gpu"
    return table(f"causes-{told.rank}", f"Causes of the idle time of rank {told.rank}", shown, at, rows=every)


def _steps(found: Found, rank: Rank) -> Iterator[Part]:
    """Yield the steps of a rank as bars and as a table."""
    steps = entries(rank.steps, "gpu")
    if not steps:
        yield Sentence(["The recording marks no steps on this rank."], note=True)
        return
    longest = sorted(steps, key=lambda entry: entry[1].start_ns - entry[1].end_ns)[:MOST_BARS]
    few = [entry for entry in steps if entry in longest] if len(steps) > MOST_BARS else steps
    bars = [
        Bar(
            f"{step.name}{f', GPU {one.device}' * (len(rank.gpu) > 1)}",
            segments(one),
            time(one.whole_ns) + replay_words(one),
        )
        for _, step, one in few
    ]
    says = (
        "Each step from its begin to its end; time between two steps belongs to none. Here the GPU is also idle before "
        "its first op of a "
        "step and after its last one, so the share may be larger than that of the whole run."
    )
    if len(few) > 1:
        which = f", the {len(few)} longest of {len(steps)}" if len(steps) > len(few) else ""
        yield Bars(f"steps-{rank.rank}-bars", f"Steps of rank {rank.rank}{which}", says, bars)
    some = steps[:MOST_ROWS]
    gpus = [gpu for *_, gpu in some]
    shown = columns(
        DeviceTime,
        gpus,
        column("step", "text", [step.name for _, step, *_ in some]),
        "device",
        declared(DeviceTime, "whole_ns")._replace(means="step", values=[gpu.whole_ns for gpu in gpus]),
        *_busy([gpu for *_, gpu in steps]),
        "idle_ns",
        "idle_share",
        *replays_column(gpus),
        "mostly",
        column("at", "place", [found.place_cell(rank.rank, step.start_ns) for _, step, *_ in some]),
    )
    more = f"{len(steps) - MOST_ROWS:,} more steps are in summary.json." if len(steps) > MOST_ROWS else ""
    at = f"summary.json#/ranks/{found.at[rank.rank]}/steps"
    yield table(f"steps-{rank.rank}", f"Steps of rank {rank.rank}", shown, at, more, some)


def _longest(found: Found, told: RankIdle) -> Table:
    file, rank = found.parts["gpu"][told.rank], told.rank
    lead = {one.device: sum(one.offset_ns) // 2 for one in found.rank(rank).clock.devices}
    where = {id(entry): k for k, entry in enumerate(file.idle)}
    starts = [found.place_cell(rank, entry.start_ns, lead.get(entry.device, 0)) for entry in told.longest]
    start = declared(IdleEntry, "start_ns")._replace(values=starts)
    shown = columns(IdleEntry, told.longest, "duration_ns", start, "cause", "evidence", "device", "op")
    left = len(file.idle) - len(told.longest)
    more = f"{counted(left, 'shorter interval')} in idle.{rank}.json." if left > 0 else ""
    rows = [(f"/{where[id(entry)]}",) for entry in told.longest]
    return table(
        f"longest-{rank}", f"Longest idle intervals of rank {rank}", shown, f"idle.{rank}.json#/idle", more, rows
    )


def fact_words(found: Found) -> Words:
    """Return the main fact of the run, behind what a step takes."""
    return [" ", *(word if isinstance(word, str) else Figure(*word) for word in main_fact(found.summary))]


def hidden_communication(found: Found) -> list[Part]:
    """Return the communication of each GPU by group, with how much of it is hidden, the most exposed first."""
    every = entries(found.ranks, "gpu", "by_group")
    every.sort(key=lambda entry: -entry[-1].exposed_ns)
    some = every[:MOST_GROUPS]
    shown = columns(
        GroupTime,
        [group for *_, group in some],
        column("rank", "number", [rank.rank for _, rank, *_ in some]),
        column("GPU", "number", [gpu.device for *_, gpu, _ in some]),
        *("name", "ranks", "comm_ns", "exposed_ns", "hidden"),
    )
    caption = "Communication of each GPU by group, the most exposed first"
    return [table("hidden", caption, shown, "summary.json#/ranks", more_groups(len(every)), some)] if some else []
