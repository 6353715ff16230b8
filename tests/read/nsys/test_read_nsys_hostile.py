"""Damaged, cut and hostile exports: an InputError that says where, or a warning; never anything else, never much
memory.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from graphlink.errors import InputError
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Trace
from graphlink.read.nsys.report import read_nsys
from tests.simulator import Training, run, training_program
from tests.simulator.nsys import NsysVariation, write_nsys

TRAINING = run(training_program(1, Training(steps=2, layers=2)))
KERNEL, RUNTIME, NVTX, SYNC = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
)
TABLES = (KERNEL, RUNTIME, NVTX, SYNC, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")

DESCRIBING = (
    "StringIds", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME", "ENUM_NSYS_EVENT_TYPE", "ENUM_CUDA_MEMCPY_OPER", "PROCESSES",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES", "NVTX_PAYLOAD_SCHEMAS",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_nsys([TRAINING], tmp_path / "run.sqlite", vary=NsysVariation(nccl=True))
    return tmp_path / "run.sqlite"


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def said(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_nsys(path)
    text = caught.value.text()
    assert len(text.splitlines()) <= 5
    assert text.startswith(str(path))
    return text


def check(trace: Trace) -> None:
    """What later stages count on."""
    link(trace, None, match_hosts(trace, None))
    assert np.all(trace.host.end_ns >= trace.host.start_ns)
    assert np.all(trace.device.end_ns >= trace.device.start_ns)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("value", ["'soon'", "NULL", "1.5", "x'00'", "9223372036854775807", "-9223372036854775807"])
def test_a_time_that_is_none_is_named(path: Path, table: str, value: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        last, sql = connection.execute(
            f"SELECT max(rowid), (SELECT sql FROM sqlite_master WHERE name = '{table}') FROM {table}"
        ).fetchone()
    connection.close()
    edit(
        path,
        "DROP TABLE IF EXISTS kept",
        f"ALTER TABLE {table} RENAME TO kept",
        sql.replace("INTEGER", ""),
        f"INSERT INTO {table} SELECT * FROM kept",
    )
    edit(path, f"UPDATE {table} SET start = {value} WHERE rowid = {last}")
    text = said(path)
    assert f"row {last} of {table}" in text
    assert "start" in text


def test_an_open_end_is_a_range_that_did_not_end(path: Path) -> None:
    edit(
        path,
        *(
            f"UPDATE {NVTX} SET end = {end} WHERE rowid = (SELECT max(rowid) - {k} FROM {NVTX})"
            for k, end in enumerate(("NULL", "'later'"))
        ),
    )
    (trace,) = read_nsys(path)
    assert trace.left_out["NVTX range that did not end in the recording"] == 2


def test_an_end_before_its_start_is_no_length(path: Path) -> None:
    edit(path, *(f"UPDATE {table} SET end = start - 5 WHERE rowid = 1" for table in TABLES[:3]))
    (trace,) = read_nsys(path)
    assert trace.left_out["end before start taken as no length"] == 3
    check(trace)


def test_negative_times_are_times(path: Path) -> None:
    """Of what ran before the report began."""
    (before,) = read_nsys(path)
    edit(path, *(f"UPDATE {table} SET start = start - 3000000000, end = end - 3000000000" for table in TABLES))
    (trace,) = read_nsys(path)
    assert np.array_equal(trace.device.start_ns, before.device.start_ns - 3_000_000_000)


def test_ranges_before_the_report_began_are_told(path: Path) -> None:
    assert not any("time 0" in text for text in read_nsys(path)[0].warnings)
    edit(path, f"UPDATE {NVTX} SET start = -start - 5 WHERE rowid IN (6, 8)")
    (trace,) = read_nsys(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        (start,) = connection.execute(f"SELECT start FROM {NVTX} WHERE rowid = 6").fetchone()
    connection.close()
    assert (
        f"2 rows of {NVTX} with a start before the report's time 0, the first row 6 of {NVTX}: {start} ns"
        in trace.warnings
    )


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("start", [-(1 << 60), 1 << 60])
def test_a_row_days_away_is_named(path: Path, table: str, start: int) -> None:
    edit(path, f"UPDATE {table} SET start = {start}, end = {start + 1} WHERE rowid = 2")
    text = said(path)
    assert "days apart" in text
    assert f"row 2 of {table}" in text


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "value", ["'text'", "NULL", "-5", "1.25", "9223372036854775807", "-9223372036854775808", "x'ff'"]
)
def test_any_other_value_is_read_or_counted(path: Path, table: str, value: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [
            row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] not in ("start", "end")
        ]
        connection.executescript(
            ";".join(
                f"UPDATE {table} SET {c} = {value} WHERE rowid % {len(columns)} = {k}" for k, c in enumerate(columns)
            )
        )
    connection.close()
    for trace in read_nsys(path):
        check(trace)


@pytest.mark.parametrize("table", DESCRIBING)
@pytest.mark.parametrize("value", ["'text'", "NULL", "-5", "1e300", "x'ff00'", "9223372036854775807"])
def test_nonsense_in_tables_that_describe_others(path: Path, table: str, value: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5] == 0]
        for column in columns:
            connection.execute(f"UPDATE {table} SET {column} = {value}")
    connection.close()
    for trace in read_nsys(path):
        check(trace)


@pytest.mark.parametrize("times", [90, pytest.param(250, marks=pytest.mark.long)])
def test_damage_anywhere(path: Path, tmp_path: Path, times: int) -> None:
    """Bytes overwritten, zeroed and cut: what is read holds together, what is not is said."""
    good = path.read_bytes()
    rng = random.Random(5)
    broken = tmp_path / "broken.sqlite"
    failed = 0
    for k in range(times):
        data = bytearray(good)
        at, length = rng.randrange(len(data)), rng.choice([1, 4, 60, 5000])
        if k % 3 == 0:
            data = data[:at]
        elif k % 3 == 1:
            data[at : at + length] = bytes(length)
        else:
            data[at : at + length] = rng.randbytes(length)
        broken.write_bytes(data)
        try:
            for trace in read_nsys(broken):
                check(trace)
        except InputError as problem:
            failed += 1
            assert str(broken) in problem.text()
            assert len(problem.text().splitlines()) <= 5
    assert failed >= times // 3  # all that were cut, at the least


@pytest.mark.parametrize("keep", [0, 1, 15, 16, 99, 100, 4095, 4096, 10_000])
def test_cut_files(path: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(path.read_bytes()[:keep])
    text = said(cut)
    assert "empty" in text if keep == 0 else "cut off" in text or "no sqlite" in text


def test_a_report_of_nsys_is_no_export(tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVIDIA" + bytes(4000))
    assert "nsys export --type sqlite REPORT" in said(path)


def test_rows_left_in_a_write_ahead_log_are_told_of(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"some rows")
    before = sorted(path.parent.iterdir())
    (trace,) = read_nsys(path)
    assert any("run.sqlite-wal" in warning for warning in trace.warnings)
    assert sorted(path.parent.iterdir()) == before


def test_nothing_is_written_beside_or_into_an_export(path: Path) -> None:
    edit(path, "PRAGMA journal_mode = WAL")
    content, listing = path.read_bytes(), sorted(path.parent.iterdir())
    path.chmod(0o444)
    read_nsys(path)
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == (content, listing)


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE VIEW {KERNEL} AS SELECT 1 AS start, 2 AS end",
        f"CREATE VIEW {KERNEL} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x AS start, x AS "
        "end FROM n",
        f"CREATE TABLE {KERNEL}(a)",
        f"CREATE TABLE {KERNEL}(start PRIMARY KEY, end) WITHOUT ROWID",
        f"CREATE TABLE {KERNEL}(start, end, rowid, _rowid_, oid)",
        f"CREATE TABLE {KERNEL}(start, end AS (zeroblob(1000000000)), deviceId)",
        f'CREATE TABLE {KERNEL}("start"" FROM sqlite_master; --" INTEGER, "end" TEXT)',
        'CREATE TABLE "x""; DROP TABLE StringIds; --"(start, "a""b")',
    ],
)
def test_tables_that_are_something_else(path: Path, statement: str) -> None:
    if KERNEL in statement:
        edit(path, f"DROP TABLE {KERNEL}")
    edit(path, statement)
    try:
        for trace in read_nsys(path):
            check(trace)
    except InputError as problem:
        assert str(path) in problem.text()


def test_names_that_are_no_text_or_very_long(path: Path) -> None:
    edit(
        path, f"UPDATE {NVTX} SET text = CAST(x'ff41fe' AS TEXT) WHERE rowid = 3",
        f"UPDATE {NVTX} SET text = x'00', textId = NULL WHERE rowid = 4",
        f"UPDATE {NVTX} SET text = CAST(zeroblob(30000000) AS TEXT) WHERE rowid = 5",
        "UPDATE StringIds SET value = CAST(zeroblob(30000000) AS TEXT) WHERE id = 101",
    )  # fmt: skip
    (trace,) = read_nsys(path)
    assert "\ufffdA\ufffd" in trace.strings
    assert max(map(len, trace.strings)) <= 1 << 16
    assert any("no name" in warning for warning in trace.warnings)
    check(trace)


def many_ranges(path: Path, rows: int, shape: str) -> None:
    """Ranges of one name on one thread: nested in each other, after each other, or each crossing the one before."""
    thread = 1 << 48 | TRAINING.program.pid << 24 | 77
    with closing(sqlite3.connect(path)) as connection, connection:
        start = connection.execute(f"SELECT min(start) FROM {NVTX}").fetchone()[0]
        end = {"nested": f"{start + 3 * rows} - x", "row": f"{start} + 2 * x + 1", "crossing": f"{start} + 2 * x + 5"}[
            shape
        ]
        connection.execute(
            f"WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n WHERE x < {rows - 1}) "
            f"INSERT INTO {NVTX}(start, end, eventType, text, globalTid, domainId) "
            f"SELECT {start} + {'x' if shape == 'nested' else '2 * x'}, {end}, 59, 'the same', {thread}, 0 FROM n"
        )
    connection.close()


MEASURED = """
import sys, time
from graphlink.read.nsys.report import read_nsys
begun = time.process_time()
(trace,) = read_nsys(sys.argv[1])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss would begin with that of the tests
print(len(trace.host.start_ns), time.process_time() - begun, int(peak.split()[1]) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc as on Linux")
@pytest.mark.long
@pytest.mark.parametrize("shape", ["row", "crossing"])
def test_a_million_ranges_of_one_name(path: Path, shape: str) -> None:
    many_ranges(path, 1_000_000, shape)
    ran = subprocess.run([sys.executable, "-c", MEASURED, path], capture_output=True, text=True, check=True)
    rows, seconds, peak_mb = ran.stdout.split()
    assert int(rows) == 1_000_000 + len(TRAINING.host) + 5
    assert float(seconds) < 30  # some 4 on a slow machine
    assert int(peak_mb) < 450


@pytest.mark.parametrize("shape", ["nested", "row", "crossing"])
def test_many_ranges_go_on_to_the_next_stage(path: Path, shape: str) -> None:
    many_ranges(path, 20_000, shape)
    (trace,) = read_nsys(path)
    check(trace)


def test_payloads_of_any_bytes(path: Path) -> None:
    edit(path, f"UPDATE {NVTX} SET binaryData = randomblob(abs(random()) % 90) WHERE rowid % 2")
    (trace,) = read_nsys(path)
    assert trace.left_out["NVTX payload of another kind than NCCL's"] > 10
    check(trace)


def test_a_schema_described_in_two_ways_is_not_used(path: Path) -> None:
    (before,) = read_nsys(path)
    assert any(comm.in_nelems for comm in before.device.comm.comms)
    edit(path, "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, 16777221, 1, 22, 'Message size [bytes]', 16)")
    (trace,) = read_nsys(path)
    assert any("two ways" in warning for warning in trace.warnings)
    assert not any(comm.in_nelems for comm in trace.device.comm.comms)
