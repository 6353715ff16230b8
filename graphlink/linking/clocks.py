"""The lead of a device's clock over the host's, and device rows brought onto the host's clock (CONTRACT, "Clocks of
host and device").

What must hold says where the clock is: no op begins before its launch call, no wait is over before what it waited for,
and a kernel that finds its stream idle begins a steady time after its launch call returned. That time is counted from
the *end* of the call, as the call rings the doorbell last: from its start it differs by the length of the call (V100 7
to 13 us), from its end it is the same on all recordings of an API (docs/edges.md, "Clocks"). All of it moves with the
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graphlink.choices import LATENCY_NS
from graphlink.linking.call_roles import call_order
from graphlink.linking.clock_evidence import (
    FEWEST,
    MOST_NS,
    NEAR_NS,
    NOISE_NS,
    STEPS_NS,
    Evidence,
    Windows,
    evidence_of,
    last_of,
    launches_of,
    of_devices,
    preceding,
    returned,
    roughly_ns,
    slope,
    waits_of,
)
from graphlink.linking.launch import joined, node_pairs, rounding_ns
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool, DeviceClock, DeviceClocks, DeviceKind, SyncKind, Trace
from graphlink.records import counted
from graphlink.spans import Neighbours
from graphlink.tables import (
    codes,
    concat,
    how_many,
    in_order,
    largest,
    last_before,
    least,
    lookup,
    numbered_rows,
    numbered_values,
    places,
    spread,
    successive,
    sums,
    take,
    values_at,
)

PAUSE_NS: Final = 10_000  # of a device, in which no op is left that was launched before
STEP_NS: Final = 2_000  # smaller changes between windows are drift and noise
_EVER, _NEVER = np.iinfo(np.int64).max // 2, np.iinfo(np.int64).min // 2


def on_host_clock(trace: Trace) -> Trace:
    """Bring the device rows onto the host's clock: each starts and ends ``Trace.clocks.offset_ns`` earlier. O(n
    log n).

    Devices whose clock is far off are first brought near, as evidence is looked for near the host's clock.
    """
    call = _launched(trace)
    waits = waits_of(trace, call)
    far_ns, clock = _far_off(trace, call, waits)
    near, order = _moved(trace, far_ns)
    far_ns, clock, call = far_ns[order], clock[order], call[order]
    if far_ns.any() or np.any(order[1:] < order[:-1]):
        waits = waits_of(near, call)
    rows = {number: _in_order(near, (number,)) for number in np.unique(near.device.device).tolist()}
    stepped = {
        number: near.device.start_ns[row[1:]][(np.diff(clock[row]) != 0) & (np.abs(np.diff(far_ns[row])) > STEPS_NS)]
        for number, row in rows.items()  # a clock that drifts does not step in a pause
    }
    found = clocks(near, call, waits, stepped)
    offset_ns = found.offset_ns + far_ns
    extents = {clock.device: offset_ns[near.device.device == clock.device] for clock in found.devices}
    devices = tuple(
        msgspec.structs.replace(clock, offset_ns=(int(ns.min()), int(ns.max())))
        for clock, ns in zip(found.devices, extents.values(), strict=True)
    )
    trace, order = _moved(near, found.offset_ns, _between(near, found.offset_ns))
    clocked, counters = take(DeviceClocks(offset_ns, devices), order), trace.counters
    if counters is not None:  # as the row before each
        own_ns = trace.device.start_ns + clocked.offset_ns
        row = last_before((trace.device.device,), own_ns, (counters.device,), counters.ns)
        counters = replace(counters, ns=counters.ns - values_at(clocked.offset_ns, row, 0))
    return _ended_by_waits(replace(trace, clocks=clocked, counters=counters), call[order])


def _ended_by_waits(trace: Trace, call: I32) -> Trace:
    """End the last op of a stream where the first wait for it returned, if it is recorded as running on for longer than
    clocks are apart: no op behind it shows its end (``tidy``), and a wait that is over does.
    """
    device, waits = trace.device, waits_of(trace, call)
    past_ns = largest(len(device.end_ns), waits.op[waits.exact], waits.ahead_ns[waits.exact])
    before = preceding(device.start_ns, device.device, device.stream)
    past_ns[before[before != NOWHERE]] = 0  # others are behind it
    cut_ns = np.where((past_ns > NEAR_NS) & (device.end_ns - past_ns > device.start_ns), past_ns, 0)
    if not cut_ns.any():
        return trace
    most, count = int(cut_ns.argmax()), how_many(cut_ns > 0)
    said = (
        f"{counted(count, 'device op')} at the end of a stream, recorded as running on for up to "
        f"{cut_ns[most] / 1e6:,.3f} ms after a wait for it was over: taken to end there; the largest is "
        f"{trace.strings[device.name[most]]:.80}, on device {device.device[most]}, stream {device.stream[most]}"
    )
    cut = cut_ns if device.cut_ns is None else device.cut_ns + cut_ns
    return replace(
        trace,
        device=replace(device, end_ns=device.end_ns - cut_ns, cut_ns=cut),
        mended={**trace.mended, "ends-overrun": trace.mended.get("ends-overrun", 0) + count},
        warnings=(*trace.warnings, said),
    )


def _launched(trace: Trace) -> I32:
    """Find the call of each row that is on a device's clock: host nodes of CUDA graphs are not."""
    return np.where(trace.device.kind == DeviceKind.HOST, NOWHERE, joined(trace)).astype(np.int32)


