"""A DataLoader with another number of workers, as a what-if: batches are made beside the main thread, which waits for
those not ready.

The rule is that of PyTorch's ``_MultiProcessingDataLoaderIter``: batch k is made by worker k mod n, one after the
other; at most ``prefetch`` x n batches are asked for and not taken; they are taken in order.

A recording is a window of a long run, in which workers have batches ready or are behind. So the window begins in the
state that comes back when it is repeated for ever: what is left to make of its first batches is computed by repeating
it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind, Groups
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import END, LOADER
from graphlink.records import first_few, ms
from graphlink.replay.assumptions import made
from graphlink.replay.changes import LoaderChange
from graphlink.replay.draft import NewEdges, outermost, rewired
from graphlink.replay.machines import play, play_ideal
from graphlink.replay.played import Played
from graphlink.replay.records import Made
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.tables import begins, codes, equal_runs, grouped, how_many, in_order, marked, skipped, spread

# how often all batches that are asked for are replaced before the state counts as that of a long run
SETTLED: Final = 64
MOST_BATCHES: Final = 100_000  # that are gone through for it, but for two windows
MOST_BATCH_NS: Final = 1 << 50
MOST_TURNS: Final = 6  # windows over which a mean is taken where they differ, at most
FULL: Final = 0.1  # share of the window that the main thread waits, from which the loader counts as what it waits for
_SHOWN: Final = 2  # loaders of which is told what they do: those of ranks are mostly alike
_OWN: Final = re.compile(r"enumerate\(DataLoader\)#")
BY_WORKERS: Final = "_MultiProcessing"


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of one loader, in order: of each the nodes that ``making`` it consists of, the node ``before`` which
    its thread asks for it, and the node ``after`` which it has it (``NOWHERE`` without one). ``by_workers``: the
    recording has workers, and the one node of ``making`` is the wait for them.
    """

    member: int
    name: str
    by_workers: bool
    making: tuple[I64, ...]
    before: I64
    after: I64
    last: int  # the last node of the thread

    def asked_taken(self, played: Played) -> tuple[I64, I64]:
        """Return when the thread asked for each batch, and had it."""
        asked = np.where(self.before == NOWHERE, played.rank_begin_ns[self.member], played.end_ns[self.before])
        return asked, np.maximum(asked, [played.end_ns[nodes[-1]] for nodes in self.making])

    def thread_end_ns(self, played: Played) -> int:
        """Return when the thread ends."""
        return int(max(played.end_ns[self.last], self.asked_taken(played)[1][-1]))


@dataclass(frozen=True, slots=True)
class _Moving:
    """The loaders of a workload, the nodes ``moved`` to workers, and of each such node those that stay ``before`` and
    ``after`` it on its thread."""

    loaders: tuple[_Batches, ...]
    moved: Bool
    before: I64
    after: I64


def with_workers(
    work: Workload,
    change: LoaderChange,
    groups: Groups,
    recorder_ns: Mapping[int, int] = MappingProxyType({}),
) -> tuple[Workload, Made]:
    """Return ``work`` with the batches of each DataLoader made by workers, and what was done. Linear, but for a few
    replays. ``recorder_ns``: what recording costs each rank in all, where that is known.

    Raises:
        UsageError: no rank shows a DataLoader, or not what a batch takes.
    """
    moving = _moving(work)
    if not moving.loaders:
        raise UsageError(
            f"{change.title}: the graph shows no DataLoader",
            todo="it shows one where a range enumerate(DataLoader)#..., batch-generator or dataloader is recorded",
        )
    recorded = _play(work, groups)
    if not recorded.ran.all():
        raise UsageError(
            f"{change.title}: the graph cannot be replayed to its end", todo="look for circles with graphlink check"
        )
    took_ns = [_making_ns(work, recorded, batches, change) for batches in moving.loaders]
    bare_ns = [
        ns - _recorder_ns(work, batches, recorder_ns) for batches, ns in zip(moving.loaders, took_ns, strict=True)
    ]
    runs = [_Run(batches, np.maximum(ns, 0), change) for batches, ns in zip(moving.loaders, bare_ns, strict=True)]
    out = _settled(_apart(work, moving, change), runs, groups)
    played = _play(out, groups)
    what = first_few([_done(run, recorded, played) for run in runs], _SHOWN, "; ")
    if not all(map(np.array_equal, took_ns, bare_ns)):
        what += "; ops of workers without what recording cost them"
    grown_ns = int((out.cost_ns - work.cost_ns).sum())
    return out, made(change, what, how_many(moving.moved), grown_ns)


