"""What a call takes to wake up: its return after the wait, less what calls of its name take that find all done. Times
are us.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.depend.build import build
from graphlink.graph_model import Graph, NodeKind
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import DeviceKind, SyncKind
from graphlink.read.kineto import read_kineto
from tests.build import Call, Device, Host, Sync, build_trace
from tests.depend.programs import built
from tests.depend.test_host import graph_of
from tests.replay.test_what_if import program_shape
from tests.simulator import Api, random_program, run, write_kineto

STREAM, DEVICE = "cudaStreamSynchronize", "cudaDeviceSynchronize"


def waking(*calls: tuple[str, float, float]) -> list[tuple[float, float]]:
    """(start, wake) of the nodes that wake up, in an op over [0, 1000) in which a kernel runs over [15, 80)."""
    given = [Call(name, start, end, 2 + i) for i, (name, start, end) in enumerate(calls)]
    kind = {STREAM: SyncKind.STREAM, DEVICE: SyncKind.DEVICE}
    trace = build_trace(
        host=[Host("op", 0, 1000), Host("next", 1000, 1010)],
        calls=[Call("cudaLaunchKernel", 2, 10, 1), *given],
        device=[Device("k", 15, 80, 1)],
        syncs=[Sync(kind[c.name], c.start, c.end, c.correlation, stream=7) for c in given],
    )
    return of(graph_of(trace))


def of(graph: Graph) -> list[tuple[float, float]]:
    at = np.flatnonzero(graph.wake_ns)
    assert np.isin(graph.kind[at], (NodeKind.HOST_PART, NodeKind.HOST_GAP)).all()
    return [(float(graph.start_ns[i]) / 1e3, float(graph.wake_ns[i]) / 1e3) for i in at]


WAITED = (STREAM, 20, 90)  # 10 us from the end of the kernel to its return


@pytest.mark.parametrize(
    ("others", "wake"),
    [
        ([], []),  # no call of the recording found all done: 10 us may be what such a call takes
        ([(STREAM, 100, 104)], [(80, 6)]),
        ([(STREAM, 100, 104), (STREAM, 110, 113), (STREAM, 120, 128)], [(80, 6)]),  # the median
        ([(STREAM, 100, 119)], []),  # takes longer than the return
        ([(STREAM, 100, 300), (STREAM, 400, 403)], [(80, 7)]),  # 200 us are a wait for what the recording does not show
        ([(DEVICE, 100, 104)], []),  # another call
    ],
)
def test_a_return_after_a_wait_against_calls_that_found_all_done(
    others: list[tuple[str, float, float]], wake: object
) -> None:
    assert waking(WAITED, *others) == wake


def test_a_machine_that_wakes_up_slowly_shows_it_without_a_call_that_found_all_done() -> None:
    assert waking((STREAM, 20, 225)) == [(80, 145 - 14)]
    assert waking((STREAM, 20, 225), (STREAM, 300, 304)) == [(80, 145 - 4)]


@pytest.mark.parametrize(("late_us", "wakes"), [(60, True), (150, False)])
def test_a_machine_that_wakes_up_quickly_shows_what_is_no_waking(late_us: int, wakes: bool) -> None:
    """Six waits return 10 us after their kernel, the last so much later."""
    late = [10] * 6 + [late_us]
    calls = [Call("cudaLaunchKernel", 1_000 * k + 2, 1_000 * k + 10, 2 * k + 1) for k in range(7)]
    waits = [Call(STREAM, 1_000 * k + 20, 1_000 * k + 80 + us, 2 * k + 2) for k, us in enumerate(late)]
    trace = build_trace(
        host=[Host("op", 1_000 * k, 1_000 * k + 900) for k in range(8)],
        calls=[*calls, *waits, Call(STREAM, 6_500, 6_504, 99)],
        device=[Device("k", 1_000 * k + 15, 1_000 * k + 80, 2 * k + 1) for k in range(7)],
        syncs=[Sync(SyncKind.STREAM, c.start, c.end, c.correlation, stream=7) for c in waits],
    )
    assert dict(of(graph_of(trace))).get(6_080.0) == (late_us - 4 if wakes else None)


@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize(("returned", "gap_us"), [(380, 0), (500, 420), (5000, 4920)])
def test_what_takes_longer_than_any_waking_waited_for_something_else(
    returned: float, gap_us: float, times: int
) -> None:
    """However often: a graph whose loop is not recorded keeps each call waiting as long."""
    begun = [7_000 * k for k in range(times)]
    waits = [Call(STREAM, at + 20, at + returned, 100 + at) for at in begun]
    trace = build_trace(
        host=[Host("op", at + after, at + end) for at in begun for after, end in ((0, 6_000), (6_000, 6_010))],
        calls=[*(Call("cudaLaunchKernel", at + 2, at + 10, 1 + at) for at in begun), *waits],
        device=[Device("k", at + 15, at + 80, 1 + at) for at in begun],
        syncs=[Sync(SyncKind.STREAM, c.start, c.end, c.correlation, stream=7) for c in waits],
    )
    linked = link(trace, None, match_hosts(trace, None))
    made = build(linked, communication(linked))
    behind = (made.graph.kind == NodeKind.HOST_GAP) & (made.graph.start_ns % 7_000_000 == 80_000)
    assert made.graph.duration_ns[behind].sum() == times * gap_us * 1000
    assert (made.graph.wake_ns > 0).any() == (gap_us == 0)
    assert made.untold.calls_ns == times * gap_us * 1000
    assert any(f"waited {times * gap_us:.1f} us for something" in text for text in made.warnings) == (gap_us > 0)


@pytest.mark.parametrize(("returned", "gap_us"), [(390, 0), (500, 420), (5000, 4920)])
@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaMemcpy"])
def test_a_copy_waited_for_something_else_where_it_returns_later_than_the_host_can_have_emptied_the_buffer(
    call: str, returned: float, gap_us: float
) -> None:
    """It took 15 us itself."""
    copy = Device("Memcpy DtoH (Device -> Pageable)", 65, 80, 1, kind=DeviceKind.MEMCPY)
    trace = build_trace(
        host=[Host("op", 0, 6_000), Host("next", 6_000, 6_010)],
        calls=[Call(call, 20, returned, 1)],
        device=[copy],
    )
    linked = link(trace, None, match_hosts(trace, None))
    made = build(linked, communication(linked))
    assert made.graph.duration_ns[made.graph.kind == NodeKind.HOST_GAP].sum() == gap_us * 1000
    assert made.untold.calls_ns == gap_us * 1000


def test_what_is_known_of_waking_up_is_what_was_simulated(tmp_path: Path) -> None:
    """The return after the wait is known to the ns; what a call takes that finds all done is drawn from 2 to 6
    or 4 us.
    """
    seen = 0
    for seed in range(12):
        execution = run(random_program(seed, program_shape(seed)))
        write_kineto(execution, tmp_path / "kineto.json", dialect="2024", cuda_sync=True)
        trace = read_kineto(tmp_path / "kineto.json")
        graph = built(
            link(trace, None, match_hosts(trace, None)), sync="cuda"
        ).graph  # its device is on the host's clock
        origin = min(row.start_ns for rows in (execution.host, execution.calls, execution.device) for row in rows)
        syncs = [c for c in execution.calls if c.blocked_ns and c.call.api in (Api.STREAM_SYNC, Api.EVENT_SYNC)]
        calls = {c.start_ns + c.blocked_ns - origin: c for c in syncs}
        for i in np.flatnonzero(graph.wake_ns).tolist():
            call = calls.get(int(graph.start_ns[i]))
            if call is not None:
                seen += 1
                free_ns = call.end_ns - call.start_ns - call.blocked_ns - int(graph.wake_ns[i])
                assert 2_000 <= free_ns < 6_000
    assert seen > 100
