"""Contents of a side file of NCCL or c10d, in one shape for all of them.

Glossary
  call     one collective, send or receive of one rank, as its library saw it.
  channel  one of the parts that NCCL splits a call into: a block of the kernel, and a proxy where it uses the network.
  step     one chunk of a channel on its way through the proxy; it passes through states.

Times are int64 ns on the clock of the dump; 0 = not recorded, as in the files. The clock of a plugin or proxy profiler
begins with its process, the others show the time of day. Text columns hold positions in ``strings``, whose entry 0 is
"".
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, NOWHERE, U8, Bool, TimedRows
from graphlink.read.columns import DTYPES
from graphlink.read.kinds import DumpKind


class State(IntEnum):
    """The reason for which a proxy step waits."""

    GPU = 0  # the kernel: data to send, or a free buffer to receive into
    PEER = 1  # the other rank: its buffer to send into
    WIRE = 2  # the network, with the data on it
    RECEIVE = 3  # data from the other rank: not sent yet, or on the wire


class Communicator(msgspec.Struct, frozen=True):
    """``key`` is what tells communicators apart: NCCL's hash as a decimal number, or the name of the process group.

    ``ranks`` are global, in ring order, None where the file does not list them.
    """

    key: str
    name: str = ""
    desc: str = ""
    size: int | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Calls(TimedRows):
    """One row per call, in the order in which its rank made them; rows of several ranks and communicators may be mixed.

    ``NOWHERE`` stands for what was not recorded in all columns but times and text.
    """

    communicator: I32  # index into Dump.communicators
    rank: I32  # of the caller in the communicator; global in a Flight Recorder file
    # text, as PyTorch spells it: allreduce, allgather, reducescatter, broadcast, reduce, alltoall, send, recv, ...
    function: I32
    peer: I32  # of a send or receive, in the communicator
    count: I64  # elements, as the library was called
    dtype: I32  # text, as Kineto spells it: Float, BFloat16, ...
    bytes: I64  # of the message, by the rules of the file's kind
    seq: I64  # sequence number: by communicator (and function, in a plugin's dump)
    algorithm: I32  # text: Ring, Tree, ...
    protocol: I32  # text: Simple, LL, LL128
    channels: I32
    exec_ns: I64  # how long it ran on the GPU, as a Flight Recorder has it; 0 = not recorded


@dataclass(frozen=True, slots=True)
class KernelChannels(TimedRows):
    """The blocks of kernels. GPU times are ns on a clock of each GPU."""

    call: I32
    channel: I32
    gpu_start_ns: I64
    gpu_end_ns: I64


@dataclass(frozen=True, slots=True)
class ProxyOps:
    """Messages of a channel: sent to or received from one peer in one call; ``call`` is ``NOWHERE`` where the file does
    not tell.
    """

    call: I32
    channel: I32
    peer: I32
    sends: Bool
    bytes: I64  # that went over the wire; NOWHERE = not recorded


@dataclass(frozen=True, slots=True)
class ProxySteps(TimedRows):
    """States of proxy steps, one a row, sorted by start. ``proxy`` is a row of ``ProxyOps``."""

    proxy: I32
    step: I64
    state: U8  # State


_TEXTS: Final = frozenset({"function", "dtype", "algorithm", "protocol"})
_Table = TypeVar("_Table", Calls, KernelChannels, ProxyOps, ProxySteps)


def table(kind: type[_Table], rows: int = 0, **columns: NDArray[Any]) -> _Table:
    """Make a table of ``rows`` rows. A column that is not given is 0 where it is a time or a text, else ``NOWHERE``."""
    for column in fields(kind):
        absent = 0 if column.name in _TEXTS or column.name.endswith("_ns") else NOWHERE
        columns[column.name] = columns.get(column.name, np.full(rows, absent)).astype(
            DTYPES[str(column.type)], copy=False
        )
    return kind(**columns)


@dataclass(frozen=True, slots=True)
class Dump:
    """One side file. ``events`` = events read; each is in a table, in ``left_out`` or, as a begin or an end, part of a
    pair in one.

    ``rank``: the global rank whose file it is, where it tells (else by its name); ``host`` and ``pid`` of the process.
    """

    path: str
    kind: DumpKind
    rank: int | None
    strings: tuple[str, ...]
    calls: Calls
    events: int
    left_out: dict[str, int]
    warnings: tuple[str, ...]
    host: str = ""
    pid: int | None = None
    communicators: tuple[Communicator, ...] = ()
    kernels: KernelChannels = field(default_factory=lambda: table(KernelChannels))
    proxies: ProxyOps = field(default_factory=lambda: table(ProxyOps))
    steps: ProxySteps = field(default_factory=lambda: table(ProxySteps))


class DumpHead(msgspec.Struct, frozen=True):
    """``rank``: the global one. ``members``: communicators of calls of the file, each with a rank in it that made them.
    Where the content does not say something, the name may; else it is None or ""."""

    path: Path
    kind: DumpKind
    rank: int | None = None
    pid: int | None = None
    host: str = ""
    members: tuple[tuple[Communicator, int | None], ...] = ()
