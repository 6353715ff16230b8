"""One rank, from its graph to what the analysis over all ranks wants of it, on the run's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from graphlink import spans
from graphlink.graph.waits import before_on_thread, wait_slices
from graphlink.graph_model import Graph
from graphlink.model import I32, I64, NOWHERE, CommOps, Communication, Linked
from graphlink.pipeline.autograd import first_source, inferred_entries, launched, layers_of, partners, waitless
from graphlink.pipeline.between_ranks import ordinals
from graphlink.pipeline.delays import device_delays, host_delays, host_reasons, joined, receive_waits
from graphlink.pipeline.named_ranges import NameRule, named_entries
from graphlink.pipeline.records import NO_TIME, Delays, Ranges, StageRun, Witness
from graphlink.pipeline.work import device_work, host_work
from graphlink.ranks.records import AlignedClock
from graphlink.read.columns import Strings
from graphlink.records import Short
from graphlink.spans import KeyedSpans, Spans
from graphlink.tables import least, nowhere, take, tuples

if TYPE_CHECKING:
    from graphlink.nccl.read.records import Dump
    from graphlink.nccl.summary import SideFiles

_Timed = TypeVar("_Timed", Ranges, KeyedSpans, Spans, CommOps, Delays)


@dataclass(frozen=True, slots=True, repr=False)
class Staged(Short):
    """``run`` is None where a rank has no pipeline range. ``of_device``: the range of each device row, ``NOWHERE`` for
    none.
    """

    run: StageRun | None
    of_device: I32
    warnings: tuple[str, ...]


def stage_run(
    graph: Graph,
    linked: Linked,
    comm: Communication,
    rank: int,
    user: Sequence[NameRule] = (),
    witness: Witness | None = None,
) -> Staged:
    """Find ranges by name, else from communication and autograd; their work, and what delayed it. O(n log n)."""
    has_device = bool(len(linked.trace.device.start_ns))
    nothing = nowhere(len(linked.trace.device.start_ns), np.int32)
    entries, warnings = named_entries(linked, user)
    if entries is None:
        entries, more = inferred_entries(linked)
        warnings = (*warnings, *more)
    if entries is None:
        return Staged(None, nothing, warnings)
    waits, texts = wait_slices(graph, linked, before_on_thread(graph)), Strings()
    if has_device:
        worked, works = device_work(linked, comm, entries), launched(linked, comm)
        reasons = host_reasons(graph, linked, comm.ops, waits, worked.threads, texts)
    else:
        threads = np.unique(entries.tid)
        receives = receive_waits(linked, comm, threads, texts)
        mine = take(waits, np.isin(graph.tid[waits.part], threads))
        start, end = (
            np.append(a + graph.epoch_ns, b)
            for a, b in ((mine.start_ns, receives.start_ns), (mine.end_ns, receives.end_ns))
        )
        waited = spans.union(start, end)
        worked, works = host_work(entries, waited), waitless(waited)
        reasons = joined(receives, host_reasons(graph, linked, comm.ops, waits, threads, texts))
    if not len(worked.work.start_ns):
        return Staged(None, nothing, (*warnings, "no work was recorded inside the pipeline ranges"))
    run = StageRun(
        rank=rank,
        previous=first_source(linked, entries),
        recorded_from_ns=graph.epoch_ns,
        ranges=worked.ranges,
        work=worked.work,
        optimizer=worked.optimizer,
        exchanges=comm.ops,
        ordinal=ordinals(comm.ops),
        delays=device_delays(graph, linked, worked, comm.ops, reasons, texts)
        if has_device
        else host_delays(linked, entries, worked, reasons, texts),
        sees_device=has_device,
        sees_causes=True,
        left_out=worked.left_out,
        warnings=warnings,
        witness=witness,
        layers=layers_of(linked, entries, works),
        peers=partners(linked, entries),
    )
    return Staged(run, worked.of_device, warnings)


def on_run_clock(run: StageRun, clock: AlignedClock) -> StageRun:
    """Map all times by ``clock``. Order and disjointness stay; what rounding leaves empty goes."""

    def mapped(record: _Timed) -> _Timed:
        start, end = clock.of(record.start_ns), clock.of(record.end_ns)
        return replace(record, start_ns=start, end_ns=end)

    def spans_of(record: _Timed) -> _Timed:
        out = mapped(record)
        return take(out, out.start_ns < out.end_ns)

    witnessed = run.witness
    if witnessed is not None:
        there = witnessed.came_ns != NO_TIME
        came_ns = clock.of(np.where(there, witnessed.came_ns, 0))
        witnessed = replace(witnessed, came_ns=np.where(there, came_ns, NO_TIME))
    return replace(
        run,
        recorded_from_ns=int(clock.of(np.array([run.recorded_from_ns], np.int64))[0]),
        ranges=mapped(run.ranges),
        work=spans_of(run.work),
        optimizer=spans_of(run.optimizer),
        exchanges=mapped(run.exchanges),
        delays=spans_of(run.delays),
        witness=witnessed,
    )


# what NCCL itself recorded of the exchanges of a rank, where its side files lie beside the recording


def witness_of(files: SideFiles) -> Witness:
    """Return NCCL's record of the exchanges whose calls have proxy steps. O(n log n) in steps."""
    from graphlink.nccl.summary import in_words

    split = files.split
    came = np.full(len(files.ops.row), NO_TIME)
    for number, (dump, clock) in enumerate(zip(files.dumps, files.clocks, strict=True)):
        if clock.offset_ns is None:
            continue
        mine = np.flatnonzero(files.dump == number)
        op, at = files.op[mine], _came_ns(dump)[files.call[mine]]
        came[op[at != NO_TIME]] = at[at != NO_TIME] + clock.offset_ns
    told = map(in_words, tuples(split.gpu_ns, split.peer_ns, split.wire_ns, split.receive_ns))
    return Witness(split.op.astype(np.int64), came[split.op], tuple(f"NCCL: {text}" * bool(text) for text in told))


def _came_ns(dump: Dump) -> I64:
    """Return by call, on the dump's clock, the first end of a step that waited for data, else of one that waited for
    its peer.
    """
    from graphlink.nccl.read.records import State

    steps = dump.steps
    call = dump.proxies.call[steps.proxy]
    out = np.full(len(dump.calls.rank), NO_TIME)
    for state in (State.PEER, State.RECEIVE):
        mine = np.flatnonzero((steps.state == state) & (call != NOWHERE) & (steps.end_ns != 0))
        out[call[mine]] = least(len(out), call[mine], steps.end_ns[mine])[call[mine]]
    return out
