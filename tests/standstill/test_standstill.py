"""Whether standstill is what stood still: planted blocks of known length, simulated programs, a plain reference."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from graphlink.depend.build import BuildOptions, Built, build
from graphlink.depend.sleep import WAKING_NS
from graphlink.depend.threads import ASLEEP_NS
from graphlink.graph.critical import cost_ns, critical_path, shares
from graphlink.graph.fold import fold
from graphlink.graph_model import Column, Graph, NodeKind
from graphlink.linking.call_roles import WAITS, roles
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import FrameRows, Linked, SyncKind, Trace
from graphlink.replay.machines import replay
from graphlink.standstill.records import Standstill, Stood
from graphlink.standstill.silence import silences
from graphlink.standstill.standstill import (
    BEFORE_WINDOW,
    DEVICE_CLOCK,
    RETURN_NS,
    StoodStill,
    stood_still,
)
from tests.build import Call, Device, Host, Node, Sync, build_et, build_trace
from tests.depend.programs import linked_of, shape
from tests.simulator import Execution, random_program, run, training_program, write_kineto

OPEN = [Host("aten::mm", 0, 40), Host("aten::add", 2000, 2010), Host("aten::end", 2900, 3000)]
LAUNCH = Call("cudaLaunchKernel", 10, 20, 1)


def linked(trace: Trace) -> Linked:
    return link(trace, None, match_hosts(trace, None))


def built_of(x: Linked) -> Built:
    return build(x, communication(x), BuildOptions(sync="cuda"))


def stood(x: Linked, built: Built | None = None, waited: Column | None = None) -> StoodStill:
    built = built or built_of(x)
    cost = cost_ns(built.graph)
    path = critical_path(built.graph, replay(built.graph, cost).end_ns, cost, shares(built.graph, x, communication(x)))
    return stood_still(built, x, path, waited)


def test_waiting_that_the_ranks_tell_and_the_graph_has_not_is_said_and_widens_bands() -> None:
    """The collective took 40 us here, but by the starts of all ranks the last one came 300 us after it began."""
    step = Host("ProfilerStep#1", 0, 1000, annotation=True)
    ops = Host("c10d::allreduce_", 10, 20, rf_id=2), Host("aten::mm", 520, 900, rf_id=9)
    rows = Host("gloo:all_reduce", 15, 55, annotation=True, tid=8, rf_id=3), Host("aten::add", 60, 70, rf_id=5)
    x = linked(build_trace([step, *ops, *rows]))
    built = built_of(x)
    [comm] = np.flatnonzero(built.graph.kind == NodeKind.HOST_COMM).tolist()
    without, known = stood(x, built), stood(x, built, Column(np.array([comm]), np.array([300_000])))
    assert not without.warnings
    assert known.warnings == (
        "other ranks arrived late in collectives while this rank ran Python for 0.245 ms that the graph takes for work: "
        "it may have waited, so bands of predictions are wider by that",
    )
    assert known.standstill.path.pinned_ns - without.standstill.path.pinned_ns == 245_000


def of(**rows: object) -> Standstill:
    return stood(linked(build_trace(**rows))).standstill  # type: ignore[arg-type]


def rest(stood: Stood) -> int:
    return stood.ns - stood.explained_ns


def test_a_call_stood_still_until_what_it_waited_for_ended() -> None:
    found = of(
        host=OPEN, calls=[LAUNCH, Call("cudaStreamSynchronize", 100, 1005, 2)], device=[Device("k", 30, 1000, 1)]
    )
    assert found.calls == Stood(ns=900_000, explained_ns=900_000)
    assert not [piece for piece in found.largest if "thread" in piece.what]


def test_what_a_call_takes_to_return_beyond_the_usual_is_not_explained() -> None:
    late_us = 200
    waits = [Sync(SyncKind.STREAM, 100, 900, 2, stream=7)]
    call = Call("cudaStreamSynchronize", 100, 900 + late_us, 2)
    found = of(host=OPEN, calls=[LAUNCH, call], device=[Device("k", 30, 900, 1)], syncs=waits)
    assert found.calls == Stood(ns=800_000 + late_us * 1000 - RETURN_NS, explained_ns=800_000)
    (piece,) = (p for p in found.largest if p.what == "cudaStreamSynchronize on thread 1")
    assert (piece.ns, piece.start_ns) == (late_us * 1000 - RETURN_NS, 900_000 + RETURN_NS)


@pytest.mark.parametrize(("late_us", "unexplained_us"), [(145, 0), (400, 10 * (400 - 30))])
def test_a_machine_on_which_every_call_returns_late_is_measured(late_us: int, unexplained_us: int) -> None:
    """Ten calls return 145 us after what they waited for: that is what returning takes there. No machine takes 400."""
    calls, device, host = [], [], [Host("aten::mm", 0, 40), Host("aten::end", 15_900, 16_000)]
    for i in range(10):
        at = 100 + 1500 * i
        calls += [
            Call("cudaLaunchKernel", at, at + 10, 2 * i + 1),
            Call("cudaEventSynchronize", at + 20, at + 1000 + late_us, 2 * i + 2),
        ]
        device.append(Device("k", at + 15, at + 1000, 2 * i + 1))
    syncs = [
        Sync(SyncKind.STREAM, c.start, c.end, c.correlation, stream=7) for c in calls if c.name.endswith("Synchronize")
    ]
    found = of(host=host, calls=calls, device=device, syncs=syncs).calls
    assert found == Stood(ns=9_800_000 + 1_000 * unexplained_us, explained_ns=9_800_000)


def test_a_planted_block_of_a_call_is_counted_to_the_ns() -> None:
    """Work of two streams is pending, none of it ended while the call blocked: it took 20 us for itself, and 500 for
    something unknown.
    """
    calls = [LAUNCH, Call("cudaLaunchKernel", 22, 30, 2), Call("cudaStreamSynchronize", 100, 620, 3)]
    found = of(host=OPEN, calls=calls, device=[Device("k", 30, 1000, 1), Device("k", 40, 1000, 2, stream=8)])
    assert found.calls == Stood(ns=500_000, explained_ns=0)
    assert (found.largest[0].what, found.largest[0].ns, found.largest[0].start_ns) == (
        "cudaStreamSynchronize on thread 1",
        500_000,
        120_000,
    )
    assert "cuda_sync" in found.largest[0].record
    assert found.path.pinned_ns <= found.path.ns


def test_a_blocked_call_that_nothing_explains_is_a_warning() -> None:
    calls = [LAUNCH, Call("cudaLaunchKernel", 22, 30, 2), Call("cudaStreamSynchronize", 100, 620, 3)]
    trace = build_trace(host=OPEN, calls=calls, device=[Device("k", 30, 1000, 1), Device("k", 40, 1000, 2, stream=8)])
    (told,) = (text for text in stood(linked(trace)).warnings if "in calls" in text)
    assert told.startswith(
        "0.500 ms of 0.500 ms in calls that block count as not explained; the longest is 0.500 ms at 0.120 ms, "
        "cudaStreamSynchronize on thread 1; what would show why: cuda_sync rows"
    )


def test_a_block_inside_an_op_on_the_path_is_pinned() -> None:
    calls = [LAUNCH, Call("cudaLaunchKernel", 22, 30, 2), Call("cudaStreamSynchronize", 100, 620, 3)]
    host = [Host("aten::item", 0, 3000)]
    found = of(host=host, calls=calls, device=[Device("k", 30, 1000, 1), Device("k", 40, 1000, 2, stream=8)])
    assert found.path.ns == 3_000_000
    assert found.path.pinned_ns == 500_000


def test_a_call_with_nothing_to_wait_for_stands_still_from_100_us_on() -> None:
    def took(us: int) -> Standstill:
        return of(
            host=OPEN, calls=[LAUNCH, Call("cudaDeviceSynchronize", 100, 100 + us, 2)], device=[Device("k", 30, 60, 1)]
        )

    assert took(99).calls == Stood(ns=0, explained_ns=0)
    assert took(646).calls == Stood(ns=626_000, explained_ns=0)
    assert "before the first recorded step" in took(646).largest[0].record


def exactly(call: Call, row: Sync, *ops: Device) -> StoodStill:
    return stood(linked(build_trace(host=OPEN, calls=[LAUNCH, call], device=ops, syncs=[row])))


def test_an_exact_wait_that_is_rejected_counts_as_not_explained_and_is_a_warning_with_its_time() -> None:
    """The row says stream 7, but by the device's clock its op ended 7 us after the call had returned."""
    row = Sync(SyncKind.STREAM, 100, 993, 2, stream=7)
    found = exactly(Call("cudaStreamSynchronize", 100, 993, 2), row, Device("k", 30, 1000, 1))
    assert found.standstill.calls == Stood(ns=873_000, explained_ns=0)
    (warning,) = found.warnings
    assert re.fullmatch(
        "1 synchronisation calls .* ended after they returned: 0.873 ms count as not explained", warning
    )
    assert found.standstill.largest[0].record == DEVICE_CLOCK


