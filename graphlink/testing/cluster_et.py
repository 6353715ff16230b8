"""Writes the host ops of a rank of a simulated cluster as a PyTorch execution trace (ET) of layout 1.1.0."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from graphlink.testing.cluster_kineto import DTYPES, elements, group_key, process_id
from graphlink.testing.cluster_program import DESCRIPTIONS, Op
from graphlink.testing.cluster_records import NOWHERE
from graphlink.testing.cluster_rows import WAIT, HostRow, RankRows, names_of

if TYPE_CHECKING:
    from graphlink.testing.cluster import ClusterRun

_PROCESS, _THREAD, _FIRST = 1, 2, 4  # ids; 3 describes the groups
_NO_VALUES = '"inputs":{"values":[],"shapes":[],"types":[]},"outputs":{"values":[],"shapes":[],"types":[]}'
_UNSIGNED = ("rf_id", "fw_parent", "scope", "tid", "fw_tid", "in_msg_nelems", "out_msg_nelems", "pg_size", "global_rank_start")


def _node(id_: int, name: str, parent: int, values: str, attrs: dict[str, Any]) -> str:
    full = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": ""} | attrs
    full |= {"kernel_backend": "", "kernel_file": ""}
    listed = [{"name": key, "type": _attr_type(key), "value": value} for key, value in full.items()]
    return f'{{"id":{id_},"name":{json.dumps(name)},"ctrl_deps":{parent},{values},"attrs":{json.dumps(listed, separators=(",", ":"))}}}'


def _attr_type(key: str) -> str:
    if key in _UNSIGNED or key == "global_rank_stride":
        return "uint64"
    return "int64" if key == "seq_id" else "string"


def _values(inputs: list[tuple[Any, Any, str]]) -> str:
    columns = dict(zip(("values", "shapes", "types"), map(list, zip(*inputs, strict=True)), strict=True))
    return f'"inputs":{json.dumps(columns, separators=(",", ":"))},"outputs":{{"values":[],"shapes":[],"types":[]}}'


def _comm(run: ClusterRun, rank: int, op: Op, id_: int) -> tuple[str, dict[str, Any]]:
    """Inputs and attributes of a ``record_param_comms``. In place of the rank it has the peer of a message, as a rank of the group."""
    members, name = group_key(run, rank, op.group)
    desc, recorded = DESCRIPTIONS[run.groups[op.group].sort], names_of(op).recorded
    sent, got = elements(op, len(members))
    tensor, dtype = [id_, id_, 0, sent, op.elem_bytes, f"cuda:{rank % run.training.ranks_per_host}"], DTYPES[op.elem_bytes]
    stride = members[1] - members[0]
    splits = [list(side) for side in op.splits]
    inputs: list[tuple[Any, Any, str]] = [
        ([tensor], [[sent]], "GenericList[Tensor(c10::BFloat16)]" if op.elem_bytes == 2 else f"GenericList[Tensor({dtype.lower()})]"),
        (op.seq, [], "Int"),
        ([name, desc], [[], []], "Tuple[String,String]"),
        (rank if op.peer == NOWHERE else members.index(op.peer), [], "Int"),
        (recorded, [], "String"),
        *((side, [[]] * len(side), f"GenericList[{','.join(['Int'] * len(side))}]") for side in splits),
        *((number, [], "Int") for number in (members[0], stride, len(members))),
    ]
    attrs = {
        "collective_name": recorded, "dtype": dtype, "in_msg_nelems": sent, "out_msg_nelems": got, "in_split_size": str(splits[0]),
        "out_split_size": str(splits[1]), "global_rank_start": members[0], "global_rank_stride": stride, "pg_name": name,
        "pg_desc": desc, "pg_size": len(members),
    }  # fmt: skip
    return _values(inputs), attrs


def _wait() -> tuple[str, dict[str, Any]]:
    inputs: list[tuple[Any, Any, str]] = [
        (0, [], "Int"), (["", ""], [[], []], "Tuple[String,String]"), (0, [], "Int"), ("wait", [], "String"), ([], [], "GenericList[]"),
        ([], [], "GenericList[]"), (-1, [], "Int"), (-1, [], "Int"), (1, [], "Int"),
    ]  # fmt: skip
    attrs = {"collective_name": "wait", "dtype": "Byte", "in_msg_nelems": 0, "out_msg_nelems": 0, "pg_size": 1}
    return _values(inputs), attrs | {"in_split_size": "[]", "out_split_size": "[]"}


def _op(run: ClusterRun, rank: int, position: int, row: HostRow) -> str:
    id_, parent = _FIRST + position, _THREAD if row.parent == NOWHERE else _FIRST + row.parent
    values, attrs = _NO_VALUES, {"rf_id": position + 2, "scope": 7 if row.annotation else 0}
    if row.comm != NOWHERE:
        values, more = _wait() if row.comm == WAIT else _comm(run, rank, run.records[rank].ops[row.comm], id_)
        attrs |= more
    return _node(id_, row.name, parent, values, attrs)


def _process_groups(run: ClusterRun, rank: int) -> str:
    groups = []
    for index, (members, name) in zip(run.own_groups[rank], run.ranks[rank].groups, strict=True):
        ranks = [] if len(members) == run.training.world else list(members)
        entry = {"pg_name": name, "pg_desc": DESCRIPTIONS[run.groups[index].sort], "backend_config": "cuda:nccl", "ranks": ranks}
        groups.append(entry | {"group_size": len(members), "group_count": len(run.groups)})
    values = _values([(json.dumps(groups), [], "String")])
    return _node(_THREAD + 1, "## process_group:init ##", _THREAD, values, {"rf_id": 1, "scope": 7})


def et_text(run: ClusterRun, rows: RankRows) -> str:
    """The ET of a rank. Nodes stand as PyTorch writes them, when an op ends: children before parents."""
    rank, host = rows.rank, rows.host
    nodes = [_node(_THREAD, "[pytorch|profiler|execution_trace|thread]", _PROCESS, _NO_VALUES, {"scope": 7})]
    nodes.append(_process_groups(run, rank))
    nodes += [_op(run, rank, i, host[i]) for i in sorted(range(len(host)), key=lambda i: (host[i].end_ns, -i))]
    nodes.append(_node(_PROCESS, "[pytorch|profiler|execution_trace|process]", _PROCESS, _NO_VALUES, {"scope": 7, "tid": 0}))
    top = f'{{"schema":"1.1.0-chakra.0.0.4","pid":{process_id(rank)},"time":"2025-02-17 11:25:30","start_ts":6418683372,"nodes":[\n'
    return top + ",\n".join(nodes) + '],"finish_ts":6418683972}\n'
