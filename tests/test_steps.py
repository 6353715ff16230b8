"""Which node tells the steps of a recording, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.time import gpu_time
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Linked
from graphlink.read.nsys.report import read_nsys
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank
from graphlink.steps import Steps, steps_of
from tests.build import Call, Device, Host, build_trace
from tests.simulator import Execution, Training, run, training_program
from tests.simulator.nsys import NsysVariation, write_nsys

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


def found(host: Sequence[Host], device: Sequence[Device] = (), calls: Sequence[Call] = ()) -> Steps:
    return steps_of(linked(host, device, calls))


def linked(host: Sequence[Host], device: Sequence[Device] = (), calls: Sequence[Call] = ()) -> Linked:
    trace = build_trace(host=[*host], device=[*device], calls=[*calls])
    return link(trace, None, match_hosts(trace, None))


def spans(steps: Steps, since_us: int = 0) -> list[tuple[int, int]]:
    """In us."""
    start, end = ((at_ns // 1000 - since_us).tolist() for at_ns in (steps.start_ns, steps.end_ns))
    return list(zip(start, end, strict=True))


def loop(count: int, period: int = 100, first: int = 10) -> list[Host]:
    """A training loop without marks: in each step two equal layers, then the optimizer."""
    host = []
    for k in range(count):
        at = first + period * k
        host += [Host("aten::mm", at, at + 20), Host("aten::mm", at + 25, at + 45)]
        host += [Host("Optimizer.zero_grad#SGD.zero_grad", at + 50, at + 55, annotation=True)]
        host += [Host("Optimizer.step#SGD.step", at + 60, at + 90, annotation=True)]
    return host


def test_marks_come_first() -> None:
    marks = [Host(f"ProfilerStep#{4 + k}", 10 + 100 * k, 105 + 100 * k, annotation=True) for k in range(3)]
    steps = found([*loop(3), *marks])
    assert (steps.key, steps.found_by, steps.names) == (
        "ProfilerStep",
        "mark",
        ("ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"),
    )
    assert spans(steps) == [(10, 105), (110, 205), (210, 305)]


def test_a_range_that_says_step_is_one() -> None:
    ranges = [Host(name, 10 + 100 * k, 105 + 100 * k, annotation=True) for k, name in enumerate(("step 7", "step 8"))]
    steps = found([*loop(2), *ranges])
    assert (steps.key, steps.found_by, steps.names) == ("step", "range", ("step 7", "step 8"))
    assert found([*loop(2), Host("one step aside", 0, 9, annotation=True)]).found_by == "optimizer"


def test_an_optimizer_ends_steps() -> None:
    steps = found(loop(3))
    assert (steps.key, steps.found_by) == ("Optimizer.step#SGD.step", "optimizer")
    assert spans(steps) == [(10, 100), (100, 200), (200, 300)]
    assert steps.names[0] == "Optimizer.step#SGD.step 1"


def test_zero_grad_begins_steps_and_the_last_has_no_end() -> None:
    steps = found([one for one in loop(3) if "Optimizer.step" not in one.name])
    assert (steps.found_by, spans(steps)) == ("zero_grad", [(60, 160), (160, 260)])


def test_without_names_it_is_what_repeats_evenly_and_covers_most() -> None:
    host = [one for one in loop(4) if not one.name.startswith("Optimizer")]
    host += [Host("aten::conv2d", 10 + 100 * k + 47, 10 + 100 * k + 95) for k in range(4)]
    assert found(host).names == (), "no backward and no optimizer: these may be layers of one step"
    steps = found([*host, *(Host("MmBackward0", 10 + 100 * k + 96, 10 + 100 * k + 98, tid=2) for k in range(4))])
    assert (steps.key, steps.found_by) == ("aten::conv2d", "repeated"), "aten::mm stands there twice a step"
    assert spans(steps) == [(57, 157), (157, 257), (257, 357)]


def test_layers_of_one_step_are_no_steps() -> None:
    layers = [Host("aten::layer_norm", 10 + 100 * k, 90 + 100 * k) for k in range(12)]
    backward = [Host("autograd::engine::evaluate_function", 1_300, 3_000)]
    assert found([*layers, *backward]).names == ()


def test_kernels_tell_where_no_host_row_does() -> None:
    device = [Device("gemm", 100 * k, 100 * k + 50, k + 1) for k in range(5)]
    device += [Device("copy", 100 * k + 60, 100 * k + 70, k + 11) for k in range(5)]
    assert found([], device).names == ()
    steps = found([], [*device, *(Device("cudnn::dgrad_kernel", 100 * k + 72, 100 * k + 75, k + 21) for k in range(5))])
    assert (steps.key, steps.found_by, len(steps.names)) == ("gemm", "repeated", 4)


def test_a_window_that_is_cut_out_of_one_forward_has_no_steps() -> None:
    """Layers repeat over the whole window, as ranges with numbers, as ops, and as kernels; FSDP registers the backward
    in each.
    """
    host, device = [], []
    for k in range(12):
        at = 10 + 100 * k
        host += [Host(f"layer_{k}", at, at + 95, annotation=True), Host("flash_attn::forward", at + 5, at + 50)]
        host += [Host("RegisterPostBackwardFunction", at + 2, at + 4)]
        device.append(Device("flash_fwd_kernel", at + 20, at + 90, k + 1))
    assert found(host, device).names == ()
    same = [one._replace(name="TransformerLayer") if one.annotation else one for one in host]
    assert found(same, device).names == ()
    trained = [Device("flash_bwd_kernel", 10 + 100 * k + 91, 10 + 100 * k + 94, k + 31) for k in range(12)]
    steps = found(host, [*device, *trained])
    assert (steps.key, steps.names[:2], len(steps.names)) == ("layer", ("layer_0", "layer_1"), 11), (
        "each has its own backward"
    )


def test_a_range_that_covers_the_recording_is_a_step_without_a_backward() -> None:
    """As in inference."""
    ranges = [Host("generate", 10 + 100 * k, 90 + 100 * k, annotation=True) for k in range(4)]
    ops = [Host("aten::mm", 20 + 100 * k, 30 + 100 * k) for k in range(4)]
    assert (found([*ranges, *ops]).key, len(found([*ranges, *ops]).names)) == ("generate", 3)
    short = [one._replace(end=one.start + 40) for one in ranges]
    assert found([*short, *ops]).names == ()


def test_numbers_at_the_end_of_names_do_not_part_what_repeats() -> None:
    host = [Host(f"forward_backward_{k}", 10 + 100 * k, 80 + 100 * k, annotation=True) for k in range(6)]
    steps = found([*host, *(Host("aten::mm", 20 + 100 * k, 30 + 100 * k) for k in range(6))])
    assert (steps.key, steps.found_by, spans(steps)[0]) == ("forward_backward", "repeated", (10, 110))
    assert steps.names == tuple(f"forward_backward_{k}" for k in range(5)), "nothing ends the sixth"


def exported(tmp_path: Path, steps: int, mark: str, keep: str = ".*") -> Steps:
    """Training that nsys recorded, with ``mark`` and a number for the marks of the profiler, and of all ranges those
    that ``keep``.
    """
    program = training_program(3, Training(steps=steps))
    execution = run(program)
    host = [
        replace(op, name=f"{mark}{int(op.name.split('#')[1]) - first_step(execution)}")
        if op.name.startswith("ProfilerStep#")
        else op
        for op in execution.host
    ]
    kept = [op for op in host if re.fullmatch(keep, op.name)]
    path = tmp_path / "run.sqlite"
    write_nsys([replace(execution, host=tuple(kept))], path, vary=NsysVariation(nccl=False))
    (trace,) = read_nsys(path)
    return steps_of(link(trace, None, match_hosts(trace, None)))


def first_step(execution: Execution) -> int:
    return min(int(op.name.split("#")[1]) for op in execution.host if op.name.startswith("ProfilerStep#"))


@pytest.mark.parametrize(
    ("mark", "keep", "key", "found_by", "count"),
    [
        ("iteration", "iteration.*", "iteration", "mark", 6),
        ("forward_backward_", "forward_backward_.*", "forward_backward", "repeated", 5),
        ("iteration", ".*Optimizer.*|aten::.*", "Optimizer.step#SGD.step", "optimizer", 6),
        ("iteration", ".*Backward0", "", "repeated", 5),  # kernels and autograd alone
    ],
)
def test_steps_of_an_export_of_nsys(tmp_path: Path, mark: str, keep: str, key: str, found_by: str, count: int) -> None:
    steps = exported(tmp_path, 6, mark, keep)
    assert (steps.found_by, len(steps.names)) == (found_by, count)
    assert not key or steps.key == key


def test_a_cut_window_of_a_training_has_no_steps_of_layers() -> None:
    """33 forwards of layers in 300 ms, and no backward."""
    path = TRACES / "nsys" / "h100_2gpu_train_skewed.sqlite"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    assert {steps_of(link(trace, None, match_hosts(trace, None))).names for trace in read_nsys(path)} == {()}


def test_a_recording_that_repeats_nothing_has_none() -> None:
    assert found([Host("aten::mm", 0, 10), Host("aten::add", 20, 30), Host("aten::mm", 40, 50)]).found_by == ""


@given(
    st.integers(3, 9),
    st.integers(50, 90),
    st.lists(st.integers(0, 40), min_size=9, max_size=9),
    st.integers(0, 10**15),
    st.randoms(use_true_random=False),
)
def test_clock_and_order_do_not_matter(count: int, took: int, late: list[int], shift: int, random: object) -> None:
    host = [Host("forward", 200 * k + late[k], 200 * k + late[k] + took, annotation=True) for k in range(count)]
    host += [Host("aten::mm", one.start, one.end) for one in host]
    moved = [one._replace(start=one.start + shift, end=one.end + shift) for one in host]
    random.shuffle(moved)  # type: ignore[attr-defined]
    steps, again = found(host), found(moved)
    assert steps.names == again.names and spans(steps) == spans(again, shift)
    assert steps.key in ("forward", "") and len(steps.names) in (0, count - 1)


def test_the_slowest_step_says_what_it_took_longer_for() -> None:
    host, calls, device = [], [], []
    at = 0
    for k, pause in enumerate((50, 0, 0, 30, 0)):  # us
        begin, at = at, at + pause
        host.append(Host("aten::mm", at, at + 20))
        calls.append(Call("cudaLaunchKernel", at + 5, at + 10, k + 1))
        device.append(Device("gemm", at + 12, at + 60, k + 1))
        at += 70
        host.append(Host(f"ProfilerStep#{k}", begin, at, annotation=True))
    rank = linked(host, device, calls)
    comm = communication(rank)
    told = gpu_time(build(rank, comm, BuildOptions(sync="cuda")).graph, rank, comm).iterations
    assert told is not None and (told.key, told.found_by, told.count, told.slowest) == ("ProfilerStep", "mark", 5, 3)
    assert (told.first_ns, told.shortest_ns, told.median_ns, told.longest_ns) == (120_000, 70_000, 70_000, 100_000)
    assert (told.mean_ns, told.spread_ns) == (77_500, round(np.std([70_000, 70_000, 100_000, 70_000])))
    assert sum(one.ns for one in told.why) == 30_000
    assert {one.what for one in told.why} <= {"python", "no_work"}


@pytest.mark.parametrize(
    ("recording", "key", "found_by", "count"),
    [
        ("late-wakeup/v100_resnet50_slow_event_sync.json.gz", "Optimizer.step#SGD.step", "optimizer", 6),
        ("legacy/v100_resnet50_2021_operator_steps.json.gz", "ProfilerStep", "mark", 6),
    ],
)
def test_recordings_of_others(recording: str, key: str, found_by: str, count: int) -> None:
    path = TRACES / recording
    if not path.exists():
        pytest.skip(f"{path} is not here")
    rank = link_rank(Inputs(kineto=path)).linked
    steps = steps_of(rank)
    assert (steps.key, steps.found_by, len(steps.names)) == (key, found_by, count)


def test_without_its_marks_a_recording_has_the_same_steps() -> None:
    path = TRACES / "legacy" / "v100_resnet50_2021_operator_steps.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    rank = link_rank(Inputs(kineto=path)).linked
    marked = steps_of(rank)
    trace = rank.trace
    strings = tuple(text.replace("ProfilerStep#", "Nothing to be found ") for text in trace.strings)
    bare = steps_of(renamed(rank, strings))
    assert bare.found_by == "optimizer" and len(bare.names) == len(marked.names)
    took, without = (np.diff(one.end_ns) for one in (marked, bare))
    assert np.abs(took / without - 1).max() < 0.05


def renamed(rank: Linked, strings: tuple[str, ...]) -> Linked:
    return replace(rank, trace=replace(rank.trace, strings=strings))


@pytest.mark.parametrize("name", ["step[{}]", "iteration {}", "train_step {}", "Iter_{}", "ProfilerStep#{}"])
def test_scopes_of_one_number_are_one_step(name: str) -> None:
    scopes = [
        Host(name.format(k), 100 * k + at, 100 * k + at + 30, annotation=True) for k in range(3) for at in (0, 40)
    ]
    assert spans(found(scopes)) == [(0, 70), (100, 170), (200, 270)]
    assert found(scopes).names == tuple(name.format(k) for k in range(3))
    if "[" in name or "#" in name:
        assert spans(found(scopes[:2])) == [(0, 70)], "of one step alone"


def test_a_number_that_is_always_the_same_counts_no_steps() -> None:
    scopes = [Host("train_step 512", 100 * k, 100 * k + 80, annotation=True) for k in range(3)]
    assert len(spans(found(scopes))) == 3


@pytest.mark.parametrize("sizes", [(32, 32, 32, 31, 31), (8, 8, 16, 16, 64, 64), (1, 1, 1, 2)])
def test_a_number_that_tells_of_a_batch_counts_no_steps(sizes: tuple[int, ...]) -> None:
    scopes = [Host(f"iteration {size}", 100 * k, 100 * k + 80, annotation=True) for k, size in enumerate(sizes)]
    assert len(spans(found(scopes))) == len(sizes)


def test_ranges_without_a_number_are_a_step_each() -> None:
    ranges = [Host("train_step", 100 * k, 100 * k + 80, annotation=True) for k in range(3)]
    assert spans(found(ranges)) == [(0, 80), (100, 180), (200, 280)]
