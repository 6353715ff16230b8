"""Other times of nodes: what each change of times of a what-if does."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.relief import PAGEABLE, staging
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, Bool
from graphlink.records import shortened
from graphlink.replay.assumptions import made
from graphlink.replay.changes import SORTS, Selector, TimeChange
from graphlink.replay.counterparts import as_others, in_other_run, in_quick_steps
from graphlink.replay.draft import Draft
from graphlink.replay.records import Made
from graphlink.replay.selection import Selection
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.tables import how_many, numbered_rows

QUICKEST: Final = 0.1  # of the ops with one launch: what others take more is their own work
EVEN_SORTS: Final = (Work.HOST, Work.KERNEL)  # of a rank that is to be as the others, if no sort is chosen
_PIECE: Final = 3  # characters by which names are compared
_NAMES: Final = "graphlink replay DIR --list prints the names that there are"


def change_times(draft: Draft, selection: Selection, change: TimeChange) -> Made:
    """Make a change in ``draft``.

    Raises:
        UsageError: it chooses nothing that is there.
    """
    if change.launch_us is not None:
        return _launches(draft, selection, change, round(change.launch_us * 1000))
    of_delays = change.sort == "delay"
    apart = "sort" if of_delays or change.turns is None else ""  # turns are of what all other keys choose
    named = selection.nodes(change.part(*(name for name in Selector.__struct_fields__ if name != apart)))
    nodes = named if change.sort is None else named & (draft.work.work == SORTS[change.sort])
    delayed = named & (draft.fixed > 0) & ~nodes & of_delays
    if not (nodes.any() or delayed.any()):
        raise UsageError(f"{change.title}: no such node", todo=_meant(draft.work, change, named))
    before, note = int(draft.cost.sum()), ""
    copies = np.flatnonzero(nodes & (draft.work.work == Work.COPY))
    was_ns = draft.cost[copies] - draft.fixed[copies]
    factor = 0.0 if change.remove and of_delays else change.scale
    if factor is not None:
        _scale(draft, selection, nodes, factor)
        draft.scale_start_delays(delayed, factor)
        draft.scale_delays(named if of_delays else nodes & (draft.work.work == Work.DELAY), factor)
    elif change.add_us is not None:
        nodes, note = _add(draft, nodes, round(change.add_us * 1000))
    elif change.most_us is not None:
        nodes = delayed = _capped(draft, nodes, delayed, round(change.most_us * 1000))
    elif change.remove:
        nodes, note = _remove(draft, selection, nodes)
    elif change.even_out and change.rank is None:
        nodes, note = _as_in_steps(draft, selection, change, nodes)
    else:
        nodes, note = _taken_over(draft, selection, change, nodes)
    if staged_ns := _stage(draft, copies, was_ns, nodes):
        note += f", {staged_ns / 1e6:+,.3f} ms of it in calls that stage them"
    count, ns = how_many(nodes | delayed), int(draft.cost.sum()) - before
    return made(change, f"{count:,} nodes, {ns / 1e6:+,.3f} ms of work{note}", count, ns)


def _scale(draft: Draft, selection: Selection, nodes: Bool, factor: float) -> None:
    """Multiply the time of nodes, but for start delays and for what host nodes carry of the ops around them, which goes
    with these."""
    rests = selection.carried
    more_ns = rests.less_ns * (draft.cost[rests.node] / np.maximum(draft.work.cost_ns[rests.node], 1)) * (factor - 1)
    draft.scale(nodes, factor)
    more_ns *= nodes[rests.column].astype(np.int64) - nodes[rests.node]
    np.add.at(draft.cost, rests.node, np.rint(more_ns).astype(np.int64))
    np.maximum(draft.cost, 0, out=draft.cost)


def _stage(draft: Draft, copies: I64, was_ns: I64, changed: Bool) -> int:
    """Let what the host takes to stage copies from or to pageable memory change as they did; return by how much, in ns.

    ``was_ns``: what the copies took; ``changed``: nodes that the change is about itself.
    """
    factor, before = np.ones(len(draft.work)), int(draft.cost.sum())
    factor[copies] = (draft.cost[copies] - draft.fixed[copies]) / np.maximum(was_ns, 1)
    work = draft.work
    if not (was_ns > 0).any():
        return 0
    start_ns, pageable = work.column("start_ns"), names_found(work, PAGEABLE)
    end_ns = start_ns + work.column("duration_ns")
    staged = staging(work.kind, work.source, work.target, pageable, work.is_part, start_ns, end_ns)
    less_ns = np.where(changed[staged.node], 0, np.minimum(staged.less_ns, draft.cost[staged.node]))
    np.add.at(draft.cost, staged.node, np.rint(less_ns * (factor[staged.column] - 1)).astype(np.int64))
    np.maximum(draft.cost, 0, out=draft.cost)
    return int(draft.cost.sum()) - before


def _meant(work: Workload, change: TimeChange, named: Bool) -> str:
    """Guess what a change that found nothing meant: another sort, or a name that is like it."""
    if named.any():
        sorts = ", ".join(Work(sort).name.lower() for sort in np.unique(work.work[named]).tolist())
        return f"what it finds is of sort {sorts}; {_NAMES}"
    words, pattern = [] if change.sort else [*SORTS], "" if change.name is None else change.name.pattern
    like = get_close_matches(pattern, words) or closest(work.names()[1], pattern)
    return f"did you mean {' or '.join(map(shortened, like))}? {_NAMES}" if like else _NAMES


def _add(draft: Draft, nodes: Bool, ns: int) -> tuple[Bool, str]:
    """Add to the time of each node, of an op in parts to its first node."""
    nodes = nodes & ~draft.work.is_part
    rows = np.flatnonzero(nodes)
    own = draft.cost[rows] - draft.fixed[rows] + ns
    draft.set_own(rows, np.maximum(own, 0))
    draft.explained[rows] = np.minimum(draft.explained[rows], draft.cost[rows])
    return nodes, _cut_short(how_many(own < 0))


def _capped(draft: Draft, nodes: Bool, delayed: Bool, most_ns: int) -> Bool:
    """Let nodes, and the start delays of ``delayed``, take no longer than ``most_ns``; return the nodes that did."""
    own_ns = draft.cost - draft.fixed
    longer = nodes & (own_ns > most_ns)
    draft.set_own(np.flatnonzero(longer), np.minimum(own_ns, most_ns)[longer])
    late = delayed & (draft.fixed > most_ns)
    draft.cost[late] -= draft.fixed[late] - most_ns
    draft.fixed[late] = most_ns
    for ns in (draft.launch, draft.stream, draft.explained):
        ns[longer | late] = np.minimum(ns[longer | late], most_ns)
    return longer | late


def _as_in_steps(draft: Draft, selection: Selection, change: TimeChange, nodes: Bool) -> tuple[Bool, str]:
    """Let what takes longer than in the quicker steps take what it takes there; what these do not have goes, with its
    waits."""
    assert change.steps is not None, "a change without rank has steps"
    own_ns = in_quick_steps(selection, nodes, change.steps)
    longer = own_ns != NOWHERE
    draft.set_own(np.flatnonzero(longer), own_ns[longer])
    return longer, _remove(draft, selection, own_ns == 0)[1]


def _cut_short(count: int) -> str:
    return f", {count:,} of them shorter than that: down to 0" if count else ""


def _remove(draft: Draft, selection: Selection, nodes: Bool) -> tuple[Bool, str]:
    """Remove nodes, the delays of device ops among them, and the waits in host ops among them."""
    nodes = nodes | selection.delays_of(nodes)
    inside = np.array([bool(nodes[wait.part]) for wait in draft.waits], np.bool_)
    draft.remove(nodes)
    draft.remove_waits(inside)
    return nodes, f", {np.count_nonzero(inside):,} waits" if inside.any() else ""


def _taken_over(draft: Draft, selection: Selection, change: TimeChange, nodes: Bool) -> tuple[Bool, str]:
    """Let nodes take what their counterparts take, in another run or on the other ranks."""
    if change.like is not None:
        own_ns, by_median = in_other_run(selection, nodes, change.like, change.like_rank)
    else:
        if change.sort is None:
            nodes = nodes & np.isin(draft.work.work, EVEN_SORTS)
        own_ns, by_median = as_others(selection, nodes)
    known, alone = nodes & (own_ns != NOWHERE), nodes & (own_ns == NOWHERE)
    draft.set_own(np.flatnonzero(known), own_ns[known])
    note = f", {by_median:,} of them by the median of their name" if by_median else ""
    if alone.any():
        lacking = f"{np.count_nonzero(alone):,} with {int(draft.cost[alone].sum()) / 1e6:,.3f} ms"
        note += f"; {lacking} have no counterpart and stay"
    return known, note


def launches(work: Workload) -> I64:
    """Count the launch calls that each host node makes: its ``launch`` edges, those of one graph launch (equal
    correlation) once.
    """
    return work.of_edges("launches", lambda: _launches_of(work))


def _launches_of(work: Workload) -> I64:
    target, launch = work.target, np.flatnonzero(work.kind == EdgeKind.LAUNCH)
    call, node = work.column("correlation")[target[launch]], work.source[launch].astype(np.int64)
    unknown = call == 0
    calls, _ = numbered_rows(node[~unknown], call[~unknown])
    per_call = np.bincount(calls[:, 0], minlength=len(work))
    return per_call + np.bincount(node[unknown & (work.work[target[launch]] != Work.DELAY)], minlength=len(work))


def _launches(draft: Draft, selection: Selection, change: TimeChange, launch_ns: int) -> Made:
    count = np.where(selection.nodes(change), launches(draft.work), 0)
    if change.anything and not count.any():
        raise UsageError(f"{change.title}: no launch there", todo="choose host ops that launch device ops")
    more = np.maximum(count * launch_ns, -draft.cost)
    draft.cost += more
    nodes, note = how_many(count), _cut_short(how_many(more != count * launch_ns))
    return made(change, f"{int(count.sum()):,} in {nodes:,} host nodes{note}", nodes, int(more.sum()))


def closest(names: Iterable[str], text: str) -> list[str]:
    """Return the three names that have most pieces of ``text`` in them, half of them or more, whatever the case, of
    equal ones the shortest. Linear in names.
    """
    lower = text.lower().strip("^$")
    pieces = {lower[k : k + _PIECE] for k in range(len(lower) - _PIECE + 1)}
    scored = ((-sum(piece in name.lower() for piece in pieces), len(name), name) for name in names)
    return [name for score, _, name in heapq.nsmallest(3, scored) if score and -2 * score >= len(pieces)]
