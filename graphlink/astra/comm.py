"""The rules of collectives, groups and messages that one rank's graph can break."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra.groups import Groups
from graphlink.graph.et_columns import TWICE
from graphlink.graph_model import BAD_GROUP, NO_GROUP, Graph
from graphlink.model import Bool

SUPPORTED: Final = (pb.ALL_REDUCE, pb.ALL_GATHER, pb.ALL_TO_ALL, pb.REDUCE_SCATTER, pb.BROADCAST)
INTEGERS: Final = frozenset(
    f"{kind}_val"
    for kind in (
        "int32",
        "int64",
        "uint32",
        "uint64",
        "sint32",
        "sint64",
        "fixed32",
        "fixed64",
        "sfixed32",
        "sfixed64",
        "bool",
    )
)
TINY_BYTES, SMALL_BYTES = 4, 64  # of an ALL_GATHER shard: stock system files split by 4, none by more than 64
HIGHEST_GROUP: Final = 2**31 - 1


Masks = dict[str, Bool]  # by key of a rule: which nodes break it


def comm_rules(graph: Graph, rank: int, world: int, groups: Groups | None) -> Iterator[tuple[str, Bool]]:
    """Yield rules and the nodes that break them, one rule twice. Linear in nodes; all are masks over columns."""
    coll = graph.type == pb.COMM_COLL_NODE
    coupled = coll & (
        graph.comm_type != pb.BROADCAST
    )  # a BROADCAST lasts what was recorded, whatever its group and size
    send, recv = graph.type == pb.COMM_SEND_NODE, graph.type == pb.COMM_RECV_NODE
    yield from _attributes(graph, coll, coupled, send, recv).items()
    yield from _groups(graph, coll, coupled, rank, groups).items()
    yield from _messages(graph, send, recv, rank, world).items()


def _has(graph: Graph, name: str) -> Bool:
    """Mark the nodes that carry the attribute with a value in it that a reader can make a number of."""
    out = graph.says(name)
    out[[odd.node for odd in graph.file.odd if odd.name == name and odd.kind not in (*INTEGERS, TWICE)]] = False
    return out


def _attributes(graph: Graph, coll: Bool, coupled: Bool, send: Bool, recv: Bool) -> Masks:
    typed, sized = coll & _has(graph, "comm_type"), coll & _has(graph, "comm_size")
    kind, size = graph.comm_type, graph.comm_size
    gather = sized & (kind == pb.ALL_GATHER)
    return {
        "no-comm-type": coll & ~graph.says("comm_type"),
        "no-comm-size": (coll | send | recv) & ~graph.says("comm_size"),
        "no-peer": (send & ~graph.says("comm_dst")) | (recv & ~graph.says("comm_src")),
        "no-tag": (send | recv) & ~graph.says("comm_tag"),
        "unsupported": typed & ~np.isin(kind, SUPPORTED),
        "broadcast": typed & (kind == pb.BROADCAST),
        "empty-gather": gather & (size == 0),
        "tiny-gather": gather & (size > 0) & (size < TINY_BYTES),
        "small-gather": gather & (size >= TINY_BYTES) & (size < SMALL_BYTES),
        "size-zero": sized & (size == 0) & (kind != pb.ALL_GATHER) & (kind != pb.BROADCAST),
        "negative-size": (coupled | send | recv) & (size < 0),
        "group-of-one": coupled & (graph.group == NO_GROUP) & (graph.metadata.world_size == 1),
    }


def _groups(graph: Graph, coll: Bool, coupled: Bool, rank: int, groups: Groups | None) -> Masks:
    given = coll & graph.says("pg_name")
    text, prefix, huge, negative = (np.zeros(len(coll), np.bool_) for _ in range(4))
    for odd in graph.file.odd:
        if odd.name != "pg_name" or odd.kind != "string_val":
            continue
        number = re.match(r"\s*[+-]?[0-9]+", odd.value)
        if number is None:
            text[odd.node] = True
        elif abs(int(number[0])) > HIGHEST_GROUP:
            huge[odd.node] = True
        elif number[0] == odd.value:  # a sign or a space before it
            negative[odd.node] = int(number[0]) < 0
        else:
            prefix[odd.node] = True
    named = coll & (graph.group > NO_GROUP) & (graph.group <= HIGHEST_GROUP)
    names = {
        "group-text": given & text,
        "group-prefix": given & prefix,
        "group-huge": given & (huge | (graph.group > HIGHEST_GROUP)),
        "group-zero": given & (graph.group == NO_GROUP),
    }
    if groups is None:
        return names | {"no-groups": named}
    ids, which = np.unique(np.where(named, graph.group, BAD_GROUP), return_inverse=True)
    members = [groups.get(int(i)) for i in ids]

    def where(broken: list[bool]) -> Bool:
        out: Bool = named & np.array(broken, np.bool_)[which.reshape(-1)]
        return out

    return names | {
        "group-unknown": where([m is None for m in members]) | (coll & negative),
        "group-of-one": coupled & where([m is not None and len(m) == 1 for m in members]),
        "outside-group": coupled & where([m is not None and rank not in m for m in members]),
        "legacy-group": named & (len(np.unique(graph.group[named])) > 1),
    }


def _messages(graph: Graph, send: Bool, recv: Bool, rank: int, world: int) -> Masks:
    src, dst = _has(graph, "comm_src"), _has(graph, "comm_dst")
    peer = np.where(send, graph.comm_dst, graph.comm_src)
    known = (send & dst) | (recv & src)
    return {
        "foreign-end": (send & src & (graph.comm_src != rank)) | (recv & dst & (graph.comm_dst != rank)),
        "to-itself": known & (peer == rank),
        "no-such-rank": known & ((peer < 0) | (peer >= world)),
        "negative-tag": (send | recv) & (graph.comm_tag < 0),
        "empty-send": send & _has(graph, "comm_size") & (graph.comm_size == 0),
    }
