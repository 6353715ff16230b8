"""The packets of PyTorch's binary traces, one by one, as the rows that its JSON has of the same recording.

Numbers of names, categories and lanes are given in packets before those that use them, for each sequence of packets
its own. Rows of a GPU are render stages, or slices on tracks of a process "GPU n" (earlier builds).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "uint": _FIELD.TYPE_UINT64,
    "int": _FIELD.TYPE_INT64,
    "double": _FIELD.TYPE_DOUBLE,
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
}
_FIELDS: Final = {  # by message: name, number and type of each that is read; * is repeated. Texts stay bytes
    "Times": "packets 1 *Timed",  # of the first pass
    "Timed": "timestamp 8 uint, sequence 10 uint, slice 11 Begin, stage 53 Span, clock 58 uint, track 60 Track",
    "Begin": "type 9 uint, track 11 uint",
    "Span": "id 1 uint, duration 2 uint, gpu 11 uint, queue 13 uint, waits 18 *uint",
    "Trace": "packets 1 *Packet",
    "Packet": "snapshot 6 Snapshot, timestamp 8 uint, sequence 10 uint, slice 11 Slice, words 12 Words, "
    "counter 52 Counter, stage 53 Stage, track 60 Track",
    "Snapshot": "clocks 1 *Clock",
    "Clock": "id 1 uint, timestamp 2 uint",
    "Track": "uuid 1 uint, process 3 Process, thread 4 Thread",
    "Process": "pid 1 int, name 6 bytes",
    "Thread": "pid 1 int, tid 2 int, name 5 bytes",
    "Words": "categories 1 *Word, names 2 *Word, args 3 *Word, stages 24 *Word, counters 47 *Counters, "
    "kernels 1000 *Kernel",
    "Word": "iid 1 uint, text 2 bytes",
    "Kernel": "iid 1 uint, text 3 bytes",
    "Counters": "iid 1 uint, about 2 Specs, gpu 3 int",
    "Specs": "specs 1 *Spec",
    "Spec": "id 1 uint, name 2 bytes",
    "Counter": "values 2 *Value, counters 4 uint",
    "Value": "id 1 uint, whole 2 int, fraction 3 double",
    "Slice": "category 3 uint, args 4 *bytes, type 9 uint, name 10 uint, track 11 uint, text 23 bytes",
    "Arg": "name_iid 1 uint, flag 2 bool, natural 3 uint, integer 4 int, fraction 5 double, text 6 bytes, "
    "name 10 bytes, entries 11 *Arg, values 12 *Arg",
    "Stage": "id 1 uint, duration 2 uint, extra 6 *bytes, gpu 11 int, queue 13 uint, stage 14 uint, "
    "waits 18 *uint, kernel 19 uint, name 20 uint, launch 21 bytes",
    "Extra": "name 1 bytes, value 2 bytes",
    "Launch": "grid 1 Extent, block 2 Extent",
    "Extent": "x 1 uint, y 2 uint, z 3 uint",
}
BEGIN, END = 1, 2
IIDS: Final = 31  # bits of a number that a sequence gives; above them are the 32 of the sequence
_BOOT, _REAL = 6, 1  # clocks
_MOST_TEXTS, _LONGEST_TEXT = 1 << 14, 1 << 9  # of arguments that are kept
_NAME_TAG, _INTEGER = 10 << 3 | 2, b"%c" % (4 << 3)  # of an argument
_NOT_READ: Final = frozenset({b"Input Strides"})
_STAGES: Final = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}
_LANE: Final = re.compile(r"\[(\d{1,18})\] ")  # before the name of a lane
_GPU: Final = re.compile(r"GPU (\d{1,9})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_CORRELATION: Final = re.compile(r'"correlation":(\d+),')
_HOST_FUNCTION: Final = re.compile(r'"host fn":"([^"\\]*)",')
# of a row of a GPU: what JSON names otherwise, and what says nothing of the row or is said already
_RENAMED: Final = {b"stream id": b"original_stream", b"context id": b"context", b"stream": b"annotated_stream"}
_NOT_OF_A_ROW: Final = frozenset({b"device id", b"device", b"arch", b"process_id", b"process_name"})


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="pftrace.proto", package="pftrace")
    for message, listed in _FIELDS.items():
        fields = file.message_type.add(name=message).field
        for name, number, kind in map(str.split, listed.split(",")):
            plain = kind.lstrip("*")
            field = fields.add(name=name, number=int(number), type=_TYPES.get(plain, _FIELD.TYPE_MESSAGE))
            field.label = _FIELD.LABEL_OPTIONAL if kind == plain else _FIELD.LABEL_REPEATED
            if plain not in _TYPES:
                field.type_name = f".pftrace.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pftrace.{name}")) for name in _FIELDS}


MESSAGES: Final = _message_classes()


def _quoted(text: bytes) -> str:
    return msgspec.json.encode(text.decode("utf-8", "replace")).decode()


class _Texts(dict[bytes, str]):
    """The texts of what comes as bytes, made when they are wanted and kept for a time."""

    def __init__(self, make: Callable[[bytes], str]):
        super().__init__()
        self._make = make

    def __missing__(self, data: bytes) -> str:
        text = self._make(data)
        if len(data) < _LONGEST_TEXT:
            if len(self) >= _MOST_TEXTS:
                self.clear()
            self[data] = text
        return text


class _Args(_Texts):
    """The arguments of slices. Most that did not come before are ids, a name and one number, this first or last: these
    are read here, as messages of them take 0.4 s more of 344,000 rows.
    """

    def __init__(self) -> None:
        super().__init__(self._text)
        self.names: dict[int, bytes] = {}
        self._keys: dict[bytes, str] = {}  # by all bytes before the number, or behind it

    def __missing__(self, data: bytes) -> str:
        first = data[:1] == _INTEGER
        start = 1 if first else data[1] + 3 if len(data) > 2 else 0
        number = shift = 0
        for end, byte in enumerate(data[start : start + 9], start + 1):
            number |= (byte & 127) << shift
            if byte < 128:
                key = self._keys.get(data[end:] if first else data[:start])
                if key is not None and (first or end == len(data)):
                    return f"{key}{number},"
                break
            shift += 7
        return super().__missing__(data)

    def _text(self, data: bytes) -> str:
        """Return an argument as JSON has it."""
        arg = MESSAGES["Arg"].FromString(data)
        if arg.name in _NOT_READ:
            return ""
        key = f"{_quoted(arg.name or self.names.get(arg.name_iid, b''))}:"
        if arg.HasField("integer") and 0 < len(arg.name) < 128 and len(self._keys) < _MOST_TEXTS:
            name = b"%c%c%b" % (_NAME_TAG, len(arg.name), arg.name)
            self._keys[name + _INTEGER] = self._keys[name] = key
        return f"{key}{_value(arg)},"


class Rows:
    """What packets say that others refer to, and those others as rows of JSON, each with a comma after it."""

    def __init__(self) -> None:
        self._begun = False
        self.has_clock = False
        self._origin_ns = 0  # of the rows' times, on the clock of the packets
        self._base_ns = 0  # the same moment since 1970
        self._names: dict[int, str] = {}
        self._kernels: dict[int, str] = {}
        self._categories: dict[int, str] = {}
        self._stages: dict[int, tuple[str, str]] = {}  # category and name
        self._lanes: dict[int, int] = {}
        self._lane_names: dict[int, str] = {}  # of those that are no streams
        self._counters: dict[int, tuple[str, dict[int, str]]] = {}
        self._processes: dict[int, str] = {}
        self._tracks: dict[int, tuple[str, str]] = {}  # process, and place as rows have it
        self._args_of: dict[int, _Args] = {}  # of sequences that number the names of arguments
        self._other_args = _Args()
        self._set_sequence(0)
        self._extras, self._launches = _Texts(_extra), _Texts(_launch)

    def header(self) -> bytes:
        """Return the text before all rows, the first time."""
        if self._begun:
            return b""
        self._begun = True
        return b'{"schemaVersion":1,"baseTimeNanoseconds":%d,"traceEvents":[' % self._base_ns

    def of(self, packets: Iterable[Any], lengths: Iterator[int]) -> Iterator[str]:
        """Yield the rows of packets, those of one at a time; ``lengths`` are those of slices, in the order of their
        begins.

        Raises:
            DecodeError: arguments are damaged.
        """
        for packet in packets:
            if packet.sequence != self._sequence:
                self._set_sequence(packet.sequence)
            is_slice = packet.HasField("slice")
            if is_slice:
                event = packet.slice
                kind = event.type
                if kind == END:
                    continue
            if packet.HasField("words"):
                self._note(packet.words)
            if not self.has_clock:
                self._set_clock(packet)
            if is_slice:
                yield self._slice(event, packet.timestamp, next(lengths, -1) if kind == BEGIN else None)
            elif packet.HasField("stage"):
                yield self._stage(packet.stage, packet.timestamp)
            elif packet.HasField("counter"):
                yield self._counter(packet.counter, packet.timestamp)
            else:
                yield self._track(packet.track) if packet.HasField("track") else ""

    def flow(self, number: int, start: tuple[int, int, int], end: tuple[int, int, int]) -> bytes:
        """Return both rows of a flow between rows of a GPU; each end: device, queue, time in ns."""
        rows = (
            f'{{"ph":"{ph}","id":{number},"pid":{gpu},"tid":{self._lanes.get(queue, queue % (1 << IIDS))},'
            f'"ts":{self._us(ns)},'
            f'"cat":"ac2g","name":"ac2g"{rest}}},'
            for ph, rest, (gpu, queue, ns) in (("s", "", start), ("f", ',"bp":"e"', end))
        )
        return "".join(rows).encode()

    def _us(self, ns: int) -> str:
        return f"{ns - self._origin_ns}e-3"  # a fourth of the time that decimals take

    def _set_sequence(self, sequence: int) -> None:
        """Take the sequence of the packets that follow: ``_of`` is what it adds to the numbers that they give."""
        self._sequence, self._of = sequence, sequence << IIDS
        self._args = self._args_of.get(sequence, self._other_args)

    def _set_clock(self, packet: Any) -> None:
        """Take the origin of times from the snapshot of clocks, or the first time where there is none."""
        clocks = {clock.id: clock.timestamp for clock in packet.snapshot.clocks}
        if _BOOT in clocks and _REAL in clocks:
            self.has_clock, self._origin_ns, self._base_ns = True, clocks[_BOOT], clocks[_REAL]
        elif packet.HasField("slice") or packet.HasField("stage"):
            self.has_clock, self._origin_ns, self._base_ns = True, packet.timestamp, packet.timestamp

    def _note(self, words: Any) -> None:
        of = self._of
        for table, entries in ((self._names, words.names), (self._kernels, words.kernels)):
            table.update((of + word.iid, f'"name":{_quoted(word.text)},') for word in entries)
        self._categories.update((of + word.iid, f'"cat":{_quoted(word.text)},') for word in words.categories)
        for word in words.stages:
            iid = of + word.iid
            text = word.text.decode("utf-8", "replace")
            lane = _LANE.match(text)
            if lane is not None:
                self._lanes[iid] = int(lane[1])
                if not text.endswith(f"] stream {int(lane[1])}"):
                    self._lane_names[iid] = f'"name":{_quoted(text[lane.end() :].encode())},'
            category = _quoted(_STAGES[text].encode() if text in _STAGES else word.text)
            self._stages[iid] = f'"cat":{category},', f'"name":{_quoted(word.text)},'
        if words.args:
            self._args = self._args_of.setdefault(self._sequence, _Args())
            self._args.names.update((word.iid, word.text) for word in words.args)
            self._args.clear()
        for counters in words.counters:
            names = {spec.id: _quoted(spec.name) for spec in counters.about.specs}
            self._counters[of + counters.iid] = (f'"GPU {counters.gpu} Counters"', names)

    def note_tracks(self, tracks: Iterable[Any]) -> None:
        """Note tracks that may stand behind what uses them."""
        for track in sorted(tracks, key=lambda one: bool(one.HasField("thread"))):
            self._track(track)

    def _track(self, track: Any) -> str:
        if track.HasField("process"):
            pid, name = track.process.pid, track.process.name.decode("utf-8", "replace")
            self._processes[pid] = name
            self._tracks[track.uuid] = (name, f'"pid":{pid},"tid":0,')
            if _GPU.fullmatch(name):
                return f'{{"ph":"M","name":"process_labels","pid":{pid},"args":{{"labels":"{name}"}}}},'
        elif track.HasField("thread"):
            pid, tid = track.thread.pid, track.thread.tid
            if track.thread.name.endswith(b" %d" % (tid - (1 << 31))):  # written without its sign
                tid = (1 << 31) - tid
            self._tracks[track.uuid] = (self._processes.get(pid, ""), f'"pid":{pid},"tid":{tid},')
        return ""

    def _slice(self, event: Any, start_ns: int, length_ns: int | None) -> str:
        args = "".join(map(self._args.__getitem__, event.args))[:-1]
        process, place = self._tracks.get(event.track, ("", ""))
        name = self._names.get(self._of + event.name) or f'"name":{_quoted(event.text)},'
        category = self._categories.get(self._of + event.category) or _category(process, name, args)
        if length_ns is None:
            span = '"ph":"i"'
        elif length_ns < 0:
            span = '"ph":"B"'
        else:
            span = f'"ph":"X","dur":{length_ns}e-3'
        return f'{{{span},{category}{name}{place}"ts":{start_ns - self._origin_ns}e-3,"args":{{{args}}}}},'

    def _stage(self, stage: Any, start_ns: int) -> str:
        of = self._of
        queue = of + stage.queue
        category, kind = self._stages.get(of + stage.stage, ('"cat":"gpu_render_stage",', ""))
        lane = self._lanes.get(queue, stage.queue)
        args = "".join(map(self._extras.__getitem__, stage.extra))
        if queue in self._lanes:
            args = args.replace(f'"original_stream":{lane},', "") + f'"stream":{lane},'
            args += self._lane_names.get(queue, "") if '"name":' not in args else ""
        else:
            args = args.replace('"original_stream":', '"stream":')
        if "gpu_memset" in category and '"memory kind":' not in args:
            args += '"memory kind":0,'  # zeros are left out
        name = self._names.get(of + stage.name) or self._kernels.get(of + stage.kernel) or kind
        if function := _HOST_FUNCTION.search(args):
            name = f'"name":"HostNode: {function[1]}",'
        place = f'"pid":{stage.gpu},"tid":{lane},"ts":{self._us(start_ns)}'
        row = (
            f'{{"ph":"X",{category}{name}{place},"dur":{stage.duration}e-3,'
            f'"args":{{{args}{self._launches[stage.launch]}"device":{stage.gpu}}}}},'
        )
        # of the nodes of a graph those hang on the launch that wait for no other
        if '"graph id":' in args and not stage.waits and (launch := _CORRELATION.search(args)):
            row += f'{{"ph":"f","id":{launch[1]},"cat":"ac2g","name":"ac2g",{place},"bp":"e"}},'
        return row

    def _counter(self, counter: Any, when_ns: int) -> str:
        process, names = self._counters.get(self._of + counter.counters, ('""', {}))
        rows = []
        for value in counter.values:
            number = msgspec.json.encode(value.whole if value.HasField("whole") else value.fraction).decode()
            place = f'"name":{names.get(value.id, process)},"pid":{process},"ts":{self._us(when_ns)}'
            rows.append(f'{{"ph":"C",{place},"args":{{"":{number}}}}},')
        return "".join(rows)


def _value(arg: Any) -> str:
    if arg.entries:
        return "{" + ",".join(f"{_quoted(entry.name)}:{_value(entry)}" for entry in arg.entries) + "}"
    if arg.HasField("text"):
        return _quoted(arg.text)
    for kind in ("integer", "fraction", "flag", "natural"):
        if arg.HasField(kind):
            return msgspec.json.encode(getattr(arg, kind)).decode()
    return "[" + ",".join(map(_value, arg.values)) + "]"


def _extra(data: bytes) -> str:
    """Return what a row of a GPU says besides as JSON has it."""
    extra = MESSAGES["Extra"].FromString(data)
    if extra.name in _NOT_OF_A_ROW:
        return ""
    value = extra.value.decode("utf-8", "replace")
    text = value if _NUMBER.fullmatch(value) else _quoted(extra.value)
    return f"{_quoted(_RENAMED.get(extra.name, extra.name))}:{text},"


def _launch(data: bytes) -> str:
    """Return the extent of a kernel as JSON has it."""
    launch = MESSAGES["Launch"].FromString(data)
    return "".join(
        f'"{name}":[{extent.x},{extent.y},{extent.z}],'
        for name, extent in (("grid", launch.grid), ("block", launch.block))
        if launch.HasField(name)
    )


def _category(process: str, name: str, args: str) -> str:
    """Return the category of a slice that has none: waits, overhead, and rows of a GPU (earlier builds)."""
    category = "overhead" if process == "Overhead" else ""
    if '"cuda_sync_kind":' in args:
        category = "cuda_sync"
    elif _GPU.fullmatch(process):
        otherwise = "Kernel" if '"correlation":' in args else "Annotation"
        category = _STAGES[next((stage for stage in _STAGES if name.startswith(f'"name":"{stage}')), otherwise)]
    return category and f'"cat":"{category}",'
