"""``python -m tests.golden.all_outputs OUT.txt``: hash whatever graphlink makes of each recording that is there.

The recordings are those of fixtures/, of ../shared/traces where that is there, and some of the simulator. Each is
linked, and each verb that applies is run, with ``--json``, some with other options. A line is the hash of an output
file, of what a command printed, or of its data. The package is the one of ``PYTHONPATH``, else the one of this
checkout, so that two versions compare by ``diff``:

    PYTHONPATH=../before python -m tests.golden.all_outputs before.txt --keep before
    python -m tests.golden.all_outputs after.txt --keep after
    diff before.txt after.txt && diff -r before after
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from tests.golden.calls import Ran, call, prefer_pythonpath, working_in

ROOT: Final = Path(__file__).resolve().parents[2]
TRACES: Final = ROOT.parent / "shared" / "traces"
# on what links; {} is the output folder
VERBS: Final = {
    "show": "show -v {}",
    "idle": "idle {}",
    "ops": "ops {} --top 30",
    "advice": "advice {} --top 100",
    "path": "critical-path {}",
    "path-across": "critical-path {} --across --top 50",
    "bubbles": "bubbles {}",
    "check": "check {}",
    "report": "report {} -o report.html --svg charts",
    "astra": "astra {} -o astra",
    "replay-kernel": "replay {} --scale kernel=0.5 --scale host=0.9",
    "replay-list": "replay {} --list --top 50",
    "export": "export {} --format csv -o tables",
}
# on small recordings, too
MORE: Final = {
    "show-short": "show {}",
    "show-node": "show {}/trace.0.et --node 1000",
    "replay": "replay {} -v",
    "replay-ideal": "replay {} --machine ideal --remove-sync all",
    "replay-astra": "replay {} --machine astra-sim",
    "replay-ranks": "replay {} --machine ranks --together --bandwidth 10",
    "replay-launch": "replay {} --launch-cost 2",
    "replay-graph": "replay {} --cuda-graph Optimizer",
    "replay-buckets": "replay {} --buckets 1",
    "replay-workers": "replay {} --dataloader-workers 2",
    "schedule": "bubbles {} --schedule zb-h1 --input-share 0.5 --compare schedule.svg --et schedule",
    "scale-data": "scale {} -o scaled-data --data-parallel 8 --jobs 1",
    "scale-pipeline": "scale {} -o scaled-pipeline --microbatches 8 --jobs 1",
    "ops-rank": "ops {} --rank 0 --whole-names",
    "idle-rank": "idle {} --rank 0",
    "parquet": "export {} --format arrow -o arrow",
}
# other ways to link
WAYS: Final = {
    "all": "--timeline both --target chakra -v",
    "launches": "--host launches --sync cuda --gap-us 5 --no-timeline --comm-time transfer --keep-unmatched",
}
PAIRS: Final = {
    "diff-straggler": ("real/pairs/straggler/1", "real/pairs/straggler-gone/1"),
    "diff-dataloader": ("real/dataloader", "real/dataloader-8-workers"),
    "diff-buckets": ("real/pairs/buckets-1-mb/1", "real/pairs/buckets-100-mb/1"),
    "diff-thread": ("real/pairs/thread/1", "real/pairs/thread-half-the-work/1"),
    "diff-schedule": ("real/pairs/gpipe-4/1", "real/pairs/1f1b-4/1"),
}
QUICK: Final = {
    "fixtures/demo",
    "fixtures/real/ddp",
    "fixtures/real/pipeline",
    "diff-straggler",
    "simulated/nccl",
    "simulated/nsys",
    "simulated/paddle",
    "simulated/pipeline",
    "shared/cuda-sync/alexnet",
    "shared/rocm/mi250_minitoy",
    "shared/simple-add-a100",
}
SMALL: Final = 6_000_000  # bytes: more are run with the first options alone
PACKED: Final = 12  # times smaller is what is gzipped, about
SKIPPED: set[tuple[str, str]] = set()  # (case, verb) of what takes far too long


@dataclass(frozen=True)
class Case:
    """``fill`` writes the recording into a folder; ``does`` runs what is to run on it."""

    name: str
    bytes: int
    fill: Callable[[Path], object]
    does: Callable[[Place], None]


class Place:
    """The folder in which a case works, and what its commands printed."""

    def __init__(self, case: str) -> None:
        self.case = case
        self.took: dict[str, float] = {}  # seconds of CPU by command
        Path("texts").mkdir()

    def run(self, name: str, command: str, *, data: bool = True) -> Ran:
        """Run a command, with ``--json`` where it takes that, and keep what it prints."""
        if (self.case, name) in SKIPPED:
            return Ran(0, "", "")
        began = _cpu_seconds()
        ran = call([*command.split(), *(["--json", f"texts/{name}.json"] if data else [])])
        self.took[name] = _cpu_seconds() - began
        if ran.status in (130, 143):  # interrupted or terminated: no result to compare
            raise KeyboardInterrupt
        err = "" if " -v" in command else ran.err  # -v says how long each stage took
        Path(f"texts/{name}.txt").write_text(ran._replace(err=err).text(), encoding="utf-8")
        return ran


def linked(place: Place) -> None:
    """Link the recording in each way, and run each verb on it."""
    small = _unpacked_bytes() < SMALL
    ran = place.run("link", f"link {_flags()} -o out --jobs 1")
    place.run("doctor", "doctor in")
    if ran.status == 0:
        for name, command in {**VERBS, **(MORE if small else {})}.items():
            place.run(name, command.replace("{}", "out"))
    if small:
        for name, options in WAYS.items():
            merged = "--linked" if name == "all" and list(Path("in").glob("et_*")) else ""
            place.run(f"link-{name}", f"link {_flags()} -o out-{name} --jobs 1 {options} {merged}")
            place.run(f"path-{name}", f"critical-path out-{name}")
        place.run("link-job", f"link {_flags()} -o out-joined --jobs 1 --rank-job", data=False)
        place.run("join", "join out-joined --jobs 1")


def in_processes(place: Place) -> None:
    """Link as a user does, in processes of their own."""
    for name, more in {"link": [], "link-one": ["--jobs", "1"], "link-three": ["--jobs", "3", "--linked"]}.items():
        command = [sys.executable, "-m", "graphlink", "in", "-o", f"out-{name}", *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        Path(f"texts/{name}.txt").write_text(Ran(done.returncode, done.stdout, done.stderr).text(), encoding="utf-8")


def compared(place: Place) -> None:
    """Link two recordings and compare them."""
    for one in "ab":
        place.run(f"link-{one}", f"link in/{one} -o {one} --jobs 1")
    place.run("diff", "diff a b --anyway -o diff.html --top 20")
    place.run("diff-back", "diff b a --fail-on 3%")


def graphs(place: Place) -> None:
    """Judge and replay graphs that others wrote."""
    place.run("check", "check in")
    for graph in sorted(Path("in").glob("*.et")):
        place.run(f"show-{graph.name}", f"show {graph} --node 10")
        place.run(f"replay-{graph.name}", f"replay {graph} --scale kernel=0.5")


def only_doctor(place: Place) -> None:
    place.run("doctor", "doctor in")
    place.run("link", "link in -o out --jobs 1")


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _unpacked_bytes() -> int:
    return sum(file.stat().st_size * (PACKED if file.suffix == ".gz" else 1) for file in Path("in").rglob("*.*"))


def _flags() -> str:
    return "--paddle-logs in" if list(Path("in").glob("workerlog.*")) else "in"


def cases() -> Iterator[Case]:
    """Yield all cases."""
    from tests.golden.simulated import SIMULATED

    for name, make in SIMULATED.items():
        yield Case(f"simulated/{name}", 300_000, make, linked)
    fixtures = sorted({file.parent for file in (ROOT / "fixtures").rglob("kineto_*")})
    for folder in fixtures:
        yield _copied(f"fixtures/{folder.relative_to(ROOT / 'fixtures').as_posix()}", sorted(folder.iterdir()), linked)
    for name in ("demo", "real/ddp", "real/pipeline"):
        yield _copied(f"processes/{name}", sorted((ROOT / "fixtures" / name).iterdir()), in_processes)
    for name, (a, b) in PAIRS.items():
        yield Case(name, 300_000, _two(ROOT / "fixtures" / a, ROOT / "fixtures" / b), compared)
    if TRACES.is_dir():
        yield from _public()


def _public() -> Iterator[Case]:
    pairs = {file.parent for file in TRACES.rglob("kineto_*.json.gz")}
    for folder in sorted(pairs):
        files = [
            file
            for file in sorted(folder.glob("*.json.gz"))
            if file.name.startswith(("et_", "kineto_")) and "reference" not in file.name
        ]
        yield _copied(f"shared/{folder.relative_to(TRACES).as_posix()}", files, linked)
    for file in sorted(TRACES.rglob("*.*")):
        name = f"shared/{file.relative_to(TRACES).as_posix().removesuffix('.gz').partition('.')[0]}"
        if file.name.endswith(".tar.xz"):
            yield Case(name, file.stat().st_size * 6, _Unpacked(file), linked)
        elif "nccl" in file.name:
            yield _copied(name, [file], only_doctor)
        elif file.name.endswith((".sqlite", ".json.gz")) and file.parent not in pairs:
            yield _copied(name, [file], linked)
        elif "reference" in file.name:
            yield _copied(name, [file, file.with_name("kineto_0.json.gz")], linked)
    for folder in sorted({file.parent for file in TRACES.rglob("*.et")}):
        yield _copied(f"shared/{folder.relative_to(TRACES).as_posix()}-et", sorted(folder.glob("*.et")), graphs)


def _copied(name: str, files: Sequence[Path], does: Callable[[Place], None]) -> Case:
    files = [file for file in files if file.is_file()]
    packed = sum(file.stat().st_size * (PACKED if file.suffix == ".gz" else 1) for file in files)
    return Case(name, packed, _Copies(tuple((file, file.name) for file in files)), does)


@dataclass(frozen=True)
class _Copies:
    files: tuple[tuple[Path, str], ...]

    def __call__(self, folder: Path) -> None:
        for file, name in self.files:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / name)


def _two(a: Path, b: Path) -> _Copies:
    return _Copies(
        tuple(
            (file, f"{name}/{file.name}")
            for name, of in (("a", a), ("b", b))
            for file in sorted(of.iterdir())
            if file.is_file()
        )
    )


@dataclass(frozen=True)
class _Unpacked:
    archive: Path

    def __call__(self, folder: Path) -> None:
        with tarfile.open(self.archive) as packed:
            packed.extractall(folder, filter="data")


def outputs(case: Case, keep: Path | None) -> tuple[dict[str, float], list[str]]:
    """Run a case in a folder of its own. Return the seconds of CPU by command, and a line for each file it made."""
    with tempfile.TemporaryDirectory(prefix="graphlink-outputs-") as text:
        folder = Path(text).resolve()
        with working_in(folder):
            Path("in").mkdir()
            with redirect_stdout(StringIO()):
                case.fill(Path("in"))
            place = Place(case.name)
            case.does(place)
        shutil.rmtree(folder / "in")
        lines = []
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            if ".graphlink" in file.parts:  # is for --resume after a failure, and named after the whole path of inputs
                continue
            content = file.read_bytes().replace(str(folder).encode(), b"<here>")
            name = file.relative_to(folder).as_posix()
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {case.name}/{name}")
            if keep is not None:
                (keep / case.name / name).parent.mkdir(parents=True, exist_ok=True)
                (keep / case.name / name).write_bytes(content)
    return place.took, lines


def _prepare() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    prefer_pythonpath()
    import graphlink.cli  # noqa: F401 - each worker would import it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.txt")
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="cases in whose name this is, repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="a few small cases alone")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the outputs themselves here, to compare those whose hashes differ",
    )
    given = parser.parse_args()
    prefer_pythonpath()
    import graphlink

    print(f"graphlink is {Path(graphlink.__file__).parent}", flush=True)
    began = time.monotonic()
    chosen = [
        case
        for case in cases()
        if (not given.quick or case.name in QUICK) and (not given.only or any(o in case.name for o in given.only))
    ]
    chosen.sort(key=lambda case: -case.bytes)  # so that the last one to end is a short one
    lines: list[str] = []
    total = 0.0
    keep = given.keep and given.keep.resolve()
    with ProcessPoolExecutor(given.jobs, initializer=_prepare) as pool:
        running = {pool.submit(outputs, case, keep): case for case in chosen}
        for number, done in enumerate(as_completed(running), 1):
            took, made = done.result()
            lines += made
            slowest = max(took, key=took.__getitem__, default="")
            slow = f", {slowest} {took[slowest]:.1f} s" if slowest else ""
            seconds = sum(took.values())
            total += seconds
            at = f"{number:>3} of {len(chosen)}"
            print(f"{at}  {seconds:6.1f} s of CPU{slow:<24} {len(made):>4} files  {running[done].name}", flush=True)
    given.out.write_text(
        "".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.partition("  ")[2])), encoding="utf-8"
    )
    took_s = f"{time.monotonic() - began:.0f} s, {total:.0f} s of CPU"
    print(f"{len(lines)} files of {len(chosen)} cases in {took_s}: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
