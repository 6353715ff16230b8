"""``graphlink simulate`` with a script in the place of ASTRA-sim: what the real one prints, and how it goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphlink.astra.sweep import MOST_RUNS
from graphlink.run.schemas import schemas
from tests.astra.et_files import coll, node, written
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
FAKE = """#!{python}
# in the place of AstraSim ({marks}): two ranks compute 5 us, communicate, compute 5 us
import json, os, signal, sys, time
mode = {mode!r}
if mode == "unloaded":
    print("sim: error while loading shared libraries: libprotobuf.so.32: cannot open shared object file", file=sys.stderr)
    sys.exit(127)
given = dict(word[2:].split("=", 1) for word in sys.argv[1:])
assert all(os.path.exists(given[name + "-configuration"]) for name in ("system", "network", "remote-memory"))
assert os.path.exists(given["workload-configuration"] + ".0.et")
network = json.load(open(given["network-configuration"]))
comm = round(6000 * 50 / network["bandwidth"][0]) if network["topology"] == ["Ring"] else 1000
if mode == "sleep":
    print("[t] working", flush=True)
    time.sleep(60)
if mode == "abort":
    print("terminate called after throwing an instance of 'std::out_of_range'", flush=True)
    os.kill(os.getpid(), signal.SIGABRT)
ends = (5000, 5000 + comm, 10000 + comm)
os.mkdir(given["logging-folder"])
with open(given["logging-folder"] + "/log.log", "w") as log:
    for rank in (0, 1):
        for id_, (start, end) in enumerate(zip((0, *ends), ends)):
            for what, tick in (("issue", start), ("callback", end)):
                if (mode, rank, id_, what) != ("hang", 1, 2, "callback"):
                    log.write(f"[t] [workload] [debug] {{what}},sys->id={{rank}}, tick={{tick}}, node->id={{id_}}, node->name=x\\n")
for rank in (0, 1):
    if (mode, rank) != ("hang", 1):
        cycles = ends[2] - 7 * (mode == "wrong")
        print(f"[t] [workload] [info] sys[{{rank}}] finished, {{cycles}} cycles, exposed communication {{comm}} cycles.")
