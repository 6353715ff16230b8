"""The programs of ``fixtures/capture``, recorded here and now: from the training loop to the replay of all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphlink import cli
from tests.capture import truths

pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
ROOT = Path(__file__).parents[2]
TRIES = 3
PROGRAMS = ROOT / "fixtures" / "capture"


def record(program: str, *arguments: str | Path) -> str:
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / f"{program}.py"), *map(str, arguments)]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_four_ranks_go_from_the_training_loop_to_a_replay_of_all(tmp_path: Path) -> None:
    """Recorded again, twice at most, where the replay misses its mark: on a busy machine one rank of a collective may end it much later
    than the others, and a replay of all ends it for all at once."""
    summaries = []
    while not summaries or (truths.worst_error_pct(summaries[-1]) > truths.ERROR_PCT and len(summaries) < TRIES):
        out, graphs = tmp_path / f"out{len(summaries)}", tmp_path / f"graphs{len(summaries)}"
        record("ddp", out)
        truths.hold_ddp(out)
        assert cli.main([str(out), "--out", str(graphs)]) == 0
        summaries.append(json.loads((graphs / "summary.json").read_text()))
    truths.hold_replay(summaries[-1])


def test_a_thread_that_hands_over_is_recorded(tmp_path: Path) -> None:
    record("dataloader", tmp_path)
    truths.hold(tmp_path)
    (one,) = truths.ranks(tmp_path)
    assert len(set(one.graph.tid[one.graph.kind == truths.NodeKind.HOST_OP].tolist())) == 2


def test_without_a_gpu_its_programs_say_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert "needs a GPU" in record("gpu", "eager", tmp_path / "out")
    assert not (tmp_path / "out").exists()
