"""Progress on stderr while a job runs: a line per stage with -v, one changing line on a terminal, else nothing."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Iterator

from graphlink.cli.out import Formatter
from graphlink.records import plain


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
    log = logging.getLogger("graphlink")
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
