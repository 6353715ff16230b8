"""The tables of docs/ that are made: ``make generated`` writes them anew, from what fields of records and modules say.

A table stands between two comments. ``<!-- exported: NAME -->`` begins the columns of a table of ``graphlink export``,
``<!-- figures: MODULE:RECORD NAME ... -->`` figures of a record, as fields (``figures``) or as a terminal has them
(``columns``), ``<!-- modules: FOLDER -->`` what each module below that folder is for, ``<!-- rules: SECTION -->`` rules
of ``graphlink check``; ``<!-- end -->`` ends each.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from msgspec import UnsetType

from graphlink.astra.check_rules import SECTIONS
from graphlink.figures import Column, all_names, declared, types
from graphlink.graph.gains import FamilyGain
from graphlink.run.tables import FAMILIES, column_name
from graphlink.wings import RowTable, provided

MARKED: Final = re.compile(r"(<!-- (exported|figures|columns|modules|rules): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
BETWEEN: Final = {"path": ", with `/` between them", "list": ", with `, ` between them"}  # of texts that are one cell
MOST_WORDS: Final = 5  # of a field that has one of some words


def exported(name: str) -> Iterator[str]:
    """Yield the rows of a table of ``graphlink export``."""
    table: RowTable = RowTable(FamilyGain, FAMILIES, lambda *_: ()) if name == "gains" else provided("tables", name)
    yield "| column | type | |"
    yield "| --- | --- | --- |"
    if not table.of_run:
        yield "| `rank` | int64 | |"
    for figure in all_names(table.record, table.figures):
        shown = declared(table.record, str(figure))
        text = f"{shown.text or words(shown)}{BETWEEN.get(shown.unit, '')}"
        yield f"| `{column_name(str(figure))}` | {column_type(shown)} | {text} |".replace("|  |", "| |")


def column_type(shown: Column) -> str:
    """Return the type of a column; with ``?`` where a row may have none."""
    kind, *others = types(shown.type)
    name = {int: "int64", float: "double"}.get(kind, "string")
    return f"{name}{'?' * bool({NoneType, UnsetType} & {*others})}"


def words(shown: Column) -> str:
    """Return the words of which a field has one, where they are few."""
    kind = types(shown.type)[0]
    every = [f"`{word}`" for word in get_args(kind)] if get_origin(kind) is Literal else []
    return f"{', '.join(every[:-1])} or {every[-1]}" if 1 < len(every) <= MOST_WORDS else ""


def figures(where: str, head: str) -> Iterator[str]:
    """Yield the rows of a table of figures: ``where`` is MODULE:RECORD and their names."""
    place, *names = where.split()
    module, _, record = place.partition(":")
    kind: Any = getattr(import_module(module), record)
    yield f"| {head.removesuffix('s')} | what it is |"
    yield "| --- | --- |"
    for name in names:
        shown = declared(kind, name)
        yield f"| {shown.head if head == 'columns' else f'`{name}`'} | {shown.text} |"


def modules(folder: str) -> Iterator[str]:
    """Yield the modules below a folder, each with the first sentence of its docstring."""
    yield "| module | what it is for |"
    yield "| --- | --- |"
    root = Path(__file__).parents[1]
    for path in sorted((root / folder).rglob("*.py")):
        text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
        if text and path.name not in ("__init__.py", "__main__.py"):
            first = re.split(r"(?<=[.:])\s(?=[A-Z])", text)[0].rstrip(".").replace("``", "`").replace("|", "\\|")
            yield f"| `{path.relative_to(root / folder)}` | {first} |"


def rules(section: str) -> Iterator[str]:
    """Yield the rules of a section of ``graphlink check``."""
    yield "| rule | grade | found | do | ASTRA-sim of 2026 | of 2024 | known from |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for rule in SECTIONS[section]:
        cells = (f"`{rule.key}`", rule.grade, rule.what, rule.todo, rule.head, rule.legacy, rule.known_from)
        yield f"| {' | '.join(cells)} |"


def made(page: str) -> str:
    """Return a page with its tables of figures made anew."""

    def anew(found: re.Match[str]) -> str:
        begin, sort, which, end = found.groups()
        rows = {"exported": exported, "modules": modules, "rules": rules}.get(sort, partial(figures, head=sort))(which)
        return begin + "".join(f"{row}\n" for row in rows) + end

    return MARKED.sub(anew, page)


def main(folder: Path) -> None:
    """Write the tables of all pages of ``folder``."""
    for path in sorted(folder.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (new := made(page)) != page:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
