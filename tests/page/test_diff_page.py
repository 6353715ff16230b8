"""The page of two runs compared says what the report of the comparison does, and names in it are text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from graphlink.diff.page_matched import MOST_ROWS
from graphlink.diff.table import diff_table
from graphlink.page import words
from graphlink.page.parts import Bars, Table, flat
from graphlink.records import plain
from tests.page.conftest import Compared
from tests.page.diffs import DIFFS
from tests.page.hostile import NAMES
from tests.page.read_page import figures, read
from tests.page.test_safety import ELEMENTS

Compare = Callable[[str], Compared]
LEAST = {"planted": 280, "cluster": 150, "pipelines": 100, "itself": 50}


def _at(data: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


@pytest.mark.parametrize("name", DIFFS)
def test_every_figure_is_the_one_of_the_report(compared: Compare, name: str) -> None:
    of = compared(name)
    data, found = msgspec.to_builtins(of.report), list(figures(read(of.html)))
    assert len(found) >= LEAST[name]
    for at, value, text in found:
        file, _, pointer = at.partition("#")
        there = _at(data, pointer)
        assert file == "diff"
        assert (
            float(value) == there if isinstance(there, int | float) and not isinstance(there, bool) else text == there
        ), at


def _parts(of: Compared, section: str) -> list[Any]:
    return [part for one in of.page.sections if one.name == section for part in flat(one.parts)]


@pytest.mark.parametrize("name", DIFFS)
def test_the_page_answers_as_the_text_does(compared: Compare, name: str) -> None:
    of = compared(name)
    first = diff_table(of.report, 6)[0]
    assert isinstance(first, str) and first.startswith(of.page.title)
    lead = "".join(one if isinstance(one, str) else one.text for sentence in of.page.lead for one in sentence.words)
    assert (
        f"takes {words.time(of.report.verdict.before_ns)} in A and {words.time(of.report.verdict.after_ns)} in B"
        in lead
    )
    causes = [one for one in of.report.changes if one.tier != "effect"]
    assert not causes or f"What changed first of all: {causes[0].what}" in lead
    if of.report.fail_on is not None:
        assert of.report.fail_on.why in lead


@pytest.mark.parametrize("name", DIFFS)
def test_causes_stand_in_their_order_and_before_effects(compared: Compare, name: str) -> None:
    of = compared(name)
    order = [section.name for section in of.page.sections]
    assert order.index("changes") < order.index("time") < order.index("steps-of-both")
    for section, wanted in (("changes", False), ("effects", True)):
        tables = [part for part in _parts(of, section) if isinstance(part, Table)]
        told = [one.what for one in of.report.changes if (one.tier == "effect") == wanted]
        at = [column.name for column in tables[0].columns].index("what") if tables else 0
        assert [row.cells[at].text for table in tables for row in table.rows] == told


@pytest.mark.parametrize("name", DIFFS)
def test_bars_of_the_time_have_all_of_it(compared: Compare, name: str) -> None:
    of, split = compared(name), compared(name).report.split
    bars = {part.name: part for part in _parts(of, "time") if isinstance(part, Bars)}
    for bar, field in zip(bars["split"].bars, ("before_ns", "after_ns"), strict=True):
        negative = sum(min(getattr(part, field), 0) for part in split.parts)
        assert sum(one.value for one in bar.segments) == getattr(split, field) - negative
    if name == "itself":
        assert "split-change" not in bars
    else:
        assert sum(one.value for bar in bars["split-change"].bars for one in bar.segments) == split.change_ns


def test_every_step_is_a_row(compared: Compare) -> None:
    of = compared("cluster")
    (table,) = _parts(of, "steps-of-both")
    assert isinstance(table, Table)
    assert [[cell.value for cell in row.cells] for row in table.rows] == [
        [k, *pair] for k, pair in enumerate(zip(of.report.before.steps_ns, of.report.after.steps_ns, strict=True), 1)
    ]


def test_operations_say_what_came(compared: Compare) -> None:
    of = compared("planted")
    table = next(part for part in _parts(of, "operations") if isinstance(part, Table) and part.name == "ops")
    assert len(table.rows) == min(len(of.report.operations), MOST_ROWS)
    came = [row for row in table.rows if row.cells[1].text == "B alone"]
    assert {(row.cells[0].whole or row.cells[0].text).split("/")[-1] for row in came} >= {
        name for name in NAMES if "/" not in name
    }
    assert [row for row in table.rows if row.cells[1].text == ""]


def test_pipelines_stand_side_by_side(compared: Compare) -> None:
    of = compared("pipelines")
    table = next(part for part in _parts(of, "pipelines") if isinstance(part, Table))
    rows = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.rows}
    assert rows["microbatches"] == ["4", "8"]
    found = of.report.pipeline
    assert found is not None and rows["bubble rate"] == [
        f"{one:.4f}" for one in (found.bubble_rate_before, found.bubble_rate_after)
    ]


def test_the_straggler_is_named(compared: Compare) -> None:
    of = compared("cluster")
    assert of.report.straggler_after
    assert of.report.straggler_after in read(of.html).text()
    assert any(part.name == "ranks" for part in _parts(of, "time") if isinstance(part, Table))


@pytest.mark.parametrize("name", DIFFS)
def test_names_are_text_and_the_page_loads_nothing(compared: Compare, name: str) -> None:
    root = read(compared(name).html)
    of = list(root.all())
    assert {one.tag for one in of} <= ELEMENTS
    assert [one.tag for one in of].count("script") == 1
    assert not [
        key for one in of for key in one.attributes if key.startswith("on") or key in ("src", "srcset", "style")
    ]
    assert all(one.attributes["href"].startswith("#") for one in of if "href" in one.attributes)
    assert not set(compared(name).html) & {
        "\x1b",
        "\x07",
        "\x00",
        "\x7f",
        "\u0085",
        "\u202e",
        "\u202c",
        "\u2066",
        "\u2069",
        "\u200f",
    }
    if name == "planted":
        assert all(plain(one)[:20] in root.text() for one in NAMES)


@pytest.mark.parametrize("name", DIFFS)
def test_every_figure_has_a_meaning(compared: Compare, name: str) -> None:
    page = compared(name).page
    known = {one.name for one in page.meanings}
    for section in page.sections:
        for table in (part for part in flat(section.parts) if isinstance(part, Table)):
            assert {column.means for column in table.columns} <= {"", *known}, table.name