def test_an_exact_wait_for_what_was_not_recorded_is_a_warning_of_its_own() -> None:
    row = Sync(SyncKind.STREAM, 100, 993, 2, stream=9)
    found = exactly(Call("cudaStreamSynchronize", 100, 993, 2), row, Device("k", 30, 1500, 1))
    assert found.standstill.calls == Stood(ns=873_000, explained_ns=0)
    (warning,) = found.warnings
    assert re.fullmatch(
        "1 synchronisation calls .* nothing of it was recorded .*: 0.873 ms count as not explained", warning
    )
    assert found.standstill.largest[0].record == BEFORE_WINDOW


def test_an_exact_wait_of_a_stream_that_is_rejected_counts_what_its_op_was_late() -> None:
    """Op n of stream 8 waits for k of stream 7, but began 100 us before that ended, 958 us after it could have."""
    calls = [
        LAUNCH,
        Call("cudaEventRecord", 21, 22, 2),
        Call("cudaStreamWaitEvent", 23, 24, 3),
        Call("cudaLaunchKernel", 30, 40, 4),
    ]
    rows = [Sync(SyncKind.STREAM_WAIT, 23, 24, 3, stream=8, record=2, record_stream=7)]
    device = [Device("k", 20, 1100, 1), Device("n", 1000, 1200, 4, stream=8)]
    found = stood(linked(build_trace(host=OPEN, calls=calls, device=device, syncs=rows)))
    assert found.standstill.streams == Stood(ns=958_000, explained_ns=0)
    (warning,) = found.warnings
    assert re.fullmatch("1 device ops .* they began before it: 0.958 ms count as not explained", warning)


