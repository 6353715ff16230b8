"""Do the job of one rank, from files to files: read, link, depend, check, write, replay, and what the features add.

``prepare`` ends with a graph and the communicators that it names; ``finish`` writes the rank's files once all ranks of
the run have said what they have in common (``Joined``). ``run_rank`` is both for a rank alone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import UNSET

from graphlink import output_names, publish
from graphlink.choices import ASTRA_SIM, FOLDED
from graphlink.depend.build import build
from graphlink.engine.beside import LARGE_BYTES, beside, may_fork
from graphlink.engine.memory import estimate_bytes
from graphlink.errors import GraphlinkError, InputError, log
from graphlink.graph import linked as linked_file
from graphlink.graph import path_file, target, write_et
from graphlink.graph.critical import ShareNs
from graphlink.graph.fold import NAMES, fold
from graphlink.graph.invariants import check
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.linking.launch import rounding_ns
from graphlink.linking.provenance import MIN_EPOCH_NS
from graphlink.model import System
from graphlink.process import gc_paused
from graphlink.ranks import group_ids as groups
from graphlink.ranks.records import AlignedClock
from graphlink.replay.machines import error_pct, measured_ns, replay
from graphlink.report import summary, timeline
from graphlink.run.options import Inputs, Options
from graphlink.run.read_rank import link_rank, rank_of, sizes_bytes
from graphlink.run.records import (
    Finished,
    GraphedRank,
    Joined,
    PreparedRank,
    RankWork,
    RunResult,
)
from graphlink.tables import how_many, tuples
from graphlink.wings import Parts, each, over_ranks, wing

MOST_ERROR_PCT: Final = 1.0  # of a replay of the recording itself
_MOST_BESIDE: Final = 4_000_000  # nodes: with a writer beside it about 3.2 GB, scaled from 10 million events


def run_rank(inputs: Inputs, options: Options, folder: Path, jobs: int | None = 1) -> RunResult:
    """Do the whole job of a rank that stands alone, and write its files into ``folder``, ``comm_group.json`` too if it
    names a group.

    ``jobs``: how many processes may work on it; None: as many as cores and memory allow.
    """
    sizes = sizes_bytes(inputs)  # of large files a second process is quicker, where a core and memory are free
    forked = sum(sizes) > LARGE_BYTES and may_fork(list(map(estimate_bytes, sizes)), jobs)
    prepared = prepare(inputs, options, forked=forked)
    ids = groups.assign({prepared.rank: prepared.plan.groups})
    parts = over_ranks({prepared.rank: prepared.parts.asked("to_join")})
    world, begin = prepared.world_size, groups.first_id([prepared.comm.ops], prepared.world_size)
    joined = Joined(ids[prepared.rank], world, begin, parts=parts.asked("of_rank", prepared.rank))
    done = finish(prepared, joined, options, folder, forked=forked)
    return RunResult((done.entry,), parts, (*done.files, *write_common(ids, parts, options, folder)))


def write_common(ids: Mapping[int, groups.GroupIds], parts: Parts, options: Options, folder: Path) -> tuple[str, ...]:
    """Write what the ranks of a run have in common besides the summary: communicators, timeline, files of wings. Return
    their names.

    ``ids``: of each rank those of its communicators; without any there is no ``comm_group.json``.
    """
    files = []
    if any(ids.values()):
        publish.write(folder / output_names.GROUPS, groups.comm_group_json(ids))
        files.append(output_names.GROUPS)
    if options.timeline != "none":
        tracks = [functools.partial(wing(name).tracks, part=part) for name, part in parts.items()]
        files.append(timeline.join(folder, sorted(ids), tracks))
    return (*files, *write_parts(parts, folder))


def write_parts(parts: Parts, folder: Path) -> tuple[str, ...]:
    """Write the files of what wings made of a run; return their names."""
    return tuple(file for name, part in parts.items() for file in wing(name).write(part, folder) or ())


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
    if findings:
        raise GraphlinkError(
            f"the graph made of it would be wrong: {'; '.join(map(str, findings[:2]))}",
            path=inputs.recording,
            todo="this is a bug of graphlink: please report it with the recording; nothing was written",
        )
    rank = rank_of(inputs, trace.rank)
    if trace.world_size is not None and rank >= trace.world_size and inputs.rank is None:  # --rank overrules
        what = f"is of rank {rank}, and it records {trace.world_size:,} ranks"
        raise InputError(what, path=inputs.name, todo="give its rank with --rank")
    plan = target.plan(built.graph, comm, rank, options.target)
    parts, of_wings = parts_of(GraphedRank(rank, built.graph, linked, comm, read.beside, Parts(), options.range_rules))
    warnings = (
        *linked.trace.warnings,
        *linked.warnings,
        *comm.warnings,
        *built.warnings,
        *read.warnings,
        *of_wings,
        *_rank_warnings(inputs, rank, trace.rank),
    )
    return PreparedRank(
        inputs, rank, read.world_size(rank), comm, built, plan, parts, folded, tuple(dict.fromkeys(warnings))
    )


def parts_of(rank: GraphedRank) -> tuple[Parts, list[str]]:
    """Return what wings make of a rank that has its graph, and their warnings."""
    warnings: list[str] = []
    for name, hooks in each():
        made = hooks.of_graph(rank)
        warnings += made.warnings
        if made.part is not None:
            rank.parts[name] = made.part
    return rank.parts, warnings


@gc_paused()
def finish(prepared: PreparedRank, joined: Joined, options: Options, folder: Path, *, forked: bool = False) -> Finished:
    """Write the files of a rank into ``folder``: its graph, its critical path, and with ``options.linked`` the merged
    trace.

    Its part of the timeline is left there for ``timeline.join``. ``forked``: write the graph in a second process
    meanwhile, unless it is so large that the two take too much memory.

    Raises:
        OutputError: a file cannot be written.
    """
    rank = prepared.rank
    plan = prepared.plan
    if options.target == ASTRA_SIM:
        sizes = dict(tuples(joined.size_bytes.node, joined.size_bytes.value))
        plan = target.joined(
            plan, () if options.keep_unmatched or joined.unmatched is None else joined.unmatched.tolist(), sizes
        )
    graph = _with_all(prepared, joined, plan, options)
    file = folder / output_names.graph(options.name, rank)
    log.info("writing %s", file.name)
    forked = forked and len(graph.name) <= _MOST_BESIDE
    with beside(functools.partial(_write_graph, file, graph), forked=forked) as written:
        if not forked:
            written()
        done = _finish_graph(replace(prepared, plan=plan), joined, options, folder, graph)
        written()
    return done


def _write_graph(file: Path, graph: Graph) -> None:
    with publish.writing(file) as out:
        write_et.write_et(out, graph)


def _finish_graph(prepared: PreparedRank, joined: Joined, options: Options, folder: Path, graph: Graph) -> Finished:
    """Write the files of a rank but its graph, which is ``graph``."""
    rank, linked = prepared.rank, prepared.linked
    files = [output_names.graph(options.name, rank), output_names.critical_path(rank)]
    log.info("replaying")
    cost = graph.cost_ns
    played = replay(graph, cost)
    grouped = Parts({name: made for name, hooks in each() if (made := hooks.gaining(graph, linked)) is not None})
    of_node = next((made.of_node for made in grouped.values()), None)
    found = path_file.explain(graph, linked, prepared.comm, played.end_ns, cost, operation=of_node)
    publish.write(folder / files[1], path_file.encode(rank, graph, found, (NAMES,) if prepared.folded else ()))
    work = RankWork(prepared, joined, options, folder, graph, played, found, grouped)
    added = {name: hooks.finish(work) for name, hooks in each()}
    files += [file for part in added.values() for file in part.files]
    if options.timeline != "none":
        log.info("writing the timeline")
        shown = timeline.Shown(
            rank=rank,
            graph=graph,
            linked=linked,
            comm=work.comm,
            ids=joined.ids,
            clock=joined.clock,
            across=joined.across,
            hosts=joined.hosts,
            found=found,
            played=played,
            beside=options.timeline == "both",
            features=[rows for part in added.values() for rows in part.rows],
            node=None if prepared.inputs.placed is None else prepared.inputs.placed[0],
        )
        with publish.writing(folder / timeline.part_name(rank)) as out:
            timeline.write(out, shown)
    extra = groups.too_many({rank: joined.ids})
    if options.linked:
        files.append(output_names.linked(rank))
        extra += _write_merged(folder / files[-1], graph, prepared)
    extra += tuple(text for part in added.values() for text in part.warnings)
    fields = {name: value for part in added.values() for name, value in part.fields.items()}
    return Finished(entry_of(work, fields, extra), tuple(files), graph)


def _write_merged(file: Path, graph: Graph, prepared: PreparedRank) -> tuple[str, ...]:
    """Write the ET merged with device ops; return its warnings."""
    log.info("writing %s", file.name)
    merged = linked_file.Merged(graph, prepared.comm)
    with publish.writing(file) as out:
        linked_file.write(out, merged)
    return merged.warnings


def _with_all(prepared: PreparedRank, joined: Joined, plan: target.CommPlan, options: Options) -> Graph:
    """Return the graph as it is written: with what all ranks together tell, and the columns of the wings."""
    graph = prepared.built.graph
    if options.comm_time != "recorded":
        duration_ns, waits = graph.duration_ns.copy(), joined.wait_ns
        duration_ns[waits.node] = np.maximum(duration_ns[waits.node] - waits.value, 0)
        graph = replace(graph, duration_ns=duration_ns)
    graph = graph.of_rank(prepared.rank, joined.world_size, joined.first_id, _clock_of(graph, joined.clock))
    graph = target.written(graph, prepared.comm, plan, joined.ids)
    added = [hooks.columns(graph, prepared, joined) for _, hooks in each()]
    front = {name: column for columns in added for name, column in columns.front.items()}
    behind = {name: column for columns in added for name, column in columns.behind.items()}
    return graph.with_columns({**front, "comm_wait_ns": joined.wait_ns, **behind})


def _clock_of(graph: Graph, clock: AlignedClock | None) -> tuple[int, int]:
    """Return the offset at the graph's epoch, and drift in ppb."""
    if clock is None:
        return 0, 0
    epoch = np.array([graph.epoch_ns], np.int64)
    return int((clock.of(epoch) - epoch)[0]), round(clock.drift * 1e9)


