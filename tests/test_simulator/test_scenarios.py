from __future__ import annotations

import pytest

from tests.simulator.scenarios import LAUNCHES, SCENARIOS, Scenario

from .reference import Reference

by_key = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.key}: {s.title}")


@by_key
def test_expected_edges_are_what_cuda_says(scenario: Scenario) -> None:
    """Rows without a call count only as waits of streams; unknown record ids (13) leave the edges unknown."""
    reference, waits, edges = Reference(), set(), set()
    times = {op.label: op for op in scenario.device}
    for call in sorted(scenario.calls, key=lambda call: call.start_ns):
        key, sources = (call.device, call.stream), set()
        if call.kind in LAUNCHES and call.what in times:
            edges |= {(source, call.what) for source in reference.launch(call.what, key)}
            sources = {call.what} if call.kind == "M" else set()
        elif call.kind == "R":
            reference.record(call.what, key)
        elif call.kind == "W" and scenario.record_ids:
            reference.wait(call.what, key)
        elif call.has_call:
            found = {
                "SS": lambda key=key: reference.stream_sync(key),
                "DS": lambda call=call: reference.device_sync(call.device),
                "ES": lambda call=call: reference.event_sync(call.what),
                "EQ": lambda call=call: reference.event_sync(call.what),
            }
            sources = found[call.kind]() if call.kind in found else set()
            if call.kind == "EQ" and any(times[op].end_ns > call.end_ns for op in sources):
                sources = set()
        waits |= {(op, call.label) for op in sources}
    assert waits == scenario.expected.waits
    assert edges == scenario.expected.event_edges


@by_key
def test_edges_can_be_true(scenario: Scenario) -> None:
    times = {op.label: op for op in scenario.device}
    calls = {call.label: call for call in scenario.calls}
    for source, call in scenario.expected.waits:
        assert times[source].end_ns <= calls[call].end_ns
    for source, target in scenario.expected.event_edges:
        assert times[source].end_ns <= times[target].start_ns
    for call, op in scenario.expected.targets:
        target = next(span for span in scenario.ops if span.name == op)
        assert target.thread == calls[call].thread
        assert target.start_ns >= calls[call].end_ns


@by_key
def test_documents_have_a_row_for_everything(scenario: Scenario) -> None:
    rows = scenario.document()["traceEvents"]
    count = {
        category: sum(row["cat"] == category for row in rows)
        for category in ("cuda_runtime", "cuda_sync", "cpu_op", "cuda_event")
    }
    assert count["cuda_runtime"] == sum(call.has_call for call in scenario.calls)
    assert (count["cuda_sync"] > 0) == (scenario.sync_rows and any(call.kind in "SSDSESEQW" for call in scenario.calls))
    assert count["cuda_event"] == (scenario.key == "12")
    device = {row["name"]: row for row in rows if row["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")}
    assert set(device) == {op.label for op in scenario.device}
    assert all(row["args"]["correlation"] == scenario.correlation(label) for label, row in device.items())
    assert count["cpu_op"] == len(scenario.spans())
    assert not any(row["cat"] == "cpu_op" for row in scenario.document(ops=False)["traceEvents"])
