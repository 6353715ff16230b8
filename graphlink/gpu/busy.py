"""What each device of a rank was busy with, in all and in windows of time. All of it is algebra of time spans, so that
the parts add up to the ns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import UNSET, UnsetType

from graphlink import spans
from graphlink.causes import CAUSES, OF_DEVICES
from graphlink.gpu.records import GroupTime, Idle, StreamTime
from graphlink.graph.families import PYTHON, families_of
from graphlink.graph_model import CHAINED, Graph, NodeKind
from graphlink.model import F64, I64, NOWHERE, Communication, DeviceKind, Linked, TimedRows
from graphlink.spans import KeyedSpans, Spans
from graphlink.tables import among, in_order, marked, spread, tuples

BINS: Final = 1_200  # of a device, however long it was recorded
LEVELS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHARACTERS: Final = np.array([*LEVELS], "S1")
KEYS: Final = ("compute", "exposed_communication", "exposed_copy", *CAUSES)
HOST_KEYS: Final = ("host", "communication", "python", "idle")  # of a rank without devices


@dataclass(frozen=True, slots=True)
class Busy(TimedRows):
    """The unions of a device's work, times since the epoch on its own clock. ``rows``: its device rows, by start.

    ``working``: compute and communication; ``any``: all. ``kernels``: compute without memsets; ``launched``: kernels
    and communication.
    """

    device: int
    rows: I64
    sm_share: F64
    compute: Spans
    comm: Spans
    copies: Spans
    working: Spans
    any: Spans
    kernels: Spans
    launched: Spans


def own_clock_ns(linked: Linked) -> I64:
    """Return what turns each device row's time on the host's clock into its device's own; shape (device rows,)."""
    clocks = linked.trace.clocks
    return np.zeros(len(linked.trace.device.start_ns), np.int64) if clocks is None else clocks.offset_ns


def busy(linked: Linked, comm: Communication) -> Iterator[Busy]:
    """Yield one entry a device that ran anything, by number; O(n log n) in device rows."""
    device, offset_ns = linked.trace.device, own_clock_ns(linked)
    is_comm = marked(len(device.start_ns), comm.device_row)
    is_copy = (device.kind == DeviceKind.MEMCPY) & ~is_comm
    start_ns, end_ns = device.start_ns + offset_ns, device.end_ns + offset_ns
    for number in np.unique(device.device).tolist():
        rows = in_order(np.flatnonzero((device.device == number) & (device.kind != DeviceKind.HOST)), start_ns)
        start, end = start_ns[rows], end_ns[rows]
        copies, communicates = is_copy[rows], is_comm[rows]
        computes, sets = ~copies & ~communicates, device.kind[rows] == DeviceKind.MEMSET
        unions = [
            spans.union(start[which], end[which])
            for which in (computes, communicates, copies, ~copies, np.ones_like(copies))
        ]
        others = (
            [spans.union(start[which & ~sets], end[which & ~sets]) for which in (computes, ~copies)]
            if communicates.any() and sets.any()
            else (unions[0], unions[3])
        )
        yield Busy(start, end, number, rows, device.sm_share[rows], *unions, *others)


# what it did over time, and in windows of time, by group and by stream, and how much of it its kernels can fill


def over_time(device: Busy, why: Idle, from_ns: int, to_ns: int) -> dict[str, str]:
    """Return how much of each bin a device spent on each of ``KEYS``, a character of ``LEVELS`` a bin; without those on
    which it spent nothing. O(n log n) in spans.
    """
    idle = [Spans(why.start_ns[why.cause == cause], why.end_ns[why.cause == cause]) for cause in OF_DEVICES]
    return _levels(KEYS, (device.compute, device.working, device.any), idle, from_ns, to_ns)


def host_over_time(graph: Graph) -> dict[str, str]:
    """Return for each of ``HOST_KEYS`` how much of each bin from the start of a rank on its threads spent on it, as
    ``over_time``: ops of any thread; where none runs, messages that are awaited; else Python between ops; else what
    nothing recorded explains. O(n log n) in nodes.
    """
    python = (graph.kind == NodeKind.HOST_GAP) | (families_of(graph, {PYTHON: 0}) == 0)  # gaps, and marks of steps
    works, sends = among(graph.kind, CHAINED) & ~python, graph.kind == NodeKind.HOST_COMM
    waits, ends_ns = graph.wait_ns > 0, graph.start_ns + graph.duration_ns
    sorts = (
        (graph.start_ns[works], ends_ns[works]),
        (ends_ns[waits], (ends_ns + graph.wait_ns)[waits]),
        (graph.start_ns[sends], graph.end_ns[sends]),
        (graph.start_ns[python], ends_ns[python]),
    )
    so_far = [spans.union(*map(np.concatenate, zip(*sorts[:count], strict=True))) for count in (1, 3, 4)]
    end_ns = int(graph.end_ns.max(initial=0))
    return _levels(HOST_KEYS, so_far, [spans.complement(so_far[-1], 0, end_ns)], 0, end_ns)


