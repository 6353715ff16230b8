"""The input of a job: the recordings of a run, the files of a rank, and what shapes its graph."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphlink.choices import CHOICES, HTA_LIMIT, LATENCY_NS
from graphlink.depend.build import BuildOptions
from graphlink.engine.files import FileState
from graphlink.errors import InputError, UsageError, bad_value
from graphlink.linking.step_cut import parse_steps
from graphlink.read.nsys.places import Numbering
from graphlink.records import Short
from graphlink.wings import each

_NAME: Final = re.compile(r"[^./\\\0][^/\\\0]*")
_BESIDE: Final = {  # by what says where recordings are: what else may be given
    "folders": ("nccl", "rank", "strict", "same_run"),
    "kineto": ("et", "nccl", "rank", "strict", "same_run"),
    "nsys": ("rank", "same_run"),
    "paddle_logs": ("same_run",),
}
_EVERYTHING: Final = (*_BESIDE, "et", "nccl", "rank", "strict")
_INSTEAD: Final = {
    "nsys": "an export is a recording of its own: it says neither its partners nor how many there are, and has no side "
    "files",
    "paddle_logs": "logs hold jobs, not traces, and the names of files say the ranks",
    "folders": "give folders and files, or each kind by its name",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recordings(Short):
    """Name the recordings that a run is linked from: files, patterns that match files, and of Kineto, ET and NCCL also
    URLs.

    Attributes:
        folders: Folders and files, or patterns that match them: recordings recognised by content and paired by rank;
            not together with ``kineto``, ``et`` or ``nsys``.
        kineto: Kineto traces.
        et: Execution traces, paired with them by rank.
        nsys: nsys exports (sqlite), instead of Kineto traces.
        nccl: Side files of NCCL or the Flight Recorder, or folders of them, together with Kineto traces.
        paddle_logs: A folder of Paddle's worker logs, instead of all else: bubbles only.
        nvidia_smi: Logs of nvidia-smi beside any of these: csv of a query, or pasted screens.
        megatron_log: Logs of Megatron beside any of these.
        rank: The rank of a single pair, whatever it says.
        strict: A rank or a partner that is missing is an error, not a warning.
        same_run: Recordings that differ in number of ranks, job or time are of one run all the same.

    Raises:
        UsageError: nothing is named, or what is named cannot be given together.
    """

    folders: tuple[str, ...] = ()
    kineto: tuple[str, ...] = ()
    et: tuple[str, ...] = ()
    nsys: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    paddle_logs: str | None = None
    nvidia_smi: tuple[str, ...] = ()
    megatron_log: tuple[str, ...] = ()
    rank: int | None = None
    strict: bool = False
    same_run: bool = False

    def __post_init__(self) -> None:
        given = [n for n in _EVERYTHING if getattr(self, n) not in ((), None) and getattr(self, n) is not False]
        sort = next((n for n in given if n in _BESIDE), None)
        if sort is None:
            raise UsageError("no Kineto trace given", todo="name a folder of recordings, Kineto traces or nsys exports")
        other = next((n for n in given if n != sort and n not in _BESIDE[sort]), None)
        if other is not None:
            raise UsageError(
                f"{sort} and {other} cannot be given together",
                todo=_INSTEAD.get(other) or _INSTEAD.get(sort) or "give one",
            )
        if self.paddle_logs == "":
            raise bad_value("paddle_logs", "", "a folder")
        if self.rank is not None and self.rank < 0:
            raise bad_value("rank", self.rank, "a number from 0")

    @property
    def several(self) -> bool:
        """Tell whether more than one pair may be meant."""
        names = self.folders or self.kineto
        return len(names) > 1 or any(glob.has_magic(name) or Path(name).is_dir() for name in names)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Inputs(Short):
    """Name the files of one rank: a Kineto trace, with or without its execution trace, or an nsys export.

    Attributes:
        kineto: The Kineto trace.
        et: Its execution trace.
        nsys: The nsys export, instead.
        place: Which (process, device) of an nsys export, from 0, in the order of ``read_report``.
        stored: Its trace, left by ``store``, so that an export of several ranks is read once.
        numbering: Which ranks the export holds, which all files of a run decide.
        rank: Overrules what the recording says.
        expected_rank: Is used where the recording says nothing.
        placed: Number of the machine (node), and of the rank on it, as the names of a run's files tell.
        nccl: Side files of NCCL.
        found: Those of them that were found, not named: it is no error if one cannot be read.
        members: Global ranks of communicators, by their keys, as the side files of all ranks together tell.
        remote: Of files on other file systems what they are; they are fetched before they are read
            (``graphlink.run.fetch``).

    Raises:
        UsageError: there is neither ``kineto`` nor ``nsys``.
    """

    kineto: Path | None = None
    et: Path | None = None
    nsys: Path | None = None
    place: int = 0
    stored: Path | None = None
    numbering: Numbering | None = None
    rank: int | None = None
    expected_rank: int | None = None
    placed: tuple[int, int] | None = None
    nccl: tuple[Path, ...] = ()
    found: frozenset[Path] = frozenset()
    members: tuple[tuple[str, tuple[int, ...]], ...] = ()
    remote: tuple[tuple[Path, FileState], ...] = ()

    def __post_init__(self) -> None:
        if self.kineto is None and self.nsys is None:
            raise UsageError("a rank has a recording: kineto and nsys are both None", todo="give one of them")
        refuse_other_bytes(map(self.name_of, self.files))

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files."""
        return (*(path for path in (self.kineto, self.et, self.nsys) if path is not None), *self.nccl)

    @property
    def recording(self) -> Path:
        """Return the Kineto trace or the nsys export of the rank."""
        path = self.kineto or self.nsys
        assert path is not None, "a rank has a recording"
        return path

    @property
    def name(self) -> str:
        """Return the name of the recording, as the user knows it."""
        return self.name_of(self.recording)

    def name_of(self, path: Path) -> str:
        """Return the name of a file as the user knows it: its URL, where it is a copy."""
        found = self.remote_of(path)
        return str(path) if found is None else found.name

    def remote_of(self, path: Path) -> FileState | None:
        """Return the state of the remote file that ``path`` is a copy of; None where it is no copy."""
        return next((remote for local, remote in self.remote if local == path), None)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options(Short):
    """Say what shapes the graphs and files of a run; the defaults are those of the command line.

    Attributes:
        step: Which ProfilerSteps, by the numbers of their marks: ``all``, ``3`` or ``2-5`` (both ends included).
        sync: Where synchronisation is taken from: ``both`` (CUDA's semantics and HTA), ``hta`` or ``cuda``.
        hta_limit: Events of one window, from 0, above which HTA is skipped there, with a warning.
        target: ``astra-sim`` writes what ASTRA-sim can run, ``chakra`` what was recorded.
        gap_ns: Idle time in ns, from 0, above which a host gap or device delay is a node of its own.
        linked: Also write ``linked.<rank>.json``, the execution trace merged with device ops.
        host: ``full`` keeps every host op; ``launches`` folds those that neither launch, wait, hand over nor begin a
            thread.
        timeline: What ``timeline.perfetto-trace`` shows: ``recorded``, ``both`` (recorded and replayed); ``none``
            writes no timeline.
        name: Prefix of the graphs, ``<name>.<rank>.et``: the beginning of a file name, without ``/``, ``\\`` or a
            leading dot.
        comm_time: Duration of communication in the graphs of several ranks: as ``recorded``, or ``transfer``, without
            the time spent waiting for other ranks.
        keep_unmatched: Communication that other ranks lack stays communication, and does not become computation.
        range_rules: Regular expressions with groups ``(?P<phase>...)``, ``microbatch``, ``stage``, ``chunk`` that names
            of pipeline ranges match, tried before the known ones.

    Raises:
        UsageError: a value is none of these; with the field, the value and what is allowed.
    """

    step: str = "all"
    sync: str = CHOICES["sync"][0]
    hta_limit: int = HTA_LIMIT
    target: str = CHOICES["target"][0]
    gap_ns: int = LATENCY_NS
    linked: bool = False
    host: str = CHOICES["host"][0]
    timeline: str = CHOICES["timeline"][0]
    name: str = "trace"
    comm_time: str = CHOICES["comm_time"][0]
    keep_unmatched: bool = False
    range_rules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        name, rules = self.name, self.range_rules
        for field_name, fits, allowed in (
            ("step", isinstance(self.step, str), "'all', a number ('3') or a range ('2-5')"),
            *(
                (field, getattr(self, field) in CHOICES[field], f"one of {', '.join(CHOICES[field])}")
                for field in ("target", "host", "timeline", "comm_time")
            ),
            *(
                (field, isinstance(getattr(self, field), bool), "True or False")
                for field in ("linked", "keep_unmatched")
            ),
            ("name", isinstance(name, str) and _NAME.fullmatch(name), "the beginning of a file name"),
            (
                "range_rules",
                isinstance(rules, tuple) and all(isinstance(rule, str) for rule in rules),
                "a tuple of regular expressions",
            ),
        ):
            if not fits:
                raise bad_value(field_name, getattr(self, field_name), allowed)
        parse_steps(self.step)
        _ = self.build  # refuses what it must
        for _, hooks in each():
            hooks.check(self)

    @property
    def build(self) -> BuildOptions:
        """Return the options that shape dependencies."""
        return BuildOptions(sync=self.sync, gap_ns=self.gap_ns, hta_limit=self.hta_limit)


def refuse_other_bytes(names: Iterable[str]) -> None:
    """Refuse names of files that are not UTF-8.

    Raises:
        InputError: one is not.
    """
    for name in names:
        if any("\ud800" <= character <= "\udfff" for character in name):  # how Python holds other bytes
            raise InputError(
                "its name is not UTF-8, which summary.json could not hold", path=ascii(name), todo="rename it"
            )
