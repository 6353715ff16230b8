"""What the recordings of one rank lack: rows, ids, times, waits, communication, execution trace, parts of an export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.depend.build import Built, FoundWaits
from graphlink.depend.hostcomm import WAIT_RANGE
from graphlink.doctor.kinds import LOOK
from graphlink.doctor.records import Finding, if_any
from graphlink.graph_model import Graph, NodeKind
from graphlink.linking.call_roles import SYNCS, Role
from graphlink.linking.launch import (
    BEFORE_WINDOW,
    BROKEN,
    NO_CALL,
    NO_CORRELATION,
    STARTS_EARLY,
    launches_without_ops,
    rounding_ns,
    without_clock,
)
from graphlink.linking.provenance import common_names, differences, is_op
from graphlink.model import NOWHERE, Bool, Communication, FoundBy, HostTrace, Linked, SyncKind, Trace
from graphlink.patterns import AUTOGRAD_ENGINE, fits
from graphlink.read.devices import UNPLACED
from graphlink.read.nsys.file import open_export
from graphlink.read.nsys.places import Numbering
from graphlink.read.nsys.ranges import NVTX
from graphlink.read.nsys.report import cut_window
from graphlink.spans import extent, union, within
from graphlink.steps import steps_of
from graphlink.tables import among, begins, how_many, lookup, marked, numbered_rows

_GRAPH_ROW: Final = "CUDA graph"  # begins the name that the reader of exports gives to a row of a whole graph
OVERHEAD_SHARE: Final = 0.01  # of the recorded time, below which the profiler's own cost is not reported
EXPLAINED_SHARE: Final = 0.95  # of calls, of threads and of the time, from which on the rest is not reported
AGAIN: Final = (
    "again on a machine that does nothing else (others take the cores from its threads), with stacks=True "
    "(graphlink.capture) or "
    "with_stack=True, which shows when Python ran; and what the other findings say of each piece"
)


def rows_lacking(linked: Linked, *, nsys: bool) -> Iterator[Finding]:
    """Report which rows are missing, or not linked to others. ``nsys``: of an export, whose host ops are a matter of
    its own.
    """
    trace = linked.trace
    rows, calls, ops = len(trace.host.start_ns), len(trace.calls.start_ns), len(trace.device.start_ns)
    if not rows and not ops:
        yield Finding("empty-recording")
        return
    if not rows and not nsys:
        yield Finding("no-host-rows", figures={"calls": calls, "ops": ops})
    if not ops:
        yield (
            Finding("no-device-rows", figures={"calls": calls})
            if calls
            else Finding("host-only", figures={"rows": rows})
        )
    elif not calls:
        yield Finding("no-calls", figures={"ops": ops})
    for kind, reasons in (
        ("launches-before-window", (BEFORE_WINDOW,)),
        ("launches-missing", (NO_CALL, NO_CORRELATION)),
        ("starts-before-launch", (STARTS_EARLY,)),
    ):
        parts = {reason: linked.orphans[reason] for reason in reasons if ops and calls and reason in linked.orphans}
        yield from if_any(kind, {"orphans": sum(parts.values()), "ops": ops}, ops, parts if len(reasons) > 1 else {})
    if not nsys and trace.graph_deps is None:
        call = numbered_rows(linked.device_call, trace.device.device, trace.device.stream)[0][:, 0]
        several = np.unique(call[~begins(call) & (call != NOWHERE)])
        yield from if_any("graph-order", {"ops": int(np.isin(linked.device_call, several).sum())}, ops)
    lost = launches_without_ops(trace) if ops else {}
    yield from if_any("launches-without-ops", {"calls": sum(lost.values())}, calls, lost)
    for kind in (
        "calls-without-id", "syncs-without-id", "calls-contradicted", "rows-twice", "calls-twice", "repeated-calls",
        "ends-overrun", "ends-late", "ends-beyond", "steps-overlap", "merged-ranks",
    ):  # fmt: skip
        yield from if_any(kind, {"rows": trace.mended.get(kind, 0)}, rows + calls + ops)
    yield from if_any("clock-unknown", {"calls": how_many(without_clock(trace))}, calls)
    broken = {reason: count for reason, count in trace.left_out.items() if reason in BROKEN}
    count = sum(broken.values())
    yield from if_any("broken-rows", {"rows": count}, count + rows + calls + ops, broken)
    unplaced = {reason: count for reason, count in trace.left_out.items() if reason.endswith(UNPLACED)}
    count = sum(unplaced.values())
    yield from if_any("unknown-device-rows", {"rows": count}, count + ops, unplaced)


def times_lacking(trace: Trace, linked: Linked) -> Iterator[Finding]:
    """Report what the times do not show, and how much of them the profiler took. ``trace``: as recorded, before its
    calls were cut.
    """
    tables = (trace.host, trace.calls, trace.device)
    rows = sum(len(t.start_ns) for t in tables)
    if rounding_ns(trace) and rows:
        zero = sum(how_many(t.start_ns == t.end_ns) for t in tables)
        yield Finding("integer-us", zero / rows, {"zero": zero, "rows": rows})
    cut = how_many(trace.calls.end_ns != linked.trace.calls.end_ns)
    yield from if_any("calls-overlap", {"calls": cut}, len(trace.calls.end_ns))
    from_ns, until_ns = extent(*tables)
    overhead = trace.overhead
    inside = (overhead.end_ns > from_ns) & (overhead.start_ns < until_ns)
    covered = within(union(overhead.start_ns, overhead.end_ns), from_ns, until_ns)
    took_ns = int((covered.end_ns - covered.start_ns).sum())
    if took_ns >= OVERHEAD_SHARE * (until_ns - from_ns):
        yield from if_any("profiler-overhead", {"overhead_ns": took_ns, "rows": how_many(inside)}, until_ns - from_ns)


def links_lacking(linked: Linked) -> Iterator[Finding]:
    """Report whether forward and backward ops are linked."""
    trace, et = linked.trace, linked.et
    host = trace.host
    engine = fits(AUTOGRAD_ENGINE, trace.strings)[host.name]
    numbered = bool((host.seq_id >= 0).any()) or (et is not None and bool((et.seq_id >= 0).any()))
    if not numbered and not len(trace.flows.fwd_ns):
        yield from if_any("no-backward-links", {"rows": how_many(engine)}, len(engine))
    times = np.unique(host.seq_id[engine & (host.seq_id >= 0)], return_counts=True)[1]
    yield from if_any("backward-twice", {"rows": int(times[times > 1].sum())}, len(engine))


def details_lacking(linked: Linked) -> Iterator[Finding]:
    """Report what the host rows of a Kineto trace do not record, or need not."""
    trace, et = linked.trace, linked.et
    host = trace.host
    rows = len(host.start_ns)
    if not rows:
        return
    with_shapes = np.count_nonzero(host.input_shapes) + (np.count_nonzero(et.input_shapes) if et is not None else 0)
    if not with_shapes:
        yield Finding("no-shapes", figures={"rows": rows})
    if not steps_of(linked).names:
        yield Finding("no-steps", 0.0)


def communication_lacking(comm: Communication) -> Iterator[Finding]:
    """Report ops that stay computation, and groups whose members have to be guessed or cannot be."""
    nodes = len(comm.ops.row)
    yield from if_any("comm-unknown", {"unknown": sum(comm.unknown.values()), "comms": nodes}, nodes, comm.unknown)
    doubtful = {name: ops for name, (ops, _) in comm.doubtful.items()}
    time_ns = sum(ns for _, ns in comm.doubtful.values())
    yield from if_any("comm-doubtful", {"doubtful": sum(doubtful.values()), "time_ns": time_ns}, parts=doubtful)
    if comm.unlisted:
        calls = sum(comm.unlisted.values())
        yield Finding(
            "groups-unknown", calls / nodes, {"groups": len(comm.unlisted), "calls": calls}, parts=comm.unlisted
        )
    yield from if_any(
        "groups-assumed", {"groups": len(comm.assumed)}, told=tuple(name or "(unnamed)" for name in comm.assumed)
    )


def rank_lacking(trace: Trace, comm: Communication, *, distributed: bool) -> Iterator[Finding]:
    """Report what a rank lacks. ``distributed``: other ranks were recorded, or the header of the recording shows that
    there were some.
    """
    if trace.rank is None and (distributed or len(comm.ops.row) or trace.process_groups):
        yield Finding("no-rank")
    odd = tuple(text for text in trace.warnings if text.startswith("distributedInfo: "))
    if odd:
        yield Finding("odd-header", 0.0, told=odd)


def without_et(linked: Linked, comm: Communication) -> Iterator[Finding]:
    """Report a rank of which there is no execution trace, or none that fits."""
    rows, unknown = len(linked.trace.host.start_ns), sum(comm.unknown.values())
    yield Finding("no-et", figures={"rows": rows, "unknown": unknown, "comms": len(comm.ops.row)})
    if rows and len(np.unique(linked.trace.host.rf_id)) < 2:
        yield Finding("no-record-function-ids", 0.0)


def et_lacking(linked: Linked, comm: Communication, et: HostTrace) -> Iterator[Finding]:
    """Report where a rank's execution trace has less, or other, than its device recording."""
    match, rows, nodes = linked.match, len(linked.match.et), how_many(is_op(et))
    matched = how_many(match.et != NOWHERE)
    if match.method == "order":
        yield Finding("matched-by-order", matched / max(rows, 1), {"matched": matched, "rows": rows})
    differing = (*differences(linked.trace, et), *(f"process group {text}" for text in comm.differing))
    if differing:
        yield Finding("et-differs", told=differing)
    names = common_names(linked.trace, et)
    in_kineto, in_et = (
        {names.text[code] for code in np.unique(codes).tolist()} for codes in (names.kineto, names.et[is_op(et)])
    )
    if match.raised:
        yield Finding("et-raised", match.raised / max(rows, 1), {"raised": match.raised, "rows": rows})
    elif not in_et.isdisjoint(match.only_kineto):
        yield Finding("et-partial", 1 - matched / max(rows, 1), {"covered": matched, "rows": rows})
    beyond = sum(match.only_et.values())
    if not in_kineto.isdisjoint(match.only_et):
        yield Finding("et-beyond-window", beyond / max(nodes, 1), {"beyond": beyond, "nodes": nodes})
    if match.misfits:
        yield Finding(
            "et-names-differ", (rows - matched) / max(rows, 1), {"unmatched": rows - matched}, told=match.misfits
        )
    broken = sum(et.left_out.values())
    yield from if_any("et-broken-rows", {"rows": broken}, broken + nodes, et.left_out)


