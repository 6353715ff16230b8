"""``graphlink replay``: a graph against its recording, on several machines, what would be if, and which names a change
can take.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.choices import JOINED, MACHINES, MOST_US, SORTS
from graphlink.cli.arguments import between, count, gigabytes_per_s
from graphlink.cli.out import tell
from graphlink.errors import UsageError
from graphlink.records import (
    Lines,
    Table,
    apart,
    before_what,
    counted,
    joined,
    ms,
    path_words,
    percent,
    share_word,
    shortened,
)

if TYPE_CHECKING:
    from graphlink.replay.changes import BucketChange, Changes, LoaderChange
    from graphlink.replay.records import Listed, NodeAt, PathEntry, RankEntry, Report, Run, StuckEntry, WhatIf

MOST_LANES: Final = 8
MOST_NAMES: Final = 20
_ABOUT: Final = {
    "ideal": "dependencies only, each rank alone",
    "astra-sim": "one CPU, one GPU and one communication slot for each rank, lowest id first",
    "ranks": "ASTRA-sim's slots on all ranks; collectives wait for all members, receives for their send",
    "coupled": "dependencies only, on all ranks; collectives wait for all members, receives for their send",
}
_EPILOG: Final = """what-if, all of it combinable:
  --scale SORT[:REGEX]=FACTOR   SORT is kernel (computation), comm (communication), copy (copies and memsets), host, gap (host gaps)
                                or delay (device delays and start delays). Start delays and gaps do not scale with kernels or
                                hosts. Factors of one node multiply. Example: --scale 'kernel:gemm|cutlass=0.5' --scale comm=0.9
  --scale REGEX=FACTOR          all nodes in whose name REGEX is found, of whatever sort: --scale aten::copy_=0.5. What there is to
                                scale: graphlink replay DIR --list
  --scale path:REGEX=FACTOR     all that runs in a range, module or op in whose name REGEX is found, or in the names around it
                                with / between, with all that is inside: --scale 'path:(^|/)forward(/|$)=0.5'
  --scale rankN:...             the same on one rank alone: --scale rank3:host=0.9
  --remove-sync WHICH           takes waits of the host for the device away. WHICH is: all; the id of a node, awaited or waiting
                                (graphlink show FILE.et --node ID lists sync edges); the exact name of the op that waits, such as
                                aten::item; or of the call, such as cudaStreamSynchronize, where the graph names its calls.
  --bandwidth GB/S              communication of known size takes its bytes on the wire (ring algorithms) over this bandwidth
                                (1 GB = 1e9 bytes), no less than the quickest one recorded on that rank, and waits for no other rank
  --launch-cost US              every launch call takes US microseconds more than recorded, with a minus less. What a launch takes
                                is no node of its own, so it cannot be set, only changed; an op is never below 0
  --what-if FILE.toml           changes from a file, which can also choose by step, thread, stream, path and Python line, and which has
                                more kinds of changes: docs/replay.md. The options above add to it.
  --cuda-graph REGEX            each op or range in whose name REGEX is found becomes one launch of a CUDA graph: the host does not run
                                its ops, the device work keeps its order. Repeatable. What a graph cannot hold is refused: waiting
                                for the device, copies from or to pageable memory, loading data, communication on the host.
                                With auto each step is a graph, or the longest parts of it without these
  --buckets MB                  all-reduces (reduce-scatters) of gradients of one group and step are joined or divided to MB each (2**20
                                bytes, as bucket_cap_mb of DDP). What they take is fitted on those of the recording; where all
                                have one size, --bucket-bandwidth GB/S has to say it
  --dataloader-workers [WAS:]N  N workers make the batches of each DataLoader. In the recording the main thread made them, or WAS
                                workers. The main thread waits for a batch that is not ready, as in the middle of a long run.
                                --cores says how many there are, one of them the main thread's (else enough for all),
                                --prefetch-factor how many batches each worker is asked for in advance (2)

