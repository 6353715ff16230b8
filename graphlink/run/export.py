"""The tables of a run as files of parquet, arrow or csv: the data frames of the library, one file each, written rank by
rank.

docs/export.md lists their columns. Whatever the format, a text is one of UTF-8 and an integer that a row does not have
is missing. In csv a text is always in quotes, and what is missing is nothing at all; ``cell`` has what spreadsheets
would take for a formula.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

import msgspec

from graphlink.choices import FORMATS
from graphlink.errors import UsageError, bad_value
from graphlink.output_names import SUMMARY
from graphlink.publish import HIDDEN, Publication, naming, refuse_others, write_json, writing
from graphlink.read.document import Written
from graphlink.run.library import Run
from graphlink.wings import declarations

if TYPE_CHECKING:
    import pandas as pd

_OF_RANK: Final[dict[str, Callable[[Run, int], pd.DataFrame]]] = {
    "nodes": Run.nodes,
    "edges": Run.edges,
    "ops": Run.ops,
    "operations": lambda run, rank: run.operations(rank),
    "kernels": Run.kernels,
    "syncs": Run.syncs,
    "collectives": Run.collectives,
    "idle": Run.idle,
    "critical_path": Run.critical_path,
    "gains": Run.gains,
}
_OF_RUN: Final[dict[str, Callable[[Run], pd.DataFrame]]] = {"ranges": Run.ranges, "bubbles": Run.bubbles}
_MADE_BY_WINGS: Final = ("operations", "idle", *_OF_RUN)
_ABSENT: Final = {*_MADE_BY_WINGS} - {*dict(declarations("tables"))}
TABLES: Final = tuple(name for name in (*_OF_RANK, *_OF_RUN) if name not in _ABSENT)
_LISTS: Final = frozenset({("collectives", "ranks")})  # columns whose cells are lists of integers
_FORMULA: Final = tuple("=+-@\t\r\n＝＋－＠'")
_BLOCK: Final = 1 << 15  # rows that are text at a time
_Add: TypeAlias = "Callable[[pd.DataFrame], None]"  # writes the rows of one table, as often as there are ranks


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column: its name and ``int64``, ``double``, ``string`` or ``list<int64>``."""

    name: str
    type: str


class ExportedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was written: its file, columns and number of rows."""

    name: str
    file: str
    rows: int
    columns: list[Column]


class Exported(Written, frozen=True, kw_only=True):
    """The folder of tables, as its ``summary.json`` has it.

    ``files``: all in the folder; ``source``: the output folder that they are of; ``ranks``: those in them.
    """

    files: list[str]
    source: str
    format: str
    ranks: list[int]
    tables: list[ExportedTable]


def export(
    run: Run, out: Path, form: str, *, names: Sequence[str] = (), rank: int | None = None, force: bool = False
) -> Exported:
    """Write the tables of a run (only those of ``names``, only of ``rank``) into ``out``, all of them or nothing.

    The rows of one rank are in memory at a time. Linear in what is written.

    Raises:
        InputError: a file of the run cannot be read.
        OutputError: ``out`` holds other files, or an earlier export's and ``force`` is not set, or cannot be written.
        UsageError: there is no such format, table or rank; ``out`` is the run's own folder; pyarrow is missing.
    """
    _refuse(run, out, form, names, rank)
    wanted = [name for name in TABLES if name in (names or TABLES) and (name in _OF_RUN or run.ranks)]
    ranks = list(run.ranks) if rank is None else [rank]
    with Publication(out, force=force) as publication, naming(out):
        tables = _written(run, publication.beside, form, wanted, rank)
        files = sorted([SUMMARY, *(table.file for table in tables)])
        made = Exported(files=files, source=str(run.folder), format=form, ranks=ranks, tables=tables)
        write_json(publication.beside / SUMMARY, made)
        publication.publish()
    return made


def _refuse(run: Run, out: Path, form: str, names: Sequence[str], rank: int | None) -> None:
    """Refuse what cannot be written, before anything is."""
    for what, given, known in (("format", [form], FORMATS), ("table", names, TABLES)):
        wrong = next((name for name in given if name not in known), None)
        if wrong is not None:
            raise UsageError(f"{wrong}: there is no such {what}", todo=f"one of {', '.join(known)}")
    if not run.ranks and any(name in _OF_RANK for name in names):
        raise UsageError(
            "no rank has a graph: logs of Paddle hold bubbles only", todo=f"--table {' or '.join(_OF_RUN)}"
        )
    if rank is not None and run.ranks and rank not in run.ranks:
        raise bad_value("rank", rank, f"a rank that has a graph, as {', '.join(map(str, run.ranks[:8]))}")
    if HIDDEN in out.parts or (out.exists() and run.folder.samefile(out)):
        raise UsageError("--out is the folder of the run", todo="name another one, or leave it away: DIR/tables")
    refuse_others(out, {HIDDEN, SUMMARY, *(f"{name}.{form}" for name in TABLES for form in FORMATS)}, "export")
    if form != "csv":
        _arrow()


def _written(run: Run, folder: Path, form: str, wanted: Sequence[str], rank: int | None) -> list[ExportedTable]:
    files = {name: f"{name}.{form}" for name in wanted}
    rows = dict.fromkeys(wanted, 0)
    columns: dict[str, list[Column]] = {}
    writers: dict[str, _Add] = {}
    with ExitStack() as opened:
        for name, part in _parts(run, wanted, rank):
            if name not in writers:
                columns[name] = _columns(name, part)
                file = opened.enter_context(writing(folder / files[name]))
                if form == "csv":
                    writers[name] = _csv(file, columns[name])
                else:
                    writers[name] = _arrow_or_parquet(opened, file, form, columns[name], part)
            rows[name] += len(part)
            writers[name](part)
    return [ExportedTable(name=name, file=files[name], rows=rows[name], columns=columns[name]) for name in wanted]


def _parts(run: Run, wanted: Sequence[str], rank: int | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the tables of each rank, one rank after the other, then those of the run, of which only ``rank`` is asked
    for.
    """
    for one in run.ranks if rank is None else (rank,):
        for name in wanted:
            if name in _OF_RANK:
                yield name, _OF_RANK[name](run, one)
    for name in wanted:
        if name in _OF_RUN:
            found = _OF_RUN[name](run)
            yield name, found if rank is None else found[found["rank"] == rank].reset_index(drop=True)


