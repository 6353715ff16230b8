"""Joins simulated clusters whose recordings have faults, and compares with what truly happened: a row a fault, over
several seeds.

From the root of the project: python -m benchmarks.faults [--seeds 3] [--ranks 2 8 64]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphlink.model import I64
from graphlink.ranks.clocks import clocks
from graphlink.ranks.match import Matching, match
from graphlink.ranks.records import AlignedClock, RankComms

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator import (
    ClusterRun,
    ClusterTraining,
    Differs,
    Dropped,
    EarlyEnd,
    Fault,
    LateStart,
    MissingRank,
    OtherOrder,
    ProfilerOverhead,
    ProfilerStart,
    cluster_run,
)

SIZES = {
    2: (2, 1, 1),
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (4, 2, 2),
    32: (4, 2, 4),
    64: (8, 4, 2),
}  # ranks -> data, tensor, pipeline
SORT = "data"  # group of the faults in single collectives: it has one of each size a step
HOSTS = 4
OFFSET_NS, DRIFT_PPM = 50_000_000, 20.0

Faults = Callable[[ClusterTraining, np.random.Generator], list[Fault]]


def _rank(training: ClusterTraining, rng: np.random.Generator) -> int:
    return int(rng.integers(training.world))


def _which(training: ClusterTraining, rng: np.random.Generator) -> int:
    """One of the group's collectives that the next one of the same step follows."""
    return int(rng.integers(training.steps)) * training.layers + int(rng.integers(training.layers - 1))


FAULTS: dict[str, Faults] = {
    "none": lambda _, __: [],
    "LateStart": lambda t, rng: [LateStart(_rank(t, rng), share=rng.uniform(0.02, 0.5))],
    "EarlyEnd": lambda t, rng: [EarlyEnd(_rank(t, rng), share=rng.uniform(0.5, 0.98))],
    "Dropped": lambda t, rng: [Dropped(_rank(t, rng), SORT, _which(t, rng))],
    "Dropped, all alike": lambda t, rng: [Dropped(_rank(t, rng), "tensor" if t.tensor > 1 else SORT, _which(t, rng))],
    "MissingRank": lambda t, rng: [MissingRank(_rank(t, rng))],
    "ProfilerStart": lambda _, rng: [ProfilerStart(int(rng.integers(1_000_000, 20_000_000)))],
    "ProfilerOverhead": lambda t, rng: [ProfilerOverhead(_rank(t, rng), 1, 5_000_000)],
    "OtherOrder": lambda t, rng: [OtherOrder(_rank(t, rng), SORT, _which(t, rng))],
    "Differs": lambda t, rng: [Differs(_rank(t, rng), SORT, _which(t, rng))],
    "LateStart + Dropped": lambda t, rng: [LateStart(0, share=rng.uniform(0.02, 0.4)), Dropped(t.world - 1, SORT, 2 * t.layers)],
    "LateStart + EarlyEnd": lambda t, rng: [LateStart(0, share=rng.uniform(0.0, 0.4)), EarlyEnd(t.world - 1, share=rng.uniform(0.6, 1))],
    "ProfilerStart + LateStart": lambda t, rng: [ProfilerStart(5_000_000), LateStart(_rank(t, rng), share=rng.uniform(0.2, 0.5))],
    "MissingRank + Differs": lambda t, rng: [MissingRank(t.world - 1), Differs(0, SORT, _which(t, rng))],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """Counts over all ranks. ``unmatched``, ``conflicts`` and ``right``: findings, as told and as they are;
    ``error_ns`` of clocks.
    """

    ops: int
    meetings: int
    matched: int  # of ``meetings``, those found
    wrong: int  # found, and none: ops of several meetings, or not all of one
    unmatched: int
    told: int
    right: int  # of what was told, what is as it is
    conflicts: int
    conflicts_right: int
    error_ns: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=sorted(SIZES), choices=sorted(SIZES))
    arguments = parser.parse_args()
    print(
        f"{'fault':26} {'seq':4} {'ranks':>5} {'ops':>7} {'matched':>13} {'wrong':>5} {'unmatched':>9} "
        f"{'conflicts':>9} {'clocks':>8}"
    )
    for name, faults in FAULTS.items():
        for seq in (True, False):
            for ranks in arguments.ranks:
                rows = [
                    row
                    for training, drawn in drawn_runs(faults, ranks, arguments.seeds)
                    if (row := tried(training, drawn, seq=seq))
                ]
                print(line(name, ranks, rows, seq=seq), flush=True)


