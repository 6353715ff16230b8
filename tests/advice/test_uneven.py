"""Why the same kernels take longer in some steps than in others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import graphlink
from graphlink import Run
from graphlink.advice.outputs import AMD, NVIDIA
from graphlink.advice.uneven import ranges_aside, slower, why_uneven
from graphlink.graph_model import EdgeKind
from graphlink.replay.machines import ends
from graphlink.replay.selection import Selection
from graphlink.replay.whatif import fit
from tests.replay.hand import COLL, GPU, N, load


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


def recorded(
    folder: Path,
    op_us: Callable[[int, int], int],
    pause_us: Callable[[int], int],
    *,
    hidden: bool = False,
    sizes: Sequence[int] = (1,) * 5,
    compiles: Sequence[int] = (),
    names: Sequence[str] = ("aten::mm", "aten::add", "aten::mul"),
) -> Run:
    """Link steps of ten ops and then a pause; ``hidden``: another thread, that Kineto did not record, works in it.

    ``sizes`` of inputs by step; ``compiles``: steps in which an op is compiled for 5 ms.
    """
    rows, nodes = list[dict[str, object]](), list[dict[str, object]]()
    at, rf_id = 0, 1

    def begin(name: str, cat: str, us: int) -> None:
        nonlocal rf_id
        args = {"Record function id": rf_id, "External id": rf_id, "Input Dims": [[sizes[step], 8]]}
        rows.append({"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": at, "dur": us, "args": args})
        nodes.append(node(name, rf_id, 1))
        rf_id += 1

    for step in range(len(sizes)):
        ops_us = [op_us(step, k) for k in range(10)]
        begin(
            f"ProfilerStep#{step}",
            "user_annotation",
            sum(ops_us) + 10 * 30 + pause_us(step) + 50 + 5030 * (step in compiles),
        )
        if step in compiles:
            begin("entire_frame_compile", "cpu_op", 5000)
            begin("build_guards (dynamo_timed)", "cpu_op", 4000)
            at += 5030
        for k, us in enumerate(ops_us):
            begin(names[k % 3], "cpu_op", us)
            at += us + 30
        if hidden:
            nodes.append(node("aten::mm", rf_id, 2))
            rf_id += 1
        at += pause_us(step)
        begin("aten::sum", "cpu_op", 40)
        at += 60
    (folder / "kineto_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    (folder / "et_0.json").write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 9, "nodes": nodes}))
    return graphlink.link(folder, out=folder / "out")


def node(name: str, rf_id: int, tid: int) -> dict[str, object]:
    values = {"rf_id": rf_id, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": tid, "fw_tid": 0, "op_schema": ""}
    return {
        "id": rf_id + 1, "name": name, "ctrl_deps": 1, "inputs": {"values": [], "shapes": [], "types": []},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "t", "value": value} for key, value in values.items()],
    }  # fmt: skip


@pytest.mark.parametrize(("hidden", "kinds"), [(False, ["python_pause"]), (True, [])])
def test_pauses_in_which_threads_ran_that_kineto_did_not_record_are_no_pythons(
    tmp_path: Path, hidden: bool, kinds: list[str]
) -> None:
    run = recorded(tmp_path, lambda step, k: 100, lambda step: 80_000, hidden=hidden)
    assert [advice.kind for advice in run.advice().advice if advice.kind == "python_pause"] == kinds


@pytest.mark.parametrize("times", [5, 12])
def test_what_calls_wait_for_unseen_is_no_pause_and_no_gain(tmp_path: Path, times: int) -> None:
    """Each time a call returns 4.7 ms after the last kernel that was recorded of its stream."""
    rows: list[dict[str, object]] = []
    for k in range(times):
        for cat, name, tid, ts, dur in (
            ("cpu_op", "aten::mm", 9, 0, 40), ("cuda_runtime", "cudaLaunchKernel", 9, 10, 8), ("kernel", "k", 7, 30, 300),
            ("cuda_runtime", "cudaStreamSynchronize", 9, 45, 4985), ("cpu_op", "aten::sum", 9, 5040, 20),
        ):  # fmt: skip
            args = {"correlation": 2 * k + 1 + ("Sync" in name), "External id": 1, "stream": 7, "device": 0}
            place = {"pid": 0 if cat == "kernel" else 9, "tid": tid, "ts": 6_000 * k + ts, "dur": dur}
            rows.append({"ph": "X", "cat": cat, "name": name} | place | ({} if cat == "cpu_op" else {"args": args}))
    (tmp_path / "kineto_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    run = graphlink.link(tmp_path, out=tmp_path / "out")
    gains = {advice.kind: advice.gain_pct for advice in run.advice().advice}
    assert "python_pause" not in gains
    assert (gains["blocking_sync"] or 0) < 7


def test_ops_of_each_step_that_take_longer_in_some_are_not_to_come_less_often(tmp_path: Path) -> None:
    """A busy machine: now this op takes longer, now that one."""
    run = recorded(tmp_path, lambda step, k: 400 if (step * 7 + k) % 4 == 0 else 100, lambda step: 30)
    (uneven,) = (advice for advice in run.advice().advice if advice.kind == "uneven_steps")
    assert uneven.what == "the same host work takes longer in some steps"
    assert "a machine that does nothing else" in uneven.todo and "less often" not in uneven.todo


def test_only_those_kernels_of_a_late_rank_become_quicker_that_are_slow() -> None:
    """An expert that gets most tokens: of two products of one name the second takes longer on that rank."""

    def rank(second_us: int, op_us: int) -> list[N]:
        launch, stream = EdgeKind.LAUNCH, EdgeKind.STREAM
        return [
            N(0, us=op_us, name="aten::to"),
            N(1, GPU, 100, ((0, launch),), name="product"),
            N(2, COLL, 5, ((1, stream),)),
            N(3, GPU, second_us, ((2, stream),), name="product"),
            N(4, COLL, 5, ((3, stream),)),
            N(5, GPU, 300, ((4, stream),), name="relu"),
        ]

    work, even = load(rank(100, 8), rank(300, 20), rank(100, 8)), load(*[rank(100, 8)] * 3)
    changes, why = slower(work, 1)
    groups = {0: (0, 1, 2)}
    assert ends(fit(work, changes, groups).work, groups).total_ns == ends(even, groups).total_ns == 518_000
    assert why == "; product takes 0.400 ms there, 0.200 on the others", "what matters most, and all are as the others"


@pytest.mark.parametrize(
    ("op_us", "pause_us", "whats"),
    [
        (60_000, 30, ["aten::add took long once"]),
        (100, 60_000, ["Python between ops took long once"]),
        (150, 30, []),  # less than a hundredth of the run
    ],
)
def test_what_took_long_in_one_call_of_one_step_came_once(
    tmp_path: Path, op_us: int, pause_us: int, whats: list[str]
) -> None:
    """Another process took the core for a while: nothing of each step would gain from that."""
    once = (3, 4)  # step, op
    run = recorded(
        tmp_path,
        lambda step, k: op_us if (step, k) == once else 100,
        lambda step: pause_us if step == once[0] else 30,
        sizes=(1,) * 6,
    )
    told = run.advice().advice
    assert [one.what for one in told if one.kind == "once"] == whats
    assert not [one for one in told if one.kind in ("uneven_steps", "python_pause")]


def test_larger_inputs_take_longer_and_nothing_is_lost(tmp_path: Path) -> None:
    sizes = (1, 4, 2, 5, 1)
    run = recorded(tmp_path, lambda step, k: 100 * sizes[step], lambda step: 30, sizes=sizes)
    (larger,) = (advice for advice in run.advice().advice if advice.kind == "uneven_steps")
    assert larger.what == "inputs are larger in some steps" and larger.gain_ns is None
    assert run.advice().advice[0].kind == "heaviest_work"


def test_python_and_ops_that_take_longer_in_some_steps_are_told_apart(tmp_path: Path) -> None:
    """A pause in every second step beside a busy machine: neither gains what the other takes."""
    run = recorded(
        tmp_path, lambda step, k: 400 if (step * 7 + k) % 4 == 0 else 100, lambda step: 1500 if step % 2 else 30
    )
    told = {advice.kind: advice.gain_ns or 0 for advice in run.advice().advice}
    assert abs(told["python_pause"] - 2 * 1_470_000) < 200_000
    assert told["uneven_steps"] in range(1_000_000, 3_300_000), "300 us each of at most 10 ops, without the pauses"


@pytest.mark.parametrize(("steps", "gains"), [((1, 2, 4), True), ((3,), False)])
def test_what_is_compiled_in_the_recorded_steps_is_no_work_of_them(
    tmp_path: Path, steps: tuple[int, ...], gains: bool
) -> None:
    run = recorded(tmp_path, lambda step, k: 100, lambda step: 30, compiles=steps)
    (told,) = (advice for advice in run.advice().advice if advice.kind == "compilation")
    assert f"in {len(steps)} compilation" in told.evidence
    assert told.gain_ns == (len(steps) * 5_000_000 if gains else None)
    assert not [advice for advice in run.advice().advice if advice.kind == "uneven_steps"]


@pytest.mark.parametrize(("odd", "told"), [({(0, 3), (1, 6), (2, 0), (3, 9)}, True), (set(), False)])
def test_an_op_that_is_heavy_in_odd_calls_alone_wants_a_quiet_machine(
    tmp_path: Path, odd: set[tuple[int, int]], told: bool
) -> None:
    """An op of 200 us that took 5 ms in four places, another one in each step: no faster implementation saves that."""
    run = recorded(tmp_path, lambda step, k: 5000 if (step, k) in odd else 200, lambda step: 30, sizes=(1,) * 4)
    (heavy,) = (one for one in run.advice().advice if one.kind == "heaviest_work")
    assert heavy.what.startswith("aten::mm ")
    assert (
        ("a machine that does nothing else" in heavy.todo)
        == ("more than in the quicker steps" in heavy.evidence)
        == told
    )


def test_the_own_time_of_autograds_engine_is_that_of_hooks(tmp_path: Path) -> None:
    names = ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "aten::add", "aten::mul")
    run = recorded(tmp_path, lambda step, k: 100 if k % 3 else 1000, lambda step: 30, names=names)
    (heavy,) = (one for one in run.advice().advice if one.kind == "heaviest_work")
    assert "register_hook" in heavy.todo and "outside of the ops in it" in heavy.evidence
