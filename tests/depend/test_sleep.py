"""Who slept, and who woke whom: each rule alone. Times are us; what is asked is the main thread (1)."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.graph_model import EdgeKind, Graph, NodeKind
from tests.build import Call, Flow, Host, build_trace
from tests.depend.test_host import graph_of, nodes

Spans = list[tuple[float, float]]


def woken(graph: Graph, tid: int = 1) -> list[tuple[float, float, int]]:
    """(start of a node that a ``thread`` edge releases, start of the waking node, its thread), of one thread."""
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    chosen = (graph.edge_kind == EdgeKind.THREAD) & (graph.tid[target] == tid) & (graph.kind[target] != NodeKind.END)
    return [
        (float(graph.start_ns[t]) / 1e3, float(graph.start_ns[s]) / 1e3, int(graph.tid[s]))
        for s, t in zip(graph.source[chosen].tolist(), target[chosen].tolist(), strict=True)
    ]


def slept(graph: Graph, tid: int = 1) -> float:
    """Time of a thread that is in no node."""
    return float(graph.end_ns.max() - graph.duration_ns[graph.tid == tid].sum()) / 1e3


def two(
    other: Spans, idle: tuple[float, float] = (100, 200), calls: tuple[Call, ...] = (), third: Spans | None = None
) -> Graph:
    """The main thread is idle over ``idle``, the others active in ops over ``other`` and ``third``."""
    rows = [Host("before", 0, idle[0]), Host("after", idle[1], idle[1] + 400)]
    rows += [Host("op", a, b, tid=tid) for tid, ops in ((2, other), (3, third or [])) for a, b in ops]
    return graph_of(build_trace(rows, calls=calls))


@pytest.mark.parametrize(("until", "asleep"), [(200, True), (199.999, False)])
def test_who_is_idle_for_100_us_sleeps_until_the_other_was_last_active(until: float, asleep: bool) -> None:
    graph = two([(120, 190)], idle=(100, until))
    assert woken(graph) == ([(190, 120, 2)] if asleep else [])
    assert slept(graph) == (90 if asleep else 0)
    assert nodes(graph, NodeKind.HOST_GAP)[-1][:2] == ((190, until - 190) if asleep else (100, until - 100))


def test_what_ran_before_a_sleep_ends_where_it_begins() -> None:
    rows = [Host("before", 0, 100), Host("child", 10, 70), Host("after", 200, 300), Host("op", 120, 190, tid=2)]
    graph = graph_of(build_trace(rows))
    part = graph.kind == NodeKind.HOST_PART
    assert (graph.start_ns[part].tolist(), graph.end_ns[part].tolist()) == ([70_000], [100_000])
    gap = (graph.kind == NodeKind.HOST_GAP) & (graph.tid == 1)
    assert (graph.start_ns[gap].tolist(), graph.end_ns[gap].tolist()) == ([190_000], [200_000])


def test_only_idle_time_outside_ops_and_calls_is_sleep() -> None:
    for annotation, found in ((False, []), (True, [(290, 120, 2)])):
        rows = [Host("outer", 0, 600, annotation=annotation), Host("child", 300, 400), Host("op", 120, 290, tid=2)]
        assert woken(graph_of(build_trace(rows))) == found
    assert woken(two([(120, 190)], calls=(Call("cudaStreamQuery", 150, 160, 1),))) == [], "idle for 50 and 40 us"
    assert woken(two([(120, 190)])) == [(190, 120, 2)]


def test_an_annotation_is_active_when_it_begins_and_when_it_ends() -> None:
    for note, found in (((150, 500), []), ((50, 150), []), ((50, 500), [(190, 120, 2)])):
        rows = [Host("before", 0, 40), Host("after", 510, 600), Host("more", 60, 100), Host("still more", 200, 400)]
        note_row = Host("note", *note, annotation=True)
        assert woken(graph_of(build_trace([*rows, note_row, Host("op", 120, 190, tid=2)]))) == found, note


def test_a_thread_without_any_node_wakes_nobody() -> None:
    polls = tuple(Call("cudaEventQuery", t, t + 1, 10 + t, tid=3) for t in (5, 130, 195))
    assert woken(two([(120, 190)], calls=polls)) == [(190, 120, 2)]


@pytest.mark.parametrize(
    ("other", "wakes"),
    [
        ([(0, 90), (95, 190), (205, 300)], False),  # idle for 5 and 15 us
        ([(0, 90), (95, 190)], True),  # sleeps then, for good
        ([(0, 90), (95, 190), (290, 300)], True),  # sleeps then, for 100 us
        ([(0, 90), (95, 190), (289.999, 300)], False),
        ([(120, 190), (205, 300)], True),  # had not begun when the main thread fell asleep
        ([(0, 10), (110, 190), (205, 300)], True),  # slept when the main thread fell asleep
        ([(0, 10.001), (110, 190), (205, 300)], False),
        ([(100, 190), (205, 300)], True),  # woke just as the main thread handed over
        ([(99.999, 190), (205, 300)], False),
    ],
)
def test_who_wakes_another_sleeps_then_or_slept_when_that_one_fell_asleep(other: Spans, wakes: bool) -> None:
    graph = two(other)
    (active,) = (start for start, end in other if end == 190)
    assert woken(graph) == ([(190, active, 2)] if wakes else [])
    assert slept(graph) == (90 if wakes else 0)


@pytest.mark.parametrize(("until", "wakes"), [(400, False), (400.001, True)])
def test_who_wakes_at_the_same_moment_sleeps_no_more_then(until: float, wakes: bool) -> None:
    """Idle from 250 on, as the main thread is from 100 to 400: who goes on at 400, too, has not just gone to sleep."""
    assert bool(woken(two([(0, 90), (95, 250), (until, 500)], idle=(100, 400)))) == wakes


@pytest.mark.parametrize(("latency", "wakes"), [(2_000, True), (2_000.001, False)])
def test_waking_takes_up_to_2_ms(latency: float, wakes: bool) -> None:
    graph = two([(120, 190)], idle=(100, 190 + latency))
    assert woken(graph) == ([(190, 120, 2)] if wakes else [])
    assert slept(graph) == (90 if wakes else 0)


def test_who_runs_on_has_woken_with_what_ended_before_it_began_something_else() -> None:
    """An op of the other thread goes on; of its children the last that began no later than the main thread woke."""
    for last, release in ((300, 300), (300.001, 150)):
        rows = [Host("before", 0, 100), Host("after", 300, 400)]
        rows += [Host("op", 120, 500, tid=2), *(Host("child", s, s + 10, tid=2) for s in (150, last))]
        graph = graph_of(build_trace(rows))
        assert [(to, by) for to, _, by in woken(graph)] == [(release, 2)]
        assert slept(graph) == release - 100 + 100, "the last 100 us are the other thread's alone"
        own = graph.kind[(graph.tid == 2) & (graph.kind != NodeKind.END)].tolist()
        op, part = NodeKind.HOST_OP, NodeKind.HOST_PART
        assert own == [NodeKind.HOST_GAP, op, op, part, op, part], (
            "it runs on, so there is no cut where it released the other"
        )
    assert woken(two([(120, 500)], idle=(100, 300))) == [(120, 100, 2)], "by what woke the other thread itself"


def test_who_was_active_until_it_woke() -> None:
    graph = two([(120, 150), (150, 200)])
    assert woken(graph) == [(200, 150, 2)], "it ended just then, and did not run on"
    assert nodes(graph, NodeKind.HOST_GAP) == [(100, 20, 0)], "the main thread goes on at once: no gap of its own"
    assert woken(two([(0, 100)])) == [], "it ended as the main thread fell asleep"
    assert woken(two([(0, 100.001)])) == [(100.001, 0, 2)]
    assert woken(two([(200, 300)])) == []


def test_of_several_the_last_active_one_woke_it() -> None:
    assert woken(two([(120, 180)], third=[(110, 190)])) == [(190, 110, 3)]
    assert woken(two([(110, 190)], third=[(120, 180)])) == [(190, 110, 2)]


def test_before_its_first_row_a_thread_sleeps_however_short_and_behind_its_last_it_is_over() -> None:
    first = graph_of(build_trace([Host("main", 0, 40), Host("first", 50, 300, tid=2)]))
    assert woken(first, tid=2) == [(40, 0, 1)]
    assert nodes(first, NodeKind.HOST_GAP) == [(40, 10, 0)], "of the thread that woke; the one that is over has none"
    assert np.count_nonzero((first.tid == 1) & (first.kind != NodeKind.END)) == 1
    rows = [Host("main", 0, 100), Host("other", 150, 300, tid=2)]
    assert woken(graph_of(build_trace(rows))) == []
    polls = [Call("cudaEventQuery", 280, 290, 1)]  # no node: outside any op
    assert woken(graph_of(build_trace(rows, calls=polls))) == []


def test_who_wakes_another_and_goes_idle_is_cut_there() -> None:
    """The gap of the thread that woke begins behind its last op, and is no part of what woke the other."""
    graph = two([(120, 190), (205, 300)])
    waking = [(start, cost) for start, cost, _ in nodes(graph, NodeKind.HOST_GAP) if start >= 190]
    assert waking == [(190, 10), (190, 15)]
    rows = [
        Host("before", 0, 100),
        Host("after", 200, 600),
        Host("note", 110, 205, tid=2, annotation=True),
        Host("op", 120, 190, tid=2),
    ]
    graph = graph_of(build_trace(rows))
    assert woken(graph) == [(190, 120, 2)]
    assert nodes(graph, NodeKind.HOST_PART) == [(190, 15, 0)], "the rest of the annotation"


def test_who_wakes_as_an_annotation_ends_is_woken_there() -> None:
    rows = [
        Host("note", 0, 200, annotation=True),
        Host("before", 0, 100),
        Host("after", 200, 600),
        Host("op", 120, 200, tid=2),
    ]
    assert woken(graph_of(build_trace(rows))) == [(200, 120, 2)]


ENGINE = "autograd::engine::evaluate_function: XBackward0"


def backward(name: str, seq: int, *, arrow: bool = False, late: float = 30_000) -> Graph:
    """The main thread waits for an autograd thread, each wakes ``late`` us after the other's last row."""
    began, done = 100 + late, 500 + late
    rows = [
        Host("aten::forward", 0, 50, seq_id=seq),
        Host("aten::ones_like", 60, 100),
        Host(name, began, done, tid=2, seq_id=seq, fw_tid=int(seq >= 0)),
        Host("aten::after", done + late, done + late + 400),
    ]
    return graph_of(build_trace(rows, flows=[Flow(1, 0, 2, began)] if arrow else []))


