"""Recordings by the simulator, made anew each time: nsys exports, clusters, NCCL files, pipelines, logs of Paddle."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.paddle_runs import equal_times, simulate, zb_h1

# the simulator is a part of the package or of its tests
_PACKAGE: Final = "tests.simulator" if importlib.util.find_spec("tests.simulator") else "graphlink.testing"


def _simulator(module: str = "") -> Any:
    return importlib.import_module(f"{_PACKAGE}.{module}" if module else _PACKAGE)


def nsys(folder: Path) -> None:
    """Write an export with a process for each of two ranks of three."""
    simulator = _simulator()
    ranks = [
        simulator.training_program(1, simulator.Training(steps=2, layers=2, ranks=3, rank=rank)) for rank in (0, 1)
    ]
    simulator.write_nsys(list(map(simulator.run, ranks)), folder / "run.sqlite")


def nsys_random(folder: Path) -> None:
    """Write an export of a program without steps on two devices, and one of another."""
    simulator = _simulator()
    for seed in (1, 2):
        program = simulator.random_program(seed, simulator.Shape(devices=2))
        simulator.write_nsys([simulator.run(program)], folder / f"run_{seed}.sqlite")


def nccl(folder: Path) -> None:
    """Write four ranks, data and tensor parallel, one of which is late, with what NCCL's profiler plugin dumps."""
    simulator = _simulator()
    run = simulator.cluster_run(
        simulator.ClusterTraining(data=2, tensor=2, steps=2), [simulator.LateStart(1, share=0.2)]
    )
    run.write(folder)
    profile = _simulator("nccl_records").NcclProfile(kernel_channels=True, proxy_steps=True)
    _simulator("nccl").write_nccl(run, folder, profile)


def cluster(folder: Path) -> None:
    """Write eight ranks in three dimensions, with execution traces, of hosts whose clocks differ; one op is missing."""
    clocks = "--clock-offset-us 500 --drift-ppm 10 --ranks-per-host 4"
    _command(f"cluster {folder} --pipeline 2 {clocks} --fault dropped:2:tensor:1 --et --seed 3")


def pipeline(folder: Path) -> None:
    """Write a pipeline whose backward is split, with transfers, jitter and a cause of losses."""
    times = "--transfer-us 100 --visible --jitter-us 50 --optimizer-us 300"
    _command(f"pipeline {folder} --schedule ZB-H1 {times} --steps 2 --lose host_sync:item=300")


def interleaved(folder: Path) -> None:
    """Write a pipeline of two chunks a rank with names as Megatron gives."""
    order = "--schedule interleaved --chunks 2 --microbatches 8"
    _command(f"pipeline {folder} {order} --names megatron --steps 2 --transfer-us 50")


def paddle(folder: Path) -> None:
    """Write worker logs of Paddle, schedule ZBH1."""
    _simulator("paddle").write_paddle(simulate(zb_h1(4, 8), equal_times(), transfer_ns=30_000, steps=2), folder)


def random(folder: Path) -> None:
    """Write a pair of a random program of two threads."""
    _command(f"make {folder} --program random --seed 4 --threads 2 --streams 4 --python-rows")


def _command(words: str) -> None:
    status = importlib.import_module(f"{_PACKAGE}.__main__").main(words.split())
    assert not status, words


SIMULATED: Final[dict[str, Callable[[Path], None]]] = {
    made.__name__: made for made in (nsys, nsys_random, nccl, cluster, pipeline, interleaved, paddle, random)
}
