"""``python -m tests.simulator cluster DIR``: write the Kineto files of a simulated cluster, and say what is
true of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulator.cluster import ClusterRun, cluster_run
from tests.simulator.cluster_faults import (
    Differs,
    Dropped,
    EarlyEnd,
    Fault,
    LateStart,
    MissingRank,
    OtherOrder,
    ProfilerOverhead,
    ProfilerStart,
)
from tests.simulator.cluster_program import DESCRIPTIONS
from tests.simulator.cluster_records import SCHEDULES, ClusterTraining
from tests.simulator.dialects import DIALECTS

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

_COUNTS = (
    "data",
    "tensor",
    "pipeline",
    "expert",
    "steps",
    "layers",
    "microbatches",
    "seed",
    "ranks_per_host",
    "events_per_rank",
)
_US = ("compute", "alpha", "end_jitter")
_FLAGS = ("sequence_parallel", "twin", "address_names")
_FAULTS: dict[str, tuple[str, Callable[[list[str]], Fault]]] = {
    "late": ("RANK:SHARE", lambda words: LateStart(int(words[0]), float(words[1]))),
    "early": ("RANK:SHARE", lambda words: EarlyEnd(int(words[0]), float(words[1]))),
    "dropped": ("RANK:GROUP:K", lambda words: Dropped(int(words[0]), words[1], int(words[2]))),
    "order": ("RANK:GROUP:K", lambda words: OtherOrder(int(words[0]), words[1], int(words[2]))),
    "differs": ("RANK:GROUP:K", lambda words: Differs(int(words[0]), words[1], int(words[2]))),
    "missing": ("RANK", lambda words: MissingRank(int(words[0]))),
    "start": ("US", lambda words: ProfilerStart(round(float(words[0]) * 1_000))),
    "overhead": (
        "RANK:STEP:US",
        lambda words: ProfilerOverhead(int(words[0]), int(words[1]), round(float(words[2]) * 1_000)),
    ),
}


def add_parser(verbs: Parsers) -> None:
    parser = verbs.add_parser("cluster", help="write kineto_R.json of each rank of a cluster", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    defaults = ClusterTraining()
    for name in _COUNTS:
        default = getattr(defaults, name)
        parser.add_argument(_option(name), type=int, default=default, metavar="N", help=f"default {default}")
    for name in _US:
        default = getattr(defaults, f"{name}_ns") / 1_000
        parser.add_argument(
            _option(name, "-us"), type=float, default=default, metavar="US", help=f"default {default:g}"
        )
    for name in _FLAGS:
        parser.add_argument(_option(name), action="store_true")
    parser.add_argument("--schedule", choices=SCHEDULES, default=defaults.schedule)
    parser.add_argument("--clock-offset-us", type=float, default=0, metavar="US", help="of hosts at most, default 0")
    parser.add_argument("--drift-ppm", type=float, default=0, metavar="PPM", help="of hosts at most, default 0")
    forms = f"{', '.join(f'{name}:{form}' for name, (form, _) in _FAULTS.items())}; GROUP: {', '.join(DESCRIPTIONS)}"
    parser.add_argument("--fault", type=_fault, action="append", default=[], metavar="NAME:...", help=forms)
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default="2024", help="of the Kineto files")
    parser.add_argument("--no-seq", action="store_true", help="leave out the sequence numbers")
    parser.add_argument("--no-comm-args", action="store_true", help="leave out what Kineto says of communication")
    parser.add_argument("--no-cuda-sync", action="store_true", help="leave out the cuda_sync rows")
    parser.add_argument("--et", action="store_true", help="write et_R.json, too")
    parser.add_argument("--gzip", action="store_true", help="write .json.gz")
    parser.set_defaults(run=lambda args: _make(args, parser))


def _option(name: str, unit: str = "") -> str:
    return f"--{name.replace('_', '-')}{unit}"


def _fault(text: str) -> Fault:
    name, *words = text.split(":")
    if name not in _FAULTS:
        raise argparse.ArgumentTypeError(f"no fault is called {name!r}: {', '.join(_FAULTS)}")
    form, make = _FAULTS[name]
    if len(words) != form.count(":") + 1:
        raise argparse.ArgumentTypeError(f"{text!r}: {name} is given as {name}:{form}")
    try:
        return make(words)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None


def _make(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    same = {name: getattr(args, name) for name in (*_COUNTS, *_FLAGS, "schedule", "drift_ppm")}
    times = {f"{name}_ns": round(getattr(args, f"{name}_us") * 1_000) for name in _US}
    try:
        training = ClusterTraining(**same, **times, host_clock_offset_ns=round(args.clock_offset_us * 1_000))
        run = cluster_run(training, args.fault)
    except ValueError as problem:
        parser.error(str(problem))
    files = {
        "dialect": args.dialect,
        "seq": not args.no_seq,
        "comm_args": not args.no_comm_args,
        "cuda_sync": not args.no_cuda_sync,
    }
    run.write(args.folder, **files, et=args.et, suffix=".json.gz" if args.gzip else ".json")
    sys.stdout.writelines(f"{line}\n" for line in _truth(run))
    return 0


def _truth(run: ClusterRun) -> Iterator[str]:
    found = run.expected
    yield f"{run.training.world} ranks, {len(run.ranks)} recorded; {len(run.groups)} groups"
    yield f"{len(run.meetings.kind)} meetings, {len(found.meetings)} in the recordings of all that were recorded"
    for rank, columns in run.ranks.items():
        clock = columns.clock
        yield (
            f"rank {rank}: {len(columns.kind)} ops, clock {clock.offset_ns / 1_000:+.3f} us "
            f"{clock.drift * 1e6:+.3f} "
            "ppm"
        )
    for row in found.unmatched:
        yield f"rank {row.rank}: {row.count} of {_told(run, row.group)} {row.where}, not on {list(row.lacking)}"
    for conflict in found.conflicts:
        yield f"rank {conflict.rank}: {conflict.why} at {conflict.index} of {_told(run, conflict.group)}"


def _told(run: ClusterRun, group: int) -> str:
    return f"{run.groups[group].sort} group {run.groups[group].name}"
