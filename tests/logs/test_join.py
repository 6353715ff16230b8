"""Logs joined with the recording: nvidia-smi by time, where one zone alone fits, Megatron by the numbers of
iterations.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from graphlink.logs.lines import ZONES, Moment, Window, moment, noted_zone, zone_name, zones
from graphlink.logs.megatron import logged_steps, read_megatron
from graphlink.logs.nvidia_smi import hosts_of, joined_by_time, read_nvidia_smi
from graphlink.logs.records import Logs, Matched, SmiLog, logs_table
from graphlink.logs.run import matched
from graphlink.records import Table

S = 10**9
BEGAN = 1_706_696_523 * S  # 2024-01-31 10:22:03 UTC
HEAD = "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"


def log_of(
    path: Path, zone_minutes: int, before_s: int = 60, after_s: int = 600, form: str = "%Y/%m/%d %H:%M:%S.250"
) -> Path:
    """Two GPUs, a sample a second: GPU 0 is busy for 20 s from BEGAN, GPU 1 half as much."""
    lines = []
    for second in range(-before_s, after_s):
        at = datetime.fromtimestamp(BEGAN // S + second, timezone.utc) + timedelta(minutes=zone_minutes)
        busy = 80 if 0 <= second < 20 else 0
        lines += [f"{at.strftime(form)}, {gpu}, {busy // (1 + gpu)} %, {1000 + busy} MiB\n" for gpu in (0, 1)]
    path.write_text(HEAD + "".join(lines))
    return path


def joined(path: Path, window: Window) -> SmiLog:
    (log,) = read_nvidia_smi([path])
    return joined_by_time(log, hosts_of([path])[0], window)


WINDOW = Window(BEGAN, BEGAN + 20 * S)


@pytest.mark.parametrize("zone", [0, 60, -480, 330, 345, 765, 840, -720, -210])
def test_the_only_zone_that_covers_the_recording_is_found(zone: int, tmp_path: Path) -> None:
    log = joined(log_of(tmp_path / "smi.csv", zone), WINDOW)
    assert log.in_recording is not UNSET and log.not_joined is UNSET
    found = log.in_recording
    assert (found.zone_minutes, found.zone_by, found.recorded_ns) == (zone, "cover", 20 * S)
    assert [(gpu.gpu, gpu.samples, gpu.utilisation_percent.mean, gpu.memory_used_mib.mean) for gpu in found.gpus] == [  # type: ignore[union-attr]
        (0, 20, 80, 1080),
        (1, 20, 40, 1080),
    ]
    assert [gpu.samples for gpu in log.gpus] == [660, 660], "all samples stand beside it as before"


def test_where_several_zones_or_none_fit_nothing_is_joined(tmp_path: Path) -> None:
    path = log_of(tmp_path / "smi.csv", 60, before_s=4_000, after_s=4_000)
    several = joined(path, WINDOW)
    assert (several.in_recording, several.not_joined) == (UNSET, "it covers the recording in 3 time zones")
    by_trace = joined(path, Window(BEGAN, BEGAN + 20 * S, 3_600 * S - 40 * S))
    assert by_trace.in_recording is not UNSET
    assert (by_trace.in_recording.zone_minutes, by_trace.in_recording.zone_by) == (60, "execution trace")
    other_day = joined(path, Window(BEGAN + 86_400 * S * 3, BEGAN + 86_400 * S * 3 + S))
    assert other_day.not_joined == "it covers the recording in no time zone"


def test_a_window_between_two_samples_has_none(tmp_path: Path) -> None:
    log = joined(log_of(tmp_path / "smi.csv", 0), Window(BEGAN + 300_000_000, BEGAN + 360_000_000))
    assert log.in_recording is not UNSET and log.in_recording.gpus == []
    (text,) = [part for part in lines(log) if "no sample" in part]
    assert text == (
        "  no sample lies in the recorded 60.000 ms (local time is UTC+00:00, the only zone in which the log covers "
        "the recording)"
    )


def lines(log: SmiLog) -> list[str]:
    return [part for part in logs_table(Logs(nvidia_smi=[log], megatron=[])) if isinstance(part, str)]


def test_times_with_a_zone_and_times_that_are_none(tmp_path: Path) -> None:
    log = joined(log_of(tmp_path / "smi.csv", 60, form="%Y-%m-%d %H:%M:%S.250+01:00", before_s=8_000), WINDOW)
    assert log.in_recording is not UNSET
    assert (log.in_recording.zone_by, log.in_recording.gpus[0].samples) == ("log", 20)
    other = joined(log_of(tmp_path / "odd.csv", 60, form="%H:%M:%S"), WINDOW)
    assert other.not_joined == "its samples have no times, or such as are not read"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2024/01/31 10:22:03.123", Moment(BEGAN + 123_000_000, zoned=False)),
        ("2024-01-31 10:22:03", Moment(BEGAN, zoned=False)),
        ("2024-01-31T10:22:03,5", Moment(BEGAN + 500_000_000, zoned=False)),
        ("2024-01-31T11:22:03+01:00", Moment(BEGAN, zoned=True)),
        ("2024-01-31T10:22:03Z", Moment(BEGAN, zoned=True)),
        ("Wed Jan 31 10:22:03 2024", Moment(BEGAN, zoned=False)),
        ("2024/13/31 10:22:03", None),
        ("31.01.2024 10:22:03", None),
        ("Mit Jan 31 10:22 2024", None),
        ("", None),
    ],
)
def test_times(text: str, told: Moment | None) -> None:
    assert moment(text) == told


@given(st.text("0123456789/-: .,TZ+JanWed", max_size=40))
def test_any_text_is_a_time_or_none(text: str) -> None:
    moment(text)


@given(st.sampled_from(ZONES), st.integers(0, 290))
def test_the_zone_of_an_execution_trace(zone: int, late_s: int) -> None:
    assert noted_zone(Window(BEGAN, BEGAN + S, (zone * 60 - late_s) * S)) == zone
    assert noted_zone(Window(BEGAN, BEGAN + S, (zone * 60 + 440) * S)) is None


def test_what_a_zone_is_called() -> None:
    assert [zone_name(minutes) for minutes in (0, 330, -210, 840)] == [
        "UTC+00:00",
        "UTC+05:30",
        "UTC-03:30",
        "UTC+14:00",
    ]
    first, last = Moment(BEGAN, zoned=False), Moment(BEGAN + 60 * S, zoned=False)
    assert zones(first, last, Window(BEGAN, BEGAN + 30 * S), 0) == [0]


@pytest.mark.parametrize(
    ("recorded", "numbers", "ms", "told"),
    [
        ({5: [50], 6: [52]}, [1, 2, 3, 4, 5, 6, 7], [40, 40, 40, 40, 51, 53, 41], (5, 6, 52, 40)),
        ({25: [50]}, [10, 20, 30], [40, 40, 47], (25, 25, 47, 40)),  # each line is of ten iterations
        ({1: [50]}, [10], [47], None),  # how many iterations a line of one is of is not known
        ({10: [50]}, [10], [47], (10, 10, 47, None)),
        ({5: [50]}, [5_000, 5_010, 5_020], [1, 1, 1], None),  # resumed: other numbers
        ({8: [50]}, [1, 2, 3], [1, 1, 1], None),
        ({12: [50]}, [1, 2, 20, 21], [1, 1, 1, 1], None),  # a hole in the log
        ({}, [1], [1], None),
        ({1: [1]}, [], [], None),
    ],
)
def test_steps_are_matched_by_number(
    recorded: dict[int, list[int]],
    numbers: list[int],
    ms: list[float],
    told: tuple[int, int, float, float | None] | None,
) -> None:
    steps_ns = {number: [one * 1_000_000 for one in took] for number, took in recorded.items()}
    found = matched(steps_ns, numbers, ms)
    assert (None if found is None else (found.first, found.last, found.logged_ms, found.others_ms)) == told
    assert found is None or isinstance(found, Matched)


def test_the_iterations_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f" iteration {n:8}/ 100 | elapsed time per iteration (ms): {n}.5 |\n" for n in (3, 1, 2)))
    assert logged_steps(path) == ([3, 1, 2], [3.5, 1.5, 2.5])
    assert read_megatron([path])[0].matched is UNSET


def test_tables_have_the_samples_inside(tmp_path: Path) -> None:
    log = joined(log_of(tmp_path / "smi.csv", 60), WINDOW)
    tables = [part for part in logs_table(Logs(nvidia_smi=[log], megatron=[])) if isinstance(part, Table)]
    assert [table.rows[0][2] for table in tables] == ["660", "20"]
