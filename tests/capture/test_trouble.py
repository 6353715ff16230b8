"""The training goes on whatever happens to its recording, and what was recorded outlives the training."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import graphlink
from graphlink.capture.support import config_fields
from tests.capture.forked import Forked
from tests.capture.recorded import et, ranges, told

torch = pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
Train = Callable[[], None]


def steps(capture: graphlink.capture.Capture, train: Train, count: int = 5) -> int:
    done = 0
    for _ in range(count):
        train()
        capture.step()
        done += 1
    return done


def test_an_exception_in_a_step_leaves_what_was_recorded(tmp_path: Path, train: Train) -> None:
    with pytest.raises(ZeroDivisionError), graphlink.capture(tmp_path) as capture:
        train()
        capture.step()
        train()
        raise ZeroDivisionError
    assert ranges(tmp_path) == ["ProfilerStep#0", "ProfilerStep#1"]
    assert len([node for node in et(tmp_path)["nodes"] if node["name"] == "aten::addmm"]) == 2
    assert told(tmp_path)["ended"] == "ZeroDivisionError in the step"


def test_an_exit_in_a_step_leaves_what_was_recorded(tmp_path: Path, train: Train) -> None:
    with pytest.raises(SystemExit), graphlink.capture(tmp_path):
        train()
        sys.exit(3)
    assert told(tmp_path)["ended"] == "SystemExit in the step"
    assert ranges(tmp_path) == ["ProfilerStep#0"]


BEGIN = """
import os, resource, signal, sys
import torch, graphlink
train = lambda: torch.nn.Linear(8, 8)(torch.ones(4, 8)).sum().backward()
graphlink.capture.start(sys.argv[1])
train()
"""


@pytest.mark.parametrize(
    ("end", "status", "ended"),
    [
        (
            "if not (pid := os.fork()): os.kill(os.getpid(), signal.SIGTERM)\nos.waitpid(pid, 0); raise ValueError",
            1,
            "the end of the program",
        ),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "SIGTERM"),
    ],
    ids=["an exception, after a forked worker was terminated", "SIGTERM"],
)
def test_the_end_of_the_process_leaves_what_was_recorded(
    forked: Forked, tmp_path: Path, end: str, status: int, ended: str
) -> None:
    ran = forked.run(BEGIN + end, tmp_path)
    assert ran.returncode == status, ran.stderr
    assert ranges(tmp_path) == ["ProfilerStep#0"]
    assert any(node["name"] == "aten::addmm" for node in et(tmp_path)["nodes"])
    assert told(tmp_path)["ended"] == ended


def test_a_full_disk_ends_the_recording_and_leaves_no_half_file(forked: Forked, tmp_path: Path) -> None:
    """No file may grow beyond 8 kB, as on a disk that is full."""
    ran = forked.run(
        BEGIN
        + "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)); train(); graphlink.capture.dump(); print('trained')",
        tmp_path,
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "trained"), ran.stderr
    assert not [path.name for path in tmp_path.iterdir() if path.name != "capture.0.json"]
    assert "kineto_0.json is missing" in ran.stderr
    assert "et_0.json is missing" in ran.stderr


@pytest.mark.long
def test_where_nothing_can_be_written_any_more_the_training_goes_on(forked: Forked, tmp_path: Path) -> None:
    ran = forked.run(
        BEGIN
        + "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); train(); graphlink.capture.dump(); print('trained')",
        tmp_path,
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "trained"), ran.stderr
    assert list(tmp_path.iterdir()) == []
    assert "no report: " in ran.stderr


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_a_folder_that_cannot_be_written_is_said_once_at_the_start(
    tmp_path: Path, train: Train, said: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").write_text("")
    with graphlink.capture(tmp_path / "file" / "out", steps=1) as capture:
        assert len(said()) == 1
        assert steps(capture, train) == 5
    (text,) = said()
    assert text.startswith("the recording is off: ")
    assert str(tmp_path / "file") in text
    assert capture.reports == []


@pytest.mark.parametrize("config", [{}, {"profile_all_threads": True}], ids=["one thread", "all threads"])
def test_another_profiler_is_left_alone(
    tmp_path: Path, train: Train, said: Callable[[], list[str]], config: dict[str, bool]
) -> None:
    if not config.keys() <= config_fields(torch):
        pytest.skip("not in this PyTorch")
    of_theirs = torch._C._profiler._ExperimentalConfig(**config)
    with (
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=of_theirs
        ) as theirs,
        graphlink.capture(tmp_path, steps=1) as capture,
    ):
        assert steps(capture, train) == 5
    assert said() == [
        "the recording is off: a profiler of PyTorch is running already\n  do: stop it before the recording begins",
    ]
    assert sum(event.count for event in theirs.key_averages() if event.key == "aten::addmm") == 5


def test_another_observer_costs_only_the_execution_trace(
    tmp_path: Path, train: Train, said: Callable[[], list[str]]
) -> None:
    theirs = torch.profiler.ExecutionTraceObserver()
    theirs.register_callback(str(tmp_path / "theirs.json"))
    try:
        with graphlink.capture(tmp_path / "out") as capture:
            train()
    finally:
        theirs.unregister_callback()
    assert set(capture.reports[0].bytes) == {"kineto_0.json"}
    assert ranges(tmp_path / "out") == ["ProfilerStep#0"]
    (text,) = said()
    assert text.startswith("no execution trace: another observer")


def test_an_error_of_the_profiler_ends_the_recording_only(
    tmp_path: Path, train: Train, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = torch.profiler._KinetoProfile.start_trace

    def fails_once(profiler: object) -> None:
        monkeypatch.setattr(torch.profiler._KinetoProfile, "start_trace", start)
        raise RuntimeError("CUPTI")

    monkeypatch.setattr(torch.profiler._KinetoProfile, "start_trace", fails_once)
    with graphlink.capture(tmp_path, steps=2) as capture:
        assert steps(capture, train) == 5
    assert said() == ["the recording is off: CUPTI"]
    assert list(tmp_path.iterdir()) == []


def test_a_broken_schedule_ends_the_recording_only(tmp_path: Path, train: Train, said: Callable[[], list[str]]) -> None:
    def broken(step: int) -> int:
        return 2 if step < 2 else 1 // 0

    with graphlink.capture(tmp_path, schedule=broken) as capture:
        assert steps(capture, train) == 5
    assert len(said()) == 1


def test_two_captures_do_not_record_at_once(tmp_path: Path, train: Train, said: Callable[[], list[str]]) -> None:
    with graphlink.capture(tmp_path / "one") as one, graphlink.capture(tmp_path / "other") as other:
        train()
    assert (len(one.reports), len(other.reports)) == (1, 0)
    assert "another recording of this process is not over" in said()[0]


def test_what_another_run_left_in_the_folder_is_named(
    tmp_path: Path, train: Train, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kineto_2.json").write_text("{}")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with graphlink.capture(tmp_path) as capture:
        train()
    assert said() == [f"{tmp_path} holds ranks of another run, as 2: record into a folder of its own"]
    assert capture.reports[0].place.rank == 1
    assert ranges(tmp_path, 1) == ["ProfilerStep#0"]


def test_warnings_made_errors_do_not_reach_the_training(tmp_path: Path, train: Train) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with graphlink.capture(tmp_path, schedule=graphlink.capture.Schedule(0, 1, 1, 2)) as capture:
            assert steps(capture, train) == 5
    assert len(capture.reports) == 2


FORKS = """
import os, resource, sys, torch, graphlink
from torch.utils.data import DataLoader, TensorDataset
layer = torch.nn.Linear(8, 8)
data = DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=8, num_workers=1)
with graphlink.capture(sys.argv[1]) as capture:
    for _ in range(2):
        for (batch,) in data:
            layer(batch).sum().backward()
            capture.step()
    observer = capture._recording.window._observer
    child = os.fork()
    if not child:
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(20_000):
            layer(torch.ones(4, 8))
        grew_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb  # by 2.6 kB an op, if Kineto recorded
        with torch.profiler.profile() as theirs:
            layer(torch.ones(4, 8))
        # the observer would wait for its lock, if a thread held it
        os._exit(observer.is_running() or grew_kb > 50_000 or not theirs.key_averages())
    assert os.waitpid(child, 0)[1] == 0
