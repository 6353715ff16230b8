"""docs/architecture.md names what there is: folders of the core, the base, wings, their verbs, and what they may add."""

from __future__ import annotations

import re
from pathlib import Path

from graphlink.wings import WINGS, Wing, declarations, imported, stored_type, wing
from tests.test_layers import BASE, CORE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_core_and_the_base_are_those_of_the_test_on_layers() -> None:
    core = section("The core")
    assert re.findall(r"^\| `(\w+)/`", core, re.MULTILINE) == list(CORE)
    assert {name.removesuffix(".py") for name in re.findall(r"`(\w+\.py)`", core.split("The base:")[1])} >= set(BASE)


def test_wings_and_their_verbs_are_listed_in_their_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|$", section("The wings"), re.MULTILINE)
    assert [name for name, _ in rows] == list(WINGS)
    for name, verbs in rows:
        assert sorted(re.findall(r"`([\w-]+)`", verbs)) == sorted(verb.name for verb in wing(name).verbs), name


def test_each_place_where_a_wing_may_add_something_is_listed_once() -> None:
    asked = section("The wings").split("| asked by | in `Wing` |\n")[1]
    rows = [line.split("|")[2] for line in asked.splitlines() if line.startswith("| ")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(name for name in vars(Wing) if not name.startswith("_"))


def test_what_wings_declare_is_there() -> None:
    for kind in ("tables", "answers", "schemas", "fields", "sections", "parts_of", "lead"):
        assert all(imported(text) is not None for _, text in declarations(kind))
    for name in WINGS:
        for verb in wing(name).verbs:
            assert callable(imported(verb.function))
        for text in wing(name).stored:
            assert stored_type(name, text.partition(":")[2]) is not None


def test_each_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|md))`", PAGE)) | set(re.findall(r"`((?:[\w-]+/)+)`", PAGE))
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT / "graphlink", ROOT))]
    assert missing == []
