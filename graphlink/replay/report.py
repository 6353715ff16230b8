"""What a replay found, as data: ``graphlink replay --json``, and what the command prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from graphlink.errors import InputError, UsageError
from graphlink.graph.chakra import NodeType
from graphlink.graph.fold import FOLDED, NAMES
from graphlink.records import Short
from graphlink.replay.coupled import COUPLED, play_coupled
from graphlink.replay.drift import Place, places, slot_waits
from graphlink.replay.fitting import fit, refuse_unfit
from graphlink.replay.folder import load
from graphlink.replay.ideal import IDEAL, error_pct, play_ideal, share
from graphlink.replay.meetings import Meetings, meetings
from graphlink.replay.path import by_work, critical_path, families
from graphlink.replay.played import SLOT, Played, held_word
from graphlink.replay.slots import ASTRA_SIM, RANKS, play_ranks, play_slots
from graphlink.replay.stuck import stuck
from graphlink.replay.whatif import Changes
from graphlink.replay.workload import DELAY_NAME, GAP_NAME, RankFile, Work, Workload, has_times, measured_ns, workload
from graphlink.version import __version__

MACHINES: Final = (IDEAL, ASTRA_SIM, RANKS, COUPLED)
JOINED: Final = (RANKS, COUPLED)  # machines that replay all ranks at once
TOP_PLACES: Final = 10
TOP_FAMILIES: Final = 8
KEPT_SHARE: Final = 0.05  # unexplained time, of all, above which a what-if says so
_POLLS: Final = re.compile(r"^(cuda|cu|hip)(Event|Stream)Query$|is_completed|[Ee]vent[.:]+query")
_PATHS: Final = re.compile(r"^(cuda|hip)(Malloc|Free)(Async)?$|[Aa]utotun|[Tt]imeout")


class NodeAt(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    id: int
    name: str


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """``drift_ns``: replayed less recorded start; ``change_ns``: how much more than that of ``held_by``, over an edge of kind ``edge``."""

    node: NodeAt
    held_by: NodeAt | None
    edge: str
    drift_ns: int
    change_ns: int


class SlotWaitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of ``lane`` stood ready for ``waited_ns`` in all, since another node had the slot; ``behind`` had it most often."""

    rank: int
    lane: str
    slot: str
    nodes: int
    waited_ns: int
    behind: str
    behind_ns: int


class FamilyEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    work: str
    nodes: int
    ns: int


class PathEntry(Short, msgspec.Struct, frozen=True, kw_only=True):
    length_ns: int
    nodes: int
    work_ns: dict[str, int]
    gap_share: float
    delay_share: float
    slot_waits: int  # nodes of the path that waited for a slot
    top: list[FamilyEntry]


class RankEntry(msgspec.Struct, frozen=True, kw_only=True):
    """``measured_ns``: None for a file without recorded times. ``error_pct``: None there too, and for a rank that does not finish, whose
    ``replayed_ns`` is the time until nothing could run.
    """

    rank: int
    nodes: int
    ran: int  # of them
    measured_ns: int | None
    replayed_ns: int
    finished: bool
    error_pct: float | None


