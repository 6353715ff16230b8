"""Exports whose tables are named otherwise, are not there, or whose rows stand in another order."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from graphlink.model import Trace
from graphlink.read.nsys.report import read_nsys
from graphlink.run.job import Options, prepare
from graphlink.run.options import Inputs
from tests.replay.test_what_if import program_shape
from tests.simulator import random_program, run
from tests.simulator.nsys import write_nsys

TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS")


@pytest.fixture
def export(tmp_path: Path) -> Path:
    write_nsys([run(random_program(3, program_shape(3)))], tmp_path / "run.sqlite")
    return tmp_path / "run.sqlite"


def change(path: Path, what: Callable[[sqlite3.Connection], object]) -> None:
    with closing(sqlite3.connect(path)) as data, data:
        what(data)


def same(a: Trace, b: Trace) -> bool:
    tables = ((getattr(a, name), getattr(b, name)) for name in ("host", "calls", "device"))
    return all(np.array_equal(x.start_ns, y.start_ns) and np.array_equal(x.end_ns, y.end_ns) for x, y in tables)


def test_a_table_may_have_a_version_in_its_name(export: Path) -> None:
    (before,) = read_nsys(export)
    change(export, lambda data: data.execute("ALTER TABLE NVTX_EVENTS RENAME TO NVTX_EVENTS_V2"))
    (after,) = read_nsys(export)
    assert len(before.host.start_ns)
    assert same(before, after)
    assert before.left_out == after.left_out


def test_the_order_of_rows_says_nothing(export: Path) -> None:
    (before,) = read_nsys(export)

    def shuffle(data: sqlite3.Connection) -> None:
        for table in TABLES:
            rows = data.execute(f"SELECT * FROM {table}").fetchall()
            random.Random(1).shuffle(rows)
            data.execute(f"DELETE FROM {table}")
            if rows:
                data.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)

    change(export, shuffle)
    assert same(before, read_nsys(export)[0])


def test_waits_of_an_export_without_ranges_are_kept_where_a_call_follows(export: Path) -> None:
    before = prepare(Inputs(nsys=export), Options()).built.sync
    change(export, lambda data: data.execute("DROP TABLE NVTX_EVENTS"))
    after = prepare(Inputs(nsys=export), Options()).built.sync
    assert before.kept
    assert after.kept
    assert after.found == after.kept + sum(after.rejected.values())
