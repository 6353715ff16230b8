"""``graphlink astra``: what ASTRA-sim needs besides the graphs of an earlier run, with a network measured from them."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Final

from graphlink.astra import TOPOLOGIES
from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import WHOLE_RUN_DIR, flag, gigabytes_per_s, latency_ns
from graphlink.cli.out import tell
from graphlink.errors import UsageError

ASTRA_OPTIONS: Final = VerbOptions(
    (
        WHOLE_RUN_DIR,
        Option("-o", "--out", metavar="FOLDER", help="where to (default DIR/astra-sim)"),
        Option(
            "--topology",
            choices=TOPOLOGIES,
            help="of each dimension (default ring, or switch where something goes further than to a neighbour)",
        ),
        Option(
            "--bandwidth",
            type=gigabytes_per_s,
            metavar="GB/S",
            help="of one dimension, instead of the measured one (1 GB = 1e9 bytes)",
        ),
        Option(
            "--latency",
            type=latency_ns,
            metavar="NS",
            help="of a step between neighbours, instead of the measured one",
        ),
        flag(
            "--replay-only",
            help="communication takes its recorded time; ranks do not wait for each other",
        ),
        flag("--force", help="replace the files of an earlier graphlink astra, and no others"),
    ),
    epilog="bandwidth and latency are measured from the run's own communication where it shows them; docs/astra-sim.md",
)


def astra(arguments: argparse.Namespace) -> int:
    """Write the folder and print what is in it.

    Raises:
        InputError: no graphs, a rank without one, or graphs that stop ASTRA-sim.
        OutputError: the folder holds other files, or an earlier run's without ``--force``.
        UsageError: the output folder is the one of the graphs.
    """
    folder = Path(arguments.dir)
    out = Path(arguments.out) if arguments.out else folder / "astra-sim"
    if out.exists() and folder.exists() and out.samefile(folder):
        raise UsageError(
            "--out is the folder of the graphs", todo="name another folder, or give no --out: then it is DIR/astra-sim"
        )
    from graphlink.astra.files import Network, network_lines
    from graphlink.astra.plan import planned, simulatable, write

    network = Network(arguments.topology, arguments.bandwidth, arguments.latency)
    plan = planned(simulatable(folder, replay_only=arguments.replay_only), out, network)
    made = write(plan, out, force=arguments.force)
    lines = [
        f"{out}: {made.ranks} ranks, {made.nodes:,} nodes",
        *network_lines(plan),
        *(f"warning: {warning}" for warning in made.warnings),
        f"run it: ASTRA_SIM=/path/to/binary bash {shlex.quote(str(out / 'run.sh'))} [head|legacy]",
    ]
    tell(arguments.json, made, lambda: lines)
    return 0
