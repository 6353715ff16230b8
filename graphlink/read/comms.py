"""Communication parameters as PyTorch records them, in Kineto's ``args`` and in an ET's ``record_param_comms``
nodes.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

from graphlink.model import Comm, ProcessGroup
from graphlink.read.columns import loose, to_int_or_none

MAX_RANKS = 1 << 20  # a rank or a number of ranks beyond is a damaged number
_MOST_DIMS = 64  # of a tensor, as PyTorch has it
JOB_KEY = re.compile(r"(?:^|_)job_?id$", re.IGNORECASE)  # job_id, SLURM_JOB_ID: what users and launchers add to a trace
_TENSOR_TYPE = re.compile(r"Tensor\(([^()]*)\)")
# spelling of c10 types in an ET -> Kineto's
_DTYPES = {
    "float": "Float",
    "double": "Double",
    "c10::Half": "Half",
    "c10::BFloat16": "BFloat16",
    "long": "Long",
    "long int": "Long",
    "int": "Int",
    "short": "Short",
    "short int": "Short",
    "signed char": "Char",
    "unsigned char": "Byte",
    "bool": "Bool",
}

# c10d P2P operators -> (name, whether a peer is recorded)
RECORD_OP = "record_param_comms"  # PyTorch's op around each collective
GROUP_INIT = "## process_group:init ##"  # the op of an execution trace that lists process groups
FUNCTIONAL = ("_c10d_functional::", "c10d_functional::")  # ops that call a collective, with their group by name
NAMES = "names"  # no call: what a functional op says of the group of those in it
P2P_OPS = {"c10d::send": ("send", True), "c10d::recv_": ("recv", True), "c10d::recv_any_source_": ("recv", False)}


def int_list(value: object) -> tuple[int, ...]:
    """Read a list of ints, or its JSON text; () where it is none or was cut with "..."."""
    items = loose(value) if isinstance(value, str) else value
    return tuple(items) if isinstance(items, list) and all(type(item) is int for item in items) else ()


def rank_list(value: object) -> tuple[int, ...]:
    """Read as ``int_list`` does, of different ranks; () where one is none."""
    return _ranks_of(value) if isinstance(value, str) else _ranks_of.__wrapped__(value)


@lru_cache(1 << 8)  # each call of a group repeats its ranks
def _ranks_of(value: object) -> tuple[int, ...]:
    ranks = int_list(value)
    return ranks if all(0 <= rank < MAX_RANKS for rank in ranks) and len(set(ranks)) == len(ranks) else ()


def rank_or_none(value: object) -> int | None:
    """Return a rank; None where it cannot be one."""
    rank = to_int_or_none(value)
    return rank if rank is not None and 0 <= rank < MAX_RANKS else None


def count_or_none(value: object) -> int | None:
    """Return a count of ranks; None where it cannot be one."""
    count = to_int_or_none(value)
    return count if count is not None and 0 < count <= MAX_RANKS else None


def in_distributed(around: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``distributedInfo`` of Kineto, empty where there is none."""
    info = around.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def distributed(around: Mapping[str, Any]) -> tuple[dict[str, Any], int | None, int | None, list[str]]:
    """Return ``distributedInfo`` of Kineto, the rank and the number of ranks in it, None where it has none, and
    warnings of what is none.
    """
    info = in_distributed(around)
    rank, world_size = rank_or_none(info.get("rank")), count_or_none(info.get("world_size"))
    warnings = [
        f"distributedInfo: {key} is no number below {MAX_RANKS}, passed over"
        for key, value in (("rank", rank), ("world_size", world_size))
        if value is None and info.get(key) is not None
    ]
    return info, rank, world_size, warnings


def job_of(around: Mapping[str, Any]) -> str:
    """Return what tells the job that a recording says it is of, in itself or in its ``distributedInfo``: a checksum and
    the key, with a space between; "" where it says none. What stands there is nobody's business: environments hold
    tokens.
    """
    for source in (around, in_distributed(around)):
        for key, value in source.items():
            if JOB_KEY.search(key) and isinstance(value, (str, int)) and str(value):
                return f"{hashlib.sha256(str(value).encode('utf-8', 'surrogatepass')).hexdigest()[:16]} {key}"
    return ""


def spread_ranks(start: object, stride: object, size: object) -> tuple[int, ...] | None:
    """Return the ranks of an evenly spread group, which PyTorch records as start, stride and size; stride <= 0 where it
    is not even.
    """
    first, step, count = rank_or_none(start), to_int_or_none(stride), count_or_none(size)
    if first is None or step is None or count is None or step <= 0 or first + step * (count - 1) >= MAX_RANKS:
        return None
    return tuple(range(first, first + step * count, step))


def added(counts: Sequence[int | None]) -> int | None:
    """Return the sum of counts, all of which are known; None else, and of none."""
    known = [n for n in counts if n is not None]
    return sum(known) if known and len(known) == len(counts) else None


