"""The timeline of graphs, as Perfetto's own trace processor reads it."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.depend.build import BuildOptions, build
from graphlink.graph.critical import cost_ns
from graphlink.graph.fold import fold
from graphlink.graph.path_file import explain
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.linking.communication import communication as typed
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, Communication, Linked
from graphlink.perfetto.packets import KIND_OF_FLOW, PerfettoTrace
from graphlink.perfetto.slices import nested
from graphlink.ranks import group_ids as groups
from graphlink.replay.machines import replay
from graphlink.report import timeline
from graphlink.report.timeline import DRAWN, Shown, _ended_right_before
from graphlink.run import job
from tests.build import Call, Device, Host, build_trace
from tests.depend.programs import built, linked_of, shape
from tests.pipeline.hand import ALL_REDUCE, EPOCH_NS, N, communication, every_kind, graph, records
from tests.simulator.et import write_et
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run as execute
from tests.simulator.programs import Training, random_program, training_program
from tests.trace_processor import Row, query

ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = """
select s.id, s.ts, s.dur, s.depth, s.name, s.parent_id, t.id as track, coalesce(th.name, t.name) as row, th.tid as tid, p.name as rank,
  extract_arg(s.arg_set_id, 'debug.node') as node, extract_arg(s.arg_set_id, 'debug.held_by') as held_by,
  extract_arg(s.arg_set_id, 'debug.held_from') as held_from, extract_arg(s.arg_set_id, 'debug.share') as share,
  extract_arg(s.arg_set_id, 'debug.correlation') as correlation, extract_arg(s.arg_set_id, 'debug.comm') as comm,
  extract_arg(s.arg_set_id, 'debug.comm_size') as comm_size, extract_arg(s.arg_set_id, 'debug.group') as comm_group,
  extract_arg(s.arg_set_id, 'debug.waited_for') as waited_for, extract_arg(s.arg_set_id, 'debug.delays') as delays,
  extract_arg(s.arg_set_id, 'debug.call') as call, extract_arg(s.arg_set_id, 'debug.start_delay_ns') as start_delay_ns
from slice s join track t on t.id = s.track_id
  left join thread_track tt on tt.id = t.id left join thread th using (utid)
  left join process_track pt on pt.id = t.id left join process p on p.upid = coalesce(th.upid, pt.upid)
