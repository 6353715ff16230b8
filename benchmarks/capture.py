"""What recording costs: the same training steps bare, under Kineto alone, and under ``graphlink.capture``, without and
with the ET.

    python benchmarks/capture.py [--steps 30] [--rounds 5]

One process on the CPU, one thread. Each round runs all four, in turn, so that another load of the machine meets them
alike; printed are medians over rounds of the median step. Then what a step costs outside the window.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import graphlink

Train = Callable[[], None]


def model(width: int, layers: int) -> Train:
    torch.set_num_threads(1)
    network = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    batch = torch.randn(32, width)

    def train() -> None:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()

    return train


def median_us(train: Train, steps: int, after: Train) -> float:
    taken = []
    for _ in range(steps):
        began = time.perf_counter_ns()
        train()
        after()
        taken.append((time.perf_counter_ns() - began) / 1e3)
    return statistics.median(taken)


def bare(train: Train, steps: int, folder: Path) -> float:
    return median_us(train, steps, lambda: None)


def kineto(train: Train, steps: int, folder: Path) -> float:
    cpu, record = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerAction.RECORD
    with torch.profiler.profile(activities=[cpu], schedule=lambda _: record) as profiler:
        return median_us(train, steps, profiler.step)


def captured(train: Train, steps: int, folder: Path, *, execution_trace: bool = True) -> float:
    with graphlink.capture(folder / str(time.perf_counter_ns()), execution_trace=execution_trace) as capture:
        return median_us(train, steps, capture.step)


def without_et(train: Train, steps: int, folder: Path) -> float:
    return captured(train, steps, folder, execution_trace=False)


def idle_ns(folder: Path, calls: int = 100_000) -> float:
    """``step`` before the window, while the schedule waits."""
    capture = graphlink.capture(folder, schedule=graphlink.capture.Schedule(wait=10 * calls)).start()
    began = time.perf_counter_ns()
    for _ in range(calls):
        capture.step()
    taken_ns = (time.perf_counter_ns() - began) / calls
    capture.dump()
    return taken_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    logging.getLogger("graphlink.capture").addHandler(logging.NullHandler())
    print(
        "width layers   bare us  Kineto us  without ET us  capture us  Kineto/bare  without ET/Kineto  capture/Kineto"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for width, layers in ((64, 16), (512, 8), (2048, 4)):
            train = model(width, layers)
            train()
            rounds = [
                [run(train, given.steps, folder) for run in (bare, kineto, without_et, captured)]
                for _ in range(given.rounds)
            ]
            plain, alone, no_et, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
            times, ratios = (
                f"{plain:9.0f} {alone:10.0f} {no_et:14.0f} {ours:11.0f}",
                f"{no_et / alone:18.2f} {ours / alone:15.2f}",
            )
            print(f"{width:5} {layers:6} {times} {alone / plain:12.2f} {ratios}")
        print(f"step() outside the window: {idle_ns(folder / 'idle'):.0f} ns")


if __name__ == "__main__":
    main()
