"""``pipeline.svg``: the schedule as a picture, a row per pipeline rank, boxes with microbatch numbers, bubbles tinted
by cause.

Every ns has its place: what is too narrow to be a box of its own is drawn without one, and what is narrower than a
pixel shares that pixel, each with a part of its height, so that areas stay true. Tooltips are those of a box, or of all
that lies in 12 pixels of a row. The file has a few MB at most, whatever the run (docs/bubbles.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from graphlink.causes import Cause
from graphlink.hatches import round_step, xml
from graphlink.model import EMPTY, I64, NOWHERE, Bool
from graphlink.pipeline.file import CAUSES, Bubbles, idle_of, ranges_of, summarised
from graphlink.pipeline.panels import (
    FIRST_CAUSE,
    MOST_LINES,
    PHASE_TEXT,
    Marks,
    Panel,
    class_of,
    milliseconds,
    recorded,
    style,
)
from graphlink.pipeline.records import Pass, Pipeline, Ranges, RunPipeline, shape
from graphlink.records import time
from graphlink.tables import begins, grouped, how_many, sums, take, tuples

Pixels = NDArray[np.float64]
NARROWEST, WIDEST = 860, 2600  # of the time axis, pixels
_WANTED: Final = 17  # pixels for a short box, so that two digits fit
_ROWS_HIGH: Final = 780  # pixels for all rows together, as far as a row is neither lower than 8 nor higher than 26
_LETTER: Final = 6.4  # pixels, of the labels
_TICK: Final = 110  # pixels between ticks, about
_MARGIN: Final = 12
_MOST_OWN: Final = 15_000  # rectangles with a tooltip of their own
_MOST_SHARED: Final = 50_000  # pixels of all rows that narrower rectangles share
_SHARE: Final = 62  # pixels right of the rows
_CELL: Final = 12  # pixels that share a tooltip, where boxes have none of their own
_SMALLEST_TEXT: Final = 8  # pixels
_DIGIT: Final = 0.62  # of the size of a font


def encode(pipeline: RunPipeline) -> bytes:
    """Draw a recorded run."""
    ranges = [run.ranges for run in pipeline.runs]
    return _drawn_run(summarised(pipeline), recorded(pipeline.ranks, ranges, pipeline.idle, pipeline.steps), ranges)


def redraw(file: Bubbles, widest: int) -> bytes:
    """Draw a run from its ``bubbles.json``, its time axis at most ``widest`` pixels."""
    ranges = ranges_of(file)
    panels = recorded([stage.rank for stage in file.stages], ranges, idle_of(file), file.steps)
    return _drawn_run(file.pipeline, panels, ranges, widest)


def _drawn_run(entry: Pipeline, panels: Sequence[Panel], ranges: Sequence[Ranges], widest: int = WIDEST) -> bytes:
    unplaced = sum(how_many(of_rank.step == NOWHERE) for of_rank in ranges)
    return picture(entry, panels, [f"not drawn: {unplaced:,} ranges of no known step"] * bool(unplaced), widest)


def _lines(entry: Pipeline) -> list[str]:
    """Describe rates and the nearest schedule in words."""
    rates = [
        f"{words} {value:.4f} ({name})"
        for name, words in (
            ("bubble_rate_makespan", "bubble rate of the makespan"),
            ("bubble_rate_zb", "of the longest own window"),
            ("bubble_ratio_ideal", "bubble over ideal time"),
        )
        if (value := getattr(entry, name)) is not UNSET
    ]
    lines = ["; ".join(rates)] if rates else []
    return lines if entry.nearest is UNSET else [*lines, f"nearest schedule: {entry.nearest}"]


def _causes(entry: Pipeline) -> dict[Cause, int]:
    """Return the idle time by cause that the legend tells."""
    causes = {Cause(CAUSES.index(name)): ns for name, ns in entry.causes_ns.items() if name in CAUSES}
    return causes if entry.optimizer_sync_ns is UNSET else {**causes, Cause.OPTIMIZER_SYNC: entry.optimizer_sync_ns}


def picture(entry: Pipeline, panels: Sequence[Panel], notes: Sequence[str] = (), widest: int = WIDEST) -> bytes:
    """Draw panels one under the other with one time axis: each begins at 0. Cost: O(n log n) in boxes and idle
    intervals.

    ``entry`` and ``notes`` are the first lines; ``widest``: pixels of the time axis.
    """
    frame = _frame(panels, widest)
    causes_ns, title, words = _causes(entry), xml(shape(entry)), [*_lines(entry), *notes]
    shown = {FIRST_CAUSE + cause for cause, ns in causes_ns.items() if ns or cause == Cause.UNKNOWN}
    looks = sorted({look for p in panels for look in np.unique(p.marks.look).tolist()} | shown)
    whole = frame.left + frame.width + _SHARE + _MARGIN
    chunks = max((int(p.marks.chunk.max(initial=0)) + 1 for p in panels), default=1)
    legend, high = _legend(looks, causes_ns, chunks, min(whole, NARROWEST))
    top = 36 + 16 * len(words)
    y = top + high + 8
    body: list[str] = []
    bands: list[tuple[float, float]] = []
    for panel in panels:
        y += 20
        body.append(f'<text x="{frame.left:g}" y="{y - 7:g}">{xml(panel.caption)}, {time(panel.makespan_ns)}</text>\n')
        bands.append((y, y + frame.pitch * len(panel.labels)))
        body += _rows(panel, frame, y)
        y = bands[-1][1] + 6
    axis = _axis(frame, bands, y)
    y += 40
    lines = "".join(
        f'<text class="d" x="{_MARGIN}" y="{42 + 16 * i}">{xml(line)}</text>\n' for i, line in enumerate(words)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:g}" height="{y:g}" viewBox="0 0 {whole:g} {y:g}" '
        'role="img">\n'
        f"<title>{title}</title>\n"
        f'{style(looks)}<rect class="bg" width="100%" height="100%"/>\n'
        f'<text class="b" x="{_MARGIN}" y="24">{title}</text>\n{lines}'
        f'<g transform="translate({_MARGIN},{top})">\n{legend}</g>\n{axis}{"".join(body)}</svg>\n'
    ).encode()


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The places of rows in pixels, and the scale from time to pixels. ``own_ns``: from which length on a rectangle has
    a tooltip of its own; ``shared``: how many pixels in one those narrower than a pixel share."""

    left: float
    width: int
    first_ns: int
    ns_per_pixel: float
    own_ns: float
    shared: float
    pitch: int
    height: float

    def pixels(self, ns: I64) -> Pixels:
        """Return positions to a hundredth: what follows each other in time does so in the picture, and widths
        add up.
        """
        return np.round((ns - self.first_ns) / self.ns_per_pixel, 2)


