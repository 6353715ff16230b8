"""Second recordings: what graphlink predicts from a recording of a program, and what the program with one thing changed
really took.

    python benchmarks/prediction.py FOLDER [--record] [--repeats 5] [--json FILE] [--keep fixtures/real/pairs]
    python benchmarks/prediction.py FOLDER [--pairs FOLDER/pair.toml] [--json FILE]

``FOLDER/<program>/<repeat>`` has the recordings; ``--record`` makes those that are missing, all programs in turn, so
that a drift of the machine meets both sides of a pair. Each recording of the first program predicts a step of the
second one, from itself alone and by the same rules; the median is compared with the median of what the second took.
``--keep`` copies of each program the recording nearest to its median.

A folder with a ``pair.toml`` (or one named by ``--pairs``) has other programs: a table ``[[pair]]`` each with the fields of
``Described``. Beside the errors it prints how many second runs were in the bands of 90 %, by kind of change.

A step is the mean of those after the first, from end to end. The spread of repeats is the median of how far they are
from their median.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

import graphlink
from graphlink.errors import GraphlinkError, UsageError
from graphlink.pipeline.file import Bubbles, load
from graphlink.pipeline.records import StepTime
from graphlink.pipeline.what_if_schedule import offer

ROOT: Final = Path(__file__).parents[1]
CAPTURE: Final = ROOT / "fixtures" / "capture" / "pairs.py"
RESNET_4_WORKERS_MS: Final = 139.7  # samples of the TensorBoard plugin: a step of resnet50_num_workers_4
LEAST_PCT: Final = 5.0  # an error up to this is good enough, and up to twice the spread of the repeats
VIEWS: Final = re.compile(r"aten::(as_strided|t|transpose|view|expand|permute|detach|resolve_conj|empty\w*)$")
MATMULS: Final = re.compile(r"aten::(mm|addmm)$")

Predictor = Callable[[Path, graphlink.Run], float]


class Refused(Exception):
    """Graphlink does not predict this from this recording; the text says why."""


@dataclass(frozen=True)
class Pair:
    """Two programs of ``fixtures/capture/pairs.py``; ``predict`` takes the folder of a recording of ``before`` and its
    run, and returns the ns of a step of ``after``. ``of_size``: work of another size, whose times no recording of the
    first has."""

    before: str
    after: str
    predict: Predictor
    of_size: bool = False


def replayed(change: str | Callable[[Path, graphlink.Run], str], folder: Path, run: graphlink.Run) -> float:
    """Return the mean step of a replay with the changes of a ``--what-if`` file. Raises Refused."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "change.toml")
        file.write_text(change if isinstance(change, str) else change(folder, run))
        try:
            [found] = run.replay(what_if=file).what_if
        except (UsageError, ValueError) as problem:
            raise Refused(str(problem).splitlines()[0]) from None
    if found.steps_ns is None:
        raise Refused("the replay does not finish, or no steps are marked")
    return found.steps_ns[1]


def scheduled(schedule: str, microbatches: int, folder: Path, run: graphlink.Run) -> float:
    """Return the step that ``graphlink bubbles DIR --schedule --microbatches`` predicts. Raises Refused."""
    try:
        return float(_step(load(run.folder / "bubbles.json"), schedule, microbatches).step_ns)
    except GraphlinkError as problem:
        raise Refused(str(problem).splitlines()[0]) from None


def _step(file: Bubbles, schedule: str, microbatches: int | None = None) -> StepTime:
    step = offer(file, schedule, microbatches).other.step
    if isinstance(step, msgspec.UnsetType):
        raise Refused(f"{schedule}: no step is predicted")
    return step


def recorded_ns(run: graphlink.Run) -> float:
    """Return the mean step after the first of a recording, of a pipeline the median from first action to first
    action.
    """
    if (run.folder / "bubbles.json").exists():
        file = load(run.folder / "bubbles.json")
        measured = _step(file, str(file.pipeline.schedule)).measured_ns
        return float("nan") if isinstance(measured, msgspec.UnsetType) else float(measured)
    return replayed('[[time]]\nsort = "host"\nscale = 1.0\n', run.folder, run)


