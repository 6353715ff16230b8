"""What jobs of ranks say when they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphlink import cli
from graphlink.engine import pool
from graphlink.engine.pool import Lost
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run
from tests.simulator.programs import Training, training_program


@pytest.mark.parametrize("lost", ["_rank_job", "_finish"])
def test_a_rank_whose_process_dies_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    for rank in range(2):
        write_kineto(
            run(training_program(1, Training(steps=2, layers=2, ranks=2, rank=rank))), tmp_path / f"kineto_{rank}.json"
        )

    def dying(work: Callable[[Any], Any], tasks: list[Any], *_: object) -> list[Any]:
        dies = work.args[0].func.__name__ == lost  # type: ignore[attr-defined]  # partial: what is done of each rank
        return [Lost("its process was killed") if dies and k else work(task) for k, task in enumerate(tasks)]

    monkeypatch.setattr(pool, "run_all", dying)
    assert cli.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 3
    err = capsys.readouterr().err
    assert (
        f"1 of 2 ranks failed, nothing was published; the first: {tmp_path / 'kineto_1.json'}: its process was killed"
        in err
    )
