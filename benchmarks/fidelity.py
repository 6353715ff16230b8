"""How faithful the graphs are: real recordings replayed, and what-ifs on simulated programs against their truth.

    python benchmarks/fidelity.py [--traces FOLDER] [--programs 200] [--ops 120]

For each recording below FOLDER (et_R with kineto_R, else a Kineto file alone): the self-replay on the ideal machine and in ASTRA-sim's
slots, and which share of the replayed critical path is host gap and device delay. For the programs: the error of the predicted
makespan with device ops at other speeds. Self-replay alone proves little, the what-if does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphlink import build, communication, cost_ns, link_rows, match_hosts, measured_ns, read_kineto
from graphlink.cli import main as graphlink
from graphlink.depend.build import BuildOptions
from graphlink.model import NodeKind
from graphlink.replay.ideal import longest_path
from graphlink.testing import Shape, random_program, run, write_kineto

SCALES = (0.1, 0.5, 2.0, 10.0)


def recordings(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(name, inputs as on the command line) of what can be linked; a pair of two runs is refused and passed over."""
    for kineto in sorted(folder.rglob("*.json*")):
        if kineto.name.startswith(("et_", "communicators")) or "nccl" in kineto.parts:
            continue
        et = kineto.with_name(kineto.name.replace("kineto_", "et_"))
        pair = ["--et", str(et)] if et != kineto and et.exists() else []
        yield str(kineto.relative_to(folder)).split(".json")[0], [*pair, "--kineto", str(kineto)]


def replayed(folder: Path) -> None:
    print(f"{'recording':42}{'nodes':>8}{'ms':>11}{'ideal %':>9}{'slots %':>9}{'gap':>7}{'delay':>7}")
    for name, inputs in recordings(folder):
        with tempfile.TemporaryDirectory() as work:
            out, data = Path(work) / "out", Path(work) / "replay.json"
            if graphlink([*inputs, "--out", str(out), "--sync", "cuda", "--no-timeline", "--quiet"]):
                continue
            [rank] = json.loads((out / "summary.json").read_text())["ranks"]
            with Path("/dev/null").open("w") as nowhere:
                before, sys.stdout = sys.stdout, nowhere
                graphlink(["replay", str(out), "--machine", "astra-sim", "--json", str(data)])
                sys.stdout = before
            slots = json.loads(data.read_text())["runs"][0]["ranks"][0]["error_pct"]
        play = rank["replay"]
        print(
            f"{name:42}{rank['graph_nodes']:8}{play['measured_ns'] / 1e6:11.3f}{play['error_pct']:9.3f}{slots:9.3f}"
            f"{play['gap_share']:7.1%}{play['delay_share']:7.1%}",
            flush=True,
        )


def predicted_errors(seed: int, ops: int, cuda_sync: bool) -> list[float]:
    """Signed error in percent of the predicted makespan of one program, by scale."""
    shape = Shape(threads=1 + seed % 3, streams=1 + seed % 6, queries=bool(seed % 2), own_streams=True, ops=ops)
    program = random_program(seed, shape)
    recorded = run(program)
    with tempfile.TemporaryDirectory() as work:
        write_kineto(recorded, Path(work) / "kineto.json", dialect="2024", cuda_sync=cuda_sync)
        trace = read_kineto(Path(work) / "kineto.json")
    linked = link_rows(trace, None, match_hosts(trace, None))
    graph = build(linked, communication(linked), BuildOptions(sync="cuda")).graph
    # What was before the first row is in no graph, and takes its time at any speed.
    lead = recorded.makespan_ns - measured_ns(graph)
    device = graph.kind == NodeKind.DEVICE_OP
    out = []
    for scale in SCALES:
        cost = cost_ns(graph)
        cost[device] = np.rint(graph.duration_ns[device] * scale).astype(np.int64) + graph.start_delay_ns[device]
        predicted = int(longest_path(graph.first, graph.source, cost).max())
        out.append(100 * (predicted / (run(program, kernel_scale=scale).makespan_ns - lead) - 1))
    return out


def what_if(programs: int, ops: int) -> None:
    print(f"\nwhat-if on {programs} simulated programs of {ops} ops a thread: error of the makespan in percent")
    print(f"{'cuda_sync rows':16}{'scale':>7}{'median':>9}{'p90':>9}{'worst':>9}{'program':>9}")
    for cuda_sync in (True, False):
        errors = np.abs([predicted_errors(seed, ops, cuda_sync) for seed in range(programs)])
        for column, scale in zip(errors.T, SCALES, strict=True):
            print(
                f"{'yes' if cuda_sync else 'no':16}{scale:7.1f}{np.median(column):9.3f}{np.percentile(column, 90):9.3f}"
                f"{column.max():9.3f}{int(column.argmax()):9}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--ops", type=int, default=120)
    arguments = parser.parse_args()
    if arguments.traces:
        replayed(arguments.traces)
    if arguments.programs:
        what_if(arguments.programs, arguments.ops)


if __name__ == "__main__":
    main()
