"""The device side of a rank's graph: stream order, event waits seen and unseen, start delays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.depend.devicetime import Delays, Order, delays, infer_events, ready_ns, stream_order
from graphlink.depend.host import HostSide
from graphlink.depend.merge import Dependencies, search_by_thread
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


def device_side(linked: Linked, cuda: CudaWaits, found: Dependencies, host: HostSide, gap_ns: int) -> DeviceSide:
    """Cost: O(n log n)."""
    device = linked.trace.device
    order = stream_order(device)
    launched_ns = np.full(len(device.start_ns), host.start_ns, np.int64)
    linked_ops = host.launcher != NOWHERE
    by = host.launcher[linked_ops]
    launched_ns[linked_ops] = host.nodes.start_ns[by] + host.nodes.duration_ns[by]  # what the node waits for comes after
    behind = _behind_finished_waits(linked, found, host)
    source = np.concatenate([found.event_source, behind[0]]).astype(np.int32)
    target = np.concatenate([found.event_target, behind[1]]).astype(np.int32)
    bits = np.concatenate([found.event_found_by, behind[2]]).astype(np.uint8)
    unseen = infer_events(linked, cuda, ready_ns(order, launched_ns, (source, target), host.start_ns))
    source, target = np.concatenate([source, unseen[0]]), np.concatenate([target, unseen[1]])
    bits = np.concatenate([bits, np.full(len(unseen[0]), FoundBy.INFERRED, np.uint8)])
    late = delays(device, ready_ns(order, launched_ns, (source, target), host.start_ns), gap_ns)
    return DeviceSide(order, late, source, target, bits, len(unseen[0]))


def _behind_finished_waits(linked: Linked, found: Dependencies, host: HostSide) -> tuple[I64, I64, U8]:
    """(awaited op, op launched later, FoundBy bits): what an op launches after a wait in which nothing had to be waited for any more.

    There is no cut behind such a call, so its ``sync`` edge starts at the next operator only; until then, event edges keep the order.
    """
    trace = linked.trace
    calls = trace.calls
    pair = np.flatnonzero(~host.blocked[found.call])
    launching = np.unique(linked.device_call[linked.device_call != NOWHERE])
    launching = launching[np.lexsort((calls.start_ns[launching], calls.tid[launching]))]
    tid, at_ns = calls.tid[launching], calls.start_ns[launching]
    call = found.call[pair]
    rows = trace.host
    plain = np.flatnonzero(~np.array([s.startswith("ProfilerStep") for s in trace.strings], np.bool_)[rows.name])
    plain = plain[np.lexsort((rows.start_ns[plain], rows.tid[plain]))]
    op_at = search_by_thread(rows.tid[plain], rows.start_ns[plain], calls.tid[call], calls.end_ns[call])
    until = np.full(len(call), np.iinfo(np.int64).max)
    ahead = op_at < len(plain)
    ahead[ahead] = rows.tid[plain[op_at[ahead]]] == calls.tid[call[ahead]]
    until[ahead] = rows.start_ns[plain[op_at[ahead]]]
    first = search_by_thread(tid, at_ns, calls.tid[call], calls.end_ns[call])
    last = search_by_thread(tid, at_ns, calls.tid[call], until)
    ops = np.argsort(linked.device_call, kind="stable")
    bounds = np.searchsorted(linked.device_call[ops], np.arange(len(calls.start_ns) + 1))
    out: list[tuple[int, int, int]] = []
    for i in np.flatnonzero(last > first).tolist():
        source, bits = int(found.call_source[pair[i]]), int(found.call_found_by[pair[i]])
        seen = {(int(trace.device.device[source]), int(trace.device.stream[source]))}
        for launch in launching[first[i] : last[i]].tolist():
            for op in ops[bounds[launch] : bounds[launch + 1]].tolist():
                stream = (int(trace.device.device[op]), int(trace.device.stream[op]))
                if stream not in seen and trace.device.start_ns[op] >= trace.device.end_ns[source]:
                    out.append((source, op, bits))
                seen.add(stream)
    table = np.array(out, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2].astype(np.uint8)


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
