"""Convert gathered columns to the sorted tables of ``model.Trace``. O(n log n); each column is copied once.

Ranges are distinguished from ops where a recording has both in one category. PyTorch says so by category since 2021
(``RecordScope::USER_SCOPE`` is written as ``user_annotation``). Before, ``ProfilerStep#N``, ``Optimizer.*``,
``enumerate(DataLoader)#*`` and what users named by ``record_function`` stood among the ops, as ``Operator``. A thread
that is idle inside a range may sleep, inside an op it may not, so that which of the two it is decides what threads wait
for. A recording mixes the two where no category says annotation, and its categories are old ones (``Operator``) or
PyTorch's own ranges are among its ops.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.model import I32, I64, NOWHERE, Bool, CallRows, DeviceMemory, DeviceRows, FlowRows, HostRows, SyncRows
from graphlink.patterns import fits
from graphlink.read.columns import MAX_NS, MISSING, Parts, Strings, ints, to_int_or_none
from graphlink.read.kineto_rows import Event
from graphlink.tables import largest, lookup, marked, successive

# Ranges in any recording:
# names that PyTorch's profiler, optimizers, data loaders and process groups give (profiler.py, optimizer.py,
# dataloader.py, Work.cpp).
RANGE: Final = re.compile(
    r"ProfilerStep\s?#\d+|Optimizer\.\w+#.*|enumerate\(DataLoader\)#.*|(?:nccl|gloo|mpi|ucc|xccl):\w+"
)
# Ops of the dispatcher and nodes of autograd: ``aten::add``, ``torch::autograd::AccumulateGrad``, ``ReluBackward1``.
_OP: Final = re.compile(r".*::.*|\w*Backward\d*|record_param_comms", re.DOTALL)
_IDENTIFIER: Final = re.compile(r"[\w.]+")  # as ops, autograd.Function classes and generated kernels are named
_NO_INPUTS: Final = ("", "[]")


def unnamed_ranges(name: I32, strings: Sequence[str], shapes: I32, numbered: Bool, around: Bool) -> Bool:
    """Return which rows are ranges by what they lack, in a recording that mixes ranges and ops.

    Such a row's name is no operator's or autograd node's, it has neither inputs nor a number of autograd
    (``numbered``), which ``record_function`` never has, and its name is no identifier or another row of its thread runs
    inside it (``around``).
    """
    nothing = np.fromiter((text in _NO_INPUTS for text in strings), np.bool_, len(strings))
    bare = nothing[shapes] & ~numbered & ~fits(_OP, strings)[name]
    return bare & (~fits(_IDENTIFIER, strings)[name] | around)


def around_others(start_ns: I64, end_ns: I64, tid: I64) -> Bool:
    """Return whether the next row of a row's thread, by start and then the longest first, lies inside it."""
    before, after = successive(np.lexsort((-end_ns, start_ns, tid)), tid)
    return marked(len(tid), before[end_ns[after] <= end_ns[before]])


MAX_SPAN_NS = 1 << 53  # 104 days: sums of times in float64 are exact below
_TIMES = ("start_ns", "end_ns", "ns")
MEMORY: Final = "[memory]"  # rows that profile_memory=True adds
_CPU: Final = 0  # a device type of c10
_OVERLOAD: Final = re.compile(r"(\w+::\w+)\.\w+")


def add_base(tables: Iterable[Parts], base_ns: int, path: str) -> None:
    """Add the base of a recording to all times of its ``tables``, in place.

    Raises:
        InputError: a time is then beyond 2**62 ns.
    """
    for column in (parts.seen(name) for parts in tables for name in _TIMES):
        if len(column) and max(abs(int(column.min()) + base_ns), abs(int(column.max()) + base_ns)) >= MAX_NS:
            raise InputError(
                "an event's time plus baseTimeNanoseconds is beyond 2**62 ns", path=path, todo="record again"
            )
        column += base_ns


