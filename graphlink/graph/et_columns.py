"""Blocks of nodes, as ``read_et`` decodes them, and how they become a ``Graph``."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphlink.graph_model import (
    HAS,
    UNKNOWN_DEP,
    Column,
    Deps,
    Fault,
    Faults,
    FileFacts,
    Graph,
    Metadata,
    OddAttribute,
)
from graphlink.model import I64, NOWHERE, U8, U64
from graphlink.tables import begins, concat, spread

TWICE: Final = "twice"  # kind of an odd attribute that stands there again with another value


# attributes that are integers in columns: name -> oneof field that readers expect
_FIELDS: Final = {
    "is_cpu_op": "bool_val",
    **dict.fromkeys(
        ("start_ns", "end_ns", "duration_ns", "start_delay_ns", "launch_latency_ns", "overlap_ns"), "int64_val"
    ),
    **dict.fromkeys(("self_ns", "wait_ns", "wake_ns", "tid", "device", "stream", "correlation"), "int64_val"),
    **dict.fromkeys(("comm_type", "comm_size"), "int64_val"),
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val"),
    "pg_name": "string_val",
}
_HEAD: Final = (
    "name",
    "type",
    "start_micros",
    "duration_micros",
    "has",
    "data_deps",
    "ctrl_deps",
)  # the last two: how many
COLUMNS: Final = (*_HEAD, *_FIELDS)
ABSENT: Final = [NOWHERE if name in ("comm_type", "comm_src", "comm_dst") else 0 for name in _FIELDS]
EXPECTED: Final = {name: (i, kind, HAS[name], kind != "string_val") for i, (name, kind) in enumerate(_FIELDS.items())}
_INT32: Final = ("name", "type", "comm_type", "comm_src", "comm_dst", "comm_tag")
_SPARSE: Final = ("correlation", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name")
MOST_MICROS: Final = ((1 << 63) - 1) // 1000  # longer times are taken as this


@dataclass(slots=True)
class NodeBlock:
    """Some nodes in file order, while they are read: ``rows`` has ``COLUMNS`` of one node after the other, ``data`` and
    ``ctrl`` the ids of the dependencies of all of them, as many as the rows say, ``data_kind`` a byte per data
    dependency.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    id: array[int] = field(default_factory=lambda: array("Q"))
    data: array[int] = field(default_factory=lambda: array("Q"))
    data_kind: bytearray = field(default_factory=bytearray)
    ctrl: array[int] = field(default_factory=lambda: array("Q"))
    odd: list[OddAttribute] = field(default_factory=list)
    group_names: dict[int, str] = field(default_factory=dict)
    sync_call: dict[int, tuple[str, ...]] = field(default_factory=dict)


def assemble(path: str, metadata: Metadata, strings: Iterable[str], blocks: Iterable[NodeBlock]) -> Graph:
    """Join the blocks of a file, in its order. n log n in ids that do not ascend, else linear.

    Of a block only its columns are kept while the next one is made; ``strings`` is read when there are no more.
    """
    parts: list[dict[str, npt.NDArray[Any]]] = []
    odd: list[OddAttribute] = []
    group_names: dict[int, str] = {}
    sync_call: dict[int, tuple[str, ...]] = {}
    for block in chain([NodeBlock()], blocks):
        parts.append(_columns(block))
        odd += block.odd
        group_names |= block.group_names
        sync_call |= block.sync_call
    column: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}
    ids, kind, ctrl_ids = column["id"], column.pop("data_kind"), column.pop("ctrl")
    data, broken = _dependencies(ids, column.pop("data"), column.pop("data_deps"), kind, data=True)
    none = np.full(len(ctrl_ids), UNKNOWN_DEP, np.uint8)
    ctrl, more = _dependencies(ids, ctrl_ids, column.pop("ctrl_deps"), none, data=False)
    by_id = np.argsort(ids, kind="stable")
    has = column.pop("has")
    sparse = {name: np.flatnonzero(has & np.uint32(HAS[name])) for name in _SPARSE}
    return Graph(
        metadata=metadata,
        strings=tuple(strings),
        caller=_first_of(ctrl),
        first=data.first,
        source=data.source,
        edge_kind=data.kind,
        columns={name: Column(node, column.pop(name)[node].astype(np.int64)) for name, node in sparse.items()},
        read=FileFacts(
            path=path,
            id=column.pop("id"),
            has=has,
            duration_micros=column.pop("duration_micros"),
            ctrl=ctrl,
            faults=concat(broken, more),
            duplicate_ids=np.sort(by_id[~begins(ids[by_id])]).astype(np.int32),
            odd=tuple(odd),
            group_names=group_names,
            sync_call=sync_call,
        ),
        **column,
    )


