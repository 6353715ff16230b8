"""Waits of the host without a call: it polls memory that a kernel writes (DeepEP's ``dispatch`` waits like this for
counts of tokens).

All that shows is silence: inside an op no child and no call for 100 us or more, behind the launch of a device op that
then runs, and the silence ends close to that op's end. Once this is a coincidence. It is a wait where it happens again
and again, for the same name of op and of device op: at least twice, hardly ever otherwise, and by chance less than 1 in
1000 (each time with the share that 100 us before to 100 us after the end have in the silence).

A host that goes on before the op ends (it sees what the kernel wrote while that cleans up) waited for a moment inside
it, which is no node's end. Then the host from the op's end on depends on the op; what it did before, for 100 us at
most, on what the op itself had to wait for. A replay runs that little work early, and is exact again where the op ends.
Coincidences that nothing confirms are not reported.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.depend.devicetime import stream_order
from graphlink.depend.points import Blocked
from graphlink.depend.reject import Dependencies
from graphlink.depend.sleep import Sleeps
from graphlink.depend.threads import ASLEEP_NS
from graphlink.depend.timeline import Elements, EulerTour
from graphlink.linking.call_roles import Role
from graphlink.model import EMPTY, I32, I64, NOWHERE, U8, Bool, Linked
from graphlink.spans import Axis, Neighbours
from graphlink.tables import begins, how_many, last_before, marked, numbered_rows, spread, take

NEAR_NS: Final = 100_000
BY_CHANCE: Final = 1e-3
TIMES: Final = 2
SUPPORT_FOR_ONE: Final = 10
_LEAST_CHANCE: Final = (
    0.2  # a coincidence in a silence that is not much longer than what counts as close is not worth a word
)


class Spins(msgspec.Struct, frozen=True):
    """Over each stretch of ``blocked`` the host waited for device row ``source``, which ended at ``ended_ns`` on the
    axis of the marks.

    ``before``: what ``source`` itself had to wait for longest, where that blocked the host, and the wait was over
    before ``source`` ended; else NOWHERE. ``untold``: other silences that ended as a device op ended, of ``untold_ns``.
    """

    blocked: Blocked
    ended_ns: I64
    source: I32
    before: I32
    untold: int
    untold_ns: int


def polled_since(linked: Linked, found: Dependencies, role: U8) -> I64:
    """Return for each call since when its thread asked for what it found: its start, but of a query that found device
    work done that of the first of the queries in a row before it, which did not, with no row or other call between.

    One query before it is no loop: what its thread ran between the two may be Python's. Not of a thread without rows,
    as of NCCL's watchdog, which waits for nothing. O(n log n).
    """
    calls = linked.trace.calls
    query, done = _queries(linked, found, role)
    if not done.any():
        return calls.start_ns
    order, run = _runs(linked, query, done)
    loops = np.arange(len(run)) - run >= TIMES
    since_ns = spread(len(role), order, calls.start_ns[order[np.where(loops, run, np.arange(len(run)))]])
    return np.where(done, since_ns, calls.start_ns)


def untold_polls_ns(linked: Linked, found: Dependencies, role: U8) -> I64:
    """Return how long each such loop took, of 100 us and longer, of which nothing tells what its last query found.
    O(n log n)."""
    calls = linked.trace.calls
    query, done = _queries(linked, found, role)
    order, run = _runs(linked, query, done)
    last = np.append(run[1:] != run[:-1], len(run) > 0)[: len(run)] & (np.arange(len(run)) - run >= TIMES)
    last &= (query & ~done)[order]
    ns = calls.end_ns[order[last]] - calls.start_ns[order[run[last]]]
    return ns[ns >= ASLEEP_NS]


def _queries(linked: Linked, found: Dependencies, role: U8) -> tuple[Bool, Bool]:
    """Return which calls are queries of threads that have rows, and which of them are known to have found work done."""
    query = (role == Role.EVENT_QUERY) & np.isin(linked.trace.calls.tid, linked.trace.host.tid)
    return query, marked(len(role), found.host.call) & query


def _runs(linked: Linked, query: Bool, done: Bool) -> tuple[I64, I64]:
    """Return the calls by thread and time, and for each the place of the first of its run of queries."""
    calls, rows = linked.trace.calls, linked.trace.host
    begun = last_before((rows.tid,), rows.start_ns, (calls.tid,), calls.start_ns + 1)
    order = np.lexsort((calls.start_ns, calls.tid))
    first = begins(calls.tid[order], linked.call_op[order], begun[order], query[order])
    first[1:] |= done[order[:-1]]
    return order, np.flatnonzero(first)[np.cumsum(first) - 1]


def spins(linked: Linked, found: Dependencies, el: Elements, marks: EulerTour, slept: Sleeps) -> Spins:
    """Find waits that poll. Cost: O(n log n)."""
    silent, op = _behind_launches(linked, el, marks, _silences(linked, marks, slept))
    device, axis = linked.trace.device, marks.axis
    tid = axis.tids[axis.thread(silent.from_ns)]
    ended = axis.clipped(tid, device.end_ns[op])
    runs = ended > silent.from_ns
    near = runs & (np.abs(silent.until_ns - ended) <= NEAR_NS)
    chance = np.minimum(2 * NEAR_NS / (silent.until_ns - silent.from_ns), 1.0)
    waits = near & _again(linked, el, silent.element, op, near, runs & ~near, chance)
    waits &= (marks.within(ended) == ended) & _awake(axis, slept, silent.until_ns, ended)
    untold = near & ~waits & (chance <= _LEAST_CHANCE)
    before = _before(linked, found)[op]
    freed = axis.clipped(tid, device.end_ns[before])
    early = (ended > silent.until_ns) & (before != NOWHERE) & (freed > silent.from_ns) & (freed <= silent.until_ns)
    return Spins(
        blocked=take(Blocked(silent.element, silent.from_ns, np.minimum(silent.until_ns, ended)), waits),
        ended_ns=ended[waits],
        source=op[waits],
        before=np.where(early, before, NOWHERE)[waits].astype(np.int32),
        untold=how_many(untold),
        untold_ns=int((silent.until_ns - silent.from_ns)[untold].sum()),
    )


def _awake(axis: Axis, slept: Sleeps, from_ns: I64, until_ns: I64) -> Bool:
    """Tell whether no time of each [from, until) is asleep."""
    known = axis.has(slept.tid)
    falls, wakes = axis.of(slept.tid[known], slept.from_ns[known]), axis.of(slept.tid[known], slept.until_ns[known])
    order = np.argsort(falls, kind="stable")
    last = np.searchsorted(falls[order], until_ns) - 1
    return np.append(wakes[order], -1)[last] <= from_ns


def _silences(linked: Linked, marks: EulerTour, slept: Sleeps) -> Blocked:
    """Find stretches of 100 us and more inside an op, without any mark or call and not asleep."""
    calls, axis = linked.trace.calls, marks.axis
    n = len(marks.at_ns)
    at = np.flatnonzero((np.diff(marks.at_ns) >= ASLEEP_NS) & (marks.owner[: n - 1] != NOWHERE)) if n else EMPTY
    at = at[axis.thread(marks.at_ns[at]) == axis.thread(marks.at_ns[at + 1])]
    from_ns, until_ns = marks.at_ns[at], marks.at_ns[at + 1]
    call = np.flatnonzero(axis.has(calls.tid)) if len(at) else EMPTY
    begin = axis.clipped(calls.tid[call], calls.start_ns[call])
    end = axis.clipped(calls.tid[call], calls.end_ns[call])
    place = np.searchsorted(from_ns, begin, side="right") - 1
    inside = (place >= 0) & (begin < until_ns[place]) if len(at) else np.zeros(0, np.bool_)
    begin, end = begin[inside], np.minimum(end[inside], until_ns[place[inside]])
    starts, ends = np.sort(np.concatenate([from_ns, end])), np.sort(np.concatenate([begin, until_ns]))
    long = ends - starts >= ASLEEP_NS
    starts, ends = starts[long], ends[long]
    owner = (
        marks.owner[at][np.searchsorted(from_ns, starts, side="right") - 1] if len(starts) else np.zeros(0, np.int32)
    )
    return take(Blocked(owner, starts, ends), _awake(axis, slept, starts, ends))


def _behind_launches(linked: Linked, el: Elements, marks: EulerTour, silent: Blocked) -> tuple[Blocked, I32]:
    """Return (silences, the device op that the thread launched last before each); those without one inside the silent
    op are left out.
    """
    calls, axis = linked.trace.calls, marks.axis
    row = np.flatnonzero(linked.device_call != NOWHERE)
    row = row[axis.has(calls.tid[linked.device_call[row]])]
    call = linked.device_call[row]
    tid, from_ns = axis.tids[axis.thread(silent.from_ns)], axis.time_ns(silent.from_ns)
    last = Neighbours.of(calls.tid[call], calls.start_ns[call]).before(tid, from_ns)
    real = (last != NOWHERE) & (np.append(calls.start_ns[call], 0)[last] >= el.start_ns[silent.element])
    return take(silent, real), row[last[real]].astype(np.int32)


def _again(
    linked: Linked, el: Elements, element: I32, op: I32, near: Bool, against: Bool, chance: NDArray[np.float64]
) -> Bool:
    """Mark the silences that belong to an (element, device op) by name that is silent like this again and again."""
    rows, device = linked.trace.host, linked.trace.device
    row = el.row[element]
    name = np.where(row == NOWHERE, NOWHERE, rows.name[row] if len(rows.name) else NOWHERE)
    pairs, group = numbered_rows(name, device.name[op])
    n = len(pairs)
    times, other = np.bincount(group[near], minlength=n), np.bincount(group[against], minlength=n)
    by_chance = np.bincount(group[near], np.log(chance[near]), minlength=n)
    good = (times >= TIMES) & (other * SUPPORT_FOR_ONE <= times) & (by_chance <= np.log(BY_CHANCE))
    return np.asarray(good[group])


def _before(linked: Linked, found: Dependencies) -> I32:
    """Find what each device op had to wait for longest: the op before on its stream, or a source of its events."""
    device = linked.trace.device
    before = stream_order(device).before.copy()
    order = np.argsort(device.end_ns[found.device.source], kind="stable")
    source, target = found.device.source[order], found.device.device_op[order]
    last = spread(len(before), target, source)  # of several the last that ended stays
    later = (last != NOWHERE) & ((before == NOWHERE) | (device.end_ns[last] > device.end_ns[before]))
    before[later] = last[later]
    return before
