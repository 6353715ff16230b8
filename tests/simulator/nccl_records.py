"""What a profiler of a simulated cluster is told to do (``NcclProfile``), and what is true of the files that it
wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

KINDS = ("plugin", "plugin-2.30", "proxy", "inspector", "inspector-verbose", "flight-json", "flight-pickle")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclProfile:
    """``kind``: one of ``KINDS``. Faults:

    ``began``, ``ended``: shares of the run; calls before and after them are not recorded. ``last``: only so many last
    calls of each communicator survive (a ring). ``dropped``: share of calls lost anywhere. ``zero_times``: share of
    calls whose begin is 0. ``cut``: the file ends after that share of its bytes. ``ranks_a_process``: ranks that share
    a process, and with it pid, clock and file. ``min_bytes``: smaller messages are not recorded. ``steady_ns``: what
    the plugin's clock shows as the run begins, if it began before. ``gpu_off_ns``: the clock of a GPU is off by up to
    so much. ``kernel_channels``, ``proxy_steps``: recorded, too. ``jitter_ns``: of the host between NCCL's call and its
    launch. ``network_states``: steps of each proxy op. ``message_pairs``: messages have communicators of their two
    ranks.
    """

    kind: str = "plugin"
    began: float = 0.0
    ended: float = 1.0
    last: int | None = None
    dropped: float = 0.0
    zero_times: float = 0.0
    cut: float | None = None
    ranks_a_process: int = 1
    min_bytes: int = 0
    steady_ns: int = 1_467_000_000
    gpu_off_ns: int = 9_000_000_000
    kernel_channels: bool = False
    proxy_steps: bool = False
    jitter_ns: int = 1_500
    network_states: int = 2
    message_pairs: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no side file is called {self.kind!r}: {', '.join(KINDS)}")


class TrueStep(NamedTuple):
    """A state of a proxy step, in true ns since the epoch. ``state``: gpu, peer, wire, receive."""

    state: str
    start_ns: int
    end_ns: int


class TrueCall(NamedTuple):
    """A call in a file, in the order in which it is written. ``kernel``: correlation of the kernel in the rank's trace
    that it is; None where that was not recorded or stands for several calls. ``offset_ns``: trace = file's clock +
    offset, at the call."""

    rank: int
    communicator: int  # hash
    function: str
    seq: int
    kernel: int | None
    offset_ns: int
    steps: tuple[TrueStep, ...]
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class TrueFile:
    """``ranks``: whose calls are in it; ``process``: the ranks of the process that wrote it."""

    path: Path
    ranks: tuple[int, ...]
    process: tuple[int, ...]
    calls: tuple[TrueCall, ...]
