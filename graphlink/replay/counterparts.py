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
from graphlink.model import I64, NOWHERE, Bool
from graphlink.replay.folder import graph_files, load
from graphlink.replay.selection import Selection
from graphlink.replay.workload import Workload, workload
from graphlink.tables import begins, spread

_Code = dict[tuple[int, str, str, int], int]  # sort of work, path, name, thread


@dataclass(frozen=True, slots=True)
class Counterparts:
    """``own_ns``: of every node what its counterpart takes without its start delay, ``NOWHERE`` where it has none;
    ``by_median``: how many have a median, as the number of nodes differs."""

    own_ns: I64
    by_median: int


def in_other_run(selection: Selection, mine: Bool, folder: str) -> Counterparts:
    """Find the counterparts of the nodes ``mine`` on the same rank of the run in ``folder``. O(n log n).

    Raises:
        InputError: its graphs cannot be read.
        UsageError: it has none of these ranks.
    """
    code: _Code = {}
    here, there = _sides(selection, code), _sides(_other_run(selection, folder), code)
    own_ns, exact = np.full(len(mine), NOWHERE, np.int64), np.zeros(len(mine), np.bool_)
    for (rank, ours), (low, high) in zip(here.items(), selection.work.bounds, strict=True):
        if rank in there:
            own_ns[low:high], exact[low:high] = _found(ours, there[rank])
    return Counterparts(np.where(mine, own_ns, NOWHERE), int(np.count_nonzero(mine & (own_ns != NOWHERE) & ~exact)))


def _other_run(selection: Selection, folder: str) -> Selection:
    if folder not in selection.others:
        here = selection.work.ranks
        files = {rank: path for rank, path in graph_files(Path(folder)).items() if rank in here}
        if not files:
            raise UsageError(
                f"like {folder}: has no graph of the ranks here",
                todo="name the output folder of a run with the same ranks",
            )
        selection.others[folder] = Selection(workload(load(files)))
    return selection.others[folder]


def as_others(selection: Selection, mine: Bool) -> Counterparts:
    """Find for the nodes ``mine`` the median of their counterparts on the ranks that have none of ``mine``. O(ranks x n
    log n).

    Raises:
        UsageError: there is no such rank.
    """
    work, sides = selection.work, [*_sides(selection, {}).values()]
    even = np.unique(work.member[mine]).tolist()
    others = [side for i, side in enumerate(sides) if i not in even]
    if not others:
        raise UsageError(
            "even_out: no other rank is replayed with it",
            todo="replay all ranks together: --machine coupled, without --rank",
        )
    own_ns, exact = np.full(len(work), NOWHERE, np.int64), np.zeros(len(work), np.bool_)
    for i in even:
        low, high = work.bounds[i]
        found = np.full((len(others), high - low), np.nan)
        for row, other in zip(found, others, strict=True):
            ns, same = _found(sides[i], other)
            row[ns != NOWHERE] = ns[ns != NOWHERE]
            exact[low:high] |= same
        some = ~np.isnan(found).all(axis=0)
        own_ns[low:high][some] = np.rint(np.nanmedian(found[:, some], axis=0))
    return Counterparts(np.where(mine, own_ns, NOWHERE), int(np.count_nonzero(mine & (own_ns != NOWHERE) & ~exact)))


@dataclass(frozen=True, slots=True)
class _Side:
    """The nodes of a rank: ``keys``, from the most exact, are equal for nodes that are the same; ``turn``: places in
    the order of calls; ``time_ns``: what each takes without its start delay."""

    keys: tuple[I64, ...]
    turn: I64
    time_ns: I64


