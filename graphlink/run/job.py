"""Do the job of one rank, from files to files: read, link, depend, check, write, replay, and what the features add.

``prepare`` ends with a graph and the communicators that it names; ``finish`` writes the rank's files once all ranks of
the run have said what they have in common (``Joined``). ``run_rank`` is both for a rank alone.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from graphlink import output_names, publish
from graphlink.depend.build import Built, build
from graphlink.engine.beside import beside, may_fork
from graphlink.engine.memory import estimate_bytes, unpacked_bytes
from graphlink.errors import GraphlinkError, InputError
from graphlink.gpu import file as idle_file
from graphlink.gpu.time import GpuTime, gpu_time
from graphlink.gpu.tracks import idle_rows
from graphlink.graph import linked as linked_file
from graphlink.graph import path_file as path
from graphlink.graph import target
from graphlink.graph import write_et as chakra
from graphlink.graph.durations import cost_ns
from graphlink.graph.fold import FOLDED, NAMES, fold
from graphlink.graph.invariants import ERROR, Violation, check
from graphlink.graph.path_file import explain
from graphlink.graph_model import Column, Graph
from graphlink.linking.clocks import on_host_clock
from graphlink.linking.communication import communication
from graphlink.linking.launch import link, rounding_ns
from graphlink.linking.match import match_hosts
from graphlink.linking.step_cut import cut, parse_steps
from graphlink.model import I64, Communication, HostTrace, Linked, Trace
from graphlink.nccl import job as nccl
from graphlink.nccl.noted import columns as nccl_columns
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import SideFiles
from graphlink.nccl.tracks import channel_rows
from graphlink.operations import file as ops_file
from graphlink.operations.find import find_operations, measured
from graphlink.perfetto.packets import Rows
from graphlink.pipeline import file as bubbles
from graphlink.pipeline.notes import columns as pipeline_columns
from graphlink.pipeline.rank_part import rank_pipeline
from graphlink.pipeline.records import RunPipeline, StageRun
from graphlink.pipeline.rules import user_rules
from graphlink.pipeline.stagerun import Staged, stage_run
from graphlink.process import gc_paused
from graphlink.ranks import group_ids as groups
from graphlink.ranks.records import AlignedClock
from graphlink.ranks.summary import Run as RunSummary
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from graphlink.read.stream import BLOCK_BYTES
from graphlink.records import Short
from graphlink.replay.ideal import replay
from graphlink.report import summary, timeline
from graphlink.report.timeline import Joined as Joined
from graphlink.run import codec
from graphlink.run.entry import entry_of
from graphlink.run.options import Inputs as Inputs
from graphlink.run.options import Options as Options
from graphlink.standstill.standstill import stood_still

LARGE_BYTES: Final = 20_000_000  # of files once unpacked: reading them takes several times as long as to fork
_LARGE_BLOCK: Final = 1 << 18  # 1 MB takes a third longer in two processes that read side by side and share a cache
log: Final = logging.getLogger("graphlink")


@dataclass(frozen=True, slots=True, repr=False)
class PreparedRank(Short):
    """The graph of a rank, with all that its files are written from."""

    inputs: Inputs
    rank: int
    world_size: int
    linked: Linked
    comm: Communication
    built: Built
    plan: target.CommPlan
    staged: Staged
    nccl: SideFiles | None
    folded: int  # host nodes that --host launches folded into others
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class RunResult(Short):
    """All ranks of a run, by rank, as ``summary.json`` has them, their pipeline if they are one, and the names of all
    files written.

    ``run`` and its ``warnings`` only where several ranks were joined.
    """

    ranks: tuple[summary.Rank, ...]
    pipeline: RunPipeline | None
    files: tuple[str, ...]
    run: RunSummary | None = None
    warnings: tuple[str, ...] = ()


class Finished(Short, msgspec.Struct, frozen=True):
    """A rank whose files are written: its entry of ``summary.json``, their names, and its graph as it stands in the
    ``.et``.
    """

    entry: summary.Rank
    files: tuple[str, ...]
    graph: Graph


def run_rank(inputs: Inputs, options: Options, folder: Path, jobs: int | None = 1) -> RunResult:
    """Do the whole job of a rank that stands alone, and write its files into ``folder``, ``comm_group.json`` too if it
    names a group.

    ``jobs``: how many processes may work on it; None: as many as cores and memory allow.
    """
    forked = _two_processes(inputs, jobs)
    prepared = prepare(inputs, options, forked=forked)
    ids = groups.assign({prepared.rank: prepared.plan.groups})
    pipeline = _pipeline_of(prepared.staged.run)
    joined = Joined(ids[prepared.rank], prepared.world_size, pipeline=rank_pipeline(pipeline, prepared.rank))
    done = finish(prepared, joined, options, folder, forked=forked)
    return RunResult((done.entry,), pipeline, (*done.files, *write_common(ids, pipeline, options, folder)))


def _two_processes(inputs: Inputs, jobs: int | None) -> bool:
    """Tell whether a second process beside this one makes a rank quicker: its files are large, and a core and memory
    are free.

    ``jobs``: how many processes the user allows; None: as many as there is room for.
    """
    sizes = _sizes(inputs)
    return sum(sizes) > LARGE_BYTES and may_fork(list(map(estimate_bytes, sizes)), jobs)


def _block_bytes(inputs: Inputs) -> int:
    """Return how much is read at a time. It decides in which order names are met, so it follows from the files
    alone.
    """
    return _LARGE_BLOCK if sum(_sizes(inputs)) > LARGE_BYTES else BLOCK_BYTES


def _sizes(inputs: Inputs) -> list[int]:
    return [unpacked_bytes(path) for path in (inputs.recording, inputs.et) if path is not None]


def _pipeline_of(run: StageRun | None) -> RunPipeline | None:
    """Return the pipeline of a rank that stands alone; most have none, and need not load what analyses one."""
    if run is None:
        return None
    from graphlink.pipeline.analyse import analyse

    return analyse([run])


def write_common(
    ids: Mapping[int, groups.GroupIds], pipeline: RunPipeline | None, options: Options, folder: Path
) -> tuple[str, ...]:
    """Write what the ranks of a run have in common besides the summary: communicators, timeline, pipeline. Return the
    names of the files.

    ``ids``: of each rank those of its communicators; without any there is no ``comm_group.json``.
    """
    files = []
    if any(ids.values()):
        publish.write(folder / groups.NAME, groups.comm_group_json(ids))
        files.append(groups.NAME)
    if options.timeline != "none":
        files.append(timeline.join(folder, sorted(ids), pipeline))
    return (*files, *write_pipeline(pipeline, folder))


def write_pipeline(pipeline: RunPipeline | None, folder: Path) -> tuple[str, ...]:
    """Write ``bubbles.json`` and ``pipeline.svg``; their names. Nothing where the run is no pipeline."""
    if pipeline is None:
        return ()
    from graphlink.pipeline import svg as pipeline_svg

    log.info("writing the pipeline")
    with publish.writing(folder / bubbles.NAME) as out:
        out.writelines(bubbles.blocks(pipeline))
    publish.write(folder / pipeline_svg.NAME, pipeline_svg.encode(pipeline))
    return bubbles.NAME, pipeline_svg.NAME


class LinkedRank(Short, msgspec.Struct, frozen=True):
    """One rank, read, matched and linked. ``trace``: as recorded, before calls were cut; ``unread``: side files that
    were passed over; ``other_run``: how an execution trace that was left out differs from the recording.
    """

    trace: Trace
    linked: Linked
    comm: Communication
    dumps: Sequence[Dump]
    unread: tuple[str, ...]
    other_run: str | None = None

    def world_size(self, rank: int) -> int:
        """Return the recorded number of ranks, at least what ``rank`` and the groups of the communication need."""
        return max(self.trace.world_size or 1, rank + 1, *(r + 1 for ranks, _ in self.comm.ops.groups for r in ranks))


def link_rank(
    inputs: Inputs, step: str = "all", *, keep_json: bool = False, lenient: bool = False, forked: bool = False
) -> LinkedRank:
    """Read the files of one rank, match its host rows and link its device ops.

    ``keep_json``: keep the nodes of the execution trace as JSON; ``lenient``: leave out an execution trace of another
    run; ``forked``: read it in a second process.

    Raises:
        InputError: a file cannot be read or is of another kind, or the two are of different runs and it is not
            ``lenient``.
        UsageError: there is no such step.
    """
    steps = parse_steps(step)
    with beside(
        functools.partial(_et_of, inputs, keep_json=keep_json), forked=forked and inputs.et is not None
    ) as read_et:
        trace = trace_of(inputs)
        et = read_et()
    dumps, unread = nccl.read_dumps({path: inputs.name_of(path) for path in inputs.nccl}, inputs.found)
    log.info("linking %d host rows, %d device ops", len(trace.host.start_ns), len(trace.device.start_ns))
    other_run = None
    try:
        match = match_hosts(trace, et if len(trace.host.start_ns) or not lenient else None)
    except InputError as problem:
        if not lenient:
            raise
        other_run = problem.what if problem.where is None else f"{problem.what}: {problem.where}"
        et, match = None, match_hosts(trace, None)
    if inputs.nsys is not None:
        match = replace(match, method="nsys")
    if steps is not None:
        part = cut(trace, match, steps)
        trace, match = part.trace, part.match
    linked = link(on_host_clock(trace), et, match)
    comm = communication(linked, nccl.known_groups(linked, dumps, dict(inputs.members)) if dumps else ())
    return LinkedRank(trace, linked, comm, dumps, unread, other_run)


def _et_of(inputs: Inputs, *, keep_json: bool) -> HostTrace | None:
    if inputs.et is None:
        return None
    log.info("reading %s", inputs.et)
    return read_host(inputs.et, keep_json=keep_json, block_bytes=_block_bytes(inputs))


@gc_paused()
def prepare(inputs: Inputs, options: Options, *, forked: bool = False) -> PreparedRank:
    """Read and link one rank and build its graph. ``forked``: read the execution trace in a second process.

    Raises:
        InputError: a file cannot be read, is of another kind, is of a rank that its run has not, or the two are of
            different runs.
        UsageError: there is no such step.
    """
    read = link_rank(inputs, options.step, keep_json=options.linked, forked=forked)
    trace, linked, comm = read.trace, read.linked, read.comm
    log.info("finding dependencies")
    built = build(linked, comm, options.build)
    nodes = len(built.graph.kind)
    if options.host == FOLDED:
        log.info("folding host nodes")
        built = replace(built, graph=fold(built.graph))
    folded = nodes - len(built.graph.kind)
    log.info("checking %d nodes, %d edges", len(built.graph.kind), len(built.graph.source))
    findings = check(built.graph, rounding_ns(trace))
    _refuse_errors(findings, inputs.recording)
    rank = rank_of(inputs, trace.rank)
    _refuse_world(inputs, rank, trace.world_size)
    plan = target.plan(built.graph, comm, rank, options.target)
    files = nccl.joined(read.dumps, linked, comm, rank)
    log.info("looking for pipeline ranges")
    staged = stage_run(built.graph, linked, comm, rank, user_rules(options.range_rules), files)
    warnings = (
        *trace.warnings,
        *linked.warnings,
        *comm.warnings,
        *built.warnings,
        *read.unread,
        *nccl.warnings(files),
        *staged.warnings,
        *(f"check: {finding}" for finding in findings),
        *_rank_warnings(inputs, rank, trace.rank),
    )
    return PreparedRank(
        inputs,
        rank,
        read.world_size(rank),
        linked,
        comm,
        built,
        plan,
        staged,
        files,
        folded,
        tuple(dict.fromkeys(warnings)),
    )


@gc_paused()
def finish(prepared: PreparedRank, joined: Joined, options: Options, folder: Path, *, forked: bool = False) -> Finished:
    """Write the files of a rank into ``folder``: its graph, its critical path, and with ``options.linked`` the merged
    trace.

    Its part of the timeline is left there for ``timeline.join``. ``forked``: write the graph in a second process
    meanwhile.

    Raises:
        OutputError: a file cannot be written.
    """
    rank = prepared.rank
    plan = prepared.plan
    if options.target == target.ASTRA_SIM:
        sizes = dict(zip(joined.size_bytes.node.tolist(), joined.size_bytes.value.tolist(), strict=True))
        plan = target.joined(
            plan, () if options.keep_unmatched or joined.unmatched is None else joined.unmatched.tolist(), sizes
        )
    graph = _with_all(prepared, joined, plan, options)
    file = folder / output_names.graph(options.name, rank)
    log.info("writing %s", file.name)
    with beside(functools.partial(_write_graph, file, graph, prepared.linked), forked=forked) as written:
        if not forked:
            written()
        done = _finish_graph(replace(prepared, plan=plan), joined, options, folder, graph)
        written()
    return done


def _write_graph(file: Path, graph: Graph, linked: Linked) -> None:
    with publish.writing(file) as out:
        chakra.write_et(out, graph, linked)


def _finish_graph(prepared: PreparedRank, joined: Joined, options: Options, folder: Path, graph: Graph) -> Finished:
    """Write the files of a rank but its graph, which is ``graph``."""
    rank = prepared.rank
    files = [output_names.graph(options.name, rank), output_names.critical_path(rank)]
    log.info("replaying")
    cost = cost_ns(graph)
    played = replay(graph, cost)
    operations = find_operations(graph, prepared.linked)
    found = explain(graph, prepared.linked, prepared.comm, played.end_ns, cost, operation=operations.of_node)
    publish.write(folder / files[1], path.encode(rank, graph, found, (NAMES,) if prepared.folded else ()))
    files.append(output_names.operations(rank))
    ops = measured(operations, graph, prepared.linked, prepared.comm, found.operation_gain_ns, rank)
    publish.write(folder / files[-1], ops_file.encode(ops))
    log.info("finding out why devices were idle")
    gpu = gpu_time(graph, prepared.linked, prepared.comm, joined.wait_ns)
    files.append(output_names.idle(rank))
    with publish.writing(folder / files[-1]) as out:
        out.writelines(idle_file.blocks(rank, gpu, prepared.linked.trace))
    if options.timeline != "none":
        log.info("writing the timeline")
        beside = options.timeline == "both"
        shown = timeline.Shown(
            rank,
            graph,
            prepared.linked,
            prepared.comm,
            joined,
            found,
            played,
            beside,
            _feature_rows(prepared, graph, gpu),
            None if prepared.inputs.placed is None else prepared.inputs.placed[0],
        )
        with publish.writing(folder / timeline.part_name(rank)) as out:
            timeline.write(out, shown)
    extra = groups.too_many({rank: joined.ids})
    if options.linked:
        files.append(output_names.linked(rank))
        extra += _write_merged(folder / files[-1], graph, prepared)
    stood = stood_still(replace(prepared.built, graph=graph), prepared.linked, found.path)
    extra += (*stood.warnings, *gpu.warnings)
    entry = entry_of(prepared, found, played.total_ns, stood.standstill, gpu, joined.world_size, extra)
    return Finished(entry, tuple(files), graph)


def _write_merged(file: Path, graph: Graph, prepared: PreparedRank) -> tuple[str, ...]:
    """Write the ET merged with device ops; return its warnings."""
    log.info("writing %s", file.name)
    merged = linked_file.Merged(graph, prepared.linked, prepared.comm)
    with publish.writing(file) as out:
        linked_file.write(out, merged)
    return merged.warnings


def _with_all(prepared: PreparedRank, joined: Joined, plan: target.CommPlan, options: Options) -> Graph:
    """Return the graph as it is written: with what all ranks together tell, and the columns of the wings."""
    graph = prepared.built.graph
    if options.comm_time != "recorded":
        graph = replace(graph, duration_ns=_without_waits(graph, joined))
    graph = graph.of_rank(prepared.rank, joined.world_size, *_clock_of(graph, joined.clock))
    graph = target.written(graph, prepared.comm, plan, joined.ids)
    return graph.with_columns(_columns(graph, prepared, joined))


def _feature_rows(prepared: PreparedRank, graph: Graph, gpu: GpuTime) -> list[Rows]:
    """Return what the wings show of a rank on the timeline."""
    ended_ns = graph.epoch_ns + int(graph.end_ns.max(initial=0))
    channels = (
        []
        if prepared.nccl is None
        else [channel_rows(prepared.nccl, prepared.linked.trace.device, graph.epoch_ns, ended_ns)]
    )
    return [idle_rows(gpu), *channels]


def _without_waits(graph: Graph, joined: Joined) -> I64:
    """Return the cost of each node without its wait for other ranks (``--comm-time transfer``)."""
    out, waits = graph.duration_ns.copy(), joined.wait_ns
    out[waits.node] = np.maximum(out[waits.node] - waits.value, 0)
    return out


def _columns(graph: Graph, prepared: PreparedRank, joined: Joined) -> dict[str, Column]:
    """Return the columns of the wings, in the order of the attributes: texts of NCCL, pipeline, waits, integers of
    NCCL.
    """
    of_nccl, pipeline = nccl_columns(graph, prepared.nccl), joined.pipeline
    out = {name: column for name, column in of_nccl.items() if column.texts}
    if pipeline is not None:
        ranges = pipeline.ranges_of(prepared.staged.of_device)
        out |= pipeline_columns(graph, ranges, pipeline.run, pipeline.idle, joined.clock)
    return {**out, "comm_wait_ns": joined.wait_ns, **of_nccl}


def _clock_of(graph: Graph, clock: AlignedClock | None) -> tuple[int, int]:
    """Return the offset at the graph's epoch, and drift in ppb."""
    if clock is None:
        return 0, 0
    epoch = np.array([graph.epoch_ns], np.int64)
    return int((clock.of(epoch) - epoch)[0]), round(clock.drift * 1e9)


