"""CPU time and memory of ``read_nsys`` against a floor measured in the same run: ``SELECT *`` of the tables it reads,
with sqlite3.

Two exports of the same kernels: with ranges as pipelines write them (one a hundred kernels, plain), and with those of
``emit_nvtx`` (one a kernel, each name different). Each measurement is a process of its own: user + system seconds of
the work alone, after imports, the better of three; peak resident memory of the whole process.

    python benchmarks/nsys.py                         300,000 kernels: 0.5 GB of disk
    python benchmarks/nsys.py --kernels 1000000

Exit status 1 if a limit is missed: 300,000 kernels with the ranges of a pipeline within 1.2 s and 300 MB.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator import nsys_tables as tables
from tests.simulator.nsys import global_pid

MOST_S, MOST_MB, MOST_AT = 1.2, 300, 300_000
CUPTI = tables.CUPTI
TABLES = (
    CUPTI + "KERNEL",
    CUPTI + "MEMCPY",
    CUPTI + "RUNTIME",
    "NVTX_EVENTS",
    CUPTI + "SYNCHRONIZATION",
    CUPTI + "CUDA_EVENT",
)
STEP_NS, EVERY = (
    10_000,
    50,
)  # one kernel in 10 us; of 50 kernels one comes with a copy, a record, a wait and a synchronisation
NAMES = 400
# columns that real exports have and nothing reads: they cost time to anybody who reads whole rows
WIDTH = ("cacheConfig", "registersPerThread", "gridY", "gridZ", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory",
         "localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted", "sharedMemoryLimitConfig", "clusterX", "clusterY",
         "clusterZ")  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the work, and peak resident MB of its process."""

    cpu_s: float
    peak_mb: float


def rows_of(kernels: int, table: str, *, emit_nvtx: bool) -> Iterator[Row]:
    """Rows of one table: a process with two threads that launches onto one stream, and copies on another."""
    process = global_pid(4242)
    work = {"deviceId": 0, "contextId": 1, "greenContextId": 0, "globalPid": process}
    for k in range(kernels):
        at, ids, thread = 10**9 + k * STEP_NS, 10 * k + 1, process | 4242 + k % 2
        special = k % EVERY == 0
        if table == CUPTI + "KERNEL":
            more = dict.fromkeys(WIDTH, 32) | {
                "shortName": 2,
                "demangledName": 10 + k % NAMES,
                "gridX": 80,
                "blockX": 128,
                "launchType": 1,
            }
            yield {"start": at + 5_000, "end": at + 14_000, "streamId": 7, "correlationId": ids, **work, **more}
        elif table == CUPTI + "MEMCPY" and special:
            more = {"bytes": 4096, "copyKind": 2, "srcKind": 2, "dstKind": 1}
            yield {"start": at + 5_000, "end": at + 6_000, "streamId": 20, "correlationId": ids + 1, **work, **more}
        elif table == CUPTI + "RUNTIME":
            calls = [(ids, 3, 2_000)] + ([(ids + n, 3 + n, 3_000 + 1_000 * n) for n in range(1, 5)] if special else [])
            for correlation, name, late in calls:
                named = {
                    "globalTid": thread,
                    "correlationId": correlation,
                    "nameId": name,
                    "eventClass": 0,
                    "returnValue": 0,
                }
                yield {"start": at + late, "end": at + late + 900, **named}
        elif table == "NVTX_EVENTS" and (emit_nvtx or k % 100 == 0):
            text = f"aten::op{k % NAMES}, seq = {k}, op_id = {k + 7}" if emit_nvtx else f"F{k // 100 % 64}"
            yield {"start": at, "end": at + 9_500, "eventType": 59, "text": text, "globalTid": thread, "domainId": 0}
        elif table == CUPTI + "CUDA_EVENT" and special:
            yield {
                "streamId": 20,
                "correlationId": ids + 2,
                "eventId": k % 64,
                "eventSyncId": ids,
                "timestamp": 0,
                **work,
            }
        elif table == CUPTI + "SYNCHRONIZATION" and special:
            more = {"syncType": 2, "eventId": k % 64, "eventSyncId": ids}
            yield {"start": at + 6_100, "end": at + 6_300, "streamId": 7, "correlationId": ids + 3, **work, **more}


