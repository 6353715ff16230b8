"""``graphlink scale``: what it prints, what it refuses, and which verbs read what it made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.simulator.cluster import cluster_run
from tests.simulator.cluster_records import ClusterTraining

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def recorded(graphlink_once: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a simulated run of 4 data parallel ranks."""
    base = tmp_path_factory.mktemp("scale")
    cluster_run(ClusterTraining(data=4, tensor=1)).write(base / "traces")
    assert graphlink_once(base / "traces", "--out", base / "out", "--no-timeline", "-q").status == 0
    return base / "out"


@pytest.fixture(scope="module")
def made(graphlink_once: Run, recorded: Path) -> Path:
    out = recorded.with_name("made")
    assert graphlink_once("scale", recorded, "--data-parallel", "6", "--out", out).status == 0
    return out


def test_the_prediction_comes_first_then_what_it_rests_on(graphlink: Run, recorded: Path, tmp_path: Path) -> None:
    ran = graphlink(
        "scale", recorded, "--data-parallel", "16", "--out", tmp_path / "out", "--json", tmp_path / "a.json"
    )
    assert (ran.status, ran.err) == (0, "")
    told = json.loads((tmp_path / "a.json").read_text())
    assert told == json.loads((tmp_path / "out" / "summary.json").read_text())
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'out'}: 16 ranks made from 4 of {recorded}, ")
    assert lines[1].startswith(
        f"  predicted {told['predicted_ns'] / 1e6:,.3f} ms, {told['predicted_ns'] / 2e6:,.3f} ms a step of 2 ("
    )
    headings = [line for line in lines if line and not line.startswith(" ")][1:]
    wanted = [
        "axes of the ranks",
        "copies of recorded ranks",
        "collectives of a rank that change",
        "time of communication",
        "assumed",
    ]
    assert headings[:-1] == [*wanted, "cannot be known from the recording"]
    assert headings[-1].startswith("next: graphlink replay")
    assert ["0", "4", "0,", "4,", "8,", "12"] in [line.split() for line in lines]
    again = graphlink("show", tmp_path / "out")
    assert (again.status, again.out.splitlines()) == (0, lines[:-2])


def test_of_a_pipeline_the_stages_and_their_makespan(graphlink: Run, tmp_path: Path) -> None:
    cluster_run(ClusterTraining(data=1, tensor=1, pipeline=3, microbatches=3)).write(tmp_path / "traces")
    assert graphlink(tmp_path / "traces", "--out", tmp_path / "out", "--no-timeline", "-q").status == 0
    ran = graphlink("scale", tmp_path / "out", "--pipeline", "5", "--microbatches", "6", "--out", tmp_path / "made")
    assert (ran.status, ran.err) == (0, "")
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["stages", "3", "5"] in rows and ["microbatches", "3", "6"] in rows and ["1", "1,", "2,", "3"] in rows
    assert "1F1B; forwards and backwards told by messages between stages" in ran.out
    assert graphlink("check", tmp_path / "made").status == 0


@pytest.mark.parametrize(
    "verb", ["replay {made}", "critical-path {made} --across", "check {made}", "show {made}", "astra {made} -o {new}"]
)
def test_what_reads_graphs_reads_those_that_were_made(graphlink: Run, made: Path, tmp_path: Path, verb: str) -> None:
    ran = graphlink(*verb.format(made=made, new=tmp_path / "new").split())
    assert (ran.status, ran.err) == (0, "")
    assert "measured" not in ran.out.replace("no time was measured", "").replace("measurement", "") or verb.startswith(
        "astra"
    )


@pytest.mark.parametrize(
    "verb",
    ["idle", "critical-path", "advice", "ops", "report", "bubbles", "export --format csv", "doctor", "diff {made}"],
)
def test_what_needs_a_recording_refuses_them(graphlink: Run, made: Path, verb: str) -> None:
    name, *rest = verb.format(made=made).split()
    ran = graphlink(name, made, *rest)
    assert (ran.status, ran.out) == (1, "")
    assert "holds graphs that graphlink scale made from those of" in ran.err and "this needs a recording" in ran.err
    assert "for replay, critical-path --across, check, astra, simulate and show" in ran.err


def test_the_library_refuses_them(made: Path) -> None:
    import graphlink

    with pytest.raises(graphlink.InputError, match="this needs a recording"):
        graphlink.open(made)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ([], 2, "nothing is to be larger"),
        (["--data-parallel", "0"], 2, "at least 1"),
        (["--data-parallel", "8", "--layout", "data=3"], 2, "is of 3 ranks, and 4 were recorded"),
        (["--data-parallel", "8", "--layout", "tensor=4"], 1, "has no data parallel ranks"),
        (["--pipeline", "8"], 1, "has no pipeline parallel ranks"),
        (["--data-parallel", "8", "--bandwidth", "0"], 2, "is no bandwidth"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(
    graphlink: Run, recorded: Path, tmp_path: Path, options: list[str], status: int, said: str
) -> None:
    ran = graphlink("scale", recorded, *options, "--out", tmp_path / "out")
    assert (ran.status, ran.out) == (status, "")
    assert said in ran.err
    assert not (tmp_path / "out").exists()


def test_the_folder_of_the_recording_is_not_written_to(graphlink: Run, recorded: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in recorded.iterdir()}
    ran = graphlink("scale", recorded, "--data-parallel", "8", "--out", recorded, "--force")
    assert (ran.status, ran.out) == (2, "") and "is the folder of the recorded graphs" in ran.err
    assert {path.name: path.stat().st_mtime_ns for path in recorded.iterdir()} == before
