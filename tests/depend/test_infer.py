"""Each rule of inference at its limits. One host op, one call; times are us."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.depend.build import BuildOptions, find
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import DeviceKind, SyncKind
from tests.build import Call, Device, Host, Sync, build_trace


def awaited(call: Call, *device: Device, resolution_ns: int = 1) -> set[str]:
    """Names of the ops that the call is found to have waited for; all are launched before it, at 0, 1, 2, ..."""
    launches = [Call("cudaLaunchKernel", i, i + 0.5, d.correlation) for i, d in enumerate(device)]
    rows = [Host("op", 0, 1000), Host("next", 1001, 1010)]
    trace = build_trace(host=rows, calls=[*launches, call], device=device, resolution_ns=resolution_ns)
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda")).dependencies
    at = trace.calls.correlation.tolist().index(call.correlation)
    return {
        trace.strings[trace.device.name[s]] for s, c in zip(found.host.source, found.host.call, strict=True) if c == at
    }


FIRST = Device("early", 5, 20, 1, stream=9)
EVENT = "cudaEventSynchronize"


@pytest.mark.parametrize(("ended", "found"), [(95, {"k"}), (70, {"k"}), (69.999, set()), (100.001, set())])
def test_it_ended_inside_the_call_at_most_30_us_before_the_return(ended: float, found: set[str]) -> None:
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, Device("k", 25, ended, 2)) == found


@pytest.mark.parametrize(("ended", "resolution_ns", "found"), [(101, 1000, {"k"}), (102, 1000, set()), (101, 1, set())])
def test_where_times_are_rounded_it_may_end_1_us_behind_the_call(
    ended: float, resolution_ns: int, found: set[str]
) -> None:
    assert (
        awaited(
            Call("cudaStreamSynchronize", 30, 100, 9), FIRST, Device("k", 25, ended, 2), resolution_ns=resolution_ns
        )
        == found
    )


@pytest.mark.parametrize(("ended", "found"), [(30.001, {"k"}), (30, set())])
def test_it_ended_after_the_call_began(ended: float, found: set[str]) -> None:
    assert awaited(Call("cudaStreamSynchronize", 30, 50, 9), FIRST, Device("k", 25, ended, 2)) == found


@pytest.mark.parametrize(("ended", "found"), [(33.001, {"k"}), (33, set())])
def test_what_another_launched_later_than_it_ended_more_than_3_us_after_the_call_began(
    ended: float, found: set[str]
) -> None:
    """So long a call takes with nothing to wait for."""
    assert (
        awaited(
            Call("cudaStreamSynchronize", 30, 40, 9), Device("k", 25, ended, 2), Device("early", 5, 20, 1, stream=9)
        )
        == found
    )


@pytest.mark.parametrize(("took", "found"), [(3.001, {"k"}), (3, set())])
def test_the_call_took_more_than_3_us(took: float, found: set[str]) -> None:
    assert awaited(Call(EVENT, 100 - took, 100, 9), FIRST, Device("k", 25, 97, 2)) == found


@pytest.mark.parametrize(("took", "told"), [(3.001, True), (3, False)])
def test_calls_of_more_than_3_us_that_nothing_explains_are_counted(took: float, told: bool) -> None:
    rows, device = [Host("op", 0, 1000)], [FIRST, Device("k", 25, 200, 2)]
    calls = [
        Call("cudaLaunchKernel", 0, 1, 1),
        Call("cudaLaunchKernel", 2, 3, 2),
        Call("cudaStreamSynchronize", 100, 100 + took, 9),
    ]
    trace = build_trace(host=rows, calls=calls, device=device)
    warnings = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda")).warnings
    assert any("synchronisation calls (1) waited 3.0 us" in w for w in warnings) == told


@pytest.mark.parametrize(("took", "found"), [(12.001, {"k"}), (12, set())])
def test_what_ended_just_before_the_return_explains_no_short_call(took: float, found: set[str]) -> None:
    assert awaited(Call(EVENT, 100 - took, 100, 9), FIRST, Device("k", 25, 98, 2)) == found


@pytest.mark.parametrize(("other", "found"), [(91.999, {"k"}), (92, set())])
def test_an_op_of_another_stream_that_ended_within_3_us_may_be_it_instead(other: float, found: set[str]) -> None:
    ops = (Device("k", 25, 95, 2), Device("other", 26, other, 3, stream=11))
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, *ops) == found


def test_a_stream_of_the_same_number_on_another_device_is_another() -> None:
    ops = (Device("k", 25, 95, 2), Device("other", 26, 94, 3, device=1))
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, *ops) == set()


def test_an_op_of_the_same_stream_is_no_other_but_for_an_event() -> None:
    ops = (Device("before", 25, 92.4, 2), Device("k", 92.5, 95, 3))
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, *ops) == {"k"}
    assert awaited(Call(EVENT, 30, 100, 9), FIRST, *ops) == set()


@pytest.mark.parametrize(
    ("ended", "late", "found"), [(91, 97.001, "k"), (87.999, 97, "late"), (88, 98, "k"), (87.999, 98, "late")]
)
def test_the_usual_time_is_3_to_12_us_before_the_return(ended: float, late: float, found: str) -> None:
    ops = (Device("k", 25, ended, 2), Device("late", 26, late, 3, stream=11))
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, *ops) == {found}


def test_what_ended_just_before_the_return_gives_way_to_what_ended_in_the_usual_time() -> None:
    ops = (Device("k", 25, 91, 2), Device("late", 26, 99, 3, stream=11))
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, *ops) == {"k"}
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, ops[1]) == {"late"}


def test_only_the_last_op_of_a_stream_can_hold_up_its_synchronisation() -> None:
    ops = (Device("k", 25, 95, 2), Device("behind", 96, 200, 3))
    assert awaited(Call("cudaStreamSynchronize", 30, 100, 9), FIRST, *ops) == set()
    assert awaited(Call(EVENT, 30, 100, 9), FIRST, *ops) == {"k"}


def traced(*calls: Call, device: tuple[Device, ...]) -> set[str]:
    """What call 9 is found to have waited for, all calls given."""
    trace = build_trace(
        host=[Host("op", 0, 1000), Host("other", 0, 1000, tid=2)], calls=calls, device=device, resolution_ns=1
    )
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda")).dependencies
    at = trace.calls.correlation.tolist().index(9)
    return {
        trace.strings[trace.device.name[s]] for s, c in zip(found.host.source, found.host.call, strict=True) if c == at
    }


def test_an_event_was_recorded_behind_what_its_synchronisation_waited_for() -> None:
    launches = (Call("cudaLaunchKernel", 0, 1, 1), Call("cudaLaunchKernel", 2, 3, 2), Call("cudaLaunchKernel", 6, 7, 3))
    device = (Device("a", 8, 82, 1), Device("b", 9, 95, 2, stream=9), Device("c", 96, 200, 3, stream=9))
    sync = Call(EVENT, 30, 100, 9)
    assert traced(*launches, Call("cudaEventRecord", 4, 5, 4), sync, device=device) == {"b"}
    assert traced(*launches, Call("cudaEventRecord", 8, 9, 4), sync, device=device) == {"a"}, (
        "c was launched before the record"
    )


def test_a_stream_that_was_made_to_wait_is_held_up_by_what_it_waits_for() -> None:
    launches = (Call("cudaLaunchKernel", 0, 1, 1), Call("cudaLaunchKernel", 6, 7, 3))
    device = (Device("a", 8, 95, 1), Device("c", 96, 200, 3))
    record, wait = Call("cudaEventRecord", 2, 3, 4), Call("cudaStreamWaitEvent", 4, 5, 5)
    first = (Call("cudaLaunchKernel", 7.2, 7.5, 6), Device("early", 10, 20, 6, stream=9))
    sync = Call("cudaStreamSynchronize", 30, 100, 9)
    assert traced(*launches, first[0], record, sync, device=(*device, first[1])) == set()
    assert traced(*launches, first[0], record, wait, sync, device=(*device, first[1])) == {"a"}


@pytest.mark.parametrize(("tid", "found"), [(1, set()), (2, {"b"})])
def test_of_two_that_may_be_it_the_calling_thread_launched_one(tid: int, found: set[str]) -> None:
    device = (Device("a", 8, 94, 1), Device("b", 9, 95, 2, stream=9))
    launches = (Call("cudaLaunchKernel", 0, 1, 1, tid=tid), Call("cudaLaunchKernel", 2, 3, 2))
    assert traced(*launches, Call("cudaStreamSynchronize", 30, 100, 9), device=device) == found


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", EVENT])
def test_what_was_launched_after_the_call_began_is_not_it(name: str) -> None:
    late = Device("late", 60, 96, 2, stream=11)
    trace = build_trace(
        host=[Host("op", 0, 1000), Host("other", 0, 1000, tid=2)],
        calls=[
            Call("cudaLaunchKernel", 0, 1, 1),
            Call("cudaLaunchKernel", 2, 3, 3),
            Call(name, 30, 100, 9),
            Call("cudaLaunchKernel", 40, 41, 2, tid=2),
        ],
        device=[FIRST, Device("k", 25, 90, 3), late],
    )
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda")).dependencies
    assert [trace.strings[trace.device.name[s]] for s in found.host.source] == ["k"]


def test_a_device_synchronisation_of_several_devices_is_told_apart_by_device_only() -> None:
    same = (Device("a", 25, 94, 2, stream=11), Device("k", 26, 95, 3))
    elsewhere = (Device("a", 25, 94, 2, device=1), Device("k", 26, 95, 3))
    call = Call("cudaDeviceSynchronize", 30, 100, 9)
    assert awaited(call, Device("early", 5, 20, 1, stream=15, device=1), *same) == {"k"}
    assert awaited(call, FIRST, *elsewhere) == set()


def test_with_one_device_a_device_synchronisation_waits_for_all_streams() -> None:
    assert awaited(Call("cudaDeviceSynchronize", 30, 100, 9), FIRST, Device("k", 25, 50, 2)) == {"early", "k"}


def test_with_one_stream_a_stream_synchronisation_waits_for_it_blocked_or_not() -> None:
    assert awaited(Call("cudaStreamSynchronize", 30, 31, 9), Device("a", 5, 10, 1), Device("b", 11, 20, 2)) == {"b"}
    assert awaited(Call(EVENT, 30, 31, 9), Device("a", 5, 10, 1), Device("b", 11, 20, 2)) == set()


def test_a_query_is_never_inferred() -> None:
    assert awaited(Call("cudaEventQuery", 30, 100, 9), FIRST, Device("k", 25, 95, 2)) == set()


PAGEABLE = "Memcpy DtoH (Device -> Pageable)"


@pytest.mark.parametrize(
    ("name", "call", "ended", "found"),
    [
        (PAGEABLE, "cudaMemcpyAsync", 55, True),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", 55, False),
        ("Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", 55, False),
        (PAGEABLE, "cudaGraphLaunch", 55, False),
        (PAGEABLE, "cudaMemcpyAsync", 60, True),
        (PAGEABLE, "cudaMemcpyAsync", 60.001, False),  # the call had returned
        (PAGEABLE, "cudaMemcpyAsync", 27, True),  # the host copied on for 33 us
    ],
)
def test_an_asynchronous_copy_to_pageable_memory_blocks(name: str, call: str, ended: float, found: bool) -> None:
    assert _copied(name, Call(call, 10, 60, 2), ended, 2) == found


@pytest.mark.parametrize(("called", "returned", "found"), [(25, 31.001, True), (25, 31, False), (5, 31, True)])
def test_a_copy_that_began_within_5_us_of_the_return_may_have_begun_behind_it_unless_the_call_took_long(
    called: float, returned: float, found: bool
) -> None:
    assert _copied(PAGEABLE, Call("cudaMemcpyAsync", called, returned, 2), 27, 2) == found


@pytest.mark.parametrize(("ended", "found"), [(120, True), (120.001, False)])
def test_where_a_call_of_that_name_returned_20_us_before_its_copy_ended_none_blocks(ended: float, found: bool) -> None:
    launches = (Call("cudaMemcpyAsync", 70, 100, 3), Call("cudaMemcpyAsync", 10, 60, 9))
    device = (Device(PAGEABLE, 26, 55, 9), Device(PAGEABLE, 90, ended, 3))
    assert bool(traced(*launches, device=device)) == found


def test_a_copy_whose_call_is_not_known_blocks_nobody() -> None:
    assert not _copied(PAGEABLE, Call("cudaMemcpyAsync", 10, 60, 2), 55, 0)


def _copied(name: str, call: Call, ended: float, correlation: int) -> bool:
    """Is a copy behind a kernel found to be waited for by this call?"""
    trace = build_trace(
        host=[Host("op", 0, 1000), Host("next", 1001, 1010)],
        calls=[Call("cudaLaunchKernel", 0, 1, 1), call],
        device=[Device("k", 5, 20, 1), Device(name, 26, ended, correlation, kind=DeviceKind.MEMCPY)],
    )
    dependencies = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda")).dependencies
    return name in {trace.strings[trace.device.name[s]] for s in dependencies.host.source.tolist()}


@pytest.mark.parametrize(("stream", "told"), [(7, ["a"]), (13, [])])
def test_what_rows_tell_is_not_inferred(stream: int, told: list[str]) -> None:
    """The row says stream 7, whose op was long done, or one without any op; that of stream 9 would explain the call."""
    launches = [Call("cudaLaunchKernel", 0, 1, 1), Call("cudaLaunchKernel", 2, 3, 2)]
    device = [Device("a", 4, 20, 1), Device("b", 5, 95, 2, stream=9)]
    call = Call("cudaStreamSynchronize", 30, 100, 9)
    assert traced(*launches, call, device=tuple(device)) == {"b"}
    rows = [Sync(SyncKind.STREAM, 30, 100, 9, stream=stream)]
    trace = build_trace(host=[Host("op", 0, 1000)], calls=[*launches, call], device=device, syncs=rows)
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda"))
    assert [trace.strings[trace.device.name[s]] for s in found.dependencies.host.source] == told
    assert not any("waited" in w for w in found.warnings)


def test_a_call_that_the_order_of_calls_explains_is_not_unexplained() -> None:
    """All work is on one stream: the call was for that, though it took 20 us after the op was done."""
    calls = [Call("cudaLaunchKernel", 0, 1, 1), Call("cudaStreamSynchronize", 30, 50, 9)]
    trace = build_trace(host=[Host("op", 0, 1000)], calls=calls, device=[Device("a", 4, 20, 1)])
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda"))
    assert len(found.dependencies.host.call) == 1
    assert not any("waited" in w for w in found.warnings)


@pytest.mark.parametrize(("resolution_ns", "found"), [(1000, {"k"}), (1, set())])
def test_where_times_are_rounded_the_usual_time_may_be_1_us_less(resolution_ns: int, found: set[str]) -> None:
    assert awaited(Call(EVENT, 88, 100, 9), FIRST, Device("k", 25, 98, 2), resolution_ns=resolution_ns) == found


def waits(lags: list[float], late: dict[int, float] | None = None, name: str = EVENT) -> list[set[str]]:
    """What each of many calls is found to have waited for, that returned so long after ``k`` had ended.

    ``late``: {call: how long before its return an op of another stream ended}.
    """
    calls, device = [], []
    for i, lag in enumerate(lags):
        at, n = i * 2_000, i * 10 + 1
        calls += [Call("cudaLaunchKernel", at, at + 1, n), Call("cudaLaunchKernel", at + 2, at + 3, n + 1)]
        calls += [Call(name, at + 30, at + 1_000, n + 2)]
        device += [Device(f"k{i}", at + 10, at + 1_000 - lag, n)]
        ended = 1_000 - late[i] if late and i in late else 20
        device += [Device(f"other{i}", at + 5, at + ended, n + 1, stream=9)]
    trace = build_trace(host=[Host("op", 0, len(lags) * 2_000)], calls=calls, device=device)
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda")).dependencies
    out: list[set[str]] = [set() for _ in lags]
    of_call = {c: i // 3 for i, c in enumerate(np.argsort(trace.calls.start_ns, kind="stable").tolist())}
    for s, c in zip(found.host.source, found.host.call, strict=True):
        out[of_call[int(c)]].add(trace.strings[trace.device.name[s]])
    return out


SLOW = [130 + i % 7 * 5 for i in range(12)]


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", EVENT])
def test_where_calls_return_late_time_and_again_waking_takes_that_long(name: str) -> None:
    assert waits([float(lag) for lag in SLOW], name=name) == [{f"k{i}"} for i in range(12)]


@pytest.mark.parametrize("lags", [SLOW[:9], [40 + 75 * i for i in range(12)]])
def test_few_late_returns_or_scattered_ones_explain_nothing(lags: list[float]) -> None:
    assert waits(lags) == [set()] * len(lags)


def test_where_waking_takes_long_what_ended_just_before_the_return_is_not_it() -> None:
    assert waits([float(lag) for lag in SLOW], {3: 5})[3] == {"k3"}
    only = waits([float(lag) for lag in [*SLOW, 700]], {12: 5})
    assert only[12] == set(), "nothing ended when it should have"


def test_of_two_that_ended_in_the_mode_neither_is_it_if_the_thread_does_not_tell() -> None:
    assert waits([float(lag) for lag in SLOW], {3: SLOW[3] - 10})[3] == set()
    assert waits([float(lag) for lag in SLOW], {3: 170})[3] == {"k3"}, "outside"


def test_where_most_calls_return_late_the_default_does_not_hold() -> None:
    """Three calls are no mode, but say that 30 us are not what waking takes here."""
    assert waits([100, 300, 500, 10]) == [set()] * 4
    assert waits([100, 10, 10, 10]) == [set(), {"k1"}, {"k2"}, {"k3"}]


def test_a_kind_of_few_calls_takes_the_mode_of_all_calls() -> None:
    calls, device, at = [], [], 0
    for i, lag in enumerate([*SLOW, 140]):
        at, n = i * 2_000, i * 10 + 1
        calls += [Call("cudaLaunchKernel", at, at + 1, n), Call("cudaLaunchKernel", at + 2, at + 3, n + 1)]
        calls += [Call(EVENT if i < 12 else "cudaStreamSynchronize", at + 30, at + 1_000, n + 2)]
        device += [Device("k", at + 10, at + 1_000 - lag, n), Device("other", at + 5, at + 20, n + 1, stream=9)]
    trace = build_trace(host=[Host("op", 0, at + 2_000)], calls=calls, device=device)
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda"))
    assert (len(found.dependencies.host.call), found.untold.calls) == (13, 0)


@pytest.mark.parametrize(("lag", "found"), [(400.0, True), (401.0, False), (100.0, False)])
def test_seldom_waking_takes_up_to_two_and_a_half_times_as_long(lag: float, found: bool) -> None:
    """The mode is 130 to 160 us."""
    assert waits([*map(float, SLOW), lag])[12] == ({"k12"} if found else set())


@pytest.mark.parametrize(("name", "began", "found"), [
    ("Memcpy HtoD (Pageable -> Device)", 905, {"k"}),
    ("Memcpy HtoD (Pageable -> Device)", 931, set()),
    ("Memcpy HtoD (Pinned -> Device)", 905, set()),
    ("Memcpy DtoD (Device -> Device)", 905, set()),
])  # fmt: skip
def test_a_copy_from_pageable_memory_that_began_inside_its_call_waited_for_its_stream(
    name: str, began: float, found: set[str]
) -> None:
    assert _staged(name, began, 960) == found


def test_one_that_began_after_its_call_was_taken_into_it_and_did_not_wait() -> None:
    assert _staged("Memcpy HtoD (Pageable -> Device)", 905, 115) == set()


@pytest.mark.parametrize(("began", "returned", "stream", "found"), [
    (905, 960, 7, {"k"}),  # as one from pageable memory
    (905, 985, 7, {"Memcpy"}),  # as one to pageable memory
    (931, 985, 7, set()),
    (905, 960, 9, set()),
    (905, 985, 9, {"Memcpy"}),  # behind what its stream was made to wait for
    (905, 904, 7, set()),
])  # fmt: skip
def test_a_copy_that_does_not_say_between_what_shows_it_behind_other_work(
    began: float, returned: float, stream: int, found: set[str]
) -> None:
    assert _staged("Memcpy", began, returned, stream) == found


@pytest.mark.parametrize(
    "name", ["CopyDeviceToHost", "Memcpy DtoH (Device -> Host)", "Memcpy DtoH", "Memcpy DtoH (Device -> Unknown)"]
)
def test_so_does_one_that_says_no_more_of_the_host_than_that_it_is_the_host(name: str) -> None:
    assert _staged(name, 905, 985) == {name}
    assert not _staged(name, 931, 985)


def test_a_copy_that_does_not_say_between_what_shows_nothing_on_an_idle_device() -> None:
    assert not _copied("Memcpy", Call("cudaMemcpyAsync", 17, 60, 2), 55, 2)
    assert _copied("Memcpy", Call("cudaMemcpyAsync", 16.5, 60, 2), 55, 2)


def _staged(name: str, began: float, returned: float, stream: int = 7) -> set[str]:
    """What a copy call from 100 on waited for, with an op (on ``stream``) that ends at 900."""
    launch, copy = Call("cudaLaunchKernel", 0, 1, 1), Call("cudaMemcpyAsync", 100, returned, 2)
    device = [Device("k", 5, 900, 1, stream=stream), Device(name, began, 980, 2, kind=DeviceKind.MEMCPY)]
    trace = build_trace(host=[Host("op", 0, 1000), Host("next", 1001, 1010)], calls=[launch, copy], device=device)
    found = find(link(trace, None, match_hosts(trace, None)), BuildOptions(sync="cuda")).dependencies
    return {trace.strings[trace.device.name[s]] for s in found.host.source.tolist()}
