"""``graphlink advice``: what to change in an earlier run, with evidence and with the gain that a replay computes."""

from __future__ import annotations

import argparse
from pathlib import Path

from graphlink.cli.arguments import count
from graphlink.cli.out import tell


def advice_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="output folder of an earlier run")
    parser.add_argument("--rank", type=count, metavar="N", help="for this rank alone")
    parser.add_argument("--top", type=count, default=8, metavar="N", help="how many to print (default 8)")


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
