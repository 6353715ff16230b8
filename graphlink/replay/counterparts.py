"""What the same nodes take elsewhere: in another run, or on the other ranks of this one.

Nodes are the same if sort of work, path and name are; the k-th called of a rank is the k-th of the other where both have as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphlink.errors import UsageError
from graphlink.model import I64, NOWHERE, Bool
from graphlink.replay.folder import graph_files, load
from graphlink.replay.selection import Selection
from graphlink.replay.workload import workload
from graphlink.tables import begins, spread

_Code = dict[tuple[int, str, str], int]


@dataclass(frozen=True, slots=True)
class Counterparts:
    """``own_ns``: of every node what its counterpart takes without its start delay, ``NOWHERE`` where it has none; ``by_median``: how many
    have a median, as the number of nodes differs."""

    own_ns: I64
    by_median: int


def in_other_run(selection: Selection, mine: Bool, folder: str) -> Counterparts:
    """Find the counterparts of the nodes ``mine`` on the same rank of the run in ``folder``. O(n log n).

    Raises:
        InputError: its graphs cannot be read.
        UsageError: it has none of these ranks.
    """
    other = _other_run(selection, folder)
    code: _Code = {}
    ours, theirs = _keys(selection, code, paths=True), _keys(other, code, paths=True)
    our_names, their_names = _keys(selection, code, paths=False), _keys(other, code, paths=False)
    our_turn, their_turn = _turns(selection), _turns(other)
    own_ns, exact = np.full(len(ours), NOWHERE, np.int64), np.zeros(len(ours), np.bool_)
    for rank, (low, high) in zip(selection.work.ranks, selection.work.bounds, strict=True):
        if rank in other.work.ranks:
            there = slice(*other.work.bounds[other.work.ranks.index(rank)])
            time_ns = (other.work.cost_ns - other.work.fixed_ns)[there]
            turns = our_turn[low:high], their_turn[there]
            by_path, same = _matched(ours[low:high], theirs[there], turns, time_ns)
            by_name, _ = _matched(our_names[low:high], their_names[there], turns, time_ns)
            own_ns[low:high] = np.where(by_path == NOWHERE, by_name, by_path)
            exact[low:high] = same
    return Counterparts(np.where(mine, own_ns, NOWHERE), int(np.count_nonzero(mine & (own_ns != NOWHERE) & ~exact)))


def _other_run(selection: Selection, folder: str) -> Selection:
    if folder not in selection.others:
        here = selection.work.ranks
        files = {rank: path for rank, path in graph_files(Path(folder)).items() if rank in here}
        if not files:
            raise UsageError(f"like {folder}: has no graph of the ranks here", todo="name the output folder of a run with the same ranks")
        selection.others[folder] = Selection(workload(load(files)))
    return selection.others[folder]


def as_others(selection: Selection, mine: Bool) -> Counterparts:
    """Find for the nodes ``mine`` the median of their counterparts on the ranks that have none of ``mine``. O(ranks x n log n).

    Raises:
        UsageError: there is no such rank.
    """
    work, key, turn = selection.work, _keys(selection, {}, paths=True), _turns(selection)
    even = np.unique(work.member[mine])
    others = [i for i in range(len(work.ranks)) if i not in even]
    if not others:
        raise UsageError("even_out: no other rank is replayed with it", todo="replay all ranks together: --machine coupled, without --rank")
    time_ns = work.cost_ns - work.fixed_ns
    own_ns, exact = np.full(len(work), NOWHERE, np.int64), np.zeros(len(work), np.bool_)
    for low, high in (work.bounds[i] for i in even.tolist()):
        found = np.full((len(others), high - low), np.nan)
        for row, (a, b) in zip(found, (work.bounds[i] for i in others), strict=True):
            ns, same = _matched(key[low:high], key[a:b], (turn[low:high], turn[a:b]), time_ns[a:b])
            row[ns != NOWHERE] = ns[ns != NOWHERE]
            exact[low:high] |= same
        some = ~np.isnan(found).all(axis=0)
        own_ns[low:high][some] = np.rint(np.nanmedian(found[:, some], axis=0))
    return Counterparts(np.where(mine, own_ns, NOWHERE), int(np.count_nonzero(mine & (own_ns != NOWHERE) & ~exact)))


def _keys(selection: Selection, code: _Code, *, paths: bool) -> I64:
    """Return a number for each node, the same for nodes that are the same; ``paths``: with their path."""
    work = selection.work
    texts: dict[str, int] = {}
    names = [np.zeros(0, np.int64)]
    for file, (low, high) in zip(work.files, work.bounds, strict=True):
        own = np.array([texts.setdefault(text, len(texts)) for text in file.strings], np.int64)
        names.append(own[file.name][work.position[low:high]])
    name = np.concatenate(names)
    path = selection.paths.of_node if paths else np.zeros(len(work), np.int64)
    rows, which = np.unique(np.stack([work.work.astype(np.int64), path, name], axis=1), axis=0, return_inverse=True)
    known, shown = [*texts], selection.paths.texts if paths else [""]
    number = [code.setdefault((sort, shown[of], known[called]), len(code)) for sort, of, called in rows.tolist()]
    return np.array(number, np.int64)[which.reshape(-1)]


def _turns(selection: Selection) -> I64:
    """Return the place of each node in the order of calls: streams may run at another pace, calls come in their order."""
    work, by = selection.work, selection.launched_by
    start = work.column("start_ns")
    called = np.where(by == NOWHERE, start, start[by])
    order = np.lexsort((np.arange(len(work)), work.column("correlation"), called))
    return np.asarray(spread(len(work), order, np.arange(len(work))), np.int64)


def _matched(ours: I64, theirs: I64, turns: tuple[I64, I64], time_ns: I64) -> tuple[I64, Bool]:
    """Return for each key of ``ours`` the time of its counterpart in ``theirs``, ``NOWHERE`` for none; and which of them are the k-th of as
    many, not a median. ``turns``: places in the order of calls, of both."""
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
