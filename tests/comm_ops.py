"""Communication ops written as tuples; what is not given is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from graphlink.model import NOWHERE, CommKind, CommOps, GroupKey
from tests.build import Strings


class Op(NamedTuple):
    kind: CommKind
    name: str
    type: int = NOWHERE
    bytes: int = 0
    group: int = NOWHERE
    peer: int = NOWHERE
    tag: int = 0
    seq: int = NOWHERE
    uneven: bool = False
    row: int = 0
    on_host: bool = False
    start_ns: int = 0
    end_ns: int = 0


def comm_ops(ops: Iterable[Op], groups: Sequence[GroupKey] = ()) -> CommOps:
    given, strings = list(ops), Strings()

    def column(name: str, dtype: type[np.generic] = np.int64) -> np.ndarray:
        return np.array([getattr(op, name) for op in given], dtype)

    return CommOps(
        on_host=column("on_host", np.bool_),
        row=column("row", np.int32),
        kind=column("kind", np.uint8),
        name=strings.codes(op.name for op in given),
        type=column("type", np.int32),
        bytes=column("bytes"),
        group=column("group", np.int32),
        peer=column("peer"),
        tag=column("tag"),
        seq=column("seq"),
        uneven=column("uneven", np.bool_),
        start_ns=column("start_ns"),
        end_ns=column("end_ns"),
        names=strings.all(),
        groups=tuple(groups),
    )


def listed(ops: CommOps) -> list[Op]:
    """The other way round."""
    columns = zip(*(getattr(ops, name).tolist() for name in Op._fields), strict=True)
    return [Op(CommKind(kind), ops.names[name], *rest) for kind, name, *rest in columns]
