"""Which files there are, and which belong to one rank."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphlink.errors import InputError, UsageError
from graphlink.read import kinds
from graphlink.read.looks import looks_like
from graphlink.read.paddle import is_worker_log
from graphlink.read.source import open_source, unreadable
from graphlink.run import Inputs

log: Final = logging.getLogger("graphlink")

HEAD_BYTES: Final = 1 << 22  # of the unpacked text, in which the head of a trace is looked for
_CHUNK: Final = 1 << 16
_RANK: Final = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,9})\s*[,}]')
_EVENTS: Final = b'"traceEvents"'
_KINETO: Final = (_EVENTS, b'"deviceProperties"', b'"distributedInfo"', b'"schemaVersion"')
_ET: Final = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"')
_NAMED: Final = re.compile(r"(?:rank|et|kineto)[_.-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,9}")
_SUFFIX: Final = re.compile(r"(?:\.(?:pt|trace|json|gz|zst|pytorch))+$", re.IGNORECASE)
_SQLITE: Final = re.compile(r"\.(?:sqlite3?|db)(?:\.gz|\.zst)?$", re.IGNORECASE)
_MERGED: Final = re.compile(rb'"cat"\s*:\s*"')


def of_files(kineto: Sequence[str], et: Sequence[str], rank: int | None) -> list[Inputs]:
    """The ranks behind ``--kineto`` and ``--et``, globs unfolded; more than one are paired by rank.

    Raises:
        UsageError: files cannot be paired.
        InputError: a glob has no match, a file cannot be read.
    """
    devices, hosts = unfold(kineto), unfold(et)
    if len(devices) == 1 and len(hosts) <= 1:
        return [Inputs(kineto=devices[0], et=hosts[0] if hosts else None, rank=rank, expected_rank=_named_rank(devices[0]))]
    if rank is not None:
        raise UsageError("--rank is for a single pair", todo="leave it out: several files are paired by the ranks they hold")
    return _paired(devices, hosts)


@dataclass(frozen=True, slots=True)
class FolderInputs:
    """What a folder holds: ranks of Kineto traces, or nsys exports where it has no Kineto trace. ``warnings``: recordings left aside."""

    ranks: list[Inputs]
    exports: list[Path]
    warnings: tuple[str, ...]


def of_folder(folder: Path, rank: int | None) -> FolderInputs:
    """The traces in ``folder`` (not in folders in it), told by content and paired by rank.

    Raises:
        InputError: there is no such folder, no recording in it, or a file cannot be read.
        UsageError: files cannot be paired; execution traces beside nsys exports.
    """
    try:
        is_folder, paths = folder.is_dir(), sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as problem:
        raise unreadable(folder, problem) from None
    if not is_folder:
        what = "is a file, not a folder" if folder.exists() else "there is no such folder"
        raise InputError(what, path=folder, todo="give a folder, or files with --et and --kineto")
    devices: list[Path] = []
    hosts: list[Path] = []
    for path in paths:
        if path.name.startswith(".") or not path.is_file() or not _SUFFIX.search(path.name):
            continue
        kind = _kind(path)
        log.debug("%s: %s", path, kind or "no trace")
        if kind is not None:
            (devices if kind == "kineto" else hosts).append(path)
    exports = [path for path in paths if _is_export(path, needed=not devices)]
    logs = [path for path in paths if is_worker_log(path) and path.is_file()]
    if not devices:
        _refuse_exports(folder, exports, hosts, logs)
        return FolderInputs([], exports, _left_aside(folder, "nsys exports", [], logs))
    return FolderInputs(_ranks(folder, devices, hosts, rank), [], _left_aside(folder, "Kineto traces", exports, logs))


def _is_export(path: Path, *, needed: bool) -> bool:
    """Whether it is an nsys export. Of one that is not ``needed`` it does not matter that it cannot be read."""
    if path.name.startswith(".") or not _SQLITE.search(path.name) or not path.is_file():
        return False
    try:
        return looks_like(path) == kinds.NSYS.name
    except InputError:
        if needed:
            raise
        return False


def _left_aside(folder: Path, taken: str, exports: Sequence[Path], logs: Sequence[Path]) -> tuple[str, ...]:
    """Recordings of other kinds than the one that is ``taken`` from a folder, in words; logged as well."""
    others = (("nsys export", exports, "--nsys"), ("Paddle worker log", logs, "--paddle-logs"))
    said = tuple(
        f"{folder}: {taken} are read, {len(paths)} {kind}{'s' * (len(paths) > 1)} left aside, as {paths[0].name}: read with {option}"
        for kind, paths, option in others
        if paths
    )
    for text in said:
        log.warning("%s", text)
    return said


def _refuse_exports(folder: Path, exports: Sequence[Path], hosts: Sequence[Path], logs: Sequence[Path]) -> None:
    """What speaks against the nsys exports of a folder that has no Kineto trace."""
    if not exports:
        todo = f"give the worker logs with --paddle-logs {folder}" if logs else "give the files with --kineto or --nsys"
        raise InputError("no Kineto trace and no nsys export was found in it", path=folder, todo=todo)
    if hosts:
        raise UsageError(
            f"holds nsys exports and the execution trace {hosts[0].name}, which cannot be paired",
            path=folder,
            todo="give the exports with --nsys",
        )


def _ranks(folder: Path, devices: Sequence[Path], hosts: Sequence[Path], rank: int | None) -> list[Inputs]:
    if len(devices) == 1 and len(hosts) <= 1:
        host = hosts[0] if hosts else None
        return [Inputs(kineto=devices[0], et=host, rank=rank, expected_rank=_named_rank(devices[0]))]
    if rank is not None:
        raise UsageError("--rank is for a single pair, and the folder holds more", path=folder)
    return _paired(devices, hosts)


def unfold(names: Iterable[str]) -> list[Path]:
    out: list[Path] = []
    for name in names:
        if glob.has_magic(name) and not os.path.lexists(name):
            found = sorted(glob.glob(name))  # noqa: PTH207  (absolute patterns too)
            if not found:
                raise InputError("no file matches", path=name, todo="check the pattern; quote it so that the shell leaves it alone")
            out += map(Path, found)
        else:
            out.append(Path(name))
    return list(dict.fromkeys(out))


def _paired(devices: Sequence[Path], hosts: Sequence[Path]) -> list[Inputs]:
    by_rank: dict[int, Path] = {}
    for path in devices:
        recorded = _recorded_rank(path)
        rank = recorded if recorded is not None else _number(path)
        _put(by_rank, rank, path)
    host_by_rank: dict[int, Path] = {}
    for path in _without_merged(hosts):
        _put(host_by_rank, _number(path), path)
    alone = [f"{p} (rank {r})" for r, p in by_rank.items() if hosts and r not in host_by_rank]
    alone += [f"{p} (rank {r})" for r, p in host_by_rank.items() if r not in by_rank]
    if alone:
        raise UsageError(
            f"{len(alone)} files have no partner of their rank: {', '.join(alone[:3])}{', ...' if len(alone) > 3 else ''}",
            todo="give a Kineto trace and an execution trace of every rank, numbered alike",
        )
    return [Inputs(kineto=p, et=host_by_rank.get(r), expected_rank=r) for r, p in sorted(by_rank.items())]


def _put(by_rank: dict[int, Path], rank: int | None, path: Path) -> None:
    if rank is None:
        raise UsageError("cannot tell its rank: neither recorded nor in the file name", path=path, todo="give this rank alone, with --rank")
    if rank in by_rank:
        raise UsageError(f"{by_rank[rank]} and {path} are both of rank {rank}", todo="give one Kineto trace and one execution trace a rank")
    by_rank[rank] = path


def _without_merged(hosts: Sequence[Path]) -> list[Path]:
    """Of two execution traces of a rank, one that is merged with device rows already is left aside."""
    numbers = [_number(p) for p in hosts]
    out = []
    for path, number in zip(hosts, numbers, strict=True):
        if numbers.count(number) > 1 and _is_merged(path):
            log.warning("%s is left aside: it is merged with device rows already", path)
        else:
            out.append(path)
    return out


def _number(path: Path) -> int | None:
    """The rank that a file name says: after ``rank``, ``et`` or ``kineto``, else its last number."""
    named = _named_rank(path)
    if named is not None:
        return named
    numbers = _NUMBER.findall(_SUFFIX.sub("", path.name))
    return int(numbers[-1]) if numbers else None


def _named_rank(path: Path) -> int | None:
    found = _NAMED.search(_SUFFIX.sub("", path.name))
    return int(found[1]) if found else None


def _head(path: Path) -> bytes:
    """The beginning of a trace, up to its events or nodes."""
    head = b""
    with open_source(path) as source:
        while len(head) < HEAD_BYTES and (part := source.read(_CHUNK)):
            head += part
            if _EVENTS in head or b'"nodes"' in head:
                break
    return head


def _recorded_rank(path: Path) -> int | None:
    found = _RANK.search(_head(path))
    return int(found[1]) if found else None


def _kind(path: Path) -> str | None:
    head = _head(path)
    if _ET.match(head):
        return "et"
    return "kineto" if any(mark in head for mark in _KINETO) else None


def _is_merged(path: Path) -> bool:
    with open_source(path) as source:
        before = b""
        while part := source.read(1 << 20):
            if _MERGED.search(before + part):
                return True
            before = part[-64:]
    return False
