"""The output of ``graphlink doctor --json``."""

from __future__ import annotations

from typing import Final

import msgspec

from graphlink.version import __version__

FORMAT: Final = 1


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. ``figures``: counts and times (``_ns``) over all ``ranks``; ``parts`` of the first of them by name.

    ``record``: the option, variable or code line that would record it; with ``by_capture`` ``graphlink.capture`` does
    so.
    """

    name: str
    level: str  # lost | inferred | note
    lacks: str
    costs: str
    record: str
    by_capture: bool
    share: float  # of what it could befall, 0 to 1, on the rank where it is largest
    figures: dict[str, int]
    parts: dict[str, int]
    told: list[str]
    ranks: list[int]
    files: list[str]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of ``graphlink doctor``, those that cost most first. ``subject``: what was examined; ``ranks`` of
    it.
    """

    graphlink: str = __version__
    format: int = FORMAT
    subject: list[str]
    ranks: list[int]
    findings: list[Told]
