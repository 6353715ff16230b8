"""Gives hostile files to every command that reads them, in this process, and says which of them were not dealt with.

Allowed are success and one message of at most five lines with an exit status. Anything else is a failure: another
exception, a warning of numpy, more than ``MOST_CPU_S`` of processor time, more than ``MOST_BYTES`` of memory on top of
what the idle process has.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import pickle
import random
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from graphlink.choices import MACHINES
from graphlink.cli import main
from graphlink.engine import pool
from tests.fuzz import bases, mutate
from tests.simulator.nccl_files import WRITERS

MOST_CPU_S = 20.0
MOST_BYTES = 1_500 << 20
MOST_LINES = 5
_NCCL = sorted(WRITERS)
_WHAT_IFS = (
    [], ["--scale", "kernel=0.5"], ["--scale", "host=1000000"], ["--scale", "kernel:(a|aa)+c?d=2"], ["--bandwidth", "10"],
    ["--launch-cost", "-5"], ["--remove-sync", "all"], ["--remove-sync", "7"],
)  # fmt: skip
_STEPS = (
    [],
    [],
    [],
    ["--step", "0"],
    ["--host", "launches"],
    ["--target", "chakra"],
    ["--range-rule", "(?P<phase>[FB])(?P<microbatch>.*)"],
)


class Hang(BaseException):
    """The input took too long."""


@dataclass(frozen=True)
class Outcome:
    """``failure`` is "" where all went as it may."""

    status: int
    failure: str = ""


@dataclass(frozen=True)
class Case:
    """A sort of hostile input. ``run`` makes one in a folder that holds the bases, and gives it to what reads it."""

    name: str
    weight: int
    run: Callable[[Place, random.Random], Outcome]


@dataclass(frozen=True)
class Place:
    """``base``: the sound files, which nobody changes; ``work``: for one input at a time."""

    base: Path
    work: Path
    changed: dict[str, str] = field(default_factory=dict)  # of each output folder the file that the last input changed

    def given(self, name: str, data: bytes) -> Path:
        path = self.work / name
        path.write_bytes(data)
        return path

    def folder(self, name: str, changed: str, data: bytes) -> Path:
        """An output folder in which one file is another."""
        folder = self.work / name
        if not folder.exists():
            shutil.copytree(self.base / name, folder)
        before = self.changed.get(name, changed)
        (folder / before).write_bytes((self.base / name / before).read_bytes())
        (folder / changed).write_bytes(data)
        self.changed[name] = changed
        return folder


def call(*arguments: str | Path) -> Outcome:
    """Runs the command line."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([str(a) for a in arguments])
    except SystemExit as left:
        return Outcome(int(left.code or 0), f"left: {left.code}: {arguments}")
    except Hang:
        return Outcome(-1, f"took more than {MOST_CPU_S:g} s: {_told(arguments)}")
    except BaseException:
        return Outcome(-1, f"{_told(arguments)}\n{traceback.format_exc(limit=-12)}")
    text = err.getvalue()
    if "Traceback" in text:
        return Outcome(status, f"{_told(arguments)}\n{text}")
    if "out of memory" in text:
        return Outcome(status, f"out of memory: {_told(arguments)}")
    if text.startswith("graphlink: [Errno"):
        return Outcome(status, f"an error of the system without what to do: {_told(arguments)}: {text}")
    if status == 1 and arguments[0] not in ("check", "replay") and not 1 <= len(text.splitlines()) <= MOST_LINES:
        return Outcome(status, f"{len(text.splitlines())} lines of error: {_told(arguments)}: {text[:500]}")
    return Outcome(status)


def _told(arguments: Sequence[str | Path]) -> str:
    return " ".join(str(a) for a in arguments)


def _first(*outcomes: Outcome) -> Outcome:
    """The first that failed, else the last."""
    return next((o for o in outcomes if o.failure), outcomes[-1])


def _job(place: Place, rng: random.Random, *flags: str | Path) -> Outcome:
    sync = "both" if rng.random() < 0.03 else "cuda"  # HTA takes ten times as long as all else
    timeline = () if rng.random() < 0.1 else ("--no-timeline",)
    return call(
        *flags,
        *rng.choice(_STEPS),
        "--sync",
        sync,
        *timeline,
        "--out",
        place.work / "made",
        "--force",
        "--jobs",
        "1",
        "-q",
    )