"""


def test_what_forked_processes_run_is_not_in_the_recording(forked: Forked, tmp_path: Path) -> None:
    """Workers of a DataLoader, of which each epoch forks new ones, and a process of the program's own."""
    ran = forked.run(FORKS, tmp_path)
    assert ran.returncode == 0, ran.stderr
    ids = [node["id"] for node in et(tmp_path)["nodes"]]
    assert len(ids) == len(set(ids)) > 100
    assert told(tmp_path)["warnings"] == []


WARMING = """
import sys, torch, graphlink
from torch.profiler import profile, schedule
with profile(schedule=schedule(wait=0, warmup=2, active=2), on_trace_ready=lambda p: print("theirs")) as theirs:
    with graphlink.capture(sys.argv[1], schedule=graphlink.capture.Schedule(wait=0, warmup=1, active=1)) as capture:
        for _ in range(5):
            torch.ones(10) + 1
            capture.step(), theirs.step()
"""


@pytest.mark.long
def test_a_profiler_of_the_program_that_warms_up_lives_on(forked: Forked, tmp_path: Path) -> None:
    ran = forked.run(WARMING, tmp_path)
    assert (ran.returncode, ran.stdout.split()) == (0, ["theirs"]), ran.stderr
    assert "is running already" in ran.stderr


def test_another_thread_may_stop_and_what_the_program_put_there_stays(
    tmp_path: Path, train: Train, said: Callable[[], list[str]]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    capture = graphlink.capture.Capture(tmp_path / "thread").start()
    train()
    thread = threading.Thread(target=capture.dump)
    thread.start()
    thread.join()
    assert (len(capture.reports), said()) == (1, [])
    capture._release_termination()
    assert signal.getsignal(signal.SIGTERM) == before
    try:
        with graphlink.capture(tmp_path / "mine"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
