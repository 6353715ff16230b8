"""Joining the communication rows of many ranks: time and memory of reading them and of all that needs every rank.

    python benchmarks/join.py                    1,024 ranks, 10 M rows
    python benchmarks/join.py --ranks 64 --rows 10000

The rows are simulated (``tests.simulator.large_columns``: tensor, data and world groups, clocks that differ by host),
in a folder as jobs of ranks leave them. The floor is reading them alone. Exit status 1 if 1,024 ranks take more than 60
s or 4 GB.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

MOST_S, MOST_MB = 60, 4000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1_024)
    parser.add_argument("--rows", type=int, default=9_766, help="of a rank")
    parser.add_argument("--no-seq", action="store_true", help="without sequence numbers")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(*measure(arguments.measure))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = write(Path(folder), arguments.ranks, arguments.rows, seq=not arguments.no_seq)
        said = subprocess.run(
            [sys.executable, __file__, "--measure", folder], check=True, capture_output=True, text=True
        ).stdout
    read_s, join_s, cpu_s, peak_mb = map(float, said.split())
    print(f"{arguments.ranks:,} ranks, {rows:,} rows{' without sequence numbers' * arguments.no_seq}")
    print(
        f"read {read_s:.1f} s, joined {join_s:.1f} s ({join_s / read_s:.1f} x reading), {cpu_s:.1f} CPU s in all, peak "
        f"{peak_mb:,.0f} MB"
    )
    return int(arguments.ranks == 1_024 and (read_s + join_s > MOST_S or peak_mb > MOST_MB))


def write(folder: Path, ranks: int, rows: int, *, seq: bool) -> int:
    """A file of rows a rank; how many rows there are."""
    from graphlink.ranks.records import RankComms
    from graphlink.run import codec
    from graphlink.run.records import RankRows
    from graphlink.wings import Parts
    from tests.simulator.cluster_large import large_columns

    total = 0
    for columns in large_columns(ranks, rows, seed=1):
        comms = RankComms(**columns.comms(seq=seq))
        total += len(comms.kind)
        with (folder / f"{comms.rank}.columns").open("wb") as out:
            codec.dump(RankRows(comms, comms.groups, Parts(), 100_000), out.write)
    return total


def measure(folder: Path) -> tuple[float, float, float, float]:
    """Wall seconds of reading and joining, CPU seconds, peak MB."""
    from graphlink.run import codec
    from graphlink.run.join import join
    from graphlink.run.records import RankRows

    begin = time.monotonic()
    rows = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            rows.append(codec.load(file, RankRows, path, "make it again"))
    read = time.monotonic()
    join(rows, keep_unmatched=False)
    end = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return read - begin, end - read, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