def test_exact_waits_that_hold_are_no_warning() -> None:
    row = Sync(SyncKind.STREAM, 100, 1005, 2, stream=7)
    assert exactly(Call("cudaStreamSynchronize", 100, 1005, 2), row, Device("k", 30, 1000, 1)).warnings == ()


def test_an_asynchronous_copy_from_pageable_memory_stands_still_until_its_own_copy_begins() -> None:
    """The call returns long after, as the host stages what the device copies."""
    calls = [LAUNCH, Call("cudaMemcpyAsync", 100, 1500, 2)]
    copy = Device("Memcpy HtoD (Pageable -> Device)", 1005, 1530, 2)
    found = of(host=OPEN, calls=calls, device=[Device("k", 30, 1000, 1), copy])
    assert found.calls == Stood(ns=900_000, explained_ns=900_000)


@pytest.mark.parametrize(("began", "unexplained_us"), [(1005, 455), (610, 60)])
def test_one_to_pageable_memory_stands_still_but_for_as_long_as_its_own_copy_took(
    began: float, unexplained_us: int
) -> None:
    """The host empties a buffer behind the device, at the pace of the device; the call returns 490 us after the copy."""
    calls = [LAUNCH, Call("cudaMemcpyAsync", 100, 1500, 2)]
    copy = Device("Memcpy DtoH (Device -> Pageable)", began, 1010, 2)
    found = of(host=[Host("op", 0, 1600)], calls=calls, device=[Device("k", 30, 600, 1), copy])
    assert found.calls == Stood(ns=(910 + unexplained_us) * 1000, explained_ns=910_000)


