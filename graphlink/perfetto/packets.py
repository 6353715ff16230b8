"""Slices on tracks as the bytes of a Perfetto trace (``perfetto_trace.proto``): a stream of ``TracePacket``s.

A trace is the concatenation of its packets, so files of several ranks can be joined byte for byte: what must differ
(uuids of tracks, ids of sequences and flows, pids) is made of the rank. Every track is a packet sequence of its own:
its packets need no track uuid, its times are differences to the packet before, names and texts are interned once.
Packets that say what a track is are made by the message classes; the two of each slice, which are most of the file, a
block at a time. ``tests/report`` holds both against each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from graphlink.graph.attributes import Encoded, int_fields, varint
from graphlink.model import F64, I32, I64, NOWHERE, U8, Bool
from graphlink.perfetto.slices import SliceEvents, Slices, events, flat
from graphlink.tables import counted_from, spread, successive

BLOCK: Final = 1 << 15  # packets encoded at a time
RANKS: Final = (
    1 << 15
)  # ranks that are so many apart would share tracks; the trace processor wants ids of sequences below 1 << 31
SEQUENCES: Final = 1 << 16  # of a rank
FLOWS_OF_RANK: Final = 1 << 44
KIND_OF_FLOW: Final = 1 << 60  # a flow's id is divided by this for its kind
ACROSS: Final = 7  # the kind of flows between ranks
CLOCK: Final = 64  # the first id of clocks that belong to a sequence

_NEEDS_STATE = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_CLEARS_STATE = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


class Process(msgspec.Struct, frozen=True):
    """A group of tracks. ``number`` tells those of a rank apart: 0 or 1."""

    name: str
    label: str = ""
    number: int = 0


SUMMARY: Final = -1


# A row with the values of a counter behind the tracks of the first process: its name, times (ascending), values from
# each time on.
Counter: TypeAlias = tuple[str, I64, F64]


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the timeline in ``process`` (position in a list). With ``tid`` it is a thread of that process.

    ``order``: from the top; of a feature's row 0 is behind those before, and ``SUMMARY`` before all threads and
    streams.
    """

    process: int
    name: str
    tid: int | None = None
    order: int = 0


@dataclass(frozen=True, slots=True)
class Arg:
    """A detail of some slices, an integer each, or a position in ``words``. A slice has at most one of a name."""

    name: str
    slice: I64
    value: I64 | I32 | U8
    words: Sequence[str] | None = None

    @classmethod
    def known(cls, name: str, slices: I64, value: I64 | I32, absent: int = NOWHERE) -> Arg:
        """Return the detail of those slices whose value is not ``absent``."""
        there = value != absent
        return cls(name, slices[there], value[there])


class Rows(msgspec.Struct, frozen=True):
    """Rows that a feature adds to a rank. ``slices`` name ``tracks`` and ``names``, both from 0; ``args`` are of slices
    from 0.
    """

    tracks: tuple[Track, ...]
    slices: Slices
    names: tuple[str, ...]
    args: tuple[Arg, ...]
    counters: tuple[Counter, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrows:
    """Begins and ends of arrows from slice to slice; the slice where one ``ends`` begins no sooner, and has a higher
    key.

    The two of an arrow have an ``id`` that no other has: inside a rank one of ``arrows``, else ``ACROSS`` x
    ``KIND_OF_FLOW`` and more.
    """

    slice: I64
    id: I64
    ends: Bool


NO_ARROWS: Final = Arrows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))


@dataclass(frozen=True, slots=True)
class PerfettoTrace:
    """The tracks and slices of a rank. ``Slices.track`` are positions in ``tracks``, ``Slices.name`` in ``names``;
    times are ns since ``epoch_ns``."""

    rank: int
    epoch_ns: int
    processes: tuple[Process, ...]
    tracks: tuple[Track, ...]
    names: Sequence[str]
    slices: Slices
    args: tuple[Arg, ...]
    arrows: Arrows = NO_ARROWS
    counters: tuple[Counter, ...] = ()


_NO_SLICES: Final = flat(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))


