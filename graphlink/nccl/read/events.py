"""Begin and end events of a dump that is almost JSON: one event per line, an array that may be open, cut or hold C
instead of JSON.

Repaired are only the known cases: enums, hexadecimal numbers and ``(nil)`` without quotes, a comma before the end, no
``]``, and the empty object that some writers put last. Every other line that is no event is counted. A dump that
another program has laid out anew (several events on a line, or one on several lines) has to be valid JSON.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from graphlink.errors import InputError
from graphlink.model import I32, I64, NOWHERE, U8, Bool
from graphlink.nccl.read.names import times
from graphlink.nccl.read.records import ProxySteps, table
from graphlink.process import gc_paused
from graphlink.read.columns import Columns, Parts, Strings, ints
from graphlink.read.source import Source, open_source
from graphlink.read.stream import ArrayReader
from graphlink.spans import Spans, holding
from graphlink.tables import MOST, ValueT, in_order, numbered_rows, spread, successive, tuples

BLOCK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1 << 20  # of a line
_DAMAGED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
LONG: Final = f"lines longer than {MOST_BYTES >> 20} MB"
CUT: Final = "a last line that is cut off"
_UNREADABLE: Final = "lines that are no event"

_HEAD_BYTES: Final = 1 << 16
_UNQUOTED: Final = re.compile(rb":[ \t]*(nccl[A-Za-z0-9]{1,40}|0[xX][0-9a-fA-F]{1,16}|\(nil\))(?=[ \t]*[,}])")
_SEVERAL: Final = re.compile(rb"\}[ \t]*,[ \t]*\{")
_NO_EVENT: Final = frozenset({b"", b"[", b"{}"})
_BEGIN, _END, _OTHER = range(3)
_PHASES: Final = {"b": _BEGIN, "e": _END}


class PluginEvent(msgspec.Struct, gc=False, rename="camel"):
    name: str = ""
    cat: str = ""
    ph: str = ""
    id: Any = None
    pid: Any = None
    ts: Any = None
    args: dict[str, Any] | None = None
    total_channels: Any = None  # these three: proxy profiler
    collective_name: Any = None
    proto: Any = None


_EVENT: Final = msgspec.json.Decoder(PluginEvent)
_EVENTS: Final = msgspec.json.Decoder(list[PluginEvent])
_NO_EVENTS: Final = PluginEvent()
Args = dict[str, Any]  # the arguments of an event, by the names that the dump has for them
Fill = Callable[[list[PluginEvent], list[Args]], Columns]  # what begins of one sort, and their arguments, say


def said(args: list[Args], key: str) -> list[Any]:
    """Return what arguments have under a key, None where they have not."""
    return [of_event.get(key) for of_event in args]


def lines(source: Source, left_out: Counter[str]) -> Iterator[tuple[bytes, bool]]:
    """Yield complete lines, up to about ``BLOCK_BYTES`` of them at a time, and whether they are the last one, without
    its end.

    Memory is bounded: lines of more than ``MOST_BYTES`` are passed over and counted as left out.
    """
    rest, skips = source.read(len(BOM_UTF8)).removeprefix(BOM_UTF8), False
    while text := source.read(BLOCK_BYTES):
        if skips:
            _, found, text = text.partition(b"\n")
            skips = not found
        text = rest + text
        end = text.rfind(b"\n") + 1
        if end:
            yield text[:end], False
        rest = text[end:]
        if len(rest) > MOST_BYTES:
            left_out[LONG] += 1
            rest, skips = b"", True
    if rest:
        yield rest, True


def _blocks(path: Path, left_out: Counter[str]) -> Iterator[list[PluginEvent]]:
    """Yield the events of a dump in file order; count lines that are none. Memory is that of a block and of a line, at
    most a few MB.

    Raises:
        InputError: the file cannot be read, or is laid out anew and no valid JSON.
    """
    with open_source(path) as source:
        head = source.read(_HEAD_BYTES)
    with open_source(path) as source, gc_paused():
        if _is_anew(head):
            for block in ArrayReader(source, ("traceEvents",), max_element_bytes=MOST_BYTES).blocks(PluginEvent):
                left_out[_UNREADABLE] += len(block.bad)
                yield [row for row in block.rows if row != _NO_EVENTS]
            return
        for text, cut in lines(source, left_out):
            rows, damaged = _events(text)
            left_out[CUT if cut else _UNREADABLE] += damaged
            yield rows


def _events(text: bytes) -> tuple[list[PluginEvent], int]:
    """Decode complete lines, at once where they are all as they should be, else one by one; return also how many are
    damaged.
    """
    every = _decoded(_EVENTS, b"[" + _bare(_bare(text.lstrip().removeprefix(b"[")).removesuffix(b"{}")) + b"]")
    if every is not None:
        return every, 0
    some = [line for line in map(_bare, text.split(b"\n")) if line not in _NO_EVENT]
    rows = [row for line in some if (row := _event(line)) is not None]
    return rows, len(some) - len(rows)


def _is_anew(head: bytes) -> bool:
    line = head.removeprefix(BOM_UTF8).strip().removeprefix(b"[").lstrip().split(b"\n", 1)[0].strip()
    return _event(line) is None and (line == b"{" or _SEVERAL.search(line) is not None)


def _event(line: bytes) -> PluginEvent | None:
    return _decoded(_EVENT, _bare(line.removeprefix(b"[")))


def _decoded(decoder: msgspec.json.Decoder[ValueT], text: bytes) -> ValueT | None:
    """Decode ``text``, if need be with quotes around what C printed bare; None where it is still no JSON."""
    value = decoded(decoder, text)
    return decoded(decoder, _UNQUOTED.sub(rb': "\1"', text)) if value is None else value


def decoded(decoder: msgspec.json.Decoder[ValueT], text: bytes) -> ValueT | None:
    """Decode ``text``; None where it is none of what the decoder reads."""
    with suppress(*_DAMAGED):
        return decoder.decode(text)
    return None


def _bare(text: bytes) -> bytes:
    """Strip what may follow the last event: space, the bracket that closes the array, a comma."""
    return text.strip().removesuffix(b"]").rstrip().removesuffix(b",").rstrip()


class EventTables:
    """All events of a dump in columns, and a table of each sort of begins; at the end each event is in a table or
    counted as left out.

    Events are given by their positions; a begin stands for its end too. ``ns`` = 0 where no time was recorded, ``end``
    as in ``ends_of``. ``at``: the events of each table. InputError: the file cannot be read, or is a dump of ``what``
    that holds no event at all.
    """

    def __init__(
        self, path: Path, sort_of: Callable[[PluginEvent], str | None], fill: Mapping[str, Fill], what: str, todo: str
    ):
        self._sort_of, self._fill = sort_of, fill
        self._left_out: Counter[str] = Counter()
        self._backwards = 0
        found, words, parts = Parts(), Strings(), {sort: Parts() for sort in fill}
        for rows in chain([[]], _blocks(path, self._left_out)):  # first none, so that each table has its columns
            self._add(rows, found, words, parts)
        if not found.count:
            raise InputError(f"is a dump of {what} without events", path=path, todo=todo)
        self.events = found.count + self._left_out.total()
        self._words = list(words)
        self.at = {sort: part.column("at") for sort, part in parts.items()}
        self.columns = {sort: part.columns() for sort, part in parts.items()}
        self._category, self._name, self.ident, self.pid, self.ns, self._phase = (
            found.column(name) for name in ("category", "name", "ident", "pid", "ns", "phase")
        )
        self.end = ends_of(self._category, self._name, self.ident, self._phase == _BEGIN, self._phase == _END)
        self._done = np.zeros(len(self.ns), np.bool_)

    def _add(self, rows: list[PluginEvent], found: Parts, words: Strings, parts: Mapping[str, Parts]) -> None:
        first = found.count
        found.add(
            category=words.column([row.cat for row in rows]),
            name=words.column([row.name for row in rows]),
            ident=ints([row.id for row in rows]),
            pid=ints([row.pid for row in rows], NOWHERE),
            ns=times([row.ts for row in rows]),
            phase=np.array([_PHASES.get(row.ph, _OTHER) for row in rows], np.uint8),
        )
        places: dict[str, list[int]] = {sort: [] for sort in parts}
        for place, row in enumerate(rows):
            if row.ph == "b" and (sort := self._sort_of(row)) is not None:
                places[sort].append(place)
        for sort, of_sort in places.items():
            some = [rows[place] for place in of_sort]
            columns = self._fill[sort](some, [row.args or {} for row in some])
            parts[sort].add(at=np.array(of_sort, np.int64) + first, **columns)

    def around(self, outer: str, inner: str) -> I64:
        """Return for each event of the table ``inner`` the row of ``outer`` that it is in, else ``NOWHERE``."""
        return inside(self.at[outer], self.end[self.at[outer]], self.at[inner])

    def keep(self, at: I64) -> dict[str, I64]:
        """Take begins into a table; return their columns of times. An end before its begin is 0, and warned of."""
        start, end = self.ns[at], self._ends(at)
        wrong = (end != 0) & (end < start)
        self._backwards += int(wrong.sum())
        self._finish(at)
        return {"start_ns": start, "end_ns": np.where(wrong, 0, end)}

    def leave(self, at: I64, reason: str) -> None:
        """Leave begins out that have not been dealt with yet."""
        self._left_out[reason] += self._finish(at)

    def steps(self, at: I64, proxy: I64, step: I64, state: U8) -> ProxySteps:
        """Return the table of steps, by start, then end, from their begins and columns; those that it cannot hold are
        left out.
        """
        start, end = self.ns[at], self._ends(at)
        for wrong, reason in (
            ((start == 0) | (end == 0), "steps without a time"),
            (end < start, "steps that end before they begin"),
            (proxy == NOWHERE, "steps of no proxy op"),
        ):
            self.leave(at[wrong], reason)
        kept = in_order(np.flatnonzero(~self._done[at]), start, end)
        return table(
            ProxySteps, len(kept), **self.keep(at[kept]), proxy=proxy[kept], step=step[kept], state=state[kept]
        )

    def left_out(self, label: Callable[[str, str], str]) -> dict[str, int]:
        """Leave out what is in no table yet, by ``label`` of its category and name; return all counts by reason."""
        lone = (self._phase == _END) & ~self._done
        lone[self.end[self.end != NOWHERE]] = False
        self.leave(np.flatnonzero(lone), "ends without a begin")
        self.leave(np.flatnonzero(self._phase == _OTHER), "neither begin nor end")
        rest = np.flatnonzero(~self._done)
        pairs, of_event = numbered_rows(self._category[rest], self._name[rest])
        for (category, name), count in tuples(pairs, np.bincount(of_event)):
            self._left_out[label(self._words[category], self._words[name])] += count
        return dict(+self._left_out)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings of events without an end, and of ends that are not used."""
        unended = int(((self._phase == _BEGIN) & (self.end == NOWHERE)).sum())
        return (
            *([f"{unended} events have no end: the dump was cut, or written while they ran"] if unended else []),
            *([f"{self._backwards} events end before they begin: their ends are not used"] if self._backwards else []),
        )

    def _ends(self, at: I64) -> I64:
        end = self.end[at]
        return np.where(end == NOWHERE, 0, self.ns[end])

    def _finish(self, at: I64) -> int:
        end = self.end[at]
        every = np.concatenate([at, end[end != NOWHERE]])
        fresh = every[~self._done[every]]
        self._done[fresh] = True
        return len(fresh)


def ends_of(category: I32, name: I32, ident: I64, begins: Bool, ends: Bool) -> I64:
    """Return the position of the end of each begin, else ``NOWHERE``: the next event of its category, name and id, if
    that is an end.

    Identifiers repeat in these files, so order is what pairs. One sort.
    """
    order = np.lexsort((ident, name, category))  # stable: file order inside a key
    order = order[(begins | ends)[order]]
    before, after = successive(order, category, name, ident)
    paired = begins[before] & ends[after]
    return spread(len(category), before[paired], after[paired])


def inside(begins: I64, end: I64, at: I64) -> I64:
    """Return for each position in ``at`` the row of the last of ``begins`` (ascending) that has not ended there, else
    ``NOWHERE``.

    ``end`` is that of ``ends_of`` for ``begins``; one without an end lasts until the next begins.
    """
    return holding(Spans(begins, np.where(end == NOWHERE, MOST, end)), at)
