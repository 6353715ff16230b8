"""Whatever inside a capture fails, the training makes all its steps and hears nothing of it."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import logging
import os
import pkgutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

import pytest

import graphlink.capture
from graphlink.capture import recording, window
from graphlink.capture.session import Capture, Schedule

torch = pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
ERRORS = ("OSError", "RuntimeError", "MemoryError", "AttributeError")
# what the training calls, and what takes errors in
OUTSIDE = {"__init__", "__enter__", "__exit__", "start", "step", "stop", "dump", "_safely"}
STEPS = 7
Train = Callable[[], None]


def inner_functions() -> Iterator[tuple[str, FunctionType]]:
    """Every function and method of the modules of ``graphlink.capture`` but those of ``OUTSIDE``."""
    for module in pkgutil.iter_modules(graphlink.capture.__path__):
        loaded = importlib.import_module(f"graphlink.capture.{module.name}")
        own = [value for value in vars(loaded).values() if getattr(value, "__module__", "") == loaded.__name__]
        members = [value for kind in own if inspect.isclass(kind) for value in vars(kind).values()]
        for value in (*own, *members):
            function = inspect.unwrap(getattr(value, "fget", value) or value)
            name = getattr(function, "__qualname__", "")
            inside = isinstance(function, FunctionType) and function.__code__.co_filename == loaded.__file__
            if inside and name.removeprefix("Capture.") not in OUTSIDE:
                yield f"{module.name}.{name}", function


INNER = dict(inner_functions())


def training(capture: Capture, train: Train) -> int:
    """Train with a window in it; return the steps that were made."""
    made = 0
    with capture:
        for _ in range(STEPS):
            train()
            capture.step()
            made += 1
    capture.dump()
    return made


def clean_up() -> None:
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()
    torch.autograd.profiler._set_is_profiler_enabled(False)
    recording._running.clear()


def failing(error: str) -> FunctionType:
    names: dict[str, FunctionType] = {}
    exec(f"def fails(*arguments, **named): raise {error}('injected')", names)
    return names["fails"]


def sweep(folder: Path, train: Train, cases: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Make a function fail with an error, case by case; return those that the training noticed."""
    noticed = []
    for number, (name, error) in enumerate(cases):
        function = INNER[name]
        capture = Capture(folder / str(number), schedule=Schedule(wait=1, warmup=1, active=2), sync=False)
        code, function.__code__ = function.__code__, failing(error).__code__
        try:
            assert training(capture, train) == STEPS
        except Exception as problem:  # noqa: BLE001
            noticed.append((name, error, repr(problem)))
        finally:
            function.__code__ = code
            clean_up()
    return noticed


def test_each_inner_function_fails(tmp_path: Path, train: Train) -> None:
    assert len(INNER) > 60
    assert sweep(tmp_path, train, list(zip(INNER, itertools.cycle(ERRORS)))) == []


@pytest.mark.long
def test_each_inner_function_fails_with_each_error(tmp_path: Path, train: Train) -> None:
    assert sweep(tmp_path, train, list(itertools.product(INNER, ERRORS))) == []


@pytest.mark.parametrize("phase", [1, 2, 3], ids=["warming up", "recording", "recording its second step"])
def test_a_profiler_that_the_program_starts_meanwhile_has_its_way(tmp_path: Path, train: Train, phase: int) -> None:
    with Capture(tmp_path, schedule=Schedule(wait=1, warmup=1, active=2)) as capture:
        for step in range(STEPS):
            if step == phase:
                with torch.profiler.profile() as theirs:
                    train()
                assert "aten::addmm" in {event.key for event in theirs.key_averages()}
            train()
            capture.step()
    told = [(report.steps, "of its own" in report.ended, "step " in report.line()) for report in capture.reports]
    assert told == {1: [], 2: [((), True, True)], 3: [((2,), True, True)]}[phase]
    assert all(f"step {phase} is not whole" in report.warnings[-1] for report in capture.reports)
    assert "a profiler of its own" in next(iter(capture._said))
    assert (tmp_path / "kineto_0.json").exists() == (phase > 1)


