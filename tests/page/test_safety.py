"""Names of recordings are anybody's: on the page and in its charts they are text, and the page loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from graphlink.page.charts import svg
from graphlink.page.parts import (
    Bar,
    Bars,
    Cell,
    Chart,
    Column,
    Figure,
    Heat,
    Meaning,
    Page,
    Row,
    Section,
    Segment,
    Sentence,
    Strip,
    StripCell,
    Table,
)
from graphlink.page.render import html, pictures
from graphlink.records import plain
from tests.page.conftest import RUNS, Shown
from tests.page.hostile import CONTROLS, HEBREW, MARKUP, NAMES
from tests.page.read_page import Element, read

Show = Callable[[str], Shown]
ELEMENTS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "script",
        "header",
        "nav",
        "main",
        "section",
        "footer",
        "div",
        "p",
        "a",
        "ul",
        "ol",
    ),
    *(
        "li",
        "dl",
        "dt",
        "dd",
        "dfn",
        "bdi",
        "span",
        "code",
        "button",
        "label",
        "input",
        "details",
        "summary",
        "figure",
        "figcaption",
        "img",
    ),
    *("h1", "h2", "h3", "h4", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "defs", "pattern", "rect", "path", "text", "g", "desc"),
}


def elements(root: Element) -> list[Element]:
    return list(root.all())


@pytest.mark.parametrize("name", RUNS)
def test_the_page_has_the_elements_of_its_templates_and_no_others(shown: Show, name: str) -> None:
    of = elements(read(shown(name).html))
    assert {one.tag for one in of} <= ELEMENTS
    assert [one.tag for one in of].count("script") == 1
    assert not [key for one in of for key in one.attributes if key.startswith("on") or key == "style"]
    assert {key for one in of for key in one.attributes if key in ("href", "src", "srcset", "action", "data")} <= {
        "href",
        "src",
    }
    links = [one.attributes["href"] for one in of if "href" in one.attributes]
    assert links and all(link.startswith("#") for link in links)
    assert all(one.attributes["src"].startswith("data:image/svg+xml;base64,") for one in of if "src" in one.attributes)


@pytest.mark.parametrize("name", RUNS)
def test_the_policy_allows_this_style_and_this_script_alone(shown: Show, name: str) -> None:
    root = read(shown(name).html)
    (policy,) = [
        one.attributes["content"]
        for one in root.all("meta")
        if one.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (one,) = root.all(tag)
        digest = base64.b64encode(hashlib.sha256(one.text().encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules.pop("img-src", "data:") == "data:"
    assert rules == {"base-uri": "'none'", "form-action": "'none'"}
    (style,) = root.all("style")
    assert not re.search(r"url\((?!#)|@import", style.text())


def test_hostile_names_are_text(shown: Show) -> None:
    of = shown("hostile")
    text = read(of.html).text()
    for name in NAMES:
        assert plain(name) in text or plain(name)[:20] in text, name
    assert not set(of.html) & {
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
    assert "\\x1b[31mred" in of.html
    assert HEBREW in of.html


def drawn(name: str) -> list[Chart]:
    return [
        Bars("bars", name, name, [Bar(name, [Segment("compute", 3), Segment("python", 4)], name)]),
        Bars("signed", name, name, [Bar(name, [Segment("compute", -3)], name), Bar(name, [Segment("python", 4)])]),
        Strip("strip", name, name, [name, name], 100, 10, [StripCell(0, 0, 10, [Segment("host", 10)])]),
        Heat("heat", name, name, [name], [name, name], name, [[1, None]]),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_text_in_charts(name: str) -> None:
    for chart in drawn(name):
        for alone in (False, True):
            root = ET.fromstring(svg(chart, alone=alone))
            tags = {one.tag.rpartition("}")[2] for one in root.iter()}
            assert tags <= {"svg", "title", "desc", "rect", "text", "path", "g", "style", "defs", "pattern"}
            assert not [key for one in root.iter() for key in one.attrib if key.startswith("on") or "href" in key]


def test_what_has_no_look_is_drawn_as_unknown() -> None:
    """Keys of segments may come out of a file."""
    bars = Bars("bars", "t", "s", [Bar("b", [Segment('x"/><script>', 3), Segment("python", 4)])])
    assert "script" not in svg(bars) and 'class="k-unknown"' in svg(bars)


@pytest.mark.parametrize("name", [MARKUP, CONTROLS])
def test_every_text_of_a_page_is_text(name: str) -> None:
    """Whatever part of a page a name gets into."""
    words = [name, Figure(name), Figure(name, 1, "idle", name)]
    table = Table(
        "t",
        name,
        [Column(name), Column(name, "number")],
        [Row([Cell(name, whole=name + "."), Cell(name, 1)], name)],
        name,
        name,
    )
    page = Page(
        title=name,
        about=name,
        lead=[Sentence(words)],
        sections=[Section("s", name, [Sentence(words), table, *drawn(name)])],
        meanings=[Meaning("idle", name, name)],
    )
    root = read(html(page))
    assert {one.tag for one in elements(root)} <= ELEMENTS
    assert [one.tag for one in elements(root)].count("script") == 1
    assert "\x1b" not in html(page) and "\u202e" not in html(page)


def test_pictures_are_whole_files_with_legend_and_colours(shown: Show) -> None:
    made = pictures(shown("hostile").page)
    assert {"gpu-by-rank.svg", "path-0-strip.svg"} <= set(made)
    for name, data in made.items():
        root = ET.fromstring(data)
        assert root.tag.endswith("svg") and name.endswith(".svg")
        used = set(re.findall(rb'class="k-(\w+)"', data))
        assert all(b'<pattern id="k-' + key + b'"' in data for key in used)
