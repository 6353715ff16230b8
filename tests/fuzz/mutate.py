"""Hostile changes of a file, each told by a random generator alone: of bytes, of JSON values, of cells of sqlite, of
protobuf fields, of columns."""

from __future__ import annotations

import contextlib
import gzip
import random
import re
import sqlite3
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import zstandard
from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

_JSON = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|NaN|[\[\]{}:,]')
_WORDS = re.compile(rb"0x[0-9a-fA-F]+|-?\d+(?:\.\d+)?|[A-Za-z_]\w*")
INTEGERS = (
    0, 1, -1, 7, 127, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 53, 1 << 61, 1 << 62, (1 << 63) - 1,
    -(1 << 31), -(1 << 62), -(1 << 63),
)  # fmt: skip
HUGE = (1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63) - 1, 10**20, 10**30, 10**309, 10**400)
TEXTS = (
    b"", b"x", b"7", b"-1", b"0x10", b"stream 7", b"NaN", b"[0, 1]", b"[true]", b"[[2, 3], []]", b"[[", b"../../x", b"/etc/x", b"a" * 5000,
    b"\\ud800", b"\\u0000", b"\\u202e\\u001b[31m", b"\\n", b"\xff\xfe", b"\xc3\xa9", b"ProfilerStep#1", b"cudaStreamSynchronize",
    b"nccl:all_reduce", b"PP:0F0", b"record_param_comms", b"9" * 400, b"c10d::send", b"ncclDevKernel_AllReduce", b"trace.0.et", b"%s{}",
    b"1e999",
)  # fmt: skip
TOKENS = (
    *(str(n).encode() for n in INTEGERS[:10]), *(str(n).encode() for n in INTEGERS), b"9" * 20, b"9" * 309, b"9" * 400, b"-" + b"9" * 400,
    b"9" * 5000, b"18446744073709551615", b"9223372036854775808", b"null", b"true", b"false", b"1.5", b"-0.0", b"1e308", b"-1e308",
    b"1e999", b"1e-400", b"NaN", b"Infinity", b"4611686018427387904.5", *(b'"' + text + b'"' for text in TEXTS),
    b"[]", b"{}", b"[[]]", b"[null]",
    b"[1, 2, 3]", b"[true]", b"[[true]]", b"[[1e308, 1e308]]", b'["a"]', b'{"a": 1}', b'[{"a": []}]', b"[" * 5000 + b"]" * 5000,
    b"[" * 400 + b"]" * 400, b'{"a":' * 3000 + b"1" + b"}" * 3000, b"[" * 5000, b"[0" + b", 0" * 2000 + b"]",
)  # fmt: skip
_LOG_WORDS = (*TEXTS, *(str(n).encode() for n in (*INTEGERS, *HUGE)))
_CELLS = (
    *INTEGERS, None, 1.5, float("inf"), "x", "", "9" * 400, b"\x00\xff", b"", "seq = 1, op_id = 2", "aten::mul, seq = "
                                                                                                    "99999999999999999999",
    *(str(n) for n in HUGE[:7]),
)  # fmt: skip
_KINDS = ("int64_val", "uint64_val", "int32_val", "bool_val", "string_val", "double_val", "bytes_val")
_NUMBERS = ("0", "1", "2", "0.5", "1e-9", "1e6", "999999", "-3", "inf", "nan")
_PATTERNS = (
    "'.'",
    "''",
    "'aten'",
    "'^aten::mm$'",
    "'(a|aa)+$'",
    "'(?i)nccl'",
    "'('",
    "'\\'",
    "'[^/]*/'",
    "'all_?reduce'",
    '"\\u202e\\u001b[31m"',
)
_SELECTORS = (
    ("rank", "0", "1", "[0, 1]", "9"), ("step", "1", "'1-2'", "'2-1'", "99"), ("thread", "1", "[5001, 7]"), ("stream", "7", "[20, 24]"),
    ("sort", "'host'", "'gap'", "'kernel'", "'comm'", "'copy'", "'delay'"), *((key, *_PATTERNS) for key in ("name", "path", "line")),
)  # fmt: skip
_BANDWIDTH, _GROUP = ("bandwidth_gb_per_s", *_NUMBERS), ("group", "0", "1", "2", "'default_pg'", "'x'")
_SELECTED = ("time", "wait", "cuda_graph")
# of each table of a file of changes: the keys of which it wants one, and its others; each with values
_CHANGES: dict[str, tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]] = {
    "time": (
        (*((key, *_NUMBERS) for key in ("scale", "add_us", "launch_us")), ("remove", "true"), ("even_out", "true"),
         ("like", "'.'", "'../out'", "'/dev/zero'", "''", "'a' # x", "'../base/out'")), (),
    ),
    "wait": (
        (("remove", "true"), ("move_to_end_of_step", "true"), ("move_before", *_PATTERNS)),
        (("which", "'all'", "7", "'cudaStreamSynchronize'", "'aten::item'", "99999999999"),),
    ),
    "network": ((_BANDWIDTH,), (("latency_us", *_NUMBERS), _GROUP)),
    "cuda_graph": ((("name", *_PATTERNS), ("path", *_PATTERNS)), (("launch_us", *_NUMBERS), ("gap_us", *_NUMBERS))),
    "buckets": ((("size_mb", *_NUMBERS), ("join", "2", "3", "1000000")), (_BANDWIDTH, _GROUP)),
    "dataloader": ((("workers", "1", "2", "4096"),), (("recorded", "1", "3"), ("cores", "1", "2"), ("prefetch", "1", "2", "4096"))),
}  # fmt: skip


