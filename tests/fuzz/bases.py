"""Small sound files of every kind that is read, and output folders of runs on them: what hostile inputs are made of."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from graphlink.cli import main
from tests.capture.gpu_truths import unpack
from tests.paddle_runs import one_f_one_b, simulate
from tests.simulator import Training, run, training_program
from tests.simulator.cluster import cluster_run
from tests.simulator.cluster_records import ClusterTraining
from tests.simulator.et import Layout, write_et
from tests.simulator.kineto import write_kineto
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_files import WRITERS
from tests.simulator.nccl_records import NcclProfile
from tests.simulator.nsys import NsysVariation, write_nsys
from tests.simulator.paddle import write_paddle

CUSPY = Path(__file__).parents[2] / "fixtures" / "real" / "gpu" / "cuspy" / "host-node.tar.xz"
KINETO = ("2024", "2021", "rocm")
ETS = {"et": Layout.V1_1_0, "et_flat": Layout.V1_0_1}


def make(folder: Path) -> None:
    """Writes all of them into ``folder``."""
    executions = [run(training_program(1, Training(steps=1, layers=1, ranks=2, rank=rank))) for rank in (0, 1)]
    for rank, execution in enumerate(executions):
        (folder / f"rank{rank}").mkdir(parents=True)
        for name, layout in ETS.items():
            write_et(execution, folder / f"rank{rank}" / f"{name}.json", layout=layout.value)
        for dialect in KINETO:
            write_kineto(execution, folder / f"rank{rank}" / f"kineto_{dialect}.json", dialect=dialect)
    unpack(CUSPY, folder / "cuspy")
    write_nsys(executions[:1], folder / "run.sqlite", vary=NsysVariation(nccl=True))
    _small(folder / "run.sqlite")
    write_paddle(simulate(one_f_one_b(2, 3), lambda _rank, op: 1_000_000 * (1 + (op.phase == "B"))), folder / "paddle")
    cluster = cluster_run(ClusterTraining(data=2, tensor=1, steps=1, layers=1, microbatches=1))
    cluster.write(folder / "cluster")
    for kind in WRITERS:
        write_nccl(cluster, folder / "nccl" / kind, NcclProfile(kind=kind, proxy_steps=True, kernel_channels=True))
    pairs = [(folder / f"rank{rank}" / "et.json", folder / f"rank{rank}" / "kineto_2024.json") for rank in (0, 1)]
    quick = ["--sync", "cuda", "--jobs", "1", "-q"]
    flags = [word for et, kineto in pairs for word in ("--et", str(et), "--kineto", str(kineto))]
    _done([*flags, "--out", str(folder / "out"), "--linked", *quick])
    _done(["--paddle-logs", str(folder / "paddle"), "--out", str(folder / "pipeline"), "-q"])
    _done([*flags, "--rank-job", "--no-timeline", "--out", str(folder / "jobs"), *quick])


def _small(path: Path) -> None:
    """With small pages, so that a copy takes no time."""
    import sqlite3

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 512")
    connection.execute("VACUUM")
    connection.close()


def _done(arguments: list[str]) -> None:
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        status = main(arguments)
    assert status == 0, err.getvalue()
