"""The blocks of docs/recipes.md run as they stand, each alone, and print something."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADED = re.split(r"^## ", (ROOT / "docs" / "recipes.md").read_text(), flags=re.MULTILINE)[1:]
RECIPES = {
    part.splitlines()[0]: re.findall(r"^```python\n(.*?)^```", part, re.MULTILINE | re.DOTALL) for part in HEADED
}


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_of_ten_lines_runs_as_it_stands(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (recipe,) = RECIPES[title]
    assert len(recipe.splitlines()) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(recipe, {"__name__": "__recipe__"})
    assert printed.getvalue().strip()
