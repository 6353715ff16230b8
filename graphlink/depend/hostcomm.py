"""Host-side (gloo) communication: which stretches of host time were waits for it (CONTRACT, "Device time")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.timeline import Marks
from graphlink.model import I32, I64, CommKind, Communication, Linked

WAIT_END_NS = 50_000


@dataclass(frozen=True, slots=True)
class HostCommWaits:
    """``comm`` (position in ``Communication.host_row``) was waited for by ``element`` over [from, until) on the axis of the marks.

    ``late``: receives and collectives that would be waits, had the next row not begun too late; they were pending for ``late_ns`` in all.
    """

    comm: I64
    element: I32
    from_ns: I64
    until_ns: I64
    late: int
    late_ns: int


def host_comm_waits(linked: Linked, comm: Communication, marks: Marks) -> HostCommWaits:
    """Host time in which nothing nested ran and which ends at most 50 us after a receive or collective ended was a wait for it.

    Of several that end in one stretch the last counts. A send is not waited for: its row ends because somebody asks, and it costs 0,
    so the time would be lost. Cost: O(n log n).
    """
    rows = linked.trace.host
    at = np.flatnonzero([node.recorded != CommKind.SEND.name for node in comm.host_node])  # of unknown peer, too
    row = comm.host_row[at]
    at, row = at[marks.axis.has(rows.tid[row])], row[marks.axis.has(rows.tid[row])]
    from_ns, until_ns = marks.axis.of(rows.tid[row], rows.start_ns[row]), marks.axis.of(rows.tid[row], rows.end_ns[row])
    mark = marks.behind(until_ns, before=True)
    following = np.append(marks.at_ns[1:], 0)[mark]
    ends = (marks.axis.thread(following) == marks.axis.thread(until_ns)) & (following >= until_ns) & (marks.at_ns[mark] < until_ns)
    order = np.flatnonzero(ends)
    order = order[np.lexsort((until_ns[order], mark[order]))]
    last = order[np.append(mark[order][1:] != mark[order][:-1], True)] if len(order) else order
    from_ns, until_ns, mark = np.maximum(from_ns, marks.at_ns[mark])[last], until_ns[last], mark[last]
    soon = following[last] - until_ns <= WAIT_END_NS
    late_ns = int((until_ns - from_ns)[~soon].sum())
    return HostCommWaits(at[last][soon], marks.owner[mark][soon], from_ns[soon], until_ns[soon], int(np.count_nonzero(~soon)), late_ns)
