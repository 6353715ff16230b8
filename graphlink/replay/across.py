"""The critical path over all ranks of a run: that of the coupled replay, where a rank that waited hands it on to the
one that came late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from graphlink.choices import COUPLED
from graphlink.figures import figure
from graphlink.graph.critical import SHARES, Share
from graphlink.graph.gains import FamilyGain
from graphlink.graph.path_file import refuse_broken
from graphlink.graph_model import NO_GROUP, Graph, Groups
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I32, I64, Bool
from graphlink.patterns import UserPattern, escaped
from graphlink.read import document
from graphlink.read.document import AGAIN
from graphlink.records import Short
from graphlink.replay.changes import SORT_OF, SORTS, Changes, TimeChange
from graphlink.replay.lateness import stuck
from graphlink.replay.machines import error_pct, play
from graphlink.replay.matching import RECEIVE, Matched
from graphlink.replay.path import ReplayPath, critical_path, families, spent_ns
from graphlink.replay.played import HELD_WORDS, MEETING, MESSAGE, Played
from graphlink.replay.records import FamilyEntry
from graphlink.replay.whatif import apply
from graphlink.replay.workload import Work, Workload, has_times, workload
from graphlink.tables import how_many, most, numbered_texts

TOP_FAMILIES: Final = 100
_SHARE: Final = {
    Work.HOST: Share.HOST,
    Work.KERNEL: Share.COMPUTE,
    Work.COMM: Share.COMMUNICATION,
    Work.COPY: Share.COPY,
    Work.GAP: Share.IDLE,
    Work.DELAY: Share.IDLE,
}
_COLLECTIVES: Final = frozenset(CollectiveType)
_HOPS: Final = {MEETING: "collective", MESSAGE: "message"}


class AcrossNodes(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The path, first node first: columns with one entry per node. Times are those of the replay on the run's clock,
    from ``origin_ns``.

    A node stands on the path from ``start_ns`` to ``end_ns``, and begins where the one before it ends. ``held_by`` is
    the kind of the dependency on that one; where that one is of ``other_rank``, ``collective`` or ``message``. ``name``
    and ``share`` are positions in ``names`` and ``shares``.
    """

    rank: list[int]
    id: list[int]
    name: list[int]
    share: list[int]
    start_ns: list[int]
    end_ns: list[int]
    start_delay_ns: list[int]  # part of the node's time, which is idle
    held_by: list[str | None]
    other_rank: list[int | None]


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """A change of ranks on the path: ``rank`` waited ``waited_ns`` at node ``id`` for node ``other_id`` of
    ``other_rank``.

    ``what`` names the collective or message. Before it came to that, the path spent ``stretch_ns`` on ``other_rank``,
    most of it (``most_ns``) in nodes named ``most``.
    """

    rank: int
    id: int
    what: str
    waited_ns: Annotated[int, figure(means="wait")]
    other_rank: int
    other_id: int
    other_name: Annotated[str, figure("which was in")]
    stretch_ns: Annotated[int, figure("path there", means="on_path")]
    most: Annotated[str, figure("most of it in")]
    most_ns: int


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the path that runs on a rank."""

    rank: int
    nodes: int
    ns: int
    share_ns: dict[str, int]


class AcrossFamily(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one name on the path, and what they take of it; as ``FamilyEntry``."""

    name: str
    share: str
    nodes: int
    ns: Annotated[int, figure("on the path", head="on path ms", means="on_path")]
    before: list[str] = []


