"""What a user sees first of a run: answers, and all that was counted only when asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

import graphlink
from graphlink import output_names
from graphlink.cli.parser import parse
from graphlink.cli.show import show
from graphlink.gpu.records import StepTime
from graphlink.gpu.time import iterations
from graphlink.records import Table
from graphlink.report import summary
from graphlink.report.summary import Summary
from graphlink.steps import Steps

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"
COUNTS = {
    "graph",
    "edges",
    "host rows",
    "device ops",
    "device clock",
    "sync",
    "recorded",
    "replayed",
    "stood still",
    "left out",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    out = tmp_path_factory.mktemp("demo") / "out"
    graphlink.link(DEMO, out=out)
    return summary.load(out / output_names.SUMMARY)


def rows(whole: Summary, *, verbose: bool = False) -> dict[str, str]:
    (table,) = (part for part in summary.table(whole, verbose=verbose) if isinstance(part, Table))
    return {row[0]: row[1] for row in table.rows}


def test_answers_come_first_and_counts_only_when_asked_for(demo: Summary) -> None:
    first, everything = rows(demo), rows(demo, verbose=True)
    assert [*first] == ["GPU 0", "  idle because", "steps", "critical path", "trust"]
    assert {*everything} >= COUNTS
    assert not COUNTS & {*first}
    assert {name: everything[name] for name in first} == first


def test_what_found_no_partner_is_named_without_asking(demo: Summary) -> None:
    (rank,) = demo.ranks
    orphans = msgspec.structs.replace(rank.device, orphans={"no call with its correlation id": 3})
    host = msgspec.structs.replace(rank.host, unmatched=2)
    lost = msgspec.structs.replace(demo, ranks=[msgspec.structs.replace(rank, device=orphans, host=host)])
    assert rows(lost)["not linked"] == "device ops without launch call 3, host rows without ET node 2"


def test_steps_are_told_without_the_first(demo: Summary) -> None:
    (rank,) = demo.ranks

    def shown(*ms: int, found_by: str = "mark", on_device: int = 0) -> str:
        steps = [StepTime(name=f"step {k}", start_ns=0, end_ns=took * 1_000_000, gpu=[]) for k, took in enumerate(ms)]
        ends = np.array(ms, np.int64) * 1_000_000
        cut = Steps("step", found_by, tuple(step.name for step in steps), np.zeros(len(ms), np.int64), ends)
        told = iterations(cut, steps, [np.array([on_device * 1_000_000])])
        one = msgspec.structs.replace(rank, steps=steps, iterations=UNSET if told is None else told)
        return rows(msgspec.structs.replace(demo, ranks=[one])).get("steps", "")

    assert shown() == ""
    assert shown(7) == "1 of 7.000 ms (step 0)"
    assert (
        shown(9, 30, 8)
        == "3: the first 9.000 ms, the others 19.000 ms +- 11.000 on average; slowest: 30.000 ms (step 1)"
    )
    assert shown(9, 7, 8, on_device=20).startswith(
        "3: the first 9.000 ms, the others 7.500 ms +- 0.500 on average; on the GPU 20.000 ms each: the host ran ahead"
    )
    assert "GPU" not in shown(9, 7, 8, on_device=9), "by no more than the steps differ"
    assert shown(9, 8, found_by="optimizer") == "2, found by step: the first 9.000 ms, the other 8.000 ms"


def test_show_prints_the_counts_with_v(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graphlink.link(DEMO, out=tmp_path / "out")
    for more, there in (([], False), (["-v"], True)):
        assert show(parse(["show", str(tmp_path / "out"), *more])) == 0
        assert ("host rows" in capsys.readouterr().out) == there


def test_many_ranks_are_rows_the_most_idle_first_and_outliers_are_named(demo: Summary) -> None:
    (rank,) = demo.ranks
    idle = [100, 110, 120, 130, 900]  # of 1,000 ns

    def of(number: int, ns: int) -> summary.Rank:
        (one,) = rank.gpu
        spent = {"idle_ns": ns, "exposed_comm_ns": 50, "exposed_copy_ns": 0, "compute_ns": 950 - ns}
        gpu = msgspec.structs.replace(one, from_ns=0, to_ns=1000, idle_by_cause_ns={"python": ns}, **spent)
        replay = msgspec.structs.replace(rank.replay, measured_ns=1000)
        return msgspec.structs.replace(rank, rank=number, gpu=[gpu], steps=[], replay=replay, warnings=[])

    whole = msgspec.structs.replace(demo, ranks=[of(k, ns) for k, ns in enumerate(idle)], warnings=[])
    fact, _, table, words, outliers = summary.table(whole)
    assert isinstance(fact, str) and fact.startswith(
        "The 5 GPUs together spend 67.8 % of their time computing, 27.2 % idle: "
    )
    assert fact.endswith(
        " idle: the host was between ops (python, 100.0 % of the idle time); 5.0 % communicating and computing nothing. "
        "Their times add up to 5.00 us. Rank 4 is idle most: 90.0 % of 1.00 us."
    )
    assert isinstance(words, str) and words.startswith("sorted by idle %, the most idle first; idle, comm: ")
    assert isinstance(table, Table)
    assert [row[:1] + row[2:5] for row in table.rows] == [
        (str(k), f"{idle[k] / 10:.1f}", "python", "5.0") for k in (4, 3, 2, 1, 0)
    ]
    assert outliers == "far from the usual idle time (12.0 %): rank 4 90.0 %"
    assert len(summary.table(whole, verbose=True)) == 7
    alike = msgspec.structs.replace(whole, ranks=[of(k, 100) for k in range(4)])
    assert len(summary.table(alike)) == 4
