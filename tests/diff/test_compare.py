"""Two runs compared: the verdict over simulated steps, exact sums, what compares and what is refused, text and exit
status.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from graphlink.cli.out import rendered
from graphlink.diff import facts
from graphlink.diff.compare import compare
from graphlink.diff.noise import Noise, Usual
from graphlink.diff.pairs import Matched, Pair
from graphlink.diff.records import DiffReport, Split, Verdict
from graphlink.diff.structure import structure
from graphlink.diff.table import diff_table, moved_most
from graphlink.diff.verdict import fail_on, verdict
from graphlink.diff.work import uniform
from graphlink.errors import InputError
from graphlink.gpu.records import StepTime
from graphlink.records import amount
from graphlink.run.library import link
from graphlink.run.library import open as open_run
from graphlink.run.options import Options
from tests.cli.conftest import Ran
from tests.diff.conftest import Link
from tests.diff.planted import LOADER, base, before_end, edited, noisy, op, renamed, scaled
from tests.simulator import Program, Training, run, training_program, write_kineto
from tests.simulator.program import Host

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
STEPS = 20
MEAN_NS = 100_000_000
DOUBLED = scaled(2, lambda _, where: where.within("aten::convolution"))


def with_steps(run: facts.RunFacts, took_ns: list[int]) -> facts.RunFacts:
    """The same run with other steps, one behind the other."""
    ends = np.cumsum(took_ns).tolist()
    steps = [
        StepTime(name=f"ProfilerStep#{k}", start_ns=end - took, end_ns=end, gpu=[])
        for k, (end, took) in enumerate(zip(ends, took_ns, strict=True))
    ]
    rank = run.ranks[0]
    entry = msgspec.structs.replace(rank.entry, steps=steps)
    return replace(run, ranks={0: replace(rank, entry=entry)})


def answers(folder: Path, pairs: int, factor: float, count: int = STEPS, share: float = 0.03) -> list[Verdict]:
    """The verdicts on pairs of runs whose steps vary by ``share``; the first step takes three times as long."""
    one, out = facts.load(folder), []
    for seed in range(pairs):
        random = np.random.default_rng([seed, 5])
        sides = []
        for by in (1.0, factor):
            took = np.rint(random.normal(MEAN_NS * by, share * MEAN_NS * by, count)).astype(np.int64).tolist()
            sides.append(with_steps(one, [3 * MEAN_NS, *took[1:]]))
        out.append(verdict(*sides, facts.basis(*sides)))
    return out


def test_two_recordings_of_one_program_are_the_same(folder: Path) -> None:
    found = Counter(one.answer for one in answers(folder, 100, 1.0))
    assert found["the same"] >= 97


@pytest.mark.parametrize(("factor", "answer"), [(1.05, "worse"), (0.95, "better")])
def test_a_change_of_five_per_cent_is_found(folder: Path, factor: float, answer: str) -> None:
    found = answers(folder, 100, factor)
    assert Counter(one.answer for one in found)[answer] >= 95  # type: ignore[index]
    inside = sum(
        one.low_pct <= 100 * (factor - 1) <= one.high_pct
        for one in found
        if one.low_pct is not None and one.high_pct is not None
    )
    assert inside >= 95


def test_the_margin_holds_the_truth_as_often_as_it_says(folder: Path) -> None:
    found = answers(folder, 300, 1.0)
    assert 0.98 <= np.mean([one.low_pct <= 0 <= one.high_pct for one in found]) <= 1.0  # type: ignore[operator]


def test_too_few_steps_and_steps_that_vary_too_much_cannot_tell(folder: Path) -> None:
    assert {one.answer for one in answers(folder, 20, 1.02, count=3)} == {"cannot tell"}
    two = answers(folder, 1, 1.2, count=3)[0].why
    assert (
        two
        == "too few steps: A has 2 and B has 2 after the first, and these prove no difference; 'the same' needs 3 on "
        "each side"
    )
    assert "too few steps: A has 1 and B has 1" in answers(folder, 1, 4.0, count=2)[0].why
    assert (
        answers(folder, 1, 4.0, count=3, share=0.001)[0].answer == "worse"
    )  # far beyond what two steps on each side vary
    vary = answers(folder, 20, 1.0, count=6, share=0.2)
    assert Counter(one.answer for one in vary)["cannot tell"] >= 19
    assert all(one.change_ns == one.after_ns - one.before_ns for one in vary)


def test_steps_that_are_alike_in_both_runs_are_compared_pair_by_pair(folder: Path) -> None:
    one, random = facts.load(folder), np.random.default_rng(3)
    work = random.uniform(0.5, 1.5, STEPS)  # as of batches of other lengths
    sides = [
        with_steps(one, np.rint(MEAN_NS * work * random.normal(by, 0.01, STEPS)).astype(np.int64).tolist())
        for by in (1.0, 1.03)
    ]
    found = verdict(*sides, facts.basis(*sides))
    assert (found.answer, found.test) == ("worse", "paired")


def test_fail_on_asks_for_more_than_the_limit_and_for_a_test(folder: Path) -> None:
    slower, same = answers(folder, 1, 1.10)[0], answers(folder, 1, 1.0)[0]
    assert fail_on(slower, 3.0).exceeded
    assert not fail_on(slower, 15.0).exceeded
    assert not fail_on(same, 0.0).exceeded
    few = answers(folder, 1, 1.10, count=2, share=0.001)[0]
    assert few.answer == "cannot tell"
    assert fail_on(few, 3.0).exceeded
    assert "by the difference alone" in fail_on(few, 3.0).why
    assert not fail_on(few, 20.0).exceeded
    vary = next(
        one
        for one in answers(folder, 30, 1.10, count=5, share=0.3)
        if one.change_pct > 3 and one.answer == "cannot tell"
    )
    assert not fail_on(vary, 3.0).exceeded
    assert not fail_on(msgspec.structs.replace(slower, identical=True), 3.0).exceeded


def sums(split: Split) -> tuple[int, int, int]:
    return (
        sum(part.before_ns for part in split.parts),
        sum(part.after_ns for part in split.parts),
        sum(part.change_ns for part in split.parts),
    )


def check(report: DiffReport) -> None:
    """What must hold of every report: sums are exact, and it is the JSON that it says."""
    for split in (report.split, *report.splits):
        assert sums(split) == (split.before_ns, split.after_ns, split.change_ns)
    assert abs(report.split.change_ns - report.verdict.change_ns) <= 1
    assert msgspec.json.decode(msgspec.json.encode(report), type=DiffReport) == report
    shares = [one.change_pct for one in report.changes if one.change_pct is not None]
    assert all(np.isfinite(shares))
    tiers = [one.tier == "effect" for one in report.changes]
    assert tiers == sorted(tiers)


def test_one_recording_with_itself_is_identical(folder: Path) -> None:
    report = compare(folder, folder, limit_pct=0.0)
    check(report)
    assert (report.verdict.answer, report.verdict.identical, report.changes) == ("the same", True, [])
    assert report.comparable.score == 100
    assert not report.kernels
    assert not report.syncs
    assert report.fail_on is not None
    assert not report.fail_on.exceeded
    assert rendered(diff_table(report, 5)).startswith("B is the same as A: the recordings are identical")


@pytest.mark.parametrize("steps", [1, 2])
def test_identical_recordings_with_few_steps_are_the_same(linked: Link, steps: int) -> None:
    folder = linked(training_program(5, Training(steps=steps))).folder
    assert compare(folder, folder).verdict.answer == "the same"


def test_noise_is_not_named(linked: Link) -> None:
    program = training_program(3, Training(steps=12, layers=2))
    one, other = (linked(noisy(program, 0.03, seed)).folder for seed in (1, 2))
    report = compare(one, other)
    check(report)
    assert report.verdict.answer == "the same"
    assert not report.changes


def test_a_report_of_a_change_adds_up(linked: Link, training: Program, folder: Path) -> None:
    changed = edited(training, DOUBLED)
    report = open_run(folder).diff(linked(changed))
    check(report)
    operation = report.operations[0]
    assert operation.path[-1] == "aten::conv2d"
    assert (operation.calls_before, operation.calls_after) == (2, 2)
    text = rendered(diff_table(report, 3))
    assert text.splitlines()[0].startswith(("B is worse: ", "Cannot tell: "))
    assert text.index("what changed, causes first") < text.index("where it shows") < text.index("where the time goes")


def test_what_moved_most_is_named_where_causes_explain_less_than_half(
    linked: Link, training: Program, folder: Path
) -> None:
    report = open_run(folder).diff(linked(edited(training, DOUBLED)))
    report = msgspec.structs.replace(report, verdict=msgspec.structs.replace(report.verdict, answer="worse"))
    assert moved_most(report) == ""
    whole = report.verdict.after_ns - report.verdict.before_ns
    unknown = msgspec.structs.replace(report, changes=[])
    assert moved_most(unknown).startswith(f"causes explain +0.000 of {whole / 1e6:+,.3f} ms; what moved most: aten::")
    alike = msgspec.structs.replace(unknown, verdict=msgspec.structs.replace(report.verdict, answer="the same"))
    assert moved_most(alike) == ""
    assert moved_most(unknown) in rendered(diff_table(unknown, 3), 200)


def test_a_run_without_steps_is_compared_as_a_whole(linked: Link, tmp_path: Path, training: Program) -> None:
    def unmarked(action: Any, _: Any) -> list[Any]:
        name = getattr(action, "name", "")
        return [replace(action, name="work")] if name.startswith(("ProfilerStep", "Optimizer")) else [action]

    one = edited(edited(training, unmarked), before_end("aten::zeros", lambda: [Host(5_000)]))
    other = edited(edited(training, DOUBLED), unmarked)
    report = compare(linked(one).folder, linked(other).folder)
    check(report)
    assert report.changes[0].kind == "operation"
    assert report.changes[0].factor == pytest.approx(2, rel=0.02)


def test_names_of_anybody_are_shown_as_text(linked: Link, training: Program) -> None:
    hostile = "</script>\x1b[31m\u202e<b>x"

    def named(action: Any, where: Any) -> list[Any]:
        return [replace(action, name=hostile)] if getattr(action, "name", "") == "aten::relu" else [action]

    one = edited(training, named)
    other = edited(one, scaled(2, lambda _, where: where.within(hostile)))
    report = compare(linked(one).folder, linked(other).folder)
    assert report.changes[0].path == [hostile]
    text = rendered(diff_table(report, 3))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_other_programs_are_refused_with_one_message(
    graphlink: Callable[..., Ran], folder: Path, tmp_path: Path, linked: Link
) -> None:
    def other_ops(action: Any, where: Any) -> list[Any]:
        name = getattr(action, "name", "")
        return [replace(action, name=f"other::{name[6:]}x")] if name.startswith("aten::") else [action]

    other = linked(edited(edited(base(), other_ops), renamed("", "other_kernel", ""))).folder
    ran = graphlink("diff", folder, other)
    assert (ran.status, ran.out) == (1, "")
    assert "cannot be compared" in ran.err
    assert "--anyway" in ran.err
    assert len(ran.err.splitlines()) <= 5
    told = graphlink("diff", folder, other, "--anyway")
    assert told.status == 0 and told.out.startswith("The runs do not compare: ")
    assert "the score is below 30" in told.out and "better" not in told.out and "chance" not in told.out


def test_the_exit_status_is_4_where_it_is_slower_than_allowed(
    graphlink: Callable[..., Ran], folder: Path, linked: Link
) -> None:
    slower = linked(edited(base(), scaled(3, lambda work, _: work.kind == "kernel"))).folder
    assert graphlink("diff", folder, slower).status == 0
    for given in ("3%", "3"):
        ran = graphlink("diff", folder, slower, "--fail-on", given)
        assert ran.status == 4
        assert "--fail-on 3%: exceeded" in ran.out
    assert graphlink("diff", slower, folder, "--fail-on", "3%").status == 0
    assert graphlink("diff", folder, folder, "--fail-on", "0").status == 0
    assert (
        json.loads(graphlink("diff", folder, slower, "--fail-on", "3%", "--json", "-").out)["fail_on"]["exceeded"]
        is True
    )
    assert graphlink("diff", folder, slower, "--fail-on", "-3%").status == 2


def test_folders_that_are_none_are_refused(graphlink: Callable[..., Ran], folder: Path, tmp_path: Path) -> None:
    ran = graphlink("diff", folder, tmp_path)
    assert (ran.status, "there is no such file" in ran.err) == (1, True)
    with pytest.raises(InputError):
        compare(tmp_path, folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Public recordings, linked once."""
    known: dict[tuple[str, ...], Path] = {}

    def of(*names: str) -> Path:
        files = [TRACES / name for name in names]
        if not all(file.exists() for file in files):
            pytest.skip("the public recordings are not there")
        if names not in known:
            known[names] = link(
                *files, out=tmp_path_factory.mktemp("recorded") / "out", options=Options(timeline="none")
            ).folder
        return known[names]

    return of


