"""What every written graph must hold to, checked on the file alone with the schema's own messages: no code of graphlink
is in here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chakra.schema.protobuf import et_def_pb2 as pb

TYPES = {pb.COMP_NODE, pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE}
KINDS = {"host", "thread", "launch", "stream", "event", "sync", "collective"}


@dataclass(frozen=True)
class File:
    head: dict[str, Any]
    nodes: list[Any]
    attributes: list[dict[str, Any]]  # parallel to nodes


def _values(attributes: Any) -> dict[str, Any]:
    out = {}
    for attribute in attributes:
        value = getattr(attribute, attribute.WhichOneof("value"))
        out[attribute.name] = list(value.values) if hasattr(value, "values") else value
    return out


def read(path: Path) -> File:
    """Varint length + message, repeated: one GlobalMetadata, then nodes."""
    text, at, messages = path.read_bytes(), 0, []
    while at < len(text):
        length = shift = 0
        while True:
            byte = text[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        messages.append(text[at : at + length])
        assert len(messages[-1]) == length, "the last message is cut"
        at += length
    head = pb.GlobalMetadata.FromString(messages[0])
    assert head.version
    nodes = [pb.Node.FromString(message) for message in messages[1:]]
    return File(_values(head.attr), nodes, [_values(node.attr) for node in nodes])


def broken(file: File) -> list[str]:
    """What is wrong with a graph, one line each."""
    out = []
    nodes, attributes = file.nodes, file.attributes
    place = {node.id: i for i, node in enumerate(nodes)}
    if [node.id for node in nodes] != sorted(place):
        out.append("ids do not ascend, or are not unique")
    starts = [a["start_ns"] for a in attributes]
    if starts != sorted(starts) or starts[0] != 0:
        out.append("nodes are not in start order from 0")
    for i, (node, a) in enumerate(zip(nodes, attributes, strict=True)):
        deps, callers = list(node.data_deps), list(node.ctrl_deps)
        where = f"node {node.id} {node.name[:40]!r}"
        for what, ids in (("data_deps", deps), ("ctrl_deps", callers)):
            if len(set(ids)) != len(ids) or any(place.get(d, i) >= i for d in ids):
                out.append(f"{where}: {what} {ids[:5]} not unique, dangling or not earlier")
        if len(a["dep_kinds"]) != len(deps) or not set(a["dep_kinds"]) <= KINDS:
            out.append(f"{where}: dep_kinds {a['dep_kinds'][:5]}")
        if node.type not in TYPES or (a["is_cpu_op"] and node.type != pb.COMP_NODE):
            out.append(f"{where}: type {node.type}")
        if any(
            a.get(key, 0) < 0
            for key in ("duration_ns", "self_ns", "wait_ns", "wake_ns", "start_delay_ns", "overlap_ns")
        ):
            out.append(f"{where}: a time below 0")
        for d, kind in zip(deps, a["dep_kinds"], strict=False):
            source = attributes[place[d]] if d in place else a
            same = ("device", "stream") if kind == "stream" else ("tid",) if kind == "host" else ()
            if any(source.get(key) != a.get(key) for key in same):
                out.append(f"{where}: {kind} edge from {d} leaves its {same[-1]}")
            if not source["is_cpu_op"] and source["start_ns"] + source["duration_ns"] > a["start_ns"] + 1000:
                out.append(f"{where}: begins before device node {d} has ended")
    last = attributes[-1]
    if (nodes[-1].name, nodes[-1].type, last["duration_ns"], last["is_cpu_op"]) != ("end", pb.COMP_NODE, 0, True):
        out.append("the last node is not `end`")
    followed = {d for node in nodes for d in node.data_deps}
    if len(nodes) - 1 != len(followed - {nodes[-1].id}):
        out.append("a leaf that `end` does not follow")
    return out + _sums(file)


def _sums(file: File) -> list[str]:
    """Whole microseconds add up to the ns within 1 us along every thread and stream."""
    micros: dict[tuple[Any, ...], int] = defaultdict(int)
    ns: dict[tuple[Any, ...], int] = defaultdict(int)
    for node, a in zip(file.nodes, file.attributes, strict=True):
        lane = (a["tid"],) if a["is_cpu_op"] else (a["device"], a["stream"])
        micros[lane] += node.duration_micros
        ns[lane] += a["duration_ns"] + a.get("start_delay_ns", 0)
    return [
        f"lane {lane}: {micros[lane]} us for {ns[lane]} ns" for lane in ns if abs(micros[lane] * 1000 - ns[lane]) > 1000
    ]
