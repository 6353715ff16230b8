"""``timeline.perfetto-trace``: the graphs of a run as Perfetto shows them (docs/timeline.md says what is on it).

Each rank writes its part of the file with ``write``; ``join`` puts the parts together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from graphlink import output_names, publish
from graphlink.depend.cuda import EVENT_NS
from graphlink.graph.critical import SHARES, CriticalChain
from graphlink.graph.path_file import Explained
from graphlink.graph.target import comm_nodes
from graphlink.graph.waits import WaitSlices, before_on_thread, last_source, wait_slices
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind, CommOps, Communication, Linked
from graphlink.perfetto import packets as perfetto
from graphlink.perfetto.packets import NO_ARROWS, SUMMARY, Arg, Arrows, Process, Rows, Track
from graphlink.perfetto.slices import Slices, flat, lanes
from graphlink.ranks.group_ids import GroupIds
from graphlink.ranks.records import AlignedClock
from graphlink.records import share_word
from graphlink.replay.machines import IdealReplay
from graphlink.tables import among, concat, numbered_rows, numbered_values, spread

WAIT: Final = "wait"
PATH: Final = "critical path"
UNEXPLAINED: Final = "nothing recorded explains it"
_NESTING: Final = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_GAP, NodeKind.END)
_LONGEST_TID: Final = 1 << 31  # Perfetto keeps 32 bits of a thread's id; 0 is its idle thread
DRAWN: Final = (EdgeKind.LAUNCH, EdgeKind.SYNC, EdgeKind.EVENT, EdgeKind.THREAD, EdgeKind.COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Shown:
    """A rank to be shown: its graph, what was ``found`` in the replay ``played``, that replay ``beside`` in rows of its
    own, the rows of wings, and the number of its machine (``node``) where names of files tell it.

    ``ids`` of its communicators, ``clock`` and arrows ``across`` ranks where they were joined, recorded on so many
    ``hosts``.
    """

    rank: int
    graph: Graph
    linked: Linked
    comm: Communication
    found: Explained
    played: IdealReplay
    ids: GroupIds
    clock: AlignedClock | None = None
    across: Arrows = NO_ARROWS
    hosts: int = 0
    beside: bool = False
    features: Sequence[Rows] = ()
    node: int | None = None

    @property
    def group(self) -> str:
        """Return the name of its group of rows: ``node 1 (host7) rank 12``, of a run on one machine ``rank 12``."""
        host = self.linked.trace.host_name
        known = [f"node {self.node}", f"({host})" * bool(host)] if self.node is not None else [host * (self.hosts > 1)]
        return " ".join(filter(None, (*known, f"rank {self.rank}")))


def write(out: BinaryIO, shown: Shown) -> int:
    """Write a rank's part of the timeline to ``out``, a whole trace by itself; return its size in bytes. O(n log n) in
    nodes and edges.
    """
    return sum(out.write(block) for block in perfetto.encode(trace_of(shown)))


def part_name(rank: int) -> str:
    """Return the name under which the part of a rank waits for ``join``."""
    return f"timeline.{rank}.part"


def join(folder: Path, ranks: Sequence[int], first: Iterable[Callable[[BinaryIO], bool]] = ()) -> str:
    """Put the parts of ``ranks`` in ``folder`` together, in this order, and remove them; return the name of the file.

    ``first`` write what stands before them, and tell whether it is anything.

    Raises:
        OutputError: it cannot be written.
    """
    parts = [folder / part_name(rank) for rank in ranks]
    for k, write_rows in enumerate(first):
        ahead = folder / f"timeline.wing{k}.part"
        with publish.writing(ahead) as out:
            any_rows = write_rows(out)
        if any_rows:
            parts.insert(0, ahead)
        else:
            ahead.unlink()
    with publish.naming(folder / output_names.TIMELINE):
        with parts[0].open("ab") as out:
            for path in parts[1:]:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, out, 1 << 20)
                path.unlink()
        parts[0].rename(folder / output_names.TIMELINE)
    return output_names.TIMELINE


def trace_of(shown: Shown) -> perfetto.PerfettoTrace:
    """Collect slices, rows, arguments and flows of a rank: nodes first, by id, then waits, the critical path, the
    replay next to them, the rows of features."""
    graph, linked = shown.graph, shown.linked
    n, names = len(graph.kind), (*graph.strings, WAIT)
    whole_ns = graph.start_ns + graph.duration_ns
    end_ns = np.where(graph.kind == NodeKind.DEVICE_OP, whole_ns, graph.end_ns)  # without what overlaps the next op
    tracks, row = _rows_of(graph, graph.start_ns, end_ns, process=0, threads=True)
    before = before_on_thread(graph)
    waits = wait_slices(graph, linked, before)
    tracks.append(Track(0, PATH, order=SUMMARY - 1))
    parts = [
        _node_slices(graph, row, end_ns),
        _wait_slices(graph, row, waits, before, end_ns, len(names) - 1),
        _path_slices(shown, len(tracks) - 1),
    ]
    at = np.cumsum([0, *(len(p.track) for p in parts)]).tolist()
    args = [
        *_node_args(graph, linked, shown.comm, shown.ids),
        *_wait_args(waits, graph, linked, at[1]),
        *_path_args(shown.found.path, at[2]),
    ]
    where = [linked.trace.host_name, "" if linked.trace.pid is None else f"pid {linked.trace.pid}"]
    processes = [Process(shown.group, ", ".join(filter(None, where)))]
    if shown.beside:
        played = shown.played
        start_ns = played.start_ns + np.minimum(graph.start_delay_ns, played.end_ns - played.start_ns)
        more, row = _rows_of(graph, start_ns, played.end_ns, process=1, threads=False)
        parts.append(flat(len(tracks) + row, start_ns, played.end_ns, graph.name))
        processes.append(Process(f"{shown.group} replayed", number=1))
        tracks += more
    count = sum(len(p.track) for p in parts)
    made = count
    for rows in shown.features:
        slices = rows.slices
        parts.append(
            replace(slices, track=slices.track + np.int32(len(tracks)), name=slices.name + np.int32(len(names)))
        )
        args += [replace(arg, slice=made + arg.slice) for arg in rows.args]
        tracks += [replace(track, order=track.order or 1 + len(tracks) + k) for k, track in enumerate(rows.tracks)]
        names, made = (*names, *rows.names), made + len(slices.track)
    slices = concat(*parts)
    start_ns, end_ns = (_on_run_clock(shown, ns) for ns in (slices.start_ns, slices.end_ns))
    counters = [(name, _on_run_clock(shown, ns), value) for rows in shown.features for name, ns, value in rows.counters]
    node = np.concatenate([np.arange(n), shown.found.path.node, *([np.arange(n)] if shown.beside else [])]).astype(
        np.int64
    )
    has = np.concatenate([np.arange(n), np.arange(at[2], count)])
    return perfetto.PerfettoTrace(
        rank=shown.rank,
        epoch_ns=graph.epoch_ns,
        processes=tuple(processes),
        tracks=tuple(tracks),
        names=names,
        slices=replace(slices, start_ns=start_ns, end_ns=end_ns),
        args=(Arg("node", has, graph.first_id + node), *args),
        arrows=concat(_arrows(graph, shown.rank), shown.across),
        counters=tuple(counters),
    )


def _on_run_clock(shown: Shown, ns: I64) -> I64:
    """Convert times to the run's clock, still since the epoch of the graph. Their order stays."""
    clock, epoch_ns = shown.clock, shown.graph.epoch_ns
    return ns if clock is None or (clock.offset_ns == 0 and clock.drift == 0) else clock.of(ns + epoch_ns) - epoch_ns


