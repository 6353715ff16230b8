"""Charts as SVG, inside a page or alone, and their colours and patterns.

Text is any text: what does not print is spelled out, nothing is read as markup.

Sizes are px of a chart ``WIDE`` px wide; every chart has a legend or a scale in view, and its sentence as description.
In a page the legend stands above its chart, as text that wraps.
One look stands for a thing wherever it is drawn, on light and dark pages and on paper. Busy time is solid, idle time
hatched. Causes that ``pipeline.svg`` has too look as there. No two looks share both pattern and lightness, so that they
are told apart without colours. Hues are after Okabe and Ito.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Final, NamedTuple

from graphlink.hatches import FONT, HATCHES, Hatch, pattern, round_step, xml
from graphlink.page.parts import Bar, Bars, Chart, Heat, Segment, Strip, StripCell
from graphlink.records import UNITS, percent, plain, shortened, time


class Look(NamedTuple):
    """What a thing is called in legends, and its tile of 8 by 8. A tile without lines is solid."""

    words: str
    tile: Hatch


def _solid(light: str, dark: str) -> Hatch:
    return Hatch("", light, light, dark, dark)


_GREY: Final = ("#eef0f2", "#8b949e", "#22272d", "#6e7781")
LOOKS: Final[dict[str, Look]] = {
    "stage_work": Look("work", _solid("#0a66b0", "#4c9be8")),
    "warmup": Look("warmup", HATCHES["warmup"]),
    "cooldown": Look("cooldown", HATCHES["cooldown"]),
    "compute": Look("compute", _solid("#0a66b0", "#4c9be8")),
    "host": Look("host", _solid("#e3a008", "#d9a441")),
    "exposed_communication": Look("exposed communication", HATCHES["exposed_communication"]),
    "communication": Look("communication", HATCHES["exposed_communication"]),
    "exposed_copy": Look("exposed copies", Hatch("M0 4h8M4 0v8", "#d5effa", "#1a7fa8", "#0d2b38", "#56b4e9", 1.2)),
    "copy": Look("copy", Hatch("M0 4h8M4 0v8", "#d5effa", "#1a7fa8", "#0d2b38", "#56b4e9", 1.2)),
    "idle": Look("unexplained", Hatch("M-2 6l4 4M0 0l8 8M6-2l4 4", *_GREY, 1.4)),
    "profiler_artefact": Look("profiler_artefact", HATCHES["profiler_artefact"]),
    "straggler_wait": Look("straggler_wait", HATCHES["straggler_wait"]),
    "dependency_stall": Look("dependency_stall", HATCHES["dependency_stall"]),
    "memory_management": Look("memory_management", HATCHES["memory_management"]),
    "data_loading": Look("data_loading", HATCHES["data_loading"]),
    "host_blocked": Look("host_blocked", HATCHES["host_sync"]),
    "start_delay": Look(
        "start_delay", Hatch("M-2 2l4-4M0 8l8-8M6 10l4-4", "#fdeee4", "#d55e00", "#3a2113", "#ff9d5c", 1.2)
    ),
    "host_work": Look("host_work", HATCHES["launch_starved"]),
    "python": Look("python", Hatch("M1 2h2M5 6h2", "#fdf6d8", "#8a6d00", "#302a0c", "#f0d352", 2)),
    "no_work": Look("no_work", HATCHES["warmup"]),
    "unknown": Look("unknown", HATCHES["unknown"]),
    "wait": Look("waited for other ranks", HATCHES["straggler_wait"]),
    "transfer": Look("transfer", HATCHES["exposed_communication"]),
    "other": Look("other", Hatch("M1 1h2M5 5h2", *_GREY, 2)),
    "change": Look("change", _solid("#57606a", "#9aa4ae")),
    "gain": Look("gain", _solid("#00735c", "#35b597")),
    "launch_starved": Look("launch_starved", HATCHES["launch_starved"]),
    "host_sync": Look("host_sync", HATCHES["host_sync"]),
}
HEAT: Final = ("#f3f6fa", "#d3e1f1", "#a8c6e5", "#78a7d6", "#4884c0", "#1f5fa0", "#0a3d75")
DARK_HEAT: Final = ("#1c2128", "#1d3049", "#1f4570", "#2a5f9c", "#4380c4", "#74a8e0", "#b8d6f5")
_INK: Final = {
    "light": ("#ffffff", "#1b1f24", "#57606a", "#d0d7de"),
    "dark": ("#14171a", "#e6edf3", "#9aa4ae", "#3d444d"),
}


def defs(keys: Iterable[str]) -> str:
    """Return the patterns of these looks, to be coloured by ``rules``."""
    return "".join(pattern(f"k-{key}", f"-{key}", LOOKS[key].tile) for key in sorted(set(keys)))


def rules(keys: Iterable[str], *, dark: bool, scope: str = "") -> str:
    """Return the colours of these looks, of heat and of text in charts; ``scope`` stands before each selector."""
    out = []
    for key in sorted(set(keys)):
        tile = LOOKS[key].tile
        tint, line = (tile.dark_tint, tile.dark_line) if dark else (tile.tint, tile.line)
        out.append(f"{scope}.a-{key}{{fill:{tint}}}")
        if tile.path:
            out.append(f"{scope}.l-{key}{{stroke:{line};fill:none}}")
    out += [f"{scope}.h-{step}{{fill:{colour}}}" for step, colour in enumerate(DARK_HEAT if dark else HEAT)]
    page, ink, dim, grid = _INK["dark" if dark else "light"]
    out += [f"{scope}.c-page{{fill:{page}}}", f"{scope}.c-ink{{fill:{ink}}}", f"{scope}.c-dim{{fill:{dim}}}"]
    return "\n".join([*out, f"{scope}.c-grid{{stroke:{grid}}}", f"{scope}.c-edge{{stroke:{ink}}}"])


def fills(keys: Iterable[str]) -> str:
    """Return the rules that fill a shape of class ``k-<key>`` with its pattern."""
    return "\n".join(f".k-{key}{{fill:url(#k-{key})}}" for key in sorted(set(keys)))


WIDE: Final = 960
NARROW: Final = 360
_LETTER, _BROAD = 7.7, 12.2  # px, at 12 px; a bit more than wide fonts take
_SMALL: Final = 11 / 12  # of a letter at 12 px
_BAR, _PITCH = 20, 28
_LANE: Final = 26
_PITCHES: Final = ((1, 2 * _LANE), (16, _LANE))  # px of a lane of a strip of so many; of more it is half as high
_MOST_LABEL: Final = 56  # characters
_LEAST_SPAN: Final = 0.1  # of the middle of a scale of times, to each side: times closer than that are no contrast
EDGES: Final = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.25,
    0.5,
)  # of the shades of shares: what is small on all, and large on one, is seen
_MOST_TITLES: Final = 4_000  # cells of a heat map with a tooltip of their own
STYLE: Final = (
    f".chart{{{FONT};font-size:12px}}.chart .num{{font-variant-numeric:tabular-nums}}.chart .end{{text-anchor:end}}"
    ".chart .mid{text-anchor:middle}.chart .pill{opacity:.88}.c-edge{fill:none;stroke-width:.75}.chart "
    ".small{font-size:11px}"
)


def svg(chart: Chart, *, alone: bool = False, narrow: bool = False) -> str:
    """Draw a chart. ``alone``: as a file of its own, with title, colours and patterns, on white; ``narrow``: bars for a
    small screen, with labels above them."""
    body, high, keys, wide = _drawn(chart, alone=alone, narrow=narrow)
    top, name = 34 if alone else 0, chart.name + "-narrow" * narrow
    title = f'<title id="{name}-t">{xml(chart.title)}</title><desc id="{name}-d">{xml(chart.says, 1000)}</desc>'
    role = f'role="img" aria-labelledby="{name}-t {name}-d"'
    size = f'width="{wide}" height="{high + top:g}" viewBox="0 0 {wide} {high + top:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart{" narrow" * narrow}" {role} {size}>{title}'
    if not alone:
        return f"{head}{body}</svg>"
    style = f"<style>{STYLE}\n{rules(keys, dark=False)}\n{fills(keys)}</style><defs>{defs(keys)}</defs>"
    shown = (
        f'<rect class="c-page" width="{wide}" height="{high + top:g}"/><text class="c-ink" x="4" y="20" font-size="15">'
    )
    return f'{head}{style}{shown}{xml(chart.title)}</text><g transform="translate(0,{top})">{body}</g></svg>\n'


def keys_of(chart: Chart) -> list[str]:
    """Return the looks that a chart uses, each once, in the order of ``LOOKS``."""
    if isinstance(chart, Heat):
        return []
    of: Iterable[Bar | StripCell] = chart.bars if isinstance(chart, Bars) else chart.parts
    used = {_known(segment.key) for one in of for segment in one.segments if segment.value}
    return [key for key in LOOKS if key in used]


def _known(key: str) -> str:
    """Return the look of a key, which may come out of a file."""
    return key if key in LOOKS else "unknown"


def legend_of(chart: Chart) -> list[tuple[str, str]]:
    """Return look and words of each entry of the legend of a chart, none where labels or a scale tell."""
    keys = keys_of(chart)
    labelled = isinstance(chart, Bars) and all(len(bar.segments) <= 1 for bar in chart.bars)
    return [(key, LOOKS[key].words) for key in keys] if len(keys) > 1 and not labelled else []


def _drawn(chart: Chart, *, alone: bool, narrow: bool) -> tuple[str, float, list[str], int]:
    keys = keys_of(chart)
    if narrow and isinstance(chart, Bars):
        return *_bars(chart, 4.0, NARROW), keys, NARROW
    if isinstance(chart, Heat):
        return *_heat(chart), keys, max(WIDE, _heat_left(chart) + 3 * len(chart.columns) + 20)
    entries = legend_of(chart) if alone else []
    legend, top = _legend(entries) if entries else ("", 4.0)
    body, high = _bars(chart, top) if isinstance(chart, Bars) else _strip(chart, top)
    return legend + body, high, keys, WIDE


def _legend(entries: Iterable[tuple[str, str]]) -> tuple[str, float]:
    out, x, y = [], 0.0, 0.0
    for key, text in entries:
        wide = 34 + _text_wide(text)
        if x and x + wide > WIDE:
            x, y = 0.0, y + 20
        out.append(f'<rect class="k-{key}" x="{x + 0.5:g}" y="{y + 2.5:g}" width="16" height="12"/>')
        out.append(f'<rect class="c-edge" x="{x + 0.5:g}" y="{y + 2.5:g}" width="16" height="12"/>')
        out.append(f'<text class="c-ink" x="{x + 22:g}" y="{y + 13:g}">{text}</text>')
        x += wide
    return "".join(out), y + 28


def _amount(value: float, unit: str) -> str:
    return time(value) if unit == "ns" else percent(value, 1)


def _text_wide(text: str) -> float:
    """Return px that a text takes at most, at 12 px."""
    return sum(_BROAD if c in "mwMW%@" or not c.isascii() else 9.5 if c.isupper() else _LETTER for c in text)


def _shortened(text: str) -> str:
    return shortened(plain(text), _MOST_LABEL, 13)


def _bars(chart: Bars, top: float, wide: int = WIDE) -> tuple[str, float]:
    """Draw bars between their labels and notes, on a narrow chart between the lines of these."""
    narrow = wide < WIDE
    labels = [shortened(plain(bar.label), 44, 13) if narrow else _shortened(bar.label) for bar in chart.bars]
    left = 0.0 if narrow else max(map(_text_wide, labels), default=0) + 10
    room = 2.0 if narrow else max((_text_wide(bar.note) for bar in chart.bars), default=0) + 10
    pitch, below, side = (62, 38, "") if narrow else (_PITCH, 14, " end")
    ends = [
        (sum(min(one.value, 0) for one in bar.segments), sum(max(one.value, 0) for one in bar.segments))
        for bar in chart.bars
    ]  # what each takes to the left and to the right of zero
    low, high = min((low for low, _ in ends), default=0), max((high for _, high in ends), default=0)
    before = room if low < 0 else 0.0
    scale = (wide - left - before - room) / ((high - low) or 1)
    zero = left + before - low * scale
    out = []
    for k, (bar, label, (least, most)) in enumerate(zip(chart.bars, labels, ends, strict=True)):
        y = top + k * pitch
        out.append(
            f'<text class="c-ink{side}" x="{max(left - 8, 0):g}" y="{y + 14 - 3 * narrow:g}">{xml(label)}</text>'
        )
        out += _bar(bar, chart.unit, zero, y + 18 * narrow, scale)
        end, anchor = (zero + least * scale - 8, " end") if least < 0 else (zero + most * scale + 8, "")
        end, anchor = (0, "") if narrow else (end, anchor)
        out.append(
            f'<text class="c-dim num{anchor}" x="{end:.1f}" y="{y + below + 14 * narrow:g}">{xml(bar.note)}</text>'
        )
    under = top + len(chart.bars) * pitch + 2
    axis = f'<path class="c-edge" d="M{zero:.1f} {top - 3:g}V{under - 6:g}"/>' if low < 0 else ""
    return "".join(out) + axis, under


def _bar(bar: Bar, unit: str, zero: float, y: float, scale: float) -> Iterator[str]:
    left = right = zero
    whole = sum(abs(one.value) for one in bar.segments)
    for one in bar.segments:
        wide = abs(one.value) * scale
        if wide <= 0:
            continue
        if one.value < 0:
            x = left = left - wide
        else:
            x, right = right, right + wide
        place = f'x="{x:.2f}" y="{y:g}" width="{wide:.2f}" height="{_BAR}"'
        key, tip = _known(one.key), xml(_tip(bar, one, unit, whole))
        yield (
            f'<rect class="k-{key}" {place}><title>{tip}</title></rect><rect class="c-edge" {place} '
            'pointer-events="none"/>'
        )
        if len(bar.segments) > 1:
            share = percent(abs(one.value), whole)
            yield from _inside(f"{LOOKS[key].words} {share}", share, x, y, wide)


def _tip(bar: Bar, one: Segment, unit: str, whole: float) -> str:
    if len(bar.segments) == 1:
        return f"{bar.label}: {bar.note or _amount(one.value, unit)}"
    return f"{bar.label}: {LOOKS[_known(one.key)].words}, {_amount(one.value, unit)} ({percent(one.value, whole)})"


def _inside(text: str, short: str, x: float, y: float, wide: float) -> Iterator[str]:
    """Write into a segment what has room in it, on a ground of its own, since a pattern lies below."""
    fits = next((one for one in (text, short) if _SMALL * _text_wide(one) + 14 <= wide), None)
    if fits is None:
        return
    room = _SMALL * _text_wide(fits) + 8
    ground = f'x="{x + (wide - room) / 2:.1f}" y="{y + 3:g}" width="{room:.1f}" height="14" rx="3"'
    yield (
        f'<rect class="c-page pill" {ground} pointer-events="none"/>'
        f'<text class="c-ink mid num small" x="{x + wide / 2:.1f}" y="{y + 14:g}" pointer-events="none">{fits}</text>'
    )


def _strip(chart: Strip, top: float) -> tuple[str, float]:
    """Draw lanes of cells, closer together where there are many. Where they lie is told to the script of the page."""
    pitch = next((pitch for most, pitch in _PITCHES if len(chart.lanes) <= most), _LANE // 2)
    bar = pitch - (_LANE - _BAR)
    left = max(_text_wide(_shortened(lane)) for lane in chart.lanes) + 10 if len(chart.lanes) > 1 else 0.0
    pixel = (WIDE - left - 2) / chart.cells
    ns = chart.length_ns / chart.cells
    out = []
    for k, lane in enumerate(chart.lanes):
        y = top + k * pitch
        hidden = "" if left else ' visibility="hidden"'
        place = f'x="{max(left - 8, 0):g}" y="{y + bar / 2 + 4:g}"{hidden}'
        out.append(f'<text class="lane c-ink end{" small" * (pitch < _LANE)}" {place}>{xml(_shortened(lane))}</text>')
        out.append(
            f'<rect class="c-edge" x="{left:g}" y="{y:g}" width="{WIDE - left - 2:g}" height="{bar}" opacity=".35"/>'
        )
    shapes: dict[str, list[str]] = {}
    for part in chart.parts:
        wide, y = part.count * pixel, top + part.lane * pitch
        for one in part.segments:
            high = bar * one.value / ns  # of its cell, as much as it takes of its time
            if high > 0.01 * bar:
                x = left + part.first * pixel
                shapes.setdefault(_known(one.key), []).append(f"M{x:.1f} {y:.1f}h{wide:.1f}v{high:.1f}h-{wide:.1f}z")
                y += high
    out += [
        f'<path class="part k-{key}" d="{"".join(d)}"><title>{LOOKS[key].words}</title></path>'
        for key, d in shapes.items()
    ]
    lines = [
        f"M{left + ns / chart.length_ns * (WIDE - left - 2):.1f} {max(top + lane * pitch - 4, 0):g}v{bar + 4}"
        for lane, marks in enumerate(chart.marks)
        for ns in marks
        if 0 <= ns <= chart.length_ns
    ]
    out.append(f'<path class="step" pointer-events="none" d="{"".join(lines)}"/>' if lines else "")
    y = top + len(chart.lanes) * pitch
    axis = _axis(0, chart.length_ns, left, WIDE - left - 2, y)
    told = f"{left:g} {WIDE - left - 2:g} {top:g} {pitch} {bar} {chart.length_ns}"
    return f'<g class="strip" data-strip="{told}">{"".join(out)}<g class="axis">{axis}</g></g>', y + 20


def _axis(low_ns: float, high_ns: float, left: float, wide: float, y: float) -> str:
    """Draw ticks at round times below the lanes."""
    step = round_step(max((high_ns - low_ns) / 8, 1))
    unit_ns, unit = next((one for one in UNITS if high_ns >= one[0]), UNITS[-1])
    out = []
    first, last = ceil(low_ns / step - 1e-9), int(high_ns / step + 1e-9)
    for k in range(first, last + 1):
        x = left + (k * step - low_ns) / max(high_ns - low_ns, 1) * wide
        text = f"{k * step / unit_ns:,.10g}" + (f" {unit}" if k == first else "")
        side = "" if x < 20 else " end" if x > WIDE - 20 else " mid"
        out.append(
            f'<path class="c-grid" d="M{x:.1f} {y - 6:g}v4"/><text class="c-dim num small{side}" x="{x:.1f}" '
            f'y="{y + 11:g}">{text}</text>'
        )
    return "".join(out)


def _heat_left(chart: Heat) -> int:
    return ceil(max((_text_wide(_shortened(row)) for row in chart.rows), default=0)) + 10


def _heat(chart: Heat) -> tuple[str, float]:
    left, known = _heat_left(chart), [value for row in chart.values for value in row if value is not None]
    low, most = (0.0, max(known, default=0)) if chart.unit == "share" else _span(known)
    wide = min(max((WIDE - left - 4) / max(len(chart.columns), 1), 3), 64)
    high, classes, top = 18, len(HEAT), 38 if chart.unit == "share" else 26
    titles = len(chart.columns) * len(chart.rows) <= _MOST_TITLES
    out = [_scale(chart, low, most)]
    for k, (label, values) in enumerate(zip(chart.rows, chart.values, strict=True)):
        y = top + k * high
        out.append(f'<text class="c-ink end" x="{left - 8}" y="{y + 13}">{xml(_shortened(label))}</text>')
        for j, (column, value) in enumerate(zip(chart.columns, values, strict=True)):
            if value is None:
                continue
            step = (
                bisect_right(EDGES, value)
                if chart.unit == "share"
                else min(int((value - low) / ((most - low) or 1) * classes), classes - 1)
            )
            tip = (
                f"<title>{xml(f'{chart.across} {column}, {label}: {_amount(value, chart.unit)}')}</title>"
                if titles
                else ""
            )
            place = f'x="{left + j * wide:.1f}" y="{y}" width="{wide - 0.6:.1f}" height="{high - 1}"'
            out.append(
                f'<rect class="h-{step}" {place}>{tip}</rect>' if titles else f'<rect class="h-{step}" {place}/>'
            )
    y, every = top + len(chart.rows) * high, max(ceil(26 / wide), 1)
    for j, column in enumerate(chart.columns):
        if j % every == 0:
            out.append(
                f'<text class="c-dim num small mid" x="{left + (j + 0.5) * wide:.1f}" '
                f'y="{y + 13}">{xml(_shortened(column))}</text>'
            )
    out.append(f'<text class="c-dim end small" x="{left - 8}" y="{y + 13}">{xml(chart.across)}</text>')
    return "".join(out), y + 22


def _span(known: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the scale of times: wide enough that times which are nearly the same are of one middle
    shade.
    """
    low, high = min(known, default=0), max(known, default=0)
    middle, half = (low + high) / 2, max((high - low) / 2, _LEAST_SPAN * (low + high) / 2)
    return middle - half, middle + half