def trace_of(inputs: Inputs) -> Trace:
    """Read what was recorded of the rank.

    Raises:
        InputError: the recording cannot be read.
    """
    if inputs.kineto is not None:
        log.info("reading %s", inputs.kineto)
        return read_kineto(inputs.kineto, block_bytes=_block_bytes(inputs))
    from graphlink.read.nsys.places import number
    from graphlink.read.nsys.report import numbered, read_report

    numbering = inputs.numbering
    if inputs.stored is not None:
        with inputs.stored.open("rb") as stored:
            trace = codec.load(stored, Trace, inputs.stored, "run the command again")
    else:
        log.info("reading %s", inputs.recording)
        contents, traces = read_report(inputs.recording)
        trace = traces[inputs.place]
        numbering = numbering or number([contents])[0]
    return trace if numbering is None else numbered(trace, numbering, inputs.place)


def _refuse_errors(findings: tuple[Violation, ...], path: Path) -> None:
    broken = [str(f) for f in findings if f.grade == ERROR]
    if broken:
        raise GraphlinkError(
            f"the graph made of it would be wrong: {'; '.join(broken[:2])}",
            path=path,
            todo="this is a bug of graphlink: please report it with the recording; nothing was written",
        )


def rank_of(inputs: Inputs, recorded: int | None) -> int:
    """Return the rank that ``--rank`` gives, else the ``recorded`` one, else that of the file's name, else 0."""
    return next((r for r in (inputs.rank, recorded, inputs.expected_rank) if r is not None), 0)


def _refuse_world(inputs: Inputs, rank: int, world_size: int | None) -> None:
    """Refuse a rank outside the recorded world; one given with ``--rank`` overrules the recording."""
    if world_size is not None and rank >= world_size and inputs.rank is None:
        raise InputError(
            f"is of rank {rank}, and it records {world_size:,} ranks",
            path=inputs.name,
            todo="give its rank with --rank",
        )


def _rank_warnings(inputs: Inputs, rank: int, recorded: int | None) -> list[str]:
    told = (
        (("the recording", recorded), ("the name of the file", inputs.expected_rank)) if inputs.rank is not None else ()
    )
    return [
        f"{who} says rank {other}; written as rank {rank}, as --rank says"
        for who, other in told
        if other not in (None, rank)
    ][:1]
