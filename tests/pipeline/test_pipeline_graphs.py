"""Graphs of computed steps: what is in them, and that they replay to what was computed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphlink.astra.ranks import judge, runs_of
from graphlink.errors import OutputError
from graphlink.graph.read_et import read_et
from graphlink.graph.write_et import KINDS
from graphlink.graph_model import Graph, NodeType
from graphlink.pipeline.graphs import write
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import ActionTimes, Order, Timed, orders, simulate
from graphlink.pipeline.search import search
from graphlink.replay.coupled import play_coupled
from graphlink.replay.folder import graph_files, load
from graphlink.replay.matching import matched
from graphlink.replay.workload import workload
from tests.pipeline.made import actions, even_times, possible

CHECKER = Path(__file__).parents[3] / "shared" / "checks" / "graph_check"
US = 1000


def some_times(seed: int, stages: int) -> ActionTimes:
    """Times of whole us, of which transfers may be longer than actions, or take none."""
    rng = np.random.default_rng(seed)
    lags = [US * rng.integers(0, 40, stages - 1) * rng.integers(0, 2, stages - 1) for _ in range(2)]
    return ActionTimes(US * rng.integers(1, 30, (4, stages)), *lags)


def replayed(folder: Path) -> tuple[int, list[dict[tuple[str, int, int], tuple[int, int]]]]:
    """Return the time of all ranks, and when each action of a rank ran, as ``graphlink replay`` plays the folder."""
    files = load(graph_files(folder))
    work = workload(files)
    played = play_coupled(work, matched(work, {}))
    ran = []
    for (low, high), graph in zip(work.bounds, files.values(), strict=True):
        names = [graph.name_of(node) for node in range(high - low)]
        here = {}
        stage, microbatch = (
            read_column(folder, int(graph.metadata.rank or 0), name)
            for name in ("pipeline_stage", "pipeline_microbatch")
        )
        for node in range(high - low):
            if node in stage:
                phase = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}[names[node].split()[0]]
                here[phase, stage[node], microbatch[node]] = (
                    int(played.begin_ns[low + node]),
                    int(played.end_ns[low + node]),
                )
        ran.append(here)
    return int(played.end_ns.max()), ran


def read_column(folder: Path, rank: int, name: str) -> dict[int, int]:
    """Return an attribute that ``read_et`` leaves aside, by position."""
    from chakra.schema.protobuf import et_def_pb2 as pb

    from graphlink.graph.read_et import frames
    from graphlink.read.source import open_source

    with open_source(folder / f"trace.{rank}.et") as source:
        messages = [message for _, message in frames(source)][1:]
    nodes = map(pb.Node.FromString, messages)
    return {i: attribute.int64_val for i, node in enumerate(nodes) for attribute in node.attr if attribute.name == name}


def judged(folder: Path) -> None:
    (run,) = runs_of(folder)
    judgement = judge(run, None)
    assert not judgement.errors, [(v.rule.key, v.examples) for v in judgement.verdicts]


def same(folder: Path, made: tuple[Order, ...], timed: Timed) -> None:
    """Check that a replay gives each action the time that was computed."""
    whole, ran = replayed(folder)
    assert whole == timed.makespan_ns
    for rank, order in enumerate(made):
        computed = zip(timed.start_ns[rank].tolist(), timed.end_ns[rank].tolist(), strict=True)
        assert ran[rank] == dict(zip(actions(order), computed, strict=True))


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v"), [case for case in possible([(2, 4), (3, 6), (4, 8)]) if case[3] < 3]
)
def test_a_replay_gives_what_was_computed(tmp_path: Path, schedule: str, p: int, m: int, v: int) -> None:
    times = some_times(p * m + v, p * v)
    made = orders(schedule, p, m, v)
    timed = simulate(made, times)
    assert write(tmp_path / "out", made, timed, times) == [f"trace.{rank}.et" for rank in range(p)]
    same(tmp_path / "out", made, timed)
    judged(tmp_path / "out")


@pytest.mark.parametrize("seed", range(6))
def test_searched_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("graphlink.pipeline.search._MOST_PLAYED", 20_000)
    rng = random.Random(seed)
    p, m = rng.randint(1, 5), rng.randint(1, 12)
    times = some_times(seed, p)
    made = search(times, m, (1.5 * p,) * p, 0.5)
    timed = simulate(made, times)
    write(tmp_path, made, timed, times)
    same(tmp_path, made, timed)
    judged(tmp_path)


def test_the_rules_of_the_contract(tmp_path: Path) -> None:
    if not CHECKER.is_file():
        pytest.skip(f"{CHECKER} is not there")
    times = some_times(1, 6)
    made = orders("interleaved-ZB", 3, 6, 2)
    write(tmp_path, made, simulate(made, times), times)
    for rank in range(3):
        command = [sys.executable, str(CHECKER), str(tmp_path / f"trace.{rank}.et")]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=CHECKER.parent, check=False)
        assert (ran.returncode, "broken" in ran.stdout) == (0, False), ran.stdout


def told(graph: Graph) -> list[str]:
    """``id name start-end <- kind of each dependency`` of each node, in us."""
    out = []
    for i in range(len(graph.name)):
        edges = range(int(graph.first[i]), int(graph.first[i + 1]))
        after = " ".join(f"{KINDS[graph.edge_kind[e]]}:{graph.source[e]}" for e in edges)
        out.append(f"{i} {graph.name_of(i)} {graph.start_ns[i] // US}-{graph.end_ns[i] // US} <- {after}".rstrip(" <-"))
    return out


def test_two_ranks_by_hand(tmp_path: Path) -> None:
    times = even_times(2, 10 * US, 20 * US, 30 * US, 5 * US)
    made = orders("ZB-H1", 2, 1)
    write(tmp_path, made, simulate(made, times), times)
    first, second = (read_et(tmp_path / f"trace.{rank}.et") for rank in (0, 1))
    assert told(first) == [
        "0 forward of stage 0 0-10",
        "1 send activations of stage 0 10-15 <- event:0",
        "2 receive gradients of stage 1 45-50",
        "3 input gradient of stage 0 50-70 <- stream:0 event:2",
        "4 weight gradient of stage 0 70-100 <- stream:3",
        "5 end 100-100 <- sync:1 sync:4",
    ]
    assert told(second) == [
        "0 receive activations of stage 0 10-15",
        "1 forward of stage 1 15-25 <- event:0",
        "2 input gradient of stage 1 25-45 <- stream:1",
        "3 weight gradient of stage 1 45-75 <- stream:2",
        "4 send gradients of stage 1 45-50 <- event:2",
        "5 end 75-75 <- sync:3 sync:4",
    ]
    assert first.type.tolist() == [
        NodeType.COMP,
        NodeType.COMM_SEND,
        NodeType.COMM_RECV,
        NodeType.COMP,
        NodeType.COMP,
        NodeType.COMP,
    ]
    assert first.comm_size.tolist() == [0, 250_000, 250_000, 0, 0, 0]
    assert (first.comm_dst[1], first.comm_src[2]) == (1, 1)
    assert (first.comm_tag[1], first.comm_tag[2]) == (second.comm_tag[0], second.comm_tag[4])
    assert (first.metadata.rank, first.metadata.world_size, first.metadata.epoch_ns) == (0, 2, 0)
    assert first.host.tolist() == [False] * 5 + [True]


def test_messages_that_overlap_wait_for_none(tmp_path: Path) -> None:
    """Transfers of 100 us that leave every 10 us: each waits for one that has ended, not for the one before."""
    times = even_times(2, 10 * US, 1 * US, 1 * US, 100 * US)
    made = orders("GPipe", 2, 12)
    timed = simulate(made, times)
    write(tmp_path, made, timed, times)
    received = [line for line in told(read_et(tmp_path / "trace.1.et")) if " receive " in line]
    assert received[:2] == ["0 receive activations of stage 0 10-110", "1 receive activations of stage 0 20-120"]
    assert received[10] == "10 receive activations of stage 0 110-210 <- stream:0"
    same(tmp_path, made, timed)


def test_all_or_nothing(tmp_path: Path) -> None:
    times = even_times(2, 1, 1, 1, 1)
    made = orders("1F1B", 2, 2)
    (tmp_path / "trace.1.et").write_text("mine")
    with pytest.raises(OutputError, match=r"trace\.1\.et is there already") as said:
        write(tmp_path, made, simulate(made, times), times)
    assert "name another folder with --et" in said.value.text()
    assert [path.name for path in tmp_path.iterdir()] == ["trace.1.et"]
    assert (tmp_path / "trace.1.et").read_text() == "mine"


def test_columns_of_actions(tmp_path: Path) -> None:
    times = even_times(4, US, US, US)
    made = orders("ZB-V", 2, 3, 2)
    write(tmp_path, made, simulate(made, times), times)
    stage, chunk = (read_column(tmp_path, 1, name) for name in ("pipeline_stage", "pipeline_chunk"))
    phases = [Pass[phase] for phase, _, _ in actions(made[1])]
    assert [stage[i] for i in sorted(stage)] == made[1].stage.tolist()
    assert [chunk[i] for i in sorted(chunk)] == (made[1].stage // 2).tolist()
    assert len(stage) == len(phases)
