"""What ran after what on the devices: as simulated programs did, whatever their clocks show, and that it tells of a
clock that was set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.linking.clocks import on_host_clock, order_of
from graphlink.linking.launch import joined
from graphlink.model import SyncKind
from tests.build import Call, Device, Sync, build_trace
from tests.depend.programs import Pairs, case
from tests.depend.test_truth import WITH_ROWS
from tests.simulator import DeviceClock, Variation


@pytest.mark.parametrize(
    "clock", [DeviceClock(), DeviceClock(7_000, steps=((1_500_000, -12_000),))], ids=["right", "set back"]
)
def test_what_rows_name_is_true_and_most_of_what_is_true_and_near(tmp_path: Path, clock: DeviceClock) -> None:
    true = found = 0
    for seed in range(20):
        x = case(tmp_path, seed, WITH_ROWS, cuda_sync=True, vary=Variation(device_clock=clock))
        order = order_of(x.trace, x.linked.device_call)
        named = order.named.nonzero()[0]
        pairs: Pairs = set(zip(order.before[named].tolist(), order.after[named].tolist(), strict=True))
        across = {(a, b) for a, b in pairs if x.stream(a) != x.stream(b)}
        assert across <= x.event_edges
        assert (order.waits.ahead_ns <= 3_000).all()  # no more than the clock that was found is off
        device = x.trace.device
        near = {(a, b) for a, b in x.event_edges if device.start_ns[b] - device.end_ns[a] <= 100_000}
        true, found = true + len(near), found + len(near & across)
    assert true >= 30
    assert found >= 0.8 * true


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
def test_a_stream_that_waited_shows_that_the_clock_was_set_back(named: bool) -> None:
    """Stream 9 waits for what stream 7 runs until 120 us, then its rows are 10 us early. By each launch alone the clock
    may be right.
    """
    calls = [Call("cudaLaunchKernel", 20 * i, 20 * i + 4, 10 + i) for i in range(-10, 0)]
    ops = [Device("k", call.end + 1, call.end + 6, call.correlation) for call in calls]
    calls += [Call("cudaLaunchKernel", 0, 4, 1), Call("cudaEventRecord", 5, 6, 2)]
    calls += [Call("cudaStreamWaitEvent", 7, 8, 3), Call("cudaLaunchKernel", 10, 14, 4)]
    ops += [Device("a", 5, 120, 1), Device("b", 112, 120, 4, stream=9)]
    wait = Sync(
        SyncKind.STREAM_WAIT, 7, 8, 3, stream=9, record=2 if named else None, record_stream=7 if named else None
    )
    trace = build_trace(calls=calls, device=ops, syncs=[wait])
    assert np.count_nonzero(order_of(trace, joined(trace)).named) == named
    moved = on_host_clock(trace)
    row = {c: i for i, c in enumerate(moved.device.correlation.tolist())}
    assert (moved.device.end_ns[row[1]] <= moved.device.start_ns[row[4]]) == named


def test_a_stream_number_of_two_devices_names_nothing() -> None:
    calls = [Call("cudaLaunchKernel", 0, 4, 1), Call("cudaEventRecord", 5, 6, 2), Call("cudaStreamWaitEvent", 7, 8, 3)]
    calls += [Call("cudaLaunchKernel", 10, 14, 4), Call("cudaLaunchKernel", 16, 18, 5)]
    ops = [Device("a", 5, 120, 1), Device("b", 122, 130, 4, stream=9), Device("c", 20, 30, 5, device=1)]
    wait = Sync(SyncKind.STREAM_WAIT, 7, 8, 3, stream=9, record=2, record_stream=7)
    for rows, found in ((ops, 0), (ops[:2], 1)):
        trace = build_trace(calls=calls, device=rows, syncs=[wait])
        assert np.count_nonzero(order_of(trace, joined(trace)).named) == found
