"""graphlink as a library: what is linked and what is opened answer alike, and as the files and the command do."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import graphlink
from graphlink import output_names
from graphlink.cli import main
from graphlink.errors import InputError, OutputError, UsageError
from graphlink.graph import path_file as path
from graphlink.graph.read_et import read_et
from graphlink.graph.write_et import KINDS
from graphlink.graph_model import NodeType
from graphlink.pipeline import file as bubbles
from tests.simulator.et import write_et
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run as simulate
from tests.simulator.programs import Training, training_program

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"
PIPELINE = DEMO.parent / "real" / "pipeline"
TABLES = ("nodes", "edges", "ops", "kernels", "syncs", "collectives", "idle", "bubbles", "critical_path", "gains")
FAST = graphlink.Options(sync="cuda", timeline="none")
# a script as people write it, without a guard for processes that start it again
SCRIPT = f"""
import sys
import graphlink
from pandas.testing import assert_frame_equal

print("once")
fresh = graphlink.link(sys.argv[1], out=sys.argv[2], options=graphlink.Options(sync="cuda", timeline="none"))
opened = graphlink.open(sys.argv[2])
for name in {TABLES}:
    assert_frame_equal(getattr(fresh, name)(), getattr(opened, name)())
for of in ("families", "ops", "sync_points", "shares"):
    assert_frame_equal(fresh.gains(1, of=of), opened.gains(1, of=of))
assert_frame_equal(fresh.critical_path(across=True), opened.critical_path(across=True))
assert repr(fresh.summary) == repr(opened.summary) and fresh.replay() == opened.replay()
print(fresh.ranks)
"""


@pytest.fixture(scope="module")
def demo() -> graphlink.Run:
    return graphlink.link(DEMO, options=FAST)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphlink.Run]:
    """Two ranks of a small program, linked by a script."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "traces").mkdir()
    for rank in (0, 1):
        execution = simulate(training_program(1, Training(steps=2, layers=2, ranks=2, rank=rank)))
        write_et(execution, folder / "traces" / f"et_{rank}.json")
        write_kineto(execution, folder / "traces" / f"kineto_{rank}.json")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(folder / "traces"), str(folder / "out")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "once\n(0, 1)\n", ""), ran.stderr
    yield graphlink.open(folder / "out")


def test_several_ranks_are_linked_from_a_plain_script_and_opened_alike(two: graphlink.Run) -> None:
    assert two.ranks == (0, 1) and two.nodes()["rank"].unique().tolist() == [0, 1]
    assert two.nodes(1).equals(two.nodes().query("rank == 1").reset_index(drop=True))
    waits = [(one.rank, one.wait_ns, one.transfer_ns, one.last) for one in two.summary.run.waits]
    assert list(two.waits().itertuples(index=False, name=None)) == waits and len(waits) == 2


def test_the_files_are_those_of_the_command(tmp_path: Path, demo: graphlink.Run) -> None:
    assert main([str(DEMO), "--sync", "cuda", "--no-timeline", "--out", str(tmp_path / "out"), "-q"]) == 0
    files = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert files == {p.name: p.read_bytes() for p in demo.folder.iterdir()}


def test_tables_say_what_the_graph_says(demo: graphlink.Run) -> None:
    file, entry = read_et(demo.folder / "trace.0.et"), demo.summary.ranks[0]
    nodes, edges, kernels = demo.nodes(0), demo.edges(0), demo.kernels(0)
    for column in ("id", "start_ns", "end_ns", "duration_ns", "cost_ns", "self_ns", "wait_ns", "start_delay_ns"):
        assert nodes[column].tolist() == getattr(file, column).tolist(), column
    assert nodes.name.tolist() == [file.name_of(i) for i in range(len(file.id))]
    assert nodes.device.isna().tolist() == file.host.tolist() == nodes.tid.notna().tolist()
    plain = [
        (int(file.id[source]), int(file.id[target]), KINDS[kind])
        for target in range(len(file.id))
        for source, kind in zip(
            file.data.source[file.data.first[target] : file.data.first[target + 1]].tolist(),
            file.data.kind[file.data.first[target] : file.data.first[target + 1]].tolist(),
            strict=True,
        )
    ]
    assert list(edges[["source", "target", "kind"]].itertuples(index=False, name=None)) == plain
    assert edges.kind.value_counts().to_dict() == {kind: n for kind, n in entry.edges.items() if n}
    assert len(kernels) == entry.device.ops
    assert kernels.op_name.tolist() == nodes.set_index("id").name.loc[kernels.op.tolist()].tolist()
    launches = demo.ops(0).set_index("id").launches
    assert launches[launches > 0].to_dict() == edges[edges.kind == "launch"].source.value_counts().to_dict()