def test_one_model_on_two_makes_of_gpu_is_compared_by_op(recorded: Callable[..., Path]) -> None:
    report = compare(recorded("inference/h100_vit.json.gz"), recorded("inference/mi300_vit.json.gz"))
    check(report)
    assert report.comparable.other_hardware
    assert report.comparable.score > 80
    assert report.verdict.answer == "cannot tell"
    assert report.changes[0].kind == "hardware"
    compute = next(part for part in report.split.parts if part.what == "compute")
    assert (compute.before_ns, compute.after_ns) == pytest.approx(
        (1_225_309, 1_716_299), abs=20
    )  # as TraceLens publishes
    alone = {one.path[-1] for one in report.operations if one.device_before_ns and not one.device_after_ns}
    assert "aten::cudnn_convolution" in alone
    assert "in A alone" in rendered(diff_table(report, 6))


def test_another_model_is_refused(recorded: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="cannot be compared"):
        compare(recorded("inference/h100_vit.json.gz"), recorded("vgg13-h100/kineto_0.json.gz"))


def test_two_ranks_linked_alone_are_compared(recorded: Callable[..., Path]) -> None:
    names = [
        ("megatron-tp2-v100/et_0.json.gz", "megatron-tp2-v100/kineto_0.json.gz"),
        ("megatron-tp2-v100/et_1.json.gz", "megatron-tp2-v100/kineto_1.json.gz"),
    ]
    report = compare(*(recorded(*pair) for pair in names))
    check(report)
    assert report.comparable.score == 100
    assert any("rank 0 is compared with rank 1" in note for note in report.notes)


