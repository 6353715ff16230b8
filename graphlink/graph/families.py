"""Families: the nodes that people read as one thing, an op with its parts, the marks of steps, delays with what came
late.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from graphlink.graph_model import PART, Graph
from graphlink.model import EMPTY, I32, I64, NOWHERE
from graphlink.steps import STEP_MARK
from graphlink.tables import marked, numbered_rows, spread, sums

PYTHON: Final = "Python between ops"


@lru_cache(1 << 16)
def family_of(name: str) -> str:
    """Return what people read for the name of a host node: the op of its parts; of the mark of a step, what its own
    time is.
    """
    while name.endswith(PART):
        name = name[: -len(PART)]
    return PYTHON if STEP_MARK.fullmatch(name) else name


def families_of(graph: Graph, code: dict[str, int]) -> I64:
    """Return the family of every node, by its number in ``code``, which texts that are new are added to. Linear."""
    own, of_host = (
        np.fromiter((code.setdefault(text, len(code)) for text in texts), np.int64, len(graph.strings))
        for texts in (graph.strings, map(family_of, graph.strings))
    )
    return np.where(graph.host, of_host[graph.name], own[graph.name]) if len(graph.name) else EMPTY


def late_ops(graph: Graph, delays: I64 | I32) -> I64:
    """Return the device op that each of the nodes ``delays`` delays, its position; ``NOWHERE`` for none. Linear in
    edges.

    It is the op of the delay's own stream that waits for it, else another one; of a delay in pieces, that which the
    last piece delays.
    """
    is_delay = marked(len(graph.name), delays)
    edges = np.flatnonzero(is_delay[graph.source])
    source, target = graph.source[edges].astype(np.int64), graph.target[edges]
    other = (graph.stream[source] != graph.stream[target]) | (graph.device[source] != graph.device[target])
    rank = 2 * is_delay[target] + other  # an op of its own stream first, the next piece after all ops
    keep = ~graph.host[target]
    order = np.lexsort((target, rank))
    order = order[keep[order]]
    follows = spread(len(graph.name), source[order][::-1], target[order][::-1])  # of several the first holds
    late = follows[delays]
    for _ in range(len(delays)):  # over pieces, as many times as the longest delay has
        piece = late != NOWHERE
        piece[piece] = is_delay[late[piece]]
        if not piece.any():
            break
        late[piece] = follows[late[piece]]
    else:
        late[:] = NOWHERE  # a circle, in the file of somebody else
    return late


def most_late(graph: Graph, delays: I64 | I32, ns: I64) -> list[tuple[int, str, str]]:
    """Sum up what came late: (ns, op that launched it, device op) of each pair of names, most first; "" for an op that
    is not known.
    """
    if not len(delays):
        return []
    late = late_ops(graph, delays)
    there = np.flatnonzero(late != NOWHERE)
    code: dict[str, int] = {}
    family = families_of(graph, code)
    caller = graph.caller[late[there]]
    of_caller = np.where(caller == NOWHERE, NOWHERE, family[np.maximum(caller, 0)]) if len(family) else EMPTY
    pairs, which = numbered_rows(of_caller, family[late[there]])
    spent = sums(len(pairs), which, ns[there]).tolist()
    texts = [*code, ""]  # NOWHERE is the last
    delayed = [(took, texts[op], texts[device]) for took, (op, device) in zip(spent, pairs.tolist(), strict=True)]
    return sorted(delayed, key=lambda entry: (-entry[0], entry[1:]))


def before_what(graph: Graph, delays: I64 | I32, ns: I64) -> list[str]:
    """Return before what most of the time of the nodes ``delays`` lies: the op that launched it, where it is known, and
    the device op.
    """
    most = most_late(graph, delays, ns)
    return [text for text in most[0][1:] if text] if most else []