def _read(path: Path, kind: str) -> Outcome:
    """Only the reader, which is what most of the inputs break."""
    from graphlink.errors import GraphlinkError
    from graphlink.graph.read_et import read_et
    from graphlink.nccl.read.read import read_dump
    from graphlink.pipeline.paddle.logs import read_job_lines
    from graphlink.read.host import read_host
    from graphlink.read.kineto import read_kineto
    from graphlink.read.nsys.report import read_report

    readers: dict[str, Callable[[Path], object]] = {
        "kineto": read_kineto,
        "et": lambda p: read_host(p, keep_json=True),
        "nccl": read_dump,
        "graph": read_et,
        "nsys": read_report,
        "paddle": read_job_lines,
    }
    try:
        readers[kind](path)
    except GraphlinkError as problem:
        lines = problem.text().splitlines()
        return Outcome(
            1,
            "" if len(lines) <= MOST_LINES and lines[0].startswith(str(path)) else f"no good message: {problem.text()}",
        )
    except Hang:
        return Outcome(-1, f"took more than {MOST_CPU_S:g} s: reading {path}")
    except BaseException:
        return Outcome(-1, traceback.format_exc(limit=-12))
    return Outcome(0)


def _readers(place: Place, rng: random.Random) -> Outcome:
    """Readers alone, which are quick: many more inputs for each than whole commands take."""
    kind = rng.choice(("kineto", "kineto", "et", "et", "nccl", "nccl", "graph", "paddle", "nsys"))
    if kind == "nsys":
        path = place.work / "run.sqlite"
        mutate.of_sqlite((place.base / "run.sqlite").read_bytes(), path, rng)
        return _read(path, kind)
    if kind == "graph":
        data = mutate.of_messages((place.base / "out" / "trace.0.et").read_bytes(), rng)
        return _read(place.given("trace.0.et", data), kind)
    folders = {"kineto": "rank0", "et": "rank0", "nccl": f"nccl/{rng.choice(_NCCL)}", "paddle": "paddle"}
    files = sorted(
        p for p in (place.base / folders[kind]).iterdir() if kind not in ("kineto", "et") or p.name.startswith(kind)
    )
    base = rng.choice(files)
    change = mutate.of_text if kind == "paddle" else rng.choice((mutate.of_json, mutate.of_json, mutate.of_bytes))
    path = place.given(base.name, change(base.read_bytes(), rng))
    try:
        return _read(path, kind)
    finally:
        path.unlink()


def _kineto(place: Place, rng: random.Random) -> Outcome:
    base = place.base / "rank0" / f"kineto_{rng.choice(bases.KINETO)}.json"
    path = place.given("kineto_0.json", mutate.of_json(base.read_bytes(), rng))
    kind = rng.random()
    if kind < 0.4:
        return _read(path, "kineto")
    if kind < 0.5:
        return call("doctor", path)
    return _job(place, rng, "--kineto", path, *(("--et", place.base / "rank0" / "et.json") if kind < 0.7 else ()))


def _pftrace(place: Place, rng: random.Random) -> Outcome:
    """A binary trace."""
    [base] = (place.base / "cuspy").rglob("cuspy-1/kineto_0.pftrace")
    path = place.given("kineto_0.pftrace", mutate.of_packets(base.read_bytes(), rng))
    kind = rng.random()
    if kind < 0.8:
        return _read(path, "kineto")
    if kind < 0.85:
        return call("doctor", path)
    return _job(place, rng, *(("--kineto",) if kind < 0.95 else ()), path)


def _et(place: Place, rng: random.Random) -> Outcome:
    name = rng.choice(
        (*(f"rank0/{n}.json" for n in bases.ETS), *(f"rank0/{n}.json" for n in bases.ETS), "out/linked.0.json")
    )
    path = place.given("et_0.json", mutate.of_json((place.base / name).read_bytes(), rng))
    kind = rng.random()
    if kind < 0.4:
        return _read(path, "et")
    if kind < 0.5:
        return call("doctor", path)
    linked = ("--linked",) if rng.random() < 0.5 else ()
    return _job(place, rng, "--et", path, "--kineto", place.base / "rank0" / "kineto_2024.json", *linked)


def _both(place: Place, rng: random.Random) -> Outcome:
    """A folder that finds and pairs its files itself."""
    folder = place.work / "pair"
    folder.mkdir(exist_ok=True)
    for name, base in (("et_0.json", "et.json"), ("kineto_0.json", "kineto_2024.json")):
        data = (place.base / "rank0" / base).read_bytes()
        (folder / name).write_bytes(mutate.of_json(data, rng) if rng.random() < 0.7 else data)
    return call("doctor", folder) if rng.random() < 0.3 else _job(place, rng, folder)


def _nsys(place: Place, rng: random.Random) -> Outcome:
    path = place.work / "run.sqlite"
    path.unlink(missing_ok=True)
    mutate.of_sqlite((place.base / "run.sqlite").read_bytes(), path, rng)
    return call("doctor", path) if rng.random() < 0.2 else _job(place, rng, "--nsys", path)