def _levels(
    keys: Sequence[str], nested: Sequence[Spans], others: Sequence[Spans], from_ns: int, to_ns: int
) -> dict[str, str]:
    """Return the share of each bin that each of ``keys`` takes: of ``nested`` spans, each of which holds the one
    before, what it adds to that; then of ``others`` all.
    """
    bins = min(BINS, to_ns - from_ns)
    edges = from_ns + np.arange(bins + 1, dtype=np.int64) * (to_ns - from_ns) // max(bins, 1)  # exact, as of times
    so_far, rest = ([spans.overlap_ns(each, edges[:-1], edges[1:]) for each in some] for some in (nested, others))
    added = np.diff(so_far, axis=0, prepend=0)
    scale = (len(LEVELS) - 1) / np.diff(edges)
    parts = zip(keys, (*added, *rest), strict=True)
    return {key: _CHARACTERS[np.rint(ns * scale).astype(int)].tobytes().decode() for key, ns in parts if ns.any()}


def parts(one: Busy, from_ns: I64, to_ns: I64) -> tuple[I64, I64, I64, I64, I64, I64, F64]:
    """Measure what a device did in windows that are ascending, each by itself: compute, compute or communication, all,
    communication, copies, communication while a kernel ran, and the SM efficiency, NaN where unknown. O(n log n) in
    rows and in windows.
    """
    compute, working, busy, comm, copies, kernels, launched = (
        spans.overlap_ns(covered, from_ns, to_ns)
        for covered in (one.compute, one.working, one.any, one.comm, one.copies, one.kernels, one.launched)
    )
    rows = np.flatnonzero(one.sm_share > 0)
    row, window, took_ns = spans.overlaps(Spans(from_ns, to_ns), one.start_ns[rows], one.end_ns[rows])
    # sum(share of SMs x time) / sum(time) of the kernels in each window, cut at its ends
    whole, filled = (np.bincount(window, ns, len(from_ns)) for ns in (took_ns, took_ns * one.sm_share[rows[row]]))
    efficiency = np.where(whole > 0, filled / np.maximum(whole, 1), np.nan)
    return compute, working, busy, comm, copies, kernels + comm - launched, efficiency


def share(part: float, whole: float) -> float | UnsetType:
    """Return a share of 1 with six decimals; nothing of nothing."""
    return round(part / whole, 6) if whole else UNSET


def by_stream(one: Busy, linked: Linked, from_ns: int, to_ns: int) -> list[StreamTime]:
    """Return the time of each stream, by number. O(n log n) in rows."""
    key = linked.trace.device.stream[one.rows]
    found = spans.union_by(key, one.start_ns, one.end_ns)
    busy = _summed(key, found, found.end_ns - found.start_ns)
    return [StreamTime(stream=number, busy_ns=ns, idle_ns=to_ns - from_ns - ns) for number, ns in busy.items()]


def by_group(one: Busy, linked: Linked, comm: Communication) -> list[GroupTime]:
    """Return the communication of each group, the longest first. O(n log n) in rows."""
    ops = comm.ops
    here = ~ops.on_host
    group = spread(len(linked.trace.device.start_ns), ops.row[here], ops.group[here], NOWHERE - 1)[one.rows]
    mine = np.flatnonzero(group >= NOWHERE)
    key = group[mine].astype(np.int64)
    found = spans.union_by(key, one.start_ns[mine], one.end_ns[mine])
    hidden = _summed(key, found, spans.overlap_ns(one.compute, found.start_ns, found.end_ns))
    groups = (
        GroupTime(name=name, ranks=list(ranks), comm_ns=ns, exposed_ns=ns - hidden[number])
        for number, ns in _summed(key, found, found.end_ns - found.start_ns).items()
        for ranks, name in [ops.groups[number] if number != NOWHERE else ((), "")]
    )
    return sorted(groups, key=lambda one: (-one.comm_ns, one.name, one.ranks))


def _summed(key: I64, found: KeyedSpans, ns: I64) -> dict[int, int]:
    """Return the sum of each key, by key; 0 where nothing of it was found."""
    keys = np.unique(key)
    sums = np.bincount(np.searchsorted(keys, found.key), ns, len(keys)).astype(np.int64)  # exact below 2**53
    return dict(tuples(keys, sums))
