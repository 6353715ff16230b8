"""Clocks of ranks against each other, as far as matched ends have told them: what is sure in one group settles another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I64


@dataclass(frozen=True, slots=True)
class Line:
    """Another clock by one's own: own + offset + drift * (own - from)."""

    offset_ns: int
    drift: float
    from_ns: int

    def of(self, own_ns: I64) -> I64:
        other_ns: I64 = own_ns + self.offset_ns + np.rint(self.drift * (own_ns - self.from_ns)).astype(np.int64)
        return other_ns

    def at(self, own_ns: int) -> int:
        return own_ns + self.offset_ns + round(self.drift * (own_ns - self.from_ns))

    def then(self, further: Line) -> Line:
        """From this one's own clock to the further one's other."""
        at = self.from_ns
        if further.drift:  # a drift is only known well near where it was told
            other = further.from_ns - self.offset_ns
            at = other - round(self.drift * (other - self.from_ns) / (1 + self.drift))
        return Line(further.at(self.at(at)) - at, (1 + self.drift) * (1 + further.drift) - 1, at)

    def back(self) -> Line:
        there = self.at(self.from_ns)
        return Line(self.from_ns - there, 1 / (1 + self.drift) - 1, there)


class Lines:
    """Ranks whose clocks are known against each other. Joining n ranks takes n log n steps."""

    def __init__(self) -> None:
        self._root: dict[int, int] = {}
        self._to_root: dict[int, Line] = {}
        self._ranks: dict[int, list[int]] = {}

    def between(self, one: int, other: int) -> Line | None:
        """The clock of rank ``one`` by that of ``other``."""
        if self._root.get(one, one) != self._root.get(other, other):
            return None
        same = Line(0, 0.0, 0)
        return self._to_root.get(other, same).then(self._to_root.get(one, same).back())

    def join(self, one: int, other: int, line: Line) -> None:
        """Notes the clock of ``one`` by that of ``other``; nothing changes where it is known already."""
        for rank in (one, other):
            if rank not in self._root:
                self._root[rank], self._to_root[rank], self._ranks[rank] = rank, Line(0, 0.0, 0), [rank]
        if self._root[one] == self._root[other]:
            return
        if len(self._ranks[self._root[one]]) < len(self._ranks[self._root[other]]):
            one, other, line = other, one, line.back()
        root, old = self._root[one], self._root[other]
        across = self._to_root[other].back().then(line).then(self._to_root[one])  # from the old root's clock
        for rank in self._ranks.pop(old):
            self._to_root[rank] = self._to_root[rank].then(across)
            self._root[rank] = root
            self._ranks[root].append(rank)
