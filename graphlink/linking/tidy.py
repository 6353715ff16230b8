"""Rows that cannot be, put right once, before anything reads them: rows that are there twice, calls inside themselves,
numbers of calls that come again, device ops that run into those behind them, marks of steps that overlap.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import numpy as np

from graphlink.linking.call_roles import Role, roles
from graphlink.linking.launch import rounding_ns
from graphlink.model import I64, NOWHERE, Bool, CallRows, DeviceKind, SyncKind, Trace
from graphlink.patterns import GRAPH_LAUNCH, fits
from graphlink.records import counted
from graphlink.spans import Neighbours
from graphlink.steps import step_marks
from graphlink.tables import (
    MOST,
    begins,
    codes,
    counted_from,
    how_many,
    in_order,
    largest,
    last_before,
    lookup,
    marked,
    numbered_texts,
    spread,
    successive,
    take,
    tuples,
    unused,
    values_at,
)

_SAID: Final = {
    "rows-twice": ("row", " there twice: counted once"),
    "calls-twice": (
        "API call",
        " inside a call with the same correlation id, as if recorded twice: the outer one counts",
    ),
    "repeated-calls": (
        "API call",
        " with the correlation id of an earlier call: device ops go to the one that flow or "
        "External id tells, else to the last that began before",
    ),
    "syncs-without-id": (
        "cuda_sync row",
        " without a correlation id that a call has: of the one synchronisation call that lasted around it",
    ),
}
AT_END_NS: Final = 1_000  # what recorders are off by at the end of a mark
_KIND: Final = np.full(len(Role), NOWHERE, np.int64)  # of sync rows of calls of each role
_KIND[[Role.STREAM_WAIT, Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC, Role.EVENT_QUERY]] = [
    SyncKind.STREAM_WAIT,
    SyncKind.STREAM,
    SyncKind.DEVICE,
    SyncKind.EVENT,
    SyncKind.EVENT,
]
_OF_HOST: Final = ("end_ns", "tid", "name", "rf_id", "seq_id", "annotation")
_OF_CALLS: Final = ("end_ns", "tid", "name", "correlation")
_OF_SYNCS: Final = ("end_ns", "kind", "device", "stream", "correlation", "record", "event")
_OF_DEVICE: Final = ("end_ns", "device", "stream", "name", "graph_node")  # the call of one of them may not be told


def tidy(trace: Trace) -> Trace:
    """Return the trace with such rows put right; ``mended`` counts them by kind, and warnings tell. O(n log n).

    A row counts once if all that is recorded of it is there twice, and a call inside a call of its number is that call.
    """
    host, calls, device, syncs = trace.host, trace.calls, trace.device, trace.syncs
    sure = (host.rf_id > 0) | (rounding_ns(trace) == 0)
    several = fits(GRAPH_LAUNCH, trace.strings)[calls.name]  # calls that many device ops have
    alone = np.isin(device.correlation, calls.correlation[~several & (calls.correlation > 0)])
    twice = {
        "host": (_twice(host, _OF_HOST, trace) & sure) | _twice(host, (*_OF_HOST, "order"), trace, least_ns=0),
        "calls": _twice(calls, _OF_CALLS, trace),
        "syncs": _twice(syncs, _OF_SYNCS, trace, least_ns=0) & (syncs.correlation > 0),
        "device": _twice(device, _OF_DEVICE, trace)
        | (_twice(device, (*_OF_DEVICE, "correlation"), trace, least_ns=0) & alone),
    }
    mended = {"rows-twice": sum(map(np.count_nonzero, twice.values()))}
    trace = replace(trace, **{name: take(getattr(trace, name), ~again) for name, again in twice.items() if again.any()})
    calls, mended["calls-twice"] = _outermost(trace.calls)
    trace, mended["repeated-calls"] = _numbered(replace(trace, calls=calls))
    trace, mended["syncs-without-id"] = _syncs_by_time(trace)
    trace, mended["ends-overrun"], said = _clipped(trace)
    trace, mended["steps-overlap"], overlaps = _one_after_the_other(trace)
    mended["repeated-calls"] += trace.mended.get("repeated-calls", 0)
    found = {kind: int(count) for kind, count in mended.items() if count}
    told = [f"{counted(count, _SAID[kind][0])}{_SAID[kind][1]}" for kind, count in found.items() if kind in _SAID]
    return replace(trace, mended={**trace.mended, **found}, warnings=(*trace.warnings, *told, *overlaps, *said))


def _one_after_the_other(trace: Trace) -> tuple[Trace, int, list[str]]:
    """End each mark of a step where the next of its kind begins that ends later: steps of a thread follow each other,
    but for a mark that lies wholly inside another. And where an op or a call begins that outlasts it, at its very end.
    """
    host, calls, rows = trace.host, trace.calls, np.flatnonzero(step_marks(trace))
    names = [re.sub(r"\d+", "", trace.strings[code]) for code in host.name[rows].tolist()]
    lane = codes(numbered_texts(names)[0], host.tid[rows])
    order = np.lexsort((-host.end_ns[rows], host.start_ns[rows], lane))
    rows, lane = rows[order], lane[order]
    ends, first = host.end_ns[rows], np.append(np.flatnonzero(begins(lane)), len(rows))
    inside = np.zeros(len(rows), np.bool_)
    for k, until in tuples(first[:-1], first[1:]):
        inside[k + 1 : until] = ends[k + 1 : until] <= np.maximum.accumulate(ends[k : until - 1])
    mark, later = successive(rows[~inside], spread(len(host.tid), rows, lane))
    tid, start_ns, end_ns = (
        np.append(getattr(host, name)[~host.annotation], getattr(calls, name)) for name in ("tid", "start_ns", "end_ns")
    )
    behind = last_before((tid,), start_ns, (host.tid[rows],), ends)
    early_ns = ends - values_at(start_ns, behind, 0)
    outlasts = (values_at(end_ns, behind, 0) > ends) & (early_ns > rounding_ns(trace)) & (early_ns <= AT_END_NS)
    over_ns = largest(len(host.tid), mark, host.end_ns[mark] - host.start_ns[later], 0)
    over_ns[rows[outlasts]] = np.maximum(over_ns[rows], early_ns)[outlasts]
    count = how_many(over_ns > 0)
    said = (
        f"{counted(count, 'mark')} of steps running into the next one, or what is behind it, by up to "
        f"{over_ns.max(initial=0) / 1e3:,.3f} us: cut where that begins"
    )
    return replace(trace, host=replace(host, end_ns=host.end_ns - over_ns)), count, [said] * (count > 0)


def _twice(table: Any, names: tuple[str, ...], trace: Trace, least_ns: int | None = None) -> Bool:
    """Mark the rows that repeat one before in all of their columns; what takes no time cannot be told from another, but
    by a number of its own (``least_ns`` 0)."""
    start_ns = table.start_ns
    near = ~begins(start_ns)
    near[:-1] |= near[1:]
    least_ns = rounding_ns(trace) + 1 if least_ns is None else least_ns
    rows = np.flatnonzero(near & (table.end_ns - start_ns >= least_ns))
    columns = [start_ns[rows], *(getattr(table, name)[rows] for name in names)]
    told = getattr(table, "correlation", start_ns)[rows] > 0
    order = np.lexsort((~told, *columns[::-1]))
    return marked(len(start_ns), rows[order[~begins(*(column[order] for column in columns))]])


def _outermost(calls: CallRows) -> tuple[CallRows, int]:
    """Return (calls, how many are gone): those that lie in another of their number, the driver's in the runtime's."""
    count = len(calls.start_ns)
    while True:
        order = np.lexsort((-calls.end_ns, calls.start_ns, calls.correlation, calls.tid))
        outer, inner = successive(order, calls.tid, calls.correlation)
        inside = inner[(calls.end_ns[inner] <= calls.end_ns[outer]) & (calls.correlation[inner] > 0)]
        if not len(inside):
            return calls, count - len(calls.start_ns)
        calls = take(calls, ~marked(len(calls.start_ns), inside))


def _numbered(trace: Trace) -> tuple[Trace, int]:
    """Give calls whose number an earlier one has another, and the rows that belong to them: a row is of the last call
    of its number that began before it, which a device's clock may show up to so much late as some ops begin before
    their call.
    """
    calls, device, syncs, events = trace.calls, trace.device, trace.syncs, trace.events
    ids = calls.correlation
    again = lookup(ids, ids) != np.arange(len(ids))
    again &= ids > 0
    if not again.any():
        return trace, 0
    unique = np.where(again, unused(len(ids), ids, device.correlation, syncs.correlation), ids)
    repeated = np.isin(ids, ids[again])
    once = lookup(np.where(repeated, 0, ids), device.correlation)
    lag_ns = (device.start_ns - calls.start_ns[once])[once != NOWHERE]
    early_ns = -min(int(np.percentile(lag_ns, 1)) if len(lag_ns) else 0, 0)

    def new(asked: I64, at_ns: I64) -> I64:
        rows = np.flatnonzero(np.isin(asked, ids[again]))
        by = last_before((ids,), calls.start_ns, (asked[rows],), at_ns[rows] + 1)
        by = np.where(by == NOWHERE, lookup(ids, asked[rows]), by)
        return spread(len(asked), rows, unique[by], 0) + np.where(marked(len(asked), rows), 0, asked)

    late_ns = device.start_ns + early_ns
    return replace(
        trace,
        calls=replace(calls, correlation=unique),
        device=replace(device, correlation=new(device.correlation, late_ns)),
        syncs=replace(syncs, correlation=new(syncs.correlation, syncs.end_ns), record=new(syncs.record, syncs.end_ns)),
        events=replace(events, correlation=new(events.correlation, np.full(len(events.correlation), MOST - 1))),
    ), int(again.sum())


def _syncs_by_time(trace: Trace) -> tuple[Trace, int]:
    """Give a ``cuda_sync`` row whose correlation no call has, and the call, one in common: where one call of its kind
    alone lasted around the row, around no other one, and only one of the two has a correlation, or neither.
    """
    calls, syncs, slack_ns = trace.calls, trace.syncs, rounding_ns(trace)
    kind = _KIND[roles(calls, trace.strings)]
    kind[np.isin(calls.correlation, syncs.correlation[syncs.correlation > 0])] = NOWHERE
    row = np.flatnonzero(lookup(calls.correlation, syncs.correlation) == NOWHERE)
    if not len(row):
        return trace, 0
    rows = Neighbours.of(syncs.kind[row].astype(np.int64), syncs.start_ns[row])
    call = np.flatnonzero(rows.axis.has(kind))
    until_ns = calls.end_ns + slack_ns + 1  # of several on a thread the last is around a row
    earlier, later = successive(in_order(call, calls.tid, kind, calls.start_ns), calls.tid, kind)
    until_ns[earlier] = np.minimum(until_ns[earlier], calls.start_ns[later] - slack_ns)
    first, end = (
        np.searchsorted(rows.at_ns, rows.axis.clipped(kind[call], at_ns[call]))
        for at_ns in (calls.start_ns - slack_ns, until_ns)
    )
    count = np.maximum(end - first, 0)
    row, call = row[rows.row[counted_from(first, count)]], np.repeat(call, count)
    around = calls.end_ns[call] + slack_ns >= syncs.end_ns[row]
    row, call = row[around], call[around]
    alone = (np.bincount(row)[row] == 1) & (np.bincount(call)[call] == 1)
    of_syncs, of_calls = syncs.correlation.copy(), calls.correlation.copy()
    alone &= (of_syncs[row] <= 0) | (of_calls[call] <= 0)
    row, call = row[alone], call[alone]
    fresh = unused(len(row), of_calls, of_syncs, trace.device.correlation, trace.events.correlation)
    ids = np.maximum(of_syncs[row], of_calls[call])
    of_syncs[row] = of_calls[call] = np.where(ids > 0, ids, fresh)
    syncs, calls = replace(syncs, correlation=of_syncs), replace(calls, correlation=of_calls)
    return replace(trace, calls=calls, syncs=syncs), len(row)


def _least_from(values: I64, *lane: I64) -> I64:
    """Return the least of each value and those behind it in its lane, whose rows follow each other."""
    out, first = values.copy(), np.append(np.flatnonzero(begins(*lane)), len(values))
    for begin, until in tuples(first[:-1], first[1:]):
        out[begin:until] = np.minimum.accumulate(values[begin:until][::-1])[::-1]
    return out


def _clipped(trace: Trace) -> tuple[Trace, int, list[str]]:
    """End each device op where the next of its stream begins, if one behind it ended before it did: no stream does
    that. What ends before the next one ends is launched ahead (programmatic dependent launch), and stays; so do the
    nodes of one graph.
    """
    device = trace.device
    took = np.flatnonzero((device.end_ns > device.start_ns) & (device.kind != DeviceKind.HOST))  # on another clock
    order = took[np.lexsort((took, device.stream[took], device.device[took]))]
    call = lookup(trace.calls.correlation, device.correlation[order])
    launched_ns = values_at(trace.calls.start_ns, call, MOST)
    back = (call != NOWHERE) & (launched_ns > _least_from(launched_ns, device.device[order], device.stream[order]))
    order = order[~back]  # what began before an earlier launch of its stream did is on a clock that was set back
    if not len(order):
        return trace, 0, []
    lane = codes(device.device[order], device.stream[order])
    ends = device.end_ns[order]
    soonest = _least_from(ends, lane)  # end of what ends first of an op and those behind it on its stream
    past = (lane[1:] == lane[:-1]) & (ends[:-1] > soonest[1:] + rounding_ns(trace))
    number = device.correlation[order]
    past &= (number[1:] != number[:-1]) | (number[1:] <= 0)
    row, begin = order[:-1][past], device.start_ns[order[1:][past]]
    if not len(row):
        return trace, 0, []
    cut_ns = spread(len(device.end_ns), row, device.end_ns[row] - begin, 0)
    most = int(np.argmax(cut_ns))
    took_ns = int(device.end_ns[most] - device.start_ns[most])
    said = (
        f"{len(row):,} device ops are recorded as running on behind others of their stream, "
        f"{cut_ns.sum() / 1e6:,.3f} ms in all: taken to end where the next begins; the largest is "
        f"{trace.strings[device.name[most]]:.80}, recorded with {took_ns / 1e6:,.3f} ms, on device "
        f"{device.device[most]}, stream {device.stream[most]}"
    )
    return replace(trace, device=replace(device, end_ns=device.end_ns - cut_ns, cut_ns=cut_ns)), len(row), [said]
