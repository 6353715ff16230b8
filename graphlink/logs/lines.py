"""The lines of a text log, whatever it is packed with and however its lines end, in bounded memory; and its times,
which may be local ones without a zone.

A zone is one of the offsets that are in use, so a log that is shorter than the distance of two of them, and covers the
recording in one, is in that one. An execution trace notes its local time: it may tell the zone, too.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import msgspec

from graphlink.read.source import open_source

BLOCK_BYTES: Final = 1 << 20
MOST_CHARACTERS: Final = 1 << 14  # of a line that is read
_END: Final = re.compile(r"\r\n|\n|\r")
_CONTROLS: Final = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]?[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))")
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DATED: Final = re.compile(
    r"(\d{4})[/-](\d\d)[/-](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?"
)
_MINUTE_NS: Final = 60 * 10**9
_QUARTER: Final = 15
# offsets from UTC in minutes that are in use (IANA's time zone database): whole hours, and these
_ODD: Final = (-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765)
ZONES: Final = tuple(sorted({*(60 * hours for hours in range(-12, 15)), *_ODD}))
_NOTED_NS: Final = 5 * _MINUTE_NS  # an execution trace is begun at most so long before the first row is recorded


def lines_of(path: Path, unread: Counter[str]) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a file, in UTF-8 or, with its mark, UTF-16, without colours, and whether a line break follows.
    Empty ones are left out, and those that are too long counted as ``unread``.

    Raises:
        InputError: the file cannot be opened or unpacked.
    """
    for text, ended in _texts(path):
        if len(text) > MOST_CHARACTERS:
            unread["line too long"] += 1
        elif (plain := _CONTROLS.sub("", text)).strip():
            yield plain, ended


def _texts(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield lines as they are; of too long ones, enough to tell that."""
    with open_source(path) as source:
        block, rest = source.read(BLOCK_BYTES), ""
        encoding = next((name for mark, name in _MARKS if block.startswith(mark)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        while block:
            *whole, last = _END.split(rest + decoder.decode(block))
            yield from ((text, True) for text in whole)
            block, rest = source.read(BLOCK_BYTES), last[: MOST_CHARACTERS + 1]
        if rest:
            yield rest, False


@dataclass(slots=True)
class Sum:
    """A figure that a log repeats. ``absent``: samples that say that it cannot be had."""

    total: float = 0.0
    largest: float = float("-inf")
    samples: int = 0
    absent: int = 0

    def add(self, value: float | None) -> None:
        if value is None:
            self.absent += 1
            return
        self.total += value
        self.largest = max(self.largest, value)
        self.samples += 1

    def mean(self, digits: int) -> float | None:
        """Return the mean, rounded; None without samples."""
        return round(self.total / self.samples, digits) if self.samples else None


class Moment(msgspec.Struct, frozen=True):
    """A time in ns since 1970: in UTC where it was written with a zone (``zoned``), else local."""

    ns: int
    zoned: bool


class Window(msgspec.Struct, frozen=True):
    """The time that was recorded, in ns since 1970 in UTC; ``noted``: the local time of an execution trace, less its
    recording's begin, in ns; None where there is none."""

    began_ns: int
    ended_ns: int
    noted_ns: int | None = None


def moment(text: str) -> Moment | None:
    """Read a time as nvidia-smi or a screen of it writes it; None for any other form."""
    with suppress(ValueError):
        text = str(datetime.strptime(text.strip(), "%a %b %d %H:%M:%S %Y"))
    dated = _DATED.fullmatch(text.strip())
    if dated is None:
        return None
    *parts, fraction, zone = dated.groups()
    year, month, day, hour, minute, second = map(int, parts)
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    ns = round(at.timestamp()) * 10**9 + int((fraction or "0").ljust(9, "0"))
    if zone is None:
        return Moment(ns, zoned=False)
    offset = 0 if zone == "Z" else (1 if zone[0] == "+" else -1) * (60 * int(zone[1:3]) + int(zone[-2:]))
    return Moment(ns - offset * _MINUTE_NS, zoned=True)


def zones(first: Moment, last: Moment, window: Window, slack_ns: int) -> list[int]:
    """Return the offsets from UTC, in minutes, in which a log from ``first`` to ``last`` covers the window, but for
    ``slack_ns``.
    """
    offsets = (0,) if first.zoned else ZONES
    return [
        offset
        for offset in offsets
        if first.ns - offset * _MINUTE_NS <= window.began_ns + slack_ns
        and last.ns - offset * _MINUTE_NS >= window.ended_ns - slack_ns
    ]


def noted_zone(window: Window) -> int | None:
    """Return the offset in minutes that the local time of the execution trace tells; None where it tells none."""
    if window.noted_ns is None:
        return None
    offset = round(window.noted_ns / (_QUARTER * _MINUTE_NS)) * _QUARTER
    return offset if abs(window.noted_ns - offset * _MINUTE_NS) <= _NOTED_NS and offset in ZONES else None


def zone_name(minutes: int) -> str:
    """Return ``UTC+05:30``."""
    return f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
