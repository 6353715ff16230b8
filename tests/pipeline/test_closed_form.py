"""Closed forms against the simulator: in all of their validity, and nothing outside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from graphlink.pipeline.records import Rates
from graphlink.pipeline.schedules import SCHEDULES, Timed, orders, simulate
from graphlink.pipeline.theory import rates
from tests.pipeline.closed_form import NO_FORM, Bubble, PassTimes, bubble, ratio_ideal, transfer_growth_ns
from tests.pipeline.made import even_times, possible

CASES = list(possible((p, m) for p in (1, 2, 3, 4, 5, 6, 8) for m in (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 24)))
DURATION = st.integers(1, 60)
PASSES = st.one_of(
    st.builds(PassTimes, DURATION, DURATION, DURATION), st.builds(lambda each: PassTimes(each, each, each), DURATION)
)


def played(schedule: str, p: int, m: int, v: int, each: PassTimes, transfer_ns: int = 0) -> Timed:
    times = even_times(p * v, each.forward_ns, each.input_ns, each.weight_ns, transfer_ns)
    return simulate(orders(schedule, p, m, v), times)


@settings(max_examples=settings().max_examples * 8, deadline=None)
@given(st.sampled_from(CASES), PASSES)
def test_a_form_is_what_the_simulator_gives(case: tuple[str, int, int, int], each: PassTimes) -> None:
    schedule, p, m, v = case
    form = bubble(schedule, p, m, v, each)
    timed = played(*case, each)
    passes = m if schedule == "DualPipe" else m * v  # of the two directions half of the microbatches each
    work = passes * (each.forward_ns + each.input_ns + each.weight_ns)
    assert form.makespan_ns in (None, timed.makespan_ns - work)
    assert form.own_ns in (None, max(timed.own_ns) - work)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(st.sampled_from([case for case in CASES if case[0] in ("GPipe", "1F1B")]), PASSES, st.integers(0, 200))
def test_a_transfer_lengthens_a_step_as_the_form_says(
    case: tuple[str, int, int, int], each: PassTimes, transfer_ns: int
) -> None:
    schedule, p, m, _ = case
    growth = played(*case, each, transfer_ns).makespan_ns - played(*case, each).makespan_ns
    assert transfer_growth_ns(schedule, p, m, transfer_ns) in (None, growth)


def test_forms_exist_where_they_are_said_to() -> None:
    even, wide = PassTimes(3, 3, 3), PassTimes(4, 5, 2)
    assert {schedule for schedule in SCHEDULES if bubble(schedule, 4, 8, 2, even).makespan_ns is not None} == set(
        SCHEDULES
    )
    assert {schedule for schedule in SCHEDULES if bubble(schedule, 4, 8, 2, even).own_ns is not None} == set(SCHEDULES)
    assert {schedule for schedule in SCHEDULES if bubble(schedule, 4, 8, 2, wide) == NO_FORM} == {"ZB-V", "DualPipe"}
    assert {schedule for schedule in SCHEDULES if bubble(schedule, 4, 3, 2, even) == NO_FORM} == {
        "interleaved",
        "ZB-H1",
        "ZB-H2",
        "ZB-V",
        "interleaved-ZB",
    }
    assert bubble("ZB-H1", 4, 8, 1, PassTimes(2, 5, 3)) == Bubble(15, None)
    assert bubble("ZB-H2", 4, 8, 1, PassTimes(4, 1, 3)) == Bubble(12, None)
    assert [transfer_growth_ns(schedule, 4, 8, 1) for schedule in ("GPipe", "1F1B", "ZB-H1")] == [6, 16, None]
    assert transfer_growth_ns("1F1B", 4, 6, 1) is None


@pytest.mark.parametrize(
    ("p", "m", "makespans"),
    [
        (4, 8, (33, 33, 28.5, 26.25, 27, 27)),
        (8, 16, (69, 69, 58.5, 53.25, 55, 55)),
        (8, 32, (117, 117, 106.5, 101.25, 103, 103)),
    ],
)
def test_forms_give_the_table(p: int, m: int, makespans: tuple[float, ...]) -> None:
    cases = [("GPipe", 1), ("1F1B", 1), ("interleaved", 2), ("interleaved", 4), ("ZB-H1", 1), ("ZB-H2", 1)]
    for (schedule, v), makespan in zip(cases, makespans, strict=True):
        lost = bubble(schedule, p, m, v, PassTimes(4 // v, 4 // v, 4 // v)).makespan_ns
        assert lost == 4 * (makespan - 3 * m)


def test_rates_by_name() -> None:
    timed = played("ZB-H2", 4, 8, 1, PassTimes(5, 5, 5))
    found = rates([timed.makespan_ns], [timed.work_ns], [timed.own_ns], UNSET)
    assert (round(found.bubble_rate_makespan or 0, 4), found.bubble_rate_zb, found.bubble_ratio_ideal) == (
        0.1111,
        0,
        UNSET,
    )
    timed = played("1F1B", 4, 8, 1, PassTimes(5, 5, 5))
    found = rates([timed.makespan_ns], [timed.work_ns], [timed.own_ns], ratio_ideal("1F1B", 4, 8, 1))
    assert (
        round(found.bubble_rate_makespan or 0, 4),
        round(found.bubble_rate_zb or 0, 4),
        found.bubble_ratio_ideal,
    ) == (
        0.2727,
        0.2727,
        0.375,
    )


def test_rates_over_steps_weigh_by_time() -> None:
    found = rates([100, 300], [(50, 50), (300, 300)], [(100, 50), (300, 300)], UNSET)
    assert found == Rates(1 - 700 / 800, 1 - 350 / 400)
    assert rates([], [], [], UNSET) == Rates()


def test_megatrons_ratio_is_of_megatrons_schedules_only() -> None:
    assert ratio_ideal("interleaved", 4, 8, 2) == 0.1875
    assert {schedule for schedule in SCHEDULES if ratio_ideal(schedule, 4, 8, 1) is not None} == {
        "GPipe",
        "1F1B",
        "interleaved",
    }
