"""The role of a runtime or driver call, by its name, for CUDA, HIP and the runtimes of other devices (docs/edges.md,
"Other devices").
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Final

import numpy as np

from graphlink.model import I64, U8, CallRows
from graphlink.tables import spread


class Role(IntEnum):
    OTHER = 0  # launches too: what launches is known by correlation, not by name
    RECORD = 1
    STREAM_WAIT = 2
    STREAM_SYNC = 3
    DEVICE_SYNC = 4
    EVENT_SYNC = 5
    EVENT_QUERY = 6
    COPY = 7  # returns when the copy is done
    COPY_ASYNC = 8  # returns early, unless host memory is pageable


SYNCS: Final = (Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC)
WAITS: Final = (*SYNCS, Role.COPY)  # in which the host blocks until device work is done
_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds|_spt)+$")
_EXACT = {
    "EventRecord": Role.RECORD,
    "EventRecordWithFlags": Role.RECORD,
    "StreamWaitEvent": Role.STREAM_WAIT,
    "StreamSynchronize": Role.STREAM_SYNC,
    "DeviceSynchronize": Role.DEVICE_SYNC,
    "CtxSynchronize": Role.DEVICE_SYNC,
    "ThreadSynchronize": Role.DEVICE_SYNC,
    "EventSynchronize": Role.EVENT_SYNC,
    "EventQuery": Role.EVENT_QUERY,
}
# Runtimes that copied CUDA's model call it otherwise: aclrtSynchronizeStream (Ascend), urQueueFinish and
# zeEventHostSynchronize (XPU), cnrtQueueWaitNotifier (MLU), musaStreamWaitEvent, "enqueueCommand waitOnEvent" (MTIA).
# The first that fits holds.
_BY_WORDS = tuple(
    (re.compile(words, re.IGNORECASE), role)
    for words, role in (
        (r".*(event|notifier|fence).*(?<!a)sync|.*(?<!a)sync.*(event|notifier|fence)", Role.EVENT_SYNC),
        (r".*(stream|queue).*((?<!a)sync|finish)|.*(?<!a)sync.*(stream|queue)", Role.STREAM_SYNC),
        (r".*(device|context|ctx).*(?<!a)sync|.*(?<!a)sync.*(device|context|ctx)", Role.DEVICE_SYNC),
        (r".*record.*event|.*event.*record|.*place.*notifier", Role.RECORD),
        (r".*(stream|queue).*wait.*(event|notifier)|.*enqueue.*event.*wait|.*event.*wait.*barrier", Role.STREAM_WAIT),
        (r".*wait.*(event|notifier)|.*(event|notifier).*wait", Role.EVENT_SYNC),
        (r".*event.*query|.*query.*event", Role.EVENT_QUERY),
        (r".*memcpy.*async|.*(enqueue|append).*memcpy|.*memcpy.*enqueue", Role.COPY_ASYNC),
        (r".*memcpy", Role.COPY),
    )
)


@lru_cache(maxsize=4096)
def role_of(name: str) -> Role:
    """Return the role of a call by its recorded name, e.g. ``cudaMemcpyAsync_v3020`` or ``hipEventQuery``."""
    for prefix in ("cuda", "cu", "hip"):
        if name.startswith(prefix):
            bare = _SUFFIX.sub("", name[len(prefix) :])
            break
    else:
        return next((role for words, role in _BY_WORDS if words.match(name)), Role.OTHER)
    if bare.startswith("Memcpy"):
        return Role.COPY_ASYNC if "Async" in bare else Role.COPY
    return _EXACT.get(bare, Role.OTHER)


def roles(calls: CallRows, strings: tuple[str, ...]) -> U8:
    """Return ``Role`` of every call; shape (len(calls),)."""
    used = np.flatnonzero(spread(len(strings), calls.name, 1, 0))
    of_used = np.array([role_of(strings[i]) for i in used], np.uint8)
    return spread(len(strings), used, of_used, Role.OTHER)[calls.name]


def call_order(calls: CallRows) -> I64:
    """Return the place of each call in the order in which calls began (ties, as in integer us: by correlation id)."""
    count = len(calls.start_ns)
    return spread(count, np.lexsort((calls.correlation, calls.start_ns)), np.arange(count))
