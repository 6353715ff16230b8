"""The names in graphs that ``--scale`` takes: what their nodes take, the text that takes them, and which ones are like
a text.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

import numpy as np

from graphlink.replay.path import ReplayPath
from graphlink.replay.records import ScalableName
from graphlink.replay.workload import DELAY_NAME, Work, Workload
from graphlink.tables import sums

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
    delayed = np.flatnonzero((work.fixed_ns > 0) & (work.work != Work.DELAY))
    own_key, delay_key = code * len(Work) + work.work, code * len(Work) + Work.DELAY
    ns = np.append(work.cost_ns - work.fixed_ns, work.fixed_ns[delayed])
    keys, place, nodes = np.unique(np.append(own_key, delay_key[delayed]), return_inverse=True, return_counts=True)
    whole_ns, path_ns = sums(len(keys), place, ns), np.zeros(len(keys), np.int64)
    if path is not None:
        path_ns += sums(len(keys), np.searchsorted(keys, own_key[path.node]), path.own_ns - path.fixed_ns)
        # a launch can delay a node by its latency although it was recorded to start in time
        known = np.isin(delay_key[path.node], keys)
        path_ns += sums(len(keys), np.searchsorted(keys, delay_key[path.node[known]]), path.fixed_ns[known])
    pairs = [(Work(key % len(Work)).name.lower(), texts[key // len(Work)]) for key in keys.tolist()]
    delays = np.flatnonzero(work.work == Work.DELAY)
    before = work.before_what(delays, work.cost_ns[delays])
    names = [
        ScalableName(
            sort=sort,
            name=name,
            nodes=count,
            ns=took,
            path_ns=None if path is None else on_path,
            scale=scale,
            before=before if (sort, name) == ("delay", DELAY_NAME) else [],
        )
        for (sort, name), scale, count, took, on_path in zip(
            pairs, _patterns(pairs), nodes.tolist(), whole_ns.tolist(), path_ns.tolist(), strict=True
        )
    ]
    return sorted(names, key=lambda name: (-name.ns, name.name, name.sort))


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
    return [name for _, _, name in heapq.nsmallest(3, filter(itemgetter(0), scored))]
