"""Joins the rows of one rank: host row in host row, call in host op, device op from launch call.

Rules (Kineto, checked on 15 public files): a device op and the call that launched it share the correlation, no two
calls share one, and one call may own many device ops (graph launch). The op of a call is the innermost ``cpu_op`` of
its thread that encloses it. External ids join nothing: in older files they equal the correlation, and by chance the
number is also that of some unrelated op.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from graphlink.linking.call_roles import WAITS, roles
from graphlink.linking.nest import innermost, last_started, nest, with_late_ends, without_outlasting
from graphlink.linking.provenance import asynchronous_form
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool, HostMatch, HostRows, HostTrace, Linked, Trace
from graphlink.patterns import COPY, GRAPH_LAUNCH, LAUNCH, fits
from graphlink.records import counted, ms
from graphlink.spans import Axis, extent
from graphlink.tables import MOST, begins, codes, counted_from, how_many, in_order, lookup, nowhere, take

NO_CORRELATION = "no correlation id"
BEFORE_WINDOW = "launched before the recording"
NO_CALL = "launch call not recorded"
STARTS_EARLY = "starts before its launch call"

# reasons of ``Trace.left_out`` for rows that are damaged; the others are rows that no graph needs
BROKEN = frozenset({
    "unreadable", "not a span (ph is not X)", "dur < 0 taken as 0", "no dur taken as 0",
    "host row without thread number",
    "call without thread number", "device row without stream", "device row without device",
    "cuda_sync of unknown kind", "cuda_event without stream", "end before start taken as no length",
    "event record without stream, process or call", "synchronisation row of unknown kind",
    "NVTX range without thread number",
})  # fmt: skip


def link(trace: Trace, et: HostTrace | None, match: HostMatch) -> Linked:
    """Join the rows of one rank: each column of ``Linked`` has one entry per row of the table it is about, int32
    positions in another.

    O(n log n) for the sorting of threads, else linear in rows (nested d deep: calls times d).

    Nothing is raised for data: what cannot be joined is NOWHERE, device rows by reason in ``Linked.orphans``.
    """
    slack_ns = rounding_ns(trace)
    apart = asynchronous(trace)
    parent, crossing = nest(trace.host, apart, slack_ns)
    warnings = list(match.warnings)
    if (crossing & ~apart).any():
        others_ns = max(int(table.end_ns.max(initial=-MOST)) for table in (trace.calls, trace.device))
        host, over = without_outlasting(trace.host, crossing, apart, others_ns)
        if len(over):
            warnings.append(_outlasted(trace, host, over))
            trace = replace(trace, host=host, mended={**trace.mended, "ends-beyond": len(over)})
            parent, crossing = nest(host, apart, slack_ns)
    host, late = with_late_ends(trace.host, parent, crossing & ~apart) if (crossing & ~apart).any() else (trace.host, 0)
    if late:
        trace = replace(trace, host=host, mended={**trace.mended, "ends-late": late})
        parent, crossing = nest(host, apart, slack_ns)
    call_end_ns = cut_calls(trace, crossing, slack_ns)
    cut = how_many(call_end_ns != trace.calls.end_ns)
    if broken := {reason: count for reason, count in trace.left_out.items() if reason in BROKEN}:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in broken.items())
        warnings.append(f"damaged rows ({sum(broken.values()):,}) are left out or corrected: {reasons}")
    if late:
        warnings.append(f"{late:,} ops end after the op that they began in, which is taken to last as long")
    if cut:
        trace = replace(trace, calls=replace(trace.calls, end_ns=call_end_ns))
        warnings.append(
            f"{cut} API calls run on into the next call or op of their thread, or out of their op: they count as ended "
            "there"
        )
    lost = launches_without_ops(trace)
    if lost:
        which = ", ".join(f"{count:,} x {name}" for name, count in lost.items())
        warnings.append(
            f"{counted(sum(lost.values()), 'launch call')} without a device op ({which}): what they launched is not in "
            "the graph (the device was not recorded, rows were lost, it ran after the recording, or was captured into "
            "a graph)"
        )
    if (unsure := without_clock(trace)).any():
        waited_us = int((trace.calls.end_ns - trace.calls.start_ns)[unsure].sum()) / 1000
        warnings.append(
            "neither launches on an idle stream nor waits show how far the clock of a device is off: what "
            f"{np.count_nonzero(unsure)} calls waited for, {waited_us:.1f} us, may be something else"
        )
    device_call, orphans = _launches(trace, slack_ns)
    warnings += _far_off(trace, device_call == NOWHERE)
    return Linked(
        trace=trace,
        et=et,
        match=match,
        parent=parent,
        crossing=crossing,
        call_op=_call_ops(trace, parent, crossing, slack_ns),
        device_call=device_call,
        orphans=orphans,
        warnings=tuple(warnings),
    )


def _outlasted(trace: Trace, host: HostRows, rows: I64) -> str:
    """Name the largest of the rows that are recorded as running on after all else."""
    most = rows[np.argmax((trace.host.end_ns - host.end_ns)[rows])]
    took_ms = (trace.host.end_ns - trace.host.start_ns)[most] / 1e6
    return (
        f"{counted(len(rows), 'host row')} recorded as running on after all else, though what it began in had ended: "
        f"taken to end where the next of its thread begins; the largest is {trace.strings[trace.host.name[most]]:.80}, "
        f"recorded with {took_ms:,.3f} ms"
    )


def cut_calls(trace: Trace, crossing: Bool, slack_ns: int) -> I64:
    """Return ends of the calls of ``trace``, no later than the next call, and the next begin or end of a row, on the
    call's thread.

    Rows that are ``crossing`` bound nothing. Up to ``slack_ns``, the rounding of the recording, neighbours may overlap,
    and a call may seem to begin before a row that it follows: some recordings of 2024 round calls to 250 ns, but not
    rows. Real recordings hold to this (none of 52,000 calls in 21 public files is cut); later stages count on it, since
    they give each ns of a thread to one op. O(n log n).
    """
    rows, calls = trace.host, trace.calls
    if not len(calls.start_ns):
        return calls.end_ns
    axis = Axis.over(calls.tid, calls.start_ns, calls.end_ns)
    bounding = ~crossing & axis.has(rows.tid)
    tid = rows.tid[bounding]
    start, end = axis.of(calls.tid, calls.start_ns), axis.of(calls.tid, calls.end_ns)
    bounds = np.sort(np.append(axis.clipped(tid, rows.start_ns[bounding]), axis.clipped(tid, rows.end_ns[bounding])))
    last = int(end.max())
    until = np.append(bounds, last)[np.searchsorted(bounds, start + slack_ns, side="right")]
    in_turn = np.lexsort((end, start))  # of calls that begin together, the shortest comes first
    until[in_turn[:-1]] = np.minimum(until[in_turn[:-1]], start[in_turn[1:]])
    over = end - until
    return calls.end_ns - np.where(over > slack_ns, over, 0)


def launches_without_ops(trace: Trace) -> dict[str, int]:
    """Return calls whose name says that they launch work for a device, and of which no device row has the correlation,
    by name; calls that copy likewise.

    Calls without correlation are not counted: what they launched is not of this rank. None where as many device rows
    have no correlation: those may be theirs. In 30 public Kineto traces each of 65,862 launches has its row, and
    all copies but one have theirs. Launches of host functions (``cudaLaunchHostFunc``) never have one, memsets often.
    """
    calls = trace.calls
    launch = (fits(LAUNCH, trace.strings) | fits(COPY, trace.strings))[calls.name]
    names = calls.name[launch & (calls.correlation > 0) & ~np.isin(calls.correlation, trace.device.correlation)]
    if len(names) <= np.count_nonzero(trace.device.correlation <= 0):
        return {}
    return {trace.strings[k]: n for k, n in Counter(names.tolist()).most_common()}


def _far_off(trace: Trace, alone: Bool) -> list[str]:
    """Return warnings where device rows that are ``alone``, without a call, or host rows that are alone on their thread
    reach further beyond all others than these lie from each other."""
    host, device = trace.host, trace.device
    threads, rows = np.unique(np.append(host.tid, trace.calls.tid), return_counts=True)
    single = np.isin(host.tid, threads[rows == 1])
    first_ns, last_ns = extent(take(host, ~single), trace.calls, take(device, ~alone))
    said = []
    for what, ghosts in (
        ("device ops without a launch call", take(device, alone)),
        ("ops alone on their thread", take(host, single)),
    ):
        away_ns = np.maximum(first_ns - ghosts.start_ns, ghosts.end_ns - last_ns)
        far = how_many(away_ns > last_ns - first_ns)
        if far and last_ns > first_ns:
            said.append(
                f"{what} ({far:,}) reach up to {ms(int(away_ns.max()))} ms before or behind all else: if their times "
                "are wrong, so are idle time, critical path and gains"
            )
    return said


def rounding_ns(trace: Trace) -> int:
    """Return by how much recorded times may contradict what is true: 1 us where the recording lost its ns, else 0."""
    return trace.resolution_ns if trace.resolution_ns > 1 else 0


def without_clock(trace: Trace) -> Bool:
    """Mark the calls that wait, where nothing tells the clock of a device."""
    known = trace.clocks is None or all(clock.anchored for clock in trace.clocks.devices)
    return np.isin(roles(trace.calls, trace.strings), () if known else WAITS)


def asynchronous(trace: Trace) -> Bool:
    """Return host rows that do not end with a return: as the recording says, or by a name that says that they end with
    a wait.
    """
    out = fits(asynchronous_form(trace), trace.strings)[trace.host.name] & trace.host.annotation
    return out if trace.host.apart is None else out | trace.host.apart


def _call_ops(trace: Trace, parent: I32, crossing: Bool, slack_ns: int) -> I32:
    """Find the innermost cpu_op that was running when a call began, else the innermost annotation; with rounding where
    nothing else fits."""
    rows, calls = trace.host, trace.calls
    around = last_started(rows, ~crossing, calls.tid, calls.start_ns)
    found = nowhere(len(calls.tid), np.int32)
    # Rounding may end an op before its last call: where nothing else is around, a call fits if it ends no later than
    # that explains.
    lenient_ns = calls.end_ns - 1 - slack_ns
    for wanted, until_ns in (
        (~rows.annotation, calls.start_ns),
        (~rows.annotation, lenient_ns),
        (rows.annotation, calls.start_ns),
        (rows.annotation, lenient_ns),
    ):
        open_calls = np.flatnonzero(found == NOWHERE)
        if len(open_calls):
            found[open_calls] = innermost(rows, parent, around[open_calls], wanted, until_ns[open_calls])
    return found


def joined(trace: Trace) -> I32:
    """Find the earliest call with each device row's correlation; NOWHERE where there is none. Shape (device rows,)."""
    return lookup(trace.calls.correlation, trace.device.correlation).astype(np.int32)


