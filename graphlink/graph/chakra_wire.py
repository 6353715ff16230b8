"""Decodes many ``Node`` messages at once, straight from their bytes, a field of every node at a time.

What protobuf writers write is decoded here; a message that is put together otherwise (unknown fields, unpacked lists, attributes of
other kinds, several values in an attribute, broken bytes) is left to the caller's ``slow``, which judges it. So the outcome is that of
``slow`` on every message, but for attributes that nobody reads, whose bytes are not looked into. Field numbers: et_def.proto.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from graphlink.graph.chakra_columns import (
    BAD_GROUP,
    COLUMNS,
    EXPECTED,
    MOST_MICROS,
    SEEN,
    TEMPLATE,
    U64,
    UNKNOWN_DEP,
    Has,
    NodeBlock,
    NodeRow,
    group_of,
)
from graphlink.model import I64, U8, Bool

PADDING: Final = 16  # zero bytes that must follow the last message, as words are read past an end

_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION, _ATTR = 0x08, 0x12, 0x18, 0x22, 0x2A, 0x30, 0x38, 0x52
_ALLOWED: Final = np.zeros(256, np.bool_)
_ALLOWED[[_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION, _ATTR, 0x42, 0x4A]] = True
_LENGTHS: Final = np.isin(np.arange(256), (_NAME, _CTRL, _DATA, _ATTR, 0x42, 0x4A))
_INT64, _INT32, _BOOL, _STRING, _STRINGS = b"\x48", b"\x38", b"\xd8\x01", b"\xea\x01", b"\xf2\x01"
_MOST: Final = 1 << 31

_M7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_M8 = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)


def varints(word: U64, byte: U8, at: I64) -> tuple[U64, I64]:
    """The varints that begin at ``at``: values, and sizes in bytes (0 = longer than a varint may be). All bits of a word at once."""
    raw = word[at]
    stop = ~raw & _M8
    low = stop & (~stop + _ONE)
    size = (np.frexp(low.astype(np.float64))[1] >> 3).astype(np.int64)
    x = raw & (low | (low - _ONE)) & _M7
    x = (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x7F007F007F007F00)) >> _ONE)
    x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    x = (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    long = np.flatnonzero(size == 0)
    if len(long):
        ninth, tenth = byte[at[long] + 8].astype(np.uint64), byte[at[long] + 9].astype(np.uint64)
        more = ninth >= 0x80
        x[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        x[long] |= np.where(more, (tenth & _ONE) << np.uint64(63), np.uint64(0))
        size[long] = np.where(more, np.where(tenth < 0x80, 10, 0), 9)
    return x, size


@dataclass(slots=True)
class _Spans:
    """Pieces of messages: which node (in the block), first byte, length; in order of appearance inside each node."""

    node: I64
    at: I64
    size: I64


class _Fields:
    """The fields of all nodes of a block, one of each node in a step."""

    def __init__(self, byte: U8, word: U64, starts: I64, ends: I64) -> None:
        n = len(starts)
        self.scalar = {k: np.zeros(n, np.uint64) for k in (_ID, _TYPE, _START, _DURATION)}
        self.name_at, self.name_size = starts.copy(), np.zeros(n, np.int64)
        self.odd = np.zeros(n, np.bool_)  # for ``slow``
        pieces: dict[int, list[_Spans]] = {_CTRL: [], _DATA: [], _ATTR: []}
        node = np.flatnonzero(starts < ends)
        at, stop = starts[node], ends[node]
        while len(node):
            key = byte[at]
            value, size = varints(word, byte, at + 1)
            body = at + 1 + size
            length = np.where(_LENGTHS[key], np.minimum(value, np.uint64(_MOST)).astype(np.int64), 0)
            after = body + length
            bad = ~_ALLOWED[key] | (size == 0) | (after > stop)
            if bad.any():
                self.odd[node[bad]] = True
                good = ~bad
                node, stop, key, value, body, length, after = (x[good] for x in (node, stop, key, value, body, length, after))
            for k in np.flatnonzero(np.bincount(key, minlength=256)).tolist():
                whole = bool((key == k).all())
                mine = slice(None) if whole else np.flatnonzero(key == k)
                if k in self.scalar:
                    self.scalar[k][node[mine]] = value[mine]
                elif k in pieces:
                    pieces[k].append(_Spans(node[mine], body[mine], length[mine]))
                elif k == _NAME:
                    self.name_at[node[mine]], self.name_size[node[mine]] = body[mine], length[mine]
            more = after < stop
            node, at, stop = (node, after, stop) if more.all() else (node[more], after[more], stop[more])
        self.attr, self.data, self.ctrl = (_joined(pieces[k]) for k in (_ATTR, _DATA, _CTRL))


def _joined(pieces: list[_Spans]) -> _Spans:
    none = np.zeros(0, np.int64)
    return _Spans(*(np.concatenate([none, *(getattr(p, c) for p in pieces)]) for c in ("node", "at", "size")))


class _Names:
    """Tells the attributes that are read by the first and last eight bytes of their names; where to look says a perfect hash."""

    def __init__(self, names: tuple[str, ...]) -> None:
        encoded = [n.encode() for n in names]
        assert all(len(n) <= 24 for n in encoded)
        self._factor = next(f for f in range(_PRIME, _PRIME + 20_000, 2) if len({_slot(n, f) for n in encoded}) == len(encoded))
        self._code = np.zeros(1 << _SLOT_BITS, np.int64)
        self._code[[_slot(n, self._factor) for n in encoded]] = np.arange(len(encoded))
        windows = [_windows(n) for n in encoded]
        self._head, self._tail = (np.array([w[k] for w in windows], np.uint64) for k in (0, 1))
        self._middle = np.array([int.from_bytes(n[8:16].ljust(8, b"\0"), "little") for n in encoded], np.uint64)
        self._size = np.array([len(n) for n in encoded], np.int64)

    def codes(self, word: U64, at: I64, size: I64) -> I64:
        """Position in ``names`` of each name, -1 for others."""
        head, tail = _windows_at(word, at, size)
        code = self._code[_mixed(head, tail, size) * np.uint64(self._factor) >> np.uint64(64 - _SLOT_BITS)]
        same = (self._head[code] == head) & (self._tail[code] == tail) & (self._size[code] == size)
        long = np.flatnonzero(same & (size > 16))
        same[long] = word[at[long] + 8] == self._middle[code[long]]
        return np.where(same, code, -1)


_PRIME: Final = 0x9E3779B97F4A7C15
_SLOT_BITS: Final = 8
_LOW_BYTES: Final = np.array([(1 << 8 * k) - 1 for k in range(9)], np.uint64)


def _windows(name: bytes) -> tuple[int, int]:
    return int.from_bytes(name[:8], "little"), int.from_bytes(name[-8:], "little") if len(name) >= 8 else 0


def _windows_at(word: U64, at: I64, size: I64) -> tuple[U64, U64]:
    """``_windows`` of many texts."""
    head = word[at] & _LOW_BYTES[np.minimum(size, 8)]
    return head, np.where(size >= 8, word[at + np.maximum(size - 8, 0)], np.uint64(0))


def _mixed(head: U64, tail: U64, size: I64) -> U64:
    apart: U64 = tail >> np.uint64(3)  # head and tail of a short name are alike
    return head ^ apart ^ size.astype(np.uint64)


def _slot(name: bytes, factor: int) -> int:
    head, tail = _windows(name)
    return ((head ^ tail >> 3 ^ len(name)) * factor & (1 << 64) - 1) >> 64 - _SLOT_BITS


_READ: Final = (*EXPECTED, "dep_kinds", "sync_call", *SEEN)
_KNOWN: Final = _Names(_READ)
_COLUMN: Final = np.array([EXPECTED[n][0] if n in EXPECTED else -1 for n in _READ])
_BIT_OF: Final = {**{n: bit for n, (_, _, bit) in EXPECTED.items()}, **SEEN, "dep_kinds": int(Has.DEP_KINDS), "sync_call": 0}
_BITS: Final = np.array([_BIT_OF[n] for n in _READ], np.int64)
_OF_KIND: Final = {
    kind: np.array([n in EXPECTED and EXPECTED[n][1] == kind for n in _READ])
    for kind in ("int64_val", "int32_val", "bool_val", "string_val")
}
_DEP_KINDS, _SYNC_CALL = _READ.index("dep_kinds"), _READ.index("sync_call")


@dataclass(frozen=True, slots=True)
class Texts:
    """What is kept from block to block: codes of names, kinds of dependencies by the bytes that say them."""

    name: dict[bytes, int]
    kinds: dict[bytes, bytes | None]
    code_of: Callable[[str], int]
    kind_of: dict[bytes, int]


def decode(data: bytes, starts: I64, ends: I64, position: int, texts: Texts, slow: Callable[[int], NodeRow]) -> NodeBlock:
    """The messages ``data[starts[i]:ends[i]]`` as nodes ``position``, ``position + 1``, ... ``slow(i)`` decodes message i alone.

    ``PADDING`` zero bytes must follow the last message. Linear in bytes; as many steps as the node with most fields has.
    """
    byte = np.frombuffer(data, np.uint8)
    word = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
    n = len(starts)
    fields = _Fields(byte, word, starts, ends)
    rows = np.repeat(np.array([TEMPLATE], np.int64).T, n, axis=1).T  # each column in one piece
    kinds = np.full(n, None, np.object_)
    has = _attributes(data, byte, word, fields, rows, kinds, texts)
    rows[:, COLUMNS.index("has")] = has
    rows[:, COLUMNS.index("type")] = fields.scalar[_TYPE].astype(np.int32)
    for column, key in (("start_micros", _START), ("duration_micros", _DURATION)):
        rows[:, COLUMNS.index(column)] = np.minimum(fields.scalar[key], np.uint64(MOST_MICROS)).astype(np.int64)
    _names(data, fields, rows, texts)
    lists = {c: _unpacked(byte, word, spans, fields.odd) for c, spans in (("data_deps", fields.data), ("ctrl_deps", fields.ctrl))}
    for c, (node, _) in lists.items():
        rows[:, COLUMNS.index(c)] = np.bincount(node, minlength=n)
    told = np.array([-1 if k is None else len(k) for k in kinds.tolist()], np.int64)
    fields.odd |= (told >= 0) & (told != rows[:, COLUMNS.index("data_deps")])
    ids = fields.scalar[_ID]
    singles = {int(i): slow(int(i)) for i in np.flatnonzero(fields.odd)}
    for i, single in singles.items():
        rows[i], ids[i], kinds[i] = single.row, single.id, single.kinds
    data_deps, ctrl_deps = (_merged(*lists[c], fields.odd, {i: getattr(s, c) for i, s in singles.items()}) for c in lists)
    counts = rows[:, COLUMNS.index("data_deps")].tolist()
    unknown = bytes([UNKNOWN_DEP])
    kind = b"".join([unknown * c if k is None else k for k, c in zip(kinds.tolist(), counts, strict=True)])
    return NodeBlock(
        rows=rows,
        id=ids,
        data=data_deps,
        data_kind=np.frombuffer(kind, np.uint8),
        ctrl=ctrl_deps,
        odd=tuple(o for s in singles.values() for o in s.odd),
        sync_call={position + i: s.sync_call for i, s in singles.items() if s.sync_call},
    )


def _attributes(data: bytes, byte: U8, word: U64, fields: _Fields, rows: I64, kinds: npt.NDArray[np.object_], texts: Texts) -> I64:
    """Fills the columns of attributes and returns the bits of those that are there. What is not written as usual becomes odd."""
    node, at, end = fields.attr.node, fields.attr.at, fields.attr.at + fields.attr.size
    size = byte[at + 1].astype(np.int64)
    value = at + 2 + size
    usual = (byte[at] == 0x0A) & (size < 0x80) & (value < end)
    fields.odd[node[~usual]] = True
    code = _KNOWN.codes(word, at + 2, np.where(usual, size, 0))
    mine = np.flatnonzero(usual & (code >= 0))
    node, value, end, code = node[mine], value[mine], end[mine], code[mine]
    has = np.zeros(len(rows), np.int64)
    present = np.zeros((len(rows), len(_READ)), np.bool_)
    present[node, code] = True
    if int(np.count_nonzero(present)) != len(node):  # an attribute twice on a node
        row, times = np.unique(node * len(_READ) + code, return_counts=True)
        fields.odd[row[times > 1] // len(_READ)] = True
    has = present @ _BITS
    for kind, key in (("int64_val", _INT64), ("int32_val", _INT32), ("bool_val", _BOOL)):
        k = np.flatnonzero(_OF_KIND[kind][code])
        number, length = varints(word, byte, value[k] + len(key))
        good = _begins(byte, value[k], key) & (length > 0) & (value[k] + len(key) + length == end[k])
        fields.odd[node[k[~good]]] = True
        if kind == "int32_val":
            number = number.astype(np.int32).astype(np.int64).view(np.uint64)
        elif kind == "bool_val":
            number = (number != 0).astype(np.uint64)
        rows[node[k], _COLUMN[code[k]]] = number.view(np.int64)
    k = np.flatnonzero(_OF_KIND["string_val"][code])
    text = _texts(byte, word, node[k], value[k], end[k], _STRING)
    spans = zip(text.first.tolist(), text.end.tolist(), text.usual.tolist(), strict=True)
    group = np.array([group_of(data[a:b]) if usual else BAD_GROUP for a, b, usual in spans], np.int64)
    rows[text.node, _COLUMN[code[k]]] = group
    fields.odd[text.node[group == BAD_GROUP]] = True
    k = np.flatnonzero(code == _DEP_KINDS)
    text = _texts(byte, word, node[k], value[k], end[k], _STRINGS)
    said = _once_each(word, text, lambda a, b: _kinds(data[a:b], texts))
    kinds[text.node] = said
    fields.odd[text.node] |= np.array([one is None for one in said.tolist()], np.bool_)
    fields.odd[node[code == _SYNC_CALL]] = True  # few: slow reads them
    return has


def _begins(byte: U8, at: I64, key: bytes) -> Bool:
    out: Bool = byte[at] == key[0]
    return out if len(key) == 1 else out & (byte[at + 1] == key[1])


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts in attributes: first byte and end, and whether they are written as usual."""

    node: I64
    first: I64
    end: I64
    usual: Bool


