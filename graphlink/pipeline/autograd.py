"""What the numbers of autograd tell: passes of a run that names none, and what the layers of a stage take in passes.

Autograd gives a forward op per sequence number that its backward op repeats. Forward ops with a backward, and backward
ops, each cut where a send or receive is made or the other kind begins, are passes; the numbers tell which backward
belongs to which forward, and so its microbatch. Where the two are not one to one nothing is inferred. Weight gradients
are not distinguished: every backward is a full one.

Layers are the longest run of ops that repeats in a forward pass; what comes before and after (an embedding, a loss) is
apart. A backward op counts to the layer of its forward op. What nothing tells is not guessed: then there are no layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from graphlink import spans
from graphlink.linking.communication import calls_of_et
from graphlink.model import I64, NOWHERE, Bool, Comm, Communication, Linked, TimedRows
from graphlink.pipeline.named_ranges import OPTIMIZER, Entries, numbered, step_numbers
from graphlink.pipeline.records import Layers, Pass
from graphlink.records import NOTE
from graphlink.spans import Spans
from graphlink.tables import begins, how_many, in_order, last_before, nowhere, skipped, spread, take, turns, values_at

RULE: Final = "inferred:p2p+autograd"
_UNNUMBERED: Final = (
    "it sends and receives, but nothing names passes, and no op of autograd has the number of its forward op"
    " (record with emit_nvtx, or name passes: --range-rule)"
)
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


@dataclass(frozen=True, slots=True)
class _Passes(TimedRows):
    """``of_row``: of each row that was put together, its pass."""

    tid: I64
    of_row: I64


def inferred_entries(linked: Linked) -> tuple[Entries | None, tuple[str, ...]]:
    """Return entries with rule ``RULE``; and warnings; None without sends and receives, or where forwards and backwards
    are not one to one. O(n log n)."""
    rows, strings = linked.trace.host, linked.trace.strings
    peers = peer_ops(linked)
    if not len(peers.start_ns):
        return None, ()
    autograd, backward = autograd_rows(linked)
    if not len(backward):
        return None, (f"{NOTE}pipeline ranges could not be inferred: {_UNNUMBERED}",)
    passes = _passes(linked, autograd, backward, peers.start_ns)
    doubt = passes if isinstance(passes, str) else _odd_peers(peers, *passes[:2])
    if isinstance(passes, str) or doubt:
        return None, (f"pipeline ranges could not be inferred: {doubt}",)
    forwards, backwards, forward_of_backward = passes
    optimizer = [code for code, text in enumerate(strings) if OPTIMIZER.read(text)]
    opt = take(rows, np.flatnonzero(np.isin(rows.name, optimizer) & rows.annotation & ~linked.crossing))
    tables = (forwards, backwards, opt)
    tid, start, end = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("tid", "start_ns", "end_ns")
    )
    counts = [len(table.tid) for table in tables]
    pass_of = np.concatenate([np.arange(counts[0]), forward_of_backward, nowhere(counts[2])])
    order = np.lexsort((-end, start))
    none = nowhere(len(order))
    raw = Entries(
        tid=tid[order],
        start_ns=start[order],
        end_ns=end[order],
        phase=np.repeat([Pass.F, Pass.B, Pass.OPT], counts)[order].astype(np.uint8),
        step=np.zeros(len(order), np.int64),
        stage=none,
        chunk=none,
        microbatch=none,
        around=none.astype(np.int32),
        other_threads=np.arange(len(order), dtype=np.int32),
        inferred=np.zeros(len(order), np.bool_),
        rule=np.repeat([0, 0, 1], counts)[order].astype(np.int32),
        rules=(RULE, OPTIMIZER.name),
    )
    return _paired(numbered(raw, step_numbers(linked, raw)), pass_of[order]), ()


def _paired(entries: Entries, pass_of: I64) -> Entries:
    """Give a backward the microbatch, and the step, of its forward."""
    forward, backward = (np.flatnonzero(entries.phase == phase) for phase in (Pass.F, Pass.B))
    row = np.arange(len(pass_of))
    row[backward] = spread(len(forward), pass_of[forward], forward)[pass_of[backward]]
    inferred = np.zeros(len(row), np.bool_)
    return replace(entries, microbatch=entries.microbatch[row], step=entries.step[row], inferred=inferred)


# sends and receives


def peer_ops(linked: Linked) -> PeerOps:
    """Read them from both recordings; a call that several nested rows record counts once, by the first with its
    start. Where no row tells the other side (NCCL's NVTX ranges without payload), it is ``NOWHERE`` for all.
    """
    host = linked.trace.host
    comms = dict(calls_of_et(linked)) | dict(zip(host.comm.row.tolist(), host.comm.comms, strict=True))
    ops: list[tuple[int, int, bool]] = []
    for row, comm in comms.items():
        peer, outer = _peer(comm), comms.get(int(linked.parent[row]))
        if peer is None or (outer and outer.name == comm.name and (peer == NOWHERE or _peer(outer) != NOWHERE)):
            continue
        ranks = comm.ranks
        other = ranks[peer] if ranks and 0 <= peer < len(ranks) else peer
        ops.append((int(host.start_ns[row]), other, comm.name in _SENDS))
    known = [op for op in ops if op[1] != NOWHERE]
    start, other_side, sends = np.array(sorted(known or ops), np.int64).reshape(-1, 3).T.copy()
    return PeerOps(start, other_side, sends.astype(np.bool_))


def partners(linked: Linked, entries: Entries) -> tuple[int, ...]:
    """Return the ranks that a rank exchanges messages with; ``NOWHERE`` for each side of a stage where nothing names
    them: with one it exchanges as many as it has passes. Three where they are no multiple.
    """
    peer = peer_ops(linked).peer
    sides, rest = divmod(len(peer), max(1, how_many(np.isin(entries.phase, (Pass.F, Pass.B, Pass.I)))))
    return (NOWHERE,) * (3 if rest else sides) if (peer == NOWHERE).any() else tuple(np.unique(peer).tolist())


def _peer(comm: Comm) -> int | None:
    """Return the other side of a send or receive, ``NOWHERE`` if unknown; None of other communication."""
    if comm.name not in _SENDS | _RECEIVES:
        return None
    side = comm.dst_rank if comm.name in _SENDS else comm.src_rank
    return NOWHERE if side is None else side


def first_source(linked: Linked, entries: Entries) -> int:
    """Return the rank whose activations came in before this one's first forward, ``NOWHERE`` if none did."""
    forward = np.flatnonzero(entries.phase == Pass.F)
    return _source(peer_ops(linked), int(entries.end_ns[forward[0]])) if len(forward) else NOWHERE


def _source(peers: PeerOps, until_ns: int) -> int:
    before = np.flatnonzero(~peers.sends & (peers.start_ns < until_ns))
    return int(peers.peer[before[0]]) if len(before) else NOWHERE


def _odd_peers(peers: PeerOps, forwards: _Passes, backwards: _Passes) -> str:
    """Return why the sends and receives of a rank are not those of one stage of a pipeline; empty if they are.

    A stage receives every activation from the rank before and sends every gradient to it, and the other way round with
    the rank after. With several stages on a rank (interleaved) or in a ring there are more.
    """
    forward, backward = len(forwards.tid), len(backwards.tid)
    if (peers.peer == NOWHERE).all():
        sent, both = how_many(peers.sends), forward + backward
        received = len(peers.sends) - sent
        fits = (received, sent) in ((backward, forward), (forward, backward), (both, both))
        passes = f"{forward} forward and {backward} backward passes"
        return "" if fits else f"{received} receives and {sent} sends fit no {passes} of a stage"
    previous = _source(peers, int(forwards.end_ns[0]))
    others = np.unique(peers.peer[peers.peer != previous]).tolist()
    if len(others) > 1:
        count = len(others) + (previous != NOWHERE)
        return f"it exchanges messages with {count} ranks, more than the ones before and after"
    for peer, expected in ((previous, (forward, backward)), *((other, (backward, forward)) for other in others)):
        sends = peers.sends[peers.peer == peer]
        received, sent = how_many(~sends), how_many(sends)
        if peer != NOWHERE and (received, sent) != expected:
            return (
                f"{received} receives and {sent} sends with rank {peer} fit no {forward} forward and {backward} "
                "backward passes"
            )
    return ""


# autograd


def autograd_rows(linked: Linked) -> tuple[Bool, I64]:
    """Return which rows autograd's engine runs backward ops in, and those of them that have the number of a
    forward op.
    """
    rows = linked.trace.host
    autograd = np.array([text.startswith(_AUTOGRAD) for text in linked.trace.strings], np.bool_)[rows.name]
    engine = np.append(autograd & (rows.seq_id < 0), False)[linked.parent]  # of NVTX only the op inside has the number
    return autograd, np.flatnonzero((autograd | engine) & ~linked.crossing & (rows.seq_id >= 0))


def forward_of(linked: Linked, autograd: Bool, backward: I64) -> tuple[I64, I64]:
    """Return the rows of ``backward`` (positions) whose forward op was recorded, and of each the outermost op around
    that.

    The forward op of a backward row is the last that started with its number before it, outside autograd. Rows before
    that one may carry the number of what is to come, and numbers may start over.
    """
    rows = linked.trace.host
    top, inside = outermost(linked, autograd)
    numbered = np.isin(rows.seq_id, np.unique(rows.seq_id[backward]))
    row = np.flatnonzero(numbered & ~inside & ~linked.crossing & ~rows.annotation)
    found = last_before((rows.seq_id[row],), rows.start_ns[row], (rows.seq_id[backward],), rows.start_ns[backward])
    known = np.flatnonzero(found != NOWHERE)
    return known, top[row[found[known]]]


def outermost(linked: Linked, autograd: Bool) -> tuple[I64, Bool]:
    """Return the outermost op around each row (annotations are none), and whether autograd is around it."""
    ops, parent = ~linked.trace.host.annotation, linked.parent.astype(np.int64)
    inner = (parent != NOWHERE) & ops[parent] & ops
    return skipped(parent, inner), autograd[skipped(parent, inner & ~autograd)]


def _passes(linked: Linked, autograd: Bool, backward: I64, peer_ns: I64) -> tuple[_Passes, _Passes, I64] | str:
    """Return forward passes, backward passes and of each of these its forward pass; or why they are not one to one."""
    starts = linked.trace.host.start_ns
    known, forward = forward_of(linked, autograd, backward)
    if not len(forward):
        return "no backward op has its forward op in the recording"
    ops = in_order(np.unique(forward), starts)
    forwards = _cut(linked, ops, np.sort(np.concatenate([peer_ns, starts[backward]])))
    backwards = _cut(linked, backward, np.sort(np.concatenate([peer_ns, starts[ops]])))
    forward_pass = spread(len(starts), ops, forwards.of_row)[forward]
    pairs = np.unique(np.stack([backwards.of_row[known], forward_pass]), axis=1)
    counts = [len(pairs[0]), *(len(np.unique(side)) for side in pairs)]
    if counts != [len(forwards.tid), len(backwards.tid), len(forwards.tid)]:
        return (
            f"{len(forwards.tid)} forward and {len(backwards.tid)} backward passes between sends and receives do not "
            "belong together one to one"
        )
    return forwards, backwards, pairs[1]


def _cut(linked: Linked, row: I64, cuts_ns: I64) -> _Passes:
    """Put rows in start order together unless a cut lies between them."""
    rows = linked.trace.host
    start_ns, end_ns = rows.start_ns[row], rows.end_ns[row]
    new = begins(np.searchsorted(cuts_ns, start_ns, side="right"))
    first = np.flatnonzero(new)
    last_end_ns = np.maximum.reduceat(end_ns, first) if len(first) else end_ns
    return _Passes(start_ns[first], last_end_ns, rows.tid[row[first]], np.cumsum(new) - 1)


_MOST_OPS: Final = 1 << 13  # of a forward pass that is searched for repetition
_BACK: Final = (Pass.B, Pass.I, Pass.W)
Worked = Callable[[I64, I64], I64]  # the work from each moment to another one, in ns


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Passes cut at the start of each of their ops, by pass, then start. ``layer``: 0 before all layers, ``NOWHERE`` if
    unknown.
    """

    row: I64
    entry: I64
    layer: I64


def waitless(waits: Spans) -> Worked:
    """Return the work of the host: all but waits."""
    return lambda start_ns, end_ns: end_ns - start_ns - spans.overlap_ns(waits, start_ns, end_ns)


def launched(linked: Linked, comm: Communication) -> Worked:
    """Return the work of the device: what was launched from one to the other moment, without communication."""
    there = linked.device_call != NOWHERE
    there[comm.device_row] = False
    row = np.flatnonzero(there)
    at_ns = linked.trace.calls.start_ns[linked.device_call[row]]
    order = np.argsort(at_ns, kind="stable")
    until = np.append(0, np.cumsum((linked.trace.device.end_ns - linked.trace.device.start_ns)[row[order]]))
    at_ns = at_ns[order]
    return lambda start_ns, end_ns: until[np.searchsorted(at_ns, end_ns)] - until[np.searchsorted(at_ns, start_ns)]


def layers_of(linked: Linked, entries: Entries, worked: Worked) -> tuple[Layers, ...]:
    """Return what the layers of each chunk take, of the chunks whose forwards repeat ops. O(n log n) for n rows, and
    the square of the ops of one forward pass."""
    autograd, backward = autograd_rows(linked)
    top, _ = outermost(linked, autograd)
    ops = (top == np.arange(len(top))) & ~linked.trace.host.annotation & ~linked.crossing
    forward, count = _repeated(
        linked, _of_passes(linked, entries, np.flatnonzero(ops & ~autograd), (Pass.F,), own_thread=True), entries
    )
    of_row = spread(len(top), forward.row, forward.layer)
    known, of = forward_of(linked, autograd, backward)
    back = spread(len(top), backward[known], of_row[of])
    pieces = _of_passes(linked, entries, backward[top[backward] == backward], _BACK, own_thread=False)
    after = np.array([count.get(chunk, 0) + 1 for chunk in entries.chunk[pieces.entry].tolist()], np.int64)
    backwards = _carried(_Pieces(pieces.row, pieces.entry, back[pieces.row]), after)
    return tuple(one for pieces in (forward, backwards) for one in _means(linked, entries, pieces, worked, count))


def _of_passes(linked: Linked, entries: Entries, row: I64, phases: tuple[Pass, ...], *, own_thread: bool) -> _Pieces:
    """Return rows with the pass that they start in, of those that start in any."""
    rows = linked.trace.host
    row = in_order(row, rows.start_ns)
    passes = np.flatnonzero(np.isin(entries.phase, phases))
    around = Spans(entries.start_ns[passes], entries.end_ns[passes])
    entry = values_at(passes, spans.holding(around, rows.start_ns[row]))
    inside = entry != NOWHERE
    if own_thread:
        inside &= rows.tid[row] == entries.tid[entry]
    return _Pieces(row[inside], entry[inside], nowhere(how_many(inside)))


def _repeated(linked: Linked, pieces: _Pieces, entries: Entries) -> tuple[_Pieces, dict[int, int]]:
    """Number the layers of forward passes, and return how many each chunk has. Its first pass tells; others count if
    alike.
    """
    name, layer = linked.trace.host.name[pieces.row].astype(np.int64), pieces.layer.copy()
    told: dict[int, tuple[I64, I64, int]] = {}  # by chunk: ops of its first pass, layers, how many
    for low, high in pairwise([*np.flatnonzero(begins(pieces.entry)).tolist(), len(name)]):
        chunk, mine = int(entries.chunk[pieces.entry[low]]), name[low:high]
        if chunk not in told:
            told[chunk] = mine, *_layers(mine)
        ops, numbers, many = told[chunk]
        if many and np.array_equal(ops, mine):
            layer[low:high] = numbers
    count = {chunk: many for chunk, (_, _, many) in told.items() if many}
    return _Pieces(pieces.row, pieces.entry, layer), count


def _layers(name: I64) -> tuple[I64, int]:
    """Return the layer of each op, 0 before and one more than there are after them, and how many there are: 0, or 2 and
    more.
    """
    best = (0, 0, 0)
    for period in range(1, len(name) // 2 + 1) if len(name) <= _MOST_OPS else ():
        alike = np.flatnonzero(np.diff(np.concatenate([[0], name[period:] == name[:-period], [0]])))
        lengths = alike[1::2] - alike[::2]
        if len(lengths):
            many = int(lengths.max()) // period + 1
            if many > 1 and many * period > best[0]:
                best = many * period, period, int(alike[::2][lengths.argmax()])
    covered, period, start = best
    at = np.arange(len(name)) - start
    return np.where(at < 0, 0, np.minimum(at, covered) // max(period, 1) + 1), covered // max(period, 1)


def _carried(pieces: _Pieces, after: I64) -> _Pieces:
    """Let a piece of unknown layer count to the one before it in its pass, the first ones to what comes ``after`` all
    layers.
    """
    at = np.arange(len(pieces.layer))
    first = at - turns(pieces.entry)
    last = np.maximum.accumulate(np.where(pieces.layer != NOWHERE, at, NOWHERE)) if len(at) else at
    some = np.isin(pieces.entry, pieces.entry[pieces.layer != NOWHERE])
    layer = np.where(last >= first, pieces.layer[last], after)
    return _Pieces(pieces.row, pieces.entry, np.where(some, layer, NOWHERE))


def _means(
    linked: Linked, entries: Entries, pieces: _Pieces, worked: Worked, count: dict[int, int]
) -> Iterator[Layers]:
    """Yield the mean work of a pass by layer, of the passes whose layers are known."""
    start, end = linked.trace.host.start_ns[pieces.row], entries.end_ns[pieces.entry]
    first = begins(pieces.entry)
    start = np.where(first, entries.start_ns[pieces.entry], start)
    end[:-1] = np.where(first[1:], end[:-1], start[1:])
    work, chunk, phase = worked(start, end), entries.chunk[pieces.entry], entries.phase[pieces.entry]
    for of, layers in count.items():
        for kind in np.unique(phase[chunk == of]).tolist():
            mine = (chunk == of) & (phase == kind) & (pieces.layer != NOWHERE)
            total = np.bincount(pieces.layer[mine], work[mine], layers + 2)
            if total.sum() > 0:
                mean_ns = np.rint(total / len(np.unique(pieces.entry[mine]))).astype(np.int64)
                yield Layers(chunk=of, phase=kind, mean_ns=tuple(mean_ns.tolist()))
