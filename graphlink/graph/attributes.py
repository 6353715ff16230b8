"""Fields and attributes of many nodes at once, as the bytes that protobuf makes of the messages of ``et_def_pb2``.

Repeated values go through the messages themselves, each once. Integers, which hardly repeat, are encoded a column at a
time: an integer is a fixed prefix and a varint. ``tests/graph`` holds both against plain construction.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from chakra.schema.protobuf.et_def_pb2 import AttributeProto, Node, StringList

from graphlink.model import I64, U8, Bool
from graphlink.tables import Positions, how_many

IntColumn = tuple[
    str, I64, Bool | None
]  # an ``int64_val`` attribute: name, value of each node, where it is written (None: everywhere)
IntField = tuple[bytes, Positions, Bool | None]  # the same of any message, by the bytes before the varint
_OF_BYTES: Final = (
    2  # the wire type of messages and lists: byte 1 of the bytes before the varint is their length, which is filled in
)


@lru_cache(maxsize=1 << 12)
def varint(value: int) -> bytes:
    """Return the protobuf varint of one non-negative integer; mostly a length, and few differ."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def framed(messages: Sequence[bytes]) -> bytes:
    """Return messages, each with its length before it, as a ``.et`` holds them."""
    return b"".join(chain.from_iterable(zip(map(varint, map(len, messages)), messages, strict=True)))


def varints(value: Positions) -> tuple[U8, I64]:
    """Encode as varints: return as many bytes as the longest of ``value`` takes, and how many of each row count;
    negative numbers take ten, as in protobuf."""
    rest = np.ascontiguousarray(value, np.int64).view(np.uint64)
    rest = rest.astype(np.min_scalar_type(rest.max(initial=0)))  # half of the time
    longest = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    digits = np.empty((len(rest), longest), np.uint8)
    size = np.ones(len(rest), np.int64)
    for k in range(longest):
        more = rest > 0x7F
        digits[:, k] = rest.astype(np.uint8) & 0x7F | more.view(np.uint8) << 7
        size += more
        rest = rest >> rest.dtype.type(7)
    return digits, size


class Encoded(NamedTuple):
    """Bytes of rows, one after the other in ``flat``, with the ``size`` of each."""

    flat: U8
    size: I64

    def pieces(self) -> list[bytes]:
        """Return the bytes of each row."""
        return pieces(self.flat.tobytes(), self.size)


def int_attributes(columns: Sequence[IntColumn], host: Bool) -> list[bytes]:
    """Encode the integer attributes of each node as entries of ``Node.attr``, in the order of ``columns``; of nodes of
    the ``host`` and others apart, which hardly have the same.
    """
    # 52 length-of-attribute, 0A length-of-name name, 48 varint: field numbers of et_def.proto
    keys = [b"\x52\x00\x0a" + bytes([len(name)]) + name.encode() + b"\x48" for name, *_ in columns]
    out = np.empty(len(host), object)
    for side in (host, ~host):
        own = [
            (key, value[side], None if where is None or (there := where[side]).all() else there)
            for key, (_, value, where) in zip(keys, columns, strict=True)
            if where is None or where[side].any()
        ]
        out[side] = int_fields(own, how_many(side)).pieces()
    return list(out)


def int_fields(columns: Sequence[IntField], count: int) -> Encoded:
    """Encode fields of each of ``count`` messages that are an integer or end in one, in the order of ``columns``.

    One matrix of all bytes that there could be, and a mask of those that there are: linear in both.
    """
    digits_of = [varints(value) for _, value, _ in columns]
    template = b"".join(
        prefix + bytes(digits.shape[1]) for (prefix, *_), (digits, _) in zip(columns, digits_of, strict=True)
    )
    bytes_ = np.tile(np.frombuffer(template, np.uint8), (count, 1))
    kept = np.ones((count, len(template)), np.bool_)
    sizes, at = np.zeros(count, np.int64), 0
    for (prefix, _, where), (digits, size) in zip(columns, digits_of, strict=True):
        head = at + len(prefix)
        end = head + digits.shape[1]
        if len(prefix) > 1 and prefix[0] & 7 == _OF_BYTES:
            bytes_[:, at + 1] = size + (len(prefix) - 2)
        bytes_[:, head:end] = digits
        for k in range(1, end - head):
            kept[:, head + k] = k < size
        size += len(prefix)
        if where is not None:
            kept[~where, at:end] = False
            size *= where
        sizes += size
        at = end
    return Encoded(bytes_[kept], sizes)


def lists(first: I64, values: Positions, key: bytes) -> list[bytes]:
    """Encode a list of integers of each node, ``values[first[n] - first[0] : first[n + 1] - first[0]]``, as a field of
    ``key``; an empty one is no field."""
    digits, size = varints(values)
    text = digits[np.arange(digits.shape[1]) < size[:, None]].tobytes()
    at = np.append(0, np.cumsum(size))[first - first[0]]
    return [key + varint(len(of)) + of if of else b"" for of in pieces(text, np.diff(at))]


def pieces(text: bytes, size: I64) -> list[bytes]:
    """Cut a text into pieces of these sizes, one behind the other."""
    return list(map(io.BytesIO(text).read, size.tolist()))  # a fourth of what slices take


def attribute(name: str, **value: object) -> bytes:
    """Return an attribute as bytes of a ``Node``; ``value``: one field of ``AttributeProto``, as ``int64_val=1``."""
    return bytes(Node(attr=[AttributeProto(name=name, **value)]).SerializeToString())


def text(name: str, value: str) -> bytes:
    """Return an attribute of text."""
    return attribute(name, string_val=value)


def texts(name: str, values: Sequence[str]) -> bytes:
    """Return an attribute that is a list of texts."""
    return attribute(name, string_list=StringList(values=values))
