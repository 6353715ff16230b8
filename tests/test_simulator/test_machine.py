from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from tests.simulator import (
    Api,
    Call,
    ClusterTraining,
    Execution,
    Host,
    Meeting,
    Program,
    Shape,
    Thread,
    ThreadBuilder,
    Training,
    Work,
    cluster_run,
    random_program,
    run,
    run_together,
    training_program,
)
from tests.simulator.strategies import executions

from .reference import Reference

SHAPES = [Shape(), Shape(threads=2), Shape(threads=3, streams=6, devices=2)]


def brute_force(execution: Execution) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    reference, waits, edges = Reference(), set(), set()
    launched: dict[int, list[int]] = {}
    for i, op in enumerate(execution.device):
        launched.setdefault(op.call, []).append(i)
    for i, row in enumerate(execution.calls):
        call, key, sources = row.call, (row.call.device, row.call.stream), set()
        match call.api:
            case Api.LAUNCH:
                for op in launched[i]:
                    edges |= {(source, op) for source in reference.launch(op, key)}
                    sources = {op} if call.blocking else set()
            case Api.RECORD:
                reference.record(call.event, key)
            case Api.WAIT_EVENT:
                reference.wait(call.event, key)
            case Api.STREAM_SYNC:
                sources = reference.stream_sync(key)
            case Api.DEVICE_SYNC:
                sources = reference.device_sync(call.device)
            case Api.EVENT_SYNC | Api.EVENT_QUERY:
                sources = reference.event_sync(call.event)
        if call.api is Api.EVENT_QUERY and any(execution.device[op].end_ns > row.end_ns for op in sources):
            sources = set()
        waits |= {(op, i) for op in sources}
    return waits, edges


def check_times(execution: Execution) -> None:
    device, calls, host = execution.device, execution.calls, execution.host
    starts = [row.start_ns for row in (*host, *calls)]
    assert len(set(starts)) == len(starts), "starts are distinct"
    assert [row.start_ns for row in calls] == sorted(row.start_ns for row in calls)
    assert [row.start_ns for row in host] == sorted(row.start_ns for row in host)
    for op in device:
        assert op.start_ns < op.end_ns
        assert op.start_ns > calls[op.call].start_ns
        for source in op.sources | (set() if op.previous is None else {op.previous}):
            assert device[source].end_ns <= op.start_ns
    for a, b in execution.waits:
        assert device[a].end_ns <= calls[b].end_ns
        assert calls[device[a].call].start_ns <= calls[b].start_ns
    for row in calls:
        waited = [device[op].end_ns - row.start_ns for op in row.sources]
        if row.blocked_ns:
            assert row.blocked_ns == max(waited)
            assert row.end_ns >= row.start_ns + row.blocked_ns + row.call.return_ns
        else:
            assert row.end_ns == row.start_ns + row.call.call_ns
        assert row.op is None or host[row.op].start_ns < row.start_ns <= row.end_ns <= host[row.op].end_ns
    for op in host:
        assert op.parent is None or host[op.parent].start_ns < op.start_ns <= op.end_ns <= host[op.parent].end_ns


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.threads} threads, {shape.devices} devices")
def test_random_programs_have_the_waits_that_brute_force_finds(shape: Shape) -> None:
    found = 0
    for seed in range(15):
        execution = run(random_program(seed, shape))
        waits, edges = brute_force(execution)
        assert (execution.waits, execution.event_edges) == (waits, edges)
        check_times(execution)
        found += len(edges)
    assert found > 100, "programs with waits between streams"


@settings(max_examples=60, deadline=None)
@given(executions())
def test_drawn_programs_have_the_waits_that_brute_force_finds(execution: Execution) -> None:
    assert (execution.waits, execution.event_edges) == brute_force(execution)
    check_times(execution)


def test_streams_are_first_in_first_out() -> None:
    execution = run(random_program(3, SHAPES[2]))
    by_stream: dict[tuple[int, int], list[int]] = {}
    for i, op in enumerate(execution.device):
        by_stream.setdefault((op.device, op.stream), []).append(i)
    pairs = {pair for ops in by_stream.values() for pair in pairwise(ops)}
    assert execution.stream_edges == pairs


def test_same_seed_same_execution() -> None:
    assert run(random_program(5)) == run(random_program(5))
    assert run(random_program(5)) != run(random_program(6))


@pytest.mark.parametrize("scale", [0.1, 0.5, 3.0, 10.0])
def test_scaled_kernels_keep_structure_and_host_durations(scale: float) -> None:
    for program in (training_program(2), random_program(4, Shape(threads=2, own_streams=True, queries=False))):
        before, after = run(program), run(program, scale)
        assert before.structure() == after.structure()
        sites = {op.site: op.end_ns - op.start_ns for op in before.device}
        assert {op.site: op.end_ns - op.start_ns for op in after.device} == {
            site: max(1, round(duration_ns * scale)) for site, duration_ns in sites.items()
        }
        assert (after.makespan_ns > before.makespan_ns) == (scale > 1)


def test_threads_take_turns_in_training() -> None:
    execution = run(training_program(1, Training(steps=2)))
    assert [(h.from_thread, h.to_thread) for h in execution.handovers] == [(0, 1), (1, 0)] * 2
    for handover in execution.handovers:
        assert handover.asleep_ns <= handover.signal_ns < handover.woken_ns
        assert handover.to_op is not None
        assert execution.host[handover.to_op].thread == handover.to_thread
        assert execution.host[handover.to_op].start_ns >= handover.woken_ns


