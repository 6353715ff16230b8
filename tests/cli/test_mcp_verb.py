"""``graphlink mcp``: verbs that only read, for agents, below one folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphlink.cli.verbs import VERBS
from graphlink.errors import GraphlinkError, UsageError
from graphlink.mcp.verb_mcp import answer, tools
from graphlink.run.schemas import FILES
from tests.cli.conftest import Ran

CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("show", {"dir": "one"}, "summary"),
    ("show", {"dir": "one/trace.0.et", "node": 27}, "node"),
    ("replay", {"dir": "one", "scale": ["kernel=0.5"], "rank": 0}, "replay"),
    ("replay", {"dir": "one", "list": "kernel"}, "replay.list"),
    ("critical-path", {"dir": "one", "across": True, "rank": None}, "critical_path.ranks"),
    ("idle", {"dir": "one", "top": 2}, "idle.report"),
    ("advice", {"dir": "one"}, "advice.report"),
    ("ops", {"dir": "one"}, "ops.report"),
    ("diff", {"a": "one", "b": "deep/two"}, "diff"),
    ("check", {"dir": "one"}, "check"),
    ("doctor", {"file": ["traces"]}, "doctor"),
]


@pytest.fixture(scope="module")
def root(graphlink_once: Callable[..., Ran], traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two output folders and their recordings, and beside them one that is nobody's business."""
    base = tmp_path_factory.mktemp("mcp")
    assert graphlink_once(traces, "--out", base / "outside", "--jobs", "1", "-q").status == 0
    for name in ("root/one", "root/deep/two"):
        shutil.copytree(base / "outside", base / name)
    shutil.copytree(traces, base / "root" / "traces")
    return base / "root"


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_each_tool_tells_what_its_schema_says_and_changes_nothing(root: Path) -> None:
    before = state(root)
    assert json.loads(answer(root, "runs", {})) == {"runs": ["deep/two", "one"]}
    for name, given, record in CALLS:
        assert record in VERBS[name].tells
        msgspec.json.decode(answer(root, name, given), type=FILES[f"{record}.schema.json"])
    assert state(root) == before


def test_tools_are_the_verbs_that_only_read_without_options_that_name_files() -> None:
    offered = {tool["name"]: tool["input_schema"]["properties"] for tool in tools()}
    assert set(offered) == {"runs", *(verb.name for verb in VERBS.values() if verb.tells)}
    assert not {"link", "join", "export", "report", "scale", "astra", "simulate"} & set(offered)
    assert not {"json", "out", "et", "compare", "what-if", "groups", "markdown"} & {
        key for given in offered.values() for key in given
    }
    assert offered["diff"]["fail-on"]["description"].endswith("by more: 3% or 3 (PERCENT%)")
    assert offered["replay"]["machine"]["enum"] == ["ideal", "astra-sim", "ranks", "coupled"]
    assert {key: value["type"] for key, value in offered["replay"].items() if key in ("rank", "scale", "together")} == {
        "rank": "integer",
        "scale": "array",
        "together": "boolean",
    }


@pytest.mark.parametrize("what", ["../outside", "/", "{outside}", "link", "leaves"])
def test_nothing_outside_the_root_is_read(root: Path, what: str) -> None:
    outside = root.parent / "outside"
    for link, target in ((root / "link", outside), (root / "leaves" / "summary.json", outside / "summary.json")):
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target)
    with pytest.raises(UsageError, match="leads out of the folder"):
        answer(root, "show", {"dir": what.format(outside=outside)})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("link", {"folder": ["traces"]}),
        ("report", {"dir": "one"}),
        ("bubbles", {"dir": "one", "et": "new"}),
        ("show", {"dir": "one", "json": "file"}),
        ("replay", {"dir": "one", "what-if": "one/summary.json"}),
        ("show", {"dir": "--help"}),
        ("show", {}),
        ("show", {"dir": "none"}),
        ("idle", {"dir": "one", "top": "many"}),
        ("idle", {"dir": "one\0"}),
        ("idle", {"dir": True}),
        ("idle", {"dir": ["one", "one"]}),
        ("idle", {"dir": "one", "rank": [0, 1]}),
        ("replay", {"dir": "one", "scale": {"kernel": 0.5}}),
        ("replay", {"dir": "one", "scale": [["kernel=0.5"]]}),
        ("replay", {"dir": "one", "list": True}),
        ("replay", {"dir": "one", "together": "yes"}),
        ("diff", {"a": "one", "b": "one", "markdown": True}),
    ],
)
def test_what_is_no_tool_option_or_value_is_an_error_in_words(root: Path, name: str, given: dict[str, Any]) -> None:
    before = state(root)
    with pytest.raises(GraphlinkError):
        answer(root, name, given)
    assert state(root) == before


def test_a_client_asks_about_two_runs(root: Path) -> None:
    """Over standard input and output; the client checks answers against the schemas."""
    mcp = pytest.importorskip("mcp", reason="needs the package mcp, as of the extra dev")
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "graphlink", "mcp", str(root)], env={**os.environ}
    )

    async def ask() -> list[Any]:
        async with mcp.Client(command) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} >= {"runs", "show", "advice"}
            calls = [("show", {"dir": "one"}), *((name, given) for name, given, _ in CALLS[1:9:2])]
            calls += [("runs", {}), ("idle", {"dir": "one\0"}), ("show", {"dir": "../outside"})]
            return [await client.call_tool(name, given) for name, given in calls]

    *told, wrong, refused = asyncio.run(ask())
    assert not any(result.is_error for result in told)
    assert told[0].structured_content["ranks"][0]["rank"] == 0
    assert wrong.is_error and "is not of type string" in wrong.content[0].text
    assert refused.is_error and "leads out of the folder" in refused.content[0].text


def test_without_its_package_it_says_how_to_get_it(
    graphlink: Callable[..., Ran], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    ran = graphlink("mcp", root)
    assert ran.status == 2 and "pip install 'mcp>=2'" in ran.err
