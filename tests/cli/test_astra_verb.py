"""``graphlink astra``: the files hold what ASTRA-sim's parsers assert, the network is what the transfers show, run.sh
judges both ways.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.cli import main
from graphlink.graph.read_et import read_et
from tests.astra.et_files import coll, encoded, judged, node, recv, send, written
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
ROOT = Path(__file__).parents[2]
TRACES = ROOT / "../shared/traces"
PAGE = (ROOT / "docs/astra-sim.md").read_text()
GIB = 1 << 30
MIB = 1 << 20
KINDS = {"ALL_REDUCE": 0, "ALL_GATHER": 2, "ALL_TO_ALL": 6}


def assert_astra_sim_takes(out: Path, world: int) -> Any:
    """What the parsers of ASTRA-sim assert or need (chakra-et.md 10, Sys.cc, NetworkParser.cpp). Returns the
    network.
    """
    system = json.loads((out / "system.json").read_text())
    network = json.loads((out / "network.yml").read_text())
    dimensions = len(network["topology"])
    assert set(network) == {"topology", "npus_count", "bandwidth", "latency"}
    assert all(type(values) is list and len(values) == dimensions for values in network.values())
    assert set(network["topology"]) <= {"Ring", "Switch", "FullyConnected"}
    assert all(type(n) is int and n >= 2 for n in network["npus_count"])
    product = 1
    for n in network["npus_count"]:
        product *= n
    assert product == world
    assert all(b > 0 for b in network["bandwidth"])
    assert all(latency >= 0 for latency in network["latency"])
    assert system["scheduling-policy"] in ("LIFO", "FIFO")
    assert system["collective-optimization"] in ("baseline", "localBWAware")
    for name in ("endpoint-delay", "active-chunks-per-dimension", "preferred-dataset-splits"):
        assert type(system[name]) is int
        assert system[name] >= 1
    for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        algorithms = system[f"{name}-implementation"]
        assert type(algorithms) is list
        assert 1 <= len(algorithms) <= dimensions
        assert all(re.fullmatch(r"ring|direct[0-9]*|halvingDoubling|doubleBinaryTree", a) for a in algorithms)
    assert system["local-mem-bw"] > 0  # PacketBundle.cc divides by it
    assert system["trace-enabled"] is True  # json -> bool throws on 1 in some versions
    assert json.loads((out / "memory.json").read_text()) == {"memory-type": "NO_MEMORY_EXPANSION"}
    assert subprocess.run(["bash", "-n", str(out / "run.sh")], check=False).returncode == 0
    return network


def cycles(ranks: int, size: int, system: Any, network: Any) -> int:
    """Of an ALL_REDUCE on a ring (Ring.cc, PacketBundle.cc): steps, and three memory passes where it reduces."""
    chunks = system["preferred-dataset-splits"]
    message = size // chunks // ranks
    step = int(network["latency"][0] + message / (network["bandwidth"][0] * GIB) * 1e9) + system["endpoint-delay"]
    reduction = 3 * int(message / (system["local-mem-bw"] * 1e9) * 1e9)
    return chunks * (2 * (ranks - 1) * step + (ranks - 1) * reduction + system["endpoint-delay"])


@pytest.mark.parametrize(("ranks", "chunks", "memory", "known"), [(2, 1, 1600, 21_541), (8, 4, 50, 117_780)])
def test_cycles_of_known_runs_of_astra_sim(ranks: int, chunks: int, memory: int, known: int) -> None:
    """1 MiB at 50 GB/s, 500 ns, endpoint-delay 10: chakra-et.md section 10, and ASTRA-sim's own tests/rt_template.

    Chunks and memory of the first are not written down: these are a stock example's, and give its cycles to the ns.
    """
    system = {"preferred-dataset-splits": chunks, "endpoint-delay": 10, "local-mem-bw": memory}
    assert cycles(ranks, MIB, system, {"latency": [500.0], "bandwidth": [50.0]}) == known


@pytest.mark.parametrize("ranks", [2, 8])
def test_astra_sim_would_take_as_long_as_recorded(graphlink: Run, tmp_path: Path, ranks: int) -> None:
    steps = 2 * (ranks - 1)
    recorded = {400: 6 * steps, 40_000_000: 6 * steps + 700 * steps}  # us
    nodes = chained(*(collective(i, "ALL_REDUCE", size, micros) for i, (size, micros) in enumerate(recorded.items())))
    assert graphlink("astra", written(tmp_path, *[nodes] * ranks)).status == 0
    network = assert_astra_sim_takes(tmp_path / "astra-sim", ranks)
    system = json.loads((tmp_path / "astra-sim/system.json").read_text())
    for size, micros in recorded.items():
        assert cycles(ranks, size, system, network) == pytest.approx(micros * 1000, rel=0.005)


def fake(folder: Path, *, ranks: int, nodes: int, status: int = 0) -> Path:
    """A simulator that checks its files are there, logs ``nodes`` and prints ``ranks`` finished lines."""
    program = folder / "fake sim"
    program.write_text(f"""#!/usr/bin/env python3
