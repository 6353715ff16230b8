"""Changes a workload for a what-if: other costs, synchronisation taken away. The old one stays as it is.

A change that names something on one rank need not name anything on the others: ``fit`` makes those that do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.latency import lag_ns
from graphlink.graph_model import EdgeKind, NodeType
from graphlink.link.commtypes import CollectiveType
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import UserPattern
from graphlink.records import shortened
from graphlink.replay.names import closest
from graphlink.replay.syncs import NUMBER, Changed, waiting_ranks, without_syncs
from graphlink.replay.workload import MOST_NS, Slot, Work, Workload, delays, names_found

MOST_FACTOR: Final = 1_000_000
_ROUND_TWICE: Final = (CollectiveType.ALL_REDUCE,)
_ROUND_OF_SHARDS: Final = (CollectiveType.ALL_GATHER,)
_ROUND: Final = (
    *(CollectiveType.REDUCE_SCATTER, CollectiveType.REDUCE_SCATTER_BLOCK, CollectiveType.ALL_TO_ALL),
    *(CollectiveType.GATHER, CollectiveType.SCATTER),
)
SORTS: Final = {w.name.lower(): w for w in Work}
_OF_RANK: Final = re.compile(r"rank(\d{1,9}):(?=.)")


@dataclass(frozen=True, slots=True)
class Scale:
    """Nodes of one sort (None = each) whose name ``pattern`` finds (None = all) take ``factor`` of their time; of ``rank`` alone."""

    work: Work | None
    pattern: UserPattern | None
    factor: float
    rank: int | None = None

    @property
    def what(self) -> str:
        """Return ``kernel:<regex>``, ``kernel`` for all, ``<regex>`` for each sort; before it ``rank3:``, where it is of one rank."""
        parts = (
            None if self.rank is None else f"rank{self.rank}",
            None if self.work is None else self.work.name.lower(),
            None if self.pattern is None else self.pattern.pattern,
        )
        return ":".join(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that are requested. ``remove_sync``: ids, names of calls or ops, ``all``. ``launch_ns`` is added to each launch. None =
    as recorded."""

    scales: tuple[Scale, ...] = ()
    remove_sync: tuple[str, ...] = ()
    bytes_per_s: float | None = None
    launch_ns: int | None = None

    @property
    def any(self) -> bool:
        """Tell whether anything is changed."""
        return bool(self.scales or self.remove_sync or self.bytes_per_s is not None or self.launch_ns is not None)


def parse_scale(text: str) -> Scale:
    """Parse ``kernel:<regex>=0.5``, ``kernel=0.5`` or ``<regex>=0.5``, which is of each sort; before it ``rank3:`` is of one rank.

    Raises:
        UsageError: no sort and no pattern, or no factor.
    """
    what, equals, number = text.rpartition("=")
    of = _OF_RANK.match(what)
    rank, what = (None, what) if of is None else (int(of[1]), what[of.end() :])
    sort, colon, pattern = what.partition(":")
    todo = f"write SORT=FACTOR, SORT:REGEX=FACTOR or REGEX=FACTOR, of one rank rankN:..., SORT being one of {', '.join(SORTS)}"
    if not equals:
        raise UsageError(f"--scale {text!r}: has no =FACTOR", todo=todo)
    if not what:
        raise UsageError(f"--scale {text!r}: names nothing to scale", todo=todo)
    try:
        factor = float(number)
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= MOST_FACTOR:
        raise UsageError(f"--scale {text!r}: {number!r} is no factor from 0 to {MOST_FACTOR:,}", todo=todo)
    if sort not in SORTS:
        return Scale(None, UserPattern(what, "--scale"), factor, rank)
    return Scale(SORTS[sort], UserPattern(pattern, f"--scale {sort}:") if colon else None, factor, rank)


