"""Changes of recordings: each does what it says to the rows it names, and nothing to others."""

from __future__ import annotations

import copy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphlink.read.kineto import read_kineto
from tests.simulator import (
    Training,
    changes,
    kineto_document,
    random_program,
    run,
    training_program,
    write_json,
    write_nsys,
)
from tests.simulator.changes import Document

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_event"}
Row = dict[str, Any]


@pytest.fixture
def document() -> Document:
    return kineto_document(run(training_program(1, Training(steps=2))), dialect="2026")


def of(document: Document, *categories: str) -> list[Row]:
    return [row for row in document["traceEvents"] if row.get("cat") in categories]


def test_a_document_stays_as_it_was(document: Document) -> None:
    before = copy.deepcopy(document)
    changes.device_clock(document, 3)
    changes.renumbered(document)
    changes.shuffled(document)
    changes.rounded(document)
    changes.as_2021(document)
    changes.as_2023(document)
    changes.on_device_of(document, "mtia")
    assert document == before


@pytest.mark.parametrize("since", [None, "middle"])
def test_rows_of_the_device_move_and_no_others(document: Document, since: str | None) -> None:
    since_us = changes.middle_us(document) if since else float("-inf")
    moved = changes.device_clock(document, 8, since_us).document
    count = 0
    for old, new in zip(document["traceEvents"], moved["traceEvents"], strict=True):
        mine = old["ph"] == "X" and old.get("cat") in DEVICE and old["ts"] >= since_us
        mine |= old["ph"] == "f" and old["cat"] == "ac2g" and old["pid"] == 0 and old["ts"] >= since_us
        assert new["ts"] - old["ts"] == pytest.approx(8 if mine else 0, abs=1e-3)
        count += mine
    assert 20 < count < len(moved["traceEvents"]) / 2
    assert (count < len(of(document, *DEVICE))) == (since is not None)


def test_new_numbers_are_given_back_by_the_old_ones(document: Document) -> None:
    changed = changes.renumbered(document)
    numbers = changed.numbers
    back = changes.Numbers(
        *({new: old for old, new in column.items()} for column in (numbers.tid, numbers.stream, numbers.correlation))
    )
    calls, renamed = of(document, "cuda_runtime", "cuda_driver"), of(changed.document, "cuda_runtime", "cuda_driver")
    assert all(old["tid"] != new["tid"] for old, new in zip(calls, renamed, strict=True))
    assert [back.tid[row["tid"]] for row in renamed] == [row["tid"] for row in calls]
    assert [back.correlation[row["args"]["correlation"]] for row in renamed] == [
        row["args"]["correlation"] for row in calls
    ]
    waits = zip(of(document, "cuda_sync"), of(changed.document, "cuda_sync"), strict=True)
    known = [
        (old["args"], new["args"]) for old, new in waits if old["args"].get("wait_on_cuda_event_record_corr_id", -1) > 0
    ]
    assert known
    for old, new in known:
        assert back.correlation[new["wait_on_cuda_event_record_corr_id"]] == old["wait_on_cuda_event_record_corr_id"]
        assert back.stream[new["wait_on_stream"]] == old["wait_on_stream"]
    for table in (numbers.tid, numbers.stream, numbers.correlation):
        assert len(set(table.values())) == len(table) > 1


def test_flows_follow_the_rows_that_were_renumbered(document: Document) -> None:
    changed = changes.renumbered(document).document
    rows = {(row["pid"], row["tid"], row["ts"]) for row in changed["traceEvents"] if row["ph"] == "X"}
    flows = [row for row in changed["traceEvents"] if row["ph"] in ("s", "f")]
    assert flows
    assert all((row["pid"], row["tid"], row["ts"]) in rows for row in flows)


def test_rounding_keeps_ops_inside_each_other(document: Document) -> None:
    rounded = changes.rounded(document).document
    assert all(isinstance(row["ts"], int) and isinstance(row.get("dur", 0), int) for row in rounded["traceEvents"])
    assert changes.in_whole_us(rounded)
    assert not changes.in_whole_us(document)
    before, after = of(document, "cpu_op"), of(rounded, "cpu_op")
    for i, j in zip(range(len(before) - 1), range(1, len(before)), strict=True):
        if (
            before[i]["tid"] == before[j]["tid"]
            and before[j]["ts"] + before[j]["dur"] <= before[i]["ts"] + before[i]["dur"]
        ):
            assert after[j]["ts"] + after[j]["dur"] <= after[i]["ts"] + after[i]["dur"]


