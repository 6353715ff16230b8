"""Pages as HTML: one file with its style and script inside, which may load nothing from anywhere.

All text is escaped, and what does not print is spelled out (``records.plain``), on the page as on the terminal.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup

from graphlink.page import charts, look
from graphlink.page.parts import Chart, Page, Picture, Table, flat
from graphlink.records import plain

_WRAPS: Final = 30  # characters of a cell that has a line of its own
_DARK: Final = ":root[data-theme=dark] "


def html(page: Page) -> str:
    """Return the page as one file."""
    parts = [part for section in page.sections for part in section.parts]
    keys, style, script = sorted(look.LOOKS), _text("page.css"), _text("page.js")
    automatic = (
        f"@media (prefers-color-scheme:dark){{{look.rules(keys, dark=True, scope=':root:not([data-theme=light]) ')}}}"
    )
    sheet = "\n".join(
        [
            style,
            charts.STYLE,
            look.rules(keys, dark=False),
            automatic,
            look.rules(keys, dark=True, scope=_DARK),
            look.fills(keys),
        ]
    )
    sheet = f"{sheet}\n@media print{{{look.rules(keys, dark=False, scope=':root:root ')}}}\n"
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            style=Markup(sheet),
            script=Markup(script),
            policy=_policy(sheet, script, any(isinstance(part, Picture) for part in flat(parts))),
            patterns=Markup(look.defs(keys)),
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
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(svg=_svg, kind=_kind, sides=_sides)
    return environment


def _shown(value: Any) -> Any:
    return plain(value) if type(value) is str else value


def _svg(chart: Chart) -> Markup:
    return Markup(charts.svg(chart))


def _kind(part: Any) -> str:
    return "str" if isinstance(part, str) else str(type(part).__struct_config__.tag)


def _sides(table: Table) -> list[str]:
    """Return the class of each column: numbers stand to the right, long texts wrap."""
    longest = [max((len(row.cells[k].text) for row in table.rows), default=0) for k in range(len(table.columns))]
    return [
        "n" if column.sort != "text" else "w" if long > _WRAPS else ""
        for column, long in zip(table.columns, longest, strict=True)
    ]
