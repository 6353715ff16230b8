"""``--json FILE`` of every verb: what is written, where to, and what it never overwrites."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphlink import output_names
from graphlink.cli.verbs import VERBS
from graphlink.pipeline import file as bubbles
from graphlink.read.heads import looks_like
from graphlink.run.schemas import FILES
from tests.cli.conftest import Ran
from tests.pipeline.pipelines import simple

Run = Callable[..., Ran]
VERBS_AND_RECORDS = [
    (["link", "{traces}", "-o", "{new}", "--jobs", "1"], "summary"),
    (["join", "{jobs}", "--jobs", "1", "--force"], "summary"),
    (["show", "{out}"], "summary"),
    (["show", "{out}/trace.0.et", "--node", "27"], "node"),
    (["replay", "{out}", "--scale", "kernel=0.5"], "replay"),
    (["replay", "{out}", "--list"], "replay.list"),
    (["critical-path", "{out}"], "critical_path"),
    (["critical-path", "{out}", "--across"], "critical_path.ranks"),
    (["bubbles", "{pipeline}"], "bubbles"),
    (["bubbles", "{pipeline}", "--schedule", "gpipe"], "bubbles.compared"),
    (["check", "{out}"], "check"),
    (["idle", "{out}"], "idle.report"),
    (["advice", "{out}"], "advice.report"),
    (["diff", "{out}", "{out}"], "diff"),
    (["ops", "{out}"], "ops.report"),
    (["export", "{out}", "--format", "csv", "--force", "--out", "{new}"], "export"),
    (["report", "{out}"], "report"),
    (["doctor", "{traces}"], "doctor"),
    (["astra", "{out}", "--force"], "astra"),
    (["scale", "{out}", "--data-parallel", "3", "--out", "{new}", "--force", "--jobs", "1"], "scale"),
]


@pytest.fixture(scope="session")
def ready(graphlink_once: Run, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that the verbs need, by the names above."""
    base = tmp_path_factory.mktemp("ready")
    assert graphlink_once(traces, "--out", base / "out", "--jobs", "1", "-q").status == 0
    for rank in (0, 1):
        pair = ["--et", traces / f"et_{rank}.json", "--kineto", traces / f"kineto_{rank}.json"]
        assert graphlink_once("link", "--rank-job", *pair, "--out", base / "jobs", "-q").status == 0
    (base / "pipeline").mkdir()
    (base / "pipeline" / output_names.BUBBLES).write_bytes(b"".join(bubbles.blocks(simple(2, 8))))
    return {"traces": traces, "out": base / "out", "jobs": base / "jobs", "pipeline": base / "pipeline"}


@pytest.mark.parametrize(
    ("words", "record"), VERBS_AND_RECORDS, ids=[" ".join(words[:1] + words[2:3]) for words, _ in VERBS_AND_RECORDS]
)
def test_the_data_are_of_the_schema_and_alone_on_stdout(
    graphlink: Run, ready: dict[str, Path], tmp_path: Path, words: list[str], record: str
) -> None:
    if words[0] == "join":  # which takes the jobs away
        ready = {**ready, "jobs": Path(shutil.copytree(ready["jobs"], tmp_path / "jobs"))}
    given = [word.format(**ready, new=tmp_path / "new") for word in words]
    alone = graphlink(*given, "--json", "-")
    assert (alone.status, alone.err) == (0, "")
    told = msgspec.json.decode(alone.out, type=FILES[f"{record}.schema.json"])
    assert told is not None
    if words[0] in ("link", "join"):
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        return
    file = tmp_path / "told.json"
    for _ in range(2):  # what it wrote it may write again
        both = graphlink(*given, "--json", file)
        assert (both.status, both.err) == (0, "")
        assert file.read_text() == alone.out
        assert both.out == graphlink(*given).out
    assert looks_like(file) is None


