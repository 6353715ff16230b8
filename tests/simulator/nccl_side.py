"""A side file that is to be written, and who writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_records import TrueClock
from tests.simulator.dialects import EPOCH_NS
from tests.simulator.nccl_calls import NcclCall
from tests.simulator.nccl_records import NcclProfile
from tests.simulator.nccl_steps import ProxyOp


@cache
def _drawn(below: int, *seed: int) -> int:
    return int(np.random.default_rng(seed).integers(below))


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
        return EPOCH_NS - self.profile.steady_ns + _drawn(1_000_000, self.run.training.seed, 7, self.pid)

    def gpu_ns(self, rank: int, true_ns: int) -> int:
        """On the clock of a rank's GPU, in steps of 32 ns."""
        return (true_ns + _drawn(self.profile.gpu_off_ns + 1, self.run.training.seed, 8, rank)) // 32 * 32

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
