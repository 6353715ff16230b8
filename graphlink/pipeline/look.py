"""Colours and patterns of ``pipeline.svg``: solid boxes, hatched bubbles, for light and dark pages.

Phases have hues after Okabe and Ito (https://jfly.uni-koeln.de/color/), set apart further: with full and without red,
green or blue vision any two of them differ by 20 in CIE Lab (``tests/pipeline/test_pipeline_svg.py``); letters and
numbers stand in boxes that are large enough. Causes are distinguished by their hatching first: no two share a pattern.
A chunk shows as lines along the top of its boxes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from graphlink.hatches import HATCHES
from graphlink.pipeline.records import Cause, Pass

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
_DARK_TEXT: Final = 0.179  # luminance of a fill on which black and white text have the same contrast


_PAGE: Final = {
    "": {"bg": "#ffffff", "ink": "#1b1f24", "dim": "#57606a", "lane": "#f6f8fa", "grid": "#d0d7de"},
    "dark": {"bg": "#14171a", "ink": "#e6edf3", "dim": "#9aa4ae", "lane": "#1a1e23", "grid": "#3d444d"},
}
_FONT: Final = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"


def class_of(look: int) -> str:
    """Return the CSS class of a look."""
    return f"c{look - FIRST_CAUSE}" if look >= FIRST_CAUSE else f"p{look}"


def luminance(colour: str) -> float:
    """Return the relative luminance of an sRGB colour (WCAG 2.2), 0 to 1."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (b / 255 for b in bytes.fromhex(colour[1:]))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def style(looks: Iterable[int]) -> str:
    """Return the style sheet and the patterns for these looks."""
    used = sorted(set(looks))
    rules = [
        f"svg{{{_FONT};font-size:11px}}",
        ".h{fill:none;pointer-events:all}",
        ".t{pointer-events:none}",
        "text{pointer-events:none}",
        ".m text{text-anchor:middle}",
        ".e{text-anchor:end}",
        ".b{font-weight:600;font-size:14px}",
        *(_page_rules("")),
    ]
    dark = _page_rules("dark")
    for look in used:
        if look < FIRST_CAUSE:
            fill = FILL[Pass(look)]
            ink = "#000" if luminance(fill) > _DARK_TEXT else "#fff"
            rules += [
                f".p{look}{{fill:{fill}}}",
                f".x.p{look}{{fill:{ink}}}",
                f".k.p{look}{{fill:none;stroke:{ink};pointer-events:none}}",
            ]
        else:
            number = look - FIRST_CAUSE
            hatch = HATCHES[Cause(number).name.lower()]
            rules += [f".c{number}{{fill:url(#h{number})}}", *_hatch_rules(number, hatch.tint, hatch.line)]
            dark += _hatch_rules(number, hatch.dark_tint, hatch.dark_line)
    sheet = "\n".join([*rules, f"@media(prefers-color-scheme:dark){{{''.join(dark)}}}"])
    patterns = "\n".join(_pattern(look - FIRST_CAUSE) for look in used if look >= FIRST_CAUSE)
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


def _pattern(number: int) -> str:
    hatch = HATCHES[Cause(number).name.lower()]
    lines = f'<path class="l{number}" stroke-width="{hatch.width}" d="{hatch.path}"/>' if hatch.path else ""
    return (
        f'<pattern id="h{number}" width="8" height="8" patternUnits="userSpaceOnUse"><rect class="a{number}" width="8" '
        'height="8"/>'
        f"{lines}</pattern>"
    )


def milliseconds(ns: int) -> str:
    """Return ms, exact, without needless zeros."""
    whole = f"{ns / 1e6:,.6f}" if abs(ns) < 1 << 50 else f"{ns // 10**6:,}.{ns % 10**6:06}"
    return whole.rstrip("0").rstrip(".")