def _node_slices(graph: Graph, row: I32, end_ns: I64) -> Slices:
    """Return a slice per node, by id. Ops lie in their callers, parts in their ops."""
    node = np.arange(len(graph.kind))
    inside = among(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART)) & (graph.caller != NOWHERE)
    inside[inside] = row[graph.caller[inside]] == row[inside]
    parent = np.where(inside, graph.caller, NOWHERE).astype(np.int32)
    return Slices(row, graph.start_ns, end_ns, 2 * node + 1, parent, graph.name)


def _wait_slices(graph: Graph, row: I32, waits: WaitSlices, before: I32, end_ns: I64, name: int) -> Slices:
    """Return the slices of waits: in the node that carries the time before the cut; where that one is over, in the op
    that waited.
    """
    previous = before[waits.part]
    in_op = (graph.kind[previous] == NodeKind.HOST_PART) & (graph.caller[previous] != NOWHERE)
    until_ns = np.where(
        in_op, np.minimum(end_ns[previous], end_ns[graph.caller[previous]]), end_ns[previous]
    )  # a part ends with its op
    covers = until_ns >= waits.end_ns
    op = np.where(graph.kind[waits.part] == NodeKind.HOST_PART, graph.caller[waits.part], NOWHERE)
    parent = np.where(covers, previous, op).astype(np.int32)
    codes = np.full(len(waits.part), name, np.int32)
    return Slices(row[waits.part], waits.start_ns, waits.end_ns, 2 * waits.part.astype(np.int64), parent, codes)


