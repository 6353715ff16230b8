"""``graphlink check``: what ASTRA-sim would make of a graph, whoever wrote it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.choices import Option, VerbOptions
from graphlink.cli.out import tell
from graphlink.errors import InputError
from graphlink.records import Lines, Table, counted, joined

if TYPE_CHECKING:
    from graphlink.astra.check_rules import Judgement


CHECK_OPTIONS: Final = VerbOptions(
    (
        Option("what", metavar="DIR|FILE.et", help="a folder of PREFIX.RANK.et files, judged together, or one graph"),
        Option("--groups", metavar="FILE", help="communicator groups (default: comm_group.json beside the graphs)"),
    ),
    epilog="exit status: 0 no errors (warnings are possible), 1 errors; docs/check.md lists the rules",
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
        raise InputError("there is no such file or folder", path=path, todo="name a graph, or a folder of graphs")
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


def text(prefix: str, judgement: Judgement) -> Lines:
    """Return a block per finding: what, what to do, what each reader makes of it, where for example."""
    counts = {"rank": len(judgement.ranks), "node": judgement.nodes}
    of_run, found = (
        ", ".join(counted(count, word) for word, count in some.items())
        for some in (counts, {"error": judgement.errors, "warning": judgement.warnings})
    )
    lines: Lines = [f"{prefix}: {of_run}: {found}{_stopped(judgement)}"]
    for verdict in judgement.verdicts:
        rule = verdict.rule
        effects = [("ASTRA-sim of 2026", rule.head), ("of 2024", rule.legacy)]
        if rule.head == rule.legacy:
            effects = [("ASTRA-sim", rule.head)]
        rows = [("do", rule.todo), *effects, *(("for example", example) for example in verdict.examples)]
        lines += ["", f"{rule.grade}: {verdict.text}", Table(rows)]
    return lines


def _stopped(judgement: Judgement) -> str:
    """Return which ASTRA-sim surely does not run the graphs as they are; "" where none is known."""
    years: dict[str, list[str]] = {}
    for reader, year in (("head", "of 2026"), ("legacy", "of 2024")):
        for replay_only, how in ((True, "cannot run it as it is"), (False, "can run it only with replay-only")):
            if any("runs" not in verdict.rule.ends(reader, replay_only=replay_only) for verdict in judgement.verdicts):
                years.setdefault(how, []).append(year)
                break
    return "".join(f"; ASTRA-sim {' and '.join(those)} {how}" for how, those in years.items())
