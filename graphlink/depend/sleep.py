"""Idle threads that were asleep, and what on another thread woke them (CONTRACT, "Host time").

A thread that is idle for 100 us or more outside any cpu_op and call was asleep if another thread was active until it
woke, and that one then sleeps, or slept when this one fell asleep. (20 us would invent edges, 500 us would miss some.)

"Until it woke" allows for the time that waking takes, 2 ms unless the recording shows that this thread takes longer to
be woken by that one: in nine real traces a handed-over thread ran 15 to 500 us after the other's last activity (a cold
autograd thread about 200 us, a new one 1.2 and 2.3 ms), and what lay 17 ms and more apart was no hand-over.

Autograd says itself who wakes whom, whatever it takes: the main thread waits in backward() while the autograd thread
works. So a thread that goes on with backward work was woken by the thread of its forward work, or by another one that
does backward work, which may run on as it has only put a node into a queue; and the thread of the forward work is
released when that work is done.

A thread inside a row of a data loader is in the loader, whatever ran on others meanwhile: it is not asleep. One of
gloo's inside its row of a collective communicates there.

Where none of this tells who woke a thread, a tensor may: an execution trace names the op that made it. A thread that
goes on with an op that reads what another thread made meanwhile was handed it, so it slept at least until that was
made, however late it then went on. So was one of gloo's that goes on with a collective that an op of another thread
asked for. (On a machine that has fewer cores than threads that want to run, a thread that was
woken waits for one: tens of ms.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from graphlink.depend.modes import mode_of
from graphlink.depend.threads import ASLEEP_NS, Handed, Run
from graphlink.depend.timeline import Elements, EulerTour, behind_rows, in_loader
from graphlink.linking.provenance import is_op
from graphlink.model import I32, I64, NOWHERE, Bool, Linked
from graphlink.patterns import AUTOGRAD_ENGINE, fits
from graphlink.spans import NONE, Axis, Spans, joined
from graphlink.tables import distinct, take, tuples

WAKING_NS = 2_000_000
LATEST_NS = 10_000_000  # a mode beyond it is none of waking


@dataclass(frozen=True, slots=True)
class Sleeps:
    """One entry per sleep: thread ``tid`` slept over [from_ns, until_ns), released by what ran on ``by_tid`` until
    ``release_ns``.

    ``release_ns`` <= ``until_ns``; the time between them is awake. ``cut``: the other thread goes idle at
    ``release_ns``. ``first``: the thread's first row had not begun yet. ``handed``: only the tensor that it went on
    with, or the collective, tells who released it. ``shown``: autograd, or what was handed over, tells it; else only
    that the other was active until then.
    """

    tid: I64
    from_ns: I64
    until_ns: I64
    by_tid: I64
    release_ns: I64
    cut: I64  # 0 or 1
    first: I64  # 0 or 1
    handed: I64  # 0 or 1
    shown: I64  # 0 or 1


class _Thread(msgspec.Struct, frozen=True):
    """Ascending times as lists, since the search asks for single ones."""

    idle_from: list[int]
    idle_until: list[int]
    busy_from: list[int]  # maximal active intervals
    busy_until: list[int]
    begun: list[int]  # starts of elements
    last_ns: int  # end of the last element: what the thread does later is no node
    engine: list[int]  # starts of rows of autograd's engine and of backward rows
    backward: list[int]  # starts of backward rows, whose forward row is known,
    forward_tid: list[int]  # and the thread of that
    waits_from: list[int]  # rows of a data loader, and of gloo, in which it is not asleep
    waits_until: list[int]

    def waits_at(self, time_ns: int) -> bool:
        """Tell whether a data loader's row, or gloo's, has begun at a time and goes on."""
        at = bisect_right(self.waits_from, time_ns) - 1
        return at >= 0 and self.waits_until[at] > time_ns

    def forward_of(self, from_ns: int, until_ns: int) -> int | None:
        """Return the thread for which it does backward work in an interval: that of the first such row."""
        at = bisect_left(self.backward, from_ns)
        return self.forward_tid[at] if at < len(self.backward) and self.backward[at] < until_ns else None

    def in_engine(self, from_ns: int, until_ns: int) -> bool:
        """Tell whether backward work begins in an interval."""
        at = bisect_left(self.engine, from_ns)
        return at < len(self.engine) and self.engine[at] < until_ns


_Release = tuple[
    int, int, int, bool
]  # what may have ended a sleep: when, on which thread, ``cut``, whether autograd says so


def sleeps(
    linked: Linked,
    el: Elements,
    autograd: tuple[I32, I32],
    handed: Handed,
    run: Run,
    rank_start_ns: int,
    rank_end_ns: int,
) -> Sleeps:
    """Find sleeps of all threads; ``autograd``: (forward, backward) rows; ``handed``: see ``threads.handed_over``.

    Cost: O(n log n + idle intervals x threads x log n).
    """
    threads = _threads(linked, el, autograd, run, rank_start_ns, rank_end_ns)
    found: list[tuple[int, ...]] = []
    for tid, a in threads.items():
        for idle_from, idle_until, next_ns in zip(a.idle_from[:-1], a.idle_until[:-1], a.idle_from[1:], strict=True):
            if idle_from >= a.last_ns:
                break
            if a.waits_at(idle_from):
                continue
            made_ns, maker, asked = handed.get((tid, idle_until), (idle_from, tid, False))
            at_ns, by, cut, says = _woken_by(threads, tid, idle_from, idle_until, next_ns) or (idle_from, tid, 0, False)
            found.append(
                (
                    tid,
                    idle_from,
                    idle_until,
                    by,
                    at_ns,
                    cut,
                    int(idle_until == a.busy_from[0]),
                    0,
                    int(says),
                    maker,
                    made_ns,
                    int(asked),
                )
            )
    table = np.array(found, np.int64).reshape(-1, 12)
    every = Sleeps(*(table[:, k].copy() for k in range(9)))
    told, maker_tid, ready_ns = table[:, 8] == 1, table[:, 9], table[:, 10]
    known = (every.by_tid != every.tid) & (told | _soon(every))
    by_tensor = (ready_ns > every.from_ns) & (
        ~known | (every.release_ns < ready_ns) | (~told & (every.by_tid != maker_tid)) | (table[:, 11] == 1)
    )
    every = replace(
        every,
        by_tid=np.where(by_tensor, maker_tid, every.by_tid),
        release_ns=np.where(by_tensor, ready_ns, every.release_ns),
        cut=np.where(by_tensor, 1, every.cut),
        handed=by_tensor.astype(np.int64),
        shown=(told | (ready_ns > every.from_ns)).astype(np.int64),
    )
    return take(every, known | by_tensor)


def silences(linked: Linked, el: Elements, marks: EulerTour, slept: Sleeps) -> tuple[I64, Spans]:
    """Return (mark behind which it lies, positions) of what lies between ops for 100 us and longer, without calls, and
    after sleep that others ended. O(n log n)."""
    calls, owner, axis = linked.trace.calls, marks.owner[:-1], marks.axis
    from_ns, until_ns, thread = marks.at_ns[:-1], marks.at_ns[1:], axis.thread(marks.at_ns)
    between = (owner == NOWHERE) | el.whose_row(owner, linked.trace.host.annotation)
    known = axis.has(calls.tid)
    called = np.sort(axis.clipped(calls.tid[known], calls.start_ns[known]))
    asleep = joined(axis.of(slept.tid, slept.from_ns), axis.of(slept.tid, slept.until_ns))
    woken_ns = np.append(asleep.end_ns, 0)[np.searchsorted(asleep.start_ns, until_ns) - 1]
    from_ns = np.maximum(from_ns, np.minimum(woken_ns, until_ns))
    quiet = np.searchsorted(called, until_ns) <= np.searchsorted(called, from_ns, side="right")
    mark = np.flatnonzero((thread[1:] == thread[:-1]) & between & quiet & (until_ns - from_ns >= ASLEEP_NS))
    return mark, Spans(from_ns[mark], until_ns[mark])


def while_hidden_ran(linked: Linked, axis: Axis, silent: Spans) -> Spans:
    """Return the silences in which threads ran ops that the ET has, and of which Kineto recorded none: threads of
    Python, where it is not asked for all threads (PyTorch 2.13). The order of the ET says when. O(n log n)."""
    et, rows, node = linked.et, linked.trace.host, linked.match.et
    if et is None:
        return NONE
    matched = node != NOWHERE
    hidden = np.flatnonzero(is_op(et) & ~np.isin(et.tid, et.tid[node[matched]]))
    before = np.append(np.maximum.accumulate(node), NOWHERE)
    after = np.append(np.minimum.accumulate(np.where(matched, node, before.max())[::-1])[::-1], before.max())
    first = np.searchsorted(hidden, before[np.searchsorted(rows.start_ns, axis.time_ns(silent.start_ns), "right") - 1])
    last = np.searchsorted(hidden, after[np.searchsorted(rows.start_ns, axis.time_ns(silent.end_ns))])
    return take(silent, first < last)


def _soon(s: Sleeps) -> Bool:
    """Return which sleeps ended as soon after their release as waking takes, by the thread that woke and the one that
    woke it.
    """
    waking_ns = s.until_ns - s.release_ns
    out: Bool = waking_ns <= WAKING_NS
    possible = (waking_ns <= LATEST_NS) & (s.by_tid != s.tid)
    late = np.flatnonzero(~out & possible)
    for tid, by in set(tuples(s.tid[late], s.by_tid[late])):
        pair = np.flatnonzero((s.tid == tid) & (s.by_tid == by) & possible)
        mode = mode_of(waking_ns[pair], 1 / (s.until_ns[pair] - s.from_ns[pair]))
        if mode:
            out[pair[waking_ns[pair] <= mode.most_ns]] = True
    return out


def _woken_by(threads: dict[int, _Thread], tid: int, idle_from: int, idle_until: int, next_ns: int) -> _Release | None:
    """Find the thread that woke each idle one: of those that may have woken one that was idle over [idle_from,
    idle_until) the last active; idle again at ``next_ns``."""
    best: _Release | None = None
    engine, forward = threads[tid].in_engine(idle_until, idle_until + 1), threads[tid].forward_of(idle_until, next_ns)
    for other, b in threads.items():
        last = bisect_left(b.busy_from, idle_until) - 1
        if other == tid or last < 0:
            continue
        ended, cut = b.busy_until[last], 1
        if ended > idle_until:  # b runs on: what of it ended last before is the release
            at = bisect_right(b.begun, idle_until) - 1
            ended, cut = (b.begun[at], 0) if at >= 0 else (idle_from, 0)
        if ended <= idle_from or (best is not None and ended < best[0]):
            continue
        queued = engine and b.in_engine(idle_from, idle_until)
        if engine and not queued and forward not in (other, None):
            continue
        asleep = _sleeps_at(b, idle_until, falling=False)
        told = asleep and (engine or b.forward_of(idle_from, idle_until) == tid)
        if asleep or queued or _sleeps_at(b, idle_from, falling=True):
            best = (ended, other, cut, told)
    return best


def _sleeps_at(b: _Thread, time_ns: int, *, falling: bool) -> bool:
    """Tell whether b is idle at this time; ``falling``: or has just woken, when another falls asleep as it
    hands over.
    """
    at = bisect_right(b.idle_from, time_ns) - 1
    return at >= 0 and (b.idle_until[at] > time_ns or (falling and b.idle_until[at] == time_ns))


def _threads(
    linked: Linked, el: Elements, autograd: tuple[I32, I32], run: Run, rank_start_ns: int, rank_end_ns: int
) -> dict[int, _Thread]:
    """Return active and idle intervals of each thread that has elements.

    Active: cpu_ops, calls, and the moments when annotations begin or end, and rows of ``run`` begin. Calls may reach
    beyond the rank, which ends with its nodes.
    """
    calls, annotation = linked.trace.calls, linked.trace.host.annotation
    called = np.flatnonzero(np.isin(calls.tid, el.tid) & ~behind_rows(linked))
    other = np.append(annotation, False)[el.row]  # a call is no annotation
    is_op = ~other
    host, taken_up = linked.trace.host, linked.trace.host.start_ns[run.row]
    tid = np.concatenate([el.tid[is_op], calls.tid[called], el.tid[other], el.tid[other], host.tid[run.row]])
    start = np.concatenate([el.start_ns[is_op], calls.start_ns[called], el.start_ns[other], el.end_ns[other], taken_up])
    end = np.concatenate([el.end_ns[is_op], calls.end_ns[called], el.start_ns[other], el.end_ns[other], taken_up])
    start, end = np.clip(start, rank_start_ns, rank_end_ns), np.clip(end, rank_start_ns, rank_end_ns)
    order = np.lexsort((start, tid))
    tid, start, end = tid[order], start[order], end[order]
    tids, first = np.unique(tid, return_index=True)
    bounds = [*first.tolist(), len(tid)]
    begun = np.searchsorted(el.tid, tids, side="left").tolist(), np.searchsorted(el.tid, tids, side="right").tolist()
    named = fits(AUTOGRAD_ENGINE, linked.trace.strings)
    loading = in_loader(linked)
    waits = np.append(loading, run.row)
    waits_tid, waits_from, waits_until = (
        host.tid[waits],
        host.start_ns[waits],
        np.append(host.end_ns[loading], run.last_ns),
    )
    in_time = np.argsort(waits_from, kind="stable")
    forward, backward = autograd
    engine = distinct(np.concatenate([np.flatnonzero(named[host.name]), backward]))
    order = np.argsort(host.start_ns[backward], kind="stable")
    forward, backward = forward[order], backward[order]
    out: dict[int, _Thread] = {}
    for i, thread in enumerate(tids.tolist()):
        part = slice(bounds[i], bounds[i + 1])
        mine = slice(begun[0][i], begun[1][i])
        begins, last_ns = np.sort(el.start_ns[mine]).tolist(), int(el.end_ns[mine].max())
        own = np.flatnonzero(host.tid[backward] == thread)
        in_engine = np.sort(host.start_ns[engine[host.tid[engine] == thread]]).tolist()
        told = in_engine, host.start_ns[backward[own]].tolist(), host.tid[forward[own]].tolist()
        waits = in_time[waits_tid[in_time] == thread]
        waited = waits_from[waits].tolist(), waits_until[waits].tolist()
        out[thread] = _Thread(
            *_idle_and_busy(start[part], np.maximum.accumulate(end[part]), rank_start_ns),
            begins,
            last_ns,
            *told,
            *waited,
        )
    return out


def _idle_and_busy(start: I64, end: I64, rank_start_ns: int) -> tuple[list[int], list[int], list[int], list[int]]:
    breaks = np.flatnonzero(start[1:] > end[:-1])
    busy_from, busy_until = start[np.append(0, breaks + 1)], end[np.append(breaks, len(end) - 1)]
    idle_from = np.concatenate([[rank_start_ns], busy_until])
    idle_until = np.concatenate([busy_from, [np.iinfo(np.int64).max]])
    long = idle_until - idle_from >= ASLEEP_NS
    long[-1] = True  # after its last row a thread sleeps for good
    if busy_from[0] > rank_start_ns:
        long[0] = True
    return idle_from[long].tolist(), idle_until[long].tolist(), busy_from.tolist(), busy_until.tolist()