def half_of_the_helper(folder: Path, run: graphlink.Run) -> str:
    """Halve the work of the thread that has no marks of steps."""
    nodes = run.nodes()
    host = nodes[nodes["tid"].notna()]
    marks = set(host[host["name"].str.startswith("ProfilerStep")]["tid"])
    return f'[[time]]\nthread = {[int(one) for one in sorted(set(host["tid"]) - marks)]}\nsort = "host"\nscale = 0.5\n'


def resized(dim: int, times: int, folder: Path, run: graphlink.Run) -> str:
    """Scale ops by the rule of sizes: each dimension of ``dim`` becomes ``times`` as large.

    An op takes what calling takes, and its work: of matrix products proportional to their FLOPs, of others to the
    elements of their largest input. Calling takes the median of ops that only view. Ops of one name are scaled by one
    factor, weighted by their time.
    """
    own = list(own_times(folder))
    called = median(us for name, _, us in own if VIEWS.match(name))
    was: dict[str, float] = defaultdict(float)
    now: dict[str, float] = defaultdict(float)
    for name, shapes, us in own:
        grown = [[times * d if d == dim else d for d in shape] for shape in shapes]
        factor = work(name, grown) / max(work(name, shapes), 1)
        was[name] += us
        now[name] += us if VIEWS.match(name) or factor <= 1 else min(us, called) + max(us - called, 0) * factor
    scaled = {name: now[name] / us for name, us in was.items() if us > 0 and now[name] / us > 1.001}
    return "".join(
        f"[[time]]\nname = '^{re.escape(name)}$'\nsort = \"host\"\nscale = {factor:.4f}\n"
        for name, factor in scaled.items()
    )


def work(name: str, shapes: Sequence[Sequence[int]]) -> float:
    """Return FLOPs of a matrix product, else the elements of the largest input."""
    if MATMULS.match(name) and len(shapes) >= 2:
        one, other = [shape for shape in shapes if len(shape) == 2][-2:]
        return 2.0 * one[0] * one[1] * other[1]
    return float(max((product(shape) for shape in shapes), default=1))


def product(shape: Sequence[int]) -> int:
    out = 1
    for d in shape:
        out *= d
    return out


def own_times(folder: Path) -> Iterator[tuple[str, list[list[int]], float]]:
    """Yield name, input shapes and own time in us (without ops inside) of each op of a recording."""
    [path] = folder.glob("kineto_0.json*")
    data = path.read_bytes()
    rows: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    ops = sorted(
        (row for row in rows if row.get("cat") == "cpu_op"), key=lambda row: (row["tid"], row["ts"], -row["dur"])
    )
    inside: dict[int, float] = defaultdict(float)
    around: list[int] = []
    for k, op in enumerate(ops):
        while around and (
            ops[around[-1]]["tid"] != op["tid"] or ops[around[-1]]["ts"] + ops[around[-1]]["dur"] <= op["ts"]
        ):
            around.pop()
        if around:
            inside[around[-1]] += op["dur"]
        around.append(k)
    for k, op in enumerate(ops):
        shapes = [
            shape
            for shape in op.get("args", {}).get("Input Dims", [])
            if shape and all(isinstance(d, int) for d in shape)
        ]
        yield op["name"], shapes, op["dur"] - inside[k]


class Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pair of a ``pair.toml``. ``before``, ``after``: a folder below which the recordings are, or an archive of it;
    ``only``: those of them whose folder begins so. ``after_ms``, ``before_ms``: steps by the program's own clock, where
    no recordings tell. ``change``: tables as in a file of ``--what-if``; ``why_not``: why there is none.
    """

    what: str
    kind: str
    before: str
    after: str = ""
    only: str = ""
    before_ms: list[float] = []
    after_ms: list[float] = []
    change: dict[str, Any] = {}
    why_not: str = ""


class PairFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pair: list[Described]


def described(pair: Described, folder: Path, into: Path) -> Result:
    """Predict a pair from each recording of the first program; steps of programs that kept them (``truth.*.json``, of
    the kit for GPUs) are those, of others as linked.
    """

    def unpacked(name: str) -> Path:
        if not name.endswith((".tar.xz", ".tar.gz")):
            return folder / name
        out = into / name.partition(".")[0]
        if not out.exists():
            with tarfile.open(folder / name) as archive:
                archive.extractall(out, filter="data")
        return out

    def runs(name: str) -> list[graphlink.Run]:
        found = []
        for path in sorted({path.parent for path in unpacked(name).rglob("kineto_*.json*")}):
            if path.name.startswith(pair.only):
                out = into / "linked" / name.partition(".")[0] / path.relative_to(unpacked(name))
                if not out.exists():
                    graphlink.link(path, options=graphlink.Options(timeline="none"), out=out)
                found.append(graphlink.open(out))
        return found

    def steps_ns(name: str, own_ms: Sequence[float]) -> list[float]:
        truths = [path for path in unpacked(name).rglob("truth.0.json") if path.parent.name.startswith(pair.only)]
        kept = [json.loads(path.read_bytes())["steps_ns"] for path in sorted(truths)] if name else []
        return (
            [ms * 1e6 for ms in own_ms]
            or [sum(ns) / len(ns) for ns in kept]
            or [recorded_ns(run) for run in runs(name)]
        )

    before, after = steps_ns(pair.before, pair.before_ms), steps_ns(pair.after, pair.after_ms)
    limit = max(LEAST_PCT, 2 * spread_pct(after))
    known = Result(
        before=pair.what,
        after="",
        kind=pair.kind,
        of_size=False,
        **of_steps(before, after, limit),
        refused=pair.why_not,
    )
    if pair.why_not:
        return known
    try:
        changed = [run.replay(what_if=pair.change).what_if[0] for run in runs(pair.before)]
    except (UsageError, ValueError) as problem:
        return msgspec.structs.replace(known, refused=str(problem).splitlines()[0])
    predicted = median(found.steps_ns[1] for found in changed if found.steps_ns is not None)
    spans = [found.band.step for found in changed if found.band is not None and found.band.step is not None]
    error = 100 * (predicted / median(after) - 1)
    return msgspec.structs.replace(
        known,
        predicted_ns=predicted,
        error_pct=error,
        held=abs(error) <= limit,
        bands=len(spans) * len(after),
        inside=sum(span.low_ns <= ns <= span.high_ns for span in spans for ns in after),
    )


def predict_described(pairs: Path, folder: Path, into: Path) -> list[Result]:
    """Predict the pairs of a file from the recordings in ``folder``."""
    file = msgspec.toml.decode(pairs.read_bytes(), type=PairFile)
    return [described(pair, folder, into) for pair in file.pair]


def coverage(results: Sequence[Result]) -> Iterator[str]:
    """Yield how many second runs were in the bands, by kind of change."""
    for kind in sorted({found.kind for found in results}):
        mine = [found for found in results if found.kind == kind]
        errors = sorted(abs(found.error_pct) for found in mine if found.error_pct is not None)
        told = f"error {median(errors):.1f} % (worst {errors[-1]:.1f} %)" if errors else "not predicted"
        bands, inside = sum(found.bands for found in mine), sum(found.inside for found in mine)
        yield f"{kind:20} {len(mine)} pairs, {told}; " + (f"{inside} of {bands} in the band" if bands else "no band")


WORKER = "[[dataloader]]\nworkers = 1\ncores = 2\n"
NO_BARRIER = '[[time]]\nname = "barrier"\nremove = true\n'
EVEN = "[[time]]\nrank = 1\neven_out = true\n"
LATER = "[[wait]]\nmove_to_end_of_step = true\n"
BUCKETS = "[[buckets]]\nsize_mb = 100\n"
PAIRS: Final = (
    Pair("loader-0-workers", "loader-1-worker", partial(replayed, WORKER)),
    Pair("thread", "thread-half-the-work", partial(replayed, half_of_the_helper)),
    Pair("thread", "thread-awaited-last", partial(replayed, LATER)),
    Pair("loop-with-barrier", "loop-without-barrier", partial(replayed, NO_BARRIER)),
    Pair("straggler", "straggler-gone", partial(replayed, EVEN)),
    Pair("buckets-1-mb", "buckets-100-mb", partial(replayed, BUCKETS)),
    Pair("1f1b-4", "1f1b-8", partial(scheduled, "1f1b", 8)),
    Pair("1f1b-4", "gpipe-4", partial(scheduled, "gpipe", 4)),
    Pair("1f1b-4", "interleaved-4", partial(scheduled, "interleaved", 4)),
    Pair("layers", "layers-twice-as-wide", partial(replayed, partial(resized, 512, 2)), of_size=True),
    Pair("layers", "layers-batch-twice", partial(replayed, partial(resized, 256, 2)), of_size=True),
)
NOT_RECORDED: Final = "2 -> 4 ranks: not recorded, as this machine has 2 cores and a rank takes one"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a pair. Times in ns; ``error_pct`` of the median prediction against the median of the second
    recordings, whose repeats have ``spread_pct``; ``inside``: of so many ``bands`` and second runs; ``refused``: why there is no prediction; ``kept_error_pct``: of the
    one recording of each that is kept.
    """

    before: str
    after: str
    of_size: bool
    repeats: int
    before_ns: float
    after_ns: float
    spread_pct: float
    spread_before_pct: float
    predicted_ns: float | None = None
    error_pct: float | None = None
    limit_pct: float
    held: bool = False
    refused: str = ""
    kept_error_pct: float | None = None
    kind: str = ""
    bands: int = 0
    inside: int = 0


