"""Rules over several ranks: collectives that meet, messages with two ends, one slot a rank; and the command."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.astra.check_rules import RULES
from graphlink.cli import main
from tests.astra.et_files import coll, encoded, found, judged, node, recv, send, written

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def examples(folder: Path, key: str) -> str:
    return " ".join(next(v.examples for v in judged(folder).verdicts if v.rule.key == key))


def test_collectives_of_a_group_that_differ(tmp_path: Path) -> None:
    a = [coll(0, comm_type=pb.ALL_REDUCE), coll(1, [0], comm_type=pb.ALL_TO_ALL), node(2, data=[1])]
    b = [coll(0, comm_type=pb.ALL_TO_ALL), coll(1, [0], comm_type=pb.ALL_REDUCE), node(2, data=[1])]
    assert found(written(tmp_path, a, b)) == {"order-differs": 2}
    assert "collective 0: rank 0 node 0" in examples(tmp_path, "order-differs")
    other_size = [
        coll(0, comm_type=pb.ALL_REDUCE),
        coll(1, [0], comm_type=pb.ALL_TO_ALL, comm_size=8),
        node(2, data=[1]),
    ]
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


class TestCircles:
    """What hangs whatever the timing."""

    def test_both_receive_before_they_send(self, tmp_path: Path) -> None:
        first = [recv(0, comm_src=1), send(1, [0], comm_dst=1), node(2, data=[1])]
        second = [recv(0, comm_src=0), node(1, data=[0]), send(2, [1], comm_dst=0), node(3, data=[2])]
        assert found(written(tmp_path, first, second)) == {"rank-circle": 4}
        there = 'rank 0 node 0 "op0" -send-> rank 1 node 2 "op2" -after-> rank 1 node 0 "op0"'
        assert examples(tmp_path, "rank-circle") == f'{there} -send-> rank 0 node 1 "op1" -after-> rank 0 node 0'
        assert main(["check", str(tmp_path)]) == 1
        first[1] = send(1, comm_dst=1)
        assert found(written(tmp_path, first, second)) == {}, "one of them sends first"

    def test_a_message_behind_a_collective_that_waits_for_it(self, tmp_path: Path) -> None:
        first = [recv(0, comm_src=1), coll(1, [0]), node(2, data=[1])]
        second = [coll(0), send(1, [0], comm_dst=0), node(2, data=[1])]
        assert found(written(tmp_path, first, second)) == {"rank-circle": 4}
        assert '-after-> rank 1 node 0 "op0" -meets-> rank 0 node 1 "op1" -after-> rank 0 node 0' in examples(
            tmp_path, "rank-circle"
        )

    def test_groups_that_dependencies_put_in_other_orders(self, tmp_path: Path) -> None:
        def two(first: str, second: str, deps: list[int], **more: object) -> list[object]:
            return [coll(0, pg_name=first, **more), coll(1, deps, pg_name=second, **more), node(2, data=[0, 1])]

        keys = found(written(tmp_path, two("1", "2", [0]), two("2", "1", [0]), groups={"1": [0, 1], "2": [0, 1]}))
        assert keys == {"rank-circle": 4, "legacy-group": 4}, "and no slot-deadlock: they hang without slots"
        keys = found(written(tmp_path, two("1", "2", [0]), two("2", "1", []), groups={"1": [0, 1], "2": [0, 1]}))
        assert keys == {"slot-deadlock": 2, "legacy-group": 4}, "on streams rank 1 starts both"
        broadcast = [two(*g, [0], comm_type=pb.BROADCAST) for g in (("1", "2"), ("2", "1"))]
        assert "rank-circle" not in found(written(tmp_path, *broadcast, groups={"1": [0, 1], "2": [0, 1]})), (
            "ranks are not coupled"
        )

    def test_what_timing_decides_is_not_sure(self, tmp_path: Path) -> None:
        """Two messages of one key whose order a rank leaves open: which one the RECV takes is not known."""
        first = [recv(0, comm_src=1), send(1, [0], comm_dst=1), node(2, data=[1])]
        second = [recv(0, comm_src=0), send(1, [0], comm_dst=0), send(2, comm_dst=0), node(3, data=[1, 2])]
        assert found(written(tmp_path, first, second)) == {"no-recv": 1}

    def test_messages_that_start_in_order_though_they_run_beside_each_other(self, tmp_path: Path) -> None:
        """As gloo's: each is launched by a host node beside its thread, and none waits for the one before."""
        cpu = {"is_cpu_op": True}
        first = [
            node(0, **cpu),
            node(1, data=[0], **cpu),
            recv(2, [1], comm_src=1),
            node(3, data=[0], **cpu),
            node(4, data=[3], **cpu),
        ]
        first += [recv(5, [4], comm_src=1), send(6, [5], comm_dst=1), node(7, data=[2, 6])]
        second = [recv(0, comm_src=0), send(1, [0], comm_dst=0), send(2, [0], comm_dst=0), node(3, data=[1, 2])]
        assert found(written(tmp_path, first, second)) == {"rank-circle": 6, "cpu-statistics": 4}, (
            "the first RECV waits as well"
        )
        second[0] = node(0)
        assert found(written(tmp_path, first, second)) == {"cpu-statistics": 4, "no-recv": 1}

    def test_over_ctrl_deps(self, tmp_path: Path) -> None:
        first = [recv(0, comm_src=1), node(1), send(2, [1], comm_dst=1), node(3, data=[0, 2])]
        first[2].ctrl_deps.append(0)
        second = [recv(0, comm_src=0), send(1, [0], comm_dst=0), node(2, data=[1])]
        assert found(written(tmp_path, first, second)) == {"rank-circle": 4, "ctrl-alone": 1}

    def test_of_many_nodes(self, tmp_path: Path) -> None:
        n = 5_000
        first = [recv(0, comm_src=1), *(coll(i, [i - 1]) for i in range(1, n)), node(n, data=[n - 1])]
        second = [
            *(coll(i, [i - 1] if i else []) for i in range(n - 1)),
            send(n - 1, [n - 2], comm_dst=0),
            node(n, data=[n - 1]),
        ]
        assert found(written(tmp_path, first, second)) == {"rank-circle": 2 * n}
        assert len(examples(tmp_path, "rank-circle")) < 600


