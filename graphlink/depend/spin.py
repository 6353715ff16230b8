"""Waits of the host without a call: it polls memory that a kernel writes (DeepEP's ``dispatch`` waits like this for counts of tokens).

All that shows is silence: inside an op no child and no call for 100 us or more, behind the launch of a device op that then runs, and the
silence ends close to that op's end. Once this is a coincidence. It is a wait where it happens again and again, for the same name of op
and of device op: at least twice, hardly ever otherwise, and by chance less than 1 in 1000 (each time with the share that 100 us before
to 100 us after the end have in the silence).

A host that goes on **after** the end waited for the op itself. One that goes on before (it sees what the kernel wrote while that cleans
up) waited for a moment inside it, which is no node's end: known is that it waited for what the op itself had to wait for, the op before on
its stream and its events, and that is the edge. How long the op itself then let the host wait is counted as untold, as are coincidences
that nothing bears out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.depend.devicetime import stream_order
from graphlink.depend.merge import Dependencies
from graphlink.depend.sleep import ASLEEP_NS, Sleeps
from graphlink.depend.timeline import Elements, Marks
from graphlink.model import I32, I64, NOWHERE, Bool, Linked

NEAR_NS: Final = 100_000
BY_CHANCE: Final = 1e-3
TIMES: Final = 2
SUPPORT_FOR_ONE: Final = 10
_LEAST_CHANCE: Final = 0.2  # a coincidence in a silence that is not much longer than what counts as close is not worth a word


@dataclass(frozen=True, slots=True)
class Spins:
    """``element`` waited over [from, until) on the axis of the marks for device row ``source``; ``after_ns``: end of the silence.

    ``untold``: silences that ended as a device op ended and are not, or not wholly, explained, with the time that is not.
    """

    element: I32
    from_ns: I64
    until_ns: I64
    source: I32
    tid: I64
    after_ns: I64
    untold: int
    untold_ns: int


@dataclass(frozen=True, slots=True)
class _Silences:
    """Parallel columns: ``element`` was silent over [from, until) on the axis, behind the launch of device row ``op``."""

    element: I32
    from_ns: I64
    until_ns: I64
    op: I32

    def only(self, which: Bool) -> _Silences:
        return _Silences(self.element[which], self.from_ns[which], self.until_ns[which], self.op[which])


def spins(linked: Linked, found: Dependencies, el: Elements, marks: Marks, slept: Sleeps) -> Spins:
    """Cost: O(n log n)."""
    silent = _behind_launches(linked, el, marks, _silences(linked, marks, slept))
    device, axis = linked.trace.device, marks.axis
    tid = axis.tids[axis.thread(silent.from_ns)]
    op_ends = axis.of(tid, np.clip(device.end_ns[silent.op], axis.origin_ns, axis.origin_ns + axis.span_ns - 1))
    runs = op_ends > silent.from_ns
    near = runs & (np.abs(silent.until_ns - op_ends) <= NEAR_NS)
    chance = np.minimum(2 * NEAR_NS / (silent.until_ns - silent.from_ns), 1.0)
    waits = near & _again(linked, el, silent, near, runs & ~near, chance)
    source = np.where(op_ends <= silent.until_ns, silent.op, _before(linked, found)[silent.op])
    ended = axis.of(tid, np.clip(device.end_ns[source], axis.origin_ns, axis.origin_ns + axis.span_ns - 1))
    told = waits & (source != NOWHERE) & (ended > silent.from_ns) & (ended <= silent.until_ns)
    rest_ns = np.where(told, np.where(source == silent.op, 0, silent.until_ns - ended), silent.until_ns - silent.from_ns)
    untold = (waits | (near & (chance <= _LEAST_CHANCE))) & (rest_ns > 0)
    return Spins(
        element=silent.element[told],
        from_ns=silent.from_ns[told],
        until_ns=ended[told],
        source=source[told].astype(np.int32),
        tid=tid[told],
        after_ns=axis.time_ns(silent.until_ns[told]),
        untold=int(np.count_nonzero(untold)),
        untold_ns=int(rest_ns[untold].sum()),
    )


def _silences(linked: Linked, marks: Marks, slept: Sleeps) -> _Silences:
    """Stretches of 100 us and more inside an op, without any mark or call and not asleep; ``op`` is still unknown."""
    calls, axis = linked.trace.calls, marks.axis
    n = len(marks.at_ns)
    at = np.flatnonzero((np.diff(marks.at_ns) >= ASLEEP_NS) & (marks.owner[: n - 1] != NOWHERE)) if n else np.zeros(0, np.int64)
    at = at[axis.thread(marks.at_ns[at]) == axis.thread(marks.at_ns[at + 1])]
    from_ns, until_ns = marks.at_ns[at], marks.at_ns[at + 1]
    call = np.flatnonzero(axis.has(calls.tid)) if len(at) else np.zeros(0, np.int64)
    last_ns = axis.origin_ns + axis.span_ns - 1
    begin = axis.of(calls.tid[call], np.clip(calls.start_ns[call], axis.origin_ns, last_ns))
    end = axis.of(calls.tid[call], np.clip(calls.end_ns[call], axis.origin_ns, last_ns))
    place = np.searchsorted(from_ns, begin, side="right") - 1
    inside = (place >= 0) & (begin < until_ns[place]) if len(at) else np.zeros(0, np.bool_)
    begin, end = begin[inside], np.minimum(end[inside], until_ns[place[inside]])
    starts, ends = np.sort(np.concatenate([from_ns, end])), np.sort(np.concatenate([begin, until_ns]))
    long = ends - starts >= ASLEEP_NS
    starts, ends = starts[long], ends[long]
    owner = marks.owner[at][np.searchsorted(from_ns, starts, side="right") - 1] if len(starts) else np.zeros(0, np.int32)
    awake = np.ones(len(starts), np.bool_)
    known = axis.has(slept.tid)
    falls, wakes = axis.of(slept.tid[known], slept.from_ns[known]), axis.of(slept.tid[known], slept.until_ns[known])
    order = np.argsort(falls, kind="stable")
    before = np.searchsorted(falls[order], ends) - 1
    awake[before >= 0] = wakes[order][before[before >= 0]] <= starts[before >= 0]
    return _Silences(owner, starts, ends, np.full(len(starts), NOWHERE, np.int32)).only(awake)


def _behind_launches(linked: Linked, el: Elements, marks: Marks, silent: _Silences) -> _Silences:
    """With the device op that the thread launched last before each silence; those without one inside the silent op are left out."""
    calls, axis = linked.trace.calls, marks.axis
    row = np.flatnonzero(linked.device_call != NOWHERE)
    row = row[axis.has(calls.tid[linked.device_call[row]])]
    if not len(row) or not len(silent.from_ns):
        return silent.only(np.zeros(len(silent.from_ns), np.bool_))
    call = linked.device_call[row]
    launched = axis.of(calls.tid[call], np.clip(calls.start_ns[call], axis.origin_ns, axis.origin_ns + axis.span_ns - 1))
    order = np.lexsort((linked.trace.device.start_ns[row], launched))
    at = np.searchsorted(launched[order], silent.from_ns) - 1
    op = row[order[at]]
    begun = axis.of(el.tid[silent.element], el.start_ns[silent.element])
    real = (at >= 0) & (launched[order[at]] >= begun)
    return _Silences(silent.element, silent.from_ns, silent.until_ns, op.astype(np.int32)).only(real)


def _again(linked: Linked, el: Elements, silent: _Silences, near: Bool, against: Bool, chance: NDArray[np.float64]) -> Bool:
    """Which silences belong to an (op, device op) by name that is silent like this again and again."""
    rows, device = linked.trace.host, linked.trace.device
    row = el.row[silent.element]
    name = np.where(row == NOWHERE, NOWHERE, rows.name[row] if len(rows.name) else NOWHERE)
    pairs = np.stack([name, device.name[silent.op]], axis=1) if len(row) else np.zeros((0, 2), np.int64)
    _, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    n = int(group.max()) + 1 if len(group) else 0
    times, other = np.bincount(group[near], minlength=n), np.bincount(group[against], minlength=n)
    by_chance = np.bincount(group[near], np.log(chance[near]), minlength=n)
    good = (times >= TIMES) & (other * SUPPORT_FOR_ONE <= times) & (by_chance <= np.log(BY_CHANCE))
    out: Bool = good[group]
    return out


def _before(linked: Linked, found: Dependencies) -> I32:
    """What each device op had to wait for longest: the op before on its stream, or a source of its events."""
    device = linked.trace.device
    before = stream_order(device).before.copy()
    order = np.argsort(device.end_ns[found.event_source], kind="stable")
    source, target = found.event_source[order], found.event_target[order]
    last = np.full(len(before), NOWHERE, np.int32)
    last[target] = source  # of several the last that ended stays
    later = (last != NOWHERE) & ((before == NOWHERE) | (device.end_ns[last] > device.end_ns[before]))
    before[later] = last[later]
    return before
