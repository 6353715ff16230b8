"""Whatever inside a capture fails, the training makes all its steps and hears nothing of it."""

from __future__ import annotations

import gc
import importlib
import inspect
import itertools
import logging
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

import pytest

import graphlink.capture
from graphlink.capture import recording
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
    recording._running.clear()


def failing(error: str) -> FunctionType:
    names: dict[str, FunctionType] = {}
    exec(f"def fails(*arguments, **named): raise {error}('injected')", names)
    return names["fails"]


def sweep(folder: Path, train: Train, cases: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Make a function fail with an error, case by case; return those that the training noticed."""
    noticed = []
    gc.freeze()  # or each window looks through all objects of the tests for another profiler
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
    gc.unfreeze()
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
