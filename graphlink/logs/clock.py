"""The local time of a log against the recording's: which zone it is in, where only one makes the log cover what was
recorded.

Logs of nvidia-smi give local time without a zone. A zone is one of the offsets that are in use, so a log that is
shorter than the distance of two of them, and covers the recording in one, is in that one. An execution trace notes its
local time: it may tell the zone, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

import msgspec

_DATED: Final = re.compile(
    r"(\d{4})[/-](\d\d)[/-](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?"
)
_SCREEN: Final = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) (\d{4})")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MINUTE_NS: Final = 60 * 10**9
_QUARTER: Final = 15
# offsets from UTC in minutes that are in use (IANA's time zone database): whole hours, and these
_ODD: Final = (-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765)
ZONES: Final = tuple(sorted({*(60 * hours for hours in range(-12, 15)), *_ODD}))
_NOTED_NS: Final = 5 * _MINUTE_NS  # an execution trace is begun at most so long before the first row is recorded


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
    dated, screen = _DATED.fullmatch(text.strip()), _SCREEN.fullmatch(text.strip())
    if dated is not None:
        *parts, fraction, zone = dated.groups()
        return _moment([int(part) for part in parts], int((fraction or "0").ljust(9, "0")), zone)
    if screen is not None and screen[1] in _MONTHS:
        month, day, hour, minute, second, year = screen.groups()
        return _moment([int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second)], 0, None)
    return None


def _moment(parts: Sequence[int], fraction_ns: int, zone: str | None) -> Moment | None:
    year, month, day, hour, minute, second = parts
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    ns = (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1) * 10**9 + fraction_ns
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
