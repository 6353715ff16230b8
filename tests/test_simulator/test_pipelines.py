"""Simulated pipelines against published closed forms and tables, against a plain reference, and against the ways of
CUDA.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator import (
    RANGE_NAMES,
    SCHEDULES,
    Api,
    Execution,
    HostOp,
    Loss,
    PipelineRun,
    PipelineTraining,
    Place,
    Slot,
    kineto_document,
    order,
    pipeline_run,
)
from tests.simulator.pipeline_orders import SPLIT
from tests.test_simulator.pipeline_reference import simulate

MS = 1_000_000


def ms(value: float) -> int:
    return round(value * MS)


def training(
    schedule: str, stages: int, microbatches: int, chunks: int = 1, transfer: float = 0, **more: Any
) -> PipelineTraining:
    """F, I and W of a rank's whole model take 1 ms a microbatch."""
    part = MS // chunks
    return PipelineTraining(schedule, stages, microbatches, chunks, part, part, part, ms(transfer), **more)


def rate(run: PipelineRun) -> Fraction:
    return 1 - Fraction(run.work_ns(), run.training.stages * run.makespan_ns())


def rate_zb(run: PipelineRun) -> Fraction:
    cost = max(run.own_ns(rank) for rank in range(run.training.stages))
    return Fraction(cost - run.work_ns(0), cost)


def inside(run: PipelineRun, cause: str) -> list[float]:
    """Idle time by rank in ms."""
    return [run.idle_ns(rank).get(cause, 0) / MS for rank in range(run.training.stages)]


# schedules, chunks; makespan in ms and bubble rate by p, m
TABLE = {
    (4, 4): ((21, 0.4286), (21, 0.4286), (16.5, 0.2727), (14.25, 0.1579), (15, 0.2), (16, 0.25)),
    (4, 8): ((33, 0.2727), (33, 0.2727), (28.5, 0.1579), (26.25, 0.0857), (27, 0.1111), (27, 0.1111)),
    (8, 16): ((69, 0.3043), (69, 0.3043), (58.5, 0.1795), (53.25, 0.0986), (55, 0.1273), (55, 0.1273)),
    (8, 32): ((117, 0.1795), (117, 0.1795), (106.5, 0.0986), (101.25, 0.0519), (103, 0.068), (103, 0.068)),
}
COLUMNS = (("GPipe", 1), ("1F1B", 1), ("interleaved", 2), ("interleaved", 4), ("ZB-H1", 1), ("ZB-H2", 1))
ORACLES = [(s, v, p, m, *row) for (p, m), rows in TABLE.items() for (s, v), row in zip(COLUMNS, rows, strict=True)]


@pytest.mark.parametrize(("schedule", "chunks", "stages", "microbatches", "makespan", "by_makespan"), ORACLES)
def test_the_oracle_table(
    schedule: str, chunks: int, stages: int, microbatches: int, makespan: float, by_makespan: float
) -> None:
    run = pipeline_run(training(schedule, stages, microbatches, chunks))
    assert run.makespan_ns() == ms(makespan)
    assert round(float(rate(run)), 4) == by_makespan
    expected_zb = {(4, 4): 0.2}.get((stages, microbatches), 0.0) if schedule == "ZB-H2" else by_makespan
    assert round(float(rate_zb(run)), 4) == expected_zb


@pytest.mark.parametrize(
    ("schedule", "cooldown", "own"),
    [
        ("GPipe", [0, 2, 4, 6], [33, 30, 27, 24]),
        ("1F1B", [0, 2, 4, 6], [33, 30, 27, 24]),
        ("ZB-H1", [0, 0, 0, 0], [27, 26, 25, 24]),
        ("ZB-H2", [3, 2, 1, 0], [24, 24, 24, 24]),
    ],
)
def test_warmup_cooldown_and_own_windows(schedule: str, cooldown: list[float], own: list[float]) -> None:
    run = pipeline_run(training(schedule, 4, 8))
    assert inside(run, "warmup") == [0, 1, 2, 3]
    assert inside(run, "cooldown") == cooldown
    assert [run.own_ns(rank) / MS for rank in range(4)] == own


