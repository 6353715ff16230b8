"""Any side file of NCCL or c10d -> ``Dump``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from graphlink.errors import InputError
from graphlink.nccl.read.flight_recorder import read_flight_recorder
from graphlink.nccl.read.inspector import read_inspector
from graphlink.nccl.read.plugin import read_plugin
from graphlink.nccl.read.proxy import read_proxy
from graphlink.nccl.read.records import Dump
from graphlink.read.nccl_kinds import DumpKind, read_kind

_READERS: Final[dict[DumpKind, Callable[[Path], Dump]]] = {
    DumpKind.PLUGIN: read_plugin,
    DumpKind.PROXY: read_proxy,
    DumpKind.INSPECTOR: read_inspector,
    DumpKind.FLIGHT_RECORDER: read_flight_recorder,
}
_TODO: Final = "give a dump of NCCL's example profiler plugin, proxy profiler or inspector, or of PyTorch's Flight Recorder"


def read_dump(path: str | Path) -> Dump:
    """The side file at ``path``, plain, gzip or zstd; what it is, its content says.

    Raises:
        InputError: it cannot be read, is no side file or one of a plugin that is not read, or is beyond repair.
    """
    path = Path(path)
    kind = read_kind(path)
    if not isinstance(kind, DumpKind):
        raise InputError(f"is {kind}" if kind else "is no side file of NCCL or the Flight Recorder", path=path, todo=_TODO)
    return _READERS[kind](path)
