"""What can have been waited for at all, by the order of calls alone: needed where no row tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.link.roles import Role
from graphlink.model import I64, Linked


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Places in the order of calls (``CudaWaits.call_rank``): of each device row's launch, of the next launch on its stream, and of the
    cudaEventRecord and cudaStreamWaitEvent calls, ascending. Without any record in the recording, records may be anywhere.
    """

    launch_rank: I64
    next_rank: I64
    record_rank: I64
    wait_rank: I64

    @staticmethod
    def of(linked: Linked, cuda: CudaWaits) -> Enqueued:
        """Cost: O(n log n)."""
        device, n = linked.trace.device, len(linked.trace.device.start_ns)
        order = np.lexsort((np.arange(n), cuda.launch_rank, device.stream, device.device))
        same = (device.stream[order[1:]] == device.stream[order[:-1]]) & (device.device[order[1:]] == device.device[order[:-1]])
        next_rank = np.full(n, np.iinfo(np.int64).max)
        next_rank[order[:-1][same]] = cuda.launch_rank[order[1:][same]]
        ranks = [np.sort(cuda.call_rank[cuda.role == role]) for role in (Role.RECORD, Role.STREAM_WAIT)]
        return Enqueued(cuda.launch_rank, next_rank, ranks[0], ranks[1])

    def last_of_stream(self, row: int, rank: int) -> bool:
        """Was it the last op of its stream when a call began? Only such a one can hold up the synchronisation of its stream."""
        return bool(self.launch_rank[row] < rank <= self.next_rank[row])

    def recorded(self, row: int, rank: int) -> bool:
        """Can an event have been recorded behind it, before the next op of its stream and before a call?"""
        return self._first_record(row, rank) is not None

    def recorded_and_awaited(self, row: int, rank: int, *, unseen: bool) -> bool:
        """Can a stream have been made to wait for such an event, before a call? ``unseen``: even if no wait call is in the recording."""
        record = self._first_record(row, rank)
        if record is None:
            return False
        if not len(self.wait_rank):
            return unseen
        at = int(np.searchsorted(self.wait_rank, record))
        return at < len(self.wait_rank) and bool(self.wait_rank[at] < rank)

    def _first_record(self, row: int, rank: int) -> int | None:
        launched = int(self.launch_rank[row])
        if not len(self.record_rank):
            return launched
        at = int(np.searchsorted(self.record_rank, launched))
        if at == len(self.record_rank) or self.record_rank[at] >= min(rank, int(self.next_rank[row])):
            return None
        return int(self.record_rank[at])
