"""Host-side (gloo) rows of a real recording, with a Flight Recorder's file that says of each when it was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.nccl.join import join
from graphlink.nccl.ops import op_side
from graphlink.nccl.read.read import read_dump
from graphlink.read.columns import Strings
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "pipelining-cpu" / "1f1b"


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")
@pytest.mark.parametrize("rank", [0, 2])
def test_entries_meet_the_rows_that_they_are(rank: int, tmp_path: Path) -> None:
    trace, et = read_kineto(TRACES / f"kineto_{rank}.json.gz"), read_host(TRACES / f"et_{rank}.json.gz")
    linked = link(trace, et, match_hosts(trace, et))
    comm, codes = communication(linked), Strings()
    ops, side = comm.ops, op_side(linked, comm, rank, codes)
    words = list(codes)
    assert ops.on_host.all() and len(ops.row) > 20
    entries = []
    for k, start_ns in enumerate(ops.start_ns.tolist()):
        function, peer = words[side.function[k]], int(ops.peer[k])
        arrow = "->" if function == "send" else "<-"
        entries.append({
            "record_id": k, "pg_id": 0, "process_group": ("0", "default_pg"), "is_p2p": True, "p2p_seq_id": 100 + k,
            "profiling_name": f"gloo:{function} "
                              f"{rank}{arrow}{peer}", "time_created_ns": start_ns - 9_000 - 1_000 * (k % 3),
            "input_sizes": [[int(side.count[k])]], "input_dtypes": ["Float"], "output_sizes": [[int(side.count[k])]],
            "output_dtypes": ["Float"], "state": "completed",
        })  # fmt: skip
    config = {str(rank): {"0": {"desc": "default_pg", "ranks": [0, 1, 2, 3]}}}
    file = tmp_path / f"nccl_trace_rank_{rank}.json"
    file.write_text(json.dumps({"version": "2.10", "pg_config": config, "entries": entries}))
    joined = join(linked, comm, (read_dump(file),), rank)
    assert joined.op.tolist() == joined.call.tolist() == list(range(len(entries)))
    (clock,) = joined.clocks
    assert clock.offset_ns is not None and 9_000 <= clock.offset_ns <= 12_000
