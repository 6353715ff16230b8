"""Names and values of NCCL, c10d and their files, as PyTorch and Kineto spell and count them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from graphlink.linking.commtypes import element_bytes
from graphlink.model import I32, I64, NOWHERE
from graphlink.read.columns import MAX_NS, MISSING, ints, ns_of_us, to_int_or_none
from graphlink.read.comms import rank_or_none

# Beginnings of a name without case and "_": _all_gather_base, all_reduce_coalesced, _broadcast_oop,
# ALLGATHER_coalesced, ...
_FUNCTIONS: Final = {
    "allreducebarrier": "barrier", "allreduce": "allreduce", "allgather": "allgather", "alltoall": "alltoall",
    "reducescatter": "reducescatter", "broadcast": "broadcast", "monitoredbarrier": "barrier", "barrier": "barrier",
    "gather": "gather", "scatter": "scatter", "reduce": "reduce", "sendrecv": "sendrecv", "send": "send",
    "isend": "send", "recv": "recv", "irecv": "recv",
}  # fmt: skip
FUNCTIONS: Final = frozenset(_FUNCTIONS.values())
DTYPES: Final = {  # as Kineto spells them
    "ncclInt8": "Char", "ncclChar": "Char", "ncclUint8": "Byte", "ncclInt32": "Int", "ncclInt": "Int",
    "ncclUint32": "UInt32", "ncclInt64": "Long", "ncclUint64": "UInt64", "ncclFloat16": "Half", "ncclHalf": "Half",
    "ncclFloat32": "Float", "ncclFloat": "Float", "ncclFloat64": "Double", "ncclDouble": "Double",
    "ncclBfloat16": "BFloat16", "ncclFloat8e4m3": "Float8_e4m3fn", "ncclFloat8e5m2": "Float8_e5m2",
}  # fmt: skip
_RANK: Final = re.compile(
    r"(?:rank|flight_recorder|nccl_proxy)[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE
)  # the last two: of capture
_PLUGIN: Final = re.compile(r".*_(\d{1,20})_(\d{1,7})\.json(?:\.gz|\.zst)?")
NAMED: Final = re.compile(r"flight_recorder|nccl[_-]|-pid\d{1,10}\.(?:log|jsonl)", re.IGNORECASE)
_INSPECTOR: Final = re.compile(r"(.+)-pid(\d{1,10})\.(?:log|jsonl|json)(?:\.gz|\.zst)?")


@lru_cache(1024)
def function_of(name: str) -> str:
    """Return the function of ``AllReduce``, ``nccl:_all_gather_base``, ``gloo:send 0->1`` -> ``allreduce``,
    ``allgather``, ``send``.
    """
    bare = name.rsplit(":", 1)[-1].split(" ")[0].lower().replace("_", "")
    return next((function for start, function in _FUNCTIONS.items() if bare.startswith(start)), bare)


def batched(messages: Iterable[tuple[str, int]]) -> str:
    """Name what one kernel does with messages, each ``send`` or ``recv`` and its peer: ``recv 0, send 2``."""
    return ", ".join(sorted(f"{function} {peer}" for function, peer in messages))


def hash_text(value: object) -> str | None:
    """Return a communicator's hash, a number or its text in decimal or ``0x...``, as decimal text; None where it is no
    uint64.
    """
    try:
        number = value if type(value) is int else int(str(value)[:40], 0) if isinstance(value, str) else -1
    except ValueError:
        return None
    return str(number) if 0 <= number < 1 << 64 else None


def rank_in_name(path: Path) -> int | None:
    """Return 3 for ``nccl_trace_rank_3``, ``fr_rank3.json``, ``flight_recorder_3.json``."""
    found = _RANK.findall(path.name)
    return rank_or_none(found[-1]) if found else None


def plugin_name(path: Path) -> tuple[str, int] | None:
    """Return hash and rank of the one communicator whose file it is: ``<value>_<hash>_<rank>.json``."""
    found = _PLUGIN.fullmatch(path.name)
    key = hash_text(found[1]) if found else None
    return (key, int(found[2])) if found and key is not None else None


def inspector_name(path: Path) -> tuple[str, int | None] | None:
    """Return host and pid: ``<host>-pid<pid>.log``."""
    found = _INSPECTOR.fullmatch(path.name)
    return (found[1], to_int_or_none(found[2])) if found else None


def natural(values: Sequence[object]) -> I64:
    """Return an int64 column of ``values``; ``NOWHERE`` for each that is no number from 0 on."""
    return np.maximum(ints(values, NOWHERE), NOWHERE)


def small(values: Sequence[object]) -> I32:
    """Return an int32 column of ``values``; ``NOWHERE`` for each that is no number from 0 on, or does not fit."""
    numbers = natural(values)
    return np.where(numbers < 1 << 31, numbers, NOWHERE).astype(np.int32)


def text_of(value: object) -> str:
    """Return ``value`` where it is a text, else ""."""
    return value if isinstance(value, str) else ""


def times(us: Sequence[Any]) -> I64:
    """Convert us to ns, rounded. What is no time becomes 0, which is also what stands for one that was not recorded."""
    if not set(map(type, us)) <= {float}:  # an integer may have hundreds of digits
        us = [value if type(value) in (float, int) and abs(value) < MAX_NS else 0 for value in us]
    ns = ns_of_us(np.array(us, np.float64))
    return np.where(ns == MISSING, 0, ns)


def message_bytes(count: I64, dtypes: Sequence[str]) -> I64:
    """Return the bytes of ``count`` elements of ``dtypes``; ``NOWHERE`` where either is not known or the product is no
    int64.
    """
    size = np.array([element_bytes(dtype) or 0 for dtype in dtypes], np.int64)
    known = (count >= 0) & (count < 1 << 58) & (size > 0)
    return np.where(known, np.where(known, count, 0) * size, NOWHERE)
