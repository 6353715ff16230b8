"""Counts how long calls, threads and streams stood still, and how much of that an edge of the graph explains
(docs/standstill.md).

A replay of a graph's own times cannot see a wait that was taken for work: it takes as long either way. So this looks at
what a recording shows to have stood still, whether the graph knows why or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.depend.build import ALL_THREADS, Built
from graphlink.depend.hostcomm import WAIT_RANGE
from graphlink.depend.launch_queue import held_launches
from graphlink.depend.threads import ASLEEP_NS
from graphlink.depend.timeline import behind_rows
from graphlink.graph.critical import CriticalChain
from graphlink.graph_model import Column, EdgeKind, Graph, NodeKind
from graphlink.linking.call_roles import WAITS, Role, role_of, roles
from graphlink.linking.clock_evidence import MOST_RETURN_NS
from graphlink.linking.nest import ASKING
from graphlink.model import I64, NOWHERE, Bool, Linked, SyncKind
from graphlink.patterns import containing, fits
from graphlink.records import ms
from graphlink.spans import NEVER, overlap_ns, union
from graphlink.standstill.records import GOAL_PCT, PathStood, Piece, Standstill, Stood
from graphlink.standstill.silence import Silences, Stretches, Timeline, silences, usual_ns
from graphlink.tables import among, distinct, largest, marked, spread, take, values_at

LARGEST: Final = 10
RETURN_NS: Final = 30_000  # what a call takes at most to return after what it waited for
FREE_QUANTILE: Final = 0.95
HIDDEN_SHARE: Final = 0.01  # of the path, up to which waiting that only the ranks tell of is not worth a warning
_Describe = Callable[[int], tuple[str, str]]
_BLOCKING: Final = (*WAITS, Role.COPY_ASYNC)

CUDA_ROWS: Final = "cuda_sync rows: _ExperimentalConfig(enable_cuda_sync_events=True)"
HIP_ROWS: Final = "nothing yet: ROCm's profilers write no rows of what HIP calls wait for"
NSYS_ROWS: Final = "nsys profile --trace=cuda --cuda-event-trace=true"
BEFORE_WINDOW: Final = "torch.cuda.synchronize() before the first recorded step, so that no unrecorded work is pending"
NO_COPIES: Final = "nothing yet: no row tells what a copy waits for"
DEVICE_CLOCK: Final = "nothing: the recording names it, but by the device's clock it ended after the wait was over"
LATE_RETURN: Final = "nothing: the recording names it, and it had ended; only then the call took as long to return"
SOME_ROWS: Final = "a newer PyTorch: some waits have no cuda_sync row (kineto issue 904, pull request 862)"
QUEUE: Final = "nothing yet: overhead rows (Command Buffer Full) may name it, but no row what made room"
LATE: Final = (
    "a machine that does nothing else: the tensor that it reads next was there, so it waited for a core or ran Python"
)
PENDING: Final = (
    f"graphlink.capture, which records waits for gloo in Python as ranges {WAIT_RANGE} (a receive or collective was "
    "pending)"
)
WAITS_RECORDED: Final = "nothing yet: a receive or collective was pending, and PyTorch may wait for it inside of C++"
HIDDEN: Final = f"all threads, of which some ran ops meanwhile that only the ET has: {ALL_THREADS}"
WAKER: Final = "rows of the thread or process that woke it"
STACKS: Final = "with_stack=True, which shows whether it ran"
STACK: Final = "its stack was recorded: it was in "


class StoodStill(msgspec.Struct, frozen=True):
    """``warnings`` tell of waits that rows name exactly and the graph has not, and of what is in no figure
    (``beside_ns``): launches that a full queue blocked, and silences inside ops that may be waits.
    """

    standstill: Standstill
    beside_ns: int
    warnings: tuple[str, ...]


def _stood(part: Stretches) -> Stood:
    return Stood(ns=int(part.ns.sum()), explained_ns=int(part.explained_ns.sum()))


def stood_still(built: Built, linked: Linked, path: CriticalChain, waited: Column | None = None) -> StoodStill:
    """Measure the standstill of a rank; ``path``: of the replay of the graph; ``waited``: how long nodes that
    communicate ran until the last rank came. Cost: O(n log n).
    """
    graph = built.graph
    node, count = graph.nodes_of(NodeKind.DEVICE_OP), len(linked.device_call)
    # of every device row, on the clock that the graph has them on, since the epoch of the recording
    began, ended = (
        spread(count, graph.row[node], at_ns[node] + graph.epoch_ns, 0) for at_ns in (graph.start_ns, graph.end_ns)
    )
    pending = _pending_until(linked, ended) > linked.trace.calls.start_ns
    calls, streams = _calls(graph, linked, pending, _copying_from(linked, began, ended)), _streams(graph)
    threads = silences(graph, linked, built)
    exact, (launch, held_ns) = _exact(built, linked), held_launches(linked)
    queued = Stretches(
        launch, held_ns, np.zeros_like(held_ns), linked.trace.calls.end_ns[launch] - held_ns - graph.epoch_ns
    )
    parts = (calls, threads, streams, queued)
    words = _describing(graph, linked, parts, exact, pending)
    hidden_ns = 0 if waited is None else _as_ranks_tell(graph, linked, waited)
    pinned_ns = path.gap_ns + _delays_on_path(graph, path, streams) + _within_path(graph, linked, path, calls)
    pinned_ns = min(pinned_ns + hidden_ns, path.length_ns)
    standstill = Standstill(
        calls=_stood(calls),
        threads=_stood(threads),
        python_ns=int(threads.python_ns.sum()),
        streams=_stood(streams),
        path=PathStood(ns=path.length_ns, pinned_ns=pinned_ns),
        largest=sorted(
            chain.from_iterable(map(_pieces, parts, words, (0, 0, LATENCY_NS, 0))),
            key=lambda piece: (-piece.ns, piece.start_ns, piece.what),
        )[:LARGEST],
    )
    told = [
        *_rejected(built, linked, calls, streams, exact),
        *_missing("in calls that block", calls, _unnamed_calls(calls, exact), words[0]),
        *_missing("of silence of threads", threads, _unnamed_silence(built, threads), words[1]),
        *_beside(built, queued),
    ]
    if hidden_ns > HIDDEN_SHARE * path.length_ns:
        told.append(
            f"other ranks arrived late in collectives while this rank ran Python for {hidden_ns / 1e6:,.3f} ms that "
            "the graph takes for work: it may have waited, so bands of predictions are wider by that"
        )
    return StoodStill(standstill, int(held_ns.sum()) + built.untold.spins_ns, tuple(told))


def _as_ranks_tell(graph: Graph, linked: Linked, waited: Column) -> int:
    """Return how long the threads that ask for host-side communication ran Python, as the graph has it, for 100 us and
    more, while others were waited for by the starts of all ranks.
    """
    comm = (graph.kind[waited.node] == NodeKind.HOST_COMM) & (graph.duration_ns[waited.node] > 0)  # no sends
    start_ns, rows = graph.start_ns[waited.node[comm]], linked.trace.host
    late = union(start_ns, start_ns + waited.value[comm])
    asking = distinct(rows.tid[fits(ASKING, linked.trace.strings)[rows.name]])
    long = among(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART)) & (graph.duration_ns >= ASLEEP_NS)
    node = np.flatnonzero(long & (np.isin(graph.tid, asking) | (not len(asking))))
    node = node[rows.annotation[graph.row[node]]]
    return int(overlap_ns(late, graph.start_ns[node], graph.start_ns[node] + graph.duration_ns[node]).sum())


def _calls(graph: Graph, linked: Linked, pending: Bool, until_ns: I64) -> Stretches:
    """Measure every call that blocked, up to ``until_ns`` of each. Calls that only the profiler made, behind the last
    row, are none.

    With a kept wait that ended inside it, a call stood still until the last awaited op ended; of what it then took to
    return, what is beyond the usual (30 us, where calls usually return ``MOST_RETURN_NS`` late) stood still as
    well, and nothing explains it. Without one, it stood still beyond what such calls usually take. What can hardly have
    waited counts from 100 us on, as silence does: a synchronisation as which began nothing recorded was pending, and an
    asynchronous copy that is not of pageable memory. (One that began so has nothing to wait for: what it takes is its
    own work.)
    """
    calls = linked.trace.calls
    role = roles(calls, linked.trace.strings)
    copies = role == Role.COPY_ASYNC
    blocking = among(role, _BLOCKING) & ~behind_rows(linked)
    kept = graph.sync_calls
    ended_ns = largest(len(role), kept.call, graph.end_ns[kept.source] + graph.epoch_ns, NEVER)
    last_ns = np.clip(ended_ns, calls.start_ns, until_ns)
    awaited = blocking & (last_ns > calls.start_ns)
    took_ns = until_ns - calls.start_ns
    free_ns = usual_ns(
        calls.name,
        took_ns,
        blocking & ~pending & (took_ns <= ASLEEP_NS),
        LATENCY_NS,
        partial(np.quantile, q=FREE_QUANTILE),
    )
    unlikely = np.where(copies, ~_pageable(linked), ~pending)
    free_ns[unlikely & (took_ns < ASLEEP_NS)] = ASLEEP_NS
    late_ns = usual_ns(calls.name, until_ns - last_ns, awaited, RETURN_NS // 2, partial(np.quantile, q=0.5))
    return_ns = np.maximum(np.where(late_ns <= MOST_RETURN_NS, 2 * late_ns, 0), RETURN_NS)
    explained_ns = np.where(awaited, last_ns - calls.start_ns, 0)
    rest_ns = np.where(awaited, until_ns - last_ns - return_ns, np.where(copies & ~pending, 0, took_ns - free_ns))
    ns = explained_ns + np.maximum(np.where(blocking, rest_ns, 0), 0)
    stretches = Stretches(np.arange(len(ns)), ns, explained_ns, until_ns - ns + explained_ns - graph.epoch_ns)
    return take(stretches, ns > 0)


def _pageable(linked: Linked) -> Bool:
    """Mark the calls that copied from or to pageable host memory, as far as the names of copies tell."""
    trace, op = linked.trace, np.flatnonzero(linked.device_call != NOWHERE)
    named = containing(trace.strings, "Pageable")
    return marked(len(trace.calls.start_ns), linked.device_call[op[named[trace.device.name[op]]]])


def _pending_until(linked: Linked, ended: I64) -> I64:
    """Return for each call when the last device op has ended that an earlier call launched; ops without a call came
    before all.
    """
    calls, launch = linked.trace.calls, linked.device_call
    launched_ns = values_at(calls.start_ns, launch, NEVER)
    order = np.argsort(launched_ns, kind="stable")
    until = np.concatenate([[NEVER], np.maximum.accumulate(ended[order])])
    return until[np.searchsorted(launched_ns[order], calls.start_ns, side="left")]


def _copying_from(linked: Linked, began: I64, ended: I64) -> I64:
    """Return until when each call can have stood still: its end, but of an asynchronous copy to the device until its
    own copy began, of one to the host as long before its end as its own copy took, yet no earlier than that ended.

    Between pageable memory and what the device copies stands a buffer of the driver's. The host fills it as the device
    copies, and empties it behind the device: that is work (CUDA, "API synchronization behavior"), and takes no longer
    than the copy, which it kept up with.
    """
    trace = linked.trace
    role, out = roles(trace.calls, trace.strings), trace.calls.end_ns.copy()
    to_host = containing(trace.strings, "DtoH", "DeviceToHost")
    op = np.flatnonzero(linked.device_call != NOWHERE)
    call = linked.device_call[op]
    emptied_ns = np.maximum(ended[op], trace.calls.end_ns[call] - (ended - began)[op])
    until_ns = np.where(to_host[trace.device.name[op]], emptied_ns, began[op])
    own = (role[call] == Role.COPY_ASYNC) & (ended[op] > trace.calls.start_ns[call])
    np.minimum.at(out, call[own], np.maximum(until_ns[own], trace.calls.start_ns[call[own]]))
    return out


def _streams(graph: Graph) -> Stretches:
    """Measure every device op that began late: later than its launch and what that takes, and than the op before it on
    its stream.
    """
    target = graph.target
    device = (graph.kind[target] == NodeKind.DEVICE_OP) & (graph.kind[graph.source] != NodeKind.DEVICE_DELAY)

    def ready(kind: EdgeKind) -> I64:
        """Return when the last source of this kind was done, ``None`` = -1."""
        edge = np.flatnonzero(device & (graph.edge_kind == kind))
        source = graph.source[edge]
        return largest(len(graph.kind), target[edge], graph.start_ns[source] + graph.duration_ns[source], -1)

    launched_ns, stream_ns, event_ns = ready(EdgeKind.LAUNCH), ready(EdgeKind.STREAM), ready(EdgeKind.EVENT)
    op = graph.nodes_of(NodeKind.DEVICE_OP)
    ready_ns = np.maximum(stream_ns, np.where(launched_ns >= 0, launched_ns + graph.launch_latency_ns, 0))[op]
    start_ns = graph.start_ns[op]
    ns = np.maximum(start_ns - np.maximum(ready_ns, 0), 0)
    explained_ns = np.clip(np.minimum(event_ns[op], start_ns) - ready_ns, 0, ns)
    return take(Stretches(op, ns, explained_ns, start_ns - ns + explained_ns), ns > 0)


def _delays_on_path(graph: Graph, path: CriticalChain, streams: Stretches) -> int:
    """Return the device delays on the path, and of start delays what is not the latency of launches."""
    rest_ns = spread(len(graph.kind), streams.of, streams.unexplained_ns, 0)
    delay = path.node[graph.kind[path.node] == NodeKind.DEVICE_DELAY]
    return int(graph.duration_ns[delay].sum() + np.minimum(graph.start_delay_ns, rest_ns)[path.node].sum())


def _within_path(graph: Graph, linked: Linked, path: CriticalChain, stretches: Stretches) -> int:
    """Return how much of unexplained blocking is in the time of host nodes on the path (gaps, which count whole, are
    none).
    """
    node = path.node[among(graph.kind[path.node], (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL))]
    work = Timeline.of_nodes(graph, node)
    end_ns = stretches.start_ns + stretches.unexplained_ns
    return int(work.between(linked.trace.calls.tid[stretches.of], stretches.start_ns, end_ns).sum())


class _Exact(msgspec.Struct, frozen=True):
    """The waits that rows name: ``named`` calls, of them and of device ``rows`` the ones of which a wait was
    ``rejected``.
    """

    named: Bool
    rejected_call: Bool
    rejected_row: Bool


def _exact(built: Built, linked: Linked) -> _Exact:
    calls, syncs, pairs = linked.trace.calls, linked.trace.syncs, built.rejected
    names = np.isin(syncs.kind, (SyncKind.STREAM, SyncKind.DEVICE))
    names |= (syncs.kind == SyncKind.EVENT) & syncs.record_known
    call = marked(len(calls.start_ns), pairs.call[pairs.call != NOWHERE])
    row = marked(len(linked.device_call), pairs.device_op[pairs.device_op != NOWHERE])
    return _Exact(
        np.isin(calls.correlation, syncs.correlation[names & (syncs.correlation > 0)]), call & ~behind_rows(linked), row
    )


def _rejected(built: Built, linked: Linked, calls: Stretches, streams: Stretches, exact: _Exact) -> list[str]:
    """Return warnings of waits that rows name and the graph has not, by reason."""
    unknown = exact.named[calls.of] & ~exact.rejected_call[calls.of] & (calls.explained_ns == 0)
    told = (
        (
            "synchronisation calls have a row that names what they waited for, but by the recorded times it ended "
            "after they returned",
            np.count_nonzero(exact.rejected_call),
            calls.unexplained_ns[exact.rejected_call[calls.of]],
        ),
        (
            "synchronisation calls have a row that names what they waited for, but nothing of it was recorded that "
            "ended inside them",
            np.count_nonzero(unknown),
            calls.unexplained_ns[unknown],
        ),
        (
            "device ops have a row that names the event they waited for, but by the recorded times they began before "
            "it",
            np.count_nonzero(exact.rejected_row),
            streams.unexplained_ns[exact.rejected_row[built.graph.row[streams.of]]],
        ),
    )
    return [f"{n:,} {what}: {ns.sum() / 1e6:,.3f} ms count as not explained" for what, n, ns in told if n]


def _beside(built: Built, queued: Stretches) -> list[str]:
    """Return warnings of what is in no figure: launches are no calls that block, and the row of an op covers silence
    inside it.
    """
    silences, ns = built.untold.spins, built.untold.spins_ns
    queue = (
        f"{len(queued.of):,} launches were blocked for {queued.ns.sum() / 1e6:,.3f} ms by a full queue to the device: "
        "that time stays in their ops, and what-ifs take it for waiting"
    )
    spins = (
        f"{silences:,} silences of the host, {ns / 1e6:,.3f} ms, ended as a kernel ended that it had launched; nothing "
        "bears out that it waited for it: that time stays in its ops (record with with_stack=True to see what the host "
        "did)"
    )
    return [*([queue] if len(queued.of) else []), *([spins] if silences else [])]


def _missing(where: str, part: Stretches, unnamed: Stretches, describe: _Describe) -> Iterator[str]:
    """Warn of what no other warning names, where less of a part is explained than is the goal."""
    pieces = _pieces(unnamed, describe) if float(_stood(part).explained) < GOAL_PCT else []
    rest, whole = (ms(int(ns.sum())) for ns in (unnamed.unexplained_ns, part.ns))
    for piece in pieces[:1]:
        yield (
            f"{rest} ms of {whole} ms {where} count as not explained; the longest is {ms(piece.ns)} ms at "
            f"{ms(piece.start_ns)} ms, {piece.what}; what would show why: {piece.record}"
        )


def _unnamed_calls(calls: Stretches, exact: _Exact) -> Stretches:
    """Return the calls without the time of which ``_rejected`` warns."""
    named = exact.rejected_call[calls.of] | (exact.named[calls.of] & (calls.explained_ns == 0))
    return replace(calls, ns=calls.ns - np.where(named, calls.unexplained_ns, 0))


def _unnamed_silence(built: Built, threads: Silences) -> Silences:
    """Return the silences without the time in which something was pending or hidden, where that is a warning."""
    run_ns, named_ns = int(built.graph.end_ns.max(initial=0)), np.zeros_like(threads.ns)
    for silent, ns in ((built.pending, threads.pending_ns), (built.hidden, threads.hidden_ns)):
        named_ns += 0 if silent.noted(run_ns) else ns
    return replace(threads, ns=threads.ns - np.minimum(named_ns, threads.unexplained_ns))


def _pieces(part: Stretches, describe: _Describe, least_ns: int = 0) -> list[Piece]:
    """Return the longest unexplained pieces, longest first, of more than ``least_ns``."""
    rest = part.unexplained_ns
    order = np.lexsort((part.start_ns, -rest))[:LARGEST]
    return [
        Piece(what=what, ns=int(rest[at]), start_ns=int(part.start_ns[at]), record=record)
        for at in order[rest[order] > least_ns].tolist()
        for what, record in (describe(at),)
    ]


def _describing(
    graph: Graph, linked: Linked, parts: tuple[Stretches, Silences, Stretches, Stretches], exact: _Exact, pending: Bool
) -> tuple[_Describe, ...]:
    """Return for each of the parts what says of a stretch what it is and what would have shown why. ``pending``: was
    any work as each call began.
    """
    trace = linked.trace
    seen = _seen_by(linked)

    def of_call(at: int) -> tuple[str, str]:
        call = int(parts[0].of[at])
        unseen = NO_COPIES if role_of(trace.strings[trace.calls.name[call]]) in (Role.COPY, Role.COPY_ASYNC) else seen
        record = unseen if pending[call] else BEFORE_WINDOW
        if exact.named[call]:
            why = exact.rejected_call[call], parts[0].explained_ns[at] > 0, True
            record = (DEVICE_CLOCK, LATE_RETURN, BEFORE_WINDOW)[why.index(True)]
        return f"{trace.strings[trace.calls.name[call]]} on thread {trace.calls.tid[call]}", record

    def of_thread(at: int) -> tuple[str, str]:
        row = int(parts[1].of[at])
        before = f" before {trace.strings[trace.host.name[row]]}" if row != NOWHERE else ""
        held = WAITS_RECORDED if WAIT_RANGE in trace.strings else PENDING
        which = parts[1].late[at], parts[1].pending_ns[at] > 0, parts[1].hidden_ns[at] > 0, True
        record = (LATE, held, HIDDEN, WAKER)[which.index(True)]
        return f"thread {parts[1].tid[at]} silent{before}", f"{record}; {_stack(graph, linked, parts[1], at)}"

    def of_stream(at: int) -> tuple[str, str]:
        node = int(parts[2].of[at])
        name = trace.strings[trace.device.name[graph.row[node]]]
        return (
            f"{name} late on device {graph.device[node]}, stream {graph.stream[node]}",
            DEVICE_CLOCK if exact.rejected_row[graph.row[node]] else seen,
        )

    def of_launch(at: int) -> tuple[str, str]:
        call = int(parts[3].of[at])
        return f"{trace.strings[trace.calls.name[call]]} on thread {trace.calls.tid[call]}, launch queue full", QUEUE

    return of_call, of_thread, of_stream, of_launch


def _stack(graph: Graph, linked: Linked, silences: Silences, at: int) -> str:
    """Return the innermost frame that a thread was in throughout a silence, else what would show it."""
    frames, start_ns = linked.trace.frames, int(silences.start_ns[at]) + graph.epoch_ns
    if frames is None:
        return STACKS
    around = (frames.tid == silences.tid[at]) & (frames.start_ns < start_ns + ASLEEP_NS)
    around &= frames.end_ns > start_ns + silences.ns[at] + silences.python_ns[at] - ASLEEP_NS
    row = np.flatnonzero(around)
    if not len(row):
        return STACKS
    name = linked.trace.strings[frames.name[row[np.argmax(frames.start_ns[row])]]]
    return STACK + re.sub(" at 0x[0-9a-f]+", "", name)


def _seen_by(linked: Linked) -> str:
    """Name the recording that would have shown the waits of calls and streams."""
    if linked.match.method == "nsys":
        return NSYS_ROWS
    if len(linked.trace.syncs.kind):
        return SOME_ROWS
    used = np.unique(linked.trace.calls.name).tolist()
    return HIP_ROWS if any(linked.trace.strings[k].startswith("hip") for k in used) else CUDA_ROWS