def test_a_signal_nobody_gives_is_an_error() -> None:
    main = ThreadBuilder("main", random.Random(0))
    main.wait_for("never")
    with pytest.raises(ValueError, match="never"):
        run(Program((main.thread(),)))


@pytest.mark.parametrize(("query_at_ns", "ready"), [(5_000, False), (16_400, False), (16_600, True), (30_000, True)])
def test_a_query_is_ready_if_the_work_ended_before_it_returned(query_at_ns: int, ready: bool) -> None:
    work = Work("kernel", 10_000, launch_delay_ns=3_000)  # runs from 8,000 to 18,000
    actions = (
        Call(Api.LAUNCH, "cudaLaunchKernel", 5_000, 0, 7, work=(work,)),
        Call(Api.RECORD, "cudaEventRecord", 500, 0, 7, event=1),
        Host(query_at_ns - 5_500),
        Call(Api.EVENT_QUERY, "cudaEventQuery", 1_500, event=1),
    )
    execution = run(Program((Thread("main", actions if query_at_ns > 5_500 else (*actions[:2], actions[3])),)))
    assert (execution.device[0].start_ns, execution.device[0].end_ns) == (8_000, 18_000)
    assert execution.waits == ({(0, 2)} if ready else set())
    assert execution.calls[2].blocked_ns == 0


def test_blocked_calls_return_after_the_last_awaited_op() -> None:
    works = [Work("kernel", duration_ns, launch_delay_ns=1_000) for duration_ns in (40_000, 90_000)]
    actions = (
        Call(Api.LAUNCH, "cudaLaunchKernel", 5_000, 0, 7, work=(works[0],)),  # 6,000 to 46,000
        Call(Api.LAUNCH, "cudaLaunchKernel", 5_000, 0, 20, work=(works[1],)),  # 11,000 to 101,000
        Call(Api.DEVICE_SYNC, "cudaDeviceSynchronize", 1_000, 0, return_ns=7_000),
    )
    execution = run(Program((Thread("main", actions),)))
    assert execution.waits == {(0, 2), (1, 2)}
    assert (execution.calls[2].start_ns, execution.calls[2].blocked_ns, execution.calls[2].end_ns) == (
        10_000,
        91_000,
        108_000,
    )


# programs that run together


def test_programs_that_do_not_meet_run_together_as_alone() -> None:
    programs = [
        random_program(1, Shape(threads=3, streams=6, devices=2)),
        training_program(2),
        random_program(3, Shape(threads=2)),
    ]
    assert run_together(programs) == tuple(run(program) for program in programs)


def meeting_at(launched_ns: int, duration_ns: int, members: int = 2) -> Program:
    """Launches an op that meets others, and one behind it on the stream; waits for both on the host."""
    met = Work("met", duration_ns, launch_delay_ns=1_000, meeting=Meeting(0, members))
    actions = (
        Host(launched_ns),
        Call(Api.LAUNCH, "cudaLaunchKernel", 5_000, 0, 7, work=(met,)),
        Call(Api.LAUNCH, "cudaLaunchKernel", 5_000, 0, 7, work=(Work("behind", 10_000, gap_ns=2_000),)),
        Call(Api.RECORD, "cudaEventRecord", 500, 0, 7, event=1),
        Call(Api.EVENT_QUERY, "cudaEventQuery", 500, event=1),
        Call(Api.STREAM_SYNC, "cudaStreamSynchronize", 1_000, 0, 7, return_ns=3_000),
        Host(100),
        Call(Api.OTHER, "cudaMalloc", 100),
    )
    return Program((Thread("main", actions),))


def test_ops_that_meet_take_their_time_from_the_last_start() -> None:
    early, late = run_together([meeting_at(0, 40_000), meeting_at(100_000, 41_000)])
    assert [(op.start_ns, op.end_ns) for op in early.device] == [(6_000, 146_000), (148_000, 158_000)]
    assert [(op.start_ns, op.end_ns) for op in late.device] == [(106_000, 147_000), (149_000, 159_000)]
    assert early.waits == late.waits == {(1, 4)}  # the query came too early
    assert [(row.start_ns, row.end_ns) for row in early.calls[4:]] == [(11_000, 161_000), (161_100, 161_200)]


def test_who_waits_for_a_member_that_never_comes_is_told() -> None:
    with pytest.raises(ValueError, match="wait for ever"):
        run_together([meeting_at(0, 40_000, members=3), meeting_at(100_000, 41_000, members=3)])


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_alone_with_the_times_of_its_meetings_does_the_same(seed: int) -> None:
    training = ClusterTraining(data=2, tensor=2, pipeline=2, seed=seed, events_per_rank=600, host_jitter_ns=2_000)
    programs = [recording.execution.program for recording in cluster_run(training).recordings.values()]
    for program, execution in zip(programs, run_together(programs), strict=True):
        took_ns = {op.site[:2]: op.end_ns - op.start_ns for op in execution.device if op.work.meeting is not None}
        actions = tuple(
            replace(a, work=(replace(a.work[0], duration_ns=took_ns[0, i], meeting=None),)) if (0, i) in took_ns else a
            for i, a in enumerate(program.threads[0].actions)
        )
        alone = run(replace(program, threads=(replace(program.threads[0], actions=actions),)))
        assert took_ns
        for rows in ("host", "calls", "device"):
            found = [
                [(row.start_ns, row.end_ns, row.site) for row in getattr(each, rows)] for each in (alone, execution)
            ]
            assert found[0] == found[1]
        assert (alone.waits, alone.event_edges) == (execution.waits, execution.event_edges)
