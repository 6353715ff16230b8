"""The real ASTRA-sim, where it lies beside the project: what it says of each node is what ``replay`` and
docs/astra-sim.md say.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graphlink.cli import main
from graphlink.graph.read_et import read_et
from graphlink.linking.commtypes import CollectiveType
from graphlink.replay.slots import play_slots
from graphlink.replay.workload import workload
from tests.astra.et_files import coll, node, recv, send, written
from tests.e2e.conftest import ROOT, SIMULATORS

TRACES = ROOT.parent / "shared" / "traces"
LOGGED = re.compile(r"(issue|callback),sys->id=(\d+), ?tick=(\d+), ?node->id=(\d+)")
KIB = 1 << 10
MIB = 1 << 20

Times = dict[tuple[int, int], int]  # rank, id -> ns


@dataclass(frozen=True)
class Simulated:
    said: str
    start: Times  # the legacy one logs none without a network
    end: Times


def simulated(folder: Path, reader: str, *options: str) -> Simulated:
    """What a run of ``graphlink astra FOLDER`` logs; it went well."""
    out = folder / "astra-sim"
    assert main(["astra", str(folder), "--force", *options]) == 0
    environment = os.environ | {"ASTRA_SIM": str(SIMULATORS / f"AstraSim_{reader}")}
    ran = subprocess.run(
        ["bash", str(out / "run.sh"), reader], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    times: dict[str, Times] = {"issue": {}, "callback": {}}
    for log in (out / f"log-{reader}/log").glob("log*.log"):
        for what, rank, tick, id_ in LOGGED.findall(log.read_text()):
            times[what][int(rank), int(id_)] = int(tick)
    return Simulated(ran.stdout, times["issue"], times["callback"])


def replayed(folder: Path) -> tuple[Times, Times]:
    """Start and end of each node in ``graphlink replay --machine astra-sim``."""
    start: Times = {}
    end: Times = {}
    for path in folder.glob("trace.*.et"):
        rank = int(path.suffixes[-2][1:])
        work = workload({rank: read_et(path)})
        played = play_slots(work)
        ids = [(rank, work.id(i)) for i in range(len(work))]
        start |= dict(zip(ids, played.start_ns.tolist(), strict=True))
        end |= dict(zip(ids, played.end_ns.tolist(), strict=True))
    return start, end


def differing(folder: Path, reader: str) -> set[tuple[int, int]]:
    """Nodes that do not start or end as replayed where ``graphlink astra --replay-only`` is run."""
    said = simulated(folder, reader, "--replay-only")
    start, end = replayed(folder)
    real = {key: said.end[key] for key in end}
    assert said.start or reader == "legacy"
    return {key for key in end if real[key] != end[key] or said.start.get(key, start[key]) != start[key]}


def with_ties(seed: int, ranks: tuple[int, int], nodes: int = 76) -> list[list[Any]]:
    """Graphs of two ranks: many nodes ready and many ends at one instant, receives beside the slots, computation of no
    time.
    """
    chance = random.Random(seed)
    sorts: list[list[tuple[str, int]]] = [[], []]
    given = [[*["cpu"] * 30, *["gpu"] * 30, *["coll"] * 12, *["send"] * 4] for _ in ranks]
    for of_rank in given:
        chance.shuffle(of_rank)
    for tag in range(nodes):
        for me in (0, 1):
            sorts[me].append((given[me][tag], tag))
            if given[me][tag] == "send":
                sorts[1 - me].append(("recv", tag))
    out: list[list[Any]] = [[], []]
    for me in (0, 1):
        for i, (sort, tag) in enumerate(sorts[me]):
            deps = (
                sorted({chance.randrange(max(0, i - 12), i) for _ in range(chance.choice((0, 1, 1, 2, 3)))})
                if i
                else []
            )
            if sort in ("cpu", "gpu"):
                made = node(i, data=deps, is_cpu_op=sort == "cpu")
            elif sort == "coll":
                made = coll(i, deps)
            elif sort == "send":
                made = send(i, deps, is_cpu_op=False, comm_tag=2 * tag + me, comm_src=ranks[me], comm_dst=ranks[1 - me])
            else:
                made = recv(
                    i, deps, is_cpu_op=False, comm_tag=2 * tag + 1 - me, comm_src=ranks[1 - me], comm_dst=ranks[me]
                )
            made.duration_micros = chance.randint(seed % 2, 4)
            out[me].append(made)
    return out


def test_a_hundred_graphs_full_of_ties_to_the_ns(tmp_path: Path, reader: str) -> None:
    written(tmp_path, *(graph for rank in range(0, 100, 2) for graph in with_ties(rank // 2, (rank, rank + 1))))
    assert not differing(tmp_path, reader)


@pytest.mark.long
@pytest.mark.parametrize("sweep", range(10))
def test_thousands_of_graphs_full_of_ties_to_the_ns(tmp_path: Path, reader: str, sweep: int) -> None:
    first = 1000 * (sweep + 1)
    written(tmp_path, *(graph for rank in range(0, 100, 2) for graph in with_ties(first + rank // 2, (rank, rank + 1))))
    assert not differing(tmp_path, reader)


RECORDINGS = ("megatron-tp2-v100", "simple-add-a100")
MORE = ("dlrm8-v100", "partial-et", "pipelining-cpu/1f1b", "pipelining-cpu/interleaved-zb", "vgg13-h100")


@pytest.mark.parametrize("name", [*RECORDINGS, *(pytest.param(name, marks=pytest.mark.long) for name in MORE)])
def test_recordings_run_and_replay_to_the_ns(tmp_path: Path, reader: str, name: str) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip(f"no {name}: public recordings are not part of the project")
    out = tmp_path / "out"
    assert main([str(TRACES / name), "--out", str(out), "--jobs", "1", "--no-timeline", "-q"]) == 0
    simulated(out, reader)
    assert not differing(out, reader)


def chain(*nodes: Any) -> list[Any]:
    for before, after in pairwise(nodes):
        after.data_deps.append(before.id)
    return [*nodes, node(len(nodes), data=[len(nodes) - 1])]


def took(said: Simulated, rank: int, id_: int) -> int:
    return said.end[rank, id_] - (said.end[rank, id_ - 1] if id_ else 0)


NETWORK = ("--bandwidth", "50", "--latency", "1000")  # a step of 1 us, 50 bytes a ns
STEPS = {
    CollectiveType.ALL_REDUCE: 2,
    CollectiveType.ALL_GATHER: 1,
    CollectiveType.REDUCE_SCATTER: 1,
    CollectiveType.ALL_TO_ALL: 1,
}


def expected_ns(kind: CollectiveType, ranks: int, size: int) -> float:
    """As docs/astra-sim.md has it: steps x latency + bytes on the wire / bandwidth."""
    shards = ranks if kind == CollectiveType.ALL_GATHER else 1
    return STEPS[kind] * (ranks - 1) * (1000 + shards * size / ranks / 50)


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_collectives_take_what_the_page_says(tmp_path: Path, reader: str, ranks: int) -> None:
    given = [(kind, size) for kind in STEPS for size in (KIB, MIB)]
    graph = chain(*(coll(i, comm_type=int(kind), comm_size=size) for i, (kind, size) in enumerate(given)))
    said = simulated(written(tmp_path, *[graph] * ranks), reader, *NETWORK)
    for i, (kind, size) in enumerate(given):
        assert took(said, 0, i) == pytest.approx(expected_ns(kind, ranks, size), rel=0.005), (kind, size)


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [0, 2, 4, 6]])
def test_collectives_of_some_ranks_take_what_the_page_says(tmp_path: Path, reader: str, members: Sequence[int]) -> None:
    kinds = [
        kind for kind in STEPS if reader == "head" or kind != CollectiveType.ALL_TO_ALL
    ]  # which the legacy one lets go round a ring
    graph = chain(*(coll(i, comm_type=int(kind), comm_size=MIB, pg_name="1") for i, kind in enumerate(kinds)))
    written(tmp_path, *(graph if rank in members else [node(0)] for rank in range(8)), groups={"1": members})
    said = simulated(tmp_path, reader, *NETWORK)
    for i, kind in enumerate(kinds):
        assert took(said, members[0], i) == pytest.approx(expected_ns(kind, len(members), MIB), rel=0.005), kind


def test_a_far_message_takes_what_a_near_one_does(tmp_path: Path, reader: str) -> None:
    graphs = [[node(0)] for _ in range(8)]
    for source, target in ((0, 1), (2, 6)):
        ends = {"comm_src": source, "comm_dst": target, "comm_size": MIB}
        graphs[source], graphs[target] = (
            chain(send(0, is_cpu_op=False, **ends)),
            chain(recv(0, is_cpu_op=False, **ends)),
        )
    said = simulated(written(tmp_path, *graphs), reader, *NETWORK)
    assert said.end[1, 0] == said.end[6, 0] == pytest.approx(1000 + MIB / 50, rel=0.005)


def test_members_that_come_apart_end_apart(tmp_path: Path, reader: str) -> None:
    """The early one of two has half of an ALL_REDUCE behind it when the late one comes; ``--machine ranks`` ends both
    together.
    """
    late = 5_000
    graphs = [[node(0, micros=1 + late * rank), coll(1, [0], comm_size=50 * MIB), node(2, data=[1])] for rank in (0, 1)]
    said = simulated(written(tmp_path, *graphs), reader, *NETWORK)
    whole = expected_ns(CollectiveType.ALL_REDUCE, 2, 50 * MIB)
    arrival = said.end[1, 0]
    assert said.end[1, 1] - arrival == pytest.approx(whole, rel=0.005)
    assert said.end[0, 1] - arrival == pytest.approx(whole / 2, rel=0.005)