class CriticalAcross(Short, msgspec.Struct, frozen=True, kw_only=True):
    """``share_ns`` sums up to ``length_ns``. ``before_ns``: from the first start of all ranks to that of the rank on
    which the path begins, which no graph explains (the recordings began apart); ``before_ns`` + ``length_ns`` is the
    time of the replay of all ranks.

    ``origin_ns``: the first start of all ranks on the run's clock, since the epoch; None where the ranks have no clock
    in common, and began together. ``top_gain``: of the names on the path that several nodes have the one that takes
    most of it, and how much earlier all ranks would end if its nodes took no time; None where a rank is stuck, or all
    names are there once. ``measured_ns`` and ``error_pct`` as in ``report.Run``. ``hops`` by ``waited_ns``,
    largest first; ``stuck`` has a line for each rank that did not finish, and then the path is that of what ran.
    """

    length_ns: int
    before_ns: int
    origin_ns: int | None
    measured_ns: int | None
    error_pct: float | None
    nodes_run: int
    nodes_all: int
    share_ns: dict[str, int]
    gain_ns: dict[str, int] | UnsetType = (
        UNSET  # of all nodes of a share on all ranks; absent in the file, and where a rank is stuck
    )
    top_gain: FamilyGain | None
    ranks: list[RankShare]
    hops: list[Hop]
    families: list[AcrossFamily]
    shares: list[str]
    names: list[str]
    nodes: AcrossNodes
    stuck: list[str]
    notes: list[str]


def across(files: Mapping[int, Graph], groups: Groups) -> CriticalAcross:
    """Find the path over the graphs ``files`` of some ranks; ``groups`` is ``comm_group.json``. As ``play_coupled`` in
    time.
    """
    work = workload(files)
    played = play(work, groups, COUPLED)
    path, clock = critical_path(work, played), played.match.clock
    begin = int(played.rank_begin_ns[work.member[path.node[0]]]) if len(path.node) else 0
    measured = clock.measured_ns if all(map(has_times, work.files)) else None
    found = families(work, path, TOP_FAMILIES)
    share = np.array([_SHARE[kind] for kind in Work], np.int64)[work.work[path.node]]
    name, names = numbered_texts(work.name(node) for node in path.node.tolist())
    return CriticalAcross(
        length_ns=played.total_ns - begin,
        before_ns=begin,
        origin_ns=clock.origin_ns,
        measured_ns=measured,
        error_pct=error_pct(played.total_ns, measured) if measured is not None and played.ran.all() else None,
        nodes_run=how_many(played.ran),
        nodes_all=len(work),
        share_ns=_share_ns(path, share),
        top_gain=_top_gain(work, played, found, groups) if played.ran.all() else None,
        ranks=[_rank(work, path, share, member) for member in range(len(work.ranks))],
        hops=sorted(hops(work, played, path), key=lambda hop: -hop.waited_ns),
        families=[
            AcrossFamily(
                name=family.name,
                share=SHARES[_SHARE[SORTS[family.work]]],
                nodes=family.nodes,
                ns=family.ns,
                before=family.before,
            )
            for family in found
        ],
        shares=list(SHARES),
        names=[*names],
        nodes=_nodes(work, path, share, name, begin),
        stuck=[
            f"rank {entry.rank} does not finish: {entry.left:,} nodes left; node {entry.node.id} "
            f"({entry.node.name[:60]}) waits for {entry.waits_for}"
            for entry in stuck(work, played)
        ],
        notes=list(played.match.notes),
    )


def share_gains(files: Mapping[int, Graph], groups: Groups) -> dict[str, int]:
    """Return how much earlier all ranks would end if what counts as a share took no time, on any rank: of each share a
    replay.
    """
    work = workload(files)
    before_ns = play(work, groups, COUPLED).total_ns
    out = {}
    for share, name in enumerate(SHARES):
        sorts = {kind for kind in Work if _SHARE[kind] == share and (work.work == kind).any()}
        if share == Share.IDLE and work.fixed_ns.any():
            sorts.add(Work.DELAY)
        changes = Changes(tuple(TimeChange(sort=SORT_OF[kind], scale=0) for kind in sorted(sorts)))
        changed = apply(work, changes, groups).work if sorts else work
        out[name] = before_ns - play(changed, groups, COUPLED).total_ns
    return out


