"""Findings collected by rule: how often, and where for example."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from graphlink.graph.check import ERROR
from graphlink.graph.rules import RULES, Rule
from graphlink.version import __version__

EXAMPLES: Final = 3  # of a rule that are kept


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rule that does not hold at ``count`` places."""

    rule: Rule
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found in a set of rank files, errors first; rules in the order of ``RULES``."""

    ranks: tuple[int, ...]
    nodes: int
    errors: int
    warnings: int
    verdicts: tuple[Verdict, ...]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What ``graphlink check --json`` writes: a run a prefix, or the one graph by its file's name."""

    graphlink: str = __version__
    runs: dict[str, Judgement]


class Findings:
    """Collects; nothing is lost but examples beyond the first few."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, key: str, count: int, examples: Iterable[str] = ()) -> None:
        """``count`` more places where rule ``key`` does not hold; of ``examples`` no more are taken than are kept."""
        assert key in RULES, key
        if not count:
            return
        self._count[key] = self._count.get(key, 0) + count
        kept = self._examples.setdefault(key, [])
        for text in examples:
            if len(kept) >= EXAMPLES:
                break
            kept.append(text)

    def judgement(self, ranks: Iterable[int], nodes: int) -> Judgement:
        found = [Verdict(rule, self._count[key], tuple(self._examples[key])) for key, rule in RULES.items() if key in self._count]
        found.sort(key=lambda v: v.rule.grade != ERROR)
        errors = sum(v.rule.grade == ERROR for v in found)
        return Judgement(tuple(ranks), nodes, errors, len(found) - errors, tuple(found))
