"""Files that somebody made hostile, of any sort that is read or read back: one message that names the file, or they are
read.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.graph.attributes import framed
from tests.cli.conftest import Ran
from tests.paddle_runs import one_f_one_b, simulate
from tests.simulator import Training, run, training_program
from tests.simulator.nsys import write_nsys
from tests.simulator.paddle import write_paddle

Run = Callable[..., Ran]
DEEP = "[" * 5000 + "]" * 5000
READ_BACK = {
    "summary.json": ["show", "export --format csv"],
    "critical_path.0.json": ["critical-path", "export --format csv"],
    "bubbles.json": ["bubbles", "export --format csv"],
    "comm_group.json": ["replay", "critical-path --across", "export --format csv"],
    "idle.0.json": ["idle", "export --format csv"],
    "ops.0.json": ["ops", "export --format csv"],
}


@pytest.fixture(scope="module")
def runs(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``out`` (one rank) and ``pipeline`` (with bubbles) that runs wrote."""
    from graphlink.cli import main

    folder = tmp_path_factory.mktemp("runs")
    write_paddle(simulate(one_f_one_b(2, 3), lambda _rank, _op: 1_000_000), folder / "logs")
    with contextlib.redirect_stdout(None):
        for flags, name in (
            (["--kineto", str(traces / "kineto_0.json")], "out"),
            (["--paddle-logs", str(folder / "logs")], "pipeline"),
        ):
            assert main([*flags, "--out", str(folder / name), "-q"]) == 0
    return folder


def is_said(ran: Ran, path: Path, *words: str) -> None:
    assert ran.status == 1, ran
    assert 1 <= len(ran.err.splitlines()) <= 5
    assert "Traceback" not in ran.err
    for word in (str(path), *words):
        assert word in ran.err, ran.err


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("digits", [309, 400, 5000])
def test_a_time_of_hundreds_of_digits(graphlink: Run, traces: Path, tmp_path: Path, key: str, digits: int) -> None:
    text = (traces / "kineto_0.json").read_text()
    rows = json.loads(text)["traceEvents"]
    row = next(row for row in rows if row.get("cat") == "cpu_op")
    row[key] = "HUGE"
    path = tmp_path / "kineto_0.json"
    path.write_text(json.dumps({"traceEvents": rows}).replace('"HUGE"', "9" * digits))
    ran = graphlink("--kineto", path, "--out", tmp_path / "out")
    if digits > 4300:  # beyond what Python reads, so the row is left out
        assert ran.status == 0
        assert json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"][0]["left_out"]["unreadable"] == 1
    else:
        is_said(ran, path, "no usable time")


def test_an_execution_trace_with_wrong_utf8_is_linked(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    text = (traces / "et_0.json").read_bytes()
    assert text.count(b'"nodes":[{') == 1
    damaged = text.replace(b'"nodes":[{', b'"nodes":[{"comment": "\xff\xfe", ', 1).replace(
        b"{", b'{"comment": "\xfe", ', 1
    )
    (tmp_path / "et_0.json").write_bytes(damaged)
    ran = graphlink(
        "--et", tmp_path / "et_0.json", "--kineto", traces / "kineto_0.json", "--out", tmp_path / "out", "--linked"
    )
    assert ran.status == 0, ran.err
    assert "\ufffd" in (tmp_path / "out" / "linked.0.json").read_text()


@pytest.mark.parametrize(
    "dims", ["true", "[true]", "[[true, false]]", "{}", '"x"', "[[1e308, 1e308]]", f"[[{'9' * 400}]]", DEEP]
)
def test_shapes_of_communication_that_are_none(graphlink: Run, traces: Path, tmp_path: Path, dims: str) -> None:
    rows = json.loads((traces / "kineto_0.json").read_text())["traceEvents"]
    for row in rows:
        if row.get("cat") in ("cpu_op", "user_annotation"):
            row["name"] = "nccl:all_reduce" if row["name"].startswith("nccl") else row["name"]
            row["args"] = {key: value for key, value in row["args"].items() if key != "Collective name"}
            row["args"] |= {"Input Dims": "DIMS", "Input type": ["float"]}
    path = tmp_path / "kineto_0.json"
    path.write_text(json.dumps({"traceEvents": rows}).replace('"DIMS"', dims))
    assert graphlink("--kineto", path, "--out", tmp_path / "out", "--no-timeline", "--sync", "cuda").status in (0, 1)


@pytest.mark.parametrize(
    "statement", ["DROP TABLE StringIds", "DELETE FROM StringIds", "ALTER TABLE NVTX_EVENTS DROP COLUMN text"]
)
def test_an_export_without_strings(graphlink: Run, tmp_path: Path, statement: str) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys([run(training_program(1, Training(steps=1, layers=1)))], path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()
    ran = graphlink("--nsys", path, "--out", tmp_path / "out", "--no-timeline")
    assert ran.status in (0, 1)
    assert len(ran.err.splitlines()) <= 5


@pytest.mark.parametrize("machine", ["ideal", "astra-sim", "ranks", "coupled"])
@pytest.mark.parametrize("micros", [(1 << 64) - 1, (1 << 63) - 1, 1 << 60])
def test_durations_of_centuries(graphlink: Run, tmp_path: Path, machine: str, micros: int) -> None:
    nodes = [
        pb.Node(id=k, name="op", type=pb.COMP_NODE, duration_micros=micros, data_deps=[k - 1] if k else [])
        for k in range(3)
    ]
    path = tmp_path / "trace.0.et"
    path.write_bytes(framed([m.SerializeToString() for m in (pb.GlobalMetadata(version="0.0.4"), *nodes)]))
    is_said(graphlink("replay", tmp_path, "--machine", machine), path, "36 years")


def test_a_scale_that_makes_centuries(graphlink: Run, runs: Path) -> None:
    ran = graphlink("replay", runs / "out", *(["--scale", "kernel=1000000"] * 2))
    assert ran.status == 2
    assert "36 years" in ran.err


@pytest.mark.parametrize(("name", "verb"), [(name, verb) for name, verbs in READ_BACK.items() for verb in verbs])
@pytest.mark.parametrize(
    "text", ['{"ranks": ' + DEEP + "}", DEEP, '{"a":' * 5000, "", "\x00", '{"1": [1e999]}', '{"a": "\udcff"}']
)
def test_a_file_that_is_read_back_is_damaged(
    graphlink: Run, runs: Path, tmp_path: Path, name: str, verb: str, text: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / ("pipeline" if name == "bubbles.json" else "out"), folder)
    (folder / name).write_text(text, errors="surrogateescape")
    what, *flags = verb.split()
    is_said(graphlink(what, folder, *flags), folder / name)


def changed(runs: Path, tmp_path: Path, name: str, change: Callable[[dict[str, object]], None]) -> Path:
    """A copy of a run's folder in which ``name`` is another; "HUGE" stands for 400 digits."""
    folder = tmp_path / "run"
    shutil.copytree(runs / ("pipeline" if name == "bubbles.json" else "out"), folder)
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document).replace('"HUGE"', "9" * 400))
    return folder


