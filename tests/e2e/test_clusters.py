"""The whole command on simulated clusters whose recordings have faults, by the truth of the simulation."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.graph.read_et import read_et
from graphlink.linking.commtypes import CollectiveType
from graphlink.ranks import summary as summary_run
from tests.e2e.clusters import (
    Done,
    command,
    linked,
    moments,
    reference_ns,
    told_op,
    told_unmatched,
    true_unmatched,
    true_waits,
    unlike,
    written,
)
from tests.e2e.graph_rules import broken
from tests.simulator import (
    ClusterRun,
    ClusterTraining,
    Differs,
    Dropped,
    EarlyEnd,
    Fault,
    LateStart,
    MissingRank,
    OtherOrder,
    PipelineTraining,
    ProfilerOverhead,
    ProfilerStart,
    cluster_run,
    pipeline_run,
)
from tests.simulator.cluster_records import ALL_GATHER, COLLECTIVE
from tests.trace_processor import query

MS = 1_000_000
COMMS = (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE)
TIMES = ("start_ns", "end_ns", "busy_ns", "evidence")
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
ARROWS = """
select a.ts as start_out, b.ts as start_in, pa.name as rank_out, pb.name as rank_in,
  extract_arg(a.arg_set_id, 'debug.node') as node_out, extract_arg(b.arg_set_id, 'debug.node') as node_in,
  extract_arg(a.arg_set_id, 'debug.group') as group_out, extract_arg(b.arg_set_id, 'debug.group') as group_in,
  extract_arg(a.arg_set_id, 'debug.comm') as comm_out, extract_arg(b.arg_set_id, 'debug.comm') as comm_in
from flow join slice a on a.id = slice_out join slice b on b.id = slice_in
  join process_track ta on ta.id = a.track_id join process pa on pa.upid = ta.upid
  join process_track tb on tb.id = b.track_id join process pb on pb.upid = tb.upid
