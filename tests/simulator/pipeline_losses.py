"""Time that a simulated pipeline is made to lose at a known place, by one cause.

| cause | how (the first is the default) | what happens before the kernel at the place |
| --- | --- | --- |
| launch_starved | python | its launch call comes late: the host computes |
| host_sync | stream, event, device, item | the launching thread waits for a copy that began when the stage fell idle |
| data_loading | loader, batch-generator, copy, prefetch | a range of the loader; a blocking copy; one that the stream
waits for | | memory_management | cudaMalloc, cudaFree | the launching thread is in that call | | profiler_artefact |
flush, request, first-collective | an ``overhead`` row between calls, inside the launch, at another rank | |
exposed_communication | all-reduce | all places begin a collective at the same time, it takes ``ns`` | | straggler_wait
| all-reduce | what runs before the first place takes ``ns`` longer; the others wait for it | | dependency_stall | slow
| the kernel takes ``ns`` longer: nothing is idle there, but who depends on it waits | | optimizer_sync | norm | the
norm all-reduce before the optimizer takes ``ns`` longer, outside the makespan |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.simulator.pipeline_orders import Slot

HOWS: dict[str, tuple[str, ...]] = {
    "launch_starved": ("python",),
    "host_sync": ("stream", "event", "device", "item"),
    "data_loading": ("loader", "batch-generator", "copy", "prefetch"),
    "memory_management": ("cudaMalloc", "cudaFree"),
    "profiler_artefact": ("flush", "request", "first-collective"),
    "exposed_communication": ("all-reduce",),
    "straggler_wait": ("all-reduce",),
    "dependency_stall": ("slow",),
    "optimizer_sync": ("norm",),
}
COLLECTIVES = ("all-reduce", "first-collective")
OUTSIDE = ("item", "loader", "batch-generator", "copy", "prefetch")  # on the main thread, before the range
LEAST_NS = 40_000  # a loss of the host has to hold a synchronisation call and a launch

Site = tuple[int, int, int]  # step, position in the order of the rank, kernel


@dataclass(frozen=True, slots=True)
class Place:
    """Kernel number ``kernel`` of a range of a rank."""

    rank: int
    phase: str
    microbatch: int
    chunk: int = 0
    step: int = 0
    kernel: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """``ns`` lost by ``cause`` at ``places``: one, of a collective several, the late one first. Chosen where none is
    given.

    The truth is who was waited for: a send that is on its way meanwhile does not count.
    """

    cause: str
    ns: int
    places: tuple[Place, ...] = ()
    how: str = ""

    def __post_init__(self) -> None:
        if self.cause not in HOWS:
            raise ValueError(f"no cause is called {self.cause!r}: {', '.join(HOWS)}")
        if not self.how:
            object.__setattr__(self, "how", HOWS[self.cause][0])
        if self.how not in HOWS[self.cause]:
            raise ValueError(f"{self.cause} cannot be had by {self.how!r}: {', '.join(HOWS[self.cause])}")
        if self.ns < LEAST_NS:
            raise ValueError(f"a loss takes {LEAST_NS} ns or more, not {self.ns}")

    @property
    def is_collective(self) -> bool:
        return self.how in COLLECTIVES


@dataclass(frozen=True, slots=True)
class Started:
    """A range of a run without losses: when the stage was free for it, when its input was there (-1: it has none), when
    it started.

    ``sends``: a visible transfer of what the rank made before begins when the stage is free.
    """

    place: Place
    free_ns: int
    arrival_ns: int
    start_ns: int
    sends: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """The losses of a run by rank and site. ``longer_ns``: kernels that take longer; ``groups``: who meets in a
    collective, by its name.
    """

    losses: tuple[Loss, ...]
    at: Mapping[int, Mapping[Site, Loss]]
    longer_ns: Mapping[int, Mapping[Site, int]]
    groups: Mapping[tuple[Place, ...], str]
    norm_ns: int
    opening: bool  # a collective before the first range: those that follow are not the first of the recording


def place(
    losses: Sequence[Loss],
    started: Sequence[Started],
    orders: Sequence[Sequence[Slot]],
    *,
    steps: int,
    kernels: int,
    main_thread: bool,
) -> Placed:
    """Where each loss goes. ``started`` is the run without losses; ``main_thread``: it launches backward, too.

    Raises ValueError for a place that is not there, and where none can be chosen.
    """
    chosen = tuple(replace(loss, places=_places(loss, started, main_thread)) for loss in losses)
    at: dict[int, dict[Site, Loss]] = {}
    longer: dict[int, dict[Site, int]] = {}
    position = [{slot: i for i, slot in enumerate(order)} for order in orders]
    groups: dict[tuple[Place, ...], str] = {}
    for loss in chosen:
        for i, where in enumerate(loss.places):
            site = _site(where, position, loss)
            if not (where.step < steps and where.kernel < kernels):
                raise ValueError(f"{loss.cause}: there is no {where}")
            if loss.cause == "dependency_stall":
                longer.setdefault(where.rank, {})[site] = loss.ns
                continue
            if at.setdefault(where.rank, {}).setdefault(site, loss) is not loss:
                raise ValueError(f"{loss.cause}: another loss is at {where} already")
            if loss.cause == "straggler_wait" and not i:
                step, slot, kernel = site
                before = (step, slot, kernel - 1) if kernel else (step, slot - 1, kernels - 1)
                longer.setdefault(where.rank, {})[before] = loss.ns
        if loss.is_collective:
            groups[loss.places] = str(3 + len(groups))
    met = [loss.how for loss in chosen if loss.is_collective]
    norm_ns = sum(loss.ns for loss in chosen if loss.cause == "optimizer_sync")
    return Placed(chosen, at, longer, groups, norm_ns, bool(met) and "first-collective" not in met)


def _site(where: Place, position: Sequence[Mapping[Slot, int]], loss: Loss) -> Site:
    slot = Slot(where.phase, where.chunk, where.microbatch)
    if not 0 <= where.rank < len(position) or slot not in position[where.rank] or min(where.step, where.kernel) < 0:
        raise ValueError(f"{loss.cause}: there is no {where}")
    if not position[where.rank][slot] and not where.kernel and loss.cause != "dependency_stall":
        raise ValueError(f"{loss.cause}: before the first range of a rank all is warm-up, so not at {where}")
    if where.kernel and loss.how in OUTSIDE:
        raise ValueError(f"{loss.cause} by {loss.how} happens before a range, not inside one: kernel 0")
    return where.step, position[where.rank][slot], where.kernel


def _places(loss: Loss, started: Sequence[Started], main_thread: bool) -> tuple[Place, ...]:
    """Given ones, or some in the middle of the run where nothing is idle without the loss, and best nothing else goes
    on either.
    """
    if loss.places or loss.cause == "optimizer_sync":
        if (len(loss.places) > 1) != loss.is_collective:
            raise ValueError(
                f"{loss.cause}: {len(loss.places)} places; a collective has 2 or more, everything else has 1"
            )
        return loss.places
    busy = [s for s in started if s.start_ns == s.free_ns and not s.place.step]
    if loss.cause == "data_loading" or (loss.how in OUTSIDE and not main_thread):
        busy = [s for s in busy if s.place.phase == "F"]
    busy.sort(key=lambda s: s.start_ns)
    middle_ns = busy[len(busy) // 2].start_ns if busy else 0
    stages = 1 + max(s.place.rank for s in started)
    seen: dict[int, list[Place]] = {}
    for s in sorted(busy, key=lambda s: (s.sends, s.arrival_ns == s.start_ns, abs(s.start_ns - middle_ns))):
        if not loss.is_collective:
            return (s.place,)
        for late in seen.setdefault(s.start_ns, []):
            if late.rank != s.place.rank and not _feeds(late, s.place, stages):
                return late, s.place
        seen[s.start_ns].append(s.place)
    raise ValueError(f"{loss.cause}: this schedule has no place where nothing is idle without it; give places")


def _feeds(late: Place, other: Place, stages: int) -> bool:
    """Whether what runs before ``late`` may be what the range at ``other`` needs: then that would wait for its
    input.
    """
    return (late.rank - other.rank) % stages == (stages - 1 if other.phase == "F" else 1)
