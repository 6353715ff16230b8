"""Estimate the clocks of side files, and divide the time of matched ops over what proxies waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import I32, I64, U8, CommOps
from graphlink.nccl.ops import OpSide
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.records import Split
from graphlink.nccl.shift import Shift
from graphlink.nccl.summary import NcclClock

SLACK_NS: Final = 2_000  # a block may seem to begin so long before its kernel: two clocks, each rounded


def dump_clock(dump: Dump, shift: Shift | None, op: I32, call: I32, ops: OpSide) -> NcclClock:
    """Return the clock of a dump from its shift against the trace, else from its pairs (``call`` with ``op``), and check kernel starts."""
    offset_ns, residual_ns = (None, 0) if shift is None else (shift.offset_ns, shift.residual_ns)
    if shift is None:
        timed = (dump.calls.start_ns[call] > 0) & (ops.issued_ns[op] > 0)
        if timed.any():
            apart = ops.issued_ns[op[timed]] - dump.calls.start_ns[call[timed]]
            offset_ns = int(np.sort(apart)[len(apart) // 2])
            residual_ns = int(np.median(np.abs(apart - offset_ns)))
    op_of = np.full(len(dump.calls.rank) + 1, -1, np.int64)
    op_of[call] = op
    kernels = dump.kernels
    at = op_of[kernels.call]
    timed = (at >= 0) & (kernels.call >= 0) & (kernels.gpu_start_ns > 0)
    if not timed.any():
        return NcclClock(offset_ns=offset_ns, residual_ns=residual_ns, gpu_offset_ns=None, inside=0, checked=0)
    begun_ns, at = kernels.gpu_start_ns[timed], at[timed]
    first, where = np.unique(at, return_inverse=True)
    least_ns = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(least_ns, where.reshape(-1), begun_ns)
    gpu_offset_ns = int(np.sort(ops.trace.start_ns[first] - least_ns)[len(first) // 2])
    shown_ns = begun_ns + gpu_offset_ns
    inside = (shown_ns >= ops.trace.start_ns[at] - SLACK_NS) & (shown_ns <= ops.trace.end_ns[at])
    return NcclClock(offset_ns=offset_ns, residual_ns=residual_ns, gpu_offset_ns=gpu_offset_ns, inside=int(inside.sum()), checked=len(at))


def split_ops(ops: CommOps, dumps: Sequence[Dump], clocks: Sequence[NcclClock], op: I32, dump: I32, call: I32) -> Split:
    """Divide the time of ops with proxy steps among the pairs (``call`` of ``dump`` is ``op``). Of several dumps the first
    counts.

    Each moment of an op belongs in equal parts to the steps that are in progress then. O(n log n) in steps.
    """
    found = []
    taken = np.zeros(0, np.int64)
    for k, (one, clock) in enumerate(zip(dumps, clocks, strict=True)):
        if clock.offset_ns is None or not len(one.steps.proxy):
            continue
        mine = dump == k
        op_of = np.full(len(one.calls.rank) + 1, -1, np.int64)
        op_of[call[mine]] = op[mine]
        of_step = op_of[one.proxies.call[one.steps.proxy]]
        kept = (of_step >= 0) & (one.proxies.call[one.steps.proxy] >= 0) & ~np.isin(of_step, taken)
        steps, own = one.steps, of_step[kept]
        found.append((own, steps.state[kept], steps.start_ns[kept] + clock.offset_ns, steps.end_ns[kept] + clock.offset_ns))
        taken = np.union1d(taken, own)
    if not found:
        nothing = np.zeros(0, np.int64)
        return Split(nothing.astype(np.int32), nothing, nothing, nothing, nothing, nothing)
    own, state, start_ns, end_ns = (np.concatenate(parts) for parts in zip(*found, strict=True))
    every, at = np.unique(own, return_inverse=True)
    low, high = ops.start_ns[own], ops.end_ns[own]
    sums = shares(at.reshape(-1), state, np.clip(start_ns, low, high), np.clip(end_ns, low, high), len(every))
    return Split(
        op=every.astype(np.int32),
        gpu_ns=sums[:, State.GPU],
        peer_ns=sums[:, State.PEER],
        wire_ns=sums[:, State.WIRE],
        receive_ns=sums[:, State.RECEIVE],
        other_ns=ops.end_ns[every] - ops.start_ns[every] - sums.sum(axis=1),
    )


def shares(own: I64, state: U8, start_ns: I64, end_ns: I64, count: int) -> I64:
    """Return the time of each state of ``count`` ops, (count, states). ``own``: the op of each step.

    One sweep over the begins and ends of all steps. Between two of them the time is cut at rounded shares, so that the parts make the
    whole.
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
