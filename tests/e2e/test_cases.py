"""Inputs rebuilt from reports of bugs, where they lie beside the project: each is linked and answered with its right
values, which the READMEs there give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphlink.cli import main
from tests.e2e.conftest import ROOT, Done

CASES = ROOT.parent / "shared" / "cases"
FILES = sorted(path for path in CASES.glob("*/*") if path.name != "README")
GAINS = [  # what a replay gains, in per cent of the critical path
    ("clock_over_100us/kineto_shift_0.json", "kernel=0.5", 45.8),
    ("clock_over_100us/kineto_shift_99.json", "kernel=0.5", 45.8),
    ("clock_over_100us/kineto_shift_110.json", "kernel=0.5", 45.8),
    ("flows_without_correlation/kineto_flows.json", "host=0.5", 49.4),
    ("nsys_doubled_calls/doubled.sqlite", "kernel=0.5", 15.0),
    ("nsys_doubled_calls/doubled.sqlite", "copy=0.5", 33.3),
]
pytestmark = pytest.mark.skipif(not FILES, reason=f"{CASES} is not there")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_is_linked_and_what_is_advised_is_told(graphlink: Callable[..., Done], path: Any) -> None:
    done = graphlink(str(path))
    assert (done.status, done.err) == (0, "")
    assert all(abs(rank["replay"]["error_pct"]) <= 0.1 for rank in done.summary["ranks"])
    for verb in ("advice", "idle", "ops", "critical-path", "report"):
        assert main([verb, str(done.folder)]) == 0


@pytest.mark.parametrize(("name", "change", "gain_pct"), GAINS)
def test_a_change_gains_what_it_does(
    graphlink: Callable[..., Done], capsys: pytest.CaptureFixture[str], name: str, change: str, gain_pct: float
) -> None:
    done = graphlink(str(CASES / name))
    capsys.readouterr()
    assert main(["replay", str(done.folder), "--scale", change]) == 0
    assert f"({gain_pct} %)" in capsys.readouterr().out


def test_two_scopes_of_a_name_are_one_step(graphlink: Callable[..., Done]) -> None:
    assert len(graphlink(str(CASES / "two_scopes_a_step" / "kineto_0.json")).rank["steps"]) == 4


def test_steps_that_overlap_are_all_there(graphlink: Callable[..., Done]) -> None:
    steps = graphlink(str(CASES / "steps_that_overlap" / "kineto_500ns.json")).rank["steps"]
    assert [step["gpu"][0]["compute_ns"] for step in steps] == [1_000_000] * 4


def test_what_runs_on_behind_others_counts_once(graphlink: Callable[..., Done]) -> None:
    rank = graphlink(str(CASES / "kernel_dur_overflow" / "kineto_three_steps.json")).rank
    assert rank["gpu"][0]["compute_ns"] == pytest.approx(3_000_000, rel=0.001)
    assert any("running on behind others" in text for text in rank["warnings"])
