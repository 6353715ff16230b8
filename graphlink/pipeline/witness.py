"""What NCCL itself recorded of the exchanges of a rank, where its side files lie beside the recording."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.summary import SideFiles
from graphlink.pipeline.records import NO_TIME, Witness
from graphlink.tables import least

_LATEST: Final = np.iinfo(np.int64).max
_WORDS: Final = ("waiting for the GPU", "waiting for the peer", "on the wire", "waiting for data")


def witness(files: SideFiles) -> Witness:
    """Return NCCL's record of the exchanges whose calls have proxy steps. O(n log n) in steps."""
    split = files.split
    came = np.full(len(files.ops.row), NO_TIME)
    for number, (dump, clock) in enumerate(zip(files.dumps, files.clocks, strict=True)):
        if clock.offset_ns is None:
            continue
        mine = np.flatnonzero(files.dump == number)
        op, at = files.op[mine], _came_ns(dump)[files.call[mine]]
        came[op[at != NO_TIME]] = at[at != NO_TIME] + clock.offset_ns
    columns = (split.gpu_ns, split.peer_ns, split.wire_ns, split.receive_ns)
    words = tuple(_in_words(times) for times in zip(*(c.tolist() for c in columns), strict=True))
    return Witness(split.op.astype(np.int64), came[split.op], words)


def _came_ns(dump: Dump) -> I64:
    """Return by call, on the dump's clock, the first end of a step that waited for data, else of one that waited for
    its peer.
    """
    steps = dump.steps
    call = dump.proxies.call[steps.proxy]
    out = np.full(len(dump.calls.rank), NO_TIME)
    for state in (State.PEER, State.RECEIVE):
        mine = np.flatnonzero((steps.state == state) & (call != NOWHERE) & (steps.end_ns != 0))
        first = least(len(out), call[mine], steps.end_ns[mine], _LATEST)
        out[call[mine]] = first[call[mine]]
    return out


def _in_words(times_ns: tuple[int, ...]) -> str:
    """Name those that are not 0, the longest first."""
    some = sorted(((ns, what) for ns, what in zip(times_ns, _WORDS, strict=True) if ns), key=lambda part: -part[0])
    return "NCCL: " + ", ".join(f"{ns / 1e6:,.3f} ms {what}" for ns, what in some) if some else ""
