"""Slices on tracks, and the order in which they begin and end: what a timeline needs of nesting, whoever draws it.

A track shows slices inside slices. The end of one is not named, it closes the slice that was opened last; so slices of
a track must not cross, and what begins and ends at one time must do so in the right order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.tables import MOST, in_order, spread, successive


@dataclass(frozen=True, slots=True)
class Slices:
    """One entry per slice, in any order.

    ``key`` orders slices of one track, parents before children; along it starts do not fall. Over all tracks it decides
    which of two that begin at the same time comes first in the file: the source of a flow needs a lower one than its
    target. ``parent``: a slice of the same track, or ``NOWHERE``. ``name``: position in a table of names.
    """

    track: I32
    start_ns: I64
    end_ns: I64
    key: I64
    parent: I32
    name: I32


def flat(track: I32, start_ns: I64, end_ns: I64, name: I32) -> Slices:
    """Flatten slices: on their tracks they follow each other, none lies in another."""
    n = len(track)
    key = spread(n, np.lexsort((np.arange(n), start_ns)), np.arange(n))
    return Slices(track, start_ns, end_ns, key, np.full(n, NOWHERE, np.int32), name)


def nested(slices: Slices) -> tuple[I64, I64]:
    """Return where each slice ends, cut so that no two of a track cross, and the key of the last slice inside it (or
    its own).

    A slice ends no later than its parent does, and than what follows it begins. O(n log n + n x depth) at worst.
    """
    n = len(slices.track)
    order = np.lexsort((slices.key, slices.track))
    position = spread(n, order, np.arange(n))
    after = _after(slices, order)
    known = after != NOWHERE
    end_ns = np.minimum(slices.end_ns, spread(n, known, slices.start_ns[after[known]], MOST))
    child = np.flatnonzero(slices.parent != NOWHERE)
    outer = slices.parent[child]
    while len(over := np.flatnonzero(end_ns[child] > end_ns[outer])):
        end_ns[child[over]] = end_ns[outer[over]]
    track = slices.track[order]
    last_of_track = np.searchsorted(track, track, side="right") - 1
    last = spread(n, order, last_of_track)
    last[known] = position[after[known]] - 1
    return np.maximum(end_ns, slices.start_ns), slices.key[order[last]]


def _after(slices: Slices, order: I64) -> I64:
    """Return the slice of its track that begins next outside each: its next sibling, else that of the first ancestor
    that has one.
    """
    n = len(order)
    by_parent = in_order(order, slices.track, slices.parent)  # stable: keys ascend inside
    sibling = spread(n, *successive(by_parent, slices.parent, slices.track))
    out = sibling.copy()
    open_ = np.flatnonzero((sibling == NOWHERE) & (slices.parent != NOWHERE))
    above = slices.parent[open_].astype(np.int64)
    while len(open_):
        out[open_] = sibling[above]
        on = (out[open_] == NOWHERE) & (slices.parent[above] != NOWHERE)
        open_, above = open_[on], slices.parent[above[on]].astype(np.int64)
    return out


class SliceEvents(NamedTuple):
    """Begins and ends as a file has them: the ``slice`` of each, whether it ``begins`` there, and when."""

    slice: I32
    begins: Bool
    time_ns: I64


def events(slices: Slices) -> SliceEvents:
    """Order begins and ends of slices, two a slice, as a file has them: by time, and at one time so that they nest. O(n
    log n).

    They are cut as ``nested`` says.
    """
    n = len(slices.track)
    end_ns, end_key = nested(slices)
    time_ns = np.concatenate([slices.start_ns, end_ns])
    rank = np.concatenate([slices.key, end_key])
    rank *= 2
    rank[n:] += 1
    del end_ns, end_key
    order = np.lexsort((rank, time_ns))
    del rank  # of millions every column counts
    begins, time_ns = order < n, time_ns[order]
    order[~begins] -= n
    return SliceEvents(order.astype(np.int32), begins, time_ns)


def lanes(start_ns: I64, end_ns: I64, group: I64) -> I64:
    """Return the lowest free lane of its group for each interval, from 0, so that no two of a lane overlap. Cost: O(n
    log n).
    """
    out = np.zeros(len(start_ns), np.int64)
    busy: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # heaps of (until, lane)
    free: defaultdict[int, list[int]] = defaultdict(list)
    order = np.lexsort((end_ns, start_ns))
    for i, start, end, of in zip(
        order.tolist(), start_ns[order].tolist(), end_ns[order].tolist(), group[order].tolist(), strict=True
    ):
        while busy[of] and busy[of][0][0] <= start:
            heappush(free[of], heappop(busy[of])[1])
        out[i] = heappop(free[of]) if free[of] else len(busy[of])
        heappush(busy[of], (end, int(out[i])))
    return out
