"""Estimate the clocks of side files, and divide the time of matched ops over what proxies waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, NOWHERE, CommOps
from graphlink.nccl.ops import OpSide
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.shift import Shift, middle
from graphlink.nccl.sides import gpu_starts
from graphlink.nccl.summary import NcclClock, Split
from graphlink.tables import numbered_values, spread

SLACK_NS: Final = 2_000  # a block may seem to begin so long before its kernel: two clocks, each rounded


def dump_clock(dump: Dump, shift: Shift | None, op: I32, call: I32, ops: OpSide) -> NcclClock:
    """Return the clock of a dump from its shift against the trace, else from its pairs (``call`` with ``op``), and
    check kernel starts.
    """
    offset_ns, residual_ns = (None, 0) if shift is None else (shift.offset_ns, shift.residual_ns)
    timed = (dump.calls.start_ns[call] > 0) & (ops.issued_ns[op] > 0)
    if shift is None and timed.any():
        apart = ops.issued_ns[op[timed]] - dump.calls.start_ns[call[timed]]
        offset_ns = middle(apart)
        residual_ns = int(np.median(np.abs(apart - offset_ns)))
    begun_ns, gpu_offset_ns, inside = gpu_starts(dump)[call], None, np.zeros(0, np.bool_)
    if begun_ns.any():
        gpu_offset_ns = middle((ops.trace.start_ns[op] - begun_ns)[begun_ns > 0])
        of_block = _ops_of(dump, op, call)[dump.kernels.call]
        timed = (of_block != NOWHERE) & (dump.kernels.gpu_start_ns > 0)
        of_block, shown_ns = of_block[timed], dump.kernels.gpu_start_ns[timed] + gpu_offset_ns
        inside = (shown_ns >= ops.trace.start_ns[of_block] - SLACK_NS) & (shown_ns <= ops.trace.end_ns[of_block])
    return NcclClock(
        offset_ns=offset_ns,
        residual_ns=residual_ns,
        gpu_offset_ns=gpu_offset_ns,
        inside=int(inside.sum()),
        checked=len(inside),
    )


def _ops_of(dump: Dump, op: I32, call: I32) -> I64:
    """Return the op of each call of a dump, and one more NOWHERE at the end, for what belongs to no call."""
    return spread(len(dump.calls.rank) + 1, call, op.astype(np.int64))


def split_ops(ops: CommOps, dumps: Sequence[Dump], clocks: Sequence[NcclClock], op: I32, dump: I32, call: I32) -> Split:
    """Divide the time of ops with proxy steps among the pairs (``call`` of ``dump`` is ``op``). Of several dumps the
    first counts.

    Each moment of an op belongs in equal parts to the steps that are in progress then. O(n log n) in steps.
    """
    nothing = np.zeros(0, np.int64)
    parts = [(nothing, nothing, nothing, nothing)]
    taken = nothing
    for k, (file, clock) in enumerate(zip(dumps, clocks, strict=True)):
        if clock.offset_ns is None:
            continue
        own_pairs, steps = dump == k, file.steps
        of_step = _ops_of(file, op[own_pairs], call[own_pairs])[file.proxies.call[steps.proxy]]
        kept = (of_step != NOWHERE) & ~np.isin(of_step, taken)
        shifted = (column[kept] + clock.offset_ns for column in (steps.start_ns, steps.end_ns))
        parts.append((of_step[kept], steps.state[kept], *shifted))
        taken = np.union1d(taken, of_step[kept])
    own, state, start_ns, end_ns = (np.concatenate(part) for part in zip(*parts, strict=True))
    every, at = numbered_values(own)
    low, high = ops.start_ns[own], ops.end_ns[own]
    sums = shares(at, state, np.clip(start_ns, low, high), np.clip(end_ns, low, high), len(every))
    other_ns = ops.end_ns[every] - ops.start_ns[every] - sums.sum(axis=1)
    columns = np.column_stack([every, sums, other_ns]).T  # those of Split: times in the order of State
    return Split(columns[0].astype(np.int32), *columns[1:])


def shares(own: I64, state: NDArray[np.integer], start_ns: I64, end_ns: I64, count: int) -> I64:
    """Return the time of each state of ``count`` ops, (count, states). ``own``: the op of each step.

    One sweep over the begins and ends of all steps. Between two of them the time is cut at rounded shares, so that the
    parts make the whole.
    """
    steps = len(own)
    ns = np.concatenate([start_ns, end_ns])
    of = np.concatenate([own, own])
    order = np.lexsort((ns, of))
    change = np.zeros((2 * steps, len(State)), np.int64)
    change[np.arange(2 * steps), np.concatenate([state, state])] = np.repeat([1, -1], steps)
    active = np.cumsum(change[order], axis=0)  # all steps of an op have ended before the next op's begin
    length = np.append(np.diff(ns[order]), 0)
    length[np.flatnonzero(np.diff(of[order]) != 0)] = 0
    upto = np.cumsum(active, axis=1)
    total = np.maximum(upto[:, -1:], 1)
    cuts = (2 * length[:, None] * upto + total) // (2 * total)
    parts = np.diff(cuts, axis=1, prepend=0)
    sums = np.zeros((count, len(State)), np.int64)
    np.add.at(sums, of[order], parts)
    return sums
