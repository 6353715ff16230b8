"""The device side of a rank's graph: stream order, event waits seen and unseen, start delays."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.depend.devicetime import (
    DelayNodes,
    StreamOrder,
    delays,
    infer_events,
    infer_turns,
    ready_ns,
    stream_order,
)
from graphlink.depend.enqueued import Enqueued
from graphlink.depend.host import HostSide
from graphlink.depend.reject import Dependencies
from graphlink.depend.replays import between
from graphlink.linking.launch import rounding_ns
from graphlink.model import I64, NOWHERE, Bool, CommKind, Communication, DeviceRows, Linked, Waits
from graphlink.tables import concat, spread, successive, take

FEW: Final = 10  # launches on idle streams, below which they do not say what is usual
DEFAULT_NS: Final = 2_000  # 1 to 3 us on eight of the eleven recordings that show theirs
NEAR_NS: Final = 10_000  # how far from the mode a latency may be
MOST_NS: Final = 100_000  # what takes longer is no latency: something delayed all of these ops


class DeviceSide(msgspec.Struct, frozen=True):
    """``events``: waits of device ops: those found, stream order around replays of CUDA graphs (in which it does not
    hold), and those inferred from late starts.

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
    order = stream_order(device, found.replays.queue)
    # what a node waits for comes after
    launched_ns = np.append(host.nodes.start_ns + host.nodes.duration_ns, host.start_ns)[host.launcher]
    events = concat(found.device, between(found.replays.before, found.replays.after, 0))
    if enqueued is not None:
        events = concat(events, infer_events(linked, enqueued, ready_ns(order, launched_ns, events, host.start_ns)))
        ready = ready_ns(order, launched_ns, events, host.start_ns)
        events = concat(events, infer_turns(device, ready, rounding_ns(linked.trace)))
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


def launch_latency_ns(device: DeviceRows, returned_ns: I64, busy_until_ns: I64) -> I64:
    """Estimate for each device row how long after its launch call returned it begins at the earliest; shape (device
    rows,).

    It runs from the **end** of the call, to which it is steadier than to its start: half of the launches on idle
    streams lie within 0.2 to 1.0 us of each other, measured from the start of the call within 0.8 to 6 (docs/edges.md).
    And it overlaps the earlier work of the stream, not after it: the device fetches a launch while it still works on
    the one before.

    The mode of the launches on idle streams, of each device and kind of op (kernel, copy, memset); where these are few,
    of all kinds of the device; else ``DEFAULT_NS``. Never below 0, and 0 where ``returned_ns`` is NOWHERE. A stream was
    idle if nothing that the op waits for (``busy_until_ns``: when its stream and its events were done) ran in the last
    ``LATENCY_NS`` before its start. The clock of the device alone tells that, so rows that are moved change this by as
    much as they are moved, and nothing else. O(n log n).
    """
    launched = returned_ns != NOWHERE
    after_ns = device.start_ns - returned_ns
    idle = launched & (device.start_ns - busy_until_ns > LATENCY_NS)
    out = np.where(launched, DEFAULT_NS, 0)
    for mine in _by_kind(device):
        usual = _usual_ns(after_ns[idle & mine])
        if usual is not None:
            out[launched & mine] = usual
    return out


def _by_kind(device: DeviceRows) -> list[Bool]:
    """Group device rows: those of each device, then those of each of its kinds."""
    numbers = np.unique(device.device).tolist()
    of_device = [device.device == number for number in numbers]
    return [
        *of_device,
        *(mine & (device.kind == kind) for mine in of_device for kind in np.unique(device.kind[mine]).tolist()),
    ]


def _usual_ns(after_ns: I64) -> int | None:
    """Return the median of the latencies around their mode; None where they are too few, or no latencies."""
    if len(after_ns) < FEW:
        return None
    around = after_ns[np.abs(after_ns - _mode(np.sort(after_ns))) <= NEAR_NS]
    if not len(around):  # the last three that the mode came to lie far apart
        return None
    usual = int(np.median(around))
    return max(usual, 0) if usual <= MOST_NS else None


def _mode(ascending: I64) -> int:
    """Estimate the half-sample mode: the shortest interval that holds half of the values, and in it again, until three
    are left or all are equal.

    (Robertson and Cryer 1974.) Up to half of the values may be anything, which a mean does not bear; ops that start
    long after their launch for a reason that is not recorded are many in some recordings. Cost: O(n).
    """
    while len(ascending) > 3 and ascending[0] != ascending[-1]:
        half = (len(ascending) + 1) // 2
        width = ascending[half - 1 :] - ascending[: len(ascending) - half + 1]
        low = np.flatnonzero(width == width.min())
        low = low[len(low) // 2]
        ascending = ascending[low : low + half]
    return int(np.median(ascending))
