"""Pages in a real browser: no error, no request, nothing that keeps people from reading them; tables and tooltips work.

Debian's chromium, driven by playwright; skipped where either is not there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphlink.page.parts import Cell, Column, Page, Row, Section, Table
from graphlink.page.render import html
from tests.page.conftest import Compared, Shown
from tests.page.diffs import DIFFS

Show = Callable[[str], Shown]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SHOWN = (
    "alone",
    "many",
    "pipeline",
    "hostile",
    "planted",
    "cluster",
)  # one page of each sort; with all its parts unfolded
READ = ("alone", "many", "pipeline", "cluster")
UNFOLD = "for (const one of document.querySelectorAll('details')) one.open = true"
ALIKE = (
    "tbody tr:nth-child(n + 3), .chart rect:nth-of-type(n + 20), .proposals li:nth-child(n + 4)"  # axe takes its time
)
FEW = f"for (const one of document.querySelectorAll('{ALIKE}')) one.remove()"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(
    browser: Any, shown: Show, compared: Callable[[str], Compared], tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """Opens the page of a run, or of two compared; afterwards nothing was said on the console, and nothing was
    requested but the page.
    """
    told: list[str] = []
    contexts = []

    def show(name: str, *, scheme: str = "light", width: int = 1280) -> Any:
        file = tmp_path / f"{name}.html"
        file.write_text((compared if name in DIFFS else shown)(name).html, encoding="utf-8")
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: told.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: told.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
        )
        page.goto(file.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert told == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("many", "cluster") else pytest.mark.long) for name in READ]
)
def test_nothing_keeps_people_from_reading(opened: Callable[..., Any], name: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = opened(name)
    page.evaluate(UNFOLD)
    page.evaluate(FEW)
    assert _serious(axe, page) == []
    page.click(".theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert _serious(axe, page, runOnly=["color-contrast"]) == []


def _serious(axe: Any, page: Any, **options: Any) -> list[str]:
    found = axe.Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", SHOWN)
def test_a_narrow_window_scrolls_down_only(opened: Callable[..., Any], name: str) -> None:
    page = opened(name, width=400, scheme="dark")
    page.evaluate(UNFOLD)
    assert page.evaluate("window.hit") is None  # no name of a recording became a script
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    bars = page.evaluate(
        "[...document.querySelectorAll('figure .scroll:has(.narrow)')].map(one => one.scrollWidth - one.clientWidth)"
    )
    assert bars and max(bars) <= 0  # charts of bars are there whole
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


def _cells(page: Any, table: str, column: int) -> list[str]:
    rows = f"#{table} tbody tr"
    shown: list[str] = page.evaluate(
        "([rows, k]) => Array.from(document.querySelectorAll(rows)).filter((r) => !r.hidden).map((r) => "
        "r.cells[k].dataset.v ?? '')",
        [rows, column],
    )
    return shown


def test_tables_sort_by_number_both_ways_and_say_so(opened: Callable[..., Any]) -> None:
    page = opened("many")
    head = page.locator("#gpus th").nth(2)
    before = _cells(page, "gpus", 2)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    down = [float(value) for value in _cells(page, "gpus", 2)]
    assert down == sorted(map(float, before), reverse=True)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(value) for value in _cells(page, "gpus", 2)] == sorted(down)
    page.locator("#gpus th button").last.click()
    assert head.get_attribute("aria-sort") is None


def test_tables_can_be_filtered(opened: Callable[..., Any]) -> None:
    page = opened("alone")
    count = len(_cells(page, "ops-0", 1))
    page.fill("#ops-0-f", "LINEAR")
    left = _cells(page, "ops-0", 1)
    assert 0 < len(left) < count
    assert page.inner_text("#ops-0 .shown") == f"{len(left)} of {count} rows"
    page.fill("#ops-0-f", "")
    assert len(_cells(page, "ops-0", 1)) == count


def test_of_many_rows_some_are_shown_and_all_are_sorted_and_filtered(browser: Any, tmp_path: Path) -> None:
    rows = [Row([Cell(f"op {k}"), Cell(f"{k} ns", k)]) for k in range(1_000)]
    table = Table("rows", "Rows", [Column("name"), Column("time", "number")], rows)
    long = Page(title="Long", about="", lead=[], sections=[Section("long", "Long", [table])], meanings=[])
    (tmp_path / "long.html").write_text(html(long), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "long.html").as_uri())
    assert _cells(page, "rows", 1) == [str(k) for k in range(200)]
    assert page.inner_text("#rows .shown") == "the first 200 of 1,000 rows"
    page.click("#rows th:nth-child(2) button")
    assert _cells(page, "rows", 1) == [str(k) for k in range(999, 799, -1)]
    page.click("#rows .more")
    assert len(_cells(page, "rows", 1)) == 400
    page.fill("#rows-f", "op 12")
    assert _cells(page, "rows", 1) == ["129", "128", "127", "126", "125", "124", "123", "122", "121", "120", "12"]
    context.close()


def test_the_keyboard_reaches_the_content_and_what_figures_mean(opened: Callable[..., Any]) -> None:
    page = opened("alone")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "fig":
            break
    assert page.evaluate("document.activeElement.className") == "fig"
    assert page.locator("#tip").is_visible()
    assert page.inner_text("#tip").startswith("step: ")
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    page.locator("#ops-0 th button").nth(2).focus()
    assert page.inner_text("#tip").startswith("device time: ")
    page.keyboard.press("Escape")
    page.hover("#ops-0 tbody tr:first-child td:nth-child(2)")
    page.wait_for_selector("#tip:not([hidden])")
    assert page.inner_text("#tip").startswith("calls: ")


def test_commands_and_places_are_copied(opened: Callable[..., Any]) -> None:
    page = opened("alone")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    page.locator("#gains .command .copy").first.click()
    assert page.evaluate("window.copied").startswith("graphlink replay ")
    button = page.locator("#steps-0 .copy").first
    button.click()
    at = int(button.get_attribute("data-place"))
    assert f"between {at - 2000} and {at + 2000}" in page.evaluate("window.copied")
    assert page.inner_text("#said") == "Copied"


def test_the_strip_zooms_and_tells_what_is_there(opened: Callable[..., Any]) -> None:
    page = opened("many")
    region, here, window = (page.locator(f"#run-strip {of}") for of in (".scroll", ".here", ".zoom span"))
    drawn = page.get_attribute("#run-strip .part", "d")
    assert window.inner_text().startswith("the whole run, ")
    region.focus()
    for key in ("ArrowRight", "ArrowDown", "+", "+"):
        page.keyboard.press(key)
    assert here.inner_text().startswith("rank 1, ") and " %" in here.inner_text()
    assert page.inner_text("#said") == here.inner_text()
    assert " to " in window.inner_text()
    assert page.get_attribute("#run-strip .part", "d") != drawn
    page.keyboard.press("0")
    assert page.get_attribute("#run-strip .part", "d") == drawn
    box = page.locator("#run-strip .ground").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 3)
    assert here.inner_text().startswith("rank 0, ")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 3, steps=3)
    page.mouse.up()
    assert " to " in window.inner_text()
    page.get_by_role("button", name="Show the whole run").first.click()
    assert window.inner_text().startswith("the whole run, ")


@pytest.mark.parametrize("name", ["alone", "many"])
def test_on_paper_nothing_is_wider_than_it(opened: Callable[..., Any], name: str) -> None:
    page = opened(name, width=703)  # A4 within its margins
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    wide = "Array.from(document.querySelectorAll('table, svg, p, img'), (one) => one.getBoundingClientRect().right)"
    assert max(page.evaluate(wide)) <= 704


def test_tables_print_whole(browser: Any, tmp_path: Path) -> None:
    rows = [Row([Cell(f"op {k}")]) for k in range(1_000)]
    table = Table("rows", "Rows", [Column("name")], rows)
    long = Page(title="Long", about="", lead=[], sections=[Section("long", "Long", [table])], meanings=[])
    (tmp_path / "long.html").write_text(html(long), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "long.html").as_uri())
    count = "document.querySelectorAll('#rows tbody tr').length"
    assert page.evaluate(count) == 200
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(count) == 1_000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(count) == 200
    page.close()


def test_paper_shows_what_is_folded_away(opened: Callable[..., Any]) -> None:
    page = opened("many")
    assert page.locator("details:not([open])").count() > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


@pytest.mark.parametrize("width", [400, 1400])
def test_legends_wrap_and_no_text_of_a_chart_is_cut_at_its_edge(opened: Callable[..., Any], width: int) -> None:
    page = opened("hostile", width=width)
    page.evaluate(UNFOLD)
    assert page.evaluate("document.querySelectorAll('.legend span').length") > 1
    assert not page.evaluate(
        "Array.from(document.querySelectorAll('.legend span, .chart text')).filter((e) => e.textContent.trim() && "
        "getComputedStyle(e).visibility !== 'hidden').filter((e) => { const inner = e.getBoundingClientRect(), outer = "
        "e.closest('.legend, .chart').getBoundingClientRect(); return inner.width && (inner.left < outer.left - 1 || "
        "inner.right > outer.right + 1); }).map((e) => e.textContent)"
    )