def _moving(work: Workload) -> _Moving:
    """Find the loaders, and what of them goes to workers. n log n."""
    owner, named = loaders_of(work)
    name = {head: work.name(head) for head in np.unique(owner[owner != NOWHERE]).tolist()}
    by_workers = marked(len(work), np.array([head for head in name if BY_WORKERS in name[head]], np.int64))
    nodes = np.flatnonzero((owner != NOWHERE) & ~_crossing(work))
    waits = by_workers[owner[nodes]]
    moved = marked(len(work), nodes[~waits])
    moved[_longest(work, nodes[waits & named[nodes]], owner)] = True
    host = np.flatnonzero(work.kind == EdgeKind.HOST)
    source, target = work.source[host].astype(np.int64), work.target[host]
    before = skipped(spread(len(work), target, source), moved)
    after = skipped(spread(len(work), source[::-1], target[::-1]), moved)
    tid, nodes = work.column("tid"), np.flatnonzero(moved)
    nodes = in_order(nodes, owner)
    making = grouped(
        ((int(work.member[head]), int(tid[head]), name[head]), batch)
        for batch in equal_runs(nodes, owner[nodes])
        for head in owner[batch[:1]].tolist()
    )
    ends = names_found(work, END, families=False)
    loaders = []
    for (member, thread, text), batches in sorted(making.items(), key=itemgetter(0)):
        first = np.array([batch[0] for batch in batches])
        of_thread = (work.member == member) & (tid == thread) & (work.work <= Work.GAP) & ~ends
        last = int(np.flatnonzero(of_thread)[-1])
        loaders.append(_Batches(member, text, BY_WORKERS in text, tuple(batches), before[first], after[first], last))
    return _Moving(tuple(loaders), moved, before, after)


def loaders_of(work: Workload) -> tuple[I64, Bool]:
    """Return of every node the outermost loader's row that it is inside of, itself included, ``NOWHERE`` without one;
    and whether it has the row's name. A thread with rows of PyTorch's own loaders has no others."""
    named = names_found(work, LOADER) & (work.work == Work.HOST)
    own = named & names_found(work, _OWN)
    thread = codes(work.member, work.column("tid"))
    named &= own | ~np.isin(thread, thread[own])
    return outermost(work, named & ~work.is_part), named


def _crossing(work: Workload) -> Bool:
    """Mark the nodes that launch device work or release another thread, and the parts of ops behind a wait: no worker
    can take them over.

    What a thread waited for before it asks for a batch goes to where it has it, so such a wait is no hindrance.
    """
    across, target = work.kind != EdgeKind.HOST, work.target
    out = marked(len(work), work.source[across])
    out[target[across & work.is_part[target]]] = True
    return out


def _longest(work: Workload, nodes: I64, owner: I64) -> I64:
    """Return the node that costs most of each owner."""
    order = in_order(nodes, owner, work.cost_ns)
    last = begins(owner[order])[1:]
    return np.asarray(order[np.append(last, True)[: len(order)]])


def _play(work: Workload, groups: Groups) -> Played:
    """Replay all ranks together, or each alone where together they do not finish."""
    played = play(work, groups)
    return played if played.ran.all() else play_ideal(work)


def _making_ns(work: Workload, recorded: Played, batches: _Batches, change: LoaderChange) -> I64:
    """Return what each batch takes to make.

    With workers in the recording, that is how often a batch came, times their number: they were always busy. Where the
    main thread hardly waited they need not have been; then it is the most that a batch can take.
    """
    if not batches.by_workers:
        return np.array([work.cost_ns[nodes].sum() for nodes in batches.making])
    if change.recorded is None:
        raise UsageError(
            f"{change.title}: the recording has workers already, and does not say how many",
            todo=f"write --dataloader-workers RECORDED:{change.workers}, with the number of workers in the recording",
        )
    waits = np.array([nodes[0] for nodes in batches.making])
    waited_ns, taken_ns = work.cost_ns[waits].mean(), recorded.end_ns[waits]
    if len(waits) < 2:
        raise UsageError(
            f"{change.title}: {'the recording shows one batch, not how often one comes'}", todo="record more steps"
        )
    every_ns = _every_ns(taken_ns)
    busy = waited_ns >= FULL * every_ns
    if change.at_once < change.recorded and not busy:
        raise UsageError(
            f"{change.title}: the main thread waits only {waited_ns / 1e6:.3f} ms a batch, "
            "so the recording does not show how long a batch takes",
            todo="record with fewer workers, or ask for more",
        )
    took_ns = (every_ns if busy else every_ns - waited_ns) * change.recorded
    if took_ns > MOST_BATCH_NS:
        raise UsageError(
            f"{change.title}: a batch would take more than 13 days", todo="check the number of workers in the recording"
        )
    return np.full(len(waits), round(took_ns))


