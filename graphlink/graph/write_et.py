"""Writes a graph as a Chakra ``.et``: length-prefixed ``GlobalMetadata``, then ``Node``s in id order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb
from numpy.typing import NDArray

from graphlink.graph import attributes as attr
from graphlink.graph.read_et import frames
from graphlink.graph_model import EdgeKind, Graph, Metadata, NodeKind
from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.read.source import open_source
from graphlink.tables import among, begins, codes, nowhere, numbered_rows, numbered_values, spread, tuples, values_at

BLOCK: Final = 4_096  # nodes encoded at a time
# columns that are written behind the others, in this order
COMMUNICATION: Final = (
    *("comm_type", "comm_size", "comm_size_recorded", "pg_name", "pg_desc"),
    *("comm_src", "comm_dst", "comm_tag", "comm_type_recorded"),
)
_INT32: Final = ("comm_src", "comm_dst", "comm_tag")
_ABSENT: Final = np.iinfo(np.int64).min  # no attribute has this value
KINDS: Final = tuple(k.name.lower() for k in EdgeKind)
# of graphs that were read, changed and are written again
_TIMES: Final = ("start_ns", "end_ns", "duration_ns", "self_ns", "wait_ns", "wake_ns")
_KEPT: Final = ("pg_desc", "comm_type_recorded", "comm_size_recorded")
# what only a recording can say: what a wait or a bubble was recorded to be
_RECORDED: Final = ("bubble_before_ns", "bubble_cause", "comm_wait_ns", "device_clock_ns")
_DROPPED: Final = frozenset({*_TIMES, "is_cpu_op", "dep_kinds", *COMMUNICATION, *_RECORDED}.difference(_KEPT))


def type_name(node_type: int) -> str:
    """Return COMP_NODE, COMM_COLL_NODE, ...; the number in words where the schema has no such type."""
    return str(pb.NodeType.Name(node_type)) if node_type in pb.NodeType.values() else f"type {node_type}"


def write_et(out: BinaryIO, graph: Graph) -> int:
    """Write the whole ``.et`` of a graph that was built or computed, a block of nodes at a time, and return the number
    of bytes written.

    The rows of a built graph give shapes, types and schemas of ops, and what the ET says of them. The ``columns`` are
    written as attributes of their names, in their order, integers before those of communication and texts behind.

    Raises:
        ValueError: the graph was read from a file, which has more of its nodes than the graph.
    """
    if graph.read is not None:
        raise ValueError("a graph that was read from a file cannot be written: it does not have all that the file has")
    size = out.write(attr.framed([global_metadata(graph.metadata)]))
    for block in node_blocks(graph):
        size += out.write(attr.framed(block))
    return size


def global_metadata(metadata: Metadata) -> bytes:
    """Encode what the ``.et`` says of its rank; of the host nodes only if they are not all there, of the clock if it is
    not the run's.
    """
    values = {
        "epoch_ns": metadata.epoch_ns,
        "rank": metadata.rank,
        "world_size": metadata.world_size,
        "graphlink": metadata.graphlink,
        "clock_offset_ns": metadata.clock_offset_ns or None,
        "clock_drift_ppb": metadata.clock_drift_ppb or None,
        "host": metadata.host,
        "made": metadata.made,
    }
    attributes = [
        pb.AttributeProto(name=name, **{"string_val" if isinstance(value, str) else "int64_val": value})
        for name, value in values.items()
        if value is not None
    ]
    return bytes(pb.GlobalMetadata(version=metadata.version, attr=attributes).SerializeToString())


def node_blocks(graph: Graph) -> Iterator[list[bytes]]:
    """Yield serialised ``Node`` messages in id order, some thousands a list."""
    ios, schemas, text_row = _host_texts(graph)
    calls, of_few = _sync_calls(graph), comm_bytes(graph)
    # and the texts that features know of nodes
    for name, column in graph.columns.items():
        if column.texts and name not in COMMUNICATION:
            encoded = {k: attr.text(name, column.texts[k]) for k in np.unique(column.value).tolist()}
            for i, k in tuples(column.node, column.value):
                of_few[i] = of_few.get(i, b"") + encoded[k]
    calling, few = sorted(calls), sorted(of_few)
    for part, heads, tails in node_fields(graph):
        ints = attr.int_attributes([*_int_columns(graph, part), *_open_columns(graph, part)], graph.host[part])
        rows = text_row[part]
        ends = schemas[rows].tolist()
        _add(tails, part, calling, calls)
        _add(ends, part, few, of_few)
        yield list(map(b"".join, zip(*heads, ios[rows].tolist(), ints, tails, ends, strict=True)))


def _add(texts: list[bytes], part: slice, nodes: Sequence[int], known: Mapping[int, bytes]) -> None:
    """Add what is ``known`` of some nodes, which ``nodes`` has in order, to the texts of the nodes of ``part``."""
    for node in nodes[bisect_left(nodes, part.start) : bisect_left(nodes, part.stop)]:
        texts[node - part.start] += known[node]


def node_fields(graph: Graph) -> Iterator[tuple[slice, tuple[list[bytes], ...], list[bytes]]]:
    """Yield what nodes say of themselves and their dependencies, some thousands at a time: which they are, of their
    messages what stands before inputs, id to duration, and ``is_cpu_op`` and ``dep_kinds``, all as one entry a node.
    """
    duration_us = micros(graph)
    kinds = graph.edge_kind.astype(np.uint8).tobytes()
    keys, of_node = numbered_values(graph.name.astype(np.int64) << 8 | graph.type)
    named = np.array(
        [pb.Node(name=graph.strings[key >> 8], type=key & 255).SerializeToString() for key in keys.tolist()], object
    )
    for low in range(0, len(graph.name), BLOCK):
        part = slice(low, min(low + BLOCK, len(graph.name)))
        count, first = part.stop - low, graph.first[low : part.stop + 1]
        caller, start, duration = graph.caller[part], (graph.start_ns[part] + 500) // 1000, duration_us[part]
        id_, of_caller, sources = (
            np.add(nodes, graph.first_id, dtype=np.int64)
            for nodes in (np.arange(low, part.stop), caller, graph.source[first[0] : first[-1]])
        )
        # scalars, then inputs and outputs, then attributes: field order, so joined bytes are one message; a zero is not
        # written
        heads = (
            attr.int_fields([(b"\x08", id_, id_ != 0)], count).pieces(),
            named[of_node[part]].tolist(),
            attr.int_fields([(b"\x22\x00", of_caller, caller != NOWHERE)], count).pieces(),
            attr.lists(first, sources, b"\x2a"),
            attr.int_fields([(b"\x30", start, start != 0), (b"\x38", duration, duration != 0)], count).pieces(),
        )
        tails = list(map(tail, graph.host[part].tolist(), attr.pieces(kinds[first[0] : first[-1]], np.diff(first))))
        yield part, heads, tails


def lanes(graph: Graph) -> tuple[I64, I64]:
    """Return where each node runs: (device or 0, thread or stream); host-side communication is at (-1, -1)."""
    return np.where(graph.host, 0, graph.device), np.where(graph.host, graph.tid, graph.stream)


def micros(graph: Graph) -> I64:
    """Return ``duration_micros`` of each node: what is rounded off one node is carried to the next on its thread or
    stream.

    After every node, the sum over its thread or stream is the nearest whole microsecond to the sum in ns. Of a file: as
    written.
    """
    if graph.read is not None:
        return graph.read.duration_micros
    lane = codes(graph.host, *lanes(graph))
    order = np.argsort(lane.astype(np.min_scalar_type(lane.max(initial=0))), kind="stable")  # node order stays inside
    starts = np.flatnonzero(begins(lane[order]))
    total = np.cumsum(graph.cost_ns[order])
    before = np.append(0, total[starts[1:] - 1])[: len(starts)]
    total -= np.repeat(before, np.diff(np.append(starts, len(order))))
    total = (total + 500) // 1000
    own = np.diff(total, prepend=0)
    own[starts] = total[starts]
    return spread(len(order), order, own)


@lru_cache(maxsize=4096)
def tail(host: bool, kinds: bytes) -> bytes:
    """Return ``is_cpu_op`` and ``dep_kinds``, which few nodes have to themselves."""
    return attr.attribute("is_cpu_op", bool_val=host) + attr.texts("dep_kinds", [KINDS[k] for k in kinds])


def _host_texts(graph: Graph) -> tuple[NDArray[np.object_], NDArray[np.object_], I32]:
    """Encode inputs and outputs, and ``op_schema``, of each host row: from the ET, else (inputs only) from Kineto; the
    last entry is of no row. The third column is the row of each node, ``NOWHERE`` where it has no such texts."""
    if graph.rows is None:
        nothing = np.array([b""], object)
        return nothing, nothing, nowhere(len(graph.name), np.int32)
    linked = graph.linked
    host, et = linked.trace.host, linked.et
    et_row = linked.match.et
    own, matched = et_row == NOWHERE, et_row != NOWHERE
    sources = [(own, [c[own] for c in (host.input_shapes, host.input_types)], linked.trace.strings)]
    if et is not None:
        of_et = et.input_shapes, et.input_types, et.output_shapes, et.output_types, et.op_schema
        sources.append((matched, [c[et_row[matched]] for c in of_et], et.strings))
    number, texts = np.zeros(len(et_row) + 1, np.int64), [(b"", b"")]
    for mine, columns, strings in sources:
        rows, which = numbered_rows(*columns)
        number[:-1][mine] = len(texts) + which
        texts += [_encode_texts([strings[k] for k in row]) for row in rows.tolist()]
    ios, schemas = (np.array(column, object)[number] for column in zip(*texts, strict=True))
    whole = among(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_ASYNC))
    return ios, schemas, np.where(whole, graph.row, np.int32(NOWHERE))


def _encode_texts(words: Sequence[str]) -> tuple[bytes, bytes]:
    io = b""
    if words[0] or words[1]:
        io = pb.Node(inputs=pb.IOInfo(shapes=words[0], types=words[1])).SerializeToString()
    if len(words) == 2:  # Kineto's: inputs only, no schema
        return io, b""
    if words[2] or words[3]:
        io += pb.Node(outputs=pb.IOInfo(shapes=words[2], types=words[3])).SerializeToString()
    return io, attr.text("op_schema", words[4])


def _int_columns(graph: Graph, part: slice) -> list[attr.IntColumn]:
    """Return the ``int64_val`` attributes of CONTRACT.md of the nodes of ``part``, but those of communication."""
    host = graph.host[part]
    device_op = ~host
    correlation = clock_ns = np.zeros(len(host), np.int64)
    if graph.rows is not None:
        trace, is_op = graph.linked.trace, graph.kind[part] == NodeKind.DEVICE_OP
        device_op = is_op & (graph.device[part] >= 0)
        op_row = graph.row[part][is_op]
        correlation = spread(len(host), is_op, trace.device.correlation[op_row], 0)
        if trace.clocks is not None:
            clock_ns = spread(len(host), is_op, trace.clocks.offset_ns[op_row], 0)
    wake_ns = graph.wake_ns[part]
    return [
        ("start_ns", graph.start_ns[part], None),
        ("end_ns", graph.end_ns[part], None),
        ("duration_ns", graph.duration_ns[part], None),
        ("tid", graph.tid[part], host),
        ("self_ns", graph.self_ns[part], host),
        ("wait_ns", graph.wait_ns[part], host),
        ("wake_ns", wake_ns, wake_ns > 0),
        ("device", graph.device[part], ~host),
        ("stream", graph.stream[part], ~host),
        ("correlation", correlation, device_op),
        ("device_clock_ns", clock_ns, device_op & (clock_ns != 0)),
        ("start_delay_ns", graph.start_delay_ns[part], ~host),
        ("launch_latency_ns", graph.launch_latency_ns[part], ~host),
        ("overlap_ns", graph.overlap_ns[part], ~host),
        *_et_columns(graph, part),
    ]


def et_rows(graph: Graph, part: slice = slice(None)) -> I64:
    """Return the ET row of each node of ``part``: of a host op itself, of a part its op's; ``NOWHERE`` else."""
    kind = graph.kind[part]
    of_row = np.isin(kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_ASYNC))
    return spread(len(kind), of_row, graph.linked.match.et[graph.row[part][of_row]])


