"""Pipelines that no framework records, through the whole command: what comes out is valid and complete, or one
message.
"""

from __future__ import annotations

import json
import random
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ran
from tests.e2e.graph_rules import broken, read
from tests.simulator import PipelineTraining, pipeline_run, write_nsys

Run = Callable[..., Ran]
Row = dict[str, Any]
Order = list[tuple[str, int]]
ORDER: Order = [*(("F", k) for k in range(4)), *(("B", k) for k in range(4))]


def annotation(name: str, start: float, end: float) -> Row:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": end - start,
        "args": {},
    }


def rows_of(
    rank: int, order: Order = ORDER, text: str = "PP:{rank}{phase}{k}", kernel: str = "gemm", begin: float = 1_000
) -> list[Row]:
    """A range of 30 us with a kernel of 23 us for each action."""
    rows = []
    for i, (phase, k) in enumerate(order):
        at = begin + 20 * rank + 35 * i
        rows.append(annotation(text.format(rank=rank, phase=phase, k=k), at, at + 30))
        both: Row = {"correlation": i + 1}
        rows.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 1,
                "tid": 1,
                "ts": at + 2,
                "dur": 1,
                "args": both,
            }
        )
        place = {**both, "device": 0, "stream": 7}
        rows.append(
            {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": at + 5, "dur": 23, "args": place}
        )
    return rows


def written(folder: Path, *ranks: list[Row]) -> Path:
    folder.mkdir()
    for rank, rows in enumerate(ranks):
        of_run = {"backend": "nccl", "rank": rank, "world_size": len(ranks)}
        (folder / f"kineto_{rank}.json").write_text(json.dumps({"distributedInfo": of_run, "traceEvents": rows}))
    return folder


def pipeline_of(ran: Ran, out: Path) -> Any:
    """The pipeline of a run that must have worked, None without one; all its files must be whole."""
    assert (ran.status, ran.err) == (0, "")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in out.iterdir()) == summary["files"]
    for path in out.glob("*.et"):
        assert broken(read(path)) == []
    if summary["pipeline"] is None:
        assert not (out / "bubbles.json").exists()
        return None
    ElementTree.parse(out / "pipeline.svg")
    return json.loads((out / "bubbles.json").read_text(encoding="utf-8"))


NAMES = {
    "control": "\x00\x01\x1b[31m\x7f",
    "markup": "<script>&\"']]></script>",
    "long": "A" * 65_536,
    "none": "\ufffe\uffff",
    "right to left": "\u202e",
}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_escaped(graphlink: Run, tmp_path: Path, name: str) -> None:
    """As a range's, and as a kernel's that is the evidence of idle time."""
    text = NAMES[name]
    outside = rows_of(0, kernel=text)[-1] | {"ts": 1_000 + 35 * 4 - 6.5, "dur": 4}
    ranks = [[*rows_of(0, kernel=text), outside, annotation(text, 2_000, 2_010)], rows_of(1, kernel=text)]
    out = tmp_path / "out"
    file = pipeline_of(graphlink(written(tmp_path / "in", *ranks), "--out", out, "--jobs", "1"), out)
    assert len(file["ranges"]) == 16


