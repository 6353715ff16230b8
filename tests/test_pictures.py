"""The pictures in docs/ are those that ``make pictures`` makes, to the byte."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SHOWN = re.compile(r"!\[[^]]+\]\(([^)]+\.(?:svg|png))\)")


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_those_of_the_command(pictures: ModuleType, tmp_path: Path) -> None:
    pictures.main(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: (DOCS / name).read_bytes() for name in pictures.PICTURES}


def test_every_picture_shown_is_made(pictures: ModuleType) -> None:
    """Also for readers who do not see it: each has a text in its place."""
    shown = [
        name for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"] for name in SHOWN.findall(page.read_text())
    ]
    assert {Path(name).name for name in shown} == set(pictures.PICTURES)
    assert {path.name for path in DOCS.iterdir() if path.suffix in (".svg", ".png")} == set(pictures.PICTURES)