DELAYED = {
    (4, 8, 0.5): ((36, 0.3333), (41, 0.4146), (33, 0.2727), (28.5, 0.1579)),
    (4, 8, 1): ((39, 0.3846), (49, 0.5102), (41, 0.4146), (30, 0.2)),
    (4, 16, 1): ((63, 0.2381), (85, 0.4353), (71, 0.3239), (54, 0.1111)),
    (8, 16, 1): ((83, 0.4217), (109, 0.5596), (89, 0.4607), (62, 0.2258)),
}


@pytest.mark.parametrize("visible", [False, True], ids=["pure", "visible"])
@pytest.mark.parametrize(
    ("schedule", "shape", "makespan", "by_makespan"),
    [
        (schedule, shape, *row)
        for shape, rows in DELAYED.items()
        for schedule, row in zip(("GPipe", "1F1B", "ZB-H1", "ZB-H2"), rows, strict=True)
    ],
)
def test_transfer_delay(
    schedule: str, shape: tuple[int, int, float], makespan: float, by_makespan: float, visible: bool
) -> None:
    run = pipeline_run(training(schedule, shape[0], shape[1], transfer=shape[2], visible=visible))
    assert run.makespan_ns() == ms(makespan)
    assert round(float(rate(run)), 4) == by_makespan
    expected_zb = {(4, 8, 0.5): 0.1111}.get(shape, by_makespan) if schedule == "ZB-H2" else by_makespan
    assert round(float(rate_zb(run)), 4) == expected_zb


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_the_form_of_1f1b_with_transfer_delay(stages: int, times: int) -> None:
    microbatches, delay = times * stages, MS // 4
    run = pipeline_run(training("1F1B", stages, microbatches, transfer=0.25))
    grown = 2 * delay * ((stages - 1) * times + stages - 2)
    assert run.makespan_ns() == (microbatches + stages - 1) * 3 * MS + grown
    beyond = run.idle_ns()["dependency_stall"] + run.idle_ns()["warmup"] + run.idle_ns()["cooldown"]
    assert beyond == stages * run.makespan_ns() - run.work_ns()


@pytest.mark.parametrize(
    ("times", "h1", "own_h2", "h2"),
    [((1, 1, 0.5), 1.5, 1, 1), ((2, 1, 1), 2, 1, 2), ((1, 1.5, 1.2), 1.5, 0.5, 1), ((1, 1, 2), 1, 0, 1)],
)
def test_unequal_phases(times: tuple[float, float, float], h1: float, own_h2: float, h2: float) -> None:
    work, kinds = ms(12 * sum(times)), [ms(t) for t in times]
    one = pipeline_run(PipelineTraining("ZB-H1", 4, 12, 1, *kinds))
    two = pipeline_run(PipelineTraining("ZB-H2", 4, 12, 1, *kinds))
    assert one.makespan_ns() - work == ms(3 * h1)
    assert max(two.own_ns(rank) for rank in range(4)) - work == ms(3 * own_h2)
    assert two.makespan_ns() - work == ms(3 * h2)


# random trainings


@st.composite
def trainings(draw: st.DrawFn) -> PipelineTraining:
    schedule = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.integers(2, 5))
    chunks = draw(st.integers(1, 3)) if schedule == "interleaved" else 1
    microbatches = stages * draw(st.integers(1, 2)) if schedule == "interleaved" else draw(st.integers(1, 7))
    virtual = stages * chunks
    times = st.tuples(*[st.integers(700_000, 3_000_000)] * virtual)
    visible = draw(st.booleans())
    names = draw(
        st.sampled_from(
            [
                n
                for n, of in RANGE_NAMES.items()
                if (of.split or schedule not in SPLIT) and (of.interleaves or chunks == 1)
            ]
        )
    )
    optimizer = draw(st.booleans())
    return PipelineTraining(
        schedule, stages, microbatches, chunks, draw(times), draw(times), draw(times),
        draw(st.tuples(*[st.integers(1, 300_000)] * (virtual - 1))), visible, draw(st.integers(1, 3)), draw(st.integers(1, 2)),
        draw(st.integers(1_000, 400_000)) if optimizer else 0, draw(st.sampled_from((0, 70_000))) if optimizer else 0,
        draw(st.sampled_from((0, 30_000))) if optimizer else 0, names, draw(st.booleans()),
    )  # fmt: skip


