"""What each device of a rank spent its time on, in all and step by step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from graphlink import spans
from graphlink.causes import CAUSES, NAMES, OF_DEVICES, Cause
from graphlink.gpu.busy import Busy, busy, by_group, by_stream, over_time, own_clock_ns, parts, share
from graphlink.gpu.causes import BEFORE_WINDOW, BEHIND_GRAPH, NOT_RECORDED, Hosts, explain
from graphlink.gpu.records import DeviceTime, Excess, Idle, IdleEntry, IdleFile, Iterations, StepTime
from graphlink.graph_model import NO_COLUMN, Column, Graph
from graphlink.linking.launch import BEFORE_WINDOW as LAUNCHED_BEFORE
from graphlink.linking.launch import behind_graphs
from graphlink.model import EMPTY, I32, I64, NOWHERE, Communication, Linked, Trace
from graphlink.patterns import GRAPH_LAUNCH, fits
from graphlink.perfetto.packets import SUMMARY, Arg, Rows, Track
from graphlink.perfetto.slices import flat
from graphlink.records import Short, counted, ms
from graphlink.steps import Steps, steps_of
from graphlink.tables import MOST, spread

_BY_NODE: Final = "nsys --cuda-graph-trace=node records every op of a graph"
_MOST_BYTES: Final = 1 << 20  # of the report of a capture
_LEAST_BARE: Final = 3  # steps, of which the median is no outlier
_MUCH: Final = 0.05  # of a device's idle time: a reason of unknown time with more of it is warned of
_UNSURE: Final = (
    ((BEHIND_GRAPH,), "between ops of graph launches: where ops of a graph are not recorded, the GPU was not idle"),
    (
        (LAUNCHED_BEFORE, BEFORE_WINDOW),
        "before ops that were launched before the recording, or waited for what was: nothing tells why they began late "
        "(torch.cuda.synchronize() before the first recorded step)",
    ),
    ((NOT_RECORDED,), "before ops whose launch calls are not recorded: nothing tells what their host did"),
)


class GraphLaunches(NamedTuple):
    """Launches of graphs: when each began (ascending, on the host's clock), all and those that own device ops.

    ``only``: the device of these ops, or the only one; None where there are several, as nothing tells which of them ran
    the others.
    """

    every_ns: I64
    recorded_ns: I64
    only: int | None

    def within(self, device: int | None, start_ns: I64, end_ns: I64) -> list[tuple[int, int] | UnsetType]:
        """Return how many that began in each window are recorded, and how many there are, as ``DeviceTime`` has it."""
        if device is None or device != self.only or len(self.recorded_ns) == len(self.every_ns):
            return [UNSET] * len(start_ns)
        recorded, every = (
            (np.searchsorted(ns, end_ns) - np.searchsorted(ns, start_ns)).tolist()
            for ns in (self.recorded_ns, self.every_ns)
        )
        return [(some, count) if count else UNSET for some, count in zip(recorded, every, strict=True)]


class GpuTime(Short, msgspec.Struct, frozen=True):
    """The time of each device, of each step, and each device's idle time, by number; times since the start of the
    graph.

    ``warnings``: where idle time may be none, as graph launches were recorded in part.
    """

    gpu: tuple[DeviceTime, ...]
    steps: tuple[StepTime, ...]
    iterations: Iterations | None
    idle: tuple[tuple[int, Idle], ...]
    launched: GraphLaunches
    warnings: tuple[str, ...] = ()


def gpu_time(
    graph: Graph,
    linked: Linked,
    comm: Communication,
    late: Column | None = None,
    excluded: Column = NO_COLUMN,
) -> GpuTime:
    """Measure what each device of a rank was busy with, and find why it was idle. O(n log n) in rows.

    ``late``: for how long communication nodes ran until the last rank came; ``excluded``: of those in which that counts
    in no sum.
    """
    devices, cut = [*busy(linked, comm)], steps_of(linked)
    hosts = Hosts(graph, linked, late)
    gpu, idle, launched = [], [], _graph_launches(linked, {one.device for one in devices})
    by_step: list[list[DeviceTime]] = [[] for _ in cut.names]
    for one in devices:
        start_ns, end_ns = _on(one, linked, cut.start_ns), _on(one, linked, cut.end_ns)
        end_ns = np.maximum(start_ns, end_ns)  # a clock may be set back within a step, by more than that lasts
        first, last = int(one.start_ns[0]), int(one.end_ns.max())
        why = explain(hosts, one, int(start_ns.min(initial=first)), int(end_ns.max(initial=last)))
        waits = _waits(one, linked, graph.row[excluded.node], excluded.value)
        (whole,) = _times(one, why, waits, np.array([first]), np.array([last]), graph.epoch_ns)
        groups, streams = by_group(one, linked, comm) or UNSET, by_stream(one, linked, first, last)
        over = over_time(one, why, first, last)
        (replays,) = launched.within(one.device, np.array([-MOST]), np.array([MOST]))
        gpu.append(msgspec.structs.replace(whole, by_group=groups, by_stream=streams, over_time=over, replays=replays))
        in_steps = launched.within(one.device, cut.start_ns, cut.end_ns)
        for times, step, replays in zip(
            by_step, _times(one, why, waits, start_ns, end_ns, graph.epoch_ns), in_steps, strict=True
        ):
            times.append(msgspec.structs.replace(step, replays=replays))
        inside = spans.within(why, first, last)
        times_ns = {name: getattr(inside, name) - graph.epoch_ns for name in ("start_ns", "end_ns")}
        idle.append((one.device, replace(inside, **times_ns)))
    steps = [
        StepTime(name=name, start_ns=start - graph.epoch_ns, end_ns=end - graph.epoch_ns, gpu=times)
        for name, start, end, times in zip(cut.names, cut.start_ns.tolist(), cut.end_ns.tolist(), by_step, strict=True)
    ]
    unsure = [text for device, why in idle for text in _unsure(device, why, by_node=_by_node(linked))]
    bursts = [text for one in devices for text in _burst(one, linked)]
    warnings = (*_bare_graph_launches(linked, launched), *bursts, *unsure)
    told = iterations(cut, steps, (_periods_ns(one, linked, cut) for one in devices))
    return GpuTime(tuple(gpu), tuple(steps), told, tuple(idle), launched, warnings)


def _periods_ns(one: Busy, linked: Linked, cut: Steps) -> I64:
    """Return how long after the first op of each step, but the first and the last, that of the next began on a device;
    nothing where a step launched none."""
    call = linked.device_call[one.rows]
    step = np.searchsorted(cut.start_ns, np.append(linked.trace.calls.start_ns, spans.NEVER)[call], side="right") - 1
    number, first = np.unique(step, return_index=True)
    began_ns = one.start_ns[first[number >= 0]]
    return np.diff(began_ns)[1:] if len(began_ns) == len(cut.names) else began_ns[:0]


def iterations(cut: Steps, steps: Sequence[StepTime], periods: Iterable[I64] = ()) -> Iterations | None:
    """Sum up the ``steps`` that were found as ``cut`` says; None where there are none. ``periods``: on each device."""
    if not steps:
        return None
    took_ns = cut.end_ns - cut.start_ns
    told = Iterations(key=cut.key, found_by=cut.found_by, count=len(steps), first_ns=int(took_ns[0]))
    others = took_ns[1:]
    if not len(others):
        return told
    slowest = 1 + int(others.argmax())
    usual_ns = np.delete(others, slowest - 1)
    most_ns = max(int(others.max()), int(np.diff(cut.start_ns)[1:].max(initial=0)))  # with what lies between steps
    most_ns += max(int(others.max() - others.min()), round(_MUCH * float(others.mean())))
    behind_ns = [float(np.median(ns)) for ns in periods if len(ns) and ns.min() > most_ns]
    slower = not len(usual_ns) or others.max() - usual_ns.mean() > usual_ns.std()  # not by their spread alone
    return msgspec.structs.replace(
        told,
        mean_ns=round(float(others.mean())),
        spread_ns=round(float(others.std())),
        median_ns=round(float(np.median(others))),
        shortest_ns=int(others.min()),
        longest_ns=int(others.max()),
        slowest=slowest if slower else None,
        on_device_ns=round(max(behind_ns)) if behind_ns else UNSET,
        why=_why(steps[slowest], [step for k, step in enumerate(steps) if k not in (0, slowest)]) if slower else [],
    )


class _Captured(msgspec.Struct):
    bare_ns: dict[str, list[int]] = {}


def bare_ns(kineto: Path | None, rank: int) -> int | UnsetType:
    """Return the median of the steps of which nothing was recorded, as ``graphlink.capture`` kept them beside the
    recording of a rank; UNSET where it kept fewer than three, and where no such file is there."""
    if kineto is None:
        return UNSET
    try:
        with (kineto.parent / f"capture.{rank}.json").open("rb") as file:
            kept = msgspec.json.decode(file.read(_MOST_BYTES), type=_Captured).bare_ns
    except (OSError, msgspec.DecodeError):
        return UNSET
    steps = [ns for side in kept.values() for ns in side if ns > 0]
    return round(median(steps)) if len(steps) >= _LEAST_BARE else UNSET


def _why(slowest: StepTime, others: Sequence[StepTime]) -> list[Excess]:
    more = (
        Excess(device=mine.device, what=what, ns=ns - round(median(_losses(step.gpu[k])[what] for step in others)))
        for k, mine in enumerate(slowest.gpu)
        for what, ns in _losses(mine).items()
        if others
    )
    return sorted((one for one in more if one.ns > 0), key=lambda one: -one.ns)


def _losses(one: DeviceTime) -> Counter[str]:
    busy = {"compute": one.compute_ns, "exposed_comm": one.exposed_comm_ns, "exposed_copy": one.exposed_copy_ns}
    return Counter({**busy, **one.idle_by_cause_ns})


def _graph_launches(linked: Linked, devices: set[int]) -> GraphLaunches:
    calls = linked.trace.calls
    named = fits(GRAPH_LAUNCH, linked.trace.strings)[calls.name]
    ran = behind_graphs(linked)
    owning = np.unique(linked.device_call[ran])
    ran_on = {*linked.trace.device.device[ran].tolist()} or devices
    only = ran_on.pop() if len(ran_on) == 1 else None
    return GraphLaunches(np.sort(calls.start_ns[named]), np.sort(calls.start_ns[owning]), only)


def _bare_graph_launches(linked: Linked, launched: GraphLaunches) -> list[str]:
    """Return a warning where some graph launches own device ops and others none: what those ran was not recorded."""
    owning, launches = len(launched.recorded_ns), len(launched.every_ns)
    if owning == launches:
        return []
    return [
        f"{launches - owning:,} of {counted(launches, 'graph launch call')} own no device op: what they ran is not "
        f"recorded, and GPUs count as idle meanwhile{_by_node(linked)}"
    ]


def _burst(one: Busy, linked: Linked) -> list[str]:
    """Return a warning where a device ran little but one replay of a graph, in less than half of its time: the others
    may not be recorded.
    """
    row = np.flatnonzero(behind_graphs(linked)[one.rows])
    if 2 * len(row) <= len(one.rows) or len(np.unique(linked.device_call[one.rows[row]])) > 1:
        return []
    replay_ns, whole_ns = (int(one.end_ns[of].max() - one.start_ns[of[0]]) for of in (row, np.arange(len(one.rows))))
    told = (
        f"GPU {one.device}: one replay of a graph is recorded, {counted(len(row), 'device op')} within "
        f"{ms(replay_ns)} of {ms(whole_ns)} ms: what its other replays ran may not be recorded, and counts as idle time"
    )
    return [told] if 2 * replay_ns < whole_ns else []


def _by_node(linked: Linked) -> str:
    """Return the hint how ops of graphs are recorded; nothing without graphs that nsys can record."""
    found = [GRAPH_LAUNCH.match(text) for text in linked.trace.strings]
    return f" ({_BY_NODE})" if any(one is not None and one[1] != "hip" for one in found) else ""


def _unsure(device: int, why: Idle, *, by_node: str) -> list[str]:
    """Return a warning for each reason for which much of a device's idle time is of no known cause."""
    ns, unknown = why.end_ns - why.start_ns, why.cause == Cause.UNKNOWN
    lost = [(int(ns[unknown & np.isin(why.texts, texts)[why.evidence]].sum()), texts, what) for texts, what in _UNSURE]
    return [
        f"GPU {device}: {ms(mine)} of {ms(int(ns.sum()))} ms of idle time lie "
        f"{what}{by_node if BEHIND_GRAPH in texts else ''}"
        for mine, texts, what in lost
        if mine > _MUCH * int(ns.sum())
    ]


def _on(one: Busy, linked: Linked, at_ns: I64) -> I64:
    """Return times of the host on a device's own clock: its offset is that of the first op after each."""
    offset = own_clock_ns(linked)[one.rows]
    return at_ns + offset[np.minimum(np.searchsorted(one.start_ns, at_ns), len(offset) - 1)]


def _waits(one: Busy, linked: Linked, row: I32, wait_ns: I64) -> spans.Spans:
    """Return when device rows waited, each from its start on, on a device's own clock, and that computed meanwhile."""
    begin_ns = (linked.trace.device.start_ns + own_clock_ns(linked))[row]
    mine = np.isin(row, one.rows)
    return spans.union(
        np.append(begin_ns[mine], one.compute.start_ns), np.append((begin_ns + wait_ns)[mine], one.compute.end_ns)
    )


def _times(one: Busy, why: Idle, waits: spans.Spans, from_ns: I64, to_ns: I64, epoch_ns: int) -> Iterator[DeviceTime]:
    """Yield the time of a device in windows, ascending; ``waits``: when it computed, or waited in what is excluded."""
    columns = (from_ns, to_ns, spans.overlap_ns(waits, from_ns, to_ns), *parts(one, from_ns, to_ns))
    for low, high, waited, compute, working, any_, comm, copies, beside, filled in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        part = spans.within(why, low, high)
        spent = np.bincount(part.cause, part.end_ns - part.start_ns, len(Cause)).astype(np.int64)[[*OF_DEVICES]]
        yield DeviceTime(
            device=one.device,
            from_ns=low - epoch_ns,
            to_ns=high - epoch_ns,
            compute_ns=compute,
            exposed_comm_ns=working - compute,
            exposed_copy_ns=any_ - working,
            idle_ns=high - low - any_,
            comm_ns=comm,
            copy_ns=copies,
            idle_by_cause_ns={name: ns for name, ns in zip(CAUSES, spent.tolist(), strict=True) if ns},
            excluded_ns=waited - compute or UNSET,
            utilisation=share(any_, high - low),
            est_sm_efficiency=UNSET if math.isnan(filled) else round(filled, 6),
            hidden_share=share(comm - (working - compute), comm),
            hta_overlap_share=share(beside, comm),
        )


# what is written of idle time: a row of the timeline for each device, and ``idle.<rank>.json``


def idle_rows(found: GpuTime) -> Rows:
    """Return the idle intervals of all devices, on the host's clock like all else of the timeline. Linear."""
    idle = [one for _, one in found.idle]

    def column(name: str) -> I64:
        return np.concatenate([EMPTY, *(getattr(one, name) for one in idle)])

    track = np.repeat(np.arange(len(idle), dtype=np.int32), [len(one.start_ns) for one in idle])
    shift, name = column("shift_ns"), spread(len(Cause), np.array(OF_DEVICES), np.arange(len(CAUSES), dtype=np.int32))
    # texts grow from device to device, those of the last are all
    said = [] if not idle else [Arg("evidence", np.arange(len(track)), column("evidence"), idle[-1].texts)]
    return Rows(
        tuple(Track(0, f"GPU {device} idle", order=SUMMARY) for device, _ in found.idle),
        flat(track, column("start_ns") - shift, column("end_ns") - shift, name[column("cause")]),
        CAUSES,
        tuple(said),
    )


def blocks(rank: int, found: GpuTime, trace: Trace) -> Iterator[bytes]:
    """Yield the file, an interval a line. ``trace``: the recording, which names the ops."""
    gpu = [msgspec.structs.replace(one, over_time=UNSET) for one in found.gpu]  # the intervals below tell more
    head = msgspec.json.encode(IdleFile(rank=rank, gpu=gpu, steps=list(found.steps), idle=[]))
    yield head.removesuffix(b"]}")
    encode, before = msgspec.json.Encoder().encode, b"\n"
    for device, idle in found.idle:
        columns = (column.tolist() for column in (idle.start_ns, idle.end_ns, idle.cause, idle.evidence, idle.row))
        for start, end, cause, text, row in zip(*columns, strict=True):
            entry = IdleEntry(
                device=device,
                start_ns=start,
                end_ns=end,
                cause=NAMES[cause],
                evidence=idle.texts[text],
                op=UNSET if row == NOWHERE else trace.strings[trace.device.name[row]],
                stream=UNSET if row == NOWHERE else int(trace.device.stream[row]),
            )
            yield before + encode(entry)
            before = b",\n"
    yield b"]}\n"