def drawn_runs(faults: Faults, ranks: int, seeds: int) -> Iterator[tuple[ClusterTraining, list[Fault]]]:
    data, tensor, pipeline = SIZES[ranks]
    for seed in range(seeds):
        training = ClusterTraining(
            data=data, tensor=tensor, pipeline=pipeline, expert=2 if data > 2 else 1, steps=6 if ranks <= 16 else 3, layers=3, seed=seed,
            ranks_per_host=-(-ranks // HOSTS), host_clock_offset_ns=OFFSET_NS, drift_ppm=DRIFT_PPM,
        )  # fmt: skip
        yield training, faults(training, np.random.default_rng([seed, ranks]))


def tried(training: ClusterTraining, faults: Sequence[Fault], *, seq: bool) -> Row:
    run = cluster_run(training, faults)
    ranks = [RankComms(**columns.comms(seq=seq)) for columns in run.ranks.values()]
    found = match(ranks)
    aligned = clocks(ranks, found.matches).clocks
    matched, wrong = _meetings(run, found)
    unmatched = Counter((u.rank, u.where, u.first, u.last, u.lacking, u.ops) for u in run.expected.unmatched)
    told = Counter((u.rank, u.where, u.first, u.last, u.lacking, tuple(u.ops.tolist())) for u in found.unmatched)
    return Row(
        ops=sum(len(one.node) for one in ranks),
        meetings=len(run.expected.meetings),
        matched=matched,
        wrong=wrong,
        unmatched=unmatched.total(),
        told=told.total(),
        right=(unmatched & told).total(),
        conflicts=len({c.meeting for c in run.expected.conflicts}) - sum(isinstance(f, OtherOrder) for f in faults),
        conflicts_right=_conflicts(run, found),
        error_ns=max(off_ns(run, clock, aligned[0]) for clock in aligned),
    )


def _meetings(run: ClusterRun, found: Matching) -> tuple[int, int]:
    """How many of the expected meetings were found, and how many were found that are none."""
    true = [columns.meeting for columns in run.ranks.values()]
    m = found.matches
    of_member = np.array([true[r][o] for r, o in zip(m.rank.tolist(), m.op.tolist(), strict=True)], np.int64)
    low, high = np.minimum.reduceat(of_member, m.first[:-1]), np.maximum.reduceat(of_member, m.first[:-1])
    right = np.isin(low[low == high], run.expected.meetings)
    return int(np.count_nonzero(right)), len(low) - int(np.count_nonzero(right))


def _conflicts(run: ClusterRun, found: Matching) -> int:
    """Conflicts that name an altered collective by rank, number and reason."""
    true = {(c.rank, run.groups[c.group].members, c.index, c.why) for c in run.expected.conflicts}
    return sum(
        bool(
            {(rank, c.group[0], index, c.why) for rank, index in ((c.rank, c.index), (c.other_rank, c.other_index))}
            & true
        )
        for c in found.conflicts
    )


def off_ns(run: ClusterRun, clock: AlignedClock, reference: AlignedClock) -> int:
    """By how much a clock is off against that of the reference rank, at the first and at the last moment of its
    recording.
    """
    mine, others = run.ranks[clock.rank], run.ranks[reference.rank]
    true_ns: I64 = np.array([mine.true_start_ns.min(), mine.true_end_ns.max()])
    return int(np.abs(clock.of(mine.clock.recorded(true_ns)) - others.clock.recorded(true_ns)).max())


def line(name: str, ranks: int, rows: Sequence[Row], *, seq: bool) -> str:
    total = Row(*(sum(getattr(row, field) for row in rows) for field in Row.__slots__))
    error_us = max(row.error_ns for row in rows) / 1e3
    named = f"{total.right}/{total.unmatched}" + (f"+{total.told - total.right}" if total.told > total.right else "")
    conflicts = f"{total.conflicts_right}/{total.conflicts}"
    return (
        f"{name:26} {'yes' if seq else 'no':4} {ranks:5} {total.ops:7,} {f'{total.matched:,}/{total.meetings:,}':>13} "
        f"{total.wrong:5} "
        f"{named:>9} {conflicts:>9} {error_us:5.1f} us"
    )


if __name__ == "__main__":
    main()
