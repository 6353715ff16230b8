"""Waits of the host that no row tells of, inferred from their effect: when the call returned.

The stream or event of a call is never guessed (guessing was right for 9 of 24 event records of real traces). A
synchronisation call that took more than 3 us waited for the device op, enqueued before it, that ended last inside it,
as long before it returned as waking takes on that machine: that is the mode of the recording's own lags, by name of
call (``depend.modes``). Seldom waking takes longer, up to 2.5 times the most of the mode.

Where the recording shows no mode, the default is 3 to 12 us, seldom up to 30 (213 calls of real traces). What ended
later than 3 us before the return gives way to what ended in that time, and explains no call of up to 12 us (without
anything to wait for, such calls take 2 to 9 us). Where waking takes longer the default would take what happens to end
just before the return (on random programs with a lag of 20 to 200 us 3 % false), so there it does not hold.

What cannot have been waited for is no candidate: for a stream or device synchronisation an op that was not the last of
its stream when the call began (unless a stream may have been made to wait for it: such a one only where no other ended
in the mode), for an event synchronisation one behind which no event was recorded; for any what ended in the first 3 us
of the call, as that takes so long anyway, unless the thread launched it last.

Where an op of another stream (for a device synchronisation: of another device; for an event synchronisation: any other)
ended within 3 us of that one, either may be it. Then it is the one that the calling thread launched, if that is one
alone, else there is no edge. In a mode that is wider than usual there is none wherever another ended in the mode, and
the thread does not tell.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.choices import LATENCY_NS
from graphlink.depend.cuda import BLOCKED_NS, EVENT_NS, CudaWaits, waits_of
from graphlink.depend.devicetime import stream_order
from graphlink.depend.enqueued import Enqueued
from graphlink.depend.modes import Mode, mode_of
from graphlink.linking.call_roles import SYNCS, Role
from graphlink.linking.launch import rounding_ns
from graphlink.model import I64, NOWHERE, DeviceKind, FoundBy, Linked, Waits
from graphlink.patterns import containing
from graphlink.spans import Neighbours
from graphlink.tables import among, largest, last_before, tuples

USUAL = Mode(3_000, 12_000)
TIE_NS = 3_000
UNSURE_NS = 5_000  # the clock of a device is known to so much
LATE = 2.5  # times the longest usual lag: seldom a call returns as late
LATEST_NS = 1_000_000  # no call is taken to return later than this after what it waited for,
LATEST_OPS = 64  # nor when so many have ended since


def infer_waits(linked: Linked, cuda: CudaWaits, enqueued: Enqueued) -> tuple[Waits, list[int]]:
    """Infer waits of the synchronisation calls that neither rows nor CUDA's rules explain (``cuda.waits``), by effect.

    Returns (waits, calls that blocked and of which nothing in the recording says on what).

    A cudaMemcpyAsync from device to pageable host memory blocks, too, for its own copy; one from pageable host memory
    blocks until what stood before it on its stream is done; of one that does not say which it is, its effect on the
    call tells. Cost: O(rows log rows + calls x ops that end within the time that waking takes).
    """
    trace = linked.trace
    calls, device = trace.calls, trace.device
    took_ns = calls.end_ns - calls.start_ns
    open_ = ~cuda.told_call & (took_ns > BLOCKED_NS)
    open_[cuda.waits.call[cuda.waits.call != NOWHERE]] = False
    sync = among(cuda.role, SYNCS)
    by_end = np.argsort(device.end_ns, kind="stable")
    slack_ns = rounding_ns(trace)
    search = _OpsByEnd(
        ends=device.end_ns[by_end].tolist(),
        row=by_end.tolist(),
        enqueued=enqueued,
        device=device.device,
        stream=device.stream,
        launch_tid=np.where(linked.device_call == NOWHERE, 0, np.append(calls.tid, 0)[linked.device_call]),
        slack_ns=slack_ns,
    )
    found: list[tuple[int, int]] = []
    unexplained: list[int] = []
    asked = np.flatnonzero(open_ & sync)
    last = np.searchsorted(device.end_ns[by_end], calls.end_ns[asked] + slack_ns, side="right") - 1
    asking = [
        _Call(
            start_ns=int(calls.start_ns[call]),
            end_ns=int(calls.end_ns[call]),
            rank=int(cuda.call_rank[call]),
            role=Role(int(cuda.role[call])),
            tid=int(calls.tid[call]),
            launched=op,
            last=at,
        )
        for call, at, op in tuples(asked, last, _launched_last(linked, cuda, asked))
    ]
    bands = _bands(linked, cuda, search, asked, asking)
    for call, what in zip(asked.tolist(), asking, strict=True):
        source = search.awaited(what, bands[int(calls.name[call])])
        if source is None:
            unexplained.append(call)
        else:
            found.append((source, call))
    found += _pageable_copies(linked, cuda, slack_ns)
    found += _staged_copies(linked, cuda, slack_ns)
    return waits_of([(source, call, NOWHERE, FoundBy.INFERRED) for source, call in found]), unexplained


class _Call(msgspec.Struct, frozen=True):
    start_ns: int
    end_ns: int
    rank: int
    role: Role
    tid: int
    launched: int  # the device row that its thread launched last, NOWHERE without one
    last: int  # position of the last op by end that ended inside it


class _OpsByEnd(msgspec.Struct, frozen=True):
    """Device rows by end; ``ends`` and ``row`` are lists as the search touches few of them, one by one."""

    ends: list[int]
    row: list[int]
    enqueued: Enqueued
    device: I64
    stream: I64
    launch_tid: I64  # 0 for orphans
    slack_ns: int

    def awaited(self, call: _Call, bands: tuple[Mode, ...]) -> int | None:
        """Find the op that explains a call: one that ended in the first of ``bands`` that holds any, else the last, a
        while before.
        """
        if not bands:
            return None
        usual = bands[-1]
        direct, chained = self.candidates(call, call.end_ns - round(usual.most_ns * LATE) - 1)
        for band in bands:
            for candidates in (direct, chained):
                near = [c for c in candidates if band.least_ns - self.slack_ns <= call.end_ns - c[1] <= band.most_ns]
                if near:
                    return self._one_of(near, call, band)
        candidates = direct or chained
        if not candidates or call.end_ns - call.start_ns <= usual.most_ns:
            return None
        if usual != USUAL and call.end_ns - candidates[0][1] < usual.least_ns:
            return None  # it ended when the call had begun to return
        return self._one_of(candidates, call, usual)

    def _one_of(self, ended: list[tuple[int, int]], call: _Call, band: Mode) -> int | None:
        """Choose the last of them; where another may be it as well, the one that the calling thread launched, if waking
        is as quick as usual."""
        best, last_ns = ended[0]
        spread_ns = band.most_ns - band.least_ns
        usual = spread_ns <= USUAL.most_ns - USUAL.least_ns
        since_ns = last_ns - (TIE_NS if usual else spread_ns) - self.slack_ns
        tied = [row for row, end in ended[1:] if end >= since_ns and self._may_be_instead(row, best, call.role)]
        if not tied:
            return best
        own = [row for row in (best, *tied) if self.launch_tid[row] == call.tid] if usual else []
        return own[0] if len(own) == 1 else None

    def since_ns(self, call: _Call) -> int:
        """Return the time from which on an op that ended can have blocked the call at all."""
        before = call.last - LATEST_OPS
        return max(call.start_ns, call.end_ns - LATEST_NS, self.ends[before] if before >= 0 else call.start_ns)

    def candidates(self, call: _Call, since_ns: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return (row, end) of ops that may have blocked the call and ended in it, after ``since_ns``, last first.

        Those by themselves, and those because a stream may have been made to wait for them.
        """
        direct: list[tuple[int, int]] = []
        chained: list[tuple[int, int]] = []
        until, at = max(call.start_ns, since_ns), call.last
        while at >= 0 and self.ends[at] > until:
            row, end = self.row[at], self.ends[at]
            at -= 1
            if self.enqueued.launch_rank[row] >= call.rank or (
                end <= call.start_ns + BLOCKED_NS and row != call.launched
            ):
                continue
            if call.role == Role.EVENT_SYNC:
                if self.enqueued.first_record(row, call.rank) is not None:
                    direct.append((row, end))
            elif call.rank <= self.enqueued.next_rank[row]:  # the last of its stream, which alone can hold that up
                direct.append((row, end))
            elif self.enqueued.recorded_and_awaited(row, call.rank, unseen=False):
                chained.append((row, end))
        return direct, chained

    def _may_be_instead(self, row: int, best: int, role: Role) -> bool:
        other_device = bool(self.device[row] != self.device[best])
        if role == Role.DEVICE_SYNC:
            return other_device
        return other_device or bool(self.stream[row] != self.stream[best]) or role == Role.EVENT_SYNC


