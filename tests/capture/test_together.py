"""Which rank this is, and ranks that begin together."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlink.capture.place import here
from tests.capture.forked import Forked
from tests.capture.recorded import et, told

pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")


@pytest.mark.parametrize(
    ("environ", "rank", "world", "told_by"),
    [
        ({}, 0, None, ""),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8, "RANK"),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 2, 4, "SLURM_PROCID"),
        ({"RANK": "1", "SLURM_PROCID": "2"}, 1, None, "RANK"),
        ({"RANK": "", "SLURM_PROCID": "x"}, 0, None, ""),
    ],
)
def test_the_environment_tells_the_rank(environ: dict[str, str], rank: int, world: int | None, told_by: str) -> None:
    place = here(environ)
    assert (place.rank, place.world_size, place.told_by) == (rank, world, told_by)


TWO = """
import os, sys, time, torch, torch.distributed as dist, graphlink
store, folder = sys.argv[1:]
hasattr(torch, "_inductor")  # its profiler imports it: once for both ranks
other = os.fork()
rank = 0 if other else 1
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
layer = torch.nn.Linear(8, 8)
def train():
    layer(torch.ones(4, 8)).sum().backward()
dist.barrier()
time.sleep(rank)
open(f"{folder}/came_{rank}", "w").write(str(time.time_ns()))
with graphlink.capture(folder + "/both", steps=1) as capture:
    for _ in range(4):
        train()
        capture.step()
if rank == 0:
    schedule = graphlink.capture.Schedule(wait=0, warmup=1, active=1, repeat=2)
    with graphlink.capture(folder + "/one", schedule=schedule, sync=1.0) as capture:
        for _ in range(4):
            train()
            capture.step()
dist.barrier()
dist.destroy_process_group()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


@pytest.fixture(scope="module")
def two(forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks record, the second a second later; then the first alone, two windows."""
    folder = tmp_path_factory.mktemp("ranks")
    ran = forked.run(TWO, folder / "store", folder)
    assert ran.returncode == 0, ran.stderr
    return folder


def test_ranks_begin_together(two: Path) -> None:
    one, other = (told(two / "both", rank) for rank in (0, 1))
    assert (one["place"]["world_size"], other["place"]["told_by"]) == (2, "torch.distributed")
    assert one["together"]["missing"] == other["together"]["missing"] == []
    last = max(int((two / f"came_{rank}").read_text()) for rank in (0, 1))
    assert min(report["together"]["released_unix_ns"] for report in (one, other)) > last, (
        "nobody begins before both are there"
    )
    for rank in (0, 1):
        assert not any("barrier" in node["name"] for node in et(two / "both", rank)["nodes"])


def test_a_rank_that_does_not_come_is_named_and_waited_for_once(two: Path) -> None:
    report = told(two / "one")
    assert report["together"]["missing"] == [1]
    assert report["warnings"] == ["ranks do not begin together: after 1 s, not there: 1"]
    assert report["bytes"]["kineto_0.json"] > 0
    assert told(two / "one" / "window_2")["together"] is None