def _sides(selection: Selection, code: _Code) -> dict[int, _Side]:
    """Return the nodes of each rank. Calls come in their order, although streams may run at another pace."""
    work, by = selection.work, selection.launched_by
    start, tid = work.column("start_ns"), work.column("tid")
    called, thread = (np.where(by == NOWHERE, other, column[by]) for column, other in ((start, start), (tid, NOWHERE)))
    order = np.lexsort((np.arange(len(work)), work.column("correlation"), called))
    turn = np.asarray(spread(len(work), order, np.arange(len(work))), np.int64)
    names, texts = _names(work)
    paths, none = selection.paths, np.zeros(len(work), np.int64)
    out = {}
    for rank, (low, high) in zip(work.ranks, work.bounds, strict=True):
        mine = slice(low, high)
        number = _in_turn(thread[mine], called[mine])
        sort, name, path, zero = work.work[mine].astype(np.int64), names[mine], paths.of_node[mine], none[mine]
        keys = (_keys(code, (sort, path, name, which), paths.texts, texts) for which in (number, zero))
        by_name = _keys(code, (sort, zero, name, zero), [""], texts)
        out[rank] = _Side((*keys, by_name), turn[mine], (work.cost_ns - work.fixed_ns)[mine])
    return out


def _names(work: Workload) -> tuple[I64, list[str]]:
    """Return the name of every node as a position in a list of different names: an op and its parts have several."""
    texts: dict[str, int] = {}
    names = [np.zeros(0, np.int64)]
    for file, (low, high) in zip(work.files, work.bounds, strict=True):
        own = np.array([texts.setdefault(text, len(texts)) for text in file.strings], np.int64)
        names.append(own[file.name][work.position[low:high]])
    return np.concatenate(names), [*texts]


def _in_turn(thread: I64, called_ns: I64) -> I64:
    """Number threads by when they first did anything: their ids are of a process."""
    order = np.argsort(called_ns, kind="stable")
    _, first, which = np.unique(thread[order], return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[which.reshape(-1)]
    return np.asarray(spread(len(thread), order, number), np.int64)


def _keys(code: _Code, columns: tuple[I64, ...], paths: Sequence[str], names: Sequence[str]) -> I64:
    """Return a number for each row of (sort of work, path, name, thread), the same for equal texts."""
    rows, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    number = [
        code.setdefault((sort, paths[of], names[called], thread), len(code))
        for sort, of, called, thread in rows.tolist()
    ]
    return np.array(number, np.int64)[which.reshape(-1)]


def _found(ours: _Side, theirs: _Side) -> tuple[I64, Bool]:
    """Return for each node of ``ours`` the time of its counterpart, ``NOWHERE`` for none; and which of them are the
    k-th of as many. Nodes of another thread, and then of another path, are taken only where there are none of the same,
    or another number of them."""
    out, exact = np.full(len(ours.turn), NOWHERE, np.int64), np.zeros(len(ours.turn), np.bool_)
    for mine, other in zip(ours.keys, theirs.keys, strict=True):
        ns, same = _matched(mine, other, (ours.turn, theirs.turn), theirs.time_ns)
        better = (out == NOWHERE) | (same & ~exact)
        out[better], exact[better] = ns[better], same[better]
    return out, exact


def _matched(ours: I64, theirs: I64, turns: tuple[I64, I64], time_ns: I64) -> tuple[I64, Bool]:
    """Return for each key of ``ours`` the time of its counterpart in ``theirs``, ``NOWHERE`` for none; and which of
    them are the k-th of as many, not a median. ``turns``: places in the order of calls, of both."""
    in_turn, by_time = np.lexsort((turns[1], theirs)), np.lexsort((time_ns, theirs))
    keys = theirs[in_turn]
    low = np.searchsorted(keys, ours, "left")
    count = np.searchsorted(keys, ours, "right") - low
    order = np.lexsort((turns[0], ours))
    at = np.arange(len(ours))
    first = np.maximum.accumulate(np.where(begins(ours[order]), at, 0)) if len(ours) else at
    turn = np.asarray(spread(len(ours), order, at - first), np.int64)
    exact = (count == np.bincount(ours, minlength=1)[ours]) & (count > 0) if len(ours) else np.zeros(0, np.bool_)
    out = np.full(len(ours), NOWHERE, np.int64)
    out[exact] = time_ns[in_turn[low[exact] + turn[exact]]]
    rest = (count > 0) & ~exact
    middle = (time_ns[by_time[low[rest] + (count[rest] - 1) // 2]] + time_ns[by_time[low[rest] + count[rest] // 2]]) / 2
    out[rest] = np.rint(middle)
    return out, exact
