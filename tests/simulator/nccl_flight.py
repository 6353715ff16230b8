"""Writes what PyTorch's Flight Recorder has of a rank: one entry an op as the framework was called, as JSON or as a
pickle.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_host import DTYPES, names_of
from tests.simulator.cluster_program import DESCRIPTIONS, elements, named_groups, rank_ops
from tests.simulator.cluster_records import COLLECTIVE, SEND
from tests.simulator.nccl_calls import NcclCall, first_of_ops
from tests.simulator.nccl_side import Side


def flight_parts(run: ClusterRun, pid: int, calls: Sequence[NcclCall]) -> Iterator[tuple[str, list[NcclCall]]]:
    """A file a rank, and of several NCCL calls that are one op the first."""
    for rank in sorted({call.rank for call in calls}):
        yield f"nccl_trace_rank_{rank}", [call._replace(grouped=False) for call in first_of_ops(calls, rank)]


def flight_json(side: Side) -> bytes:
    return json.dumps(_document(side)).encode()


def flight_pickle(side: Side) -> bytes:
    return pickle.dumps(_document(side))


def _document(side: Side) -> dict[str, Any]:
    run, rank = side.run, side.calls[0].rank
    named = named_groups(run.training, run.groups, rank)
    config = {
        name: {"desc": DESCRIPTIONS[run.groups[index].sort], "ranks": str(list(members))}
        for index, (members, name) in named.items()
    }
    ops = rank_ops(run.training, run.groups, rank)
    entries = []
    for number, (call, timed) in enumerate(zip(side.calls, side.timed, strict=True)):
        op, group = ops[call.op], run.groups[call.group]
        taken, given = elements(op, len(group.members))
        message = op.kind != COLLECTIVE
        name = names_of(op).range
        if message:
            arrow = "->" if op.kind == SEND else "<-"
            name = f"{name} {call.member}{arrow}{call.peer}"
        dtype = DTYPES[op.elem_bytes]
        entries.append({
            "record_id": number, "pg_id": call.group, "process_group": (named[call.group][1], DESCRIPTIONS[group.sort]),
            "collective_seq_id": 0 if message else op.seq, "p2p_seq_id": op.seq if message else 0, "op_id": number, "is_p2p": message,
            "profiling_name": name, "input_sizes": [[taken]], "input_dtypes": [dtype], "output_sizes": [[given]], "output_dtypes": [dtype],
            "time_created_ns": side.epoch_ns(rank, call.api_ns - 4_000) if timed else 0,
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "state": "completed", "retired": True,
            "timeout_ms": 600_000, "frames": [],
        })  # fmt: skip
    return {"version": "2.10", "pg_config": {str(rank): config}, "pg_status": {}, "entries": entries}
