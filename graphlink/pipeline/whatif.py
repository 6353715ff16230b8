"""What another schedule would give on the times of a measured run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.pipeline.records import Phase, Rates
from graphlink.pipeline.schedules import SPLIT, V_SHAPED, Order, default_chunks, named, orders
from graphlink.pipeline.simulate import Timed, Times, peak_activations, simulate
from graphlink.pipeline.theory import Measured, rates_of


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A step of a schedule, played on measured times, transfers included.

    ``activations``: the most that each rank holds at a time, in activations of one microbatch in one rank's share (1 / p) of the model.
    ``assumed``: sentences for the user.
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    orders: tuple[Order, ...]
    timed: Timed
    rates: Rates
    activations: tuple[float, ...]
    assumed: tuple[str, ...]


def what_if(
    schedule: str,
    microbatches: int,
    measured: Measured,
    *,
    stages: int | None = None,
    chunks: int | None = None,
    input_share: float | None = None,
) -> WhatIf:
    """One step of ``schedule`` (named in any case) with ``microbatches`` of the measured size.

    Args:
        stages: ranks; as measured unless given.
        chunks: a rank; unless given what the schedule has, for the interleaved ones as measured but at least 2.
        input_share: of a full backward, what the input gradient takes (0 to 1); asked for if the schedule splits backwards and the run
            did so nowhere. If it did on some stages, their share is taken for the others.

    The model is cut anew where the number of virtual stages is another: a measured stage's time counts as spread evenly over its
    layers. Then, or where stages move between ranks, every transfer takes the mean of the measured ones.

    Raises ValueError, in words for the user, where the schedule does not exist for these numbers, or the share is missing or none.
    """
    name = named(schedule)
    ranks = measured.stages if stages is None else stages
    pieces = default_chunks(name, measured.chunks) if chunks is None else chunks
    made = orders(name, ranks, microbatches, pieces)
    assumed = [f"microbatches are of the measured size; a step has {microbatches}"]
    profile = _split(_by_layers(measured), name, input_share, assumed)
    times = _placed(profile, measured, name, ranks * pieces, ranks, assumed)
    timed = simulate(made, times)
    part = 1 if name == "DualPipe" else pieces
    activations = tuple(peak / part for peak in peak_activations(made))
    return WhatIf(name, ranks, microbatches, pieces, made, timed, rates_of([timed]), activations, tuple(assumed))


@dataclass(frozen=True, slots=True)
class _Profile:
    """Times by phase of consecutive equal parts of the model, and whether each was measured; shape (4, parts)."""

    duration_ns: I64
    seen: I64


def _by_layers(measured: Measured) -> _Profile:
    """Virtual stages are the parts; DualPipe runs each part twice, its times are the mean."""
    durations, seen = measured.times.duration_ns, measured.seen.astype(np.int64)
    if measured.schedule == "DualPipe":
        durations, seen = (column.reshape(len(column), 2, -1) for column in (durations, seen))
        many = seen.sum(axis=1)
        mean = np.rint((durations * seen).sum(axis=1) / np.maximum(many, 1)).astype(np.int64)
        return _Profile(mean, np.minimum(many, 1))
    return _Profile(durations, seen)


def _split(profile: _Profile, schedule: str, input_share: float | None, assumed: list[str]) -> _Profile:
    """The same with all four phases known, as far as ``schedule`` needs them."""
    durations, seen = profile.duration_ns.copy(), profile.seen.astype(np.bool_)
    F, B, I, W = durations  # noqa: E741
    apart = seen[Phase.I] & seen[Phase.W]
    B[:] = np.where(seen[Phase.B], B, I + W)
    if not seen[Phase.F].all() or not (seen[Phase.B] | apart).all():
        raise ValueError("not every stage has both forwards and backwards that were measured")
    if schedule in SPLIT and not apart.all():
        if apart.any():
            share = float(I[apart].sum() / max(int((I + W)[apart].sum()), 1))
            assumed.append(f"where backwards were not split, the input gradient takes {share:.1%} of them, as where they were")
        elif input_share is None:
            raise ValueError(
                f"{schedule} splits backwards, the run did not: say what share of a backward its input gradient takes (--input-share)"
            )
        elif not 0 <= input_share <= 1:
            raise ValueError(f"the input gradient's share of a backward lies between 0 and 1, not at {input_share}")
        else:
            share = input_share
            assumed.append(f"the input gradient takes {share:.1%} of a backward (given)")
        I[:] = np.where(apart, I, np.rint(share * B))
        W[:] = np.where(apart, W, B - I)
    return _Profile(np.stack([F, B, I, W]), profile.seen)


def _placed(profile: _Profile, measured: Measured, schedule: str, virtual: int, ranks: int, assumed: list[str]) -> Times:
    """The profile cut into the parts of ``schedule``, with transfers."""
    parts = ranks if schedule == "DualPipe" else virtual
    durations, had = profile.duration_ns, profile.duration_ns.shape[1]
    if parts != had:
        durations = np.stack([_cut(one, parts) for one in durations])
        assumed.append(f"the model, measured in {had} parts, is cut into {parts}; a part's time is spread evenly over its layers")
    if schedule == "DualPipe":
        durations = np.concatenate([durations, durations], axis=1)
        assumed.append("a pair takes as long as its forward and its backward one after the other")
    times = measured.times
    same = virtual == times.stages and (schedule in V_SHAPED) == (measured.schedule in V_SHAPED)
    if same and (schedule == "DualPipe") == (measured.schedule == "DualPipe"):
        return Times(durations, times.forward_ns, times.backward_ns)
    moved = (measured.home[1:] != measured.home[:-1]) & (measured.home[1:] != NOWHERE) & (measured.home[:-1] != NOWHERE)
    forward, backward = (np.full(virtual - 1, _mean(lags[moved])) for lags in (times.forward_ns, times.backward_ns))
    assumed.append("each transfer between ranks takes the mean of the measured ones")
    return Times(durations, forward, backward)


def _cut(durations: I64, parts: int) -> I64:
    """Times of ``parts`` equal parts of what the given ones cover evenly; the sum stays."""
    had = len(durations)
    until = np.append(0, np.cumsum(durations))
    at = np.rint(np.interp(np.arange(parts + 1) * had / parts, np.arange(had + 1), until)).astype(np.int64)
    pieces: I64 = at[1:] - at[:-1]
    return pieces


def _mean(values: I64) -> int:
    return int(np.rint(values.mean())) if len(values) else 0
