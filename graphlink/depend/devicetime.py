"""Device time: stream order, overlaps, and why ops start later than what they depend on (CONTRACT, "Device time").

An op that starts later than its launch, its stream and its events explain has a start delay. Above 20 us it is first
explained by an op of another stream of the device, enqueued earlier, that ended at most 30 us before: an event wait
without a row. What then remains is ``start_delay_ns`` of the op up to ``gap_ns``, else a ``device delay`` node before
it. Delay nodes never overlap in time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.depend.cuda import EVENT_NS, waits_of
from graphlink.depend.enqueued import Enqueued
from graphlink.linking.launch import rounding_ns
from graphlink.model import I32, I64, NOWHERE, Bool, DeviceKind, DeviceRows, FoundBy, Linked, TimedRows, Waits
from graphlink.tables import concat, spread, successive, tuples

NEAR_NS = 5_000
AT_ONCE_TIMES = 3
FEW_TURNS = 10  # below which late starts do not show that streams take turns
TURN = 0.1  # of the usual lag between two turns: by how much more or less it may be

_Piece = tuple[
    int, int, int, int, int
]  # of a delay: op, start, end, piece before, whether it begins with the op's dependencies


class StreamOrder(msgspec.Struct, frozen=True):
    """Stream order. ``before``: the op before each on its stream, NOWHERE for the first. ``end_ns``: recorded end less
    overlap.
    """

    before: I32
    end_ns: I64
    overlap_ns: I64


@dataclass(frozen=True, slots=True)
class DelayNodes(TimedRows):
    """``device delay`` nodes in start order: ``row`` is the op whose stream they are on; ``after``: the delay before
    it, if they touch.

    ``releases``: for each device row the delay that ends where it starts, NOWHERE without one. ``heads``: the delay
    begins with the dependencies of its own row. ``start_delay_ns``: for each device row what costs with the op.
    """

    row: I32
    after: I32
    heads: Bool
    releases: I32
    start_delay_ns: I64


def stream_order(device: DeviceRows, queue: I64 | None = None) -> StreamOrder:
    """Order the ops of each stream, or of each ``queue`` where these are given. Cost: O(n log n)."""
    n = len(device.start_ns)
    of = (device.device, device.stream) if queue is None else (queue,)
    earlier, later = successive(np.lexsort((np.arange(n), *of[::-1])), *of)
    before = spread(n, later, earlier.astype(np.int32))
    end_ns = device.end_ns.copy()
    end_ns[earlier] = np.minimum(end_ns[earlier], device.start_ns[later])
    return StreamOrder(before, end_ns, device.end_ns - end_ns)


def ready_ns(order: StreamOrder, launched_ns: I64, events: Waits, rank_start_ns: int) -> I64:
    """Return when all that each op depends on has ended. ``launched_ns``: end of the launching host node; of orphans,
    rank start.
    """
    out = np.maximum(launched_ns, rank_start_ns)
    has = order.before != NOWHERE
    out[has] = np.maximum(out[has], order.end_ns[order.before[has]])
    np.maximum.at(out, events.device_op, order.end_ns[events.source])
    return out


def infer_events(linked: Linked, enqueued: Enqueued, ready: I64) -> Waits:
    """Infer waits of device ops for events, which show by their effect only.

    Where an op of another device ended within 5 us before the start, only an op of this device that did, too, explains
    it: waits go across devices as well. An op that ended in the very us of the start, where the recording lost its ns,
    may have ended after it: it explains it only where most late starts of the recording come at once. Cost: O(n log n +
    late ops x ops that end within 30 us).
    """
    device, rounding = linked.trace.device, rounding_ns(linked.trace)
    late = np.flatnonzero(device.start_ns - ready > LATENCY_NS)
    by_end = np.argsort(device.end_ns, kind="stable")
    last = np.searchsorted(device.end_ns[by_end], device.start_ns[late], side="right") - 1
    row_of, end_of = by_end.tolist(), device.end_ns[by_end].tolist()
    found: list[tuple[int, int]] = []
    at_once: dict[int, int] = {}
    for op, at in tuples(late, last):
        floor = max(int(device.start_ns[op]) - EVENT_NS, int(ready[op]) + 1)
        nearest_ns = int(device.start_ns[op]) - NEAR_NS
        while at >= 0 and end_of[at] >= floor:
            source, end_ns = row_of[at], end_of[at]
            at -= 1
            if not enqueued.may_wait(source, op):
                continue
            if device.device[source] != device.device[op]:
                if end_ns >= nearest_ns:
                    floor = max(floor, nearest_ns)
            elif device.stream[source] != device.stream[op]:
                if end_ns > device.start_ns[op] - rounding:
                    at_once.setdefault(op, source)
                    continue
                found.append((source, op))
                break
    if AT_ONCE_TIMES <= len(at_once) >= len(found):
        found = [
            *((source, op) for op, source in at_once.items()),
            *((source, op) for source, op in found if op not in at_once),
        ]
    return waits_of([(source, NOWHERE, op, FoundBy.INFERRED) for source, op in found])


def infer_turns(device: DeviceRows, ready: I64, rounding: int) -> Waits:
    """Infer what streams wait for that take turns on a device: it runs one long kernel at a time, of whichever stream,
    and the next begins as long after the one before as is usual. Most late starts behind one have to show that lag, and
    no two may overlap. Cost: O(n log n)."""
    found = [waits_of([])]
    long = (device.kind == DeviceKind.KERNEL) & (device.end_ns - device.start_ns > LATENCY_NS)
    for number in np.unique(device.device[long]).tolist():
        row = np.flatnonzero(long & (device.device == number))
        before, op = row[:-1], row[1:]
        lag_ns = device.start_ns[op] - device.end_ns[before]
        behind = (device.stream[before] != device.stream[op]) & (device.end_ns[before] > ready[op])
        behind &= device.start_ns[op] - ready[op] > LATENCY_NS
        if behind.sum() < FEW_TURNS or (lag_ns < -rounding).any():
            continue
        usual_ns = np.median(lag_ns[behind])
        near = behind & (np.abs(lag_ns - usual_ns) <= max(TURN * usual_ns, NEAR_NS / 5)) & (lag_ns >= 0)
        if near.sum() > behind.sum() / 2:
            turns = zip(before[near].tolist(), op[near].tolist(), strict=True)
            found.append(waits_of([(source, NOWHERE, at, FoundBy.INFERRED) for source, at in turns]))
    return concat(*found)


def delays(device: DeviceRows, ready: I64, gap_ns: int) -> DelayNodes:
    """Find start delays, small ones kept with their op, large ones as nodes that share no moment. Cost: O(n + late log
    late).
    """
    late_ns = np.maximum(device.start_ns - ready, 0)
    late = np.flatnonzero(late_ns > gap_ns)
    begins_ns = np.sort(np.where(late_ns > gap_ns, device.start_ns, device.start_ns - late_ns))
    late = late[np.lexsort((late, device.start_ns[late], ready[late]))]
    until = np.maximum.accumulate(device.start_ns[late])
    pieces: list[_Piece] = []
    for region in np.split(late, np.flatnonzero(ready[late][1:] >= until[:-1]) + 1) if len(late) else ():
        _cover(region.tolist(), device.start_ns, ready, begins_ns, pieces)
    table = np.array(pieces, np.int64).reshape(-1, 5)
    ends = {end: i for i, end in enumerate(table[:, 2].tolist())}
    releasing = np.array([ends[start] for start in device.start_ns[late].tolist()], np.int32)
    return DelayNodes(
        row=table[:, 0].astype(np.int32),
        start_ns=table[:, 1],
        end_ns=table[:, 2],
        after=table[:, 3].astype(np.int32),
        heads=table[:, 4].astype(np.bool_),
        releases=spread(len(device.start_ns), late, releasing),
        start_delay_ns=np.where(late_ns > gap_ns, 0, late_ns),
    )


def _cover(region: list[int], start_ns: I64, ready: I64, begins_ns: I64, pieces: list[_Piece]) -> None:
    """Cut overlapping delays, of late ops in order of ``ready``, into touching pieces, each owned by the op that was
    late first.

    Where an op of another stream begins (``begins_ns``) there is a cut, too: a machine with one GPU slot can run it
    then, as the device did.
    """
    at, until = int(ready[region[0]]), int(start_ns[region].max())
    first, last = np.searchsorted(begins_ns, [at + 1, until])
    active: list[tuple[int, int]] = []  # (place in order of ready, end of the delay: the start of the op)
    place, owner, before = 0, NOWHERE, NOWHERE
    for end in sorted({*start_ns[region].tolist(), *begins_ns[first:last].tolist()}):
        while place < len(region) and ready[region[place]] <= at:
            heapq.heappush(active, (place, int(start_ns[region[place]])))
            place += 1
        while active[0][1] <= at:
            heapq.heappop(active)
        op = region[active[0][0]]
        pieces.append((op, at, end, before, int(op != owner)))
        owner, before, at = op, len(pieces) - 1, end
