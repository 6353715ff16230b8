"""Reads what NCCL's inspector wrote of one process. Format: NVIDIA/nccl, ``ext-profiler/inspector/inspector.cc``.

One JSON object a call, on a line or printed on several (then its braces stand alone on their lines). ``bytes`` are the count of a rank x
the size of the type. Calls have times (epoch) only where the inspector was verbose: start and end of the enqueueing on the host. How long
the call took on the GPU is ``exec_ns``; where the inspector had to take the time on the host for it, that is not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from graphlink.errors import InputError
from graphlink.model import I64, NOWHERE
from graphlink.nccl.read.events import CUT, DAMAGED, LONG, MOST_BYTES, Lines, small
from graphlink.nccl.read.names import function_of, hash_text, inspector_name, natural, rank_in_name, times
from graphlink.nccl.read.records import Calls, Clock, Communicator, Dump, KernelChannels, table
from graphlink.read.columns import Parts, Strings
from graphlink.read.comms import count_or_none
from graphlink.read.nccl_kinds import DumpKind
from graphlink.read.source import open_source
from graphlink.read.stream import gc_paused

_ON_HOST: Final = "collective_cpu"
_UNNAMED: Final = "unknown"
_UNREADABLE: Final = "lines that are no object of the inspector"


class Header(msgspec.Struct, gc=False):
    id: Any = None
    comm_name: Any = None
    rank: Any = None
    n_ranks: Any = None


class Metadata(msgspec.Struct, gc=False):
    hostname: Any = None
    pid: Any = None


class KernelTimes(msgspec.Struct, gc=False):
    channel_id: Any = None
    kernel_start_ts: Any = None
    kernel_stop_ts: Any = None


class CallTimes(msgspec.Struct, gc=False):
    coll_start_ts: Any = None
    coll_stop_ts: Any = None
    p2p_start_ts: Any = None
    p2p_stop_ts: Any = None
    kernel_events: list[KernelTimes] = []


class Within(msgspec.Struct, gc=False):
    """An entry of v4.1 in a call: a kernel channel, or a proxy op, which is not read."""

    event_type: Any = None
    channel_id: Any = None
    times: KernelTimes = msgspec.field(name="event_trace_ts", default_factory=KernelTimes)


class Call(msgspec.Struct, gc=False):
    """A collective or a message: its fields begin with ``coll`` or ``p2p``."""

    coll: Any = None
    coll_sn: Any = None
    coll_msg_size_bytes: Any = None
    coll_exec_time_us: Any = None
    coll_timing_source: Any = None
    p2p: Any = None
    p2p_sn: Any = None
    p2p_msg_size_bytes: Any = None
    p2p_exec_time_us: Any = None
    p2p_timing_source: Any = None
    p2p_peer: Any = None
    times: CallTimes = msgspec.field(name="event_trace_ts", default_factory=CallTimes)
    events: list[Within] = []


class Line(msgspec.Struct, gc=False):
    header: Header
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    coll_perf: Call | None = None
    p2p_perf: Call | None = None


_LINE: Final = msgspec.json.Decoder(Line)


def read_inspector(path: Path) -> Dump:
    """Read the log at ``path``. One pass; memory is that of the columns, some 150 bytes a call.

    Raises:
        InputError: the file cannot be read, or has no call at all.
    """
    gathered = _Gathered()
    with gc_paused(), open_source(path) as source:
        lines = Lines(source)
        for texts in _objects(lines):
            gathered.add(texts)
    if not gathered.calls.count:
        todo = "set NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES and NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING to 0: small and untimed calls are left out"
        raise InputError("is a log of NCCL's inspector without calls", path=path, todo=todo)
    if lines.too_long:
        gathered.left_out[LONG] += lines.too_long
    return gathered.dump(path, cut=lines.cut)


def _objects(lines: Lines) -> Iterator[list[bytes]]:
    """Yield texts that should be an object each, a block of lines at a time."""
    parts: list[bytes] = []
    size = 0
    for block in lines.blocks():
        texts = []
        for line in map(bytes.rstrip, block.split(b"\n")):
            if not parts and line != b"{":
                texts.append(line)
                continue
            parts.append(line)
            size += len(line)
            if line == b"}" or size > MOST_BYTES:
                texts.append(b"\n".join(parts))
                parts, size = [], 0
        yield [text for text in texts if text]
    yield [b"\n".join(parts)] if parts else []


class _Gathered:
    """The calls read so far."""

    def __init__(self) -> None:
        self.strings = Strings()
        self.rows: dict[str, int] = {}  # of the communicators, by key
        self.communicators: list[Communicator] = []
        self.host = ""
        self.calls, self.kernels = Parts(), Parts()
        self.left_out: Counter[str] = Counter()
        self.on_host = 0
        self.last_is_bad = False

    def add(self, texts: list[bytes]) -> None:
        lines = []
        for text in texts:
            line = _decoded(text)
            self.last_is_bad = line is None
            if line is None:
                self.left_out[_UNREADABLE] += 1
            elif line.coll_perf is None and line.p2p_perf is None:
                self.left_out["objects without coll_perf and p2p_perf"] += 1
            else:
                lines.append(line)
        if lines:
            self._add(lines)

    def _add(self, lines: list[Line]) -> None:
        sorts = ["p2p" if line.coll_perf is None else "coll" for line in lines]
        calls = [call for line in lines if (call := line.coll_perf or line.p2p_perf) is not None]

        def column(suffix: str) -> list[Any]:
            return [getattr(call, sort + suffix) for sort, call in zip(sorts, calls, strict=True)]

        def call_times(name: str) -> I64:
            either = ((getattr(call.times, f"coll_{name}_ts"), getattr(call.times, f"p2p_{name}_ts")) for call in calls)
            return times([p2p if coll is None else coll for coll, p2p in either])

        on_host = np.array([source == _ON_HOST for source in column("_timing_source")])
        self.on_host += int(on_host.sum())
        kernels = [(row, kernel) for row, call in enumerate(calls, self.calls.count) for kernel in _kernels(call)]
        self.left_out["events in calls that are no kernel channels"] += sum(
            not _is_kernel(event) for call in calls for event in call.events
        )
        self.calls.add(
            communicator=np.array([self._communicator(line.header) for line in lines], np.int32),
            rank=small([line.header.rank for line in lines]),
            function=self.strings.column([function_of(name) if isinstance(name, str) else "" for name in column("")]),
            peer=small([call.p2p_peer if sort == "p2p" else None for sort, call in zip(sorts, calls, strict=True)]),
            bytes=natural(column("_msg_size_bytes")),
            seq=natural(column("_sn")),
            channels=np.array([len(_kernels(call)) or NOWHERE for call in calls], np.int32),
            start_ns=call_times("start"),
            end_ns=call_times("stop"),
            exec_ns=np.where(on_host, 0, times(column("_exec_time_us"))),
            pid=natural([line.metadata.pid for line in lines]),
        )
        self.kernels.add(
            call=np.array([row for row, _ in kernels], np.int32),
            channel=small([kernel.channel_id for _, kernel in kernels]),
            start_ns=times([kernel.kernel_start_ts for _, kernel in kernels]),
            end_ns=times([kernel.kernel_stop_ts for _, kernel in kernels]),
        )
        host = lines[0].metadata.hostname
        self.host = self.host or (host if isinstance(host, str) else "")

    def _communicator(self, header: Header) -> int:
        key = hash_text(header.id)
        if key is None:
            return NOWHERE
        if key not in self.rows:
            self.rows[key] = len(self.rows)
            self.communicators.append(communicator_of(header, key))
        return self.rows[key]

    def dump(self, path: Path, *, cut: bool) -> Dump:
        calls = table(Calls, self.calls.count, **self.calls.columns())
        kernels = table(KernelChannels, self.kernels.count, **self.kernels.columns())
        if cut and self.last_is_bad:
            self.left_out[_UNREADABLE] -= 1
            self.left_out[CUT] += 1
        left_out = {reason: count for reason, count in self.left_out.items() if count}
        named = inspector_name(path)
        pids = calls.pid[calls.pid != NOWHERE]
        return Dump(
            path=str(path),
            kind=DumpKind.INSPECTOR,
            clock=Clock.EPOCH,
            rank=rank_in_name(path),
            host=self.host or (named[0] if named else ""),
            pid=int(pids[0]) if len(pids) else named[1] if named else None,
            strings=tuple(self.strings),
            communicators=tuple(self.communicators),
            calls=calls,
            kernels=kernels,
            events=len(calls.seq) + sum(left_out.values()),
            paired=int(((calls.start_ns > 0) & (calls.end_ns > 0)).sum()),
            left_out=left_out,
            warnings=(f"{self.on_host} calls were timed on the host only: their times on the GPU are not known",) if self.on_host else (),
        )


def _kernels(call: Call) -> list[KernelTimes]:
    listed = [
        KernelTimes(event.channel_id, event.times.kernel_start_ts, event.times.kernel_stop_ts) for event in call.events if _is_kernel(event)
    ]
    return call.times.kernel_events + listed


def _is_kernel(event: Within) -> bool:
    return bool(event.event_type == "KernelCh")


def communicator_of(header: Header, key: str) -> Communicator:
    """Return the communicator that a line's header names."""
    name = header.comm_name if isinstance(header.comm_name, str) and header.comm_name != _UNNAMED else ""
    return Communicator(key, name, size=count_or_none(header.n_ranks))


def _decoded(text: bytes) -> Line | None:
    try:
        return _LINE.decode(text)
    except DAMAGED:
        return None
