"""Runs of several ranks that are killed, that fail in part, or that are done in two halves give the same bytes in the
end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import graphlink as graphlink_library
from graphlink.ranks.columns import rank_comms
from graphlink.run import state
from graphlink.run.job import Inputs, Options, prepare
from graphlink.run.out import out_of
from graphlink.run.records import RankRows
from graphlink.wings import Parts
from tests.cli.conftest import Ran
from tests.simulator.et import write_et
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run
from tests.simulator.programs import Training, training_program

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "graphlink"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
RANKS = 4
Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    for rank in range(RANKS):
        execution = run(training_program(1, Training(steps=2, layers=2, ranks=RANKS, rank=rank)))
        write_et(execution, folder / f"et_{rank}.json")
        write_kineto(execution, folder / f"kineto_{rank}.json")
    return folder


@pytest.fixture(scope="module")
def whole(graphlink_once: Run, four: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert graphlink_once(four, "--out", out, "-q").status == 0
    return published(out)


def published(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(out.iterdir()) if p.is_file()}


def killed_when(four: Path, out: Path, moment: Callable[[], bool]) -> None:
    """Kill a run of the command in processes of its own at a moment, or let it end before that."""
    process = subprocess.Popen([*COMMAND, str(four), "--out", str(out), "-q", "--jobs", "2"], env=ENVIRONMENT)
    while process.poll() is None and not moment():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def resumed(graphlink: Run, four: Path, whole: dict[str, bytes], out: Path) -> None:
    assert not (out / "summary.json").exists() or published(out) == whole, "half an output never shows as a whole one"
    assert graphlink(four, "--out", out, "-q", "--resume").status == 0
    assert published(out) == whole
    assert not (out / ".graphlink").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("ranks", [1, pytest.param(RANKS, marks=pytest.mark.long)])
def test_killed_when_some_ranks_are_done_and_resumed(
    graphlink: Run, four: Path, whole: dict[str, bytes], tmp_path: Path, ranks: int
) -> None:
    out = tmp_path / "out"
    killed_when(four, out, lambda: len([*(out / ".graphlink" / "ranks").glob("[!t]*")]) >= ranks)
    resumed(graphlink, four, whole, out)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_and_resumed(
    graphlink: Run, four: Path, whole: dict[str, bytes], tmp_path: Path, seed: int
) -> None:
    until = time.monotonic() + random.Random(seed).uniform(0.2, 4.0)
    killed_when(four, tmp_path / "out", lambda: time.monotonic() > until)
    resumed(graphlink, four, whole, tmp_path / "out")


def test_done_ranks_are_not_done_again(graphlink: Run, four: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    traces, out = tmp_path / "traces", tmp_path / "out"
    shutil.copytree(four, traces)
    text = (traces / "kineto_2.json").read_text()
    (traces / "kineto_2.json").write_text(text[: len(text) // 2])
    ran = graphlink(traces, "--out", out)
    assert ran.status == 3
    assert "1 of 4 ranks failed" in ran.err and "kineto_2.json" in ran.err and "--resume" in ran.err
    assert published(out) == {} and len(ran.err.splitlines()) <= 5
    assert len(list((out / ".graphlink" / "ranks").iterdir())) == 3
    (traces / "kineto_2.json").write_text(text)
    ran = graphlink(traces, "--out", out, "--resume", "-v")
    assert ran.status == 0 and "3 of 4 ranks are done already" in ran.err
    assert [name for name, data in published(out).items() if data != whole[name]] == ["summary.json"], (
        "which names the files"
    )


def test_partial_publishes_the_others(graphlink: Run, four: Path, tmp_path: Path) -> None:
    traces, out = tmp_path / "traces", tmp_path / "out"
    shutil.copytree(four, traces)
    text = (traces / "kineto_2.json").read_text()
    (traces / "kineto_2.json").write_text(text[: len(text) // 2])
    assert graphlink(traces, "--out", out, "--partial").status == 3
    summary = json.loads((out / "summary.json").read_text())
    assert [r["rank"] for r in summary["ranks"]] == [0, 1, 3]
    assert any("kineto_2.json" in w for w in summary["warnings"])
    assert not (out / "trace.2.et").exists()


def test_jobs_of_single_ranks_and_join_are_the_same(
    graphlink: Run, four: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for rank in (2, 0, 3, 1):
        pair = ["--et", four / f"et_{rank}.json", "--kineto", four / f"kineto_{rank}.json"]
        assert graphlink("link", "--rank-job", *pair, "--out", out, "-q").status == 0
        assert published(out) == {}
    assert graphlink("join", out, "-q").status == 0
    assert published(out) == whole
    assert not (out / ".graphlink").exists()


def test_joining_says_who_is_missing(graphlink: Run, four: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for rank in (0, 2):
        ran = graphlink("link", "--rank-job", "--kineto", four / f"kineto_{rank}.json", "--out", out)
        assert ran.status == 0 and f"rank {rank}: kept in" in ran.out
    strict = graphlink("join", out, "--strict")
    assert strict.status == 1 and "no job of rank 1, 3 of 4 ranks" in strict.err
    ran = graphlink("join", out)
    assert ran.status == 0 and "no job of rank 1, 3 of 4 ranks" in ran.out


def test_nothing_to_join(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink("join", tmp_path)
    assert ran.status == 1 and "holds no jobs of ranks to join" in ran.err


def test_jobs_with_other_options_are_not_joined(graphlink: Run, four: Path, tmp_path: Path) -> None:
    for rank, gap in ((0, "20"), (1, "50")):
        graphlink("link", "--rank-job", "--kineto", four / f"kineto_{rank}.json", "--out", tmp_path, "--gap-us", gap)
    ran = graphlink("join", tmp_path)
    assert ran.status == 1 and "differ in --gap-us" in ran.err


def test_two_jobs_of_one_rank_are_not_joined(graphlink: Run, four: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    shutil.copy(four / "kineto_0.json", again)
    for path in (four / "kineto_0.json", four / "kineto_1.json", again):
        assert graphlink("link", "--rank-job", "--kineto", path, "--out", tmp_path / "out").status == 0
    ran = graphlink("join", tmp_path / "out")
    assert ran.status == 1 and "say that they are rank 0" in ran.err
    assert "again.json" in ran.err and "kineto_0.json" in ran.err and published(tmp_path / "out") == {}


def test_a_recording_that_is_gone_when_a_job_is_resumed(graphlink: Run, four: Path, tmp_path: Path) -> None:
    trace = tmp_path / "kineto_0.json"
    shutil.copy(four / "kineto_0.json", trace)
    command = ("link", "--rank-job", "--kineto", trace, "--out", tmp_path / "out", "--resume")
    assert graphlink(*command).status == 0
    trace.unlink()
    ran = graphlink(*command)
    assert ran.status == 1 and f"{trace}: there is no such file" in ran.err


@pytest.mark.parametrize("name", ["a.json", "kineto_7.json"])
def test_the_job_of_one_rank_finds_a_lone_recording_by_what_it_holds(
    graphlink: Run, four: Path, tmp_path: Path, name: str
) -> None:
    shutil.copy(four / "kineto_3.json", tmp_path / name)
    for k, given in enumerate(([tmp_path], ["--kineto", tmp_path / "*.json"])):
        ran = graphlink("link", "--rank-job", *given, "--rank", 3, "--out", tmp_path / str(k))
        assert ran.status == 0 and "rank 3: kept in" in ran.out
        other = graphlink("link", "--rank-job", *given, "--rank", 2, "--out", tmp_path / str(k))
        assert other.status == 1 and "there is no recording of rank 2, but of 3" in other.err


@pytest.mark.parametrize(
    "more",
    [
        ["--keep-unmatched"],
        ["--name", "other"],
        ["--linked"],
        ["--no-timeline"],
        ["--host", "launches"],
        ["--range-rule", "x(?P<phase>F)"],
    ],
)
def test_a_whole_output_is_not_taken_for_one_of_other_options(
    graphlink: Run, four: Path, tmp_path: Path, more: list[str]
) -> None:
    pair = ["--kineto", four / "kineto_0.json", "--et", four / "et_0.json"]
    assert graphlink(*pair, "--out", tmp_path).status == 0
    assert graphlink(*pair, "--out", tmp_path, "--resume").status == 0
    ran = graphlink(*pair, "--out", tmp_path, "--resume", *more)
    assert ran.status == 1 and "holds the outputs of an earlier run" in ran.err


def test_a_whole_output_is_not_taken_for_one_of_changed_recordings(graphlink: Run, four: Path, tmp_path: Path) -> None:
    traces, out = tmp_path / "traces", tmp_path / "out"
    shutil.copytree(four, traces)
    assert graphlink(traces, "--out", out).status == 0
    shutil.copy(four / "kineto_1.json", traces / "kineto_1.json")
    ran = graphlink(traces, "--out", out, "--resume")
    assert ran.status == 1 and "holds the outputs of an earlier run" in ran.err


def test_outputs_of_another_run_are_not_replaced_without_force(graphlink: Run, four: Path, tmp_path: Path) -> None:
    assert graphlink(four, "--out", tmp_path).status == 0
    before = published(tmp_path)
    command = ("--kineto", four / "kineto_0.json", four / "kineto_1.json", "--out", tmp_path)
    assert graphlink("link", "--rank-job", *command).status == 0
    ran = graphlink(*command, "--resume")
    assert ran.status == 1 and "holds the outputs of an earlier run" in ran.err
    assert published(tmp_path) == before
    assert graphlink(*command, "--resume", "--force").status == 0
    assert len(published(tmp_path)) < len(before)


def test_a_run_that_was_killed_when_all_was_published_is_gone_on_with(
    graphlink: Run, four: Path, tmp_path: Path
) -> None:
    assert graphlink(four, "--out", tmp_path).status == 0
    before = published(tmp_path)
    assert graphlink("link", "--rank-job", four, "--out", tmp_path).status == 0
    assert graphlink(four, "--out", tmp_path, "--resume").status == 0
    assert published(tmp_path) == before and not (tmp_path / ".graphlink").exists()


def test_a_job_of_a_recording_that_changed_since_is_not_joined(graphlink: Run, four: Path, tmp_path: Path) -> None:
    recording, out = tmp_path / "kineto_0.json", tmp_path / "out"
    shutil.copy(four / "kineto_0.json", recording)
    assert graphlink("link", "--rank-job", "--kineto", recording, "--out", out).status == 0
    recording.write_text("{")
    assert graphlink("link", "--rank-job", "--kineto", recording, "--out", out).status == 1
    ran = graphlink("join", out)
    assert ran.status == 1 and "holds no jobs of ranks to join" in ran.err


def test_jobs_with_other_side_files_or_other_members_are_done_again(four: Path, tmp_path: Path) -> None:
    dump = tmp_path / "d_rank_0.json"
    dump.write_text("[]")
    inputs = Inputs(kineto=four / "kineto_0.json", nccl=(dump,), members=(("7", (0, 1)),))
    out, options = out_of(str(tmp_path / "out")), Options(timeline="none")
    bare = replace(inputs, nccl=(), members=())
    prepared = prepare(bare, options)
    comms = rank_comms(prepared.built.graph, prepared.linked, prepared.comm, 0, 4)
    state.save(out, inputs, options, prepared, RankRows(comms, (), Parts(), 1))
    assert state.found(out, inputs, options) is not None
    assert state.found(out, replace(inputs, members=(("7", (0, 2)),)), options) is None
    assert state.found(out, bare, options) is None
    dump.write_text("[ ]")
    assert state.found(out, inputs, options) is None


CUT = "tmp-{}-999999999-x"  # of a process that does not live


@pytest.fixture(scope="module")
def one(graphlink_once: Run, four: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of one rank."""
    out = tmp_path_factory.mktemp("one") / "out"
    pair = ["--kineto", four / "kineto_0.json", "--et", four / "et_0.json"]
    assert graphlink_once(*pair, "--out", out, "--sync", "cuda", "--no-timeline", "-q").status == 0
    return out