def behind_graphs(linked: Linked) -> Bool:
    """Mark the device rows whose call launches a graph."""
    return np.append(fits(GRAPH_LAUNCH, linked.trace.strings)[linked.trace.calls.name], False)[linked.device_call]


def launched_before(trace: Trace, alone: Bool) -> Bool:
    """Tell which of the device rows without a call (``alone``) were launched before the recording.

    Their correlation is older than that of the first recorded call, as ids ascend with the calls, or they began no
    later than it did. Those without a correlation are none.
    """
    calls, device = trace.calls, trace.device
    ids = calls.correlation[calls.correlation > 0]
    older = device.correlation < (ids.min() if len(ids) else 0)
    if len(calls.start_ns):
        older |= device.start_ns <= calls.start_ns[0] + rounding_ns(trace)
    return alone & older & (device.correlation > 0)


def _launches(trace: Trace, slack_ns: int) -> tuple[I32, dict[str, int]]:
    """Return (call, count): the call that launched each device row, and how many have none, by reason."""
    calls, device = trace.calls, trace.device
    call = joined(trace)
    numbered, hit = device.correlation > 0, call != NOWHERE
    late = hit.copy()
    late[hit] = calls.start_ns[call[hit]] > device.start_ns[hit] + slack_ns
    call[late] = NOWHERE
    missing = numbered & ~hit
    before = launched_before(trace, missing)
    orphans = Counter(
        {
            NO_CORRELATION: how_many(~numbered),
            BEFORE_WINDOW: how_many(before),
            NO_CALL: how_many(missing & ~before),
            STARTS_EARLY: how_many(late),
        }
    )
    return call, {reason: n for reason, n in orphans.items() if n}


