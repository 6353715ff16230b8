"""Makes the changes of a what-if in a workload. The old one stays as it is.

A change that names something on one rank need not name anything on the others: ``fit`` makes those that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from graphlink.errors import UsageError
from graphlink.graph_model import Groups
from graphlink.replay.buckets import with_buckets
from graphlink.replay.changes import (
    AnyChange,
    BucketChange,
    Changes,
    GraphChange,
    LoaderChange,
    NetworkChange,
    TimeChange,
    WaitChange,
)
from graphlink.replay.cuda_graph import as_graphs
from graphlink.replay.draft import Draft
from graphlink.replay.loader import with_workers
from graphlink.replay.network import change_network
from graphlink.replay.records import Made
from graphlink.replay.selection import Selection
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


def apply(work: Workload, changes: Changes, groups: Groups) -> Changed:
    """Return ``work`` with ``changes`` made, in the order of ``Changes.each``. Linear, names matched once each.

    Raises:
        UsageError: a change names nothing that is there.
    """
    return _made(Selection(work), changes.each(), groups)


def _made(selection: Selection, changes: Sequence[AnyChange], groups: Groups) -> Changed:
    """Make ``changes``: times and waits first, which a draft holds, then other structures."""
    loaders = [change for change in changes if isinstance(change, LoaderChange)]
    if len(loaders) > 1:
        raise UsageError(f"{loaders[1].title}: a DataLoader has one number of workers", todo="leave one of them out")
    of_waits = any(change.kind in ("remove", "remove_wait", "move_wait") for change in changes)
    draft = Draft(selection, selection.waits if of_waits else [])
    done = []
    for change in changes:
        if isinstance(change, NetworkChange):
            done.append(change_network(draft, change, groups))
        elif isinstance(change, TimeChange):
            done.append(change_times(draft, selection, change))
        elif isinstance(change, WaitChange):
            done.append(change_wait(draft, selection, change))
    out = draft.workload()
    for change in changes:
        if isinstance(change, GraphChange):
            out, made = as_graphs(out, selection, change)
        elif isinstance(change, BucketChange):
            out, made = with_buckets(out, change, groups)
        elif isinstance(change, LoaderChange):
            out, made = with_workers(out, change, groups, selection.recorder_ns)
        else:
            continue
        done.append(made)
    return Changed(out, tuple(done))


def fit(
    work: Workload,
    changes: Changes,
    groups: Groups,
    selection: Selection | None = None,
    *,
    placed: bool = True,
) -> Changed:
    """Make those of ``changes`` that name something in ``work``. Each is tried alone first: whether it fits hangs on no
    other one. ``selection``: of ``work``, if there is one already; ``placed``: of several ranks say on which.

    Raises:
        UsageError: an id is a wait on several ranks.
    """
    selection, fitting = selection or Selection(work), list[AnyChange]()
    still = _made(selection, [], groups).work if placed and len(work.ranks) > 1 else None
    places: list[str] = []
    refused = {}
    changed = Changed(work)
    for change in changes.each():
        if (node_id := _id_of_wait(change)) is not None:
            refuse_ambiguous(node_id, waiting_ranks(work, int(node_id)))
        try:
            changed = _made(selection, [change], groups)
        except UsageError as problem:
            refused[change.title] = problem
            continue
        places.append(_place(still, changed))
        fitting.append(change)
    if len(fitting) > 1:
        changed = _made(selection, fitting, groups)
    done = (replace(made, what=made.what + place) for made, place in zip(changed.done, places, strict=True))
    return Changed(changed.work, tuple(done), refused)


def _id_of_wait(change: AnyChange) -> str | None:
    """Return the id by which a change names a wait, on whatever rank that is; None for others."""
    if isinstance(change, WaitChange) and change.rank is None and NUMBER.fullmatch(str(change.which)):
        return str(change.which)
    return None


def refuse_unfit(of_runs: Sequence[tuple[Sequence[int], Mapping[str, UsageError]]], changes: Changes) -> None:
    """Refuse changes that fit no run. ``of_runs``: the ranks of each run, and what was refused there.

    Raises:
        UsageError: a change fits none of the runs, or an id several.
    """
    for change in changes.each():
        fits = [ranks for ranks, refused in of_runs if change.title not in refused]
        if not fits:
            raise of_runs[0][1][change.title]
        if (node_id := _id_of_wait(change)) is not None and len(fits) > 1:
            refuse_ambiguous(node_id, [rank for ranks in fits for rank in ranks])


def refuse_ambiguous(node_id: str, ranks: Sequence[int]) -> None:
    """Refuse the id of a wait that is on several ranks. Raises UsageError."""
    if len(ranks) > 1:
        raise UsageError(
            f"--remove-sync {node_id}: a wait of that id is on {told_ranks(ranks)}", todo="choose one with --rank N"
        )


def told_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0, 2``, of many ``ranks 0, 1, 2 ... 63``."""
    shown = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{', '.join(map(str, ranks[:3]))} ... {ranks[-1]}"
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def _place(still: Workload | None, changed: Changed) -> str:
    """Return on which ranks of several a change did something, compared with none (``still``)."""
    if still is None:
        return ""
    now = changed.work
    differs = (now.cost_ns != still.cost_ns) | (np.diff(now.first) != np.diff(still.first))
    ranks = [still.ranks[member] for member in np.unique(still.member[differs]).tolist()]
    return f" ({told_ranks(ranks)})" if ranks else ""
