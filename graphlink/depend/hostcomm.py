"""Host-side (gloo) communication: which stretches of host time were waits for it (CONTRACT, "Device time")."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from graphlink.depend.modes import beyond_chance
from graphlink.depend.points import Blocked
from graphlink.depend.sleep import WAKING_NS, Sleeps, silences
from graphlink.depend.threads import ASLEEP_NS
from graphlink.depend.timeline import Elements, EulerTour
from graphlink.linking.nest import asking
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool, CommKind, Communication, Linked
from graphlink.patterns import fits
from graphlink.spans import NONE, Axis, Spans, holding, joined, overlap_ns, overlaps
from graphlink.tables import MOST, begins, concat, distinct, how_many, in_order, marked, spread, sums, take

WAIT_END_NS = 50_000
WAIT_RANGE = "graphlink::wait"  # graphlink.capture records it around a wait for gloo
USUAL: Final = 90  # per cent of the waits that a recording tells show how long threads take to go on
SOON_SHARE: Final = 0.2  # of a silence, in whose last part the last operation ends by chance as rarely
LONG: Final = 4  # times a median: longer silence between ops with nothing pending is a wait, a longer send was held
_WORKING: Final = re.compile("aten::.*", re.DOTALL)
_VIEW: Final = "aten::as_strided"
_REDUCED: Final = "torch.distributed.ddp.reducer::copy_bucket_to_grad"  # DDP has waited for a bucket


class Asked(msgspec.Struct, frozen=True):
    """The origin of each host row: the thread that asked for it and when: itself, where no other thread ran it
    (``elsewhere``).

    ``start_ns``: of its nodes, as recorded, but for rows that gloo's threads took up before one that was asked for
    earlier: that one counts from 1 ns before, since simulators tell collectives by their order; and for sends whose
    thread was held. ``behind``: the row that the same thread of gloo's was still running when this one was asked for,
    else the one that had to end so that a thread was free, of as many as there are; ``NOWHERE`` where none.
    """

    tid: I64
    at_ns: I64
    elsewhere: Bool
    start_ns: I64
    behind: I32

    def delay_ns(self, ended_ns: I64) -> I64:
        """Return for how long each row did not begin though it was asked for and the row before it counts as ended
        (``ended_ns`` of each row): whose thread goes on later than who waited for it is late for the next one, too."""
        free_ns: I64 = np.maximum(self.at_ns, np.append(ended_ns, -MOST)[self.behind])
        return self.start_ns - free_ns


def asked(linked: Linked, comm: Communication, op: I32) -> Asked:
    """Find who asked for host communication: what gloo's threads ran, if they ran nothing else in it, was handed over
    while the ``op`` that asked for a row ran. O(n log n).

    The message of a send leaves in its op before its row begins (``buf->send`` stands before ``SendWork`` in PyTorch's
    ProcessGroupGloo.cpp). A thread that is held there begins the row up to some ms later, when the message was
    received: it counts as sent so long after its op began as is usual.
    """
    rows = linked.trace.host
    row = np.flatnonzero(op != NOWHERE)
    tid, at_ns, start_ns = rows.tid.copy(), rows.start_ns.copy(), rows.start_ns.copy()
    tid[row], at_ns[row] = rows.tid[op[row]], np.minimum(rows.start_ns[row], rows.end_ns[op[row]])
    send = comm.host_row[comm.host_are(CommKind.SEND)]
    send = send[op[send] == NOWHERE]
    around = asking(linked, send)
    send, around = send[around != NOWHERE], around[around != NOWHERE]
    in_op_ns = rows.start_ns[send] - rows.start_ns[around]
    usual_ns = int(np.median(in_op_ns)) if len(send) else 0
    held = in_op_ns > LONG * usual_ns
    at_ns[send[held]] = start_ns[send[held]] = rows.start_ns[around[held]] + usual_ns
    row = in_order(row, at_ns)
    place = np.arange(len(row))
    start_ns[row] = np.maximum(np.minimum.accumulate((start_ns[row] - place)[::-1])[::-1] + place, at_ns[row])
    run = in_order(row, rows.tid, rows.start_ns)
    before, after = run[:-1], run[1:]
    held = (
        (rows.tid[before] == rows.tid[after])
        & (rows.end_ns[before] > at_ns[after])
        & (rows.end_ns[before] <= start_ns[after])
    )
    by_start = in_order(row, rows.start_ns)
    threads = len(distinct(rows.tid[row]))
    freed, next_ = by_start[: max(len(row) - threads, 0)], by_start[threads:]
    known = rows.end_ns[freed] <= start_ns[next_]
    behind = spread(len(tid), next_[known], freed[known].astype(np.int32))
    behind[after[held]] = before[held]
    return Asked(tid, at_ns, op != NOWHERE, start_ns, behind)


class HostCommWaits(msgspec.Struct, frozen=True):
    """``comm`` (position in ``Communication.host_row``) was waited for over each stretch of ``blocked``.

    ``ended_ns``: of each host row, when it counts as ended: where it was recorded to, or, of host-side communication,
    where who waited for it had gone on before. ``unknown``: silence between ops in which a receive or collective was
    pending, and that is no wait for it as far as the recording shows; positions on the axis. ``slept``: the sleeps that
    are no such wait.
    """

    comm: I64
    blocked: Blocked
    ended_ns: I64
    unknown: Spans
    slept: Sleeps


@dataclass(frozen=True, slots=True)
class _Pending:
    """Receives and collectives whose thread is known: positions from when they were asked for to where their row ends,
    which began at ``start_ns``.

    ``elsewhere``: a thread of gloo's ran it. ``returns``: its row ends as the call returns that waited for it.
    """

    comm: I64
    from_ns: I64
    start_ns: I64
    until_ns: I64
    elsewhere: Bool
    returns: Bool


@dataclass(frozen=True, slots=True)
class _Silences(Spans):
    """Positions of what lies between ops for 100 us and longer; ``waits``: ``recorded`` ones, and those of DDP."""

    recorded: Bool
    waits: Bool


@dataclass(frozen=True, slots=True)
class _Stretches(Blocked):
    """What of the ``pending`` ones ended last in a stretch in which nothing nested ran, which went on ``after_ns``."""

    pending: I64
    after_ns: I64


def host_comm_waits(
    linked: Linked, comm: Communication, begun: Asked, el: Elements, marks: EulerTour, slept: Sleeps
) -> HostCommWaits:
    """Find waits for host-side communication. Cost: O(n log n).

    Host time outside of ATen's ops, in which nothing nested ran, was a wait. The row of a receive ends as the call
    returns that waited for it. That of a collective ends on a thread of gloo's, near the moment at which who waits goes
    on: up to 50 us before (100 us of a thread that slept for as long, which has to wake up), or after, as both threads
    may share a core; then the wait ended with the silence (``_before``). Where the recording tells waits, a row that
    ended in silence shorter than 100 us did so by chance. Where neither is so, a row that ended up to 2 ms before its
    thread went on was waited for, too (``depend.sleep``). A recorded ``WAIT_RANGE`` is a wait, and DDP waits before it
    goes on with a bucket. Of several rows that end in one stretch the last counts. A send
    is not waited for: its row ends because somebody asks, and it costs 0, so the time would be lost.
    """
    if not len(comm.host_row):
        blocked = Blocked(EMPTY.astype(np.int32), EMPTY, EMPTY)
        return HostCommWaits(EMPTY, blocked, linked.trace.host.end_ns, NONE, slept)
    pending = _pending(linked, comm, begun, marks)
    strange = _strange(linked, comm, begun, el, marks.axis)
    silence = _silences(linked, el, marks, slept, np.append(pending.from_ns, strange.start_ns))
    reduced, learned = _reduced(linked, el, marks.axis), 0
    if not len(reduced) and not silence.recorded.any():
        reduced = _going_on(linked, el, marks.axis, pending, silence)
        learned = len(reduced)  # all of them are first after the waits of their turns, which those of DDP need not be
    silence = replace(silence, waits=silence.recorded | np.isin(silence.end_ns, reduced))
    turn, turn_ns = _in_turn(pending, np.union1d(reduced, _ends_of_waits(linked, el, marks.axis)))
    own_ns = spread(len(pending.comm), turn[:learned], turn_ns[:learned])
    within = _within(linked, el, marks, pending, reduced, silence, own_ns)
    at = holding(silence, within.until_ns - 1)
    sure = ~pending.elsewhere[within.pending]
    sure |= (within.until_ns - within.from_ns >= ASLEEP_NS) & (within.after_ns <= ASLEEP_NS)
    sure |= spread(len(pending.comm), turn, turn_ns)[within.pending] == within.until_ns + within.after_ns
    of_turns = np.flatnonzero(np.isin(silence.end_ns, own_ns))
    row, span = _before(
        pending, silence, np.append(within.pending[sure], turn[:learned]), np.append(at[sure], of_turns)
    )
    own, inside = _inside(pending, silence)
    row, span = np.append(row, own), np.append(span, inside)
    beside, sending = _beside_sends(pending, silence, take(within, ~np.isin(within.pending, row)), np.append(at, span))
    row, span = np.append(row, beside), np.append(span, sending)
    until_ns = silence.end_ns[span]
    before = _Stretches(
        marks.owner[marks.behind(until_ns, before=True)],
        np.maximum(silence.start_ns[span], pending.from_ns[row]),
        until_ns,
        row,
        np.zeros_like(row),
    )
    found = concat(take(within, ~np.isin(within.pending, row) & ~np.isin(at, span)), before)
    left = ~np.isin(turn, found.pending) & ~np.isin(turn_ns, found.until_ns + found.after_ns)
    found = concat(found, _at_turns(marks, pending, silence.end_ns[of_turns], turn[left], turn_ns[left]))
    if (waiting := _waiting(marks.axis, slept, found)).any():
        return host_comm_waits(linked, comm, begun, el, marks, take(slept, ~waiting))
    found = _awake(marks.axis, slept, found)
    pending.until_ns[found.pending] = np.minimum(pending.until_ns[found.pending], found.until_ns)
    ended_ns = linked.trace.host.end_ns.copy()
    ended_ns[comm.host_row[pending.comm]] = marks.axis.time_ns(pending.until_ns)
    return HostCommWaits(
        pending.comm[found.pending], found, ended_ns, _unknown(pending, strange, silence, found), slept
    )


def _pending(linked: Linked, comm: Communication, begun: Asked, marks: EulerTour) -> _Pending:
    at = np.flatnonzero(~comm.host_are(CommKind.SEND))
    at = at[marks.axis.has(begun.tid[comm.host_row[at]])]
    row = comm.host_row[at]
    return _Pending(
        at,
        marks.axis.of(begun.tid[row], begun.at_ns[row]),
        marks.axis.of(begun.tid[row], begun.start_ns[row]),
        marks.axis.of(begun.tid[row], linked.trace.host.end_ns[row]),
        begun.elsewhere[row],
        comm.host_are(CommKind.RECV)[at] & ~begun.elsewhere[row],
    )


def _strange(linked: Linked, comm: Communication, begun: Asked, el: Elements, axis: Axis) -> Spans:
    """Return the receives and collectives that nobody is known to have asked for, on each thread that runs ops."""
    row = comm.host_row[~comm.host_are(CommKind.SEND)]
    row = row[~axis.has(begun.tid[row])]
    tid = distinct(el.tid[el.whose_row(np.arange(len(el.tid)), ~linked.trace.host.annotation)])
    each, row = np.repeat(tid, len(row)), np.tile(row, len(tid))
    return Spans(axis.of(each, linked.trace.host.start_ns[row]), axis.of(each, linked.trace.host.end_ns[row]))


def _silences(linked: Linked, el: Elements, marks: EulerTour, slept: Sleeps, asked_ns: I64) -> _Silences:
    """Find the silences of the threads of what was asked for."""
    mark, silent = silences(linked, el, marks, slept)
    recorded = _in_wait_range(linked, el, marks.owner[mark])
    own = np.isin(marks.axis.thread(silent.end_ns), distinct(marks.axis.thread(asked_ns)))
    return take(_Silences(silent.start_ns, silent.end_ns, recorded, recorded), own)


def _reduced(linked: Linked, el: Elements, axis: Axis) -> I64:
    """Return where DDP goes on with a bucket that was reduced: it views its parts, and copies them to the gradients."""
    rows, strings, at = linked.trace.host, linked.trace.strings, _outer(linked, el)
    view, copy = (
        np.array([text == name for text in strings], np.bool_)[rows.name[el.row[at]]] for name in (_VIEW, _REDUCED)
    )
    if not copy.any():
        return np.zeros(0, np.int64)
    others, first = np.flatnonzero(~view), np.flatnonzero(view & begins(view, el.tid[at]))
    then = others[np.minimum(np.searchsorted(others, first), len(others) - 1)]
    first = at[first[copy[then] & (el.tid[at[then]] == el.tid[at[first]])]]
    return axis.of(el.tid[first], el.start_ns[first])


def _outer(linked: Linked, el: Elements) -> I64:
    """Return the elements that are ops outside of any other."""
    annotation = linked.trace.host.annotation
    outer = (el.row != NOWHERE) & ~el.whose_row(np.arange(len(el.tid)), annotation)
    outer &= (el.parent == NOWHERE) | el.whose_row(el.parent, annotation)
    return np.flatnonzero(outer)


def _going_on(linked: Linked, el: Elements, axis: Axis, pending: _Pending, silence: _Silences) -> I64:
    """Return where a program whose recording tells no waits goes on with what was reduced: the ops of that name of
    which as many follow each collectives as were asked for, and before which threads were silent for longest while
    something was pending."""
    at = _outer(linked, el)
    start_ns, name = axis.of(el.tid[at], el.start_ns[at]), linked.trace.host.name[el.row[at]]
    run = np.flatnonzero(pending.elsewhere & ~pending.returns)
    silent_ns = overlap_ns(joined(pending.from_ns[run], pending.until_ns[run]), silence.start_ns, silence.end_ns)
    next_ = np.searchsorted(start_ns, silence.end_ns)
    ends = np.append(start_ns, MOST)[next_] == silence.end_ns
    of_name = sums(len(linked.trace.strings), name[next_[ends]], silent_ns[ends])
    of_name[np.bincount(name, minlength=len(of_name)) < max(len(run), 2)] = 0  # once shows no habit
    names = np.flatnonzero(of_name)
    going_on = (start_ns[name == n] for n in names[np.argsort(-of_name[names], kind="stable")])
    return next((ns for ns in going_on if len(_in_turn(pending, ns)[0]) == len(run)), start_ns[:0])


def _within(
    linked: Linked, el: Elements, marks: EulerTour, pending: _Pending, reduced: I64, silence: _Silences, turn_ns: I64
) -> _Stretches:
    """Find the stretches in which rows ended, if their thread went on soon, or later as it woke up; those of ATen's ops
    are work. Where the recording tells waits, who goes on late was busy with something else.
    """
    mark = marks.behind(pending.until_ns, before=True)
    following = np.append(marks.at_ns[1:], 0)[mark]
    working = fits(_WORKING, linked.trace.strings)[linked.trace.host.name]
    ends = (
        (marks.axis.thread(following) == marks.axis.thread(pending.until_ns))
        & (following >= pending.until_ns)
        & (marks.at_ns[mark] < pending.until_ns)
        & ~el.whose_row(marks.owner[mark], working)
        & ((turn_ns == NOWHERE) | (turn_ns == following))
    )
    order = in_order(np.flatnonzero(ends), mark, pending.until_ns)
    last = order[np.append(mark[order][1:] != mark[order][:-1], True)] if len(order) else order
    until_ns, owner = pending.until_ns[last], marks.owner[mark[last]]
    asked_ns = np.sort(pending.from_ns)
    asked_ns = asked_ns[np.searchsorted(asked_ns, until_ns, side="right") - 1]  # who asks for the next one still works
    from_ns = np.maximum(asked_ns, marks.at_ns[mark[last]])
    asleep = pending.elsewhere[last] & (until_ns - from_ns >= ASLEEP_NS)
    after_ns = following[last] - until_ns
    told = _in_wait_range(linked, el, owner) | np.isin(following[last], reduced)
    long = until_ns - from_ns >= ASLEEP_NS
    shown_ns = after_ns[told & long]
    shown_ns = np.percentile(shown_ns, USUAL, method="higher") if len(shown_ns) else ASLEEP_NS
    slow_ns = np.clip(shown_ns, ASLEEP_NS, WAKING_NS) if silence.waits.any() else WAKING_NS
    soon = after_ns <= np.where(asleep, slow_ns, WAIT_END_NS)
    soon &= long | ~silence.waits.any()
    soon |= told
    soon |= pending.returns[last] & ~silence.recorded.any()
    late = np.flatnonzero(asleep & (after_ns > ASLEEP_NS) & ~silence.recorded.any())
    soon[late] |= _behind_all(pending, from_ns[late], following[last[late]], after_ns[late])
    return take(_Stretches(owner, from_ns, until_ns, last, after_ns), soon)


def _behind_all(pending: _Pending, from_ns: I64, until_ns: I64, after_ns: I64) -> Bool:
    """Tell which stretches ended soon after the last of all that was pending, where it is no chance that so many did:
    by chance the last of those that end in a stretch does so in that fifth of it in one of five at most.
    """
    ended = np.sort(pending.until_ns)
    done = np.searchsorted(ended, until_ns, side="right")
    behind = np.searchsorted(np.sort(pending.from_ns), until_ns) == done
    ends = done - np.searchsorted(ended, from_ns)
    soon = behind & (ends * after_ns <= SOON_SHARE * (until_ns - from_ns)) & (after_ns <= WAKING_NS)
    n, of = how_many(soon), how_many(behind)
    return soon if n and beyond_chance(n, of, SOON_SHARE * of) else np.zeros_like(soon)


def _before(pending: _Pending, silence: _Silences, row: I64, at: I64) -> tuple[I64, I64]:
    """Return which of the pending ones were waited for in a silence before their row ended, and in which.

    ``row`` and ``at``: those whose silence is known already, and these silences. Of the other silences that are waits
    and, in a recording that tells none, of other long ones, each waited for the first that was asked for and whose row
    ended up to 2 ms later (of a long wait, at any time later).
    """
    length_ns = silence.end_ns - silence.start_ns
    idle = overlap_ns(joined(pending.from_ns, pending.until_ns), silence.start_ns, silence.end_ns) == 0
    idle &= ~silence.waits
    least_ns = max(LONG * np.median(length_ns[idle]), ASLEEP_NS) if idle.any() else ASLEEP_NS
    long = length_ns >= np.where(silence.recorded, ASLEEP_NS, least_ns)
    told = silence.waits if silence.waits.any() else long
    waits = np.flatnonzero(told & ~np.isin(np.arange(len(long)), at))
    latest_ns = np.where(silence.waits & long, np.iinfo(np.int64).max, silence.end_ns + WAKING_NS)[waits].tolist()
    row = in_order(np.flatnonzero(pending.elsewhere & ~marked(len(pending.comm), row)), pending.from_ns)
    asked, begun, ended = (column[row].tolist() for column in (pending.from_ns, pending.start_ns, pending.until_ns))
    given: list[tuple[int, int]] = []
    going: list[int] = []
    following = 0
    for k, until_ns, last_ns in zip(waits.tolist(), silence.end_ns[waits].tolist(), latest_ns, strict=True):
        while following < len(row) and asked[following] < until_ns:
            going.append(following)
            following += 1
        going = [r for r in going if ended[r] > until_ns]
        first = next((r for r in going if begun[r] < until_ns and ended[r] <= last_ns), NOWHERE)
        if first != NOWHERE:
            given.append((int(row[first]), k))
            going.remove(first)
    pairs = np.array(given, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _ends_of_waits(linked: Linked, el: Elements, axis: Axis) -> I64:
    at = np.flatnonzero(_in_wait_range(linked, el, np.arange(len(el.tid), dtype=np.int32)))
    return axis.of(el.tid[at], el.end_ns[at])


def _in_turn(pending: _Pending, told_ns: I64) -> tuple[I64, I64]:
    """Return which collectives had been waited for at which of ``told_ns``, however short the wait: those that were
    asked for since the last such places, in turn, where they are as many."""
    row = in_order(np.flatnonzero(pending.elsewhere & ~pending.returns), pending.from_ns)
    asked = np.searchsorted(pending.from_ns[row], told_ns)
    first = np.flatnonzero(begins(asked))
    before, places = np.append(0, asked[first])[:-1], np.diff(np.append(first, len(asked)))
    group = np.repeat(np.arange(len(first)), places)
    turn = before[group] + np.arange(len(asked)) - first[group]
    even = (asked[first] - before == places)[group]
    return row[turn[even]], told_ns[even]


def _at_turns(marks: EulerTour, pending: _Pending, silent_ns: I64, row: I64, until_ns: I64) -> _Stretches:
    """Return the waits for collectives until their turns: of no length where no silence ends (``silent_ns``), or the
    row had ended before it."""
    mark = marks.behind(until_ns, before=True)
    silent = np.isin(until_ns, silent_ns) & (pending.until_ns[row] > marks.at_ns[mark])
    from_ns = np.where(silent, np.maximum(marks.at_ns[mark], pending.from_ns[row]), until_ns)
    return _Stretches(marks.owner[mark], from_ns, until_ns, row, np.zeros_like(row))


def _waiting(axis: Axis, slept: Sleeps, waits: Blocked) -> Bool:
    """Tell of each sleep that only the other's activity tells whether its thread waited for communication meanwhile."""
    waited = joined(waits.from_ns, waits.until_ns)
    ns = overlap_ns(waited, axis.of(slept.tid, slept.from_ns), axis.of(slept.tid, slept.release_ns))
    return np.asarray((slept.shown == 0) & (ns > 0))