def _path_slices(shown: Shown, track: int) -> Slices:
    node, end_ns = shown.found.path.node, shown.played.end_ns[shown.found.path.node]
    return flat(np.full(len(node), track, np.int32), end_ns - shown.found.path.cost_ns, end_ns, shown.graph.name[node])


def _arrows(graph: Graph, rank: int) -> Arrows:
    """Return the dependencies that the order of a thread or stream does not show."""
    target = graph.target
    drawn = among(graph.edge_kind, DRAWN)
    return perfetto.arrows(rank, graph.source[drawn].astype(np.int64), target[drawn], graph.edge_kind[drawn])


def _rows_of(graph: Graph, start_ns: I64, end_ns: I64, *, process: int, threads: bool) -> tuple[list[Track], I32]:
    """Return the rows on which nodes lie at these times, and of each node its row.

    ``threads``: as threads of the process, else as rows with the thread's name. Ranges that cross others (asynchronous
    ones, host communication) are put on as many rows as they need, all of one name.
    """
    tracks: list[Track] = []
    track = np.full(len(graph.kind), -1, np.int32)
    main = set(graph.tid[graph.kind == NodeKind.END].tolist())

    def add(node: I64, of: I64, names: list[str], tids: list[int] | None = None) -> None:
        """Add rows for ``node``s, of which each belongs on the one that ``of`` says."""
        track[node] = len(tracks) + of
        for i, name in enumerate(names):
            tid = tids[i] if tids else None
            is_thread = threads and tid is not None and 0 < tid < _LONGEST_TID
            full = name if is_thread or tid is None else f"{name} {tid}"
            tracks.append(Track(process, full, tid if is_thread else None, order=1 + len(tracks)))

    node = np.flatnonzero(among(graph.kind, _NESTING))
    tids, of = numbered_values(graph.tid[node])
    add(node, of, ["main" if tid in main else "thread" for tid in tids.tolist()], tids.tolist())
    for kind, which in (
        (NodeKind.DEVICE_OP, ""),
        (NodeKind.DEVICE_DELAY, " late starts"),
    ):  # apart, so that an idle stream looks idle
        node = np.flatnonzero(graph.kind == kind)
        streams, of = numbered_rows(graph.device[node], graph.stream[node])
        named = [f"GPU {device} stream {stream}" if device >= 0 else "host" for device, stream in streams.tolist()]
        add(node, of, [text + which for text in named])
    for kind, label, group in (
        (NodeKind.HOST_ASYNC, "asynchronous, thread {}", graph.tid),
        (NodeKind.HOST_COMM, "host communication", np.zeros(len(graph.kind), np.int64)),
    ):
        node = np.flatnonzero(graph.kind == kind)
        rows, of = numbered_rows(group[node], lanes(start_ns[node], end_ns[node], group[node]))
        add(node, of, [label.format(row[0]) for row in rows.tolist()])
    return tracks, track


def _node_args(graph: Graph, linked: Linked, comm: Communication, ids: GroupIds) -> list[Arg]:
    """Return the arguments of nodes, whose slices have their ids: those of device ops and communication. O(nodes)."""
    device = linked.trace.device
    op = graph.nodes_of(NodeKind.DEVICE_OP)
    row = graph.row[op]
    every = np.arange(len(graph.kind))
    args = [
        *_late_args(graph, linked, spread(len(device.start_ns), row, op)),
        Arg.known("correlation", op, device.correlation[row], 0),
        Arg.known("bytes", op, device.bytes[row], 0),
        Arg.known("start_delay_ns", every, graph.start_delay_ns, 0),
        Arg.known("overlap_ns", every, graph.overlap_ns, 0),
    ]
    return [*args, *_comm_args(comm_nodes(graph, comm.ops), comm.ops, linked.trace.rank, ids)]


