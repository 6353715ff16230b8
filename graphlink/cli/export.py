"""``graphlink export``: the tables of an earlier run as files for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from graphlink.choices import FORMATS, Option, VerbOptions
from graphlink.cli.arguments import RUN_DIR, count, flag
from graphlink.cli.out import tell
from graphlink.records import Lines, Table, counted

EXPORT_OPTIONS: Final = VerbOptions(
    (
        RUN_DIR,
        Option("--format", required=True, choices=FORMATS, help="of the files"),
        Option("-o", "--out", metavar="FOLDER", help="where to (default DIR/tables)"),
        Option("--rank", type=count, metavar="N", help="of this rank alone"),
        Option(
            "--table", action="append", default=[], metavar="NAME", help="only this table; repeatable (default all)"
        ),
        flag("--force", help="replace the files of an earlier graphlink export, and no others"),
    ),
    epilog="docs/export.md has the columns of each table; parquet and arrow need pyarrow",
)


def export(arguments: argparse.Namespace) -> int:
    """Write the tables and print what is in them; 0.

    Raises:
        InputError: the folder is of no earlier run, or one of its files cannot be read.
        OutputError: the folder for the tables holds other files, or an earlier export's without ``--force``.
        UsageError: there is no such table or rank; pyarrow is missing.
    """
    from graphlink.run import library
    from graphlink.run.export import export as write

    folder = Path(arguments.dir)
    out = Path(arguments.out) if arguments.out else folder / "tables"
    made = write(
        library.open(folder), out, arguments.format, names=arguments.table, rank=arguments.rank, force=arguments.force
    )
    rows = [(table.file, f"{table.rows:,}", f"{len(table.columns)}") for table in made.tables]
    report: Lines = [
        f"wrote {counted(len(rows), 'table')} to {out}",
        Table(rows, ("file", "rows", "columns"), "<>>"),
    ]
    tell(arguments.json, made, lambda: report)
    return 0
