"""What ever failed under ``python -m tests.fuzz`` goes well, and the guards of the harness do find what they are there
for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import harness
from tests.fuzz.bases import make
from tests.fuzz.harness import BY_NAME, CASES, Case, Outcome, Place, attempt, guarded

KEPT = [
    line.split()
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if line and line[0] != "#"
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "work").mkdir()
    with guarded():
        make(folder / "base")
        yield Place(folder / "base", folder / "work")


def test_what_ever_failed_goes_well(place: Place) -> None:
    outcomes = {(name, seed): attempt(place, name, int(seed)) for name, seed in KEPT}
    assert not {key: outcome.failure for key, outcome in outcomes.items() if outcome.failure}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_reaches_its_reader(place: Place, case: Case) -> None:
    outcomes = [attempt(place, case.name, seed) for seed in range(5)]
    assert not [outcome.failure for outcome in outcomes if outcome.failure]
    assert {outcome.status for outcome in outcomes} & {0, 1}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda: [0] * (1 << 28), "Memory"),
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: [None for _ in iter(time.monotonic, -1.0)], "took more than"),
    ],
)
def test_a_fault_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch, fault: object, words: str) -> None:
    monkeypatch.setattr(harness, "MOST_CPU_S", 0.2)
    monkeypatch.setattr("graphlink.read.kineto.read_kineto", lambda path: fault())  # type: ignore[operator]
    path = place.given("kineto_0.json", b"{}")
    monkeypatch.setitem(BY_NAME, "kineto", Case("kineto", 1, lambda place, rng: harness._read(path, "kineto")))
    outcome = attempt(place, "kineto", 0)
    assert isinstance(outcome, Outcome)
    assert words in outcome.failure
