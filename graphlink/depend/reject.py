"""Joins what HTA, rows and inference found into one set of dependencies, and rejects by reason what cannot be true.

Reasons (``Sync.rejected``; docs/edges.md)
  impossible     the source ended after the call returned, or after the waiting op started
  contradicted   HTA alone found it, and rows tell that the call or launch waited for something else; or the order in a
                 CUDA graph is recorded, and it is not part of it
  stream order   source and waiting op are on one stream, which orders them already
  implied        a later op of the same stream has the edge to the same target
  duplicate      another pair ends in the same edge
  no_target      no operator of the thread starts after the call; the wait ends in the part after the cut, or in ``end``
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.depend.replays import Replays
from graphlink.graph_model import Sync
from graphlink.linking.call_roles import Role
from graphlink.linking.launch import rounding_ns
from graphlink.model import I32, I64, NOWHERE, U8, Bool, FoundBy, Linked, Waits
from graphlink.patterns import fits
from graphlink.spans import Neighbours
from graphlink.steps import PROFILER_STEP
from graphlink.tables import begins, concat, how_many, in_order, marked, spread, successive, take


class Dependencies(msgspec.Struct, frozen=True):
    """The dependencies that remain. All columns of a group are parallel.

    ``host``: every true wait of a call, for the part after the cut; ``device``: waits of device ops. ``sync_source``,
    ``sync_target``: the edges to the next operator (a host row). ``rejected``: waits that rows name exactly, and that
    by the recorded times cannot be true. ``replays``: of CUDA graphs, as they were recorded.
    """

    host: Waits
    sync_source: I32
    sync_target: I32
    sync_found_by: U8
    device: Waits
    rejected: Waits
    counts: Sync
    replays: Replays


def merge(linked: Linked, cuda: CudaWaits, others: tuple[Waits, ...]) -> Dependencies:
    """Make one set of dependencies from all sources; ``others`` may be empty. Cost: O(pairs log pairs)."""
    all_ = (cuda.waits, *others)
    pairs = _unique_pairs(all_)
    reason = _reject(linked, cuda, pairs)
    live = reason == 0
    host = live & (pairs.call != NOWHERE)
    target: I32 = spread(len(pairs.call), host, next_operator(linked, pairs.call[host]))
    reason[_older_of_stream(cuda, pairs, host, pairs.call)] = _IMPLIED
    call_pairs = np.flatnonzero(host & (reason == 0))
    reason[host & (reason == 0) & (target == NOWHERE)] = _NO_TARGET
    to_op = host & (reason == 0)
    reason[_older_of_stream(cuda, pairs, to_op, target)] = _IMPLIED
    to_op &= reason == 0
    edge = np.flatnonzero(to_op)
    order = in_order(edge, target, pairs.source)
    new = begins(pairs.source[order], target[order])
    reason[order[~new]] = _DUPLICATE
    bits = np.bitwise_or.reduceat(pairs.found_by[order], np.flatnonzero(new))
    sync = order[new]
    device = (pairs.device_op != NOWHERE) & (reason == 0)
    reason[_older_of_stream(cuda, pairs, device, pairs.device_op)] = _IMPLIED
    event = np.flatnonzero(device & (reason == 0))
    named = (reason == _IMPOSSIBLE) & ((pairs.found_by & (FoundBy.CUDA_SYNC | FoundBy.EVENT_ID)) != 0)
    return Dependencies(
        host=take(pairs, call_pairs),
        sync_source=pairs.source[sync],
        sync_target=target[sync],
        sync_found_by=bits,
        device=take(pairs, event),
        rejected=take(pairs, named),
        counts=_counts(pairs, np.where(_to_call(linked, pairs) & (reason == _NO_TARGET), 0, reason)),
        replays=cuda.replays,
    )


_IMPOSSIBLE, _CONTRADICTED, _STREAM_ORDER, _IMPLIED, _DUPLICATE, _NO_TARGET = range(1, 7)
_REASONS = ("", "impossible", "contradicted", "stream order", "implied", "duplicate", "no_target")
_SOURCES = (
    ("hta", FoundBy.HTA),
    ("cuda_sync", FoundBy.CUDA_SYNC),
    ("event_id", FoundBy.EVENT_ID),
    ("inferred", FoundBy.INFERRED),
    ("recorded", FoundBy.RECORDED),
)


def _unique_pairs(sources: tuple[Waits, ...]) -> Waits:
    pairs = concat(*sources)
    pairs = take(pairs, np.lexsort((pairs.source, pairs.device_op, pairs.call)))
    first = np.flatnonzero(begins(pairs.call, pairs.device_op, pairs.source))
    return replace(take(pairs, first), found_by=np.bitwise_or.reduceat(pairs.found_by, first))


def _reject(linked: Linked, cuda: CudaWaits, pairs: Waits) -> U8:
    """Return the reason of each pair, 0 where it may be true."""
    trace = linked.trace
    device, calls = trace.device, trace.calls
    slack_ns = rounding_ns(trace)
    host = pairs.call != NOWHERE
    a, b = pairs.source, pairs.device_op
    limit_ns = np.where(host, np.append(calls.end_ns, 0)[pairs.call], device.start_ns[b])
    recorded = (pairs.found_by & FoundBy.RECORDED) != 0
    same = ~host & ~recorded & (device.device[a] == device.device[b]) & (device.stream[a] == device.stream[b])
    reason = np.where(same, _STREAM_ORDER, 0).astype(np.uint8)
    replay = cuda.replays.number
    within = ~host & ~recorded & (replay[a] == replay[b]) & (replay[b] != NOWHERE)
    reason[(reason == 0) & within] = _CONTRADICTED
    reason[(reason == 0) & (device.end_ns[a] > limit_ns + slack_ns)] = _IMPOSSIBLE
    told = np.where(host, np.append(cuda.told_call, False)[pairs.call], cuda.told_op[b])
    reason[(reason == 0) & told & (pairs.found_by == FoundBy.HTA)] = _CONTRADICTED
    return reason


def next_operator(linked: Linked, call: I32) -> I32:
    """Return the next simulatable CPU operator of each call: a host row, NOWHERE where there is none.

    The first ``cpu_op`` or ``user_annotation`` (not ProfilerStep) of the same thread that starts at or after the end of
    the call (CONTRACT, "Edges"): mlcommons/chakra takes any thread and the start of the call, which is wrong twice.
    """
    calls = linked.trace.calls
    return operator_after(linked, calls.tid[call], calls.end_ns[call])


def operator_after(linked: Linked, tid: I64, time_ns: I64) -> I32:
    """Return the first simulatable CPU operator of each thread from a time on: a host row, NOWHERE where there
    is none.
    """
    rows = linked.trace.host
    usable = np.flatnonzero(~fits(PROFILER_STEP, linked.trace.strings)[rows.name])
    following = Neighbours.of(rows.tid[usable], rows.start_ns[usable]).since(tid, time_ns)
    return np.append(usable, NOWHERE)[following].astype(np.int32)


def _to_call(linked: Linked, pairs: Waits) -> Bool:
    """Tell which waits end before another call of their thread, the next host node of an export without ranges."""
    calls, host = linked.trace.calls, pairs.call != NOWHERE
    if linked.match.method != "nsys" or len(linked.trace.host.tid):
        return np.zeros(len(host), np.bool_)
    call = pairs.call[host]
    later = Neighbours.of(calls.tid, calls.start_ns).since(calls.tid[call], calls.end_ns[call]) != NOWHERE
    return marked(len(host), np.flatnonzero(host)[later])


def _older_of_stream(cuda: CudaWaits, pairs: Waits, mask: Bool, target: I32) -> I64:
    """Find the pairs among ``mask`` whose target has an edge from a later op of the source's stream, too."""
    stream = cuda.replays.queue[pairs.source]
    order = in_order(np.flatnonzero(mask & (target != NOWHERE)), target, stream, pairs.source)
    earlier, later = successive(order, target, stream)
    return np.asarray(earlier[pairs.source[earlier] != pairs.source[later]])


def _counts(pairs: Waits, reason: U8) -> Sync:
    return Sync(
        found=len(reason),
        kept=how_many(reason == 0),
        rejected={_REASONS[r]: how_many(reason == r) for r in range(1, len(_REASONS)) if (reason == r).any()},
        by_source={
            name: count
            for name, bit in _SOURCES
            if (count := how_many(pairs.found_by & bit)) or bit != FoundBy.RECORDED
        },
    )


def wait_ends(linked: Linked, since_ns: I64, cuda: CudaWaits, found: Dependencies) -> I64:
    """Return for each call when the last awaited device op ended, where the host was blocked in it until then; else the
    call's start.

    A query never blocks, but the last of several in a row does from the first on (``since_ns``). Never beyond the end
    of the call.
    """
    calls = linked.trace.calls
    out = since_ns.copy()
    np.maximum.at(out, found.host.call, linked.trace.device.end_ns[found.host.source])
    out = np.minimum(out, calls.end_ns)
    query = (cuda.role == Role.EVENT_QUERY) & (since_ns == calls.start_ns)
    out[query] = calls.start_ns[query]
    return out
