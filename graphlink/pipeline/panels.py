"""The contents and the look of ``pipeline.svg``: rows of boxes and of idle intervals, what lies above what, colours.

There is one panel per step. Boxes are solid, bubbles hatched, for light and dark pages.

A panel can as well come from a schedule that was only computed (``computed``), which makes the picture of theory above
measured.

Phases have hues after Okabe and Ito (https://jfly.uni-koeln.de/color/), set apart further: with full and without red,
green or blue vision any two of them differ by 20 in CIE Lab (``tests/pipeline/test_pipeline_svg.py``); letters and
numbers stand in boxes that are large enough. Causes are distinguished by their hatching first: no two share a pattern.
A chunk shows as lines along the top of its boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.causes import Cause
from graphlink.hatches import FONT, HATCHES, pattern
from graphlink.model import I64, NOWHERE, Bool
from graphlink.perfetto.slices import lanes
from graphlink.pipeline.records import Idle, Pass, Ranges, StepEntry
from graphlink.records import first_few
from graphlink.spans import Axis, complement, union
from graphlink.tables import concat, largest, nowhere, take

FIRST_CAUSE: Final = len(Pass)  # a look is a phase, or a cause behind them
MOST_LINES: Final = 3  # for chunk 3 and all later ones
PHASE_TEXT: Final = {
    Pass.F: "forward",
    Pass.B: "full backward",
    Pass.I: "input gradient",
    Pass.W: "weight gradient",
    Pass.OPT: "optimizer",
}
FILL: Final = {Pass.F: "#0076cc", Pass.B: "#f5bf1e", Pass.I: "#c77398", Pass.W: "#005a45", Pass.OPT: "#9c2a00"}
_BLACK_TEXT: Final = (Pass.B, Pass.I)  # on fills of a luminance above 0.179: on that black and white text equal
_PAGE: Final = {
    "": {"bg": "#ffffff", "ink": "#1b1f24", "dim": "#57606a", "lane": "#f6f8fa", "grid": "#d0d7de"},
    "dark": {"bg": "#14171a", "ink": "#e6edf3", "dim": "#9aa4ae", "lane": "#1a1e23", "grid": "#3d444d"},
}


def class_of(look: int) -> str:
    """Return the CSS class of a look."""
    return f"c{look - FIRST_CAUSE}" if look >= FIRST_CAUSE else f"p{look}"


def style(looks: Sequence[int]) -> str:
    """Return the style sheet and the patterns for these looks, each once."""
    rules = [
        f"svg{{{FONT};font-size:11px}}",
        ".h{fill:none;pointer-events:all}",
        ".t{pointer-events:none}",
        "text{pointer-events:none}",
        ".m text{text-anchor:middle}",
        ".e{text-anchor:end}",
        ".b{font-weight:600;font-size:14px}",
        *(_page_rules("")),
    ]
    dark = _page_rules("dark")
    for look in looks:
        if look < FIRST_CAUSE:
            ink = "#000" if look in _BLACK_TEXT else "#fff"
            rules += [
                f".p{look}{{fill:{FILL[Pass(look)]}}}",
                f".x.p{look}{{fill:{ink}}}",
                f".k.p{look}{{fill:none;stroke:{ink};pointer-events:none}}",
            ]
        else:
            number = look - FIRST_CAUSE
            hatch = HATCHES[Cause(number).name.lower()]
            rules += [f".c{number}{{fill:url(#h{number})}}", *_hatch_rules(number, hatch.tint, hatch.line)]
            dark += _hatch_rules(number, hatch.dark_tint, hatch.dark_line)
    sheet = "\n".join([*rules, f"@media(prefers-color-scheme:dark){{{''.join(dark)}}}"])
    causes = [look - FIRST_CAUSE for look in looks if look >= FIRST_CAUSE]
    patterns = "\n".join(pattern(f"h{k}", f"{k}", HATCHES[Cause(k).name.lower()]) for k in causes)
    return f"<style>\n{sheet}\n</style>\n<defs>\n{patterns}\n</defs>\n"


def _page_rules(scheme: str) -> list[str]:
    page = _PAGE[scheme]
    return [
        f".bg{{fill:{page['bg']}}}",
        f"svg{{fill:{page['ink']}}}",
        f".d{{fill:{page['dim']}}}",
        f".lane{{fill:{page['lane']}}}",
        f".g{{stroke:{page['grid']};fill:none}}",
        f".o rect{{stroke:{page['bg']};stroke-width:.6px}}",
    ]


def _hatch_rules(number: int, tint: str, line: str) -> list[str]:
    return [f".a{number}{{fill:{tint}}}", f".l{number}{{stroke:{line};fill:none}}"]


def milliseconds(ns: int) -> str:
    """Return ms, exact, without needless zeros."""
    whole = f"{ns / 1e6:,.6f}" if abs(ns) < 1 << 50 else f"{ns // 10**6:,}.{ns % 10**6:06}"
    return whole.rstrip("0").rstrip(".")


Parts = NDArray[np.float64]  # of a height
MOST_STEPS: Final = 3
_NAMED_STAGES: Final = 4  # of a rank with several, in the label of its row
_BESIDE: Final = 0.1  # of the shorter of two boxes: by so much they may overlap and still stand one after the other
_INSIDE: Final = 0.3  # of the height of a row: an idle interval inside a box


@dataclass(frozen=True, slots=True)
class Marks:
    """Rectangles on rows: boxes of phases, and idle intervals.

    ``row`` is a position in ``Panel.labels``. ``look``: a ``Phase``, or ``FIRST_CAUSE`` and a ``Cause``. ``NOWHERE``:
    unknown, or of an idle interval. ``text``, the rule of a box or the evidence of an idle interval, points into
    ``texts``.
    """

    row: I64
    look: I64
    start_ns: I64
    end_ns: I64
    stage: I64
    chunk: I64
    microbatch: I64
    text: I64
    texts: tuple[str, ...]

    @property
    def is_box(self) -> Bool:
        """Return which are no idle intervals."""
        return self.look < FIRST_CAUSE


class Panel(msgspec.Struct, frozen=True):
    """One step. ``makespan_ns``: from its start, the 0 of all times, to the end of its last F, B, I or W.

    ``marks`` are sorted by row, then from the lowest ``layer`` to the uppermost, then by start. ``layer``, ``top`` and
    ``height``: shape (marks,), the latter two as parts of the row's height.
    """

    caption: str
    labels: tuple[str, ...]
    makespan_ns: int
    marks: Marks
    layer: I64
    top: Parts
    height: Parts


def recorded(ranks: Sequence[int], ranges: Sequence[Ranges], idle: Idle, steps: Sequence[StepEntry]) -> list[Panel]:
    """Return a panel per step; of more than ``MOST_STEPS`` the shortest, the median and the longest one. ``ranks``,
    ``ranges``: parallel."""
    labels = tuple(row_label(rank, r.stage) for rank, r in zip(ranks, ranges, strict=True))
    texts: dict[str, int] = {}
    parts = []
    for row, r in enumerate(ranges):
        rule = np.array([texts.setdefault(text, len(texts)) for text in r.rules], np.int64)[r.rule]
        place, look = np.full(len(r.phase), row), r.phase.astype(np.int64)
        parts.append(Marks(place, look, r.start_ns, r.end_ns, r.stage, r.chunk, r.microbatch, rule, ()))
    row_of = {rank: row for row, rank in enumerate(ranks)}
    rows, none = np.array([row_of[rank] for rank in idle.rank.tolist()], np.int64), nowhere(len(idle.rank))
    look, evidence = FIRST_CAUSE + idle.cause.astype(np.int64), len(texts) + idle.evidence.astype(np.int64)
    parts.append(Marks(rows, look, idle.start_ns, idle.end_ns, none, none, none, evidence, ()))
    marks = replace(concat(*parts), texts=(*texts, *idle.texts))
    step_of = np.concatenate([*(r.step for r in ranges), idle.step])
    return [
        arranged(caption, labels, step.start_ns, step.end_ns - step.start_ns, take(marks, step_of == step.number))
        for step, caption in _chosen(steps)
    ]


def computed(caption: str, labels: tuple[str, ...], boxes: Marks) -> Panel:
    """Return a step that was never recorded; what a row waits between its boxes is the schedule's own dependency."""
    start, end = (int(boxes.start_ns.min()), int(boxes.end_ns.max())) if len(boxes.row) else (0, 0)
    parts = [boxes]
    for row in range(len(labels)):
        own = boxes.row == row
        free = complement(union(boxes.start_ns[own], boxes.end_ns[own]), start, end)
        first, last = free.start_ns == start, free.end_ns == end
        cause = FIRST_CAUSE + np.select([first, last], [Cause.WARMUP, Cause.COOLDOWN], Cause.DEPENDENCY_STALL)
        none = nowhere(len(cause))
        parts.append(Marks(0 * none + row, cause, free.start_ns, free.end_ns, none, none, none, 0 * none, ()))
    return arranged(caption, labels, start, end - start, replace(concat(*parts), texts=("",)))