def encode(trace: PerfettoTrace) -> Iterator[bytes]:
    """Encode the packets of a rank, a block of many at a time. Cost: O(n log n) in slices, details and flows."""
    number = {
        word: k for k, word in enumerate(dict.fromkeys(word for arg in trace.args for word in arg.words or ()), start=1)
    }
    codes = [[number[word] for word in arg.words or ()] for arg in trace.args]
    args = tuple(
        arg if arg.words is None else replace(arg, value=np.array(code, np.int64)[arg.value])
        for arg, code in zip(trace.args, codes, strict=True)
    )
    trace = replace(trace, args=args)
    yield b"".join(_heads(trace, {iid: word for word, iid in number.items()}))
    order = _ordered(trace)
    trace = replace(trace, slices=_NO_SLICES)  # of millions they take as much as all that is made of them
    yield from _packets(trace, order)
    for k, counter in enumerate(trace.counters, start=len(trace.tracks)):
        yield _counter_packets(trace, k, counter)


def _counter_packets(trace: PerfettoTrace, k: int, counter: Counter) -> bytes:
    """Encode a counter as track ``k``: what it is, and a packet for each value."""
    (name, time_ns, value), own, mine = counter, uuid(trace.rank, k), sequence(trace.rank, k)
    descriptor = pb.TrackDescriptor(
        uuid=own,
        parent_uuid=uuid(trace.rank, SEQUENCES),
        name=name,
        sibling_order_rank=1 + k,
        counter=pb.CounterDescriptor(),
    )
    packets = [
        pb.TracePacket(trusted_packet_sequence_id=mine, sequence_flags=_CLEARS_STATE, track_descriptor=descriptor)
    ]
    for ns, number in zip((time_ns + max(trace.epoch_ns, 0)).tolist(), value.tolist(), strict=True):
        event = pb.TrackEvent(type=pb.TrackEvent.TYPE_COUNTER, track_uuid=own, double_counter_value=number)
        packets.append(pb.TracePacket(timestamp=ns, trusted_packet_sequence_id=mine, track_event=event))
    return b"".join(map(framed, packets))