"""


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    graph = [node(0, is_cpu_op=False), coll(1, [0], comm_size=1 << 20), node(2, data=[1], is_cpu_op=False)]
    return written(tmp_path / "out", graph, graph)


@pytest.fixture
def simulator(tmp_path: Path) -> Callable[[str], Path]:
    def make(mode: str = "ok", marks: str = "FeederV3") -> Path:
        file = tmp_path / f"sim-{mode}"
        file.write_text(FAKE.format(python=sys.executable, mode=mode, marks=marks))
        file.chmod(0o755)
        return file

    return make


def rows(ran: Ran, first: str) -> list[list[str]]:
    lines = ran.out.splitlines()
    at = next(k for k, line in enumerate(lines) if line.split()[:1] == [first])
    return [line.split() for line in lines[at + 1 :] if line.startswith("  ")]


def test_times_stand_side_by_side(
    graphlink: Run, graphs: Path, simulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRA_SIM", str(simulator()))
    before = sorted(graphs.iterdir())
    ran = graphlink(
        "simulate", graphs, "--bandwidth", "53.687091", "--topology", "ring", "--json", tmp_path / "a.json", "-v"
    )
    assert (ran.status, ran.err) == (0, "")
    assert "0.016 ms, replayed 0.015 ms (+6.7 %)" in ran.out.splitlines()[0]  # 5 us each
    assert "2 ranks finished, all 6 nodes executed" in ran.out
    assert rows(ran, "rank")[0] == ["0", "-", "0.015", "0.016", "-", "+6.7", "%"]  # no recorded times in these graphs
    assert ["communication", "0.010", "0.010", "0.012", "+20.0", "%", "+20.0", "%"] in rows(ran, "work")
    assert sorted(graphs.iterdir()) == before
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["runs"][0]["ranks"][1]["work_ns"]["communication"] == 6_000
    assert data["runs"][0]["total_ns"] == 16_000
    assert data["reader"] == "head"
    assert set(data) == set(json.loads(schemas()["simulate.schema.json"])["$defs"]["Simulated"]["properties"])


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (
            "hang",
            "1 of 2 ranks finished (not: 1); 1 of 6 nodes not executed, the first of them node 2 of rank 1; its exit "
            "status is 0",
        ),
        ("abort", "killed by signal 6 (Aborted)"),
        ("wrong", "rank 0 says 15,993 cycles, but its log has a node that ended at 16,000"),
        ("sleep", "not done after 1 s (--timeout), so it was ended"),
    ],
)
def test_what_went_wrong_is_said(graphlink: Run, graphs: Path, simulator: Any, mode: str, why: str) -> None:
    network = ("--bandwidth", "53.6870912", "--topology", "ring")
    ran = graphlink(
        "simulate", graphs, "--astra-sim", simulator(mode), *network, "--timeout", 1 if mode == "sleep" else 60
    )
    assert (ran.status, ran.err) == (1, "")
    assert "the simulation failed" in ran.out.splitlines()[0]
    assert f"failed: {why}" in ran.out
    assert "graphlink check finds nothing that stops it" in ran.out
    assert ("its last line: terminate called" in ran.out) == (mode == "abort")


def test_the_finding_of_check_is_the_reason(graphlink: Run, graphs: Path, simulator: Any) -> None:
    one = [node(0, is_cpu_op=False), coll(1, [0], comm_size=1 << 20), node(2, data=[0, 0], is_cpu_op=False)]
    written(graphs, one, one)
    ran = graphlink("simulate", graphs, "--astra-sim", simulator("hang", "Chakra12ETFeederNode"))
    assert ran.status == 1
    assert (
        "  graphlink check: data_deps of a node names another node twice. Found 2 times (duplicate-data): The rank never "
        "finishes (exit status 0): the node is never released." in ran.out
    )


def test_graphs_that_stop_it_are_not_run(graphlink: Run, graphs: Path, simulator: Any) -> None:
    written(graphs, [node(0, data=[9])], [node(0)])
    ran = graphlink("simulate", graphs, "--astra-sim", simulator())
    assert ran.status == 1
    assert "dangling-data" in ran.err


def test_a_binary_that_does_not_start(
    graphlink: Run, graphs: Path, simulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = graphlink("simulate", graphs, "--astra-sim", simulator("unloaded"))
    assert ran.status == 1
    assert "does not start: sim: error while loading shared libraries: libprotobuf.so.32" in ran.err
    assert "apt-get install libprotobuf32" in ran.err
    monkeypatch.delenv("ASTRA_SIM", raising=False)
    ran = graphlink("simulate", graphs)
    assert ran.status == 1
    assert "no ASTRA-sim is named" in ran.err
    assert "graphlink replay DIR --machine ranks" in ran.err


def test_a_program_of_another_machine(graphlink: Run, graphs: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"\x7fELF?")
    (tmp_path / "other").chmod(0o755)
    ran = graphlink("simulate", graphs, "--astra-sim", tmp_path / "other")
    assert ran.status == 1
    assert "does not start: Exec format error" in ran.err


def test_a_sweep_is_one_table_and_one_picture(graphlink: Run, graphs: Path, simulator: Any, tmp_path: Path) -> None:
    swept = ("--sweep", "bandwidth=26.8435456,53.6870912", "--sweep", "topology=Ring,Switch", "--latency", "700")
    ran = graphlink("simulate", graphs, "--astra-sim", simulator(), *swept, "--svg", tmp_path / "a.svg", "--jobs", "2")
    assert (ran.status, ran.err) == (0, "")
    assert "quickest 0.011 ms, Switch, 26.84, 700; 4 of 4 simulations went well" in ran.out.splitlines()[0]
    assert [row[:4] for row in rows(ran, "topology")][:4] == [
        ["Ring", "26.84", "700", "0.022"],
        ["Ring", "53.69", "700", "0.016"],
        ["Switch", "26.84", "700", "0.011"],
        ["Switch", "53.69", "700", "0.011"],
    ]
    drawn = (tmp_path / "a.svg").read_text()
    assert "GB/s 53.69, Ring, 700 ns: 16.0" in drawn


def test_a_sweep_in_which_all_fail(graphlink: Run, graphs: Path, simulator: Any) -> None:
    ran = graphlink("simulate", graphs, "--astra-sim", simulator("hang"), "--sweep", "latency=500,1000", "--jobs", "1")
    assert ran.status == 1
    assert "no simulation went well; 0 of 2 simulations went well" in ran.out
    assert ran.out.count("failed on Ring of 2, ") == 2


def test_a_sweep_is_capped(graphlink: Run, graphs: Path, simulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphlink.astra.sweep.MOST_RUNS", 1)
    assert MOST_RUNS > 1
    ran = graphlink("simulate", graphs, "--astra-sim", simulator(), "--sweep", "latency=500,1000,2000")
    assert ran.status == 0
    assert "2 more combinations were not run: at most 1 are" in ran.out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--sweep", "bandwidth=5", "--bandwidth", "6"), "bandwidth is given twice"),
        (("--sweep", "latency=5", "--sweep", "latency=6"), "latency is given twice"),
        (("--sweep", "rows=5"), "is none of topology=A,B,..."),
        (("--sweep", "ranks=0"), "at least 1"),
        (("--sweep", "ranks=2", "--sweep", "ranks=4"), "ranks is given twice"),
        (("--sweep", "topology=torus"), "'torus' is none of ring, switch, fully-connected"),
        (("--sweep", "bandwidth=0"), "'0' is no bandwidth"),
        (("--sweep", "bandwidth="), "is none of topology="),
        (("--svg", "a.svg"), "--svg draws a sweep"),
        (("--timeout", "0"), "'0' is no time in s"),
        (("--jobs", "0"), "at least 1"),
    ],
)
def test_what_is_no_sweep(graphlink: Run, graphs: Path, simulator: Any, options: tuple[str, ...], why: str) -> None:
    ran = graphlink("simulate", graphs, "--astra-sim", simulator(), *options)
    assert ran.status == 2
    assert why in ran.err
