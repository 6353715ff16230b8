"""The parts of two runs, matched: by path and name, as far as both runs have the same paths."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from graphlink.diff.facts import Basis, Part, PartOf, RankFacts, RankPair, RunFacts, named_parts
from graphlink.diff.records import Level
from graphlink.model import F64
from graphlink.patterns import DIGITS, LOADER
from graphlink.read.commnames import short_name
from graphlink.records import counted
from graphlink.tables import grouped

Path = tuple[str, ...]
Key = tuple[Path, PartOf, str, str, bool]
DEVICE: Final = ("kernel", "copy", "communication")
_COLUMNS: Final = ("count_before", "count_after", "before_ns", "after_ns")
OUTSIDE: Final = "outside any op"
LEVELS: Final[tuple[Level, ...]] = ("path", "path without numbers", "ops of the path", "op", "kernel")
_NEARLY: Final = 0.9  # of the best overlap: then the more exact way of matching is taken
_BY_KERNEL: Final = 0.8  # other models have kernels of the same names
_FEW: Final = 3  # paths that have to be called so many times as often
_API: Final = re.compile(r"^(?:hip|cuda|cu)(?=[A-Z])")
_VERSION: Final = re.compile(r"(?:_v\d+|_ptsz|_ptds|_spt)+$")


@dataclass(slots=True)
class Pair:
    """A part of both runs: its count and time (ns), one entry a step that counts on each side; a run without it has
    zeros.

    ``streams``: (device, stream) of its device ops before and after.
    """

    path: Path
    of: PartOf
    name: str
    op: str  # that launched it
    backward: bool
    count_before: F64
    count_after: F64
    before_ns: F64
    after_ns: F64
    streams: tuple[set[tuple[int, int]], set[tuple[int, int]]] = field(default_factory=lambda: (set(), set()))

    @property
    def counts(self) -> tuple[float, float]:
        return float(self.count_before.mean()), float(self.count_after.mean())

    @property
    def mean_ns(self) -> tuple[float, float]:
        return float(self.before_ns.mean()), float(self.after_ns.mean())

    @property
    def change_ns(self) -> float:
        return float(self.after_ns.mean() - self.before_ns.mean())


@dataclass(frozen=True, slots=True)
class Matched:
    """How parts are matched: at which level, whether kernels are matched by name, and how much of both runs' work is
    then alike (0 to 1).

    ``repeats``: how many times as often most calls are made after. ``has``: in words, how much each run has of what is
    matched.
    """

    level: Level
    by_name: bool
    alike: float
    repeats: float
    has: tuple[str, str] = ("", "")

    def path(self, path: Path, bare: bool) -> Path:
        """Return the path as it is matched. ``bare``: of what is launched outside any op, by a call that is in the
        path.
        """
        loader = next((k for k, name in enumerate(path) if LOADER.fullmatch(name)), None)
        if loader is not None:  # what it does inside depends on its kind and its workers
            return (path[loader].partition("#")[0],)
        return _AT[self.level]((*path[:-2], OUTSIDE) if bare else path)

    def key(self, path: Path, bare: bool, part: Part) -> Key:
        """Return what equal parts have in common."""
        at = self.path(path, bare)
        if self.by_name:
            return at, part.of, part.name, part.op, part.backward
        calls = part.of in ("call", "waiting_call")
        return at, part.of, api_name(part.name) if calls else "", "", part.backward


@dataclass(frozen=True, slots=True)
class Both:
    """Two runs with their matched ranks and, for each rank, their matched parts."""

    before: RunFacts
    after: RunFacts
    ranks: Sequence[RankPair]
    basis: Basis
    matched: Matched
    parts: Sequence[Sequence[Pair]]

    @property
    def together(self) -> bool:
        """Return whether ranks are matched with each other in both runs, so that waiting is told from transfer."""
        return self.before.summary.run is not None and self.after.summary.run is not None

    @property
    def stragglers(self) -> tuple[str, str]:
        """Return the evidence of the straggler of each run, "" where no rank stands out."""
        one, other = (run.summary.run.straggler if run.summary.run else None for run in (self.before, self.after))
        return one.evidence if one else "", other.evidence if other else ""


def loads(path: Path) -> bool:
    """Tell whether a matched path is that of a data loader."""
    return len(path) == 1 and LOADER.fullmatch(path[0]) is not None


def in_loader(matched: Path, path: Path) -> bool:
    """Tell whether an op is inside a data loader. Its path as it is ``matched`` is then that of the loader, but it is
    no call of it.
    """
    return loads(matched) and not LOADER.fullmatch(path[-1])


def api_name(name: str) -> str:
    """Return the name of a GPU call as CUDA has it: what HIP calls alike is alike."""
    return _VERSION.sub("", _API.sub("cuda", name))


def _without_numbers(path: Path) -> Path:
    return tuple(name if "::" in name else DIGITS.sub("#", name) for name in path)


def _ops(path: Path) -> Path:
    return tuple(name for name in path if "::" in name) or _without_numbers(path[-1:])


_AT: Final[Mapping[Level, Callable[[Path], Path]]] = {
    "path": lambda path: path,
    "path without numbers": _without_numbers,
    "ops of the path": _ops,
    "op": lambda path: _ops(path)[-1:],
    "kernel": lambda path: (),
}


def matching(pairs: Sequence[RankPair], basis: Basis, by_name: bool) -> Matched:
    """Choose the most exact level at which nearly as much is alike as at any other."""
    device = all(one.file.device_ops for pair in pairs for one in (pair.before, pair.after))
    levels = LEVELS if by_name and device else LEVELS[:-1]
    found = [_overlap(Matched(level, by_name, 0.0, 1.0), pairs, basis, device) for level in levels]
    best = max((one.alike for one in found), default=0.0)
    return next((one for one in found if one.alike >= _NEARLY * best), found[-1])  # none: times that are no numbers


def _overlap(trial: Matched, pairs: Sequence[RankPair], basis: Basis, device: bool) -> Matched:
    """Measure how much is alike: the share of time of what both runs have, each times how alike its number of
    calls is.
    """
    sides = [_work(trial, [getattr(pair, side) for pair in pairs], basis, device) for side in ("before", "after")]
    whole = [sum(ns for ns, _ in side.values()) or 1.0 for side in sides]
    both = [key for key in sides[0] if key in sides[1] and sides[0][key][1] and sides[1][key][1]]
    weight = {key: (sides[0][key][0] / whole[0] + sides[1][key][0] / whole[1]) / 2 for key in both}
    ratio = {key: sides[1][key][1] / sides[0][key][1] for key in both}
    repeats = _commonest(weight, ratio)
    same = {key: weight[key] * min(ratio[key] / repeats, repeats / ratio[key]) for key in both}
    alike, certain = sum(same.values()), _BY_KERNEL if trial.level == "kernel" else 1.0
    has = [counted(len(side), "kernel name" if trial.level == "kernel" else "operation") for side in sides]
    return Matched(trial.level, trial.by_name, min(alike, 1.0) * certain, repeats, (has[0], has[1]))


def _commonest(weight: Mapping[object, float], ratio: Mapping[object, float]) -> float:
    """Return the ratio that most of the weight has, 1 where that is less than half of it or of the keys, or of few
    keys.
    """
    by = grouped((round(value, 4), weight[key]) for key, value in ratio.items())
    most = max(by, key=lambda value: (sum(by[value]), -abs(value - 1)), default=1.0)
    if not by or sum(by[most]) < 0.5 * sum(weight.values()):
        return 1.0
    return most if len(by[most]) >= max(_FEW, len(ratio) / 2) else 1.0


def _work(trial: Matched, ranks: Iterable[RankFacts], basis: Basis, device: bool) -> dict[object, tuple[float, float]]:
    """Return time and number of calls of each path (at the level of kernels: of each kernel) of some ranks, a step."""
    out: dict[object, tuple[float, float]] = {}
    of_device, unlike = trial.level == "kernel", object()
    for rank in ranks:
        rows: dict[object, float] = defaultdict(float)
        for path, bare, part in named_parts(rank):
            key: object = trial.path(path, bare) if not of_device else short_name(part.name)
            if bare and not of_device:  # nothing but its name tells what it is
                key = (key, part.name if trial.by_name else unlike)
            count, ns = float(basis.of(part.count).mean()), float(basis.of(part.ns).mean())
            if part.of == "host" and not of_device and not in_loader(trial.path(path, bare), path):
                rows[key] += count
            if part.of in DEVICE if device else part.of == "host":
                spent, times = out.get(key, (0.0, 0.0))
                out[key] = (spent + ns, times + count)
        for key, times in rows.items():
            if key in out:  # calls of the op, where the recording has ops
                out[key] = (out[key][0], times)
    return out


def paired_parts(pair: RankPair, basis: Basis, matched: Matched) -> list[Pair]:
    """Match the parts of a rank. Linear in parts x steps."""
    out: dict[Key, Pair] = {}
    for side, rank in enumerate((pair.before, pair.after)):
        for path, bare, part in named_parts(rank):
            key = matched.key(path, bare, part)
            if key not in out:
                zeros = [np.zeros(size) for size in (basis.before, basis.after)]
                out[key] = Pair(*key, zeros[0], zeros[1], zeros[0].copy(), zeros[1].copy())
            one, count, ns = out[key], basis.of(part.count), basis.of(part.ns)
            if side:
                one.count_after, one.after_ns = _sum(one.count_after, count), _sum(one.after_ns, ns)
            else:
                one.count_before, one.before_ns = _sum(one.count_before, count), _sum(one.before_ns, ns)
            one.streams[side].update(part.streams)
    return list(out.values())


def summed(pairs: Sequence[Pair]) -> Pair:
    """Return parts of one sort and of as many steps as one."""
    columns: dict[str, Any] = {name: np.sum([getattr(pair, name) for pair in pairs], axis=0) for name in _COLUMNS}
    return replace(pairs[0], **columns)


def _sum(one: F64, other: F64) -> F64:
    """Add up; a rank may have a step more than all ranks have."""
    size = min(len(one), len(other))
    return one[:size] + other[:size]