def _fixed(tag: bytes, value: NDArray[Any]) -> Encoded:
    """Encode a field of eight bytes of fixed place."""
    digits = np.empty((len(value), len(tag) + 8), np.uint8)
    digits[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    digits[:, len(tag) :] = value.view(np.uint8).reshape(-1, 8)
    return Encoded(digits.ravel(), np.full(len(value), digits.shape[1]))


def sequence(rank: int, track: int) -> int:
    """Return the ``trusted_packet_sequence_id`` of a track; -1 is the rank's own, for its processes."""
    return rank % RANKS * SEQUENCES + track + 2


def uuid(rank: int, track: int) -> int:
    """Return the uuid of a track; processes are tracks too: ``SEQUENCES`` + their position."""
    return (rank % RANKS + 1) * SEQUENCES * 2 + track


def arrows(rank: int, source: I64, target: I64, kind: U8) -> Arrows:
    """Return arrows between slices of a rank, of kinds 0 to 6: ``kind * KIND_OF_FLOW`` + what tells each from all
    others.
    """
    ids = kind.astype(np.int64) * KIND_OF_FLOW + rank % RANKS * FLOWS_OF_RANK + np.arange(len(kind))
    return Arrows(np.append(source, target), np.append(ids, ids), np.repeat([False, True], len(ids)))


def framed(packet: pb.TracePacket) -> bytes:
    """Return a packet as an entry of ``PerfettoTrace.packet``."""
    data: bytes = packet.SerializeToString()
    return b"\x0a" + varint(len(data)) + data


def _heads(trace: PerfettoTrace, words: dict[int, str]) -> Iterator[bytes]:
    """Encode what processes and tracks are. ``words``: texts of arguments by number."""
    for i, process in enumerate(trace.processes):
        labels = [process.label] if process.label else []
        descriptor = pb.TrackDescriptor(
            uuid=uuid(trace.rank, SEQUENCES + i),
            child_ordering=pb.TrackDescriptor.EXPLICIT,
            # new viewers; older ones sort by legacy_sort_index, or as below
            process_ordering=pb.TrackDescriptor.PROCESS_ORDERING_EXPLICIT,
            sibling_order_rank=_order(trace, i),
            process=pb.ProcessDescriptor(
                pid=_pid(trace, i), process_name=process.name, process_labels=labels, legacy_sort_index=_order(trace, i)
            ),
        )
        yield framed(pb.TracePacket(trusted_packet_sequence_id=sequence(trace.rank, -1), track_descriptor=descriptor))
    names, texts = _used(trace)
    for i, track in enumerate(trace.tracks):
        yield from _track_heads(trace, i, track, names[i], {code: words[code] for code in texts[i]})


def _order(trace: PerfettoTrace, process: int) -> int:
    """Return the place of a group among all: by rank, its replay right behind; the pipeline, which has rank -1,
    first.
    """
    return 2 * min(trace.rank, RANKS) + trace.processes[process].number


def _pid(trace: PerfettoTrace, process: int) -> int:
    return trace.rank % RANKS + 1 + trace.processes[process].number * RANKS


def _track_heads(
    trace: PerfettoTrace, i: int, track: Track, names: list[int], texts: dict[int, str]
) -> Iterator[bytes]:
    """Encode what the sequence is: its clock, its track, and the strings that its packets name by number."""
    mine = sequence(trace.rank, i)
    packet = pb.TracePacket(trusted_packet_sequence_id=mine, sequence_flags=_CLEARS_STATE)
    packet.trace_packet_defaults.timestamp_clock_id = CLOCK
    packet.trace_packet_defaults.track_event_defaults.track_uuid = uuid(trace.rank, i)
    strings = packet.interned_data
    strings.event_names.extend(pb.EventName(iid=code + 1, name=trace.names[code]) for code in names)
    strings.debug_annotation_names.extend(
        pb.DebugAnnotationName(iid=k, name=arg) for k, arg in enumerate(_arg_names(trace), start=1)
    )
    strings.debug_annotation_string_values.extend(
        pb.InternedString(iid=code, str=text.encode("utf-8", "backslashreplace")) for code, text in texts.items()
    )
    yield framed(packet)
    packet = pb.TracePacket(trusted_packet_sequence_id=mine)
    packet.clock_snapshot.clocks.add(clock_id=CLOCK, timestamp=0, is_incremental=True)
    packet.clock_snapshot.clocks.add(clock_id=pb.BUILTIN_CLOCK_BOOTTIME, timestamp=0)
    yield framed(packet)
    descriptor = pb.TrackDescriptor(uuid=uuid(trace.rank, i), parent_uuid=uuid(trace.rank, SEQUENCES + track.process))
    if track.tid is None:
        descriptor.MergeFrom(pb.TrackDescriptor(name=track.name, sibling_order_rank=track.order))
    else:
        descriptor.thread.MergeFrom(
            pb.ThreadDescriptor(pid=_pid(trace, track.process), tid=track.tid, thread_name=track.name)
        )
    yield framed(pb.TracePacket(trusted_packet_sequence_id=mine, track_descriptor=descriptor))


def _arg_names(trace: PerfettoTrace) -> list[str]:
    return list(dict.fromkeys(arg.name for arg in trace.args))


def _used(trace: PerfettoTrace) -> tuple[list[list[int]], list[list[int]]]:
    """Return by track the names and the texts that its slices use."""
    track = trace.slices.track.astype(np.int64)
    texts = [arg for arg in trace.args if arg.words is not None]
    text_track = np.concatenate([track[arg.slice] for arg in texts]) if texts else track[:0]
    text = np.concatenate([arg.value for arg in texts]) if texts else track[:0]
    return _by_track(track, trace.slices.name, len(trace.tracks)), _by_track(text_track, text, len(trace.tracks))


def _by_track(track: I64, code: I64 | I32, count: int) -> list[list[int]]:
    base = int(code.max(initial=0)) + 1
    pairs = np.unique(track * base + code)
    bounds = np.searchsorted(pairs, np.arange(count + 1) * base).tolist()
    codes = (pairs % base).tolist()
    return [codes[low:high] for low, high in itertools.pairwise(bounds)]


_Detail = tuple[I32, I64, Callable[[I64], Encoded]]


def _detail(at: I32, value: I64, encode: Callable[[I64], Encoded]) -> _Detail:
    """Return a repeated field of packets: of each packet ``at`` (ascending) a ``value``, which ``encode`` makes bytes
    of.
    """
    order = np.argsort(at, kind="stable")
    return at[order], value[order], encode


def _ordered(trace: PerfettoTrace) -> tuple[SliceEvents, I32, I32]:
    """Return begins and ends of slices, each with the time from the one before on its track, and track and name of
    each.
    """
    order, slices = events(trace.slices), trace.slices
    track = slices.track[order.slice]
    since_ns = _since(track, order.time_ns, max(trace.epoch_ns, 0))
    return order._replace(time_ns=since_ns), track, slices.name[order.slice]


def _packets(trace: PerfettoTrace, order: tuple[SliceEvents, I32, I32]) -> Iterator[bytes]:
    """Yield two packets per slice: timestamp, trusted_packet_sequence_id, track_event (debug_annotations, type,
    name_iid, flows), sequence_flags. Fields stand in the order of their numbers, as the message classes write them.
    """
    (which, begins, since_ns), track, names = order
    begin_of = np.empty(len(which) // 2, np.int32)  # the packet where each slice begins
    begin_of[which[begins]] = np.flatnonzero(begins)
    args, flows = _args(trace, begin_of), _flows(trace, begin_of)
    for low in range(0, len(track), BLOCK):
        part = slice(low, min(low + BLOCK, len(track)))
        starts = begins[part]
        type_ = np.where(starts, pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END)
        name = names[part].astype(np.int64) + 1
        event = [
            _in_packets(args, part),
            int_fields([(b"\x48", type_, None), (b"\x50", name, starts)], len(starts)),
            _in_packets(flows, part),
        ]
        on_sequence = sequence(trace.rank, 0) + track[part].astype(np.int64)
        packet = [
            int_fields(
                [(b"\x40", since_ns[part], None), (b"\x50", on_sequence, None), (b"\x5a", _sizes(event), None)],
                len(starts),
            ),
            *event,
            int_fields([(b"\x68", np.full(len(starts), _NEEDS_STATE), None)], len(starts)),
        ]
        yield _side_by_side([int_fields([(b"\x0a", _sizes(packet), None)], len(starts)), *packet]).tobytes()


def _since(track: I32, time_ns: I64, epoch_ns: int) -> I64:
    """Return the time from the packet before on the same track, of the first from an epoch before all."""
    order = np.argsort(
        track.astype(np.min_scalar_type(int(track.max(initial=0)))), kind="stable"
    )  # numpy sorts 16 bits by radix
    earlier, later = successive(order, track)
    before: I64 = spread(len(order), later, time_ns[earlier], -epoch_ns)
    return np.subtract(time_ns, before, out=before)  # of millions every column counts


def _args(trace: PerfettoTrace, begin_of: I32) -> list[_Detail]:
    """Return ``TrackEvent.debug_annotations``: name_iid, and int_value or string_value_iid."""

    def annotation(head: bytes, value: I64) -> Encoded:
        return int_fields([(head, value, None)], len(value))

    number = {name: varint(i) for i, name in enumerate(_arg_names(trace), start=1)}
    return [
        _detail(
            begin_of[a.slice],
            a.value.astype(np.int64),
            partial(annotation, b"\x22\x00\x08" + number[a.name] + (b"\x20" if a.words is None else b"\x88\x01")),
        )
        for a in trace.args
    ]


def _flows(trace: PerfettoTrace, begin_of: I32) -> list[_Detail]:
    """Return ``TrackEvent.flow_ids`` and ``terminating_flow_ids``."""

    own = trace.arrows
    return [
        _detail(begin_of[own.slice[mine]], own.id[mine], partial(_fixed, tag))
        for mine, tag in ((~own.ends, b"\xf9\x02"), (own.ends, b"\x81\x03"))
    ]


def _in_packets(details: Sequence[_Detail], part: slice) -> Encoded:
    """Return a row for each packet of ``part``: its details, one after the other in their order."""
    at, rows = [np.zeros(0, np.int64)], [Encoded(np.zeros(0, np.uint8), np.zeros(0, np.int64))]
    for where, value, encoded in details:
        mine = slice(*np.searchsorted(where, (part.start, part.stop)).tolist())
        at.append(where[mine] - part.start)
        rows.append(encoded(value[mine]))
    packet, size = np.concatenate(at), np.concatenate([r.size for r in rows])
    order = np.argsort(packet.astype(np.uint16), kind="stable")  # numpy sorts 16 bits by radix
    begin = np.cumsum(size) - size
    flat = np.concatenate([r.flat for r in rows])[counted_from(begin[order], size[order])]
    return Encoded(flat, np.bincount(packet, size, part.stop - part.start).astype(np.int64))


def _sizes(parts: Sequence[Encoded]) -> I64:
    return np.asarray(np.sum([p.size for p in parts], axis=0))


def _side_by_side(parts: Sequence[Encoded]) -> U8:
    """Return the bytes of rows that are made of one row of each part, one part after the other."""
    size = _sizes(parts)
    out = np.empty(int(size.sum()), np.uint8)
    at = np.cumsum(size) - size
    for part in parts:
        out[counted_from(at, part.size)] = part.flat
        at += part.size
    return out
