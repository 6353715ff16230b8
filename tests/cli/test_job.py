from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from graphlink.graph.read_et import read_et
from graphlink.graph_model import NodeType
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


def pair(traces: Path, rank: int = 0) -> list[str | Path]:
    return ["--et", traces / f"et_{rank}.json", "--kineto", traces / f"kineto_{rank}.json"]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_one_rank(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    ran = graphlink(*pair(traces), "--out", tmp_path / "out")
    assert (ran.status, ran.err) == (0, "")
    files = contents(tmp_path / "out")
    summary = json.loads(files["summary.json"])
    assert (
        set(files)
        == set(summary["files"])
        == {
            "trace.0.et",
            "critical_path.0.json",
            "idle.0.json",
            "ops.0.json",
            "comm_group.json",
            "summary.json",
            "timeline.perfetto-trace",
        }
    )
    (rank,) = summary["ranks"]
    assert rank["host"]["nodes"] == rank["host"]["matched"] + rank["host"]["unmatched"]
    assert rank["device"]["ops"] == rank["device"]["linked"] + sum(rank["device"]["orphans"].values())
    assert rank["sync"]["found"] == rank["sync"]["kept"] + sum(rank["sync"]["rejected"].values())
    assert (
        sum(rank["critical_path"]["share_ns"].values())
        == rank["critical_path"]["length_ns"]
        == rank["replay"]["replayed_ns"]
    )
    assert abs(rank["replay"]["error_pct"]) < 1
    assert "the replay takes as long as recorded" in ran.out
    assert max(len(line) for line in ran.out.splitlines() if "graphlink " not in line) <= 100  # commands are not broken
    shown = graphlink("show", tmp_path / "out")
    assert (shown.status, shown.err) == (0, "")
    assert ran.out.startswith(shown.out.rstrip("\n"))


def test_the_critical_path_file_hangs_together(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    graphlink(*pair(traces), "--out", tmp_path / "out")
    path = json.loads((tmp_path / "out" / "critical_path.0.json").read_text())
    nodes = path["nodes"]
    assert (nodes["held_by"][0], len({len(column) for column in nodes.values()})) == (None, 1)
    assert {path["edge_kinds"][k] for k in nodes["held_by"][1:]} <= {
        "host",
        "launch",
        "stream",
        "event",
        "sync",
        "thread",
        "collective",
    }
    assert sum(nodes["cost_ns"]) == path["length_ns"] == sum(path["share_ns"].values())
    slack_ns = dict(zip(read_et(tmp_path / "out" / "trace.0.et").id.tolist(), path["slack_ns"], strict=True))
    assert {slack_ns[i] for i in nodes["id"]} == {0}


def test_the_word_link_changes_nothing_and_runs_are_alike_to_the_byte(
    graphlink: Run, traces: Path, tmp_path: Path
) -> None:
    assert graphlink(*pair(traces), "--out", tmp_path / "a").status == 0
    assert graphlink("link", *pair(traces), "--out", tmp_path / "b").status == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_ranks_are_paired_and_share_ids(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    globs = ["--et", traces / "et_*.json", "--kineto", traces / "kineto_*.json"]
    assert graphlink(*globs, "--out", tmp_path / "a", "--jobs", "1").status == 0
    assert graphlink(traces, "--out", tmp_path / "b", "--jobs", "2").status == 0
    files = contents(tmp_path / "a")
    assert files == contents(tmp_path / "b")
    assert {"trace.0.et", "trace.1.et", "critical_path.1.json", "comm_group.json"} <= set(files)
    assert [r["rank"] for r in json.loads(files["summary.json"])["ranks"]] == [0, 1]
    assert json.loads(files["comm_group.json"])["1"] == [0, 1]
    graphs = [read_et(tmp_path / "a" / f"trace.{rank}.et") for rank in (0, 1)]
    collectives = [int((graph.type == NodeType.COMM_COLL).sum()) for graph in graphs]
    assert [int(graph.id[0]) for graph in graphs] == [2 * max(collectives)] * 2 != [0, 0]


def test_options_show_in_the_files(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    ran = graphlink(
        *pair(traces), "--out", tmp_path / "out", "--name", "run", "--rank", "1", "--linked", "--no-timeline", "-q"
    )
    assert (ran.status, ran.out) == (0, "")
    assert {"run.1.et", "linked.1.json", "critical_path.1.json"} <= set(contents(tmp_path / "out"))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert any("--rank" in w for w in summary["ranks"][0]["warnings"])


def test_one_step_is_less_than_all(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    graphlink(*pair(traces), "--out", tmp_path / "all")
    names = [
        e["name"]
        for e in json.loads((traces / "kineto_0.json").read_text())["traceEvents"]
        if e["name"].startswith("ProfilerStep")
    ]
    number = names[1].partition("#")[2]
    assert graphlink(*pair(traces), "--out", tmp_path / "one", "--step", number).status == 0
    whole, one = (json.loads((tmp_path / d / "summary.json").read_text())["ranks"][0] for d in ("all", "one"))
    assert one["graph_nodes"] < whole["graph_nodes"] / 2
    assert one["left_out"]["host rows of other steps"] + one["host"]["nodes"] == whole["host"]["nodes"]
    assert one["left_out"]["device ops of other steps"] + one["device"]["ops"] == whole["device"]["ops"]


def test_a_second_run_needs_force_which_keeps_files_of_others(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    graphlink(*pair(traces), "--out", out)
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    refused = graphlink(*pair(traces, 1), "--out", out)
    assert refused.status == 1
    assert "--force" in refused.err
    assert contents(out) == before
    assert graphlink(*pair(traces, 1), "--out", out, "--force").status == 0
    assert {"trace.1.et", "notes.txt"} < set(contents(out))
    assert "trace.0.et" not in contents(out)


def test_a_failed_run_with_force_keeps_the_old_outputs(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    graphlink(*pair(traces), "--out", out)
    before = contents(out)
    assert graphlink("--kineto", tmp_path / "none.json", "--out", out, "--force").status == 1
    assert contents(out) == before


def test_a_merged_trace_in_a_folder_is_left_aside(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(traces, folder)
    graphlink(*pair(traces), "--out", tmp_path / "merged", "--linked")
    shutil.copy(tmp_path / "merged" / "linked.0.json", folder / "et_plus_0.json")
    assert graphlink(folder, "--out", tmp_path / "out", "--jobs", "1").status == 0


def test_a_node_is_shown_with_its_edges_both_ways(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    graphlink(*pair(traces), "--out", tmp_path / "out")
    path = json.loads((tmp_path / "out" / "critical_path.0.json").read_text())
    nodes, names, kinds = path["nodes"], path["names"], path["edge_kinds"]
    at = nodes["held_by"].index(kinds.index("launch"))
    ran = graphlink("show", tmp_path / "out" / "trace.0.et", "--node", nodes["id"][at])
    assert ran.status == 0
    before, _, after = ran.out.partition("is waited for by")
    assert names[nodes["name"][at]] in before
    assert ["launch", str(nodes["id"][at - 1])] in [line.split()[:2] for line in before.splitlines()]
    assert [kinds[nodes["held_by"][at + 1]], str(nodes["id"][at + 1])] in [
        line.split()[:2] for line in after.splitlines()
    ]
    packed = tmp_path / "packed.0.et"
    packed.write_bytes(gzip.compress((tmp_path / "out" / "trace.0.et").read_bytes()))
    assert graphlink("show", packed, "--node", nodes["id"][at]).out == ran.out
    missing = graphlink("show", tmp_path / "out" / "trace.0.et", "--node", "99999999")
    assert missing.status == 1
    assert "99999999" in missing.err


@pytest.mark.parametrize(("option", "word"), [("--help", "exit status"), ("--version", "graphlink 0")])
def test_help_and_version(graphlink: Run, option: str, word: str) -> None:
    ran = graphlink(option)
    assert (ran.status, ran.err) == (0, "")
    assert word in ran.out
