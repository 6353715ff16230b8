"""What a simulated pipeline is told to do (``PipelineTraining``) and what is true of it (``TrueRange``,
``TrueIdle``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tests.simulator.pipeline_host import OpenEnd
from tests.simulator.pipeline_losses import Loss
from tests.simulator.pipeline_names import RANGE_NAMES
from tests.simulator.pipeline_orders import SPLIT


@dataclass(frozen=True, slots=True)
class PipelineTraining:
    """A training run of ``stages`` ranks. Times are those of one range: one number for all, or one a virtual stage
    (chunk * stages + rank).

    ``transfer_ns``: delay on each boundary of virtual stages. With ``visible`` a send and a receive kernel show it, on
    streams of their own; else nothing does and nothing occupies the GPU ("pure"). A full backward takes ``input_ns +
    weight_ns``. ``autograd_thread``: backward is launched by a thread of its own while the main thread sits in the
    range. ``jitter_ns``: each range takes up to that much longer, by its place alone, so a run with a loss has the same
    jitter as one without. Several steps need the barrier that ``norm_ns`` is (an all-reduce before the optimizer), or
    their ranks start together all the same. ``gather_ns``: a parameter all-gather after the optimizer.
    """

    schedule: str = "1F1B"
    stages: int = 4
    microbatches: int = 8
    chunks: int = 1
    forward_ns: int | tuple[int, ...] = 1_000_000
    input_ns: int | tuple[int, ...] = 1_000_000
    weight_ns: int | tuple[int, ...] = 1_000_000
    transfer_ns: int | tuple[int, ...] = 0
    visible: bool = False
    kernels: int = 1  # a range
    steps: int = 1
    optimizer_ns: int = 0
    norm_ns: int = 0
    gather_ns: int = 0
    names: str = "torch"  # key of ``RANGE_NAMES``
    autograd_thread: bool = True
    jitter_ns: int = 0
    losses: tuple[Loss, ...] = ()

    def __post_init__(self) -> None:
        virtual = self.stages * self.chunks
        for name in ("forward_ns", "input_ns", "weight_ns", "transfer_ns"):
            given = getattr(self, name)
            wanted = virtual - 1 if name == "transfer_ns" else virtual
            if isinstance(given, tuple) and len(given) != wanted:
                raise ValueError(f"{name} has {len(given)} entries, not {wanted}")
        if self.names not in RANGE_NAMES:
            raise ValueError(f"nobody names ranges like {self.names!r}: {', '.join(RANGE_NAMES)}")
        if self.schedule in SPLIT and not RANGE_NAMES[self.names].split:
            raise ValueError(f"{self.names} has no names for the split backward of {self.schedule}")
        if self.chunks > 1 and not RANGE_NAMES[self.names].interleaves:
            raise ValueError(f"{self.names} runs one chunk a rank, not {self.chunks}")
        if self.steps < 1 or self.kernels < 1:
            raise ValueError("a run has 1 or more steps, a range 1 or more kernels")
        if min(_each(self.forward_ns, 1) + _each(self.input_ns, 1) + _each(self.weight_ns, 1)) < self.kernels:
            raise ValueError("a kernel takes 1 ns or more")
        if min(*_each(self.transfer_ns, 1), self.jitter_ns, self.optimizer_ns, self.norm_ns, self.gather_ns) < 0:
            raise ValueError("nothing takes less than no time")
        if self.visible and min(_each(self.transfer_ns, virtual - 1)) < 1:
            raise ValueError("a visible transfer takes time: transfer_ns is 1 or more")
        if (self.norm_ns or self.gather_ns) and not self.optimizer_ns:
            raise ValueError("norm_ns and gather_ns need an optimizer: optimizer_ns")

    def range_ns(self, phase: str, stage: int) -> int:
        """How long the range of a phase on a virtual stage computes."""
        if phase == "B":
            return self.range_ns("I", stage) + self.range_ns("W", stage)
        given = {"F": self.forward_ns, "I": self.input_ns, "W": self.weight_ns}[phase]
        return given if isinstance(given, int) else given[stage]

    def jittered_ns(self, phase: str, stage: int, step: int, position: int) -> int:
        """The same with its jitter; ``position`` in the order of the rank."""
        more = Random(f"{stage} {step} {position}").randint(0, self.jitter_ns) if self.jitter_ns else 0
        return self.range_ns(phase, stage) + more

    def boundary_ns(self, stage: int) -> int:
        """Transfer delay between a virtual stage and the next one, either way."""
        return self.transfer_ns if isinstance(self.transfer_ns, int) else self.transfer_ns[stage]


def _each(given: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    return (given,) * count if isinstance(given, int) else given


class TrueRange(NamedTuple):
    """A range as it ran: from the start of its first compute kernel to the end of its last."""

    rank: int
    stage: int  # virtual: chunk * stages + rank
    chunk: int
    phase: str
    microbatch: int
    step: int
    start_ns: int
    end_ns: int
    busy_ns: int


class TrueIdle(NamedTuple):
    """A stretch of a rank without compute; ``optimizer_sync`` lies outside the makespan, the others inside."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    cause: str


@dataclass(slots=True, eq=False)
class Message:
    """What a range sends to a neighbour. ``ready_ns``: when it is made. ``arrival_ns``: -1 until both its kernels are
    known.
    """

    ready_ns: int
    transfer_ns: int
    before: Message | None = None  # on the same link
    send: OpenEnd | None = None
    arrival_ns: int = -1

    def receive(self, posted_ns: int) -> int:
        """A receive kernel starts at ``posted_ns``: the transfer begins when both are there. Returns its beginning."""
        assert self.send is not None, "visible messages have a send kernel"
        assert self.before is None or self.before.arrival_ns >= 0, "messages of a link arrive in order"
        sent_ns = max(self.ready_ns, self.before.arrival_ns if self.before else -1)
        begins_ns = max(sent_ns, posted_ns)
        self.arrival_ns = begins_ns + self.transfer_ns
        self.send.close(sent_ns, self.arrival_ns)
        self.before = None
        return begins_ns


@dataclass(slots=True)
class Job:
    """What the ranks tell each other: messages by key, and meetings of several, with a time a participant. ``finish``
    wakes who waits.
    """

    finish: Callable[[object], None]
    done: set[object] = field(default_factory=set)
    messages: dict[object, Message] = field(default_factory=dict)
    meetings: dict[object, dict[int, int]] = field(default_factory=dict)

    def meet(self, key: object, rank: int, ns: int, participants: int) -> Iterator[object]:
        times = self.meetings.setdefault(key, {})
        times[rank] = ns
        if len(times) == participants:
            self.finish(key)
        else:
            yield key

    def last_ns(self, key: object) -> int:
        return max(self.meetings[key].values())
