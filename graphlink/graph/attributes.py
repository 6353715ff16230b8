"""Fields and attributes of many nodes at once, as the bytes that protobuf makes of the messages of ``et_def_pb2``.

Repeated values go through the messages themselves, each once. Integers, which hardly repeat, are encoded a column at a time:
an integer is a fixed prefix and a varint. ``tests/graph`` holds both against plain construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from chakra.schema.protobuf.et_def_pb2 import AttributeProto, Node, StringList
from google.protobuf.message import Message

from graphlink.model import I64, U8, Bool
from graphlink.tables import Positions

IntColumn = tuple[str, I64, Bool | None]  # an ``int64_val`` attribute: name, value of each node, where it is written (None: everywhere)
_Field = tuple[bytes, Positions, Bool | None]  # the bytes before the varint, value and where; byte 1 of a message or list is its length


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
    """Encode as varints: return as many bytes as the longest of ``value`` takes, and how many of each row count; negative numbers take ten,
    as in protobuf."""
    rest = np.ascontiguousarray(value, np.int64).view(np.uint64)
    longest = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    digits = np.empty((len(rest), longest), np.uint8)
    size = np.ones(len(rest), np.int64)
    for k in range(longest):
        more = rest > 0x7F
        digits[:, k] = rest.astype(np.uint8) & 0x7F | more.view(np.uint8) << 7
        size += more
        rest = rest >> np.uint64(7)
    return digits, size


def int_blobs(columns: Sequence[IntColumn], count: int) -> list[bytes]:
    """Encode the integer attributes of each of ``count`` nodes as the bytes of ``Node.attr`` entries, in the order of ``columns``."""
    # 52 length-of-attribute, 0A length-of-name name, 48 varint: field numbers of et_def.proto
    return encoded(
        [(b"\x52\x00\x0a" + bytes([len(name)]) + name.encode() + b"\x48", value, where) for name, value, where in columns], count
    )


def encoded(columns: Sequence[_Field], count: int) -> list[bytes]:
    """Encode fields of each of ``count`` nodes that are an integer or end in one, in the order of ``columns``.

    One matrix of all bytes that there could be, and a mask of those that there are: linear in both.
    """
    digits_of = [varints(value) for _, value, _ in columns]
    template = b"".join(prefix + bytes(digits.shape[1]) for (prefix, *_), (digits, _) in zip(columns, digits_of, strict=True))
    bytes_ = np.tile(np.frombuffer(template, np.uint8), (count, 1))
    kept = np.ones((count, len(template)), np.bool_)
    lengths, at = np.zeros(count, np.int64), 0
    for (prefix, _, where), (digits, size) in zip(columns, digits_of, strict=True):
        head = at + len(prefix)
        end = head + digits.shape[1]
        length = size + len(prefix)
        if len(prefix) > 1:
            bytes_[:, at + 1] = length - 2
        bytes_[:, head:end] = digits
        for k in range(1, end - head):
            kept[:, head + k] = k < size
        if where is not None:
            kept[~where, at:end] = False
            length = length * where
        lengths += length
        at = end
    return pieces(bytes_[kept].tobytes(), np.append(0, np.cumsum(lengths)))


def lists(first: I64, values: Positions, key: bytes) -> list[bytes]:
    """Encode a list of integers of each node, ``values[first[n] - first[0] : first[n + 1] - first[0]]``, as a field of ``key``; an empty
    one is no field."""
    digits, size = varints(values)
    text = digits[np.arange(digits.shape[1]) < size[:, None]].tobytes()
    at = np.append(0, np.cumsum(size))[first - first[0]]
    return [key + varint(len(of)) + of if of else b"" for of in pieces(text, at)]


def pieces(text: bytes, at: I64) -> list[bytes]:
    """Cut a text at places, the first and the last of which are its ends."""
    return [text[a:b] for a, b in pairwise(at.tolist())]


def serialised(message: Message) -> bytes:
    return message.SerializeToString()


def attribute(name: str, **value: object) -> bytes:
    """Return an attribute as bytes of a ``Node``; ``value``: one field of ``AttributeProto``, as ``int64_val=1``."""
    return serialised(Node(attr=[AttributeProto(name=name, **value)]))


def text(name: str, value: str) -> bytes:
    """Return an attribute of text."""
    return attribute(name, string_val=value)


def texts(name: str, values: Sequence[str]) -> bytes:
    """Return an attribute that is a list of texts."""
    return attribute(name, string_list=StringList(values=values))