def node_pairs(trace: Trace) -> tuple[I64, I64, I64]:
    """Return (replay of each device row, source, target): rows of the recorded dependencies of each replay of a CUDA
    graph."""
    device, deps = trace.device, trace.graph_deps
    if deps is None:
        return np.full(len(device.graph), NOWHERE), EMPTY, EMPTY
    graph = np.concatenate([device.graph, deps.graph, deps.graph])
    node = codes(graph, np.concatenate([device.graph_node, deps.node, deps.before]))
    node, after, before = np.split(node, [len(device.graph), len(device.graph) + len(deps.node)])
    replay = np.where((device.graph > 0) & (device.correlation > 0), codes(device.correlation, device.graph), NOWHERE)
    rows = in_order(np.flatnonzero(replay != NOWHERE), replay, node)
    twice = np.unique(replay[rows[~begins(replay[rows], node[rows])]])  # a body that ran again: which run is not told
    told = np.isin(node, after) & (replay != NOWHERE) & ~np.isin(replay, twice)
    by_node = np.argsort(after, kind="stable")
    low, high = (np.searchsorted(after[by_node], node[told], side=side) for side in ("left", "right"))
    target, dep = np.repeat(np.flatnonzero(told), high - low), by_node[counted_from(low, high - low)]
    key = codes(np.append(replay[rows], replay[target]), np.append(node[rows], before[dep])) + 1
    at = lookup(key[: len(rows)], key[len(rows) :])
    there = (deps.before[dep] != NOWHERE) & (at != NOWHERE)
    return np.where(told, replay, NOWHERE), rows[at[there]], target[there]
