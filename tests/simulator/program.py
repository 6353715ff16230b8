"""What a simulated machine is told to do: threads of host ops, waits and GPU calls, with every duration fixed
beforehand.

A program is plain data, so one program can be run again with scaled kernels: that run is the truth of a what-if.
All durations are integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias


class Api(Enum):
    """What a GPU call does; its name (``cudaLaunchKernel``, ``cudaLaunchCooperativeKernel``, ...) is free."""

    LAUNCH = "launch"  # enqueues work; with ``blocking`` it returns when the work ended (cudaMemcpy)
    RECORD = "record"
    WAIT_EVENT = "wait event"
    STREAM_SYNC = "stream sync"
    DEVICE_SYNC = "device sync"
    EVENT_SYNC = "event sync"
    EVENT_QUERY = "event query"
    OTHER = "other"  # no effect: cudaMalloc, cudaStreamIsCapturing, ...


@dataclass(frozen=True, slots=True)
class CommArgs:
    """A communication call as PyTorch describes it: element counts, ``group`` names a ``Group`` of the program.

    ``splits``: elements to each member and from each, of exchanges that are uneven.
    """

    name: str  # allreduce, broadcast, _allgather_base, send, recv, ...; "wait" is no collective
    dtype: str = "Float"
    elem_bytes: int = 4
    in_nelems: int = 0
    out_nelems: int = 0
    group: str = ""
    seq: int = 0
    src_rank: int | None = None  # P2P only, ranks of the group
    dst_rank: int | None = None
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Group:
    """A process group; ``ranks`` are global, ascending and evenly spread."""

    name: str
    desc: str
    ranks: tuple[int, ...]

    @property
    def stride(self) -> int:
        return self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 1


class Meeting(NamedTuple):
    """Device ops of so many programs that run together need each other."""

    key: int
    members: int


@dataclass(frozen=True, slots=True)
class Work:
    """One device op: starts ``launch_delay_ns`` after its call ended (negative: before), ``gap_ns`` after what it
    waited for.

    Both delays stay as they are when ``duration_ns`` is scaled. One with a ``meeting`` takes ``duration_ns`` from when
    its last member has started.
    """

    name: str
    duration_ns: int
    kind: str = "kernel"  # kernel | gpu_memcpy | gpu_memset
    launch_delay_ns: int = 3_000
    gap_ns: int = 1_000
    size_bytes: int = 0
    comm: CommArgs | None = None
    meeting: Meeting | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """A host op or annotation opens; ``ns`` is the own time before what comes next.

    ``seq`` is the autograd sequence number. Backward rows have ``fwd_thread``, the thread that ran the forward op; of
    the two nested rows of a backward op only the inner one, ``backward``, keeps its number in the ET.
    """

    name: str
    annotation: bool = False
    seq: int | None = None
    backward: bool = False
    fwd_thread: int | None = None
    comm: CommArgs | None = None
    ns: int = 300


@dataclass(frozen=True, slots=True)
class End:
    """The innermost open op closes; ``ns`` passes after it."""

    ns: int = 200


@dataclass(frozen=True, slots=True)
class Host:
    """The host computes for ``ns``."""

    ns: int


@dataclass(frozen=True, slots=True)
class Call:
    """A GPU API call of at least ``call_ns``; one that blocks returns ``return_ns`` after the last awaited op ended.

    Calls take effect at their start, in the order of starts over all threads. Several ``work`` entries
    (cudaGraphLaunch) run one after another on the stream. ``overhead`` names what the profiler did inside the call (it
    wants ``call_ns`` for itself).
    """

    api: Api
    name: str
    call_ns: int
    device: int = 0
    stream: int = 0
    event: int | None = None
    work: tuple[Work, ...] = ()
    blocking: bool = False
    return_ns: int = 0
    overhead: str = ""


@dataclass(frozen=True, slots=True)
class Overhead:
    """The profiler itself holds up the thread for ``ns``: "Buffer Flush", "Activity Buffer Request", "Resource", ..."""

    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class Spin:
    """The thread polls memory, without a call, until the device op that it launched last has written: ``ns`` after that
    op's end, or before it (negative). Not before it starts, and not at all if that time is over.
    """

    ns: int = 0


@dataclass(frozen=True, slots=True)
class Signal:
    """Releases the thread that awaits ``key``; costs nothing. Each key is signalled once."""

    key: str


@dataclass(frozen=True, slots=True)
class Await:
    """The thread sleeps until ``key`` is signalled, and goes on ``wake_ns`` later. It does not sleep if that happened
    before.
    """

    key: str
    wake_ns: int = 8_000


Action: TypeAlias = Begin | End | Host | Call | Overhead | Spin | Signal | Await


@dataclass(frozen=True, slots=True)
class Thread:
    """A host thread. The order of threads in a program gives PyTorch's own thread numbers, from 1."""

    name: str
    actions: tuple[Action, ...]
    start_ns: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """Threads, and what the recording says of the process around them. Device ids need not start at 0."""

    threads: tuple[Thread, ...]
    groups: tuple[Group, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    pid: int = 4242
    seed: int = 0
    host_name: str | None = None


def thread_tids(program: Program) -> tuple[int, ...]:
    """OS thread ids: the first thread is the process's main thread."""
    return tuple(program.pid if i == 0 else program.pid + 300 + 7 * i for i in range(len(program.threads)))
