"""Device work that can have been waited for at all, by the order of calls alone: needed where no row shows it."""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.linking.call_roles import Role
from graphlink.model import I64, NOWHERE, Bool, Linked, SyncKind
from graphlink.tables import MOST, begins, codes, spread, successive


class Enqueued(msgspec.Struct, frozen=True):
    """Places in the order of calls (``CudaWaits.call_rank``): of each device row's launch, of the next launch on its
    stream, and of the cudaEventRecord and cudaStreamWaitEvent calls, ascending. Without any record in the recording,
    records may be anywhere.

    ``hidden_rank``: of the wait calls that no row tells of; ``rows_tell``: there are rows. ``in_graph``: device rows of
    a graph launch; ``replay``: that of device rows whose order in it is recorded, and whether they wait for what lies
    before it (``entering``).
    """

    launch_rank: I64
    next_rank: I64
    record_rank: I64
    wait_rank: I64
    hidden_rank: I64
    in_graph: Bool
    replay: I64
    entering: Bool
    rows_tell: bool

    @staticmethod
    def of(linked: Linked, cuda: CudaWaits) -> Enqueued:
        """Place launches, records and waits in the order of calls. Cost: O(n log n)."""
        trace, device = linked.trace, linked.trace.device
        replay = cuda.replays
        order = np.lexsort((cuda.launch_rank, replay.home))
        row, following = successive(order, replay.home)
        next_rank = spread(len(device.start_ns), row, cuda.launch_rank[following], MOST)
        if replay.leaving.any():  # several are the last of a stream
            launch = codes(replay.home, cuda.launch_rank)
            earlier, later = successive(order[begins(launch[order])], replay.home)
            later_rank = spread(len(launch), launch[earlier], cuda.launch_rank[later], MOST)
            next_rank = np.where(replay.leaving, later_rank[launch], next_rank)
        told = trace.syncs.correlation[(trace.syncs.kind == SyncKind.STREAM_WAIT) & trace.syncs.record_known]
        waits = cuda.role == Role.STREAM_WAIT
        unplaced = np.isin(trace.calls.correlation, cuda.unplaced)
        hidden = waits & (unplaced | ~np.isin(trace.calls.correlation, told))
        ops_of_call = np.bincount(linked.device_call + 1, minlength=len(trace.calls.start_ns) + 1)
        return Enqueued(
            launch_rank=cuda.launch_rank,
            next_rank=next_rank,
            record_rank=np.sort(cuda.call_rank[cuda.role == Role.RECORD]),
            wait_rank=np.sort(cuda.call_rank[waits]),
            hidden_rank=np.sort(cuda.call_rank[hidden]),
            in_graph=(linked.device_call != NOWHERE) & (ops_of_call[linked.device_call + 1] > 1),
            replay=replay.number,
            entering=replay.entering,
            rows_tell=len(trace.syncs.kind) > 0,
        )

    def may_wait(self, row: int, op: int) -> bool:
        """Tell whether ``op`` may have been made to wait for ``row`` by a wait that no row tells of.

        Everywhere in a recording without ``cuda_sync`` rows, else only where a wait call has none. Ops of one graph
        launch order themselves inside the graph, and what was launched before the recording did so unseen.
        """
        if self.replay[op] != NOWHERE:
            return bool(self.entering[op] and self.launch_rank[row] < self.launch_rank[op])
        if self.launch_rank[op] < 0 or self.in_graph[op]:
            return bool(self.launch_rank[row] <= self.launch_rank[op])
        if self.launch_rank[row] >= self.launch_rank[op]:
            return False
        if not self.recorded_and_awaited(row, int(self.launch_rank[op]), unseen=True):
            return False
        if not self.rows_tell:
            return True
        at = int(np.searchsorted(self.hidden_rank, self.launch_rank[op])) - 1
        return at >= 0 and bool(self.hidden_rank[at] > self.launch_rank[row])

    def recorded_and_awaited(self, row: int, rank: int, *, unseen: bool) -> bool:
        """Tell whether a stream can have been made to wait for such an event, before a call.

        ``unseen``: even if no wait call is in the recording.
        """
        record = self.first_record(row, rank)
        if record is None:
            return False
        if not len(self.wait_rank):
            return unseen
        at = int(np.searchsorted(self.wait_rank, record))
        return at < len(self.wait_rank) and bool(self.wait_rank[at] < rank)

    def first_record(self, row: int, rank: int) -> int | None:
        """Return where an event can first have been recorded behind it, before the next op of its stream and before a
        call.
        """
        launched = int(self.launch_rank[row])
        if not len(self.record_rank):
            return launched
        at = int(np.searchsorted(self.record_rank, launched))
        if at == len(self.record_rank) or self.record_rank[at] >= min(rank, int(self.next_rank[row])):
            return None
        return int(self.record_rank[at])
