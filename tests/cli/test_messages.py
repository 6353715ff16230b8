"""A message that several ranks give is printed once, with their number; the summary file keeps all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from graphlink import output_names
from graphlink.cli.out import rendered
from graphlink.report import summary
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def one_rank(graphlink_once: Run, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> summary.Summary:
    folder = tmp_path_factory.mktemp("run") / "out"
    assert graphlink_once(traces / "kineto_0.json", "-o", folder, "--no-timeline", "-q").status == 0
    return summary.load(folder / output_names.SUMMARY)


def warned(whole: summary.Summary, *of_ranks: Sequence[str], run: Sequence[str] = ()) -> list[str]:
    """The lines that warn, of a run whose ranks have these warnings."""
    ranks = [replace(whole.ranks[0], rank=rank, warnings=list(texts)) for rank, texts in enumerate(of_ranks)]
    return [
        line
        for line in rendered(summary.table(replace(whole, ranks=ranks, warnings=list(run)))).splitlines()
        if "warning" in line
    ]


def test_a_rank_alone_keeps_its_warnings_in_its_block(one_rank: summary.Summary) -> None:
    assert warned(one_rank, ["3 calls took 5 us", "4 calls took 5 us"]) == [
        "  warning         3 calls took 5 us",
        "  warning         4 calls took 5 us",
    ]


@pytest.mark.parametrize("count", [2, 12, 70])
def test_what_all_ranks_say_is_printed_once(one_rank: summary.Summary, count: int) -> None:
    assert warned(one_rank, *[["no rows"]] * count) == [f"warning, {count} ranks: no rows"]


def test_figures_are_those_of_the_first_rank(one_rank: summary.Summary) -> None:
    texts = [["nothing else"], ["12 calls took 1,234.5 us"], ["7 calls took 8 us", "no rows"]]
    assert warned(one_rank, *texts) == [
        "warning, 2 ranks, as rank 1: 12 calls took 1,234.5 us",
        "warning, rank 0: nothing else",
        "warning, rank 2: no rows",
    ]


def test_two_causes_of_one_rank_stay_two(one_rank: summary.Summary) -> None:
    both = ["stream 7 is late", "stream 9 is late"]
    assert warned(one_rank, both, both) == [f"warning, 2 ranks: {text}" for text in both]


def test_warnings_of_the_run_are_counted(one_rank: summary.Summary) -> None:
    left_out = [f"left out, since its job failed: kineto_{rank}.json: is empty" for rank in range(3)]
    assert warned(one_rank, [], run=[*left_out, "another"]) == [
        f"warning: {left_out[0]} (and 2 more like it)",
        "warning: another",
    ]


def test_on_stderr_too(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(traces, folder)
    for rank in (0, 1):
        assert (
            graphlink(
                traces / f"et_{rank}.json", traces / f"kineto_{rank}.json", "-o", tmp_path / f"{rank}", "--linked", "-q"
            ).status
            == 0
        )
        shutil.copy(tmp_path / f"{rank}" / f"linked.{rank}.json", folder / f"et_plus_{rank}.json")
    ran = graphlink(folder, "-o", tmp_path / "out", "--jobs", "1", "-v")
    (line,) = [line for line in ran.err.splitlines() if "merged" in line]
    assert line.endswith("(and 1 more like it)")
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())["warnings"]
    assert len([text for text in kept if "merged" in text]) == 2


def test_notes_of_a_replay_are_printed_once(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    assert graphlink(traces, "-o", tmp_path / "out", "--jobs", "1", "-q", "--host", "launches").status == 0
    notes = [
        line
        for line in graphlink("replay", tmp_path / "out", "--machine", "ideal").out.splitlines()
        if line.startswith("  note")
    ]
    assert len(notes) == 1
    assert notes[0].startswith("  note           2 ranks: ")
