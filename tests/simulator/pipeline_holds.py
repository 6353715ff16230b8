"""What holds a host up before a launch: the losses of ``pipeline_losses`` that are no communication, written as calls
and rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulator.pipeline_host import BEGIN_NS, COMPUTE, COPY, END_NS, LAUNCH_NS, RETURN_NS, RankHost
from tests.simulator.pipeline_losses import OUTSIDE, Loss
from tests.simulator.pipeline_records import Message
from tests.simulator.program import Api

LATE_NS = LAUNCH_NS + 2_000  # from the start of a late launch call to the start of its kernel
AHEAD_NS = 20_000  # from the call of a copy to its start
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def held_until_ns(start_ns: int) -> int:
    """When the host may go on so that the kernel behind starts at ``start_ns``: two ops and a launch call later."""
    return start_ns - LATE_NS - 2 * BEGIN_NS


def before_range(host: RankHost, loss: Loss, free_ns: int) -> None:
    """What the main thread does before it opens the range. ``free_ns``: when the compute stream has nothing
    more to do.
    """
    start_ns = free_ns + loss.ns
    until_ns = held_until_ns(start_ns) - 1_000  # the range opens in between
    if loss.how == "item":
        host.begin("aten::item")
        host.begin("aten::_local_scalar_dense")
        copy(host, "Memcpy DtoH (Device -> Pinned)", COMPUTE, free_ns, until_ns - RETURN_NS, 4)
        host.wait(Api.STREAM_SYNC, "cudaStreamSynchronize", COMPUTE, until_ns - RETURN_NS)
        host.end(2)
    elif loss.how == "copy":
        host.begin("aten::copy_")
        copy(
            host, "Memcpy HtoD (Pageable -> Device)", COMPUTE, free_ns, until_ns - RETURN_NS, 1 << 24, call="cudaMemcpy"
        )
        host.end()
    elif loss.how == "prefetch":
        host.begin("aten::copy_")
        begins_ns = max(host.clock_ns + AHEAD_NS, host.free_ns(COPY))
        copy(host, "Memcpy HtoD (Pinned -> Device)", COPY, begins_ns, start_ns, 1 << 24)
        host.end()
        host.order(COPY, COMPUTE)
    elif loss.how in OUTSIDE:
        host.begin(LOADER if loss.how == "loader" else loss.how, annotation=True)
        host.until(until_ns - END_NS)
        host.end()


def copy_to_host(host: RankHost, free_ns: int, start_ns: int) -> None:
    """A copy outside any range, from ``free_ns`` on, for which the launching thread will wait so that its kernel starts
    at ``start_ns``.
    """
    host.begin("aten::copy_")
    host.order(COMPUTE, COPY)
    begins_ns = max(host.clock_ns + AHEAD_NS, free_ns, host.free_ns(COPY))
    copy(host, "Memcpy DtoH (Device -> Pinned)", COPY, begins_ns, held_until_ns(start_ns) - RETURN_NS, 1 << 20)
    host.end()


def copy(
    host: RankHost,
    name: str,
    stream: int,
    start_ns: int,
    end_ns: int,
    size_bytes: int,
    *,
    call: str = "cudaMemcpyAsync",
) -> None:
    blocking = call == "cudaMemcpy"
    host.launch(
        stream, start_ns, end_ns, name, kind="gpu_memcpy", api_name=call, size_bytes=size_bytes, blocking=blocking
    )


def before_launch(host: RankHost, loss: Loss, at_ns: int, sent: Sequence[Message]) -> Iterator[object]:
    """What the launching thread does right before the launch; without it the kernel would start at ``at_ns``."""
    until_ns = held_until_ns(at_ns + loss.ns)
    if loss.how in ("stream", "event", "device"):
        yield from _synchronise(host, loss.how, until_ns - RETURN_NS, sent)
    elif loss.cause == "memory_management":
        host.until(at_ns - 3_000)
        host.call_until(loss.how, until_ns)
    elif loss.how == "flush":
        host.until(at_ns + 500)
        host.overhead_until("Buffer Flush", until_ns)
    elif loss.how == "request":
        host.until(at_ns + 500)  # the launch call itself will be long
    if loss.how not in ("request", "prefetch"):
        host.until(until_ns)


def _synchronise(host: RankHost, how: str, until_ns: int, sent: Sequence[Message]) -> Iterator[object]:
    if how == "stream":
        host.wait(Api.STREAM_SYNC, "cudaStreamSynchronize", COPY, until_ns)
    elif how == "event":
        host.wait(Api.EVENT_SYNC, "cudaEventSynchronize", COPY, until_ns, host.record(COPY))
    else:
        for message in sent:
            if message.arrival_ns < 0:
                yield message
            if message.arrival_ns > until_ns:
                raise ValueError(
                    "host_sync: a device synchronisation here would wait for a message: choose another place"
                )
        host.wait(Api.DEVICE_SYNC, "cudaDeviceSynchronize", 0, until_ns)
