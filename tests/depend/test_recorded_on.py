"""The stream of a record that rows name without its stream. Times are us."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.depend.cuda import CudaWaits, cuda_waits
from graphlink.depend.recorded_on import Shown, by_effects, keeping
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import FoundBy, Trace
from graphlink.model import SyncKind as Kind
from tests.build import Call, Device, Host, Sync, build_trace
from tests.depend.programs import case


def found_in(trace: Trace) -> CudaWaits:
    return cuda_waits(link(trace, None, match_hosts(trace, None)))


@pytest.mark.parametrize(
    ("shown", "streams", "told"),
    [
        ([Shown(510, 450)], [2], True),  # held until what 2 had done was done
        ([Shown(510, 450), Shown(505, 460), Shown(900, 880)], [2], True),
        ([Shown(900, None)], [1, 2, 3], False),  # nothing was held
        ([Shown(310, None)], [1], False),  # over before 2 was done
        ([Shown(900, 200)], [1, 2, 3], False),
        ([Shown(10, None)], [], False),
    ],
)
def test_what_effects_leave_of_the_streams(shown: list[Shown], streams: list[int], told: bool) -> None:
    assert by_effects({1: 300, 2: 500, 3: 800}, shown, 0) == (streams, told)


@pytest.mark.parametrize("held", [4, 3])
def test_what_is_recorded_is_told_by_the_launch_before_it_where_effects_agree_with_that(held: int) -> None:
    """Streams 7 and 9 in turn, each waiting for the other: no thread keeps to one. The last wait holds nothing up."""
    calls, device, syncs = [], [], []
    for k in range(held + 2):
        at, number, stream = 100 * k, 3 * k + 1, (7, 9)[k % 2]
        if k:
            calls.append(Call("cudaStreamWaitEvent", at, at + 1, number + 2))
            syncs.append(Sync(Kind.STREAM_WAIT, at, at + 1, number + 2, stream=stream, record=number - 2))
        calls += [Call("cudaLaunchKernel", at + 2, at + 3, number), Call("cudaEventRecord", at + 4, at + 5, number + 1)]
        length = 98 if k < held else 30  # until after the next launch, or not
        device.append(Device(f"k{k}", at + 30 + 0.5 * k, at + 30 + length + 0.5 * k, number, stream=stream))
    trace = build_trace(host=[Host("op", 0, 3000)], calls=calls, device=device, syncs=syncs)
    waits = found_in(trace).waits
    pairs = {*zip(waits.source.tolist(), waits.device_op.tolist(), strict=True)}
    assert pairs == {(k, k + 1) for k in range(held + (held > 3))}


def test_what_keeps_to_streams() -> None:
    threads = ([7] * 20, [7, 7, 7, 8, 8, 8, 9, 9, 9], [7, 8] * 10, [7, 8, 9, 7, 7, 9, 8, 8, 7, 9], [7])
    tid = np.repeat(np.arange(len(threads)), [len(thread) for thread in threads])
    assert keeping(tid, np.concatenate(threads)) == {0, 1, 4}


def test_a_wait_for_the_only_stream_with_work_is_exact() -> None:
    trace = build_trace(
        host=[Host("op", 0, 300)],
        calls=[
            Call("cudaLaunchKernel", 1, 2, 1),
            Call("cudaEventRecord", 3, 4, 2),
            Call("cudaStreamWaitEvent", 5, 6, 3),
            Call("cudaLaunchKernel", 7, 8, 4),
        ],
        device=[Device("a", 10, 90, 1), Device("b", 92, 95, 4, stream=9)],
        syncs=[Sync(Kind.STREAM_WAIT, 5, 6, 3, stream=9, record=2)],
    )
    waits = found_in(trace).waits
    [found] = zip(waits.source, waits.device_op, waits.found_by, strict=True)
    assert found == (0, 1, FoundBy.CUDA_SYNC)


def test_a_record_of_nothing_is_waited_for_by_nobody() -> None:
    """The only work ends after the call that waited has returned."""
    trace = build_trace(
        host=[Host("op", 0, 300)],
        calls=[
            Call("cudaLaunchKernel", 1, 2, 1),
            Call("cudaEventRecord", 3, 4, 2),
            Call("cudaEventSynchronize", 5, 20, 3),
        ],
        device=[Device("a", 10, 90, 1)],
        syncs=[Sync(Kind.EVENT, 5, 20, 3, record=2)],
    )
    found = found_in(trace)
    assert not len(found.waits.source)
    assert found.told_call[2]


def test_on_random_programs_little_is_false_and_what_was_held_up_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads launch on any stream at any time, so that only effects tell."""
    monkeypatch.setattr("tests.depend.programs.on_host_clock", lambda trace: trace)
    waits = events = false_waits = false_events = blocked = explained = late = shown = 0
    for seed in range(60):
        x = case(tmp_path, seed, ["cuspy"], cuda_sync=True)
        found, found_events = x.found_waits(), x.found_events()
        waits, false_waits = waits + len(found), false_waits + len(found - x.waits)
        events, false_events = events + len(found_events), false_events + len(found_events - x.event_edges)
        slow = x.blocked()
        blocked, explained = blocked + len(slow), explained + len(slow & {call for _, call in found})
        device, order = x.trace.device, x.device.order
        ready = np.maximum(
            np.append(x.trace.calls.end_ns, 0)[x.linked.device_call],
            np.where(order.before >= 0, device.end_ns[order.before], 0),
        )
        by_end = sorted(x.event_edges, key=lambda edge: device.end_ns[edge[0]])  # of several the last holds
        held = {op: source for source, op in by_end if device.end_ns[source] > ready[op] + 20_000}
        true = {(source, op) for op, source in held.items()}
        late, shown = late + len(true), shown + len(true) - len(x.missing(true, found_events | x.inferred_events()))
    assert false_waits <= 0.005 * waits, f"{false_waits} of {waits} waits are false"
    assert false_events <= 0.03 * events, f"{false_events} of {events} event edges are false"
    assert explained >= 0.99 * blocked, f"{explained} of {blocked} blocked calls are explained"
    assert shown >= 0.97 * late, f"{shown} of {late} ops that an event held up"
