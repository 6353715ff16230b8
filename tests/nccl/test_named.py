"""Process groups of gloo's rows by when a Flight Recorder's entries were made. Times are us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Comm, ProcessGroup
from graphlink.nccl.named import group_names
from graphlink.nccl.read.read import read_dump
from tests.build import Host, build_trace

GROUPS = tuple(ProcessGroup(name, size=2, ranks=(0, 1)) for name in ("0", "1", "2"))
ASKED = ((1_000, 1), (9_000, 1), (9_200, 2))  # an op of 500 us each, on these threads: the last two overlap


def named(made: dict[float, str], folder: Path, elements: int = 256) -> dict[int, str]:
    rows = []
    for k, (at, tid) in enumerate(ASKED):
        comm = Comm("gloo:all_reduce", "Float", 256, 256)
        rows.append(Host("c10d::allreduce_", at, at + 500, tid=tid, rf_id=2 * k + 2))
        rows.append(
            Host("gloo:all_reduce", at + 700, at + 1_700, tid=8 + k, annotation=True, rf_id=2 * k + 3, comm=comm)
        )
    rows.sort(key=lambda row: row.start)
    trace = build_trace(rows, rank=0, world_size=2, process_groups=GROUPS)
    linked = link(trace, None, match_hosts(trace, None))
    base_ns = int(trace.host.start_ns[0]) - 1_000_000
    entries = [
        {
            "record_id": k, "pg_id": 0, "process_group": [name, "undefined"], "is_p2p": False, "collective_seq_id": 70 + k,
            "profiling_name": "gloo:all_reduce", "time_created_ns": base_ns + round(at * 1_000), "input_sizes": [[elements]],
            "input_dtypes": ["Float"], "output_sizes": [[elements]], "output_dtypes": ["Float"], "state": "scheduled",
        }
        for k, (at, name) in enumerate(made.items())
    ]  # fmt: skip
    file = folder / "flight_recorder_0.json"
    file.write_text(json.dumps({"version": "2.10", "pg_config": {"": {}}, "entries": entries}))
    return group_names(linked, (read_dump(file),))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({1_010: "1", 9_100: "2", 9_600: "0"}, {1: "1", 4: "2", 5: "0"}),
        ({1_010: "1", 9_300: "2"}, {1: "1"}),  # made while two ops asked
        ({1_010: "1", 1_020: "2"}, {}),  # two in one op
        ({900: "1", 1_600: "2"}, {}),  # outside of ops
    ],
)
def test_an_entry_names_the_group_of_the_row_that_was_asked_for_meanwhile(
    made: dict[float, str], expected: dict[int, str], tmp_path: Path
) -> None:
    assert named(made, tmp_path) == expected


def test_an_entry_of_another_size_names_none(tmp_path: Path) -> None:
    assert named({1_010: "1"}, tmp_path, elements=255) == {}