def name_without_overload(host: Parts, strings: Strings) -> None:
    """Name ops as everywhere else, in place: ``capture_overload_names`` makes ``aten::sum`` to
    ``aten::sum.dim_IntList``, in Kineto alone."""
    name = host.seen("name")
    known = tuple(strings)
    ops = np.flatnonzero(~host.seen("annotation").astype(np.bool_))
    numbers, code = np.unique(name[ops], return_inverse=True)
    plain = [strings[m[1]] if (m := _OVERLOAD.fullmatch(known[number])) else number for number in numbers.tolist()]
    name[ops] = np.array(plain, name.dtype)[code]


def put_on_their_threads(calls: Parts, host: Parts) -> int:
    """Put calls on the thread whose op made them, in place, and return how many: CUPTI knows a thread by a handle that
    a later thread may get, and Kineto then writes the number of the earlier one (PyTorch 2.11).

    Such a call begins after the last row of its thread, inside the op that its ``External id`` names. The other calls
    of that thread after its end go with the nearest of these in time. O(n log n).
    """
    op = lookup(host.column("external"), calls.column("external"))
    if not calls.count or not host.count:
        return 0
    start_ns, tid, op_tid, op_end_ns = calls.seen("start_ns"), calls.seen("tid"), host.seen("tid"), host.seen("end_ns")
    threads, place = np.unique(op_tid, return_inverse=True)
    last_ns = largest(len(threads), place, op_end_ns, MISSING)
    at = np.minimum(np.searchsorted(threads, tid), len(threads) - 1)
    late = (threads[at] == tid) & (start_ns > last_ns[at])
    inside = (op != NOWHERE) & (host.seen("start_ns")[op] <= start_ns) & (calls.seen("end_ns") <= op_end_ns[op])
    moved = late & inside
    for thread in np.unique(tid[moved]).tolist():
        rows, known = np.flatnonzero(late & (tid == thread)), np.flatnonzero(moved & (tid == thread))
        known = known[np.argsort(start_ns[known], kind="stable")]
        after = np.searchsorted(start_ns[known], start_ns[rows])
        later, earlier = known[np.minimum(after, len(known) - 1)], known[np.maximum(after - 1, 0)]
        nearer = np.abs(start_ns[rows] - start_ns[earlier]) <= np.abs(start_ns[later] - start_ns[rows])
        tid[rows] = op_tid[op[np.where(nearer, earlier, later)]]
        moved[rows] = True
    return int(np.count_nonzero(moved))


def leave_out_untimed(tables: Iterable[Parts]) -> int:
    """Leave out rows without a time, in place, and return how many: Kineto writes 0 for start and length of what CUPTI
    gave no time (device work and calls of the warm-up, where counters of the GPU are recorded).

    They are such rows only where all others are further from 0 than from each other.
    """
    untimed = {parts: (parts.seen("start_ns") == 0) & (parts.seen("end_ns") == 0) for parts in tables if parts.count}
    if not any(rows.any() for rows in untimed.values()):
        return 0
    others = np.concatenate([parts.seen(name)[~rows] for parts, rows in untimed.items() for name in _TIMES[:2]])
    if not len(others) or int(np.abs(others).min()) <= int(others.max()) - int(others.min()):
        return 0
    return sum(parts.keep(~rows) for parts, rows in untimed.items())


def refuse_span(path: str, tables: Sequence[HostRows | CallRows | DeviceRows | SyncRows], lanes: int) -> None:
    """Refuse events that lie too far apart, as one with a damaged time does from all others.

    Later stages put all ``lanes`` (threads, streams) one behind the other on one int64 time axis. Raises InputError.
    """
    there = [t for t in tables if len(t.start_ns)]
    if not there:
        return
    first_ns, last_ns = min(int(t.start_ns.min()) for t in there), max(int(t.end_ns.max()) for t in there)
    span_ns = last_ns - first_ns
    if span_ns < MAX_SPAN_NS and (span_ns + 1) * (lanes + 1) < MAX_NS:
        return
    raise InputError(
        f"its events lie {span_ns / 86_400e9:,.1f} days apart, more than one recording can last",
        path=path,
        where=f"the first starts at {first_ns} ns, the last ends at {last_ns} ns, baseTimeNanoseconds included",
        todo="remove the event with the wrong ts or dur, or record again",
    )


