"""Writes a graph as a Chakra ``.et``: length-prefixed ``GlobalMetadata``, then ``Node``s in id order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import msgspec
import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.graph import attributes as attr
from graphlink.graph.durations import micros, on_host
from graphlink.graph.names import names
from graphlink.graph.target import WrittenComm, written_all
from graphlink.model import I32, I64, NOWHERE, Bool, CommNode, Communication, EdgeKind, Graph, Linked, NodeKind
from graphlink.nccl import attributes as nccl_attributes
from graphlink.nccl.noted import NcclNotes
from graphlink.pipeline.notes import Notes
from graphlink.pipeline.records import Cause, Phase
from graphlink.ranks.group_ids import GroupIds, key
from graphlink.ranks.group_ids import named as named_groups
from graphlink.ranks.records import GroupKey
from graphlink.records import Short
from graphlink.version import __version__

SCHEMA_VERSION: Final = "0.0.4"  # of mlcommons/chakra; readers take any, but none must be empty
BLOCK: Final = 4_096  # nodes encoded at a time
KINDS: Final = tuple(k.name.lower() for k in EdgeKind)
FEW: Final = 8  # dependencies of a node up to which its list of kinds is kept for the next node


@dataclass(frozen=True, slots=True)
class Heading:
    """Say what the ``GlobalMetadata`` of a rank holds.

    ``host``: which host nodes there are, of ``--host``; only what is not all is written.

    ``clock_offset_ns``, ``clock_drift_ppb``: run = own + offset + drift * (own - ``epoch_ns``); written where the clock is not the run's.
    """

    rank: int
    world_size: int
    epoch_ns: int
    host: str = "full"
    clock_offset_ns: int = 0
    clock_drift_ppb: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class CommPlan(Short):
    """How the communication nodes of one rank are written: by node, with the groups they name and what was replaced."""

    by_node: dict[int, WrittenComm]
    groups: tuple[GroupKey, ...]
    replaced: dict[str, int]


def type_name(node_type: int) -> str:
    """COMP_NODE, COMM_COLL_NODE, ...; the number in words where the schema has no such type."""
    return str(pb.NodeType.Name(node_type)) if node_type in pb.NodeType.values() else f"type {node_type}"


def plan(graph: Graph, comm: Communication, rank: int, target: str) -> CommPlan:
    """Decide node type, size in bytes and group of every communication node. Linear in nodes and communication ops."""
    by_node: dict[int, WrittenComm] = {}
    for kind, rows, nodes in (
        (NodeKind.DEVICE_OP, comm.device_row, comm.device_node),
        (NodeKind.HOST_COMM, comm.host_row, comm.host_node),
    ):
        by_row = _by_row(rows, nodes, comm, rank, target)
        for i in np.flatnonzero((graph.kind == kind) & np.isin(graph.row, rows)).tolist():
            by_node[i] = by_row[int(graph.row[i])]
    replaced = Counter(c.replaced for c in by_node.values() if c.replaced)
    return CommPlan(by_node, named_groups(comm.groups, by_node.values()), dict(sorted(replaced.items())))


def joined(plan: CommPlan, unmatched: Iterable[int], size_bytes: Mapping[int, int]) -> CommPlan:
    """``plan`` as the other ranks make it: nodes that have no counterpart are computation, and uneven collectives have one size on all."""
    by_node = dict(plan.by_node)
    for node in unmatched:
        written = by_node.get(node)
        if written is not None and written.node_type != pb.COMP_NODE:
            by_node[node] = WrittenComm(pb.COMP_NODE, recorded=written.recorded or _word(written), replaced="unmatched on other ranks")
    for node, size in size_bytes.items():
        written = by_node.get(node)
        if written is not None and written.node_type != pb.COMP_NODE and written.size_bytes != size:
            by_node[node] = msgspec.structs.replace(
                written, size_bytes=size, size_recorded=written.size_bytes, replaced="uneven sizes as the largest rank's"
            )
    replaced = Counter(c.replaced for c in by_node.values() if c.replaced)
    return CommPlan(by_node, plan.groups, dict(sorted(replaced.items())))


def _word(written: WrittenComm) -> str:
    """What a node was recorded as, where it was not replaced by something else already."""
    if written.node_type != pb.COMM_COLL_NODE:
        return "SEND" if written.node_type == pb.COMM_SEND_NODE else "RECV"
    return str(pb.CollectiveCommType.Name(written.comm_type))


def _by_row(rows: I32, nodes: tuple[CommNode, ...], comm: Communication, rank: int, target: str) -> dict[int, WrittenComm]:
    return dict(zip(rows.tolist(), written_all(nodes, comm, rank, target), strict=True))


def write_et(
    out: BinaryIO,
    graph: Graph,
    linked: Linked,
    comm: Communication,
    plan: CommPlan,
    ids: GroupIds,
    heading: Heading,
    notes: Notes | None = None,
    comm_wait_ns: I64 | None = None,
    nccl: NcclNotes | None = None,
) -> int:
    """Write the whole ``.et`` to ``out``, a block of nodes at a time, and return the number of bytes written.

    ``notes`` only where the rank is part of a pipeline, ``comm_wait_ns`` (one entry a node, written where > 0) only where other ranks tell,
    ``nccl`` only where side files do.
    """
    size = out.write(attr.framed(global_metadata(heading)))
    for block in node_blocks(graph, linked, comm, plan, ids, notes, comm_wait_ns, nccl):
        size += out.write(b"".join(map(attr.framed, block)))
    return size


def global_metadata(heading: Heading) -> bytes:
    a = pb.AttributeProto
    attributes = [
        a(name="epoch_ns", int64_val=heading.epoch_ns),
        a(name="rank", int64_val=heading.rank),
        a(name="world_size", int64_val=heading.world_size),
        a(name="graphlink", string_val=__version__),
        *(a(name=name, int64_val=value) for name, value in _clock(heading) if value),
        *([a(name="host", string_val=heading.host)] if heading.host != "full" else []),
    ]
    return attr.serialised(pb.GlobalMetadata(version=SCHEMA_VERSION, attr=attributes))


def _clock(heading: Heading) -> tuple[tuple[str, int], ...]:
    return ("clock_offset_ns", heading.clock_offset_ns), ("clock_drift_ppb", heading.clock_drift_ppb)


def node_blocks(
    graph: Graph,
    linked: Linked,
    comm: Communication,
    plan: CommPlan,
    ids: GroupIds,
    notes: Notes | None = None,
    comm_wait_ns: I64 | None = None,
    nccl: NcclNotes | None = None,
) -> Iterator[list[bytes]]:
    """Serialised ``Node`` messages in id order, some thousands a list."""
    named, tails, texts = names(graph, linked), _Tails(graph), _HostTexts(graph, linked)
    comms, calls = _comm_bytes(comm, plan, ids), _sync_calls(graph, linked)
    start_us, duration_us = (graph.start_ns + 500) // 1000, micros(graph)
    columns = [*_int_columns(graph, linked), *_note_columns(notes)]
    if comm_wait_ns is not None:
        columns.append(attr.IntColumn("comm_wait_ns", comm_wait_ns, comm_wait_ns > 0))
    columns += nccl_attributes.int_columns(nccl, len(graph.kind))
    noted = nccl_attributes.text_attributes(nccl)
    noted |= {i: noted.get(i, b"") + text for i, text in _noted(notes).items()}
    node = pb.Node()  # one for all: to make a message takes longer than to fill it
    for low in range(0, len(graph.kind), BLOCK):
        part = slice(low, min(low + BLOCK, len(graph.kind)))
        count = part.stop - low
        ints = attr.int_blobs([attr.IntColumn(c.name, c.value[part], None if c.where is None else c.where[part]) for c in columns], count)
        ends = graph.first[low : part.stop + 1].tolist()
        base = ends[0]
        sources = graph.source[base : ends[-1]].tolist()
        block = []
        for i, code, caller, start, duration, blob in zip(
            range(low, part.stop),
            named.code[part].tolist(),
            graph.caller[part].tolist(),
            start_us[part].tolist(),
            duration_us[part].tolist(),
            ints,
            strict=True,
        ):
            a, b = ends[i - low] - base, ends[i - low + 1] - base
            written = comms.get(i)
            # scalars, then inputs and outputs, then attributes: field order, so joined bytes are one message
            node.id, node.name, node.start_time_micros, node.duration_micros = i, named.texts[code], start, duration
            node.type = pb.COMP_NODE if written is None else written[0]
            node.ctrl_deps[:] = () if caller == NOWHERE else (caller,)
            node.data_deps[:] = sources[a:b]
            shapes, schema = texts.of(i)
            rest = node.SerializeToString() + shapes + blob + tails.of(i, a + base, b + base) + calls.get(i, b"") + schema
            if written is not None:
                rest += written[1]
            block.append(rest if i not in noted else rest + noted[i])
        yield block


class _Tails:
    """``is_cpu_op`` and ``dep_kinds``, which few nodes have to themselves."""

    def __init__(self, graph: Graph) -> None:
        self._kinds = graph.edge_kind.astype(np.uint8).tobytes()
        self._host = on_host(graph).tolist()
        self._known: dict[tuple[bool, bytes], bytes] = {}

    def of(self, i: int, first: int, end: int) -> bytes:
        which = self._host[i], self._kinds[first:end]
        known = self._known.get(which)
        if known is None:
            known = attr.is_cpu_op(which[0]) + attr.dep_kinds([KINDS[k] for k in which[1]])
            if end - first <= FEW:
                self._known[which] = known
        return known


class _HostTexts:
    """Inputs and outputs, and ``op_schema``, of host ops: from the ET, else (inputs only) from Kineto."""

    def __init__(self, graph: Graph, linked: Linked) -> None:
        host, et = linked.trace.host, linked.et
        op = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_ASYNC))
        self._row: list[int] = np.where(op, graph.row, NOWHERE).tolist()
        self._strings = linked.trace.strings
        self._kineto = list(zip(host.input_shapes.tolist(), host.input_types.tolist(), strict=True))
        self._et_row: list[int] = linked.match.et.tolist()
        self._et_strings: tuple[str, ...] = et.strings if et else ()
        columns = (et.input_shapes, et.input_types, et.output_shapes, et.output_types, et.op_schema) if et else ()
        self._et = list(zip(*(c.tolist() for c in columns), strict=True))
        self._known: dict[tuple[int, ...], tuple[bytes, bytes]] = {}

    def of(self, i: int) -> tuple[bytes, bytes]:
        row = self._row[i]
        if row == NOWHERE:
            return b"", b""
        et_row = self._et_row[row]
        which = self._kineto[row] if et_row == NOWHERE else self._et[et_row]
        known = self._known.get(which)
        if known is None:
            known = self._known[which] = self._encode(which, self._strings if et_row == NOWHERE else self._et_strings)
        return known

    def _encode(self, which: tuple[int, ...], strings: tuple[str, ...]) -> tuple[bytes, bytes]:
        words = [strings[k] for k in which]
        io = attr.inputs(words[0], words[1]) if words[0] or words[1] else b""
        if len(words) == 2:  # Kineto's: inputs only, no schema
            return io, b""
        if words[2] or words[3]:
            io += attr.outputs(words[2], words[3])
        return io, attr.text("op_schema", words[4])


def _int_columns(graph: Graph, linked: Linked) -> list[attr.IntColumn]:
    """The ``int64_val`` attributes of CONTRACT.md, but those of communication."""
    host = on_host(graph)
    kind = graph.kind
    beside = kind == NodeKind.HOST_COMM
    device_op = kind == NodeKind.DEVICE_OP
    correlation = np.zeros(len(kind), np.int64)
    correlation[device_op] = linked.trace.device.correlation[graph.row[device_op]]
    clock_ns = np.zeros(len(kind), np.int64)
    if linked.trace.clocks is not None:
        clock_ns[device_op] = linked.trace.clocks.offset_ns[graph.row[device_op]]
    column = attr.IntColumn
    return [
        column("start_ns", graph.start_ns),
        column("end_ns", graph.end_ns),
        column("duration_ns", graph.duration_ns),
        column("tid", graph.tid, host),
        column("self_ns", graph.self_ns, host),
        column("wait_ns", graph.wait_ns, host),
        column("wake_ns", graph.wake_ns, graph.wake_ns > 0),
        column("device", np.where(beside, -1, graph.device), ~host),
        column("stream", np.where(beside, -1, graph.stream), ~host),
        column("correlation", correlation, device_op),
        column("device_clock_ns", clock_ns, clock_ns != 0),
        column("start_delay_ns", graph.start_delay_ns, ~host),
        column("launch_latency_ns", graph.launch_latency_ns, ~host),
        column("overlap_ns", graph.overlap_ns, ~host),
        *_et_columns(graph, linked),
    ]


def _et_columns(graph: Graph, linked: Linked) -> Iterable[attr.IntColumn]:
    """What the ET knows of matched host ops; the parts of an op share its ``rf_id`` only."""
    et = linked.et
    if et is None:
        return
    of_row = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_ASYNC, NodeKind.HOST_PART))
    et_row = np.full(len(graph.kind), NOWHERE, np.int64)
    et_row[of_row] = linked.match.et[graph.row[of_row]]
    matched = et_row != NOWHERE
    whole: Bool = matched & (graph.kind != NodeKind.HOST_PART)

    def values(of_et: I64) -> I64:
        out = np.zeros(len(et_row), np.int64)
        out[matched] = of_et[et_row[matched]]
        return out

    yield attr.IntColumn("rf_id", values(et.rf_id), matched)
    for name, of_et in (
        ("fw_parent", et.fw_parent),
        ("seq_id", et.seq_id),
        ("scope", et.scope),
        ("et_tid", et.tid),
        ("fw_tid", et.fw_tid),
    ):
        yield attr.IntColumn(name, values(of_et), whole)


def _note_columns(notes: Notes | None) -> Iterable[attr.IntColumn]:
    if notes is None:
        return
    for name, value in (("pipeline_stage", notes.stage), ("pipeline_microbatch", notes.microbatch), ("pipeline_chunk", notes.chunk)):
        yield attr.IntColumn(name, value, notes.in_range & (value != NOWHERE))
    yield attr.IntColumn("bubble_before_ns", notes.bubble_before_ns, notes.bubble_before_ns > 0)


def _noted(notes: Notes | None) -> dict[int, bytes]:
    """The notes of text, by node."""
    if notes is None:
        return {}
    phases = {p: attr.text("pipeline_phase", p.name) for p in Phase}
    causes = {c: attr.text("bubble_cause", c.name.lower()) for c in Cause}
    out = {i: phases[Phase(k)] for i, k in zip(np.flatnonzero(notes.in_range).tolist(), notes.phase[notes.in_range].tolist(), strict=True)}
    late = np.flatnonzero(notes.bubble_before_ns > 0)
    for i, k in zip(late.tolist(), notes.bubble_cause[late].tolist(), strict=True):
        out[i] = out.get(i, b"") + causes[Cause(k)]
    return out


def _sync_calls(graph: Graph, linked: Linked) -> dict[int, bytes]:
    """``sync_call`` by node: the name of the call where all its ``sync`` edges are of one, else a list parallel to ``data_deps``."""
    told, names, strings = graph.sync_calls, linked.trace.calls.name, linked.trace.strings
    of_node: dict[int, dict[int, dict[str, None]]] = {}
    for source, node, name in zip(told.source.tolist(), told.target.tolist(), names[told.call].tolist(), strict=True):
        of_node.setdefault(node, {}).setdefault(source, {})[strings[name]] = None
    out = {}
    for node, by_source in of_node.items():
        edges = slice(int(graph.first[node]), int(graph.first[node + 1]))
        words = [" ".join(by_source.get(source, ())) for source in graph.source[edges].tolist()]
        of_sync = {words[i] for i in np.flatnonzero(graph.edge_kind[edges] == EdgeKind.SYNC).tolist()}
        one = " ".join(of_sync)
        out[node] = attr.texts("sync_call", words) if len(of_sync) > 1 or " " in one else attr.text("sync_call", one)
    return out


def _comm_bytes(comm: Communication, plan: CommPlan, ids: GroupIds) -> dict[int, tuple[int, bytes]]:
    """Node type and communication attributes by node."""
    known: dict[WrittenComm, tuple[int, bytes]] = {}
    out = {}
    for i, written in plan.by_node.items():
        encoded = known.get(written)
        if encoded is None:
            encoded = known[written] = written.node_type, _encode_comm(written, comm, ids)
        out[i] = encoded
    return out


def _encode_comm(written: WrittenComm, comm: Communication, ids: GroupIds) -> bytes:
    parts = []
    if written.comm_type is not None:
        parts.append(attr.int64("comm_type", written.comm_type))
    if written.size_bytes is not None:
        parts.append(attr.int64("comm_size", written.size_bytes))
    if written.size_recorded is not None:
        parts.append(attr.int64("comm_size_recorded", written.size_recorded))
    if written.group is not None:
        group = comm.groups[written.group]
        parts.append(attr.text("pg_name", str(ids[key(group)])))
        parts.append(attr.text("pg_desc", group.name))
    for name, value in (("comm_src", written.src), ("comm_dst", written.dst), ("comm_tag", written.tag)):
        if value is not None:
            parts.append(attr.int32(name, value))
    if written.recorded is not None:
        parts.append(attr.text("comm_type_recorded", written.recorded))
    return b"".join(parts)
