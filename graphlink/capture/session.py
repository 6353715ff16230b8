"""A capture: what the training loop calls. Whatever happens in here, the training goes on."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from graphlink.capture.files import writable
from graphlink.capture.hooks import check_names
from graphlink.capture.recording import Recording, Report
from graphlink.capture.window import Window, arm
from graphlink.errors import UsageError

log = logging.getLogger("graphlink.capture")
NEVER = sys.maxsize


class Phase(IntEnum):
    """The phase of a step. Values are those of ``torch.profiler.ProfilerAction``."""

    OFF = 0
    WARMUP = 1  # the profiler is made ready, so that the first recorded step does not pay for it
    RECORD = 2
    LAST = 3  # recorded, and written at its end


@dataclass(frozen=True, slots=True)
class Schedule:
    """Choose steps: ``wait`` off, ``warmup`` while the profiler is made ready, ``active`` recorded; ``repeat`` times, 0
    = for ever.

    Examples:
        >>> [Schedule(wait=1, warmup=1, active=2)(step).name for step in range(5)]
        ['OFF', 'WARMUP', 'RECORD', 'LAST', 'OFF']
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1

    def __post_init__(self) -> None:
        if self.active < 1 or min(self.wait, self.warmup, self.repeat) < 0:
            raise UsageError(f"{self} is no schedule", todo="give active=1 or more, and no negative number")

    def __call__(self, step: int) -> Phase:
        length = self.wait + self.warmup + self.active
        cycle, at = divmod(step, length)
        if (self.repeat and cycle >= self.repeat) or at < self.wait:
            return Phase.OFF
        if at < self.wait + self.warmup:
            return Phase.WARMUP
        return Phase.LAST if at == length - 1 else Phase.RECORD


def schedule_of(steps: int | None, schedule: Callable[[int], Any] | None) -> Callable[[int], Phase]:
    """Return a schedule. ``steps``: as many after one that is left out and one of warm-up; ``schedule``: ours, or of
    ``torch.profiler.schedule``."""
    if steps is not None and schedule is not None:
        raise UsageError("steps and schedule both say what to record", todo="give one of them")
    if steps is not None:
        return Schedule(active=steps)
    if schedule is None:
        return Schedule(wait=0, warmup=0, active=NEVER)  # every step, until capture is stopped
    if isinstance(schedule, Schedule):
        return schedule
    return lambda step: Phase(min(int(getattr(action := schedule(step), "value", action)), Phase.LAST))


RECORDS = (Phase.RECORD, Phase.LAST)
_SYNC_S: Final = 60.0
_BARE: Final = 8  # steps without a recorder of which the times are kept, before a window and behind it
_windows: dict[Path, int] = {}  # begun in a folder by this process


