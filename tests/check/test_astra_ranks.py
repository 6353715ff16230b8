"""Rules over several ranks: collectives that meet, messages with two ends, one slot a rank; and the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.cli import main
from tests.check.et_files import coll, encoded, found, judged, node, recv, send, written

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def examples(folder: Path, key: str) -> str:
    return " ".join(next(v.examples for v in judged(folder).verdicts if v.rule.key == key))


def test_collectives_of_a_group_that_differ(tmp_path: Path) -> None:
    a = [coll(0, comm_type=pb.ALL_REDUCE), coll(1, [0], comm_type=pb.ALL_TO_ALL), node(2, data=[1])]
    b = [coll(0, comm_type=pb.ALL_TO_ALL), coll(1, [0], comm_type=pb.ALL_REDUCE), node(2, data=[1])]
    assert found(written(tmp_path, a, b)) == {"order-differs": 2}
    assert "collective 0: rank 0 node 0" in examples(tmp_path, "order-differs")
    other_size = [coll(0, comm_type=pb.ALL_REDUCE), coll(1, [0], comm_type=pb.ALL_TO_ALL, comm_size=8), node(2, data=[1])]
    assert found(written(tmp_path, a, other_size)) == {"order-differs": 1}
    assert "ALL_TO_ALL of 8 bytes" in examples(tmp_path, "order-differs")


def test_a_rank_that_misses_a_collective(tmp_path: Path) -> None:
    two = [coll(0), coll(1, [0]), node(2, data=[1])]
    assert found(written(tmp_path, two, [coll(0), node(1, data=[0])])) == {"misses-one": 1}
    assert "rank 0 node 1" in examples(tmp_path, "misses-one")
    assert found(written(tmp_path, two, [node(0), node(1, data=[0])])) == {"misses-one": 2}


def test_only_members_of_a_group_must_meet(tmp_path: Path) -> None:
    member = [coll(0, pg_name="1"), node(1, data=[0])]
    assert found(written(tmp_path, member, member, [node(0)], groups={"1": [0, 1]})) == {}
    assert found(written(tmp_path, member, member, [node(0)], groups={"1": [0, 1, 2]})) == {"misses-one": 1}


def test_groups_in_orders_that_contradict_each_other(tmp_path: Path) -> None:
    def two(first: str, second: str) -> list[object]:
        return [coll(0, pg_name=first), coll(1, pg_name=second), node(2, data=[0, 1])]

    groups = {"1": [0, 1], "2": [1, 2], "3": [2, 0]}
    keys = found(written(tmp_path, two("1", "3"), two("2", "1"), two("3", "2"), groups=groups))
    assert keys["slot-deadlock"] == 3
    assert "order-differs" not in keys
    assert "collective 0 of group 1 before" in examples(tmp_path, "slot-deadlock")
    assert "slot-deadlock" not in found(written(tmp_path, two("1", "3"), two("1", "2"), two("2", "3"), groups=groups))


def test_collectives_that_nothing_orders(tmp_path: Path) -> None:
    loose = [coll(0), coll(1), node(2, data=[0, 1])]
    assert found(written(tmp_path, loose, loose)) == {"unchained": 2}
    through = [coll(0), node(1, data=[0]), coll(2, [1]), node(3, data=[2])]
    assert found(written(tmp_path, through, through)) == {}


def test_messages_need_both_ends(tmp_path: Path) -> None:
    sender = [send(0), send(1, [0]), node(2, data=[1])]
    assert found(written(tmp_path, sender, [recv(0), recv(1, [0]), node(2, data=[1])])) == {}
    assert found(written(tmp_path, sender, [recv(0), node(1, data=[0])])) == {"no-recv": 1}
    assert found(written(tmp_path, sender, [recv(0), recv(1, [0]), recv(2, [1]), node(3, data=[2])])) == {"no-send": 1}
    assert "rank 1 node 2" in examples(tmp_path, "no-send")
    assert found(written(tmp_path, [send(0, comm_tag=3), node(1, data=[0])], [recv(0), node(1, data=[0])])) == {"no-recv": 1, "no-send": 1}
    assert "(there is one with tag 3, 64 bytes)" in examples(tmp_path, "no-send")
    assert found(written(tmp_path, [send(0, comm_size=8), node(1, data=[0])], [recv(0), node(1, data=[0])])) == {"no-recv": 1, "no-send": 1}


def test_a_rank_alone_and_a_rank_without_file(tmp_path: Path) -> None:
    (tmp_path / "trace.3.et").write_bytes(encoded([send(0, comm_dst=1), node(1, data=[0])], world_size=8, rank=3))
    assert found(tmp_path) == {"alone": 1, "fewer-ranks": 1}, "its peer is not there to be asked"


def test_the_command_says_where_and_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, [node(0), node(1, pb.METADATA_NODE, data=[0])], [node(0)])
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "trace: 2 ranks, 3 nodes: 1 errors, 0 warnings" in out
    assert "METADATA_NODE: 1 (metadata-node)" in out
    assert "feeder_v3  abort, in every mode" in out
    assert 'rank 0 node 1 "op1"' in out
    written(tmp_path, [node(0)], [node(0, micros=0)])
    assert main(["check", str(tmp_path)]) == 0
    assert main(["check", str(tmp_path / "trace.1.et")]) == 0
    assert main(["check", str(tmp_path / "nothing")]) == 1
    assert main(["check", str(tmp_path / "trace.1.et"), "--groups", str(tmp_path / "nothing")]) == 1
    (tmp_path / "sub").mkdir()
    assert main(["check", str(tmp_path / "sub")]) == 1


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
def test_what_the_converter_of_chakra_wrote(tmp_path: Path) -> None:
    keys = {v.rule.key for v in judged(TRACES / "megatron-tp2-v100").verdicts}
    assert {"dangling-ctrl", "comm-on-cpu", "kind-zero", "no-comm-type", "no-comm-size", "no-version"} <= keys


PAIRS = [("megatron-tp2-v100", 2, "full"), ("megatron-tp2-v100", 2, "launches"), ("pipelining-cpu/1f1b", 4, "full")]


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(("name", "ranks", "host"), PAIRS, ids=[f"{n}-{h}" for n, _, h in PAIRS])
def test_graphs_of_real_runs_have_no_errors(tmp_path: Path, name: str, ranks: int, host: str) -> None:
    assert main([str(TRACES / name), "--out", str(tmp_path / "out"), "--host", host, "-q"]) == 0
    judgement = judged(tmp_path / "out")
    assert judgement.errors == 0, [v for v in judgement.verdicts if v.rule.grade == "error"]
    assert len(judgement.ranks) == ranks