def test_an_asynchronous_copy_that_does_not_block_is_none() -> None:
    calls = [LAUNCH, Call("cudaMemcpyAsync", 100, 160, 2)]
    found = of(
        host=OPEN,
        calls=calls,
        device=[Device("k", 30, 1000, 1), Device("Memcpy HtoD (Pinned -> Device)", 1005, 1530, 2)],
    )
    assert found.calls == Stood(ns=0, explained_ns=0)


def test_a_thread_that_another_released_was_silent_and_is_explained() -> None:
    host = [
        Host("aten::mm", 0, 1000),
        Host("autograd::engine::evaluate_function: MmBackward", 1100, 2000, tid=2),
        Host("aten::end", 2050, 2100),
    ]
    found = of(host=host)
    assert found.threads == Stood(ns=(1050 + 1100) * 1000, explained_ns=(1050 + 1100) * 1000)
    assert found.python_ns == 0


def test_silence_in_which_no_other_thread_did_anything_is_python() -> None:
    found = of(host=[Host("aten::mm", 0, 100), Host("aten::end", 5_100, 5_200)])
    assert (found.threads, found.python_ns) == (Stood(ns=0, explained_ns=0), 5_000_000)


def test_silence_that_a_busy_thread_may_have_ended_is_planted_standstill_to_the_ns() -> None:
    """Thread 2 works all the time, and nothing says that it released thread 1."""
    busy = [Host("aten::mul", 10 * i, 10 * i + 10, tid=2) for i in range(600)]
    found = of(host=[Host("aten::mm", 0, 100), Host("aten::end", 5_100, 5_200), *busy])
    assert (found.threads, found.python_ns) == (Stood(ns=5_000_000, explained_ns=0), 0)
    assert (found.largest[0].ns, found.largest[0].start_ns) == (5_000_000, 100_000)
    assert found.largest[0].what == "thread 1 silent before aten::end"


SILENCE = (
    "5.000 ms of 5.000 ms of silence of threads count as not explained; the longest is 5.000 ms at 0.100 ms, thread 1 "
    "silent before aten::end; what would show why: rows of the thread or process that woke it; "
)


def silent_beside(*rows: Host) -> StoodStill:
    """Thread 1 is silent for 5 ms while thread 2 works."""
    busy = [Host("aten::mul", 10 * i, 10 * i + 10, tid=2) for i in range(600)]
    return stood(linked(build_trace(host=[Host("aten::mm", 0, 100), Host("aten::end", 5_100, 5_200), *busy, *rows])))


def test_what_nothing_explains_is_a_warning_with_its_time_its_longest_stretch_and_what_would_show_why() -> None:
    assert silent_beside().warnings == (f"{SILENCE}with_stack=True, which shows whether it ran",)


def test_where_95_per_cent_are_explained_the_rest_is_no_warning() -> None:
    """Thread 3 sleeps for 200 ms until thread 2 hands over, and is explained."""
    late = [
        Host("aten::mm", 6_000, 200_000, tid=2),
        Host("autograd::engine::evaluate_function: MmBackward", 200_010, 200_100, tid=3),
    ]
    found = silent_beside(*late)
    assert rest(found.standstill.threads) == 5_000_000
    assert float(found.standstill.threads.explained) >= 95
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("until_us", "shown"),
    [(5_099, "<built-in method acquire of _thread.lock object>"), (4_000, "serve.py(9): wait")],
)
def test_the_frame_that_a_silent_thread_was_in_throughout_is_named(until_us: int, shown: str) -> None:
    names = ("serve.py(9): wait", "<built-in method acquire of _thread.lock object at 0x7fb0fe1160c0>")
    busy = [Host("aten::mul", 10 * i, 10 * i + 10, tid=2) for i in range(600)]
    trace = build_trace(host=[Host("aten::mm", 0, 100), Host("aten::end", 5_100, 5_200), *busy])
    frames = FrameRows(
        trace.host.start_ns[0] + np.array([50_000, 150_000]),
        trace.host.start_ns[0] + 1_000 * np.array([6_000, until_us]),
        np.ones(2, np.int64),
        np.arange(2, dtype=np.int32) + np.int32(len(trace.strings)),
    )
    found = stood(linked(replace(trace, frames=frames, strings=(*trace.strings, *names))))
    assert found.standstill.largest[0].record.endswith(f"its stack was recorded: it was in {shown}")
    assert "with_stack" not in found.warnings[0]