def spread_pct(values: Sequence[float]) -> float:
    """Return the median distance from the median, in per cent of it."""
    middle = median(values)
    return 100 * median(abs(value - middle) for value in values) / middle


def of_steps(before: Sequence[float], after: Sequence[float], limit_pct: float) -> dict[str, Any]:
    """Return what a result says of the steps of each recording of both programs (ns)."""
    return {
        "repeats": len(after),
        "before_ns": median(before),
        "after_ns": median(after),
        "spread_pct": spread_pct(after),
        "spread_before_pct": spread_pct(before),
        "limit_pct": limit_pct,
    }


@dataclass(frozen=True)
class Recorded:
    """The recordings of the programs below ``folder``, linked into ``out``."""

    folder: Path
    out: Path

    def repeats(self, program: str) -> list[Path]:
        return (
            sorted(path for path in (self.folder / program).iterdir() if path.is_dir())
            if (self.folder / program).is_dir()
            else []
        )

    def run(self, recording: Path) -> graphlink.Run:
        out = self.out / recording.parent.name / recording.name
        if not out.exists():
            graphlink.link(recording, options=graphlink.Options(timeline="none"), out=out)
        return graphlink.open(out)

    def steps_ns(self, program: str) -> list[float]:
        return [recorded_ns(self.run(one)) for one in self.repeats(program)]


def result(pair: Pair, recorded: Recorded) -> Result:
    """Predict from each recording of the first program, and compare with those of the second."""
    before, after = recorded.steps_ns(pair.before), recorded.steps_ns(pair.after)
    limit = max(LEAST_PCT, 2 * spread_pct(after))
    known = Result(
        before=pair.before,
        after=pair.after,
        of_size=pair.of_size,
        **of_steps(before, after, limit),
    )
    try:
        predicted = median(pair.predict(one, recorded.run(one)) for one in recorded.repeats(pair.before))
    except Refused as why:
        return msgspec.structs.replace(known, refused=str(why))
    error = 100 * (predicted / median(after) - 1)
    return msgspec.structs.replace(known, predicted_ns=predicted, error_pct=error, held=abs(error) <= limit)


def published(traces: Path) -> Iterator[str]:
    """Yield the predictions whose truth others have published (``../shared/traces``)."""
    resnet = traces / "legacy" / "v100_resnet50_2021_operator_steps.json.gz"
    if not resnet.exists():
        return
    run = graphlink.link(resnet, options=graphlink.Options(timeline="none"))
    predicted = replayed("[[dataloader]]\nworkers = 4\n", resnet, run) / 1e6
    error = 100 * (predicted / RESNET_4_WORKERS_MS - 1)
    truth = f"published {RESNET_4_WORKERS_MS} ms ({error:+.1f} %)"
    yield f"ResNet-50 of 2021 on a V100, DataLoader 0 -> 4 workers: {predicted:.1f} ms a step, {truth}"


