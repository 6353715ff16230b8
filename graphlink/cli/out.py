"""The one way of text to stdout and stderr: what a terminal would act on is made visible. Names in recordings are
anybody's.

Reports are lines and tables. On a terminal they wrap at words, and headings are bold; elsewhere each row is a line,
however long.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from graphlink.errors import OutputError, UsageError, log
from graphlink.records import Table, plain, visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite
    from rich.console import RenderableType

STDOUT: Final = "-"  # as the FILE of --json
_UNLIMITED: Final = 1 << 30  # columns, where no terminal sets any
_SPACE: Final = 2  # between columns
_WORD: Final = (
    24  # a text column is no narrower than its longest word, but for longer ones: names in recordings run over hundreds
)
_LOST: Final = "..."
_NARROW: Final = 8  # where even so there is no room


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


def tell(
    file: str | None,
    data: object,
    report: Callable[[], Sequence[str | Table]],
    *,
    quiet: bool = False,
    most: int | None = None,
) -> None:
    """Print the ``report`` unless ``quiet``, and write ``data`` to the ``file`` of ``--json``; on ``-`` alone. It is as
    wide as the terminal, elsewhere as it gets, and no wider than ``most`` columns.

    Raises:
        OutputError: either cannot be written.
    """
    if file is not None:
        from graphlink.publish import as_json

        encoded = as_json(data)
        if file == STDOUT:
            say(encoded.decode())
        else:
            write_file(Path(file), encoded + b"\n", "--json")
    if file != STDOUT and not quiet:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if terminal else None
        _print(rendered(report(), min(width or most, most) if most else width, styled=terminal))


def rendered(report: Sequence[str | Table], width: int | None = None, *, styled: bool = False) -> str:
    """Return lines and tables as text: ``width`` columns wide or as wide as it gets, ``styled`` with the controls of
    this terminal.

    What is in a line or cell is written out as ``plain`` does, and never read as markup.
    """
    from rich.console import Console
    from rich.text import Text

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
            console.print(part, soft_wrap=isinstance(part, Text))  # a command is broken by the terminal alone
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
            style = "bold" if heads else "yellow" if text.startswith("warning") else ""
            padded = Padding(Text(text[indent:], style), (0, 0, 0, indent), expand=False)
            yield padded if text and not text.startswith("graphlink ", indent) else Text(text)
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
    """Write a file as ``publish.write_anew`` does.

    Raises:
        OutputError: it cannot be written.
    """
    from graphlink.publish import naming, write_anew

    with naming(path, todo=f"name another file with {option}"):
        write_anew(path, data)


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it is shown. ``width``: in cells of the terminal, None where all fits."""

    head: str
    cells: tuple[str, ...]
    right: bool
    width: int | None = None


def fitted(table: Table, width: int | None) -> list[Column]:
    """Return the columns of a table whose text is plain and that is ``width`` wide, indent included; None: as wide as
    it gets.

    Where it is too narrow, text columns wrap, the widest first; before one would be narrower than its words, columns
    that are ``spare`` are left out. Words that are still too long lose their middle, and columns for which there is no
    room at all are left out, the last one first.
    """
    count = max(map(len, [table.head, *table.rows]))
    heads, *rows = (
        [*(cell.rstrip(" ") for cell in row), *[""] * (count - len(row))] for row in (table.head, *table.rows)
    )
    sides = table.align.ljust(count, "<")
    columns = [Column(head, tuple(row[k] for row in rows), sides[k] == ">") for k, head in enumerate(heads)]
    if width is None:
        return columns
    room = width - table.indent
    for name in table.spare:
        if _taken([_least(column) for column in columns]) > room:
            columns = [column for column in columns if column.head != name]
    while len(columns) > 2 and _taken([_least(column, _NARROW) for column in columns]) > room:
        columns.pop()
    widths = [_cells((column.head, *column.cells)) for column in columns]
    for least in ([_least(column) for column in columns], [_least(column, _NARROW) for column in columns]):
        _narrow(widths, least, room)
    return [_as_wide(column, wide) for column, wide in zip(columns, widths, strict=True)]


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _SPACE * (len(widths) - 1)


def _least(column: Column, most: int = _WORD) -> int:
    """Return the least width of a column: of numbers all, of text its longest word."""
    words = [word for text in (column.head, *(() if column.right else column.cells)) for word in _words(text)]
    text = min(_cells(words), max(most, _cells(column.head.split(" "))))
    return max(text, _cells(column.cells)) if column.right else text


def _words(text: str) -> list[str]:
    """Return what a line may be broken between; an indent belongs to its first word."""
    body = text.lstrip(" ")
    first, *others = body.split(" ")
    return [text[: len(text) - len(body)] + first, *others]


def _cells(texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _narrow(widths: list[int], least: Sequence[int], room: int) -> None:
    """Take from the widest columns, in place, what is too much, down to the least widths."""
    while (more := _taken(widths) - room) > 0:
        some = [k for k, wide in enumerate(widths) if wide > least[k]]
        if not some:
            return
        widest = max(some, key=widths.__getitem__)
        others = max((widths[k] for k in some if k != widest), default=0)
        widths[widest] -= min(more, max(widths[widest] - max(others, least[widest]), 1))


def _as_wide(column: Column, wide: int) -> Column:
    """Return a column with its width, and without the middle of words that are longer."""
    return replace(
        column, cells=tuple(" ".join(_cut(word, wide) for word in _words(text)) for text in column.cells), width=wide
    )


def _cut(word: str, wide: int) -> str:
    """Return the two ends of a word that is too long."""
    if _cells((word,)) <= wide:
        return word
    for kept in range(wide - len(_LOST), 0, -1):  # fewer where characters are two cells wide
        head = kept - kept // 3
        text = word[:head] + _LOST + word[len(word) - (kept - head) :]
        if _cells((text,)) <= wide:
            return text
    return _LOST


class _OneLine(logging.Handler):
    """Shows the newest message in place of the one before."""

    def emit(self, record: logging.LogRecord) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write("\r\x1b[K" + plain(record.getMessage().replace("\n", " "))[:width])
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
        super().close()


@contextlib.contextmanager
def reporting(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Send the log of ``graphlink`` to stderr as the options say, for as long as the job runs."""
    handler: logging.Handler
    if verbose:
        handler, level = logging.StreamHandler(sys.stderr), logging.INFO
        handler.setFormatter(Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    elif not quiet and sys.stderr.isatty():
        handler, level = _OneLine(), logging.INFO
    else:
        handler, level = logging.NullHandler(), logging.WARNING
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.level, log.propagate = before
