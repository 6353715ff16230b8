"""Runs of every sort, each linked once a session, and their pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import graphlink
from graphlink.cli import main
from graphlink.diff.page import diff_page
from graphlink.diff.records import DiffReport
from graphlink.page.parts import Page
from graphlink.page.render import html
from tests.logs.megatron_variants import BLOCK, THREE
from tests.logs.smi_variants import CSV
from tests.paddle_runs import equal_times, one_f_one_b, simulate
from tests.page.diffs import DIFFS
from tests.page.hostile import hostile_rows
from tests.simulator.cluster import ClusterTraining, cluster_run
from tests.simulator.paddle import write_paddle

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "fixtures" / "demo"


@dataclass(frozen=True)
class Shown:
    """A run, its page, and the page as HTML."""

    folder: Path
    page: Page
    html: str


@dataclass(frozen=True)
class Compared:
    """Two runs compared, the page of that, and the page as HTML."""

    report: DiffReport
    page: Page
    html: str


def _demo(folder: Path, *options: str) -> list[str]:
    return ["--et", str(DEMO / "et_0.json"), "--kineto", str(DEMO / "kineto_0.json"), *options]


def _logs(folder: Path) -> list[str]:
    smi, megatron = folder / "node1.csv", folder / "train.log"
    smi.write_text(CSV)
    megatron.write_text(THREE + BLOCK)
    return _demo(folder, "--nvidia-smi", str(smi), "--megatron-log", str(megatron))


def _kineto(folder: Path, rows: list[dict[str, object]]) -> list[str]:
    (folder / "kineto_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    return ["--kineto", str(folder / "kineto_0.json")]


def _host(folder: Path) -> list[str]:
    return _kineto(folder, [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}])


def _many(folder: Path) -> list[str]:
    cluster_run(ClusterTraining(data=2, tensor=9, steps=2, layers=1, seed=1)).write(folder / "many")
    return [str(folder / "many"), "--no-timeline"]


def _paddle(folder: Path) -> list[str]:
    write_paddle(simulate(one_f_one_b(4, 8), equal_times(), steps=2), folder / "logs")
    return ["--paddle-logs", str(folder / "logs")]


RUNS: dict[str, Callable[[Path], list[str]]] = {
    "alone": _demo,
    "logs": _logs,
    "host": _host,
    "many": _many,
    "pipeline": lambda folder: [str(ROOT / "fixtures" / "real" / "pipeline")],
    "paddle": _paddle,
    "hostile": lambda folder: _kineto(folder, hostile_rows()),
}


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Shown]:
    """Gives the page of one of ``RUNS``."""
    made: dict[str, Shown] = {}

    def show(name: str) -> Shown:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            assert main([*RUNS[name](folder), "--out", str(folder / "out"), "--quiet"]) == 0
            page = graphlink.open(folder / "out").page()
            made[name] = Shown(folder / "out", page, html(page))
        return made[name]

    return show


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compared]:
    """Gives one of ``DIFFS``."""
    made: dict[str, Compared] = {}

    def compare(name: str) -> Compared:
        if name not in made:
            report = DIFFS[name](tmp_path_factory.mktemp(name))
            page = diff_page(report)
            made[name] = Compared(report, page, html(page))
        return made[name]

    return compare
