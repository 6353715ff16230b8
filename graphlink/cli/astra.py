"""``graphlink astra``: what ASTRA-sim needs beside the graphs of an earlier run, with a network measured from them."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.cli.numbers import between
from graphlink.cli.out import tell
from graphlink.errors import InputError, OutputError, UsageError

if TYPE_CHECKING:
    from graphlink.astra.files import Dimension, Listing, Run
    from graphlink.astra.findings import Verdict
    from graphlink.graph.chakra import ChakraFile

TOPOLOGIES: Final = {"ring": "Ring", "switch": "Switch", "fully-connected": "FullyConnected"}
FILES: Final = ("README.txt", "comm_group.json", "memory.json", "network.yml", "run.sh", "summary.json", "system.json")
IDLE_FILES: Final = ("trace.0.et", "trace.1.et")  # of a run of one rank
LOGS: Final = ("log-head", "log-legacy")  # what run.sh makes
_STOPS: Final = ("abort", "hang", "exit 1", "skipped", "endless", "cannot run")
_OURS: Final = ("groups-path", "alone", "cpu-statistics")  # the first two do not hold for what is written here; the last costs nothing
_CHUNKS: Final = ("tiny-gather", "small-gather")  # do not hold with the system.json of one dimension, which has one chunk a collective


def astra_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "bandwidth and latency are measured from the run's own communication where it shows them; docs/astra-sim.md"
    parser.add_argument("what", metavar="DIR", help="output folder of an earlier run, with the graphs of all its ranks")
    parser.add_argument("-o", "--out", metavar="FOLDER", help="where to (default DIR/astra-sim)")
    parser.add_argument(
        "--topology",
        choices=tuple(TOPOLOGIES),
        help="of each dimension (default ring, or switch where something goes further than to a neighbour)",
    )
    parser.add_argument(
        "--bandwidth",
        type=between(1e-6, 1e9, "bandwidth in GB/s"),
        metavar="GB/S",
        help="of one dimension, instead of the measured one (1 GB = 1e9 bytes)",
    )
    parser.add_argument(
        "--latency", type=between(0, 1e9, "time in ns"), metavar="NS", help="of a step between neighbours, instead of the measured one"
    )
    parser.add_argument(
        "--replay-only", action="store_true", help="communication takes its recorded time; ranks do not wait for each other"
    )
    parser.add_argument("--force", action="store_true", help="replace the files of an earlier graphlink astra, and no others")


def astra(arguments: argparse.Namespace) -> int:
    """Write the folder and print what is in it.

    Raises:
        InputError: no graphs, a rank without one, or graphs that stop ASTRA-sim.
        OutputError: the folder holds other files, or an earlier run's without ``--force``.
        UsageError: the output folder is the one of the graphs.
    """
    folder = Path(arguments.what)
    out = Path(arguments.out) if arguments.out else folder / "astra-sim"
    if out.exists() and folder.exists() and out.samefile(folder):
        raise UsageError("--out is the folder of the graphs", todo="name another one, or leave it away: DIR/astra-sim")
    from msgspec import structs

    from graphlink.astra.files import Prepared

    plan = _plan(arguments, folder, out)
    _refuse_foreign(out)
    listing = _write(plan, out, force=arguments.force)
    made = Prepared(
        **structs.asdict(listing),
        folder=str(out),
        ranks=plan.run.ranks,
        nodes=plan.run.nodes["head"],
        replay_only=plan.replay_only,
        warnings=plan.warnings,
    )
    tell(arguments.json, made, lambda: _report(plan, out))
    return 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that is known before anything is written."""

    folder: Path
    run: Run
    network: tuple[Dimension, ...]
    replay_only: bool
    alone: Path | None  # the graph of a run of one rank, which gets an idle second one
    groups: bool  # whether comm_group.json goes with it
    warnings: tuple[str, ...]


def _plan(arguments: argparse.Namespace, folder: Path, out: Path) -> _Plan:
    from graphlink.astra.files import Run
    from graphlink.astra.network import far, named_groups, network, transfers
    from graphlink.replay.folder import GROUPS, graph_files, load, load_groups
    from graphlink.replay.workload import workload

    if not folder.is_dir():
        raise InputError("there is no such folder", path=folder, todo="name the folder that graphlink wrote with --out")
    paths = graph_files(folder)
    files = load(paths)
    world = _world(folder, files)
    groups = load_groups(folder)
    work = workload(files)
    measured = network(transfers(work, groups), groups, max(world, 2))
    warnings = _checked(folder, replay_only=arguments.replay_only, one_chunk=len(measured) == 1)
    rings = _given(measured, max(world, 2), arguments.bandwidth, arguments.latency)
    prefix = "../trace" if world == 1 else _relative(folder, out) + "/" + paths[0].name.removesuffix(".0.et")
    named = named_groups(work)
    beyond = any(set(groups[g]) != set(range(world)) for g in named if g in groups)
    readers = frozenset(r for r, given in (("head", bool(named)), ("legacy", beyond)) if given and (folder / GROUPS).is_file())
    run = Run(prefix, max(world, 2), _expected(files, world, replay_only=arguments.replay_only), readers)
    return _Plan(
        folder=folder,
        run=run,
        network=_laid_out(rings, far(work, groups, [d.npus for d in rings]), arguments.topology),
        replay_only=arguments.replay_only,
        alone=paths[0] if world == 1 else None,
        groups=bool(readers),
        warnings=warnings,
    )


