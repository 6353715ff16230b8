"""Writes the host ops of a rank of a simulated cluster as a PyTorch execution trace (ET) of layout 1.1.0."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphlink.testing.cluster_kineto import DTYPES, elements, group_key, process_id
from graphlink.testing.cluster_program import DESCRIPTIONS, Op
from graphlink.testing.cluster_records import NOWHERE
from graphlink.testing.cluster_rows import WAIT, HostRow, RankRows, names_of
from graphlink.testing.et import DEFAULTS, EtComm, Layout, Node, Value, et_node

if TYPE_CHECKING:
    from graphlink.testing.cluster import ClusterRun

_PROCESS, _THREAD, _FIRST = 1, 2, 4  # ids; 3 describes the groups
_LAYOUT = Layout.V1_1_0
_WAIT = EtComm("wait", "Byte", (0, 0), 0, 0)
_WAIT_ATTRS = {
    "collective_name": "wait", "dtype": "Byte", "in_msg_nelems": 0, "out_msg_nelems": 0, "pg_size": 1, "in_split_size": "[]",
    "out_split_size": "[]",
}  # fmt: skip


def _node(id_: int, name: str, parent: int, attrs: Node, inputs: Sequence[Value] = (), comm: Node | None = None) -> str:
    full = DEFAULTS | {"tid": 1} | attrs | {"op_schema": ""} | (comm or {}) | {"kernel_backend": "", "kernel_file": ""}
    return json.dumps(et_node(_LAYOUT, id_, name, parent, full, inputs), separators=(",", ":"))


def _comm(run: ClusterRun, rank: int, op: Op, id_: int) -> EtComm:
    """A ``record_param_comms``. In place of the rank it has the peer of a message, as a rank of the group."""
    members, name = group_key(run, rank, op.group)
    dtype, found = DTYPES[op.elem_bytes], elements(op, len(members))
    tensor = [id_, id_, 0, found[0], op.elem_bytes, f"cuda:{rank % run.training.ranks_per_host}"]
    return EtComm(
        name=names_of(op).recorded,
        dtype=dtype,
        elements=found,
        seq=op.seq,
        rank=rank if op.peer == NOWHERE else members.index(op.peer),
        tensor=(tensor, "Tensor(c10::BFloat16)" if op.elem_bytes == 2 else f"Tensor({dtype.lower()})"),
        group=(name, DESCRIPTIONS[run.groups[op.group].sort]),
        span=(members[0], members[1] - members[0], len(members)),
        splits=op.splits,
    )


def _op(run: ClusterRun, rank: int, position: int, row: HostRow) -> str:
    id_, parent = _FIRST + position, _THREAD if row.parent == NOWHERE else _FIRST + row.parent
    attrs = {"rf_id": position + 2, "scope": 7 if row.annotation else 0}
    if row.comm == NOWHERE:
        return _node(id_, row.name, parent, attrs)
    if row.comm == WAIT:
        return _node(id_, row.name, parent, attrs, _WAIT.inputs(_LAYOUT), _WAIT_ATTRS)
    comm = _comm(run, rank, run.records[rank].ops[row.comm], id_)
    return _node(id_, row.name, parent, attrs, comm.inputs(_LAYOUT), comm.attrs())


def _process_groups(run: ClusterRun, rank: int) -> str:
    groups = []
    for index, (members, name) in zip(run.own_groups[rank], run.ranks[rank].groups, strict=True):
        ranks = [] if len(members) == run.training.world else list(members)
        entry = {"pg_name": name, "pg_desc": DESCRIPTIONS[run.groups[index].sort], "backend_config": "cuda:nccl", "ranks": ranks}
        groups.append(entry | {"group_size": len(members), "group_count": len(run.groups)})
    return _node(_THREAD + 1, "## process_group:init ##", _THREAD, {"rf_id": 1, "scope": 7}, [(json.dumps(groups), [], "String")])


def et_text(run: ClusterRun, rows: RankRows) -> str:
    """The ET of a rank. Nodes stand as PyTorch writes them, when an op ends: children before parents."""
    rank, host = rows.rank, rows.host
    nodes = [_node(_THREAD, "[pytorch|profiler|execution_trace|thread]", _PROCESS, {"scope": 7})]
    nodes.append(_process_groups(run, rank))
    nodes += [_op(run, rank, i, host[i]) for i in sorted(range(len(host)), key=lambda i: (host[i].end_ns, -i))]
    nodes.append(_node(_PROCESS, "[pytorch|profiler|execution_trace|process]", _PROCESS, {"scope": 7, "tid": 0}))
    top = f'{{"schema":"1.1.0-chakra.0.0.4","pid":{process_id(rank)},"time":"2025-02-17 11:25:30","start_ts":6418683372,"nodes":[\n'
    return top + ",\n".join(nodes) + '],"finish_ts":6418683972}\n'
