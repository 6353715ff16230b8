"""Slices on tracks as the bytes of a Perfetto trace (``perfetto_trace.proto``): a stream of ``TracePacket``s.

A trace is the concatenation of its packets, so files of several ranks can be joined byte for byte: what must differ (uuids of tracks,
ids of sequences and flows, pids) is made of the rank. Every track is a packet sequence of its own: its packets need no track uuid, its
times are differences to the packet before, names and texts are interned once. Packets that say what a track is are made by the
message classes; the two of each slice, which are most of the file, a block at a time. ``tests/report`` holds both against each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from graphlink.graph.attributes import varint, varints
from graphlink.model import I32, I64, U8, Bool
from graphlink.perfetto.slices import Events, Slices, events, nested

BLOCK: Final = 1 << 15  # packets encoded at a time
RANKS: Final = 1 << 15  # ranks that are so many apart would share tracks; the trace processor wants ids of sequences below 1 << 31
SEQUENCES: Final = 1 << 16  # of a rank
FLOWS_OF_RANK: Final = 1 << 44
KIND_OF_FLOW: Final = 1 << 60  # a flow's id is divided by this for its kind
ACROSS: Final = 7  # the kind of flows between ranks
CLOCK: Final = 64  # the first id of clocks that belong to a sequence

_NEEDS_STATE = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_CLEARS_STATE = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


@dataclass(frozen=True, slots=True)
class Process:
    """A group of tracks. ``number`` tells those of a rank apart: 0 or 1."""

    name: str
    label: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the timeline in ``process`` (position in a list). With ``tid`` it is a thread of that process; ``order``: from the top."""

    process: int
    name: str
    tid: int | None = None
    order: int = 0


@dataclass(frozen=True, slots=True)
class Arg:
    """A detail of some slices, an integer each, or (``text``) a position in ``Trace.texts``. A slice has at most one of a name."""

    name: str
    slice: I64
    value: I64
    text: bool = False


@dataclass(frozen=True, slots=True)
class Flows:
    """Arrows from slice to slice; ``source`` begins no later than ``target`` and has a lower key. ``kind``: 0 to 6."""

    source: I64
    target: I64
    kind: U8


@dataclass(frozen=True, slots=True)
class Across:
    """Arrows between slices of different ranks. Each has an ``id`` that no other has, a slice of one rank where it begins, and one of
    another, which begins no sooner, where it ``ends``.
    """

    slice: I64
    id: I64
    ends: Bool


NOTHING_ACROSS: Final = Across(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))


@dataclass(frozen=True, slots=True)
class Trace:
    """What a rank shows. ``Slices.track`` are positions in ``tracks``, ``Slices.name`` in ``names``; times are ns since ``epoch_ns``."""

    rank: int
    epoch_ns: int
    processes: tuple[Process, ...]
    tracks: tuple[Track, ...]
    names: Sequence[str]
    texts: Sequence[str]
    slices: Slices
    args: tuple[Arg, ...]
    flows: Flows
    across: Across = NOTHING_ACROSS


def encode(trace: Trace) -> Iterator[bytes]:
    """The packets of a rank, a block of many at a time. Cost: O(n log n) in slices, details and flows."""
    nest = nested(trace.slices)
    order = events(trace.slices, nest)
    yield b"".join(_heads(trace))
    yield from _packets(trace, order)


def sequence(rank: int, track: int) -> int:
    """``trusted_packet_sequence_id`` of a track; -1 is the rank's own, for its processes."""
    return rank % RANKS * SEQUENCES + track + 2


def uuid(rank: int, track: int) -> int:
    """Of a track; processes are tracks too: ``SEQUENCES`` + their position."""
    return (rank % RANKS + 1) * SEQUENCES * 2 + track


def flow_ids(rank: int, flows: Flows) -> I64:
    """``kind * KIND_OF_FLOW`` + what tells the flow from all others."""
    return flows.kind.astype(np.int64) * KIND_OF_FLOW + rank % RANKS * FLOWS_OF_RANK + np.arange(len(flows.kind))