def text_or_none(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def process_groups(entries: object) -> tuple[ProcessGroup, ...]:
    """Read Kineto's ``pg_config`` and the text of an ET's ``## process_group:init ##``: a list of objects, or its JSON
    text.

    Entries that are no objects with a name are passed over. An empty rank list means the whole world: None.
    """
    groups = {
        str(entry["pg_name"]): ProcessGroup(
            name=str(entry["pg_name"]),
            desc=str(entry.get("pg_desc") or ""),
            backend=str(entry.get("backend_config") or entry.get("backend") or ""),
            size=count_or_none(entry.get("pg_size", entry.get("group_size"))),
            ranks=rank_list(entry.get("ranks")) or None,
        )
        for entry in _named_entries(entries)
    }
    return tuple(groups.values())


def backend_ids(entries: object) -> dict[int, str]:
    """Map ``backend_id`` (a pointer that stands for the group in early ETs) -> group name, where the init node records
    it.
    """
    found = ((to_int_or_none(entry.get("backend_id")), str(entry["pg_name"])) for entry in _named_entries(entries))
    return {pointer: name for pointer, name in found if pointer}


def _named_entries(entries: object) -> list[dict[str, Any]]:
    entries = loose(entries) if isinstance(entries, str) else entries
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict) and entry.get("pg_name") not in (None, "")]


def peer_comm(op: str, peer: object, tag: object, in_nelems: int | None, elem_bytes: int | None, dtype: str) -> Comm:
    """Make the ``Comm`` of a ``c10d`` send or receive.

    The peer is as recorded: a rank of the op's group, which in the default group is global.
    """
    name, has_peer = P2P_OPS[op]
    rank = to_int_or_none(peer) if has_peer else None
    return Comm(
        name=name,
        dtype=dtype,
        in_nelems=in_nelems,
        out_nelems=in_nelems,
        src_rank=rank if name == "recv" else None,
        dst_rank=rank if name == "send" else None,
        tag=to_int_or_none(tag),
        elem_bytes=elem_bytes,
    )


def _is_tensor(value: object) -> TypeGuard[list[Any]]:
    if not isinstance(value, list) or len(value) < 5:
        return False
    return all(type(item) is int for item in value[:5]) and isinstance(value[-1], str)


def tensors_in(value: object) -> list[list[Any]]:
    """List the tensors ``[id, storage, offset, elements, bytes an element, device]`` in a recorded value: itself, a
    list of them, none.
    """
    if _is_tensor(value):
        return [value]
    return [item for item in value if _is_tensor(item)] if isinstance(value, list) else []


def elements(tensors: Sequence[Sequence[int]]) -> int | None:
    """Count the elements of all tensors; None without any."""
    return to_int_or_none(sum(tensor[3] for tensor in tensors)) if tensors else None


def element_bytes(tensors: Sequence[Sequence[int]]) -> int | None:
    """Return the bytes of an element of the first tensor; None without any."""
    return tensors[0][4] if tensors else None


def dtype_in(types: str) -> str:
    """Return Kineto's name of the first tensor type in an ET's type text: ``GenericList[Tensor(c10::Half)]`` ->
    ``Half``.
    """
    match = _TENSOR_TYPE.search(types)
    return _DTYPES.get(match[1], match[1]) if match else ""


def shape_elements(shapes: object) -> int | None:
    """Count the elements of the tensors of a shape list ``[[16, 256], ...]``; None where there is no shape."""
    dims = [shape for shape in shapes if isinstance(shape, list)] if isinstance(shapes, list) else []
    if not dims or max(map(len, dims)) > _MOST_DIMS or not all(type(size) is int for shape in dims for size in shape):
        return None
    return to_int_or_none(sum(math.prod(shape) for shape in dims))


def collective(inputs: list[Any], outputs: list[Any], types: str, attrs: dict[str, Any]) -> Comm | None:
    """Return the ``Comm`` of a ``record_param_comms`` node; None where neither attrs nor inputs name the collective.

    ``inputs`` and ``outputs`` are as decoded, ``types`` is the JSON text of the input types.

    ``rank`` is what the op recorded there: root of a broadcast, peer of a send or receive, else 0.
    """
    tensors, (seq, group, recorded, called, in_split, out_split, *tail) = _parse(inputs)
    name = attrs.get("collective_name") or called
    if not isinstance(name, str) or not name:
        return None
    name = name.lower()
    results = [tensor for value in outputs for tensor in tensors_in(value)]
    start, stride, size = _spread(tail, attrs)
    pg_name, pg_desc = _group(group)
    rank = to_int_or_none(recorded)
    return Comm(
        name=name,
        dtype=str(attrs.get("dtype") or (dtype_in(types) if tensors else "")),
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


def peer(op: str, inputs: list[Any], types: str) -> Comm:
    """Return the ``Comm`` of a ``c10d`` send or receive: inputs are tensors, group object, peer (unless any source),
    tag.
    """
    tensors = tensors_in(inputs[0]) if inputs else []
    scalars = inputs[2:]
    has_peer = P2P_OPS[op][1] and len(scalars) > 1
    return peer_comm(
        op,
        scalars[0] if has_peer else None,
        scalars[-1] if scalars else None,
        elements(tensors),
        element_bytes(tensors),
        dtype_in(types),
    )


def naming(inputs: list[Any]) -> Comm | None:
    """Return what a functional op says of its group: its name, a text, is the last input; None of those without."""
    return Comm(NAMES, pg_name=inputs[-1]) if inputs and isinstance(inputs[-1], str) else None


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
