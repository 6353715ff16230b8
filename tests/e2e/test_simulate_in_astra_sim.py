"""``graphlink simulate`` with the real ASTRA-sim, where it lies beside the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.cli import main
from tests.astra.et_files import coll, node, written
from tests.e2e.conftest import ROOT, SIMULATORS
from tests.simulator.cluster import cluster_run
from tests.simulator.cluster_records import ClusterTraining

TRACES = ROOT.parent / "shared" / "traces"
MIB = 1 << 20


def test_times_are_those_of_the_formula(tmp_path: Path, reader: str) -> None:
    graph = [node(0, is_cpu_op=False), coll(1, [0], comm_size=MIB), node(2, data=[1], is_cpu_op=True)]
    written(tmp_path, graph, graph)
    file = tmp_path / "a.json"
    network = ("--topology", "ring", "--latency", "1000", "--sweep", "bandwidth=25,50,100", "--jobs", "2")
    assert (
        main(
            [
                "simulate",
                str(tmp_path),
                "--astra-sim",
                str(SIMULATORS / f"AstraSim_{reader}"),
                *network,
                "--json",
                str(file),
            ]
        )
        == 0
    )
    data = json.loads(file.read_text())
    assert data["reader"] == reader
    for run, bandwidth in zip(data["runs"], (25, 50, 100), strict=True):
        took = 2 * (1000 + MIB / 2 / bandwidth)
        assert run["total_ns"] == pytest.approx(10_000 + took, rel=0.005)
        for rank in run["ranks"]:
            assert rank["work_ns"] == {
                "host": 5000,
                "compute": 5000,
                "communication": pytest.approx(took, rel=0.005),
                "copy": 0,
                "unexplained": 0,
            }


def test_a_hang_with_exit_status_0_is_found(tmp_path: Path, reader: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two slots in a circle (``slot-order``): each rank starts another group's collective first. The legacy one takes
    one group for all.
    """
    if reader == "legacy":
        pytest.skip("runs: it takes one group for all")
    first, second = ({"pg_name": group} for group in ("1", "2"))
    graphs = [
        [node(0, is_cpu_op=False), coll(1, [0], **first), coll(2, [0], **second), node(3, data=[1, 2])],
        [
            node(0, is_cpu_op=False, micros=1),
            node(1, is_cpu_op=False, data=[0], micros=99),
            coll(2, [1], **first),
            coll(3, [0], **second),
        ],
    ]
    written(tmp_path, *graphs, groups={"1": [0, 1], "2": [0, 1]})
    assert main(["simulate", str(tmp_path), "--astra-sim", str(SIMULATORS / f"AstraSim_{reader}")]) == 1
    said = capsys.readouterr()
    assert "ranks finished" in said.out
    assert "its exit status is 0 all the same" in said.out
    assert "slot-order" in said.out


@pytest.mark.parametrize("name", ["megatron-tp2-v100", pytest.param("dlrm8-v100", marks=pytest.mark.long)])
def test_recordings_go_well(tmp_path: Path, reader: str, name: str) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip(f"no {name}: public recordings are not part of the project")
    out, file = tmp_path / "out", tmp_path / "a.json"
    assert main([str(TRACES / name), "--out", str(out), "--jobs", "1", "--no-timeline", "-q"]) == 0
    assert main(["simulate", str(out), "--astra-sim", str(SIMULATORS / f"AstraSim_{reader}"), "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    (run,) = data["runs"]
    assert run["ok"]
    for played, simulated in zip(data["ranks"], run["ranks"], strict=True):
        host = played["replayed_work_ns"]["host"]
        assert simulated["work_ns"]["host"] == pytest.approx(host, rel=0.001)
        assert simulated["simulated_ns"] == pytest.approx(played["replayed_ns"], rel=0.01)


def test_more_ranks_than_recorded_are_made_and_simulated(tmp_path: Path) -> None:
    """On the present version alone: the legacy one takes one group for all."""
    cluster_run(ClusterTraining(data=4, tensor=1)).write(tmp_path / "traces")
    assert main([str(tmp_path / "traces"), "--out", str(tmp_path / "out"), "--no-timeline", "-q"]) == 0
    binary, file = SIMULATORS / "AstraSim_head", tmp_path / "a.json"
    if not binary.exists():
        pytest.skip("no ASTRA-sim beside the project")
    sweep = ("--sweep", "ranks=4,8", "--bandwidth", "100", "--latency", "1000", "--jobs", "1")
    assert main(["simulate", str(tmp_path / "out"), "--astra-sim", str(binary), *sweep, "--json", str(file)]) == 0
    small, large = json.loads(file.read_text())["runs"]
    assert (len(small["ranks"]), len(large["ranks"])) == (4, 8)
    for run in (small, large):
        assert run["ok"] and run["total_ns"] == pytest.approx(run["replayed_ns"], rel=0.05)
    assert small["total_ns"] < large["total_ns"]
