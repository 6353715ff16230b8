"""Recordings of ``fixtures/capture/cuspy.py`` on an H100 (PyTorch 2.15, Cuspy and Kineto of the same programs) against
what its programs know, and against each other."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

import graphlink
from graphlink.graph.read_et import frames
from graphlink.read.source import open_source
from tests.capture.gpu_truths import judge, unpack
from tests.e2e.conftest import ROOT

CUSPY = ROOT / "fixtures" / "real" / "gpu" / "cuspy"
OPTIONS = graphlink.Options(timeline="none")


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that links a recording, once, and gives its folder and run."""
    root = tmp_path_factory.mktemp("cuspy")
    runs: dict[tuple[str, str], tuple[Path, graphlink.Run]] = {}

    def link(program: str, recorder: str) -> tuple[Path, graphlink.Run]:
        if not (root / program).exists():
            unpack(CUSPY / f"{program}.tar.xz", root / program)
        if (program, recorder) not in runs:
            [kineto] = (root / program).rglob(f"{recorder}-1/kineto_0.json")
            out = root / "linked" / f"{program}-{recorder}"
            runs[program, recorder] = kineto.parent, graphlink.link(kineto.parent, options=OPTIONS, out=out)
        return runs[program, recorder]

    return link


def summary(run: graphlink.Run) -> Any:
    return json.loads((run.folder / "summary.json").read_text())["ranks"][0]


@pytest.mark.parametrize("recorder", ["cuspy", "cuspy-plain"])
def test_copies_of_pageable_memory_block(linked: Any, recorder: str) -> None:
    _, run = linked("copy-pageable", recorder)
    calls = summary(run)["standstill"]["calls"]
    assert calls["explained_ns"] > 0.99 * calls["ns"] > 0
    assert len({*run.nodes()["tid"].dropna()}) == 2  # the calls of the thread of autograd are on that thread


def test_a_host_call_in_a_graph_is_the_hosts_time(linked: Any) -> None:
    """2 ms between two kernels: with Cuspy the GPU is idle for as long as with Kineto, which has no row for it."""
    idle = {}
    for recorder in ("cuspy", "stock"):
        _, run = linked("host-node", recorder)
        [gpu] = summary(run)["gpu"]
        idle[recorder] = gpu["idle_ns"] / (gpu["to_ns"] - gpu["from_ns"])
    assert idle["cuspy"] == pytest.approx(idle["stock"], abs=0.01)
    _, run = linked("host-node", "cuspy")
    [gpu] = summary(run)["gpu"]
    assert gpu["idle_by_cause_ns"]["host_work"] > 4 * 2e6
    path = json.loads((run.folder / "critical_path.0.json").read_text())
    assert path["share_ns"]["host"] > 4 * 2e6
    (half,) = run.replay(scale="host=0.5").what_if
    assert half.gain_pct > 40


@pytest.mark.parametrize("recorder", ["cuspy", "stock"])
def test_a_lane_is_a_label(linked: Any, recorder: str, tmp_path: Path) -> None:
    streams = [{*linked("lanes", kind)[1].nodes()["stream"].dropna()} for kind in (recorder, f"{recorder}-lanes")]
    assert streams[0] == streams[1]
    folder, run = linked("lanes", f"{recorder}-lanes")
    document = json.loads((folder / "kineto_0.json").read_text())
    for row in document["traceEvents"]:
        args = row.get("args", {})
        if "original_stream" in args:
            row["tid"] = args["stream"] = args.pop("original_stream")
        elif row.get("cat") == "ac2g" and row["tid"] >= 100_000:  # on a lane of Cuspy, all of them of this stream
            row["tid"] = 7
    shutil.copytree(folder, tmp_path / "plain", ignore=shutil.ignore_patterns("*.pftrace", "kineto_0.json"))
    (tmp_path / "plain" / "kineto_0.json").write_text(json.dumps(document))
    plain = graphlink.link(tmp_path / "plain", options=OPTIONS, out=tmp_path / "graphs")
    assert _without_lanes(plain) == _without_lanes(run) != (run.folder / "trace.0.et").read_bytes()


def _without_lanes(run: graphlink.Run) -> bytes:
    out = b""
    with open_source(run.folder / "trace.0.et") as source:
        for k, (_, data) in enumerate(frames(source)):
            message = pb.Node.FromString(data) if k else pb.GlobalMetadata.FromString(data)
            kept = [one for one in message.attr if one.name != "lane"]
            del message.attr[:]
            message.attr.extend(kept)
            out += message.SerializeToString()
    return out


def test_lanes_are_a_column_a_group_of_rows_and_a_table(linked: Any) -> None:
    _, run = linked("lanes", "cuspy-lanes")
    lanes = json.loads((run.folder / "ops.0.json").read_text())["lanes"]
    assert {lane["name"]: lane["device_ops"] for lane in lanes} == {f"layer {k}": 32 - 8 * (not k) for k in range(4)}
    column = run.graph(0).columns
    assert "lane" not in column  # no reader needs it: it is an attribute of nodes
    with open_source(run.folder / "trace.0.et") as source:
        nodes = [pb.Node.FromString(data) for k, (_, data) in enumerate(frames(source)) if k]
    words = Counter(a.string_val for node in nodes for a in node.attr if a.name == "lane")
    assert words == {lane["name"]: lane["device_ops"] for lane in lanes}


