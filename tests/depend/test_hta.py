"""HTA as a source of synchronisation edges.

The suite runs on HolisticTraceAnalysis 0.5.0, which mlc-chakra brings. To run it on traceinsight 0.6.1 (the same module
``hta``; never both in one environment):

    python -m venv ti && ti/bin/pip install --no-deps traceinsight==0.6.1
    ti/bin/pip install numpy 'pandas<3' networkx psutil pyyaml msgspec isal backports.zstd pytest hypothesis
    ti/bin/pip install --no-deps -e .
    ti/bin/python -m pytest tests/depend/test_hta.py
"""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import graphlink.depend.hta as adapter
from graphlink.depend.hta import hta_waits
from graphlink.depend.hta_feed import windows
from graphlink.model import NOWHERE, FoundBy, SyncKind, Trace, Waits
from graphlink.read.kineto import read_kineto
from tests.build import Call, Device, Event, Sync, build_trace
from tests.depend.hta_rows import device_calls, edges, plain_hta, programs, repeated

TRACES = Path(__file__).parents[2] / "../shared/traces/cuda-sync"
STREAM, DEVICE, EVENT, WAIT = SyncKind.STREAM, SyncKind.DEVICE, SyncKind.EVENT, SyncKind.STREAM_WAIT


@pytest.fixture(autouse=True)
def nothing_is_kept() -> None:
    adapter._kept_pairs.cache_clear()


def found(trace: Trace) -> set[tuple[str, str]]:
    waits, said = hta_waits(trace, device_calls(trace))
    assert not any("HTA skipped" in text or " windows, first: " in text for text in said), said
    assert (waits.found_by == FoundBy.HTA).all()
    return edges(trace, waits)


def rows_of(w: Waits) -> set[tuple[int, int, bool]]:
    target = np.where(w.call == NOWHERE, w.device_op, w.call)
    return set(zip(w.source.tolist(), target.tolist(), (w.call == NOWHERE).tolist(), strict=True))


@pytest.mark.parametrize(("name", "kinds"), [("alexnet", [16, 9, 0, 6]), ("event_sync", [1, 1, 2, 0])])
def test_real_traces_give_all_the_edges_of_hta(name: str, kinds: list[int]) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    trace = read_kineto(path)
    calls = device_calls(trace)
    waits, said = hta_waits(trace, calls)
    assert not said
    call = waits.call[waits.call != NOWHERE]
    kind = dict(zip(trace.syncs.correlation.tolist(), trace.syncs.kind.tolist(), strict=True))
    counts = np.bincount([kind[c] for c in trace.calls.correlation[call].tolist()], minlength=4)
    counts[WAIT] = (waits.device_op != NOWHERE).sum()
    assert counts.tolist() == kinds
    assert rows_of(waits) == plain_hta(trace, calls, 0)


def stream_sync(end: float = 125.0) -> dict[str, list[Call] | list[Device] | list[Sync]]:
    """kA on stream 7, awaited by a stream synchronisation."""
    return {
        "calls": [Call("cudaLaunchKernel", 10, 15, 1), Call("cudaStreamSynchronize", 30, end, 2)],
        "device": [Device("kA", 20, 120, 1, stream=7)],
        "syncs": [Sync(STREAM, 30, end, 2, stream=7)],
    }


def test_stream_sync_waits_for_the_last_op_of_its_stream() -> None:
    trace = build_trace(**stream_sync())
    assert found(trace) == {("kA", "cudaStreamSynchronize@30")}


def test_ranks_that_did_the_same_run_hta_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[object] = []
    alone = adapter._alone
    monkeypatch.setattr(adapter, "_alone", lambda *modules: (runs.append(1), alone(*modules))[1])
    rows = stream_sync()
    edge = {("kA", "cudaStreamSynchronize@30")}
    assert found(build_trace(**rows)) == found(build_trace(**stream_sync(140))) == edge
    assert len(runs) == 1
    assert not found(build_trace(**{**rows, "device": [Device("kA", 130, 150, 1, stream=7)]}))  # behind the wait
    assert len(runs) <= 2


