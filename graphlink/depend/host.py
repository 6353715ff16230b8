"""The host side of a rank's graph: elements, marks, waits and sleeps put together into nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.depend.devicetime import LATE_NS, stream_order
from graphlink.depend.hostcomm import Asked, HostCommWaits, asked, host_comm_waits
from graphlink.depend.hosttime import HostNodes, host_nodes
from graphlink.depend.merge import Dependencies, next_operator, search_by_thread, wait_ends
from graphlink.depend.points import Blocked, Cuts
from graphlink.depend.sleep import Sleeps, sleeps
from graphlink.depend.spin import Spins, spins
from graphlink.depend.timeline import Elements, elements, marks
from graphlink.depend.wakeup import wake_ns
from graphlink.model import I32, I64, NOWHERE, Bool, Communication, Linked


@dataclass(frozen=True, slots=True)
class HostSide:
    """``part``: of a call in which the host waited, the node that opens where the wait ended; of one that found all done, and behind
    which its op launches, the node that opens where the call ended; NOWHERE of other calls.

    ``wake_ns``: of each node, what of its duration is only spent because the call before it had to wait.
    ``launcher``: for each device row the node that carries the time up to its launch, NOWHERE for orphans.
    ``begun``: by which thread host-side communication was asked for. ``comm_part``, ``spin_part``: for each of ``comm_waits`` and
    ``spins`` the node that opens where it ended.
    """

    elements: Elements
    nodes: HostNodes
    sleeps: Sleeps
    begun: Asked
    comm_waits: HostCommWaits
    part: I32
    wake_ns: I64
    launcher: I32
    comm_part: I32
    spins: Spins
    spin_part: I32
    start_ns: int  # of the rank: its earliest node
    end_ns: int


def host_side(linked: Linked, comm: Communication, cuda: CudaWaits, found: Dependencies, gap_ns: int) -> HostSide:
    """All host nodes, and where device work and waits attach to them. Cost: O(n log n)."""
    trace = linked.trace
    calls = trace.calls
    el = elements(linked, cuda.role)
    start_ns, end_ns = _span(linked, el)
    tour = marks(el, start_ns, end_ns)
    axis = tour.axis
    slept = sleeps(linked, el, start_ns, end_ns)
    wait_ns = np.clip(wait_ends(linked, cuda, found), start_ns, end_ns)
    blocked = (wait_ns > calls.start_ns) & (el.of_call != NOWHERE)
    blocking = np.flatnonzero(blocked)
    begun = asked(linked)
    comm_waits = host_comm_waits(linked, comm, begun, el, tour)
    spun = spins(linked, found, el, tour, slept)
    launching = np.unique(linked.device_call[linked.device_call != NOWHERE])
    launched_ns = np.clip(_launched_ns(linked, blocked), start_ns, end_ns)
    blocked_from_ns = calls.start_ns.copy()
    blocked_from_ns[launching] = np.where(
        blocked[launching], np.minimum(launched_ns[launching], wait_ns[launching]), calls.start_ns[launching]
    )
    begins = comm.host_row[axis.has(begun.tid[comm.host_row])]
    waited_ns = tour.within(axis.of(calls.tid[blocking], wait_ns[blocking]))
    finished = _finished(linked, found, el, blocked)
    finished_ns = tour.within(axis.of(calls.tid[finished], np.clip(calls.end_ns[finished], start_ns, end_ns)))
    launching_ns = tour.within(axis.of(calls.tid[launching], launched_ns[launching]))
    beside = launched_ns[launching] < np.clip(np.where(blocked, calls.start_ns, calls.end_ns)[launching], start_ns, end_ns)
    stretches = Blocked.of(
        np.concatenate([el.of_call[blocking], comm_waits.element, spun.element]),
        np.concatenate([axis.of(calls.tid[blocking], blocked_from_ns[blocking]), comm_waits.from_ns, spun.from_ns]),
        np.concatenate([waited_ns, comm_waits.until_ns, spun.until_ns]),
    )
    cuts = Cuts(
        at_ns=np.concatenate([waited_ns, finished_ns, launching_ns[beside], comm_waits.until_ns, spun.until_ns]),
        after=np.concatenate(
            [
                el.of_call[np.concatenate([blocking, finished, launching[beside]])],
                np.full(len(comm_waits.element) + len(spun.element), NOWHERE, np.int32),
            ]
        ),
        launch_ns=np.concatenate([launching_ns[~beside], tour.within(axis.of(begun.tid[begins], begun.at_ns[begins]))]),
        launch_after=np.concatenate([el.of_call[launching[~beside]], np.full(len(begins), NOWHERE, np.int32)]),
    )
    nodes = host_nodes(el, tour, stretches, cuts, slept, gap_ns)
    spans_ns = int((tour.at_ns[tour.bounds[1:] - 1] % axis.span_ns).sum())
    spent_ns = int(nodes.duration_ns.sum() + nodes.wait_ns.sum()) + nodes.asleep_ns
    assert spent_ns == spans_ns, f"host time is not conserved: {spent_ns} ns in nodes, waits and sleep, {spans_ns} ns recorded"
    part = np.full(len(calls.start_ns), NOWHERE, np.int32)
    part[blocking] = nodes.opening(waited_ns)
    part[finished] = nodes.opening(finished_ns)
    waking_ns = np.zeros(len(nodes.kind), np.int64)
    behind = part[blocking]
    waking_ns[behind] = np.minimum(wake_ns(linked, cuda, wait_ns)[blocking], nodes.duration_ns[behind])
    launcher = np.full(len(linked.device_call), NOWHERE, np.int32)
    device = np.flatnonzero(linked.device_call != NOWHERE)
    call = linked.device_call[device]
    launcher[device] = nodes.carrying(axis.of(calls.tid[call], launched_ns[call]), el.of_call[call])
    comm_part, spin_part = nodes.opening(comm_waits.until_ns), nodes.opening(spun.until_ns)
    return HostSide(el, nodes, slept, begun, comm_waits, part, waking_ns, launcher, comm_part, spun, spin_part, start_ns, end_ns)


def _finished(linked: Linked, found: Dependencies, el: Elements, blocked: Bool) -> I64:
    """Calls that found their device work done, and behind which their thread launches before its next operator begins.

    What is launched comes after what was awaited, but the ``sync`` edge starts at the next operator: so there is a cut behind them.
    """
    calls, rows = linked.trace.calls, linked.trace.host
    call = np.unique(found.call)
    call = call[~blocked[call] & (el.of_call[call] != NOWHERE)]
    following = next_operator(linked, call)
    until_ns = np.full(len(call), np.iinfo(np.int64).max)
    until_ns[following != NOWHERE] = rows.start_ns[following[following != NOWHERE]]
    launching = np.unique(linked.device_call[linked.device_call != NOWHERE])
    launching = launching[np.lexsort((calls.start_ns[launching], calls.tid[launching]))]
    tid, at_ns = calls.tid[launching], calls.start_ns[launching]
    first = search_by_thread(tid, at_ns, calls.tid[call], calls.end_ns[call])
    out: I64 = call[search_by_thread(tid, at_ns, calls.tid[call], until_ns) > first].astype(np.int64)
    return out


def _launched_ns(linked: Linked, blocked: Bool) -> I64:
    """Up to when each call had launched: its end, with two exceptions.

    A call that launches and then waits for it, as cudaMemcpy does, has launched before the wait, after what such calls take to
    launch. A call that runs on beside what it launched (copies from pageable memory, staged by the host for milliseconds) had launched
    it by then; counted at the end of the call, the op would begin later than it did, a copy when it was in truth done.
    """
    calls, device = linked.trace.calls, linked.trace.device
    out = np.where(blocked, calls.start_ns, calls.end_ns)
    ops = np.flatnonzero(linked.device_call != NOWHERE)
    began_ns = np.full(len(calls.start_ns), np.iinfo(np.int64).max)
    np.minimum.at(began_ns, linked.device_call[ops], device.start_ns[ops])
    waits = blocked & (began_ns < np.iinfo(np.int64).max)
    out[waits] = calls.start_ns[waits] + _setup_ns(linked, blocked, began_ns)[waits]
    beside = ~blocked & (began_ns < calls.end_ns)
    out[beside] = np.maximum(began_ns[beside], calls.start_ns[beside])
    return out


def _setup_ns(linked: Linked, blocked: Bool, began_ns: I64) -> I64:
    """How long each call takes to launch what it then waits for, no longer than until that began.

    It shows where the stream was idle; behind other work it is hidden, and taken to be the median of those: at another speed of the
    device it shows. Where no such call of the recording shows it, the median of all launches that show it; 0 where none does. What
    took more than 20 us waited for something else.
    """
    device, calls = linked.trace.device, linked.trace.calls
    before = stream_order(device).before
    op = np.flatnonzero(linked.device_call != NOWHERE)
    call = linked.device_call[op]
    idle = (before[op] == NOWHERE) | (device.end_ns[before[op]] < calls.start_ns[call])
    took_ns = device.start_ns[op] - calls.start_ns[call]
    shown = idle & (took_ns <= LATE_NS)
    shown = shown & blocked[call] if (shown & blocked[call]).any() else shown
    out: I64 = np.clip(began_ns - calls.start_ns, 0, int(np.median(took_ns[shown])) if shown.any() else 0)
    return out


def _span(linked: Linked, el: Elements) -> tuple[int, int]:
    """Start of the earliest and end of the latest thing that is a node."""
    rows, device = linked.trace.host, linked.trace.device
    starts: tuple[I64, ...] = (rows.start_ns, device.start_ns, el.start_ns)
    ends: tuple[I64, ...] = (rows.end_ns, device.end_ns, el.end_ns)
    return min(int(s.min()) for s in starts if len(s)), max(int(e.max()) for e in ends if len(e))
