"""Batches made by workers: what-ifs of a recording without workers, against the simulated truth of a long run with
them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from graphlink.errors import UsageError
from graphlink.model import NOWHERE
from graphlink.replay.changes import Changes, LoaderChange, TimeChange
from graphlink.replay.coupled import play_coupled
from graphlink.replay.loader import with_workers
from graphlink.replay.machines import play_ideal
from graphlink.replay.matching import matched
from graphlink.replay.records import Made
from graphlink.replay.whatif import apply
from graphlink.replay.workload import Work, Workload, workload
from graphlink.run.job import Inputs, Options, prepare
from graphlink.tables import skipped
from tests.replay.test_what_if import recorded
from tests.simulator import run
from tests.simulator.loading import Loading, loading_program

REAL = Path(__file__).parents[2] / "fixtures" / "real"


def case(seed: int) -> Loading:
    random = Random(seed)
    return Loading(
        seed=seed,
        batches=random.randint(3, 8),
        batch_ns=random.choice([300_000, 1_000_000, 3_000_000, 10_000_000]),
        kernels=random.randint(4, 20),
        blocking=random.random() < 0.5,
    )


def true_window_ns(what: Loading, windows: int = 40, kernel_scale: float = 1.0) -> float:
    """The time of a window in a long run: the mean of its second half."""
    execution = run(loading_program(replace(what, windows=windows)), kernel_scale=kernel_scale)
    begin = [row.start_ns for row in execution.host if row.name.startswith("ProfilerStep")]
    return (begin[-what.batches] - begin[(windows // 2) * what.batches]) / (windows - 1 - windows // 2)


def graph_of(folder: Path, what: Loading) -> Workload:
    return recorded(folder, run(loading_program(what)), cuda_sync=True)


def changed(work: Workload, loader: LoaderChange) -> tuple[Workload, Made]:
    return with_workers(apply(work, Changes(), {}).work, loader, {})


def predicted_ns(work: Workload, loader: LoaderChange) -> int:
    return play_ideal(changed(work, loader)[0]).total_ns


@pytest.mark.parametrize("seeds", [6, pytest.param(150, marks=pytest.mark.long)])
def test_a_window_with_workers_takes_what_one_of_a_long_run_takes(tmp_path: Path, seeds: int) -> None:
    errors = []
    for seed in range(seeds):
        random, what = Random(-seed), case(seed)
        loader = LoaderChange(workers=random.choice([1, 2, 3, 4, 8]), prefetch=random.choice([1, 2, 4]))
        true_ns = true_window_ns(replace(what, workers=loader.workers, prefetch=loader.prefetch))
        errors.append(100 * (predicted_ns(graph_of(tmp_path, what), loader) / true_ns - 1))
    print(f"{seeds} programs: median {np.median(np.abs(errors)):.2f} %, worst {max(errors, key=abs):+.2f} %")
    assert np.median(np.abs(errors)) <= 0.75
    assert max(map(abs, errors)) <= 5


@pytest.mark.parametrize(("was", "workers"), [(1, 2), (1, 3), (2, 8), (2, 1)])
def test_a_recording_with_too_few_workers_tells_what_others_take(tmp_path: Path, was: int, workers: int) -> None:
    """The recording is a window from the middle of a run with workers, in which the main thread waits for each
    batch.
    """
    what = Loading(batches=5, batch_ns=6_000_000, kernels=5)
    long = run(loading_program(replace(what, workers=was, windows=6)))
    work = recorded(tmp_path, long, cuda_sync=True)
    window_ns = predicted_ns(work, LoaderChange(workers=workers, recorded=was)) / 6
    assert window_ns == pytest.approx(true_window_ns(replace(what, workers=workers)), rel=0.05)


@pytest.mark.parametrize("seed", [0, 3, 8, 13])
def test_workers_and_faster_kernels_at_once(tmp_path: Path, seed: int) -> None:
    what = case(seed)
    scales = tuple(TimeChange(sort=sort, scale=0.5) for sort in ("kernel", "copy"))
    both = Changes(time=scales, dataloader=(LoaderChange(workers=2),))
    predicted = play_ideal(apply(graph_of(tmp_path, what), both, {}).work).total_ns
    assert predicted == pytest.approx(true_window_ns(replace(what, workers=2), kernel_scale=0.5), rel=0.02)


def test_fewer_cores_are_fewer_batches_at_a_time(tmp_path: Path) -> None:
    work = graph_of(tmp_path, Loading(batch_ns=10_000_000))
    assert predicted_ns(work, LoaderChange(workers=8, cores=3)) == pytest.approx(
        predicted_ns(work, LoaderChange(workers=2, prefetch=8)), rel=0.01
    )
    assert predicted_ns(work, LoaderChange(workers=8, cores=1)) == pytest.approx(
        predicted_ns(work, LoaderChange(workers=1, prefetch=16)), rel=0.01
    )


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shows no DataLoader"):
        changed(
            recorded(tmp_path, run(loading_program(Loading(name="next(batches)"))), cuda_sync=True),
            LoaderChange(workers=2),
        )
    work = graph_of(tmp_path, Loading(workers=4, batch_ns=300_000, kernels=20))
    with pytest.raises(UsageError, match="does not say how many"):
        changed(work, LoaderChange(workers=2))
    with pytest.raises(UsageError, match="does not show how long a batch takes"):
        changed(work, LoaderChange(workers=2, recorded=4))


def real(name: str) -> Workload:
    prepared = prepare(Inputs(kineto=REAL / name / "kineto_0.json.gz"), Options(sync="cuda"))
    return workload({0: prepared.built.graph})


def test_the_second_recording_of_the_tutorial_is_predicted_from_the_first() -> None:
    """One worker in the first, eight in the second, recorded a minute later; the difference is noise of the machine and
    what workers cost the main thread."""
    first, second = real("dataloader"), real("dataloader-8-workers")
    predicted = predicted_ns(first, LoaderChange(workers=8, recorded=1, prefetch=1))
    assert predicted == pytest.approx(play_ideal(second).total_ns, rel=0.05)
    assert predicted_ns(first, LoaderChange(workers=1, recorded=1, prefetch=1)) == pytest.approx(
        play_ideal(first).total_ns, rel=0.05
    )


def test_each_rank_has_workers_of_its_own(tmp_path: Path) -> None:
    """Two ranks without communication: together they take what the slower one takes alone."""
    alone = [graph_of(tmp_path, Loading(seed=seed, batch_ns=5_000_000)) for seed in (1, 2)]
    both = workload({rank: one.files[0] for rank, one in enumerate(alone)})
    loader = LoaderChange(workers=3)
    played = play_coupled(changed(both, loader)[0], matched(changed(both, loader)[0], {0: (0,)}))
    assert played.total_ns == max(predicted_ns(one, loader) for one in alone)
    assert changed(both, loader)[1].what.count("batches of") == 2
    several = workload(dict.fromkeys(range(4), alone[0].files[0]))
    assert changed(several, loader)[1].what.endswith("; ...")


def test_callers_in_a_circle_have_no_outermost() -> None:
    beside, gone = np.array([1, 2, 0, 0, NOWHERE, 4]), np.array([True, True, True, True, False, True])
    assert skipped(beside, gone).tolist() == [NOWHERE, NOWHERE, NOWHERE, NOWHERE, 4, 4]


def test_workers_are_not_recorded(tmp_path: Path) -> None:
    """What recording costs each op is no part of a batch of theirs, where that is known."""
    work = apply(graph_of(tmp_path, Loading(batch_ns=3_000_000)), Changes(), {}).work
    loader, ops = LoaderChange(workers=1), int(((work.work == Work.HOST) & ~work.is_part).sum())
    told, bare = (with_workers(work, loader, {}, {0: ns}) for ns in (0, 100_000 * ops))
    assert "recording" in bare[1].what and "recording" not in told[1].what
    saved_ns = play_ideal(told[0]).total_ns - play_ideal(bare[0]).total_ns
    assert saved_ns == pytest.approx(6 * 4 * 100_000, rel=0.1), "of six batches, with four ops each"
