"""Whether what is found is what was true, on simulated programs and on worked examples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from graphlink.depend.build import BuildOptions, find
from tests.depend.programs import case, linked_of, shape, understood
from tests.simulator import SCENARIOS, Scenario, random_program, run, with_slow_wakeups, write_kineto


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of these programs are right; ``test_dirt`` has those that are not."""
    monkeypatch.setattr("tests.depend.programs.on_host_clock", lambda trace: trace)


WITH_ROWS = ["2023", "2024", "2024-spring", "2026"]
WITHOUT_ROWS = ["2022", "2023", "2024", "2024-spring", "rocm"]


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, 10))])
def test_with_rows_exactly_the_true_waits_are_found(tmp_path: Path, block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        x = case(tmp_path, seed, WITH_ROWS, cuda_sync=True)
        assert x.found_waits() <= x.waits, f"false waits in program {seed}"
        assert x.found_events() <= x.event_edges, f"false event edges in program {seed}"
        assert not x.missing(x.waits, x.found_waits()), f"missing waits in program {seed}"
        assert not x.missing(x.event_edges, x.found_events()), f"missing event edges in program {seed}"
        assert not x.inferred_events(), f"rows tell all there is in program {seed}"


@pytest.mark.parametrize("seed", range(12))
def test_hta_beside_rows_adds_nothing_false(tmp_path: Path, seed: int) -> None:
    x = case(tmp_path, seed, WITH_ROWS, cuda_sync=True, sync="both")
    assert x.found_waits() <= x.waits
    assert x.found_events() <= x.event_edges
    counts = x.dependencies.counts
    assert counts.found == counts.kept + sum(counts.rejected.values())


@pytest.mark.parametrize("programs", [100, pytest.param(300, marks=pytest.mark.long)])
def test_without_rows_little_is_false_and_most_blocked_calls_are_explained(tmp_path: Path, programs: int) -> None:
    inferred = false = blocked = explained = 0
    for seed in range(programs):
        x = case(tmp_path, seed, WITHOUT_ROWS, cuda_sync=False)
        waits, events = x.found_waits(), x.inferred_events()
        inferred += len(waits) + len(events)
        false += len(waits - x.waits) + len(events - x.event_edges)
        slow = x.blocked()
        blocked += len(slow)
        explained += len(slow & {call for _, call in waits})
    assert false <= 0.005 * inferred, f"{false} of {inferred} inferred edges are false"
    assert explained >= 0.97 * blocked, f"{explained} of {blocked} blocked calls are explained"


def test_on_a_machine_that_wakes_slowly_little_is_false_and_most_blocked_calls_are_explained(tmp_path: Path) -> None:
    """Its lag is 20 to 200 us, the same within 10 % all over a program; 200 ops a thread have the 10 calls that a mode
    takes.
    """
    inferred = false = blocked = explained = 0
    for seed in range(12):
        random = Random(seed)
        execution = run(with_slow_wakeups(random_program(seed, replace(shape(random), ops=200))))
        path = tmp_path / "kineto.json"
        x = understood(
            path, execution, write_kineto(execution, path, dialect=random.choice(WITHOUT_ROWS), cuda_sync=False)
        )
        waits = x.found_waits()
        inferred, false = inferred + len(waits), false + len(waits - x.waits)
        slow = x.blocked()
        blocked, explained = blocked + len(slow), explained + len(slow & {call for _, call in waits})
    assert false <= 0.005 * inferred, f"{false} of {inferred} inferred edges are false"
    assert explained >= 0.95 * blocked, f"{explained} of {blocked} blocked calls are explained"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.key)
@pytest.mark.parametrize("sync", ["cuda", "both"])
def test_worked_examples(tmp_path: Path, scenario: Scenario, sync: str) -> None:
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps(scenario.document(ops=True)))
    trace = linked_of(path).trace
    op = {int(c): i for i, c in enumerate(trace.device.correlation)}
    call = {int(c): i for i, c in enumerate(trace.calls.correlation)}
    found = _dependencies(path, sync)
    expected = scenario.expected
    assert found[0] == {(op[scenario.correlation(a)], call[scenario.correlation(b)]) for a, b in expected.waits}
    assert found[1] == {(op[scenario.correlation(a)], op[scenario.correlation(b)]) for a, b in expected.event_edges}
    for waiting, name in expected.targets:
        sources = {op[scenario.correlation(a)] for a, b in expected.waits if b == waiting}
        assert {(s, name) for s in sources} <= found[2]


def _dependencies(path: Path, sync: str) -> tuple[set[tuple[int, int]], set[tuple[int, int]], set[tuple[int, str]]]:

    linked = linked_of(path)
    d = find(linked, BuildOptions(sync=sync)).dependencies
    strings, names = linked.trace.strings, linked.trace.host.name
    return (
        set(zip(d.host.source.tolist(), d.host.call.tolist(), strict=True)),
        set(zip(d.device.source.tolist(), d.device.device_op.tolist(), strict=True)),
        {(s, strings[names[t]]) for s, t in zip(d.sync_source.tolist(), d.sync_target.tolist(), strict=True)},
    )