def check_identity(run: PipelineRun) -> None:
    """Ranges and idle time of a rank tile the makespan: nothing is missing, nothing counted twice."""
    for step, (start_ns, end_ns) in enumerate(run.steps):
        for rank in range(run.training.stages):
            idle = [row for row in run.idle if (row.rank, row.step) == (rank, step) and row.cause != "optimizer_sync"]
            work_ns = run.work_ns(rank, step)
            assert work_ns + sum(row.end_ns - row.start_ns for row in idle) == end_ns - start_ns
            ranges = [r for r in run.ranges if (r.rank, r.step) == (rank, step) and r.phase != "OPT"]
            gaps = [row for row in idle if not any(r.start_ns <= row.start_ns < r.end_ns for r in ranges)]
            pieces = sorted([(r.start_ns, r.end_ns) for r in ranges] + [(g.start_ns, g.end_ns) for g in gaps])
            assert [start for start, _ in pieces] == [start_ns, *(end for _, end in pieces[:-1])]
            assert pieces[-1][1] == end_ns


@settings(max_examples=30, deadline=None)
@given(trainings())
def test_random_trainings_tile_their_makespan_and_equal_the_reference(what: PipelineTraining) -> None:
    run = pipeline_run(what)
    check_identity(run)
    assert len(run.executions) == what.stages  # and each machine runs what was planned
    orders = [order(what.schedule, what.stages, what.microbatches, what.chunks, rank) for rank in range(what.stages)]
    times = simulate(
        orders,
        lambda phase, stage: Fraction(what.range_ns(phase, stage)),
        lambda stage: Fraction(what.boundary_ns(stage)),
        what.chunks,
    )
    for r in run.ranges:
        if r.phase != "OPT":
            start, end = times[r.rank, Slot(r.phase, r.chunk, r.microbatch)]
            assert (r.start_ns - run.steps[r.step][0], r.end_ns - run.steps[r.step][0]) == (start, end)


def test_jitter_makes_ranges_longer_and_leaves_the_rest_true() -> None:
    run = pipeline_run(PipelineTraining("ZB-H1", 4, 8, transfer_ns=20_000, jitter_ns=90_000, kernels=2))
    check_identity(run)
    assert len(run.executions) == 4
    lengths = {r.busy_ns for r in run.ranges}
    assert len(lengths) > 50
    assert MS <= min(lengths) < max(lengths) <= MS + 90_000
    again = pipeline_run(replace(run.training, losses=(Loss("launch_starved", 300_000),)))
    assert [r.busy_ns for r in again.ranges] == [r.busy_ns for r in run.ranges]


# losses

PLAIN = PipelineTraining("1F1B", 4, 8, optimizer_ns=300_000, norm_ns=50_000)
LOST = 300_000
HOST_LOSSES = [
    ("launch_starved", "python"),
    *(("host_sync", how) for how in ("stream", "event", "device", "item")),
    *(("data_loading", how) for how in ("loader", "batch-generator", "copy", "prefetch")),
    *(("memory_management", how) for how in ("cudaMalloc", "cudaFree")),
    *(("profiler_artefact", how) for how in ("flush", "request")),
]


def lost_at(run: PipelineRun, cause: str) -> Any:
    (row,) = (row for row in run.idle if row.cause == cause)
    return row


@pytest.mark.parametrize("base", [
    PLAIN, replace(PLAIN, transfer_ns=200_000, visible=True), replace(PLAIN, autograd_thread=False, kernels=3),
    replace(PLAIN, schedule="ZB-H1"), replace(PLAIN, schedule="GPipe"), training("interleaved", 4, 8, 2),
], ids=["1F1B", "visible", "main thread", "ZB-H1", "GPipe", "interleaved"])  # fmt: skip
@pytest.mark.parametrize(("cause", "how"), HOST_LOSSES)
def test_a_loss_of_the_host_costs_exactly_that(base: PipelineTraining, cause: str, how: str) -> None:
    before, run = pipeline_run(base), pipeline_run(replace(base, losses=(Loss(cause, LOST, how=how),)))
    check_identity(run)
    row = lost_at(run, cause)
    assert row.end_ns - row.start_ns == LOST
    assert set(run.idle_ns()) - set(before.idle_ns()) == {cause}
    execution = run.executions[row.rank]
    kernel = next(i for i, op in enumerate(execution.device) if op.stream == 7 and op.start_ns == row.end_ns)
    launch = execution.calls[execution.device[kernel].call]
    if how != "prefetch":
        assert launch.end_ns - launch.start_ns > LOST - 5_000 if how == "request" else launch.start_ns > row.start_ns
    else:
        assert any(execution.device[source].end_ns == row.end_ns for source in execution.device[kernel].sources)
    check_held(execution, launch.thread, row.start_ns, row.end_ns, cause, how)


