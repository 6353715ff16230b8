"""``linked.<rank>.json``: the ET merged with device ops, in the shape that ``chakra_trace_link`` writes (ET+).

As there, nodes are numbered anew in ET order, a device op right after the host op that launched it, as a copy of that
op with the device op's name, category, times and stream. Times are us. Unlike there, ``fw_parent`` follows the new
numbers, and ids start at 1, since 0 means none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np

from graphlink.errors import InputError
from graphlink.graph.write_et import et_rows
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, Bool, Communication, DeviceKind, HostTrace, Linked
from graphlink.read.host import SCHEMA, TIME
from graphlink.read.source import open_source
from graphlink.read.stream import utf8
from graphlink.tables import among, grouped, how_many, pointing_at, take, tuples

CATEGORY: Final = {
    DeviceKind.KERNEL: "kernel",
    DeviceKind.MEMCPY: "gpu_memcpy",
    DeviceKind.MEMSET: "gpu_memset",
    DeviceKind.HOST: "graph_host_node",
}
NUMBER: Final = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?")
Node = dict[str, Any]


class AddedKeys(msgspec.Struct, kw_only=True):
    """The keys on nodes of the merged trace besides those that PyTorch wrote. A node with ``cat`` is a device op."""

    id: int
    name: str
    inclusive_dur: float | msgspec.UnsetType = msgspec.UNSET  # us, as are the next two
    exclusive_dur: float | msgspec.UnsetType = msgspec.UNSET
    ts: float | msgspec.UnsetType = msgspec.UNSET
    inter_thread_dep: int | msgspec.UnsetType | None = msgspec.UNSET
    sync_dep: list[int] | msgspec.UnsetType = msgspec.UNSET
    cat: str | msgspec.UnsetType = msgspec.UNSET
    ph: str | msgspec.UnsetType = msgspec.UNSET
    stream: int | msgspec.UnsetType = msgspec.UNSET
    pg_name: str | msgspec.UnsetType = msgspec.UNSET


class LinkedFile(msgspec.Struct, kw_only=True):
    """The merged trace, for its JSON Schema; ``write`` makes it piece by piece."""

    schema: str
    pid: int
    time: str
    start_ts: int
    finish_ts: int
    nodes: list[AddedKeys]


class Merged:
    """Device ops joined with the ET nodes that launched them, and dependencies of a graph with both, all with new
    numbers. Linear.
    """

    def __init__(self, graph: Graph, comm: Communication) -> None:
        self.linked, self.et = graph.linked, _et(graph.linked)
        self._join(graph)
        order = np.argsort(self.et.id, kind="stable")
        self.et_order = order.tolist()
        self.host_id: dict[int, int] = {}  # old -> new
        self.device_id: dict[int, int] = {}  # device row -> new
        self.last = 0
        for row, old in zip(self.et_order, self.et.id[order].tolist(), strict=True):
            self.last += 1
            self.host_id[old] = self.last
            for device in self.device_rows.get(row, ()):
                self.last += 1
                self.device_id[device] = self.last
        self.host_rows: list[int] = pointing_at(self.linked.match.et, len(self.et.id)).tolist()
        self.own_ns = _own_ns(self.linked)
        named = take(comm.ops, ~comm.ops.on_host & (comm.ops.group != NOWHERE))
        self.group_names = {row: named.groups[group][1] for row, group in tuples(named.row, named.group)}
        self.without_host = how_many(graph.kind == NodeKind.DEVICE_OP) - len(self.device_id)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings of what the merged trace lacks."""
        told = []
        if self.without_host:
            told.append(f"{self.without_host} device ops are not in the merged trace: no op of the ET launched them")
        if "chakra" not in self.et.schema:
            told.append(f"Chakra's converter does not take the merged trace: it knows no ET schema {self.et.schema}")
        return tuple(told)

    def _join(self, graph: Graph) -> None:
        ops = graph.kind == NodeKind.DEVICE_OP
        et_row = et_rows(graph)
        callers = np.where(graph.caller[ops] == NOWHERE, NOWHERE, et_row[graph.caller[ops]])
        # ET row -> device rows, in start order
        self.device_rows = grouped((host, row) for row, host in tuples(graph.row[ops], callers) if host != NOWHERE)
        target = graph.target
        whole = among(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_ASYNC)) & (et_row != NOWHERE)

        def edges(kind: EdgeKind, usable: Bool, to_row: I32 | I64, from_row: I32 | I64) -> Iterator[tuple[int, int]]:
            chosen = np.flatnonzero((graph.edge_kind == kind) & usable)
            return zip(to_row[target[chosen]].tolist(), from_row[graph.source[chosen]].tolist(), strict=True)

        # ET row -> device rows that a synchronisation before it waited for
        self.awaited = grouped(edges(EdgeKind.SYNC, ops[graph.source] & whole[target], et_row, graph.row))
        # device row -> device rows that an event wait made it wait for
        self.device_awaited = grouped(edges(EdgeKind.EVENT, ops[graph.source] & ops[target], graph.row, graph.row))
        # ET row -> ET row on another thread that it follows
        follows = (et_row[graph.source] != NOWHERE) & whole[target]
        self.other_thread = dict(edges(EdgeKind.THREAD, follows, et_row, et_row))

    def nodes(self) -> Iterator[Node]:
        """Yield host nodes in ET order, the device ops that each launched right behind it."""
        nodes_json = self.et.nodes_json
        assert nodes_json is not None
        for row in self.et_order:
            node: Node = msgspec.json.decode(nodes_json[row], type=dict[str, msgspec.Raw])
            self._renumber(node, int(self.et.id[row]))
            devices = [self._device(node, d) for d in self.device_rows.get(row, ())]
            self._add_times(node, row)
            yield node
            yield from devices

    def _renumber(self, node: Node, old: int) -> None:
        node["id"] = self.host_id[old]
        for key in ("ctrl_deps", "parent", "fw_parent"):
            if key in node:
                node[key] = self._new(msgspec.json.decode(node[key]))
        if "attrs" in node:
            attrs = msgspec.json.decode(node["attrs"], type=list[dict[str, msgspec.Raw]] | None)
            for attr in attrs or ():
                if bytes(attr.get("name", b"")) == b'"fw_parent"' and "value" in attr:
                    attr["value"] = msgspec.Raw(msgspec.json.encode(self._new(msgspec.json.decode(attr["value"]))))
            node["attrs"] = attrs

    def _new(self, old: object) -> object:
        if not isinstance(old, int) or old == 0:
            return old
        known = self.host_id.get(old)
        if known is None:  # the root's parent is no node; it keeps a number of its own
            self.last += 1
            known = self.host_id[old] = self.last
        return known

    def _add_times(self, node: Node, et_row: int) -> None:
        host = self.host_rows[et_row]
        if host == NOWHERE:
            return
        rows = self.linked.trace.host
        node["inclusive_dur"] = int(rows.end_ns[host] - rows.start_ns[host]) / 1000
        node["exclusive_dur"] = int(self.own_ns[host]) / 1000
        node["ts"] = int(rows.start_ns[host]) / 1000
        other = self.other_thread.get(et_row)
        node["inter_thread_dep"] = None if other is None else self.host_id[int(self.et.id[other])]
        self._add_sync(node, self.awaited.get(et_row, ()))

    def _device(self, host: Node, row: int) -> Node:
        rows, strings = self.linked.trace.device, self.linked.trace.strings
        took = int(rows.end_ns[row] - rows.start_ns[row]) / 1000
        node = {
            **host,
            "id": self.device_id[row],
            "parent" if "parent" in host else "ctrl_deps": host["id"],
            "cat": CATEGORY[DeviceKind(int(rows.kind[row]))],
            "name": strings[rows.name[row]],
            "ph": "X",
            "inclusive_dur": took,
            "exclusive_dur": took,
            "ts": int(rows.start_ns[row]) / 1000,
            "stream": int(rows.stream[row]),
        }
        if row in self.group_names:
            node["pg_name"] = self.group_names[row]
        self._add_sync(node, self.device_awaited.get(row, ()))
        return node

    def _add_sync(self, node: Node, awaited: Any) -> None:
        ids = [self.device_id[d] for d in awaited if d in self.device_id]
        if ids:
            node["sync_dep"] = ids


