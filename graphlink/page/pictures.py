"""The charts of a page as files of their own, for slides: SVG, or PNG by a library that is there."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from graphlink import publish
from graphlink.errors import UsageError
from graphlink.page.charts import svg
from graphlink.page.parts import Page, Picture, charts, flat

_SCALE: Final = 2  # pixels of a PNG for one of the chart


def pictures(page: Page) -> dict[str, bytes]:
    """Return the charts of a page as SVG files by name, with that of a pipeline."""
    parts = [part for section in page.sections for part in section.parts]
    found = {f"{chart.name}.svg": svg(chart, alone=True).encode() for chart in charts(parts)}
    return {
        **found,
        **{f"{part.name}.svg": base64.b64decode(part.data) for part in flat(parts) if isinstance(part, Picture)},
    }


def as_png(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return SVG files as PNG.

    Raises:
        UsageError: no library for it is installed.
    """
    png = _library()
    return {f"{name.removesuffix('.svg')}.png": png(data) for name, data in files.items()}


def write(files: dict[str, bytes], folder: Path) -> None:
    """Write files into a folder, which is made; what has such a name there is replaced.

    Raises:
        OutputError: the folder cannot be written.
    """
    with publish.naming(folder, todo="make room, or name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            beside = folder / f".{name}.{os.getpid()}.part"
            try:
                beside.write_bytes(data)
                beside.replace(folder / name)
            finally:
                beside.unlink(missing_ok=True)


def _library() -> Callable[[bytes], bytes]:
    try:
        import resvg_py
    except ImportError:
        raise UsageError(
            "--png: needs the library resvg-py", todo="pip install '.[pictures]' in a clone of graphlink, or use --svg"
        ) from None
    return lambda data: bytes(resvg_py.svg_to_bytes(svg_string=data.decode(), zoom=_SCALE))
