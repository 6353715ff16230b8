"""Communication parameters of ET nodes: from ``attrs`` where they are, else from the recorded inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphlink.model import Comm
from graphlink.read.columns import to_int_or_none
from graphlink.read.comms import (
    P2P_OPS,
    count_or_none,
    dtype_in,
    element_bytes,
    elements,
    int_list,
    peer_comm,
    spread_ranks,
    tensors_in,
    text_or_none,
)


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """``inputs`` and ``outputs`` as decoded, ``types`` the JSON text of the input types."""

    inputs: list[Any]
    outputs: list[Any]
    types: str


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What ``record_param_comms`` was called with: tensors, sequence, group, rank, name, in-split, out-split, tail."""

    tensors: list[list[Any]]
    seq: object
    group: object
    rank: object
    name: str
    in_split: object
    out_split: object
    tail: Sequence[object]


def collective(op: RecordedOp, attrs: dict[str, Any]) -> Comm | None:
    """Return the ``Comm`` of a ``record_param_comms`` node; None where neither attrs nor inputs name the collective.

    ``rank`` is what the op recorded there: root of a broadcast, peer of a send or receive, else 0.
    """
    found = _parse(op.inputs)
    name = attrs.get("collective_name") or (found.name if found else "")
    if not isinstance(name, str) or not name:
        return None
    name = name.lower()
    tensors = found.tensors if found else []
    results = [tensor for value in op.outputs for tensor in tensors_in(value)]
    start, stride, size = _spread(found, attrs)
    pg_name, pg_desc = _group(found)
    rank = to_int_or_none(found.rank) if found else None
    return Comm(
        name=name,
        dtype=str(attrs.get("dtype") or (dtype_in(op.types) if tensors else "")),
        in_nelems=_first(to_int_or_none(attrs.get("in_msg_nelems")), elements(tensors)),
        out_nelems=_first(to_int_or_none(attrs.get("out_msg_nelems")), elements(results)),
        in_split=int_list(attrs.get("in_split_size")) or (int_list(found.in_split) if found else ()),
        out_split=int_list(attrs.get("out_split_size")) or (int_list(found.out_split) if found else ()),
        pg_name=text_or_none(attrs.get("pg_name")) or pg_name,
        pg_desc=text_or_none(attrs.get("pg_desc")) or pg_desc,
        ranks=None if name == "wait" else spread_ranks(start, stride, size),
        group_size=count_or_none(size),
        rank=rank,
        src_rank=rank if name == "recv" else None,
        dst_rank=rank if name == "send" else None,
        seq=to_int_or_none(_head(found.seq)) if found else None,
        elem_bytes=element_bytes(tensors or results),
    )


def peer(op_name: str, op: RecordedOp) -> Comm:
    """Return the ``Comm`` of a ``c10d`` send or receive: inputs are tensors, group object, peer (unless any source), tag."""
    tensors = tensors_in(op.inputs[0]) if op.inputs else []
    scalars = op.inputs[2:]
    has_peer = P2P_OPS[op_name][1] and len(scalars) > 1
    return peer_comm(
        op_name,
        scalars[0] if has_peer else None,
        scalars[-1] if scalars else None,
        elements(tensors),
        element_bytes(tensors),
        dtype_in(op.types),
    )


def _parse(values: list[Any]) -> _Inputs | None:
    """The name is the text after sequence, group and rank; what stands before them are tensors (none on ``wait``)."""
    for at in range(3, len(values)):
        seq, group, rank, name = values[at - 3 : at + 1]
        if isinstance(name, str) and type(rank) is int and type(_head(seq)) is int and not tensors_in(seq):
            after = values[at + 1 :]
            tensors = [tensor for value in values[: at - 3] for tensor in tensors_in(value)]
            splits = [*after[:2], None, None]
            return _Inputs(tensors, seq, group, rank, name, splits[0], splits[1], after[2:])
    return None


def _head(seq: object) -> object:
    """The sequence number; newer PyTorch records it as (number, is P2P)."""
    return seq[0] if isinstance(seq, list) and seq else seq


def _group(found: _Inputs | None) -> tuple[str | None, str | None]:
    """Name and description: from a pair of texts, or from a pointer (0 on ``wait``)."""
    group = found.group if found else None
    if isinstance(group, list):
        name, description, *_ = [*group, None, None]
        return text_or_none(name), text_or_none(description)
    return (text_or_none(group) if group != 0 else None), None


def _spread(found: _Inputs | None, attrs: dict[str, Any]) -> tuple[object, object, object]:
    """Start, stride and size of the group: from attrs, else from a tail of three; a tail of one is the size."""
    tail = list(found.tail) if found else []
    recorded = tail[:3] if len(tail) >= 3 else [None, None, *tail[:1], None]
    keys = ("global_rank_start", "global_rank_stride", "pg_size")
    start, stride, size = (attrs.get(key, value) for key, value in zip(keys, recorded, strict=False))
    return start, stride, size


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
