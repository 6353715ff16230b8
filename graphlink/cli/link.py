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

from graphlink.choices import CHOICES, HTA_LIMIT, LATENCY_NS
from graphlink.cli.arguments import add_choice, at_least_one, between, count
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
_Options = argparse.ArgumentParser | argparse._ArgumentGroup
_Record = TypeVar("_Record", bound="Recordings | Options")


def link_options(parser: argparse.ArgumentParser) -> None:
    _add_inputs(
        parser.add_argument_group("inputs (plain, .gz or .zst, recognised by content; folders and traces may be URLs)")
    )
    _add_graph(parser.add_argument_group("the graph"))
    _add_outputs(parser.add_argument_group("outputs"))
    _add_joining(parser.add_argument_group("several ranks"))
    running = parser.add_argument_group("running")
    running.add_argument(
        "--rank-job", action="store_true", help="only the work on these ranks, left in DIR for graphlink join"
    )
    running.add_argument(
        "--resume", action="store_true", help="go on with what an earlier command that failed or was killed left in DIR"
    )
    running.add_argument("--partial", action="store_true", help="publish the ranks that did not fail (exit status 3)")
    _add_running(running)


def join_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="DIR", help="what the jobs were given as --out")
    parser.add_argument("--strict", action="store_true", help="a rank without a job is an error, not a warning")
    _add_force(parser)
    _add_joining(parser)
    _add_running(parser)


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


def _add_inputs(inputs: _Options) -> None:
    inputs.add_argument(
        "folder",
        nargs="*",
        metavar="DIR|FILE",
        help="folders or quoted globs of them, or traces and nsys exports themselves: recognised by content, paired by "
        "rank",
    )
    for option, what in (
        ("--et", "execution traces"),
        ("--kineto", "Kineto traces"),
        ("--nsys", "nsys sqlite exports instead of Kineto, a rank is a (process, device)"),
    ):
        help_text = f"{what}: files or quoted globs, repeatable"
        inputs.add_argument(option, action="extend", default=[], nargs="+", metavar="FILE", help=help_text)
    for _, hooks in each():
        hooks.input_options(inputs)
    inputs.add_argument(
        "--rank",
        type=count,
        metavar="N",
        help="rank of a single pair (default: as recorded, else from the file name, else 0)",
    )
    inputs.add_argument(
        "--strict", action="store_true", help="a rank or a partner that is missing is an error, not a warning"
    )
    inputs.add_argument(
        "--step",
        default="all",
        metavar="STEPS",
        help="which ProfilerSteps, by the numbers of their marks: all (default), 3, 2-5",
    )


def _add_graph(graph: _Options) -> None:
    add_choice(graph, "sync", "where synchronisation is taken from (default both)")
    graph.add_argument(
        "--hta-limit",
        type=count,
        default=HTA_LIMIT,
        metavar="N",
        help="events of a window above which HTA is skipped there (default 2000000)",
    )
    graph.add_argument(
        "--gap-us",
        type=between(0, 1e12, "time in us"),
        default=LATENCY_NS / 1000,
        metavar="US",
        help="idle time above which a gap or delay is a node (default 20)",
    )
    add_choice(graph, "target", "write what ASTRA-sim can run (default), or as recorded")
    add_choice(graph, "host", "every host op (default), or only those that launch, wait, hand over or begin a thread")
    for _, hooks in each():
        hooks.graph_options(graph)


def _add_outputs(outputs: _Options) -> None:
    outputs.add_argument(
        "-o", "--out", default="graphlink-out", metavar="DIR", help="output folder, or its URL (default graphlink-out)"
    )
    outputs.add_argument(
        "--name", default="trace", metavar="NAME", help="prefix of the graphs: NAME.<rank>.et (default trace)"
    )
    outputs.add_argument(
        "--linked", action="store_true", help="also write linked.<rank>.json, the ET merged with device ops"
    )
    timeline = outputs.add_mutually_exclusive_group()
    timeline.add_argument(
        "--timeline",
        choices=[words for words in CHOICES["timeline"] if words != "none"],
        default=CHOICES["timeline"][0],
        help="what timeline.perfetto-trace shows; both: the replay too",
    )
    timeline.add_argument("--no-timeline", action="store_true", help="write no timeline")
    _add_force(outputs)


def _add_force(parser: _Options) -> None:
    parser.add_argument(
        "--force", action="store_true", help="replace the files that the summary of an earlier run lists, and no others"
    )


def _add_joining(parser: _Options) -> None:
    add_choice(
        parser,
        "comm_time",
        "duration of communication in the graphs: as recorded (default), or without the time spent waiting for other "
        "ranks",
    )
    parser.add_argument(
        "--keep-unmatched",
        action="store_true",
        help="communication that other ranks lack stays communication, not computation",
    )
    parser.add_argument(
        "--same-run",
        action="store_true",
        help="recordings that differ in number of ranks, job or time are of one run all the same",
    )


def _add_running(parser: _Options) -> None:
    parser.add_argument(
        "--jobs", type=at_least_one, metavar="N", help="ranks at a time (default: as cores and memory allow)"
    )
    add_choice(parser, "engine", "processes of this machine (default), or a Ray cluster")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="errors only")
    loudness.add_argument(
        "-v", "--verbose", action="store_true", help="a line for each stage on stderr, and all that was counted"
    )


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
