from __future__ import annotations

import re
from pathlib import Path

from tests.simulator.paddle import EPOCH_NS, Job, Variation, job_line, write_paddle

# what Paddle's own tool looks for: numbers of words, and times with a point
PADDLES = re.compile(
    r"Profiler Info: Job \((\d+)\), type = (\w+), micro_batch_id = (\d+), job_start_time = (\d+.\d+), job_end_time = (\d+.\d+)"
)


def test_a_line_is_as_paddle_writes_it() -> None:
    job = Job("forward", 2, 213_760_986, 254_006_104)
    assert job_line(job, 3) == (
        "I1020 09:15:07.265326 22317 standalone_executor.cc:217] Profiler Info: Job (3), type = forward, "
        "micro_batch_id = 2, "
        "job_start_time = 1697793307213.760986, job_end_time = 1697793307254.006104"
    )
    assert "micro_batch_id" not in job_line(job, 3, Variation(microbatch_field=False))


def test_a_double_of_ms_is_what_paddles_sample_shows() -> None:
    """213.761 ms after the epoch of these runs reads .760986: whole us, in a double."""
    line = job_line(Job("forward", 2, 213_761_999, 254_006_104), 3, Variation(as_double=True))
    assert "job_start_time = 1697793307213.760986, job_end_time = 1697793307254.006104" in line


def test_paddles_own_tool_would_read_what_is_written(tmp_path: Path) -> None:
    jobs = [Job("forward", k, 1_000 * k, 1_000 * k + 700, chunk=k % 2) for k in range(4)] + [
        Job("optimizer", 0, 9_000, 9_999)
    ]
    (path,) = write_paddle(
        [jobs], tmp_path, Variation(number="type", other_lines=5, lost=frozenset({(0, 1)}), clock_ns=(3_000_000,))
    )
    assert PADDLES.findall(path.read_text()) == [
        (n, kind, str(mb), ms(start), ms(end))
        for n, kind, mb, start, end in (
            ("0", "forward0", 0, 0, 700),
            ("1", "forward0", 2, 2_000, 2_700),
            ("1", "forward1", 3, 3_000, 3_700),
            ("0", "optimizer", 0, 9_000, 9_999),
        )
    ]


def ms(ns: int) -> str:
    whole, rest = divmod(EPOCH_NS + 3_000_000 + ns, 1_000_000)
    return f"{whole}.{rest:06d}"


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    jobs = [[Job("forward", 0, 0, 1)], []]
    vary = Variation(machines=2, other_lines=9, seed=4)
    first, second = (write_paddle(jobs, tmp_path / name, vary) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert [str(path.relative_to(tmp_path / "a")) for path in first] == ["machine0/workerlog.0", "machine1/workerlog.0"]
    assert first[1].read_bytes() == b""