def completes(ranks: Sequence[Sequence[Any]], groups: Mapping[str, Sequence[int]], *, slots: bool = False) -> bool:
    """Node by node, as often as anything can end: a collective with all of its turn, a RECV after its SEND if there is
    one. ``slots``: a SEND not before each collective of its rank that could begin.
    """
    keys: dict[tuple[int, int], tuple[object, ...]] = {}
    for r, nodes in enumerate(ranks):
        turns: Counter[object] = Counter()
        for n in nodes:
            of = {a.name: a.string_val or a.int64_val or a.int32_val for a in n.attr}
            key: tuple[object, ...] | None = None
            if n.type == pb.COMM_COLL_NODE and (not of.get("pg_name") or r in groups[of["pg_name"]]):
                key = ("coll", of.get("pg_name"))
            elif n.type in (pb.COMM_SEND_NODE, pb.COMM_RECV_NODE):
                ends = (r, of["comm_dst"]) if n.type == pb.COMM_SEND_NODE else (of["comm_src"], r)
                key = (n.type, *ends, of["comm_tag"])
            if key is not None:
                keys[r, n.id] = (*key, turns[key])
                turns[key] += 1
    by_key = {key: [k for k, other in keys.items() if other == key] for key in keys.values()}
    deps = {(r, n.id): {(r, d) for d in n.data_deps} for r, nodes in enumerate(ranks) for n in nodes}
    ended: set[tuple[int, int]] = set()
    while True:
        new = set()
        for k in deps.keys() - ended:
            with_it = by_key[keys[k]] if keys.get(k, ("",))[0] == "coll" else [k]
            ready = all(deps[m] <= ended for m in with_it)
            if keys.get(k, ("",))[0] == pb.COMM_RECV_NODE:
                ready &= all(s in ended for s in by_key.get((pb.COMM_SEND_NODE, *keys[k][1:]), []))
            if slots and keys.get(k, ("",))[0] == pb.COMM_SEND_NODE:
                ready &= not any(
                    m[0] == k[0] and key[0] == "coll" and deps[m] <= ended and m not in ended for m, key in keys.items()
                )
            if ready:
                new.add(k)
        if not new:
            return len(ended) == len(deps)
        ended |= new


@st.composite
def runs(draw: Any) -> list[list[Any]]:
    """Ranks whose communication of one key is chained; anything else may run beside."""
    out = []
    for rank in range(3):
        nodes: list[Any] = []
        last: dict[object, int] = {}
        for i in range(draw(st.integers(1, 8))):
            deps = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set()
            sort, which = draw(st.sampled_from(["comp", "coll", "coll", "send", "recv"])), draw(st.integers(0, 2))
            peer = (rank + 1 + which % 2) % 3
            if sort != "comp":
                key = (sort, which if sort == "coll" else peer)
                deps |= {last[key]} if key in last else set()
                last[key] = i
            if sort == "comp":
                nodes.append(node(i, data=sorted(deps)))
            elif sort == "coll":
                nodes.append(coll(i, sorted(deps), pg_name=(None, "1", "2")[which]))
            else:
                nodes.append(
                    send(i, sorted(deps), comm_dst=peer) if sort == "send" else recv(i, sorted(deps), comm_src=peer)
                )
        out.append(nodes)
    return out


@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(runs())
def test_circles_are_those_of_a_plain_walk(tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Any]]) -> None:
    groups = {"1": [0, 1], "2": [0, 1, 2]}
    folder = tmp_path_factory.mktemp("run")
    circle = "rank-circle" in found(written(folder, *ranks, groups=groups))
    assert circle or completes(ranks, groups)
    assert not circle or not completes(ranks, groups, slots=True)