def _awake(axis: Axis, slept: Sleeps, waits: _Stretches) -> _Stretches:
    """Return of the waits what comes after the sleeps of their threads; those of no length stay where they are."""
    asleep = joined(axis.of(slept.tid, slept.from_ns), axis.of(slept.tid, slept.release_ns))
    awake_ns = np.append(asleep.end_ns, 0)[np.searchsorted(asleep.start_ns, waits.until_ns) - 1]
    from_ns = np.maximum(waits.from_ns, np.minimum(awake_ns, waits.until_ns))
    return take(replace(waits, from_ns=from_ns), (from_ns < waits.until_ns) | (waits.from_ns == waits.until_ns))


def _inside(pending: _Pending, silence: _Silences) -> tuple[I64, I64]:
    """Return which collectives a thread ran in rows around other work, and in which silence of its row: the last one.

    Of tensors on a GPU the row of gloo holds copies from and to the device; between them it communicates.
    """
    row = np.flatnonzero(~pending.elsewhere & ~pending.returns)
    last = np.searchsorted(silence.end_ns, pending.until_ns[row], side="right") - 1
    row, last = row[last >= 0], last[last >= 0]
    held = (silence.start_ns[last] >= pending.from_ns[row]) & ~silence.waits[last]
    return row[held], last[held]


