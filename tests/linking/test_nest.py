from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.linking.nest import innermost, last_started, nest
from graphlink.model import NOWHERE, HostRows
from graphlink.tables import how_many
from tests.build import Host, build_trace


def nested(rows: list[Host], slack_us: int = 0) -> dict[str, str | None]:
    """Name -> name of the parent; "*" for crossing rows. Names must be unique."""
    trace = build_trace(rows)
    table = trace.host
    parent, crossing = nest(table, np.zeros(len(table.tid), np.bool_), slack_us * 1000)
    names = [trace.strings[code] for code in table.name]
    return {
        name: "*" if crossing[i] else None if parent[i] == NOWHERE else names[parent[i]] for i, name in enumerate(names)
    }


def test_rows_nest_within_their_thread_only() -> None:
    rows = [Host("a", 0, 100), Host("b", 10, 50), Host("c", 20, 30), Host("d", 60, 70), Host("other", 15, 16, tid=2)]
    assert nested(rows) == {"a": None, "b": "a", "c": "b", "d": "a", "other": None}


def test_rows_with_equal_times_nest_in_their_order() -> None:
    assert nested([Host("outer", 0, 10), Host("inner", 0, 10)]) == {"outer": None, "inner": "outer"}


def test_a_row_that_starts_where_another_ends_is_not_inside_it() -> None:
    assert nested([Host("a", 0, 10), Host("b", 10, 20), Host("c", 20, 20)]) == {"a": None, "b": None, "c": None}


def test_an_overhang_within_the_rounding_is_nested_and_more_is_crossing() -> None:
    rows = [Host("a", 0, 10), Host("b", 5, 11), Host("c", 6, 12)]
    assert nested(rows, slack_us=1) == {"a": None, "b": "a", "c": "*"}  # c hangs over a by 2 us, through b
    assert nested(rows) == {"a": None, "b": "*", "c": "*"}


def test_the_annotation_of_two_crossing_rows_stands_outside() -> None:
    late = [Host("op", 0, 10), Host("range", 5, 15, annotation=True), Host("child", 6, 8), Host("next", 12, 14)]
    assert nested(late) == {"op": None, "range": "*", "child": "op", "next": None}
    early = [Host("range", 0, 10, annotation=True), Host("child", 1, 2), Host("op", 5, 15), Host("inner", 6, 9)]
    assert nested(early) == {"range": "*", "child": None, "op": None, "inner": "op"}


def test_children_of_a_crossing_row_go_to_the_row_around_it() -> None:
    rows = [
        Host("outer", 0, 100),
        Host("range", 10, 30, annotation=True),
        Host("child", 12, 14),
        Host("op", 20, 40),
    ]
    assert nested(rows) == {"outer": None, "range": "*", "child": "outer", "op": "outer"}


def test_an_op_that_crosses_an_op_leaves_the_annotations_between_in_place() -> None:
    rows = [Host("op", 0, 10), Host("range", 3, 9, annotation=True), Host("late", 5, 20)]
    assert nested(rows) == {"op": None, "range": "op", "late": "*"}


def test_an_annotation_is_crossed_through_an_op_that_overhangs_it_by_rounding() -> None:
    rows = [Host("range", 0, 5, annotation=True), Host("op", 1, 6), Host("inner", 2, 7)]
    assert nested(rows, slack_us=1) == {"range": "*", "op": None, "inner": "op"}


def host_rows(max_us: int = 12) -> st.SearchStrategy[list[Host]]:
    time = st.integers(0, max_us)
    row = st.builds(
        lambda i, a, b, tid, note: Host(str(i), min(a, b), max(a, b), tid, note),
        st.integers(0, 10**6),
        time,
        time,
        st.integers(1, 2),
        st.booleans(),
    )
    return st.lists(row, max_size=25)


def plain_nest(rows: HostRows, slack_ns: int) -> tuple[list[int], list[bool]]:
    """The rule in quadratic time: a row is taken in if it fits into all that are open; ops push annotations out that
    they cross.
    """
    open_rows: dict[int, list[int]] = {}
    crossing = [False] * len(rows.tid)
    around: list[list[int]] = []
    for i in range(len(rows.tid)):
        start, end, stack = rows.start_ns[i], rows.end_ns[i], open_rows.setdefault(int(rows.tid[i]), [])
        stack[:] = [k for k in stack if min(rows.end_ns[j] for j in stack[: stack.index(k) + 1]) > start]
        across = [k for k in stack if end > rows.end_ns[k] + slack_ns]
        around.append([])
        if across and (rows.annotation[i] or any(not rows.annotation[k] for k in across)):
            crossing[i] = True
            continue
        for k in across:
            crossing[k] = True
            stack.remove(k)
        around[i] = list(stack)
        stack.append(i)
    parent = [NOWHERE] * len(around)
    for i, stack in enumerate(around):
        if not crossing[i]:
            parent[i] = max((k for k in stack if not crossing[k]), default=NOWHERE)
    return parent, crossing


@given(host_rows(), st.sampled_from([0, 1000]))
def test_the_sweep_equals_the_plain_rule(rows: list[Host], slack_ns: int) -> None:
    table = build_trace(rows).host
    parent, crossing = nest(table, np.zeros(len(rows), np.bool_), slack_ns)
    assert (parent.tolist(), crossing.tolist()) == plain_nest(table, slack_ns)


