"""What README.md shows is true: its commands exist, its snippets run, its output is what the command prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphlink.cli.parser import parse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
DOCS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def test_make_targets_exist() -> None:
    named = set(re.findall(r"`make ([a-z]+)`|\$ make ([a-z]+)", README))
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for pair in named for target in pair if target}
    assert targets >= {"demo", "test", "bench"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("source", [s for s in PYTHON if ", torch" not in s])
def test_python_snippets_run(source: str) -> None:
    ran = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_recording_snippet_records(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
    (source,) = [s for s in PYTHON if ", torch" in s]
    ran = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "recorded" / "et_0.json").exists()


def test_the_demo_prints_what_is_shown(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^\$ make demo\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    recipe = (ROOT / "Makefile").read_text().partition("\ndemo: ")[2].partition("\n\n")[0]
    commands = re.findall(r"\$\(BIN\)/(.*)", recipe)
    assert len(commands) == 3
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    printed = []
    for command in commands:
        words = command.replace("graphlink ", "python -m graphlink ", 1).split()[1:]
        ran = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        printed += ran.stdout.splitlines()
    assert (tmp_path / "graphlink-demo" / "out" / "report.html").exists()
    assert not [line for line in shown.splitlines() if line.strip() not in ("...", "") and line not in printed]


def test_commands_shown_are_understood() -> None:
    commands = re.findall(r"`(graphlink [^`]+)`", README) + re.findall(r"^(graphlink --.+)$", README, re.MULTILINE)
    for command in commands:
        words = [word.strip("'") for word in command.split()[1:] if word not in ("...", "link")]
        if words and words[0] not in ("--help",) and "\\|" not in command:
            parse(words)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_and_named_files_exist(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (path.parent / target).exists(), target
    for module in re.findall(r"`((?:depend|link|read|emit|check|annotate|replay)/\w+\.py)`", text):
        assert (ROOT / "graphlink" / module).exists(), module


def test_readme_stays_short() -> None:
    assert len(README.splitlines()) < 150
