"""Which node tells the steps of a recording, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.steps import Steps, steps_of
from graphlink.gpu.time import gpu_time
from graphlink.link.communication import communication
from graphlink.link.launch import link
from graphlink.link.match import match_hosts
from graphlink.model import Linked
from graphlink.run.job import Inputs, link_rank
from tests.build import Call, Device, Host, build_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


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
    assert (steps.key, steps.found_by, steps.names) == ("ProfilerStep", "mark", ("ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"))
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
    steps = found(host)
    assert (steps.key, steps.found_by) == ("aten::conv2d", "repeated"), "aten::mm stands there twice a step"
    assert spans(steps) == [(57, 157), (157, 257), (257, 357)]


def test_layers_of_one_step_are_no_steps() -> None:
    layers = [Host("aten::layer_norm", 10 + 100 * k, 90 + 100 * k) for k in range(12)]
    backward = [Host("autograd::engine::evaluate_function", 1_300, 3_000)]
    assert found([*layers, *backward]).names == ()


def test_kernels_tell_where_no_host_row_does() -> None:
    device = [Device("gemm", 100 * k, 100 * k + 50, k + 1) for k in range(5)]
    device += [Device("copy", 100 * k + 60, 100 * k + 70, k + 11) for k in range(5)]
    steps = found([], device)
    assert (steps.key, steps.found_by, len(steps.names)) == ("gemm", "repeated", 4)


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