def _paddle(place: Place, rng: random.Random) -> Outcome:
    folder = place.work / "paddle"
    if not folder.exists():
        shutil.copytree(place.base / "paddle", folder)
    for path in sorted((place.base / "paddle").iterdir()):
        (folder / path.name).write_bytes(
            mutate.of_text(path.read_bytes(), rng) if rng.random() < 0.6 else path.read_bytes()
        )
    return call("--paddle-logs", folder, "--out", place.work / "made", "--force", "-q")


def _nccl(place: Place, rng: random.Random) -> Outcome:
    folder = place.base / "nccl" / rng.choice(sorted(p.name for p in (place.base / "nccl").iterdir()))
    base = rng.choice(sorted(folder.iterdir()))
    data = base.read_bytes()
    if folder.name == "flight-pickle" and rng.random() < 0.7:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(mutate.of_json(json.dumps(pickle.loads(data)).encode(), rng))
            data = pickle.dumps(document, protocol=rng.randrange(6))
    elif folder.name == "flight-pickle":
        data = mutate.of_bytes(data, rng)
    else:
        data = (mutate.of_json if rng.random() < 0.7 else mutate.of_text)(data, rng)
    path = place.given(base.name, data)
    try:
        kind = rng.random()
        if kind < 0.5:
            return _read(path, "nccl")
        if kind < 0.6:
            return call("doctor", place.base / "cluster" / "kineto_0.json", path)
        return _job(place, rng, "--kineto", place.base / "cluster" / "kineto_0.json", "--nccl", path)
    finally:
        path.unlink()


def _graph(place: Place, rng: random.Random) -> Outcome:
    """A ``.et`` that is read back."""
    data = mutate.of_messages((place.base / "out" / "trace.0.et").read_bytes(), rng)
    folder = place.folder("out", "trace.0.et", data)
    return _over_graphs(folder, folder / "trace.0.et", rng)


def _over_graphs(folder: Path, graph: Path, rng: random.Random) -> Outcome:
    kind = rng.randrange(7)
    if kind == 0:
        return call("check", rng.choice((folder, graph)))
    if kind == 1:
        return call("show", graph, "--node", str(rng.choice((0, 1, 7, 50))))
    if kind == 2:
        return call("critical-path", folder, "--across")
    if kind == 3:
        return call("astra", folder, "--force", *rng.choice(([], ["--replay-only"], ["--topology", "switch"])))
    machine, what_if = rng.choice(MACHINES), rng.choice(_WHAT_IFS)
    return call("replay", folder, "--machine", machine, *what_if)


def _changes(place: Place, rng: random.Random) -> Outcome:
    """A file of ``--what-if``, on graphs that are sound; from its folder ``like`` finds runs."""
    machine = rng.choice(
        ([], ["--machine", "ideal"], ["--machine", "astra-sim"], ["--machine", "coupled", "--together"])
    )
    return call(
        "replay", place.base / "out", *machine, "--what-if", place.given("what-if.toml", mutate.of_changes(rng))
    )


def _groups(place: Place, rng: random.Random) -> Outcome:
    folder = place.folder(
        "out", "comm_group.json", mutate.of_json((place.base / "out" / "comm_group.json").read_bytes(), rng)
    )
    return _over_graphs(folder, folder / "trace.0.et", rng)


def _summary(place: Place, rng: random.Random) -> Outcome:
    name = rng.choice(("out", "pipeline"))
    data = mutate.of_json((place.base / name / "summary.json").read_bytes(), rng)
    folder = place.folder(name, "summary.json", data)
    if rng.random() < 0.8:
        return call("show", folder)
    try:
        flag = rng.choice(("--force", "--resume"))
        kineto = place.base / "rank0" / "kineto_2024.json"
        return call("--kineto", kineto, "--sync", "cuda", "--no-timeline", "--out", folder, flag, "-q")
    finally:
        shutil.rmtree(folder)


def _path(place: Place, rng: random.Random) -> Outcome:
    data = mutate.of_json((place.base / "out" / "critical_path.0.json").read_bytes(), rng)
    folder = place.folder("out", "critical_path.0.json", data)
    return call("critical-path", folder, *rng.choice(([], ["--rank", "0"], ["--top", "1"])))


def _bubbles(place: Place, rng: random.Random) -> Outcome:
    folder = place.folder(
        "pipeline", "bubbles.json", mutate.of_json((place.base / "pipeline" / "bubbles.json").read_bytes(), rng)
    )
    schedule = rng.choice((None, "1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"))
    compare = ("--compare", place.work / "compared.svg") if rng.random() < 0.3 else ()
    return call("bubbles", folder, *(("--schedule", schedule) if schedule else ()), *compare)


