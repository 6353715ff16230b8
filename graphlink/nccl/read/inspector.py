"""Reads what NCCL's inspector wrote of one process. Format: NVIDIA/nccl, ``ext-profiler/inspector/inspector.cc``.

One JSON object a call, on a line or printed on several (then its braces stand alone on their lines). ``bytes`` are the
count of a rank x the size of the type. Calls have times (epoch) only where the inspector was verbose: start and end of
the enqueueing on the host. How long a call took on the GPU, as far as the inspector did not take the time on the host
for it, its kernel tells too, and is not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from graphlink.errors import InputError
from graphlink.model import I64, NOWHERE
from graphlink.nccl.read.events import CUT, MOST_BYTES, decoded, lines
from graphlink.nccl.read.names import (
    function_of,
    hash_text,
    inspector_name,
    natural,
    rank_in_name,
    small,
    text_of,
    times,
)
from graphlink.nccl.read.records import Calls, Communicator, Dump, KernelChannels, table
from graphlink.process import gc_paused
from graphlink.read.columns import Parts, Strings
from graphlink.read.comms import count_or_none
from graphlink.read.kinds import DumpKind
from graphlink.read.source import open_source

_ON_HOST: Final = "collective_cpu"
_UNNAMED: Final = "unknown"
_KERNEL: Final = "KernelCh"
_UNREADABLE: Final = "lines that are no object of the inspector"
_TODO: Final = (
    "set NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES and NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING to 0: small and "
    "untimed calls are left out"
)


class Header(msgspec.Struct, gc=False):
    id: Any = None
    comm_name: Any = None
    rank: Any = None
    n_ranks: Any = None


class InspectorMetadata(msgspec.Struct, gc=False):
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
    coll_timing_source: Any = None
    p2p: Any = None
    p2p_sn: Any = None
    p2p_msg_size_bytes: Any = None
    p2p_timing_source: Any = None
    p2p_peer: Any = None
    times: CallTimes = msgspec.field(name="event_trace_ts", default_factory=CallTimes)
    events: list[Within] = []


class InspectorLine(msgspec.Struct, gc=False):
    header: Header
    metadata: InspectorMetadata = msgspec.field(default_factory=InspectorMetadata)
    coll_perf: Call | None = None
    p2p_perf: Call | None = None


_LINE: Final = msgspec.json.Decoder(InspectorLine)


def read_inspector(path: Path) -> Dump:
    """Read the log at ``path``. One pass; memory is that of the columns, some 150 bytes a call.

    Raises:
        InputError: the file cannot be read, or has no call at all.
    """
    gathered = _Gathered()
    with gc_paused(), open_source(path) as source:
        for text, cut in _objects(lines(source, gathered.left_out)):
            gathered.add(text, CUT if cut else _UNREADABLE)
    if not gathered.calls.count:
        raise InputError("is a log of NCCL's inspector without calls", path=path, todo=_TODO)
    return gathered.dump(path)


def _objects(blocks: Iterable[tuple[bytes, bool]]) -> Iterator[tuple[list[bytes], bool]]:
    """Yield texts that should be an object each, a block of lines at a time, and whether the last one of them may be
    cut off.
    """
    parts: list[bytes] = []
    size, cut = 0, False
    for block, cut in blocks:
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
        yield [text for text in texts if text], cut
    yield [b"\n".join(parts)] if parts else [], cut


class _Gathered:
    """The calls read so far. ``keys``: of the communicators; ``headers``: the first one of each."""

    def __init__(self) -> None:
        self.strings, self.keys = Strings(), Strings()
        self.headers: dict[str, Header] = {}
        self.host = ""
        self.calls, self.kernels = Parts(), Parts()
        self.left_out: Counter[str] = Counter()
        self.on_host = 0

    def add(self, texts: list[bytes], damaged: str) -> None:
        """Add objects. ``damaged``: what those that are none count as."""
        objects = [line for text in texts if (line := decoded(_LINE, text)) is not None]
        rows = [line for line in objects if line.coll_perf is not None or line.p2p_perf is not None]
        self.left_out[damaged] += len(texts) - len(objects)
        self.left_out["objects without coll_perf and p2p_perf"] += len(objects) - len(rows)
        keys = [hash_text(line.header.id) or "" for line in rows]
        for key, line in zip(keys, rows, strict=True):
            self.headers.setdefault(key, line.header)
        sorts = ["p2p" if line.coll_perf is None else "coll" for line in rows]
        calls = [call for line in rows if (call := line.coll_perf or line.p2p_perf) is not None]

        def column(suffix: str) -> list[Any]:
            return [getattr(call, sort + suffix) for sort, call in zip(sorts, calls, strict=True)]

        def call_times(name: str) -> I64:
            either = ((getattr(call.times, f"coll_{name}_ts"), getattr(call.times, f"p2p_{name}_ts")) for call in calls)
            return times([p2p if coll is None else coll for coll, p2p in either])

        of_call = [_kernels(call) for call in calls]
        kernels = [(row, kernel) for row, own in enumerate(of_call, self.calls.count) for kernel in own]
        events = sum(len(call.times.kernel_events) + len(call.events) for call in calls)
        self.left_out["events in calls that are no kernel channels"] += events - len(kernels)
        self.on_host += column("_timing_source").count(_ON_HOST)
        self.host = self.host or next((name for line in rows if (name := text_of(line.metadata.hostname))), "")
        self.calls.add(
            communicator=self.keys.column(keys) - 1,
            rank=small([line.header.rank for line in rows]),
            function=self.strings.column([function_of(text_of(name)) for name in column("")]),
            peer=small([call.p2p_peer if sort == "p2p" else None for sort, call in zip(sorts, calls, strict=True)]),
            bytes=natural(column("_msg_size_bytes")),
            seq=natural(column("_sn")),
            channels=np.array([len(own) or NOWHERE for own in of_call], np.int32),
            start_ns=call_times("start"),
            end_ns=call_times("stop"),
            pid=natural([line.metadata.pid for line in rows]),
        )
        self.kernels.add(
            call=np.array([row for row, _ in kernels], np.int32),
            channel=small([kernel.channel_id for _, kernel in kernels]),
            start_ns=times([kernel.kernel_start_ts for _, kernel in kernels]),
            end_ns=times([kernel.kernel_stop_ts for _, kernel in kernels]),
        )

    def dump(self, path: Path) -> Dump:
        pids = self.calls.column("pid")
        pids = pids[pids != NOWHERE]
        host, pid = inspector_name(path) or ("", None)
        left_out = dict(+self.left_out)
        return Dump(
            path=str(path),
            kind=DumpKind.INSPECTOR,
            rank=rank_in_name(path),
            host=self.host or host,
            pid=int(pids[0]) if len(pids) else pid,
            strings=tuple(self.strings),
            communicators=tuple(communicator_of(self.headers[key], key) for key in list(self.keys)[1:]),
            calls=table(Calls, self.calls.count, **self.calls.columns()),
            kernels=table(KernelChannels, self.kernels.count, **self.kernels.columns()),
            events=self.calls.count + sum(left_out.values()),
            left_out=left_out,
            warnings=(f"{self.on_host} calls were timed on the host only: their times on the GPU are not known",)
            if self.on_host
            else (),
        )


def _kernels(call: Call) -> list[KernelTimes]:
    return call.times.kernel_events + [
        KernelTimes(event.channel_id, event.times.kernel_start_ts, event.times.kernel_stop_ts)
        for event in call.events
        if event.event_type == _KERNEL
    ]


def communicator_of(header: Header, key: str) -> Communicator:
    """Return the communicator that a line's header names."""
    name = text_of(header.comm_name)
    return Communicator(key, "" if name == _UNNAMED else name, size=count_or_none(header.n_ranks))
