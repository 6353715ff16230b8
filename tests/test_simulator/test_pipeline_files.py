"""Files of simulated pipelines as graphlink and the independent checker of graphs take them."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphlink.cli import main as graphlink
from tests.simulator import DIALECTS, HOWS, Loss, PipelineTraining, pipeline_run
from tests.simulator.__main__ import main

CHECKER = Path(__file__).parents[3] / "shared" / "checks" / "graph_check"
SMALL = PipelineTraining("1F1B", 3, 4, optimizer_ns=300_000, norm_ns=50_000)
VISIBLE = replace(SMALL, transfer_ns=150_000, visible=True)


def linked(folder: Path, *options: str) -> Any:
    """The summary of a run over a folder of ranks, which neither fails nor complains."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        status = graphlink([str(folder), "--out", str(folder / "out"), "--no-timeline", "--jobs", "1", *options])
    assert (status, err.getvalue()) == (0, "")
    return json.loads((folder / "out" / "summary.json").read_text())


def check_summary(summary: Any, stages: int, *expected: str) -> None:
    """``expected``: how warnings may begin; no others are there, but of who woke autograd's thread: the main thread does
    not sleep meanwhile, which alone would tell.
    """
    assert [rank["rank"] for rank in summary["ranks"]] == list(range(stages))
    for rank in summary["ranks"]:
        assert all(text.startswith(expected) or "ms of silence of threads" in text for text in rank["warnings"])
        assert rank["device"]["ops"] == rank["device"]["linked"] > 0
        assert "impossible" not in rank["sync"]["rejected"]
        assert abs(rank["replay"]["error_pct"]) < 0.02


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(replace(VISIBLE, steps=2, kernels=2, gather_ns=30_000), marks=pytest.mark.long),
        replace(SMALL, schedule="ZB-H2", names="zero-bubble", autograd_thread=False),
        replace(VISIBLE, schedule="interleaved", microbatches=6, chunks=2, names="none"),
        replace(SMALL, schedule="GPipe", names="gpipe", losses=(Loss("exposed_communication", 300_000),)),
        pytest.param(
            replace(VISIBLE, schedule="ZB-H1", losses=(Loss("host_sync", 300_000, how="device"),)),
            marks=pytest.mark.long,
        ),
    ],
    ids=["steps", "zero-bubble", "no ranges", "gpipe", "device sync"],
)
def test_a_folder_of_ranks_is_linked_and_replays(what: PipelineTraining, tmp_path: Path) -> None:
    files = pipeline_run(what).write(tmp_path, et=what.names != "gpipe")
    summary = linked(tmp_path)
    # Several stages on a rank are not guessed.
    check_summary(summary, what.stages, *(["pipeline ranges could not be inferred"] if what.names == "none" else []))
    if what.names != "gpipe":
        assert all(rank["host"]["nodes"] == rank["host"]["matched"] for rank in summary["ranks"])
    if not CHECKER.exists():
        pytest.skip(f"the checker of graphs is not at {CHECKER}")
    for rank, file in enumerate(files):
        command = [sys.executable, str(CHECKER), str(tmp_path / "out" / f"trace.{rank}.et"), str(file)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("cause", "how"),
    [
        pytest.param(cause, how, marks=[pytest.mark.long] if i else [])
        for cause, hows in HOWS.items()
        for i, how in enumerate(hows)
    ],
)
def test_files_with_losses_hold_nothing_impossible(cause: str, how: str, tmp_path: Path) -> None:
    pipeline_run(replace(SMALL, stages=4, losses=(Loss(cause, 250_000, how=how),))).write(tmp_path)
    check_summary(linked(tmp_path, "--sync", "cuda"), 4)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_read(dialect: str, tmp_path: Path) -> None:
    run = pipeline_run(replace(VISIBLE, losses=(Loss("profiler_artefact", 250_000),)))
    run.write(tmp_path, dialect=dialect, suffix=".json.gz")
    summary = linked(tmp_path, "--sync", "cuda")
    assert [rank["device"]["linked"] for rank in summary["ranks"]] == [
        len(execution.device) for execution in run.executions
    ]


def test_clocks_of_ranks_may_differ(tmp_path: Path) -> None:
    run = pipeline_run(SMALL)
    same, ahead = run.write(tmp_path / "same"), run.write(tmp_path / "ahead", clocks_ns=(0, 3_000_000, -250))
    for file, late, us in zip(same, ahead, (0, 3_000, -0.25), strict=True):
        rows = zip(
            json.loads(file.read_bytes())["traceEvents"], json.loads(late.read_bytes())["traceEvents"], strict=True
        )
        assert {round(b["ts"] - a["ts"], 3) for a, b in rows if "ts" in a} == {us}


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"--schedule": "ZB-H1", "--stages": "4", "--names": "zero-bubble", "--lose": "host_sync:item=300"}
    status = main(["pipeline", str(tmp_path), *[word for pair in options.items() for word in pair], "--gzip"])
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"kineto_{rank}.json.gz" for rank in range(4)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("makespan 27300.000 us")
    head, first = lines[1].split(), lines[2].split()
    assert head == ["rank", "work", "dependency_stall", "host_sync", "warmup"]
    assert first[:2] == ["0", "24000.000"]
    assert lines[-1].startswith("lost: 300.000 us by host_sync (item) at Place(rank=")


@pytest.mark.parametrize(
    "wrong", [["--lose", "host_sync"], ["--lose", "luck=300"], ["--chunks", "2"], ["--names", "mine"]]
)
def test_wrong_usage_ends_with_status_2(wrong: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["pipeline", str(tmp_path / "new"), *wrong])
    assert stopped.value.code == 2
    assert not (tmp_path / "new").exists()
