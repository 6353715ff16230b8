"""The header of a recording: kind, rank, world, process and time, from a bounded part of the file; and what any file
looks like.

Which file belongs to which rank has to be known before any is read whole. What the header does not record is None.
"""

from __future__ import annotations

import calendar
import io
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from graphlink.errors import InputError
from graphlink.process import ResultT, TaskT
from graphlink.read import kinds
from graphlink.read.columns import MARK, MAX_NS, loose, to_int_or_none
from graphlink.read.comms import (
    GROUP_INIT,
    RECORD_OP,
    collective,
    count_or_none,
    in_distributed,
    job_of,
    process_groups,
    rank_or_none,
)
from graphlink.read.kinds import ET, JAX, KINETO, NCCL, binary_kind, is_jax, is_pftrace, kind_by_name
from graphlink.read.kineto_rows import CALL, HOST, TABLE_OF
from graphlink.read.source import Source, open_source
from graphlink.read.stream import ArrayReader, open_array

HEAD_BYTES: Final = 1 << 22  # of the unpacked text, in which the list of events or nodes has to begin
ROW_BYTES: Final = 1 << 16  # of the list, from which process and time are taken
DEEP_BYTES: Final = 1 << 20  # of an ET, in which ``deep_rank`` looks for a collective
_CHUNK: Final = 1 << 16
_LOOKED_AT_BYTES: Final = 1 << 20  # at a time, by ``looks_like``
_LIST: Final = re.compile(rb'"(?:traceEvents|nodes)"')
_LONGEST_MARK: Final = len(b'"traceEvents"')
_KINETO: Final = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"', b'"schemaVersion"')
_ET: Final = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"')
# Of these record_param_comms holds the own rank in the group; a broadcast holds its root, a send its peer
# (ProcessGroupNCCL.cpp).
_OF_OWN_RANK: Final = frozenset({
    "allreduce", "allreduce_coalesced", "all_gather", "_allgather_base", "all_gather_into_tensor_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "all_to_all", "all_to_allv",
    "barrier",
})  # fmt: skip
_READERS: Final = 16  # files at a time: headers are short, what costs is opening files on a network


@dataclass(frozen=True, slots=True)
class Head:
    """``kind``: "kineto", "et" or None. ``group_count`` counts the process groups of the run, not of the rank.
    ``start_ns``: of the first host row of a Kineto trace, since the epoch or since Kineto's base date where that is
    only said at the end; of an ET its local time, which has no zone. ``job``: its id, "" where none is recorded.
    ``binary``: a ``.pftrace``. ``merged``: its processes have marks, as where recordings of ranks were merged.
    """

    path: Path
    kind: str | None
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    group_count: int | None = None
    pid: int | None = None
    start_ns: int | None = None
    job: str = ""
    binary: bool = False
    merged: bool = False


_Row = dict[str, Any]


def read_heads(paths: Sequence[Path]) -> list[Head]:
    """Read the header of each file. Raises InputError as ``read_head`` does."""
    return at_once(read_head, paths)


def read_head(path: Path) -> Head:
    """Read the header of the file at ``path``, plain, gzip or zstd. At most ``HEAD_BYTES`` and some rows are unpacked.

    Raises:
        InputError: the file cannot be opened, or its packing is damaged that early. Text that is no trace is none.
    """
    with open_source(path) as source:
        text = _beginning(source)
        packed = source.packed
    if binary := is_pftrace(text):
        from graphlink.read.pftrace import head_as_json

        text = head_as_json(path, text)
    kind = (
        ET.name
        if _ET.match(text)
        else KINETO.name
        if any(mark in text for mark in _KINETO) and not is_jax(text)
        else None
    )
    try:
        array = ArrayReader(Source(path, io.BytesIO(text), packed), ("traceEvents", "nodes"), len(text) + 1)
    except InputError:  # no trace, or a header longer than HEAD_BYTES: whoever reads the file says so
        return Head(path, kind)
    around = {key: loose(raw) for key, raw in array.around.items()}
    head = _et(path, kind, array, around) if array.key == "nodes" else _kineto(path, kind, array, around)
    return replace(head, binary=binary)


def deep_rank(path: Path) -> int | None:
    """Find the rank that the collectives in the first ``DEEP_BYTES`` of an ET ran on; None where none tells, or it
    cannot be read.

    Only groups of two and more that begin with rank 0 and go on without gaps tell: the rank in the group is the global
    rank there.
    """
    try:
        with open_source(path) as source:
            text = source.read(DEEP_BYTES)
        if RECORD_OP.encode() not in text:
            return None
        array = ArrayReader(Source(path, io.BytesIO(text), ""), ("nodes",), _CHUNK)
        nodes = (node for block in array.blocks(dict) for node in block.rows if node.get("name") == RECORD_OP)
        return next((rank for node in nodes if (rank := _own_rank(_inputs(node))) is not None), None)
    except InputError:  # cut off inside a node, as a rule
        return None


