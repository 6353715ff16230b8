"""Names in an nsys export: ids of ``StringIds`` or text, version suffixes of calls, and what PyTorch's ``emit_nvtx``
writes into names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

import numpy as np

from graphlink.model import I32, I64
from graphlink.read.columns import MISSING, ByteTexts
from graphlink.read.nsys.file import Export
from graphlink.tables import how_many, numbered_values

_VERSION: Final = re.compile(rb"_v\d+$")
# torch/csrc/profiler/util.cpp: "aten::mul, seq = 45328, op_id = 990726, sizes = [[2, 3], []], input_op_ids = [...]"
_SUFFIX: Final = re.compile(rb", (?:seq = (\d{1,18})(?=,|$)|(op_id) = \d+(?=,|$)|(?:sizes|input_op_ids) = [\[(])")
_OP_ID: Final = b", op_id = "
_SEQ: Final = b", seq = "
_AFTER_OP_ID: Final = (b"sizes = [", b"sizes = (", b"input_op_ids = [", b"input_op_ids = (")
_OPERATOR: Final = re.compile(
    rb"(?:[A-Za-z_]\w*::)+~?\w+(?:\.\w+)?|autograd::engine::evaluate_function: .+|record_param_comms|detach_?"
)
_TORCH: Final = (
    b"aten::",
    b"c10d::",
    b"prims::",
    b"torch::",
    b"_c10d_functional::",
    b"autograd::engine::evaluate_function: ",
)


def range_name(text: bytes) -> tuple[bytes, int, bool]:
    """Split what ``emit_nvtx`` adds off a name: return the name, its sequence number (-1 where it has none), whether it
    is an operator's.

    Ranges come in millions, and each with an op_id of its own: what else stands in their names is looked at once.
    """
    head, _, after = text.partition(_OP_ID)
    is_last = after.isdigit()
    if not is_last:
        number, _, more = after.partition(b", ")
        if not number.isdigit() or not more.startswith(_AFTER_OP_ID):
            return split_name(text)
    bare, _, seq = head.partition(_SEQ)
    if seq.isdigit() and len(seq) <= 18:
        return bare, int(seq), True
    return split_name(head + _OP_ID + b"0" if is_last else text)


@lru_cache(maxsize=1 << 12)
def split_name(text: bytes) -> tuple[bytes, int, bool]:
    """Return the same as ``range_name``.

    emit_nvtx writes operators and ranges of users alike, so an operator is: what has a sequence number or sizes (user
    ranges never have); what has an op_id and is called ``namespace::name``; and what is called as PyTorch's own
    operators are.
    """
    found = _SUFFIX.search(text) if b" = " in text else None
    if found is None:
        return text, -1, text.startswith(_TORCH) and _OPERATOR.fullmatch(text) is not None
    bare = text[: found.start()]
    if found[1] is not None:
        return bare, int(found[1]), True
    op_id_only = found[2] is not None and b", sizes = " not in text and b", input_op_ids = " not in text
    return bare, -1, not op_id_only or _OPERATOR.fullmatch(bare) is not None


def call_name(text: bytes) -> bytes:
    """Return ``cudaLaunchKernel_v7000`` -> ``cudaLaunchKernel``."""
    return _VERSION.sub(b"", text)


def spelled(export: Export, table: str, ids: I64, column: str) -> Iterator[tuple[I64, list[bytes], I64 | slice]]:
    """Yield what a table spells out in ``column``, then the strings of the other rows' ``ids``: rows, different texts,
    and which of these each row has.

    Old exports have text in the place of ids.
    """
    left = ids != MISSING
    if not left.all():
        for rows, texts in export.texts(table, column):
            left[rows] = False
            yield rows, texts, slice(None)
    found, which = numbered_values(ids[left])
    yield np.flatnonzero(left), export.strings(found), which


def name_column(
    export: Export, names: ByteTexts, table: str, ids: I64, column: str, bare: Callable[[bytes], bytes] = bytes
) -> I32:
    """Read codes of the names of a table's rows, which a column holds as ids or as text; counts what has no name."""
    out = np.zeros(len(ids), np.int32)
    for rows, texts, which in spelled(export, table, ids, column):
        out[rows] = names.column([bare(text) for text in texts])[which]
    unnamed = how_many(out == 0)
    if unnamed:
        export.warnings.append(f"{unnamed} rows of {table} have no name in the export")
    return out
