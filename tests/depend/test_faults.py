"""Random programs on the simulated machine, recorded with the faults of recorders: their waits stay those that were."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.depend.programs import Case, linked_of, shape, understood
from tests.depend.test_dirt import WITH_ROWS
from tests.simulator import changes, random_program, run, write_kineto
from tests.simulator.changes import Changed, Document
from tests.simulator.faults import FAULTS, ids_wrap

EVERY: Final[dict[str, Callable[[Document], Changed]]] = {
    **{f"clock{us:+}us": partial(changes.device_clock, shift_us=us) for us in (-2_000, -400, 400, 2_000, 30_000)},
    "ids-wrap": partial(ids_wrap, share=0.5),
    **FAULTS,
}


def faulty(folder: Path, seed: int, names: list[str]) -> Case:
    """Record a program, and judge it by what it did; calls are told again by their order, as ids may be new."""
    random = Random(seed)
    execution, path = run(random_program(seed, shape(random))), folder / "kineto.json"
    ids = write_kineto(execution, path, dialect=random.choice(WITH_ROWS), cuda_sync=True)
    clean = linked_of(path).trace.calls.correlation.tolist()
    document = json.loads(path.read_text())
    for name in names:
        document = EVERY[name](document).document
    path.write_text(json.dumps(document))
    new = dict(zip(clean, linked_of(path).trace.calls.correlation.tolist(), strict=True))
    numbers = {name: [new.get(c, c) for c in getattr(ids, name)] for name in ("device_correlation", "call_correlation")}
    return understood(path, execution, replace(ids, **numbers))


def judge(folder: Path, seed: int, names: list[str]) -> None:
    x = faulty(folder, seed, names)
    assert x.found_waits() <= x.waits, (seed, names)
    assert not x.missing(x.waits, x.found_waits()), (seed, names)
    assert x.found_events() <= x.event_edges, (seed, names)
    assert not x.missing(x.event_edges, x.found_events()), (seed, names)


@pytest.mark.long
def test_several_faults_at_once_change_no_more(tmp_path: Path) -> None:
    """But where nothing is left that tells: of two clocks, of ids that begin anew soon, of no ids and no flows."""
    for seed in range(300):
        # text comes last, as other faults want numbers
        names = sorted(Random(seed).sample([name for name in EVERY if name not in ("ids-wrap", "no-flows")], 3))
        clocks = [name for name in names if name.startswith(("clock", "drift"))]
        judge(tmp_path, seed, [name for name in names if name not in clocks[1:]])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("programs", [2, pytest.param(100, marks=pytest.mark.long)])
def test_the_waits_of_random_programs_are_found_whatever_the_recorder_did(
    tmp_path: Path, name: str, programs: int
) -> None:
    if programs > 4 and name == "ids-wrap":
        pytest.skip("ids that begin anew so soon do not always tell which of two records a wait is for")
    for seed in range(programs):
        judge(tmp_path, seed, [name])
