"""What a simulated cluster is told to do (``ClusterTraining``) and what one rank of it recorded (``RankColumns``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

COLLECTIVE, SEND, RECV = 0, 1, 2  # kind
ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 5, 6, 7  # type, as Chakra numbers them
TYPE_NAMES = {
    ALL_REDUCE: "ALL_REDUCE",
    ALL_GATHER: "ALL_GATHER",
    BROADCAST: "BROADCAST",
    ALL_TO_ALL: "ALL_TO_ALL",
    REDUCE_SCATTER: "REDUCE_SCATTER",
}
NOWHERE = -1

SCHEDULES = ("1F1B", "GPipe")

GroupKey = tuple[tuple[int, ...], str]  # members (global ranks), recorded name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTraining:
    """A training run of ``data * tensor * pipeline`` ranks; rank = tensor index + tensor * (data index + data * stage),
    as Megatron has it.

    ``bucket_layers``: of the ``layers`` of a stage, those whose gradients are reduced at once, without ``twin``.
    ``layers``: a stage. ``expert``: ranks of an expert group, a part of a data group. ``sequence_parallel``: ALL_GATHER
    and REDUCE_SCATTER in place of the tensor groups' ALL_REDUCE. ``twin``: a second communicator of the same ranks as
    the data group takes every other gradient. ``straggler``: (rank, factor on its compute). ``jitter``: a compute block
    takes up to that share longer. A transfer takes ``alpha_ns`` plus its bytes at ``bytes_per_us``; each rank's kernel
    ends up to ``end_jitter_ns`` later. ``host_clock_offset_ns``, ``drift_ppm``: one a host, or one number: each host's
    by seed, that far off either way at most. ``events_per_rank``: so many rows a recorded rank has at least about;
    compute blocks are then cut into small kernels. ``host_jitter_ns``: the host takes that much longer over an op on
    average, each time another while. ``step_jitter``: all compute of a rank takes up to that share longer in a step,
    each step another. ``address_names``: groups are named by an address of each process, not by the number that all
    ranks share.
    """

    data: int = 2
    tensor: int = 2
    pipeline: int = 1
    expert: int = 1
    steps: int = 2
    layers: int = 2
    microbatches: int = 2
    seed: int = 0
    ranks_per_host: int = 8
    schedule: str = "1F1B"
    sequence_parallel: bool = False
    twin: bool = False
    compute_ns: int = 400_000  # a layer's forward; backward takes twice that
    jitter: float = 0.1
    step_jitter: float = 0.0
    straggler: tuple[int, float] | None = None
    activation_bytes: int = 4 << 20
    gradient_bytes: int = 8 << 20  # of the first layer; each further one has ``gradient_growth`` times as much more
    gradient_growth: int = 1
    bucket_layers: int = 1
    expert_bytes: int = 2 << 20
    alpha_ns: int = 10_000
    bytes_per_us: int = 100_000
    end_jitter_ns: int = 1_500
    host_clock_offset_ns: int | tuple[int, ...] = 0
    drift_ppm: float | tuple[float, ...] = 0.0
    events_per_rank: int = 0
    host_jitter_ns: int = 0
    address_names: bool = False

    def __post_init__(self) -> None:
        counts = (
            "data",
            "tensor",
            "pipeline",
            "expert",
            "steps",
            "layers",
            "microbatches",
            "ranks_per_host",
            "compute_ns",
            "bytes_per_us",
        )
        for name in (*counts, "bucket_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, not 1 or more")
        if self.world < 2:
            raise ValueError("a cluster has two ranks or more")
        if self.data % self.expert:
            raise ValueError(f"expert {self.expert} does not divide data {self.data}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"no schedule is called {self.schedule!r}: {', '.join(SCHEDULES)}")
        if min(self.activation_bytes, self.gradient_bytes, self.expert_bytes) < 1024:
            raise ValueError("messages have 1,024 bytes or more")
        if (
            min(
                self.jitter,
                self.step_jitter,
                self.alpha_ns,
                self.end_jitter_ns,
                self.events_per_rank,
                self.host_jitter_ns,
            )
            < 0
        ):
            raise ValueError("nothing takes less than no time")
        if self.straggler is not None and not (0 <= self.straggler[0] < self.world and self.straggler[1] > 0):
            raise ValueError(f"no rank of {self.world} straggles as {self.straggler}")
        for name in ("host_clock_offset_ns", "drift_ppm"):
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != self.hosts:
                raise ValueError(f"{name} has {len(given)} entries for {self.hosts} hosts")

    @property
    def world(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def hosts(self) -> int:
        return -(-self.world // self.ranks_per_host)

    def place(self, rank: int) -> tuple[int, int, int]:
        """(tensor index, data index, stage) of a rank."""
        return rank % self.tensor, rank // self.tensor % self.data, rank // (self.tensor * self.data)

    def transfer_ns(self, size_bytes: int) -> int:
        return self.alpha_ns + size_bytes * 1_000 // self.bytes_per_us


class TrueClock(NamedTuple):
    """What a rank's clock shows: recorded = true + offset_ns + drift * (true - from_ns), rounded to ns."""

    offset_ns: int
    drift: float
    from_ns: int

    def recorded(self, true_ns: I64) -> I64:
        late_ns: I64 = np.rint((true_ns - self.from_ns) * self.drift).astype(np.int64)
        return true_ns + self.offset_ns + late_ns


