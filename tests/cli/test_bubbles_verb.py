from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from graphlink import output_names
from graphlink.causes import OF_STAGES, Cause
from graphlink.cli.out import rendered
from graphlink.errors import OutputError
from graphlink.pipeline import file as bubbles
from graphlink.pipeline import what_if_schedule as schedules
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.records import Other, Pass, Rates, RunPipeline
from graphlink.pipeline.schedules import Order, Timed
from graphlink.pipeline.theory import PlayedSchedule
from graphlink.pipeline.verb_bubbles import what_if
from tests.cli.conftest import Ran
from tests.pipeline.made import even_times
from tests.pipeline.pipelines import EQUAL, Box, Gap, one_f_one_b, pipeline, played, simple, with_optimizer

Run = Callable[..., Ran]
SVG = "{http://www.w3.org/2000/svg}"


def folder(path: Path, given: RunPipeline) -> Path:
    path.mkdir(exist_ok=True)
    (path / output_names.BUBBLES).write_bytes(b"".join(bubbles.blocks(given)))
    return path


def ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f}"


def block(text: str, heading: str) -> list[list[str]]:
    """The words of each line under a heading."""
    return [line.split() for line in text[text.index(heading) :].split("\n\n")[0].splitlines()[1:]]


RUNS = {
    "1F1B": simple(),
    "steps": simple(8, 16, steps=3),
    "chunks": simple(chunks=2),
    "delay": simple(transfer_ns=300_000),
}


@pytest.mark.parametrize("given", RUNS.values(), ids=RUNS)
def test_the_report_says_what_the_file_holds(graphlink: Run, tmp_path: Path, given: RunPipeline) -> None:
    ran = graphlink("bubbles", folder(tmp_path / "out", given), "--top", "5")
    assert (ran.status, ran.err) == (0, "")
    file = json.loads((tmp_path / "out" / output_names.BUBBLES).read_text())
    head = ran.out.splitlines()
    stages = f"{given.stages} stages, {given.microbatches} microbatches, 1 chunk"
    if given.chunks > 1:  # evidence counts the stages of all chunks
        stages = f"{given.stages} ranks with 2 stages each, {given.microbatches} microbatches"
    assert head[0] == f"{given.schedule}: {stages}"
    assert "communication is no work (exposed_communication: stages idle for " in head[1]
    for name in ("bubble_rate_makespan", "bubble_rate_zb", "bubble_ratio_ideal"):
        rate = file["definition"][name]
        formula = rate["formula"].replace("all stages", "all ranks").replace("(stages", "(ranks")
        formula = formula if given.chunks > 1 else rate["formula"]
        assert any(line.split()[:2] == [name, f"{rate['value']:.4f}"] and formula in line for line in head)
    columns, *rows = block(ran.out, "idle time by rank" if given.chunks > 1 else "idle time by stage")
    causes = columns[5:]
    assert causes == ["warmup", "cooldown", "dependency_stall", "unknown"]
    for entry, row in zip(file["stages"], rows, strict=False):
        idle = sum(entry["idle_ns"].values())
        shown = [
            entry["rank"],
            *([f"{entry['stage']},", entry["stage"] + 4] if given.chunks > 1 else [entry["stage"]]),
            ms(entry["work_ns"]),
            ms(idle),
            f"{100 * idle / entry['makespan_ns']:.1f}",
            "%",
        ]
        assert row == [*map(str, shown), *(ms(entry["idle_ns"][c]) for c in causes)]
    longest = block(ran.out, "longest idle intervals")[1:]
    lengths = sorted(
        (e["end_ns"] - e["start_ns"] for e in file["idle"] if e["cause"] != "optimizer_sync"), reverse=True
    )
    assert [row[0] for row in longest] == [ms(ns) for ns in lengths[:5]]
    parts = file["pipeline"]["theory"]["parts_ns"]
    told = block(ran.out, "theory against measured")
    assert [(row[0], row[1]) for row in told[:5]] == [(name, ms(ns)) for name, ns in parts.items()]
    assert f"optimizer_sync {ms(file['pipeline']['optimizer_sync_ns'])} ms" in ran.out


