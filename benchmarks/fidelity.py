"""How faithful the graphs are: real recordings replayed, and what-ifs on simulated programs against their truth.

    python benchmarks/fidelity.py [--traces FOLDER] [--programs 200] [--ops 120]

For each recording below FOLDER (et_R with kineto_R, else a Kineto file alone): the self-replay on the ideal machine and
in ASTRA-sim's slots, and which share of the replayed critical path is host gap and device delay. For the programs: the
error of the predicted makespan with device ops at other speeds, and without ``cuda_sync`` rows the cause of the worst
(``causes.py``). Self-replay alone proves little, the what-if does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from causes import Recorded, cause, told

from graphlink.cli import main as graphlink
from graphlink.graph.target import written
from graphlink.ranks.group_ids import assign
from graphlink.replay.changes import SORT_OF, Changes, TimeChange
from graphlink.replay.machines import play_ideal
from graphlink.replay.whatif import apply
from graphlink.replay.workload import Work, Workload, measured_ns, workload
from graphlink.run.job import Inputs, Options, prepare

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator import Execution, Program, Shape, kineto_document, random_program, row_ids, run, write_json

SCALES = (0.1, 0.5, 2.0, 10.0)


def recordings(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(name, inputs as on the command line) of what can be linked; a pair of two runs is refused and passed over."""
    for kineto in sorted(folder.rglob("*.json*")):
        if kineto.name.startswith(("et_", "communicators")) or "nccl" in kineto.parts:
            continue
        et = kineto.with_name(kineto.name.replace("kineto_", "et_"))
        pair = ["--et", str(et)] if et != kineto and et.exists() else []
        yield str(kineto.relative_to(folder)).split(".json")[0], [*pair, "--kineto", str(kineto)]


def replayed(folder: Path) -> None:
    print(f"{'recording':42}{'nodes':>8}{'ms':>11}{'ideal %':>9}{'slots %':>9}{'gap':>7}{'delay':>7}")
    for name, inputs in recordings(folder):
        with tempfile.TemporaryDirectory() as work:
            out, data = Path(work) / "out", Path(work) / "replay.json"
            if graphlink([*inputs, "--out", str(out), "--sync", "cuda", "--no-timeline", "--quiet"]):
                continue
            [rank] = json.loads((out / "summary.json").read_text())["ranks"]
            with Path("/dev/null").open("w") as nowhere:
                before, sys.stdout = sys.stdout, nowhere
                graphlink(["replay", str(out), "--machine", "astra-sim", "--json", str(data)])
                sys.stdout = before
            slots = json.loads(data.read_text())["runs"][0]["ranks"][0]["error_pct"]
        play = rank["replay"]
        print(
            f"{name:42}{rank['graph_nodes']:8}{play['measured_ns'] / 1e6:11.3f}{play['error_pct']:9.3f}{slots:9.3f}"
            f"{play['gap_share']:7.1%}{play['delay_share']:7.1%}",
            flush=True,
        )


def recorded(program: Program, wanted: Callable[[dict[str, Any]], bool]) -> Recorded:
    """A run of a program through the files that it would leave, of which only the ``wanted`` rows are there."""
    execution = run(program)
    document = kineto_document(execution, dialect="2024")
    document["traceEvents"] = [row for row in document["traceEvents"] if wanted(row)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kineto.json"
        write_json(document, path)
        prepared = prepare(Inputs(kineto=path), Options(sync="cuda"))
        graph = prepared.built.graph
        ids = assign({0: prepared.plan.groups})[0]
        work = workload({0: written(graph.of_rank(0, 1), prepared.comm, prepared.plan, ids)})
        return Recorded(execution, row_ids(execution), prepared, work)


def error_pct(program: Program, execution: Execution, work: Workload, scale: float) -> float:
    """Signed error in percent of the makespan that the graph predicts with every device op at another speed."""
    sorts = [w for w in (Work.KERNEL, Work.COPY) if np.any(work.work == w)]
    changed = apply(work, Changes(tuple(TimeChange(sort=SORT_OF[w], scale=scale) for w in sorts)), {}).work
    # What was before the first row is in no graph, and takes its time at any speed.
    lead = execution.makespan_ns - measured_ns(work.files[0])
    return 100 * (play_ideal(changed).total_ns / (run(program, kernel_scale=scale).makespan_ns - lead) - 1)


def simulated(seed: int, ops: int) -> Program:
    shape = Shape(threads=1 + seed % 3, streams=1 + seed % 6, queries=bool(seed % 2), own_streams=True, ops=ops)
    return random_program(seed, shape)


def predicted_errors(seed: int, ops: int, cuda_sync: bool) -> list[float]:
    """Of one program, by scale."""
    program = simulated(seed, ops)
    made = recorded(program, lambda row: cuda_sync or told(row, frozenset()))
    return [error_pct(program, made.execution, made.work, scale) for scale in SCALES]


def what_if(programs: int, ops: int) -> None:
    print(f"\nwhat-if on {programs} simulated programs of {ops} ops a thread: error of the makespan in percent")
    print(f"{'cuda_sync rows':16}{'scale':>7}{'median':>9}{'p90':>9}{'worst':>9}{'program':>9}")
    for cuda_sync in (True, False):
        errors = np.abs([predicted_errors(seed, ops, cuda_sync) for seed in range(programs)])
        worst = [int(seed) for seed in errors.argmax(axis=0)]
        for column, scale, seed in zip(errors.T, SCALES, worst, strict=True):
            print(
                f"{'yes' if cuda_sync else 'no':16}{scale:7.1f}{np.median(column):9.3f}{np.percentile(column, 90):9.3f}"
                f"{column[seed]:9.3f}{seed:9}",
                flush=True,
            )
    print("\ncauses of the worst errors without rows")
    for scale, seed in zip(SCALES, worst, strict=True):
        program = simulated(seed, ops)
        execution = run(program)
        why = cause(partial(recorded, program), partial(_error, program, execution, scale))
        print(f"x {scale:<4g} program {seed:3}: {why}", flush=True)


def _error(program: Program, execution: Execution, scale: float, work: Workload) -> float:
    return error_pct(program, execution, work, scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--ops", type=int, default=120)
    arguments = parser.parse_args()
    if arguments.traces:
        replayed(arguments.traces)
    if arguments.programs:
        what_if(arguments.programs, arguments.ops)


if __name__ == "__main__":
    main()
