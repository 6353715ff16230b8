"""The options of ``graphlink``. The list is frozen by a test: an option is a promise."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence

from graphlink.cli.astra import astra_parser
from graphlink.cli.bubbles import bubbles_parser
from graphlink.cli.check import check_parser
from graphlink.cli.critical import critical_parser
from graphlink.cli.doctor import doctor_parser
from graphlink.cli.replay import replay_parser
from graphlink.engine.files import is_url
from graphlink.errors import UsageError
from graphlink.version import __version__

VERBS = ("link", "join", "show", "check", "replay", "critical-path", "bubbles", "astra", "doctor")
_DESCRIPTION = "Turns recorded GPU training runs into dependency graphs that simulators can trust."
_EPILOG = """verbs:
  graphlink [link] ...             link an execution trace (ET) and a Kineto trace: the main job, options above
  graphlink join DIR               join the ranks that link --rank-job left in DIR
  graphlink show DIR               print the summary of an earlier run
  graphlink show FILE.et --node ID print a node with its attributes and its edges both ways
  graphlink replay DIR             replay graphs, compare with the recording, ask what if
  graphlink critical-path DIR      print what holds a rank up, and what would be gained from whom
  graphlink bubbles DIR            print where the bubbles of a pipeline come from, and what another schedule would give
  graphlink check DIR|FILE.et      say what ASTRA-sim would make of any Chakra graph
  graphlink doctor FILE|DIR ...    say what a recording lacks, what that costs, and how to record it
  graphlink astra DIR              write what ASTRA-sim needs beside the graphs, with the network that the run shows

examples:
  graphlink --et et_0.json --kineto kineto_0.json --out out
  graphlink --kineto kineto_0.json
  graphlink --et 'et_*.json' --kineto 'kineto_*.json' --out out
  graphlink traces/ --out out
  graphlink --kineto kineto_0.json --nccl nccl_dumps/ --out out
  graphlink 'hosts/*' --strict --out out
  graphlink --nsys run.sqlite --out out
  graphlink --paddle-logs log_dir --out out

