"""Makes graphs of more ranks from those of an earlier run: planned here, written by the engine some copies of a rank at
a time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from graphlink import output_names
from graphlink.engine.engines import RunsOn, run_all, session, succeeded
from graphlink.errors import InputError, OutputError, UsageError, log
from graphlink.graph.write_et import write_et
from graphlink.graph_model import SCHEMA_VERSION, Graph, Metadata, NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I64
from graphlink.pipeline.file import load as load_bubbles
from graphlink.pipeline.file import ranges_of, replica
from graphlink.pipeline.graphs import graphs as pipeline_graphs
from graphlink.pipeline.records import Ranges
from graphlink.publish import Publication, write, write_json, writing
from graphlink.ranks.group_ids import MOST as MOST_GROUPS
from graphlink.ranks.group_ids import groups_json
from graphlink.replay.coupled import play_coupled
from graphlink.replay.folder import BYTES_A_BYTE, graph_files, load, load_groups
from graphlink.replay.matching import COLLECTIVE, PLAIN, Matched, matched
from graphlink.replay.workload import Workload, workload
from graphlink.scale.copies import PREFIX, Copied, Copies, CopyTask, copies, unfit, write_copies
from graphlink.scale.layout import Axis, found, required, stated, step_of
from graphlink.scale.longer import RULE, Longer, longer, message_bytes, stage_ranges
from graphlink.scale.play import play
from graphlink.scale.records import MADE, MadeAxis, MadeCollective, MadeCopies, MadePipeline, Scaled
from graphlink.scale.spread import Spread, spreads
from graphlink.scale.transfers import Communication, communication
from graphlink.tables import how_many, tuples
from graphlink.version import __version__

_AT_ONCE: Final = 32  # copies of a rank that one task writes
_FEW: Final = 4
# by which recorded steps may be off when they are played like a longer pipeline, before that is said
_OFF: Final = 0.05
_OWN_BYTES: Final = 150_000_000  # of a process that writes copies
_WRITTEN: Final = 0.5  # of the time in which a graph is read, a copy of it is written
_WHILE_S: Final = 60  # from which on it is said how long it will take


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the larger run is to be. ``data``, ``stages``, ``microbatches``: None as recorded; ``seed``: None for exact
    copies; ``gigabytes_per_s``, ``latency_ns``: None as fitted."""

    data: int | None = None
    stages: int | None = None
    microbatches: int | None = None
    layout: str | None = None
    seed: int | None = 0
    gigabytes_per_s: float | None = None
    latency_ns: float | None = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The graphs of a run that are made more, and how their ranks wait for each other."""

    folder: Path
    paths: dict[int, Path]
    graphs: dict[int, Graph]
    groups: dict[int, tuple[int, ...]]
    work: Workload
    match: Matched
    read_s: float

    @property
    def made(self) -> str:
        """Return what graphs that are made of these say of themselves."""
        return f"{MADE}: from {len(self.graphs)} ranks"

    @property
    def steps(self) -> int:
        """Count the steps; 1 where nothing marks them."""
        return len(np.unique(step_of(self.graphs[0])))

    def axes(self, layout: str | None) -> dict[str, Axis]:
        """Return the axes of the ranks, as given or as found."""
        return stated(layout, len(self.graphs)) if layout else found(self.graphs, self.groups)


def scale(folder: Path, wishes: Wishes, out: Path, runs_on: RunsOn, *, force: bool) -> Scaled:
    """Make the graphs of a larger run in ``out``, all or nothing, and return their summary.

    In memory are the recorded graphs, the times of communication of all copies, and the copies that are being written.

    Raises:
        InputError: the recorded graphs are not all there, or do not tell what becomes of them.
        OutputError: the folder is taken or cannot be written.
        UsageError: the larger run is none, or ``out`` is the folder of the recorded graphs.
    """
    run = _recorded(folder)
    axes = run.axes(wishes.layout)
    if wishes.data is None:
        return _longer(run, axes, wishes, out, force=force)
    if wishes.stages is not None or wishes.microbatches is not None:
        raise UsageError(
            "--data-parallel goes with neither --pipeline nor --microbatches",
            todo="make it longer or wider: graphs of a pipeline that was made longer have no collectives that ranks "
            "beside it could join",
        )
    axis = required(axes, "data")
    made = copies(run.graphs, run.groups, axis, wishes.data)
    _announce(run, made, out)
    comm = communication(run.work, run.match, run.groups, made, (wishes.gigabytes_per_s, wishes.latency_ns))
    drawn = spreads(run.graphs, {rank: int(ranks[0]) for rank, ranks in made.ranks.items()}, axis, wishes.seed)
    ends, predicted_ns = play(run.work, run.match, comm, made, drawn)
    with Publication(out, force=force) as publication, session(runs_on):
        tasks = list(_tasks(run, made, comm, drawn, ends, publication.beside))
        texts = [f"{task.path} as ranks {task.copies[0].rank} to {task.copies[-1].rank}" for task in tasks]
        estimates = [_OWN_BYTES + BYTES_A_BYTE * task.path.stat().st_size for task in tasks]
        nodes = sum(succeeded(run_all(write_copies, tasks, texts, runs_on, estimates, "tasks")))
        names = [output_names.graph(PREFIX, rank) for rank in range(made.world)]
        if made.groups:
            write(publication.beside / output_names.GROUPS, groups_json(made.groups))
            names.append(output_names.GROUPS)
        written = nodes, sorted([*names, output_names.SUMMARY])
        summary = _summary(run, axes, made, comm, wishes.seed, predicted_ns, written)
        write_json(publication.beside / output_names.SUMMARY, summary)
        publication.publish()
    return summary


def data_axis(folder: Path) -> Axis:
    """Return the axis of data parallel ranks of a run.

    Raises:
        InputError: it cannot be told, or the recorded graphs are not all there.
    """
    return required(_recorded(folder).axes(None), "data")


def _longer(run: _Recorded, axes: Mapping[str, Axis], wishes: Wishes, out: Path, *, force: bool) -> Scaled:
    """Make the graphs of one pipeline with other numbers of stages or microbatches, an action a node."""
    lines, told_by, waits_inside = _pipelines(run, axes)
    played = [
        longer(
            line,
            wishes.stages,
            wishes.microbatches,
            None if wishes.seed is None else wishes.seed + k,
            waits_inside=waits_inside,
        )
        for k, line in enumerate(lines)
    ]
    whole = max(played, key=lambda pipeline: pipeline.timed.makespan_ns)
    size = None
    if "pipeline" in axes:
        size = message_bytes(run.graphs, axes["pipeline"], whole.recorded_microbatches * whole.recorded_steps)
    with Publication(out, force=force) as publication:
        nodes, names = 0, [output_names.SUMMARY]
        for graph in pipeline_graphs(whole.orders, whole.timed, whole.times, run.made, size):
            names.append(output_names.graph(PREFIX, graph.metadata.rank or 0))
            nodes += len(graph.name)
            with writing(publication.beside / names[-1]) as file:
                write_et(file, graph)
        summary = _summary_of_pipeline(run, wishes.seed, played, whole, told_by, (nodes, sorted(names)))
        write_json(publication.beside / output_names.SUMMARY, summary)
        publication.publish()
    return summary


def _pipelines(run: _Recorded, axes: Mapping[str, Axis]) -> tuple[list[tuple[Ranges, ...]], str, bool]:
    """Return the forwards and backwards of the stages of each pipeline, what tells them, and whether they may wait
    inside."""
    bubbles = run.folder / output_names.BUBBLES
    if bubbles.exists():
        file = load_bubbles(bubbles)
        every = ranges_of(file)
        replicas = sorted({stage.replica for stage in file.stages})
        lines = [tuple(every[stage] for stage in replica(file, number)) for number in replicas]
        return lines, "the ranges of the recording", not file.definition.sees_device
    axis = required(axes, "pipeline")
    skew = dict(zip(run.graphs, run.match.clock.skew_ns.tolist(), strict=True))
    firsts = [rank for rank in run.graphs if axis.of(rank) == 0]
    stages = [tuple(axis.moved(rank, place, axis.size) for place in range(axis.size)) for rank in firsts]
    lines = [
        tuple(stage_ranges(run.graphs[rank], skew[rank], axis, place, rank) for place, rank in enumerate(ranks))
        for ranks in stages
    ]
    return lines, RULE, False


def _summary_of_pipeline(
    run: _Recorded, seed: int | None, played: Sequence[Longer], whole: Longer, rule: str, written: tuple[int, list[str]]
) -> Scaled:
    """Return the summary of the longest of pipelines, ``whole``. ``written``: nodes and files."""
    recorded, stages = max(pipeline.recorded_makespan_ns for pipeline in played), len(whole.source)
    step_ns = round(_replayed_ns(run) / run.steps)
    rest = step_ns - recorded if run.steps > 1 and step_ns >= recorded else None
    drawn = "the one with the same number (--no-spread)" if seed is None else f"one that is drawn with seed {seed}"
    pipeline = MadePipeline(
        schedule=whole.schedule,
        stages_recorded=max(whole.source) + 1,
        stages=stages,
        microbatches_recorded=whole.recorded_microbatches,
        microbatches=whole.microbatches,
        source=list(whole.source),
        recorded_makespan_ns=recorded,
        played_makespan_ns=max(line.played_makespan_ns for line in played),
        makespan_ns=whole.timed.makespan_ns,
        rest_ns=rest,
        bubble_rate=whole.timed.bubble_ns / max(stages * whole.timed.makespan_ns, 1),
        pipelines=len(played),
        told_by=rule,
    )
    return Scaled(
        source=str(run.folder),
        ranks_recorded=len(run.graphs),
        ranks=stages,
        nodes=written[0],
        axes=[],
        copies=[],
        communicators=0,
        collectives=[],
        pipeline=pipeline,
        seed=seed,
        steps=1,
        recorded_replayed_ns=recorded + (rest or 0),
        predicted_ns=whole.timed.makespan_ns + (rest or 0),
        rule=[],
        assumed=[
            "more stages do what the recorded ones between the first and the last do: the model grows with them",
            f"a forward or backward takes what one of its stage and phase was recorded to take, {drawn}",
            "a transfer takes the least time from the end of a forward or backward to the start of the next stage's "
            "that was recorded",
            "the host is never late: it is in no graph, and neither are collectives; each rank keeps the order of its "
            "schedule",
        ],
        unknown=[
            "whether links between more stages are slower than the recorded ones",
            "whether the memory of a GPU holds the activations of more microbatches in flight",
        ],
        warnings=_off(whole),
        files=written[1],
    )


def _off(whole: Longer) -> list[str]:
    """Warn where the recorded steps, played in the same way, take another time."""
    off = abs(whole.played_makespan_ns / max(whole.recorded_makespan_ns, 1) - 1)
    told = (
        f"the recorded steps played in this way are {100 * off:.0f} % off: what they took is not all in forwards, "
        "backwards and transfers (graphlink bubbles DIR says what else), and a prediction can be as far off"
    )
    return [told] if off > _OFF else []


def _recorded(folder: Path) -> _Recorded:
    paths = graph_files(folder)
    if len(paths) == 1:
        raise InputError(
            "holds the graph of one rank, which tells nothing of others",
            path=folder,
            todo="record all ranks of a run of two or more",
        )
    began_s = time.process_time()
    graphs, groups = load(paths), load_groups(folder)
    read_s = time.process_time() - began_s
    world = max(max(graphs) + 1, *(graph.metadata.world_size or 0 for graph in graphs.values()))
    if world > len(graphs):
        raise InputError(
            f"has graphs of {len(graphs):,} ranks of {world:,}: what the others do is not known",
            path=folder,
            todo="record and link all ranks into one folder",
        )
    for rank, graph in graphs.items():
        why = unfit(graph, rank, graphs.keys(), groups)
        if why is not None:
            raise InputError(
                why,
                path=paths[rank],
                todo="name the folder of a recording that graphlink linked; graphlink check DIR says more",
            )
    work = workload(graphs)
    return _Recorded(folder, paths, graphs, groups, work, matched(work, groups), read_s)


def _announce(run: _Recorded, made: Copies, out: Path) -> None:
    """Tell how large the copies will be and how long it will take, where that is long.

    Raises:
        OutputError: there is no room for them.
    """
    needed = sum(path.stat().st_size * len(made.ranks[rank]) for rank, path in run.paths.items())
    place = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    size = f"{made.world:,} graphs take about {needed / 1e9:,.1f} GB"
    if needed > free:
        raise OutputError(
            f"{size}, and {free / 1e9:,.1f} GB are free", path=out, todo="ask for fewer ranks, or make room"
        )
    if (seconds := _WRITTEN * run.read_s * made.world / len(run.graphs)) > _WHILE_S:
        log.warning("%s and %.0f min of a core", size, seconds / 60)


def _tasks(
    run: _Recorded, made: Copies, comm: Communication, drawn: Mapping[int, Spread], ends: Mapping[int, I64], out: Path
) -> Iterator[CopyTask]:
    """Yield the work on all copies."""
    work, match = run.work, run.match
    origin_ns = match.clock.origin_ns or 0
    metadata = Metadata(SCHEMA_VERSION, __version__, origin_ns, world_size=made.world, made=run.made)
    # above the number of collectives of all ranks, as in ``ranks.group_ids.first_id``
    first_id = made.world * max(how_many(one.type == NodeType.COMM_COLL) for one in run.graphs.values())
    for k, (rank, path) in enumerate(run.paths.items()):
        own = slice(*work.bounds[k])
        waits = np.flatnonzero(match.code[own] != PLAIN)
        end_ns = np.array([ends[own.start + node] for node in waits.tolist()], np.int64).reshape(len(waits), -1)
        who = _copied(run, made, rank)
        for low in range(0, len(who), _AT_ONCE):
            yield CopyTask(
                graph=run.graphs[rank],
                path=path,
                out=out,
                copies=tuple(who[low : low + _AT_ONCE]),
                spread=drawn[rank],
                took_ns=comm.took_ns[own],
                size_bytes=comm.size_bytes[own],
                waits=waits,
                end_ns=end_ns[:, low : low + _AT_ONCE],
                begin_ns=int(match.clock.begin_ns[k]),
                metadata=metadata,
                first_id=first_id,
            )


def _copied(run: _Recorded, made: Copies, rank: int) -> list[Copied]:
    """Return the copies of a rank."""
    graph = run.graphs[rank]
    message = np.isin(graph.type, (NodeType.COMM_SEND, NodeType.COMM_RECV))
    ends = np.unique(np.append(graph.comm_src[message], graph.comm_dst[message])).tolist()
    peers = {peer: made.ranks[peer].tolist() for peer in {rank, *ends} & made.ranks.keys()}
    groups = {group: numbers.tolist() for (group, of), numbers in made.numbers.items() if of == rank}
    return [
        Copied(
            rank=number,
            groups={group: numbers[k] for group, numbers in groups.items()},
            peers={peer: numbers[k] for peer, numbers in peers.items()},
        )
        for k, number in enumerate(made.ranks[rank].tolist())
    ]


def _summary(
    run: _Recorded,
    axes: Mapping[str, Axis],
    made: Copies,
    comm: Communication,
    seed: int | None,
    predicted_ns: int,
    written: tuple[int, list[str]],
) -> Scaled:
    """Return the summary of copies. ``written``: nodes and files."""
    collectives = list(_collectives(run, comm))
    many = f"{len(made.groups):,} communicators: ASTRA-sim means ids up to {MOST_GROUPS} to be used"
    shards = any(one.type == "ALL_GATHER" and one.bytes_made != one.bytes_recorded for one in collectives)
    return Scaled(
        source=str(run.folder),
        ranks_recorded=len(run.graphs),
        ranks=made.world,
        nodes=written[0],
        axes=[
            MadeAxis(
                name=name,
                recorded=axis.size,
                made=made.size if name == "data" else axis.size,
                stride=axis.stride,
                why=axis.why,
            )
            for name, axis in axes.items()
        ],
        copies=[
            MadeCopies(recorded=rank, copies=len(ranks), ranks=ranks[:_FEW].tolist())
            for rank, ranks in made.ranks.items()
        ],
        communicators=len(made.groups),
        collectives=collectives,
        seed=seed,
        steps=run.steps,
        recorded_replayed_ns=_replayed_ns(run),
        predicted_ns=predicted_ns,
        rule=list(comm.rule.why),
        assumed=_assumed(collectives, seed, shards=shards),
        unknown=[
            "whether links are shared or slower between more machines: --bandwidth and --latency set what a collective "
            "gets",
            "slower ranks than any that was recorded, and failures",
            *["the time of optimizers on smaller shards, and of kernels that unpack gathered parameters: as recorded"]
            * shards,
        ],
        warnings=[many] if len(made.groups) > MOST_GROUPS else [],
        files=written[1],
    )


def _collectives(run: _Recorded, comm: Communication) -> Iterator[MadeCollective]:
    """Yield what becomes of the collectives of rank 0 that change."""
    work, match, (recorded, now) = run.work, run.match, comm.members
    kind, group, size = work.column("comm_type"), work.column("group"), work.column("comm_size")
    of_rank = np.unique(match.partner[(match.code == COLLECTIVE) & (work.member == 0)])
    node = comm.first[of_rank]
    for g, t in sorted(set(tuples(group[node], kind[node]))):
        same = (group[node] == g) & (kind[node] == t)
        if recorded[g] != now[g]:
            yield MadeCollective(
                type=CollectiveType(t).name if t in set(CollectiveType) else f"type {t}",
                recorded=recorded[g],
                made=now[g],
                count=how_many(same),
                bytes_recorded=int(size[node[same]].sum()),
                bytes_made=int(comm.size_bytes[node[same]].sum()),
                ns_recorded=int(comm.recorded_ns[of_rank[same]].sum()),
                ns_made=int(comm.now_ns[of_rank[same]].sum()),
            )


def _replayed_ns(run: _Recorded) -> int:
    return play_coupled(run.work, run.match).total_ns


def _assumed(collectives: Sequence[MadeCollective], seed: int | None, *, shards: bool) -> list[str]:
    gathered = (
        "what is gathered in communicators that also scatter gradients is parameters: a rank has a smaller shard of "
        "them"
    )
    exchanged = (
        "in exchanges of all with all a rank sends and receives as many bytes as recorded, to and from more ranks"
    )
    return [
        "each rank has as much data a step as recorded: the whole batch grows with the ranks",
        "sums of gradients have as many bytes as recorded",
        *[gathered] * shards,
        *[exchanged] * any(one.type == "ALL_TO_ALL" for one in collectives),
        "copies take exactly what the recorded rank took (--no-spread)"
        if seed is None
        else f"ops of copies take what ranks of their role were recorded to take, drawn with seed {seed}",
    ]
