"""How often the band of a what-if holds what the changed program takes when it is run again, and how wide it is.

    python benchmarks/bands.py [--changes 300] [--first 0] [--kind KIND] [--rows FILE]

Each change is printed when it is done. With ``--rows`` it is kept in FILE, a line of JSON each, and the table is of all
that FILE has: changes that are there are not made again, and ``--changes 0`` prints the table alone.

Simulated runs with known truth (``tests.simulator.second_runs``): one is recorded and linked, the change is replayed,
and the changed program is run with other jitter. Simulated machines do not change from run to run, so that run is made
longer or shorter by as much as two real ones differ (``band.FLOOR``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from math import isnan, sqrt
from pathlib import Path

import msgspec
import numpy as np

from graphlink.cli import main as graphlink
from graphlink.cli.replay import REPLAY_OPTIONS
from graphlink.engine import pool
from graphlink.replay.band import recorded
from graphlink.replay.changes import Changes, changes_of
from graphlink.replay.changes_file import load_changes
from graphlink.replay.folder import graph_files, load_groups
from graphlink.replay.records import Band, Span
from graphlink.replay.report import Known, report
from graphlink.report.summary import ranks_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator.second_runs import BY_TABLES, KINDS, SecondRun, second_run

STEPS = ((1, 1), (2, 2), (3, 5), (6, 10), (11, 20))


class Predicted(msgspec.Struct, frozen=True):
    """What the band of a change says, and what is true of it."""

    seed: int
    kind: str
    ranks: int
    steps: int
    band: Band
    truth_ns: int
    truth_step_ns: float | None  # None of one step

    @property
    def run(self) -> tuple[Span | None, float]:
        return self.band.run, self.truth_ns

    @property
    def step(self) -> tuple[Span | None, float]:
        return self.band.step, self.truth_step_ns or 0.0

    def __str__(self) -> str:
        truth = f"{self.seed} {self.kind}, {self.ranks} ranks, {self.steps} steps: {self.truth_ns / 1e6:.3f} ms, band"
        span = self.band.run
        if span is None:
            return f"{truth} none: {self.band.why}"
        return f"{truth} {span.low_ns / 1e6:.3f} to {span.high_ns / 1e6:.3f}{'' if _holds(*self.run) else ', outside'}"


def predicted(case: SecondRun, folder: Path) -> Predicted:
    """Link what the first run recorded, and replay the change. Raises ValueError where the replay is of another time
    than was recorded.
    """
    case.write(folder / "in")
    recordings = [str(folder / "in")] if case.ranks > 1 else ["--kineto", str(folder / "in" / "kineto_0.json")]
    if graphlink([*recordings, "--out", str(folder / "out"), "--sync", "cuda", "--no-timeline", "--quiet"]):
        raise ValueError(f"the recordings of {case.seed} cannot be linked")
    known = Known(load_groups(folder / "out"), recorded=recorded(ranks_of(folder / "out")))
    made = report(graph_files(folder / "out"), None, known, changes(case.arguments))
    [what_if], [run] = made.what_if, made.runs
    if what_if.band is None or run.measured_ns != case.recorded_ns:
        raise ValueError(f"{run.measured_ns} ns replayed of {case.seed}, {case.recorded_ns} recorded")
    apart = sqrt(2) * (what_if.band.between_runs_pct or 0) / 100
    factor = 1 + apart * float(np.random.default_rng(case.seed).normal())
    step_ns = None if isnan(case.truth_step_ns) else factor * case.truth_step_ns
    return Predicted(case.seed, case.kind, case.ranks, case.steps, what_if.band, round(factor * case.truth_ns), step_ns)


def changes(arguments: Sequence[str]) -> Changes:
    """Return the changes that arguments of ``graphlink replay`` name, or that are told as tables."""
    if arguments[0].startswith("{"):
        return load_changes(msgspec.json.decode(arguments[0]))
    parser = argparse.ArgumentParser()
    REPLAY_OPTIONS.add_to(parser)
    told = parser.parse_args(["out", *arguments])
    return changes_of(told.scale, told.remove_sync, told.bandwidth, told.launch_cost)


def _holds(span: Span | None, truth_ns: float) -> bool:
    return span is not None and span.low_ns <= truth_ns <= span.high_ns


def inside(told: Sequence[tuple[Span | None, float]]) -> float:
    """Return the share of truths that are in their band, of those that have one."""
    found = [_holds(span, truth_ns) for span, truth_ns in told if span is not None]
    return float(np.mean(found)) if found else 0.0


def width_pct(told: Sequence[tuple[Span | None, float]]) -> float:
    """Return the median width of bands in per cent of what is predicted."""
    found = [100 * (span.high_ns - span.low_ns) / span.ns for span, _ in told if span is not None]
    return float(np.median(found)) if found else 0.0


def table(made: Sequence[Predicted]) -> Iterator[str]:
    """Yield how often the truth is inside, and how wide bands are, in all and by kind, ranks and steps."""
    yield f"{'':16}{'changes':>8}{'no band':>9}{'run inside':>12}{'width':>8}{'step inside':>13}{'width':>8}"
    wanted: list[tuple[str, Callable[[Predicted], bool]]] = [("all", lambda _: True)]
    wanted += [(kind, lambda case, kind=kind: case.kind == kind) for kind in (*KINDS, *BY_TABLES)]
    wanted += [("1 rank", lambda case: case.ranks == 1), ("2 to 8 ranks", lambda case: case.ranks > 1)]
    wanted += [
        (
            f"{low} to {high} steps" if low < high else f"steps: {low}",
            lambda case, low=low, high=high: low <= case.steps <= high,
        )
        for low, high in STEPS
    ]
    for name, which in wanted:
        mine = [one for one in made if which(one)]
        run, step = [one.run for one in mine], [one.step for one in mine]
        none = sum(span is None for span, _ in run)
        if mine:
            widths = f"{inside(run):12.1%}{width_pct(run):6.1f} %"
            widths += (
                f"{inside(step):13.1%}{width_pct(step):6.1f} %" if any(span is not None for span, _ in step) else ""
            )
            yield f"{name:16}{len(mine):8}{none:9}{widths}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=(*KINDS, *BY_TABLES), help="of this kind alone")
    parser.add_argument("--rows", type=Path, help="keep each change in this file, and print the table of all in it")
    arguments = parser.parse_args()
    pool.run_all = lambda work, tasks, *_: [work(task) for task in tasks]  # to start a process a rank takes longer
    made = []
    if arguments.rows is not None and arguments.rows.exists():
        made = [msgspec.json.decode(line, type=Predicted) for line in arguments.rows.read_bytes().splitlines()]
    done = {row.seed for row in made}
    for seed in range(arguments.first, arguments.first + arguments.changes):
        if seed not in done:
            with tempfile.TemporaryDirectory() as folder:
                made.append(predicted(second_run(seed, arguments.kind or KINDS[seed % len(KINDS)]), Path(folder)))
            print(made[-1], flush=True)
            if arguments.rows is not None:
                with arguments.rows.open("ab") as rows:
                    rows.write(msgspec.json.encode(made[-1]) + b"\n")
    print("\n".join(table(made)))


if __name__ == "__main__":
    main()