@pytest.mark.parametrize("ids", [1, 0], ids=["ids", "order"])
@pytest.mark.parametrize(("tid", "hidden"), [(7, True), (1, False)])
def test_silence_in_which_threads_ran_that_only_the_et_has_is_no_python(tid: int, hidden: bool, ids: int) -> None:
    """Kineto has not recorded what thread 7 ran in the first of two silences. The ops of a thread that it recorded are
    rows that it lost.
    """
    rows = [Host("before", 0, 100, rf_id=1), Host("sum", 5_100, 5_200, rf_id=5), Host("after", 9_200, 9_300, rf_id=6)]
    et = build_et([Node("before", 1), Node("mm", 3, tid=tid), Node("sum", 5), Node("after", 6)])
    trace = build_trace(host=[row._replace(rf_id=ids * row.rf_id) for row in rows])
    x = link(trace, et, match_hosts(trace, et))
    built = built_of(x)
    found = stood(x, built).standstill
    assert (found.threads.ns, found.python_ns) == ((5_000_000, 4_000_000) if hidden else (0, 9_000_000))
    assert found.threads.explained_ns == 0
    assert stood(x, built).warnings == (), "named already"
    assert [warning.split(", a thread")[0] for warning in built.warnings if "ET has" in warning] == (
        ["1 times, 5.000 ms in all"] if hidden else []
    )
    assert [piece.what for piece in found.largest if "profile_all_threads" in piece.record] == (
        ["thread 1 silent before sum"] if hidden else []
    )


def test_silence_in_which_frames_begin_and_end_is_python() -> None:
    """One frame lasts through the silence and says nothing; inside it others begin and end from 1,000 to 2,000, and at
    4,000.
    """
    busy = [Host("aten::mul", 10 * i, 10 * i + 10, tid=2) for i in range(600)]
    trace = build_trace(host=[Host("aten::mm", 0, 100), Host("aten::end", 5_100, 5_200), *busy])
    start = np.array([50, *range(1_000, 2_000, 90), 4_000]) * 1000
    end = np.array([6_000, *range(1_080, 2_000, 90), 2_000, 4_010]) * 1000
    frames = FrameRows(
        start + trace.host.start_ns[0],
        end + trace.host.start_ns[0],
        np.ones(len(start), np.int64),
        np.zeros(len(start), np.int32),
    )
    found = stood(linked(replace(trace, frames=frames))).standstill
    assert found.python_ns == 1_010_000
    assert found.threads == Stood(ns=5_000_000 - 1_010_000, explained_ns=0)


def test_after_the_last_of_the_others_a_thread_ran_by_itself() -> None:
    busy = [Host("aten::mul", 10 * i, 10 * i + 10, tid=2) for i in range(100)]
    found = of(
        host=[Host("aten::mm", 0, 100), Host("aten::end", 5_100, 5_200), *busy, Host("aten::end", 9_000, 9_010, tid=2)]
    )
    assert found.threads == Stood(ns=900_000 + 4_200_000, explained_ns=0)
    assert found.python_ns == 4_100_000 + 3_800_000


def test_an_annotation_is_all_that_is_known_of_a_thread_without_ops_and_lasts_there() -> None:
    steps = [
        Host("ProfilerStep#1", 0, 8_000, tid=2, annotation=True),
        Host("ProfilerStep#2", 9_000, 9_500, tid=2, annotation=True),
    ]
    found = of(host=[Host("aten::mm", 0, 9_500), *steps])
    assert (found.threads.ns, found.python_ns) == (1_000_000, 0)


