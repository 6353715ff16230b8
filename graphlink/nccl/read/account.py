"""Where each event of a dump went: into a table, or out of it for a reason that is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool


class Account:
    """``ns``, ``begins`` and ``end`` have one entry an event: its time (0 = not recorded), whether it is a begin, and where its end is
    (``ends_of``). Events are given by their positions; a begin stands for its end too.
    """

    def __init__(self, ns: I64, begins: Bool, end: I64):
        self._ns, self._begins, self._end = ns, begins, end
        self._done = np.zeros(len(ns), np.bool_)
        self.left_out: Counter[str] = Counter()
        self.backwards = 0

    @property
    def paired(self) -> int:
        return int((self._end != NOWHERE).sum())

    def keep(self, at: I64) -> dict[str, I64]:
        """Takes begins into a table: their columns of times. An end before its begin is 0, and counted in ``backwards``."""
        start, end = self._ns[at], self._ends(at)
        wrong = (end != 0) & (end < start)
        self.backwards += int(wrong.sum())
        self._finish(at)
        return {"start_ns": start, "end_ns": np.where(wrong, 0, end)}

    def leave(self, at: I64, reason: str) -> None:
        """Leaves begins out that have not been dealt with yet."""
        self.left_out[reason] += self._finish(at)

    def leave_lone(self, ends: Bool, reason: str) -> None:
        """Leaves out the ends that no begin has."""
        lone = ends & ~self._done
        lone[self._end[self._end != NOWHERE]] = False
        self.leave(np.flatnonzero(lone), reason)

    def usable_steps(self, at: I64, proxy: I64) -> I64:
        """Those of the begins of steps that can go into ``Steps``, as positions in ``at``; the others are left out."""
        start, end = self._ns[at], self._ends(at)
        for wrong, reason in (
            ((start == 0) | (end == 0), "steps without a time"),
            (end < start, "steps that end before they begin"),
            (proxy == NOWHERE, "steps of no proxy op"),
        ):
            self.leave(at[wrong], reason)
        return np.flatnonzero(~self._done[at])

    def warnings(self) -> tuple[str, ...]:
        open_ = int((self._begins & (self._end == NOWHERE)).sum())
        return (
            *([f"{open_} events have no end: the dump was cut, or written while they ran"] if open_ else []),
            *([f"{self.backwards} events end before they begin: their ends are not used"] if self.backwards else []),
        )

    def leave_others(self, category: I32, name: I32, neither: Bool, words: Sequence[str], label: Callable[[str, str], str]) -> None:
        """Leaves out what has not been dealt with, by ``label`` of its category and name, which are positions in ``words``."""
        self.leave(np.flatnonzero(neither), "neither begin nor end")
        rest = np.flatnonzero(~self._done)
        codes, counts = np.unique(category[rest].astype(np.int64) * len(words) + name[rest], return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            its_category, its_name = divmod(code, len(words))
            self.left_out[label(words[its_category], words[its_name])] += count

    def _ends(self, at: I64) -> I64:
        end = self._end[at]
        return np.where(end == NOWHERE, 0, self._ns[end])

    def _finish(self, at: I64) -> int:
        end = self._end[at]
        every = np.concatenate([at, end[end != NOWHERE]])
        fresh = every[~self._done[every]]
        self._done[fresh] = True
        return len(fresh)
