"""The page says nothing that the files of the run do not: every figure that names its place is the one that stands
there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import graphlink
from graphlink.causes import CAUSES
from graphlink.page import words
from graphlink.page.parts import Page, Table, flat
from graphlink.page.render import html
from graphlink.records import size, time
from graphlink.run.schemas import schemas
from tests.page.conftest import RUNS, Shown
from tests.page.read_page import figures, pointed, read

Show = Callable[[str], Shown]
LEAST = {"alone": 200, "logs": 200, "host": 10, "many": 500, "pipeline": 200, "paddle": 40, "hostile": 100}


@pytest.mark.parametrize("name", RUNS)
def test_every_figure_is_the_one_of_the_file(shown: Show, name: str) -> None:
    of = shown(name)
    found = list(figures(read(of.html)))
    assert len(found) >= LEAST[name]
    given: dict[str, Any] = {}
    if name != "paddle":
        given["advice"] = msgspec.to_builtins(graphlink.open(of.folder).advice())
    for at, value, text in found:
        there = pointed(of.folder, at, given)
        assert float(value) == there if isinstance(there, int | float) else text == there, at


def test_the_verdict_says_the_figures_of_the_summary(shown: Show) -> None:
    of = shown("alone")
    (rank,) = json.loads((of.folder / "summary.json").read_bytes())["ranks"]
    gpus = [gpu for step in rank["steps"][1:] for gpu in step["gpu"]]
    computed_ns, whole_ns = sum(gpu["compute_ns"] for gpu in gpus), sum(gpu["to_ns"] - gpu["from_ns"] for gpu in gpus)
    lead = "".join(one if isinstance(one, str) else one.text for sentence in of.page.lead for one in sentence.words)
    assert f"A step takes {time(rank['iterations']['mean_ns'])}" in lead
    assert f"the GPU spends {100 * computed_ns / whole_ns:.1f} % of {time(whole_ns)} computing" in lead
    best = graphlink.open(of.folder).advice().advice[0]
    of_run = f"{time(best.gain_ns or 0)} in all, {best.gain_pct:.1f} % of the critical path"
    assert f"{best.what}. It saves {best.gain_step_pct:.1f} % of a step ({of_run}) " in lead


@pytest.mark.parametrize("name", ["alone", "many"])
def test_bars_of_gpus_have_all_their_time(shown: Show, name: str) -> None:
    of = shown(name)
    (section,) = [one for one in of.page.sections if one.name == "gpu"]
    summary = json.loads((of.folder / "summary.json").read_bytes())
    spans = {f"rank {rank['rank']}": gpu["to_ns"] - gpu["from_ns"] for rank in summary["ranks"] for gpu in rank["gpu"]}
    (bars,) = [part for part in section.parts if getattr(part, "name", "") == "gpu-by-rank"]
    assert bars.bars  # type: ignore[union-attr]
    for bar in bars.bars:  # type: ignore[union-attr]
        assert sum(one.value for one in bar.segments) == spans[bar.label]


@pytest.mark.parametrize("name", ["alone", "many", "pipeline", "hostile"])
def test_strips_have_all_the_time_of_their_path(shown: Show, name: str) -> None:
    strips = [part for section in shown(name).page.sections for part in flat(section.parts) if hasattr(part, "cells")]
    assert strips
    for strip in strips:
        spent = sum(one.value * part.count for part in strip.parts for one in part.segments)  # type: ignore[union-attr]
        whole = strip.length_ns  # type: ignore[union-attr]
        if strip.name == "run-strip":  # type: ignore[union-attr]
            ranks = json.loads((shown(name).folder / "summary.json").read_bytes())["ranks"]
            on_hosts = not any(rank["gpu"] for rank in ranks)
            whole = sum(gpu["to_ns"] - gpu["from_ns"] for rank in ranks for gpu in rank["gpu"])
            whole += sum(rank["replay"]["measured_ns"] for rank in ranks if on_hosts)
            assert abs(spent - whole) <= 0.005 * whole  # a level of 61 is rounded
        else:
            assert abs(spent - whole) <= 2 * strip.cells  # type: ignore[union-attr] # each is rounded


def test_all_causes_and_shares_have_a_look_and_a_meaning(shown: Show) -> None:
    from graphlink.graph.critical import SHARES
    from graphlink.page.charts import LOOKS
    from graphlink.pipeline.file import CAUSES as OF_PIPELINES

    assert {*CAUSES, *SHARES, *OF_PIPELINES} - {"optimizer_sync"} <= set(LOOKS)
    for name in RUNS:
        for section in shown(name).page.sections:
            for table in (part for part in flat(section.parts) if isinstance(part, Table)):
                assert {column.means for column in table.columns} <= {"", *words.MEANINGS}, table.name


def test_numbers_have_few_digits_and_a_unit() -> None:
    times = (0, 45, 999, 1_000, 45_000, 999_600, 1_234_567, 61_265_384, 999_999_999, 12_345_678_901)
    assert [time(ns) for ns in times] == [
        *("0 ns", "45 ns", "999 ns", "1.00 us", "45.0 us", "1.00 ms", "1.23 ms", "61.3 ms", "1.00 s", "12.3 s")
    ]
    assert [size(count) for count in (12, 227_328, 5e9)] == ["12 B", "227 kB", "5.00 GB"]


@pytest.mark.parametrize("name", ["alone", "paddle"])
def test_the_same_folder_gives_the_same_page(shown: Show, name: str) -> None:
    of = shown(name)
    assert graphlink.open(of.folder).report() == of.html


def test_data_are_a_page_and_follow_their_schema(shown: Show) -> None:
    data = msgspec.json.encode(shown("many").page)
    again = msgspec.json.decode(data, type=Page)
    assert html(again) == shown("many").html
    schema = json.loads(schemas()["report.schema.json"])
    assert set(json.loads(data)) == set(schema["$defs"]["Page"]["properties"])