@dataclass(frozen=True)
class Spans:
    """Places in a JSON text, as (begin, end): of values, numbers among them, and of keys."""

    values: list[tuple[int, int]]
    keys: list[tuple[int, int]]


@lru_cache(maxsize=64)
def spans_of(text: bytes) -> Spans:
    values: list[tuple[int, int]] = []
    keys: list[tuple[int, int]] = []
    opened: list[int] = []
    for token in _JSON.finditer(text):
        word = token[0]
        if word in (b"[", b"{"):
            opened.append(token.start())
        elif word in (b"]", b"}"):
            if opened:
                values.append((opened.pop(), token.end()))
        elif word == b":":
            if values:
                keys.append(values.pop())
        elif word != b",":
            values.append(token.span())
    return Spans(values, keys)


def of_json(text: bytes, rng: random.Random) -> bytes:
    """Values, keys and elements exchanged, doubled, taken out, nested."""
    if rng.random() < 0.1:
        return of_bytes(text, rng)
    spans = spans_of(text)
    edits: list[tuple[int, int, bytes]] = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 8))):
        if spans.keys and rng.random() < 0.08:
            begin, end = rng.choice(spans.keys)
            edits.append(
                (
                    begin,
                    end,
                    _slice(text, rng.choice(spans.keys)) if rng.random() < 0.6 else b'"' + rng.choice(TEXTS) + b'"',
                )
            )
        elif spans.values:
            begin, end = rng.choice(spans.values)
            edits.append((begin, end, _instead(text, text[begin:end], spans, rng)))
    out, last = [], len(text)
    for begin, end, new in sorted(edits, reverse=True):
        if end <= last:
            out += [text[end:last], new]
            last = begin
    return packed(b"".join(reversed([*out, text[:last]])), rng)