def _columns(table: str, part: pd.DataFrame) -> list[Column]:
    kinds = {"i": "int64", "f": "double", "O": "string"}
    types = {str(name): kinds[kind.kind] for name, kind in part.dtypes.items()}
    return [Column(name=name, type="list<int64>" if (table, name) in _LISTS else kind) for name, kind in types.items()]


def _arrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        todo = (
            "pip install pyarrow (it is the extra tables: pip install '.[tables]' in a clone), or --format csv, "
            "which needs nothing"
        )
        raise UsageError("parquet and arrow files need pyarrow, which is not installed", todo=todo) from None
    return pa


def _arrow_or_parquet(
    opened: ExitStack, file: BinaryIO, form: str, columns: Sequence[Column], part: pd.DataFrame
) -> _Add:
    """Return what writes rows to a parquet or arrow file, a row group or batch a rank. Its schema has what pandas needs
    to read the same frames back.
    """
    pa = _arrow()
    types = {
        "int64": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
        "list<int64>": pa.list_(pa.int64()),
    }
    fields = pa.schema([(column.name, types[column.type]) for column in columns])
    schema = pa.Table.from_pandas(part.head(0), fields, preserve_index=False).schema
    if form == "parquet":
        import pyarrow.parquet as pq

        writer = pq.ParquetWriter(file, schema, compression="zstd")
    else:
        writer = pa.ipc.new_file(file, schema)
    opened.callback(writer.close)

    def add(rows: pd.DataFrame) -> None:
        # a third of the time that Table.from_pandas takes
        arrays = [pa.array(rows[field.name], field.type, from_pandas=True) for field in schema]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

    return add


def _csv(file: BinaryIO, columns: Sequence[Column]) -> _Add:
    """Return what writes rows as csv: UTF-8, commas, ``\\n``, a head, texts in quotes."""
    file.write((",".join(f'"{column.name}"' for column in columns) + "\n").encode())

    def add(rows: pd.DataFrame) -> None:
        for low in range(0, len(rows), _BLOCK):
            block = rows.iloc[low : low + _BLOCK]
            cells = [_cells(block[column.name], _CELL[column.type]) for column in columns]
            file.write(("\n".join(map(",".join, zip(*cells, strict=True))) + "\n").encode())

    return add


def _cells(column: pd.Series[Any], cell_of: Callable[[Any], str]) -> list[str]:
    """Return a column as csv; what is missing is nothing."""
    missing = column.isna().tolist()
    return ["" if gone else cell_of(value) for value, gone in zip(column.astype(object).tolist(), missing, strict=True)]


def cell(text: str) -> str:
    """Return the csv cell of a text, in quotes.

    What a spreadsheet would take for a formula gets a ``'`` in front, and so does what begins with one: whoever takes a
    leading ``'`` off has the text.
    """
    return '"' + ("'" if text.startswith(_FORMULA) else "") + text.replace('"', '""') + '"'


_CELL: Final[dict[str, Callable[[Any], str]]] = {
    "int64": str,
    "double": repr,
    "string": cell,
    "list<int64>": lambda values: cell(json.dumps(list(values))),
}
