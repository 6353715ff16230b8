"""How the time of an op divides over what its proxies waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphlink.model import I64, U8
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.records import DumpClock, Ops, Split

_STATES = len(State)


def split_ops(ops: Ops, dumps: Sequence[Dump], clocks: Sequence[DumpClock], op: I64, dump: I64, call: I64) -> Split:
    """Of the pairs (``call`` of ``dump`` is ``op``) those with proxy steps; of several dumps with steps of one op the first counts.

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
    """Of each of ``count`` ops the time of each state, (count, states); ``own``: the op of each step.

    One sweep over the begins and ends of all steps. Between two of them the time is cut at rounded shares, so that the parts make the
    whole.
    """
    steps = len(own)
    ns = np.concatenate([start_ns, end_ns])
    of = np.concatenate([own, own])
    order = np.lexsort((ns, of))
    change = np.zeros((2 * steps, _STATES), np.int64)
    change[np.arange(2 * steps), np.concatenate([state, state])] = np.repeat([1, -1], steps)
    active = np.cumsum(change[order], axis=0)  # all steps of an op have ended before the next op's begin
    length = np.append(np.diff(ns[order]), 0)
    length[np.flatnonzero(np.diff(of[order]) != 0)] = 0
    upto = np.cumsum(active, axis=1)
    total = np.maximum(upto[:, -1:], 1)
    cuts = (2 * length[:, None] * upto + total) // (2 * total)
    parts = np.diff(cuts, axis=1, prepend=0)
    sums = np.zeros((count, _STATES), np.int64)
    np.add.at(sums, of[order], parts)
    return sums