def _et_columns(graph: Graph, part: slice) -> Iterable[attr.IntColumn]:
    """Yield what the ET knows of matched host ops; the parts of an op share its ``rf_id`` only."""
    et = None if graph.rows is None else graph.linked.et
    if et is None:
        return
    et_row = et_rows(graph, part)
    matched = et_row != NOWHERE
    whole: Bool = matched & (graph.kind[part] != NodeKind.HOST_PART)

    yield "rf_id", values_at(et.rf_id, et_row, 0), matched
    for name, of_et in (
        ("fw_parent", et.fw_parent),
        ("seq_id", et.seq_id),
        ("scope", et.scope),
        ("et_tid", et.tid),
        ("fw_tid", et.fw_tid),
    ):
        yield name, values_at(of_et, et_row, 0), whole


def _open_columns(graph: Graph, part: slice) -> Iterable[attr.IntColumn]:
    """Yield the integers that features know of the nodes of ``part``."""
    for name, column in graph.columns.items():
        mine = slice(*np.searchsorted(column.node, (part.start, part.stop)).tolist())
        if not column.texts and name not in COMMUNICATION and mine.start < mine.stop:
            at = column.node[mine] - part.start
            value, where = np.zeros(part.stop - part.start, np.int64), np.zeros(part.stop - part.start, np.bool_)
            value[at], where[at] = column.value[mine], True
            yield name, value, where


