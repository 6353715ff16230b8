"""Chakra graphs by hand, right and wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]

from graphlink.astra.check_rules import Judgement
from graphlink.astra.ranks import judge, runs_of

COLL = {"comm_type": 0, "comm_size": 4096, "is_cpu_op": False}
KINDS = {
    "is_cpu_op": "bool_val",
    "pg_name": "string_val",
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val"),
}


def node(
    id: int,
    type: int = pb.COMP_NODE,
    data: Sequence[int] = (),
    ctrl: Sequence[int] = (),
    *,
    micros: int = 5,
    **attributes: Any,
) -> Any:
    """``attributes`` by name, in their proper kind; ``(kind, value)`` for another one."""
    out = pb.Node(id=id, name=f"op{id}", type=type, data_deps=data, ctrl_deps=ctrl, duration_micros=micros)
    for name, value in attributes.items():
        kind, plain = value if isinstance(value, tuple) else (KINDS.get(name, "int64_val"), value)
        if kind.endswith("_list"):
            attribute = out.attr.add(name=name)
            getattr(attribute, kind).values.extend(plain)
        else:
            out.attr.add(name=name, **{kind: plain})
    return out


def coll(id: int, data: Sequence[int] = (), **attributes: Any) -> Any:
    return node(id, pb.COMM_COLL_NODE, data, **{k: v for k, v in (COLL | attributes).items() if v is not None})


def send(id: int, data: Sequence[int] = (), **attributes: Any) -> Any:
    given = {"comm_dst": 1, "comm_tag": 0, "comm_size": 64} | attributes
    return node(id, pb.COMM_SEND_NODE, data, **{k: v for k, v in given.items() if v is not None})


def recv(id: int, data: Sequence[int] = (), **attributes: Any) -> Any:
    given = {"comm_src": 0, "comm_tag": 0, "comm_size": 64} | attributes
    return node(id, pb.COMM_RECV_NODE, data, **{k: v for k, v in given.items() if v is not None})


def framed(*messages: bytes) -> bytes:
    return b"".join(_VarintBytes(len(m)) + m for m in messages)


def encoded(nodes: Sequence[Any], version: str = "0.0.4", **metadata: int) -> bytes:
    head = pb.GlobalMetadata(version=version)
    for name, value in metadata.items():
        head.attr.add(name=name, int64_val=value)
    return framed(head.SerializeToString(), *(n.SerializeToString() for n in nodes))


def written(folder: Path, *ranks: Sequence[Any], groups: Mapping[str, object] | None = None) -> Path:
    """``trace.<rank>.et`` for each of ``ranks``."""
    for rank, nodes in enumerate(ranks):
        (folder / f"trace.{rank}.et").write_bytes(encoded(nodes))
    if groups is not None:
        (folder / "comm_group.json").write_text(json.dumps(groups))
    return folder


def judged(folder: Path) -> Judgement:
    (files,) = runs_of(folder)
    return judge(files, None)


def found(folder: Path) -> dict[str, int]:
    """Count by key, without what every such small graph has."""
    return {v.rule.key: v.count for v in judged(folder).verdicts}
