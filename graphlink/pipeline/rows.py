"""A row of ``pipeline.svg``: rectangles by how wide they are, their numbers and their tooltips."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64, NOWHERE, Bool
from graphlink.pipeline.file import CAUSES
from graphlink.pipeline.look import FIRST_CAUSE, MOST_LINES, class_of, xml
from graphlink.pipeline.marks import Marks
from graphlink.pipeline.panels import Panel
from graphlink.pipeline.records import Phase

Pixels = NDArray[np.float64]
_CELL: Final = 12  # pixels that share a tooltip, where boxes have none of their own
_SMALLEST_TEXT: Final = 8  # pixels
_DIGIT: Final = 0.62  # of the size of a font


@dataclass(frozen=True, slots=True)
class Frame:
    """Where rows lie, in pixels, and how time becomes pixels. ``own_ns``: from which length on a rectangle has a tooltip of its own;
    ``shared``: how many pixels in one those narrower than a pixel share."""

    left: float
    width: int
    first_ns: int
    ns_per_pixel: float
    own_ns: float
    shared: float
    pitch: int
    height: float

    def pixels(self, ns: I64) -> Pixels:
        """Positions to a hundredth: what follows each other in time does so in the picture, and widths add up."""
        out: Pixels = np.round((ns - self.first_ns) / self.ns_per_pixel, 2)
        return out


def drawn_row(panel: Panel, marks: Marks, part: slice, frame: Frame) -> Iterator[str]:
    """The row's rectangles, from the lowest to the uppermost. Cost: O(n log n)."""
    start, end = marks.start_ns[part], marks.end_ns[part]
    left, right = frame.pixels(start), frame.pixels(end)
    own = end - start >= frame.own_ns
    yield from _cells(panel, marks, part, frame, np.flatnonzero(~own) + part.start)
    for layer in np.unique(marks.layer[part]).tolist():
        of_layer = marks.layer[part] == layer
        thin = of_layer & ~own & (right - left < 1)
        yield from _paths(marks, part, frame, np.flatnonzero(of_layer & ~own & ~thin), left, right)
        yield from _stacks(marks, part, frame, thin, left, right)
        yield from _own(panel, marks, part, frame, np.flatnonzero(of_layer & own), left, right)
    yield from _chunk_lines(panel, marks, part, frame, np.flatnonzero((right - left >= 1) & marks.is_box[part]), left, right)
    yield from _numbers(panel, marks, part, frame, np.flatnonzero(own & marks.is_box[part]), left, right)


def _paths(marks: Marks, part: slice, frame: Frame, which: I64, left: Pixels, right: Pixels) -> Iterator[str]:
    """A path a look, all of its rectangles one after the other."""
    shapes: defaultdict[int, list[str]] = defaultdict(list)
    for i in which.tolist():
        at = part.start + i
        y, high = marks.top[at] * frame.height, marks.height[at] * frame.height
        shapes[int(marks.look[at])].append(_shape(left[i], y, right[i] - left[i], high))
    yield from _joined(shapes)


def _stacks(marks: Marks, part: slice, frame: Frame, thin: Bool, left: Pixels, right: Pixels) -> Iterator[str]:
    """What is narrower than a pixel shares one with its neighbours: side by side in time, here one above the other, of the same area."""
    which = np.flatnonzero(thin)
    if not len(which):
        return
    at = which + part.start
    top, high = float(marks.top[at].min()) * frame.height, float(marks.height[at].max()) * frame.height
    wider = np.cumsum((marks.layer[part] == marks.layer[at[0]]) & ~thin)[which]  # none of them lies in a pixel that is shared
    pixel = np.floor((left[which] + right[which]) / 2 / frame.shared) + wider
    order = np.lexsort((marks.look[at], pixel))
    which, look, pixel = which[order], marks.look[at][order], pixel[order]
    begins = np.append(True, pixel[1:] != pixel[:-1])
    heads, group = np.flatnonzero(begins), np.cumsum(begins) - 1
    parts = np.flatnonzero(begins | np.append(True, look[1:] != look[:-1]))
    wide = np.add.reduceat(right[which] - left[which], parts)
    low = np.minimum.reduceat(left[which], heads)
    room = np.maximum(np.maximum.reduceat(right[which], heads) - low, np.bincount(group[parts], wide))
    shapes: defaultdict[int, list[str]] = defaultdict(list)
    y, before = top, -1
    for first, of, width in zip(parts.tolist(), group[parts].tolist(), wide.tolist(), strict=True):
        y, before = (y, before) if of == before else (top, of)
        if width > 0:
            share = width / room[of] * high
            shapes[int(look[first])].append(_shape(low[of], y, room[of], share))
            y += share
    yield from _joined(shapes)


