"""``graphlink ops``: which operations the device time of an earlier run goes to, and whether they use tensor cores."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import RUN_DIR, count, flag, rank_files
from graphlink.cli.out import tell

OPS_OPTIONS: Final = VerbOptions(
    (
        RUN_DIR,
        Option("--rank", type=count, metavar="N", help="of this rank alone"),
        Option("--top", type=count, default=10, metavar="N", help="how many operations (default 10)"),
        flag("--whole-names", help="print paths and names of kernels in full"),
    ),
)


def ops(arguments: argparse.Namespace) -> int:
    """Print the operations with most device time; 0.

    Raises:
        InputError: the folder has no ops.<rank>.json, or none of this rank.
    """
    from graphlink.operations.records import load
    from graphlink.operations.table import OperationsReport, operations_table, top_of

    files = rank_files(Path(arguments.dir), "ops", arguments.rank)
    report = OperationsReport(ranks=[top_of(load(path), arguments.top) for path in files.values()])
    tell(arguments.json, report, lambda: operations_table(report, whole=arguments.whole_names))
    return 0
