"""Names that can be scaled: each text takes what is listed for it and nothing else, whatever the names are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.graph.families import late_ops
from graphlink.graph_model import PART, EdgeKind
from graphlink.model import NOWHERE
from graphlink.replay.changes import SORTS, Changes, parse_scale
from graphlink.replay.machines import play_ideal
from graphlink.replay.path import critical_path
from graphlink.replay.report import scalable
from graphlink.replay.selection import Selection
from graphlink.replay.times import closest
from graphlink.replay.whatif import apply
from graphlink.replay.workload import names_found
from tests.replay.hand import COLL, CPU, GPU, N, file, load

NAMES = st.one_of(
    st.sampled_from(
        [
            "aten::mm",
            "aten::mm (cont.)",
            "ProfilerStep#6 (cont.)",
            "ProfilerStep#7",
            "host gap",
            "device delay",
            "Memcpy DtoH (Device -> Pinned)",
        ]
    ),
    st.text("a.*+?()[]{}^$|\\-# =:", max_size=4),
    st.builds(
        lambda middle: "void kernel<" + 40 * "x" + middle + 20 * "y" + ">(int)",
        st.sampled_from(["", "1", "2", "\n", "(*)"]),
    ),
)


@st.composite
def ranks(draw: Any) -> list[list[N]]:
    out = []
    for _ in range(draw(st.integers(1, 2))):
        nodes = []
        for i in range(draw(st.integers(1, 8))):
            sort = draw(st.sampled_from([CPU, GPU, GPU, COLL]))
            deps = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set()
            name = draw(NAMES)
            delay = draw(st.integers(0, 2)) if sort != CPU and name != "device delay" else 0  # which begins with none
            kind = EdgeKind.LAUNCH if sort != CPU else EdgeKind.HOST
            edges = tuple((d, kind) for d in sorted(deps))
            nodes.append(N(i, sort, draw(st.integers(0, 5)), edges, name, delay_us=delay, group=1))
        out.append(nodes)
    return out


@given(ranks())
def test_each_text_takes_what_is_listed_and_all_is_listed(given: list[list[N]]) -> None:
    work = load(*given)
    played = play_ideal(work)
    path = critical_path(work, played)
    found = scalable(work, path)
    assert [one.ns for one in found] == sorted((one.ns for one in found), reverse=True)
    assert sum(one.ns for one in found) == work.cost_ns.sum()
    for one in found:
        changed = apply(work, Changes((parse_scale(f"{one.scale}=0"),)), {})
        assert [d.what for d in changed.done] == [
            f"{one.scale} x 0: {one.nodes:,} nodes, {-one.ns / 1e6:+,.3f} ms of work"
        ]
        assert parse_scale(f"^{re.escape(one.name)}$=0").name is not None
        assert names_found(work, re.compile(f"^{re.escape(one.name)}\\Z")).sum() >= one.nodes or one.sort == "delay"
        assert not one.name.endswith(PART) or one.sort != "host"
        nodes = names_found(work, re.compile(f"^{re.escape(one.name)}\\Z")) & (work.work == SORTS[one.sort])
        assert one.sort == "delay" or Selection(work).own_ns(nodes) == one.ns
        assert one.path_ns is not None
        assert 0 <= one.path_ns <= one.ns
    assert sum(one.path_ns or 0 for one in found) == path.length_ns


def test_a_long_name_is_taken_by_its_ends_where_no_other_has_them() -> None:
    long = (
        "void at::native::elementwise_kernel<128, 2, at::native::FillFunctor<float>, at::detail::Array<char*, 1>>(int)"
    )
    other = long.replace("Fill", "Copy")
    gemm = N(9, GPU, 1, name="gemm")
    for nodes, ends in (
        ([N(0, GPU, 1, name=long), gemm], True),
        ([N(0, GPU, 1, name=long), N(1, GPU, 1, name=other), gemm], False),
    ):
        texts = [one.scale for one in scalable(load(nodes), None) if one.name == long]
        assert [".*" in text for text in texts] == [ends]
    (alone,) = scalable(load([gemm]), None)
    assert (alone.scale, alone.path_ns) == ("kernel", None)


def test_parts_are_their_op_and_marks_of_steps_are_python_between_ops() -> None:
    nodes = [
        N(0, CPU, 1, name="aten::mm"),
        N(1, CPU, 2, name="aten::mm (cont.)"),
        N(2, CPU, 4, name="ProfilerStep#6"),
        N(3, GPU, 9),
    ]
    nodes += [N(4, CPU, 8, name="ProfilerStep#6 (cont.)"), N(5, GPU, 16, name="aten::mm (cont.)")]
    work = load(nodes)
    found = {(one.sort, one.name): (one.ns, one.scale) for one in scalable(work, None)}
    assert found["host", "aten::mm"] == (3_000, "host:^aten::mm$")
    assert found["host", "Python between ops"] == (12_000, "host:^Python between ops$")
    assert found["kernel", "aten::mm (cont.)"][0] == 16_000  # of a device it is a name like any other
    for scale, nodes_named in (
        ("^aten::mm$", [0, 1]),
        (r"^aten::mm \(cont\.\)$", [1, 5]),
        ("ProfilerStep", [2, 4]),
        ("^Python", [2, 4]),
    ):
        assert np.flatnonzero(names_found(work, re.compile(scale))).tolist() == nodes_named


def test_delays_say_what_came_late_most() -> None:
    """Of two pieces of one delay, both count for the op behind the last; a copy is late by less than the kernel."""
    nodes = [N(0, CPU, 1, name="aten::mm"), N(1, CPU, 1, ((0, EdgeKind.HOST),), name="aten::copy_ (cont.)")]
    nodes += [
        N(2, GPU, 30, ((0, EdgeKind.LAUNCH),), "device delay", lane=7),
        N(3, GPU, 30, ((2, EdgeKind.STREAM),), "device delay", lane=7),
    ]
    nodes += [N(4, GPU, 5, ((0, EdgeKind.LAUNCH), (3, EdgeKind.STREAM)), "gemm", lane=7)]
    nodes += [
        N(5, GPU, 50, ((1, EdgeKind.LAUNCH),), "device delay", lane=8),
        N(6, GPU, 1, ((3, EdgeKind.EVENT), (5, EdgeKind.STREAM)), "copy", lane=8),
    ]
    graph = file(nodes)
    assert late_ops(graph, np.array([2, 3, 5])).tolist() == [4, 4, 6]
    (one,) = [one for one in scalable(load(nodes), None) if one.name == "device delay"]
    assert one.before == ["gemm"]  # files by hand name no caller
    circle = file(
        [N(0, GPU, 1, ((1, EdgeKind.STREAM),), "device delay"), N(1, GPU, 1, ((0, EdgeKind.STREAM),), "device delay")]
    )
    assert late_ops(circle, np.array([0, 1])).tolist() == [NOWHERE, NOWHERE]


def test_the_closest_names_have_most_of_the_text() -> None:
    names = ["aten::view", "aten::view_as", "aten::mm", "relu", "gemm_64"]
    assert closest(names, "aten::vew") == ["aten::view", "aten::view_as", "aten::mm"]
    assert closest(names, "^GEMN$") == ["gemm_64"]
    assert closest(["aten::gather"], "nothere") == []  # where most pieces are others
    assert closest(names, "xyz") == closest(names, "re") == closest([], "relu") == []
