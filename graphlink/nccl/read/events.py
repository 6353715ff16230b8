"""Begin and end events of a dump that is almost JSON: one event a line, an array that may be open, cut or hold C instead of JSON.

Repaired are only the known cases: enums, hexadecimal numbers and ``(nil)`` without quotes, a comma before the end, no ``]``, and the
empty object that some writers put last. Every other line that is no event is counted. A dump that another program has laid out anew
(several events on a line, or one on several lines) has to be valid JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import GenericAlias
from typing import Final, Generic, TypeVar

import msgspec
import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.nccl.read.lines import MOST_BYTES, Lines
from graphlink.read.source import Source, open_source
from graphlink.read.stream import ArrayReader, gc_paused

_HEAD_BYTES: Final = 1 << 16
_UNQUOTED: Final = re.compile(rb":[ \t]*(nccl[A-Za-z0-9]{1,40}|0[xX][0-9a-fA-F]{1,16}|\(nil\))(?=[ \t]*[,}])")
_SEVERAL: Final = re.compile(rb"\}[ \t]*,[ \t]*\{")
_NO_EVENT: Final = frozenset({b"", b"[", b"{}"})
_DAMAGED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

UNREADABLE: Final = "lines that are no event"
_CUT: Final = "a last line that is cut off"
_LONG: Final = f"lines longer than {MOST_BYTES >> 20} MB"

Row = TypeVar("Row")
_Value = TypeVar("_Value")


class EventFile(Generic[Row]):
    """Reads the dump at ``path`` once, as ``row_type``. ``events`` and ``left_out`` are whole when all blocks have been read.

    Memory is that of a block and of a line, at most a few MB, whatever the file holds.
    """

    def __init__(self, path: Path, row_type: type[Row]):
        self._path = path
        self._rows: msgspec.json.Decoder[list[Row]] = msgspec.json.Decoder(GenericAlias(list, (row_type,)))
        self._row = msgspec.json.Decoder(row_type)
        self._row_type = row_type
        self._last_is_bad = False
        self.events = 0
        self.left_out: Counter[str] = Counter()

    def blocks(self) -> Iterator[list[Row]]:
        """Events in file order. Raises InputError: the file cannot be read, or is laid out anew and no valid JSON."""
        with open_source(self._path) as source:
            head = source.read(_HEAD_BYTES)
        with open_source(self._path) as source, gc_paused():
            for rows in self._laid_out_anew(source) if self._is_anew(head) else self._by_line(source):
                self.events += len(rows)
                yield rows
        self.events += self.left_out.total()

    def _is_anew(self, head: bytes) -> bool:
        line = head.removeprefix(b"\xef\xbb\xbf").strip().removeprefix(b"[").lstrip().split(b"\n", 1)[0].strip()
        return self._event(line) is None and (line == b"{" or _SEVERAL.search(line) is not None)

    def _laid_out_anew(self, source: Source) -> Iterator[list[Row]]:
        for block in ArrayReader(source, ("traceEvents",), max_element_bytes=MOST_BYTES).blocks(self._row_type):
            self.left_out[UNREADABLE] += len(block.bad)
            yield [row for row in block.rows if row != self._row_type()]

    def _by_line(self, source: Source) -> Iterator[list[Row]]:
        lines = Lines(source)
        first = True
        for text in lines.blocks():
            if first:
                text, first = text.removeprefix(b"\xef\xbb\xbf"), False
            yield self._events(text)
        if lines.too_long:
            self.left_out[_LONG] += lines.too_long
        if lines.cut and self._last_is_bad:
            self.left_out[UNREADABLE] -= 1
            self.left_out[_CUT] += 1

    def _events(self, text: bytes) -> list[Row]:
        """Of whole lines: at once where they are all as they should be, else one by one."""
        self._last_is_bad = False
        body = _bare(_bare(text.lstrip().removeprefix(b"[")).removesuffix(b"{}"))
        every = _decoded(self._rows, b"[" + body + b"]")
        if every is not None:
            return every
        rows = []
        for line in map(_bare, text.split(b"\n")):
            row = None if line in _NO_EVENT else self._event(line)
            if row is not None:
                rows.append(row)
            if line:
                self._last_is_bad = row is None and line not in _NO_EVENT
                self.left_out[UNREADABLE] += self._last_is_bad
        return rows

    def _event(self, line: bytes) -> Row | None:
        return _decoded(self._row, _bare(line.removeprefix(b"[")))


def _decoded(decoder: msgspec.json.Decoder[_Value], text: bytes) -> _Value | None:
    """What ``text`` says, if need be with quotes around what C printed bare; None where it is still no JSON."""
    with suppress(*_DAMAGED):
        return decoder.decode(text)
    with suppress(*_DAMAGED):
        return decoder.decode(_UNQUOTED.sub(rb': "\1"', text))
    return None


def _bare(text: bytes) -> bytes:
    """Without what may follow the last event: space, the bracket that closes the array, a comma."""
    return text.strip().removesuffix(b"]").rstrip().removesuffix(b",").rstrip()


def ends_of(category: I32, name: I32, ident: I64, begins: Bool, ends: Bool) -> I64:
    """Of each begin the position of its end, else ``NOWHERE``: the next event of its category, name and id, if that is an end.

    Identifiers repeat in these files, so order is what pairs. One sort.
    """
    order = np.lexsort((ident, name, category))  # stable: file order inside a key
    order = order[(begins | ends)[order]]
    before, after = order[:-1], order[1:]
    same = (category[before] == category[after]) & (name[before] == name[after]) & (ident[before] == ident[after])
    paired = same & begins[before] & ends[after]
    end = np.full(len(category), NOWHERE, np.int64)
    end[before[paired]] = after[paired]
    return end


def inside(begins: I64, end: I64, at: I64) -> I64:
    """Of each position in ``at`` the row of the last of ``begins`` (ascending) before it if that has not ended there, else ``NOWHERE``.

    ``end`` is that of ``ends_of`` for ``begins``; one without an end lasts until the next begins.
    """
    if not len(begins):
        return np.full(len(at), NOWHERE, np.int64)
    row = np.searchsorted(begins, at, side="right") - 1
    last = np.where(end == NOWHERE, np.iinfo(np.int64).max, end)
    return np.where((row >= 0) & (at < last[row]), row, NOWHERE)
