"""The order of work on the devices, whatever their clocks show: stream order, and waits of streams for events that rows
name exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.linking.call_roles import call_order
from graphlink.linking.clock_evidence import MOST_NS, Evidence, last_of, returned
from graphlink.model import I32, I64, NOWHERE, Bool, SyncKind, Trace
from graphlink.tables import codes, lookup, numbered_rows, numbered_values, successive, take


@dataclass(frozen=True, slots=True)
class Succession:
    """Device row ``after`` began ``gap_ns`` after row ``before`` had ended, by their clocks, and no earlier in truth.

    ``named`` by rows, else as both are on one stream. Pairs that are further apart than clocks are have no part in it.
    ``waits``: what ``before`` ended no later than, as the stream that waited for it was itself waited for.
    """

    before: I64
    after: I64
    gap_ns: I64
    named: Bool
    waits: Evidence


def order_of(trace: Trace, call: I32) -> Succession:
    """Return the order that a recording tells. ``call``: of each device row its launch call, NOWHERE without one. O(n
    log n).

    The rules are those of ``depend/cuda.py``: a stream that waits for an event holds its next op until all that was on
    the stream of the record before that has ended. A record counts where the number of its stream tells the device,
    too.
    """
    device, calls, syncs = trace.device, trace.calls, trace.syncs
    wait, record, number = _waiting(trace)
    launched = np.flatnonzero(call != NOWHERE)
    launched = launched[np.argsort(calls.start_ns[call[launched]], kind="stable")]
    source, at = last_of(trace, call, launched, number, syncs.record_stream[wait], record, np.arange(len(wait)))
    sync_call = lookup(calls.correlation, syncs.correlation)
    sync = np.flatnonzero((syncs.kind == SyncKind.STREAM) & syncs.stream_known & (sync_call != NOWHERE))
    place = call_order(calls)
    asked = syncs.device[wait[at]], syncs.stream[wait[at]], place[sync_call[wait[at]]]
    target = _next((device.device[launched], device.stream[launched], place[call[launched]]), asked)
    over = _next((syncs.device[sync], syncs.stream[sync], place[sync_call[sync]]), asked)
    held, known = target != NOWHERE, over != NOWHERE
    # exact, but no sign of how late a call returns: it may have waited for later work, too
    certain = np.ones(np.count_nonzero(known), np.bool_)
    waits = returned(trace, source[known], sync_call[sync[over[known]]], certain, ~certain)
    first, second = successive(
        np.lexsort((device.start_ns, device.stream, device.device)), device.device, device.stream
    )
    before, after = np.concatenate([first, source[held]]), np.concatenate([second, launched[target[held]]])
    gap_ns = device.start_ns[after] - device.end_ns[before]
    every = Succession(before, after, gap_ns, np.arange(len(before)) >= len(first), waits)
    return take(every, np.abs(gap_ns) <= MOST_NS)


def _waiting(trace: Trace) -> tuple[I64, I64, I64]:
    """Return (row, record call, device of the record) of waits of streams whose row names the record and its stream."""
    device, syncs = trace.device, trace.syncs
    streams = numbered_rows(device.stream, device.device)[0].tolist()
    devices = dict(streams)
    twice = {stream for k, (stream, _) in enumerate(streams) if k and streams[k - 1][0] == stream}
    wait = np.flatnonzero(
        (syncs.kind == SyncKind.STREAM_WAIT) & syncs.stream_known & syncs.record_known & syncs.record_stream_known
    )
    numbers, inverse = numbered_values(syncs.record_stream[wait])
    number = np.array(
        [NOWHERE if stream in twice else devices.get(stream, NOWHERE) for stream in numbers.tolist()], np.int64
    )[inverse]
    record = lookup(trace.calls.correlation, syncs.record[wait])
    keep = (
        (number != NOWHERE)
        & (record != NOWHERE)
        & (lookup(trace.calls.correlation, syncs.correlation[wait]) != NOWHERE)
    )
    return wait[keep], record[keep], number[keep]


def _next(items: tuple[I64, I64, I64], asked: tuple[I64, I64, I64]) -> I64:
    """Find for each ``asked`` the next item of columns (device, stream, place) on its stream, NOWHERE without one."""
    device, stream, place = (np.concatenate(column) for column in zip(items, asked, strict=True))
    lane = codes(device, stream)
    key, wanted = np.split(lane * (int(place.max(initial=0)) + 1) + place, [len(items[2])])
    order = np.argsort(key, kind="stable")
    out = np.append(order, NOWHERE)[np.searchsorted(key[order], wanted, side="right")]
    return np.where(lane[out] == lane[len(key) :], out, NOWHERE)
