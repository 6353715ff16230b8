from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graphlink.doctor.diagnose import Given, examine, findings_of
from graphlink.doctor.records import Told
from graphlink.engine.engines import RunsOn
from graphlink.run.discover.find import ranks_of
from tests.simulator import NsysVariation, Training, run, training_program, write_nsys


def exported(folder: Path, **variation: Any) -> Path:
    runs = [run(training_program(1, Training(steps=2, layers=2, ranks=2, rank=rank))) for rank in (0, 1)]
    path = folder / "run.sqlite"
    write_nsys(runs, path, schema="3.25", vary=NsysVariation(nccl=True, **variation))
    return path


def found_in(path: Path, folder: Path) -> dict[str, Told]:
    inputs = tuple(ranks_of([path], None, folder, RunsOn(1)))
    return {f.name: f for f in findings_of([examine(one) for one in inputs], Given(inputs))}


@pytest.mark.parametrize(
    ("variation", "findings"),
    [
        ({}, set()),
        ({"syncs": False}, {"nsys-no-sync"}),
        ({"records": "none"}, {"nsys-no-event-records"}),
        ({"epoch": False}, {"nsys-no-session-time"}),
        ({"wrong_sync_types": True}, {"nsys-odd-rows"}),
        ({"without_tables": ("NVTX_EVENTS",)}, {"nsys-no-nvtx", "nsys-no-blobs", "nsys-rank-by-order", "comm-unknown"}),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
def test_an_export_that_lacks_one_thing_has_its_findings(
    variation: dict[str, Any], findings: set[str], tmp_path: Path
) -> None:
    numbered = {"no-seq"} - ({"no-seq"} if "comm-unknown" in findings else set())  # nsys never has sequence numbers
    assert set(found_in(exported(tmp_path, **variation), tmp_path)) == findings | numbered


def test_payloads_are_told_by_the_data_not_by_what_the_export_says(tmp_path: Path) -> None:
    path = exported(tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
    found = found_in(path, tmp_path)
    assert {"nsys-no-blobs", "comm-unknown", "nsys-rank-by-order"} <= set(found)
    assert "--include-blobs=true" in found["nsys-no-blobs"].record


def test_a_cut_export_is_told_with_what_lost_its_launch(tmp_path: Path) -> None:
    path = exported(tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        (middle,) = database.execute("SELECT avg(start) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < ?", (middle,))
        database.execute("INSERT INTO META_DATA_EXPORT VALUES ('DERIVED_WINDOW_NS', '5-9')")
    found = found_in(path, tmp_path)
    assert found["nsys-cut"].figures["orphans"] == found["launches-before-window"].figures["orphans"] > 0


def test_rows_of_whole_graphs_are_counted(tmp_path: Path) -> None:
    from tests.simulator import Shape, random_program

    program = run(random_program(3, Shape(graphs=True, ops=80)))
    path = tmp_path / "run.sqlite"
    write_nsys([program], path, schema="3.25", vary=NsysVariation(graph_rows=True))
    with closing(sqlite3.connect(path)) as database, database:
        (rows,) = database.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE").fetchone()
    assert found_in(path, tmp_path)["nsys-graphs-whole"].figures == {"ops": rows}
    assert rows > 0
