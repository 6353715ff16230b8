"""Simulates a run in ASTRA-sim, on one network or on several at once, and joins that with its recorded and its replayed
times.

Other numbers of ranks than were recorded are simulated on graphs that are made of them, in a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from graphlink.astra.files import Network
from graphlink.astra.plan import Simulatable, planned, simulatable
from graphlink.astra.simulate import (
    Simulated,
    Simulation,
    Simulator,
    SimulatorRun,
    last_ns,
    nodes_of,
    recorded_and_replayed,
    simulate,
)
from graphlink.engine.engines import RunsOn, run_all, succeeded
from graphlink.errors import UsageError
from graphlink.report.summary import alike

MOST_RUNS: Final = 64
_OWN_BYTES: Final = 150_000_000  # of a process that runs a simulator
_BYTES_A_BYTE: Final = 12  # of graphs: 9 measured of both versions


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
    recorded = simulatable(folder, simulator.reader, replay_only=False)
    times, slot_wait_ns = recorded_and_replayed(recorded)
    with tempfile.TemporaryDirectory(prefix="graphlink-", ignore_cleanup_errors=True) as made:
        runs = [*_larger(recorded, ranks, Path(made), runs_on)] if ranks else [recorded]
        simulated = _simulated(runs, networks, simulator, runs_on, Path(made), replayed=bool(ranks))
    return Simulated(
        folder=str(folder),
        simulator=str(simulator.path),
        reader=simulator.reader,
        ranks=times,
        slot_wait_ns=slot_wait_ns,
        runs=simulated,
        left_out=len(runs) * len(networks) - len(simulated),
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
    runs: Sequence[Simulatable],
    networks: Sequence[Network],
    simulator: Simulator,
    runs_on: RunsOn,
    made: Path,
    *,
    replayed: bool,
) -> list[SimulatorRun]:
    """Simulate each run on each network; ``replayed``: also replay each on the same slots."""
    pairs = [*islice(product(range(len(runs)), networks), MOST_RUNS)]
    some = runs[: pairs[-1][0] + 1]
    known = [(nodes_of(run.work, simulator.reader), run.harms(simulator.reader, stops=True)) for run in some]
    graph_bytes = [sum(path.stat().st_size for path in run.paths.values()) for run in some]
    ends_ns = [last_ns(recorded_and_replayed(run)[0]) if replayed else None for run in some]
    tasks: list[Simulation] = []
    for k, network in pairs:
        out = made / f"{len(tasks)}"
        tasks.append(Simulation(planned(runs[k], out, network), out, simulator, *known[k]))
    names = [f"{runs[k].folder} run {number}" for number, (k, _) in enumerate(pairs, 1)]
    estimates = [_OWN_BYTES + _BYTES_A_BYTE * graph_bytes[k] for k, _ in pairs]
    outcomes = succeeded(run_all(simulate, tasks, names, runs_on, estimates, "simulations"))
    return [replace(outcome, replayed_ns=ends_ns[k]) for outcome, (k, _) in zip(outcomes, pairs, strict=True)]
