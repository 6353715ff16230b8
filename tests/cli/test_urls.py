"""Recordings and outputs on other file systems: local ones by URL, fsspec's memory, and S3 as moto plays it on this
machine.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphlink.engine import files
from graphlink.engine.memory import USUAL_PACKING
from graphlink.errors import InputError, OutputError
from graphlink.run.discover import standins
from graphlink.run.discover.pairing import Discovered
from graphlink.run.discover.standins import Standins
from graphlink.run.fetch import unpacked_size
from graphlink.run.job import Inputs
from graphlink.run.out import out_of
from tests.simulator.et import write_et
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run
from tests.simulator.programs import Training, training_program

fsspec = pytest.importorskip(
    "fsspec", reason="fsspec is not installed: pip install '.[remote]' in a clone of graphlink"
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of moto and botocore
RANKS = 3
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    for rank in range(RANKS):
        execution = run(training_program(1, Training(steps=1, layers=2, ranks=RANKS, rank=rank)))
        write_et(execution, folder / f"et_{rank}.json")
        write_kineto(execution, folder / f"kineto_{rank}.json")
    return folder


@pytest.fixture(scope="module")
def whole(three: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run from and to folders of this machine writes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    subprocess.run([sys.executable, "-m", "graphlink", str(three), "--out", str(out), "-q"], check=True)
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


@pytest.fixture
def root(s3: str) -> str:
    """URL of a folder of its own on S3."""
    return f"{s3}/{uuid.uuid4().hex}"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process and its workers."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def contents(url: str) -> dict[str, bytes]:
    """All below a folder, by name."""
    system, root = fsspec.core.url_to_fs(url)
    system.invalidate_cache()
    return {path.removeprefix(root.rstrip("/") + "/"): system.cat_file(path) for path in system.find(root)}


def differing(url: str, whole: dict[str, bytes], tmp_path: Path) -> list[str]:
    there = contents(url)
    assert sorted(there) == sorted(whole), "and nothing is left of the jobs"
    return [name for name, data in there.items() if data != whole[name]]


def put(folder: Path, url: str) -> str:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files.put_file(path, f"{url}/{path.relative_to(folder).as_posix()}")
    return url


def test_by_file_urls_all_bytes_are_those_of_a_local_run_but_for_the_names_of_inputs(
    graphlink: Run, three: Path, whole: dict[str, bytes], tmp_path: Path, temporary: Path
) -> None:
    out = tmp_path / "out"
    ran = graphlink(f"file://{three}/", "--out", f"file://{out}/", "--jobs", "2")
    assert ran.status == 0 and f"to file://{out}/" in " ".join(ran.out.split())
    assert differing(f"file://{out}", whole, tmp_path) == ["summary.json"]
    assert (out / "summary.json").read_text().replace(f"file://{three}", str(three)) == whole["summary.json"].decode()
    assert not list(out.glob(".*")) and not list(temporary.iterdir())


def test_patterns_and_one_end_of_the_way_by_url(
    graphlink: Run, three: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    patterns = ("--kineto", f"file://{three}/kineto_*.json", "--et", f"file://{three}/et_[0-9].json")
    assert graphlink(*patterns, "--out", tmp_path / "local", "-q").status == 0
    assert graphlink(three, "--out", f"file://{tmp_path}/remote", "-q").status == 0
    for name in ("local", "remote"):
        there = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.is_file()}
        assert {n for n, data in there.items() if data != whole[n]} <= {"summary.json"} and len(there) == len(whole)


def test_files_behind_urls_are_taken_for_what_they_are(
    graphlink: Run, three: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    files_of_all = [f"file://{path}" for path in sorted(three.iterdir())]
    for name, given in (("files", files_of_all), ("pattern", [f"file://{three}/*.json"])):
        assert graphlink(*given, "--out", tmp_path / name, "--jobs", "1", "-q").status == 0
        there = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.is_file()}
        assert {n for n, data in there.items() if data != whole[n]} <= {"summary.json"} and len(there) == len(whole)
    assert graphlink(f"file://{three}/kineto_0.json", "--out", tmp_path / "one", "-q").status == 0
    assert graphlink("--kineto", f"file://{three}/kineto_0.json", "--out", tmp_path / "flag", "-q").status == 0
    assert contents(f"file://{tmp_path}/one") == contents(f"file://{tmp_path}/flag")
    assert "no Kineto trace given" in told(
        graphlink(f"file://{three}/et_0.json", "--out", tmp_path / "none"), f"file://{three}/et_0.json", 2
    )


def test_a_single_pair_in_memory_and_force(graphlink: Run, three: Path, tmp_path: Path) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    put(three, f"{root}/in")
    pair = ("--kineto", f"{root}/in/kineto_1.json", "--et", f"{root}/in/et_1.json", "--out", f"{root}/out")
    assert graphlink(*pair).status == 0
    first = contents(f"{root}/out")
    assert json.loads(first["summary.json"])["ranks"][0]["inputs"]["kineto"] == f"{root}/in/kineto_1.json"
    again = graphlink(*pair)
    assert again.status == 1 and f"{root}/out: holds the outputs of an earlier run" in again.err
    files.put_file(three / "et_0.json", f"{root}/out/mine.txt")
    assert graphlink(*pair, "--force", "--name", "other", "--no-timeline").status == 0
    second = contents(f"{root}/out")
    assert set(first) - set(second) == {"trace.1.et", "timeline.perfetto-trace"}
    assert set(second) - set(first) == {"other.1.et", "mine.txt"}


def test_a_file_of_somebody_else_is_not_overwritten(graphlink: Run, three: Path, tmp_path: Path) -> None:
    out = f"memory://{uuid.uuid4().hex}"
    files.put_file(three / "et_0.json", f"{out}/trace.0.et")
    for more in ((), ("--force",)):
        ran = graphlink("--kineto", three / "kineto_0.json", "--rank", "0", "--out", out, *more)
        assert ran.status == 1 and "trace.0.et is there already" in ran.err
    assert list(contents(out)) == ["trace.0.et"]


@pytest.mark.parametrize("jobs", [pytest.param("1", marks=pytest.mark.long), "2"])
def test_from_and_to_s3(
    graphlink: Run, three: Path, whole: dict[str, bytes], root: str, tmp_path: Path, jobs: str
) -> None:
    traces = put(three, f"{root}/traces")
    ran = graphlink(f"{traces}/", "--out", f"{root}/out", "--jobs", jobs)
    assert ran.status == 0, ran.err
    assert differing(f"{root}/out", whole, tmp_path) == ["summary.json"]
    inputs = [rank["inputs"]["et"] for rank in json.loads(contents(f"{root}/out")["summary.json"])["ranks"]]
    assert inputs == [f"{traces}/et_{rank}.json" for rank in range(RANKS)]


def test_a_rank_that_failed_is_done_again_and_no_other(
    graphlink: Run, three: Path, whole: dict[str, bytes], root: str, tmp_path: Path
) -> None:
    traces, out = put(three, f"{root}/traces"), f"{root}/out"
    (tmp_path / "cut.json").write_bytes((three / "kineto_2.json").read_bytes()[:20_000])
    files.put_file(tmp_path / "cut.json", f"{traces}/kineto_2.json")
    ran = graphlink(traces, "--out", out, "--jobs", "2")
    assert ran.status == 3 and len(ran.err.splitlines()) <= 5
    assert f"the first: {traces}/kineto_2.json" in ran.err and f"2 are kept in {out}/.graphlink" in ran.err
    assert {name.rpartition("/")[2] for name in contents(out)} == {"prepared.columns", "rows.columns", "rank.json"}
    files.put_file(three / "kineto_2.json", f"{traces}/kineto_2.json")
    ran = graphlink(traces, "--out", out, "--jobs", "2", "--resume", "-v")
    assert ran.status == 0 and "2 of 3 ranks are done already" in ran.err
    assert differing(out, whole, tmp_path) == ["summary.json"]
    assert graphlink(traces, "--out", out, "--resume").status == 0, "all is there"


def test_a_rank_whose_file_changed_is_done_again(graphlink: Run, three: Path) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    put(three, f"{root}/in")
    command = ("link", "--rank-job", "--kineto", f"{root}/in/kineto_0.json", "--out", f"{root}/out", "--resume", "-v")
    done = []
    for change in (False, False, True, False):
        if change:
            files.put_file(three / "kineto_0.json", f"{root}/in/kineto_0.json")
        done.append("1 of 1 ranks are done already" in graphlink(*command).err)
    assert done == [False, True, False, True]


def test_memory_is_reckoned_with_whole_files(three: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = (three / "kineto_0.json").read_bytes()
    (tmp_path / "in" / "plain.json").write_bytes(text + b" " * (8 << 20))
    (tmp_path / "in" / "packed.json.gz").write_bytes(gzip.compress(text) + bytes(range(256)) * (1 << 15))
    stand = Standins(tmp_path / "stand")
    packed, plain = stand._add(files.found(f"file://{tmp_path}/in"))
    found = Discovered(tuple(Inputs(kineto=path) for path in (packed, plain)))
    sizes = [unpacked_size(one) for one in stand.stood_for(found).ranks]
    assert sizes == [(tmp_path / "in" / "packed.json.gz").stat().st_size * USUAL_PACKING, len(text) + (8 << 20)]


def test_partial_publishes_the_others(graphlink: Run, three: Path, root: str, tmp_path: Path) -> None:
    traces, out = put(three, f"{root}/traces"), f"{root}/out"
    (tmp_path / "cut.json").write_bytes((three / "kineto_2.json").read_bytes()[:20_000])
    files.put_file(tmp_path / "cut.json", f"{traces}/kineto_2.json")
    assert graphlink(traces, "--out", out, "--jobs", "1", "--partial").status == 3
    summary = json.loads(contents(out)["summary.json"])
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1]
    assert any(f"{traces}/kineto_2.json" in text for text in summary["warnings"])


def test_jobs_of_single_ranks_and_join_are_the_same(
    graphlink: Run, three: Path, whole: dict[str, bytes], root: str, tmp_path: Path
) -> None:
    traces, out = put(three, f"{root}/traces"), f"{root}/out"
    for rank in (2, 0):
        pair = ("--kineto", f"{traces}/kineto_{rank}.json", "--et", f"{traces}/et_{rank}.json")
        ran = graphlink("link", "--rank-job", *pair, "--out", out)
        assert ran.status == 0 and f"kept in {out}/.graphlink; when all ranks are, graphlink join {out}" in ran.out
    strict = graphlink("join", out, "--strict")
    assert strict.status == 1 and "no job of rank 1 of 3 ranks" in strict.err
    assert graphlink("link", "--rank-job", f"{traces}/", "--rank", "1", "--out", out, "-q").status == 0, (
        "picked out of all"
    )
    assert graphlink("join", out, "-q", "--jobs", "2").status == 0
    assert differing(out, whole, tmp_path) == ["summary.json"]


def test_a_folder_of_folders(graphlink: Run, three: Path, tmp_path: Path) -> None:
    for rank in range(RANKS):
        for kind in ("kineto", "et"):
            files.put_file(three / f"{kind}_{rank}.json", f"file://{tmp_path}/in/rank_{rank}/{kind}.json")
    out = tmp_path / "out"
    assert graphlink(f"file://{tmp_path}/in", "--out", out, "-q").status == 0
    assert graphlink(f"file://{tmp_path}/in/rank_*", "--out", out, "-q", "--force").status == 0
    ranks = json.loads((out / "summary.json").read_text())["ranks"]
    assert [rank["inputs"]["et"] for rank in ranks] == [
        f"file://{tmp_path}/in/rank_{rank}/et.json" for rank in range(RANKS)
    ]


def test_graphs_beside_recordings_are_compared_with(
    graphlink: Run, three: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    url = put(three, f"file://{tmp_path}/in")
    (tmp_path / "in" / "others.1.et").write_bytes(whole["trace.1.et"])
    (tmp_path / "in" / "odd.et").write_bytes(b"\x00")
    assert graphlink(url, "--out", tmp_path / "out", "-q").status == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [(c["file"], c["rank"]) for c in summary["run"]["compared"]] == [("others.1.et", 1)]
    assert any(text.startswith(f"{url}/odd.et is not used") for text in summary["warnings"])


def test_a_job_that_is_killed_while_it_puts_leaves_nothing_that_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = out_of(f"memory://{uuid.uuid4().hex}")

    def place(name: str) -> None:
        with store.place(name, "last") as folder:
            for inner in ("a", "last", "z"):
                (folder / inner).write_text(inner)

    place("one")
    assert store.names("last") == ["one"]
    real = files.put_file

    def killed(path: Path, url: str) -> None:
        if path.name == "last":
            raise KeyboardInterrupt
        real(path, url)

    with monkeypatch.context() as patch:
        patch.setattr(files, "put_file", killed)
        for name in ("one", "two"):
            with pytest.raises(KeyboardInterrupt):
                place(name)
    assert store.names("last") == [] and store.read("one/last") is None
    place("two")
    assert store.names("last") == ["two"]
    store.clear()
    assert not store.exists()


def test_what_was_cut_while_it_was_published_is_replaced_by_the_next_run(
    graphlink: Run, three: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = f"memory://{uuid.uuid4().hex}"
    command = ("--kineto", three / "kineto_0.json", "--out", out, "-q")
    real = files.put_file

    def broken(path: Path, url: str) -> None:
        if path.name == "summary.json":
            raise OutputError("the connection was lost", path=url)
        real(path, url)

    with monkeypatch.context() as patch:
        patch.setattr(files, "put_file", broken)
        ran = graphlink(*command)
        assert ran.status == 1 and "the connection was lost" in ran.err
        assert not files.is_folder(out) or contents(out) == {}
        patch.setattr(files, "remove", lambda urls: None)  # it is killed: nothing is taken back
        assert graphlink(*command).status == 1
    assert "trace.0.et" in (left := contents(out)) and "summary.json" not in left
    assert graphlink(*command).status == 0
    there = contents(out)
    assert sorted(there) == json.loads(there["summary.json"])["files"]


@pytest.mark.parametrize(
    ("packed", "rank_at", "fetched"),
    [(False, 100, "short"), (False, 3 << 20, "long"), (True, 3 << 20, "short"), (False, None, "long")],
)
def test_no_more_than_the_beginning_is_fetched_to_find_out_the_rank(
    tmp_path: Path, packed: bool, rank_at: int | None, fetched: str
) -> None:
    info = (
        f'"distributedInfo": {{"rank": 5, "world_size": 8}}, "pad": "{" " * (rank_at or 0)}",'
        if rank_at is not None
        else ""
    )
    text = f'{{{info} "traceEvents": [{{"ph": "X", "cat": "cpu_op", "ts": 1, "pid": 7}}{", {}" * 3_000_000}]}}'.encode()
    noise = b"" if not packed else bytes(range(256)) * (1 << 14)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "kineto.json").write_bytes(gzip.compress(text, 1) + noise if packed else text)
    stand = Standins(tmp_path / "stand")
    added = stand._add(files.found(f"file://{tmp_path}/in"))
    assert added[0].stat().st_size == {"short": standins.SHORT_BYTES, "long": standins.LONG_BYTES}[fetched]
    assert standins.read_head(added[0]).rank == (None if rank_at is None else 5)


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leads out of its folder"):
        Standins(tmp_path)._local("s3://bucket/../../evil.json")


def told(ran: Any, url: str, status: int = 1) -> str:
    """The message, which names the URL in at most 5 lines."""
    assert ran.status == status, ran.err
    assert url in ran.err and len(ran.err.splitlines()) <= 5 and "Traceback" not in ran.err
    return str(ran.err)


def test_what_is_not_there(graphlink: Run, three: Path, s3: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told(graphlink("s3://nobucket/traces", "--out", out), "s3://nobucket/traces")
    told(graphlink(f"{s3}/nowhere/", "--out", out), f"{s3}/nowhere")
    told(graphlink("--kineto", f"{s3}/none.json", "--out", out), f"{s3}/none.json")
    assert "no file matches" in told(graphlink("--kineto", f"{s3}/none_*.json", "--out", out), f"{s3}/none_*.json")
    assert "no such bucket" in told(
        graphlink("--kineto", three / "kineto_0.json", "--out", "s3://nobucket/out"), "s3://nobucket/out"
    )
    assert "holds no jobs" in told(graphlink("join", f"{s3}/nowhere"), f"{s3}/nowhere")
    assert not out.exists()


def test_a_file_as_folder_and_an_empty_folder(graphlink: Run, three: Path, root: str, tmp_path: Path) -> None:
    url = put(three, f"{root}/traces")
    assert "no Kineto trace given" in told(
        graphlink(f"{url}/et_0.json", "--out", tmp_path / "out"), f"{url}/et_0.json", 2
    )
    files.put_file(three / "et_0.json", f"{root}/notes/readme.txt")
    assert "no Kineto trace" in told(graphlink(f"{root}/notes", "--out", tmp_path / "out"), f"{root}/notes")


def test_without_leave(graphlink: Run, three: Path, root: str, tmp_path: Path) -> None:
    from moto.core import set_initial_no_auth_action_count

    put(three, f"{root}/traces")
    refused = set_initial_no_auth_action_count(0)
    into = refused(graphlink)("--kineto", three / "kineto_0.json", "--out", f"{root}/out")
    out = refused(graphlink)(f"{root}/traces", "--out", tmp_path / "out")
    assert "forbidden" in told(into, f"{root}/out") and "forbidden" in told(out, f"{root}/traces")


def test_without_keys(graphlink: Run, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(fsspec.get_filesystem_class("s3"), "_cache", {})
    assert "credentials" in told(
        graphlink("--kineto", f"{root}/kineto_0.json", "--out", tmp_path / "out"), f"{root}/kineto_0.json"
    )


def test_protocols_without_a_package(graphlink: Run, three: Path, tmp_path: Path) -> None:
    fsspec.register_implementation("odd", "no_such_package.core.Odd", errtxt="Please install it", clobber=True)
    assert "pip install no_such_package" in told(
        graphlink("odd://x/traces", "--out", tmp_path / "out"), "odd://x/traces", 2
    )
    told(graphlink("--kineto", three / "kineto_0.json", "--out", "odd://x/out"), "odd://x/out", 2)
    told(graphlink("--kineto", three / "kineto_0.json", "--out", "nope://x/out"), "nope://x/out", 2)


@pytest.mark.parametrize(
    "command",
    [
        *(
            ("show", "URL"),
            ("replay", "URL"),
            ("check", "URL"),
            ("critical-path", "URL"),
            ("bubbles", "URL"),
            ("astra", "URL"),
        ),
        *(("--nsys", "URL"), ("--paddle-logs", "URL")),
    ],
    ids=" ".join,
)
def test_what_reads_folders_of_this_machine_only_says_so(graphlink: Run, command: tuple[str, ...]) -> None:
    text = told(graphlink(*(part.replace("URL", "s3://bucket/run") for part in command)), "s3://bucket/run", 2)
    assert "copy it here first" in text


def test_nsys_exports_in_a_folder_behind_a_url(graphlink: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "run.sqlite").write_bytes(b"SQLite format 3\0" + bytes(1000))
    text = told(graphlink(f"file://{tmp_path}/in", "--out", tmp_path / "out"), f"file://{tmp_path}/in/run.sqlite", 2)
    assert "copy it here first" in text


def test_a_local_run_does_without_fsspec(three: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from graphlink.cli import main; status = main(sys.argv[1:]); sys.exit(status or 'fsspec' in "
        "sys.modules)"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "--kineto",
        str(three / "kineto_0.json"),
        "--out",
        str(tmp_path / "out"),
        "-q",
    ]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("named", ["nccl", "nccl/*", "nccl/nccl_trace_rank_?"])
def test_side_files_of_nccl_by_url(graphlink: Run, three: Path, tmp_path: Path, named: str) -> None:
    for rank in range(RANKS):
        entry = {
            "record_id": 0,
            "profiling_name": "nccl:all_reduce",
            "process_group": ["0", "default_pg"],
            "collective_seq_id": 1,
        }
        config = {str(rank): {"0": {"desc": "default_pg", "ranks": str([*range(RANKS)])}}}
        document = {"version": "2.10", "entries": [entry], "pg_config": config, "pg_status": {}}
        (tmp_path / "nccl").mkdir(exist_ok=True)
        (tmp_path / "nccl" / f"nccl_trace_rank_{rank}").write_text(json.dumps(document))
    given = ("--nccl", f"file://{tmp_path}/{named}")
    ran = graphlink(
        "--kineto",
        f"file://{three}/kineto_*.json",
        *given,
        "--out",
        tmp_path / "out",
        "--jobs",
        "1",
        "--no-timeline",
        "-q",
    )
    assert (ran.status, ran.err) == (0, "")
    ranks = json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"]
    assert [[file["path"] for file in rank["nccl"]["files"]] for rank in ranks] == [
        [f"file://{tmp_path}/nccl/nccl_trace_rank_{rank}"] for rank in range(RANKS)
    ]
