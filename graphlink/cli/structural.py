"""Options of ``graphlink replay`` that give a run another structure."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final

from graphlink.cli.numbers import between, count, gigabytes_per_s
from graphlink.errors import UsageError

if TYPE_CHECKING:
    from graphlink.replay.changes import BucketChange, Changes, LoaderChange

_WORKERS: Final = re.compile(r"(?:(\d{1,6}):)?(\d{1,6})")
OPTIONS: Final = ("cuda_graph", "buckets", "bucket_bandwidth", "dataloader_workers", "cores", "prefetch_factor")
ABOUT: Final = """\
  --cuda-graph REGEX            each op or range in whose name REGEX is found becomes one launch of a CUDA graph: the host does not run
                                its ops, the device work keeps its order. Repeatable. What a graph cannot hold is refused: waiting
                                for the device, copies from or to pageable memory, loading data, communication on the host
  --buckets MB                  all-reduces (reduce-scatters) of gradients of one group and step are joined or divided to MB each (2**20
                                bytes, as bucket_cap_mb of DDP). What they take is fitted on those of the recording; where all
                                have one size, --bucket-bandwidth GB/S has to say it
  --dataloader-workers [WAS:]N  N workers make the batches of each DataLoader. In the recording the main thread made them, or WAS
                                workers. The main thread waits for a batch that is not ready, as in the middle of a long run.
                                --cores says how many there are, one of them the main thread's (else enough for all),
                                --prefetch-factor how many batches each worker is asked for in advance (2)
"""  # noqa: E501


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
    from graphlink.patterns import UserPattern
    from graphlink.replay.changes import Changes, GraphChange

    graphs = tuple(GraphChange(name=UserPattern(text, "--cuda-graph")) for text in arguments.cuda_graph or ())
    return Changes(cuda_graph=graphs, buckets=_buckets(arguments), dataloader=_loader(arguments))


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
