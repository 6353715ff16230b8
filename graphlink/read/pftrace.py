"""PyTorch's binary traces (``.pftrace``, Perfetto's protobuf) as the text of Kineto's JSON, so that whoever reads the
one reads the other.

Two passes over the file, packet by packet. The first takes times: the ends of slices stand after all begins of their
group, and what a row of a GPU waited for is named by numbers that may follow. The second writes the rows. Memory: a few
numbers a slice, and a batch of packets.

See ``pftrace_rows`` for the fields that are read. With the messages of the package ``perfetto`` the second pass alone
took 5.9 s of 344,000 rows; with these it takes 2.2 s, as arguments stay bytes, most of which came before. Those
messages do not know the names of kernels either (field 1000).
"""

from __future__ import annotations

import io
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, cast

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.model import I64, NOWHERE, Bool
from graphlink.read.kinds import PACKET
from graphlink.read.pftrace_rows import BEGIN, END, IIDS, MESSAGES, Rows
from graphlink.read.source import Source, open_source
from graphlink.tables import how_many, lookup, places, spread, successive

_BATCH_BYTES: Final = 1 << 18
_MAX_PACKET_BYTES: Final = 64 << 20  # the one with all names is the longest
_CLOCKS: Final = (0, 6)  # of packets: that of the trace, and BOOTTIME, which is the same
_FOUR_BYTES: Final = 0x80808080  # the upper bits of a length
_MOST_BYTES: Final = 10  # of a length
_LARGEST: Final = (1 << 64) - 1  # number
_FLOWS: Final = 1 << 12  # in a text
_FIRST_WAIT: Final = 1 << 40  # ids of flows between nodes of a graph, as PyTorch numbers them
_LAST: Final = b'{"ph":"M"}]}'


def head_as_json(path: Path, head: bytes) -> bytes:
    """Return the first rows of a binary trace as JSON, from its beginning, without the lengths of slices; b"" where
    that is damaged.
    """
    try:
        return next(_texts(_Batches(Source(path, io.BytesIO(head), ""), "Trace", cut=True), None)) + _LAST
    except InputError:
        return b""


@contextmanager
def as_json(source: Source) -> Iterator[Source]:
    """Give a binary trace as JSON. A file is opened once more; what comes from a pipe is kept on disk meanwhile.

    Raises:
        InputError: it is cut off or damaged; when the rows are read, with the position of the packet.
    """
    times, is_file = _Times(), source.path.is_file()
    with TemporaryFile() as kept:
        if not is_file:
            shutil.copyfileobj(cast(BinaryIO, source), kept)
            kept.seek(0)
            source = Source(source.path, cast(BinaryIO, kept), "")
        times.take(_Batches(source, "Times"))
        kept.seek(0)
        with open_source(source.path) if is_file else nullcontext(source) as again:
            text = _TextFile(filter(None, _texts(_Batches(again, "Trace", known=times.batches), times)))
            yield Source(again.path, cast(BinaryIO, text), "pftrace", again.file)


