"""Plans what ASTRA-sim is given besides the graphs of a run, with a network measured from them, and writes it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.astra import READERS, files
from graphlink.astra.check_rules import Verdict
from graphlink.astra.files import Dimension, Network, Plan, Prepared
from graphlink.astra.network import far, network
from graphlink.astra.ranks import judge, runs_of
from graphlink.errors import InputError, OutputError
from graphlink.graph_model import NO_GROUP, Graph, NodeType
from graphlink.model import NOWHERE, Bool
from graphlink.output_names import GROUPS
from graphlink.publish import Publication, naming
from graphlink.publish import write as write_file
from graphlink.records import Short, first_few
from graphlink.replay.folder import graph_files, load, load_groups
from graphlink.replay.network import transfers
from graphlink.replay.workload import Workload, workload
from graphlink.version import __version__

FILES: Final = ("README.txt", "comm_group.json", "memory.json", "network.yml", "run.sh", "summary.json", "system.json")
IDLE_FILES: Final = ("trace.0.et", "trace.1.et")  # of a run of one rank
LOGS: Final = ("log-head", "log-legacy")  # what run.sh makes
_STOPS: Final = ("abort", "hang", "exit 1", "skipped", "endless", "cannot run")
_OURS: Final = (
    "groups-path",
    "alone",
    "cpu-statistics",
)  # the first two do not hold for what is written here; the last costs nothing
_CHUNKS: Final = (
    "tiny-gather",
    "small-gather",
)  # do not hold with the system.json of one dimension, which has one chunk a collective


@dataclass(frozen=True, slots=True, repr=False)
class Simulatable(Short):
    """The graphs of a run that ASTRA-sim takes, and the network that their communication shows. ``verdicts``: of
    ``graphlink check``.
    """

    folder: Path
    paths: dict[int, Path]
    world: int
    work: Workload
    groups: dict[int, tuple[int, ...]]
    measured: tuple[Dimension, ...]
    verdicts: tuple[Verdict, ...]
    replay_only: bool

    def harms(self, reader: str) -> tuple[str, ...]:
        """Return what of the findings this reader does other than as recorded, as lines."""
        return tuple(f"{_told(v)}: {text}" for v, text in self._texts(reader))

    def reasons(self, reader: str) -> tuple[str, ...]:
        """Return those of ``harms`` after which it may not come to its end."""
        words = [word for word in _STOPS if word != "skipped"]  # it goes on after that
        return tuple(f"{_told(v)}: {text}" for v, text in self._texts(reader) if any(word in text for word in words))

    def _texts(self, reader: str) -> list[tuple[Verdict, str]]:
        texts = ((v, v.rule.head if reader == "head" else v.rule.on_legacy) for v in self.verdicts)
        return [(v, text) for v, text in texts if text]


def simulatable(folder: Path, *, replay_only: bool) -> Simulatable:
    """Read the graphs in ``folder``, measure their network, and check that ASTRA-sim takes them.

    Raises:
        InputError: no graphs, a rank without one, or graphs that stop ASTRA-sim.
    """
    if not folder.is_dir():
        raise InputError("there is no such folder", path=folder, todo="name the folder that graphlink wrote with --out")
    paths = graph_files(folder)
    graphs = load(paths)
    world = _world(folder, graphs)
    groups = load_groups(folder)
    work = workload(graphs)
    measured = network(transfers(work, groups), groups, max(world, 2))
    verdicts = _checked(folder, replay_only=replay_only, one_chunk=len(measured) == 1)
    return Simulatable(folder, paths, world, work, groups, measured, verdicts, replay_only)


def planned(run: Simulatable, out: Path, network: Network) -> Plan:
    """Plan what to write into ``out``."""
    work, groups, world = run.work, run.groups, run.world
    rings = _given(run.measured, max(world, 2), network)
    # from where run.sh calls the simulator: OUT/log-head or OUT/log-legacy
    beside = Path(os.path.relpath(run.folder.resolve(), out.resolve() / LOGS[0])).as_posix()
    used = set(np.unique(work.column("group")[work.column("comm_type") != NOWHERE]).tolist())
    named = used - {NO_GROUP}  # all ranks have no name
    beyond = any(set(groups[group]) != set(range(world)) for group in named if group in groups)
    wanted = {"head": bool(named), "legacy": beyond} if (run.folder / GROUPS).is_file() else {}
    return Plan(
        folder=run.folder,
        prefix="../trace" if world == 1 else f"{beside}/{run.paths[0].name.removesuffix('.0.et')}",
        ranks=max(world, 2),
        nodes={  # the idle rank's too
            reader: int(logged(work, reader, replay_only=run.replay_only).sum()) + (world == 1) for reader in READERS
        },
        groups=frozenset(reader for reader, wants in wanted.items() if wants),
        network=_laid_out(rings, far(work, groups, [ring.npus for ring in rings]), network.topology),
        replay_only=run.replay_only,
        alone=run.paths[0] if world == 1 else None,
        warnings=tuple(
            f"{_told(v)}: feeder_v3 {v.rule.head or 'no harm'}; legacy {v.rule.on_legacy or 'no harm'}"
            for v in run.verdicts
        ),
    )


def _world(folder: Path, graphs: Mapping[int, Graph]) -> int:
    """Count the ranks of the run; all of them are here.

    Raises:
        InputError: one is not.
    """
    world = max(max(graphs) + 1, *(f.metadata.world_size or 0 for f in graphs.values()))
    missing = world - len(graphs)
    if missing:
        first = islice((rank for rank in range(world) if rank not in graphs), 9)  # a graph may say any number
        some = first_few([*first], 8)
        raise InputError(
            f"has no graph of rank{'s' * (missing > 1)} {some} of a run of {world}: ASTRA-sim needs all of them, from "
            "0",
            path=folder,
            todo="record and link all ranks into one folder; graphlink replay DIR replays the ranks that are there",
        )
    if world == 1 and (graphs[0].comm_size > 0).any():
        raise InputError(
            "holds one rank, which communicates with others",
            path=folder,
            todo="record and link all ranks into one folder",
        )
    return world


def _checked(folder: Path, *, replay_only: bool, one_chunk: bool) -> tuple[Verdict, ...]:
    """Return the findings of ``graphlink check`` that hold for what is written here.

    Raises:
        InputError: it found what stops ASTRA-sim.
    """
    (run,) = runs_of(folder)
    ours = {*_OURS, *(_CHUNKS if one_chunk else ())}
    verdicts = [verdict for verdict in judge(run, None).verdicts if verdict.rule.key not in ours]
    for verdict in verdicts:
        head, without_network = verdict.rule.head, replay_only and verdict.rule.head.endswith("(network mode)")
        if verdict.rule.grade == "error" and any(word in head for word in _STOPS) and not without_network:
            raise InputError(
                f"ASTRA-sim would not run these graphs: {_told(verdict)}: {head}",
                path=folder,
                where=verdict.examples[0] if verdict.examples else None,
                todo=f"graphlink check {shlex.quote(str(folder))} lists all that was found",
            )
    return tuple(verdicts)


def _told(verdict: Verdict) -> str:
    return f"{verdict.rule.what}: {verdict.count} ({verdict.rule.key})"


def logged(work: Workload, reader: str, *, replay_only: bool) -> Bool:
    """Return which nodes a reader surely logs as done. The legacy one skips computation of 0 us in silence, though not
    all of it.
    """
    if reader == "head" or replay_only:
        return np.ones(len(work), np.bool_)
    skipped: Bool = (work.column("type") == NodeType.COMP) & (work.micros_ns == 0)
    return ~skipped


def _given(measured: tuple[Dimension, ...], world: int, network: Network) -> tuple[Dimension, ...]:
    """Put what is asked about the network in the place of what was measured."""
    dimensions, rate, latency = measured, network.gigabytes_per_s, network.latency_ns
    if rate is not None:  # of one link: so there is one kind
        step_ns = min(ring.step_ns for ring in measured)
        kept = (line for line in measured[0].evidence if line.startswith("latency"))
        told = f"bandwidth {rate:g}e9 bytes/s: as given with --bandwidth"
        one = replace(measured[0], npus=world, bytes_per_s=rate * 1e9, step_ns=step_ns, evidence=(told, *kept))
        dimensions = (one,)
    if latency is None:
        return dimensions
    told = f"latency {latency:g} ns a step: as given with --latency"
    return tuple(
        replace(ring, step_ns=latency, evidence=(*(e for e in ring.evidence if not e.startswith("latency")), told))
        for ring in dimensions
    )


def _laid_out(rings: tuple[Dimension, ...], far: Sequence[str], given: str | None) -> tuple[Dimension, ...]:
    """Choose the topology: ``given``, else rings, or switches where a transfer is ``far``: on a ring ASTRA-sim charges
    it the latency of every hop."""
    topology = given or ("switch" if far else "ring")
    told = f"topology {topology}" + (": as given with --topology" if given else "")
    if not far:
        told += "; nothing goes further than to a neighbour"
    elif topology == "ring" or not given:
        others = f" and {len(far) - 3} more" if len(far) > 3 else ""
        told += f"; on a ring messages pay the latency of each hop: those of {', '.join(far[:3])}{others}"
    return tuple(replace(d, topology=topology.title().replace("-", ""), evidence=(told, *d.evidence)) for d in rings)


def write(what: Plan, out: Path, *, force: bool) -> Prepared:
    """Write the folder, all of it or nothing.

    Raises:
        OutputError: it holds other files, or an earlier run's without ``force``.
    """
    known = {*FILES, *IDLE_FILES, *LOGS, ".graphlink"}
    foreign = sorted(p.name for p in out.iterdir() if p.name not in known) if out.is_dir() else []
    if foreign:
        raise OutputError(
            f"holds {foreign[0]}, which is not of graphlink astra", path=out, todo="name another folder with --out"
        )
    made = {
        "system.json": files.system_json(len(what.network), replay_only=what.replay_only),
        "network.yml": files.network_yml(what.network),
        "memory.json": files.memory_json(),
        "run.sh": files.run_sh(what),
        "README.txt": files.readme(what),
    }
    # next to run.sh, so that its path cannot contain "empty", which ASTRA-sim takes for no file
    if what.groups:
        made[GROUPS] = (what.folder / GROUPS).read_bytes()
    if what.alone is not None:
        made |= {"trace.0.et": what.alone.read_bytes(), "trace.1.et": files.idle_rank()}
    names = sorted([*made, "summary.json"])
    made["summary.json"] = files.as_json({"graphlink": __version__, "files": names, "network": what.network})
    with Publication(out, force=force) as publication:
        for name, data in made.items():
            write_file(publication.beside / name, data)
        with naming(publication.beside / "run.sh"):
            (publication.beside / "run.sh").chmod(0o755)
        publication.publish()
    return Prepared(
        files=names,
        network=what.network,
        folder=str(out),
        ranks=what.ranks,
        nodes=what.nodes["head"],
        replay_only=what.replay_only,
        warnings=what.warnings,
    )
