"""One rank from its files to what they lack. Reads, links and builds the graph as the main job does, but without HTA and without output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from graphlink.depend.build import BuildOptions, build_with, find
from graphlink.doctor.comm import communication_lacking, rank_lacking
from graphlink.doctor.et import OTHER_RUN, alone, et_lacking, without_et
from graphlink.doctor.kineto import details_lacking, links_lacking, rows_lacking, times_lacking
from graphlink.doctor.nccl import join_lacking
from graphlink.doctor.nsys import export_lacking
from graphlink.doctor.ranks import PIPELINE
from graphlink.doctor.records import Finding
from graphlink.doctor.waits import standing_lacking, waits_lacking
from graphlink.errors import InputError
from graphlink.link.clocks import on_host_clock
from graphlink.link.communication import communication
from graphlink.link.launch import link
from graphlink.link.match import match_hosts
from graphlink.model import Communication, HostMatch, HostTrace, Linked, Trace
from graphlink.nccl import job as nccl
from graphlink.nccl.noted import SideFiles
from graphlink.pipeline.stagerun import stage_run
from graphlink.ranks.comms import rank_comms
from graphlink.read.heads import read_head
from graphlink.read.host import read_host
from graphlink.run.job import Inputs, trace_of
from graphlink.run.state import RankRows


@dataclass(frozen=True, slots=True)
class Examined:
    """``findings`` of one rank, and of its communication what joining ranks reads; None where there is no graph."""

    rank: int
    findings: tuple[Finding, ...]
    rows: RankRows | None


def examine(inputs: Inputs) -> Examined:
    """The findings of one rank.

    An ET of another run is a finding, and the rest is told of the recording alone. O(n log n) in rows.

    Raises:
        InputError: a file cannot be read.
    """
    trace = trace_of(inputs)
    et = read_host(inputs.et) if inputs.et is not None else None
    match, other_run = _matched(trace, et, nsys=inputs.nsys is not None)
    if other_run:
        et = None
    linked = link(on_host_clock(trace), et, match)
    dumps, _ = nccl.read_dumps({path: inputs.name_of(path) for path in inputs.nccl}, inputs.found)
    comm = communication(linked, nccl.known_groups(linked, dumps, dict(inputs.members)) if dumps else ())
    findings = [
        *other_run,
        *rows_lacking(linked, nsys=inputs.nsys is not None),
        *times_lacking(trace, linked),
        *communication_lacking(comm),
    ]
    findings += links_lacking(linked)
    if inputs.nsys is not None:
        findings += export_lacking(inputs.nsys, linked, comm, inputs.numbering)
    else:
        findings += rank_lacking(trace, comm, distributed=read_head(inputs.recording).backend is not None)
        findings += details_lacking(linked)
        if et is not None:
            findings += et_lacking(linked, comm, et)
        elif not other_run:
            findings += without_et(linked, comm)
    rank = next((r for r in (inputs.rank, trace.rank, inputs.expected_rank) if r is not None), 0)
    rows = None
    files = nccl.joined(dumps, linked, comm, rank)
    if files is not None:
        findings += join_lacking(files.join)
    if len(trace.host.start_ns) or len(trace.device.start_ns):
        more, rows = _graph_lacking(linked, comm, rank, files, nsys=inputs.nsys is not None)
        findings += more
    named = [replace(f, ranks=(rank,), files=(inputs.name,)) for f in findings]
    return Examined(rank, tuple(named), rows)


def _matched(trace: Trace, et: HostTrace | None, *, nsys: bool) -> tuple[HostMatch, list[Finding]]:
    if not len(trace.host.start_ns):  # nothing to be matched: that is what is said
        et = None
    try:
        match = match_hosts(trace, et)
    except InputError as problem:  # of two runs: that is what the user wants to know
        said = problem.what if problem.where is None else f"{problem.what}: {problem.where}"
        return match_hosts(trace, None), [Finding(OTHER_RUN, told=(said,))]
    return (replace(match, method="nsys") if nsys else match), []


def _graph_lacking(
    linked: Linked, comm: Communication, rank: int, files: SideFiles | None, *, nsys: bool
) -> tuple[list[Finding], RankRows]:
    trace = linked.trace
    options = BuildOptions(sync="cuda")
    found = find(linked, options, comm)
    built = build_with(linked, comm, found, options)
    findings = list(waits_lacking(linked, found, built, len(comm.host_node), nsys=nsys))
    findings += standing_lacking(built, linked, comm)
    staged = stage_run(built.graph, linked, comm, rank, (), files)
    if staged.warnings:
        findings.append(Finding(PIPELINE, 0.0, told=staged.warnings))
    members = [r for g in comm.groups for r in g.ranks or ()]
    world_size = max(trace.world_size or 1, rank + 1, *(r + 1 for r in members))
    comms = rank_comms(built.graph, linked, comm, rank, world_size)
    return findings, RankRows(comms, comms.groups, staged.run, len(built.graph.kind))


def examine_alone(et: Path) -> Finding:
    """An execution trace that no recording belongs to.

    Raises:
        InputError: it cannot be read.
    """
    return replace(alone(read_host(et)), files=(str(et),))
