"""The programs of ``fixtures/capture``, recorded here and now: from the training loop to the replay of all ranks."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from graphlink import cli
from tests.capture import truths
from tests.capture.forked import Forked
from tests.capture.gpu_truths import unpack

pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "fixtures" / "capture"


def record(forked: Forked, program: str, *arguments: str | Path) -> None:
    ran = forked.run(PROGRAMS / f"{program}.py", *arguments)
    assert ran.returncode == 0, ran.stderr


def test_four_ranks_go_from_the_training_loop_to_a_replay_of_all(forked: Forked, tmp_path: Path) -> None:
    """How near the replay comes is asked of kept recordings: on a busy machine one rank of a collective may end it much
    later than the others, and a replay of all ends it for all at once."""
    record(forked, "ddp", tmp_path / "out")
    truths.hold_ddp(tmp_path / "out")
    assert cli.main([str(tmp_path / "out"), "--out", str(tmp_path / "graphs")]) == 0
    truths.hold_whole_replay(json.loads((tmp_path / "graphs" / "summary.json").read_text()))


def test_a_thread_that_hands_over_is_recorded(forked: Forked, tmp_path: Path) -> None:
    record(forked, "dataloader", tmp_path)
    truths.hold(tmp_path)
    (one,) = truths.ranks(tmp_path)
    assert len(set(one.graph.tid[one.graph.kind == truths.NodeKind.HOST_OP].tolist())) == 2


def test_the_kit_records_what_needs_no_gpu(forked: Forked, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    record(forked, "kit", tmp_path / "out", "--steps", "3", "--repeats", "0", "--only", "pairs/loader-0")
    (recording,) = json.loads((tmp_path / "out" / "kit.json").read_text())["recordings"]
    assert (recording["failed"], recording["files"]) == ("", ["capture.0.json", "kineto_0.json", "truth.0.json"])
    with tarfile.open(tmp_path / "out" / "kit_1.tar") as archives:
        archives.extractall(tmp_path, filter="data")
    (folder,) = unpack(tmp_path / "pairs" / "loader-0-workers.tar.xz", tmp_path / "recordings")
    truth = json.loads((folder / "truth.0.json").read_text())
    assert len(truth["steps_ns"]) == 3
    assert cli.main([str(folder), "--out", str(tmp_path / "graphs")]) == 0
    steps = json.loads((tmp_path / "graphs" / "summary.json").read_text())["ranks"][0]["steps"]
    assert len(steps) == 3
