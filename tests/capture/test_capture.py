"""What a capture records, and where."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from msgspec import UNSET

import graphlink
from graphlink.capture import recording
from graphlink.capture.window import WAIT, Window
from graphlink.depend.hostcomm import WAIT_RANGE
from graphlink.errors import UsageError
from graphlink.gpu.table import steps_line
from graphlink.gpu.time import bare_ns
from graphlink.linking.match import match_hosts
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from tests.capture.recorded import et, ranges, told

Train = Callable[[], None]


def test_both_recordings_are_of_the_same_steps(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path, steps=3) as capture:
        for _ in range(9):
            train()
            capture.step()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture.0.json", "et_0.json", "kineto_0.json"]
    steps = ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    assert ranges(tmp_path) == steps
    assert [node["name"] for node in et(tmp_path)["nodes"] if "ProfilerStep" in node["name"]] == steps
    match = match_hosts(read_kineto(tmp_path / "kineto_0.json"), read_host(tmp_path / "et_0.json"))
    assert (match.method, match.only_kineto, match.only_et, match.warnings) == ("rf_id", {}, {}, ())
    assert capture.reports[0].steps == (2, 3, 4)


def test_bare_steps_around_the_window_are_kept_and_told(tmp_path: Path, train: Train) -> None:
    """Steps 1 to 3 before the window, without the first, and 8 of those behind it; the report is written again."""
    schedule = graphlink.capture.Schedule(wait=4, warmup=1, active=3)
    with graphlink.capture(tmp_path / "rec", schedule=schedule) as capture:
        for step in range(20):
            train()
            capture.step()
            if step == 10:
                assert not capture.reports[0].bare_ns["after"]
    kept = capture.reports[0].bare_ns
    assert told(tmp_path / "rec")["bare_ns"] == kept
    assert (len(kept["before"]), len(kept["after"])) == (3, 8) and min(kept["before"] + kept["after"]) > 0
    run = graphlink.link(tmp_path / "rec", options=graphlink.Options(timeline="none"), out=tmp_path / "out")
    steps = run.summary.ranks[0].iterations
    assert steps.bare_ns == round(median(kept["before"] + kept["after"]))
    assert steps_line(run.summary.ranks[0]).endswith(f" x the bare ones, {steps.bare_ns / 1e6:.3f} ms")
    (tmp_path / "rec" / "capture.0.json").write_text('{"bare_ns": {"before": [1, 2]}}')
    assert bare_ns(tmp_path / "rec" / "kineto_0.json", 0) is UNSET is bare_ns(tmp_path / "x", 0) is bare_ns(None, 0)


def test_recorder_and_reader_know_a_wait_by_one_name() -> None:
    assert WAIT == WAIT_RANGE


def test_rows_have_shapes(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path):
        train()
    trace = read_kineto(tmp_path / "kineto_0.json")
    (row,) = [k for k, name in enumerate(trace.host.name.tolist()) if trace.strings[name] == "aten::addmm"]
    assert trace.strings[trace.host.input_shapes[row]].startswith("[[8], [4, 8], [8, 8]")


@pytest.mark.filterwarnings("error:trace_only")
def test_stacks_are_recorded_without_a_warning_of_pytorch(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path, stacks=True) as capture:
        train()
    assert told(tmp_path)["settings"]["with_stack"] and not capture.reports[0].warnings
    assert read_kineto(tmp_path / "kineto_0.json").frames is not None


def test_without_steps_all_is_recorded(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path) as capture:
        for _ in range(2):
            train()
            capture.step()
    assert ranges(tmp_path) == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert capture.reports[0].ended == "the end of the block"


def test_each_window_has_a_folder_of_its_own(tmp_path: Path, train: Train) -> None:
    schedule = graphlink.capture.Schedule(wait=0, warmup=1, active=1, repeat=3)
    with graphlink.capture(tmp_path, schedule=schedule) as capture:
        for _ in range(8):
            train()
            capture.step()
    folders = [tmp_path, tmp_path / "window_2", tmp_path / "window_3"]
    assert [report.folder for report in capture.reports] == folders
    assert [ranges(folder) for folder in folders] == [["ProfilerStep#1"], ["ProfilerStep#3"], ["ProfilerStep#5"]]


def test_windows_may_follow_each_other_at_once(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(
        tmp_path, schedule=graphlink.capture.Schedule(wait=0, warmup=0, active=1, repeat=2)
    ) as capture:
        for _ in range(2):
            train()
            capture.step()
    assert [report.steps for report in capture.reports] == [(0,), (1,)]


def test_a_process_starts_stops_and_dumps(tmp_path: Path, train: Train) -> None:
    graphlink.capture.start(tmp_path)
    train()
    graphlink.capture.stop()
    train()
    assert not (tmp_path / "kineto_0.json").exists(), "nothing is written before it is asked for"
    (report,) = graphlink.capture.dump()
    assert (report.folder, report.ended, set(report.bytes)) == (tmp_path, "stop", {"kineto_0.json", "et_0.json"})
    assert len([node for node in et(tmp_path)["nodes"] if node["name"] == "aten::addmm"]) == 1
    assert graphlink.capture.dump() == [report]
    graphlink.capture.start(tmp_path)
    train()
    assert [report.folder.name for report in graphlink.capture.dump()] == ["window_2"]


def test_a_start_writes_what_an_earlier_one_recorded(tmp_path: Path, train: Train) -> None:
    graphlink.capture.start(tmp_path / "one")
    train()
    graphlink.capture.start(tmp_path / "other")
    train()
    graphlink.capture.dump()
    assert ranges(tmp_path / "one") == ranges(tmp_path / "other") == ["ProfilerStep#0"]


def test_outside_the_window_nothing_is_left(tmp_path: Path, train: Train) -> None:
    torch = pytest.importorskip("torch")
    before, wait = signal.getsignal(signal.SIGTERM), torch.distributed.Work.wait
    inside = []
    with graphlink.capture(tmp_path, steps=1) as capture:
        for _ in range(6):
            inside.append(signal.getsignal(signal.SIGTERM) is not before)
            train()
            capture.step()
    assert inside == [False, False, True, False, False, False]
    assert signal.getsignal(signal.SIGTERM) is before
    assert torch.distributed.Work.wait is wait


def test_what_was_recorded_and_what_it_cost_stand_beside_it(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path, steps=1) as capture:
        for _ in range(4):
            train()
            capture.step()
    report = told(tmp_path)
    assert report["graphlink_capture"] == graphlink.__version__
    assert set(report["spent_ns"]) == {"prepare", "start", "together", "stop", "write"}
    assert all(ns > 0 for ns in report["spent_ns"].values())
    assert report["bytes"] == {name: (tmp_path / name).stat().st_size for name in ("kineto_0.json", "et_0.json")}
    assert report["place"]["host"]
    assert report["support"]["versions"]["torch"]
    assert report["warnings"] == []
    assert capture.reports[0].line().startswith(f"rank 0: step 2 in {tmp_path}, ")


def test_a_schedule_that_ends_after_the_training_is_said(
    tmp_path: Path, train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    with graphlink.capture(tmp_path, steps=3) as capture:
        train()
        capture.step()
    assert [record.message for record in caplog.records] == [
        "nothing was recorded: the schedule asks for later steps than the 1 that were made"
    ]


def test_a_recording_cut_short_has_the_steps_that_were_begun(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path, steps=5) as capture:
        for _ in range(4):
            train()
            capture.step()
    assert capture.reports[0].steps == (2, 3, 4)


def test_the_line_about_a_window_is_logged(tmp_path: Path, train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "graphlink.capture"), graphlink.capture(tmp_path):
        train()
    assert caplog.records[0].message.startswith(f"rank 0: step 0 in {tmp_path}")


def test_wrong_arguments_are_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no hook is called 'nvtx'"):
        graphlink.capture(tmp_path, hooks=["nvtx"])
    with pytest.raises(UsageError):
        graphlink.capture(tmp_path, steps=0)


def test_kineto_alone_if_asked(tmp_path: Path, train: Train) -> None:
    with graphlink.capture(tmp_path, execution_trace=False) as capture:
        train()
    assert set(capture.reports[0].bytes) == {"kineto_0.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture.0.json", "kineto_0.json"]


def test_the_device_finishes_before_ranks_meet_and_the_window_opens(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("finished"))
    monkeypatch.setattr(recording, "meet", lambda *_: seen.append("met"))
    opens = Window.open
    monkeypatch.setattr(Window, "open", lambda self: (seen.append("open"), opens(self)))
    with graphlink.capture(tmp_path):
        train()
    assert seen[:3] == ["finished", "met", "open"]
