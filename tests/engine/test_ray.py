"""Jobs on a real Ray cluster of this machine: the same answers as processes give, and as little lost."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import engine_tasks
import pytest
from engine_tasks import Task, attempts, in_time_order, processes

from graphlink.cli import main
from graphlink.engine import pool
from graphlink.engine import ray as on_ray
from graphlink.engine.pool import Lost
from graphlink.engine.ray import RETRIES
from graphlink.errors import InputError, UsageError
from tests.simulator import Training, run, training_program, write_kineto

HERE = Path(__file__).parent
PATH = f"{HERE.parents[1]}{os.pathsep}{HERE}"  # where nodes find this tree and the work of these tests


def run_all_on_ray(
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    at_once: int | None = None,
    done: Callable[[int], None] = lambda _: None,
    estimates_bytes: Sequence[int] | None = None,
) -> list[Any]:
    return on_ray.run_all_on_ray(
        work, tasks, at_once, done, [1] * len(tasks) if estimates_bytes is None else estimates_bytes
    )


def some(folder: Path, count: int, **tries: int) -> list[Task]:
    return [Task(number, folder, tries.get(f"t{number}", 0)) for number in range(count)]


@pytest.fixture(scope="module")  # which takes far longer to start than most tests of it take: these are long
def cluster() -> Iterator[str]:
    """Address of a cluster that this process is connected to."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' in a clone of graphlink")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATH)
        patch.delenv("RAY_ADDRESS", raising=False)
        problem = ""
        try:  # it gives its parts a fixed time to start, which a busy machine may not keep
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as raised:  # noqa: BLE001
            problem = repr(raised)
            ray.shutdown()
        if problem:
            gc.collect()  # its processes, which Python tells of when it collects them, would be the next test's
            pytest.skip(f"Ray does not start on this machine: {problem}")
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()
    signal.signal(signal.SIGTERM, before)


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files open


@pytest.mark.long
@pytest.mark.parametrize("at_once", [None, 1, 3])
def test_results_come_in_order_and_are_those_of_processes(cluster: str, tmp_path: Path, at_once: int | None) -> None:
    told: list[int] = []
    tasks = some(tmp_path, 6)
    got = run_all_on_ray(engine_tasks.slow_square, tasks, at_once, told.append)
    assert os.getpid() not in processes(tmp_path)
    assert got == pool.run_all(engine_tasks.slow_square, tasks, 2, lambda _: None) == [0, 1, 4, 9, 16, 25]
    assert told == [1, 2, 3, 4, 5, 6]
    assert run_all_on_ray(engine_tasks.square, []) == []


def test_a_run_on_a_cluster_writes_what_processes_write(cluster: str, tmp_path: Path) -> None:
    for rank in range(2):
        execution = run(training_program(1, Training(steps=1, layers=1, ranks=2, rank=rank)))
        write_kineto(execution, tmp_path / f"kineto_{rank}.json")
    for engine in ("pool", "ray"):
        given = ["--kineto", str(tmp_path / "kineto_*.json"), "--engine", engine]
        assert main([*given, "--out", str(tmp_path / engine), "--no-timeline", "-q"]) == 0
    by_pool, by_ray = (
        {path.name: path.read_bytes() for path in (tmp_path / engine).iterdir()} for engine in ("pool", "ray")
    )
    assert by_pool == by_ray


@pytest.mark.long
def test_no_more_than_at_once_are_under_way(cluster: str, tmp_path: Path) -> None:
    run_all_on_ray(engine_tasks.slow_square, some(tmp_path, 4), 1)
    assert in_time_order(tmp_path) == ["0.0", "1.0", "2.0", "3.0"]  # though the first is slow


@pytest.mark.long
def test_names_are_relative_to_the_folder_of_who_asks(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):  # a cluster that was started in another folder, and asked from two
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert run_all_on_ray(os.path.abspath, ["a", "b"]) == [str(tmp_path / name / "a"), str(tmp_path / name / "b")]


