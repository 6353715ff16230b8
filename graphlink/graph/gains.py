"""Gains: how much earlier a rank would end if an op, all nodes of a name, or a kind of work took no time.

Every gain is the difference of two replays: it is no share of the critical path, and gains of different things never
add up. What takes no time is work (``duration_ns``): start delays and launch latency stay, as they do wherever work is
scaled, and count as idle time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from graphlink.figures import figure
from graphlink.graph import relief
from graphlink.graph.critical import SHARES, CriticalChain, Share, ShareNs
from graphlink.graph.families import PYTHON, before_what, families_of
from graphlink.graph.order import longest_path
from graphlink.graph.relief import Relief
from graphlink.graph.slack import Slack, crossing, least_over
from graphlink.graph.syncpoints import SyncPointGain, named_gains, sync_gains, sync_points
from graphlink.graph_model import Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, U8, Bool, Linked
from graphlink.patterns import OPERATOR, fits
from graphlink.records import Short
from graphlink.steps import STEP_MARK
from graphlink.tables import among, concat, how_many, marked, nowhere, numbered_values, spread, sums, take

ROUNDS: Final = 3  # passes over the graph, each for at most ``WIDTH`` ops and as many families
WIDTH: Final = 128
_ONCE_PCT: Final = 80  # of the work of a family in one op: it came once, and not each time
_NO_OPS: Final = (NodeKind.HOST_GAP, NodeKind.DEVICE_DELAY, NodeKind.END)


class OpGain(msgspec.Struct, frozen=True, kw_only=True):
    """An op: ``nodes`` are itself (``id``) and its ``(cont.)`` parts, as far as they cost anything."""

    gain_ns: int
    on_path_ns: Annotated[int, figure("on path")]  # of its work, what is on the critical path
    work_ns: int
    share: str
    id: Annotated[int, figure("node")]
    name: str
    nodes: list[int]


class FamilyGain(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of one family: of a name, with the parts of ops.

    ``once_ns``: of host work alone (the start of CUDA, an algorithm that is chosen, a thread that waits for a core).
    ``before``: of device delays, the op and the device op before which most of their time lies.
    """

    gain_ns: Annotated[int, figure(text="what it would save of the time of the rank")]
    on_path_ns: Annotated[
        int, figure("on the path", "their time on the critical path", head="on path ms", means="on_path")
    ]
    work_ns: Annotated[int, figure(text="all their time")]
    share: str
    name: str
    count: Annotated[int, figure("nodes", "nodes with work")]
    once_ns: Annotated[
        int, figure("once", "of it, what one call took, where that is most of it: no other took so long")
    ] = 0
    before: list[str] = []


