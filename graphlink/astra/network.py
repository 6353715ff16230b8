"""Measured links of a run: bandwidth and latency from its own collectives and messages, as ASTRA-sim's network file
wants them.

A transfer takes steps x latency + bytes on the wire / bandwidth (ring algorithms, nccl-tests' bus bandwidth). Its time
is the shortest of its members': who came last waited for nobody. The latency of a step comes from the smallest
transfers, the bandwidth from the largest, less their latency.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from graphlink.astra.files import Dimension
from graphlink.graph_model import NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import F64, I64, NOWHERE, Bool
from graphlink.replay.network import MESSAGES, SIMULATED, Transfers
from graphlink.replay.workload import Workload
from graphlink.tables import numbered_values, take

DEFAULT_BYTES_PER_S: Final = 50e9
DEFAULT_STEP_NS: Final = 500.0
LARGE: Final = 1 << 20  # bytes on the wire from which a transfer shows bandwidth
SMALL: Final = 1 << 16  # up to which it shows latency
FASTER: Final = 1.5  # links inside blocks are taken for others if they are so much faster


def network(found: Transfers, groups: Mapping[int, Sequence[int]], world: int) -> tuple[Dimension, ...]:
    """Return the network: a ring of ``world`` ranks; two where groups that are blocks of neighbours got more bandwidth
    than those across blocks."""
    block = _block(found, groups, world)
    if block is None:
        return (_dimension(world, found, ()),)
    inside, across = (take(found, _within(found, groups, block, inside=inside)) for inside in (True, False))
    why = (f"communicators of {block} neighbouring ranks got more bandwidth than those across them",)
    return _dimension(block, inside, why), _dimension(world // block, across, why)


def far(work: Workload, groups: Mapping[int, Sequence[int]], npus: Sequence[int]) -> tuple[str, ...]:
    """Describe how many nodes send further than to a neighbour on rings of ``npus`` ranks (inner dimension first).
    Linear in nodes.

    Members of a communicator send to the next of its list and the last to the first, in an ALL_TO_ALL all to all.
    """
    found: Counter[str] = Counter()
    kind, group = work.column("comm_type"), work.column("group")
    node = np.flatnonzero(np.isin(kind, SIMULATED))
    used, nodes = np.unique(np.stack([kind[node], group[node]]), axis=1, return_counts=True)
    for (what, id_), count in zip(used.T.tolist(), nodes.tolist(), strict=True):
        members = np.array(groups.get(id_, range(math.prod(npus))), np.int64)
        turns = range(1, len(members) if what == CollectiveType.ALL_TO_ALL else 2)
        if any((_hops(members, np.roll(members, turn), npus) > 1).any() for turn in turns):
            found[f"{_type(what)} over {len(members)} ranks"] += count // len(members)
    send = np.flatnonzero(work.column("type") == NodeType.COMM_SEND)
    found["messages"] += int(np.count_nonzero(_hops(work.node_rank[send], work.column("comm_dst")[send], npus) > 1))
    return tuple(f"{count:,} {what}" for what, count in found.most_common() if count)


def _hops(one: I64, other: I64, npus: Sequence[int]) -> I64:
    """Count the links between ranks on rings, both ways round, as ASTRA-sim counts: in the first dimension in which
    they differ.
    """
    hops, inner = np.zeros(len(one), np.int64), 1
    for n in npus:
        apart = np.abs(one // inner % n - other // inner % n)
        hops = np.where(hops == 0, np.minimum(apart, n - apart), hops)
        inner *= n
    return hops


def _dimension(npus: int, found: Transfers, why: tuple[str, ...]) -> Dimension:
    step, latency = _latency(found)
    rate, bandwidth = _bandwidth(found, step)
    return Dimension(
        "Ring", npus, rate or DEFAULT_BYTES_PER_S, DEFAULT_STEP_NS if step is None else step, (*why, bandwidth, latency)
    )


def _latency(found: Transfers) -> tuple[float | None, str]:
    """Return the ns of a step, None where it was not measured, and where that is from."""
    small = np.flatnonzero(found.wire_bytes <= SMALL)
    if not len(small):
        return (
            None,
            f"latency {DEFAULT_STEP_NS:,.0f} ns a step: no measurement, a default; no transfer of up to {SMALL:,} "
            "bytes was recorded",
        )
    took, steps = found.took_ns, found.steps
    least = int(small[np.argmin(took[small] / steps[small])])
    step = float(took[least] / steps[least])
    return step, (
        f"latency {step:,.0f} ns a step: the least of {len(small):,} transfers of up to {SMALL:,} bytes, "
        f"{_told(found, least)} in {took[least] / 1e3:,.1f} us, {steps[least]} steps"
    )


def _bandwidth(found: Transfers, step_ns: float | None) -> tuple[float | None, str]:
    """Return bytes a second, None where they were not measured, and where that is from."""
    wire, took = found.wire_bytes, found.took_ns
    late: F64 = found.steps.astype(np.float64) * (step_ns or 0.0)
    usable = (wire >= LARGE) & (took > 2 * late)
    if usable.any():
        most = np.flatnonzero(usable & (wire >= wire[usable].max() / 4))
        rate = float(np.median(wire[most] / (took[most] - late[most])) * 1e9)
        types = ", ".join(sorted({_type(int(t)) for t in found.type[most]}))
        return rate, (
            f"bandwidth {rate / 1e9:,.2f}e9 bytes/s: median bus bandwidth, latency taken off, of the largest "
            f"{len(most):,} "
            f"transfers, {wire[most].min():,.0f} to {wire[most].max():,.0f} bytes on the wire, {types}"
        )
    default = f"bandwidth {DEFAULT_BYTES_PER_S / 1e9:g}e9 bytes/s: no measurement, a default"
    if not len(wire):
        return None, f"{default}; no collective or message between recorded ranks"
    largest = int(np.argmax(wire))
    rest = took[largest] - late[largest]
    if wire[largest] >= LARGE:
        return None, f"{default}; transfers of {wire[largest]:,.0f} bytes took little more than their latency"
    hint = (
        f"; --bandwidth {wire[largest] / rest:.3g} plays those as recorded, and is wrong for larger ones"
        if rest > 0
        else ""
    )
    return None, f"{default}; recorded transfers are too small, {wire[largest]:,.0f} bytes on the wire at most{hint}"


def _block(found: Transfers, groups: Mapping[int, Sequence[int]], world: int) -> int | None:
    """Return the size of the blocks of neighbours that fill the world, each a communicator, with faster links inside;
    the largest such.
    """
    blocks = {tuple(sorted(groups[g])) for g in np.unique(found.group).tolist() if g in groups}
    for size in (s for s in range(world // 2, 1, -1) if world % s == 0):
        if not all(tuple(range(a, a + size)) in blocks for a in range(0, world, size)):
            continue
        sides = (take(found, _within(found, groups, size, inside=inside)) for inside in (True, False))
        inside, across = (_bandwidth(side, _latency(side)[0])[0] for side in sides)
        if inside is not None and across is not None and inside > FASTER * across:
            return size
    return None


def _within(found: Transfers, groups: Mapping[int, Sequence[int]], block: int, *, inside: bool) -> Bool:
    """Return the transfers of communicators whose ranks are all of one block, or are not."""
    used, which = numbered_values(found.group)
    across = np.array([g not in groups or len({r // block for r in groups[g]}) > 1 for g in used.tolist()], np.bool_)[
        which
    ]
    within: Bool = (across != inside) & (found.group != MESSAGES)
    return within


def _told(found: Transfers, i: int) -> str:
    where = "" if found.type[i] == NOWHERE else f" over {found.members[i]} ranks"
    return f"{_type(int(found.type[i]))} of {found.size_bytes[i]:,.0f} bytes{where}"


def _type(number: int) -> str:
    return "message" if number == NOWHERE else CollectiveType(number).name
