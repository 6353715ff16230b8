"""The errors in a user's data, and how they are reported.

Every exit status of the command is here. Only ``graphlink.cli`` prints errors and turns them into one.
A bug of ours is an ``assert`` or an ordinary exception.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

INPUT_AT_FAULT, WRONG_USAGE, SOME_RANKS_FAILED, SLOWER, INTERRUPTED, TERMINATED = (
    1,
    2,
    3,
    4,
    130,
    143,
)  # exit statuses; 0 is done
log: Final = logging.getLogger("graphlink")  # for warnings and progress, which ``graphlink.cli`` shows
MOST_CHARACTERS = 400  # of what is reported in a line, not counting the path


class GraphlinkError(Exception):
    """Say in at most five lines what is wrong: file, what is wrong, where in it, what to do next."""

    exit_status = INPUT_AT_FAULT

    def __init__(self, what: str, *, path: str | Path | None = None, where: str | None = None, todo: str | None = None):
        self.what, self.path, self.where, self.todo = what, path, where, todo
        super().__init__(self.text())

    def text(self) -> str:
        """Return the message: what, where and what to do, a line each, long parts cut."""
        what = self.what[:MOST_CHARACTERS]
        lines = [f"{self.path}: {what}" if self.path is not None else what]
        if self.where:
            lines.append(f"  at: {self.where[:MOST_CHARACTERS]}")
        if self.todo:
            lines.append(f"  do: {self.todo[:MOST_CHARACTERS]}")
        return "\n".join(line for text in lines for line in text.splitlines()[:2])


class InputError(GraphlinkError):
    """A file of the user's is missing, broken, of another kind than its flag says, or of another run."""


class SeveralRanks(InputError):
    """A recording holds those of several ranks, which ``graphlink.read.merged`` may take apart."""


class OutputError(GraphlinkError):
    """The output folder is taken, not writable, or full."""


class UsageError(GraphlinkError):
    """The command line asks for something that does not exist or contradicts itself."""

    exit_status = WRONG_USAGE


def bad_value(field: str, value: object, allowed: str) -> UsageError:
    """Return the error of a field of an options record: what it is and what it may be."""
    return UsageError(f"{field}={value!r}: must be {allowed}")
