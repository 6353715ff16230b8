"""The files that ASTRA-sim needs besides the graphs: system, network and memory files, and a script that runs it and
judges the result.

Keys and values are those that two versions take: astra-sim 518bd51 (March 2026, ``feeder_v3``, here ``head``) and
f66c1da (November 2024, here ``legacy``), both with the analytical backend. Sources: inputs and parsers of those
versions; docs/astra-sim.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra import READERS
from graphlink.graph.attributes import framed
from graphlink.read.document import Written

HOPS: Final = {"Ring": 1, "Switch": 2, "FullyConnected": 1}  # links between neighbours; each costs the latency once
ENDPOINT_DELAY_NS: Final = (
    10  # of each step, on top of the latency: what ASTRA-sim has fixed for some; 0 asserts at the start
)
MEMORY_GB_PER_S: Final = 1_000_000  # reductions are in the measured times; absent, ASTRA-sim divides by 0
MOST_LOGGED: Final = 400_000  # nodes; the log keeps its last 110 MB
_GB: Final = 1 << 30  # ASTRA-sim's


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of the network. ``latency_ns`` is that of a step of a ring algorithm, over all its hops.
    ``evidence``: where from.
    """

    topology: str
    npus: int
    bytes_per_s: float
    step_ns: float
    evidence: tuple[str, ...]

    @property
    def gigabytes_per_s(self) -> float:
        """Convert to the unit of the network file: 1 GB = 2^30 bytes."""
        whole = self.bytes_per_s / _GB
        return rounded if abs((rounded := round(whole, 3)) - whole) < 1e-3 * whole else float(f"{whole:.5g}")

    @property
    def latency_ns(self) -> float:
        """Return the latency of one hop in ns, as the network file has it."""
        return round(max(self.step_ns - ENDPOINT_DELAY_NS, 0) / HOPS[self.topology], 1)


@dataclass(frozen=True, slots=True)
class Network:
    """What is asked about the network, each None for what the run shows: topology as the option has it, 1 GB = 1e9
    bytes, ns a step.
    """

    topology: str | None = None
    gigabytes_per_s: float | None = None
    latency_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known before anything is written. ``prefix``: of the graphs, from the folder that a reader
    works in.
    """

    folder: Path
    prefix: str
    ranks: int
    nodes: dict[str, int]  # what each reader executes
    groups: frozenset[str]  # readers that are given comm_group.json
    network: tuple[Dimension, ...]
    replay_only: bool
    alone: Path | None  # the graph of a run of one rank, which gets an idle second one
    warnings: tuple[str, ...]


def system_json(dimensions: int, *, replay_only: bool) -> bytes:
    """Return the system file, with ring algorithms, so that a collective takes its wire bytes over the bandwidth and a
    latency per step, as bandwidths are measured.

    ``direct1`` sends an all-to-all's messages one after the other; ``ring`` would pass each on from rank to rank. One
    chunk a collective: more would only add latency in one dimension and do not share a link in two, whose bandwidth
    would be as many times too high; and an ALL_GATHER of fewer bytes than chunks never ends. ``trace-enabled`` is a
    truth value because some versions take no number.
    """
    return as_json(
        {
            "scheduling-policy": "FIFO",
            "endpoint-delay": ENDPOINT_DELAY_NS,
            "active-chunks-per-dimension": 1,
            "preferred-dataset-splits": 1,
            "all-reduce-implementation": ["ring"] * dimensions,
            "all-gather-implementation": ["ring"] * dimensions,
            "reduce-scatter-implementation": ["ring"] * dimensions,
            "all-to-all-implementation": ["direct1"] * dimensions,
            "collective-optimization": "localBWAware",
            "local-mem-bw": MEMORY_GB_PER_S,
            "trace-enabled": True,
            **({"replay-only": 1} if replay_only else {}),
        }
    )


def network_yml(dimensions: Sequence[Dimension]) -> bytes:
    """Return the network file as JSON, which is YAML too: later versions of ASTRA-sim have JSON here."""
    return as_json(
        {
            "topology": [d.topology for d in dimensions],
            "npus_count": [d.npus for d in dimensions],
            "bandwidth": [d.gigabytes_per_s for d in dimensions],
            "latency": [d.latency_ns for d in dimensions],
        }
    )


def memory_json() -> bytes:
    return as_json({"memory-type": "NO_MEMORY_EXPANSION"})


def idle_rank() -> bytes:
    """Return the graph of a rank that computes 1 us and is done."""
    node = pb.Node(id=0, name="idle rank", type=pb.COMP_NODE, duration_micros=1)
    node.attr.add(name="is_cpu_op", bool_val=False)
    head = pb.GlobalMetadata(version="0.0.4")
    return framed([head.SerializeToString(), node.SerializeToString()])


class Prepared(Written, frozen=True, kw_only=True):
    """The output of ``graphlink astra --json``: which files are ours, what the network was made of, and what is known
    of the run. ``warnings``: of ``graphlink check``."""

    files: list[str]
    network: tuple[Dimension, ...]
    folder: str
    ranks: int
    nodes: int
    replay_only: bool
    warnings: tuple[str, ...]


def run_sh(plan: Plan) -> bytes:
    """Return the script that runs ASTRA-sim in the folder and judges the result."""
    functions = "\n".join(_function(plan, reader) for reader in READERS)
    counted = max(plan.nodes.values()) <= MOST_LOGGED
    expected = " ".join(f"{reader}) expected={plan.nodes[reader]} ;;" for reader in READERS)
    return _SCRIPT.format(functions=functions, expected=expected, ranks=plan.ranks, counted=int(counted)).encode()


def simulator_options(plan: Plan, reader: str) -> list[str]:
    """Return the command line of ASTRA-sim, to be called in a folder inside the one that ``plan.write`` makes."""
    return [
        f"--workload-configuration={plan.prefix}",
        "--system-configuration=../system.json",
        "--network-configuration=../network.yml",
        "--remote-memory-configuration=../memory.json",
        *(["--comm-group-configuration=../comm_group.json"] if reader in plan.groups else []),
        "--logging-folder=log",
    ]


def _function(plan: Plan, reader: str) -> str:
    lines = " \\\n".join(f"    {shlex.quote(option)}" for option in simulator_options(plan, reader))
    return f'run_{reader}() {{\n  "$simulator" \\\n{lines}\n}}\n'


def readme(plan: Plan) -> bytes:
    return "\n".join(
        [
            "Made by graphlink astra: what ASTRA-sim needs to run the graphs of this run.",
            "",
            *network_lines(plan),
            "",
            "  ASTRA_SIM=/path/to/AstraSim_Analytical_Congestion_Unaware bash run.sh          the present ASTRA-sim "
            "(feeder_v3)",
            "  ASTRA_SIM=/path/to/AstraSim_Analytical_Congestion_Unaware bash run.sh legacy   that of 2024",
            "",
            "An exit status of 0 of ASTRA-sim proves nothing. run.sh succeeds where it is 0, every rank printed its "
            "finished line,",
            "and all nodes were executed. It finds the graphs by a relative path: move both folders or none.",
            *(
                ["", "What you should know of these graphs (graphlink check):", *(f"  {w}" for w in plan.warnings)]
                if plan.warnings
                else []
            ),
            "",
        ]
    ).encode()


def network_lines(plan: Plan) -> list[str]:
    """Describe the network of a plan, with its evidence, in lines."""
    lines = [
        line
        for d in plan.network
        for line in (
            f"{d.topology} of {d.npus} NPUs: {d.gigabytes_per_s:g} GB/s (2^30 bytes), latency {d.latency_ns:g} ns",
            *(f"  {e}" for e in d.evidence),
        )
    ]
    notes = (
        (len(plan.network) > 1, "Two dimensions: take the congestion-unaware binary, the other one has one dimension."),
        (
            plan.alone is not None,
            "One rank: ASTRA-sim needs two, so trace.1.et is one that computes 1 us; trace.0.et is a copy.",
        ),
        (plan.replay_only, "replay-only: communication takes its recorded time and the network is not used."),
    )
    return [*lines, *(text for holds, text in notes if holds)]


def as_json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


_SCRIPT: Final = r"""#!/usr/bin/env bash
# Runs ASTRA-sim on these graphs and says whether it went well: its exit status alone proves nothing.
#   ASTRA_SIM=/path/to/AstraSim_Analytical_Congestion_Unaware bash run.sh [head|legacy]
# head: the present ASTRA-sim (feeder_v3); legacy: that of 2024. Logs and output go to log-head and log-legacy.
set -u