def check_held(execution: Execution, thread: int, start_ns: int, end_ns: int, cause: str, how: str) -> None:
    """What the launching thread did while the stage was idle: it did so until shortly before the launch."""
    calls = [
        row
        for row in execution.calls
        if row.thread == thread and start_ns < row.end_ns < end_ns and row.start_ns < end_ns
    ]
    inside_ns = LOST - 15_000
    if cause == "host_sync":
        (call,) = (row for row in calls if row.blocked_ns)
        source = max(execution.device[op].end_ns for op in call.sources)
        assert min(source, call.end_ns) - start_ns > inside_ns
    elif how == "copy":
        assert any(row.call.blocking and row.end_ns - start_ns > inside_ns for row in calls)
    elif cause == "memory_management":
        assert any(row.call.name == how and row.end_ns - start_ns > inside_ns for row in calls)
    elif cause == "profiler_artefact":
        (overhead,) = execution.overheads
        assert min(overhead.end_ns, end_ns) - max(overhead.start_ns, start_ns) > inside_ns
        assert overhead.thread == thread
    elif how in ("loader", "batch-generator"):
        (op,) = (op for op in execution.host if op.name.startswith(("enumerate(DataLoader)#", "batch-generator")))
        assert op.end_ns - start_ns > inside_ns
        assert op.annotation
    elif cause == "launch_starved":
        assert not [row for row in calls if row.blocked_ns or row.end_ns - row.start_ns > 10_000]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_collective_that_all_begin_together_is_transfer_alone(schedule: str) -> None:
    base = replace(PLAIN, schedule=schedule)
    run = pipeline_run(replace(base, losses=(Loss("exposed_communication", LOST),)))
    check_identity(run)
    assert set(run.idle_ns()) - {"exposed_communication", "dependency_stall"} <= set(pipeline_run(base).idle_ns())
    rows = [row for row in run.idle if row.cause == "exposed_communication"]
    assert {row.rank for row in rows} == {place.rank for place in run.losses[0].places}
    assert {(row.start_ns, row.end_ns) for row in rows} == {(rows[0].start_ns, rows[0].start_ns + LOST)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_comes_late_to_a_collective_costs_the_others_their_waiting(schedule: str) -> None:
    run = pipeline_run(replace(PLAIN, schedule=schedule, losses=(Loss("straggler_wait", LOST),)))
    check_identity(run)
    late, waiting = run.losses[0].places
    row = lost_at(run, "straggler_wait")
    assert (row.rank, row.end_ns - row.start_ns) == (waiting.rank, LOST)
    kernels = [collective(run.executions[rank], row.end_ns + 20_000) for rank in (late.rank, waiting.rank)]
    assert [op.end_ns - op.start_ns for op in kernels] == [20_000, LOST + 20_000]
    opening = [op for op in run.executions[0].device if "AllReduce" in op.work.name]
    assert opening[0].end_ns < run.steps[0][0], "it is not the first collective of the recording"


def collective(execution: Execution, end_ns: int) -> Any:
    (op,) = (op for op in execution.device if "AllReduce" in op.work.name and op.end_ns == end_ns)
    return op


def test_the_first_collective_waits_for_who_the_profiler_holds_up() -> None:
    run = pipeline_run(replace(PLAIN, losses=(Loss("profiler_artefact", LOST, how="first-collective"),)))
    check_identity(run)
    late, waiting = run.losses[0].places
    assert {row.rank: row.end_ns - row.start_ns for row in run.idle if row.cause == "profiler_artefact"} == {
        late.rank: LOST,
        waiting.rank: LOST,
    }
    assert [len(run.executions[place.rank].overheads) for place in run.losses[0].places] == [1, 0]
    first = min(
        (op for op in run.executions[waiting.rank].device if "AllReduce" in op.work.name), key=lambda op: op.start_ns
    )
    assert first.end_ns - first.start_ns == LOST + 20_000


def test_a_slow_range_stalls_who_depends_on_it() -> None:
    before, run = pipeline_run(PLAIN), pipeline_run(replace(PLAIN, losses=(Loss("dependency_stall", LOST),)))
    check_identity(run)
    place = run.losses[0].places[0]
    assert run.work_ns(place.rank) - before.work_ns(place.rank) == LOST
    assert run.idle_ns()["dependency_stall"] - before.idle_ns()["dependency_stall"] == 3 * LOST


def test_the_optimizer_is_outside_the_makespan() -> None:
    before = pipeline_run(replace(PLAIN, steps=2, gather_ns=30_000))
    run = pipeline_run(replace(before.training, losses=(Loss("optimizer_sync", LOST),)))
    assert [run.makespan_ns(step) for step in (0, 1)] == [before.makespan_ns(step) for step in (0, 1)] == [33 * MS] * 2
    assert run.idle_ns(0, 0)["optimizer_sync"] == 50_000 + LOST + 30_000
    assert all(row.start_ns >= run.steps[row.step][1] for row in run.idle if row.cause == "optimizer_sync")
    assert run.steps[1][0] > max(r.end_ns for r in run.ranges if r.phase == "OPT" and r.step == 0)


def test_inside_a_range_time_is_lost_too() -> None:
    where = Place(1, "F", 4, kernel=1)
    run = pipeline_run(replace(PLAIN, kernels=2, losses=(Loss("memory_management", LOST, (where,)),)))
    check_identity(run)
    row = lost_at(run, "memory_management")
    (hit,) = (r for r in run.ranges if (r.rank, r.phase, r.microbatch) == (1, "F", 4))
    assert hit.start_ns < row.start_ns < row.end_ns < hit.end_ns
    assert hit.end_ns - hit.start_ns == hit.busy_ns + LOST


# what a recording shows


@pytest.mark.parametrize("names", RANGE_NAMES)
@pytest.mark.parametrize("autograd_thread", [True, False])
def test_every_kernel_is_launched_before_it_starts_inside_its_range(names: str, autograd_thread: bool) -> None:
    run = pipeline_run(PipelineTraining("1F1B", 3, 4, names=names, kernels=2, autograd_thread=autograd_thread))
    for rank, execution in enumerate(run.executions):
        mine = [r for r in run.ranges if r.rank == rank]
        for r in mine:
            ops = [op for op in execution.device if r.start_ns <= op.start_ns < r.end_ns and op.stream == 7]
            assert (len(ops), ops[0].start_ns, ops[-1].end_ns) == (2, r.start_ns, r.end_ns)
            for op in ops:
                call = execution.calls[op.call]
                assert call.start_ns < op.start_ns
                assert call.thread == (1 if r.phase == "B" and autograd_thread else 0)
                if RANGE_NAMES[names].compute:
                    name = RANGE_NAMES[names].of(Slot(r.phase, r.chunk, r.microbatch), r.stage)
                    assert any(
                        h.name == name and h.thread == 0 and h.start_ns < call.start_ns < h.end_ns
                        for h in execution.host
                    )


def test_a_file_says_the_truth_to_the_ns() -> None:
    run = pipeline_run(replace(PLAIN, kernels=2, transfer_ns=70_001, visible=True, forward_ns=1_000_003))
    for rank, execution in enumerate(run.executions):
        rows = [row for row in kineto_document(execution)["traceEvents"] if row["ph"] == "X"]
        launched = {row["args"]["correlation"]: row["ts"] for row in rows if row["cat"] == "cuda_runtime"}
        zero_ns = round(min(row["ts"] for row in rows if row["name"] == "ProfilerStep#1") * 1_000) - 50_000
        compute = [row for row in rows if row["cat"] == "kernel" and row["args"]["stream"] == 7]
        for r in (r for r in run.ranges if r.rank == rank and r.phase != "OPT"):
            (mark,) = (
                row
                for row in rows
                if row["name"] == f"PP:{r.stage}{r.phase}{r.microbatch}" and row["cat"] == "user_annotation"
            )
            until = mark["ts"] + mark["dur"]
            mine = [row for row in compute if mark["ts"] <= launched[row["args"]["correlation"]] < until]
            starts = [round(row["ts"] * 1_000) - zero_ns for row in mine]
            ends = [start + round(row["dur"] * 1_000) for start, row in zip(starts, mine, strict=True)]
            assert (len(mine), min(starts), max(ends)) == (2, r.start_ns, r.end_ns)


def test_names_of_each_framework() -> None:
    def first(names: str, schedule: str) -> list[str]:
        what = PipelineTraining(
            schedule, 2, 2, 2 if schedule == "interleaved" else 1, names=names, transfer_ns=1_000, visible=True
        )
        host = pipeline_run(replace(what, optimizer_ns=1_000)).executions[1].host
        marks = [op.name for op in host if op.annotation and not op.name.startswith("nccl:")]
        return list(dict.fromkeys(marks))[:4]

    assert first("torch", "interleaved") == ["ProfilerStep#1", "PP:1RECV_F0", "PP:1F0", "PP:1SEND_F0"]
    assert first("torch", "ZB-H1")[2:] == ["PP:1F0", "PP:1I0"]
    assert first("zero-bubble", "ZB-H1") == ["iter_1_1", "RECV_FORWARD.0.0.0", "F0.0.0", "B0.0.0"]
    p2p = "megatron.core.pipeline_parallel.p2p_communication."
    assert first("megatron", "1F1B") == [
        "iteration1",
        f"{p2p}recv_forward",
        f"{p2p}send_backward",
        "Optimizer.step#Adam.step",
    ]
    assert first("gpipe", "GPipe") == ["ProfilerStep#1", "Forward 0", "Forward 1", "Backward 0"]
    assert first("deepspeed", "1F1B") == ["DeepSpeedEngine.forward", "DeepSpeedEngine.backward", "DeepSpeedEngine.step"]
    assert first("vescale", "1F1B")[1:] == ["forward-recv", "forward-compute", "backward-compute"]
    assert first("none", "1F1B") == ["ProfilerStep#1", "Optimizer.step#Adam.step"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_send_and_receive_kernels_tell_of_each_transfer(schedule: str) -> None:
    run = pipeline_run(PipelineTraining(schedule, 4, 4, transfer_ns=100_000, visible=True))
    sides: dict[tuple[str, int], list[Any]] = {}
    for rank, execution in enumerate(run.executions):
        for op in execution.device:
            comm = op.work.comm
            if comm is not None and comm.name in ("send", "recv"):
                assert rank == (comm.src_rank if comm.name == "send" else comm.dst_rank)
                sides.setdefault((comm.group, comm.seq), []).append((comm.name, comm.src_rank, comm.dst_rank, op))
    assert len(sides) == 2 * 3 * 4
    for pair in sides.values():
        (_, *send_ends, send), (_, *recv_ends, recv) = sorted(pair, key=lambda side: side[0], reverse=True)
        assert send_ends == recv_ends
        assert send.end_ns == recv.end_ns == max(send.start_ns, recv.start_ns) + 100_000


def test_backward_knows_its_forward_op() -> None:
    run = pipeline_run(PipelineTraining("ZB-H1", 2, 3, kernels=2, steps=2))
    execution = run.executions[1]
    forward = {op.seq: op for op in execution.host if op.name == "aten::addmm"}
    backward = [op for op in execution.host if op.backward]
    assert len(forward) == 2 * 3 * 2, "every op has a number of its own"
    assert sorted(op.seq for op in backward if op.seq) == sorted([*forward, *forward])  # I and W
    assert all(op.thread == 1 and op.fwd_thread == 0 for op in backward)
    assert len(execution.handovers) >= 2 * 12

    def place(op: HostOp) -> tuple[int, str]:
        """Step and microbatch of the range around an op's time."""
        around = [h.name for h in execution.host if h.annotation and h.start_ns < op.start_ns < h.end_ns]
        (step,) = (int(name.split("#")[1]) for name in around if name.startswith("ProfilerStep"))
        (mark,) = (name for name in around if name.startswith("PP:"))
        return step, mark[-1]

    assert all(place(op) == place(forward[op.seq]) for op in backward if op.seq)


def test_overhead_rows_are_in_the_file() -> None:
    run = pipeline_run(replace(PLAIN, losses=(Loss("profiler_artefact", LOST, how="request"),)))
    rank = run.losses[0].places[0].rank
    rows = [row for row in kineto_document(run.executions[rank])["traceEvents"] if row.get("cat") == "overhead"]
    assert [(row["name"], row["pid"]) for row in rows] == [
        ("Activity Buffer Request", -1)
    ] * 2  # one before the run, as always
    assert any(row["dur"] > 280 for row in rows)


def test_jobs_as_paddle_logs_them() -> None:
    run = pipeline_run(PipelineTraining("ZB-H1", 2, 2, optimizer_ns=1_000))
    types = [job.type for job in run.jobs if job.worker == 0]
    assert types == ["forward", "forward", "backward_b", "backward_w", "backward_b", "backward_w", "optimizer"]
    assert [(j.start_ns, j.end_ns) for j in run.jobs] == [(r.start_ns, r.end_ns) for r in run.ranges]


# what cannot be


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"schedule": "interleaved", "microbatches": 6}, "no multiple"),
        ({"schedule": "2F2B"}, "no schedule"),
        ({"chunks": 2}, "1 chunk"),
        ({"forward_ns": (1, 2)}, "not 4"),
        ({"names": "gpipe", "schedule": "ZB-H1"}, "split backward"),
        ({"names": "gpipe", "schedule": "interleaved", "chunks": 2}, "one chunk"),
        ({"visible": True}, "takes time"),
        ({"norm_ns": 5}, "need an optimizer"),
        ({"transfer_ns": -5}, "no time"),
        ({"input_ns": 2, "kernels": 3}, "a kernel takes"),
        ({"steps": 0}, "1 or more steps"),
        ({"forward_ns": 3_000, "input_ns": 1_000, "weight_ns": 1_000, "microbatches": 64}, "make ranges longer"),
        ({"losses": (Loss("optimizer_sync", LOST),)}, "needs an optimizer"),
        ({"losses": (Loss("launch_starved", LOST, (Place(2, "F", 0),)),)}, "warm-up"),
        ({"losses": (Loss("launch_starved", LOST, (Place(0, "B", 0),)),)}, "waits for its input anyway"),
        ({"losses": (Loss("launch_starved", LOST, (Place(3, "F", 30),)),)}, "there is no"),
        ({"losses": (Loss("launch_starved", LOST, (Place(3, "F", 3, step=1),)),)}, "there is no"),
        ({"losses": (Loss("data_loading", LOST, (Place(3, "F", 3, kernel=1),)),), "kernels": 2}, "kernel 0"),
        ({"losses": (Loss("straggler_wait", LOST, (Place(3, "F", 3),)),)}, "2 or more"),
        ({"losses": (Loss("exposed_communication", LOST, (Place(0, "B", 5), Place(3, "F", 2))),)}, "for ever"),
    ],
)
def test_what_cannot_be_is_refused(what: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        pipeline_run(PipelineTraining(**what))


@pytest.mark.parametrize(
    ("cause", "how", "ns"), [("bad_luck", "", LOST), ("host_sync", "prayer", LOST), ("host_sync", "", 1_000)]
)
def test_losses_that_mean_nothing_are_refused(cause: str, how: str, ns: int) -> None:
    with pytest.raises(ValueError, match=r"called|cannot be had|or more"):
        Loss(cause, ns, how=how)


def test_calls_of_a_synchronisation_wait_for_what_is_known() -> None:
    run = pipeline_run(
        replace(PLAIN, transfer_ns=100_000, visible=True, losses=(Loss("host_sync", LOST, how="device"),))
    )
    rank = run.losses[0].places[0].rank
    calls = [row for row in run.executions[rank].calls if row.call.api is Api.DEVICE_SYNC]
    assert len(calls) == 2  # the loss, and the end of the step
    assert (
        "Memcpy DtoH"
        in run.executions[rank]
        .device[max(calls[0].sources, key=lambda i: run.executions[rank].device[i].end_ns)]
        .work.name
    )