def _bands(
    linked: Linked, cuda: CudaWaits, search: _OpsByEnd, asked: I64, asking: list[_Call]
) -> dict[int, tuple[Mode, ...]]:
    """Return {name of call: where its lags lie}: the mode of its own lags, that of all calls if half of its own lie
    there, else the default.

    A mode that lies beyond the default replaces it, another one goes before it. Where most lags of 3 or more are longer
    than the default allows, it is not that of this machine, and nothing explains such calls.
    """
    calls = linked.trace.calls
    name, lag_ns, chance = _lags(linked, cuda, search, asked, asking)
    common = mode_of(lag_ns, chance)
    out: dict[int, tuple[Mode, ...]] = {}
    for which in np.unique(calls.name[asked]).tolist():
        mine = name == which
        own = lag_ns[mine]
        mode = mode_of(own, chance[mine])
        if (
            mode is None
            and common
            and 2 * np.count_nonzero((own >= common.least_ns) & (own <= common.most_ns)) >= len(own)
        ):
            mode = common
        if mode:
            out[which] = (mode,) if mode.least_ns > USUAL.most_ns else (mode, USUAL)
        else:
            out[which] = (
                () if len(own) >= 3 and 2 * np.count_nonzero(own <= USUAL.most_ns * LATE) < len(own) else (USUAL,)
            )
    return out


