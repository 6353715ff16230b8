from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.pipeline.paddle.logs import JobLog, read_paddle
from graphlink.pipeline.paddle.runs import LOWER_BOUND, stage_runs
from graphlink.pipeline.records import Pass, StageRun
from graphlink.ranks.clock_bounds import closed, loosened, solved
from tests.paddle_runs import US, Op, copies, equal_times, gpipe, interleaved, one_f_one_b, simulate, v_shaped, zb_h1
from tests.simulator.paddle import EPOCH_NS, Job, Variation, write_paddle

Row = tuple[str, int, int, int, int, int, int]  # phase, step, stage, chunk, microbatch, start, end
PHASES = {"forward": "F", "backward": "B", "backward_b": "I", "backward_w": "W", "optimizer": "OPT"}
MS = 1_000_000


@dataclass(frozen=True)
class PaddleRuns:
    """What a folder of logs says of its pipelines."""

    runs: list[StageRun]
    warnings: list[str]

    @property
    def pipelines(self) -> list[list[int]]:
        """The ranks of each, in stage order."""
        after = {run.previous: run.rank for run in self.runs if run.previous != NOWHERE}
        out = [[run.rank] for run in self.runs if run.previous == NOWHERE]
        for pipeline in out:
            while pipeline[-1] in after:
                pipeline.append(after[pipeline[-1]])
        return out


def runs_of(jobs: Sequence[Sequence[Job]], folder: Path, vary: Variation | None = None) -> PaddleRuns:
    write_paddle(jobs, folder, vary)
    return PaddleRuns(*stage_runs(read_paddle(folder)))


def rows(run: StageRun) -> list[Row]:
    r = run.ranges
    columns = [c.tolist() for c in (r.step, r.stage, r.chunk, r.microbatch, r.start_ns - EPOCH_NS, r.end_ns - EPOCH_NS)]
    return list(zip([Pass(p).name for p in r.phase.tolist()], *columns, strict=True))


def truth(
    jobs: Sequence[Sequence[Job]], first_step: int = 0, turned: bool = False, stages: int | None = None
) -> list[list[Row]]:
    """What each worker's ranges are, workers being in stage order (copies of a stage next to each other)."""
    p = stages or len(jobs)
    out = []
    for worker, mine in enumerate(jobs):
        at, step, rows = worker * p // len(jobs), first_step, []
        for job in mine:
            if job.type == "optimizer":
                rows.append(("OPT", step, at, NOWHERE, NOWHERE, job.start_ns, job.end_ns))
                step += 1
            elif job.type in PHASES:
                chunk = job.chunk or 0
                stage = chunk * p + (p - 1 - at if turned and chunk % 2 else at)
                rows.append((PHASES[job.type], step, stage, chunk, job.microbatch, job.start_ns, job.end_ns))
        out.append(rows)
    return out


def only_lower_bound(runs: PaddleRuns) -> bool:
    return runs.warnings == [LOWER_BOUND] and not any(run.warnings for run in runs.runs)


SCHEDULES = {
    "gpipe": gpipe(4, 8),
    "1f1b": one_f_one_b(4, 8),
    "1f1b, fewer microbatches than stages": one_f_one_b(6, 3),
    "zb-h1": zb_h1(4, 8),
    "interleaved": interleaved(4, 8, 2),
    "interleaved, 4 chunks": interleaved(2, 4, 4),
    "interleaved, as many microbatches as stages": interleaved(4, 4, 2),
    "one stage": gpipe(1, 4),
}


def uneven(r: int, op: Op) -> int:
    return {"F": 700, "B": 1500, "I": 900, "W": 600}[op.phase] * US + 50_001 * r + 3_003 * op.microbatch


