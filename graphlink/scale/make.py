"""Makes graphs of more ranks from those of an earlier run: planned here, written by the engine some copies of a rank at
a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from graphlink import output_names
from graphlink.engine.engines import RunsOn, run_all, session
from graphlink.errors import GraphlinkError, InputError, UsageError
from graphlink.graph.read_et import read_et
from graphlink.graph.write_et import read_rests, write_changed, write_et
from graphlink.graph_model import NO_GROUP, SCHEMA_VERSION, Graph, Metadata, NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I64
from graphlink.pipeline.file import load as load_bubbles
from graphlink.pipeline.file import ranges_of, replica
from graphlink.pipeline.graphs import graphs
from graphlink.publish import Publication, write, write_json, writing
from graphlink.ranks.group_ids import MOST as MOST_GROUPS
from graphlink.replay.folder import graph_files, load, load_groups
from graphlink.replay.matching import COLLECTIVE, PLAIN, Matched, matched, shortest_ns
from graphlink.replay.network import transfers
from graphlink.replay.workload import Workload, workload
from graphlink.scale.copies import Copies, copies, unfit
from graphlink.scale.copy import Copied, copied
from graphlink.scale.layout import Axis, found, required, stated, step_of
from graphlink.scale.longer import Longer, longer
from graphlink.scale.play import Costs, PlayedCopies, alone, costs, play
from graphlink.scale.records import MADE, MadeAxis, MadeCollective, MadeCopies, MadePipeline, Scaled
from graphlink.scale.spread import Spread, spreads
from graphlink.scale.stages import message_bytes, stage_ranges
from graphlink.scale.transfers import Rule, fit, grown_bytes, of_growing
from graphlink.version import __version__

PREFIX: Final = "trace"
_AT_ONCE: Final = 32  # copies of a rank that one task writes
_FEW: Final = 4
_OFF: Final = (
    0.05  # by which recorded steps may be off when they are played like a longer pipeline, before that is said
)
_OWN_BYTES: Final = 150_000_000  # of a process that writes copies
_BYTES_A_BYTE: Final = 20  # of a graph, for each byte of its file


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
    """The graphs of a run that are made more, and how their ranks meet."""

    folder: Path
    paths: dict[int, Path]
    graphs: dict[int, Graph]
    groups: dict[int, tuple[int, ...]]
    work: Workload
    match: Matched


@dataclass(frozen=True, slots=True)
class _Task:
    """Some copies of one recorded rank, and where to write them. ``took_ns``: of communication, ``NOWHERE`` elsewhere;
    ``size_bytes``: of all nodes; ``meets``: nodes whose ``end_ns`` on each copy is known."""

    path: Path
    out: Path
    copies: tuple[Copied, ...]
    spread: Spread
    moved: I64
    took_ns: I64
    size_bytes: I64
    meets: I64
    end_ns: I64
    begin_ns: int
    metadata: Metadata


def scale(folder: Path, wishes: Wishes, out: Path, runs_on: RunsOn, *, force: bool) -> Scaled:
    """Make the graphs of a larger run in ``out``, all or nothing, and return their summary.

    In memory are the recorded graphs, the times of communication of all copies, and the copies that are being written.

    Raises:
        InputError: the recorded graphs are not all there, or do not tell what becomes of them.
        OutputError: the folder is taken or cannot be written.
        UsageError: the larger run is none, or ``out`` is the folder of the recorded graphs.
    """
    run = _recorded(folder)
    axes = _axes(run, wishes.layout)
    if wishes.data is None:
        return _longer(run, axes, wishes, out, force=force)
    if wishes.stages is not None or wishes.microbatches is not None:
        todo = (
            "make it longer or wider: graphs of a pipeline that was made longer have no collectives that ranks "
            "beside it could join"
        )
        raise UsageError("--data-parallel goes with neither --pipeline nor --microbatches", todo=todo)
    axis = required(axes, "data")
    made = copies(run.graphs, run.groups, axis, wishes.data)
    changes = _Changes(run, made, wishes)
    drawn = spreads(run.graphs, {rank: int(ranks[0]) for rank, ranks in made.ranks.items()}, axis, wishes.seed)
    played = play(run.work, run.match, changes.costs, made, drawn)
    with Publication(out, force=force) as publication, session(runs_on):
        tasks = list(_tasks(run, made, changes, drawn, played, publication.beside))
        nodes = _written(tasks, runs_on)
        names = [output_names.graph(PREFIX, rank) for rank in range(made.world)]
        if made.groups:
            write(publication.beside / output_names.GROUPS, _groups_json(made.groups))
            names.append(output_names.GROUPS)
        summary = _summary(run, axes, made, changes, played, nodes, sorted([*names, output_names.SUMMARY]))
        write_json(publication.beside / output_names.SUMMARY, summary)
        publication.publish()
    return summary


def data_axis(folder: Path) -> Axis:
    """Return the axis of data parallel ranks of a run.

    Raises:
        InputError: it cannot be told, or the recorded graphs are not all there.
    """
    return required(_axes(_recorded(folder), None), "data")


def _axes(run: _Recorded, layout: str | None) -> dict[str, Axis]:
    return stated(layout, len(run.graphs)) if layout else found(run.graphs, run.groups)


def _longer(run: _Recorded, axes: Mapping[str, Axis], wishes: Wishes, out: Path, *, force: bool) -> Scaled:
    """Make the graphs of one pipeline with other numbers of stages or microbatches, an action a node."""
    bubbles = run.folder / output_names.BUBBLES
    if bubbles.exists():
        file = load_bubbles(bubbles)
        every = ranges_of(file)
        lines = [
            tuple(every[i] for i in replica(file, number))
            for number in sorted({stage.replica for stage in file.stages})
        ]
        told, inside = "the ranges of the recording", not file.definition.sees_device
    else:
        axis = required(axes, "pipeline")
        skew = dict(zip(run.graphs, run.match.clock.skew_ns.tolist(), strict=True))
        firsts = [rank for rank in run.graphs if axis.of(rank) == 0]
        stages = [tuple(axis.moved(rank, place, axis.size) for place in range(axis.size)) for rank in firsts]
        lines = [stage_ranges(run.graphs, skew, axis, ranks) for ranks in stages]
        told, inside = "messages between stages", False
    played = [
        longer(
            line,
            wishes.stages,
            wishes.microbatches,
            None if wishes.seed is None else wishes.seed + k,
            waits_inside=inside,
        )
        for k, line in enumerate(lines)
    ]
    whole = max(played, key=lambda one: one.timed.makespan_ns)
    along = axes.get("pipeline")
    size = (
        None if along is None else message_bytes(run.graphs, along, whole.recorded_microbatches * whole.recorded_steps)
    )
    with Publication(out, force=force) as publication:
        nodes, names = 0, []
        for graph in graphs(whole.orders, whole.timed, whole.times, f"{MADE}: from {len(run.graphs)} ranks", size):
            names.append(output_names.graph(PREFIX, graph.metadata.rank or 0))
            nodes += len(graph.name)
            with writing(publication.beside / names[-1]) as file_out:
                write_et(file_out, graph)
        summary = _of_pipeline(run, wishes, played, whole, told, nodes, sorted([*names, output_names.SUMMARY]))
        write_json(publication.beside / output_names.SUMMARY, summary)
        publication.publish()
    return summary


def _of_pipeline(
    run: _Recorded, wishes: Wishes, played: Sequence[Longer], whole: Longer, told: str, nodes: int, files: list[str]
) -> Scaled:
    marks = len(np.unique(step_of(run.graphs[0])))
    recorded = max(one.recorded_makespan_ns for one in played)
    step_ns = round(_replayed(run) / marks)
    rest = step_ns - recorded if marks > 1 and step_ns >= recorded else None
    drawn = (
        "the one of the same turn (--no-spread)"
        if wishes.seed is None
        else f"one that is drawn with seed {wishes.seed}"
    )
    return Scaled(
        source=str(run.folder),
        ranks_recorded=len(run.graphs),
        ranks=whole.stages,
        nodes=nodes,
        axes=[],
        copies=[],
        communicators=0,
        collectives=[],
        pipeline=MadePipeline(
            schedule=whole.schedule,
            stages_recorded=max(whole.source) + 1,
            stages=whole.stages,
            microbatches_recorded=whole.recorded_microbatches,
            microbatches=whole.microbatches,
            source=list(whole.source),
            recorded_makespan_ns=recorded,
            played_makespan_ns=max(one.played_makespan_ns for one in played),
            makespan_ns=whole.timed.makespan_ns,
            rest_ns=rest,
            bubble_rate=whole.timed.bubble_ns / max(whole.stages * whole.timed.makespan_ns, 1),
            pipelines=len(played),
            told_by=told,
        ),
        seed=wishes.seed,
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
        warnings=list(_played_otherwise(whole)),
        files=files,
    )


def _played_otherwise(whole: Longer) -> Iterator[str]:
    off = abs(whole.played_makespan_ns / max(whole.recorded_makespan_ns, 1) - 1)
    if off > _OFF:
        yield (
            f"the recorded steps played in this way are {100 * off:.0f} % off: what they took is not all in forwards, "
            "backwards and "
            "transfers (graphlink bubbles DIR says what else), and a prediction can be as far off"
        )


def _recorded(folder: Path) -> _Recorded:
    paths = graph_files(folder)
    if len(paths) == 1:
        raise InputError(
            "holds the graph of one rank, which tells nothing of others",
            path=folder,
            todo="record all ranks of a run of two or more",
        )
    graphs, groups = load(paths), load_groups(folder)
    world = max(max(graphs) + 1, *(graph.metadata.world_size or 0 for graph in graphs.values()))
    todo = "record and link all ranks into one folder"
    if world > len(graphs):
        raise InputError(
            f"has graphs of {len(graphs):,} ranks of {world:,}: what the others do is not known", path=folder, todo=todo
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
    return _Recorded(folder, paths, graphs, groups, work, matched(work, groups))


class _Changes:
    """What becomes of communication: of each meeting its time, of each node its size."""

    def __init__(self, run: _Recorded, made: Copies, wishes: Wishes) -> None:
        work, match = run.work, run.match
        used = np.unique(work.column("group")).tolist()
        recorded = {g: len(run.groups[g]) if g in run.groups and g != NO_GROUP else len(run.graphs) for g in used}
        now = {
            g: made.members(g) if g == NO_GROUP or any(of == g for of, _ in made.numbers) else recorded[g] for g in used
        }
        growing = {g for g in used if now[g] != recorded[g]}
        kind, group, size = work.column("comm_type"), work.column("group"), work.column("comm_size")
        kinds = {g: frozenset(np.unique(kind[group == g]).tolist()) for g in used}
        self.seed = wishes.seed
        self.rule: Rule = fit(
            of_growing(transfers(work, run.groups), growing), wishes.gigabytes_per_s, wishes.latency_ns
        )
        self.size_bytes = size.copy()
        member = np.flatnonzero(match.code == COLLECTIVE)
        for g in growing:
            for t in kinds[g]:
                node = member[(group[member] == g) & (kind[member] == t)]
                sizes, which = np.unique(size[node], return_inverse=True)
                grown = [grown_bytes(kinds, g, t, one, recorded[g], now[g]) for one in sizes.tolist()]
                self.size_bytes[node] = np.array(grown, np.int64)[which] if len(node) else size[node]
        first = np.zeros(len(match.expected), np.int64)
        first[match.partner[member]] = member
        self.recorded_ns = shortest_ns(match, work.cost_ns - work.fixed_ns)
        ranks = tuple(np.array([of[int(g)] for g in match.group], np.float64) for of in (recorded, now))
        sizes_of = size[first].astype(np.float64), self.size_bytes[first].astype(np.float64)
        self.took_ns = self.rule.grown(self.recorded_ns, kind[first], (ranks[0], ranks[1]), sizes_of)
        self.costs: Costs = costs(work, match, self.took_ns)
        self.collectives = list(_collectives(run, self, first, recorded, now))
        self.shards = any(one.type == "ALL_GATHER" and one.bytes_made != one.bytes_recorded for one in self.collectives)


def _collectives(
    run: _Recorded, changes: _Changes, first: I64, recorded: Mapping[int, int], now: Mapping[int, int]
) -> Iterator[MadeCollective]:
    """Yield what becomes of the collectives of rank 0 that change."""
    work, match = run.work, run.match
    kind, group, size = work.column("comm_type"), work.column("group"), work.column("comm_size")
    mine = np.unique(match.partner[(match.code == COLLECTIVE) & (work.member == 0)])
    node = first[mine]
    for g, t in sorted(set(zip(group[node].tolist(), kind[node].tolist(), strict=True))):
        at = (group[node] == g) & (kind[node] == t)
        if recorded[g] != now[g]:
            yield MadeCollective(
                type=CollectiveType(t).name if t in set(CollectiveType) else f"type {t}",
                recorded=recorded[g],
                made=now[g],
                count=int(np.count_nonzero(at)),
                bytes_recorded=int(size[node[at]].sum()),
                bytes_made=int(changes.size_bytes[node[at]].sum()),
                ns_recorded=int(changes.recorded_ns[mine[at]].sum()),
                ns_made=int(changes.took_ns[mine[at]].sum()),
            )


def _tasks(
    run: _Recorded, made: Copies, changes: _Changes, drawn: Mapping[int, Spread], played: PlayedCopies, out: Path
) -> Iterator[_Task]:
    """Yield the work on all copies."""
    work, match = run.work, run.match
    moved = (match.code != PLAIN) | np.isin(np.arange(len(work)), changes.costs.messages.send)
    source = f"{MADE}: from {len(run.graphs)} ranks"
    for k, (rank, path) in enumerate(run.paths.items()):
        mine = slice(*work.bounds[k])
        meets = np.flatnonzero(match.code[mine] != PLAIN)
        ends = np.array([played.end_ns[mine.start + node] for node in meets.tolist()], np.int64).reshape(len(meets), -1)
        who = [_copied(run, made, rank, column) for column in range(len(made.ranks[rank]))]
        for low in range(0, len(who), _AT_ONCE):
            yield _Task(
                path=path,
                out=out,
                copies=tuple(who[low : low + _AT_ONCE]),
                spread=drawn[rank],
                moved=np.flatnonzero(moved[mine]),
                took_ns=changes.costs.took_ns[mine],
                size_bytes=changes.size_bytes[mine],
                meets=meets,
                end_ns=ends[:, low : low + _AT_ONCE],
                begin_ns=int(match.clock.begin_ns[k]),
                metadata=Metadata(SCHEMA_VERSION, __version__, match.clock.origin_ns or 0, made=source),
            )


def _copied(run: _Recorded, made: Copies, rank: int, column: int) -> Copied:
    graph = run.graphs[rank]
    message = np.isin(graph.type, (NodeType.COMM_SEND, NodeType.COMM_RECV))
    peers = set(np.unique(np.concatenate([graph.comm_src[message], graph.comm_dst[message]])).tolist()) | {rank}
    return Copied(
        rank=int(made.ranks[rank][column]),
        world=made.world,
        groups={group: int(numbers[column]) for (group, of), numbers in made.numbers.items() if of == rank},
        peers={peer: int(made.ranks[peer][column]) for peer in peers if peer in made.ranks},
    )


def _written(tasks: Sequence[_Task], runs_on: RunsOn) -> int:
    """Write all copies; return how many nodes they have together."""
    names = [f"{task.path} as ranks {task.copies[0].rank} to {task.copies[-1].rank}" for task in tasks]
    estimates = [_OWN_BYTES + _BYTES_A_BYTE * task.path.stat().st_size for task in tasks]
    nodes = 0
    for outcome in run_all(_write_copies, tasks, names, runs_on, estimates, "tasks"):
        if isinstance(outcome, GraphlinkError):
            raise outcome
        nodes += outcome
    return nodes


def _write_copies(task: _Task) -> int:
    """Write the copies of one task, one after the other; return their nodes."""
    graph, rests = read_et(task.path), read_rests(task.path)
    for k, who in enumerate(task.copies):
        took = task.spread.ns(graph.duration_ns, who.rank)
        took[task.moved] = task.took_ns[task.moved]
        times = alone(graph, took, task.meets, task.end_ns[:, k], task.begin_ns)
        made, origin = copied(graph, who, took, task.size_bytes, times, task.metadata)
        with writing(task.out / output_names.graph(PREFIX, who.rank)) as out:
            write_changed(out, made, origin, rests)
    return len(graph.name) * len(task.copies)


def _groups_json(groups: Mapping[int, Sequence[int]]) -> bytes:
    return (
        msgspec.json.format(msgspec.json.encode({str(k): members for k, members in groups.items()}), indent=0) + b"\n"
    )


def _summary(
    run: _Recorded,
    axes: Mapping[str, Axis],
    made: Copies,
    changes: _Changes,
    played: PlayedCopies,
    nodes: int,
    files: list[str],
) -> Scaled:
    steps = len(np.unique(step_of(run.graphs[0])))
    few = len(made.groups) <= MOST_GROUPS
    return Scaled(
        source=str(run.folder),
        ranks_recorded=len(run.graphs),
        ranks=made.world,
        nodes=nodes,
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
        collectives=changes.collectives,
        seed=changes.seed,
        steps=steps,
        recorded_replayed_ns=_replayed(run),
        predicted_ns=played.total_ns,
        rule=list(changes.rule.why),
        assumed=list(_assumed(changes)),
        unknown=list(_unknown(changes)),
        warnings=[]
        if few
        else [f"{len(made.groups):,} communicators: ASTRA-sim means ids up to {MOST_GROUPS} to be used"],
        files=files,
    )


def _replayed(run: _Recorded) -> int:
    from graphlink.replay.coupled import play_coupled

    return play_coupled(run.work, run.match).total_ns


def _assumed(changes: _Changes) -> Iterator[str]:
    yield "each rank has as much data a step as recorded: the whole batch grows with the ranks"
    yield "sums of gradients have as many bytes as recorded"
    if changes.shards:
        yield (
            "what is gathered in communicators that also scatter gradients is parameters: a rank has a smaller "
            "shard "
            "of them"
        )
    if any(one.type == "ALL_TO_ALL" for one in changes.collectives):
        yield "in exchanges of all with all a rank sends and receives as many bytes as recorded, to and from more ranks"
    if changes.seed is None:
        yield "copies take exactly what the recorded rank took (--no-spread)"
    else:
        yield f"ops of copies take what ranks of their role were recorded to take, drawn with seed {changes.seed}"


def _unknown(changes: _Changes) -> Iterator[str]:
    yield (
        "whether links are shared or slower between more machines: --bandwidth and --latency set what a collective gets"
    )
    yield "slower ranks than any that was recorded, and failures"
    if changes.shards:
        yield "the time of optimizers on smaller shards, and of kernels that unpack gathered parameters: as recorded"
