from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.linking.commtypes import CollectiveType
from graphlink.model import NOWHERE
from graphlink.ranks.clock_bounds import rooms
from graphlink.ranks.clock_fit import Fit, solved
from graphlink.ranks.clock_ties import MOST, Affine, Ties, components, lines, pairs_of, ties
from graphlink.ranks.clocks import clocks
from graphlink.ranks.records import AlignedClock
from tests.ranks.true_runs import EPOCH_NS, MS, US, Meet, Off, S, Simulated, offs, training

TRACES = Path(__file__).parents[3] / "shared" / "traces"
WITHIN_NS = 5 * US


def chain(ranks: int) -> list[tuple[int, int]]:
    return [(r, r + 1) for r in range(ranks - 1)]


def grid(rows: int, columns: int) -> list[tuple[int, ...]]:
    """Tensor groups along rows, data groups along columns."""
    tensor = [tuple(range(columns * k, columns * (k + 1))) for k in range(rows)]
    return tensor + [tuple(range(k, rows * columns, columns)) for k in range(columns)]


LAYOUTS = {
    "two": (2, [(0, 1)], [], 40),
    "data": (8, [tuple(range(8))], [], 40),
    "tensor and data": (16, grid(4, 4), [], 40),
    "tensor and data, 64": (64, grid(8, 8), [], 40),
    "pipeline": (8, [], chain(8), 40),
    "pipeline, 64": (64, [], chain(64), 300),
    "tensor and pipeline": (16, grid(4, 4)[:4], [(r, r + 4) for r in range(12)], 40),
    "experts": (16, [*grid(4, 4)[4:], (0, 5, 10, 15), (1, 4, 11, 14), (2, 7, 8, 13), (3, 6, 9, 12)], [], 40),
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_clocks_are_found_with_a_tenth_of_the_meetings_wrong(layout: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world, groups, messages, count = LAYOUTS[layout]
    true = Simulated(world, training(rng, groups, messages, count=count, wrong=0.1), offs(rng, world))
    found = clocks(*true.record())
    assert all(c.known for c in found.clocks)
    assert true.error_ns(found.clocks) <= WITHIN_NS
    assert found.residual_ns <= WITHIN_NS


@given(
    seed=st.integers(0, 1 << 30),
    layout=st.sampled_from(["two", "data", "tensor and data", "tensor and pipeline", "experts"]),
    span_ns=st.sampled_from([20 * MS, S // 2, 10 * S, 300 * S]),
    per=st.sampled_from([1, 4]),
    missing=st.sets(st.integers(1, 15), max_size=2),
    resolution_ns=st.sampled_from([1, 1_000]),
    wrong=st.sampled_from([0.0, 0.1]),
)
def test_clocks_are_found(
    seed: int, layout: str, span_ns: int, per: int, missing: set[int], resolution_ns: int, wrong: float
) -> None:
    rng = np.random.default_rng(seed)
    world, groups, messages, _ = LAYOUTS[layout]
    missing = {r for r in missing if r < world} if world > 2 else set()
    meets = training(rng, groups, messages, count=100, span_ns=span_ns, wrong=wrong)
    true = Simulated(world, meets, offs(rng, world, per=per), missing=frozenset(missing), resolution_ns=resolution_ns)
    found = clocks(*true.record())
    known = [c for c in found.clocks if c.known]
    assert len(known) == world - len(missing)
    assert true.error_ns(known) <= WITHIN_NS


def test_recordings_of_different_spans_do_not_matter() -> None:
    rng = np.random.default_rng(5)
    true = Simulated(
        4, training(rng, [(0, 1, 2, 3)], count=200), offs(rng, 4), began_ns={2: -3 * S}, ended_ns={1: 3 * S}
    )
    assert true.error_ns(clocks(*true.record()).clocks) <= WITHIN_NS


@pytest.mark.parametrize("where", ["first fifth", "all over"])
def test_a_fifth_of_the_meetings_may_be_wrong_by_anything(where: str) -> None:
    rng = np.random.default_rng(6)
    meets = sorted(training(rng, [(0, 1, 2, 3)], count=100), key=lambda m: m.start_ns)
    wrong = range(20) if where == "first fifth" else range(0, 100, 5)
    for k in wrong:  # two members saw another one, at any time of the recording
        far = int(rng.integers(0, 2 * S)) - meets[k].start_ns[0]
        meets[k] = replace(meets[k], end_ns=tuple(e + far * (r in (1, 3)) for r, e in enumerate(meets[k].end_ns)))
    true = Simulated(4, meets, offs(rng, 4))
    assert true.error_ns(clocks(*true.record()).clocks) <= WITHIN_NS


def test_ranks_of_a_host_share_one_clock_and_are_fitted_together() -> None:
    rng = np.random.default_rng(7)
    true = Simulated(16, training(rng, grid(4, 4)), offs(rng, 16, per=4), {r: f"node{r // 4}" for r in range(16)})
    found = clocks(*true.record())
    assert [c.shares for c in found.clocks] == [r // 4 * 4 for r in range(16)]
    assert [(c.offset_ns, c.drift) for c in found.clocks[:4]] == [(0, 0.0)] * 4
    assert all(len({(c.offset_ns, c.drift, c.from_ns) for c in found.clocks[k : k + 4]}) == 1 for k in range(0, 16, 4))
    assert found.warnings == ()


def test_ranks_with_equal_clocks_keep_the_recorded_times() -> None:
    true = Simulated(8, training(np.random.default_rng(8), [tuple(range(8))]))
    found = clocks(*true.record())
    assert {(c.offset_ns, c.drift, c.shares, c.known) for c in found.clocks} == {(0, 0.0, 0, True)}


@pytest.mark.parametrize(("count", "least_ns"), [(1, 7 * US), (3, 7 * US), (40, US)])
def test_few_meetings_make_the_tolerance_no_less_than_ends_differ_by(count: int, least_ns: int) -> None:
    true = Simulated(2, training(np.random.default_rng(20), [(0, 1)], count=count), {1: Off(5 * MS)})
    found = clocks(*true.record())
    assert least_ns <= found.residual_ns <= 7 * US
    assert true.error_ns(found.clocks) <= found.residual_ns


def test_a_host_whose_ranks_disagree_is_told() -> None:
    rng = np.random.default_rng(9)
    true = Simulated(4, training(rng, [(0, 1, 2, 3)]), {3: Off(70 * US)}, dict.fromkeys(range(4), "a"))
    found = clocks(*true.record())
    assert [c.shares for c in found.clocks] == [0, 0, 0, 3]
    assert abs(found.clocks[3].offset_ns + 70 * US) <= 2 * US
    (warning,) = found.warnings
    assert warning.startswith("the ranks of host a have 2 clocks, up to ")
    assert warning.endswith("(ranks 0, 1, 2; 3)")


def test_what_nothing_ties_is_unknown_and_named() -> None:
    rng = np.random.default_rng(10)
    true = Simulated(6, training(rng, [(1, 2, 3), (4, 5)]), offs(rng, 6))
    found = clocks(*true.record())
    assert [c.known for c in found.clocks] == [False, True, True, True, False, False]
    assert (found.clocks[0].offset_ns, found.clocks[1].offset_ns, found.clocks[4].offset_ns) == (0, 0, 0)
    (warning,) = found.warnings
    assert (
        warning == "nothing connects the clocks of ranks 0, 4, 5 with that of rank 1: their times cannot be compared "
        "with those of the others"
    )
    assert true.error_ns(found.clocks[1:4]) <= WITHIN_NS
    assert true.error_ns(found.clocks[4:]) <= WITHIN_NS  # to each other they are known


@pytest.mark.parametrize("ranks", [1, 3])
def test_without_meetings_clocks_are_as_recorded(ranks: int) -> None:
    found = clocks(*Simulated(ranks, [], {1: Off(5 * MS)}).record())
    assert [(c.offset_ns, c.known) for c in found.clocks] == [(0, r == 0) for r in range(ranks)]
    assert found.warnings == (), "nothing is compared"
    assert clocks((), Simulated(1, []).record()[1]).clocks == ()


def broadcasts(rng: np.random.Generator, ranks: tuple[int, ...], early_ns: int, count: int) -> list[Meet]:
    meets = [replace(m, type=CollectiveType.BROADCAST) for m in training(rng, [ranks], count=count)]
    return [replace(m, end_ns=(m.end_ns[0] - early_ns, *m.end_ns[1:])) for m in meets]


def test_rooted_collectives_count_only_where_nothing_else_ties() -> None:
    rng = np.random.default_rng(11)
    all_reduces = training(rng, [(0, 1)], count=30)
    early = broadcasts(rng, (0, 1), 100 * US, 300)
    true = Simulated(2, all_reduces + early, {1: Off(3 * MS)})
    assert true.error_ns(clocks(*true.record()).clocks) <= 2 * US
    alone = Simulated(2, broadcasts(rng, (0, 1), 0, 300), {1: Off(3 * MS)})
    assert alone.error_ns(clocks(*alone.record()).clocks) <= 2 * US


def test_drift_that_the_data_do_not_tell_is_none() -> None:
    rng = np.random.default_rng(12)
    true = Simulated(2, training(rng, [(0, 1)], count=6, span_ns=5 * MS), {1: Off(3 * MS, 20e-6)})
    found = clocks(*true.record())
    assert found.clocks[1].drift == 0.0
    assert true.error_ns(found.clocks) <= WITHIN_NS


def host_rows(rng: np.random.Generator, count: int) -> list[Meet]:
    """gloo: a send returns at once, a receive ends when somebody waits for it; a collective likewise."""
    meets = training(rng, [(0, 1, 2)], chain(3), count=count, late_ns=2 * MS, duration_ns=50 * US)
    late = [replace(m, end_ns=tuple(e + int(rng.integers(0, 3 * MS)) for e in m.end_ns), on_host=True) for m in meets]
    return [
        replace(
            m,
            end_ns=tuple(s + 9 if r == m.sender else e for r, s, e in zip(m.ranks, m.start_ns, m.end_ns, strict=True)),
        )
        for m in late
    ]


@pytest.mark.parametrize(("offset_ns", "hosts"), [(5 * US, ["", "", ""]), (40 * MS, ["a", "a", "a"])])
def test_host_rows_leave_clocks_alone_that_can_be_right(offset_ns: int, hosts: list[str]) -> None:
    true = Simulated(3, host_rows(np.random.default_rng(13), 50), {1: Off(offset_ns)}, dict(enumerate(hosts)))
    found = clocks(*true.record())
    assert [(c.offset_ns, c.known, c.residual_ns) for c in found.clocks] == [(0, True, 0)] * 3
    assert len(found.warnings) == (
        offset_ns > 10 * MS
    )  # of one machine the rows are wrong, not the clocks: told, not mended


@pytest.mark.parametrize("offset_ns", [-40 * MS, 40 * MS, 2 * MS])
def test_host_rows_shift_clocks_that_cannot_be_right_into_the_middle(offset_ns: int) -> None:
    true = Simulated(3, host_rows(np.random.default_rng(14), 200), {2: Off(offset_ns)})
    ranks, meetings = true.record()
    found = clocks(ranks, meetings)
    assert [c.offset_ns for c in found.clocks[:2]] == [0, 0]
    moved = found.clocks[2]
    assert moved.known
    assert abs(moved.offset_ns + offset_ns) <= moved.residual_ns <= MS
    assert found.residual_ns >= moved.residual_ns
    assert found.warnings[0].startswith(
        "clocks are shifted so that no receive or collective on the host ends before it can: rank 2 "
    )
    mapped = [
        np.concatenate([c.of(getattr(r, n)) for r, c in zip(ranks, found.clocks, strict=True)])
        for n in ("start_ns", "end_ns")
    ]
    assert rooms(ranks, meetings, *mapped).ns.min() >= 0


def test_what_cannot_be_is_counted_with_its_ranks() -> None:
    rng = np.random.default_rng(15)
    meets = training(rng, [(0, 1)], count=50)
    begun = meets[7].start_ns
    meets[7] = replace(meets[7], start_ns=(begun[0] - MS, begun[1]), end_ns=(begun[1] - 700 * US, meets[7].end_ns[1]))
    (warning,) = clocks(*Simulated(2, meets).record()).warnings
    assert warning.startswith("1 collectives end on one rank before another began, by up to 700.0 us (ranks 0 and 1)")


def test_room_is_what_a_loop_finds() -> None:
    rng = np.random.default_rng(16)
    meets = training(rng, [(0, 1, 2)], chain(3), wrong=0.5) + broadcasts(rng, (0, 1, 2), 5 * MS, 5) + host_rows(rng, 5)
    ranks, meetings = Simulated(3, meets).record()
    columns = [np.concatenate([getattr(r, n) for r in ranks]) for n in ("start_ns", "end_ns")]
    found = rooms(ranks, meetings, *columns)
    for m in range(len(meetings.kind)):
        mine = range(meetings.first[m], meetings.first[m + 1])
        starts = {int(meetings.rank[e]): int(ranks[meetings.rank[e]].start_ns[meetings.op[e]]) for e in mine}
        ends = {int(meetings.rank[e]): int(ranks[meetings.rank[e]].end_ns[meetings.op[e]]) for e in mine}
        if meetings.type[m] == CollectiveType.BROADCAST:
            assert found.ns[m] > 1 << 58
            continue
        if meetings.type[m] == NOWHERE:
            sender = next(
                int(meetings.rank[e]) for e in mine if ranks[meetings.rank[e]].kind[meetings.op[e]] == meetings.kind[m]
            )
            starts = {sender: starts[sender]}
            del ends[sender]
        assert found.ns[m] == min(ends.values()) - max(starts.values())
        assert starts[int(found.begun[m])] == max(starts.values())
        assert ends[int(found.ended[m])] == min(ends.values())


@given(
    st.integers(-(1 << 40), 1 << 40),
    st.floats(-1e-3, 1e-3),
    st.lists(st.integers(0, 1 << 40), min_size=2, max_size=20),
)
def test_onto_the_run_time_keeps_its_order(offset_ns: int, drift: float, since: list[int]) -> None:
    own = EPOCH_NS + np.sort(np.array([*since, *(s + 1 for s in since)]))
    clock = AlignedClock(offset_ns, drift, EPOCH_NS + (1 << 39), rank=1, residual_ns=0, shares=1, known=True)
    run = clock.of(own)
    assert run.dtype == np.int64
    assert (np.diff(run) >= 0).all()
    for a, b in zip(own.tolist(), run.tolist(), strict=True):
        assert b == a + offset_ns + round(drift * (a - clock.from_ns))


def test_many_meetings_are_thinned_evenly() -> None:
    ranks, meetings = Simulated(3, training(np.random.default_rng(17), [(0, 1, 2)], [(0, 1)], count=2_000)).record()
    found = ties(ranks, meetings)
    assert len(found.hub) == 3 * MOST  # two others of the group, and one message's other end
    taken = np.sort(found.other_ns[found.other == 2])
    assert np.abs(np.diff(taken)).max() < 20 * np.median(np.diff(taken))


def test_the_line_of_a_pair_is_that_of_plain_medians() -> None:
    rng = np.random.default_rng(18)
    n = 41
    other = np.sort(rng.uniform(-1e9, 1e9, n))
    hub = other * (1 + 1e-5) + 7e6 + rng.uniform(0, 3e3, n)
    line, _, _ = lines(
        Ties(np.arange(n), np.zeros(n, int), np.ones(n, int), hub, other),
        pairs_of(Ties(*(np.zeros(n, int),) * 2, np.ones(n, int), hub, other), 2),
    )
    y = hub - other
    slope = np.median([(y[k + n // 2] - y[k]) / (other[k + n // 2] - other[k]) for k in range(n - n // 2)])
    assert line.drift[0] == pytest.approx(slope, rel=1e-9)
    assert line.shift_ns[0] == pytest.approx(np.median(y - slope * other))


def test_conjugate_gradients_solve_what_a_dense_solver_does() -> None:
    rng = np.random.default_rng(19)
    ranks, meetings = Simulated(16, training(rng, grid(4, 4))).record()
    found = ties(ranks, meetings)
    pairs = pairs_of(found, 16)
    clock = Affine(rng.normal(0, 1e3, 16), np.zeros(16))
    sums = Fit(found, pairs, clock, np.full(len(found.hub), 1e3), 1e9, tukey=False)
    free = np.ones((2, 16))
    free[:, 0] = 0
    ridge = np.full((2, 1), 1e-12)
    right = rng.normal(0, 1, (2, 16)) * free
    basis = np.eye(32).reshape(32, 2, 16)
    dense = np.stack([(sums.times(b) + ridge * b).reshape(-1) for b in basis])
    use = np.flatnonzero(free.reshape(-1))
    expected = np.zeros(32)
    expected[use] = np.linalg.solve(dense[np.ix_(use, use)], right.reshape(-1)[use])
    assert np.allclose(
        solved(sums, right, free, ridge).reshape(-1), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()
    )


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20))
def test_components_are_those_of_a_plain_search(pairs: list[tuple[int, int]]) -> None:
    expected = list(range(12))
    for _ in range(12):
        for a, b in pairs:
            expected[a] = expected[b] = min(expected[a], expected[b])
    a, b = np.array(pairs, np.int64).reshape(-1, 2).T
    assert components(12, a, b).tolist() == expected


@pytest.mark.parametrize(("folder", "ranks", "resolution_ns"), [("megatron-tp2-v100", 2, 1), ("dlrm8-v100", 8, 1_000)])
def test_ranks_of_a_real_machine_share_its_clock(folder: str, ranks: int, resolution_ns: int) -> None:
    if not (TRACES / folder).is_dir():
        pytest.skip(f"{TRACES / folder} is not there")
    rows = []
    for rank in range(ranks):
        events = json.loads(gzip.decompress((TRACES / folder / f"kineto_{rank}.json.gz").read_bytes()))["traceEvents"]
        kernels = [e for e in events if str(e.get("cat", "")).lower() == "kernel" and "nccl" in e["name"].lower()]
        rows.append(sorted((round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in kernels))
    zero = rows[0][0][0]
    everyone = tuple(range(ranks))
    meets = [
        Meet((everyone, "0"), everyone, tuple(one[0] - zero for one in same), tuple(one[1] - zero for one in same))
        for same in zip(*rows, strict=True)
    ]
    found = clocks(
        *Simulated(ranks, meets, hosts=dict.fromkeys(everyone, "v100"), resolution_ns=resolution_ns).record()
    )
    assert {(c.offset_ns, c.drift, c.shares) for c in found.clocks} == {(0, 0.0, 0)}
    assert found.residual_ns <= 8 * US
    assert found.warnings == ()
