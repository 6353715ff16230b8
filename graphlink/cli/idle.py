"""``graphlink idle``: what each GPU of an earlier run was busy with, and why it was idle."""

from __future__ import annotations

import argparse
from pathlib import Path

from graphlink.cli.numbers import count
from graphlink.cli.out import tell
from graphlink.errors import InputError


def idle_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="output folder of an earlier run")
    parser.add_argument("--rank", type=count, metavar="N", help="of this rank alone")
    parser.add_argument("--top", type=count, default=10, metavar="N", help="how many intervals and reasons (default 10)")


def idle(arguments: argparse.Namespace) -> int:
    """Print the time of each device and the causes of its idle time; 0.

    Raises:
        InputError: the folder has no idle.<rank>.json, or none of this rank; a file cannot be read.
    """
    from graphlink.gpu import file
    from graphlink.gpu.table import IdleReport, idle_table, rank_idle
    from graphlink.report import summary

    folder = Path(arguments.dir)
    files = {int(number): path for path in folder.glob("idle.*.json") if (number := path.name.split(".")[1]).isdecimal()}
    if arguments.rank is not None:
        files = {rank: path for rank, path in files.items() if rank == arguments.rank}
    if not files:
        of = "" if arguments.rank is None else f" of rank {arguments.rank}"
        raise InputError(f"holds no idle.<rank>.json{of}", path=folder, todo="name the folder that an earlier run wrote with --out")
    beside = folder / summary.NAME
    run = summary.load(beside).run if beside.is_file() else None
    report = IdleReport(ranks=[rank_idle(file.load(files[rank]), arguments.top, run) for rank in sorted(files)])
    tell(arguments.json, report, lambda: idle_table(report))
    return 0