class StuckEntry(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    left: int
    node: NodeAt
    waits_for: str


class Run(Short, msgspec.Struct, frozen=True, kw_only=True):
    """One run of the machine: of one rank, or of all.

    ``measured_ns``: the last recorded end less the first recorded start of all ranks, on the run's clock; None without recorded times,
    where the ranks have no clock in common, and where they were made to begin together. ``error_pct`` compares ``total_ns``; None there
    too, and if a rank does not finish.
    """

    ranks: list[RankEntry]
    total_ns: int
    measured_ns: int | None
    error_pct: float | None
    path: PathEntry
    drifts: list[Drift]
    slot_waits: list[SlotWaitEntry]
    stuck: list[StuckEntry]
    notes: list[str]


class WhatIf(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The same run with changes. ``done``: what each change did; ``not_here``: changes that name nothing on these ranks."""

    ranks: list[RankEntry]
    before_ns: int
    after_ns: int
    gain_pct: float | None  # None where a rank does not finish, before or after
    path: PathEntry
    done: list[str]
    not_here: list[str]
    stuck: list[StuckEntry]


class Report(Short, msgspec.Struct, frozen=True, kw_only=True):
    graphlink: str = __version__
    machine: str
    runs: list[Run]
    what_if: list[WhatIf]  # one entry a run, or none
    cannot: list[str]  # what a what-if does not answer


@dataclass(frozen=True, slots=True, repr=False)
class Replayed(Short):
    """``refused``: the changes that fit none of these ranks, as on the command line, and why."""

    run: Run
    what_if: WhatIf | None
    refused: dict[str, UsageError]


def report(
    files: Mapping[int, Path], machine: str, groups: Mapping[int, Sequence[int]], changes: Changes, *, together: bool = False
) -> Report:
    """Replay the graphs of a run, by rank: all at once on a machine of ``JOINED``, else one after the other, and with ``changes`` again.

    Raises:
        InputError: a graph cannot be read, or holds no nodes.
        UsageError: a change names nothing, or is one of several waits.
    """
    runs: list[Run] = []
    what_ifs: list[WhatIf] = []
    limits: list[str] = []
    refused: list[tuple[Sequence[int], Mapping[str, UsageError]]] = []
    for batch in [files] if machine in JOINED else [{rank: path} for rank, path in files.items()]:
        ranks = load(batch)
        empty = next((r.file.path for r in ranks if not len(r.file.id)), None)
        if empty is not None:
            raise InputError("holds no nodes", path=empty)
        played = replayed(ranks, machine, groups, changes, together=together)
        runs.append(played.run)
        refused.append(([*batch], played.refused))
        limits += [c for c in cannot(ranks, machine, changes) if c not in limits]
        if played.what_if is not None:
            what_ifs.append(played.what_if)
    refuse_unfit(refused, changes)
    return Report(machine=machine, runs=runs, what_if=what_ifs, cannot=limits)


def replayed(
    ranks: Sequence[RankFile], machine: str, groups: Mapping[int, Sequence[int]], changes: Changes, *, together: bool = False
) -> Replayed:
    """One run of ``machine`` on ``ranks``, and with those of ``changes`` that fit them another.

    Raises:
        UsageError: as ``fit``.
    """
    work = workload(ranks)
    joined, played = _played(work, machine, groups, together)
    measured = _measured_ns(work, joined)
    run = Run(
        ranks=_ranks(work, played, joined),
        total_ns=played.total_ns,
        measured_ns=measured,
        error_pct=error_pct(played.total_ns, measured) if measured is not None and played.ran.all() else None,
        path=_path(work, played),
        drifts=[_drift(work, d) for d in places(work, played, TOP_PLACES)],
        slot_waits=_slot_waits(work, played),
        stuck=_stuck(work, played, joined),
        notes=[*(joined.notes if joined else ()), *([NAMES] if _folded(ranks) else []), *_broken(ranks)],
    )
    if not changes.any:
        return Replayed(run, None, {})
    changed = fit(work, changes, groups)
    joined, after = _played(changed.work, machine, groups, together)
    what_if = WhatIf(
        ranks=_ranks(changed.work, after, joined),
        before_ns=played.total_ns,
        after_ns=after.total_ns,
        gain_pct=_gain_pct(played, after),
        path=_path(changed.work, after),
        done=list(changed.done),
        not_here=list(changed.refused),
        stuck=_stuck(changed.work, after, joined),
    )
    return Replayed(run, what_if, changed.refused)


def _gain_pct(before: Played, after: Played) -> float | None:
    if not (before.ran.all() and after.ran.all()):
        return None
    return round(100 * (1 - after.total_ns / before.total_ns), 6) if before.total_ns else 0.0


def cannot(ranks: Sequence[RankFile], machine: str, changes: Changes) -> list[str]:
    """What a what-if of these graphs does not answer."""
    if not changes.any:
        return []
    out = _timed_by_luck(ranks)
    waits = any(np.isin(r.file.type, (NodeType.COMM_COLL, NodeType.COMM_RECV)).any() for r in ranks)
    if machine not in JOINED and waits and changes.bytes_per_s is None:
        out.append("communication keeps the time that the recording waited for other ranks: --machine coupled lets them meet")
    out += _kept(ranks, changes)
    if _folded(ranks) and any(s.work == Work.HOST and s.pattern for s in changes.scales):
        out.append(NAMES)
    if machine == ASTRA_SIM:
        out.append("in one slot a gain of one stream may be another's: compare with --machine ideal")
    return out


def _kept(ranks: Sequence[RankFile], changes: Changes) -> list[str]:
    """Of the rank with most of it, how much time nothing in its graph explains: what held it back does not change with it."""
    changed = {s.work for s in changes.scales if not s.pattern}
    names = [name for name, work in ((DELAY_NAME, Work.DELAY), (GAP_NAME, Work.GAP)) if work not in changed]
    shares = []
    for r in ranks:
        f = r.file
        kept = [i for i, name in enumerate(f.strings) if name in names]
        whole = measured_ns(f)
        unexplained = f.duration_ns - np.minimum(f.launch_latency_ns, f.duration_ns)
        shares.append((int(unexplained[np.isin(f.name, kept)].sum()) / whole if whole else 0.0, r.rank))
    most, rank = max(shares, default=(0.0, 0))
    if most <= KEPT_SHARE:
        return []
    return [
        f"{' and '.join(name + 's' for name in names)} stay as recorded, on rank {rank} {100 * most:.0f} % of its time, those of all "
        "threads and streams added up: what was awaited there may change as well, such as another rank whose messages are not recorded"
    ]


def _folded(ranks: Sequence[RankFile]) -> bool:
    return any(r.file.metadata.host == FOLDED for r in ranks)


def _broken(ranks: Sequence[RankFile]) -> list[str]:
    """Say what the replay leaves out and ASTRA-sim stumbles over."""
    errors = sum(len(r.file.faults.node) + len(r.file.duplicate_ids) for r in ranks)
    some = f"graphlink check: {errors:,} error{'s' * (errors > 1)} of ids and dependencies"
    return [f"{some}, which are left out here and which ASTRA-sim stumbles over"] if errors else []


def _timed_by_luck(ranks: Sequence[RankFile]) -> list[str]:
    """What is there as often, or in the way, that the timing of the recording decided, as far as names in the graphs show it."""
    out = []
    for pattern, what in (
        (_POLLS, "a wait that polls ({names}) turns as often as recorded: {count:,} in these graphs"),
        (_PATHS, "an op whose path depended on the time or on free memory ({names}) takes the recorded path: {count:,} in these graphs"),
    ):
        counts = Counter[str]()
        for r in ranks:
            named = {i: name for i, name in enumerate(r.file.strings) if pattern.search(name)}
            for i, n in zip(*np.unique(r.file.name[np.isin(r.file.name, [*named])], return_counts=True), strict=True):
                counts[named[int(i)]] += int(n)
            counts.update(call for calls in r.file.sync_call.values() for text in calls for call in text.split() if pattern.search(call))
        if counts:
            out.append(what.format(names=", ".join(name[:40] for name, _ in counts.most_common(3)), count=counts.total()))
    return out


def _played(work: Workload, machine: str, groups: Mapping[int, Sequence[int]], together: bool) -> tuple[Meetings | None, Played]:
    if machine in JOINED:
        joined = meetings(work, groups, together=together)
        return joined, play_ranks(work, joined) if machine == RANKS else play_coupled(work, joined)
    return None, play_slots(work) if machine == ASTRA_SIM else play_ideal(work)


def _measured_ns(work: Workload, joined: Meetings | None) -> int | None:
    if not all(has_times(r.file) for r in work.ranks):
        return None
    return measured_ns(work.ranks[0].file) if joined is None else joined.measured_ns


def _ranks(work: Workload, played: Played, joined: Meetings | None) -> list[RankEntry]:
    out = []
    for i, ranked in enumerate(work.ranks):
        begin = int(joined.begin_ns[i]) if joined else 0
        end = int(played.end_ns[work.offset[i] : work.offset[i + 1]].max(initial=begin))
        measured = measured_ns(ranked.file) if has_times(ranked.file) else None
        ran = int(np.count_nonzero(played.ran[work.offset[i] : work.offset[i + 1]]))
        finished = ran == len(ranked.file.id)
        entry = RankEntry(
            rank=ranked.rank,
            nodes=len(ranked.file.id),
            ran=ran,
            measured_ns=measured,
            replayed_ns=end - begin,
            finished=finished,
            error_pct=error_pct(end - begin, measured) if finished and measured is not None else None,
        )
        out.append(entry)
    return out


def _path(work: Workload, played: Played) -> PathEntry:
    path = critical_path(work, played)
    return PathEntry(
        length_ns=path.length_ns,
        nodes=len(path.node),
        work_ns=by_work(work, path),
        gap_share=share(path.gap_ns, path.length_ns),
        delay_share=share(path.delay_ns, path.length_ns),
        slot_waits=int(np.count_nonzero(path.kind == SLOT)),
        top=[FamilyEntry(name=f.name, work=Work(f.work).name.lower(), nodes=f.nodes, ns=f.ns) for f in families(work, path, TOP_FAMILIES)],
    )


def _node(work: Workload, node: int) -> NodeAt:
    return NodeAt(rank=work.rank(node), id=work.id(node), name=work.name(node))


def _drift(work: Workload, place: Place) -> Drift:
    return Drift(
        node=_node(work, place.node),
        held_by=None if place.held_by is None else _node(work, place.held_by),
        edge=held_word(place.kind),
        drift_ns=place.drift_ns,
        change_ns=place.change_ns,
    )


def _slot_waits(work: Workload, played: Played) -> list[SlotWaitEntry]:
    return [
        SlotWaitEntry(
            rank=w.lane.rank,
            lane=str(w.lane),
            slot=w.slot.name.lower(),
            nodes=w.nodes,
            waited_ns=w.waited_ns,
            behind=str(w.behind),
            behind_ns=w.behind_ns,
        )
        for w in slot_waits(work, played)
    ]


def _stuck(work: Workload, played: Played, joined: Meetings | None) -> list[StuckEntry]:
    return [StuckEntry(rank=s.rank, left=s.left, node=_node(work, s.node), waits_for=s.waits_for) for s in stuck(work, played, joined)]
