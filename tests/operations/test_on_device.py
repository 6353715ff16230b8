"""What counters and lanes say, and what lies between replays, on programs whose times are known. Times are us."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import CounterRows, Linked
from graphlink.operations.on_device import device_rows, graph_replays, lanes_of, sampled
from graphlink.operations.records import Between
from graphlink.steps import steps_of
from tests.build import Call, Device, Host, build_trace
from tests.depend.test_host import graph_of

ALONE = 9  # the first number of launches of kernels


def linked_of(device: list[Device], host: list[Host] | None = None) -> Linked:
    calls = [
        Call("cudaGraphLaunch" if k < ALONE else "cudaLaunchKernel", k, k + 0.5, k)
        for k in sorted({one.correlation for one in device})
    ]
    trace = build_trace(host=host or [Host("op", 0, 900)], calls=calls, device=device)
    return link(trace, None, match_hosts(trace, None))


def with_counters(linked: Linked, *samples: tuple[float, float]) -> Linked:
    us, value = np.array(samples).T
    trace, zero = linked.trace, np.zeros(len(us), np.int64)
    rows = CounterRows((us * 1000).astype(np.int64), zero, zero.astype(np.int32) + len(trace.strings), value)
    return replace(linked, trace=replace(trace, counters=rows, strings=(*trace.strings, "SM Active (%)")))


def means(linked: Linked) -> dict[tuple[str, str], float | None]:
    found = sampled(linked, steps_of(linked))
    return {(one.of, one.name): one.means.get("SM Active (%)") for one in found}


def test_a_value_holds_until_the_next_one() -> None:
    """Kernel a runs for half of a sample of 80 and one of 40; b for a tenth of the last one, which tells nothing of
    it."""
    linked = linked_of([Device("a", 50, 200, 1), Device("b", 200, 210, 2), Device("a", 290, 300, 3)])
    found = means(with_counters(linked, (0, 80), (100, 40), (200, 10)))
    assert found["kernel", "a"] == pytest.approx((50 * 80 + 100 * 40 + 10 * 10) / 160, rel=1e-5)
    assert found["kernel", "b"] is None
    assert found["device", ""] == pytest.approx((50 * 80 + 100 * 40 + 100 * 10) / 250, rel=1e-5)


def test_a_value_does_not_hold_through_a_gap() -> None:
    """Nothing was sampled from 200 to 900; a ran for half of what is known, b in the gap alone."""
    linked = linked_of([Device("a", 150, 400, 1), Device("b", 500, 600, 2), Device("a", 900, 1000, 3)])
    found = means(with_counters(linked, (0, 80), (100, 40), (100, 40), (900, 10), (1000, 20)))
    assert found["kernel", "a"] == pytest.approx((50 * 40 + 100 * 10) / 150, rel=1e-5)
    assert found["kernel", "b"] is None
    assert found["device", ""] == pytest.approx((50 * 40 + 100 * 10) / 150, rel=1e-5)


def test_steps_have_means_of_their_own() -> None:
    steps = [Host(f"ProfilerStep#{k}", 100 * k, 100 * k + 100, annotation=True) for k in range(3)]
    linked = linked_of([Device("a", 50, 290, 1)], steps)
    found = means(with_counters(linked, (0, 30), (100, 60), (200, 90)))
    assert [found["step", f"ProfilerStep#{k}"] for k in range(3)] == [30, 60, 90]


def test_without_samples_that_last_nothing_is_told() -> None:
    linked = linked_of([Device("a", 50, 290, 1)])
    assert means(with_counters(linked, (0, 30)))["device", ""] is None
    assert not sampled(linked, steps_of(linked))


def test_lanes_and_their_rows() -> None:
    linked = linked_of([Device("a", 10, 30, 1), Device("b", 20, 50, 2, stream=9), Device("c", 60, 61, 3)])
    graph, trace = graph_of(linked.trace), linked.trace
    lane = np.array([1, 1, 0], np.int32) * len(trace.strings)
    of = replace(
        linked, trace=replace(trace, strings=(*trace.strings, "layer 0"), device=replace(trace.device, lane=lane))
    )
    (found,) = lanes_of(of)
    assert (found.name, found.device_ops, found.device_ns, found.most) == ("layer 0", 2, 50_000, "b")
    rows = device_rows(graph, of)
    assert [track.name for track in rows.tracks] == ["lane layer 0", "lane layer 0"]
    assert rows.slices.track.tolist() == [0, 1]
    assert not lanes_of(linked) and not device_rows(graph, linked).tracks


def test_what_lies_between_replays() -> None:
    """Of 30 us a kernel of its own runs for 10, and of 25 none."""
    replays = [
        Device("n", at, at + us, k, graph=2, graph_node=1)
        for k, (at, us) in enumerate([(10, 20), (60, 25), (110, 20)], 1)
    ]
    linked = linked_of([*replays, Device("alone", 40, 50, ALONE)])
    (graph,) = graph_replays(linked, np.array([0, 0, 25_000, 20_000]))
    assert (graph.mean_ns, graph.longest_ns, graph.on_path_ns) == (21_667, 25_000, 45_000)
    assert graph.between == Between(count=2, ns=55_000, busy_ns=10_000, most="alone")
    assert [node.critical for node in graph.nodes] == [2]
