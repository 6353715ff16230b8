"""Recognition of every generated schedule, of what is nearly one, and of recordings that know less or are cut."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.model import NOWHERE
from graphlink.pipeline.recognise import Recognised, recognise
from graphlink.pipeline.records import Pass, Ranges
from graphlink.pipeline.schedules import SCHEDULES, SPLIT, V_SHAPED, Order, orders, simulate, variants
from tests.pipeline.made import actions, even_times, joined, picked, possible, recorded, without

INTERLEAVED_ZB = Path(__file__).parents[3] / "shared/traces/pipelining-cpu/interleaved-zb"
SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 4, 8, 16)]
ALL = list(possible(SIZES))


def expected(schedule: str, p: int, m: int, v: int) -> str:
    """The rule for orders that several schedules share."""
    if m == 1 and schedule == "1F1B":
        return "GPipe"
    if (p == 1 or m <= 2) and schedule == "ZB-H2":
        return "ZB-H1"
    if p == 1 and v == 2 and schedule == "interleaved-ZB":
        return "ZB-V"
    return schedule


def ran(made: tuple[Order, ...], v: int, step: int = 0, from_ns: int = 0) -> list[Ranges]:
    timed = simulate(made, even_times(len(made) * v, 30, 20, 10, 5))
    return recorded(made, timed, step, from_ns)


def run(schedule: str, p: int, m: int, v: int = 1, step: int = 0, from_ns: int = 0) -> list[Ranges]:
    return ran(orders(schedule, p, m, v), v, step, from_ns)


def seen(found: Recognised) -> tuple[str, int, int, int]:
    return found.schedule, found.stages, found.microbatches, found.chunks


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v"),
    [pytest.param(*case, marks=pytest.mark.long if case[1] * case[2] > 32 else ()) for case in ALL],
)
def test_every_schedule_is_recognised_with_all_that_a_recording_may_lack(schedule: str, p: int, m: int, v: int) -> None:
    whole = run(schedule, p, m, v)
    lacking = [(), ("stage",), ("stage", "microbatch"), ("microbatch",)]
    if v == 1 or schedule not in V_SHAPED:
        lacking.append(("chunk",))
    for names in lacking:
        found = recognise(without(whole, *names))
        assert seen(found) == (expected(schedule, p, m, v), p, m, v)
        assert (found.nearest, found.difference, found.left_out) == ("", "", {})
        (step,) = found.steps
        if "microbatch" not in names:
            assert [actions(order) for order in step.orders] == [actions(order) for order in orders(schedule, p, m, v)]
    if (p > 1 or v == 1) and (schedule, m) != ("ZB-V", 1):  # which runs the phases of two microbatches of GPipe
        order = [
            replace(rank, chunk=0 * rank.chunk, rules=("inferred:order generic",))
            for rank in without(whole, "stage", "microbatch")
        ]
        assert seen(recognise(order)) == (expected(schedule, p, m, v), p, m, v)
        named = [replace(rank, rules=("generic",)) for rank in order]
        assert (recognise(named).schedule == "unknown") == (v > 1)


def test_all_names_of_the_contract_occur() -> None:
    assert {expected(schedule, p, m, v) for schedule, p, m, v in ALL} == set(SCHEDULES)


def test_no_two_schedules_are_confused() -> None:
    """An order is recognised as the first schedule that has it: no other order of the same size is it."""
    for p, m in SIZES:
        made: dict[str, set[str]] = {}
        for schedule, _, _, v in possible([(p, m)]):
            key = repr([actions(order) for order in orders(schedule, p, m, v)])
            made.setdefault(key, set()).add(schedule)
        shared = {frozenset(names) for names in made.values() if len(names) > 1}
        meant = {frozenset({"GPipe", "1F1B"}): m == 1, frozenset({"ZB-H1", "ZB-H2"}): p == 1 or m <= 2}
        meant[frozenset({"ZB-V", "interleaved-ZB"})] = p == 1
        assert shared == {names for names, applies in meant.items() if applies}


def test_variants_go_by_the_schedules_name() -> None:
    for schedule, p, m, v in ALL:
        for other in variants(schedule, p, m, v):
            assert recognise(ran(other, v)).schedule == expected(schedule, p, m, v)
    (uneven,) = variants("interleaved", 4, 10, 2)
    assert seen(recognise(ran(uneven, 2))) == ("interleaved", 4, 10, 2)


def swap(ranges: Ranges, at: int) -> Ranges:
    """The actions at ``at`` and after it exchange their places in time."""
    rows = np.arange(len(ranges.phase))
    rows[[at, at + 1]] = at + 1, at
    moved = picked(ranges, rows)
    return replace(moved, start_ns=ranges.start_ns, end_ns=ranges.end_ns)


@given(st.sampled_from([case for case in ALL if case[1] >= 3 and case[2] >= 6]), st.data())
def test_one_swapped_pair_is_unknown_with_the_nearest_and_where(
    case: tuple[str, int, int, int], data: st.DataObject
) -> None:
    schedule, p, m, v = case
    whole = run(schedule, p, m, v)
    rank = data.draw(st.integers(0, p - 1))
    at = data.draw(st.integers(0, len(whole[rank].phase) - 2))
    there = actions(orders(schedule, p, m, v)[rank])
    if schedule == "DualPipe":
        fused = there[at][0] == "B" or there[at + 1][0] == "B"  # a swapped B is an I and a W that moved
        swapped_pair = [there[at][0], there[at + 1][0]]
        if fused and swapped_pair != ["B", "B"]:
            return
    found = recognise([swap(ranges, at) if k == rank else ranges for k, ranges in enumerate(whole)])
    assert (found.schedule, found.nearest, found.steps) == ("unknown", schedule, ())
    names = [f"{phase} of stage {stage}, microbatch {k}" for phase, stage, k in there]
    assert found.difference == (
        f"step 0, rank {rank}, position {at} of {len(there)}: expected {names[at]}, found {names[at + 1]}"
    )
    assert (found.stages, found.chunks) == (p, v)


def test_messages_call_ranks_and_microbatches_as_the_recording_does() -> None:
    whole = run("1F1B", 3, 6)
    whole[1] = swap(whole[1], 2)
    whole = [replace(ranges, microbatch=ranges.microbatch + 100) for ranges in whole]
    found = recognise(whole, (0, 8, 16))
    assert found.difference == (
        "step 0, rank 8, position 2 of 12: expected B of stage 1, microbatch 100, found F of stage 1, microbatch 102"
    )


def test_a_stage_that_lies_elsewhere_is_a_difference() -> None:
    whole = run("interleaved", 4, 8, 2)
    turned = [replace(ranges, stage=np.where(ranges.chunk == 1, 11 - ranges.stage, ranges.stage)) for ranges in whole]
    found = recognise(turned)
    assert (found.schedule, found.nearest) == ("unknown", "interleaved")
    assert found.difference.endswith("expected F of stage 4, microbatch 0, found F of stage 7, microbatch 0")
    assert found.difference.startswith("step 0, rank 0, position 4 of 32")


def test_two_directions_numbered_by_layer_are_dualpipe() -> None:
    by_layer = [
        replace(ranges, stage=ranges.stage % 4, microbatch=ranges.microbatch % 4) for ranges in run("DualPipe", 4, 8, 2)
    ]
    found = recognise(by_layer)
    assert seen(found) == ("DualPipe", 4, 8, 2)
    assert max(int(order.stage.max()) for order in found.steps[0].orders) == 7
    assert max(int(order.microbatch.max()) for order in found.steps[0].orders) == 7


def test_a_pair_that_overlaps_may_begin_with_either() -> None:
    made = orders("DualPipe", 4, 12, 2)
    whole = []
    for ranges, order in zip(run("DualPipe", 4, 12, 2), made, strict=True):
        start, end = ranges.start_ns.copy(), ranges.end_ns.copy()
        pairs = np.flatnonzero(order.paired)
        start[pairs + 1] = start[pairs] - 1
        end[pairs] = end[pairs + 1]
        rows = np.argsort(start, kind="stable")
        whole.append(picked(replace(ranges, start_ns=start, end_ns=end), rows))
    found = recognise(whole)
    assert seen(found) == ("DualPipe", 4, 12, 2)
    for rows, ranges, order in zip(found.steps[0].rows, whole, made, strict=True):
        assert ranges.phase[rows].tolist() == order.phase.tolist()
        assert ranges.microbatch[rows].tolist() == order.microbatch.tolist()


def test_what_starts_together_counts_in_the_order_of_the_phases() -> None:
    made = orders("ZB-H1", 3, 6)
    whole = recorded(made, simulate(made, even_times(3, 0, 20, 10)))
    rows = [np.lexsort((-ranges.phase.astype(int), ranges.start_ns)) for ranges in whole]
    assert any((np.diff(row) < 0).any() for row in rows)
    assert seen(recognise([picked(ranges, row) for ranges, row in zip(whole, rows, strict=True)])) == ("ZB-H1", 3, 6, 1)


@pytest.mark.parametrize("schedule", [name for name in SPLIT if name != "DualPipe"])
def test_weight_gradients_fused_where_they_follow_are_the_same_schedule(schedule: str) -> None:
    v = 2 if schedule in ("ZB-V", "interleaved-ZB") else 1
    whole = []
    for ranges in run(schedule, 4, 8, v):
        follows = (ranges.phase[:-1] == Pass.I) & (ranges.phase[1:] == Pass.W)
        follows &= (ranges.microbatch[:-1] == ranges.microbatch[1:]) & (ranges.stage[:-1] == ranges.stage[1:])
        at = np.flatnonzero(follows)
        phase, end = ranges.phase.copy(), ranges.end_ns.copy()
        phase[at], end[at] = Pass.B, end[at + 1]
        keep = np.delete(np.arange(len(phase)), at + 1)
        whole.append(picked(replace(ranges, phase=phase, end_ns=end), keep))
    assert (whole[0].phase == Pass.B).any()
    found = recognise(whole)
    assert seen(found) == (schedule, 4, 8, v)
    assert [order.phase.tolist() for order in found.steps[0].orders] == [ranges.phase.tolist() for ranges in whole]
    simulate(found.steps[0].orders, even_times(4 * v, 1, 1, 1))


def test_split_backwards_in_one_go_are_the_schedule_without_the_split() -> None:
    made = []
    for order in orders("1F1B", 4, 8):
        again = np.repeat(np.arange(len(order)), np.where(order.phase == Pass.B, 2, 1))
        phase = order.phase[again]
        phase[phase == Pass.B] = np.tile(np.array([Pass.I, Pass.W], np.uint8), 8)
        made.append(Order(phase, order.stage[again], order.microbatch[again], order.paired[again]))
    assert seen(recognise(ran(tuple(made), 1))) == ("1F1B", 4, 8, 1)


def test_only_complete_steps_count() -> None:
    first, second, third = (run("1F1B", 4, 8, step=k, from_ns=10_000 * k) for k in range(3))
    begun = [picked(ranges, ranges.start_ns > 200) for ranges in first]
    ended = [picked(ranges, ranges.end_ns < 20_300) for ranges in third]
    found = recognise(joined(begun, second, ended))
    assert seen(found) == ("1F1B", 4, 8, 1)
    assert [step.step for step in found.steps] == [1]
    assert set(found.left_out) == {0, 2}
    assert re.fullmatch(
        r"rank 0 has \d F, 8 B, 0 I and 0 W: not each microbatch \(of 8\) once in 1 chunk\(s\)", found.left_out[0]
    )
    rows = found.steps[0].rows
    assert all((ranges.step[row] == 1).all() for ranges, row in zip(joined(begun, second, ended), rows, strict=True))


def test_messages_number_steps_as_the_recording_does() -> None:
    first, second = (run("1F1B", 4, 8, step=k, from_ns=10_000 * k) for k in range(2))
    begun = [picked(ranges, ranges.start_ns > 200) for ranges in first]
    late = [replace(ranges, start_ns=np.where(ranges.microbatch == 6, 0, ranges.start_ns)) for ranges in second]
    found = recognise(joined(begun, late), numbers=(41, 42))
    assert set(found.left_out) == {41}
    assert found.difference.startswith("step 42, rank 0,")


def test_without_a_whole_step_nothing_is_said() -> None:
    found = recognise([picked(ranges, ranges.start_ns > 200) for ranges in run("1F1B", 4, 8)])
    assert (found.schedule, found.nearest, found.microbatches) == ("unknown", "", 0)
    assert found.difference.startswith("no step is whole: rank 0 has")
    forward = [picked(ranges, ranges.phase == Pass.F) for ranges in run("1F1B", 4, 8)]
    assert recognise(forward).difference.startswith("no step is whole: rank 0 has 8 F, 0 B, 0 I and 0 W")
    nothing = [picked(ranges, ranges.phase > Pass.W) for ranges in run("1F1B", 4, 8)]
    assert recognise(nothing).difference == "no step is whole: there are no forwards and backwards"
    one = run("1F1B", 4, 8)
    one[2] = nothing[2]
    assert recognise(one).difference == "no step is whole: rank 2 has no range"
    fewer = [*one[:2], run("1F1B", 4, 6)[2], one[3]]
    assert recognise(fewer).difference == "no step is whole: rank 0 has 8 microbatches in 1 chunk(s), rank 2 6 in 1"


def test_optimizer_ranges_and_ranges_of_no_step_stay_outside() -> None:
    whole = run("1F1B", 2, 4)
    extra = [picked(ranges, np.array([0])) for ranges in whole]
    stray = [replace(ranges, step=np.array([NOWHERE])) for ranges in extra]
    last = [replace(ranges, phase=np.array([Pass.OPT], np.uint8), start_ns=ranges.end_ns + 9_000) for ranges in extra]
    found = recognise(joined(stray, whole, last))
    assert seen(found) == ("1F1B", 2, 4, 1)
    assert found.left_out == {NOWHERE: "ranges of no step"}
    assert seen(recognise(without(whole, "step"))) == ("1F1B", 2, 4, 1)


def test_steps_may_differ_in_their_microbatches() -> None:
    sizes = (4, 8, 8, 1)
    found = recognise(joined(*(run("1F1B", 4, m, step=k, from_ns=10_000 * k) for k, m in enumerate(sizes))))
    assert seen(found) == ("1F1B", 4, 8, 1)  # also the step of one microbatch, which alone would be GPipe
    assert [step.microbatches for step in found.steps] == list(sizes)


def test_steps_that_follow_different_schedules_are_unknown() -> None:
    found = recognise(joined(run("1F1B", 4, 8), run("GPipe", 4, 8, step=1, from_ns=10_000)))
    assert (found.schedule, found.nearest) == ("unknown", "1F1B")
    assert found.difference == "steps differ: step 0 is 1F1B, step 1 is GPipe"


def chunk_by_chunk(p: int, m: int, v: int) -> list[Ranges]:
    """All forwards, then all backwards, a microbatch through all chunks before the next one."""
    made = []
    for rank, order in enumerate(orders("GPipe", p, m)):
        stage = np.tile(np.arange(v) * p + rank, 2 * m)
        stage[m * v :] = stage[m * v :][::-1]
        made.append(
            Order(np.repeat(order.phase, v), stage, np.repeat(order.microbatch, v), np.zeros(2 * m * v, np.bool_))
        )
    return ran(tuple(made), v)


def test_numbers_for_which_no_schedule_exists() -> None:
    found = recognise(chunk_by_chunk(4, 7, 3))
    assert seen(found) == ("unknown", 4, 7, 3)
    assert found.nearest == "interleaved"  # in one group of seven
    found = recognise(chunk_by_chunk(4, 11, 3))
    assert seen(found) == ("unknown", 4, 11, 3)
    assert found.nearest == ""
    assert (
        found.difference
        == "step 0: no schedule with full backwards exists for 4 ranks, 3 chunk(s) a rank and 11 microbatches"
    )


@pytest.mark.skipif(not INTERLEAVED_ZB.is_dir(), reason="needs the public traces in ../shared/traces")
def test_the_ranges_that_torch_wrote() -> None:
    found = recognise([_torch_ranges(INTERLEAVED_ZB / f"kineto_{rank}.json.gz") for rank in range(4)])
    assert seen(found) == ("interleaved-ZB", 4, 8, 2)
    assert [step.step for step in found.steps] == [0, 1]


def _torch_ranges(path: Path) -> Ranges:
    """Of the two steps of a file, times in ns as far as its us tell; chunks are left to be found."""
    rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    there = [
        (row, re.fullmatch(r"PP:(\d+)([FBIW])(\d+)", str(row.get("name")))) for row in rows if row.get("ph") == "X"
    ]
    ranges = sorted((float(row["ts"]), float(row["dur"]), match.groups()) for row, match in there if match)
    count = len(ranges)
    stage, phase, microbatch = zip(*(match for _, _, match in ranges), strict=True)
    start = np.array([round(1000 * ts) for ts, _, _ in ranges])
    return Ranges(
        phase=np.array([Pass[name] for name in phase], np.uint8),
        step=np.repeat([0, 1], count // 2),
        stage=np.array([int(k) for k in stage]),
        chunk=np.full(count, NOWHERE),
        microbatch=np.array([int(k) for k in microbatch]),
        start_ns=start,
        end_ns=start + np.array([round(1000 * dur) for _, dur, _ in ranges]),
        busy_ns=np.zeros(count, np.int64),
        device_ops=np.zeros(count, np.int64),
        rule=np.zeros(count, np.int32),
        rules=("torch",),
    )
