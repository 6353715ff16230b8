"""Diagnose the files of a run: each rank is linked as the main job does, but without HTA and without output."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from graphlink.depend.build import BuildOptions, build_with, find
from graphlink.doctor.recording import (
    communication_lacking,
    details_lacking,
    et_lacking,
    export_lacking,
    late_lacking,
    links_lacking,
    rank_lacking,
    rows_lacking,
    times_lacking,
    waits_lacking,
    without_et,
)
from graphlink.doctor.records import Diagnosis, Finding, Told, if_any, merged
from graphlink.engine.engines import RunsOn, naming_limits, run_all, succeeded
from graphlink.engine.memory import estimate_bytes
from graphlink.errors import GraphlinkError, InputError, SeveralRanks
from graphlink.linking.provenance import is_op
from graphlink.ranks.columns import rank_comms
from graphlink.ranks.times import Apart
from graphlink.read import kinds
from graphlink.read.heads import looks_like, read_head
from graphlink.read.host import read_host
from graphlink.read.source import reading
from graphlink.records import first_absent
from graphlink.report import summary
from graphlink.run.discover.find import of_merged, ranks_of
from graphlink.run.discover.inputs import by_kind, is_looked_into, of_files, of_folders, own_outputs, unfold
from graphlink.run.discover.pairing import NOT_RECORDED, WITHOUT_ET, Discovered, few, side_files
from graphlink.run.job import parts_of
from graphlink.run.join import JoinedRanks, join
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank, rank_of, sizes_bytes
from graphlink.run.records import GraphedRank, LinkedRank, RankRows
from graphlink.tables import how_many
from graphlink.wings import Parts, SideFile, all_of, any_of, each, wing

_LISTED: Final = 8  # ranks, groups or conflicts that a text names
MOST_GONE: Final = 8  # recordings that a message lists


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
    inputs, outcomes = given.ranks, _outcomes(given.ranks)
    if len(inputs) == 1 and isinstance(problem := outcomes[0], SeveralRanks):
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            inputs = of_merged(inputs[0], problem, Path(folder))
            outcomes = _outcomes(inputs)
    examined = succeeded(outcomes)
    first: dict[int, str] = {}
    for rank, name in zip((one.rank for one in examined), (one.name for one in inputs), strict=True):
        if first.setdefault(rank, name) != name:
            raise InputError(f"is of rank {rank}, as is {first[rank]}", path=name, todo="look at one run at a time")
    return Diagnosis(subject=list(subject), ranks=sorted(first), findings=findings_of(examined, given))


def _outcomes(inputs: Sequence[Inputs]) -> list[Examined | GraphlinkError]:
    estimates = [estimate_bytes(sum(sizes_bytes(one))) for one in inputs]
    return run_all(examine, inputs, [one.name for one in inputs], RunsOn(), estimates)


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
        nodes = how_many(is_op(read_host(path)))
        findings.append(Finding("no-kineto", figures={"nodes": nodes}, files=(str(path),)))
    if given.passed_over:
        findings.append(Finding("left-aside", 0.0, told=tuple(given.passed_over)))
    for path in given.dumps:
        with naming_limits(str(path)):
            findings += all_of("file_lacks", path, found=path in given.found, alone=not examined)
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
    findings += all_of("lacks", graphed, built)
    comms = rank_comms(built.graph, linked, comm, rank, read.world_size(rank))
    return findings, RankRows(comms, comms.groups, parts.asked("to_join"), len(built.graph.kind))


def ranks_lacking(rows: Sequence[RankRows]) -> Iterator[Finding]:
    """Report what the ranks lack. ``rows``: of each rank what joining reads. O(n log n) in communication ops."""
    there, world = {r.comms.rank for r in rows}, max((r.comms.world_size for r in rows), default=0)
    missing = world - sum(rank < world for rank in there)
    listed = (f"rank {first_absent(there, world)}",)
    yield from if_any("missing-ranks", {"missing": missing, "world": world}, world, told=listed)
    run = join(rows, keep_unmatched=True)
    if len(rows) > 1:
        yield from _together(run, [r for r in rows if r.comms.rank not in run.silent])
    for name, part in run.parts.items():
        yield from wing(name).run_lacks(part, len(rows)) or ()


def _together(run: JoinedRanks, rows: Sequence[RankRows]) -> Iterator[Finding]:
    yield from if_any("silent-ranks", {"silent": len(run.silent)}, len(run.ranks), ranks=run.silent)
    matching = run.matching
    meetings = len(matching.matches.kind)
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
    apart, late = (how_many(run.figures.apart == why) for why in (Apart.BEGAN_APART, Apart.FIRST))
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


@dataclass(frozen=True, slots=True)
class Given:
    """The files of a run. ``bare``: execution traces that no recording can belong to; ``dumps``: side files of NCCL, of
    which ``found`` were found in folders, not named; ``passed_over``: what pairing had to say."""

    ranks: tuple[Inputs, ...] = ()
    bare: tuple[Path, ...] = ()
    dumps: tuple[Path, ...] = ()
    found: frozenset[Path] = frozenset()
    passed_over: tuple[str, ...] = ()


def given(names: Sequence[str], scratch: Path) -> Given:
    """Find and pair recordings as the main job does. Traces of nsys exports lie in ``scratch`` then.

    Raises:
        InputError: there is no such file or folder, it cannot be read, or it is no recording.
        UsageError: files cannot be paired.
    """
    paths = list(dict.fromkeys(path for named in unfold(names) for path in _recordings_of(named)))
    of_kind, dumps = by_kind([path for path in paths if not path.is_dir()])
    devices, hosts, exports = (of_kind[kind.name] for kind in (kinds.KINETO, kinds.ET, kinds.NSYS))
    searched: list[str] = []
    bare: list[Path] = []
    beside: list[SideFile] = []
    for folder in filter(Path.is_dir, paths):
        heads, others = _inside(folder)
        lone = _lone_hosts(others)
        bare += lone
        beside += heads
        if not lone and (others or not heads):
            searched.append(str(folder))
    parts = [of_folders(searched, None, same_run=True)] if searched else []
    if devices:  # a single pair is one as given; more are paired by rank
        parts.append(of_files(list(map(str, devices)), list(map(str, hosts)), None, same_run=True))
    else:
        bare += hosts
    ranks = [one for part in parts for one in part.ranks]
    inside = {dump.path: dump for dump in (*(dump for part in parts for dump in part.dumps), *beside)}
    paired = Discovered(tuple(ranks), dumps=tuple(inside.values()))
    for _, hooks in each() if ranks else ():
        paired = hooks.paired(paired, [dump.path for dump in dumps])
    exports += [export for part in parts for export in part.exports]
    of_exports = ranks_of(exports, None, scratch, RunsOn(None)) if exports else []
    said = [*(text for part in parts for text in (*part.warnings, *part.missing)), *paired.missing]
    return Given(
        ranks=(*paired.ranks, *of_exports),
        bare=tuple(bare),
        dumps=tuple(dict.fromkeys([*(dump.path for dump in dumps), *inside])),
        found=frozenset(inside),
        passed_over=tuple(text for text in said if not text.startswith(WITHOUT_ET) and not text.endswith(NOT_RECORDED)),
    )


def _recordings_of(path: Path) -> Sequence[Path]:
    """Find the recordings that a folder of outputs was made from; else ``path`` itself, as where recordings lie next to
    the outputs.

    Raises:
        InputError: they are gone.
    """
    own = own_outputs(path) if path.is_dir() else frozenset()
    if not own:
        return [path]
    others = [file for file in path.iterdir() if file.is_file() and file.name not in own and is_looked_into(file.name)]
    if any(looks_like(file) in (kinds.KINETO.name, kinds.ET.name, kinds.NSYS.name) for file in others):
        return [path]
    inputs = [rank.inputs for rank in summary.load(path / "summary.json").ranks]
    named = dict.fromkeys(name for one in inputs for name in (one.kineto, one.nsys, one.et) if name is not None)
    found = {name: place for name in named for place in (path.parent / name, Path(name)) if place.exists()}
    gone = [name for name in named if name not in found]
    if gone or not named:
        raise InputError(
            "holds what graphlink made, and recordings that it was made from are not found from here",
            path=path,
            where=few(gone, MOST_GONE),
            todo="run it in the folder in which graphlink ran, or graphlink doctor RECORDINGS, where they are now",
        )
    return [found[name] for name in named]


def _inside(folder: Path) -> tuple[list[SideFile], list[Path]]:
    """Return the side files in a folder, and the other files that may be recordings."""
    with reading(folder):
        files = sorted(path for path in folder.iterdir() if path.is_file())
    dumps = side_files([path for path in files if any_of("may_be_side_file", path.name)])
    of_dumps = {dump.path for dump in dumps}
    return dumps, [path for path in files if path not in of_dumps and is_looked_into(path.name)]


def _lone_hosts(paths: Sequence[Path]) -> list[Path]:
    """Return the execution traces among files, where no recording of a device is with them."""
    hosts = []
    for path in paths:
        kind = looks_like(path)
        if kind in (kinds.KINETO.name, kinds.NSYS.name):
            return []
        if kind == kinds.ET.name:
            hosts.append(path)
    return hosts
