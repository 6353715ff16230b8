"""The same execution recorded by Kineto and by nsys gives the same graph; what only one of them tells is told apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlink.depend.build import BuildOptions, Built, build, find
from graphlink.depend.cuda import cuda_waits
from graphlink.graph.critical import cost_ns
from graphlink.graph_model import EdgeKind, Graph
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Linked, Trace
from graphlink.read.kineto import read_kineto
from graphlink.read.nsys.report import read_nsys
from graphlink.replay.machines import replay
from tests.simulator import (
    DeviceClock,
    Execution,
    Shape,
    Training,
    Variation,
    random_program,
    row_ids,
    run,
    training_program,
    write_kineto,
)
from tests.simulator.nsys import NsysVariation, write_nsys
from tests.simulator.strategies import Limits, executions

Pairs = set[tuple[int, int]]


def linked_of(trace: Trace) -> Linked:
    return link(trace, None, match_hosts(trace, None))


def built(trace: Trace) -> Built:
    linked = linked_of(trace)
    return build(linked, communication(linked), BuildOptions(sync="cuda"))


def by_nsys(execution: Execution, folder: Path, schema: str = "3.25", vary: NsysVariation | None = None) -> Trace:
    write_nsys([execution], folder / "run.sqlite", schema=schema, vary=vary)
    (trace,) = read_nsys(folder / "run.sqlite")
    return trace


def by_kineto(
    execution: Execution, folder: Path, dialect: str = "2026", vary: Variation | None = None, *, cuda_sync: bool = True
) -> Trace:
    write_kineto(execution, folder / "kineto.json", dialect=dialect, vary=vary, cuda_sync=cuda_sync)
    return read_kineto(folder / "kineto.json")


def differences(one: Graph, other: Graph, *but: str) -> list[str]:
    """Name the columns that differ. Texts may: nsys names copies and calls in its own words."""

    def columns(record: object) -> dict[str, object]:
        inner = {f.name: getattr(record, f.name) for f in fields(record) if f.name != "linked"}  # type: ignore[arg-type]
        return {
            k: v
            for name, value in inner.items()
            for k, v in (columns(value) if is_dataclass(value) else {name: value}).items()
        }

    left, right = columns(one), columns(other)
    return [
        name for name in left if name not in (*but, "strings", "name") and not np.array_equal(left[name], right[name])
    ]


def program(seed: int) -> Execution:
    if seed % 4 == 0:
        return run(training_program(seed, Training(ranks=1)))
    return run(random_program(seed, Shape(threads=1 + seed % 3, streams=1 + seed % 5)))


def seeds(quick: int, count: int) -> list[Any]:
    """The first, and the others for long runs."""
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.long) for seed in range(count)]


EXACT = {
    "as it is": ("3.25", NsysVariation()),
    "newest": ("3.28", NsysVariation(registered_strings=True)),
    "event ids alone": ("3.16", NsysVariation(records="ids")),
    "device 0 on all rows": ("3.25", NsysVariation(device_of_syncs="zero")),
    "false types": ("3.25", NsysVariation(wrong_sync_types=True)),
    "tables missing": (
        "3.25",
        NsysVariation(without_tables=("META_DATA_EXPORT", "PROCESSES", "ENUM_NSYS_EVENT_TYPE", "OSRT_API")),
    ),
    "start/end ranges": ("3.25", NsysVariation(start_end_ranges=True)),
}


@pytest.mark.parametrize("what", EXACT)
@pytest.mark.parametrize("seed", seeds(3, 8))
def test_the_graph_is_kinetos(tmp_path: Path, what: str, seed: int) -> None:
    execution = program(seed)
    kineto, nsys = built(by_kineto(execution, tmp_path)), built(by_nsys(execution, tmp_path, *EXACT[what]))
    assert differences(kineto.graph, nsys.graph) == []
    assert kineto.sync == nsys.sync
    assert kineto.warnings == nsys.warnings
    ends = [replay(graph, cost_ns(graph)).total_ns for graph in (kineto.graph, nsys.graph)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "clock", [DeviceClock(-9_000), DeviceClock(14_000, steps=((900_000, -12_000),))], ids=["behind", "steps back"]
)
@pytest.mark.parametrize("seed", range(4))
def test_the_graph_is_kinetos_whatever_the_clock_of_the_device(tmp_path: Path, clock: DeviceClock, seed: int) -> None:
    execution = program(seed)
    kineto = built(by_kineto(execution, tmp_path, vary=Variation(device_clock=clock)))
    nsys = built(by_nsys(execution, tmp_path, vary=NsysVariation(device_clock=clock)))
    assert differences(kineto.graph, nsys.graph) == []
    assert kineto.sync == nsys.sync


@pytest.mark.parametrize("seed", seeds(3, 8))
@pytest.mark.parametrize("schema", ["2020", "3.25"])
def test_without_records_the_graph_is_that_of_kineto_without_records(tmp_path: Path, seed: int, schema: str) -> None:
    execution = program(seed)
    kineto = built(by_kineto(execution, tmp_path, "2024", Variation(record_ids="unresolved")))
    nsys = built(by_nsys(execution, tmp_path, schema, NsysVariation(records="none")))
    assert differences(kineto.graph, nsys.graph) == []
    assert kineto.sync == nsys.sync


@pytest.mark.parametrize("seed", range(4))
def test_without_rows_the_graph_is_that_of_kineto_without_rows(tmp_path: Path, seed: int) -> None:
    execution = program(seed)
    kineto = built(by_kineto(execution, tmp_path, "2024", cuda_sync=False))
    nsys = built(by_nsys(execution, tmp_path, "3.25", NsysVariation(records="none", syncs=False)))
    assert differences(kineto.graph, nsys.graph) == []


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(execution=executions(Limits(devices=1)), what=st.sampled_from(sorted(EXACT)))
def test_any_program(tmp_path: Path, execution: Execution, what: str) -> None:
    if not execution.device:
        return
    nsys = built(by_nsys(execution, tmp_path, *EXACT[what]))
    kineto = built(by_kineto(execution, tmp_path))
    assert differences(kineto.graph, nsys.graph) == []
    assert kineto.sync == nsys.sync


@dataclass(frozen=True)
class Truth:
    """What is true of the rows of one rank: of pairs (device row, call) and (device row, device row), each also by way
    of others.
    """

    waits: Pairs
    events: Pairs
    all_waits: Pairs
    all_events: Pairs


def truth(trace: Trace, execution: Execution, first_device: int = 0) -> Truth:
    """An op of the other device that is no row of the rank may stand between two rows: what it waited for is waited
    for, too.
    """
    ids = row_ids(execution)
    call = {c: k for k, c in enumerate(trace.calls.correlation.tolist())}
    known = next(i for i, c in enumerate(ids.call_correlation) if c in call)
    epoch_ns = int(trace.calls.start_ns[call[ids.call_correlation[known]]]) - execution.calls[known].start_ns
    keys = zip(
        trace.device.correlation.tolist(), trace.device.start_ns.tolist(), trace.device.device.tolist(), strict=True
    )
    row_of = {key: k for k, key in enumerate(keys)}
    row = {
        i: row_of.get((ids.device_correlation[i], op.start_ns + epoch_ns, op.device + first_device))
        for i, op in enumerate(execution.device)
    }
    before: list[set[int]] = []
    for op in execution.device:
        direct = {*op.sources, *([] if op.previous is None else [op.previous])}
        before.append(direct.union(*(before[source] for source in direct)))

    def rows(pairs: Iterable[tuple[int, int]], to: dict[int, int | None]) -> Pairs:
        found = ((row[a], to.get(b)) for a, b in pairs)
        return {(a, b) for a, b in found if a is not None and b is not None}

    calls = {i: call.get(c) for i, c in enumerate(ids.call_correlation)}
    waits = execution.waits
    events = execution.event_edges
    return Truth(
        waits=rows(waits, calls),
        events=rows(events, row),
        all_waits=rows(((b, c) for a, c in waits for b in (a, *before[a])), calls),
        all_events=rows(((a, b) for b in range(len(before)) for a in before[b]), row),
    )


@pytest.mark.parametrize("seed", seeds(12, 40))
@pytest.mark.parametrize("first_device", [0, 1])
def test_each_device_of_a_process_is_a_rank_in_which_nothing_is_false(
    tmp_path: Path, seed: int, first_device: int
) -> None:
    threads = 1 + seed % 3
    execution = run(random_program(seed, Shape(threads=threads, streams=1 + seed % 4, devices=2)))
    vary = NsysVariation(device_of_syncs="zero" if first_device else "right", first_device=first_device)
    write_nsys([execution], tmp_path / "run.sqlite", vary=vary)
    traces = read_nsys(tmp_path / "run.sqlite")
    used = sorted({op.device + first_device for op in execution.device})
    assert [set(trace.device.device.tolist()) for trace in traces] == [{device} for device in used]
    assert sum(len(trace.device.start_ns) for trace in traces) == len(execution.device)
    for trace in traces:
        true = truth(trace, execution, first_device)
        d = find(linked_of(trace), BuildOptions(sync="cuda")).dependencies
        found = set(zip(d.host.source.tolist(), d.host.call.tolist(), strict=True))
        assert found <= true.all_waits
        assert set(zip(d.device.source.tolist(), d.device.device_op.tolist(), strict=True)) <= true.all_events
        if threads == 1:  # then all calls are in every rank
            streams = trace.device.stream.tolist()
            latest: dict[tuple[int, int], int] = {}
            for source, call in found:
                latest[call, streams[source]] = max(latest.get((call, streams[source]), source), source)
            assert all(latest.get((call, streams[source]), -1) >= source for source, call in true.waits)


@pytest.mark.parametrize("seed", seeds(8, 20))
def test_a_device_synchronisation_without_a_row_is_no_wait_for_the_wrong_device(tmp_path: Path, seed: int) -> None:
    """Two devices, one thread: which one a call is for only a row can tell. What is inferred from its effect may be
    wrong, seldom.
    """
    execution = run(random_program(seed, Shape(devices=2, streams=2)))
    write_nsys([execution], tmp_path / "run.sqlite", vary=NsysVariation(syncs=False, records="none"))
    for trace in read_nsys(tmp_path / "run.sqlite"):
        waits = cuda_waits(linked_of(trace)).waits
        found = {(s, c) for s, c in zip(waits.source.tolist(), waits.call.tolist(), strict=True) if c >= 0}
        assert found <= truth(trace, execution).all_waits


def test_backward_operators_follow_their_forward_operators(tmp_path: Path) -> None:
    graph = built(by_nsys(run(training_program(4)), tmp_path)).graph
    assert np.count_nonzero(graph.edge_kind == EdgeKind.THREAD) > 8