def test_every_cause_that_took_time_is_a_column(graphlink: Run, tmp_path: Path) -> None:
    boxes, gaps = with_optimizer(played(one_f_one_b(2, 2), {Pass.F: 40_000_000, Pass.B: 80_000_000}))
    inside = [c for c in OF_STAGES if c != Cause.OPTIMIZER_SYNC]
    stall = next(g for g in gaps[0] if g.cause == Cause.DEPENDENCY_STALL)
    bounds = np.linspace(stall.start_ns, stall.end_ns, len(inside) + 1).astype(np.int64).tolist()
    gaps[0].remove(stall)
    gaps[0] += [Gap(a, b, c, "x") for a, b, c in zip(bounds, bounds[1:], inside, strict=False)]
    ran = graphlink("bubbles", folder(tmp_path / "out", pipeline(boxes, gaps)))
    columns, *_ = block(ran.out, "idle time by stage")
    assert columns[5:] == [c.name.lower() for c in inside]


def test_top_counts(graphlink: Run, tmp_path: Path) -> None:
    out = folder(tmp_path / "out", simple())
    assert len(block(graphlink("bubbles", out, "--top", "1000").out, "longest idle")) == 1 + 15
    assert "longest idle" not in graphlink("bubbles", out, "--top", "0").out


def test_what_is_unknown_is_said(graphlink: Run, tmp_path: Path) -> None:
    unknown = pipeline(played(one_f_one_b(2, 3), EQUAL), schedule="unknown", sees_device=False, sees_causes=False)
    unknown = replace(unknown, rates=Rates(0.25))
    ran = graphlink("bubbles", folder(tmp_path / "out", unknown))
    assert ran.status == 0
    assert ran.out.startswith("schedule unknown: 2 stages")
    assert "nearest schedule: 1F1B; rank 1 runs B0 where 1F1B runs F2" in ran.out
    assert re.search(r"bubble_rate_zb +unknown ", ran.out)
    assert (
        "theory against measured: none, as the schedule is unknown: the order is not on all ranks, in all steps, that of one of GPipe, 1F1B,"
        in ran.out
    )
    assert "this recording cannot show" in ran.out
    assert "straggler_wait" in ran.out
    assert "warning: schedule not recognised" in ran.out
    assert "rank 0 left out: ranges without device work 2" in ran.out


def test_no_idle_time_at_all(graphlink: Run, tmp_path: Path) -> None:
    given = pipeline([[Box(Pass.F, 0, 0, 0, 10), Box(Pass.B, 0, 0, 10, 30)]])
    ran = graphlink("bubbles", folder(tmp_path / "out", given))
    assert (ran.status, "no idle intervals" in ran.out) == (0, True)


def test_names_do_not_act_on_the_terminal(graphlink: Run, tmp_path: Path) -> None:
    boxes = played(one_f_one_b(2, 2), EQUAL)
    gaps = [[Gap(b.start_ns, b.end_ns, Cause.UNKNOWN, "\x1b[31m\n" + "long " * 50)] for b in (boxes[0][0], boxes[1][0])]
    ran = graphlink("bubbles", folder(tmp_path / "out", pipeline(boxes, gaps)))
    assert "\x1b" not in ran.out
    assert "\\x1b[31m\\nlong " in ran.out


def offer() -> Any:
    """ZB-H1 by hand on two stages."""
    by_rank = played(one_f_one_b(2, 4), EQUAL)
    orders = tuple(
        Order(
            phase=np.array([b.phase for b in mine], np.uint8),
            stage=np.array([b.stage for b in mine], np.int64),
            microbatch=np.array([b.microbatch for b in mine], np.int64),
            paired=np.zeros(len(mine), np.bool_),
        )
        for mine in by_rank
    )
    timed = Timed(
        start_ns=tuple(np.array([b.start_ns for b in mine]) for mine in by_rank),
        end_ns=tuple(np.array([b.end_ns for b in mine]) for mine in by_rank),
    )
    given = Other(
        schedule="ZB-H1",
        stages=2,
        microbatches=4,
        chunks=1,
        makespan_ns=15_000_000,
        bubble_rate_makespan=0.1,
        bubble_rate_zb=0.05,
        activations=(2.0, 1.5),
        assumed=("weights\x1b take a third",),
    )
    return PlayedSchedule(given, orders, timed, even_times(2, 1, 1, 1))


def test_another_schedule_stands_beside_the_measured_one(tmp_path: Path) -> None:
    file = bubbles.load(folder(tmp_path / "out", simple(2, 8, steps=2)) / output_names.BUBBLES)
    lines = rendered(what_if(file, offer().other)).splitlines()
    assert lines[0] == "what if: ZB-H1, 2 stages, 4 microbatches, 1 chunk, on the measured times of a step"
    assert " ".join(lines[1].split()) == "makespan 15.000 ms (measured 27.000 ms)"
    assert " ".join(lines[2].split()) == "per microbatch 3.750 ms (measured 3.375 ms)"
    assert " ".join(lines[3].split()) == "bubble_rate_makespan 0.1000 (measured 0.1111)"
    assert " ".join(lines[4].split()) == "bubble_rate_zb 0.0500 (measured 0.1111)"
    assert lines[5] == (
        "    4 microbatches at their median times, without jitter and host; measured are 8, with both; "
        f"--schedule {file.pipeline.schedule.lower()} --microbatches 8 computes these likewise"
    )
    assert "2, 1.5" in lines[6]
    assert lines[-1] == "  assumed: weights\\x1b take a third"


