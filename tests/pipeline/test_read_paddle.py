from __future__ import annotations

import gzip
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.pipeline.paddle import logs as paddle_lines
from graphlink.pipeline.paddle.logs import JobLog, read_paddle
from tests.paddle_runs import equal_times, gpipe, interleaved, one_f_one_b, simulate
from tests.simulator.paddle import EPOCH_NS, Job, Variation, job_line, write_paddle

JOBS = simulate(one_f_one_b(3, 4), equal_times(), transfer_ns=70_001, steps=2)


def rows(log: JobLog) -> list[tuple[str, int, int, int]]:
    return [
        (log.strings[kind], microbatch, start - EPOCH_NS, end - EPOCH_NS)
        for kind, microbatch, start, end in zip(
            log.type.tolist(), log.microbatch.tolist(), log.start_ns.tolist(), log.end_ns.tolist(), strict=True
        )
    ]


def written(jobs: list[Job]) -> list[tuple[str, int, int, int]]:
    return sorted(((j.written_type, j.microbatch, j.start_ns, j.end_ns) for j in jobs), key=lambda row: row[2:])


def one_line(tmp_path: Path, text: str | bytes) -> JobLog:
    (tmp_path / "workerlog.0").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_paddle(tmp_path)[0]


@pytest.mark.parametrize("number", ["job", "type", "microbatch"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_was_written_is_read_whatever_stands_between(tmp_path: Path, number: str, newline: str) -> None:
    write_paddle(JOBS, tmp_path, Variation(number=number, newline=newline, other_lines=4, first_step=3, stop_step=5))
    logs = read_paddle(tmp_path)
    assert [rows(log) for log in logs] == [written(jobs) for jobs in JOBS]
    for worker, log in enumerate(logs):
        text = (tmp_path / f"workerlog.{worker}").read_bytes()
        assert (log.rank, log.machine, log.first_step, log.stop_step, log.warnings) == (worker, 0, 3, 5, ())
        assert log.left_out == {"lines without a job": text.count(b"\n") - len(JOBS[worker])}


def test_the_line_of_the_reference(tmp_path: Path) -> None:
    line = (
        "I1020 09:15:07.265326 22317 standalone_executor.cc:217] Profiler Info: Job (3), type = forward, "
        "micro_batch_id = 2, "
        "job_start_time = 1697793307213.760986, job_end_time = 1697793307254.006104\n"
    )
    log = one_line(tmp_path, line)
    assert rows(log) == [("forward", 2, 213_760_986, 254_006_104)]
    assert log.start_ns.tolist() == [1697793307213760986], "as decimal text: a float64 of it is off by up to 122 ns"


def test_older_lines_have_no_microbatch(tmp_path: Path) -> None:
    write_paddle(JOBS, tmp_path, Variation(number="job", microbatch_field=False))
    log = read_paddle(tmp_path)[1]
    assert [(kind, start, end) for kind, _, start, end in rows(log)] == [
        (kind, start, end) for kind, _, start, end in written(JOBS[1])
    ]
    assert set(log.microbatch.tolist()) == {NOWHERE}


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("suffix", [True, False])
def test_packing_is_told_by_content(tmp_path: Path, packing: str, suffix: bool) -> None:
    for path in write_paddle(JOBS, tmp_path):
        data = path.read_bytes()
        path.unlink()
        packed = gzip.compress(data) if packing == "gz" else zstandard.compress(data)
        (path.with_name(f"{path.name}.{packing}") if suffix else path).write_bytes(packed)
    assert [rows(log) for log in read_paddle(tmp_path)] == [written(jobs) for jobs in JOBS]


def test_twelve_machines_and_twelve_workers_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    jobs = [[Job("forward", 0, 1_000 * w, 1_000 * w + 500), Job("backward", 0, 10**6, 10**6 + w)] for w in range(144)]
    write_paddle(jobs, tmp_path, Variation(machines=12))
    logs = read_paddle(tmp_path)
    assert [(log.rank, log.machine) for log in logs] == [(w, w // 12) for w in range(144)]
    assert [rows(log) for log in logs] == [written(mine) for mine in jobs]
    assert logs[0].warnings == ()


def test_missing_machines_and_workers_are_named_and_leave_their_ranks_free(tmp_path: Path) -> None:
    write_paddle([[Job("forward", 0, 0, 5)] for _ in range(12)], tmp_path, Variation(machines=4))
    (tmp_path / "machine0" / "workerlog.1").unlink()
    for path in (tmp_path / "machine2").iterdir():
        path.unlink()
    logs = read_paddle(tmp_path)
    assert [log.rank for log in logs] == [0, 2, 3, 4, 5, 9, 10, 11]
    assert logs[0].warnings == ("missing: machine2, machine0/workerlog.1; their ranks are left free",)
    (tmp_path / "machine3" / "workerlog.2").unlink()
    assert "unequal numbers of workers (machine0 3, machine1 3, machine3 2)" in read_paddle(tmp_path)[0].warnings[1]


def test_an_empty_worker_file_is_a_worker_without_jobs(tmp_path: Path) -> None:
    write_paddle([JOBS[0], [], JOBS[2]], tmp_path)
    logs = read_paddle(tmp_path)
    assert [(log.rank, len(log.start_ns)) for log in logs] == [(0, len(JOBS[0])), (1, 0), (2, len(JOBS[2]))]
    assert logs[1].warnings == (f"{tmp_path / 'workerlog.1'}: holds no job",)
    assert logs[1].left_out == {}


def test_a_last_line_cut_anywhere_is_the_job_or_counted_but_never_another_job(tmp_path: Path) -> None:
    first, last = Job("forward", 0, 1_000, 2_000_000), Job("backward", 0, 3_000_000, 4_123_456)
    whole = f"{job_line(first, 0)}\n{job_line(last, 0)}"
    begin = whole.index("\n") + 1
    marker = whole.index("Profiler Info: Job (", begin) + len("Profiler Info: Job (")
    for length in range(begin, len(whole) + 1):
        log = one_line(tmp_path, whole[:length])
        assert rows(log)[0] == ("forward", 0, 1_000, 2_000_000)
        assert rows(log)[1:] == ([("backward", 0, 3_000_000, 4_123_456)] if length == len(whole) else []), whole[
            begin:length
        ]
        cut = marker <= length < len(whole)
        assert log.left_out.get("last line cut off", 0) == cut
        assert any("is cut off in its last line, 2" in w for w in log.warnings) == cut
        assert log.left_out.get("lines without a job", 0) == (begin < length < marker)


@pytest.mark.parametrize(
    "change",
    [
        ("job_start_time = 1697793307000.", "job_start_time = nan."),
        ("Job (7)", "Job (seven)"),
        ("micro_batch_id = 2", "micro_batch_id = two"),
        ("micro_batch_id = 2", "micro_batch_id = 99999999999999999999"),
        ("type = forward", "type = "),
        (", job_end_time", "; job_end_time"),
        ("1697793307", "-1697793307"),
        ("1697793307", "16977933070000"),
        ("1697793307", "9999999999"),
        (".000001", ".00.0001"),
        (".000001", "000001e+12"),
    ],
)
def test_a_job_whose_numbers_cannot_be_read_is_an_error_with_file_and_line(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    line = job_line(Job("forward", 2, 1, 1_000_001), 7)
    assert change[0] in line
    wrong = line.replace(*change)
    with pytest.raises(InputError) as told:
        one_line(tmp_path, f"hello\n{line}\nhello\r\n{wrong}\n{line}\n")
    assert str(tmp_path / "workerlog.0") in str(told.value)
    assert "at: line 4" in str(told.value)


def test_an_unreadable_last_line_that_is_ended_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1"):
        one_line(tmp_path, "Profiler Info: Job (3), type = forw\n")


@given(whole=st.integers(10**12, 9_223_372_036_853), fraction=st.text("0123456789", min_size=0, max_size=12))
def test_times_are_taken_from_the_text_to_the_nearest_ns(whole: int, fraction: str) -> None:
    from decimal import ROUND_HALF_UP, Decimal

    text = f"{whole}.{fraction}" if fraction else str(whole)
    exact = int((Decimal(text) * 10**6).to_integral_value(ROUND_HALF_UP))
    assert paddle_lines._ns(str(whole).encode(), fraction.encode() or None) == exact


def test_several_jobs_on_a_line_and_text_right_behind_are_read(tmp_path: Path) -> None:
    first, second = job_line(Job("forward", 0, 0, 1_000), 0), job_line(Job("forward", 1, 1_000, 2_000), 1)
    log = one_line(tmp_path, f"{first}{second}E1020 09:15:08 error\nx\n")
    assert rows(log) == [("forward", 0, 0, 1_000), ("forward", 1, 1_000, 2_000)]
    assert log.left_out == {"lines without a job": 1}


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1 << 20])
def test_the_size_of_blocks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    write_paddle(JOBS, tmp_path, Variation(other_lines=3, newline="\r\n", first_step=1, stop_step=3, cut_bytes={1: 30}))
    expected = [(rows(log), log.left_out, log.warnings, log.first_step) for log in read_paddle(tmp_path)]
    monkeypatch.setattr(paddle_lines, "BLOCK_BYTES", block_bytes)
    assert [(rows(log), log.left_out, log.warnings, log.first_step) for log in read_paddle(tmp_path)] == expected


def test_a_line_without_end_is_never_held_as_a_whole(tmp_path: Path) -> None:
    """64 MB on one line, a job in its middle."""
    line = job_line(Job("forward", 0, 0, 1_000), 0).encode()
    with (tmp_path / "workerlog.0").open("wb") as out:
        for i in range(64):
            out.write(b"\0" * (1 << 20) if i != 32 else line)
    tracemalloc.start()
    (log,) = read_paddle(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows(log) == [("forward", 0, 0, 1_000)]
    assert peak < 12 << 20


def test_jobs_without_times_and_jobs_logged_twice_are_counted(tmp_path: Path) -> None:
    job = job_line(Job("forward", 0, 5_000, 9_000), 0)
    nothing = job_line(Job("recv_forward", 0, -EPOCH_NS, -EPOCH_NS), 0)
    assert "job_start_time = 0.000000, job_end_time = 0.000000" in nothing
    backwards = job_line(Job("forward", 1, 20_000, 19_000), 0)
    log = one_line(tmp_path, f"{nothing}\n{job}\n{job}\n{backwards}\n")
    assert rows(log) == [("forward", 0, 5_000, 9_000)]
    assert log.left_out == {
        "jobs that ran nothing on the compute stream (time 0)": 1,
        "jobs that end before they start": 1,
        "jobs logged twice": 1,
    }
    assert log.warnings == (f"{tmp_path / 'workerlog.0'}: 1 jobs end before they start, the first in line 4",)


def test_times_as_the_writer_has_them_are_off_by_less_than_a_microsecond(tmp_path: Path) -> None:
    jobs = simulate(interleaved(2, 4, 2), lambda r, op: 1_000_000 + 12_345 * op.microbatch + r, transfer_ns=70_007)
    write_paddle(jobs, tmp_path, Variation(as_double=True))
    for mine, log in zip(jobs, read_paddle(tmp_path), strict=True):
        exact = np.array([[j.start_ns + EPOCH_NS, j.end_ns + EPOCH_NS] for j in sorted(mine, key=lambda j: j.start_ns)])
        off = exact - np.stack([log.start_ns, log.end_ns], axis=1)
        assert off.min() > -200
        assert 0 < off.max() < 1_200


def test_a_second_range_of_steps_is_told(tmp_path: Path) -> None:
    line = job_line(Job("forward", 0, 0, 1), 0)
    header = "Schedule Profiler start at step 3 and end at step 5\n"
    assert one_line(tmp_path, f"{header}{header}{line}\n").warnings == ()
    log = one_line(tmp_path, f"{header}{line}\n{header.replace('3', '7').replace('5', '9')}")
    assert (log.first_step, log.stop_step) == (3, 5)
    assert "several profiled ranges of steps (3 to 5, 7 to 9)" in log.warnings[0]


def test_other_files_of_the_launcher_are_left_alone_and_strays_are_named(tmp_path: Path) -> None:
    write_paddle(JOBS, tmp_path)
    (tmp_path / "default.abcdef.log").write_text("launch\n")
    (tmp_path / "workerlog").write_text("no number\n")
    (tmp_path / "endpoints.log").write_bytes(bytes(range(256)))
    (tmp_path / "checkpoint").mkdir()
    assert read_paddle(tmp_path)[0].warnings == ()
    (tmp_path / "rank_3.log").write_bytes((tmp_path / "workerlog.0").read_bytes())
    logs = read_paddle(tmp_path)
    assert len(logs) == 3
    assert logs[0].warnings == ("not read, as their names say no worker (workerlog.N): rank_3.log",)


def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    def told(folder: Path) -> str:
        with pytest.raises(InputError) as error:
            read_paddle(folder)
        return str(error.value)

    assert "there is no such folder" in told(tmp_path / "nowhere")
    assert "has no workerlog.N or machineM/workerlog.N" in told(tmp_path)
    (tmp_path / "workerlog.0").write_text("hello\n")
    assert "none of its 1 worker logs holds a job" in told(tmp_path)
    assert "is a file, not a folder" in told(tmp_path / "workerlog.0")
    (tmp_path / "machine0").mkdir()
    (tmp_path / "machine0" / "workerlog.0").write_text("hello\n")
    assert "holds both workerlog.N and machineM/workerlog.N" in told(tmp_path)
    (tmp_path / "workerlog.0").rename(tmp_path / "machine0" / "workerlog.00")
    assert "workerlog.00: has the number of workerlog.0 beside it" in told(tmp_path)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=8)), min_size=1, max_size=6)
)
def test_damage_is_an_error_or_is_counted_and_adds_no_job(edits: list[tuple[int, int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (path,) = write_paddle(JOBS[:1], folder, Variation(other_lines=1))
        text = path.read_bytes()
        for at, length, new in edits:
            at %= len(text)
            text = text[:at] + new + text[at + length :]
        path.write_bytes(text)
        try:
            (log,) = read_paddle(folder)
        except InputError as told:
            assert str(path) in str(told) or str(folder) in str(told)
            return
    assert len(log.start_ns) <= len(JOBS[0])
    assert (np.diff(log.start_ns) >= 0).all()
    assert (log.end_ns >= log.start_ns).all()


def test_hostile_numbers_in_names(tmp_path: Path) -> None:
    for place in ("machine0", "machine999999999"):
        write_paddle(simulate(gpipe(1, 1), equal_times()), tmp_path / place)
    (tmp_path / "machine0" / "workerlog.0").rename(tmp_path / "machine0" / "workerlog.999999999")
    logs = read_paddle(tmp_path)
    assert [log.machine for log in logs] == [0, 999_999_999]
    assert len(logs[0].warnings[0]) < 500
