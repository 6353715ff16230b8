"""What a perfect matching of a cluster's recordings finds: from the true meetings, not from what was recorded
of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tests.simulator.cluster_records import COLLECTIVE, I32, NOWHERE, RankColumns, TrueMeetings


@dataclass(frozen=True, slots=True)
class TrueUnmatched:
    """Ops of a rank in a row, of one group, that other ranks did not record. ``first``, ``last``: positions among the
    rank's recorded collectives of the group, or messages with that peer and direction. ``where``: before, after,
    between or everywhere."""

    rank: int
    group: int  # into ClusterRun.groups
    kind: int
    peer: int  # -1 for collectives
    where: str
    count: int
    first: int
    last: int
    lacking: tuple[int, ...]
    ops: tuple[int, ...]  # positions in the rank's columns


@dataclass(frozen=True, slots=True)
class TrueConflict:
    """A collective that a rank recorded otherwise than the others. ``index`` among its recorded collectives of the
    group.
    """

    rank: int
    group: int
    index: int
    op: int  # position in the rank's columns
    why: str  # "differs" or "other order"
    meeting: int


@dataclass(frozen=True, slots=True)
class Expected:
    """``meetings``: those that every recorded member has, two or more, as issued; ascending. ``alone``: ops by reason
    that no other recorded rank could have. Every recorded op is of one of ``meetings``, or in ``unmatched``, or of a
    conflict's meeting, or alone."""

    meetings: I32
    unmatched: tuple[TrueUnmatched, ...]
    conflicts: tuple[TrueConflict, ...]
    alone: dict[str, int]


def expected(
    meetings: TrueMeetings,
    ranks: Mapping[int, RankColumns],
    altered: Mapping[int, Mapping[int, str]],
) -> Expected:
    """``altered``: of each rank position in its columns -> why it is not as issued. O(n log n) in ops."""
    members = [
        meetings.rank[a:b].tolist()
        for a, b in zip(meetings.first[:-1].tolist(), meetings.first[1:].tolist(), strict=True)
    ]
    there: list[set[int]] = [set() for _ in members]
    for rank, columns in ranks.items():
        for m in columns.meeting.tolist():
            there[m].add(rank)
    could = [{rank for rank in of if rank in ranks} for of in members]
    contested = {int(ranks[rank].meeting[op]) for rank, ops in altered.items() for op in ops}
    state = [_state(c, t, m in contested) for m, (c, t) in enumerate(zip(could, there, strict=True))]
    unmatched: list[TrueUnmatched] = []
    conflicts: list[TrueConflict] = []
    alone: Counter[str] = Counter()
    for rank, columns in ranks.items():
        for key, ops in _rows(columns):
            of = [int(columns.meeting[op]) for op in ops]
            states = [state[m] for m in of]
            have = [i for i, found in enumerate(states) if found == "matched"]
            alone["no other member recorded"] += states.count("alone")
            group = int(meetings.group[of[0]])
            for found, run in groupby(range(len(of)), states.__getitem__):
                row = list(run)
                if found == "lacking":
                    lacking = set[int]().union(*(could[of[i]] - there[of[i]] for i in row))
                    where = (
                        "everywhere"
                        if not have
                        else "before"
                        if row[-1] < have[0]
                        else "after"
                        if row[0] > have[-1]
                        else "between"
                    )
                    unmatched.append(
                        TrueUnmatched(
                            rank, group, key[1], key[2], where, len(row), row[0], row[-1], tuple(sorted(lacking)),
                            tuple(ops[i] for i in row),
                        )
                    )  # fmt: skip
            mine = altered.get(rank, {})
            conflicts += [
                TrueConflict(rank, group, i, op, mine[op], of[i])
                for i, op in enumerate(ops)
                if op in mine and states[i] == "contested"
            ]
    matched = np.array([m for m, found in enumerate(state) if found == "matched"], np.int32)
    return Expected(matched, tuple(unmatched), tuple(conflicts), dict(+alone))


def _state(could: set[int], there: set[int], contested: bool) -> str:
    """Of a meeting, by the recorded ranks that could have it and those that have."""
    if len(could) < 2:
        return "alone"
    if contested and len(there) > 1:
        return "contested"
    return "matched" if could == there and not contested else "lacking"


def _rows(columns: RankColumns) -> Iterable[tuple[tuple[int, int, int], list[int]]]:
    """Positions of a rank's ops by (group, kind, peer), in order."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for op, (group, kind, peer) in enumerate(
        zip(columns.group.tolist(), columns.kind.tolist(), columns.peer.tolist(), strict=True)
    ):
        found.setdefault((group, kind, peer if kind != COLLECTIVE else NOWHERE), []).append(op)
    return sorted(found.items())
