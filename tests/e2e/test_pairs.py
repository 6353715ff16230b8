"""The command on the fixtures and on public traces: nothing is lost, every graph holds to the rules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

from tests.e2e.conftest import ROOT, Done
from tests.e2e.graph_rules import File, broken, read

FIXTURES = sorted(path.parent for path in (ROOT / "fixtures").glob("*/kineto_*"))
TRACES = ROOT.parent / "shared" / "traces"
GOLDEN = ROOT / "tests" / "golden"
Run = Callable[..., Done]

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")

# kineto, et or None, what the traces' README says of it: (host rows matched, device ops), None where it says nothing
REAL: list[tuple[str, str | None, int | None, int | None]] = [
    ("megatron-tp2-v100/kineto_0", "megatron-tp2-v100/et_0", 1880, 245),
    ("megatron-tp2-v100/kineto_1", "megatron-tp2-v100/et_1", 1880, 245),
    ("resnet-ddp2-a100/kineto_0", "resnet-ddp2-a100/et_0", 14388, 3774),
    *((f"dlrm8-v100/kineto_{r}", f"dlrm8-v100/et_{r}", 1672, 261 if r == 0 else None) for r in range(8)),
    ("dlrm8-v100/kineto_0", "dlrm8-v100/et_plus_reference_0", 1672, 261),
    ("vgg13-h100/kineto_0", "vgg13-h100/et_0", 900, 325),
    ("simple-add-a100/kineto_0", "simple-add-a100/et_0", 36, None),
    ("partial-et/kineto_0", "partial-et/et_0", 1310, 10113),
    *((f"pipelining-cpu/1f1b/kineto_{r}", f"pipelining-cpu/1f1b/et_{r}", None, 0) for r in range(4)),
    *(
        (f"pipelining-cpu/interleaved-zb/kineto_{r}", f"pipelining-cpu/interleaved-zb/et_{r}", None, 0)
        for r in range(4)
    ),
    ("cuda-sync/alexnet", None, 0, None),
    ("cuda-sync/event_sync", None, 0, None),
    ("rocm/mi250_minitoy", None, 0, None),
    ("rocm/mi300_resnet_rank0of8", None, 0, None),
    ("legacy/categories_2021", None, 0, None),
    ("legacy/triton_example", None, 0, None),
    ("legacy/sendrecv_graph_launch_5streams", None, 0, None),
    ("host-only/no_gpu_no_rank", None, 0, 0),
]
SMALL = ("megatron-tp2-v100/kineto_0", "cuda-sync/alexnet", "rocm/mi250_minitoy")


def check_identities(rank: Any) -> None:
    host, device, sync = rank["host"], rank["device"], rank["sync"]
    assert host["nodes"] == host["matched"] + host["unmatched"]
    assert device["ops"] == device["linked"] + sum(device["orphans"].values())
    assert sync["found"] == sync["kept"] + sum(sync["rejected"].values())
    assert sum(rank["node_kinds"].values()) == rank["graph_nodes"]
    assert rank["node_kinds"].get("host_op", 0) + rank["node_kinds"].get("host_async", 0) == host["nodes"]
    assert rank["node_kinds"].get("device_op", 0) == device["ops"]
    assert sum(rank["critical_path"]["share_ns"].values()) == rank["critical_path"]["length_ns"]


def check_graph(rank: Any, path: Path) -> None:
    file = read(path)
    assert broken(file) == []
    assert len(file.nodes) == rank["graph_nodes"]
    kinds = [kind for a in file.attributes for kind in a["dep_kinds"]]
    assert {kind: kinds.count(kind) for kind in rank["edges"]} == rank["edges"]
    assert (file.head["rank"], file.head["world_size"]) == (rank["rank"], rank["world_size"])


def pair(folder: Path) -> list[str | Path]:
    """The flags for the pair in a folder of fixtures."""
    return [
        word
        for flag in ("et", "kineto")
        for word in (f"--{flag}", next(folder.glob(f"{flag}_0.json*")).relative_to(ROOT))
    ]


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_fixture(folder: Path, graphlink: Run) -> None:
    done = graphlink(*pair(folder))
    assert (done.status, done.err) == (0, "")
    check_identities(done.rank)
    check_graph(done.rank, done.folder / "trace.0.et")
    assert abs(done.rank["replay"]["error_pct"]) < 0.2
    assert sorted(path.name for path in done.folder.iterdir()) == sorted(done.summary["files"])


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_graphs_stay_identical_to_the_byte(folder: Path, graphlink: Run) -> None:
    """If a change of the graph is meant: say why in CHANGELOG.md and put the printed line into
    tests/golden/sha256.txt.
    """
    done = graphlink(*pair(folder))
    line = f"{hashlib.sha256((done.folder / 'trace.0.et').read_bytes()).hexdigest()}  {folder.name}"
    assert line in (GOLDEN / "sha256.txt").read_text().splitlines()


def readable(file: File) -> str:
    """A line a node: id, type, thread or stream, start, end and duration in ns, what it depends on, name."""
    lines = []
    for node, a in zip(file.nodes, file.attributes, strict=True):
        place = f"stream {a['stream']}" if "stream" in a else f"thread {a['tid']}"
        after = ", ".join(f"{dep} {kind}" for dep, kind in zip(node.data_deps, a["dep_kinds"], strict=True))
        times = f"{a['start_ns']:>8} .. {a['end_ns']:>8} {a['duration_ns']:>7}"
        lines.append(
            f"{node.id:>3} {pb.NodeType.Name(node.type):<14} {place:<11} {times}  after [{after}]  {node.name}\n"
        )
    return "".join(lines)


def test_the_graph_of_the_demo_is_the_one_kept_as_text(graphlink: Run, tmp_path: Path) -> None:
    """Shows what a change of its hash is about."""
    now, kept = tmp_path / "demo.txt", GOLDEN / "demo.txt"
    now.write_text(readable(read(graphlink(*pair(ROOT / "fixtures" / "demo")).folder / "trace.0.et")), encoding="utf-8")
    assert now.read_text(encoding="utf-8").splitlines() == kept.read_text(encoding="utf-8").splitlines(), (
        f"if it is meant: cp {now} {kept}"
    )


@needs_traces
@pytest.mark.parametrize(
    ("kineto", "et", "matched", "device_ops"),
    [pytest.param(*row, marks=[] if row[0] in SMALL else pytest.mark.long, id=row[1] or row[0]) for row in REAL],
)
def test_public_trace(kineto: str, et: str | None, matched: int | None, device_ops: int | None, graphlink: Run) -> None:
    names = [*(["--et", TRACES / f"{et}.json.gz"] if et else []), "--kineto", TRACES / f"{kineto}.json.gz"]
    done = graphlink(*names)
    assert (done.status, done.err) == (0, "")
    check_identities(done.rank)
    check_graph(done.rank, next(done.folder.glob("trace.*.et")))
    assert matched in (None, done.rank["host"]["matched"])
    assert device_ops in (None, done.rank["device"]["ops"])
    assert abs(done.rank["replay"]["error_pct"]) < 0.2


@needs_traces
@pytest.mark.parametrize(("name", "edges"), [("alexnet", 31), ("event_sync", 4)])
def test_all_of_htas_synchronisation_edges_are_found_by_rows_too(name: str, edges: int, graphlink: Run) -> None:
    by_source = graphlink("--kineto", TRACES / "cuda-sync" / f"{name}.json.gz").rank["sync"]["by_source"]
    assert (by_source["hta"], by_source["cuda_sync"]) == (edges, edges)


@needs_traces
def test_a_pair_of_two_runs_is_refused(graphlink: Run) -> None:
    folder = TRACES / "mismatched-pair"
    done = graphlink("--et", folder / "et_0.json.gz", "--kineto", folder / "kineto_0.json.gz")
    assert (done.status, done.out) == (1, "")
    assert "two runs" in done.err
    assert len(done.err.splitlines()) <= 5
    assert not done.folder.exists()
