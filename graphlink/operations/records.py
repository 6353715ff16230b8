"""The operations of a rank, as ``ops.<rank>.json`` has them, written and read (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from graphlink import output_names
from graphlink.errors import InputError
from graphlink.figures import figure
from graphlink.read import document
from graphlink.read.document import Formatted
from graphlink.records import Short, percent
from graphlink.replay.selection import NodeOperations
from graphlink.wings import RowTable

OTHER_THREADS: Final = "other threads"  # the name of the part of an operation that is theirs

Kind = Literal["op", "range", "launch", "python"]
UseName = Literal["used", "not_used", "unknown", "none"]
SampledOf = Literal["device", "step", "kernel"]
PartOf = Literal["kernel", "copy", "communication", "late", "host", "call", "waiting_call"]


class TensorCores(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Device time of kernels that compute, by whether their names tell that they use tensor cores.

    ``kernels_ns`` = ``used_ns`` + ``not_used_ns`` + ``unknown_ns``. Of it ``eligible_ns`` ran for ops that libraries
    can run on tensor cores (by the op that launched), of that again ``eligible_used_ns``, ``eligible_unknown_ns`` and
    ``other_type_ns``. ``without_op_ns``: of kernels whose op is not recorded.
    """

    kernels_ns: int
    used_ns: Annotated[int, figure(text="of kernels that use them")]
    not_used_ns: Annotated[int, figure(text="of kernels that do not")]
    unknown_ns: Annotated[int, figure(text="of kernels whose names do not tell")]
    eligible_ns: Annotated[int, figure(text="device time of ops that could use tensor cores")]
    eligible_used_ns: int
    eligible_unknown_ns: int
    other_type_ns: Annotated[int, figure(text="of inputs of a type that this GPU's tensor cores do not take")]
    without_op_ns: int

    @property
    def eligible_used(self) -> Annotated[tuple[int, int], figure("on tensor cores")]:
        return self.eligible_used_ns, self.eligible_ns

    @property
    def state(self) -> Annotated[str, figure("tensor cores", unit="word")]:
        """Return whether an operation uses tensor cores: a share of its kernels' time, or why there is none; "" where
        it could not.
        """
        if self.used_ns:
            return f"used {percent(self.used_ns, self.kernels_ns)}"
        if self.unknown_ns:
            return "unknown"
        if not self.eligible_ns:
            return ""
        return "not used: type" if self.other_type_ns else "not used"


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """Device ops of one name. ``name``: demangled and short; ``whole_name``: as recorded; ``tensor_cores``: none = it
    does not compute; ``bytes``: what copies and memsets move, where that is recorded.
    """

    name: str
    whole_name: str
    count: int
    ns: Annotated[int, figure("device", head="ms", means="device_time")]
    tensor_cores: UseName
    bytes: int | UnsetType = UNSET


