"""Attributes of many nodes at once, as the bytes that protobuf makes of the messages of ``et_def_pb2``.

Repeated values go through the messages themselves, each once. Integers, which hardly repeat, are encoded a column at a time:
an ``int64_val`` attribute is a fixed prefix and a varint. ``tests/graph`` holds both against plain construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from chakra.schema.protobuf.et_def_pb2 import AttributeProto, Node, StringList
from google.protobuf.message import Message

from graphlink.model import I64, U8, Bool

IntColumn = tuple[str, I64, Bool | None]  # an ``int64_val`` attribute: name, value of each node, where it is written (None: everywhere)


def varint(value: int) -> bytes:
    """Return the protobuf varint of one non-negative integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SHORT_VARINTS: Final = tuple(varint(n) for n in range(4096))


def framed(message: bytes) -> bytes:
    """Return a message with its length before it, as a ``.et`` holds it."""
    n = len(message)
    return (SHORT_VARINTS[n] if n < len(SHORT_VARINTS) else varint(n)) + message


def varints(value: I64) -> tuple[U8, I64]:
    """Encode as varints: return as many bytes as the longest of ``value`` takes, and how many of each row count; negative numbers take ten,
    as in protobuf."""
    rest = np.ascontiguousarray(value).view(np.uint64)
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
    """Encode the integer attributes of each of ``count`` nodes as the bytes of ``Node.attr`` entries, in the order of ``columns``.

    One matrix of all bytes that there could be, and a mask of those that there are: linear in both.
    """
    # 52 length-of-attribute, 0A length-of-name name, 48 varint: field numbers of et_def.proto
    prefixes = [b"\x52\x00\x0a" + bytes([len(name)]) + name.encode() + b"\x48" for name, *_ in columns]
    encoded = [varints(value) for _, value, _ in columns]
    width = sum(len(p) + digits.shape[1] for p, (digits, _) in zip(prefixes, encoded, strict=True))
    template = b"".join(p + bytes(digits.shape[1]) for p, (digits, _) in zip(prefixes, encoded, strict=True))
    bytes_ = np.tile(np.frombuffer(template, np.uint8), (count, 1))
    kept = np.ones((count, width), np.bool_)
    lengths, at = np.zeros(count, np.int64), 0
    for (_, _, where), prefix, (digits, size) in zip(columns, prefixes, encoded, strict=True):
        head = at + len(prefix)
        end = head + digits.shape[1]
        bytes_[:, at + 1] = len(prefix) - 2 + size
        bytes_[:, head:end] = digits
        for k in range(1, end - head):
            kept[:, head + k] = k < size
        length = size + len(prefix)
        if where is not None:
            kept[~where, at:end] = False
            length = length * where
        lengths += length
        at = end
    flat = bytes_[kept].tobytes()
    ends = np.cumsum(lengths).tolist()
    return [flat[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


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
