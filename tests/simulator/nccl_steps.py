"""What the proxies of a call did in a simulated cluster: chunks on their way through the network, channel by
channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_records import NOWHERE
from tests.simulator.nccl_calls import NcclCall
from tests.simulator.nccl_records import NcclProfile

CHANNELS = 2
SEND_STATES = ("SendGpuWait", "SendPeerWait", "SendWait")
RECV_STATES = ("RecvWait", "RecvFlushWait", "RecvGpuWait")
MEANS = {
    "SendGpuWait": "gpu", "SendPeerWait": "peer", "SendWait": "wire", "RecvWait": "receive", "RecvFlushWait": "wire", "RecvGpuWait": "gpu",
}  # fmt: skip


class ProxyOp(NamedTuple):
    """``steps``: of each step the ends of its states; they follow each other from the step's begin. True ns since the
    epoch.
    """

    channel: int
    peer: int
    sends: bool
    bytes: int
    steps: tuple[tuple[int, ...], ...]  # begin, end of the first state, of the second, of the third

    @property
    def names(self) -> tuple[str, str, str]:
        return SEND_STATES if self.sends else RECV_STATES

    def states(self) -> Iterator[tuple[str, int, int]]:
        for bounds in self.steps:
            for k, name in enumerate(self.names):
                yield MEANS[name], bounds[k], bounds[k + 1]


def proxy_ops(run: ClusterRun, profile: NcclProfile, call: NcclCall) -> tuple[ProxyOp, ...]:
    """A collective sends to the next member and receives from the one before, on each channel; a message goes
    one way.
    """
    rng = np.random.default_rng([run.training.seed, 11, call.rank, call.op])
    ways = []
    if call.peer == NOWHERE:
        ways = [(True, (call.member + 1) % call.size), (False, (call.member - 1) % call.size)]
    elif call.peer != call.member:
        ways = [(call.function == "Send", call.peer)]
    found = []
    for channel in range(CHANNELS):
        for sends, peer in ways:
            length = call.end_ns - call.start_ns
            count = profile.network_states
            bounds = np.sort(rng.integers(0, length + 1, (count, 4)), axis=1) + call.start_ns
            bounds = bounds[np.argsort(bounds[:, 0], kind="stable")]
            found.append(
                ProxyOp(channel, peer, sends, call.bytes // CHANNELS, tuple(tuple(row) for row in bounds.tolist()))
            )
    return tuple(found)
