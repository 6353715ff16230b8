"""Begin and end events of a dump that is almost JSON: one event a line, an array that may be open, cut or hold C instead of JSON.

Repaired are only the known cases: enums, hexadecimal numbers and ``(nil)`` without quotes, a comma before the end, no ``]``, and the
empty object that some writers put last. Every other line that is no event is counted. A dump that another program has laid out anew
(several events on a line, or one on several lines) has to be valid JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.nccl.read.names import narrow, natural, times
from graphlink.read.columns import Parts, Strings, ints
from graphlink.read.source import Source, open_source
from graphlink.read.stream import ArrayReader, gc_paused

BLOCK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1 << 20  # of a line
DAMAGED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
LONG: Final = f"lines longer than {MOST_BYTES >> 20} MB"
CUT: Final = "a last line that is cut off"
_UNREADABLE: Final = "lines that are no event"

_HEAD_BYTES: Final = 1 << 16
_UNQUOTED: Final = re.compile(rb":[ \t]*(nccl[A-Za-z0-9]{1,40}|0[xX][0-9a-fA-F]{1,16}|\(nil\))(?=[ \t]*[,}])")
_SEVERAL: Final = re.compile(rb"\}[ \t]*,[ \t]*\{")
_NO_EVENT: Final = frozenset({b"", b"[", b"{}"})
_BEGIN, _END, _OTHER = range(3)
_PHASES: Final = {"b": _BEGIN, "e": _END}

Columns = dict[str, NDArray[Any]]
_Value = TypeVar("_Value")


class Args(msgspec.Struct, gc=False, rename="pascal"):
    """Arguments of events of the example plugin; the last two of the proxy profiler."""

    seq_num: Any = None
    comm_hash: Any = None
    rank: Any = None
    peer: Any = None
    count: Any = None
    datatype: Any = None
    algorithm: Any = None
    protocol: Any = None
    n_channels: Any = msgspec.field(name="nChannels", default=None)
    n_max_channels: Any = msgspec.field(name="nMaxChannels", default=None)  # NCCL 2.23
    stream: Any = None
    channel: Any = None
    start_gpu_clk: Any = None
    stop_gpu_clk: Any = None
    trans_size: Any = msgspec.field(name="transSize", default=None)
    step: Any = None
    op_count: Any = msgspec.field(name="opCount", default=None)
    proxy_op_index: Any = msgspec.field(name="proxyOpIndex", default=None)


class Event(msgspec.Struct, gc=False, rename="camel"):
    name: str = ""
    cat: str = ""
    ph: str = ""
    id: Any = None
    pid: Any = None
    ts: Any = None
    args: Args | None = None
    total_channels: Any = None  # these three: proxy profiler
    collective_name: Any = None
    proto: Any = None


_EVENT: Final = msgspec.json.Decoder(Event)
_EVENTS: Final = msgspec.json.Decoder(list[Event])
_NO_EVENTS: Final = Event()
_NO_ARGS: Final = Args()


class Lines:
    """Reads a source once, in bounded memory. ``too_long`` lines were passed over; ``cut`` is whether the last line has no end."""

    def __init__(self, source: Source):
        self._source = source
        self.too_long = 0
        self.cut = False

    def blocks(self) -> Iterator[bytes]:
        """Yield complete lines, up to about ``BLOCK_BYTES`` of them at a time."""
        rest, skips = b"", False
        while text := self._source.read(BLOCK_BYTES):
            if skips:
                begin = text.find(b"\n") + 1
                if not begin:
                    continue
                text, skips = text[begin:], False
            text = rest + text
            end = text.rfind(b"\n") + 1
            if end:
                yield text[:end]
            rest = text[end:]
            if len(rest) > MOST_BYTES:
                self.too_long += 1
                rest, skips = b"", True
        self.cut = bool(rest) or skips
        if rest:
            yield rest


class EventFile:
    """Reads the dump at ``path`` once. ``count`` and ``left_out`` are complete when all blocks have been read.

    Memory is that of a block and of a line, at most a few MB, whatever the file holds.
    """

    def __init__(self, path: Path):
        self._path = path
        self._last_is_bad = False
        self.count = 0
        self.left_out: Counter[str] = Counter()

    def blocks(self) -> Iterator[list[Event]]:
        """Yield events in file order. Raises InputError: the file cannot be read, or is laid out anew and no valid JSON."""
        with open_source(self._path) as source:
            head = source.read(_HEAD_BYTES)
        with open_source(self._path) as source, gc_paused():
            for rows in self._laid_out_anew(source) if _is_anew(head) else self._by_line(source):
                self.count += len(rows)
                yield rows
        self.count += self.left_out.total()

    def _laid_out_anew(self, source: Source) -> Iterator[list[Event]]:
        for block in ArrayReader(source, ("traceEvents",), max_element_bytes=MOST_BYTES).blocks(Event):
            self.left_out[_UNREADABLE] += len(block.bad)
            yield [row for row in block.rows if row != _NO_EVENTS]

    def _by_line(self, source: Source) -> Iterator[list[Event]]:
        lines = Lines(source)
        first = True
        for text in lines.blocks():
            if first:
                text, first = text.removeprefix(b"\xef\xbb\xbf"), False
            yield self._events(text)
        if lines.too_long:
            self.left_out[LONG] += lines.too_long
        if lines.cut and self._last_is_bad:
            self.left_out[_UNREADABLE] -= 1
            self.left_out[CUT] += 1

    def _events(self, text: bytes) -> list[Event]:
        """Decode complete lines: at once where they are all as they should be, else one by one."""
        self._last_is_bad = False
        body = _bare(_bare(text.lstrip().removeprefix(b"[")).removesuffix(b"{}"))
        every = _decoded(_EVENTS, b"[" + body + b"]")
        if every is not None:
            return every
        rows = []
        for line in map(_bare, text.split(b"\n")):
            row = None if line in _NO_EVENT else _event(line)
            if row is not None:
                rows.append(row)
            if line:
                self._last_is_bad = row is None and line not in _NO_EVENT
                self.left_out[_UNREADABLE] += self._last_is_bad
        return rows


def _is_anew(head: bytes) -> bool:
    line = head.removeprefix(b"\xef\xbb\xbf").strip().removeprefix(b"[").lstrip().split(b"\n", 1)[0].strip()
    return _event(line) is None and (line == b"{" or _SEVERAL.search(line) is not None)


def _event(line: bytes) -> Event | None:
    return _decoded(_EVENT, _bare(line.removeprefix(b"[")))


def _decoded(decoder: msgspec.json.Decoder[_Value], text: bytes) -> _Value | None:
    """Decode ``text``, if need be with quotes around what C printed bare; None where it is still no JSON."""
    with suppress(*DAMAGED):
        return decoder.decode(text)
    with suppress(*DAMAGED):
        return decoder.decode(_UNQUOTED.sub(rb': "\1"', text))
    return None


def _bare(text: bytes) -> bytes:
    """Strip what may follow the last event: space, the bracket that closes the array, a comma."""
    return text.strip().removesuffix(b"]").rstrip().removesuffix(b",").rstrip()


class EventTables:
    """All events of a dump in columns, and a table of each sort of begins; at the end each event is in a table or counted as left out.

    Events are given by their positions; a begin stands for its end too. ``ns`` = 0 where no time was recorded, ``end`` as in ``ends_of``.
    ``at``: the events of each table.
    """

    def __init__(self, path: Path, sort_of: Callable[[Event], str | None], fill: Mapping[str, Callable[[list[Event]], Columns]]):
        self._sort_of, self._fill = sort_of, fill
        self._events, words = Parts(), Strings()
        parts = {sort: Parts() for sort in fill}
        for sort, columns in fill.items():
            parts[sort].add(at=np.zeros(0, np.int64), **columns([]))
        file = EventFile(path)
        for rows in file.blocks():
            self._add(rows, words, parts)
        self.events, self._unread = file.count, file.left_out
        self.words = list(words)  # categories and names
        self.at = {sort: part.column("at") for sort, part in parts.items()}
        self.columns = {sort: part.columns() for sort, part in parts.items()}
        self._category, self._name, self.ident, self.pid, self.ns, self._phase = (
            self._events.column(name) for name in ("category", "name", "ident", "pid", "ns", "phase")
        )
        self.end = ends_of(self._category, self._name, self.ident, self._phase == _BEGIN, self._phase == _END)
        self.paired = int((self.end != NOWHERE).sum())
        self._done = np.zeros(len(self.ns), np.bool_)
        self._left_out: Counter[str] = Counter()
        self._backwards = 0

    def _add(self, rows: list[Event], words: Strings, parts: Mapping[str, Parts]) -> None:
        first = self._events.count
        self._events.add(
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
            if of_sort:
                columns = self._fill[sort]([rows[place] for place in of_sort])
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

    def usable_steps(self, at: I64, proxy: I64) -> I64:
        """Return those of the begins of steps that can go into ``Steps``, as positions in ``at``; the others are left out."""
        start, end = self.ns[at], self._ends(at)
        for wrong, reason in (
            ((start == 0) | (end == 0), "steps without a time"),
            (end < start, "steps that end before they begin"),
            (proxy == NOWHERE, "steps of no proxy op"),
        ):
            self.leave(at[wrong], reason)
        return np.flatnonzero(~self._done[at])

    def left_out(self, label: Callable[[str, str], str]) -> dict[str, int]:
        """Leave out what is in no table yet, by ``label`` of its category and name; return all counts by reason."""
        lone = (self._phase == _END) & ~self._done
        lone[self.end[self.end != NOWHERE]] = False
        self.leave(np.flatnonzero(lone), "ends without a begin")
        self.leave(np.flatnonzero(self._phase == _OTHER), "neither begin nor end")
        rest = np.flatnonzero(~self._done)
        codes, counts = np.unique(self._category[rest].astype(np.int64) * len(self.words) + self._name[rest], return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            category, name = divmod(code, len(self.words))
            self._left_out[label(self.words[category], self.words[name])] += count
        return dict(self._left_out + self._unread)

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


def args_of(rows: Sequence[Event]) -> list[Args]:
    """Return the arguments of events; those of an event without are all None."""
    return [row.args or _NO_ARGS for row in rows]


def small(values: Sequence[object]) -> I32:
    """int32 column of ``values``; ``NOWHERE`` for each that is no number from 0 on, or does not fit."""
    return narrow(natural(values))


def ends_of(category: I32, name: I32, ident: I64, begins: Bool, ends: Bool) -> I64:
    """Return the position of the end of each begin, else ``NOWHERE``: the next event of its category, name and id, if that is an end.

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
    """Return for each position in ``at`` the row of the last of ``begins`` (ascending) that has not ended there, else ``NOWHERE``.

    ``end`` is that of ``ends_of`` for ``begins``; one without an end lasts until the next begins.
    """
    if not len(begins):
        return np.full(len(at), NOWHERE, np.int64)
    row = np.searchsorted(begins, at, side="right") - 1
    last = np.where(end == NOWHERE, np.iinfo(np.int64).max, end)
    return np.where((row >= 0) & (at < last[row]), row, NOWHERE)
