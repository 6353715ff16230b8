"""One number a stream: nsys numbers streams within their context, and later stages know a stream by (device, number) alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I64
from graphlink.read.nsys.device import Work
from graphlink.read.nsys.syncs import Events, Syncs
from graphlink.read.nsys.text import dense


@dataclass(frozen=True, slots=True)
class Streams:
    """Stream numbers of rows, unambiguous within their process and device. ``renumbered``: streams that got another number."""

    work: I64
    syncs: I64
    records: I64  # of the record that a synchronisation row waits for
    events: I64
    renumbered: tuple[str, ...]  # in words


@dataclass(frozen=True, slots=True)
class _Keys:
    process: I64
    device: I64
    context: I64
    stream: I64


def number_streams(work: Work, syncs: Syncs, events: Events) -> Streams:
    """A stream keeps its number unless a lower context of its device has it; then it gets the next one above all numbers there.

    O(n) where numbers lie close together.
    """
    known, told = np.flatnonzero(syncs.stream_known), np.flatnonzero(syncs.record_known)
    parts = (
        _Keys(work.process, work.device, work.context, work.stream),
        _Keys(syncs.process[known], syncs.device[known], syncs.context[known], syncs.stream[known]),
        _Keys(syncs.process[told], syncs.record_device[told], syncs.record_context[told], syncs.record_stream[told]),
        _Keys(events.process, events.device, events.context, events.stream),
    )
    _, p = dense(np.concatenate([k.process for k in parts]))
    device, d = dense(np.concatenate([k.device for k in parts]))
    context, c = dense(np.concatenate([k.context for k in parts]))
    stream, s = dense(np.concatenate([k.stream for k in parts]))
    used, which = dense(((p * max(1, len(device)) + d) * max(1, len(context)) + c) * max(1, len(stream)) + s)
    numbers = np.zeros(len(used), np.int64)
    said: list[str] = []
    taken: set[tuple[int, int, int]] = set()
    free: dict[tuple[int, int], int] = {}
    rest, at_stream = np.divmod(used, max(1, len(stream)))
    rest, at_context = np.divmod(rest, max(1, len(context)))
    at_process, at_device = np.divmod(rest, max(1, len(device)))
    for k in range(len(used)):  # by process, device, context, stream
        where = int(at_process[k]), int(at_device[k])
        number = int(stream[at_stream[k]])
        free[where] = max(free.get(where, 0), number + 1)
    for k in range(len(used)):
        where = int(at_process[k]), int(at_device[k])
        number = int(stream[at_stream[k]])
        if (*where, number) in taken:
            number, free[where] = free[where], free[where] + 1
            recorded = f"stream {stream[at_stream[k]]} of context {context[at_context[k]]}"
            said.append(f"{recorded} is stream {number} of device {device[where[1]]}")
        taken.add((*where, number))
        numbers[k] = number
    bounds = np.cumsum([0, *(len(k.process) for k in parts)])
    rows = [numbers[which[bounds[k] : bounds[k + 1]]] for k in range(len(parts))]
    of_syncs, of_records = np.zeros(len(syncs.kind), np.int64), np.zeros(len(syncs.kind), np.int64)
    of_syncs[known], of_records[told] = rows[1], rows[2]
    return Streams(rows[0], of_syncs, of_records, rows[3], tuple(said))
