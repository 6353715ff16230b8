"""What only a process of its own shows."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "graphlink"]
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys, graphlink.cli as cli
try: cli.main(['--help'])
except SystemExit: pass
print([m for m in ('numpy', 'google', 'msgspec', 'rich') if m in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("[]\n")


def test_an_error_leaves_no_traceback(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*COMMAND, "--kineto", "none.json"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, tree(tmp_path)) == (1, "", [])
    assert ran.stderr.startswith("graphlink: none.json: ")


def waits_for_more(pid: int, pipe: int) -> bool:
    """Whether a process has read a pipe empty and sleeps. A signal right before it sleeps would wait with it: Python
    asks no later.
    """
    unread = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return unread == 0 and state == "S"


@pytest.mark.skipif(sys.platform != "linux", reason="named pipes and signals as on Linux")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: int, status: int) -> None:
    fifo = tmp_path / "kineto.json"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [*COMMAND, "--kineto", str(fifo), "--out", str(tmp_path / "out")],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            number, signal.SIG_DFL
        ),  # a shell lets what it runs in the background ignore SIGINT
    )
    with process, fifo.open("w") as writer:  # opens once the job reads
        writer.write('{"traceEvents": [')
        writer.flush()
        try:
            while not waits_for_more(process.pid, writer.fileno()):
                assert process.poll() is None
                time.sleep(0.01)
            assert (tmp_path / "out").exists()
            process.send_signal(number)
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    assert (process.returncode, out) == (status, "")
    assert len(err.splitlines()) == 1
    assert tree(tmp_path) == ["kineto.json"]


def test_the_reader_of_the_output_goes_away(traces: Path, tmp_path: Path) -> None:
    line = f"{sys.executable} -m graphlink --kineto {traces / 'kineto_0.json'} --out {tmp_path / 'out'} | true"
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_no_room_for_the_outputs(traces: Path, tmp_path: Path) -> None:
    line = f"ulimit -f 8; {sys.executable} -m graphlink --kineto {traces / 'kineto_0.json'} --out {tmp_path / 'out'}"
    ran = subprocess.run(["bash", "-c", line], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "cannot be written" in ran.stderr
    assert len(ran.stderr.splitlines()) <= 5
    assert tree(tmp_path) == []


def test_verbose_says_a_line_a_stage_and_else_there_is_none(traces: Path, tmp_path: Path) -> None:
    arguments = ["--kineto", str(traces / "kineto_0.json"), "--out", str(tmp_path / "out")]
    ran = subprocess.run([*COMMAND, *arguments, "-v"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert [
        word
        for word in ("reading", "linking", "dependencies", "checking", "writing", "replaying")
        if word not in ran.stderr
    ] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full as on Linux")
def test_a_summary_that_cannot_be_printed_publishes_nothing(traces: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*COMMAND, "--kineto", str(traces / "kineto_0.json"), "--out", str(tmp_path / "out")],
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, tree(tmp_path)) == (1, [])
    assert ran.stderr.startswith("graphlink: standard output: cannot be written")
    assert len(ran.stderr.splitlines()) == 2


RUN_LINES = """
import contextlib, io, json, sys
from graphlink.cli import main
said = []
for line in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(line)
    said.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(said))
"""
WITHOUT_POWERS = [
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
]  # root then obeys permissions like everybody


@pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root without setpriv may write everywhere"
)
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_folders_and_files_without_permission(traces: Path, tmp_path: Path, mode: int) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "mine").write_text("mine")
    kineto = str(traces / "kineto_0.json")
    command = [*(WITHOUT_POWERS if os.geteuid() == 0 else []), sys.executable, "-c", RUN_LINES]
    closed.chmod(mode)
    try:
        lines = [
            ["--kineto", kineto, "--out", str(closed)],
            ["--kineto", kineto, "--out", str(closed / "new")],
            ["--kineto", str(closed / "kineto_0.json"), "--out", str(tmp_path / "out")],
            [str(closed), "--out", str(tmp_path / "out")],
        ]
        ran = subprocess.run([*command, json.dumps(lines)], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    finally:
        closed.chmod(0o755)
    for status, out, err in json.loads(ran.stdout):
        assert (status, out) == (1, "")
        assert err.startswith(f"graphlink: {closed}")
        assert 2 <= len(err.splitlines()) <= 5
    assert tree(tmp_path) == ["closed", "closed/mine"]
