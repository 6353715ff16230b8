"""One rank, from its graph to what the analysis over all ranks wants of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.graph.waits import before_on_thread, wait_slices
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind, Communication, DeviceKind, Graph, Linked
from graphlink.nccl.noted import SideFiles
from graphlink.pipeline import spans
from graphlink.pipeline.attribute import attribute
from graphlink.pipeline.entries import Entries, named_entries
from graphlink.pipeline.exchanges import Found, exchanges
from graphlink.pipeline.holds import Segments, segments
from graphlink.pipeline.infer import first_source, inferred_entries
from graphlink.pipeline.late import Reasons, both, explained, reasons, receive_waits
from graphlink.pipeline.records import Cause, Exchanges, Holds, Phase, Spans, StageRun
from graphlink.pipeline.rules import STEP_MARK, Rule
from graphlink.pipeline.witness import witness
from graphlink.pipeline.work import Worked, device_work, host_work
from graphlink.records import Short


@dataclass(frozen=True, slots=True, repr=False)
class Staged(Short):
    """``run`` is None where a rank has no pipeline range. ``of_device``: the range of each device row, ``NOWHERE`` for none."""

    run: StageRun | None
    of_device: I32
    warnings: tuple[str, ...]


def stage_run(
    graph: Graph, linked: Linked, comm: Communication, rank: int, user: Sequence[Rule] = (), nccl: SideFiles | None = None
) -> Staged:
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
        why = reasons(graph, linked, found, waits, np.unique(np.append(entries.tid, linked.trace.calls.tid[call])))
    else:
        threads = np.unique(entries.tid)
        receives = receive_waits(linked, comm, found, threads)
        mine = np.isin(graph.tid[waits.part], threads)
        start = np.append(waits.start_ns[mine] + graph.epoch_ns, receives.start_ns)
        worked = host_work(entries, spans.union(start, np.append(waits.end_ns[mine] + graph.epoch_ns, receives.end_ns)))
        why = both(receives, reasons(graph, linked, found, waits, threads))
    if not len(worked.work.start_ns):
        return Staged(None, nothing, (*warnings, "no work was recorded inside the pipeline ranges"))
    holds = _device_holds(graph, linked, worked, found, why) if device_rows else _host_holds(linked, entries, worked, why)
    run = StageRun(
        rank=rank,
        previous=first_source(linked, entries),
        recorded_from_ns=graph.epoch_ns,
        ranges=worked.ranges,
        work=worked.by_step,
        optimizer=worked.optimizer,
        exchanges=found.exchanges,
        holds=holds,
        sees_device=bool(device_rows),
        sees_causes=True,
        left_out=left_out,
        warnings=tuple(warnings),
        witness=None if nccl is None else witness(nccl, found),
    )
    return Staged(run, of_device, tuple(warnings))


def _idle(worked: Worked) -> Spans:
    mine = worked.ranges.phase != Phase.OPT
    return spans.complement(worked.work, int(worked.ranges.start_ns[mine].min()), int(worked.ranges.end_ns[mine].max()))


def _device_holds(graph: Graph, linked: Linked, worked: Worked, found: Found, why: Reasons) -> Holds:
    """First counts communication that the next work waited for, then its late launch, then communication that just ran beside."""
    device, strings = linked.trace.device, linked.trace.strings
    idle = _idle(worked)
    next_op = worked.op[np.searchsorted(device.start_ns[worked.op], idle.end_ns)]
    cut = segments(graph, linked, idle, next_op)
    exchange = np.where(cut.op == NOWHERE, NOWHERE, found.of_device[cut.op] if len(found.of_device) else NOWHERE)
    late = (exchange == NOWHERE) & (cut.call != NOWHERE)
    at = np.flatnonzero(late)
    joined = (cut.end_ns[at[:-1]] == cut.start_ns[at[1:]]) & (cut.next[at[:-1]] == cut.next[at[1:]])
    first, last = at[np.append(True, ~joined)[: len(at)]], at[np.append(~joined, True)[: len(at)]]
    launches = tuple(f"{strings[k]} came late" for k in linked.trace.calls.name[cut.call[last]].tolist())
    held = explained(Spans(cut.start_ns[first], cut.end_ns[last]), launches, why)
    other = np.flatnonzero(~late)
    return _beside(_joined(held, _by_device(cut, other, exchange[other], linked)), found.exchanges)


def _by_device(cut: Segments, which: I64, exchange: I64, linked: Linked) -> Holds:
    device, strings = linked.trace.device, linked.trace.strings
    op = cut.op[which]
    texts: dict[str, int] = {"": 0}
    cause, evidence = np.full(len(which), Cause.UNKNOWN, np.uint8), np.zeros(len(which), np.int32)
    for k in np.flatnonzero((op != NOWHERE) & (exchange == NOWHERE)).tolist():
        name = strings[device.name[op[k]]]
        if device.kind[op[k]] == DeviceKind.MEMCPY and "HtoD" in name:
            cause[k] = Cause.DATA_LOADING
        evidence[k] = texts.setdefault(f"{name} outside any range", len(texts))
    return Holds(cut.start_ns[which], cut.end_ns[which], cause, exchange.astype(np.int32), evidence, tuple(texts))


def _beside(holds: Holds, ex: Exchanges) -> Holds:
    """With the communication that ran meanwhile, though nothing says that it was waited for.

    Nobody waits for a send. Of a late host's time only collectives count, as one beside compute does, since no row tells what comes after
    them; the profiler's own time and work outside ranges stay what they are.
    """
    late = np.isin(holds.cause, (Cause.LAUNCH_STARVED, Cause.HOST_SYNC, Cause.DATA_LOADING, Cause.MEMORY_MANAGEMENT))
    holds = _with(holds, ex, late, ex.kind == CommKind.COLLECTIVE)
    unexplained = (holds.cause == Cause.UNKNOWN) & (holds.evidence == 0)
    return _with(holds, ex, unexplained, ex.kind != CommKind.SEND)


def _with(holds: Holds, ex: Exchanges, which: Bool, usable: Bool) -> Holds:
    """The ``usable`` exchanges beside those ``which`` have none."""
    x = np.flatnonzero(usable)
    pieces = spans.cut(Spans(holds.start_ns, holds.end_ns), ex.start_ns[x], ex.end_ns[x])
    of, by = pieces.of, pieces.by
    free = which[of] & (holds.exchange[of] == NOWHERE) & (by != NOWHERE)
    exchange = holds.exchange[of].copy()
    exchange[free] = x[by[free]]
    return Holds(pieces.start_ns, pieces.end_ns, holds.cause[of], exchange, holds.evidence[of], holds.texts)


def _host_holds(linked: Linked, entries: Entries, worked: Worked, why: Reasons) -> Holds:
    """In a run without device ops the thread itself is the machine: what it does between ranges keeps it from the next."""
    idle = _idle(worked)
    rows, strings = linked.trace.host, linked.trace.strings
    marks = np.array([STEP_MARK.fullmatch(text) is not None for text in strings], np.bool_)[rows.name] & rows.annotation
    parent = linked.parent
    outer = np.flatnonzero(
        ((parent == NOWHERE) | marks[np.maximum(parent, 0)]) & ~marks & ~linked.crossing & np.isin(rows.tid, entries.tid)
    )
    pieces = spans.cut(idle, rows.start_ns[outer], rows.end_ns[outer])
    words = tuple(f"host: {strings[rows.name[outer[k]]]}" if k != NOWHERE else "host between operators" for k in pieces.by.tolist())
    return explained(Spans(pieces.start_ns, pieces.end_ns), words, why)


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