def _frame(panels: Sequence[Panel], widest: int) -> PlotArea:
    """Choose the scale: wide enough for the numbers of most boxes, as far as a page can be that wide.

    From 3 pixels on a rectangle is an element of its own with a tooltip of its own, or from more if there are too many.
    """
    names, none = ("look", "start_ns", "end_ns"), EMPTY
    looks, starts, ends = (np.concatenate([none, *(getattr(panel.marks, name) for panel in panels)]) for name in names)
    lengths = ends - starts
    first = int(starts.min()) if len(starts) else 0
    last = max([int(ends.max(initial=1)), *(panel.makespan_ns for panel in panels)])
    of_work = lengths[(looks < Pass.OPT) & (lengths > 0)]
    short = float(np.quantile(of_work, 0.25)) if len(of_work) else float(last - first)
    width = min(max((last - first) / short * _WANTED, NARROWEST), widest)
    rows = sum(len(p.labels) for p in panels)
    pitch = min(max(_ROWS_HIGH // max(rows, 1), 8), 26)
    label = max((len(text) for p in panels for text in p.labels), default=0)
    ns_per_pixel = max(last - first, 1) / round(width)
    most = np.sort(lengths)[-_MOST_OWN] + 1 if len(lengths) > _MOST_OWN else 0
    return PlotArea(
        left=_MARGIN + min(label, 40) * _LETTER + 8,
        width=round(width),
        first_ns=first,
        ns_per_pixel=ns_per_pixel,
        own_ns=max(3 * ns_per_pixel, float(most)),
        shared=max(1.0, rows * width / _MOST_SHARED),
        pitch=pitch,
        height=pitch - (1 if pitch < 12 else 3),
    )


def _rows(panel: Panel, frame: PlotArea, top: float) -> Iterator[str]:
    marks = panel.marks
    first = np.searchsorted(marks.row, np.arange(len(panel.labels) + 1)).tolist()
    every = -(-9 // frame.pitch)  # labels of 9 pixels
    inside = ~marks.is_box & (marks.look != FIRST_CAUSE + Cause.OPTIMIZER_SYNC)
    idle = sums(len(panel.labels), marks.row[inside], (marks.end_ns - marks.start_ns)[inside])
    size = min(11, frame.pitch)
    for row, label in enumerate(panel.labels):
        y = top + row * frame.pitch
        yield (
            f'<g transform="translate({frame.left:g},{y:g})">\n<rect class="lane" width="{frame.width}" '
            f'height="{frame.height:g}"/>\n'
        )
        at = np.arange(first[row], first[row + 1])
        own, left, right = take(marks, at), frame.pixels(marks.start_ns[at]), frame.pixels(marks.end_ns[at])
        high = frame.height * panel.height[at]
        yield from _drawn(_Row(label, own, panel.layer[at], left, right, panel.top[at] * frame.height, high), frame)
        if row % every == 0:
            middle = f'y="{frame.height / 2 + size * 0.35:.1f}" font-size="{size}"'
            share = f"{100 * float(idle[row]) / panel.makespan_ns:.1f} %" if panel.makespan_ns else ""
            yield f'<text class="e" x="-8" {middle}>{xml(label, 40)}</text>\n'
            yield f'<text class="d" x="{frame.width + 8}" {middle}>{share}</text>\n'
        yield "</g>\n"


@dataclass(frozen=True, slots=True)
class _Row:
    """The rectangles of a row, from the lowest to the uppermost, and where they lie in pixels."""

    label: str
    marks: Marks
    layer: I64
    left: Pixels
    right: Pixels
    top: Pixels
    high: Pixels


def _drawn(row: _Row, frame: PlotArea) -> Iterator[str]:
    """Draw rectangles by how wide they are, then lines, numbers and shared tooltips. Cost: O(n log n)."""
    own = row.marks.end_ns - row.marks.start_ns >= frame.own_ns
    wide = row.right - row.left >= 1
    yield from _cells(row, frame, ~own)
    for layer in np.unique(row.layer).tolist():
        of_layer = row.layer == layer
        yield from _by_look(
            (int(row.marks.look[i]), _shape(row.left[i], row.top[i], row.right[i] - row.left[i], row.high[i]))
            for i in np.flatnonzero(of_layer & ~own & wide).tolist()
        )
        yield from _stacks(row, frame, of_layer & ~own & ~wide, layer)
        yield from _own(row, of_layer & own)
    yield from _chunk_lines(row, frame, wide & row.marks.is_box & (row.marks.chunk > 0))
    yield from _numbers(row, frame, np.flatnonzero(own & row.marks.is_box))


def _stacks(row: _Row, frame: PlotArea, thin: Bool, layer: int) -> Iterator[str]:
    """Draw what is narrower than a pixel and shares one: side by side in time, here one above the other, of the same
    area.
    """
    which = np.flatnonzero(thin)
    if not len(which):
        return
    high = float(row.high[which].max())
    wider = np.cumsum((row.layer == layer) & ~thin)[which]  # none of them lies in a pixel that is shared
    pixel = np.floor((row.left[which] + row.right[which]) / 2 / frame.shared) + wider
    order = np.lexsort((row.marks.look[which], pixel))
    which, pixel = which[order], pixel[order]
    look, left, right = row.marks.look[which], row.left[which], row.right[which]
    heads, group = np.flatnonzero(begins(pixel)), np.cumsum(begins(pixel)) - 1
    parts = np.flatnonzero(begins(pixel, look))
    wide = np.add.reduceat(right - left, parts)
    low = np.minimum.reduceat(left, heads)
    room = np.maximum(np.maximum.reduceat(right, heads) - low, np.bincount(group[parts], wide))
    shapes: list[tuple[int, str]] = []
    y, before = 0.0, -1
    for first, of, width in tuples(parts, group[parts], wide):
        y, before = (y, before) if of == before else (float(row.top[which].min()), of)
        if width > 0:
            share = width / room[of] * high
            shapes.append((int(look[first]), _shape(low[of], y, room[of], share)))
            y += share
    yield from _by_look(shapes)


def _shape(x: float, y: float, wide: float, high: float) -> str:
    return f"M{x:.2f} {y:.4g}h{wide:.2f}v{high:.4g}h-{wide:.2f}z"


def _by_look(shapes: Iterable[tuple[int, str]], attributes: str = 'class="t {}"') -> Iterator[str]:
    """Draw a path per look of what is to be drawn of each."""
    of_look = sorted(grouped(shapes).items())
    return (f'<path {attributes.format(class_of(look))} d="{"".join(d)}"/>\n' for look, d in of_look)


def _own(row: _Row, which: Bool) -> Iterator[str]:
    if not which.any():
        return
    yield '<g class="o">\n'
    for i in np.flatnonzero(which).tolist():
        y = f' y="{row.top[i]:.4g}"' if row.top[i] else ""
        place = f'x="{row.left[i]:.2f}"{y} width="{row.right[i] - row.left[i]:.2f}" height="{row.high[i]:.4g}"'
        yield f'<rect class="{class_of(int(row.marks.look[i]))}" {place}><title>{_tip(row, i)}</title></rect>\n'
    yield "</g>\n"


def _chunk_lines(row: _Row, frame: PlotArea, which: Bool) -> Iterator[str]:
    """Draw as many lines along the top of a box as its chunk says."""
    thick = 1 if frame.height > 12 else 0.6
    lines: list[tuple[int, str]] = []
    for i in np.flatnonzero(which).tolist():
        wide = row.right[i] - row.left[i]
        inset = min(1.5, wide / 4)
        for k in range(min(int(row.marks.chunk[i]), MOST_LINES)):
            line = f"M{row.left[i] + inset:.2f} {row.top[i] + (2 * k + 1.2) * thick:.4g}h{wide - 2 * inset:.2f}"
            lines.append((int(row.marks.look[i]), line))
    return _by_look(lines, f'class="k {{}}" stroke-width="{thick}"')


def _tip(row: _Row, i: int) -> str:
    marks = row.marks
    start, end, text = int(marks.start_ns[i]), int(marks.end_ns[i]), marks.texts[marks.text[i]]
    known = (("microbatch", marks.microbatch), ("stage", marks.stage), ("chunk", marks.chunk))
    what = ", ".join(
        [_name(int(marks.look[i])), *(f"{name} {column[i]}" for name, column in known if column[i] != NOWHERE)]
    )
    when = f"starts at {milliseconds(start)} ms, takes {milliseconds(end - start)} ms"
    why = ("range: " if marks.is_box[i] else "") + xml(text) if text else ""
    return "\n".join([what, xml(row.label), when, *([why] if why else [])])


def _numbers(row: _Row, frame: PlotArea, which: I64) -> Iterator[str]:
    """Write phase and microbatch where most boxes of the phase have room for both, else the microbatch alone, else
    neither.
    """
    size = min(11.0, frame.height - 2)
    if size < _SMALLEST_TEXT:
        return
    letters = (row.right - row.left - 3) / (size * _DIGIT)  # that have room
    for look in np.unique(row.marks.look[which]).tolist():
        mine = which[row.marks.look[which] == look]
        phase, numbers = Pass(look).name, ["" if k == NOWHERE else str(k) for k in row.marks.microbatch[mine].tolist()]
        most, longest = float(np.median(letters[mine])), max(map(len, numbers))
        if most < longest:
            continue
        both = most >= len(phase) + longest
        texts = []
        for i, number in zip(mine.tolist(), numbers, strict=True):
            text = next((t for t in (phase + number if both else "", number) if t and len(t) <= letters[i]), "")
            if text and row.high[i] >= size:
                middle = row.top[i] + row.high[i] / 2 + size * 0.36
                texts.append(f'<text x="{(row.left[i] + row.right[i]) / 2:.1f}" y="{middle:.1f}">{text}</text>')
        if texts:
            yield f'<g class="m x {class_of(look)}" font-size="{size:g}">{"".join(texts)}</g>\n'


def _cells(row: _Row, frame: PlotArea, which: Bool) -> Iterator[str]:
    """Give tooltips to what has none of its own, by the cell in which its middle lies."""
    marks = take(row.marks, which)
    middle = (marks.start_ns + marks.end_ns) / 2
    cell = np.floor((middle - frame.first_ns) / frame.ns_per_pixel / _CELL).astype(np.int64)
    found = grouped(zip(cell.tolist(), range(len(cell)), strict=True))
    for c, here in sorted(found.items()):
        by_look = grouped((int(marks.look[i]), i) for i in here)
        a, b = (round(frame.first_ns + k * _CELL * frame.ns_per_pixel) for k in (c, c + 1))
        tip = "\n".join(_summed(look, take(marks, np.array(of))) for look, of in by_look.items())
        yield (
            f'<rect class="h" x="{c * _CELL}" width="{_CELL}" height="{frame.height:g}">'
            f"<title>{xml(row.label)}\n{milliseconds(a)} to {milliseconds(b)} ms\n{tip}</title></rect>\n"
        )


def _summed(look: int, marks: Marks) -> str:
    """Describe how many marks of a phase or cause there are, of which microbatches, and how long they take."""
    numbers = marks.microbatch[marks.microbatch != NOWHERE]
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (NOWHERE, NOWHERE)
    of = "" if high == NOWHERE else f" of {low}" if low == high else f" of {low} to {high}"
    return f"{len(marks.row)} x {_name(look)}{of}, {milliseconds(int((marks.end_ns - marks.start_ns).sum()))} ms"


def _name(look: int) -> str:
    return CAUSES[look - FIRST_CAUSE] if look >= FIRST_CAUSE else Pass(look).name


def _axis(frame: PlotArea, bands: Sequence[tuple[float, float]], y: float) -> str:
    """Draw ticks at round times, lines through all panels."""
    units, whole_ns = ((10**9, "s"), (10**6, "ms"), (1000, "us")), frame.width * frame.ns_per_pixel
    unit_ns, unit = next((unit for unit in units if whole_ns >= 10 * unit[0]), (1, "ns"))  # of which there are ten
    step = round_step(_TICK * frame.ns_per_pixel / unit_ns)
    first, last = frame.first_ns / unit_ns, (frame.first_ns + whole_ns) / unit_ns
    lines, texts = [], []
    for k in range(int(np.ceil(first / step - 1e-9)), int(np.floor(last / step + 1e-9)) + 1):
        x = frame.left + (k * step - first) * unit_ns / frame.ns_per_pixel
        lines += [f"M{x:.1f} {a - 3:g}V{b + 3:g}" for a, b in bands]
        texts.append(f'<text x="{x:.1f}" y="{y + 12:g}">{k * step:,.10g}</text>')
    middle = frame.left + frame.width / 2
    texts.append(
        f'<text x="{middle:.1f}" y="{y + 28:g}">{unit} from the first start of a step; right of the rows: idle '
        "share</text>"
    )
    return f'<path class="g" d="{"".join(lines)}"/>\n<g class="m d">{"".join(texts)}</g>\n'


def _legend(looks: Sequence[int], causes_ns: dict[Cause, int], chunks: int, whole: float) -> tuple[str, float]:
    """Place entries left to right in as many lines as they take; return them and their height."""
    inside = sum(ns for cause, ns in causes_ns.items() if cause != Cause.OPTIMIZER_SYNC)
    entries = [(class_of(look), 0, _legend_text(look, causes_ns, inside)) for look in looks]
    for chunk in range(1, min(chunks, MOST_LINES + 1)):
        later = " and later" if chunk == MOST_LINES and chunks > chunk + 1 else ""
        entries.append((class_of(looks[0]), chunk, f"chunk {chunk}{later}"))
    out, x, y = [], 0.0, 0.0
    for look, lines, text in entries:
        wide = 22 + (len(text) + 2) * _LETTER
        if x and x + wide > whole - 2 * _MARGIN:
            x, y = 0.0, y + 20
        d = "".join(f"M{x + 1:g} {y + 1.5 + 2 * k:g}h14" for k in range(lines))
        out += [
            f'<rect class="{look}" x="{x:g}" y="{y:g}" width="16" height="13"/>',
            f'<path class="k {look}" stroke-width="1" d="{d}"/>' if d else "",
            f'<text x="{x + 22:g}" y="{y + 11:g}">{xml(text)}</text>\n',
        ]
        x += wide
    return "".join(out), y + 20


def _legend_text(look: int, causes_ns: dict[Cause, int], inside: int) -> str:
    if look < FIRST_CAUSE:
        phase = Pass(look)
        return f"{phase.name} {PHASE_TEXT[phase]}"
    cause = Cause(look - FIRST_CAUSE)
    ns = causes_ns.get(cause)
    if ns is None:
        return CAUSES[cause]
    part = f" ({100 * ns / inside:.1f} %)" if inside and cause != Cause.OPTIMIZER_SYNC else ""
    return f"{CAUSES[cause]} {time(ns)}{part}"