def _recorder_ns(work: Workload, batches: _Batches, recorder_ns: Mapping[int, int]) -> I64:
    """Return what recording cost each batch that workers are to make, who are not recorded: each op of the host of a
    rank as much."""
    op = (work.work == Work.HOST) & ~work.is_part
    cost_ns = 0 if batches.by_workers else recorder_ns.get(work.ranks[batches.member], 0)
    share = np.array([np.count_nonzero(op[nodes]) for nodes in batches.making]) / max(
        np.count_nonzero(op[work.member == batches.member]), 1
    )
    return np.asarray(np.rint(share * cost_ns), np.int64)


def _apart(work: Workload, moving: _Moving, change: LoaderChange) -> Workload:
    """Return ``work`` with the nodes that move on threads of the workers."""
    source, target, moved = work.source, work.target, moving.moved
    leaves, enters = moved[source], moved[target]
    new = NewEdges()
    for batches in moving.loaders:
        _add_worker_edges(new, batches, change)
    for edge in np.flatnonzero(leaves & ~enters).tolist():
        new.add(int(moving.before[source[edge]]), int(target[edge]), EdgeKind.HOST)
    for edge in np.flatnonzero(enters & ~leaves & (work.kind != EdgeKind.HOST)).tolist():
        new.add(int(source[edge]), int(moving.after[target[edge]]), EdgeKind(int(work.kind[edge])))
    return rewired(work, leaves | enters, new)


def _add_worker_edges(new: NewEdges, batches: _Batches, change: LoaderChange) -> None:
    for k, nodes in enumerate(batches.making):
        for node, follows in pairwise(nodes.tolist()):
            new.add(node, follows, EdgeKind.HOST)
        begin, end = int(nodes[0]), int(nodes[-1])
        if k >= change.at_once:
            new.add(int(batches.making[k - change.at_once][-1]), begin, EdgeKind.HOST)
        if k >= change.ahead:  # that one was taken once it was there and its thread had come to it
            new.add(int(batches.making[k - change.ahead][-1]), begin, EdgeKind.THREAD)
            new.add(int(batches.before[k - change.ahead]), begin, EdgeKind.THREAD)
        new.add(end, int(batches.after[k]), EdgeKind.THREAD)


