"""Each wing is a folder and a line: a copy of the package without both does all that the others do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphlink.wings import WINGS, wing

ROOT = Path(__file__).parents[1]
REGISTRY = ROOT / "graphlink" / "wings.py"
DEMO = ROOT / "fixtures" / "demo"
# run in a process of its own: the demo, then every verb on it that there is; what each returned
SCRIPT = """
import contextlib, io, json, sys
from graphlink.cli import main
from graphlink.cli.verbs import VERBS

def status(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            return main(list(words)), err.getvalue()
        except SystemExit as left:
            return left.code, err.getvalue()

demo, out = sys.argv[1:]
ran = {"link": status(f"{demo}/kineto_0.json", f"{demo}/et_0.json", "--out", out)}
words = {
    "join": None, "simulate": None, "scale": None, "link": None, "mcp": None,
    "diff": ["diff", out, out, "--anyway"],
    "show": ["show", out, "-v"],
    "doctor": ["doctor", f"{demo}/kineto_0.json"],
    "replay": ["replay", out, "--scale", "kernel=0.5"],
    "export": ["export", out, "--format", "csv"],
}
for name in VERBS:
    line = words.get(name, [name, out])
    if line is not None:
        ran[name] = status(*line)
for name in VERBS:
    ran[f"{name} --help"] = status(name, "--help")
print(json.dumps(ran))
"""
QUICK = ("advice", "pipeline")
LONG = ("nccl", "logs", "scale", "diff", "astra", "page", "doctor", "mcp")  # only in make test-all
STAY = ("operations", "standstill", "gpu")  # other wings are made of their records: docs/architecture.md


def copied(folder: Path, without: str | None) -> Path:
    """Copy the package, without a wing's folder and its line."""
    package = folder / "graphlink"
    shutil.copytree(ROOT / "graphlink", package)
    if without is not None:
        shutil.rmtree(package / without)
        registry = package / "wings.py"
        lines = registry.read_text().splitlines(keepends=True)
        registry.write_text("".join(line for line in lines if line != f'    "{without}",\n'))
    return folder


def ran(folder: Path, without: str | None) -> dict[str, tuple[int, str]]:
    """Return the exit status and the errors of each verb, in a copy of the package without a wing."""
    place, out = copied(folder / "copy", without), folder / "out"
    environment = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "-c", SCRIPT, str(DEMO), str(out)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads((out / "summary.json").read_text())["ranks"][0]["graph_nodes"] == 356
    return {name: (status, said) for name, (status, said) in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    return ran(tmp_path_factory.mktemp("whole"), None)


@pytest.mark.parametrize("without", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_without_a_wing_the_demo_and_all_other_verbs_run(
    without: str, whole: dict[str, tuple[int, str]], tmp_path: Path
) -> None:
    gone = {verb.name for verb in wing(without).verbs}
    left = {name: status for name, (status, _) in whole.items() if name.split()[0] not in gone}
    told = ran(tmp_path, without)
    assert {name: (status, told[name][1]) for name, (status, _) in told.items() if status != left.get(name)} == {}
    assert set(told) == set(left) and {"link", "show", "replay", "critical-path"} <= {*left}


def test_each_wing_is_taken_out_or_said_to_stay() -> None:
    assert sorted((*QUICK, *LONG, *STAY)) == sorted(WINGS)


def test_the_name_of_a_wing_stands_on_no_line_of_the_core_but_its_own() -> None:
    lines = REGISTRY.read_text().splitlines()
    for name in WINGS:
        assert [line for line in lines if f'"{name}"' in line] == [f'    "{name}",'], name


def test_the_registry_imports_no_wing_before_it_is_used() -> None:
    code = "import sys, graphlink.wings; print([m for m in sys.modules if m.startswith('graphlink.')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "['graphlink.version', 'graphlink.wings']"
    imported = re.findall(r"^(?:from|import) (\S+)", REGISTRY.read_text(), re.MULTILINE)
    assert not [name for name in imported if name.startswith("graphlink")]
