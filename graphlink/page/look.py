"""Colours and patterns of the charts, one look for each thing wherever it is drawn, for light and dark pages and for
paper.

Busy time is solid, idle time hatched. Causes that ``pipeline.svg`` has too look as there. No two looks share both
pattern and lightness, so that they are told apart without colours. Hues are after Okabe and Ito.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from graphlink.hatches import HATCHES, Hatch


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
    "light": ("#ffffff", "#1b1f24", "#57606a", "#d0d7de", "#f6f8fa"),
    "dark": ("#14171a", "#e6edf3", "#9aa4ae", "#3d444d", "#1c2128"),
}


def defs(keys: Iterable[str]) -> str:
    """Return the patterns of these looks, to be coloured by ``rules``."""
    return "".join(_pattern(key) for key in sorted(set(keys)))


def _pattern(key: str) -> str:
    tile = LOOKS[key].tile
    lines = f'<path class="l-{key}" stroke-width="{tile.width}" d="{tile.path}"/>' if tile.path else ""
    return (
        f'<pattern id="k-{key}" width="8" height="8" patternUnits="userSpaceOnUse"><rect class="a-{key}" width="8" '
        'height="8"/>'
        f"{lines}</pattern>"
    )


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
    page, ink, dim, grid, lane = _INK["dark" if dark else "light"]
    blue = LOOKS["compute"].tile.dark_tint if dark else LOOKS["compute"].tile.tint
    out += [f"{scope}.dot{{stroke:{blue}}}", f"{scope}.mean{{stroke:{ink}}}", f"{scope}.c-lane{{fill:{lane}}}"]
    out += [f"{scope}.c-page{{fill:{page}}}", f"{scope}.c-ink{{fill:{ink}}}", f"{scope}.c-dim{{fill:{dim}}}"]
    return "\n".join([*out, f"{scope}.c-grid{{stroke:{grid}}}", f"{scope}.c-edge{{stroke:{ink}}}"])


def fills(keys: Iterable[str]) -> str:
    """Return the rules that fill a shape of class ``k-<key>`` with its pattern."""
    return "\n".join(f".k-{key}{{fill:url(#k-{key})}}" for key in sorted(set(keys)))
