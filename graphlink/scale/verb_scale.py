"""``graphlink scale``: graphs of more ranks, made from those of an earlier run."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Final

from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import WHOLE_RUN_DIR, at_least_one, choice, count, flag, gigabytes_per_s, latency_ns
from graphlink.cli.out import tell
from graphlink.errors import UsageError

_EPILOG: Final = """ranks are copied by their role in the communicators; what cannot be derived from the recording is refused, with
the reason. docs/more-ranks.md"""  # noqa: E501


SCALE_OPTIONS: Final = VerbOptions(
    (
        WHOLE_RUN_DIR,
        Option("-o", "--out", metavar="DIR2", required=True, help="where to"),
        Option(
            "--data-parallel",
            type=at_least_one,
            metavar="N",
            help="ranks that do the same on other data: as many as recorded or more",
        ),
        Option("--pipeline", type=at_least_one, metavar="N", help="stages: as many as recorded or more"),
        Option("--microbatches", type=at_least_one, metavar="N", help="of a step of a pipeline"),
        Option(
            "--layout",
            metavar="AXIS=N,...",
            help="how ranks are numbered, neighbours first, where it is not found: tensor=2,data=4",
        ),
        Option(
            "--bandwidth",
            type=gigabytes_per_s,
            metavar="GB/S",
            help="of a rank in collectives that grow, instead of the fitted one (1 GB = 1e9 bytes)",
        ),
        Option(
            "--latency",
            type=latency_ns,
            metavar="NS",
            help="of a step of a collective that grows, instead of the fitted one",
        ),
        Option("--seed", type=count, default=0, metavar="N", help="of the times that are drawn for copies (default 0)"),
        flag("--no-spread", help="copies take exactly the recorded times"),
        Option(
            "--jobs", type=at_least_one, metavar="N", help="processes that write (default: as cores and memory allow)"
        ),
        choice("engine", "processes of this machine, or a Ray cluster that sees both folders"),
        flag("--force", help="replace the files of an earlier run in DIR2, and no others"),
    ),
    epilog=_EPILOG,
)


def scale(arguments: argparse.Namespace) -> int:
    """Make the graphs, and print what they were made from and what they predict; 0.

    Raises:
        InputError: the graphs are not all there, or what becomes of them cannot be derived.
        OutputError: DIR2 holds the outputs of an earlier run, or cannot be written.
        UsageError: nothing is to be larger, or DIR2 is DIR.
    """
    folder, out = Path(arguments.dir), Path(arguments.out)
    if out.exists() and folder.exists() and out.samefile(folder):
        raise UsageError("--out is the folder of the recorded graphs", todo="name another one")
    if arguments.data_parallel is None and arguments.pipeline is None and arguments.microbatches is None:
        raise UsageError("nothing is to be larger", todo="say --data-parallel N, --pipeline N or --microbatches N")
    from graphlink.engine.engines import RunsOn
    from graphlink.scale.make import Wishes
    from graphlink.scale.make import scale as make
    from graphlink.scale.records import table

    wishes = Wishes(
        data=arguments.data_parallel,
        stages=arguments.pipeline,
        microbatches=arguments.microbatches,
        layout=arguments.layout,
        seed=None if arguments.no_spread else arguments.seed,
        gigabytes_per_s=arguments.bandwidth,
        latency_ns=arguments.latency,
    )
    made = make(folder, wishes, out, RunsOn(arguments.jobs, arguments.engine), force=arguments.force)
    again = shlex.quote(str(out))
    tell(
        arguments.json,
        made,
        lambda: [*table(made, str(out)), "", f"next: graphlink replay {again} --together; graphlink check {again}"],
    )
    return 0
