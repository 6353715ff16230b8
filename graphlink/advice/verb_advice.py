"""``graphlink advice``: what to change in an earlier run, with evidence and with the gain that a replay computes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import RUN_DIR, count
from graphlink.cli.out import tell

ADVICE_OPTIONS: Final = VerbOptions(
    (
        RUN_DIR,
        Option("--rank", type=count, metavar="N", help="for this rank alone"),
        Option("--top", type=count, default=8, metavar="N", help="how many to print (default 8)"),
    ),
)


def advice(arguments: argparse.Namespace) -> int:
    """Print what would make a run end earlier, the largest gain first; 0.

    Raises:
        InputError: the folder is of no earlier run, or has no such rank.
    """
    from graphlink.advice.table import advice_table
    from graphlink.run.library import open as open_run

    report = open_run(Path(arguments.dir)).advice(arguments.rank)
    tell(arguments.json, report, lambda: advice_table(report, arguments.top))
    return 0