def test_groups_need_ranks_that_are_there_each_once(tmp_path: Path) -> None:
    member = [coll(0, pg_name="1"), node(1, data=[0])]
    assert found(written(tmp_path, member, member, groups={"1": [0, 1, 5], "2": [7]})) == {"group-beyond": 1}
    assert examples(tmp_path, "group-beyond") == "group 1: rank 5 of a run of 2 ranks"
    assert found(written(tmp_path, member, member, groups={"1": [0, 1, 1]})) == {"group-twice": 1}
    (tmp_path / "trace.1.et").unlink()
    assert "group-beyond" not in found(written(tmp_path, member, groups={"1": [0, 1]})), (
        "of a rank alone the run is not known"
    )


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
    assert found(written(tmp_path, [send(0, comm_tag=3), node(1, data=[0])], [recv(0), node(1, data=[0])])) == {
        "no-recv": 1,
        "no-send": 1,
    }
    assert "(there is one with tag 3, 64 bytes)" in examples(tmp_path, "no-send")
    assert found(written(tmp_path, [send(0, comm_size=8), node(1, data=[0])], [recv(0), node(1, data=[0])])) == {
        "no-recv": 1,
        "no-send": 1,
    }


def test_a_rank_alone_and_a_rank_without_file(tmp_path: Path) -> None:
    (tmp_path / "trace.3.et").write_bytes(encoded([send(0, comm_dst=1), node(1, data=[0])], world_size=8, rank=3))
    assert found(tmp_path) == {"alone": 1, "fewer-ranks": 1}, "its peer is not there to be asked"


def test_one_rank_is_sound_but_no_simulator_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, [node(0, is_cpu_op=True)])
    assert main(["check", str(tmp_path)]) == 0
    head, _, finding, *_ = capsys.readouterr().out.splitlines()
    assert head.endswith(": 0 errors, 2 warnings; ASTRA-sim of 2026 and of 2024 cannot run it as it is")
    assert finding == "warning: There is a single rank, and the network needs two. Found 1 time (alone)"


def test_the_command_says_where_and_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, [node(0), node(1, pb.METADATA_NODE, data=[0])], [node(0)])
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert (
        "trace: 2 ranks, 3 nodes: 1 error, 0 warnings; ASTRA-sim of 2026 cannot run it as it is; ASTRA-sim of 2024 "
        in out
    )
    assert "2024 can run it only with replay-only\n" in out
    assert "error: A node has the type METADATA_NODE. Found 1 time (metadata-node)" in out
    assert "do                 Leave such nodes out, or give them the type COMP_NODE." in out
    assert "ASTRA-sim of 2026  It stops with an error, with replay-only in the system file, too." in out
    assert 'rank 0 node 1 "op1"' in out
    written(tmp_path, [node(0)], [node(0, micros=0)])
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("trace: 2 ranks, 2 nodes: 0 errors, 1 warning\n")
    assert main(["check", str(tmp_path / "trace.1.et")]) == 0
    assert main(["check", str(tmp_path / "nothing")]) == 1
    assert main(["check", str(tmp_path / "trace.1.et"), "--groups", str(tmp_path / "nothing")]) == 1
    (tmp_path / "sub").mkdir()
    assert main(["check", str(tmp_path / "sub")]) == 1


def test_each_finding_is_a_sentence_and_says_what_to_do() -> None:
    for rule in RULES.values():
        for text in (rule.what, rule.todo, rule.head, rule.legacy):
            assert text[0].isupper() or text.startswith(("data_deps", "ctrl_deps", "involved_dim", "is_cpu_op")), text
            assert text.endswith(".") and not re.search(r"\b(abort|hang|skipped|network mode)\b|\(read\)", text), text


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
def test_what_the_converter_of_chakra_wrote(tmp_path: Path) -> None:
    keys = {v.rule.key for v in judged(TRACES / "megatron-tp2-v100").verdicts}
    assert {"dangling-ctrl", "comm-on-cpu", "kind-zero", "no-comm-type", "no-comm-size", "no-version"} <= keys


PAIRS = [("megatron-tp2-v100", 2, "full"), ("megatron-tp2-v100", 2, "launches"), ("pipelining-cpu/1f1b", 4, "full")]
MARKED = [PAIRS[0], *(pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS[1:])]


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(("name", "ranks", "host"), MARKED, ids=[f"{n}-{h}" for n, _, h in PAIRS])
def test_graphs_of_real_runs_have_no_errors(tmp_path: Path, name: str, ranks: int, host: str) -> None:
    assert main([str(TRACES / name), "--out", str(tmp_path / "out"), "--host", host, "-q"]) == 0
    judgement = judged(tmp_path / "out")
    assert judgement.errors == 0, [v for v in judgement.verdicts if v.rule.grade == "error"]
    assert len(judgement.ranks) == ranks
