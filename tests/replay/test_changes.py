"""What each change of a what-if does to a graph, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind
from graphlink.linking.commtypes import CollectiveType, wire_share
from graphlink.replay.changes import Changes, changes_of, parse_scale
from graphlink.replay.machines import play_ideal
from graphlink.replay.path import critical_path
from graphlink.replay.slots import play_slots
from graphlink.replay.syncs import sync_waits
from graphlink.replay.times import launches
from graphlink.replay.whatif import apply
from graphlink.replay.workload import Workload, workload
from tests.replay.hand import COLL, CPU, GPU, N, file, load

H, L, S, Y = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.SYNC


def step() -> Workload:
    """A host that launches two kernels and a copy, waits for the copy in ``aten::item``, and works on."""
    return load(
        [
            N(0, CPU, 10, name="aten::mm"),
            N(1, GPU, 40, ((0, L),), name="gemm_64", delay_us=3, correlation=1),
            N(2, CPU, 5, ((0, H),), name="aten::item"),
            N(3, GPU, 30, ((0, L), (1, S)), name="relu", correlation=1),
            N(4, GPU, 2, ((2, L), (3, S)), name="Memcpy DtoH (Device -> Pinned)", correlation=2),
            N(5, CPU, 1, ((2, H), (4, Y)), name="aten::item (cont.)"),
            N(6, CPU, 4, ((5, H),), name="host gap"),
            N(7, CPU, 20, ((4, Y), (6, H)), name="aten::add"),
        ]
    )


def after(*scales: str, **changes: Any) -> int:
    asked = changes_of(scales, **changes)
    return play_ideal(apply(step(), asked, {}).work).total_ns


def test_what_each_change_does() -> None:
    assert after() == 110_000
    assert after("kernel=0.5") == 75_000  # the start delay stays
    assert after("kernel:^gemm=0.5") == 90_000
    assert after("kernel:gemm=0.5", "kernel:gemm|relu=0") == 42_000
    assert after("copy=2") == 112_000
    assert after("host=0") == 79_000 and after("host:item=0") == 109_000
    assert after("gap=0") == 106_000
    assert after("delay=0") == 107_000
    assert after("gemm=0.5") == after("kernel:gemm=0.5") == 90_000  # of whatever sort
    assert after("item=0") == after("host:item=0")
    assert after("host gap=0") == after("gap=0")
    assert after("gemm|item|gap=0") == after("kernel:gemm=0", "host:item=0", "gap=0")
    assert after(remove_sync=("all",)) == 85_000
    assert after(launch_us=-2) == 108_000
    assert after("kernel=0", remove_sync=("all",), launch_us=1) == 42_000


def test_nothing_is_edited() -> None:
    work = step()
    before = {
        name: np.array(getattr(work, name)) for name in ("cost_ns", "micros_ns", "fixed_ns", "first", "source", "kind")
    }
    changed = apply(work, changes_of(("kernel=0.5", "delay=0"), ("all",), None, 5), {}).work
    for name, column in before.items():
        assert np.array_equal(getattr(work, name), column)
    assert play_slots(changed).total_ns != play_slots(work).total_ns


def test_a_wait_is_all_its_edges() -> None:
    (wait,) = sync_waits(step())
    assert (wait.targets, wait.sources, wait.names) == ((5, 7), (4,), frozenset({"aten::item"}))
    for which in ("5", "7", "4", "aten::item", "all"):
        assert after(remove_sync=(which,)) == 85_000


def test_two_waits_for_one_op_are_two() -> None:
    work = load(
        [
            N(0, CPU, 1),
            N(1, GPU, 9, ((0, L),)),
            N(2, CPU, 1, ((0, H), (1, Y)), name="a (cont.)"),
            N(3, CPU, 1, ((1, Y), (2, H)), name="b"),
            N(4, CPU, 1, ((1, Y), (3, H)), name="c"),
        ]
    )
    assert [(w.targets, w.names) for w in sync_waits(work)] == [((2, 3), {"a"}), ((4,), {"c"})]


def test_a_wait_after_a_call_outside_any_op_has_the_calls_name() -> None:
    work = load(
        [
            N(0, CPU, 1, name="cudaDeviceSynchronize"),
            N(1, GPU, 9, ((0, L),)),
            N(2, CPU, 1, ((0, H), (1, Y)), name="host gap"),
        ]
    )
    assert [w.names for w in sync_waits(work)] == [{"cudaDeviceSynchronize"}]


def three_calls() -> Workload:
    """A stream synchronisation that blocked, an event and a device synchronisation that found all done, then one
    operator.
    """
    return load(
        [
            N(0, CPU, 1, name="aten::mm"),
            N(1, GPU, 9, ((0, L),)),
            N(2, GPU, 2, ((0, L),)),
            N(3, CPU, 1, ((0, H), (1, Y)), name="aten::mm (cont.)", calls=("cudaStreamSynchronize",)),
            N(
                4,
                CPU,
                1,
                ((1, Y), (2, Y), (3, H)),
                calls=("cudaDeviceSynchronize", "cudaEventSynchronize cudaDeviceSynchronize", ""),
            ),
        ]
    )


def test_waits_for_one_operator_are_told_apart_by_their_calls() -> None:
    waits = {(w.targets, w.sources, *sorted(w.names)) for w in sync_waits(three_calls())}
    assert waits == {
        ((3, 4), (1,), "aten::mm", "cudaStreamSynchronize"),
        ((4,), (1, 2), "cudaDeviceSynchronize", "op"),
        ((4,), (2,), "cudaEventSynchronize", "op"),
    }


@pytest.mark.parametrize(
    ("which", "left"),
    [
        (("cudaStreamSynchronize",), [(1, 4), (2, 4)]),  # the device synchronisation waits for the same op
        (("cudaEventSynchronize",), [(1, 3), (1, 4), (2, 4)]),
        (("cudaDeviceSynchronize",), [(1, 3), (1, 4), (2, 4)]),
        (("cudaDeviceSynchronize", "cudaEventSynchronize"), [(1, 3), (1, 4)]),
        (("cudaDeviceSynchronize", "cudaDeviceSynchronize"), [(1, 3), (1, 4), (2, 4)]),
        (("cudaStreamSynchronize", "cudaDeviceSynchronize"), [(2, 4)]),
        (("all",), []),
    ],
)
def test_an_edge_goes_with_the_last_wait_that_it_stands_for(
    which: tuple[str, ...], left: list[tuple[int, int]]
) -> None:
    work = apply(three_calls(), changes_of(remove_sync=which), {}).work
    target = np.repeat(np.arange(len(work)), np.diff(work.first))
    of = work.kind == Y
    assert list(zip(work.source[of].tolist(), target[of].tolist(), strict=True)) == left


def test_a_copy_that_blocked_and_the_synchronisation_behind_it_are_of_one_op() -> None:
    """``.cpu()``: the copy to pageable memory blocks, and what PyTorch then calls finds all done."""

    def copied(then: str) -> Workload:
        return load(
            [
                N(0, CPU, 5, name="aten::mm"),
                N(1, GPU, 40, ((0, L),)),
                N(2, CPU, 5, ((0, H),), name="aten::copy_"),
                N(3, GPU, 2, ((2, L), (1, S)), name="Memcpy DtoH (Device -> Pageable)"),
                N(4, CPU, 1, ((2, H), (3, Y)), name="aten::copy_ (cont.)", calls=("cudaMemcpyAsync",)),
                N(5, CPU, 30, ((3, Y), (4, H)), name="aten::add", calls=(then,)),
            ]
        )

    def without(then: str, *scales: str, **changes: Any) -> int:
        return play_ideal(apply(copied(then), changes_of(scales, **changes), {}).work).total_ns

    for then in ("cudaStreamSynchronize", "cudaDeviceSynchronize"):
        assert (without(then), without(then, remove_sync=("cudaMemcpyAsync",))) == (78_000, 77_000)
    assert without("cudaStreamSynchronize", remove_sync=("aten::copy_",)) == 47_000
    assert without("cudaDeviceSynchronize", remove_sync=("aten::copy_",)) == 77_000  # another op, or Python's


def waking(*, kernel_us: int = 40, ids: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Workload:
    """A call that had to wait 40 us less 15, then took 10 to return: 6 to wake up and 4 as if it had found all done."""
    a, b, c, d, e = ids
    return load(
        [
            N(a, CPU, 5),
            N(b, GPU, kernel_us, ((a, L),)),
            N(c, CPU, 10, ((a, H),)),
            N(d, CPU, 10, ((c, H), (b, Y)), name="op (cont.)", wake_us=6),
            N(e, CPU, 1, ((b, Y), (d, H))),
        ]
    )


@pytest.mark.parametrize(
    ("scale", "ns"),
    [
        ("kernel=1", 56_000),
        ("kernel=0.3", 28_000),  # still waits, for 2 us
        ("kernel=0.2", 24_000),  # the op ended 2 us before the call, which returns 10 us after it has
        ("kernel=0.1", 20_000),  # the op ended 6 us before the call, which takes 4 us
        ("kernel=0", 20_000),
        ("host=0.5", 48_000),
        ("kernel=0.0001", 20_000),
    ],
)
@pytest.mark.parametrize("ids", [(0, 1, 2, 3, 4), (9, 8, 7, 6, 5)], ids=["forward", "backward"])
def test_waking_up_costs_only_where_something_is_waited_for(scale: str, ns: int, ids: tuple[int, ...]) -> None:
    work = waking(ids=ids)
    played = play_ideal(apply(work, Changes((parse_scale(scale),)), {}).work)
    assert played.total_ns == ns
    assert critical_path(work, played).length_ns == ns
    assert play_ideal(work).total_ns == 56_000


def test_waking_up_scales_with_its_node_and_is_gone_without_the_wait() -> None:
    def total(*scales: str, **changes: Any) -> int:
        return play_ideal(apply(waking(), changes_of(scales, **changes), {}).work).total_ns

    assert total("kernel=0", "host=2") == 2 * 20_000
    assert total("kernel=0", "host:cont=0") == 16_000
    assert total(remove_sync=("all",)) == 45_000, "the kernel ends last"
    assert total("kernel=0.5", remove_sync=("all",)) == 25_000
    assert total("kernel=0.1", remove_sync=("3",)) == 20_000


def test_a_recorded_wait_is_one_and_other_machines_know_nothing_of_waking_up() -> None:
    assert play_ideal(waking(kernel_us=1)).total_ns == 26_000
    assert play_slots(apply(waking(), Changes((parse_scale("kernel=0"),)), {}).work).total_ns == 26_000


def test_the_edges_that_close_a_rank_are_no_wait() -> None:
    """``end`` follows every leaf; it waits where a call is named whose wait ended there."""
    nodes = [N(0, CPU, 1), N(1, GPU, 9, ((0, L),)), N(2, CPU, 0, ((0, H), (1, Y)), name="end")]
    with pytest.raises(UsageError, match="waits for nothing"):
        apply(load(nodes), changes_of(remove_sync=("all",)), {})
    named = [*nodes[:2], nodes[2]._replace(calls=("cudaDeviceSynchronize",))]
    assert apply(load(named), changes_of(remove_sync=("all",)), {}).done[0].what == "without sync all: 1 waits, 1 edges"
    both = [*nodes[:2], N(2, CPU, 1, ((0, H), (1, Y)), name="aten::item"), N(3, GPU, 5, ((2, L),))]
    both.append(N(4, CPU, 0, ((2, H), (3, Y)), name="end"))
    changed = apply(load(both), changes_of(remove_sync=("all",)), {})
    assert changed.done[0].what == "without sync all: 1 waits, 1 edges"
    assert changed.work.source[changed.work.first[4] : changed.work.first[5]].tolist() == [2, 3], (
        "what closes the rank stays"
    )


def test_delays_that_are_part_of_a_node_are_counted() -> None:
    assert apply(step(), Changes((parse_scale("delay=0"),)), {}).done[0].what == "delay x 0: 1 nodes, -0.003 ms of work"


def test_launches_of_one_graph_are_one_call() -> None:
    assert launches(step()).tolist() == [1, 0, 1, 0, 0, 0, 0, 0]


def test_bandwidth() -> None:
    nodes = [
        N(0, CPU, 1),
        N(1, COLL, 50, ((0, L),), group=1, size=8_000_000, comm_type=CollectiveType.ALL_REDUCE),
        N(2, COLL, 5, ((1, S),), group=1, size=10, comm_type=CollectiveType.ALL_REDUCE),
        N(3, COLL, 50, ((2, S),), group=1, size=0),
    ]
    work = workload({0: file(nodes, world_size=8)})
    changed = apply(work, changes_of(bandwidth_gb_per_s=100), {1: (0, 1, 2, 3)})
    assert changed.work.cost_ns.tolist() == [
        1_000,
        120_000,
        5_000,
        50_000,
    ]  # 1.5 x 8 MB over 100 GB/s; the quickest; unknown
    assert "1 of unknown size" in changed.done[0].what
    assert apply(work, changes_of(bandwidth_gb_per_s=100), {}).work.cost_ns[1] == 140_000  # all 8 ranks


def test_bytes_on_the_wire() -> None:
    kinds = np.array(
        [
            CollectiveType.ALL_REDUCE,
            CollectiveType.ALL_GATHER,
            CollectiveType.REDUCE_SCATTER,
            CollectiveType.BROADCAST,
            -1,
        ],
        np.int64,
    )
    assert wire_share(kinds, np.full(5, 4.0)).tolist() == [1.5, 3.0, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kernel",
        "gemm",
        "gemm=",
        "(=2",
        "kernel=",
        "kernel=-1",
        "kernel=nan",
        "kernel=inf",
        "kernel=1e7",
        "kernel:(=1",
        "=1",
    ],
)
def test_wrong_scales(text: str) -> None:
    with pytest.raises(UsageError, match="--scale"):
        parse_scale(text)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (Changes((parse_scale("comm=2"),)), "no such node"),
        (Changes((parse_scale("kernel:xyz=2"),)), "no such node"),
        (Changes((parse_scale("xyz=2"),)), "no such node"),
        (Changes((parse_scale("kernels=2"),)), r"did you mean kernel\?"),
        (Changes((parse_scale("GEMM=2"),)), r"did you mean gemm_64\?"),
        (Changes((parse_scale("kernel:item=2"),)), "what it finds is of sort host;"),
        (Changes((parse_scale("delay:xyz=0"),)), "no such node"),
        (changes_of(remove_sync=("aten::nothing",)), "the most frequent are aten::item"),
        (changes_of(remove_sync=("0",)), "no wait"),
        (changes_of(bandwidth_gb_per_s=1), "no communication"),
    ],
)
def test_changes_of_nothing_are_refused(changes: Changes, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        apply(step(), changes, {})
