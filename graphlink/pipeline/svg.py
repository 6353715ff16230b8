"""``pipeline.svg``: the schedule as a picture, a row a pipeline rank, boxes with microbatch numbers, bubbles tinted by cause.

Every ns has its place: what is too narrow to be a box of its own is drawn without one, and what is narrower than a pixel shares that
pixel, each with a part of its height, so that areas stay true. Tooltips are those of a box, or of all that lies in 12 pixels of a row.
The file has a few MB at most, whatever the run (docs/bubbles.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from msgspec import UNSET

from graphlink.model import NOWHERE
from graphlink.pipeline import summary
from graphlink.pipeline.file import CAUSES, summarised
from graphlink.pipeline.look import FIRST_CAUSE, MOST_LINES, PHASE_TEXT, class_of, style, xml
from graphlink.pipeline.marks import Marks, marks_of
from graphlink.pipeline.panels import Panel, recorded
from graphlink.pipeline.records import Cause, Phase, Pipeline
from graphlink.pipeline.rows import Frame, drawn_row, milliseconds

NAME: Final = "pipeline.svg"
NARROWEST, WIDEST = 860, 2600  # of the time axis, pixels
_WANTED: Final = 17  # pixels for a short box, so that two digits fit
_ROWS_HIGH: Final = 780  # pixels for all rows together, as far as a row is neither lower than 8 nor higher than 26
_LETTER: Final = 6.4  # pixels, of the labels
_TICK: Final = 110  # pixels between ticks, about
_MARGIN: Final = 12
_MOST_OWN: Final = 15_000  # rectangles with a tooltip of their own
_MOST_SHARED: Final = 50_000  # pixels of all rows that narrower rectangles share
_SHARE: Final = 62  # pixels right of the rows


@dataclass(frozen=True, slots=True)
class Heading:
    """The first lines of the picture, and the idle time by cause that the legend tells."""

    title: str
    lines: tuple[str, ...]
    causes_ns: dict[Cause, int]


def encode(pipeline: Pipeline) -> bytes:
    """The picture of a recorded run."""
    panels = recorded(pipeline.ranks, [run.ranges for run in pipeline.runs], pipeline.idle, pipeline.steps)
    head = heading(summarised(pipeline))
    unplaced = sum(int(np.count_nonzero(run.ranges.step == NOWHERE)) for run in pipeline.runs)
    if unplaced:
        head = replace(head, lines=(*head.lines, f"not drawn: {unplaced:,} ranges of no known step"))
    return picture(head, panels)


def heading(entry: summary.Pipeline) -> Heading:
    """What ``summary.json.pipeline`` says, in words."""
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
    if entry.nearest is not UNSET:
        lines.append(f"nearest schedule: {entry.nearest}")
    causes = {Cause(CAUSES.index(name)): ns for name, ns in entry.causes_ns.items() if name in CAUSES}
    if entry.optimizer_sync_ns is not UNSET:
        causes[Cause.OPTIMIZER_SYNC] = entry.optimizer_sync_ns
    return Heading(summary.shape(entry), tuple(lines), causes)


def picture(head: Heading, panels: Sequence[Panel]) -> bytes:
    """Panels one under the other with one time axis: each begins at 0. Cost: O(n log n) in boxes and idle intervals."""
    marks = [marks_of(panel) for panel in panels]
    frame = _frame(panels, marks)
    return "".join(_parts(head, panels, marks, frame)).encode()


def _frame(panels: Sequence[Panel], marks: Sequence[Marks]) -> Frame:
    """The scale: wide enough for the numbers of most boxes, as far as a page can be that wide."""
    first = min((int(m.start_ns.min()) for m in marks if len(m.row)), default=0)
    last = max([int(m.end_ns.max()) for m in marks if len(m.row)] + [p.makespan_ns for p in panels] + [1])
    lengths = np.concatenate([np.zeros(0, np.int64), *((m.end_ns - m.start_ns)[m.is_work] for m in marks)])
    lengths = lengths[lengths > 0]
    short = float(np.quantile(lengths, 0.25)) if len(lengths) else float(last - first)
    width = min(max((last - first) / short * _WANTED, NARROWEST), WIDEST)
    rows = sum(len(p.labels) for p in panels)
    pitch = min(max(_ROWS_HIGH // max(rows, 1), 8), 26)
    label = max((len(text) for p in panels for text in p.labels), default=0)
    return Frame(
        left=_MARGIN + min(label, 40) * _LETTER + 8,
        width=round(width),
        first_ns=first,
        ns_per_pixel=max(last - first, 1) / round(width),
        own_ns=_own_ns(marks, max(last - first, 1) / round(width)),
        shared=max(1.0, rows * width / _MOST_SHARED),
        pitch=pitch,
        height=pitch - (1 if pitch < 12 else 3),
    )


def _own_ns(marks: Sequence[Marks], ns_per_pixel: float) -> float:
    """From which length on a rectangle is an element of its own with a tooltip of its own: 3 pixels, or more if there are too many."""
    lengths = np.concatenate([np.zeros(0, np.int64), *(m.end_ns - m.start_ns for m in marks)])
    most = np.sort(lengths)[-_MOST_OWN] + 1 if len(lengths) > _MOST_OWN else 0
    return max(3 * ns_per_pixel, float(most))


def _parts(head: Heading, panels: Sequence[Panel], marks: Sequence[Marks], frame: Frame) -> Iterator[str]:
    looks = sorted({look for m in marks for look in np.unique(m.look).tolist()} | {_look(c) for c, ns in head.causes_ns.items() if ns})
    if Cause.UNKNOWN in head.causes_ns:
        looks = sorted({*looks, _look(Cause.UNKNOWN)})
    whole = frame.left + frame.width + _SHARE + _MARGIN
    chunks = max((int(p.boxes.chunk.max(initial=0)) + 1 for p in panels), default=1)
    legend, high = _legend(looks, head.causes_ns, chunks, whole)
    top = 36 + 16 * len(head.lines)
    y = top + high + 8
    body: list[str] = []
    bands: list[tuple[float, float]] = []
    for panel, mine in zip(panels, marks, strict=True):
        y += 20
        body.append(f'<text x="{frame.left:g}" y="{y - 7:g}">{xml(panel.caption)}, {milliseconds(panel.makespan_ns)} ms</text>\n')
        bands.append((y, y + frame.pitch * len(panel.labels)))
        body += _rows(panel, mine, frame, y)
        y = bands[-1][1] + 6
    axis = _axis(frame, bands, y)
    y += 40
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:g}" height="{y:g}" viewBox="0 0 {whole:g} {y:g}" role="img">\n'
        f"<title>{xml(head.title)}</title>\n"
    )
    yield style(looks)
    yield '<rect class="bg" width="100%" height="100%"/>\n'
    yield f'<text class="b" x="{_MARGIN}" y="24">{xml(head.title)}</text>\n'
    for i, line in enumerate(head.lines):
        yield f'<text class="d" x="{_MARGIN}" y="{42 + 16 * i}">{xml(line)}</text>\n'
    yield f'<g transform="translate({_MARGIN},{top})">\n{legend}</g>\n'
    yield axis
    yield from body
    yield "</svg>\n"


def _rows(panel: Panel, marks: Marks, frame: Frame, top: float) -> Iterator[str]:
    first = np.searchsorted(marks.row, np.arange(len(panel.labels) + 1)).tolist()
    every = -(-9 // frame.pitch)  # labels of 9 pixels
    idle = np.zeros(len(panel.labels), np.int64)
    inside = (panel.gaps.cause != Cause.OPTIMIZER_SYNC) & (panel.gaps.row < len(idle))
    np.add.at(idle, panel.gaps.row[inside], (panel.gaps.end_ns - panel.gaps.start_ns)[inside])
    size = min(11, frame.pitch)
    for row, label in enumerate(panel.labels):
        y = top + row * frame.pitch
        yield f'<g transform="translate({frame.left:g},{y:g})">\n<rect class="lane" width="{frame.width}" height="{frame.height:g}"/>\n'
        yield from drawn_row(panel, marks, slice(first[row], first[row + 1]), frame)
        if row % every == 0:
            middle = f'y="{frame.height / 2 + size * 0.35:.1f}" font-size="{size}"'
            share = f"{100 * float(idle[row]) / panel.makespan_ns:.1f} %" if panel.makespan_ns else ""
            yield f'<text class="e" x="-8" {middle}>{xml(label, 40)}</text>\n'
            yield f'<text class="d" x="{frame.width + 8}" {middle}>{share}</text>\n'
        yield "</g>\n"


def _axis(frame: Frame, bands: Sequence[tuple[float, float]], y: float) -> str:
    """Ticks at round times, lines through all panels."""
    unit_ns, unit = _unit(frame.width * frame.ns_per_pixel)
    step = _round_step(_TICK * frame.ns_per_pixel / unit_ns)
    first, last = frame.first_ns / unit_ns, (frame.first_ns + frame.width * frame.ns_per_pixel) / unit_ns
    lines, texts = [], []
    for k in range(int(np.ceil(first / step - 1e-9)), int(np.floor(last / step + 1e-9)) + 1):
        x = frame.left + (k * step - first) * unit_ns / frame.ns_per_pixel
        lines += [f"M{x:.1f} {a - 3:g}V{b + 3:g}" for a, b in bands]
        texts.append(f'<text x="{x:.1f}" y="{y + 12:g}">{k * step:,.10g}</text>')
    middle = frame.left + frame.width / 2
    texts.append(f'<text x="{middle:.1f}" y="{y + 28:g}">{unit} from the first start of a step; right of the rows: idle share</text>')
    return f'<path class="g" d="{"".join(lines)}"/>\n<g class="m d">{"".join(texts)}</g>\n'


def _unit(ns: float) -> tuple[int, str]:
    """The largest unit of which there are ten or more."""
    return next(((size, name) for size, name in ((10**9, "s"), (10**6, "ms"), (1000, "us")) if ns >= 10 * size), (1, "ns"))


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, no less than ``least``."""
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(n * power for n in (1, 2, 5, 10) if n * power >= least * 0.999))


