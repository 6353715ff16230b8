"""Other times of nodes: what each change of times of a what-if does."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, Bool
from graphlink.records import shortened
from graphlink.replay.assumptions import made
from graphlink.replay.changes import SORTS, Selector, TimeChange
from graphlink.replay.counterparts import Counterparts, as_others, in_other_run
from graphlink.replay.draft import Draft
from graphlink.replay.names import closest
from graphlink.replay.records import Made
from graphlink.replay.selection import Selection
from graphlink.replay.workload import Work, Workload

QUICKEST: Final = 0.1  # of the ops with one launch: what others take more is their own work
EVEN_SORTS: Final = (Work.HOST, Work.KERNEL)  # of a rank that is to be as the others, if no sort is chosen
_NAMES: Final = "graphlink replay DIR --list prints the names that there are"


def change_times(draft: Draft, selection: Selection, change: TimeChange) -> Made:
    """Make a change in ``draft``.

    Raises:
        UsageError: it chooses nothing that is there.
    """
    if change.launch_us is not None:
        return _launches(draft, selection, change, round(change.launch_us * 1000))
    named = selection.nodes(_of_any_sort(change))
    mine = named if change.sort is None else named & (draft.work.work == SORTS[change.sort])
    late = named & (draft.fixed > 0) & ~mine if change.sort == "delay" else np.zeros_like(named)
    if not (mine.any() or late.any()):
        raise UsageError(f"{change.title}: no such node", todo=_meant(draft.work, change, named))
    before = int(draft.cost.sum())
    note = ""
    factor = 0.0 if change.remove and change.sort == "delay" else change.scale
    if factor is not None:
        draft.scale(mine, factor)
        draft.scale_start_delays(late, factor)
        draft.scale_delays(named if change.sort == "delay" else mine & (draft.work.work == Work.DELAY), factor)
    elif change.add_us is not None:
        mine, note = _add(draft, mine, round(change.add_us * 1000))
    elif change.remove:
        mine, note = _remove(draft, selection, mine)
    else:
        mine, note = _taken_over(draft, selection, change, mine)
    nodes, ns = int(np.count_nonzero(mine | late)), int(draft.cost.sum()) - before
    return made(change.kind, f"{change.done}: {nodes:,} nodes, {ns / 1e6:+,.3f} ms of work{note}", nodes, ns)


def _of_any_sort(change: TimeChange) -> Selector:
    return Selector(**{name: getattr(change, name) for name in Selector.__struct_fields__ if name != "sort"})


def _meant(work: Workload, change: TimeChange, named: Bool) -> str:
    """Guess what a change that found nothing meant: another sort, or a name that is like it."""
    if named.any():
        sorts = ", ".join(Work(sort).name.lower() for sort in np.unique(work.work[named]).tolist())
        return f"what it finds is of sort {sorts}; {_NAMES}"
    words = [] if change.sort is not None else SORTS
    like = closest([*words, *work.names()[1]], "" if change.name is None else change.name.pattern)
    return f"did you mean {' or '.join(map(shortened, like))}? {_NAMES}" if like else _NAMES


def _add(draft: Draft, mine: Bool, ns: int) -> tuple[Bool, str]:
    """Add to the time of each node, of an op in parts to its first node."""
    mine = mine & ~draft.work.is_part
    nodes = np.flatnonzero(mine)
    own = draft.cost[nodes] - draft.fixed[nodes]
    draft.set_own(nodes, np.maximum(own + ns, 0))
    draft.explained[nodes] = np.minimum(draft.explained[nodes], draft.cost[nodes])
    short = int(np.count_nonzero(own + ns < 0))
    return mine, f", {short:,} of them shorter than that: down to 0" if short else ""


def _remove(draft: Draft, selection: Selection, mine: Bool) -> tuple[Bool, str]:
    """Remove nodes, the delays of device ops among them, and the waits in host ops among them."""
    mine = mine | selection.delays_of(mine)
    inside = np.array([bool(mine[wait.targets[0]]) for wait in draft.waits], np.bool_)
    draft.remove(mine)
    draft.remove_waits(inside)
    return mine, f", {np.count_nonzero(inside):,} waits" if inside.any() else ""


def _taken_over(draft: Draft, selection: Selection, change: TimeChange, mine: Bool) -> tuple[Bool, str]:
    """Let nodes take what their counterparts take, in another run or on the other ranks."""
    if change.like is None and change.sort is None:
        mine = mine & np.isin(draft.work.work, EVEN_SORTS)
    found: Counterparts = (
        as_others(selection, mine) if change.like is None else in_other_run(selection, mine, change.like)
    )
    nodes = np.flatnonzero(mine & (found.own_ns != NOWHERE))
    draft.set_own(nodes, found.own_ns[nodes])
    alone = mine & (found.own_ns == NOWHERE)
    notes = [f", {found.by_median:,} of them by the median of their name"] if found.by_median else []
    if alone.any():
        notes.append(
            f"; {np.count_nonzero(alone):,} with {int(draft.cost[alone].sum()) / 1e6:,.3f} ms have no counterpart and "
            "stay"
        )
    return mine & ~alone, "".join(notes)


def launches(work: Workload) -> I64:
    """Count the launch calls that each host node makes: its ``launch`` edges, those of one graph launch (equal
    correlation) once.
    """
    target, launch = work.target, np.flatnonzero(work.kind == EdgeKind.LAUNCH)
    by, node = work.column("correlation")[target[launch]], work.source[launch].astype(np.int64)
    unknown = by == 0
    calls = np.unique(np.stack([node[~unknown], by[~unknown]], axis=1), axis=0)
    per_call = np.bincount(calls[:, 0], minlength=len(work))
    return per_call + np.bincount(node[unknown & (work.work[target[launch]] != Work.DELAY)], minlength=len(work))


def _launches(draft: Draft, selection: Selection, change: TimeChange, launch_ns: int) -> Made:
    count = np.where(selection.nodes(change), launches(draft.work), 0)
    if change.anything and not count.any():
        raise UsageError(f"{change.title}: no launch there", todo="choose host ops that launch device ops")
    less = np.maximum(count * launch_ns, -draft.cost)
    short, nodes = int(np.count_nonzero(less != count * launch_ns)), int(np.count_nonzero(count))
    draft.cost += less
    note = f", {short:,} of them shorter than that: down to 0" if short else ""
    what = f"{change.done}: {int(count.sum()):,} in {nodes:,} host nodes{note}"
    return made(change.kind, what, nodes, int(less.sum()))
