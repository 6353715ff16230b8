"""An nsys sqlite export as columns: read-only, tables and columns by name, since every version of nsys has others.

A damaged, cut or foreign file is an ``InputError`` that names file, table and row; nothing is ever written into it or
next to it.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from graphlink.errors import InputError
from graphlink.model import EMPTY, I64
from graphlink.read import kinds
from graphlink.read.columns import MAX_NS, MISSING
from graphlink.read.heads import looks_like
from graphlink.read.kineto_rows import MAX_SPAN_NS
from graphlink.read.source import open_source
from graphlink.tables import codes, how_many, numbered_rows

PID_MASK: Final = ~0xFFFFFF  # a globalTid without its thread is the globalPid
_PROCESS, _CALLS, _RANGES = "globalPid", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_VERSION: Final = re.compile(r"_V\d+\Z")  # at the end of the name of a table
PAGE_ROWS: Final = 1 << 14
TEXT_ROWS: Final = 1 << 12  # fewer, as names may be long
MAX_TEXT_BYTES: Final = 1 << 16  # of one name or payload that are read
_MOST_ROW_BYTES: Final = 256 << 20  # damaged pages say that a row goes on for gigabytes
_HEADER_BYTES: Final = 100
_EXPORT_AGAIN: Final = "export it again: nsys export --type sqlite REPORT.nsys-rep"
_ABSENT: Final = {
    "correlationId": 0,
    "bytes": 0,
}  # what a number is that is not there, in tables of later stages; others are MISSING
_ROW_ID_NAMES: Final = ("rowid", "_rowid_", "oid")  # of sqlite; a column of that name hides it

Columns = dict[str, I64]


class Export:
    """One open export: columns of its ``tables``, and what was passed over in it (``left_out``) or is doubtful about it
    (``warnings``).
    """

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path = path
        self.left_out: Counter[str] = Counter()
        self.warnings: list[str] = []
        self._connection = connection
        self.tables: dict[str, frozenset[str]] = {}
        with self._reading("sqlite_master"):
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for table in (name.decode("ascii") for (name,) in names if isinstance(name, bytes) and name.isascii()):
                found = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
                self.tables[table] = frozenset(row[1].decode("ascii") for row in found if row[1].isascii())
        self._versions = {versioned: name for name in self.tables if (versioned := _VERSION.sub("", name)) != name}
        self._versions = {name: of for name, of in self._versions.items() if name not in self.tables}
        self.tables |= {name: self.tables.pop(of) for name, of in self._versions.items()}
        self._outermost: list[tuple[int, str, int]] = []  # ns, table, position: first and last times of each table read
        self.epoch_ns = self._epoch_ns()

    def _named(self, table: str) -> str:
        """Return a table as the export names it: ``NVTX_EVENTS`` may be there as ``NVTX_EVENTS_V2``."""
        return _quoted(self._versions.get(table, table))

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether the export has the table with all these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def integers(self, table: str, names: Sequence[str]) -> Columns:
        """Return int64 columns of all rows in the order of their row ids; MISSING for NULL, for what is no integer and
        for absent columns.

        Of correlation ids and numbers of bytes these are 0.
        sqlite joins a page of each column into one text, which numpy parses: no Python object a value (0.3 s for 8 x
        300,000).
        """
        there = [name for name in names if self.has(table, name)]
        count = 0 if there or table not in self.tables else self.count(table)
        absent = {name: _ABSENT.get(name, MISSING) for name in names}
        joined = (
            f"group_concat(CASE typeof({_quoted(c)}) WHEN 'integer' THEN {_quoted(c)} ELSE {absent[c]} END)"
            for c in there
        )
        parts = {name: [EMPTY] for name in there}
        for rows, *texts in self._pages(table, ", ".join(joined), ", ".join(map(_quoted, there))) if there else ():
            count += rows
            for name, text in zip(there, texts, strict=True):
                parts[name].append(np.fromstring(text.decode(), np.int64, sep=","))
        out = {name: np.concatenate(parts[name]) if name in parts else np.full(count, absent[name]) for name in names}
        assert all(len(column) == count for column in out.values()), "sqlite joins one number a row"
        if _PROCESS in names and _PROCESS not in there and count:
            out[_PROCESS] = self._processes(table, out)
        return out

    def _processes(self, table: str, rows: Columns) -> I64:
        """Return the globalPid of the ``rows`` of a table without that column, as early versions of nsys and other
        tools leave it out.

        Of the only process there is. Of several: of the one that made the calls of the same ids, where nine in ten such
        rows of the device and context agree (ids of two processes meet by chance); else MISSING.
        """
        count = len(rows[_PROCESS])
        ids, process = self._calls.T
        only = np.unique(process)
        if len(only) < 2:
            self.warnings.append(
                f"{table} has no column {_PROCESS}: its rows are taken to be of the only process in the export"
            )
            return np.full(count, only[0] if len(only) else 0)
        out = np.full(count, MISSING)
        correlation, device, context = (rows.get(name, out) for name in ("correlationId", "deviceId", "contextId"))
        first, last = (np.searchsorted(ids, correlation, side=side) for side in ("left", "right"))
        known = (last - first == 1) & (correlation > 0)
        place = codes(device, context)
        for k in range(int(place.max(initial=-1)) + 1):
            mine = place == k
            votes, counts = np.unique(process[first[mine & known]], return_counts=True)
            if len(votes) and counts.max() >= 0.9 * counts.sum():
                out[mine] = votes[counts.argmax()]
        self.warnings.append(
            f"{table} has no column {_PROCESS}: {how_many(out != MISSING):,} of {count:,} rows are taken "
            "to be of the process "
            "that made the calls of their device, the others are left out"
        )
        return out

    @cached_property
    def _calls(self) -> I64:
        """Return (correlation, globalPid) of the calls, for tables that do not say of which process they are."""
        table = _CALLS if self.has(_CALLS, "globalTid") else _RANGES
        calls = self.integers(table, ("globalTid", "correlationId"))
        there = calls["globalTid"] != MISSING
        return numbered_rows(calls["correlationId"][there], calls["globalTid"][there] & PID_MASK)[0]

    def texts(self, table: str, column: str, kind: str = "text") -> Iterator[tuple[I64, list[bytes]]]:
        """Yield (rows, texts) of a column page by page: rows by row id that are of ``kind``, their text as bytes, cut
        after 64 KiB.
        """
        if not self.has(table, column):
            return
        value, row_id = _quoted(column), self._row_id(table)
        test = f"typeof({value}) = 'text'" if kind == "text" else f"{value} IS NOT NULL"
        shown = f"substr({value if kind == 'text' else f'CAST({value} AS BLOB)'}, 1, {MAX_TEXT_BYTES})"
        with self._reading(table):
            cursor = self._connection.execute(
                f"SELECT CASE WHEN {test} THEN {shown} END FROM {self._named(table)} ORDER BY {row_id}"
            )
        for first in itertools.count(0, TEXT_ROWS):
            with self._reading(table):
                page = cursor.fetchmany(TEXT_ROWS)
            if not page:
                return
            there = [row for row, (text,) in enumerate(page, first) if text is not None]
            yield np.array(there, np.int64), [text for (text,) in page if text is not None]

    def rows(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return all rows of a small table; None for absent columns. Text comes as bytes."""
        if table not in self.tables:
            return []
        there = [_quoted(name) if name in self.tables[table] else "NULL" for name in names]
        with self._reading(table):
            return self._connection.execute(f"SELECT {', '.join(there)} FROM {self._named(table)}").fetchall()

    def strings(self, ids: I64) -> list[bytes]:
        """Return ``StringIds.value`` of each id of ``ids`` (ascending, unique); nothing where there is none."""
        if not self.has("StringIds", "id", "value"):
            return [b""] * len(ids)
        value = f"CASE typeof(value) WHEN 'text' THEN substr(value, 1, {MAX_TEXT_BYTES}) END"
        few = f" WHERE id IN ({','.join(map(str, ids.tolist()))})" if len(ids) <= PAGE_ROWS else ""
        wanted = set(ids.tolist())
        with self._reading("StringIds"):
            cursor = self._connection.execute(f"SELECT id, {value} FROM StringIds{few}")
            found = {number: text for number, text in cursor if number in wanted}
        return [found.get(number) or b"" for number in ids.tolist()]

    def count(self, table: str) -> int:
        with self._reading(table):
            return int(self._connection.execute(f"SELECT count(*) FROM {self._named(table)}").fetchone()[0])

    def spans(self, table: str, columns: Columns) -> tuple[I64, I64]:
        """Return start and end of the rows of a table in ns since the epoch.

        A row that ends before it starts has no length, and is counted. Raises InputError for a time that is no integer
        or beyond 2**62.
        """
        for name in ("start", "end"):
            wrong = (columns[name] <= -MAX_NS) | (columns[name] >= MAX_NS)
            if wrong.any():
                raise self.bad_row(table, int(np.flatnonzero(wrong)[0]), name)
        start = columns["start"] + self.epoch_ns
        end = np.maximum(start, columns["end"] + self.epoch_ns)
        self.left_out["end before start taken as no length"] += how_many(columns["end"] < columns["start"])
        if len(start):
            self._outermost += [
                (int(start.min()), table, int(start.argmin())),
                (int(end.max()), table, int(end.argmax())),
            ]
        return start, end

    def note_negative(self, table: str, start: I64) -> None:
        """Warn of rows that start before the report's time 0: most likely their times are wrong."""
        early = np.flatnonzero(start < 0)
        if len(early):
            first = int(early[0])
            rows = f"{len(early)} row{'s' * (len(early) > 1)} of {table}"
            self.warnings.append(
                f"{rows} with a start before the report's time 0, the first {self._place(table, first)}: "
                f"{start[first]} ns"
            )

    def refuse_span(self, lanes: int) -> None:
        """Refuse rows too far apart: later stages put all ``lanes`` (threads, streams) one behind the other on one
        int64 time axis.

        InputError where the rows lie too far apart for that, as one with a damaged time does from all others.
        """
        if not self._outermost:
            return
        (first_ns, *first), (last_ns, *last) = min(self._outermost), max(self._outermost)
        span_ns = last_ns - first_ns
        if span_ns < MAX_SPAN_NS and (span_ns + 1) * (lanes + 1) < MAX_NS:
            return
        raise InputError(
            f"its rows lie {span_ns / 86_400e9:,.1f} days apart, more than one recording can last",
            path=self.path,
            where=f"the first is {self._place(*first)}, the last {self._place(*last)}",
            todo=_EXPORT_AGAIN,
        )

    def _row(self, table: str, position: int, shown: str) -> Any:
        query = f"SELECT {shown} FROM {self._named(table)} ORDER BY {self._row_id(table)} LIMIT 1 OFFSET ?"
        with self._reading(table):
            return self._connection.execute(query, (position,)).fetchone()

    def _place(self, table: Any, position: Any) -> str:
        """Describe a row by its row id."""
        row = self._row(table, position, self._row_id(table))
        return f"row {row[0] if row else '?'} of {table}"

    def bad_row(self, table: str, position: int, column: str) -> InputError:
        """Make the error for a value that is no time."""
        value = "is missing"
        if self.has(table, column):
            kind, text = self._row(table, position, f"typeof({_quoted(column)}), substr({_quoted(column)}, 1, 40)")
            said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            value = f"is {said!r} ({kind.decode()})"
        return InputError(
            "a row has no usable time",
            path=self.path,
            where=f"{self._place(table, position)}: {column} {value}",
            todo=_EXPORT_AGAIN,
        )

    def _epoch_ns(self) -> int:
        """Return when the report's time 0 was; 0 where the export does not say, so that times are those of the
        report.
        """
        told = [row[0] for row in self.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)) if row[0] is not None]
        usable = [ns for ns in told if isinstance(ns, int) and 0 <= ns < MAX_NS]
        if len(usable) < len(told):
            self.warnings.append(
                "TARGET_INFO_SESSION_START_TIME holds no time: times are those of the report, not of the day"
            )
        if len(set(usable)) > 1:
            self.warnings.append(
                f"the export joins {len(usable)} sessions: all times are taken from the start of the first"
            )
        return usable[0] if usable else 0

    def _row_id(self, table: str) -> str:
        taken = {column.lower() for column in self.tables[table]}
        return next((name for name in _ROW_ID_NAMES if name not in taken), _ROW_ID_NAMES[0])

    def _pages(self, table: str, select: str, columns: str) -> Iterator[list[Any]]:
        """Yield pages of rows after each other by row id, each aggregated into one row: how many rows it has,
        ``select``.
        """
        row_id, last = self._row_id(table), MISSING
        page = (
            f"SELECT {row_id} AS row_id, {columns} FROM {self._named(table)} WHERE {row_id} > ? ORDER BY {row_id} "
            "LIMIT "
            f"{PAGE_ROWS}"
        )
        while True:
            with self._reading(table):
                highest, *row = self._connection.execute(
                    f"SELECT max(row_id), count(*), {select} FROM ({page})", (last,)
                ).fetchone()
            if row[0]:
                yield row
                last = highest
            if row[0] < PAGE_ROWS:
                return

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        try:
            yield
        except (
            sqlite3.Error,
            OverflowError,
            UnicodeError,
            MemoryError,
        ) as problem:  # the last: a page says that gigabytes follow
            raise InputError(
                f"the sqlite file is damaged ({str(problem) or 'a row without end'})",
                path=self.path,
                where=f"table {table}",
                todo=_EXPORT_AGAIN,
            ) from None


