"""One big JSON array, read block by block in bounded memory.

A trace is a document with a single huge list (``traceEvents``, ``nodes``) or a bare list. The text is taken in blocks;
a block ends at a comma between two elements and is decoded into typed structs at once. The cut is exact, not a guess:
if ``[`` + block + ``]`` is valid JSON, then by JSON's grammar the block was a whole number of elements. A cut that
fails this is replaced by an exact scan of brackets and strings. The text around the array is decoded too, so that keys
before and after it are found alike.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import GenericAlias
from typing import Final, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.read.kinds import HEAD_BYTES, NCCL, binary_kind, dump_kind, is_pftrace, kind_by_name
from graphlink.read.source import Source, open_source

BLOCK_BYTES = 1 << 20  # 4 MB and more cost a third more time in fresh memory pages, and gain nothing
MAX_ELEMENT_BYTES = 16 << 20  # the longest of all that were seen has 0.1 MB; in memory it takes up to 25 times of it
MAX_AROUND_BYTES = 64 << 20  # text before or after the array
MAX_KEYS = 1 << 20  # in that text
MAX_BAD = 1 << 20  # elements that are none of what is wanted
_UNFINISHED = 16  # bytes at the end of a buffer that look malformed as the rest of a number is missing
_MAX_HEADS = 100  # places that look like the array's start and are none
_OF_TRACES = frozenset({"traceEvents", "nodes"})  # keys that whoever wants a trace looks for

_SPACE = b" \t\r\n"
_AT_BYTE = re.compile(r" \(byte (\d+)\)")
_BETWEEN = re.compile(rb"\}[ \t\r\n]*(,)[ \t\r\n]*\{")
_AROUND = re.compile(rb'\}[ \t\r\n]*,[ \t\r\n]*\{[ \t\r\n]*"[^"\\]{0,40}"')
_SLICE = 1 << 22  # bounds the memory of the columns below
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
# what JSON has not; strings, which may hold it: a name may have quotes inside. A group a character would take 50 bytes
_NO_JSON: Final = re.compile(
    rb'(?P<head>"name"\s*:\s*")(?P<name>(?:(?!":).)*?)"(?=\s*,\s*"(?:pid|ctrl_deps|id)"\s*:)|"(?P<string>[^"\\]*(?:\\.[^"\\]*)*)"'
    rb"|(?P<none>-?(?:[Nn]a[Nn](?:\(\w*\))?|[Ii]nf(?:inity)?|\d\.#\w+))"
    rb"|-?(?P<us>\d+)\.-(?P<ns>\d+)|,(?=[ \t\r\n]*[\]}])",
    re.DOTALL,
)
_IN_STRING: Final = re.compile(rb'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|(["\\])|[\x00-\x1f]')

_STEP = np.full(256, 2, np.int8)  # 2 = no structure
for _byte, _step in zip(b"[{]},", (1, 1, -1, -1, 0), strict=True):
    _STEP[_byte] = _step

T = TypeVar("T")
_Around = dict[str, msgspec.Raw]


class Block(msgspec.Struct, Generic[T], frozen=True):
    """Consecutive elements. ``raws`` is parallel to ``rows`` and empty unless asked for.

    ``bad``: elements that are valid JSON but not of the wanted type, by their positions in the array.
    """

    rows: list[T]
    index: Sequence[int]  # of each row in the array
    raws: list[bytes]
    bad: dict[int, bytes]
    text: bytes = b""  # all of them, where each is of the wanted type


@contextmanager
def open_array(path: str | Path, keys: Sequence[str], block_bytes: int = BLOCK_BYTES) -> Iterator[ArrayReader]:
    """Open the array under the first of ``keys`` that the document at ``path`` has, or the document itself if it is a
    list; of a binary trace, of the same in JSON.

    InputError: the file cannot be read, is no JSON, or has no such list.
    """
    with open_source(path) as source:
        if not is_pftrace(source.ahead(HEAD_BYTES)):
            yield ArrayReader(source, keys, block_bytes)
            return
        from graphlink.read.pftrace import as_json

        with as_json(source) as text:
            yield ArrayReader(text, keys, block_bytes)


class ArrayReader:
    """Reads one array once. ``key`` is the array's key, None for a bare list; ``around`` is whole when all blocks have
    been read.
    """

    def __init__(
        self,
        source: Source,
        keys: Sequence[str],
        block_bytes: int = BLOCK_BYTES,
        *,
        max_element_bytes: int | None = None,
    ):
        self._source, self._block_bytes = source, block_bytes
        self._max_element_bytes = MAX_ELEMENT_BYTES if max_element_bytes is None else max_element_bytes
        self.key: str | None = None
        self.around: _Around = {}
        self._buffer = b""
        self._pushed_back = b""  # read already
        self._at = 0  # place in the text of what stands first in the buffer
        self._separator = (
            b""  # learned when a guess fails: lists of objects inside elements (attrs of an ET) mislead it
        )
        self._find_array(keys)

    def blocks(self, row_type: type[T], *, keep_raw: bool = False) -> Iterator[Block[T]]:
        """Yield the array's elements as ``row_type``, in order.

        Memory is that of a few blocks. ``keep_raw`` keeps each element's text (slower). InputError: malformed or cut
        text, an element above ``max_element_bytes`` (16 MB), too deep nesting, more than ``MAX_BAD`` elements that are
        no ``row_type``.
        """
        decoder = _RowDecoder(row_type, keep_raw)
        first, bad, buffer = 0, 0, self._buffer
        self._buffer = b""
        while True:
            more = self._read(max(self._block_bytes, len(buffer)))
            buffer += more
            # an element that made the buffer grow goes alone, since many small ones may follow it there
            grown = len(buffer) > 4 * self._block_bytes
            cut, block = (None, None) if grown else self._guessed_block(buffer, decoder, first)
            if block is None:
                cut, end = scan(buffer, first_cut=grown)
                if end is not None:
                    yield self._last_block(buffer, end, decoder, first)
                    return
                if cut is None:
                    self._may_grow(buffer, first, at_end=not more)
                    continue
                if buffer[:cut].rstrip(_SPACE)[-1:] == b",":  # not the last comma, which ``mended`` takes away
                    raise self._malformed(msgspec.DecodeError(f"nothing between commas (byte {cut})"), buffer)
                self._separator = separator_at(buffer, cut)
                block = self._sure_block(buffer[:cut] + b"]", decoder, first, may_be_empty=False)
            assert cut is not None
            yield block
            first += len(block.rows) + len(block.bad)
            bad += len(block.bad)
            if bad > MAX_BAD:
                raise self._error(f"more than {MAX_BAD:,} of its elements are none of a trace", self._at)
            if grown:
                buffer, self._pushed_back = b"[", buffer[cut + 1 :] + self._pushed_back
            else:
                buffer = b"[" + buffer[cut + 1 :]
            self._at += cut

    def _read(self, size: int) -> bytes:
        """Read as ``Source.read`` does, after what was read before it was its turn."""
        if not self._pushed_back:
            return self._source.read(size)
        text, self._pushed_back = self._pushed_back[:size], self._pushed_back[size:]
        return text

    def _guessed_block(self, buffer: bytes, decoder: _RowDecoder[T], first: int) -> tuple[int | None, Block[T] | None]:
        cut = guess_cut(buffer, self._separator)
        if cut is None:
            return None, None
        try:
            return cut, decoder.block(b"".join((memoryview(buffer)[:cut], b"]")), first, guessed=True)  # one copy
        except msgspec.DecodeError:
            return None, None
        except RecursionError:
            raise self._too_deep(first) from None

    def _sure_block(self, text: bytes, decoder: _RowDecoder[T], first: int, *, may_be_empty: bool) -> Block[T]:
        """Read a block whose ends the scan found: what is malformed in it is malformed in the file."""
        try:
            block = decoder.block(text, first)
        except msgspec.DecodeError as error:
            raise self._malformed(error, text) from None
        except RecursionError:
            raise self._too_deep(first) from None
        if not may_be_empty and not block.rows and not block.bad:
            raise self._malformed(msgspec.DecodeError("nothing between commas (byte 1)"), text)
        return block

    def _last_block(self, buffer: bytes, end: int, decoder: _RowDecoder[T], first: int) -> Block[T]:
        block = self._sure_block(buffer[: end + 1], decoder, first, may_be_empty=first == 0)
        tail = buffer[end + 1 :]
        while more := self._read(self._block_bytes):
            tail += more
            if len(tail) > MAX_AROUND_BYTES:
                raise self._error(f"more than {MAX_AROUND_BYTES >> 20} MB follow the list", self._at + end)
        opened = b"[]" if self.key is None else b'{"' + self.key.encode() + b'":[]'
        at = self._at + end + 1 - len(opened)
        if self.key is None:
            if tail.strip(_SPACE):
                place = len(opened) + len(tail) - len(tail.lstrip(_SPACE))
                raise self._malformed(msgspec.DecodeError(f"text after the end (byte {place})"), opened + tail, at)
            return block
        around = self._decode_around(opened + tail, at)
        if bytes(around.pop(self.key)) != b"[]":
            raise self._error(f'has a second "{self.key}" after the first', self._at + end)
        self.around |= around
        return block

    def _find_array(self, keys: Sequence[str]) -> None:
        names = b"|".join(re.escape(key.encode()) for key in keys)
        # a quote behind a backslash is part of another key
        start = re.compile(rb'(?<!\\)"(' + names + rb')"[ \t\r\n]*:[ \t\r\n]*\[')
        text, skipped = b"", 0
        while True:
            more = self._source.read(max(self._block_bytes, len(text)))
            text += more
            if not skipped and text.startswith(BOM_UTF8):
                text, skipped = text[len(BOM_UTF8) :], len(BOM_UTF8)
            begin = text.lstrip(_SPACE)[:1]
            self._refuse_foreign(text, begin, keys, surely=len(text) >= len(BOM_UTF8) or not more)
            at = text.index(b"[") if begin == b"[" else self._find_key(text, start)
            if at is not None:
                self._buffer, self._at = text[at:], at + skipped
                return
            if not more:
                raise self._no_array(text, keys, skipped)
            if len(text) > MAX_AROUND_BYTES:
                raise self._error(f"no list {' or '.join(keys)} in the first {MAX_AROUND_BYTES >> 20} MB", skipped)

    def _find_key(self, text: bytes, start: re.Pattern[bytes]) -> int | None:
        """Find the bracket that begins the array, and take up key and text before it."""
        for match in islice(start.finditer(text), _MAX_HEADS):
            # the place may be in a string or deeper down: only at the top level does closing both brackets give a
            # document
            head = text[: match.end() - 1] + b"[]}"
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.around = _object(head) if head.count(b":") <= MAX_KEYS else {}
            if self.around:
                self.key = match[1].decode()
                del self.around[self.key]
                return match.end() - 1
        return None

    def _refuse_foreign(self, text: bytes, begin: bytes, keys: Sequence[str], *, surely: bool) -> None:
        side_file = _OF_TRACES.issubset(keys) and dump_kind(text[:HEAD_BYTES]) is not None
        kind = NCCL if side_file else binary_kind(text)
        if kind is None and begin not in (b"{", b"["):
            kind = kind_by_name(self._source.path.name)
        if kind is not None:
            raise InputError(f"is {kind.what}", path=self._source.path, todo=kind.todo)
        if surely and begin not in (b"", b"{", b"["):
            raise self._error("is no JSON", len(text) - len(text.lstrip(_SPACE)))

    def _no_array(self, text: bytes, keys: Sequence[str], skipped: int) -> InputError:
        if not text.strip(_SPACE):
            return InputError(
                "is empty" + (" or cut off" if self._source.packed else ""),
                path=self._source.path,
                todo="record it again",
            )
        found = self._decode_around(text, skipped)
        wanted = " or ".join(f'"{key}"' for key in keys)
        names = ", ".join(list(found)[:8]) or "none"
        return InputError(
            f"has no list {wanted} (its keys: {names})", path=self._source.path, todo="give the file that has it"
        )

    def _decode_around(self, text: bytes, at: int) -> _Around:
        if text.count(b":") > MAX_KEYS:
            raise self._error(f"more than {MAX_KEYS:,} keys stand around its list", at)
        try:
            return _object(text)
        except msgspec.ValidationError as error:
            raise self._error(f"is no JSON object ({error})", at) from None
        except msgspec.DecodeError as error:
            raise self._malformed(error, text, at) from None
        except UnicodeDecodeError as error:
            raise self._error(f"a key is not UTF-8 ({error.reason})", at) from None
        except RecursionError:
            raise self._too_deep(0) from None

    def _may_grow(self, buffer: bytes, first: int, *, at_end: bool) -> None:
        """Tell whether more text can help: raises if an element is too big, the file ends here, or the text is wrong
        already.
        """
        buffer = mended(buffer)
        try:
            msgspec.json.decode(buffer, type=list[msgspec.Raw])
        except RecursionError:
            raise self._too_deep(first) from None
        except msgspec.DecodeError as error:
            place = _AT_BYTE.search(str(error))
            if place and int(place[1]) < len(buffer) - (0 if at_end else _UNFINISHED):
                raise self._malformed(error, buffer) from None
        if at_end:
            raise InputError(
                f"the file ends inside its list, in element {first} or later",
                path=self._source.path,
                where=self._source.where(self._source.position),
                todo="the recording or a copy was cut off: copy or record it again",
            )
        if len(buffer) > self._max_element_bytes:
            raise self._error(f"element {first} is larger than {self._max_element_bytes >> 20} MB", self._at)

    def _malformed(self, error: Exception, text: bytes, at: int | None = None) -> InputError:
        """Make the error for text of the list, or, ``at`` a place in the file, for what is around it: that is not
        shown, as metadata may be secret."""
        message, of_events = str(error), at is None
        at = self._at if at is None else at
        place = _AT_BYTE.search(message)
        byte = int(place[1]) if place else 0
        near = text[max(0, byte - 20) : byte + 20].decode("utf-8", "replace") if place and of_events else ""
        what = _AT_BYTE.sub("", message).removeprefix("JSON is malformed: ")
        return self._error(f"is not valid JSON: {what}" + (f" near {near!r}" if near else ""), at + byte)

    def _too_deep(self, first: int) -> InputError:
        return self._error(f"is nested too deeply, in element {first} or later", self._at)

    def _error(self, what: str, offset: int) -> InputError:
        return InputError(
            what,
            path=self._source.path,
            where=self._source.where(max(0, offset)),
            todo="copy it again, keep one whole recording of several in it, or record again, each rank into a file of "
            "its own",
        )


def mended(text: bytes) -> bytes:
    """Return text as JSON has it: null for numbers that are none (``NaN``, ``Infinity``, ``inf``, ``1.#INF``), which
    C++ and Python write, and -1.066 for ``-1.-66`` (Kineto of 2024, before its base time); in strings backslashes that
    escape nothing (paths of Windows), in names quotes (PyTorch 2.0, and ETs of 2.13), and control characters as what
    they are; no comma behind the last of a list or object.
    """
    return _NO_JSON.sub(_as_json, text)


def _as_json(found: re.Match[bytes]) -> bytes:
    sort = found.lastgroup
    if sort in ("name", "string"):
        inside = _IN_STRING.sub(lambda part: part[1] or (b"\\" + part[2] if part[2] else b" "), found[sort])
        return (found["head"] or b'"') + inside + b'"'
    if sort == "ns":
        return b"-" + found["us"] + b"." + found["ns"].zfill(3)
    return b"null" if sort == "none" else b""


def _object(text: bytes) -> _Around:
    """Decode an object, as JSON or as ``mended`` makes it. Raises what msgspec does."""
    try:
        return msgspec.json.decode(text, type=_Around)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.json.decode(mended(text), type=_Around)


def utf8(text: bytes) -> bytes:
    """Return text with U+FFFD in the place of wrong bytes, which may stand where no row type looks."""
    return text.decode("utf-8", "replace").encode()


class _RowDecoder(Generic[T]):
    def __init__(self, row_type: type[T], keep_raw: bool):
        self._rows: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(GenericAlias(list, (row_type,)))
        self._row = msgspec.json.Decoder(row_type, strict=False)  # takes numbers that are text
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])
        self._keep_raw = keep_raw

    def block(self, text: bytes, first: int, *, guessed: bool = False) -> Block[T]:
        """Decode ``text``, a JSON list. DecodeError (no ValidationError) if it is malformed; RecursionError.

        ``guessed``: where it ends is; text that is malformed in nothing but its end is not mended then.
        """
        try:
            if not self._keep_raw:
                rows = self._rows.decode(text)
                return Block(rows, range(first, first + len(rows)), [], {}, text)
            self._raw.decode(text)
        except (msgspec.ValidationError, UnicodeDecodeError):
            pass
        except msgspec.DecodeError as error:
            if guessed and not _AT_BYTE.search(str(error)):
                raise
            text = mended(text)
        return self._one_by_one(text, first)

    def _one_by_one(self, text: bytes, first: int) -> Block[T]:
        index: list[int] = []
        block: Block[T] = Block([], index, [], {})
        for position, raw in enumerate(self._raw.decode(text), first):
            row_text = utf8(bytes(raw))  # mangled names happen
            try:
                row = self._row.decode(row_text)
            except msgspec.DecodeError:
                block.bad[position] = row_text
                continue
            block.rows.append(row)
            index.append(position)
            if self._keep_raw:
                block.raws.append(row_text)
        return block


# where the elements of an array end, without decoding it: of a buffer that starts with its ``[``


def guess_cut(buffer: bytes, separator: bytes = b"") -> int | None:
    """Guess the position of the last comma between elements: mostly, not surely, right.

    It is that of ``separator`` (if given and there), else the last one between ``}`` and ``{``.
    """
    if separator:
        at = buffer.rfind(separator)
        if at >= 0:
            return at + separator.index(b",")
    for window in (1 << 12, 1 << 16, len(buffer)):
        found = deque(_BETWEEN.finditer(buffer, max(0, len(buffer) - window)), maxlen=1)
        if found:
            return found[0].start(1)
    return None


def separator_at(buffer: bytes, cut: int) -> bytes:
    """Return the text around the comma at ``cut``, which tells it from commas inside elements: ``},\\n    {"id": ``."""
    match = _AROUND.match(buffer, max(0, len(buffer[:cut].rstrip(_SPACE)) - 1))
    return match[0] if match else b""


def scan(buffer: bytes, *, first_cut: bool = False) -> tuple[int | None, int | None]:
    """Find (cut, end): the last comma between elements, and the bracket that closes the array; None where the buffer
    has none.

    Counts brackets outside strings. Linear; exact if the text is valid JSON.

    ``first_cut``: the first one instead, and the end only where there is no cut before it.
    """
    text = np.frombuffer(buffer, np.uint8)
    depth, inside, cut = 0, 0, None
    for first in range(1, len(text), _SLICE):
        part = text[first : first + _SLICE]
        quotes = _real_quotes(text, first, part)
        marks = np.flatnonzero(_STEP[part] != 2)
        outside = ((np.searchsorted(quotes, marks) + inside) & 1) == 0
        marks = marks[outside]
        steps = _STEP[part[marks]]
        depths = depth + np.cumsum(steps, dtype=np.int64)
        closing = np.flatnonzero(depths < 0)
        stop = int(closing[0]) if len(closing) else len(marks)
        commas = np.flatnonzero((steps[:stop] == 0) & (depths[:stop] == 0))
        if len(commas):
            cut = first + int(marks[commas[0 if first_cut else -1]])
            if first_cut:
                return cut, None
        if len(closing):
            return cut, first + int(marks[stop])
        depth = int(depths[-1]) if len(depths) else depth
        inside = (inside + len(quotes)) & 1
    return cut, None


def _real_quotes(text: NDArray[np.uint8], first: int, part: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions in ``part`` of quotes that no backslash escapes (an odd run of backslashes before a quote
    escapes it).
    """
    quotes = np.flatnonzero(part == _QUOTE)
    doubtful = np.flatnonzero(text[first + quotes - 1] == _BACKSLASH)
    escaped = []
    for which in doubtful.tolist():
        at = run = first + int(quotes[which]) - 1
        while text[run] == _BACKSLASH:
            run -= 1
        if (at - run) % 2:
            escaped.append(which)
    return np.delete(quotes, escaped)
