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
from graphlink.model import NOWHERE
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


Call = dict[str, Any]  # a collective or a message: its fields begin with "coll" or "p2p"


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
        calls = [_named_alike(line) for line in rows]

        def column(name: str) -> list[Any]:
            return [call.get(name) for call in calls]

        of_call = [[event for event in call["events"] if event.get("event_type") == _KERNEL] for call in calls]
        kernels = [(row, kernel) for row, own in enumerate(of_call, self.calls.count) for kernel in own]
        events = sum(map(len, column("events")))
        self.left_out["events in calls that are no kernel channels"] += events - len(kernels)
        self.on_host += column("timing_source").count(_ON_HOST)
        self.host = self.host or next((name for line in rows if (name := text_of(line.metadata.hostname))), "")
        self.calls.add(
            communicator=self.keys.column(keys) - 1,
            rank=small([line.header.rank for line in rows]),
            function=self.strings.column([function_of(text_of(name)) for name in column("name")]),
            peer=small(column("peer")),
            bytes=natural(column("msg_size_bytes")),
            seq=natural(column("sn")),
            channels=np.array([len(own) or NOWHERE for own in of_call], np.int32),
            start_ns=times(column("start_ts")),
            end_ns=times(column("stop_ts")),
            pid=natural([line.metadata.pid for line in rows]),
        )
        self.kernels.add(
            call=np.array([row for row, _ in kernels], np.int32),
            channel=small([kernel.get("channel_id") for _, kernel in kernels]),
            start_ns=times([kernel.get("kernel_start_ts") for _, kernel in kernels]),
            end_ns=times([kernel.get("kernel_stop_ts") for _, kernel in kernels]),
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


def _named_alike(line: InspectorLine) -> Call:
    """Return a call with its times, without the sort in its names; ``events``: those inside it, kernel channels of all
    versions alike.
    """
    sort, call = ("coll", line.coll_perf) if line.coll_perf is not None else ("p2p", line.p2p_perf or {})
    timed = call | _object(call.get("event_trace_ts"))
    kernels = [event and {**event, "event_type": _KERNEL} for event in _objects_of(timed.get("kernel_events"))]
    v41 = [event | _object(event.get("event_trace_ts")) for event in _objects_of(call.get("events"))]
    alike = {key.removeprefix(f"{sort}_"): value for key, value in timed.items()}
    return alike | {"name": call.get(sort), "events": kernels + v41}


def _object(value: object) -> Call:
    return value if isinstance(value, dict) else {}


def _objects_of(values: object) -> list[Call]:
    """Return the entries of a list; what is no object is an empty one, and so no kernel channel."""
    return [_object(value) for value in values] if isinstance(values, list) else []


def communicator_of(header: Header, key: str) -> Communicator:
    """Return the communicator that a line's header names."""
    name = text_of(header.comm_name)
    return Communicator(key, "" if name == _UNNAMED else name, size=count_or_none(header.n_ranks))
