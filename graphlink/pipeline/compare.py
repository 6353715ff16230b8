"""A recorded step against generated orders, action by action. What counts as the same is said in ``recognise``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.pipeline.order import SCHEDULES, SPLIT, Order, stage_of
from graphlink.pipeline.records import Phase
from graphlink.pipeline.schedules import variants
from graphlink.pipeline.wholes import Recorded, Whole


@dataclass(frozen=True, slots=True)
class Shape:
    """What candidates depend on. ``microbatches``: those that go through each chunk."""

    stages: int
    microbatches: int
    chunks: int
    split: bool

    @staticmethod
    def of(step: Whole) -> Shape:
        return Shape(len(step.ranks), step.microbatches, step.chunks, step.split)

    def code(self, phase: I64, chunk: I64, microbatch: I64) -> I64:
        """One number an action."""
        return (phase * self.chunks + chunk) * self.microbatches + microbatch


@dataclass(frozen=True, slots=True)
class Candidate:
    """Generated orders in the form in which they are compared: ``codes`` of the actions, ``origins`` their places in ``orders``."""

    schedule: str
    orders: tuple[Order, ...]
    codes: tuple[I64, ...]
    origins: tuple[I64, ...]


def candidates(shape: Shape) -> Iterator[Candidate]:
    """In the order of preference: if some backwards are split the schedules that split first, else only those that do not."""
    names = [name for name in SCHEDULES if name in SPLIT] if shape.split else []
    for schedule in names + [name for name in SCHEDULES if name not in SPLIT]:
        directions = 2 if schedule == "DualPipe" else 1
        for orders in variants(schedule, shape.stages, shape.microbatches * directions, shape.chunks):
            codes, origins = [], []
            for order in orders:
                origin, phase = _with_split(order.phase, shape.split)
                chunk = order.stage // shape.stages
                microbatch = order.microbatch - (shape.microbatches * chunk if directions == 2 else 0)
                codes.append(shape.code(phase, chunk[origin], microbatch[origin]))
                origins.append(origin)
            yield Candidate(schedule, orders, tuple(codes), tuple(origins))


def _with_split(phase: U8, split: bool) -> tuple[I64, I64]:
    """Where each action comes from, and its phase, where a B is taken as an I and a W (``split``)."""
    full = np.asarray(phase == Phase.B) & split
    origin = np.repeat(np.arange(len(phase)), 1 + full)
    out = phase[origin].astype(np.int64)
    out[full[origin]] = Phase.I
    out[np.diff(origin, prepend=-1) == 0] = Phase.W
    return origin, out


@dataclass(frozen=True, slots=True)
class Comparison:
    """One step against one candidate: ``ranks`` as they were compared, and by rank the ``codes`` and ``origins`` of what was recorded and
    whether it ``differs``."""

    step: int
    candidate: Candidate
    ranks: tuple[Recorded, ...]
    codes: tuple[I64, ...]
    origins: tuple[I64, ...]
    differs: tuple[Bool, ...]

    @staticmethod
    def of(step: Whole, candidate: Candidate) -> Comparison:
        shape, dual = Shape.of(step), candidate.schedule == "DualPipe"
        ranks = tuple(map(_forward_first, step.ranks)) if dual else step.ranks
        codes, origins, differs = [], [], []
        for rank, recorded in enumerate(ranks):
            origin, phase = _with_split(recorded.phase, step.split)
            code = shape.code(phase, recorded.chunk[origin], recorded.microbatch[origin])
            expected = np.array([stage_of(candidate.schedule, rank, chunk, shape.stages) for chunk in range(step.chunks)])
            off = recorded.stage - expected[recorded.chunk]
            if dual:  # its second pipeline has the layers of the first, and may be numbered like it
                off %= shape.stages
            elsewhere = (recorded.stage != NOWHERE) & (off != 0)
            codes.append(code)
            origins.append(origin)
            differs.append((code != candidate.codes[rank]) | elsewhere[origin])
        return Comparison(step.step, candidate, ranks, tuple(codes), tuple(origins), tuple(differs))

    @property
    def distance(self) -> int:
        """How many actions differ."""
        return sum(int(np.count_nonzero(rank)) for rank in self.differs)

    def orders(self) -> tuple[Order, ...]:
        """What each recorded action is by the candidate, if nothing differs; phases as recorded."""
        out = []
        for rank, recorded in enumerate(self.ranks):
            first = np.flatnonzero(np.diff(self.origins[rank], prepend=-1))
            order, at = self.candidate.orders[rank], self.candidate.origins[rank][first]
            out.append(Order(recorded.phase, order.stage[at], order.microbatch[at], order.paired[at]))
        return tuple(out)

    def first_difference(self, names: Sequence[int]) -> str:
        """In words, with the recording's own microbatch numbers; positions count the actions of a rank from 0."""
        rank = next(k for k, differs in enumerate(self.differs) if differs.any())
        at = int(np.argmax(self.differs[rank]))
        recorded, order = self.ranks[rank], self.candidate.orders[rank]
        found, meant = int(self.origins[rank][at]), int(self.candidate.origins[rank][at])
        ran = int(np.argmax(self.codes[rank] == self.candidate.codes[rank][at]))  # where the expected one ran
        label = recorded.label[self.origins[rank][ran]]
        stage = recorded.stage[found]
        if stage == NOWHERE:
            stage = stage_of(self.candidate.schedule, rank, int(recorded.chunk[found]), len(self.ranks))
        return (
            f"step {self.step}, rank {names[rank]}, position {found} of {len(recorded)}:"
            f" expected {Phase(order.phase[meant]).name} of stage {order.stage[meant]}, microbatch {label},"
            f" found {Phase(recorded.phase[found]).name} of stage {stage}, microbatch {recorded.label[found]}"
        )


def _forward_first(recorded: Recorded) -> Recorded:
    """The same with the forward first where a forward and a backward overlap, the backward starting first."""
    backward = (recorded.phase == Phase.B) | (recorded.phase == Phase.I)
    swap = backward[:-1] & (recorded.phase[1:] == Phase.F) & (recorded.start_ns[1:] < recorded.end_ns[:-1])
    order = np.arange(len(recorded))
    at = np.flatnonzero(swap)  # never two in a row: a backward is no forward
    order[at], order[at + 1] = at + 1, at
    return recorded.take(order)
