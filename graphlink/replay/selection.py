"""The nodes of a workload that a selector of a what-if chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.families import PYTHON, late_ops
from graphlink.graph_model import EdgeKind, Graph
from graphlink.linking.step_cut import Steps
from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.patterns import UserPattern
from graphlink.records import first_few, in_function
from graphlink.replay.changes import SORTS, Selector
from graphlink.replay.syncs import SyncWait, sync_waits
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.steps import PROFILER_STEP
from graphlink.tables import marked, spread

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

    def lines_of(self, node_id: int) -> list[str]:
        """Return the Python frames of a node, outermost first."""
        of_node = int(self.of_node[node_id]) if node_id < len(self.of_node) else NOWHERE
        return [] if of_node == NOWHERE else self.line[of_node].splitlines()


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
            of_node, texts = self.paths
            hit = np.array([wanted.path.search(text) is not None for text in texts], np.bool_)
            out &= hit[of_node] | self._of_operations("path", wanted.path)
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
        work, callers = self.work, self.callers
        edge = np.flatnonzero(work.kind == EdgeKind.LAUNCH)
        launcher = spread(len(work), work.target[edge], work.source[edge].astype(np.int64))
        out = np.where(callers == NOWHERE, launcher, callers)
        op, delay = self._delayed
        out[delay] = out[op]
        return np.where(work.column("host") != 0, np.arange(len(work)), out)

    @cached_property
    def callers(self) -> I64:
        """Return the node that called each node, ``NOWHERE`` for none."""
        position = self.work.per_file(lambda file: file.caller)
        return np.where(position == NOWHERE, NOWHERE, self._beside(np.arange(len(position)), position))

    @cached_property
    def waits(self) -> list[SyncWait]:
        """Return the waits of the workload."""
        return sync_waits(self.work)

    def delays_of(self, nodes: Bool) -> Bool:
        """Return the delay nodes whose delayed op is one of ``nodes``."""
        op, delay = self._delayed
        return marked(len(nodes), delay[nodes[op]])

    @cached_property
    def _delayed(self) -> tuple[I64, I64]:
        """Return (op, delay node) of each delay node that delays an op."""
        work = self.work
        delay = np.flatnonzero(work.work == Work.DELAY)
        ops = [np.zeros(0, np.int64)]
        for member, file in enumerate(work.files):
            ops.append(late_ops(file, work.position[delay[work.member[delay] == member]]))
        position = np.concatenate(ops)
        known = position != NOWHERE
        return self._beside(delay[known], position[known]), delay[known]

    def _beside(self, nodes: I64, position: I64 | I32) -> I64:
        """Return of each of ``nodes`` the node at a position in its file."""
        work = self.work
        first = work.offset[work.member]
        node_at = spread(len(work), first + work.position, np.arange(len(work)))
        return np.asarray(node_at[first[nodes] + position])

    def _in_steps(self, steps: Steps) -> Bool:
        """Return the nodes that were called, or else began, from the first mark's start to the last one's end, on each
        rank that has them."""
        work, launcher = self.work, self.launched_by
        start = work.column("start_ns")
        began_ns = np.where(launcher == NOWHERE, start, start[launcher])
        out, known = np.zeros(len(work), np.bool_), set[int]()
        for (low, high), marks in zip(work.bounds, self.marks, strict=True):
            known |= {number for number, _, _ in marks}
            spans = [span for number, *span in marks if steps.first <= number <= steps.last]
            if spans:
                first, last = min(span[0] for span in spans), max(span[1] for span in spans)
                out[low:high] = (began_ns[low:high] >= first) & (began_ns[low:high] < last)
        missing = next((number for number in range(steps.first, steps.last + 1) if number not in known), None)
        if missing is not None:
            names = first_few(sorted(known), _SHOWN)
            todo = f"choose among {names}" if known else "leave out step: the graph has no ProfilerStep"
            raise UsageError(f"step: there is no step {missing} in the graph", todo=todo)
        return out

    @cached_property
    def marks(self) -> list[list[tuple[int, int, int]]]:
        """Return the marks of steps of each rank: number, start and end (ns)."""
        return [list(_marks(file)) for file in self.work.files]

    @cached_property
    def paths(self) -> tuple[I64, list[str]]:
        """Return the path of every node, by its position among different texts, and those: the names of its callers,
        outermost first, without marks of steps; of a host node with its own, of a device node in no op its own alone.
        Linear."""
        work, callers = self.work, self.callers.tolist()
        family, names = work.names()
        host, part = (work.column("host") != 0).tolist(), work.is_part.tolist()
        code: dict[tuple[int, int], int] = {(NOWHERE, NOWHERE): 0}
        texts, out = [""], [NOWHERE] * len(work)
        for start in range(len(out)):
            chain, node = list[int](), start
            while node != NOWHERE and out[node] == NOWHERE:
                out[node] = 0  # until it is known: in the file of somebody else callers may go in a circle
                chain.append(node)
                node = callers[node]
            for node in reversed(chain):
                above = 0 if callers[node] == NOWHERE else out[callers[node]]
                name = names[family[node]]
                named = (host[node] or not above) and name != PYTHON and not part[node]
                out[node] = code.setdefault((above, int(family[node])), len(code)) if named else above
                if out[node] == len(texts):
                    texts.append(f"{texts[above]}/{name}" if above else name)
        return np.array(out, np.int64), texts

    def line(self, node: int) -> str:
        """Return what called the op of a node: ``, called in function step (train.py:12)``; "" where that is not
        known."""
        work = self.work
        known = self.operations.get(work.rank(node))
        lines = [] if known is None else known.lines_of(work.id(node))
        return f", called in {in_function(lines[-1])}" if lines else ""

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


def _marks(file: Graph) -> Iterator[tuple[int, int, int]]:
    numbers = {i: int(found[1]) for i, text in enumerate(file.strings) if (found := PROFILER_STEP.fullmatch(text))}
    for node in np.flatnonzero(np.isin(file.name, [*numbers]) & file.host).tolist():
        yield numbers[int(file.name[node])], int(file.start_ns[node]), int(file.end_ns[node])