class Operation(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A forward op with its backward, a range, or what was launched outside any op; all calls that come from one
    ``path``.

    ``stack``: Python frames outside of PyTorch around the launch of its longest device op, or of one without any around
    its longest call, the innermost last. ``shapes``: most frequent first, the other ones only counted.
    """

    path: Annotated[list[str], figure("operation", "modules, ranges and ops, outermost first")]
    kind: Kind
    calls: Annotated[int, figure(text="forward calls; of what no op launched, device ops and calls")]
    backward_calls: int
    device_ops: int
    device_ns: Annotated[int, figure(text="sum over its device ops", means="device_time")]
    backward_device_ns: Annotated[int, figure(text="the backward's part of it")]
    host_ns: Annotated[
        int,
        figure(text="what its rows took without the rows inside them and without waiting", means="host_time", spare=2),
    ]
    backward_host_ns: Annotated[int, figure(text="the backward's part of it")]
    delay_ns: Annotated[int, figure(text="how late its device ops began, for no recorded reason")]
    gain_ns: Annotated[
        int | None,
        figure(
            text="what it would save of the time of the rank if it took no time; missing where it is none of the 100 "
            "largest"
        ),
    ]
    tensor_cores: TensorCores
    dtypes: Annotated[
        list[str],
        figure("type", "types of its inputs, the one with most device time first", unit="list", means="types", spare=4),
    ]
    shapes: list[str]
    other_shapes: int
    resized: Annotated[bool, figure(text="whether as many calls have inputs of other sizes in another step")] = False
    kernels: list[Kernel]
    stack: Annotated[list[str], figure("line", head="from")]

    @property
    def backward(self) -> Annotated[tuple[int, int] | None, figure(text="the backward's part of it", spare=1)]:
        return (self.backward_device_ns, self.device_ns) if self.backward_device_ns else None

    @property
    def longest_kernel(self) -> Annotated[Kernel | None, figure(text="the kernel with most time", spare=3)]:
        return self.kernels[0] if self.kernels else None


class HostWait(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one name from one ``path`` and Python line in which the host waited for a device, and an edge says for
    what.

    ``path``: as that of ``Operation``, [] outside any op or range; ``ns``: from the start of each call to the end of
    what it waited for; ``stack``: Python frames outside of PyTorch around the call, the innermost last, [] where none
    were recorded.
    """

    call: Annotated[str, figure(unit="word")]
    path: Annotated[list[str], figure("in")]
    count: Annotated[int, figure("calls")]
    ns: int
    stack: Annotated[list[str], figure("from")]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation has of one sort and name, step by step. A part of no operation (``operation`` None) was called
    outside any.

    ``of``: device ops (``kernel``: memsets too; ``copy``, ``communication``; by recorded name), ``late`` (starts that
    nothing explains), ``host`` (its own host time without GPU calls and waits), ``call`` and ``waiting_call`` (GPU
    calls by name, with the time blocked in them). ``operation``: a position in ``operations``. Of device ops: ``op``
    launched them, ``backward`` is that of the operation, ``streams`` are (device, stream). ``count``, ``ns``: one entry
    a step of ``steps``, before these one of what is in none. Device ops count in the step of their launch call.
    """

    operation: int | None
    of: PartOf
    name: str = ""
    op: str = ""
    backward: bool = False
    streams: list[tuple[int, int]] = []
    count: list[int]
    ns: list[int]


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph: ``node`` is its recorded id, None where it is told by the name of its device op and its turn
    in the launch.

    ``replays``: how often it ran, ``ns`` in all; ``spread_ns``: the standard deviation; ``critical``: in how many
    replays it was on the critical path. Names as in ``Kernel``.
    """

    node: int | None
    name: str
    whole_name: str
    replays: int
    ns: int
    mean_ns: Annotated[int, figure(unit="us")]
    spread_ns: Annotated[int, figure(unit="us")]
    longest_ns: Annotated[int, figure(unit="us")]
    critical: int = 0


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """What lies between a replay and the next one on its device: ``count`` times, ``ns`` in all. In ``busy_ns`` of it
    the device ran something else, ``most`` of that the op of this name."""

    count: int
    ns: int
    busy_ns: int
    most: str


class GraphReplays(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA or HIP graph and what ran behind its launches. ``graph``: its recorded id; None where launches with as
    many device ops of the same names are taken to be of one graph. ``call``: what launched it; "" where no launch was
    recorded. A replay takes ``mean_ns`` from its first device op to its last one, with a standard deviation of
    ``spread_ns``. ``on_path_ns``: of its device ops on the critical path. ``nodes`` as they run.
    """

    graph: int | None
    call: str
    replays: int
    device_ops: int
    device_ns: int
    mean_ns: int = 0
    spread_ns: int = 0
    longest_ns: int = 0
    on_path_ns: int = 0
    between: Between | None = None
    nodes: list[GraphNode]


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A line that the recorder shows work of graphs on, in place of the stream it ran on: a layer, a group. ``most``:
    the device op with most time."""

    name: Annotated[str, figure("lane")]
    device_ops: int
    device_ns: Annotated[int, figure("device", head="ms")]
    most: Annotated[str, figure("longest")]


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """The means of counters of a device, by their names: over its time, in a step, while kernels of a name ran. ``ns``:
    how long that was."""

    of: SampledOf
    name: str
    device: int
    ns: int
    means: dict[str, float]


class Operations(Formatted, msgspec.Struct, frozen=True, kw_only=True):
    """The file: the operations of a rank, most device time first, then most host time; sums of their columns are those
    of the rank.

    ``unknown``: kernels whose names do not tell whether they use tensor cores, most time first. ``gpus``: names of the
    devices. ``waits``: where the host waited, longest first. ``graphs``: what ran behind graph launches, most device
    time first; ``lanes``, ``counters``: where the recording has them. ``steps``: names, as in ``summary.json``.
    ``of_node``: of each node of the graph, in the order of ids, the position of its operation; -1 for none.
    """

    rank: int
    gpus: list[str]
    device_ops: int
    device_ns: int
    host_ns: int
    delay_ns: int
    tensor_cores: TensorCores
    unknown: list[Kernel]
    operations: list[Operation]
    waits: list[HostWait]
    of_node: list[int] = []
    steps: list[str] = []
    parts: list[Part] = []
    graphs: list[GraphReplays] = []
    lanes: list[Lane] | UnsetType = UNSET
    counters: list[Sampled] | UnsetType = UNSET


_WHAT: Final = "operations of this version of graphlink"


def load(path: Path) -> Operations:
    """Read a file of an earlier run.

    Raises:
        InputError: it is none.
    """
    file = document.load(path, Operations, _WHAT)
    wide, count = len(file.steps) + 1, len(file.operations)
    sound = all(
        len(part.count) == len(part.ns) == wide and min(part.count) >= 0 and -1 < (part.operation or 0) < max(count, 1)
        for part in file.parts
    )
    if not (sound and all(operation.path for operation in file.operations)):
        raise InputError(
            f"is no {_WHAT}: its parts do not fit together", path=path, todo="link the recording again with --force"
        )
    return file


def of_nodes(folder: Path, ranks: Iterable[int]) -> dict[int, NodeOperations]:
    """Read the operations of the nodes of those ranks whose files are in a folder.

    Raises:
        InputError: a file is none.
    """
    paths = {rank: folder / output_names.operations(rank) for rank in ranks}
    return of_files({rank: load(path) for rank, path in paths.items() if path.exists()})


def of_files(files: Mapping[int, Operations]) -> dict[int, NodeOperations]:
    """Return the operations of the nodes of ranks."""
    return {
        rank: NodeOperations(
            np.clip(np.array(file.of_node, np.int64), -1, len(file.operations) - 1),
            tuple(one.path for one in file.operations),
            tuple("\n".join(one.stack) for one in file.operations),
        )
        for rank, file in files.items()
        if file.of_node  # those of earlier versions have none
    }


_TIMES: Final = ("device_ns", "backward_device_ns", "host_ns", "backward_host_ns", "delay_ns", "gain_ns")
_CORES: Final = tuple(f"tensor_cores.{use}_ns" for use in ("eligible", "used", "not_used", "unknown", "other_type"))
TABLE: Final = RowTable(
    Operation,
    ("path", "kind", "calls", "backward_calls", "device_ops", *_TIMES, *_CORES, "dtypes", "longest_kernel"),
    lambda folder, rank: load(folder / output_names.operations(rank)).operations,
)
