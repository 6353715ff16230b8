"""A side file that is to be written, and who writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_records import TrueClock
from tests.simulator.dialects import EPOCH_NS
from tests.simulator.nccl_calls import NcclCall
from tests.simulator.nccl_records import NcclProfile
from tests.simulator.nccl_steps import ProxyOp


@dataclass(frozen=True, slots=True)
class Side:
    """A file that is to be written: its calls in order, their begins (0 = not recorded), and what their proxies did."""

    run: ClusterRun
    profile: NcclProfile
    pid: int
    calls: tuple[NcclCall, ...]
    timed: tuple[bool, ...]
    proxies: tuple[tuple[ProxyOp, ...], ...]

    def steady_us(self, true_ns: int) -> float:
        """On the clock of the process: us since its profiler began."""
        return (true_ns - self.zero_ns) / 1_000

    @property
    def zero_ns(self) -> int:
        """When the profiler of the process began, in true ns since the epoch."""
        late = np.random.default_rng([self.run.training.seed, 7, self.pid]).integers(1_000_000)
        return EPOCH_NS - self.profile.steady_ns + int(late)

    def gpu_ns(self, rank: int, true_ns: int) -> int:
        """On the clock of a rank's GPU, in steps of 32 ns."""
        off = np.random.default_rng([self.run.training.seed, 8, rank]).integers(self.profile.gpu_off_ns + 1)
        return (true_ns + int(off)) // 32 * 32

    def epoch_ns(self, rank: int, true_ns: int) -> int:
        """The time of day of a rank's host, as its trace has it."""
        return int(self.clock(rank).recorded(np.array([true_ns]))[0])

    def clock(self, rank: int) -> TrueClock:
        return self.run.ranks[rank].clock


@dataclass(frozen=True, slots=True)
class Writer:
    """``parts``: names of the files of a process, and the calls in each. ``steady``: whether its clock is the process's
    own.
    """

    parts: Callable[[ClusterRun, int, Sequence[NcclCall]], Iterator[tuple[str, list[NcclCall]]]]
    text: Callable[[Side], bytes]
    steady: bool
