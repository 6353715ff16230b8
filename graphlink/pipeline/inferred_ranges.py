"""Forward and backward passes of a run that names none: from autograd and the sends and receives between stages.

Autograd gives a forward op per sequence number that its backward op repeats. Forward ops with a backward, and backward
ops, each cut where a send or receive is made or the other kind begins, are passes; the numbers tell which backward
belongs to which forward, and so its microbatch. Where the two are not one to one nothing is inferred. Weight gradients
are not distinguished: every backward is a full one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from graphlink.model import I64, NOWHERE, Bool, Comm, Linked
from graphlink.pipeline.named_ranges import OPTIMIZER, Entries, numbered, step_numbers
from graphlink.pipeline.records import Pass

RULE: Final = "inferred:p2p+autograd"
_AUTOGRAD: Final = "autograd::engine::evaluate_function:"
_SENDS: Final = frozenset({"send", "isend"})
_RECEIVES: Final = frozenset({"recv", "irecv", "recv_any_source", "recvanysource"})


class PeerOps(msgspec.Struct, frozen=True):
    """Host rows that send or receive, in start order: absolute start, global or group rank of the other side, and
    whether it sends.
    """

    start_ns: I64
    peer: I64
    sends: Bool


def peer_ops(linked: Linked) -> PeerOps:
    """Read them from both recordings; a call that several nested rows record counts once, by the first with its
    start.
    """
    trace, et = linked.trace, linked.et
    told = dict(zip(trace.host.comm.row.tolist(), trace.host.comm.comms, strict=True))
    if et is not None and len(et.comm.row):
        host_of = np.full(len(et.id), NOWHERE, np.int64)
        matched = np.flatnonzero(linked.match.et != NOWHERE)
        host_of[linked.match.et[matched]] = matched
        for row, comm in zip(host_of[et.comm.row].tolist(), et.comm.comms, strict=True):
            if row != NOWHERE:
                told.setdefault(row, comm)
    out: list[tuple[int, int, bool]] = []
    parent = linked.parent
    for row in sorted(told):
        comm = told[row]
        sends = comm.name in _SENDS
        if not sends and comm.name not in _RECEIVES:
            continue
        peer, up = _peer(comm), told.get(int(parent[row]))
        if peer is None or (up is not None and up.name == comm.name and _peer(up) is not None):
            continue
        ranks = comm.ranks
        out.append((int(trace.host.start_ns[row]), ranks[peer] if ranks and 0 <= peer < len(ranks) else peer, sends))
    out.sort()
    start, peer_of, sending = (np.array(c, np.int64) for c in (zip(*out, strict=True) if out else ((), (), ())))
    return PeerOps(start, peer_of, sending.astype(np.bool_))


def _peer(comm: Comm) -> int | None:
    return comm.dst_rank if comm.name in _SENDS else comm.src_rank


def first_source(linked: Linked, entries: Entries) -> int:
    """Return the rank whose activations came in before this one's first forward, ``NOWHERE`` if none did."""
    forward = np.flatnonzero(entries.phase == Pass.F)
    if not len(forward):
        return NOWHERE
    return _source(peer_ops(linked), int(entries.end_ns[forward[0]]))


def _source(peers: PeerOps, until_ns: int) -> int:
    before = np.flatnonzero(~peers.sends & (peers.start_ns < until_ns))
    return int(peers.peer[before[0]]) if len(before) else NOWHERE


