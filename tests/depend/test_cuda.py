"""Records of events whose device no row tells: stream numbers repeat on every device."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.depend.cuda import cuda_waits
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, SyncKind
from tests.build import Call, Device, Event, Host, Sync, build_trace

LAUNCH, RECORD, WAIT = "cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent"


def waited_for(*, event: int | None, ends: tuple[float, float], told: bool = False) -> list[tuple[str, str]]:
    """Two devices run an op on stream 7 each, until ``ends``; an event is recorded there, and device 0 waits for it on
    stream 9.

    Return (awaited, waiting) ops. ``told``: a ``cuda_event`` row has the device of the record, which is 1.
    """
    trace = build_trace(
        host=[Host("aten::mm", 0, 100)],
        calls=[
            Call(LAUNCH, 1, 2, 1),
            Call(LAUNCH, 3, 4, 2),
            Call(RECORD, 5, 6, 3),
            Call(WAIT, 7, 8, 4),
            Call(LAUNCH, 9, 10, 5),
        ],
        device=[
            Device("near", 11, ends[0], 1, stream=7, device=0),
            Device("far", 11, ends[1], 2, stream=7, device=1),
            Device("waits", 60, 70, 5, stream=9, device=0),
        ],
        syncs=[Sync(SyncKind.STREAM_WAIT, 7, 8, 4, stream=9, record=3, record_stream=7, device=0, event=event)],
        events=[Event(3, 7, 1)] if told else [],
    )
    linked = link(trace, None, match_hosts(trace, None))
    waits = cuda_waits(linked).waits
    mine = np.flatnonzero(waits.device_op != NOWHERE)
    names = [trace.strings[code] for code in trace.device.name.tolist()]
    return [
        (names[s], names[t]) for s, t in zip(waits.source[mine].tolist(), waits.device_op[mine].tolist(), strict=True)
    ]


@pytest.mark.parametrize("event", [None, 5])
def test_the_device_of_the_row_counts_first(event: int | None) -> None:
    assert waited_for(event=event, ends=(50, 55)) == [("near", "waits")]


@pytest.mark.parametrize("event", [None, 5])
def test_an_op_that_ran_on_was_not_awaited(event: int | None) -> None:
    assert waited_for(event=event, ends=(90, 55)) == [("far", "waits")]


def test_where_neither_can_be_it_is_the_row_s_own() -> None:
    assert waited_for(event=5, ends=(90, 95)) == [("near", "waits")]


def test_a_row_of_the_record_tells() -> None:
    assert waited_for(event=None, ends=(50, 55), told=True) == [("far", "waits")]
