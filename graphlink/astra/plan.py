"""Plans what ASTRA-sim is given besides the graphs of a run, with a network measured from them, and writes it.

A transfer takes steps x latency + bytes on the wire / bandwidth (ring algorithms, nccl-tests' bus bandwidth). Its time
is the shortest of its members': who came last waited for nobody. The latency of a step comes from the smallest
transfers, the bandwidth from the largest, less their latency.
"""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.astra import READERS, files
from graphlink.astra.check_rules import ERROR, NO_HARM, Verdict
from graphlink.astra.files import Dimension, Network, Plan, Prepared
from graphlink.astra.ranks import judge, runs_of
from graphlink.errors import InputError
from graphlink.graph_model import NO_GROUP, Graph, Groups, NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import F64, I64, NOWHERE, Bool
from graphlink.output_names import GROUPS
from graphlink.publish import HIDDEN, Publication, naming, refuse_others
from graphlink.publish import write as write_file
from graphlink.records import Short, first_absent
from graphlink.replay.folder import graph_files, load, load_groups
from graphlink.replay.network import MESSAGES, SIMULATED, Transfers, transfers
from graphlink.replay.workload import Workload, workload
from graphlink.tables import how_many, numbered_values, take, tuples
from graphlink.version import __version__

DEFAULT_BYTES_PER_S: Final = 50e9
DEFAULT_STEP_NS: Final = 500.0
LARGE: Final = 1 << 20  # bytes on the wire from which a transfer shows bandwidth
SMALL: Final = 1 << 16  # up to which it shows latency
FASTER: Final = 1.5  # links inside blocks are taken for others if they are so much faster
FILES: Final = ("README.txt", "comm_group.json", "memory.json", "network.yml", "run.sh", "summary.json", "system.json")
IDLE_FILES: Final = ("trace.0.et", "trace.1.et")  # of a run of one rank
LOGS: Final = ("log-head", "log-legacy")  # what run.sh makes
_OURS: Final = (
    "groups-path",
    "alone",
    "tiny-gather",
    "small-gather",
    "cpu-statistics",
)  # do not hold for what is written here (a collective has one chunk); the last costs nothing


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

    def harms(self, reader: str, *, stops: bool = False) -> tuple[str, ...]:
        """Return what this reader does other than as recorded; with ``stops`` what may keep it from its end."""
        return tuple(
            f"{verdict.text}: {effect}"
            for verdict in self.verdicts
            if (effect := verdict.rule.effect(reader)) != NO_HARM
            and (not stops or {"aborts", "hangs"} & {*verdict.rule.ends(reader)})
        )


def simulatable(folder: Path, reader: str = READERS[0], *, replay_only: bool) -> Simulatable:
    """Read the graphs in ``folder`` as ``reader`` does, measure their network, and check that ASTRA-sim takes them.

    Raises:
        InputError: no graphs, a rank without one, or graphs that stop ASTRA-sim.
    """
    if not folder.is_dir():
        raise InputError("there is no such folder", path=folder, todo="name the folder that graphlink wrote with --out")
    paths = graph_files(folder)
    graphs = load(paths)
    world = _world(folder, graphs)
    groups = load_groups(folder)
    work = workload(graphs, legacy=reader == READERS[1])
    measured = network(transfers(work, groups), groups, max(world, 2))
    verdicts = _checked(folder, replay_only=replay_only)
    return Simulatable(folder, paths, world, work, groups, measured, verdicts, replay_only)


def planned(run: Simulatable, out: Path, asked: Network) -> Plan:
    """Plan what to write into ``out``."""
    work, groups, world = run.work, run.groups, run.world
    rings = _given(run.measured, max(world, 2), asked)
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
        network=_laid_out(rings, far(work, groups, [ring.npus for ring in rings]), asked.topology),
        replay_only=run.replay_only,
        alone=run.paths[0] if world == 1 else None,
        warnings=tuple(f"{v.text}: ASTRA-sim of 2026: {v.rule.head} Of 2024: {v.rule.legacy}" for v in run.verdicts),
    )


def _world(folder: Path, graphs: Mapping[int, Graph]) -> int:
    """Count the ranks of the run; all of them are here.

    Raises:
        InputError: one is not.
    """
    world = max(max(graphs) + 1, *(f.metadata.world_size or 0 for f in graphs.values()))
    missing = world - len(graphs)
    if missing:
        some = first_absent(graphs, world)
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


