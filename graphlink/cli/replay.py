"""``graphlink replay``: a graph against its recording, on several machines, what would be if, and which names a change
can take.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.choices import JOINED, MACHINES, MOST_US, SORTS, Option, VerbOptions
from graphlink.cli.arguments import between, count, flag, gigabytes_per_s
from graphlink.cli.out import tell
from graphlink.cli.replay_text import listing, text
from graphlink.errors import UsageError

if TYPE_CHECKING:
    from graphlink.replay.changes import Changes, LoaderChange

MOST_NAMES: Final = 20
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
_FOR: Final = {  # options that say more of another one, and that one
    "top": "list",
    "bucket_bandwidth": "buckets",
    "cores": "dataloader_workers",
    "prefetch_factor": "dataloader_workers",
}


REPLAY_OPTIONS: Final = VerbOptions(
    (
        Option("what", metavar="DIR|FILE.et", help="output folder of an earlier run, or one graph"),
        Option("--machine", choices=MACHINES, help="what replays (default: coupled for several ranks, ideal for one)"),
        Option("--rank", type=count, metavar="N", help="only this rank"),
        flag("-v", "--verbose", help="with all that was found in the replay of the recording itself"),
        flag(
            "--together",
            help="with --machine ranks or coupled: all ranks begin at once, as in ASTRA-sim, not as recorded",
        ),
        Option(
            "--list",
            nargs="?",
            const="all",
            choices=("all", *SORTS),
            metavar="SORT",
            help="list the names that --scale takes, longest first; of one SORT: " + ", ".join(SORTS),
        ),
        Option("--top", type=count, metavar="N", help=f"with --list: how many names (default {MOST_NAMES})"),
        Option(
            "--runs",
            action="append",
            default=[],
            metavar="DIR",
            help="output folder of another run of the same program, repeatable: the band knows how much runs differ",
        ),
    ),
    groups={
        "what if": (
            Option("--scale", action="append", default=[], metavar="WHAT=FACTOR", help="other durations, repeatable"),
            Option(
                "--remove-sync",
                action="append",
                default=[],
                metavar="WHICH",
                help="without a synchronisation, repeatable",
            ),
            Option(
                "--bandwidth",
                type=gigabytes_per_s,
                metavar="GB/S",
                help="communication at this bandwidth",
            ),
            Option("--what-if", metavar="FILE.toml", help="the changes that a file asks for"),
            Option(
                "--launch-cost",
                type=between(-MOST_US, MOST_US, "time in us"),
                metavar="US",
                help="every launch takes this much more",
            ),
            Option(
                "--advice",
                type=count,
                metavar="N",
                help="the change of the N-th advice of graphlink advice DIR (with --rank)",
            ),
        ),
        "what if, of another structure": (
            Option(
                "--cuda-graph",
                action="append",
                metavar="REGEX",
                help="ops or ranges of this name as CUDA graphs, repeatable",
            ),
            Option(
                "--buckets",
                type=between(1e-3, 1e6, "size in MB"),
                metavar="MB",
                help="gradients reduced in buckets of this size",
            ),
            Option(
                "--bucket-bandwidth", type=gigabytes_per_s, metavar="GB/S", help="with --buckets: at this bandwidth"
            ),
            Option(
                "--dataloader-workers",
                metavar="[WAS:]N",
                help="N workers make the batches of each DataLoader, where WAS did",
            ),
            Option("--cores", type=count, metavar="N", help="with --dataloader-workers: so many cores"),
            Option(
                "--prefetch-factor",
                type=count,
                metavar="N",
                help="with --dataloader-workers: batches in advance, each (default 2)",
            ),
        ),
    },
    epilog=_EPILOG,
)


def replay(arguments: argparse.Namespace) -> int:
    """Replay what ``arguments`` name and print it, or list what can be scaled; 0, or 1 if a rank cannot finish.

    Raises:
        GraphlinkError: a graph cannot be read, or a change names nothing.
    """
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
        sort = None if arguments.list == "all" else arguments.list
        top = MOST_NAMES if arguments.top is None else arguments.top
        groups, operations = load_groups(folder), node_operations(folder, files)
        names = listed(files, machine, groups, sort, top, together=arguments.together, operations=operations)
        tell(arguments.json, names, lambda: listing(names, str(what)))
        return 0
    others = {run: ranks_of(Path(run)) for run in arguments.runs}
    known = Known.of(folder, files, changes, ranks_of(folder) if changes.any else (), others)
    found = report(files, machine, known, changes, together=arguments.together)
    tell(arguments.json, found, lambda: text(found, str(what), verbose=arguments.verbose))
    return int(any(r.stuck for r in found.runs) or any(w.stuck for w in found.what_if))


def _refuse_mixed(arguments: argparse.Namespace) -> None:
    """Refuse options without those that they are for, and ``--list`` with changes, which it would not make. Raises
    UsageError."""
    for name, other in _FOR.items():
        if getattr(arguments, name) is not None and getattr(arguments, other) is None:
            raise UsageError(f"--{name.replace('_', '-')} is for --{other.replace('_', '-')}")
    given = (getattr(arguments, name) for name in ("what_if", "bandwidth", "launch_cost", "advice", *OPTIONS))
    changed = arguments.scale or arguments.remove_sync or any(value is not None for value in given)
    if arguments.list is not None and changed:
        raise UsageError("--list lists what is recorded, and changes nothing", todo="leave the changes out, or --list")


def structural(arguments: argparse.Namespace) -> Changes:
    """Return the changes that options ask for.

    Raises:
        UsageError: a number is out of range.
    """
    from graphlink.replay.changes import BucketChange, Changes, graphs_of

    size_mb, rate = arguments.buckets, arguments.bucket_bandwidth
    buckets = () if size_mb is None else (BucketChange(size_mb=size_mb, bandwidth_gb_per_s=rate),)
    return graphs_of(arguments.cuda_graph or ()).joined(Changes(buckets=buckets, dataloader=_loader(arguments)))


def _loader(arguments: argparse.Namespace) -> tuple[LoaderChange, ...]:
    import msgspec

    from graphlink.replay.changes import MOST_WORKERS, LoaderChange

    given = arguments.dataloader_workers
    if given is None:
        return ()
    found = _WORKERS.fullmatch(given)
    recorded, workers = found.groups() if found else (None, None)
    numbers = {
        "workers": workers, "recorded": recorded, "cores": arguments.cores, "prefetch": arguments.prefetch_factor,
    }  # fmt: skip
    try:
        named = {name: number for name, number in numbers.items() if number is not None}
        return (msgspec.convert(named, LoaderChange, strict=False),)
    except msgspec.ValidationError:
        raise UsageError(
            f"--dataloader-workers {given}: workers, cores and batches in advance are 1 to {MOST_WORKERS:,}",
            todo="write N, or WAS:N if the recording has WAS workers",
        ) from None
