"""Ranges and names that no framework writes: what is made of them stays true, and costs no more than their number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink import spans
from graphlink.depend.build import BuildOptions, build
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, Trace
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.named_ranges import Entries, enclosing, nested, user_rules
from graphlink.pipeline.recognise import complete_steps
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import orders, simulate
from graphlink.pipeline.stagerun import Staged, stage_run
from graphlink.spans import Spans
from tests.build import Call, Device, Host, build_trace
from tests.pipeline.made import even_times, recorded

Row = tuple[int, int, int]  # thread, start, end


def staged(trace: Trace) -> Staged:
    linked = link(trace, None, match_hosts(trace, None))
    comm = communication(linked)
    return stage_run(build(linked, comm, BuildOptions()).graph, linked, comm, 0)


def entries(rows: list[Row], phases: list[int]) -> Entries:
    count = len(rows)
    tid, start, end = np.array(rows, np.int64).reshape(-1, 3).T
    nowhere = np.full(count, NOWHERE)
    return nested(
        Entries(
            start, end, np.array(phases, np.uint8), nowhere, nowhere, nowhere, nowhere, np.zeros(count, np.int32),
            ("made",), tid, nowhere.astype(np.int32), np.arange(count, dtype=np.int32), np.zeros(count, np.bool_),
        )
    )  # fmt: skip


@st.composite
def nests(draw: st.DrawFn) -> list[Row]:
    """Ranges of two threads that nest and never cross, zero lengths among them."""
    rows: list[Row] = []

    def fill(tid: int, low: int, high: int, depth: int) -> None:
        while depth < 6 and low < high and draw(st.booleans()):
            start = draw(st.integers(low, high))
            end = draw(st.integers(start, high))
            rows.append((tid, start, end))
            fill(tid, start, end, depth + 1)
            low = end

    for tid in (1, 2):
        fill(tid, 0, 40, 0)
    return rows


@given(nests(), st.data())
def test_the_innermost_range_is_found_however_deep(rows: list[Row], data: st.DataObject) -> None:
    e = entries(rows, data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows))))
    ask = [(tid, at) for tid in (1, 2, 3) for at in range(-1, 42)]
    found = enclosing(e, np.array([tid for tid, _ in ask]), np.array([at for _, at in ask]))
    for (tid, at), got in zip(ask, found.tolist(), strict=True):
        around = [k for k in range(len(e.tid)) if e.tid[k] == tid and e.start_ns[k] <= at < e.end_ns[k]]
        assert got == (around[-1] if around else NOWHERE)


def test_nesting_of_ten_thousand_costs_its_logarithm() -> None:
    depth, asked = 10_000, 20_000
    e = entries([(1, k, 4 * depth - k) for k in range(depth)], [k % 2 for k in range(depth)])
    found = enclosing(e, np.ones(asked, np.int64), 2 * depth + np.arange(asked))
    assert found.tolist() == [min(depth, 2 * depth - k) - 1 for k in range(asked)]


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(-1, 60), st.integers(-1, 60))
def test_within_is_what_masks_give(gaps: list[int], low: int, high: int) -> None:
    edges = np.cumsum([g + 1 for g in gaps[: len(gaps) // 2 * 2]], dtype=np.int64)
    given = Spans(edges[::2], edges[1::2])
    start, end = np.maximum(given.start_ns, low), np.minimum(given.end_ns, high)
    some = start < end
    found = spans.within(given, low, high)
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == (start[some].tolist(), end[some].tolist())


@pytest.mark.parametrize("text", ["abc", "-5", "²", "7" * 30, "", "1_0", " 3"])
def test_what_a_users_group_captures_may_be_no_number(text: str) -> None:
    (rule,) = user_rules([r"(?P<phase>[FB])x(?P<microbatch>.*)"])
    (read,) = rule.read(f"Fx{text}")
    assert (read.phase, read.microbatch) == (Pass.F, NOWHERE)


def test_work_of_two_weeks_in_many_ranges_is_no_overflow() -> None:
    """Ranges on one axis of time, one behind the other, would need more than 64 bits."""
    count, far_us = 9_000, 1.2e12
    at = [10 * k + (far_us if k == count - 1 else 0) for k in range(count)]
    trace = build_trace(
        [Host(f"PP:0{'FB'[k % 2]}{k // 2}", at[k], at[k] + 8, annotation=True) for k in range(count)],
        [Call("cudaLaunchKernel", at[k] + 1, at[k] + 2, k + 1) for k in range(count)],
        [Device("gemm", at[k] + 3, at[k] + 7, k + 1) for k in range(count)],
    )
    run = staged(trace).run
    assert run is not None and set(run.ranges.busy_ns.tolist()) == {4_000}


def test_many_chunks_beside_many_microbatches_are_never_laid_out() -> None:
    """One chunk of 10,000 microbatches and 10,000 of one: a table of both would have 10 ** 8 places."""
    count = 20_000
    made = orders("GPipe", 1, count, 1)
    (ranges,) = recorded(made, simulate(made, even_times(1, 10, 10, 10)))
    ranges.chunk[:] = np.where(ranges.microbatch < count // 2, 0, ranges.microbatch)
    complete, left_out = complete_steps([ranges], [0])
    assert not complete
    assert "20000 F, 20000 B" in left_out[0]


def test_ranges_of_steps_that_others_lack_are_told_apart() -> None:
    """What is kept of a rank's ranges can be found from the numbers that its device ops have."""

    def rank(steps: list[int]) -> Staged:
        begins = [1_000 * s for s in steps]
        rows = [(b + 100 * k, f"PP:0{'FFBB'[k]}{k % 2}") for b in begins for k in range(4)]
        return staged(
            build_trace(
                [Host(f"ProfilerStep#{s}", 1_000 * s - 5, 1_000 * s + 500, annotation=True) for s in steps]
                + [Host(name, at, at + 90, annotation=True) for at, name in rows],
                [Call("cudaLaunchKernel", at + 1, at + 2, i + 1) for i, (at, _) in enumerate(rows)],
                [Device("gemm", at + 3, at + 80, i + 1) for i, (at, _) in enumerate(rows)],
            )
        )

    one, two = rank([1, 2, 3]), rank([2])
    assert one.run is not None and two.run is not None
    found = analyse([one.run, type(two.run)(**{**{n: getattr(two.run, n) for n in two.run.__slots__}, "rank": 1})])
    assert found is not None and [s.number for s in found.steps] == [2]
    assert [kept.tolist() for kept in found.recorded] == [[4, 5, 6, 7], [0, 1, 2, 3]]
