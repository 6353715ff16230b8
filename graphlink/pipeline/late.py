"""What a host did while its device had nothing to do: waited for device work, loaded data, managed memory, or just launched late.

The first of these counts, in this order: a moment in which the profiler worked, a call that allocates or frees, a data loader, a wait.
What is left until the launch returns is ``launch_starved``; but where the host was held when the device ran empty, it would have
launched that much earlier without, so of what is left as much as it had been held before counts as that, too, and so do the up to
20 us that a launch takes right after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.graph.waits import WaitSlices
from graphlink.model import I32, I64, NOWHERE, U8, CommKind, Communication, DeviceKind, EdgeKind, Graph, Linked, NodeKind
from graphlink.pipeline import spans
from graphlink.pipeline.exchanges import Found
from graphlink.pipeline.holds import LATENCY_NS
from graphlink.pipeline.records import Cause, Holds, Spans

_MEMORY: Final = re.compile(r"(?:cuda|hip|cu)(?:Malloc|Free|HostAlloc|HostFree|Mem(?:Alloc|Free|Create|Map|Unmap|Release|PoolTrimTo)).*")
_LOADER: Final = re.compile(
    r"enumerate\(DataLoader\).*|batch-generator|batch_generator|DataLoader.*|dataloader.*|data[-_ ]?load.*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Reasons:
    """What may have held the host, in the order in which it counts; may overlap. ``exchange``: as in ``Holds``. Times absolute."""

    start_ns: I64
    end_ns: I64
    cause: U8
    exchange: I32
    text: tuple[str, ...]


def reasons(graph: Graph, linked: Linked, found: Found, waits: WaitSlices, threads: I64) -> Reasons:
    """Of the threads ``threads`` (ids); ``waits`` in graph time."""
    trace, strings = linked.trace, linked.trace.strings
    out: list[tuple[int, int, Cause, int, str]] = []
    overhead = trace.overhead
    for start, end, name in zip(overhead.start_ns.tolist(), overhead.end_ns.tolist(), overhead.name.tolist(), strict=True):
        out.append((start, end, Cause.PROFILER_ARTEFACT, NOWHERE, f"profiler: {strings[name]}"))
    for table, pattern, cause in ((trace.calls, _MEMORY, Cause.MEMORY_MANAGEMENT), (trace.host, _LOADER, Cause.DATA_LOADING)):
        codes = [k for k in np.unique(table.name).tolist() if pattern.fullmatch(strings[k])]
        mine = np.flatnonzero(np.isin(table.name, codes) & np.isin(table.tid, threads)) if codes else np.zeros(0, np.int64)
        for start, end, name in zip(table.start_ns[mine].tolist(), table.end_ns[mine].tolist(), table.name[mine].tolist(), strict=True):
            out.append((start, end, cause, NOWHERE, strings[name]))
    out += _waited(graph, linked, found, waits, threads)
    columns = tuple(zip(*out, strict=True)) if out else ((), (), (), (), ())
    return Reasons(
        np.array(columns[0], np.int64),
        np.array(columns[1], np.int64),
        np.array(columns[2], np.uint8),
        np.array(columns[3], np.int32),
        tuple(columns[4]),
    )


def _waited(graph: Graph, linked: Linked, found: Found, waits: WaitSlices, threads: I64) -> list[tuple[int, int, Cause, int, str]]:
    """Waits, by what was waited for: a communication, a copy from the host, or other device work."""
    strings, device = linked.trace.strings, linked.trace.device
    mine = np.flatnonzero(np.isin(graph.tid[waits.part], threads))
    awaited = _awaited(graph, waits.part[mine])
    out = []
    for k, source in zip(mine.tolist(), awaited.tolist(), strict=True):
        start, end = int(waits.start_ns[k]) + graph.epoch_ns, int(waits.end_ns[k]) + graph.epoch_ns
        call = int(waits.call[k])
        by = strings[linked.trace.calls.name[call]] if call != NOWHERE else "wait"
        row = int(graph.row[source]) if source != NOWHERE else NOWHERE
        if source != NOWHERE and graph.kind[source] == NodeKind.HOST_COMM:
            out.append((start, end, Cause.UNKNOWN, int(found.of_host[row]), by))
        elif source != NOWHERE and found.of_device[row] != NOWHERE:
            out.append((start, end, Cause.UNKNOWN, int(found.of_device[row]), by))
        else:
            name = strings[device.name[row]] if row != NOWHERE else "device work"
            loads = row != NOWHERE and device.kind[row] == DeviceKind.MEMCPY and "HtoD" in name
            out.append((start, end, Cause.DATA_LOADING if loads else Cause.HOST_SYNC, NOWHERE, f"{by} waited for {name}"))
    return out


def _awaited(graph: Graph, part: I32) -> I64:
    """The source of ``sync`` edges of each node that ended last, ``NOWHERE`` without any."""
    index = np.full(len(graph.kind), NOWHERE, np.int64)
    index[part] = np.arange(len(part))
    target = np.repeat(index, np.diff(graph.first))
    edge = np.flatnonzero((target != NOWHERE) & (graph.edge_kind == EdgeKind.SYNC))
    order = edge[np.lexsort((graph.end_ns[graph.source[edge]], target[edge]))]
    out = np.full(len(part), NOWHERE, np.int64)
    out[target[order]] = graph.source[order]  # of several the last assignment holds
    return out


def receive_waits(linked: Linked, comm: Communication, found: Found, threads: I64) -> Reasons:
    """Host-side receives and collectives that somebody waited for on ``threads``.

    Such a row ends when its waiter returns; that one has waited since its thread last began or ended something, or since the row began.
    The graph takes fewer of these for waits (only where the next row begins within 50 us), so that nothing else is hidden in them.
    """
    rows = linked.trace.host
    receives = np.array([node.recorded != CommKind.SEND.name for node in comm.host_node], np.bool_)
    row = comm.host_row[receives] if len(receives) else comm.host_row
    row = row[np.isin(rows.tid[row], threads)]
    start = rows.start_ns[row].copy()
    for tid in np.unique(rows.tid[row]).tolist():
        nested = (rows.tid == tid) & ~linked.crossing
        marks = np.sort(np.append(rows.start_ns[nested], rows.end_ns[nested]))
        mine = rows.tid[row] == tid
        last = np.searchsorted(marks, rows.end_ns[row[mine]], side="left") - 1
        start[mine] = np.maximum(start[mine], np.where(last >= 0, marks[np.maximum(last, 0)], start[mine]) if len(marks) else start[mine])
    return Reasons(start, rows.end_ns[row], np.full(len(row), Cause.UNKNOWN, np.uint8), found.of_host[row], ("wait",) * len(row))


def both(a: Reasons, b: Reasons) -> Reasons:
    return Reasons(
        np.append(a.start_ns, b.start_ns),
        np.append(a.end_ns, b.end_ns),
        np.append(a.cause, b.cause),
        np.append(a.exchange, b.exchange),
        (*a.text, *b.text),
    )


def explained(late: Spans, otherwise: tuple[str, ...], why: Reasons) -> Holds:
    """``late`` spans cut by what held the host; ``otherwise``: of each the evidence where nothing did. O(n log n)."""
    start, end, of = late.start_ns, late.end_ns, np.arange(len(late.start_ns))
    done: list[tuple[I64, I64, I64, I64]] = []
    for group in _groups(why):
        pieces = spans.cut(Spans(start, end), why.start_ns[group], why.end_ns[group])
        hit = pieces.by != NOWHERE
        done.append((pieces.start_ns[hit], pieces.end_ns[hit], of[pieces.of[hit]], group[pieces.by[hit]]))
        start, end, of = pieces.start_ns[~hit], pieces.end_ns[~hit], of[pieces.of[~hit]]
    done.append((start, end, of, np.full(len(start), NOWHERE)))
    starts, ends, of, by = (np.concatenate(c) for c in zip(*done, strict=True))
    order = np.argsort(starts, kind="stable")
    cut = _Cut(starts[order], ends[order], of[order], by[order])
    return _holds(_with_latency(_held_before(late, cut, why)), otherwise, why)


def _groups(why: Reasons) -> list[I64]:
    """Positions of the reasons that count alike, first those that count first."""
    order = (Cause.PROFILER_ARTEFACT, Cause.MEMORY_MANAGEMENT, Cause.DATA_LOADING)
    groups = [np.flatnonzero(why.cause == cause) for cause in order]
    return [*groups, np.flatnonzero(~np.isin(why.cause, order))]


@dataclass(frozen=True, slots=True)
class _Cut:
    """``late`` spans in pieces, ascending: of which span each is, and which reason holds there (``NOWHERE``: none)."""

    start_ns: I64
    end_ns: I64
    of: I64
    by: I64


def _held_before(late: Spans, cut: _Cut, why: Reasons) -> _Cut:
    """Free time goes to the reason in force when the device ran empty, as much as that had held before."""
    count = len(late.start_ns)
    head = cut.start_ns == late.start_ns[cut.of]
    holding = np.full(count, NOWHERE)
    holding[cut.of[head]] = cut.by[head]
    held = holding != NOWHERE
    budget = np.zeros(count, np.int64)
    budget[held] = late.start_ns[held] - why.start_ns[holding[held]]
    free = np.where(cut.by == NOWHERE, cut.end_ns - cut.start_ns, 0)
    before = np.cumsum(free) - free
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, cut.of, before)
    given = np.clip(budget[cut.of] - (before - first[cut.of]), 0, free)
    return _split(cut, given, holding[cut.of])


def _with_latency(cut: _Cut) -> _Cut:
    """What a launch takes right after the host was held, or before it is held inside, is part of that."""
    n = len(cut.by)
    free = np.where(cut.by == NOWHERE, cut.end_ns - cut.start_ns, 0)
    same = np.append(False, cut.of[1:] == cut.of[:-1])
    after = same & (np.append(NOWHERE, cut.by[:-1]) != NOWHERE) if n else same[:0]
    cut = _split(cut, np.where(after, np.minimum(free, LATENCY_NS), 0), np.append(NOWHERE, cut.by[:-1])[:n])
    short = np.flatnonzero((cut.by[:-1] == NOWHERE) & (cut.end_ns[:-1] - cut.start_ns[:-1] <= LATENCY_NS))
    ahead = short[cut.of[short + 1] == cut.of[short]]
    by = cut.by.copy()
    by[ahead] = by[ahead + 1]
    return _Cut(cut.start_ns, cut.end_ns, cut.of, by)


def _split(cut: _Cut, given_ns: I64, to: I64) -> _Cut:
    """The first ``given_ns`` of each piece go to reason ``to``."""
    middle = cut.start_ns + given_ns
    parts = np.flatnonzero((given_ns > 0) & (middle < cut.end_ns))
    end = cut.end_ns.copy()
    end[parts] = middle[parts]
    start = np.append(cut.start_ns, middle[parts])
    order = np.argsort(start, kind="stable")
    return _Cut(
        start[order],
        np.append(end, cut.end_ns[parts])[order],
        np.append(cut.of, cut.of[parts])[order],
        np.append(np.where(given_ns > 0, to, cut.by), np.full(len(parts), NOWHERE))[order],
    )


def _holds(cut: _Cut, otherwise: tuple[str, ...], why: Reasons) -> Holds:
    of, by = cut.of, cut.by
    free = by == NOWHERE
    texts: dict[str, int] = {"": 0}
    words = [otherwise[o] if b == NOWHERE else why.text[b] for o, b in zip(of.tolist(), by.tolist(), strict=True)]
    evidence = np.array([texts.setdefault(w, len(texts)) for w in words], np.int32)
    at = np.maximum(by, 0)
    cause = np.where(free, Cause.LAUNCH_STARVED, why.cause[at] if len(why.cause) else 0).astype(np.uint8)
    exchange = np.where(free, NOWHERE, why.exchange[at] if len(why.exchange) else NOWHERE).astype(np.int32)
    return Holds(cut.start_ns, cut.end_ns, cause, exchange, evidence, tuple(texts))