def apply(work: Workload, changes: Changes, groups: Mapping[int, Sequence[int]]) -> Changed:
    """Return ``work`` with ``changes`` made, in the order: bandwidth, scales, launches, synchronisation. Linear, names matched once each.

    What a call took to wake up can now go, and launch latency runs in parallel with what else an op waits for: both are as recorded in the
    recording, so only a what-if tells them from the rest.

    Raises:
        UsageError: a change names nothing that is there.
    """
    cost, fixed = work.cost_ns.copy(), work.fixed_ns.copy()
    split = delays(work, work.column("start_ns") + work.column("duration_ns"), work.column("start_ns") - work.fixed_ns)
    done: list[str] = []
    if changes.bytes_per_s is not None:
        done.append(_bandwidth(work, changes.bytes_per_s, groups, cost))
    for scale in changes.scales:
        done.append(_scale(work, scale, cost, fixed))
        if scale.work in (None, Work.DELAY):
            named = _named(work, scale) & ((work.work == Work.DELAY) | (scale.work == Work.DELAY))
            for ns in (split.launch_ns, split.stream_ns, split.explained_ns):
                ns[named] = _times(ns[named], scale.factor)
    if float(np.abs(cost, dtype=np.float64).sum()) > MOST_NS:
        raise UsageError("--scale: the scaled times add up to more than 36 years", todo="choose a smaller factor")
    wake = np.minimum(_wake_ns(work, cost), cost)
    if changes.launch_ns is not None:
        done.append(_launches(work, changes.launch_ns, cost))
    micros = np.maximum(work.micros_ns + cost - work.cost_ns, 0)
    out = replace(
        work,
        cost_ns=cost - wake - split.explained_ns,
        micros_ns=micros,
        fixed_ns=np.maximum(fixed - split.explained_ns, 0),
        lag_ns=lag_ns(work.first, work.kind, split.launch_ns, split.stream_ns, wake),
    )
    if changes.remove_sync:
        removed = without_syncs(out, changes.remove_sync)
        out = removed.work
        done += removed.done
    return Changed(out, tuple(done))


def _wake_ns(work: Workload, cost: I64) -> I64:
    """Return the time of waking up in each node, scaled as the node is."""
    wake = work.column("wake_ns")
    some = np.flatnonzero((wake > 0) & (work.cost_ns > 0))
    out = np.zeros(len(work), np.int64)
    out[some] = np.rint(wake[some] * (cost[some] / work.cost_ns[some]))
    return out


def _scale(work: Workload, scale: Scale, cost: I64, fixed: I64) -> str:
    """Scale in place. What is fixed in a node (its start delay) stays, but for sort ``delay``, which is that and the delay nodes."""
    named = _named(work, scale)
    mine = named if scale.work is None else named & (work.work == scale.work)
    what = f"{scale.what} x {scale.factor:g}"
    before = int(cost.sum())
    late = named & (fixed > 0) & ~mine & (scale.work == Work.DELAY)
    if late.any():
        less = _times(fixed[late], scale.factor)
        cost[late] += less - fixed[late]
        fixed[late] = less
    if not mine.any() and not late.any():
        raise UsageError(f"--scale {what}: no such node", todo=_meant(work, scale, named))
    cost[mine] = _times(cost[mine] - fixed[mine], scale.factor) + fixed[mine]
    return f"{what}: {np.count_nonzero(mine | late):,} nodes, {(int(cost.sum()) - before) / 1e6:+,.3f} ms of work"


def _meant(work: Workload, scale: Scale, named: Bool) -> str:
    """Guess what a scale that found nothing meant: another sort, or a name that is like it."""
    names = "graphlink replay DIR --list prints the names that there are"
    if named.any():
        sorts = ", ".join(Work(sort).name.lower() for sort in np.unique(work.work[named]).tolist())
        return f"what it finds is of sort {sorts}; {names}"
    words = [] if scale.work is not None else SORTS
    like = closest([*words, *work.names()[1]], "" if scale.pattern is None else scale.pattern.pattern)
    return f"did you mean {' or '.join(map(shortened, like))}? {names}" if like else names


def _named(work: Workload, scale: Scale) -> Bool:
    named = np.ones(len(work), np.bool_) if scale.pattern is None else names_found(work, scale.pattern)
    return named if scale.rank is None else named & (np.array(work.ranks)[work.member] == scale.rank)


def _times(ns: I64, factor: float) -> I64:
    scaled = np.rint(ns * factor)
    if np.abs(scaled).max(initial=0) >= MOST_NS:
        raise UsageError(f"a time x {factor:g} is beyond 2**60 ns", todo="give a smaller factor, or check the graph with graphlink check")
    times: I64 = scaled.astype(np.int64)
    return times


def _bandwidth(work: Workload, bytes_per_s: float, groups: Mapping[int, Sequence[int]], cost: I64) -> str:
    """Scale communication to a bandwidth: it takes what its bytes take on the wire, but no less than the quickest of its rank was recorded
    to take."""
    kind = work.column("type")
    nodes = np.flatnonzero(np.isin(kind, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)) & (work.slot != Slot.CPU))
    member, own = work.member[nodes], (cost - work.fixed_ns)[nodes]
    size = work.column("comm_size")[nodes]
    worlds = [file.metadata.world_size or max(work.ranks) + 1 for file in work.files]
    group = work.column("group")[nodes].tolist()
    members = np.array([len(groups.get(g) or ()) or worlds[i] for g, i in zip(group, member.tolist(), strict=True)], np.float64)
    wire = size * wire_share(np.where(kind == NodeType.COMM_COLL, work.column("comm_type"), NOWHERE)[nodes], members)
    some = own > 0  # gloo's sends cost nothing: their receives do
    quickest = np.full(len(work.files), MOST_NS)
    np.minimum.at(quickest, member[some], own[some])
    changes = some & (size > 0)
    sized, unsized = int(np.count_nonzero(changes)), int(np.count_nonzero(size <= 0))
    if not sized:
        raise UsageError("--bandwidth: the graphs hold no communication of known size")
    new = np.maximum(np.rint(wire / bytes_per_s * 1e9), quickest[member]).astype(np.int64) + work.fixed_ns[nodes]
    cost[nodes[changes]] = new[changes]
    rest = f"; {unsized} of unknown size stay as recorded" if unsized else ""
    what = f"bandwidth {bytes_per_s / 1e9:g} GB/s: {sized:,} communication nodes at wire bytes / bandwidth"
    return f"{what}, waits for other ranks left out{rest}"


