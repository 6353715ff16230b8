from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from graphlink import output_names
from graphlink.causes import OF_STAGES, Cause
from graphlink.cli.out import rendered
from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.pipeline import file as bubbles
from graphlink.pipeline import records
from graphlink.pipeline.records import Pass, Rates, RunPipeline
from tests.pipeline.pipelines import EPOCH_NS, EQUAL, Box, Gap, gaps_of, idle_of, one_f_one_b, pipeline, played, simple

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "bubbles.schema.json").read_text())
ODD = '"\\ </script>\n\t\x00\x1b[31m\u202e\U0001f600 \ud800'


def written(given: RunPipeline) -> dict:
    return json.loads(b"".join(bubbles.blocks(given)))


def hostile() -> RunPipeline:
    boxes = played(one_f_one_b(2, 2), EQUAL)
    gaps = [[replace(g, evidence=ODD) for g in mine] for mine in gaps_of(boxes)]
    return replace(pipeline(boxes, gaps, rules=(ODD,)), warnings=(ODD,), nearest=ODD)


def paddle() -> RunPipeline:
    """A run that shows ranges only."""
    return pipeline(played(one_f_one_b(4, 8), EQUAL), sees_device=False, sees_causes=False)


CASES = {
    "one step": lambda: simple(),
    "steps": lambda: simple(steps=3),
    "chunks": lambda: simple(chunks=2),
    "I and W": lambda: simple(split_backward=True),
    "delay": lambda: simple(transfer_ns=500_000),
    "one rank": lambda: simple(1, 1),
    "names": hostile,
    "logs": paddle,
    "no schedule": lambda: pipeline(played(one_f_one_b(2, 3), EQUAL), schedule="unknown"),
}


@pytest.fixture(params=list(CASES))
def given(request: pytest.FixtureRequest) -> RunPipeline:
    return CASES[request.param]()


def test_names_are_those_of_the_records() -> None:
    assert [p.name for p in Pass] == list(bubbles.PHASES)
    assert [c.name.lower() for c in OF_STAGES] == list(bubbles.CAUSES)


def test_it_is_the_contract(given: RunPipeline) -> None:
    file = written(given)
    assert {"definition", "stages", "ranges", "idle"} <= set(file)
    assert len(file["ranges"]) == sum(len(run.ranges.phase) for run in given.runs)
    assert len(file["idle"]) == len(given.idle.rank)
    for stage in file["stages"]:
        assert {"rank", "stage", "work_ns", "idle_ns"} <= set(stage)
        assert stage["work_ns"] + sum(stage["idle_ns"].values()) == stage["makespan_ns"]
        listed = [e for e in file["idle"] if e["rank"] == stage["rank"] and e["cause"] != "optimizer_sync"]
        for cause, ns in stage["idle_ns"].items():
            assert ns == sum(e["end_ns"] - e["start_ns"] for e in listed if e["cause"] == cause)
        for step in file["steps"]:
            idle = sum(e["end_ns"] - e["start_ns"] for e in listed if e["step"] == step["number"])
            assert step["work_ns"][file["stages"].index(stage)] + idle == step["end_ns"] - step["start_ns"]
    assert sum(file["pipeline"]["causes_ns"].values()) == sum(sum(s["idle_ns"].values()) for s in file["stages"])


def test_it_has_the_published_schema(given: RunPipeline) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(written(given), SCHEMA)


def test_records_come_back_as_they_were(given: RunPipeline, tmp_path: Path) -> None:
    path = tmp_path / output_names.BUBBLES
    path.write_bytes(b"".join(bubbles.blocks(given)))
    file = bubbles.load(path)
    for run, ranges in zip(given.runs, bubbles.ranges_of(file), strict=True):
        for name in ("phase", "step", "stage", "chunk", "microbatch", "start_ns", "end_ns", "busy_ns", "rule"):
            assert getattr(ranges, name).tolist() == getattr(run.ranges, name).tolist(), name
        assert len(ranges.rules) == len(set(run.ranges.rule.tolist()))
    idle = bubbles.idle_of(file)
    for name in ("rank", "step", "start_ns", "end_ns", "cause"):
        assert getattr(idle, name).tolist() == getattr(given.idle, name).tolist(), name
    said = [given.idle.texts[k].encode("utf-8", "backslashreplace").decode() for k in given.idle.evidence.tolist()]
    assert [idle.texts[k] for k in idle.evidence.tolist()] == said
    assert tuple(file.steps) == given.steps


