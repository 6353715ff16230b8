"""What a machine that is not clean does to a program, and what of it is recorded."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.simulator import (
    Api,
    Call,
    DeviceClock,
    Execution,
    NsysVariation,
    Program,
    Spin,
    Thread,
    ThreadBuilder,
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
    write_nsys,
)


def test_a_clock_is_off_drifts_and_steps() -> None:
    clock = DeviceClock(5_000, drift_ppm=100, steps=((1_000_000, -3_000), (2_000_000, 7_000)))
    assert [clock.at(ns) - ns for ns in (0, 999_999, 1_000_000, 2_000_000)] == [5_000, 5_100, 2_100, 9_200]


def test_only_rows_of_the_device_are_on_its_clock() -> None:
    execution = run(training_program(2))
    clean = kineto_document(execution, dialect="2026")
    shifted = kineto_document(execution, dialect="2026", vary=Variation(device_clock=DeviceClock(-8_000)))
    assert shifted["traceEvents"] == changes.device_clock(clean, -8).document["traceEvents"]


def test_device_rows_of_an_export_are_on_the_clock_of_the_device(tmp_path: Path) -> None:
    execution = run(training_program(2))
    write_nsys([execution], tmp_path / "clean.sqlite")
    write_nsys([execution], tmp_path / "off.sqlite", vary=NsysVariation(device_clock=DeviceClock(-8_000)))
    changes.nsys_device_clock(tmp_path / "clean.sqlite", tmp_path / "moved.sqlite", -8_000)
    middle = [changes.nsys_middle_ns(tmp_path / f"{name}.sqlite") for name in ("clean", "off", "moved")]
    assert middle == [middle[0], middle[0] - 8_000, middle[0] - 8_000]


def spinning(ns: int, kernel_ns: int = 80_000) -> Execution:
    main = ThreadBuilder("python", random.Random(1))
    with main.op("dispatch"):
        main.launch(7, kernel_ns)
        main.launch(7, 10_000)
        main.actions.append(Spin(ns))
        main.launch(7, 10_000)
    return run(Program((main.thread(),)))


@pytest.mark.parametrize("ns", [-4_000, 0, 9_000])
def test_a_host_that_polls_goes_on_when_the_kernel_has_written(ns: int) -> None:
    execution = spinning(ns)
    (spin,) = execution.spins
    assert (spin.source, spin.op, spin.end_ns) == (1, 0, execution.device[1].end_ns + ns)
    assert execution.calls[2].start_ns >= spin.end_ns
    assert not execution.waits


def test_a_host_does_not_poll_for_what_is_over() -> None:
    (spin,) = spinning(-1_000_000).spins
    assert spin.end_ns == max(spin.start_ns, spinning(-1_000_000).device[1].start_ns)


def test_a_thread_that_launched_nothing_cannot_poll() -> None:
    with pytest.raises(ValueError, match="launched nothing"):
        run(Program((Thread("python", (Spin(),)),)))


def test_calls_and_threads_wake_up_late_by_what_is_usual() -> None:
    program = with_slow_wakeups(training_program(1, Training(steps=6)))
    execution = run(program)
    lags = [h.woken_ns - h.signal_ns for h in execution.handovers]
    assert len(lags) == 12
    assert 180_000 <= min(lags) <= max(lags) <= 2_750_000
    assert max(lags) < 1.25 * min(lags)
    returns = [
        a.return_ns for t in program.threads for a in t.actions if isinstance(a, Call) and a.api is Api.STREAM_SYNC
    ]
    assert 18_000 <= min(returns) <= max(returns) <= 220_000
    assert run(training_program(1, Training(steps=6))).waits == execution.waits


def test_polling_programs_poll_often_for_long_and_as_without() -> None:
    spins = [spin for seed in range(10) for spin in run(with_spins(random_program(seed))).spins]
    assert len(spins) > 20
    assert sum(spin.end_ns - spin.start_ns > 100_000 for spin in spins) > 15
    assert {op.work.name for op in run(random_program(1)).device} < {
        op.work.name for op in run(with_spins(random_program(1))).device
    }


def test_communication_of_another_library_is_named_by_nothing_of_nccl() -> None:
    program = training_program(3)
    execution = run(with_communication_of(program, "vllm::all_reduce", "void vllm::cross_device_reduce_1stage()"))
    document = kineto_document(execution, dialect="2026")
    assert "nccl" not in str(document["traceEvents"]).lower()
    assert not any("Collective name" in row.get("args", {}) for row in document["traceEvents"])
    assert run(program).event_edges == execution.event_edges