def test_a_step_is_cut_out_with_the_device_rows_of_its_calls(document: Document) -> None:
    assert changes.step_numbers(document) == [1, 2]
    cut = changes.only_step(document, 2).document
    assert [row["name"] for row in of(cut, "user_annotation") if row["name"].startswith("ProfilerStep")] == [
        "ProfilerStep#2"
    ]
    launched = {row["args"]["correlation"] for row in of(cut, "cuda_runtime", "cuda_driver")}
    assert {row["args"]["correlation"] for row in of(cut, "kernel", "gpu_memcpy")} <= launched
    parts = [len(of(changes.only_step(document, step).document, "kernel")) for step in (1, 2)]
    assert sum(parts) == len(of(document, "kernel"))


@pytest.mark.parametrize("dialect", ["2021", "2023"])
def test_a_dialect_is_what_the_writer_of_then_writes(tmp_path: Path, dialect: str) -> None:
    """Beside ranges, which were ops in 2021: the writer of tests keeps them apart."""
    execution = run(random_program(4))
    change = {"2021": changes.as_2021, "2023": changes.as_2023}[dialect]
    write_json(change(kineto_document(execution, dialect="2024")).document, tmp_path / "changed.json")
    write_json(kineto_document(execution, dialect=dialect), tmp_path / "written.json")
    changed, written = read_kineto(tmp_path / "changed.json"), read_kineto(tmp_path / "written.json")
    assert changed.resolution_ns == written.resolution_ns == 1000
    for ours, theirs in ((changed.calls, written.calls), (changed.device, written.device)):
        assert np.array_equal(ours.start_ns, theirs.start_ns)
        assert np.array_equal(ours.end_ns, theirs.end_ns)
        assert np.array_equal(ours.correlation, theirs.correlation)
    assert np.array_equal(changed.host.start_ns, written.host.start_ns)
    assert np.array_equal(np.sort(changed.host.end_ns), np.sort(written.host.end_ns))
    assert len(changed.syncs.kind) == len(written.syncs.kind)
    assert changed.host.annotation.any()  # in 2021 told from ops by their names


@pytest.mark.parametrize("maker", changes.MAKERS)
def test_rows_of_another_device_keep_times_and_correlations(document: Document, maker: str) -> None:
    theirs = changes.on_device_of(document, maker).document
    kinds, _ = changes.MAKERS[maker]
    old, new = of(document, *kinds), of(theirs, *kinds.values())
    assert [(row["ts"], row["dur"], row["args"]["correlation"]) for row in old] == [
        (row["ts"], row["dur"], row["args"]["correlation"]) for row in new
    ]
    assert not of(theirs, "cuda_sync", "cuda_runtime")


def times(path: Path, table: str) -> list[tuple[int, int, int]]:
    with closing(sqlite3.connect(path)) as data:
        return data.execute(
            f'SELECT start, "end", correlationId FROM CUPTI_ACTIVITY_KIND_{table} ORDER BY start, "end"'
        ).fetchall()


def test_device_rows_of_an_export_move(tmp_path: Path) -> None:
    given, out = tmp_path / "run.sqlite", tmp_path / "out.sqlite"
    write_nsys([run(training_program(1))], given)
    since = changes.nsys_middle_ns(given)
    changes.nsys_device_clock(given, out, 12_000, since)
    assert times(out, "KERNEL") == [
        (a + 12_000 * (a >= since), b + 12_000 * (a >= since), c) for a, b, c in times(given, "KERNEL")
    ]
    assert times(out, "RUNTIME") == times(given, "RUNTIME")


def test_an_export_is_renumbered_alike_in_all_tables(tmp_path: Path) -> None:
    given, out = tmp_path / "run.sqlite", tmp_path / "out.sqlite"
    write_nsys([run(training_program(1))], given)
    new = changes.nsys_renumbered(given, out).correlation
    for table in ("KERNEL", "RUNTIME", "SYNCHRONIZATION"):
        assert times(out, table) == [(a, b, new[c]) for a, b, c in times(given, table)]
    with closing(sqlite3.connect(out)) as data:
        starts = [start for (start,) in data.execute("SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY rowid")]
    assert starts != sorted(starts)
