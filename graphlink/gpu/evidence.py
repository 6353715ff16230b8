"""What the evidence of idle time says: texts, each once, of calls that waited and of host work."""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink.causes import Texts
from graphlink.depend.timeline import Axis
from graphlink.graph_model import Graph, NodeKind
from graphlink.linking.stacks import stacks_at
from graphlink.model import I32, I64, NOWHERE, Linked
from graphlink.steps import step_marks
from graphlink.tables import counted_from, numbered_rows, numbered_values, spread


def awaited_by(graph: Graph, linked: Linked) -> I64:
    """Return for each call the name of the last device op that it waited for, by the kept ``sync`` edges; ``NOWHERE``
    for none.
    """
    kept = graph.sync_calls
    order = np.argsort(graph.end_ns[kept.source], kind="stable")
    order = order[graph.kind[kept.source[order]] == NodeKind.DEVICE_OP]
    name = linked.trace.device.name[graph.row[kept.source[order]]].astype(np.int64)
    return np.asarray(spread(len(linked.trace.calls.name), kept.call[order], name))


def blocked(texts: Texts, linked: Linked, call: I64, awaited: I64) -> I32:
    """Return a text for each call (``NOWHERE``: none): the op around it, what it waited for (a name), and its Python
    line if recorded.
    """
    strings = linked.trace.strings
    known = np.flatnonzero(call != NOWHERE)
    op, name, line = (np.full(len(call), NOWHERE, np.int64) for _ in range(3))
    around = linked.call_op[call[known]]
    op[known] = np.where(around == NOWHERE, NOWHERE, np.append(linked.trace.host.name, 0)[around])
    name[known] = linked.trace.calls.name[call[known]]
    asked, which = numbered_values(call[known])
    stacks = stacks_at(linked, linked.trace.calls.tid[asked], linked.trace.calls.start_ns[asked])
    lines = [*dict.fromkeys(stack[-1] for stack in stacks if stack)]
    number = {text: k for k, text in enumerate(lines)}
    line[known] = np.array([number[stack[-1]] if stack else NOWHERE for stack in stacks], np.int64)[which]
    equal, which = numbered_rows(op, name, awaited, line)
    told = (
        ("" if code == NOWHERE else names[code] for code, names in zip(codes, (*[strings] * 3, lines), strict=True))
        for codes in equal.tolist()
    )
    words = [_blocked(*parts) for parts in told]
    return texts.codes(words)[which]


def _blocked(op: str, call: str, awaited: str, line: str) -> str:
    """Return ``the host was in aten::nonzero, which waited for Memcpy DtoH in cudaStreamSynchronize, at train.py(34):
    step``.
    """
    inside, where = f" in {call}" * bool(call), f", at {line}" * bool(line)
    if op:
        what = f"waited for {awaited}{inside}" if awaited else f"was blocked{inside}"
        return f"the host was in {op}, which {what}{where}"
    return f"the host waited for {awaited}{inside}{where}" if awaited else f"the host was blocked{inside}{where}"


class HostWork(msgspec.Struct, frozen=True):
    """The innermost host row of each moment of a thread: ``row`` from its mark on the axis to the next, ``NOWHERE`` for
    none.
    """

    linked: Linked
    words: Texts
    at_ns: I64
    row: I64

    @staticmethod
    def of(linked: Linked, axis: Axis, words: Texts) -> HostWork:
        """Mark where rows begin and end: after a start the row runs, after an end the one around it. O(n log n)."""
        rows = linked.trace.host
        row = np.flatnonzero(~linked.crossing & (rows.start_ns < rows.end_ns))
        start, end = (axis.clipped(rows.tid[row], times[row]) for times in (rows.start_ns, rows.end_ns))
        at_ns, ends = np.append(start, end), np.repeat([0, 1], len(row))
        turn = np.append(row, -row)  # of starts the outer one first, of ends the inner one
        order = np.lexsort((turn, 1 - ends, at_ns))
        return HostWork(linked, words, at_ns[order], np.append(row, linked.parent[row]).astype(np.int64)[order])

    def texts(self, start_ns: I64, end_ns: I64, number: I32) -> I32:
        """Return texts of pieces of host work, disjoint and ascending on the axis: the innermost row that ran for most
        of each, and the outermost one around it. ``number``: the outermost op of each, or behind all host rows a call
        outside any. O(n log n) in marks."""
        rows, strings = self.linked.trace.host, self.linked.trace.strings
        in_op = np.flatnonzero(number < len(rows.tid))
        name = np.append(rows.name, self.linked.trace.calls.name).astype(np.int64)[number]
        outer = name.copy()
        outer[in_op] = rows.name[self._outermost(number[in_op])]
        name[in_op] = self._most(start_ns[in_op], end_ns[in_op], name[in_op])
        pairs, which = numbered_rows(name, outer)
        words = [f"host: {strings[n]}" + (f" in {strings[o]}" if o != n else "") for n, o in pairs.tolist()]
        return self.words.codes(words)[which]

    def _outermost(self, row: I32) -> I32:
        """Return the outermost row around each host row that marks no step; where there is none, itself."""
        mark, parent, out = step_marks(self.linked.trace), self.linked.parent, row.copy()
        moving = np.arange(len(row))
        while len(moving):
            above = parent[out[moving]]
            moving = moving[(above != NOWHERE) & ~mark[above]]
            out[moving] = parent[out[moving]]
        return out

    def _most(self, start_ns: I64, end_ns: I64, otherwise: I64) -> I64:
        """Return the name of the rows that run for most of each interval, disjoint and ascending; ``otherwise`` where
        none does.
        """
        first = np.maximum(np.searchsorted(self.at_ns, start_ns, side="right") - 1, 0)
        count = np.maximum(np.searchsorted(self.at_ns, end_ns) - first, 0)
        of = np.repeat(np.arange(len(start_ns)), count)
        mark = counted_from(first, count)
        until = np.append(self.at_ns, np.iinfo(np.int64).max)[mark + 1]
        ns = np.minimum(until, end_ns[of]) - np.maximum(self.at_ns[mark], start_ns[of])
        some = (self.row[mark] != NOWHERE) & (ns > 0)
        of, name, ns = of[some], self.linked.trace.host.name[self.row[mark[some]]].astype(np.int64), ns[some]
        pairs, which = numbered_rows(of, name)
        interval, name = pairs.T
        order = np.lexsort((np.bincount(which, ns, len(pairs)), interval))
        out = otherwise.copy()
        out[interval[order]] = name[order]  # of several the last holds, which is the longest
        return out
