"""Figures: what a field is called, what it means and how it is written, declared once, where the field is.

``Annotated[int, figure("device", "Sum over ...")]`` declares a field; a property, whose figure follows from fields, is
declared by what it returns. A name says the rest: ``_ns`` is a time, ``_bytes`` a size. A table is a list of columns:
``table`` shows it on a terminal, ``page.words`` on a page, ``run.tables`` as a data frame, docs/tables.py in docs/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET

from graphlink.records import (
    Table,
    amount,
    apart,
    first_few,
    in_function,
    ms,
    percent,
    share_word,
    short_path,
    shortened,
    signed,
    size,
    time,
    times,
)

_TITLES: Final = {"ns": "time", "duration_ns": "time", "whole_ns": "time", "wait_ns": "waited"}
_NUMBERING: Final = frozenset({"rank", "device", "stream", "stage", "step", "id", "node"})  # these count nothing


class Unit(NamedTuple):
    """How a value is written: on a terminal, on a page (None: likewise), and all of what these shorten."""

    text: Callable[[Any], str]
    page: Callable[[Any], str] | None = None
    whole: Callable[[Any], str] | None = None


UNITS: Final = {  # a field that has one of these names, or ends with one behind ``_``, has that unit
    "ns": Unit(ms, time),
    "us": Unit(lambda ns: f"{ns / 1e3:,.1f}", time),
    "signed": Unit(lambda ns: f"{ns / 1e6:+,.3f}", signed),  # ns, as a difference
    "factor": Unit(times),
    "pct": Unit("{:+.1f} %".format),
    "bytes": Unit("{:,}".format, size),
    "rate": Unit("{:,}".format, lambda rate: f"{size(rate)}/s"),  # bytes per second
    "count": Unit("{:,}".format),
    "number": Unit(str),
    "part": Unit(lambda pair: percent(*pair)),  # and its whole
    "of all": Unit(lambda pair: "{:,} of {:,}".format(*pair)),
    "ratio": Unit("{:.4f}".format),
    "mean": Unit("{:.3g}".format),  # in the unit that the name of a counter says
    "of one": Unit(lambda share: percent(share, 1)),
    "about": Unit(amount),
    "place": Unit(ms, time),  # in the timeline
    "word": Unit(str),
    "cause": Unit(str),
    "share": Unit(share_word),  # of a path
    "text": Unit(shortened, whole=str),
    "kernel": Unit(lambda kernel: shortened(kernel.name), whole=attrgetter("whole_name")),
    "longest_kernel": Unit(lambda kernel: shortened(kernel.name, 48), whole=attrgetter("whole_name")),
    "path": Unit(short_path, whole="/".join),
    "stack": Unit(  # a terminal has the whole path, by which the file opens
        lambda stack: in_function(stack[-1]) if stack else "",
        lambda stack: shortened(in_function(stack[-1])) if stack else "",
        " > ".join,
    ),
    "list": Unit(lambda texts: first_few(texts, 3), lambda texts: ", ".join(texts[:3]), ", ".join),
    "numbers": Unit(lambda numbers: first_few(numbers, 6), whole=lambda numbers: ", ".join(map(str, numbers))),
}
REWORDED: Final = ("share", "of all", *(name for name, unit in UNITS.items() if unit.whole))  # not as stored
WORDS: Final = ("word", "cause", *REWORDED)  # the others are numbers
_KINDS: Final = {int: "count", float: "of one", tuple: "part", Literal: "word"}


class Column(NamedTuple):
    """A field (``name``, with the fields that lead to it: ``clock/offset_ns``), or what is none of a file (""), and its
    values in the rows of a table.

    ``title``: what it is called on a page; ``head``: on a terminal; ``text``: in a sentence. ``unit``: a key of
    ``UNITS``. ``means``: key of what it means on a page, which is its text where ``page.words`` has none. ``spare``:
    the column with the least, from 1, is the first for which a terminal may be too narrow; 0: never. ``everywhere``: it
    is in all tables of its record, behind what they name. ``type``: as annotated.
    """

    title: str
    unit: str
    values: Sequence[Any] = ()
    means: str = ""
    spare: int = 0
    head: str = ""
    text: str = ""
    name: str = ""
    everywhere: bool = False
    type: Any = None


def figure(title: str | None = None, text: str | None = None, **extra: str | int) -> msgspec.Meta:
    """Declare a field, as ``Column`` has it (``extra``: its other fields); what is left out its name and type say."""
    return msgspec.Meta(title=title, description=text, extra=extra)


@cache
def declared(record: type, name: str) -> Column:
    """Return what is declared of a field or property; ``a.b`` is ``b`` of the record in ``a``."""
    outer, _, inner = name.partition(".")
    getter = getattr(record, outer)
    derives = isinstance(getter, property)
    hint = get_type_hints(getter.fget if derives else record, include_extras=True)["return" if derives else outer]
    parts = types(hint)
    if inner:
        found = declared(parts[0], inner)
        return found._replace(name=found.name and f"{outer}/{found.name}")
    meta = [figure(), *(part for part in parts if isinstance(part, msgspec.Meta))][-1]
    title = meta.title or _TITLES.get(outer, outer.removesuffix("_ns").replace("_", " "))
    by_name = [unit for unit in (outer, outer.rpartition("_")[2]) if unit in UNITS]
    unit = "number" if outer in _NUMBERING else [*by_name, _KINDS.get(get_origin(parts[0]) or parts[0], "text")][0]
    known = {"unit": unit, "text": meta.description or "", "name": "" if derives else outer, "type": hint}
    return column(title, **{**known, **(meta.extra or {})})


def types(hint: Any) -> list[Any]:
    """Return what an annotation is made of, without ``Annotated`` and unions."""
    if get_origin(hint) in (None, list, dict, tuple, Literal):
        return [hint]
    return [part for argument in get_args(hint) for part in types(argument)]


def column(title: str, unit: str, values: Iterable[Any] = (), **others: Any) -> Column:
    """Return a column of what is no figure of the record of a row alone. ``others``: other fields of ``Column``."""
    head = f"{title} {unit.replace('ns', 'ms')}".removeprefix("time ") if unit in ("ns", "us") else title
    return Column(title, unit, [*values], **{"head": head, **others})


@cache
def _everywhere(record: type) -> tuple[str, ...]:
    names = [*get_type_hints(record), *(name for name, kept in vars(record).items() if isinstance(kept, property))]
    return tuple(name for name in names if declared(record, name).everywhere)


def all_names(record: type, names: Sequence[str | Column]) -> list[str | Column]:
    """Return the columns of a table of records, with those that are everywhere."""
    return [*names, *(name for name in _everywhere(record) if name not in names)]


def columns(record: type, rows: Sequence[Any], *names: str | Column) -> list[Column]:
    """Return the columns of these figures of rows that are all a ``record``, with other columns in their place."""
    return [
        declared(record, name)._replace(values=[*map(attrgetter(name), rows)]) if isinstance(name, str) else name
        for name in all_names(record, names)
    ]


def table(columns: Sequence[Column], *, indent: int = 2, whole: bool = False) -> Table:
    """Return columns for a terminal; ``whole``: with texts in full."""
    heads = [shown.head for shown in columns]
    sides = ["<" if shown.unit in WORDS else ">" for shown in columns]
    spare = sorted((shown.spare, shown.head) for shown in columns if shown.spare)
    rows = [*zip(*(_texts(shown, whole=whole) for shown in columns), strict=True)]
    return Table(rows, heads if any(heads) else (), "".join(sides), indent, [head for _, head in spare])


def _texts(shown: Column, *, whole: bool) -> list[str]:
    """Return the texts of a column; of kernels that differ, with names in which they do."""
    texts = [text(shown.unit, value, whole=whole) for value in shown.values]
    names = [getattr(value, "whole_name", "") for value in shown.values]
    return apart(names, dict(zip(names, texts, strict=True)).__getitem__) if any(names) and not whole else texts


def text(unit: str, value: Any, *, page: bool = False, whole: bool = False) -> str:
    """Write a value: on a terminal or a page, or ``whole``; "" where there is none."""
    ways = UNITS[unit]
    written = (whole and ways.whole) or (page and ways.page) or ways.text
    return "" if value is None or value is UNSET else written(value)
