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
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import LOADER
from graphlink.records import ms
from graphlink.replay.changes import LoaderChange
from graphlink.replay.ideal import play_ideal
from graphlink.replay.machines import play
from graphlink.replay.played import Played
from graphlink.replay.rewire import NewEdges, Restructured, outermost, rewired, skipped
from graphlink.replay.workload import Work, Workload, names_found

SETTLED: Final = (
    64  # how often all batches that are asked for are replaced before the state counts as that of a long run
)
MOST_BATCHES: Final = 100_000  # that are gone through for it, but for two windows
MOST_BATCH_NS: Final = 1 << 50
MOST_TURNS: Final = 6  # windows over which a mean is taken where they differ, at most
FULL: Final = 0.1  # share of the window that the main thread waits, from which the loader counts as what it waits for
_OWN: Final = re.compile(r"enumerate\(DataLoader\)#")
_BY_WORKERS: Final = "_MultiProcessing"
_END: Final = re.compile(r"\Aend\Z")


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of one loader, in order: of each the nodes that ``making`` it consists of, the node ``before`` which
    its thread asks for it, and the node ``after`` which it has it (``NOWHERE`` without one). ``by_workers``: the
    recording has workers, and the one node of ``making`` is the wait for them.
    """

    member: int
    tid: int
    name: str
    by_workers: bool
    making: tuple[I64, ...]
    before: I64
    after: I64
    last: int  # the last node of the thread


@dataclass(frozen=True, slots=True)
class _Found:
    """The loaders of a workload, the nodes ``moved`` to workers, and of each such node those that stay ``before`` and
    ``after`` it on its thread."""

    loaders: tuple[_Batches, ...]
    moved: Bool
    before: I64
    after: I64


def with_workers(work: Workload, loader: LoaderChange, groups: Mapping[int, Sequence[int]]) -> Restructured:
    """Return ``work`` with the batches of each DataLoader made by workers. Linear, but for a few replays.

    Raises:
        UsageError: no rank shows a DataLoader, or not what a batch takes.
    """
    found = _found(work)
    if not found.loaders:
        raise UsageError(
            f"{loader.title}: the graph shows no DataLoader",
            todo="it shows one where a range enumerate(DataLoader)#..., batch-generator or dataloader is recorded",
        )
    recorded = _play(work, groups)
    if not recorded.ran.all():
        raise UsageError(
            f"{loader.title}: the graph cannot be replayed to its end", todo="look for circles with graphlink check"
        )
    runs = [_Run(batches, _making_ns(work, recorded, batches, loader), loader) for batches in found.loaders]
    out = _settled(_apart(work, found, loader), runs, groups)
    played = _play(out, groups)
    what = "; ".join(_done(run, recorded, played) for run in runs)
    return Restructured(out, what, int(np.count_nonzero(found.moved)), int((out.cost_ns - work.cost_ns).sum()))


def _found(work: Workload) -> _Found:
    """Find the loaders, and what of them goes to workers. n log n."""
    owner, named = _owners(work)
    heads = np.unique(owner[owner != NOWHERE])
    name = {head: work.name(head) for head in heads.tolist()}
    by_workers = np.zeros(len(work), np.bool_)
    by_workers[[head for head in heads.tolist() if _BY_WORKERS in name[head]]] = True
    mine = np.flatnonzero((owner != NOWHERE) & ~_crossing(work))
    moved = np.zeros(len(work), np.bool_)
    moved[mine[~by_workers[owner[mine]]]] = True
    moved[_longest(work, mine[by_workers[owner[mine]] & named[mine]], owner)] = True
    host = np.flatnonzero(work.kind == EdgeKind.HOST)
    before, after = np.full(len(work), NOWHERE), np.full(len(work), NOWHERE)
    before[work.target[host]], after[work.source[host][::-1]] = work.source[host], work.target[host][::-1]
    before, after = skipped(before, moved), skipped(after, moved)
    tid, nodes = work.column("tid"), np.flatnonzero(moved)
    nodes = nodes[np.argsort(owner[nodes], kind="stable")]
    making: dict[tuple[int, int, str], list[I64]] = {}
    for batch in np.split(nodes, np.flatnonzero(np.diff(owner[nodes])) + 1) if len(nodes) else ():
        head = int(owner[batch[0]])
        making.setdefault((int(work.member[head]), int(tid[head]), name[head]), []).append(batch)
    loaders = []
    for place, batches in sorted(making.items(), key=lambda item: item[0]):
        first = np.array([nodes[0] for nodes in batches])
        loaders.append(
            _Batches(
                *place,
                _BY_WORKERS in place[2],
                tuple(batches),
                before[first],
                after[first],
                _last(work, tid, *place[:2]),
            )
        )
    return _Found(tuple(loaders), moved, before, after)


def _owners(work: Workload) -> tuple[I64, Bool]:
    """Return of every node the outermost loader's row that it is inside of, itself included, ``NOWHERE`` without one;
    and whether it has the row's name. A thread with rows of PyTorch's own loaders has no others."""
    host, tid = work.work == Work.HOST, work.column("tid")
    named = names_found(work, LOADER) & host
    own = named & names_found(work, _OWN)
    thread = np.unique(np.stack([work.member, tid]), axis=1, return_inverse=True)[1].reshape(-1)
    named &= own | ~np.isin(thread, thread[own])
    return outermost(work, named & ~work.is_part), named


def _last(work: Workload, tid: I64, member: int, thread: int) -> int:
    """Return the last node of a thread, but for the one that ends the rank."""
    mine = (
        (work.member == member) & (tid == thread) & (work.work <= Work.GAP) & ~names_found(work, _END, families=False)
    )
    return int(np.flatnonzero(mine)[-1])


def _crossing(work: Workload) -> Bool:
    """Mark the nodes that launch device work or release another thread, and the parts of ops behind a wait: no worker
    can take them over.

    What a thread waited for before it asks for a batch goes to where it has it, so such a wait is no hindrance.
    """
    across = work.kind != EdgeKind.HOST
    part = work.is_part
    out = np.zeros(len(work), np.bool_)
    out[work.source[across]] = True
    out[work.target[across & part[work.target]]] = True
    return out


def _longest(work: Workload, nodes: I64, owner: I64) -> I64:
    """Return the node that costs most of each owner."""
    order: I64 = nodes[np.lexsort((work.cost_ns[nodes], owner[nodes]))]
    last = np.append(owner[order][1:] != owner[order][:-1], True)[: len(order)]
    longest: I64 = order[last]
    return longest


def _play(work: Workload, groups: Mapping[int, Sequence[int]]) -> Played:
    """Replay all ranks together, or each alone where together they do not finish."""
    played = play(work, groups)
    return played if played.ran.all() else play_ideal(work)


def _making_ns(work: Workload, recorded: Played, batches: _Batches, loader: LoaderChange) -> I64:
    """Return what each batch takes to make.

    With workers in the recording, that is how often a batch came, times their number: they were always busy. Where the
    main thread hardly waited they need not have been; then it is the most that a batch can take.
    """
    if not batches.by_workers:
        return np.array([work.cost_ns[nodes].sum() for nodes in batches.making])
    if loader.recorded is None:
        raise UsageError(
            f"{loader.title}: the recording has workers already, and does not say how many",
            todo=f"write --dataloader-workers RECORDED:{loader.workers}, with the number of workers in the recording",
        )
    wait = np.array([nodes[0] for nodes in batches.making])
    waited, taken = work.cost_ns[wait], recorded.end_ns[wait]
    if len(taken) < 2:
        raise UsageError(
            f"{loader.title}: the recording shows one batch, not how often one comes", todo="record more steps"
        )
    every_ns = (int(taken[-1]) - int(taken[0])) / (len(taken) - 1)
    busy = waited.mean() >= FULL * every_ns
    if loader.at_once < loader.recorded and not busy:
        raise UsageError(
            f"{loader.title}: the main thread waits only {waited.mean() / 1e6:.3f} ms a batch, "
            "so the recording does not show how long a batch takes",
            todo="record with fewer workers, or ask for more",
        )
    took_ns = (every_ns if busy else every_ns - waited.mean()) * loader.recorded
    if took_ns > MOST_BATCH_NS:
        raise UsageError(
            f"{loader.title}: a batch would take more than 13 days", todo="check the number of workers in the recording"
        )
    return np.full(len(wait), round(took_ns))


def _apart(work: Workload, found: _Found, loader: LoaderChange) -> Workload:
    """Return ``work`` with the nodes that move on threads of the workers."""
    target, moved = work.target, found.moved
    gone = moved[target] | moved[work.source]
    new = NewEdges()
    for batches in found.loaders:
        _worker_edges(batches, loader, new)
    for edge in np.flatnonzero(gone & ~moved[target]).tolist():
        new.add(int(found.before[work.source[edge]]), int(target[edge]), EdgeKind.HOST)
    for edge in np.flatnonzero(moved[target] & ~moved[work.source] & (work.kind != EdgeKind.HOST)).tolist():
        new.add(int(work.source[edge]), int(found.after[target[edge]]), EdgeKind(int(work.kind[edge])))
    return rewired(work, gone, new)


def _worker_edges(batches: _Batches, loader: LoaderChange, new: NewEdges) -> None:
    for k, nodes in enumerate(batches.making):
        begin, end = int(nodes[0]), int(nodes[-1])
        for a, b in zip(nodes[:-1].tolist(), nodes[1:].tolist(), strict=True):
            new.add(a, b, EdgeKind.HOST)
        if k >= loader.at_once:
            new.add(int(batches.making[k - loader.at_once][-1]), begin, EdgeKind.HOST)
        if k >= loader.ahead:  # that one was taken once it was there and its thread had come to it
            new.add(int(batches.making[k - loader.ahead][-1]), begin, EdgeKind.THREAD)
            new.add(int(batches.before[k - loader.ahead]), begin, EdgeKind.THREAD)
        new.add(end, int(batches.after[k]), EdgeKind.THREAD)


@dataclass(slots=True)
class _Run:
    """A loader in a long run, as far as it is known: when each batch was ``made`` and ``taken``, and when the windows
    ``began``.
    """

    batches: _Batches
    took_ns: I64
    loader: LoaderChange
    made: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    began: list[int] = field(default_factory=lambda: [0])

    @property
    def turns(self) -> int:
        """Return over how many windows a mean is to be taken, if they differ."""
        return min(MOST_TURNS, max(3, self.loader.at_once // math.gcd(self.loader.at_once, len(self.took_ns))))

    def making(self, j: int) -> int:
        """Return when batch ``j`` of the run is made. Workers begin evenly spread: with too few of them that
        stays so.
        """
        loader, took = self.loader, self.took_ns
        free = self.made[j - loader.at_once] if j >= loader.at_once else j * int(took.mean()) // loader.at_once
        asked = self.taken[j - loader.ahead] if j >= loader.ahead else 0
        return max(free, asked) + int(took[j % len(took)])

    def repeat(self, own_ns: I64) -> None:
        """Go through windows in which the thread does ``own_ns`` between taking a batch and asking for the next, until
        it has settled.
        """
        own, count, asked = own_ns.tolist(), len(own_ns), 0
        for j in range(count * max(2, -(-min(SETTLED * self.loader.ahead, MOST_BATCHES) // count))):
            self.made.append(self.making(j))
            self.taken.append(max(asked, self.made[j]))
            asked = self.taken[j] + own[j % count]
            if (j + 1) % count == 0:
                self.began.append(asked)

    def left_ns(self) -> I64:
        """Return what is left to make of each batch of the next window: of those that are asked for already some may be
        made.
        """
        count, at, began = min(self.loader.ahead, len(self.took_ns)), len(self.taken), self.began[-1]
        out = self.took_ns.copy()
        for j in range(at, at + count):
            self.made.append(self.making(j))
            free = self.made[j - self.loader.at_once] if j - self.loader.at_once >= at else began
            out[j - at] = np.clip(self.made[j] - max(began, free), 0, out[j - at])
        del self.made[at:]
        return out

    def then(self, work: Workload, played: Played) -> None:
        """Add the window that was played."""
        begin = int(played.rank_begin_ns[self.batches.member])
        since = self.began[-1] - begin
        self.taken += (_asked_taken(self.batches, played)[1] + since).tolist()
        for j in range(len(self.made), len(self.taken)):
            self.made.append(self.making(j))
        self.began.append(_thread_end_ns(work, played, self.batches) + since)


def _settled(work: Workload, runs: Sequence[_Run], groups: Mapping[int, Sequence[int]]) -> Workload:
    """Return ``work`` with as much left to make of its first batches as in a window of a long run.

    Of windows that differ it is that whose length is nearest to the mean, moved by what it differs from the mean.
    """
    ready = _with_left(work, runs, [np.zeros_like(run.took_ns) for run in runs])
    played = _play(ready, groups)
    for run in runs:
        asked, taken = _asked_taken(run.batches, played)
        last = _thread_end_ns(ready, played, run.batches) - int(taken[-1])
        run.repeat(np.append(asked[1:] - taken[:-1], last + int(asked[0] - played.rank_begin_ns[run.batches.member])))
    lefts: list[list[I64]] = []
    turns = max(run.turns for run in runs)  # after so many windows workers and batches meet again
    for _ in range(2 * turns):
        lefts.append([run.left_ns() for run in runs])
        if len(lefts) > 1 and all(map(np.array_equal, *lefts[-2:])):
            return _with_left(work, runs, lefts[-1])
        changed = _with_left(work, runs, lefts[-1])
        played = _play(changed, groups)
        for run in runs:
            run.then(changed, played)
    lengths = np.array([np.diff(run.began)[-turns:] for run in runs])
    differs = lengths - np.rint(lengths.mean(axis=1, keepdims=True)).astype(np.int64)
    usual = int(np.abs(differs).sum(axis=0).argmin())
    moved = []
    for run, left, more in zip(runs, lefts[turns + usual], differs[:, usual].tolist(), strict=True):
        count = min(run.loader.at_once, len(left))
        moved.append(np.append(np.clip(left[:count] - more, 0, run.took_ns[:count]), left[count:]))
    return _with_left(work, runs, moved)


def _with_left(work: Workload, runs: Sequence[_Run], left: Sequence[I64]) -> Workload:
    """Return ``work`` where each batch takes what is ``left`` of making it."""
    cost = work.cost_ns.copy()
    for run, left_ns in zip(runs, left, strict=True):
        for nodes, whole, rest in zip(run.batches.making, run.took_ns.tolist(), left_ns.tolist(), strict=True):
            if run.batches.by_workers:
                cost[nodes[0]] = rest
            elif rest != whole:
                done = np.rint(np.cumsum(work.cost_ns[nodes]) * (rest / whole)).astype(np.int64)
                cost[nodes] = np.diff(done, prepend=0)
    return replace(work, cost_ns=cost, micros_ns=np.maximum(work.micros_ns + cost - work.cost_ns, 0))


def _asked_taken(batches: _Batches, played: Played) -> tuple[I64, I64]:
    """Return when the thread of a loader asked for each batch, and had it."""
    begin = played.rank_begin_ns[batches.member]
    asked = np.where(batches.before == NOWHERE, begin, played.end_ns[batches.before])
    return asked, np.maximum(asked, [played.end_ns[nodes[-1]] for nodes in batches.making])


def _thread_end_ns(work: Workload, played: Played, batches: _Batches) -> int:
    """Return when the thread of a loader ends."""
    return int(max(played.end_ns[batches.last], _asked_taken(batches, played)[1][-1]))


def _done(run: _Run, recorded: Played, played: Played) -> str:
    """Describe a loader: its batches, how long the thread waits for one, and how often it takes one before and
    after.
    """
    batches, count = run.batches, len(run.took_ns)
    asked, taken = _asked_taken(batches, played)
    was = _asked_taken(batches, recorded)[1]
    what = (
        f"{batches.name.split('.')[0]}: {count:,} batches of {ms(float(np.median(run.took_ns)))} ms (median), its "
        "thread waits "
    )
    what += f"{ms(float((taken - asked).mean()))} ms for one"
    return what + (f", takes one every {_every(taken)} ms (before: {_every(was)} ms)" if count > 1 else "")


def _every(taken_ns: I64) -> str:
    return ms((int(taken_ns[-1]) - int(taken_ns[0])) / (len(taken_ns) - 1))
