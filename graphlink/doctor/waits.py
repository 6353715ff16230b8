"""What a recording does not say of waits: which are inferred, and which nothing explains. The numbers are those of ``summary.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from graphlink.depend.build import Built, FoundWaits
from graphlink.depend.hostcomm import WAIT_RANGE
from graphlink.doctor.kineto import bounds
from graphlink.doctor.records import Finding, Kind, if_any
from graphlink.graph.critical import critical_path, shares
from graphlink.graph.durations import cost_ns
from graphlink.link.call_roles import Role
from graphlink.model import Bool, Communication, FoundBy, Linked, SyncKind
from graphlink.replay.ideal import replay
from graphlink.standstill.standstill import stood_still

_COST: Final = (
    "{inferred} waits in the graph are inferred from when things ended; {explained} of {calls} synchronisation calls are explained so; "
    "{unexplained} calls blocked {unexplained_ms} ms for something unknown; {waits} event waits show by the order of calls around "
    "communication, else only where an op started late"
)
NO_SYNC = Kind(
    "no-cuda-sync",
    "inferred",
    "no cuda_sync rows",
    _COST,
    "profile(experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))",
    by_capture=True,
)
NO_HIP_SYNC = Kind(
    "no-hip-sync",
    "inferred",
    "no rows that tell what HIP calls waited for",
    _COST,
    "nothing yet: ROCm's profilers write no such rows",
)
NO_NSYS_SYNC = Kind(
    "nsys-no-sync",
    "inferred",
    "no synchronisation rows in the export",
    _COST,
    "nsys profile --trace=cuda --cuda-event-trace=true, exported without leaving tables out",
)
GAPS = Kind(
    "cuda-sync-gaps",
    "inferred",
    "{without} of {calls} synchronisation calls have no row that tells what they waited for",
    "{inferred} waits are inferred from when things ended; {unexplained} calls blocked {unexplained_ms} ms for something unknown",
    "a newer PyTorch: until February 2024 rows of cudaEventSynchronize were left out (kineto pull request 862), and rows of streams "
    "without work still are (kineto issue 904)",
)
NO_RECORDS = Kind(
    "no-event-records",
    "inferred",
    "none of {rows} rows of event waits names the cudaEventRecord that was waited for",
    "no event edges come of them; {inferred} waits in the graph are inferred from when things ended",
    "a PyTorch built for CUDA 12.8 or older, or with kineto pull request 1552: since CUDA 12.9 Kineto does not see event records "
    "(before September 2023 it did not write them)",
)
SOME_RECORDS = Kind(
    "event-records-outside",
    "inferred",
    "{unnamed} of {rows} rows of event waits name no cudaEventRecord of the recording",
    "no event edges come of them, which is right where the event was never recorded",
    "torch.cuda.synchronize() before the first recorded step, so that nothing waits for a record before it",
    by_capture=True,
)
NO_NSYS_RECORDS = Kind(
    "nsys-no-event-records",
    "inferred",
    "{unnamed} of {rows} rows of event waits belong to no recorded event",
    "no event edges come of them; {inferred} waits in the graph are inferred from when things ended",
    "nsys profile --trace=cuda --cuda-event-trace=true, exported whole: a window cut out of an export loses its events",
)
LONE_ROWS = Kind(
    "cuda-sync-without-calls",
    "lost",
    "{lone} of {rows} cuda_sync rows have no API call",
    "no sync edge comes of them",
    "torch.cuda.synchronize() before the first recorded step; the file as the profiler wrote it, with its cuda_runtime rows",
    by_capture=True,
)
HOST_COMM = Kind(
    "host-comm",
    "inferred",
    "{comms} operations of gloo, and who waited for them is not all recorded",
    "waits are inferred where the next row begins soon after one ended; {late} operations were pending {late_ms} ms that stay host time",
    f"a record_function('{WAIT_RANGE}') around each wait for gloo (graphlink.capture does so for those in Python); NCCL's kernels show it",
)
STANDSTILL: Final = Kind(
    "standstill",
    "inferred",
    "{unexplained_ms} ms stood still and no edge says why",
    "{calls_ms} ms in calls and {threads_ms} ms of silent threads are work in the graph and do not shrink with what they waited for; "
    "device ops begin {streams_ms} ms late",
    "what is said of each piece",
)
EXPLAINED_SHARE: Final = 0.95  # of calls and of threads, from which on the rest is not told
_BLOCKING: Final = (Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC)


def waits_lacking(linked: Linked, found: FoundWaits, built: Built, comms: int, *, nsys: bool) -> Iterator[Finding]:
    """``comms``: host-side communication ops; ``nsys``: of an export, else of a Kineto trace."""
    trace, role = linked.trace, found.cuda.role
    calls, syncs = trace.calls, trace.syncs
    from_ns, until_ns = bounds(trace)
    if comms and (built.untold.comms or WAIT_RANGE not in trace.strings):
        late, late_ns = built.untold.comms, built.untold.comms_ns
        yield Finding(HOST_COMM, _share(late_ns, until_ns - from_ns), {"comms": comms, "late": late, "late_ns": late_ns})
    if not len(trace.device.start_ns):
        return
    blocking = np.isin(role, _BLOCKING)
    inferred_calls = found.dependencies.host.call[(found.dependencies.host.found_by & FoundBy.INFERRED) != 0]
    took_ns = int((calls.end_ns - calls.start_ns)[blocking].sum())
    figures = {
        "calls": int(np.count_nonzero(blocking)),
        "explained": int(np.count_nonzero(blocking & np.isin(np.arange(len(role)), inferred_calls))),
        "inferred": built.sync.by_source["inferred"],
        "unexplained": built.untold.calls,
        "unexplained_ns": built.untold.calls_ns,
        "waits": int(np.count_nonzero(role == Role.STREAM_WAIT)),
    }
    share = _share(took_ns, until_ns - from_ns)
    if not len(syncs.kind):
        yield Finding(_no_rows(linked, nsys=nsys), share, figures, parts=_names(linked, blocking))
        return
    yield from if_any(LONE_ROWS, {"lone": found.cuda.rows_without_call, "rows": len(syncs.kind)}, len(syncs.kind))
    of_event = np.isin(syncs.kind, (SyncKind.EVENT, SyncKind.STREAM_WAIT))
    unnamed = int(np.count_nonzero(of_event & ~syncs.record_known))
    if unnamed:
        rows = int(np.count_nonzero(of_event))
        kind = NO_NSYS_RECORDS if nsys else NO_RECORDS if unnamed == rows else SOME_RECORDS
        yield Finding(kind, unnamed / rows, {"unnamed": unnamed, "rows": rows, "inferred": figures["inferred"]})
    without = blocking & ~found.cuda.told_call
    if figures["unexplained"] or (figures["inferred"] and without.any()):
        missing = int(np.count_nonzero(without))
        yield Finding(GAPS, missing / max(figures["calls"], 1), figures | {"without": missing}, parts=_names(linked, without))


def standing_lacking(built: Built, linked: Linked, comm: Communication) -> Iterator[Finding]:
    """The standstill that ``summary.json`` tells of, where less than 95 % of that of calls or of threads is explained, or it warns."""
    graph = built.graph
    cost = cost_ns(graph)
    path = critical_path(graph, replay(graph, cost).end_ns, cost, shares(graph, linked, comm))
    stood = stood_still(built, linked, path)
    found = stood.standstill
    parts = {"calls": found.calls, "threads": found.threads, "streams": found.streams}
    rests = {name: part.ns - part.explained_ns for name, part in parts.items()}
    share = max(_share(rests["calls"], found.calls.ns), _share(rests["threads"], found.threads.ns))
    if share > 1 - EXPLAINED_SHARE or stood.warnings:
        figures = {"unexplained_ns": sum(rests.values()) + stood.beside_ns} | {f"{name}_ns": ns for name, ns in rests.items()}
        pieces = tuple(f"{p.ns / 1e6:,.3f} ms at {p.start_ns / 1e6:,.3f} ms, {p.what}: {p.record}" for p in found.largest)
        yield Finding(STANDSTILL, share, figures, told=(*stood.warnings, *pieces))


def _no_rows(linked: Linked, *, nsys: bool) -> Kind:
    if nsys:
        return NO_NSYS_SYNC
    used = np.unique(linked.trace.calls.name)
    return NO_HIP_SYNC if any(linked.trace.strings[k].startswith("hip") for k in used.tolist()) else NO_SYNC


def _names(linked: Linked, which: Bool) -> dict[str, int]:
    names = linked.trace.calls.name[which]
    return dict(Counter(linked.trace.strings[k] for k in names.tolist()).most_common())


def _share(part_ns: int, whole_ns: int) -> float:
    return min(part_ns / whole_ns, 1.0) if whole_ns else 0.0