@pytest.mark.parametrize(("which", "letter"), [(0, "A"), (1, "B")])
def test_a_run_with_few_recorded_replays_is_said_so(
    tmp_path: Path, training: Program, monkeypatch: pytest.MonkeyPatch, which: int, letter: str
) -> None:
    write_kineto(run(training), tmp_path / "a.json")
    link(tmp_path / "a.json", out=tmp_path / "out", options=Options(timeline="none"))
    facts_of, loaded = facts.load, list[facts.RunFacts]()

    def load(folder: Path) -> facts.RunFacts:
        of = facts_of(folder)
        if len(loaded) == which:
            of.ranks[0].entry.gpu[0] = msgspec.structs.replace(of.ranks[0].entry.gpu[0], replays=(4, 32))
        loaded.append(of)
        return of

    monkeypatch.setattr(facts, "load", load)
    (note,) = (one for one in compare(tmp_path / "out", tmp_path / "out").notes if "replays" in one)
    assert note == f"{letter} recorded 4 of 32 replays of CUDA graphs: what the others ran counts as idle time"


def test_a_moved_device_clock_is_no_change(tmp_path: Path, training: Program) -> None:
    from tests.simulator import changes, kineto_document, write_json

    document = kineto_document(run(training))
    folders = []
    for name, shift in (("a", 0), ("b", 12)):
        write_json(changes.device_clock(document, shift).document, tmp_path / f"{name}.json")
        folders.append(link(tmp_path / f"{name}.json", out=tmp_path / name, options=Options(timeline="none")).folder)
    report = compare(*folders)
    check(report)
    assert report.verdict.change_ns == 0
    assert all(abs(one.change_pct or 0) < 0.2 for one in report.changes)