def test_counters_are_of_the_kernel_that_ran(linked: Any) -> None:
    """A matrix product in float32 fills the GPU: SMs are active for more than 90 % of it, and memory is hardly used."""
    _, run = linked("matmul", "cuspy-counters")
    counters = json.loads((run.folder / "ops.0.json").read_text())["counters"]
    (kernel,) = [one["means"] for one in counters if one["of"] == "kernel"]
    (device,) = [one["means"] for one in counters if one["of"] == "device"]
    assert 90 < kernel["SM Active (%)"] < 100 and kernel["HBM BW (%)"] < 5
    assert device["SM Active (%)"] < kernel["SM Active (%)"]
    assert len([one for one in counters if one["of"] == "step"]) == 4


IMPLIED = Counter({"stream": 4})  # nothing tells that a stream waits for the default stream
POLLING = Counter({"query": 4})  # no row names what is polled


@pytest.mark.parametrize(
    ("program", "recorder", "calls", "wrong"),
    [
        ("eager", "cuspy", 44, Counter()),
        ("eager", "cuspy-counters", 44, Counter()),
        ("eager", "cuspy-plain", 44, POLLING),
        ("graphs", "cuspy", 8, Counter()),
        ("graphs", "cuspy-plain", 8, Counter()),
        ("graphs", "cuspy-counters", 8, Counter()),
        ("streams", "cuspy", 4, Counter()),  # with Kineto 3 are wrong
        ("default-stream", "cuspy", 8, IMPLIED),
        ("matmul", "cuspy", 4, Counter()),
        ("full-queue", "cuspy", 2, Counter()),
    ],
)
def test_each_call_waits_for_what_it_waited_for(
    linked: Any, program: str, recorder: str, calls: int, wrong: Counter[str]
) -> None:
    judged = judge(*linked(program, recorder))
    assert judged.calls == calls
    assert Counter(one.call for one in judged.wrong) == wrong
    assert not any(one.false for one in judged.wrong)


@pytest.mark.parametrize("program", ["graphs", "eager", "streams", "train-graph", "decide-graph"])
def test_no_more_of_the_path_is_unexplained_than_with_kineto(linked: Any, program: str) -> None:
    pinned = []
    for recorder in ("cuspy", "stock"):
        path = summary(linked(program, recorder)[1])["standstill"]["path"]
        pinned.append(path["pinned_ns"] / path["ns"])
    assert pinned[0] <= pinned[1] + 0.02


def _reached(pairs: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """Return which nodes come before which others, through any number of pairs."""
    before: list[set[int]] = [set() for _ in range(count)]
    for source, target in sorted(pairs, key=lambda pair: pair[1]):
        before[target] |= {source, *before[source]}
    return {(source, target) for target, sources in enumerate(before) for source in sources}


def test_edges_inside_a_replay_are_those_of_its_graph(linked: Any) -> None:
    """24 nodes on 8 streams, in 8 replays. Node k is a kernel that spins and one that adds, the nodes 2 k and 2 k + 1 of
    CUDA's graph, behind all that its stream of the capture did before."""
    folder, run = linked("dag", "cuspy")
    true, last = set(), {}
    for k, node in enumerate(json.loads((folder / "truth.0.json").read_text())["nodes"]):
        true |= {(2 * k, 2 * k + 1), *((2 * before + 1, 2 * k + 1) for before in node["after"])}
        true |= {(2 * last[node["stream"]] + 1, 2 * k)} if node["stream"] in last else set()
        last[node["stream"]] = k
    rows = [row for row in json.loads((folder / "kineto_0.json").read_text())["traceEvents"] if row["ph"] == "X"]
    in_graph = sorted((row for row in rows if "graph id" in row.get("args", {})), key=lambda row: row["ts"])
    launches = {row["args"]["correlation"] for row in in_graph}
    nodes = run.nodes()
    nodes = nodes[nodes["correlation"].isin(launches) & nodes["device"].notna()].sort_values("start_ns")
    place = {
        node: (row["args"]["correlation"], row["args"]["graph node id"])
        for node, row in zip(nodes["id"], in_graph, strict=True)
    }
    found: dict[int, set[tuple[int, int]]] = {launch: set() for launch in launches}
    edges = run.edges()
    for source, target in zip(edges["source"], edges["target"], strict=True):
        if source in place and target in place and place[source][0] == place[target][0]:
            found[place[source][0]].add((place[source][1], place[target][1]))
    assert len(found) == 8
    adds = {(a, b) for a, b in _reached(true, 48) if a % 2 and b % 2}
    for pairs in found.values():
        assert {(a, b) for a, b in _reached(pairs, 48) if a % 2 and b % 2} == adds
    assert summary(run)["sync"]["by_source"]["recorded"] == 8 * 58
    path = summary(run)["standstill"]["path"]
    assert path["pinned_ns"] < 0.1 * path["ns"]  # 30 % where streams alone order the nodes