def inferred_entries(linked: Linked) -> tuple[Entries | None, tuple[str, ...]]:
    """Return entries with rule ``RULE``; and warnings; None without sends and receives, or where forwards and backwards
    are not one to one. O(n log n)."""
    rows, strings = linked.trace.host, linked.trace.strings
    peers = peer_ops(linked)
    if not len(peers.start_ns):
        return None, ()
    autograd, backward = autograd_rows(linked)
    if not len(backward):
        return None, ()
    passes = _passes(linked, autograd, backward, peers.start_ns)
    if isinstance(passes, str):
        return None, (f"pipeline ranges could not be inferred: {passes}",)
    f, b, forward_of = passes
    odd = _odd_peers(peers, int(f.end_ns[0]), len(f.tid), len(b.tid))
    if odd:
        return None, (f"pipeline ranges could not be inferred: {odd}",)
    optimizer = [k for k, s in enumerate(strings) if OPTIMIZER.read(s)]
    opt = np.flatnonzero(np.isin(rows.name, optimizer) & rows.annotation & ~linked.crossing)
    tid = np.concatenate([f.tid, b.tid, rows.tid[opt]])
    start = np.concatenate([f.start_ns, b.start_ns, rows.start_ns[opt]])
    end = np.concatenate([f.end_ns, b.end_ns, rows.end_ns[opt]])
    counts = (len(f.tid), len(b.tid), len(opt))
    pass_of = np.concatenate([np.arange(len(f.tid)), forward_of, np.full(len(opt), NOWHERE)])
    order = np.lexsort((-end, start))
    nowhere = np.full(len(order), NOWHERE)
    raw = Entries(
        tid=tid[order],
        start_ns=start[order],
        end_ns=end[order],
        phase=np.repeat([Pass.F, Pass.B, Pass.OPT], counts)[order].astype(np.uint8),
        step=np.zeros(len(order), np.int64),
        stage=nowhere,
        chunk=nowhere,
        microbatch=nowhere,
        around=np.full(len(order), NOWHERE, np.int32),
        other_threads=np.arange(len(order), dtype=np.int32),
        inferred=np.zeros(len(order), np.bool_),
        rule=np.repeat([0, 0, 1], counts)[order].astype(np.int32),
        rules=(RULE, OPTIMIZER.name),
    )
    return _paired(numbered(raw, step_numbers(linked, raw)), pass_of[order]), ()


def autograd_rows(linked: Linked) -> tuple[Bool, I64]:
    """Return which rows autograd's engine runs backward ops in, and those of them that have the number of a
    forward op.
    """
    rows = linked.trace.host
    autograd = np.array([s.startswith(_AUTOGRAD) for s in linked.trace.strings], np.bool_)[rows.name]
    return autograd, np.flatnonzero(autograd & ~linked.crossing & (rows.seq_id >= 0))


def _odd_peers(peers: PeerOps, first_end_ns: int, forwards: int, backwards: int) -> str:
    """Return why the sends and receives of a rank are not those of one stage of a pipeline; empty if they are.

    A stage receives every activation from the rank before and sends every gradient to it, and the other way round with
    the rank after. With several stages on a rank (interleaved) or in a ring there are more.
    """
    previous = _source(peers, first_end_ns)
    others = np.unique(peers.peer[peers.peer != previous]).tolist()
    if len(others) > 1:
        return (
            f"it exchanges messages with {len(others) + (previous != NOWHERE)} ranks, more than the ones before "
            "and "
            "after"
        )
    for peer, received, sent in ((previous, forwards, backwards), *((other, backwards, forwards) for other in others)):
        mine = peers.peer == peer
        counts = (int(np.count_nonzero(mine & ~peers.sends)), int(np.count_nonzero(mine & peers.sends)))
        if peer != NOWHERE and counts != (received, sent):
            return (
                f"{counts[0]} receives and {counts[1]} sends with rank {peer} fit no {forwards} forward and "
                f"{backwards} backward passes"
            )
    return ""


def _paired(entries: Entries, pass_of: I64) -> Entries:
    """Give a backward the microbatch, and the step, of its forward."""
    microbatch, step = entries.microbatch.copy(), entries.step.copy()
    forward = np.flatnonzero(entries.phase == Pass.F)
    of_pass = np.full(len(forward), NOWHERE)
    of_pass[pass_of[forward]] = forward
    backward = np.flatnonzero(entries.phase == Pass.B)
    microbatch[backward] = microbatch[of_pass[pass_of[backward]]]
    step[backward] = step[of_pass[pass_of[backward]]]
    return replace(entries, microbatch=microbatch, step=step, inferred=np.zeros(len(step), np.bool_))


