"""``graphlink idle``: what each GPU of an earlier run was busy with, and why it was idle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from graphlink import output_names
from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import RUN_DIR, count, rank_files
from graphlink.cli.out import tell

IDLE_OPTIONS: Final = VerbOptions(
    (
        RUN_DIR,
        Option("--rank", type=count, metavar="N", help="of this rank alone"),
        Option("--top", type=count, default=10, metavar="N", help="how many intervals and reasons (default 10)"),
    ),
)


def idle(arguments: argparse.Namespace) -> int:
    """Print the time of each device and the causes of its idle time; 0.

    Raises:
        InputError: the folder has no idle.<rank>.json, or none of this rank; a file cannot be read.
    """
    from graphlink.gpu.records import load
    from graphlink.gpu.table import IdleReport, idle_table, rank_idle
    from graphlink.report import summary

    files = rank_files(Path(arguments.dir), "idle", arguments.rank)
    beside = Path(arguments.dir) / output_names.SUMMARY
    run = summary.load(beside).run if beside.is_file() else None
    report = IdleReport(ranks=[rank_idle(load(path), arguments.top, run) for path in files.values()])
    tell(arguments.json, report, lambda: idle_table(report))
    return 0
