"""The command line: parses, calls one function, prints, and turns errors into an exit status. Nothing heavy is imported
up here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from graphlink.cli.out import complain, refuse_overwriting, texts
from graphlink.cli.parser import SHORT_HELP, parse
from graphlink.errors import INPUT_AT_FAULT, INTERRUPTED, TERMINATED, WRONG_USAGE, GraphlinkError

MOST_LINES = 5  # of an error message


_ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class _Terminated(BaseException):
    """SIGTERM or SIGHUP came: leave as after Ctrl-C, so that nothing is left behind in the output folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``graphlink`` with ``argv`` (default: the process's own) and return its exit status."""
    try:
        with _ending_as_exception():
            return _run(sys.argv[1:] if argv is None else argv)
    except GraphlinkError as problem:
        return _fail(problem.text(), problem.exit_status)
    except MemoryError:
        return _fail("out of memory\n  do: use a machine with more", INPUT_AT_FAULT)
    except OSError as problem:  # of our own output: inputs and --out have errors of their own
        return _fail(str(problem), INPUT_AT_FAULT)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except _Terminated:
        return _fail("terminated", TERMINATED)


def _run(argv: Sequence[str]) -> int:
    if not argv:
        complain(SHORT_HELP)
        return WRONG_USAGE  # as of a command that names nothing: a script whose list of files is empty must not go on
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # numpy would start threads for linear algebra, of which there is none
    arguments = parse(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # recorded names hold any text, terminals do not
    _settle(arguments)
    if arguments.json is not None:
        refuse_overwriting(arguments)
    return int(arguments.run(arguments))


def _settle(arguments: argparse.Namespace) -> None:
    """Settle outputs of killed runs: whatever folder or file of graphlink the arguments name is read as it was before,
    or is after, a run that was killed.

    Raises:
        OutputError: as ``publish.settle``.
    """
    names = list(map(Path, texts(vars(arguments))))
    for folder in dict.fromkeys(folder for name in names for folder in (name, name.parent)):
        if os.path.isdir(folder / ".graphlink"):  # noqa: PTH112 - False, where Path.is_dir raises, for what is no name
            from graphlink.publish import settle

            settle(folder)


def _fail(text: str, status: int) -> int:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    complain("graphlink: " + "\n".join(text.splitlines()[:MOST_LINES]))
    return status


@contextlib.contextmanager
def _ending_as_exception() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    # what is ignored, as SIGHUP below nohup, stays so
    before = {number: now for number in _ENDING if (now := signal.getsignal(number)) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
