"""Order between CPU threads that the recording names: forward op -> backward op; op that made a tensor -> op of another
thread that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from graphlink.depend.timeline import Elements
from graphlink.linking.launch import rounding_ns
from graphlink.model import I32, I64, NOWHERE, Bool, Linked
from graphlink.patterns import AUTOGRAD_ENGINE, fits
from graphlink.spans import Neighbours
from graphlink.tables import last_before, lookup, pointing_at, take, tuples

ASLEEP_NS = 100_000  # of a silence in which a thread may have slept
Handed: TypeAlias = dict[tuple[int, int], tuple[int, int, bool]]


def forward_backward(linked: Linked) -> tuple[I32, I32]:
    """Return (forward, backward) host rows on different threads, each backward row once.

    From ``fwdbwd`` flows (a flow starts and ends at the start of an op), else from sequence numbers: the forward op of
    a backward op is the last-starting forward row with its number on another thread (890 of 890 flows of five real
    files agree). A backward op on its forward op's own thread needs no edge. Cost: O(n log n).
    """
    flow = _from_flows(linked)
    number = _from_numbers(linked)
    new = ~np.isin(number[1], flow[1])
    forward, backward = np.concatenate([flow[0], number[0][new]]), np.concatenate([flow[1], number[1][new]])
    rows = linked.trace.host
    real = (rows.tid[forward] != rows.tid[backward]) & (rows.start_ns[forward] <= rows.start_ns[backward])
    real &= ~linked.crossing[forward] & ~linked.crossing[backward]
    return forward[real], backward[real]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that gloo's threads run around work of their own: they copy tensors, before and after the communication.

    An op of thread ``by_tid`` asked for the ``row`` until ``asked_ns``. The last op or call in it begins at
    ``last_ns``.
    """

    row: I64
    by_tid: I64
    asked_ns: I64
    last_ns: I64

    @staticmethod
    def of(linked: Linked, el: Elements, op: I32) -> Run:
        """Find them among the rows for which an ``op`` asked (NOWHERE: none did). O(n log n)."""
        rows, calls = linked.trace.host, linked.trace.calls
        row = np.flatnonzero((op != NOWHERE) & np.isin(rows.tid, el.tid))
        start_ns = np.append(el.start_ns, calls.start_ns)
        begun = Neighbours.of(np.append(el.tid, calls.tid), start_ns)
        last_ns = np.append(start_ns, 0)[begun.before(rows.tid[row], rows.end_ns[row])]
        asked_ns = np.minimum(rows.end_ns[op[row]], rows.start_ns[row])
        return take(Run(row, rows.tid[op[row]], asked_ns, last_ns), last_ns >= rows.start_ns[row])


def handed_over(linked: Linked, el: Elements, run: Run) -> Handed:
    """Return {(thread, when it goes on): (when, thread, False)}: where a thread goes on with an op that reads what an
    op of another thread made; with True where it goes on with a collective that an op of another thread asked for.

    ``when`` the op that made it ended: nobody had the tensor before, so whoever goes on with it was handed it later. Of
    several tensors the last counts. A thread goes on with an op where the op begins, or one, or an annotation, whose
    first child it is, or right before it an annotation that holds nothing (of an optimizer that drops gradients); with
    a collective, where its row begins (``run``). Cost: O(n log n) for n host rows.
    """
    et, rows = linked.et, linked.trace.host
    keys = tuples(rows.tid[run.row], rows.start_ns[run.row])
    asked = tuples(run.asked_ns, run.by_tid)
    out = {key: (ns, by, True) for key, (ns, by) in zip(keys, asked, strict=True)}
    if et is None or not et.made_by.any():
        return out
    row_of = pointing_at(linked.match.et, len(et.id) + 1)
    reads = np.flatnonzero(et.made_by)
    reader, maker = row_of[reads], row_of[lookup(et.id, et.made_by[reads])]
    real = (reader != NOWHERE) & (maker != NOWHERE)
    reader, maker = reader[real], maker[real]
    at = el.of_row[reader]
    real = (at != NOWHERE) & (rows.tid[reader] != rows.tid[maker]) & (rows.end_ns[maker] <= rows.start_ns[reader])
    at, maker = at[real], maker[real]
    while len(at):
        for key, made in zip(
            tuples(el.tid[at], el.start_ns[at]),
            tuples(rows.end_ns[maker], rows.tid[maker]),
            strict=True,
        ):
            out[key] = max(out.get(key, (*made, False)), (*made, False))
        empty = el.whose_row(at - 1, rows.annotation) & (el.parent[at - 1] == el.parent[at])  # it is no op's parent
        empty &= (el.tid[at - 1] == el.tid[at]) & (el.start_ns[at] - el.end_ns[at - 1] < ASLEEP_NS)
        first = (at > 0) & ((el.parent[at] == at - 1) | empty) & (rows.end_ns[maker] <= el.start_ns[at - 1])
        at, maker = at[first] - 1, maker[first]
    return out


def _from_flows(linked: Linked) -> tuple[I32, I32]:
    flows, rows = linked.trace.flows, linked.trace.host
    by_start = Neighbours.of(rows.tid, rows.start_ns)

    def starting(at_tid: I64, at_ns: I64) -> tuple[I32, Bool]:
        """Return the innermost row that starts at the time (rounding of absolute float us: up to 1 us off)."""
        slack_ns = rounding_ns(linked.trace)
        row = by_start.before(at_tid, at_ns + slack_ns + 1)
        return row.astype(np.int32), (row != NOWHERE) & (np.abs(np.append(rows.start_ns, 0)[row] - at_ns) <= slack_ns)

    (forward, ok), (backward, ok_too) = starting(flows.fwd_tid, flows.fwd_ns), starting(flows.bwd_tid, flows.bwd_ns)
    ok &= ok_too
    _, first = np.unique(backward[ok], return_index=True)
    return forward[ok][first], backward[ok][first]


def _from_numbers(linked: Linked) -> tuple[I32, I32]:
    """Pair threads by Kineto's "Sequence number" and "Fwd thread id", else by the ET's ``seq_id`` and ``fw_tid``."""
    rows, et = linked.trace.host, linked.et
    seq, fw_tid = rows.seq_id.copy(), rows.fw_tid.copy()
    if et is not None:
        bare = (seq < 0) & (linked.match.et != NOWHERE)
        seq[bare], fw_tid[bare] = et.seq_id[linked.match.et[bare]], et.fw_tid[linked.match.et[bare]]
    engine = fits(AUTOGRAD_ENGINE, linked.trace.strings)[rows.name]
    numbered = (seq >= 0) & ~rows.annotation
    forward = np.flatnonzero(numbered & (fw_tid == 0))
    backward = np.flatnonzero(numbered & (fw_tid > 0) & ~engine)
    at = last_before((seq[forward],), rows.start_ns[forward], (seq[backward],), rows.start_ns[backward])
    known = at != NOWHERE
    return forward[at[known]].astype(np.int32), backward[known].astype(np.int32)