def test_a_summary_of_another_format_is_refused(graphlink: Run, runs: Path, tmp_path: Path) -> None:
    folder = changed(runs, tmp_path, "summary.json", lambda document: document.update(format=2))
    is_said(graphlink("show", folder), folder / "summary.json", "format")


@pytest.mark.parametrize("column", ["id", "name", "share", "held_by", "start_ns", "cost_ns", "start_delay_ns"])
def test_columns_of_a_critical_path_that_are_not_of_one_length(
    graphlink: Run, runs: Path, tmp_path: Path, column: str
) -> None:
    folder = changed(runs, tmp_path, "critical_path.0.json", lambda d: d["nodes"][column].pop())  # type: ignore[index]
    is_said(graphlink("critical-path", folder), folder / "critical_path.0.json", "one length", column)


@pytest.mark.parametrize(
    ("column", "value"), [("name", 1 << 40), ("name", -1), ("share", 99), ("held_by", 99), ("cost_ns", "HUGE")]
)
def test_a_critical_path_that_names_what_is_not_there(
    graphlink: Run, runs: Path, tmp_path: Path, column: str, value: object
) -> None:
    folder = changed(runs, tmp_path, "critical_path.0.json", lambda d: d["nodes"][column].__setitem__(1, value))  # type: ignore[index]
    is_said(graphlink("critical-path", folder), folder / "critical_path.0.json")


@pytest.mark.parametrize("place", ["step", "pipeline", "far", "chunk"])
def test_numbers_of_bubbles_that_are_none(graphlink: Run, runs: Path, tmp_path: Path, place: str) -> None:
    def change(document: dict[str, dict[str, object] | list[dict[str, object]]]) -> None:
        if place == "pipeline":
            document["pipeline"]["causes_ns"] = {"warmup": "HUGE"}  # type: ignore[index,call-overload]
        elif place == "chunk":
            document["ranges"][0]["chunk"] = 1 << 61  # type: ignore[index]
        else:
            document["steps"][0]["end_ns"] = "HUGE" if place == "step" else 1 << 61  # type: ignore[index]

    folder = changed(runs, tmp_path, "bubbles.json", change)  # type: ignore[arg-type]
    for flags in ([], ["--compare", tmp_path / "x.svg"], ["--schedule", "zb-v"]):
        is_said(graphlink("bubbles", folder, *flags), folder / "bubbles.json")


