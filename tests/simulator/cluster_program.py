"""What each rank of a simulated cluster issues, in order, and the groups that it does so in. As Megatron lays
them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tests.simulator.cluster_records import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVE,
    NOWHERE,
    RECV,
    REDUCE_SCATTER,
    SEND,
    ClusterTraining,
    GroupKey,
)

COMPUTE_STREAM = 7
STREAMS = {"tensor": 20, "data": 24, "twin": 28, "expert": 32, "world": 36}
# A send and a receive either way: ranks that exchange both ways then never wait for each other in a circle.
MESSAGE_STREAMS = {(SEND, 1): 40, (RECV, 1): 44, (SEND, -1): 48, (RECV, -1): 52}
DESCRIPTIONS = {
    "world": "default_pg",
    "tensor": "TENSOR_MODEL_PARALLEL_GROUP",
    "data": "DATA_PARALLEL_GROUP",
    "twin": "DATA_PARALLEL_GROUP_WITH_CP",
    "pipeline": "PIPELINE_MODEL_PARALLEL_GROUP",
    "expert": "EXPERT_MODEL_PARALLEL_GROUP",
}
ROW_ELEMS = 64  # a token that all_to_all moves


class ClusterGroup(NamedTuple):
    """A communicator of the run. ``name``: the number that all ranks know it by."""

    sort: str  # key of ``DESCRIPTIONS``
    members: tuple[int, ...]
    name: str


class Op(NamedTuple):
    """One op of a rank in the order of issue: a compute block (``group`` -1, ``weight`` in forward layers) or a
    communication.

    ``waits``: comms that the compute stream is told to wait for just before. ``after``: ops that must have ended, by
    position in the rank's ops. ``key`` is the same on all members of a meeting. ``splits``: elements to each member and
    from each.
    """

    step: int
    stream: int
    waits: tuple[int, ...]
    after: tuple[int, ...]
    weight: int = 0
    group: int = NOWHERE  # into the run's groups
    key: tuple[int, ...] = ()
    kind: int = COLLECTIVE
    type: int = NOWHERE
    bytes: int = 0
    elem_bytes: int = 2
    peer: int = NOWHERE
    seq: int = 0
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


class TrueMeeting(NamedTuple):
    """``members``: (rank, position in its ops), by rank; of a message source first."""

    op: Op
    members: tuple[tuple[int, int], ...]


def named_groups(training: ClusterTraining, groups: Sequence[ClusterGroup], rank: int) -> dict[int, GroupKey]:
    """Index -> key as the rank records it, of the groups that a rank is in."""
    mine = {index: group for index, group in enumerate(groups) if rank in group.members}
    if not training.address_names:
        return {index: (group.members, group.name) for index, group in mine.items()}
    base = 94_000_000_000_000 + int(np.random.default_rng([training.seed, 4, rank]).integers(1 << 30)) * 16
    return {index: (group.members, str(base + 1_024 * k)) for k, (index, group) in enumerate(mine.items())}


def elements(op: Op, size: int) -> tuple[int, int]:
    """What PyTorch records of a communication in a group of ``size``: elements in and out."""
    count = op.bytes // op.elem_bytes
    if op.splits[0]:
        return count, sum(op.splits[1]) * ROW_ELEMS
    if op.type == ALL_GATHER:
        return count, count * size
    return (count, count // size) if op.type == REDUCE_SCATTER else (count, count)


def cluster_groups(training: ClusterTraining) -> tuple[ClusterGroup, ...]:
    """The world and all groups of two and more ranks, numbered as every rank creates them."""
    ranks = np.arange(training.world).reshape(training.pipeline, training.data, training.tensor)
    data = ranks.transpose(0, 2, 1).reshape(-1, training.data)
    sorts = {
        "world": ranks.reshape(1, -1),
        "data": data,
        "twin": data if training.twin else data[:0],
        "tensor": ranks.reshape(-1, training.tensor),
        "pipeline": ranks.reshape(training.pipeline, -1).T,
        "expert": data.reshape(-1, training.expert),
    }
    members = [
        (sort, tuple(row)) for sort, rows in sorts.items() for row in rows.tolist() if len(row) > 1 or sort == "world"
    ]
    return tuple(ClusterGroup(sort, row, str(number)) for number, (sort, row) in enumerate(members))


def rank_ops(training: ClusterTraining, groups: tuple[ClusterGroup, ...], rank: int) -> list[Op]:
    """All ops of a rank in the order of issue; linear in their number."""
    mine = {group.sort: index for index, group in enumerate(groups) if rank in group.members}
    builder = _Builder(training, groups, mine, rank)
    for step in range(training.steps):
        builder.run_step(step)
    return builder.ops


@lru_cache(maxsize=1 << 16)  # each member of a group asks for it
def _splits(seed: int, group: int, turn: int, size: int, rows: int) -> tuple[tuple[int, ...], ...]:
    """Rows from each member (by line) to each other: uneven, about ``rows`` a member in all."""
    rng = np.random.default_rng([seed, group, turn])
    sent = rng.integers(rows // 2, rows * 3 // 2, size, endpoint=True)
    return tuple(tuple(line) for line in rng.multinomial(sent, rng.dirichlet(np.ones(size), size)).tolist())


@dataclass
class _Builder:
    training: ClusterTraining
    groups: tuple[ClusterGroup, ...]
    mine: dict[str, int]  # sort -> index of this rank's group
    rank: int
    step: int = 0
    ops: list[Op] = field(default_factory=list)
    front: tuple[int, ...] = ()  # what ends before the compute stream goes on
    pending: tuple[int, ...] = ()  # comms that it is still to wait for
    turns: dict[tuple[int, ...], int] = field(default_factory=dict)

    def run_step(self, step: int) -> None:
        self.step = step
        first, last = len(self.ops), self.training.microbatches - 1
        for forward, microbatch in self.slots():
            if forward:
                self.forward()
            else:
                self.backward(last=microbatch == last)
        gradients = (STREAMS["data"], STREAMS["twin"])
        self.pending += tuple(i for i in range(first, len(self.ops)) if self.ops[i].stream in gradients)
        self.collective("world", ALL_REDUCE, 4, elem_bytes=4)
        self.compute(1)
        self.collective("world", BROADCAST, 8, elem_bytes=8)

    def slots(self) -> Iterator[tuple[bool, int]]:
        """(forward or backward, microbatch) in the order of the schedule."""
        count, stages = self.training.microbatches, self.training.pipeline
        ahead = (
            count if self.training.schedule == "GPipe" else min(stages - self.training.place(self.rank)[2] - 1, count)
        )
        yield from ((True, m) for m in range(ahead))
        for m in range(count - ahead):
            yield True, ahead + m
            yield False, m
        yield from ((False, m) for m in range(count - ahead, count))

    def forward(self) -> None:
        self.message(RECV, 1)
        for _ in range(self.training.layers):
            self.layer(1)
        self.message(SEND, 1)

    def backward(self, *, last: bool) -> None:
        self.message(RECV, -1)
        for layer in reversed(range(self.training.layers)):
            self.layer(2)
            if last and layer % self.training.bucket_layers == 0:
                self.gradient(layer)
        self.message(SEND, -1)

    def gradient(self, layer: int) -> None:
        """Reduce the gradients of a layer, and of those above it in its bucket."""
        bucket = range(layer, min(layer + self.training.bucket_layers, self.training.layers))
        growth = self.training.gradient_growth
        sort, factor = "data", sum(1 + growth * one for one in bucket)
        if self.training.twin:  # data group and twin do the same, in turns
            sort, factor = ("twin" if layer % 2 else "data"), 1 + growth * (layer // 2)
        self.collective(sort, ALL_REDUCE, self.training.gradient_bytes // 4 * 4 * factor, elem_bytes=4, blocks=False)

    def layer(self, weight: int) -> None:
        """Compute, with the tensor group's and the experts' exchange."""
        shard = max(1, self.training.activation_bytes // 2 // self.training.tensor) * 2
        if self.training.sequence_parallel:
            self.collective("tensor", ALL_GATHER, shard)
        self.compute(weight)
        if self.training.sequence_parallel:
            self.collective("tensor", REDUCE_SCATTER, shard * self.training.tensor)
        else:
            self.collective("tensor", ALL_REDUCE, shard * self.training.tensor)
        if "expert" in self.mine:
            self.all_to_all()

    def compute(self, weight: int) -> None:
        waits, self.pending = self.pending, ()
        self.ops.append(Op(self.step, COMPUTE_STREAM, waits, self.front + waits, weight=weight))
        self.front = (len(self.ops) - 1,)

    def turn(self, *key: int) -> int:
        self.turns[key] = self.turns.get(key, 0) + 1
        return self.turns[key]

    def collective(self, sort: str, type_: int, size: int, *, elem_bytes: int = 2, blocks: bool = True) -> None:
        if sort not in self.mine:
            return
        group = self.mine[sort]
        turn = self.turn(group)
        op = Op(self.step, STREAMS[sort], (), (), group=group, key=(group, turn), type=type_, bytes=size, seq=turn)
        self.add(op._replace(elem_bytes=elem_bytes), blocks)

    def all_to_all(self) -> None:
        group = self.mine["expert"]
        turn, members = self.turn(group), self.groups[group].members
        table = _splits(
            self.training.seed, group, turn, len(members), max(1, self.training.expert_bytes // (2 * ROW_ELEMS))
        )
        own = members.index(self.rank)
        sent, got = table[own], tuple(line[own] for line in table)
        size = sum(sent) * ROW_ELEMS * 2
        op = Op(
            self.step, STREAMS["expert"], (), (), group=group, key=(group, turn), type=ALL_TO_ALL, bytes=size, seq=turn
        )
        self.add(op._replace(splits=(sent, got)))

    def message(self, kind: int, way: int) -> None:
        """Activations go one stage on (``way`` 1), gradients one back; nothing where there is no such stage."""
        if "pipeline" not in self.mine:
            return
        group = self.mine["pipeline"]
        members = self.groups[group].members
        at = members.index(self.rank) + (way if kind == SEND else -way)
        if not 0 <= at < len(members):
            return
        peer = members[at]
        ends = (self.rank, peer) if kind == SEND else (peer, self.rank)
        key = (group, *ends, self.turn(group, *ends))
        size = self.training.activation_bytes // 2 * 2
        op = Op(
            self.step, MESSAGE_STREAMS[kind, way], (), (), group=group, key=key, kind=kind, bytes=size, peer=peer,
            seq=self.turn(group, NOWHERE),
        )  # fmt: skip
        if kind == RECV:  # posted ahead: it waits for nothing here
            self.ops.append(op)
            self.pending += (len(self.ops) - 1,)
        else:
            self.add(op, blocks=False)

    def add(self, op: Op, blocks: bool = True) -> None:
        """A communication that starts after what the compute stream has; with ``blocks`` the compute stream waits for
        it.
        """
        self.front += self.pending
        self.ops.append(op._replace(waits=self.pending, after=self.front))
        self.pending = (len(self.ops) - 1,) if blocks else ()


def find_meetings(ops: Sequence[Sequence[Op]]) -> list[TrueMeeting]:
    """By key, in the order in which the first rank issues them."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for rank, mine in enumerate(ops):
        for position, op in enumerate(mine):
            if op.group != NOWHERE:
                found.setdefault(op.key, []).append((rank, position))
    ordered = [sorted(members, key=lambda m: (ops[m[0]][m[1]].kind, m[0])) for members in found.values()]
    return [TrueMeeting(ops[members[0][0]][members[0][1]], tuple(members)) for members in ordered]
