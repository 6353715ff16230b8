"""``timeline.perfetto-trace``: the graphs of a run as Perfetto shows them (docs/timeline.md says what is on it).

Each rank writes its part of the file with ``write``; ``join`` puts the parts together.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from graphlink import publish
from graphlink.graph.critical import CriticalPath
from graphlink.graph.names import Names
from graphlink.graph.waits import WaitSlices, before_on_thread, wait_slices
from graphlink.model import I32, I64, NOWHERE, Communication, EdgeKind, Graph, Linked, NodeKind
from graphlink.nccl.noted import SideFiles
from graphlink.nccl.tracks import channel_rows
from graphlink.perfetto import packets as perfetto
from graphlink.perfetto.packets import NOTHING_ACROSS, Across, Arg, Flows, Process, Track
from graphlink.perfetto.slices import Slices, flat
from graphlink.perfetto.texts import Texts
from graphlink.pipeline import tracks as pipeline_tracks
from graphlink.pipeline.records import Pipeline
from graphlink.ranks.clocks import onto_run
from graphlink.ranks.group_ids import GroupIds
from graphlink.ranks.records import Clock
from graphlink.report import details
from graphlink.report.tracks import Lanes, lanes_of

NAME: Final = "timeline.perfetto-trace"
PIPELINE_PART: Final = "timeline.pipeline.part"
WAIT: Final = "wait"
PATH: Final = "critical path"
DRAWN: Final = (EdgeKind.LAUNCH, EdgeKind.SYNC, EdgeKind.EVENT, EdgeKind.THREAD, EdgeKind.COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Times:
    """When each node of a graph starts and ends in a replay of it, ns from its start; one entry a node."""

    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of a rank. ``critical`` was found in the replay ``times``; ``beside``: these times too, as rows of their own.

    ``clock``: how the rank's times become the run's. ``across``: arrows to other ranks, ``slice`` being nodes.
    """

    rank: int
    graph: Graph
    linked: Linked
    comm: Communication
    ids: GroupIds
    names: Names
    critical: CriticalPath
    times: Times
    beside: Times | None = None
    clock: Clock | None = None
    across: Across = NOTHING_ACROSS
    nccl: SideFiles | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """How many slices and flows were written, and in how many bytes."""

    slices: int
    flows: int
    size_bytes: int


def write(out: BinaryIO, shown: Shown) -> Written:
    """Writes a rank's part of the timeline to ``out``, which is a whole trace by itself. Cost: O(n log n) in nodes and edges."""
    trace = trace_of(shown)
    size = sum(out.write(block) for block in perfetto.encode(trace))
    return Written(len(trace.slices.track), len(trace.flows.kind), size)


def part_name(rank: int) -> str:
    """Under which name the part of a rank waits for ``join``."""
    return f"timeline.{rank}.part"


def join(folder: Path, ranks: Sequence[int], pipeline: Pipeline | None = None) -> str:
    """Puts the parts of ``ranks`` in ``folder`` together, in this order, and removes them; returns the name of the file.

    What there is of a pipeline comes before them.

    Raises:
        OutputError: it cannot be written.
    """
    first, *others = (folder / part_name(rank) for rank in ranks)
    if pipeline is not None:
        first, others = folder / PIPELINE_PART, [first, *others]
        with publish.writing(first) as out:
            pipeline_tracks.write(out, pipeline)
    with publish.naming(folder / NAME):
        with first.open("ab") as out:
            for path in others:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, out, 1 << 20)
                path.unlink()
        first.rename(folder / NAME)
    return NAME