def _scale(chart: Heat, low: float, most: float) -> str:
    """Draw the scale of colours with its two ends, of shares with the end of each shade."""
    if chart.unit == "share":
        return _share_scale()
    first = _amount(low, chart.unit)
    x = _text_wide(first) + 8
    boxes = "".join(f'<rect class="h-{k}" x="{x + 22 * k:g}" y="2" width="22" height="13"/>' for k in range(len(HEAT)))
    edge = f'<rect class="c-edge" x="{x:g}" y="2" width="{22 * len(HEAT)}" height="13"/>'
    return (
        f'<text class="c-dim num" x="0" y="13">{first}</text>{boxes}{edge}'
        f'<text class="c-dim num" x="{x + 22 * len(HEAT) + 8:g}" y="13">{_amount(most, chart.unit)}</text>'
    )


def _share_scale() -> str:
    wide = 44
    names = ["0 %", *(f"{edge:.0%}".replace("%", " %") for edge in EDGES)]
    boxes = "".join(
        f'<rect class="h-{k}" x="{k * wide + 0.5:g}" y="2" width="{wide}" height="13"/>' for k in range(len(names))
    )
    edge = f'<rect class="c-edge" x=".5" y="2" width="{wide * len(names)}" height="13"/>'
    texts = "".join(
        f'<text class="c-dim num small" x="{k * wide:g}" y="27">{name}</text>' for k, name in enumerate(names)
    )
    return f"{boxes}{edge}{texts}"