def _report(place: Place, rng: random.Random) -> Outcome:
    """Any of the files that the page is made of."""
    name = rng.choice(("out", "out", "out", "pipeline"))
    changed = rng.choice(
        [path.name for path in sorted((place.base / name).glob("*.json")) if not path.name.startswith("linked")]
    )
    folder = place.folder(name, changed, mutate.of_json((place.base / name / changed).read_bytes(), rng))
    return call(
        "report", folder, "-o", place.work / "page.html", *(("--svg", place.work / "svg") if rng.random() < 0.2 else ())
    )


def _jobs(place: Place, rng: random.Random) -> Outcome:
    """What jobs of single ranks leave: what they say of themselves."""
    return _left(place, "rank.json", mutate.of_json, rng)


def _columns(place: Place, rng: random.Random) -> Outcome:
    """What jobs of single ranks leave: their records."""
    return _left(place, rng.choice(("rows.columns", "prepared.columns")), mutate.of_columns, rng)


def _left(place: Place, name: str, change: Callable[[bytes, random.Random], bytes], rng: random.Random) -> Outcome:
    folder = place.work / "jobs"
    if not folder.exists():
        shutil.copytree(place.base / "jobs", folder)
    path = rng.choice(sorted((folder / ".graphlink" / "ranks").glob(f"*/{name}")))
    before = (place.base / "jobs" / path.relative_to(folder)).read_bytes()
    path.write_bytes(change(before, rng))
    try:
        return call("join", folder, "--jobs", "1", "-q")
    finally:
        shutil.rmtree(folder)


def _journal(place: Place, rng: random.Random) -> Outcome:
    """A journal that somebody planted: nothing but graphlink's own files in the folder may go."""
    import socket

    folder = place.work / "planted"
    pid = rng.choice(("999999999", "9" * 100, "0", "1" * 30, "x"))
    left = folder / ".graphlink" / f"tmp-{socket.gethostname().replace('-', '_')}-{pid}-x"
    (left / "old").mkdir(parents=True)
    mine = place.given("mine.txt", b"mine")
    (folder / "notes.txt").write_bytes(b"mine")
    names = ["../mine.txt", str(mine), "notes.txt", "trace.0.et", "..", "", "../planted/notes.txt", "summary.json"]
    (left / "journal.json").write_bytes(mutate.of_json(json.dumps({"old": names, "new": names}).encode(), rng))
    try:
        kineto = place.base / "rank0" / "kineto_2024.json"
        outcome = call("--kineto", kineto, "--sync", "cuda", "--no-timeline", "--out", folder, "-q")
        kept = mine.read_bytes() == (folder / "notes.txt").read_bytes() == b"mine"
        return outcome if kept else Outcome(outcome.status, "a file of the user was touched")
    finally:
        shutil.rmtree(folder)


CASES = (
    Case("kineto", 18, _kineto),
    Case("pftrace", 10, _pftrace),
    Case("et", 14, _et),
    Case("folder", 4, _both),
    Case("nsys", 14, _nsys),
    Case("paddle", 8, _paddle),
    Case("nccl", 14, _nccl),
    Case("graph", 14, _graph),
    Case("groups", 3, _groups),
    Case("changes", 6, _changes),
    Case("summary", 5, _summary),
    Case("path", 5, _path),
    Case("bubbles", 6, _bubbles),
    Case("report", 6, _report),
    Case("jobs", 1, _jobs),
    Case("columns", 2, _columns),
    Case("journal", 1, _journal),
    Case("readers", 40, _readers),
)
BY_NAME = {case.name: case for case in CASES}


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Bounds time and memory of what runs inside, and keeps it in this process."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Hang

    def here(work: Callable[[Any], Any], tasks: Sequence[Any], at_once: int, done: Callable[[int], None]) -> list[Any]:
        return [work(task) for task in tasks]

    limits = resource.getrlimit(resource.RLIMIT_AS)
    before, signals = pool.run_all, {s: signal.signal(s, late) for s in (signal.SIGVTALRM, signal.SIGALRM)}
    pool.run_all = here  # type: ignore[assignment]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, limits[1]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        pool.run_all = before
        for number, handler in signals.items():
            signal.signal(number, handler)


def attempt(place: Place, name: str, seed: int) -> Outcome:
    """One hostile input: of case ``name``, number ``seed``. Inside ``guarded``."""
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, 100 * MOST_CPU_S)  # waiting for something, or for a busy machine
    try:
        return BY_NAME[name].run(place, random.Random(f"{name}:{seed}"))
    except Hang:
        return Outcome(-1, f"took more than {MOST_CPU_S:g} s")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect(0)
