"""The command line: parses, calls one function, prints, and turns errors into an exit status. Nothing heavy is imported up here."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from graphlink.cli.parser import parse
from graphlink.errors import GraphlinkError

INPUT_AT_FAULT, INTERRUPTED, TERMINATED = 1, 130, 143
MOST_LINES = 5  # of an error message


class _Terminated(BaseException):
    """SIGTERM came: leave as after Ctrl-C, so that nothing is left behind in the output folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``graphlink`` with ``argv`` (default: the process's own) and returns its exit status."""
    try:
        with _sigterm_as_exception():
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
    arguments = parse(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # recorded names hold any text, terminals do not
    if arguments.verb == "show":
        from graphlink.cli.out import say
        from graphlink.cli.show import show

        say(show(arguments))
        return 0
    if arguments.verb == "check":
        from graphlink.cli.check import check

        return check(arguments)
    if arguments.verb == "replay":
        from graphlink.cli.replay import replay

        return replay(arguments)
    if arguments.verb == "critical-path":
        from graphlink.cli.critical import critical
        from graphlink.cli.out import say

        say(critical(arguments))
        return 0
    if arguments.verb == "bubbles":
        from graphlink.cli.bubbles import bubbles
        from graphlink.cli.out import say

        say(bubbles(arguments))
        return 0
    if arguments.verb == "doctor":
        from graphlink.cli.doctor import doctor

        return doctor(arguments)
    if arguments.verb == "astra":
        from graphlink.cli.astra import astra

        return astra(arguments)
    from graphlink.cli.job import join, link

    return join(arguments) if arguments.verb == "join" else link(arguments)


def _fail(text: str, status: int) -> int:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    lines = text.splitlines()[:MOST_LINES]
    print("graphlink: " + "\n".join(lines), file=sys.stderr)
    return status


@contextlib.contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
