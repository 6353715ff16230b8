"""What stands in the tables of an nsys export stands in the trace: one execution, every variation of the format."""

from __future__ import annotations

import gzip
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.model import NOWHERE, DeviceKind, Gpu, SyncKind, Trace
from graphlink.read.heads import looks_like
from graphlink.read.nsys.file import open_export
from graphlink.read.nsys.report import read_nsys
from graphlink.read.nsys.text import call_name, range_name, split_name
from graphlink.tables import how_many, lookup
from tests.simulator import EPOCH_NS, Execution, RowIds, Shape, Training, random_program, run, training_program
from tests.simulator.nsys import REPORT_NS, NsysVariation, write_nsys
from tests.simulator.nsys_tables import SCHEMAS

ENGINE = "autograd::engine::evaluate_function"
TRAINING = run(training_program(1, Training(steps=2, layers=2)))
RANDOM = run(random_program(7, Shape(threads=2)))


def read_one(path: Path, execution: Execution, schema: str = "3.25", **vary: Any) -> tuple[Trace, RowIds]:
    (ids,) = write_nsys([execution], path, schema=schema, vary=NsysVariation(**vary))
    (trace,) = read_nsys(path)
    return trace, ids


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_order_tells_the_calls_of_rows_without_a_correlation(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    whole, _ = read_one(path, TRAINING)
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 0 WHERE rowid % 7 = 3")
    (trace,) = read_nsys(path)
    before, after = (lookup(one.calls.correlation, one.device.correlation) for one in (whole, trace))
    told = how_many(lookup(whole.device.correlation, trace.device.correlation) != NOWHERE)
    lacked = trace.mended["calls-without-id"]
    assert lacked > 3
    assert told == len(before)
    assert after.tolist() == before.tolist()
    assert f"{lacked} device ops have no correlation id of a call of their own" in " ".join(trace.warnings)


def test_calls_that_order_tells_count_for_the_ranks_of_their_process(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    write_nsys([run(training_program(seed, Training(steps=1))) for seed in (1, 2)], path)
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 0 WHERE rowid % 7 = 3")
    for trace in read_nsys(path):
        said = [warning for warning in trace.warnings if "no correlation id of a call of their own" in warning]
        assert [f"{trace.mended['calls-without-id']} device ops" in warning for warning in said] == [True]


def host_rows(trace: Trace) -> Counter[tuple[Any, ...]]:
    h = trace.host
    columns = (h.start_ns, h.end_ns, h.tid, h.name, h.annotation, h.seq_id)
    return Counter(
        (a, b, c, trace.strings[d], e, f) for a, b, c, d, e, f in zip(*(x.tolist() for x in columns), strict=True)
    )


def true_host_rows(execution: Execution, ids: RowIds, epoch_ns: int = EPOCH_NS) -> Counter[tuple[Any, ...]]:
    return Counter(
        (epoch_ns + op.start_ns, epoch_ns + op.end_ns, tid, op.name, op.annotation, -1 if op.seq is None else op.seq)
        for op, tid in zip(execution.host, ids.host_tid, strict=True)
    )


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("execution", [TRAINING, RANDOM], ids=["training", "random"])
def test_ranges_are_host_rows(tmp_path: Path, schema: str, registered: bool, execution: Execution) -> None:
    trace, ids = read_one(tmp_path / "run.sqlite", execution, schema, registered_strings=registered)
    assert host_rows(trace) == true_host_rows(execution, ids)
    assert np.all(np.diff(trace.host.start_ns) >= 0)
    assert (trace.resolution_ns, trace.pid) == (1, execution.program.pid)
    assert trace.left_out["NVTX mark"] == 1
    assert trace.warnings == ()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_calls_lose_their_version_and_keep_their_correlation(tmp_path: Path, schema: str) -> None:
    trace, ids = read_one(tmp_path / "run.sqlite", RANDOM, schema)
    found = {
        (c, trace.strings[n], t, s - EPOCH_NS, e - EPOCH_NS)
        for c, n, t, s, e in zip(
            *(
                x.tolist()
                for x in (
                    trace.calls.correlation,
                    trace.calls.name,
                    trace.calls.tid,
                    trace.calls.start_ns,
                    trace.calls.end_ns,
                )
            ),
            strict=True,
        )
    }
    assert found == {
        (ids.call_correlation[i], row.call.name, ids.call_tid[i], row.start_ns, row.end_ns)
        for i, row in enumerate(RANDOM.calls)
    }


@pytest.mark.parametrize("schema", SCHEMAS)
def test_work_is_device_rows_under_kinetos_names(tmp_path: Path, schema: str) -> None:
    trace, ids = read_one(tmp_path / "run.sqlite", RANDOM, schema)
    d = trace.device
    found = Counter(
        (trace.strings[n], k, dev, st_, c, b, s - EPOCH_NS, e - EPOCH_NS)
        for n, k, dev, st_, c, b, s, e in zip(
            *(x.tolist() for x in (d.name, d.kind, d.device, d.stream, d.correlation, d.bytes, d.start_ns, d.end_ns)),
            strict=True,
        )
    )
    kinds = {"kernel": DeviceKind.KERNEL, "gpu_memcpy": DeviceKind.MEMCPY, "gpu_memset": DeviceKind.MEMSET}
    names = {"Memcpy DtoH (Device -> Pageable)": "Memcpy DtoH", "Memset (Device)": "Memset"} if schema == "2020" else {}
    expected = Counter(
        (
            names.get(op.work.name, op.work.name),
            kinds[op.work.kind],
            op.device,
            op.stream,
            ids.device_correlation[i],
            op.work.size_bytes,
            op.start_ns,
            op.end_ns,
        )
        for i, op in enumerate(RANDOM.device)
    )
    assert found == expected


def test_numbers_of_memory_kinds_are_the_exports_own(tmp_path: Path) -> None:
    """Early exports counted them as CUPTI does: 2 is pinned memory there, device memory today."""
    path = tmp_path / "run.sqlite"
    read_one(path, TRAINING, "3.16")
    edit(
        path, "DELETE FROM ENUM_CUDA_MEM_KIND",
        "INSERT INTO ENUM_CUDA_MEM_KIND VALUES (2, 'CUDA_MEMOPR_MEMORY_KIND_PINNED', NULL), (3, "
        "'CUDA_MEMOPR_MEMORY_KIND_DEVICE', NULL)",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = 2, dstKind = 3",
    )  # fmt: skip
    (trace,) = read_nsys(path)
    assert {trace.strings[n] for n in trace.device.name[trace.device.kind == DeviceKind.MEMCPY]} == {
        "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Pinned -> Device)",
    }  # fmt: skip


def test_names_may_be_text_in_place_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    expected, _ = read_one(path, RANDOM)
    edit(
        path,
        "CREATE TABLE k AS SELECT start, end, deviceId, contextId, streamId, correlationId, globalPid, "
        "(SELECT value FROM StringIds s WHERE s.id = demangledName) AS demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "ALTER TABLE k RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
    )
    (trace,) = read_nsys(path)
    assert [trace.strings[n] for n in trace.device.name] == [expected.strings[n] for n in expected.device.name]


def test_several_processes_with_equal_correlation_ids(tmp_path: Path) -> None:
    """Each gets what it would get alone."""
    executions = [run(training_program(1, Training(rank=rank, steps=1 + rank))) for rank in (0, 1)]
    ids = write_nsys(executions, tmp_path / "both.sqlite")
    assert set(ids[0].call_correlation) & set(ids[1].call_correlation)
    both = read_nsys(tmp_path / "both.sqlite")
    assert [trace.rank for trace in both] == [0, 1]
    assert [trace.pid for trace in both] == [5001, 6001]
    for k, trace in enumerate(both):
        (alone,) = read_nsys_of(executions[k], tmp_path)
        assert len(trace.calls.start_ns) == len(alone.calls.start_ns)
        assert [trace.strings[n] for n in trace.device.name] == [alone.strings[n] for n in alone.device.name]
        assert np.array_equal(trace.device.correlation, alone.device.correlation)
        assert np.array_equal(trace.syncs.record, alone.syncs.record)


def read_nsys_of(execution: Execution, folder: Path) -> tuple[Trace, ...]:
    write_nsys([execution], folder / "alone.sqlite")
    return read_nsys(folder / "alone.sqlite")


def test_processes_without_device_work_are_no_ranks(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys([TRAINING, RANDOM], path)
    edit(
        path,
        *(
            f"DELETE FROM CUPTI_ACTIVITY_KIND_{t} WHERE globalPid >> 24 & 16777215 = {RANDOM.program.pid}"
            for t in ("KERNEL", "MEMCPY", "MEMSET")
        ),
    )
    (trace,) = read_nsys(path)
    assert trace.pid == TRAINING.program.pid
    assert trace.left_out["NVTX ranges of processes without device work"] == len(RANDOM.host)
    assert trace.left_out["API calls of processes without device work"] == len(RANDOM.calls)


def test_without_any_device_work_processes_are_ranks(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys(
        [TRAINING, RANDOM],
        path,
        vary=NsysVariation(without_tables=tuple(f"CUPTI_ACTIVITY_KIND_{t}" for t in ("KERNEL", "MEMCPY", "MEMSET"))),
    )
    traces = read_nsys(path)
    assert [(trace.pid, len(trace.host.start_ns), len(trace.device.start_ns)) for trace in traces] == sorted(
        (e.program.pid, len(e.host), 0) for e in (TRAINING, RANDOM)
    )


def test_threads_of_a_process_with_two_devices(tmp_path: Path) -> None:
    """A thread is in the rank of every device that it launched on; one that launched nothing is in all."""
    path = tmp_path / "run.sqlite"
    execution = run(random_program(5, Shape(threads=3, devices=2, streams=2)))
    (ids,) = write_nsys([execution], path)
    launched = {(execution.calls[op.call].thread, op.device) for op in execution.device}
    silent = {t for t in range(3) if t not in {thread for thread, _ in launched}}
    for device, trace in enumerate(read_nsys(path)):
        tids = {
            tid
            for i, tid in enumerate(ids.call_tid)
            if (execution.calls[i].thread, device) in launched or execution.calls[i].thread in silent
        }
        assert set(trace.calls.tid.tolist()) == tids
        assert set(trace.device.device.tolist()) == {device}
    one = ids.call_tid[0] | 1 << 48 | execution.program.pid << 24
    tid = ids.call_tid[0]
    edit(path, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = NULL WHERE globalTid = {one}")
    assert all(tid in trace.calls.tid for trace in read_nsys(path))


def test_streams_of_two_contexts_get_two_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    read_one(path, TRAINING)
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET contextId = 2 WHERE streamId = 7")
    (trace,) = read_nsys(path)
    assert set(trace.device.stream.tolist()) == {7, 20, 24, 25}
    kernels = trace.device.kind == DeviceKind.KERNEL
    assert set(trace.device.stream[kernels].tolist()) == {24, 25}
    assert trace.warnings == ("stream 7 of context 2 is stream 25 of device 0",)


def test_a_graph_is_one_row_unless_its_nodes_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    execution = run(random_program(2, Shape(ops=120)))
    launches = {op.call for op in execution.device if execution.calls[op.call].call.name == "cudaGraphLaunch"}
    nodes = sum(op.call in launches for op in execution.device)
    assert launches
    trace, _ = read_one(path, execution, graph_rows=True)
    assert sum(trace.strings[n] == "CUDA graph 3" for n in trace.device.name) == len(launches)
    assert len(trace.device.start_ns) == len(execution.device) - nodes + len(launches)
    trace, ids = read_one(path, execution)
    graph = (
        f"SELECT start, end, 0, 1, 0, 7, {ids.call_correlation[min(launches)]}, globalPid, 3, 4 FROM "
        "CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1"
    )
    edit(path, f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE {graph}")
    (trace,) = read_nsys(path)
    assert len(trace.device.start_ns) == len(execution.device)
    assert trace.left_out["rows of CUDA graphs whose nodes are recorded"] == 1


def test_ranges_that_end_on_another_thread_stand_apart(tmp_path: Path) -> None:
    trace, _ = read_one(tmp_path / "run.sqlite", TRAINING, start_end_ranges=True, end_elsewhere=True)
    assert trace.host.apart is not None
    assert np.array_equal(trace.host.apart, trace.host.annotation)
    assert trace.host.apart.any()
    trace, _ = read_one(tmp_path / "run.sqlite", TRAINING, start_end_ranges=True)
    assert trace.host.apart is not None
    assert not trace.host.apart.any()


def test_synchronisation_rows(tmp_path: Path) -> None:
    trace, ids = read_one(tmp_path / "run.sqlite", RANDOM, device_of_syncs="zero", wrong_sync_types=True)
    kinds = {
        "cudaStreamSynchronize": SyncKind.STREAM, "cudaDeviceSynchronize": SyncKind.DEVICE, "cudaEventSynchronize": SyncKind.EVENT,
        "cudaEventQuery": SyncKind.EVENT, "cudaStreamWaitEvent": SyncKind.STREAM_WAIT,
    }  # fmt: skip
    call = {c: RANDOM.calls[i] for i, c in enumerate(ids.call_correlation)}
    s = trace.syncs
    for k, correlation in enumerate(s.correlation.tolist()):
        row = call[correlation]
        assert s.kind[k] == kinds[row.call.name]
        assert s.stream_known[k] == (row.call.name in ("cudaStreamSynchronize", "cudaStreamWaitEvent"))
        assert not s.stream_known[k] or s.stream[k] == row.call.stream
        assert s.record_known[k] == (row.record is not None)
        if row.record is not None:
            assert (s.record[k], s.record_stream[k]) == (
                ids.call_correlation[row.record],
                RANDOM.calls[row.record].call.stream,
            )
    records = [(c, call[c].call.stream) for c in ids.call_correlation if call[c].call.name == "cudaEventRecord"]
    assert sorted(zip(trace.events.correlation.tolist(), trace.events.stream.tolist(), strict=True)) == records
    unready = trace.left_out.get("query that found its event not ready", 0)
    assert len(s.kind) + unready == sum(row.call.name in kinds for row in RANDOM.calls)
    assert [w for w in trace.warnings if "another type" in w]


def test_two_waits_may_share_an_id(tmp_path: Path) -> None:
    """Two streams wait for one record (seen), here with ids that an earlier record of the process has, too."""
    path = tmp_path / "run.sqlite"
    execution = next(e for e in (run(random_program(s, Shape(events=1))) for s in range(99)) if _shared(e))
    trace, ids = read_one(path, execution)
    record = _shared(execution)
    waits = [
        ids.call_correlation[i]
        for i, c in enumerate(execution.calls)
        if c.record == record and c.call.name == "cudaStreamWaitEvent"
    ]
    s = trace.syncs
    assert set(s.record[np.isin(s.correlation, waits)].tolist()) == {ids.call_correlation[record]}
    assert len(waits) > 1


def _shared(execution: Execution) -> int:
    waits = Counter(c.record for c in execution.calls if c.record is not None and c.call.name == "cudaStreamWaitEvent")
    return next((record for record, n in waits.items() if n > 1 and record > 10), 0)


@pytest.mark.parametrize("pair", ["NULL", "0", "4294967295"])
def test_ids_that_mean_none(tmp_path: Path, pair: str) -> None:
    path = tmp_path / "run.sqlite"
    read_one(path, RANDOM)
    edit(path, f"UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET eventSyncId = {pair}, eventId = 4294967295")
    (trace,) = read_nsys(path)
    assert not trace.syncs.record_known.any()
    assert not trace.syncs.event_known.any()
    assert len(trace.events.stream)


def test_a_record_that_the_export_lacks_is_not_taken_for_another(tmp_path: Path) -> None:
    """Its event id would name an older record."""
    path = tmp_path / "run.sqlite"
    trace, _ = read_one(path, RANDOM)
    last = int(trace.syncs.record.max())
    edit(path, f"DELETE FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT WHERE correlationId = {last}")
    (cut,) = read_nsys(path)
    lost = trace.syncs.record == last
    assert lost.any()
    assert np.array_equal(cut.syncs.record_known, trace.syncs.record_known & ~lost)


def test_times_are_of_the_report_where_it_has_no_date(tmp_path: Path) -> None:
    trace, ids = read_one(tmp_path / "run.sqlite", TRAINING, epoch=False)
    assert host_rows(trace) == true_host_rows(TRAINING, ids, REPORT_NS)


def test_a_cut_window_is_a_warning(tmp_path: Path) -> None:
    middle = (TRAINING.start_ns + TRAINING.end_ns) // 2
    trace, _ = read_one(tmp_path / "run.sqlite", TRAINING, window_ns=(middle, TRAINING.end_ns))
    assert len(trace.warnings) == 1
    assert str(REPORT_NS + middle) in trace.warnings[0]
    assert trace.device.start_ns.min() >= EPOCH_NS + middle


@pytest.mark.parametrize(
    ("hosts", "name"), [((), ""), (("node7",), "node7"), (("node7", "node7"), "node7"), (("node7", "node8"), "")]
)
def test_the_name_of_the_host(tmp_path: Path, hosts: tuple[str, ...], name: str) -> None:
    path = tmp_path / "run.sqlite"
    read_one(path, TRAINING)
    edit(
        path,
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value "
        "TEXT)",
    )
    for host in hosts:
        edit(path, f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'Local (CLI)', 'Hostname', 619, '{host}')")
    assert {trace.host_name for trace in read_nsys(path)} == {name}


def test_the_devices_of_the_machine_by_their_cuda_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    read_one(path, TRAINING)
    assert {trace.gpus for trace in read_nsys(path)} == {()}
    edit(
        path,
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, cuDevice INTEGER, computeMajor INTEGER, computeMinor "
        "INTEGER)",
    )
    edit(path, "INSERT INTO TARGET_INFO_GPU VALUES (1, 'NVIDIA H100', 0, 9, 0), (0, NULL, 1, 'x', NULL)")
    assert {trace.gpus for trace in read_nsys(path)} == {(Gpu(0, "NVIDIA H100", (9, 0)), Gpu(1, "", None))}
    assert {trace.device.sm_share.any() for trace in read_nsys(path)} == {False}
    edit(path, "ALTER TABLE TARGET_INFO_GPU ADD COLUMN smCount INTEGER", "UPDATE TARGET_INFO_GPU SET smCount = 160")
    for trace in read_nsys(path):
        kernels = trace.device.kind == DeviceKind.KERNEL
        assert kernels.any() and (trace.device.sm_share[kernels] == 0.5).all()  # grids of 80
        assert not trace.device.sm_share[~kernels].any()


def test_every_table_but_one_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    rows = ("RUNTIME", "SYNCHRONIZATION", "CUDA_EVENT", "MEMCPY", "MEMSET", "KERNEL")
    for table in (
        "StringIds",
        "NVTX_EVENTS",
        "TARGET_INFO_SESSION_START_TIME",
        *(f"CUPTI_ACTIVITY_KIND_{row}" for row in rows),
    ):
        trace, _ = read_one(path, TRAINING, without_tables=(table,))
        assert len(trace.host.start_ns) == (0 if table == "NVTX_EVENTS" else len(TRAINING.host))
        assert len(trace.calls.start_ns) == (0 if "RUNTIME" in table else len(TRAINING.calls))
        assert len(trace.device.start_ns) == sum(
            f"CUPTI_ACTIVITY_KIND_{_table(op.work.kind)}" != table for op in TRAINING.device
        )
        if table == "StringIds":
            assert any("no name" in warning for warning in trace.warnings)
    write_nsys([TRAINING], path)
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master")
            if name != "CUPTI_ACTIVITY_KIND_KERNEL"
        ]
    connection.close()
    edit(path, *(f"DROP TABLE {name}" for name in names))
    (trace,) = read_nsys(path)
    assert len(trace.device.start_ns) == sum(op.work.kind == "kernel" for op in TRAINING.device)


def _table(kind: str) -> str:
    return {"kernel": "KERNEL", "gpu_memcpy": "MEMCPY", "gpu_memset": "MEMSET"}[kind]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_exports(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    plain, _ = read_one(tmp_path / "run.sqlite", TRAINING)
    path = tmp_path / "packed"
    path.write_bytes(pack((tmp_path / "run.sqlite").read_bytes()))
    (trace,) = read_nsys(path)
    assert host_rows(trace) == host_rows(plain)
    assert trace.path == str(path)
    assert looks_like(path) == "nsys"


def test_rows_of_other_tables_are_counted(tmp_path: Path) -> None:
    trace, _ = read_one(tmp_path / "run.sqlite", TRAINING)
    assert trace.left_out == {"NVTX mark": 1, "NVTX metadata": 1, "CUPTI_ACTIVITY_KIND_OVERHEAD": 1, "OSRT_API": 1}


def test_unified_memory_migrations_run_on_no_stream(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    trace, _ = read_one(path, TRAINING)
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 11 WHERE rowid = 1")
    (cut,) = read_nsys(path)
    assert len(cut.device.start_ns) == len(trace.device.start_ns) - 1
    assert cut.left_out["migrations of unified memory"] == 1


@pytest.mark.parametrize(
    ("text", "bare", "seq", "is_operator"),
    [
        ("aten::mul, op_id = 317177", "aten::mul", -1, True),
        ("aten::mul, seq = 45328, op_id = 990726", "aten::mul", 45328, True),
        ("aten::mul, seq = 45328", "aten::mul", 45328, True),
        ("aten::mul, seq = 45328, op_id = 990726, sizes = [[2, 3], []]", "aten::mul", 45328, True),
        ("aten::mul, op_id = 9, sizes = [[2, 3], []], input_op_ids = [(1, 0)]", "aten::mul", -1, True),
        ("aten::add, sizes = [[1]]", "aten::add", -1, True),
        ("aten::mul", "aten::mul", -1, True),
        (f"{ENGINE}: MulBackward0, seq = 3, op_id = 4", f"{ENGINE}: MulBackward0", 3, True),
        ("MulBackward0, seq = 3, op_id = 4", "MulBackward0", 3, True),
        ("record_param_comms, op_id = 4", "record_param_comms", -1, True),
        ("FSDP::pre_forward (encoder.block.14), op_id = 314311", "FSDP::pre_forward (encoder.block.14)", -1, False),
        ("PP:0F1, op_id = 9", "PP:0F1", -1, False),
        ("ProfilerStep#3", "ProfilerStep#3", -1, False),
        ("cudf::sort", "cudf::sort", -1, False),
        ("F 1, seq = later", "F 1, seq = later", -1, False),
        ("a, op_id = 3b", "a, op_id = 3b", -1, False),
        ("", "", -1, False),
    ],
)  # fmt: skip
def test_names_of_emit_nvtx(text: str, bare: str, seq: int, is_operator: bool) -> None:
    assert range_name(text.encode()) == (bare.encode(), seq, is_operator)


PIECES = st.sampled_from(
    ["aten::mul", "F 0", ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ", "12", "[[2]]", "(1)", "x", ", "]
)


@settings(max_examples=settings().max_examples * 8, deadline=None)
@given(text=st.lists(PIECES, max_size=7).map("".join))
def test_reading_many_names_is_reading_each(text: str) -> None:
    assert range_name(text.encode()) == split_name(text.encode())


def test_call_names() -> None:
    assert [call_name(t) for t in (b"cudaLaunchKernel_v7000", b"cuLaunchKernelEx", b"cudaMemcpyAsync_ptsz_v7000", b"my_v2_call")] == [
        b"cudaLaunchKernel", b"cuLaunchKernelEx", b"cudaMemcpyAsync_ptsz", b"my_v2_call",
    ]  # fmt: skip


CELL = (
    st.none()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)
    | st.binary(max_size=3)
)


@given(rows=st.lists(st.tuples(CELL, CELL), max_size=30), gap=st.integers(1, 9))
def test_columns_are_what_a_plain_select_gives(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any]], gap: int
) -> None:
    path = tmp_path_factory.mktemp("cells") / "x.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t(a, b)")
        connection.executemany(
            "INSERT INTO t(rowid, a, b) VALUES (?, ?, ?)", [(gap * k - 20, *row) for k, row in enumerate(rows)]
        )
    connection.close()
    with open_export(path) as export:
        found = export.integers("t", ("a", "b", "absent"))
        texts = {row: text for at, page in export.texts("t", "b") for row, text in zip(at.tolist(), page, strict=True)}
    none = -(1 << 63)
    for name, column in (("a", 0), ("b", 1)):
        assert found[name].tolist() == [row[column] if isinstance(row[column], int) else none for row in rows]
    assert found["absent"].tolist() == [none] * len(rows)
    assert texts == {k: row[1].encode() for k, row in enumerate(rows) if isinstance(row[1], str)}


def test_pages_hold_more_than_one_page(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t(a INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", ((k,) for k in range(40_000)))
    connection.close()
    with open_export(path) as export:
        assert np.array_equal(export.integers("t", ("a",))["a"], np.arange(40_000))
        assert [row for rows, _ in export.texts("t", "a", kind="blob") for row in rows.tolist()] == list(range(40_000))


def _without_processes(path: Path) -> None:
    """As early versions of nsys and other tools write the tables of devices."""
    tables = [f"CUPTI_ACTIVITY_KIND_{table}" for table in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")]
    edit(path, *(f"ALTER TABLE {table} DROP COLUMN globalPid" for table in tables))


def test_rows_without_a_process_are_of_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    whole, _ = read_one(path, TRAINING)
    _without_processes(path)
    (found,) = read_nsys(path)
    assert found.device.start_ns.tolist() == whole.device.start_ns.tolist()
    assert found.syncs.correlation.tolist() == whole.syncs.correlation.tolist()
    assert found.warnings[0].startswith("CUPTI_ACTIVITY_KIND_KERNEL has no column globalPid")


@pytest.mark.parametrize("apart", [True, False])
def test_of_several_processes_it_is_the_one_whose_calls_have_their_ids(tmp_path: Path, apart: bool) -> None:
    """Where both gave out the same ids in a context of the same number, nothing tells which: the rows are left out and
    counted.
    """
    path = tmp_path / "run.sqlite"
    write_nsys([TRAINING, RANDOM], path, schema="3.25", vary=NsysVariation())
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    process = "(SELECT max(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    for table in ("RUNTIME", "SYNCHRONIZATION", *tables) if apart else ():
        own = f"(globalTid & {~0xFFFFFF})" if table == "RUNTIME" else "globalPid"
        edit(
            path,
            f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET correlationId = correlationId + 1000000 WHERE {own} = {process}",
        )
    whole = read_nsys(path)
    edit(
        path,
        *(
            f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET contextId = contextId + (globalPid >> 24) % 1000"
            for table in tables
            if apart
        ),
    )
    _without_processes(path)
    found = read_nsys(path)
    same = [trace.device.start_ns.tolist() for trace in found] == [trace.device.start_ns.tolist() for trace in whole]
    assert same is apart
    assert (found[0].left_out.get("device row without process", 0) > 0) is not apart