{functions}
reader=${{1:-head}}
case $reader in
  head|legacy) ;;
  *) echo "usage: ASTRA_SIM=BINARY bash run.sh [head|legacy]" >&2; exit 2 ;;
esac
case ${{ASTRA_SIM:-}} in
  "") echo "run.sh: set ASTRA_SIM to the binary of ASTRA-sim" >&2; exit 2 ;;
  /*) simulator=$ASTRA_SIM ;;
  */*) simulator=$PWD/$ASTRA_SIM ;;
  *) simulator=$(command -v -- "$ASTRA_SIM") ;;
esac
if ! [ -x "$simulator" ]; then
  echo "run.sh: $ASTRA_SIM: no such program" >&2
  exit 2
fi

ranks={ranks}
counted={counted}  # 0: more nodes than the log keeps
case $reader in {expected} esac
here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd -P) || exit 2
mkdir -p -- "$here/log-$reader" && cd -- "$here/log-$reader" && rm -rf -- log || exit 2

"run_$reader" 2>&1 | tee out.txt
status=${{PIPESTATUS[0]}}

finished=$(grep -Eo 'sys\[[0-9]+\] finished' out.txt | sort -u | wc -l)
cycles=$(grep -Eo 'finished, [0-9]+ cycles' out.txt | grep -Eo '[0-9]+' | sort -n | tail -n 1)
executed=$(cat log/log*.log 2>/dev/null | grep -c 'callback,sys->id=')
failed=
[ "$finished" -eq "$ranks" ] || failed="$failed; $((finished)) of $ranks ranks finished"
if [ "$counted" -eq 1 ]; then
  nodes="$executed of $expected nodes executed"
  [ "$executed" -ge "$expected" ] || failed="$failed; not all nodes executed"
else
  nodes="nodes not counted: there are more than the log keeps"
fi
if [ "$status" -ne 0 ]; then
  if [ -z "$failed" ] && [ "$counted" -eq 1 ]; then
    echo "run.sh: the simulator failed as it ended (exit status $status): all was executed"
  else
    failed="; exit status $status$failed"
  fi
fi
if [ -n "$failed" ]; then
  echo "run.sh: failed: ${{failed#; }}; $nodes; see $here/log-$reader" >&2
  exit 1
fi
echo "run.sh: ok: $((finished)) of $ranks ranks finished, $nodes, $cycles cycles of 1 ns"
"""
