"""A PyTorch execution trace (ET) -> ``model.HostTrace``. Layouts are recognised by their keys, never by the schema
string.

Flat layout (1.0.1): everything on the node. Attrs layout (from 1.0.2): ``inputs`` and ``outputs`` are objects, the
parent is ``ctrl_deps``, the rest is in ``attrs``. A merged file (ET+) has device nodes among them, which are set aside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.model import I64, Comm, HostTrace, ProcessGroup
from graphlink.process import gc_paused
from graphlink.read import kinds
from graphlink.read.columns import MISSING, ByteTexts, Parts, Strings, ints, loose, to_int, to_int_or_none
from graphlink.read.comms import (
    FUNCTIONAL,
    GROUP_INIT,
    P2P_OPS,
    RECORD_OP,
    backend_ids,
    collective,
    naming,
    peer,
    process_groups,
)
from graphlink.read.stream import BLOCK_BYTES, MAX_BAD, ArrayReader, Block, open_array
from graphlink.tables import how_many, marked

_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_HOST_CATEGORIES = frozenset({"cpu_op", "user_annotation", "Operator"})
_NUMBERS = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 0, "fw_tid": 0}  # and what absent means
_get_numbers = itemgetter(*_NUMBERS)
_NO_TEXT = msgspec.Raw()
_TENSOR = re.compile(
    rb'\[\s*\d+,\s*\d+,\s*\d+,\s*\d+,\s*\d+,\s*"[^"]*"\s*\]'
)  # its id, its storage, and how it lies there
MOST_MADE = 1 << 16  # tensors, the latest, of which it is known which op made them; so many more may be
# of the text around the nodes only what has the form of a version, and of a local time, is taken
SCHEMA = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,4}(?:-[a-z]{1,20}(?:\.\d{1,4}){0,4})?")
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")


class _Values(msgspec.Struct, gc=False):
    values: msgspec.Raw = _NO_TEXT
    shapes: msgspec.Raw = _NO_TEXT
    types: msgspec.Raw = _NO_TEXT


class _Attr(msgspec.Struct, gc=False):
    name: str
    value: Any = None


class _Node(msgspec.Struct, gc=False):
    id: Any = None
    name: str = ""
    ctrl_deps: Any = None
    inputs: _Values | list[msgspec.Raw] | None = None
    outputs: _Values | list[msgspec.Raw] | None = None
    attrs: list[_Attr] | None = None
    ph: str | None = None
    cat: str | None = None
    parent: Any = None
    rf_id: Any = 0
    fw_parent: Any = 0
    seq_id: Any = -1
    scope: Any = 0
    tid: Any = 0
    fw_tid: Any = 0
    op_schema: Any = ""
    input_shapes: msgspec.Raw = _NO_TEXT
    input_types: msgspec.Raw = _NO_TEXT
    output_shapes: msgspec.Raw = _NO_TEXT
    output_types: msgspec.Raw = _NO_TEXT


def read_host(path: str | Path, keep_json: bool = False, *, block_bytes: int = BLOCK_BYTES) -> HostTrace:
    """Read the ET at ``path`` (plain, gzip or zstd): numpy columns with one entry per node, sorted by ``rf_id`` then
    ``id``.

    ``keep_json`` keeps each node's text in ``nodes_json`` (slower, as big as the file).

    A group that the ET names by a pointer has that number as ``Comm.pg_name``, unless the ET says which group it is. A
    peer of a ``c10d`` send or receive is as recorded: a rank of its group. Duplicate ids: the first node counts.
    InputError: see ``stream``; a file of another kind; no node that can be read.
    """
    with gc_paused(), open_array(path, ("nodes", "traceEvents"), block_bytes) as array:
        if array.key is None:
            raise InputError(
                "is a bare list, not an execution trace (ET)", path=path, todo=f"if it is a trace, {kinds.KINETO.todo}"
            )
        if array.key != "nodes":
            raise InputError(f"is {kinds.KINETO.what}, not an execution trace (ET)", path=path, todo=kinds.KINETO.todo)
        gathered = _EtNodes(str(path))
        for block in array.blocks(_Node, keep_raw=keep_json):
            gathered.add(block)
        return gathered.trace(array, keep_json)


_Maker: TypeAlias = tuple[int, int, int]  # when an op ended, its thread, its id


class _Makers:
    """Knows which op made each tensor: one of which it is an output and no input. Nodes come in the order in which ops
    end.
    """

    def __init__(self) -> None:
        self.made: dict[bytes, _Maker] = {}
        self.made_before = self.made
        self.seen = 0
        self.thread = 0  # of the node before
        self.around: set[int] = set()  # ops in which the first of their thread after another thread's ended

    def others(self, inputs: list[_Values], outputs: list[_Values], tids: I64, ids: I64, parents: I64) -> I64:
        """Note what ops make; return for each op with which its thread may go on, as it is the first to end after one
        of another thread, or around that: the node of another thread that made what it reads, the last of several. 0
        for all others."""
        out = np.zeros(len(ids), np.int64)
        made, read = ([bytes(side.values) for side in sides] for sides in (outputs, inputs))
        each = list(zip(range(self.seen, self.seen + len(ids)), tids.tolist(), ids.tolist(), strict=True))
        low = 0
        for at in self._first_ones(each, parents.tolist(), made, read):
            self._note(made[low:at], read[low:at], each[low:at])
            known = (self.made.get(tensor) or self.made_before.get(tensor) for tensor in _TENSOR.findall(read[at]))
            out[at] = max((maker for maker in known if maker and maker[1] != each[at][1]), default=(0, 0, 0))[2]
            low = at
        self._note(made[low:], read[low:], each[low:])
        self.seen += len(ids)
        if len(self.made) > MOST_MADE:
            self.made_before, self.made = self.made, {}
        return out

    def _first_ones(self, each: list[_Maker], parents: list[int], made: list[bytes], read: list[bytes]) -> list[int]:
        """Return the ops with which a thread may go on. What has no tensor, as the node of a new thread, is none."""
        out = []
        for at, ((_, tid, node_id), parent) in enumerate(zip(each, parents, strict=True)):
            new = tid != self.thread and any(_TENSOR.search(side[at]) for side in (read, made))
            if new or node_id in self.around:
                self.thread = tid
                self.around.add(parent)
                out.append(at)
        return out

    def _note(self, made: list[bytes], read: list[bytes], each: list[_Maker]) -> None:
        """Note what ops make. ``made``, ``read``: the texts of their outputs and inputs."""
        ops = zip(made, read, each, strict=True)
        self.made.update(
            {one: maker for out, inputs, maker in ops if (one := out[1 : out.find(b"]") + 1]) not in inputs}
        )
        for at in [
            at for at, out in enumerate(made) if out.count(b"[") > 1 + out.startswith(b"[[")
        ]:  # several, in lists, or behind numbers
            self.made.update((tensor, each[at]) for tensor in _TENSOR.findall(made[at]) if tensor not in read[at])


class _EtNodes:
    def __init__(self, path: str):
        self.path = path
        self.makers = _Makers()
        self.strings = Strings()
        self.json_texts = ByteTexts(self.strings)
        self.parts = Parts()
        self.groups: dict[str, ProcessGroup] = {}
        self.group_of_pointer: dict[int, str] = {}
        self.device_nodes = 0
        self.left_out: Counter[str] = Counter()
        self.raws: list[bytes] = []

    def add(self, block: Block[_Node]) -> None:
        self.left_out["unreadable"] += len(block.bad)
        nodes, raws = block.rows, block.raws
        host = np.array(
            [node.cat not in _DEVICE_CATEGORIES if node.ph is None else node.cat in _HOST_CATEGORIES for node in nodes],
            np.bool_,
        )
        ids = ints([node.id for node in nodes])
        usable = host & (ids != MISSING)
        self.device_nodes += how_many(~host)
        self.left_out["node without id"] += how_many(host & ~usable)
        if self.left_out["node without id"] > MAX_BAD:
            raise InputError(
                f"more than {MAX_BAD:,} of its nodes have no id",
                path=self.path,
                todo="check the file, or record it again",
            )
        if usable.any():
            self.raws += compress(raws, usable.tolist())
            self._add_nodes(list(compress(nodes, usable.tolist())), ids[usable])

    def _add_nodes(self, nodes: list[_Node], ids: I64) -> None:
        attrs = [_attrs(node) for node in nodes]
        numbers = _number_columns(attrs)
        parent = ints([_parent(node) for node in nodes])
        inputs = [_side(node.inputs, node.input_shapes, node.input_types) for node in nodes]
        outputs = [_side(node.outputs, node.output_shapes, node.output_types) for node in nodes]
        texts, names, schemas = (
            self.json_texts,
            [node.name for node in nodes],
            [attr.get("op_schema") for attr in attrs],
        )
        for at, name in enumerate(names):
            if name == RECORD_OP or name in P2P_OPS:
                types = bytes(inputs[at].types).decode("utf-8", "replace")
                given, made = _values(inputs[at]), _values(outputs[at])
                comm = collective(given, made, types, attrs[at]) if name == RECORD_OP else peer(name, given, types)
                if comm is not None:
                    self.parts.comms[self.parts.count + at] = comm
            elif name.startswith(FUNCTIONAL):
                named = naming(_values(inputs[at]))
                if named is not None:
                    self.parts.comms[self.parts.count + at] = named
            elif name == GROUP_INIT:
                for text in _values(inputs[at]):
                    self.groups |= {group.name: group for group in process_groups(text)}
                    self.group_of_pointer |= backend_ids(text)
        self.parts.add(
            id=ids,
            name=self.strings.column(names),
            parent=np.where(parent == MISSING, ids, parent),
            **{name: ints(numbers[name], default) for name, default in _NUMBERS.items()},
            op_schema=self.strings.column([schema if isinstance(schema, str) else "" for schema in schemas]),
            input_shapes=texts.column([side.shapes for side in inputs]),
            input_types=texts.column([side.types for side in inputs]),
            output_shapes=texts.column([side.shapes for side in outputs]),
            output_types=texts.column([side.types for side in outputs]),
            made_by=self.makers.others(inputs, outputs, ints(numbers["tid"], 0), ids, parent),
        )

    def trace(self, array: ArrayReader, keep_json: bool) -> HostTrace:
        parts, around = self.parts, {key: loose(raw) for key, raw in array.around.items()}
        if not parts.count:
            raise InputError(
                "has no execution trace node that can be read",
                path=self.path,
                todo="give the ET of the run, or record it again",
            )
        parts.comms = {row: self._with_group_name(comm) for row, comm in parts.comms.items()}
        order = self._order(parts.seen("id"), parts.seen("rf_id"))
        return parts.table(
            HostTrace,
            order,
            path=self.path,
            schema=schema if isinstance(schema := around.get("schema"), str) and SCHEMA.fullmatch(schema) else "",
            pid=to_int_or_none(around.get("pid")),
            recorded_at=time if isinstance(time := around.get("time"), str) and TIME.fullmatch(time) else None,
            strings=tuple(self.strings),
            process_groups=tuple(self.groups.values()),
            device_nodes_left_aside=self.device_nodes,
            left_out={reason: count for reason, count in self.left_out.items() if count},
            nodes_json=tuple(self.raws[i] for i in order.tolist()) if keep_json else None,
        )

    def _order(self, ids: I64, rf_id: I64) -> NDArray[np.intp]:
        order = np.lexsort((ids, rf_id))
        _, first = np.unique(ids, return_index=True)
        if len(first) == len(ids):
            return order
        self.left_out["duplicate id"] += len(ids) - len(first)
        return order[marked(len(ids), first)[order]]

    def _with_group_name(self, comm: Comm) -> Comm:
        name = self.group_of_pointer.get(to_int(comm.pg_name, 0))
        return comm if name is None else msgspec.structs.replace(comm, pg_name=name, pg_desc=self.groups[name].desc)


def _attrs(node: _Node) -> dict[str, Any]:
    if node.attrs is not None:
        return {attr.name: attr.value for attr in node.attrs}
    return {
        "rf_id": node.rf_id,
        "fw_parent": node.fw_parent,
        "seq_id": node.seq_id,
        "scope": node.scope,
        "tid": node.tid,
        "fw_tid": node.fw_tid,
        "op_schema": node.op_schema,
    }


def _number_columns(attrs: list[dict[str, Any]]) -> dict[str, Sequence[object]]:
    try:
        rows = [_get_numbers(attr) for attr in attrs]
    except KeyError:
        rows = [tuple(attr.get(name, default) for name, default in _NUMBERS.items()) for attr in attrs]
    return dict(zip(_NUMBERS, zip(*rows, strict=True), strict=True))


def _parent(node: _Node) -> object:
    parent = node.parent if node.ctrl_deps is None else node.ctrl_deps
    return parent[0] if isinstance(parent, list) and parent else parent


def _side(side: _Values | list[msgspec.Raw] | None, shapes: msgspec.Raw, types: msgspec.Raw) -> _Values:
    """Return inputs or outputs as the attrs layout has them; ``shapes``, ``types``: those of the flat layout."""
    return (
        side
        if isinstance(side, _Values)
        else _Values(msgspec.Raw(b"[" + b",".join(map(bytes, side or ())) + b"]"), shapes, types)
    )


def _values(side: _Values) -> list[Any]:
    values = loose(side.values)
    return values if isinstance(values, list) else []
