"""What ``make generated`` writes into docs/ is there: the tables are those that fields of records and modules say."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_of_docs_are_current(tables: ModuleType, tmp_path: Path) -> None:
    for path in DOCS.glob("*.md"):
        shutil.copy(path, tmp_path)
    tables.main(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in DOCS.glob("*.md")
    }


def test_rows_are_those_of_the_records(tables: ModuleType) -> None:
    page = tables.made("<!-- exported: idle -->\nold\n<!-- end -->\n")
    assert "old" not in page
    assert "| `stream` | int64? | of the op that ended it |" in page.splitlines()
    page = tables.made("<!-- figures: graphlink.pipeline.records:PartsNs rest -->\n<!-- end -->")
    assert page.splitlines()[3] == "| `rest` | added by all else: jitter, host, collectives |"