def framed(packet: pb.TracePacket) -> bytes:
    """A packet as an entry of ``Trace.packet``."""
    data: bytes = packet.SerializeToString()
    return b"\x0a" + varint(len(data)) + data


def _heads(trace: Trace) -> Iterator[bytes]:
    for i, process in enumerate(trace.processes):
        packet = pb.TracePacket(trusted_packet_sequence_id=sequence(trace.rank, -1))
        packet.track_descriptor.uuid = uuid(trace.rank, SEQUENCES + i)
        packet.track_descriptor.child_ordering = pb.TrackDescriptor.EXPLICIT
        packet.track_descriptor.process.pid = trace.rank % RANKS + 1 + process.number * RANKS
        packet.track_descriptor.process.process_name = process.name
        if process.label:
            packet.track_descriptor.process.process_labels.append(process.label)
        yield framed(packet)
    names, texts = _used(trace)
    for i, track in enumerate(trace.tracks):
        yield from _track_heads(trace, i, track, names[i], texts[i])


def _track_heads(trace: Trace, i: int, track: Track, names: list[int], texts: list[int]) -> Iterator[bytes]:
    """What the sequence is: its clock, its track, and the strings that its packets name by number."""
    mine = sequence(trace.rank, i)
    packet = pb.TracePacket(trusted_packet_sequence_id=mine, sequence_flags=_CLEARS_STATE)
    packet.trace_packet_defaults.timestamp_clock_id = CLOCK
    packet.trace_packet_defaults.track_event_defaults.track_uuid = uuid(trace.rank, i)
    for code in names:
        packet.interned_data.event_names.add(iid=code + 1, name=trace.names[code])
    for number, arg in enumerate(_arg_names(trace), start=1):
        packet.interned_data.debug_annotation_names.add(iid=number, name=arg)
    for code in texts:
        packet.interned_data.debug_annotation_string_values.add(iid=code + 1, str=trace.texts[code].encode("utf-8", "backslashreplace"))
    yield framed(packet)
    packet = pb.TracePacket(trusted_packet_sequence_id=mine)
    packet.clock_snapshot.clocks.add(clock_id=CLOCK, timestamp=0, is_incremental=True)
    packet.clock_snapshot.clocks.add(clock_id=pb.BUILTIN_CLOCK_BOOTTIME, timestamp=0)
    yield framed(packet)
    packet = pb.TracePacket(trusted_packet_sequence_id=mine)
    descriptor, process = packet.track_descriptor, trace.processes[track.process]
    descriptor.uuid = uuid(trace.rank, i)
    descriptor.parent_uuid = uuid(trace.rank, SEQUENCES + track.process)
    if track.tid is None:
        descriptor.name = track.name
        descriptor.sibling_order_rank = track.order
    else:
        descriptor.thread.pid = trace.rank % RANKS + 1 + process.number * RANKS
        descriptor.thread.tid = track.tid
        descriptor.thread.thread_name = track.name
    yield framed(packet)


def _arg_names(trace: Trace) -> list[str]:
    return list(dict.fromkeys(arg.name for arg in trace.args))


def _used(trace: Trace) -> tuple[list[list[int]], list[list[int]]]:
    """By track the names and the texts that its slices use."""
    track = trace.slices.track.astype(np.int64)
    texts = [arg for arg in trace.args if arg.text]
    text_track = np.concatenate([track[arg.slice] for arg in texts]) if texts else track[:0]
    text = np.concatenate([arg.value for arg in texts]) if texts else track[:0]
    return _by_track(track, trace.slices.name, len(trace.tracks)), _by_track(text_track, text, len(trace.tracks))