def _late_args(graph: Graph, linked: Linked, node_of: I32 | I64) -> list[Arg]:
    """Return the arguments of delays: the op that began late, and what is known of what it waited for; ``node_of``: of
    device rows.
    """
    late, device, strings = (
        graph.nodes_of(NodeKind.DEVICE_DELAY),
        linked.trace.device,
        linked.trace.strings,
    )
    op = graph.row[late]
    texts = {UNEXPLAINED: 0}
    code = []
    after = _ended_right_before(linked, op, graph.start_ns[late] + graph.epoch_ns)
    for mine, row in zip(op.tolist(), after.tolist(), strict=True):
        text = UNEXPLAINED
        if row != NOWHERE:
            gpu = f"GPU {device.device[row]} " * bool(device.device[row] != device.device[mine])
            text += f"; began right after {strings[device.name[row]]} of {gpu}stream {device.stream[row]}"
        code.append(texts.setdefault(text, len(texts)))
    return [
        Arg("delays", late, graph.name[node_of[op]].astype(np.int64), graph.strings),
        Arg("waited_for", late, np.array(code, np.int64), [*texts]),
    ]


def _ended_right_before(linked: Linked, op: I32, since_ns: I64) -> I64:
    """Return for each device row ``op`` the one of another stream that ended last since then, and right before it
    began; ``NOWHERE`` for none. O(n log n + ops x what ends within 30 us)."""
    device = linked.trace.device
    by_end = np.argsort(device.end_ns, kind="stable")
    end_ns, begin_ns = device.end_ns[by_end], device.start_ns[op]
    last = np.searchsorted(end_ns, begin_ns, side="right")
    first = np.searchsorted(end_ns, np.maximum(begin_ns - EVENT_NS, since_ns))
    out = np.full(len(op), NOWHERE, np.int64)
    for k, (mine, low, high) in enumerate(zip(op.tolist(), first.tolist(), last.tolist(), strict=True)):
        near = by_end[low:high]
        others = near[(device.stream[near] != device.stream[mine]) | (device.device[near] != device.device[mine])]
        out[k] = others[-1] if len(others) else NOWHERE
    return out


def _comm_args(node: I32, ops: CommOps, rank: int | None, ids: GroupIds) -> list[Arg]:
    """Return the communication arguments of ops, whose slices have the ids of their nodes; ``rank``: as recorded."""
    order = np.lexsort((node, ops.on_host))
    order = order[node[order] != NOWHERE]
    slices, kind, peer = node[order].astype(np.int64), ops.kind[order], ops.peer[order]
    group = np.array([*(ids.get(key, NOWHERE) for key in ops.groups), NOWHERE], np.int64)[ops.group[order]]
    message, sends, own = (
        np.isin(kind, (CommKind.SEND, CommKind.RECV)),
        kind == CommKind.SEND,
        NOWHERE if rank is None else rank,
    )
    src, dst = np.where(sends, own, peer), np.where(sends, peer, own)

    def known(name: str, value: I64, there: Bool) -> Arg:
        return Arg(name, slices[there], value[there])

    return [
        Arg("comm", slices, np.arange(len(order)), [ops.names[k] for k in ops.name[order].tolist()]),
        Arg("comm_size", slices, ops.bytes[order]),
        known("group", group, group != NOWHERE),
        known("comm_src", src, message & (src != NOWHERE)),
        known("comm_dst", dst, message & (dst != NOWHERE)),
        known("comm_tag", ops.tag[order], message),
    ]


def _wait_args(waits: WaitSlices, graph: Graph, linked: Linked, first: int) -> list[Arg]:
    """Return the arguments of waits, whose slices begin at ``first``: the call that waited, and the last op that it
    waited for.
    """
    made = np.flatnonzero(waits.call != NOWHERE)
    codes, which = numbered_values(linked.trace.calls.name[waits.call[made]])
    awaited = last_source(graph, waits.part, (EdgeKind.SYNC,))
    known = np.flatnonzero(awaited != NOWHERE)
    return [
        Arg("call", first + made, which, [linked.trace.strings[code] for code in codes.tolist()]),
        Arg("waited_for", first + known, graph.name[awaited[known]].astype(np.int64), graph.strings),
    ]


def _path_args(critical: CriticalChain, first: int) -> list[Arg]:
    """Return the arguments of the critical path, whose slices begin at ``first``: what delayed each node, and what its
    time counts as.
    """
    slices = first + np.arange(len(critical.node))
    held = np.flatnonzero(critical.edge != NOWHERE)
    kinds = [k.name.lower() for k in EdgeKind]
    return [
        Arg("held_by", slices[held], critical.edge[held], kinds),
        Arg("held_from", slices[held], critical.node[held - 1].astype(np.int64)),
        Arg("share", slices, critical.share, [share_word(name) for name in SHARES]),
    ]
