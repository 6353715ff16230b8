"""Simulates a run in ASTRA-sim, on one network or on several at once, and joins that with its recorded and its replayed
times.

Other numbers of ranks than were recorded are simulated on graphs that are made of them, in a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from graphlink.astra.plan import Simulatable, planned, simulatable
from graphlink.astra.simulate import Simulated, Simulation, SimulatorRun, nodes_of, recorded_and_replayed, simulate
from graphlink.engine.engines import RunsOn, run_all
from graphlink.errors import GraphlinkError, UsageError
from graphlink.report.summary import alike

MOST_RUNS: Final = 64
_OWN_BYTES: Final = 150_000_000  # of a process that runs a simulator
_BYTES_A_BYTE: Final = 12  # of graphs: 9 measured of both versions


@dataclass(frozen=True, slots=True)
class Network:
    """What is asked about the network, each None for what the run shows: topology as the option has it, 1 GB = 1e9
    bytes, ns a step.
    """

    topology: str | None = None
    gigabytes_per_s: float | None = None
    latency_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Simulator:
    """A binary of ASTRA-sim. ``reader``: ``head`` or ``legacy``; ``timeout_s``: after which a run of it is ended."""

    path: Path
    reader: str
    timeout_s: float


def simulate_run(
    folder: Path, simulator: Simulator, networks: Sequence[Network], runs_on: RunsOn, ranks: Sequence[int] = ()
) -> Simulated:
    """Simulate the graphs in ``folder`` on each of ``networks``, of which no more than ``MOST_RUNS`` are run.

    ``ranks``: numbers of data parallel ranks in all, each of them on each network; none: as recorded.

    Raises:
        InputError: the graphs are not there or stop ASTRA-sim, no graphs of so many ranks can be made, or the binary
            does not start.
        UsageError: there cannot be so many ranks.
    """
    recorded = simulatable(folder, replay_only=False)
    times, slot_wait_ns = recorded_and_replayed(recorded)
    with tempfile.TemporaryDirectory(prefix="graphlink-", ignore_cleanup_errors=True) as made:
        runs = [*_larger(recorded, ranks, Path(made), runs_on)] if ranks else [recorded]
        asked = [(run, network) for run in runs for network in networks]
        found = _simulated(asked[:MOST_RUNS], simulator, runs_on, Path(made), replayed=bool(ranks))
    return Simulated(
        folder=str(folder),
        simulator=str(simulator.path),
        reader=simulator.reader,
        ranks=times,
        slot_wait_ns=slot_wait_ns,
        runs=found,
        left_out=max(len(asked) - MOST_RUNS, 0),
        warnings=[text for text, _ in alike(line for run in reversed(runs) for line in run.harms(simulator.reader))],
    )


def _larger(recorded: Simulatable, ranks: Sequence[int], made: Path, runs_on: RunsOn) -> Iterator[Simulatable]:
    """Yield the run with other numbers of ranks, in folders of their own."""
    from graphlink.scale.make import Wishes, data_axis, scale

    axis = None
    for count in ranks:
        if count == recorded.world:
            yield recorded
            continue
        axis = axis or data_axis(recorded.folder)
        size, rest = divmod(count * axis.size, recorded.world)
        if rest:
            each = recorded.world // axis.size
            raise UsageError(
                f"--sweep ranks={count}: ranks are added {each:,} at a time", todo=f"name a multiple of {each:,}"
            )
        out = made / f"ranks-{count}"
        scale(recorded.folder, Wishes(data=size), out, runs_on, force=False)
        yield simulatable(out, replay_only=False)


def _simulated(
    asked: Sequence[tuple[Simulatable, Network]], simulator: Simulator, runs_on: RunsOn, made: Path, *, replayed: bool
) -> list[SimulatorRun]:
    """Simulate each run on its network; ``replayed``: also replay each on the same slots."""
    tasks, estimates, ends = [], [], []
    of_run: dict[int, tuple[Simulation, int, int | None]] = {}
    for k, (run, network) in enumerate(asked):
        out = made / f"{k}"
        plan = planned(
            run, out, topology=network.topology, gigabytes_per_s=network.gigabytes_per_s, latency_ns=network.latency_ns
        )
        if id(run) not in of_run:
            nodes, reasons = nodes_of(run.work, simulator.reader), run.reasons(simulator.reader)
            first = Simulation(plan, out, simulator.path, simulator.reader, simulator.timeout_s, nodes, reasons)
            estimate = _OWN_BYTES + _BYTES_A_BYTE * sum(path.stat().st_size for path in run.paths.values())
            of_run[id(run)] = first, estimate, _replayed_ns(run) if replayed else None
        first, estimate, end = of_run[id(run)]
        tasks.append(dataclass_replace(first, plan=plan, out=out))
        estimates.append(estimate)
        ends.append(end)
    names = [f"{run.folder} run {k + 1}" for k, (run, _) in enumerate(asked)]
    found = []
    for outcome, end in zip(run_all(simulate, tasks, names, runs_on, estimates, "simulations"), ends, strict=True):
        if isinstance(outcome, GraphlinkError):
            raise outcome
        found.append(replace(outcome, replayed_ns=end))
    return found


def _replayed_ns(run: Simulatable) -> int | None:
    ends = [one.replayed_ns for one in recorded_and_replayed(run)[0]]
    return None if None in ends else max(end for end in ends if end is not None)