def _between(trace: Trace, by_ns: I64) -> I64:
    """Return by how much earlier each node of a CUDA graph that calls the host was than recorded: it is on the host's
    clock, and as device rows are earlier ``by_ns`` no earlier than what it waited for, no later than what waited for
    it. That is exact, how far clocks are apart is not.
    """
    device, (_, source, target) = trace.device, node_pairs(trace)
    after_ns = largest(len(by_ns), target, (device.end_ns - by_ns)[source], _NEVER)
    until_ns = least(len(by_ns), source, (device.start_ns - by_ns)[target], _EVER)
    return np.asarray(np.clip(0, device.end_ns - until_ns, device.start_ns - after_ns))


def _moved(trace: Trace, by_ns: I64, on_host_ns: I64 | int = 0) -> tuple[Trace, I64]:
    """Return (the trace with each device row earlier by so much, the order in which its rows then are)."""
    device, by_ns = trace.device, np.where(trace.device.kind == DeviceKind.HOST, on_host_ns, by_ns)
    moved = replace(device, start_ns=device.start_ns - by_ns, end_ns=device.end_ns - by_ns)
    order = np.lexsort((moved.end_ns, moved.start_ns))
    return replace(trace, device=take(moved, order)), order


def _far_off(trace: Trace, call: I32, waits: Evidence) -> tuple[I64, I64]:
    """Estimate how far the clock of each row's device is off, 0 up to ``NEAR_NS``, which needs no first estimate; and
    number these clocks.

    Devices that agree, and those of which little shows it and whose rows allow it, have one clock. Where none shows it
    alone, all together may. A clock that steps by more than it may be off later is one before and another after.
    """
    device = trace.device
    allowed: dict[int, tuple[int, int]] = {}
    stepped = set[int]()
    exact = np.flatnonzero(waits.exact & ((waits.begun_ns - waits.ahead_ns > LATENCY_NS) | (waits.ahead_ns > NOISE_NS)))
    launched_ns = np.where(call == NOWHERE, device.start_ns, values_at(trace.calls.start_ns, call, 0))
    returned_ns = np.where(call == NOWHERE, _EVER, device.start_ns - values_at(trace.calls.end_ns, call, 0))
    before = preceding(launched_ns, device.device, device.stream)
    alone_ns = np.where(before == NOWHERE, _EVER, device.start_ns - device.end_ns[before])
    off_ns: dict[int, int | None] = {}
    shown: list[tuple[I64, I64, I64]] = []
    out, clock = np.zeros(len(call), np.int64), np.zeros(len(call), np.int64)
    paused_ns = np.zeros(len(call), np.int64)
    lag_ns = np.where(call == NOWHERE, _EVER, device.start_ns - launched_ns)
    for number in np.unique(device.device).tolist():
        row = _in_order(trace, (number,))
        begun_ns = device.start_ns - device.start_ns[row[0]]
        paused_ns[row] = np.append(_EVER, device.start_ns[row][1:] - np.maximum.accumulate(device.end_ns[row])[:-1])
        row_of = row[call[row] != NOWHERE]
        over = exact[device.device[waits.op[exact]] == number]
        at_ns, ahead_ns = begun_ns[waits.op[over]], waits.ahead_ns[over]
        rate = slope(begun_ns[row_of], lag_ns[row_of], alone_ns[row_of] >= NEAR_NS, at_ns, ahead_ns)
        out[row] = np.round(rate * begun_ns[row] / trace.resolution_ns).astype(np.int64) * trace.resolution_ns
        least_ns = largest(len(call), waits.op[over], ahead_ns, _NEVER) - out
        row = in_order(row, launched_ns)
        by, together_ns = together(returned_ns[row] - out[row], paused_ns[row] >= PAUSE_NS)
        np.maximum.at(least_ns, row[by], together_ns)
        clock[row] = clock.max() + 1 + _steps(least_ns[row], lag_ns[row] - out[row], alone_ns[row])
        stepped |= set(clock[row].tolist()) if np.ptp(clock[row]) else set()
    for number in np.unique(clock).tolist():
        row = np.flatnonzero((clock == number) & (call != NOWHERE))
        over = exact[clock[waits.op[exact]] == number]
        late_ns, ahead_ns = lag_ns[row] - out[row], waits.ahead_ns[over] - out[waits.op[over]]
        idle = paused_ns[row] >= (PAUSE_NS if number in stepped else NEAR_NS)
        shown.append((late_ns, late_ns[idle], ahead_ns))
        off_ns[number] = roughly_ns(*shown[-1])
        allowed[number] = int(ahead_ns.max(initial=_NEVER)) - NOISE_NS, int(late_ns.min(initial=_EVER)) + NOISE_NS
    told = [ns for ns in off_ns.values() if ns is not None]
    usual = int(np.median(told)) if told and max(told) - min(told) <= NEAR_NS else 0
    if not told and len(shown) > 1:
        usual = roughly_ns(*map(np.concatenate, zip(*shown, strict=True))) or 0
    for number, ns in off_ns.items():
        low, high = allowed[number]
        by_ns = usual if usual and (ns is not None or low <= usual <= high) else ns or 0
        out[clock == number] += by_ns if abs(by_ns) > NEAR_NS else 0
    return out, clock