@dataclass(frozen=True, slots=True)
class RankColumns:
    """The communication kernels that a rank recorded, one entry an op in each column, sorted by start, then end.

    ``kind``: 0 collective, 1 send, 2 receive. ``type``: Chakra's number, -1 for messages. ``bytes``: the input of a
    rank (ALL_GATHER: its shard). ``group`` indexes ``groups`` (members, name as this rank recorded it). ``peer``: other
    global rank of a message, else -1. ``seq`` counts a group's collectives, and apart from them its messages, from 1.
    PyTorch counts messages on each rank for itself, so it may differ at the two ends. ``meeting``: the same number on
    all members, index into ``ClusterRun.meetings``. Times are int64 ns since the epoch: ``start_ns``, ``end_ns``,
    ``began_ns``, ``ended_ns`` and overhead on the rank's clock, ``true_*`` on the run's.
    """

    rank: int
    world_size: int
    host: str
    began_ns: int
    ended_ns: int
    groups: tuple[GroupKey, ...]
    kind: U8
    type: I32
    bytes: I64
    group: I32
    peer: I32
    tag: I64
    seq: I64
    stream: I32
    uneven: Bool
    start_ns: I64
    end_ns: I64
    true_start_ns: I64
    true_end_ns: I64
    meeting: I32
    overhead_start_ns: I64
    overhead_end_ns: I64
    clock: TrueClock

    def comms(self, *, seq: bool = True) -> dict[str, Any]:
        """The fields of graphlink's ``RankComms``, by name; without ``seq`` no sequence number was recorded."""
        same = (
            "rank", "world_size", "host", "began_ns", "ended_ns", "groups", "kind", "type", "bytes", "group", "peer", "tag",
            "start_ns", "end_ns", "uneven", "overhead_start_ns", "overhead_end_ns",
        )  # fmt: skip
        count = len(self.kind)
        return {name: getattr(self, name) for name in same} | {
            "resolution_ns": 1,
            "node": np.arange(count, dtype=np.int32),
            "row": np.arange(count, dtype=np.int32),
            "name": np.zeros(count, np.int32),
            "names": ("",),
            "seq": self.seq if seq else np.full(count, NOWHERE, np.int64),
            "on_host": np.zeros(count, np.bool_),
        }


@dataclass(frozen=True, slots=True)
class TrueMeetings:
    """What truly happened, whoever recorded it. Members of meeting m stand in ``rank[first[m]:first[m + 1]]``, by rank
    (a message: source, target), with their true times. ``group`` indexes ``ClusterRun.groups``; ``bytes`` and ``type``
    as issued.
    """

    kind: U8  # 0 collective, 1 message
    type: I32
    bytes: I64
    group: I32
    first: I64
    rank: I32
    start_ns: I64
    end_ns: I64


class RankTimes(NamedTuple):
    """One entry an op of the rank: when the host began to issue it, when it ran. ``ended_ns``: when the host was done.
    In ns since the run began."""

    issue_ns: I64
    start_ns: I64
    end_ns: I64
    meeting: I32  # NOWHERE for compute
    ended_ns: int
