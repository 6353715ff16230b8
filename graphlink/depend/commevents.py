"""Waits of streams around communication, where no row records them: by the order of calls on one thread.

ProcessGroupNCCL (and RCCL's, and libraries built alike) orders its own stream by events on the thread that calls it
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ``syncStream`` and ``WorkNCCL::synchronizeStream``):

  before a launch   cudaEventRecord on the current stream, cudaStreamWaitEvent of the communication stream, launch: the communication
                    waits for what the current stream held at the record
  wait()            cudaStreamWaitEvent of the current stream on the event recorded behind the launch: what the thread launches next waits
                    for that communication

The current stream of a thread is where it launches what is no communication. A wait inside the op that launches
communication is of the first kind; one behind its launch is NCCL's own; one outside is of the second. Where the
recording has the sequence number with which wait() was called, that names the work. Else, of works not waited for yet
on one stream, the k-th wait is for the k-th at least, since stream order implies those before: so the oldest is taken.

Every reading is checked against the recorded times, in groups (same streams, same name of op): where a source ended
after its target started the group was misread, and more than 1 such in 20 that could show it drops the group. A group
whose current stream or work is not sure by calls alone (several compute streams, several communication streams with
open works) needs 2 targets that started right after their sources, too; so does one without an op of a communication
library around its calls, as those may be the user's own waits, unless waits and works come out even: every wait found a
work open, and none is left.
"""  # noqa: E501

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

import msgspec
import numpy as np

from graphlink.linking.call_roles import Role, call_order
from graphlink.linking.launch import rounding_ns
from graphlink.model import I64, NOWHERE, U8, Bool, Communication, Linked, SyncKind
from graphlink.spans import Neighbours
from graphlink.tables import codes, in_order, marked, spread, successive, tuples

RIGHT_AFTER_NS: Final = 30_000
BORNE_OUT: Final = 2
SHOWN_FOR_ONE: Final = 20
ROUNDS: Final = 12
_LIBRARY: Final = ("record_param_comms", "c10d::", "_c10d_functional::", "nccl:")


class _Trust(IntEnum):
    SURE = 0  # by the order of calls alone
    IF_EVEN = 1  # ... if as many waits as works are seen
    IF_SHOWN = 2


_Group = tuple[
    str, int, int, int, str, _Trust
]  # kind of wait, streams before, after and of the target, name of the op around the call


class StreamWait(msgspec.Struct, frozen=True):
    """A wait of a stream: from ``call`` on the next op of the stream of device row ``target`` waits for device row
    ``source``.

    With ``whole`` it waits for all that the stream of ``source`` holds then, and waits for itself. What is in one
    ``group`` is believed or dropped together.
    """

    call: int
    source: int
    target: int
    whole: bool
    group: _Group


def stream_waits(linked: Linked, comm: Communication, role: U8) -> list[StreamWait]:
    """Read waits between compute and communication streams that the order of calls tells.

    None in a recording whose rows tell what stream waits wait for: there a wait without a row is one on a stream
    without work. Cost: O(n log n), and a few steps of Python for each wait call and communication launch.
    """
    syncs = linked.trace.syncs
    told = bool(((syncs.kind == SyncKind.STREAM_WAIT) & syncs.record_known).any())
    if told or not len(comm.device_row) or not (role == Role.STREAM_WAIT).any():
        return []
    reader = _CallReader(linked, comm, role)
    dropped: set[_Group] = set()
    for _ in range(ROUNDS):  # works are told apart by counting waits, so what is no wait for one must not count
        read, even = reader.read(dropped)
        wrong = reader.misread(read, even)
        if not wrong:
            break
        least = max(group[-1] for group in wrong)  # those trusted least may be why others are wrong
        dropped |= {group for group in wrong if group[-1] == least}
    return [r for r in read if r.group not in wrong]


class _Works(msgspec.Struct):
    """Communication that was launched and not waited for yet, oldest first, by stream."""

    of_stream: dict[int, deque[int]] = msgspec.field(default_factory=dict)
    open: dict[int, int] = msgspec.field(default_factory=dict)  # stream of each
    surplus: int = 0  # waits that found none

    @property
    def even(self) -> bool:
        return not self.surplus and not any(self.of_stream.values())

    def launched(self, stream: int, row: int) -> None:
        self.of_stream.setdefault(stream, deque()).append(row)
        self.open[row] = stream

    def taken(self, works: deque[int], until: int) -> int:
        """Remove works, oldest first, up to ``until``, the one that is waited for: a wait for it implies those before
        it.
        """
        while True:
            work = works.popleft()
            del self.open[work]
            if work == until:
                return work

    def awaited(self, last: int, stream_of_last: int) -> tuple[deque[int], bool] | None:
        """Return (works, sure) that a wait is for: those of the only stream; of several of that of the thread's last
        launch, not surely.
        """
        open_ = [works for works in self.of_stream.values() if works]
        self.surplus += not open_
        if len(open_) == 1:
            return open_[0], True
        mine = self.of_stream.get(stream_of_last)
        return (mine, False) if mine and last in mine else None


