"""docs/notebook.ipynb runs as it is, from start to end, and prints what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def texts(notebook: Any) -> list[tuple[str, list[str]]]:
    """What each cell of code printed, in however many pieces, and the texts of its values."""
    return [
        (
            "".join(out["text"] for out in cell["outputs"] if out["output_type"] == "stream"),
            [out["data"]["text/plain"] for out in cell["outputs"] if out["output_type"] != "stream"],
        )
        for cell in notebook.cells
        if cell["cell_type"] == "code"
    ]


@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
def test_the_notebook_prints_what_it_shows() -> None:
    client: Any = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel, as of the extra dev")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel, as of the extra dev")
    import nbformat

    shown = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    run = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    client.NotebookClient(
        run, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(DOCS)}}
    ).execute()
    assert len(texts(shown)) >= 8 and all(map(any, texts(shown)))
    assert texts(run) == texts(shown)
    assert not [name for cell in shown.cells for name in cell.get("metadata", {}) if name == "execution"]
