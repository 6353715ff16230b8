"""What is compared with times of a simulation is read on the simulation's own clock."""

from __future__ import annotations

import pytest

from graphlink.model import Trace


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of simulated devices are right: estimating them would move each time by what an estimate errs."""

    def same(trace: Trace) -> Trace:
        return trace

    for user in ("graphlink.run.read_rank", "tests.depend.programs"):
        monkeypatch.setattr(f"{user}.on_host_clock", same)