@pytest.mark.parametrize(
    ("name", "seq", "arrow", "by_name", "by_forward"),
    [
        ("op", -1, False, False, False),
        (ENGINE, -1, False, True, False),
        ("XBackward0", 4, False, True, True),
        ("XBackward0", -1, True, True, True),
        (ENGINE, -1, True, True, True),
    ],
)
def test_autograd_says_who_woke_a_thread_whatever_it_took(
    name: str, seq: int, arrow: bool, by_name: bool, by_forward: bool
) -> None:
    graph = backward(name, seq, arrow=arrow)
    assert ((100, 60, 1) in woken(graph, tid=2)) == by_name, "its row is the engine's, or one with a forward row"
    assert woken(graph) == ([(30_500, 30_100, 2)] if by_forward else []), "who ran forward waits until backward is done"


def test_who_ran_forward_woke_the_autograd_thread_though_another_was_active_later() -> None:
    rows = [Host("aten::forward", 0, 100, seq_id=4), Host("op", 0, 280, tid=3), Host("op", 500, 600, tid=3)]
    rows += [Host(ENGINE, 300, 400, tid=2), Host("XBackward0", 310, 390, tid=2, seq_id=4, fw_tid=1)]
    assert woken(graph_of(build_trace(rows)), tid=2)[0] == (100, 0, 1)
    nobody = [row._replace(seq_id=-1, fw_tid=0) for row in rows]
    assert woken(graph_of(build_trace(nobody)), tid=2) == [(280, 0, 3)]


