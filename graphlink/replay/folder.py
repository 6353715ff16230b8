"""The graphs of an output folder, and its communicators."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from graphlink import output_names
from graphlink.engine.beside import LARGE_BYTES, side_by_side
from graphlink.errors import InputError, UsageError
from graphlink.graph.et_nodes import Forms
from graphlink.graph.read_et import read_et
from graphlink.graph_model import Graph
from graphlink.read.document import load as load_document

BYTES_A_BYTE: Final = 20  # of a graph in memory, for each byte of its file
_NAMED: Final = re.compile(r"(?P<prefix>.*)\.(?P<rank>\d{1,9})\.et")


def graph_files(what: Path, rank: int | None = None) -> dict[int, Path]:
    """Return the ``<prefix>.<rank>.et`` of a folder by rank, or one such file; with ``rank`` only that one.

    Raises:
        InputError: there is none, or no such rank.
        UsageError: the folder holds the graphs of several runs.
    """
    if what.is_file():
        named = _NAMED.fullmatch(what.name)
        files = {int(named["rank"]) if named else 0: what}
    else:
        files = _of_folder(what)
    if rank is None:
        return files
    if rank not in files:
        known = ", ".join(map(str, sorted(files)[:8]))
        raise InputError(f"has no graph of rank {rank}: there are {known}", path=what, todo="choose another --rank")
    return {rank: files[rank]}


def _of_folder(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        raise InputError(
            "there is no such folder",
            path=folder,
            todo="name the folder that graphlink wrote with --out, or a .et file",
        )
    by_prefix: dict[str, dict[int, Path]] = defaultdict(dict)
    for named in filter(None, (_NAMED.fullmatch(path.name) for path in sorted(folder.iterdir()))):
        by_prefix[named["prefix"]][int(named["rank"])] = folder / named.string
    if not by_prefix:
        raise InputError("holds no graphs (<name>.<rank>.et)", path=folder, todo="run graphlink --out on it first")
    if len(by_prefix) > 1:
        runs = ", ".join(sorted(by_prefix)[:4])
        raise UsageError(f"holds the graphs of several runs: {runs}", path=folder, todo="name one .et file")
    return dict(sorted(next(iter(by_prefix.values())).items()))


def load(files: Mapping[int, Path]) -> dict[int, Graph]:
    """Read the graphs of some ranks, large ones in as many processes as there are cores.

    Raises:
        InputError: as ``read_et``.
    """
    sizes = [path.stat().st_size if path.is_file() else 0 for path in files.values()]
    forms = Forms()  # ranks of a run repeat each other's
    if sum(sizes) < LARGE_BYTES:
        return {rank: read_et(path, forms) for rank, path in files.items()}
    graphs = side_by_side(partial(read_et, forms=forms), [*files.values()], [size * BYTES_A_BYTE for size in sizes])
    return dict(zip(files, graphs, strict=True))


def load_groups(folder: Path) -> dict[int, tuple[int, ...]]:
    """Read ``comm_group.json`` of a folder: members by id; empty where there is no such file.

    Raises:
        InputError: it is there and holds something else.
    """
    path = folder / output_names.GROUPS
    if not path.exists():
        return {}
    what, todo = "table of communicators", 'it should be like {"1": [0, 1], "2": [2, 3]}'
    given = load_document(path, dict[str, list[int]], what, todo)
    wrong = next((name for name in given if not (name.isascii() and name.isdecimal() and len(name) < 19)), None)
    if wrong is not None:
        raise InputError(f"is no {what}: {wrong[:40]!r} is no number", path=path, todo=todo)
    twice = next((name for name, ranks in given.items() if len({*ranks}) < len(ranks)), None)
    if twice is not None:
        raise InputError(f"is no {what}: group {twice} names a rank twice", path=path, todo=todo)
    return {int(name): tuple(ranks) for name, ranks in given.items()}
