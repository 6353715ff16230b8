"""What a recorded call or kernel does, in the words of ``Ops.function``, and how many elements NCCL is told of it."""

from __future__ import annotations

import re
from typing import Final

from graphlink.link.commtypes import CollectiveType, collective_type, kind_of
from graphlink.model import CommKind

SEND: Final = "send"
RECV: Final = "recv"
BARRIER: Final = "barrier"
GETS: Final = ("reducescatter", "scatter", RECV)  # NCCL is called with the elements that a rank gets, else with those that it gives
OF_MESSAGES: Final = ("alltoall", "gather", "scatter")  # NCCL makes them of sends and receives
NAMES: Final = {
    CollectiveType.ALL_REDUCE: "allreduce",
    CollectiveType.REDUCE: "reduce",
    CollectiveType.ALL_GATHER: "allgather",
    CollectiveType.GATHER: "gather",
    CollectiveType.SCATTER: "scatter",
    CollectiveType.BROADCAST: "broadcast",
    CollectiveType.ALL_TO_ALL: "alltoall",
    CollectiveType.REDUCE_SCATTER: "reducescatter",
    CollectiveType.REDUCE_SCATTER_BLOCK: "reducescatter",
    CollectiveType.BARRIER: BARRIER,
}
_KERNEL: Final = re.compile(r"[nr]ccl(?:(?:Dev)?Kernel_)?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)(?:_|Ring|Tree)")


def function_of(name: str) -> str:
    """Of a recorded name (``_allgather_base``, ``nccl:all_reduce``, ``gloo:send``); "" where it tells none."""
    kind = kind_of(name)
    if kind is not CommKind.COLLECTIVE:
        return {CommKind.SEND: SEND, CommKind.RECV: RECV}.get(kind, "")
    type_ = collective_type(name)
    assert type_ is not None, name
    return NAMES[type_]


def function_of_kernel(name: str) -> str:
    """Of a kernel's name (``ncclDevKernel_AllReduce_Sum_f32_RING_LL``); "" for sends, receives and all that is made of them."""
    found = _KERNEL.match(name)
    return found[1].lower() if found else ""
