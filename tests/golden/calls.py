"""Calls of the command line in this process, as a terminal of some width or a pipe would see them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_SETTINGS = {"TERM": "xterm-256color", "OPENBLAS_NUM_THREADS": "1"}
_UNSET = ("COLUMNS", "LINES", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "ASTRA_SIM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    def text(self) -> str:
        """Return all of it as one text."""
        err = f"--- stderr\n{self.err}" if self.err else ""
        return f"{self.out}{err}--- status {self.status}\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def call(argv: Sequence[str], width: int | None = None) -> Ran:
    """Run ``graphlink argv``; a ``width`` makes stdout a terminal of so many columns."""
    from graphlink.cli import main

    out, err = io.StringIO() if width is None else _Terminal(), io.StringIO()
    os.environ["COLUMNS"] = str(width or 80)  # --help is as wide as this, also in a pipe
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            status = main(list(argv))
        except SystemExit as left:  # argparse: --help, wrong options
            status = left.code if isinstance(left.code, int) else int(left.code is not None)
    return Ran(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in ``folder``, with an environment that changes no output."""
    before, environment = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    for name in _UNSET:
        os.environ.pop(name, None)
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def prefer_pythonpath() -> None:
    """Put the folders of ``PYTHONPATH`` before the working folder, which ``python -m`` puts first."""
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
