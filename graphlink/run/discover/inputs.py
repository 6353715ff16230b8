"""The files of a run: those that are named, those that a pattern matches, and those that folders hold."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from graphlink.errors import InputError, UsageError, log
from graphlink.output_names import SUMMARY
from graphlink.read import kinds
from graphlink.read.heads import Head, looks_like, read_head, read_heads
from graphlink.read.source import open_source, reading
from graphlink.run.discover.names import is_named_as_recording, is_trace_name, named_rank, told_rank
from graphlink.run.discover.pairing import Discovered, few, holes, pair, refuse_world, side_files, without_twins
from graphlink.run.options import Inputs
from graphlink.run.read_rank import rank_of
from graphlink.tables import grouped
from graphlink.wings import SideFile, any_of, side_file

_SQLITE: Final = re.compile(r"\.(?:sqlite3?|db)(?:\.gz|\.zst)?$", re.IGNORECASE)


class _Folder(msgspec.Struct, frozen=True):
    """The contents of a folder itself. ``databases`` are named as nsys exports are, and may be others."""

    path: Path
    devices: tuple[Head, ...]
    hosts: tuple[Head, ...]
    databases: tuple[Path, ...]
    logs: tuple[Path, ...]
    dumps: tuple[SideFile, ...]
    strange: tuple[Path, ...]  # named as recordings are, and none
    foreign: tuple[Path, ...]  # named as recordings of other tools are, or JSON that holds none

    def exports(self, *, needed: bool) -> tuple[Path, ...]:
        """Return the nsys exports; of those that are not ``needed`` it does not matter that one cannot be read."""
        return tuple(path for path in self.databases if _looks_like(path, needed=needed) == kinds.NSYS.name)

    def has_traces(self) -> bool:
        return bool(self.devices or self.hosts or self.exports(needed=False))


def of_files(kineto: Sequence[str], et: Sequence[str], rank: int | None, *, same_run: bool = False) -> Discovered:
    """Find the ranks behind ``--kineto`` and ``--et``, globs unfolded. More than one are paired by rank; a single pair
    is one as given.

    Raises:
        InputError: a glob has no match, a file cannot be read, two files are of one rank, or of two runs without
            ``same_run``.
        UsageError: files cannot be paired.
    """
    devices, hosts = unfold(kineto), unfold(et)
    if len(devices) == 1 and len(hosts) <= 1:
        named = named_rank(devices[0], alone=not hosts)
        one = Inputs(kineto=devices[0], et=hosts[0] if hosts else None, rank=rank, expected_rank=named)
        of_host = named_rank(hosts[0]) if hosts else None
        warnings: tuple[str, ...] = ()
        if rank is None and named is not None and of_host not in (None, named):
            warnings = (f"{hosts[0]} is named as of rank {of_host}, {devices[0]} as of rank {named}: are they a pair?",)
        if not any(
            map(glob.has_magic, kineto)
        ):  # a name is for this file alone, which may be a pipe and must not be read twice
            if rank is None and os.path.isfile(devices[0]):  # noqa: PTH113 - False, where Path.is_file raises
                refuse_world(read_head(devices[0]), None)
            return Discovered((one,), warnings=warnings)
        (head,) = read_heads(devices)
        one = _single(head, one.et, rank)
        return Discovered((one,), missing=holes({rank_of(one, None)}, [head]))
    if rank is not None:
        raise UsageError(
            "--rank is for a single pair", todo="leave it out: several files are paired by the ranks they hold"
        )
    return pair(read_heads(devices), read_heads(hosts), same_run=same_run)


def of_folders(names: Sequence[str], rank: int | None, *, same_run: bool = False) -> Discovered:
    """Find the recordings in folders and the files named, recognised by content and paired by rank over all of them;
    side files of NCCL not yet.

    A folder that holds none itself is taken as a folder of folders, of a rank or host each. A single pair that is named
    is one as given, as with ``--kineto`` and ``--et``: that other ranks were not recorded is not missed.

    Raises:
        InputError: there is no such folder, no recording in any, a file cannot be read, two files are of one rank, or
            of two runs without ``same_run``; a file that is named is no recording.
        UsageError: files cannot be paired; execution traces together with nsys exports, or without any trace of a
            device.
    """
    paths = _named(names)
    named = [path for path in paths if path.is_file()]
    folders = [*_contents([path for path in paths if path not in set(named)]), *([_of_files(named)] if named else [])]
    devices, twins = without_twins([head for folder in folders for head in folder.devices])
    hosts = [head for folder in folders for head in folder.hosts]
    dumps = tuple(head for folder in folders for head in folder.dumps)
    empty = [str(folder.path) for folder in folders if not folder.has_traces() and not folder.dumps]
    missing = (f"no recording was found in {few(empty)}",) if empty else ()
    strange = [str(path) for folder in folders for path in folder.strange]
    if strange:
        missing = (*missing, f"left aside, by their beginning neither traces nor side files of NCCL: {few(strange)}")
    foreign = (*twins, *_foreign([path for folder in folders for path in folder.foreign]))
    if not devices:
        if hosts and len(named) == len(paths) and not any(folder.databases for folder in folders):
            raise UsageError("no Kineto trace given", path=hosts[0].path, todo="add the Kineto trace of the same run")
        exports = [path for folder in folders for path in folder.exports(needed=True)]
        _refuse_exports(folders, exports, hosts)
        return Discovered(
            (), tuple(exports), (*_left_aside(folders, "nsys exports", exports_too=False), *foreign), missing
        )
    warnings = (*_left_aside(folders, "Kineto traces", exports_too=True), *foreign)
    if len(devices) == 1 and (
        not hosts or (len(hosts) == 1 and (rank is not None or not _at_odds(devices[0], hosts[0])))
    ):
        one = _single(devices[0], hosts[0].path if hosts else None, rank)
        if len(named) < len(paths):
            missing = (*missing, *holes({rank_of(one, None)}, devices))
        return Discovered((one,), (), warnings, missing, dumps)
    if rank is not None:
        raise UsageError("--rank is for a single pair, and there are more", path=folders[0].path)
    paired = pair(devices, hosts, same_run=same_run)
    return Discovered(paired.ranks, (), (*warnings, *paired.warnings), (*missing, *paired.missing), dumps)


def is_looked_into(name: str) -> bool:
    """Tell whether a file of that name in a folder may be a recording of any kind."""
    return not name.startswith(".") and (
        is_trace_name(name)
        or _SQLITE.search(name) is not None
        or any_of("is_log", Path(name))
        or any_of("may_be_side_file", name)
    )


def unfold(names: Iterable[str]) -> list[Path]:
    """Find the files that ``names`` name or, as patterns, match; each once."""
    return list(dict.fromkeys(path for name in names for path in _matches(name)))


def _matches(name: str) -> list[Path]:
    if not glob.has_magic(name) or os.path.lexists(name):
        return [Path(name)]
    found = sorted(glob.glob(name))  # noqa: PTH207  (absolute patterns too)
    if not found:
        raise InputError(
            "no file matches", path=name, todo="check the pattern; quote it so that the shell leaves it alone"
        )
    return [Path(match) for match in found]


def by_kind(paths: Sequence[Path]) -> tuple[dict[str, list[Path]], list[SideFile]]:
    """Return Kineto traces, execution traces and nsys exports by the names of their kinds, recognised by content, and
    the side files.

    Raises:
        InputError: one is no recording.
    """
    of_kind: dict[str, list[Path]] = {kind.name: [] for kind in (kinds.KINETO, kinds.ET, kinds.NSYS)}
    dumps: list[SideFile] = []
    for path in paths:
        head = side_file(path)
        if head is not None:
            dumps.append(head)
            continue
        kind = looks_like(path)
        if kind == kinds.CHAKRA.name:
            raise InputError("is a Chakra graph, not a recording", path=path, todo=f"graphlink check {path} judges it")
        if kind is not None and kind not in of_kind and kind != kinds.NCCL.name:
            raise InputError(f"is {kinds.ALL[kind].what}", path=path, todo=kinds.ALL[kind].todo)
        if kind not in of_kind:
            with open_source(path) as source:
                while source.read(1 << 20):  # one that is cut off says so
                    pass
            logs = f"give the folder of Paddle's logs with --paddle-logs {path.parent}"
            raise InputError(
                "is neither a Kineto trace, an execution trace, an nsys export nor a side file of NCCL",
                path=path,
                todo=logs
                if any_of("is_log", path)
                else "give what a profiler wrote; graphlink doctor --env tells what it would write",
            )
        of_kind[kind].append(path)
    return of_kind, dumps


def _of_files(named: Sequence[Path]) -> _Folder:
    """Return files that are named as if they lay in a folder."""
    of_kind, dumps = by_kind(named)
    return _Folder(
        named[0],
        devices=tuple(read_heads(of_kind[kinds.KINETO.name])),
        hosts=tuple(read_heads(of_kind[kinds.ET.name])),
        databases=tuple(of_kind[kinds.NSYS.name]),
        logs=(),
        dumps=tuple(dumps),
        strange=(),
        foreign=(),
    )


def _named(names: Sequence[str]) -> list[Path]:
    """List what ``names`` match; of what a pattern matches besides folders, files are left out."""
    out: dict[Path, None] = {}
    for name in names:
        matches = _matches(name)
        out |= dict.fromkeys([path for path in matches if _is_folder(path)] or matches)
    return list(out)


def _at_odds(device: Head, host: Head) -> bool:
    """Tell whether the two are of different ranks, by what they record or else by their names."""
    ranks = [told_rank(head.rank, head.path) for head in (device, host)]
    return None not in ranks and ranks[0] != ranks[1]


def _single(head: Head, et: Path | None, rank: int | None) -> Inputs:
    told = told_rank(head.rank, head.path, alone=et is None)
    if rank is None:
        refuse_world(head, told)
    return Inputs(kineto=head.path, et=et, rank=rank, expected_rank=told)


def _contents(paths: Sequence[Path]) -> list[_Folder]:
    """Return the contents of each folder, or of those in it where it holds no recording itself and they hold traces."""
    out: dict[Path, _Folder] = {}
    for folder in _looked_into(paths):
        searched = not folder.has_traces() and not folder.logs
        below = _looked_into([path for path in _inside(folder.path) if _is_folder(path)]) if searched else []
        held = {inner.path: inner for inner in below if inner.has_traces() or inner.dumps}
        out |= held if held and not folder.dumps else held | {folder.path: folder}
    return list(out.values())


def _looked_into(paths: Sequence[Path]) -> list[_Folder]:
    """Read the headers in all of them together: there may be many folders of one file."""
    files = {path: [file for file in _inside(path) if file.is_file()] for path in paths}
    named = [
        file
        for inner in files.values()
        for file in inner
        if is_trace_name(file.name) and not any_of("is_named_as_side_file", file)
    ]
    heads = {head.path: head for head in read_heads(named)}
    known = {head.path for head in heads.values() if head.kind is not None}
    unknown = [
        file
        for inner in files.values()
        for file in inner
        if any_of("may_be_side_file", file.name) and file not in known
    ]
    dumps = {head.path: head for head in side_files(unknown)}
    return [
        _folder(
            path,
            inner,
            [heads[file] for file in inner if file in heads],
            [dumps[file] for file in inner if file in dumps],
        )
        for path, inner in files.items()
    ]


def _folder(path: Path, files: Sequence[Path], heads: Sequence[Head], dumps: Sequence[SideFile]) -> _Folder:
    side_files, own = {dump.path for dump in dumps}, own_outputs(path)
    strange = [
        head.path
        for head in heads
        if head.kind is None and head.path not in side_files and is_named_as_recording(head.path)
    ]
    known = {head.path for head in heads if head.kind is not None}
    silent = {head.path for head in heads} - {*known, *strange, *side_files}
    for head in heads:
        log.debug("%s: %s", head.path, head.kind or "no trace")
    return _Folder(
        path,
        devices=tuple(head for head in heads if head.kind == kinds.KINETO.name),
        hosts=tuple(head for head in heads if head.kind == kinds.ET.name),
        databases=tuple(file for file in files if _SQLITE.search(file.name)),
        logs=tuple(file for file in files if any_of("is_log", file)),
        dumps=tuple(dumps),
        strange=(
            *strange,
            *(
                file
                for file in files
                if any_of("is_named_as_side_file", file)
                and any_of("may_be_side_file", file.name)
                and file not in side_files
            ),
        ),
        foreign=tuple(
            file
            for file in files
            if file.name not in own
            and (file in silent or (file not in known and kinds.kind_by_name(file.name) is not None))
        ),
    )


def own_outputs(folder: Path) -> frozenset[str]:
    """Return the names of what graphlink wrote into a folder."""
    try:
        listed = json.loads((folder / "summary.json").read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
    return frozenset(
        {"summary.json", *(name for name in listed if isinstance(name, str))} if isinstance(listed, list) else ()
    )


def _foreign(paths: Sequence[Path]) -> tuple[str, ...]:
    """Describe files that are no recordings as they are read here: what they are and what to do."""
    of_kind = grouped(
        (kinds.kind_by_name(path.name) or kinds.ALL.get(_looks_like(path) or ""), str(path)) for path in paths
    )
    return tuple(f"left aside: {few(names)}: {kind.what} ({kind.todo})" for kind, names in of_kind.items() if kind)


def refuse_absent(names: Iterable[str]) -> None:
    """Raise InputError for the first folder or file that is not there; what patterns match is."""
    for path in unfold(names):
        if not os.path.lexists(path):
            raise _absent(path)


def _absent(path: Path) -> InputError:
    return InputError(
        "there is no such file or folder", path=path, todo="give a folder or files; graphlink --help lists the verbs"
    )


def _inside(folder: Path) -> list[Path]:
    """List what is in a folder, but for hidden files."""
    if not _is_folder(folder):
        if folder.exists():
            raise InputError(
                "is neither a file nor a folder, but a pipe or a device",
                path=folder,
                todo="say what it is: --kineto or --et",
            )
        raise _absent(folder)
    with reading(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _is_folder(path: Path) -> bool:
    with reading(path):
        return path.is_dir()


def _looks_like(path: Path, *, needed: bool = False) -> str | None:
    """Return the name of the kind of a file; None of one that cannot be read, if it is not ``needed``."""
    try:
        return looks_like(path)
    except InputError:
        if needed:
            raise
        return None


def _left_aside(folders: Sequence[_Folder], taken: str, *, exports_too: bool) -> tuple[str, ...]:
    """Describe the recordings of other kinds than the one that is ``taken`` from the folders, in words."""
    return tuple(
        f"{folder.path}: {taken} are read, {len(paths)} {kind}{'s' * (len(paths) > 1)} left aside, as {paths[0].name}: "
        f"read with {option}"
        for folder in folders
        for kind, paths, option in (
            ("nsys export", folder.exports(needed=False) if exports_too else (), "--nsys"),
            ("Paddle worker log", folder.logs, "--paddle-logs"),
            ("side file", () if exports_too else tuple(dump.path for dump in folder.dumps), "--nccl beside --kineto"),
        )
        if paths
    )


def _refuse_exports(folders: Sequence[_Folder], exports: Sequence[Path], hosts: Sequence[Head]) -> None:
    """Refuse nsys exports: report what speaks against the nsys exports of folders that have no Kineto trace."""
    if not exports:
        others = f", nor in {few([str(folder.path) for folder in folders[1:]])}" if len(folders) > 1 else ""
        logs = [folder.path for folder in folders if folder.logs]
        todo = (
            f"give the worker logs with --paddle-logs {logs[0]}" if logs else "give the files with --kineto or --nsys"
        )
        if (folders[0].path / SUMMARY).is_file():
            todo = f"graphlink has written this folder: graphlink show {shlex.quote(str(folders[0].path))} reads it"
        raise InputError(f"no Kineto trace and no nsys export was found in it{others}", path=folders[0].path, todo=todo)
    if hosts:
        raise UsageError(
            f"is beside nsys exports, as {exports[0].name}, which cannot be paired with it",
            path=hosts[0].path,
            todo="give the exports with --nsys",
        )
