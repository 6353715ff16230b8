"""A finding of the doctor, and how equal findings of several ranks become one.

Figures are counts and times (``_ns``) of one recording that add up over ranks; the texts of a ``Kind`` name them in braces, times as
``_ms``. So the text of a finding over eight ranks tells their sums.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

MOST_PARTS: Final = 6  # names that a text lists
_CLAUSE: Final = "; "
_FIGURE: Final = re.compile(r"\{(\w+)\}")


class Level(IntEnum):
    """What a finding costs, the worst first."""

    LOST = 0  # nodes, edges or figures are missing, or the graph is not made at all
    INFERRED = 1  # they are there, but guessed from something else
    NOTE = 2  # nothing of the graph: time, room, or what only other outputs need


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that a recording can lack.

    ``lacks`` and ``costs`` are texts with figures in braces; a clause of ``costs`` ends with ";". ``record`` is the option, variable or
    code line that would record it; ``by_capture``: ``graphlink.capture`` does so.
    """

    name: str
    level: Level
    lacks: str
    costs: str
    record: str
    by_capture: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that recordings lack.

    ``share``: of what it could befall in a recording (calls, rows, time), how much it did, 0 to 1. ``parts``: of the first figure how
    much each name has. ``told``: what else was said of it, as the main job says it. ``ranks`` and ``files`` that lack it, ascending.
    """

    kind: Kind
    share: float = 1.0
    figures: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    record: str = ""  # in place of the kind's, where this case has a line of its own

    @property
    def lacks(self) -> str:
        return _filled(self.kind.lacks, self.figures)

    @property
    def costs(self) -> str:
        """Without clauses of which the first figure is 0."""
        clauses = self.kind.costs.split(_CLAUSE)
        kept = [c for c in clauses if not (first := _FIGURE.search(c)) or self.figures[first[1].replace("_ms", "_ns")]]
        return _filled(_CLAUSE.join(kept), self.figures) or "nothing in this recording"


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding of each kind, what costs most first: by level, then by share, then by name."""
    of_kind: dict[str, list[Finding]] = {}
    for finding in findings:
        of_kind.setdefault(finding.kind.name, []).append(finding)
    return sorted(map(_one, of_kind.values()), key=lambda f: (f.kind.level, -f.share, f.kind.name))


def _one(same: list[Finding]) -> Finding:
    figures: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for finding in same:
        figures.update(finding.figures)
        parts.update(finding.parts)
    return Finding(
        kind=same[0].kind,
        share=max(f.share for f in same),
        figures=dict(figures),
        parts=dict(parts.most_common()),
        told=tuple(dict.fromkeys(text for f in same for text in f.told)),
        ranks=tuple(sorted({rank for f in same for rank in f.ranks})),
        files=tuple(dict.fromkeys(file for f in same for file in f.files)),
        record=same[0].record or same[0].kind.record,
    )


def _filled(text: str, figures: dict[str, int]) -> str:
    shown = {name: f"{value:,}" for name, value in figures.items()}
    shown |= {f"{name[:-3]}_ms": f"{value / 1e6:,.3f}" for name, value in figures.items() if name.endswith("_ns")}
    return text.format_map(shown)
