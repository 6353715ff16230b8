"""The times at which the device of a rank worked inside its pipeline ranges, and the ranges as their work spans them.

Work is the union of compute kernels and copies of F, B, I and W ranges. Communication kernels are none: a waiting one
is idle time. In a run without device ops work is the time of the ranges on their thread less its waits.

A device op belongs to a range by its launch call, never by when it ran. A call belongs to the innermost range of its
own thread around it. A call of another thread inside a backward range belongs to that: the main thread sits in
``backward()`` while autograd's threads launch. Of a forward range other threads are no part (data loaders copy there).
"""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink import spans
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool, Communication, Linked
from graphlink.pipeline.named_ranges import Entries, enclosing
from graphlink.pipeline.records import Pass, Ranges
from graphlink.spans import KeyedSpans, Spans
from graphlink.tables import (
    MOST,
    how_many,
    in_order,
    largest,
    least,
    marked,
    nowhere,
    numbered_rows,
    numbered_values,
    spread,
    sums,
    values_at,
)


class Worked(msgspec.Struct, frozen=True):
    """The work of a rank. ``work``: as in ``StageRun``. ``threads``: those of its ranges and launches, ids, ascending.

    ``of_device``: the range of each device row, ``NOWHERE`` for those of no range, or of one that had no work. ``op``:
    device rows at work, by start. Both are empty in a run without device ops. ``left_out``: device ops and ranges that
    count for nothing, by reason.
    """

    ranges: Ranges
    work: KeyedSpans
    optimizer: Spans
    of_device: I32
    op: I64
    threads: I64
    left_out: dict[str, int]


def device_work(linked: Linked, comm: Communication, entries: Entries) -> Worked:
    """Find the work of a run with device ops. A range none of whose work was recorded has no span and is left out. O(n
    log n).
    """
    device = linked.trace.device
    entry_of, left_out = _entry_of_device(linked, entries)
    passes = _passes(entries)
    entry_of = values_at(passes, entry_of).astype(np.int32)
    mine = entry_of != NOWHERE
    compute = mine.copy()
    compute[comm.device_row] = False
    op = np.flatnonzero(compute)
    entry, op_start_ns, op_end_ns = entry_of[op], device.start_ns[op], device.end_ns[op]
    count = len(entries.phase)
    ops = np.bincount(entry, minlength=count)
    start, end = least(count, entry, op_start_ns), largest(count, entry, op_end_ns, -MOST)
    united = spans.union_by(entry.astype(np.int64), op_start_ns, op_end_ns)
    busy = sums(count, united.key, united.end_ns - united.start_ns)
    kept = np.flatnonzero(ops)
    order = in_order(kept, entries.step, start)
    of_entry = spread(count, order, np.arange(len(order), dtype=np.int32))
    stepping = entries.phase[entry] == Pass.OPT
    working = op[~stepping]
    if without := len(np.unique(passes)) - len(kept):
        left_out["ranges without device work"] = without
    return Worked(
        _ranges(entries, order, start, end, busy, ops),
        spans.union_by(entries.step[entry[~stepping]], op_start_ns[~stepping], op_end_ns[~stepping]),
        spans.union(op_start_ns[stepping], op_end_ns[stepping]),
        np.where(mine, of_entry[entry_of], NOWHERE).astype(np.int32),
        working[np.lexsort((op_end_ns[~stepping], op_start_ns[~stepping]))],
        np.unique(np.append(entries.tid, linked.trace.calls.tid[linked.device_call[mine]])),
        left_out,
    )


def _passes(entries: Entries) -> I64:
    """Return the entry that stands for the pass of each: where several have one number by order they are its parts."""
    _, code = numbered_rows(entries.step, entries.phase.astype(np.int64), entries.chunk, entries.microbatch)
    first = np.unique(code, return_index=True)[1]
    return np.where(entries.inferred, first[code], np.arange(len(code)))


def host_work(entries: Entries, waits: Spans) -> Worked:
    """Find the work of a run without device ops; ``waits`` are those of the ranges' threads."""
    start, end, none = entries.start_ns, entries.end_ns, EMPTY
    busy = end - start - spans.overlap_ns(waits, start, end)
    stepping = entries.phase == Pass.OPT
    phases = np.flatnonzero(~stepping)

    def free(which: Bool) -> Spans:
        pieces = spans.cut(spans.union(start[which], end[which]), waits.start_ns, waits.end_ns)
        left = pieces.by == NOWHERE
        return Spans(pieces.start_ns[left], pieces.end_ns[left])

    pieces = spans.cut(free(~stepping), start[phases], end[phases])  # ranges of a thread only touch or nest
    return Worked(
        _ranges(entries, np.lexsort((start, entries.step)), start, end, busy, np.zeros(len(busy), np.int64)),
        spans.union_by(entries.step[phases[pieces.by]], pieces.start_ns, pieces.end_ns),
        free(stepping),
        none.astype(np.int32),
        none,
        np.unique(entries.tid),
        {},
    )


def _ranges(entries: Entries, order: I64, start_ns: I64, end_ns: I64, busy_ns: I64, ops: I64) -> Ranges:
    rule = entries.rule + len(entries.rules) * entries.inferred
    return Ranges(
        phase=entries.phase[order],
        step=entries.step[order],
        stage=entries.stage[order],
        chunk=entries.chunk[order],
        microbatch=entries.microbatch[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        busy_ns=busy_ns[order],
        device_ops=ops[order],
        rule=rule[order].astype(np.int32),
        rules=(*entries.rules, *(f"inferred:order {rule}" for rule in entries.rules)),
    )


def _entry_of_device(linked: Linked, entries: Entries) -> tuple[I32, dict[str, int]]:
    """Return the entry of each device row, ``NOWHERE`` for those of no range, and how many these are by reason. O(n log
    n).
    """
    calls = linked.trace.calls
    launched = linked.device_call != NOWHERE
    call, which = numbered_values(linked.device_call[launched])
    of_call, ambiguous = _entry_of_call(entries, calls.tid[call], calls.start_ns[call])
    out = spread(len(linked.device_call), launched, of_call[which])
    unsure = how_many(ambiguous[which])
    reasons = {
        "device ops launched outside any range": how_many(out[launched] == NOWHERE) - unsure,
        "device ops launched by a thread inside ranges of several others": unsure,
        "device ops without a launch call": how_many(~launched),
    }
    return out, {reason: n for reason, n in reasons.items() if n}


def _entry_of_call(entries: Entries, tid: I64, at_ns: I64) -> tuple[I32, Bool]:
    """Return the entry of each call, and whether ranges of several other threads claim it."""
    out = enclosing(entries, tid, at_ns)
    left = np.flatnonzero(out == NOWHERE)
    found, hits = nowhere(len(left), np.int32), np.zeros(len(left), np.int64)
    for owner in np.unique(entries.tid).tolist():
        at = enclosing(entries, np.full(len(left), owner), at_ns[left])
        at = np.where((at == NOWHERE) | (tid[left] == owner), NOWHERE, entries.other_threads[np.maximum(at, 0)])
        back = (at != NOWHERE) & np.isin(entries.phase[np.maximum(at, 0)], (Pass.B, Pass.I, Pass.W))
        hits += back
        found[back] = at[back]
    out[left] = np.where(hits == 1, found, NOWHERE)
    return out, marked(len(out), left[hits > 1])
