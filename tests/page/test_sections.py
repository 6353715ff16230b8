"""The sections of pages of runs of every sort, and what they say where there is nothing to say."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from graphlink.figures import column
from graphlink.operations.page import MOST_ROWS
from graphlink.operations.records import Operations
from graphlink.page.charts import svg
from graphlink.page.parts import Bar, Bars, Heat, Page, Part, Segment, Sentence, Table, flat
from graphlink.page.render import html
from graphlink.page.run_page import run_page
from graphlink.page.words import table as page_table
from graphlink.report import summary
from tests.page.conftest import RUNS, Shown
from tests.page.read_page import read
from tests.trace_processor import query

Show = Callable[[str], Shown]
ALL = ["time", "gpu", "gains", "path", "operations", "syncs", "communication", "recording"]
HOST = [name for name in ALL if name != "gpu"]
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def parts(of: Shown, section: str) -> list[Part]:
    return flat(next(one.parts for one in of.page.sections if one.name == section))


def said(of: Shown, section: str) -> str:
    sentences = [part for part in parts(of, section) if isinstance(part, Sentence)]
    return " ".join(
        "".join(one if isinstance(one, str) else one.text for one in sentence.words) for sentence in sentences
    )


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("alone", ALL),
        ("host", HOST),
        ("many", ALL),
        ("pipeline", [*HOST[:-1], "pipelines", "recording"]),
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
    assert [len(heat.columns) for heat in heats] == [18, 18]
    assert len([part for part in parts(of, "gpu") if isinstance(part, Table) and part.name.startswith("causes-")]) <= 4
    (gpus,) = [part for part in parts(of, "gpu") if isinstance(part, Table) and part.name == "gpus"]
    assert len(gpus.rows) == 18
    shares = [row.cells[-2].value or 0 for row in gpus.rows]
    assert shares == sorted(shares, reverse=True)


def test_without_gpus_the_page_says_so(shown: Show) -> None:
    titles = [section.title for section in shown("host").page.sections]
    assert titles[0] == "The run over time" and "GPU time by cause" not in titles
    (table,) = [part for part in parts(shown("host"), "operations") if isinstance(part, Table)]
    assert "most host time first" in table.caption
    assert "device" not in [column.name for column in table.columns]


def test_times_of_a_column_are_in_one_unit() -> None:
    shown = page_table(
        "t", "Times", [column("time", "ns", ns) for ns in ([125_000_000, 184_000, None], [184_000, 250, 0])]
    )
    assert [[cell.text for cell in row.cells] for row in shown.rows] == [
        ["125.000 ms", "184.000 us"],
        ["0.184 ms", "0.250 us"],
        ["", "0.000 us"],
    ]


def test_a_rank_alone_says_that_nobody_can_be_waited_for(shown: Show) -> None:
    assert "A rank alone does not show who waited for whom" in said(shown("alone"), "communication")
    assert said(shown("host"), "communication") == "The run has one rank, which waits for no other."


def test_a_rank_alone_of_several_is_no_complete_recording(shown: Show) -> None:
    assert "There are no warnings." in said(shown("alone"), "recording")
    assert "There are no warnings." in said(shown("host"), "recording")


def test_bars_say_what_is_uncertain(shown: Show) -> None:
    (bars,) = [part for part in parts(shown("alone"), "gains") if isinstance(part, Bars)]
    notes = {one.label: one.note for one in bars.bars}
    halved = "927 us, 15.5 %, a step 14.2 %, uncertain"
    assert notes["elementwise ops that run as kernels of their own"] == halved
    assert [note for label, note in notes.items() if "reduce_kernel" in label] == [
        "931 us, 15.5 %, a step 17.7 %, uncertain"
    ]
    assert not notes["copies that nothing hides"].endswith(", uncertain"), "a bound has no band"


def test_gains_above_the_time_of_an_op_are_explained(shown: Show) -> None:
    assert "A gain may exceed host and device time" in said(shown("alone"), "operations")
    assert "A gain may exceed" not in said(shown("host"), "operations")


def test_a_pipeline_has_its_picture_its_stages_and_its_rates(shown: Show) -> None:
    of = shown("pipeline")
    names = [getattr(part, "name", "") for part in parts(of, "pipelines")]
    assert {"pipeline", "stages-bars", "stages", "rates", "bubbles"} <= set(names)
    (image,) = read(of.html).all("img")
    assert image.attributes["src"].startswith("data:image/svg+xml;base64,")
    lead = "".join(one if isinstance(one, str) else one.text for one in of.page.lead[0].words)
    assert lead.count("of the pipeline stand idle") == 1 and "stood idle" not in lead, "once"


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


def places_beside_slices(folder: Path, page: Page) -> list[int]:
    """The places of a page at which nothing of the timeline begins, within what the copied query allows for."""
    tables = [part for section in page.sections for part in flat(section.parts) if isinstance(part, Table)]
    places = sorted(
        {cell.place for table in tables for row in table.rows for cell in row.cells if cell.place is not None}
    )
    assert len(places) > 20
    (rows,) = query((folder / "timeline.perfetto-trace").read_bytes(), "select distinct ts from slice order by ts")
    starts = [int(row["ts"]) for row in rows]
    return [at for at in places if bisect_left(starts, at - 2_000) == bisect_right(starts, at + 2_000)]


@pytest.mark.parametrize("name", ["alone", "pipeline", "hostile"])
def test_every_place_is_the_start_of_a_slice(shown: Show, name: str) -> None:
    assert places_beside_slices(shown(name).folder, shown(name).page) == []


@pytest.mark.long
def test_every_place_of_a_recording_that_ends_with_a_wait_is_the_start_of_a_slice(tmp_path: Path) -> None:
    recording = TRACES / "legacy" / "v100_resnet50_2021_operator_steps.json.gz"
    if not recording.is_file():
        pytest.skip("the public recordings are not here")
    from graphlink.cli import main

    assert main([str(recording), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    page = run_page(tmp_path / "out", summary.load(tmp_path / "out" / "summary.json"))
    assert places_beside_slices(tmp_path / "out", page) == []


def graph_epoch(folder: Path) -> int:
    import graphlink

    return graphlink.open(folder).graph(0).epoch_ns


def test_long_tables_end_with_where_the_rest_is(shown: Show, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from msgspec.structs import replace

    from graphlink.operations import records

    read_file = records.load

    def long(path: Path) -> Operations:
        whole = read_file(path)
        return replace(whole, operations=[replace(whole.operations[0], path=[f"op {k}"]) for k in range(5_000)])

    monkeypatch.setattr(records, "load", long)
    of = shown("alone")
    page = run_page(of.folder, summary.load(of.folder / "summary.json"))
    (table,) = [
        part for section in page.sections for part in flat(section.parts) if getattr(part, "name", "") == "ops-0"
    ]
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


def _shades(chart: Heat) -> list[str]:
    return re.findall(r'class="h-(\d)" x="[\d.]+" y="(?!2")', svg(chart))


def test_times_that_are_nearly_the_same_have_one_middle_shade() -> None:
    near = Heat("near", "t", "s", ["step"], ["0", "1", "2"], "rank", [[1_000_000, 1_001_000, 1_002_000]])
    far = Heat("far", "t", "s", ["step"], ["0", "1", "2"], "rank", [[1_000_000, 1_500_000, 2_000_000]])
    assert (_shades(near), _shades(far)) == (["3", "3", "3"], ["0", "3", "6"])


def test_small_shares_that_differ_have_shades_of_their_own() -> None:
    shares = [0.0, 0.015, 0.04, 0.09, 0.2, 0.4, 0.9]
    chart = Heat("shares", "t", "s", ["idle"], [str(k) for k in range(7)], "rank", [list(shares)], "share")
    assert _shades(chart) == ["0", "1", "2", "3", "4", "5", "6"]


def test_bars_to_the_left_of_zero_begin_where_those_to_the_right_do() -> None:
    bars = Bars(
        "b", "t", "s", [Bar("a", [Segment("compute", -300)], "-300 ns"), Bar("b", [Segment("compute", 600)], "+600 ns")]
    )
    boxes = re.findall(r'class="k-compute" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg(bars))
    (left, wide), (right, double) = [tuple(map(float, box)) for box in boxes]
    assert abs(left + wide - right) < 0.02 and abs(double - 2 * wide) < 0.02


def test_figures_of_gpus_are_where_they_belong(shown: Show) -> None:
    of = shown("many")
    tables = {
        part.name: part for name in ("gpu", "communication") for part in parts(of, name) if isinstance(part, Table)
    }
    assert "hidden comm" in {column.name for column in tables["gpus"].columns}
    assert len(tables["hidden"].rows) >= 18
    assert "The GPU worked for " in said(of, "gpu")


def test_no_advice_for_gpus_where_there_are_none(shown: Show) -> None:
    assert "device ops begin late" not in shown("pipeline").html
