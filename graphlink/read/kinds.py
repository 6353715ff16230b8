"""What a file is, by content: for wrong-flag errors and for folders whose files have to be told apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(rb"[0-9][0-9A-Za-z.+-]*\Z")


@dataclass(frozen=True, slots=True)
class Kind:
    """``todo`` says how to give such a file to graphlink, or what to do with it first."""

    name: str
    what: str
    todo: str


KINETO = Kind("kineto", "a Kineto trace", "give it with --kineto")
ET = Kind("et", "a PyTorch execution trace (ET)", "give it with --et")
NSYS = Kind("nsys", "an sqlite database (nsys export)", "give it with --nsys")
CHAKRA = Kind("chakra", "a Chakra graph (.et)", "--et takes PyTorch's execution trace, which is JSON; graphlink show prints graphs")
NCCL = Kind("nccl", "a side file of NCCL or the Flight Recorder", "give it with --nccl")
ZIP = Kind("zip", "a zip archive", "unpack it and give the files in it")
TAR = Kind("tar", "a tar archive", "unpack it and give the files in it")
PACKED = Kind("packed", "compressed in a way that is not read", "unpack it, or pack it as .gz or .zst")

_MAGIC = (
    (b"SQLite format 3\0", NSYS),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"\xfd7zXZ\0", PACKED),
    (b"BZh", PACKED),
    (b"7z\xbc\xaf\x27\x1c", PACKED),
    (b"\x1f\x8b", PACKED),  # packed twice
    (b"\x28\xb5\x2f\xfd", PACKED),
)


def binary_kind(head: bytes) -> Kind | None:
    """The kind of a file that is no JSON, from its first few hundred unpacked bytes; None if unknown."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return TAR
    return CHAKRA if _is_chakra(head) else None


def _is_chakra(head: bytes) -> bool:
    """A varint length and a GlobalMetadata: its version (field 1, text) or an attribute (field 2, whose field 1 is a name).

    Has to be told from JSON too, since a length of 123 reads as ``{``.
    """
    at = 0
    while at < min(len(head), 5) and head[at] & 0x80:
        at += 1
    tag, size, body = head[at + 1 : at + 2], head[at + 2 : at + 3], head[at + 3 :]
    if tag == b"\x0a" and size:
        return bool(_VERSION.match(body[: size[0]])) and len(body) >= size[0] > 0
    return tag == b"\x12" and body[:1] == b"\x0a"
