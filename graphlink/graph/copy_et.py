"""Writes a graph that was read from a ``.et`` and changed: what the file says of a node beside its times, edges and
communication stays.

What only a recording can say (what a wait or a bubble was recorded to be, what NCCL noted) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, Final

from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.graph import attributes as attr
from graphlink.graph.read_et import frames
from graphlink.graph.write_et import COMMUNICATION, comm_bytes, fields, global_metadata
from graphlink.graph_model import Graph
from graphlink.model import I64
from graphlink.read.source import open_source

_TIMES: Final = ("start_ns", "end_ns", "duration_ns", "self_ns", "wait_ns", "wake_ns")
_KEPT: Final = ("pg_desc", "comm_type_recorded", "comm_size_recorded")
_ANEW: Final = frozenset({*_TIMES, "is_cpu_op", "dep_kinds", *COMMUNICATION}.difference(_KEPT))
_RECORDED: Final = frozenset({"bubble_before_ns", "bubble_cause", "comm_wait_ns", "device_clock_ns"})


def read_rests(path: Path) -> list[bytes]:
    """Return of each node, in file order, what stays of it whatever becomes of its times, edges and communication.

    Raises:
        InputError: as ``read_et``.
    """
    out = []
    with open_source(path) as source:
        messages = frames(source)
        next(messages)
        for _, message in messages:
            node = pb.Node.FromString(message)
            for name in ("id", "name", "type", "ctrl_deps", "data_deps", "start_time_micros", "duration_micros"):
                node.ClearField(name)
            kept = [
                a
                for a in node.attr
                if a.name not in _ANEW and a.name not in _RECORDED and not a.name.startswith("nccl_")
            ]
            del node.attr[:]
            node.attr.extend(kept)
            out.append(node.SerializeToString())
    return out


def write_changed(out: BinaryIO, graph: Graph, origin: I64, rests: Sequence[bytes]) -> int:
    """Write ``graph``, whose nodes stand in the order of their ids; ``rests[origin[n]]`` is what stays of node n.
    Return the bytes written."""
    size = out.write(attr.framed([global_metadata(graph.metadata)]))
    host = graph.host
    columns = [(name, getattr(graph, name), None if name in _TIMES[:3] else host) for name in _TIMES[:5]]
    columns.append(("wake_ns", graph.wake_ns, host & (graph.wake_ns > 0)))
    comms = comm_bytes(graph)
    for part, heads, tails in fields(graph):
        ints = attr.int_attributes(
            [(n, v[part], None if w is None else w[part]) for n, v, w in columns], len(tails)
        ).pieces()
        kept = [rests[of] for of in origin[part].tolist()]
        of_comms = map(comms.get, range(part.start, part.stop), repeat(b""))
        size += out.write(attr.framed(list(map(b"".join, zip(*heads, kept, ints, tails, of_comms, strict=True)))))
    return size