def host_rows(parts: Parts, strings: Sequence[str], *, old: bool) -> HostRows:
    """Return host rows in order, with ranges distinguished from ops. ``old``: rows of category ``Operator`` are among
    them.
    """
    rows = parts.table(
        HostRows, np.lexsort((parts.seen("order"), -parts.seen("end_ns"), parts.seen("start_ns"))), apart=None
    )
    own = fits(RANGE, strings)[rows.name]
    mixed = not rows.annotation.any() and (old or own.any())
    annotation = rows.annotation | own
    if mixed:
        numbered = (rows.seq_id >= 0) | (rows.fw_tid > 0)
        around = around_others(rows.start_ns, rows.end_ns, rows.tid)
        annotation |= unnamed_ranges(rows.name, strings, rows.input_shapes, numbered, around)
    return replace(rows, annotation=annotation)


def by_start(parts: Parts, *, longest_first: bool = False) -> NDArray[np.intp]:
    """Return the order of rows by start; of those that start together, the shortest or longest first."""
    end_ns = parts.seen("end_ns")
    return np.lexsort((-end_ns if longest_first else end_ns, parts.seen("start_ns")))


def flow_rows(parts: Parts, left_out: Counter[str]) -> FlowRows:
    """Join flow starts to flow ends by id, in the order of the starts' ids. What has no partner or a second one is
    counted.
    """
    ns, ident, tid = parts.column("ns"), parts.column("ident"), parts.column("tid")
    end = parts.column("end", np.uint8)
    starts, ends = np.flatnonzero(end == 0), np.flatnonzero(end == 1)
    _, start_of, end_of = np.intersect1d(ident[starts], ident[ends], return_indices=True)
    left_out["fwdbwd without partner"] += len(ident) - 2 * len(start_of)
    forward, backward = starts[start_of], ends[end_of]
    return FlowRows(fwd_tid=tid[forward], fwd_ns=ns[forward], bwd_tid=tid[backward], bwd_ns=ns[backward])


class MemoryRows:
    """Take how much memory PyTorch's allocator held on each device: the largest of what its instant rows say."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.allocated: dict[int, int] = {}
        self.reserved: dict[int, int] = {}

    def add(self, rows: Sequence[Event]) -> None:
        """Count rows of devices that say how much is allocated and reserved. Linear."""
        args = [
            row.args for row in rows if row.name == MEMORY and row.args is not None and row.args.allocated is not None
        ]
        if not args:
            return
        columns = np.stack(
            [ints([getattr(a, name) for a in args]) for name in ("device_id", "device_type", "allocated", "reserved")]
        )
        device, _, allocated, reserved = columns[
            :, (columns[0] >= 0) & (columns[1] != _CPU) & (columns[2:] >= 0).all(axis=0)
        ]
        for number in np.unique(device).tolist():
            mine = device == number
            self.rows[number] = self.rows.get(number, 0) + int(np.count_nonzero(mine))
            for most, column in ((self.allocated, allocated), (self.reserved, reserved)):
                most[number] = max(most.get(number, 0), int(column[mine].max(initial=MISSING)))

    def found(self, devices: object) -> tuple[DeviceMemory, ...]:
        """Return what was counted, by device; ``devices``: ``deviceProperties`` of Kineto, which has the total."""
        described = [entry for entry in devices if isinstance(entry, dict)] if isinstance(devices, list) else []
        total: dict[Any, int | None] = {
            to_int_or_none(entry.get("id")): to_int_or_none(entry.get("totalGlobalMem")) for entry in described
        }
        return tuple(
            DeviceMemory(
                device=number,
                rows=rows,
                allocated_bytes=self.allocated[number],
                reserved_bytes=self.reserved[number],
                total_bytes=has if (has := total.get(number)) and has > 0 else None,
            )
            for number, rows in sorted(self.rows.items())
        )
