"""How well graphlink predicts a second recording from the first alone: real programs, recorded as they are and with one thing changed.

    python benchmarks/prediction.py --out FOLDER          records each pair five times, first and second in turn, and predicts: 10 minutes
    python benchmarks/prediction.py --out FOLDER --only straggler --repeats 3
    python benchmarks/prediction.py --recorded FOLDER     predicts what lies there already

The programs are in ``fixtures/capture/pairs.py`` (CPU, gloo, one core a rank; PyTorch is needed). What is predicted is the step: the mean
of the steps after the first, of the slowest rank. Times are medians of the repeats. The limit of an error is 5 per cent, or twice the
spread (standard deviation) of the second recordings, whichever is more. Pairs of another size of work stand apart: they need a rule for the
times of ops (``SIZES``). Exit status 1 if the median error of the others is beyond 5 per cent and beyond the median of twice the spreads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, pstdev
from typing import Any, Final

PROGRAMS: Final = Path(__file__).resolve().parents[1] / "fixtures" / "capture" / "pairs.py"
LIMIT_PCT: Final = 5.0
REMOVED: Final = '[[time]]\nname = "barrier"\nremove = true\n'
EVEN: Final = "[[time]]\nrank = 1\neven_out = true\n"
# The work of an op by its shapes: products of matrices by their multiplications, all else by the bytes that it reads and writes.
ELEMENTS: Final = '[[time]]\nname = "relu|threshold|sum|mean|pow|mul"\nscale = 2\n'
WIDER: Final = f'[[time]]\nname = "::(mm|addmm)$|foreach_add"\nscale = 4\n{ELEMENTS}'
LARGER: Final = f'[[time]]\nname = "::(mm|addmm)$"\nscale = 2\n{ELEMENTS}'


@dataclass(frozen=True, slots=True)
class Case:
    """A pair: what is changed, and how the change is asked for: arguments of a verb, and a file of what-ifs where there is one."""

    name: str
    changed: str
    verb: str
    arguments: tuple[str, ...] = ()
    what_if: str = ""


CASES: Final = (
    Case("dataloader", "DataLoader with 1 worker, not 0", "replay", ("--dataloader-workers", "1", "--cores", "2")),
    Case("barrier", "no barrier in a loop", "replay", what_if=REMOVED),
    Case("straggler", "rank 1 has as much work as rank 0", "replay", what_if=EVEN),
    Case("buckets", "gradients in one bucket, not in 2 MB", "replay", ("--buckets", "100")),
    Case("microbatches", "8 microbatches, not 4", "bubbles", ("--schedule", "1f1b", "--microbatches", "8")),
    Case("gpipe", "GPipe, not 1F1B", "bubbles", ("--schedule", "gpipe")),
    Case("interleaved", "interleaved 1F1B, 2 chunks", "bubbles", ("--schedule", "interleaved", "--chunks", "2")),
)
SIZES: Final = (
    Case("width", "layers twice as wide", "replay", what_if=WIDER),
    Case("batch", "batches twice as large", "replay", what_if=LARGER),
)
NOT_PREDICTED: Final = {
    "thread": "waits of a thread for another one are no synchronisation of a device, and none of the what-ifs moves them",
    "2 -> 4 ranks": "this machine has no core for each of four ranks",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times of a step in ms; ``inside``: of the predictions with a band, how many second recordings were in it."""

    case: Case
    before_ms: float
    predicted_ms: float
    after_ms: float
    spread_pct: float
    inside: tuple[int, int]
    refused: str = ""

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_ms / self.after_ms - 1)

    @property
    def within(self) -> bool:
        return not self.refused and abs(self.error_pct) <= max(LIMIT_PCT, 2 * self.spread_pct)


def record(case: Case, folder: Path, repeats: int) -> None:
    """Record both sides in turn, so that what changes on the machine changes both."""
    for k in range(repeats):
        for side in ("before", "after"):
            into = folder / case.name / f"{side}-{k}"
            command = [sys.executable, str(PROGRAMS), case.name, side, str(into)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stderr}")


def step_ms(recordings: Path, out: Path) -> float:
    """Link recordings into ``out``, and return the usual step of the slowest rank."""
    _run("link", str(recordings), "--out", str(out), "--force", "-q", "--no-timeline")
    summary = json.loads((out / "summary.json").read_text())
    return float(max(rank["iterations"]["mean_ns"] for rank in summary["ranks"]) / 1e6)


