"""Write an execution as a PyTorch execution trace (ET), in each of its layouts. An ET has no times."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tests.simulator.dialects import RowIds, row_ids
from tests.simulator.execution import Execution, HostOp
from tests.simulator.kineto import write_json
from tests.simulator.program import CommArgs

Node = dict[str, Any]
Value = tuple[Any, Any, str]  # value, shape and type of an input or output


class Layout(Enum):
    """``schema`` strings by layout. 1.0.1 is flat, then attrs; 1.1.0 adds collective attrs, 1.1.1 strides."""

    V1_0_1 = "1.0.1"
    V1_0_2 = "1.0.2-chakra.0.0.4"
    V1_0_3 = "1.0.3-chakra.0.0.4"
    V1_1_0 = "1.1.0-chakra.0.0.4"
    V1_1_1 = "1.1.1-chakra.0.0.4"


_TYPES = {
    "rf_id": "uint64", "fw_parent": "uint64", "seq_id": "int64", "scope": "uint64", "tid": "uint64", "fw_tid": "uint64",
    "in_msg_nelems": "uint64", "out_msg_nelems": "uint64", "global_rank_start": "uint64",
    "global_rank_stride": "uint64", "pg_size": "uint64",
}  # fmt: skip
DEFAULTS: Node = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 0, "fw_tid": 0}
_SCHEMA = {
    "aten::mm": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
    "aten::relu": "aten::relu(Tensor self) -> Tensor",
    "aten::copy_": "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
    "aten::item": "aten::item(Tensor self) -> Scalar",
}


@dataclass(frozen=True, slots=True)
class EtComm:
    """A communication as ``record_param_comms`` has it. ``tensor`` None: a wait; ``group``: its name and description,
    None without one.

    ``span``: the first rank of the group, its stride and its size; ``pointer``: of the group, in layouts that have no
    names.
    """

    name: str
    dtype: str
    elements: tuple[int, int]
    seq: int
    rank: int
    tensor: tuple[list[Any], str] | None = None
    group: tuple[str, str] | None = None
    span: tuple[int, int, int] = (-1, -1, 1)
    splits: tuple[Sequence[int], Sequence[int]] = ((), ())
    pointer: int = 0

    def inputs(self, layout: Layout) -> list[Value]:
        inputs: list[Value] = []
        if self.tensor is not None:
            tensor, type_ = self.tensor
            inputs.append(([tensor], [[self.elements[0]]], f"GenericList[{type_}]"))
        inputs.append((self.seq, [], "Int"))
        pointer = layout in (Layout.V1_0_1, Layout.V1_0_2)
        if pointer:
            inputs.append((self.pointer, [], "Int"))
        else:
            inputs.append(([*(self.group or ("", ""))], [[], []], "Tuple[String,String]"))
        inputs += [(self.rank, [], "Int"), (self.name, [], "String")]
        inputs += [([*side], [[]] * len(side), f"GenericList[{','.join(['Int'] * len(side))}]") for side in self.splits]
        if layout is Layout.V1_0_2:
            inputs.append((self.span[2], [], "Int"))
        elif not pointer:
            inputs += [(value, [], "Int") for value in self.span]
        return inputs

    def attrs(self) -> Node:
        attrs: Node = {
            "collective_name": self.name, "dtype": self.dtype, "in_msg_nelems": self.elements[0], "out_msg_nelems": self.elements[1],
            "in_split_size": str([*self.splits[0]]), "out_split_size": str([*self.splits[1]]),
        }  # fmt: skip
        if self.group is None:
            return attrs | {"pg_size": 1}
        attrs |= {"global_rank_start": self.span[0], "global_rank_stride": self.span[1]}
        return attrs | {"pg_name": self.group[0], "pg_desc": self.group[1], "pg_size": self.span[2]}


def et_node(
    layout: Layout,
    node_id: int,
    name: str,
    parent: int,
    attrs: Node,
    inputs: Sequence[Value] = (),
    outputs: Sequence[Value] = (),
) -> Node:
    """A node with ``attrs`` in their order, those that are left out of the first six with their defaults."""
    full = DEFAULTS | attrs
    if layout is Layout.V1_0_1:
        flat: Node = {"name": name, "id": node_id, "rf_id": full.pop("rf_id"), "parent": parent} | full
        for side, values in (("input", inputs), ("output", outputs)):
            flat |= {f"{side}s": [v for v, _, _ in values], f"{side}_shapes": [s for _, s, _ in values]}
            flat[f"{side}_types"] = [t for _, _, t in values]
        return flat
    listed = [{"name": k, "type": _TYPES.get(k, "string"), "value": v} for k, v in full.items()]
    node: Node = {"id": node_id, "name": name, "ctrl_deps": parent}
    return node | {"inputs": _values(layout, inputs), "outputs": _values(layout, outputs), "attrs": listed}


def _values(layout: Layout, values: Sequence[Value]) -> Node:
    node: Node = {"values": [v for v, _, _ in values], "shapes": [s for _, s, _ in values]}
    node["types"] = [t for _, _, t in values]
    if layout is Layout.V1_1_1:
        node["strides"] = [[64, 1] if t.startswith("Tensor") else [] for _, _, t in values]
    return node


class _Writer:
    def __init__(self, execution: Execution, layout: Layout, *, handed: bool):
        self.execution, self.layout = execution, layout
        self.ids: RowIds = row_ids(execution)
        pairs = [
            (h.from_op, h.to_op)
            for h in execution.handovers
            if handed and h.from_op is not None and h.to_op is not None
        ]
        self.makes, self.takes = {made for made, _ in pairs}, {taker: made for made, taker in pairs}
        self.begun: list[list[int]] = [[] for _ in execution.program.threads]  # a thread's host ops by start
        for i, op in enumerate(execution.host):
            self.begun[op.thread].append(i)
        self.word = "graph" if layout is Layout.V1_0_1 else "trace"

    def document(self) -> Node:
        host, program = self.execution.host, self.execution.program
        nodes = []
        for thread, root in enumerate(self.ids.et_thread_root):
            if root:
                nodes.append(self.root("thread", root, 1, thread + 1))
        if program.groups:
            nodes.append(self.process_groups())
        # nodes are written when an op ends: children before parents; a parent that ends with its child comes after it
        by_end = sorted(range(len(host)), key=lambda i: (host[i].end_ns, -i))
        nodes += [self.op(i, host[i]) for i in by_end]
        nodes.append(self.root("process", 1, 1, 0))
        length_ms = self.execution.makespan_ns // 1_000_000
        head: Node = {"schema": self.layout.value, "pid": program.pid, "time": "2025-02-17 11:25:30"}
        return head | {"start_ts": 6418683372, "nodes": nodes, "finish_ts": 6418683372 + 100 + length_ms}

    def root(self, what: str, node_id: int, parent: int, tid: int) -> Node:
        name = f"[pytorch|profiler|execution_{self.word}|{what}]"
        return self.node(node_id, name, parent, {"rf_id": 0, "scope": 7, "tid": tid})

    def process_groups(self) -> Node:
        world = self.execution.program.world_size
        groups = [
            {
                "pg_name": group.name, "pg_desc": group.desc, "backend_config": "cuda:nccl",
                "ranks": [] if len(group.ranks) == world else list(group.ranks), "group_size": len(group.ranks),
                "group_count": len(self.execution.program.groups),
            }
            for group in self.execution.program.groups
        ]  # fmt: skip
        thread = self.execution.host[0].thread if self.execution.host else 0
        root = self.ids.et_thread_root[thread]
        attrs = {"rf_id": 1, "scope": 7, "tid": thread + 1}
        return self.node(root + 1, "## process_group:init ##", root, attrs, [(json.dumps(groups), [], "String")])

    def op(self, i: int, op: HostOp) -> Node:
        ids = self.ids
        parent = ids.et_thread_root[op.thread] if op.parent is None else ids.et_id[op.parent]
        attrs: Node = {"rf_id": ids.host_rf_id[i], "scope": 7 if op.annotation else 0, "tid": op.thread + 1}
        if op.seq is not None and (op.fwd_thread is None or op.backward):
            attrs["seq_id"] = op.seq
        if op.backward and op.fwd_thread is not None:
            attrs |= {"scope": 1, "fw_tid": op.fwd_thread + 1, "fw_parent": self.open_on(op.fwd_thread, i)}
        tensor = ([ids.et_id[i] + 1, ids.et_id[i] + 2, 0, 4096, 4, "cuda:0"], [64, 64], "Tensor(float)")
        if op.comm is not None:
            comm = self.comm(op.comm, ids.et_id[i])
            return self.node(ids.et_id[i], op.name, parent, attrs, comm.inputs(self.layout), [], comm)
        inputs = [] if op.annotation else [tensor]
        made = [self.made(i)] if i in self.makes else []
        taken = [self.made(self.takes[i])] if i in self.takes else []
        return self.node(ids.et_id[i], op.name, parent, attrs, inputs + taken, inputs + made, None)

    def made(self, i: int) -> Value:
        """The tensor that op ``i`` makes for another thread."""
        first = 10_000_000 + 2 * i
        return ([first, first + 1, 0, 4096, 4, "cpu"], [64, 64], "Tensor(float)")

    def open_on(self, thread: int, i: int) -> int:
        """ET id of the innermost op open on a thread when op ``i`` began: what fw_parent names."""
        host, begun = self.execution.host, self.begun[thread]
        before = bisect_left(begun, i)
        found: int | None = begun[before - 1] if before else None
        while found is not None and host[found].end_ns <= host[i].start_ns:
            found = host[found].parent
        return self.ids.et_thread_root[thread] if found is None else self.ids.et_id[found]

    def comm(self, comm: CommArgs, node_id: int) -> EtComm:
        group = next((g for g in self.execution.program.groups if g.name == comm.group), None)
        tensor = [node_id + 1, node_id + 2, 0, comm.in_nelems, comm.elem_bytes, "cuda:0"]
        peer = comm.dst_rank if comm.name == "send" else comm.src_rank
        type_ = "c10::BFloat16" if comm.dtype == "BFloat16" else comm.dtype.lower()
        return EtComm(
            name=comm.name,
            dtype=comm.dtype,
            elements=(comm.in_nelems, comm.out_nelems),
            seq=comm.seq,
            rank=(self.execution.program.rank or 0) if peer is None else peer,
            tensor=None if comm.name == "wait" else (tensor, f"Tensor({type_})"),
            group=(group.name, group.desc) if group else None,
            span=(group.ranks[0], group.stride, len(group.ranks)) if group else (-1, -1, 1),
            splits=comm.splits,
            pointer=94_000_000 + int(group.name or 0) * 64 if group else 0,
        )

    def node(
        self,
        node_id: int,
        name: str,
        parent: int,
        attrs: Node,
        inputs: Sequence[Value] = (),
        outputs: Sequence[Value] = (),
        comm: EtComm | None = None,
    ) -> Node:
        full = DEFAULTS | attrs | {"op_schema": _SCHEMA.get(name, "")}
        if self.layout in (Layout.V1_1_0, Layout.V1_1_1):
            full |= {"kernel_backend": "", "kernel_file": ""}
            if comm is not None:
                full |= comm.attrs()
        if self.layout is Layout.V1_1_1:
            full["tensor_range"] = ""
        return et_node(self.layout, node_id, name, parent, full, inputs, outputs)


def et_document(execution: Execution, *, layout: str = "1.1.0-chakra.0.0.4", handed: bool = False) -> Node:
    """The ET as a JSON-ready dict; ``layout`` is a schema string of ``Layout``. Raises ValueError for an unknown one.

    ``handed``: the last op before each hand-over makes a tensor, which the first op of the woken thread reads.
    """
    return _Writer(execution, Layout(layout), handed=handed).document()


def write_et(
    execution: Execution,
    path: str | Path,
    *,
    layout: str = "1.1.0-chakra.0.0.4",
    handed: bool = False,
    indent: int | None = None,
) -> RowIds:
    """Write the ET as ``path`` (gzip if it ends in .gz) and return which node is which."""
    write_json(et_document(execution, layout=layout, handed=handed), path, indent)
    return row_ids(execution)