def test_a_request_from_outside_ends_the_silence_of_a_thread_of_ranges_alone() -> None:
    request = [Host("request", 0, 100, tid=2, annotation=True), Host("request", 9_000, 9_100, tid=2, annotation=True)]
    found = of(host=[Host("aten::mm", 0, 6_000), *request])
    assert (found.threads.ns, found.python_ns) == (0, 8_900_000)
    found = of(host=[Host("aten::mm", 0, 7_500), *request])
    assert found.threads.ns + found.python_ns == 8_900_000
    assert found.python_ns == 0


def test_what_an_event_edge_takes_off_a_late_op_is_explained() -> None:
    """The second op is launched at 40, its stream is idle, and it begins right after an op of another stream."""
    calls = [
        LAUNCH,
        Call("cudaEventRecord", 21, 22, 2),
        Call("cudaStreamWaitEvent", 23, 24, 3),
        Call("cudaLaunchKernel", 30, 40, 4),
    ]
    host, device = (
        [Host("aten::mm", 0, 60), Host("aten::end", 2900, 3000)],
        [Device("k", 20, 1000, 1), Device("n", 1002, 1100, 4, stream=8)],
    )
    found = of(host=host, calls=calls, device=device)
    assert rest(found.streams) == 2_000
    assert found.streams.ns == 960_000  # less the latency of a launch, 2 us where few show it
    assert found.path.pinned_ns <= found.path.ns


@pytest.mark.parametrize(
    "seed", [seed if seed < 12 else pytest.param(seed, marks=pytest.mark.long) for seed in range(30)]
)
def test_with_rows_the_calls_stood_still_as_long_as_they_blocked_and_all_is_explained(
    tmp_path: Path, seed: int
) -> None:
    execution = run(random_program(seed, shape(Random(seed))))
    found = stood(written(tmp_path, execution, cuda_sync=True)).standstill
    assert found.calls == Stood(ns=blocked_ns(execution), explained_ns=blocked_ns(execution))


def test_without_rows_what_stays_unexplained_is_what_was_not_found(tmp_path: Path) -> None:
    unexplained = blocked = 0
    for seed in range(30):
        execution = run(random_program(seed, shape(Random(seed))))
        found = stood(written(tmp_path, execution, cuda_sync=False)).standstill
        blocked += blocked_ns(execution)
        unexplained += rest(found.calls)
        assert abs(found.calls.ns - blocked_ns(execution)) <= RETURN_NS * len(execution.calls)
    assert unexplained <= 0.03 * blocked


@pytest.mark.parametrize("seed", range(4))
def test_threads_that_hand_over_are_explained(tmp_path: Path, seed: int) -> None:
    execution = run(training_program(seed))
    found = stood(written(tmp_path, execution, cuda_sync=True)).standstill
    asleep = sum(h.woken_ns - h.asleep_ns for h in execution.handovers if h.woken_ns - h.asleep_ns >= ASLEEP_NS)
    assert asleep
    assert rest(found.threads) <= 0.05 * found.threads.ns
    assert found.threads.explained_ns >= 0.95 * asleep


@pytest.mark.parametrize("seed", range(6))
def test_order_of_rows_and_folding_change_nothing(tmp_path: Path, seed: int) -> None:
    execution = run(random_program(seed, shape(Random(seed))) if seed % 2 else training_program(seed))
    path = tmp_path / "kineto.json"
    write_kineto(execution, path, cuda_sync=False)
    x = linked_of(path)
    built = built_of(x)
    whole, folded = stood(x, built).standstill, stood(x, replace(built, graph=fold(built.graph))).standstill
    assert (folded.calls, folded.threads, folded.python_ns) == (whole.calls, whole.threads, whole.python_ns)
    document = json.loads(path.read_text())
    Random(seed).shuffle(document["traceEvents"])
    path.write_text(json.dumps(document))
    assert stood(linked_of(path)).standstill == whole


@pytest.mark.parametrize("seed", range(12))
def test_silences_are_those_of_a_plain_walk(tmp_path: Path, seed: int) -> None:
    execution = run(random_program(seed, shape(Random(seed))) if seed % 3 else training_program(seed))
    x = written(tmp_path, execution, cuda_sync=False)
    built = built_of(x)
    graph = built.graph
    found = silences(graph, x, built)
    columns = (found.tid, found.start_ns, found.ns, found.explained_ns, found.python_ns)
    assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == plain_silences(graph, x)


