"""Convert decoded values to numpy columns: numbers that may be text, names, shapes, times.

Recorders write numbers as numbers, as text (``"25738"``), in hexadecimal (``"0x0"``) and with a word or a
mark before them (``"stream 7"``, ``"[TP00-DP01] 83"``).
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.model import EMPTY, I32, I64, Comm
from graphlink.tables import comm_table, how_many, numbered_values, take_comms

Columns = dict[str, NDArray[Any]]  # by name, of one length
MISSING = -(1 << 63)  # never a recorded value; callers replace or drop it
NO_ID = (MISSING, -1, (1 << 32) - 1)  # absent, and how recorders write "none"
MAX_NS = 1 << 62
_MAX_US = MAX_NS // 1000
DTYPES = {
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "F64": np.float64,
    "Bool": np.bool_,
}  # by a record's annotation
_Record = TypeVar("_Record", bound=Any)  # a dataclass of columns
MARK = re.compile(r"\[[^\]]{0,80}\] ")  # of the process of a rank, where recordings were merged
_NUMBER = re.compile(r"\s*(?:\[[^\]]{0,80}\] )?(?:[A-Za-z]+ )?(-?[0-9]{1,30}|0[xX][0-9a-fA-F]{1,30})\s*")


def to_int(value: object, default: int = MISSING) -> int:
    """Return ``value`` as an int64, ``default`` where it is none: null, a fraction, other text, out of range.

    What 64 bits without a sign hold (a ``pthread_t``) is the number of these bits with one.
    """
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        value = int(match[1], 16 if match[1][:2] in ("0x", "0X") else 10) if match else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and 1 << 63 <= value < 1 << 64:
        value -= 1 << 64
    return int(value) if isinstance(value, int) and MISSING < value < 1 << 63 else default


def to_int_or_none(value: object) -> int | None:
    """Return an integer as ``to_int`` does; None where it is none."""
    number = to_int(value)
    return None if number == MISSING else number


def first_word(value: object) -> object:
    """Return the first word, as of "2284544 bytes"."""
    return value.split()[0] if isinstance(value, str) and value.strip() else value


def is_time(value: object) -> bool:
    """Tell whether it is a number that a float64 can hold."""
    return value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)


def loose(raw: msgspec.Raw | str) -> Any:
    """Decode whatever the text says; None where it is empty or not to be decoded."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def ints(values: Sequence[object], default: int = MISSING) -> I64:
    """Return an int64 column of ``values``; each that is no int64 gives ``default``."""
    with suppress(TypeError, OverflowError):  # one is no integer, or too large
        return np.asarray(array("q", cast("Sequence[int]", values)), np.int64)
    return np.fromiter((to_int(value, default) for value in values), np.int64, len(values))


def ns_of_us(us: Sequence[float | None] | NDArray[np.float64]) -> I64:
    """Convert microseconds to the nearest ns, exact for three decimals below 2**43 us.

    Whole and fraction go apart: ``ts * 1000`` itself would round to a float64 first. None, NaN or |us| >= 2**62 / 1000
    gives MISSING.
    """
    us = np.array(us, np.float64)
    fits = np.abs(us) < _MAX_US
    us[~fits] = 0.0
    whole = np.floor(us)
    ns = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return np.where(fits, ns, np.int64(MISSING))


class Strings(dict[str, int]):
    """Numbers texts in order of first use; "" is 0."""

    def __init__(self) -> None:
        super().__init__({"": 0})

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number

    def column(self, texts: Sequence[str]) -> I32:
        """Number the texts: one code each."""
        return np.fromiter(map(self.__getitem__, texts), np.int32, len(texts))

    def of_names(self, names: I32 | I64, strings: Sequence[str], form: str = "{}") -> I32:
        """Number ``form`` with each name in it; O(n), and a text a name."""
        used, which = numbered_values(names)
        return self.column([form.format(strings[k]) for k in used.tolist()])[which]


class ByteTexts(dict[bytes, int]):
    """Numbers texts that come as bytes (JSON, names of an export) in the same table as ``strings``; no text is ""."""

    def __init__(self, strings: Strings):
        super().__init__({b"": 0})
        self.strings = strings

    def __missing__(self, text: bytes) -> int:
        number = self[text] = self.strings[text.decode("utf-8", "replace")]
        return number

    def column(self, texts: Sequence[msgspec.Raw | bytes]) -> I32:
        """Number the texts: one code each."""
        return np.fromiter(map(self.__getitem__, map(bytes, texts)), np.int32, len(texts))


class Parts:
    """The columns of one table, gathered block by block. ``count`` is the number of rows so far, ``comms`` their
    communication by row.
    """

    def __init__(self) -> None:
        self.count = 0
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self.comms: dict[int, Comm] = {}

    def add(self, **columns: NDArray[Any]) -> None:
        for name, column in columns.items():
            self._columns.setdefault(name, []).append(column)
        self.count += len(column)

    def column(self, name: str, dtype: type[np.generic] = np.int64) -> NDArray[Any]:
        """Return a column and give it up: each can be taken once, so that two copies never live."""
        parts = self._columns.pop(name, None)
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def seen(self, name: str) -> NDArray[Any]:
        """Return a column so far, which stays, the same array each time; empty int64 where there is none."""
        if name not in self._columns:
            return EMPTY
        if len(self._columns[name]) > 1:
            self._columns[name] = [np.concatenate(self._columns[name])]
        return self._columns[name][0]

    def keep(self, rows: NDArray[np.bool_]) -> int:
        """Leave out all other rows, and return how many."""
        left_out = self.count - how_many(rows)
        if left_out:
            place = np.cumsum(rows) - 1
            self.comms = {int(place[row]): comm for row, comm in self.comms.items() if rows[row]}
            self._columns = {name: [self.seen(name)[rows]] for name in list(self._columns)}
            self.count -= left_out
        return left_out

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return those that have not been taken yet, and give them up."""
        return {name: self.column(name) for name in list(self._columns)}

    def table(self, kind: type[_Record], order: NDArray[np.intp], **others: Any) -> _Record:
        """Return the columns as a record, rows in ``order`` (which may leave rows out); ``others`` are what it holds
        besides.

        Each column is given up as it is copied.
        """
        for f in fields(kind):
            if f.name in others:
                continue
            if f.type == "CommTable":
                others[f.name] = take_comms(comm_table(self.comms), order, self.count)
            else:
                others[f.name] = self.column(f.name, DTYPES[str(f.type)])[order]
        record: _Record = kind(**others)
        return record
