"""One rank, from its graph to what the analysis over all ranks wants of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.annotate.pipeline import spans
from graphlink.annotate.pipeline.attribute import attribute
from graphlink.annotate.pipeline.entries import Entries, named_entries
from graphlink.annotate.pipeline.exchanges import Found, exchanges
from graphlink.annotate.pipeline.holds import Segments, segments
from graphlink.annotate.pipeline.infer import inferred_entries
from graphlink.annotate.pipeline.late import Reasons, explained, reasons
from graphlink.annotate.pipeline.records import Cause, Exchanges, Holds, Spans, StageRun
from graphlink.annotate.pipeline.rules import Rule
from graphlink.annotate.pipeline.work import Worked, device_work, host_work
from graphlink.annotate.waits import WaitSlices, before_on_thread, wait_slices
from graphlink.model import I32, NOWHERE, CommKind, Communication, DeviceKind, Graph, Linked


@dataclass(frozen=True, slots=True)
class Staged:
    """``run`` is None where a rank has no pipeline range. ``of_device``: the range of each device row, ``NOWHERE`` for none."""

    run: StageRun | None
    of_device: I32
    warnings: tuple[str, ...]


def stage_run(graph: Graph, linked: Linked, comm: Communication, rank: int, user: Sequence[Rule] = ()) -> Staged:
    """Ranges by name, else inferred from communication and autograd; their work, and what held it back. O(n log n)."""
    device_rows = len(linked.trace.device.start_ns)
    nothing = np.full(device_rows, NOWHERE, np.int32)
    named = named_entries(linked, user)
    warnings = list(named.warnings)
    entries = named.entries
    if entries is None:
        guessed = inferred_entries(linked)
        entries = guessed.entries
        warnings += guessed.warnings
    if entries is None:
        return Staged(None, nothing, tuple(warnings))
    found = exchanges(linked, comm)
    waits = wait_slices(graph, linked, before_on_thread(graph))
    left_out: dict[str, int] = {}
    of_device = nothing
    if device_rows:
        attributed = attribute(linked, entries)
        worked = device_work(linked, comm, entries, attributed)
        mine = attributed.entry != NOWHERE
        of_device = nothing.copy()
        of_device[mine] = worked.of_entry[attributed.entry[mine]]
        left_out = {**attributed.left_out, **worked.left_out}
        call = linked.device_call[mine & (linked.device_call != NOWHERE)]
        threads = np.unique(np.append(entries.tid, linked.trace.calls.tid[call]))
    else:
        threads = np.unique(entries.tid)
        worked = host_work(entries, _thread_waits(graph, waits, threads))
    if not len(worked.work.start_ns):
        return Staged(None, nothing, (*warnings, "no work was recorded inside the pipeline ranges"))
    why = reasons(graph, linked, found, waits, threads)
    holds = _device_holds(graph, linked, worked, found, why) if device_rows else _host_holds(linked, entries, worked, found, why)
    run = StageRun(rank, worked.ranges, worked.work, found.exchanges, holds, bool(device_rows), True, left_out, tuple(warnings))
    return Staged(run, of_device, tuple(warnings))


def _thread_waits(graph: Graph, waits: WaitSlices, threads: np.ndarray) -> Spans:
    mine = np.isin(graph.tid[waits.part], threads)
    return spans.union(waits.start_ns[mine] + graph.epoch_ns, waits.end_ns[mine] + graph.epoch_ns)


def _idle(work: Spans) -> Spans:
    return spans.complement(work, int(work.start_ns[0]), int(work.end_ns[-1]))


def _device_holds(graph: Graph, linked: Linked, worked: Worked, found: Found, why: Reasons) -> Holds:
    device, strings = linked.trace.device, linked.trace.strings
    idle = _idle(worked.work)
    next_op = worked.op[np.searchsorted(device.start_ns[worked.op], idle.end_ns)]
    cut = segments(graph, linked, idle, next_op)
    late = np.flatnonzero(cut.call != NOWHERE)
    calls = tuple(f"{strings[k]} came late" for k in linked.trace.calls.name[cut.call[late]].tolist())
    held = explained(Spans(cut.start_ns[late], cut.end_ns[late]), calls, why)
    other = np.flatnonzero(cut.call == NOWHERE)
    return _joined(held, _by_device(cut, other, linked, found))


def _by_device(cut: Segments, which: np.ndarray, linked: Linked, found: Found) -> Holds:
    device, strings = linked.trace.device, linked.trace.strings
    op = cut.op[which]
    some = op != NOWHERE
    exchange = np.where(some, found.of_device[np.maximum(op, 0)] if len(found.of_device) else NOWHERE, NOWHERE).astype(np.int32)
    texts: dict[str, int] = {"": 0}
    cause, evidence = np.full(len(which), Cause.UNKNOWN, np.uint8), np.zeros(len(which), np.int32)
    for k in np.flatnonzero(some & (exchange == NOWHERE)).tolist():
        name = strings[device.name[op[k]]]
        if device.kind[op[k]] == DeviceKind.MEMCPY and "HtoD" in name:
            cause[k] = Cause.DATA_LOADING
        evidence[k] = texts.setdefault(f"{name} outside any range", len(texts))
    return Holds(cut.start_ns[which], cut.end_ns[which], cause, exchange, evidence, tuple(texts))


def _host_holds(linked: Linked, entries: Entries, worked: Worked, found: Found, why: Reasons) -> Holds:
    """In a run without device ops the thread itself is the machine: what it does between ranges keeps it from the next."""
    idle = _idle(worked.work)
    rows, strings = linked.trace.host, linked.trace.strings
    outer = np.flatnonzero((linked.parent == NOWHERE) & ~linked.crossing & np.isin(rows.tid, entries.tid) & ~rows.annotation)
    pieces = spans.cut(idle, rows.start_ns[outer], rows.end_ns[outer])
    words = tuple(f"host: {strings[rows.name[outer[k]]]}" if k != NOWHERE else "host between operators" for k in pieces.by.tolist())
    late = Spans(pieces.start_ns, pieces.end_ns)
    return explained(late, words, _with_receives(why, idle, found.exchanges))


def _with_receives(why: Reasons, idle: Spans, ex: Exchanges) -> Reasons:
    """``why`` with the host-side receives and collectives that ended inside an idle span: such a row ends when somebody waits for it."""
    x = np.flatnonzero(ex.on_host & (ex.kind != CommKind.SEND))
    k = np.minimum(np.searchsorted(idle.end_ns, ex.end_ns[x]), max(len(idle.end_ns) - 1, 0))
    inside = (idle.start_ns[k] < ex.end_ns[x]) & (ex.end_ns[x] <= idle.end_ns[k]) if len(idle.end_ns) else np.zeros(len(x), np.bool_)
    x, k = x[inside], k[inside]
    return Reasons(
        np.append(why.start_ns, np.maximum(ex.start_ns[x], idle.start_ns[k])),
        np.append(why.end_ns, ex.end_ns[x]),
        np.append(why.cause, np.full(len(x), Cause.UNKNOWN, np.uint8)),
        np.append(why.exchange, x.astype(np.int32)),
        (*why.text, *("wait" for _ in x)),
    )


def _joined(a: Holds, b: Holds) -> Holds:
    order = np.argsort(np.append(a.start_ns, b.start_ns), kind="stable")
    return Holds(
        np.append(a.start_ns, b.start_ns)[order],
        np.append(a.end_ns, b.end_ns)[order],
        np.append(a.cause, b.cause)[order],
        np.append(a.exchange, b.exchange)[order],
        np.append(a.evidence, b.evidence + len(a.texts))[order],
        (*a.texts, *b.texts),
    )
