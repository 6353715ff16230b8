"""The recipes of docs/replay.md, against simulated training over gloo that was changed and run again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import graphlink
from tests.simulator.gloo import Action, GlooTraining, program, simulate, write

DOCS = Path(__file__).parents[2] / "docs" / "replay.md"
RECIPES = dict(re.findall(r"^\* \*\*(.+?)\*\*.*?```toml\n(.*?)```", DOCS.read_text(), re.DOTALL | re.MULTILINE))
Changed = Callable[[int, int, Action], bool]


def reduced(rank: int, step: int, action: Action) -> bool:
    return action[0] in ("ask", "wait") and action[1][1] < 2


def logged(rank: int, step: int, action: Action) -> bool:
    return action == ("op", "log", 900.0) and step not in (1, 4)


def of_rank_1(rank: int, step: int, action: Action) -> bool:
    return action == ("op", "log", 900.0) and rank == 1


def with_log(actions: list[Action]) -> list[Action]:
    """Add a range with an op of 0.9 ms to the end of each step."""
    out = list[Action]()
    for action in actions:
        if action == ("end",):
            out += [("begin", "log", True), ("op", "log", 900.0), ("end",)]
        out.append(action)
    return out


def without(actions: list[Action], rank: int, gone: Changed) -> list[Action]:
    step, out = -1, list[Action]()
    for action in actions:
        step += action[0] == "begin" and action[1].startswith("ProfilerStep")
        if not gone(rank, step, action):
            out.append(action)
    return out


@pytest.mark.parametrize(
    ("recipe", "gone"),
    [("Gradients reduced once a step", reduced), ("Every k-th step", logged), ("Only on rank 0", of_rank_1)],
)
@pytest.mark.parametrize("ids", [True, False])
def test_a_recipe_predicts_the_changed_program(recipe: str, gone: Changed, ids: bool, tmp_path: Path) -> None:
    """Three collectives a step; rank 1 has 8 ms more Python a step, so that what it leaves out counts."""
    training = GlooTraining(8, "wait", late_us=300, ids=ids, straggler_us=8000)
    before = [with_log(actions) for actions in program(training)]
    after = [without(actions, rank, gone) for rank, actions in enumerate(before)]
    write(simulate(training, before), tmp_path / "recorded", ids=ids)
    run = graphlink.link(tmp_path / "recorded", options=graphlink.Options(timeline="none"), out=tmp_path / "out")
    (tmp_path / "change.toml").write_text(RECIPES[recipe])
    [found] = run.replay(what_if=tmp_path / "change.toml").what_if
    rows = [row for rank in simulate(training, after) for row in rank.rows if row.name.startswith("ProfilerStep")]
    true_us = max(row.end for row in rows) - min(row.start for row in rows)
    assert abs(found.after_ns / 1e3 / true_us - 1) <= 0.01
    assert found.before_ns > 1.02 * found.after_ns