def _checked(folder: Path, *, replay_only: bool) -> tuple[Verdict, ...]:
    """Return the findings of ``graphlink check`` that hold for what is written here.

    Raises:
        InputError: it found what stops ASTRA-sim.
    """
    (run,) = runs_of(folder)
    verdicts = [verdict for verdict in judge(run, None).verdicts if verdict.rule.key not in _OURS]
    for verdict in verdicts:
        if verdict.rule.grade == ERROR and {*verdict.rule.ends("head", replay_only=replay_only)} - {"runs"}:
            raise InputError(
                f"ASTRA-sim would not run these graphs: {verdict.text}: {verdict.rule.head}",
                path=folder,
                where=verdict.examples[0] if verdict.examples else None,
                todo=f"graphlink check {shlex.quote(str(folder))} lists all that was found",
            )
    return tuple(verdicts)


def logged(work: Workload, reader: str, *, replay_only: bool) -> Bool:
    """Return which nodes a reader surely logs as done. The legacy one skips computation of 0 us in silence, though not
    all of it.
    """
    if reader == "head" or replay_only:
        return np.ones(len(work), np.bool_)
    return np.asarray((work.column("type") != NodeType.COMP) | (work.micros_ns != 0))


def _given(measured: tuple[Dimension, ...], world: int, asked: Network) -> tuple[Dimension, ...]:
    """Put what is asked about the network in the place of what was measured."""
    dimensions, rate, latency = measured, asked.gigabytes_per_s, asked.latency_ns
    if rate is not None:  # of one link: so there is one kind
        step_ns = min(ring.step_ns for ring in measured)
        kept = (line for line in measured[0].evidence if line.startswith("latency"))
        told = f"bandwidth {rate:g}e9 bytes/s: as given with --bandwidth"
        dimensions = (
            replace(measured[0], npus=world, bytes_per_s=rate * 1e9, step_ns=step_ns, evidence=(told, *kept)),
        )
    if latency is None:
        return dimensions
    told = f"latency {latency:g} ns a step: as given with --latency"
    return tuple(
        replace(ring, step_ns=latency, evidence=(*(e for e in ring.evidence if not e.startswith("latency")), told))
        for ring in dimensions
    )


def _laid_out(rings: tuple[Dimension, ...], distant: Sequence[str], given: str | None) -> tuple[Dimension, ...]:
    """Choose the topology: ``given``, else rings, or switches where a transfer is ``distant``: on a ring ASTRA-sim
    charges it the latency of every hop."""
    topology = given or ("switch" if distant else "ring")
    told = f"topology {topology}" + (": as given with --topology" if given else "")
    if not distant:
        told += "; nothing goes further than to a neighbour"
    elif topology == "ring" or not given:
        others = f" and {len(distant) - 3} more" if len(distant) > 3 else ""
        told += f"; on a ring messages pay the latency of each hop: those of {', '.join(distant[:3])}{others}"
    return tuple(replace(d, topology=topology.title().replace("-", ""), evidence=(told, *d.evidence)) for d in rings)


def write(what: Plan, out: Path, *, force: bool) -> Prepared:
    """Write the folder, all of it or nothing.

    Raises:
        OutputError: it holds other files, or an earlier run's without ``force``.
    """
    refuse_others(out, {*FILES, *IDLE_FILES, *LOGS, HIDDEN}, "astra")
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


