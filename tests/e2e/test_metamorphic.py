"""Recordings changed so that their meaning stays: waits and what-ifs stay, too (benchmarks/metamorphic.py has and
judges the changes).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from benchmarks.metamorphic import TRACES, Measured, Recording, as_it_is, export_as_it_is, line, read_document, verdicts
from tests.e2e.conftest import ROOT
from tests.simulator import Training, changes, kineto_document, run, training_program, write_json
from tests.simulator.faults import FAULTS

CHANGES = ("clock", "forward", "merged", "renumbered", "shuffled", "rounded", "dialect", "cuspy", "step", *FAULTS)
SMALL = ("cuda-sync/alexnet", "inference/mi300_vit", "megatron-tp2-v100/kineto_0")
FIXTURES = ("demo/kineto_0.json", "threads-int-us/kineto_0.json.gz", "no-sync-rows/kineto_0.json.gz")
MOVED = ("cuda-sync/alexnet", "inference/mi300_vit", "no-sync-rows/kineto_0.json.gz")  # clocks, nine times each
PAUSES = ("partial-et/kineto_0", "drift")  # in which a clock that drifts might be taken to step

# Recording -> least number of calls of which the graph says what they waited for, and of kept waits. From what is known
# of the recording (its README) where that tells, else a little less than what was found when this was written.
FLOORS = {
    "cuda-sync/alexnet": (25, 27),
    "cuda-sync/event_sync": (4, 0),
    "ddp/many_allreduces": (2, 900),
    "deepseek/dualpipe_train": (3, 22),
    **{f"dlrm8-v100/kineto_{rank}": (12, 10) for rank in range(8)},
    "host-only/no_gpu_no_rank": (0, 0),
    "inference/h100_vit": (1, 0),
    "inference/mi300_vit": (1, 0),
    "inference/sglang_decode_graph": (1, 1),
    "late-wakeup/mi300_normalization_cold_autograd": (1, 0),
    "late-wakeup/v100_resnet50_slow_event_sync": (340, 0),  # 357 calls, all blocked
    "legacy/sendrecv_graph_launch_5streams": (70, 150),  # 75 stream synchronisations
    "legacy/v100_resnet50_2021_operator_steps": (12, 11),
    "megatron-tp2-v100/kineto_0": (12, 25),  # 12 stream synchronisations, one of the device
    "megatron-tp2-v100/kineto_1": (12, 25),
    "other-devices/mtia_inference_rank_0": (100, 0),  # 113 synchronisations of streams
    "partial-et/kineto_0": (55, 50),
    **{f"pipelining-cpu/1f1b/kineto_{rank}": (0, 0) for rank in range(4)},
    **{f"pipelining-cpu/interleaved-zb/kineto_{rank}": (0, 0) for rank in range(4)},
    "resnet-ddp2-a100/kineto_0": (2, 3),
    "rocm/mi250_minitoy": (2, 2),
    "rocm/mi300_owlv2_skewed": (78, 78),  # 80 copies that block
    "rocm/mi300_resnet_rank0of8": (2, 20),
    "simple-add-a100/kineto_0": (5, 3),  # 5 synchronisations of the device
    "vgg13-h100/kineto_0": (1, 0),
    "nsys/h100_2gpu_1s:0": (4, 4),
    "nsys/h100_2gpu_1s:1": (4, 4),
    "nsys/h100_2gpu_train_skewed:0": (16, 16),  # 14 of 16 stream synchronisations return before what they waited for
    "nsys/h100_2gpu_train_skewed:1": (16, 16),
}
# Recording -> what, least and most in percent
KNOWN = [
    ("inference/mi300_vit", "host", 49, 51),
    ("nsys/h100_2gpu_train_skewed:0", "kernel", 27.5, 30.5),
    ("nsys/h100_2gpu_train_skewed:1", "kernel", 29.3, 31.3),
    ("rocm/mi300_owlv2_skewed", "kernel", 13.1, 16.1),
    ("late-wakeup/mi300_normalization_cold_autograd", "host", 48, 52),
    ("legacy/v100_resnet50_2021_operator_steps", "host", 37, 50),
    ("legacy/v100_resnet50_2021_operator_steps", "gaps", 0, 2),
]


def recording(name: str) -> Recording:
    """One of the public ones."""
    path, _, place = name.partition(":")
    kineto, nsys = TRACES / f"{path}.json.gz", TRACES / f"{path}.sqlite"
    if not (kineto.exists() or nsys.exists()):
        pytest.skip("needs the public traces in ../shared/traces")
    if place:
        return Recording(name, nsys=nsys, place=int(place))
    et = kineto.with_name(kineto.name.replace("kineto_", "et_"))
    return Recording(name, kineto=kineto, et=et if et != kineto and et.exists() else None)


def as_recorded(given: Recording) -> Measured:
    if given.nsys is not None:
        return export_as_it_is(given.nsys, given.place)
    assert given.kineto is not None
    return as_it_is(given.kineto, given.et)


ALL = [name if name in SMALL else pytest.param(name, marks=pytest.mark.long) for name in FLOORS]


def hold(given: Recording, change: str) -> None:
    """Every change of this kind leaves the graph as it was."""
    found = list(verdicts(given, [change]))
    if not found:
        pytest.skip("does not apply to this recording")
    print("", *(line(verdict, 0) for verdict in found), sep="\n")
    effects = [line(verdict, 0) for verdict in found if verdict.said not in ("ok", "exempt")]
    assert not effects, "\n" + "\n".join(effects)


def each(names: Iterable[str], short: Collection[str], left_out: str = "") -> list[ParameterSet]:
    """Return each recording with each change; only ``short`` ones and ``PAUSES`` are not long, and of them one whose
    clock is moved.
    """
    return [
        pytest.param(
            name,
            change,
            id=f"{name}-{change}",
            marks=[]
            if (name in short and (change != "clock" or name in MOVED)) or (name, change) == PAUSES
            else pytest.mark.long,
        )
        for name in names
        for change in CHANGES
        if change != left_out
    ]


@pytest.mark.parametrize(("name", "change"), each(FLOORS, SMALL))
def test_what_changes_nothing_in_meaning_changes_no_graph(name: str, change: str) -> None:
    hold(recording(name), change)


@pytest.mark.parametrize("name", ALL)
def test_a_recording_as_it_is_shows_what_waited(name: str) -> None:
    calls, waits = FLOORS[name]
    found = as_recorded(recording(name))
    assert len(found.calls) >= calls
    assert len(found.waits) >= waits


@pytest.mark.parametrize(
    ("name", "what", "least", "most"), [pytest.param(*row, marks=pytest.mark.long) for row in KNOWN]
)
def test_what_is_known_of_a_recording_comes_out(name: str, what: str, least: float, most: float) -> None:
    found = as_recorded(recording(name))
    assert least <= (100 * found.gap_share if what == "gaps" else found.gains[what]) <= most


@pytest.mark.parametrize(("fixture", "change"), each(FIXTURES, FIXTURES, "cuspy"))
def test_what_changes_nothing_in_meaning_changes_no_graph_of_a_fixture(fixture: str, change: str) -> None:
    """What Cuspy does not say can be told only in part where threads launch on any stream (``test_recorded_on``)."""
    path = ROOT / "fixtures" / fixture
    hold(Recording(fixture, kineto=path, et=path.with_name(path.name.replace("kineto", "et"))), change)
    assert len(as_it_is(path).calls) >= 3


@pytest.mark.parametrize("name", ["cuda-sync/alexnet", "cuda-sync/event_sync"])
def test_without_rows_nearly_the_same_waits_are_inferred(name: str, tmp_path: Path) -> None:
    given = recording(name)
    assert given.kineto is not None
    document = changes.without_sync_rows(read_document(given.kineto)).document
    precision, recall = inferred(as_recorded(given), document, tmp_path)
    assert precision >= 0.95
    assert recall >= 0.75


def test_without_rows_nearly_the_same_waits_of_simulated_training_are_inferred(tmp_path: Path) -> None:
    """Event waits that held nothing up leave no trace, so recall is of the calls alone."""
    execution = run(training_program(3, Training(steps=4, layers=6)))
    whole = tmp_path / "whole.json"
    write_json(kineto_document(execution, dialect="2026"), whole)
    document = changes.without_sync_rows(read_document(whole)).document
    precision, recall = inferred(as_it_is(whole), document, tmp_path)
    assert precision >= 0.995
    assert recall >= 0.97


def inferred(exact: Measured, document: changes.Document, folder: Path) -> tuple[float, float]:
    """Precision of what is inferred, over calls and streams, and recall of what the rows say of calls."""
    path = folder / "bare.json"
    write_json(document, path)
    found = as_it_is(path)
    every, true = found.waits | found.calls, exact.waits | exact.calls
    precision, recall = len(every & true) / len(every), len(found.calls & exact.calls) / len(exact.calls)
    waits = len(found.waits & exact.waits) / max(1, len(exact.waits))
    print(
        f"\n{len(every)} inferred, precision {precision:.3f}, recall of calls {recall:.3f}, of kept waits {waits:.3f}"
    )
    return precision, recall