def predict(case: Case, out: Path, scratch: Path) -> tuple[float, tuple[float, float] | None]:
    """Return the predicted step, and its band, in ms.

    Raises:
        ValueError: graphlink refuses the change.
    """
    arguments = [*case.arguments]
    if case.what_if:
        (scratch / "what-if.toml").write_text(case.what_if)
        arguments += ["--what-if", str(scratch / "what-if.toml")]
    told = scratch / "told.json"
    _run(case.verb, str(out), *arguments, "--json", str(told))
    found = json.loads(told.read_text())
    if case.verb == "bubbles":
        return found["what_if"]["step"]["step_ns"] / 1e6, None
    step = found["what_if"][0]["band"]["step"]
    return step["ns"] / 1e6, (step["low_ns"] / 1e6, step["high_ns"] / 1e6)


def _run(*arguments: str) -> None:
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run([sys.executable, "-m", "graphlink", *arguments], stdout=subprocess.DEVNULL, stderr=said, check=False)
        said.seek(0)
        if done.returncode:
            raise ValueError(said.read().strip())


def outcome(case: Case, folder: Path) -> Outcome:
    """Predict from each first recording of a pair, and compare with all second ones."""
    sides: dict[str, list[float]] = {"before": [], "after": []}
    predicted, bands = list[float](), list[tuple[float, float]]()
    refused = ""
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        for side, times in sides.items():
            for recordings in sorted((folder / case.name).glob(f"{side}*")):
                times.append(step_ms(recordings, scratch / "out"))
                if side == "before":
                    try:
                        ms, band = predict(case, scratch / "out", scratch)
                    except ValueError as problem:
                        refused = str(problem)
                        continue
                    predicted.append(ms)
                    bands += [band] if band else []
    after = sides["after"]
    inside = sum(low <= truth <= high for low, high in bands for truth in after), len(bands) * len(after)
    return Outcome(
        case,
        median(sides["before"]),
        median(predicted) if predicted else float("nan"),
        median(after),
        100 * pstdev(after) / median(after),
        inside,
        "" if predicted else refused,
    )


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Return lines for people."""
    yield f"{'pair':13} {'first':>8} {'predicted':>9} {'second':>8} {'error':>8} {'spread':>7} {'in band':>8}  changed"
    for one in outcomes:
        inside = f"{one.inside[0]}/{one.inside[1]}" if one.inside[1] else "-"
        if one.refused:
            yield f"{one.case.name:13} {one.before_ms:8.2f} {'refused':>9} {one.after_ms:8.2f}  {one.refused.splitlines()[0]}"
        else:
            yield (
                f"{one.case.name:13} {one.before_ms:8.2f} {one.predicted_ms:9.2f} {one.after_ms:8.2f} {one.error_pct:+7.1f}% "
                f"{one.spread_pct:6.1f}% {inside:>8}  {one.case.changed}{'' if one.within else '  (beyond the limit)'}"
            )


def as_data(outcomes: Sequence[Outcome]) -> list[Mapping[str, Any]]:
    return [
        {
            "pair": one.case.name,
            "before_ms": round(one.before_ms, 3),
            "predicted_ms": None if one.refused else round(one.predicted_ms, 3),
            "after_ms": round(one.after_ms, 3),
            "spread_pct": round(one.spread_pct, 2),
            "refused": one.refused,
        }
        for one in outcomes
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Predict second recordings from first ones.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="record into this folder")
    where.add_argument("--recorded", type=Path, help="a folder that --out wrote")
    parser.add_argument("--only", nargs="*", default=[], help="these pairs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args(arguments)
    chosen = [case for case in (*CASES, *SIZES) if not told.only or case.name in told.only]
    if told.out:
        for case in chosen:
            record(case, told.out, told.repeats)
    outcomes = {case.name: outcome(case, told.out or told.recorded) for case in chosen}
    judged = [outcomes[case.name] for case in CASES if case.name in outcomes]
    print("ms a step; the first and second recordings, and the prediction from the first, are medians")
    print(*table(judged), sep="\n")
    apart = [outcomes[case.name] for case in SIZES if case.name in outcomes]
    if apart:
        print("other sizes of work, times of ops by their shapes", *table(apart), sep="\n")
    for name, why in NOT_PREDICTED.items():
        print(f"not predicted: {name}: {why}")
    if told.json:
        told.json.write_text(json.dumps(as_data([*judged, *apart]), indent=1) + "\n")
    known = [one for one in judged if not one.refused]
    if not known:
        return 0
    error, limit = median(abs(one.error_pct) for one in known), max(LIMIT_PCT, median(2 * one.spread_pct for one in known))
    print(f"median error {error:.1f} %, limit {limit:.1f} %")
    return int(error > limit)


if __name__ == "__main__":
    sys.exit(main())
