"""Whether the parts of a device's time add up and are right: a plain reference, planted losses, published figures."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from graphlink.causes import CAUSES as CAUSE_NAMES
from graphlink.causes import MEANING, NAMES, OF_DEVICES
from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.busy import own_clock_ns
from graphlink.gpu.phases import phases, phases_line
from graphlink.gpu.records import StepTime
from graphlink.gpu.table import gpu_lines, replay_words
from graphlink.gpu.time import GpuTime, gpu_time, idle_rows, iterations
from graphlink.graph_model import Column, NodeKind
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Communication, DeviceClocks, DeviceKind, Linked, OverheadRows, SyncKind, Trace
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank
from graphlink.steps import Steps
from tests.build import Call, Device, Event, Host, Sync, build_trace
from tests.depend.programs import linked_of
from tests.gpu.sums import check_sums
from tests.simulator import random_program, run, write_kineto

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
PLANTED_US = 300
WORKS = 6


def time_of(linked: Linked) -> GpuTime:
    comm = communication(linked)
    return gpu_time(build(linked, comm, BuildOptions(sync="cuda")).graph, linked, comm)


def linked(trace: Trace) -> Linked:
    return link(trace, None, match_hosts(trace, None))


def plain_parts(linked: Linked, comm: Communication, device: int) -> tuple[int, int, int, int, int, int]:
    """Compute, exposed communication, exposed copies, idle, communication, copies: moment by moment, on the device's
    own clock."""
    rows, lead_ns = linked.trace.device, own_clock_ns(linked)
    mine = [k for k in range(len(rows.start_ns)) if rows.device[k] == device]
    talks = {*comm.device_row.tolist()}
    spans = [
        (
            int(rows.start_ns[k] + lead_ns[k]),
            int(rows.end_ns[k] + lead_ns[k]),
            "comm" if k in talks else "copy" if rows.kind[k] == DeviceKind.MEMCPY else "compute",
        )
        for k in mine
    ]
    out = dict.fromkeys(("compute", "comm only", "copy only", "idle", "comm", "copy"), 0)
    marks = sorted({t for low, high, _ in spans for t in (low, high)})
    for low, high in pairwise(marks):
        running = {what for start, end, what in spans if start <= low and high <= end}
        out["compute"] += (high - low) * ("compute" in running)
        out["comm"] += (high - low) * ("comm" in running)
        out["copy"] += (high - low) * ("copy" in running)
        out["comm only"] += (high - low) * ("comm" in running and "compute" not in running)
        out["copy only"] += (high - low) * (running == {"copy"})
        out["idle"] += (high - low) * (not running)
    return out["compute"], out["comm only"], out["copy only"], out["idle"], out["comm"], out["copy"]


def test_idle_time_is_ascending_where_the_clock_of_a_device_steps() -> None:
    """On the device's clock a runs 100 to 110, b 112 to 120, c 122 to 130; on the host's c ends before a does."""
    calls = [Call("cudaLaunchKernel", at, at + 4, at) for at in (10, 20, 30)]
    device = [Device("c", 87, 95, 30, stream=9), Device("a", 100, 110, 10), Device("b", 112, 120, 20)]
    trace = build_trace(host=[Host("aten::mm", 0, 200)], calls=calls, device=device)
    x = linked(replace(trace, clocks=DeviceClocks(np.array([35_000, 0, 0]), ())))
    ((_, idle),) = time_of(x).idle
    assert (idle.start_ns[1:] >= idle.end_ns[:-1]).all()
    assert (np.diff(idle.start_ns - idle.shift_ns) < 0).any()
    check_sums(time_of(x))


def test_every_ns_has_a_cause_where_idle_intervals_overlap_on_the_clock_of_the_host() -> None:
    """While nothing runs for 1,360 us the device's clock gains 650 us: by its end, the interval began before the ops
    that ran before it."""
    calls = [Call("cudaLaunchKernel", at, at + 4, k + 1) for k, at in enumerate((10, 120, 1490))]
    device = [Device("a", 100, 110, 1), Device("b", 130, 140, 2), Device("c", 1500, 1510, 3, stream=9)]
    trace = build_trace(host=[Host("aten::mm", 0, 2000)], calls=calls, device=device)
    x = linked(replace(trace, clocks=DeviceClocks(np.array([0, 0, 650_000]), ())))
    assert [one.idle_ns for one in time_of(x).gpu] == [20_000 + 2_010_000]
    check_sums(time_of(x))


def test_a_step_in_which_the_clock_is_set_back_by_more_than_it_lasts_took_the_device_no_time() -> None:
    calls = [Call("cudaLaunchKernel", at, at + 4, k + 1) for k, at in enumerate((10, 120))]
    device = [Device("a", 100, 110, 1), Device("b", 150, 160, 2)]
    steps = [Host(f"ProfilerStep#{k}", at, at + us, annotation=True) for k, at, us in ((1, 130, 7), (2, 137, 30))]
    trace = build_trace(host=[Host("aten::mm", 0, 129), *steps], calls=calls, device=device)
    found = time_of(linked(replace(trace, clocks=DeviceClocks(np.array([35_000, 0]), ()))))
    assert [(one.to_ns - one.from_ns, one.idle_ns) for step in found.steps for one in step.gpu] == [
        (0, 0),
        (30_000, 12_000),
    ]
    check_sums(found)


@given(st.integers(0, 10**6))
@example(3600)  # the clock steps while two kernels run
def test_parts_of_random_programs_add_up_and_are_those_of_every_moment(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_kineto(run(random_program(seed)), Path(folder) / "kineto.json")
        x = linked_of(Path(folder) / "kineto.json")
    found = time_of(x)
    check_sums(found)
    for one in found.gpu:
        parts = (one.compute_ns, one.exposed_comm_ns, one.exposed_copy_ns, one.idle_ns, one.comm_ns, one.copy_ns)
        assert parts == plain_parts(x, communication(x), one.device)


def program(cause: str | None = None, at: int = 0, streams: int = 1) -> Trace:
    """``WORKS`` kernels, each launched by an op of its own; before kernel ``at`` the GPU loses ``PLANTED_US`` by
    ``cause``.
    """
    host, calls, device, syncs, events, overhead = [], [], [], [], [], []
    now = 100.0
    for k in range(WORKS):
        lost = PLANTED_US if k == at else 0
        tid, stream, late = 1, 7 + k % streams, 0
        if lost and cause == "host_work":
            host.append(Host("aten::nonzero", now - 5, now - 5 + lost))
        elif lost and cause == "memory_management":
            host.append(Host("aten::empty", now - 5, now - 5 + lost))
            calls.append(Call("cudaMalloc", now - 5, now - 5 + lost, 900))
        elif lost and cause == "data_loading":
            host.append(
                Host(
                    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                    now - 5,
                    now - 5 + lost,
                    annotation=True,
                )
            )
        elif lost and cause == "profiler_artefact":
            overhead.append((now - 5, now - 5 + lost))
        elif lost and cause in ("host_blocked", "dependency_stall"):
            # a kernel of the other GPU that lasts until the loss is over
            calls.append(Call("cudaLaunchKernel", 50, 53, 901))
            until = now + 6 + lost if cause == "dependency_stall" else now - 5 + lost
            device.append(Device("other", 60, until, 901, stream=7, device=1))
            if cause == "host_blocked":
                calls.append(Call("cudaStreamSynchronize", now - 5, now - 5 + lost, 902))
                syncs.append(Sync(SyncKind.STREAM, now - 5, now - 5 + lost, 902, stream=7, device=1))
        if lost and cause in ("start_delay", "unknown"):
            late = lost
        elif lost and cause == "dependency_stall":
            late = lost
            calls += [Call("cudaEventRecord", 54, 55, 903), Call("cudaStreamWaitEvent", now - 5, now - 4, 904)]
            syncs.append(
                Sync(SyncKind.STREAM_WAIT, now - 5, now - 4, 904, stream=stream, record=903, record_stream=7, event=1)
            )
            events.append(Event(903, 7, device=1))
        else:
            now += lost
        if lost and cause == "no_work":
            tid = 2
        host.append(Host(f"aten::mm{k}", now, now + 10, tid=tid))
        if not (lost and cause == "unknown"):
            calls.append(Call("cudaLaunchKernel", now + 2, now + 6, k + 1, tid=tid))
        device.append(Device(f"gemm{k}", now + 10 + late, now + 30 + late, k + 1, stream=stream))
        now += 60 + late
    out = build_trace(host=host, calls=calls, device=device, syncs=syncs, events=events)
    if overhead:
        start, end = (np.array([round(us * 1000) for us in column], np.int64) for column in zip(*overhead, strict=True))
        strings = (*out.strings, "Buffer Flush")
        out = replace(
            out, strings=strings, overhead=OverheadRows(start, end, np.full(len(start), len(out.strings), np.int32))
        )
    return out


def spent_ns(found: GpuTime) -> dict[str, int]:
    (one,) = (one for one in found.gpu if one.device == 0)
    return one.idle_by_cause_ns


@cache
def spent_without_ns(streams: int) -> dict[str, int]:
    return spent_ns(time_of(linked(program(streams=streams, at=-1))))


CAUSES = (
    "host_work",
    "python",
    "memory_management",
    "data_loading",
    "profiler_artefact",
    "host_blocked",
    "dependency_stall",
)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize("cause", [*CAUSES, "start_delay", "no_work", "unknown"])
def test_a_planted_loss_is_found_with_its_cause_and_nowhere_else(cause: str, at: int, streams: int) -> None:
    found = time_of(linked(program(cause, at, streams)))
    check_sums(found)
    here, before = spent_ns(found), spent_without_ns(streams)
    more = {name: here.get(name, 0) - before.get(name, 0) for name in {*here, *before}}
    assert sum(more.values()) == PLANTED_US * 1000
    assert more.pop(cause) >= PLANTED_US * 1000 - 1000
    assert max(more.values()) <= 1000, (
        more
    )  # what such a loss takes beside its own time, it takes from the other causes
    if cause not in ("dependency_stall", "no_work", "unknown"):  # which hold for the whole of an idle interval
        assert min(more.values()) >= -1000, more


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize("late_us", [0, 120, 300, 500])
def test_a_host_that_waits_for_a_collective_waits_for_the_last_rank_until_it_comes(
    late_us: int, at: int, streams: int
) -> None:
    """The collective takes PLANTED_US; of that ``late_us`` until the last rank comes, which cannot be longer."""
    begins = 100.0 + 60 * at - 5
    host, calls, device = [], [], []
    for k in range(WORKS):
        now = 100.0 + 60 * k + (PLANTED_US if k >= at else 0)
        host.append(Host(f"aten::mm{k}", now, now + 10))
        calls.append(Call("cudaLaunchKernel", now + 2, now + 6, k + 1))
        device.append(Device(f"gemm{k}", now + 10, now + 30, k + 1, stream=7 + k % streams))
    host.append(Host("gloo:all_reduce", begins, begins + PLANTED_US, annotation=True))
    x = linked(build_trace(host=host, calls=calls, device=device))
    comm = communication(x)
    graph = build(x, comm, BuildOptions(sync="cuda")).graph
    (node,) = np.flatnonzero(graph.kind == NodeKind.HOST_COMM)
    late = Column.of(np.array([node]), np.array([late_us * 1000]))
    found = gpu_time(graph, x, comm, late)
    check_sums(found)
    spent = spent_ns(found)
    assert abs(spent.get("straggler_wait", 0) - min(late_us, PLANTED_US) * 1000) <= 1000
    assert abs(spent.get("dependency_stall", 0) - max(PLANTED_US - late_us, 0) * 1000) <= 1000


@pytest.mark.parametrize(
    ("name", "compute_ms", "copies_ms", "idle_ms"),
    [
        ("inference/h100_vit", 1.225309, 0, 6.334535),
        ("inference/mi300_vit", 1.716299, 0, 5.152550),
        ("inference/sglang_decode_graph", 9.759752, 0.013177, 463.977014),
        ("rocm/mi300_owlv2_skewed", 327.416988, 4.399351, 576.521816),
    ],
)
def test_the_parts_are_those_that_tracelens_published(
    name: str, compute_ms: float, copies_ms: float, idle_ms: float
) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("needs the public traces")
    (one,) = time_of(link_rank(Inputs(kineto=path)).linked).gpu
    for ours_ns, theirs_ms in ((one.compute_ns, compute_ms), (one.exposed_copy_ns, copies_ms), (one.idle_ns, idle_ms)):
        assert abs(ours_ns - theirs_ms * 1e6) <= 10  # both are whole ns; theirs went through floats of us


def test_what_is_late_for_no_recorded_reason_waited_for_nothing() -> None:
    """An op of the second device waits for one of the first by way of a delay, which stands for what nobody knows."""
    path = TRACES / "rocm" / "mi300_resnet_rank0of8.json.gz"
    if not path.exists():
        pytest.skip("needs the public traces")
    (one,) = time_of(link_rank(Inputs(kineto=path)).linked).gpu
    assert set(one.idle_by_cause_ns) == {"unknown", "start_delay"}
    assert one.idle_by_cause_ns["unknown"] > 2_200_000


def test_steps_are_cut_at_their_marks() -> None:
    trace = program()
    marks = [Host("ProfilerStep#1", 90, 290, annotation=True), Host("ProfilerStep#2", 290, 1200, annotation=True)]
    strings = ("", "ProfilerStep#1", "ProfilerStep#2", *trace.strings)
    found = time_of(linked(replace(trace, host=build_trace(host=marks).host, strings=strings)))
    assert [step.name for step in found.steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    check_sums(found)


def test_a_rank_without_device_ops_has_none() -> None:
    found = time_of(linked(build_trace(host=[Host("aten::mm", 0, 10)])))
    assert (found.gpu, found.steps, found.iterations, found.idle, found.warnings) == ((), (), None, (), ())


@pytest.mark.parametrize(
    "device", [[Device("gemm", 10, 20, 1), Device("gemm", 400, 420, 2)], [Device("gemm", 10, 10, 1)]]
)
def test_device_ops_without_any_call_are_idle_for_no_known_reason(device: list[Device]) -> None:
    found = time_of(linked(build_trace(device=device)))
    check_sums(found)
    assert set(spent_ns(found)) <= {"unknown"}


def test_the_timeline_names_the_evidence_of_every_device() -> None:
    found = time_of(linked(program("dependency_stall", 3)))  # two devices
    rows = idle_rows(found)
    (said,) = rows.args
    assert [track.name for track in rows.tracks] == ["GPU 0 idle", "GPU 1 idle"]
    assert said.words is not None
    texts = [said.words[k] for k in said.value.tolist()]
    assert texts == [idle.texts[k] for _, idle in found.idle for k in idle.evidence.tolist()]


def test_every_cause_of_a_device_has_its_meaning() -> None:
    assert list(MEANING) == [*CAUSE_NAMES] == [NAMES[cause] for cause in OF_DEVICES]


def replayed(*launches: tuple[float, ...], marks: Sequence[Host] = ()) -> GpuTime:
    """Launches of graphs, each with when its nodes of 10 us begin; before all of them a kernel. ``marks``: of steps."""
    return time_of(replays_of(*launches, marks=marks))


def replays_of(*launches: tuple[float, ...], marks: Sequence[Host] = ()) -> Linked:
    calls = [Call("cudaLaunchKernel", 1, 2, 99)]
    device = [Device("k", 5, 6, 99)]
    for number, starts in enumerate(launches, start=1):
        calls.append(Call("cudaGraphLaunch", 5 * number, 5 * number + 1, number))
        device += [Device("n", at, at + 10, number, graph=3, graph_node=k + 1) for k, at in enumerate(starts)]
    return linked(build_trace(host=[*marks, Host("aten::mm", 0, 990)], calls=calls, device=device))


@pytest.mark.parametrize(("name", "by_step"), [("step[DECODE bs=1]", True), ("decode", False)])
def test_steps_and_phases_say_how_many_of_their_replays_are_recorded(name: str, by_step: bool) -> None:
    windows = [(0, 12), (12, 22), (22, 40)]  # launches begin at 5, 10, 15 and 20
    marks = [Host(name, *window, annotation=True) for window in windows]
    trace = replays_of((50, 60), (), (100,), (), marks=marks)
    found = time_of(trace)
    in_steps = [gpu.replays for step in found.steps for gpu in step.gpu]
    assert in_steps == ([(1, 2), (1, 2), UNSET] if by_step else [])
    (phase,) = phases(found, trace, 0)
    assert (phase.replays, replay_words(phase)) == ((2, 4), "; recorded 2 of 4 replays")
    assert "recorded 2 of 4 replays" in phases_line([phase])


def test_idle_figures_say_how_many_replays_are_recorded() -> None:
    (gpu,) = replayed((50, 60, 70), (), ()).gpu
    assert gpu.replays == (1, 3)
    (line, _), said = gpu_lines(gpu)[0], gpu_lines(gpu)[0][1]
    assert (line, said.partition("; ")[2]) == ("GPU 0", "recorded 1 of 3 replays")
    (gpu,) = replayed((50, 60, 70), (100, 110)).gpu
    assert gpu.replays is UNSET and "recorded" not in gpu_lines(gpu)[0][1]


@pytest.mark.parametrize(
    ("call", "told"),
    [(Call("cudaLaunchKernel", 3, 4, 98), [(1, 2), UNSET]), (Call("cudaGraphLaunch", 3, 4, 98), [UNSET, UNSET])],
)
def test_replays_are_of_the_one_device_that_ran_graphs(call: Call, told: list[object]) -> None:
    calls = [call, Call("cudaGraphLaunch", 5, 6, 1), Call("cudaGraphLaunch", 7, 8, 2)]
    device = [Device("k", 10, 20, 98, device=1), Device("n", 30, 40, 1)]
    found = time_of(linked(build_trace(host=[Host("aten::mm", 0, 90)], calls=calls, device=device)))
    assert [gpu.replays for gpu in found.gpu] == told
    assert found.warnings[0].startswith("1 of ")  # in all


@pytest.mark.parametrize(
    ("took", "slowest"),
    [((9, 5, 5, 5), None), ((9, 5, 6), 2), ((9, 4, 5, 5), None), ((9, 5, 6, 20, 5), 3), ((9, 5), 1)],
)
def test_a_step_is_slowest_where_it_is_longer_than_the_others_beyond_their_spread(
    took: tuple[int, ...], slowest: int | None
) -> None:
    ends = np.cumsum(took)
    cut = Steps("step", "mark", tuple(map(str, took)), ends - took, ends)
    times = [StepTime(name="", start_ns=0, end_ns=ns, gpu=[]) for ns in took]
    told = iterations(cut, times)
    assert told is not None and (told.slowest, told.why) == (slowest, [])


@pytest.mark.parametrize(
    ("took", "told"),
    [
        ((30, 30, 30, 30, 30), 30_000),
        ((30, 30, 40, 50, 30), 40_000),  # the steps in between: the first may hold what is done once
        ((30, 30, 10, 30, 30), UNSET),  # not all are longer than those of the host
        ((10, 10, 10, 10, 10), UNSET),
        ((30, 30), UNSET),  # one distance alone, that of the first
        ((30, 0, 30, 30, 30), UNSET),  # a step without work
    ],
)
def test_where_the_host_runs_ahead_a_step_takes_what_it_takes_on_the_device(
    took: tuple[int, ...], told: int | UnsetType
) -> None:
    """Its steps of 10 us are only what it takes to launch them, and do not hold for the run."""
    host = [Host(f"ProfilerStep#{k}", 10 * k, 10 * k + 9.5, annotation=True) for k in range(len(took))]
    ends = np.cumsum(took)
    calls = [Call("cudaLaunchKernel", 10 * k + 1, 10 * k + 2, k + 1) for k, us in enumerate(took) if us]
    device = [Device("k", 5 + int(ends[k]) - us, 5 + int(ends[k]), k + 1) for k, us in enumerate(took) if us]
    found = time_of(linked(build_trace(host=host, calls=calls, device=device)))
    assert found.iterations is not None and found.iterations.on_device_ns == told


@pytest.mark.parametrize(
    ("launches", "warned"),
    [
        (((900, 910, 920),), True),
        (((900, 910, 920), (940, 950)), False),  # two replays
        (((100, 500, 920),), False),  # for most of the time
        (((900,),), False),  # one of two ops
    ],
)
def test_one_replay_in_a_burst_is_named(launches: tuple[tuple[float, ...], ...], warned: bool) -> None:
    told = [text for text in replayed(*launches).warnings if "one replay of a graph" in text]
    assert bool(told) == warned
    if warned:
        assert "3 device ops within 0.030 of 0.925 ms" in told[0]


def test_idle_time_between_ops_of_graph_launches_is_said_to_be_unsure() -> None:
    calls = [Call("cudaGraphLaunch", 5, 10, 1), Call("cudaGraphLaunch", 15, 20, 2)]
    device = [Device("a", 12, 20, 1), Device("b", 300, 320, 1)]
    found = time_of(linked(build_trace(host=[Host("aten::mm", 0, 30)], calls=calls, device=device)))
    bare, unsure = found.warnings
    assert bare.startswith("1 of 2 graph launch calls own no device op")
    assert unsure.startswith("GPU 0: 0.278 of 0.280 ms of idle time lie between ops of graph launches")
    assert all(text.endswith("(nsys --cuda-graph-trace=node records every op of a graph)") for text in found.warnings)


def test_of_hip_graphs_nsys_records_nothing() -> None:
    calls = [Call("hipGraphLaunch", 5, 10, 1), Call("hipGraphLaunch", 15, 20, 2)]
    device = [Device("a", 12, 20, 1), Device("b", 300, 320, 1)]
    found = time_of(linked(build_trace(host=[Host("aten::mm", 0, 30)], calls=calls, device=device)))
    assert len(found.warnings) == 2 and not any("nsys" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("correlation", "start", "text", "warning"),
    [
        (
            3,
            300,
            "launched before the recording",
            "before ops that were launched before the recording",
        ),  # ids ascend: older than the first
        (7, 300, "its launch call was not recorded", "before ops whose launch calls are not recorded"),
        (0, 300, "its launch call was not recorded", "before ops whose launch calls are not recorded"),
        (0, 12, "launched before the recording", None),  # no recorded call could have launched it; 8 us are no warning
    ],
)
def test_what_is_not_known_of_a_launch_is_said_apart(
    correlation: int, start: int, text: str, warning: str | None
) -> None:
    calls = [Call("cudaLaunchKernel", 8, 11, 5), Call("cudaLaunchKernel", 510, 515, 9)]
    device = [
        Device("first", 1, 2, 1),
        Device("a", 20, 40, 5),
        Device("b", start, start + 5, correlation),
        Device("c", 520, 540, 9),
    ]
    found = time_of(linked(build_trace(host=[Host("aten::mm", 0, 600)], calls=calls, device=device)))
    ((_, idle),) = found.idle
    unknown = np.flatnonzero(idle.cause == NAMES.index("unknown"))
    assert {idle.texts[k] for k in idle.evidence[unknown].tolist()} == {text}
    assert [one.split(" ms of idle time lie ")[1][: len(warning or "")] for one in found.warnings] == (
        [warning] if warning else []
    )
    assert not any("nsys" in one for one in found.warnings)


def test_a_little_unknown_time_is_no_warning() -> None:
    assert len(time_of(linked(program("unknown", 3))).warnings) == 1
    calls = [Call("cudaLaunchKernel", 8, 11, 5), Call("cudaLaunchKernel", 90_000, 90_005, 9)]
    device = [Device("a", 20, 40, 5), Device("b", 300, 310, 7), Device("c", 90_010, 90_040, 9)]
    assert time_of(linked(build_trace(host=[Host("aten::mm", 0, 90_100)], calls=calls, device=device))).warnings == ()


def test_idle_time_of_plain_launches_is_not() -> None:
    calls = [Call("cudaLaunchKernel", 5, 10, 1), Call("cudaLaunchKernel", 290, 295, 2)]
    device = [Device("a", 12, 20, 1), Device("b", 300, 320, 2)]
    assert time_of(linked(build_trace(host=[Host("aten::mm", 0, 400)], calls=calls, device=device))).warnings == ()
