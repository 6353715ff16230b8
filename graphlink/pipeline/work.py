"""When the device of a rank worked inside its pipeline ranges, and the ranges as their work spans them.

Work is the union of compute kernels and copies of F, B, I and W ranges. Communication kernels are none: a waiting one is idle time.
In a run without device ops work is the time of the ranges on their thread less its waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool, Communication, Linked
from graphlink.pipeline import spans
from graphlink.pipeline.attribute import Attributed
from graphlink.pipeline.entries import Entries
from graphlink.pipeline.records import Phase, Ranges, Spans, StepSpans


@dataclass(frozen=True, slots=True)
class Worked:
    """``entry`` is the entry that each range was; ``of_entry`` the range of each entry, ``NOWHERE`` where it had no work.

    ``op``: device rows at work, by start; empty in a run without device ops.
    """

    ranges: Ranges
    work: Spans
    by_step: StepSpans
    optimizer: Spans
    entry: I64
    of_entry: I32
    op: I64
    left_out: dict[str, int]


def device_work(linked: Linked, comm: Communication, entries: Entries, attributed: Attributed) -> Worked:
    """Of a run with device ops. A range none of whose work was recorded has no span and is left out, counted. O(n log n)."""
    device = linked.trace.device
    mine = attributed.entry != NOWHERE
    compute = mine.copy()
    compute[comm.device_row] = False
    op = np.flatnonzero(compute)
    entry = attributed.entry[op]
    count = len(entries.phase)
    ops = np.bincount(entry, minlength=count)
    start = np.full(count, np.iinfo(np.int64).max)
    end = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start, entry, device.start_ns[op])
    np.maximum.at(end, entry, device.end_ns[op])
    has = ops > 0
    ranges, order = _ranges(
        entries, has, np.where(has, start, 0), np.where(has, end, 0), _busy(entry, device.start_ns[op], device.end_ns[op], count), ops
    )
    working = op[entries.phase[entry] != Phase.OPT]
    working = working[np.lexsort((device.end_ns[working], device.start_ns[working]))]
    empty = int(np.count_nonzero(~has))
    stepping = op[entries.phase[entry] == Phase.OPT]
    return Worked(
        ranges,
        spans.union(device.start_ns[working], device.end_ns[working]),
        StepSpans(*spans.union_by(entries.step[attributed.entry[working]], device.start_ns[working], device.end_ns[working])),
        spans.union(device.start_ns[stepping], device.end_ns[stepping]),
        order,
        _inverse(order, count),
        working,
        {"ranges without device work": empty} if empty else {},
    )


def host_work(entries: Entries, waits: Spans) -> Worked:
    """Of a run without device ops: ``waits`` are those of the ranges' thread."""
    busy = entries.end_ns - entries.start_ns - spans.overlap_ns(waits, entries.start_ns, entries.end_ns)
    ranges, order = _ranges(entries, np.ones(len(busy), np.bool_), entries.start_ns, entries.end_ns, busy, np.zeros(len(busy), np.int64))
    stepping = entries.phase == Phase.OPT

    def free(which: Bool) -> Spans:
        pieces = spans.cut(spans.union(entries.start_ns[which], entries.end_ns[which]), waits.start_ns, waits.end_ns)
        left = pieces.by == NOWHERE
        return Spans(pieces.start_ns[left], pieces.end_ns[left])

    work = free(~stepping)
    phases = np.flatnonzero(~stepping)
    pieces = spans.cut(work, entries.start_ns[phases], entries.end_ns[phases])  # ranges of a thread only touch or nest
    by_step = spans.union_by(entries.step[phases[pieces.by]], pieces.start_ns, pieces.end_ns)
    return Worked(ranges, work, StepSpans(*by_step), free(stepping), order, _inverse(order, len(busy)), np.zeros(0, np.int64), {})


def _busy(entry: I32, start_ns: I64, end_ns: I64, count: int) -> I64:
    """The length of the union of each entry's intervals."""
    united = spans.union_by(entry.astype(np.int64), start_ns, end_ns)
    out = np.zeros(count, np.int64)
    np.add.at(out, united.key, united.end_ns - united.start_ns)
    return out


def _ranges(entries: Entries, has: Bool, start_ns: I64, end_ns: I64, busy_ns: I64, ops: I64) -> tuple[Ranges, I64]:
    kept = np.flatnonzero(has)
    order = kept[np.lexsort((start_ns[kept], entries.step[kept]))]
    names = tuple(f"inferred:order {r}" for r in entries.rules)
    rules = (*entries.rules, *names)
    rule = entries.rule + len(entries.rules) * entries.inferred
    ranges = Ranges(
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
        rules=rules,
    )
    return ranges, order


def _inverse(order: I64, count: int) -> I32:
    out = np.full(count, NOWHERE, np.int32)
    out[order] = np.arange(len(order))
    return out