def _beginning(source: Source) -> bytes:
    """Return the text up to the list of events or nodes, and ``ROW_BYTES`` of it."""
    parts: list[bytes] = []
    size, before = 0, b""
    while size < HEAD_BYTES and (part := source.read(_CHUNK)):
        parts.append(part)
        size += len(part)
        if _LIST.search(before + part):
            parts.append(source.read(ROW_BYTES))
            break
        before = part[-_LONGEST_MARK:]
    return b"".join(parts)


def _kineto(path: Path, kind: str | None, array: ArrayReader, around: dict[str, Any]) -> Head:
    info = in_distributed(around)
    base_ns = to_int_or_none(around.get("baseTimeNanoseconds")) or 0
    rows = _first_rows(array)
    first = next(
        (r for r in rows if TABLE_OF.get(str(r.get("cat"))) in (HOST, CALL) and type(r.get("pid")) is int), None
    )
    ts = first.get("ts") if first else None
    return Head(
        path,
        kind,
        rank=rank_or_none(info.get("rank")),
        world_size=count_or_none(info.get("world_size")),
        backend=str(info["backend"]) if info.get("backend") else None,
        group_count=to_int_or_none(info.get("pg_count")),
        pid=to_int_or_none(first["pid"]) if first else None,
        start_ns=base_ns + round(ts * 1000) if isinstance(ts, int | float) and abs(ts) < MAX_NS // 1000 else None,
        job=job_of(around),
        merged=any(MARK.match(str(row.get("pid"))) for row in rows),
    )


def _et(path: Path, kind: str | None, array: ArrayReader, around: dict[str, Any]) -> Head:
    init = next((node for node in _first_rows(array) if node.get("name") == GROUP_INIT), None)
    inputs = _inputs(init) if init else []
    groups = process_groups(inputs[0]) if inputs else ()
    # listed are the groups that this rank is in: where only one rank is in all of them, it is this one
    listed = [frozenset(group.ranks) for group in groups if group.ranks]
    common = frozenset.intersection(*listed) if listed else frozenset()
    return Head(
        path,
        kind,
        rank=next(iter(common)) if len(common) == 1 else None,
        world_size=next((group.size for group in groups if group.ranks is None), None),
        pid=to_int_or_none(around.get("pid")),
        start_ns=_local_ns(around.get("time")),
    )


def _local_ns(time: object) -> int | None:
    try:
        return calendar.timegm(datetime.fromisoformat(str(time)).timetuple()) * 10**9
    except ValueError:
        return None


def _first_rows(array: ArrayReader) -> list[_Row]:
    """Return the whole elements in the text at hand."""
    try:
        return next(array.blocks(dict)).rows
    except (InputError, StopIteration):
        return []


def _inputs(node: _Row) -> list[Any]:
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    return values if isinstance(values, list) else []


def _own_rank(values: list[Any]) -> int | None:
    """Find the own rank from the inputs of ``record_param_comms``, in layouts that have start, stride and size of the
    group.
    """
    comm = collective(values, [], "", {})
    if comm is None or comm.name not in _OF_OWN_RANK or comm.ranks is None:
        return None
    from_zero = len(comm.ranks) > 1 and comm.ranks == tuple(range(len(comm.ranks)))
    return comm.rank if from_zero and comm.rank in comm.ranks else None


def at_once(work: Callable[[TaskT], ResultT], given: Sequence[TaskT]) -> list[ResultT]:
    """Return ``work`` of each, in this order, in threads: for what waits for file systems."""
    if len(given) < 2:
        return list(map(work, given))
    pool = ThreadPoolExecutor(min(_READERS, len(given)))
    try:
        return list(pool.map(work, given))
    finally:
        pool.shutdown(cancel_futures=True)


def looks_like(path: str | Path) -> str | None:
    """Identify a file by content: "kineto", "et", "nsys", "chakra", "zip", "tar", "packed", "nccl", or another of
    ``kinds``; else None.

    Reads no more than the text before the list of events. A file that cannot be opened is an InputError.
    """
    with open_source(path) as source:
        head = source.read(kinds.HEAD_BYTES)
    if is_pftrace(head):
        return KINETO.name
    if kinds.dump_kind(head) is not None:
        return NCCL.name
    kind = binary_kind(head[:512]) or kind_by_name(Path(path).name)
    if kind is not None:
        return kind.name
    try:
        with open_array(path, ("traceEvents", "nodes"), _LOOKED_AT_BYTES) as array:
            if array.key is not None:
                if array.key == "traceEvents" and is_jax(head):
                    return JAX.name
                return {"traceEvents": KINETO, "nodes": ET}[array.key].name
            first = next(array.blocks(dict), None)
            return (
                KINETO.name if first is not None and any(isinstance(row.get("ph"), str) for row in first.rows) else None
            )
    except InputError:
        return None
