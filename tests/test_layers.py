"""Data flows one way: a module imports from its own stage, from stages before it and from the base, and nothing else of
the project.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "graphlink"
BASE = (
    "causes",
    "choices",
    "errors",
    "figures",
    "graph_model",
    "hatches",
    "model",
    "output_names",
    "patterns",
    "process",
    "publish",
    "records",
    "spans",
    "steps",
    "student",
    "tables",
    "version",
    "wings",
)
CORE = ("engine", "read", "linking", "depend", "graph", "replay", "perfetto", "ranks", "report", "run", "cli")
WINGS = (
    "doctor",
    "page",
    "standstill",
    "nccl",
    "pipeline",
    "gpu",
    "operations",
    "logs",
    "advice",
    "diff",
    "scale",
    "astra",
    "mcp",
)
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text(), str(path))))


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Dotted names of all modules that a file imports, anywhere in it, but for type checkers' eyes only."""
    hidden = {
        id(inner)
        for node in nodes(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: list[str] = []
    for node in nodes(path):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module
            names.append(node.module)
            if node.module == "graphlink":
                names += (f"graphlink.{alias.name}" for alias in node.names)
    return tuple(names)


def own(path: Path) -> list[str]:
    """First part under ``graphlink`` of what a file imports of the project."""
    return [name.split(".")[1] for name in imported(path) if name.startswith("graphlink.")]


def label(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def stage_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_a_module_imports_only_from_stages_before_it(path: Path) -> None:
    """The core knows no wing; a wing knows the core, and wings before it."""
    stage = stage_of(path)
    if stage in BASE:
        allowed = set(BASE)
    elif stage in CORE:
        allowed = {*BASE, *CORE[: CORE.index(stage) + 1]} | ({"capture"} if stage == "cli" else set())
    elif stage in WINGS:
        allowed = {*BASE, *CORE, *WINGS[: WINGS.index(stage) + 1]} | ({"capture"} if stage == "doctor" else set())
    elif stage == "capture":
        allowed = {"errors", "version", stage}
    else:
        assert stage in ("__init__", "__main__"), f"{label(path)} belongs to no stage"
        allowed = {*BASE, "cli"}
    assert not set(own(path)) - allowed


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("hta", {"depend/hta.py", "depend/hta_feed.py"}),
        ("pandas", {"depend/hta.py", "depend/hta_feed.py", "run/tables.py"}),
        ("networkx", {"graph/networkx.py"}),
        ("isal", {"read/source.py"}),
        ("backports", {"read/source.py"}),
        ("ray", {"engine/ray.py"}),
        ("pyarrow", {"run/export.py"}),
        ("regex", {"patterns.py"}),
        ("jinja2", {"page/render.py"}),
        ("resvg_py", {"page/render.py"}),
        ("fsspec", {"engine/files.py"}),
        ("mcp", {"mcp/verb_mcp.py"}),
        ("torch", {label(path) for path in MODULES if stage_of(path) == "capture"}),
    ],
)
def test_a_heavy_library_is_imported_in_one_place(library: str, allowed: set[str]) -> None:
    assert {label(path) for path in MODULES if any(name.split(".")[0] == library for name in imported(path))} <= allowed


def test_only_who_reads_or_writes_graphs_knows_the_chakra_messages() -> None:
    users = {label(path) for path in MODULES if any(name.split(".")[0] == "chakra" for name in imported(path))}
    assert {user for user in users if not user.startswith(("graph/", "astra/"))} == set()


def test_only_the_command_line_prints_or_exits() -> None:
    def speaks(path: Path) -> bool:
        calls = (node.func for node in nodes(path) if isinstance(node, ast.Call))
        return any(ast.unparse(call) in ("print", "sys.exit", "exit", "quit", "os._exit") for call in calls)

    outside = {label(path) for path in MODULES if stage_of(path) not in ("cli", "__main__")}
    assert not {name for name in outside if speaks(PACKAGE / name)}


def test_the_simulated_machine_needs_nothing_of_what_it_judges() -> None:
    files = (PACKAGE.parent / "tests" / "simulator").glob("*.py")
    assert {name for path in files for name in own(path)} <= {"errors", "version"}


def test_modules_stay_short() -> None:
    lines = {label(path): len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: count for name, count in lines.items() if count > 550}