def _lags(
    linked: Linked, cuda: CudaWaits, search: _OpsByEnd, asked: I64, asking: list[_Call]
) -> tuple[I64, I64, NDArray[np.float64]]:
    """Return (name of the call, lag, how dense the ends of ops are that may be it): of calls that are known to have
    been blocked, from what blocked them, of the others from the last op that may have."""
    calls = linked.trace.calls
    told, told_ns = _told_lags(linked, cuda)
    seen: list[tuple[int, int, float]] = []
    for c, what in zip(asked.tolist(), asking, strict=True):
        since_ns = search.since_ns(what)
        direct, chained = search.candidates(what, since_ns)
        ended = direct or chained
        if ended:
            seen.append((c, max(what.end_ns - ended[0][1], 0), len(ended) / max(what.end_ns - since_ns, 1)))
    call = np.concatenate([told, np.array([s[0] for s in seen], np.int64)])
    lag_ns = np.concatenate([told_ns, np.array([s[1] for s in seen], np.int64)])
    return calls.name[call], lag_ns, np.concatenate([np.zeros(len(told)), np.array([s[2] for s in seen])])


def _launched_last(linked: Linked, cuda: CudaWaits, call: I64) -> I64:
    """Return the device row that the thread of each call launched last before it, NOWHERE without one."""
    tid = linked.trace.calls.tid
    row = np.flatnonzero(linked.device_call != NOWHERE)
    launches = Neighbours.of(tid[linked.device_call[row]], cuda.launch_rank[row])
    return np.append(row, NOWHERE)[launches.before(tid[call], cuda.call_rank[call])]


