"""Entries that were made while an op asked for gloo's rows. Times are us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Comm
from graphlink.nccl.join import join
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.summary import SideFiles
from tests.build import Host, build_trace

ASKED = (1_000, 9_000, 15_000)  # an op of 500 us each


def joined(made: tuple[float, ...], folder: Path, elements: int = 256) -> SideFiles:
    comm = Comm("allreduce", "Float", 256, 256, pg_name="0", ranks=(0, 1), group_size=2)
    rows = []
    for k, at in enumerate(ASKED):
        rows.append(Host("c10d::allreduce_", at, at + 500, rf_id=2 * k + 2))
        rows.append(Host("gloo:all_reduce", at + 700, at + 1_700, tid=8, annotation=True, rf_id=2 * k + 3, comm=comm))
    trace = build_trace(rows, rank=0, world_size=2)
    linked = link(trace, None, match_hosts(trace, None))
    base_ns = int(trace.host.start_ns[0]) - ASKED[0] * 1_000
    entries = [
        {
            "record_id": k, "pg_id": 0, "process_group": ["0", "default_pg"], "is_p2p": False, "collective_seq_id": 70 + k,
            "profiling_name": "gloo:all_reduce", "time_created_ns": base_ns + round(at * 1_000), "input_sizes": [[elements]],
            "input_dtypes": ["Float"], "output_sizes": [[elements]], "output_dtypes": ["Float"], "state": "scheduled",
        }
        for k, at in enumerate(made)
    ]  # fmt: skip
    file = folder / "flight_recorder_0.json"
    file.write_text(
        json.dumps({"version": "2.10", "pg_config": {"0": {"0": {"desc": "", "ranks": [0, 1]}}}, "entries": entries})
    )
    return join(linked, communication(linked), (read_dump(file),), 0)


def test_an_entry_is_the_row_that_was_asked_for_while_it_was_made_however_late_in_it(tmp_path: Path) -> None:
    found = joined((1_010, 9_490, 15_100), tmp_path)
    assert (found.op.tolist(), found.call.tolist(), found.groups[0].rule) == ([0, 1, 2], [0, 1, 2], "span")


def test_entries_before_and_behind_the_trace_are_left(tmp_path: Path) -> None:
    found = joined((100, 1_010, 9_490, 15_100, 40_000), tmp_path)
    assert found.call.tolist() == [1, 2, 3]
    assert found.groups[0].calls_left == {"before": 1, "after": 1}


@pytest.mark.parametrize("made", [(1_010, 1_400, 9_100, 15_100), (1_600, 9_600, 15_100)])
def test_two_in_one_op_and_entries_between_ops_tell_of_another_clock(made: tuple[float, ...], tmp_path: Path) -> None:
    assert joined(made, tmp_path).groups[0].rule != "span"


def test_an_entry_of_another_size_is_none_of_these(tmp_path: Path) -> None:
    assert not len(joined((1_010, 9_490, 15_100), tmp_path, elements=255).op)
