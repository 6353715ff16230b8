"""Waits of the host that no row tells of, inferred from their effect: when the call returned.

The stream or event of a call is never guessed (guessing was right for 9 of 24 event records of real traces). A synchronisation call
that took more than 3 us waited for the device op, enqueued before it, that ended last inside it and at most 30 us before it returned.
In real traces (213 calls) that op ended 3 to 12 us before the return, once 28 us: so one that ended later than 3 us before it gives way
to one that ended in that time, and explains no call of up to 12 us (without anything to wait for, such calls take 2 to 9 us).

What cannot have been waited for is no candidate: for a stream or device synchronisation an op that was not the last of its stream when
the call began (unless a stream may have been made to wait for it), for an event synchronisation one behind which no event was recorded.

Where an op of another stream (for a device synchronisation: of another device; for an event synchronisation: any other) ended within
3 us of that one, either may be it. Then it is the one that the calling thread launched, and if that does not tell, there is no edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.depend.enqueued import Enqueued
from graphlink.link.launch import rounding_ns
from graphlink.link.roles import Role
from graphlink.model import I64, NOWHERE, FoundBy, Linked, Waits

BLOCKED_NS = 3_000
RETURN_NS = 30_000
TIE_NS = 3_000
SOONEST_NS = 3_000
USUAL_NS = 12_000


@dataclass(frozen=True, slots=True)
class Inferred:
    """``unexplained_calls`` blocked for ``unexplained_ns`` in all, and nothing in the recording says on what."""

    waits: Waits
    unexplained_calls: int
    unexplained_ns: int


def infer_waits(linked: Linked, cuda: CudaWaits, enqueued: Enqueued) -> Inferred:
    """Waits of the synchronisation calls that neither rows nor CUDA's rules explain (``cuda.waits``), by effect.

    A cudaMemcpyAsync from device to pageable host memory blocks too, and is judged by the same rule on its own copy.
    Cost: O(rows log rows + calls x ops that end within 30 us of each other).
    """
    trace = linked.trace
    calls, device = trace.calls, trace.device
    took_ns = calls.end_ns - calls.start_ns
    open_ = ~cuda.told_call & (took_ns > BLOCKED_NS)
    open_[cuda.waits.call[cuda.waits.call != NOWHERE]] = False
    sync = np.isin(cuda.role, [Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC])
    by_end = np.argsort(device.end_ns, kind="stable")
    slack_ns = rounding_ns(trace)
    search = _Search(
        ends=device.end_ns[by_end].tolist(),
        row=by_end.tolist(),
        enqueued=enqueued,
        device=device.device,
        stream=device.stream,
        launch_tid=_launch_tid(linked),
        slack_ns=slack_ns,
    )
    found: list[tuple[int, int]] = []
    unexplained_calls = unexplained_ns = 0
    asked = np.flatnonzero(open_ & sync)
    last = np.searchsorted(device.end_ns[by_end], calls.end_ns[asked] + slack_ns, side="right") - 1
    for call, at in zip(asked.tolist(), last.tolist(), strict=True):
        asking = _Call(
            start_ns=int(calls.start_ns[call]),
            end_ns=int(calls.end_ns[call]),
            rank=int(cuda.call_rank[call]),
            role=Role(int(cuda.role[call])),
            tid=int(calls.tid[call]),
        )
        source = search.awaited(asking, at)
        if source is None:
            unexplained_calls += 1
            unexplained_ns += int(took_ns[call])
        else:
            found.append((source, call))
    found += _pageable_copies(linked, cuda, took_ns, slack_ns)
    pairs = np.array(found, np.int32).reshape(-1, 2)
    nowhere = np.full(len(pairs), NOWHERE, np.int32)
    waits = Waits(pairs[:, 0], pairs[:, 1], nowhere, np.full(len(pairs), FoundBy.INFERRED, np.uint8))
    return Inferred(waits, unexplained_calls, unexplained_ns)


@dataclass(frozen=True, slots=True)
class _Call:
    start_ns: int
    end_ns: int
    rank: int
    role: Role
    tid: int


@dataclass(frozen=True, slots=True)
class _Search:
    """Device rows by end; ``ends`` and ``row`` are lists as the search touches few of them, one by one."""

    ends: list[int]
    row: list[int]
    enqueued: Enqueued
    device: I64
    stream: I64
    launch_tid: I64  # 0 for orphans
    slack_ns: int

    def awaited(self, call: _Call, at: int) -> int | None:
        """The one op that explains a call; ``at`` is the last op by end that ended inside it."""
        direct, chained = self._candidates(call, at)
        candidates = direct or chained
        usual = [c for c in candidates if call.end_ns - USUAL_NS <= c[1] <= call.end_ns - SOONEST_NS + self.slack_ns]
        candidates = usual or candidates
        if not candidates or (not usual and call.end_ns - call.start_ns <= USUAL_NS):
            return None
        best, ended = candidates[0]
        tied = [row for row, end in candidates[1:] if end > ended - TIE_NS and self._may_be_instead(row, best, call.role)]
        if not tied:
            return best
        own = [row for row in (best, *tied) if self.launch_tid[row] == call.tid]
        return own[0] if len(own) == 1 else None

    def _candidates(self, call: _Call, at: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(row, end) of ops that may have held the call up, last first: by themselves, and because their stream waited for them."""
        direct: list[tuple[int, int]] = []
        chained: list[tuple[int, int]] = []
        until = max(call.start_ns, call.end_ns - RETURN_NS - 1)
        while at >= 0 and self.ends[at] > until:
            row, end = self.row[at], self.ends[at]
            at -= 1
            if self.enqueued.launch_rank[row] >= call.rank:
                continue
            if call.role == Role.EVENT_SYNC:
                if self.enqueued.recorded(row, call.rank):
                    direct.append((row, end))
            elif self.enqueued.last_of_stream(row, call.rank):
                direct.append((row, end))
            elif self.enqueued.recorded_and_awaited(row, call.rank, unseen=False):
                chained.append((row, end))
        return direct, chained

    def _may_be_instead(self, row: int, best: int, role: Role) -> bool:
        other_device = bool(self.device[row] != self.device[best])
        if role == Role.DEVICE_SYNC:
            return other_device
        return other_device or bool(self.stream[row] != self.stream[best]) or role == Role.EVENT_SYNC


def _launch_tid(linked: Linked) -> I64:
    out = np.zeros(len(linked.device_call), np.int64)
    launched = linked.device_call != NOWHERE
    out[launched] = linked.trace.calls.tid[linked.device_call[launched]]
    return out


def _pageable_copies(linked: Linked, cuda: CudaWaits, took_ns: I64, slack_ns: int) -> list[tuple[int, int]]:
    """(copy, call) of asynchronous copies to pageable host memory that ended inside their call and held it up."""
    trace = linked.trace
    pageable = np.array(["DtoH" in s and "Pageable" in s for s in trace.strings], np.bool_)
    row = np.flatnonzero(pageable[trace.device.name] & (linked.device_call != NOWHERE))
    call = linked.device_call[row]
    end_ns = trace.device.end_ns[row]
    held = (
        (cuda.role[call] == Role.COPY_ASYNC)
        & (took_ns[call] > BLOCKED_NS)
        & (end_ns <= trace.calls.end_ns[call] + slack_ns)
        & (end_ns >= trace.calls.end_ns[call] - RETURN_NS)
    )
    return list(zip(row[held].tolist(), call[held].tolist(), strict=True))
