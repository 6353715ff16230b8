"""The coupled machine: all ranks at once, dependencies only, to the ns; collectives wait for their last member,
receives for their send.

A collective begins when its last member is ready (and that one's start delay is over), and takes the shortest recorded
time of a member: that one waited for nobody. A message is on its way from when both ends have begun, so a receive ends
no sooner than its send; a send waits for nobody. Wherever ranks do not wait for each other this is the ideal machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.edges import successors
from graphlink.model import I64, NOWHERE
from graphlink.replay.matching import COLLECTIVE, RECEIVE, Matched, messages, shortest_ns
from graphlink.replay.played import NOT_RUN, Played, binding
from graphlink.replay.workload import Workload
from graphlink.tables import spread


def play_coupled(work: Workload, match: Matched) -> Played:
    """Replay all ranks; each begins at its ``match.clock.begin_ns``. Nodes in and after a cycle, of one rank or over
    several, do not run.

    Linear in nodes, n log n in edges (one sort).
    """
    took, sent = shortest_ns(match, work.cost_ns - work.fixed_ns), _sent(work, match)
    end = _ends(work, match, took, sent)
    ran = end != NOT_RUN
    bound = binding(work, end, work.lag_ns)
    rank_begin = match.clock.begin_ns[work.member]
    start = np.maximum(bound.ended_ns, rank_begin)
    start[work.target[~ran[work.source]]] = NOT_RUN
    arrival = np.maximum(bound.ended_ns + bound.lag_ns, rank_begin) + work.fixed_ns
    begin, joined = start.copy(), np.full(len(work), NOWHERE, np.int32)

    done = ran[sent.receive]
    receive = sent.receive[done]
    begin[receive] = end[receive] - sent.transfer_ns[done]
    joined[receive] = np.where(arrival[receive] < begin[receive], sent.send[done], NOWHERE)

    member = np.flatnonzero((match.code == COLLECTIVE) & ran)
    collective = match.partner[member]
    begin[member] = end[member] - took[collective]
    order = np.lexsort((arrival[member], collective))
    last = spread(len(took), collective[order], member[order])  # of equal keys the last one stays
    joined[member] = np.where(arrival[member] < begin[member], last[collective], NOWHERE)
    return Played(start, begin, end, bound.dependency, bound.kind, joined, match)


@dataclass(frozen=True, slots=True)
class _Sent:
    """One entry per message: ``receive`` ends ``transfer_ns`` after it was ready and ``send`` had begun, which takes
    ``sent_ns``.
    """

    send: I64
    sent_ns: I64
    receive: I64
    transfer_ns: I64


def _sent(work: Workload, match: Matched) -> _Sent:
    pairs = messages(work, match)
    send, receive = pairs.send, pairs.receive
    own = work.cost_ns - work.fixed_ns
    # gloo: the row of a send ends when somebody waits for it, so the receive shows the transfer
    free = own[send] == 0
    took = np.where(free, 0, np.minimum(own[send], own[receive]))  # the other one waited
    transfer = np.where(free, np.clip(pairs.received_ns - pairs.both_ns, 0, own[receive]), took)
    return _Sent(send, took, receive, transfer)


def _ends(work: Workload, match: Matched, took_ns: I64, sent: _Sent) -> I64:
    """Return when each node ends: Kahn's order over dependencies and messages, where a collective lets its members go
    once all are there.
    """
    n = len(work)
    lags = np.concatenate([work.lags(), -sent.sent_ns - work.fixed_ns[sent.receive]])
    targets = np.concatenate([work.target, sent.receive]).astype(np.int32)
    sources = np.concatenate([work.source, sent.send.astype(np.int32)])
    starts, edge = successors(sources, np.arange(len(sources)), n)
    first, target, lag = starts.tolist(), targets[edge].tolist(), lags[edge].tolist()
    waits = np.bincount(targets, minlength=n)
    waits[(match.code == RECEIVE) & (match.partner == NOWHERE)] += 1  # its send is not there
    left = waits.tolist()
    collective = match.code == COLLECTIVE
    cost = work.cost_ns.copy()
    cost[sent.send] = work.fixed_ns[sent.send] + sent.sent_ns
    cost[sent.receive] = work.fixed_ns[sent.receive] + sent.transfer_ns
    cost[collective] = work.fixed_ns[collective]  # it is ready when its own start delay is over
    costs = cost.tolist()
    joins = np.where(collective, match.partner, NOWHERE).tolist()
    missing, took = match.expected.tolist(), took_ns.tolist()
    arrived: list[list[int]] = [[] for _ in missing]
    latest = [0] * len(missing)
    ready = match.clock.begin_ns[work.member].tolist()
    end = [NOT_RUN] * n
    free = np.flatnonzero(waits == 0).tolist()
    while free:
        node = free.pop()
        ended_ns = ready[node] + costs[node]
        meets = joins[node]
        if meets == NOWHERE:
            ended = [node]
        else:
            arrived[meets].append(node)
            latest[meets] = max(latest[meets], ended_ns)
            if len(arrived[meets]) < missing[meets]:
                continue
            ended, ended_ns = arrived[meets], latest[meets] + took[meets]
        for member in ended:
            end[member] = ended_ns
            for k in range(first[member], first[member + 1]):
                after = target[k]
                ready_ns = ended_ns + lag[k]
                if ready_ns > ready[after]:
                    ready[after] = ready_ns
                left[after] -= 1
                if not left[after]:
                    free.append(after)
    return np.array(end, np.int64)
