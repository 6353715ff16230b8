"""Communication on networks: what its bytes and steps take by ring algorithms, what its transfers took as recorded, and
what they would take on another network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import Groups, NodeType
from graphlink.linking.commtypes import CollectiveType, wire_share
from graphlink.model import F64, I64, NOWHERE, Bool
from graphlink.replay.assumptions import made
from graphlink.replay.changes import BucketChange, NetworkChange
from graphlink.replay.draft import Draft
from graphlink.replay.matching import COLLECTIVE, RECEIVE, Matched, matched
from graphlink.replay.records import Made
from graphlink.replay.slots import matched_costs
from graphlink.replay.workload import MOST_NS, Slot, Workload
from graphlink.tables import concat, how_many, least, spread, take

MESSAGES: Final = -2  # in the place of a group: transfers between two ranks
SIMULATED: Final = (  # collectives that have a network model
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
)


def change_network(draft: Draft, change: NetworkChange, groups: Groups) -> Made:
    """Give communication in ``draft`` the time of its bytes on the wire, and of the steps of a ring where a latency is
    given; else it takes no less than the quickest of its rank was recorded to take.

    Raises:
        UsageError: there is no communication of known size, or no such group.
    """
    work, cost = draft.work, draft.cost
    kind = work.column("type")
    comm = np.isin(kind, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)) & (work.slot != Slot.CPU)
    nodes = np.flatnonzero(comm & in_group(work, change))
    member, own = work.member[nodes], (cost - draft.fixed)[nodes]
    size = work.column("comm_size")[nodes]
    members = group_sizes(work, nodes, groups)
    comm_type = np.where(kind == NodeType.COMM_COLL, work.column("comm_type"), NOWHERE)[nodes]
    wire_ns = size * wire_share(comm_type, members) / change.bandwidth_gb_per_s
    some = own > 0  # gloo's sends cost nothing: their receives do
    changes = some & (size > 0)
    sized, unsized = how_many(changes), how_many(size <= 0)
    if not sized:
        raise UsageError(f"{change.title}: the graphs hold no communication of known size")
    if change.latency_us is None:
        quickest = least(len(work.files), member[some], own[some], MOST_NS)
        new_ns = np.maximum(np.rint(wire_ns), quickest[member])
    else:
        new_ns = np.rint(wire_ns + ring_steps(comm_type, members) * change.latency_us * 1e3)
    before = int(cost.sum())
    cost[nodes[changes]] = new_ns[changes].astype(np.int64) + draft.fixed[nodes[changes]]
    rest = f"; {unsized} of unknown size stay as recorded" if unsized else ""
    how = "wire bytes / bandwidth" if change.latency_us is None else "latency x steps + wire bytes / bandwidth"
    what = f"{sized:,} communication nodes at {how}, waits for other ranks left out{rest}"
    return made(change, what, sized, int(cost.sum()) - before)


def group_sizes(work: Workload, nodes: I64, groups: Groups) -> F64:
    """Return how many ranks the group of each of ``nodes`` has."""
    worlds = [file.metadata.world_size or max(work.ranks) + 1 for file in work.files]
    group = work.column("group")[nodes].tolist()
    return np.array(
        [len(groups.get(g) or ()) or worlds[i] for g, i in zip(group, work.member[nodes].tolist(), strict=True)],
        np.float64,
    )


def in_group(work: Workload, change: NetworkChange | BucketChange) -> Bool:
    """Return the nodes of the group that is changed: its id, or its recorded name.

    Raises:
        UsageError: there is none.
    """
    if change.group is None:
        return np.ones(len(work), np.bool_)
    named = {g: text for file in work.files for g, text in file.file.group_names.items()}
    ids = [change.group] if isinstance(change.group, int) else [g for g, text in named.items() if text == change.group]
    of = work.column("group")
    there = np.unique(of[of > 0]).tolist()
    if not np.isin(of, ids).any() or not ids:
        shown = ", ".join(f"{g} ({named[g]})" if g in named else str(g) for g in there[:12])
        raise UsageError(
            f"{change.title}: no communication is in group {change.group}", todo=f"there are {shown or 'none'}"
        )
    return np.isin(of, ids)


def ring_steps(comm_type: I64, members: F64) -> F64:
    """Return how many steps a ring algorithm takes, one after the other: twice round for ALL_REDUCE, else once; one for
    a message (``NOWHERE``)."""
    round_ = np.maximum(members - 1, 1)
    return np.where(comm_type == NOWHERE, 1.0, np.where(comm_type == CollectiveType.ALL_REDUCE, 2 * round_, round_))


@dataclass(frozen=True, slots=True)
class Transfers:
    """Collectives and messages whose ranks are all there, one entry each.

    ``group``: id in ``comm_group.json``, ``NO_GROUP`` all ranks, ``MESSAGES`` between two. ``type``:
    ``CollectiveType``, ``NOWHERE`` a message.
    """

    group: I64
    type: I64
    members: I64
    size_bytes: F64  # as comm_size
    took_ns: F64

    @property
    def wire_bytes(self) -> F64:
        return self.size_bytes * wire_share(self.type, self.members.astype(np.float64))

    @property
    def steps(self) -> I64:
        return (self.members - 1) * np.where(self.type == CollectiveType.ALL_REDUCE, 2, 1)


def transfers(work: Workload, groups: Groups) -> Transfers:
    """Estimate the transfers of the graphs in ``work``. n log n. Left out: what ranks disagree on, types without a
    network model, and what took no time."""
    work = replace(work, micros_ns=work.column("duration_ns") + work.column("overlap_ns"))
    match = matched(work, groups)
    node_ns, collective_ns = matched_costs(work, match)
    found = concat(_collectives(work, match, collective_ns), _messages(work, match, node_ns))
    known = np.isin(found.type, SIMULATED) | (found.type == NOWHERE)
    return take(found, known & (found.size_bytes > 0) & (found.took_ns > 1) & (found.members > 1))


def _collectives(work: Workload, match: Matched, took_ns: I64) -> Transfers:
    """Return the collectives that all members have with one type and size."""
    node = np.flatnonzero(match.code == COLLECTIVE)
    collective = match.partner[node].astype(np.int64)
    count = len(match.group)
    first = spread(count, collective[::-1], node[::-1])
    kind, size = work.column("comm_type"), work.column("comm_size")
    differs = (kind[node] != kind[first[collective]]) | (size[node] != size[first[collective]])
    whole = np.bincount(collective, minlength=count) == match.expected
    whole[collective[differs]] = False
    sizes = size[first].astype(np.float64)
    return take(Transfers(match.group, kind[first], match.expected, sizes, took_ns.astype(np.float64)), whole)


def _messages(work: Workload, match: Matched, node_ns: I64) -> Transfers:
    receive = np.flatnonzero((match.code == RECEIVE) & (match.partner != NOWHERE))
    group, kind, two = (np.full(len(receive), value, np.int64) for value in (MESSAGES, NOWHERE, 2))
    took_ns = node_ns[receive] + node_ns[match.partner[receive]]  # of the two, what waited costs nothing
    size_bytes = work.column("comm_size")[receive]
    return Transfers(group, kind, two, size_bytes.astype(np.float64), took_ns.astype(np.float64))