def _instead(text: bytes, old: bytes, spans: Spans, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(TOKENS)
    if kind < 0.7:
        return _slice(text, rng.choice(spans.values))
    if kind < 0.8 and re.fullmatch(rb"-?\d+(?:\.\d+)?", old):
        number = float(old) * rng.choice((-1, 0.5, 2, 1e3, 1e6, 1e12)) + rng.choice((0, 1, -1, 0.001))
        return str(int(number) if rng.random() < 0.7 else number).encode()
    if kind < 0.88:
        return old + b", " + old
    if kind < 0.93:
        return b""
    depth = rng.choice((1, 2, 100, 1200))
    return b"[" * depth + old + b"]" * depth


def _slice(text: bytes, span: tuple[int, int]) -> bytes:
    return text[span[0] : span[1]]


def of_text(text: bytes, rng: random.Random) -> bytes:
    """Words and numbers of a log exchanged, else bytes."""
    words = _words(text)
    if not words or rng.random() < 0.3:
        return of_bytes(text, rng)
    edits = [(rng.choice(words), rng.choice(_LOG_WORDS)) for _ in range(rng.choice((1, 1, 2, 5)))]
    for (begin, end), new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return packed(text, rng)


def of_changes(rng: random.Random) -> bytes:
    """A file of ``--what-if``: some keys of some tables, mostly with a value that a key may have, of it words or bytes
    exchanged.
    """
    lines = []
    for _ in range(rng.choice((1, 1, 2, 3, 40))):
        table = rng.choice([*_CHANGES])
        wanted, keys = _CHANGES[table]
        more = (*keys, *(_SELECTORS if table in _SELECTED or rng.random() < 0.1 else ()))
        chosen = [rng.choice(wanted), *rng.sample(more, min(len(more), rng.choice((0, 1, 1, 2))))]
        lines += [f"[[{table}]]", *(f"{key} = {_toml(values, rng)}" for key, *values in chosen)]
    text = "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n"
    return text if rng.random() < 0.7 else of_text(text, rng)


def _toml(values: list[str], rng: random.Random) -> str:
    other = rng.choice(TOKENS) if rng.random() < 0.5 else rng.choice(_PATTERNS).encode()
    return rng.choice(values) if rng.random() < 0.95 else other.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=64)
def _words(text: bytes) -> list[tuple[int, int]]:
    return [word.span() for word in _WORDS.finditer(text)]


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 1, 2, 8, 64, 1024))
        kind = rng.randrange(7)
        if kind == 0:
            del out[at : at + size]
        elif kind == 1:
            out[at:at] = rng.randbytes(size)
        elif kind == 2:
            out[at : at + size] = rng.randbytes(len(out[at : at + size]))
        elif kind == 3:
            out[at:at] = out[at : at + size]
        elif kind == 4:
            out[at : at + size] = bytes([rng.choice((0, 255, 128, 34, 91))]) * len(out[at : at + size])
        elif kind == 5 and rng.random() < 0.3:
            del out[at:]
        elif at < len(out):
            out[at] ^= 1 << rng.randrange(8)
    return packed(bytes(out), rng)


def packed(data: bytes, rng: random.Random) -> bytes:
    """Mostly as it is, else packed, of that some damaged or cut."""
    kind = rng.random()
    if kind > 0.06:
        return data
    out = gzip.compress(data, 1, mtime=0) if kind < 0.04 else zstandard.compress(data, 1)
    what = rng.randrange(4)
    if what == 0:
        return out[: rng.randrange(len(out) + 1)]
    if what == 1:
        at = rng.randrange(len(out))
        return out[:at] + rng.randbytes(rng.choice((1, 4))) + out[at + 1 :]
    return gzip.compress(out, 1, mtime=0) if what == 2 else out


def of_messages(data: bytes, rng: random.Random) -> bytes:
    """A ``.et``: fields of some nodes set to extremes, taken out, doubled; messages exchanged; else bytes."""
    if rng.random() < 0.2:
        return of_bytes(data, rng)
    messages = list(_messages(data))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(messages))
        kind = rng.random()
        if kind < 0.05:
            del messages[at]
        elif kind < 0.1:
            messages.insert(rng.randrange(len(messages) + 1), messages[at])
        elif kind < 0.15:
            messages[at] = rng.randbytes(rng.choice((0, 1, 5, 50)))
        else:
            messages[at] = _message(messages[at], first=at == 0, rng=rng)
        if not messages:
            break
    return packed(b"".join(_varint(len(message)) + message for message in messages), rng)


