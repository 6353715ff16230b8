"""What NCCL was truly called with in a simulated cluster: the calls of each rank by communicator, before any profiler
saw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_host import WAIT_NS
from tests.simulator.cluster_program import ROW_ELEMS, ClusterGroup, Op, elements, rank_ops
from tests.simulator.cluster_records import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    COLLECTIVE,
    NOWHERE,
    REDUCE_SCATTER,
    SEND,
)
from tests.simulator.dialects import EPOCH_NS

FUNCTIONS = {ALL_REDUCE: "AllReduce", ALL_GATHER: "AllGather", BROADCAST: "Broadcast", REDUCE_SCATTER: "ReduceScatter"}
TYPES = {2: "ncclBfloat16", 4: "ncclFloat32", 8: "ncclInt64"}
LAUNCH_NS = 6_000  # from the begin of a communication call on the host to its launch


class NcclCall(NamedTuple):
    """One call of one rank. ``communicator``: its 64-bit hash, the same on all of its ``size`` members.

    Times are true ns since the epoch; the host ones, ``api_ns`` and ``launch_ns``, of the NCCL call and of the launch
    in it. ``op``: position in the rank's ops; ``grouped``: one of several calls that share that op's kernel.
    """

    rank: int
    group: int
    communicator: int
    size: int
    op: int
    function: str  # as NCCL spells it; Send, Recv
    member: int  # rank in the communicator
    peer: int  # in the communicator; NOWHERE for collectives
    elems: int
    type: str
    bytes: int
    seq: int  # by communicator and function, from 0; NOWHERE for messages
    api_ns: int
    launch_ns: int
    start_ns: int
    end_ns: int
    grouped: bool


def nccl_calls(run: ClusterRun, rank: int, *, jitter_ns: int = 1_500, pairs: bool = False) -> list[NcclCall]:
    """All calls of a rank as issued; ``jitter_ns``: of the host between NCCL's call and its launch. ``pairs``: messages
    go through a communicator of their two ranks, as PyTorch makes them unless they are batched. Linear."""
    ops = rank_ops(run.training, run.groups, rank)
    times = run.times[rank]
    rng = np.random.default_rng([run.training.seed, 5, rank])
    early_ns = (1_000 + rng.exponential(jitter_ns, len(ops))).astype(np.int64).tolist()
    turns: dict[tuple[int, str], int] = {}
    found: list[NcclCall] = []
    for at, op in enumerate(ops):
        if op.group == NOWHERE:
            continue
        launch_ns = EPOCH_NS + int(times.issue_ns[at]) + len(op.waits) * WAIT_NS + LAUNCH_NS
        ns = (launch_ns - early_ns[at], launch_ns, EPOCH_NS + int(times.start_ns[at]), EPOCH_NS + int(times.end_ns[at]))
        members = run.groups[op.group].members
        parts = _parts(op, run.groups[op.group], rank)
        for function, peer, count in parts:
            seq = NOWHERE
            if op.kind == COLLECTIVE and not op.splits[0]:
                seq = turns.get((op.group, function), 0)
                turns[op.group, function] = seq + 1
            member, size, pair = members.index(rank), len(members), (0, 0)
            if pairs and op.kind != COLLECTIVE:
                pair = (min(member, peer), max(member, peer))
                member, peer, size = int(member > peer), int(member < peer), 2
            hash_ = communicator_hash(run, op.group, pair)
            sent = count * op.elem_bytes
            found.append(
                NcclCall(
                    rank,
                    op.group,
                    hash_,
                    size,
                    at,
                    function,
                    member,
                    peer,
                    count,
                    TYPES[op.elem_bytes],
                    sent,
                    seq,
                    *ns,
                    len(parts) > 1,
                )
            )
    return found


def first_of_ops(calls: Sequence[NcclCall], rank: int) -> list[NcclCall]:
    """Of each op of a rank the first of the calls that it is made of, in their order."""
    first: dict[int, NcclCall] = {}
    for call in calls:
        if call.rank == rank:
            first.setdefault(call.op, call)
    return list(first.values())


def _parts(op: Op, group: ClusterGroup, rank: int) -> list[tuple[str, int, int]]:
    """(function, peer in the communicator, elements) of each NCCL call that an op is."""
    if op.kind != COLLECTIVE:
        return [("Send" if op.kind == SEND else "Recv", group.members.index(op.peer), op.bytes // op.elem_bytes)]
    if op.splits[0]:
        sent, got = op.splits
        return [
            part
            for peer in range(len(group.members))
            for part in (("Send", peer, sent[peer] * ROW_ELEMS), ("Recv", peer, got[peer] * ROW_ELEMS))
        ]
    sent_elems, got_elems = elements(op, len(group.members))
    return [(FUNCTIONS[op.type], NOWHERE, got_elems if op.type == REDUCE_SCATTER else sent_elems)]


def communicator_hash(run: ClusterRun, group: int, pair: tuple[int, int] = (0, 0)) -> int:
    """Of a group, or of two places in it."""
    return _hash(run.training.seed, 6, group, *pair)


@cache
def _hash(*seed: int) -> int:
    low, high = np.random.default_rng(seed).integers(1 << 32, size=2).tolist()
    return int(high) << 32 | int(low) | 1 << 63
