"""The lines of a text log, whatever it is packed with and however its lines end; memory is bounded."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphlink.read.source import open_source

BLOCK_BYTES: Final = 1 << 20
MOST_CHARACTERS: Final = 1 << 14  # of a line that is read
_END: Final = re.compile(r"\r\n|\n|\r")
_CONTROLS: Final = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]?[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))")
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True, slots=True)
class Line:
    """A line without colours. ``ended``: a line break follows; ``long``: its rest was left out."""

    text: str
    ended: bool = True
    long: bool = False


def lines_of(path: Path) -> Iterator[Line]:
    """Yield the lines of a file, in UTF-8 or, with its mark, UTF-16.

    Raises:
        InputError: the file cannot be opened or unpacked.
    """
    with open_source(path) as source:
        block = source.read(BLOCK_BYTES)
        encoding = next((name for mark, name in _MARKS if block.startswith(mark)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        rest, long = "", False
        while block:
            *whole, last = _END.split(rest + decoder.decode(block))
            for text in whole:
                yield _line(text, ended=True, long=long)
                long = False
            long = long or len(last) > MOST_CHARACTERS
            rest = last[: MOST_CHARACTERS + 1]
            block = source.read(BLOCK_BYTES)
        if rest:
            yield _line(rest, ended=False, long=long)


def _line(text: str, *, ended: bool, long: bool) -> Line:
    return Line(_CONTROLS.sub("", text[:MOST_CHARACTERS]), ended, long or len(text) > MOST_CHARACTERS)
