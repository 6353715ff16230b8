"""The nodes of a workload that a selector of a what-if chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.families import PYTHON, late_ops
from graphlink.graph.latency import Delayed
from graphlink.graph.relief import Relief, carried
from graphlink.graph_model import EdgeKind, Graph
from graphlink.linking.step_cut import Steps
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool
from graphlink.patterns import UserPattern
from graphlink.records import first_few, in_function
from graphlink.replay.changes import SORTS, Selector
from graphlink.replay.syncs import SyncWait, sync_waits
from graphlink.replay.workload import Work, Workload, delays, names_found
from graphlink.steps import PROFILER_STEP
from graphlink.tables import in_order, marked, numbered_rows, skipped, spread, turns

_SHOWN: Final = 12  # step numbers that an error lists


@dataclass(frozen=True, slots=True)
class NodeOperations:
    """The operations of a rank: ``of_node`` has that of each node in the order of ids, ``NOWHERE`` for none, the others
    have an entry each: the names of its ``path``, outermost first, and the Python frames that it was called from, one a
    ``line``.
    """

    of_node: I64
    path: tuple[Sequence[str], ...]
    line: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """Chooses nodes of ``work``; ``operations`` by rank, of the ranks whose operations were recorded; ``others``: runs
    that were read to compare with, by folder and ranks; ``recorder_ns``: what recording costs each rank, if known."""

    work: Workload
    operations: Mapping[int, NodeOperations] = field(default_factory=dict)
    others: dict[tuple[str, tuple[int, ...]], Selection] = field(default_factory=dict)
    recorder_ns: Mapping[int, int] = field(default_factory=dict)

    def nodes(self, wanted: Selector) -> Bool:
        """Return the nodes that are chosen. Linear; each name and path is looked at once.

        Raises:
            UsageError: no rank has such a step, no chosen node such a turn, or the lines of none are known.
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
            of_node, paths = self.paths
            hit = np.array([wanted.path.search("/".join(names)) is not None for names in paths], np.bool_)
            out &= hit[of_node] | self._of_operations("path", wanted.path)
        if wanted.line is not None:
            if not self.operations:
                raise UsageError(
                    "line: the Python lines of these graphs are not known",
                    todo="link the recording again with --force, so that ops.<rank>.json tells them",
                )
            out &= self._of_operations("line", wanted.line)
        return out if wanted.turns is None else self._in_turn(out, wanted.turns, wanted.every)

    @cached_property
    def launched_by(self) -> I64:
        """Return the host node that launched each device node, of a delay that of the op that it delays, of a host node
        itself; ``NOWHERE`` for none."""
        work, callers = self.work, self.callers
        out = np.where(callers == NOWHERE, work.source_of(EdgeKind.LAUNCH), callers)
        op, delay = self._delayed
        out[delay] = out[op]
        return np.where(work.column("host") != 0, np.arange(len(work)), out)

    @cached_property
    def callers(self) -> I64:
        """Return the node that called each node, ``NOWHERE`` for none."""
        position = self.work.per_file(lambda file: file.caller)
        return np.where(position == NOWHERE, NOWHERE, self._beside(np.arange(len(position)), position))

    @cached_property
    def carried(self) -> Relief:
        """Return what host nodes carry of the ops around them (``relief.carried``)."""
        work = self.work
        return carried(work.work == Work.HOST, self.callers, work.cost_ns, work.column("self_ns"))

    def own_ns(self, nodes: Bool) -> int:
        """Return what nodes take: with what others carry of them, without what they carry of others, and without start
        delays."""
        rests, cost_ns = self.carried, (self.work.cost_ns - self.work.fixed_ns)[nodes].sum()
        sign = nodes[rests.column].astype(np.int64) - nodes[rests.node]
        return int(cost_ns + (sign * rests.less_ns).sum())

    @cached_property
    def around(self) -> I64:
        """Return the caller of each node, and of a row of communication on the host (gloo), which is on another thread,
        the op that asked for it; ``NOWHERE`` for none."""
        work, out = self.work, self.callers.copy()
        rows = out[(work.work == Work.COMM) & (work.column("device") < 0) & (out != NOWHERE)]
        rows = marked(len(work), rows[out[rows] == NOWHERE])
        asked = np.flatnonzero(rows[work.target] & (work.kind == EdgeKind.THREAD))
        out[work.target[asked]] = work.source[asked]
        return out

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
        ops = (
            late_ops(file, work.position[delay[work.member[delay] == member]]) for member, file in enumerate(work.files)
        )
        position = np.concatenate([EMPTY, *ops])
        known = position != NOWHERE
        return self._beside(delay[known], position[known]), delay[known]

    def _beside(self, nodes: I64, position: I64 | I32) -> I64:
        """Return of each of ``nodes`` the node at a position in its file."""
        work = self.work
        first = work.offset[work.member]
        node_at = spread(len(work), first + work.position, np.arange(len(work)))
        return np.asarray(node_at[first[nodes] + position])

    def _in_steps(self, wanted: Sequence[Steps]) -> Bool:
        """Return the nodes that were called, or else began, from the first mark's start to the last one's end of each
        part, on each rank that has them."""
        out = np.zeros(len(self.work), np.bool_)
        known = {number for marks in self.marks for number, _, _ in marks}
        asked = (number for steps in wanted for number in range(steps.first, steps.last + 1))
        missing = next((number for number in asked if number not in known), None)
        if missing is not None:
            names = first_few(sorted(known), _SHOWN)
            todo = f"choose among {names}" if known else "leave out step: the graph has no ProfilerStep"
            raise UsageError(f"step: there is no step {missing} in the graph", todo=todo)
        for (low, high), marks in zip(self.work.bounds, self.marks, strict=True):
            for steps in wanted:
                spans = [span for number, *span in marks if steps.first <= number <= steps.last]
                if spans:
                    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
                    out[low:high] |= (self.called_ns[low:high] >= first) & (self.called_ns[low:high] < last)
        return out

    def _in_turn(self, chosen: Bool, wanted: Sequence[Steps], every: int | None) -> Bool:
        """Return those of the ``chosen`` nodes whose turn is wanted, counted from 1 in each step (before the first mark
        and without marks: in the recording) by name, in the order of calls, and anew after each ``every``. What is
        inside of a chosen op goes with it. O(n log n)."""
        work = self.work
        inside = chosen & np.append(chosen, False)[self.around]
        outer = in_order(np.flatnonzero(chosen & ~inside), self.called_ns, work.column("correlation"))
        turn = turns(work.member[outer], self.step[outer], work.work[outer], work.names()[0][outer])
        most = int(turn.max(initial=-1)) + 1
        if most and all(part.first > most for part in wanted):
            first = wanted[0].first
            raise UsageError(
                f"nth, every: there is no turn {first}, as all else chooses at most {most} of one name in a step",
                todo=f"choose turns from 1 to {most}",
            )
        turn = np.append(spread(len(work), outer, turn % (every or len(work)) + 1), NOWHERE)
        turn = turn[skipped(self.around, inside)]
        hits = [(turn >= part.first) & (turn <= part.last) for part in wanted]
        return chosen & np.asarray(hits).any(axis=0)

    @cached_property
    def called_ns(self) -> I64:
        """Return when each node was called, of device ops by the host, else when it began."""
        start_ns = self.work.column("start_ns")
        return np.where(self.launched_by == NOWHERE, start_ns, start_ns[self.launched_by])

    @cached_property
    def step(self) -> I64:
        """Return for every node how many marks of steps had begun on its rank when it was called."""
        out = np.zeros(len(self.work), np.int64)
        for (low, high), marks in zip(self.work.bounds, self.marks, strict=True):
            begin_ns = sorted(begin for _, begin, _ in marks)
            out[low:high] = np.searchsorted(begin_ns, self.called_ns[low:high], "right")
        return out

    @cached_property
    def delayed(self) -> Delayed:
        """Return the start delays as recorded, split by what is usual on their rank."""
        start_ns = self.work.column("start_ns")
        return delays(self.work, start_ns + self.work.column("duration_ns"), start_ns - self.work.fixed_ns)

    @cached_property
    def marks(self) -> list[list[tuple[int, int, int]]]:
        """Return the marks of steps of each rank: number, start and end (ns)."""
        return [list(_marks(file)) for file in self.work.files]

    @cached_property
    def paths(self) -> tuple[I64, list[tuple[str, ...]]]:
        """Return the path of every node, by its position among different ones, and those: the names of its callers,
        outermost first, without marks of steps; of a host node with its own, of a device node in no op its own alone.
        Linear."""
        work, callers = self.work, self.around
        family, names = work.names()
        named = ~work.is_part & (family != (names.index(PYTHON) if PYTHON in names else NOWHERE))
        host, out = work.column("host") != 0, np.full(len(work) + 1, NOWHERE, np.int64)
        numbers, paths = dict[int, int](), [tuple[str, ...]()]  # of each path, by that above and the last name
        node, below = np.flatnonzero(callers == NOWHERE), np.flatnonzero(callers != NOWHERE)
        while len(node) or len(below):
            if not len(node):  # in the file of somebody else callers may go in a circle
                node, below = below, below[:0]
            above = np.maximum(out[callers[node]], 0)
            out[node] = above
            node, above = (column[named[node] & (host[node] | (above == 0))] for column in (node, above))
            pairs, which = np.unique(above * len(names) + family[node], return_inverse=True)
            for pair in pairs.tolist():
                if numbers.setdefault(pair, len(paths)) == len(paths):
                    around, name = divmod(pair, len(names))
                    paths.append((*paths[around], names[name]))
            out[node] = np.array([numbers[pair] for pair in pairs.tolist()], np.int64)[which]
            known = out[callers[below]] != NOWHERE
            node, below = below[known], below[~known]
        return out[:-1], paths

    def inside(self) -> tuple[I64, list[tuple[Sequence[str], Sequence[str]]]]:
        """Return for every node in what it is, by its position among different ones: the names of its path by callers,
        and of the path of its operation. Linear in nodes, and in different paths."""
        of_node, paths = self.paths
        of_operation, names = np.zeros(len(of_node), np.int64), list[Sequence[str]]([()])
        for number, known in self._operations_of():
            of_operation[number >= 0] = number[number >= 0] + len(names)
            names += known.path
        pairs, which = numbered_rows(of_node, of_operation)
        return which, [(paths[path], names[name]) for path, name in pairs.tolist()]

    def line(self, node: int) -> str:
        """Return what called the op of a node: ``, called in function step (train.py:12)``; "" where that is not
        known."""
        work = self.work
        known = self.operations.get(work.rank(node))
        place = node - work.bounds[int(work.member[node])][0]
        operation = NOWHERE if known is None or place >= len(known.of_node) else int(known.of_node[place])
        lines = [] if known is None or operation == NOWHERE else known.line[operation].splitlines()
        return f", called in {in_function(lines[-1])}" if lines else ""

    def _of_operations(self, what: str, pattern: UserPattern) -> Bool:
        """Return the nodes of operations in whose path or lines ``pattern`` is found, of ranks whose operations are
        known.
        """
        out = np.zeros(len(self.work), np.bool_)
        for number, known in self._operations_of():
            texts = known.line if what == "line" else map("/".join, known.path)
            hit = np.array([pattern.search(text) is not None for text in texts] + [False], np.bool_)
            out |= hit[number]
        return out

    def _operations_of(self) -> Iterator[tuple[I64, NodeOperations]]:
        """Yield for each rank whose operations are known the number of the operation of each node, ``NOWHERE`` for none
        and for nodes of other ranks, and its operations."""
        work = self.work
        for rank, (low, high) in zip(work.ranks, work.bounds, strict=True):
            if rank in self.operations:
                known, number = self.operations[rank], np.full(len(work), NOWHERE, np.int64)
                count = min(high - low, len(known.of_node))
                number[low : low + count] = known.of_node[:count]
                yield number, known


def _marks(file: Graph) -> Iterator[tuple[int, int, int]]:
    numbers = {i: int(found[1]) for i, text in enumerate(file.strings) if (found := PROFILER_STEP.fullmatch(text))}
    for node in np.flatnonzero(np.isin(file.name, [*numbers]) & file.host).tolist():
        yield numbers[int(file.name[node])], int(file.start_ns[node]), int(file.end_ns[node])
