"""Judges the recordings of ``fixtures/capture/kit.py``, of any GPU: what each call waited for, how much standstill is
explained, what the changed programs took, and what is advised first.

    python benchmarks/gpu_proof.py FOLDER

``FOLDER`` has ``GROUP/PROGRAM.tar.xz`` as the kit writes them; pairs are those of its ``pair.toml``, or of
``fixtures/real/gpu``. Exit status 1 where a call has an edge to work that it did not wait for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import graphlink
from benchmarks.prediction import coverage, predict_described, rows
from graphlink.errors import GraphlinkError
from tests.capture.gpu_truths import Judged, judge, unpack

PAIRS: Final = Path(__file__).parents[1] / "fixtures" / "real" / "gpu" / "pair.toml"
OPTIONS: Final = graphlink.Options(timeline="none")


def linked(archive: Path, into: Path) -> Iterator[tuple[Path, graphlink.Run]]:
    """Yield the recordings of a program, and what they became; print which could not be linked."""
    for folder in unpack(archive, into / "recorded"):
        run = _linked(folder, into / "out" / folder.name)
        if isinstance(run, str):
            print(f"{archive.name.partition('.')[0]:24} {folder.name:12} {run}")
        else:
            yield folder, run


def _linked(folder: Path, out: Path) -> graphlink.Run | str:
    try:
        return graphlink.link(folder, options=OPTIONS, out=out)
    except GraphlinkError as problem:
        return problem.what


def waits(archive: Path) -> Iterator[tuple[str, Judged]]:
    """Yield the recorder of each recording, and how its calls fare."""
    with tempfile.TemporaryDirectory() as temporary:
        for folder, run in linked(archive, Path(temporary)):
            if not folder.name.startswith("counters"):
                yield folder.name.rpartition("-")[0], judge(folder, run)


def waited(archive: Path) -> tuple[str, int]:
    """Return the line of a program that knows its waits, and how many of its calls have a false edge."""
    judged = list(waits(archive))
    wrong = Counter(f"{each.call} ({recorder})" for recorder, run in judged for each in run.wrong)
    calls, false = sum(run.calls for _, run in judged), sum(bool(w.false) for _, run in judged for w in run.wrong)
    names = ", ".join(f"{count} {name}" for name, count in wrong.items())
    right = calls - wrong.total()
    return (
        f"{archive.name.partition('.')[0]:24} {right:4} of {calls:4} calls right, {false} with a false edge  {names}",
        false,
    )


def told(archive: Path) -> Iterator[str]:
    """Yield a line for each recording of a program: standstill that is explained, and the first advice."""
    with tempfile.TemporaryDirectory() as temporary:
        for folder, run in linked(archive, Path(temporary)):
            still = [rank.standstill for rank in run.summary.ranks if getattr(rank, "standstill", None) is not None]
            stood = [part for rank in still for part in (rank.calls, rank.threads, rank.streams)]
            total, explained = sum(part.ns for part in stood), sum(part.explained_ns for part in stood)
            share = f"{100 * explained / total:5.1f} % of {total / 1e6:8.1f} ms" if total else "nothing waited"
            first = next(iter(run.advice().advice), None)
            advice = "no advice" if first is None else f"{first.gain_pct or 0:5.1f} % {first.kind}: {first.what}"
            yield f"{archive.name.partition('.')[0]:24} {folder.name:12} {share:22} {advice[:80]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder, false = parser.parse_args().folder, 0
    print("what calls waited for")
    for archive in sorted((folder / "waits").glob("*.tar.xz")):
        line, more = waited(archive)
        print(line, flush=True)
        false += more
    print("\nexplained standstill, and what is advised first")
    for group in ("facts", "pairs", "libraries"):
        for archive in sorted((folder / group).glob("*.tar.xz")):
            for line in told(archive):
                print(line, flush=True)
    own = folder / "pair.toml"
    with tempfile.TemporaryDirectory() as temporary:
        results = predict_described(own if own.exists() else PAIRS, folder, Path(temporary))
    print("\n".join((*rows(results), "", *coverage(results))))
    return int(false > 0)


if __name__ == "__main__":
    sys.exit(main())
