"""Makes the changes of a what-if in a workload. The old one stays as it is.

A change that names something on one rank need not name anything on the others: ``fit`` makes those that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from graphlink.errors import UsageError
from graphlink.replay.assumptions import made
from graphlink.replay.buckets import with_buckets
from graphlink.replay.changes import (
    AnyChange,
    BucketChange,
    Changes,
    GraphChange,
    NetworkChange,
    StructureChange,
    TimeChange,
    WaitChange,
)
from graphlink.replay.cuda_graph import as_graphs
from graphlink.replay.draft import Draft
from graphlink.replay.loader import with_workers
from graphlink.replay.network import change_network
from graphlink.replay.records import Made
from graphlink.replay.rewire import Restructured
from graphlink.replay.selection import NodeOperations, Selection
from graphlink.replay.syncs import NUMBER, waiting_ranks
from graphlink.replay.times import change_times
from graphlink.replay.waits import change_wait
from graphlink.replay.workload import Workload


@dataclass(frozen=True, slots=True)
class Changed:
    """The workload with changes. ``done``: what each did. ``refused``: changes that fit nothing there, by their title,
    and why.
    """

    work: Workload
    done: tuple[Made, ...] = ()
    refused: dict[str, UsageError] = field(default_factory=dict)


def apply(
    work: Workload, changes: Changes, groups: Mapping[int, Sequence[int]], selection: Selection | None = None
) -> Changed:
    """Return ``work`` with ``changes`` made, in the order of ``Changes.each``. Linear, names matched once each.

    Raises:
        UsageError: a change names nothing that is there.
    """
    if len(changes.dataloader) > 1:
        raise UsageError(
            f"{changes.dataloader[1].title}: a DataLoader has one number of workers", todo="leave one of them out"
        )
    chooses = Selection(work) if selection is None else selection
    draft = Draft.of(work, chooses.waits if any(_is_of_waits(one) for one in changes.each()) else [])
    done = [
        _make(draft, chooses, change, groups) for change in changes.each() if not isinstance(change, StructureChange)
    ]
    out = draft.workload()
    for change in changes.each():
        if isinstance(change, StructureChange):
            found = _restructured(out, chooses, change, groups)
            out = found.work
            done.append(made(change.kind, f"{change.done}: {found.what}", found.nodes, found.ns))
    return Changed(out, tuple(done))


def _is_of_waits(change: AnyChange) -> bool:
    return isinstance(change, WaitChange) or (isinstance(change, TimeChange) and change.remove)


def _make(
    draft: Draft,
    selection: Selection,
    change: NetworkChange | TimeChange | WaitChange,
    groups: Mapping[int, Sequence[int]],
) -> Made:
    if isinstance(change, NetworkChange):
        return change_network(draft, change, groups)
    if isinstance(change, TimeChange):
        return change_times(draft, selection, change)
    return change_wait(draft, selection, change)


def _restructured(
    work: Workload, selection: Selection, change: StructureChange, groups: Mapping[int, Sequence[int]]
) -> Restructured:
    if isinstance(change, GraphChange):
        return as_graphs(work, selection, change)
    if isinstance(change, BucketChange):
        return with_buckets(work, change, groups)
    return with_workers(work, change, groups)


def fit(
    work: Workload,
    changes: Changes,
    groups: Mapping[int, Sequence[int]],
    operations: Mapping[int, NodeOperations] | None = None,
) -> Changed:
    """Make those of ``changes`` that name something in ``work``. Each is tried alone first: whether it fits hangs on no
    other one.

    Raises:
        UsageError: an id is a wait on several ranks.
    """
    selection, fitting = Selection(work, operations or {}), Changes()
    still = apply(work, fitting, groups, selection).work if len(work.ranks) > 1 else work
    places: list[str] = []
    refused = {}
    changed = Changed(work)
    for one in changes.each():
        if (which := _id_of_wait(one)) is not None:
            refuse_ambiguous(which, waiting_ranks(work, int(which)))
        try:
            changed = apply(work, Changes.of(one), groups, selection)
        except UsageError as problem:
            refused[one.title] = problem
            continue
        places.append(_place(still, changed))
        fitting = fitting.joined(Changes.of(one))
    if len(places) > 1:
        changed = apply(work, fitting, groups, selection)
    done = (msgspec.structs.replace(d, what=d.what + p) for d, p in zip(changed.done, places, strict=True))
    return Changed(changed.work, tuple(done), refused)


def _id_of_wait(change: AnyChange) -> str | None:
    """Return the id by which a change names a wait, on whatever rank that is; None for others."""
    by_id = isinstance(change, WaitChange) and change.rank is None and NUMBER.fullmatch(str(change.which))
    return str(change.which) if by_id and isinstance(change, WaitChange) else None


def refuse_unfit(of_runs: Sequence[tuple[Sequence[int], Mapping[str, UsageError]]], changes: Changes) -> None:
    """Refuse changes that fit no run. ``of_runs``: the ranks of each run, and what was refused there.

    Raises:
        UsageError: a change fits none of the runs, or an id several.
    """
    for one in changes.each():
        fits = [ranks for ranks, refused in of_runs if one.title not in refused]
        if not fits:
            raise of_runs[0][1][one.title]
        if (which := _id_of_wait(one)) is not None and len(fits) > 1:
            refuse_ambiguous(which, [r for ranks in fits for r in ranks])


def refuse_ambiguous(which: str, ranks: Sequence[int]) -> None:
    """Refuse the id of a wait that is on several ranks. Raises UsageError."""
    if len(ranks) > 1:
        raise UsageError(
            f"--remove-sync {which}: a wait of that id is on {told_ranks(ranks)}", todo="choose one with --rank N"
        )


def told_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0, 2``, of many ``ranks 0, 1, 2 ... 63``."""
    shown = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{', '.join(map(str, ranks[:3]))} ... {ranks[-1]}"
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def _place(still: Workload, changed: Changed) -> str:
    """Return on which ranks of several a change did something, compared with none (``still``)."""
    if len(still.ranks) == 1:
        return ""
    other = (changed.work.cost_ns != still.cost_ns) | (np.diff(changed.work.first) != np.diff(still.first))
    on = [still.ranks[i] for i in np.unique(still.member[other]).tolist()]
    return f" ({told_ranks(on)})" if on else ""
