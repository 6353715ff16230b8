"""``graphlink diff``: two runs compared, whether the second is better and what was changed."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Final

from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import between, count, flag
from graphlink.cli.out import refuse_overwriting, tell, write_file
from graphlink.errors import SLOWER

DIFF_OPTIONS: Final = VerbOptions(
    (
        Option("before", metavar="A", help="output folder of the run before"),
        Option("after", metavar="B", help="output folder of the run after"),
        Option("-o", "--out", metavar="FILE", help="also write a page for the browser, one HTML file"),
        flag("--markdown", help="print a verdict and one table for a pull request"),
        flag("--anyway", help="compare runs even if they are too different"),
        Option(
            "--fail-on",
            type=between(0, math.inf, "number of per cent from 0", "%"),
            metavar="PERCENT%",
            help="exit with 4 if B is slower than A by more: 3%% or 3",
        ),
        Option("--top", type=count, default=6, metavar="N", help="how many changes and operations (default 6)"),
    ),
)


def diff(arguments: argparse.Namespace) -> int:
    """Print the comparison, and write its page; 0, or 4 where B is slower than ``--fail-on`` allows.

    Raises:
        InputError: a folder is of no earlier run, or the runs do not compare.
        OutputError: the page cannot be written.
        UsageError: the page would overwrite another file.
    """
    if arguments.out is not None:
        refuse_overwriting(arguments, "out")
    from graphlink.diff.compare import compare
    from graphlink.diff.table import diff_markdown, diff_table

    report = compare(
        Path(arguments.before), Path(arguments.after), anyway=arguments.anyway, limit_pct=arguments.fail_on
    )
    lines = list[str]()
    if arguments.out is not None:
        from graphlink.diff.page import diff_page
        from graphlink.page.render import html

        data = html(diff_page(report)).encode()
        write_file(Path(arguments.out), data, "--out")
        lines = ["", f"{arguments.out}: the page, {len(data) / 1e6:.2f} MB"]
    shown = diff_markdown if arguments.markdown else diff_table
    tell(arguments.json, report, lambda: [*shown(report, arguments.top), *lines])
    return SLOWER if report.fail_on is not None and report.fail_on.exceeded else 0
