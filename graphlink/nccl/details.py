"""What side files know of each matched op beyond its times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import Details, NcclJoin
from graphlink.read.nccl_kinds import DumpKind

# Of several files with one op the first of these that tells something holds: NCCL's own before PyTorch's.
_ORDER: Final = (DumpKind.PLUGIN, DumpKind.INSPECTOR, DumpKind.PROXY, DumpKind.FLIGHT_RECORDER)


def details(joined: NcclJoin, dumps: Sequence[Dump]) -> Details:
    """Of every matched op; n log n in pairs, linear in proxy ops."""
    ops = np.unique(joined.op)
    strings: dict[str, int] = {"": 0}
    seq, channels, wire = (np.full(len(ops), NOWHERE, np.int64) for _ in range(3))
    communicator, algorithm, protocol = (np.zeros(len(ops), np.int32) for _ in range(3))

    def codes(texts: Sequence[str]) -> I32:
        return np.array([strings.setdefault(text, len(strings)) for text in texts], np.int32)

    for k, dump in sorted(enumerate(dumps), key=lambda one: _ORDER.index(one[1].kind), reverse=True):
        mine = joined.dump == k
        call, at = joined.call[mine], np.searchsorted(ops, joined.op[mine])
        calls, texts = dump.calls, codes(dump.strings)
        keys = codes([*(one.key for one in dump.communicators), ""])
        _put(communicator, at, keys[calls.communicator[call]], 0)
        _put(algorithm, at, texts[calls.algorithm[call]], 0)
        _put(protocol, at, texts[calls.protocol[call]], 0)
        _put(seq, at, calls.seq[call], NOWHERE)
        _put(channels, at, calls.channels[call], NOWHERE)
        _put(wire, at, _sent(dump)[call], NOWHERE)
    return Details(tuple(strings), ops, communicator, seq, algorithm, protocol, channels.astype(np.int32), wire)


def _put(column: I32 | I64, at: I64, values: I32 | I64, unknown: int) -> None:
    told = values != unknown
    column[at[told]] = values[told]


def _sent(dump: Dump) -> I64:
    """Bytes that the proxies of each call sent; NOWHERE where none is recorded."""
    proxies = dump.proxies
    told = proxies.sends & (proxies.call != NOWHERE) & (proxies.bytes != NOWHERE)
    total, count = np.zeros((2, len(dump.calls.rank)), np.int64)
    np.add.at(total, proxies.call[told], proxies.bytes[told])
    np.add.at(count, proxies.call[told], 1)
    return np.where(count > 0, total, NOWHERE)
