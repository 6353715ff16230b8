"""Waits of the host without a call: silences inside an op that end as a kernel ends that it launched. Times are us."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from graphlink.depend.build import Built
from graphlink.graph.critical import cost_ns
from graphlink.graph_model import CHAINED, EdgeKind, NodeKind
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import SyncKind, Trace
from graphlink.records import NOTE
from graphlink.replay.machines import measured_ns, replay
from tests.build import Call, Device, Host, Sync, build_trace
from tests.depend.programs import built, linked_of
from tests.depend.programs import understood as understood_program
from tests.simulator import Training, run, training_program, with_spins, write_kineto


@dataclass(frozen=True)
class Polled:
    """One op ``name``: launches ``kernel`` at its start, which runs up to ``ends``; after that nothing shows until
    ``goes_on``.
    """

    start: float
    ends: float
    goes_on: float
    name: str = "dispatch"
    kernel: str = "notify"
    before: float | None = None  # end of an op before it on the stream, launched before the op began


def recorded(*polled: Polled, more: tuple[Call, ...] = ()) -> Trace:
    host, calls, device = [Host("main", 0, 200_000, annotation=True)], [*more], []
    for i, p in enumerate(polled):
        host.append(Host(p.name, p.start, p.goes_on + 90, annotation=True))
        host += [Host("aten::empty", p.goes_on + at, p.goes_on + at + 4) for at in range(0, 90, 5)]
        if p.before is not None:
            calls.append(Call("cudaLaunchKernel", p.start - 20, p.start - 15, 2 * i + 2))
            device.append(Device("layout", p.start - 10, p.before, 2 * i + 2))
        calls.append(Call("cudaLaunchKernel", p.start + 2, p.start + 7, 2 * i + 1))
        device.append(Device(p.kernel, p.start + 10 if p.before is None else p.before + 2, p.ends, 2 * i + 1))
    return build_trace(host=host, calls=calls, device=device)


def understood(*polled: Polled, more: tuple[Call, ...] = ()) -> Built:
    trace = recorded(*polled, more=more)
    return built(link(trace, None, match_hosts(trace, None)), sync="cuda")


def waits(graph_of: Built, kind: NodeKind = NodeKind.HOST_PART) -> list[tuple[float, float]]:
    """(end of the kernel, start of the part behind the wait) of the ``sync`` edges to parts (or nodes of another kind),
    us.
    """
    g = graph_of.graph
    target = np.repeat(np.arange(len(g.kind)), np.diff(g.first))
    at = np.flatnonzero((g.edge_kind == EdgeKind.SYNC) & (g.kind[target] == kind))
    return [
        (float(g.end_ns[s]) / 1e3, float(g.start_ns[t]) / 1e3) for s, t in zip(g.source[at], target[at], strict=True)
    ]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("queries", "tid", "between", "polls"),
    [
        (range(30, 530, 8), 1, (), True),
        (range(30, 531, 100), 1, (), True),
        ((30, 526), 1, (), False),  # Python may run between two
        (range(30, 530, 8), 2, (), False),  # a watchdog
        (range(30, 530, 8), 1, (Call("cudaGetDevice", 523, 524, 99),), False),  # between the last two
    ],
)
def test_a_loop_of_queries_waits_from_the_first_on(
    queries: Iterable[int], tid: int, between: tuple[Call, ...], polls: bool, inside: bool
) -> None:
    asked = [Call("cudaEventQuery", at, at + 3, 100 + k, tid=tid) for k, at in enumerate([*queries])]
    op = [Host("poll", 28, 535)] if inside and tid == 1 else []
    trace = build_trace(
        host=[Host("aten::mm", 0, 20), *op, Host("aten::next", 540, 560)],
        calls=[Call("cudaLaunchKernel", 2, 7, 1), Call("cudaEventRecord", 10, 11, 2), *asked, *between],
        device=[Device("k", 12, 522, 1)],
        syncs=[Sync(SyncKind.EVENT, asked[-1].start, asked[-1].end, asked[-1].correlation, 7, 2, 7, event=5)],
    )
    found = built(link(trace, None, match_hosts(trace, None)), sync="cuda")
    graph = found.graph
    host_ns = int(cost_ns(graph)[np.isin(graph.kind, CHAINED)].sum())
    assert replay(graph, cost_ns(graph)).total_ns == measured_ns(graph) == 560_000
    assert (host_ns < 100_000) == polls


AFTER = tuple(
    Polled(start, start + took, start + took + 8) for start, took in ((1_000, 5_000), (20_000, 17_000), (50_000, 9_000))
)
BEFORE = tuple(
    Polled(start, start + took, start + took - lag, before=start + took - 1_500)
    for start, took, lag in ((1_000, 5_000, 30), (20_000, 17_000, 60), (50_000, 9_000, 45))
)


def test_a_host_that_goes_on_after_the_kernel_each_time_waited_for_it() -> None:
    found = understood(*AFTER)
    assert waits(found) == [(p.ends, p.ends) for p in AFTER]
    assert (found.untold.spins, found.sync.by_source["inferred"]) == (0, 3)
    assert any(w.startswith(f"{NOTE}3 times the host waited for a kernel without any call") for w in found.warnings)


def test_a_host_that_goes_on_before_the_kernel_ends_waited_inside_it() -> None:
    """First for what the kernel had to wait for, and from the kernel's end on for the kernel."""
    found = understood(*BEFORE)
    assert waits(found) == [edge for p in BEFORE for edge in ((p.before, p.goes_on), (p.ends, p.ends))]
    assert (found.untold.spins, int(found.graph.wait_ns.sum())) == (
        0,
        sum(round(p.goes_on - p.start - 7) * 1000 for p in BEFORE),
    )


