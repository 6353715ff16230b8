"""Real exports against plain queries of them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from graphlink.model import SyncKind
from graphlink.read.heads import looks_like
from graphlink.read.nsys.report import read_nsys

FOLDER = Path(__file__).parents[4] / "shared" / "traces" / "nsys"
H100, BARE = FOLDER / "h100_2gpu_1s.sqlite", FOLDER / "no_nvtx_table.sqlite"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"public traces are not at {FOLDER}")


@pytest.fixture
def rows() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"{H100.as_uri()}?mode=ro&immutable=1", uri=True)
    yield connection
    connection.close()


def test_two_processes_are_two_ranks_and_nothing_is_lost(rows: sqlite3.Connection) -> None:
    traces = read_nsys(H100)
    assert [(t.rank, t.pid, set(t.device.device.tolist()), set(t.device.stream.tolist())) for t in traces] == [
        (0, 111, {0}, {7}), (1, 112, {1}, {15}),
    ]  # fmt: skip
    for trace in traces:
        kernels = [trace.strings[n] for n in trace.device.name[trace.device.kind == 0]]
        query = (
            "SELECT value, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName WHERE "
            "deviceId = ? GROUP BY 1"
        )
        assert Counter(kernels) == dict(rows.execute(query, (trace.rank,)))
        assert len(kernels) == 1721
        assert len(trace.calls.start_ns) == 2898
        assert len(trace.host.start_ns) == 8391
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    counts = [rows.execute(f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}").fetchone()[0] for table in tables]
    assert sum(len(t.device.start_ns) for t in traces) == sum(counts) == 3442 + 904 + 22


def test_times_are_absolute(rows: sqlite3.Connection) -> None:
    (epoch_ns,) = rows.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    starts = sorted(ns - epoch_ns for trace in read_nsys(H100) for ns in trace.device.start_ns.tolist())
    union = " UNION ALL ".join(
        f"SELECT start FROM CUPTI_ACTIVITY_KIND_{table}" for table in ("KERNEL", "MEMCPY", "MEMSET")
    )
    assert starts == [ns for (ns,) in rows.execute(f"SELECT start FROM ({union}) ORDER BY 1")]


def test_operators_have_their_bare_names() -> None:
    trace = read_nsys(H100)[0]
    names = Counter(trace.strings[n] for n in trace.host.name)
    assert names["aten::as_strided"] == 1100
    assert not any("op_id" in name for name in names)
    users = {trace.strings[n].split(" ")[0] for n in trace.host.name[trace.host.annotation]}
    assert users == {"FSDP::pre_forward", "FSDP::post_forward"}


def test_synchronisation_rows_have_the_device_of_their_context() -> None:
    """The export says device 0 on all of them."""
    for trace in read_nsys(H100):
        assert set(trace.syncs.device.tolist()) == {trace.rank}
        assert Counter(trace.syncs.kind.tolist()) == {SyncKind.STREAM_WAIT: 118, SyncKind.STREAM: 4}
        assert not trace.syncs.record_known.any()
        assert trace.syncs.event_known.sum() == 118


def test_a_cut_export_says_so() -> None:
    for trace in read_nsys(H100):
        assert ["155330248986-156330248986" in warning for warning in trace.warnings] == [True]


def test_an_export_without_ranges() -> None:
    (trace,) = read_nsys(BARE)
    assert (len(trace.host.start_ns), len(trace.calls.start_ns), len(trace.device.start_ns)) == (0, 9, 3)
    assert trace.syncs.kind.tolist() == [SyncKind.STREAM]  # its type says that a stream waits for an event
    assert trace.left_out == {"CUPTI_ACTIVITY_KIND_OVERHEAD": 6, "DIAGNOSTIC_EVENT": 15, "PROFILER_OVERHEAD": 25}
    assert np.all(trace.device.end_ns > trace.device.start_ns)
    assert looks_like(BARE) == "nsys"
