"""What ``pipeline.svg`` shows, apart from how: rows of boxes and of idle intervals, one panel a step.

A panel can as well come from a schedule that was only computed (``computed``), which makes the picture of theory above measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, U8, Bool
from graphlink.pipeline.records import Cause, Idle, Ranges, Step

MOST_STEPS: Final = 3
_NAMED_STAGES: Final = 4  # of a rank with several, in the label of its row


@dataclass(frozen=True, slots=True)
class Boxes:
    """Phases on rows; ``row`` is a position in ``Panel.labels``, ``rule`` one in ``rules``. ``NOWHERE``: unknown."""

    row: I64
    phase: U8
    stage: I64
    chunk: I64
    microbatch: I64
    start_ns: I64
    end_ns: I64
    rule: I32
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle intervals on rows; ``evidence`` is a position in ``texts``."""

    row: I64
    start_ns: I64
    end_ns: I64
    cause: U8
    evidence: I32
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One step. ``start_ns`` is its 0 on the axis; ``makespan_ns`` from there to the end of its last F, B, I or W."""

    caption: str
    labels: tuple[str, ...]
    start_ns: int
    makespan_ns: int
    boxes: Boxes
    gaps: Gaps


def recorded(ranks: Sequence[int], ranges: Sequence[Ranges], idle: Idle, steps: Sequence[Step]) -> list[Panel]:
    """A panel a step; of more than ``MOST_STEPS`` the shortest, the median and the longest one. ``ranks`` and ``ranges`` are parallel."""
    labels = tuple(row_label(rank, r.stage) for rank, r in zip(ranks, ranges, strict=True))
    boxes, box_step = _boxes(ranges)
    row_of = {rank: row for row, rank in enumerate(ranks)}
    rows = np.array([row_of[rank] for rank in idle.rank.tolist()], np.int64)
    out = []
    for step, what in _chosen(steps):
        mine, free = box_step == step.number, idle.step == step.number
        gaps = Gaps(rows[free], idle.start_ns[free], idle.end_ns[free], idle.cause[free], idle.evidence[free], idle.texts)
        out.append(Panel(what, labels, step.start_ns, step.end_ns - step.start_ns, _picked(boxes, mine), gaps))
    return out


def computed(caption: str, labels: tuple[str, ...], boxes: Boxes) -> Panel:
    """A step that was never recorded; what a row waits between its boxes is the schedule's own dependency."""
    start, end = (int(boxes.start_ns.min()), int(boxes.end_ns.max())) if len(boxes.row) else (0, 0)
    rows = np.arange(len(labels))
    row = np.concatenate([rows, boxes.row, rows])  # every row begins and ends with a box of no length
    starts = np.concatenate([np.full(len(labels), start), boxes.start_ns, np.full(len(labels), end)])
    ends = np.concatenate([np.full(len(labels), start), boxes.end_ns, np.full(len(labels), end)])
    kind = np.repeat([0, 1, 2], [len(labels), len(boxes.row), len(labels)])
    order = np.lexsort((kind, starts, row))
    row, starts, ends, kind = row[order], starts[order], ends[order], kind[order]
    shift = row * (end - start)  # the rows one behind the other, so that one sweep knows the last end of each
    until = np.maximum.accumulate(ends + shift) - shift
    free = np.flatnonzero((row[1:] == row[:-1]) & (starts[1:] > until[:-1]))
    cause = np.full(len(free), Cause.DEPENDENCY_STALL, np.uint8)
    cause[kind[free + 1] == 2] = Cause.COOLDOWN
    cause[kind[free] == 0] = Cause.WARMUP
    gaps = Gaps(row[free], until[free], starts[free + 1], cause, np.zeros(len(free), np.int32), ("",))
    return Panel(caption, labels, start, end - start, boxes, gaps)


def row_label(rank: int, stages: I64) -> str:
    """A rank with the virtual stages that it holds."""
    own = np.unique(stages[stages != NOWHERE]).tolist()
    if not own:
        return f"rank {rank}"
    if own == [rank]:
        return f"stage {rank}"
    named = ", ".join(map(str, own[:_NAMED_STAGES])) + (", ..." if len(own) > _NAMED_STAGES else "")
    return f"rank {rank}: stage{'s' * (len(own) > 1)} {named}"


def _boxes(ranges: Sequence[Ranges]) -> tuple[Boxes, I64]:
    """The ranges of all ranks, and their steps."""
    rules = {text: i for i, text in enumerate(dict.fromkeys(text for r in ranges for text in r.rules))}
    code = [np.array([rules[text] for text in r.rules], np.int32)[r.rule] for r in ranges]
    none = np.zeros(0, np.int64)

    def column(name: str) -> I64:
        return np.concatenate([none, *(getattr(r, name) for r in ranges)])

    boxes = Boxes(
        row=np.repeat(np.arange(len(ranges)), [len(r.phase) for r in ranges]),
        phase=column("phase").astype(np.uint8),
        stage=column("stage"),
        chunk=column("chunk"),
        microbatch=column("microbatch"),
        start_ns=column("start_ns"),
        end_ns=column("end_ns"),
        rule=np.concatenate([none.astype(np.int32), *code]),
        rules=tuple(rules),
    )
    return boxes, column("step")


def _picked(boxes: Boxes, which: Bool) -> Boxes:
    return Boxes(
        row=boxes.row[which],
        phase=boxes.phase[which],
        stage=boxes.stage[which],
        chunk=boxes.chunk[which],
        microbatch=boxes.microbatch[which],
        start_ns=boxes.start_ns[which],
        end_ns=boxes.end_ns[which],
        rule=boxes.rule[which],
        rules=boxes.rules,
    )


def _chosen(steps: Sequence[Step]) -> list[tuple[Step, str]]:
    if len(steps) <= MOST_STEPS:
        return [(s, f"step {s.number}") for s in steps]
    by_length = sorted(steps, key=lambda s: s.end_ns - s.start_ns)
    named = ((0, "shortest"), ((len(steps) - 1) // 2, "median"), (len(steps) - 1, "longest"))
    return [(by_length[i], f"step {by_length[i].number}, the {word} of {len(steps)}") for i, word in named]
