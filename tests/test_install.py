"""What docs/light.txt installs is what graphlink needs: its dependencies and theirs, without those that it does not use."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LIGHT = Path(__file__).parents[1] / "docs" / "light.txt"
CONSTRAINTS = LIGHT.parents[1] / "constraints.txt"  # `make lock`
UNUSED = {"jupyterlab", "plotly", "pydot", "graphviz", "pytest"}  # HolisticTraceAnalysis and mlc-chakra ask for them


def test_the_light_install_is_complete_and_no_more() -> None:
    listed = {
        canonicalize_name(Requirement(line).name): Requirement(line)
        for line in LIGHT.read_text().splitlines()
        if line and not line.startswith("#")
    }
    needed: set[str] = set()
    todo = ["graphlink"]
    for name in todo:
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            child = canonicalize_name(requirement.name)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if not wanted or child in UNUSED | needed:
                continue
            needed.add(child)
            todo.append(child)
            if name == "graphlink":
                assert listed[child].specifier == requirement.specifier, child
    here = {name for name, requirement in listed.items() if not requirement.marker or requirement.marker.evaluate()}
    assert needed <= here
    assert here - needed <= {"holistictraceanalysis", "six", "tzdata"}, (
        "python-dateutil and pandas need some of them in some versions"
    )


def test_the_locked_versions_are_those_that_the_project_asks_for() -> None:
    locked = [Requirement(line) for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    here = {canonicalize_name(one.name): one for one in locked if one.marker is None or one.marker.evaluate()}
    for text in distribution("graphlink").requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": "dev"}):
            (version,) = here[canonicalize_name(wanted.name)].specifier
            assert wanted.specifier.contains(version.version), wanted
