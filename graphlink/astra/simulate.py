"""Runs ASTRA-sim on the graphs of a run, judges whether it went well, and reads what its output and its node log say.

Its exit status proves nothing: a run that hangs drains its events and exits with 0. Times of kinds of work come from
the node log, which both versions write: the present one loses its own statistics of a rank that has CPU nodes, that of
2024 has none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from graphlink.astra import READERS
from graphlink.astra.files import MOST_LOGGED, Dimension, Plan, simulator_options
from graphlink.astra.plan import Simulatable, logged, write
from graphlink.choices import RANKS
from graphlink.errors import InputError
from graphlink.model import I64, U8, Bool
from graphlink.process import die_with_parent
from graphlink.publish import naming
from graphlink.read.document import Written
from graphlink.records import Short, first_few, share_word
from graphlink.replay.lateness import slot_waits
from graphlink.replay.machines import play
from graphlink.replay.workload import Work, Workload, measured_ns

WORDS: Final = (
    "host",
    "compute",
    "communication",
    "copy",
    "unexplained",
)  # kinds of work, in the order in which they are shown
_WORD_OF: Final = tuple(WORDS.index(share_word(work.name.lower())) for work in Work)
_FINISHED: Final = re.compile(
    rb"sys\[(\d{1,9})\] finished, (\d{1,18}) cycles(?:, exposed communication (\d{1,18}) cycles)?"
)
_LOGGED: Final = re.compile(
    rb"^(?:\[[^\]\n]*\] )*(issue|callback),sys->id=(\d{1,9}), ?tick=(\d{1,18}), ?node->id=(\d{1,18})\b", re.MULTILINE
)
_LEGACY, _HEAD = b"Chakra12ETFeederNode", b"FeederV3"  # names of their readers' classes, which are in the binaries
_NOT_LOADED: Final = b"error while loading shared libraries"
_NOT_STARTED: Final = (126, 127)  # exit statuses of loaders and shells
_MOST_BYTES: Final = 1 << 28  # of each file that a simulator writes, and of what is read of one
_MOST_LOGS: Final = 32  # files of a node log; ASTRA-sim keeps 11
# ends the processes of a simulator when the one that waits for it is killed: its end of the pipe closes then
_WATCH: Final = "import os, sys; sys.stdin.buffer.read(); os.killpg(int(sys.argv[1]), 9)"
_SAID: Final = 4000  # bytes of the end of the output in which the last line is looked for
HOW_TO_GET: Final = "build its analytical backend (docs/simulate.md), then --astra-sim FILE or ASTRA_SIM=FILE"


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One rank as recorded and as replayed on ASTRA-sim's slots, all ranks beginning at once.

    ``recorded_ns``: None without recorded times; ``replayed_ns``: None where the replay does not finish.
    ``..._work_ns``: time of its nodes by kind of work, added up, communication with its waiting for other ranks;
    nothing is recorded of graphs that were made.
    """

    rank: int
    nodes: int
    recorded_ns: int | None
    replayed_ns: int | None
    recorded_work_ns: dict[str, int] | None
    replayed_work_ns: dict[str, int] | None


class SimulatedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank as ASTRA-sim reports it. ``simulated_ns``: None where it did not finish. ``not_computing_ns``: what
    ASTRA-sim calls exposed communication; host and idle time are in it. ``work_ns``: as in ``RankTimes``, None where
    the log does not tell.
    """

    rank: int
    simulated_ns: int | None
    not_computing_ns: int | None
    work_ns: dict[str, int] | None


class SimulatorRun(Short, msgspec.Struct, frozen=True, kw_only=True):
    """One run of ASTRA-sim. ``ok``: all ranks finished and all nodes were executed; ``failed`` says what went wrong, if
    only as it ended, ``reasons`` what ``graphlink check`` knows that can stop or hang it, and ``said`` its last line.

    ``exit_status``: negative for a signal, None where its time was up. ``executed``: of ``expected`` nodes, None where
    they are more than the log keeps. ``total_ns``: of the rank that ends last, None unless ``ok``. ``replayed_ns``: of
    a sweep over numbers of ranks, the same of the replay of the graphs that were simulated.
    """

    network: tuple[Dimension, ...]
    ok: bool
    exit_status: int | None
    finished: int
    executed: int | None
    expected: int
    total_ns: int | None
    replayed_ns: int | None = None
    failed: list[str]
    reasons: list[str]
    said: str
    ranks: list[SimulatedRank]


class Simulated(Written, frozen=True, kw_only=True):
    """The output of ``graphlink simulate --json``. ``reader``: ``head`` or ``legacy``; ``slot_wait_ns``: how long nodes
    of the replay stood ready while another node had their slot, added up; ``left_out``: combinations of a sweep beyond
    the most that are run; ``warnings``: what this version does with the graphs other than as recorded, by ``graphlink
    check``.
    """

    folder: str
    simulator: str
    reader: str
    ranks: list[RankTimes]
    slot_wait_ns: int
    runs: list[SimulatorRun]
    left_out: int
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class RankNodes:
    """The nodes of a rank by ascending id: the kind of work as a position in ``WORDS``, and whether the node is
    ``expected`` in the log.
    """

    id: I64
    word: U8
    expected: Bool


@dataclass(frozen=True, slots=True)
class Simulator:
    """A binary of ASTRA-sim. ``reader``: ``head`` or ``legacy``; ``timeout_s``: after which a run of it is ended."""

    path: Path
    reader: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run of ASTRA-sim to be made: ``plan`` is written into ``out``, a folder for this run alone. ``reasons``: as
    ``SimulatorRun``.
    """

    plan: Plan
    out: Path
    simulator: Simulator
    nodes: Mapping[int, RankNodes]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The nodes of a rank as the node log has them: ``ns`` from start to end of each, 0 without both; ``last_ns``: the
    last end.
    """

    executed: Bool
    ns: I64
    last_ns: int


def find_simulator(given: str | None) -> Path:
    """Return the path of the binary that is named by a path, or by a name on PATH.

    Raises:
        InputError: none is named, or there is no such program.
    """
    instead = "graphlink replay DIR --machine ranks replays on its slots without it"
    if not given:
        raise InputError("no ASTRA-sim is named", todo=f"{HOW_TO_GET}; {instead}")
    found = shutil.which(given)
    if found is None:
        there = Path(given).exists()
        raise InputError(
            "is no program that can be run" if there else "there is no such program",
            path=given,
            todo=f"{HOW_TO_GET}; {instead}",
        )
    return Path(found).resolve()


def reader_of(simulator: Path) -> str:
    """Tell the version of a binary by the names of classes in it; what has neither, such as a script that calls one, is
    ``head``.
    """
    with naming(simulator, "cannot be read", "name its version with --reader", InputError):
        data = _read(simulator)
    return READERS[1] if _LEGACY in data and _HEAD not in data else READERS[0]


def nodes_of(work: Workload, reader: str) -> dict[int, RankNodes]:
    """Return what a run's log is read with, by rank."""
    ids, words = work.column("id"), np.array(_WORD_OF, np.uint8)[work.work]
    expected = logged(work, reader, replay_only=False)
    return {
        rank: RankNodes(ids[a:b], words[a:b], expected[a:b])
        for rank, (a, b) in zip(work.ranks, work.bounds, strict=True)
    }


def recorded_and_replayed(run: Simulatable) -> tuple[list[RankTimes], int]:
    """Return each rank as recorded and as replayed on ASTRA-sim's slots, and how long nodes waited there for a slot,
    added up, in ns.
    """
    work = run.work
    played = play(work, run.groups, RANKS, together=True)
    words = np.array(_WORD_OF, np.uint8)[work.work]
    ranks = []
    for rank, file, (a, b) in zip(work.ranks, work.files, work.bounds, strict=True):
        ran = bool(played.ran[a:b].all())
        ranks.append(
            RankTimes(
                rank=rank,
                nodes=b - a,
                recorded_ns=measured_ns(file),
                replayed_ns=int(played.end_ns[a:b].max(initial=0)) if ran else None,
                recorded_work_ns=None if file.metadata.made else _by_word(words[a:b], work.cost_ns[a:b]),
                replayed_work_ns=_by_word(words[a:b], played.end_ns[a:b] - played.start_ns[a:b]) if ran else None,
            )
        )
    return ranks, sum(one.waited_ns for one in slot_waits(work, played))


