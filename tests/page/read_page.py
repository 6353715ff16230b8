"""A page read back: its elements, and the figures with where each stands in the files of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "input", "img", "link", "br", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    inner: list[Element | str] = field(default_factory=list)

    def text(self) -> str:
        return "".join(one if isinstance(one, str) else one.text() for one in self.inner)

    def all(self, tag: str = "", attribute: str = "") -> Iterator[Element]:
        for one in self.inner:
            if isinstance(one, Element):
                if (not tag or one.tag == tag) and (not attribute or attribute in one.attributes):
                    yield one
                yield from one.all(tag, attribute)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        one = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inner.append(one)
        if tag not in VOID:
            self.open.append(one)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inner.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].inner.append(data)


def read(text: str) -> Element:
    """Parse a page; every element that is opened is closed."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1
    return reader.root


def figures(root: Element) -> Iterator[tuple[str, str, str]]:
    """Yield of each figure that says where it stands: file and pointer, the value, the text."""
    for one in root.all(attribute="data-at"):
        if one.tag == "dfn":
            yield one.attributes["data-at"], one.attributes["data-v"], one.text()
    for table in root.all("table", "data-at"):
        fields = [head.attributes.get("data-field") for head in table.all("th")]
        for row in table.all("tr", "data-at"):
            for name, cell in zip(fields, row.all("td"), strict=True):
                if name is not None and cell.text():
                    end = "" if name == "." else f"/{name}"
                    value = cell.attributes.get("data-v", cell.text())
                    yield f"{table.attributes['data-at']}{row.attributes['data-at']}{end}", value, cell.text()


def pointed(folder: Path, at: str, given: dict[str, Any]) -> Any:
    """Return what stands at ``file#pointer``; ``given``: documents that are no files."""
    name, _, pointer = at.partition("#")
    if name not in given:
        given[name] = json.loads((folder / name).read_bytes())
    value = given[name]
    for part in pointer.split("/")[1:]:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value
