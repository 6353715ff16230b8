"""The one way of text to stdout and stderr: what a terminal would act on is made visible. Names in recordings are
anybody's.

Reports are lines and tables. On a terminal they wrap at words, and headings are bold; elsewhere each row is a line,
however long.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from graphlink.cli.columns import fitted
from graphlink.errors import OutputError, UsageError
from graphlink.records import plain, visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite
    from rich.console import RenderableType

    from graphlink.records import Table

STDOUT: Final = "-"  # as the FILE of --json
_UNLIMITED: Final = 1 << 30  # columns, where no terminal sets any


class Parser(argparse.ArgumentParser):
    """Reports what is wrong as every other error is reported, without the whole usage before it; prints names that a
    pattern gave, too.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, todo=f"see {self.prog} --help")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        super()._print_message(visible(message), file)


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def complain(text: str) -> None:
    """Print ``text`` on stderr."""
    print(visible(text), file=sys.stderr)


def say(text: str) -> None:
    """Print ``text`` at once. That nobody reads it (``| head``) is no error.

    Raises:
        OutputError: standard output cannot be written, say on a full disk.
    """
    _print(visible(text))


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as problem:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # so that the last flush does not complain once more
        if not isinstance(problem, BrokenPipeError):
            todo = "make room, send it elsewhere, or use --quiet"
            raise OutputError(
                f"cannot be written: {problem.strerror or problem}", path="standard output", todo=todo
            ) from None


def tell(file: str | None, data: object, report: Callable[[], Sequence[str | Table]], *, quiet: bool = False) -> None:
    """Print the ``report`` unless ``quiet``, and write ``data`` to the ``file`` of ``--json``; on ``-`` alone.

    Raises:
        OutputError: either cannot be written.
    """
    if file is not None:
        import msgspec

        encoded = msgspec.json.format(msgspec.json.encode(data), indent=1)
        if file == STDOUT:
            say(encoded.decode())
        else:
            write_file(Path(file), encoded + b"\n", "--json")
    if file != STDOUT and not quiet:
        terminal = sys.stdout.isatty()
        _print(rendered(report(), shutil.get_terminal_size().columns if terminal else None, styled=terminal))


def rendered(report: Sequence[str | Table], width: int | None = None, *, styled: bool = False) -> str:
    """Return lines and tables as text: ``width`` columns wide or as wide as it gets, ``styled`` with the controls of
    this terminal.

    What is in a line or cell is written out as ``plain`` does, and never read as markup.
    """
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width or _UNLIMITED,
        force_terminal=styled,
        color_system="auto" if styled else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        for part in _renderables(report, width):
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().removesuffix("\n").split("\n"))


def _renderables(report: Sequence[str | Table], width: int | None) -> Iterator[RenderableType]:
    """Yield what ``rich`` prints. A line is wrapped to its own indent; one that begins what is below it, a table or
    lines, is a heading.
    """
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    for part, below in zip(report, [*report[1:], ""], strict=True):
        if isinstance(part, str):
            text = plain(part)
            indent = len(text) - len(text.lstrip(" "))
            heads = not indent and (not isinstance(below, str) or below.startswith(" "))
            if not text:
                yield text
                continue
            style = "bold" if heads else "yellow" if text.startswith("warning") else ""
            yield Padding(Text(text[indent:], style), (0, 0, 0, indent), expand=False)
            continue
        shown = replace(part, rows=[[*map(plain, row)] for row in part.rows], head=[*map(plain, part.head)])
        columns = fitted(shown, width)
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(part.head), header_style="dim")
        for column in columns:
            justify: Literal["left", "right"] = "right" if column.right else "left"
            grid.add_column(
                Text(column.head),
                justify=justify,
                width=column.width,
                no_wrap=width is None and column.right,
                overflow="fold",
            )
        for row in zip(*(column.cells for column in columns), strict=True):
            grid.add_row(*map(Text, row))
        yield Padding(grid, (0, 0, 0, part.indent), expand=False)


def write_file(path: Path, data: bytes, option: str) -> None:
    """Write a temporary file in the same folder, and move it in place: what was there is whole, or replaced as a whole.
    A device or pipe is written as it is."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = path.resolve()
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            beside.write_bytes(data)
            if path.exists():
                shutil.copymode(path, beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as problem:
        raise OutputError(
            f"cannot be written: {problem.strerror or problem}", path=path, todo=f"name another file with {option}"
        ) from None


def texts(values: Mapping[str, object]) -> list[str]:
    """Return the texts among the values of arguments, alone and in lists, but empty ones."""
    given = [inner for value in values.values() for inner in (value if isinstance(value, list) else [value])]
    return [inner for inner in given if isinstance(inner, str) and inner]


def refuse_overwriting(arguments: argparse.Namespace, option: str = "json") -> None:
    """Refuse a ``--json FILE``, or the file of another option, that would overwrite what is read, a recording or graph,
    or an output of graphlink in a folder named.

    Raises:
        UsageError: it would, or names no file.
        InputError: what is there already cannot be read.
    """
    from graphlink.output_names import is_own
    from graphlink.publish import HIDDEN
    from graphlink.read.heads import looks_like
    from graphlink.wings import any_of

    given = getattr(arguments, option)
    if given == STDOUT:
        return
    named = [Path(text) for text in texts({**vars(arguments), option: None})]
    file = Path(given).resolve()
    if not given or file.is_dir():
        or_stdout = f", or {STDOUT} for standard output" * (option == "json")
        raise UsageError(f"--{option} {given!r}: names no file", todo=f"name a file to write{or_stdout}")
    above = {path.resolve() for path in named} & {file, *file.parents}
    ours = HIDDEN in file.parts or is_own(file.name) or any_of("is_log", file)
    if file in above or (above and ours) or (file.is_file() and looks_like(file) is not None):
        raise UsageError(
            f"--{option} would overwrite a recording or an output of graphlink", path=given, todo="name another file"
        )
