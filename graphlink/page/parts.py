"""What a page is made of, whatever it is about: sections of sentences, tables, charts and commands. ``graphlink report
--json`` writes it.

A figure and a cell keep the number behind their text (``value``: ns, bytes, a count, a share of 1) and where it stands:
``at`` is the file in the output folder and a JSON pointer into it (RFC 6901), as
``summary.json#/ranks/0/gpu/0/idle_ns``.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.read.document import Formatted
from graphlink.records import Short

Number = int | float
Sort = Literal["text", "number", "place"]


class Figure(msgspec.Struct, frozen=True, tag="figure"):
    """A number in a sentence, or, without ``value``, a name out of the recording. ``means``: a key of
    ``words.MEANINGS``.
    """

    text: str
    value: Number | None = None
    means: str = ""
    at: str = ""


Words = list[str | Figure]


class Sentence(msgspec.Struct, frozen=True, tag="sentence"):
    """A paragraph. ``note``: it says why something is not there, or what to know of it."""

    words: Words
    note: bool = False


class Cell(msgspec.Struct, frozen=True):
    """A cell. ``value``: by which it sorts; ``whole``: the text, where it was shortened; ``key``: of the colour beside
    it; ``place``: ns on the clock of the timeline, where the cell leads to a place there."""

    text: str
    value: Number | None = None
    whole: str = ""
    key: str = ""
    place: int | None = None


class Column(msgspec.Struct, frozen=True):
    """A column. ``field``: of the entry that ``Table.at`` and ``Row.at`` point to, "" where its cells are none of a
    file. ``text``: what it means, where that is not among the words of all pages.
    """

    name: str
    sort: Sort = "text"
    means: str = ""
    field: str = ""
    text: str | UnsetType = UNSET


class Row(msgspec.Struct, frozen=True):
    cells: list[Cell]
    at: str = ""


class Table(Short, msgspec.Struct, frozen=True, tag="table"):
    """A table that sorts by its columns and can be filtered. ``more``: what is not in it, and where that is."""

    name: str
    caption: str
    columns: list[Column]
    rows: list[Row]
    at: str = ""
    more: str = ""


class Segment(msgspec.Struct, frozen=True):
    key: str
    value: Number


class Bar(msgspec.Struct, frozen=True):
    label: str
    segments: list[Segment]
    note: str = ""


class Charted(Short, msgspec.Struct, frozen=True):
    """Name and words of a chart."""

    name: str
    title: str
    says: str


class Bars(Charted, frozen=True, tag="bars"):
    """Bars of one scale, one below the other, each of segments, those below zero to the left. ``says``: the chart in a
    sentence; ``unit``: ns, or 1 for shares."""

    bars: list[Bar]
    unit: Literal["ns", "share"] = "ns"


class StripCell(msgspec.Struct, frozen=True):
    """So many ``count`` of the ``Strip.cells`` from ``first`` on, in which a lane spends its time on ``segments`` (ns
    in each).
    """

    lane: int
    first: int
    count: int
    segments: list[Segment]


class Strip(Charted, msgspec.Struct, frozen=True, tag="strip"):
    """What held a run when: ``length_ns`` cut into ``cells`` of one length. Empty cells are in no entry. ``marks``: of
    each lane, when its steps began (ns)."""

    lanes: list[str]
    length_ns: int
    cells: int
    parts: list[StripCell]
    marks: list[list[int]] = []


class Heat(Charted, frozen=True, tag="heat"):
    """A number for each row and column, ``None`` where there is none: darker is more. ``unit`` as in ``Bars``."""

    rows: list[str]
    columns: list[str]
    across: str  # what columns are
    values: list[list[Number | None]]
    unit: Literal["ns", "share"] = "ns"


class Proposal(msgspec.Struct, frozen=True):
    """Something to change. ``rows``: name and text of what is known of it; ``command``: computes its gain again."""

    heading: Words
    rows: list[tuple[str, str]]
    command: str = ""


class Proposals(msgspec.Struct, frozen=True, tag="proposals"):
    items: list[Proposal]


class Picture(msgspec.Struct, frozen=True, tag="picture"):
    """An SVG file that is shown as it is; ``data``: its text in base64."""

    name: str
    says: str
    data: str


class Folded(msgspec.Struct, frozen=True, tag="folded"):
    """Parts that can be folded away."""

    title: str
    parts: list[Part]
    open: bool = True


Chart = Bars | Strip | Heat
Part = Sentence | Table | Bars | Strip | Heat | Proposals | Picture | Folded


class Section(Short, msgspec.Struct, frozen=True):
    name: str
    title: str
    parts: list[Part]


class Meaning(msgspec.Struct, frozen=True):
    name: str
    title: str
    text: str


class Page(Formatted, frozen=True, kw_only=True):
    """A page: ``lead`` are the sentences at its top, ``meanings`` what its figures are."""

    title: str
    about: str
    lead: list[Sentence]
    sections: list[Section]
    meanings: list[Meaning]


def flat(parts: list[Part]) -> list[Part]:
    """Return parts with those that are folded into them in their place."""
    return [inner for part in parts for inner in (flat(part.parts) if isinstance(part, Folded) else [part])]


def charts(parts: list[Part]) -> list[Chart]:
    """Return the charts among parts, in order."""
    return [part for part in flat(parts) if isinstance(part, Chart)]