def _texts(byte: U8, word: U64, node: I64, value: I64, end: I64, key: bytes) -> _Texts:
    length, size = varints(word, byte, value + len(key))
    first = value + len(key) + size
    usual = _begins(byte, value, key) & (size > 0) & (first + np.minimum(length, np.uint64(_MOST)).astype(np.int64) == end)
    return _Texts(node, first, end, usual)


def _once_each(word: U64, texts: _Texts, value: Callable[[int, int], bytes | None]) -> npt.NDArray[np.object_]:
    """``value(first, end)`` of every text, asked once for all short ones that are equal; None where they are not usual."""
    out = np.full(len(texts.node), None, np.object_)
    k = np.flatnonzero(texts.usual)
    first, end = texts.first[k], texts.end[k]
    size = end - first
    head, tail = _windows_at(word, first, size)
    _, example, group = np.unique(_mixed(head, tail, size), return_index=True, return_inverse=True)
    same = example[group]
    asked = np.where((size <= 16) & (head[same] == head) & (tail[same] == tail) & (size[same] == size), same, np.arange(len(k)))
    alone = np.unique(asked)
    values = np.full(len(k), None, np.object_)
    values[alone] = [value(a, b) for a, b in zip(first[alone].tolist(), end[alone].tolist(), strict=True)]
    out[k] = values[asked]
    return out


