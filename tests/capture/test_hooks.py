"""Recorders that start, stop and dump with the window, on a library that has their symbols and logs its calls."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import graphlink
from graphlink.capture import hooks as hooks_of
from graphlink.capture.support import support
from tests.capture.recorded import ranges, told

torch = pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
SOURCE = Path(__file__).with_name("nccl_stand_in.c")
Train = Callable[[], None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not Path("/proc/self/maps").exists():
        pytest.skip("needs a C compiler and Linux")
    path = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("STAND_IN_LOG", str(path))
    return path


def outcomes(folder: Path) -> list[tuple[str, str, bool]]:
    return [(did["hook"], did["action"], did["ok"]) for did in told(folder)["hooks"]]


def test_the_proxy_profiler_of_a_loaded_nccl_records_the_window(
    library: Path, log: Path, tmp_path: Path, train: Train
) -> None:
    ctypes.CDLL(str(library))
    out = tmp_path / "out"
    assert support().has("nccl_proxy")
    with graphlink.capture(out, steps=1, hooks=["nccl"]) as capture:
        for _ in range(2):
            train()
            capture.step()
        assert log.read_text() == "ncclProfilerEnable()\n"
        train()
        capture.step()
    assert log.read_text().split() == ["ncclProfilerEnable()", "ncclProfilerDisable()", "ncclProfilingDump()"]
    assert (out / "nccl_proxy_0.json").read_text() == "[\n{} ]\n"
    assert outcomes(out) == [("nccl", action, True) for action in ("find", "start", "stop", "dump")]


def test_the_example_plugin_is_switched_on_and_off(
    library: Path, log: Path, tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", str(library))
    for mask, folder in (("", "usual"), ("7", "asked")):
        monkeypatch.setenv("NCCL_PROFILE_EVENT_MASK", mask)
        with graphlink.capture(tmp_path / folder, hooks=["plugin"]):
            train()
    assert log.read_text().splitlines() == [
        f"exampleProfilerStart(95, {tmp_path}/usual/nccl_plugin)",
        "exampleProfilerStop()",
        f"exampleProfilerStart(7, {tmp_path}/asked/nccl_plugin)",
        "exampleProfilerStop()",
    ]


@pytest.mark.parametrize(
    ("fails", "warning", "calls"),
    [
        ("ncclProfilerEnable", "hook nccl: start: ncclProfilerEnable returned 5", ["Enable"]),
        ("ncclProfilerDisable", "hook nccl: stop: ncclProfilerDisable returned 5", ["Enable", "Disable"]),
    ],
)
def test_a_hook_that_fails_is_left_alone_and_the_recording_goes_on(
    fails: str,
    warning: str,
    calls: list[str],
    library: Path,
    log: Path,
    tmp_path: Path,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ctypes.CDLL(str(library))
    monkeypatch.setenv("STAND_IN_FAILS", fails)
    with graphlink.capture(tmp_path / "out", hooks=["nccl"]):
        train()
    assert told(tmp_path / "out")["warnings"] == [warning]
    assert log.read_text().split() == [f"ncclProfiler{call}()" for call in calls]
    assert ranges(tmp_path / "out") == ["ProfilerStep#0"]


def test_a_hook_that_is_not_there_is_news_only_to_who_asked(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_PROFILER_PLUGIN", raising=False)
    for folder, hooks, warnings in (("usual", None, 0), ("asked", ["plugin"], 1)):
        with graphlink.capture(tmp_path / folder, hooks=hooks):
            train()
        assert len(told(tmp_path / folder)["warnings"]) == warnings
        assert ("plugin", "find", False) in outcomes(tmp_path / folder)


@pytest.mark.parametrize(("name", "ending"), [("_dump_fr_trace_json", "json"), ("_dump_nccl_trace", "pickle")])
def test_flight_recorder_is_written_as_pytorch_gives_it(
    name: str, ending: str, tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(torch._C, "_distributed_c10d"):
        pytest.skip("this PyTorch has no torch.distributed")
    body = json.dumps({"version": "2.10", "entries": [{"profiling_name": "nccl:all_reduce"}]}).encode()
    for other in hooks_of.FLIGHT_DUMPS:
        monkeypatch.delattr(torch._C._distributed_c10d, other, raising=False)
    monkeypatch.setattr(torch._C._distributed_c10d, name, lambda: body, raising=False)
    with graphlink.capture(tmp_path, hooks=["flight_recorder"]):
        train()
    assert (tmp_path / f"flight_recorder_0.{ending}").read_bytes() == body


def test_an_empty_flight_recorder_leaves_no_file(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path, hooks=["flight_recorder"]):
        train()
    assert not list(tmp_path.glob("flight_recorder*"))
    assert told(tmp_path)["warnings"] == []


def test_nsys_is_told_where_the_window_is(tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})
    with graphlink.capture(tmp_path, hooks=["nsys"]):
        assert calls == ["start"]
        train()
    assert calls == ["start", "stop"]
