"""Which stream waits for what around communication, where no row tells: by the order of calls on one thread.

ProcessGroupNCCL (and RCCL's, and libraries built alike) orders its own stream by events on the thread that calls it
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ``syncStream`` and ``WorkNCCL::synchronizeStream``):

  before a launch   cudaEventRecord on the current stream, cudaStreamWaitEvent of the communication stream, launch: the communication
                    waits for what the current stream held at the record
  wait()            cudaStreamWaitEvent of the current stream on the event recorded behind the launch: what the thread launches next waits
                    for that communication

The current stream of a thread is where it launches what is no communication. A wait inside the op that launches communication is of the
first kind; one behind its launch is NCCL's own; one outside is of the second. Of works not waited for yet on one stream, the k-th wait
is for the k-th at least, since stream order implies those before: so the oldest is taken.

Every reading is held against the recorded times, in groups (same streams, same name of op): where a source ended after its target
started the group was misread, and more than 1 such in 20 that could show it drops the group. A group whose current stream or work is
not sure by calls alone (several compute streams, several communication streams with open works) needs 2 targets that started right after
their sources, too; so does one without an op of a communication library around its calls, as those may be the user's own waits, unless
waits and works come out even: every wait found a work open, and none is left.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from graphlink.depend.calls import Role
from graphlink.link.launch import rounding_ns
from graphlink.model import I32, I64, NOWHERE, U8, Bool, Communication, Linked, SyncKind

RIGHT_AFTER_NS: Final = 30_000
BORNE_OUT: Final = 2
SHOWN_FOR_ONE: Final = 20
ROUNDS: Final = 12
_LIBRARY: Final = ("record_param_comms", "c10d::", "_c10d_functional::", "nccl:")


@dataclass(frozen=True, slots=True)
class StreamWaits:
    """From ``call`` on the next op of the stream of device row ``on`` waits for device row ``source``; with ``whole`` for all that the
    stream of ``source`` holds then, and waits for itself.
    """

    call: I32
    on: I32
    source: I32
    whole: Bool

    @staticmethod
    def none() -> StreamWaits:
        nothing = np.zeros(0, np.int32)
        return StreamWaits(nothing, nothing, nothing, np.zeros(0, np.bool_))


class _Trust(IntEnum):
    SURE = 0  # by the order of calls alone
    IF_EVEN = 1  # ... if as many waits as works are seen
    IF_SHOWN = 2


_Group = tuple[str, int, int, int, str, _Trust]  # kind of wait, streams before, after and of the target, name of the op around the call


@dataclass(frozen=True, slots=True)
class _Read:
    """One wait as read: ``target`` is the op that waits. What is in one ``group`` is believed or dropped together."""

    call: int
    source: int
    target: int
    whole: bool
    group: _Group


def call_order(linked: Linked) -> I64:
    """Place of each call in the order in which calls began (ties, as in integer us: by correlation id)."""
    calls = linked.trace.calls
    out = np.empty(len(calls.start_ns), np.int64)
    out[np.lexsort((calls.correlation, calls.start_ns))] = np.arange(len(out))
    return out


def stream_waits(linked: Linked, comm: Communication, role: U8) -> StreamWaits:
    """Waits between compute and communication streams that the order of calls tells.

    None in a recording whose rows tell what stream waits wait for: there a wait without a row is one on a stream without work.
    Cost: O(n log n), and a few steps of Python for each wait call and communication launch.
    """
    syncs = linked.trace.syncs
    told = bool(((syncs.kind == SyncKind.STREAM_WAIT) & syncs.record_known).any())
    if told or not len(comm.device_row) or not (role == Role.STREAM_WAIT).any():
        return StreamWaits.none()
    reader = _Reader(linked, comm, role)
    dropped: set[_Group] = set()
    for _ in range(ROUNDS):  # works are told apart by counting waits, so what is no wait for one must not count
        read, even = reader.read(dropped)
        wrong = reader.misread(read, even)
        if not wrong:
            break
        least = max(group[-1] for group in wrong)  # those trusted least may be why others are wrong
        dropped |= {group for group in wrong if group[-1] == least}
    read = [r for r in read if r.group not in wrong]
    table = np.array([(r.call, r.target, r.source, r.whole) for r in read], np.int32).reshape(-1, 4)
    return StreamWaits(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.bool_))


@dataclass(slots=True)
class _Works:
    """Communication that was launched and not waited for yet, oldest first, by stream."""

    of_stream: dict[int, deque[int]] = field(default_factory=dict)
    surplus: int = 0  # waits that found none

    @property
    def even(self) -> bool:
        return not self.surplus and not any(self.of_stream.values())

    def launched(self, stream: int, row: int) -> None:
        self.of_stream.setdefault(stream, deque()).append(row)

    def awaited(self, last: int, stream_of_last: int) -> tuple[deque[int], bool] | None:
        """(works of the stream, sure) that a wait is for: the only stream's; of several that of the thread's last launch, not surely."""
        open_ = [works for works in self.of_stream.values() if works]
        self.surplus += not open_
        if len(open_) == 1:
            return open_[0], True
        mine = self.of_stream.get(stream_of_last)
        return (mine, False) if mine and last in mine else None


class _Reader:
    """Columns that reading needs, by call and by stream; ``read`` may be asked again with groups left out."""

    def __init__(self, linked: Linked, comm: Communication, role: U8) -> None:
        trace = linked.trace
        calls, device = trace.calls, trace.device
        self.linked, self.rank, self.role = linked, call_order(linked), role
        (_, number), (streams, stream) = (np.unique(column, return_inverse=True) for column in (device.device, device.stream))
        self.stream: I64 = (number * len(streams) + stream).astype(np.int64)
        self.first_op = np.full(len(calls.start_ns), NOWHERE, np.int64)
        rows = np.flatnonzero(linked.device_call != NOWHERE)[::-1]
        self.first_op[linked.device_call[rows]] = rows
        is_comm = np.zeros(len(calls.start_ns), np.bool_)
        by = linked.device_call[comm.device_row]
        is_comm[by[by != NOWHERE]] = True
        self.communicates: Bool = is_comm
        launch_rank = np.where(linked.device_call == NOWHERE, -1, self.rank[linked.device_call])
        self.by_stream = np.lexsort((device.start_ns, launch_rank, self.stream))
        self.key = self.stream[self.by_stream] * (len(calls.start_ns) + 1) + launch_rank[self.by_stream]
        self.before = np.full(len(device.start_ns), NOWHERE, np.int64)
        same = self.stream[self.by_stream[1:]] == self.stream[self.by_stream[:-1]]
        self.before[self.by_stream[1:][same]] = self.by_stream[:-1][same]
        launching = np.flatnonzero(self.first_op != NOWHERE)
        waiting = np.flatnonzero(role == Role.STREAM_WAIT)
        threads = np.unique(calls.tid[waiting])
        launching = launching[np.isin(calls.tid[launching], threads) | is_comm[launching]]
        self.waiting = waiting[np.argsort(self.rank[waiting], kind="stable")]
        self.communicating = launching[is_comm[launching]]
        self.around = {int(t): _Thread.of(self, launching[calls.tid[launching] == t], int(t)) for t in threads.tolist()}

    def name_of_op(self, call: int) -> str:
        row = int(self.linked.call_op[call])
        return "" if row == NOWHERE else self.linked.trace.strings[self.linked.trace.host.name[row]]

    def last_of_stream(self, stream: int, call: int) -> int:
        """The last op enqueued on a stream before a call, NOWHERE where there is none."""
        at = int(np.searchsorted(self.key, stream * (len(self.rank) + 1) + int(self.rank[call]))) - 1
        return int(self.by_stream[at]) if at >= 0 and self.stream[self.by_stream[at]] == stream else NOWHERE

    def next_of_stream(self, stream: int, call: int) -> int:
        at = int(np.searchsorted(self.key, stream * (len(self.rank) + 1) + int(self.rank[call])))
        return int(self.by_stream[at]) if at < len(self.key) and self.stream[self.by_stream[at]] == stream else NOWHERE

    def read(self, dropped: set[_Group]) -> tuple[list[_Read], bool]:
        """All waits as read, by order of calls, and whether they come out even; those of ``dropped`` groups neither count nor show."""
        works = _Works()
        out: list[_Read] = []
        events = np.concatenate([self.waiting, self.communicating])
        prologues: set[int] = set()
        for call in events[np.argsort(self.rank[events], kind="stable")].tolist():
            if self.communicates[call]:
                op = int(self.first_op[call])
                works.launched(int(self.stream[op]), op)
                continue
            thread = self.around[int(self.linked.trace.calls.tid[call])]
            last, following = thread.launches_around(int(self.rank[call]))
            if self._of_launch(call, following):
                if following not in prologues:  # the first of several: NCCL's own come after it
                    prologues.add(following)
                    read = self._before_launch(thread, call, following)
                    if read is not None and read.group not in dropped:
                        out.append(read)
            elif not self._of_launch(call, last):
                read = self._wait(thread, call, last, works, dropped)
                if read is not None:
                    out.append(read)
        return out, works.even

    def _of_launch(self, call: int, launch: int) -> bool:
        """Is a wait call part of the op that launches communication?"""
        if launch == NOWHERE or not self.communicates[launch]:
            return False
        return bool(self.linked.call_op[call] == self.linked.call_op[launch])

    def _before_launch(self, thread: _Thread, call: int, launch: int) -> _Read | None:
        at = thread.recorded_before(int(self.rank[call]), call)
        before, after = thread.current(int(self.rank[call]))
        stream = before if before != NOWHERE else after
        target = int(self.first_op[launch])
        source = NOWHERE if stream in (NOWHERE, int(self.stream[target])) else self.last_of_stream(stream, at)
        if source == NOWHERE or not self._one_device(source, target):
            return None
        name = self.name_of_op(call)
        sure = name.startswith(_LIBRARY) and (thread.one_stream or before == after)
        trust = _Trust.SURE if sure else _Trust.IF_SHOWN
        return _Read(at, source, target, True, ("launch", stream, after, int(self.stream[target]), name, trust))

    def _wait(self, thread: _Thread, call: int, last: int, works: _Works, dropped: set[_Group]) -> _Read | None:
        before, stream = thread.current(int(self.rank[call]))
        target = NOWHERE if stream == NOWHERE else self.next_of_stream(stream, call)
        name = self.name_of_op(call)
        op = NOWHERE if last == NOWHERE else int(self.first_op[last])
        found = works.awaited(op, NOWHERE if op == NOWHERE else int(self.stream[op]))
        if found is None:
            return None
        trust = _Trust.SURE if name.startswith(_LIBRARY) else _Trust.IF_EVEN
        if not found[1] or before not in (NOWHERE, stream):
            trust = _Trust.IF_SHOWN
        group = ("wait", before, stream, stream, name, trust)
        if group in dropped:
            return None
        work = found[0].popleft()
        if target == NOWHERE or not self._one_device(work, target):
            return None
        return _Read(call, work, target, False, group)

    def _one_device(self, a: int, b: int) -> bool:
        device = self.linked.trace.device
        return bool(device.device[a] == device.device[b] and self.stream[a] != self.stream[b])

    def misread(self, read: list[_Read], even: bool) -> set[_Group]:
        """Groups that the recorded times contradict, or do not bear out although they have to."""
        if not read:
            return set()
        device, calls = self.linked.trace.device, self.linked.trace.calls
        source, target = np.array([r.source for r in read]), np.array([r.target for r in read])
        launched_ns = calls.end_ns[self.linked.device_call[target]]
        before = self.before[target]
        free_ns = np.where(before == NOWHERE, launched_ns, device.end_ns[before])
        ended_ns, slack_ns = device.end_ns[source], rounding_ns(self.linked.trace)
        contradicted = ended_ns > device.start_ns[target] + slack_ns
        held = ~contradicted & (ended_ns > np.maximum(launched_ns, free_ns))  # of waits that held nothing up the times say nothing
        after = held & (device.start_ns[target] - ended_ns <= RIGHT_AFTER_NS)
        shown: dict[_Group, list[int]] = {}
        for r, *of_it in zip(read, contradicted.tolist(), held.tolist(), after.tolist(), strict=True):
            shown[r.group] = [a + b for a, b in zip(shown.get(r.group, [0, 0, 0]), of_it, strict=True)]
        doubtful = _Trust.IF_SHOWN if even else _Trust.IF_EVEN
        return {
            group for group, (no, yes, right) in shown.items() if no * SHOWN_FOR_ONE > yes or (group[-1] >= doubtful and right < BORNE_OUT)
        }


@dataclass(frozen=True, slots=True)
class _Thread:
    """Launches of one thread in order, and where each stands among those that are no communication."""

    rank: I64
    call: I64
    compute_rank: I64
    compute_stream: I64
    record_rank: I64
    record: I64

    @staticmethod
    def of(reader: _Reader, launching: I64, tid: int) -> _Thread:
        launching = launching[np.argsort(reader.rank[launching], kind="stable")]
        compute = launching[~reader.communicates[launching]]
        record = np.flatnonzero((reader.role == Role.RECORD) & (reader.linked.trace.calls.tid == tid))
        record = record[np.argsort(reader.rank[record], kind="stable")]
        streams = reader.stream[reader.first_op[compute]]
        return _Thread(reader.rank[launching], launching, reader.rank[compute], streams, reader.rank[record], record)

    @property
    def one_stream(self) -> bool:
        return len(self.compute_stream) > 0 and bool((self.compute_stream == self.compute_stream[0]).all())

    def launches_around(self, rank: int) -> tuple[int, int]:
        """The launch calls before and after a place in the order, NOWHERE at the ends."""
        at = int(np.searchsorted(self.rank, rank))
        return int(self.call[at - 1]) if at else NOWHERE, int(self.call[at]) if at < len(self.call) else NOWHERE

    def current(self, rank: int) -> tuple[int, int]:
        """The streams that the thread launched on before and launches on after a place, communication aside."""
        at = int(np.searchsorted(self.compute_rank, rank))
        before = int(self.compute_stream[at - 1]) if at else NOWHERE
        return before, int(self.compute_stream[at]) if at < len(self.compute_stream) else NOWHERE

    def recorded_before(self, rank: int, call: int) -> int:
        """The cudaEventRecord between the last launch and a wait call, else (older recordings leave them out) the call itself."""
        at = int(np.searchsorted(self.record_rank, rank)) - 1
        launched = int(np.searchsorted(self.rank, rank)) - 1
        since = int(self.rank[launched]) if launched >= 0 else -1
        return int(self.record[at]) if at >= 0 and self.record_rank[at] > since else call
