"""The device side of a rank's graph: stream order, event waits seen and unseen, start delays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.depend.devicetime import Delays, Order, delays, infer_events, ready_ns, stream_order
from graphlink.depend.enqueued import Enqueued
from graphlink.depend.host import HostSide
from graphlink.depend.merge import Dependencies, next_operator
from graphlink.model import I32, I64, NOWHERE, U8, CommKind, Communication, FoundBy, Linked


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """Event edges (device rows): recorded waits, then those inferred from late starts, then work launched behind a finished wait."""

    order: Order
    delays: Delays
    event_source: I32
    event_target: I32
    event_found_by: U8
    inferred_events: int


def device_side(linked: Linked, cuda: CudaWaits, found: Dependencies, host: HostSide, gap_ns: int, enqueued: Enqueued | None) -> DeviceSide:
    """``enqueued``: what can have been waited for, to infer event waits from late starts; None to infer none. Cost: O(n log n)."""
    device = linked.trace.device
    order = stream_order(device)
    launched_ns = np.full(len(device.start_ns), host.start_ns, np.int64)
    linked_ops = host.launcher != NOWHERE
    by = host.launcher[linked_ops]
    launched_ns[linked_ops] = host.nodes.start_ns[by] + host.nodes.duration_ns[by]  # what the node waits for comes after
    behind = _behind_finished_waits(linked, found, host)
    source, target = np.concatenate([found.event_source, behind.source]), np.concatenate([found.event_target, behind.target])
    bits = np.concatenate([found.event_found_by, behind.found_by])
    inferred = 0
    if enqueued is not None:
        unseen = infer_events(linked, cuda, enqueued, ready_ns(order, launched_ns, (source, target), host.start_ns))
        inferred = len(unseen[0])
        source, target = np.concatenate([source, unseen[0]]), np.concatenate([target, unseen[1]])
        bits = np.concatenate([bits, np.full(inferred, FoundBy.INFERRED, np.uint8)])
    late = delays(device, ready_ns(order, launched_ns, (source, target), host.start_ns), gap_ns)
    return DeviceSide(order, late, source, target, bits, inferred)


@dataclass(frozen=True, slots=True)
class _Behind:
    source: I32
    target: I32
    found_by: U8


def _behind_finished_waits(linked: Linked, found: Dependencies, host: HostSide) -> _Behind:
    """What an op launches after a wait in which nothing had to be waited for any more comes after what was awaited.

    There is no cut behind such a call, so its ``sync`` edge starts at the next operator only; until then, event edges keep the order:
    onto the first op that the thread then launches on each stream. Cost: O(pairs x streams of the thread x log n).
    """
    device, calls, rows = linked.trace.device, linked.trace.calls, linked.trace.host
    pair = np.flatnonzero(~host.blocked[found.call])
    call, source = found.call[pair], found.call_source[pair]
    following = next_operator(linked, call)
    until_ns = np.full(len(call), np.iinfo(np.int64).max)
    until_ns[following != NOWHERE] = rows.start_ns[following[following != NOWHERE]]
    op = np.flatnonzero(linked.device_call != NOWHERE)
    op = op[np.isin(calls.tid[linked.device_call[op]], calls.tid[call])]
    launch = linked.device_call[op]
    order = np.lexsort((op, calls.start_ns[launch], device.stream[op], device.device[op], calls.tid[launch]))
    op, launch = op[order], launch[order]
    lane = np.stack([calls.tid[launch], device.device[op], device.stream[op]])
    first = np.flatnonzero((lane[:, 1:] != lane[:, :-1]).any(axis=0)) + 1
    out = [_Behind(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8))]
    for begin, end in pairwise([0, *first.tolist(), len(op)] if len(op) else []):
        tid, number, stream = lane[:, begin].tolist()
        asked = np.flatnonzero((calls.tid[call] == tid) & ((device.device[source] != number) | (device.stream[source] != stream)))
        launched_ns = calls.start_ns[launch[begin:end]]
        at = np.searchsorted(launched_ns, calls.end_ns[call[asked]])
        inside = at < end - begin
        inside[inside] = launched_ns[at[inside]] < until_ns[asked[inside]]
        asked, target = asked[inside], op[begin + at[inside]]
        true = device.start_ns[target] >= device.end_ns[source[asked]]
        asked, target = asked[true], target[true]
        out.append(_Behind(source[asked], target.astype(np.int32), found.call_found_by[pair[asked]]))
    return _Behind(*(np.concatenate([getattr(b, column) for b in out]) for column in ("source", "target", "found_by")))


def collective_order(linked: Linked, comm: Communication) -> tuple[I64, I64]:
    """(earlier, later) device rows: the collectives of one communicator, in the order they ran, where streams do not order them."""
    device = linked.trace.device
    chosen = [i for i, node in enumerate(comm.device_node) if node.kind == CommKind.COLLECTIVE and node.group is not None]
    row = comm.device_row[chosen]
    group = np.array([comm.device_node[i].group for i in chosen], np.int64)
    order = np.lexsort((row, group))
    row, group = row[order], group[order]
    a, b = row[:-1], row[1:]
    apart = (device.device[a] != device.device[b]) | (device.stream[a] != device.stream[b])
    real = (group[:-1] == group[1:]) & apart & (device.end_ns[a] <= device.start_ns[b])
    return a[real].astype(np.int64), b[real].astype(np.int64)
