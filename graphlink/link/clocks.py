"""How far a device's clock runs ahead of the host's, and device rows brought onto the host's clock (CONTRACT, "Clocks of host and device").

What must hold says where the clock is: no op begins before its launch call, no wait is over before what it waited for, and a kernel that
finds its stream idle begins a steady time after its launch call returned. That time is counted from the *end* of the call, as the call
rings the doorbell last: from its start it differs by the length of the call (V100 7 to 13 us), from its end it is the same on all
recordings of an API (docs/edges.md, "Clocks").

The offset is a step function of time, found as the cheapest path through levels: evidence below a level costs more than above it (nothing
begins early, much begins late), a change of level costs as much as several launches that disagree. All of it moves with the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.link.clock_evidence import MOST_NS, NOISE_NS, Evidence, Waits, evidence_of, launches_of, waits_of
from graphlink.link.launch import joined
from graphlink.model import I32, I64, NOWHERE, Bool, Clocks, CommTable, DeviceClock, DeviceRows, Trace

F64 = NDArray[np.float64]

USUAL_RETURN_NS: Final = 5_000  # a wait returns this long after what it waited for, where the recording does not show it
NEAR_NS: Final = 100_000_000  # a wait shows how late it returns beside launches no further off
STEP_NS: Final = 2_000  # smaller changes between windows are drift and noise
_LEVEL_NS: Final = 250
_MOST_LEVELS: Final = 600
_MOST_BLOCKS: Final = 2_000
CHANGE: Final = 25.0  # what a change of level costs, in us of disagreement
_ABOVE_US, _COLD_US, _BELOW_US, _WAIT_US = 6.0, 1.5, 8.0, 2.0  # disagreement of one launch or wait counts no more than this


def on_host_clock(trace: Trace) -> Trace:
    """Bring the device rows onto the host's clock: each starts and ends ``Trace.clocks.offset_ns`` earlier. O(n log n)."""
    found = clocks(trace, joined(trace))
    device = trace.device
    start_ns, end_ns = device.start_ns - found.offset_ns, device.end_ns - found.offset_ns
    order = np.lexsort((end_ns, start_ns))
    columns = {f.name: getattr(device, f.name)[order] for f in fields(device) if f.name != "comm"}
    columns |= {"start_ns": start_ns[order], "end_ns": end_ns[order]}
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    row = place[device.comm.row]
    by_row = np.argsort(row)
    comm = CommTable(row[by_row], tuple(device.comm.comms[i] for i in by_row.tolist()))
    return replace(trace, device=DeviceRows(**columns, comm=comm), clocks=Clocks(found.offset_ns[order], found.devices))


@dataclass(frozen=True, slots=True)
class _Windows:
    """Of one device: window k has ``offset_ns[k]`` and begins after ``after_ns[k]``, no later than at ``by_ns[k]`` (device clock).

    Between the two, nothing shows which of its neighbours an op belongs to.
    """

    offset_ns: I64
    after_ns: I64
    by_ns: I64


def clocks(trace: Trace, call: I32) -> Clocks:
    """Estimate the clock offset of every device row. ``call``: of each row its launch call by correlation, NOWHERE without one.

    O(n log n).
    """
    device = trace.device
    out = np.zeros(len(call), np.int64)
    waits = waits_of(trace, call)
    least_ns, most_ns = _bounds(trace, call, waits)
    found = []
    for number in np.unique(device.device).tolist():
        mine = device.device == number
        row = np.flatnonzero(mine)
        row = row[np.argsort(device.start_ns[row], kind="stable")]
        launches, own = launches_of(trace, call, mine), waits.of(mine)
        still = _Windows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
        window, anchored = np.zeros(len(row), np.int64), False
        for idle in (launches.roughly, launches.by):
            evidence = evidence_of(trace, launches, launches.of(idle(out)), own)
            anchored = evidence.anchored
            windows = _windows(evidence, trace.resolution_ns) if anchored else still
            window = _window_of(windows, device.start_ns[row], least_ns[row], most_ns[row])
            out[row] = windows.offset_ns[window]
        out[row] = _bounded(out[row], window, least_ns[row], most_ns[row])
        found.append(_described(number, out[row], anchored=anchored))
    return Clocks(out, tuple(found))


