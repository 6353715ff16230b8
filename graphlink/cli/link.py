"""The main job, ``graphlink link``, and the joining of ranks, ``graphlink join``: one call each, and the summary
printed.

The list of options is frozen by a test.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import shlex
from typing import TYPE_CHECKING, Any, Final, TypeVar

from graphlink.choices import CHOICES, HTA_LIMIT, LATENCY_NS, Either, Option, VerbOptions
from graphlink.cli.arguments import at_least_one, between, choice, count, flag
from graphlink.cli.out import reporting, say, tell
from graphlink.engine.files import is_url, refuse_urls
from graphlink.errors import UsageError
from graphlink.process import gc_paused, keep_freed
from graphlink.records import Lines, command_lines
from graphlink.wings import all_of, each

if TYPE_CHECKING:
    from graphlink.report.summary import Summary
    from graphlink.run.link import Made
    from graphlink.run.options import Options, Recordings

USAGE: Final = "\n       ".join(
    f"graphlink [link] {given} [options]"
    for given in ("DIR|FILE ...", "--et ET --kineto KINETO", "--nsys EXPORT", "--paddle-logs DIR")
)
_Record = TypeVar("_Record", bound="Recordings | Options")


_FORCE: Final = flag("--force", help="replace the files that the summary of an earlier run lists, and no others")
_INPUTS: Final = (
    Option(
        "folder",
        nargs="*",
        metavar="DIR|FILE",
        help="folders or quoted globs of them, or traces and nsys exports themselves: recognised by content, paired by "
        "rank",
    ),
    *(
        Option(
            option,
            action="extend",
            default=[],
            nargs="+",
            metavar="FILE",
            help=f"{what}: files or quoted globs, repeatable",
        )
        for option, what in (
            ("--et", "execution traces"),
            ("--kineto", "Kineto traces"),
            ("--nsys", "nsys sqlite exports instead of Kineto, a rank is a (process, device)"),
        )
    ),
    *(option for _, hooks in each() for option in hooks.input_options),
    Option(
        "--rank",
        type=count,
        metavar="N",
        help="rank of a single pair (default: as recorded, else from the file name, else 0)",
    ),
    flag("--strict", help="a rank or a partner that is missing is an error, not a warning"),
    Option(
        "--step",
        default="all",
        metavar="STEPS",
        help="which ProfilerSteps, by the numbers of their marks: all (default), 3, 2-5",
    ),
)
_GRAPH: Final = (
    choice("sync", "where synchronisation is taken from (default both)"),
    Option(
        "--hta-limit",
        type=count,
        default=HTA_LIMIT,
        metavar="N",
        help="events of a window above which HTA is skipped there (default 2000000)",
    ),
    Option(
        "--gap-us",
        type=between(0, 1e12, "time in us"),
        default=LATENCY_NS / 1000,
        metavar="US",
        help="idle time above which a gap or delay is a node (default 20)",
    ),
    choice("target", "write what ASTRA-sim can run (default), or as recorded"),
    choice("host", "every host op (default), or only those that launch, wait, hand over or begin a thread"),
    *(option for _, hooks in each() for option in hooks.graph_options),
)
_OUTPUTS: Final = (
    Option(
        "-o", "--out", default="graphlink-out", metavar="DIR", help="output folder, or its URL (default graphlink-out)"
    ),
    Option("--name", default="trace", metavar="NAME", help="prefix of the graphs: NAME.<rank>.et (default trace)"),
    flag("--linked", help="also write linked.<rank>.json, the ET merged with device ops"),
    Either(
        (
            Option(
                "--timeline",
                choices=[words for words in CHOICES["timeline"] if words != "none"],
                default=CHOICES["timeline"][0],
                help="what timeline.perfetto-trace shows; both: the replay too",
            ),
            flag("--no-timeline", help="write no timeline"),
        )
    ),
    _FORCE,
)
_JOINING: Final = (
    choice(
        "comm_time",
        "duration of communication in the graphs: as recorded (default), or without the time spent waiting for other "
        "ranks",
    ),
    flag(
        "--keep-unmatched",
        help="communication that other ranks lack stays communication, not computation",
    ),
    flag(
        "--same-run",
        help="recordings that differ in number of ranks, job or time are of one run all the same",
    ),
)
_RUNNING: Final = (
    Option("--jobs", type=at_least_one, metavar="N", help="ranks at a time (default: as cores and memory allow)"),
    choice("engine", "processes of this machine (default), or a Ray cluster"),
    Either(
        (
            flag("-q", "--quiet", help="errors only"),
            flag("-v", "--verbose", help="a line for each stage on stderr, and all that was counted"),
        )
    ),
)
LINK_OPTIONS: Final = VerbOptions(
    groups={
        "inputs (plain, .gz or .zst, recognised by content; folders and traces may be URLs)": _INPUTS,
        "the graph": _GRAPH,
        "outputs": _OUTPUTS,
        "several ranks": _JOINING,
        "running": (
            flag("--rank-job", help="only the work on these ranks, left in DIR for graphlink join"),
            flag(
                "--resume",
                help="go on with what an earlier command that failed or was killed left in DIR",
            ),
            flag("--partial", help="publish the ranks that did not fail (exit status 3)"),
            *_RUNNING,
        ),
    }
)
JOIN_OPTIONS: Final = VerbOptions(
    (
        Option("out", metavar="DIR", help="what the jobs were given as --out"),
        flag("--strict", help="a rank without a job is an error, not a warning"),
        _FORCE,
        *_JOINING,
        *_RUNNING,
    )
)


def link(arguments: argparse.Namespace) -> int:
    """Link what ``arguments`` name, write ``--out`` and print the summary; return the exit status.

    Raises:
        GraphlinkError: as the stages do, nothing is published then; options contradict each other.
    """
    refuse_contradictions(arguments)
    with gc_paused():
        from graphlink.engine.engines import RunsOn
        from graphlink.run.link import leave_jobs, linked
        from graphlink.run.options import Options, Recordings
        from graphlink.run.out import out_of

        gc.freeze()  # modules stay: to go through them again and again takes a tenth of a small job

    keep_freed()
    recordings = _filled(Recordings, arguments, folders=tuple(arguments.folder))
    timeline = "none" if arguments.no_timeline else arguments.timeline
    options = _filled(Options, arguments, gap_ns=round(arguments.gap_us * 1000), timeline=timeline)
    runs_on = RunsOn(arguments.jobs, arguments.engine)
    force, resume, partial = arguments.force, arguments.resume, arguments.partial
    if not arguments.rank_job:
        return _shown(
            arguments, linked(recordings, options, runs_on, arguments.out, force=force, resume=resume, partial=partial)
        )
    with reporting(quiet=arguments.quiet, verbose=arguments.verbose):
        ranks = leave_jobs(recordings, options, runs_on, arguments.out, resume=resume)
    if not arguments.quiet:
        out = out_of(arguments.out)
        say(f"rank {', '.join(map(str, ranks))}: kept in {out.hidden}; when all ranks are, graphlink join {out.name}")
    return 0


def join(arguments: argparse.Namespace) -> int:
    """Join the ranks whose jobs lie in DIR (``graphlink join DIR``), publish and print the summary; return the exit
    status.

    Raises:
        GraphlinkError: there are none, or as the stages do; nothing is published then.
    """
    from graphlink.engine.engines import RunsOn
    from graphlink.run.link import joined
    from graphlink.run.options import Options

    joining = _filled(Options, arguments)
    runs_on = RunsOn(arguments.jobs, arguments.engine)
    return _shown(
        arguments,
        joined(
            joining, runs_on, arguments.out, force=arguments.force, strict=arguments.strict, same_run=arguments.same_run
        ),
    )


def _filled(record: type[_Record], arguments: argparse.Namespace, **others: object) -> _Record:
    """Make a record of the arguments that have the names of its fields, those that wings add too, and of ``others``."""
    names = {field.name for field in dataclasses.fields(record)}
    given = {name: value for name, value in vars(arguments).items() if name in names} | others
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return record(**fields)


def _next(made: Summary, out: str) -> Lines:
    """Return what to run next, of a run with graphs."""
    if not made.ranks:
        return []
    across = " --across" if len(made.ranks) > 1 else ""
    steps = [
        (30, f"critical-path {{}}{across}", "what decides when the run ends"),
        (50, "show -v {}", "all counts, and notes on the recording"),
    ]
    steps += all_of("next_steps", made)
    folder = shlex.quote(out)
    return ["next", *command_lines({f"graphlink {step.format(folder)}": tells for _, step, tells in sorted(steps)})]


def _shown(arguments: argparse.Namespace, making: contextlib.AbstractContextManager[Made]) -> int:
    from graphlink.report import summary

    with contextlib.ExitStack() as progress:
        progress.enter_context(reporting(quiet=arguments.quiet, verbose=arguments.verbose))
        with making as made:
            folder = "" if is_url(arguments.out) else arguments.out
            progress.close()
            done = (
                f"{arguments.out} was complete already"
                if made.earlier
                else f"wrote {len(made.summary.files)} files to {arguments.out}"
            )
            # still inside: if it cannot be printed, nothing is published
            tell(
                arguments.json,
                made.summary,
                lambda: [
                    *summary.table(made.summary, verbose=arguments.verbose, folder=folder),
                    "",
                    *_next(made.summary, arguments.out),
                    done,
                ],
                quiet=arguments.quiet,
                most=summary.WIDE,
            )
    return made.status


def refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Raise UsageError where options contradict each other that ``Recordings`` and ``Options`` do not see together."""
    refuse_urls(arguments.nsys)
    if not arguments.out:
        raise UsageError("--out: names no folder")
    for _, hooks in each():
        hooks.refuse(arguments)
    if arguments.linked and (arguments.kineto or arguments.nsys) and not arguments.et:
        raise UsageError(
            "--linked merges an execution trace with device ops, and there is none", todo="give it with --et"
        )
    if arguments.json and arguments.rank_job:
        raise UsageError("--json is the summary of a run, and --rank-job makes none", todo="give it to graphlink join")
