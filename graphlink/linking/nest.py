"""Nesting of host rows: one sweep per thread, look-ups of the innermost row around a point in time, and what that
shows: the op that asked for a row of another thread, the Python frames around a moment.

Rows of a thread nest, as calls do. Rounding of integer-us recordings lets a child end up to 1 us after its parent
(floor of start plus floor of duration loses less than 2 us). What overhangs by more is no child: an asynchronous range,
which starts on the thread and ends when somebody waits for it (gloo's are of this kind), or broken data. Such a row is
*crossing* and stands outside the nesting.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from itertools import accumulate
from typing import Final

import numpy as np

from graphlink.linking.commtypes import collective_type, kind_of
from graphlink.model import I32, I64, NOWHERE, Bool, HostRows, Linked
from graphlink.patterns import fits
from graphlink.spans import Neighbours
from graphlink.tables import MOST, in_order, last_before, marked, nowhere, numbered_rows, spread, tuples, values_at

ASKING = re.compile("c10d::.*", re.DOTALL)
_SIZE: Final = re.compile("[0-9]")
_FRAMES: Final = 8  # of a stack
_INNER: Final = re.compile(r"(.*/)?torch/.*|<.*|nn\.Module: .*")  # frames of PyTorch, and of what is built in


def nest(rows: HostRows, outside: Bool, slack_ns: int) -> tuple[I32, Bool]:
    """Find (parent, crossing) of each host row in linear time: the enclosing row of its thread, NOWHERE for outermost
    and crossing rows.

    ``outside`` marks rows that are known to be asynchronous. Rows must be sorted by start, longest first, then
    ``order``, so rows with equal times nest in that order. An overhang of at most ``slack_ns`` over any row around is
    rounding. Where a row crosses an enclosing one, the annotation of the two is the crossing one, else the row that
    starts later; children of a crossing row go to the row around it.
    """
    count = len(rows.start_ns)
    by_tid = np.argsort(rows.tid, kind="stable")
    start, end, tid = rows.start_ns[by_tid].tolist(), rows.end_ns[by_tid].tolist(), rows.tid[by_tid].tolist()
    annotation, skip = rows.annotation[by_tid].tolist(), outside[by_tid].tolist()
    parent, crossing = [NOWHERE] * count, [False] * count
    # A stack a thread: rows that are open, with the latest end that fits into all rows around; ``op_fits`` that of the
    # open cpu_ops.
    stack: list[int] = []
    fits: list[int] = []
    op_fits: list[int] = []
    thread = None
    for i in range(count):
        if tid[i] != thread:
            thread = tid[i]
            stack, fits, op_fits = [], [], []
        begins, ends = start[i], end[i]
        while stack and fits[-1] <= begins:
            if not annotation[stack.pop()]:
                op_fits.pop()
            fits.pop()
        if skip[i]:
            crossing[i] = True
            continue
        around = fits if annotation[i] else op_fits
        if around and ends > around[-1] + slack_ns:
            crossing[i] = True
            continue
        if (
            stack and ends > fits[-1] + slack_ns
        ):  # only annotations are left that this op crosses, some maybe below ops that overhang them
            for k in stack:
                crossing[k] = annotation[k] and ends > end[k] + slack_ns
            stack = [k for k in stack if not crossing[k]]
            fits = list(accumulate((end[k] for k in stack), min))
        if stack:
            parent[i] = stack[-1]
        stack.append(i)
        fits.append(min(ends, fits[-1]) if fits else ends)
        if not annotation[i]:
            op_fits.append(min(ends, op_fits[-1]) if op_fits else ends)
    _adopt(parent, crossing)
    outer = np.array(parent, np.int64)
    inside = np.flatnonzero(outer != NOWHERE)
    parents = spread(count, by_tid[inside], by_tid[outer[inside]].astype(np.int32))
    return parents, marked(count, by_tid[np.array(crossing, np.bool_)])


def _adopt(parent: list[int], crossing: list[bool]) -> None:
    """Adopt children: those of crossing rows go to the row around those. A parent comes before its children, so one
    pass is enough.
    """
    for i, p in enumerate(parent):
        if p != NOWHERE and crossing[p]:
            parent[i] = parent[p]
    for i, crosses in enumerate(crossing):
        if crosses:
            parent[i] = NOWHERE


def without_outlasting(rows: HostRows, crossing: Bool, outside: Bool, others_ns: int) -> tuple[HostRows, I64]:
    """Return (rows, those that cannot have lasted): one that ends after all else, by longer than all since it began,
    though what it began in had ended, ends where the next of its thread begins. ``others_ns``: when calls and device
    ops had ended. O(n log n).
    """
    start_ns, end_ns = rows.start_ns, rows.end_ns
    ended = np.flatnonzero(crossing & rows.annotation & ~outside)
    around = last_before((rows.tid[ended],), start_ns[ended], (rows.tid,), start_ns)
    around_ns = np.append(end_ns[ended], -MOST)[around]
    doubtful = ~outside & (crossing | ((around_ns > start_ns) & (around_ns < end_ns)))
    rest_ns = int(max(end_ns[~doubtful].max(initial=others_ns), start_ns.max(initial=others_ns)))
    late = np.flatnonzero(doubtful & (end_ns - rest_ns > rest_ns - start_ns))
    after = last_before((rows.tid,), -start_ns, (rows.tid[late],), -start_ns[late])
    new_ns = np.minimum(np.append(start_ns, MOST)[after], np.maximum(rest_ns, start_ns[late]))
    return replace(rows, end_ns=end_ns - spread(len(end_ns), late, end_ns[late] - new_ns, 0)), late


def with_late_ends(rows: HostRows, parent: I32, crossing: Bool) -> tuple[HostRows, int]:
    """Return (rows, number of such ops): of ``crossing`` ops that end a little after the op they began in, that one
    and those around it end as they do, or as the next row of the thread begins. O(n log n).

    What reaches past two rows behind that op is asynchronous, and stays outside.
    """
    late = np.flatnonzero(crossing & ~rows.annotation)
    outer = enclosing(rows, parent, ~crossing, ~rows.annotation, rows.tid[late], rows.start_ns[late])
    late, outer = late[outer != NOWHERE], outer[outer != NOWHERE]
    nested, end_ns = np.flatnonzero(~crossing), rows.end_ns.copy()

    def behind(at_ns: I64) -> I64:
        """Return the row that begins next, one more than there are without any."""
        found = last_before((rows.tid[nested],), -rows.start_ns[nested], (rows.tid[late],), 1 - at_ns)
        return np.append(nested, len(end_ns))[found]

    starts, ends = np.append(rows.start_ns, MOST), np.append(rows.end_ns, MOST)
    after = behind(rows.end_ns[outer])
    little = ends[behind(ends[after])] > rows.end_ns[late]
    late, outer, after = late[little], outer[little], after[little]
    end_ns[late] = np.minimum(end_ns[late], starts[after])
    of_thread = in_order(late, rows.tid)
    for inner, before in tuples(of_thread[:0:-1], of_thread[-2::-1]):  # some in each other
        if rows.tid[inner] == rows.tid[before] and rows.start_ns[inner] < end_ns[before]:
            end_ns[before] = max(end_ns[before], end_ns[inner])
    until_ns = end_ns[late]
    while len(outer):
        np.maximum.at(end_ns, outer, until_ns)
        outer = parent[outer]
        inside = (outer != NOWHERE) & ~np.append(rows.annotation, True)[outer]
        outer, until_ns = outer[inside], until_ns[inside]
    return replace(rows, end_ns=end_ns), len(late)


def last_started(rows: HostRows, usable: Bool, tid: I64, at_ns: I64) -> I32:
    """Return for each (``tid``, ``at_ns``) the ``usable`` row of that thread that started last, no later than then.

    Of equal starts it is the last in the table, which is the innermost; NOWHERE where none had started.
    """
    row = np.flatnonzero(usable)
    started = Neighbours.of(rows.tid[row], rows.start_ns[row]).before(tid, at_ns + 1)
    return values_at(row, started).astype(np.int32)


def innermost(rows: HostRows, parent: I32, start_from: I32, wanted: Bool, until_ns: I64) -> I32:
    """Climb from row ``start_from[k]`` through its parents to the first ``wanted`` row that ends after ``until_ns[k]``.

    Each round moves all that have not arrived one level up: the work is the number of levels climbed, summed.
    """
    at = start_from.copy()
    moving = np.flatnonzero(at != NOWHERE)
    while len(moving):
        here = at[moving]
        moving = moving[~(wanted[here] & (rows.end_ns[here] > until_ns[moving]))]
        at[moving] = parent[at[moving]]
        moving = moving[at[moving] != NOWHERE]
    return at


def enclosing(
    rows: HostRows, parent: I32, usable: Bool, wanted: Bool, tid: I64, at_ns: I64, until_ns: I64 | None = None
) -> I32:
    """Return for each (``tid``, ``at_ns``) the innermost ``wanted`` row around it that ends after ``until_ns``, by
    default after that moment; ``usable`` rows nest as ``parent`` says.
    """
    started = last_started(rows, usable, tid, at_ns)
    return innermost(rows, parent, started, wanted, at_ns if until_ns is None else until_ns)


def asking(linked: Linked, row: I32) -> I32:
    """Return the op of its own thread that asked for each host row ``row``: the innermost of c10d around its begin."""
    rows = linked.trace.host
    ops = fits(ASKING, linked.trace.strings)[rows.name] & ~rows.annotation
    return enclosing(rows, linked.parent, ~linked.crossing, ops, rows.tid[row], rows.start_ns[row])


def askers(linked: Linked) -> I32:
    """Find the op that asked for each host row that another thread ran; NOWHERE of rows that nest, that began on the
    asking thread, or that no op fits. O(n log n).

    Gloo begins the range of a collective on one of its own threads, when that thread takes the work up: later than it
    was asked for, and with several of them in another order than asked. The op that asked shows by PyTorch's record
    function ids: the range gets its id where the work is made, inside the ``c10d`` op, so the op is the last one with a
    lesser id. (A send or receive begins on the thread that asks.) Without ids the ranges of one kind and inputs come in
    the order in which they were asked for.
    """
    rows = linked.trace.host
    asking = np.flatnonzero(fits(ASKING, linked.trace.strings)[rows.name] & ~rows.annotation)
    run = np.flatnonzero(linked.crossing & ~np.isin(rows.tid, rows.tid[asking]))
    if not len(asking) or (rows.rf_id == rows.rf_id[0]).all():  # one id for all is none
        return _in_turn(linked, run, asking)
    asking = in_order(asking, rows.rf_id)
    at = np.searchsorted(rows.rf_id[asking], rows.rf_id[run]) - 1
    op = asking[np.maximum(at, 0)]
    known = (at >= 0) & (rows.start_ns[op] <= rows.start_ns[run])
    return spread(len(rows.tid), run[known], op[known].astype(np.int32))


def _in_turn(linked: Linked, run: I64, asking: I64) -> I32:
    """Give each of the rows ``run`` the next op of its kind whose inputs hold its own, if that had begun. Where
    no op has sizes (older PyTorch does not record those of lists of tensors), the kind tells alone.
    """
    rows, strings = linked.trace.host, linked.trace.strings
    out = nowhere(len(rows.tid), np.int32)
    sized = any(map(_SIZE.search, {strings[shapes] for shapes in rows.input_shapes[asking].tolist()}))
    asked, form_of_op = numbered_rows(rows.name[asking], rows.input_shapes[asking] * sized)
    wanted, form_of_row = numbered_rows(rows.name[run], rows.input_shapes[run] * sized)
    kinds = {name: (kind_of(strings[name]), collective_type(strings[name])) for name, _ in (*asked, *wanted)}
    for form, (name, shapes) in enumerate(wanted.tolist()):
        fit = [kinds[op] == kinds[name] and strings[shapes] in strings[inputs] for op, inputs in asked.tolist()]
        ops, turn = asking[np.array(fit, np.bool_)[form_of_op]], run[form_of_row == form]
        number = np.arange(len(turn))
        begun = np.searchsorted(rows.start_ns[ops], rows.start_ns[turn], side="right")
        taken = np.minimum(np.minimum.accumulate(begun - number), 1) + number
        known = taken > np.append(0, taken[:-1])
        out[turn[known]] = ops[taken[known] - 1]
    return out


def stacks_at(linked: Linked, tid: I64, at_ns: I64) -> list[list[str]]:
    """Return the innermost Python frames outside of PyTorch on a thread at a moment, of each pair, the innermost last;
    [] without any.

    Threads of autograd have no stack. O(n log n) in frames and pairs.
    """
    out = [deque[str](maxlen=_FRAMES) for _ in range(len(tid))]
    frames, strings = linked.trace.frames, linked.trace.strings
    if frames is None or not out:
        return [[] for _ in out]
    order = np.lexsort((at_ns, tid))
    tid, at_ns = tid[order], at_ns[order]
    theirs = np.array([_INNER.fullmatch(text) is None for text in strings], np.bool_)[frames.name]
    for thread in np.unique(tid).tolist():
        asked = np.flatnonzero(tid == thread)
        mine = np.flatnonzero(theirs & (frames.tid == thread))
        low, high = (np.searchsorted(at_ns[asked], times[mine]) for times in (frames.start_ns, frames.end_ns))
        around = np.flatnonzero(low < high)
        around = around[np.lexsort((-frames.end_ns[mine[around]], frames.start_ns[mine[around]]))]
        for frame, begin, end in tuples(frames.name[mine[around]], low[around], high[around]):
            for k in order[asked[begin:end]].tolist():
                out[k].append(strings[frame])
    return [[*stack] for stack in out]
