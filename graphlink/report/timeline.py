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
from graphlink.graph.path_file import Explained
from graphlink.graph.waits import WaitSlices, before_on_thread, wait_slices
from graphlink.model import I32, I64, NOWHERE, Column, Communication, EdgeKind, Graph, Linked, NodeKind
from graphlink.nccl.noted import SideFiles
from graphlink.nccl.tracks import channel_rows
from graphlink.perfetto import packets as perfetto
from graphlink.perfetto.packets import NOTHING_ACROSS, Across, Arg, Flows, Process, Texts, Track
from graphlink.perfetto.slices import Slices, flat
from graphlink.pipeline import tracks as pipeline_tracks
from graphlink.pipeline.analyse import RankPipeline
from graphlink.pipeline.records import Pipeline
from graphlink.ranks.clocks.align import onto_run
from graphlink.ranks.group_ids import GroupIds
from graphlink.ranks.records import Clock
from graphlink.records import Short
from graphlink.replay.ideal import Replay
from graphlink.report import details
from graphlink.report.tracks import Lanes, lanes_of

NAME: Final = "timeline.perfetto-trace"
PIPELINE_PART: Final = "timeline.pipeline.part"
WAIT: Final = "wait"
PATH: Final = "critical path"
NO_COLUMN: Final = Column(np.zeros(0, np.int64), np.zeros(0, np.int64))
DRAWN: Final = (EdgeKind.LAUNCH, EdgeKind.SYNC, EdgeKind.EVENT, EdgeKind.THREAD, EdgeKind.COLLECTIVE)


@dataclass(frozen=True, slots=True, repr=False)
class Joined(Short):
    """The part of a run's analysis that the files of one rank are written with.

    ``ids`` holds every communicator of ``Prepared.plan.groups``. Of nodes: ``unmatched`` have no counterpart, ``size_bytes`` is that on
    all ranks where they differed, ``wait_ns`` how long a node ran until the last rank came, ``across`` are the arrows between ranks.
    """

    ids: GroupIds
    world_size: int
    clock: Clock | None = None
    unmatched: I32 | None = None
    size_bytes: Column = NO_COLUMN
    wait_ns: Column = NO_COLUMN
    across: Across = NOTHING_ACROSS
    pipeline: RankPipeline | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A rank to be shown: its graph, what was ``found`` in the replay ``played``, and that replay ``beside`` in rows of its own."""

    rank: int
    graph: Graph
    linked: Linked
    comm: Communication
    joined: Joined
    found: Explained
    played: Replay
    beside: bool = False
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
    n, code, names = len(graph.kind), shown.found.names.code, (*shown.found.names.texts, WAIT)
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
        *details.node_args(graph, linked, shown.comm, shown.joined.ids, texts),
        *details.wait_args(waits, linked, at[1], texts),
        *details.path_args(shown.found.path, at[2], texts),
    ]
    pid = "" if linked.trace.pid is None else f"pid {linked.trace.pid}"
    processes = [Process(f"rank {shown.rank}", pid)]
    tracks = [*recorded.tracks, Track(0, PATH)]
    if shown.beside:
        played = shown.played
        start_ns = played.start_ns + np.minimum(graph.start_delay_ns, played.end_ns - played.start_ns)
        replayed = lanes_of(graph, start_ns, played.end_ns, process=1, threads=False)
        parts.append(flat(len(tracks) + replayed.track, start_ns, played.end_ns, code))
        processes.append(Process(f"rank {shown.rank} replayed", number=1))
        tracks += replayed.tracks
    count = sum(len(p.track) for p in parts)
    if shown.nccl is not None:
        ended_ns = graph.epoch_ns + int(graph.end_ns.max(initial=0))
        channels = channel_rows(shown.nccl, linked.trace.device, graph.epoch_ns, ended_ns, len(tracks), texts)
        slices = channels.slices
        parts.append(replace(slices, track=slices.track + np.int32(len(tracks)), name=slices.name + np.int32(len(names))))
        args += [replace(arg, slice=count + arg.slice) for arg in channels.args]
        tracks += channels.tracks
        names = (*names, *channels.names)
    slices = _on_run_clock(Slices.joined(parts), graph.epoch_ns, shown.joined.clock)
    node = np.concatenate([np.arange(n), shown.found.path.node, *([np.arange(n)] if shown.beside else [])]).astype(np.int64)
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
        across=shown.joined.across,
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
    node, end_ns = shown.found.path.node, shown.played.end_ns[shown.found.path.node]
    return flat(np.full(len(node), track, np.int32), end_ns - shown.found.path.cost_ns, end_ns, code[node])


def _flows(graph: Graph) -> Flows:
    """The dependencies that the order of a thread or stream does not show."""
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    drawn = np.isin(graph.edge_kind, DRAWN)
    return Flows(graph.source[drawn].astype(np.int64), target[drawn], graph.edge_kind[drawn])
