"""What arguments of the command line name: numbers and choices, for ``argparse``; the folder of a run, and the files
that it wrote for each of its ranks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from graphlink.choices import CHOICES, MOST_GB_PER_S, Option
from graphlink.errors import InputError
from graphlink.output_names import SUMMARY
from graphlink.records import first_few


def count(text: str) -> int:
    """Return a whole number from 0."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0")
    return int(text)


def at_least_one(text: str) -> int:
    """Return a whole number from 1."""
    number = count(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def between(least: float, most: float, what: str, unit: str = "") -> Callable[[str], float]:
    """Return a function that parses a number from ``least`` to below ``most``, which may have its ``unit`` behind it;
    ``what`` names it in the error.
    """

    def number(text: str) -> float:
        try:
            value = float(text.removesuffix(unit))
        except ValueError:
            value = math.nan
        if not least <= value < most:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
        return value

    return number


gigabytes_per_s: Final = between(1e-6, MOST_GB_PER_S, "bandwidth in GB/s")
latency_ns: Final = between(0, 1e9, "time in ns")


RUN_DIR: Final = Option("dir", metavar="DIR", help="output folder of an earlier run")
WHOLE_RUN_DIR: Final = Option(
    "dir", metavar="DIR", help="output folder of an earlier run, with the graphs of all its ranks"
)


def flag(*names: str, **settings: Any) -> Option:
    """Return an option that takes no value: it is given, or it is not."""
    return Option(*names, action="store_true", **settings)


def choice(name: str, help_text: str) -> Option:
    """Return an option of ``CHOICES``, without which the first of them holds."""
    words = CHOICES[name]
    return Option(f"--{name.replace('_', '-')}", choices=words, default=words[0], help=help_text)


def run_folder(name: str) -> Path:
    """Return the folder of that name.

    Raises:
        InputError: there is none.
    """
    folder = Path(name)
    if not folder.is_dir():
        from graphlink.report.summary import todo_run

        what = "is no folder" if folder.exists() else "there is no such folder"
        raise InputError(what, path=folder, todo=todo_run(folder))
    return folder


def rank_files(folder: Path, stem: str, rank: int | None) -> dict[int, Path]:
    """Return ``<stem>.<rank>.json`` of each rank, ascending; with ``rank`` only of that one.

    Raises:
        InputError: there is none, or none of that rank.
    """
    files = {
        int(number): path for path in folder.glob(f"{stem}.*.json") if (number := path.name.split(".")[1]).isdecimal()
    }
    if files and rank not in (None, *files):
        there = first_few(sorted(files), 8)
        raise InputError(
            f"holds no {stem}.<rank>.json of rank {rank}, but of {there}", path=folder, todo="name one of these ranks"
        )
    if rank is not None:
        files = {one: path for one, path in files.items() if one == rank}
    if not files:
        from graphlink.read.document import refuse_made
        from graphlink.report.summary import todo_run

        refuse_made(folder / SUMMARY)
        raise InputError(f"holds no {stem}.<rank>.json", path=folder, todo=todo_run(folder))
    return dict(sorted(files.items()))
