"""Records as files, by their own annotations: numpy columns as raw bytes, all else as msgpack. Reading a file runs
nothing that it names.

Layout: a line with graphlink's version and the name of the record; the sort of what follows (``msgpack`` or ``json``)
in 8 bytes, its length in 8, and the record in it, with dtype and bytes of each column in its place; the columns, in
that order; at the end the CRC-32 of all before. Only declared types and dtypes are read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.graph_model import Deps, FileFacts, Graph, NodeRows
from graphlink.model import Linked
from graphlink.ranks.records import RankComms
from graphlink.version import __version__
from graphlink.wings import Parts, RecordT, stored_type

_HEAD: Final = struct.Struct("<8sQ")
_CRC: Final = struct.Struct("<I")
_PLAIN, _ODD = b"msgpack", b"json"
_NO_RECORDS: Final = (int, str)  # of which tuples may hold many: the ranks of a group
_SORTS: Final = frozenset(np.dtype(code).str for code in ("?", "d", *np.typecodes["AllInteger"]))
# the columns of a record have one length, but for those of its other tables; what is no array is a column if it is
# named here
_TABLE: Final[dict[type, dict[str, int]]] = {
    Graph: {"first": 1, "source": 2, "edge_kind": 2},
    NodeRows: {"found_by": 1},
    FileFacts: {"duplicate_ids": 1},
    Deps: {"first": 1},
    Linked: {"call_op": 1, "device_call": 2},
    RankComms: {"overhead_start_ns": 1, "overhead_end_ns": 1},
}


def dump(record: object, write: Callable[[Any], object]) -> None:
    """Encode a record, a dataclass, and pass the bytes to ``write``. Columns are not copied."""
    columns: list[NDArray[Any]] = []
    encoded = functools.partial(_encoded, columns)
    try:
        sort, head = _PLAIN, msgspec.msgpack.encode(record, enc_hook=encoded)
    except (OverflowError, UnicodeEncodeError):  # integers of more than 64 bits, halves of surrogate pairs
        columns.clear()
        sort, head = _ODD, json.dumps(msgspec.to_builtins(record, enc_hook=encoded)).encode()
    whole: tuple[Any, ...] = (_first_line(type(record)), _HEAD.pack(sort, len(head)), head, *columns)
    crc = 0
    for data in whole:
        crc = zlib.crc32(data, crc)
        write(data)
    write(_CRC.pack(crc))


def load(file: BinaryIO, kind: type[RecordT], name: str | Path, todo: str) -> RecordT:
    """Read what ``dump`` wrote of a record of this kind. ``name`` and ``todo`` are for messages. Memory is that of the
    record.

    Raises:
        InputError: the file is damaged, cut off, of another version or record, or its columns are not of the declared
            dtypes and lengths.
    """
    try:
        return _whole(_Reader(file), kind)
    except (OSError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise InputError(
            f"cannot be read, it is damaged or of another version: {problem}", path=name, todo=todo
        ) from None


def _whole(file: _Reader, kind: type[RecordT]) -> RecordT:
    first = _first_line(kind)
    if file.read(len(first)).tobytes() != first:
        raise ValueError("it does not begin as it should")
    sort, size = _HEAD.unpack(file.read(_HEAD.size))
    head, decoded = file.read(size), functools.partial(_decoded, file)
    if sort.rstrip(b"\0") == _PLAIN:
        value = msgspec.msgpack.decode(head, type=kind, dec_hook=decoded)
    else:
        value = msgspec.convert(json.loads(head.tobytes()), kind, dec_hook=decoded, str_keys=True)
    checked = file.crc
    if file.read(_CRC.size).tobytes() != _CRC.pack(checked) or file.left:
        raise ValueError("its checksum is another")
    _check_lengths(value)
    return value


def _first_line(kind: Any) -> bytes:
    return f"graphlink {__version__} {kind.__name__}\n".encode()


def _encoded(columns: list[NDArray[Any]], value: Any) -> Any:
    """Return a value that msgpack does not know in others that it knows; a column goes to ``columns``."""
    if isinstance(value, Parts):
        return {name: (type(part).__name__, part) for name, part in value.items()}
    if not isinstance(value, np.ndarray):
        return os.fspath(value)
    columns.append(np.ascontiguousarray(value))
    return value.dtype.str, value.nbytes


def _decoded(file: _Reader, kind: Any, value: Any) -> Any:
    """Return what ``_encoded`` was given, of its declared ``kind``."""
    if kind is Path:
        return Path(value)
    if kind is Parts:
        decoded = functools.partial(_decoded, file)
        return Parts(
            {
                name: msgspec.convert(part, stored_type(name, of), dec_hook=decoded, str_keys=True)
                for name, (of, part) in value.items()
            }
        )
    return file.column(np.dtype(get_args(get_args(kind)[1])[0]), *value)


class _Reader:
    """``left``: bytes of the file that are not read yet, which bounds what is allocated."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.crc, self.left = file, 0, os.fstat(file.fileno()).st_size

    def read(self, size: int) -> Any:
        if size > self.left:
            raise ValueError("it is cut off")
        data = np.empty(size, np.uint8)
        if self._file.readinto(data.data) != size:  # type: ignore[attr-defined]
            raise ValueError("it is cut off")
        self.left -= size
        self.crc = zlib.crc32(data.data, self.crc)
        return data

    def column(self, declared: np.dtype[Any], sort: str, size: int) -> NDArray[Any]:
        """Read the next column; one of another dtype may be declared if its values are the same."""
        if sort not in _SORTS:
            raise ValueError(f"{sort!r} is no dtype of a column")
        data = self.read(size)
        if size % np.dtype(sort).itemsize or (sort == "|b1" and size and data.max() > 1):
            raise ValueError("a column does not hold what it should")
        column: NDArray[Any] = data.view(sort)
        cast = column.astype(declared, copy=False)
        if cast is not column and not np.array_equal(cast, column):
            raise ValueError(f"a column of {sort} is declared as {declared}")
        return cast


def _check_lengths(value: Any) -> None:
    """Raise ValueError where columns of a record, or of one in it, are not of one length."""
    if isinstance(value, dict | Parts):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for inner in value:
            if not isinstance(inner, _NO_RECORDS):
                _check_lengths(inner)
    elif dataclasses.is_dataclass(value):
        lengths: dict[int, int] = {}
        kind = type(value)
        tables = _TABLE.get(kind) or getattr(kind, "TABLES", {})  # a record of a wing says it itself
        for name, inner in ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value)):
            table = tables.get(name, 0 if isinstance(inner, np.ndarray) else None)
            if table is not None and lengths.setdefault(table, len(inner)) != len(inner):
                raise ValueError(f"columns of a {kind.__name__} are not of one length")
            _check_lengths(inner)
