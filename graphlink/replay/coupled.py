"""The coupled machine: all ranks at once, dependencies only, to the ns; collectives meet and messages arrive.

A collective begins when its last member is ready (and that one's start delay is over), and takes the shortest recorded
time of a member: that one waited for nobody. A message is on its way from when both ends have begun, so a receive ends
no sooner than its send; a send waits for nobody. Wherever ranks do not meet this is the ideal machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.depend.edges import successors
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE
from graphlink.replay.meetings import COLLECTIVE, RECEIVE, Rendezvous, messages, recorded_ns, shortest_ns
from graphlink.replay.played import NOT_RUN, Played, binding
from graphlink.replay.workload import Workload
from graphlink.tables import spread

COUPLED: Final = "coupled"


def play_coupled(work: Workload, meetings: Rendezvous) -> Played:
    """Replay all ranks; each begins at its ``meetings.begin_ns``. Nodes in and after a cycle, of one rank or over
    several, do not run.

    Linear in nodes, n log n in edges (one sort).
    """
    took, sent = shortest_ns(meetings, work.cost_ns - work.fixed_ns), _sent(work, meetings)
    end = _ends(work, meetings, took, sent)
    ran = end != NOT_RUN
    bound = binding(work, end, work.lag_ns)
    start = np.maximum(bound.ended_ns, meetings.begin_ns[work.member])
    if not ran.all():
        start[work.target[~ran[work.source]]] = NOT_RUN
    arrival = np.maximum(bound.ended_ns + bound.lag_ns, meetings.begin_ns[work.member]) + work.fixed_ns
    begin, joined = start.copy(), np.full(len(work), NOWHERE, np.int32)

    receive, by = sent.receive[ran[sent.receive]], sent.by[ran[sent.receive]]
    begin[receive] = end[receive] - sent.transfer_ns[ran[sent.receive]]
    joined[receive] = np.where(arrival[receive] < begin[receive], by, NOWHERE)

    member = np.flatnonzero((meetings.code == COLLECTIVE) & ran)
    meeting = meetings.partner[member]
    begin[member] = end[member] - took[meeting]
    order = np.lexsort((arrival[member], meeting))
    last = spread(len(took), meeting[order], member[order])  # of equal keys the last one stays
    joined[member] = np.where(arrival[member] < begin[member], last[meeting], NOWHERE)
    return Played(start, begin, end, bound.dependency, bound.kind, joined, meetings.begin_ns)


@dataclass(frozen=True, slots=True)
class _Sent:
    """One entry per message: ``receive`` ends ``transfer_ns`` after it was ready and ``by`` had begun, which is
    ``before_ns`` before the end of that. ``by`` is the send, or the host node in which the message left; ``send`` takes
    ``sent_ns``.
    """

    send: I64
    sent_ns: I64
    receive: I64
    by: I64
    before_ns: I64
    transfer_ns: I64


def _sent(work: Workload, meetings: Rendezvous) -> _Sent:
    m = messages(work, meetings)
    own = work.cost_ns - work.fixed_ns
    free = (
        own[m.send] == 0
    )  # gloo: the row of a send ends when somebody waits for it, so the receive shows the transfer
    by, both = m.send.copy(), m.both_ns.copy()
    took = np.where(free, 0, np.minimum(own[m.send], own[m.receive]))  # the other one waited
    before = took.copy()
    early = np.flatnonzero(free & (m.received_ns < m.sent_ns) & (not meetings.clock.differ))
    by[early] = [_left_in(work, send) for send in m.send[early].tolist()]
    moved = early[by[early] != m.send[early]]
    before[moved] = work.cost_ns[by[moved]]
    both[moved] = np.maximum(
        *(recorded_ns(work, meetings.clock, "start_ns", nodes) for nodes in (by[moved], m.receive[moved])),
    )
    transfer = np.where(free, np.clip(m.received_ns - both, 0, own[m.receive]), took)
    return _Sent(m.send, took, m.receive, by, before, transfer)


def _left_in(work: Workload, send: int) -> int:
    """Find the host node in which a message left that was received before its send was recorded to begin; else return
    the send.

    gloo hands a message over and only then begins its row (``buf->send`` stands before ``SendWork`` in PyTorch's
    ProcessGroupGloo.cpp), so it left while the thread was still in the node before the row.
    """
    row = _source(work, send, EdgeKind.LAUNCH)
    if row is None:
        return send
    if work.file_of(row).duration_ns[work.position[row]]:
        return row
    node = _source(work, row, EdgeKind.HOST)
    return send if node is None else node


def _source(work: Workload, node: int, kind: EdgeKind) -> int | None:
    edges = slice(int(work.first[node]), int(work.first[node + 1]))
    sources = work.source[edges][work.kind[edges] == kind]
    return int(sources[-1]) if len(sources) else None


def _ends(work: Workload, meetings: Rendezvous, took_ns: I64, sent: _Sent) -> I64:
    """Return when each node ends: Kahn's order over dependencies and messages, where a meeting lets its members go once
    all are there.
    """
    n = len(work)
    lags = np.concatenate([work.lags(), -sent.before_ns - work.fixed_ns[sent.receive]])
    targets = np.concatenate([work.target, sent.receive]).astype(np.int32)
    sources = np.concatenate([work.source, sent.by.astype(np.int32)])
    starts, edge = successors(sources, np.arange(len(sources)), n)
    first, target, lag = starts.tolist(), targets[edge].tolist(), lags[edge].tolist()
    waits = np.bincount(targets, minlength=n)
    waits[(meetings.code == RECEIVE) & (meetings.partner == NOWHERE)] += 1  # its send is not there
    left = waits.tolist()
    cost = work.cost_ns.copy()
    cost[sent.send] = work.fixed_ns[sent.send] + sent.sent_ns
    cost[sent.receive] = work.fixed_ns[sent.receive] + sent.transfer_ns
    # a collective is ready when its own start delay is over
    collective = meetings.code == COLLECTIVE
    cost[collective] = work.fixed_ns[collective]
    costs = cost.tolist()
    meeting = np.where(collective, meetings.partner, NOWHERE).tolist()
    missing, took = meetings.expected.tolist(), took_ns.tolist()
    arrived: list[list[int]] = [[] for _ in missing]
    latest = [0] * len(missing)
    ready = meetings.begin_ns[work.member].tolist()
    end = [NOT_RUN] * n
    free = np.flatnonzero(waits == 0).tolist()
    while free:
        node = free.pop()
        at = ready[node] + costs[node]
        where = meeting[node]
        if where == NOWHERE:
            ended = [node]
        else:
            arrived[where].append(node)
            latest[where] = max(latest[where], at)
            if len(arrived[where]) < missing[where]:
                continue
            ended, at = arrived[where], latest[where] + took[where]
        for one in ended:
            end[one] = at
            for k in range(first[one], first[one + 1]):
                after = target[k]
                then = at + lag[k]
                if then > ready[after]:
                    ready[after] = then
                left[after] -= 1
                if not left[after]:
                    free.append(after)
    return np.array(end, np.int64)
