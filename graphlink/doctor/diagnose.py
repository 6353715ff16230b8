"""Diagnose the files of a run: each rank is linked as the main job does, but without HTA and without output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from graphlink.depend.build import BuildOptions, build_with, find
from graphlink.doctor.given import Given
from graphlink.doctor.recording import (
    communication_lacking,
    details_lacking,
    et_lacking,
    export_lacking,
    links_lacking,
    rank_lacking,
    rows_lacking,
    times_lacking,
    without_et,
)
from graphlink.doctor.records import Diagnosis, Finding, Told, if_any, merged
from graphlink.doctor.waits import late_lacking, waits_lacking
from graphlink.engine.engines import RunsOn, naming_limits, run_all
from graphlink.engine.memory import estimate_bytes, unpacked_bytes
from graphlink.errors import GraphlinkError, InputError
from graphlink.ranks.columns import rank_comms
from graphlink.ranks.times import Apart
from graphlink.read.heads import read_head
from graphlink.read.host import read_host
from graphlink.records import first_few
from graphlink.run.job import parts_of, to_join
from graphlink.run.join import JoinedRanks, join
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank, rank_of
from graphlink.run.records import GraphedRank, LinkedRank, RankRows
from graphlink.wings import Parts, each, wing

_LISTED: Final = 8  # ranks, groups or conflicts that a text names


class Examined(NamedTuple):
    """A rank and its findings. ``rows``: what joining ranks reads of its communication, None where there is no
    graph.
    """

    rank: int
    findings: list[Finding]
    rows: RankRows | None


def diagnose(subject: Sequence[str], given: Given) -> Diagnosis:
    """Return the ranks and findings of a run. ``subject``: what it is called.

    Each rank is read in a process of its own, as many at a time as memory allows.

    Raises:
        InputError: a file cannot be read, or two recordings are of one rank.
    """
    inputs = given.ranks
    estimates = [
        estimate_bytes(sum(unpacked_bytes(path) for path in (one.recording, one.et) if path is not None))
        for one in inputs
    ]
    outcomes = run_all(examine, inputs, [one.name for one in inputs], RunsOn(), estimates)
    examined: list[Examined] = []
    for outcome in outcomes:
        if isinstance(outcome, GraphlinkError):
            raise InputError(outcome.text())
        examined.append(outcome)
    first: dict[int, str] = {}
    for rank, name in zip((one.rank for one in examined), (one.name for one in inputs), strict=True):
        if first.setdefault(rank, name) != name:
            raise InputError(f"is of rank {rank}, as is {first[rank]}", path=name, todo="look at one run at a time")
    return Diagnosis(subject=list(subject), ranks=sorted(first), findings=findings_of(examined, given))


def findings_of(examined: Sequence[Examined], given: Given) -> list[Told]:
    """Return all findings of a run of which each rank was examined, what costs most first.

    Raises:
        InputError: an execution trace or side file cannot be read.
    """
    findings = [finding for one in examined for finding in one.findings]
    rows = [one.rows for one in examined if one.rows is not None]
    if rows:
        findings += ranks_lacking(rows)
    for path in given.bare:
        nodes = int(np.count_nonzero(read_host(path).rf_id > 0))
        findings.append(Finding("no-kineto", figures={"nodes": nodes}, files=(str(path),)))
    if given.passed_over:
        findings.append(Finding("left-aside", 0.0, told=tuple(given.passed_over)))
    for path in given.dumps:
        with naming_limits(str(path)):
            for _, hooks in each():
                findings += hooks.file_lacks(path, found=path in given.found, alone=not examined)
    return merged(findings)


def examine(inputs: Inputs) -> Examined:
    """Return the findings of one rank.

    An ET of another run is a finding, and the rest is reported of the recording alone. O(n log n) in rows.

    Raises:
        InputError: a file cannot be read.
    """
    read = link_rank(inputs, lenient=True)
    trace, linked, comm = read.trace, read.linked, read.comm
    findings = [] if read.other_run is None else [Finding("et-of-other-run", told=(read.other_run,))]
    findings += rows_lacking(linked, nsys=inputs.nsys is not None)
    findings += times_lacking(trace, linked)
    findings += communication_lacking(comm)
    findings += links_lacking(linked)
    if inputs.nsys is not None:
        findings += export_lacking(inputs.nsys, linked, comm, inputs.numbering)
    else:
        findings += rank_lacking(trace, comm, distributed=read_head(inputs.recording).backend is not None)
        findings += details_lacking(linked)
        if linked.et is not None:
            findings += et_lacking(linked, comm, linked.et)
        elif read.other_run is None:
            findings += without_et(linked, comm)
    rank = rank_of(inputs, trace.rank)
    rows = None
    if len(trace.host.start_ns) or len(trace.device.start_ns):
        more, rows = _graph_lacking(read, rank, nsys=inputs.nsys is not None)
        findings += more
    return Examined(rank, [replace(f, ranks=(rank,), files=(inputs.name,)) for f in findings], rows)


def _graph_lacking(read: LinkedRank, rank: int, *, nsys: bool) -> tuple[list[Finding], RankRows]:
    linked, comm, options = read.linked, read.comm, BuildOptions(sync="cuda")
    found = find(linked, options, comm)
    built = build_with(linked, comm, found, options)
    findings = list(waits_lacking(linked, found, built, len(comm.host_row), nsys=nsys))
    findings += late_lacking(built.graph, linked)
    graphed = GraphedRank(rank, built.graph, linked, comm, read.beside, Parts())
    parts, _ = parts_of(graphed)
    findings += [finding for _, hooks in each() for finding in hooks.lacks(graphed, built)]
    comms = rank_comms(built.graph, linked, comm, rank, read.world_size(rank))
    return findings, RankRows(comms, comms.groups, to_join(parts), len(built.graph.kind))


def ranks_lacking(rows: Sequence[RankRows]) -> Iterator[Finding]:
    """Report what the ranks lack. ``rows``: of each rank what joining reads. O(n log n) in communication ops."""
    there, world = {r.comms.rank for r in rows}, max((r.comms.world_size for r in rows), default=0)
    missing = world - sum(rank < world for rank in there)
    listed = first_few([*islice((rank for rank in range(world) if rank not in there), _LISTED + 1)], _LISTED)
    yield from if_any("missing-ranks", {"missing": missing, "world": world}, world, told=(f"rank {listed}",))
    run = join(rows, keep_unmatched=True)
    if len(rows) > 1:
        yield from _together(run, [r for r in rows if r.comms.rank not in run.silent])
    for name, part in run.parts.items():
        yield from wing(name).run_lacks(part, len(rows))


def _together(run: JoinedRanks, rows: Sequence[RankRows]) -> Iterator[Finding]:
    yield from if_any("silent-ranks", {"silent": len(run.silent)}, len(run.ranks), ranks=run.silent)
    matching = run.matching
    meetings = len(matching.meetings.kind)
    guessed = meetings - matching.by_sequence
    yield from if_any("no-seq", {"guessed": guessed, "meetings": meetings}, meetings)
    ops = sum(left.count for left in matching.unmatched)
    ranks = tuple(sorted({left.rank for left in matching.unmatched}))
    yield from if_any("unmatched-communication", {"ops": ops}, sum(len(r.comms.start_ns) for r in rows), ranks=ranks)
    yield from if_any(
        "collectives-differ",
        {"conflicts": len(matching.conflicts)},
        told=tuple(run.summary.matched.conflicts[:_LISTED]),
    )
    yield from _clocks(run, rows)
    apart, late = (int(np.count_nonzero(run.figures.apart == why)) for why in (Apart.BEGAN_APART, Apart.FIRST))
    if apart:
        yield Finding("began-apart", apart / meetings, {"meetings": apart, "spread_ns": _spread(run, rows)})
    yield from if_any("first-meeting-late", {"meetings": late}, meetings)


def _spread(run: JoinedRanks, rows: Sequence[RankRows]) -> int:
    """Return the time between the first and the last rank's first row, on the run's clock."""
    began = [
        int(clock.of(np.array([row.comms.began_ns]))[0])
        for row, clock in zip(rows, run.clocks.clocks, strict=True)
        if clock.known
    ]
    return max(began) - min(began)


def _clocks(run: JoinedRanks, rows: Sequence[RankRows]) -> Iterator[Finding]:
    lost = tuple(clock.rank for clock in run.clocks.clocks if not clock.known)
    any_comm = any(len(row.comms.start_ns) for row in rows)
    if lost and any_comm:
        yield Finding(
            "clocks-untied", len(lost) / len(rows), {"ranks": len(lost)}, told=run.clocks.warnings, ranks=lost
        )
    elif run.clocks.warnings:
        yield Finding("clocks-doubtful", 0.0, told=run.clocks.warnings)
