"""Names in an nsys export: ids of ``StringIds`` or text, version suffixes of calls, and what PyTorch's ``emit_nvtx`` writes into names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from graphlink.model import I32, I64
from graphlink.read.columns import MISSING
from graphlink.read.nsys.file import Columns, Export

_VERSION: Final = re.compile(rb"_v\d+$")
# torch/csrc/profiler/util.cpp: "aten::mul, seq = 45328, op_id = 990726, sizes = [[2, 3], []], input_op_ids = [...]"
_SUFFIX: Final = re.compile(rb", (?:seq = (\d{1,18})(?=,|$)|(op_id) = \d+(?=,|$)|(?:sizes|input_op_ids) = [\[(])")
_OP_ID: Final = b", op_id = "
_SEQ: Final = b", seq = "
_AFTER_OP_ID: Final = (b"sizes = [", b"sizes = (", b"input_op_ids = [", b"input_op_ids = (")
_MOST_KEPT: Final = 1 << 16  # names whose reading is kept
_OPERATOR: Final = re.compile(rb"(?:[A-Za-z_]\w*::)+~?\w+(?:\.\w+)?|autograd::engine::evaluate_function: .+|record_param_comms|detach_?")
_TORCH: Final = (b"aten::", b"c10d::", b"prims::", b"torch::", b"_c10d_functional::", b"autograd::engine::evaluate_function: ")


class RangeName(NamedTuple):
    """What the name of a range says. ``seq`` is -1 where it gives none."""

    text: bytes
    seq: int
    is_operator: bool


def range_name(text: bytes) -> RangeName:
    """Split what ``emit_nvtx`` adds off a name, and tell operators from ranges of users.

    emit_nvtx writes both alike, so an operator is: what has a sequence number or sizes (user ranges never have); what has an op_id and is
    called ``namespace::name``; and what is called as PyTorch's own operators are.
    """
    found = _SUFFIX.search(text) if b" = " in text else None
    if found is None:
        return RangeName(text, -1, text.startswith(_TORCH) and _OPERATOR.fullmatch(text) is not None)
    bare = text[: found.start()]
    if found[1] is not None:
        return RangeName(bare, int(found[1]), True)
    op_id_only = found[2] is not None and b", sizes = " not in text and b", input_op_ids = " not in text
    return RangeName(bare, -1, not op_id_only or _OPERATOR.fullmatch(bare) is not None)


class RangeNames:
    """Reads the names of millions of ranges: as ``range_name``, but each name only once, whatever numbers it comes with."""

    def __init__(self) -> None:
        self._numbered: dict[bytes, RangeName] = {}  # by what stands before an op_id
        self._plain: dict[bytes, RangeName] = {}

    def read(self, text: bytes) -> tuple[bytes, int, bool]:
        """Return the fields of ``RangeName``."""
        head, _, after = text.partition(_OP_ID)
        if not after.isdigit():
            number, _, more = after.partition(b", ")
            if not number.isdigit() or not more.startswith(_AFTER_OP_ID):
                return self._plain.get(text) or self._keep(self._plain, text, range_name(text))
        bare, _, seq = head.partition(_SEQ)
        if seq.isdigit() and len(seq) <= 18:
            return bare, int(seq), True
        if not after.isdigit():
            return range_name(text)
        return self._numbered.get(head) or self._keep(self._numbered, head, range_name(text))

    @staticmethod
    def _keep(known: dict[bytes, RangeName], key: bytes, found: RangeName) -> RangeName:
        if len(known) < _MOST_KEPT:
            known[key] = found
        return found


def call_name(text: bytes) -> bytes:
    """Return ``cudaLaunchKernel_v7000`` -> ``cudaLaunchKernel``."""
    return _VERSION.sub(b"", text)


class ExportNames(dict[bytes, int]):
    """Numbers names in order of first use; "" is 0."""

    def __init__(self) -> None:
        super().__init__({b"": 0})

    def __missing__(self, text: bytes) -> int:
        number = self[text] = len(self)
        return number

    def codes(self, texts: Sequence[bytes]) -> I32:
        return np.fromiter(map(self.__getitem__, texts), np.int32, len(texts))

    def strings(self) -> tuple[str, ...]:
        return tuple(text.decode("utf-8", "replace") for text in self)


def dense(column: I64) -> tuple[I64, I64]:
    """Return the different values of a column, ascending, and for each row which of them it has. O(n) where they lie close together."""
    if not len(column):
        return column, np.zeros(0, np.int64)
    low, high = int(column.min()), int(column.max())
    if high - low > 4 * len(column) + (1 << 16):
        values, codes = np.unique(column, return_inverse=True)
        return values, codes.reshape(-1)
    present = np.zeros(high - low + 1, np.int64)
    present[column - low] = 1
    return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[column - low]


def name_column(
    export: Export, names: ExportNames, table: str, columns: Columns, column: str, spelled: Callable[[bytes], bytes] = bytes
) -> I32:
    """Read codes of the names of a table's rows, which a column holds as ids or as text; counts what has no name."""
    ids, which = dense(columns[column])
    texts = [text if text is None else spelled(text) for text in export.strings(ids)]
    out = names.codes([text or b"" for text in texts])[which]
    as_text = columns[column] == MISSING
    if as_text.any():
        place = 0
        for page in export.texts(table, column):
            rows = place + np.array([k for k, text in enumerate(page) if text is not None], np.int64)
            out[rows] = names.codes([spelled(text) for text in page if text is not None])
            place += len(page)
    unnamed = int(np.count_nonzero(out == 0))
    if unnamed:
        export.warnings.append(f"{unnamed} rows of {table} have no name in the export")
    return out