def test_waits_say_what_the_graph_says(demo: graphlink.Run) -> None:
    nodes, edges, syncs = demo.nodes(0), demo.edges(0), demo.syncs(0)
    sync = edges[edges.kind == "sync"].reset_index(drop=True)
    assert syncs[["source", "target"]].equals(sync[["source", "target"]])
    assert syncs.source_end_ns.tolist() == nodes.set_index("id").end_ns.loc[sync.source].tolist()
    assert "cudaStreamSynchronize" in set(syncs.call)


def test_idle_time_is_that_of_the_summary_and_ends_with_an_op_of_its_stream(demo: graphlink.Run) -> None:
    idle, kernels = demo.idle(0), demo.kernels(0)
    (gpu,) = demo.summary.ranks[0].gpu
    assert idle.groupby("cause").duration_ns.sum().to_dict() == gpu.idle_by_cause_ns
    assert idle.duration_ns.sum() == gpu.idle_ns and (idle.end_ns - idle.start_ns == idle.duration_ns).all()
    begun = set(zip(kernels.name, kernels.stream, strict=True))
    assert set(zip(idle.op, idle.stream, strict=True)) <= begun


def test_communication_has_the_bandwidth_that_the_ranks_tell_together(two: graphlink.Run, demo: graphlink.Run) -> None:
    assert two.summary.run is not None
    told = {(g.id, of.type): of.bus_bytes_per_s for g in two.summary.run.groups for of in g.collectives}
    found = two.collectives()
    assert len(found) and found.bus_bytes_per_s.notna().all()
    assert [told[key] for key in zip(found.group, found.type, strict=True)] == found.bus_bytes_per_s.tolist()
    assert found.ranks.tolist() == [(0, 1)] * len(found)
    alone = demo.collectives(0)
    file = demo.graph(0)
    assert len(alone) == np.count_nonzero(file.type == NodeType.COMM_COLL)
    assert alone.size_bytes.sum() == file.comm_size.sum() and alone.bus_bytes_per_s.isna().all()


def test_paths_and_gains_are_those_of_the_files(demo: graphlink.Run, two: graphlink.Run) -> None:
    file, entry = path.load(demo.folder / "critical_path.0.json"), demo.summary.ranks[0].critical_path
    found = demo.critical_path(0)
    assert found.cost_ns.sum() == entry.length_ns and found.id.tolist() == file.nodes.id
    assert found.name.tolist() == [file.names[code] for code in file.nodes.name] and found.held_by[0] is None
    for of in ("families", "ops", "sync_points"):
        table, rows = demo.gains(0, of=of), getattr(file.gains, of)
        assert table.gain_ns.tolist() == [row.gain_ns for row in rows] and table.name.tolist() == [
            row.name for row in rows
        ]
        assert table.gain_ns.is_monotonic_decreasing
    shares = demo.gains(0, of="shares")
    assert dict(zip(shares.share, shares.gain_ns, strict=True)) == msgspec.structs.asdict(file.gains.shares)
    across = two.critical_path(across=True)
    assert set(across["rank"]) <= {0, 1} and (across.start_ns[1:].tolist() == across.end_ns[:-1].tolist())


def test_a_replay_is_that_of_the_command(demo: graphlink.Run, tmp_path: Path) -> None:
    changes = ["--scale", "kernel=0.5", "--scale", "comm=2", "--remove-sync", "all", "--launch-cost", "1.5"]
    assert main(["replay", str(demo.folder), *changes, "--json", str(tmp_path / "r.json")]) == 0
    report = demo.replay(scale=["kernel=0.5", "comm=2"], remove_sync="all", launch_us=1.5)
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes()) == msgspec.to_builtins(report)
    syncs = demo.gains(0, of="sync_points")
    assert str(demo.advice()).startswith("rank 0: gains are ") and "\n   graphlink replay" in str(demo.advice())
    gpu, steps = demo.gpu(), demo.gpu(by_step=True)
    assert list(gpu["rank"]) == [0] and len(steps) == 3
    for table in (gpu, steps):
        parts = table[["compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"]].sum(axis=1)
        assert list(parts) == list(table.to_ns - table.from_ns)
    rows = demo.collectives()
    assert list(rows.own_bytes_per_s.round()) == list((1e9 * rows.size_bytes / rows.duration_ns).astype(float).round())
    graphs = demo.replay(cuda_graph="auto").what_if
    assert graphs == demo.replay(what_if={"cuda_graph": [{"auto": True}]}).what_if and graphs[0].gain_pct
    assert demo.replay(remove_sync=syncs.id[0]).what_if == demo.replay(remove_sync=[str(syncs.id[0])]).what_if
    with pytest.raises(UsageError, match="no such node"):
        demo.replay(scale="kernel:nothing=0.5")