def _shape(x: float, y: float, wide: float, high: float) -> str:
    return f"M{x:.2f} {y:.4g}h{wide:.2f}v{high:.4g}h-{wide:.2f}z"


def _joined(shapes: dict[int, list[str]]) -> Iterator[str]:
    return (f'<path class="t {class_of(look)}" d="{"".join(d)}"/>\n' for look, d in sorted(shapes.items()))


def _own(panel: Panel, marks: Marks, part: slice, frame: Frame, which: I64, left: Pixels, right: Pixels) -> Iterator[str]:
    if not len(which):
        return
    yield '<g class="o">\n'
    for i in which.tolist():
        at = part.start + i
        y, high = marks.top[at] * frame.height, marks.height[at] * frame.height
        place = f'x="{left[i]:.2f}"{f" y={chr(34)}{y:.4g}{chr(34)}" if y else ""} width="{right[i] - left[i]:.2f}" height="{high:.4g}"'
        yield f'<rect class="{class_of(int(marks.look[at]))}" {place}><title>{_tip(panel, marks, at)}</title></rect>\n'
    yield "</g>\n"


def _chunk_lines(panel: Panel, marks: Marks, part: slice, frame: Frame, which: I64, left: Pixels, right: Pixels) -> Iterator[str]:
    """As many lines along the top of a box as its chunk says."""
    chunk = panel.boxes.chunk[marks.of[which + part.start]]
    thick = 1 if frame.height > 12 else 0.6
    lines: defaultdict[int, list[str]] = defaultdict(list)
    for i, of in zip(which[chunk > 0].tolist(), chunk[chunk > 0].tolist(), strict=True):
        y, inset = marks.top[part.start + i] * frame.height, min(1.5, (right[i] - left[i]) / 4)
        across = right[i] - left[i] - 2 * inset
        mine = (f"M{left[i] + inset:.2f} {y + (2 * k + 1.2) * thick:.4g}h{across:.2f}" for k in range(min(of, MOST_LINES)))
        lines[int(marks.look[part.start + i])] += mine
    for look, d in sorted(lines.items()):
        yield f'<path class="k {class_of(look)}" stroke-width="{thick}" d="{"".join(d)}"/>\n'


def _tip(panel: Panel, marks: Marks, at: int) -> str:
    of, start, end = int(marks.of[at]), int(marks.start_ns[at]), int(marks.end_ns[at])
    when = f"starts at {milliseconds(start)} ms, takes {milliseconds(end - start)} ms"
    row = panel.labels[int(marks.row[at])]
    if not marks.is_box[at]:
        gaps = panel.gaps
        evidence = gaps.texts[gaps.evidence[of]]
        return xml(CAUSES[gaps.cause[of]]) + f"\n{xml(row)}\n{when}" + (f"\n{xml(evidence)}" if evidence else "")
    boxes = panel.boxes
    known = (("microbatch", boxes.microbatch), ("stage", boxes.stage), ("chunk", boxes.chunk))
    what = ", ".join([Phase(boxes.phase[of]).name, *(f"{name} {column[of]}" for name, column in known if column[of] != NOWHERE)])
    rule = boxes.rules[boxes.rule[of]]
    return f"{what}\n{xml(row)}\n{when}" + (f"\nrange: {xml(rule)}" if rule else "")


