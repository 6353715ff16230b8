"""The picture, read back: every box, bubble and name of a run is where and as large as its times say."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter, defaultdict
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink import output_names, records
from graphlink.causes import OF_STAGES, Cause
from graphlink.hatches import HATCHES, xml
from graphlink.model import NOWHERE
from graphlink.pipeline import file as bubbles
from graphlink.pipeline.panels import (
    FILL,
    FIRST_CAUSE,
    Marks,
    Panel,
    arranged,
    computed,
    milliseconds,
    recorded,
    row_label,
    style,
)
from graphlink.pipeline.records import Pass, RunPipeline
from graphlink.pipeline.svg import encode, picture
from graphlink.tables import concat, take
from tests.pipeline.pipelines import (
    EQUAL,
    Box,
    Gap,
    gaps_of,
    interleaved,
    one_f_one_b,
    pipeline,
    played,
    simple,
    with_optimizer,
)

SVG = "{http://www.w3.org/2000/svg}"
INSIDE = [c for c in OF_STAGES if c != Cause.OPTIMIZER_SYNC]
ODD = "<script>alert('&\"')</script>\x00\x01\x1b[31m\x7f\u0085\u202e\ufffe\ud800]]>\U0001f600"


class Drawn:
    """An SVG of ours by rows: rectangles with tooltips of their own, and the areas of all else by class."""

    def __init__(self, data: bytes) -> None:
        self.root = ElementTree.fromstring(data)
        assert self.root.tag == f"{SVG}svg"
        self.rows = [g for g in self.root.findall(f"{SVG}g") if g.find(f"{SVG}rect[@class='lane']") is not None]
        self.text = " ".join(t.text or "" for t in self.root.iter(f"{SVG}text"))

    def own(self, row: int | None = None) -> list[ElementTree.Element]:
        rows = self.rows if row is None else [self.rows[row]]
        return [r for g in rows for o in g.findall(f"{SVG}g[@class='o']") for r in o]

    def count(self, what: Pass | Cause) -> int:
        return sum(r.get("class") == name_of(what) for r in self.own())

    def tips(self) -> list[str]:
        return [t.text or "" for t in self.root.iter(f"{SVG}title")][1:]

    def numbers(self) -> list[str]:
        return [t.text or "" for row in self.rows for g in row if (g.get("class") or "").startswith("m x") for t in g]

    def areas(self, row: int) -> dict[str, float]:
        """Pixels of each class in the row, in units of its height."""
        out: defaultdict[str, float] = defaultdict(float)
        lane = self.rows[row].find(f"{SVG}rect[@class='lane']")
        assert lane is not None
        high = float(lane.get("height", ""))
        for rect in self.own(row):
            out[rect.get("class", "")] += float(rect.get("width", "")) * float(rect.get("height", "")) / high
        for path in self.rows[row].findall(f"{SVG}path"):
            mine = (path.get("class") or "").split()
            if mine[0] == "t":
                shapes = re.findall(r"M([-\d.]+) ([-\d.e]+)h([\d.]+)v([\d.e-]+)h-([\d.]+)z", path.get("d", ""))
                assert "".join(f"M{a} {b}h{c}v{d}h-{e}z" for a, b, c, d, e in shapes) == path.get("d")
                out[mine[1]] += sum(float(c) * float(d) for _, _, c, d, _ in shapes) / high
        return out

    def width(self, row: int = 0) -> float:
        lane = self.rows[row].find(f"{SVG}rect[@class='lane']")
        assert lane is not None
        return float(lane.get("width", ""))


def name_of(what: Pass | Cause) -> str:
    return f"p{what.value}" if isinstance(what, Pass) else f"c{what.value}"


def all_causes() -> RunPipeline:
    """A run in which a stall is cut into as many parts as there are causes, and one lies inside a box."""
    boxes, gaps = with_optimizer(played(one_f_one_b(2, 4), {Pass.F: 40_000_000, Pass.B: 80_000_000}, 30_000_000))
    stall = next(g for g in gaps[0] if g.cause == Cause.DEPENDENCY_STALL)
    bounds = np.linspace(stall.start_ns, stall.end_ns, len(INSIDE) + 1).astype(np.int64).tolist()
    gaps[0].remove(stall)
    gaps[0] += [Gap(a, b, c, f"kernel <{c.name}> & co") for a, b, c in zip(bounds, bounds[1:], INSIDE, strict=False)]
    first = boxes[1][1]
    gaps[1].append(Gap(first.start_ns + 10_000_000, first.start_ns + 20_000_000, Cause.LAUNCH_STARVED, "inside a box"))
    return pipeline(boxes, gaps)


def panels_of(given: RunPipeline) -> list[Panel]:
    return recorded(given.ranks, [run.ranges for run in given.runs], given.idle, given.steps)


CASES = {
    "4 x 8": lambda: simple(),
    "8 x 32": lambda: simple(8, 32),
    "steps": lambda: simple(steps=3),
    "chunks": lambda: simple(chunks=2),
    "I and W": lambda: simple(split_backward=True),
    "delay": lambda: simple(transfer_ns=500_000),
    "one rank": lambda: simple(1, 1),
    "16 x 128": lambda: simple(16, 128),
    "causes": all_causes,
}


@pytest.fixture(params=list(CASES), scope="module")
def run(request: pytest.FixtureRequest) -> tuple[RunPipeline, Drawn]:
    made = CASES[request.param]()
    return made, Drawn(encode(made))


def test_areas_are_times(run: tuple[RunPipeline, Drawn]) -> None:
    """Widths, and areas of what shares a pixel, sum up to the ns of each phase and each cause on every row."""
    made, drawn = run
    panels = panels_of(made)
    assert len(drawn.rows) == sum(len(p.labels) for p in panels)
    whole = max(int(p.marks.end_ns.max()) for p in panels)
    per_pixel = whole / drawn.width()
    at = 0
    for panel in panels:
        for row in range(len(panel.labels)):
            truth: Counter[str] = Counter()
            inside = panel.marks
            for r, look, start, end, high in zip(
                inside.row, inside.look, inside.start_ns, inside.end_ns, panel.height, strict=True
            ):
                if look < FIRST_CAUSE:
                    truth[name_of(Pass(look))] += int(end - start) * (r == row)
                elif r == row:
                    truth[f"c{look - FIRST_CAUSE}"] += float(end - start) * high
            areas, items = drawn.areas(at), int(np.count_nonzero(inside.row == row))
            for name, ns in truth.items():
                assert areas.get(name, 0) == pytest.approx(ns / per_pixel, abs=0.011 * items), (row, name)
            at += 1


def test_boxes_and_bubbles_are_counted() -> None:
    drawn = Drawn(encode(simple()))
    assert (drawn.count(Pass.F), drawn.count(Pass.B), drawn.count(Pass.OPT)) == (32, 32, 4)
    made = simple()
    for cause in OF_STAGES:
        assert drawn.count(cause) == int(np.count_nonzero(made.idle.cause == cause))
    assert sorted(Counter(drawn.numbers()).items()) == sorted(
        [*((f"{p}{k}", 4) for p in "FB" for k in range(8)), ("OPT", 4)]
    )


def test_rectangles_lie_where_their_times_say() -> None:
    drawn, made = Drawn(encode(simple())), simple()
    ranges = made.runs[2].ranges
    per_pixel = (ranges.end_ns.max() - made.steps[0].start_ns) / drawn.width()
    boxes = [r for r in drawn.own(2) if (r.get("class") or "").startswith("p")]
    for rect, start, end in zip(
        boxes, ranges.start_ns - made.steps[0].start_ns, ranges.end_ns - made.steps[0].start_ns, strict=True
    ):
        assert float(rect.get("x", "")) == pytest.approx(start / per_pixel, abs=0.006)
        assert float(rect.get("x", "")) + float(rect.get("width", "")) == pytest.approx(end / per_pixel, abs=0.016)


def test_each_cause_has_its_pattern_and_its_legend_entry() -> None:
    made = all_causes()
    data = encode(made)
    drawn, text = Drawn(data), data.decode()
    legend = next(g for g in drawn.root.findall(f"{SVG}g") if g not in drawn.rows and g.get("transform"))
    shown = [r.get("class") for r in legend.findall(f"{SVG}rect")]
    named = [(t.text or "").split()[0] for t in legend.findall(f"{SVG}text")]
    totals = Counter[Cause]()
    for cause, start, end in zip(made.idle.cause, made.idle.start_ns, made.idle.end_ns, strict=True):
        totals[Cause(cause)] += int(end - start)
    assert set(totals) == set(OF_STAGES)
    for cause in OF_STAGES:
        assert f'id="h{cause.value}"' in text
        assert named[shown.index(name_of(cause))] == cause.name.lower()
        assert f"{cause.name.lower()} {records.time(totals[cause])}" in drawn.text
    assert {"p0", "p1", "p4"} <= set(shown)
    assert not {"p2", "p3"} & set(shown)


def test_unknown_has_its_entry_even_where_there_is_none() -> None:
    assert "unknown 0 ns (0.0 %)" in Drawn(encode(simple())).text


def test_tooltips_tell_all() -> None:
    tips = Drawn(encode(simple(chunks=2))).tips()
    assert any(
        t.startswith("F, microbatch 3, stage 5, chunk 1\nrank 1: stages 1, 5\nstarts at ") and "range: by hand" in t
        for t in tips
    )
    tips = Drawn(encode(all_causes())).tips()
    assert any(
        re.fullmatch(r"straggler_wait\nstage 0\nstarts at [\d.]+ ms, takes [\d.]+ ms\nkernel <STRAGGLER_WAIT> & co", t)
        for t in tips
    )
    assert any("launch_starved" in t and "inside a box" in t for t in tips)


def test_what_lies_inside_a_box_leaves_the_box_to_be_seen() -> None:
    drawn = Drawn(encode(all_causes()))
    (strip,) = [r for r in drawn.own(1) if r.get("class") == name_of(Cause.LAUNCH_STARVED)]
    box = next(r for r in drawn.own(1) if (r.get("class") or "").startswith("p"))
    assert float(strip.get("height", "")) < 0.35 * float(box.get("height", ""))
    order = list(drawn.rows[1].iter(f"{SVG}rect"))
    assert order.index(box) < order.index(strip)


@pytest.mark.parametrize("where", ["rule", "evidence", "nearest"])
def test_no_name_breaks_the_picture(where: str) -> None:
    boxes = played(one_f_one_b(2, 2), EQUAL)
    gaps = [[replace(g, evidence=ODD if where == "evidence" else "") for g in mine] for mine in gaps_of(boxes)]
    made = pipeline(boxes, gaps, rules=(ODD if where == "rule" else "",))
    data = encode(replace(made, nearest=ODD) if where == "nearest" else made)
    drawn = Drawn(data)
    said = " ".join(drawn.tips()) + drawn.text
    assert "<script>alert('&\"')</script>" in said
    assert "\\x00\\x01\\x1b[31m\\x7f\\x85\\u202e\\ufffe\\ud800]]>\U0001f600" in said
    assert b"<script" not in data
    assert not [c for c in data.decode() if ord(c) < 32 and c != "\n"]


@given(st.text(max_size=400))
@settings(max_examples=settings().max_examples, deadline=None)
def test_any_text_is_xml(text: str) -> None:
    element = ElementTree.fromstring(f'<a b="{xml(text)}">{xml(text)}</a>'.encode())
    said = element.text or ""
    assert said == element.get("b", "")
    if text.isprintable() and len(text) <= 300:
        assert said == text


def test_long_names_are_cut_in_the_middle() -> None:
    assert xml("a" * 5000 + "end").endswith("aend")
    assert len(xml("<" * 5000)) <= 4 * 310


SIZES = [(4, 8), (8, 32), (16, 64), (64, 64)]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_numbers_leave_when_boxes_get_small(p: int, m: int) -> None:
    drawn = Drawn(encode(simple(p, m)))
    numbers = drawn.numbers()
    assert bool(numbers) == (p < 64)
    fonts = [
        float(g.get("font-size", "")) for row in drawn.rows for g in row if (g.get("class") or "").startswith("m x")
    ]
    assert all(size >= 8 for size in fonts)
    rows = drawn.rows[0]
    for group in [g for g in rows if (g.get("class") or "").startswith("m x")]:
        boxes = [r for r in drawn.own(0) if r.get("class") == (group.get("class") or "").split()[-1]]
        least = min(float(r.get("width", "")) for r in boxes)
        assert max(len(t.text or "") for t in group) * 0.62 * float(group.get("font-size", "")) <= least + 1


def test_the_largest_is_quick_and_small() -> None:
    made = simple(64, 512)
    begin = time.process_time()
    data = encode(made)
    assert time.process_time() - begin < 10
    assert len(data) < 6_000_000
    drawn = Drawn(data)
    assert len(drawn.rows) == 64
    whole = made.runs[0].ranges.end_ns.max() - made.steps[0].start_ns
    for row in (0, 31, 63):
        areas = drawn.areas(row)
        assert areas["p0"] == pytest.approx(512 * 1_000_000 / whole * drawn.width(), rel=0.01)
        assert areas["p1"] == pytest.approx(512 * 2_000_000 / whole * drawn.width(), rel=0.01)
    assert (
        sum("microbatch" not in t and " x F of " in t for t in drawn.tips()) > 1000
    )  # tooltips of what has no room of its own


def test_bubbles_without_number_stay_within_some_megabytes() -> None:
    """More idle intervals than pixels: they share them."""
    boxes = played(one_f_one_b(8, 64), EQUAL)
    rng = np.random.default_rng(5)
    gaps = [
        [
            Gap(int(s), int(s) + 200, Cause(int(c)), "x")
            for s, c in zip(
                np.sort(rng.choice(200_000, 20_000, False)) * 1000 + b[0].start_ns,
                rng.integers(3, 5, 20_000),
                strict=True,
            )
        ]
        for b in boxes
    ]
    made = pipeline(boxes, gaps)
    data = encode(made)
    assert len(data) < 6_000_000
    drawn = Drawn(data)
    assert sum(drawn.areas(0)[f"c{c}"] for c in (3, 4)) > 0


def test_wide_as_needed_and_no_wider() -> None:
    widths = [Drawn(encode(simple(p, m))).width() for p, m in SIZES]
    assert widths == sorted(widths)
    assert 800 <= widths[0] < widths[-1] <= 2600
    assert {float(Drawn(encode(simple(p, m))).root.get("height", "")) < 1200 for p, m in SIZES} == {True}


def test_theory_stands_above_measured_on_one_axis() -> None:
    made = simple(transfer_ns=1_000_000)
    flat = [b for mine in played(one_f_one_b(4, 8), EQUAL) for b in mine]
    theory = computed("theory", tuple(f"stage {k}" for k in range(4)), boxes_of(flat))
    assert theory.makespan_ns == 33_000_000
    drawn = Drawn(picture(bubbles.summarised(made), [theory, *panels_of(made)]))
    assert len(drawn.rows) == 8
    above, below = drawn.areas(0), drawn.areas(4)
    assert above["p0"] == pytest.approx(below["p0"], abs=0.1)
    assert above[name_of(Cause.DEPENDENCY_STALL)] < below[name_of(Cause.DEPENDENCY_STALL)]
    assert len([g for g in drawn.root.findall(f"{SVG}g") if g.get("class") == "m d"]) == 1


def boxes_of(flat: list[Box]) -> Marks:
    names = ("stage", "phase", "start_ns", "end_ns", "stage", "chunk", "microbatch")
    columns = [np.array([getattr(b, name) for b in flat], np.int64) for name in names]
    return Marks(*columns, np.zeros(len(flat), np.int64), ("",))


@pytest.mark.parametrize("orders", [one_f_one_b(4, 8), one_f_one_b(3, 2), interleaved(4, 8, 2)])
def test_what_a_computed_schedule_leaves_free(orders: list) -> None:
    by_rank = played(orders, EQUAL, 300_000, start_ns=77)
    flat = [replace(b, stage=r) for r, mine in enumerate(by_rank) for b in mine]
    gaps = computed("theory", tuple(map(str, range(len(orders)))), boxes_of(flat)).marks
    gaps = take(gaps, ~gaps.is_box)
    plain = [(r, g.start_ns - 77, g.end_ns - 77, g.cause) for r, mine in enumerate(gaps_of(by_rank)) for g in mine]
    found = zip(
        gaps.row.tolist(),
        gaps.start_ns.tolist(),
        gaps.end_ns.tolist(),
        map(Cause, (gaps.look - FIRST_CAUSE).tolist()),
        strict=True,
    )
    assert sorted(found) == sorted(plain)


def test_nothing_to_draw() -> None:
    assert Drawn(encode(replace(simple(), steps=()))).rows == []
    empty = computed("none", ("a", "b"), boxes_of([]))
    assert len(Drawn(picture(bubbles.summarised(simple()), [empty])).rows) == 2


def test_of_many_steps_three_are_drawn_and_the_rest_is_said() -> None:
    made = simple(2, 2, steps=7)
    drawn = Drawn(encode(made))
    assert len(drawn.rows) == 3 * 2
    for word in ("shortest of 7", "median of 7", "longest of 7"):
        assert word in drawn.text


def test_ranges_of_no_step_are_said() -> None:
    boxes = [
        [Box(Pass.F, 0, 0, 0, 10), Box(Pass.B, 0, 0, 10, 30), Box(Pass.OPT, NOWHERE, NOWHERE, 40, 50, NOWHERE, NOWHERE)]
    ]
    assert "not drawn: 1 ranges of no known step" in Drawn(encode(pipeline(boxes))).text


def test_from_the_file_the_same_picture_as_from_the_records(tmp_path) -> None:
    made = all_causes()
    path = tmp_path / output_names.BUBBLES
    path.write_bytes(b"".join(bubbles.blocks(made)))
    file = bubbles.load(path)
    panels = recorded([s.rank for s in file.stages], bubbles.ranges_of(file), bubbles.idle_of(file), file.steps)
    assert picture(file.pipeline, panels) == encode(made)


def test_boxes_at_the_same_time_share_the_row() -> None:
    boxes = [
        Box(Pass.F, 0, 0, 0, 100),
        Box(Pass.B, 0, 0, 50, 150),
        Box(Pass.F, 0, 1, 150, 250),
        Box(Pass.B, 0, 1, 248, 350),
    ]
    panel = computed("", ("a",), boxes_of(boxes))
    boxed = [(int(panel.marks.start_ns[i]), panel.top[i], panel.height[i]) for i in np.flatnonzero(panel.marks.is_box)]
    assert boxed == [(0, 0, 0.5), (50, 0.5, 0.5), (150, 0, 1), (248, 0, 1)]  # two ns in common are no reason


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20)), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 20)), max_size=12),
)
@settings(max_examples=settings().max_examples, deadline=None)
def test_which_gaps_lie_inside_a_box(boxes: list[tuple[int, int, int]], gaps: list[tuple[int, int, int]]) -> None:
    made = boxes_of([Box(Pass.F, r, 0, s, s + n) for r, s, n in boxes])
    row, start, length = (
        (np.array(c, np.int64) for c in zip(*gaps, strict=True)) if gaps else [np.zeros(0, np.int64)] * 3
    )
    which = np.arange(len(row))
    free = Marks(row, FIRST_CAUSE + row, start, start + length, which, which, which, np.zeros_like(row), ())
    panel = arranged("", ("a", "b", "c"), 0, 0, concat(made, free))
    marks = panel.marks
    found = {
        int(k): bool(layer == 2)
        for k, layer, is_box in zip(marks.microbatch, panel.layer, marks.is_box, strict=True)
        if not is_box
    }
    plain = {i: any(a == r and s <= b and b + n <= s + k for r, s, k in boxes) for i, (a, b, n) in enumerate(gaps)}
    assert found == plain


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 2)), min_size=1, max_size=300), st.integers(0, 5))
def test_areas_stay_true_however_narrow(pieces: list[tuple[int, int]], wide: int) -> None:
    """Boxes of all widths one behind the other: most share pixels, the widest have their own."""
    at, flat = 0, []
    for k, (length, phase) in enumerate([*pieces, *[(200_000, 0)] * wide]):
        flat.append(Box(Pass(phase), 0, k, at, at + length))
        at += length
    drawn = Drawn(picture(bubbles.summarised(simple(1, 1)), [computed("", ("a",), boxes_of(flat))]))
    truth = Counter[str]()
    for b in flat:
        truth[name_of(b.phase)] += b.end_ns - b.start_ns
    areas = drawn.areas(0)
    for name, ns in truth.items():
        assert areas[name] == pytest.approx(ns / at * drawn.width(), abs=0.02 * len(flat) + 0.01)
    assert sum(areas.values()) == pytest.approx(drawn.width(), abs=0.02 * len(flat) + 0.01)


def test_thousands_of_boxes_share_pixels_where_they_are() -> None:
    flat = [Box(Pass(k % 2), 0, k, 50 * k, 50 * k + (20 if k % 2 else 50)) for k in range(20_000)]
    drawn = Drawn(picture(bubbles.summarised(simple(1, 1)), [computed("", ("a",), boxes_of(flat))]))
    areas, half = drawn.areas(0), drawn.width() / 2
    assert areas["p0"] == pytest.approx(half, rel=0.005)
    assert areas["p1"] == pytest.approx(half * 0.4, rel=0.005)
    assert areas[name_of(Cause.DEPENDENCY_STALL)] == pytest.approx(half * 0.6, rel=0.005)
    shapes = re.findall(
        r"M([\d.]+) [\d.]+h([\d.]+)v", " ".join(p.get("d", "") for p in drawn.rows[0].findall(f"{SVG}path"))
    )
    assert max(float(wide) for _, wide in shapes) <= 2.01
    assert len({x for x, _ in shapes}) > 0.9 * drawn.width()


def test_what_begins_before_the_step_lies_left_of_zero() -> None:
    boxes = [[Box(Pass.OPT, NOWHERE, NOWHERE, 0, 300), Box(Pass.F, 0, 0, 500, 800), Box(Pass.B, 0, 0, 800, 1500)]]
    drawn = Drawn(encode(pipeline(boxes, [[]])))
    first = next(r for r in drawn.own(0) if r.get("class") == "p0")
    assert float(next(r for r in drawn.own(0) if r.get("class") == "p4").get("x", "")) == 0
    (axis,) = [g for g in drawn.root.findall(f"{SVG}g") if g.get("class") == "m d"]
    zero = next(float(t.get("x", "")) for t in axis if t.text == "0")
    left = float((drawn.rows[0].get("transform") or "").removeprefix("translate(").split(",")[0])
    assert zero - left == pytest.approx(float(first.get("x", "")), abs=0.06)


def test_numbers_of_a_phase_are_there_or_not() -> None:
    """Not only those of one digit."""
    drawn = Drawn(encode(simple(16, 64)))
    assert set(drawn.numbers()) == {str(k) for k in range(64)}
    assert Counter(drawn.numbers())["5"] == Counter(drawn.numbers())["55"] == 16


def test_ticks_are_round_and_in_a_unit_that_fits() -> None:
    for scale, unit in ((1, "ns"), (1000, "us"), (10**6, "ms"), (10**9, "s")):
        boxes = [[Box(Pass.F, 0, 0, 0, 37 * scale), Box(Pass.B, 0, 0, 37 * scale, 91 * scale)]]
        drawn = Drawn(encode(pipeline(boxes)))
        (axis,) = [g for g in drawn.root.findall(f"{SVG}g") if g.get("class") == "m d"]
        *ticks, what = [t.text or "" for t in axis]
        assert ticks == [str(k) for k in range(0, 91, 20)] or ticks == [str(k) for k in range(0, 91, 10)]
        assert what.startswith(f"{unit} from")


def test_names_of_rows() -> None:
    assert row_label(2, np.array([2, 2, NOWHERE])) == "stage 2"
    assert row_label(8, np.array([2])) == "rank 8: stage 2"
    assert row_label(1, np.array([1, 5])) == "rank 1: stages 1, 5"
    assert row_label(0, np.arange(0, 32, 4)) == "rank 0: stages 0, 4, 8, 12, ..."
    assert row_label(3, np.array([NOWHERE])) == "rank 3"


def test_it_is_light_and_dark() -> None:
    text = encode(all_causes()).decode()
    assert text.count("@media(prefers-color-scheme:dark)") == 1
    dark = text[text.index("@media") :]
    assert all(f".a{c.value}{{" in dark for c in OF_STAGES)
    assert ".bg{" in dark


# Machado, Oliveira, Fernandes 2009, severity 1: linear RGB of who sees no red, no green, no blue
VISION = {
    "full": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour: str, vision: str) -> np.ndarray:
    """CIE Lab (D65) of an sRGB colour as somebody sees it."""
    encoded = np.array(list(bytes.fromhex(colour[1:]))) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    x, y, z = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ seen
        / [0.9505, 1, 1.089]
    )
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", list(VISION))
def test_phases_are_told_apart_by_everybody(vision: str) -> None:
    for one, other in itertools.combinations(FILL.values(), 2):
        assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > 20, (one, other)


def test_causes_are_told_apart_without_colour() -> None:
    assert set(HATCHES) == {cause.name.lower() for cause in OF_STAGES}
    assert len({h.path for h in HATCHES.values()}) == len(OF_STAGES)
    for cause, hatch in HATCHES.items():
        for tint, line in ((hatch.tint, hatch.line), (hatch.dark_tint, hatch.dark_line)):
            high, low = sorted((luminance(tint), luminance(line)), reverse=True)
            assert (high + 0.05) / (low + 0.05) > 1.9 or cause == "unknown", cause


def luminance(colour: str) -> float:
    """The relative luminance of an sRGB colour (WCAG 2.2), 0 to 1."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (b / 255 for b in bytes.fromhex(colour[1:]))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_on_a_phase_is_black_where_that_is_read_better() -> None:
    sheet = style(range(len(Pass)))
    for phase in Pass:
        ink = "#000" if luminance(FILL[phase]) > 0.179 else "#fff"
        assert f".x.p{phase.value}{{fill:{ink}}}" in sheet, phase


def test_milliseconds_are_exact() -> None:
    assert [milliseconds(n) for n in (0, 1, 1_000_000, 1_234_567_890, (1 << 60) + 7)] == [
        "0",
        "0.000001",
        "1",
        "1,234.56789",
        "1,152,921,504,606.846983",
    ]
