from __future__ import annotations

from pathlib import Path

from graphlink.run.schemas import schemas

FOLDER = Path(__file__).parents[2] / "schemas"


def test_schema_files_are_what_the_records_say() -> None:
    assert {p.name: p.read_bytes() for p in FOLDER.glob("*.json") if p.name in schemas()} == schemas()