def _first_of(deps: Deps) -> npt.NDArray[np.int32]:
    """Return the first dependency of each node, ``NOWHERE`` where it has none."""
    has = np.diff(deps.first) > 0
    return spread(len(has), has, deps.source[deps.first[:-1][has]])


def _columns(block: NodeBlock) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of ``Graph`` and ``FileFacts`` of some nodes, and what dependencies are made of."""
    row = dict(zip(COLUMNS, np.array(block.rows, np.int64).reshape(-1, len(COLUMNS)).T, strict=True))
    has, host, micros = row["has"].astype(np.uint32), row.pop("is_cpu_op") != 0, row["duration_micros"] * 1000
    start = np.where(has & HAS["start_ns"], row["start_ns"], row.pop("start_micros") * 1000)
    duration = np.where(has & HAS["duration_ns"], row["duration_ns"], micros)
    return {
        **{name: column.astype(np.int32 if name in _INT32 else np.int64) for name, column in row.items()},
        "id": np.array(block.id, np.uint64),
        "data": np.array(block.data, np.uint64),
        "data_kind": np.array(block.data_kind, np.uint8),
        "ctrl": np.array(block.ctrl, np.uint64),
        "host": host,
        "has": has,
        "start_ns": start,
        "end_ns": np.where(has & HAS["end_ns"], row["end_ns"], start + duration),
        "duration_ns": duration,
    }


def _positions(ids: U64, wanted: U64) -> I64:
    """Return the position of each of the ids ``wanted``, of equal ids the last in the file; ``NOWHERE`` where there is
    none.
    """
    n = len(ids)
    if np.array_equal(ids, np.arange(n, dtype=np.uint64)):
        return np.where(wanted < np.uint64(n), wanted, np.uint64(0)).astype(np.int64) - (wanted >= np.uint64(n))
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids, wanted, side="right", sorter=order) - 1
    at[ids[order[at]] != wanted] = NOWHERE
    return np.append(order, NOWHERE)[at]


def _dependencies(ids: U64, wanted: U64, counts: I64, kind: U8, *, data: bool) -> tuple[Deps, Faults]:
    """Resolve the entries of all nodes, ``counts`` of each; what is no edge is a fault."""
    target, source = np.repeat(np.arange(len(counts)), counts), _positions(ids, wanted)
    fault = np.full(len(source), _NO_FAULT, np.uint8)
    if np.any((source[1:] <= source[:-1]) & (target[1:] == target[:-1])):  # else no entry can stand twice
        order = np.lexsort((source, target))
        fault[order[~begins(source[order], target[order])]] = Fault.DUPLICATE
    fault[source == target] = Fault.SELF
    fault[source == NOWHERE] = Fault.DANGLING
    good, bad = fault == _NO_FAULT, np.flatnonzero(fault != _NO_FAULT)
    first = np.append(0, np.cumsum(np.bincount(target[good], minlength=len(counts))))
    faults = Faults(target[bad].astype(np.int32), wanted[bad], np.full(len(bad), data), fault[bad])
    return Deps(first, source[good].astype(np.int32), kind[good]), faults


_NO_FAULT: Final = 255
