"""The device side of a rank's graph: stream order, event waits seen and unseen, start delays."""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.depend.devicetime import DelayNodes, StreamOrder, delays, infer_events, ready_ns, stream_order
from graphlink.depend.enqueued import Enqueued
from graphlink.depend.host import HostSide
from graphlink.depend.latency import launch_latency_ns
from graphlink.depend.reject import Dependencies
from graphlink.model import I64, NOWHERE, CommKind, Communication, Linked, Waits
from graphlink.tables import concat, spread, successive, take


class DeviceSide(msgspec.Struct, frozen=True):
    """``events``: waits of device ops, the recorded ones, then those inferred from late starts.

    ``latency_ns`` of each device row and ``delay_latency_ns`` of each delay: how long after the end of its launching
    host node it begins at the earliest; of a delay only where it has the ``launch`` edge of its op. Never so long that
    it would begin later than recorded.
    """

    order: StreamOrder
    delays: DelayNodes
    latency_ns: I64
    delay_latency_ns: I64
    events: Waits


def device_side(
    linked: Linked, found: Dependencies, host: HostSide, gap_ns: int, enqueued: Enqueued | None
) -> DeviceSide:
    """Put device ops in order and explain when they start. Cost: O(n log n).

    ``enqueued``: what can have been waited for, to infer event waits from late starts; None to infer none.
    """
    device = linked.trace.device
    order = stream_order(device)
    # what a node waits for comes after
    launched_ns = np.append(host.nodes.start_ns + host.nodes.duration_ns, host.start_ns)[host.launcher]
    events = found.device
    if enqueued is not None:
        events = concat(events, infer_events(linked, enqueued, ready_ns(order, launched_ns, events, host.start_ns)))
    ready = ready_ns(order, launched_ns, events, host.start_ns)
    _conserved(linked, order, ready, host.start_ns)
    late = delays(device, ready, gap_ns)
    # a stream was idle before its first op
    before_ns = int(device.start_ns.min(initial=host.start_ns)) - 2 * LATENCY_NS
    busy_until_ns = ready_ns(order, np.full(len(ready), before_ns), events, before_ns)
    returned_ns = _returned_ns(linked, host)
    from_node_ns = launch_latency_ns(device, returned_ns, busy_until_ns)
    from_node_ns += np.where(
        returned_ns != NOWHERE, returned_ns - launched_ns, 0
    )  # a node may carry a short rest behind its call
    latency_ns = np.clip(from_node_ns, 0, np.maximum(device.start_ns - launched_ns, 0))
    delay_latency_ns = np.where(late.heads, np.clip(from_node_ns[late.row], 0, late.end_ns - launched_ns[late.row]), 0)
    return DeviceSide(order, late, latency_ns, delay_latency_ns, events)


def _returned_ns(linked: Linked, host: HostSide) -> I64:
    """Return when the launch call of each device row returned; NOWHERE where it has none, and where it waited or worked
    on after the launch: what launching takes there is in its node."""
    end_ns = linked.trace.calls.end_ns
    op = np.flatnonzero(host.launcher != NOWHERE)
    op = op[host.launched_ns[linked.device_call[op]] == end_ns[linked.device_call[op]]]
    return spread(len(linked.device_call), op, end_ns[linked.device_call[op]])


def _conserved(linked: Linked, order: StreamOrder, ready: I64, start_ns: int) -> None:
    """Attribute all stream time: every ns of a stream, from the start of the rank to its last op's end, is idle for
    what an op waited for, a start delay, or work: of each op in this order from the end of the one before."""
    device = linked.trace.device
    before_ns = np.where(order.before == NOWHERE, start_ns, order.end_ns[order.before])
    assert (np.minimum(ready, device.start_ns) >= before_ns).all(), "an op is ready before its stream is free"
    assert (order.end_ns >= device.start_ns).all(), "an op ends before it starts"


def collective_order(linked: Linked, comm: Communication) -> tuple[I64, I64]:
    """Return (earlier, later) device rows: the collectives of one communicator, in the order they ran, where streams do
    not order them.
    """
    device = linked.trace.device
    ops = take(comm.ops, ~comm.ops.on_host & (comm.ops.kind == CommKind.COLLECTIVE) & (comm.ops.group != NOWHERE))
    before, after = (
        ops.row[place].astype(np.int64) for place in successive(np.lexsort((ops.row, ops.group)), ops.group)
    )
    other_stream = (device.device[before] != device.device[after]) | (device.stream[before] != device.stream[after])
    real = other_stream & (device.end_ns[before] <= device.start_ns[after])
    return before[real], after[real]
