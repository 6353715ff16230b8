"""Tables of a dump from the columns that its kind has; the others are filled with what stands for "not recorded"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, NOWHERE
from graphlink.nccl.read.names import element_bytes
from graphlink.nccl.read.records import Calls, KernelChannels, ProxyOps, Steps
from graphlink.read.columns import MAX_NS, MISSING, ints, ns_of_us

_DTYPES: Final[dict[object, Any]] = {"I32": np.int32, "I64": np.int64, "U8": np.uint8, "Bool": np.bool_}
_ZERO: Final = frozenset({
    "start_ns", "end_ns", "exec_ns", "gpu_start_ns", "gpu_end_ns", "stream", "function", "dtype", "algorithm", "protocol", "state",
})  # fmt: skip
_Table = TypeVar("_Table", Calls, KernelChannels, ProxyOps, Steps)


def table(kind: type[_Table], rows: int = 0, **columns: NDArray[Any]) -> _Table:
    """A table of ``rows`` rows. A column that is not given is 0 where it is a time, a text or a pointer, else ``NOWHERE``."""
    whole = {}
    for field in fields(kind):
        name = field.name
        dtype = _DTYPES[field.type]
        given = columns.pop(name, None)
        whole[name] = np.full(rows, 0 if name in _ZERO else NOWHERE, dtype) if given is None else given.astype(dtype, copy=False)
    assert not columns, sorted(columns)
    return kind(**whole)


def natural(values: Sequence[object]) -> I64:
    """int64 column of ``values``; ``NOWHERE`` for each that is no number from 0 on."""
    return np.maximum(ints(values, NOWHERE), NOWHERE)


def narrow(numbers: I64) -> I32:
    """As int32; ``NOWHERE`` for those that are negative or do not fit."""
    return np.where((numbers >= 0) & (numbers < 1 << 31), numbers, NOWHERE).astype(np.int32)


def times(us: Sequence[Any]) -> I64:
    """us -> ns, rounded. What is no time becomes 0, which is also what stands for one that was not recorded."""
    if not set(map(type, us)) <= {float, int}:
        us = [value if type(value) in (float, int) else 0 for value in us]
    try:
        column = np.array(us, np.float64)
    except OverflowError:  # an integer of hundreds of digits
        column = np.array([value if type(value) is float or abs(value) < MAX_NS else 0 for value in us], np.float64)
    ns = ns_of_us(column)
    return np.where(ns == MISSING, 0, ns)


def message_bytes(count: I64, dtypes: Sequence[str]) -> I64:
    """Bytes of ``count`` elements of ``dtypes``; ``NOWHERE`` where either is not known or the product is no int64."""
    size = np.array([element_bytes(dtype) or 0 for dtype in dtypes], np.int64)
    known = (count >= 0) & (count < 1 << 58) & (size > 0)
    return np.where(known, np.where(known, count, 0) * size, NOWHERE)


def sorted_steps(steps: Steps) -> Steps:
    order = np.lexsort((steps.end_ns, steps.start_ns))
    return Steps(**{field.name: getattr(steps, field.name)[order] for field in fields(Steps)})
