"""The path of each host row: the modules, ranges and ops around it, outermost first; and which op forward or backward
work is of.

Instances of one module class are one (``nn.Module: Linear_36`` is ``Linear``), and marks of steps are left out, so that
what is done once a layer and a step has one path. An autograd node is part of the forward op that made it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from graphlink.depend.threads import forward_backward
from graphlink.graph.families import PYTHON
from graphlink.linking.nest import enclosing, nest
from graphlink.model import I32, I64, NOWHERE, Bool, FrameRows, HostRows, Linked
from graphlink.operations.records import Kind
from graphlink.patterns import AUTOGRAD_ENGINE, fits
from graphlink.records import Short
from graphlink.steps import step_marks
from graphlink.tables import comm_table, marked, numbered_values, parted, spread, take

MOST_DEEP: Final = 200  # names in a path
MOST_TEXT: Final = 32_000_000  # characters of all paths, each with the names around it
_MODULE: Final = re.compile(r"nn\.Module: (.+?)(?:_\d+)?")


class PathTable:
    """Paths by number: each is another one and a name behind it; 0 is the empty one. ``names``: texts, of which more
    may be added.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._code = {text: code for code, text in enumerate(names)}
        self._parent, self._name = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._length = np.zeros(1, np.int64)

    @property
    def text_length(self) -> int:
        """Return how many characters ``texts`` has of all paths."""
        return int(self._length.sum())

    def __len__(self) -> int:
        return len(self._parent)

    def keep(self, count: int) -> None:
        """Take back all paths but the first ``count``."""
        self._parent, self._name, self._length = self._parent[:count], self._name[:count], self._length[:count]

    def named(self, texts: Sequence[str]) -> I64:
        """Return the numbers of texts, new ones where there are none yet."""
        for text in texts:
            if text not in self._code:
                self._code[text] = len(self.names)
                self.names.append(text)
        return np.array([self._code[text] for text in texts], np.int64)

    def below(self, parent: I64, name: I64) -> I64:
        """Return the paths that lead on from ``parent`` by ``name``, new ones where there are none yet. O(n log n)."""
        key, which = numbered_values(parent * len(self.names) + name)
        known = self._parent[1:] * len(self.names) + self._name[1:]
        order = np.argsort(known)
        at = np.append(order, 0)[np.searchsorted(known[order], key)]
        old = np.append(known, NOWHERE)[at] == key if len(known) else np.zeros(len(key), np.bool_)
        number = np.where(old, at + 1, len(self._parent) + np.cumsum(~old) - 1)
        self._parent = np.append(self._parent, key[~old] // len(self.names))
        self._name = np.append(self._name, key[~old] % len(self.names))
        own = np.array([len(self.names[k]) for k in (key[~old] % len(self.names)).tolist()], np.int64)
        self._length = np.append(self._length, self._length[key[~old] // len(self.names)] + own)
        return number[which]

    def texts(self, paths: I64) -> list[list[str]]:
        """Return the names of each path, outermost first."""
        parent, name = self._parent.tolist(), self._name.tolist()
        out = []
        for path in paths.tolist():
            texts = []
            while path:
                texts.append(self.names[name[path]])
                path = parent[path]
            out.append(texts[::-1])
        return out


class HostPaths(msgspec.Struct, frozen=True):
    """One entry per host row: its ``path``; the path of the operation that it is part of, and whether as backward.

    ``heads``: rows that are a call of their operation, not part of one. ``deep``: how many rows have the path of what
    is around them, as theirs would be too long (``MOST_DEEP``, ``MOST_TEXT``).
    """

    table: PathTable
    path: I64
    operation: I64
    backward: Bool
    inside: Bool  # part of a forward op that has a backward, or of a backward
    heads: Bool
    python: int  # the path of what no op covers
    deep: int


class FoundOperations(Short, msgspec.Struct, frozen=True):
    """Operations by number: ``path`` and ``kind`` have one entry each; ``of_node``: the operation of each node,
    ``NOWHERE`` for none.

    ``of_device``, ``backward``, ``op`` (the host row that launched; ``NOWHERE`` outside any op): one entry per device
    row.
    """

    host: HostPaths
    path: I64
    kind: tuple[Kind, ...]
    of_row: I64
    of_node: I32
    of_device: I64
    backward: Bool
    op: I64


def host_paths(linked: Linked) -> HostPaths:
    """Find the path and the operation of every host row. O(n log n) in host rows and frames of modules."""
    rows, strings = linked.trace.host, linked.trace.strings
    count = len(rows.start_ns)
    table = PathTable(strings)
    parent, name = _nesting(linked, table)
    python = int(table.below(np.zeros(1, np.int64), table.named([PYTHON]))[0])
    marks = np.zeros(len(parent), np.bool_)
    marks[:count] = step_marks(linked.trace)
    while len(within := np.flatnonzero((parent != NOWHERE) & marks[parent])):
        parent[within] = parent[parent[within]]
    forward_of, forward = _forward_of(linked)
    own = np.flatnonzero(forward | (forward_of != NOWHERE))
    near: I64 = spread(len(parent), own, own)  # the op with a backward, or the backward, that each row is in
    path, deep, full = np.zeros(len(parent), np.int64), np.zeros(len(parent), np.bool_), False
    for depth, level in enumerate(_levels(parent)):
        above = parent[level]
        inner = above != NOWHERE
        around = np.where(inner, path[above], 0)
        # a module inside a backward is the forward once more, for activation checkpointing
        near[level] = np.where((near[level] == NOWHERE) & inner & (level < count), near[above], near[level])
        path[level], deep[level] = around, full
        if not full:
            named, paths = ~marks[level], len(table)
            path[level[named]] = table.below(around[named], name[level[named]])
            full = depth + 1 == MOST_DEEP
            if table.text_length > MOST_TEXT:
                table.keep(paths)
                path[level], deep[level], full = around, True, True
    path, near, marks = path[:count], near[:count], marks[:count]
    inside = near != NOWHERE
    backward = inside & (forward_of[near] != NOWHERE)
    of = np.where(inside, np.where(backward, forward_of[near], near), np.arange(count))
    heads = ~inside | (near == np.arange(count))
    return HostPaths(
        table, path, np.where(marks, python, path[of]), backward, inside, heads, python, int(deep[:count].sum())
    )


def _forward_of(linked: Linked) -> tuple[I64, Bool]:
    """Return for each host row the forward op whose backward it begins, ``NOWHERE`` for others; and which rows are such
    forward ops.

    What the engine does around an autograd node, such as adding gradients up, is part of the backward.
    """
    rows = linked.trace.host
    forward, backward = forward_backward(linked)
    above = linked.parent[backward]
    by_engine = np.append(fits(AUTOGRAD_ENGINE, linked.trace.strings)[rows.name], False)[above]
    forward_of: I64 = spread(len(rows.start_ns), np.where(by_engine, above, backward), forward.astype(np.int64))
    is_forward = marked(len(rows.start_ns), forward_of[forward_of != NOWHERE])
    return forward_of, is_forward & (forward_of == NOWHERE)


def _levels(parent: I64) -> list[I64]:
    """Return rows by how many are around them, the outermost first."""
    depth, above = (parent != NOWHERE).astype(np.int64), parent.copy()
    while (above != NOWHERE).any():
        inner = np.flatnonzero(above != NOWHERE)
        depth[inner] += depth[above[inner]]
        above[inner] = above[above[inner]]
    return parted(depth, int(depth.max(initial=NOWHERE)) + 1)


def _nesting(linked: Linked, table: PathTable) -> tuple[I64, I64]:
    """Return (parent, name) of all host rows and, behind them, of the frames of modules: what encloses each, and its
    name in ``table``.

    Of a row and a frame that cover the same time the frame is the outer one.
    """
    rows, frames = linked.trace.host, linked.trace.frames
    parent, name = linked.parent.astype(np.int64), rows.name.astype(np.int64)
    if frames is None:
        return parent, name
    forms = ((code, _MODULE.fullmatch(linked.trace.strings[code])) for code in np.unique(frames.name).tolist())
    found = {code: form[1] for code, form in forms if form}  # the class of each module, by the name of its frames
    modules = _as_rows(take(frames, np.isin(frames.name, [*found])))
    within, _ = nest(modules, np.zeros(len(modules.tid), np.bool_), 0)
    everything = np.ones(len(modules.tid), np.bool_)
    until_ns = np.maximum(rows.start_ns, rows.end_ns - 1)
    module = enclosing(modules, within, everything, everything, rows.tid, rows.start_ns, until_ns)
    module[linked.crossing] = NOWHERE
    usable, until_ns = ~linked.crossing, np.maximum(modules.start_ns, modules.end_ns - 1)
    op = enclosing(rows, linked.parent, usable, usable, modules.tid, modules.start_ns, until_ns)
    same = np.flatnonzero(op != NOWHERE)
    alike = (rows.start_ns[op[same]] == modules.start_ns[same]) & (rows.end_ns[op[same]] == modules.end_ns[same])
    same = same[alike]
    op[same] = linked.parent[op[same]]
    code = dict(zip(found, table.named(list(found.values())).tolist(), strict=True))
    return (
        np.append(_later(parent, rows, module, modules, len(parent)), _later(op, rows, within, modules, len(parent))),
        np.append(name, np.array([code[k] for k in modules.name.tolist()], np.int64)),
    )


def _later(op: I32 | I64, rows: HostRows, module: I32, modules: HostRows, count: int) -> I64:
    """Choose the inner one of the op and the module around something: the one that began later. Modules are numbered
    from ``count``.
    """
    some = (op != NOWHERE) & (module != NOWHERE)
    began, other = rows.start_ns[op[some]], modules.start_ns[module[some]]
    inner = op == NOWHERE
    inner[some] = (other > began) | ((other == began) & (modules.end_ns[module[some]] <= rows.end_ns[op[some]]))
    return np.where(inner, np.where(module == NOWHERE, NOWHERE, module.astype(np.int64) + count), op)


def _as_rows(frames: FrameRows) -> HostRows:
    """Return frames in the order and shape of host rows, so that they nest as those do."""
    frames = take(frames, np.lexsort((frames.name, -frames.end_ns, frames.start_ns)))
    none, zero = np.zeros(len(frames.tid), np.int32), np.zeros(len(frames.tid), np.int64)
    return HostRows(
        frames.start_ns, frames.end_ns, frames.tid, frames.name, none.astype(np.bool_), zero, zero, zero, zero,
        none, none, comm_table({}),
    )  # fmt: skip
