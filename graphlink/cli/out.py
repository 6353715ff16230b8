"""The one way of text to stdout and stderr: what a terminal would act on is made visible. Names in recordings are anybody's."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from graphlink.errors import OutputError, UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

STDOUT: Final = "-"  # as the FILE of --json


def visible(text: str) -> str:
    """``text`` with everything but line breaks that is not printable written out: ``\\x1b``, ``\\u202e``. JSON stays the same JSON.

    Controls of ASCII are not in JSON; the others are written as JSON does, in UTF-16.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _written_out(c) for c in text)


def plain(text: str) -> str:
    """``visible`` on one line."""
    return visible(text).replace("\n", "\\n")


def _written_out(character: str) -> str:
    if character < "\x20":
        return f"\\x{ord(character):02x}"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[k : k + 4]}" for k in range(0, len(units), 4))


class Parser(argparse.ArgumentParser):
    """Says what is wrong as every other error is said, without the whole usage before it; prints names that a pattern gave, too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, todo=f"see {self.prog} --help")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        super()._print_message(visible(message), file)


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def complain(text: str) -> None:
    """Prints ``text`` on stderr."""
    print(visible(text), file=sys.stderr)


def say(text: str) -> None:
    """Prints ``text`` at once. That nobody reads it (``| head``) is no error.

    Raises:
        OutputError: standard output cannot be written, say on a full disk.
    """
    try:
        print(visible(text), flush=True)
    except BrokenPipeError:
        _drop_output()
    except OSError as problem:
        _drop_output()
        raise OutputError(
            f"cannot be written: {problem.strerror or problem}", path="standard output", todo="make room, send it elsewhere, or use --quiet"
        ) from None


def tell(file: str | None, data: object, text: Callable[[], str], *, quiet: bool = False) -> None:
    """Prints ``text`` unless ``quiet``, and writes ``data`` to the ``file`` of ``--json``; for ``-`` on standard output, and then no text.

    Raises:
        OutputError: either cannot be written.
    """
    if file is not None:
        import msgspec

        encoded = msgspec.json.format(msgspec.json.encode(data), indent=1)
        if file == STDOUT:
            say(encoded.decode())
        else:
            _write(Path(file), encoded + b"\n")
    if file != STDOUT and not quiet:
        say(text())


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as problem:
        raise OutputError(f"cannot be written: {problem.strerror or problem}", path=path, todo="name another file with --json") from None


def refuse_overwriting(arguments: argparse.Namespace) -> None:
    """Refuses a ``--json FILE`` that would overwrite what is read, a recording or graph, or an output of graphlink in a folder named.

    Raises:
        UsageError: it would, or names no file.
        InputError: what is there already cannot be read.
    """
    from graphlink.pipeline.paddle.logs import is_worker_log
    from graphlink.publish import HIDDEN, is_own
    from graphlink.read.looks import looks_like

    if arguments.json == STDOUT:
        return
    given = [value if isinstance(value, list) else [value] for name, value in vars(arguments).items() if name != "json"]
    named = [Path(value) for values in given for value in values if isinstance(value, str) and value]
    file = Path(arguments.json).resolve()
    if not arguments.json or file.is_dir():
        raise UsageError(f"--json {arguments.json!r}: names no file", todo="name a file to write, or - for standard output")
    above = {path.resolve() for path in named} & {file, *file.parents}
    ours = HIDDEN in file.parts or is_own(file.name) or is_worker_log(file)
    if (file in above and file.exists()) or (above and ours) or (file.is_file() and looks_like(file) is not None):
        raise UsageError("--json would overwrite a recording or an output of graphlink", path=arguments.json, todo="name another file")


def _drop_output() -> None:
    """Keeps the interpreter from complaining once more when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