def together(lag_ns: I64, idle: Bool) -> tuple[I64, I64]:
    """Return (last row, least lag) of each ``FEWEST`` launches on the idle device that began together, none between
    them sooner. Rows in order of launch."""
    at = np.flatnonzero(idle & (lag_ns < _EVER // 2))
    if len(at) < FEWEST:
        return EMPTY, EMPTY
    soonest_ns = sliding_window_view(np.minimum.reduceat(lag_ns, at), FEWEST).min(axis=1)
    shown = sliding_window_view(lag_ns[at], FEWEST).max(axis=1) - soonest_ns <= STEPS_NS
    return at[FEWEST - 1 :][shown], soonest_ns[shown]


def _steps(least_ns: I64, most_ns: I64, alone_ns: I64) -> I64:
    """Number the clocks of a device's rows, in order of launch: another begins where waits and launches contradict
    those before by more than ``NEAR_NS``, behind all that contradict it, at the row that begins latest, or earliest,
    after the one before it on its stream.

    All of a device have one where a clock would be that of less than ``FEWEST`` rows: those are damaged.
    """
    out = np.zeros(len(least_ns), np.int64)
    least_ns = np.where(least_ns > most_ns, _NEVER, least_ns - NEAR_NS)
    for low, _, last, end in [*_agreeing(least_ns, most_ns, 0, len(out))][:-1]:
        against = (most_ns[last:end] < least_ns[end]) | (least_ns[last:end] > most_ns[end])
        last += int(np.flatnonzero(against)[-1])
        late_ns = alone_ns[last + 1 : end + 1]
        late_ns = np.where(late_ns == _EVER, -_EVER, -late_ns if most_ns[end] < low else late_ns)
        out[last + 1 + int(late_ns.argmax()) :] += 1
    return out if np.bincount(out).min() >= FEWEST else np.zeros_like(out)


def clocks(trace: Trace, call: I32, waits: Evidence, stepped: Mapping[int, I64]) -> DeviceClocks:
    """Estimate the clock offset of every device row. ``call``: of each row its launch call by correlation, NOWHERE
    without one; ``waits``: what calls waited for. ``stepped``: times at which the clock of a device is known to step.

    O(n log n).
    """
    out = np.zeros(len(call), np.int64)
    order = order_of(trace, call)
    waits = concat(waits, order.waits)
    numbers = np.unique(trace.device.device).tolist()
    launches = {number: launches_of(trace, call, _in_order(trace, (number,))) for number in numbers}
    evidence: dict[int, Evidence] = {}
    anchored: set[int] = set()
    changed = dict(stepped)
    for known in (False, True):  # first wherever the clock is within its steps, then by what was found
        for number, one in launches.items():
            idle = one.late_ns <= (out[one.shown.op] + NOISE_NS if known else one.first_ns + STEPS_NS)
            evidence[number] = evidence_of(one, idle, take(waits, trace.device.device[waits.op] == number))
        anchored = set()
        for devices, windows in of_devices(evidence, trace.resolution_ns, changed):
            anchored |= set(devices) if any(evidence[number].anchored for number in devices) else set()
            rows = _rows(trace, call, waits, order, devices)
            out[rows.row] = _offsets(windows, rows)
            changes_ns = rows.start_ns[1:][np.diff(out[rows.row]) != 0]
            changed |= dict.fromkeys(devices, changes_ns)
    return DeviceClocks(out, tuple(_described(n, out[_in_order(trace, (n,))], anchored=n in anchored) for n in numbers))


def _described(device: int, offset_ns: I64, *, anchored: bool) -> DeviceClock:
    jumps = np.abs(np.diff(offset_ns))
    return DeviceClock(
        device=device,
        windows=how_many(jumps) + 1,
        offset_ns=(int(offset_ns.min()), int(offset_ns.max())),
        steps=how_many(jumps >= STEP_NS),
        anchored=anchored,
    )


def _in_order(trace: Trace, devices: tuple[int, ...]) -> I64:
    """Return the rows of some devices in order of start."""
    row = np.flatnonzero(np.isin(trace.device.device, devices))
    return in_order(row, trace.device.start_ns)


class _ClockRows(msgspec.Struct, frozen=True):
    """The rows of devices with one clock, in order of start, on that clock.

    The clock is at least ``least_ns`` ahead, by exact waits for the row, and at most ``most_ns``, by its launch call.
    ``idle_ns``: they had been idle for that long when it started. ``pairs`` are of positions in these columns, in order
    of ``after``.
    """

    row: I64
    start_ns: I64
    least_ns: I64
    most_ns: I64
    idle_ns: I64
    pairs: Succession
    rounding_ns: int


def _rows(trace: Trace, call: I32, waits: Evidence, order: Succession, devices: tuple[int, ...]) -> _ClockRows:
    device, row = trace.device, _in_order(trace, devices)
    start_ns, end_ns = device.start_ns[row], device.end_ns[row]
    least_ns = largest(len(call), waits.op[waits.exact], waits.ahead_ns[waits.exact], _NEVER)
    has = call[row] != NOWHERE
    most_ns = spread(len(row), has, start_ns[has] - trace.calls.start_ns[call[row[has]]], _EVER)
    idle_ns = np.append(_EVER, start_ns[1:] - np.maximum.accumulate(end_ns)[:-1])
    place = places(row, len(call))
    before, after = place[order.before], place[order.after]
    keep = in_order(np.flatnonzero((before != NOWHERE) & (before < after)), after)
    pairs = take(replace(order, before=before, after=after), keep)
    return _ClockRows(row, start_ns, least_ns[row], most_ns, idle_ns, pairs, rounding_ns(trace))


def _offsets(windows: Windows, rows: _ClockRows) -> I64:
    """Return the offset of each row: that of its window, within the bounds of all rows of the window.

    Bounds that contradict each other are of two windows, though nothing else shows the step.
    """
    windows = _split(windows, _placed(windows, rows), rows)
    window = _placed(windows, rows)
    offset_ns = windows.offset_ns[window]
    least_ns, most_ns = _bounds(rows, offset_ns)
    low_ns = largest(len(windows.offset_ns), window, least_ns, _NEVER)
    high_ns = least(len(windows.offset_ns), window, most_ns, _EVER)
    return np.clip(offset_ns, low_ns[window], high_ns[window])  # where they still contradict each other, the launch's


def _bounds(rows: _ClockRows, offset_ns: I64) -> tuple[I64, I64]:
    """Return (least, most) of each row, but those that are off by more than a clock can be.

    A pair that contradicts the offsets bounds both of its rows: each is off by half of it, as far as it tells.
    """
    least = np.where(rows.least_ns - offset_ns <= MOST_NS, rows.least_ns, _NEVER)
    most = np.where(offset_ns - rows.most_ns <= MOST_NS, rows.most_ns, _EVER)
    pairs = rows.pairs
    off_ns = offset_ns[pairs.after] - offset_ns[pairs.before] - pairs.gap_ns
    bad = pairs.named & (off_ns > rows.rounding_ns)
    before, after, half_ns = pairs.before[bad], pairs.after[bad], off_ns[bad] // 2
    np.maximum.at(least, before, offset_ns[before] + off_ns[bad] - half_ns)
    np.minimum.at(most, after, offset_ns[after] - half_ns)
    return least, most


def _placed(windows: Windows, rows: _ClockRows) -> I64:
    """Choose the window of each row. A change stands where it breaks least: bounds of the rows between, and what came
    after what.
    """
    begins = np.zeros(len(windows.offset_ns), np.int64)
    earliest = np.minimum.accumulate(rows.pairs.before[::-1])[::-1]  # of all pairs from one on
    for k in range(1, len(begins)):
        low = int(np.searchsorted(rows.start_ns, windows.after_ns[k], side="right"))
        high = max(low, int(np.searchsorted(rows.start_ns, windows.by_ns[k], side="left")))
        old, new = int(windows.offset_ns[k - 1]), int(windows.offset_ns[k])
        before, after = (np.cumsum(np.append(0, _off_ns(rows, slice(low, high), offset))) for offset in (old, new))
        pairs = slice(int(np.searchsorted(rows.pairs.after, low)), int(np.searchsorted(earliest, high)))
        cost = before + after[-1] - after + _disorder_ns(rows, pairs, (low, high), new - old)
        best = np.flatnonzero(cost == cost.min())[::-1]
        idle_ns = rows.idle_ns[np.minimum(low + best, len(rows.idle_ns) - 1)]
        begins[k] = low + best[int(idle_ns.argmax())]
    return np.searchsorted(np.maximum.accumulate(begins), np.arange(len(rows.start_ns)), side="right") - 1


def _disorder_ns(rows: _ClockRows, pairs: slice, between: tuple[int, int], step_ns: int) -> I64:
    """Measure by how much ``pairs`` of rows are in the wrong order where the clock steps before row ``between[0]``,
    ..., ``between[1]``.
    """
    low, high = between
    before, after, gap_ns = rows.pairs.before[pairs], rows.pairs.after[pairs], rows.pairs.gap_ns[pairs]
    apart_ns = np.maximum(step_ns - gap_ns, 0) - np.maximum(-gap_ns, 0)
    change_ns = sums(high - low + 2, np.clip(before + 1 - low, 0, high + 1 - low), apart_ns)
    np.subtract.at(change_ns, np.minimum(after, high) + 1 - low, apart_ns)
    return np.cumsum(change_ns)[:-1]


def _off_ns(rows: _ClockRows, part: slice, offset_ns: int) -> I64:
    """Measure by how much an offset breaks the bounds of each row; what is off by more than a clock can be does not
    count.
    """
    off = np.maximum(np.maximum(rows.least_ns[part] - offset_ns, offset_ns - rows.most_ns[part]), 0)
    return np.where(off > MOST_NS, 0, off)


def _split(windows: Windows, window: I64, rows: _ClockRows) -> Windows:
    """Split into windows whose rows all agree: where bounds contradict those before them, another begins."""
    offset_ns = windows.offset_ns[window]
    least, most = _bounds(rows, offset_ns)
    least = np.where(least > most, _NEVER, least)  # a launch contradicts the wait for its own op: no clock does that
    firsts = np.searchsorted(window, np.arange(len(windows.offset_ns) + 1)).tolist()
    found: list[tuple[int, int, int]] = []
    for k, level in enumerate(windows.offset_ns.tolist()):
        after_ns, by_ns = int(windows.after_ns[k]), int(windows.by_ns[k])
        for low, high, binding, end in _agreeing(least, most, firsts[k], firsts[k + 1]):
            found.append((min(max(level, low), high), after_ns, by_ns))
            after_ns, by_ns = int(rows.start_ns[binding]), int(rows.start_ns[min(end, len(rows.start_ns) - 1)])
    table = np.array(found, np.int64).reshape(-1, 3)
    return Windows(table[:, 0], table[:, 1], table[:, 2], windows.cost_us)


def _agreeing(least: I64, most: I64, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fewest pieces of rows [first, last) in which no least is above a most: (least, most, binding row, end).

    Row ``binding`` is the last of the piece that contradicts row ``end``. Linear but for the pieces' last blocks.
    """
    at, low, high, low_at, high_at, size = first, _NEVER, _EVER, first, first, 1_024
    while at < last:
        part = slice(at, min(at + size, last))
        lows, highs = (
            np.maximum(np.maximum.accumulate(least[part]), low),
            np.minimum(np.minimum.accumulate(most[part]), high),
        )
        bad = np.flatnonzero(lows > highs)
        n = int(bad[0]) if len(bad) else len(lows)
        if n:
            low, high = int(lows[n - 1]), int(highs[n - 1])
            of_low, of_high = np.flatnonzero(least[part][:n] == low), np.flatnonzero(most[part][:n] == high)
            low_at = at + int(of_low[-1]) if len(of_low) else low_at
            high_at = at + int(of_high[-1]) if len(of_high) else high_at
        at += n
        if len(bad):
            yield low, high, low_at if most[at] < low else high_at, at
            low, high, low_at, high_at, size = _NEVER, _EVER, at, at, 1_024
        else:
            size *= 2
    yield low, high, max(last - 1, 0), last


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
    lane, count = codes(device, stream), len(items[2])
    return Neighbours.of(lane[:count], place[:count]).since(lane[count:], place[count:] + 1)