@pytest.mark.parametrize(
    "launch", ["cudaGraphLaunch", "cudaLaunchCooperativeKernel", "cudaMemcpy2DAsync", "cuMemcpyDtoHAsync_v2"]
)
def test_launch_by_any_name_is_seen(launch: str) -> None:
    trace = build_trace(
        calls=[
            Call("cudaLaunchKernel", 5, 8, 1),
            Call(launch, 20, 25, 2),
            Call("cudaEventRecord", 30, 32, 3),
            Call("cudaStreamWaitEvent", 40, 42, 4),
            Call(launch, 60, 65, 5),
        ],
        device=[
            Device("kOld", 15, 20, 1, stream=20),
            Device("kA", 30, 130, 2, stream=20),
            Device("kC", 140, 160, 5, stream=7),
        ],
        syncs=[Sync(WAIT, 40, 42, 4, stream=7, record=3, record_stream=20)],
    )
    assert found(trace) == {("kA", "kC")}


def test_graph_launch_of_several_kernels_keeps_the_last_of_each_stream() -> None:
    trace = build_trace(
        calls=[Call("cudaGraphLaunch", 10, 15, 1), Call("cudaDeviceSynchronize", 30, 200, 2)],
        device=[
            Device("k1", 20, 40, 1, stream=7),
            Device("k2", 45, 60, 1, stream=7),
            Device("k3", 30, 190, 1, stream=8),
        ],
        syncs=[Sync(DEVICE, 30, 200, 2)],
    )
    assert found(trace) == {("k2", "cudaDeviceSynchronize@30"), ("k3", "cudaDeviceSynchronize@30")}


@pytest.mark.parametrize("end", [30.9, 30.0])
def test_calls_below_a_microsecond_keep_their_edge(end: float) -> None:
    trace = build_trace(
        calls=[Call("cudaLaunchKernel", 10.2, 10.2, 1), Call("cudaStreamSynchronize", 30, end, 2)],
        device=[Device("kA", 20.3, 20.3, 1)],
        syncs=[Sync(STREAM, 30, end, 2, stream=7)],
    )
    assert found(trace) == {("kA", "cudaStreamSynchronize@30")}


@pytest.mark.parametrize("kind", list(SyncKind))
def test_sync_row_without_its_call_is_left_out_and_counted(kind: SyncKind) -> None:
    rows = stream_sync()
    trace = build_trace(
        calls=[*rows["calls"], Call("cudaEventRecord", 16, 18, 3)],
        device=rows["device"],
        syncs=[*rows["syncs"], Sync(kind, 50, 130, 99, stream=7, record=3, record_stream=7)],
    )
    waits, said = hta_waits(trace, device_calls(trace))
    assert edges(trace, waits) == {("kA", "cudaStreamSynchronize@30")}
    assert said == ["note: HTA was not given 1 rows: cuda_sync row without its call"]


def test_rows_of_unknown_streams_are_left_out_and_counted() -> None:
    rows = stream_sync()
    unknown = [Call("cudaStreamSynchronize", 140, 150, 8), Call("cudaStreamWaitEvent", 160, 162, 9)]
    trace = build_trace(
        calls=[*rows["calls"], *unknown],
        device=[*rows["device"], Device("orphan", 1, 2, 77)],
        syncs=[*rows["syncs"], Sync(STREAM, 140, 150, 8), Sync(WAIT, 160, 162, 9)],
    )
    waits, said = hta_waits(trace, device_calls(trace))
    assert edges(trace, waits) == {("kA", "cudaStreamSynchronize@30")}
    left_out = {"cuda_sync row of an unknown stream": 2, "device row without its call": 1}
    assert said == [f"note: HTA was not given {n} rows: {reason}" for reason, n in left_out.items()]


def test_equal_stream_ids_of_two_devices_stay_apart() -> None:
    trace = build_trace(
        calls=[
            Call("cudaLaunchKernel", 10, 15, 1),
            Call("cudaLaunchKernel", 30, 35, 2),
            Call("cudaStreamSynchronize", 60, 72, 3),
            Call("cudaDeviceSynchronize", 400, 410, 4),
            Call("cudaDeviceSynchronize", 420, 430, 5),
        ],
        device=[Device("k0", 20, 70, 1, stream=7), Device("k1", 40, 340, 2, stream=7, device=1)],
        syncs=[Sync(STREAM, 60, 72, 3, stream=7), Sync(DEVICE, 400, 410, 4), Sync(DEVICE, 420, 430, 5, device=1)],
    )
    assert found(trace) == {
        ("k0", "cudaStreamSynchronize@60"),
        ("k0", "cudaDeviceSynchronize@400"),
        ("k1", "cudaDeviceSynchronize@420"),
    }