@given(host_rows(), st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 13)), max_size=6))
def test_the_innermost_row_around_a_time_is_the_one_that_a_scan_finds(
    rows: list[Host], asks: list[tuple[int, int]]
) -> None:
    table = build_trace(rows).host
    parent, crossing = nest(table, np.zeros(len(rows), np.bool_), 0)
    tid, at_ns = (np.array([a[k] for a in asks], np.int64) for k in (0, 1))
    at_ns = at_ns * 1000
    found = last_started(table, ~crossing, tid, at_ns)
    found = innermost(table, parent, found, ~table.annotation, at_ns)
    for k in range(len(asks)):
        inside = [
            i
            for i in range(len(rows))
            if table.tid[i] == tid[k]
            and not crossing[i]
            and not table.annotation[i]
            and table.start_ns[i] <= at_ns[k] < table.end_ns[i]
        ]
        assert found[k] == max(inside, default=NOWHERE)


def ends_of(rows: list[Host]) -> dict[str, float]:
    """Where each op ends, in us, and whether it stands outside the nesting."""
    got = link(trace := build_trace(rows), None, match_hosts(trace, None))
    names = [got.trace.strings[k] for k in got.trace.host.name]
    ends = dict(zip(names, (got.trace.host.end_ns / 1000).tolist(), strict=True))
    return ends | {names[k]: -1 for k in np.flatnonzero(got.crossing).tolist()}


def test_an_op_that_ends_a_little_after_its_parent_keeps_its_time() -> None:
    outer, inner, after = Host("linear", 0, 60), Host("mm", 5, 95), Host("after", 100, 200)
    assert ends_of([outer, inner, after]) == {"linear": 95, "mm": 95, "after": 200}
    deep = Host("addmm", 10, 80)
    assert ends_of([Host("model", 0, 70), outer, inner, deep, after]) == {
        "model": 95, "linear": 95, "mm": 95, "addmm": 80, "after": 200
    }  # fmt: skip


def test_an_op_that_ends_inside_the_next_one_ends_where_that_begins() -> None:
    rows = [Host("linear", 0, 60), Host("mm", 5, 120), Host("after", 100, 200)]
    assert ends_of(rows) == {"linear": 100, "mm": 100, "after": 200}


def test_an_op_that_reaches_past_several_is_asynchronous() -> None:
    rows = [Host("a", 0, 10), Host("long", 5, 60), Host("b", 12, 20), Host("c", 22, 30), Host("d", 70, 80)]
    assert ends_of(rows)["long"] == -1


def test_ops_that_end_after_the_op_they_began_in_keep_what_is_in_them_at_each_level() -> None:
    """A module of 60 us, an op in it that ends 12 us later, and one in that which ends 4 us later still."""
    at = (0, 100, 200)
    rows = [
        Host(name, start + begin, start + end)
        for start in at
        for name, begin, end in (("module", 0, 60), ("linear", 1, 72), ("mm", 10, 76), ("after", 80, 90))
    ]
    trace = build_trace(rows)
    linked = link(trace, None, match_hosts(trace, None))
    host, strings = linked.trace.host, linked.trace.strings
    parents = [None if p == NOWHERE else strings[host.name[p]] for p in linked.parent]
    assert [strings[code] for code in host.name] == ["module", "linear", "mm", "after"] * 3
    assert parents == [None, "module", "linear", None] * 3
    assert not linked.crossing.any()


def test_what_outlasts_all_else_though_what_it_began_in_had_ended_ends_where_the_next_row_begins() -> None:
    def link_with(*more: Host, **ends: float) -> tuple[dict[str, int], dict[str, int], int]:
        rows = [
            Host("step#1", 0, 50, annotation=True),
            Host("outer", 5, 40),
            Host("inner", 10, 30),
            Host("child", 12, 20),
        ]
        rows += [Host("step#2", 60, 99, annotation=True), Host("next", 70, 80), *more]
        rows = [row._replace(end=ends.get(row.name, row.end)) for row in rows]
        trace = build_trace(rows)
        linked = link(trace, None, match_hosts(trace, None))
        end_us = dict(zip([trace.strings[k] for k in trace.host.name], linked.trace.host.end_ns // 1000, strict=True))
        assert len(linked.warnings) == len(linked.trace.mended)
        return {name: int(end_us[name]) for name in ends}, linked.trace.mended, how_many(linked.crossing)

    assert link_with(inner=5_000_000) == ({"inner": 12}, {"ends-beyond": 1}, 0)  # began in an op
    assert link_with(outer=5_000_000) == ({"outer": 10}, {"ends-beyond": 1}, 0)  # in a range
    assert link_with(inner=5_000_000, outer=4_000_000) == ({"inner": 12, "outer": 10}, {"ends-beyond": 2}, 0)
    assert link_with(outer=150)[:2] == ({"outer": 150}, {})  # no longer than what it began with had taken
    assert link_with(next=5_000_000, **{"step#2": 5_000_000})[1] == {}  # nothing contradicts it
    assert link_with(Host("gloo:send", 80, 5_000_000, annotation=True))[1] == {}  # ends when somebody waits for it
