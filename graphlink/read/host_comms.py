"""Communication parameters of ET nodes: from ``attrs`` where they are, else from the recorded inputs."""

from __future__ import annotations

from typing import Any

import msgspec

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


class RecordedOp(msgspec.Struct, frozen=True):
    """``inputs`` and ``outputs`` as decoded, ``types`` the JSON text of the input types."""

    inputs: list[Any]
    outputs: list[Any]
    types: str


def collective(op: RecordedOp, attrs: dict[str, Any]) -> Comm | None:
    """Return the ``Comm`` of a ``record_param_comms`` node; None where neither attrs nor inputs name the collective.

    ``rank`` is what the op recorded there: root of a broadcast, peer of a send or receive, else 0.
    """
    tensors, (seq, group, recorded, called, in_split, out_split, *tail) = _parse(op.inputs)
    name = attrs.get("collective_name") or called
    if not isinstance(name, str) or not name:
        return None
    name = name.lower()
    results = [tensor for value in op.outputs for tensor in tensors_in(value)]
    start, stride, size = _spread(tail, attrs)
    pg_name, pg_desc = _group(group)
    rank = to_int_or_none(recorded)
    return Comm(
        name=name,
        dtype=str(attrs.get("dtype") or (dtype_in(op.types) if tensors else "")),
        in_nelems=_first(to_int_or_none(attrs.get("in_msg_nelems")), elements(tensors)),
        out_nelems=_first(to_int_or_none(attrs.get("out_msg_nelems")), elements(results)),
        in_split=int_list(attrs.get("in_split_size")) or int_list(in_split),
        out_split=int_list(attrs.get("out_split_size")) or int_list(out_split),
        pg_name=text_or_none(attrs.get("pg_name")) or pg_name,
        pg_desc=text_or_none(attrs.get("pg_desc")) or pg_desc,
        ranks=None if name == "wait" else spread_ranks(start, stride, size),
        group_size=count_or_none(size),
        rank=rank,
        src_rank=rank if name == "recv" else None,
        dst_rank=rank if name == "send" else None,
        seq=to_int_or_none(_head(seq)),
        elem_bytes=element_bytes(tensors or results),
    )


def peer(op_name: str, op: RecordedOp) -> Comm:
    """Return the ``Comm`` of a ``c10d`` send or receive: inputs are tensors, group object, peer (unless any source),
    tag.
    """
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


def _parse(values: list[Any]) -> tuple[list[list[Any]], list[Any]]:
    """Split what ``record_param_comms`` was called with: tensors, and (sequence, group, rank, name, in-split,
    out-split, more).

    The name is the text after sequence, group and rank; what stands before them are tensors (none on ``wait``). Without
    a name all is None.
    """
    for at in range(3, len(values)):
        seq, _, rank, name = values[at - 3 : at + 1]
        if isinstance(name, str) and type(rank) is int and type(_head(seq)) is int and not tensors_in(seq):
            tensors = [tensor for value in values[: at - 3] for tensor in tensors_in(value)]
            return tensors, values[at - 3 :] + [None] * (at + 3 - len(values))
    return [], [None] * 6


def _head(seq: object) -> object:
    """Return the sequence number; newer PyTorch records it as (number, is P2P)."""
    return seq[0] if isinstance(seq, list) and seq else seq


def _group(group: object) -> tuple[str | None, str | None]:
    """Return name and description: from a pair of texts, or from a pointer (0 on ``wait``)."""
    name, description, *_ = [*group, None, None] if isinstance(group, list) else (group or None, None)
    return text_or_none(name), text_or_none(description)


def _spread(tail: list[Any], attrs: dict[str, Any]) -> list[object]:
    """Start, stride and size of the group: from attrs, else from a tail of three; a tail of one is the size."""
    recorded = tail[:3] if len(tail) >= 3 else [None, None, *tail[:1], None]
    keys = ("global_rank_start", "global_rank_stride", "pg_size")
    return [attrs.get(key, value) for key, value in zip(keys, recorded, strict=False)]


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
