"""Pages as HTML: one file with its style and script inside, which may load nothing from anywhere.

Their charts are written as files of their own, too, for slides: SVG, or PNG by a library that is there.

All text is escaped, and what does not print is spelled out (``records.plain``), on the page as on the terminal.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup

from graphlink import publish
from graphlink.errors import UsageError
from graphlink.page.charts import LOOKS, STYLE, defs, fills, legend_of, rules, svg
from graphlink.page.parts import Page, Picture, Table, charts, flat
from graphlink.records import plain

_WRAPS: Final = 30  # characters of a cell that has a line of its own
_DARK: Final = ":root[data-theme=dark] "


def html(page: Page) -> str:
    """Return the page as one file."""
    parts = [part for section in page.sections for part in section.parts]
    keys, style, script = sorted(LOOKS), _text("page.css"), _text("page.js")
    automatic = (
        f"@media (prefers-color-scheme:dark){{{rules(keys, dark=True, scope=':root:not([data-theme=light]) ')}}}"
    )
    sheet = "\n".join(
        [
            style,
            STYLE,
            rules(keys, dark=False),
            automatic,
            rules(keys, dark=True, scope=_DARK),
            fills(keys),
        ]
    )
    sheet = f"{sheet}\n@media print{{{rules(keys, dark=False, scope=':root:root ')}}}\n"
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            style=Markup(sheet),
            script=Markup(script),
            policy=_policy(sheet, script, any(isinstance(part, Picture) for part in flat(parts))),
            patterns=Markup(defs(keys)),
        )
    )


def _policy(sheet: str, script: str, pictures: bool) -> str:
    """Return the Content-Security-Policy: this style and this script, pictures inside the file, and nothing else."""
    style, code = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (sheet, script))
    images = "img-src data:; " if pictures else ""
    return (
        f"default-src 'none'; {images}style-src 'sha256-{style}'; script-src 'sha256-{code}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("graphlink.page"),
        autoescape=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(
        svg=lambda chart, narrow=False: Markup(svg(chart, narrow=narrow)),
        kind=lambda part: "str" if isinstance(part, str) else str(type(part).__struct_config__.tag),
        legend=legend_of,
        sides=_sides,
    )
    return environment


def _sides(table: Table) -> list[str]:
    """Return the class of each column: numbers stand to the right, long texts wrap."""
    longest = [max((len(row.cells[k].text) for row in table.rows), default=0) for k in range(len(table.columns))]
    return [
        "n" if column.sort != "text" else "w" if long > _WRAPS else ""
        for column, long in zip(table.columns, longest, strict=True)
    ]


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
    try:
        import resvg_py
    except ImportError:
        raise UsageError(
            "--png: needs the library resvg-py", todo="pip install '.[pictures]' in a clone of graphlink, or use --svg"
        ) from None
    return {
        f"{name.removesuffix('.svg')}.png": bytes(resvg_py.svg_to_bytes(svg_string=data.decode(), zoom=_SCALE))
        for name, data in files.items()
    }


def write(files: dict[str, bytes], folder: Path) -> None:
    """Write files into a folder, which is made; what has such a name there is replaced.

    Raises:
        OutputError: the folder cannot be written.
    """
    with publish.naming(folder, todo="make room, or name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            publish.write_anew(folder / name, data)