def test_the_picture_has_the_computed_schedule_above(tmp_path: Path) -> None:
    file = bubbles.load(folder(tmp_path / "out", simple(2, 8, steps=2)) / output_names.BUBBLES)
    schedules.compare(file, offer(), tmp_path / "both.svg")
    text = (tmp_path / "both.svg").read_text()
    lanes = [r for r in ElementTree.fromstring(text).iter(f"{SVG}rect") if r.get("class") == "lane"]
    assert len(lanes) == 2 * 3
    captions = ["ZB-H1 on the measured times, 4 microbatches, computed, 15.0 ms", "step 0, 27.0 ms", "step 1, 27.0 ms"]
    assert [text.index(f">{c}<") for c in captions] == sorted(text.index(f">{c}<") for c in captions)


def test_a_picture_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = bubbles.load(folder(tmp_path / "out", simple(2, 4)) / output_names.BUBBLES)
    with pytest.raises(OutputError, match="cannot be written") as said:
        schedules.compare(file, offer(), tmp_path / "out")
    assert "--compare" in said.value.text()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--microbatches", "4"], "--schedule"),
        (["--chunks", "2"], "--schedule"),
        (["--input-share", "0.5"], "--schedule"),
        (["--memory", "1.5"], "--schedule"),
        (["--weight-memory", "0.5"], "--schedule"),
        (["--et", "graphs"], "--schedule"),
        (["--schedule", "zb-2p", "--memory", "1.5"], "--memory is for --schedule auto, not for ZB-2p"),
        (
            ["--schedule", "zb-h1", "--weight-memory", "0.9"],
            "--weight-memory is for --schedule ZB-1p, ZB-2p, auto, not for ZB-H1",
        ),
        (["--schedule", "auto", "--memory", "0"], "no multiple of 1F1B's memory"),
        (
            ["--schedule", "auto", "--memory", "0.1", "--input-share", "0.5"],
            "at least the activations of one microbatch, not of 0.2",
        ),
        (["--schedule", "auto", "--chunks", "2"], "auto has one chunk a rank, not 2"),
        (["--schedule", "1F1B", "--microbatches", "0"], "at least 1"),
        (["--top", "-1"], "no number"),
        (["--schedule", "1F1B", "--input-share", "1.5"], "no share"),
    ],
)
def test_wrong_usage(graphlink: Run, tmp_path: Path, arguments: list[str], word: str) -> None:
    ran = graphlink("bubbles", folder(tmp_path / "out", simple(2, 2)), *arguments)
    assert (ran.status, ran.out, word in ran.err) == (2, "", True)