def row_label(rank: int, stages: I64) -> str:
    """Name a rank with the virtual stages that it runs."""
    own = np.unique(stages[stages != NOWHERE]).tolist()
    if not own:
        return f"rank {rank}"
    if own == [rank]:
        return f"stage {rank}"
    return f"rank {rank}: stage{'s' * (len(own) > 1)} {first_few(own, _NAMED_STAGES)}"


def _chosen(steps: Sequence[StepEntry]) -> list[tuple[StepEntry, str]]:
    if len(steps) <= MOST_STEPS:
        return [(s, f"step {s.number}") for s in steps]
    by_length = sorted(steps, key=lambda s: s.end_ns - s.start_ns)
    named = ((0, "shortest"), ((len(steps) - 1) // 2, "median"), (len(steps) - 1, "longest"))
    return [(by_length[i], f"step {by_length[i].number}, the {word} of {len(steps)}") for i, word in named]


def arranged(caption: str, labels: tuple[str, ...], start_ns: int, makespan_ns: int, marks: Marks) -> Panel:
    """Place idle intervals beneath boxes; those inside a box above it, in a strip along its foot. Boxes that overlap
    share the height.
    """
    marks = replace(marks, start_ns=marks.start_ns - start_ns, end_ns=marks.end_ns - start_ns)
    boxes, gaps = np.flatnonzero(marks.is_box), np.flatnonzero(~marks.is_box)
    inside = gaps[_covered(take(marks, boxes), take(marks, gaps))]
    layer, top, height = marks.is_box.astype(np.int64), np.zeros(len(marks.row)), np.ones(len(marks.row))
    _share_rows(take(marks, boxes), boxes, top, height)
    layer[inside], top[inside], height[inside] = 2, 1 - _INSIDE, _INSIDE
    order = np.lexsort((marks.start_ns, layer, marks.row))
    return Panel(caption, labels, makespan_ns, take(marks, order), layer[order], top[order], height[order])


def _share_rows(boxes: Marks, at: I64, top: Parts, height: Parts) -> None:
    """Set top and height (at positions ``at``) of the boxes that run at the same time as others: a lane of
    their row.
    """
    order = np.lexsort((boxes.start_ns, boxes.row))
    row, start, end = boxes.row[order], boxes.start_ns[order], boxes.end_ns[order]
    common = np.minimum(end[:-1], end[1:]) - start[1:]
    shorter = np.minimum(end[:-1] - start[:-1], end[1:] - start[1:])
    crowded = np.flatnonzero((row[1:] == row[:-1]) & (common > _BESIDE * shorter))
    which = order[np.unique(np.concatenate([crowded, crowded + 1]))]
    if len(which):
        spare = ((boxes.end_ns - boxes.start_ns)[which] * _BESIDE).astype(np.int64)
        lane = lanes(boxes.start_ns[which], boxes.end_ns[which] - spare, boxes.row[which])
        most = largest(int(boxes.row.max()) + 1, boxes.row[which], lane + 1)
        height[at[which]] = 1 / most[boxes.row[which]]
        top[at[which]] = lane * height[at[which]]


def _covered(boxes: Marks, gaps: Marks) -> Bool:
    """Return which idle intervals lie inside a box of their row: among the boxes that begin no later, one ends no
    earlier.
    """
    if not len(boxes.row) or not len(gaps.row):
        return np.zeros(len(gaps.row), np.bool_)
    axis = Axis.over(np.append(boxes.row, gaps.row), boxes.start_ns, boxes.end_ns, gaps.start_ns, gaps.end_ns)
    order = np.lexsort((boxes.start_ns, boxes.row))
    reach = np.maximum.accumulate(axis.of(boxes.row, boxes.end_ns)[order])
    begun = np.searchsorted(axis.of(boxes.row, boxes.start_ns)[order], axis.of(gaps.row, gaps.start_ns), side="right")
    return (begun > 0) & (reach[begun - 1] >= axis.of(gaps.row, gaps.end_ns))
