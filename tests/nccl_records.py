"""Side files of NCCL and their joins, written as tuples; what is not given was not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from graphlink.model import NOWHERE, CommKind, CommOps
from graphlink.nccl.read.records import Calls, Communicator, Dump, KernelChannels, ProxyOps, ProxySteps, State
from graphlink.nccl.summary import NcclClock, NcclGroup, SideFiles, Split
from graphlink.read.kinds import DumpKind
from tests.build import Strings
from tests.comm_ops import Op, comm_ops

_TEXTS = ("function", "dtype", "algorithm", "protocol")
_ZERO = ("start_ns", "end_ns", "exec_ns", "gpu_start_ns", "gpu_end_ns")
_NARROW = (*_TEXTS, "communicator", "rank", "peer", "channels", "call", "channel", "row", "proxy", "op")
CLOCK = NcclClock(offset_ns=0, residual_ns=0, gpu_offset_ns=None, inside=0, checked=0)


class Proxy(NamedTuple):
    call: int
    channel: int
    sends: bool
    peer: int = NOWHERE
    bytes: int = NOWHERE


class Step(NamedTuple):
    proxy: int
    step: int
    state: State
    start_ns: int
    end_ns: int


def _table(kind: type[Any], rows: Iterable[dict[str, Any]], texts: Strings, **extra: Any) -> Any:
    """A record of columns, one a field of ``kind`` that is not in ``extra``."""
    given = list(rows)
    columns: dict[str, Any] = {}
    for name in (field.name for field in fields(kind) if field.name not in extra):
        if name in _TEXTS:
            columns[name] = texts.codes(row.get(name, "") for row in given)
        else:
            absent = 0 if name in _ZERO else NOWHERE
            columns[name] = np.array(
                [row.get(name, absent) for row in given], np.int32 if name in _NARROW else np.int64
            )
    return kind(**columns, **extra)


def dump(
    calls: Iterable[dict[str, Any]] = (),
    kernels: Iterable[dict[str, Any]] = (),
    proxies: Sequence[Proxy] = (),
    steps: Sequence[Step] = (),
    kind: DumpKind = DumpKind.PLUGIN,
    communicators: Sequence[Communicator] = (Communicator("12715772615376301750", size=2),),
    **extra: Any,
) -> Dump:
    strings = Strings()
    called = _table(Calls, calls, strings)
    made = Dump(
        path="nccl.json",
        kind=kind,
        rank=None,
        host="",
        pid=None,
        strings=(),
        communicators=tuple(communicators),
        calls=called,
        kernels=_table(KernelChannels, kernels, strings),
        proxies=replace(
            _table(ProxyOps, [p._asdict() for p in proxies], strings),
            sends=np.array([p.sends for p in proxies], np.bool_),
        ),
        steps=replace(
            _table(ProxySteps, [s._asdict() for s in steps], strings),
            state=np.array([s.state for s in steps], np.uint8),
        ),
        events=2 * len(called.rank),
        left_out={},
        warnings=(),
    )
    return replace(made, strings=strings.all(), **extra)


def ops(rows: Iterable[dict[str, Any]]) -> CommOps:
    """A row needs ``row``, and ``on_host`` where it is one of the host."""
    return comm_ops([Op(CommKind.UNKNOWN, "", **row) for row in rows])


def side_files(
    dumps: Sequence[Dump],
    of: CommOps,
    pairs: Iterable[tuple[int, int, int]],
    split: Iterable[tuple[int, int, int, int, int, int]] = (),
    clocks: Sequence[NcclClock] | None = None,
    groups: Sequence[NcclGroup] = (),
) -> SideFiles:
    """``pairs``: op, dump, call; ``split``: op, then the five times."""
    table = np.array(list(pairs), np.int32).reshape(-1, 3)
    times = np.array(list(split), np.int64).reshape(-1, 6)
    return SideFiles(
        dumps=tuple(dumps),
        ops=of,
        op=table[:, 0],
        dump=table[:, 1],
        call=table[:, 2],
        groups=list(groups),
        clocks=tuple(clocks or [CLOCK] * len(dumps)),
        split=Split(times[:, 0].astype(np.int32), *times[:, 1:].T),
        times=[],
    )
