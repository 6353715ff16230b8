"""One window with all that is around it: a place for the ranks to begin together, other recorders, files, time spent,
the report.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphlink.capture.files import put, writable
from graphlink.capture.hooks import DEFAULT, HOOKS, Did, Hook, resume
from graphlink.capture.place import Meeting, WorldRank, here, meet
from graphlink.capture.support import Support, support
from graphlink.capture.window import Window
from graphlink.errors import GraphlinkError
from graphlink.version import __version__

_running: list[Recording] = []  # at most one: PyTorch has one profiler and one observer a process
_windows = itertools.count()  # the same on all ranks, which all come to their windows in one order


@dataclass(frozen=True, slots=True)
class Report:
    """A report of what a window recorded and what it cost; ``write`` leaves it as ``capture.<rank>.json`` next to the
    recording.

    ``spent_ns``: time that training stood still, by what for: prepare, together (waiting for other ranks), start, stop,
    write. ``bare_ns``: what steps took of which nothing was recorded: up to eight ``before`` the window, but for the
    first of all, and ``after`` it.
    """

    folder: Path
    place: WorldRank
    steps: tuple[int, ...]  # begun and not cut by another profiler, as numbered in the ranges ProfilerStep#N
    ended: str  # by what: the schedule, stop, or what cut it short
    bytes: dict[str, int]  # by file name
    spent_ns: dict[str, int]
    settings: dict[str, Any]  # of PyTorch's profiler
    together: Meeting | None
    hooks: tuple[Did, ...]
    warnings: tuple[str, ...]
    support: Support
    bare_ns: dict[str, list[int]]

    def line(self) -> str:
        """Describe the recording in a line: ``rank 0: steps 2 to 4 in out, 1.2 MB; training stood still for 0.123 s
        (prepare 0.100, start 0.023)``"""
        first, last = ("none", "none") if not self.steps else (self.steps[0], self.steps[-1])
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        parts = ", ".join(f"{name} {ns / 1e9:.3f}" for name, ns in self.spent_ns.items())
        still_s, size_mb = sum(self.spent_ns.values()) / 1e9, sum(self.bytes.values()) / 1e6
        return (
            f"rank {self.place.rank}: {steps} in {self.folder}, {size_mb:.1f} MB; training stood still for "
            f"{still_s:.3f} s ({parts})"
        )

    def write(self) -> None:
        """Write the recording; raise OSError where it cannot be written."""
        text = json.dumps({"graphlink_capture": __version__, **asdict(self)}, indent=1, default=str) + "\n"
        put(self.folder / f"capture.{self.place.rank}.json", lambda part: part.write_text(text, encoding="utf-8"))


class Recording:
    """``warnings``: what went wrong and did not end it. Whatever else fails is raised; ``abandon`` then leaves nothing
    running.

    ``hooks``: names; where None are asked for, those that are there are taken, and it is no news that others are not.
    """

    def __init__(
        self,
        folder: Path,
        hooks: Sequence[str] | None,
        window: Window,
        *,
        execution_trace: bool,
        sync_timeout_s: float | None,
    ):
        self.folder = folder
        self.window = window
        self.warnings: list[str] = []
        self.together: Meeting | None = None
        self._number = next(_windows)
        self._asked, self._sync_timeout_s = hooks, sync_timeout_s
        self._hooks: dict[str, Hook] = {}
        self._did: list[Did] = []
        self._execution_trace = execution_trace
        self._spent_ns: dict[str, int] = {}
        self.bare_ns: dict[str, list[int]] = {"before": [], "after": []}
        self._place: WorldRank | None = None

    def prepare(self) -> None:
        if _running:
            raise GraphlinkError(
                "another recording of this process is not over", path=_running[0].folder, todo="stop and dump it first"
            )
        _running.append(self)
        with self._spending("prepare"):
            self.window.prepare()

    def open(self, step: int) -> None:
        """Begin to record, with all other ranks. The last that happens before it is that they meet."""
        with self._spending("start"):
            self._place = place = here()
            writable(self.folder)
            if self._execution_trace:
                with self._warning("no execution trace", RuntimeError, OSError, GraphlinkError):
                    self.window.register(self.folder / f"et_{place.rank}.json")
            self._hooks = {name: HOOKS[name](self.folder) for name in (DEFAULT if self._asked is None else self._asked)}
            self._resume_hooks("find")
            self._resume_hooks("start")
            self.window.drain()
        if self._sync_timeout_s is not None:
            with self._spending("together"):
                self._meet(place, self._sync_timeout_s)
        with self._spending("start"):
            self.window.open()
            self.window.begin_step(step)

    def close(self) -> None:
        with self._spending("stop"):
            self.window.close()
            self._resume_hooks("stop")

    def write(self, ended: str) -> Report | None:
        """Write what a window that was closed recorded; None of one that was never open."""
        self._release()
        place, window = self._place, self.window
        if place is None or not window.started:
            return None
        place = here() if not place.told_by else place  # the process group may have come since
        self._find_older(place)
        with self._spending("write"):
            sizes = window.write(self.folder / f"kineto_{place.rank}.json", self.folder / f"et_{place.rank}.json")
            self._resume_hooks("dump", place.rank)
            supported = support()
        failed = [did for did in self._did if not did.ok and (self._asked is not None or did.action != "find")]
        self.warnings += [*window.trouble, *(f"hook {did.hook}: {did.action}: {did.outcome}" for did in failed)]
        report = Report(
            folder=self.folder,
            place=place,
            steps=tuple(window.steps),
            ended=ended,
            bytes=sizes,
            spent_ns=self._spent_ns,
            settings=window.settings,
            together=self.together,
            hooks=tuple(self._did),
            warnings=tuple(self.warnings),
            support=supported,
            bare_ns=self.bare_ns,
        )
        with self._warning("no report", OSError, GraphlinkError):
            report.write()
        return report

    def abandon(self) -> None:
        """Leave nothing running behind a failure; nothing is raised."""
        for undo in (self._release, self.window.drop, functools.partial(self._resume_hooks, "stop")):
            with contextlib.suppress(Exception):
                undo()

    def _resume_hooks(self, action: str, rank: int | None = None) -> None:
        """Have the hooks do ``action``, once."""
        if not any(did.action == action for did in self._did):
            self._did += resume(self._hooks, action, rank)

    def _release(self) -> None:
        if self in _running:
            _running.remove(self)

    def _meet(self, place: WorldRank, timeout_s: float) -> None:
        with self._warning("ranks do not begin together", RuntimeError):
            self.together = meet(place, timeout_s, self._number)
        if self.together is not None and self.together.missing:
            ranks = ", ".join(map(str, self.together.missing))
            self.warnings.append(f"ranks do not begin together: after {timeout_s:g} s, not there: {ranks}")

    def _find_older(self, place: WorldRank) -> None:
        """Warn of ranks that this run does not have: they were left by another, and would be read as of this one."""
        numbers = [path.stem.removeprefix("kineto_") for path in self.folder.glob("kineto_*.json")]
        world = place.world_size or (1 << 31 if place.told_by else 1)
        older = [int(number) for number in numbers if number.isdigit() and int(number) >= world]
        if older:
            self.warnings.append(
                f"{self.folder} holds ranks of another run, as {min(older)}: record into a folder of its own"
            )

    @contextlib.contextmanager
    def _warning(self, what: str, *errors: type[Exception]) -> Iterator[None]:
        """Go on after one of the ``errors``, with a warning."""
        try:
            yield
        except errors as error:
            self.warnings.append(f"{what}: {error}")

    @contextlib.contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self._spent_ns[what] = self._spent_ns.get(what, 0) + time.perf_counter_ns() - began


def _in_child() -> None:
    for one in _running:
        with contextlib.suppress(Exception):
            one.window.leave_to_parent()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