@contextmanager
def open_export(path: str | Path) -> Iterator[Export]:
    """Open the nsys export at ``path``: plain, gzip or zstd (unpacked into a temporary file).

    Raises InputError: it cannot be read, is something else, or is cut off.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
        plain = _plain(path, Path(folder))
        with closing(_connect(path, plain)) as connection:
            export = Export(path, connection)
            wal = Path(f"{path}-wal")
            with suppress(OSError):
                if plain == path and wal.stat().st_size:
                    export.warnings.append(
                        f"{wal.name} beside it holds rows that were not written into it yet: passed over"
                    )
            yield export


def _plain(path: Path, folder: Path) -> Path:
    """Return the file itself, or a copy of what is packed in it; of another kind, empty or cut off is an InputError."""
    with open_source(path) as source:
        head = source.read(_HEADER_BYTES)
        kind = kinds.binary_kind(head)
        if kind is not kinds.NSYS or len(head) < _HEADER_BYTES:
            raise _no_export(path, head)
        plain = folder / "export.sqlite" if source.packed else path
        try:
            if source.packed:
                with plain.open("wb") as out:
                    out.write(head)
                    while part := source.read(1 << 20):
                        out.write(part)
        except OSError as problem:
            raise InputError(
                f"cannot be unpacked into {folder} ({problem.strerror})", path=path, todo="unpack it yourself"
            ) from None
    _refuse_cut(path, head, plain.stat().st_size)
    return plain


def _no_export(path: Path, head: bytes) -> InputError:
    if not head:
        return InputError("is empty", path=path, todo=_EXPORT_AGAIN)
    if head.startswith(b"SQLite format 3\0"):
        return InputError("the sqlite file is cut off", path=path, where=f"after byte {len(head)}", todo=_EXPORT_AGAIN)
    kind = kinds.ALL.get(looks_like(path) or "")
    if kind is None:
        return InputError("is no sqlite database, so no nsys export", path=path, todo=_EXPORT_AGAIN)
    return InputError(
        f"is {kind.what}" + ("" if ", not" in kind.what else ", not an nsys export"), path=path, todo=kind.todo
    )


def _refuse_cut(path: Path, head: bytes, there: int) -> None:
    """Refuse a file that is cut, by the size that the header tells (sqlite.org/fileformat.html, 1.3), valid where it
    was written with the last change."""
    page_bytes = int.from_bytes(head[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    told = page_bytes * int.from_bytes(head[28:32], "big")
    if head[24:28] == head[92:96] and there < told:
        raise InputError(
            "the sqlite file is cut off",
            path=path,
            where=f"it has {there:,} of {told:,} bytes",
            todo="copy the file again, or export again",
        )


def _connect(path: Path, plain: Path) -> sqlite3.Connection:
    with ExitStack() as undo:
        try:
            connection = sqlite3.connect(f"{plain.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            undo.callback(connection.close)
            connection.text_factory = bytes  # text that is no UTF-8 must not stop the reader
            if sys.version_info >= (3, 11):
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_ROW_BYTES)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT count(*) FROM sqlite_master")
        except (sqlite3.Error, UnicodeError, MemoryError) as problem:
            raise InputError(f"the sqlite file is damaged ({problem})", path=path, todo=_EXPORT_AGAIN) from None
        undo.pop_all()
    return connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
