"""Programs with one trouble planted: it is advised first, with the gain that curing it has; and the same programs without
it, which advise nothing against it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import graphlink
from graphlink.advice.records import Advice, AdviceReport
from tests.advice.planted import Plan

POINTS: Final = 2  # between the gain that is promised and the true one, in per cent of the run
ADVISED: Final = 1  # per cent: less is no advice
KIND: Final = {
    "launches": "launch_bound",
    "item": "blocking_sync",
    "pageable": "copies",
    "loader": "data_loading",
    "layout": "layout_conversions",
    "contiguous": "layout_conversions",
    "slow kernel": "heaviest_work",
    "slow op": "heaviest_work",
    "late": "late_starts",
    "float32": "tensor_cores",
    "pointwise": "small_kernels",
    "pause": "python_pause",
    "collector": "python_pause",
    "checkpoint": "uneven_steps",
    "tuning": "uneven_steps",
    "optimizer": "optimizer",
    "throttled": "uneven_kernels",
    "shared": "uneven_kernels",
    "allocator": "allocator",
    "start": "once",
    "exposed": "exposed_communication",
    "buckets": "exposed_communication",
}
ALONE: Final = [name for name in KIND if KIND[name] != "exposed_communication"]
OF_RANKS: Final = [name for name in KIND if name not in ("start", "slow kernel", "float32")]
# as users meet them: on the CPU, small copies, an evaluation in between, an expert that more tokens come to
MORE: Final = {
    Plan("embedding", seed=300): "heaviest_work",
    Plan("labels", seed=301): "blocking_sync",
    Plan("evaluation", seed=302, ranks=2): "uneven_steps",
    Plan("expert", seed=303, ranks=2): "uneven_kernels",
    Plan("experts", seed=306, ranks=4): "uneven_kernels",
    Plan("unfused", seed=307): "optimizer",
    Plan("collectives", seed=304, ranks=2): "small_collectives",
    Plan("collectives", seed=305, ranks=4, size=0.7): "small_collectives",
}
OF_ONE_RANK: Final = ("slow rank", "pause", "loader", "slow op", "late", "pointwise", "allocator")


def planned() -> Iterator[Plan]:
    """Yield the programs: each trouble on one rank, on all of several, and on one of several, and some more."""
    for seed, name in enumerate(ALONE):
        yield Plan(name, seed=seed)
    for seed, name in enumerate(OF_RANKS, 100):
        yield Plan(name, ranks=(2, 2, 4, 2, 2, 8)[seed % 6], seed=seed, size=(1, 0.8, 1.4)[seed % 3])
    for seed, name in enumerate(OF_ONE_RANK, 200):
        for ranks in (2, 4, 8):
            yield Plan(name, ranks=ranks, seed=seed + ranks, on=(seed + ranks) % ranks)
    yield from MORE


PLANS: Final = [*planned()]
QUICK = [plan for plan in PLANS if plan.ranks == 1 or (plan.ranks == 2 and plan.on is not None)][:24]
QUICK += [plan for plan in MORE if plan.trouble in ("embedding", "expert", "experts", "unfused")]
QUICK += [plan for plan in MORE if plan.trouble == "collectives" and plan.ranks == 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@cache
def advised(plan: Plan, folder: Path) -> AdviceReport:
    here = folder / str(abs(hash(plan)))
    plan.write(here)
    options, alone = graphlink.Options(timeline="none"), graphlink.RunsOn(jobs=1)
    return graphlink.link(here, out=here / "out", options=options, runs_on=alone).advice()


def listed(report: AdviceReport) -> list[Advice]:
    """Return what is advised: what gains a hundredth, or has no gain that a replay tells."""
    return [one for one in report.advice if one.most_pct is None or one.most_pct >= ADVISED]


def name(plan: Plan) -> str:
    return f"{plan.trouble}-{plan.ranks}" + ("" if plan.on is None else f"-on-{plan.on}")


def test_there_are_sixty_and_more() -> None:
    assert len(PLANS) == 68 and len({*PLANS}) == 68


@pytest.mark.parametrize(
    "plan", [plan if plan in QUICK else pytest.param(plan, marks=pytest.mark.long) for plan in PLANS], ids=name
)
def test_what_is_planted_is_advised_first_with_its_gain(plan: Plan, folder: Path) -> None:
    kind = MORE.get(plan) or (KIND[plan.trouble] if plan.on is None else "straggler")
    told, twin = listed(advised(plan, folder)), listed(advised(plan.twin(), folder))
    if kind == "once":
        once = next(one for one in told if one.kind == kind)
        share = float(re.findall(r"\(([\d.]+) % of the path", once.evidence)[0])
        assert "aten::empty" in once.what and abs(share - plan.truth_pct()) <= POINTS
        assert told.index(once) == sum(one.gain_ns is not None for one in told) and told[0].gain_step_pct < 15
    else:
        first = told[0]
        print(f"{plan.truth_pct():7.2f} true", *((one.kind, one.gain_pct) for one in told))
        assert first.kind == kind
        assert first.gain_pct is not None and abs(first.gain_pct - plan.truth_pct()) <= POINTS
        words = {
            "embedding": "on the CPU: it launches nothing",
            "expert": "in each step other ranks have more to compute",
            "late": " late starts end idle time of ",
            "experts": "some kernels take longer in some steps, others beside them do not",
        }
        assert words.get(plan.trouble, "") in f"{first.what}; {first.evidence}"
        if kind == "heaviest_work":
            assert first.what not in [one.what for one in twin]
            return
    assert kind not in [one.kind for one in twin]
