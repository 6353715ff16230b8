"""What the tests of the HTA adapter need: device calls by correlation, programs of random calls, HTA fed the
plain way.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import strategies as st

from graphlink.depend.hta import _alone
from graphlink.model import I32, NOWHERE, SyncKind, Trace, Waits
from tests.build import Call, Device, Host, Sync, build_trace

NAMES = {
    SyncKind.STREAM: "Stream Sync",
    SyncKind.DEVICE: "Context Sync",
    SyncKind.EVENT: "Event Sync",
    SyncKind.STREAM_WAIT: "Stream Wait Event",
}


def device_calls(trace: Trace) -> I32:
    row = {c: i for i, c in reversed(list(enumerate(trace.calls.correlation.tolist())))}
    return np.array([row.get(c, NOWHERE) for c in trace.device.correlation.tolist()], np.int32)


def edges(trace: Trace, waits: Waits) -> set[tuple[str, str]]:
    """Edges by name: op -> op, or op -> name of the call and its start in us."""
    calls, device, text = trace.calls, trace.device, trace.strings
    found = []
    for source, call, op in zip(waits.source.tolist(), waits.call.tolist(), waits.device_op.tolist(), strict=True):
        assert (call == NOWHERE) != (op == NOWHERE)
        target = (
            text[device.name[op]] if call == NOWHERE else f"{text[calls.name[call]]}@{calls.start_ns[call] / 1000:g}"
        )
        found.append((text[device.name[source]], target))
    assert len(set(found)) == len(found)
    return set(found)


def repeated(trace_of: Any, times: int, step_us: float) -> Trace:
    """``times`` copies of a program, one after the other, each in a ProfilerStep. ``trace_of(shift_us, first_id)``
    gives its rows.
    """
    parts = [trace_of(i * step_us, 1000 * i) for i in range(times)]
    steps = [Host(f"ProfilerStep#{i}", i * step_us, (i + 1) * step_us, annotation=True) for i in range(times)]
    calls, device, syncs = ([row for part in parts for row in part[column]] for column in range(3))
    return build_trace(steps, calls, device, syncs)


@st.composite
def programs(draw: st.DrawFn) -> Trace:
    """Random calls of 1 to 3 threads on 3 streams and 2 devices with their rows. All times differ, as HTA's sorts are
    unstable.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    threads = int(rng.integers(1, 4))
    calls: list[Call] = []
    device: list[Device] = []
    syncs: list[Sync] = []
    free: dict[tuple[int, int], float] = {}
    record_stream: dict[int, int] = {}
    for i in range(1, draw(st.integers(5, 120))):
        at, odd = 10.0 * i, i / 1000
        tid, stream, gpu = (int(rng.integers(n)) for n in (threads, 3, 2))
        what = ("launch", "launch", "graph", "record", "record", "sync", "sync", "sync")[rng.integers(8)]
        if what in ("launch", "graph"):
            calls.append(Call("cudaLaunchKernel" if what == "launch" else "cudaGraphLaunch", at, at + 3, i, tid))
            start = max(at + 5.0, free.get((gpu, stream), 0.0) + 1.0) + odd
            free[gpu, stream] = start + float(rng.integers(1, 60))
            device.append(Device(f"k{i}", start, free[gpu, stream], i, stream, gpu))
        elif what == "record":
            calls.append(Call("cudaEventRecord", at, at + 2, i, tid))
            record_stream[i] = stream
        else:
            kind = SyncKind(int(rng.integers(4)))
            end = at + float(rng.integers(1, 80)) + odd + 0.5
            own = stream if kind in (SyncKind.STREAM, SyncKind.STREAM_WAIT) else None
            of_record = record_stream and kind in (SyncKind.EVENT, SyncKind.STREAM_WAIT)
            record = int(rng.choice(list(record_stream))) if of_record else None
            calls.append(Call("cudaStreamWaitEvent" if kind == SyncKind.STREAM_WAIT else "cudaSync", at, end, i, tid))
            syncs.append(Sync(kind, at, end, i, own, record, record_stream.get(record or 0), gpu))
    steps = [
        Host(f"ProfilerStep#{i}", 150.0 * i, 150.0 * (i + 1), annotation=True) for i in range(1 + len(calls) // 15)
    ]
    return build_trace(steps, calls, device, syncs)


def plain_hta(trace: Trace, device_call: I32, device_id: int) -> set[tuple[int, int, bool]]:
    """SYNC edges (source row, target row, target is a device row) of HTA fed with every call, ns and its own join by
    correlation.
    """
    import hta.analyzers.critical_path_analysis as cpa
    import pandas as pd
    from hta.common.trace import Trace as HtaTrace
    from hta.common.trace import transform_correlation_to_index

    launches = set(device_call[device_call != NOWHERE].tolist())
    joined = set(trace.calls.correlation.tolist())
    rows: list[tuple[Any, ...]] = []
    for i in range(len(trace.calls.name)):
        name = "cudaLaunchKernel" if i in launches else trace.strings[trace.calls.name[i]]
        times = (trace.calls.start_ns[i], trace.calls.end_ns[i])
        rows.append((i, "cuda_runtime", name, *times, 9, trace.calls.tid[i], -1, trace.calls.correlation[i], -1, -1))
    d = trace.device
    rows += [
        (i, "kernel", "op", d.start_ns[i], d.end_ns[i], device_id, 0, d.stream[i], d.correlation[i], -1, -1)
        for i in np.flatnonzero(d.device == device_id).tolist()
    ]
    s = trace.syncs
    for i in np.flatnonzero(s.device == device_id).tolist():
        stream = s.stream[i] if s.stream_known[i] else -1
        waits = (s.record_stream[i], s.record[i]) if s.record_known[i] and s.record_stream_known[i] else (-1, -1)
        if s.correlation[i] in joined:
            name = NAMES[SyncKind(s.kind[i])]
            rows.append(
                (i, "cuda_sync", name, s.start_ns[i], s.end_ns[i], device_id, 0, stream, s.correlation[i], *waits)
            )

    columns = ["row", "cat", "name", "ts", "end", "pid", "tid", "stream", "correlation"]
    frame = pd.DataFrame(rows, columns=[*columns, "wait_on_stream", "wait_on_cuda_event_record_corr_id"])
    frame.index = frame.index + 1
    frame["index"] = frame.index
    frame["dur"] = frame.end - frame.ts
    kept, categories = frame["row"], frame["cat"].copy()
    recording = HtaTrace(trace_files={}, trace_dir=".")
    recording.symbol_table.add_symbols([*frame.cat.unique(), *frame.name.unique()])
    for column in ("cat", "name"):
        frame[column] = frame[column].map(recording.symbol_table.get_sym_id_map())
    recording.meta_data[0], recording.is_parsed = {}, True
    with warnings.catch_warnings(), _alone(cpa, pd, {}):
        warnings.simplefilter("ignore")
        recording.traces[0] = transform_correlation_to_index(frame, recording.symbol_table).astype("int64")
        graph, _ = cpa.CriticalPathAnalysis.critical_path_analysis(recording, 0, "", None)
    found = set()
    for _, _, edge in graph.edges(data="object"):
        if edge.type is cpa.CPEdgeType.SYNC_DEPENDENCY:
            source, target = (graph.node_list[node].ev_idx for node in (edge.begin, edge.end))
            found.add((int(kept[source]), int(kept[target]), bool(categories[target] == "kernel")))
    return found