@pytest.mark.long
def test_a_worker_killed_in_the_middle_loses_nothing(
    cluster: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[int] = []
    assert run_all_on_ray(engine_tasks.square, some(tmp_path, 4, t2=1), done=told.append) == [0, 1, 4, 9]
    assert [attempts(tmp_path, number) for number in range(4)] == [1, 1, 2, 1]
    assert told == [1, 2, 3, 4]
    assert capfd.readouterr().out == ""


@pytest.mark.long
def test_a_task_that_kills_each_worker_is_lost_and_the_others_finish(cluster: str, tmp_path: Path) -> None:
    zero, lost, four = run_all_on_ray(engine_tasks.square, some(tmp_path, 3, t1=99))
    assert (zero, four) == (0, 4)
    assert isinstance(lost, Lost)
    assert lost.text.startswith("its process, or the node under it, went away 5 times")
    assert attempts(tmp_path, 1) == RETRIES + 1


@pytest.mark.long
def test_what_work_raises_is_raised_here(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(KeyError) as raised:
        run_all_on_ray(engine_tasks.reject_two, some(tmp_path, 4))
    assert type(raised.value) is KeyError
    assert raised.value.args == ("two", 2)
    assert "in reject_two" in str(raised.value.__cause__)


@pytest.mark.long
def test_an_estimate_above_what_a_node_has_does_not_wait_for_ever(cluster: str, tmp_path: Path) -> None:
    assert run_all_on_ray(engine_tasks.square, some(tmp_path, 2), estimates_bytes=[10**6, 10**15]) == [0, 1]


@pytest.mark.long
def test_a_node_without_the_module_is_told(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def work(task): return task\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    with pytest.raises(InputError, match="a node of the Ray cluster has no module only_here"):
        run_all_on_ray(only_here.work, [1, 2])


RUNNER = """
import signal, sys
from pathlib import Path
import engine_tasks
from graphlink.engine.ray import run_all_on_ray
def stop(number, frame):
    raise SystemExit(143)
signal.signal(signal.SIGTERM, stop)
tasks = [engine_tasks.Task(n, Path(sys.argv[2]), n == 1) for n in range(3)]
try:
    done = run_all_on_ray(getattr(engine_tasks, sys.argv[1]), tasks, None, lambda _: None, [1] * len(tasks))
    print(done, signal.getsignal(signal.SIGTERM) is stop)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps its sockets, whose names must be short."""
    with tempfile.TemporaryDirectory(prefix="gl", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def runner(work: str, tmp_path: Path, ray_folder: Path, **more: str) -> subprocess.Popen[str]:
    (tmp_path / "runner.py").write_text(RUNNER)
    (tmp_path / "work").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "runner.py"), work, str(tmp_path / "work")],
        env={**environment, "PYTHONPATH": PATH, "RAY_TMPDIR": str(ray_folder), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),  # in the background it may be ignored
    )


def left_of(ray_folder: Path) -> list[str]:
    """Processes of the cluster that lives there, once it has had time to end."""
    deadline = time.monotonic() + 600
    while True:
        listed = subprocess.run(["ps", "-A", "-o", "stat=,args="], capture_output=True, text=True, check=True).stdout
        found = [line for line in listed.splitlines() if str(ray_folder) in line and not line.startswith("Z")]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@pytest.mark.long
def test_without_a_cluster_one_is_started_and_ended_in_silence(tmp_path: Path, ray_folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' in a clone of graphlink")
    process = runner("square", tmp_path, ray_folder)
    out, _ = process.communicate(timeout=600)
    assert (process.returncode, out) == (0, "[0, 1, 4] True\n")
    assert attempts(tmp_path / "work", 1) == 2
    assert any(ray_folder.iterdir())
    assert left_of(ray_folder) == []


def stopped(process: subprocess.Popen[str], work: Path, number: int) -> tuple[int, str]:
    """Status and output of a runner that gets a signal while a task runs."""
    deadline = time.monotonic() + 600
    while not any(work.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=600)
    return process.returncode, out


@pytest.mark.long
def test_a_signal_ends_the_cluster_too(tmp_path: Path, ray_folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' in a clone of graphlink")
    process = runner("sleep_long", tmp_path, ray_folder)
    assert stopped(process, tmp_path / "work", signal.SIGTERM) == (143, "")
    assert left_of(ray_folder) == []


@pytest.mark.long
def test_ctrl_c_cancels_what_a_running_cluster_works_on(cluster: str, tmp_path: Path, ray_folder: Path) -> None:
    process = runner("sleep_long", tmp_path, ray_folder, RAY_ADDRESS=cluster)
    assert stopped(process, tmp_path / "work", signal.SIGINT) == (130, "")
    (tmp_path / "after").mkdir()  # both cores are free again
    assert run_all_on_ray(engine_tasks.square, some(tmp_path / "after", 2)) == [0, 1]


@pytest.mark.long
def test_a_running_cluster_is_joined_and_left_running(cluster: str, tmp_path: Path, ray_folder: Path) -> None:
    process = runner("square", tmp_path, ray_folder, RAY_ADDRESS=cluster)
    out, _ = process.communicate(timeout=600)
    assert (process.returncode, out) == (0, "[0, 1, 4] True\n")
    (tmp_path / "after").mkdir()
    assert run_all_on_ray(engine_tasks.square, some(tmp_path / "after", 2)) == [0, 1]
    assert not any(ray_folder.iterdir())


@pytest.mark.long
def test_an_address_where_nothing_answers_is_told_at_once() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' in a clone of graphlink")
    environment = {**os.environ, "PYTHONPATH": PATH, "RAY_ADDRESS": "127.0.0.1:1"}
    code = "from graphlink.engine.ray import run_all_on_ray; run_all_on_ray(abs, [1, 2], None, print, [1, 1])"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert "InputError: no Ray cluster answers at 127.0.0.1:1 (" in ran.stderr


def test_without_ray_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as raised:
        run_all_on_ray(abs, [1, 2])
    assert raised.value.text() == "--engine ray needs Ray\n  do: pip install '.[ray]' in a clone of graphlink"