def test_every_verb_is_tried() -> None:
    elsewhere = {"simulate", "mcp"}  # needs an ASTRA-sim, tells nothing by itself: tests of their own
    assert {*(words[0] for words, _ in VERBS_AND_RECORDS)} | elsewhere == set(VERBS)


def test_the_summary_is_that_of_the_folder(graphlink: Run, ready: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    quiet = graphlink(ready["traces"], "-o", tmp_path / "out", "--jobs", "1", "-q", "--json", file)
    assert (quiet.status, quiet.out) == (0, "")
    assert file.read_bytes() == (tmp_path / "out" / "summary.json").read_bytes()
    assert json.loads(graphlink("show", tmp_path / "out", "--json", "-").out) == json.loads(file.read_text())


def test_a_node_has_its_attributes_and_edges(graphlink: Run, ready: dict[str, Path]) -> None:
    node: Any = json.loads(graphlink("show", ready["out"] / "trace.0.et", "--node", "27", "--json", "-").out)
    assert node["id"] == 27
    assert isinstance(node["attributes"]["start_ns"], int)
    assert {edge["kind"] for edge in node["data_deps"]} <= {
        "host",
        "launch",
        "stream",
        "event",
        "sync",
        "thread",
        "collective",
    }


def test_another_schedule_stands_in_the_data(graphlink: Run, ready: dict[str, Path]) -> None:
    told = json.loads(graphlink("bubbles", ready["pipeline"], "--schedule", "gpipe", "--json", "-").out)
    file = json.loads((ready["pipeline"] / output_names.BUBBLES).read_text())
    assert {key: told[key] for key in file} == file
    assert told["what_if"]["schedule"] == "GPipe"


@pytest.mark.parametrize(
    "name",
    [
        "summary.json",
        "trace.0.et",
        "trace.7.et",
        "critical_path.0.json",
        "idle.0.json",
        "ops.0.json",
        "tables/nodes.csv",
        "comm_group.json",
        ".graphlink/x.json",
        "",
    ],
)
def test_outputs_are_never_overwritten(graphlink: Run, ready: dict[str, Path], name: str) -> None:
    before = {path.name: path.read_bytes() for path in ready["out"].iterdir() if path.is_file()}
    ran = graphlink("show", ready["out"], "--json", ready["out"] / name)
    assert (ran.status, ran.out) == (2, "")
    assert before == {path.name: path.read_bytes() for path in ready["out"].iterdir() if path.is_file()}


def test_recordings_are_never_overwritten(graphlink: Run, ready: dict[str, Path], traces: Path, tmp_path: Path) -> None:
    for inputs in ([traces], ["--kineto", traces / "kineto_0.json"], ["--kineto", f"{traces}/kineto_*.json"]):
        for name in ("kineto_0.json", "et_1.json"):
            before = (traces / name).read_bytes()
            ran = graphlink(*inputs, "-o", tmp_path / "out", "--json", traces / name)
            assert (ran.status, "would overwrite" in ran.err) == (2, True)
            assert (traces / name).read_bytes() == before
    link = tmp_path / "link.json"
    link.symlink_to(traces / "kineto_0.json")
    assert graphlink("show", ready["out"], "--json", link).status == 2
    groups = tmp_path / "groups.json"
    shutil.copy(ready["out"] / "comm_group.json", groups)
    assert graphlink("check", ready["out"], "--groups", groups, "--json", groups).status == 2
    assert groups.read_bytes() == (ready["out"] / "comm_group.json").read_bytes()


def test_nothing_is_published_where_the_data_cannot_be_written(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    ran = graphlink(
        "--kineto", traces / "kineto_0.json", "-o", tmp_path / "out", "--json", tmp_path / "none" / "x.json"
    )
    assert (ran.status, "--json" in ran.err, (tmp_path / "out").exists()) == (1, True, False)


def test_a_rank_job_has_no_summary_to_write(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    ran = graphlink("--rank-job", "--kineto", traces / "kineto_0.json", "-o", tmp_path / "out", "--json", "-")
    assert (ran.status, "graphlink join" in ran.err) == (2, True)