def export_lacking(path: Path, linked: Linked, comm: Communication, numbering: Numbering | None) -> Iterator[Finding]:
    """Report what the export lacks for one (process, device) of it.

    Raises:
        InputError: it cannot be read.
    """
    trace = linked.trace
    ops, orphans = len(trace.device.start_ns), sum(linked.orphans.values())
    with open_export(path) as export:
        if not len(trace.host.start_ns):
            yield Finding("nsys-no-nvtx", figures={"calls": len(trace.calls.start_ns), "ops": ops})
        cut = cut_window(export)
        if cut:
            yield Finding("nsys-cut", orphans / max(ops, 1), {"orphans": orphans, "ops": ops}, told=tuple(cut))
        comms = len(comm.device_row)
        if comms and not any(blobs for _, blobs in export.texts(NVTX, "binaryData", kind="blob")):
            yield Finding("nsys-no-blobs", sum(comm.unknown.values()) / comms, {"comms": comms})
        if not export.epoch_ns:
            yield Finding("nsys-no-session-time", 0.0)
    whole = np.array([s.startswith(_GRAPH_ROW) for s in trace.strings], np.bool_)
    yield from if_any("nsys-graphs-whole", {"ops": how_many(whole[trace.device.name])}, ops)
    if numbering is not None and numbering.world_size is None and (len(numbering.ranks) > 1 or comms):
        yield Finding("nsys-rank-by-order", 0.0)
    odd = tuple(text for text in trace.warnings if text not in cut)
    if odd:
        yield Finding("nsys-odd-rows", 0.0, told=odd)


