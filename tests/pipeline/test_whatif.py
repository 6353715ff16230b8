"""What another schedule gives on measured times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphlink.pipeline.recognise import recognise
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import ActionTimes, orders, simulate
from graphlink.pipeline.theory import Measured, measure, what_if
from tests.pipeline.made import even_times, possible, recorded


def measured(
    schedule: str, p: int, m: int, v: int = 1, times: ActionTimes | None = None, transfer_ns: int = 0
) -> Measured:
    made = orders(schedule, p, m, v)
    whole = recorded(made, simulate(made, times or even_times(p * v, 120 // v, 120 // v, 120 // v, transfer_ns)))
    return measure(whole, recognise(whole))


@pytest.mark.parametrize(("schedule", "p", "m", "v"), list(possible([(4, 8), (2, 8), (3, 6)])))
def test_the_measured_schedule_itself_gives_the_measured_step(schedule: str, p: int, m: int, v: int) -> None:
    spread = np.arange(4 * p * v).reshape(4, p * v) * 7 + 20
    if schedule == "DualPipe":
        spread[:, p:] = spread[:, :p]
    times = ActionTimes(spread, np.arange(p * v - 1) * 3, np.arange(p * v - 1) * 5)
    timed = simulate(orders(schedule, p, m, v), times)
    if schedule == "DualPipe":  # has full and split backwards, whose times were drawn apart
        times.duration_ns[Pass.B] = times.duration_ns[Pass.I] + times.duration_ns[Pass.W]
        timed = simulate(orders(schedule, p, m, v), times)
    found = what_if(schedule, m, measured(schedule, p, m, v, times), chunks=v)
    assert found.timed.makespan_ns == timed.makespan_ns
    assert found.timed.own_ns == timed.own_ns


def test_a_stage_that_was_not_recorded_takes_the_mean_of_the_others() -> None:
    made = orders("1F1B", 4, 8)
    whole = recorded(made, simulate(made, even_times(4, 120, 120, 120, 30)))
    recognised = replace(recognise(some := [whole[0], whole[1], whole[3]]), stages=4)
    found = what_if("1F1B", 8, measure(some, recognised), chunks=1)
    assert found.timed.makespan_ns == simulate(made, even_times(4, 120, 120, 120, 30)).makespan_ns
    assert found.other.assumed[1] == "of some stages nothing was measured (2): they take the mean of the others"


def test_the_table_from_one_run() -> None:
    run = measured("ZB-H1", 4, 8)
    makespans = {
        "gpipe": 33,
        "1f1b": 33,
        "interleaved": 28.5,
        "zb-h1": 27,
        "ZB-h2": 27,
        "zb-v": 25.5,
        "interleaved-zb": 25.5,
    }
    for schedule, makespan in makespans.items():
        assert what_if(schedule, 8, run).timed.makespan_ns == makespan * 120, schedule
    assert what_if("interleaved", 8, run, chunks=4).timed.makespan_ns == 26.25 * 120
    found = what_if("zb-h2", 8, run).other
    assert (found.schedule, found.stages, found.microbatches, found.chunks) == ("ZB-H2", 4, 8, 1)
    assert round(found.bubble_rate_makespan or 0, 4) == 0.1111
    assert found.bubble_rate_zb == 0
    assert found.bubble_ratio_ideal == 0.125


def test_activations_are_in_shares_of_a_rank() -> None:
    run = measured("ZB-H1", 4, 8)
    held = {
        schedule: what_if(schedule, 8, run).other.activations
        for schedule in ("1F1B", "ZB-H1", "ZB-H2", "ZB-V", "DualPipe")
    }
    assert held == {
        "1F1B": (4, 3, 2, 1),
        "ZB-H1": (4, 4, 4, 4),
        "ZB-H2": (7, 7, 7, 7),
        "ZB-V": (4, 4, 4, 4),
        "DualPipe": (5, 5, 5, 5),
    }
    assert what_if("interleaved", 8, run, chunks=2).other.activations == (5.5, 4.5, 3.5, 2.5)


def test_more_microbatches() -> None:
    assert what_if("1F1B", 64, measured("1F1B", 4, 8)).timed.makespan_ns == (64 + 3) * 360


def test_chunks_are_cut_from_and_merged_into_stages() -> None:
    spread = np.tile(np.array([[10, 30, 50, 70]]), (4, 1))
    times = ActionTimes(spread, np.zeros(3, np.int64), np.zeros(3, np.int64))
    halves = what_if("interleaved", 8, measured("1F1B", 4, 8, times=times))
    first = {
        int(stage): int(cost)
        for order, start, end in zip(halves.orders, halves.timed.start_ns, halves.timed.end_ns, strict=True)
        for phase, stage, cost in zip(order.phase, order.stage, end - start, strict=True)
        if phase == Pass.F
    }
    assert [first[stage] for stage in range(8)] == [5, 5, 15, 15, 25, 25, 35, 35]
    assert any("measured in 4 parts, is cut into 8" in text for text in halves.other.assumed)
    merged = what_if("1F1B", 8, measured("interleaved", 2, 8, 2, times=times))
    assert [work // 8 for work in merged.timed.work_ns] == [80, 240]


def test_full_backwards_are_split_only_by_a_share_that_is_given() -> None:
    run = measured("1F1B", 4, 8)
    with pytest.raises(ValueError, match="ZB-H1 splits backwards, the run did not: say what share"):
        what_if("zb-h1", 8, run)
    with pytest.raises(ValueError, match=r"lies between 0 and 1, not at 1\.5"):
        what_if("zb-h1", 8, run, input_share=1.5)
    found = what_if("zb-h1", 8, run, input_share=0.5)
    assert found.timed.makespan_ns == 27 * 120
    assert "the input gradient takes 50.0% of a backward (given)" in found.other.assumed
    assert what_if("gpipe", 8, run).timed.makespan_ns == 33 * 120


def test_stages_whose_backwards_are_fused_take_the_others_share() -> None:
    run = measured("ZB-H1", 4, 8)
    seen, times = run.seen.copy(), run.times.duration_ns.copy()
    seen[[Pass.I, Pass.W], 0], seen[Pass.B, 0] = False, True
    times[[Pass.I, Pass.W], 0], times[Pass.B, 0] = 0, 400
    fused = replace(run, seen=seen, times=replace(run.times, duration_ns=times))
    found = what_if("ZB-H2", 8, fused)
    assert any("takes 50.0% of them, as where they were" in text for text in found.other.assumed)
    assert found.timed.work_ns == (8 * 520, 8 * 360, 8 * 360, 8 * 360)
    seen[Pass.B, 0] = False
    with pytest.raises(ValueError, match="not every stage has both"):
        what_if("1F1B", 8, replace(fused, seen=seen))


def test_transfers_stay_or_become_their_mean() -> None:
    times = even_times(4, 10, 10, 10)
    run = measured("ZB-H1", 4, 8, times=ActionTimes(times.duration_ns, np.array([2, 4, 9]), np.array([1, 2, 3])))
    same = what_if("ZB-H2", 8, run)
    assert same[2].makespan_ns == simulate(orders("ZB-H2", 4, 8), run.times).makespan_ns
    assert len(same[0].assumed) == 1
    other = what_if("interleaved", 8, run)
    mean = ActionTimes(even_times(8, 5, 5, 5).duration_ns, np.full(7, 5), np.full(7, 2))
    assert other[2].makespan_ns == simulate(orders("interleaved", 4, 8, 2), mean).makespan_ns
    assert "each transfer between ranks takes the mean of the measured ones" in other[0].assumed


def test_dualpipe_runs_the_layers_twice() -> None:
    run = measured("ZB-H1", 4, 8)
    there = what_if("DualPipe", 16, run)
    assert there[2].bubble_ns == 4 * 2 * 120
    assert there[2].work_ns == (16 * 360,) * 4
    back = what_if("1F1B", 16, measured("DualPipe", 4, 16, 2, even_times(8, 120, 120, 120)))
    assert back[2].makespan_ns == (16 + 3) * 360


def test_what_does_not_exist_is_refused() -> None:
    run = measured("ZB-H1", 4, 8)
    with pytest.raises(ValueError, match="there is no schedule 'zb-h9'"):
        what_if("zb-h9", 8, run)
    with pytest.raises(ValueError, match="multiple of its 4 stages"):
        what_if("interleaved", 10, run)
    with pytest.raises(ValueError, match="one chunk"):
        what_if("1f1b", 8, run, chunks=2)
