"""Records of joining side files of NCCL with the communication of a rank.

``op`` is a position in the ``Ops`` of a rank: its communication kernels and host-side (gloo) rows by start.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphlink.model import I32, I64, Bool
from graphlink.nccl.read.records import Dump
from graphlink.nccl.summary import NcclClock, NcclGroup
from graphlink.records import Short


@dataclass(frozen=True, slots=True)
class Ops:
    """The communication of a rank as its trace has it, typed or not, sorted by start, then end. One entry an op in each column.

    Text columns hold positions in ``strings`` (entry 0 is ""), ``NOWHERE`` stands for what was not recorded.
    """

    strings: tuple[str, ...]
    on_host: Bool  # a host row, else a device row
    row: I32
    function: I32  # text, as PyTorch spells it: allreduce, send, ...; "" for a kernel that tells nothing
    group_name: I32  # text: PyTorch's name of the process group
    ranks: tuple[tuple[int, ...] | None, ...]  # members of the group, by op
    in_nelems: I64
    out_nelems: I64
    dtype: I32
    seq: I64
    peer: I32  # global rank
    issued_ns: I64  # when the host asked for it: start of the launching call, of a host row that of the op that asked for it
    asked_until_ns: I64  # end of the op that asked for a host row which another thread ran; NOWHERE else
    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class Split:
    """How the time of each matched op with proxy steps divides: gpu + peer + wire + receive + other = end - start, exactly."""

    op: I32
    gpu_ns: I64
    peer_ns: I64
    wire_ns: I64
    receive_ns: I64
    other_ns: I64  # no step was on its way


@dataclass(frozen=True, slots=True, repr=False)
class SideFiles(Short):
    """The side files of a rank, ``dumps``, joined with its communication, ``ops``.

    Matched pairs are sorted by op, then dump: op ``op`` is the call ``call`` of dump ``dump``. An op has at most one call a dump, and a
    call at most one op.
    """

    dumps: tuple[Dump, ...]
    ops: Ops
    op: I32
    dump: I32
    call: I32
    groups: list[NcclGroup]
    clocks: tuple[NcclClock, ...]  # one a dump
    split: Split
