"""Simulates a run in ASTRA-sim, on one network or on several at once, and joins that with its recorded and its replayed times."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphlink.astra.plan import planned, simulatable
from graphlink.astra.simulate import Simulated, Simulation, nodes_of, recorded_and_replayed, simulate
from graphlink.engine.engines import RunsOn, run_all
from graphlink.errors import GraphlinkError

MOST_RUNS: Final = 64
_OWN_BYTES: Final = 150_000_000  # of a process that runs a simulator
_BYTES_A_BYTE: Final = 12  # of graphs: 9 measured of both versions


@dataclass(frozen=True, slots=True)
class Network:
    """What is asked about the network, each None for what the run shows: topology as the option has it, 1 GB = 1e9 bytes, ns a step."""

    topology: str | None = None
    gigabytes_per_s: float | None = None
    latency_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Simulator:
    """A binary of ASTRA-sim. ``reader``: ``head`` or ``legacy``; ``timeout_s``: after which a run of it is ended."""

    path: Path
    reader: str
    timeout_s: float


def simulate_run(folder: Path, simulator: Simulator, networks: Sequence[Network], runs_on: RunsOn) -> Simulated:
    """Simulate the graphs in ``folder`` on each of ``networks``, of which no more than ``MOST_RUNS`` are run.

    Raises:
        InputError: the graphs are not there or stop ASTRA-sim, or the binary does not start.
    """
    run = simulatable(folder, replay_only=False)
    ranks, slot_wait_ns = recorded_and_replayed(run)
    nodes, reasons = nodes_of(run.work, simulator.reader), run.reasons(simulator.reader)
    estimate = _OWN_BYTES + _BYTES_A_BYTE * sum(path.stat().st_size for path in run.paths.values())
    with tempfile.TemporaryDirectory(prefix="graphlink-", ignore_cleanup_errors=True) as made:
        tasks = []
        for k, one in enumerate(networks[:MOST_RUNS]):
            out = Path(made) / f"{k}"
            plan = planned(run, out, topology=one.topology, gigabytes_per_s=one.gigabytes_per_s, latency_ns=one.latency_ns)
            tasks.append(Simulation(plan, out, simulator.path, simulator.reader, simulator.timeout_s, nodes, reasons))
        names = [f"{folder} run {k + 1}" for k in range(len(tasks))]
        outcomes = run_all(simulate, tasks, names, runs_on, [estimate] * len(tasks), "simulations")
    runs = []
    for outcome in outcomes:
        if isinstance(outcome, GraphlinkError):
            raise outcome
        runs.append(outcome)
    return Simulated(
        folder=str(folder),
        simulator=str(simulator.path),
        reader=simulator.reader,
        ranks=ranks,
        slot_wait_ns=slot_wait_ns,
        runs=runs,
        left_out=max(len(networks) - MOST_RUNS, 0),
        warnings=list(run.harms(simulator.reader)),
    )
