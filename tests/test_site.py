"""docs/ builds as a site without a warning: links lead somewhere, each page is in the navigation, nothing is fetched
from elsewhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FETCHED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["'](?:https?:)?//[^"']+""")
PREFIX = re.compile(r"graphlink\.(?:run|engine|capture\.(?:session|schedule)|errors)\.")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs mkdocs-material and mkdocstrings-python, as of the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return folder


def test_no_page_fetches_anything(site: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    assert set(pages) >= {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")} | {
        "CONTRIBUTING.html",
        "CHANGELOG.html",
    }
    assert not {
        name: found for name, page in pages.items() if (found := FETCHED.findall(page.replace('rel="canonical"', "")))
    }
    assert FETCHED.search('<script defer src="https://unpkg.com/x.js">') and not list(site.glob("*.py"))


def test_the_api_page_has_the_public_names(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (site / "api.html").read_text(encoding="utf-8"))
    for name in ("link", "open", "Run", "Recordings", "Options", "RunsOn", "capture", "capture.Schedule", "UsageError"):
        assert f"graphlink.{name}" in page, name
    assert not PREFIX.findall(page) and "ranges" in page