def test_a_pipeline_has_bubbles_and_gloo_is_on_no_device() -> None:
    run = graphlink.link(PIPELINE, options=FAST)
    told, table = bubbles.load(run.folder / output_names.BUBBLES).idle, run.bubbles()
    assert table.duration_ns.tolist() == [e.end_ns - e.start_ns for e in told] and table.cause.tolist() == [
        e.cause for e in told
    ]
    assert len(told) and run.summary.pipeline is not None
    sums = table[table.cause != "optimizer_sync"].groupby("cause").duration_ns.sum().to_dict()
    assert sums == {cause: ns for cause, ns in run.summary.pipeline.causes_ns.items() if ns}
    sent = run.collectives(0)
    assert not len(run.kernels()) and set(sent.type) == {"SEND", "RECV"}
    assert sent.stream.isna().all() and (sent.comm_src.dropna() >= 0).all()


def test_a_temporary_folder_lives_as_long_as_the_run() -> None:
    run = graphlink.link(DEMO / "kineto_0.json", DEMO / "et_0.json", options=FAST)
    folder = run.folder
    assert run.summary.ranks[0].host.matched and folder.exists()
    del run
    gc.collect()
    assert not folder.exists()


def test_a_link_that_fails_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UsageError, match="no step 77"):
        graphlink.link(DEMO, options=graphlink.Options(step="77"))
    assert not [*tmp_path.iterdir()]


def test_outputs_are_only_replaced_when_asked(tmp_path: Path) -> None:
    graphlink.link(DEMO, out=tmp_path / "out", options=FAST)
    with pytest.raises(OutputError, match="earlier run"):
        graphlink.link(DEMO, out=tmp_path / "out", options=FAST)
    assert graphlink.link(DEMO, out=tmp_path / "out", options=FAST, force=True).folder == tmp_path / "out"


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (lambda: graphlink.link(), "no Kineto trace"),
        (lambda: graphlink.link("nowhere/"), "no such file"),
        (lambda: graphlink.link(DEMO / "et_0.json"), "no Kineto trace"),
        (lambda: graphlink.link(__file__), "neither a Kineto trace"),
        (lambda: graphlink.link(DEMO, graphlink.Recordings(folders=("a",))), "stands alone"),
        (lambda: graphlink.link(DEMO, out="s3://bucket/out"), "cannot be opened"),
        (lambda: graphlink.open("s3://bucket/out"), "this machine"),
        (lambda: graphlink.open(DEMO), "no such file"),
    ],
)
def test_what_cannot_be_done_is_said(how: Any, problem: str) -> None:
    with pytest.raises((UsageError, InputError), match=problem):
        how()


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda run: run.graph(), "rank=None: must be one of 0, 1"),
        (lambda run: run.nodes(2), "rank=2: must be one of 0, 1"),
        (lambda run: run.gains(0, of="kernels"), "of='kernels': must be one of families"),
        (lambda run: run.replay(machine="gpu"), "machine='gpu': must be one of ideal"),
        (lambda run: run.replay(gb_per_s=0), "gb_per_s=0: must be"),
        (lambda run: run.replay(launch_us=float("nan")), "launch_us=nan: must be"),
        (lambda run: run.replay(what_if={"dataloader": [{"workers": 0}]}), "what_if: Expected `int` >= 1"),
        (lambda run: run.replay(what_if={"loader": []}), "what_if: Object contains unknown field `loader`"),
        (lambda run: run.critical_path(0, across=True), "leave rank out"),
    ],
)
def test_a_bad_question_names_what_is_allowed(two: graphlink.Run, ask: Any, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask(two)
    assert problem in refused.value.text()


def test_recordings_can_be_named_by_kind() -> None:
    named = graphlink.Recordings(kineto=(str(DEMO / "kineto_*.json"),), et=(str(DEMO / "et_*.json"),), rank=1)
    run = graphlink.link(named, options=FAST)
    assert run.ranks == (1,) and run.graph().metadata.rank == 1


def test_pandas_is_imported_only_for_a_table() -> None:
    code = f"""
import sys, graphlink
assert not {{"numpy", "pandas", "msgspec"}} & set(sys.modules)
run = graphlink.link({str(DEMO)!r}, options=graphlink.Options(sync="cuda", timeline="none"))
run.graph(0), run.replay(), repr(run), run._repr_html_()
assert "pandas" not in sys.modules
assert len(run.nodes(0)) == run.summary.ranks[0].graph_nodes and "pandas" in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_graph_of_a_file_becomes_a_networkx_graph(demo: graphlink.Run) -> None:
    whole = graphlink.to_networkx(demo.graph(0))
    edges = demo.edges(0)
    assert {(a, b, data["kind"]) for a, b, data in whole.edges(data=True)} == set(
        edges[["source", "target", "kind"]].itertuples(index=False, name=None)
    )
    assert [whole.nodes[i]["name"] for i in whole] == demo.nodes(0).name.tolist()
    window = graphlink.to_networkx(demo.graph(0), nodes=range(50, 80))
    assert [*window] == [*whole][50:80]
    assert set(window.edges) == {(a, b) for a, b in whole.edges if a in window and b in window}