def _rank_warnings(inputs: Inputs, rank: int, recorded: int | None) -> list[str]:
    told = (
        (("the recording", recorded), ("the name of the file", inputs.expected_rank)) if inputs.rank is not None else ()
    )
    return [
        f"{who} says rank {other}; written as rank {rank}, as --rank says"
        for who, other in told
        if other not in (None, rank)
    ][:1]


def _recorded_inputs(prepared: PreparedRank) -> summary.Inputs:
    """Return where a rank came from."""
    inputs, trace, et, graph = prepared.inputs, prepared.linked.trace, prepared.linked.et, prepared.built.graph
    began_ns, ended_ns = graph.epoch_ns, graph.epoch_ns + int(graph.end_ns.max(initial=0))
    dated = began_ns >= MIN_EPOCH_NS
    return summary.Inputs(
        et=inputs.name_of(inputs.et) if inputs.et else None,
        kineto=inputs.name_of(inputs.kineto) if inputs.kineto else None,
        nsys=str(inputs.nsys) if inputs.nsys else None,
        device=int(trace.device.device[0]) if inputs.nsys and len(trace.device.device) else None,
        et_schema=et.schema if et else None,
        recorded_at=et.recorded_at if et else None,
        pid=trace.pid,
        resolution_ns=trace.resolution_ns,
        began_ns=began_ns if dated else None,
        ended_ns=ended_ns if dated else None,
        node=inputs.placed[0] if inputs.placed else None,
        local_rank=inputs.placed[1] if inputs.placed else None,
    )


