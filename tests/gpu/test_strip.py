"""What each GPU did over time: levels of bins, and the strip of them on the page."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import graphlink
from graphlink.gpu.busy import BINS, KEYS, LEVELS
from graphlink.gpu.records import DeviceTime
from graphlink.gpu.strip import _resampled, run_over_time
from graphlink.gpu.table import MOST_LANES, with_fewer_strips
from graphlink.page.found import find
from graphlink.page.parts import Strip
from tests.simulator import ClusterTraining, LateStart, cluster_run

REAL = Path(__file__).parents[2] / "fixtures" / "real"
FIELDS = dict(zip(KEYS, ("compute_ns", "exposed_comm_ns", "exposed_copy_ns"), strict=False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    traces = tmp_path_factory.mktemp("traces")
    cluster_run(ClusterTraining(data=2, tensor=2, steps=2, layers=1, seed=1), [LateStart(1, share=0.3)]).write(traces)
    graphlink.link(traces, out=traces / "out")
    return traces / "out"


def time_of(gpu: DeviceTime, key: str) -> float:
    """Time that the levels of a device tell, in ns."""
    assert gpu.over_time
    shares = [LEVELS.index(level) / (len(LEVELS) - 1) for level in gpu.over_time.get(key, "")]
    return sum(shares) * gpu.whole_ns / max(len(shares), 1)


def test_levels_add_up_to_the_time_of_the_device(folder: Path) -> None:
    for rank in graphlink.open(folder).summary.ranks:
        for gpu in rank.gpu:
            assert {len(levels) for levels in gpu.over_time.values()} == {min(BINS, gpu.whole_ns)}
            for key in KEYS:
                whole = getattr(gpu, FIELDS[key]) if key in FIELDS else gpu.idle_by_cause_ns.get(key, 0)
                assert math.isclose(time_of(gpu, key), whole, abs_tol=0.01 * gpu.whole_ns), key
            assert not any(gpu.over_time for step in rank.steps for gpu in step.gpu)


def strip(folder: Path) -> Strip:
    section = run_over_time(find(folder, graphlink.open(folder).summary))
    assert section is not None
    (part,) = section.parts
    assert isinstance(part, Strip)
    return part


def test_lanes_lie_on_the_clock_of_the_run(folder: Path) -> None:
    made, ranks = strip(folder), graphlink.open(folder).summary.ranks
    assert made.lanes == [f"rank {rank.rank}" for rank in ranks]
    begins = [min(part.first for part in made.parts if part.lane == lane) for lane in range(len(ranks))]
    assert begins[1] > 0.2 * made.cells and begins[0] < 0.05 * made.cells  # rank 1 was recorded late
    for lane, rank in enumerate(ranks):
        spent = sum(one.value * part.count for part in made.parts if part.lane == lane for one in part.segments)
        assert spent == pytest.approx(rank.gpu[0].whole_ns, rel=0.01)


def test_without_gpus_the_strip_is_of_hosts(tmp_path: Path) -> None:
    """Ranks of two cores over gloo: ops, messages that are awaited, and Python, as long as the nodes of the graph say."""
    run = graphlink.link(REAL / "pipeline", out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    made = strip(tmp_path / "out")
    assert (made.title, made.lanes) == ("What the host of each rank did", [f"rank {rank}" for rank in run.ranks])
    for lane, rank in enumerate(run.summary.ranks):
        spent = Counter[str]()
        for part in made.parts:
            for one in part.segments if part.lane == lane else ():
                spent[one.key] += one.value * part.count
        assert spent.total() == pytest.approx(rank.replay.measured_ns, rel=0.01)
        assert spent["communication"] == pytest.approx(run.nodes(rank.rank).wait_ns.sum(), rel=0.1)
        assert min(spent["communication"], spent["host"]) > 0.1 * rank.replay.measured_ns
    many = [replace(run.summary.ranks[0], rank=number) for number in range(70)]
    assert sum(bool(rank.host_over_time) for rank in with_fewer_strips(many)) == 64


def test_of_many_gpus_the_most_idle_are_shown_in_few_cells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_LANES == 64
    monkeypatch.setattr("graphlink.gpu.strip.MOST_LANES", 3)
    monkeypatch.setattr("graphlink.gpu.strip.MOST_CELLS", 300)
    made = strip(folder)
    assert (len(made.lanes), made.cells) == (3, 100)
    assert made.title.endswith(", the 3 most idle of 4 GPUs")


def test_a_summary_keeps_the_strips_of_the_most_idle_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = graphlink.open(folder).summary.ranks
    assert with_fewer_strips(ranks) == ranks
    monkeypatch.setattr("graphlink.gpu.table.MOST_LANES", 2)
    kept = with_fewer_strips(ranks)
    most = sorted(kept, key=lambda rank: -rank.gpu[0].idle_ns / rank.gpu[0].whole_ns)
    assert [bool(rank.gpu[0].over_time) for rank in most] == [True, True, False, False]


def test_steps_are_marked(folder: Path) -> None:
    made, ranks = strip(folder), graphlink.open(folder).summary.ranks
    assert [len(marks) for marks in made.marks] == [len(rank.steps) for rank in ranks]
    assert all(marks == sorted(marks) and marks[-1] < made.length_ns for marks in made.marks)


def test_bins_keep_their_time_in_cells_of_another_length() -> None:
    edges = np.linspace(0, 1_000, 8)
    got = _resampled("0z0z", 200, 600, edges)
    assert abs(int(got.sum()) - 200) <= len(edges)
    assert got[0] == 0 and got[-1] == 0
    assert got[2] == pytest.approx(100 * (3 / 7 * 10 - 3) + 0, abs=60)