def waits_lacking(linked: Linked, found: FoundWaits, built: Built, comms: int, *, nsys: bool) -> Iterator[Finding]:
    """Report what is missing to explain waits: which are inferred, and which nothing explains, as ``summary.json`` has
    them. ``comms``: host-side communication ops; ``nsys``: of an export, else of a Kineto trace.
    """
    trace, role = linked.trace, found.cuda.role
    calls, syncs = trace.calls, trace.syncs
    from_ns, until_ns = extent(trace.host, trace.calls, trace.device)
    late, late_ns = built.untold.comms, built.untold.comms_ns
    share = share_of(late_ns, until_ns - from_ns)
    if comms and (share > 1 - EXPLAINED_SHARE or WAIT_RANGE not in trace.strings):
        yield Finding("host-comm", share, {"comms": comms, "late": late, "late_ns": late_ns})
    if not len(trace.device.start_ns):
        return
    blocking = among(role, SYNCS)
    inferred_calls = found.dependencies.host.call[(found.dependencies.host.found_by & FoundBy.INFERRED) != 0]
    took_ns = int((calls.end_ns - calls.start_ns)[blocking].sum())
    figures = {
        "calls": how_many(blocking),
        "explained": how_many(blocking & np.isin(np.arange(len(role)), inferred_calls)),
        "inferred": built.sync.by_source["inferred"],
        "unexplained": built.untold.calls,
        "unexplained_ns": built.untold.calls_ns,
        "waits": how_many(role == Role.STREAM_WAIT),
    }
    share = share_of(took_ns, until_ns - from_ns)
    if not len(syncs.kind):
        kind = "nsys-no-sync" if nsys else "no-hip-sync" if _of_hip(trace) else "no-cuda-sync"
        yield Finding(kind, share, figures, parts=_names(linked, blocking))
        return
    yield from if_any(
        "cuda-sync-without-calls", {"lone": found.cuda.rows_without_call, "rows": len(syncs.kind)}, len(syncs.kind)
    )
    of_event = np.isin(syncs.kind, (SyncKind.EVENT, SyncKind.STREAM_WAIT))
    unnamed = how_many(of_event & ~syncs.record_known)
    if unnamed:
        rows = how_many(of_event)
        kind = "nsys-no-event-records" if nsys else "no-event-records" if unnamed == rows else "event-records-outside"
        yield Finding(kind, unnamed / rows, {"unnamed": unnamed, "rows": rows, "inferred": figures["inferred"]})
    call, record = lookup(calls.correlation, syncs.correlation), lookup(calls.correlation, syncs.record)
    named = (call != NOWHERE) & (record != NOWHERE)
    after = how_many(calls.start_ns[record[named]] > calls.start_ns[call[named]])
    yield from if_any("records-after-waits", {"rows": after}, len(syncs.kind))
    over = np.unique(built.rejected.call[built.rejected.call != NOWHERE])
    blocked_ns = int((calls.end_ns - calls.start_ns)[over].sum())
    rows = len(built.rejected.source)
    yield from if_any("waits-impossible", {"rows": rows, "blocked_ns": blocked_ns}, rows + built.sync.kept)
    without = blocking & ~found.cuda.told_call
    if figures["unexplained"] or (figures["inferred"] and without.any()):
        missing = how_many(without)
        yield Finding(
            "cuda-sync-gaps",
            missing / max(figures["calls"], 1),
            figures | {"without": missing},
            parts=_names(linked, without),
        )