def write(out: BinaryIO, merged: Merged) -> None:
    """Write the merged trace, one node per line."""
    frame = _frame(merged.et)
    head = {
        key: _plain(frame.get(key), form)
        for key, form in (("schema", SCHEMA), ("pid", NUMBER), ("time", TIME), ("start_ts", NUMBER))
    }
    out.write(msgspec.json.encode(head)[:-1] + b',"nodes":[')
    between = b"\n"
    for node in merged.nodes():
        out.write(between + msgspec.json.encode(node))
        between = b",\n"
    out.write(b'\n],"finish_ts":' + bytes(_plain(frame.get("finish_ts"), NUMBER)) + b"}\n")


def _plain(value: msgspec.Raw | None, form: re.Pattern[str]) -> msgspec.Raw:
    """Return what an ET says of itself where it is what should stand there, else none: other metadata is not
    repeated.
    """
    text = bytes(value or b"").decode("utf-8", "replace").strip()
    whole = form.pattern if form is NUMBER else f'"(?:{form.pattern})"'
    return value if value is not None and re.fullmatch(whole, text) else msgspec.Raw(b"0" if form is NUMBER else b'""')


def _et(linked: Linked) -> HostTrace:
    assert linked.et is not None
    assert linked.et.nodes_json is not None
    return linked.et


def _own_ns(linked: Linked) -> I64:
    """Return the time of each host row that is in none of its children, waits included (as ``exclusive_dur`` is)."""
    rows, parent = linked.trace.host, linked.parent
    took: I64 = rows.end_ns - rows.start_ns
    own = took.copy()
    inside: I32 = np.flatnonzero((parent != NOWHERE) & ~linked.crossing).astype(np.int32)
    np.subtract.at(own, parent[inside], took[inside])
    return np.maximum(own, 0)


def _frame(et: HostTrace) -> dict[str, msgspec.Raw]:
    """Read the header and footer of the ET, which its records do not keep, by key; one more pass over the file."""
    with open_source(et.path) as source:
        whole = b"".join(iter(partial(source.read, 1 << 24), b""))
    try:
        return msgspec.json.decode(utf8(whole), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as problem:
        raise InputError(f"changed while it was read: {problem}", path=et.path, todo="run again") from None