def test_event_rows_are_no_device_work() -> None:
    rows = stream_sync()
    trace = build_trace(**rows, events=[Event(3, stream=7)])
    assert found(trace) == {("kA", "cudaStreamSynchronize@30")}


def test_one_record_on_two_streams_or_awaited_on_two_devices_ends_no_run() -> None:
    trace = build_trace(
        calls=[
            Call("cudaLaunchKernel", 10, 15, 1),
            Call("cudaEventRecord", 16, 18, 2),
            *(Call("cudaEventSynchronize", at, at + 5, at) for at in (140, 150, 160)),
        ],
        device=[Device("kA", 20, 120, 1, stream=7)],
        syncs=[
            Sync(EVENT, 140, 145, 140, record=2, record_stream=7),
            Sync(EVENT, 150, 155, 150, record=2, record_stream=9),
            Sync(EVENT, 160, 165, 160, record=2, record_stream=7, device=1),
        ],
    )
    assert found(trace) == {("kA", "cudaEventSynchronize@140"), ("kA", "cudaEventSynchronize@150")}


def test_equal_times_stand_in_the_order_launch_record_wait() -> None:
    trace = build_trace(
        calls=[
            *(Call("cudaLaunchKernel", 10, 10, i) for i in range(1, 40)),
            Call("cudaEventRecord", 10, 10, 50),
            Call("cudaEventSynchronize", 10, 90, 51),
        ],
        device=[Device(f"k{i}", 20 + i, 21 + i, i) for i in range(1, 40)],
        syncs=[Sync(EVENT, 10, 90, 51, record=50, record_stream=7)],
    )
    assert found(trace) == {("k39", "cudaEventSynchronize@10")}


