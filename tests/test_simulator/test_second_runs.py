"""Second, changed runs: the changes do what they say, and nothing else differs but jitter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator import Training, cluster_run, run, training_program
from tests.simulator.cluster_records import ClusterTraining
from tests.simulator.program import Api, Call, End, Program
from tests.simulator.second_runs import KINDS, dearer_launches, faster_host, second_run, slower_device, without_waits

PROGRAM = training_program(3, Training(steps=2, layers=2))


def calls(program: Program, api: Api) -> list[Call]:
    return [a for t in program.threads for a in t.actions if isinstance(a, Call) and a.api is api]


def kernels_ns(program: Program, *, communicate: bool) -> int:
    return sum(
        w.duration_ns
        for c in calls(program, Api.LAUNCH)
        for w in c.work
        if w.kind == "kernel" and (w.comm is not None) == communicate
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_the_same_each_time_and_the_first_run_does_not_know_the_second(kind: str) -> None:
    one, again = (second_run(5, kind, 2) for _ in range(2))
    told = [(case.arguments, case.ranks, case.recorded_ns, case.truth_ns, case.truth_step_ns) for case in (one, again)]
    assert told[0] == told[1] and one.kind == kind and one.steps == 2 and one.arguments
    assert one.recorded_ns != one.truth_ns and 0 < one.truth_step_ns < one.truth_ns


def test_kernels_are_slower_but_those_that_communicate() -> None:
    slower = slower_device(PROGRAM, 2.0)
    assert kernels_ns(slower, communicate=False) == 2 * kernels_ns(PROGRAM, communicate=False)
    assert kernels_ns(slower, communicate=True) == kernels_ns(PROGRAM, communicate=True) > 0


def test_a_faster_host_leaves_long_pauses_if_told() -> None:
    ends = [
        [a.ns for t in p.threads for a in t.actions if isinstance(a, End)]
        for p in (PROGRAM, faster_host(PROGRAM, 0.5, 1_000))
    ]
    assert all(new == old if old > 1_000 else new == max(1, round(old / 2)) for old, new in zip(*ends, strict=True))
    assert run(faster_host(PROGRAM, 0.5)).host[-1].end_ns < run(PROGRAM).host[-1].end_ns


def test_launches_take_longer_and_calls_that_wait_do_not_wait() -> None:
    assert [c.call_ns for c in calls(dearer_launches(PROGRAM, 5_000), Api.LAUNCH)] == [
        c.call_ns + 5_000 for c in calls(PROGRAM, Api.LAUNCH)
    ]
    assert calls(PROGRAM, Api.STREAM_SYNC) and not calls(
        without_waits(PROGRAM, "cudaStreamSynchronize"), Api.STREAM_SYNC
    )


def test_a_step_jitters_as_a_whole_on_each_rank() -> None:
    """Compute of one step is as much slower, that of another one by another factor."""
    plain = ClusterTraining(data=2, tensor=1, steps=3, jitter=0.0, seed=4)
    took = []
    for training in (plain, replace(plain, step_jitter=0.5)):
        found = cluster_run(training)
        ops, times = found.ops[0], found.times[0]
        took.append(
            {
                (op.step, i): int(e - s)
                for i, (op, s, e) in enumerate(zip(ops, times.start_ns, times.end_ns, strict=True))
                if op.weight
            }
        )
    factors = {key: took[1][key] / took[0][key] for key in took[0]}
    by_step = [{round(f, 4) for (step, _), f in factors.items() if step == k} for k in range(3)]
    assert all(len(one) == 1 for one in by_step) and len(set.union(*by_step)) == 3
    assert all(1 < f < 1.5 for one in by_step for f in one)