def _look(cause: Cause) -> int:
    return FIRST_CAUSE + cause


def _legend(looks: Sequence[int], causes_ns: dict[Cause, int], chunks: int, whole: float) -> tuple[str, float]:
    """Entries left to right in as many lines as they take, and the height of it."""
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
        out.append(f'<rect class="{look}" x="{x:g}" y="{y:g}" width="16" height="13"/>')
        d = "".join(f"M{x + 1:g} {y + 1.5 + 2 * k:g}h14" for k in range(lines))
        out.append(f'<path class="k {look}" stroke-width="1" d="{d}"/>' if d else "")
        out.append(f'<text x="{x + 22:g}" y="{y + 11:g}">{xml(text)}</text>\n')
        x += wide
    return "".join(out), y + 20


def _legend_text(look: int, causes_ns: dict[Cause, int], inside: int) -> str:
    if look < FIRST_CAUSE:
        phase = Phase(look)
        return f"{phase.name} {PHASE_TEXT[phase]}"
    cause = Cause(look - FIRST_CAUSE)
    ns = causes_ns.get(cause)
    if ns is None:
        return CAUSES[cause]
    part = f" ({100 * ns / inside:.1f} %)" if inside and cause != Cause.OPTIMIZER_SYNC else ""
    return f"{CAUSES[cause]} {milliseconds(ns)} ms{part}"
