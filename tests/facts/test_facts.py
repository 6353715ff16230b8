"""The main fact of public recordings, with its evidence from their rows, and whether advice says it first or second, with
a gain that its own command prints."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import pytest

import graphlink
from graphlink.advice.records import Advice
from graphlink.cli import main
from tests.facts.raw import Raw, kineto, nsys

TRACES: Final = Path(__file__).resolve().parents[3] / "shared" / "traces"


@dataclass(frozen=True)
class Fact:
    """``says``: the main fact; ``evidence``: what of the rows shows it, and ``value``, what that is (ms); ``of``: the
    whole that it is to be compared with. ``kind``: the advice, which names ``names`` in ``what``; ``least_pct``: of its
    gain (of a step where steps count), None where it has none; ``first``: it stands first; ``seen``: as its evidence says."""

    path: str
    says: str
    evidence: Callable[[Raw], float]
    value: float
    of: float
    kind: str
    names: str = ""
    least_pct: float | None = None
    first: bool = False
    seen: str = ""


def idle(raw: Raw) -> float:
    return raw.length - raw.on_device("kernel", "copy", "comm")


FACTS: Final = (
    Fact("inference/h100_vit.json.gz", "The GPU is idle between 156 launches.", idle, 6.725, 7.950, "launch_bound", least_pct=70, first=True),
    Fact("inference/mi300_vit.json.gz", "The GPU is idle between 155 launches.", idle, 5.838, 7.554, "launch_bound", least_pct=50, first=True),
    Fact("cuda-sync/alexnet.json.gz", "CUDA starts, in one op.", lambda raw: raw.longest("^aten::empty_strided$"), 29_935.080, 43_425.365, "once", "aten::empty_strided", first=True),
    Fact("simple-add-a100", "CUDA starts, in one op.", lambda raw: raw.longest("^aten::empty$"), 19_583.280, 19_814.287, "once", "aten::empty", first=True),
    Fact("rocm/mi250_minitoy.json.gz", "The first add loads its code.", lambda raw: raw.longest("^aten::add_$"), 6.591, 9.583, "once", "aten::add_", first=True),
    Fact("legacy/triton_example.json.gz", "Python compiles; the GPU runs one kernel of 2 us.", lambda raw: raw.longest("^ProfilerStep#1$"), 13_336.316, 13_336.316, "once", "Python between ops", first=True),
    Fact("late-wakeup/mi300_normalization_cold_autograd.json.gz", "Each layer loads its code when it first launches.", lambda raw: raw.in_calls("^hipLaunchKernel$"), 1_086.187, 1_180.651, "once", "aten::native_batch_norm"),
    Fact("late-wakeup/v100_resnet50_slow_event_sync.json.gz", "In the steps after the first the main thread makes batches.", lambda raw: raw.in_ops(r"^enumerate\(DataLoader\)"), 316.720, 1_130, "data_loading", least_pct=20, first=True),
    Fact("vgg13-h100", "A fifth of the GPU's time goes into conversions between NCHW and NHWC.", lambda raw: raw.on_device("kernel", name="nchwToNhwc|nhwcToNchw"), 68.657, 346.366, "layout_conversions", least_pct=15, first=True),
    Fact("megatron-tp2-v100", "Rank 1 waits for rank 0 in its all-reduces, 0.3 ms of which rank 0 takes.", lambda raw: raw.on_device("comm"), 48.428, 59.075, "straggler", "rank 0", 20, first=True, seen="23 of 24 late starts end idle time of 2.396 ms (within 5 %), as with time slices"),
    Fact("dlrm8-v100", "GPUs compute for 1 of 15 ms, and wait for launches.", lambda raw: raw.on_device("kernel"), 1.022, 14.504, "launch_bound", least_pct=20, first=True),
    Fact("resnet-ddp2-a100", "The GPU is idle between 3,774 launches.", idle, 526.873, 684.373, "launch_bound", least_pct=70, first=True),
    Fact("ddp/many_allreduces.json.gz", "The GPU is idle between 22,290 launches.", idle, 738.160, 1_738.039, "launch_bound", least_pct=30, first=True),
    Fact("deepseek/dualpipe_train.json.gz", "GEMMs of experts are what computes most.", lambda raw: raw.on_device("kernel", name="fp8_dp"), 27.495, 129.553, "heaviest_work", "void cutlass::device_kernel<dpsk", 5, first=True),
    Fact("legacy/v100_resnet50_2021_operator_steps.json.gz", "The main thread makes batches, 59 of 178 ms a step.", lambda raw: raw.in_ops(r"^enumerate\(DataLoader\)"), 415.791, 1_065.658, "data_loading", least_pct=30, first=True),
    Fact("other-devices/mtia_inference_rank_0.json.gz", "The device computes nearly all the time, most of it in merge.", lambda raw: raw.on_device("kernel", name="^merge$"), 257.870, 459.666, "heaviest_work", "merge", 5, first=True),
    Fact("nsys/h100_2gpu_1s.sqlite", "Both GPUs copy all the time.", lambda raw: raw.exposed("copy"), 1_880.842, 2 * 969.448, "copies", least_pct=80, first=True),
    Fact("nsys/h100_2gpu_train_skewed.sqlite", "Half of the GPUs' time goes into the forward of attention.", lambda raw: raw.on_device("kernel", name="flash_fwd"), 272.317, 540.880, "heaviest_work", "void flash::flash_fwd_kernel", 20, first=True),
    Fact("rocm/mi300_resnet_rank0of8.json.gz", "Communication that no computation hides.", lambda raw: raw.exposed("comm"), 55.625, 86.605, "exposed_communication", least_pct=15, first=True),
    Fact("rocm/mi300_owlv2_skewed.json.gz", "The main thread makes batches.", lambda raw: raw.in_ops(r"^enumerate\(DataLoader\)"), 703.721, 1_096.463, "data_loading", least_pct=50, first=True),
    Fact("partial-et", "The main thread waits for the workers of the DataLoader.", lambda raw: raw.in_ops(r"^enumerate\(DataLoader\)"), 8_204.993, 16_172.052, "data_loading", least_pct=40, first=True),
)  # fmt: skip


SHORT: Final = ("h100_vit", "mi300_vit", "alexnet", "vgg13", "megatron")
SOME: Final = [
    fact if any(part in fact.path for part in SHORT) else pytest.param(fact, marks=pytest.mark.long) for fact in FACTS
]


def recording(fact: Fact) -> Path:
    path = TRACES / fact.path
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path


@cache
def linked(path: Path, folder: Path) -> graphlink.Run:
    options = graphlink.Options(sync="cuda", timeline="none")
    return graphlink.link(
        path, out=folder / str(FACTS.index(next(f for f in FACTS if TRACES / f.path == path))), options=options
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("facts")


def gain_pct(one: Advice) -> float | None:
    return one.gain_pct if one.gain_step_pct is None else one.gain_step_pct


def name(fact: Fact) -> str:
    return Path(fact.path).name.split(".")[0]


def test_there_are_twenty_and_more() -> None:
    assert len(FACTS) > 20 and all(fact.value > 0.1 * fact.of or fact.path.startswith("dlrm8") for fact in FACTS)


@pytest.mark.parametrize("fact", SOME, ids=name)
def test_the_rows_show_the_fact(fact: Fact) -> None:
    path = recording(fact)
    if path.is_dir():
        path = path / ("kineto_1.json.gz" if fact.kind == "straggler" else "kineto_0.json.gz")
    raw = nsys(path) if path.suffix == ".sqlite" else kineto(path)
    assert fact.evidence(raw) == pytest.approx(fact.value, rel=0.005)


@pytest.mark.parametrize("fact", SOME, ids=name)
def test_advice_says_the_fact_first_or_second(fact: Fact, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = linked(recording(fact), folder).advice().advice
    print(*((one.kind, one.gain_pct, one.gain_step_pct) for one in told[:4]))
    place, one = next((k, one) for k, one in enumerate(told) if one.kind == fact.kind and fact.names in one.what)
    assert place < (1 if fact.first else 2) and fact.seen in one.evidence
    if fact.least_pct is None:
        assert one.gain_pct is None and one.why_not
        assert not any(fact.names in other.what for other in told if other.kind == "heaviest_work")
        return
    gain = gain_pct(one)
    assert gain is not None and gain >= fact.least_pct
    capsys.readouterr()
    assert main([*shlex.split(one.command)[1:], "--json", "-"]) == 0
    (what_if,) = msgspec.json.decode(capsys.readouterr().out)["what_if"]
    assert what_if["gain_pct"] == one.gain_pct


def test_the_path_of_a_rank_and_a_replay_gain_the_same_without_copies(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Launches that copies held behind a full queue shrink with these: without that the path says 44.2 %."""
    run = linked(recording(next(fact for fact in FACTS if fact.kind == "copies")), folder)
    capsys.readouterr()
    assert (
        main(["replay", str(run.folder), "--rank", "0", "--machine", "ideal", "--scale", "copy=0", "--json", "-"]) == 0
    )
    (what_if,) = msgspec.json.decode(capsys.readouterr().out)["what_if"]
    gains = run.gains(0, of="shares").set_index("share")
    assert gains.gain_ns["copy"] == what_if["before_ns"] - what_if["after_ns"] > 0.9 * what_if["before_ns"]


def test_a_step_takes_as_long_in_a_replay_as_on_the_first_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From mark to mark: from the end of the work of one step to that of the next it is 1 % longer here."""
    recording = Path(__file__).parents[2] / "fixtures" / "demo"
    run = graphlink.link(recording, out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    capsys.readouterr()
    assert main(["replay", str(run.folder), "--scale", "host=1", "--json", "-"]) == 0
    (what_if,) = msgspec.json.decode(capsys.readouterr().out)["what_if"]
    assert what_if["steps_ns"][0] == pytest.approx(run.summary.ranks[0].iterations.mean_ns, rel=1e-4)
