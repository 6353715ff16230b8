"""Which idle threads were asleep, and what on another thread woke them (CONTRACT, "Host time").

A thread that is idle for 100 us or more outside any cpu_op and call was asleep if another thread was active until it woke, and that
one then sleeps, or slept when this one fell asleep. Autograd hands over like this: the main thread waits in backward() while the
autograd thread works, and the other way round. (20 us would invent edges, 500 us would miss some.)

"Until it woke" allows for the time that waking takes: in nine real traces a handed-over thread ran 15 to 500 us after the other's last
activity (a cold autograd thread about 200 us, a new one 1.2 ms), and what lay 17 ms and more apart was no hand-over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from graphlink.depend.timeline import Elements, behind_rows
from graphlink.model import I64, Linked

ASLEEP_NS = 100_000
WAKING_NS = 2_000_000


@dataclass(frozen=True, slots=True)
class Sleeps:
    """One entry a sleep: thread ``tid`` slept over [from_ns, until_ns), released by what ran on ``by_tid`` until ``release_ns``.

    ``release_ns`` <= ``until_ns``; the time between them is awake. ``cut``: the other thread goes idle at ``release_ns``.
    ``first``: the thread's first row had not begun yet.
    """

    tid: I64
    from_ns: I64
    until_ns: I64
    by_tid: I64
    release_ns: I64
    cut: I64  # 0 or 1
    first: I64  # 0 or 1


@dataclass(frozen=True, slots=True)
class _Thread:
    """Ascending times as lists, since the search asks for single ones."""

    idle_from: list[int]
    idle_until: list[int]
    busy_from: list[int]  # maximal active intervals
    busy_until: list[int]
    begun: list[int]  # starts of elements
    last_ns: int  # end of the last element: what the thread does later is no node


def sleeps(linked: Linked, el: Elements, rank_start_ns: int, rank_end_ns: int) -> Sleeps:
    """Cost: O(n log n + idle intervals x threads x log n)."""
    threads = _threads(linked, el, rank_start_ns, rank_end_ns)
    found: list[tuple[int, ...]] = []
    for tid, a in threads.items():
        for idle_from, idle_until in zip(a.idle_from[:-1], a.idle_until[:-1], strict=True):
            if idle_from >= a.last_ns:
                break
            best = (idle_from, 0, 0)  # (release, by, cut)
            for other, b in threads.items():
                if other != tid:
                    best = max(best, _release(b, other, idle_from, idle_until, best))
            if best[0] > idle_from:
                found.append((tid, idle_from, idle_until, best[1], best[0], best[2], int(idle_until == a.busy_from[0])))
    table = np.array(found, np.int64).reshape(-1, 7)
    return Sleeps(*(table[:, i].copy() for i in range(7)))


def _release(b: _Thread, by: int, idle_from: int, idle_until: int, none: tuple[int, int, int]) -> tuple[int, int, int]:
    """(release, thread, cut) if thread b woke one that was idle over [idle_from, idle_until), else ``none``.

    A release no later than ``idle_from`` is none.
    """
    last = bisect_left(b.busy_from, idle_until) - 1
    if last < 0:
        return none
    ended, cut = b.busy_until[last], 1
    if ended > idle_until:  # b runs on: what of it ended last before is the release
        at = bisect_right(b.begun, idle_until) - 1
        ended, cut = (b.begun[at], 0) if at >= 0 else (idle_from, 0)
    if idle_until - ended > WAKING_NS:
        return none
    if not (_sleeps_at(b, idle_until, falling=False) or _sleeps_at(b, idle_from, falling=True)):
        return none
    return (ended, by, cut)


def _sleeps_at(b: _Thread, time_ns: int, *, falling: bool) -> bool:
    """Is b idle at this time; ``falling``: or has just woken, when another falls asleep as it hands over."""
    at = bisect_right(b.idle_from, time_ns) - 1
    return at >= 0 and (b.idle_until[at] > time_ns or (falling and b.idle_until[at] == time_ns))


def _threads(linked: Linked, el: Elements, rank_start_ns: int, rank_end_ns: int) -> dict[int, _Thread]:
    """Active and idle intervals of each thread that has elements.

    Active: cpu_ops, calls, and the moments when annotations begin or end. Calls may reach beyond the rank, which ends with its nodes.
    """
    calls, annotation = linked.trace.calls, linked.trace.host.annotation
    called = np.flatnonzero(np.isin(calls.tid, el.tid) & ~behind_rows(linked))
    is_op = np.ones(len(el.tid), np.bool_)
    rows = el.row >= 0
    is_op[rows] = ~annotation[el.row[rows]]
    other = ~is_op
    tid = np.concatenate([el.tid[is_op], calls.tid[called], el.tid[other], el.tid[other]])
    start = np.concatenate([el.start_ns[is_op], calls.start_ns[called], el.start_ns[other], el.end_ns[other]])
    end = np.concatenate([el.end_ns[is_op], calls.end_ns[called], el.start_ns[other], el.end_ns[other]])
    start, end = np.clip(start, rank_start_ns, rank_end_ns), np.clip(end, rank_start_ns, rank_end_ns)
    order = np.lexsort((start, tid))
    tid, start, end = tid[order], start[order], end[order]
    tids, first = np.unique(tid, return_index=True)
    bounds = [*first.tolist(), len(tid)]
    begun = np.searchsorted(el.tid, tids, side="left").tolist(), np.searchsorted(el.tid, tids, side="right").tolist()
    out: dict[int, _Thread] = {}
    for i, thread in enumerate(tids.tolist()):
        part = slice(bounds[i], bounds[i + 1])
        mine = slice(begun[0][i], begun[1][i])
        begins, last_ns = np.sort(el.start_ns[mine]).tolist(), int(el.end_ns[mine].max())
        out[thread] = _thread(start[part], np.maximum.accumulate(end[part]), rank_start_ns, begins, last_ns)
    return out


def _thread(start: I64, end: I64, rank_start_ns: int, begun: list[int], last_ns: int) -> _Thread:
    breaks = np.flatnonzero(start[1:] > end[:-1])
    busy_from, busy_until = start[np.append(0, breaks + 1)], end[np.append(breaks, len(end) - 1)]
    idle_from = np.concatenate([[rank_start_ns], busy_until])
    idle_until = np.concatenate([busy_from, [np.iinfo(np.int64).max]])
    long = idle_until - idle_from >= ASLEEP_NS
    long[-1] = True  # after its last row a thread sleeps for good
    if busy_from[0] > rank_start_ns:
        long[0] = True
    return _Thread(idle_from[long].tolist(), idle_until[long].tolist(), busy_from.tolist(), busy_until.tolist(), begun, last_ns)
