"""Hand-overs that only a tensor tells: on a machine whose cores others take, a thread goes on tens of ms after it was
handed what it needs.

Times of recordings by hand are us.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import graphlink
from graphlink.depend.build import BuildOptions, Built, build
from graphlink.depend.sleep import WAKING_NS
from graphlink.graph_model import NodeKind
from graphlink.linking.clocks import on_host_clock
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Linked
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from graphlink.standstill.standstill import LATE, STACKS
from tests.build import Host, Node, build_et, build_trace
from tests.simulator import Execution, Program, run, write_et, write_kineto
from tests.simulator.build import ThreadBuilder
from tests.simulator.dirt import with_busy_cores
from tests.simulator.program import thread_tids
from tests.standstill.test_standstill import stood

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
STEPS = 4


def program(seed: int, load_ns: int, ticks: int = 0) -> Program:
    """A main thread that waits in each step for a batch, then for a helper that it hands a tensor; another thread ticks
    beside them.
    """
    main, helper, beside = (ThreadBuilder(name, random.Random(seed)) for name in ("python", "helper", "beside"))
    for k in range(STEPS):
        with main.op(f"ProfilerStep#{k}", annotation=True):
            with main.op(LOADER, annotation=True):
                main.host(load_ns)
            for name in ("aten::addmm", "aten::relu", "aten::detach"):
                with main.op(name):
                    main.host()
            main.signal(f"asked {k}")
            main.wait_for(f"answered {k}")
            with main.op("aten::sum"):
                main.host()
        helper.wait_for(f"asked {k}")
        for name in ("aten::numpy_T", "aten::mm", "aten::div"):
            with helper.op(name):
                helper.host()
        helper.signal(f"answered {k}")
    for _ in range(ticks):
        with beside.op("aten::add"):
            beside.host()
        beside.host(1_900_000)
    return Program((main.thread(), helper.thread(), *([beside.thread()] if ticks else [])), seed=seed)


def recorded(folder: Path, execution: Execution, *, handed: bool = True) -> Linked:
    write_kineto(execution, folder / "kineto_0.json", dialect="2024")
    write_et(execution, folder / "et_0.json", handed=handed)
    trace, et = on_host_clock(read_kineto(folder / "kineto_0.json")), read_host(folder / "et_0.json")
    return link(trace, et, match_hosts(trace, et))


def built(linked: Linked) -> Built:
    return build(linked, communication(linked), BuildOptions(sync="cuda"))


def asleep_ns(found: Built, tid: int) -> int:
    """Time of a thread that is in no node, up to its last one."""
    graph = found.graph
    mine = (graph.tid == tid) & (graph.kind != NodeKind.END) & (graph.kind != NodeKind.DEVICE_OP)
    return int(graph.end_ns[mine].max() - graph.duration_ns[mine].sum())


@pytest.mark.parametrize("seed", range(6))
def test_a_busy_machine_hides_no_hand_over_whose_tensor_is_recorded(tmp_path: Path, seed: int) -> None:
    """All sleeps are found, each to where the tensor was there. What passes until the thread has a core is named, and
    not explained.
    """
    execution = run(with_busy_cores(program(seed, 30_000_000, ticks=80), share=0))
    linked = recorded(tmp_path, execution)
    found = built(linked)
    origin_ns = int(linked.trace.host.start_ns.min()) - min(op.start_ns for op in execution.host)
    tids, host = thread_tids(execution.program), execution.host
    truth = {
        (tids[h.to_thread], tids[h.from_thread], host[h.from_op].end_ns)
        for h in execution.handovers
        if h.from_op is not None
    }
    assert len(truth) == 2 * STEPS
    handed = found.handed
    assert truth == set(
        zip(handed.tid.tolist(), handed.by_tid.tolist(), (handed.release_ns - origin_ns).tolist(), strict=True)
    )
    gap = (found.graph.kind == NodeKind.HOST_GAP) & (found.graph.tid == tids[0])
    to_main = [h for h in execution.handovers if h.to_thread == 0]
    assert int(found.graph.duration_ns[gap].sum()) >= sum(h.woken_ns - h.signal_ns for h in to_main), (
        "no work of the step around it"
    )
    standing = stood(linked, found).standstill
    off_ns = sum(h.woken_ns - h.signal_ns - WAKING_NS for h in execution.handovers)
    of_both = [piece for piece in standing.largest if not piece.what.startswith(f"thread {tids[2]} ")]
    assert abs(standing.threads.ns - standing.threads.explained_ns - off_ns) <= 0.02 * off_ns
    assert of_both
    assert {piece.record for piece in of_both} == {f"{LATE}; {STACKS}"}


@pytest.mark.parametrize("seed", range(6))
def test_the_gain_of_the_loader_on_a_busy_machine_is_that_of_a_run_without_it(tmp_path: Path, seed: int) -> None:
    """Other processes take the core from the thread in the loader, too: that is time of the loader."""
    execution, without = (run(with_busy_cores(program(seed, ns))) for ns in (30_000_000, 0))
    recorded(tmp_path, execution)
    rest_ns = sum(op.end_ns - op.start_ns for op in without.host if op.name == LOADER)
    truth_pct = 100 * (1 - (without.makespan_ns - rest_ns) / execution.makespan_ns)
    assert abs(graphlink.link(tmp_path).replay(scale="host:DataLoader=0").what_if[0].gain_pct - truth_pct) <= 0.1


def test_without_the_tensor_the_hand_over_is_not_known(tmp_path: Path) -> None:
    execution = run(with_busy_cores(program(0, 30_000_000), share=0))
    found = built(recorded(tmp_path, execution, handed=False))
    assert not len(found.handed.tid)


def by_hand(
    *, taker: Node, helper: tuple[float, float] = (60_000, 60_100), idle: tuple[float, float] = (100, 90_000)
) -> Built:
    rows = [
        Host("before", 0, idle[0], rf_id=1),
        Host("div", *helper, tid=2, rf_id=2),
        Host("sum", idle[1], idle[1] + 50, rf_id=3),
    ]
    trace = build_trace(rows)
    et = build_et([Node("before", 1), Node("div", 2, tid=2), taker])
    return built(link(trace, et, match_hosts(trace, et)))


def test_who_reads_what_another_made_meanwhile_slept_until_then() -> None:
    found = by_hand(taker=Node("sum", 3, made_by=1002))
    (release,) = found.handed.release_ns.tolist()
    assert (found.handed.tid.tolist(), found.handed.by_tid.tolist()) == ([1], [2])
    assert release - found.graph.epoch_ns == 60_100_000
    assert asleep_ns(found, 1) == 60_000_000


@pytest.mark.parametrize(("until", "op", "handed"), [(90_010, 90_030, 1), (90_010, 90_200, 0), (90_040, 90_030, 1)])
def test_a_range_that_holds_nothing_is_not_what_a_thread_goes_on_with(until: float, op: float, handed: int) -> None:
    """``zero_grad`` right before the op that reads what came out of a queue, or around it; not long before it."""
    rows = [
        Host("before", 0, 100, rf_id=1), Host("div", 60_000, 60_100, tid=2, rf_id=2),
        Host("zero_grad", 90_000, until, annotation=True), Host("sum", op, op + 5, rf_id=3),
    ]  # fmt: skip
    trace, et = build_trace(rows), build_et([Node("before", 1), Node("div", 2, tid=2), Node("sum", 3, made_by=1002)])
    found = built(link(trace, et, match_hosts(trace, et)))
    assert len(found.handed.tid) == handed
    assert asleep_ns(found, 1) == 60_000_000 * handed


@pytest.mark.parametrize(
    ("made_by", "helper"),
    [
        (0, (60_000, 60_100)),  # reads nothing of another thread
        (1001, (60_000, 60_100)),  # its own
        (1002, (10, 90)),  # made before it fell silent
    ],
)
def test_what_was_there_before_or_is_its_own_ends_no_sleep(made_by: int, helper: tuple[float, float]) -> None:
    assert not len(by_hand(taker=Node("sum", 3, made_by=made_by), helper=helper).handed.tid)


def test_a_thread_in_a_data_loader_is_in_the_loader_whatever_ends_meanwhile() -> None:
    """Another thread's op ends 1 ms before the loader has its batch: it did not wake the one in the loader."""
    for name, asleep in ((LOADER, 0), ("my range", 28_900_000)):
        rows = [
            Host(name, 0, 30_000, annotation=True), Host("after", 30_000, 30_100),
            Host("op", 100, 29_000, tid=2),
        ]  # fmt: skip
        trace = build_trace(rows)
        linked = link(trace, None, match_hosts(trace, None))
        found = built(linked)
        assert bool(asleep_ns(found, 1)) == bool(asleep), name
        threads = stood(linked, found).standstill.threads
        assert threads.ns == threads.explained_ns, name