def _told_lags(linked: Linked, cuda: CudaWaits) -> tuple[I64, I64]:
    """Return (call, lag) of the synchronisation calls that are known to have been blocked, and returned after what
    blocked them had ended."""
    calls, waits = linked.trace.calls, cuda.waits
    host = waits.call != NOWHERE
    ended_ns = largest(len(calls.start_ns), waits.call[host], linked.trace.device.end_ns[waits.source[host]])
    blocked = among(cuda.role, SYNCS) & (ended_ns > calls.start_ns) & (ended_ns <= calls.end_ns)
    call = np.flatnonzero(blocked)
    return call, calls.end_ns[call] - ended_ns[call]


def _pageable_copies(linked: Linked, cuda: CudaWaits, slack_ns: int) -> list[tuple[int, int]]:
    """Return (copy, call) of asynchronous copies to pageable host memory that blocked their call: by CUDA it returns
    when they are done.

    However long ago they ended: the host may go on copying out of a buffer of the driver's (in a real trace for up to
    1.3 ms). One that began less than ``UNSURE_NS`` before the return of a call that took no longer than calls do may
    have begun after it (in real traces they do 7 us and more before), and where a call of that name returned long
    before its copy ended, such calls do not wait.
    """
    trace = linked.trace
    pageable = containing(trace.strings, "DtoH") & containing(trace.strings, "Pageable")
    row = np.flatnonzero(pageable[trace.device.name] & (linked.device_call != NOWHERE))
    call = linked.device_call[row]
    end_ns = trace.device.end_ns[row]
    returned_ns = trace.calls.end_ns[call]
    held = (cuda.role[call] == Role.COPY_ASYNC) & (end_ns <= returned_ns + slack_ns)
    held &= returned_ns - np.minimum(trace.device.start_ns[row], trace.calls.start_ns[call] + LATENCY_NS) > UNSURE_NS
    name = trace.calls.name[call]
    held &= ~np.isin(name, name[end_ns > returned_ns + LATENCY_NS])
    return list(tuples(row[held], call[held]))


def _staged_copies(linked: Linked, cuda: CudaWaits, slack_ns: int) -> list[tuple[int, int]]:
    """Return (op that was waited for, call) of asynchronous copies of pageable host memory that began inside their
    call, and found their stream busy: that is the op before it on its stream, or the copy itself.

    Such a copy (of more than 64 KiB; smaller ones are taken into the call's arguments) first waits for its stream, then
    the host stages what the device copies (CUDA, "API synchronization behavior"). In one recording all 15 that found
    their stream busy began 2 to 9 us after the op before them ended, and their calls returned 13 to 23 ms later; none
    of 44 small ones in others began inside its call.

    What a copy did that does not say which memory of the host it is for shows it, too. Of 5,800 copies of real
    recordings whose call found another op of their device running, 63 began right after it and were done when the call
    returned, all to pageable memory: the call waited for the copy itself. Of 69 others that began inside their call,
    right after the op before them on their stream, 67 were from pageable memory.
    """
    trace, device = linked.trace, linked.trace.device
    silent = ~containing(trace.strings, "->", "To") | containing(trace.strings, "Host", "Unknown")
    silent = (device.kind == DeviceKind.MEMCPY) & silent[device.name]
    staged = silent | (containing(trace.strings, "HtoD") & containing(trace.strings, "Pageable"))[device.name]
    row = np.flatnonzero(staged & (linked.device_call != NOWHERE))
    call, start_ns = linked.device_call[row], device.start_ns[row]
    done = silent[row] & (device.end_ns[row] <= trace.calls.end_ns[call] + slack_ns)
    latest = last_before((device.device,), device.end_ns, (device.device[row],), start_ns + slack_ns + 1)
    source = np.where(done, latest, stream_order(device).before[row])
    held = (
        (cuda.role[call] == Role.COPY_ASYNC)
        & (source != NOWHERE)
        & (device.end_ns[source] > trace.calls.start_ns[call] + BLOCKED_NS)
        & (start_ns + slack_ns < trace.calls.end_ns[call])
        & (start_ns - device.end_ns[source] <= EVENT_NS)
    )
    return list(tuples(np.where(done, row, source)[held], call[held]))