def test_written_in_pieces_it_is_what_one_struct_would_be(given: RunPipeline, tmp_path: Path) -> None:
    path = tmp_path / output_names.BUBBLES
    path.write_bytes(b"".join(bubbles.blocks(given)))
    assert json.loads(msgspec.json.encode(bubbles.load(path))) == written(given)


def test_the_same_words_stand_in_the_summary() -> None:
    given = simple(steps=2)
    entry = bubbles.summarised(given)
    assert written(given)["pipeline"] == json.loads(msgspec.json.encode(entry))
    assert (entry.stages, entry.microbatches, entry.chunks, entry.schedule) == (4, 8, 1, "1F1B")
    assert (round(entry.bubble_rate_makespan, 4), round(entry.bubble_ratio_ideal, 4)) == (0.2727, 0.375)
    assert entry.causes_ns["warmup"] == 2 * 6_000_000
    assert entry.optimizer_sync_ns == 2 * 4 * 500_000
    assert "optimizer_sync" not in entry.causes_ns


@pytest.mark.parametrize("rate", ["bubble_rate_makespan", "bubble_rate_zb", "bubble_ratio_ideal"])
def test_a_rate_says_what_it_is(rate: str) -> None:
    said = written(simple(steps=2))["definition"][rate]
    assert said["name"] == rate
    assert (said["steps"], said["communication_is_work"], said["optimizer_inside"]) == ([0, 1], False, False)
    assert said["formula"]
    unknown = replace(simple(), rates=Rates())
    file = written(unknown)
    assert "value" not in file["definition"][rate]
    assert rate not in file["pipeline"]


def test_what_logs_cannot_know_is_absent_and_said_so() -> None:
    file, full = written(paddle()), written(pipeline(played(one_f_one_b(4, 8), EQUAL)))
    seen = {"warmup", "cooldown", "dependency_stall", "unknown"}
    assert set(file["stages"][0]["idle_ns"]) == set(file["pipeline"]["causes_ns"]) == seen
    assert set(file["definition"]["causes_not_seen"]) == set(bubbles.CAUSES) - seen - {"optimizer_sync"}
    assert not any("device_ops" in entry for entry in file["ranges"])
    assert file["stages"][0]["optimizer_sync_ns"] == 0
    assert "no device" in file["definition"]["work"]
    assert (file["definition"]["sees_device"], full["definition"]["sees_device"]) == (False, True)
    for entry in full["ranges"]:
        del entry["device_ops"]
    assert file["ranges"] == full["ranges"]
    assert full["definition"]["causes_not_seen"] == []
    assert set(full["stages"][0]["idle_ns"]) == set(bubbles.CAUSES) - {"optimizer_sync"}


def test_an_unknown_schedule_names_the_nearest_and_has_no_theory() -> None:
    entry = written(CASES["no schedule"]())["pipeline"]
    assert entry["schedule"] == "unknown"
    assert "first" not in entry
    assert entry["nearest"].startswith("1F1B; ")
    assert "theory" not in entry


def test_a_range_shows_only_what_is_known() -> None:
    boxes = [[Box(Pass.F, 0, 0, 5, 9), Box(Pass.OPT, NOWHERE, NOWHERE, 10, 12, NOWHERE, NOWHERE)]]
    last, first = written(pipeline(boxes))["ranges"]  # by step, unknown ones first
    assert first == {
        "rank": 0,
        "stage": 0,
        "chunk": 0,
        "phase": "F",
        "microbatch": 0,
        "step": 0,
        "start_ns": 5,
        "end_ns": 9,
        "busy_ns": 4,
        "device_ops": 3,
        "rule": "by hand",
    }
    assert set(first) - set(last) == {"stage", "chunk", "microbatch", "step"}