def _numbers(panel: Panel, marks: Marks, part: slice, frame: Frame, which: I64, left: Pixels, right: Pixels) -> Iterator[str]:
    """Phase and microbatch where most boxes of the phase have room for both, else the microbatch alone, else neither."""
    size = min(11.0, frame.height - 2)
    if size < _SMALLEST_TEXT:
        return
    letters = (right - left - 3) / (size * _DIGIT)  # that have room
    for look in np.unique(marks.look[which + part.start]).tolist():
        mine = which[marks.look[which + part.start] == look]
        of = marks.of[mine + part.start]
        phase, numbers = Phase(look).name, ["" if k == NOWHERE else str(k) for k in panel.boxes.microbatch[of].tolist()]
        most, longest = float(np.median(letters[mine])), max(map(len, numbers))
        if most < longest:
            continue
        both = most >= len(phase) + longest
        texts = []
        for i, number in zip(mine.tolist(), numbers, strict=True):
            high = marks.height[part.start + i] * frame.height
            text = next((t for t in (phase + number if both else "", number) if t and len(t) <= letters[i]), "")
            if text and high >= size:
                middle = marks.top[part.start + i] * frame.height + high / 2 + size * 0.36
                texts.append(f'<text x="{(left[i] + right[i]) / 2:.1f}" y="{middle:.1f}">{text}</text>')
        if texts:
            yield f'<g class="m x {class_of(look)}" font-size="{size:g}">{"".join(texts)}</g>\n'


@dataclass(slots=True)
class _Kind:
    """What of one phase or cause lies in a cell."""

    count: int = 0
    ns: int = 0
    lowest: int = 1 << 62
    highest: int = NOWHERE

    def add(self, ns: int, microbatch: int) -> None:
        self.count, self.ns = self.count + 1, self.ns + ns
        if microbatch != NOWHERE:
            self.lowest, self.highest = min(self.lowest, microbatch), max(self.highest, microbatch)

    def said(self, name: str) -> str:
        one = self.lowest == self.highest
        of = "" if self.highest == NOWHERE else f" of {self.lowest}" if one else f" of {self.lowest} to {self.highest}"
        return f"{self.count} x {name}{of}, {milliseconds(self.ns)} ms"


def _cells(panel: Panel, marks: Marks, part: slice, frame: Frame, which: I64) -> Iterator[str]:
    """Tooltips of what has none of its own, by the cell in which its middle lies."""
    if not len(which):
        return
    middle = (marks.start_ns[which] + marks.end_ns[which]) / 2
    cell = np.floor((middle - frame.first_ns) / frame.ns_per_pixel / _CELL).astype(np.int64)
    microbatch = np.where(marks.is_box[which], _of_boxes(panel, marks, which), NOWHERE)
    lengths = marks.end_ns[which] - marks.start_ns[which]
    found: defaultdict[int, defaultdict[str, _Kind]] = defaultdict(lambda: defaultdict(_Kind))
    for c, look, ns, number in zip(cell.tolist(), marks.look[which].tolist(), lengths.tolist(), microbatch.tolist(), strict=True):
        found[c][_name(look)].add(ns, number)
    row = xml(panel.labels[int(marks.row[part.start])])
    for c, kinds in sorted(found.items()):
        a, b = (round(frame.first_ns + k * _CELL * frame.ns_per_pixel) for k in (c, c + 1))
        tip = "\n".join(kind.said(name) for name, kind in kinds.items())
        yield (
            f'<rect class="h" x="{c * _CELL}" width="{_CELL}" height="{frame.height:g}">'
            f"<title>{row}\n{milliseconds(a)} to {milliseconds(b)} ms\n{tip}</title></rect>\n"
        )


def _of_boxes(panel: Panel, marks: Marks, which: I64) -> I64:
    if not len(panel.boxes.microbatch):
        return np.full(len(which), NOWHERE)
    found: I64 = panel.boxes.microbatch[np.where(marks.is_box[which], marks.of[which], 0)]
    return found


def _name(look: int) -> str:
    return CAUSES[look - FIRST_CAUSE] if look >= FIRST_CAUSE else Phase(look).name


def milliseconds(ns: int) -> str:
    """Exact, without needless zeros."""
    whole = f"{ns / 1e6:,.6f}" if abs(ns) < 1 << 50 else f"{ns // 10**6:,}.{ns % 10**6:06}"
    return whole.rstrip("0").rstrip(".")
