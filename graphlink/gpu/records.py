"""What each device spent its time on, as ``summary.json`` and ``idle.<rank>.json`` have it (docs/idle.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from graphlink import output_names
from graphlink.causes import CauseName, Reasons
from graphlink.figures import figure
from graphlink.model import I64
from graphlink.read import document
from graphlink.read.document import Formatted
from graphlink.records import Short
from graphlink.wings import RowTable

OverTime = dict[str, Annotated[str, msgspec.Meta(pattern="^[0-9A-Za-z]*$")]]  # a character a bin, as `over_time` says


class GroupTime(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Communication of one group on a device: the union of its ops, and of it ``exposed_ns``, beside which no compute
    ran.

    ``name`` as recorded, ``ranks`` its members; both empty for ops whose group is not known.
    """

    name: Annotated[str, figure("group")]
    ranks: Annotated[list[int], figure("its ranks", unit="numbers")]
    comm_ns: Annotated[int, figure("communication", head="ms")]
    exposed_ns: Annotated[int, figure(means="exposed_communication")]

    @property
    def hidden(self) -> tuple[int, int]:
        return self.comm_ns - self.exposed_ns, self.comm_ns


class StreamTime(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a device: when any of its ops ran, and the rest of the device's time."""

    stream: int
    busy_ns: int
    idle_ns: int

    @property
    def busy(self) -> tuple[int, int]:
        return self.busy_ns, self.busy_ns + self.idle_ns


class DeviceTime(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Time of one device, on its own clock: compute + exposed communication + exposed copies + idle = ``to_ns`` -
    ``from_ns`` exactly.

    ``compute_ns``: union of kernels that are no communication, and of memsets; ``exposed_comm_ns``: union of
    communication outside it; ``exposed_copy_ns``: union of copies outside both. ``comm_ns``, ``copy_ns``: the unions,
    hidden or not. ``idle_by_cause_ns`` adds up to ``idle_ns`` exactly. Times are since the start of the graph.
    ``excluded_ns``: of exposed communication, what waited for other ranks in collectives that are excluded
    (docs/ranks.md), which counts in no share; absent where none did.

    Shares are of 1, and absent where there is nothing to divide by (docs/idle.md). ``by_group``, ``by_stream``,
    ``over_time``: only of a device in all.
    """

    device: Annotated[int, figure(spare=1)]
    from_ns: int  # first start of a device op; of a step, its mark
    to_ns: int
    compute_ns: int
    exposed_comm_ns: Annotated[int, figure("exposed communication")]
    exposed_copy_ns: Annotated[int, figure("exposed copies", means="exposed_copy")]
    idle_ns: int
    comm_ns: int
    copy_ns: int
    idle_by_cause_ns: dict[str, int]
    excluded_ns: int | UnsetType = UNSET
    replays: Annotated[
        tuple[int, int] | UnsetType,
        figure(
            "replays recorded",
            "launches of CUDA graphs whose work is recorded, of all; where some of the recording have none and no "
            "other device ran graphs. Of a step: those that began in it. What the others ran counts as idle",
            unit="of all",
            head="replays",
        ),
    ] = UNSET
    utilisation: Annotated[float | UnsetType, figure(text="busy time (all but idle) / all time")] = UNSET
    est_sm_efficiency: Annotated[
        float | UnsetType,
        figure(
            "SM efficiency",
            "estimated: sum(min(blocks / SMs, 1) x time) / sum(time) of the kernels that tell their grid",
        ),
    ] = UNSET
    hidden_share: Annotated[
        float | UnsetType,
        figure(
            "hidden comm",
            "the share of communication that is hidden: 1 - exposed / all communication",
            unit="of one",
            means="hidden",
        ),
    ] = UNSET
    hta_overlap_share: Annotated[
        float | UnsetType,
        figure(text="HTA's overlap: communication beside which a kernel ran / all communication", unit="of one"),
    ] = UNSET
    by_group: Annotated[
        list[GroupTime] | UnsetType,
        figure(
            text="communication of each group, and what of it is exposed. Ops of two groups may run at once, so groups "
            "may add up to more than the device's"
        ),
    ] = UNSET
    by_stream: Annotated[
        list[StreamTime] | UnsetType,
        figure(
            text="busy and idle time of each stream. Streams work side by side, so they add up to more than the "
            "device's"
        ),
    ] = UNSET

    over_time: Annotated[
        OverTime | UnsetType,
        figure(
            text="in `summary.json` alone: what the device did over time, by what it was busy with or why it was "
            "idle: its time is cut into "
            "bins of one length, and a character for each says how much of it, from `0` (nothing) over `9`, `A` to `Z` "
            "and `a` to `z` (all of it)"
        ),
    ] = UNSET

    def counting(self) -> DeviceTime:
        """Return the device without its waiting that is excluded, as if that had not been."""
        ns = self.excluded_ns or 0
        less = {"to_ns": self.to_ns - ns, "comm_ns": self.comm_ns - ns, "exposed_comm_ns": self.exposed_comm_ns - ns}
        return msgspec.structs.replace(self, **less, excluded_ns=UNSET)

    @property
    def whole_ns(self) -> Annotated[int, figure(means="gpu_time")]:
        return self.to_ns - self.from_ns

    @property
    def busy(self) -> tuple[int, int]:
        return self.whole_ns - self.idle_ns, self.whole_ns

    @property
    def idle_share(self) -> Annotated[tuple[int, int], figure(unit="part", means="idle")]:
        return self.idle_ns, self.whole_ns - (self.excluded_ns or 0)

    @property
    def mostly(self) -> Annotated[str, figure(head="idle most by", unit="cause")]:
        return max(self.idle_by_cause_ns, key=self.idle_by_cause_ns.__getitem__, default="")


class StepTime(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A step that the recording marks, and the time of each device in it, cut at the marks."""

    name: str
    start_ns: int
    end_ns: int
    gpu: list[DeviceTime]


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a device spent longer in a step than in the median of the others: on ``what``, ``compute`` or a cause
    of idle time.
    """

    device: int
    what: str
    ns: int


class Iterations(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The steps in figures. The first is set aside, as it may hold what is done once: ``mean_ns`` to ``longest_ns`` are
    of the others, None where there are none.

    ``key``: the name that tells where steps begin or end; ``found_by``: ``mark``, ``range``, ``optimizer``,
    ``zero_grad`` or ``repeated`` (docs/idle.md). ``spread_ns``: the standard deviation. ``slowest``: of the others, an
    index of ``steps``, None where none is longer than the rest by more than their spread; ``why``: what it took longer
    for than the median of the others, the largest first. ``bare_ns``: the median of steps around the recorded ones of
    which nothing was recorded, as ``graphlink.capture`` keeps them. ``on_device_ns``: from the first work of one of the
    others on a device to that of the next, the median of the slowest device, where the host ran ahead of it: all of
    these times are longer than its steps, by more than its steps differ.
    """

    key: str
    found_by: str
    count: int
    first_ns: int
    mean_ns: int | None = None
    spread_ns: int | None = None
    median_ns: int | None = None
    shortest_ns: int | None = None
    longest_ns: int | None = None
    slowest: int | None = None
    why: list[Excess] = []
    bare_ns: int | UnsetType = UNSET
    on_device_ns: int | UnsetType = UNSET


@dataclass(frozen=True, slots=True, repr=False)
class Idle(Reasons):
    """Idle time of one device, disjoint and ascending, on its own clock; ``shift_ns``: by how much that is ahead of the
    host's there.

    ``evidence``: a position in ``texts`` (entry 0 is ""). ``row``: the device row that ended it, ``NOWHERE`` where
    nothing more began.
    """

    shift_ns: I64
    row: I64
    texts: tuple[str, ...]


class IdleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An interval of one cause, since the start of the graph, on the device's own clock.

    ``op`` and ``stream`` are absent where nothing more began.
    """

    device: int
    start_ns: Annotated[int, figure("at", head="at ms", unit="place")]
    end_ns: int
    cause: CauseName
    evidence: Annotated[str, figure(means="evidence")]
    op: Annotated[str | UnsetType, figure("until this began", "the op that ended it", head="until", spare=2)] = UNSET
    stream: Annotated[int | UnsetType, figure(text="of the op that ended it", spare=1)] = UNSET

    @property
    def duration_ns(self) -> Annotated[int, figure(means="idle")]:
        return self.end_ns - self.start_ns


class IdleFile(Formatted, frozen=True, kw_only=True):
    """The file. ``gpu`` and ``steps`` as in ``summary.json``; ``idle`` by device, then time."""

    rank: int
    gpu: list[DeviceTime]
    steps: list[StepTime]
    idle: list[IdleEntry]


def load(path: Path) -> IdleFile:
    """Read a file of an earlier run.

    Raises:
        InputError: it is none.
    """
    return document.load(path, IdleFile, "idle time of this version of graphlink")


TABLE: Final = RowTable(
    IdleEntry,
    ("device", "start_ns", "end_ns", "duration_ns", "cause", "evidence", "stream", "op"),
    lambda folder, rank: load(folder / output_names.idle(rank)).idle,
)
