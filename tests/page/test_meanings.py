"""The last section of a page explains every heading, cause and colour that the page shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphlink.page.charts import LOOKS, keys_of
from graphlink.page.parts import Page, Table, charts, flat
from graphlink.page.words import HEADINGS, MEANINGS
from tests.page.conftest import RUNS, Compared, Shown
from tests.page.diffs import DIFFS

# headings that need no explanation: they name what stands below them
PLAIN = {
    *("A", "B", "GPU", "call", "cause", "count", "evidence", "execution trace", "for", "formula", "from, in its step"),
    *("group", "host", "in", "its ranks", "kernel", "largest rank", "least rank", "longest kernel", "machine"),
    *("mean ms", "most by", "name", "no.", "not linked", "of", "of memory MiB", "op that waits", "operation", "part"),
    *(
        "note",
        "power W",
        "rank",
        "ranks",
        "rate",
        "recorded at",
        "recorded ms",
        "recording",
        "samples",
        "stage",
        "step",
    ),
    *("temperature C", "timer", "times", "times, A", "unit", "used MiB", "utilisation %", "waits", "waits for"),
    *("warning", "what", "what it is", "what stood still", "what would have shown why", "which was in", "who"),
}


def unexplained(page: Page) -> tuple[set[str], set[str]]:
    """Return the headings, and the words for colours, that have no entry in the last section of a page."""
    parts = [part for section in page.sections for part in section.parts]
    titles, known = {one.title for one in page.meanings}, {one.name for one in page.meanings}
    tables = [part for part in flat(parts) if isinstance(part, Table)]
    keys = {cell.key for table in tables for row in table.rows for cell in row.cells if cell.key}
    keys.update(key for chart in charts(parts) for key in keys_of(chart))
    columns = [column for table in tables for column in table.columns]
    headings = {column.name for column in columns if (column.means or HEADINGS.get(column.name)) not in known}
    return headings - PLAIN, {LOOKS[key].words for key in keys} - titles


@pytest.mark.parametrize("name", RUNS)
def test_a_page_of_a_run_explains_its_words(shown: Callable[[str], Shown], name: str) -> None:
    assert unexplained(shown(name).page) == (set(), set())


@pytest.mark.parametrize("name", DIFFS)
def test_a_page_of_two_runs_explains_its_words(compared: Callable[[str], Compared], name: str) -> None:
    assert unexplained(compared(name).page) == (set(), set())


def test_meanings_are_named_once() -> None:
    titles = [title for title, _ in MEANINGS.values()]
    assert sorted(set(titles)) == sorted(titles)