def test_half_surrogates_are_refused(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink(written(tmp_path / "in", rows_of(0, kernel="\ud800")), "--out", tmp_path / "out")
    assert ran.status == 1 and "is not valid JSON" in ran.err and len(ran.err.splitlines()) <= 5
    assert not (tmp_path / "out").exists()


ORDERS: dict[str, tuple[list[Order], str | None]] = {
    "F without B": ([[("F", 0), ("F", 1)]], None),
    "B without F": ([[("B", 0), ("B", 1)]], None),
    "holes": ([[("F", 0), ("F", 2), ("B", 0), ("B", 2)]], None),
    "twice": (
        [[("F", 0), ("F", 0), ("B", 0), ("F", 1), ("B", 1)]],
        "1F1B",
    ),  # the second F0 is of a step that is not whole
    "B first": ([[("B", 0), ("F", 0)]], "unknown"),
    "B, I and W": ([[("F", 0), ("B", 0), ("I", 0), ("W", 0)]], "unknown"),
    "different numbers": ([ORDER, ORDER[:3] + ORDER[4:7]], "unknown"),
    "one rank without": ([ORDER, [("F", 0)]], "GPipe"),
    "no steps alike": ([ORDER, ORDER * 2], "GPipe"),
}


@pytest.mark.parametrize("what", ORDERS)
def test_orders_that_are_none(graphlink: Run, tmp_path: Path, what: str) -> None:
    orders, schedule = ORDERS[what]
    out = tmp_path / "out"
    traces = written(tmp_path / "in", *(rows_of(rank, order) for rank, order in enumerate(orders)))
    pipeline_of(graphlink(traces, "--out", out, "--jobs", "1"), out)
    pipeline = json.loads((out / "summary.json").read_text())["pipeline"]
    assert (pipeline and pipeline["schedule"]) == schedule


def test_steps_that_one_rank_lacks_have_no_notes(graphlink: Run, tmp_path: Path) -> None:
    """Rank 0 has a step before and one after the only one of rank 1; its own notes are those of the ranges of that
    step.
    """
    rows = [row for step in range(3) for row in rows_of(0, begin=1_000 + 1_000 * step)]
    for i, row in enumerate(row for row in rows if row["cat"] == "kernel"):
        row["name"] = f"step {i // 8} {'F' if i % 8 < 4 else 'B'}{i % 4}"
    for i, row in enumerate(row for row in rows if row["cat"] != "user_annotation"):
        row["args"]["correlation"] = i // 2 + 1
    rows += [annotation(f"ProfilerStep#{step + 1}", 995 + 1_000 * step, 1_990 + 1_000 * step) for step in range(3)]
    other = [*rows_of(1, begin=2_000), annotation("ProfilerStep#2", 1_995, 2_900)]
    out = tmp_path / "out"
    file = pipeline_of(graphlink(written(tmp_path / "in", rows, other), "--out", out, "--jobs", "1"), out)
    assert {r["step"] for r in file["ranges"]} == {2}
    graph = read(out / "trace.0.et")
    noted = {
        node.name: f"{a['pipeline_phase']}{a['pipeline_microbatch']}"
        for node, a in zip(graph.nodes, graph.attributes, strict=True)
        if "pipeline_phase" in a
    }
    assert noted == {f"step 1 {phase}{k}": f"{phase}{k}" for phase, k in ORDER}


def test_a_peer_that_is_in_no_group_is_no_peer(graphlink: Run, tmp_path: Path) -> None:
    rows = rows_of(0)
    told = {
        "Collective name": "recv",
        "Src Rank": -9,
        "Dst Rank": 0,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    receive = annotation("record_param_comms", 990, 995) | {
        "cat": "cpu_op",
        "args": told | {"Group size": 2, "dtype": "Float"},
    }
    out = tmp_path / "out"
    assert pipeline_of(
        graphlink("--kineto", written(tmp_path / "in", [receive, *rows]) / "kineto_0.json", "--out", out), out
    )


def test_a_users_number_may_be_a_word(graphlink: Run, tmp_path: Path) -> None:
    out, traces = tmp_path / "out", written(tmp_path / "in", rows_of(0, text="{phase} of part {k}th"))
    ran = graphlink(
        "--kineto", traces / "kineto_0.json", "--range-rule", "(?P<phase>[FB]) of part (?P<microbatch>.*)", "--out", out
    )
    assert [r["microbatch"] for r in pipeline_of(ran, out)["ranges"]] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_names_of_an_export_are_escaped(graphlink: Run, tmp_path: Path) -> None:
    export, out = tmp_path / "run.sqlite", tmp_path / "out"
    write_nsys(pipeline_run(PipelineTraining("1F1B", stages=2, microbatches=2)).executions, export)
    with closing(sqlite3.connect(export)) as connection, connection:
        connection.execute("UPDATE StringIds SET value = value || '<&\"' || char(1) WHERE value LIKE '%kernel%'")
    connection.close()
    assert pipeline_of(graphlink("--nsys", export, "--out", out, "--jobs", "1"), out)["ranges"]


TRAININGS = (
    PipelineTraining(
        "1F1B", 2, 2, visible=True, transfer_ns=50_000, kernels=2, steps=2, optimizer_ns=300_000, norm_ns=100_000
    ),
    PipelineTraining("ZB-H1", 2, 3),
)
OTHERS = (
    "PP:0F0",
    "PP:1B0",
    "PP:9I3",
    "PP:(0F0;1B0)OVERLAP_F_B",
    "Optimizer.step#A.step",
    "ProfilerStep#7",
    "F",
    "layer_1f",
    "ncclDevKernel_SendRecv",
)


def mutated(rows: list[Row], rng: random.Random) -> None:
    """One row moved, removed, doubled, renamed, made longer, shorter, empty or negative, or given to another thread."""
    spans = [
        row
        for row in rows
        if row.get("ph") == "X" and row["cat"] in ("user_annotation", "kernel", "cuda_runtime", "cpu_op")
    ]
    row, other = rng.choice(spans), rng.choice(spans)
    what = rng.randrange(8)
    if what == 0:
        row["ts"] += rng.choice((-1, 1)) * 10 ** rng.uniform(0, 5)
    elif what == 1:
        rows.remove(row)
    elif what == 2:
        rows.append(row | {"ts": row["ts"] + rng.choice((0, row["dur"], 1_000))})
    elif what == 3:
        row["name"] = rng.choice((*OTHERS, other["name"]))
    elif what == 4:
        row["dur"] = rng.choice((0, -5, row["dur"] * 3, row["dur"] * 100))
    elif what == 5:
        row["tid"] = other["tid"]
    elif what == 6:
        row["ts"], other["ts"] = other["ts"], row["ts"]
    elif row.get("args"):
        row["args"][rng.choice(sorted(row["args"]))] = rng.choice((0, -9, 10**30, "x", None))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 24))])
def test_damaged_recordings_give_a_whole_output_or_a_message(graphlink: Run, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    folder, out = tmp_path / "in", tmp_path / "out"
    for path in pipeline_run(TRAININGS[seed % 2]).write(folder):
        document = json.loads(path.read_text())
        for _ in range(rng.choice((1, 4, 20))):
            mutated(document["traceEvents"], rng)
        path.write_text(json.dumps(document))
    ran = graphlink(folder, "--out", out, "--jobs", "1")
    if ran.status == 0:
        pipeline_of(ran, out)
    else:
        assert (
            ran.status in (1, 3) and 1 <= len(ran.err.splitlines()) <= 5 and "bug" not in ran.err and not out.exists()
        )
