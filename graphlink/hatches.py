"""What pictures share: the hatching of idle time by its cause, round steps of an axis, and any text inside one."""

from __future__ import annotations

import re
from html import escape
from math import floor, log10
from typing import Final, NamedTuple


class Hatch(NamedTuple):
    """A tile of 8 by 8: background and lines, on light and on dark pages."""

    path: str
    tint: str
    line: str
    dark_tint: str
    dark_line: str
    width: float = 1.2


FONT: Final = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_SLASH: Final = "M-2 2l4-4M0 8l8-8M6 10l4-4"
_BACK: Final = "M-2 6l4 4M0 0l8 8M6-2l4 4"
HATCHES: Final = {
    "warmup": Hatch(_SLASH, "#eef0f2", "#a3acb5", "#22272d", "#59636e", 1),
    "cooldown": Hatch(_BACK, "#eef0f2", "#a3acb5", "#22272d", "#59636e", 1),
    "dependency_stall": Hatch(
        "M-2 2l4-4M-2 6l8-8M-2 10l12-12M2 10l8-8M6 10l4-4", "#fbe9e7", "#b3261e", "#3a1714", "#ff8a80", 1.3
    ),
    "exposed_communication": Hatch("M0 2h8M0 6h8", "#efe7f7", "#5e3c99", "#271a3d", "#b79be6", 1.6),
    "straggler_wait": Hatch(_SLASH + _BACK, "#efe7f7", "#5e3c99", "#271a3d", "#b79be6"),
    "optimizer_sync": Hatch("M1 2h2M5 6h2", "#fdeee4", "#d55e00", "#3a2113", "#ff9d5c", 2),
    "launch_starved": Hatch("M2 0v8M6 0v8", "#f5ecdc", "#7a4f01", "#33270f", "#d9a441", 1.6),
    "host_sync": Hatch("M2 0v8M0 2h8", "#f5ecdc", "#7a4f01", "#33270f", "#d9a441"),
    "data_loading": Hatch("M0 2h4M4 6h4", "#ddf1ee", "#01665e", "#0f2f2c", "#5fc4b8", 3),
    "memory_management": Hatch("M0 4l2-3l4 6l2-3", "#ddf1ee", "#01665e", "#0f2f2c", "#5fc4b8", 1.4),
    "profiler_artefact": Hatch("M2 2l4 4M6 2l-4 4", "#ffffff", "#1b1f24", "#14171a", "#e6edf3", 1.2),
    "unknown": Hatch("", "#1b1f24", "#1b1f24", "#e6edf3", "#e6edf3"),
}
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]")


def pattern(name: str, suffix: str, tile: Hatch) -> str:
    """Return a tile as an SVG pattern of this ``name``, coloured by its classes: ``a`` and ``l``, with the suffix."""
    lines = f'<path class="l{suffix}" stroke-width="{tile.width}" d="{tile.path}"/>' if tile.path else ""
    return (
        f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse"><rect class="a{suffix}" width="8" '
        f'height="8"/>{lines}</pattern>'
    )


def round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, no less than ``least``."""
    power = 10.0 ** floor(log10(least))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= least * 0.999)


def xml(text: str, most: int = 300) -> str:
    """Return any text as XML character data or attribute value: what does not print (control characters, of which XML
    allows few and nobody sees any, turned writing, half surrogates) is spelled out; long texts are cut in the middle.
    """
    if len(text) > most:
        text = f"{text[: most - 60]} ... {text[-50:]}"
    if _UNSAFE.search(text):
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return escape(text, quote=False).replace('"', "&quot;")