def _kinds(message: bytes, texts: Texts) -> bytes | None:
    """The kinds that the strings of a ``StringList`` name; None if it is written otherwise."""
    if message in texts.kinds:
        return texts.kinds[message]
    out = bytearray()
    at = 0
    while at + 2 <= len(message) and message[at] == 0x0A and message[at + 1] < 0x80:
        end = at + 2 + message[at + 1]
        word = message[at + 2 : end]
        if end > len(message) or not word.isascii():
            break
        out.append(texts.kind_of.get(word, UNKNOWN_DEP))
        at = end
    said = bytes(out) if at == len(message) else None
    if len(message) < 256:
        texts.kinds[message] = said
    return said


def _names(data: bytes, fields: _Fields, rows: I64, texts: Texts) -> None:
    codes = []
    known = texts.name
    for i, (a, size) in enumerate(zip(fields.name_at.tolist(), fields.name_size.tolist(), strict=True)):
        name = data[a : a + size]
        code = known.get(name)
        if code is None:
            try:
                code = known[name] = texts.code_of(name.decode())
            except UnicodeDecodeError:
                fields.odd[i] = True
                code = 0
        codes.append(code)
    rows[:, COLUMNS.index("name")] = codes


def _unpacked(byte: U8, word: U64, spans: _Spans, odd: Bool) -> tuple[I64, U64]:
    """The varints in packed lists: node and value of each, by node. A list that ends inside a varint makes its node odd."""
    some = spans.size > 0
    node, at, size = spans.node[some], spans.at[some], spans.size[some]
    cut = byte[at + size - 1] >= 0x80
    odd[node[cut]] = True
    node, at, size = node[~cut], at[~cut], size[~cut]
    if not len(node):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    before = np.cumsum(size) - size
    where = np.repeat(at - before, size) + np.arange(int(size.sum()))
    last = byte[where] < 0x80
    first = np.ones(len(where), np.bool_)
    first[1:] = last[:-1]
    value, length = varints(word, byte, where[first])
    owner = np.repeat(node, np.add.reduceat(last, before, dtype=np.int64))
    odd[owner[length == 0]] = True
    order = np.argsort(owner, kind="stable")
    return owner[order], value[order]


def _merged(node: I64, value: U64, odd: Bool, singles: dict[int, list[int]]) -> U64:
    """The lists of all nodes one after the other; those of odd nodes from ``singles``."""
    if not singles:
        return value
    keep = ~odd[node]
    more = np.array([v for values in singles.values() for v in values], np.uint64)
    owner = np.concatenate([node[keep], np.repeat(np.array([*singles], np.int64), [len(v) for v in singles.values()])])
    return np.concatenate([value[keep], more])[np.argsort(owner, kind="stable")]
