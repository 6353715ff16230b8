"""The lines of a file in bounded memory: no line may be longer than an event ever is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphlink.read.source import Source

BLOCK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1 << 20  # of a line


class Lines:
    """Reads a source once. ``too_long`` lines were passed over; ``cut`` is whether the last line has no end."""

    def __init__(self, source: Source):
        self._source = source
        self.too_long = 0
        self.cut = False

    def blocks(self) -> Iterator[bytes]:
        """Whole lines, up to about ``BLOCK_BYTES`` of them at a time."""
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