def test_an_autograd_thread_queues_work_for_another_and_runs_on() -> None:
    """The main thread's part of backward becomes ready while the autograd thread goes on: neither sleeps then."""
    rows = [Host(ENGINE, 0, 100), Host(ENGINE, 300, 400)]
    rows += [Host(ENGINE, 50, 150, tid=2), Host(ENGINE, 151, 295, tid=2), Host(ENGINE, 301, 500, tid=2)]
    assert woken(graph_of(build_trace(rows))) == [(295, 151, 2)]
    other = [row._replace(name="op") if row.tid == 2 else row for row in rows]
    assert woken(graph_of(build_trace(other))) == []


@pytest.mark.parametrize(("times", "late", "wakes"), [(10, 3_000, True), (9, 3_000, False), (10, 11_000, False)])
def test_a_thread_that_takes_longer_time_and_again_takes_that_long(times: int, late: float, wakes: bool) -> None:
    """A worker is handed work 10 times, and each time begins 3 ms after the main thread's last row."""
    step = 60_000
    rows = [Host("op", i * step, i * step + 100) for i in range(times + 1)]
    rows += [Host("work", i * step + 100 + late, i * step + 20_000, tid=2) for i in range(times)]
    graph = graph_of(build_trace(rows))
    assert len(woken(graph, tid=2)) == (times if wakes else 0)


def test_no_time_of_waking_is_taken_from_lags_that_differ() -> None:
    rows = [Host("op", i * 60_000, i * 60_000 + 100) for i in range(13)]
    rows += [Host("work", i * 60_000 + 2_300 + 600 * i, i * 60_000 + 20_000, tid=2) for i in range(12)]
    assert woken(graph_of(build_trace(rows)), tid=2) == []
