"""Why a finding is rejected, and onto which operator a wait goes. Times are us."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.depend.cuda import cuda_waits
from graphlink.depend.reject import Dependencies, merge
from graphlink.linking.call_roles import Role, role_of
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, FoundBy, Linked, Trace, Waits
from graphlink.model import SyncKind as Kind
from tests.build import Call, Device, Host, Sync, build_trace

A, B, C = 0, 1, 2  # device rows, by start


def linked(trace: Trace) -> Linked:
    return link(trace, None, match_hosts(trace, None))


def trace(*, rows: bool = True, last: bool = True) -> Trace:
    host = [
        Host("op", 0, 100),
        Host("aten::elsewhere", 101, 105, tid=2),
        Host("ProfilerStep#2", 102, 300, annotation=True),
    ]
    return build_trace(
        host=[*host, Host("## range ##", 110, 150, annotation=True), Host("next", 112, 120)] if last else host[:1],
        calls=[
            Call("cudaLaunchKernel", 1, 2, 1),
            Call("cudaLaunchKernel", 3, 4, 2),
            Call("cudaLaunchKernel", 5, 6, 3),
            Call("cudaStreamSynchronize", 20, 90, 9),
        ],
        device=[Device("a", 10, 30, 1), Device("b", 31, 85, 2), Device("c", 32, 95, 3, stream=9)],
        syncs=[Sync(Kind.STREAM, 20, 90, 9, stream=7)] if rows else (),
    )


def hta(*pairs: tuple[int, int, int]) -> Waits:
    """(source, call, device op)"""
    table = np.array(pairs, np.int32).reshape(-1, 3)
    return Waits(table[:, 0], table[:, 1], table[:, 2], np.full(len(table), FoundBy.HTA, np.uint8))


def merged(of: Trace, *others: Waits) -> Dependencies:
    x = linked(of)
    return merge(x, cuda_waits(x), others)


def reasons(found: Dependencies) -> dict[str, int]:
    assert found.counts.found == found.counts.kept + sum(found.counts.rejected.values())
    return found.counts.rejected


def test_the_next_operator_is_on_the_same_thread_behind_the_end_of_the_call_and_no_step_mark() -> None:
    of = trace()
    found = merged(of)
    assert [of.strings[of.host.name[t]] for t in found.sync_target] == ["## range ##"]
    assert reasons(found) == {}


def test_a_wait_without_a_later_operator_is_kept_for_the_part_behind_it() -> None:
    found = merged(trace(last=False))
    assert reasons(found) == {"no_target": 1}
    assert found.host.source.tolist() == [B]
    assert found.sync_source.tolist() == []


def test_one_pair_from_two_sources_counts_once_and_for_both() -> None:
    found = merged(trace(), hta((B, 3, NOWHERE)))
    assert (found.counts.found, found.counts.kept) == (1, 1)
    assert found.counts.by_source == {"hta": 1, "cuda_sync": 1, "event_id": 0, "inferred": 0}
    assert found.sync_found_by.tolist() == [FoundBy.HTA | FoundBy.CUDA_SYNC]


def test_hta_alone_is_contradicted_where_rows_tell_something_else() -> None:
    assert reasons(merged(trace(), hta((A, 3, NOWHERE)))) == {"contradicted": 1}


def test_hta_adds_where_rows_do_not_tell() -> None:
    found = merged(trace(rows=False), hta((B, 3, NOWHERE)))
    assert found.host.source.tolist() == [B]
    assert reasons(found) == {}


def test_a_source_that_ended_after_the_call_or_the_waiting_op_began_is_impossible() -> None:
    assert reasons(merged(trace(rows=False), hta((C, 3, NOWHERE), (B, NOWHERE, C)))) == {"impossible": 2}


def test_an_edge_inside_a_stream_says_nothing() -> None:
    assert reasons(merged(trace(rows=False), hta((A, NOWHERE, B)))) == {"stream order": 1}


def test_an_older_op_of_a_stream_is_implied_by_a_newer_one() -> None:
    found = merged(trace(rows=False), hta((A, 3, NOWHERE), (B, 3, NOWHERE)))
    assert reasons(found) == {"implied": 1}
    assert found.host.source.tolist() == [B]


def test_two_calls_before_one_operator_end_in_one_edge() -> None:
    of = build_trace(
        host=[Host("op", 0, 100), Host("next", 110, 120)],
        calls=[
            Call("cudaLaunchKernel", 1, 2, 1),
            Call("cudaStreamSynchronize", 20, 90, 9),
            Call("cudaDeviceSynchronize", 91, 95, 10),
        ],
        device=[Device("a", 10, 80, 1)],
        syncs=[Sync(Kind.STREAM, 20, 90, 9, stream=7), Sync(Kind.DEVICE, 91, 95, 10)],
    )
    found = merged(of)
    assert reasons(found) == {"duplicate": 1}
    assert len(found.sync_source) == 1
    assert found.host.call.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("cudaStreamSynchronize", Role.STREAM_SYNC),
        ("cuCtxSynchronize", Role.DEVICE_SYNC),
        ("hipDeviceSynchronize", Role.DEVICE_SYNC),
        ("cudaEventQuery_v3020", Role.EVENT_QUERY),
        ("cudaStreamWaitEvent_ptsz", Role.STREAM_WAIT),
        ("cudaEventRecordWithFlags", Role.RECORD),
        ("cudaMemcpy2DAsync", Role.COPY_ASYNC),
        ("cuMemcpyDtoH_v2", Role.COPY),
        ("hipMemcpyWithStream", Role.COPY),
        ("cudaLaunchKernelExC", Role.OTHER),
        ("INVALID", Role.OTHER),
        ("synchronizeStream", Role.STREAM_SYNC),  # MTIA, as the next two
        ("enqueueCommand waitOnEvent", Role.STREAM_WAIT),
        ("enqueueCommand memcpyDtoHAsync", Role.COPY_ASYNC),
        ("urQueueFinish", Role.STREAM_SYNC),  # XPU, as the next five
        ("urEventWait", Role.EVENT_SYNC),
        ("urEnqueueEventsWait", Role.STREAM_WAIT),
        ("zeEventHostSynchronize", Role.EVENT_SYNC),
        ("urEnqueueUSMMemcpy", Role.COPY_ASYNC),
        ("urEnqueueKernelLaunch", Role.OTHER),
        ("aclrtSynchronizeStream", Role.STREAM_SYNC),  # Ascend, as the next three
        ("aclrtSynchronizeDevice", Role.DEVICE_SYNC),
        ("aclrtRecordEvent", Role.RECORD),
        ("aclrtMemcpy", Role.COPY),
        ("cnrtQueueWaitNotifier", Role.STREAM_WAIT),  # MLU, as the next
        ("cnrtPlaceNotifier", Role.RECORD),
        ("musaStreamWaitEvent", Role.STREAM_WAIT),
    ],
)
def test_roles_of_calls(name: str, role: Role) -> None:
    assert role_of(name) == role
