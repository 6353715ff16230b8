"""Changed parts put together: what one cause explains is one change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.diff.pairs import Pair, Path

_PURE: Final = 0.9  # of the time of a group: so much of it changed
_UNIFORM: Final = 0.9  # of the time of all parts: so much of it changed by nearly one factor
_UNIFORM_HOST: Final = 0.7
_COUNTS: Final = 0.01  # of the time: parts that take less are not counted
_SPREAD: Final = 0.1  # that factor, either way
_SPREAD_OF_HOST: Final = 0.3  # the same of the host, where only a part of an op may be slower


@dataclass(frozen=True, slots=True)
class Group:
    """Parts with one thing in common: a path, the op that launched them or else the last of the path (``op``), or a
    name.
    """

    by: str
    path: Path
    name: str
    pairs: tuple[Pair, ...]

    @property
    def op(self) -> str:
        """Return the op that launched all of it, "" where several did."""
        ops = {pair.op for pair in self.pairs}
        return ops.pop() if len(ops) == 1 else ""

    @property
    def backward(self) -> bool:
        """Return whether it is backward work alone."""
        return all(pair.backward for pair in self.pairs)

    @property
    def before_ns(self) -> float:
        return sum(pair.mean_ns[0] for pair in self.pairs)

    @property
    def after_ns(self) -> float:
        return sum(pair.mean_ns[1] for pair in self.pairs)

    @property
    def change_ns(self) -> float:
        return self.after_ns - self.before_ns


def uniform(every: Sequence[Pair], changed: Sequence[Pair]) -> float | None:
    """Return the factor by which nearly all of the time changed; None where there is no such one."""
    known = [pair for pair in every if all(pair.mean_ns)]
    of = {pair.of for pair in known}
    if len({pair.path for pair in known}) < 2:
        return None
    weight = np.array([pair.mean_ns[0] for pair in known])
    ratio = np.array([pair.mean_ns[1] / pair.mean_ns[0] for pair in known])
    order = np.argsort(ratio)
    middle = float(ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
    of_changed = {id(pair) for pair in changed}
    spread = _SPREAD_OF_HOST if "host" in of else _SPREAD
    near = np.array([id(pair) in of_changed for pair in known]) & (np.abs(ratio / middle - 1) <= spread)
    near &= (ratio > 1) == (middle > 1)
    counts = weight >= _COUNTS * weight.sum()
    if (
        weight[near].sum() < (_UNIFORM_HOST if "host" in of else _UNIFORM) * weight.sum()
        or near[counts].sum() <= counts.sum() / 2
    ):
        return None
    return middle


def grouped(every: Sequence[Pair], changed: Sequence[Pair]) -> list[Group]:
    """Put changed parts together by path, else by the last op of their paths, else by name: as many as possible, where
    nearly all that has this in common changed the same way. Linear in parts x groups."""
    left = list(changed)
    out: list[Group] = []
    kinds: tuple[tuple[str, Callable[[Pair], object]], ...] = (
        ("path", lambda pair: pair.path or None),
        ("op", lambda pair: (pair.op or pair.path[-1:], pair.backward) if pair.path else None),
        ("name", lambda pair: pair.name or None),
    )
    whole = {by: _by(every, key) for by, key in kinds}
    while left:
        best: tuple[float, str, list[Pair]] | None = None
        for by, key in kinds:
            for value, pairs in _by(left, key).items():
                mine = _same_way(pairs)
                size = sum(abs(pair.change_ns) for pair in mine)
                pure = by == "path" or _time(mine) >= _PURE * _time(whole[by].get(value, []))
                if value is not None and pure and (best is None or size > best[0] * 1.001):
                    best = size, by, mine
        if best is None:
            best = abs(left[0].change_ns), "path", [left[0]]
        _, by, mine = best
        names = {pair.name for pair in mine}
        out.append(
            Group(by, _common([pair.path for pair in mine]), names.pop() if len(names) == 1 else "", tuple(mine))
        )
        gone = {id(pair) for pair in mine}
        left = [pair for pair in left if id(pair) not in gone]
    return out


def _by(pairs: Sequence[Pair], key: Callable[[Pair], object]) -> dict[object, list[Pair]]:
    out: dict[object, list[Pair]] = defaultdict(list)
    for pair in pairs:
        out[key(pair)].append(pair)
    return out


def _same_way(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the parts that take longer, or those that take less, whichever is more."""
    longer = [pair for pair in pairs if pair.change_ns > 0]
    less = [pair for pair in pairs if pair.change_ns <= 0]
    return longer if sum(pair.change_ns for pair in longer) >= -sum(pair.change_ns for pair in less) else less


def _time(pairs: Sequence[Pair]) -> float:
    return sum(pair.mean_ns[0] for pair in pairs)


def _common(paths: Sequence[Path]) -> Path:
    """Return the path of all, or what all end with."""
    if len(set(paths)) == 1:
        return paths[0]
    end: list[str] = []
    for names in zip(*(path[::-1] for path in paths), strict=False):
        if len(set(names)) > 1:
            break
        end.insert(0, names[0])
    return tuple(end)
