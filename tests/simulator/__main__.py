"""``python -m tests.simulator make DIR``: write an ET and a Kineto file of a simulated program.

``pipeline DIR``: those of a pipeline; ``cluster DIR``: those of many ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.simulator import cluster_cli, pipeline_cli
from tests.simulator.dialects import DIALECTS
from tests.simulator.et import Layout, write_et
from tests.simulator.kineto import Variation, write_kineto
from tests.simulator.machine import run
from tests.simulator.programs import Shape, Training, random_program, training_program


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    pipeline_cli.add_parser(verbs)
    cluster_cli.add_parser(verbs)
    make = verbs.add_parser("make", help="write et_R.json and kineto_R.json")
    make.set_defaults(run=_make)
    make.add_argument("folder", type=Path, metavar="DIR")
    make.add_argument("--program", choices=("training", "random"), default="training")
    make.add_argument("--seed", type=int, default=0)
    make.add_argument("--dialect", choices=sorted(DIALECTS), default="2024", help="of the Kineto file")
    make.add_argument(
        "--layout", choices=[layout.value for layout in Layout], default=Layout.V1_1_0.value, help="of the ET"
    )
    make.add_argument("--no-cuda-sync", action="store_true", help="leave out the cuda_sync rows")
    make.add_argument("--record-ids", choices=("right", "absent", "unresolved", "later"), default="right")
    make.add_argument("--python-rows", action="store_true", help="add python_function rows")
    make.add_argument("--shuffle", action="store_true", help="shuffle the rows by seed")
    make.add_argument("--kernel-scale", type=float, default=1.0, help="factor on the duration of every device op")
    make.add_argument("--gzip", action="store_true", help="write .json.gz")
    training = make.add_argument_group("training programs")
    training.add_argument("--steps", type=int, default=3)
    training.add_argument("--layers", type=int, default=4)
    training.add_argument("--ranks", type=int, default=2)
    training.add_argument("--rank", type=int, default=0, help="which rank to write; also names the files")
    random = make.add_argument_group("random programs")
    random.add_argument("--threads", type=int, default=1)
    random.add_argument("--streams", type=int, default=3)
    random.add_argument("--devices", type=int, default=1)
    random.add_argument("--ops", type=int, default=40, help="ops a thread")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pair of files; wrong usage raises SystemExit(2) as argparse does."""
    args = _parser().parse_args(argv)
    status: int = args.run(args)
    return status


def _make(args: argparse.Namespace) -> int:
    if args.program == "training":
        program = training_program(args.seed, Training(args.steps, args.layers, args.ranks, args.rank))
    else:
        program = random_program(args.seed, Shape(args.threads, args.streams, args.devices, args.ops))
    execution = run(program, args.kernel_scale)
    vary = Variation(
        record_ids=args.record_ids, python_rows=args.python_rows, shuffle_seed=args.seed if args.shuffle else None
    )
    suffix = ".json.gz" if args.gzip else ".json"
    args.folder.mkdir(parents=True, exist_ok=True)
    write_et(execution, args.folder / f"et_{args.rank}{suffix}", layout=args.layout)
    kineto = args.folder / f"kineto_{args.rank}{suffix}"
    write_kineto(execution, kineto, dialect=args.dialect, cuda_sync=not args.no_cuda_sync, vary=vary)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