def _sync_calls(graph: Graph) -> dict[int, bytes]:
    """Return ``sync_call`` by node: the name of the call where all its ``sync`` edges are of one, else a list parallel
    to ``data_deps``.
    """
    if graph.rows is None:
        return {}
    calls, names, strings = graph.sync_calls, graph.linked.trace.calls.name, graph.linked.trace.strings
    of_node: dict[int, dict[int, dict[str, None]]] = {}
    for source, node, name in tuples(calls.source, calls.target, names[calls.call]):
        of_node.setdefault(node, {}).setdefault(source, {})[strings[name]] = None
    out = {}
    for node, by_source in of_node.items():
        edges = slice(int(graph.first[node]), int(graph.first[node + 1]))
        words = [" ".join(by_source.get(source, ())) for source in graph.source[edges].tolist()]
        of_sync = {words[i] for i in np.flatnonzero(graph.edge_kind[edges] == EdgeKind.SYNC).tolist()}
        one = " ".join(of_sync)
        out[node] = attr.texts("sync_call", words) if len(of_sync) > 1 or " " in one else attr.text("sync_call", one)
    return out


def comm_bytes(graph: Graph) -> dict[int, bytes]:
    """Encode the attributes of communication by node, in the order of ``COMMUNICATION``."""
    columns = [(name, graph.columns[name]) for name in COMMUNICATION if name in graph.columns]
    if not columns:
        return {}
    node = np.unique(np.concatenate([column.node for _, column in columns]))
    table = np.full((len(columns), len(node)), _ABSENT, np.int64)
    for entries, (_, column) in zip(table, columns, strict=True):
        entries[np.searchsorted(node, column.node)] = column.value
    rows, which = numbered_rows(*table)
    encoded = [
        b"".join(_encoded(name, column.texts, value) for (name, column), value in zip(columns, row, strict=True))
        for row in rows.tolist()
    ]
    return {i: encoded[k] for i, k in tuples(node, which)}


