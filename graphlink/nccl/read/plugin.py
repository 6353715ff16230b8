"""Reads the dump of NCCL's example profiler plugin. Format: NVIDIA/nccl, ``ext-profiler/example/print_event.cc``.

A dump is a tree printed depth first: API call > COLL or P2P > KernelCh and proxy ops > NET steps. What belongs to what
is known from the order alone: an event belongs to the COLL or P2P that has begun and not ended above it. Proxy ops that
other processes asked for (PXN) come last and have none. Times are us since the plugin's start; GPU times ns of each
GPU's own clock. 0 stands for "not recorded" throughout.

The messages of a rank in one group API call are one kernel (``batch_isend_irecv``), and are read as one call.

What a step waits for:
  SendGpuWait    GPU      the kernel fills the buffer
  SendPeerWait   PEER     the receiver posts its buffer
  SendWait       WIRE     the data is on its way
  RecvWait       RECEIVE  the buffer is posted, the data not here
  RecvFlushWait  WIRE     the network card flushes what has come, so that the GPU sees it
  RecvGpuWait    GPU      the kernel takes the data out
``SendBufferWait`` and ``RecvBufferWait`` (NCCL up to 2.25) are no state of ``Steps``: all steps of an op begin together
and wait for one of its few buffers, which the steps ahead hold (``net.cc``), so what those wait for is the reason, and
is recorded with them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, Bool
from graphlink.nccl.read.events import Args, EventTables, Fill, PluginEvent, said
from graphlink.nccl.read.names import (
    DTYPES,
    batched,
    function_of,
    hash_text,
    message_bytes,
    natural,
    rank_in_name,
    small,
    text_of,
)
from graphlink.nccl.read.records import Calls, Communicator, Dump, KernelChannels, ProxyOps, State, table
from graphlink.read.columns import Columns, Strings, ints
from graphlink.read.kinds import DumpKind
from graphlink.tables import grouped, least, numbered_rows, sums, tuples

_STATES: Final = {
    "SendGpuWait": State.GPU, "SendPeerWait": State.PEER, "SendWait": State.WIRE,
    "RecvWait": State.RECEIVE, "RecvFlushWait": State.WIRE, "RecvGpuWait": State.GPU,
}  # fmt: skip
_SENDS: Final = {
    "ProgressSend": True,
    "ProgressRecv": False,
    "Send": True,
    "Recv": False,
}  # the last two: NCCL up to 2.25
_SORT_OF: Final = {
    "GROUP_API": "group", "COLL": "call", "P2P": "call", "GPU": "kernel", "PROXY": "proxy", "NET": "step",
}  # fmt: skip
# names in categories that several things share
_NAMES: Final = {"kernel": frozenset({"KernelCh"}), "proxy": frozenset(_SENDS), "step": frozenset(_STATES)}
_TIMED: Final = ("call", "kernel", "proxy")
_COUNTED_BY_NAME: Final = {
    "PROXY": frozenset({"ScheduleSend", "ScheduleRecv", "Idle", "Sleep", "Append", *_SENDS}),
    "NET": frozenset({"SendBufferWait", "RecvBufferWait", *_STATES}),
}
_COUNTED: Final = frozenset(
    {
        "GROUP",
        "COLL_API",
        "P2P_API",
        "KERNEL_LAUNCH",
        *_SORT_OF,
        "NET_IB",
        "NET_SOCK",
        "CE_COLL",
        "CE_SYNC",
        "CE_BATCH",
    }
)
_TODO: Final = (
    "record with NCCL_PROFILE_EVENT_MASK set (its default, 0, records nothing), and destroy the communicator at the end"
)


def read_plugin(path: Path) -> Dump:
    """Read the dump at ``path``. One pass and one sort; memory is that of the columns, about 130 bytes an event.

    Raises:
        InputError: the file cannot be read, or holds no event at all.
    """
    strings, keys = Strings(), Strings()
    # columns of what begins say in their args, by sort
    fill: dict[str, Fill] = {
        "call": partial(_calls, strings, keys),
        "kernel": lambda _, args: {
            "channel": small(said(args, "Channel")),
            "gpu_start_ns": np.maximum(ints(said(args, "StartGpuClk"), 0), 0),
            "gpu_end_ns": np.maximum(ints(said(args, "StopGpuClk"), 0), 0),
        },
        "proxy": lambda rows, args: {
            "channel": small(said(args, "Channel")),
            "peer": small(said(args, "Peer")),
            "sends": np.array([_SENDS[row.name] for row in rows], np.bool_),
            "bytes": natural(said(args, "transSize")),
        },
        "group": lambda _rows, _args: {},
        "step": lambda rows, args: {
            "step": natural(said(args, "Step")),
            "state": np.array([_STATES[row.name] for row in rows], np.uint8),
        },
    }
    tables = EventTables(path, _sort_of, fill, "NCCL's profiler plugin", _TODO)
    at, columns = tables.at, tables.columns
    steps = tables.steps(at["step"], tables.around("proxy", "step"), columns["step"]["step"], columns["step"]["state"])
    message = np.isin(columns["call"]["function"], strings.column(("send", "recv")))
    first, kernel = np.unique(
        _first_of_kernel(columns["call"], tables.around("group", "call"), message), return_inverse=True
    )
    calls, call_of = _as_kernels(columns["call"], kernel, strings), np.append(kernel, NOWHERE)
    tables.leave(np.delete(at["call"], first), "messages in the kernel of another")
    times = {sort: tables.keep(rows) for sort, rows in (at | {"call": at["call"][first]}).items() if sort in _TIMED}
    pids = tables.pid[tables.pid != NOWHERE]
    return Dump(
        path=str(path),
        kind=DumpKind.PLUGIN,
        rank=rank_in_name(path),
        pid=int(pids[0]) if len(pids) else None,
        strings=tuple(strings),
        communicators=tuple(map(Communicator, list(keys)[1:])),
        calls=table(Calls, len(first), **calls, **times["call"]),
        kernels=table(
            KernelChannels,
            len(at["kernel"]),
            **columns["kernel"],
            **times["kernel"],
            call=call_of[tables.around("call", "kernel")],
        ),
        proxies=table(ProxyOps, len(at["proxy"]), **columns["proxy"], call=call_of[tables.around("call", "proxy")]),
        steps=steps,
        events=tables.events,
        left_out=tables.left_out(_label),
        warnings=tables.warnings(),
    )


def _calls(strings: Strings, keys: Strings, rows: list[PluginEvent], args: list[Args]) -> Columns:
    """Return the columns of calls; ``keys``: of the communicators."""
    named = [text_of(a.get("Datatype")) for a in args]
    dtypes = [DTYPES.get(name, name) for name in named]
    count = natural(said(args, "Count"))
    return {
        "communicator": keys.column([hash_text(a.get("CommHash")) or "" for a in args]) - 1,
        "rank": small(said(args, "Rank")),
        "function": strings.column([function_of(row.name) for row in rows]),
        "peer": small(said(args, "Peer")),
        "count": count,
        "dtype": strings.column(dtypes),
        "bytes": message_bytes(count, dtypes),
        "seq": natural(said(args, "SeqNum")),
        "algorithm": strings.column([text_of(a.get("Algorithm")) for a in args]),
        "protocol": strings.column([text_of(a.get("Protocol")) for a in args]),
        "channels": small([a.get("nChannels", a.get("nMaxChannels")) for a in args]),  # the latter: NCCL 2.23
    }


def _first_of_kernel(calls: Columns, group: I64, message: Bool) -> I64:
    """Return the first call of the kernel that each call is part of: messages of one group, communicator and rank."""
    alone = np.where(message & (group != NOWHERE), NOWHERE, np.arange(len(group)))
    _, kernel = numbered_rows(calls["communicator"], calls["rank"], np.where(alone == NOWHERE, group, NOWHERE), alone)
    return least(int(kernel.max(initial=NOWHERE)) + 1, kernel, np.arange(len(kernel)))[kernel]


def _as_kernels(calls: Columns, kernel: I64, strings: Strings) -> Columns:
    """Return a call per kernel: its first one, with the names, elements and bytes of all."""
    count, texts = np.bincount(kernel), list(strings)
    several, first = count > 1, least(len(count), kernel, np.arange(len(kernel)))
    out = {name: column[first] for name, column in calls.items()}
    messages = grouped(
        (own, (texts[function], peer))
        for own, function, peer in tuples(kernel, calls["function"], calls["peer"])
        if several[own]
    )
    out["function"][several] = strings.column([batched(of_kernel) for _, of_kernel in sorted(messages.items())])
    out["peer"][several] = NOWHERE
    for name in ("count", "bytes"):
        known = least(len(count), kernel, calls[name]) >= 0
        out[name] = np.where(known, sums(len(count), kernel, calls[name]), NOWHERE)
    return out


def _sort_of(row: PluginEvent) -> str | None:
    sort = _SORT_OF.get(row.cat)
    return sort if sort is not None and row.name in _NAMES.get(sort, (row.name,)) else None


def _label(category: str, name: str) -> str:
    names = _COUNTED_BY_NAME.get(category)
    if names is not None:
        return f"{category} {name}" if name in names else f"{category} of another name"
    return category if category in _COUNTED else "another category"
