"""What a run has written, as advice asks it, and the what-if of a candidate."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET

from graphlink import output_names
from graphlink.advice.records import Advice
from graphlink.gpu.records import load as load_idle
from graphlink.gpu.table import late_lines, rank_idle, replay_words
from graphlink.model import Bool
from graphlink.operations.records import Kernel, Operation, Operations, of_files
from graphlink.patterns import UserPattern
from graphlink.records import in_function, shortened
from graphlink.replay.band import Recorded, recorded
from graphlink.replay.changes import SORT_OF, Changes, TimeChange
from graphlink.replay.selection import Selection
from graphlink.replay.syncs import RUNTIME_CALL
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.report.summary import Rank, Summary
from graphlink.tables import least, sums


class Candidate(NamedTuple):
    """What may be worth a change, and the what-if that computes its gain: None where none does, and ``why_not`` says
    why. ``cause``: of those with the same one the best is kept; "" for one of its own. ``seldom``: how many steps there
    are for each that it is in. Commands in texts are of the folder ``DIR``."""

    advice: Advice
    changes: Changes | None
    cause: str = ""
    seldom: float = 1.0


class Tools(NamedTuple):
    """What shows the processes on a GPU, what its clocks, the types of numbers that its matrix units take, what its
    libraries do once, and what loads the code of all kernels at the start."""

    processes: str
    clocks: str
    types: str
    starts: str
    loads: str


NVIDIA: Final = Tools(
    "nvidia-smi",
    "nvidia-smi -q -d PERFORMANCE, graphlink --nvidia-smi",
    "fp16 by torch.autocast, or from Ampere on bf16 or TF32 (torch.set_float32_matmul_precision('high'))",
    "CUDA starts, cuDNN chooses an algorithm (torch.backends.cudnn.benchmark), ",
    "CUDA_MODULE_LOADING=EAGER",
)
BEFORE_AMPERE: Final = NVIDIA._replace(
    types="fp16 by torch.autocast with torch.amp.GradScaler, as these GPUs have no tensor cores for bf16 or TF32"
)
_AMPERE: Final = (8, 0)
AMD: Final = Tools(
    "rocm-smi --showpids",
    "rocm-smi",
    "fp16 or bf16 by torch.autocast",
    "HIP starts, MIOpen chooses an algorithm (torch.backends.cudnn.benchmark), ",
    "HIP_ENABLE_DEFERRED_LOADING=0",
)


OTHER: Final = AMD._replace(processes="the tool of its vendor", clocks="the tool of its vendor", starts="")


@dataclass(frozen=True)
class Outputs:
    """What a run has written, of the ranks that advice is for."""

    summary: Summary
    ranks: tuple[int, ...]
    work: Workload
    operations: Mapping[int, Operations]
    folder: Path | None = None  # of its files; None: these are not asked

    @cached_property
    def tools(self) -> Tools:
        """Return the tools of the vendor of its GPUs; OTHER where no call is of CUDA or HIP."""
        machines = [rank.machine for rank in ranks_of(self) if rank.machine is not UNSET]
        of_amd = any(each.system.hip or any(name.startswith("AMD") for name in each.gpus) for each in machines)
        older = any(each.capability is not UNSET and each.capability < _AMPERE for each in machines)
        calls = {part.name for file in self.operations.values() for part in file.parts if part.of.endswith("call")}
        known = not calls or any(map(RUNTIME_CALL.fullmatch, calls))
        return AMD if of_amd else BEFORE_AMPERE if older else NVIDIA if known else OTHER

    @cached_property
    def selection(self) -> Selection:
        """Return what chooses nodes of ``work``, for all that is asked of it."""
        costs_ns = {rank: record.recorder_ns for rank, record in self.records.items()}
        return Selection(self.work, of_files(self.operations), recorder_ns=costs_ns)

    @cached_property
    def records(self) -> dict[int, Recorded]:
        """Return what the bands of gains know of the ranks."""
        return recorded(self.summary.ranks)

    @cached_property
    def recorded(self) -> str:
        """Return how many replays of CUDA graphs are recorded, behind how long GPUs were idle; "" where all are."""
        return replay_words(*(one for rank in ranks_of(self) for one in rank.gpu))

    @property
    def kernels(self) -> Iterator[tuple[Operation, Kernel]]:
        """Yield the device ops of one name of each operation."""
        for file in self.operations.values():
            yield from ((operation, kernel) for operation in file.operations for kernel in operation.kernels)

    @cached_property
    def uploads(self) -> Bool:
        """Return the copies that come once: before the first kernel of their rank, and in no marked step."""
        begin_ns, kernels = self.work.column("start_ns"), self.work.work == Work.KERNEL
        first_ns = least(len(self.ranks), self.work.member[kernels], begin_ns[kernels])[self.work.member]
        before = (begin_ns < first_ns) & (self.selection.step == 0) & (self.work.work == Work.COPY)
        return np.asarray(before & kernels.any())

    @property
    def turns(self) -> str:
        """Return how many late starts are of one length, as where another process has a device in turns, of the first
        rank with such ones, in words; "" where none has."""
        ranks = [rank.rank for rank in ranks_of(self) if rank.gpu] if self.folder else []
        idle = (rank_idle(load_idle(Path(self.folder or ".", output_names.idle(rank))), 0) for rank in ranks)
        return (
            next((late_lines(late)[0] for rank in idle for late in rank.late_starts if late), "")
            .partition(":")[0]
            .strip()
        )


def scaled(*scales: tuple[Work, str, float], rank: int | None = None) -> Changes:
    """Return a what-if: sorts of work, patterns of names ("" = all) and factors; of one rank, if it is set."""
    return Changes(
        tuple(
            TimeChange(
                sort=SORT_OF[work], name=UserPattern(pattern, "advice") if pattern else None, scale=factor, rank=rank
            )
            for work, pattern, factor in scales
        )
    )


def ranks_of(run: Outputs) -> list[Rank]:
    return [one for one in run.summary.ranks if one.rank in run.ranks]


def idle_ns_of(run: Outputs, cause: str) -> int:
    """Return how long the devices of all ranks were idle for a cause."""
    return sum(one.idle_by_cause_ns.get(cause, 0) for rank in ranks_of(run) for one in rank.gpu)


def ns_of(run: Outputs, pattern: str, sort: Work) -> int:
    """Return what nodes of a sort cost whose name a pattern finds."""
    return run.selection.own_ns(names_found(run.work, re.compile(pattern)) & (run.work.work == sort))


def whose_work(run: Outputs, nodes: Bool) -> Operation | None:
    """Return the operation that has most of the time of nodes; None where none is recorded."""
    most_ns, out = 0, None
    for (low, high), rank in zip(run.work.bounds, run.ranks, strict=True):
        if rank in run.selection.operations:
            some, of_node = run.operations[rank].operations, run.selection.operations[rank].of_node[: high - low]
            at = slice(low, low + len(of_node))  # the file may be of another graph, and shorter
            spent_ns = sums(len(some) + 1, of_node + 1, np.where(nodes[at], run.work.cost_ns[at], 0))[1:]
            if len(some) and spent_ns.max() > most_ns:
                most_ns, out = int(spent_ns.max()), some[int(spent_ns.argmax())]
    return out


def beside(run: Outputs, whose: Operation | None, pattern: str) -> bool:
    """Tell whether ops of names that a pattern finds are called in the module, or range, that calls an operation."""
    around = [*takewhile(lambda name: not name.startswith("aten::"), whose.path if whose else ())]
    return any(
        op.path[: len(around)] == around and any(re.search(pattern, name) for name in op.path[len(around) :])
        for file in run.operations.values()
        for op in file.operations
    )


def where_called(whose: Operation | None, name: str = "") -> str:
    """Return what calls the work of a name most, and in which function: ``, most in Block/aten::mm, in function step
    (train.py:12)``; "" where neither is known."""
    names = [] if whose is None else whose.path[:-2] if whose.kind == "launch" else whose.path
    path = [shortened(part) for part in names if part != name]
    line = f", in {in_function(whose.stack[-1])}" if whose and whose.stack else ""
    return f", most in {'/'.join(path[-2:])}" * bool(path) + line
