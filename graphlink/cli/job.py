"""The main job, ``graphlink link``, and the joining of ranks, ``graphlink join``: one call each, and the summary printed."""

from __future__ import annotations

import argparse
import contextlib

from graphlink.cli.out import say, tell
from graphlink.cli.progress import reporting
from graphlink.engine.engines import RunsOn
from graphlink.report import summary
from graphlink.run.link import Made, joined, leave_jobs, linked
from graphlink.run.options import Options, Recordings
from graphlink.run.out import out_of


def link(arguments: argparse.Namespace) -> int:
    """Link what ``arguments`` name, write ``--out`` and print the summary; return the exit status.

    Raises:
        GraphlinkError: as the stages do; nothing is published then.
    """
    recordings, options, runs_on = _recordings(arguments), _options(arguments), _runs_on(arguments)
    if arguments.rank_job:
        with reporting(quiet=arguments.quiet, verbose=arguments.verbose):
            ranks = leave_jobs(recordings, options, runs_on, arguments.out, resume=arguments.resume)
        if not arguments.quiet:
            out = out_of(arguments.out)
            say(f"rank {', '.join(map(str, ranks))}: kept in {out.hidden}; when all ranks are, graphlink join {out.name}")
        return 0
    force, resume, partial = arguments.force, arguments.resume, arguments.partial
    return _shown(arguments, linked(recordings, options, runs_on, arguments.out, force=force, resume=resume, partial=partial))


def join(arguments: argparse.Namespace) -> int:
    """``graphlink join DIR``: joins the ranks whose jobs lie in DIR, publish and print the summary; return the exit status.

    Raises:
        GraphlinkError: there are none, or as the stages do; nothing is published then.
    """
    joining = Options(comm_time=arguments.comm_time, keep_unmatched=arguments.keep_unmatched)
    force, strict, same_run = arguments.force, arguments.strict, arguments.same_run
    return _shown(arguments, joined(joining, _runs_on(arguments), arguments.out, force=force, strict=strict, same_run=same_run))


def _shown(arguments: argparse.Namespace, making: contextlib.AbstractContextManager[Made]) -> int:
    with contextlib.ExitStack() as progress:
        progress.enter_context(reporting(quiet=arguments.quiet, verbose=arguments.verbose))
        with making as made:
            progress.close()
            done = f"{arguments.out} was complete already" if made.earlier else f"wrote {len(made.summary.files)} files to {arguments.out}"
            # still inside: if it cannot be said, nothing is published
            tell(arguments.json, made.summary, lambda: [*summary.table(made.summary), "", done], quiet=arguments.quiet)
    return made.status


def _recordings(arguments: argparse.Namespace) -> Recordings:
    return Recordings(
        folders=tuple(arguments.folder),
        kineto=tuple(arguments.kineto),
        et=tuple(arguments.et),
        nsys=tuple(arguments.nsys),
        nccl=tuple(arguments.nccl),
        paddle_logs=arguments.paddle_logs,
        rank=arguments.rank,
        strict=arguments.strict,
        same_run=arguments.same_run,
    )


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
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
        comm_time=arguments.comm_time,
        keep_unmatched=arguments.keep_unmatched,
    )


def _runs_on(arguments: argparse.Namespace) -> RunsOn:
    return RunsOn(arguments.jobs, arguments.engine)