def test_a_graph_that_says_it_is_of_two_billion_ranks_takes_no_memory(graphlink: Run, tmp_path: Path) -> None:
    head = pb.GlobalMetadata(version="0.0.4")
    head.attr.add(name="world_size", int64_val=1 << 31)
    node = pb.Node(id=0, name="op", type=pb.COMP_NODE, duration_micros=1)
    (tmp_path / "trace.0.et").write_bytes(framed([m.SerializeToString() for m in (head, node)]))
    (tmp_path / "trace.999999999.et").write_bytes((tmp_path / "trace.0.et").read_bytes())
    tracemalloc.start()
    try:
        is_said(graphlink("astra", tmp_path), tmp_path, "ranks 1, 2, 3", "2147483648")
        assert graphlink("check", tmp_path).status in (0, 1)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_a_planted_journal_costs_the_user_nothing(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    import socket

    left = tmp_path / "out" / ".graphlink" / f"tmp-{socket.gethostname().replace('-', '_')}-999999999-x"
    (left / "old").mkdir(parents=True)
    (tmp_path / "thesis.txt").write_text("mine")
    (left / "thesis.txt").write_text("theirs")
    (left / "journal.json").write_text('{"old": ["../thesis.txt"], "new": ["../thesis.txt", "../../thesis.txt"]}')
    assert graphlink("--kineto", traces / "kineto_0.json", "--out", tmp_path / "out", "--no-timeline").status == 0
    assert (tmp_path / "thesis.txt").read_text() == "mine"


class Runs:
    """A value whose pickle makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def jobs(graphlink: Run, traces: Path, out: Path) -> Path:
    """The folder of what two rank jobs left."""
    ran = graphlink("link", "--rank-job", traces, "--out", out, "--no-timeline", "--sync", "cuda", "-q", "--jobs", "1")
    assert ran.status == 0, ran.err
    return out / ".graphlink" / "ranks"


@pytest.mark.parametrize("name", ["rows.columns", "prepared.columns"])
@pytest.mark.parametrize("verb", ["join", "--resume"])
def test_planted_state_runs_nothing(graphlink: Run, traces: Path, tmp_path: Path, name: str, verb: str) -> None:
    out, mark = tmp_path / "out", tmp_path / "ran"
    for folder in jobs(graphlink, traces, out).iterdir():
        (folder / name).write_bytes(pickle.dumps(Runs(mark)))
        (folder / name.replace("columns", "pickle")).write_bytes(pickle.dumps(Runs(mark)))
    resume = (traces, "--out", out, "--resume", "--no-timeline", "--sync", "cuda", "--jobs", "1")
    ran = graphlink("join", out, "--jobs", "1") if verb == "join" else graphlink(*resume)
    is_said(ran, out / ".graphlink" / "ranks", name, "run the job of this rank again")
    assert not mark.exists() and not (out / "summary.json").exists()


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", lambda _: b"", lambda data: data[:50], None]
)
def test_state_that_is_damaged_is_named(
    graphlink: Run, traces: Path, tmp_path: Path, change: Callable[[bytes], bytes] | None
) -> None:
    path = sorted(jobs(graphlink, traces, tmp_path).glob("*/rows.columns"))[0]
    path.write_bytes(change(path.read_bytes())) if change is not None else path.unlink()
    is_said(graphlink("join", tmp_path), path, "run the job of this rank again")


def test_a_failed_join_says_what_is_kept(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    for path in sorted(jobs(graphlink, traces, tmp_path / "out").glob("*/rows.columns"))[:1]:
        path.write_bytes(b"")
    ran = graphlink(traces, "--out", tmp_path / "out", "--resume", "--no-timeline", "--sync", "cuda", "--jobs", "1")
    is_said(ran, path, "for --resume", str(tmp_path / "out" / ".graphlink"))


@pytest.mark.parametrize("flag", ["--et", "--kineto"])
def test_a_small_file_that_unpacks_to_empty_elements_without_end(
    graphlink: Run, traces: Path, tmp_path: Path, flag: str
) -> None:
    path = tmp_path / "trace.json.gz"
    key = b'{"schema": "1", "nodes":[' if flag == "--et" else b'{"traceEvents":['
    path.write_bytes(gzip.compress(key + b"{}," * 3_000_000 + b"{}]}", 1))
    other = ["--kineto", traces / "kineto_0.json"] if flag == "--et" else []
    is_said(graphlink(flag, path, *other, "--out", tmp_path / "out"), path, "1,048,576")


def test_a_catastrophic_range_rule_ends(
    graphlink: Run, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphlink.patterns.MOST_SECONDS", 0.1)
    rows = json.loads((traces / "kineto_0.json").read_text())["traceEvents"]
    mark = next(row for row in rows if row.get("cat") == "user_annotation")
    rows.append({**mark, "name": "F" + "a" * 80, "ts": mark["ts"] + 1, "dur": 1})
    (tmp_path / "kineto_0.json").write_text(json.dumps({"traceEvents": rows}))
    rule = ["--range-rule", "(?P<phase>F)(a|aa)+c?d"]
    ran = graphlink("--kineto", tmp_path / "kineto_0.json", "--out", tmp_path / "out", "--no-timeline", *rule)
    assert ran.status == 2
    assert "--range-rule" in ran.err
    assert not (tmp_path / "out").exists()