order by s.ts, s.id"""
FLOWS = "select slice_out, slice_in, trace_id from flow"


def shown(g: Graph, linked: Linked, comm: Communication, ids: groups.GroupIds | None = None, rank: int = 0) -> Shown:
    cost = cost_ns(g)
    played = replay(g, cost)
    found = explain(g, linked, comm, played.end_ns, cost)
    return Shown(rank, g, linked, comm, found, played, ids or {})


def written(*ranks: Shown) -> bytes:
    out = io.BytesIO()
    for one in ranks:
        before = len(out.getvalue())
        assert timeline.write(out, one) == len(out.getvalue()) - before
    return out.getvalue()


def on(rows: list[Row], row: str, rank: str = "rank 0") -> list[Row]:
    return [r for r in rows if r["row"] == row and r["rank"] == rank]


def recorded(rows: list[Row], rank: str = "rank 0") -> dict[int, Row]:
    """By node, the slice that it has beside the critical path."""
    mine = [r for r in rows if r["rank"] == rank and r["row"] != timeline.PATH and r["node"] is not None]
    assert len({r["node"] for r in mine}) == len(mine)
    return {r["node"]: r for r in mine}


def test_a_hand_made_graph() -> None:
    g, linked = every_kind(), records()
    comm = communication(ALL_REDUCE, host=(ALL_REDUCE,))
    ids = {comm.ops.groups[0]: 5}
    errors, rows = query(written(shown(g, linked, comm, ids)), ERRORS, SLICES)
    assert errors == []
    told = [
        (r["name"], r["row"], r["tid"], r["ts"] - EPOCH_NS, r["dur"], r["depth"])
        for _, r in sorted(recorded(rows).items())
    ]
    assert told == [
        ("aten::mm", "main", 1, 0, 30_000, 0),
        ("device delay", "GPU 0 stream 7 late starts", None, 10_000, 2_000, 0),
        ("aten::mm (cont.)", "main", 1, 10_400, 19_600, 1),
        ("gemm", "GPU 0 stream 7", None, 12_000, 37_500, 0),  # less 500 of overlap
        ("gloo:all_reduce", "asynchronous, thread 2", None, 20_000, 0, 0),
        ("gloo:all_reduce", "host communication", None, 20_000, 60_000, 0),
        ("host gap", "main", 1, 30_000, 30_000, 0),
        ("aten::\u00e9 \u2603", "main", 1, 60_000, 30_000, 0),
        ("cudaDeviceSynchronize", "main", 1, 95_000, 55_000, 0),
        ("ncclDevKernel_AllReduce", "GPU 0 stream 22", None, 100_000, 40_000, 0),
        ("end", "main", 1, 150_000, 0, 0),
    ]
    late, kernel, collective, beside = (recorded(rows)[i] for i in (1, 3, 9, 5))
    assert (late["delays"], kernel["delays"]) == ("gemm", None)
    assert (late["waited_for"], kernel["waited_for"]) == ("nothing recorded explains it", None)
    assert (kernel["correlation"], kernel["start_delay_ns"], kernel["comm"]) == (7, 700, None)
    for row, correlation in ((collective, 8), (beside, None)):
        assert (row["correlation"], row["comm"], row["comm_size"], row["comm_group"]) == (
            correlation,
            "ALL_REDUCE",
            4096,
            5,
        )


def test_a_delay_says_what_had_ended_right_before() -> None:
    """Of what another stream ran, the one that ended last counts, if the op behind the delay began right after it, and
    not before the delay."""
    calls, device = [], []
    for k, (name, stream, start, end) in enumerate(
        (
            ("first", 7, 20, 30),
            ("long", 8, 20, 190),
            ("near", 9, 30, 195),
            ("late", 7, 200, 210),
            ("alone", 7, 500, 510),
            ("other", 8, 530, 540),
        )
    ):
        calls.append(Call("cudaLaunchKernel", 2 * k, 2 * k + 1, k + 1))
        device.append(Device(name, start, end, k + 1, stream))
    trace = build_trace(host=[Host("op", 0, 100)], calls=calls, device=device)
    linked = link(trace, None, match_hosts(trace, None))
    rows = {name: k for k, name in enumerate(trace.strings[code] for code in trace.device.name.tolist())}
    asked = np.array([rows["late"], rows["alone"], rows["other"]])
    since = trace.device.end_ns[rows["first"]] + np.zeros(3, np.int64)
    since[2] = trace.device.end_ns[rows["alone"]]
    assert _ended_right_before(linked, asked, since).tolist() == [rows["near"], NOWHERE, rows["alone"]]
    since[:] = trace.device.start_ns[asked]
    assert _ended_right_before(linked, asked, since).tolist() == [NOWHERE] * 3


def test_groups_are_named_by_machine_and_ordered_by_rank(two: list[Shown]) -> None:
    """On two machines: the second rank first in the file, both with replay; names of hosts that the recordings tell."""
    on_two = []
    for one, node in zip(two, (1, None), strict=True):
        linked = replace(one.linked, trace=replace(one.linked.trace, host_name="<b>host7"))
        on_two.append(replace(one, linked=linked, node=node, hosts=2, beside=True))
    groups_of = """select p.name as name, extract_arg(t.source_arg_set_id, 'sibling_order_rank') as place from process p
      join process_track t using (upid) where t.type = 'process_track_event' order by place"""
    errors, rows = query(written(*on_two[::-1]), ERRORS, groups_of)
    assert errors == []
    first, second = "node 1 (<b>host7) rank 0", "<b>host7 rank 1"
    assert [row["name"] for row in rows] == [first, f"{first} replayed", second, f"{second} replayed"]
    assert [replace(one, node=None, hosts=1).group for one in on_two] == [
        "rank 0",
        "rank 1",
    ]
    assert replace(two[0], node=0).group == "node 0 rank 0"


def test_odd_names_large_thread_ids_and_times_of_all_sizes() -> None:
    """Names are shown as recorded, and what a thread id or a time may be does not break the file."""
    odd = ["", " ", "a\nb\t\\\"'%s{}<b>", "\u202e\u00e9\U0001f600", "x" * 5_000]
    nodes = [
        N(NodeKind.HOST_OP, 0, 5 * i, 5 * i + 3, 3, tid=tid)
        for i, tid in enumerate([1, 0, 1 << 31, (1 << 32) + 1, 1 << 40])
    ]
    nodes += [
        N(NodeKind.HOST_OP, 0, 1 << 50, (1 << 50) + 1, 1, tid=1),
        N(NodeKind.HOST_OP, 0, (1 << 50) + 1, (1 << 50) + 1, 0, tid=1),
    ]
    code = np.array([0, 1, 2, 3, 4, 0, 1], np.int32)
    g = replace(graph(nodes, epoch_ns=0), strings=tuple(odd), name=code)
    errors, rows = query(written(shown(g, records(), communication())), ERRORS, SLICES)
    assert errors == []
    mine = recorded(rows)
    assert [mine[i]["name"] or "" for i in range(7)] == [odd[k] for k in code]
    assert [mine[i]["dur"] for i in range(7)] == [3, 3, 3, 3, 3, 1, 0]
    assert len({mine[i]["track"] for i in range(5)}) == 5
    assert [mine[i]["row"] for i in range(5)] == [
        "thread",
        "thread 0",
        *(f"thread {n}" for n in (1 << 31, (1 << 32) + 1, 1 << 40)),
    ]


def prepared(folder: Path, rank: int, **options: Any) -> job.PreparedRank:
    execution = execute(training_program(3, Training(steps=2, layers=3, ranks=2, rank=rank)))
    write_et(execution, folder / f"et_{rank}.json")
    write_kineto(execution, folder / f"kineto_{rank}.json", **options)
    return job.prepare(job.Inputs(kineto=folder / f"kineto_{rank}.json", et=folder / f"et_{rank}.json"), job.Options())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Shown]:
    """Two ranks of a program, the second with its replay beside."""
    folder = tmp_path_factory.mktemp("two")
    both = [prepared(folder, rank) for rank in (0, 1)]
    ids = groups.assign({p.rank: p.plan.groups for p in both})
    first, second = (shown(p.built.graph, p.linked, p.comm, ids[p.rank], p.rank) for p in both)
    return [first, replace(second, beside=True)]


@pytest.fixture(scope="module")
def answers(two: list[Shown]) -> list[list[Row]]:
    return query(written(*two), ERRORS, SLICES, FLOWS)


def test_no_rank_disturbs_another(answers: list[list[Row]]) -> None:
    errors, rows, _ = answers
    assert errors == []
    assert {r["rank"] for r in rows} == {"rank 0", "rank 1", "rank 1 replayed"}
    assert len({r["track"] for r in rows}) == len({(r["rank"], r["row"], r["tid"]) for r in rows})


@pytest.mark.parametrize("rank", [0, 1])
def test_a_slice_a_node(two: list[Shown], answers: list[list[Row]], rank: int) -> None:
    g = two[rank].graph
    mine = recorded(answers[1], f"rank {rank}")
    assert set(mine) == set(range(len(g.kind)))
    device_op = g.kind == NodeKind.DEVICE_OP
    name = [two[rank].graph.strings[k] for k in two[rank].graph.name]
    for i, row in mine.items():
        assert (row["ts"], row["name"]) == (g.epoch_ns + g.start_ns[i], name[i])
        whole = int(g.duration_ns[i] if device_op[i] else g.end_ns[i] - g.start_ns[i])
        part = g.kind[i] in (
            NodeKind.HOST_PART,
            NodeKind.HOST_CALL,
        )  # a part carries what follows its op, a call ends where a gap opens
        assert row["dur"] <= whole if part else row["dur"] == whole
        host = g.kind[i] in (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_GAP)
        assert not host or row["tid"] == g.tid[i]
        which = {NodeKind.DEVICE_OP: "", NodeKind.DEVICE_DELAY: " late starts"}.get(g.kind[i])
        assert which is None or row["row"] == f"GPU {g.device[i]} stream {g.stream[i]}{which}"
    by_id = {r["id"]: r for r in answers[1]}
    for i in np.flatnonzero(np.isin(g.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART)) & (g.caller != NOWHERE)).tolist():
        assert mine[i]["dur"] == 0 or by_id[mine[i]["parent_id"]]["node"] == g.caller[i]


def test_the_work_of_a_stream_is_on_its_row(two: list[Shown], answers: list[list[Row]]) -> None:
    g = two[0].graph
    for device, stream in sorted(set(zip(g.device[g.device >= 0].tolist(), g.stream.tolist(), strict=False))):
        for kind, which in ((NodeKind.DEVICE_OP, ""), (NodeKind.DEVICE_DELAY, " late starts")):
            of = (g.device == device) & (g.stream == stream) & (g.kind == kind)
            row = on(answers[1], f"GPU {device} stream {stream}{which}")
            assert (len(row), sum(r["dur"] for r in row)) == (of.sum(), g.duration_ns[of].sum())


def test_waits_are_slices_and_sum_up_to_what_the_graph_says(two: list[Shown], answers: list[list[Row]]) -> None:
    g = two[0].graph
    waits = [r for r in answers[1] if r["name"] == timeline.WAIT and r["rank"] == "rank 0"]
    assert sum(r["dur"] for r in waits) == g.wait_ns.sum() > 0
    assert {r["call"] for r in waits} <= set(two[0].linked.trace.strings)
    assert all("ynchronize" in r["call"] or "emcpy" in r["call"] for r in waits)
    sync = g.edge_kind == EdgeKind.SYNC
    assert {r["waited_for"] for r in waits} <= {g.name_of(i) for i in np.unique(g.source[sync]).tolist()}
    per_thread = Counter[int]()
    for r in waits:
        per_thread[r["tid"]] += r["dur"]
    assert per_thread == Counter({int(t): int(w) for t in np.unique(g.tid) if (w := g.wait_ns[g.tid == t].sum())})


@pytest.mark.parametrize("rank", [0, 1])
def test_flows_are_the_dependencies_that_no_row_shows(two: list[Shown], answers: list[list[Row]], rank: int) -> None:
    g = two[rank].graph
    node = {r["id"]: r["node"] for r in answers[1] if r["rank"] == f"rank {rank}"}
    found = Counter(
        (node[f["slice_out"]], node[f["slice_in"]], f["trace_id"] // KIND_OF_FLOW)
        for f in answers[2]
        if f["slice_out"] in node
    )
    target = np.repeat(np.arange(len(g.kind)), np.diff(g.first))
    edges = zip(g.source.tolist(), target.tolist(), g.edge_kind.tolist(), strict=True)
    assert found == Counter(e for e in edges if e[2] in DRAWN)
    assert {EdgeKind.LAUNCH, EdgeKind.SYNC, EdgeKind.THREAD} <= {EdgeKind(kind) for _, _, kind in found}


def test_the_critical_path_is_a_row_without_holes(two: list[Shown], answers: list[list[Row]]) -> None:
    critical = two[0].found.path
    path = on(answers[1], timeline.PATH)
    path.sort(key=lambda r: r["node"])
    assert [r["node"] for r in path] == critical.node.tolist()
    assert sum(r["dur"] for r in path) == critical.length_ns == two[0].played.end_ns.max()
    at = two[0].graph.epoch_ns
    for before, row in zip([None, *path[:-1]], path, strict=True):
        assert (row["ts"], row["depth"]) == (at, 0) or row["dur"] == 0
        at += row["dur"]
        assert row["held_from"] == (before and before["node"])
    assert [r["held_by"] for r in path] == [
        None if k == NOWHERE else EdgeKind(k).name.lower() for k in critical.edge.tolist()
    ]
    assert {r["share"] for r in path} <= {"host", "compute", "communication", "copy", "unexplained"}


def test_the_replay_stands_beside(two: list[Shown], answers: list[list[Row]]) -> None:
    g, times = two[1].graph, two[1].played
    mine = recorded(answers[1], "rank 1 replayed")
    assert [r["ts"] + r["dur"] - g.epoch_ns for _, r in sorted(mine.items())] == times.end_ns.tolist()
    delay = np.where(g.kind == NodeKind.DEVICE_OP, g.start_delay_ns, 0)
    assert [r["ts"] - g.epoch_ns for _, r in sorted(mine.items())] == (times.start_ns + delay).tolist()
    assert {r["row"] for r in mine.values()} >= {
        f"GPU {d} stream {s}" for d, s in zip(g.device[delay > 0], g.stream[delay > 0], strict=True)
    }
    assert not any(r["rank"] == "rank 0 replayed" for r in answers[1])


def waited(drawn: PerfettoTrace, g: Graph) -> Counter[int]:
    """Length of the ``wait`` slices of each thread, as they are shown."""
    out: Counter[int] = Counter()
    end_ns, track = nested(drawn.slices)[0], drawn.slices.track
    thread = dict(zip(track.tolist(), np.where(g.kind == NodeKind.HOST_ASYNC, -1, g.tid).tolist(), strict=False))
    for i in range(len(g.kind), len(end_ns)):
        if drawn.names[drawn.slices.name[i]] == timeline.WAIT:
            out[thread[int(track[i])]] += int(end_ns[i] - drawn.slices.start_ns[i])
            assert end_ns[i] > drawn.slices.start_ns[i]
    return out


def waits_of(g: Graph) -> Counter[int]:
    out: Counter[int] = Counter()
    for tid, ns in zip(g.tid.tolist(), g.wait_ns.tolist(), strict=True):
        if ns:
            out[tid] += ns
    return out


def test_waits_for_gloo_and_in_blocking_copies_add_up() -> None:
    """The copy is launched 7 us into its call; the receives are waited for in their op, in the op around it, and
    between ops.
    """
    trace = build_trace(
        host=[
            Host("op", 0, 40),
            Host("outer", 50, 400),
            Host("c10d::recv_", 60, 80),
            Host("gloo:recv", 65, 200, annotation=True),
            Host("view", 210, 215),
            Host("c10d::recv_", 230, 300),
            Host("gloo:recv", 235, 290, annotation=True),
            Host("c10d::recv_", 410, 420),
            Host("gloo:recv", 415, 600, annotation=True),
            Host("after", 620, 700),
        ],
        calls=[Call("cudaMemcpy", 5, 30, 1)],
        device=[Device("Memcpy", 12, 25, 1)],
    )
    linked = link(trace, None, match_hosts(trace, None))
    comm = typed(linked)
    full = build(linked, comm, BuildOptions(sync="cuda")).graph
    for g in (full, fold(full)):
        assert g.wait_ns.sum() == 1000 * ((25 - 12) + (200 - 80) + (290 - 235) + (600 - 420))
        assert waited(timeline.trace_of(shown(g, linked, comm)), g) == waits_of(g)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), folded=st.booleans())
def test_waits_add_up_thread_by_thread(seed: int, folded: bool) -> None:
    random = Random(seed)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kineto.json"
        write_kineto(
            execute(random_program(seed, shape(random))), path, dialect=random.choice(["2022", "2023", "2024", "rocm"])
        )
        linked = linked_of(path)
    g = built(linked, sync="cuda").graph
    g = fold(g) if folded else g
    assert waited(timeline.trace_of(shown(g, linked, typed(linked))), g) == waits_of(g)


SHARED = Path(__file__).parents[3] / "shared" / "traces"
REAL = {
    "megatron": "megatron-tp2-v100/et_0.json.gz megatron-tp2-v100/kineto_0.json.gz",
    "gloo": "pipelining-cpu/1f1b/et_1.json.gz pipelining-cpu/1f1b/kineto_1.json.gz",
    "blocking copies": "dlrm8-v100/et_0.json.gz dlrm8-v100/kineto_0.json.gz",
    "no ET, cuda_sync": "- cuda-sync/alexnet",
}


@pytest.mark.parametrize("files", REAL.values(), ids=REAL)
def test_real_recordings_nest_and_keep_their_waits(files: str) -> None:
    et, kineto = (None if f == "-" else SHARED / f for f in files.split())
    if not SHARED.is_dir():
        pytest.skip(f"there are no real traces in {SHARED}")
    found = [kineto] if kineto.is_file() else sorted(kineto.parent.glob(f"{kineto.name}*")) if kineto else []
    assert found and found[0], files
    trace = found[0] if found[0].is_file() else next(p for p in sorted(found[0].iterdir()) if "json" in p.name)
    p = job.prepare(job.Inputs(kineto=trace, et=et), job.Options(sync="cuda"))
    whole = shown(p.built.graph, p.linked, p.comm, groups.assign({0: p.plan.groups})[0])
    drawn = timeline.trace_of(whole)
    g, n = whole.graph, len(whole.graph.kind)
    assert g.wait_ns.any()
    assert waited(drawn, g) == waits_of(g)
    cut = drawn.slices.end_ns - nested(drawn.slices)[0]
    odd = cut[:n][~np.isin(g.kind, (NodeKind.HOST_PART, NodeKind.HOST_CALL))]
    assert (odd <= 1000).all()  # rounding of the recording at most
    assert not cut[n:].any()