def last_ns(ranks: Sequence[RankTimes]) -> int | None:
    """Return when the last rank ends in the replay; None where one never does."""
    ends = [rank.replayed_ns for rank in ranks]
    return None if None in ends else max(end_ns for end_ns in ends if end_ns is not None)


def _by_word(words: U8, ns: I64) -> dict[str, int]:
    return {word: int(ns[words == k].sum()) for k, word in enumerate(WORDS)}


def simulate(task: Simulation) -> SimulatorRun:
    """Run ASTRA-sim once and judge it; nothing of ``task.out`` is left.

    Raises:
        InputError: the binary does not start.
        OutputError: the folder cannot be written.
    """
    write(task.plan, task.out, force=False)
    folder = task.out / f"log-{task.simulator.reader}"
    folder.mkdir()
    try:
        status, said = _run(task, folder)
        counted = max(task.plan.nodes.values()) <= MOST_LOGGED
        log = read_log((folder / "log").glob("log*.log"), task.nodes) if counted else None
        return judged(task, status, said, log)
    finally:
        shutil.rmtree(task.out, ignore_errors=True)


def _run(task: Simulation, folder: Path) -> tuple[int | None, bytes]:
    """Run the binary in ``folder`` and a session of its own, of which nothing outlives it; return its exit status, None
    where its time was up, and the output.

    Raises:
        InputError: it does not start.
    """
    simulator, status = task.simulator, None
    command = [str(simulator.path), *simulator_options(task.plan, simulator.reader)]
    with (folder / "out.txt").open("w+b") as out:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(_contained, os.getpid()),
            )
        except OSError as problem:
            why = problem.strerror or problem
            raise InputError(f"does not start: {why}", path=simulator.path, todo=HOW_TO_GET) from None
        with _ended(process), contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(simulator.timeout_s)
        out.seek(0)
        said = out.read(_MOST_BYTES)
    if status in _NOT_STARTED or _NOT_LOADED in said[:_SAID]:
        raise InputError(
            f"does not start: {last_line(said) or f'exit status {status}'}",
            path=simulator.path,
            todo="install the library that it names (libprotobuf.so.32 on Debian: apt-get install libprotobuf32), or "
            "build ASTRA-sim here",
        )
    return status, said


def _contained(parent: int) -> None:
    """Have the process of a simulator end with its ``parent``, and write no file without end."""
    import resource

    die_with_parent(parent)  # or it would go on for hours
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = _MOST_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MOST_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End all processes of the session of ``process`` in the end, also where this one is killed before."""
    command = [sys.executable, "-I", "-S", "-c", _WATCH, str(process.pid)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True) as watch:
        try:
            yield
        finally:
            watch.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read(path: Path) -> bytes:
    """Read a file, no link, pipe or device, as far as ``_MOST_BYTES``; nothing of others.

    Raises:
        OSError: it cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(number).st_mode) else b""


def last_line(said: bytes) -> str:
    """Return the last line of an output that is not empty."""
    lines = said[-_SAID:].decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def read_log(files: Iterable[Path], nodes: Mapping[int, RankNodes]) -> dict[int, NodeLog]:
    """Read when each node started and ended. Linear in the log; the first of several entries of a node holds, unknown
    nodes are ignored.
    """
    times: dict[tuple[bytes, int], dict[int, int]] = {
        (what, rank): {} for what in (b"issue", b"callback") for rank in nodes
    }
    for file in islice(sorted(path for path in files if not path.is_symlink()), _MOST_LOGS):
        for what, rank, tick, node_id in _LOGGED.findall(_read(file)):
            of_rank = times.get((what, int(rank)))
            if of_rank is not None:
                of_rank.setdefault(int(node_id), int(tick))
    out = {}
    for rank, of in nodes.items():
        issued, called_back = times[b"issue", rank], times[b"callback", rank]
        started = np.array([issued.get(node_id, -1) for node_id in of.id.tolist()], np.int64)
        ended = np.array([called_back.get(node_id, -1) for node_id in of.id.tolist()], np.int64)
        both = (started >= 0) & (ended >= 0)
        out[rank] = NodeLog(ended >= 0, np.where(both, ended - started, 0), int(ended.max(initial=0)))
    return out


