"""What graphlink writes and prints on small recordings is what the dumps in git say, to the line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.golden.make import CASES, DUMPS, differences

WORDED = (3, 11)  # the Python in whose words argparse's help and errors are kept


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_in_git(case: str, tmp_path: Path) -> None:
    """If a change is meant: ``make golden``, look at the diff, and say why in the commit message."""
    if case in ("help", "errors") and sys.version_info[:2] != WORDED:
        pytest.skip(
            f"argparse of Python {sys.version_info[0]}.{sys.version_info[1]} words help and errors in its own way"
        )
    found = differences(case, tmp_path)
    assert not found, "\n".join([f"{len(found)} outputs differ:", *found[:20]])


def test_dumps_are_of_cases_and_small() -> None:
    assert {folder.name for folder in DUMPS.iterdir()} == set(CASES)
    assert sum(file.stat().st_size for file in DUMPS.rglob("*") if file.is_file()) < 3_000_000
