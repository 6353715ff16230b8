"""The nodes of a workload that a selector of a what-if chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.families import PYTHON, late_ops
from graphlink.graph_model import EdgeKind, Graph
from graphlink.linking.step_cut import Steps
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import UserPattern
from graphlink.records import first_few
from graphlink.replay.changes import SORTS, Selector
from graphlink.replay.syncs import SyncWait, sync_waits
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.steps import PROFILER_STEP
from graphlink.tables import spread

_SHOWN: Final = 12  # step numbers that an error lists


@dataclass(frozen=True, slots=True)
class NodeOperations:
    """The operations of a rank: ``of_node`` has that of each node by its id, ``NOWHERE`` for none, the others have an
    entry each: the names of its ``path`` with ``/`` between, and the Python frames that it was called from, one a
    ``line``.
    """

    of_node: I64
    path: tuple[str, ...]
    line: tuple[str, ...]


@dataclass(frozen=True)
class Paths:
    """``of_node``: position of its path in ``texts``."""

    of_node: I64
    texts: list[str]


@dataclass(frozen=True)
class Selection:
    """Chooses nodes of ``work``; ``operations`` by rank, of the ranks whose operations were recorded; ``others``: runs
    that were read to compare with, by folder."""

    work: Workload
    operations: Mapping[int, NodeOperations] = field(default_factory=dict)
    others: dict[str, Selection] = field(default_factory=dict)

    def nodes(self, wanted: Selector) -> Bool:
        """Return the nodes that are chosen. Linear; each name and path is looked at once.

        Raises:
            UsageError: no rank has such a step, or the lines of none are known.
        """
        work = self.work
        out = np.ones(len(work), np.bool_) if wanted.name is None else names_found(work, wanted.name)
        if wanted.rank is not None:
            out &= np.isin(work.node_rank, wanted.rank)
        if wanted.sort is not None:
            out &= work.work == SORTS[wanted.sort]
        if wanted.stream is not None:
            out &= np.isin(work.column("stream"), wanted.stream) & (work.column("host") == 0)
        if wanted.thread is not None:
            out &= np.isin(work.column("tid")[self.launched_by], wanted.thread) & (self.launched_by != NOWHERE)
        if wanted.steps is not None:
            out &= self._in_steps(wanted.steps)
        if wanted.path is not None:
            out &= _found(wanted.path, self.paths) | self._of_operations("path", wanted.path)
        if wanted.line is not None:
            if not self.operations:
                raise UsageError(
                    "line: the Python lines of these graphs are not known",
                    todo="link the recording again with --force, so that ops.<rank>.json tells them",
                )
            out &= self._of_operations("line", wanted.line)
        return out

    @cached_property
    def launched_by(self) -> I64:
        """Return the host node that launched each device node, of a delay that of the op that it delays, of a host node
        itself; ``NOWHERE`` for none."""
        work = self.work
        out = np.full(len(work), NOWHERE, np.int64)
        edge = np.flatnonzero(work.kind == EdgeKind.LAUNCH)
        out[work.target[edge]] = work.source[edge]
        callers, host = self.callers, work.column("host") != 0
        out[~host & (callers != NOWHERE)] = callers[~host & (callers != NOWHERE)]
        for late, delay in zip(*self._delayed(), strict=True):
            out[delay] = out[late]
        return np.where(host, np.arange(len(work)), out)

    @cached_property
    def callers(self) -> I64:
        """Return the node that called each node, ``NOWHERE`` for none."""
        work = self.work
        parts = [np.zeros(0, np.int64)]
        for file, (low, high) in zip(work.files, work.bounds, strict=True):
            caller = file.caller[work.position[low:high]]
            parts.append(np.where(caller == NOWHERE, NOWHERE, self._place(low, high)[caller]))
        return np.concatenate(parts)

    @cached_property
    def waits(self) -> list[SyncWait]:
        """Return the waits of the workload."""
        return sync_waits(self.work)

    def delays_of(self, nodes: Bool) -> Bool:
        """Return the delay nodes whose delayed op is one of ``nodes``."""
        out = np.zeros(len(self.work), np.bool_)
        late, delay = self._delayed()
        out[delay] = nodes[late]
        return out

    def _delayed(self) -> tuple[I64, I64]:
        """Return (op, delay node) of each delay node that delays an op."""
        work, late, delay = self.work, [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for file, (low, high) in zip(work.files, work.bounds, strict=True):
            mine = low + np.flatnonzero(work.work[low:high] == Work.DELAY)
            of = late_ops(file, work.position[mine])
            late.append(self._place(low, high)[of[of != NOWHERE]])
            delay.append(mine[of != NOWHERE])
        return np.concatenate(late), np.concatenate(delay)

    def _place(self, low: int, high: int) -> I64:
        """Return the node of each position in the file whose nodes are ``low`` to ``high``."""
        return low + np.asarray(spread(high - low, self.work.position[low:high], np.arange(high - low)), np.int64)

    def _in_steps(self, steps: Steps) -> Bool:
        """Return the nodes that were called, or else began, from the first mark's start to the last one's end, on each
        rank that has them."""
        work = self.work
        start = work.column("start_ns")
        at_ns = np.where(self.launched_by == NOWHERE, start, start[self.launched_by])
        out, there = np.zeros(len(work), np.bool_), set[int]()
        for (low, high), marks in zip(work.bounds, self.marks, strict=True):
            there |= {number for number, _, _ in marks}
            mine = [(a, b) for number, a, b in marks if steps.first <= number <= steps.last]
            if mine:
                out[low:high] = (at_ns[low:high] >= min(a for a, _ in mine)) & (
                    at_ns[low:high] < max(b for _, b in mine)
                )
        missing = (
            next((n for n in range(steps.first, steps.last + 1) if n not in there), None) if there else steps.first
        )
        if missing is not None:
            names = first_few(sorted(there), _SHOWN)
            todo = f"choose among {names}" if there else "leave out step: the graph has no ProfilerStep"
            raise UsageError(f"step: there is no step {missing} in the graph", todo=todo)
        return out

    @cached_property
    def marks(self) -> list[list[tuple[int, int, int]]]:
        """Return the marks of steps of each rank: number, start and end (ns)."""
        return [list(_marks(file)) for file in self.work.files]

    @cached_property
    def paths(self) -> Paths:
        """Return the path of every node: the names of its callers, outermost first, without marks of steps; of a host
        node with its own, of a device node in no op its own alone. Linear."""
        work, callers = self.work, self.callers.tolist()
        family, texts = work.names()
        host, part = (work.column("host") != 0).tolist(), work.is_part.tolist()
        code: dict[tuple[int, int], int] = {(NOWHERE, NOWHERE): 0}
        out = [NOWHERE] * len(work)
        for node in range(len(out)):
            chain, one = list[int](), node
            while one != NOWHERE and out[one] == NOWHERE:
                out[one] = 0  # until it is known: in the file of somebody else callers may go in a circle
                chain.append(one)
                one = callers[one]
            for one in reversed(chain):
                above = 0 if callers[one] == NOWHERE else out[callers[one]]
                named = (host[one] or not above) and texts[family[one]] != PYTHON and not part[one]
                out[one] = code.setdefault((above, int(family[one])), len(code)) if named else above
        return Paths(np.array(out, np.int64), _texts([*code][1:], texts))

    def _of_operations(self, what: str, pattern: UserPattern) -> Bool:
        """Return the nodes of operations in whose path or lines ``pattern`` is found, of ranks whose operations are
        known.
        """
        work, out = self.work, np.zeros(len(self.work), np.bool_)
        for rank, file, (low, high) in zip(work.ranks, work.files, work.bounds, strict=True):
            if rank in self.operations:
                known = self.operations[rank]
                hit = np.array([pattern.search(text) is not None for text in getattr(known, what)] + [False], np.bool_)
                of_id = np.append(known.of_node, NOWHERE)
                ids = np.minimum(file.id[work.position[low:high]], np.uint64(len(known.of_node))).astype(np.int64)
                out[low:high] = hit[of_id[ids]]
        return out


def _found(pattern: UserPattern, paths: Paths) -> Bool:
    return np.array([pattern.search(text) is not None for text in paths.texts], np.bool_)[paths.of_node]


def _texts(pairs: Sequence[tuple[int, int]], names: Sequence[str]) -> list[str]:
    """Return the text of every path; the first is that of none."""
    out = [""]
    for above, name in pairs:
        out.append(f"{out[above]}/{names[name]}" if above else names[name])
    return out


def _marks(file: Graph) -> Iterator[tuple[int, int, int]]:
    numbers = {i: int(found[1]) for i, text in enumerate(file.strings) if (found := PROFILER_STEP.fullmatch(text))}
    for node in np.flatnonzero(np.isin(file.name, [*numbers]) & file.host).tolist():
        yield numbers[int(file.name[node])], int(file.start_ns[node]), int(file.end_ns[node])
