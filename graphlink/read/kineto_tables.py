"""From gathered columns to the sorted tables of ``model.Trace``. O(n log n); each column is copied once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from graphlink.errors import InputError
from graphlink.model import I64, CallRows, DeviceRows, EventRows, FlowRows, FrameRows, HostRows, OverheadRows, SyncRows
from graphlink.read.columns import MAX_NS, Parts
from graphlink.read.ranges import around_others, named_ranges, unnamed_ranges

MAX_SPAN_NS = 1 << 53  # 104 days: sums of times in float64 are exact below


class Clock:
    """Adds the recording's base to relative ns."""

    def __init__(self, base_ns: int, path: str):
        self._base_ns, self._path = base_ns, path

    def ns(self, parts: Parts, name: str) -> I64:
        """Column ``name`` as ns since the epoch. InputError beyond 2**62."""
        column: I64 = parts.column(name)
        if len(column) and max(abs(int(column.min()) + self._base_ns), abs(int(column.max()) + self._base_ns)) >= MAX_NS:
            raise InputError("an event's time plus baseTimeNanoseconds is beyond 2**62 ns", path=self._path, todo="record again")
        column += self._base_ns
        return column


def refuse_span(path: str, tables: Sequence[HostRows | CallRows | DeviceRows | SyncRows], lanes: int) -> None:
    """Later stages put all ``lanes`` (threads, streams) one behind the other on one int64 time axis.

    InputError where the events lie too far apart for that, as one with a damaged time does from all others.
    """
    there = [t for t in tables if len(t.start_ns)]
    if not there:
        return
    first_ns, last_ns = min(int(t.start_ns.min()) for t in there), max(int(t.end_ns.max()) for t in there)
    span_ns = last_ns - first_ns
    if span_ns < MAX_SPAN_NS and (span_ns + 1) * (lanes + 1) < MAX_NS:
        return
    raise InputError(
        f"its events lie {span_ns / 86_400e9:,.1f} days apart, more than one recording can last",
        path=path,
        where=f"the first starts at {first_ns} ns, the last ends at {last_ns} ns, baseTimeNanoseconds included",
        todo="remove the event with the wrong ts or dur, or record again",
    )


def host_rows(parts: Parts, clock: Clock, strings: Sequence[str], *, old: bool) -> HostRows:
    """``old``: rows of category ``Operator`` are among them."""
    start, end, place = clock.ns(parts, "start"), clock.ns(parts, "end"), parts.column("order")
    order = np.lexsort((place, -end, start))
    tid, name, shapes = parts.column("tid"), parts.column("name", np.int32), parts.column("shapes", np.int32)
    seq_id, fw_tid, annotation = parts.column("seq_id"), parts.column("fw_tid"), parts.column("annotation", np.bool_)
    own = named_ranges(name, strings)
    mixed = not annotation.any() and (old or own.any())
    annotation = annotation | own
    if mixed:
        numbered = (seq_id >= 0) | (fw_tid > 0)
        annotation |= unnamed_ranges(name, strings, shapes, numbered, around_others(start, end, tid))
    return HostRows(
        start_ns=start[order],
        end_ns=end[order],
        tid=tid[order],
        name=name[order],
        annotation=annotation[order],
        order=place[order],
        rf_id=parts.column("rf_id")[order],
        seq_id=seq_id[order],
        fw_tid=fw_tid[order],
        input_shapes=shapes[order],
        input_types=parts.column("types", np.int32)[order],
        comm=parts.comm_table(order),
    )


def call_rows(parts: Parts, clock: Clock) -> CallRows:
    start, end = clock.ns(parts, "start"), clock.ns(parts, "end")
    order = np.lexsort((-end, start))
    return CallRows(
        start_ns=start[order],
        end_ns=end[order],
        tid=parts.column("tid")[order],
        name=parts.column("name", np.int32)[order],
        correlation=parts.column("correlation")[order],
    )


def device_rows(parts: Parts, clock: Clock) -> DeviceRows:
    start, end = clock.ns(parts, "start"), clock.ns(parts, "end")
    order = np.lexsort((end, start))
    return DeviceRows(
        start_ns=start[order],
        end_ns=end[order],
        device=parts.column("device")[order],
        stream=parts.column("stream")[order],
        name=parts.column("name", np.int32)[order],
        kind=parts.column("kind", np.uint8)[order],
        correlation=parts.column("correlation")[order],
        bytes=parts.column("bytes")[order],
        comm=parts.comm_table(order),
    )


def sync_rows(parts: Parts, clock: Clock) -> SyncRows:
    start, end = clock.ns(parts, "start"), clock.ns(parts, "end")
    order = np.lexsort((end, start))
    return SyncRows(
        kind=parts.column("kind", np.uint8)[order],
        start_ns=start[order],
        end_ns=end[order],
        correlation=parts.column("correlation")[order],
        device=parts.column("device")[order],
        stream=parts.column("stream")[order],
        stream_known=parts.column("stream_known", np.bool_)[order],
        record=parts.column("record")[order],
        record_known=parts.column("record_known", np.bool_)[order],
        record_stream=parts.column("record_stream")[order],
        record_stream_known=parts.column("record_stream_known", np.bool_)[order],
        event=parts.column("event")[order],
        event_known=parts.column("event_known", np.bool_)[order],
    )


def event_rows(parts: Parts) -> EventRows:
    return EventRows(parts.column("correlation"), parts.column("device"), parts.column("stream"))


def flow_rows(parts: Parts, clock: Clock, left_out: Counter[str]) -> FlowRows:
    """Flow starts joined to flow ends by id, in the order of the starts' ids. What has no partner or a second one is counted."""
    ns, ident, tid = clock.ns(parts, "ns"), parts.column("ident"), parts.column("tid")
    end = parts.column("end", np.uint8)
    starts, ends = np.flatnonzero(end == 0), np.flatnonzero(end == 1)
    _, start_of, end_of = np.intersect1d(ident[starts], ident[ends], return_indices=True)
    left_out["fwdbwd without partner"] += len(ident) - 2 * len(start_of)
    forward, backward = starts[start_of], ends[end_of]
    return FlowRows(fwd_tid=tid[forward], fwd_ns=ns[forward], bwd_tid=tid[backward], bwd_ns=ns[backward])


def frame_rows(parts: Parts, clock: Clock) -> FrameRows | None:
    return FrameRows(parts.column("tid"), clock.ns(parts, "start"), clock.ns(parts, "end")) if parts.count else None


def overhead_rows(parts: Parts, clock: Clock) -> OverheadRows:
    start, end = clock.ns(parts, "start"), clock.ns(parts, "end")
    order = np.lexsort((end, start))
    return OverheadRows(start[order], end[order], parts.column("name", np.int32)[order])