def late_lacking(graph: Graph, linked: Linked) -> Iterator[Finding]:
    """Report device ops that began late for no reason that was recorded, where that is more than 5 % of the time of the
    rank.

    Ops without a launch of their own (not recorded, or behind that of a graph) are other findings.
    """
    first = marked(len(linked.device_call), np.unique(linked.device_call, return_index=True)[1])
    delay = graph.nodes_of(NodeKind.DEVICE_DELAY)
    row = graph.row[delay]
    ns = graph.duration_ns[delay[first[row] & (linked.device_call[row] != NOWHERE)]]  # they do not overlap
    share = share_of(int(ns.sum()), int(graph.end_ns.max(initial=0)))
    if share > 1 - EXPLAINED_SHARE:
        record = LOOK.format("rocm-smi") if _of_hip(linked.trace) else ""
        yield Finding("late-starts", share, {"delays": len(ns), "late_ns": int(ns.sum())}, record=record)


def _of_hip(trace: Trace) -> bool:
    """Tell whether API calls are those of ROCm."""
    return any(trace.strings[k].startswith("hip") for k in np.unique(trace.calls.name).tolist())


def _names(linked: Linked, which: Bool) -> dict[str, int]:
    names = linked.trace.calls.name[which]
    return dict(Counter(linked.trace.strings[k] for k in names.tolist()).most_common())


def share_of(part_ns: int, whole_ns: int) -> float:
    return min(part_ns / whole_ns, 1.0) if whole_ns else 0.0
