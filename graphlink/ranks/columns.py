"""The ops of a rank from its graph, those of all ranks in one column each, matches as slices of these, and statistics
by group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphlink.graph.target import comm_nodes
from graphlink.graph_model import Graph
from graphlink.linking.nest import asking
from graphlink.model import I32, I64, NOWHERE, CommKind, CommOps, Communication, Linked
from graphlink.ranks.records import Matches, RankComms
from graphlink.tables import counted_from, numbered_texts, take

_Scalar = TypeVar("_Scalar", bound=np.generic)
_BLOCK: Final = 1 << 20  # members of matches that are looked at together, to bound memory


@dataclass(frozen=True, slots=True)
class Members:
    """Some matches in a row. ``first``: where each begins in the other columns, which have one entry per member;
    ``op`` as in ``column``."""

    matches: slice
    entries: slice  # of all members of matches
    first: I64
    count: I64
    rank: I32  # position of the rank
    op: I64

    def spread(self, value: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Repeat a value of each match for each of its members."""
        return np.repeat(value, self.count)


def rank_comms(graph: Graph, linked: Linked, comm: Communication, rank: int, world_size: int) -> RankComms:
    """Return every communication node of ``graph`` whose kind and group are known, with its recorded times. A send of
    gloo's begins with the op that asked for it: its row begins later where the thread is held, when the message may
    have come. O(n log n) in nodes.
    """
    every = comm_nodes(graph, comm.ops)
    kept = np.flatnonzero((every != NOWHERE) & (comm.ops.kind != CommKind.UNKNOWN) & (comm.ops.group != NOWHERE))
    kept = kept[np.lexsort((every[kept], graph.end_ns[every[kept]], graph.start_ns[every[kept]]))]
    ops, node = take(comm.ops, kept), every[kept]
    group, numbers = numbered_texts(ops.group.tolist())
    start_ns, send = graph.epoch_ns + graph.start_ns[node], np.flatnonzero(ops.on_host & (ops.kind == CommKind.SEND))
    op = asking(linked, ops.row[send])
    start_ns[send[op != NOWHERE]] = linked.trace.host.start_ns[op[op != NOWHERE]]
    columns = {field.name: getattr(ops, field.name) for field in fields(CommOps)} | {
        "group": group,
        "groups": tuple(ops.groups[g] for g in numbers),
        "start_ns": start_ns,
        "end_ns": graph.epoch_ns + graph.end_ns[node],
    }
    overhead = linked.trace.overhead
    return RankComms(
        **columns,
        rank=rank,
        world_size=world_size,
        host=linked.trace.host_name,
        resolution_ns=linked.trace.resolution_ns,
        began_ns=graph.epoch_ns,
        ended_ns=graph.epoch_ns + int(graph.end_ns.max(initial=0)),
        node=node,
        overhead_start_ns=overhead.start_ns,
        overhead_end_ns=overhead.end_ns,
    )


def offsets(ranks: Sequence[RankComms]) -> I64:
    """Return where the ops of each rank begin in ``column``."""
    return np.cumsum([0, *(len(r.node) for r in ranks)])[:-1]


def column(ranks: Sequence[RankComms], name: str) -> NDArray[Any]:
    """Return a column of all ranks, one after the other."""
    return np.concatenate([getattr(r, name) for r in ranks])


def members(ranks: Sequence[RankComms], matches: Matches, chosen: I64) -> Members:
    """Return the matches ``chosen`` (ascending), whose slices mean nothing then."""
    count = np.diff(matches.first)[chosen]
    entry = counted_from(matches.first[chosen], count)
    rank = matches.rank[entry]
    op = offsets(ranks)[rank] + matches.op[entry]
    return Members(slice(0), slice(0), np.cumsum(count) - count, count, rank, op)


def blocks(ranks: Sequence[RankComms], matches: Matches) -> Iterator[Members]:
    """Yield all matches in order, about a million members at a time; without any, once none."""
    where, total = offsets(ranks), len(matches.kind)
    low = 0
    while True:
        high = int(np.searchsorted(matches.first, matches.first[low] + _BLOCK, side="right")) - 1
        high = min(max(high, low + 1), total)
        first = matches.first[low : high + 1] - matches.first[low]
        entries = slice(matches.first[low], matches.first[high])
        rank = matches.rank[entries]
        yield Members(slice(low, high), entries, first[:-1], np.diff(first), rank, where[rank] + matches.op[entries])
        if high == total:
            return
        low = high


def added(group: I32 | I64, value: NDArray[Any], groups: int) -> NDArray[np.float64]:
    """Return the sum of the values of each group; exact for ints below 2^53."""
    return np.bincount(group, weights=value, minlength=groups).astype(np.float64, copy=False)


def quantiles(group: I32 | I64, value: I64, groups: int) -> I64:
    """Return median, 95th percentile and maximum of each group, a row each; n log n.

    0 for groups without values. The median is the mean of the middle two, rounded down; the percentile the nearest
    rank.
    """
    count = np.bincount(group, minlength=groups)
    some = count > 0
    n, at = count[some], (np.cumsum(count) - count)[some]
    places = np.stack([at + (n - 1) // 2, at + n // 2, at + (19 * n + 19) // 20 - 1, at + n - 1])
    low, high, p95, most = value[np.lexsort((value, group))][places]
    columns = np.zeros((3, groups), np.int64)
    columns[:, some] = low + (high - low) // 2, p95, most
    return columns