def _top_gain(work: Workload, played: Played, of_path: Sequence[FamilyEntry], groups: Groups) -> FamilyGain | None:
    family = next((entry for entry in of_path if entry.nodes > 1 and entry.ns), None)
    if family is None:
        return None
    sort = SORTS[family.work]
    change = TimeChange(sort=SORT_OF[sort], name=UserPattern(f"^{escaped(family.name)}$", "--scale"), scale=0)
    changed = apply(work, Changes((change,)), groups)
    return FamilyGain(
        gain_ns=played.total_ns - play(changed.work, groups, COUPLED).total_ns,
        on_path_ns=family.ns,
        work_ns=-changed.done[0].ns,
        share=SHARES[_SHARE[sort]],
        name=family.name,
        count=changed.done[0].nodes,
        before=family.before,
    )


def load(path: Path) -> CriticalAcross:
    """Read ``critical_path.ranks.json`` of an earlier run.

    Raises:
        InputError: it is none of ours.
    """
    found = document.load(path, CriticalAcross, "critical path over ranks of this version of graphlink", AGAIN)
    refuse_broken(path, found, ("name", found.nodes.name, found.names))
    return found


def _share_ns(path: ReplayPath, share: I64, nodes: Bool | slice = slice(None)) -> dict[str, int]:
    """Sum the time of ``nodes`` of the path by share; start delays are idle."""
    return dict(zip(SHARES, spent_ns(path, share, len(SHARES), Share.IDLE, nodes), strict=True))


def _rank(work: Workload, path: ReplayPath, share: I64, member: int) -> RankShare:
    nodes = work.member[path.node] == member
    return RankShare(
        rank=work.ranks[member],
        nodes=how_many(nodes),
        ns=int(path.own_ns[nodes].sum()),
        share_ns=_share_ns(path, share, nodes),
    )


def _nodes(work: Workload, path: ReplayPath, share: I64, name: I32, begin_ns: int) -> AcrossNodes:
    end = begin_ns + np.cumsum(path.own_ns)
    ranks = [work.rank(n) for n in path.node.tolist()]
    kinds = path.kind.tolist()
    held: list[str | None] = [_HOPS.get(k, HELD_WORDS[k]) for k in kinds]
    other: list[int | None] = [before if k in _HOPS else None for before, k in zip([0, *ranks], kinds, strict=False)]
    if held:
        held[0] = None
    return AcrossNodes(
        rank=ranks,
        id=[work.id(n) for n in path.node.tolist()],
        name=name.tolist(),
        share=share.tolist(),
        start_ns=(end - path.own_ns).tolist(),
        end_ns=end.tolist(),
        start_delay_ns=path.fixed_ns.tolist(),
        held_by=held,
        other_rank=other,
    )


def hops(work: Workload, played: Played, path: ReplayPath) -> Iterator[Hop]:
    """Yield one entry per change of rank along the path."""
    changes = np.flatnonzero(np.diff(work.member[path.node])) + 1
    code, names = work.names()
    family = code[path.node]
    waited_ns = (played.begin_ns - played.start_ns - work.fixed_ns)[path.node]
    comm = [work.column(name)[path.node] for name in ("comm_tag", "comm_size", "comm_type")]
    for low, here in pairwise([0, *changes.tolist()]):
        node, other = int(path.node[here]), int(path.node[here - 1])
        longest, most_ns = most(family[low:here], path.own_ns[low:here])
        yield Hop(
            rank=work.rank(node),
            id=work.id(node),
            what=_what(played.match, node, *(int(column[here]) for column in comm)),
            waited_ns=int(waited_ns[here]),
            other_rank=work.rank(other),
            other_id=work.id(other),
            other_name=work.name(other),
            stretch_ns=int(path.own_ns[low:here].sum()),
            most=names[longest],
            most_ns=most_ns,
        )


def _what(match: Matched, node: int, tag: int, size_bytes: int, kind: int) -> str:
    """Return which message or collective a node is."""
    if match.code[node] == RECEIVE:
        return f"a message of tag {tag}, {size_bytes:,} bytes"
    collective = int(match.partner[node])
    type_name = CollectiveType(kind).name if kind in _COLLECTIVES else "collective"
    group = int(match.group[collective])
    return f"{type_name} {int(match.turn[collective])} of {'all ranks' if group == NO_GROUP else f'group {group}'}"
