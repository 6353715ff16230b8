"""CPU time of what is done with a graph, over its size, against floors measured in the same run (``floor.py``).

    python benchmarks/growth.py                        100 k, 300 k, 1 M and 3 M nodes; 6 GB of disk
    python benchmarks/growth.py --nodes 100000 300000

read: the ``.et`` into columns; floor: protobuf's parse of its messages. ideal and slots: the replay, from the columns
read; floor: a walk over the edges in plain Python, with a heap that every node goes through for the slots. path:
critical path with slack of every node and the 100 largest gains, from the graph in memory, the replay before it
included; floor: the walk. Seconds are user + system, the best of five. verb: the whole process ``graphlink replay
GRAPH``; the best of three; floor: parse and walk.

Exit status 1 if a limit is missed: no exponent of a fit over all sizes above 1.05; at 1 M nodes 18 s for the verb and 3
s for the path.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import synthetic
from scale import exponent, floor_s, run

from graphlink.graph.critical import cost_ns
from graphlink.graph.path_file import explain
from graphlink.graph.read_et import read_et
from graphlink.ranks import group_ids as groups
from graphlink.replay.machines import play_ideal, replay
from graphlink.replay.slots import play_slots
from graphlink.replay.workload import workload
from graphlink.run import job

SIZES = (100_000, 300_000, 1_000_000, 3_000_000)
EVENTS_PER_NODE = 1.985
MOST_EXPONENT, MILLION, MOST_S = 1.05, 1_000_000, {"verb": 18.0, "path": 3.0}
FLOORS = {
    "read": ("parse",),
    "ideal": ("walk",),
    "slots": ("walk", "queue"),
    "path": ("walk",),
    "verb": ("parse", "walk"),
}


def best_s(work: Callable[[], object]) -> float:
    """CPU seconds, the best of five."""

    def once() -> float:
        gc.collect()
        before = time.process_time()
        work()
        return time.process_time() - before

    return min(once() for _ in range(5))


def path(folder: Path) -> dict[str, float]:
    """Builds the graph of the pair in ``folder``, measures, and writes it to ``trace.0.et``."""
    options = job.Options(sync="cuda", timeline="none")
    prepared = job.prepare(job.Inputs(kineto=folder / "kineto_0.json", et=folder / "et_0.json"), options)
    graph, linked, comm = prepared.built.graph, prepared.linked, prepared.comm

    def found() -> object:
        cost = cost_ns(graph)
        return explain(graph, linked, comm, replay(graph, cost).end_ns, cost)

    out = {"nodes": len(graph.kind), "edges": len(graph.source), "path": best_s(found)}
    ids = groups.assign({prepared.rank: prepared.plan.groups})[prepared.rank]
    job.finish(prepared, job.Joined(ids, prepared.world_size), options, folder)
    return out


def replays(folder: Path) -> dict[str, float]:
    """Measures on the ``trace.0.et`` in ``folder``."""
    graph = folder / "trace.0.et"
    read = best_s(lambda: read_et(graph))
    files = {0: read_et(graph)}
    return {
        "read": read,
        "ideal": best_s(lambda: play_ideal(workload(files))),
        "slots": best_s(lambda: play_slots(workload(files))),
    }


def alone(what: str, folder: Path) -> dict[str, float]:
    """``path`` or ``replays`` in a process of its own."""
    command = [sys.executable, __file__, what, str(folder)]
    out: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return out


def measure(nodes: int, folder: Path) -> dict[str, float]:
    """Seconds by what is done, and of each floor, of a graph of about ``nodes``."""
    folder.mkdir()
    synthetic.write(folder, int(nodes * EVENTS_PER_NODE))
    seconds = alone("path", folder) | alone("replays", folder)
    graph, count = str(folder / "trace.0.et"), str(int(seconds["nodes"]))
    seconds["verb"] = min(run([sys.executable, "-m", "graphlink", "replay", graph]).cpu_s for _ in range(3))
    seconds |= {"parse": floor_s("parse", graph), "walk": floor_s("walk", count), "queue": floor_s("queue", count)}
    shutil.rmtree(folder)
    return seconds


def line(row: dict[str, float]) -> str:
    cells = [
        f"{row[what]:>9.2f}{row[what] / sum(row[floor] for floor in floors):>7.2f}" for what, floors in FLOORS.items()
    ]
    return f"{row['nodes']:>11,.0f}{row['edges']:>11,.0f}" + "".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--tmp", type=Path, help="where the files are written (default: the system's temporary folder)")
    arguments = parser.parse_args()
    print(f"{'nodes':>11}{'edges':>11}" + "".join(f"{what + ' s':>9}{'ratio':>7}" for what in FLOORS), flush=True)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir=arguments.tmp, prefix="graphlink-bench-") as tmp:
        for nodes in arguments.nodes:
            rows.append(measure(nodes, Path(tmp) / str(nodes)))
            print(line(rows[-1]), flush=True)
    million = [row for row in rows if abs(row["nodes"] / MILLION - 1) < 0.05]
    problems = [
        f"{what} takes more than {most} s" for what, most in MOST_S.items() for row in million if row[what] > most
    ]
    if len(rows) > 1:
        slopes = {
            what: exponent([(row["nodes"], row[what]) for row in rows]) for what in (*FLOORS, "parse", "walk", "queue")
        }
        print("exponent  " + ", ".join(f"{what} {slope:.3f}" for what, slope in slopes.items()))
        problems += [
            f"{what} grows with the power {slopes[what]:.3f}" for what in FLOORS if slopes[what] > MOST_EXPONENT
        ]
    for problem in problems:
        print(f"missed: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    if sys.argv[1:2] in (["path"], ["replays"]):
        print(json.dumps({"path": path, "replays": replays}[sys.argv[1]](Path(sys.argv[2]))))
    else:
        sys.exit(main())