def _left_out(prepared: PreparedRank) -> dict[str, int]:
    """Return how many recorded rows are no nodes, by reason."""
    trace, et = prepared.linked.trace, prepared.linked.et
    found = {**trace.left_out, **({f"ET: {k}": n for k, n in et.left_out.items()} if et else {})}
    found["ET ops that Kineto lacks"] = sum(prepared.linked.match.only_et.values())
    found["device rows of a merged ET"] = et.device_nodes_left_aside if et else 0
    found["host nodes folded into others (--host launches)"] = prepared.folded
    return {reason: n for reason, n in sorted(found.items()) if n}


def entry_of(work: RankWork, fields: Mapping[str, Any], extra: tuple[str, ...]) -> summary.Rank:
    """Return what ``summary.json`` says of a rank. ``fields``: of wings; ``extra``: warnings beside those of its
    graph.
    """
    prepared, linked, explained = work.prepared, work.linked, work.explained
    graph = prepared.built.graph
    trace, match, critical = linked.trace, linked.match, explained.path
    measured = measured_ns(graph)
    error = error_pct(work.played.total_ns, measured)
    families = explained.gains.families
    once = [family for family in families if family.once_ns and 100 * family.gain_ns >= critical.length_ns]
    matched = how_many(match.et >= 0)
    orphans = sum(linked.orphans.values())
    types = Counter(write_et.type_name(c.node_type) for c in prepared.plan.by_node.values())
    off = f"the graph replays {abs(error):.1f} % {'later' if error > 0 else 'earlier'} than recorded, and what is "
    off += "predicted is as uncertain"
    return summary.Rank(
        rank=prepared.rank,
        world_size=work.joined.world_size,
        inputs=_recorded_inputs(prepared),
        machine=summary.Machine(
            host=trace.host_name,
            gpus=[gpu.name for gpu in trace.gpus],
            capability=min((gpu.capability for gpu in trace.gpus if gpu.capability), default=UNSET),
            system=trace.system,
        )
        if trace.host_name or trace.gpus or trace.system != System()
        else UNSET,
        memory=list(trace.memory) or UNSET,
        graph_nodes=len(graph.kind),
        node_kinds={k.name.lower(): n for k in NodeKind if (n := how_many(graph.kind == k))},
        host=summary.Host(
            nodes=len(match.et),
            matched=matched,
            unmatched=len(match.et) - matched,
            method=match.method,
            only_kineto=summary.top(match.only_kineto),
            only_et=summary.top(match.only_et),
        ),
        device=summary.Device(
            ops=len(trace.device.start_ns), linked=len(trace.device.start_ns) - orphans, orphans=linked.orphans
        ),
        clock=summary.Clock(devices=list(trace.clocks.devices if trace.clocks else ())),
        edges={k.name.lower(): how_many(graph.edge_kind == k) for k in EdgeKind},
        sync=prepared.built.sync,
        communication=dict(sorted(types.items())),
        replaced=prepared.plan.replaced,
        replay=summary.Replay(
            measured_ns=measured,
            replayed_ns=work.played.total_ns,
            error_pct=error,
            gap_share=critical.gap_share,
            delay_share=critical.delay_share,
        ),
        critical_path=summary.CriticalPath(
            length_ns=critical.length_ns, share_ns=ShareNs(**critical.share_ns), nodes=len(critical.node)
        ),
        top_gain=next((family for family in families if not family.once_ns), UNSET),
        once=sorted(once, key=lambda family: -family.once_ns),
        left_out=_left_out(prepared),
        warnings=[*prepared.warnings, *extra, *[off] * (abs(error) > MOST_ERROR_PCT)],
        **fields,
    )