def _described(number: int, offset_ns: I64, *, anchored: bool) -> DeviceClock:
    jumps = np.abs(np.diff(offset_ns))
    return DeviceClock(
        device=number,
        windows=int(np.count_nonzero(jumps)) + 1,
        offset_ns=(int(offset_ns.min()), int(offset_ns.max())),
        steps=int(np.count_nonzero(jumps >= STEP_NS)),
        anchored=anchored,
    )


def _bounds(trace: Trace, call: I32, waits: Waits) -> tuple[I64, I64]:
    """The least and the most that the clock can be ahead at each device row, by exact waits for it and by its launch call."""
    device = trace.device
    least_ns = np.full(len(call), np.iinfo(np.int64).min // 2)
    np.maximum.at(least_ns, waits.op[waits.exact], waits.least_ns[waits.exact])
    most_ns = np.full(len(call), np.iinfo(np.int64).max // 2)
    has = call != NOWHERE
    most_ns[has] = device.start_ns[has] - trace.calls.start_ns[call[has]]
    return least_ns, most_ns


def _off_ns(offset_ns: I64 | int, least_ns: I64, most_ns: I64) -> I64:
    """By how much an offset breaks the bounds of each row; what is off by more than a clock can be does not count."""
    off = np.maximum(np.maximum(least_ns - offset_ns, offset_ns - most_ns), 0)
    out: I64 = np.where(off > MOST_NS, 0, off)
    return out


def _window_of(windows: _Windows, start_ns: I64, least_ns: I64, most_ns: I64) -> I64:
    """The window of each row, in order of start: changes stand where the bounds of the rows between are broken least."""
    begins = np.zeros(len(windows.offset_ns), np.int64)
    for k in range(1, len(begins)):
        low = int(np.searchsorted(start_ns, windows.after_ns[k], side="right"))
        part = slice(low, int(np.searchsorted(start_ns, windows.by_ns[k], side="left")))
        before = np.cumsum(np.append(0, _off_ns(int(windows.offset_ns[k - 1]), least_ns[part], most_ns[part])))
        after = np.cumsum(np.append(0, _off_ns(int(windows.offset_ns[k]), least_ns[part], most_ns[part])))
        cost = before + after[-1] - after
        begins[k] = low + len(cost) - 1 - int(cost[::-1].argmin())
    out: I64 = np.searchsorted(begins, np.arange(len(start_ns)), side="right") - 1
    return out


def _bounded(offset_ns: I64, window: I64, least_ns: I64, most_ns: I64) -> I64:
    """Offsets that keep the bounds of all rows of their window; where a wait and a launch contradict each other, the launch's."""
    count = int(window[-1]) + 1
    least, most = np.full(count, np.iinfo(np.int64).min // 2), np.full(count, np.iinfo(np.int64).max // 2)
    few = least_ns - offset_ns <= MOST_NS
    np.maximum.at(least, window[few], least_ns[few])
    few = offset_ns - most_ns <= MOST_NS
    np.minimum.at(most, window[few], most_ns[few])
    out: I64 = np.minimum(np.maximum(offset_ns, least[window]), most[window])
    return out


def _windows(evidence: Evidence, resolution_ns: int) -> _Windows:
    """The cheapest step function through the evidence.

    The usual lag of a wait's return is a property of the machine: the median over the recording, by the launches alone.
    """
    block = np.arange(len(evidence.at_ns)) * min(_MOST_BLOCKS, len(evidence.at_ns)) // len(evidence.at_ns)
    shown, return_ns, blocked = evidence.ahead_ns[evidence.launch], USUAL_RETURN_NS, evidence.blocked
    if len(shown):
        levels = _levels(shown)
        ahead_ns = levels[cheapest(_costs(evidence, block, levels, None))[block]]
        blocked = blocked & (evidence.begun_ns > ahead_ns + NOISE_NS)
        near = blocked & _near(evidence)
        return_ns = int(np.median((ahead_ns - evidence.ahead_ns)[near])) if near.any() else USUAL_RETURN_NS
    evidence = replace(evidence, blocked=blocked)
    levels = _levels(np.concatenate([shown, evidence.ahead_ns[blocked] + return_ns]))
    level = cheapest(_costs(evidence, block, levels, return_ns))
    changes = np.flatnonzero(np.diff(level)) + 1
    first = np.searchsorted(block, changes)
    begins = np.concatenate([[0], changes])
    return _Windows(
        offset_ns=np.array([round(levels[level[k]] / resolution_ns) * resolution_ns for k in begins.tolist()], np.int64),
        after_ns=np.concatenate([[0], evidence.at_ns[first - 1]]).astype(np.int64),
        by_ns=np.concatenate([[0], evidence.at_ns[first]]).astype(np.int64),
    )


def _levels(shown_ns: I64) -> F64:
    low, high = np.percentile(shown_ns, (1, 95))
    wide = min(high - low + 2_000, _LEVEL_NS * _MOST_LEVELS)
    out: F64 = low - 1_000 + np.arange(int(wide / _LEVEL_NS) + 2) * float(_LEVEL_NS)
    return out


def _near(evidence: Evidence) -> Bool:
    """Evidence with a launch close enough in time for both to be on one clock."""
    at = np.flatnonzero(evidence.launch)
    if not len(at):
        return np.zeros(len(evidence.at_ns), np.bool_)
    after = np.searchsorted(at, np.arange(len(evidence.at_ns)))
    before_ns = evidence.at_ns - evidence.at_ns[at[np.maximum(after - 1, 0)]]
    after_ns = evidence.at_ns[at[np.minimum(after, len(at) - 1)]] - evidence.at_ns
    out: Bool = np.minimum(np.abs(before_ns), np.abs(after_ns)) <= NEAR_NS
    return out


def _costs(evidence: Evidence, block: I64, levels: F64, return_ns: int | None) -> F64:
    """What each level costs in each block of evidence, in us; shape (blocks, levels). Waits only bound it where ``return_ns`` is None."""
    out = np.zeros((int(block[-1]) + 1, len(levels)))
    step = max(1, 4_000_000 // len(levels))
    for low in range(0, len(block), step):
        part = slice(low, low + step)
        over_us = (evidence.ahead_ns[part, None] - levels) / 1_000
        launch, exact, blocked = evidence.launch[part], evidence.exact[part], evidence.blocked[part]
        cost = np.zeros(over_us.shape)
        most_us = np.where(evidence.warm[part], _ABOVE_US, _COLD_US)[launch, None]
        cost[launch] = np.where(over_us[launch] > 0, np.minimum(over_us[launch], most_us), np.minimum(-2 * over_us[launch], _BELOW_US))
        cost[exact] = np.clip(2 * over_us[exact], 0, _BELOW_US)
        if return_ns is not None:
            cost[blocked] += np.minimum(np.abs(over_us[blocked] + return_ns / 1_000) / 2, _WAIT_US)
        np.add.at(out, block[part], cost)
    return out


def cheapest(costs: F64) -> I64:
    """The level of each block on the cheapest path, a change costing ``CHANGE`` (Viterbi)."""
    total, best = costs[0], np.zeros(len(costs), np.int64)
    changed = np.zeros(costs.shape, np.bool_)
    for k in range(1, len(costs)):
        best[k] = int(total.argmin())
        jump = total[best[k]] + CHANGE
        changed[k] = jump < total
        total = np.minimum(total, jump) + costs[k]
    at = int(total.argmin())
    out = np.zeros(len(costs), np.int64)
    for k in range(len(costs) - 1, -1, -1):
        out[k] = at
        if changed[k, at]:
            at = int(best[k])
    return out