def test_folders_that_hold_none(graphlink: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where, what in (("none", "no such folder"), ("file", "is no folder"), ("", "no pipeline was found in the run")):
        ran = graphlink("bubbles", tmp_path / where)
        assert (ran.status, ran.out, what in ran.err) == (1, "", True)
        assert len(ran.err.splitlines()) <= 5
    assert "do: name the --out folder of a run with pipeline ranges" in graphlink("bubbles", tmp_path).err


def test_a_broken_file_is_one_message(graphlink: Run, tmp_path: Path) -> None:
    out = folder(tmp_path / "out", simple(2, 2))
    (out / output_names.BUBBLES).write_bytes((out / output_names.BUBBLES).read_bytes()[:-30])
    ran = graphlink("bubbles", out)
    assert (ran.status, ran.out) == (1, "")
    assert "bubbles.json: is no bubbles.json of this version of graphlink" in ran.err
    assert 1 <= len(ran.err.splitlines()) <= 5


def test_the_recorded_schedule_on_its_own_times_takes_as_long(graphlink: Run, tmp_path: Path) -> None:
    out = folder(tmp_path / "out", simple(4, 8, transfer_ns=400_000))
    ran = graphlink("bubbles", out, "--schedule", "1f1b")
    assert (ran.status, ran.err) == (0, "")
    (makespan,) = re.findall(r"makespan +([\d.]+) ms  \(measured ([\d.]+) ms\)", ran.out)
    assert makespan[0] == makespan[1]
    assert "by rank: 4, 3, 2, 1" in ran.out


def test_zero_bubble_on_these_times(graphlink: Run, tmp_path: Path) -> None:
    """Equal times of one unit, p 4, m 8: makespan 27 units against 33, rate .1111."""
    out = folder(tmp_path / "out", simple(4, 8))
    ran = graphlink("bubbles", out, "--schedule", "ZB-H1", "--input-share", "0.5", "--compare", tmp_path / "both.svg")
    assert re.search(r"makespan +27\.000 ms  \(measured 33\.000 ms\)", ran.out)
    assert re.search(r"bubble_rate_makespan +0\.1111  \(measured 0\.2727\)", ran.out)
    assert "ZB-H1 on the measured times, 8 microbatches, computed, 27.0 ms" in (tmp_path / "both.svg").read_text()


def test_a_schedule_that_is_searched(graphlink: Run, tmp_path: Path) -> None:
    out = folder(tmp_path / "out", simple(4, 8, transfer_ns=300_000))
    asked = ("--schedule", "auto", "--memory", "1.5", "--input-share", "0.5")
    ran = graphlink(
        "bubbles",
        out,
        *asked,
        "--compare",
        tmp_path / "both.svg",
        "--et",
        tmp_path / "et",
        "--json",
        tmp_path / "all.json",
    )
    assert (ran.status, ran.err) == (0, "")
    found = json.loads((tmp_path / "all.json").read_text())["what_if"]
    searched = found["searched"]
    assert (found["schedule"], searched["memory"], searched["kept"]) == ("auto", 1.5, 0.5)
    assert searched["peak"] == [a / 4 for a in found["activations"]]
    assert max(searched["peak"]) <= 1.5
    idle = {name: sum(map(sum, searched[name].values())) for name in ("idle", "idle_1f1b")}
    assert idle["idle"] < idle["idle_1f1b"]
    assert f"{ms(idle['idle'])} ms, with 1F1B on the same times {ms(idle['idle_1f1b'])} ms" in ran.out
    rows = block(ran.out, "  where it gains")[1:5]
    assert [row[:2] for row in rows] == [[str(stage), f"{peak:.2f}"] for stage, peak in enumerate(searched["peak"])]
    assert rows[0][2:4] == [
        ms(searched["idle"]["until_backward_ns"][0]),
        f"({ms(searched['idle_1f1b']['until_backward_ns'][0])})",
    ]
    assert "an input gradient frees 50% of a microbatch's activations" in ran.out
    assert f"wrote 4 graphs into {tmp_path / 'et'}\nwrote {tmp_path / 'both.svg'}\n" in ran.out
    assert "auto on the measured times, 8 microbatches, computed, 27.9 ms" in (tmp_path / "both.svg").read_text()
    assert graphlink("check", tmp_path / "et").status == 0
    again = graphlink("replay", tmp_path / "et", "--json", "-")
    (run,) = json.loads(again.out)["runs"]
    assert run["total_ns"] == found["makespan_ns"]


def test_idle_parts_of_1f1b_are_those_of_the_recorded_run(graphlink: Run, tmp_path: Path) -> None:
    given = simple(4, 8, transfer_ns=300_000)
    ran = graphlink(
        "bubbles", folder(tmp_path / "out", given), "--schedule", "zb-1p", "--input-share", "0.5", "--json", "-"
    )
    file = json.loads(ran.out)
    parts = file["what_if"]["searched"]["idle_1f1b"]
    recorded = [stage["idle_ns"]["dependency_stall"] for stage in file["stages"]]
    assert [sum(rank) for rank in zip(*parts.values(), strict=True)] == recorded
    assert parts["until_backward_ns"][3] == 0
    assert file["what_if"]["searched"]["memory"] == 1


def test_graphs_into_a_folder_that_has_some(graphlink: Run, tmp_path: Path) -> None:
    out, asked = folder(tmp_path / "out", simple(2, 4)), ("--schedule", "1f1b", "--et", tmp_path / "et")
    assert graphlink("bubbles", out, *asked).status == 0
    ran = graphlink("bubbles", out, *asked)
    assert (ran.status, ran.out) == (1, "")
    assert "trace.0.et is there already" in ran.err
    assert "name another folder with --et" in ran.err


def test_theory_above_measured(graphlink: Run, tmp_path: Path) -> None:
    out = folder(tmp_path / "out", simple(4, 8, transfer_ns=400_000))
    ran = graphlink("bubbles", out, "--compare", tmp_path / "both.svg")
    assert ran.out.endswith(f"wrote {tmp_path / 'both.svg'}\n")
    assert "1F1B itself: all stages at their mean times, no transfers, 33.0 ms" in (tmp_path / "both.svg").read_text()


def side_by_side() -> RunPipeline:
    """Two pipelines of two stages: ranks 2 and 0, in this order of stages, and ranks 3 and 1, whose times are twice as
    long.
    """
    slow = {phase: 2 * ns for phase, ns in EQUAL.items()}
    (second, first), (slow_second, slow_first) = (
        played(one_f_one_b(2, 4), EQUAL)[::-1],
        played(one_f_one_b(2, 4), slow)[::-1],
    )
    runs = pipeline([second, slow_second, first, slow_first]).runs
    before = (2, 3, -1, -1)
    found = analyse([replace(run, previous=previous) for run, previous in zip(runs, before, strict=True)])
    assert found is not None
    assert (found.schedule, found.stages) == ("1F1B", 2)
    return found


def test_of_several_pipelines_side_by_side_one_counts(graphlink: Run, tmp_path: Path) -> None:
    given = side_by_side()
    assert given.pipe == (0, 1, 0, 1)
    out = folder(tmp_path / "out", given)
    file = bubbles.load(out / output_names.BUBBLES)
    assert [(s.rank, s.stage, s.replica) for s in file.stages] == [(0, 1, 0), (1, 1, 1), (2, 0, 0), (3, 0, 1)]
    ran = graphlink("bubbles", out, "--schedule", "1f1b", "--compare", tmp_path / "other.svg")
    assert (ran.status, ran.err) == (0, "")
    assert re.search(r"makespan +15\.000 ms", ran.out)  # (4 + 1) microbatches of 3 ms
    assert (
        "assumed: times are those of one pipeline of 2 side by side: ranks 2, 0, in the order of their stages"
        in ran.out
    )
    assert graphlink("bubbles", out, "--compare", tmp_path / "own.svg").status == 0
    for name, caption in (
        ("own", "no transfers, one pipeline of 2, 15.0 ms"),
        ("other", "computed, one pipeline of 2, 15.0 ms"),
    ):
        text = (tmp_path / f"{name}.svg").read_text()
        assert f"{caption}<" in text
        assert [int(k) for k in re.findall(r">rank (\d)<", text)][:2] == [2, 0]


def test_a_file_that_tells_no_replica_is_of_one_pipeline(graphlink: Run, tmp_path: Path) -> None:
    out = folder(tmp_path / "out", simple(2, 2))
    (out / output_names.BUBBLES).write_bytes((out / output_names.BUBBLES).read_bytes().replace(b'"replica":0,', b""))
    ran = graphlink("bubbles", out, "--schedule", "1f1b")
    assert (ran.status, "side by side" in ran.out) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--schedule", "nope"], "there is no schedule 'nope'; there are GPipe"),
        (["--schedule", "zb-1p"], "ZB-1p splits backwards, the run did not"),
        (["--schedule", "zb-h1"], "what share of a backward"),
        (["--schedule", "dualpipe", "--input-share", "0.5", "--microbatches", "7"], "even number"),
        (
            ["--schedule", "1f1b", "--microbatches", "50001"],
            "1F1B: 50,001 microbatches with 1 chunk are 100,002 actions a rank, at most",
        ),
        (["--schedule", "zb-h1", "--microbatches", "999999999"], "at most 100,000"),
        (["--schedule", "interleaved", "--chunks", "999999999"], "at most 100,000"),
        (["--schedule", "zb-v", "--input-share", "0.5", "--microbatches", "20000"], "at most 100,000"),
    ],
)
def test_schedules_that_do_not_exist(graphlink: Run, tmp_path: Path, arguments: list[str], word: str) -> None:
    ran = graphlink("bubbles", folder(tmp_path / "out", simple()), *arguments)
    assert (ran.status, ran.out, word in ran.err) == (2, "", True)


def test_as_many_actions_as_are_allowed(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink("bubbles", folder(tmp_path / "out", simple(2, 2)), "--schedule", "1f1b", "--microbatches", "50000")
    assert (ran.status, ran.err) == (0, "")


def test_no_theory_to_draw_of_an_unknown_schedule(graphlink: Run, tmp_path: Path) -> None:
    boxes = played(one_f_one_b(2, 3), EQUAL)
    boxes[0] = boxes[0][:-1]
    ran = graphlink(
        "bubbles", folder(tmp_path / "out", pipeline(boxes, schedule="unknown")), "--compare", tmp_path / "both.svg"
    )
    assert (ran.status, "name one with --schedule" in ran.err, (tmp_path / "both.svg").exists()) == (2, True, False)
