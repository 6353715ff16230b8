"""The device work that every synchronisation waited for, by CUDA's own semantics.

A state machine over streams, events and calls. All calls of all threads are walked in order of their start (ties, as in
integer us: by correlation id, which CUPTI gives out as calls begin). The state is the last op enqueued on each (device,
stream), the ops that a stream's next op has to wait for, and what each awaited cudaEventRecord stood for when it was
made. The rules are those of the CUDA programming guide, "Streams" and "Events"; docs/edges.md lists them one by one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.depend.commevents import StreamWait
from graphlink.depend.recorded_on import Shown, by_effects, keeping, where_launched
from graphlink.depend.replays import Replays, between, replays
from graphlink.linking.call_roles import Role, call_order, roles
from graphlink.linking.clock_evidence import NOISE_NS
from graphlink.linking.launch import rounding_ns
from graphlink.model import I64, NOWHERE, U8, Bool, FoundBy, Linked, SyncKind, Waits
from graphlink.patterns import containing
from graphlink.spans import Neighbours
from graphlink.tables import (
    begins,
    concat,
    grouped,
    how_many,
    lookup,
    marked,
    numbered_rows,
    spread,
    successive,
    take,
    tuples,
)

EVENT_NS: Final = 30_000  # at most so long after what it waits for an op begins, or a call returns
BLOCKED_NS: Final = 3_000  # a call that takes longer has waited
# At one call in this order: a device may run records and waits as ops of the stream (MTIA). The op that records is not
# part of what is recorded, the one that waits is the first that is blocked.
_RECORD, _WAIT, _READ, _LAUNCH, _SYNC, _BARE = range(6)

# stream key -> (device row, FoundBy bits). One op a stream is enough: stream order implies the older ones.
Sources = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CudaWaits:
    """The waits that were found, and which of them are certain.

    ``told_call[c]``: rows say what call c waited for (perhaps nothing). ``told_op[k]``: the same for what device op k
    waited for. ``unplaced``: correlations of waits of a stream, or for a record of one, that nothing tells.
    """

    waits: Waits
    role: U8  # of every call
    call_rank: I64  # a call: its place in the order in which calls began
    launch_rank: I64  # a device row: that of its launch call; before every call for an orphan
    told_call: Bool
    told_op: Bool
    rows_without_call: int
    replays: Replays
    unplaced: I64


def waits_of(found: Sequence[tuple[int, int, int, int]]) -> Waits:
    """Return findings one by one (source, call, device op, FoundBy bits) as columns."""
    table = np.array(found, np.int64).reshape(-1, 4)
    source, call, device_op = table[:, :3].T.astype(np.int32)
    return Waits(source, call, device_op, table[:, 3].astype(np.uint8))


def cuda_waits(linked: Linked, read: Sequence[StreamWait] = ()) -> CudaWaits:
    """Find every wait that ``cuda_sync`` and ``cuda_event`` rows tell of, and those that need no row; ``read``: from
    the order of calls.

    Needs no row: a blocking copy waits for itself; with one device in the recording a device synchronisation waits for
    all of it; where all work so far is on one stream, a stream synchronisation waits for that. These count as inferred,
    as does ``read``.

    Cost: O(rows log rows) to order them, then O(1) a row and stream.
    """
    walk = _Walk(linked, {}, read)
    walk.run()
    launched = bool(walk.unplaced) and where_launched(walk.agreed)
    if walk.doubtful or launched:
        walk = _Walk(linked, walk.likeliest_devices(), read, where_launched=launched)
        walk.run()
    return walk.result()


class _Walk:
    """The walk's state; one use. ``where_launched``: threads record on the stream that they launched on last."""

    def __init__(
        self, linked: Linked, device_of: dict[int, int], read: Sequence[StreamWait], *, where_launched: bool = False
    ) -> None:
        trace = linked.trace
        self.trace, self.linked, self.read = trace, linked, read
        self.role = roles(trace.calls, trace.strings)
        # the dense number of each device row's stream, and that of every (device, stream) of any row
        pairs, self.stream_of = numbered_rows(trace.device.device, trace.device.stream)
        self.index = {(device, stream): i for i, (device, stream) in enumerate(pairs.tolist())}
        known = take(trace.syncs, trace.syncs.stream_known)
        for devices, streams in ((known.device, known.stream), (trace.events.device, trace.events.stream)):
            for pair in tuples(devices, streams):
                self.index.setdefault(pair, len(self.index))
        self.key = self.stream_of.tolist()  # of each device row
        self.device_of_key = [device for device, _ in self.index]
        self.call_of_row = lookup(trace.calls.correlation, trace.syncs.correlation)
        order = np.lexsort((trace.device.start_ns, linked.device_call))
        first = np.searchsorted(linked.device_call[order], np.arange(len(trace.calls.start_ns) + 1))
        self.ops, self.first_op = order.tolist(), first.tolist()
        self.orphans = order[: first[0]].tolist()
        self.devices = len(np.unique(trace.device.device))
        self.from_host = containing(trace.strings, "HtoD")
        self.tail: dict[int, int] = {}
        self.pending: dict[int, Sources] = {}
        self.unplaced: list[int] = []  # correlations of waits of a stream, or for a record of one, that cannot be told
        self.unresolved: set[int] = set()  # streams whose next op waits for something that rows do not name
        self.snapshot: dict[int, list[Sources]] = {}  # one for each stream that the record may have been made on
        self.found: list[tuple[int, int, int, int]] = []
        self.told_call = np.zeros(len(trace.calls.start_ns), np.bool_)
        self.told_op = np.ones(len(trace.device.start_ns), np.bool_)
        self.replays = replays(trace)
        columns = self.replays.number, self.replays.home, self.replays.queue
        self.replay, self.home, self.queue = (column.tolist() for column in columns)
        self.entering, self.leaving = self.replays.entering.tolist(), self.replays.leaving.tolist()
        # stream: the replay (or NOWHERE) that entered it last, what that waits for, whether rows name all of it
        self.entered: dict[int, tuple[int, Sources, bool]] = {}
        self.enqueued = [0] * len(trace.device.start_ns)
        self.clock = 0
        self.tid = trace.calls.tid.tolist()
        self.launched_on: dict[int, dict[int, int]] = defaultdict(dict)  # thread: {stream: when it last launched there}
        self.where_launched, self.agreed = where_launched, Counter[bool]()  # effects with that, or contradict it
        self.doubtful: dict[tuple[int, int], int] = {}  # (event, device): how often it cannot have been that device
        self.record_streams = self._record_streams(device_of)

    def _record_streams(self, device_of: dict[int, int]) -> dict[int, tuple[tuple[int, ...], int]]:
        """Return {correlation of an awaited record: (possible stream keys, likeliest first; FoundBy bits)}

        A row gives the stream of the record but not its device, and stream numbers repeat on every device. An event
        belongs to one device: that of its Event Sync rows, or the only one that has the stream, or as ``device_of``
        says. Else it may be any, the row's own first, as kineto looks events up by context.
        """
        s, index = self.trace.syncs, self.index
        by_stream = grouped((stream, key) for (_, stream), key in index.items())
        known = np.flatnonzero(s.record_known & s.record_stream_known)
        columns = (s.record, s.record_stream, s.device, s.event, s.event_known, s.kind)
        rows = list(tuples(*(c[known] for c in columns)))
        device_of = dict(device_of)
        for _, stream, device, event, named, kind in rows:
            keys = by_stream.get(stream, [])
            if named and (kind == SyncKind.EVENT or len(keys) == 1) and keys:
                device_of[event] = device if kind == SyncKind.EVENT else self.device_of_key[keys[0]]
        unplaced = s.record[s.record_known & ~s.record_stream_known].tolist()
        out: dict[int, tuple[tuple[int, ...], int]] = dict.fromkeys(unplaced, ((), 0))
        for record, stream, device, event, named, _ in rows:
            own = index.get((device_of.get(event, device) if named else device, stream))
            others = [] if named and event in device_of else [k for k in by_stream.get(stream, []) if k != own]
            if not out.get(record, ((), 0))[0]:
                out[record] = (tuple(others if own is None else [own, *others]), FoundBy.CUDA_SYNC)
        e = self.trace.events
        for c, d, stream in tuples(e.correlation, e.device, e.stream):
            bits = FoundBy.EVENT_ID | (FoundBy.CUDA_SYNC if c in out and out[c][0] else 0)
            out[c] = ((index[d, stream],), bits)
        return out

    def _agenda(self) -> tuple[list[int], list[int]]:
        """Return (code, row) of all that happens, in order; a row is a call, a sync row for ``_WAIT`` and ``_SYNC``, or
        one of ``read``.
        """
        calls, syncs = self.trace.calls, self.trace.syncs
        launching = np.flatnonzero(np.diff(np.asarray(self.first_op)) > 0)
        awaited = np.fromiter(self.record_streams, np.int64, len(self.record_streams))
        recording = np.flatnonzero((self.role == Role.RECORD) & np.isin(calls.correlation, awaited))
        wait = np.flatnonzero(syncs.kind == SyncKind.STREAM_WAIT)
        sync = np.flatnonzero((syncs.kind != SyncKind.STREAM_WAIT) & (self.call_of_row != NOWHERE))
        wait_ns, called = syncs.start_ns[wait].copy(), self.call_of_row[wait] != NOWHERE
        wait_ns[called] = calls.start_ns[self.call_of_row[wait[called]]]
        has_row = marked(len(calls.start_ns), self.call_of_row[sync])
        bare = np.flatnonzero(np.isin(self.role, [Role.STREAM_SYNC, Role.DEVICE_SYNC]) & ~has_row)
        read = np.array([wait.call for wait in self.read], np.int64)
        parts = (
            (_LAUNCH, launching, calls.start_ns[launching], calls.correlation[launching]),
            (_RECORD, recording, calls.start_ns[recording], calls.correlation[recording]),
            (_WAIT, wait, wait_ns, syncs.correlation[wait]),
            (_READ, np.arange(len(read)), calls.start_ns[read], calls.correlation[read]),
            (_SYNC, sync, calls.start_ns[self.call_of_row[sync]], syncs.correlation[sync]),
            (_BARE, bare, calls.start_ns[bare], calls.correlation[bare]),
        )
        code = np.concatenate([np.full(len(p[1]), p[0]) for p in parts])
        order = np.lexsort((code, np.concatenate([p[3] for p in parts]), np.concatenate([p[2] for p in parts])))
        return code[order].tolist(), np.concatenate([p[1] for p in parts])[order].tolist()

    def run(self) -> None:
        for op in self.orphans:
            self._enqueue(op)
        act = {_RECORD: self._record, _WAIT: self._wait, _READ: self._read, _SYNC: self._sync, _BARE: self._bare}
        ops, first = self.ops, self.first_op
        copies = set(np.flatnonzero(self.role == Role.COPY).tolist())
        for code, row in zip(*self._agenda(), strict=True):
            if code == _LAUNCH:
                for op in ops[first[row] : first[row + 1]]:
                    self.launched_on[self.tid[row]][self.home[op]] = self.clock
                    awaited = self._copied(op, row) if row in copies else {}
                    self._enqueue(op)
                    self.found += [(source, row, NOWHERE, bits) for source, bits in awaited.values()]
            else:
                act[code](row)

    def _copied(self, op: int, call: int) -> Sources:
        """Return what a copying call waits for: the copy, unless it is one from the host that was only staged; then
        what stands before it.

        "For transfers from pageable host memory to device memory, a stream sync is performed before the copy is
        initiated. The function will return once the pageable buffer has been copied to the staging memory" (CUDA driver
        API, "API synchronization behavior").
        """
        key, device = self.key[op], self.trace.device
        staged = self.from_host[device.name[op]] and device.end_ns[op] > self.trace.calls.end_ns[call] + NOISE_NS
        return self._all_of(key, FoundBy.INFERRED) if staged else {key: (op, FoundBy.INFERRED)}

    def _enqueue(self, op: int) -> None:
        home, queue, replay = self.home[op], self.queue[op], self.replay[op]
        self.clock += 1
        self.enqueued[op] = self.clock
        if replay == NOWHERE or self.entered.get(home, (NOWHERE,))[0] != replay:
            self.entered[home] = replay, self.pending.pop(home, {}), home not in self.unresolved
            self.unresolved.discard(home)
        if replay == NOWHERE or self.entering[op]:
            _, sources, self.told_op[op] = self.entered[home]
            others = [found for found in sources.values() if self.home[found[0]] != home]
            self.found += [(source, NOWHERE, op, bits) for source, bits in others]
        if queue == home:
            self.tail[home] = op
        elif self.leaving[op]:
            self.pending.setdefault(home, {})[-queue] = (op, 0)

    def _all_of(self, key: int, bits: int) -> Sources:
        """Return the sources of what waits for everything enqueued on a stream so far."""
        out = {k: (op, b | bits) for k, (op, b) in self.pending.get(key, {}).items()}
        if key in self.tail:
            out[key] = (self.tail[key], bits)
        return out

    def _merge(self, into: Sources, new: Sources, but: int | None = None) -> None:
        for key, (op, bits) in new.items():
            old = into.get(key)
            if key != but and (old is None or self.enqueued[old[0]] < self.enqueued[op]):
                into[key] = (op, bits)

    def _record(self, call: int) -> None:
        correlation = int(self.trace.calls.correlation[call])
        keys, bits = self.record_streams[correlation]
        if keys:
            self.snapshot[correlation] = [self._all_of(key, bits) for key in keys]
        else:
            self.snapshot[correlation] = self._likeliest(call, self.waits_for[correlation])

    def _likeliest(self, call: int, waits: Sequence[int]) -> list[Sources]:
        """Return what a record stands for whose stream no row names: nothing where nothing was enqueued, or nothing of
        it had ended when the waits (sync rows) were over. Exact where only one stream had work."""
        syncs, end_ns = self.trace.syncs, self.trace.device.end_ns
        devices = {
            int(syncs.device[row]) for row in waits if syncs.kind[row] == SyncKind.EVENT
        }  # a stream may wait for any
        found = {
            key: self._all_of(key, FoundBy.INFERRED)
            for key in self.tail.keys() | self.pending.keys()
            if not devices or self.device_of_key[key] in devices
        }
        waiting = {self._waiting(row) for row in waits}
        found = {key: sources for key, sources in found.items() if sources and {key} != waiting}
        ended_ns = {key: max(int(end_ns[op]) for op, _ in sources.values()) for key, sources in found.items()}
        shown = list(self._shown(waits))
        if not any(all(end <= wait.until_ns + self.slack_ns for wait in shown) for end in ended_ns.values()):
            return [{}]
        best, told = by_effects(ended_ns, shown, self.slack_ns)
        on = self.launched_on[self.tid[call]]
        launched = sorted(found.keys() & on.keys(), key=on.__getitem__)
        if launched and (told or launched[-1] not in best):
            self.agreed[launched[-1] in best] += 1
        if not told:
            steady = self.where_launched or self.tid[call] in self.keeping
            best = ([key for key in launched if key in best][-1:] or best) if steady else []
        if len(best) != 1:
            return []
        return [self._all_of(best[0], FoundBy.CUDA_SYNC if len(found) == 1 else FoundBy.INFERRED)]

    def _waiting(self, row: int) -> int:
        """Return the stream that waits, by a row of a stream's wait; NOWHERE else."""
        syncs = self.trace.syncs
        if syncs.kind[row] != SyncKind.STREAM_WAIT or not syncs.stream_known[row]:
            return NOWHERE
        return self.index[int(syncs.device[row]), int(syncs.stream[row])]

    def _shown(self, waits: Sequence[int]) -> Iterator[Shown]:
        """Yield what the waits for a record show of when that had ended."""
        syncs, calls, device = self.trace.syncs, self.trace.calls, self.trace.device
        polls: list[tuple[int, int]] = []
        for row, call in [(row, int(self.call_of_row[row])) for row in waits if self.call_of_row[row] != NOWHERE]:
            key, start, end = self._waiting(row), int(calls.start_ns[call]), int(calls.end_ns[call])
            if key != NOWHERE and (op := self._next(key, start)) != NOWHERE:
                begun = int(device.start_ns[op])
                awaited = [int(device.end_ns[source]) for source, _ in self.pending.get(key, {}).values()]
                ready = max(int(self.ready_ns[op]), *awaited, 0)
                yield Shown(begun, max(ready, begun - EVENT_NS) if begun - ready > LATENCY_NS else None)
            elif self.role[call] == Role.EVENT_QUERY:
                polls.append((start, end))
            elif syncs.kind[row] == SyncKind.EVENT:
                yield Shown(end, max(start, end - EVENT_NS) if end - start > BLOCKED_NS else None)
        if len(polls) > 1:
            (start, _), (_, end) = sorted(polls)[-2:]
            yield Shown(end, start)

    def _awaited(self, row: int, limit: Callable[[], int]) -> Sources | None:
        """Return sources of the record that a row names; None where it names none that was made in this recording.

        Of streams on several devices it is the first whose work ended before ``limit``, when the wait was over.
        """
        syncs = self.trace.syncs
        candidates = self.snapshot.get(int(syncs.record[row])) if syncs.record_known[row] else None
        if not candidates:
            return None
        if len(candidates) == 1:
            return candidates[0]
        end_ns, limit_ns = self.trace.device.end_ns, limit()
        ended_ns = [max((int(end_ns[op]) for op, _ in c.values()), default=0) for c in candidates]
        if syncs.event_known[row]:
            keys, _ = self.record_streams[int(syncs.record[row])]
            for key, ended in zip(keys, ended_ns, strict=True):
                about = (int(syncs.event[row]), self.device_of_key[key])
                self.doubtful[about] = self.doubtful.get(about, 0) + (ended > limit_ns + self.slack_ns)
        possible = (c for c, ended in zip(candidates, ended_ns, strict=True) if ended <= limit_ns + self.slack_ns)
        return next(possible, candidates[0])

    def likeliest_devices(self) -> dict[int, int]:
        """Return {event: device} of events whose device no row tells: the only one for which every wait could
        be true.
        """
        possible = grouped(about for about, impossible in self.doubtful.items() if not impossible)
        return {event: devices[0] for event, devices in possible.items() if len(devices) == 1}

    def _wait(self, row: int) -> None:
        syncs, correlation = self.trace.syncs, int(self.trace.syncs.correlation[row])
        if not syncs.stream_known[row]:
            self.unplaced.append(correlation)
            return
        key = self.index[int(syncs.device[row]), int(syncs.stream[row])]
        call = int(self.call_of_row[row])
        waits_ns = int(syncs.start_ns[row] if call == NOWHERE else self.trace.calls.start_ns[call])
        sources = self._awaited(row, lambda: self._next_start_ns(key, waits_ns))
        if sources is None:
            self.unresolved.add(key)
            nameless = syncs.record_known[row] and not syncs.record_stream_known[row]
            self.unplaced += [correlation] if nameless else []
            return
        self._merge(self.pending.setdefault(key, {}), sources, but=key)

    def _read(self, at: int) -> None:
        wait, bits = self.read[at], int(FoundBy.INFERRED)
        key, of = self.key[wait.target], self.key[wait.source]
        sources = self._all_of(of, bits) if wait.whole else {of: (wait.source, bits)}
        self._merge(self.pending.setdefault(key, {}), sources, but=key)

    def _next(self, key: int, after_ns: int) -> int:
        """Return the first op that is launched onto a stream after a time."""
        launched, launches = self.launches
        op = launches.since(np.array([key]), np.array([after_ns]))[0]
        return NOWHERE if op == NOWHERE else int(launched[op])

    def _next_start_ns(self, key: int, after_ns: int) -> int:
        """Return when that op begins."""
        op = self._next(key, after_ns)
        return np.iinfo(np.int64).max // 2 if op == NOWHERE else int(self.trace.device.start_ns[op])

    @cached_property
    def ready_ns(self) -> I64:
        """Return when each op could have begun by its launch and its stream alone."""
        device, call = self.trace.device, self.linked.device_call
        earlier, later = successive(
            np.lexsort((np.arange(len(call)), device.stream, device.device)), device.device, device.stream
        )
        launched = np.append(self.trace.calls.end_ns, 0)[call]
        return np.asarray(np.maximum(launched, spread(len(call), later, device.end_ns[earlier], 0)))

    @cached_property
    def keeping(self) -> set[int]:
        """Return the threads that have a current stream."""
        call, calls = self.linked.device_call, self.trace.calls
        row = np.flatnonzero(call != NOWHERE)
        row = row[np.lexsort((calls.start_ns[call[row]], calls.tid[call[row]]))]
        row = row[begins(call[row])]
        return keeping(calls.tid[call[row]], self.stream_of[row])

    @cached_property
    def waits_for(self) -> dict[int, list[int]]:
        """Return the sync rows that name each record."""
        known = np.flatnonzero(self.trace.syncs.record_known)
        return grouped(tuples(self.trace.syncs.record[known], known))

    @cached_property
    def launches(self) -> tuple[I64, Neighbours]:
        """Return the device rows that calls launched, and their neighbours by stream and start of the call."""
        launched = np.flatnonzero(self.linked.device_call != NOWHERE)
        return launched, Neighbours.of(
            self.stream_of[launched], self.trace.calls.start_ns[self.linked.device_call[launched]]
        )

    def _sync(self, row: int) -> None:
        syncs, call = self.trace.syncs, int(self.call_of_row[row])
        kind, device = int(syncs.kind[row]), int(syncs.device[row])
        sources: Sources | None
        if kind == SyncKind.DEVICE:
            sources = self._whole_device(device, FoundBy.CUDA_SYNC)
        elif kind == SyncKind.STREAM:
            key = self.index.get((device, int(syncs.stream[row]))) if syncs.stream_known[row] else None
            sources = None if key is None else self._all_of(key, FoundBy.CUDA_SYNC)
        else:
            sources = self._awaited(row, lambda: int(self.trace.calls.end_ns[call]))
        if sources is None:
            return
        self.told_call[call] = True
        if self.role[call] == Role.EVENT_QUERY:
            end = self.trace.device.end_ns
            if any(end[op] > self.trace.calls.end_ns[call] for op, _ in sources.values()):
                return  # not ready: it waited for nothing and saw nothing finished
        self.found += [(op, call, NOWHERE, bits) for op, bits in sources.values()]

    def _bare(self, call: int) -> None:
        if self.role[call] == Role.DEVICE_SYNC and self.devices == 1:
            sources = self._whole_device(self.device_of_key[0], FoundBy.INFERRED)
        elif self.role[call] == Role.STREAM_SYNC and len(self.tail) == 1:
            sources = self._all_of(next(iter(self.tail)), FoundBy.INFERRED)
        else:
            return
        self.found += [(op, call, NOWHERE, FoundBy.INFERRED) for op, _ in sources.values()]

    def _whole_device(self, device: int, bits: int) -> Sources:
        out: Sources = {}
        for key in self.tail.keys() | self.pending.keys():
            if self.device_of_key[key] == device:
                self._merge(out, self._all_of(key, bits))
        return out

    @property
    def slack_ns(self) -> int:
        return rounding_ns(self.trace) + (NOISE_NS if self.trace.clocks else 0)

    def result(self) -> CudaWaits:
        call_rank = call_order(self.trace.calls)
        launch_rank = np.append(call_rank, -1)[self.linked.device_call]
        without = how_many(self.call_of_row == NOWHERE)
        recorded = between(self.replays.source, self.replays.target, FoundBy.RECORDED)
        told = self.told_call, self.told_op
        unplaced = np.array(self.unplaced, np.int64)
        return CudaWaits(
            concat(waits_of(self.found), recorded),
            self.role,
            call_rank,
            launch_rank,
            *told,
            without,
            self.replays,
            unplaced,
        )
