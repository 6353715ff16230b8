"""Names the process groups of gloo's rows by a Flight Recorder: a trace that has several names none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphlink.linking.communication import communication
from graphlink.model import NOWHERE, Linked
from graphlink.nccl.ops import op_side
from graphlink.nccl.read.records import Dump
from graphlink.nccl.sides import call_side, may_meet
from graphlink.read.columns import Strings
from graphlink.read.kinds import DumpKind
from graphlink.tables import in_order, tuples


def group_names(linked: Linked, dumps: Sequence[Dump]) -> dict[int, str]:
    """Return of host rows the group of the one entry that was made while a single op asked for a row. O(n log n).

    Both show the time of day of one host, and the entry is made in the op. What the two disagree on tells nothing.
    """
    recorders = [dump for dump in dumps if dump.kind is DumpKind.FLIGHT_RECORDER]
    codes, rank = Strings(), NOWHERE if linked.trace.rank is None else linked.trace.rank
    ops = op_side(linked, communication(linked), rank, codes)
    asked = np.flatnonzero(ops.asked_until_ns != NOWHERE)
    if not recorders or not len(asked):
        return {}
    calls = call_side(recorders, ops, rank, codes)
    asked = in_order(asked, ops.issued_ns)
    begun = np.searchsorted(ops.issued_ns[asked], calls.host_ns, side="right")
    over = np.searchsorted(np.sort(ops.asked_until_ns[asked]), calls.host_ns)
    call = np.flatnonzero((begun - over == 1) & (calls.host_ns > 0))
    op = asked[begun[call] - 1]
    fits = (calls.host_ns[call] <= ops.asked_until_ns[op]) & may_meet(calls, ops, call, op)
    call, op = call[fits], op[fits]
    alone = np.bincount(op, minlength=len(ops.group))[op] == 1
    of_lane = {
        k: recorders[lane.dump].communicators[lane.communicator].key
        for k, lane in enumerate(calls.lanes)
        if lane.communicator != NOWHERE
    }
    rows = tuples(ops.trace.row[op[alone]], calls.lane[call[alone]])
    return {row: of_lane[lane] for row, lane in rows if of_lane.get(lane)}
