"""``python -m tests.fuzz``: gives hostile inputs to every reader, by seed, and prints which were not dealt with (exit
status 1).

``--count N`` inputs beginning with seed ``--first``, dealt to the cases by weight; ``--case NAME`` for one of them;
``--seconds S`` stops earlier. A failure is printed with its seed; ``tests/fuzz/regressions.txt`` keeps those that ever
failed, which ``make test`` runs again.
"""

from __future__ import annotations

import argparse
import faulthandler
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.bases import make
from tests.fuzz.harness import BY_NAME, CASES, Place, attempt, guarded


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2_000, help="inputs (default 2000)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of each case")
    parser.add_argument("--case", choices=sorted(BY_NAME), action="append", default=[])
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--most", type=int, default=20, help="failures after which it stops (default 20)")
    given = parser.parse_args()
    faulthandler.enable()
    cases = [case for case in CASES if not given.case or case.name in given.case]
    turns = [case for case in cases for _ in range(case.weight)]
    folder = Path(tempfile.mkdtemp(prefix="graphlink-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    began, statuses, failures = time.monotonic(), Counter(), 0
    counts: Counter[str] = Counter()
    try:
        (folder / "work").mkdir()
        place = Place(folder / "base", folder / "work")
        with guarded():
            make(folder / "base")
            for k in range(given.count):
                case = turns[k * 37 % len(turns)] if len(turns) % 37 else turns[k % len(turns)]
                seed = given.first + counts[case.name]
                counts[case.name] += 1
                (folder / "last").write_text(f"{case.name} {seed}")
                outcome = attempt(place, case.name, seed)
                statuses[outcome.status] += 1
                if outcome.failure:
                    failures += 1
                    print(f"FAILED {case.name} {seed}: {outcome.failure}\n", flush=True)
                if failures >= given.most or time.monotonic() - began > given.seconds:
                    break
        told = ", ".join(f"{name} {count:,} from seed {given.first}" for name, count in counts.items())
        took = f"{sum(counts.values()):,} inputs in {time.monotonic() - began:.0f} s"
        print(f"{took} ({told}): {failures} failed; exit statuses {dict(statuses)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
