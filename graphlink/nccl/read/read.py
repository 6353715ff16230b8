"""Reads any side file of NCCL or c10d -> ``Dump``, or its header: which kind it is, and of which rank and process."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from graphlink.errors import InputError, log
from graphlink.nccl.read.events import decoded
from graphlink.nccl.read.flight_recorder import read_flight_recorder
from graphlink.nccl.read.inspector import Header, InspectorMetadata, communicator_of, read_inspector
from graphlink.nccl.read.names import hash_text, inspector_name, plugin_name, rank_in_name, text_of
from graphlink.nccl.read.plugin import read_plugin
from graphlink.nccl.read.proxy import read_proxy
from graphlink.nccl.read.records import Communicator, Dump, DumpHead
from graphlink.read.columns import to_int_or_none
from graphlink.read.comms import rank_or_none
from graphlink.read.kinds import HEAD_BYTES, DumpKind, dump_kind, read_dump_kind
from graphlink.read.source import open_source

_READERS: Final[dict[DumpKind, Callable[[Path], Dump]]] = {
    DumpKind.PLUGIN: read_plugin,
    DumpKind.PROXY: read_proxy,
    DumpKind.INSPECTOR: read_inspector,
    DumpKind.FLIGHT_RECORDER: read_flight_recorder,
}
_TODO: Final = (
    "give a dump of NCCL's example profiler plugin, proxy profiler or inspector, or of PyTorch's Flight Recorder"
)
WHOLE_BYTES: Final = 1 << 20  # a Flight Recorder's file up to this size is read whole: its groups may stand last

_CALL: Final = re.compile(rb'"CommHash"\s*:\s*"?(\d{1,20})"?\s*,\s*"Rank"\s*:\s*(\d{1,7})\b')
_PID: Final = re.compile(rb'"pid"\s*:\s*(\d{1,18})\b')
_HEADER: Final = re.compile(rb'"header"\s*:\s*(\{[^{}]{0,1000}\})')
_HEADERS: Final = msgspec.json.Decoder(Header)
_METADATAS: Final = msgspec.json.Decoder(InspectorMetadata)
_METADATA: Final = re.compile(rb'"metadata"\s*:\s*(\{[^{}]{0,2000}\})')


def read_dumps(files: Mapping[Path, str], found: Collection[Path]) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """Read the side files of a rank; return them, and warnings of those of ``found`` that cannot be read. ``files``:
    name by path.

    Raises:
        InputError: another one cannot be read.
    """
    dumps, unread = [], []
    for path, name in files.items():
        log.info("reading %s", name)
        try:
            dumps.append(replace(read_dump(path), path=name))
        except InputError as problem:
            if path not in found:
                raise
            unread.append(f"{name} is left out: {problem.what}")
    return tuple(dumps), tuple(unread)


def read_dump(path: str | Path) -> Dump:
    """Read the side file at ``path``, plain, gzip or zstd; what it is, its content says.

    Raises:
        InputError: it cannot be read, is no side file or one of a plugin that is not read, or is beyond repair.
    """
    path = Path(path)
    kind = read_dump_kind(path)
    if not isinstance(kind, DumpKind):
        raise InputError(
            f"is {kind}" if kind else "is no side file of NCCL or the Flight Recorder", path=path, todo=_TODO
        )
    return _READERS[kind](path)


def read_dump_head(path: Path) -> DumpHead | None:
    """Return the header of the side file at ``path``, plain, gzip or zstd; None where it is none that ``read_dump``
    reads.

    Raises:
        InputError: the file cannot be opened, or its packing is damaged that early.
    """
    with open_source(path) as source:
        head = source.read(HEAD_BYTES)
        kind = dump_kind(head)
        more = source.read(WHOLE_BYTES - HEAD_BYTES) if kind is DumpKind.FLIGHT_RECORDER else b""
    if not isinstance(kind, DumpKind):
        return None
    if kind is DumpKind.PLUGIN:
        return _of_plugin(path, head)
    if kind is DumpKind.INSPECTOR:
        return _of_inspector(path, head)
    if kind is DumpKind.FLIGHT_RECORDER and len(head) + len(more) < WHOLE_BYTES:
        with suppress(InputError):  # whoever reads the file says so
            dump = read_flight_recorder(path)
            members = ((group, _place(dump.rank, group.ranks)) for group in dump.communicators)
            return DumpHead(path, kind, dump.rank, members=tuple(members))
    return DumpHead(path, kind, rank_in_name(path))


def _place(rank: int | None, members: tuple[int, ...] | None) -> int | None:
    return members.index(rank) if members and rank in members else None


def _of_plugin(path: Path, head: bytes) -> DumpHead:
    named = plugin_name(path)
    found = [(hash_text(key.decode()), int(rank)) for key, rank in _CALL.findall(head)] or ([named] if named else [])
    pid = _PID.search(head)
    members = tuple((Communicator(key), rank) for key, rank in dict.fromkeys(found) if key is not None)
    return DumpHead(path, DumpKind.PLUGIN, rank_in_name(path), int(pid[1]) if pid else None, members=members)


def _of_inspector(path: Path, head: bytes) -> DumpHead:
    headers = [header for text in _HEADER.findall(head) if (header := decoded(_HEADERS, text)) is not None]
    members = dict.fromkeys(
        (communicator_of(header, key), rank_or_none(header.rank))
        for header in headers
        if (key := hash_text(header.id)) is not None
    )
    text = _METADATA.search(head)
    metadata = (decoded(_METADATAS, text[1]) if text else None) or InspectorMetadata()
    host, pid = inspector_name(path) or ("", None)
    said_pid = to_int_or_none(metadata.pid)
    return DumpHead(
        path,
        DumpKind.INSPECTOR,
        rank_in_name(path),
        pid if said_pid is None else said_pid,
        text_of(metadata.hostname) or host,
        tuple(members),
    )
