"""The least that reading, writing and replaying of some size must cost with the libraries in use; one measurement a
process.

``decode KINETO ET``: msgspec typed decode of both files, garbage collection off. ``encode N``: protobuf (upb) messages
of N nodes with 12 attributes, built with keywords, delimited. ``parse GRAPH``: protobuf (upb) messages from a ``.et``.
``walk N``: the longest path to each of N nodes with 1.4 edges a node, in plain Python on lists that are there already.
``queue N``: a heap of three entries, N nodes in and out. Prints CPU seconds (user + system) of that work alone.
"""

from __future__ import annotations

import gc
import heapq
import io
import mmap
import sys
import time
from pathlib import Path
from typing import Any

import msgspec


class _Args(msgspec.Struct, gc=False):
    rf_id: int | None = msgspec.field(default=None, name="Record function id")
    correlation: int | None = None
    stream: int | None = None
    device: int | None = None
    seq: int | None = msgspec.field(default=None, name="Sequence number")
    fw_tid: int | None = msgspec.field(default=None, name="Fwd thread id")
    order: int | None = msgspec.field(default=None, name="Ev Idx")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: float = 0.0
    dur: float = 0.0
    id: Any = None
    args: _Args | None = None


class _Kineto(msgspec.Struct, gc=False):
    traceEvents: list[_Event]


class _Attribute(msgspec.Struct, gc=False):
    name: str
    value: Any = None


class _Node(msgspec.Struct, gc=False):
    id: int
    name: str
    ctrl_deps: int
    inputs: msgspec.Raw
    outputs: msgspec.Raw
    attrs: list[_Attribute]


class _Et(msgspec.Struct, gc=False):
    nodes: list[_Node]


def decode(kineto: Path, et: Path) -> None:
    """Both files, one after the other."""
    for path, kind in ((kineto, _Kineto), (et, _Et)):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            msgspec.json.decode(text, type=kind)


def encode(nodes: int) -> None:
    from chakra.schema.protobuf.et_def_pb2 import AttributeProto, Node

    host = AttributeProto(name="is_cpu_op", bool_val=True)
    kinds = AttributeProto(name="dep_kinds")
    kinds.string_list.values.append("host")
    for first in range(0, nodes, 64_000):  # blocks, so that memory stays that of a writer
        out = io.BytesIO()
        for i in range(first, min(first + 64_000, nodes)):
            node = Node(
                id=i,
                name="aten::native_layer_norm",
                type=4,
                duration_micros=7,
                data_deps=[max(i - 1, 0)],
                ctrl_deps=[max(i - 1, 0)],
                attr=[
                    host,
                    kinds,
                    AttributeProto(name="start_ns", int64_val=i * 1000),
                    AttributeProto(name="end_ns", int64_val=i * 1000 + 700),
                    AttributeProto(name="duration_ns", int64_val=700 + i % 97),
                    AttributeProto(name="self_ns", int64_val=700),
                    AttributeProto(name="wait_ns", int64_val=0),
                    AttributeProto(name="tid", int64_val=4242),
                    AttributeProto(name="rf_id", int64_val=i),
                    AttributeProto(name="seq_id", int64_val=i // 3),
                    AttributeProto(name="scope", int64_val=0),
                    AttributeProto(
                        name="op_schema",
                        string_val="aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
                    ),
                ],
            )
            text = node.SerializeToString()
            length = len(text)
            while length > 127:
                out.write(bytes((length & 127 | 128,)))
                length >>= 7
            out.write(bytes((length,)))
            out.write(text)


def parse(graph: Path) -> None:
    from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node

    data = graph.read_bytes()
    at, kind = 0, GlobalMetadata
    while at < len(data):
        size = shift = 0
        while data[at] > 127:
            size |= (data[at] & 127) << shift
            shift += 7
            at += 1
        size |= data[at] << shift
        kind.FromString(data[at + 1 : at + 1 + size])
        at, kind = at + 1 + size, Node


def sources(nodes: int) -> list[tuple[int, ...]]:
    """The node before, and for two of five nodes one more."""
    return [(), *((i - 1,) if i % 5 > 1 else (i - 1 - i % 7 if i > 7 else 0, i - 1) for i in range(1, nodes))]


def walk(of: list[tuple[int, ...]]) -> None:
    end: list[int] = []
    for before in of:
        end.append(max([end[s] for s in before], default=0) + 7 if len(before) != 1 else end[before[0]] + 7)


def queue(nodes: int) -> None:
    heap: list[tuple[int, int]] = []
    for node in range(nodes):
        heapq.heappush(heap, (node * 7 % 31 + 5 * node, node))
        if len(heap) > 3:
            heapq.heappop(heap)


def main() -> None:
    gc.disable()
    what, *given = sys.argv[1:]
    if what in ("encode", "parse"):
        import chakra.schema.protobuf.et_def_pb2  # noqa: F401 - imported before the clock starts
    of = sources(int(given[0])) if what == "walk" else []
    before = time.process_time()
    if what == "decode":
        decode(Path(given[0]), Path(given[1]))
    elif what == "parse":
        parse(Path(given[0]))
    elif what == "walk":
        walk(of)
    else:
        {"encode": encode, "queue": queue}[what](int(given[0]))
    print(time.process_time() - before)


if __name__ == "__main__":
    main()
