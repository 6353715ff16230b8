"""What two runs say of themselves, and by which steps they are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import UNSET

from graphlink import output_names
from graphlink.diff.records import Per, Side
from graphlink.errors import InputError
from graphlink.model import F64
from graphlink.operations import records as operation_records
from graphlink.operations.records import OTHER_THREADS as OTHER_THREADS
from graphlink.operations.records import Operation as Operation
from graphlink.operations.records import Operations
from graphlink.operations.records import Part as Part
from graphlink.operations.records import PartOf as PartOf
from graphlink.report import summary
from graphlink.report.summary import Rank, Summary

ENOUGH: Final = 3  # steps behind the first, on each side, for a test


@dataclass(frozen=True, slots=True)
class RankFacts:
    """A rank: its entry in ``summary.json``, and ``ops.<rank>.json``."""

    entry: Rank
    file: Operations

    @property
    def took_ns(self) -> list[int]:
        return [step.end_ns - step.start_ns for step in self.entry.steps]


@dataclass(frozen=True, slots=True)
class RunFacts:
    folder: str
    summary: Summary
    ranks: dict[int, RankFacts]

    @property
    def steps_ns(self) -> list[int]:
        """Return the time of each step of the run, of several ranks the longest; as many as every rank has, with the
        same key.
        """
        if (
            not self.ranks
            or len({one.entry.iterations.key if one.entry.iterations else "" for one in self.ranks.values()}) > 1
        ):
            return []
        return [max(took) for took in zip(*(one.took_ns for one in self.ranks.values()), strict=False)]

    @property
    def gpus(self) -> list[str]:
        return sorted({name for one in self.ranks.values() for name in one.file.gpus})

    @property
    def has_device(self) -> bool:
        return any(one.file.device_ops for one in self.ranks.values())

    def side(self) -> Side:
        first = next(iter(self.ranks.values()), None)
        found = first.entry.iterations if first else UNSET
        return Side(
            folder=self.folder,
            ranks=list(self.ranks),
            world_size=max((one.entry.world_size for one in self.ranks.values()), default=0),
            gpus=self.gpus,
            device_ops=sum(one.file.device_ops for one in self.ranks.values()),
            steps_ns=self.steps_ns,
            step_key=found.key if found else "",
            found_by=found.found_by if found else "",
        )


def load(folder: Path) -> RunFacts:
    """Read the summary and the operations of a run; nothing else.

    Raises:
        InputError: a file is missing or none of this version of graphlink, or the run has no graphs.
    """
    whole = summary.load(folder / output_names.SUMMARY)
    ranks = {
        one.rank: RankFacts(one, operation_records.load(folder / output_names.operations(one.rank)))
        for one in whole.ranks
    }
    for rank, one in ranks.items():
        if one.file.operations and not one.file.parts:
            name = folder / output_names.operations(rank)
            raise InputError(
                "was written by a graphlink that did not compare runs",
                path=name,
                todo="link the recording again with --force",
            )
    if not ranks:
        raise InputError(
            "has no graphs to compare: logs of Paddle hold bubbles only",
            path=folder,
            todo="name folders of linked recordings",
        )
    return RunFacts(str(folder), whole, dict(sorted(ranks.items())))


@dataclass(frozen=True, slots=True)
class Basis:
    """Which steps count. ``per``: ``step`` (all but the first), ``first step`` (one run has no other), or ``run``:
    everything recorded.
    """

    per: Per
    before: int  # how many steps count
    after: int

    @property
    def enough(self) -> bool:
        return self.per == "step" and min(self.before, self.after) >= ENOUGH

    def of(self, values: Sequence[int]) -> F64:
        """Return the values that count of a part: one a step, or their sum."""
        column = np.asarray(values, np.float64)
        return column.sum(keepdims=True) if self.per == "run" else column[2:] if self.per == "step" else column[1:2]

    def steps(self, run: RunFacts | RankFacts) -> F64:
        """Return the times that count of a run or rank, in ns."""
        took = run.steps_ns if isinstance(run, RunFacts) else run.took_ns
        if self.per == "run":
            return np.array([_recorded_ns(run)], np.float64)
        return np.asarray(took[1:] if self.per == "step" else took[:1], np.float64)


def _recorded_ns(run: RunFacts | RankFacts) -> int:
    if isinstance(run, RankFacts):
        return run.entry.replay.measured_ns
    together = run.summary.run.replay if run.summary.run else None
    if together is not None and together.measured_ns is not None:
        return together.measured_ns
    return max(one.entry.replay.measured_ns for one in run.ranks.values())


def basis(before: RunFacts, after: RunFacts) -> Basis:
    """Choose what is compared: steps, where both runs have such that were found in the same way."""
    sides = before.side(), after.side()
    found = {
        side.step_key if side.found_by == "repeated" else "" for side in sides
    }  # else a step is an iteration, whatever tells
    counts = [len(side.steps_ns) for side in sides]
    if len(found) > 1 or not min(counts):
        return Basis("run", 1, 1)
    return Basis("step", counts[0] - 1, counts[1] - 1) if min(counts) > 1 else Basis("first step", 1, 1)


@dataclass(frozen=True, slots=True)
class RankPair:
    """A rank of both runs; their numbers differ only where each run has one rank."""

    before: RankFacts
    after: RankFacts

    @property
    def rank(self) -> int:
        return self.before.entry.rank


def rank_pairs(before: RunFacts, after: RunFacts) -> list[RankPair]:
    """Pair ranks by number, or the only ones of the two runs."""
    both = [RankPair(one, after.ranks[rank]) for rank, one in before.ranks.items() if rank in after.ranks]
    alone = len(before.ranks) == len(after.ranks) == 1
    return both or ([RankPair(*before.ranks.values(), *after.ranks.values())] if alone else [])


def named_parts(rank: RankFacts) -> Iterator[tuple[tuple[str, ...], bool, Part]]:
    """Yield the parts of a rank with the path of each, () for none, and whether that is of a launch outside any op."""
    paths = [(tuple(one.path), one.kind == "launch") for one in rank.file.operations]
    for part in rank.file.parts:
        path, bare = ((), False) if part.operation is None else paths[part.operation]
        yield path, bare, part