def judged(task: Simulation, status: int | None, said: bytes, log: Mapping[int, NodeLog] | None) -> SimulatorRun:
    """Judge a run by its exit status, its output and its node log (None: not complete)."""
    finished = {int(rank): (int(cycles), int(idle) if idle else None) for rank, cycles, idle in _FINISHED.findall(said)}
    expected = sum(int(of.expected.sum()) for of in task.nodes.values())
    executed = None
    failed = [*_ended_badly(task, status), *_unfinished(task, finished)]
    if log is not None:
        executed = sum(int((log[rank].executed & of.expected).sum()) for rank, of in task.nodes.items())
        failed += _not_executed(task.nodes, log, expected) + _contradicted(finished, log)
    if failed and status == 0:
        failed.append("its exit status is 0 all the same")
    # seen of the present version with several groups
    at_end = len(failed) == 1 and bool(status) and executed == expected
    ok = not failed or at_end
    ranks = [
        SimulatedRank(
            rank=rank,
            simulated_ns=simulated_ns,
            not_computing_ns=not_computing_ns,
            work_ns=_by_word(of.word, log[rank].ns) if log is not None and ok else None,
        )
        for rank, of in task.nodes.items()
        for simulated_ns, not_computing_ns in (finished.get(rank, (None, None)),)
    ]
    return SimulatorRun(
        network=task.plan.network,
        ok=ok,
        exit_status=status,
        finished=sum(rank in finished for rank in task.nodes),
        executed=executed,
        expected=expected,
        total_ns=max(finished[rank][0] for rank in task.nodes) if ok else None,
        failed=[f"{failed[0]} as it ended, with all ranks finished and all nodes executed"] if at_end else failed,
        reasons=[] if ok else list(task.reasons),
        said="" if ok else last_line(said),
        ranks=ranks,
    )


def _ended_badly(task: Simulation, status: int | None) -> list[str]:
    if status is None:
        return [f"not done after {task.simulator.timeout_s:g} s (--timeout), so it was ended"]
    if status < 0:
        return [f"killed by signal {-status} ({signal.strsignal(-status)})"]
    return [f"exit status {status}"] if status else []


def _unfinished(task: Simulation, finished: Mapping[int, object]) -> list[str]:
    ranks = task.plan.ranks
    missing = [rank for rank in range(ranks) if rank not in finished]
    some = first_few(missing, 4)
    return [f"{ranks - len(missing)} of {ranks} ranks finished (not: {some})"] if missing else []


def _not_executed(nodes: Mapping[int, RankNodes], log: Mapping[int, NodeLog], expected: int) -> list[str]:
    left = {rank: of.id[of.expected & ~log[rank].executed] for rank, of in nodes.items()}
    count = sum(map(len, left.values()))
    if not count:
        return []
    rank, ids = next((rank, ids) for rank, ids in left.items() if len(ids))
    return [f"{count:,} of {expected:,} nodes not executed, the first of them node {int(ids[0])} of rank {rank}"]


def _contradicted(finished: Mapping[int, tuple[int, int | None]], log: Mapping[int, NodeLog]) -> list[str]:
    """Compare the time of each rank with its log: a node cannot end after its rank."""
    return [
        f"rank {rank} says {finished[rank][0]:,} cycles, but its log has a node that ended at {of.last_ns:,}"
        for rank, of in log.items()
        if rank in finished and of.last_ns > finished[rank][0]
    ][:1]


def text_of_network(network: Sequence[Dimension]) -> str:
    """Describe a network in a few words, with the unit of ``--bandwidth``: 1 GB = 1e9 bytes."""
    return " x ".join(f"{d.topology} of {d.npus}, {d.bytes_per_s / 1e9:.4g} GB/s, {d.step_ns:g} ns" for d in network)
