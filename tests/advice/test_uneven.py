"""Why the same kernels take longer in some steps than in others."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.advice.outputs import AMD, NVIDIA
from graphlink.advice.uneven import ranges_aside, why_uneven
from graphlink.graph_model import EdgeKind
from graphlink.replay.selection import Selection
from tests.replay.hand import N, load


@pytest.mark.parametrize(
    ("own_us", "what", "why"),
    [
        ([2510, 2565, 3300, 7690], "another process takes turns on the GPU", "of 0.023 to 5.180 ms each take 2.5"),
        (
            [35, 90, 1210, 7770],
            "the clock of the GPU is lower in some steps",
            "of 0.023 to 5.180 ms each take 1.50 times",
        ),
        ([35, 62, 2400, 5190], "the same kernels take longer in some steps", "1.3 times as long"),
    ],
)
def test_equal_turns_and_equal_factors_have_a_cause(own_us: list[int], what: str, why: str) -> None:
    """As in ``shared-gpu`` of the kit, where kernels of any length take 2.50 to 2.54 ms more."""
    times_ns = [np.array(us, np.int64) * 1000 for us in (own_us, [23, 60, 800, 5180])]
    told = why_uneven(*times_ns, NVIDIA)
    assert told[0] == what and why in told[1]
    assert "nvidia-smi" in told[2] and "nvidia" not in why_uneven(*times_ns, AMD)[2]


def test_kernels_of_one_length_tell_neither() -> None:
    told = why_uneven(np.array([2510, 2520, 2530]) * 1000, np.array([23, 24, 25]) * 1000, NVIDIA)
    assert told[0] == "the same kernels take longer in some steps"


def test_what_runs_behind_the_last_gradient_is_beside_the_training() -> None:
    """A log in each step and an evaluation in every second one; not the forward pass, the optimizer, what clips
    gradients in each step, or a range around all of it."""
    step = ["train", "forward", "aten::mm", "autograd::engine::evaluate_function: X"]
    step += [
        "clip",
        "aten::mul_",
        "Optimizer.step#SGD.step",
        "aten::add_",
        "log",
        "aten::item",
        "evaluate",
        "aten::relu_",
    ]
    inside = [0, 1, 2, 1, 1, 5, 1, 7, 1, 9, 1, 11]  # which of a step, 0 its mark
    nodes, callers = list[N](), list[int]()
    for k in range(6):
        first, names = len(nodes), [f"ProfilerStep#{k}", *step[: None if k % 2 else 10]]
        for place, name in enumerate(names):
            deps = ((len(nodes) - 1, EdgeKind.HOST),) if nodes else ()
            us = 90 if not place else 5 if name == "evaluate" else 1
            name = f"log_{k}" if name == "log" else name  # as many numbers as steps
            nodes.append(N(len(nodes), us=us, name=name, deps=deps, start_us=100 * k + place, lane=7))
        callers += [-1, *(first + above for above in inside[: len(names) - 1])]
    work = load(nodes)
    work.files[0].caller[:] = callers
    told = ranges_aside(Selection(work))
    assert [(name, pattern, int(nodes.sum())) for name, pattern, nodes in told] == [
        ("evaluate", "evaluate", 6),
        ("log_0 to log_5", r"log_\d+", 12),
    ]
