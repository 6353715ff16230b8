"""The rows of a timeline: a thread, a stream, and lanes for what runs beside both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, Graph, NodeKind
from graphlink.pairs import numbered_pairs
from graphlink.perfetto.packets import Track
from graphlink.perfetto.slices import lanes

_NESTING: Final = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_GAP, NodeKind.END)
_DEVICE: Final = (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY)
_LONGEST_TID: Final = 1 << 31  # Perfetto keeps 32 bits of a thread's id; 0 is its idle thread


@dataclass(frozen=True, slots=True)
class Lanes:
    """``track``: for each node its row in ``tracks``."""

    tracks: list[Track]
    track: I32


def lanes_of(graph: Graph, start_ns: I64, end_ns: I64, *, process: int, threads: bool) -> Lanes:
    """The rows on which nodes lie at these times. ``threads``: as threads of the process, else as rows with the thread's name.

    Ranges that cross others (asynchronous ones, host communication) are put on as many rows as they need, all of one name.
    """
    tracks: list[Track] = []
    track = np.full(len(graph.kind), -1, np.int32)
    main = set(graph.tid[graph.kind == NodeKind.END].tolist())

    def add(node: I64, of: I64, names: list[str], tids: list[int] | None = None) -> None:
        """Rows for ``node``s, of which each belongs on the one that ``of`` says."""
        track[node] = len(tracks) + of
        for i, name in enumerate(names):
            tid = tids[i] if tids else None
            is_thread = threads and tid is not None and 0 < tid < _LONGEST_TID
            full = name if is_thread or tid is None else f"{name} {tid}"
            tracks.append(Track(process, full, tid if is_thread else None, order=1 + len(tracks)))

    node = np.flatnonzero(np.isin(graph.kind, _NESTING))
    tids, of = np.unique(graph.tid[node], return_inverse=True)
    add(node, of.reshape(-1), ["main" if tid in main else "thread" for tid in tids.tolist()], tids.tolist())
    node = np.flatnonzero(np.isin(graph.kind, _DEVICE))
    streams, of = numbered_pairs(graph.device[node], graph.stream[node])
    add(node, of, [f"GPU {device} stream {stream}" for device, stream in streams])
    for kind, label, group in (
        (NodeKind.HOST_ASYNC, "asynchronous, thread {}", graph.tid),
        (NodeKind.HOST_COMM, "host communication", np.zeros(len(graph.kind), np.int64)),
    ):
        node = np.flatnonzero(graph.kind == kind)
        rows, of = numbered_pairs(group[node], lanes(start_ns[node], end_ns[node], group[node]))
        add(node, of, [label.format(row[0]) for row in rows])
    return Lanes(tracks, track)
