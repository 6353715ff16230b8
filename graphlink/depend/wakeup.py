"""What a synchronisation call takes only because it had to wait: from the end of what it waited for it wakes up before it returns.

A call that finds all done returns without that (in real traces: 5 to 95 % of stream and event synchronisations take 2 to 9 us then, of
device synchronisations 7 to 14). So with a faster device, as soon as nothing is left to wait for, the rest of the call is shorter.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.depend.cuda import CudaWaits
from graphlink.depend.devicetime import LATE_NS
from graphlink.link.roles import Role
from graphlink.model import I64, Bool, Linked

FREE_NS: Final = 14_000
_SYNCS: Final = (Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC)


def wake_ns(linked: Linked, cuda: CudaWaits, wait_ns: I64) -> I64:
    """Of each call: what it takes from ``wait_ns``, when the last awaited op ended, to its return, less what it takes if it finds all done.

    The latter is the median of the calls of its name in the recording that did not block; one of more than 20 us waited for something
    that the recording does not show. Where there are none it is 14 us, the most that such calls usually take: so it shows on machines that
    wake up slowly. 0 for copies, which never find their own work done, and never below 0.
    Cost: O(calls) for each name.
    """
    calls = linked.trace.calls
    blocked: Bool = wait_ns > calls.start_ns
    sync = np.isin(cuda.role, _SYNCS)
    took_ns = calls.end_ns - calls.start_ns
    free = sync & ~blocked & (took_ns <= LATE_NS)
    out = np.zeros(len(took_ns), np.int64)
    for name in np.unique(calls.name[sync & blocked]).tolist():
        mine = calls.name == name
        waited, found = mine & sync & blocked, mine & free
        free_ns = int(np.median(took_ns[found])) if found.any() else FREE_NS
        out[waited] = np.maximum(calls.end_ns[waited] - wait_ns[waited] - free_ns, 0)
    return out
