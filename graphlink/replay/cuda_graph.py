"""A part of a run as a CUDA graph, as a what-if: its ops are not run on the host, one launch call launches all of its
device work.

On the device the order of streams and events inside stays, and what comes after it waits for all as before. Device ops
that follow others of the part wait for those alone, no longer for a launch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.families import PYTHON
from graphlink.graph.relief import PAGEABLE
from graphlink.graph.waits import ON_DEVICE
from graphlink.graph_model import PART, EdgeKind, NodeType
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import END, GRAPH_LAUNCH, LOADER, OPERATOR, UserPattern, escaped
from graphlink.records import ms, shortened
from graphlink.replay.assumptions import made
from graphlink.replay.changes import GraphChange
from graphlink.replay.draft import outermost, rewired
from graphlink.replay.records import Capturable, Made
from graphlink.replay.selection import Selection
from graphlink.replay.times import QUICKEST, launches
from graphlink.replay.workload import OF_HOST, Work, Workload, names_found
from graphlink.steps import STEP_MARK
from graphlink.tables import (
    begins,
    codes,
    how_many,
    in_order,
    largest,
    last_before,
    least,
    marked,
    skipped,
    spread,
    sums,
    values_at,
)

# between device ops, where the recording shows none: 1.0 us in a HIP graph (sglang_decode_graph), 1.1 on an A100
# (resnet-ddp2-a100)
GAP_US: Final = 1.0
_BACKWARD: Final = re.compile(r"^(?:autograd::engine::|\w+Backward\d*$)")
_MARK: Final = "ProfilerStep"
_WAITS: Final = "waits for the device in"
_WAITS_FOR_THREAD: Final = "waits for another thread in"
_ROUNDS: Final = 4
_DEEPEST: Final = 256  # of callers: in the file of somebody else they may go in a circle
_ONCE: Final = 0.8  # of the time of a family, taken by
_SHARE: Final = 10  # one of so many of its nodes, or fewer


def as_graphs(work: Workload, selection: Selection, change: GraphChange) -> tuple[Workload, Made]:
    """Return ``work`` where each op or range that is chosen is one launch of a CUDA graph, and what was done. n log n.

    ``selection`` is of the recording, whose nodes ``work`` has.

    Raises:
        UsageError: none is chosen, it launches nothing, or has what no graph can hold.
    """
    outside = ""
    if change.auto:
        owner, outside = _between_waits(work, selection, change)
    else:
        head = selection.nodes(change) & (work.work == Work.HOST) & ~work.is_part
        if not head.any():
            raise UsageError(
                f"{change.title}: no such op or range",
                todo="graphlink replay DIR --list host prints the names that there are",
            )
        owner = _with_their_threads(work, outermost(work, head))
    launched = _launched(work, owner)
    inside, on_device = owner != NOWHERE, launched != NOWHERE
    if not on_device.any():
        raise UsageError(
            f"{change.title}: launches no device work{outside}",
            todo="choose an op or range around its launches, on their thread",
        )
    _refuse(work, selection, change, owner, launched)
    launch_ns, why = _launch_ns(work) if change.launch_us is None else (round(change.launch_us * 1000), "given")
    heads = np.unique(launched[on_device])
    inside &= np.isin(owner, heads)
    once_ns = _once(work, inside)
    cost = np.where(inside, 0, work.cost_ns)
    cost[heads] = launch_ns
    np.add.at(cost, owner[inside], once_ns[inside])
    ops = how_many(on_device & (work.work != Work.DELAY))
    what = f"{len(heads):,} launches of {ops:,} device ops, {launch_ns / 1000:g} us each ({why})"
    out = _launched_once(work.with_costs(cost), launched)
    between = (launched[out.source] == launched[out.target]) & on_device[out.target] & (out.kind == EdgeKind.STREAM)
    lags = out.lags()
    # unless the recording shows what a device takes from one op of a part to the next: ops that waited for their
    # launch, one by one, show nothing of that
    if change.gap_us is not None or (between.any() and not lags[between].any()):
        gap_us = GAP_US if change.gap_us is None else change.gap_us
        gap_ns = np.maximum(round(1000 * gap_us) - work.fixed_ns[out.target], 0)
        out = replace(out, lag_ns=np.where(between, gap_ns, lags))
        what += f"; {gap_us:g} us from one device op to the next"
    if once_ns.any():
        longest = shortened(work.name(int(np.argmax(once_ns)))).removesuffix(PART)
        what += f"; {ms(int(once_ns.sum()))} ms that ops took once and not each time stay (most in {longest})"
        family, names = out.names()
        named = (
            np.where(marked(len(out), owner[once_ns > 0]), len(names), family),
            [*names, f"{longest} (and others), once"],
        )
        out = replace(out, kept={"": (out.first, out.source), "names": named})
    what += outside
    grown_ns = int((cost - work.cost_ns).sum())
    return out, made(change, what, how_many(inside), grown_ns)


def capturable(work: Workload, selection: Selection, most: int) -> Iterator[Capturable]:
    """Yield the ``most`` names of ops and ranges that have most launches inside, of two and more each, and what keeps
    them from being CUDA graphs. O(n log n) each."""
    inside = launches(work).astype(np.int64)
    node, amount = np.flatnonzero(inside), inside[inside > 0]
    for _ in range(_DEEPEST):
        node = selection.callers[node]
        node, amount = node[node != NOWHERE], amount[node != NOWHERE]
        np.add.at(inside, node, amount)
    family, names = work.names()
    head = np.flatnonzero((work.work == Work.HOST) & ~work.is_part & (inside > 1))
    count, total = np.bincount(family[head], minlength=len(names)), sums(len(names), family[head], inside[head])
    for k in np.lexsort((np.arange(len(names)), -total))[: min(most, np.count_nonzero(total))].tolist():
        name = names[k] if names[k] != PYTHON else _MARK
        text, why_not = _MARK if name == _MARK else f"^{escaped(name)}$", ""
        try:
            as_graphs(work, selection, GraphChange(name=UserPattern(text, "--cuda-graph")))
        except UsageError as problem:
            why_not = problem.what.partition(": ")[2]
        yield Capturable(name=name, nodes=int(count[k]), launches=int(total[k]), cuda_graph=text, why_not=why_not)


def _once(work: Workload, inside: Bool) -> I64:
    """Return what nodes ``inside`` took above the median of their family where that came once and not each time, as
    starting CUDA or choosing an algorithm does: no graph saves it. O(n log n).

    Once is what the fewest nodes took that have 80 % of the time of a family, if they are at most a tenth of it; then
    the same of the rest. Families of fewer than ten nodes count as one family, but for the median of those of several.
    Less than a hundredth of all is none.
    """
    out = np.zeros(len(work), np.int64)
    node = np.flatnonzero(inside & (work.cost_ns > 0))
    family = work.names()[0][node]
    count = np.bincount(family)[family]
    few, alone = count < _SHARE, count == 1
    usual_ns = np.where(alone, _median(np.where(few, 0, 1), work.cost_ns[node]), _median(family, work.cost_ns[node]))
    family[few] = family.max(initial=0) + 1
    order = np.lexsort((-work.cost_ns[node], family))
    node, family, usual_ns = node[order], family[order], usual_ns[order]
    while len(node):
        cost_ns, first = work.cost_ns[node], np.flatnonzero(begins(family))
        size = np.diff(np.append(first, len(node)))
        group = np.repeat(np.arange(len(first)), size)
        before_ns = np.cumsum(cost_ns) - cost_ns
        most = before_ns - before_ns[first][group] < _ONCE * np.add.reduceat(cost_ns, first)[group]
        rare = most & (np.add.reduceat(most.astype(np.int64), first) * _SHARE <= size)[group]
        if not rare.any():
            break
        out[node[rare]] = np.maximum(cost_ns[rare] - usual_ns[rare], 0)
        node, family, usual_ns = node[~rare], family[~rare], usual_ns[~rare]
    return out if 100 * int(out.sum()) >= int(work.cost_ns[inside].sum()) else np.zeros_like(out)


def _median(group: I64, ns: I64) -> I64:
    """Return the median of the group of each entry, of two the smaller one."""
    order = np.lexsort((-ns, group))
    first = np.flatnonzero(begins(group[order]))
    size = np.diff(np.append(first, len(order)))
    return spread(len(ns), order, np.repeat(ns[order][first + size // 2], size))


def _launched(work: Workload, owner: I64) -> I64:
    """Return for every device node the part that launched it; ``NOWHERE`` without one."""
    return values_at(owner, work.source_of(EdgeKind.LAUNCH))


def _between_waits(work: Workload, selection: Selection, change: GraphChange) -> tuple[I64, str]:
    """Return for every host node the first node of its part, ``NOWHERE`` outside, and what lies outside, in words.

    A part is as long as can be without what no graph can hold, and within a step where steps are marked. It goes from
    an op to the last that launches or hands over to another thread, with what that thread does for it. An op with
    something in the way inside is left out whole; of a range around it the rest is not. O(n log n).
    """
    launch = work.source_of(EdgeKind.LAUNCH)
    launcher = np.where(launch == NOWHERE, np.arange(len(work)), launch)
    lane = _lanes(work)
    backward, marked_lanes = (
        lane[names_found(work, pattern, families=False)] for pattern in (_BACKWARD, STEP_MARK)
    )  # what autograd's thread does belongs to the part that hands it over
    others = np.setdiff1d(backward, marked_lanes)
    main = np.isin(work.work, OF_HOST) & ~np.isin(lane, others)
    if change.part("rank", "step", "thread").anything:
        main &= selection.nodes(change)
    order = in_order(np.flatnonzero(main), lane, work.column("start_ns"))
    bad = marked(len(work), launcher[_obstacles(work, main, order, lane)])
    for _ in range(_ROUNDS):
        closed = _closed(work, selection, bad)
        owner = _with_their_threads(work, _parts(work, order, lane, bad | closed))
        nodes = launcher[np.concatenate([*_in_the_way(work, owner, _launched(work, owner)).values()])]
        if not len(nodes):
            break
        hands = (work.kind == EdgeKind.THREAD) & np.isin(owner[work.target], owner[nodes]) & main[work.target]
        bad[nodes] = bad[work.target[hands]] = True
    else:
        owner[np.isin(owner, owner[nodes])] = NOWHERE
    left_out = np.flatnonzero((bad | closed) & main & ~np.append(closed, False)[selection.callers])
    texts = [shortened(work.name(node)).removesuffix(PART) for node in left_out.tolist()]
    names = Counter(texts)
    first = dict(zip(reversed(texts), left_out[::-1].tolist(), strict=True))
    listed = ", ".join(f"{name} ({count:,}{selection.line(first[name])})" for name, count in names.most_common(3))
    return owner, f"; not in a graph, as they wait or block: {listed}" if names else ""


def _obstacles(work: Workload, main: Bool, order: I64, lane: I64) -> I64:
    """Return the nodes that can lie in no part at all: what no graph can hold, and what waits for the device. A wait
    that found all done cut nothing: it counts for the op before. ``order``: the nodes of ``main``, by lane and start.
    O(n log n).
    """
    times = work.column("start_ns")
    waiting = np.unique(work.target[work.kind == EdgeKind.SYNC])
    waiting = waiting[~names_found(work, END, families=False)[waiting]]
    cut = work.is_part | (work.work == Work.GAP)
    ops = order[names_found(work, OPERATOR, families=False)[order]]
    before = last_before((lane[ops],), times[ops], (lane[waiting],), times[waiting])
    waiting = np.where(cut[waiting], waiting, np.append(ops, NOWHERE)[before])
    everything = np.where(main, 0, NOWHERE)
    held = _in_the_way(work, everything, _launched(work, everything))
    others = [nodes for why, nodes in held.items() if why not in (_WAITS, _WAITS_FOR_THREAD)]
    return np.concatenate([waiting[waiting != NOWHERE], *others])


def _lanes(work: Workload) -> I64:
    """Number the threads and streams of all ranks; return that of each node."""
    return codes(work.member, work.column("tid"))


def _closed(work: Workload, selection: Selection, bad: Bool) -> Bool:
    """Return the nodes of ops and loaders in which one of the nodes ``bad`` lies, with all that runs inside these."""
    caller, operator = selection.callers, names_found(work, OPERATOR, families=False) | names_found(work, LOADER)
    holds, new = bad.copy(), np.flatnonzero(bad)
    while len(new):
        new = np.unique(caller[new])
        new = new[(new != NOWHERE) & ~holds[new]]
        holds[new] = True
    return np.asarray(skipped(caller, ~(holds & operator)) != NOWHERE)


def _parts(work: Workload, order: I64, lane: I64, outside: Bool) -> I64:
    """Return for every node the first of its part: the longest stretches of ``order`` without nodes ``outside`` and
    marks of steps, each from its first op to its last launch or hand-over, with two launches or more."""
    launches = np.bincount(work.source[work.kind == EdgeKind.LAUNCH], minlength=len(work))
    hands = work.kind == EdgeKind.THREAD
    tail = (launches > 0) | marked(len(work), work.target[hands])
    step = names_found(work, STEP_MARK, families=False) & ~work.is_part
    operator = names_found(work, OPERATOR, families=False) & ~work.is_part
    stretch = np.cumsum(outside[order] | step[order] | begins(lane[order]), dtype=np.int64)
    place = np.arange(len(order))
    count = int(stretch[-1]) + 1 if len(order) else 0
    starts, ends = ~outside[order] & operator[order], ~outside[order] & tail[order]
    first, last = least(count, stretch[starts], place[starts]), largest(count, stretch[ends], place[ends], NOWHERE)
    amount = np.bincount(stretch[ends], launches[order[ends]], count)
    inside = ~outside[order] & (amount > 1)[stretch] & (first[stretch] <= place) & (place <= last[stretch])
    return spread(len(work), order[inside], order[first[stretch[inside]]])


def _with_their_threads(work: Workload, owner: I64) -> I64:
    """Return ``owner`` with the nodes of other threads that work for a part: from the first that it hands over to a
    thread to the last that it waits for there, as in a backward pass, which PyTorch captures with the rest. n log n.
    """
    hands = work.kind == EdgeKind.THREAD
    source, target = work.source[hands], work.target[hands]
    start_ns = work.column("start_ns")
    lane = _lanes(work)
    lanes = int(lane.max(initial=0)) + 1
    there = (owner[source] != NOWHERE) & (owner[target] == NOWHERE)
    back = (owner[source] == NOWHERE) & (owner[target] != NOWHERE)
    begun, begun_by = np.unique(owner[source[there]] * lanes + lane[target[there]], return_inverse=True)
    ended, ended_by = np.unique(owner[target[back]] * lanes + lane[source[back]], return_inverse=True)
    from_ns = least(len(begun), begun_by, start_ns[target[there]])
    until_ns = largest(len(ended), ended_by, start_ns[source[back]], NOWHERE)
    both, first, last = np.intersect1d(begun, ended, return_indices=True)
    if not len(both):
        return owner
    part, thread = np.divmod(both, lanes)
    host = np.flatnonzero((owner == NOWHERE) & np.isin(work.work, OF_HOST))
    of = last_before((thread,), from_ns[first], (lane[host],), start_ns[host] + 1)
    within = (of != NOWHERE) & (start_ns[host] <= until_ns[last][of])
    out = owner.copy()
    out[host[within]] = part[of[within]]
    return out


def _launched_once(work: Workload, launched: I64) -> Workload:
    """Return ``work`` where device ops wait for the launch of their part alone, and only those that follow no other one
    of it.
    """
    source, target, part = work.source, work.target, launched[work.target]
    same = (part != NOWHERE) & (launched[source] == part) & np.isin(work.kind, ON_DEVICE)
    follows = marked(len(work), target[same])
    launches = (work.kind == EdgeKind.LAUNCH) & (part != NOWHERE)
    source = np.where(launches, part, source).astype(np.int32)
    return rewired(replace(work, source=source), launches & follows[target])


def _launch_ns(work: Workload) -> tuple[int, str]:
    """Estimate what the launch of a graph takes the host, and say from what."""
    count, takes = launches(work), work.cost_ns > 0
    graphs = names_found(work, GRAPH_LAUNCH, families=False) & (work.work == Work.HOST) & takes
    if graphs.any():
        return round(float(np.median(work.cost_ns[graphs]))), "the median of those in the recording"
    alone = (count == 1) & (work.work == Work.HOST) & takes
    ns = work.cost_ns[alone if alone.any() else (count > 0) & takes]
    if not len(ns):
        return 0, "the recording does not show what a launch takes"
    why = "as the quickest ops with one launch, the recording has no launch of a graph"
    return round(float(np.quantile(ns, QUICKEST))), why


def _in_the_way(work: Workload, owner: I64, launched: I64) -> dict[str, I64]:
    """Return the nodes that no graph can hold, by what they do."""
    target = work.target
    inner = (owner != NOWHERE) & (owner != np.arange(len(work)))
    foreign = inner[target] & (owner[work.source] != owner[target])
    type_ = work.column("type")
    comm = np.isin(type_, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV))
    of_host = comm & (work.column("device") == NOWHERE)  # gloo
    of_launch = launched != NOWHERE
    return {
        _WAITS: target[inner[target] & (work.kind == EdgeKind.SYNC)],
        _WAITS_FOR_THREAD: target[foreign & (work.kind == EdgeKind.THREAD)],
        "loads data in": np.flatnonzero((owner != NOWHERE) & names_found(work, LOADER)),
        "communicates on the host in": np.flatnonzero(of_launch & of_host),
        "copies from or to pageable memory, which blocks, in": np.flatnonzero(of_launch & names_found(work, PAGEABLE)),
    }


def _refuse(work: Workload, selection: Selection, change: GraphChange, owner: I64, launched: I64) -> None:
    """Refuse a part that no graph can hold, naming what it is. Raises UsageError."""
    for why, nodes in _in_the_way(work, owner, launched).items():
        if len(nodes):
            node = int(nodes[0])
            part = launched[node] if launched[node] != NOWHERE else owner[node]
            raise UsageError(
                f"{change.title}: {shortened(work.name(int(part)))} cannot be a graph: it {why} "
                f"{shortened(work.name(node))} (node {work.id(node)}{selection.line(node)})",
                todo="choose parts before and after it, or take it out first, as --remove-sync does with waits",
            )
