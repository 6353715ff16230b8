"""Recording with PyTorch's own recorder of CUDA, on stand-ins: no machine here has PyTorch 2.15 and a GPU."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphlink.capture import window
from graphlink.capture.window import CUSPY, Window

torch = pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
CUDA = torch.profiler.ProfilerActivity.CUDA


class Profiler:
    """Writes what Cuspy does: packed, whatever the name says."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def prepare_trace(self) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        Path(f"{path}.gz").write_bytes(gzip.compress(b'{"traceEvents":[],"traceName":""}'))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {CUDA})
    monkeypatch.setattr(window, "_scheduled", lambda _: False)
    for name in ("profile", "_KinetoProfile"):
        monkeypatch.setattr(torch.profiler, name, type(name, (Profiler,), {}))
    return monkeypatch


def test_cuspy_records_the_gpu_where_it_is_asked_for(gpu: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CuspyConfig", "ProfilerActivityConfig"):
        gpu.setattr(torch.profiler, name, lambda **given: SimpleNamespace(**given), raising=False)
    opened = Window(cuspy=True)
    opened.prepare()
    given = opened._profiler.given
    [config] = given["activities"][1][CUDA].profiler_configs
    assert vars(config) == CUSPY
    assert opened.settings["activities"] == ["CPU", "CUDA", "Cuspy"] and not opened.trouble
    opened.write(tmp_path / "kineto_0.json", tmp_path / "et_0.json")
    assert [path.name for path in tmp_path.iterdir()] == ["kineto_0.json"]
    assert (tmp_path / "kineto_0.json").read_bytes().startswith(b"{")
    plain = Window()
    plain.prepare()
    assert plain._profiler.given["activities"] == [torch.profiler.ProfilerActivity.CPU, CUDA]


def test_without_cuspy_kineto_records_and_says_so(gpu: pytest.MonkeyPatch) -> None:
    gpu.delattr(torch.profiler, "CuspyConfig", raising=False)
    opened = Window(cuspy=True)
    opened.prepare()
    assert type(opened._profiler).__name__ == "_KinetoProfile"
    (told,) = opened.trouble
    assert "Kineto records" in told


def test_arming_needs_nothing() -> None:
    window.arm()
