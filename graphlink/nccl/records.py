"""What joining side files of NCCL with the communication of a rank gives.

``op`` is a position in the ``Ops`` of a rank: its communication kernels and host-side (gloo) rows by start.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphlink.model import I32, I64, Bool


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
    bytes: I64  # as PyTorch counts them, of the larger side
    seq: I64
    peer: I32  # global rank
    stream: I64
    issued_ns: I64  # when the host asked for it: start of the launching call, of a host row that of the op that asked for it
    asked_until_ns: I64  # end of the op that asked for a host row which another thread ran; NOWHERE else
    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """One line of the join table: a communicator of a dump against a group of the trace. ``dump`` is ``NOWHERE`` in the lines of groups
    that no dump has calls of.

    ``calls`` and ``ops`` = what either side has; calls = matched + sum(calls_left), ops = matched + sum(ops_left). ``group`` is the name
    of the process group, None where no group of the trace fits. ``mismatch``: the first pair that should be one and is not, in words.
    """

    dump: int
    communicator: str
    group: str | None
    ranks: tuple[int, ...] | None
    calls: int
    ops: int
    matched: int
    calls_left: dict[str, int]
    ops_left: dict[str, int]
    rule: str  # seq, span, run, time
    mismatch: str | None


@dataclass(frozen=True, slots=True)
class DumpClock:
    """How the clock of a dump maps onto the trace's: trace = own + offset_ns. None where nothing ties them.

    ``gpu_offset_ns``: the same of the GPU's own clock. ``inside`` of ``checked`` kernel starts fall into their kernel's span.
    """

    offset_ns: int | None
    residual_ns: int
    gpu_offset_ns: int | None
    inside: int
    checked: int


@dataclass(frozen=True, slots=True)
class Split:
    """Of each matched op with proxy steps how its time divides: gpu + peer + wire + receive + other = end - start, exactly."""

    op: I32
    gpu_ns: I64
    peer_ns: I64
    wire_ns: I64
    receive_ns: I64
    other_ns: I64  # no step was on its way


@dataclass(frozen=True, slots=True)
class NcclJoin:
    """Matched pairs, sorted by op, then dump: op ``op`` is the call ``call`` of dump ``dump``. An op has at most one call a dump, and
    a call at most one op."""

    ops: Ops
    op: I32
    dump: I32
    call: I32
    groups: tuple[JoinedGroup, ...]
    clocks: tuple[DumpClock, ...]  # one a dump
    split: Split
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """What side files tell of matched ops, one entry an op in each column, ascending. Text columns hold positions in ``strings`` (entry 0
    is ""), ``NOWHERE`` stands for what no file tells."""

    strings: tuple[str, ...]
    op: I32
    communicator: I32  # text: its key
    seq: I64  # NCCL's number, or PyTorch's where only a Flight Recorder has one
    algorithm: I32  # text
    protocol: I32  # text
    channels: I32
    wire_bytes: I64  # that the rank's proxies sent
