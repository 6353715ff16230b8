"""The main job: one rank or many, published together or not at all."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from graphlink import run
from graphlink.annotate.pipeline.rules import user_rules
from graphlink.cli.inputs import Found, of_files, of_folders, unfold
from graphlink.cli.nsys import ranks_of
from graphlink.cli.out import say
from graphlink.cli.progress import reporting
from graphlink.cli.ranks import naming_limits, run_ranks
from graphlink.emit import bubbles, publish, summary
from graphlink.errors import InputError, UsageError
from graphlink.link.steps import parse_steps
from graphlink.run_paddle import run_paddle

log: Final = logging.getLogger("graphlink")


def link(arguments: argparse.Namespace) -> int:
    """Links what ``arguments`` name, writes ``--out`` and prints the summary; returns the exit status.

    Raises:
        GraphlinkError: as the stages do; nothing is published then.
    """
    options = run.Options(
        step=arguments.step,
        sync=arguments.sync,
        hta_limit=arguments.hta_limit,
        target=arguments.target,
        gap_ns=round(arguments.gap_us * 1000),
        linked=arguments.linked,
        host=arguments.host,
        timeline="none" if arguments.no_timeline else arguments.timeline,
        name=arguments.name,
        range_rules=tuple(arguments.range_rule),
    )
    parse_steps(options.step)
    user_rules(options.range_rules)
    with publish.Publication(Path(arguments.out), force=arguments.force) as publication:
        with reporting(quiet=arguments.quiet, verbose=arguments.verbose):
            whole = _write(arguments, options, publication.beside)
            publication.publish()
        if not arguments.quiet:  # still inside: if it cannot be said, nothing is published
            say(f"{summary.table(whole)}\n\nwrote {len(whole.files)} files to {arguments.out}")
    return 0


def _inputs(arguments: argparse.Namespace, options: run.Options, folder: Path) -> tuple[Sequence[run.Inputs], tuple[str, ...]]:
    """The ranks that ``arguments`` name, and warnings. Those of nsys exports are known once they are read: their traces lie in ``folder``
    then."""
    if arguments.nsys:
        found = Found(exports=tuple(unfold(arguments.nsys)))
    elif arguments.folder:
        found = of_folders(arguments.folder, arguments.rank)
    else:
        found = of_files(arguments.kineto, arguments.et, arguments.rank)
    warnings = (*found.missing, *found.warnings)
    for text in warnings:
        log.warning("%s", text)
    if found.missing and arguments.strict:
        raise InputError(
            f"--strict, and the run is not whole: {'; '.join(found.missing)}", todo="add what is missing, or leave out --strict"
        )
    if not found.exports:
        if options.linked and (bare := [rank for rank in found.ranks if rank.et is None]):
            what = "--linked merges an execution trace with device ops, and there is none for it"
            raise UsageError(what, path=bare[0].recording, todo="give one of every rank, or leave out --linked")
        return found.ranks, warnings
    if options.linked:
        raise UsageError("--linked merges an execution trace with device ops, and nsys exports have none", path=found.exports[0])
    if arguments.strict:
        raise UsageError(
            "--strict is for Kineto traces: an nsys export says neither its partners nor how many there are", path=found.exports[0]
        )
    return ranks_of(found.exports, arguments.rank, folder, arguments.jobs), warnings


def _write(arguments: argparse.Namespace, options: run.Options, folder: Path) -> summary.Summary:
    """All files of the job into ``folder``; returns what their summary says."""
    result, warnings = _run(arguments, options, folder)
    whole = summary.Summary(
        options=summary.Options(
            step=options.step,
            sync=options.sync,
            hta_limit=options.hta_limit,
            target=options.target,
            gap_us=arguments.gap_us,
        ),
        ranks=list(result.ranks),
        pipeline=bubbles.summarised(result.pipeline) if result.pipeline is not None else None,
        warnings=list(warnings),
        files=sorted({*result.files, summary.NAME}),
    )
    publish.write(folder / summary.NAME, summary.encode(whole))
    return whole


def _run(arguments: argparse.Namespace, options: run.Options, folder: Path) -> tuple[run.RunResult, tuple[str, ...]]:
    if arguments.paddle_logs is not None:
        return run_paddle(Path(arguments.paddle_logs), options.step, folder), ()
    inputs, warnings = _inputs(arguments, options, folder)
    if len(inputs) == 1:
        with naming_limits(inputs[0].recording):
            return run.run_rank(inputs[0], options, folder), warnings
    return run_ranks(inputs, options, folder, arguments.jobs), warnings
