"""What the same nodes take elsewhere: in another run, or on the other ranks of this one.

Nodes are the same if sort of work, path and name are; the k-th called of a rank is the k-th of the other where both
have as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphlink.errors import UsageError
from graphlink.linking.step_cut import Steps
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import OPERATOR
from graphlink.records import first_few
from graphlink.replay.folder import graph_files, load
from graphlink.replay.selection import Selection
from graphlink.replay.workload import OF_HOST, workload
from graphlink.tables import codes, how_many, nowhere, numbered_rows, places, spread, turns, values_at

_LEAST_STEPS = 4  # of which some are the usual ones
_LONGER = 0.2  # of what a node takes in the quicker steps
_Code = dict[tuple[int, str, str, int], int]  # of sort of work, path, name, thread


def in_other_run(selection: Selection, nodes: Bool, folder: str, like_rank: int | None = None) -> tuple[I64, int]:
    """Find the counterparts of ``nodes`` in the run in ``folder``, on the same rank or for all ranks on ``like_rank``:
    what each takes without its start delay, ``NOWHERE`` for none and for other nodes, and how many of those are a
    median, as the number of nodes differs. O(n log n).

    Raises:
        InputError: its graphs cannot be read.
        UsageError: it has none of these ranks.
    """
    work, code = selection.work, _Code()
    wanted = work.ranks if like_rank is None else (like_rank,)
    if (folder, wanted) not in selection.others:
        files = {rank: path for rank, path in graph_files(Path(folder)).items() if rank in wanted}
        if not files:
            raise UsageError(
                f"like {folder}: has no graph of rank {first_few(wanted, 8)}",
                todo="name the output folder of a run with the same ranks, or with like_rank one of its ranks",
            )
        selection.others[folder, wanted] = Selection(workload(load(files)))
    here, there = _sides(selection, code), _sides(selection.others[folder, wanted], code)
    if like_rank is not None:
        there = dict.fromkeys(here, there[like_rank])
    own_ns, exact = nowhere(len(work)), np.zeros(len(work), np.bool_)
    for (rank, side), (low, high) in zip(here.items(), work.bounds, strict=True):
        if rank in there:
            own_ns[low:high], exact[low:high] = _found(side, there[rank])
    return _of_nodes(nodes, own_ns, exact)


def as_others(selection: Selection, nodes: Bool) -> tuple[I64, int]:
    """Find for ``nodes`` the median of their counterparts on the ranks that have none of them, as ``in_other_run``
    does. O(ranks x n log n).

    Raises:
        UsageError: there is no such rank.
    """
    work, sides = selection.work, [*_sides(selection, _Code()).values()]
    even = np.unique(work.member[nodes]).tolist()
    others = [side for member, side in enumerate(sides) if member not in even]
    if not others:
        raise UsageError(
            "even_out: no other rank is replayed with it",
            todo="replay all ranks together: --machine coupled, without --rank",
        )
    own_ns, exact = nowhere(len(work)), np.zeros(len(work), np.bool_)
    for member in even:
        low, high = work.bounds[member]
        found = [_found(sides[member], other) for other in others]
        exact[low:high] = np.any([same for _, same in found], axis=0)
        ns = np.array([np.where(took == NOWHERE, np.nan, took) for took, _ in found])
        some = ~np.isnan(ns).all(axis=0)
        own_ns[low:high][some] = np.rint(np.nanmedian(ns[:, some], axis=0))
    return _of_nodes(nodes, own_ns, exact)


def in_quick_steps(selection: Selection, nodes: Bool, steps: Sequence[Steps]) -> I64:
    """Return of those ``nodes`` that take longer than in the quicker steps what they take there, without start delay: 0
    where these do not have them, ``NOWHERE`` for all other nodes.

    Steps are compared on each rank: the k-th node of a name, caller and thread in one with the k-th in the others, of
    what is between ops, in ranges or outside, the k-th longest. What a full launch queue held counts in none. The
    quicker steps are a quarter of them. A node takes longer by ``_LONGER``, and of the host by a hundredth of a step.
    O(n log n).
    """
    work, out = selection.work, nowhere(len(selection.work))
    launcher, caller, family = selection.launched_by, selection.callers, work.names()[0]
    began_ns = selection.called_ns
    threads = np.where(launcher == NOWHERE, 0, work.column("tid")[launcher])
    key = codes(work.work, family, np.where(caller == NOWHERE, NOWHERE, family[caller]), threads)
    own_ns = work.cost_ns - work.fixed_ns - np.minimum(np.maximum(work.cost_ns, 0), work.column("wake_ns"))
    between = np.isin(family, [k for k, name in enumerate(work.names()[1]) if not OPERATOR.fullmatch(name)])
    between &= np.isin(work.work, OF_HOST)
    for (low, high), marks in zip(work.bounds, selection.marks, strict=True):
        chosen = [mark for mark in sorted(marks) if any(part.first <= mark[0] <= part.last for part in steps)]
        spans = [(begin, end) for _, begin, end in chosen]
        if len(spans) < _LEAST_STEPS:
            continue
        begin_ns = np.array([begin for begin, _ in spans], np.int64)
        rows = low + np.flatnonzero(
            nodes[low:high] & (began_ns[low:high] >= begin_ns[0]) & (began_ns[low:high] < spans[-1][1])
        )
        by_time = np.where(between[rows], -own_ns[rows], began_ns[rows])
        rows = rows[np.lexsort((work.column("correlation")[rows], by_time))]
        step = np.searchsorted(begin_ns, began_ns[rows], "right")
        place, ns = codes(key[rows], turns(key[rows], step)), own_ns[rows]
        count = np.bincount(place)
        lacking, first = len(spans) - count, np.append(0, np.cumsum(count)[:-1])  # steps without it: 0 ns
        quick = len(spans) // 4 - lacking
        quick_ns = np.where(quick < 0, 0, ns[np.lexsort((ns, place))][first + np.maximum(quick, 0)])[place]
        least_ns = np.where(work.column("host")[rows] != 0, np.median(np.diff(begin_ns)) / 100, 0)
        longer = ns - quick_ns > np.maximum(least_ns, _LONGER * quick_ns)
        out[rows[longer]] = quick_ns[longer]
    return out


def _of_nodes(nodes: Bool, own_ns: I64, exact: Bool) -> tuple[I64, int]:
    return np.where(nodes, own_ns, NOWHERE), how_many(nodes & (own_ns != NOWHERE) & ~exact)


@dataclass(frozen=True, slots=True)
class _Side:
    """The nodes of a rank: ``keys``, from the most exact, are equal for nodes that are the same; ``turn``: places in
    the order of calls; ``time_ns``: what each takes without its start delay."""

    keys: tuple[I64, ...]
    turn: I64
    time_ns: I64


def _sides(selection: Selection, code: _Code) -> dict[int, _Side]:
    """Return the nodes of each rank. Calls come in their order, although streams may run at another pace."""
    work, launcher, called = selection.work, selection.launched_by, selection.called_ns
    thread = values_at(work.column("tid"), launcher)
    turn = places(np.lexsort((np.arange(len(work)), work.column("correlation"), called)), len(work))
    names: dict[str, int] = {}  # of nodes, not of their families: an op and its parts have several
    name = work.per_file(
        lambda file: np.array([names.setdefault(text, len(names)) for text in file.strings], np.int64)[file.name]
    )
    path, paths = selection.paths
    sort, none = work.work.astype(np.int64), np.zeros(len(work), np.int64)
    texts = [*names]
    out = {}
    for rank, (low, high) in zip(work.ranks, work.bounds, strict=True):
        nodes = slice(low, high)
        number = _in_turn(thread[nodes], called[nodes])
        keys = (
            _keys(code, (sort[nodes], path[nodes], name[nodes], number), paths, texts),
            _keys(code, (sort[nodes], path[nodes], name[nodes], none[nodes]), paths, texts),
            _keys(code, (sort[nodes], none[nodes], name[nodes], none[nodes]), [()], texts),
        )
        out[rank] = _Side(keys, turn[nodes], (work.cost_ns - work.fixed_ns)[nodes])
    return out


def _in_turn(thread: I64, called_ns: I64) -> I64:
    """Number threads by when they first did anything: their ids are of a process."""
    order = np.argsort(called_ns, kind="stable")
    _, first, which = np.unique(thread[order], return_index=True, return_inverse=True)
    return spread(len(thread), order, np.argsort(np.argsort(first))[which])


def _keys(code: _Code, columns: tuple[I64, ...], paths: Sequence[tuple[str, ...]], names: Sequence[str]) -> I64:
    """Return a number for each row of (sort of work, path, name, thread), the same for equal texts."""
    rows, which = numbered_rows(*columns)
    number = [
        code.setdefault((sort, paths[path], names[name], thread), len(code))
        for sort, path, name, thread in rows.tolist()
    ]
    return np.array(number, np.int64)[which]


def _found(ours: _Side, theirs: _Side) -> tuple[I64, Bool]:
    """Return for each node of ``ours`` the time of its counterpart, ``NOWHERE`` for none; and which of them are the
    k-th of as many. Nodes of another thread, and then of another path, are taken only where there are none of the same,
    or another number of them."""
    out, exact = nowhere(len(ours.turn)), np.zeros(len(ours.turn), np.bool_)
    for own_key, other_key in zip(ours.keys, theirs.keys, strict=True):
        ns, same = _matched(own_key, other_key, (ours.turn, theirs.turn), theirs.time_ns)
        better = (out == NOWHERE) | (same & ~exact)
        out[better], exact[better] = ns[better], same[better]
    return out, exact


def _matched(ours: I64, theirs: I64, order: tuple[I64, I64], time_ns: I64) -> tuple[I64, Bool]:
    """Return for each key of ``ours`` the time of its counterpart in ``theirs``, ``NOWHERE`` for none; and which of
    them are the k-th of as many, not a median. ``order``: places in the order of calls, of both."""
    in_order, by_time = np.lexsort((order[1], theirs)), np.lexsort((time_ns, theirs))
    low, high = (np.searchsorted(theirs[in_order], ours, side) for side in ("left", "right"))
    count = high - low
    called = np.argsort(order[0])
    turn = spread(len(ours), called, turns(ours[called]))
    exact = (count > 0) & (count == np.bincount(ours, minlength=1)[ours])
    out = spread(len(ours), exact, time_ns[in_order[low[exact] + turn[exact]]])
    rest = (count > 0) & ~exact
    lower, upper = low[rest] + (count[rest] - 1) // 2, low[rest] + count[rest] // 2
    out[rest] = np.rint((time_ns[by_time[lower]] + time_ns[by_time[upper]]) / 2)
    return out, exact
