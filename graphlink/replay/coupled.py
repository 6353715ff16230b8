"""The coupled machine: all ranks at once, dependencies only, to the ns; collectives wait for their last member,
receives for their send.

A collective begins when its last member is ready (and that one's start delay is over), and takes the shortest recorded
time of a member: that one waited for nobody. On the host (gloo) a row may end long after its collective was done, which
is when the first row of a member ended; one that somebody waited for ends as much later as recorded. A message is on
its way from when both ends have begun, so a receive ends no sooner than its send, or as much sooner as recorded; a send
waits for nobody. Wherever ranks do not wait for each other this is the ideal machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphlink.depend.edges import topological
from graphlink.depend.threads import ASLEEP_NS
from graphlink.graph.order import longest_path, passed
from graphlink.graph_model import EdgeKind, Graph
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I64, NOWHERE, Bool
from graphlink.replay.matching import COLLECTIVE, RECEIVE, Matched, Messages, messages, recorded_ns, shortest_ns
from graphlink.replay.played import NOT_RUN, Ended, Played, binding
from graphlink.replay.workload import Workload
from graphlink.tables import largest, least, marked, places, spread

_OF_ALL = [
    CollectiveType[name]
    for name in ("ALL_REDUCE", "ALL_GATHER", "ALL_TO_ALL", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK")
]


def play_coupled(work: Workload, match: Matched) -> Played:
    """Replay all ranks; each begins at its ``match.clock.begin_ns``. Nodes in and after a cycle, of one rank or over
    several, do not run.

    Linear in nodes, n log n in edges (one sort).
    """
    return followed(work, ended(work, match))


def ended(work: Workload, match: Matched) -> Ended:
    """Return when each node ends, and no more, which takes half as long as ``play_coupled``."""
    return Ended(_ends(work, match, _took(work, match), messages(work, match)), match)


def followed(work: Workload, ends: Ended) -> Played:
    """Return ``play_coupled`` where it is known when each node ends."""
    match, end, ran = ends.match, ends.end_ns, ends.ran
    (took, tail), sent = _took(work, match), messages(work, match)
    bound = binding(work, end, work.lag_ns)
    rank_begin = match.clock.begin_ns[work.member]
    start = np.maximum(bound.ended_ns, rank_begin)
    start[work.target[~ran[work.source]]] = NOT_RUN
    arrival = np.maximum(bound.ended_ns + bound.lag_ns, rank_begin) + work.fixed_ns
    begin, joined = start.copy(), np.full(len(work), NOWHERE, np.int32)

    done = ran[sent.receive]
    receive = sent.receive[done]
    begin[receive] = end[receive] - sent.costs_ns(work.cost_ns - work.fixed_ns)[1][done]
    joined[receive] = np.where(arrival[receive] < begin[receive], sent.send[done], NOWHERE)

    member = np.flatnonzero((match.code == COLLECTIVE) & ran)
    collective = match.partner[member]
    begin[member] = end[member] - took[collective] - tail[member]
    order = np.lexsort((arrival[member], collective))
    last = spread(len(took), collective[order], member[order])  # of equal keys the last one stays
    joined[member] = np.where(arrival[member] < begin[member], last[collective], NOWHERE)
    return Played(end, match, start, begin, bound.dependency, bound.kind, joined)


class _Took(NamedTuple):
    """What collectives take from their last arrival on, and by node how much later than that a member ended."""

    took_ns: I64
    tail_ns: I64


def _took(work: Workload, match: Matched) -> _Took:
    """Return what collectives take. Linear.

    On the host each is done when its last member has come and the first of all ended, where each waits for all. A
    member that somebody waited for and that ended later had a thread that ran late, which counts for it alone; the rows
    of others say nothing. What the shortest of a collective was changed by changes both as much, no tail becomes
    longer.
    """
    took, tail = shortest_ns(match, work.cost_ns - work.fixed_ns), np.zeros(len(work), np.int64)
    node = np.flatnonzero((match.code == COLLECTIVE) & (work.column("device") < 0))
    if match.clock.differ or not len(node):
        return _Took(took, tail)
    collective, count, awaited = match.partner[node], len(took), work.per_file(_awaited)[node].astype(np.bool_)
    began, ended = (recorded_ns(work, match.clock, time, node) for time in ("start_ns", "end_ns"))
    recorded, last = shortest_ns(match, work.column("cost_ns") - work.fixed_ns), largest(count, collective, began)
    of_all = np.isin(work.column("comm_type")[node], _OF_ALL)
    once, all_of = recorded.copy(), collective[of_all]
    once[all_of] = np.clip(least(count, all_of, ended[of_all]) - last, 0, recorded)[all_of]
    scale = took / np.maximum(recorded, 1)
    late = np.where(awaited, np.maximum(ended - (last + once)[collective], 0), 0)
    tail[node] = np.rint(late * np.minimum(scale, 1)[collective])
    took[all_of] = np.rint(once * scale)[all_of]
    return _Took(took, tail)


def _awaited(file: Graph) -> Bool:
    """Mark the nodes that ended a recorded wait; the last node of a file follows all that nothing follows."""
    waits = (file.edge_kind == EdgeKind.SYNC) & (file.target != len(file.name) - 1)
    waits &= file.start_ns[file.target] - file.end_ns[file.source] <= ASLEEP_NS
    return marked(len(file.name), file.source[waits])


class _Joint(NamedTuple):
    """All ranks as one graph without cycles: begins of ranks, heads of chains, and collectives. ``order``: those that
    can run; ``first``, ``source``: their edges, CSR by target in that order; ``edge``: which of all edges these are.
    ``ends_at``: by head, what ends when it does, itself or its collective.
    """

    order: I64
    first: I64
    source: I64
    edge: I64
    ends_at: I64


def _joint(work: Workload, match: Matched, sent: Messages) -> _Joint:
    """Order the graph of all ranks; what waits for what is not there waits for itself. Linear."""
    chains, ranks = work.chains, len(work.ranks)
    code, partner = match.code[chains.head], match.partner[chains.head]
    head, heads = np.arange(ranks, ranks + len(code)), ranks + len(code)
    member, count = head[code == COLLECTIVE], heads + len(match.expected)
    joins = heads + partner[code == COLLECTIVE]
    ends_at = head.copy()
    ends_at[code == COLLECTIVE] = joins
    few = np.flatnonzero(np.bincount(joins, minlength=count)[heads:] < match.expected)
    never = np.append(head[(code == RECEIVE) & (partner == NOWHERE)], heads + few)
    first = head[(np.diff(chains.first) == 0) | (code == RECEIVE)]
    send, receive = (chains.of_node[nodes] for nodes in (sent.send, sent.receive))
    rank = work.member[chains.head[first - ranks]]
    sources = np.concatenate([ends_at[chains.source], ends_at[send], rank, member, never])
    targets = np.concatenate([np.repeat(head, np.diff(chains.first)), head[receive], first, joins, never])
    recorded_ns = (work.column("start_ns") + match.clock.skew_ns[work.member])[chains.head]
    last_ns = largest(count - heads, joins - heads, recorded_ns[code == COLLECTIVE])
    begins_ns = np.concatenate([np.full(ranks, recorded_ns.min(initial=0)), recorded_ns, last_ns])
    order = topological(sources, targets, np.argsort(begins_ns, kind="stable"))  # in most runs as recorded
    place = places(order, count)
    edge = np.argsort(place[targets], kind="stable")
    edge = edge[place[targets[edge]] != NOWHERE]
    bounds = np.append(0, np.cumsum(np.bincount(place[targets[edge]], minlength=len(order))))
    return _Joint(order, bounds, place[sources[edge]], edge, ends_at)


def _ends(work: Workload, match: Matched, took: _Took, sent: Messages) -> I64:
    """Return when each node ends: the longest path over dependencies and messages, where a collective lets its members
    go once all are there.
    """
    if not (match.code.any() or match.clock.begin_ns.any() or np.any(work.source >= work.target)):
        return longest_path(work.first, work.source, work.cost_ns, work.lag_ns, work.chains)
    joint = work.of_edges(f"joint {id(match)}", lambda: (match, _joint(work, match, sent)))[1]
    chains, cost, collective = work.chains, work.cost_ns.copy(), match.code == COLLECTIVE
    behind_ns = chains.behind_ns(cost, work.lag_ns) + took.tail_ns[chains.head][chains.of_node]
    sent_ns, transfer_ns = sent.costs_ns(cost - work.fixed_ns)
    cost[sent.send] = work.fixed_ns[sent.send] + sent_ns
    cost[sent.receive] = work.fixed_ns[sent.receive] + transfer_ns
    cost[collective] = work.fixed_ns[collective]  # it is ready when its own start delay is over
    costs = np.concatenate([match.clock.begin_ns, cost[chains.head], took.took_ns])
    of_messages = -sent_ns - work.fixed_ns[sent.receive] - sent.early_ns
    lags = np.append(behind_ns[chains.node] + work.lags()[chains.edge], of_messages)
    lags = np.append(lags, np.zeros(int(joint.edge.max(initial=-1)) + 1, np.int64))[joint.edge]
    ends = spread(len(costs), joint.order, passed(joint.first, joint.source, costs[joint.order], lags), NOT_RUN)
    ends = ends[joint.ends_at][chains.of_node]
    return np.where(ends == NOT_RUN, NOT_RUN, ends + behind_ns)