where pa.upid != pb.upid"""
APART = {"host_clock_offset_ns": 50 * MS, "drift_ppm": 20.0}


def training(data: int, tensor: int = 1, pipeline: int = 1, *, hosts: int = 1, **more: Any) -> ClusterTraining:
    clock = APART if hosts > 1 else {}
    sizes = {
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "ranks_per_host": -(-data * tensor * pipeline // hosts),
    }
    return ClusterTraining(**(sizes | clock | more))


DATA, TENSOR, PIPELINE = training(4, hosts=4), training(2, 2, hosts=2), training(1, 1, 4, hosts=2, microbatches=4)
ALL = training(2, 2, 2, hosts=4)
EXPERT = training(4, expert=2, hosts=2)
WIDE = {"steps": 2, "layers": 1, "microbatches": 1}
FAULTS: dict[str, tuple[ClusterTraining, list[Fault]]] = {
    "none": (ALL, []),
    "late start, data": (training(2, hosts=2), [LateStart(1, share=0.3)]),
    "late start, pipeline": (PIPELINE, [LateStart(2, meetings=9)]),
    "late start, 32": (training(4, 2, 4, hosts=4, **WIDE), [LateStart(14, share=0.47)]),
    "early end, experts": (EXPERT, [EarlyEnd(2, share=0.6)]),
    "early end, tensor": (TENSOR, [EarlyEnd(0, meetings=7)]),
    "dropped, data": (DATA, [Dropped(3, "data", 2)]),
    "dropped among equals": (TENSOR, [Dropped(1, "tensor", 5)]),
    "dropped message": (PIPELINE, [Dropped(1, "pipeline", 6)]),
    "dropped, experts": (EXPERT, [Dropped(1, "expert", 4), Dropped(2, "world", 0)]),
    "missing rank": (ALL, [MissingRank(3)]),
    "missing rank, pipeline": (PIPELINE, [MissingRank(0), Dropped(2, "pipeline", 3)]),
    "profiler start": (training(4, 2, 2, hosts=4, layers=1), [ProfilerStart(12 * MS)]),
    "profiler overhead": (DATA, [ProfilerOverhead(2, 1, 5 * MS), EarlyEnd(1, share=0.8)]),
    "named by addresses": (
        training(4, hosts=2, address_names=True, layers=1, steps=4, jitter=0.3, seed=7),
        [LateStart(1, meetings=2)],
    ),
    "a group unseen": (training(4, hosts=2, address_names=True, twin=True, steps=1, layers=3), [Dropped(1, "twin", 0)]),
    "three stages, one step": (training(1, 2, 3, hosts=3, steps=1, microbatches=1), [ProfilerStart(5 * MS)]),
    "late start and dropped message": (
        training(1, 4, 2, hosts=2, steps=4, layers=1, microbatches=1, jitter=0.02),
        [
            Dropped(4, "pipeline", 5),
            LateStart(0, meetings=5),
            LateStart(3, meetings=0),
        ],
    ),
    "late start and dropped": (ALL, [LateStart(0, share=0.2), Dropped(5, "data", 3)]),
    "late start and early end": (EXPERT, [LateStart(3, share=0.3), EarlyEnd(0, share=0.75)]),
}


FEW_WITHOUT_SEQ = (
    "none",
    "late start, pipeline",
    "dropped among equals",
    "missing rank",
    "late start and dropped message",
)


@dataclass(frozen=True)
class Joined:
    run: ClusterRun
    done: Done


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (name, seq),
            marks=[pytest.mark.long] if told.world > 8 or (not seq and name not in FEW_WITHOUT_SEQ) else [],
        )
        for name, (told, _) in FAULTS.items()
        for seq in (True, False)
        if seq or told.world < 16
    ],
    ids=lambda p: f"{p[0]}, {'seq' if p[1] else 'no seq'}",
)
def joined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Joined:
    name, seq = request.param
    run = cluster_run(*FAULTS[name])
    return Joined(run, linked(run, tmp_path_factory.mktemp("run"), seq=seq))


def test_what_others_lack_is_named(joined: Joined) -> None:
    run, matched = joined.run, joined.done.run["matched"]
    assert told_unmatched(joined.done) == true_unmatched(run)
    assert matched["collectives"] + matched["messages"] == len(run.expected.meetings)
    assert matched["messages"] == np.count_nonzero(run.meetings.kind[run.expected.meetings])
    assert matched["unmatched"] == sum(u.count for u in run.expected.unmatched)
    assert sum(matched["alone"].values()) == sum(run.expected.alone.values())
    assert matched["conflicts"] == []


def test_graphs_hold_what_all_ranks_have(joined: Joined) -> None:
    run, done = joined.run, joined.done
    assert [line for file in done.graphs.values() for line in broken(file)] == []
    assert unlike(run, done) == []
    lacking = {(u.rank, op) for u in run.expected.unmatched for op in u.ops}
    replaced = {rank["rank"]: rank["replaced"] for rank in done.summary["ranks"]}
    for rank, nodes in written(run, done).items():
        for one in nodes:
            alone = (rank, one.op) in lacking
            assert (one.node.type == pb.COMP_NODE) == alone
            assert ("comm_type_recorded" in one.attributes) == alone
        assert replaced[rank].get("unmatched on other ranks", 0) == sum(r == rank for r, _ in lacking)


def test_graphs_replay_together(joined: Joined) -> None:
    done = joined.done
    replay = done.run["replay"]
    assert replay["ran"] == replay["nodes"] == sum(len(file.nodes) for file in done.graphs.values())
    assert abs(replay["error_pct"]) < 1
    for machine in ("coupled", "ranks"):
        replayed = command("replay", done.folder, "--machine", machine, folder=done.folder)
        assert replayed.status == 0, replayed.out
    checked = command("check", done.folder, folder=done.folder)
    missing = len(joined.run.ranks) < joined.run.training.world
    assert re.findall(r"^error: .*\((.*)\)$", checked.out, re.MULTILINE) == ["missing-rank"] * missing


def test_recordings_of_two_times_have_nothing_in_common(tmp_path: Path) -> None:
    run = cluster_run(training(2, hosts=2, steps=6), [LateStart(0, share=0.6), EarlyEnd(1, share=0.4)])
    assert "belongs to another run than" in linked(run, tmp_path / "refused", status=1).err
    done = linked(run, tmp_path, "--same-run")
    assert told_unmatched(done) == true_unmatched(run)
    assert {u["where"] for u in done.run["matched"]["listed"]} == {"everywhere"}
    assert done.run["matched"]["collectives"] == 0
    assert [clock["known"] for clock in done.run["clocks"]["ranks"]] == [True, False]
    assert any("nothing connects the clocks of ranks 1" in text for text in done.summary["warnings"])
    replay = done.run["replay"]
    assert (replay["measured_ns"], replay["error_pct"], replay["ran"]) == (None, None, replay["nodes"])


def test_lists_that_are_cut_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_run, "LISTED", 2)
    run = cluster_run(PIPELINE, [LateStart(2, meetings=9)])
    done = linked(run, tmp_path)
    assert len(done.run["matched"]["listed"]) == 2
    assert (
        f"2 of {len(run.expected.unmatched)} findings of unmatched communication are listed in summary.json"
        in done.summary["warnings"]
    )
    assert done.run["matched"]["unmatched"] == sum(u.count for u in run.expected.unmatched)


CONFLICTS: dict[str, tuple[ClusterTraining, list[Fault]]] = {
    "other order": (DATA, [OtherOrder(2, "data", 0)]),
    "other size": (EXPERT, [Differs(1, "data", 2)]),
    "other function": (TENSOR, [Differs(0, "tensor", 3, type=ALL_GATHER)]),
    "other order, later": (ALL, [OtherOrder(5, "data", 2), LateStart(0, share=0.2)]),
    "other size, one missing": (DATA, [Differs(3, "data", 1, bytes=1 << 12), MissingRank(0), Dropped(1, "data", 3)]),
}


@pytest.mark.parametrize("seq", [True, pytest.param(False, marks=pytest.mark.long)], ids=["seq", "no seq"])
@pytest.mark.parametrize("name", CONFLICTS)
def test_conflicts_are_refused_and_can_be_kept(name: str, seq: bool, tmp_path: Path) -> None:
    run = cluster_run(*CONFLICTS[name])
    refused = linked(run, tmp_path, seq=seq, status=1)
    assert len(refused.err.splitlines()) <= 5
    assert [path.name for path in refused.folder.iterdir()] == [".graphlink"]
    kept = command(
        *(tmp_path / "traces", "--out", refused.folder, "--jobs", "1", "--no-timeline", "--resume", "--keep-unmatched"),
        folder=refused.folder,
    )
    assert kept.status == 0, kept.err
    (conflict,) = kept.run["matched"]["conflicts"]
    assert conflict in refused.err
    first = min(run.expected.conflicts, key=lambda c: c.index)
    found = re.fullmatch(
        r"number (\d+) of group (\d+) (differs|comes in another order): rank (\d+) has (.*), rank (\d+) has (.*) \(its number (\d+)\)",
        conflict,
    )
    assert found is not None
    index, group, why, rank, told, other_rank, other_told, other_index = found.groups()
    assert kept.members[group] == run.groups[first.group].members
    assert why == ("differs" if first.why == "differs" else "comes in another order")
    sides = {int(rank): (int(index), told), int(other_rank): (int(other_index), other_told)}
    assert sides.pop(first.rank) == (first.index, told_op(run, first.rank, first.op))
    ((other, (index_there, told_there)),) = sides.items()
    same = np.flatnonzero(run.ranks[other].meeting == first.meeting)
    assert told_there == told_op(run, other, int(same[0]))
    c = run.ranks[other]
    assert index_there == np.count_nonzero(
        (c.group == c.group[same[0]]) & (c.kind == c.kind[same[0]]) & (np.arange(len(c.kind)) < same[0])
    )
    # the graphs are as recorded: nothing is hidden from who asks for it
    assert told_unmatched(kept) == true_unmatched(run)
    for of_rank, nodes in written(run, kept).items():
        recorded = run.ranks[of_rank]
        assert all(one.node.type in COMMS for one in nodes)
        assert [one.attributes.get("comm_type", -1) for one in nodes] == recorded.type.tolist()
    assert unlike(run, kept) != []


def test_kept_communication_that_others_lack_is_what_replays_hang_on(tmp_path: Path) -> None:
    run = cluster_run(*FAULTS["dropped, data"])
    kept = linked(run, tmp_path, "--keep-unmatched")
    assert all(one.node.type in COMMS for nodes in written(run, kept).values() for one in nodes)
    assert kept.run["replay"]["ran"] < kept.run["replay"]["nodes"]
    assert command("replay", kept.folder, "--machine", "coupled", folder=kept.folder).status == 1


SLOW: Final = training(2, 2, 2, hosts=4, compute_ns=25 * MS, straggler=(3, 1.2), seed=4)


@pytest.fixture(scope="module")
def slow_run() -> ClusterRun:
    """Long enough that clocks drift apart."""
    return cluster_run(SLOW, [LateStart(1, share=0.2), Dropped(6, "tensor", 9)])


@pytest.fixture(scope="module")
def slow(slow_run: ClusterRun, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return linked(slow_run, tmp_path_factory.mktemp("slow"), timeline=True)


def test_waits_are_told_and_taken_out_on_demand(slow_run: ClusterRun, slow: Done, tmp_path: Path) -> None:
    transfer = linked(slow_run, tmp_path, "--comm-time", "transfer")
    assert slow.summary["options"]["comm_time"] == "recorded"
    assert transfer.summary["options"]["comm_time"] == "transfer"
    assert abs(transfer.run["replay"]["error_pct"]) < 1
    recorded, shorter = written(slow_run, slow), written(slow_run, transfer)
    tolerance_ns = max(5_000, slow.run["clocks"]["residual_ns"])
    waited = 0
    for rank, c in slow_run.ranks.items():
        truth = true_waits(slow_run, rank)
        for one, other in zip(recorded[rank], shorter[rank], strict=True):
            a, b = one.attributes, other.attributes
            wait_ns = a.get("comm_wait_ns", 0)
            assert wait_ns == b.get("comm_wait_ns", 0)
            assert abs(wait_ns - truth[one.op]) <= tolerance_ns
            assert a["duration_ns"] + a["overlap_ns"] == c.end_ns[one.op] - c.start_ns[one.op]
            assert b["duration_ns"] == a["duration_ns"] - wait_ns
            waited += wait_ns
    assert waited > 100 * MS


def test_clocks_are_those_of_the_hosts(slow_run: ClusterRun, slow: Done) -> None:
    drifts = []
    for told in slow.run["clocks"]["ranks"]:
        rank, head = told["rank"], slow.graphs[told["rank"]].head
        true_ns = moments(slow_run, rank)
        own_ns = slow_run.ranks[rank].clock.recorded(true_ns)
        run_ns = (
            own_ns + told["offset_ns"] + np.rint(told["drift_ppm"] / 1e6 * (own_ns - told["from_ns"])).astype(np.int64)
        )
        assert np.abs(run_ns - reference_ns(slow_run, true_ns)).max() <= 5_000
        since_ns = own_ns - head["epoch_ns"]
        by_graph_ns = (
            own_ns
            + head.get("clock_offset_ns", 0)
            + np.rint(head.get("clock_drift_ppb", 0) / 1e9 * since_ns).astype(np.int64)
        )
        assert np.abs(by_graph_ns - run_ns).max() <= 2
        read = read_et(slow.folder / f"trace.{rank}.et").metadata
        assert (read.clock_offset_ns, read.clock_drift_ppb) == (
            head.get("clock_offset_ns", 0),
            head.get("clock_drift_ppb", 0),
        )
        assert told["host"] == slow_run.ranks[rank].host
        drifts.append(told["drift_ppm"])
    assert np.count_nonzero(drifts) >= 4, "over a second, drifts of up to 40 ppm show"


def test_bubbles_are_the_same_on_any_clocks(tmp_path: Path) -> None:
    run = pipeline_run(
        PipelineTraining("1F1B", stages=3, microbatches=4, transfer_ns=50_000, visible=True, jitter_ns=100_000)
    )
    bubbles = []
    for name, clocks_ns in (("one", ()), ("apart", (0, 31 * MS, -17 * MS))):
        run.write(tmp_path / name, clocks_ns=clocks_ns)
        done = command(
            tmp_path / name, "--out", tmp_path / f"{name}-out", "--no-timeline", folder=tmp_path / f"{name}-out"
        )
        assert done.status == 0, done.err
        bubbles.append(json.loads((done.folder / "bubbles.json").read_text()))
    one, apart = bubbles
    assert len(one["idle"]) > 10
    for key in ("ranges", "idle"):
        assert len(one[key]) == len(apart[key])
        for a, b in zip(one[key], apart[key], strict=True):
            assert {k: v for k, v in a.items() if k not in TIMES} == {k: v for k, v in b.items() if k not in TIMES}
            assert max(abs(a[k] - b[k]) for k in ("start_ns", "end_ns")) <= 5_000


def test_the_straggler_is_named_with_evidence(slow: Done, tmp_path: Path) -> None:
    done = linked(cluster_run(training(4, hosts=2, steps=4, straggler=(2, 1.3))), tmp_path)
    straggler = done.run["straggler"]
    assert straggler["rank"] == 2
    assert straggler["times_late"] > straggler["meetings"] * 0.9
    assert straggler["wait_share"] > 0.9
    assert "rank 2" in straggler["evidence"]
    assert f"straggler {straggler['evidence']}" in " ".join(done.out.split())
    waits = {one["rank"]: one["wait_ns"] for one in done.run["waits"]}
    for rank, wait_ns in waits.items():
        (told,) = json.loads(command("idle", done.folder, "--rank", str(rank), "--json", "-", folder=done.folder).out)[
            "ranks"
        ]
        assert told["waited"]["ns"] == wait_ns
        assert {one["rank"] for one in told["waited"]["stragglers"].values()} == ({2} if rank != 2 else set())
    assert f"it waited {waits[1] / 1e6:,.3f} ms" in command("idle", done.folder, "--rank", "1", folder=done.folder).out
    of_groups = {tuple(group["ranks"]): group["straggler"] for group in slow.run["groups"]}
    assert of_groups[2, 3]["rank"] == 3
    assert of_groups[0, 1] is of_groups[4, 5] is of_groups[6, 7] is None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_of_equals_nobody_straggles(seed: int, tmp_path: Path) -> None:
    done = linked(cluster_run(training(2, 2, hosts=2, steps=3, seed=seed)), tmp_path)
    assert done.run["straggler"] is None
    assert [group["straggler"] for group in done.run["groups"]] == [None] * len(done.run["groups"])
    assert "no rank is late again and again" in done.out


def test_what_the_profiler_cost_is_set_apart(tmp_path: Path) -> None:
    run = cluster_run(replace(DATA, steps=4), [ProfilerStart(12 * MS), ProfilerOverhead(2, 2, 20 * MS)])
    done = linked(run, tmp_path)
    first, overhead = done.run["set_apart"]
    m = run.meetings
    starts = m.start_ns[m.first[0] : m.first[1]]  # of the first collective, which is everybody's first
    assert (first["number"], first["late_rank"]) == (0, int(starts.argmax()))
    assert abs(first["skew_ns"] - np.ptp(starts)) <= 5_000
    assert first["why"].startswith("first after the profiler started")
    assert overhead["why"] == "profiler overhead on the late rank for at least half of the wait"
    assert overhead["late_rank"] == 2
    assert abs(overhead["skew_ns"] - 20 * MS) < MS


def test_bandwidths_are_those_of_the_network(tmp_path: Path) -> None:
    more = {"sequence_parallel": True, "gradient_bytes": 64 << 20, "activation_bytes": 64 << 20, "layers": 1}
    run = cluster_run(training(4, 2, hosts=2, **more))
    done = linked(run, tmp_path)
    m = run.meetings
    seen = 0
    for group in done.run["groups"]:
        (number,) = (
            k for k, g in enumerate(run.groups) if (g.members, g.name) == (tuple(group["ranks"]), group["name"])
        )
        n = len(group["ranks"])
        for told in group["collectives"]:
            mine = (m.group == number) & (m.type == CollectiveType[told["type"]])
            transfer_ns = sum(run.training.transfer_ns(size) for size in m.bytes[mine].tolist())
            if transfer_ns < MS // 10:
                continue
            size = int(m.bytes[mine].sum())
            assert (told["count"], told["bytes"], told["set_apart"]) == (np.count_nonzero(mine), size, 0)
            assert told["transfer_ns"] == pytest.approx(transfer_ns, rel=0.02)
            whole = size * n if told["type"] == "ALL_GATHER" else size
            factor = 2 * (n - 1) / n if told["type"] == "ALL_REDUCE" else (n - 1) / n
            assert told["algorithm_bytes_per_s"] == pytest.approx(whole / transfer_ns * 1e9, rel=0.02)
            assert told["bus_bytes_per_s"] == pytest.approx(factor * whole / transfer_ns * 1e9, rel=0.02)
            seen += 1
    assert seen == 2 + 2 * 4, "ALL_REDUCE of two data groups, ALL_GATHER and REDUCE_SCATTER of four tensor groups"


def test_arrows_of_the_timeline_join_what_met(slow_run: ClusterRun, slow: Done) -> None:
    errors, flows = query((slow.folder / "timeline.perfetto-trace").read_bytes(), ERRORS, ARROWS)
    assert errors == []
    at = {(rank, one.node.id): one.op for rank, nodes in written(slow_run, slow).items() for one in nodes}
    found = set()
    for flow in flows:
        ends = [(int(flow[f"rank_{side}"].rpartition("rank ")[2]), flow[f"node_{side}"]) for side in ("out", "in")]
        (rank, op), (other, other_op) = ((rank, at[rank, node]) for rank, node in ends)
        meeting = int(slow_run.ranks[rank].meeting[op])
        assert meeting == slow_run.ranks[other].meeting[other_op]
        assert (flow["group_out"], flow["start_out"] <= flow["start_in"]) == (flow["group_in"], True)
        if slow_run.meetings.kind[meeting] == COLLECTIVE:
            assert flow["comm_out"] == flow["comm_in"]
        found.add((meeting, rank))
    assert len(found) == len(flows)
    members = np.diff(slow_run.meetings.first)[slow_run.expected.meetings]
    assert len(flows) == (members - 1).sum()


def test_uneven_collectives_have_one_size(tmp_path: Path) -> None:
    run = cluster_run(EXPERT, [LateStart(1, share=0.2)])
    done, as_recorded = linked(run, tmp_path / "a"), linked(run, tmp_path / "b", "--target", "chakra")
    m = run.meetings
    largest: dict[int, int] = {}
    for c in run.ranks.values():
        for meeting, size in zip(c.meeting.tolist(), c.bytes.tolist(), strict=True):
            largest[meeting] = max(largest.get(meeting, 0), size)
    met = set(run.expected.meetings.tolist())
    resized = 0
    for rank, nodes in written(run, done).items():
        c = run.ranks[rank]
        for one in nodes:
            a, meeting, size = one.attributes, int(c.meeting[one.op]), int(c.bytes[one.op])
            if meeting in met and m.type[meeting] == CollectiveType.ALL_TO_ALL:
                assert a["comm_size"] == largest[meeting]
                assert a.get("comm_size_recorded", largest[meeting]) == size
                resized += "comm_size_recorded" in a
            else:
                assert a.get("comm_size", size) == size
    assert resized > 10
    for rank, nodes in written(run, as_recorded).items():
        c = run.ranks[rank]
        assert all(one.node.type in COMMS for one in nodes)
        assert [one.attributes["comm_size"] for one in nodes] == c.bytes.tolist()
        assert not any("comm_size_recorded" in one.attributes for one in nodes)


def test_ranks_apart_and_joined_are_as_in_one_go(tmp_path: Path) -> None:
    run = cluster_run(PIPELINE, [LateStart(2, meetings=9)])
    whole = linked(run, tmp_path, "--comm-time", "transfer")
    out = tmp_path / "apart"
    for rank in (2, 0, 3):
        job = command(
            "link",
            "--rank-job",
            tmp_path / "traces",
            "--rank",
            str(rank),
            "--no-timeline",
            "--jobs",
            "1",
            "--out",
            out,
            folder=out,
        )
        assert (job.status, job.out.splitlines()[0].split(":")[0]) == (0, f"rank {rank}")
    strict = command("join", out, "--strict", folder=out)
    assert (strict.status, "no job of rank 1" in strict.err) == (1, True)
    command("link", "--rank-job", tmp_path / "traces", "--rank", "1", "--no-timeline", "--out", out, folder=out)
    nobody = command("link", "--rank-job", tmp_path / "traces", "--rank", "4", "--out", out, folder=out)
    assert (nobody.status, "no recording of rank 4" in nobody.err) == (1, True)
    done = command("join", out, "--comm-time", "transfer", folder=out)
    assert done.status == 0, done.err
    assert sorted(path.name for path in out.iterdir()) == sorted(done.summary["files"])
    assert done.summary == whole.summary
    for name in done.summary["files"]:
        assert (out / name).read_bytes() == (whole.folder / name).read_bytes(), name