def wire_share(comm_type: I64, members: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the bytes that a rank sends over its link, per byte of ``comm_size``, for ring algorithms (nccl-tests' bus bandwidth).

    ``comm_size`` is the whole buffer, of ALL_GATHER the rank's own shard. ``NOWHERE`` is a message between two ranks.
    """
    n = np.maximum(members, 1)
    out = np.ones(len(comm_type), np.float64)
    for types, share in ((_ROUND_TWICE, 2 * (n - 1) / n), (_ROUND_OF_SHARDS, n - 1), (_ROUND, (n - 1) / n)):
        out = np.where(np.isin(comm_type, types), share, out)
    return out


def launches(work: Workload) -> I64:
    """Count the launch calls that each host node makes: its ``launch`` edges, those of one graph launch (equal correlation) once."""
    target, launch = work.target, np.flatnonzero(work.kind == EdgeKind.LAUNCH)
    by, node = work.column("correlation")[target[launch]], work.source[launch].astype(np.int64)
    unknown = by == 0
    calls = np.unique(np.stack([node[~unknown], by[~unknown]], axis=1), axis=0)
    per_call = np.bincount(calls[:, 0], minlength=len(work))
    return per_call + np.bincount(node[unknown & (work.work[target[launch]] != Work.DELAY)], minlength=len(work))


def _launches(work: Workload, launch_ns: int, cost: I64) -> str:
    count = launches(work)
    change = np.maximum(count * launch_ns, -cost)
    short = int(np.count_nonzero(change != count * launch_ns))
    cost += change
    note = f", {short:,} of them shorter than that: down to 0" if short else ""
    return f"launches {launch_ns / 1000:+g} us each: {int(count.sum()):,} in {np.count_nonzero(count):,} host nodes{note}"


def fit(work: Workload, changes: Changes, groups: Mapping[int, Sequence[int]]) -> Changed:
    """Make those of ``changes`` that name something in ``work``. Each is tried alone first: whether it fits hangs on no other one.

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
        return Changed(work, refused=refused)
    changed = apply(work, fitting, groups)
    return Changed(changed.work, tuple(d + p for d, p in zip(changed.done, places, strict=True)), refused)


def refuse_unfit(of_runs: Sequence[tuple[Sequence[int], Mapping[str, UsageError]]], changes: Changes) -> None:
    """Refuse changes that fit no run. ``of_runs``: the ranks of each run, and what was refused there.

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
    """Refuse the id of a wait that is on several ranks. Raises UsageError."""
    if len(ranks) > 1:
        raise UsageError(f"--remove-sync {which}: a wait of that id is on {told_ranks(ranks)}", todo="choose one with --rank N")


def told_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0, 2``, of many ``ranks 0, 1, 2 ... 63``."""
    shown = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{', '.join(map(str, ranks[:3]))} ... {ranks[-1]}"
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def _each(changes: Changes) -> Iterable[tuple[str, Changes]]:
    """Yield every change alone, by its text on the command line, in the order in which ``apply`` makes them."""
    if changes.bytes_per_s is not None:
        yield f"--bandwidth {changes.bytes_per_s / 1e9:g}", Changes(bytes_per_s=changes.bytes_per_s)
    for scale in changes.scales:
        yield f"--scale {scale.what}={scale.factor:g}", Changes(scales=(scale,))
    if changes.launch_ns is not None:
        yield f"--launch-cost {changes.launch_ns / 1000:g}", Changes(launch_ns=changes.launch_ns)
    for which in changes.remove_sync:
        yield f"--remove-sync {which}", Changes(remove_sync=(which,))


def _place(still: Workload, changed: Changed) -> str:
    """Return on which ranks of several a change did something, compared with none (``still``)."""
    if len(still.ranks) == 1:
        return ""
    other = (changed.work.cost_ns != still.cost_ns) | (np.diff(changed.work.first) != np.diff(still.first))
    on = [still.ranks[i] for i in np.unique(still.member[other]).tolist()]
    return f" ({told_ranks(on)})" if on else ""
