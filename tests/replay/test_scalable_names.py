"""Names that can be scaled: each text takes what is listed for it and nothing else, whatever the names are."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphlink.graph_model import EdgeKind
from graphlink.replay.ideal import play_ideal
from graphlink.replay.names import closest, scalable
from graphlink.replay.path import critical_path
from graphlink.replay.whatif import Changes, apply, parse_scale
from tests.replay.hand import COLL, CPU, GPU, N, load

NAMES = st.one_of(
    st.sampled_from(["aten::mm", "aten::mm (cont.)", "host gap", "device delay", "Memcpy DtoH (Device -> Pinned)"]),
    st.text("a.*+?()[]{}^$|\\-# =:", max_size=4),
    st.builds(lambda middle: "void kernel<" + 40 * "x" + middle + 20 * "y" + ">(int)", st.sampled_from(["", "1", "2", "\n", "(*)"])),
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
        assert changed.done == (f"{one.scale} x 0: {one.nodes:,} nodes, {-one.ns / 1e6:+,.3f} ms of work",)
        assert one.path_ns is not None
        assert 0 <= one.path_ns <= one.ns
    assert sum(one.path_ns or 0 for one in found) == path.length_ns


def test_a_long_name_is_taken_by_its_ends_where_no_other_has_them() -> None:
    long = "void at::native::elementwise_kernel<128, 2, at::native::FillFunctor<float>, at::detail::Array<char*, 1>>(int)"
    other = long.replace("Fill", "Copy")
    gemm = N(9, GPU, 1, name="gemm")
    for nodes, ends in (([N(0, GPU, 1, name=long), gemm], True), ([N(0, GPU, 1, name=long), N(1, GPU, 1, name=other), gemm], False)):
        texts = [one.scale for one in scalable(load(nodes), None) if one.name == long]
        assert [".*" in text for text in texts] == [ends]
    (alone,) = scalable(load([gemm]), None)
    assert (alone.scale, alone.path_ns) == ("kernel", None)


def test_the_closest_names_have_most_of_the_text() -> None:
    names = ["aten::view", "aten::view_as", "aten::mm", "relu", "gemm_64"]
    assert closest(names, "aten::vew") == ["aten::view", "aten::view_as", "aten::mm"]
    assert closest(names, "^GEMN$") == ["gemm_64"]
    assert closest(names, "xyz") == closest(names, "re") == closest([], "relu") == []