@pytest.mark.parametrize("later", [-8, 0, 8])
def test_the_next_operator_is_the_one_after_the_op_that_polled_wherever_its_rows_stand(later: float) -> None:
    """As after the end of a call; which of its rows begins after the end of a kernel hangs on some us of the device's
    clock.
    """
    polled = tuple(replace(p, ends=p.ends + later) for p in BEFORE)
    following = [p.start for p in polled[1:]]
    assert waits(understood(*polled), NodeKind.HOST_OP) == [
        (p.ends, start) for p, start in zip(polled, following, strict=False)
    ]


@pytest.mark.parametrize("polled", [AFTER, BEFORE])
def test_the_recording_replays_exactly(polled: tuple[Polled, ...]) -> None:
    graph = understood(*polled).graph
    assert replay(graph, cost_ns(graph)).total_ns == measured_ns(graph)


@pytest.mark.parametrize(
    ("polled", "untold"),
    [
        (AFTER[:1], 1),  # once is a coincidence
        ((AFTER[0], Polled(20_000, 37_000, 37_008, name="other")), 2),  # so it is once for each op
        ((AFTER[0], Polled(20_000, 37_000, 37_008, kernel="other")), 2),  # and for each kernel
        ((*AFTER, Polled(80_000, 81_000, 90_000)), 3),  # here it went on long after
        ((*AFTER, Polled(80_000, 95_000, 90_000)), 3),  # or long before
        (
            tuple(Polled(s, s + 250, s + 258) for s in (1_000, 20_000, 50_000)),
            0,
        ),  # such short silences may end like this by chance
    ],
)
def test_what_nothing_bears_out_is_no_wait_and_is_told(polled: tuple[Polled, ...], untold: int) -> None:
    found = understood(*polled)
    assert (waits(found), found.untold.spins) == ([], untold)


def test_many_short_silences_bear_each_other_out() -> None:
    assert len(waits(understood(*(Polled(s, s + 600, s + 608) for s in range(1_000, 60_000, 5_000))))) == 12


def test_where_a_call_took_the_time_there_was_no_silence() -> None:
    """The call is what tells then, and each rest is judged by itself."""
    assert (
        waits(
            understood(
                *AFTER, more=tuple(Call("cudaMalloc", p.start + 10, p.ends + 5, 100 + i) for i, p in enumerate(AFTER))
            )
        )
        == []
    )


def test_polling_of_simulated_programs_is_found_and_nothing_else_is(tmp_path: Path) -> None:
    true = found = right = 0
    for seed in range(6):
        execution = run(with_spins(training_program(seed, Training(steps=4)), share=0.15))
        path = tmp_path / f"{seed}.json"
        ids = write_kineto(execution, path, cuda_sync=False)
        spins = understood_program(path, execution, ids).host.spins
        polled = {ids.device_correlation[spin.source] for spin in execution.spins}
        sources = {int(linked_of(path).trace.device.correlation[row]) for row in spins.source}
        true, found, right = true + len(polled), found + len(sources), right + len(sources & polled)
    print(f"{true} times polled, {found} found, {right} of them right")
    assert right == found >= 0.75 * true


@pytest.mark.parametrize(
    ("every", "rows", "told"), [(100, False, ["1"]), (100, True, []), (20, False, [])], ids=["loop", "told", "short"]
)
def test_a_loop_of_queries_of_which_nothing_tells_what_it_waited_for_is_named(
    every: int, rows: bool, told: list[str]
) -> None:
    queries = [Call("cudaEventQuery", 1000 + every * k, 1008 + every * k, 10 + k) for k in range(5)]
    ends = 1000 + every * 4 - 2
    calls = [Call("cudaEventRecord", 910, 912, 9), Call("cudaLaunchKernel", 900, 905, 1), *queries]
    wait = Sync(SyncKind.EVENT, 1000 + every * 4, 1008 + every * 4, 14, stream=7, record=9, record_stream=7)
    trace = build_trace(
        [Host("launch", 890, 920), Host("poll", 950, 1600), Host("after", 1700, 1800)],
        calls=calls,
        device=[Device("k", 930, ends, 1)],
        syncs=[wait] * rows,
    )
    warnings = [
        text for text in built(link(trace, None, match_hosts(trace, None))).warnings if "loops that ask" in text
    ]
    assert [text.split("(")[1].split(")")[0] for text in warnings] == told
