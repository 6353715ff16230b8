"""The columns of a table in the width of a terminal: text wraps at words, and nothing is cut inside one without saying
so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from graphlink.records import Table

_SPACE: Final = 2  # between columns
_WORD: Final = (
    24  # a text column is no narrower than its longest word, but for longer ones: names in recordings run over hundreds
)
_LOST: Final = "..."
_NARROW: Final = 8  # where even so there is no room


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it is shown. ``width``: in cells of the terminal, None where all fits."""

    head: str
    cells: tuple[str, ...]
    right: bool
    width: int | None = None


def fitted(table: Table, width: int | None) -> list[Column]:
    """Return the columns of a table whose text is plain and that is ``width`` wide, indent included; None: as wide as
    it gets.

    Where it is too narrow, text columns wrap, the widest first; before one would be narrower than its words, columns
    that are ``spare`` are left out. Words that are still too long lose their middle, and columns for which there is no
    room at all are left out, the last one first.
    """
    count = max(map(len, [table.head, *table.rows]))
    heads, *rows = (
        [*(cell.rstrip(" ") for cell in row), *[""] * (count - len(row))] for row in (table.head, *table.rows)
    )
    sides = table.align.ljust(count, "<")
    columns = [Column(head, tuple(row[k] for row in rows), sides[k] == ">") for k, head in enumerate(heads)]
    if width is None:
        return columns
    room = width - table.indent
    for name in table.spare:
        if _taken([_least(column) for column in columns]) > room:
            columns = [column for column in columns if column.head != name]
    while len(columns) > 2 and _taken([_least(column, _NARROW) for column in columns]) > room:
        columns.pop()
    widths = [_cells((column.head, *column.cells)) for column in columns]
    for least in ([_least(column) for column in columns], [_least(column, _NARROW) for column in columns]):
        _narrow(widths, least, room)
    return [_as_wide(column, wide) for column, wide in zip(columns, widths, strict=True)]


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _SPACE * (len(widths) - 1)


def _least(column: Column, most: int = _WORD) -> int:
    """Return the least width of a column: of numbers all, of text its longest word."""
    words = [word for text in (column.head, *(() if column.right else column.cells)) for word in _words(text)]
    text = min(_cells(words), max(most, _cells(column.head.split(" "))))
    return max(text, _cells(column.cells)) if column.right else text


def _words(text: str) -> list[str]:
    """Return what a line may be broken between; an indent belongs to its first word."""
    body = text.lstrip(" ")
    first, *others = body.split(" ")
    return [text[: len(text) - len(body)] + first, *others]


def _cells(texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _narrow(widths: list[int], least: Sequence[int], room: int) -> None:
    """Take from the widest columns, in place, what is too much, down to the least widths."""
    while (more := _taken(widths) - room) > 0:
        some = [k for k, wide in enumerate(widths) if wide > least[k]]
        if not some:
            return
        widest = max(some, key=widths.__getitem__)
        others = max((widths[k] for k in some if k != widest), default=0)
        widths[widest] -= min(more, max(widths[widest] - max(others, least[widest]), 1))


def _as_wide(column: Column, wide: int) -> Column:
    """Return a column with its width, and without the middle of words that are longer."""
    return replace(
        column, cells=tuple(" ".join(_cut(word, wide) for word in _words(text)) for text in column.cells), width=wide
    )


def _cut(word: str, wide: int) -> str:
    """Return the two ends of a word that is too long."""
    if _cells((word,)) <= wide:
        return word
    for kept in range(wide - len(_LOST), 0, -1):  # fewer where characters are two cells wide
        head = kept - kept // 3
        text = word[:head] + _LOST + word[len(word) - (kept - head) :]
        if _cells((text,)) <= wide:
            return text
    return _LOST