def plain_silences(graph: Graph, x: Linked) -> list[tuple[int, int, int, int, int]]:
    """As ``silences`` defines them, thread by thread and ns range by ns range. Programs have ops or calls on every
    thread.
    """
    rows, calls, epoch = x.trace.host, x.trace.calls, graph.epoch_ns
    end = int(graph.end_ns.max()) + epoch
    last = max(int(rows.end_ns.max(initial=0)), int(x.trace.device.end_ns.max(initial=0)))
    active: dict[int, list[tuple[int, int]]] = {}
    for i, tid in enumerate(rows.tid.tolist()):
        a, b = int(rows.start_ns[i]), int(rows.end_ns[i])
        whole = not rows.annotation[i] and not x.crossing[i]
        active.setdefault(tid, []).extend([(a, min(b, end))] if whole else [(a, a), (b, b)])
    waits = np.isin(roles(calls, x.trace.strings), WAITS).tolist()
    blocked: set[tuple[int, int, int]] = set()
    for i, tid in enumerate(calls.tid.tolist()):
        if calls.start_ns[i] < last:
            span = (int(calls.start_ns[i]), min(int(calls.end_ns[i]), end))
            active.setdefault(tid, []).append(span)
            blocked |= {(tid, *span)} if waits[i] else set()
    chained = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_GAP))
    active = {tid: sorted(spans) for tid, spans in active.items() if tid in set(graph.tid[chained].tolist())}
    out = []
    for tid, spans in active.items():
        silent = []
        at = np.flatnonzero(chained & (graph.tid == tid))
        work = sorted(
            (s + epoch, s + epoch + d)
            for s, d in zip(graph.start_ns[at].tolist(), graph.duration_ns[at].tolist(), strict=True)
            if d
        )
        others = [
            span
            for other, theirs in active.items()
            if other != tid
            for a, b in theirs
            for span in _moments(other, a, b, blocked)
        ]
        before = epoch
        for a, b in spans:
            if a - before >= ASLEEP_NS:
                silent.append((before, a))
            before = max(before, b)
        tails = sorted(tail for a, b in silent if (tail := _waking(a, b, work)) is not None)
        middle = (tails[(len(tails) - 1) // 2] + tails[len(tails) // 2]) // 2 if tails else 0
        usual = max(2 * middle, ASLEEP_NS) if len(tails) >= 10 else WAKING_NS
        out += [(tid, a - epoch, *_judged(a, b, work, others, usual)) for a, b in silent]
    return sorted(out)


def _moments(tid: int, a: int, b: int, blocked: set[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(a, a), (b, b)] if (tid, a, b) in blocked else [(a, b)]


def _waking(a: int, b: int, work: list[tuple[int, int]]) -> int | None:
    """For how long the thread had worked when its silence ended; None where it worked all along."""
    since = b
    for f, u in reversed(work):
        if f < since <= u:
            since = f
    return None if since <= a else b - since


def _judged(
    a: int, b: int, work: list[tuple[int, int]], others: list[tuple[int, int]], usual: int
) -> tuple[int, int, int]:
    worked = sum(max(min(u, b) - max(f, a), 0) for f, u in work)
    explained = b - a - worked + min(_waking(a, b, work) or 0, usual) if worked < b - a else 0
    last = max([b if f < b <= u else u for f, u in others if (f < b <= u) or u < b], default=a)
    alone = max(last, a) if last <= a or b - last > WAKING_NS else b
    python = min(sum(max(min(u, b) - max(f, alone), 0) for f, u in work), b - a - explained)
    return b - a - python, explained, python


def written(folder: Path, execution: Execution, *, cuda_sync: bool) -> Linked:
    path = folder / "kineto.json"
    write_kineto(execution, path, dialect="2026", cuda_sync=cuda_sync)
    return linked_of(path)


def blocked_ns(execution: Execution) -> int:
    return sum(call.blocked_ns for call in execution.calls)