def _world(folder: Path, files: Mapping[int, ChakraFile]) -> int:
    """How many ranks the run has; all of them are here.

    Raises:
        InputError: one is not.
    """
    world = max(max(files) + 1, *(f.metadata.world_size or 0 for f in files.values()))
    missing = world - len(files)
    if missing:
        first = islice((rank for rank in range(world) if rank not in files), 8)  # a graph may say any number
        some = ", ".join(map(str, first)) + (", ..." if missing > 8 else "")
        raise InputError(
            f"has no graph of rank{'s' * (missing > 1)} {some} of a run of {world}: ASTRA-sim needs all of them, from 0",
            path=folder,
            todo="record and link all ranks into one folder; graphlink replay DIR replays the ranks that are there",
        )
    if world == 1 and (files[0].comm_size > 0).any():
        raise InputError("holds one rank, which communicates with others", path=folder, todo="record and link all ranks into one folder")
    return world


def _checked(folder: Path, *, replay_only: bool, one_chunk: bool) -> tuple[str, ...]:
    """What ``graphlink check`` warns of.

    Raises:
        InputError: it found what stops ASTRA-sim.
    """
    from graphlink.astra.ranks import judge, runs_of

    (run,) = runs_of(folder)
    ours = {*_OURS, *(_CHUNKS if one_chunk else ())}
    verdicts = [v for v in judge(run, None).verdicts if v.rule.key not in ours]
    todo = f"graphlink check {shlex.quote(str(folder))} lists all that was found"
    for verdict in verdicts:
        if verdict.rule.grade == "error" and _stops(verdict.rule.head, replay_only=replay_only):
            raise InputError(
                f"ASTRA-sim would not run these graphs: {_told(verdict)}: {verdict.rule.head}",
                path=folder,
                where=verdict.examples[0] if verdict.examples else None,
                todo=todo,
            )
    return tuple(f"{_told(v)}: feeder_v3 {v.rule.head or 'no harm'}; legacy {_legacy(v)}" for v in verdicts)


def _stops(what: str, *, replay_only: bool) -> bool:
    return any(word in what for word in _STOPS) and not (replay_only and what.endswith("(network mode)"))


def _told(verdict: Verdict) -> str:
    return f"{verdict.rule.what}: {verdict.count} ({verdict.rule.key})"


def _legacy(verdict: Verdict) -> str:
    return (verdict.rule.head if verdict.rule.legacy == "the same" else verdict.rule.legacy) or "no harm"


def _expected(files: Mapping[int, ChakraFile], world: int, *, replay_only: bool) -> dict[str, int]:
    """Nodes that a reader logs as done, the idle rank's too. The legacy one skips computation of 0 us in silence."""
    from graphlink.graph.chakra import NodeType

    nodes = sum(len(f.id) for f in files.values()) + (world == 1)
    skipped = sum(int(((f.type == NodeType.COMP) & (f.duration_micros == 0)).sum()) for f in files.values())
    return {"head": nodes, "legacy": nodes - (0 if replay_only else skipped)}


def _given(measured: tuple[Dimension, ...], world: int, gigabytes_per_s: float | None, latency_ns: float | None) -> tuple[Dimension, ...]:
    """With what the command line says in the place of what was measured."""
    dimensions = measured
    if gigabytes_per_s is not None:  # of one link: so there is one kind
        first = measured[0]
        step = min(d.step_ns for d in measured)
        kept = tuple(e for e in first.evidence if e.startswith("latency"))
        told = f"bandwidth {gigabytes_per_s:g}e9 bytes/s: as given with --bandwidth"
        dimensions = (replace(first, npus=world, bytes_per_s=gigabytes_per_s * 1e9, step_ns=step, evidence=(told, *kept)),)
    if latency_ns is not None:
        told = f"latency {latency_ns:g} ns a step: as given with --latency"
        dimensions = tuple(
            replace(d, step_ns=latency_ns, evidence=(*(e for e in d.evidence if not e.startswith("latency")), told)) for d in dimensions
        )
    return dimensions