def write(path: Path, kernels: int, *, emit_nvtx: bool) -> int:
    """An export of so many kernels; returns how many rows it has in all."""
    connection = sqlite3.connect(path)
    strings = {2: "kernel", 3: "cudaLaunchKernel_v7000", 4: "cudaMemcpyAsync_v3020", 5: "cudaEventRecord_v3020"}
    strings |= {6: "cudaStreamWaitEvent_v3020", 7: "cudaStreamSynchronize_v3020"}
    strings |= {10 + k: f"void at::native::kernel_{k}<4, at::native::Functor<float>>(int, float)" for k in range(NAMES)}
    count = 0
    with connection:
        for table in ("StringIds", "TARGET_INFO_SESSION_START_TIME", *TABLES):
            columns = tables.create(connection, table, "3.25")
            if table == CUPTI + "KERNEL":
                for name in WIDTH:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER")
                columns = (*columns, *WIDTH)
            rows = ({"id": k, "value": text} for k, text in strings.items()) if table == "StringIds" else iter(())
            tables.fill(
                connection,
                table,
                columns,
                rows if table == "StringIds" else rows_of(kernels, table, emit_nvtx=emit_nvtx),
            )
            count += connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    connection.close()
    return count


def floor(path: str) -> None:
    """Every row of the tables as sqlite3 gives it, none kept."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    for table in TABLES:
        cursor = connection.execute(f"SELECT * FROM {table}")
        while cursor.fetchmany(10_000):
            pass
    connection.close()


def work(what: str, path: str) -> None:
    """In a process of its own: prints CPU seconds and peak MB."""
    if what == "read":
        from graphlink.read.nsys.report import read_nsys

        job: Any = read_nsys
    else:
        job = floor
    before = time.process_time()
    job(path)
    per_mb = 1 << 20 if sys.platform == "darwin" else 1 << 10
    print(time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mb)


def measure(what: str, path: Path) -> Cost:
    found = []
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, __file__, "--work", what, str(path)], check=True, capture_output=True, text=True
        )
        found.append([float(word) for word in ran.stdout.split()])
    return Cost(*min(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=MOST_AT, metavar="N")
    parser.add_argument("--work", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work)
        return 0
    missed = []
    print(
        f"{'ranges':>12}{'kernels':>12}{'rows':>12}{'floor s':>9}{'read s':>8}{'ratio':>7}{'floor MB':>10}{'read MB':>9}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="graphlink-bench-") as folder:
        for emit_nvtx in (False, True):
            path = Path(folder) / "run.sqlite"
            path.unlink(missing_ok=True)
            rows = write(path, arguments.kernels, emit_nvtx=emit_nvtx)
            least, read = measure("floor", path), measure("read", path)
            name = "emit_nvtx" if emit_nvtx else "pipeline"
            cells = f"{name:>12}{arguments.kernels:>12,}{rows:>12,}{least.cpu_s:>9.2f}{read.cpu_s:>8.2f}{read.cpu_s / least.cpu_s:>7.2f}"
            print(f"{cells}{least.peak_mb:>10.0f}{read.peak_mb:>9.0f}", flush=True)
            if not emit_nvtx and arguments.kernels <= MOST_AT and (read.cpu_s > MOST_S or read.peak_mb > MOST_MB):
                missed.append(
                    f"{read.cpu_s:.2f} s, {read.peak_mb:.0f} MB, where {MOST_S} s and {MOST_MB} MB are allowed"
                )
    for problem in missed:
        print(f"missed: {problem}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
