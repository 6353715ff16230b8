"""What NCCL's proxies tell of the communication of a rank: how long it waited for its peer, whether that one was recorded or not.

A call that receives waited until the first data had come from any peer; one that only sends, until a peer first took some. What comes after
may hold more waiting (a ring goes on when its slowest member does): no transfer is taken for a wait.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.nccl.noted import SideFiles
from graphlink.nccl.read.records import Dump, State
from graphlink.pipeline.exchanges import Found
from graphlink.pipeline.records import UNTOLD, Witness

_LATEST: Final = np.iinfo(np.int64).max
_WORDS: Final = ("waiting for the GPU", "waiting for the peer", "on the wire", "waiting for data")


def witness(files: SideFiles, found: Found) -> Witness:
    """Of the exchanges whose calls have proxy steps. O(n log n) in steps."""
    join, split = files.join, files.join.split
    came = np.full(len(join.ops.row), UNTOLD)
    for number, (dump, clock) in enumerate(zip(files.dumps, join.clocks, strict=True)):
        if clock.offset_ns is None:
            continue
        mine = np.flatnonzero(join.dump == number)
        op, at = join.op[mine], _came_ns(dump)[join.call[mine]]
        came[op[at != UNTOLD]] = at[at != UNTOLD] + clock.offset_ns
    row, on_host = join.ops.row[split.op], join.ops.on_host[split.op]
    exchange = np.full(len(row), NOWHERE, np.int64)
    exchange[on_host] = found.of_host[row[on_host]]
    exchange[~on_host] = found.of_device[row[~on_host]]
    kept = np.flatnonzero(exchange != NOWHERE)
    kept = kept[np.argsort(exchange[kept], kind="stable")]
    columns = (split.gpu_ns, split.peer_ns, split.wire_ns, split.receive_ns)
    words = tuple(_in_words(times) for times in zip(*(c[kept].tolist() for c in columns), strict=True))
    return Witness(exchange[kept], came[split.op[kept]], words)


def _came_ns(dump: Dump) -> I64:
    """By call, on the dump's clock: the first end of a step that waited for data, else of one that waited for its peer."""
    steps = dump.steps
    call = dump.proxies.call[steps.proxy]
    out = np.full(len(dump.calls.rank), UNTOLD)
    for state in (State.PEER, State.RECEIVE):
        mine = np.flatnonzero((steps.state == state) & (call != NOWHERE) & (steps.end_ns != 0))
        first = np.full(len(out), _LATEST)
        np.minimum.at(first, call[mine], steps.end_ns[mine])
        out[call[mine]] = first[call[mine]]
    return out


def _in_words(times_ns: tuple[int, ...]) -> str:
    """Those that are not 0, the longest first."""
    some = sorted(((ns, what) for ns, what in zip(times_ns, _WORDS, strict=True) if ns), key=lambda part: -part[0])
    return "NCCL: " + ", ".join(f"{ns / 1e6:,.3f} ms {what}" for ns, what in some) if some else ""