Errors printed are self-consistency: a graph against the recording that it was made of, no prediction.
"""  # noqa: E501
_WORKERS: Final = re.compile(r"(?:(\d{1,6}):)?(\d{1,6})")
OPTIONS: Final = ("cuda_graph", "buckets", "bucket_bandwidth", "dataloader_workers", "cores", "prefetch_factor")


def replay_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("what", metavar="DIR|FILE.et", help="output folder of an earlier run, or one graph")
    parser.add_argument(
        "--machine", choices=MACHINES, help="what replays (default: coupled for several ranks, ideal for one)"
    )
    parser.add_argument("--rank", type=count, metavar="N", help="only this rank")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="with all that was found in the replay of the recording itself"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="with --machine ranks or coupled: all ranks begin at once, as in ASTRA-sim, not as recorded",
    )
    parser.add_argument(
        "--list",
        nargs="?",
        const="all",
        choices=("all", *SORTS),
        metavar="SORT",
        help="list the names that --scale takes, longest first; of one SORT: " + ", ".join(SORTS),
    )
    parser.add_argument("--top", type=count, metavar="N", help=f"with --list: how many names (default {MOST_NAMES})")
    parser.add_argument(
        "--runs",
        action="append",
        default=[],
        metavar="DIR",
        help="output folder of another run of the same program, repeatable: the band knows how much runs differ",
    )
    change = parser.add_argument_group("what if")
    change.add_argument(
        "--scale", action="append", default=[], metavar="WHAT=FACTOR", help="other durations, repeatable"
    )
    change.add_argument(
        "--remove-sync", action="append", default=[], metavar="WHICH", help="without a synchronisation, repeatable"
    )
    change.add_argument(
        "--bandwidth",
        type=gigabytes_per_s,
        metavar="GB/S",
        help="communication at this bandwidth",
    )
    change.add_argument("--what-if", metavar="FILE.toml", help="the changes that a file asks for")
    change.add_argument(
        "--launch-cost",
        type=between(-MOST_US, MOST_US, "time in us"),
        metavar="US",
        help="every launch takes this much more",
    )
    change.add_argument(
        "--advice", type=count, metavar="N", help="the change of the N-th advice of graphlink advice DIR (with --rank)"
    )
    structural_options(parser)


def replay(arguments: argparse.Namespace) -> int:
    """Replay what ``arguments`` name and print it, or list what can be scaled; 0, or 1 if a rank cannot finish.

    Raises:
        GraphlinkError: a graph cannot be read, or a change names nothing.
    """
    from graphlink.replay.band import recorded
    from graphlink.replay.changes import Changes, changes_of
    from graphlink.replay.changes_file import load_changes
    from graphlink.replay.folder import graph_files, load_groups
    from graphlink.replay.machines import usual_machine
    from graphlink.replay.report import Known, listed, report
    from graphlink.report.summary import ranks_of
    from graphlink.wings import node_operations, provided

    what = Path(arguments.what)
    files = graph_files(what, arguments.rank)
    machine = arguments.machine
    if arguments.together:  # is for machines of all ranks, so it names one
        machine = machine or usual_machine(len(files))
    if arguments.together and machine not in JOINED:
        raise UsageError("--together is for --machine ranks and --machine coupled")
    _refuse_mixed(arguments)
    folder = what if what.is_dir() else what.parent
    groups = load_groups(folder)
    changes = Changes() if arguments.what_if is None else load_changes(Path(arguments.what_if))
    changes = changes.joined(
        changes_of(arguments.scale, arguments.remove_sync, arguments.bandwidth, arguments.launch_cost)
    )
    changes = changes.joined(structural(arguments))
    if arguments.advice is not None:
        changes = changes.joined(provided("answers", "change")(folder, files, arguments.advice))
    if arguments.runs and not changes.any:
        raise UsageError("--runs is for the band of a change", todo="add a change, as --scale, or leave --runs out")
    if arguments.list is not None:
        sort, top = (
            (None if arguments.list == "all" else arguments.list),
            MOST_NAMES if arguments.top is None else arguments.top,
        )
        operations = node_operations(folder, files)
        names = listed(files, machine, groups, sort, top, together=arguments.together, operations=operations)
        tell(arguments.json, names, lambda: listing(names, str(what)))
        return 0
    operations = node_operations(folder, files) if changes.of_operations else None
    others = {run: ranks_of(Path(run)) for run in arguments.runs}
    known = Known(groups, operations, recorded(ranks_of(folder), others) if changes.any else {})
    found = report(files, machine, known, changes, together=arguments.together)
    tell(arguments.json, found, lambda: text(found, str(what), verbose=arguments.verbose))
    return int(any(r.stuck for r in found.runs) or any(w.stuck for w in found.what_if))


def _refuse_mixed(arguments: argparse.Namespace) -> None:
    """Refuse ``--list`` with changes, which it would not make, and ``--top`` without it. Raises UsageError."""
    if arguments.list is None:
        if arguments.top is not None:
            raise UsageError("--top is for --list")
    elif (
        arguments.scale
        or arguments.remove_sync
        or any(
            getattr(arguments, name) is not None for name in ("what_if", "bandwidth", "launch_cost", "advice", *OPTIONS)
        )
    ):
        raise UsageError("--list lists what is recorded, and changes nothing", todo="leave the changes out, or --list")


def listing(found: Listed, what: str) -> Lines:
    """Return the names that can be scaled, for people."""
    sort = "" if found.sort is None else f" of sort {found.sort}"
    head = (
        f"{what}: {counted(found.of, 'name')}{sort} can be scaled: {_ms(found.ns)}, added up over threads, streams "
        "and ranks"
    )
    path = "" if found.path_ns is None else f" of {_ms(found.path_ns)}, on machine {found.machine}"
    if not (found.names or found.ranges):
        return [f"{what}: no work{sort} was recorded that can be scaled"]
    rows, inside = (
        [
            (
                _ms(name.ns),
                "" if name.path_ns is None else _ms(name.path_ns),
                f"{name.nodes:,}",
                name.sort,
                short + before_what(name.before),
                "--scale " + shlex.quote(f"{name.scale}=0.5"),
            )
            for name, short in zip(names, apart([name.name for name in names]), strict=True)
        ]
        for names in (found.names, found.ranges)
    )
    left = found.of - len(found.names)
    lines: Lines = [head]
    heads = ("time", "on path", "nodes", "sort", "name", "half as long")
    if rows:
        lines.append(Table(rows, heads, ">>><<<"))
    if found.path_ns is None:
        lines.append("  on path: no one path, as no machine has replayed all ranks together to their end")
    elif rows:
        lines.append(f"  on path: what they take of the critical path{path}")
    lines += [f"  ... and {left:,} more: --top N shows so many"] if left else []
    if inside:
        lines += ["", "ranges and modules, with all that is inside them", Table(inside, heads, ">>><<<")]
    graphs = [
        (
            f"{one.launches:,}",
            f"{one.nodes:,}",
            shortened(one.name),
            one.why_not or f"--cuda-graph {shlex.quote(one.cuda_graph)}",
        )
        for one in found.cuda_graphs
    ]
    if graphs:
        head = (
            "ops and ranges that launch most, as CUDA graphs (--cuda-graph auto: each step, or its parts between waits)"
        )
        lines += ["", head, Table(graphs, ("launches", "nodes", "name", "as a graph"), ">><<")]
    return lines


def text(report: Report, what: str, *, verbose: bool = False) -> Lines:
    """Return the report for people: the gain of changes before all else. ``verbose``: with the replay of the recording
    where there are changes, and where that replay and the recording drift apart.
    """
    from msgspec import UNSET

    on = f"machine {report.machine}: {_ABOUT[report.machine]}"
    alone = [] if report.why_alone is UNSET else [f"  each rank alone, since {report.why_alone}"]
    runs = joined(_run(run, verbose=verbose) for run in report.runs)
    if not report.what_if:
        return [f"{what} on {on}", *alone, "", *runs, *_notes(report), *([] if verbose else _more(report))]
    gains = [*_gains(report, what), *alone, *_answers(report)]
    verbose = verbose or any(run.stuck for run in report.runs)  # what there is of it says why nothing is gained
    return [*gains, "", *(["as recorded, on " + on, *runs, *_notes(report)] if verbose else _more(report))]


def _more(report: Report) -> list[str]:
    """Name what is left out without ``-v``."""
    drifts, waits, notes = (
        sum(len(getattr(run, name)) for run in report.runs) for name in ("drifts", "slot_waits", "notes")
    )
    changed = bool(report.what_if)
    parts = [
        *(["the replay of the recording itself"] if changed else []),
        *([f"{counted(drifts, 'place')} where replay and recording drift apart"] if drifts else []),
        *([f"{waits:,} threads and streams that waited for a slot"] if waits else []),
        *([counted(notes, "note")] if changed and notes else []),
    ]
    return [f"  with -v        {', '.join(parts)}"] if parts else []


def _notes(report: Report) -> list[str]:
    """Return each note once; where runs are of a rank each, with the number of those that have it."""
    noted = Counter(note for run in report.runs for note in run.notes)
    return [
        f"  note           {'' if len(report.runs) == 1 else counted(n, 'rank') + ': '}{note}"
        for note, n in noted.items()
    ]


def _run(run: Run, *, verbose: bool) -> Lines:
    lines: Lines = [
        f"rank {r.rank}: {_replayed(r)}, {'' if r.finished else f'{r.ran:,} of '}{r.nodes:,} nodes" for r in run.ranks
    ]
    lines += _stuck(run.stuck)
    if len(run.ranks) > 1:
        lines.append(f"  all ranks      {_all(run)}")
    lines += _path(run.path)
    return [*lines, *_drifts(run), *_slot_waits(run)] if verbose else lines


def _drifts(run: Run) -> Lines:
    if not run.drifts:
        return []
    rows = []
    for d in run.drifts:
        behind = f"{d.edge} <- {_node(d.held_by, run)}" if d.held_by else d.edge
        rows.append((_us(d.change_ns), "to", _us(d.drift_ns), f"{_node(d.node, run)}  <- {behind}"))
    head = "  replay and recording drift apart most (replayed - recorded start; change since what held the node back):"
    return [head, Table(rows, align="><><", indent=4)]


def _slot_waits(run: Run) -> Lines:
    if not run.slot_waits:
        return []
    waits = []
    for w in run.slot_waits[:MOST_LANES]:
        rank = f"rank {w.rank} " if len(run.ranks) > 1 else ""
        most = f"{_us(w.behind_ns)} of it behind {w.behind}"
        waits.append((_us(w.waited_ns), f"{rank}{w.lane}: {w.nodes:,} nodes for the {w.slot} slot, {most}"))
    left = len(run.slot_waits) - MOST_LANES
    more = [f"    ... and {left} more"] if left > 0 else []
    return ["  ready, but the slot was taken:", Table(waits, align="><", indent=4), *more]


def _replayed(r: RankEntry) -> str:
    measured = "no recorded times" if r.measured_ns is None else f"measured {_ms(r.measured_ns)}"
    if not r.finished:
        return f"{measured}, replayed until nothing could run, at {_ms(r.replayed_ns)}"
    error = "" if r.error_pct is None else f", {r.error_pct:+.3f} % (self-consistency)"
    return f"{measured}, replayed {_ms(r.replayed_ns)}{error}"


def _all(run: Run) -> str:
    measured = "" if run.measured_ns is None else f"measured {_ms(run.measured_ns)}, "
    error = "" if run.error_pct is None else f", {run.error_pct:+.3f} % (self-consistency)"
    apart = "; no time was measured over all ranks: see each" if run.measured_ns is None else ""
    ran, nodes = sum(r.ran for r in run.ranks), sum(r.nodes for r in run.ranks)
    return f"{measured}replayed {_ms(run.total_ns)}{error}, {ran:,} of {nodes:,} nodes run{apart}"


def _path(path: PathEntry) -> Lines:
    """Return the path in the words of ``graphlink critical-path``, the largest part first."""
    whole, spent = path.length_ns, Counter[str]()
    for sort, ns in path.work_ns.items():
        spent[share_word(sort)] += ns
    parts = path_words(spent, whole, path.gap_share, path.delay_share)
    slots = f", {path.slot_waits:,} of them waited for a slot" if path.slot_waits else ""
    top = [
        (percent(f.ns, whole), _ms(f.ns), f"{f.nodes:,}", share_word(f.work), shortened(f.name) + before_what(f.before))
        for f in path.top
    ]
    return [
        f"  critical path  {_ms(path.length_ns)} in {path.nodes:,} nodes{slots}: {parts or 'nothing'}",
        *([Table(top, align=">>><<", indent=4)] if top else []),
    ]


def _gains(report: Report, what: str) -> Lines:
    """Return what the changes gain, in all and of each rank, and what they did."""
    head, rows = f"{what} on machine {report.machine}, what if", []
    for run, w in zip(report.runs, report.what_if, strict=True):
        if len(run.ranks) > 1:
            rows.append(_row("all", (w.before_ns, w.after_ns), w.path_ns, finished=w.gain_pct is not None))
        for a, b in zip(run.ranks, w.ranks, strict=True):
            rows.append(
                _row(f"rank {a.rank}", (a.replayed_ns, b.replayed_ns), w.path_ns, finished=a.finished and b.finished)
            )
        if w.steps_ns is not None:
            rows.append(_row("a step", w.steps_ns, w.steps_ns[0], finished=True))
        if w.bare_ns is not None:
            rows.append(_row("a bare step", w.bare_ns, w.bare_ns[0], finished=True))
    if len(report.what_if) == 1:
        head += f": {_answer(report.what_if[0])}"
    return [
        head,
        Table(rows, ("", "before", "after", "gain", "of path" if len(report.runs[0].ranks) > 1 else ""), "<>>>>"),
        *(f"  {d}" for d in _done(report)),
        *_sure(report),
    ]


def _sure(report: Report) -> Lines:
    """Return between which times a second run with the changes is; of several runs, of each."""
    from graphlink.replay.band import band_head, band_words

    rows = []
    for w in report.what_if:
        if w.band is not None:
            head = f"{band_head(w.band)}{'' if len(report.what_if) == 1 else f' of rank {w.ranks[0].rank}'}"
            lines = band_words(w.band, w.before_ns, w.path_ns)
            rows += [
                (head if not k else "", line) for k, line in enumerate(lines if len(report.what_if) == 1 else lines[:1])
            ]
    return [Table(rows)] if rows else []


def _answer(w: WhatIf) -> str:
    """Return the gain in words."""
    if w.gain_pct is None:
        return "it does not finish"
    gain = w.before_ns - w.after_ns
    return f"{'costs' if gain < 0 else 'saves'} {_ms(abs(gain))} ({percent(abs(gain), w.path_ns)})"


def _answers(report: Report) -> Lines:
    """Return the path after the changes, and what they do not answer."""
    lines: Lines = []
    for w in report.what_if:
        lines += [
            "",
            f"  then, on rank {w.ranks[0].rank}:" if len(w.ranks) == 1 else "  then:",
            *_path(w.path),
            *_stuck(w.stuck),
        ]
    rests = dict.fromkeys(
        f"{one.kind.replace('_', ' ')}: {one.rests_on} {one.cannot_know}" for w in report.what_if for one in w.done
    )
    lines += ["", "  this rests on:", *(f"  - {line}" for line in rests)] if rests else []
    return [*lines, *(["", "  not answered:"] if report.cannot else []), *(f"  - {c}" for c in report.cannot)]


def _done(report: Report) -> list[str]:
    """Describe what was changed, where several ranks were replayed one by one with the ranks of which that is true."""
    from graphlink.replay.whatif import told_ranks

    if len(report.what_if) == 1:
        return [one.what for one in report.what_if[0].done]
    ranks: dict[str, list[int]] = {}
    for w in report.what_if:
        for line in (
            *(one.what for one in w.done),
            *(f"as recorded, nothing there is named by {n}" for n in w.not_here),
        ):
            ranks.setdefault(line, []).extend(r.rank for r in w.ranks)
    return [f"{told_ranks(of)}: {line}" for line, of in ranks.items()]


def _row(name: str, times_ns: Sequence[float], path_ns: float, *, finished: bool) -> tuple[str, ...]:
    before_ns, after_ns = times_ns
    gain = before_ns - after_ns
    gained = (_ms(gain), percent(gain, path_ns)) if finished else ("does not finish", "")
    return name, _ms(before_ns), _ms(after_ns), *gained


def _stuck(entries: Sequence[StuckEntry]) -> list[str]:
    return [
        f"  rank {s.rank} does not finish: {s.left:,} nodes left; node {s.node.id} ({shortened(s.node.name)}) waits "
        f"for {s.waits_for}"
        for s in entries
    ]


def _node(node: NodeAt, run: Run) -> str:
    rank = f"rank {node.rank} " if len(run.ranks) > 1 else ""
    return f"{rank}{node.id} {shortened(node.name)}"


def _ms(ns: float) -> str:
    return f"{ms(ns)} ms"


def _us(ns: int) -> str:
    return f"{ns / 1e3:+,.1f} us"


def structural_options(parser: argparse.ArgumentParser) -> None:
    change = parser.add_argument_group("what if, of another structure")
    change.add_argument(
        "--cuda-graph", action="append", metavar="REGEX", help="ops or ranges of this name as CUDA graphs, repeatable"
    )
    change.add_argument(
        "--buckets",
        type=between(1e-3, 1e6, "size in MB"),
        metavar="MB",
        help="gradients reduced in buckets of this size",
    )
    change.add_argument(
        "--bucket-bandwidth", type=gigabytes_per_s, metavar="GB/S", help="with --buckets: at this bandwidth"
    )
    change.add_argument(
        "--dataloader-workers", metavar="[WAS:]N", help="N workers make the batches of each DataLoader, where WAS did"
    )
    change.add_argument("--cores", type=count, metavar="N", help="with --dataloader-workers: so many cores")
    change.add_argument(
        "--prefetch-factor",
        type=count,
        metavar="N",
        help="with --dataloader-workers: batches in advance, each (default 2)",
    )


def structural(arguments: argparse.Namespace) -> Changes:
    """Return the changes that options ask for.

    Raises:
        UsageError: a number is out of range, or an option lacks the one that it is for.
    """
    from graphlink.replay.changes import Changes, graphs_of

    graphs = graphs_of(arguments.cuda_graph or ())
    return graphs.joined(Changes(buckets=_buckets(arguments), dataloader=_loader(arguments)))


def _buckets(arguments: argparse.Namespace) -> tuple[BucketChange, ...]:
    from graphlink.replay.changes import BucketChange

    if arguments.buckets is None:
        if arguments.bucket_bandwidth is not None:
            raise UsageError("--bucket-bandwidth is for --buckets")
        return ()
    return (BucketChange(size_mb=arguments.buckets, bandwidth_gb_per_s=arguments.bucket_bandwidth),)


def _loader(arguments: argparse.Namespace) -> tuple[LoaderChange, ...]:
    from graphlink.replay.changes import MOST_WORKERS, PREFETCH, LoaderChange

    given = arguments.dataloader_workers
    if given is None:
        alone = next((name for name in ("cores", "prefetch_factor") if getattr(arguments, name) is not None), None)
        if alone is not None:
            raise UsageError(f"--{alone.replace('_', '-')} is for --dataloader-workers")
        return ()
    found = _WORKERS.fullmatch(given)
    prefetch = PREFETCH if arguments.prefetch_factor is None else arguments.prefetch_factor
    numbers = [] if found is None else [int(text) for text in found.groups() if text is not None]
    if found is None or not all(
        1 <= n <= MOST_WORKERS for n in (*numbers, prefetch, 1 if arguments.cores is None else arguments.cores)
    ):
        raise UsageError(
            f"--dataloader-workers {given}: workers, cores and batches in advance are 1 to {MOST_WORKERS:,}",
            todo="write N, or WAS:N if the recording has WAS workers",
        )
    was = None if found[1] is None else int(found[1])
    return (LoaderChange(workers=int(found[2]), recorded=was, cores=arguments.cores, prefetch=prefetch),)
