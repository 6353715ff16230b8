"""The split of a measured bubble on runs that were made to lose exactly so much, and medians and transfers of what was
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from graphlink.pipeline.recognise import Recognised, recognise
from graphlink.pipeline.records import PartsNs, Pass, Ranges, Rates, StepEntry, Theory
from graphlink.pipeline.schedules import ActionTimes, Order, Timed, orders, simulate
from graphlink.pipeline.theory import Measured, equal_stages, measure, rates, theory
from tests.pipeline.closed_form import PassTimes, bubble
from tests.pipeline.made import even_times, joined, picked, possible, recorded, without

CASES = list(possible((p, m) for p in (1, 2, 3, 4, 6) for m in (1, 2, 4, 6, 8, 12)))


def step_of(timed: Timed, number: int = 0, from_ns: int = 0) -> StepEntry:
    end_ns = from_ns + timed.makespan_ns
    return StepEntry(number=number, start_ns=from_ns, end_ns=end_ns, work_ns=timed.work_ns, own_ns=timed.own_ns)


def parts_of(schedule: int, imbalance: int, communication: int, rest: int) -> PartsNs:
    measured = schedule + imbalance + communication + rest
    return PartsNs(schedule=schedule, imbalance=imbalance, communication=communication, rest=rest, measured=measured)


def split(whole: Sequence[Ranges], *steps: StepEntry) -> tuple[Recognised, Measured, Theory]:
    recognised = recognise(whole)
    measured = measure(whole, recognised)
    found = theory(recognised, measured, steps)
    assert found is not None
    parts = found.parts_ns
    assert parts.schedule + parts.imbalance + parts.communication + parts.rest == parts.measured
    return recognised, measured, found


def some_times(data: st.DataObject, virtual: int) -> ActionTimes:
    some = st.integers(1, 50)
    row = st.lists(some, min_size=virtual, max_size=virtual)
    lag = st.lists(st.integers(0, 40), min_size=virtual - 1, max_size=virtual - 1)
    return ActionTimes(
        *(np.array(data.draw(what), np.int64) for what in (st.lists(row, min_size=4, max_size=4), lag, lag))
    )


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_a_run_without_jitter_has_no_rest(case: tuple[str, int, int, int], data: st.DataObject) -> None:
    """Whatever stages and transfers take: medians and least lags rebuild the run to the ns."""
    _, p, m, v = case
    made = orders(*case)
    times = some_times(data, p * v)
    timed = simulate(made, times)
    recognised, measured, found = split(recorded(made, timed), step_of(timed))
    assert found.parts_ns.rest == 0
    assert found.parts_ns.measured == timed.bubble_ns
    assert (measured.times.duration_ns[measured.seen] == times.duration_ns[measured.seen]).all()
    assert recognised.microbatches == m


@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_whatever_happens_the_parts_add_up(case: tuple[str, int, int, int], data: st.DataObject) -> None:
    made = orders(*case)
    times = some_times(data, case[1] * case[3])
    seed = data.draw(st.integers(0, 1000))
    noise = np.random.default_rng(seed)
    steps, bounds = [], []
    for number in range(3):
        each = [times.duration_ns[order.phase, order.stage] + noise.integers(0, 30, len(order)) for order in made]
        timed = simulate(made, times, each)
        steps.append(recorded(made, timed, number, 100_000 * number))
        bounds.append(step_of(timed, number, 100_000 * number))
    _, _, found = split(joined(*steps), *bounds)
    assert found.parts_ns.measured == sum(
        len(one.work_ns) * (one.end_ns - one.start_ns) - sum(one.work_ns) for one in bounds
    )


@pytest.mark.parametrize(("schedule", "p", "m", "v"), [case for case in CASES if case[1:3] == (4, 8)])
def test_equal_stages_lose_what_the_schedule_must(schedule: str, p: int, m: int, v: int) -> None:
    each = PassTimes(30, 30, 30)
    made = orders(schedule, p, m, v)
    timed = simulate(made, even_times(p * v, 30, 30, 30))
    _, _, found = split(recorded(made, timed), step_of(timed))
    assert found.parts_ns == parts_of(timed.bubble_ns, 0, 0, 0)
    form = bubble(schedule, p, m, v, each)
    if form.makespan_ns is not None:
        assert found.parts_ns.schedule == p * form.makespan_ns
    work = sum(timed.work_ns)
    given = rates([timed.makespan_ns], [timed.work_ns], [timed.own_ns], timed.bubble_ns / work)
    assert Rates(*(getattr(found, name) for name in Rates.__struct_fields__)) == given
    if schedule in ("GPipe", "1F1B", "interleaved"):
        assert found.bubble_ratio_ideal == pytest.approx(3 / (8 * v), abs=1e-15)


def test_a_slow_stage_is_imbalance() -> None:
    """Four stages, F 10 and B 20; the last one takes 4 more for a forward: the mean is 11."""
    made = orders("1F1B", 4, 8)
    times = even_times(4, 10, 10, 10)
    times.duration_ns[Pass.F, 3] += 4
    timed = simulate(made, times)
    _, _, found = split(recorded(made, timed), step_of(timed))
    assert found.parts_ns.schedule == 4 * 3 * 31
    assert found.parts_ns.imbalance == timed.bubble_ns - 4 * 3 * 31 > 0
    assert (found.parts_ns.communication, found.parts_ns.rest) == (0, 0)


def test_transfers_are_communication() -> None:
    made = orders("1F1B", 4, 8)
    timed = simulate(made, even_times(4, 10, 10, 10, 5))
    _, measured, found = split(recorded(made, timed), step_of(timed))
    assert measured.times.forward_ns.tolist() == [5, 5, 5]
    assert measured.times.backward_ns.tolist() == [5, 5, 5]
    assert found.parts_ns == parts_of(4 * 90, 0, 4 * 2 * 5 * (3 * 2 + 2), 0)  # the form of the transfers
    assert found.parts_ns.measured == timed.bubble_ns


def test_a_hiccup_is_rest() -> None:
    made = orders("GPipe", 3, 6)
    each = [np.full(len(order), 10) for order in made]
    each[1][7] += 500
    timed = simulate(made, even_times(3, 10, 5, 5), each)
    _, _, found = split(recorded(made, timed), step_of(timed))
    assert found.parts_ns == parts_of(3 * 2 * 20, 0, 0, 1000)  # the two other ranks wait
    assert found.parts_ns.measured == timed.bubble_ns


def test_only_recognised_steps_count() -> None:
    made = orders("1F1B", 3, 6)
    timed = simulate(made, even_times(3, 10, 10, 10))
    first = [picked(ranges, ranges.start_ns > 50) for ranges in recorded(made, timed)]
    whole = joined(first, recorded(made, timed, 1, 10_000))
    bounds = [structs.replace(step_of(timed), start_ns=40), step_of(timed, 1, 10_000)]
    _, _, found = split(whole, *bounds)
    assert found.parts_ns == parts_of(timed.bubble_ns, 0, 0, 0)


def test_without_a_schedule_there_is_no_theory() -> None:
    made = orders("1F1B", 3, 6)
    timed = simulate(made, even_times(3, 10, 10, 10))
    whole = recorded(made, timed)
    whole[1] = replace(whole[1], phase=whole[1].phase[::-1].copy())
    recognised = recognise(whole)
    assert theory(recognised, measure(whole, recognised), [step_of(timed)]) is None
    recognised = recognise(recorded(made, timed))
    assert theory(recognised, measure(recorded(made, timed), recognised), []) is None


def test_medians_round_to_the_ns_and_come_by_phase_and_stage() -> None:
    made = orders("GPipe", 2, 4)
    each = [np.array([10, 20, 31, 400, 5, 5, 6, 7]), np.array([1, 2, 3, 4, 50, 60, 70, 80])]
    timed = simulate(made, even_times(2, 1, 1, 1), each)
    whole = recorded(made, timed)
    measured = measure(whole, recognise(whole))
    assert measured.times.duration_ns.tolist() == [[26, 3], [6, 65], [0, 0], [0, 0]]
    assert measured.seen.tolist() == [[True, True], [True, True], [False, False], [False, False]]
    assert equal_stages(measured).duration_ns.tolist() == [[14, 14], [36, 36], [0, 0], [0, 0]]  # 14.5 and 35.5 to even
    assert measured.home.tolist() == [0, 1]


def test_busy_time_counts_not_the_span() -> None:
    made = orders("1F1B", 2, 4)
    whole = recorded(made, simulate(made, even_times(2, 10, 10, 10)))
    measured = measure([replace(ranges, busy_ns=ranges.busy_ns - 3) for ranges in whole], recognise(whole))
    assert measured.times.duration_ns[:2].tolist() == [[7, 7], [17, 17]]


def test_time_that_ranges_share_counts_once() -> None:
    """A pair of 30 that runs at the same time is two of 15."""
    made = orders("DualPipe", 4, 16, 2)
    whole = recorded(made, simulate(made, even_times(8, 10, 10, 10)))
    for rank, order in enumerate(made):
        start, end = whole[rank].start_ns.copy(), whole[rank].end_ns.copy()
        pairs = np.flatnonzero(order.paired)
        start[pairs + 1], end[pairs] = start[pairs], end[pairs + 1]
        whole[rank] = replace(whole[rank], start_ns=start, end_ns=end, busy_ns=end - start)
    measured = measure(whole, recognise(whole))
    assert measured.recognised.schedule == "DualPipe"
    assert set(measured.times.duration_ns[Pass.F].tolist()) == {15}
    assert set(measured.times.duration_ns[Pass.B].tolist()) == {15}
    assert set(measured.times.duration_ns[Pass.I].tolist()) == {10}


def test_clocks_that_disagree_give_no_transfer() -> None:
    made = orders("1F1B", 2, 4)
    whole = recorded(made, simulate(made, even_times(2, 10, 10, 10, 4)))
    recognised = recognise(whole)
    ahead = [whole[0], replace(whole[1], start_ns=whole[1].start_ns - 9, end_ns=whole[1].end_ns - 9)]
    times = measure(ahead, recognised).times
    assert (times.forward_ns.tolist(), times.backward_ns.tolist()) == ([0], [13])


def test_ranges_of_the_host_begin_before_their_input_is_there() -> None:
    made = orders("1F1B", 4, 8)
    timed = simulate(made, even_times(4, 10, 10, 10, 5))
    # Each begins when the one before it ends, and waits inside.
    whole = [replace(ranges, start_ns=np.append(0, ranges.end_ns[:-1])) for ranges in recorded(made, timed)]
    recognised = recognise(whole)
    measured = measure(whole, recognised, waits_inside=True)
    assert measured.times.forward_ns.tolist() == measured.times.backward_ns.tolist() == [5, 5, 5]
    assert measure(whole, recognised).times.forward_ns.tolist() == [0, 0, 0]
    found = theory(recognised, measured, [step_of(timed)])
    assert found is not None
    assert found.parts_ns.rest == 0


def test_stages_of_one_rank_need_no_transfer() -> None:
    made = orders("ZB-V", 3, 6, 2)
    times = measure_of(made, even_times(6, 10, 10, 10, 4)).times
    assert times.forward_ns.tolist() == [4, 4, 0, 4, 4]
    made = orders("DualPipe", 4, 8, 2)
    assert measure_of(made, even_times(8, 10, 10, 10, 4)).times.forward_ns.tolist() == [4, 4, 4, 0, 4, 4, 4]


def measure_of(made: tuple[Order, ...], times: ActionTimes) -> Measured:
    whole = recorded(made, simulate(made, times))
    return measure(whole, recognise(whole))


def test_without_a_schedule_the_recordings_own_stages_are_measured() -> None:
    made = orders("interleaved", 2, 4, 2)
    whole = recorded(
        made, simulate(made, ActionTimes(np.arange(16).reshape(4, 4), np.array([3, 3, 3]), np.array([3, 3, 3])))
    )
    swapped = replace(
        whole[0],
        microbatch=np.where(whole[0].microbatch == 0, 1, np.where(whole[0].microbatch == 1, 0, whole[0].microbatch)),
    )
    for known in ([swapped, whole[1]], without([swapped, whole[1]], "stage")):
        recognised = recognise(known)
        assert recognised.schedule == "unknown"
        measured = measure(known, recognised)
        assert measured.times.duration_ns[Pass.F].tolist() == [0, 1, 2, 3]
        assert measured.times.duration_ns[Pass.B].tolist() == [4, 5, 6, 7]
        assert measured.home.tolist() == [0, 1, 0, 1]
    nothing = without([swapped, whole[1]], "microbatch")
    assert measure(nothing, recognised).times.forward_ns.tolist() == [0, 0, 0]
