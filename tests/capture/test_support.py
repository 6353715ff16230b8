from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from graphlink.capture.support import config_fields, support, version_of

torch = pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")


def test_this_pytorch_records_the_pair() -> None:
    found = support({})
    assert all(found.has(name) for name in ("torch", "kineto", "execution_trace", "process_groups"))
    assert json.loads(json.dumps(asdict(found)))["versions"]["torch"] == torch.__version__


def test_what_is_missing_says_why_and_what_is_there_asks_for_nothing() -> None:
    for feature in support({}).features:
        assert feature.gives
        assert feature.found
        assert not (feature.available and feature.how), f"{feature.name} is there"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_of_it_is_recorded() -> None:
    assert not any(support({}).has(name) for name in ("device", "cuda_sync", "event_records"))


def test_cuda_rocm_and_their_versions_decide_what_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.profiler, "supported_activities", lambda: set(torch.profiler.ProfilerActivity.__members__.values())
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for cuda, hip, exact, resolved in (
        ("12.1", None, True, True),
        ("12.9", None, True, False),
        (None, "6.2", False, False),
    ):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        found = support({})
        assert [found.has(name) for name in ("device", "cuda_sync", "event_records")] == [True, exact, resolved]
        assert not found.has("cuspy")  # of PyTorch 2.15
    monkeypatch.setattr(torch.profiler, "CuspyConfig", object, raising=False)
    assert not support({}).has("cuspy")  # nor on ROCm
    monkeypatch.setattr(torch.version, "hip", None)
    assert support({}).has("cuspy")


def test_the_environment_tells_of_recorders() -> None:
    plain = support({})
    assert not any(plain.has(name) for name in ("nsys", "nccl_plugin"))
    assert plain.has("flight_recorder")
    assert support({"NSYS_PROFILING_SESSION_ID": "1"}).has("nsys")
    assert not support({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}).has("flight_recorder")


def test_a_plugin_is_found_by_its_path(tmp_path: Path) -> None:
    library = tmp_path / "libmine.so"
    library.touch()
    assert support({"NCCL_PROFILER_PLUGIN": str(library)}).has("nccl_plugin")
    assert not support({"NCCL_PROFILER_PLUGIN": "nowhere"}).has("nccl_plugin")


def test_without_pytorch_that_is_all_there_is_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    (feature,) = support({}).features
    assert (feature.name, feature.available, feature.how) == (
        "torch",
        False,
        "pip install '.[capture]' in a clone of graphlink",
    )


def test_arguments_of_the_profiler_are_read_from_its_signature() -> None:
    fields = config_fields(torch)
    assert "enable_cuda_sync_events" in fields
    for name in fields - {"self"}:
        assert name.isidentifier()


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.13.0+cpu", (2, 13)), ("12.9", (12, 9)), (None, (0, 0)), ("unknown", (0, 0)), ("2.10a", (0, 0))],
)
def test_versions_are_numbers(text: str | None, version: tuple[int, int]) -> None:
    assert version_of(text) == version
