"""``graphlink check``: what ASTRA-sim would make of a graph, whoever wrote it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from graphlink.cli.out import tell
from graphlink.errors import InputError
from graphlink.records import Table, counted, joined

if TYPE_CHECKING:
    from graphlink.astra.check_rules import Judgement


def check_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 no errors (warnings are possible), 1 errors; docs/check.md lists the rules"
    parser.add_argument(
        "what", metavar="DIR|FILE.et", help="a folder of PREFIX.RANK.et files, judged together, or one graph"
    )
    parser.add_argument(
        "--groups", metavar="FILE", help="communicator groups (default: comm_group.json beside the graphs)"
    )


def check(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 where one is an error, else 0.

    Raises:
        InputError: there is no such file or folder, or it is no Chakra graph.
    """
    from graphlink.astra.check_rules import Judged
    from graphlink.astra.ranks import judge, runs_of
    from graphlink.astra.rules import RankFile

    path = Path(arguments.what)
    if not path.exists():
        raise InputError("there is no such file or folder", path=path)
    groups = Path(arguments.groups) if arguments.groups else None
    if path.is_dir():
        judged = {run[0].prefix: judge(run, groups) for run in runs_of(path)}
    else:
        file = RankFile.of(path)
        run = [f for f in map(RankFile.of, path.parent.glob("*.et")) if f.prefix == file.prefix]
        judged = {file.path.name: judge([file], groups, run)}
    blocks = [text(name, judgement) for name, judgement in judged.items()]
    tell(arguments.json, Judged(runs=judged), lambda: joined(blocks))
    return int(any(judgement.errors for judgement in judged.values()))


def text(prefix: str, judgement: Judgement) -> list[str | Table]:
    """Return a block per finding: what, what each reader makes of it, where for example."""
    ranks = counted(len(judgement.ranks), "rank")
    lines: list[str | Table] = [
        f"{prefix}: {ranks}, {judgement.nodes} nodes: {judgement.errors} errors, {judgement.warnings} warnings"
    ]
    for verdict in judgement.verdicts:
        rule = verdict.rule
        rows = [("feeder_v3", rule.head or "no harm"), ("legacy", rule.on_legacy or "no harm")]
        rows += [("e.g.", example) for example in verdict.examples]
        lines += ["", f"{rule.grade}: {rule.what}: {verdict.count} ({rule.key})", Table(rows)]
    return lines
