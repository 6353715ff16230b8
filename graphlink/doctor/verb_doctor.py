"""``graphlink doctor``: what a recording lacks, what that costs in the graph, and the line that would record it."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.cli.out import tell
from graphlink.errors import UsageError
from graphlink.records import Table, first_few

if TYPE_CHECKING:
    from graphlink.doctor.records import Diagnosis, Told

MOST_TOLD: Final = 8  # lines of what else was reported of a finding
MOST_PARTS: Final = 6  # names that a text lists


def doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 the files could be read, 1 they could not, 2 wrong usage; docs/doctor.md lists the findings"
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="FILE|DIR",
        help="Kineto traces, execution traces, nsys exports and side files of NCCL, or folders of them, told by "
        "content and paired by "
        "rank; of a folder that graphlink wrote, the recordings that it was made from",
    )
    parser.add_argument(
        "--env", action="store_true", help="before recording: what this PyTorch and this environment would not record"
    )


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; 0.

    Raises:
        InputError: there is no such file or folder, it cannot be read, or it is no recording.
        UsageError: nothing to examine was named; files cannot be paired.
    """
    if bool(arguments.what) == arguments.env:
        raise UsageError(
            "name recordings, or give --env",
            todo="graphlink doctor DIR; graphlink doctor --env; see graphlink doctor --help",
        )
    if arguments.env:
        from graphlink.capture.support import support
        from graphlink.doctor.environment import environment_lacking
        from graphlink.doctor.records import Diagnosis, merged

        here = support(os.environ)
        found = Diagnosis(
            subject=[here.versions_line], ranks=[], findings=merged(environment_lacking(here, os.environ))
        )
    else:
        from graphlink.doctor.diagnose import diagnose
        from graphlink.doctor.given import given

        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            found = diagnose(arguments.what, given(arguments.what, Path(folder)))
    tell(arguments.json, found, lambda: text(found))
    return 0


def text(found: Diagnosis) -> list[str | Table]:
    """Return a block per finding: what is lacking, what it costs, what would record it."""
    names, ranks, findings = found.subject, found.ranks, found.findings
    head = f"{first_few(names, 3)}: {f'{_ranks(ranks)}: ' if ranks else ''}"
    if not findings:
        return [f"{head}nothing is missing"]
    counts = Counter(finding.level for finding in findings)
    lines = [head + ", ".join(f"{count} {level}" for level, count in counts.items())]
    return [*lines, *(line for finding in findings for line in _block(finding, ranks))]


def _block(finding: Told, ranks: Sequence[int]) -> list[str | Table]:
    where = f" ({_ranks(finding.ranks)})" if finding.ranks and finding.ranks != ranks else ""
    rows = [("costs", finding.costs), *([("of them", _parts(finding.parts))] if finding.parts else [])]
    rows += [("said", said) for said in finding.told[:MOST_TOLD]]
    if len(finding.told) > MOST_TOLD:
        rows.append(("", f"... ({len(finding.told)} in all)"))
    rows += [("record", finding.record), *([("", "(graphlink.capture does)")] if finding.by_capture else [])]
    return ["", f"{finding.level}: {finding.lacks}{where} [{finding.name}]", Table(rows)]


def _parts(parts: dict[str, int]) -> str:
    listed = ", ".join(f"{count:,} x {name}" for name, count in list(parts.items())[:MOST_PARTS])
    return listed + (f", ... ({len(parts)} names)" if len(parts) > MOST_PARTS else "")


def _ranks(ranks: Sequence[int]) -> str:
    """Format rank numbers as ``ranks 0-3, 6``."""
    import numpy as np

    runs = np.split(ranks, np.flatnonzero(np.diff(ranks) > 1) + 1)
    listed = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