def on_host(action: Any, _: Any) -> list[Any]:
    """No GPU calls."""
    return [] if hasattr(action, "api") else [action]


def test_host_only_recordings_are_compared_by_host_time(tmp_path: Path) -> None:
    program, folders = edited(base(), on_host), []
    for name, made in (("a", program), ("b", edited(program, before_end("aten::linear", lambda: [Host(100_000)])))):
        write_kineto(run(made), tmp_path / f"{name}.json")
        folders.append(link(tmp_path / f"{name}.json", out=tmp_path / name, options=Options(timeline="none")).folder)
    report = compare(*folders)
    check(report)
    assert report.changes[0].path[-1] == "aten::linear"
    assert report.changes[0].change_ns == pytest.approx(200_000, rel=0.02)


def test_what_a_loader_does_inside_takes_nothing_off_the_score(linked: Link, training: Program) -> None:
    loading = edited(edited(training, on_host), before_end(LOADER, lambda: op("aten::set_", Host(1_000_000))))
    more = edited(loading, before_end(LOADER, lambda: [*op("aten::set_"), *op("aten::set_")]))
    report = compare(linked(loading).folder, linked(more).folder)
    check(report)
    assert report.comparable.alike_pct > 99


def test_a_loader_with_other_workers_is_the_same_work(tmp_path: Path) -> None:
    real = Path(__file__).resolve().parents[2] / "fixtures" / "real"
    names = ("dataloader", "dataloader-8-workers")
    report = compare(
        *(link(real / name, out=tmp_path / name, options=Options(timeline="none")).folder for name in names)
    )
    assert report.comparable.score == 100
    (work,) = [one for one in report.comparable.reasons if one.about == "work"]
    assert work.same and work.before == work.after == "98 operations"
    text = rendered(diff_table(report, 6))
    assert (
        "at least 66.3 % less time at 99.5 % confidence" in text
    )  # the other end of the margin would be below nothing
    assert "operations, largest change of host time first" in text and "device A ms" not in text
    slower = compare(*(tmp_path / name for name in reversed(names)))
    for one in (report, slower):
        assert one.changes[0].kind == "data_loading" and abs(one.changes[0].change_ns or 0) > 26_000_000


