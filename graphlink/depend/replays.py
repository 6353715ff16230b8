"""The order of device work inside CUDA graphs, where it is recorded (``model.GraphDeps``): each replay has the
dependencies of its graph, and no order by streams, which the driver gives to nodes as it likes.

Nodes that follow each other by a recorded dependency on one stream are a chain. A replay comes after all that was
enqueued before it on the stream that it was launched on, and before what follows there. No row has that stream; it is
the only one of those that nodes ran on which has work outside graphs or is named by waits, where recorded times agree.
Where none can be told, each chain comes after what its own stream did before the replay, and before what follows.
"""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink.linking.launch import node_pairs
from graphlink.model import EMPTY, I64, NOWHERE, Bool, Trace, Waits
from graphlink.tables import (
    begins,
    codes,
    counted_from,
    heads,
    in_order,
    marked,
    nowhere,
    numbered_rows,
    spread,
    successive,
)


class Replays(msgspec.Struct, frozen=True):
    """One entry per device row in ``number``, ``home``, ``queue``, ``entering`` and ``leaving``.

    ``number``: its replay, NOWHERE where its order inside it is not recorded. ``home``: the stream in whose order it
    is, its own but for nodes of a replay whose launch stream is known. ``queue``: rows of equal numbers follow each
    other; those of a stream, but for nodes of a replay that no dependency puts behind the ones before them.
    ``entering``: nodes that wait for what lies before their replay; ``leaving``: nodes that what lies after waits for.
    ``source``, ``target``: rows, by the recorded dependencies. ``before``, ``after``: rows that follow each other by
    stream order in different queues, of which one is a node of a replay and the other lies around it.
    """

    number: I64
    home: I64
    queue: I64
    entering: Bool
    leaving: Bool
    source: I64
    target: I64
    before: I64
    after: I64


def between(source: I64, target: I64, found_by: int) -> Waits:
    """Return what device rows wait for as waits; ``found_by`` 0: stream order, which nobody had to find."""
    no_call, bits = nowhere(len(source), np.int32), np.full(len(source), found_by, np.uint8)
    return Waits(source.astype(np.int32), no_call, target.astype(np.int32), bits)


def replays(trace: Trace) -> Replays:
    """Apply the recorded dependencies of CUDA graphs to each of their replays. O(n log n) in rows and dependencies."""
    device = trace.device
    stream = numbered_rows(device.device, device.stream)[1]
    number, source, target = node_pairs(trace)
    if (number == NOWHERE).all():
        none, no_row = EMPTY, np.zeros(len(stream), np.bool_)
        return Replays(number, stream, stream, no_row, no_row, none, none, none, none)
    launched = _launch_streams(trace, number, stream)
    while True:
        found = _in_order(number, launched, stream, source, target)
        true = device.end_ns[found.before] <= device.start_ns[found.after]
        either = np.where(number[found.before] == NOWHERE, found.after, found.before)[~true]
        wrong = np.isin(number, number[either]) & (launched != NOWHERE)
        if not wrong.any():
            return msgspec.structs.replace(found, before=found.before[true], after=found.after[true])
        launched[wrong] = NOWHERE


def _launch_streams(trace: Trace, number: I64, stream: I64) -> I64:
    """Return for each row the stream that its replay was launched on, NOWHERE where it cannot be told."""
    device, syncs = trace.device, trace.syncs
    alone, named = device.graph == 0, syncs.stream_known
    devices = np.concatenate([device.device, device.device[alone], syncs.device[named]])
    used = codes(devices, np.concatenate([device.stream, device.stream[alone], syncs.stream[named]]))
    user = np.isin(used[: len(stream)], used[len(stream) :]) & (number != NOWHERE)
    replay, where = numbered_rows(number[user], stream[user])[0].T
    one = ~np.isin(replay, replay[1:][np.diff(replay) == 0])
    out = spread(int(number.max()) + 1, replay[one], where[one])
    return np.where(number == NOWHERE, NOWHERE, out[number])


def _in_order(number: I64, launched: I64, stream: I64, source: I64, target: I64) -> Replays:
    told, row = number != NOWHERE, np.arange(len(number))
    home = np.where(launched == NOWHERE, stream, launched)
    linked = _chained(source, target, stream)
    head = heads(np.where(linked == NOWHERE, row, linked))
    block = np.where(told, codes(number, home), -1 - row)
    on_it = np.flatnonzero(told & (home == stream))
    first = marked(len(row), on_it[np.unique(block[on_it], return_index=True)[1]])  # goes on with its stream
    apart = told & ~first[head]
    queue = np.where(apart, stream.max() + 1 + head, stream)
    by_stream = launched == NOWHERE
    entering = told & (head == row) & (by_stream | first | ~marked(len(row), target))
    leaving = told & ~marked(len(row), linked[linked != NOWHERE]) & (by_stream | ~marked(len(row), source))
    before, after = _around(block, home, queue, first, entering, apart & leaving)
    return Replays(number, home, queue, entering, leaving, source, target, before, after)


def _chained(source: I64, target: I64, stream: I64) -> I64:
    """Return for each row the one that it follows in a chain, NOWHERE for the first: the last on its stream that it
    waits for, where no earlier row follows that one."""
    pair = np.flatnonzero((stream[source] == stream[target]) & (source < target))
    pair = pair[np.lexsort((-source[pair], target[pair]))]
    pair = pair[begins(target[pair])]
    pair = in_order(pair, source, target)
    pair = pair[begins(source[pair])]
    return spread(len(stream), target[pair], source[pair])


def _around(block: I64, home: I64, queue: I64, first: Bool, entering: Bool, apart: Bool) -> tuple[I64, I64]:
    """Return rows (before, after): what lies before a block and the rows ``entering`` it; the last rows of its chains
    ``apart``, and what lies after, or enters the next block. ``first``: rows that follow what lies before by their
    queue."""
    row, place = np.arange(len(home)), codes(block)
    earlier, later = successive(np.lexsort((row, queue)), queue)
    before = spread(len(row), later, earlier)
    earlier, later = successive(np.lexsort((row, home)), home)
    leaves = np.flatnonzero(place[earlier] != place[later])
    first_of, next_of = (
        spread(len(row), place[first], row[first]),
        spread(len(row), place[earlier[leaves]], later[leaves]),
    )
    head, tail = row[entering & ~first], row[apart]
    entered = in_order(np.flatnonzero((block < 0) | entering), place)
    follower = next_of[place[tail]]
    following = np.where(follower == NOWHERE, NOWHERE, place[follower])
    low, high = (np.searchsorted(place[entered], following, side=side) for side in ("left", "right"))
    sources = np.concatenate([before[first_of[place[head]]], np.repeat(tail, high - low)])
    targets = np.concatenate([head, entered[counted_from(low, high - low)]])
    return sources[sources != NOWHERE], targets[sources != NOWHERE]