SLOW = settings(max_examples=settings().max_examples // 10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(programs())
def test_the_feed_gives_what_hta_gives_on_all_rows(trace: Trace) -> None:
    calls = device_calls(trace)
    joint = rows_of(hta_waits(trace, calls)[0])
    plain: set[tuple[int, int, bool]] = set()
    for device in (0, 1):
        ops, syncs = (trace.device.device == device).any(), (trace.syncs.device == device).any()
        plain |= plain_hta(trace, calls, device) if ops and syncs else set()
    assert joint == plain


@SLOW
@given(programs())
def test_windows_give_the_edges_of_the_whole(trace: Trace) -> None:
    calls = device_calls(trace)
    (whole, said), (cut, said_of_cut) = hta_waits(trace, calls), hta_waits(trace, calls, window_rows=20)
    assert rows_of(cut) == rows_of(whole)
    assert not any(" windows, first: " in text for text in said + said_of_cut)


def sparse_step(shift: float, first_id: int) -> tuple[list[Call], list[Device], list[Sync]]:
    """A step whose edges reach back: stream 9 and the record are used in the first step only."""
    calls = [
        Call("cudaLaunchKernel", shift + 10, shift + 15, first_id + 1),
        Call("cudaStreamSynchronize", shift + 50, shift + 55, first_id + 2),
    ]
    device = [Device(f"k{first_id}", shift + 20, shift + 30, first_id + 1, stream=7 if first_id else 9)]
    syncs = [Sync(STREAM, shift + 50, shift + 55, first_id + 2, stream=9)]
    calls += [Call("cudaEventRecord", 35, 36, 3)] if not first_id else []
    calls += [Call("cudaStreamWaitEvent", shift + 97, shift + 98, first_id + 4)]
    syncs += [Sync(WAIT, shift + 97, shift + 98, first_id + 4, stream=7, record=3, record_stream=9)]
    return calls, device, syncs


def test_edges_across_marks_are_found_once() -> None:
    trace = repeated(sparse_step, times=6, step_us=100)
    assert len(windows(trace, 5)) >= 5
    waits, _ = hta_waits(trace, device_calls(trace), window_rows=5)
    waits_of_host = {("k0", f"cudaStreamSynchronize@{100 * i + 50}") for i in range(6)}
    assert edges(trace, waits) == waits_of_host | {("k0", f"k{1000 * i}") for i in range(1, 6)}


def test_window_above_the_limit_is_skipped_with_a_warning() -> None:
    trace = repeated(sparse_step, times=3, step_us=100)
    waits, said = hta_waits(trace, device_calls(trace), limit_events=4)
    assert "--hta-limit" in said[0]
    assert "skipped in 1 of 3 windows" in said[0]
    assert ("k0", "cudaStreamSynchronize@150") in edges(trace, waits)
    assert ("k0", "cudaStreamSynchronize@50") not in edges(trace, waits)


def test_trace_without_marks_is_one_window() -> None:
    trace = build_trace(**stream_sync())
    waits, said = hta_waits(trace, device_calls(trace), limit_events=2)
    assert not len(waits.source)
    assert "skipped in 1 of 1 windows" in said[0]


def test_no_sync_rows_is_said_without_running_hta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_kept_pairs", lambda *frame: pytest.fail("HTA ran"))
    trace = build_trace(calls=stream_sync()["calls"], device=stream_sync()["device"])
    waits, said = hta_waits(trace, device_calls(trace))
    assert len(waits.source) == 0
    assert "from cuda_sync rows only, and the trace has none" in said[0]


def test_empty_trace() -> None:
    trace = build_trace()
    assert len(hta_waits(trace, device_calls(trace))[0].source) == 0


def test_exception_none_and_empty_are_three_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    import hta.analyzers.critical_path_analysis as cpa

    trace = build_trace(**stream_sync())
    calls = device_calls(trace)

    def fail(*args: object) -> None:
        raise KeyError("first line\nsecond line")

    monkeypatch.setattr(cpa.CPGraph, "_create_event_nodes", fail)
    raised = hta_waits(trace, calls)
    monkeypatch.undo()
    monkeypatch.setattr(cpa.CriticalPathAnalysis, "critical_path_analysis", lambda *args: None)
    returned_none = hta_waits(trace, calls)
    monkeypatch.undo()
    adapter._kept_pairs.cache_clear()
    monkeypatch.setattr(cpa.CPGraph, "_add_gpu_cpu_sync_edge", lambda *args: None)
    empty = hta_waits(trace, calls)

    (_, [of_raised]), (_, [of_none]), (_, [of_empty]) = raised, returned_none, empty
    assert "HTA failed with KeyError" in of_raised
    assert "first line" in of_raised
    assert "None" in of_none
    assert "no synchronisation edges" in of_empty
    assert ["in 1 of 1 windows" in text for text in (of_raised, of_none, of_empty)] == [True, True, False]
    assert not any(len(waits.source) for waits, _ in (raised, returned_none, empty))


def test_hta_that_cannot_be_imported_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "hta.analyzers.critical_path_analysis", None)
    trace = build_trace(**stream_sync())
    assert "ModuleNotFoundError" in hta_waits(trace, device_calls(trace))[1][0]


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_put_back(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    import hta.analyzers.critical_path_analysis as cpa

    def state() -> list[object]:
        names = ("_construct_graph", "critical_path", "_get_cuda_event_record_df", "_get_cuda_stream_wait_event_df")
        counters = vars(cpa.TraceCounters)["_get_queue_length_time_series_for_rank"]
        return [*(vars(cpa.CPGraph)[name] for name in names), counters, logging.getLogger("hta").level, gc.isenabled()]

    if fails:
        monkeypatch.setattr(cpa.CPGraph, "_create_event_nodes", lambda graph: 1 // 0)
    before = state()
    trace = build_trace(**stream_sync())
    _, said = hta_waits(trace, device_calls(trace))
    assert ["HTA failed with ZeroDivisionError" in text for text in said] == [True] * fails
    assert state() == before


def test_graphs_do_not_outlive_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    import hta.analyzers.critical_path_analysis as cpa

    made: list[weakref.ref[object]] = []
    create = cpa.CPGraph._create_event_nodes
    monkeypatch.setattr(
        cpa.CPGraph, "_create_event_nodes", lambda graph: (made.append(weakref.ref(graph)), create(graph))
    )
    trace = build_trace(**stream_sync())
    gc.disable()
    try:
        assert len(hta_waits(trace, device_calls(trace))[0].source) == 1
        assert [graph() for graph in made] == [None]
    finally:
        gc.enable()


def test_hta_and_pandas_are_imported_only_when_needed() -> None:
    import subprocess
    import sys

    code = "import graphlink.depend.hta, sys; sys.exit(any(m in sys.modules for m in ('hta', 'pandas', 'networkx')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
