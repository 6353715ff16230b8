"""How many calls of side files meet their kernels, by kind of file and fault, and how many meet a wrong one.

Simulated clusters of 8 ranks; the truth is the simulation's. Every call of the trace's ranks is matched, or left with a
reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.nccl.join import join
from graphlink.nccl.read.read import read_dump
from graphlink.read.kineto import read_kineto

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator import ClusterRun, ClusterTraining, LateStart, cluster_run
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_records import KINDS, NcclProfile

FAULTS = {
    "none": {},
    "began late": {"began": 0.4},
    "last 8 of each communicator": {"last": 8},
    "a fifth is missing": {"dropped": 0.2},
    "a third without times": {"zero_times": 0.33},
    "cut at 60 %": {"cut": 0.6},
    "without small messages": {"min_bytes": 8192},
    "two ranks in a process": {"ranks_a_process": 2},
    "messages in pairs": {"message_pairs": True},
    "GPU clocks off by seconds": {"kernel_channels": True},
}
ONE_OF_A_FORM = ("plugin", "proxy", "inspector", "inspector-verbose", "flight-json")
RUNS = {
    "jitter": cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2, steps=6, host_jitter_ns=20_000, seed=1)),
    "late trace": cluster_run(
        ClusterTraining(data=2, tensor=2, pipeline=2, steps=6, host_jitter_ns=20_000, seed=2),
        [LateStart(r, share=0.3) for r in range(8)],
    ),
    "all alike": cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2, steps=6, jitter=0, end_jitter_ns=0, seed=3)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[0, 5])
    ranks = parser.parse_args().ranks
    began = time.perf_counter()
    print(f"{'run':<11}{'seq':<5}{'file':<18}{'fault':<29}{'calls':>6}{'possible':>9}{'matched':>8}{'wrong':>6}  left")
    for name, run in RUNS.items():
        for seq in (True, False) if name == "jitter" else (True,):
            for kind in KINDS if name == "jitter" and seq else ONE_OF_A_FORM:
                for fault, options in FAULTS.items():
                    if fault == "cut at 60 %" and kind.startswith("flight"):
                        continue  # no reader takes half a list or pickle
                    if kind != "plugin" and fault.startswith("GPU"):
                        continue
                    shown = _line(run, NcclProfile(kind=kind, **options), ranks, seq=seq)  # type: ignore[arg-type]
                    print(f"{name:<11}{'yes' if seq else 'no':<5}{kind:<18}{fault:<29}{shown}")
    print(f"{time.perf_counter() - began:.0f} s")


def _line(run: ClusterRun, profile: NcclProfile, ranks: list[int], *, seq: bool) -> str:
    calls, possible, matched, wrong = 0, 0, 0, 0
    left: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        traces = {int(path.stem.split("_")[1]): path for path in run.write(Path(folder) / "kineto", seq=seq)}
        files = write_nccl(run, Path(folder) / "nccl", profile)
        for rank in ranks:
            trace = read_kineto(traces[rank])
            linked = link(trace, None, match_hosts(trace, None))
            own = [file for file in files if rank in file.process]
            dumps = [read_dump(file.path) for file in own]
            joined = join(linked, communication(linked), dumps, rank)
            correlation = trace.device.correlation[joined.ops.row[joined.op]]
            for dump, call, kernel in zip(
                joined.dump.tolist(), joined.call.tolist(), correlation.tolist(), strict=True
            ):
                true = own[dump].calls[call]
                wrong += true.rank != rank or true.kernel != kernel
            read = [file.calls[: len(dump.calls.rank)] for file, dump in zip(own, dumps, strict=True)]
            calls += sum(map(len, read))
            possible += sum(call.rank == rank and call.kernel is not None for part in read for call in part)
            matched += len(joined.op)
            for group in joined.groups:
                left.update(group.calls_left)
    reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(left.items()))
    return f"{calls:>6}{possible:>9}{matched:>8}{wrong:>6}  {reasons}"


if __name__ == "__main__":
    main()
