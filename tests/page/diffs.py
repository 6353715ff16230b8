"""Two simulated runs compared, as pages: one with a planted change, pipelines of different microbatches, hostile names,
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from graphlink.diff.compare import compare
from graphlink.diff.records import DiffReport
from graphlink.run.library import link
from graphlink.run.options import Options
from tests.diff.planted import base, edited, launch, op, sync
from tests.page.hostile import NAMES
from tests.simulator import ClusterTraining, PipelineTraining, cluster_run, pipeline_run, run, write_kineto


def _linked(folder: Path, write: Callable[[Path], object]) -> Path:
    (folder / "traces").mkdir(parents=True)
    write(folder / "traces")
    return link(folder / "traces", out=folder / "out", options=Options(timeline="none")).folder


def _of(folder: Path, before: Callable[[Path], object], after: Callable[[Path], object]) -> DiffReport:
    return compare(_linked(folder / "A", before), _linked(folder / "B", after), anyway=True, limit_pct=3.0)


def _planted(folder: Path) -> DiffReport:
    """Return hostile names of ops and kernels in B, and waits."""
    added = [action for name in NAMES for action in op(name, launch(f"kernel {name}"), sync())]
    longer = edited(
        base(), lambda action, where: [action, *added] if getattr(action, "name", "") == "ProfilerStep#2" else [action]
    )
    programs = base(), longer
    of = [lambda to, program=program: write_kineto(run(program), to / "kineto_0.json") for program in programs]
    return _of(folder, *of)


def _cluster(folder: Path) -> DiffReport:
    trainings = [ClusterTraining(steps=5, layers=1, seed=1, straggler=late) for late in (None, (2, 1.3))]
    return _of(folder, *(cluster_run(training).write for training in trainings))


def _pipeline(folder: Path) -> DiffReport:
    return _of(folder, *(pipeline_run(PipelineTraining(microbatches=count)).write for count in (4, 8)))


def _itself(folder: Path) -> DiffReport:
    out = _linked(folder, lambda to: write_kineto(run(base()), to / "kineto_0.json"))
    return compare(out, out)


DIFFS: dict[str, Callable[[Path], DiffReport]] = {
    "planted": _planted,
    "cluster": _cluster,
    "pipelines": _pipeline,
    "itself": _itself,
}