class _TextFile:
    """Texts as a file."""

    def __init__(self, texts: Iterator[bytes]):
        self._texts, self._left = texts, b""

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes; fewer only at the end."""
        parts, there = [self._left], len(self._left)
        while there < size and (text := next(self._texts, b"")):
            parts.append(text)
            there += len(text)
        read = b"".join(parts)
        self._left = read[size:]
        return read[:size]


class _Batches:
    """The packets of a file, as a ``message`` of many. ``cut``: the file may end anywhere;
    ``known``: sizes of the batches in bytes, and whether they are wanted, where that is known.
    """

    def __init__(
        self,
        source: Source,
        message: str,
        *,
        cut: bool = False,
        known: Sequence[tuple[int, bool]] | None = None,
    ):
        self._source, self._cut, self._known = source, cut, known
        self._decode = MESSAGES[message].FromString
        self._start, self.size = 0, 0  # of the batch in the file, in bytes

    def __iter__(self) -> Iterator[Any]:
        batches: Iterable[tuple[bytes, bool]]
        if self._known is None:
            batches = zip(self._whole(), repeat(True), strict=False)
        else:
            batches = ((self._source.read(size), wanted) for size, wanted in self._known)
        for data, wanted in batches:
            self.size = len(data)
            if wanted:
                try:
                    yield self._decode(data)
                except DecodeError:
                    raise self.error("is damaged: a packet cannot be decoded") from None
            self._start += self.size

    def _whole(self) -> Iterator[bytes]:
        buffer = b""
        while more := self._source.read(max(_BATCH_BYTES, len(buffer))):
            buffer += more
            if end := self._end(buffer):
                yield buffer[:end]
                buffer = buffer[end:]
        if buffer and not self._cut:
            raise self.error("the file ends inside a packet", 0)

    def _end(self, buffer: bytes) -> int:
        """Return where the last whole packet of a buffer ends."""
        end, there = 0, len(buffer)
        while end < there:
            if buffer[end] != PACKET:
                raise self.error("is damaged: no packet begins where one should", end)
            length = int.from_bytes(buffer[end + 1 : end + 5], "little")
            if not length & 0x80:
                length, place = length & 0x7F, end + 2
            elif length & _FOUR_BYTES == _FOUR_BYTES >> 8:  # as PyTorch writes most of them
                length = length & 0x7F | length >> 1 & 0x3F80 | length >> 2 & 0x1FC000 | length >> 3 & 0xFE00000
                place = end + 5
            else:
                length, place = _varint(buffer, end + 1)
            if length > _MAX_PACKET_BYTES:
                raise self.error(f"has a packet of more than {_MAX_PACKET_BYTES >> 20} MB", end)
            if place + length > there:
                break
            end = place + length
        return end

    def error(self, what: str, start: int | None = None) -> InputError:
        """Return the error of a batch, or of what starts at a place in it."""
        where = self._source.where(self._start + (start or 0))
        if start is None:
            where += f" or in the {self.size:,} bytes after it"
        return InputError(what, path=self._source.path, where=where, todo="copy or record it again")


def _varint(buffer: bytes, place: int) -> tuple[int, int]:
    """Return a number and the place after it; where it is cut off, a place after the buffer."""
    number = 0
    for shift, byte in enumerate(buffer[place : place + _MOST_BYTES]):
        number |= (byte & 127) << 7 * shift
        if byte < 128:
            return number, place + shift + 1
    return number, len(buffer) + 1


class _Times:
    """What the rows need of packets that come later: a few numbers a begin and end of a slice, and a row of a GPU."""

    def __init__(self) -> None:
        self._slices = array("Q")  # of each begin and end: time, track, whether it is a begin
        self._spans = array("Q")  # of each row of a GPU: id, start, length, queue, device
        self._waits = array("Q")  # row, and id of what it waits for
        self.tracks: list[Any] = []
        self.batches: list[tuple[int, bool]] = []  # size, and whether there is more than ends of slices

    def take(self, batches: _Batches) -> None:
        """Take the times of all packets."""
        slices, spans, waits = self._slices.extend, self._spans.extend, self._waits.extend
        for batch in batches:
            wanted = False
            for packet in batch.packets:
                if packet.clock not in _CLOCKS:
                    raise batches.error("a packet has its time on another clock than PyTorch's")
                kind = packet.slice.type if packet.HasField("slice") else None
                wanted |= kind != END
                if kind in (BEGIN, END):
                    slices((packet.timestamp, packet.slice.track, kind == BEGIN))
                elif packet.HasField("stage"):
                    stage, row = packet.stage, len(self._spans) // 5
                    waits(number for ident in stage.waits for number in (row, ident))
                    queue = (packet.sequence << IIDS) + stage.queue & _LARGEST
                    spans((stage.id, packet.timestamp, stage.duration, queue, stage.gpu))
                elif packet.HasField("track"):
                    self.tracks.append(packet.track)
            self.batches.append((batches.size, wanted))

    def lengths(self) -> tuple[I64, int]:
        """Return the length of each slice in the order of their begins, -1 without an end, and how many ends are left.

        PyTorch writes ends in the order of begins, so that rows may cross; where nothing goes back in time on any
        track, slices are nested.
        """
        when, track, kind = _columns(self._slices, 3)
        begin = kind > 0
        begins, ends = np.flatnonzero(begin), np.flatnonzero(~begin)
        before, after = successive(np.argsort(track, kind="stable"), track)
        if not (
            len(begins) == len(ends)
            and (track[begins] == track[ends]).all()
            and (when[begins] <= when[ends]).all()
            and (when[after] < when[before]).any()
        ):
            begins, ends = _nested(when, track, begin)
        out = spread(len(when), begins, when[ends] - when[begins])
        return out[begin], how_many(~begin) - len(ends)

    def waits(self, rows: Rows) -> Iterator[bytes]:
        """Yield what rows of a GPU waited for as flows: from the end of the one to the start of the other."""
        (ident, start_ns, length_ns, queue, gpu), (waiting, awaited) = (
            _columns(self._spans, 5),
            _columns(self._waits, 2),
        )
        source = lookup(ident, awaited)
        kept = source != NOWHERE
        for first in range(0, np.count_nonzero(kept), _FLOWS):
            some = slice(first, first + _FLOWS)
            ends = []
            for row, with_length in ((source[kept][some], 1), (waiting[kept][some], 0)):
                ns = start_ns[row] + with_length * length_ns[row]
                ends.append(zip(gpu[row].tolist(), queue[row].tolist(), ns.tolist(), strict=True))
            yield b"".join(rows.flow(_FIRST_WAIT + first + k, *both) for k, both in enumerate(zip(*ends, strict=True)))


def _columns(numbers: array[int], count: int) -> I64:
    return np.frombuffer(numbers, np.uint64).astype(np.int64).reshape(-1, count).T


def _nested(when: I64, track: I64, begin: Bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return begins and their ends, nested on each track: the same level, by time and then as they stand."""
    order = np.lexsort((when, track))
    level = spread(len(order), order, np.cumsum(np.where(begin[order], 1, -1))) + ~begin
    first, second = successive(np.lexsort((places(order, len(order)), level, track)), track, level)
    pairs = begin[first] & ~begin[second]
    return first[pairs], second[pairs]


def _texts(batches: _Batches, times: _Times | None) -> Iterator[bytes]:
    """Yield a JSON trace. Without ``times`` slices have no length."""
    rows, text = Rows(), ""
    rows.note_tracks(times.tracks if times is not None else ())
    lengths, ends_left = times.lengths() if times is not None else (None, 0)
    each: Iterator[int] = iter(array("q", lengths.tobytes())) if lengths is not None else repeat(0)
    try:
        for batch in batches:
            text += "".join(rows.of(batch.packets, each))
            if text and rows.has_clock:
                yield rows.header() + text.encode()
                text = ""
    except DecodeError:
        raise batches.error("is damaged: arguments cannot be decoded") from None
    yield rows.header() + text.encode()
    if times is not None:
        yield from times.waits(rows)
        yield from repeat(b'{"ph":"E"},', ends_left)
    yield _LAST
