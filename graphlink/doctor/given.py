"""The recordings that ``graphlink doctor`` is to examine: as the main job finds and pairs them, and what has no
partner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphlink.engine.engines import RunsOn
from graphlink.errors import InputError
from graphlink.read import kinds
from graphlink.read.heads import looks_like
from graphlink.read.source import unreadable
from graphlink.report import summary
from graphlink.run.discover.find import ranks_of
from graphlink.run.discover.inputs import by_kind, is_looked_into, of_files, of_folders, own_outputs, unfold
from graphlink.run.discover.pairing import NOT_RECORDED, WITHOUT_ET, Discovered, side_files
from graphlink.run.options import Inputs
from graphlink.wings import SideFile, any_of, each

MOST_GONE: Final = 8  # recordings that a message lists


@dataclass(frozen=True, slots=True)
class Given:
    """The files of a run. ``bare``: execution traces that no recording can belong to; ``dumps``: side files of NCCL, of
    which ``found`` were found in folders, not named; ``passed_over``: what pairing had to say."""

    ranks: tuple[Inputs, ...] = ()
    bare: tuple[Path, ...] = ()
    dumps: tuple[Path, ...] = ()
    found: frozenset[Path] = frozenset()
    passed_over: tuple[str, ...] = ()


def given(names: Sequence[str], scratch: Path) -> Given:
    """Find and pair recordings as the main job does. Traces of nsys exports lie in ``scratch`` then.

    Raises:
        InputError: there is no such file or folder, it cannot be read, or it is no recording.
        UsageError: files cannot be paired.
    """
    paths = list(dict.fromkeys(path for named in unfold(names) for path in _recordings_of(named)))
    of_kind, dumps = by_kind([path for path in paths if not path.is_dir()])
    devices, hosts, exports = (of_kind[kind.name] for kind in (kinds.KINETO, kinds.ET, kinds.NSYS))
    searched: list[str] = []
    bare: list[Path] = []
    beside: list[SideFile] = []
    for folder in filter(Path.is_dir, paths):
        heads, others = _inside(folder)
        lone = _lone_hosts(others)
        bare += lone
        beside += heads
        if not lone and (others or not heads):
            searched.append(str(folder))
    parts = [of_folders(searched, None, same_run=True)] if searched else []
    if devices:  # a single pair is one as given; more are paired by rank
        parts.append(of_files(list(map(str, devices)), list(map(str, hosts)), None, same_run=True))
    else:
        bare += hosts
    ranks = [one for part in parts for one in part.ranks]
    inside = {dump.path: dump for dump in (*(dump for part in parts for dump in part.dumps), *beside)}
    paired = Discovered(tuple(ranks), dumps=tuple(inside.values()))
    for _, hooks in each() if ranks else ():
        paired = hooks.paired(paired, [dump.path for dump in dumps])
    exports += [export for part in parts for export in part.exports]
    of_exports = ranks_of(exports, None, scratch, RunsOn(None)) if exports else []
    said = [*(text for part in parts for text in (*part.warnings, *part.missing)), *paired.missing]
    return Given(
        ranks=(*paired.ranks, *of_exports),
        bare=tuple(bare),
        dumps=tuple(dict.fromkeys([*(dump.path for dump in dumps), *inside])),
        found=frozenset(inside),
        passed_over=tuple(text for text in said if not text.startswith(WITHOUT_ET) and not text.endswith(NOT_RECORDED)),
    )


def _recordings_of(path: Path) -> Sequence[Path]:
    """Find the recordings that a folder of outputs was made from; else ``path`` itself, as where recordings lie next to
    the outputs.

    Raises:
        InputError: they are gone.
    """
    own = own_outputs(path) if path.is_dir() else frozenset()
    if not own:
        return [path]
    others = [file for file in path.iterdir() if file.is_file() and file.name not in own and is_looked_into(file.name)]
    if any(looks_like(file) in (kinds.KINETO.name, kinds.ET.name, kinds.NSYS.name) for file in others):
        return [path]
    inputs = [rank.inputs for rank in summary.load(path / "summary.json").ranks]
    named = dict.fromkeys(name for one in inputs for name in (one.kineto, one.nsys, one.et) if name is not None)
    found = {name: place for name in named for place in (path.parent / name, Path(name)) if place.exists()}
    gone = [name for name in named if name not in found]
    if gone or not named:
        raise InputError(
            "holds what graphlink made, and recordings that it was made from are not found from here",
            path=path,
            where=", ".join(gone[:MOST_GONE]) + (f", ... ({len(gone)} in all)" if len(gone) > MOST_GONE else ""),
            todo="run it in the folder in which graphlink ran, or graphlink doctor RECORDINGS, where they are now",
        )
    return [found[name] for name in named]


def _inside(folder: Path) -> tuple[list[SideFile], list[Path]]:
    """Return the side files in a folder, and the other files that may be recordings."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as problem:
        raise unreadable(folder, problem) from None
    dumps = side_files([path for path in files if any_of("may_be_side_file", path.name)])
    of_dumps = {dump.path for dump in dumps}
    return dumps, [path for path in files if path not in of_dumps and is_looked_into(path.name)]


def _lone_hosts(paths: Sequence[Path]) -> list[Path]:
    """Return the execution traces among files, where no recording of a device is with them."""
    hosts = []
    for path in paths:
        kind = looks_like(path)
        if kind in (kinds.KINETO.name, kinds.NSYS.name):
            return []
        if kind == kinds.ET.name:
            hosts.append(path)
    return hosts