def _beside_sends(pending: _Pending, silence: _Silences, within: _Stretches, taken: I64) -> tuple[I64, I64]:
    """Return the receives that had come when they were waited for, and the recorded wait just before, none of those
    ``taken``, which was for a send: who receives that sends this as it begins to receive, where both are asked for
    together, as pipelines do.
    """
    came = pending.returns[within.pending] & (within.until_ns - within.from_ns < ASLEEP_NS)
    row, from_ns = within.pending[came], within.from_ns[came]
    last = np.searchsorted(silence.end_ns, from_ns, side="right") - 1
    row, from_ns, last = row[last >= 0], from_ns[last >= 0], last[last >= 0]
    before = silence.recorded[last] & (from_ns - silence.end_ns[last] <= ASLEEP_NS)
    before &= (pending.from_ns[row] < silence.start_ns[last] + ASLEEP_NS) & ~np.isin(last, taken)
    return row[before], last[before]


def _unknown(pending: _Pending, strange: Spans, silence: _Silences, waits: Blocked) -> Spans:
    """Return where something was pending in the silences that have no wait."""
    waited = joined(waits.from_ns, waits.until_ns)
    silence = take(silence, overlap_ns(waited, silence.start_ns, silence.end_ns) == 0)
    asked = joined(np.append(pending.from_ns, strange.start_ns), np.append(pending.until_ns, strange.end_ns))
    at, span, ns = overlaps(asked, silence.start_ns, silence.end_ns)
    start_ns = np.maximum(silence.start_ns[at], asked.start_ns[span])
    return take(Spans(start_ns, start_ns + ns), ns >= ASLEEP_NS)


def _in_wait_range(linked: Linked, el: Elements, element: I32) -> Bool:
    named = np.array([text == WAIT_RANGE for text in linked.trace.strings], np.bool_)
    return el.whose_row(element, named[linked.trace.host.name])
