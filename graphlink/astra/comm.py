"""The rules of collectives, groups and messages that one rank's graph can break."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra.groups import Groups
from graphlink.graph.chakra import BAD_GROUP, NO_GROUP, TWICE, ChakraFile, Has
from graphlink.model import Bool

SUPPORTED: Final = (pb.ALL_REDUCE, pb.ALL_GATHER, pb.ALL_TO_ALL, pb.REDUCE_SCATTER, pb.BROADCAST)
INTEGERS: Final = frozenset(
    f"{kind}_val"
    for kind in ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "bool")
)
TINY_BYTES, SMALL_BYTES = 4, 64  # of an ALL_GATHER shard: stock system files split by 4, none by more than 64
HIGHEST_GROUP: Final = 2**31 - 1


class CommRules:
    """``add`` takes a rule's key and the nodes that break it."""

    def __init__(self, graph: ChakraFile, rank: int, world: int, groups: Groups | None, add: Callable[[str, Bool], None]):
        self._graph, self._rank, self._world, self._groups, self._add = graph, rank, world, groups, add
        self._negative_group = np.zeros(len(graph.id), np.bool_)
        self._unreadable = {(odd.name, odd.node) for odd in graph.odd if odd.kind not in (*INTEGERS, TWICE)}
        self._coll = graph.type == pb.COMM_COLL_NODE
        self._coupled = self._coll & (graph.comm_type != pb.BROADCAST)  # a BROADCAST lasts what was recorded, whatever its group and size
        self._send = graph.type == pb.COMM_SEND_NODE
        self._recv = graph.type == pb.COMM_RECV_NODE

    def judge(self) -> None:
        """Linear in nodes; all rules are masks over columns."""
        self._present()
        self._collectives()
        self._group_names()
        self._group_members()
        self._messages()

    def _lacks(self, bit: Has) -> Bool:
        out: Bool = (self._graph.has & np.uint32(bit)) == 0
        return out

    def _has(self, bit: Has) -> Bool:
        """Nodes that carry the attribute with a value in it that a reader can make a number of."""
        out = ~self._lacks(bit)
        out[[node for name, node in self._unreadable if bit.name == name.upper()]] = False
        return out

    def _present(self) -> None:
        message = self._send | self._recv
        self._add("no-comm-type", self._coll & self._lacks(Has.COMM_TYPE))
        self._add("no-comm-size", (self._coll | message) & self._lacks(Has.COMM_SIZE))
        self._add("no-peer", (self._send & self._lacks(Has.COMM_DST)) | (self._recv & self._lacks(Has.COMM_SRC)))
        self._add("no-tag", message & self._lacks(Has.COMM_TAG))

    def _collectives(self) -> None:
        graph, coll = self._graph, self._coll
        typed, sized = coll & self._has(Has.COMM_TYPE), coll & self._has(Has.COMM_SIZE)
        kind, size = graph.comm_type, graph.comm_size
        gather = sized & (kind == pb.ALL_GATHER)
        self._add("unsupported", typed & ~np.isin(kind, SUPPORTED))
        self._add("broadcast", typed & (kind == pb.BROADCAST))
        self._add("empty-gather", gather & (size == 0))
        self._add("tiny-gather", gather & (size > 0) & (size < TINY_BYTES))
        self._add("small-gather", gather & (size >= TINY_BYTES) & (size < SMALL_BYTES))
        self._add("size-zero", sized & (size == 0) & (kind != pb.ALL_GATHER) & (kind != pb.BROADCAST))
        self._add("negative-size", (self._coupled | self._send | self._recv) & (size < 0))

    def _group_names(self) -> None:
        graph, coll = self._graph, self._coll
        named = coll & ~self._lacks(Has.PG_NAME)
        text, prefix, huge = (np.zeros(len(coll), np.bool_) for _ in range(3))
        for odd in graph.odd:
            if odd.name != "pg_name" or odd.kind != "string_val":
                continue
            number = re.match(r"\s*[+-]?[0-9]+", odd.value)
            if number is None:
                text[odd.node] = True
            elif abs(int(number[0])) > HIGHEST_GROUP:
                huge[odd.node] = True
            elif number[0] == odd.value:  # a sign or a space before it
                self._negative_group[odd.node] = int(number[0]) < 0
            else:
                prefix[odd.node] = True
        self._add("group-text", named & text)
        self._add("group-prefix", named & prefix)
        self._add("group-huge", named & (huge | (graph.group > HIGHEST_GROUP)))
        self._add("group-zero", named & (graph.group == NO_GROUP))

    def _group_members(self) -> None:
        graph, coll = self._graph, self._coll
        named = coll & (graph.group > NO_GROUP) & (graph.group <= HIGHEST_GROUP)
        world = self._coupled & (graph.group == NO_GROUP)
        self._add("group-of-one", world & (graph.metadata.world_size == 1))
        if self._groups is None:
            self._add("no-groups", named)
            return
        ids, which = np.unique(np.where(named, graph.group, BAD_GROUP), return_inverse=True)
        members = [self._groups.members.get(int(i)) for i in ids]

        def where(broken: list[bool], of: Bool) -> Bool:
            out: Bool = of & named & np.array(broken, np.bool_)[which.reshape(-1)]
            return out

        self._add("group-unknown", where([m is None for m in members], coll) | (coll & self._negative_group))
        self._add("group-of-one", where([m is not None and len(m) == 1 for m in members], self._coupled))
        self._add("outside-group", where([m is not None and self._rank not in m for m in members], self._coupled))
        self._add("legacy-group", named & (len(np.unique(graph.group[named])) > 1))

    def _messages(self) -> None:
        graph, send, recv = self._graph, self._send, self._recv
        src, dst = self._has(Has.COMM_SRC), self._has(Has.COMM_DST)
        message = send | recv
        self._add("foreign-end", (send & src & (graph.comm_src != self._rank)) | (recv & dst & (graph.comm_dst != self._rank)))
        peer = np.where(send, graph.comm_dst, graph.comm_src)
        known = (send & dst) | (recv & src)
        self._add("to-itself", known & (peer == self._rank))
        self._add("no-such-rank", known & ((peer < 0) | (peer >= self._world)))
        self._add("negative-tag", message & (graph.comm_tag < 0))
        self._add("empty-send", send & self._has(Has.COMM_SIZE) & (graph.comm_size == 0))
