"""The rectangles of a panel of ``pipeline.svg``: what lies where on a row, and above what."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64, Bool
from graphlink.perfetto.slices import lanes
from graphlink.pipeline.look import FIRST_CAUSE
from graphlink.pipeline.panels import Boxes, Gaps, Panel
from graphlink.pipeline.records import Phase

Parts = NDArray[np.float64]  # of a height
_BESIDE: Final = 0.1  # of the shorter of two boxes: by so much they may overlap and still stand one after the other
_INSIDE: Final = 0.3  # of the height of a row: an idle interval inside a box


@dataclass(frozen=True, slots=True)
class Marks:
    """One entry a rectangle, by row, then from the lowest to the uppermost, then by start.

    ``look``: a phase or a cause. ``top`` and ``height`` are parts of the row's height. ``of``: position in the panel's
    boxes where ``is_box``, else in its gaps. Times are ns from the start of the panel.
    """

    row: I64
    layer: I64
    look: I64
    start_ns: I64
    end_ns: I64
    top: Parts
    height: Parts
    is_box: Bool
    of: I64

    @property
    def is_work(self) -> Bool:
        """Boxes of F, B, I and W."""
        return self.is_box & (self.look < Phase.OPT)


def marks_of(panel: Panel) -> Marks:
    """Idle intervals lie beneath boxes; those inside a box above it, in a strip along its foot. Boxes that overlap share the height."""
    boxes, gaps = panel.boxes, panel.gaps
    top, height = _shared(boxes)
    inside = _covered(boxes, gaps)
    n, k = len(boxes.row), len(gaps.row)
    whole = Marks(
        row=np.concatenate([boxes.row, gaps.row]),
        layer=np.concatenate([np.ones(n, np.int64), np.where(inside, 2, 0)]),
        look=np.concatenate([boxes.phase.astype(np.int64), FIRST_CAUSE + gaps.cause.astype(np.int64)]),
        start_ns=np.concatenate([boxes.start_ns, gaps.start_ns]) - panel.start_ns,
        end_ns=np.concatenate([boxes.end_ns, gaps.end_ns]) - panel.start_ns,
        top=np.concatenate([top, np.where(inside, 1 - _INSIDE, 0.0)]),
        height=np.concatenate([height, np.where(inside, _INSIDE, 1.0)]),
        is_box=np.arange(n + k) < n,
        of=np.concatenate([np.arange(n), np.arange(k)]),
    )
    order = np.lexsort((whole.start_ns, whole.layer, whole.row))
    return Marks(**{field.name: getattr(whole, field.name)[order] for field in fields(Marks)})


def _shared(boxes: Boxes) -> tuple[Parts, Parts]:
    """Top and height of each box: the whole row, or a lane of it where boxes run at the same time."""
    n = len(boxes.row)
    top, height = np.zeros(n), np.ones(n)
    order = np.lexsort((boxes.start_ns, boxes.row))
    row, start, end = boxes.row[order], boxes.start_ns[order], boxes.end_ns[order]
    common = np.minimum(end[:-1], end[1:]) - start[1:]
    shorter = np.minimum(end[:-1] - start[:-1], end[1:] - start[1:])
    crowded = np.flatnonzero((row[1:] == row[:-1]) & (common > _BESIDE * shorter))
    which = order[np.unique(np.concatenate([crowded, crowded + 1]))]
    if len(which):
        spare = ((boxes.end_ns - boxes.start_ns)[which] * _BESIDE).astype(np.int64)
        lane = lanes(boxes.start_ns[which], boxes.end_ns[which] - spare, boxes.row[which])
        most = np.zeros(int(boxes.row.max()) + 1, np.int64)
        np.maximum.at(most, boxes.row[which], lane + 1)
        height[which] = 1 / most[boxes.row[which]]
        top[which] = lane * height[which]
    return top, height


def _covered(boxes: Boxes, gaps: Gaps) -> Bool:
    """Which idle intervals lie inside a box of their row: among the boxes that begin no later, one ends no earlier."""
    if not len(boxes.row) or not len(gaps.row):
        return np.zeros(len(gaps.row), np.bool_)
    times = np.unique(np.concatenate([boxes.start_ns, boxes.end_ns, gaps.start_ns, gaps.end_ns]))
    n = len(times)
    order = np.lexsort((boxes.start_ns, boxes.row))
    begins = (boxes.row * n + np.searchsorted(times, boxes.start_ns))[order]
    reach = np.maximum.accumulate((boxes.row * n + np.searchsorted(times, boxes.end_ns))[order])
    before = np.searchsorted(begins, gaps.row * n + np.searchsorted(times, gaps.start_ns), side="right") - 1
    return (before >= 0) & (reach[before] >= gaps.row * n + np.searchsorted(times, gaps.end_ns))
