"""The names in graphs that ``--scale`` takes: what their nodes take, the text that takes them, and which ones are like
a text.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from graphlink.model import I64, U8
from graphlink.replay.path import ReplayPath
from graphlink.replay.records import ScalableName
from graphlink.replay.workload import DELAY_NAME, Work, Workload

_LONG: Final = 60  # characters of a name; of a longer one the ends are enough where no other name has them
_HEAD, _TAIL = 40, 17
_SPECIAL: Final = re.compile(r"[][(){}?*+|^$\\.]")  # re.escape has more, which a regular expression takes as they are
_PIECE: Final = 3  # characters by which names are compared


def scalable(work: Workload, path: ReplayPath | None) -> list[ScalableName]:
    """Return each name of each sort of work, the one that takes longest first; ``path``: where there is one, the
    critical path of a replay.

    ``ns`` is what ``--scale`` with factor 0 takes off. A name with start delays is of sort ``delay`` as well, as they
    are scaled apart from the work behind them. Linear in nodes, n log n in names.
    """
    code, texts = work.names()
    late = np.flatnonzero((work.fixed_ns > 0) & (work.work != Work.DELAY))
    ns = np.concatenate([work.cost_ns - work.fixed_ns, work.fixed_ns[late]])
    keys, place, nodes = np.unique(
        np.concatenate([_key(code, work.work), _key(code[late], Work.DELAY)]), return_inverse=True, return_counts=True
    )
    whole, on_path = _sums(place, ns, len(keys)), np.zeros(len(keys), np.int64)
    if path is not None:
        on_path += _sums(
            np.searchsorted(keys, _key(code[path.node], work.work[path.node])), path.own_ns - path.fixed_ns, len(keys)
        )
        delays = _key(code[path.node], Work.DELAY)
        there = np.isin(
            delays, keys
        )  # a launch can delay a node by its latency although it was recorded to start in time
        on_path += _sums(np.searchsorted(keys, delays[there]), path.fixed_ns[there], len(keys))
    name, sort = np.divmod(keys, len(Work))
    pairs = [(Work(s).name.lower(), texts[n]) for n, s in zip(name.tolist(), sort.tolist(), strict=True)]
    rows = zip(pairs, _patterns(pairs), nodes.tolist(), whole.tolist(), on_path.tolist(), strict=True)
    nodes_late = np.flatnonzero(work.work == Work.DELAY)
    before = {("delay", DELAY_NAME): work.before_what(nodes_late, work.cost_ns[nodes_late])}
    found = [
        ScalableName(
            sort=of,
            name=text,
            nodes=count,
            ns=took,
            path_ns=None if path is None else there,
            scale=scale,
            before=before.get((of, text), []),
        )
        for (of, text), scale, count, took, there in rows
    ]
    return sorted(found, key=lambda one: (-one.ns, one.name, one.sort))


def _key(code: I64, sort: U8 | int) -> I64:
    key: I64 = code * len(Work) + sort
    return key


def _sums(place: I64, ns: I64, length: int) -> I64:
    out = np.zeros(length, np.int64)
    np.add.at(out, place.reshape(-1), ns)
    return out


def _patterns(pairs: list[tuple[str, str]]) -> list[str]:
    """Return for each sort and name what ``--scale`` takes for it and nothing else, up to the factor."""
    names_of = Counter(sort for sort, _ in pairs)
    ends = Counter((sort, name[:_HEAD], name[-_TAIL:]) for sort, name in pairs if len(name) >= _HEAD + _TAIL)
    out = []
    for sort, name in pairs:
        if names_of[sort] == 1:
            out.append(sort)
        elif len(name) > _LONG and ends[sort, name[:_HEAD], name[-_TAIL:]] == 1 and "\n" not in name:
            out.append(f"{sort}:^{_escaped(name[:_HEAD])}.*{_escaped(name[-_TAIL:])}$")
        else:
            out.append(f"{sort}:^{_escaped(name)}$")
    return out


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def closest(names: Iterable[str], text: str) -> list[str]:
    """Return the three names that have most pieces of ``text`` in them, whatever the case, of equal ones the shortest.
    Linear in names.
    """
    lower = text.lower()
    pieces = {lower[k : k + _PIECE] for k in range(len(lower) - _PIECE + 1)}
    scored = ((-sum(piece in name.lower() for piece in pieces), len(name), name) for name in names)
    return [name for _, _, name in heapq.nsmallest(3, (one for one in scored if one[0]))]
