from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.cases import CASES, Case
from tests.doctor.diagnosed import diagnosed
from tests.doctor.recordings import HOST, Document, rows, write_run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recording_that_lacks_one_thing_has_its_findings_and_no_others(case: Case, tmp_path: Path) -> None:
    assert set(diagnosed(write_run(tmp_path / "run", **case.how))) == case.findings


def test_overhead_of_several_threads_in_the_recording_counts_once(tmp_path: Path) -> None:
    def overlapping(document: Document) -> None:
        (row,) = rows(document, "overhead")
        row["ts"] = min(one["ts"] for one in rows(document, *HOST))
        document["traceEvents"] += [
            row | {"ts": row["ts"] + 500, "dur": 1000},
            row | {"ts": row["ts"] + 600, "dur": 100},
        ]
        row["dur"] = 1000

    found = diagnosed(write_run(tmp_path / "run", kineto=overlapping, ranks=(0,)))
    assert found["profiler-overhead"].figures == {"overhead_ns": 1_500_000, "rows": 3}


def test_graphs_of_several_streams_whose_order_is_not_recorded(tmp_path: Path) -> None:
    def in_a_graph(document: Document) -> None:
        first, second = rows(document, "kernel")[:2]
        second["args"] |= {"correlation": first["args"]["correlation"], "stream": 99}
        second["tid"] = 99
        for call in rows(document, "cuda_runtime"):
            if call["args"]["correlation"] == first["args"]["correlation"]:
                call["name"] = "cudaGraphLaunch"

    found = diagnosed(write_run(tmp_path / "run", kineto=in_a_graph, ranks=(0,)))
    assert found["graph-order"].figures["ops"] == 2
