"""The host side of a rank's graph: elements, marks, waits and sleeps put together into nodes."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.depend.cuda import CudaWaits
from graphlink.depend.devicetime import stream_order
from graphlink.depend.hostcomm import Asked, HostCommWaits, asked, host_comm_waits
from graphlink.depend.hosttime import HostNodes, host_nodes
from graphlink.depend.launch_queue import held_launches
from graphlink.depend.points import Blocked, Cuts
from graphlink.depend.reject import Dependencies, next_operator, wait_ends
from graphlink.depend.sleep import Sleeps, silences, sleeps, while_hidden_ran
from graphlink.depend.spin import Spins, polled_since, spins
from graphlink.depend.threads import Run, forward_backward, handed_over
from graphlink.depend.timeline import Elements, EulerTour, elements, marks
from graphlink.linking.call_roles import SYNCS, Role
from graphlink.linking.clock_evidence import MOST_RETURN_NS, NEAR_NS
from graphlink.linking.nest import askers
from graphlink.model import I32, I64, NOWHERE, Bool, Communication, Linked
from graphlink.spans import Neighbours, Spans, extent, union
from graphlink.tables import among, concat, distinct, largest, least, spread, sums

FEWEST: Final = 5  # waits that show how long waking takes
FREE_NS: Final = 14_000  # a synchronisation that finds all done, where the recording does not show it


class HostSide(msgspec.Struct, frozen=True):
    """``part``: of a call in which the host waited, the node that opens where the wait ended; of one that found all
    done, and behind which its op launches, the node that opens where the call ended; NOWHERE of other calls.

    ``wake_ns``: of each node, what of its duration is only spent because the call before it had to wait, or because the
    queue to the device was full as it launched.
    ``autograd``: (forward, backward) host rows.
    ``hidden``: silences in which threads ran ops of which Kineto recorded none; positions on the nodes' axis.
    ``launcher``: for each device row the node that carries the time up to its launch, NOWHERE for orphans.
    ``launched_ns``: of each call, up to when it had launched.
    ``begun``: by which thread host-side communication was asked for. ``run``: what gloo's threads ran around work.
    """

    elements: Elements
    nodes: HostNodes
    sleeps: Sleeps
    autograd: tuple[I32, I32]
    begun: Asked
    run: Run
    comm_waits: HostCommWaits
    hidden: Spans
    part: I32
    wake_ns: I64
    launcher: I32
    launched_ns: I64
    unshown_ns: I64  # of each call that waited on for something that is not recorded, for how long
    spins: Spins
    start_ns: int  # of the rank: its earliest node
    end_ns: int


def host_side(linked: Linked, comm: Communication, cuda: CudaWaits, found: Dependencies, gap_ns: int) -> HostSide:
    """Make all host nodes, and find where device work and waits attach to them. Cost: O(n log n)."""
    calls = linked.trace.calls
    since_ns = polled_since(linked, found, cuda.role)
    el = elements(linked, np.where(since_ns < calls.start_ns, np.uint8(Role.EVENT_SYNC), cuda.role))
    start_ns, end_ns = extent(linked.trace.host, linked.trace.device, el)
    tour = marks(el, start_ns, end_ns)
    autograd = forward_backward(linked)
    op = askers(linked)
    run = Run.of(linked, el, op)
    slept = sleeps(linked, el, autograd, handed_over(linked, el, run), run, start_ns, end_ns)
    wait_ns = np.clip(wait_ends(linked, since_ns, cuda, found), start_ns, end_ns)
    blocked = (wait_ns > since_ns) & (el.of_call != NOWHERE)
    launched_ns = np.clip(_launched_ns(linked, blocked), start_ns, end_ns)
    op[run.row] = NOWHERE  # its thread works there
    begun = asked(linked, comm, op)
    comm_waits = host_comm_waits(linked, comm, begun, el, tour, slept)
    slept = comm_waits.slept
    hidden = while_hidden_ran(linked, tour.axis, silences(linked, el, tour, slept)[1])
    spun = spins(linked, found, el, tour, slept)
    blocking, finished = np.flatnonzero(blocked), _finished(linked, found, el, blocked)
    waited_at = _places(tour, calls.tid[blocking], wait_ns[blocking])
    finished_at = _places(tour, calls.tid[finished], calls.end_ns[finished])
    waking_ns, shown = wake_ns(linked, cuda, wait_ns)
    unshown = blocking[~shown[blocking]]
    since_at = _blocked_from(linked, tour, blocking, since_ns, np.minimum(launched_ns, wait_ns))
    in_calls = Blocked(el.of_call[blocking], since_at, waited_at)
    begins = comm.host_row[tour.axis.has(begun.tid[comm.host_row])]
    cuts = concat(
        Cuts.of(waited_at, el.of_call[blocking]),
        Cuts.of(finished_at, el.of_call[finished]),
        _launch_cuts(linked, el, tour, launched_ns, blocked),
        Cuts.of(comm_waits.blocked.until_ns),
        Cuts.of(np.union1d(spun.blocked.until_ns, spun.ended_ns)),
        Cuts.of(_places(tour, begun.tid[begins], begun.at_ns[begins]), launch=True),
    )
    blocks = concat(in_calls, comm_waits.blocked, spun.blocked).disjoint()
    rest = Spans(waited_at[~shown[blocking]], _places(tour, calls.tid[unshown], calls.end_ns[unshown]))
    unknown = concat(comm_waits.unknown, hidden, rest)
    nodes = host_nodes(el, tour, blocks, cuts, slept, gap_ns, union(unknown.start_ns, unknown.end_ns))
    part = spread(len(calls.start_ns), blocking, nodes.opening(waited_at))
    part[finished] = nodes.opening(finished_at)
    behind = part[blocking]
    waking_ns = spread(len(nodes.kind), behind, waking_ns[blocking], 0)
    return HostSide(
        elements=el,
        nodes=nodes,
        sleeps=slept,
        autograd=autograd,
        begun=begun,
        run=run,
        comm_waits=comm_waits,
        hidden=hidden,
        part=part,
        wake_ns=np.minimum(waking_ns + _held_ns(linked, el, nodes, waking_ns), nodes.duration_ns),
        launcher=_launchers(linked, el, nodes, launched_ns),
        launched_ns=launched_ns,
        unshown_ns=(calls.end_ns - wait_ns)[unshown],
        spins=spun,
        start_ns=start_ns,
        end_ns=max(int(ns.max()) for ns in (comm_waits.ended_ns, linked.trace.device.end_ns, el.end_ns) if len(ns)),
    )


def _places(tour: EulerTour, tid: I64, time_ns: I64) -> I64:
    """Return positions of times on threads, brought into the rank, and no later than the last mark of the thread."""
    return tour.within(tour.axis.clipped(tid, time_ns))


def _blocked_from(linked: Linked, tour: EulerTour, blocking: I64, since_ns: I64, launched_ns: I64) -> I64:
    """Return the position from which each of the ``blocking`` calls was blocked: one that launches, from when it had
    launched.
    """
    calls = linked.trace.calls
    launches = np.isin(blocking, linked.device_call)
    from_ns = np.where(launches, launched_ns[blocking], since_ns[blocking])
    return tour.axis.of(calls.tid[blocking], from_ns)


def _launch_cuts(linked: Linked, el: Elements, tour: EulerTour, launched_ns: I64, blocked: Bool) -> Cuts:
    """Return where each launching call had launched: a cut in any case where that was before it blocked or returned."""
    calls, axis = linked.trace.calls, tour.axis
    launching = distinct(linked.device_call[linked.device_call != NOWHERE])
    returned_ns = np.clip(
        np.where(blocked, calls.start_ns, calls.end_ns)[launching], axis.origin_ns, axis.origin_ns + axis.span_ns - 1
    )
    at_ns = _places(tour, calls.tid[launching], launched_ns[launching])
    return Cuts(at_ns, el.of_call[launching], launched_ns[launching] >= returned_ns)


def _launchers(linked: Linked, el: Elements, nodes: HostNodes, launched_ns: I64) -> I32:
    """Return for each device row the node that carries the time up to its launch, NOWHERE for orphans."""
    device = np.flatnonzero(linked.device_call != NOWHERE)
    call = linked.device_call[device]
    launcher = nodes.carrying(nodes.axis.of(linked.trace.calls.tid[call], launched_ns[call]), el.of_call[call])
    return spread(len(linked.device_call), device, launcher)


def _held_ns(linked: Linked, el: Elements, nodes: HostNodes, waking_ns: I64) -> I64:
    """Return for how long each node was held up as it launched, by a full queue; of those that do not wake up then, as
    what they take to wake up is a lag of what they waited for."""
    calls, (call, held_ns) = linked.trace.calls, held_launches(linked)
    call, held_ns = call[el.of_call[call] != NOWHERE], held_ns[el.of_call[call] != NOWHERE]
    node = nodes.carrying(nodes.axis.of(calls.tid[call], calls.end_ns[call]), el.of_call[call])
    return np.where(waking_ns == 0, sums(len(waking_ns), node, held_ns), 0)


def _finished(linked: Linked, found: Dependencies, el: Elements, blocked: Bool) -> I64:
    """Find the calls that found their device work done, and behind which their thread launches before its next operator
    begins.

    What is launched comes after what was awaited, but the ``sync`` edge starts at the next operator: so there is a cut
    behind them.
    """
    calls, rows = linked.trace.calls, linked.trace.host
    call = distinct(found.host.call)
    call = call[~blocked[call] & (el.of_call[call] != NOWHERE)]
    following = next_operator(linked, call)
    until_ns = np.append(rows.start_ns, np.iinfo(np.int64).max)[following]
    launching = distinct(linked.device_call[linked.device_call != NOWHERE])
    then = Neighbours.of(calls.tid[launching], calls.start_ns[launching]).since(calls.tid[call], calls.end_ns[call])
    launched = (then != NOWHERE) & (np.append(calls.start_ns[launching], 0)[then] < until_ns)
    return np.asarray(call[launched].astype(np.int64))


def _launched_ns(linked: Linked, blocked: Bool) -> I64:
    """Return the time up to which each call had launched: its end, with two exceptions.

    A call that launches and then waits for it, as cudaMemcpy does, has launched before the wait, after what such calls
    take to launch. A call that runs on in parallel with what it launched (copies from pageable memory, staged by the
    host for milliseconds) had launched it by then; counted at the end of the call, the op would begin later than it
    did, a copy when it was in truth done.
    """
    calls, device = linked.trace.calls, linked.trace.device
    out = np.where(blocked, calls.start_ns, calls.end_ns)
    ops = np.flatnonzero(linked.device_call != NOWHERE)
    began_ns = least(len(calls.start_ns), linked.device_call[ops], device.start_ns[ops])
    waits = blocked & (began_ns < np.iinfo(np.int64).max)
    out[waits] = calls.start_ns[waits] + _setup_ns(linked, blocked, began_ns)[waits]
    beside = ~blocked & (began_ns < calls.end_ns)
    out[beside] = np.maximum(began_ns[beside], calls.start_ns[beside])
    return out


def _setup_ns(linked: Linked, blocked: Bool, began_ns: I64) -> I64:
    """Estimate how long each call takes to launch what it then waits for, no longer than until that began.

    It shows where the stream was idle; behind other work it is hidden, and taken to be the median of those: at another
    speed of the device it shows. Where no such call of the recording shows it, the median of all launches that show it;
    0 where none does. What took more than 20 us waited for something else.
    """
    device, calls = linked.trace.device, linked.trace.calls
    before = stream_order(device).before
    op = np.flatnonzero(linked.device_call != NOWHERE)
    call = linked.device_call[op]
    idle = (before[op] == NOWHERE) | (device.end_ns[before[op]] < calls.start_ns[call])
    took_ns = device.start_ns[op] - calls.start_ns[call]
    shown = idle & (took_ns <= LATENCY_NS)
    shown = shown & blocked[call] if (shown & blocked[call]).any() else shown
    return np.asarray(np.clip(began_ns - calls.start_ns, 0, int(np.median(took_ns[shown])) if shown.any() else 0))


def wake_ns(linked: Linked, cuda: CudaWaits, wait_ns: I64) -> tuple[I64, Bool]:
    """Return (ns, shown): an estimate of what each call takes only because it had to wait: from ``wait_ns``, when the
    last awaited op ended, it wakes up and returns.

    A call that finds all done returns without that (in real traces: 5 to 95 % of stream and event synchronisations take
    2 to 9 us then, of device synchronisations 7 to 14). So with a faster device, as soon as nothing is left to wait
    for, the rest of the call is shorter: by the time from ``wait_ns`` to the return, less what the call takes if it
    finds all done.

    The latter is the median of the calls of its name in the recording that did not block; one of more than 20 us waited
    for something that the recording does not show. Where there are none it is 14 us, the most that such calls usually
    take: so it shows on machines that wake up slowly. 0 for copies, which never find their own work done, and never
    below 0. Not ``shown`` is what else a call waited for, where it took 50 us more than twice as long as calls of its
    name usually do in the recording, or 300 us where few show that, or they usually take longer: that is no waking. Of
    a copy, for as long as the copy itself took the host may empty or fill a buffer of the driver's beside it.
    Cost: O(calls) for each name.
    """
    calls = linked.trace.calls
    blocked: Bool = wait_ns > calls.start_ns
    sync = among(cuda.role, SYNCS)
    took_ns = calls.end_ns - calls.start_ns
    free = sync & ~blocked & (took_ns <= LATENCY_NS)
    blocked &= sync | among(cuda.role, (Role.COPY, Role.COPY_ASYNC))
    op = np.flatnonzero(linked.device_call != NOWHERE)
    own_ns = largest(
        len(took_ns), linked.device_call[op], (linked.trace.device.end_ns - linked.trace.device.start_ns)[op], 0
    )
    out, shown = np.zeros(len(took_ns), np.int64), np.ones(len(took_ns), np.bool_)
    for name in np.unique(calls.name[blocked]).tolist():
        waited, found = blocked & (calls.name == name), free & (calls.name == name)
        free_ns = int(np.median(took_ns[found])) if found.any() else FREE_NS
        rest_ns = calls.end_ns[waited] - wait_ns[waited] - np.where(sync, free_ns, own_ns)[waited]
        out[waited] = np.maximum(rest_ns, 0)
        usual_ns = int(np.median(out[waited]))  # no machine wakes up later than that, so all of them waited on
        enough = np.count_nonzero(waited) >= FEWEST and usual_ns <= MOST_RETURN_NS
        most_ns = 2 * usual_ns + NEAR_NS if enough else MOST_RETURN_NS
        shown[waited] = out[waited] <= most_ns
    return np.where(shown & sync, out, 0), shown