def rows(results: Sequence[Result]) -> Iterator[str]:
    """Yield the table: measured pairs first, those of another size of work apart, the median error and the worst of
    each.
    """
    for of_size, title in (
        (False, "waits, threads, schedules, stragglers, microbatches"),
        (True, "other sizes of work (rule: FLOPs)"),
    ):
        mine = [one for one in results if one.of_size == of_size]
        if not mine:
            continue
        yield f"\n{title:46} before ms  after ms  predicted   error  spread   limit"
        for one in mine:
            start = f"{one.before + ' -> ' * bool(one.after) + one.after:46} {one.before_ns / 1e6:9.2f} {one.after_ns / 1e6:9.2f}"
            if one.predicted_ns is None or one.error_pct is None:
                yield f"{start}          -       - {one.spread_pct:6.1f} %       -  not predicted: {one.refused}"
            else:
                told = (
                    f"{one.predicted_ns / 1e6:10.2f} {one.error_pct:+6.1f} % {one.spread_pct:5.1f} % "
                    f"{one.limit_pct:5.1f} %"
                )
                yield f"{start} {told}  {'within' if one.held else 'OUTSIDE'}"
        if found := [one for one in mine if one.error_pct is not None]:
            worst = max(found, key=lambda one: abs(one.error_pct or 0))
            middle = median(abs(one.error_pct or 0) for one in found)
            rest = f"{len(mine) - len(found)} not predicted"
            yield (
                f"median error {middle:.1f} %, worst {worst.error_pct:+.1f} % ({worst.before}{' -> ' * bool(worst.after)}{worst.after}); {rest}"
            )


def record(folder: Path, repeats: int) -> None:
    """Record what is missing, all programs in turn."""
    for repeat in range(1, repeats + 1):
        for program in dict.fromkeys(name for pair in PAIRS for name in (pair.before, pair.after)):
            out = folder / program / str(repeat)
            if not out.exists():
                command = [sys.executable, "-W", "ignore", str(CAPTURE), program, str(out)]
                subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=300)


def keep(recorded: Recorded, results: Sequence[Result], folder: Path) -> None:
    """Copy of each program the recording nearest to the median of its steps, compressed, and the results beside
    them.
    """
    for program in dict.fromkeys(name for pair in PAIRS for name in (pair.before, pair.after)):
        steps = recorded.steps_ns(program)
        nearest = min(range(len(steps)), key=lambda k: abs(steps[k] - median(steps)))
        kept = folder / program / "1"
        kept.mkdir(parents=True, exist_ok=True)
        for path in recorded.repeats(program)[nearest].iterdir():
            if re.match(r"(et|kineto)_\d+\.json$", path.name):
                (kept / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
            elif path.name.startswith("capture."):
                (kept / path.name).write_bytes(path.read_bytes())
    with tempfile.TemporaryDirectory() as temporary:
        alone = Recorded(folder, Path(temporary))
        errors = [result(pair, alone).error_pct for pair in PAIRS]
    told = [msgspec.structs.replace(one, kept_error_pct=error) for one, error in zip(results, errors, strict=True)]
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--pairs", type=Path)
    given = parser.parse_args()
    pairs = given.pairs or given.folder / "pair.toml"
    if pairs.exists():
        with tempfile.TemporaryDirectory() as temporary:
            told = predict_described(pairs, given.folder, Path(temporary))
        print("\n".join((*rows(told), "", *coverage(told))))
        if given.json:
            given.json.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
        return
    if given.record:
        record(given.folder, given.repeats)
    elif not any(given.folder.glob("*/[0-9]*")):
        parser.error(f"{given.folder} has neither pair.toml nor recordings <program>/<repeat>: make them with --record")
    with tempfile.TemporaryDirectory() as temporary:
        recorded = Recorded(given.folder, Path(temporary))
        results = [result(pair, recorded) for pair in PAIRS]
        print("\n".join(rows(results)))
        print(NOT_RECORDED)
        print("\n".join(published(given.traces)))
        if given.json:
            given.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
        if given.keep:
            keep(recorded, results, given.keep)


if __name__ == "__main__":
    main()
