"""Hand-made logs of Megatron: what they are, and what must be read of them, or why they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """``has``: fields of the log; ``timers``: mean, min and max in ms; ``refused``: a part of the reason instead."""

    text: str | bytes
    has: dict[str, Any] = field(default_factory=dict)
    timers: Mapping[str, tuple[float | None, float | None, float | None]] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    refused: str = ""


def iteration(number: int, ms: float | str, form: str = "elapsed time per iteration (ms): {}") -> str:
    return f" iteration {number:8d}/     100 | consumed samples:        5120 | {form.format(ms)} | lm loss: 7.1E+00 |\n"


THREE = iteration(10, 4990.8) + iteration(20, 3000.2) + iteration(30, 3000.6)
READ = {
    "first_iteration": 10,
    "last_iteration": 30,
    "of_iterations": 100,
    "intervals": 3,
    "step_median_ms": 3000.6,
    "step_mean_ms": 3663.866667,
}
TIMERS = "time (ms) | forward-compute: 3170.80 | backward-compute: 1000.20 | optimizer: 50.00\n"
OF_TIMERS = {
    "forward-compute": (3170.8, None, None),
    "backward-compute": (1000.2, None, None),
    "optimizer": (50.0, None, None),
}
BLOCK = "(min, max) time across ranks (ms):\n" + "".join(
    f"    {name + ' ':.<48}: ({least:.2f}, {most:.2f})\n"
    for name, least, most in (("forward-backward", 2900, 2910), ("optimizer", 40.5, 41.5))
)
OF_BLOCK = {"forward-backward": (None, 2900.0, 2910.0), "optimizer": (None, 40.5, 41.5)}
MEMORY = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1894.5 | max allocated: 9752.25 | reserved: 11342.0 "
    "| "
    "max reserved: 11342.0\n"
)
ANSI = "\x1b[32m" + iteration(10, 5.0).rstrip() + "\x1b[0m\n"
MIXED = "".join(f"[default{rank}]:{line}\n" for line in BLOCK.splitlines() for rank in (0, 1))

MEGATRON: dict[str, Variant] = {
    "iterations": Variant(THREE, READ),
    "narrow": Variant(
        "iteration 1/2 | elapsed time per iteration (ms): 5.0 |\n",
        {"first_iteration": 1, "of_iterations": 2, "step_mean_ms": 5.0},
    ),
    "seconds": Variant(iteration(10, 4.5, "elapsed time per iteration (s): {}"), {"step_median_ms": 4500.0}),
    "equals signs": Variant(
        " iteration=       1/  635782 | consumed_samples=  768 | elapsed_time_per_iteration_ms=29570.0 | lm loss=11.1 "
        "|\n",
        {"first_iteration": 1, "of_iterations": 635782, "step_mean_ms": 29570.0},
    ),
    "exponent": Variant(iteration(10, "4.99E+03"), {"step_mean_ms": 4990.0}),
    "times in front": Variant(
        " [2024-01-31 10:22:03]" + iteration(10, 5.0) + " [2024-01-31 10:22:09]" + iteration(20, 6.0),
        {"from_time": "2024-01-31 10:22:03", "to_time": "2024-01-31 10:22:09", "step_mean_ms": 5.5},
    ),
    "torchrun": Variant("".join("[default7]:" + line for line in THREE.splitlines(keepends=True)), READ),
    "srun": Variant("".join("12: " + line for line in THREE.splitlines(keepends=True)), READ),
    "pdsh": Variant("".join("node-3: " + line for line in THREE.splitlines(keepends=True)), READ),
    "colours": Variant(ANSI, {"step_mean_ms": 5.0}),
    "windows line ends": Variant(THREE.replace("\n", "\r\n"), READ),
    "progress bars": Variant("loading:  50%\rloading: 100%\r" + THREE, READ, {}, {"other text": 2}),
    "utf-16": Variant(THREE.encode("utf-16"), READ),
    "bytes that are no text": Variant(b"\xff\xfe\xfd"[1:] + b" junk\n" + THREE.encode(), READ, {}, {"other text": 1}),
    "other text": Variant(
        "using world size: 8\nAPI_TOKEN ................ hunter2\n" + THREE, READ, {}, {"other text": 2}
    ),
    "cut in a number": Variant(
        THREE + iteration(40, 4990.8).split("90.8")[0], READ, {}, {"iteration without a whole step time": 1}
    ),
    "cut before the time": Variant(
        THREE + " iteration       40/     100 | consumed sam", READ, {}, {"iteration without a whole step time": 1}
    ),
    "no last line end": Variant(THREE.rstrip("\n"), READ),
    "nan": Variant(THREE + iteration(40, "nan"), READ, {}, {"step time is no positive number": 1}),
    "timers": Variant(TIMERS, {"intervals": 0, "step_mean_ms": None}, OF_TIMERS),
    "timers of two intervals": Variant(
        TIMERS + TIMERS.replace("3170.80", "3170.90"), {}, {**OF_TIMERS, "forward-compute": (3170.85, None, None)}
    ),
    "timers after a logger": Variant(
        "[2023-08-08 16:29:11,600] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | optimizer_step: 77.19\n",
        {},
        {"optimizer_step": (77.19, None, None)},
    ),
    "cut timer": Variant(
        TIMERS[:-4],
        {},
        {name: OF_TIMERS[name] for name in ("forward-compute", "backward-compute")},
        {"timer cannot be read": 1},
    ),
    "timer without a number": Variant(
        TIMERS.replace("50.00", "?"),
        {},
        {name: OF_TIMERS[name] for name in ("forward-compute", "backward-compute")},
        {"timer cannot be read": 1},
    ),
    "negative timer": Variant(
        TIMERS.replace("50.00", "-1"),
        {},
        {name: OF_TIMERS[name] for name in ("forward-compute", "backward-compute")},
        {"timer is no time": 1},
    ),
    "block of least and largest": Variant(THREE + BLOCK, READ, OF_BLOCK),
    "block without dots": Variant(
        "time across ranks (ms):\n  forward-compute: (1.0, 2.0)\n  optimizer: (3.0, 4.0)\n",
        {},
        {"forward-compute": (None, 1.0, 2.0), "optimizer": (None, 3.0, 4.0)},
    ),
    "block of the largest": Variant(
        "max time across ranks (ms):\n    optimizer ......................: 41.50\n",
        {},
        {"optimizer": (None, None, 41.5)},
    ),
    "block of all ranks": Variant(
        "times across ranks (ms):\n  optimizer:\n     rank  0: 40.00\n     rank  1: 42.00\n",
        {},
        {"optimizer": (None, 40.0, 42.0)},
    ),
    "block on one line": Variant(
        "[ t 1/1, p 1/1 ] (min, max) time across ranks (ms): save-checkpoint ................................: "
        "(24895.07, 24895.13)\n",
        {},
        {"save-checkpoint": (None, 24895.07, 24895.13)},
    ),
    "block with a slash in a name": Variant(
        BLOCK.replace("optimizer ", "train/valid/test-data-iterators-setup "),
        {},
        {"forward-backward": (None, 2900.0, 2910.0), "train/valid/test-data-iterators-setup": (None, 40.5, 41.5)},
    ),
    "blocks of two ranks mixed": Variant(MIXED, {}, OF_BLOCK),
    "block with text between": Variant(
        BLOCK.replace("    optimizer", "WARNING: something\n    optimizer"), {}, OF_BLOCK, {"other text": 1}
    ),
    "block cut": Variant(BLOCK[:-6], {}, {"forward-backward": (None, 2900.0, 2910.0)}, {"timer cannot be read": 1}),
    "a range outside a block": Variant(THREE + "    padded-vocab ...: (1.0, 2.0)\n", READ, {}, {"other text": 1}),
    "memory": Variant(MEMORY, {"ranks": [(0, 1, 1894.5, 9752.25, 11342.0, 11342.0)]}),
    "memory of two ranks": Variant(
        MEMORY + MEMORY.replace("Rank 0", "Rank 8"),
        {"ranks": [(rank, 1, 1894.5, 9752.25, 11342.0, 11342.0) for rank in (0, 8)]},
    ),
    "memory twice": Variant(
        MEMORY + MEMORY.replace("9752.25", "9800.0"), {"ranks": [(0, 2, 1894.5, 9800.0, 11342.0, 11342.0)]}
    ),
    "memory cut": Variant(
        MEMORY[:-6], {"ranks": [(0, 1, 1894.5, 9752.25, 11342.0, None)]}, {}, {"memory figure cannot be read": 1}
    ),
    "memory after a logger": Variant(
        "[2024-09-16 22:59:19.289582][INFO][utils:207] - " + MEMORY,
        {"ranks": [(0, 1, 1894.5, 9752.25, 11342.0, 11342.0)]},
    ),
    "iterations without times": Variant(
        "iteration 1/2 | lm loss: 1.0 |\n", refused="iteration without a whole step time"
    ),
    "empty": Variant("", refused="no step time"),
    "another text": Variant("epoch 1, loss 2.0\n", refused="no step time"),
    "binary": Variant(bytes(range(256)) * 64, refused="no step time"),
    "a csv of nvidia-smi": Variant("index, utilization.gpu [%]\n0, 98 %\n", refused="no step time"),
}