def trace_of(shown: Shown) -> perfetto.Trace:
    """Slices, rows, arguments and flows of a rank: nodes first, by id, then waits, the critical path, the replay beside, NCCL's
    channels."""
    graph, linked = shown.graph, shown.linked
    n, code, names = len(graph.kind), shown.names.code, (*shown.names.texts, WAIT)
    device_op = graph.kind == NodeKind.DEVICE_OP
    end_ns = np.where(device_op, graph.start_ns + graph.duration_ns, graph.end_ns)  # without what overlaps the next op
    recorded = lanes_of(graph, graph.start_ns, end_ns, process=0, threads=True)
    before = before_on_thread(graph)
    waits = wait_slices(graph, linked, before)
    path_track = len(recorded.tracks)
    parts = [
        _node_slices(graph, recorded, end_ns, code),
        _wait_slices(graph, recorded, waits, before, end_ns, len(names) - 1),
        _path_slices(shown, path_track, code),
    ]
    at = np.cumsum([0, *(len(p.track) for p in parts)]).tolist()
    texts = Texts()
    args = [
        *details.node_args(graph, linked, shown.comm, shown.ids, texts),
        *details.wait_args(waits, linked, at[1], texts),
        *details.path_args(shown.critical, at[2], texts),
    ]
    pid = "" if linked.trace.pid is None else f"pid {linked.trace.pid}"
    processes = [Process(f"rank {shown.rank}", pid)]
    tracks = [*recorded.tracks, Track(0, PATH)]
    if shown.beside is not None:
        start_ns = shown.beside.start_ns + np.minimum(graph.start_delay_ns, shown.beside.end_ns - shown.beside.start_ns)
        replayed = lanes_of(graph, start_ns, shown.beside.end_ns, process=1, threads=False)
        parts.append(_replayed_slices(replayed, start_ns, shown.beside.end_ns, code, len(tracks)))
        processes.append(Process(f"rank {shown.rank} replayed", number=1))
        tracks += replayed.tracks
    count = sum(len(p.track) for p in parts)
    if shown.nccl is not None:
        ended_ns = graph.epoch_ns + int(graph.end_ns.max(initial=0))
        channels = channel_rows(shown.nccl, linked.trace.device, graph.epoch_ns, ended_ns, len(tracks), texts)
        parts.append(_moved(channels.slices, len(tracks), len(names)))
        args += [replace(arg, slice=count + arg.slice) for arg in channels.args]
        tracks += channels.tracks
        names = (*names, *channels.names)
    slices = _on_run_clock(Slices.joined(parts), graph.epoch_ns, shown.clock)
    node = np.concatenate([np.arange(n), shown.critical.node, *([np.arange(n)] if shown.beside else [])]).astype(np.int64)
    has = np.concatenate([np.arange(n), np.arange(at[2], count)])
    return perfetto.Trace(
        rank=shown.rank,
        epoch_ns=graph.epoch_ns,
        processes=tuple(processes),
        tracks=tuple(tracks),
        names=names,
        texts=texts.all(),
        slices=slices,
        args=(Arg("node", has, node), *args),
        flows=_flows(graph),
        across=shown.across,
    )


def _on_run_clock(slices: Slices, epoch_ns: int, clock: Clock | None) -> Slices:
    """Times since ``epoch_ns`` still, but as the run's clock has them. The order in which slices begin and end stays."""
    if clock is None or (clock.offset_ns == 0 and clock.drift == 0):
        return slices
    start_ns, end_ns = (onto_run(clock, column + epoch_ns) - epoch_ns for column in (slices.start_ns, slices.end_ns))
    return replace(slices, start_ns=start_ns, end_ns=end_ns)


def _node_slices(graph: Graph, lanes: Lanes, end_ns: I64, code: I32) -> Slices:
    """A slice a node, by id. Ops lie in their callers, parts in their ops."""
    node = np.arange(len(graph.kind))
    inside = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART)) & (graph.caller != NOWHERE)
    inside[inside] = lanes.track[graph.caller[inside]] == lanes.track[inside]
    parent = np.where(inside, graph.caller, NOWHERE).astype(np.int32)
    return Slices(lanes.track, graph.start_ns, end_ns, 2 * node + 1, parent, code)


def _wait_slices(graph: Graph, lanes: Lanes, waits: WaitSlices, before: I32, end_ns: I64, name: int) -> Slices:
    """In the node that carries the time before the cut; where that one is over, in the op that waited."""
    previous = before[waits.part]
    in_op = (graph.kind[previous] == NodeKind.HOST_PART) & (graph.caller[previous] != NOWHERE)
    until_ns = np.where(in_op, np.minimum(end_ns[previous], end_ns[graph.caller[previous]]), end_ns[previous])  # a part ends with its op
    covers = until_ns >= waits.end_ns
    op = np.where(graph.kind[waits.part] == NodeKind.HOST_PART, graph.caller[waits.part], NOWHERE)
    parent = np.where(covers, previous, op).astype(np.int32)
    codes = np.full(len(waits.part), name, np.int32)
    return Slices(lanes.track[waits.part], waits.start_ns, waits.end_ns, 2 * waits.part.astype(np.int64), parent, codes)


def _path_slices(shown: Shown, track: int, code: I32) -> Slices:
    node, end_ns = shown.critical.node, shown.times.end_ns[shown.critical.node]
    return flat(np.full(len(node), track, np.int32), end_ns - shown.critical.cost_ns, end_ns, code[node])


def _moved(slices: Slices, tracks: int, names: int) -> Slices:
    """``slices`` behind so many tracks and names."""
    return replace(slices, track=slices.track + np.int32(tracks), name=slices.name + np.int32(names))


def _replayed_slices(lanes: Lanes, start_ns: I64, end_ns: I64, code: I32, first_track: int) -> Slices:
    return flat(first_track + lanes.track, start_ns, end_ns, code)


def _flows(graph: Graph) -> Flows:
    """The dependencies that the order of a thread or stream does not show."""
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    drawn = np.isin(graph.edge_kind, DRAWN)
    return Flows(graph.source[drawn].astype(np.int64), target[drawn], graph.edge_kind[drawn])
