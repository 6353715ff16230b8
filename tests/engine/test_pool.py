"""Jobs in processes: nothing is lost but what cannot be done, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import engine_tasks
import pytest
from engine_tasks import Task, attempts, in_time_order, processes

from graphlink.engine.pool import Lost, _Worker, session
from graphlink.engine.pool import run_all as run_in_processes

KILLED = Lost("its process was killed by signal 9, most likely for want of memory")
HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}"}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as on POSIX")


def run_all(
    work: Callable[[Task], int], tasks: list[Task], at_once: int, done: Callable[[int], None] = lambda _: None
) -> list[int | Lost]:
    return run_in_processes(work, tasks, at_once, done)


def some(folder: Path, count: int, **tries: int) -> list[Task]:
    return [Task(number, folder, tries.get(f"t{number}", 0)) for number in range(count)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_results_come_in_order_and_are_those_of_a_plain_loop(tmp_path: Path, at_once: int) -> None:
    told: list[int] = []
    got = run_all(engine_tasks.slow_square, some(tmp_path, 5), at_once, told.append)
    assert got == [engine_tasks.square(task) for task in some(tmp_path, 5)]
    assert told == [1, 2, 3, 4, 5]


def test_workers_are_used_again_and_none_is_this_process(tmp_path: Path) -> None:
    run_all(engine_tasks.square, some(tmp_path, 6), 1)
    (worker,) = processes(tmp_path)
    assert worker != os.getpid()
    assert not alive(worker)


def test_calls_of_one_session_share_workers_until_one_raises(tmp_path: Path) -> None:
    with session():
        run_all(engine_tasks.square, some(tmp_path, 4), 2)
        first = processes(tmp_path)
        run_all(engine_tasks.square, some(tmp_path, 6), 2)
        assert processes(tmp_path) == first
        assert all(alive(pid) for pid in first)
        with pytest.raises(KeyError):
            run_all(engine_tasks.reject_two, some(tmp_path, 4), 2)
        assert not any(alive(pid) for pid in processes(tmp_path))
        run_all(engine_tasks.square, some(tmp_path, 4), 2)
    assert not any(alive(pid) for pid in processes(tmp_path))


def test_a_single_task_runs_in_this_process_and_none_in_none(tmp_path: Path) -> None:
    told: list[int] = []
    assert run_all(engine_tasks.square, some(tmp_path, 1), 4, told.append) == [0]
    assert processes(tmp_path) == {os.getpid()}
    assert told == [1]
    assert run_all(engine_tasks.square, [], 4, told.append) == []


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("killed", [0, 2, 4])
def test_a_process_killed_in_the_middle_loses_nothing(tmp_path: Path, at_once: int, killed: int) -> None:
    told: list[int] = []
    assert run_all(engine_tasks.square, some(tmp_path, 5, **{f"t{killed}": 1}), at_once, told.append) == [
        0,
        1,
        4,
        9,
        16,
    ]
    assert [attempts(tmp_path, number) for number in range(5)] == [1 + (number == killed) for number in range(5)]
    assert told == [1, 2, 3, 4, 5]


def test_a_task_that_kills_each_process_is_lost_and_the_others_finish(tmp_path: Path) -> None:
    told: list[int] = []
    assert run_all(engine_tasks.square, some(tmp_path, 5, t1=9, t3=9), 2, told.append) == [0, KILLED, 4, KILLED, 16]
    assert [attempts(tmp_path, number) for number in range(5)] == [1, 2, 1, 2, 1]
    assert told == [1, 2, 3, 4, 5]


def test_the_second_try_is_alone_when_all_others_are_finished(tmp_path: Path) -> None:
    run_all(engine_tasks.square, some(tmp_path, 4, t0=1), 2)
    assert in_time_order(tmp_path)[-1] == "0.1"
    assert len({path.suffix for path in tmp_path.glob("0.*")}) == 2


def test_how_a_process_ended_is_told(tmp_path: Path) -> None:
    segfault = [Task(0, tmp_path, 2, signal.SIGSEGV), Task(1, tmp_path)]
    lost, one = run_all(engine_tasks.square, segfault, 2)
    assert isinstance(lost, Lost)
    assert lost.text.startswith("its process was killed by signal 11 (")
    assert one == 1
    assert run_all(engine_tasks.leave, some(tmp_path, 2), 2) == [Lost("its process ended with status 7")] * 2


def test_what_work_raises_is_raised_here_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(KeyError) as raised:
        run_all(engine_tasks.reject_two, some(tmp_path, 4), 2)
    assert raised.value.args == ("two", 2)
    assert "in reject_two" in str(raised.value.__cause__)


def test_an_exception_that_cannot_be_sent_comes_as_text(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Unpicklable: 1 and 2"):
        run_all(engine_tasks.raise_unpicklable, some(tmp_path, 2), 2)


def test_work_that_a_worker_cannot_import_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        run_all(engine_tasks.Unimportable(), some(tmp_path, 3), 2)


DYING = """
import functools, sys
from multiprocessing import resource_tracker, spawn
import engine_tasks
from graphlink.engine.pool import run_all
resource_tracker.ensure_running()
spawn.set_executable(sys.argv[1])
large = bytes(1 << 20)  # more than a pipe or a socket takes before somebody reads
sys.argv.append("a" * len(large))
print(run_all(functools.partial(engine_tasks.second, large), [large] * 3, 2, lambda _: None))
"""


def test_processes_that_die_before_they_read_anything_lose_their_tasks() -> None:
    dying = shutil.which("false")
    assert dying
    ran = subprocess.run(
        [sys.executable, "-c", DYING, dying], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr) == (f"{[Lost('its process ended with status 1')] * 3}\n", "")


def test_what_done_raises_kills_the_workers(tmp_path: Path) -> None:
    def stop(finished: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(engine_tasks.square, some(tmp_path, 6), 2, stop)
    assert not any(alive(pid) for pid in processes(tmp_path))


RUNNER = """
import signal, sys
from pathlib import Path
import engine_tasks
from graphlink.engine.pool import run_all
if __name__ == "__main__":
    def stop(number, frame):
        raise SystemExit(143)
    signal.signal(signal.SIGTERM, stop)
    try:
        run_all(engine_tasks.sleep_long, [engine_tasks.Task(n, Path(sys.argv[1])) for n in range(4)], 2, lambda _: None)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def start_runner(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start two workers of a program; what they began is in the folder that is returned as well."""
    script, work = folder / "runner.py", folder / "work"
    script.write_text(RUNNER)
    work.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(work)],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),  # in the background it may be ignored
    )
    return process, work


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("started", [False, True])
def test_a_signal_leaves_no_child(tmp_path: Path, number: int, status: int, started: bool) -> None:
    """As from a terminal: Ctrl-C goes to the whole group, SIGTERM to the parent; while workers start and while they
    work.
    """
    process, work = start_runner(tmp_path)
    deadline = time.monotonic() + 600
    while process.poll() is None and not (len(list(work.iterdir())) == 2 if started else group_size(process.pid) > 2):
        time.sleep(0.001)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (status, "")
    while time.monotonic() < deadline and group_size(
        process.pid
    ):  # the resource tracker ends when it sees that its parent did
        time.sleep(0.01)
    assert group_size(process.pid) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent ended")
@pytest.mark.parametrize("started", [False, True])
def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path, started: bool) -> None:
    process, work = start_runner(tmp_path)
    while process.poll() is None and not (len(list(work.iterdir())) == 2 if started else group_size(process.pid) > 2):
        time.sleep(0.001)
    process.kill()
    try:
        process.communicate(timeout=60)  # ends when all of them have closed its other end
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def group_size(group: int) -> int:
    """Processes of a process group, zombies left out."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return sum(int(line.split()[0]) == group and "Z" not in line for line in listed.splitlines())


def test_a_worker_whose_parent_goes_before_it_took_the_answer_ends_in_silence() -> None:
    worker = _Worker()
    worker.start()
    worker.give(0, len, "abc")
    assert worker.pipe.poll(60)
    worker.pipe.close()
    worker.process.join(60)
    assert worker.process.exitcode == 0
