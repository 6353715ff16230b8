"""The charts of a page as files of their own, for slides: SVG, or PNG by CairoSVG or a Chromium that is there."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from graphlink import publish
from graphlink.errors import OutputError, UsageError
from graphlink.page.charts import svg
from graphlink.page.parts import Page, Picture, charts, flat

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SCALE: Final = 2  # pixels of a PNG for one of the chart
_MOST_S: Final = 60  # of the browser, for a picture


def pictures(page: Page) -> dict[str, bytes]:
    """Return the charts of a page as SVG files by name, with ``pipeline.svg`` as it is."""
    parts = [part for section in page.sections for part in section.parts]
    found = {f"{chart.name}.svg": svg(chart, alone=True).encode() for chart in charts(parts)}
    return {**found, **{f"{part.name}.svg": base64.b64decode(part.data) for part in flat(parts) if isinstance(part, Picture)}}


def write(files: dict[str, bytes], folder: Path, *, png: bool) -> list[str]:
    """Write pictures into a folder, which is made, and return their names; a file that has such a name is replaced.

    Raises:
        UsageError: nothing here makes PNG.
        OutputError: the folder cannot be written, or the browser fails.
    """
    names = []
    with publish.naming(folder, todo="make room, or name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            path = folder / (f"{name.removesuffix('.svg')}.png" if png else name)
            beside = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                beside.write_bytes(_png(data) if png else data)
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
            names.append(path.name)
    return names


def _png(data: bytes) -> bytes:
    try:
        import cairosvg
    except (ImportError, OSError):  # OSError: it is there, but the library cairo is not
        return _by_browser(data)
    made: bytes = cairosvg.svg2png(bytestring=data, scale=_SCALE)
    return made


def _by_browser(data: bytes) -> bytes:
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise UsageError("--png: nothing here makes PNG of SVG", todo="pip install 'graphlink[pictures]', install Chromium, or use --svg")
    head = data[: data.index(b">", data.index(b"<svg"))].decode()
    wide, high = (head.partition(f' {name}="')[2].partition('"')[0] for name in ("width", "height"))
    with tempfile.TemporaryDirectory(prefix="graphlink-") as temporary:
        source, target = Path(temporary) / "chart.svg", Path(temporary) / "chart.png"
        source.write_bytes(data)
        options = ["--headless", "--disable-gpu", "--hide-scrollbars", f"--force-device-scale-factor={_SCALE}"]
        options += [f"--user-data-dir={temporary}/profile", f"--window-size={round(float(wide))},{round(float(high))}"]
        options += ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []  # Chromium has none for root
        try:
            subprocess.run([browser, *options, f"--screenshot={target}", str(source)], check=True, capture_output=True, timeout=_MOST_S)
            return target.read_bytes()
        except (OSError, subprocess.SubprocessError):
            raise OutputError("made no picture", path=browser, todo="pip install 'graphlink[pictures]', or use --svg") from None
