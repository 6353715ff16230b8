"""Launches that were blocked because the queue to the device was full.

A host may run some 1,000 ops ahead of a stream; then a launch returns only as an op ahead of it begins. CUPTI's
overhead rows say so; where there are none, it shows in that launches are slow where most ops are ahead of them, and
nowhere else.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.linking.call_roles import Role, roles
from graphlink.model import EMPTY, I64, NOWHERE, Linked, Trace
from graphlink.spans import NEVER
from graphlink.tables import distinct, equal_runs, in_order, numbered_values, sums, values_at

LEAST_AHEAD: Final = 512  # CUDA's queue holds 1,024 launches; full ones of real recordings contained 908 to 1,140 ops
# of the most that was ever ahead: records and waits of events take places, too, and a launch of a graph several
NEAR_FULL: Final = 0.9
SLOW: Final = 3  # times what 95 % of the launches take that have fewer ahead of them
TIMES: Final = 10
MORE_OFTEN: Final = 10  # than where fewer are ahead


ROWS: Final = "Command Buffer Full"


def held_launches(linked: Linked) -> tuple[I64, I64]:
    """Return the launch calls that a full queue blocked, ascending, and for how long each, in ns. O(n log n).

    Those that rows tell of, else of streams whose queue was full time and again, what is beyond what launches take with
    fewer ops ahead. Ops without a call were launched before all.
    """
    trace, call = linked.trace, linked.device_call
    if ROWS in trace.strings and (trace.overhead.name == trace.strings.index(ROWS)).any():
        return _told(trace)
    calls, device = trace.calls, trace.device
    role = roles(calls, trace.strings)
    launched_ns = values_at(calls.start_ns, call, NEVER)
    order = np.lexsort((launched_ns, device.stream, device.device))
    found = [(EMPTY, EMPTY)]
    for rows in equal_runs(order, device.stream[order], device.device[order]):
        if len(rows) > LEAST_AHEAD:
            launches = distinct(call[rows][call[rows] != NOWHERE])
            launches = launches[role[launches] == Role.OTHER]
            begun = np.searchsorted(np.sort(device.start_ns[rows]), calls.start_ns[launches], side="right")
            ahead = np.searchsorted(launched_ns[rows], calls.start_ns[launches]) - begun
            found.append(_held(launches, ahead, (calls.end_ns - calls.start_ns)[launches]))
    joined, ns = (np.concatenate(columns) for columns in zip(*found, strict=True))
    by_call = np.argsort(joined, kind="stable")
    return joined[by_call], ns[by_call]


def _told(trace: Trace) -> tuple[I64, I64]:
    """Return the calls around the rows, and for how long; rows do not say on which thread they are."""
    calls, row = trace.calls, np.flatnonzero(trace.overhead.name == trace.strings.index(ROWS))
    start_ns, end_ns = trace.overhead.start_ns[row], trace.overhead.end_ns[row]
    long = np.flatnonzero(calls.end_ns - calls.start_ns >= (end_ns - start_ns).min())
    order = in_order(long, calls.start_ns)
    at = np.searchsorted(calls.start_ns[order], start_ns, side="right") - 1
    start_ns, end_ns, at = (column[at >= 0] for column in (start_ns, end_ns, at))
    call = order[at]
    inside = calls.end_ns[call] >= end_ns
    held, which = numbered_values(call[inside])
    ns = sums(len(held), which, (end_ns - start_ns)[inside])
    return held, ns


def _held(launches: I64, ahead: I64, took_ns: I64) -> tuple[I64, I64]:
    full = ahead >= max(NEAR_FULL * ahead.max(initial=0), LEAST_AHEAD)
    none = launches[:0], took_ns[:0]
    if np.count_nonzero(full) < TIMES or np.count_nonzero(~full) < TIMES:
        return none
    usual_ns = int(np.quantile(took_ns[~full], 0.95))
    slow = took_ns > SLOW * usual_ns
    held, often = full & slow, float(np.mean(slow[full]))
    if np.count_nonzero(held) < TIMES or often < MORE_OFTEN * float(np.mean(slow[~full])):
        return none
    return launches[held], took_ns[held] - usual_ns
