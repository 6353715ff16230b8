"""Why a graph made without ``cuda_sync`` rows predicts wrongly: by the truth of the simulated program.

The row of one call is put back into the recording, of each call in turn whose waits the graph does not have as they
were. The call whose row takes most of the error is its cause; what it waited for is in the program's truth, what was
found instead in the graph. Where no row takes half of it, several waits err together: then all rows are put back but
one, each in turn, and those that are missed most are the cause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphlink.depend.infer import TIE_NS
from graphlink.replay.workload import Workload
from graphlink.run.job import PreparedRank

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator import Api, CallRow, Execution, RowIds

MOST = 3  # waits that are described
Pairs = dict[int, frozenset[int]]  # a call -> device ops, both by their position in the execution


@dataclass(frozen=True)
class Recorded:
    """An execution as written, read back and made into a graph."""

    execution: Execution
    ids: RowIds
    prepared: PreparedRank
    work: Workload


Record = Callable[[Callable[[dict[str, Any]], bool]], Recorded]  # records with those of the rows that are wanted
Error = Callable[[Workload], float]


def told(row: dict[str, Any], correlations: frozenset[int]) -> bool:
    """Is a row of the document no ``cuda_sync`` row, or that of one of some calls?"""
    return row.get("cat") != "cuda_sync" or row["args"]["correlation"] in correlations


def cause(record: Record, error: Error) -> str:
    """One line on what makes the error (in percent) of the recording without rows. O(calls) recordings."""
    bare = record(lambda row: told(row, frozenset()))
    found, before = waits_found(bare), error(bare.work)
    suspected = [bare.ids.call_correlation[i] for i in suspects(bare.execution, found)]
    call_of = {correlation: i for i, correlation in enumerate(bare.ids.call_correlation)}

    def with_rows(correlations: frozenset[int]) -> float:
        return error(record(lambda row: told(row, correlations)).work)

    alone = {c: with_rows(frozenset({c})) for c in suspected}
    best = min(alone, key=lambda c: abs(alone[c]), default=None)
    if best is not None and abs(alone[best]) < abs(before) / 2:
        return (
            f"{before:+.3f} %: {describe(bare.execution, call_of[best], found)}; {alone[best]:+.3f} % if this call "
            "had its row"
        )
    every = frozenset(suspected)
    if abs(with_rows(every)) > abs(before) / 2:
        return f"{before:+.3f} %: no wait that a row would tell"
    without = {c: with_rows(every - {c}) for c in suspected}
    missed = sorted(suspected, key=lambda c: -abs(without[c]))
    after = ((k, with_rows(frozenset(missed[:k]))) for k in range(2, len(missed) + 1))
    count, rest = next((k, e) for k, e in after if abs(e) < abs(before) / 2)
    what = "; ".join(describe(bare.execution, call_of[c], found) for c in missed[:count][:MOST])
    return (
        f"{before:+.3f} %: {count} waits together: {what}{'; ...' if count > MOST else ''}; {rest:+.3f} % if these "
        "had their rows"
    )


def waits_found(recorded: Recorded) -> Pairs:
    """What the graph says that each synchronisation call waited for."""
    graph, linked, ids = recorded.prepared.built.graph, recorded.prepared.linked, recorded.ids
    device, calls = linked.trace.device, linked.trace.calls
    rows = sorted(range(len(device.start_ns)), key=lambda r: (int(device.correlation[r]), int(device.start_ns[r]), r))
    ops = recorded.execution.device  # those of a graph launch share a correlation: by start on both sides
    truth = sorted(range(len(ops)), key=lambda i: (ids.device_correlation[i], ops[i].start_ns, i))
    op_of = dict(zip(rows, truth, strict=True))
    call_of = {correlation: i for i, correlation in enumerate(ids.call_correlation)}
    out: dict[int, set[int]] = {}
    told = graph.sync_calls
    for row, call in zip(graph.row[told.source].tolist(), calls.correlation[told.call].tolist(), strict=True):
        out.setdefault(call_of[call], set()).add(op_of[row])
    return {call: frozenset(sources) for call, sources in out.items()}


def suspects(execution: Execution, found: Pairs) -> Iterator[int]:
    """Calls that have a row and sources, and what the graph has of them is not what ended last; waits of streams are no
    edge of a call.
    """
    for i, call in enumerate(execution.calls):
        if call.call.api is Api.WAIT_EVENT:
            if call.sources:
                yield i
        elif call.call.api in (Api.STREAM_SYNC, Api.DEVICE_SYNC, Api.EVENT_SYNC, Api.EVENT_QUERY):
            has = found.get(i, frozenset())
            if not has <= call.sources or (call.sources and last(execution, call) not in has):
                yield i


def last(execution: Execution, call: CallRow) -> int:
    """Of what a call waited for, the op that ended last."""
    return max(call.sources, key=lambda op: execution.device[op].end_ns)


def describe(execution: Execution, i: int, found: Pairs) -> str:
    """What a call did, what the graph has of it, and between which ops that cannot be told."""
    call, device = execution.calls[i], execution.device
    text = f"{call.call.name} of thread {call.thread} at {(call.start_ns - execution.start_ns) / 1e6:.3f} ms"
    if not call.sources:
        return f"{text} waited for nothing, and the graph has it wait for {_streams(execution, found[i])}"
    source = last(execution, call)
    took = f"blocked {call.blocked_ns / 1e3:.1f} us" if call.blocked_ns else "did not block"
    if call.call.api is Api.WAIT_EVENT:
        took = f"held stream {call.call.stream} up for {_held_ns(execution, i, source) / 1e3:.1f} us"
    text += f" {took} for an op of stream {device[source].stream}"
    if call.call.api is not Api.WAIT_EVENT:
        text += f", {_explained(execution, found.get(i, frozenset()))}"
    near = [
        op
        for op, row in enumerate(device)
        if op != source
        and row.call < i
        and abs(row.end_ns - device[source].end_ns) <= TIE_NS
        and row.stream != device[source].stream
    ]
    if near:
        apart = min(abs(device[op].end_ns - device[source].end_ns) for op in near)
        text += f"; tied with {_streams(execution, near)}, which ended {apart / 1e3:.1f} us apart"
    return text


def _held_ns(execution: Execution, i: int, source: int) -> int:
    """How much later than its launch call and the op before it the next op of the stream could start, because of a
    wait.
    """
    call, device = execution.calls[i].call, execution.device
    held = next((op for op in device if op.call > i and (op.device, op.stream) == (call.device, call.stream)), None)
    if held is None:
        return 0
    before_ns = 0 if held.previous is None else device[held.previous].end_ns
    return max(0, device[source].end_ns - max(before_ns, execution.calls[held.call].end_ns))


def _explained(execution: Execution, has: frozenset[int]) -> str:
    return f"explained by {_streams(execution, has)}" if has else "not explained"


def _streams(execution: Execution, ops: Any) -> str:
    return f"an op of stream {' and '.join(str(s) for s in sorted({execution.device[op].stream for op in ops}))}"
