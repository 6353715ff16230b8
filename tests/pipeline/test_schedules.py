"""The generated orders: against real recordings, the papers' figures, and what must hold of any."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from graphlink.pipeline.schedules import SCHEDULES, named, orders, simulate, stage_of, variants
from tests.pipeline.made import actions, even_times, possible, short

TRACES = Path(__file__).parents[3] / "shared/traces/pipelining-cpu"
SIZES = [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (1, 2, 3, 4, 5, 6, 8, 12, 16)]
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/traces")


@pytest.mark.parametrize(("schedule", "p", "m", "v"), list(possible(SIZES)))
def test_every_rank_runs_each_microbatch_once_through_its_chunks_and_nothing_waits_for_ever(
    schedule: str, p: int, m: int, v: int
) -> None:
    made = orders(schedule, p, m, v)
    directions = 2 if schedule == "DualPipe" else 1
    for rank, order in enumerate(made):
        ran = actions(order)
        for chunk in range(v):
            stage = stage_of(schedule, rank, chunk, p)
            each = range(m) if directions == 1 else range(chunk * m // 2, (chunk + 1) * m // 2)
            assert sorted(k for phase, s, k in ran if phase == "F" and s == stage) == list(each)
            assert sorted(k for phase, s, k in ran if phase in "BI" and s == stage) == list(each)
            assert sorted(k for phase, s, k in ran if phase == "W" and s == stage) == sorted(
                k for ph, s, k in ran if ph == "I" and s == stage
            )
        assert len({s for _, s, _ in ran}) == v
    times = even_times(p * v, 10, 7, 5)
    timed = simulate(made, times, None)
    assert all(timed.work_ns[0] == work for work in timed.work_ns)


@needs_traces
def test_interleaved_zb_is_what_torch_ran() -> None:
    for rank, order in enumerate(orders("interleaved-ZB", 4, 8, 2)):
        names = _names(TRACES / "interleaved-zb" / f"kineto_{rank}.json.gz")
        ran = [name[3:] for name in names if re.fullmatch(r"PP:\d+[FBIW]\d+", name)]
        assert len(ran) == 96
        assert ran == 2 * short(order).split()


@needs_traces
def test_1f1b_is_what_torch_ran() -> None:
    """No ranges there: four linear layers a stage, so four of their ops in a row are a forward, of their gradients a
    backward.
    """
    kinds = {"aten::linear": "F", "autograd::engine::evaluate_function: AddmmBackward0": "B"}
    for rank, order in enumerate(orders("1F1B", 4, 8)):
        layers = [kinds[name] for name in _names(TRACES / "1f1b" / f"kineto_{rank}.json.gz") if name in kinds]
        runs = [(kind, len(list(group))) for kind, group in groupby(layers)]
        assert all(count % 4 == 0 for _, count in runs)
        ran = "".join(kind * (count // 4) for kind, count in runs)
        assert ran == 2 * "".join(phase for phase, _, _ in actions(order))


def _names(path: Path) -> list[str]:
    """Of the host rows of a Kineto file, by start."""
    rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    host = [row for row in rows if row.get("ph") == "X" and row.get("cat") in ("cpu_op", "user_annotation")]
    return [row["name"] for row in sorted(host, key=lambda row: float(row["ts"]))]


def test_small_orders() -> None:
    assert short(orders("GPipe", 2, 3)[0]) == "0F0 0F1 0F2 0B0 0B1 0B2"
    assert short(orders("1F1B", 3, 4)[0]) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"
    assert short(orders("1F1B", 3, 4)[2]) == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"
    assert short(orders("interleaved", 2, 2, 2)[0]) == "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1"
    assert short(orders("interleaved", 2, 2, 2)[1]) == "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"
    assert short(orders("ZB-H1", 2, 3)[0]) == "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2"
    assert short(orders("ZB-H1", 2, 3)[1]) == "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"
    assert short(orders("ZB-H2", 2, 4)[0]) == "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3"
    assert short(orders("ZB-H2", 2, 4)[1]) == "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3"
    assert (
        short(orders("ZB-V", 2, 3, 2)[0]) == "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2"
    )
    assert (
        short(orders("ZB-V", 2, 3, 2)[1]) == "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2"
    )


def test_dualpipe_as_deepseeks_code_steps_through_it() -> None:
    """8 ranks, 20 microbatches; lower case is the pipeline from the other side, a pair is written with &."""
    made = orders("DualPipe", 8, 20, 2)

    def drawn(rank: int) -> str:
        near = rank if rank < 4 else 15 - rank
        words = [
            f"{phase if stage == near else phase.lower()}{k % 10}{'&' if pair else ' '}"
            for (phase, stage, k), pair in zip(actions(made[rank]), made[rank].paired, strict=True)
        ]
        return "".join(words).strip()

    assert drawn(0) == (
        "F0 F1 F2 F3 F4 F5 F6 f0 i0 w0 f1 i1 w1 f2 i2 w2 f3 F7&b3 f4&B0 F8&b4 f5&B1 F9&b5 f6&B2"
        " b6 f7&B3 b7 f8&B4 b8 f9&B5 b9 I6 W6 I7 W7 I8 W8 I9 W9"
    )
    assert drawn(3) == (
        "F0 f0 F1 f1 F2 f2 F3 f3 F4 b0 f4&B0 F5&b1 f5&B1 F6&b2 f6&B2 F7&b3 f7&B3 F8&b4 f8&B4 F9&b5 f9&B5"
        " b6 B6 b7 B7 i8 I8 i9 I9 w8 W8 w9 W9"
    )
    assert [drawn(7 - rank) for rank in range(8)] == [drawn(rank) for rank in range(8)]


@pytest.mark.parametrize("m", [8, 11])
def test_with_one_chunk_chunked_schedules_are_the_plain_ones(m: int) -> None:
    for chunked, one in (("interleaved", "1F1B"), ("interleaved-ZB", "ZB-H1")):
        if chunked == "interleaved" or m % (m // 4) == 0:
            assert [short(order) for order in orders(chunked, 4, m, 1)] == [short(order) for order in orders(one, 4, m)]


def test_variants_begin_with_the_order_itself_and_hold_the_same_actions() -> None:
    count: Counter[str] = Counter()
    for schedule, p, m, v in possible(SIZES):
        first, *others = variants(schedule, p, m, v)
        assert [short(order) for order in first] == [short(order) for order in orders(schedule, p, m, v)]
        for other in others:
            assert [sorted(actions(order)) for order in other] == [sorted(actions(order)) for order in first]
            simulate(other, even_times(p * v, 1, 1, 1))
        count[schedule] += bool(others)
    assert set(count) - {name for name, k in count.items() if not k} == {"GPipe", "interleaved"}


def test_interleaved_in_groups_that_are_no_multiple_exists_as_a_variant_only() -> None:
    with pytest.raises(ValueError, match="multiple of its 4 stages"):
        orders("interleaved", 4, 10, 2)
    (made,) = variants("interleaved", 4, 10, 2)
    assert short(made[3]).startswith("3F0 3F1 3F2 3F3 3F4 7F0 7B0 7F1")
    simulate(made, even_times(8, 1, 1, 1))
    assert not list(variants("interleaved", 4, 11, 2))


def test_virtual_stages() -> None:
    assert [[stage_of("interleaved", rank, chunk, 4) for rank in range(4)] for chunk in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    for schedule in ("ZB-V", "DualPipe"):
        assert [[stage_of(schedule, rank, chunk, 4) for rank in range(4)] for chunk in range(2)] == [
            [0, 1, 2, 3],
            [7, 6, 5, 4],
        ]


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "why"),
    [
        ("1F1B", 4, 8, 2, "one chunk"),
        ("ZB-V", 4, 8, 1, "two chunks"),
        ("DualPipe", 3, 8, 2, "even number of stages"),
        ("DualPipe", 4, 9, 2, "even number of microbatches"),
        ("DualPipe", 4, 6, 2, "at least twice"),
        ("interleaved-ZB", 4, 11, 2, "2 rounds, which do not divide 11"),
        ("GPipe", 0, 8, 1, "at least one"),
        ("1f1b", 4, 8, 1, "there is no schedule '1f1b'; there are GPipe, 1F1B"),
    ],
)
def test_impossible_numbers_are_refused_in_words(schedule: str, p: int, m: int, v: int, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        orders(schedule, p, m, v)


def test_names_in_any_case() -> None:
    assert [named(name.upper()) for name in SCHEDULES] == list(SCHEDULES)
    assert named(" zb-h1 ") == "ZB-H1"
    with pytest.raises(ValueError, match="there is no schedule 'zb-h3'"):
        named("zb-h3")


def test_columns_have_the_types_of_the_record() -> None:
    for schedule, p, m, v in possible([(4, 8)]):
        for order in orders(schedule, p, m, v):
            assert (order.phase.dtype, order.stage.dtype, order.microbatch.dtype) == (np.uint8, np.int64, np.int64)
            assert len(order.phase) == len(order.stage) == len(order.microbatch) == len(order.paired)
