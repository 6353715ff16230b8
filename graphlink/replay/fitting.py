"""Which changes fit which ranks: a change that names something on one rank need not name anything on the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphlink.errors import UsageError
from graphlink.replay.syncs import NUMBER, Changed, waiting_ranks
from graphlink.replay.whatif import Changes, Scale, apply
from graphlink.replay.workload import Workload


@dataclass(frozen=True, slots=True)
class Fitted:
    """``work`` with the changes that fit it. ``done``: what each did. ``refused``: of the others, as on the command line, why."""

    work: Workload
    done: tuple[str, ...] = ()
    refused: dict[str, UsageError] = field(default_factory=dict)


def fit(work: Workload, changes: Changes, groups: Mapping[int, Sequence[int]]) -> Fitted:
    """Makes those of ``changes`` that name something in ``work``. Each is tried alone first: whether it fits hangs on no other one.

    Raises:
        UsageError: an id is a wait on several ranks.
    """
    fitting = Changes()
    still = apply(work, fitting, groups).work if len(work.ranks) > 1 else work
    places: list[str] = []
    refused = {}
    for name, one in _each(changes):
        for which in one.remove_sync:
            refuse_ambiguous(which, waiting_ranks(work, int(which)) if NUMBER.fullmatch(which) else ())
        try:
            places.append(_place(still, apply(work, one, groups)))
        except UsageError as problem:
            refused[name] = problem
            continue
        fitting = replace(
            fitting,
            scales=fitting.scales + one.scales,
            remove_sync=fitting.remove_sync + one.remove_sync,
            bytes_per_s=fitting.bytes_per_s if one.bytes_per_s is None else one.bytes_per_s,
            launch_ns=fitting.launch_ns if one.launch_ns is None else one.launch_ns,
        )
    if not fitting.any:
        return Fitted(work, refused=refused)
    changed = apply(work, fitting, groups)
    return Fitted(changed.work, tuple(d + p for d, p in zip(changed.done, places, strict=True)), refused)


def refuse_unfit(of_runs: Sequence[tuple[Sequence[int], Mapping[str, UsageError]]], changes: Changes) -> None:
    """``of_runs``: the ranks of each run, and what was refused there.

    Raises:
        UsageError: a change fits none of the runs, or an id several.
    """
    for name, one in _each(changes):
        fits = [ranks for ranks, refused in of_runs if name not in refused]
        if not fits:
            raise of_runs[0][1][name]
        for which in one.remove_sync:
            if NUMBER.fullmatch(which) and len(fits) > 1:
                refuse_ambiguous(which, [r for ranks in fits for r in ranks])


def refuse_ambiguous(which: str, ranks: Sequence[int]) -> None:
    if len(ranks) > 1:
        raise UsageError(f"--remove-sync {which}: a wait of that id is on {told_ranks(ranks)}", todo="choose one with --rank N")


def told_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2``, of many ``ranks 0, 1, 2 ... 63``."""
    shown = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{', '.join(map(str, ranks[:3]))} ... {ranks[-1]}"
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def told_scale(scale: Scale) -> str:
    return f"{scale.work.name.lower()}{':' + scale.pattern.pattern if scale.pattern else ''}={scale.factor:g}"


def _each(changes: Changes) -> Iterable[tuple[str, Changes]]:
    """Every change alone, by its text on the command line, in the order in which ``apply`` makes them."""
    if changes.bytes_per_s is not None:
        yield f"--bandwidth {changes.bytes_per_s / 1e9:g}", Changes(bytes_per_s=changes.bytes_per_s)
    for scale in changes.scales:
        yield f"--scale {told_scale(scale)}", Changes(scales=(scale,))
    if changes.launch_ns is not None:
        yield f"--launch-cost {changes.launch_ns / 1000:g}", Changes(launch_ns=changes.launch_ns)
    for which in changes.remove_sync:
        yield f"--remove-sync {which}", Changes(remove_sync=(which,))


def _place(still: Workload, changed: Changed) -> str:
    """On which ranks of several a change did something, compared with none (``still``)."""
    if len(still.ranks) == 1:
        return ""
    other = (changed.work.cost_ns != still.cost_ns) | (np.diff(changed.work.first) != np.diff(still.first))
    on = [still.ranks[i].rank for i in np.unique(still.member[other]).tolist()]
    return f" ({told_ranks(on)})" if on else ""