@lru_cache(maxsize=8)
def _messages(data: bytes) -> tuple[bytes, ...]:
    out, at = [], 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        out.append(data[at : at + size])
        at += size
    return tuple(out)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def of_packets(data: bytes, rng: random.Random) -> bytes:
    """A protobuf file of whatever messages: fields at any depth set to extremes, taken out, doubled, exchanged, their
    lengths right; else bytes."""
    if rng.random() < 0.2:
        return of_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        data = _deeper(data, rng) or data
    return packed(data, rng)


def _deeper(message: bytes, rng: random.Random) -> bytes | None:
    """Change a field of a message, or of one in it; None where it is no message."""
    fields = _fields(message)
    if not fields:
        return None
    at = rng.randrange(len(fields)) if rng.random() < 0.9 else min(rng.randrange(12), len(fields) - 1)
    start, value, end = fields[at]
    kind, old = rng.random(), message[value:end]
    if kind < 0.04:
        return message[:start] + message[end:]
    if kind < 0.08:
        return message[:end] + message[start:end] * rng.choice((1, 1, 9)) + message[end:]
    if kind < 0.12:
        other, _, after = rng.choice(fields)
        return message[:start] + message[other:after] + message[end:]
    tag, here = _number(message, start)
    if tag & 7 == 0:
        return message[:here] + _varint(rng.choice((*INTEGERS, *HUGE[:2])) & (1 << 64) - 1) + message[end:]
    if tag & 7 != 2:
        return message[:value] + rng.randbytes(end - value) + message[end:]
    new = _deeper(old, rng) if kind < 0.85 else None
    if new is None:
        new = rng.choice((*TEXTS, old[: rng.randrange(len(old) + 1)], rng.randbytes(len(old)), old * 3))
    return message[:here] + _varint(len(new)) + new + message[end:]


