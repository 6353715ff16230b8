"""Host-side (gloo) communication: which stretches of host time were waits for it (CONTRACT, "Device time")."""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink.depend.points import Blocked
from graphlink.depend.sleep import ASLEEP_NS, WAKING_NS
from graphlink.depend.timeline import Elements, EulerTour
from graphlink.linking.nest import askers
from graphlink.model import I32, I64, NOWHERE, Bool, Communication, Linked
from graphlink.tables import spread, take

WAIT_END_NS = 50_000
WAIT_RANGE = "graphlink::wait"  # graphlink.capture records it around a wait for gloo


class Asked(msgspec.Struct, frozen=True):
    """The origin of each host row: the thread that asked for it and when: itself, where no other thread ran it
    (``elsewhere``).

    ``start_ns``: of its nodes, as recorded, but for rows that gloo's threads took up before one that was asked for
    earlier: that one counts from 1 ns before, since simulators tell collectives by their order. ``behind``: the row
    that the same thread of gloo's was still running when this one was asked for, ``NOWHERE`` where none. ``delay_ns``:
    from when neither delayed it to ``start_ns``.
    """

    tid: I64
    at_ns: I64
    elsewhere: Bool
    start_ns: I64
    behind: I32
    delay_ns: I64


def asked(linked: Linked) -> Asked:
    """Find who asked for host communication: what gloo's threads ran was handed over while the op that asked ran. O(n
    log n).
    """
    rows, op = linked.trace.host, askers(linked)
    row = np.flatnonzero(op != NOWHERE)
    tid, at_ns, start_ns = rows.tid.copy(), rows.start_ns.copy(), rows.start_ns.copy()
    tid[row], at_ns[row] = rows.tid[op[row]], np.minimum(rows.start_ns[row], rows.end_ns[op[row]])
    row = row[np.argsort(at_ns[row], kind="stable")]
    place = np.arange(len(row))
    start_ns[row] = np.maximum(np.minimum.accumulate((start_ns[row] - place)[::-1])[::-1] + place, at_ns[row])
    run = row[np.lexsort((rows.start_ns[row], rows.tid[row]))]
    before, after = run[:-1], run[1:]
    held = (
        (rows.tid[before] == rows.tid[after])
        & (rows.end_ns[before] > at_ns[after])
        & (rows.end_ns[before] <= start_ns[after])
    )
    behind = spread(len(tid), after[held], before[held].astype(np.int32))
    free_ns = at_ns.copy()
    free_ns[after[held]] = rows.end_ns[before[held]]
    return Asked(tid, at_ns, op != NOWHERE, start_ns, behind, start_ns - free_ns)


class HostCommWaits(msgspec.Struct, frozen=True):
    """``comm`` (position in ``Communication.host_row``) was waited for over each stretch of ``blocked``.

    ``late``: receives and collectives that would be waits, had the next row not begun too late; they were pending for
    ``late_ns`` in all.
    """

    comm: I64
    blocked: Blocked
    late: int
    late_ns: int


def host_comm_waits(linked: Linked, comm: Communication, begun: Asked, el: Elements, marks: EulerTour) -> HostCommWaits:
    """Find waits for host-side communication.

    Host time in which nothing nested ran and which ends at most 50 us after a receive or collective ended was a wait
    for it.

    A recorded ``WAIT_RANGE`` is a wait in any case. Where a thread of gloo's ran it, the one that asked for it slept
    and had to be woken: after 100 us and more of such time, up to 2 ms after (``depend.sleep``). Of several that end in
    one stretch the last counts. A send is not waited for: its row ends because somebody asks, and it costs 0, so the
    time would be lost. Cost: O(n log n).
    """
    rows = linked.trace.host
    at = np.flatnonzero(~comm.host_sends)
    row = comm.host_row[at]
    known = marks.axis.has(begun.tid[row])
    at, row = at[known], row[known]
    from_ns, until_ns = marks.axis.of(begun.tid[row], begun.at_ns[row]), marks.axis.of(begun.tid[row], rows.end_ns[row])
    mark = marks.behind(until_ns, before=True)
    following = np.append(marks.at_ns[1:], 0)[mark]
    ends = (
        (marks.axis.thread(following) == marks.axis.thread(until_ns))
        & (following >= until_ns)
        & (marks.at_ns[mark] < until_ns)
    )
    order = np.flatnonzero(ends)
    order = order[np.lexsort((until_ns[order], mark[order]))]
    last = order[np.append(mark[order][1:] != mark[order][:-1], True)] if len(order) else order
    from_ns, until_ns, mark = np.maximum(from_ns, marks.at_ns[mark])[last], until_ns[last], mark[last]
    slept = begun.elsewhere[row[last]] & (until_ns - from_ns >= ASLEEP_NS)
    soon = following[last] - until_ns <= np.where(slept, WAKING_NS, WAIT_END_NS)
    soon |= _in_wait_range(linked, el, marks.owner[mark])
    late_ns = int((until_ns - from_ns)[~soon].sum())
    blocked = take(Blocked(marks.owner[mark], from_ns, until_ns), soon)
    return HostCommWaits(at[last][soon], blocked, int(np.count_nonzero(~soon)), late_ns)


def _in_wait_range(linked: Linked, el: Elements, element: I32) -> Bool:
    named = np.array([text == WAIT_RANGE for text in linked.trace.strings], np.bool_)
    row = el.row[element]
    return np.asarray((element != NOWHERE) & (row != NOWHERE) & named[linked.trace.host.name[row]])