def test_size_stays_linear_and_each_entry_has_a_line() -> None:
    given = simple(16, 64)
    lines = b"".join(bubbles.blocks(given)).splitlines()
    assert len(lines) == 1 + 16 * (64 * 2 + 1) + 1 + len(given.idle.rank)
    assert all(json.loads(line.rstrip(b",]")) for line in lines[1:200])


def cut(data: bytes) -> bytes:
    return data[:-40]


BROKEN = {
    "cut": cut,
    "empty": lambda data: b"",
    "other": lambda data: b'{"a": 1}',
    "list": lambda data: b"[]",
    "cause": lambda data: data.replace(b'"cause":"warmup"', b'"cause":"bad luck"'),
    "phase": lambda data: data.replace(b'"phase":"F"', b'"phase":"X"'),
    "huge": lambda data: data.replace(b'"device_ops":3', b'"device_ops":99999999999999999999999'),
    "rank": lambda data: data.replace(b'{"rank":1,"stage":1,"step"', b'{"rank":77,"stage":1,"step"'),
    "not text": lambda data: data.replace(b"by hand", b"by \xff\xfe"),
    "layers": lambda data: data.replace(
        b'"replica":0,', b'"replica":0,"layers":[{"chunk":0,"phase":0,"mean_ns":[0,0,0]}],'
    ),
}


@pytest.mark.parametrize("how", list(BROKEN))
def test_a_broken_file_is_said(how: str, tmp_path: Path) -> None:
    path, data = tmp_path / output_names.BUBBLES, b"".join(bubbles.blocks(simple(2, 2)))
    assert BROKEN[how](data) != data
    path.write_bytes(BROKEN[how](data))
    with pytest.raises(
        InputError, match=r"is no bubbles\.json|rank 77 is none of its stages|its layers take no time"
    ) as said:
        bubbles.load(path)
    assert str(path) in said.value.text()


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no pipeline was found") as said:
        bubbles.load(tmp_path / output_names.BUBBLES)
    assert "do:" in said.value.text()


def test_the_summary_prints_it() -> None:
    text = rendered(records.pipeline_table(bubbles.summarised(simple())))
    assert text.splitlines()[0] == "pipeline, 1F1B: 4 stages, 8 microbatches, 1 chunk"
    assert "0.2727 of the time from the first start to the last end of the stages (the schedule itself 0.2727)" in text
    assert "36.000 ms: dependency_stall (it waited for work of another device or rank) 50.0 %, cooldown (its" in text
    assert "optimizer_sync 2.000 ms" in text
    unknown = rendered(records.pipeline_table(bubbles.summarised(CASES["no schedule"]())))
    assert "schedule unknown" in unknown
    assert "rank 1 runs B0" in unknown


def test_nothing_idle() -> None:
    given = pipeline([[Box(Pass.F, 0, 0, 0, 10), Box(Pass.B, 0, 0, 10, 30)]])
    assert given.rates.bubble_rate_makespan == 0
    text = rendered(records.pipeline_table(bubbles.summarised(given)))
    assert "0.000 ms" in text


def test_idle_of_many_causes_sums_up() -> None:
    boxes = [[Box(Pass.F, 0, 0, EPOCH_NS, EPOCH_NS + 10), Box(Pass.B, 0, 0, EPOCH_NS + 100, EPOCH_NS + 130)]]
    inside = [c for c in OF_STAGES if c != Cause.OPTIMIZER_SYNC]
    bounds = (EPOCH_NS + np.linspace(10, 100, len(inside) + 1).astype(np.int64)).tolist()
    gaps = [[Gap(a, b, c, c.name) for a, b, c in zip(bounds, bounds[1:], inside, strict=False)]]
    file = written(pipeline(boxes, gaps))
    assert sum(file["stages"][0]["idle_ns"].values()) == 90
    assert all(ns > 0 for ns in file["stages"][0]["idle_ns"].values())
    assert idle_of(gaps).texts == tuple(c.name for c in inside)