class Gains(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The gains of a rank: how much earlier it would end if a thing took no time: each recomputed, none to be added to
    another.

    The largest of each sort, largest first; what is not listed gains at most ``..._others_at_most_ns``. Work takes no
    time, start delays stay (they are ``idle``).
    """

    shares: ShareNs
    ops: list[OpGain]
    ops_others_at_most_ns: int
    families: list[FamilyGain]
    families_others_at_most_ns: int
    sync_points: list[SyncPointGain]
    sync_points_others_at_most_ns: int


def top_gains(
    graph: Graph,
    linked: Linked,
    slacks: tuple[Slack, Slack],
    path: CriticalChain,
    share: U8,
    top: int = 100,
    operation: I32 | None = None,
) -> tuple[Gains, I64]:
    """Find the ``top`` largest gains of ops, families and sync points, and the gain of each share and each operation:
    ``NOWHERE`` where it is none of the ``top`` largest and was not computed.

    ``slacks``, ``path``: slack and critical path of the replay; ``share``: what each node's time counts as;
    ``operation``: which one each node is part of, ``NOWHERE`` for none. The second of ``slacks`` is of a replay in
    which no full queue holds a launch, for what a device does: that holds the launches.

    Exact, by recomputation: of single nodes all at once (every path that avoids a node crosses it on an edge that spans
    it), of the rest by passes with a column each, best bound first, until no bound is above the gains found. Linear: up
    to ``ROUNDS`` passes.
    """
    late = slacks[0]
    # of a delay, what launch latency does not explain
    work: I64 = np.minimum(graph.duration_ns, late.end_ns - late.start_ns)
    alone = _single_gains(graph, late, path, work)
    working = np.where(share == Share.IDLE, np.int32(NOWHERE), share)
    operation = nowhere(len(work), np.int32) if operation is None else operation
    names: dict[str, int] = {}
    family = families_of(graph, names).astype(np.int32)
    staged, held_ns = _staged(graph, work), 0 if slacks[1] is late else int(graph.wake_ns.sum())
    none, rests = take(staged, staged.less_ns < 0), relief.carried(graph.host, graph.caller, work, graph.self_ns)
    sorts = [(_op_of(graph), none, 0)]  # single ops: as if no launch were held, with what their nodes carry
    sorts += [(family, rests, held_ns), (working, none, held_ns), (operation, rests, held_ns)]
    groups = [
        _Groups.of(graph, label, work, path, alone, staged, carried, held_ns) for label, carried, held_ns in sorts
    ]
    _evaluate(groups, (top, top, len(Share), top), graph, slacks)
    ops, families, by_share, operations = groups
    without_idle = longest_path(graph.first, graph.source, np.where(share == Share.IDLE, 0, work))
    idle_ns = late.total_ns - int(without_idle.max(initial=0))
    work_ns = dict(zip(SHARES, by_share.gain_ns.tolist(), strict=False))
    points = sync_gains(graph, sync_points(graph), late, path)
    return Gains(
        shares=ShareNs(**dict.fromkeys(SHARES, 0) | work_ns | {SHARES[Share.IDLE]: idle_ns}),
        ops=[
            OpGain(**figures, id=graph.first_id + node, name=graph.name_of(node), nodes=graph.id[nodes].tolist())
            for node, figures, nodes in ops.largest(top, share)
        ],
        ops_others_at_most_ns=ops.others_at_most_ns(top),
        families=_family_gains(graph, families, families.largest(top, share), [*names], ops.label, work),
        families_others_at_most_ns=families.others_at_most_ns(top),
        sync_points=named_gains(graph, linked, points[:top]),
        sync_points_others_at_most_ns=max((gain_ns for *_, gain_ns in points[top : top + 1]), default=0),
    ), operations.gain_ns


def _family_gains(
    graph: Graph,
    families: _Groups,
    largest: Iterator[tuple[int, dict[str, Any], I32]],
    names: Sequence[str],
    op: I32,
    work: I64,
) -> list[FamilyGain]:
    steps = how_many(fits(STEP_MARK, graph.strings)[graph.name] & (graph.kind == NodeKind.HOST_OP))
    op = np.where(graph.kind == NodeKind.HOST_CALL, np.int32(NOWHERE), op)
    return [
        FamilyGain(
            **figures,
            name=names[code],
            count=len(nodes),
            once_ns=_once_ns(names[code], op[nodes], families.own_ns[nodes], figures["work_ns"], steps)
            if figures["share"] == "host"
            else 0,
            before=_before(graph, nodes, work),
        )
        for code, figures, nodes in largest
    ]


def _once_ns(name: str, op: I32, own_ns: I64, whole_ns: int, steps: int) -> int:
    """Return what one op took of the work of a family, ``whole_ns``, if that is most of it; what is no op counts alone,
    and each piece of Python's time. A range that is there once in one step may come in each."""
    alone = (op == NOWHERE) | (name == PYTHON)
    ops, number = numbered_values(np.where(alone, int(op.max(initial=0)) + 1 + np.arange(len(op)), op))
    if len(ops) == 1 and steps < 2 and not (alone.any() or OPERATOR.fullmatch(name)):
        return 0
    most_ns = int(sums(len(ops), number, own_ns).max(initial=0))
    return most_ns if 100 * most_ns >= _ONCE_PCT * whole_ns else 0


def _evaluate(groups: Sequence[_Groups], tops: Sequence[int], graph: Graph, slacks: tuple[Slack, Slack]) -> None:
    """Compute gains of ``groups``, in place, until the ``tops`` largest of each are known or ``ROUNDS`` are over."""
    for _ in range(ROUNDS):
        wanted = [group.wanted(top) for group, top in zip(groups, tops, strict=True)]
        ends = np.cumsum([0, *map(len, wanted)])
        if not ends[-1]:
            break
        each = [*zip(groups, wanted, ends[:-1].tolist(), strict=True)]
        sets = concat(*(part for group, labels, first in each for part in group.reliefs(labels, first)))
        bounds = np.concatenate([group.bound_ns[labels] for group, labels, _ in each])
        held = np.concatenate([group.held[labels] for group, labels, _ in each])
        gains_ns, held_ns = (relief.gains(graph, late, sets, bounds * (held == k)) for k, late in enumerate(slacks))
        gains_ns += np.where(held, held_ns + slacks[0].total_ns - slacks[1].total_ns, 0)
        for (group, labels, _), gain_ns in zip(each, np.split(gains_ns, ends[1:-1]), strict=True):
            group.gain_ns[labels] = gain_ns


def _staged(graph: Graph, work_ns: I64) -> Relief:
    """Return for how long the host staged each copy (``relief.staging``), at most what its nodes cost: a what-if that
    makes copies quicker makes that quicker, too."""
    pageable = np.array([bool(relief.PAGEABLE.search(text)) for text in graph.strings], np.bool_)[graph.name]
    is_part, ends_ns = graph.kind == NodeKind.HOST_PART, graph.start_ns + graph.duration_ns
    staged = relief.staging(graph.edge_kind, graph.source, graph.target, pageable, is_part, graph.start_ns, ends_ns)
    return replace(staged, less_ns=np.minimum(staged.less_ns, work_ns[staged.node]))


def _of_labels(relief: Relief, label: I32) -> Relief:
    """Return the reliefs of labels in nodes that are none of theirs."""
    owner = label[relief.column]
    return take(replace(relief, column=owner), (owner != NOWHERE) & (owner != label[relief.node]))


def _on(path: Bool, relief: Relief, labels: int) -> I64:
    """Return how much of each label's relief is on a path."""
    on = path[relief.node]
    return sums(labels, relief.column[on], relief.less_ns[on])


def _before(graph: Graph, nodes: I32, work_ns: I64) -> list[str]:
    delays = nodes[graph.kind[nodes] == NodeKind.DEVICE_DELAY]
    return before_what(graph, delays, work_ns[delays])


def _single_gains(graph: Graph, late: Slack, path: CriticalChain, work_ns: I64) -> I64:
    """Return the gain of each node of the critical path alone: what it costs, or what the best path that avoids it is
    shorter.
    """
    cost = work_ns[path.node]
    avoiding = crossing(graph, late, path.node, past=True, below_ns=int(cost.max(initial=0)))
    return np.minimum(cost, least_over(len(path.node), avoiding.low, avoiding.high, avoiding.loss_ns))


def _op_of(graph: Graph) -> I32:
    """Return the op that each node is part of, by its node; ``NOWHERE`` for what is no op."""
    out = np.arange(len(graph.kind), dtype=np.int32)
    out[among(graph.kind, _NO_OPS)] = NOWHERE
    ops = graph.nodes_of(NodeKind.HOST_OP)
    parts = graph.nodes_of(NodeKind.HOST_PART)
    if len(parts) and len(ops):
        whole = spread(1 + int(max(graph.row[ops].max(), graph.row[parts].max())), graph.row[ops], ops)[
            graph.row[parts]
        ]
        out[parts] = np.where(whole == NOWHERE, parts, whole)
    return out


class _Groups(msgspec.Struct, frozen=True):
    """Nodes put together by ``label`` (one entry per node, ``NOWHERE`` for none); the other columns have one entry per
    label.

    ``staged``: what the host took to stage copies of a label (``column``), in nodes that are none of it; ``rests``:
    what of a label nodes of others carry, which is none of their ``own_ns``.
    """

    label: I32
    working: Bool  # a node: in a group, and costs something
    own_ns: I64  # a node: what it costs, less what it carries of other labels
    staged: Relief
    rests: Relief
    held: Bool  # all of it is on a device, and launches wait for it
    path_ns: I64
    bound_ns: I64  # at least the gain
    gain_ns: I64  # NOWHERE where it is not known yet

    @classmethod
    def of(
        cls,
        graph: Graph,
        label: I32,
        work_ns: I64,
        path: CriticalChain,
        alone_ns: I64,
        staged: Relief,
        carried: Relief,
        held_ns: int,
    ) -> _Groups:
        """Put nodes together. ``alone_ns``: gains of single nodes of the path; ``carried``: what they carry of the ops
        around them; ``held_ns``: for how long launches and other calls waited in all."""
        labels = int(label.max(initial=NOWHERE)) + 1
        staged, rests = (_of_labels(each, label) for each in (staged, carried))
        others = take(carried, label[carried.column] != label[carried.node])
        own_ns = work_ns - sums(len(label), others.node, others.less_ns)
        working = (label != NOWHERE) & (work_ns > 0)
        on_path = marked(len(label), path.node)
        path_ns = sums(labels, label[on_path & working], own_ns[on_path & working])
        path_ns += _on(on_path, rests, labels)
        bound_ns = path_ns + _on(on_path, staged, labels)
        held = (np.bincount(label[working & graph.host], minlength=labels) == 0) & (held_ns > 0)
        off_path_ns = sums(labels, label[working], own_ns[working]) - path_ns
        bound_ns += np.where(held, np.minimum(off_path_ns, held_ns), 0)
        gain_ns = np.where(bound_ns > 0, np.int64(NOWHERE), np.int64(0))
        single = np.bincount(label[working], minlength=labels) == 1
        single &= ~(held | marked(labels, staged.column) | marked(labels, rests.column))
        single &= ~marked(labels, label[working & (own_ns < work_ns)])
        mine = np.flatnonzero(working[path.node])
        mine = mine[single[label[path.node[mine]]]]
        gain_ns[label[path.node[mine]]] = alone_ns[mine]
        return cls(label, working, own_ns, staged, rests, held, path_ns, bound_ns, gain_ns)

    def wanted(self, top: int) -> I64:
        """Choose the groups to evaluate next: their bound is above the ``top``-th of the gains known."""
        known = self.gain_ns[self.gain_ns > 0]
        least = int(np.partition(known, len(known) - top)[len(known) - top]) if len(known) >= top else 0
        wanted = np.flatnonzero((self.gain_ns == NOWHERE) & (self.bound_ns > least))
        return wanted[np.argsort(-self.bound_ns[wanted], kind="stable")[:WIDTH]]

    def reliefs(self, groups: I64, first: int = 0) -> tuple[Relief, Relief, Relief]:
        """Return a set for each group, numbered from ``first``: its nodes cost nothing of their own, what others carry
        of it neither, and what the host takes to stage its copies goes with them."""
        column = spread(len(self.path_ns) + 1, groups, first + np.arange(len(groups), dtype=np.int32))
        mine = self.working & (column[self.label] != NOWHERE)  # label NOWHERE finds the last column, which is NOWHERE
        nodes = np.flatnonzero(mine).astype(np.int32)
        rests, staged = (replace(each, column=column[each.column]) for each in (self.rests, self.staged))
        own = Relief(column[self.label[nodes]], nodes, self.own_ns[nodes])
        return own, take(rests, rests.column != NOWHERE), take(staged, staged.column != NOWHERE)

    def _order(self) -> I64:
        """Return the groups of known gain, the largest first."""
        known = np.flatnonzero(self.gain_ns > 0)
        return known[np.lexsort((known, -self.path_ns[known], -self.gain_ns[known]))]

    def others_at_most_ns(self, top: int) -> int:
        """Return what no gain but the ``top`` largest is above."""
        unknown = self.bound_ns[self.gain_ns == NOWHERE]
        return max(int(self.gain_ns[self._order()[top : top + 1]].max(initial=0)), int(unknown.max(initial=0)))

    def largest(self, top: int, share: U8) -> Iterator[tuple[int, dict[str, Any], I32]]:
        """Yield the label of each of the ``top`` largest gains, its figures as the file has them, and its nodes that
        cost something.
        """
        listed = self._order()[:top]
        each, rests, _ = self.reliefs(listed)
        by_share = np.zeros((len(listed), len(Share)), np.int64)
        for part in (each, rests):
            np.add.at(by_share, (part.column, share[part.node]), part.less_ns)
        nodes = each.node[np.argsort(each.column, kind="stable")]
        ends = np.cumsum(np.bincount(each.column, minlength=len(listed)))
        for label, own_ns, mine in zip(listed.tolist(), by_share, np.split(nodes, ends[:-1]), strict=False):
            figures = {
                "gain_ns": int(self.gain_ns[label]),
                "on_path_ns": int(self.path_ns[label]),
                "work_ns": int(own_ns.sum()),
            }
            yield label, {**figures, "share": SHARES[int(own_ns.argmax())]}, mine
