"""What is printed on stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from graphlink.errors import OutputError

STDOUT: Final = "-"  # as the FILE of --json


def say(text: str) -> None:
    """Prints ``text`` at once. That nobody reads it (``| head``) is no error.

    Raises:
        OutputError: standard output cannot be written, say on a full disk.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _drop_output()
    except OSError as problem:
        _drop_output()
        raise OutputError(
            f"cannot be written: {problem.strerror or problem}", path="standard output", todo="make room, send it elsewhere, or use --quiet"
        ) from None


def put(data: bytes, file: str) -> None:
    """Writes what ``--json FILE`` asks for: text as UTF-8 without its last line break, on standard output where the file is ``-``.

    Raises:
        OutputError: it cannot be written.
    """
    from graphlink.emit import publish

    if file == STDOUT:
        say(data.decode())
    else:
        publish.write(Path(file), data + b"\n")


def _drop_output() -> None:
    """Keeps the interpreter from complaining once more when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
