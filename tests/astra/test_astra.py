"""Each rule on a graph that breaks it, and nothing else."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from graphlink.astra.check_rules import RULES, SECTIONS
from graphlink.astra.ranks import judge, runs_of
from graphlink.depend.edges import cycle, topological
from graphlink.errors import InputError
from graphlink.graph.order import Reach
from graphlink.graph_model import IncomingEdges
from tests.astra.et_files import coll, encoded, found, framed, judged, node, recv, send, written

GOOD = [node(0), node(1, data=[0])]
PAIR = {"1": [0, 1], "2": [1, 0]}


def comp(n: int) -> Any:
    return node(n)


ALONE: list[tuple[str, Sequence[Any]]] = [
    ("dangling-data", [node(0), node(1, data=[0, 9])]),
    ("dangling-ctrl", [node(0), node(1, data=[0], ctrl=[9])]),
    ("duplicate-id", [node(0), node(1, data=[0]), node(1, data=[0])]),
    ("duplicate-data", [node(0), node(1, data=[0, 0])]),
    ("self-data", [node(0), node(1, data=[0, 1])]),
    ("self-ctrl", [node(0), node(1, data=[0], ctrl=[1])]),
    ("ctrl-alone", [node(0), node(1), node(2, data=[0], ctrl=[1])]),
    ("parents-late", [node(1, data=[0]), node(0)]),
    ("metadata-node", [node(0), node(1, pb.METADATA_NODE, data=[0])]),
    ("memory-node", [node(0), node(1, pb.MEM_LOAD_NODE, data=[0])]),
    ("invalid-node", [node(0), node(1, pb.INVALID_NODE, data=[0])]),
    ("unknown-type", [node(0), node(1, 12, data=[0])]),
    ("no-duration", [node(0), node(1, data=[0], micros=0)]),
    ("long-duration", [node(0), node(1, data=[0], micros=2**46 + 1)]),
    ("cpu-statistics", [node(0, is_cpu_op=True), node(1, data=[0])]),
    ("start-order", [node(0, start_ns=5), node(1, data=[0], start_ns=9), node(2, data=[0], start_ns=7)]),
    ("cpu-kind", [node(0), node(1, data=[0], is_cpu_op=("float_val", 1.0))]),
    ("no-comm-type", [coll(0, comm_type=None), comp(1)]),
    ("no-comm-size", [coll(0, comm_size=None), comp(1)]),
    ("kind-zero", [coll(0, comm_size=("uint64_val", 4096)), comp(1)]),
    ("kind-throws", [coll(0, comm_size=("string_val", "4096")), comp(1)]),
    ("kind-throws", [coll(0, pg_name=("int32_val", 1)), comp(1)]),
    ("no-dimension", [coll(0, involved_dim=("bool_list", [False, False])), comp(1)]),
    ("involved-dim", [coll(0, involved_dim=("int32_val", 1)), comp(1)]),
    ("unsupported", [coll(0, comm_type=pb.BARRIER), comp(1)]),
    ("unsupported", [coll(0, comm_type=77), comp(1)]),
    ("broadcast", [coll(0, comm_type=pb.BROADCAST), comp(1)]),
    ("empty-gather", [coll(0, comm_type=pb.ALL_GATHER, comm_size=0), comp(1)]),
    ("tiny-gather", [coll(0, comm_type=pb.ALL_GATHER, comm_size=2), comp(1)]),
    ("small-gather", [coll(0, comm_type=pb.ALL_GATHER, comm_size=16), comp(1)]),
    ("size-zero", [coll(0, comm_size=0), comp(1)]),
    ("negative-size", [coll(0, comm_size=-1), comp(1)]),
    ("group-text", [coll(0, pg_name="dp_group"), comp(1)]),
    ("group-prefix", [coll(0, pg_name="1abc"), comp(1)]),
    ("group-huge", [coll(0, pg_name="4294967296"), comp(1)]),
    ("group-huge", [coll(0, pg_name="9" * 30), comp(1)]),
    ("group-zero", [coll(0, pg_name="0"), comp(1)]),
    ("group-unknown", [coll(0, pg_name="7"), comp(1)]),
    ("group-unknown", [coll(0, pg_name="-3"), comp(1)]),
]


@pytest.mark.parametrize(("key", "nodes"), ALONE, ids=[f"{i}-{k}" for i, (k, _) in enumerate(ALONE)])
def test_a_broken_rule_is_found_alone(tmp_path: Path, key: str, nodes: Sequence[Any]) -> None:
    assert set(found(written(tmp_path, nodes, nodes, groups=PAIR))) == {key}
    verdict = judged(tmp_path).verdicts[0]
    assert verdict.count >= 2
    assert all(example.startswith("rank ") for example in verdict.examples)


def test_a_sound_graph_has_no_findings(tmp_path: Path) -> None:
    first = [node(0), coll(1, [0], pg_name="1"), send(2, [1]), node(3, data=[2])]
    second = [node(0), coll(1, [0], pg_name="1"), recv(2, [1]), node(3, data=[2])]
    assert found(written(tmp_path, first, second, groups=PAIR)) == {}
    assert judged(tmp_path).nodes == 8


MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("no-peer", {"comm_dst": None}),
    ("no-tag", {"comm_tag": None}),
    ("foreign-end", {"comm_src": 1}),
    ("to-itself", {"comm_dst": 0}),
    ("no-such-rank", {"comm_dst": 5}),
    ("negative-tag", {"comm_tag": -4}),
    ("empty-send", {"comm_size": 0}),
    ("kind-zero", {"comm_dst": ("int64_val", 1)}),
    ("comm-on-cpu", {"is_cpu_op": True}),
]


@pytest.mark.parametrize(("key", "given_attributes"), MESSAGES, ids=[k for k, _ in MESSAGES])
def test_messages(tmp_path: Path, key: str, given_attributes: dict[str, Any]) -> None:
    assert key in found(written(tmp_path, [send(0, **given_attributes), node(1, data=[0])], GOOD))


def test_a_rank_that_ends_in_a_message_aborts_if_it_has_cpu_nodes(tmp_path: Path) -> None:
    last = [node(0, is_cpu_op=True), send(1, [0])]
    other = [recv(0), node(1, data=[0])]
    assert "last-node" in found(written(tmp_path, last, other))
    maybe = [node(0, is_cpu_op=True), send(1, [0]), node(2, data=[0])]
    assert {"maybe-last", "last-node"} & set(found(written(tmp_path, maybe, other))) == {"maybe-last"}
    assert "maybe-last" not in found(written(tmp_path, [node(0), send(1, [0])], other)), (
        "no CPU nodes, no statistics to throw"
    )


def test_groups(tmp_path: Path) -> None:
    one, two = coll(0, pg_name="1"), coll(1, [0], pg_name="2")
    end = node(2, data=[1])
    assert "no-groups" in found(written(tmp_path, [one, two, end]))
    assert "group-of-one" in found(written(tmp_path, [one, two, end], groups={"1": [0], "2": [0, 1]}))
    assert "outside-group" in found(written(tmp_path, [one, two, end], groups={"1": [1, 2], "2": [0, 1]}))
    assert "legacy-group" in found(written(tmp_path, [one, two, end], groups=PAIR))
    assert found(written(tmp_path, GOOD, GOOD, GOOD, groups={"0": [0], "x": [1], "600": [0, 1], "3": "all"})) == {
        "groups-key": 2,
        "groups-high": 1,
        "groups-file": 1,
    }
    (tmp_path / "comm_group.json").write_text("{")
    assert found(tmp_path) == {"groups-file": 1}


def test_a_path_with_empty_in_it_hides_the_groups(tmp_path: Path) -> None:
    folder = tmp_path / "nonempty"
    folder.mkdir()
    assert "groups-path" in found(written(folder, GOOD, GOOD, groups=PAIR))


def test_an_attribute_twice_has_two_values_for_two_readers(tmp_path: Path) -> None:
    def twice(name: str, kind: str, value: int) -> list[Any]:
        out = coll(0)
        out.attr.add(name=name, **{kind: value})
        return [out, node(1, data=[0])]

    assert found(written(tmp_path, twice("comm_size", "int64_val", 16), twice("comm_size", "int64_val", 16))) == {
        "attribute-twice": 2
    }
    assert 'rank 0 node 0 "op0": comm_size is 4096, then 16' in judged(tmp_path).verdicts[0].examples
    assert found(written(tmp_path, *[twice("comm_size", "int64_val", 4096)] * 2)) == {}, "both read the same"
    assert found(written(tmp_path, *[twice("comm_tag", "int32_val", 1)] * 2)) == {}, "never read there"


def test_a_wide_fan_is_slow(tmp_path: Path) -> None:
    fan = [node(0), *(node(i, data=[0]) for i in range(1, 4_200))]
    assert found(written(tmp_path, fan, [node(i) for i in range(4_200)])) == {"wide-fan": 2}


class TestFraming:
    def found_in(self, tmp_path: Path, data: bytes) -> set[str]:
        (tmp_path / "trace.0.et").write_bytes(encoded(GOOD))
        (tmp_path / "trace.1.et").write_bytes(data)
        return set(found(tmp_path))

    def test_sound(self, tmp_path: Path) -> None:
        assert self.found_in(tmp_path, encoded(GOOD)) == set()

    def test_no_metadata(self, tmp_path: Path) -> None:
        assert self.found_in(tmp_path, framed(*(n.SerializeToString() for n in GOOD))) == {"no-metadata"}

    def test_no_version(self, tmp_path: Path) -> None:
        assert self.found_in(tmp_path, encoded(GOOD, version="")) == {"no-version"}

    def test_cut_off(self, tmp_path: Path) -> None:
        assert self.found_in(tmp_path, encoded(GOOD)[:-2]) == {"cut-off"}

    def test_a_zero_behind_the_last_message(self, tmp_path: Path) -> None:
        found_ = self.found_in(tmp_path, encoded([node(5), node(6, data=[5])]) + b"\0")
        assert "empty-message" in found_
        assert "invalid-node" not in found_

    def test_no_node(self, tmp_path: Path) -> None:
        assert self.found_in(tmp_path, encoded(GOOD) + b"\x03\xff\xff\xff") == {"broken"}

    def test_no_nodes(self, tmp_path: Path) -> None:
        assert self.found_in(tmp_path, encoded([])) == {"no-nodes"}
        assert self.found_in(tmp_path, b"") == {"no-nodes"}

    def test_compressed(self, tmp_path: Path) -> None:
        assert self.found_in(tmp_path, gzip.compress(encoded(GOOD))) == {"compressed"}

    def test_what_is_no_graph_at_all_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError):
            self.found_in(tmp_path, b'{"a": 1, "b": "' + b"x" * 300 + b'"}')

    def test_names_and_ranks(self, tmp_path: Path) -> None:
        (tmp_path / "trace.0.et").write_bytes(encoded(GOOD, rank=0, world_size=4))
        (tmp_path / "trace.2.et").write_bytes(encoded(GOOD, rank=1))
        assert set(found(tmp_path)) == {"missing-rank", "other-rank", "fewer-ranks"}
        (tmp_path / "trace.2.et").rename(tmp_path / "trace.01.et")
        assert "file-name" in {v.rule.key for files in runs_of(tmp_path) for v in judge(files, None).verdicts}


class TestCycles:
    def test_in_a_part_of_the_data_deps(self, tmp_path: Path) -> None:
        circle = [node(0), node(1, data=[0, 3]), node(2, data=[1]), node(3, data=[2]), node(4, data=[3])]
        assert found(written(tmp_path, circle, GOOD)) == {"cycle": 4, "parents-late": 1}
        example = next(v.examples[0] for v in judged(tmp_path).verdicts if v.rule.key == "cycle")
        assert "3 nodes" in example
        assert '1 "op1" -data-> 3 "op3" -data-> 2 "op2" -data-> 1' in example

    def test_over_the_whole_graph(self, tmp_path: Path) -> None:
        assert {"no-start", "cycle"} <= set(found(written(tmp_path, [node(0, data=[1]), node(1, data=[0])], GOOD)))

    def test_of_data_and_ctrl_together(self, tmp_path: Path) -> None:
        mixed = [node(0), node(1, data=[0], ctrl=[2]), node(2, data=[1])]
        keys = found(written(tmp_path, mixed, GOOD))
        assert keys["cycle-mixed"] == 2
        assert "cycle" not in keys
        example = next(v.examples[0] for v in judged(tmp_path).verdicts if v.rule.key == "cycle-mixed")
        assert "-ctrl->" in example
        assert "-data->" in example

    def test_of_many_nodes(self, tmp_path: Path) -> None:
        n = 20_000
        circle = [node(0), *(node(i, data=[i - 1 if i > 1 else n]) for i in range(1, n + 1))]
        keys = found(written(tmp_path, circle, GOOD))
        assert keys["cycle"] == n


edges = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda e: e[0] != e[1]), max_size=30)


@given(edges, st.randoms())
def test_order_cycle_and_reach_agree_with_plain_search(given_edges: list[tuple[int, int]], random: Any) -> None:
    n = 12
    pairs = sorted(set(given_edges))
    source, target = (np.array([p[k] for p in pairs], np.int64) for k in (0, 1))
    e = IncomingEdges.of(n, source, target)
    wish = np.array(random.sample(range(n), n))
    order = topological(source, target, wish)
    before = {(a, b) for a, b in pairs}
    while True:
        more = before | {(a, d) for a, b in before for c, d in before if b == c}
        if more == before:
            break
        before = more
    if len(order) < n:
        nodes = cycle(source, target, order, n)
        assert all((b, a) in set(pairs) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True))
        assert {b for a, b in before if a == b} <= set(range(n)) - set(order.tolist())
        return
    assert all(a != b for a, b in before)
    place = {int(v): i for i, v in enumerate(order)}
    assert all(place[a] < place[b] for a, b in pairs)
    every = [(a, b) for a in range(n) for b in range(n)]
    came_before, undecided = Reach(e, order, np.array([random.randrange(3) for _ in range(n)]))(
        np.array([a for a, _ in every]), np.array([b for _, b in every])
    )
    assert {p for p, yes in zip(every, came_before, strict=True) if yes} == before
    assert not undecided.any()


def test_the_page_lists_every_rule_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    for title, rules in SECTIONS.items():
        assert f"## {title}" in page
        for rule in rules:
            cells = (f"`{rule.key}`", rule.grade, rule.what, rule.todo, rule.head, rule.legacy, rule.known_from)
            assert f"| {' | '.join(cells)} |" in page
            assert set(rule.ends("head") + rule.ends("legacy")) <= {"aborts", "hangs", "lacks", "runs"}
    assert len(RULES) == sum(map(len, SECTIONS.values()))
