"""What is shown on stderr while a job runs."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from graphlink.cli.out import reporting

log = logging.getLogger("graphlink")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest puts its own stderr in place after those."""
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("COLUMNS", "20")
    return out


def test_a_terminal_has_one_line_that_changes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with reporting(quiet=False, verbose=False):
        log.info("reading %s", "a\x1b[2J\nb")
        log.info("x" * 50)
        shown = terminal.getvalue()
    assert shown == "\r\x1b[Kreading a\\x1b[2J b"[: 4 + 19] + "\r\x1b[K" + "x" * 19
    assert terminal.getvalue() == shown + "\r\x1b[K"


@pytest.mark.parametrize(("quiet", "verbose", "lines"), [(True, False, 0), (False, True, 1)])
def test_quiet_says_nothing_and_verbose_a_line_a_stage(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, verbose: bool, lines: int
) -> None:
    terminal = on_terminal(monkeypatch)
    before = log.level, log.propagate, [*log.handlers]
    with reporting(quiet=quiet, verbose=verbose):
        log.info("linking")
    assert terminal.getvalue().count("linking\n") == lines and "\r" not in terminal.getvalue()
    assert (log.level, log.propagate, log.handlers) == before
