"""The page of ``graphlink report`` for many ranks: CPU seconds, size, first paint and sorting in chromium.

    python benchmarks/page.py                     64 ranks of 100,000 events; some 6 GB of disk, and some minutes to link them
    python benchmarks/page.py --ranks 16 --events 5000
    python benchmarks/page.py --folder graphlink-out

Exit status 1 if a limit is missed: 20 CPU s and 5 MB for the page, 0.3 s to the first paint, 200 ms to sort 5,000 rows.
Each figure is the median of ``TIMES``. Needs playwright and chromium.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import sync_playwright

from graphlink.page.parts import Cell, Column, Page, Row, Section, Table
from graphlink.page.render import html

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator.cluster import ClusterTraining, cluster_run

TIMES = 5
ROWS = 5_000
LIMITS = {"CPU s": 20.0, "MB": 5.0, "first paint ms": 300.0, "sort by number ms": 200.0, "sort by name ms": 200.0}
PAINT = "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint')?.startTime"
SORT = """(k) => {
  const button = document.querySelectorAll("#rows th button")[k];
  const before = performance.now();
  button.click();
  document.body.offsetHeight;
  return performance.now() - before;
}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=100_000, help="events a rank, at least about")
    parser.add_argument("--folder", type=Path, help="the outputs of a run, instead of one that is made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or _linked(Path(temporary), arguments.ranks, arguments.events)
        page = Path(temporary) / "report.html"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "graphlink", "report", str(folder), "-o", str(page)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        figures = {
            "CPU s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "MB": page.stat().st_size / 1e6,
        }
        table = Path(temporary) / "table.html"
        table.write_text(_long_page(), encoding="utf-8")
        figures |= _in_browser(page, table)
    for name, value in figures.items():
        print(f"{name:20}{value:10.2f}  limit {LIMITS[name]:g}")
    return int(any(value > LIMITS[name] for name, value in figures.items()))


def _linked(base: Path, ranks: int, events: int) -> Path:
    training = ClusterTraining(data=max(ranks // 8, 1), tensor=8, steps=4, layers=6, events_per_rank=events, seed=1)
    cluster_run(training).write(base / "traces")
    command = [
        sys.executable,
        "-m",
        "graphlink",
        str(base / "traces"),
        "--out",
        str(base / "out"),
        "--no-timeline",
        "--quiet",
    ]
    subprocess.run(command, check=True)
    shutil.rmtree(base / "traces")
    return base / "out"


def _long_page() -> str:
    rows = [
        Row([Cell(f"aten::op_{k * 7919 % ROWS}"), *(Cell(f"{k * n % ROWS} us", k * n % ROWS) for n in (7, 11, 13, 17))])
        for k in range(ROWS)
    ]
    columns = [Column("operation"), *(Column(f"time {n}", "number") for n in range(4))]
    section = Section("long", "A long table", [Table("rows", f"{ROWS:,} rows", columns, rows)])
    return html(Page(title="Benchmark", about="", lead=[], sections=[section], meanings=[]))


def _in_browser(page: Path, table: Path) -> dict[str, float]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def opened(file: Path) -> Any:
            tab = browser.new_context(bypass_csp=True, viewport={"width": 1280, "height": 900}).new_page()
            tab.goto(file.as_uri())
            tab.wait_for_function(f"{PAINT} !== undefined")
            return tab

        paints = [opened(page).evaluate(PAINT) for _ in range(TIMES)]
        tab = opened(table)
        numbers = [tab.evaluate(SORT, 1 + k % 4) for k in range(TIMES)]
        names = [tab.evaluate(SORT, 0) for _ in range(TIMES)]
        browser.close()
    return {"first paint ms": median(paints), "sort by number ms": median(numbers), "sort by name ms": median(names)}


if __name__ == "__main__":
    raise SystemExit(main())
