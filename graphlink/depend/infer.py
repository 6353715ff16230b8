"""Waits of the host that no row tells of, inferred from their effect: when the call returned.

The stream or event of a call is never guessed (guessing was right for 9 of 24 event records of real traces). A synchronisation call
that took more than 3 us waited for the device op, enqueued before it, that ended last inside it and at most 30 us before it
returned: of 213 such calls in real traces the last op ended 3 to 12 us before the return, once 28 us. Where an op of another stream
(for a device synchronisation: of another device) ended within 3 us of that one, either may be it, and there is no edge. As no call
returned sooner than 3 us after what it waited for, an op that ended later than that is doubtful: then any op that ended up to 12 us
before the return may be it as well. An event may have been recorded anywhere, so for an event synchronisation an earlier op of the
same stream counts as another one, and 6 us are needed to tell two apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.calls import Role
from graphlink.depend.cuda import CudaWaits
from graphlink.model import I64, NOWHERE, FoundBy, Linked, Waits

BLOCKED_NS = 3_000
RETURN_NS = 30_000
TIE_NS = 3_000
EVENT_TIE_NS = 6_000
SOONEST_NS = 3_000
USUAL_NS = 12_000


@dataclass(frozen=True, slots=True)
class Inferred:
    """``unexplained_calls`` blocked for ``unexplained_ns`` in all, and nothing in the recording says on what."""

    waits: Waits
    unexplained_calls: int
    unexplained_ns: int


def infer_waits(linked: Linked, cuda: CudaWaits) -> Inferred:
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
    search = _Search(
        ends=device.end_ns[by_end].tolist(),
        row=by_end.tolist(),
        launch_rank=cuda.launch_rank,
        device=device.device,
        stream=device.stream,
    )
    found: list[tuple[int, int]] = []
    unexplained_calls = unexplained_ns = 0
    asked = np.flatnonzero(open_ & sync)
    slack_ns = trace.resolution_ns if trace.resolution_ns > 1 else 0
    last = np.searchsorted(device.end_ns[by_end], calls.end_ns[asked] + slack_ns, side="right") - 1
    for call, at in zip(asked.tolist(), last.tolist(), strict=True):
        asking = _Call(int(calls.start_ns[call]), int(calls.end_ns[call]), int(cuda.call_rank[call]), Role(int(cuda.role[call])))
        source = search.awaited(asking, at)
        if source is None:
            unexplained_calls += 1
            unexplained_ns += int(took_ns[call])
        else:
            found.append((source, call))
    found += _pageable_copies(linked, cuda, took_ns)
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


@dataclass(frozen=True, slots=True)
class _Search:
    """Device rows by end; ``ends`` and ``row`` are lists as the search touches few of them, one by one."""

    ends: list[int]
    row: list[int]
    launch_rank: I64
    device: I64
    stream: I64

    def awaited(self, call: _Call, at: int) -> int | None:
        """The one op that explains a call; ``at`` is the last op by end that ended inside it."""
        start_ns, end_ns, role = call.start_ns, call.end_ns, call.role
        best: int | None = None
        until = max(start_ns, end_ns - RETURN_NS)
        tie_ns = EVENT_TIE_NS if role == Role.EVENT_SYNC else TIE_NS
        while at >= 0 and self.ends[at] > until:
            row, end = self.row[at], self.ends[at]
            at -= 1
            if self.launch_rank[row] >= call.rank:
                continue
            if best is None:
                best = row
                doubtful = end > end_ns - SOONEST_NS
                until = max(start_ns, min(end - tie_ns, end_ns - USUAL_NS) if doubtful else end - tie_ns)
            elif self._may_be_instead(row, best, role):
                return None
        return best

    def _may_be_instead(self, row: int, best: int, role: Role) -> bool:
        other_device = bool(self.device[row] != self.device[best])
        if role == Role.DEVICE_SYNC:
            return other_device
        return other_device or bool(self.stream[row] != self.stream[best]) or role == Role.EVENT_SYNC


def _pageable_copies(linked: Linked, cuda: CudaWaits, took_ns: I64) -> list[tuple[int, int]]:
    """(copy, call) of asynchronous copies to pageable host memory that ended inside their call and held it up."""
    trace = linked.trace
    pageable = np.array(["DtoH" in s and "Pageable" in s for s in trace.strings], np.bool_)
    row = np.flatnonzero(pageable[trace.device.name] & (linked.device_call != NOWHERE))
    call = linked.device_call[row]
    end_ns = trace.device.end_ns[row]
    held = (
        (cuda.role[call] == Role.COPY_ASYNC)
        & (took_ns[call] > BLOCKED_NS)
        & (end_ns <= trace.calls.end_ns[call])
        & (end_ns >= trace.calls.end_ns[call] - RETURN_NS)
    )
    return list(zip(row[held].tolist(), call[held].tolist(), strict=True))