def cut(one: Path, out: Path) -> Path:
    """A copy of ``one`` as a kill left it when all old files were moved aside and the new graph was moved in."""
    shutil.copytree(one, out)
    aside = out / ".graphlink" / CUT.format(socket.gethostname().replace("-", "_")) / "old"
    aside.mkdir(parents=True)
    names = sorted(published(out))
    for name in names:
        (out / name).rename(aside / name)
    (aside.parent / "journal.json").write_text(json.dumps({"old": names, "new": names}))
    for name in names[1:]:
        (aside.parent / name).write_text("new")
    (out / names[0]).write_text("new")
    return out


@pytest.mark.parametrize(
    "verb",
    [
        "show",
        "check",
        "replay",
        "critical-path",
        "critical-path --across",
        "astra --force",
        "show trace.0.et --node 3",
        "check trace.0.et",
    ],
)
def test_every_verb_sees_a_folder_as_it_was_before_a_kill(graphlink: Run, one: Path, tmp_path: Path, verb: str) -> None:
    name, *rest = verb.split()
    inner = rest.pop(0) if rest and rest[0].endswith(".et") else ""
    shutil.copytree(one, tmp_path / "sound")
    before = published(one)
    expected = graphlink(name, tmp_path / "sound" / inner, *rest)
    ran = graphlink(name, cut(one, tmp_path / "cut") / inner, *rest)
    assert ran.status == expected.status
    said, wanted = (" ".join(out.split()) for out in (ran.out, expected.out))  # lines break by the length of names
    assert said.replace(str(tmp_path / "cut"), "X") == wanted.replace(str(tmp_path / "sound"), "X")
    assert before.items() <= published(tmp_path / "cut").items() and not (tmp_path / "cut" / ".graphlink").exists()


