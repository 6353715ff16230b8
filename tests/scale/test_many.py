"""1,024 ranks from 8: no errors in ``check``, to the end on machine ``ranks``, within the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlink.run.library import link
from graphlink.run.options import Options
from graphlink.scale.make import Wishes, scale
from tests.scale.test_scale import ONE, conforms, errors_of, runs_to_its_end
from tests.simulator.cluster import cluster_run
from tests.simulator.cluster_records import ClusterTraining

DLRM8 = Path(__file__).parents[3] / "shared" / "traces" / "dlrm8-v100"
RANKS = 1_024


@pytest.mark.long
@pytest.mark.parametrize("recording", ["dlrm8", "simulated"])
def test_1024_ranks_of_8_run_to_their_end(tmp_path: Path, recording: str) -> None:
    traces, other_axes = DLRM8, 1
    if recording == "simulated":
        traces, other_axes = tmp_path / "traces", 2
        cluster_run(ClusterTraining(data=4, tensor=2, layers=4)).write(traces)
    elif not DLRM8.is_dir():
        pytest.skip("no dlrm8-v100: public recordings are not part of the project")
    link(traces, out=tmp_path / "recorded", options=Options(timeline="none"))
    made = scale(tmp_path / "recorded", Wishes(data=RANKS // other_axes), tmp_path / "out", ONE, force=False)
    assert made.ranks == RANKS and made.predicted_ns >= made.recorded_replayed_ns
    assert errors_of(tmp_path / "out") == 0
    assert runs_to_its_end(tmp_path / "out")
    for rank in (0, 500, RANKS - 1):
        assert conforms(tmp_path / "out" / f"trace.{rank}.et") == ""
