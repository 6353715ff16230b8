"""Bands of predictions: each part by hand, and how often the truth of a second, changed run is inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.bands import inside, predicted, table
from graphlink.cli import main
from graphlink.errors import InputError, UsageError
from graphlink.graph_model import EdgeKind
from graphlink.replay.band import (
    FLOOR,
    WEIGHT,
    Recorded,
    band,
    band_head,
    band_words,
    bare_steps_ns,
    recorded,
    unmeasured,
)
from graphlink.replay.changes import Changes, LoaderChange, changes_of
from graphlink.replay.machines import play_ideal
from graphlink.replay.path import critical_path
from graphlink.replay.records import Band, Span
from graphlink.replay.whatif import apply
from graphlink.replay.workload import Work
from graphlink.report.summary import ranks_of
from graphlink.student import quantile
from tests.replay.hand import GPU, N, load
from tests.simulator.second_runs import KINDS, OF_RANKS, second_run

H, L, S = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.SYNC


def chain(steps_us: Sequence[Sequence[int]], name: str = "op{}") -> list[N]:
    """Ops one after the other on the host; those of a step are named by their place."""
    nodes: list[N] = []
    at = 0
    for took in steps_us:
        for k, us in enumerate(took):
            nodes.append(
                N(len(nodes), us=us, name=name.format(k), deps=((len(nodes) - 1, H),) if nodes else (), start_us=at)
            )
            at += us
    return nodes


def found(nodes: Sequence[N], scale: str, steps_us: Sequence[int] = (), blocked: float = 0.0) -> Band:
    work = load(nodes)
    changes = changes_of([scale])
    changed = apply(work, changes, {}).work
    after = play_ideal(changed)
    told = {0: Recorded(np.array(steps_us, np.int64) * 1000, blocked)}
    return band(changes, work, changed, play_ideal(work).total_ns, after, critical_path(changed, after), told)


def half_width(
    variance_us: float, freedom: float, steps: float, ns: int, recorded: int = 0, runs: float = FLOOR[Work.HOST]
) -> float:
    """In ns: the difference of two runs of so many steps, which differ by ``runs`` of ``ns`` beside; ``recorded``: steps
    that tell of that."""
    own, between = steps * variance_us * 1e6, (runs * ns) ** 2
    free = (own + between) ** 2 / (own**2 / freedom + between**2 / (10 + max(recorded - 2, 0)))
    return float(quantile(0.95, free) * np.sqrt(2 * (own + between)))


def test_where_steps_are_alike_runs_differ_nevertheless() -> None:
    told = found(chain([(10, 20)] * 4), "host=0.5", [0, 30, 60, 90])
    assert told.run is not None and told.step is not None and told.steps == 4 and not told.why
    assert (told.run.ns, told.step.ns, told.between_runs_pct) == (60_000, 15_000, 3.0)
    assert told.run.high_ns - told.run.ns == told.run.ns - told.run.low_ns == round(half_width(0, 1, 1, 60_000, 4))


def test_other_runs_of_the_program_say_by_how_much_runs_differ() -> None:
    """The floor counts as one run beside them."""
    work = load(chain([(10, 20)] * 4))
    changes = changes_of(["host=0.5"])
    changed = apply(work, changes, {}).work
    after = play_ideal(changed)
    told = [
        band(
            changes,
            work,
            changed,
            120_000,
            after,
            critical_path(changed, after),
            {0: Recorded(np.arange(0, 120_000, 30_000), runs_ns=runs)},
        )
        for runs in ((30_000,), (30_000, 30_000, 30_000), (30_000, 33_000, 27_000))
    ]
    assert [each.between_runs_pct for each in told] == [
        3.0,
        1.732,
        pytest.approx(100 * np.sqrt((0.03**2 + 2 * 0.1**2) / 3), abs=0.001),
    ]


def test_steps_that_differ_say_it_too_but_not_by_work_that_is_in_some_alone() -> None:
    """Every third step evaluates, which is no disturbance of the machine."""
    steps = [30 + 6 * (k // 5) for k in range(21)]
    told = found(chain([(us,) for us in steps]), "host=1", np.cumsum([0, *steps[:-1]]).tolist())
    runs = np.std(steps[1:], ddof=1) / np.mean(steps[1:])
    assert told.between_runs_pct == pytest.approx(100 * np.sqrt((10 * 0.03**2 + 19 * runs**2) / 29), abs=0.001)
    assert msgspec.json.decode(msgspec.json.encode(told), type=Band) == told
    evaluates = [(30, 20) if k % 3 else (30, 20, 90) for k in range(21)]
    told = found(chain(evaluates), "host=1", np.cumsum([0, *map(sum, evaluates[:-1])]).tolist())
    assert told.between_runs_pct == 3.0


@pytest.mark.parametrize("mean_ns", [None, 0])
def test_a_run_without_steps_is_no_other_run(mean_ns: int | None) -> None:
    rank = SimpleNamespace(rank=0, replay=None, iterations=SimpleNamespace(mean_ns=5, bare_ns=3))
    other = SimpleNamespace(rank=0, iterations=SimpleNamespace(mean_ns=mean_ns))
    assert (recorded([rank], {"b": [rank]})[0].runs_ns, recorded([rank])[0].bare_ns) == ((5, 5), 3)
    ahead = SimpleNamespace(rank=0, replay=None, iterations=SimpleNamespace(mean_ns=5, bare_ns=3, on_device_ns=7))
    assert recorded([ahead])[0].runs_ns == (7,), "where the host ran ahead a step is as long as it is on the GPU"
    with pytest.raises(UsageError, match="--runs b: no mean step of rank 0 is known there"):
        recorded([rank], {"b": [other]})


def test_a_recording_is_no_other_run_of_itself() -> None:
    steps = [[SimpleNamespace(start_ns=at)] for at in (1, 1, 2, 2)]
    ranks = [
        SimpleNamespace(rank=0, replay=None, steps=own, iterations=SimpleNamespace(mean_ns=5, bare_ns=3))
        for own in steps
    ]
    assert recorded(ranks[:1], {"c": ranks[2:3]})[0].runs_ns == (5, 5)
    for others in ({"b": ranks[1:2]}, {"c": ranks[2:3], "d": ranks[3:]}):
        with pytest.raises(UsageError, match="is of a recording that counts already"):
            recorded(ranks[:1], others)


def test_a_bare_step_loses_what_ops_that_are_gone_cost_to_record() -> None:
    """Of 100 us 60 are of the recorder, 20 for each op; an op that is gone takes that and its own time along."""
    work = load(chain([(20, 30, 50)] * 4))
    still, records = play_ideal(work), {0: Recorded(np.arange(0, 400_000, 100_000), bare_ns=40_000)}
    for change in ("^op2$", "^op0$"):
        changed = apply(work, changes_of([f"host:{change}=0"]), {}).work
        after = play_ideal(changed)
        path, took = critical_path(changed, after), [100_000, after.total_ns / 4]
        assert bare_steps_ns((work, still), (changed, path), took, records) == [
            40_000.0,
            pytest.approx(max(took[1] - 40_000, 0)),
        ]
    assert bare_steps_ns((work, still), (work, critical_path(work, still)), [1, 1], {}) is None


def test_the_spread_is_that_of_steps_and_of_equal_nodes_after_the_first_step() -> None:
    steps = [(50, 90), (10, 20), (14, 16), (12, 24)]
    told = found(chain(steps), "host=2", np.cumsum([0, *map(sum, steps[:-1])]).tolist())
    of_steps = np.var([2 * sum(s) for s in steps[1:]], ddof=1)
    of_nodes = sum(np.var([2 * s[k] for s in steps[1:]], ddof=1) for k in (0, 1))
    joined = (WEIGHT * of_nodes + 2 * of_steps) / (WEIGHT + 2)
    took = np.array([sum(s) for s in steps[1:]])
    runs = float(np.sqrt((10 * FLOOR[Work.HOST] ** 2 + 2 * (took.std(ddof=1) / took.mean()) ** 2) / 12))
    assert told.run is not None and told.between_runs_pct == round(100 * runs, 3)
    assert (
        told.spread_ns
        == told.run.high_ns - told.run.ns
        == round(half_width(joined, WEIGHT + 2, 4, told.run.ns, 4, runs))
    )
    assert told.step is not None and told.step.ns == 64_000
    assert told.step.high_ns - told.step.ns == pytest.approx(
        half_width(joined, WEIGHT + 2, 1 / 3, 64_000, 4, runs), abs=1
    )


def test_two_steps_differ_as_their_nodes_do() -> None:
    told = found(chain([(10, 20), (14, 18)]), "host=1", [0, 30])
    assert told.spread_ns == round(half_width(8 + 2, WEIGHT, 2, 62_000)) and told.step is None


def test_one_step_differs_as_nodes_of_one_name_that_take_alike() -> None:
    """40 is more than 1.5 times 13, so it is work of another size."""
    told = found(chain([(10, 40, 13, 44, 12)], name="op"), "host=1", [0])
    assert told.spread_ns == round(
        half_width(3 * np.var([10, 13, 12], ddof=1) + 2 * np.var([40, 44], ddof=1), WEIGHT, 1, 119_000)
    )
    assert "nodes of one name differ, and runs by 3.0 %" in " ".join(band_words(told, 42_000, 42_000))
    (of_run, *_), (of_path, *_) = (band_words(told, 130_000, path_ns) for path_ns in (130_000, 65_000))
    assert "in place of" not in of_run and "critical path" not in of_run
    assert " ms in place of 0.130: " in of_path and of_path.endswith(" of the critical path")


def test_what_is_there_once_differs_as_the_rest() -> None:
    alike, once = (found(chain([(10, 12, *more)], name="op"), "host=1", [0]) for more in ((), (20,)))
    assert alike.spread_ns is not None and once.spread_ns == pytest.approx(alike.spread_ns * 42 / 22, abs=1)


@pytest.mark.parametrize(("steps", "why"), [([0], "one step"), ([], "no steps are marked")])
def test_without_anything_that_repeats_there_is_no_band(steps: list[int], why: str) -> None:
    told = found(chain([(10, 20, 30)]), "host=0.5", steps)
    assert told.run is None and told.step is None and told.spread_ns is None
    assert band_head(told) == "second run"
    assert band_words(told, 60_000, 60_000) == [
        f"{why}, and most of what takes its time is there once: record more steps"
    ]


@pytest.mark.parametrize(
    ("scale", "took_us", "why"),
    [
        ("host=0", (10, 12), "a bound, no prediction: a real change may leave some of it"),
        ("host=0.5", (10, 300), "steps differ, or time is unexplained, by as much as the run would take"),
    ],
)
def test_what_cannot_be_right_is_no_band(scale: str, took_us: tuple[int, int], why: str) -> None:
    told = found(chain([(us,) for us in (*took_us, *took_us)], name="op"), scale, np.cumsum([0, *took_us, took_us[0]]))
    assert told.run is None and told.step is None and band_words(told, 60_000, 60_000) == [why]


def test_steps_that_take_no_time_beside_work_of_the_first_have_a_band_without_width() -> None:
    nodes = [N(0, us=100, name="long", lane=2, start_us=0), N(1, us=5, start_us=10), N(2, us=5, start_us=20)]
    told = found(nodes, "host=0.9", [0, 10, 20])
    assert told.step == Span(ns=0, low_ns=0, high_ns=0) and told.run is not None and told.run.ns == 90_000


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"bandwidth_gb_per_s": 10.0}, "only about half were in the band"),
        ({"scale": ["delay=0.5"]}, "not yet compared with a second recording: predictions of start delays"),
    ],
)
def test_what_second_runs_did_not_bear_out_has_no_band(given: dict[str, Any], why: str) -> None:
    assert why in unmeasured(changes_of(**given)) and not unmeasured(changes_of(["comm=0.5"]))


def test_changes_that_were_not_measured_have_no_band() -> None:
    work = load(chain([(10, 20)] * 4))
    changes = Changes(dataloader=(LoaderChange(workers=2, recorded=1),))
    after = play_ideal(work)
    told = band(changes, work, work, after.total_ns, after, None, {})
    assert told.run is None and not told.unexplained_ns
    assert "second recording: predictions of workers that are recorded" in told.why


@pytest.mark.parametrize(("scale", "sides"), [("host=2", [0, 120_000]), ("host=0.5", [60_000, 0]), ("gap=2", [0, 0])])
def test_gaps_may_change_with_the_rest(scale: str, sides: list[int]) -> None:
    """What is in no op stands still as the recording has it; it may be Python, of which all is as much slower."""
    nodes = [n._replace(name="host gap" if n.name == "op1" else n.name) for n in chain([(10, 20, 15)] * 6)]
    told = found(nodes, scale, range(0, 270, 45))
    run = told.run
    assert told.unexplained_ns == sides
    assert run is not None
    both = half_width(0, 1, 1, run.ns, 6)
    one_side = both * quantile(0.9, 14) / quantile(0.95, 14)
    wanted = [max(both, side + one_side) for side in sides]
    assert [run.ns - run.low_ns, run.high_ns - run.ns] == pytest.approx(wanted, abs=1)


def test_time_in_calls_that_nothing_explains_may_change_too() -> None:
    told = found(chain([(10, 20)] * 4), "host=0.5", [0, 30, 60, 90], blocked=0.25)
    assert told.unexplained_ns == [7_500, 0]


def test_latency_of_communication_may_stay() -> None:
    """Of each it may be as much as the quickest one takes."""
    nodes = [
        N(k, GPU, us=us, name="ncclKernel", deps=((k - 1, EdgeKind.STREAM),) if k else ())
        for k, us in enumerate([40, 10, 40, 10])
    ]
    work = load([n._replace(sort="coll") for n in nodes])
    changes = changes_of(["comm=0.5"])
    changed = apply(work, changes, {}).work
    after = play_ideal(changed)
    told = band(changes, work, changed, 100_000, after, critical_path(changed, after), {})
    assert (told.latency_ns, told.unexplained_ns) == ([0, 20_000], [0, 0])


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "first", "words"),
    [
        (4, 6, "", "saves 40.0 % to 60.0 %"),
        (8, 11, "too uncertain to tell from no gain: ", "between 10.0 % more and 20.0 % less"),
        (12, 13, "", "20.0 % to 30.0 % more"),
    ],
)
def test_words_say_the_least_first(low_ms: int, high_ms: int, first: str, words: str) -> None:
    run = Span(ns=5_000_000, low_ns=low_ms * 10**6, high_ns=high_ms * 10**6)
    told = Band(level_pct=90, steps=3, run=run, spread_ns=1, unexplained_ns=[0, 0], latency_ns=[0, 0])
    assert (
        band_words(told, 10**7, 10**7)[0]
        == f"{first}a second run of 3 steps with this change takes {low_ms}.000 to {high_ms}.000 ms: {words}"
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "out"
    recordings = Path(__file__).parents[2] / "fixtures" / "demo"
    given = ["--kineto", str(recordings / "kineto_0.json"), "--et", str(recordings / "et_0.json")]
    assert main([*given, "--out", str(folder), "--sync", "cuda", "--no-timeline", "--quiet"]) == 0
    return folder


def test_text_and_data_say_the_same(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(out), "--scale", "kernel=0.5", "--json", str(tmp_path / "r.json")]) == 0
    [what_if] = json.loads((tmp_path / "r.json").read_bytes())["what_if"]
    told = msgspec.convert(what_if["band"], Band)
    assert (
        told.steps == 3
        and told.run is not None
        and told.run.low_ns < what_if["after_ns"] == told.run.ns < told.run.high_ns
    )
    assert all(
        line in capsys.readouterr().out for line in band_words(told, what_if["before_ns"], what_if["path_ns"])[:1]
    )


def test_each_gain_of_advice_has_its_band(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advice", str(out), "--json", str(tmp_path / "a.json")]) == 0
    found = json.loads((tmp_path / "a.json").read_bytes())
    gaining = [one for one in found["advice"] if one["gain_ns"]]
    banded = [one for one in gaining if one["band"]["run"] is not None]
    assert banded and all(one["band"]["run"]["ns"] == found["replayed_ns"] - one["gain_ns"] for one in banded)
    assert all(one["band"]["why"] for one in gaining if one not in banded)
    assert "with this change takes " in capsys.readouterr().out


def test_a_summary_records_steps_and_what_is_blocked(out: Path, tmp_path: Path) -> None:
    [rank] = ranks_of(out)
    assert len(recorded([rank])[0].steps_ns) == 3 and recorded([rank])[0].blocked_share == 0
    replay, path = (
        replace(rank.replay, gap_share=0.2, delay_share=0.1),
        replace(rank.standstill.path, ns=100, pinned_ns=50),
    )
    blocked = replace(rank, replay=replay, standstill=replace(rank.standstill, path=path))
    assert recorded([blocked])[0].blocked_share == pytest.approx(0.2)
    without = SimpleNamespace(rank=2, replay=replay)  # the wings that know of steps and standstill are not there
    assert recorded([without])[2].blocked_share == 0 and not len(recorded([without])[2].steps_ns)


def test_a_summary_is_ours_or_absent_or_of_made_graphs(tmp_path: Path) -> None:
    assert not ranks_of(tmp_path)
    (tmp_path / "summary.json").write_text('{"made": "graphlink scale", "ranks": 3}')
    assert not ranks_of(tmp_path)
    (tmp_path / "summary.json").write_text('{"ranks": 3}')
    with pytest.raises(InputError, match="is no summary of this version"):
        ranks_of(tmp_path)


# the truth: the changed program, run again


@pytest.mark.parametrize("runs", [10, pytest.param(20, marks=pytest.mark.long)])
def test_a_second_run_is_in_its_band(tmp_path: Path, runs: int) -> None:
    """A sample of single ranks, which are quick; the sweep below has all."""
    kinds = [kind for kind in KINDS if kind not in OF_RANKS]
    made = [predicted(second_run(k, kinds[k % len(kinds)], alone=True), tmp_path / str(k)) for k in range(runs)]
    print("\n", *table(made), sep="\n")
    assert inside([one.run for one in made]) >= 0.8


@pytest.mark.long
def test_90_of_100_second_runs_are_in_their_band(tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS if kind != "bandwidth"]  # which has no band
    made = [predicted(second_run(k, kinds[k % len(kinds)]), tmp_path / str(k)) for k in range(300)]
    print("\n", *table(made), sep="\n")
    assert 0.85 <= inside([one.run for one in made]) <= 0.95