def _number(data: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while at < len(data):
        byte = data[at]
        at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
        if byte < 128:
            return size, at
    return -1, at


@lru_cache(maxsize=64)
def _fields(message: bytes) -> tuple[tuple[int, int, int], ...]:
    """Where each field starts, its value starts, and it ends; () of what is no message."""
    out, at = [], 0
    while at < len(message):
        tag, value = _number(message, at)
        size, body = {0: (0, _number(message, value)[1]), 1: (8, value), 5: (4, value)}.get(tag & 7, (-1, value))
        if tag & 7 == 2:
            size, value = _number(message, value)
            body = value
        if tag < 8 or size < 0 or body + size > len(message):
            return ()
        out.append((at, value, body + size))
        at = body + size
    return tuple(out)


def _message(message: bytes, *, first: bool, rng: random.Random) -> bytes:
    try:
        node = pb.GlobalMetadata.FromString(message) if first else pb.Node.FromString(message)
    except DecodeError:
        return message
    if not first and rng.random() < 0.5:
        _field(node, rng)
    elif node.attr:
        _attribute(node, rng)
    return node.SerializeToString()


def _field(node: pb.Node, rng: random.Random) -> None:
    number = rng.choice(
        (0, 1, 2, 50, 1 << 31, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 1000)
    )
    kind = rng.randrange(8)
    if kind == 0:
        node.id = number
    elif kind == 1:
        node.duration_micros = number
    elif kind == 2:
        node.start_time_micros = number
    elif kind == 3:
        node.data_deps.append(number)
    elif kind == 4:
        node.ctrl_deps.append(number)
    elif kind == 5:
        node.type = rng.choice((0, 1, 2, 3, 4, 5, 6, 7))
    elif kind == 6:
        node.name = rng.choice(
            ("", "end", "host gap", "device delay", "x" * 3000, "\x1b[31m", "aten::item (cont.)", "a\nb")
        )
    else:
        del node.data_deps[:]


def _attribute(node: pb.Node | pb.GlobalMetadata, rng: random.Random) -> None:
    attr = rng.choice(node.attr)
    kind = rng.random()
    if kind < 0.1:
        node.attr.remove(attr)
        return
    if kind < 0.2:
        attr.name = rng.choice(node.attr).name
        return
    if kind < 0.3:
        node.attr.add().CopyFrom(attr)
    field = attr.WhichOneof("value") if rng.random() < 0.7 else rng.choice(_KINDS)
    value = rng.choice(INTEGERS)
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        if field == "string_val":
            attr.string_val = rng.choice(TEXTS).decode("utf-8", "replace")
        elif field == "double_val":
            attr.double_val = rng.choice((float("nan"), float("inf"), -1e308, 0.5))
        elif field == "bytes_val":
            attr.bytes_val = b"\xff"
        elif field == "bool_val":
            attr.bool_val = not attr.bool_val
        elif field == "string_list":
            attr.string_list.values.append(rng.choice(("stream", "sync", "", "x", "launch")))
        elif field is not None:
            setattr(attr, field, value)


def of_sqlite(data: bytes, path: Path, rng: random.Random) -> None:
    """Writes the changed export to ``path``."""
    if rng.random() < 0.25:
        path.write_bytes(of_bytes(data, rng))
        return
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.deserialize(data)
        connection.execute("PRAGMA writable_schema = ON")
        for _ in range(rng.choice((1, 1, 2, 4, 10))):
            with contextlib.suppress(sqlite3.Error, OverflowError, IndexError):
                _change_table(connection, rng)
        path.write_bytes(packed(connection.serialize(), rng))
    finally:
        connection.close()


def _change_table(connection: sqlite3.Connection, rng: random.Random) -> None:
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    table = rng.choice(tables)
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column, kind = rng.choice(columns), rng.random()
    if kind < 0.75:
        value = rng.choice(_CELLS)
        where = rng.choice(("", "WHERE rowid % 2", "WHERE rowid = 1", f"WHERE rowid = {rng.randrange(1, 60)}"))
        connection.execute(f'UPDATE "{table}" SET "{column}" = ? {where}', (value,))
    elif kind < 0.8:
        connection.execute(f'DROP TABLE "{table}"')
    elif kind < 0.85:
        connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif kind < 0.9:
        connection.execute(f'DELETE FROM "{table}" WHERE rowid % {rng.choice((1, 2, 3))} = 0')
    elif kind < 0.95:
        connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
    else:
        connection.execute(
            f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{rng.choice((*columns, "rowid", "x y", "id"))}"'
        )


def of_columns(data: bytes, rng: random.Random) -> bytes:
    """Of a record that ``graphlink.run.codec`` wrote; most have the checksum that belongs to them."""
    if rng.random() < 0.2:
        return of_bytes(data, rng)
    sections = _sections(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(sections))
        sort, inside = sections[at]
        if rng.random() < 0.05:
            sections[at] = rng.choice(sections)
        elif sort[:1] in (b"<", b"|"):
            sections[at] = sort, _column(np.frombuffer(inside, sort.rstrip(b"\0").decode()), rng).tobytes()
        elif inside:
            sections[at] = sort, of_bytes(inside, rng)
    first = data[: data.index(b"\n") + 1]
    made = first + b"".join(sort + len(inside).to_bytes(8, "little") + inside for sort, inside in sections)
    return made + zlib.crc32(made).to_bytes(4, "little")


def _sections(data: bytes) -> list[tuple[bytes, bytes]]:
    """Their sorts, and what is in them."""
    at, out = data.index(b"\n") + 1, []
    while at < len(data) - 4:
        size = int.from_bytes(data[at + 8 : at + 16], "little")
        out.append((data[at : at + 8], data[at + 16 : at + 16 + size]))
        at += 16 + size
    return out


def _column(values: NDArray[np.generic], rng: random.Random) -> NDArray[np.generic]:
    kind = rng.randrange(4)
    if kind == 0 or not len(values):
        return np.resize(values, rng.choice((0, 1, len(values) + 1, max(len(values) - 1, 0))))
    if kind == 1:
        return values[:: rng.choice((-1, 2))]
    changed = values.copy()
    for _ in range(rng.choice((1, 1, 3, 20))):
        changed[rng.randrange(len(changed))] = np.array(rng.choice(INTEGERS), np.int64).astype(values.dtype)
    return changed