def _around(call: I64, asked: I64, tid: I64, rank: I64) -> tuple[I64, I64]:
    """Return (before, after): of the rows ``call`` those that come next to each of ``asked`` on its thread, NOWHERE
    where there is none.

    ``rank``: of each call, its place in the order in which they began.
    """
    near, padded = Neighbours.of(tid[call], rank[call]), np.append(call, NOWHERE)
    return padded[near.before(tid[asked], rank[asked])], padded[near.since(tid[asked], rank[asked])]


class _WaitCall(msgspec.Struct, frozen=True):
    """A cudaStreamWaitEvent in its place. Streams are those of the thread's launches before and after it, communication
    aside.

    ``launch``: the communication op launched next, by the op that makes the wait, else NOWHERE; ``behind``: NCCL's own,
    after the launch. ``at``: the call that recorded for it; ``held``: what the stream before (else after) held then.
    ``next``: the first op enqueued on the stream after from here on. ``last``: the op that the thread launched last.
    ``steady``: the thread computes on one stream only.
    """

    call: int
    launch: int
    behind: bool
    before: int
    after: int
    at: int
    held: int
    next: int
    last: int
    steady: bool
    name: str
    number: int | None  # of the work, where the recording has it


class _CallReader:
    """Columns that reading needs, by call and by stream; ``read`` may be asked again with groups left out."""

    def __init__(self, linked: Linked, comm: Communication, role: U8) -> None:
        calls, device = linked.trace.calls, linked.trace.device
        self.linked, self.rank = linked, call_order(linked.trace.calls)
        self.stream = codes(device.device, device.stream)
        rows = np.flatnonzero(linked.device_call != NOWHERE)[::-1]
        self.first_op: I64 = spread(len(calls.start_ns), linked.device_call[rows], rows)
        by = linked.device_call[comm.device_row]
        self.communicates = marked(len(calls.start_ns), by[by != NOWHERE])
        launch_rank = np.where(linked.device_call == NOWHERE, -1, self.rank[linked.device_call])
        self.on_stream = Neighbours.of(self.stream, launch_rank)
        earlier, later = successive(self.on_stream.row, self.stream)
        self.before: I64 = spread(len(device.start_ns), later, earlier)
        numbered = np.flatnonzero(~comm.ops.on_host & (comm.ops.seq != NOWHERE))
        number, first, uses = np.unique(comm.ops.seq[numbered], return_index=True, return_counts=True)
        rows = comm.ops.row[numbered[first]].tolist()
        self.numbered = {
            n: row for n, row, count in zip(number.tolist(), rows, uses.tolist(), strict=True) if count == 1
        }
        self.several = set(number[uses > 1].tolist())  # several communicators use it, or P2P does
        self.awaited = comm.awaited if len(number) else {}
        wait = np.flatnonzero(role == Role.STREAM_WAIT)
        self.waits = self._in_place(in_order(wait, self.rank), np.flatnonzero(role == Role.RECORD))

    def _in_place(self, wait: I64, record: I64) -> list[_WaitCall]:
        linked, tid = self.linked, self.linked.trace.calls.tid
        thread = codes(tid)
        launching = np.flatnonzero(self.first_op != NOWHERE)
        compute = launching[~self.communicates[launching]]
        last, following = _around(launching, wait, tid, self.rank)
        before, after = (self._stream_of(c) for c in _around(compute, wait, tid, self.rank))
        recorded, _ = _around(record, wait, tid, self.rank)
        # older recordings leave records out
        at = np.where(
            (recorded != NOWHERE) & (self.rank[recorded] > np.where(last == NOWHERE, -1, self.rank[last])),
            recorded,
            wait,
        )
        used = np.unique(thread[compute] * (len(self.stream) + 1) + self._stream_of(compute))  # streams of each thread
        threads, one = np.unique(used // (len(self.stream) + 1), return_counts=True)
        op, names, strings = linked.call_op, linked.trace.host.name, linked.trace.strings

        def own(launch: I64) -> Bool:
            """Tell whether the wait is part of the op that launches this, and that is communication."""
            return np.asarray((launch != NOWHERE) & self.communicates[launch] & (op[wait] == op[launch]))

        columns = (
            wait,
            np.where(own(following), self.first_op[following], NOWHERE),
            own(last),
            before,
            after,
            at,
            self.on_stream.before(np.where(before == NOWHERE, after, before), self.rank[at]),
            self.on_stream.since(after, self.rank[wait]),
            np.where(last == NOWHERE, NOWHERE, self.first_op[last]),
            np.isin(thread[wait], threads[one == 1]),
        )
        text = ["" if row == NOWHERE else strings[names[row]] for row in op[wait].tolist()]
        number = [self.awaited.get(row) for row in op[wait].tolist()]
        return [_WaitCall(*row) for row in zip(*(c.tolist() for c in columns), text, number, strict=True)]

    def _stream_of(self, launch: I64) -> I64:
        """Return the stream that a call launches on, NOWHERE for NOWHERE."""
        return np.where(launch == NOWHERE, NOWHERE, self.stream[self.first_op[launch]])

    def read(self, dropped: set[_Group]) -> tuple[list[StreamWait], bool]:
        """Return (waits as read, whether they come out even), by order of calls; those of ``dropped`` groups neither
        count nor show.
        """
        works, out, seen = _Works(), list[StreamWait](), set[int]()
        communicating = np.flatnonzero(self.communicates)
        launched = in_order(communicating, self.rank)
        launches = iter(
            [
                *tuples(self.rank[launched], self.first_op[launched]),
                (len(self.rank), NOWHERE),
            ]
        )
        rank, op = next(launches)
        for wait, wait_rank in zip(self.waits, self.rank[[w.call for w in self.waits]].tolist(), strict=True):
            while rank < wait_rank:
                works.launched(int(self.stream[op]), op)
                rank, op = next(launches)
            read: StreamWait | None = None
            if wait.launch != NOWHERE:
                if wait.launch not in seen:  # the first of several: NCCL's own come after it
                    seen.add(wait.launch)
                    read = self._before_launch(wait)
            elif not wait.behind:
                read = self._wait(wait, works, dropped)
            if read is not None and read.group not in dropped:
                out.append(read)
        return out, works.even and rank == len(self.rank)

    def _before_launch(self, wait: _WaitCall) -> StreamWait | None:
        if wait.held == NOWHERE or not self._apart(wait.held, wait.launch):
            return None
        sure = wait.name.startswith(_LIBRARY) and (wait.steady or wait.before == wait.after)
        streams = (int(self.stream[wait.held]), wait.after, int(self.stream[wait.launch]))
        return StreamWait(
            wait.at,
            wait.held,
            wait.launch,
            True,
            ("launch", *streams, wait.name, _Trust.SURE if sure else _Trust.IF_SHOWN),
        )

    def _wait(self, wait: _WaitCall, works: _Works, dropped: set[_Group]) -> StreamWait | None:
        named = NOWHERE if wait.number is None else self.numbered.get(wait.number, NOWHERE)
        if named in works.open:
            open_, sure = works.of_stream[works.open[named]], True
        elif wait.number is not None and wait.number not in self.several:
            return None  # launched before the recording, or waited for before
        else:
            named = NOWHERE
            found = works.awaited(wait.last, NOWHERE if wait.last == NOWHERE else int(self.stream[wait.last]))
            if found is None:
                return None
            open_, sure = found
        trust = _Trust.SURE if wait.name.startswith(_LIBRARY) else _Trust.IF_EVEN
        if not sure or wait.before not in (NOWHERE, wait.after):
            trust = _Trust.IF_SHOWN
        group = ("wait", wait.before, wait.after, wait.after, wait.name, trust)
        if group in dropped:
            return None
        work = works.taken(open_, named if named != NOWHERE else open_[0])
        if wait.next == NOWHERE or not self._apart(work, wait.next):
            return None
        return StreamWait(wait.call, work, wait.next, False, group)

    def _apart(self, a: int, b: int) -> bool:
        """Tell whether both are on one device, but not on one stream."""
        device = self.linked.trace.device
        return bool(device.device[a] == device.device[b] and self.stream[a] != self.stream[b])

    def misread(self, read: list[StreamWait], even: bool) -> set[_Group]:
        """Return groups that the recorded times contradict, or do not bear out although they have to."""
        if not read:
            return set()
        device, calls = self.linked.trace.device, self.linked.trace.calls
        source, target = np.array([r.source for r in read]), np.array([r.target for r in read])
        launched_ns = calls.end_ns[self.linked.device_call[target]]
        before = self.before[target]
        free_ns = np.where(before == NOWHERE, launched_ns, device.end_ns[before])
        ended_ns, slack_ns = device.end_ns[source], rounding_ns(self.linked.trace)
        contradicted = ended_ns > device.start_ns[target] + slack_ns
        held = ~contradicted & (
            ended_ns > np.maximum(launched_ns, free_ns)
        )  # of waits that blocked nothing the times show nothing
        after = held & (device.start_ns[target] - ended_ns <= RIGHT_AFTER_NS)
        shown: dict[_Group, list[int]] = {}
        for r, *of_it in zip(read, contradicted.tolist(), held.tolist(), after.tolist(), strict=True):
            shown[r.group] = [a + b for a, b in zip(shown.get(r.group, [0, 0, 0]), of_it, strict=True)]
        doubtful = _Trust.IF_SHOWN if even else _Trust.IF_EVEN
        return {
            group
            for group, (no, yes, right) in shown.items()
            if no * SHOWN_FOR_ONE > yes or (group[-1] >= doubtful and right < BORNE_OUT)
        }
