"""The pipeline's rows of the timeline, as Perfetto's own trace processor reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphlink import output_names
from graphlink.causes import Cause
from graphlink.model import NOWHERE
from graphlink.perfetto.packets import encode
from graphlink.pipeline.outputs import trace_of
from graphlink.pipeline.records import Pass, RunPipeline
from graphlink.report import timeline
from graphlink.tables import take
from graphlink.wings import wing
from tests.pipeline.hand import communication, every_kind, records
from tests.pipeline.pipelines import Box, Gap, pipeline, simple
from tests.pipeline.test_bubbles import ODD, hostile
from tests.report.test_timeline import ERRORS, on, shown, written
from tests.trace_processor import Row, query

ARGS = ("stage", "chunk", "microbatch", "step", "busy_ns", "device_ops", "rule", "evidence")
ARG_COLUMNS = ", ".join(f"extract_arg(s.arg_set_id, 'debug.{a}') as {a}" for a in ARGS)
SLICES = f"""
select s.ts, s.dur, s.depth, s.name, t.name as row, p.name as process, {ARG_COLUMNS}
from slice s join process_track t on t.id = s.track_id join process p using (upid) order by s.ts, s.id"""


def asked(given: RunPipeline) -> list[Row]:
    errors, rows = query(b"".join(encode(trace_of(given))), ERRORS, SLICES)
    assert errors == []
    assert {r["process"] for r in rows} <= {"pipeline"}
    return rows


@pytest.mark.parametrize(
    "given", [simple(), simple(chunks=2, steps=2), simple(split_backward=True)], ids=["1F1B", "chunks", "I and W"]
)
def test_a_slice_a_range_and_one_an_idle_interval(given: RunPipeline) -> None:
    rows = asked(given)
    assert len(rows) == sum(len(run.ranges.phase) for run in given.runs) + len(given.idle.rank)
    assert {r["depth"] for r in rows} == {0}
    assert len({r["row"] for r in rows}) == 2 * given.stages
    for rank, run in zip(given.ranks, given.runs, strict=True):
        ranges = run.ranges
        label = f"stage {rank}" if given.chunks == 1 else f"rank {rank}: stages {rank}, {rank + 4}"
        mine = [r for r in rows if r["row"] == label]
        order = np.argsort(ranges.start_ns, kind="stable").tolist()
        names = [Pass(ranges.phase[i]).name + (str(k) if (k := ranges.microbatch[i]) != NOWHERE else "") for i in order]
        assert [r["name"] for r in mine] == names
        assert [r["ts"] for r in mine] == ranges.start_ns[order].tolist()
        assert [r["dur"] for r in mine] == (ranges.end_ns - ranges.start_ns)[order].tolist()
        for name in ("stage", "chunk", "microbatch", "step", "busy_ns", "device_ops"):
            value = getattr(ranges, name)[order].tolist()
            assert [r[name] for r in mine] == [None if v == NOWHERE else v for v in value], name
        assert {r["rule"] for r in mine} == {"by hand"}
        free, idle = [r for r in rows if r["row"] == f"bubbles of {label}"], given.idle
        at = np.flatnonzero(idle.rank == rank)
        assert [r["name"] for r in free] == [Cause(c).name.lower() for c in idle.cause[at]]
        assert [(r["ts"], r["ts"] + r["dur"]) for r in free] == list(
            zip(idle.start_ns[at].tolist(), idle.end_ns[at].tolist(), strict=True)
        )
        assert [r["evidence"] for r in free] == [idle.texts[k] for k in idle.evidence[at]]
        assert [r["step"] for r in free] == idle.step[at].tolist()


def test_it_stands_beside_the_ranks_without_disturbing_them(tmp_path: Path) -> None:
    comm = communication()
    for rank in (0, 3):
        (tmp_path / timeline.part_name(rank)).write_bytes(written(shown(every_kind(), records(), comm, rank=rank)))
    alone = query(b"".join((tmp_path / timeline.part_name(rank)).read_bytes() for rank in (0, 3)), SLICES)[0]
    assert (
        timeline.join(tmp_path, [0, 3], [lambda out: wing("pipeline").tracks(out, simple())]) == output_names.TIMELINE
    )
    errors, rows = query((tmp_path / output_names.TIMELINE).read_bytes(), ERRORS, SLICES)
    assert errors == []
    assert [r for r in rows if r["process"] != "pipeline"] == alone
    assert len(on([{**r, "rank": r["process"]} for r in rows], "stage 2", "pipeline")) == 17
    assert [p.name for p in tmp_path.iterdir()] == [output_names.TIMELINE]


def test_ranges_at_the_same_time_have_rows_of_one_name() -> None:
    boxes = [[Box(Pass.F, 0, 0, 0, 100), Box(Pass.B, 0, 0, 50, 150), Box(Pass.F, 0, 1, 150, 200)]]
    rows = asked(pipeline(boxes, [[Gap(200, 260, Cause.UNKNOWN)]]))
    assert [(r["name"], r["ts"], r["dur"], r["depth"], r["row"]) for r in rows] == [
        ("F0", 0, 100, 0, "stage 0"),
        ("B0", 50, 100, 0, "stage 0"),
        ("F1", 150, 50, 0, "stage 0"),
        ("unknown", 200, 60, 0, "bubbles of stage 0"),
    ]
    assert rows[-1]["evidence"] is None


def test_times_before_zero_and_hostile_names() -> None:
    boxes = [[Box(Pass.F, 0, 0, -500, -100), Box(Pass.B, 0, 0, -100, 70)]]
    assert [(r["ts"], r["dur"]) for r in asked(pipeline(boxes))] == [(0, 400), (400, 170)]
    rows = asked(hostile())
    said = ODD.encode("utf-8", "backslashreplace").decode().split("\0")[0]  # the trace processor's strings end at NUL
    assert {(r["rule"] or "").split("\0")[0] for r in rows if not r["row"].startswith("bubbles")} == {said}


def test_nothing_found_is_an_empty_trace() -> None:
    given, none = simple(), np.zeros(0, np.int64)
    run = replace(given.runs[0], ranges=take(given.runs[0].ranges, none))
    assert asked(replace(given, runs=(run,), idle=take(given.idle, none))) == []