def network(found: Transfers, groups: Groups, world: int) -> tuple[Dimension, ...]:
    """Return the network: a ring of ``world`` ranks; two where groups that are blocks of neighbours got more bandwidth
    than those across blocks."""
    block = _block(found, groups, world)
    if block is None:
        return (_dimension(world, found, ()),)
    inside, across = (take(found, _within(found, groups, block, inside=inside)) for inside in (True, False))
    why = (f"communicators of {block} neighbouring ranks got more bandwidth than those across them",)
    return _dimension(block, inside, why), _dimension(world // block, across, why)


def far(work: Workload, groups: Groups, npus: Sequence[int]) -> tuple[str, ...]:
    """Describe how many nodes send further than to a neighbour on rings of ``npus`` ranks (inner dimension first).
    Linear in nodes.

    Members of a communicator send to the next of its list and the last to the first, in an ALL_TO_ALL all to all.
    """
    found: Counter[str] = Counter()
    kind, group = work.column("comm_type"), work.column("group")
    node = np.flatnonzero(np.isin(kind, SIMULATED))
    used, nodes = np.unique(np.stack([kind[node], group[node]]), axis=1, return_counts=True)
    for (what, id_), count in tuples(used.T, nodes):
        members = np.array(groups.get(id_, range(math.prod(npus))), np.int64)
        turns = range(1, len(members) if what == CollectiveType.ALL_TO_ALL else 2)
        if any((_hops(members, np.roll(members, turn), npus) > 1).any() for turn in turns):
            found[f"{_type(what)} over {len(members)} ranks"] += count // len(members)
    send = np.flatnonzero(work.column("type") == NodeType.COMM_SEND)
    found["messages"] += how_many(_hops(work.node_rank[send], work.column("comm_dst")[send], npus) > 1)
    return tuple(f"{count:,} {what}" for what, count in found.most_common() if count)


def _hops(one: I64, other: I64, npus: Sequence[int]) -> I64:
    """Count the links between ranks on rings, both ways round, as ASTRA-sim counts: in the first dimension in which
    they differ.
    """
    hops, inner = np.zeros(len(one), np.int64), 1
    for n in npus:
        apart = np.abs(one // inner % n - other // inner % n)
        hops = np.where(hops == 0, np.minimum(apart, n - apart), hops)
        inner *= n
    return hops


def _dimension(npus: int, found: Transfers, why: tuple[str, ...]) -> Dimension:
    step, latency = _latency(found)
    rate, bandwidth = _bandwidth(found, step)
    return Dimension(
        "Ring", npus, rate or DEFAULT_BYTES_PER_S, DEFAULT_STEP_NS if step is None else step, (*why, bandwidth, latency)
    )


def _latency(found: Transfers) -> tuple[float | None, str]:
    """Return the ns of a step, None where it was not measured, and where that is from."""
    small = np.flatnonzero(found.wire_bytes <= SMALL)
    if not len(small):
        return (
            None,
            f"latency {DEFAULT_STEP_NS:,.0f} ns a step: no measurement, a default; no transfer of up to {SMALL:,} "
            "bytes was recorded",
        )
    took, steps = found.took_ns, found.steps
    least = int(small[np.argmin(took[small] / steps[small])])
    step = float(took[least] / steps[least])
    return step, (
        f"latency {step:,.0f} ns a step: the least of {len(small):,} transfers of up to {SMALL:,} bytes, "
        f"{_described(found, least)} in {took[least] / 1e3:,.1f} us, {steps[least]} steps"
    )


def _bandwidth(found: Transfers, step_ns: float | None) -> tuple[float | None, str]:
    """Return bytes a second, None where they were not measured, and where that is from."""
    wire, took = found.wire_bytes, found.took_ns
    late: F64 = found.steps.astype(np.float64) * (step_ns or 0.0)
    usable = (wire >= LARGE) & (took > 2 * late)
    if usable.any():
        most = np.flatnonzero(usable & (wire >= wire[usable].max() / 4))
        rate = float(np.median(wire[most] / (took[most] - late[most])) * 1e9)
        types = ", ".join(sorted({_type(int(t)) for t in found.type[most]}))
        return rate, (
            f"bandwidth {rate / 1e9:,.2f}e9 bytes/s: median bus bandwidth, latency taken off, of the largest "
            f"{len(most):,} "
            f"transfers, {wire[most].min():,.0f} to {wire[most].max():,.0f} bytes on the wire, {types}"
        )
    default = f"bandwidth {DEFAULT_BYTES_PER_S / 1e9:g}e9 bytes/s: no measurement, a default"
    if not len(wire):
        return None, f"{default}; no collective or message between recorded ranks"
    largest = int(np.argmax(wire))
    rest = took[largest] - late[largest]
    if wire[largest] >= LARGE:
        return None, f"{default}; transfers of {wire[largest]:,.0f} bytes took little more than their latency"
    hint = (
        f"; --bandwidth {wire[largest] / rest:.3g} plays those as recorded, and is wrong for larger ones"
        if rest > 0
        else ""
    )
    return None, f"{default}; recorded transfers are too small, {wire[largest]:,.0f} bytes on the wire at most{hint}"


def _block(found: Transfers, groups: Groups, world: int) -> int | None:
    """Return the size of the blocks of neighbours that fill the world, each a communicator, with faster links inside;
    the largest such.
    """
    blocks = {tuple(sorted(groups[g])) for g in np.unique(found.group).tolist() if g in groups}
    for size in (s for s in range(world // 2, 1, -1) if world % s == 0):
        if not all(tuple(range(a, a + size)) in blocks for a in range(0, world, size)):
            continue
        sides = (take(found, _within(found, groups, size, inside=inside)) for inside in (True, False))
        inside, across = (_bandwidth(side, _latency(side)[0])[0] for side in sides)
        if inside is not None and across is not None and inside > FASTER * across:
            return size
    return None


def _within(found: Transfers, groups: Groups, block: int, *, inside: bool) -> Bool:
    """Return the transfers of communicators whose ranks are all of one block, or are not."""
    used, which = numbered_values(found.group)
    across = np.array([g not in groups or len({r // block for r in groups[g]}) > 1 for g in used.tolist()], np.bool_)[
        which
    ]
    return np.asarray((across != inside) & (found.group != MESSAGES))


def _described(found: Transfers, i: int) -> str:
    where = "" if found.type[i] == NOWHERE else f" over {found.members[i]} ranks"
    return f"{_type(int(found.type[i]))} of {found.size_bytes[i]:,.0f} bytes{where}"


def _type(number: int) -> str:
    return "message" if number == NOWHERE else CollectiveType(number).name