class _Run:
    """A loader in a long run, as far as it is known: when each batch was ``made`` and ``taken``, and when the windows
    ``began``.
    """

    def __init__(self, batches: _Batches, took_ns: I64, change: LoaderChange) -> None:
        self.batches, self.took_ns = batches, took_ns
        self.at_once, self.ahead = change.at_once, change.ahead
        self.made: list[int] = []
        self.taken: list[int] = []
        self.began = [0]

    @property
    def turns(self) -> int:
        """Return over how many windows a mean is to be taken, if they differ."""
        return min(MOST_TURNS, max(3, self.at_once // math.gcd(self.at_once, len(self.took_ns))))

    def making(self, j: int) -> int:
        """Return when batch ``j`` of the run is made. Workers begin evenly spread: with too few of them that
        stays so.
        """
        took = self.took_ns
        free = self.made[j - self.at_once] if j >= self.at_once else j * int(took.mean()) // self.at_once
        asked = self.taken[j - self.ahead] if j >= self.ahead else 0
        return max(free, asked) + int(took[j % len(took)])

    def repeat(self, own_ns: I64) -> None:
        """Go through windows in which the thread does ``own_ns`` between taking a batch and asking for the next, until
        it has settled.
        """
        own, count, asked = own_ns.tolist(), len(own_ns), 0
        windows = max(2, -(-min(SETTLED * self.ahead, MOST_BATCHES) // count))
        for j in range(count * windows):
            self.made.append(self.making(j))
            self.taken.append(max(asked, self.made[j]))
            asked = self.taken[j] + own[j % count]
            if (j + 1) % count == 0:
                self.began.append(asked)

    def left_ns(self) -> I64:
        """Return what is left to make of each batch of the next window: of those that are asked for already some may be
        made.
        """
        out, begun, began = self.took_ns.copy(), len(self.taken), self.began[-1]
        for j in range(min(self.ahead, len(out))):
            self.made.append(self.making(begun + j))
            free = self.made[begun + j - self.at_once] if j >= self.at_once else began
            out[j] = np.clip(self.made[begun + j] - max(began, free), 0, out[j])
        del self.made[begun:]
        return out

    def then(self, played: Played) -> None:
        """Add the window that was played."""
        since = self.began[-1] - int(played.rank_begin_ns[self.batches.member])
        self.taken += (self.batches.asked_taken(played)[1] + since).tolist()
        for j in range(len(self.made), len(self.taken)):
            self.made.append(self.making(j))
        self.began.append(self.batches.thread_end_ns(played) + since)


def _settled(work: Workload, runs: Sequence[_Run], groups: Groups) -> Workload:
    """Return ``work`` with as much left to make of its first batches as in a window of a long run.

    Of windows that differ it is that whose length is nearest to the mean, moved by what it differs from the mean.
    """
    played = _play(_with_left(work, runs, [np.zeros_like(run.took_ns) for run in runs]), groups)
    for run in runs:
        asked, taken = run.batches.asked_taken(played)
        last_ns = run.batches.thread_end_ns(played) - int(taken[-1])
        first_ns = int(asked[0] - played.rank_begin_ns[run.batches.member])
        run.repeat(np.append(asked[1:] - taken[:-1], last_ns + first_ns))
    lefts: list[list[I64]] = []
    turns = max(run.turns for run in runs)  # after so many windows workers and batches meet again
    for _ in range(2 * turns):
        lefts.append([run.left_ns() for run in runs])
        changed = _with_left(work, runs, lefts[-1])
        if len(lefts) > 1 and all(map(np.array_equal, *lefts[-2:])):
            return changed
        played = _play(changed, groups)
        for run in runs:
            run.then(played)
    lengths = np.array([np.diff(run.began)[-turns:] for run in runs])
    differs = lengths - np.rint(lengths.mean(axis=1, keepdims=True)).astype(np.int64)
    usual = int(np.abs(differs).sum(axis=0).argmin())
    moved = []
    for run, left, more in zip(runs, lefts[turns + usual], differs[:, usual].tolist(), strict=True):
        count = min(run.at_once, len(left))
        moved.append(np.append(np.clip(left[:count] - more, 0, run.took_ns[:count]), left[count:]))
    return _with_left(work, runs, moved)


def _with_left(work: Workload, runs: Sequence[_Run], left: Sequence[I64]) -> Workload:
    """Return ``work`` where each batch takes what is ``left`` of making it."""
    cost = work.cost_ns.copy()
    for run, left_ns in zip(runs, left, strict=True):
        for nodes, rest in zip(run.batches.making, left_ns.tolist(), strict=True):
            if run.batches.by_workers:
                cost[nodes[0]] = rest
            elif rest != (own_ns := int(work.cost_ns[nodes].sum())):
                done = np.rint(np.cumsum(work.cost_ns[nodes]) * (rest / own_ns)).astype(np.int64)
                cost[nodes] = np.diff(done, prepend=0)
    return work.with_costs(cost)


def _done(run: _Run, recorded: Played, played: Played) -> str:
    """Describe a loader: its batches, how long the thread waits for one, and how often it takes one before and
    after.
    """
    count, (asked, taken) = len(run.took_ns), run.batches.asked_taken(played)
    was = run.batches.asked_taken(recorded)[1]
    often = f", takes one every {ms(_every_ns(taken))} ms (before: {ms(_every_ns(was))} ms)" if count > 1 else ""
    batches = f"{count:,} batch{'es' * (count > 1)} of {ms(float(np.median(run.took_ns)))} ms (median)"
    waits = f"its thread waits {ms(float((taken - asked).mean()))} ms for one"
    return f"{run.batches.name.split('.')[0]}: {batches}, {waits}{often}"


def _every_ns(taken_ns: I64) -> float:
    return (int(taken_ns[-1]) - int(taken_ns[0])) / (len(taken_ns) - 1)
