"""Records as files, by their own annotations: numpy columns as raw bytes, all else as msgpack. Reading a file runs
nothing that it names.

Layout: a line with graphlink's version and the name of the record, then a section per field, in order: its sort (a
dtype such as ``<i8``, ``msgpack``, ...) in 8 bytes, its length in 8, its bytes; at the end the CRC-32 of all before.
Only declared types and dtypes are read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.graph_model import Deps, FileFacts, Graph, NodeRows
from graphlink.model import CommTable, Linked
from graphlink.ranks.records import RankComms
from graphlink.tables import numbered_texts
from graphlink.version import __version__
from graphlink.wings import Parts, RecordT, stored_type

_HEAD: Final = struct.Struct("<8sQ")
_CRC: Final = struct.Struct("<I")
_PLAIN, _ODD = b"msgpack", b"json"
_INDEX: Final = np.dtype(np.int32)
# the columns of a record have one length, but for those of its other tables; what is no array is a column if it is
# named here
_TABLE: Final[dict[type, dict[str, int]]] = {
    Graph: {"first": 1, "source": 2, "edge_kind": 2},
    NodeRows: {"found_by": 1},
    FileFacts: {"duplicate_ids": 1},
    Deps: {"first": 1},
    Linked: {"call_op": 1, "device_call": 2},
    CommTable: {"comms": 0},
    RankComms: {"overhead_start_ns": 1, "overhead_end_ns": 1},
}
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=os.fspath)


def dump(record: object, write: Callable[[Any], object]) -> None:
    """Encode a record, a dataclass, and pass the bytes to ``write``. Columns are not copied."""
    writer, kind = _Writer(write), type(record)
    writer.put(_first_line(kind))
    _put(writer, record, kind)
    write(_CRC.pack(writer.crc))


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
    value: RecordT = _take(file, kind)
    checked = file.crc
    if file.read(_CRC.size).tobytes() != _CRC.pack(checked) or file.left:
        raise ValueError("its checksum is another")
    return value


def _first_line(kind: Any) -> bytes:
    return f"graphlink {__version__} {kind.__name__}\n".encode()


class _Writer:
    def __init__(self, write: Callable[[Any], object]) -> None:
        self._write, self.crc = write, 0

    def put(self, data: Any) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self._write(data)

    def section(self, sort: bytes, data: Any = b"") -> None:
        self.put(_HEAD.pack(sort, memoryview(data).nbytes))
        self.put(data)


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

    def section(self, *sorts: bytes) -> tuple[bytes, Any]:
        """Return the next one, which must be of one of these sorts."""
        told, size = _HEAD.unpack(self.read(_HEAD.size))
        sort = told.rstrip(b"\0")
        if sort not in sorts:
            raise ValueError(f"{sort.decode(errors='replace')!r} where {b' or '.join(sorts).decode()!r} belongs")
        return sort, self.read(size)


def _put(out: _Writer, value: Any, kind: Any) -> None:
    inner, item, dtype = _of_optional(kind), _item(kind), _dtype(kind)
    if dtype is not None:
        out.section(dtype.str.encode(), _column(value, dtype))
    elif inner is not None and _has_columns(inner):
        _put(out, () if value is None else (value,), _many(inner))
    elif item is not None and _has_columns(item):
        _put_plain(out, len(value), int)
        for one in value:
            _put(out, one, item)
    elif item is not None and _repeats(item):
        number, values = numbered_texts(value)
        out.section(_INDEX.str.encode(), number)
        _put_plain(out, values, _many(item))
    elif kind is Parts:
        _put_plain(out, {name: type(part).__name__ for name, part in value.items()}, dict[str, str])
        for part in value.values():
            _put(out, part, type(part))
    elif get_origin(kind) is dict:
        for column, of in zip((tuple(value), tuple(value.values())), get_args(kind), strict=True):
            _put(out, column, _many(of))
    elif _is_record(kind):
        _put_plain(out, list(_fields(kind)), list[str])
        for name, of in _fields(kind).items():
            _put(out, getattr(value, name), of)
    else:
        _put_plain(out, value, kind)


def _take(file: _Reader, kind: Any) -> Any:
    inner, item, dtype = _of_optional(kind), _item(kind), _dtype(kind)
    if dtype is not None:
        return _take_column(file, dtype)
    if inner is not None and _has_columns(inner):
        return next(iter(_take(file, _many(inner))), None)
    if item is not None and _has_columns(item):
        return tuple(_take(file, item) for _ in range(_take_plain(file, int)))
    if item is not None and _repeats(item):
        index, values = _take_column(file, _INDEX), _take_plain(file, _many(item))
        if len(index) and not 0 <= index.min() <= index.max() < len(values):
            raise ValueError("a row points nowhere")
        return tuple(map(values.__getitem__, index.tolist()))
    if kind is Parts:
        names = _take_plain(file, dict[str, str])
        return Parts({name: _take(file, stored_type(name, of)) for name, of in names.items()})
    if get_origin(kind) is dict:
        keys, values = (_take(file, _many(of)) for of in get_args(kind))
        return dict(zip(keys, values, strict=True))
    if not _is_record(kind):
        return _take_plain(file, kind)
    if _take_plain(file, list[str]) != list(_fields(kind)):
        raise ValueError(f"a {kind.__name__} has other fields")
    values = {name: _take(file, of) for name, of in _fields(kind).items()}
    lengths: dict[int, int] = {}
    tables = _TABLE.get(kind) or getattr(kind, "TABLES", {})  # a record of a wing says it itself
    for name, value in values.items():
        table = tables.get(name, 0 if isinstance(value, np.ndarray) else None)
        if table is not None and lengths.setdefault(table, len(value)) != len(value):
            raise ValueError(f"columns of a {kind.__name__} are not of one length")
    return kind(**values)


def _column(value: Any, dtype: np.dtype[Any]) -> Any:
    column = np.ascontiguousarray(value, dtype)
    assert column.ndim == 1 and (value.dtype == dtype or np.array_equal(column, value)), (
        f"a column of {value.dtype} is declared as {dtype}"
    )
    return column


def _take_column(file: _Reader, dtype: np.dtype[Any]) -> Any:
    data = file.section(dtype.str.encode())[1]
    if len(data) % dtype.itemsize or (dtype == np.bool_ and len(data) and data.max() > 1):
        raise ValueError("a column does not hold what it should")
    return data.view(dtype)


def _put_plain(out: _Writer, value: Any, kind: Any) -> None:
    try:
        out.section(_PLAIN, _ENCODER.encode(value))
    except (OverflowError, UnicodeEncodeError):  # integers of more than 64 bits, halves of surrogate pairs
        out.section(_ODD, json.dumps(msgspec.to_builtins(value, enc_hook=os.fspath)).encode())


def _take_plain(file: _Reader, kind: Any) -> Any:
    sort, data = file.section(_PLAIN, _ODD)
    if sort == _PLAIN:
        return _decoder(kind).decode(data)
    return msgspec.convert(json.loads(data.tobytes()), kind, dec_hook=_path)


@functools.cache  # a rank has hundreds of small values, and to make one takes longer than its value
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_path)


def _path(kind: Any, value: Any) -> Path:
    if kind is not Path or not isinstance(value, str):
        raise ValueError(f"{value!r} is no path")
    return Path(value)


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_record(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


@functools.cache
def _dtype(kind: Any) -> np.dtype[Any] | None:
    """Return the dtype of a column; None for what is none."""
    if get_origin(kind) is np.ndarray:
        kind = get_args(kind)[1]
    elif get_origin(kind) is not NDArray:  # which numpy 2.5 keeps as an alias, on Pythons that know such
        return None
    dtype: np.dtype[Any] = np.dtype(get_args(kind)[0])
    return dtype


@functools.cache
def _of_optional(kind: Any) -> Any:
    """Return X of ``X | None``; None for what is none."""
    if get_origin(kind) not in (Union, types.UnionType):
        return None
    return next(of for of in get_args(kind) if of is not type(None))


@functools.cache
def _many(kind: Any) -> Any:
    return types.GenericAlias(tuple, (kind, ...))


@functools.cache
def _item(kind: Any) -> Any:
    """Return X of ``tuple[X, ...]``; None for what is none."""
    of = get_args(kind)
    return of[0] if get_origin(kind) is tuple and len(of) == 2 and of[1] is ... else None


@functools.cache
def _repeats(item: Any) -> bool:
    """Tell whether values of a kind are kept once however often they occur, and are one object again when they are
    read.
    """
    one = _of_optional(item) or item
    return get_origin(one) is tuple or (isinstance(one, type) and issubclass(one, msgspec.Struct))


@functools.cache
def _has_columns(kind: Any) -> bool:
    of = _fields(kind).values() if _is_record(kind) else get_args(kind)
    return _dtype(kind) is not None or any(map(_has_columns, of))
