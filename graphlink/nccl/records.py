"""Records of joining side files of NCCL with the communication of a rank.

``op`` is a position in the ``CommOps`` of a rank: its communication kernels and host-side (gloo) rows by start.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphlink.model import I32, I64, CommOps
from graphlink.nccl.read.records import Dump
from graphlink.nccl.summary import NcclClock, NcclGroup, NcclTimes
from graphlink.records import Short


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of the time of each matched op with proxy steps: gpu + peer + wire + receive + other = end - start,
    exactly.
    """

    op: I32
    gpu_ns: I64
    peer_ns: I64
    wire_ns: I64
    receive_ns: I64
    other_ns: I64  # no step was on its way


@dataclass(frozen=True, slots=True, repr=False)
class SideFiles(Short):
    """The side files of a rank, ``dumps``, joined with its communication, ``ops``.

    Matched pairs are sorted by op, then dump: op ``op`` is the call ``call`` of dump ``dump``. An op has at most one
    call per dump, and a call at most one op.
    """

    dumps: tuple[Dump, ...]
    ops: CommOps
    op: I32
    dump: I32
    call: I32
    groups: list[NcclGroup]
    clocks: tuple[NcclClock, ...]  # one a dump
    split: Split
    times: list[NcclTimes]