def forward_of(linked: Linked, autograd: Bool, backward: I64) -> tuple[I64, I64]:
    """Return the rows of ``backward`` (positions) whose forward op was recorded, and of each the outermost op around
    that.

    The forward op of a backward row is the last that started with its number before it, outside autograd. Rows before
    that one may carry the number of what is to come, and numbers may start over.
    """
    rows = linked.trace.host
    top, inside = outermost(linked, autograd)
    numbers = np.unique(rows.seq_id[backward])
    usable = np.isin(rows.seq_id, numbers) & ~inside & ~linked.crossing & ~rows.annotation
    row = np.flatnonzero(usable)
    moments = np.unique(rows.start_ns)

    def place(of: I64) -> I64:  # numbers one after the other on one axis of moments
        return np.asarray(
            np.searchsorted(numbers, rows.seq_id[of]) * len(moments) + np.searchsorted(moments, rows.start_ns[of])
        )

    row = row[np.argsort(place(row), kind="stable")]
    found = np.searchsorted(place(row), place(backward), side="left") - 1
    known = found >= 0
    known[known] = rows.seq_id[row[found[known]]] == rows.seq_id[backward[known]]
    return np.flatnonzero(known), top[row[found[known]]]


def outermost(linked: Linked, autograd: Bool) -> tuple[I64, Bool]:
    """Return the outermost op around each row (annotations are none), and whether autograd is around it. Doubles the
    reach a round.
    """
    ops = ~linked.trace.host.annotation
    jump = np.where(
        (linked.parent != NOWHERE) & ops[np.maximum(linked.parent, 0)] & ops, linked.parent, NOWHERE
    ).astype(np.int64)
    top, inside = np.arange(len(jump)), autograd.copy()
    while True:
        up = jump != NOWHERE
        if not up.any():
            return top, inside
        inside |= up & inside[np.maximum(jump, 0)]
        top = np.where(up, top[np.maximum(jump, 0)], top)
        jump = np.where(up, jump[np.maximum(jump, 0)], NOWHERE)


class _Passes(msgspec.Struct, frozen=True):
    tid: I64
    start_ns: I64
    end_ns: I64
    of_row: I64


class _PassPairs(NamedTuple):
    """``forward_of``: of each backward pass its forward pass."""

    forward: _Passes
    backward: _Passes
    forward_of: I64


def _passes(linked: Linked, autograd: Bool, backward: I64, peer_ns: I64) -> _PassPairs | str:
    """Return forward and backward passes, or why they are not one to one."""
    starts = linked.trace.host.start_ns
    known, forward = forward_of(linked, autograd, backward)
    if not len(forward):
        return "no backward op has its forward op in the recording"
    ops = np.unique(forward)
    ops = ops[np.argsort(starts[ops], kind="stable")]
    f = _cut(linked, ops, np.sort(np.concatenate([peer_ns, starts[backward]])))
    b = _cut(linked, backward, np.sort(np.concatenate([peer_ns, starts[ops]])))
    place = np.full(len(starts), NOWHERE)
    place[ops] = f.of_row
    pairs = np.unique(np.stack([b.of_row[known], place[forward]]), axis=1)
    if len(pairs[0]) != len(f.tid) or len(np.unique(pairs[0])) != len(b.tid) or len(np.unique(pairs[1])) != len(f.tid):
        return (
            f"{len(f.tid)} forward and {len(b.tid)} backward passes between sends and receives do not belong "
            "together one to one"
        )
    return _PassPairs(f, b, pairs[1])


def _cut(linked: Linked, rows_at: I64, cuts_ns: I64) -> _Passes:
    """Put rows in start order together unless a cut lies between them."""
    rows = linked.trace.host
    start, end = rows.start_ns[rows_at], rows.end_ns[rows_at]
    part = np.searchsorted(cuts_ns, start, side="right")
    new = np.append(True, part[1:] != part[:-1]) if len(part) else np.zeros(0, np.bool_)
    first = np.flatnonzero(new)
    return _Passes(
        rows.tid[rows_at[first]],
        start[first],
        np.maximum.reduceat(end, first) if len(first) else end,
        np.cumsum(new) - 1,
    )