import sys, pathlib
given = dict(a[2:].split("=", 1) for a in sys.argv[1:])
for name in ("system", "network", "remote-memory", *(["comm-group"] if "comm-group-configuration" in given else [])):
    assert "empty" not in given[name + "-configuration"]
    open(given[name + "-configuration"]).read()
open(given["workload-configuration"] + ".0.et", "rb").read()
open(given["workload-configuration"] + ".1.et", "rb").read()
pathlib.Path(given["logging-folder"]).mkdir()
lines = ["[t] [D] <workload>: callback,sys->id=0, tick=1, node->id=%d\\n" % i for i in range({nodes})]
pathlib.Path(given["logging-folder"], "log.1.log").write_text("".join(lines[: {nodes} // 2]))
pathlib.Path(given["logging-folder"], "log.log").write_text("".join(lines[{nodes} // 2 :]))
for rank in range({ranks}):
    print(f"[t] [I] <workload>: sys[{{rank}}] finished, {{100 + rank}} cycles, exposed communication 7 cycles.")
print("groups:", given.get("comm-group-configuration"))
sys.exit({status})
""")
    program.chmod(0o755)
    return program


def simulate(
    out: Path, program: Path | str | None, *reader: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "ASTRA_SIM"} | (
        {"ASTRA_SIM": str(program)} if program else {}
    )
    command = ["bash", str(out / "run.sh"), *reader]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


def chained(*nodes: Any) -> list[Any]:
    """One after the other, in the order given, with a COMP last."""
    out = [*nodes, node(len(nodes))]
    for before, after in pairwise(out):
        after.data_deps.append(before.id)
    return out


def collective(id: int, kind: str, size: int, micros: int, group: str | None = None) -> Any:
    made = coll(id, comm_type=KINDS[kind], comm_size=size, pg_name=group)
    made.duration_micros = micros
    return made


@pytest.fixture(scope="module")
def linked(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("astra") / "out"
    assert main([str(traces), "--out", str(folder), "--jobs", "1", "--no-timeline", "-q"]) == 0
    return folder


def test_a_linked_run_gets_files_that_astra_sim_takes(graphlink: Run, linked: Path, tmp_path: Path) -> None:
    out = tmp_path / "sim"
    ran = graphlink("astra", linked, "--out", out)
    assert (ran.status, ran.err) == (0, "")
    network = assert_astra_sim_takes(out, 2)
    assert network["topology"] == ["Ring"]
    assert "replay-only" not in json.loads((out / "system.json").read_text())
    listed = json.loads((out / "summary.json").read_text())
    assert listed["files"] == sorted(p.name for p in out.iterdir())
    for line in listed["network"][0]["evidence"]:
        assert line in ran.out
        assert line in (out / "README.txt").read_text()
    nodes = sum(len(read_et(linked / f"trace.{r}.et").id) for r in (0, 1))
    assert f"2 ranks, {nodes:,} nodes" in ran.out
    ok = simulate(out, fake(tmp_path, ranks=2, nodes=nodes), "head")
    assert (ok.returncode, ok.stderr) == (0, "")
    assert f"ok: 2 of 2 ranks finished, {nodes} of {nodes} nodes executed, 101 cycles" in ok.stdout


def test_bandwidth_and_latency_are_those_of_the_transfers(graphlink: Run, tmp_path: Path) -> None:
    """Made by 4 us a step and 2e9 bytes/s: both are found again, whatever one rank waited."""
    large, small = 4_000_000, 400

    def rank(wait: int) -> list[Any]:
        took = 2 * 3 * 4 + large * 3 // 2 // 2000  # us: 6 steps, 1.5 x the buffer at 2,000 bytes a us
        return chained(
            collective(0, "ALL_REDUCE", small, 24 + wait), collective(1, "ALL_REDUCE", large, took + 7 * wait)
        )

    folder = written(tmp_path, *(rank(900 * (r != 2)) for r in range(4)))
    ran = graphlink("astra", folder)
    assert (ran.status, ran.err) == (0, "")
    network = assert_astra_sim_takes(folder / "astra-sim", 4)
    assert network["bandwidth"] == [round(2e9 / GIB, 3)]
    assert network["latency"] == [4000 - 10]  # endpoint-delay adds 10 ns a step
    assert "bandwidth 2.00e9 bytes/s: median bus bandwidth, latency taken off, of the largest 1 transfers" in ran.out
    for topology, name, latency in (("switch", "Switch", 3990 / 2), ("fully-connected", "FullyConnected", 3990)):
        assert graphlink("astra", folder, "--force", "--topology", topology).status == 0
        network = assert_astra_sim_takes(folder / "astra-sim", 4)
        assert (network["topology"], network["latency"]) == ([name], [round(latency, 1)])


@pytest.mark.parametrize(("kind", "share", "hops"), [("ALL_GATHER", 3, 1), ("ALL_TO_ALL", 0.75, 2)])
def test_each_type_has_its_share_of_bytes_and_its_steps(
    graphlink: Run, tmp_path: Path, kind: str, share: float, hops: int
) -> None:
    steps = 3
    size = 4_000_000
    nodes = chained(
        collective(0, kind, 64, 5 * steps), collective(1, kind, size, 5 * steps + round(size * share / 1000))
    )
    assert graphlink("astra", written(tmp_path, *[nodes] * 4)).status == 0
    network = assert_astra_sim_takes(tmp_path / "astra-sim", 4)
    assert (network["bandwidth"], network["latency"]) == ([round(1e9 / GIB, 3)], [4990 / hops])


@pytest.mark.parametrize(
    ("world", "kind", "members", "told"),
    [
        (4, "ALL_REDUCE", [0, 1, 2, 3], None),
        (4, "ALL_TO_ALL", [0, 1, 2, 3], "1 ALL_TO_ALL over 4 ranks"),
        (3, "ALL_TO_ALL", [0, 1, 2], None),  # on a ring of three all are neighbours
        (4, "ALL_GATHER", [2, 3], None),
        (4, "ALL_GATHER", [0, 2], "1 ALL_GATHER over 2 ranks"),
        (4, "ALL_REDUCE", [0, 1, 2], "1 ALL_REDUCE over 3 ranks"),  # from the last to the first
        (4, "ALL_REDUCE", [0, 2, 1, 3], "1 ALL_REDUCE over 4 ranks"),  # in list order
        (5, "message", [0, 4], None),
        (5, "message", [1, 3], "1 messages"),
    ],
)
def test_a_switch_where_something_goes_further_than_to_a_neighbour(
    graphlink: Run, tmp_path: Path, world: int, kind: str, members: list[int], told: str | None
) -> None:
    own: dict[int, Any]
    if kind == "message":
        ends = {"comm_src": members[0], "comm_dst": members[1]}
        own = {members[0]: send(0, **ends), members[1]: recv(0, **ends)}
    else:
        own = {rank: collective(0, kind, 4096, 50, "1") for rank in members}
    written(tmp_path, *(chained(own[r]) if r in own else [node(0)] for r in range(world)), groups={"1": members})
    ran = graphlink("astra", tmp_path)
    assert ran.status == 0
    (topology,) = assert_astra_sim_takes(tmp_path / "astra-sim", world)["topology"]
    assert topology == ("Switch" if told else "Ring")
    assert (
        f"messages pay the latency of each hop: those of {told}" in ran.out
        if told
        else "nothing goes further than to a neighbour" in ran.out
    )
    given = graphlink("astra", tmp_path, "--force", "--topology", "ring")
    assert "topology ring: as given with --topology; " in given.out
    assert ("pay the latency of each hop" in given.out) == bool(told)


def test_messages_alone_show_a_network_too(graphlink: Run, tmp_path: Path) -> None:
    sent, got = send(0, comm_size=2 * MIB), recv(0, comm_size=2 * MIB)
    sent.duration_micros, got.duration_micros = 5000, 2097
    ran = graphlink("astra", written(tmp_path, chained(sent), chained(got)))
    assert ran.status == 0
    assert "of the largest 1 transfers, 2,097,152 to 2,097,152 bytes on the wire, message" in ran.out
    assert assert_astra_sim_takes(tmp_path / "astra-sim", 2)["bandwidth"] == [round(2 * MIB / 2097e-6 / GIB, 3)]


def hierarchy(*, inside: int, across: int) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """Two hosts of two ranks, bytes a us inside and across them."""
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    ranks = []
    for rank in range(4):
        own, other = str(1 + rank // 2), str(3 + rank % 2)
        ranks.append(
            chained(
                collective(0, "ALL_REDUCE", 4_000_000, 4_000_000 // inside, own),
                collective(1, "ALL_GATHER", 4_000_000, 4_000_000 // across, other),
            )
        )
    return ranks, groups


def test_a_second_dimension_where_the_data_show_it(graphlink: Run, tmp_path: Path) -> None:
    ranks, groups = hierarchy(inside=100_000, across=10_000)
    ran = graphlink("astra", written(tmp_path, *ranks, groups=groups))
    assert ran.status == 0
    network = assert_astra_sim_takes(tmp_path / "astra-sim", 4)
    assert (network["npus_count"], network["topology"]) == (
        [2, 2],
        ["Ring", "Ring"],
    )  # 0 and 2 are neighbours in the second one
    assert network["bandwidth"] == [round(100e9 / GIB, 3), round(10e9 / GIB, 3)]
    assert "congestion-unaware binary" in ran.out
    script = (tmp_path / "astra-sim/run.sh").read_text()
    assert script.count("--comm-group-configuration=../comm_group.json") == 2
    assert json.loads((tmp_path / "astra-sim/comm_group.json").read_text()) == groups
    assert "Of 2024: It takes one group" in " ".join(ran.out.split())  # a rank in two groups
    given = graphlink("astra", tmp_path, "--force", "--bandwidth", "20")
    assert given.status == 0
    assert assert_astra_sim_takes(tmp_path / "astra-sim", 4)["bandwidth"] == [round(20e9 / GIB, 3)]


def test_one_dimension_where_blocks_are_no_faster(graphlink: Run, tmp_path: Path) -> None:
    ranks, groups = hierarchy(inside=10_000, across=10_000)
    assert graphlink("astra", written(tmp_path, *ranks, groups=groups)).status == 0
    assert assert_astra_sim_takes(tmp_path / "astra-sim", 4)["npus_count"] == [4]


def test_without_communication_defaults_are_named_so(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink("astra", written(tmp_path, [node(0)], [node(0)]))
    assert ran.status == 0
    assert "no measurement, a default; no collective or message between recorded ranks" in ran.out
    network = assert_astra_sim_takes(tmp_path / "astra-sim", 2)
    assert (network["bandwidth"], network["latency"]) == ([round(50e9 / GIB, 3)], [490])
    assert "comm-group" not in (tmp_path / "astra-sim/run.sh").read_text()
    given = graphlink("astra", tmp_path, "--force", "--bandwidth", "100", "--latency", "2000", "--replay-only")
    assert "as given with --bandwidth" in given.out
    assert "no measurement" not in given.out
    network = assert_astra_sim_takes(tmp_path / "astra-sim", 2)
    assert (network["bandwidth"], network["latency"]) == ([round(100e9 / GIB, 3)], [1990])
    assert json.loads((tmp_path / "astra-sim/system.json").read_text())["replay-only"] == 1


def test_small_transfers_show_no_bandwidth(graphlink: Run, tmp_path: Path) -> None:
    nodes = chained(collective(0, "ALL_REDUCE", 8, 4), collective(1, "ALL_REDUCE", 32_000, 36))
    ran = graphlink("astra", written(tmp_path, nodes, nodes))
    assert "recorded transfers are too small, 32,000 bytes on the wire at most; --bandwidth 1 plays those" in ran.out
    assert assert_astra_sim_takes(tmp_path / "astra-sim", 2)["bandwidth"] == [round(50e9 / GIB, 3)]


def test_ranks_without_a_graph_are_named(graphlink: Run, tmp_path: Path) -> None:
    for rank in (0, 3):
        (tmp_path / f"trace.{rank}.et").write_bytes(encoded([node(0)], rank=rank, world_size=5))
    ran = graphlink("astra", tmp_path)
    assert ran.status == 1
    assert "has no graph of ranks 1, 2, 4 of a run of 5" in ran.err
    assert "do: record and link all ranks" in ran.err
    assert not (tmp_path / "astra-sim").exists()


def test_the_demo_is_one_rank_of_two(graphlink: Run, tmp_path: Path) -> None:
    pair = ["--et", ROOT / "fixtures/demo/et_0.json", "--kineto", ROOT / "fixtures/demo/kineto_0.json"]
    assert graphlink(*pair, "--out", tmp_path / "out", "--no-timeline", "-q").status == 0
    ran = graphlink("astra", tmp_path / "out")
    assert (ran.status, "has no graph of rank 1 of a run of 2" in ran.err) == (1, True)


def test_one_rank_gets_an_idle_second_one(graphlink: Run, tmp_path: Path) -> None:
    folder = written(tmp_path, [node(0), node(1, data=[0])])
    ran = graphlink("astra", folder)
    out = folder / "astra-sim"
    assert ran.status == 0
    assert "One rank: ASTRA-sim needs two" in ran.out
    assert_astra_sim_takes(out, 2)
    assert (out / "trace.0.et").read_bytes() == (folder / "trace.0.et").read_bytes()
    assert not judged(out).errors
    assert len(read_et(out / "trace.1.et").id) == 1
    assert simulate(out, fake(tmp_path, ranks=2, nodes=3)).returncode == 0
    assert not list(folder.glob("trace.1.et"))


def test_one_rank_that_communicates_is_refused(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink("astra", written(tmp_path, chained(collective(0, "ALL_REDUCE", 4096, 5))))
    assert (ran.status, "holds one rank, which communicates with others" in ran.err) == (1, True)


def test_the_world_as_a_group_needs_the_file_in_one_reader(graphlink: Run, tmp_path: Path) -> None:
    nodes = chained(collective(0, "ALL_REDUCE", 4096, 5, "1"))
    assert graphlink("astra", written(tmp_path, nodes, nodes, groups={"1": [0, 1]})).status == 0
    assert (tmp_path / "astra-sim/comm_group.json").exists()
    for reader, groups in (("head", "groups: ../comm_group.json"), ("legacy", "groups: None")):
        ran = simulate(tmp_path / "astra-sim", fake(tmp_path, ranks=2, nodes=4), reader)
        assert (ran.returncode, groups in ran.stdout) == (0, True)


def test_a_group_beyond_the_world_is_refused(graphlink: Run, tmp_path: Path) -> None:
    nodes = chained(collective(0, "ALL_REDUCE", 4096, 5, "1"))
    ran = graphlink("astra", written(tmp_path, nodes, nodes, groups={"1": [0, 1, 2]}))
    assert ran.status == 1
    assert "ASTRA-sim would not run these graphs: A group names a rank that the run does not have." in ran.err
    assert f"do: graphlink check {tmp_path}" in ran.err
    assert len(ran.err.splitlines()) <= 5


def test_what_only_network_mode_refuses_may_be_replayed(graphlink: Run, tmp_path: Path) -> None:
    nodes = chained(coll(0, comm_type=pb.BARRIER))
    folder = written(tmp_path, nodes, nodes)
    assert "(unsupported): " in graphlink("astra", folder).err
    ran = graphlink("astra", folder, "--replay-only")
    assert ran.status == 0
    assert "(unsupported): " in " ".join(ran.out.split())


def test_ranks_that_do_not_meet_may_be_replayed(graphlink: Run, tmp_path: Path) -> None:
    written(tmp_path, chained(coll(0)), chained(recv(0)))
    assert graphlink("astra", tmp_path).status == 1
    assert graphlink("astra", tmp_path, "--replay-only").status == 0


def test_paths_with_spaces_and_empty_run(graphlink: Run, tmp_path: Path) -> None:
    """ASTRA-sim ignores a groups file whose path contains "empty"."""
    folder = tmp_path / "it's empty $HOME"
    folder.mkdir()
    nodes = chained(collective(0, "ALL_REDUCE", 4096, 5, "1"))
    written(folder, nodes, nodes, groups={"1": [0, 1]})
    assert graphlink("astra", folder, "--out", tmp_path / "a b/sim").status == 0
    fake(tmp_path, ranks=2, nodes=4)
    for program, where in (("./fake sim", tmp_path), (tmp_path / "fake sim", ROOT)):
        ran = simulate(tmp_path / "a b/sim", program, cwd=where)
        assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("ranks", "nodes", "status", "why"),
    [
        (1, 4, 0, "1 of 2 ranks finished; 4 of 4 nodes executed"),
        (2, 3, 0, "not all nodes executed; 3 of 4 nodes executed"),
        (1, 4, 134, "exit status 134; 1 of 2 ranks finished; 4 of 4 nodes executed"),
        (2, 0, 0, "not all nodes executed; 0 of 4"),
    ],
)
def test_run_sh_does_not_believe_an_exit_status(
    graphlink: Run, tmp_path: Path, ranks: int, nodes: int, status: int, why: str
) -> None:
    graph = chained(collective(0, "ALL_REDUCE", 4096, 5))
    assert graphlink("astra", written(tmp_path, graph, graph)).status == 0
    ran = simulate(tmp_path / "astra-sim", fake(tmp_path, ranks=ranks, nodes=nodes, status=status))
    assert ran.returncode == 1
    assert f"run.sh: failed: {why}" in ran.stderr
    again = simulate(tmp_path / "astra-sim", fake(tmp_path, ranks=2, nodes=4))  # the log of before is gone
    assert again.returncode == 0


def test_the_legacy_reader_logs_no_computation_of_no_time(graphlink: Run, tmp_path: Path) -> None:
    graph = [node(0), node(1, data=[0], micros=0), node(2, data=[1])]
    assert graphlink("astra", written(tmp_path, graph, graph)).status == 0
    program = fake(tmp_path, ranks=2, nodes=4)
    assert simulate(tmp_path / "astra-sim", program, "legacy").returncode == 0
    assert simulate(tmp_path / "astra-sim", program, "head").returncode == 1
    assert graphlink("astra", tmp_path, "--replay-only", "--force").status == 0
    assert simulate(tmp_path / "astra-sim", program, "legacy").returncode == 1


def test_run_sh_says_how_it_is_used(graphlink: Run, tmp_path: Path) -> None:
    assert graphlink("astra", written(tmp_path, [node(0)], [node(0)])).status == 0
    out = tmp_path / "astra-sim"
    for program, reader, told in (
        (None, "head", "set ASTRA_SIM"),
        ("/no/such", "head", "no such program"),
        ("/bin/true", "x", "usage"),
    ):
        ran = simulate(out, program, reader)
        assert (ran.returncode, told in ran.stderr) == (2, True)


def test_only_its_own_files_are_replaced(graphlink: Run, tmp_path: Path) -> None:
    folder = written(tmp_path, [node(0)], [node(0)])
    out = folder / "astra-sim"
    assert graphlink("astra", folder).status == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    again = graphlink("astra", folder, "--latency", "9")
    assert (again.status, "--force" in again.err) == (1, True)
    (out / "notes.txt").write_text("mine")
    foreign = graphlink("astra", folder, "--force", "--latency", "9")
    assert (foreign.status, "holds notes.txt, which is not of graphlink astra" in foreign.err) == (1, True)
    (out / "notes.txt").unlink()
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    simulate(out, fake(tmp_path, ranks=2, nodes=2))
    assert graphlink("astra", folder, "--force", "--latency", "9").status == 0
    assert json.loads((out / "network.yml").read_text())["latency"] == [0]
    assert graphlink("astra", folder, "--out", folder).status == 2


def test_all_or_nothing(graphlink: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    folder = written(tmp_path, [node(0)], [node(0)])
    monkeypatch.setattr(Path, "chmod", full)
    ran = graphlink("astra", folder)
    assert (ran.status, "No space left" in ran.err) == (1, True)
    assert not (folder / "astra-sim").exists()


@pytest.mark.parametrize(
    "options", [["--topology", "mesh"], ["--bandwidth", "0"], ["--latency", "-1"], ["--bandwidth", "nan"]]
)
def test_wrong_options(graphlink: Run, tmp_path: Path, options: Sequence[str]) -> None:
    assert graphlink("astra", tmp_path, *options).status == 2


def test_no_graphs(graphlink: Run, tmp_path: Path) -> None:
    assert "there is no such folder" in graphlink("astra", tmp_path / "none").err
    assert "holds no graphs" in graphlink("astra", tmp_path).err


def commands() -> list[str]:
    """Lines of the page's fenced blocks that need no simulator."""
    blocks = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [
        line for block in blocks if "needs the simulator" not in block for line in block.splitlines() if line.strip()
    ]


def test_the_commands_of_the_page_run(
    graphlink: Run, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(traces, tmp_path / "traces")
    monkeypatch.chdir(tmp_path)
    given = commands()
    assert {shlex.split(c)[1] for c in given} >= {"traces", "check", "astra", "replay"}
    for command in given:
        words = shlex.split(command)
        assert words[0] == "graphlink"
        ran = graphlink(*words[1:])
        assert (ran.status, ran.err) == (0, ""), command
    assert_astra_sim_takes(Path("out/astra-sim"), 2)
    assert assert_astra_sim_takes(Path("faster"), 2)["topology"] == ["Switch"]


@pytest.mark.parametrize(
    ("name", "bandwidth", "step_ns", "told"),
    [
        ("megatron-tp2-v100", 50e9, 4784, "recorded transfers are too small, 24,576 bytes on the wire at most"),
        (
            "dlrm8-v100",
            33.6e9,
            1000,
            "of the largest 2 transfers, 1,588,720 to 2,759,687 bytes on the wire, ALL_REDUCE",
        ),
    ],
)
def test_real_runs(graphlink: Run, tmp_path: Path, name: str, bandwidth: float, step_ns: float, told: str) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip(f"no {name}: public recordings are not part of the project")
    assert graphlink(TRACES / name, "--out", tmp_path / "out", "--jobs", "1", "--no-timeline", "-q").status == 0
    ran = graphlink("astra", tmp_path / "out")
    assert (ran.status, ran.err) == (0, "")
    assert told in ran.out
    out = tmp_path / "out/astra-sim"
    ranks = len(list((tmp_path / "out").glob("trace.*.et")))
    assert_astra_sim_takes(out, ranks)
    (link,) = msgspec.json.decode((out / "summary.json").read_bytes())["network"]
    assert link["bytes_per_s"] == pytest.approx(bandwidth, rel=1e-3)
    assert link["step_ns"] == pytest.approx(step_ns, abs=1)