def test_a_working_directory_that_is_gone_costs_the_recording_alone(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    capture = Capture("out", steps=1)
    assert training(capture, train) == STEPS
    assert capture.reports == []


def test_a_log_handler_that_raises_is_not_heard_by_the_training(tmp_path: Path, train: Train) -> None:
    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.message)

    handler, log = Raises(), logging.getLogger("graphlink.capture")
    log.addHandler(handler)
    try:
        assert training(Capture(tmp_path, steps=1), train) == STEPS
        assert training(Capture(tmp_path / "kineto_0.json" / "in a file", steps=1), train) == STEPS
    finally:
        log.removeHandler(handler)
    assert (tmp_path / "kineto_0.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell how long a thread ran")
def test_the_observer_goes_when_no_other_thread_can_be_within_it(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a thread ran between the observer's stop and its end is asked of the thread's own clock. One that waits, for
    a lock or for Python, is not waited for."""
    observer, ran_ns = torch.profiler.ExecutionTraceObserver, []
    stop, unregister = observer.stop, observer.unregister_callback
    waits, over = threading.Event(), threading.Event()
    runs = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"a", b"b", 1_500_000))  # without Python's lock

    def clock_ns() -> int:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(runs.ident or 0))

    def stops(observed: object) -> None:
        stop(observed)
        if not ran_ns:
            runs.start()
            while clock_ns() < 1_000_000:
                time.sleep(0.001)
            ran_ns.append(clock_ns())

    def unregisters(observed: object) -> None:
        if len(ran_ns) == 1:
            ran_ns.append(clock_ns())
        unregister(observed)

    monkeypatch.setattr(observer, "stop", stops)
    monkeypatch.setattr(observer, "unregister_callback", unregisters)
    monkeypatch.setattr(window, "LEAVING_S", 1e9)
    threading.Thread(target=lambda: waits.set() or over.wait()).start()
    waits.wait()
    with Capture(tmp_path) as capture:
        train()
    over.set()
    runs.join()
    assert set(capture.reports[0].bytes) == {"et_0.json", "kineto_0.json"}
    assert ran_ns[1] - ran_ns[0] > (window.LEFT_TICKS - 2) * 9_000_000  # user and system time are each cut to ticks


def test_an_observer_that_threads_do_not_leave_is_kept(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "_threads", lambda: {"1": ("R", 0)})
    monkeypatch.setattr(window, "LEAVING_S", 0.0)
    reports = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        with Capture(folder) as capture:
            train()
        reports += capture.reports
    (kept,) = window._kept
    assert kept.is_registered and not kept.is_running()
    window._kept.clear()
    kept.unregister_callback()
    assert [set(report.bytes) for report in reports] == [{"kineto_0.json"}] * 2
    assert "is not ended" in reports[0].warnings[0] and "et_0.json is missing" in reports[0].warnings[1]
    assert "no execution trace: another observer" in reports[1].warnings[0]


@pytest.mark.long
@pytest.mark.parametrize("stacks", [False, True])
def test_windows_beside_a_thread_that_runs_ops_end_no_program(tmp_path: Path, stacks: bool) -> None:
    program = f"""
import threading, torch, graphlink
def runs():
    while not over.is_set():
        torch.nn.functional.normalize(torch.ones(8, 8))
over, layer = threading.Event(), torch.nn.Linear(8, 8)
thread = threading.Thread(target=runs, daemon=True)
thread.start()
schedule = graphlink.capture.Schedule(wait=0, warmup=1, active=2, repeat=10)
with graphlink.capture({str(tmp_path)!r}, schedule=schedule, stacks={stacks}) as capture:
    for _ in range(35):
        layer(torch.ones(4, 8)).sum().backward()
        capture.step()
over.set()
thread.join()
assert len(capture.reports) == 10, capture.reports
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