def _by_track(track: I64, code: I64 | I32, count: int) -> list[list[int]]:
    base = int(code.max(initial=0)) + 1
    pairs = np.unique(track * base + code)
    bounds = np.searchsorted(pairs, np.arange(count + 1) * base).tolist()
    codes = (pairs % base).tolist()
    return [codes[low:high] for low, high in itertools.pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class _Details:
    """What slices carry beside their name, in the order in which they begin: ``at`` says whose it is."""

    at: I32
    head: U8  # of args: the number of their name; of flows: 1 where they end
    text: U8
    value: I64


def _packets(trace: Trace, order: Events) -> Iterator[bytes]:
    """Two packets a slice."""
    n = len(trace.slices.track)
    begins = order.begins == 1
    begun = np.cumsum(begins, dtype=np.int32)
    begin_of = np.empty(n, np.int32)  # which begin of all it is
    begin_of[order.slice[begins]] = np.arange(n, dtype=np.int32)
    args, flows = _args(trace, begin_of), _flows(trace, begin_of)
    track = trace.slices.track[order.slice]
    since_ns = _since(track, order.time_ns + max(trace.epoch_ns, 0))
    for low in range(0, 2 * n, BLOCK):
        part = slice(low, min(low + BLOCK, 2 * n))
        first, last = int(begun[low - 1]) if low else 0, int(begun[part.stop - 1])
        rows = np.flatnonzero(begins[part])
        in_args, in_flows = (slice(*np.searchsorted(d.at, (first, last)).tolist()) for d in (args, flows))
        yield _block(
            since_ns[part],
            sequence(trace.rank, 0) + track[part].astype(np.int64),
            np.where(begins[part], trace.slices.name[order.slice[part]] + 1, 0).astype(np.int64),
            _scattered(_arg_bytes(args, in_args), rows[args.at[in_args] - first]),
            _scattered(_flow_bytes(flows, in_flows), rows[flows.at[in_flows] - first]),
        )


def _since(track: I32, time_ns: I64) -> I64:
    """From the packet before on the same track."""
    order = np.argsort(track.astype(np.min_scalar_type(int(track.max(initial=0)))), kind="stable")  # numpy sorts 16 bits by radix
    before = np.zeros(len(order), np.int64)
    same = track[order][1:] == track[order][:-1]
    before[order[1:][same]] = time_ns[order[:-1][same]]
    return time_ns - before


def _args(trace: Trace, begin_of: I32) -> _Details:
    number = {name: i for i, name in enumerate(_arg_names(trace), start=1)}
    at = np.concatenate([begin_of[:0], *(begin_of[a.slice] for a in trace.args)])
    value = np.concatenate([np.zeros(0, np.int64), *(a.value + a.text for a in trace.args)])
    sizes = [len(a.slice) for a in trace.args]
    head = np.repeat(np.array([number[a.name] for a in trace.args], np.uint8), sizes)
    text = np.repeat(np.array([a.text for a in trace.args], np.uint8), sizes)
    order = np.argsort(at, kind="stable")
    return _Details(at[order], head[order], text[order], value[order])


def _flows(trace: Trace, begin_of: I32) -> _Details:
    ids = flow_ids(trace.rank, trace.flows)
    across = trace.across
    at = np.concatenate([begin_of[trace.flows.source], begin_of[trace.flows.target], begin_of[across.slice]])
    ends = np.concatenate([np.repeat(np.array([0, 1], np.uint8), len(ids)), across.ends.astype(np.uint8)])
    order = np.lexsort((ends, at))
    far = ACROSS * KIND_OF_FLOW + across.id
    return _Details(at[order], ends[order], ends[:0], np.concatenate([ids, ids, far])[order])


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Rows of bytes, of which the first ``size`` count."""

    digits: U8
    size: I64

    @property
    def kept(self) -> Bool:
        mask: Bool = np.arange(self.digits.shape[1]) < self.size[:, None]
        return mask


def _varints(value: I64) -> _Bytes:
    return _Bytes(*varints(value))


def _fixed(data: bytes, where: I64) -> _Bytes:
    """The same bytes in every row, none where ``where`` is 0."""
    digits = np.empty((len(where), len(data)), np.uint8)
    digits[:] = np.frombuffer(data, np.uint8)
    return _Bytes(digits, np.where(where, len(data), 0))


def _beside(parts: Sequence[_Bytes]) -> _Bytes:
    """Rows of flat bytes: of each row, the parts one after the other. ``digits`` has one dimension here."""
    digits = np.concatenate([p.digits for p in parts], axis=1)
    return _Bytes(digits[np.concatenate([p.kept for p in parts], axis=1)], np.sum([p.size for p in parts], axis=0))


@dataclass(frozen=True, slots=True)
class _Tail:
    """Bytes that stand in some rows of a block: ``flat`` in row order, ``row`` and ``size`` of each piece."""

    flat: U8
    row: I64
    size: I64

    def sizes(self, rows: int) -> I64:
        return np.bincount(self.row, self.size, rows).astype(np.int64)


def _scattered(pieces: _Bytes, row: I64) -> _Tail:
    return _Tail(pieces.digits, row, pieces.size)


def _arg_bytes(args: _Details, part: slice) -> _Bytes:
    """``TrackEvent.debug_annotations``: name_iid, and int_value or string_value_iid."""
    head, text, value = args.head[part].astype(np.int64), args.text[part].astype(np.int64), _varints(args.value[part])
    name, always = _varints(head), np.ones(len(head), np.int64)
    size = 2 + name.size + text + value.size
    short = _Bytes(size[:, None].astype(np.uint8), always)  # of 26 at most
    tag = _Bytes(np.where(text[:, None] == 1, np.array([0x88, 0x01]), np.array([0x20, 0])).astype(np.uint8), 1 + text)
    return _beside([_fixed(b"\x22", always), short, _fixed(b"\x08", always), name, tag, value])


def _flow_bytes(flows: _Details, part: slice) -> _Bytes:
    """``TrackEvent.flow_ids`` and ``terminating_flow_ids``."""
    ends, ids = flows.head[part], flows.value[part].astype("<u8")
    tag = np.where(ends[:, None] == 1, np.array([0x81, 0x03]), np.array([0xF9, 0x02])).astype(np.uint8)
    digits = np.concatenate([tag, ids.view(np.uint8).reshape(-1, 8)], axis=1)
    return _Bytes(digits.ravel(), np.full(len(ids), 10))


def _block(since_ns: I64, sequence_id: I64, name_iid: I64, args: _Tail, flows: _Tail) -> bytes:
    """Packets: timestamp, trusted_packet_sequence_id, track_event (debug_annotations, type, name_iid, flows), sequence_flags.

    ``name_iid`` is 0 where a slice ends. Fields stand in the order of their numbers, as the message classes write them.
    """
    n = len(since_ns)
    always, begins = np.ones(n, np.int64), (name_iid != 0).astype(np.int64)
    arg_size, flow_size = args.sizes(n), flows.sizes(n)
    time, of_sequence, name = _varints(since_ns), _varints(sequence_id), _varints(name_iid)
    name = _Bytes(name.digits, name.size * begins)
    kind = _Bytes(np.where(begins[:, None] == 1, pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END).astype(np.uint8), always)
    event_size = arg_size + 2 + begins + name.size + flow_size
    event = _varints(event_size)
    size = _varints(3 + time.size + of_sequence.size + event.size + event_size + 2)
    front = [_fixed(b"\x0a", always), size, _fixed(b"\x40", always), time, _fixed(b"\x50", always), of_sequence]
    front += [_fixed(b"\x5a", always), event]
    middle = [_fixed(b"\x48", always), kind, _fixed(b"\x50", begins), name]
    flags = _fixed(bytes([0x68, _NEEDS_STATE]), always)
    base = _beside([*front, *middle, flags])
    row = base.size + arg_size + flow_size
    begin = np.cumsum(row) - row
    args_at = begin + np.sum([p.size for p in front], axis=0)
    flows_at = begin + row - 2 - flow_size
    out = np.empty(int(row.sum()), np.uint8)
    rest = np.ones(len(out), np.bool_)
    for tail, at in ((args, args_at), (flows, flows_at)):
        where = _places(tail, at)
        out[where] = tail.flat
        rest[where] = False
    out[rest] = base.digits
    return out.tobytes()


def _places(tail: _Tail, at: I64) -> I64:
    """Where each byte of ``tail.flat`` goes: pieces of a row one after the other from ``at``."""
    ends = np.cumsum(tail.size)
    first = np.searchsorted(tail.row, tail.row)  # of the pieces of the same row
    within = (ends - tail.size) - (ends - tail.size)[first] if len(first) else ends
    return np.repeat(at[tail.row] + within - (ends - tail.size), tail.size) + np.arange(len(tail.flat))