def _encoded(name: str, texts: Sequence[str], value: int) -> bytes:
    if value == _ABSENT:
        return b""
    if name == "pg_name" or texts:
        return attr.text(name, texts[value] if texts else str(value))
    return attr.attribute(name, **{"int32_val" if name in _INT32 else "int64_val": value})


def read_rests(path: Path) -> list[bytes]:
    """Return of each node, in file order, what stays of it whatever becomes of its times, edges and communication.

    What only a recording can say (what a wait or a bubble was recorded to be, what NCCL noted) is left out.

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
            kept = [a for a in node.attr if a.name not in _DROPPED and not a.name.startswith("nccl_")]
            del node.attr[:]
            node.attr.extend(kept)
            out.append(node.SerializeToString())
    return out


def write_changed(out: BinaryIO, graph: Graph, origin: I64, rests: Sequence[bytes]) -> int:
    """Write a graph that was read and changed, whose nodes stand in the order of their ids; ``rests[origin[n]]`` is
    what stays of node n (``read_rests``). Return the number of bytes written."""
    size = out.write(attr.framed([global_metadata(graph.metadata)]))
    host = graph.host
    columns = [
        *((name, getattr(graph, name), None if name in _TIMES[:3] else host) for name in _TIMES[:5]),
        ("wake_ns", graph.wake_ns, host & (graph.wake_ns > 0)),
    ]
    comms = comm_bytes(graph)
    for part, heads, tails in node_fields(graph):
        ints = attr.int_attributes([(n, v[part], None if w is None else w[part]) for n, v, w in columns], host[part])
        kept = [rests[of] for of in origin[part].tolist()]
        of_comms = map(comms.get, range(part.start, part.stop), repeat(b""))
        size += out.write(attr.framed(list(map(b"".join, zip(*heads, kept, ints, tails, of_comms, strict=True)))))
    return size
