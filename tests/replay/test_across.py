"""The critical path over ranks on runs where it is known, and what the verbs print of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphlink.cli import main
from graphlink.graph.gains import FamilyGain
from graphlink.graph.read_et import read_et
from graphlink.graph_model import EdgeKind, Graph
from graphlink.replay.across import CriticalAcross, across
from graphlink.replay.folder import graph_files, load, load_groups
from tests.astra.et_files import coll, encoded, node, recv
from tests.replay.hand import COLL, CPU, GPU, RECV, SEND, N, file

TRACES = Path(__file__).parents[3] / "shared" / "traces"
H, L, S, Y = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.SYNC


def run(*ranks: Sequence[N], epochs: Sequence[int] | None = None) -> dict[int, Graph]:
    zero = epochs or [0] * len(ranks)
    return {r: file(nodes, rank=r, epoch_ns=e) for r, (nodes, e) in enumerate(zip(ranks, zero, strict=True))}


def test_the_path_goes_on_where_the_late_ranks_are() -> None:
    """Rank 1's gemm is late for the first collective, rank 2's copy for the second, and rank 0 ends last."""
    names = {"name": "allreduce", "group": 1}
    ranks = run(
        [
            N(0, CPU, 1),
            N(1, COLL, 9, ((0, L),), **names),
            N(2, GPU, 2, ((1, S),)),
            N(3, COLL, 8, ((2, S),), **names),
            N(4, CPU, 6, ((3, Y),)),
        ],
        [
            N(0, CPU, 1),
            N(1, GPU, 7, ((0, L),), name="gemm"),
            N(2, COLL, 2, ((1, S),), **names),
            N(3, COLL, 9, ((2, S),), **names),
        ],
        [
            N(0, CPU, 2),
            N(1, COLL, 5, ((0, L),), **names),
            N(2, GPU, 4, ((1, S),), name="Memcpy DtoD"),
            N(3, COLL, 3, ((2, S),), delay_us=1, **names),
        ],
    )
    found = across(ranks, {1: (0, 1, 2)})
    assert (found.length_ns, found.nodes_run, found.nodes_all) == (24_000, 13, 13)
    assert found.share_ns == {"host": 7_000, "compute": 7_000, "communication": 5_000, "copy": 4_000, "idle": 1_000}
    path = found.nodes
    assert list(zip(path.rank, path.id, strict=True)) == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (2, 3),
        (0, 3),
        (0, 4),
    ]
    assert path.held_by == [None, "launch", "stream", "collective", "stream", "stream", "collective", "sync"]
    assert path.other_rank == [None, None, None, 1, None, None, 2, None]
    assert (
        path.start_ns == [0, 1_000, 8_000, 8_000, 10_000, 14_000, 15_000, 18_000]
        and path.start_ns[1:] == path.end_ns[:-1]
    )
    assert path.start_delay_ns == [0, 0, 0, 0, 0, 1_000, 0, 0]
    assert [(h.rank, h.id, h.what, h.waited_ns, h.other_rank, h.other_id) for h in found.hops] == [
        (2, 1, "ALL_REDUCE 0 of group 1", 6_000, 1, 2),
        (0, 3, "ALL_REDUCE 1 of group 1", 3_000, 2, 3),
    ]
    assert [(h.stretch_ns, h.most, h.most_ns) for h in found.hops] == [
        (8_000, "gemm", 7_000),
        (7_000, "Memcpy DtoD", 4_000),
    ]
    assert [(r.rank, r.nodes, r.ns) for r in found.ranks] == [(0, 2, 9_000), (1, 3, 8_000), (2, 3, 7_000)]
    assert [(f.name, f.share, f.nodes, f.ns) for f in found.families[:2]] == [
        ("gemm", "compute", 1, 7_000),
        ("op", "host", 2, 7_000),
    ]
    assert msgspec.json.decode(msgspec.json.encode(found), type=CriticalAcross) == found


def test_a_message_hands_the_path_to_its_sender() -> None:
    ranks = run(
        [N(0, CPU, 10, name="forward"), N(1, SEND, 9, ((0, L),), peer=1, tag=3)],
        [N(0, CPU, 2), N(1, RECV, 4, ((0, L),), peer=0, tag=3), N(2, CPU, 1, ((1, Y),))],
    )
    found = across(ranks, {})
    assert list(zip(found.nodes.rank, found.nodes.id, strict=True)) == [(0, 0), (0, 1), (1, 1), (1, 2)]
    assert found.nodes.held_by == [None, "launch", "message", "sync"] and found.nodes.other_rank[2] == 0
    (hop,) = found.hops
    assert (hop.what, hop.waited_ns, hop.most) == ("a message of tag 3, 64 bytes", 8_000, "forward")


def test_what_passed_before_its_first_rank_began_is_no_part_of_it() -> None:
    found = across(run([N(0, CPU, 10)], [N(0, CPU, 8)], epochs=[7, 5_007]), {})
    assert (found.before_ns, found.length_ns) == (5_000, 8_000)
    assert (found.origin_ns, found.measured_ns, found.error_pct) == (7, 13_000, 0)
    assert sum(found.share_ns.values()) == found.length_ns
    assert found.nodes.start_ns == [5_000] and found.nodes.rank == [1]


def test_gains_are_of_the_path_and_not_of_what_passed_before_it() -> None:
    ranks = run([N(0, CPU, 10)], [N(0, CPU, 8, name="late"), N(1, CPU, 4, ((0, H),), name="late")], epochs=[7, 5_007])
    found = across(ranks, {})
    assert (found.before_ns, found.length_ns, found.top_gain) == (
        5_000,
        12_000,
        FamilyGain(gain_ns=7_000, on_path_ns=12_000, work_ns=12_000, share="host", name="late", count=2),
    )


def test_a_run_that_does_not_end_says_so() -> None:
    found = across(run([N(0, CPU, 1), N(1, COLL, 1, ((0, L),), group=1)], [N(0, CPU, 5)]), {1: (0, 1)})
    assert found.stuck == [
        "rank 0 does not finish: 1 nodes left; node 1 (op) waits for collective 1 of group 1: only 1 of 2 ranks have it"
    ]
    assert found.error_pct is None and (found.nodes_run, found.nodes_all) == (2, 3)


def test_nothing() -> None:
    found = across({}, {})
    assert found.length_ns == 0 and not found.nodes.id and not found.hops


def folder(path: Path, offset_ns: int = 1_000, drift_ppb: int = 0) -> Path:
    """Two ranks of 15 us that meet; the second's own clock is a day off, its first node starts ``offset_ns`` after that
    of the first.
    """
    day = 86_400 * 10**9
    for rank, epoch in enumerate((day, 0)):
        times: dict[str, Any] = {"start_ns": 0, "end_ns": 10_000, "duration_ns": 10_000}
        met: dict[str, Any] = {
            "start_ns": 10_000,
            "end_ns": 15_000,
            "duration_ns": 5_000,
            "dep_kinds": ("string_list", ["launch"]),
        }
        nodes = [node(0, micros=10, is_cpu_op=True, **times), coll(1, [0], pg_name="1", **met)]
        clock = {"clock_offset_ns": day + offset_ns, "clock_drift_ppb": drift_ppb} if rank else {}
        (path / f"trace.{rank}.et").write_bytes(encoded(nodes, epoch_ns=epoch, rank=rank, world_size=2, **clock))
    (path / "comm_group.json").write_text('{"1": [0, 1]}')
    return path


def test_the_clock_is_read_from_the_graphs(tmp_path: Path) -> None:
    folder(tmp_path, drift_ppb=-3)
    first, second = (read_et(tmp_path / f"trace.{r}.et").metadata for r in (0, 1))
    assert (first.clock_offset_ns, first.clock_drift_ppb) == (0, 0)
    assert (second.clock_offset_ns, second.clock_drift_ppb) == (86_400 * 10**9 + 1_000, -3)


@pytest.mark.parametrize("machine", ["ranks", "coupled"])
def test_replay_compares_all_ranks_with_the_recorded_step(
    tmp_path: Path, machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path)
    out = tmp_path / "r.json"
    assert main(["replay", str(tmp_path), "--machine", machine, "--json", str(out)]) == 0
    assert (
        "all ranks      measured 0.016 ms, replayed 0.016 ms, +0.000 % (self-consistency), 4 of 4 nodes run"
        in capsys.readouterr().out
    )
    (whole,) = json.loads(out.read_bytes())["runs"]
    assert (whole["measured_ns"], whole["total_ns"], whole["error_pct"]) == (16_000, 16_000, 0)
    assert [r["ran"] for r in whole["ranks"]] == [2, 2]
    folder(tmp_path, offset_ns=10**9)
    assert main(["replay", str(tmp_path), "--machine", machine, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "all ranks      replayed 0.015 ms, 4 of 4 nodes run; no time was measured over all ranks" in text
    assert "their clocks differ: all begin together" in text and text.count("(self-consistency)") == 2
    (whole,) = json.loads(out.read_bytes())["runs"]
    assert (whole["measured_ns"], whole["error_pct"]) == (None, None)


def test_a_rank_that_stops_says_how_many_nodes_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.0.et").write_bytes(encoded([node(0), recv(1, [0], comm_src=1)]))
    (tmp_path / "trace.1.et").write_bytes(encoded([node(0)]))
    assert main(["replay", str(tmp_path), "--machine", "coupled"]) == 1
    text = capsys.readouterr().out
    assert "1 of 2 nodes" in text and "2 of 3 nodes run" in text and "a send from rank 1 that is not there" in text


def test_the_verb_prints_the_path_over_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path)
    assert main(["critical-path", str(tmp_path), "--across"]) == 0
    text = capsys.readouterr().out
    assert "2 ranks: critical path 0.015 ms, 2 of 4 nodes" in text and "the path stays on one rank" in text
    assert (
        "The replay of all ranks takes 0.016 ms: 0.001 ms before the recording of rank 1 began, then 0.015 ms of path."
        in text
    )
    assert "nothing of the path runs on rank 0" in text
    assert main(["critical-path", str(tmp_path), "--across", "--rank", "0"]) == 2
    assert "leave --rank out" in capsys.readouterr().err


def test_shares_have_the_gains_of_a_replay_without_them(tmp_path: Path) -> None:
    folder(tmp_path)
    out = tmp_path / "p.json"
    assert main(["critical-path", str(tmp_path), "--across", "--json", str(out)]) == 0
    found = json.loads(out.read_bytes())
    assert [*found["gain_ns"]] == [*found["share_ns"]]
    summed = sum(found["share_ns"].values())
    for share, sort in (("host", "host"), ("communication", "comm")):
        assert main(["replay", str(tmp_path), "--scale", f"{sort}=0", "--json", str(out)]) == 0
        (what_if,) = json.loads(out.read_bytes())["what_if"]
        assert found["gain_ns"][share] == what_if["before_ns"] - what_if["after_ns"] > 0
        assert what_if["path_ns"] == summed == found["length_ns"] < what_if["before_ns"]
        assert what_if["gain_pct"] == pytest.approx(100 * found["gain_ns"][share] / summed, abs=1e-6)
    assert found["gain_ns"]["compute"] == found["gain_ns"]["copy"] == found["gain_ns"]["idle"] == 0


@pytest.mark.parametrize(
    ("recording", "ranks"),
    [
        ("megatron-tp2-v100", 2),
        *(
            pytest.param(*row, marks=pytest.mark.long)
            for row in (("dlrm8-v100", 8), ("pipelining-cpu/1f1b", 4), ("pipelining-cpu/interleaved-zb", 4))
        ),
    ],
)
def test_real_runs_replay_whole_and_as_long_as_recorded(tmp_path: Path, recording: str, ranks: int) -> None:
    if not (TRACES / recording).is_dir():
        pytest.skip(f"{TRACES / recording} is not here")
    out, report = tmp_path / "out", tmp_path / "r.json"
    assert main([str(TRACES / recording), "--out", str(out), "--no-timeline", "-q"]) == 0
    path = msgspec.json.encode(across(load(graph_files(out)), load_groups(out)))
    assert path + b"\n" == (out / "critical_path.ranks.json").read_bytes()
    for machine, most_pct in (("ranks", 0.1), ("coupled", 0.01)):
        assert main(["replay", str(out), "--machine", machine, "--json", str(report)]) == 0
        (whole,) = json.loads(report.read_bytes())["runs"]
        assert len(whole["ranks"]) == ranks and all(r["ran"] == r["nodes"] for r in whole["ranks"])
        assert abs(whole["error_pct"]) < most_pct
    assert max(abs(r["error_pct"]) for r in whole["ranks"]) < 0.05  # of the coupled machine