def _laid_out(rings: tuple[Dimension, ...], far: Sequence[str], given: str | None) -> tuple[Dimension, ...]:
    """As ``given``, else rings, or switches where a transfer is ``far``: on a ring ASTRA-sim charges it the latency of every hop."""
    topology = given or ("switch" if far else "ring")
    told = f"topology {topology}" + (": as given with --topology" if given else "")
    if not far:
        told += "; nothing goes further than to a neighbour"
    elif topology == "ring" or not given:
        others = f" and {len(far) - 3} more" if len(far) > 3 else ""
        told += f"; on a ring messages pay the latency of each hop: those of {', '.join(far[:3])}{others}"
    return tuple(replace(d, topology=TOPOLOGIES[topology], evidence=(told, *d.evidence)) for d in rings)


def _relative(folder: Path, out: Path) -> str:
    """From where run.sh calls the simulator: OUT/log-head or OUT/log-legacy."""
    return Path(os.path.relpath(folder.resolve(), out.resolve() / LOGS[0])).as_posix()


def _refuse_foreign(out: Path) -> None:
    if not out.is_dir():
        return
    known = {*FILES, *IDLE_FILES, *LOGS, ".graphlink"}
    foreign = sorted(p.name for p in out.iterdir() if p.name not in known)
    if foreign:
        raise OutputError(f"holds {foreign[0]}, which is not of graphlink astra", path=out, todo="name another folder with --out")


def _write(plan: _Plan, out: Path, *, force: bool) -> Listing:
    from graphlink.astra import files as astra_files
    from graphlink.publish import Publication, naming, write
    from graphlink.replay.folder import GROUPS

    made = {
        "system.json": astra_files.system_json(len(plan.network), replay_only=plan.replay_only),
        "network.yml": astra_files.network_yml(plan.network),
        "memory.json": astra_files.memory_json(),
        "run.sh": astra_files.run_sh(plan.run),
        "README.txt": _readme(plan).encode(),
    }
    # beside run.sh, so that its path cannot contain "empty", which ASTRA-sim takes for no file
    if plan.groups:
        made[GROUPS] = (plan.folder / GROUPS).read_bytes()
    if plan.alone is not None:
        made |= {"trace.0.et": plan.alone.read_bytes(), "trace.1.et": astra_files.idle_rank()}
    listing = astra_files.Listing(files=sorted([*made, "summary.json"]), network=plan.network)
    made["summary.json"] = astra_files.listing_json(listing)
    with Publication(out, force=force) as publication:
        for name, data in made.items():
            write(publication.beside / name, data)
        with naming(publication.beside / "run.sh"):
            (publication.beside / "run.sh").chmod(0o755)
        publication.publish()
    return listing


def _readme(plan: _Plan) -> str:
    return "\n".join(
        [
            "Made by graphlink astra: what ASTRA-sim needs to run the graphs of this run.",
            "",
            *_network_lines(plan),
            "",
            "  ASTRA_SIM=/path/to/AstraSim_Analytical_Congestion_Unaware bash run.sh          the present ASTRA-sim (feeder_v3)",
            "  ASTRA_SIM=/path/to/AstraSim_Analytical_Congestion_Unaware bash run.sh legacy   that of 2024",
            "",
            "An exit status of 0 of ASTRA-sim proves nothing. run.sh succeeds where it is 0, every rank printed its finished line,",
            "and all nodes were executed. It finds the graphs by a relative path: move both folders or none.",
            *(["", "To be known of these graphs (graphlink check):", *(f"  {w}" for w in plan.warnings)] if plan.warnings else []),
            "",
        ]
    )


def _network_lines(plan: _Plan) -> list[str]:
    lines = []
    for d in plan.network:
        lines.append(f"{d.topology} of {d.npus} NPUs: {d.gigabytes_per_s:g} GB/s (2^30 bytes), latency {d.latency_ns:g} ns")
        lines += [f"  {e}" for e in d.evidence]
    if len(plan.network) > 1:
        lines.append("Two dimensions: take the congestion-unaware binary, the other one has one dimension.")
    if plan.alone is not None:
        lines.append("One rank: ASTRA-sim needs two, so trace.1.et is one that computes 1 us; trace.0.et is a copy.")
    if plan.replay_only:
        lines.append("replay-only: communication takes its recorded time and the network is not used.")
    return lines


def _report(plan: _Plan, out: Path) -> list[str]:
    lines = [f"{out}: {plan.run.ranks} ranks, {plan.run.nodes['head']:,} nodes", *_network_lines(plan)]
    lines += [f"warning: {w}" for w in plan.warnings]
    return [*lines, f"run it: ASTRA_SIM=/path/to/binary bash {shlex.quote(str(out / 'run.sh'))} [head|legacy]"]
