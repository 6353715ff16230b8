"""The rows that HTA's critical path analysis is fed with: repaired, one device at a time, whole or in windows.

What is repaired, and why (HTA 0.5.0 and 0.6.1 behave alike; tests/depend/test_hta.py has a case for each)
  every device row has a launch row of its own, named cudaLaunchKernel   HTA knows eleven launch names: graph and cooperative launches,
                                                                         2D, peer and driver copies are invisible to it
                                                                         otherwise
  partners are joined by row, through ``device_call``                    HTA's own join by correlation keeps one kernel of a graph launch
  sync rows without their call are left out                              HTA draws their edge to event 0, or dies with KeyError
  a record has one stream, and its call the name cudaEventRecord         a second stream ends HTA with MergeError
  device rows and sync rows of one device only                           HTA keys its streams without the device
  times are ranks                                                        below

HTA only compares times: launches, records and wait calls by start, device rows by start with sync rows by end. Its
sorts are unstable, so equal times (integer-us traces) would fall differently from machine to machine. It is therefore
given ranks in which ties stand as launch, record, sync call, end of sync row, device row; nothing rounds to a duration
of 0, which HTA drops. The ranks are those of what is fed alone, and device rows stand behind all of the host, with which
HTA does not compare them: so ranks of a run that did the same in the same order are fed the same.

What is fed
  Every sync row with its call, every record that one names, and of the device rows those that HTA can pick for one of
  these sync rows: it takes the row of a stream that started last before the end of a sync row, the last launch on a
  stream before a record, and the first launch by a thread on a stream after a wait. All these are there and nothing
  nearer is, so the edges are those of the whole trace (the tests compare with all rows fed), at a cost that grows with
  the sync rows: HTA needs 40 us and 4 kB a device row.

Windows
  A sync row is fed in the window in which it ends, a Stream Wait Event in that of the device row that comes next, as
  HTA keeps one wait a device row, the last. What it waits for comes along, however early. So no edge across a mark is
  lost, and each is found once.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from graphlink.model import I32, I64, NOWHERE, U8, SyncKind, Trace
from graphlink.patterns import fits
from graphlink.spans import Neighbours
from graphlink.steps import PROFILER_STEP
from graphlink.tables import codes, lookup, spread, stacked

SYMBOLS = ("cpu_op", "cuda_runtime", "launch", "kernel", "cuda_sync", "cudaLaunchKernel", "sync call")
SYNC_SYMBOL = {
    SyncKind.STREAM: "Stream Sync",
    SyncKind.DEVICE: "Context Sync",
    SyncKind.EVENT: "Event Sync",
    SyncKind.STREAM_WAIT: "Stream Wait Event",
}
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class TraceWindow(msgspec.Struct, frozen=True):
    """A stretch of a trace from ``start_ns`` to the next one's, with ``events`` device rows and calls that
    start in it.
    """

    name: str
    start_ns: int
    events: int


def windows(trace: Trace, size: int) -> tuple[TraceWindow, ...]:
    """Cut a trace of more than ``size`` device, call and sync rows at ProfilerStep starts; a smaller one stays whole.

    As many steps go into a window as fit into ``size``; one step is never cut, nor is a trace without marks. O(marks *
    log rows).
    """
    device, calls, syncs, host = trace.device, trace.calls, trace.syncs, trace.host
    whole = TraceWindow("the whole trace", _EARLIEST, len(device.start_ns) + len(calls.start_ns))
    if whole.events + len(syncs.start_ns) <= size:
        return (whole,)
    marks = np.flatnonzero(host.annotation & fits(PROFILER_STEP, trace.strings)[host.name])
    starts, first = np.unique(host.start_ns[marks], return_index=True)
    if not len(starts):
        return (whole,)

    names = ["the start", *(trace.strings[name] for name in host.name[marks[first]]), "the end"]
    bounds = np.concatenate([[_EARLIEST], starts, [_LATEST]])
    events = np.searchsorted(device.start_ns, bounds) + np.searchsorted(calls.start_ns, bounds)
    rows = (events + np.searchsorted(syncs.start_ns, bounds)).tolist()
    cuts = [0]
    for i in range(1, len(rows) - 1):
        if rows[i + 1] - rows[cuts[-1]] > size and rows[i] > rows[cuts[-1]]:
            cuts.append(i)
    cuts.append(len(rows) - 1)
    return tuple(
        TraceWindow(f"{names[a]} to {names[b]}", int(bounds[a]), int(events[b] - events[a])) for a, b in pairwise(cuts)
    )


def sync_calls(trace: Trace) -> tuple[I32, I32]:
    """Join sync rows with their calls by correlation; of several calls with one id the outermost. O(n log n).

    Returns (call, record) of each sync row: the call that made it and the cudaEventRecord that it waits for, rows of
    ``trace.calls`` or ``NOWHERE``.
    """
    calls, syncs = trace.calls, trace.syncs
    recorders = [i for i, text in enumerate(trace.strings) if "EventRecord" in text]
    records = np.flatnonzero(np.isin(calls.name, recorders))
    record = np.append(records, NOWHERE)[lookup(calls.correlation[records], syncs.record)]
    call = lookup(calls.correlation, syncs.correlation).astype(np.int32)
    return call, np.where(syncs.record_known, record, NOWHERE).astype(np.int32)


class DeviceFeed(msgspec.Struct, frozen=True):
    """The rows of one device that can be fed to HTA. Streams and threads are numbered from 0; ranks from 1, unique over
    all five rank columns."""

    op: I32  # rows of trace.device, by start
    op_ns: I64
    op_stream: I64
    op_rank: I64  # of its start
    launch_thread: I64
    launch_rank: I64
    sync_kind: U8
    sync_call: I32  # row of trace.calls
    sync_ns: I64  # end
    sync_stream: I64  # -1 = none
    sync_rank: I64  # of its end
    sync_record: I64  # position in the record columns, -1 = none
    call_thread: I64
    call_rank: I64
    record_stream: I64
    record_rank: I64


def device_feed(trace: Trace, device_call: I32, device: int, sync: I64, call: I32, record: I32) -> DeviceFeed:
    """Gather the device rows with a call and the sync rows ``sync`` of one device; ``call``, ``record``: theirs. O(n
    log n).
    """
    calls, syncs = trace.calls, trace.syncs
    op = np.flatnonzero((trace.device.device == device) & (device_call != NOWHERE))
    launch = device_call[op]

    telling = np.flatnonzero(syncs.record_stream_known[sync] & (record != NOWHERE))
    records, first = np.unique(record[telling], return_index=True)
    at = np.searchsorted(records, record)
    at = np.where(np.append(records, NOWHERE - 1)[at] == record, at, -1)

    awaits_stream = np.isin(syncs.kind[sync], (SyncKind.STREAM, SyncKind.STREAM_WAIT))
    streams = _dense(trace.device.stream[op], syncs.stream[sync], syncs.record_stream[sync[telling[first]]])
    threads = _dense(calls.tid[launch], calls.tid[call])
    sync_ns = syncs.end_ns[sync]
    ranks = _ranks(
        calls.start_ns[launch], calls.start_ns[records], calls.start_ns[call], sync_ns, trace.device.start_ns[op]
    )
    return DeviceFeed(
        op=op.astype(np.int32),
        op_ns=trace.device.start_ns[op],
        op_stream=streams[0],
        op_rank=ranks[4],
        launch_thread=threads[0],
        launch_rank=ranks[0],
        sync_kind=syncs.kind[sync],
        sync_call=call,
        sync_ns=sync_ns,
        sync_stream=np.where(awaits_stream, streams[1], -1),
        sync_rank=ranks[3],
        sync_record=at,
        call_thread=threads[1],
        call_rank=ranks[2],
        record_stream=streams[2],
        record_rank=ranks[1],
    )


def _dense(*columns: I64) -> list[I64]:
    return np.split(codes(np.concatenate(columns)), np.cumsum([len(column) for column in columns])[:-1])


def _ranks(*columns: I64) -> list[I64]:
    """Return ranks from 1 over all columns together; ties in order of column, then row."""
    order = np.argsort(np.concatenate(columns), kind="stable")
    rank = spread(len(order), order, np.arange(1, len(order) + 1))
    return np.split(rank, np.cumsum([len(column) for column in columns])[:-1])


class Choice(NamedTuple):
    """Ascending positions in a ``DeviceFeed`` of device rows, sync rows and records."""

    op: I64
    sync: I64
    record: I64


def choices(feed: DeviceFeed, cut: tuple[TraceWindow, ...]) -> Iterator[Choice]:
    """Yield what of ``feed`` goes into each window (see above).

    O(n log n + Context Sync rows * streams * log n).
    """
    next_op = _next_op(feed)
    near_sync, near_op = _candidates(feed, next_op)
    waits = feed.sync_kind == SyncKind.STREAM_WAIT
    sync_ns = np.where(waits, np.append(feed.op_ns, _LATEST)[next_op], feed.sync_ns)
    starts = [window.start_ns for window in cut]
    sync_window = np.searchsorted(starts, sync_ns, side="right") - 1
    sync_window[waits & (next_op == NOWHERE)] = len(cut)  # in none: no edge can come of it

    def split(rows: I64, window: I64) -> list[I64]:
        order = np.argsort(window, kind="stable")
        ends = np.searchsorted(window[order], np.arange(len(cut) + 1))
        return [rows[order[ends[i] : ends[i + 1]]] for i in range(len(cut))]

    sync = split(np.arange(len(sync_window)), sync_window)
    op = split(near_op, sync_window[near_sync])
    for ops, syncs in zip(op, sync, strict=True):
        record = np.unique(feed.sync_record[syncs])
        yield Choice(np.unique(ops), syncs, record[record >= 0])


def _next_op(feed: DeviceFeed) -> I64:
    """Return, for each wait of a stream, the next device row that its thread launches on that stream; ``NOWHERE`` for
    other sync rows.
    """
    columns = (feed.op_stream, feed.sync_stream, feed.record_stream)
    base = 1 + max((int(column.max()) for column in columns if len(column)), default=0)
    by_thread = Neighbours.of(feed.launch_thread * base + feed.op_stream, feed.launch_rank)
    wait = np.flatnonzero(feed.sync_kind == SyncKind.STREAM_WAIT)
    following = by_thread.since(feed.call_thread[wait] * base + feed.sync_stream[wait], feed.call_rank[wait])
    return spread(len(feed.sync_kind), wait, following)


def _candidates(feed: DeviceFeed, next_op: I64) -> tuple[I64, I64]:
    """Return pairs (sync row, device row that HTA may find for it). ``next_op``: as ``_next_op`` returns it."""
    streams = np.unique(feed.op_stream)
    by_start = Neighbours.of(feed.op_stream, feed.op_rank)
    by_launch = Neighbours.of(feed.op_stream, feed.launch_rank)

    stream_sync, device_sync, wait = (
        np.flatnonzero(feed.sync_kind == kind) for kind in (SyncKind.STREAM, SyncKind.DEVICE, SyncKind.STREAM_WAIT)
    )
    of_record = np.flatnonzero(feed.sync_record >= 0)
    each = device_sync.repeat(len(streams))
    record_op = by_launch.before(feed.record_stream, feed.record_rank)

    sync = np.concatenate([stream_sync, each, of_record, wait])
    op = np.concatenate(
        [
            by_start.before(feed.sync_stream[stream_sync], feed.sync_rank[stream_sync]),
            by_start.before(np.tile(streams, len(device_sync)), feed.sync_rank[each]),
            record_op[feed.sync_record[of_record]],
            next_op[wait],
        ]
    )
    return sync[op != NOWHERE], op[op != NOWHERE]


class HtaFrame(NamedTuple):
    """Rows as HTA takes them: ``symbols`` by number, and ``columns`` of int64.

    Position p is row ``p - 1`` of the columns, as HTA takes position 0 for "partner missing"; it is row
    ``device_op[p]`` of ``trace.device``, ``call[p]`` of ``trace.calls``, or NOWHERE.
    """

    symbols: tuple[str, ...]
    columns: dict[str, I64]
    device_op: I64
    call: I64


def _symbols(kinds: U8, record: I64) -> tuple[str, ...]:
    """List the names of what is fed: HTA looks for waits and records by name and fails on an empty selection, so that
    there is none without a row."""
    waits = ["cudaStreamWaitEvent"] if (kinds == SyncKind.STREAM_WAIT).any() else []
    of_kinds = (text for kind, text in SYNC_SYMBOL.items() if (kinds == kind).any())
    return (*SYMBOLS, *of_kinds, *waits, *(["cudaEventRecord"] if len(record) else []))


def frame(feed: DeviceFeed, choice: Choice) -> HtaFrame:
    """Lay out ``choice`` for HTA: device rows, their launches, sync rows, their calls, records."""
    op, sync, record = choice
    kinds = feed.sync_kind[sync]
    waits = kinds == SyncKind.STREAM_WAIT
    names = _symbols(kinds, record)
    sym = {name: i for i, name in enumerate(names)}
    kind_symbol = np.array([sym.get(SYNC_SYMBOL[kind], -1) for kind in SyncKind])

    blocks = (len(op), len(op), len(sync), len(sync), len(record))
    ends = np.cumsum(blocks)
    position = [np.arange(end - size + 1, end + 1) for end, size in zip(ends, blocks, strict=True)]

    def column(*parts: I64 | I32 | int) -> I64:
        return stacked(blocks, parts)

    record_at = feed.sync_record[sync]
    awaited = record_at >= 0
    launch_rank, call_rank, record_rank = _ranks(feed.launch_rank[op], feed.call_rank[sync], feed.record_rank[record])
    op_rank, sync_rank = (sum(blocks[1::2]) + len(record) + r for r in _ranks(feed.op_rank[op], feed.sync_rank[sync]))
    ts = column(2 * op_rank, 2 * launch_rank, 2 * sync_rank - 1, 2 * call_rank, 2 * record_rank)
    columns = {
        "index": column(*position),
        "ts": ts,
        "dur": np.ones_like(ts),
        "end": ts + 1,
        # Launches and records are of a category of which HTA makes no nodes: none of their nodes is in a SYNC edge.
        "cat": column(sym["kernel"], sym["launch"], sym["cuda_sync"], sym["cuda_runtime"], sym["launch"]),
        "name": column(
            sym["kernel"],
            sym["cudaLaunchKernel"],
            kind_symbol[kinds],
            np.where(waits, sym.get("cudaStreamWaitEvent", -1), sym["sync call"]),
            sym.get("cudaEventRecord", -1),
        ),
        "pid": column(0, 1, 0, 1, 1),
        "tid": column(0, feed.launch_thread[op], 0, feed.call_thread[sync], 0),
        "stream": column(feed.op_stream[op], -1, feed.sync_stream[sync], -1, -1),
        "correlation": column(position[0], position[0], position[2], position[2], position[4]),
        "index_correlation": column(position[1], position[0], position[3], position[2], 0),
        "wait_on_stream": column(-1, -1, np.where(awaited, np.append(feed.record_stream, -1)[record_at], -1), -1, -1),
        "wait_on_cuda_event_record_corr_id": column(
            -1, -1, np.where(awaited, ends[3] + 1 + np.searchsorted(record, record_at), -1), -1, -1
        ),
    }
    device_op = np.append(NOWHERE, column(feed.op[op], NOWHERE, NOWHERE, NOWHERE, NOWHERE))
    return HtaFrame(
        names, columns, device_op, np.append(NOWHERE, column(NOWHERE, NOWHERE, NOWHERE, feed.sync_call[sync], NOWHERE))
    )
