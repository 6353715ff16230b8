"""What a replay found, as data: ``graphlink replay --json``, and what the command prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from graphlink.emit.summary import error_pct, share
from graphlink.replay.drift import Place, places, slot_waits
from graphlink.replay.ideal import IDEAL, play_ideal
from graphlink.replay.meetings import Meetings, meetings
from graphlink.replay.path import by_work, critical_path, families
from graphlink.replay.played import SLOT, Played, held_word
from graphlink.replay.slots import ASTRA_SIM, RANKS, play_ranks, play_slots
from graphlink.replay.stuck import stuck
from graphlink.replay.whatif import Changes, apply
from graphlink.replay.workload import RankFile, Work, Workload, measured_ns, workload
from graphlink.version import __version__

MACHINES: Final = (IDEAL, ASTRA_SIM, RANKS)
TOP_PLACES: Final = 10
TOP_FAMILIES: Final = 8


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


class PathEntry(msgspec.Struct, frozen=True, kw_only=True):
    length_ns: int
    nodes: int
    work_ns: dict[str, int]
    gap_share: float
    delay_share: float
    slot_waits: int  # nodes of the path that waited for a slot
    top: list[FamilyEntry]


class RankEntry(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    nodes: int
    measured_ns: int
    replayed_ns: int
    error_pct: float


class StuckEntry(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    left: int
    node: NodeAt
    waits_for: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the machine: of one rank, or of all."""

    ranks: list[RankEntry]
    total_ns: int
    path: PathEntry
    drifts: list[Drift]
    slot_waits: list[SlotWaitEntry]
    stuck: list[StuckEntry]
    notes: list[str]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The same run with changes. ``done``: what each change did."""

    ranks: list[RankEntry]
    before_ns: int
    after_ns: int
    gain_pct: float
    path: PathEntry
    done: list[str]
    stuck: list[StuckEntry]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    graphlink: str = __version__
    machine: str
    runs: list[Run]
    what_if: list[WhatIf]  # one entry a run, or none
    cannot: list[str]  # what a what-if does not answer


def replayed(
    ranks: Sequence[RankFile], machine: str, groups: Mapping[int, Sequence[int]], changes: Changes, *, together: bool = False
) -> tuple[Run, WhatIf | None]:
    """One run of ``machine`` on ``ranks``, and with ``changes`` another.

    Raises:
        UsageError: as ``apply``.
    """
    work = workload(ranks)
    joined, played = _played(work, machine, groups, together)
    run = Run(
        ranks=_ranks(work, played, joined),
        total_ns=played.total_ns,
        path=_path(work, played),
        drifts=[_drift(work, d) for d in places(work, played, TOP_PLACES)],
        slot_waits=_slot_waits(work, played),
        stuck=_stuck(work, played, joined),
        notes=list(joined.notes) if joined else [],
    )
    if not changes.any:
        return run, None
    changed = apply(work, changes, groups)
    joined, after = _played(changed.work, machine, groups, together)
    what_if = WhatIf(
        ranks=_ranks(changed.work, after, joined),
        before_ns=played.total_ns,
        after_ns=after.total_ns,
        gain_pct=round(100 * (1 - after.total_ns / played.total_ns), 6) if played.total_ns else 0.0,
        path=_path(changed.work, after),
        done=list(changed.done),
        stuck=_stuck(changed.work, after, joined),
    )
    return run, what_if


def cannot(ranks: Sequence[RankFile], machine: str, changes: Changes) -> list[str]:
    """What a what-if of these graphs does not answer."""
    if not changes.any:
        return []
    out = [
        "a wait that polls (a loop of cudaEventQuery, Event.query() or Work.is_completed()) turns as often as recorded",
        "an op whose path depended on the time (timeouts, autotuning, an allocator that retried) takes the recorded path",
    ]
    if machine != RANKS and any(r.file.comm_type.max(initial=-1) >= 0 for r in ranks):
        out.append("communication keeps the time that the recording waited for other ranks: --machine ranks lets them meet")
    if machine == ASTRA_SIM:
        out.append("in one slot a gain of one stream may be another's: compare with --machine ideal")
    return out


def _played(work: Workload, machine: str, groups: Mapping[int, Sequence[int]], together: bool) -> tuple[Meetings | None, Played]:
    if machine == RANKS:
        joined = meetings(work, groups, together=together)
        return joined, play_ranks(work, joined)
    return None, play_slots(work) if machine == ASTRA_SIM else play_ideal(work)


def _ranks(work: Workload, played: Played, joined: Meetings | None) -> list[RankEntry]:
    out = []
    for i, ranked in enumerate(work.ranks):
        begin = int(joined.begin_ns[i]) if joined else 0
        end = int(played.end_ns[work.offset[i] : work.offset[i + 1]].max(initial=begin))
        measured = measured_ns(ranked.file)
        entry = RankEntry(
            rank=ranked.rank,
            nodes=len(ranked.file.id),
            measured_ns=measured,
            replayed_ns=end - begin,
            error_pct=error_pct(end - begin, measured),
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