class Capture:
    """Record into ``folder``, the same on all ranks, while it is a context, or from ``start`` to ``stop``.

    Args:
        folder: Where the recordings go.
        steps: How many steps are recorded, after one that is left out and one for the profiler to warm up.
        schedule: Which steps, instead: a ``graphlink.capture.Schedule``, or one of ``torch.profiler.schedule``. Without
            either all are.
        execution_trace: Without it host ops are slowed down far less, and what only that file has is missing.
        stacks: Python stacks are recorded too, so that lines of the program can be named. Steps get slower.
        sync: Ranks begin together, and wait for each other at most 60 s, or as many s as it says; False: they do not.
        hooks: Recorders to start and stop with it, by name; by default those that are there.
        cuspy: PyTorch's own recorder of CUDA records the GPU in place of Kineto, where this PyTorch has it (2.15).

    Attributes:
        reports: One for each window that was written.

    Raises:
        UsageError: an argument is wrong. Any other failure is logged, once, and ends the recording, never the training.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        steps: int | None = None,
        schedule: Callable[[int], Any] | None = None,
        execution_trace: bool = True,
        stacks: bool = False,
        sync: bool | float = True,
        hooks: Sequence[str] | None = None,
        cuspy: bool = False,
    ):
        self.folder = Path(folder)
        with contextlib.suppress(OSError):  # of a working directory that is gone: what is written there will say so
            self.folder = self.folder.absolute()
        self.reports: list[Report] = []
        self._phase_of = schedule_of(steps, schedule)
        self._execution_trace, self._stacks, self._cuspy = execution_trace, stacks, cuspy
        self._sync_timeout_s = _SYNC_S if sync is True else sync or None
        self._hooks = None if hooks is None else check_names(hooks)
        self._on = False
        self._step = 0
        self._phase = Phase.OFF
        self._recording: Recording | None = None  # ready, open, or closed and not yet written
        self._ended = ""
        self._said: set[str] = set()
        self._began_ns = 0  # the step that is made, where one was before
        self._bare_ns: deque[int] = deque(maxlen=_BARE)
        self._pid = 0
        self._handler: Any = None

    def __enter__(self) -> Capture:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._safely(self._finish, f"{kind.__name__} in the step" if kind else "the end of the block")
        if not self.reports and not self._said:
            text = f"nothing was recorded: the schedule asks for later steps than the {self._step} that were made"
            self._safely(self._warn, text)

    def start(self) -> Capture:
        """Begin with the schedule's step 0, or the recording at once. What an earlier start recorded is written
        first.
        """
        if os.getpid() != self._pid:  # what is on is of the process that this one was forked from
            self._on, self._phase, self._recording, self._pid = False, Phase.OFF, None, os.getpid()
        if not self._on:
            self._safely(self._start)
        return self

    def step(self) -> None:
        """Note that a training step is over."""
        if self._on:
            if self._phase is Phase.OFF and self._began_ns:
                self._bare_ns.append(time.perf_counter_ns() - self._began_ns)
                if len(self._bare_ns) == _BARE and self.reports:
                    self._safely(self._tell_bare)
            self._step += 1
            self._safely(self._move)
            self._began_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """End the recording. Nothing is written yet: ``dump`` does, when the training has time for it."""
        self._safely(self._stop, "stop")

    def dump(self) -> list[Report]:
        """Write what was recorded, and end the recording if it is on. Returns the reports of all windows so far."""
        self._safely(self._finish, "dump")
        return self.reports

    def _start(self) -> None:
        self._finish("dump")
        _speak()
        self._on, self._step, self._began_ns = True, 0, 0
        self._bare_ns.clear()
        atexit.register(self._at_exit)
        if self._cuspy:
            arm()
        writable(self.folder)
        self._move()

    def _move(self) -> None:
        """Move from the last step's phase to this one's."""
        before, phase = self._phase, self._phase_of(self._step)
        self._phase = phase
        recording = before in RECORDS
        if recording and (before is Phase.LAST or phase not in RECORDS):
            self._close("the schedule")
            self._write()
            recording = False
        if recording:
            self._ready().window.begin_step(self._step)
        elif phase in RECORDS:
            self._tell_bare()
            self._ready().bare_ns["before"], self._bare_ns = [*self._bare_ns], deque(maxlen=_BARE)
            self._ready().open(self._step)
            self._catch_termination()
            together = self._ready().together
            if together is not None and together.missing:
                self._sync_timeout_s = None  # ranks for which it waited did not come
        elif phase is Phase.WARMUP:
            self._ready()

    def _ready(self) -> Recording:
        if self._recording is None:
            count = _windows[self.folder] = _windows.get(self.folder, 0) + 1
            folder = self.folder if count == 1 else self.folder / f"window_{count}"
            window = Window(stacks=self._stacks, cuspy=self._cuspy)
            self._recording = Recording(
                folder, self._hooks, window, execution_trace=self._execution_trace, sync_timeout_s=self._sync_timeout_s
            )
            self._recording.prepare()
        return self._recording

    def _close(self, ended: str) -> None:
        self._release_termination()
        if self._recording is not None:
            self._ended = self._recording.window.ended or ended
            self._recording.close()

    def _write(self) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        report = recording.write(self._ended)
        for warning in recording.warnings:
            self._warn(warning)
        if report is not None:
            self.reports.append(report)
            log.log(logging.INFO if report.place.rank == 0 else logging.DEBUG, report.line())

    def _tell_bare(self) -> None:
        """Add steps that were made behind the last window to its report, once."""
        if self.reports and self._bare_ns and not self.reports[-1].bare_ns["after"]:
            bare_ns = self.reports[-1].bare_ns | {"after": [*self._bare_ns]}
            self.reports[-1] = replace(self.reports[-1], bare_ns=bare_ns)
            self.reports[-1].write()

    def _stop(self, ended: str) -> None:
        if self._on:
            self._on, self._phase = False, Phase.OFF
            self._close(ended)

    def _finish(self, ended: str) -> None:
        """Write what was recorded; end the recording if it is on."""
        atexit.unregister(self._at_exit)
        self._stop(ended)
        self._write()
        self._tell_bare()

    def _safely(self, action: Callable[..., None], *arguments: str) -> None:
        """Run an action. What fails ends the recording and is logged; it never reaches the training."""
        if os.getpid() != self._pid:  # forked while it recorded
            return
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001  the training is worth more than its recording, whatever the error
            self._on, self._phase = False, Phase.OFF
            recording, self._recording = self._recording, None
            with contextlib.suppress(Exception):
                self._release_termination()
            if recording is not None:
                recording.abandon()
            with contextlib.suppress(Exception):  # of a handler of the program's
                self._warn(f"the recording is off: {error or type(error).__name__}")

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning(text)

    def _at_exit(self) -> None:
        self._safely(self._finish, "the end of the program")

    def _catch_termination(self) -> None:
        """Catch SIGTERM: while the window is open, SIGTERM first writes what was recorded."""
        current = signal.getsignal(signal.SIGTERM)
        if (
            threading.current_thread() is threading.main_thread()
            and current is not None
            and current != self._terminated
        ):
            self._handler = signal.signal(signal.SIGTERM, self._terminated)

    def _release_termination(self) -> None:
        """Restore the SIGTERM handler unless the program has put a handler of its own there meanwhile. Only the main
        thread can: another leaves it, to pass on."""
        if self._handler is None or threading.current_thread() is not threading.main_thread():
            return
        handler, self._handler = self._handler, None
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, handler)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):
            self._release_termination()
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._safely(self._finish, "SIGTERM")  # not in a worker that was forked meanwhile
        os.kill(os.getpid(), number)


def _speak() -> None:
    """Let the one line about a window be seen where the program has set up no logging."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("graphlink.capture: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