def of_path(path: tuple[str, ...], before: float, after: float, counts: tuple[float, float] = (1, 1)) -> Pair:
    """A part of the host, of one step before and after."""
    values = [np.array([float(value)]) for value in (*counts, before, after)]
    return Pair(path, "host", "", "", False, values[0], values[1], values[2], values[3])


@pytest.mark.parametrize(
    ("times", "factor"),
    [
        ([(40, 60), (30, 45), (20, 30)], 1.5),
        ([(40, 60), (30, 45), (20, 20)], 1.5),  # a part is as long as before
        ([(400, 408), (300, 306), (100, 102), (20, 1300)], None),  # a part that took little explodes
        ([(400, 408), (300, 306), (100, 102), (60, 300)], None),  # its time after is no large part either
    ],
)
def test_one_factor_of_all_is_the_cause_only_where_it_is_most_of_the_change(
    times: list[tuple[float, float]], factor: float | None
) -> None:
    pairs = [of_path((f"op{k}",), *both) for k, both in enumerate(times)]
    swapped = [of_path(pair.path, *pair.mean_ns[::-1]) for pair in pairs]
    assert uniform(pairs, pairs) == factor
    assert uniform(swapped, swapped) == (pytest.approx(1 / factor) if factor else None)


def test_time_of_no_operation_is_not_named_as_one() -> None:
    host = of_path((), 100, 50, (1367, 5))
    wait = replace(host, of="waiting_call", name="cudaDeviceSynchronize")
    matched = Matched("ops of the path", False, 1.0, 1.0)
    usual = Usual(0.0, exact=True)
    (change,) = structure([host, wait], Noise(False, usual, usual, usual, 1, 100.0), matched, "in all")
    assert change.what == "waiting for the GPU by cudaDeviceSynchronize is done 1,367 -> 5 times in all"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (3, "3"), (12.345, "12.35"), (999.97, "1,000"), (12_760, "12,760"), (2.5e9, "2,500,000,000")],
)
def test_amounts_have_no_exponent(number: float, text: str) -> None:
    assert amount(number) == text
