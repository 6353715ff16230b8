"""Which unit of the trace each lane is, from pairs that are mostly right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.nccl.shift import Shift, Timeline, of_calls, shifted
from graphlink.nccl.sides import CallSide, Lane, OpSide
from graphlink.nccl.units import Unit, may_meet
from graphlink.read.nccl_kinds import DumpKind

MOSTLY: Final = 0.9  # of a lane's pairs that must be of one unit
CLEARLY: Final = 3  # times the pairs of another communicator that claims the same


def units_of(calls: CallSide, ops: OpSide, line: Timeline, shift: Shift) -> dict[int, Unit]:
    """Of each lane the unit that nearly all of its pairs under a shift are of; lanes without such a one, and rivals, are left out.

    Each lane is looked at alone: where a process has several ranks, their calls stand at nearly the same times. O(n log n).
    """
    found: dict[int, Unit] = {}
    met = np.zeros(len(calls.lanes), np.int64)
    lanes = calls.lane[line.call]
    for k in np.unique(lanes[shift.left]).tolist():
        own = of_calls(line, lanes == k)
        alone = shifted(own, shift.offset_ns, shift.reach_ns, lambda call, op: may_meet(calls, ops, call, op))
        op = own.op[alone.right]
        peer = ops.peer[op] if calls.lanes[k].pair else np.full(len(op), NOWHERE)
        every, count = np.unique(np.stack([ops.group[op], peer], axis=1), axis=0, return_counts=True)
        if len(op) and count.max() >= MOSTLY * len(op):
            found[k], met[k] = Unit(*every[count.argmax()].tolist()), count.max()
    for k in rivals(calls.lanes, found, met):
        del found[k]
    return found


def of_several_ranks(lanes: Sequence[Lane]) -> frozenset[int]:
    """Lanes of files in which a communicator has calls of several members: of one process that has several ranks.

    Its ranks call at nearly the same times, each in groups of its own at the same places, and nothing tells whose a communicator is.
    A Flight Recorder has global ranks.
    """
    members: dict[tuple[DumpKind, str], set[int]] = {}
    for lane in lanes:
        if lane.kind is not DumpKind.FLIGHT_RECORDER:
            members.setdefault((lane.kind, lane.key), set()).add(lane.member)
    kinds = {kind for (kind, _), of_key in members.items() if len(of_key) > 1}
    return frozenset(k for k, lane in enumerate(lanes) if lane.kind in kinds)


def rivals(lanes: Sequence[Lane], unit: Mapping[int, Unit], met: I64) -> list[int]:
    """Lanes that claim a unit which another communicator of their kind has clearly more pairs in; all of them where none has."""
    claims: dict[tuple[DumpKind, Unit], dict[str, list[int]]] = {}
    for k, one in unit.items():
        if lanes[k].communicator != NOWHERE:
            claims.setdefault((lanes[k].kind, one), {}).setdefault(lanes[k].key, []).append(k)
    found = []
    for by_key in claims.values():
        counts = {key: int(met[of_key].sum()) for key, of_key in by_key.items()}
        most = max(counts, key=lambda key: counts[key])
        clear = all(CLEARLY * count <= counts[most] for key, count in counts.items() if key != most)
        found += [k for key, of_key in by_key.items() if key != most or not clear for k in of_key]
    return found
