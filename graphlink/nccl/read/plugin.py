"""The dump of NCCL's example profiler plugin -> ``Dump``. Format: NVIDIA/nccl, ``ext-profiler/example/print_event.cc``.

A dump is a tree printed depth first: API call > COLL or P2P > KernelCh and proxy ops > NET steps. What hangs on what is told by order
alone: an event belongs to the COLL or P2P that has begun and not ended above it. Proxy ops that other processes asked for (PXN) come
last and have none. Times are us since the plugin's start; GPU times ns of each GPU's own clock. 0 stands for "not recorded" throughout.

What a step waits for:
  SendGpuWait    GPU      the kernel fills the buffer
  SendPeerWait   PEER     the receiver posts its buffer
  SendWait       WIRE     the data is on its way
  RecvWait       RECEIVE  the buffer is posted, the data not here
  RecvFlushWait  WIRE     the network card flushes what has come, so that the GPU sees it
  RecvGpuWait    GPU      the kernel takes the data out
``SendBufferWait`` and ``RecvBufferWait`` (NCCL up to 2.25) are no state of ``Steps``: all steps of an op begin together and wait for one
of its few buffers, which the steps ahead hold (``net.cc``), so what those wait for is the reason, and is recorded with them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.model import I32, I64, NOWHERE
from graphlink.nccl.read.account import Account
from graphlink.nccl.read.events import EventFile, ends_of, inside
from graphlink.nccl.read.names import dtype_of, function_of, hash_text, rank_in_name
from graphlink.nccl.read.records import Calls, Clock, Communicator, Dump, KernelChannels, ProxyOps, State, Steps
from graphlink.nccl.read.tables import message_bytes, narrow, natural, sorted_steps, table, times
from graphlink.read.columns import Parts, Strings, ints
from graphlink.read.nccl_kinds import DumpKind

_STATES: Final = {
    "SendGpuWait": State.GPU, "SendPeerWait": State.PEER, "SendWait": State.WIRE,
    "RecvWait": State.RECEIVE, "RecvFlushWait": State.WIRE, "RecvGpuWait": State.GPU,
}  # fmt: skip
_SENDS: Final = {"ProgressSend": True, "ProgressRecv": False, "Send": True, "Recv": False}  # the last two: NCCL up to 2.25
_TABLE_OF: Final = {"COLL_API": "api", "P2P_API": "api", "COLL": "call", "P2P": "call", "GPU": "kernel", "PROXY": "proxy", "NET": "step"}
# names in categories that several things share
_NAMES: Final = {"kernel": frozenset({"KernelCh"}), "proxy": frozenset(_SENDS), "step": frozenset(_STATES)}
_COUNTED_BY_NAME: Final = {
    "PROXY": frozenset({"ScheduleSend", "ScheduleRecv", "Idle", "Sleep", "Append", *_SENDS}),
    "NET": frozenset({"SendBufferWait", "RecvBufferWait", *_STATES}),
}
_COUNTED: Final = frozenset({"GROUP_API", "GROUP", "KERNEL_LAUNCH", *_TABLE_OF, "NET_IB", "NET_SOCK", "CE_COLL", "CE_SYNC", "CE_BATCH"})
_BEGIN, _END, _OTHER = range(3)
_PHASES: Final = {"b": _BEGIN, "e": _END}


class Args(msgspec.Struct, gc=False, rename="pascal"):
    seq_num: Any = None
    comm_hash: Any = None
    rank: Any = None
    peer: Any = None
    count: Any = None
    datatype: Any = None
    algorithm: Any = None
    protocol: Any = None
    n_channels: Any = msgspec.field(name="nChannels", default=None)
    n_max_channels: Any = msgspec.field(name="nMaxChannels", default=None)  # NCCL 2.23
    stream: Any = None
    channel: Any = None
    start_gpu_clk: Any = None
    stop_gpu_clk: Any = None
    trans_size: Any = msgspec.field(name="transSize", default=None)
    step: Any = None


class Event(msgspec.Struct, gc=False):
    name: str = ""
    cat: str = ""
    ph: str = ""
    id: Any = None
    pid: Any = None
    ts: Any = None
    args: Args | None = None


_NO_ARGS: Final = Args()
_Columns = dict[str, NDArray[Any]]


def read_plugin(path: Path) -> Dump:
    """The dump at ``path``. One pass and one sort; memory is that of the columns, about 130 bytes an event.

    Raises:
        InputError: the file cannot be read, or holds no event at all.
    """
    gathered = _Gathered()
    file = EventFile(path, Event)
    for rows in file.blocks():
        gathered.add(rows)
    if not gathered.events.count:
        todo = "record with NCCL_PROFILE_EVENT_MASK set (its default, 0, records nothing), and destroy the communicator at the end"
        raise InputError("is a dump of NCCL's profiler plugin without events", path=path, todo=todo)
    return gathered.dump(path, file)


class _Gathered:
    """What has been read so far: all events, and of the begins that have a table what their args say."""

    def __init__(self) -> None:
        self.strings = Strings()
        self.words = Strings()  # categories and names
        self.communicators: dict[str, int] = {}
        self.events = Parts()
        self.fill = {"api": self._apis, "call": self._calls, "kernel": self._kernels, "proxy": self._proxies, "step": self._steps}
        self.begins = {kind: Parts() for kind in self.fill}
        for kind, fill in self.fill.items():
            self.begins[kind].add(at=np.zeros(0, np.int64), **fill([], []))

    def add(self, rows: list[Event]) -> None:
        first = self.events.count
        self.events.add(
            category=self.words.column([row.cat for row in rows]),
            name=self.words.column([row.name for row in rows]),
            ident=ints([row.id for row in rows]),
            phase=np.array([_PHASES.get(row.ph, _OTHER) for row in rows], np.uint8),
            ns=times([row.ts for row in rows]),
            pid=ints([row.pid for row in rows], NOWHERE),
        )
        places: dict[str, list[int]] = {kind: [] for kind in self.fill}
        for place, row in enumerate(rows):
            if row.ph == "b" and (kind := _TABLE_OF.get(row.cat)) is not None and row.name in _NAMES.get(kind, (row.name,)):
                places[kind].append(place)
        for kind, fill in self.fill.items():
            if places[kind]:
                begins = [rows[place] for place in places[kind]]
                columns = fill([row.name for row in begins], [row.args or _NO_ARGS for row in begins])
                self.begins[kind].add(at=np.array(places[kind], np.int64) + first, **columns)

    def _apis(self, names: list[str], args: list[Args]) -> _Columns:
        return {"stream": np.maximum(ints([a.stream for a in args], 0), 0)}  # "(nil)" is none either

    def _calls(self, names: list[str], args: list[Args]) -> _Columns:
        dtypes = [dtype_of(a.datatype) if isinstance(a.datatype, str) else "" for a in args]
        count = natural([a.count for a in args])
        return {
            "communicator": np.array([self._communicator(a.comm_hash) for a in args], np.int32),
            "rank": narrow(natural([a.rank for a in args])),
            "function": self.strings.column([function_of(name) for name in names]),
            "peer": narrow(natural([a.peer for a in args])),
            "count": count,
            "dtype": self.strings.column(dtypes),
            "bytes": message_bytes(count, dtypes),
            "seq": natural([a.seq_num for a in args]),
            "algorithm": self._texts([a.algorithm for a in args]),
            "protocol": self._texts([a.protocol for a in args]),
            "channels": narrow(natural([a.n_max_channels if a.n_channels is None else a.n_channels for a in args])),
        }

    def _kernels(self, names: list[str], args: list[Args]) -> _Columns:
        return {
            "channel": narrow(natural([a.channel for a in args])),
            "gpu_start_ns": np.maximum(ints([a.start_gpu_clk for a in args], 0), 0),
            "gpu_end_ns": np.maximum(ints([a.stop_gpu_clk for a in args], 0), 0),
        }

    def _proxies(self, names: list[str], args: list[Args]) -> _Columns:
        return {
            "channel": narrow(natural([a.channel for a in args])),
            "peer": narrow(natural([a.peer for a in args])),
            "sends": np.array([_SENDS[name] for name in names], np.bool_),
            "bytes": natural([a.trans_size for a in args]),
        }

    def _steps(self, names: list[str], args: list[Args]) -> _Columns:
        return {"step": natural([a.step for a in args]), "state": np.array([_STATES[name] for name in names], np.uint8)}

    def _communicator(self, value: object) -> int:
        key = hash_text(value)
        return NOWHERE if key is None else self.communicators.setdefault(key, len(self.communicators))

    def _texts(self, values: list[Any]) -> I32:
        return self.strings.column([value if isinstance(value, str) else "" for value in values])

    def dump(self, path: Path, file: EventFile[Event]) -> Dump:
        category, name, phase = (self.events.column(column) for column in ("category", "name", "phase"))
        end = ends_of(category, name, self.events.column("ident"), phase == _BEGIN, phase == _END)
        account = Account(self.events.column("ns"), phase == _BEGIN, end)
        at = {kind: begins.column("at") for kind, begins in self.begins.items()}
        said = {kind: begins.columns() for kind, begins in self.begins.items()}
        pid = self.events.column("pid")

        def around(outer: str, inner: str) -> I64:
            return inside(at[outer], end[at[outer]], at[inner])

        proxy = around("proxy", "step")
        usable = account.usable_steps(at["step"], proxy)
        steps = {column: values[usable] for column, values in said["step"].items()}
        stream = np.append(said["api"]["stream"], 0)[around("api", "call")]
        calls, kernels, proxies = at["call"], at["kernel"], at["proxy"]
        dump = Dump(
            path=str(path),
            kind=DumpKind.PLUGIN,
            clock=Clock.STEADY,
            rank=rank_in_name(path),
            host="",
            pid=next(iter(pid[pid != NOWHERE][:1].tolist()), None),
            strings=tuple(self.strings),
            communicators=tuple(map(Communicator, self.communicators)),
            calls=table(Calls, len(calls), **said["call"], **account.keep(calls), pid=pid[calls], stream=stream),
            kernels=table(KernelChannels, len(kernels), **said["kernel"], **account.keep(kernels), call=around("call", "kernel")),
            proxies=table(ProxyOps, len(proxies), **said["proxy"], **account.keep(proxies), call=around("call", "proxy")),
            steps=sorted_steps(table(Steps, len(usable), **steps, **account.keep(at["step"][usable]), proxy=proxy[usable])),
            events=file.events,
            paired=account.paired,
            left_out={},
            warnings=(),
        )
        account.leave_lone(phase == _END, "ends without a begin")
        account.leave_others(category, name, phase == _OTHER, list(self.words), _label)
        return replace(dump, left_out=dict(account.left_out + file.left_out), warnings=account.warnings())


def _label(category: str, name: str) -> str:
    names = _COUNTED_BY_NAME.get(category)
    if names is not None:
        return f"{category} {name}" if name in names else f"{category} of another name"
    return category if category in _COUNTED else "another category"
