"""Whether standstill stays explained, and is as long as it was, on machines whose clocks are off, whose calls and
threads wake up late, whose hosts poll, and whose communication nothing names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from graphlink.standstill.records import Standstill, Stood
from graphlink.standstill.standstill import LARGEST
from tests.depend.programs import linked_of, shape
from tests.depend.test_dirt import CLOCKS, EACH_CLOCK
from tests.simulator import (
    DeviceClock,
    Program,
    Training,
    Variation,
    random_program,
    run,
    training_program,
    with_communication_of,
    with_slow_wakeups,
    with_spins,
    write_kineto,
)
from tests.standstill.test_standstill import blocked_ns, rest, stood


@pytest.fixture(autouse=True)
def _one_clock() -> None:
    """Clocks are estimated here."""


def unnamed(program: Program) -> Program:
    return with_communication_of(
        program, "FusedDispatch", "void deep_ep::internode::dispatch<false, 4>(int const*, int*)"
    )


DIRT: dict[str, Callable[[Program], Program]] = {
    "slow wake-ups": with_slow_wakeups,
    "spins": with_spins,
    "slow wake-ups and spins": lambda program: with_spins(with_slow_wakeups(program)),
    "unnamed communication": unnamed,
}
DIALECTS = {True: ("2023", "2024", "2024-spring", "2026"), False: ("2022", "2023", "2024", "rocm")}


def random_one(seed: int) -> Program:
    return random_program(seed, shape(Random(seed), ops=300))


def training(seed: int) -> Program:
    return training_program(seed, Training(steps=15))


@pytest.mark.parametrize("rows", [True, False], ids=["with rows", "without rows"])
@pytest.mark.parametrize(
    "dirt", [*EACH_CLOCK, *(pytest.param(name, marks=pytest.mark.long) for name in [*DIRT][:2]), *[*DIRT][2:]]
)
@pytest.mark.parametrize("programs", [2, pytest.param(20, marks=pytest.mark.long)])
def test_calls_and_threads_are_explained_and_the_rest_is_named(
    tmp_path: Path, dirt: str, rows: bool, programs: int
) -> None:
    """Programs long enough to show what is usual: some ten calls of each sort that wait."""
    threads = Stood(ns=0, explained_ns=0)
    for program in (random_one, training):
        calls, blocked = Stood(ns=0, explained_ns=0), 0
        for seed in range(programs):
            execution = run(DIRT.get(dirt, lambda same: same)(program(seed)))
            clock = CLOCKS[dirt](Random(seed + 500)) if dirt in CLOCKS else DeviceClock()
            dialect = Random(seed).choice(DIALECTS[rows])
            write_kineto(
                execution, tmp_path / "kineto.json", dialect=dialect, cuda_sync=rows, vary=Variation(device_clock=clock)
            )
            found = stood(linked_of(tmp_path / "kineto.json")).standstill
            calls, threads = both(calls, found.calls), both(threads, found.threads)
            blocked += blocked_ns(execution)
            named(found)
        print(f"\n{dirt}, rows {rows}, {program.__name__}: {calls} of {blocked} ns blocked")
        assert calls.explained_ns >= 0.95 * calls.ns
        assert abs(calls.ns - blocked) <= 0.05 * blocked
    print(threads)
    assert threads.explained_ns >= 0.95 * threads.ns
    assert threads.ns >= 10_000_000 * programs


def named(found: Standstill) -> None:
    pieces = [piece for piece in found.largest if " late on device " not in piece.what]
    assert all(piece.record for piece in pieces)
    if len(found.largest) < LARGEST:
        assert sum(piece.ns for piece in pieces) == rest(found.calls) + rest(found.threads)


def both(a: Stood, b: Stood) -> Stood:
    return Stood(ns=a.ns + b.ns, explained_ns=a.explained_ns + b.explained_ns)
