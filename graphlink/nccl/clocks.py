"""The clock of a dump on the trace's, and whether the kernels it saw begin where the trace has them."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.model import I64
from graphlink.nccl.bytime import Laid
from graphlink.nccl.read.records import Clock, Dump
from graphlink.nccl.records import DumpClock, Ops

SLACK_NS: Final = 2_000  # a block may seem to begin so long before its kernel: two clocks, each rounded


def dump_clock(dump: Dump, laid: Laid | None, op: I64, call: I64, ops: Ops) -> DumpClock:
    """From how a dump was laid on the trace and its pairs, ``call`` with ``op``. Where it was joined without times, by the pairs."""
    offset_ns, residual_ns = None, 0
    if laid is not None and laid.host is not None:
        offset_ns, residual_ns = laid.host.offset_ns, laid.host.residual_ns
    else:
        timed = (dump.calls.start_ns[call] > 0) & (ops.issued_ns[op] > 0)
        if timed.any() and dump.clock is not Clock.NONE:
            apart = ops.issued_ns[op[timed]] - dump.calls.start_ns[call[timed]]
            offset_ns = int(np.sort(apart)[len(apart) // 2])
            residual_ns = int(np.median(np.abs(apart - offset_ns)))
    op_of = np.full(len(dump.calls.rank) + 1, -1, np.int64)
    op_of[call] = op
    kernels = dump.kernels
    at = op_of[kernels.call]
    told = (at >= 0) & (kernels.call >= 0) & (kernels.gpu_start_ns > 0)
    if not told.any():
        return DumpClock(offset_ns, residual_ns, None, 0, 0)
    begun_ns, at = kernels.gpu_start_ns[told], at[told]
    first, where = np.unique(at, return_inverse=True)
    least_ns = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(least_ns, where.reshape(-1), begun_ns)
    gpu_offset_ns = int(np.sort(ops.start_ns[first] - least_ns)[len(first) // 2])
    shown_ns = begun_ns + gpu_offset_ns
    inside = (shown_ns >= ops.start_ns[at] - SLACK_NS) & (shown_ns <= ops.end_ns[at])
    return DumpClock(offset_ns, residual_ns, gpu_offset_ns, int(inside.sum()), len(at))
