"""Writes a graph that was read from a ``.et`` and changed: what the file says of a node beside its times, edges and communication stays.

What only a recording can say (what a wait or a bubble was recorded to be, what NCCL noted) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.graph import attributes as attr
from graphlink.graph.durations import micros
from graphlink.graph.read_et import frames
from graphlink.graph.write_et import BLOCK, COMMUNICATION, comm_bytes, global_metadata, tail
from graphlink.graph_model import Graph
from graphlink.model import I64, NOWHERE
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
            kept = [a for a in node.attr if a.name not in _ANEW and a.name not in _RECORDED and not a.name.startswith("nccl_")]
            del node.attr[:]
            node.attr.extend(kept)
            out.append(node.SerializeToString())
    return out


def write_changed(out: BinaryIO, graph: Graph, origin: I64, rests: Sequence[bytes]) -> int:
    """Write ``graph``, whose nodes stand in the order of their ids; ``rests[origin[n]]`` is what stays of node n. Return the bytes
    written."""
    size = out.write(attr.framed(global_metadata(graph.metadata)))
    host = graph.host
    columns = [(name, getattr(graph, name), None if name in _TIMES[:3] else host) for name in _TIMES[:5]]
    columns.append(("wake_ns", graph.wake_ns, host & (graph.wake_ns > 0)))
    start_us, duration_us, comms = (graph.start_ns + 500) // 1000, micros(graph), comm_bytes(graph)
    kinds, source = graph.edge_kind.astype(np.uint8).tobytes(), graph.source.tolist()
    node = pb.Node()
    for low in range(0, len(graph.name), BLOCK):
        part = slice(low, min(low + BLOCK, len(graph.name)))
        ints = attr.int_blobs([(n, v[part], None if w is None else w[part]) for n, v, w in columns], part.stop - low)
        ends = graph.first[low : part.stop + 1].tolist()
        block = []
        for i, code, type_, is_host, caller, start, duration, blob, rest in zip(
            range(low, part.stop),
            graph.name[part].tolist(),
            graph.type[part].tolist(),
            host[part].tolist(),
            graph.caller[part].tolist(),
            start_us[part].tolist(),
            duration_us[part].tolist(),
            ints,
            origin[part].tolist(),
            strict=True,
        ):
            a, b = ends[i - low], ends[i - low + 1]
            node.id, node.name, node.type = i, graph.strings[code], type_
            node.start_time_micros, node.duration_micros = start, duration
            node.ctrl_deps[:] = () if caller == NOWHERE else (caller,)
            node.data_deps[:] = source[a:b]
            head = node.SerializeToString() + rests[rest] + blob + tail(is_host, kinds[a:b])
            block.append(attr.framed(head + comms.get(i, b"")))
        size += out.write(b"".join(block))
    return size
