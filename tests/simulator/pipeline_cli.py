"""``python -m tests.simulator pipeline DIR``: write the Kineto files of a simulated pipeline, and say what is true of
it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulator.dialects import DIALECTS
from tests.simulator.pipeline_losses import HOWS, Loss
from tests.simulator.pipeline_names import RANGE_NAMES
from tests.simulator.pipeline_orders import SCHEDULES
from tests.simulator.pipeline_records import PipelineTraining
from tests.simulator.pipelines import PipelineRun, pipeline_run

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

_TIMES = ("forward", "input", "weight", "transfer", "jitter", "optimizer", "norm", "gather")


def add_parser(verbs: Parsers) -> None:
    parser = verbs.add_parser("pipeline", help="write kineto_R.json of each rank of a pipeline", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--chunks", type=int, default=1, help="a rank, with --schedule interleaved")
    for name in _TIMES:
        default = 1_000 if name in _TIMES[:3] else 0
        parser.add_argument(f"--{name}-us", type=float, default=default, metavar="US", help=f"default {default}")
    parser.add_argument(
        "--visible", action="store_true", help="transfers are send and receive kernels, not just a delay"
    )
    parser.add_argument("--kernels", type=int, default=1, help="a range")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--names", choices=RANGE_NAMES, default="torch", help="whose names the ranges have")
    parser.add_argument("--main-thread", action="store_true", help="the main thread launches backward, too")
    parser.add_argument(
        "--lose", type=_loss, action="append", default=[], metavar="CAUSE[:HOW]=US", help="e.g. host_sync:item=300"
    )
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default="2024", help="of the Kineto files")
    parser.add_argument("--no-cuda-sync", action="store_true", help="leave out the cuda_sync rows")
    parser.add_argument("--et", action="store_true", help="write et_R.json, too")
    parser.add_argument("--gzip", action="store_true", help="write .json.gz")
    parser.set_defaults(run=lambda args: _make(args, parser))


def _loss(text: str) -> Loss:
    what, _, us = text.partition("=")
    cause, _, how = what.partition(":")
    if cause not in HOWS:
        raise argparse.ArgumentTypeError(f"no cause is called {cause!r}: {', '.join(HOWS)}")
    try:
        return Loss(cause, round(float(us) * 1_000), how=how)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None


def _make(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    times = {f"{name}_ns": round(getattr(args, f"{name}_us") * 1_000) for name in _TIMES}
    same = {
        name: getattr(args, name)
        for name in ("schedule", "stages", "microbatches", "chunks", "visible", "kernels", "steps", "names")
    }
    try:
        run = pipeline_run(
            PipelineTraining(**same, **times, autograd_thread=not args.main_thread, losses=tuple(args.lose))
        )
    except ValueError as problem:
        parser.error(str(problem))
    suffix = ".json.gz" if args.gzip else ".json"
    run.write(args.folder, dialect=args.dialect, cuda_sync=not args.no_cuda_sync, et=args.et, suffix=suffix)
    sys.stdout.writelines(f"{line}\n" for line in _truth(run))
    return 0


def _truth(run: PipelineRun) -> Iterator[str]:
    """Work and idle time by cause, a line a rank, in us; of all steps together."""
    causes = sorted(run.idle_ns())
    makespan_ns = sum(run.makespan_ns(step) for step in range(len(run.steps)))
    rate = 1 - run.work_ns() / len(run.programs) / makespan_ns
    yield f"makespan {makespan_ns / 1_000:.3f} us, bubble rate {rate:.4f} of it; us by rank:"
    yield "  ".join([f"{'rank':>4}", f"{'work':>12}", *(f"{cause:>{max(12, len(cause))}}" for cause in causes)])
    for rank in range(len(run.programs)):
        idle_ns = run.idle_ns(rank)
        cells = [f"{idle_ns.get(cause, 0) / 1_000:{max(12, len(cause))}.3f}" for cause in causes]
        yield "  ".join([f"{rank:>4}", f"{run.work_ns(rank) / 1_000:12.3f}", *cells])
    for loss in run.losses:
        if loss.places:
            yield f"lost: {loss.ns / 1_000:.3f} us by {loss.cause} ({loss.how}) at {', '.join(map(str, loss.places))}"
