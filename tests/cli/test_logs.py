"""``--nvidia-smi`` and ``--megatron-log``: figures beside the ranks, in the summary and in print, and nothing where
there are none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median

import pytest

from tests.cli.conftest import Ran
from tests.logs.megatron_variants import BLOCK, THREE
from tests.logs.smi_variants import CSV

Run = Callable[..., Ran]


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Path]:
    smi, megatron = tmp_path / "node1.csv", tmp_path / "train.log"
    smi.write_text(CSV)
    megatron.write_text("API_TOKEN hunter2\n" + THREE + BLOCK)
    return smi, megatron


def test_logs_are_shown_beside_the_ranks(graphlink: Run, traces: Path, logs: tuple[Path, Path], tmp_path: Path) -> None:
    smi, megatron = logs
    ran = graphlink(
        "--kineto", traces / "kineto_0.json", "--nvidia-smi", smi, "--megatron-log", megatron, "--out", tmp_path / "out"
    )
    assert (ran.status, ran.err) == (0, "")
    whole = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert whole["logs"]["nvidia_smi"][0]["gpus"][0]["power_w"] == {
        "mean": 311.5,
        "max": 312.5,
        "samples": 2,
        "absent": 0,
    }
    (found,) = whole["logs"]["megatron"]
    recorded_ms = median(step["end_ns"] - step["start_ns"] for step in whole["ranks"][0]["steps"]) / 1e6
    assert found["recorded_step_ms"] == pytest.approx(recorded_ms)
    assert found["profiling_ratio"] == pytest.approx(recorded_ms / 3000.6, rel=1e-3)
    shown = graphlink("show", tmp_path / "out")
    for text in (ran.out, shown.out):
        assert "nvidia-smi node1.csv" in text
        assert "iterations 10 to 30 of 100" in text
        assert "forward-backward" in text
        assert "hunter2" not in text + json.dumps(whole)


def test_without_logs_the_key_is_absent(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    assert graphlink("--kineto", traces / "kineto_0.json", "--out", tmp_path / "out").status == 0
    assert "logs" not in json.loads((tmp_path / "out" / "summary.json").read_text())


def test_a_log_that_is_none_is_an_error_before_the_work(
    graphlink: Run, traces: Path, logs: tuple[Path, Path], tmp_path: Path
) -> None:
    smi, megatron = logs
    for option, path in (("--nvidia-smi", megatron), ("--megatron-log", smi), ("--nvidia-smi", tmp_path / "nowhere")):
        ran = graphlink("--kineto", traces / "kineto_0.json", option, path, "--out", tmp_path / "out")
        assert (ran.status, ran.out) == (1, "")
        assert str(path) in ran.err
        assert not (tmp_path / "out").exists()


def test_logs_are_not_for_the_job_of_a_rank(
    graphlink: Run, traces: Path, logs: tuple[Path, Path], tmp_path: Path
) -> None:
    ran = graphlink(
        "--kineto", traces / "kineto_0.json", "--nvidia-smi", logs[0], "--rank-job", "--out", tmp_path / "out"
    )
    assert (ran.status, "--rank-job makes none" in ran.err) == (2, True)


def test_the_job_joins_both(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    made = tmp_path / "first"
    assert graphlink("--kineto", traces / "kineto_0.json", "--out", made).status == 0
    (rank,) = json.loads((made / "summary.json").read_text())["ranks"]
    began, steps = rank["inputs"]["began_ns"], [step["name"] for step in rank["steps"]]
    assert began > 1_400_000_000 * 10**9 and steps[0].startswith("ProfilerStep#")
    at = datetime.fromtimestamp(began // 10**9 - 30, timezone.utc) + timedelta(hours=9)
    smi, megatron = tmp_path / "node.csv", tmp_path / "train.log"
    smi.write_text(
        "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
        + "".join(f"{at + timedelta(seconds=k):%Y/%m/%d %H:%M:%S}, 0, {k} %, 5 MiB\n" for k in range(60))
    )
    megatron.write_text(
        "".join(f" iteration {n}/ 9 | elapsed time per iteration (ms): {10 * n}.0 |\n" for n in range(1, 10))
    )
    ran = graphlink(
        "--kineto", traces / "kineto_0.json", "--nvidia-smi", smi, "--megatron-log", megatron, "--out", tmp_path / "out"
    )
    assert (ran.status, ran.err) == (0, "")
    logs = json.loads((tmp_path / "out" / "summary.json").read_text())["logs"]
    assert logs["nvidia_smi"][0]["in_recording"]["zone_minutes"] == 540
    numbers = [int(name.split("#")[1]) for name in steps]
    found = logs["megatron"][0]["matched"]
    assert (found["first"], found["last"], found["logged_ms"]) == (numbers[0], numbers[-1], 10.0 * numbers[1])
    assert f"iterations {numbers[0]} to {numbers[-1]} are recorded, by number: logged" in ran.out
    assert "UTC+09:00" in ran.out
