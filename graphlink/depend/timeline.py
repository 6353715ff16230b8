"""The time of every thread as one sequence of marks: where ops begin and end, and to whom the time after each mark
belongs.

Elements are the host rows that nest, and the launch and synchronisation calls outside any row. Walking a thread, each
element has a mark where it begins and one where it ends (an Euler tour of the nesting), so the time between two marks
belongs to exactly one element, or to none.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from graphlink.linking.call_roles import WAITS, Role, roles
from graphlink.model import I32, I64, NOWHERE, U8, Bool, Linked, TimedRows
from graphlink.patterns import NEXT_BATCH, fits
from graphlink.spans import Axis, extent
from graphlink.tables import among, marked, spread


@dataclass(frozen=True, slots=True)
class Elements(TimedRows):
    """All that has a host node of its own, thread by thread (ascending tid), in start order, parents first."""

    tid: I64
    row: I32  # a host row, else NOWHERE
    call: I32  # a call, else NOWHERE
    parent: I32  # an element
    of_row: I32  # a host row: its element, NOWHERE for crossing rows
    of_call: I32  # a call: the element that is this call or made it

    def whose_row(self, element: I64 | I32, is_so: Bool) -> Bool:
        """Return what ``is_so`` of host rows says of the rows of elements; of none and of calls False."""
        return np.asarray(np.append(is_so, False)[np.append(self.row, NOWHERE)[element]])


class EulerTour(msgspec.Struct, frozen=True):
    """The Euler tour, two marks per element, positions on ``axis`` ascending: what rounding put out of order is moved
    up.

    ``owner``: the element that owns the time after the mark, NOWHERE between top-level elements. ``start_of``: where
    each element's first mark is. ``bounds``: thread i has marks ``bounds[i]`` to ``bounds[i + 1]``.
    """

    axis: Axis
    at_ns: I64
    owner: I32
    begins: Bool
    start_of: I64
    bounds: I64

    def within(self, at_ns: I64) -> I64:
        """Return positions no later than their thread's last mark: behind it a thread is over, though a call may end
        later than its op.
        """
        return np.minimum(at_ns, self.at_ns[self.bounds[self.axis.thread(at_ns) + 1] - 1])

    def behind(self, at_ns: I64, *, before: bool) -> I64:
        """Find the mark behind which each position lies: the last at or (``before``) strictly before it; else its
        thread's first.
        """
        found = np.searchsorted(self.at_ns, at_ns, side="left" if before else "right") - 1
        return np.maximum(found, self.bounds[self.axis.thread(at_ns)])


def elements(linked: Linked, role: U8) -> Elements:
    """Find all that has a host node of its own. Cost: O(n log n).

    A cudaEventQuery outside any row is no element: it waits for nothing, and a thread that only polls (NCCL's watchdog)
    would take part in the run with nothing but its sleep.
    """
    rows, calls = linked.trace.host, linked.trace.calls
    row = np.flatnonzero(~linked.crossing)
    launches = marked(len(calls.start_ns), linked.device_call[linked.device_call != NOWHERE])
    waiting = among(role, WAITS)
    call = np.flatnonzero((launches | (waiting & ~behind_rows(linked))) & (linked.call_op == NOWHERE))
    tid = np.concatenate([rows.tid[row], calls.tid[call]])
    start_ns = np.concatenate([rows.start_ns[row], calls.start_ns[call]])
    end_ns = np.concatenate([rows.end_ns[row], calls.end_ns[call]])
    is_call = np.repeat([0, 1], [len(row), len(call)])
    # Rows come parents first from the reader, which their numbers keep for equal intervals. Calls hold nothing: the
    # shortest first.
    order = np.lexsort((np.concatenate([row, call]), np.where(is_call == 1, end_ns, -end_ns), is_call, start_ns, tid))
    which = np.concatenate([row, call])[order].astype(np.int32)
    called = is_call[order] == 1
    of_row = spread(len(rows.start_ns), which[~called], np.flatnonzero(~called).astype(np.int32))
    padded = np.append(of_row, np.int32(NOWHERE))
    of_call = padded[linked.call_op]
    of_call[which[called]] = np.flatnonzero(called)
    return Elements(
        tid=tid[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        row=np.where(called, NOWHERE, which).astype(np.int32),
        call=np.where(called, which, NOWHERE).astype(np.int32),
        parent=spread(len(order), ~called, padded[linked.parent[which[~called]]]),
        of_row=of_row,
        of_call=of_call,
    )


def in_loader(linked: Linked) -> I64:
    """Find the rows of PyTorch's data loaders, in order of their starts: what they wait for is a worker, which is a
    process of its own.
    """
    return np.flatnonzero(fits(NEXT_BATCH, linked.trace.strings)[linked.trace.host.name])


def behind_rows(linked: Linked) -> Bool:
    """Find calls that are the profiler's own, where ops are recorded: those that begin after the last row, and its last
    synchronisation.

    Nothing in the graph comes after them, and they would stretch the run by the time that profiling took to end (in
    real traces up to 1.6 s of 16 s). ``torch.profiler`` synchronises the device as it stops: on its thread, outside any
    row and behind all that the thread ran. Whether device work or the row of another thread then goes on differs by
    rank, so neither decides.
    """
    rows, device, calls = linked.trace.host, linked.trace.device, linked.trace.calls
    out = np.zeros(len(calls.start_ns), np.bool_)
    if not len(rows.start_ns):
        return out
    out |= calls.start_ns >= extent(rows, device)[1]
    if linked.match.method == "nsys":  # it does not synchronise
        return out
    last = _last_synchronisation(linked)
    if last != NOWHERE:
        out[last] = True
    return out


def _last_synchronisation(linked: Linked) -> int:
    """Find the last call that waits for a device, if it is outside any row and nothing begins after it on its thread,
    nor is launched by any."""
    rows, calls = linked.trace.host, linked.trace.calls
    outside = np.flatnonzero((roles(calls, linked.trace.strings) == Role.DEVICE_SYNC) & (linked.call_op == NOWHERE))
    if not len(outside):
        return NOWHERE
    last = int(outside[np.argmax(calls.start_ns[outside])])
    tid, start_ns = calls.tid[last], calls.start_ns[last]
    mine = rows.start_ns[rows.tid == tid]
    launched = calls.start_ns[linked.device_call[linked.device_call != NOWHERE]]
    later = [calls.start_ns[calls.tid == tid] > start_ns, mine >= start_ns, launched > start_ns]
    return last if len(mine) and not any(found.any() for found in later) else NOWHERE


def marks(el: Elements, rank_start_ns: int, rank_end_ns: int) -> EulerTour:
    """Make the Euler tour of ``el``, all within [rank_start_ns, rank_end_ns]. Cost: O(elements)."""
    n = len(el.tid)
    depth, size = [0] * n, [1] * n
    parent = el.parent.tolist()
    for i, p in enumerate(parent):
        if p != NOWHERE:
            depth[i] = depth[p] + 1
    for i in range(n - 1, -1, -1):
        if parent[i] != NOWHERE:
            size[parent[i]] += size[i]
    begin = 2 * np.arange(n, dtype=np.int64) - np.array(depth, np.int64)
    end = begin + 2 * np.array(size, np.int64) - 1
    tids, first = np.unique(el.tid, return_index=True)
    axis = Axis(tids, rank_start_ns, rank_end_ns - rank_start_ns + 1)
    at_ns, owner, begins = np.empty(2 * n, np.int64), np.empty(2 * n, np.int32), np.zeros(2 * n, np.bool_)
    at_ns[begin], at_ns[end] = axis.of(el.tid, el.start_ns), axis.of(el.tid, el.end_ns)
    owner[begin], owner[end] = np.arange(n), el.parent
    begins[begin] = True
    return EulerTour(axis, np.maximum.accumulate(at_ns), owner, begins, begin, np.append(begin[first], 2 * n))