def test_the_library_opens_a_folder_as_it_was_before_a_kill(one: Path, tmp_path: Path) -> None:
    run = graphlink_library.open(cut(one, tmp_path / "cut"))
    assert run.summary == graphlink_library.open(one).summary
    assert published(one).items() <= published(tmp_path / "cut").items()


def test_a_finished_folder_keeps_no_copies(graphlink: Run, four: Path, one: Path, tmp_path: Path) -> None:
    out = cut(one, tmp_path / "out")
    (out / ".graphlink" / "ranks" / CUT.format(socket.gethostname().replace("-", "_"))).mkdir(parents=True)
    command = (
        "--kineto",
        four / "kineto_0.json",
        "--et",
        four / "et_0.json",
        "--out",
        out,
        "--sync",
        "cuda",
        "--no-timeline",
        "--resume",
    )
    ran = graphlink(*command)
    assert ran.status == 0 and "was complete already" in ran.out, ran
    assert published(out) == published(one) and not (out / ".graphlink").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("moves", [1, 4, pytest.param(5, marks=pytest.mark.long)])
def test_killed_between_two_moves(graphlink: Run, four: Path, one: Path, tmp_path: Path, moves: int) -> None:
    out = Path(shutil.copytree(one, tmp_path / "out"))
    program = (
        "import os, sys\nfrom graphlink.cli import main\nleft = [int(sys.argv.pop(1))]\n"
        "def watch(event, given):\n"
        "    if event == 'os.rename':\n"
        "        left[0] -= 1\n"
        "        if left[0] < 0: os.kill(os.getpid(), 9)\n"
        "sys.addaudithook(watch)\nmain()\n"
    )
    command = [
        sys.executable,
        "-c",
        program,
        str(moves),
        "--kineto",
        str(four / "kineto_1.json"),
        "--out",
        str(out),
        "--force",
    ]
    ran = subprocess.run([*command, "--sync", "cuda", "--no-timeline", "-q"], env=ENVIRONMENT, check=False)
    assert ran.returncode == -signal.SIGKILL and published(out) != published(one)
    assert graphlink("show", out).status == 0
    assert published(out) == published(one) and not (out / ".graphlink").exists()
