"""What the layers of a stage take in its passes, and how a model is cut anew where a layer ends.

Layers are the longest run of ops that repeats in a forward pass; what comes before and after (an embedding, a loss) is
apart. A backward op counts to the layer of its forward op, by their sequence number. What nothing tells is not guessed:
then there are no layers. A model is cut into parts that have equally many layers, which need not take equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from graphlink import spans
from graphlink.model import F64, I64, NOWHERE, Communication, Linked
from graphlink.pipeline.inferred_ranges import autograd_rows, forward_of, outermost
from graphlink.pipeline.named_ranges import Entries
from graphlink.pipeline.records import Layers, Pass
from graphlink.records import counted
from graphlink.spans import Spans
from graphlink.tables import turns

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
    if not count:
        return ()
    of_row = np.full(len(top), NOWHERE)
    of_row[forward.row] = forward.layer
    known, of = forward_of(linked, autograd, backward)
    back = np.full(len(top), NOWHERE)
    back[backward[known]] = of_row[of]
    pieces = _of_passes(linked, entries, backward[top[backward] == backward], _BACK, own_thread=False)
    after = np.array([count.get(chunk, 0) + 1 for chunk in entries.chunk[pieces.entry].tolist()], np.int64)
    backwards = _carried(_Pieces(pieces.row, pieces.entry, back[pieces.row]), after)
    return tuple(one for pieces in (forward, backwards) for one in _means(linked, entries, pieces, worked, count))


def _of_passes(linked: Linked, entries: Entries, row: I64, phases: tuple[Pass, ...], *, own_thread: bool) -> _Pieces:
    """Return rows with the pass that they start in, of those that start in any."""
    rows = linked.trace.host
    row = row[np.argsort(rows.start_ns[row], kind="stable")]
    passes = np.flatnonzero(np.isin(entries.phase, phases))
    if not len(passes):
        return _Pieces(row[:0], row[:0], row[:0])
    entry = passes[np.maximum(np.searchsorted(entries.start_ns[passes], rows.start_ns[row], side="right") - 1, 0)]
    inside = (entries.start_ns[entry] <= rows.start_ns[row]) & (rows.start_ns[row] < entries.end_ns[entry])
    if own_thread:
        inside &= rows.tid[row] == entries.tid[entry]
    return _Pieces(row[inside], entry[inside], np.full(int(np.count_nonzero(inside)), NOWHERE))


def _repeated(linked: Linked, pieces: _Pieces, entries: Entries) -> tuple[_Pieces, dict[int, int]]:
    """Number the layers of forward passes, and return how many each chunk has. Its first pass tells; others count if
    alike.
    """
    name, layer = linked.trace.host.name[pieces.row].astype(np.int64), pieces.layer.copy()
    count: dict[int, int] = {}
    told: dict[int, tuple[I64, I64]] = {}
    begins = np.flatnonzero(np.diff(pieces.entry, prepend=NOWHERE)).tolist()
    for low, high in pairwise([*begins, len(name)]):
        chunk, mine = int(entries.chunk[pieces.entry[low]]), name[low:high]
        if chunk not in told:
            numbers, many = _layers(mine)
            told[chunk] = mine, numbers
            if many:
                count[chunk] = many
        ops, numbers = told[chunk]
        if chunk in count and np.array_equal(ops, mine):
            layer[low:high] = numbers
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
    begins = at - turns(pieces.entry)
    last = np.maximum.accumulate(np.where(pieces.layer != NOWHERE, at, NOWHERE)) if len(at) else at
    some = np.isin(pieces.entry, pieces.entry[pieces.layer != NOWHERE])
    layer = np.where(last >= begins, pieces.layer[last], after)
    return _Pieces(pieces.row, pieces.entry, np.where(some, layer, NOWHERE))


def _means(
    linked: Linked, entries: Entries, pieces: _Pieces, worked: Worked, count: dict[int, int]
) -> Iterator[Layers]:
    """Yield the mean work of a pass by layer, of the passes whose layers are known."""
    start, end = linked.trace.host.start_ns[pieces.row], entries.end_ns[pieces.entry]
    first = np.append(True, pieces.entry[1:] != pieces.entry[:-1])[: len(start)]
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


ByPhase = Mapping[int, tuple[int, ...]]  # by phase, ``Layers.mean_ns`` of a stage; nothing where it is not known


def cut(durations: I64, parts: int, shares: Sequence[F64]) -> I64:
    """Return times of ``parts`` equal parts of what the given stages cover; the sum stays. ``shares``: of each
    stage.
    """
    whole, left = np.divmod(np.arange(parts + 1) * len(durations), parts)
    until = np.append(0, np.cumsum(durations)).astype(np.float64)[whole]
    for at in np.flatnonzero(left).tolist():
        of = shares[whole[at]]
        until[at] += durations[whole[at]] * np.interp(left[at] / parts, np.linspace(0, 1, len(of)), of)
    at_ns = np.rint(until).astype(np.int64)
    return np.asarray(at_ns[1:] - at_ns[:-1])


def shares(phase: int, layers: ByPhase) -> F64:
    """Return after which part of a pass each layer begins, and the last one ends. Of input or weight gradients that the
    run does not have apart: after which part of the backward."""
    there = layers.get(phase) or (layers.get(Pass.B) if phase in (Pass.I, Pass.W) else None) or (0, 1, 0)
    until = np.cumsum(np.array(there, np.float64))
    return np.asarray(until[:-1] / until[-1])


def told(layers: Sequence[ByPhase]) -> str:
    """Tell how the time of a stage was divided."""
    shown = sum({Pass.F, Pass.B} <= one.keys() or {Pass.F, Pass.I, Pass.W} <= one.keys() for one in layers)
    if not shown:
        return "the recording does not show layers, so a part's time is spread evenly over them"
    left = counted(len(layers) - shown, "part")
    others = f"; it shows none for {left}, whose time is spread evenly" if shown < len(layers) else ""
    return f"a layer takes what the recording shows{others}"
