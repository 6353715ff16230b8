"""``python -m tests.golden``: compare outputs of small recordings with the dumps in git; ``--write`` rewrites these."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.golden.make import CASES, DUMPS, differences, dumps


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default all)")
    parser.add_argument("--write", action="store_true", help="rewrite the dumps")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="write whole dumps here instead, to compare those of two versions"
    )
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"no case: {', '.join(sorted(unknown))}")
    found = []
    for case in given.cases or CASES:
        print(case, flush=True)
        with tempfile.TemporaryDirectory(prefix="graphlink-golden-") as folder:
            if given.write or given.into:
                made = dict(dumps(case, Path(folder), whole=given.into is not None))
                write(made, (given.into.resolve() if given.into else DUMPS) / case)
            else:
                found += differences(case, Path(folder))
    print("\n".join(found))
    return int(bool(found))


def write(made: dict[str, str], folder: Path) -> None:
    """Replace the dumps in a folder by those that were made."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