exit status: 0 done, 1 the input is at fault, 2 wrong usage, 3 some ranks of several failed, 130 interrupted
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments with ``verb`` set. Leaves through ``SystemExit`` (0 or 2) for help, version and wrong options.

    Raises:
        UsageError: options that contradict each other or are not there yet.
    """
    verb = argv[0] if argv and argv[0] in VERBS else None
    rest = list(argv[1:] if verb else argv)
    if verb == "join":
        arguments = join_parser().parse_args(rest)
    elif verb == "show":
        arguments = show_parser().parse_args(rest)
    elif verb == "check":
        arguments = check_parser().parse_args(rest)
    elif verb == "replay":
        arguments = replay_parser().parse_args(rest)
    elif verb == "critical-path":
        arguments = critical_parser().parse_args(rest)
    elif verb == "bubbles":
        arguments = bubbles_parser().parse_args(rest)
    elif verb == "doctor":
        arguments = doctor_parser().parse_args(rest)
    elif verb == "astra":
        arguments = astra_parser().parse_args(rest)
    else:
        arguments = link_parser().parse_args(rest)
        _check(arguments)
    arguments.verb = verb or "link"
    if arguments.verb not in ("link", "join"):
        given = [value if isinstance(value, list) else [value] for value in vars(arguments).values()]
        _refuse_urls(value for values in given for value in values if isinstance(value, str))
    return arguments


def link_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graphlink",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="\n       ".join(
            f"graphlink [link] {given} [options]"
            for given in ("--et ET --kineto KINETO", "--nsys EXPORT", "FOLDER ...", "--paddle-logs DIR")
        ),
    )
    parser.add_argument("--version", action="version", version=f"graphlink {__version__}")
    inputs = parser.add_argument_group("inputs (plain, .gz or .zst, told by content; folders and traces may be URLs)")
    inputs.add_argument(
        "folder", nargs="*", metavar="FOLDER", help="folders, or quoted globs of them, whose traces are found and paired by rank"
    )
    inputs.add_argument(
        "--et", action="append", default=[], nargs="+", metavar="FILE", help="execution traces: files or quoted globs, repeatable"
    )
    inputs.add_argument(
        "--kineto", action="append", default=[], nargs="+", metavar="FILE", help="Kineto traces: files or quoted globs, repeatable"
    )
    inputs.add_argument(
        "--nsys",
        action="append",
        default=[],
        nargs="+",
        metavar="FILE",
        help="nsys sqlite exports instead of Kineto: files or quoted globs, repeatable; a rank is a (process, device)",
    )
    inputs.add_argument(
        "--nccl",
        action="append",
        default=[],
        nargs="+",
        metavar="FILE",
        help="side files of NCCL or the Flight Recorder beside Kineto: files, folders of them or quoted globs, repeatable",
    )
    inputs.add_argument("--paddle-logs", metavar="DIR", help="folder of Paddle worker logs: bubbles only, no graph")
    inputs.add_argument(
        "--rank", type=_count, metavar="N", help="rank of a single pair (default: as recorded, else from the file name, else 0)"
    )
    inputs.add_argument("--strict", action="store_true", help="a rank or a partner that is missing is an error, not a warning")
    inputs.add_argument(
        "--step", default="all", metavar="STEPS", help="which ProfilerSteps, by the numbers of their marks: all (default), 3, 2-5"
    )
    graph = parser.add_argument_group("the graph")
    graph.add_argument("--sync", choices=("both", "hta", "cuda"), default="both", help="where synchronisation is taken from (default both)")
    graph.add_argument(
        "--hta-limit",
        type=_count,
        default=2_000_000,
        metavar="N",
        help="events of a window above which HTA is skipped there (default 2000000)",
    )
    graph.add_argument(
        "--gap-us", type=_micros, default=20.0, metavar="US", help="idle time above which a gap or delay is a node (default 20)"
    )
    graph.add_argument(
        "--target", choices=("astra-sim", "chakra"), default="astra-sim", help="write what ASTRA-sim can run (default), or as recorded"
    )
    graph.add_argument(
        "--host",
        choices=("full", "launches"),
        default="full",
        help="every host op (default), or only those that launch, wait, hand over or begin a thread",
    )
    graph.add_argument(
        "--range-rule",
        action="append",
        default=[],
        metavar="REGEX",
        help="names of pipeline ranges, with groups (?P<phase>...), microbatch, stage, chunk; repeatable, before the known ones",
    )
    outputs = parser.add_argument_group("outputs")
    outputs.add_argument("--out", default="graphlink-out", metavar="DIR", help="output folder, or its URL (default graphlink-out)")
    outputs.add_argument("--name", default="trace", metavar="NAME", help="prefix of the graphs: NAME.<rank>.et (default trace)")
    outputs.add_argument("--linked", action="store_true", help="also write linked.<rank>.json, the ET merged with device ops")
    timeline = outputs.add_mutually_exclusive_group()
    timeline.add_argument(
        "--timeline", choices=("recorded", "both"), default="recorded", help="what timeline.perfetto-trace shows; both: the replay too"
    )
    timeline.add_argument("--no-timeline", action="store_true", help="write no timeline")
    _add_force(outputs)
    _add_joining(parser.add_argument_group("several ranks"))
    running = parser.add_argument_group("running")
    running.add_argument("--rank-job", action="store_true", help="only the work on these ranks, left in DIR for graphlink join")
    running.add_argument("--resume", action="store_true", help="go on with what an earlier command that failed or was killed left in DIR")
    running.add_argument("--partial", action="store_true", help="publish the ranks that did not fail (exit status 3)")
    _add_running(running)
    return parser


def join_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graphlink join",
        description="Joins the ranks whose jobs (graphlink link --rank-job --out DIR) are done, and publishes their files in DIR.",
        allow_abbrev=False,
    )
    parser.add_argument("out", metavar="DIR", help="what the jobs were given as --out")
    parser.add_argument("--strict", action="store_true", help="a rank without a job is an error, not a warning")
    _add_force(parser)
    _add_joining(parser)
    _add_running(parser)
    return parser


_Options = argparse.ArgumentParser | argparse._ArgumentGroup


def _add_force(parser: _Options) -> None:
    parser.add_argument("--force", action="store_true", help="replace the files that the summary of an earlier run lists, and no others")


def _add_joining(parser: _Options) -> None:
    parser.add_argument(
        "--comm-time",
        choices=("recorded", "transfer"),
        default="recorded",
        help="duration of communication in the graphs: as recorded (default), or without the time spent waiting for other ranks",
    )
    parser.add_argument(
        "--keep-unmatched", action="store_true", help="communication that other ranks lack stays communication, not computation"
    )
    parser.add_argument(
        "--same-run", action="store_true", help="recordings that differ in number of ranks, job or time are of one run all the same"
    )


def _add_running(parser: _Options) -> None:
    parser.add_argument("--jobs", type=_at_least_one, metavar="N", help="ranks at a time (default: as cores and memory allow)")
    parser.add_argument("--engine", choices=("pool", "ray"), default="pool", help="processes of this machine (default), or a Ray cluster")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="errors only")
    loudness.add_argument("-v", "--verbose", action="store_true", help="a line a stage on stderr")


def show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="graphlink show", description="Prints what an earlier run wrote.", allow_abbrev=False)
    parser.add_argument("what", metavar="DIR|FILE.et", help="output folder of an earlier run, or a graph")
    parser.add_argument("--node", type=_count, metavar="ID", help="the node of FILE.et to print, with its edges")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    arguments.et = [name for names in arguments.et for name in names]
    arguments.kineto = [name for names in arguments.kineto for name in names]
    arguments.nsys = [name for names in arguments.nsys for name in names]
    arguments.nccl = [name for names in arguments.nccl for name in names]
    if arguments.nsys and (arguments.et or arguments.kineto):
        other = "--et" if arguments.et else "--kineto"
        raise UsageError(f"{other} cannot be given with --nsys: an export is a recording of its own", todo="give one or the other")
    if arguments.nsys and arguments.nccl:
        raise UsageError("--nccl cannot be given with --nsys: side files are joined with Kineto traces", todo="leave one out")
    if arguments.nsys and arguments.strict:
        raise UsageError("--strict is not for --nsys: an export says neither its partners nor how many there are")
    if arguments.folder and (arguments.et or arguments.kineto or arguments.nsys):
        raise UsageError(f"{arguments.folder[0]}: give either a folder or files with --et, --kineto or --nsys, not both")
    if arguments.paddle_logs is not None:
        _check_paddle(arguments)
    elif not arguments.folder and not arguments.kineto and not arguments.nsys:
        raise UsageError("no Kineto trace given", todo="graphlink --et ET.json --kineto KINETO.json; see graphlink --help")
    _refuse_urls([*arguments.nsys, *filter(None, [arguments.paddle_logs])])
    if not arguments.out:
        raise UsageError("--out: names no folder")
    if not arguments.name or arguments.name.startswith(".") or any(c in arguments.name for c in "/\\\0"):
        raise UsageError(f"--name {arguments.name!r}: must be the beginning of a file name")
    if arguments.linked and (arguments.kineto or arguments.nsys) and not arguments.et:
        raise UsageError("--linked merges an execution trace with device ops, and there is none", todo="give it with --et")


def _check_paddle(arguments: argparse.Namespace) -> None:
    if not arguments.paddle_logs:
        raise UsageError("--paddle-logs: names no folder")
    traces = (
        *((arguments.folder, "a folder of traces"), (arguments.et, "--et"), (arguments.kineto, "--kineto")),
        *((arguments.nsys, "--nsys"), (arguments.nccl, "--nccl")),
    )
    for given, name in traces:
        if given:
            raise UsageError(f"--paddle-logs and {name}: give one of them")
    for given, name in (
        (arguments.linked, "--linked"),
        (arguments.rank is not None, "--rank"),
        (arguments.strict, "--strict"),
        (arguments.range_rule, "--range-rule"),
    ):
        if given:
            raise UsageError(f"{name} is not for --paddle-logs: they hold jobs, not traces, and the names of files say the ranks")


def _refuse_urls(given: Iterable[str]) -> None:
    for name in filter(is_url, given):
        raise UsageError("is read from folders of this machine only", path=name, todo="copy it here first")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0")
    return int(text)


def _at_least_one(text: str) -> int:
    number = _count(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _micros(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in us")
    return value
