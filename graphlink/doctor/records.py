"""A finding of the doctor, how equal findings of several ranks become one, and what ``--json`` has of them.

Figures are counts and times (``_ns``) of one recording that add up over ranks; the texts of a ``Kind`` name them in
braces, times as ``_ms``. So the text of a finding over eight ranks tells their sums.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

import msgspec

from graphlink.doctor.kinds import KINDS, Level
from graphlink.read.document import Formatted
from graphlink.records import counted
from graphlink.tables import grouped

_CLAUSE: Final = "; "
_FIGURE: Final = re.compile(r"\{(\w+)(?::[^}]*)?\}")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that recordings lack. ``kind``: its name in ``KINDS``.

    ``share``: of what it could befall in a recording (calls, rows, time), how much it did, 0 to 1. ``parts``: of the
    first figure how much each name has. ``told``: what else was reported of it, as the main job reports it. ``ranks``
    and ``files`` that lack it, ascending.
    """

    kind: str
    share: float = 1.0
    figures: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    record: str = ""  # in place of the kind's, where this case has a line of its own


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


class Diagnosis(Formatted, frozen=True, kw_only=True):
    """The findings of ``graphlink doctor``, those that cost most first. ``subject``: what was examined; ``ranks`` of
    it.
    """

    subject: list[str]
    ranks: list[int]
    findings: list[Told]


def if_any(
    kind: str,
    figures: dict[str, int],
    of: int | None = None,
    parts: dict[str, int] | None = None,
    told: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (),
) -> Iterator[Finding]:
    """Yield a finding unless its first figure is 0: that is how many of ``of`` (None: all there are) lack it."""
    count = next(iter(figures.values()))
    if count:
        yield Finding(kind, 1.0 if of is None else count / of, figures, parts or {}, told, ranks)


def merged(findings: Iterable[Finding]) -> list[Told]:
    """Return one entry of each kind, what costs most first: by level, then by share, then by name."""
    of_kind = grouped((finding.kind, finding) for finding in findings)
    worst = get_args(Level).index
    order = sorted(
        of_kind.values(), key=lambda same: (worst(KINDS[same[0].kind].level), -max(f.share for f in same), same[0].kind)
    )
    return list(map(_one, order))


def _one(same: list[Finding]) -> Told:
    kind = KINDS[same[0].kind]
    figures: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for finding in same:
        figures.update(finding.figures)
        parts.update(finding.parts)
    return Told(
        name=kind.name,
        level=kind.level,
        lacks=_kept(kind.lacks, figures) or _filled(kind.lacks, figures),
        costs=_kept(kind.costs, figures) or "nothing in this recording",
        record=same[0].record or kind.record,
        by_capture=kind.by_capture,
        share=round(max(f.share for f in same), 6),
        figures=dict(figures),
        parts=dict(parts.most_common()),
        told=list(dict.fromkeys(text for f in same for text in f.told)),
        ranks=sorted({rank for f in same for rank in f.ranks}),
        files=list(dict.fromkeys(file for f in same for file in f.files)),
    )


def _kept(text: str, figures: Mapping[str, int]) -> str:
    """Fill in the text, without clauses of which the first figure is 0."""
    clauses = text.split(_CLAUSE)
    kept = [c for c in clauses if not (first := _FIGURE.search(c)) or figures[first[1].replace("_ms", "_ns")]]
    return _filled(_CLAUSE.join(kept), figures)


class _Count(int):
    """A count in a text: ``{rows}``, or with what is counted, ``{rows:API call}``: ``1 API call``, ``2 API calls``."""

    def __format__(self, word: str) -> str:
        return counted(int(self), word) if word else f"{int(self):,}"


def _filled(text: str, figures: Mapping[str, int]) -> str:
    shown: dict[str, _Count | str] = {name: _Count(value) for name, value in figures.items()}
    shown |= {f"{name[:-3]}_ms": f"{value / 1e6:,.3f}" for name, value in figures.items() if name.endswith("_ns")}
    return text.format_map(shown)
