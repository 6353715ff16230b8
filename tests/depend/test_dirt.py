"""Whether what is found is what was true on machines whose clocks are off, whose calls and threads wake up late and
whose hosts poll.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest

from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.linking.call_roles import Role, roles
from graphlink.linking.communication import communication
from graphlink.linking.launch import rounding_ns
from graphlink.model import NOWHERE, SyncKind
from graphlink.run.job import Inputs, Options, prepare
from tests.depend.programs import Case, Pairs, built, case, linked_of
from tests.depend.test_truth import WITH_ROWS, WITHOUT_ROWS
from tests.simulator import (
    DeviceClock,
    Execution,
    Program,
    Shape,
    Training,
    Variation,
    changes,
    kineto_document,
    random_program,
    run,
    training_program,
    with_communication_of,
    with_slow_wakeups,
    with_spins,
    write_json,
    write_kineto,
)

PROGRAMS, FEW = 300, 60
MOST_NS = 20_000


def offset(random: Random) -> DeviceClock:
    return DeviceClock(random.randint(-MOST_NS, MOST_NS))


def drift(random: Random) -> DeviceClock:
    """As clocks of machines do that are set right now and then: some us over the program."""
    return DeviceClock(random.randint(-MOST_NS, MOST_NS), drift_ppm=random.uniform(-200, 200))


def steps(random: Random) -> DeviceClock:
    """Set forward or back once, somewhere."""
    return DeviceClock(
        random.randint(-MOST_NS, MOST_NS),
        steps=((random.randint(500_000, 4_000_000), random.randint(-MOST_NS, MOST_NS)),),
    )


CLOCKS = {"offset": offset, "drift": drift, "steps": steps}
EACH_CLOCK = [pytest.param("offset", marks=pytest.mark.long), "drift", "steps"]  # clocks with steps have offsets


def uncertain(x: Case) -> Pairs:
    """Pairs of queries whose answer nobody can know, and of calls whose row does not name the record, which are
    inferred.

    Nobody can know it where another machine gives the same recording, and there the query found what is found here: one
    that ran its ops when they are found to have run, where that breaks no rule (``possible``). The clock of its device
    makes up the difference.
    """
    role = roles(x.trace.calls, x.trace.strings)
    queries = {(op, call) for op, call in x.waits ^ x.found_waits() if role[call] == Role.EVENT_QUERY}
    syncs = x.trace.syncs
    unnamed = syncs.correlation[(syncs.kind == SyncKind.EVENT) & ~syncs.record_known].tolist()
    return (queries if possible(x) else set()) | {(NOWHERE, x.call_of[c]) for c in unnamed if c in x.call_of}


def possible(x: Case) -> bool:
    """Tell whether ops may have run when they are found to have run.

    None before its launch, none before what it waited for or what was before it on its stream was over, and no call
    over before that.
    """
    device, calls, call = x.trace.device, x.trace.calls, x.linked.device_call
    role = roles(calls, x.trace.strings)
    launched = call != NOWHERE
    order = np.lexsort((device.start_ns, device.stream, device.device))
    a, b = order[:-1], order[1:]
    same = (device.stream[a] == device.stream[b]) & (device.device[a] == device.device[b])
    early_ns = [
        calls.start_ns[call[launched]] - device.start_ns[launched],
        device.end_ns[a[same]] - device.start_ns[b[same]],
        *(device.end_ns[[op]] - calls.end_ns[[by]] for op, by in x.waits if role[by] != Role.EVENT_QUERY),
        *(device.end_ns[[op]] - device.start_ns[[held]] for op, held in x.event_edges),
    ]
    return int(np.concatenate(early_ns).max()) <= rounding_ns(x.trace)


@dataclass
class Counts:
    """Over programs. ``unsure``: of pairs that were wrong, those that nobody can know."""

    true: int = 0
    false: int = 0
    missing: int = 0
    unsure: int = 0

    def add(self, x: Case, truth: Pairs, found: Pairs, unsure: Pairs) -> None:
        calls = {call for _, call in unsure}
        wrong, missing = found - truth, x.missing(truth, found)
        self.true += len(truth)
        self.unsure += sum(pair[1] in calls for pair in wrong | missing)
        self.false += sum(pair[1] not in calls for pair in wrong)
        self.missing += sum(pair[1] not in calls for pair in missing)


@pytest.mark.parametrize("clock", EACH_CLOCK)
@pytest.mark.parametrize("programs", [FEW // 2, pytest.param(PROGRAMS, marks=pytest.mark.long)])
def test_with_rows_exactly_the_true_waits_are_found_whatever_the_clock(
    tmp_path: Path, clock: str, programs: int
) -> None:
    waits, events = Counts(), Counts()
    for seed in range(programs):
        vary = Variation(device_clock=CLOCKS[clock](Random(seed + 500)))
        x = case(tmp_path, seed, WITH_ROWS, cuda_sync=True, vary=vary)
        waits.add(x, x.waits, x.found_waits(), uncertain(x))
        events.add(x, x.event_edges, x.found_events(), set())
    print(f"\n{programs} programs, {clock}: {waits}, events {events}")
    assert waits.true > 10 * programs
    assert (waits.false, waits.missing, events.false, events.missing) == (0, 0, 0, 0)
    assert waits.unsure <= 1


@dataclass
class Inferred:
    """Over programs: edges, and calls that had to wait, with their time."""

    edges: int = 0
    false: int = 0
    blocked: int = 0
    explained: int = 0
    blocked_ns: int = 0
    explained_ns: int = 0

    def add(self, x: Case) -> None:
        waits, events = x.found_waits(), x.inferred_events()
        slow = x.blocked()
        self.edges += len(waits) + len(events)
        self.false += len(waits - x.waits) + len(events - x.event_edges)
        self.blocked += len(slow)
        known = slow & {call for _, call in waits}
        self.explained += len(known)
        took_ns = x.trace.calls.end_ns - x.trace.calls.start_ns
        self.blocked_ns += int(took_ns[list(slow)].sum())
        self.explained_ns += int(took_ns[list(known)].sum())

    def hold(self, programs: int) -> None:
        print(f"\n{programs} programs: {self}")
        assert self.edges > 8 * programs
        assert self.false <= (0.005 if programs > FEW else 0.0065) * self.edges  # of few programs single edges count


@pytest.mark.parametrize("clock", EACH_CLOCK)
@pytest.mark.parametrize("programs", [FEW, pytest.param(PROGRAMS, marks=pytest.mark.long)])
def test_without_rows_little_is_false_whatever_the_clock(tmp_path: Path, clock: str, programs: int) -> None:
    found = Inferred()
    for seed in range(programs):
        vary = Variation(device_clock=CLOCKS[clock](Random(seed + 500)))
        found.add(case(tmp_path, seed, WITHOUT_ROWS, cuda_sync=False, vary=vary))
    found.hold(programs)
    assert found.explained >= 0.97 * found.blocked


@pytest.mark.parametrize(
    "dirt",
    [
        pytest.param(with_slow_wakeups, marks=pytest.mark.long),
        pytest.param(with_spins, marks=pytest.mark.long),
        lambda p: with_spins(with_slow_wakeups(p)),
    ],
    ids=["wake-ups", "spins", "both"],
)
@pytest.mark.parametrize("programs", [FEW // 5, pytest.param(PROGRAMS // 5, marks=pytest.mark.long)])
def test_without_rows_little_is_false_on_machines_that_wake_up_late(
    tmp_path: Path, dirt: Callable[[Program], Program], programs: int
) -> None:
    """Programs long enough to show what is usual: some ten calls of each sort that wait."""
    found = Inferred()
    for seed in range(programs):
        found.add(case(tmp_path, seed, WITHOUT_ROWS, cuda_sync=False, dirt=dirt, ops=300))
    found.hold(programs)
    assert found.explained_ns >= 0.95 * found.blocked_ns


@pytest.mark.parametrize("dirt", [with_slow_wakeups, with_spins], ids=["wake-ups", "spins"])
def test_with_rows_late_wakeups_and_polling_change_nothing(tmp_path: Path, dirt: Callable[[Program], Program]) -> None:
    for seed in range(20):
        x = case(tmp_path, seed, WITH_ROWS, cuda_sync=True, dirt=dirt)
        assert x.found_waits() <= x.waits, seed
        assert not x.missing(x.waits, x.found_waits()), seed
        assert x.found_events() <= x.event_edges, seed
        assert not x.missing(x.event_edges, x.found_events()), seed


def graph_of(folder: Path, execution: Execution, vary: Variation | None = None) -> Graph:
    write_kineto(execution, folder / "kineto.json", dialect="2024", cuda_sync=False, vary=vary)
    return built(linked_of(folder / "kineto.json"), sync="cuda").graph


def edges(graph: Graph, kind: EdgeKind) -> list[tuple[int, int]]:
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    mine = graph.edge_kind == kind
    return list(zip(graph.source[mine].tolist(), target[mine].tolist(), strict=True))


@pytest.mark.parametrize("flows", [True, False], ids=["with fwdbwd flows", "without"])
def test_threads_that_wake_up_late_are_still_released_by_who_signalled(tmp_path: Path, flows: bool) -> None:
    handovers = released = 0
    for seed in range(12):
        execution = run(with_slow_wakeups(training_program(seed, Training(steps=6))))
        graph = graph_of(tmp_path, execution, Variation(forward_flows=flows))
        woken = [
            (int(graph.start_ns[t] + graph.epoch_ns), int(graph.tid[t]) != execution.program.pid)
            for _, t in edges(graph, EdgeKind.THREAD)
        ]
        base_ns = int(graph.epoch_ns) - execution.start_ns
        for handover in execution.handovers:
            at_ns = (base_ns + handover.signal_ns, base_ns + handover.woken_ns + 2_000)
            handovers += 1
            released += any(
                at_ns[0] - 50_000 <= ns <= at_ns[1] and other == bool(handover.to_thread) for ns, other in woken
            )
    print(f"\n{released} of {handovers} hand-overs have their edge")
    assert handovers >= 100
    assert released >= 0.95 * handovers


def test_what_a_host_polled_for_is_an_edge_or_named(tmp_path: Path) -> None:
    """It goes on before the kernel ends, so the edge is from what that kernel had to wait for, and the rest of its time
    is named.
    """
    polls = named = edges_of = false = 0
    for seed in range(20):
        execution = run(with_spins(random_program(seed, Shape(threads=1, streams=2, ops=80))))
        polled = [spin for spin in execution.spins if spin.end_ns - spin.start_ns > 150_000]
        if len(polled) < 3:
            continue  # a coincidence, as far as anybody can tell
        ids = write_kineto(execution, tmp_path / "kineto.json", dialect="2024", cuda_sync=False)
        linked = linked_of(tmp_path / "kineto.json")
        found = built(linked, sync="cuda")
        graph, correlation = found.graph, linked.trace.device.correlation
        waited = {
            int(correlation[graph.row[s]]) for s, t in edges(graph, EdgeKind.SYNC) if graph.kind[t] != NodeKind.END
        }
        before = {execution.device[spin.source].previous for spin in execution.spins}
        own = {ids.device_correlation[spin.source] for spin in execution.spins}
        right = own | {ids.device_correlation[op] for op in before if op is not None}
        polls += len(polled)
        named += found.untold.spins
        edges_of += len(waited & own)
        false += len(waited - right - {ids.device_correlation[op] for op, _ in execution.waits})
    print(f"\n{polls} polls: {named} named, {edges_of} have an edge of their own, {false} edges false")
    assert polls >= 50
    assert named + edges_of >= 0.95 * polls
    assert false <= 0.01 * polls + 1


@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        (
            "vllm::all_reduce",
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals, int)",
        ),
        (
            "symm_mem::multimem_all_reduce_",
            "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        ),
        ("FusedDispatch", "void deep_ep::internode::dispatch<false, 4>(int const*, int*)"),
        ("sgl_kernel::all_reduce", "void sglang::cross_device_reduce_2stage<half, 8>(sglang::RankData*)"),
        ("c10d::allreduce_", "oneccl_allreduce_medium(sycl::queue, void*)"),
    ],
)
def test_communication_of_other_libraries_is_communication(tmp_path: Path, op: str, kernel: str) -> None:
    execution = run(with_communication_of(training_program(5), op, kernel))
    write_kineto(execution, tmp_path / "kineto.json", dialect="2024", cuda_sync=False)
    linked = linked_of(tmp_path / "kineto.json")
    rows = linked.trace.device
    mine = {i for i, name in enumerate(rows.name.tolist()) if linked.trace.strings[name] == kernel}
    comm = communication(linked)
    assert len(mine) >= 12
    assert set(comm.device_row.tolist()) == mine


@pytest.mark.parametrize("maker", changes.MAKERS)
def test_rows_of_other_devices_are_linked_or_named(tmp_path: Path, maker: str) -> None:
    """Where stream and call can be told as Kineto has them for the device, else a warning gives category and count."""
    execution = run(training_program(5))
    document = changes.on_device_of(kineto_document(execution, dialect="2024", cuda_sync=False), maker).document
    write_json(document, tmp_path / "kineto.json")
    prepared = prepare(Inputs(kineto=tmp_path / "kineto.json"), Options())
    linked = np.count_nonzero(prepared.linked.device_call >= 0)
    if maker == "npu" and not linked:
        ops = len(execution.device)
        assert any("npu_task" in w and "npu_copy" in w and str(ops) in w.replace(",", "") for w in prepared.warnings), (
            prepared.warnings
        )
        return
    assert linked == len(execution.device)
