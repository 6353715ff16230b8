"""The sections of pages of runs of every sort, and what they say where there is nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from graphlink.operations.records import Operations
from graphlink.page.parts import Heat, Part, Sentence, Table, flat
from graphlink.page.render import html
from graphlink.page.run_page import run_page
from graphlink.page.sections.operations import MOST_ROWS
from graphlink.report import summary
from tests.page.conftest import RUNS, Shown
from tests.page.read_page import read

Show = Callable[[str], Shown]
ALL = ["gpu", "gains", "path", "operations", "syncs", "communication", "recording"]
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def parts(of: Shown, section: str) -> list[Part]:
    return flat(next(one.parts for one in of.page.sections if one.name == section))


def said(of: Shown, section: str) -> str:
    sentences = [part for part in parts(of, section) if isinstance(part, Sentence)]
    return " ".join("".join(one if isinstance(one, str) else one.text for one in sentence.words) for sentence in sentences)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("alone", ALL),
        ("host", ALL),
        ("many", ALL),
        ("pipeline", [*ALL[:-1], "pipelines", "recording"]),
        ("paddle", ["pipelines", "recording"]),
    ],
)
def test_sections_stand_in_their_order(shown: Show, name: str, sections: list[str]) -> None:
    of = shown(name)
    assert [one.name for one in of.page.sections] == sections
    assert len(of.page.lead) == 3
    assert all(section.parts for section in of.page.sections)


@pytest.mark.parametrize("name", RUNS)
def test_headings_descend_one_by_one_and_ids_are_unique(shown: Show, name: str) -> None:
    root = read(shown(name).html)
    levels = [int(one.tag[1]) for one in root.all() if one.tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [one.attributes["id"] for one in root.all(attribute="id")]
    assert len(ids) == len(set(ids))
    for one in root.all(attribute="aria-describedby"):
        assert one.attributes["aria-describedby"] in ids


@pytest.mark.parametrize("name", RUNS)
def test_tables_and_charts_say_what_they_are(shown: Show, name: str) -> None:
    root = read(shown(name).html)
    for table in root.all("table"):
        assert next(table.all("caption")).text()
        assert all(head.attributes["scope"] == "col" for head in table.all("th"))
        assert len({len(list(row.all("td"))) for row in next(table.all("tbody")).all("tr")}) <= 1
    for chart in root.all("svg"):
        if "chart" in chart.attributes.get("class", ""):
            assert chart.attributes["role"] == "img"
            assert next(chart.all("title")).text() and next(chart.all("desc")).text()


def test_of_many_ranks_all_are_in_heat_maps_and_few_in_detail(shown: Show) -> None:
    of = shown("many")
    heats = [part for part in parts(of, "gpu") if isinstance(part, Heat)]
    assert [len(heat.columns) for heat in heats] == [24, 24]
    assert len([part for part in parts(of, "gpu") if isinstance(part, Table) and part.name.startswith("causes-")]) <= 4
    (gpus,) = [part for part in parts(of, "gpu") if isinstance(part, Table) and part.name == "gpus"]
    assert len(gpus.rows) == 24
    shares = [row.cells[-2].value or 0 for row in gpus.rows]
    assert shares == sorted(shares, reverse=True)


def test_without_gpus_the_page_says_so(shown: Show) -> None:
    assert "No device ops were recorded" in said(shown("host"), "gpu")
    (table,) = [part for part in parts(shown("host"), "operations") if isinstance(part, Table)]
    assert "most host time first" in table.caption
    assert "device" not in [column.name for column in table.columns]


def test_a_rank_alone_says_that_nobody_can_be_waited_for(shown: Show) -> None:
    assert "A rank alone does not show who waited for whom" in said(shown("alone"), "communication")


def test_a_pipeline_has_its_picture_its_stages_and_its_rates(shown: Show) -> None:
    of = shown("pipeline")
    names = [getattr(part, "name", "") for part in parts(of, "pipelines")]
    assert {"pipeline", "stages-bars", "stages", "rates", "bubbles"} <= set(names)
    (image,) = read(of.html).all("img")
    assert image.attributes["src"].startswith("data:image/svg+xml;base64,")
    assert "The pipeline stood idle for" in "".join(one if isinstance(one, str) else one.text for one in of.page.lead[0].words)


def test_logs_stand_in_the_recording(shown: Show) -> None:
    assert "nvidia-smi node1.csv" in said(shown("logs"), "recording")
    assert "Megatron train.log" in said(shown("logs"), "recording")
    assert "nvidia-smi" not in said(shown("alone"), "recording")


def test_places_lead_to_slices_of_the_timeline(shown: Show) -> None:
    of = shown("alone")
    epoch = graph_epoch(of.folder)
    (steps,) = [part for part in parts(of, "gpu") if isinstance(part, Table) and part.name == "steps-0"]
    first = steps.rows[0].cells[-1]
    assert first.place == epoch + (first.value or 0)
    assert not any(
        cell.place
        for section in shown("many").page.sections
        for part in flat(section.parts)
        if isinstance(part, Table)
        for row in part.rows
        for cell in row.cells
    )  # --no-timeline


def graph_epoch(folder: Path) -> int:
    import graphlink

    return graphlink.open(folder).graph(0).epoch_ns


def test_long_tables_end_with_where_the_rest_is(shown: Show, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from msgspec.structs import replace

    from graphlink.operations import file

    read_file = file.load

    def long(path: Path) -> Operations:
        whole = read_file(path)
        return replace(whole, operations=[replace(whole.operations[0], path=[f"op {k}"]) for k in range(5_000)])

    monkeypatch.setattr(file, "load", long)
    of = shown("alone")
    page = run_page(of.folder, summary.load(of.folder / "summary.json"))
    (table,) = [part for section in page.sections for part in flat(section.parts) if getattr(part, "name", "") == "ops-0"]
    assert isinstance(table, Table)
    assert len(table.rows) == MOST_ROWS
    assert table.more.startswith("4,700 more operations") and table.more.endswith("in ops.0.json.")
    assert len(html(page).encode()) < 1_500_000


def test_pages_are_small(shown: Show) -> None:
    assert len(shown("many").html.encode()) < 1_000_000
    assert len(shown("host").html.encode()) < 200_000


@pytest.mark.long
@pytest.mark.parametrize("name", ["megatron-tp2-v100", "dlrm8-v100", "resnet-ddp2-a100"])
def test_pages_of_public_recordings_are_small(name: str, tmp_path: Path) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip("the public recordings are not here")
    from graphlink.cli import main

    assert main([str(TRACES / name), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert main(["report", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "report.html").stat().st_size < 1_500_000