@pytest.mark.parametrize("transfer_ns", [0, 130_000])
@pytest.mark.parametrize("duration", [equal_times(), uneven], ids=["equal", "uneven"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_range_of_every_schedule(
    tmp_path: Path, name: str, duration: Callable[[int, Op], int], transfer_ns: int
) -> None:
    jobs = simulate(SCHEDULES[name], duration, transfer_ns=transfer_ns, steps=2)
    runs = runs_of(jobs, tmp_path, Variation(other_lines=2, number="type", first_step=7, stop_step=9))
    assert [rows(run) for run in runs.runs] == truth(jobs, first_step=7)
    assert runs.pipelines == [[*range(len(jobs))]]
    assert only_lower_bound(runs)
    for run, mine in zip(runs.runs, jobs, strict=True):
        work = [j for j in mine if j.type != "optimizer"]
        assert (run.work.end_ns - run.work.start_ns).sum() == sum(j.end_ns - j.start_ns for j in work)
        assert (run.work.start_ns[1:] > run.work.end_ns[:-1]).all()
        assert run.ranges.busy_ns.tolist() == (run.ranges.end_ns - run.ranges.start_ns).tolist()
        assert {run.ranges.rules[i] for i in run.ranges.rule.tolist()} == {"paddle"}
        assert (run.sees_device, run.sees_causes, len(run.exchanges.start_ns), len(run.delays.start_ns)) == (
            True,
            False,
            0,
            0,
        )


def test_the_second_chunk_of_a_v_runs_from_the_last_rank_to_the_first(tmp_path: Path) -> None:
    jobs = simulate(v_shaped(4, 6), equal_times(), v=True)
    runs = runs_of(jobs, tmp_path)
    assert [rows(run) for run in runs.runs] == truth(jobs, turned=True)
    assert only_lower_bound(runs)


@pytest.mark.parametrize("orders", [gpipe(3, 4), one_f_one_b(4, 8)], ids=["gpipe", "1f1b"])
def test_microbatches_are_numbered_by_order_where_lines_have_none(tmp_path: Path, orders: list[list[Op]]) -> None:
    jobs = simulate(orders, uneven, steps=2)
    runs = runs_of(jobs, tmp_path, Variation(microbatch_field=False, number="job"))
    assert [rows(run) for run in runs.runs] == truth(jobs)
    assert {run.ranges.rules[i] for run in runs.runs for i in run.ranges.rule.tolist()} == {
        "inferred: microbatch by order"
    }


@pytest.mark.parametrize("orders", [interleaved(4, 8, 2), interleaved(2, 4, 3)], ids=["2 chunks", "3 chunks"])
def test_chunks_without_numbers_are_told_by_occurrence_and_backwards_in_reverse(
    tmp_path: Path, orders: list[list[Op]]
) -> None:
    typed, plain = (simulate(orders, uneven, steps=2, typed_chunks=typed) for typed in (True, False))
    runs = runs_of(plain, tmp_path)
    assert [rows(run) for run in runs.runs] == truth(typed)
    assert {run.ranges.rules[i] for run in runs.runs for i in run.ranges.rule.tolist()} == {
        "paddle, chunk by occurrence"
    }


def test_the_parts_of_an_overlapped_forward_and_backward_are_one_range(tmp_path: Path) -> None:
    """``forward(chunk0)``, ``forward(chunk1)`` are halves of a forward that 1F1B lays between those of a backward: no
    model chunks.
    """
    jobs = [
        Job("forward", 0, 0, 100),
        *(Job(f"{kind}(chunk{k})", mb, 100 + at, 190 + at) for at, (kind, mb, k) in zip(
            range(0, 400, 100), [("backward", 0, 0), ("forward", 1, 0), ("backward", 0, 1), ("forward", 1, 1)], strict=True
        )),
        Job("backward", 1, 500, 600),
        Job("optimizer", 0, 700, 800),
    ]  # fmt: skip
    (run,) = runs_of([jobs], tmp_path).runs
    assert [(row[0], row[3], row[4], *row[5:]) for row in rows(run)] == [
        ("F", 0, 0, 0, 100),
        ("B", 0, 0, 100, 390),
        ("F", 0, 1, 200, 490),
        ("B", 0, 1, 500, 600),
        ("OPT", NOWHERE, NOWHERE, 700, 800),
    ]
    assert run.ranges.busy_ns.tolist() == [100, 180, 180, 100, 100]
    assert (run.work.end_ns - run.work.start_ns).sum() == 560
    assert run.warnings == ()


def test_lr_default_and_communication_jobs_have_no_phase(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(2, 4), equal_times(), steps=2, lr=True)
    jobs[1].append(Job("recv_forward", 0, jobs[1][-1].end_ns, jobs[1][-1].end_ns + 5))
    runs = runs_of(jobs, tmp_path)
    assert [rows(run) for run in runs.runs] == truth(jobs)
    assert runs.runs[0].left_out == {"lr jobs, which have no phase": 2}
    assert runs.runs[1].left_out == {"lr jobs, which have no phase": 2, "recv_forward jobs, which have no phase": 1}


# steps


def test_steps_begin_with_lr_where_no_optimizer_is_logged(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(3, 4), equal_times(), steps=3, optimizer=False, lr=True)
    runs = runs_of(jobs, tmp_path)
    assert [[row[1] for row in rows(run)] for run in runs.runs] == [[0] * 8 + [1] * 8 + [2] * 8] * 3
    assert only_lower_bound(runs)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize(
    "orders", [one_f_one_b(4, 8), gpipe(3, 3), interleaved(2, 4, 2)], ids=["1f1b", "gpipe", "interleaved"]
)
def test_without_marks_steps_are_cut_at_gaps_and_this_is_said(
    tmp_path: Path, orders: list[list[Op]], header: bool
) -> None:
    jobs = simulate(orders, equal_times(), steps=3, optimizer=False)
    runs = runs_of(jobs, tmp_path, Variation(first_step=4, stop_step=7) if header else None)
    assert [rows(run) for run in runs.runs] == [
        [(*row[:1], (4 if header else 0) + i * 3 // len(mine), *row[2:]) for i, row in enumerate(mine)]
        for mine in truth(jobs)
    ]
    assert (
        "the logs hold neither optimizer nor lr jobs: steps are cut at the longest idle gaps" in runs.runs[0].warnings
    )


def test_one_step_without_marks_is_one_step(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(3, 4), equal_times(), optimizer=False)
    runs = runs_of(jobs, tmp_path)
    assert [rows(run) for run in runs.runs] == truth(jobs)
    assert runs.runs[0].warnings == ("the logs hold neither optimizer nor lr jobs: steps are taken as one",)


@pytest.mark.parametrize("microbatch_field", [True, False])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_lost_optimizer_line_is_made_good_at_the_longest_gap(
    tmp_path: Path, worker: int, microbatch_field: bool
) -> None:
    jobs = simulate(one_f_one_b(3, 4), equal_times(), steps=3)
    at = next(i for i, job in enumerate(jobs[worker]) if job.type == "optimizer")
    runs = runs_of(jobs, tmp_path, Variation(lost=frozenset({(worker, at)}), microbatch_field=microbatch_field))
    expected = truth(jobs)
    expected[worker].remove(next(row for row in expected[worker] if row[0] == "OPT"))
    assert [rows(run) for run in runs.runs] == expected
    assert any("optimizer or lr jobs are missing" in warning for warning in runs.runs[worker].warnings)


@pytest.mark.parametrize(("worker", "at"), [(0, 0), (0, 3), (1, 4), (2, 5), (2, 7), (2, 10)])
def test_a_lost_line_moves_no_other_job(tmp_path: Path, worker: int, at: int) -> None:
    """Paddle's own tool begins a step at each forward of microbatch 0, and loses one with that line."""
    jobs = simulate(one_f_one_b(3, 4), equal_times(), steps=3)
    runs = runs_of(jobs, tmp_path, Variation(lost=frozenset({(worker, at)})))
    expected = truth(jobs)
    del expected[worker][at]
    assert [rows(run) for run in runs.runs] == expected
    assert sum("have not as many forwards as backwards" in w for w in runs.runs[worker].warnings) == 1
    assert not any(run.warnings for run in runs.runs if run.rank != worker)


def test_a_lost_line_among_chunks_without_numbers_leaves_its_chunk_unknown(tmp_path: Path) -> None:
    jobs = simulate(interleaved(2, 4, 2), equal_times(), typed_chunks=False)
    at = next(i for i, job in enumerate(jobs[0]) if (job.type, job.microbatch) == ("forward", 1))
    runs = runs_of(jobs, tmp_path, Variation(lost=frozenset({(0, at)})))
    unknown = [row for row in rows(runs.runs[0]) if row[3] == NOWHERE and row[0] != "OPT"]
    assert [(row[0], row[4]) for row in unknown] == [("F", 1)]
    assert rows(runs.runs[1]) == truth(simulate(interleaved(2, 4, 2), equal_times()))[1]


def test_a_cut_log_keeps_its_complete_steps_and_is_told(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(3, 4), equal_times(), steps=3)
    length = sum(len(line) + 1 for line in (write_paddle(jobs, tmp_path)[2]).read_text().splitlines()[-10:])
    runs = runs_of(jobs, tmp_path, Variation(cut_bytes={2: length}))
    assert rows(runs.runs[2]) == truth(jobs)[2][:-10]
    assert "holds 2 steps where others hold 3" in " ".join(runs.runs[2].warnings)


def test_a_log_that_begins_late_keeps_to_the_steps_of_the_others(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(3, 4), equal_times(), steps=3)
    lost = frozenset((1, i) for i in range(len(jobs[1]) // 3))
    runs = runs_of(jobs, tmp_path, Variation(lost=lost))
    assert rows(runs.runs[1]) == truth(jobs)[1][len(lost) :]
    assert rows(runs.runs[1])[0][1] == 1


def test_workers_that_begin_at_different_steps_are_told(tmp_path: Path) -> None:
    jobs = simulate(gpipe(2, 2), equal_times())
    for worker, first in enumerate((3, 5)):
        write_paddle([jobs[worker]], tmp_path / f"machine{worker}", Variation(first_step=first, stop_step=first + 1))
    runs = PaddleRuns(*stage_runs(read_paddle(tmp_path)))
    assert {row[1] for run in runs.runs for row in rows(run)} == {0}
    assert "logs begin at different steps (3, 5): steps are numbered from 0" in runs.warnings


def test_numbers_of_microbatches_with_holes_are_told(tmp_path: Path) -> None:
    jobs = simulate(gpipe(2, 2), equal_times())
    runs = runs_of([[replace(job, microbatch=10 * job.microbatch) for job in mine] for mine in jobs], tmp_path)
    assert rows(runs.runs[1]) == truth(jobs)[1]
    assert [text for run in runs.runs for text in run.warnings] == [
        "the microbatches of the logs are 0, 10: numbered from 0"
    ]


def test_a_run_written_behind_another_is_told(tmp_path: Path) -> None:
    jobs = simulate(gpipe(2, 2), equal_times(), steps=4)
    warning = "logs hold 4 steps where their headers say 2: several runs may have written into them"
    assert warning in runs_of(jobs, tmp_path, Variation(first_step=5, stop_step=7)).warnings
    assert warning not in runs_of(jobs, tmp_path, Variation(first_step=5, stop_step=9)).warnings


# stages


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved"])
def test_stages_are_found_whatever_the_order_of_the_workers(tmp_path: Path, name: str) -> None:
    jobs = simulate(SCHEDULES[name], uneven, steps=2)
    for k, order in enumerate(itertools.islice(itertools.permutations(range(len(jobs))), 0, 24, 5)):
        runs = runs_of([jobs[stage] for stage in order], tmp_path / str(k))
        assert runs.pipelines == [[order.index(stage) for stage in range(len(jobs))]]
        assert [rows(run) for run in runs.runs] == [truth(jobs)[stage] for stage in order]


@pytest.mark.parametrize(
    "late_ns", [0, 137 * US, 3 * MS], ids=["in step", "a little apart", "a forward and more apart"]
)
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_workers_that_share_a_stage_are_told_by_how_long_microbatches_are_away(
    tmp_path: Path, name: str, late_ns: int
) -> None:
    jobs = copies(simulate(SCHEDULES[name], uneven, transfer_ns=100 * US), 3, lambda _, k: k * late_ns)
    runs = runs_of(jobs, tmp_path)
    assert runs.pipelines == [[*range(k, 12, 3)] for k in range(3)]
    assert [rows(run) for run in runs.runs] == truth(jobs, stages=4)
    assert runs.warnings == [
        LOWER_BOUND,
        "3 pipelines of 4 stages run side by side: ranks 0, 3, 6, 9; 1, 4, 7, 10; 2, 5, 8, 11",
    ]


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_workers_that_share_a_stage_are_told_though_every_job_takes_up_to_a_third_longer_or_less(
    name: str, stride: int, seed: int
) -> None:
    rng = random.Random(seed)
    weight = [rng.choice((0.5, 1, 2, 4)) for _ in range(4)]
    copy = [
        simulate(SCHEDULES[name], lambda r, op: int(equal_times()(r, op) * weight[r] * rng.uniform(0.67, 1.33)))
        for _ in range(3)
    ]
    place = [(rank // stride % 4, rank // (4 * stride) * stride + rank % stride) for rank in range(12)]
    runs = PaddleRuns(*stage_runs([of_jobs(copy[k][stage], rank, 0) for rank, (stage, k) in enumerate(place)]))
    assert sorted(runs.pipelines) == sorted([place.index((stage, k)) for stage in range(4)] for k in range(3))
    assert [row[2] % 4 for run in runs.runs for row in rows(run)[:1]] == [stage for stage, _ in place]


def test_data_parallelism_alone_is_one_stage(tmp_path: Path) -> None:
    runs = runs_of(copies(simulate(one_f_one_b(1, 4), uneven), 4), tmp_path)
    assert runs.pipelines == [[0], [1], [2], [3]]


@pytest.mark.parametrize(("missing", "whole", "left"), [(5, (0, 2, 4, 6), "1, 3, 7"), (4, (1, 3, 5, 7), "0, 2, 6")])
def test_a_missing_worker_takes_its_pipeline_away_and_no_other(
    tmp_path: Path, missing: int, whole: tuple[int, ...], left: str
) -> None:
    jobs = copies(simulate(one_f_one_b(4, 8), uneven), 2)
    runs = runs_of([[] if w == missing else mine for w, mine in enumerate(jobs)], tmp_path)
    assert runs.pipelines == [[*whole]]
    assert [rows(run) for run in runs.runs] == truth([jobs[w] for w in whole])
    assert (
        f"stages have unequal numbers of workers (2, 2, 1, 2): ranks {left} are in no whole pipeline and are left out"
        in runs.warnings
    )
    assert f"ranks {missing} ran no forward or backward and are left out" in runs.warnings
    assert any(f"workerlog.{missing}: holds no job" in warning for warning in runs.warnings)


def test_workers_in_no_mesh_are_told_apart_by_likeness_and_this_is_said(tmp_path: Path) -> None:
    jobs = [*copies(simulate(one_f_one_b(3, 6), uneven), 2), simulate(one_f_one_b(3, 6), uneven)[1]]
    runs = runs_of(jobs, tmp_path)
    assert runs.pipelines == [[0, 2, 4], [1, 3, 5]]
    assert (
        "stages are known only from how long microbatches are away: which workers share one is a guess" in runs.warnings
    )
    assert (
        "stages have unequal numbers of workers (2, 3, 2): ranks 6 are in no whole pipeline and are left out"
        in runs.warnings
    )


def test_logs_of_forwards_alone_are_ordered_by_their_start(tmp_path: Path) -> None:
    jobs = [[j for j in mine if j.type == "forward"] for mine in simulate(gpipe(4, 6), uneven)]
    runs = runs_of(jobs, tmp_path)
    assert runs.pipelines == [[0, 1, 2, 3]]
    assert [[row[:1] + row[2:] for row in rows(run)] for run in runs.runs] == [
        [row[:1] + row[2:] for row in mine] for mine in truth(jobs)
    ]
    assert any("ordered by the start of their first forward" in warning for warning in runs.warnings)
    assert all(any("holds no backward job" in warning for warning in run.warnings) for run in runs.runs)


@pytest.mark.parametrize("kept", ["backward", "optimizer", "lr"])
def test_logs_that_lack_what_matters_are_told_and_do_not_crash(tmp_path: Path, kept: str) -> None:
    jobs = [[j for j in mine if j.type == kept] for mine in simulate(one_f_one_b(3, 4), uneven, steps=2, lr=True)]
    if kept == "backward":
        runs = runs_of(jobs, tmp_path)
        assert all(any("holds no forward job" in warning for warning in run.warnings) for run in runs.runs)
    else:
        with pytest.raises(InputError, match=f"hold no forward or backward job, only {kept}"):
            runs_of(jobs, tmp_path)


def test_waits_inside_jobs_are_told_and_change_no_order(tmp_path: Path) -> None:
    """A forward whose first op needs no input starts its job at once, and waits in it."""
    jobs = simulate(one_f_one_b(4, 8), equal_times(), transfer_ns=50 * US)
    early = [
        [
            Job(j.type, j.microbatch, mine[i - 1].end_ns if i else 0, j.end_ns) if j.type == "forward" else j
            for i, j in enumerate(mine)
        ]
        for mine in jobs
    ]
    runs = runs_of(early, tmp_path)
    assert runs.pipelines == [[0, 1, 2, 3]]
    (told,) = [w for w in runs.warnings if "forwards began before" in w]
    assert re.match(
        r"\d+ of 24 forwards began before the same microbatch had left the stage before, by up to 3\.100 ms \(rank 3 after",
        told,
    )


# clocks


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1"])
@pytest.mark.parametrize(
    "clock_ns", [(0, 3 * MS), (5 * MS, -3 * MS), (0, 3600 * 1000 * MS)], ids=["3 ms", "both", "an hour"]
)
def test_clocks_of_two_machines_are_aligned_within_the_transfer_time(
    tmp_path: Path, name: str, clock_ns: tuple[int, int]
) -> None:
    transfer_ns = 40 * US
    jobs = simulate(SCHEDULES[name], equal_times(), transfer_ns=transfer_ns, steps=2)
    runs = runs_of(jobs, tmp_path, Variation(machines=2, clock_ns=clock_ns))
    assert runs.pipelines == [[0, 1, 2, 3]]
    expected = [[(*row[:5], row[5] + clock_ns[0], row[6] + clock_ns[0]) for row in mine] for mine in truth(jobs)]
    assert [rows(run) for run in runs.runs] == expected
    shift = (clock_ns[0] - clock_ns[1]) / MS
    assert runs.warnings == [
        LOWER_BOUND,
        f"clocks are shifted onto that of machine0: machine1 {shift:+.3f} ms (within 0.040 ms)",
    ]


@given(
    st.lists(st.integers(-50 * MS, 50 * MS), min_size=4, max_size=4),
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1"]),
    st.integers(0, 200 * US),
)
def test_the_true_shift_of_any_clocks_lies_within_the_uncertainty(
    clock_ns: list[int], name: str, transfer_ns: int
) -> None:
    jobs = simulate(SCHEDULES[name], uneven, transfer_ns=transfer_ns, steps=2)
    runs = PaddleRuns(*stage_runs([of_jobs(mine, w, w, clock_ns[w]) for w, mine in enumerate(jobs)]))
    assert runs.pipelines == [[0, 1, 2, 3]]
    off = [rows(run)[0][5] - mine[0].start_ns - clock_ns[0] for run, mine in zip(runs.runs, jobs, strict=True)]
    within_ms = [float(text) for text in re.findall(r"\(within ([\d.]+) ms\)", " ".join(runs.warnings))]
    assert all(abs(one - off[0]) <= within * MS + US for one, within in zip(off[1:], within_ms, strict=True))
    assert not any("fits all jobs" in w or "forwards began before" in w for w in runs.warnings)


def test_pipelines_side_by_side_on_two_machines_are_aligned_by_their_optimizers(tmp_path: Path) -> None:
    """No optimizer ends before the last backward anywhere; where both take as long, the middle is right."""
    jobs = simulate(one_f_one_b(2, 4), equal_times())
    runs = runs_of([*jobs, *jobs], tmp_path, Variation(machines=2, clock_ns=(0, 3 * MS)))
    assert runs.pipelines == [[0, 1], [2, 3]]
    assert rows(runs.runs[2])[0][5] == 0
    assert runs.warnings[2:] == ["clocks are shifted onto that of machine0: machine1 -3.000 ms (within 0.520 ms)"]


def test_clocks_of_machines_between_which_nothing_passed_are_left_alone(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(2, 4), equal_times(), optimizer=False)
    runs = runs_of([*jobs, *jobs], tmp_path, Variation(machines=2, clock_ns=(0, 3 * MS)))
    assert runs.pipelines == [[0, 1], [2, 3]]
    assert rows(runs.runs[2])[0][5] == 3 * MS
    assert runs.warnings[2:] == [
        "the clocks of machine1 are taken as they are: nothing passed between them and machine0"
    ]


def test_a_clock_bounded_on_one_side_is_moved_as_far_as_it_must(tmp_path: Path) -> None:
    jobs = [[j for j in mine if j.type == "forward"] for mine in simulate(gpipe(2, 3), equal_times())]
    runs = runs_of(jobs, tmp_path, Variation(machines=2, clock_ns=(0, 3 * MS)))
    assert rows(runs.runs[1])[0][5] == jobs[1][0].start_ns
    assert any("machine1 -3.000 ms (bounded on one side only)" in warning for warning in runs.warnings)
    assert any("the clocks of machines are taken as they are" in warning for warning in runs.warnings)


def test_bounds_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    """The first forward of the second machine began 200 us too early for its input, whatever the clocks; its backward
    cannot move.
    """
    jobs = simulate(one_f_one_b(2, 4), equal_times())
    first = jobs[1][0]
    jobs[1][0] = Job(first.type, first.microbatch, first.start_ns - 200 * US, first.end_ns)
    runs = runs_of(jobs, tmp_path, Variation(machines=2))
    assert (
        "no shift of the machines' clocks fits all jobs: some would have to start up to 0.100 ms before what they need"
        in runs.warnings
    )
    assert any(w.endswith("machine1 +0.100 ms (within 0.100 ms)") for w in runs.warnings)
    assert any(
        w.startswith("1 of 4 forwards began before") and "by up to 0.100 ms (rank 1 after rank 0)" in w
        for w in runs.warnings
    )


@given(
    st.lists(st.integers(-100, 100), min_size=4, max_size=4), st.lists(st.integers(-30, 60), min_size=12, max_size=12)
)
def test_slack_is_the_least_that_lets_all_bounds_hold(shifts: list[int], extra: list[int]) -> None:
    bound = np.zeros((4, 4), np.int64)
    for (i, j), more in zip(itertools.permutations(range(4), 2), extra, strict=True):
        bound[i, j] = shifts[j] - shifts[i] + more
    slack, tight = solved(bound)
    assert (np.diagonal(tight) >= 0).all()
    assert slack == 0 or (np.diagonal(closed(loosened(bound, slack - 1))) < 0).any()
    assert slack <= max(0, -min(extra))
    middle = (tight[0] - tight[:, 0]) // 2
    assert all(middle[j] - middle[i] <= bound[i, j] + slack + 1 for i, j in itertools.permutations(range(4), 2))


# hostile


def test_jobs_that_overlap_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    fine = [Job("forward", 0, 0, 10_000), Job("backward", 0, 9_000, 20_000)]
    assert (runs_of([fine], tmp_path).runs[0].work.end_ns - EPOCH_NS).tolist() == [20_000]
    write_paddle([fine, [fine[0], Job("backward", 0, 8_999, 20_000)]], tmp_path)
    with pytest.raises(InputError) as told:
        stage_runs(read_paddle(tmp_path))
    assert str(tmp_path / "workerlog.1") in str(told.value)
    assert "overlap by 0.001 ms" in str(told.value)
    assert "backward of microbatch 0" in str(told.value)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["forward", "backward", "backward_b", "backward_w", "optimizer", "lr", "default", "forward0", "backward1",
                                 "forward(chunk0)", "forward(chunk1)", "weird", "forward999999999"]),
                st.sampled_from([-1, 0, 1, 2, 10**17]),
                st.integers(0, 50),
                st.integers(0, 50),
            ),
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)  # fmt: skip
def test_no_log_crashes_it_and_no_job_is_lost(workers: list[list[tuple[str, int, int, int]]], machines: bool) -> None:
    logs = []
    for rank, drawn in enumerate(workers):
        at, jobs = 0, []
        for kind, microbatch, gap, length in drawn:
            jobs.append(Job(kind, microbatch, at + gap, at + gap + length))
            at += gap + length
        logs.append(of_jobs(jobs, rank, rank if machines else 0))
    try:
        runs = PaddleRuns(*stage_runs(logs))
    except InputError:
        assert not any(kind.startswith(("forward", "backward")) for drawn in workers for kind, *_ in drawn)
        return
    by_rank = {run.rank: run for run in runs.runs}
    for rank, drawn in enumerate(workers):
        if rank in by_rank:
            run = by_rank[rank]
            no_phase = sum(kind in ("lr", "default", "weird") for kind, *_ in drawn)
            assert run.ranges.busy_ns.sum() == sum(
                length for kind, _, _, length in drawn if kind not in ("lr", "default", "weird")
            )
            assert sum(n for reason, n in run.left_out.items() if "no phase" in reason) == no_phase
    ranks = [rank for pipeline in runs.pipelines for rank in pipeline]
    assert len(ranks) == len(set(ranks))
    assert all(len(pipeline) == len(runs.pipelines[0]) for pipeline in runs.pipelines)


def of_jobs(jobs: Sequence[Job], rank: int, machine: int, clock_ns: int = 0) -> JobLog:
    """The log of a worker, without a file."""
    jobs = sorted(jobs, key=lambda j: (j.start_ns, j.end_ns))
    strings = ("", *dict.fromkeys(j.written_type for j in jobs))
    return JobLog(
        path=f"machine{machine}/workerlog.{rank}",
        rank=rank,
        machine=machine,
        strings=strings,
        type=np.array([strings.index(j.written_type) for j in jobs], np.int32),
        microbatch=np.array([j.microbatch for j in jobs], np.int64),
        start_ns=np.array([EPOCH_NS + clock_ns + j.start_ns for j in jobs], np.int64),
        end_ns=np.array([EPOCH_NS + clock_ns + j.end_ns for j in jobs], np.int64),
        first_step=None,
        stop_step=None,
        left_out={},
        warnings=(),
    )
