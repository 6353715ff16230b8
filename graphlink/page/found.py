"""What the page of a run is made of, read from its folder: each file once, and of many ranks only those that are told
in detail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Final, TypeVar

from msgspec.structs import replace

from graphlink import output_names
from graphlink.advice.advise import advise
from graphlink.advice.kinds import Outputs
from graphlink.advice.records import AdviceReport
from graphlink.errors import InputError
from graphlink.gpu import file as idle_file
from graphlink.gpu.summary import exposed_percent, far_from_usual, idle_percent
from graphlink.graph import path_file
from graphlink.graph.read_et import read_metadata
from graphlink.graph_model import Metadata
from graphlink.operations import file as operations_file
from graphlink.operations.records import Operations
from graphlink.pipeline import file as bubbles_file
from graphlink.ranks.records import Line
from graphlink.replay.across import CriticalAcross, share_gains
from graphlink.replay.across import load as load_across
from graphlink.replay.folder import load, load_groups
from graphlink.replay.workload import Workload, workload
from graphlink.report.summary import MOST_BLOCKS, Rank, Summary
from graphlink.report.timeline import NAME as TIMELINE

MOST_NODES: Final = (
    300_000  # of the graphs that are replayed once for each piece of advice: more would take more than some seconds
)
_MOST_TOLD: Final = 4  # ranks in detail, of more than ``MOST_BLOCKS``
_ACROSS: Final = "critical_path.ranks.json"
_File = TypeVar("_File", idle_file.IdleFile, Operations, path_file.PathFile)


@dataclass(frozen=True, slots=True)
class Found:
    """The outputs of a run. ``told``: the ranks that are told in detail, and why each; ``at``: where each rank stands
    in the summary.

    ``idle`` to ``metadata`` are of those ranks, ``operations`` of all whose graphs are in ``work``: those that
    ``advice`` is for.
    """

    folder: str
    summary: Summary
    told: Mapping[int, str]
    at: Mapping[int, int]
    idle: Mapping[int, idle_file.IdleFile]
    paths: Mapping[int, path_file.PathFile]
    metadata: Mapping[int, Metadata]
    operations: Mapping[int, Operations]
    work: Workload | None
    advice: AdviceReport | None
    across: CriticalAcross | None
    bubbles: bubbles_file.Bubbles | None

    @property
    def ranks(self) -> list[Rank]:
        return self.summary.ranks

    @property
    def has_gpus(self) -> bool:
        return any(rank.gpu for rank in self.ranks)

    def rank(self, number: int) -> Rank:
        return self.ranks[self.at[number]]

    def place(self, rank: int, start_ns: int, lead_ns: int = 0) -> int | None:
        """Return where in the timeline a time of a rank is, ns on its clock; None where there is no timeline.

        ``lead_ns``: by how much the clock of the time is ahead of the host's.
        """
        known = self.metadata.get(rank)
        if TIMELINE not in self.summary.files or known is None or known.epoch_ns is None:
            return None
        clock = Line(known.clock_offset_ns, known.clock_drift_ppb / 1e9, known.epoch_ns)
        return clock.at(known.epoch_ns + start_ns - lead_ns)


def find(folder: Path, summary: Summary) -> Found:
    """Read the outputs of the run in ``folder``.

    Raises:
        InputError: a file cannot be read, or is none of this version.
    """
    ranks = summary.ranks
    told, at = told_ranks(ranks, summary), {rank.rank: k for k, rank in enumerate(ranks)}
    replayed = _replayed(ranks, told)
    operations = {
        one: _of_rank(one, folder / output_names.operations(one), operations_file.load)
        for one in sorted({*told, *replayed})
    }
    work = advice = None
    groups = load_groups(folder)
    graphs = load({one: folder / output_names.graph(summary.options.name, one) for one in replayed})
    if graphs:
        work = workload(graphs)
        outputs = Outputs(summary, tuple(graphs), work, {one: operations[one] for one in graphs})
        advice = advise(outputs, groups, str(folder), whole=len(graphs) == len(ranks))
    across = load_across(folder / _ACROSS) if (folder / _ACROSS).is_file() and len(ranks) > 1 else None
    if across is not None and not across.stuck and len(graphs) == len(ranks):
        across = replace(across, gain_ns=share_gains(graphs, groups))
    return Found(
        folder=str(folder),
        summary=summary,
        told=told,
        at=at,
        idle={one: _of_rank(one, folder / output_names.idle(one), idle_file.load) for one in told},
        paths={one: _of_rank(one, folder / output_names.critical_path(one), path_file.load) for one in told},
        metadata={one: read_metadata(folder / output_names.graph(summary.options.name, one)) for one in told},
        operations=operations,
        work=work,
        advice=advice,
        across=across,
        bubbles=bubbles_file.load(folder / bubbles_file.NAME) if summary.pipeline else None,
    )


def _of_rank(rank: int, path: Path, load_file: Callable[[Path], _File]) -> _File:
    file = load_file(path)
    if file.rank != rank:
        raise InputError(
            f"is of rank {file.rank}, not of the rank in its name", path=path, todo="run graphlink again with --force"
        )
    return file


def told_ranks(ranks: Sequence[Rank], summary: Summary) -> dict[int, str]:
    """Choose the ranks that are told in detail, and say why: of few all, of many the worst, the median, and who is far
    from it.
    """
    if len(ranks) <= MOST_BLOCKS:
        return {rank.rank: "" for rank in ranks}
    idle = {rank.rank: idle_percent(rank) for rank in ranks}
    told = dict[int, str]()
    if any(rank.gpu for rank in ranks):
        told[max(ranks, key=lambda one: (idle[one.rank], -one.rank)).rank] = "most idle"
        usual = median_low(idle.values())
        told.setdefault(next(rank for rank, share in idle.items() if share == usual), "median idle time")
        exposed = {rank.rank: exposed_percent(rank) for rank in ranks}
        most = max(exposed, key=lambda rank: (exposed[rank], -rank))
        if exposed[most] > idle[most]:
            told.setdefault(most, "most exposed communication")
    else:
        told[max(ranks, key=lambda one: (one.replay.measured_ns, -one.rank)).rank] = "longest recording"
    if summary.run and summary.run.straggler:
        told.setdefault(summary.run.straggler.rank, "comes late to others")
    held = _path_rank(summary)
    if held is not None:
        told.setdefault(held, "most of the critical path over ranks")
    for one in far_from_usual(ranks)[1]:
        told.setdefault(one.rank, "far from the usual idle time")
    return {rank: why for rank, why in list(told.items())[:_MOST_TOLD] if rank in idle}


def _path_rank(summary: Summary) -> int | None:
    """Return the rank on which most of the path over all ranks lies."""
    on = summary.run.replay.path_rank_ns if summary.run and summary.run.replay else {}
    most = max(on, key=on.__getitem__, default="")
    return int(most) if most.isascii() and most.isdecimal() else None


def _replayed(ranks: Sequence[Rank], told: Mapping[int, str]) -> list[int]:
    """Return the ranks whose graphs are replayed for advice: all, or where that would take long, the one that matters
    most.
    """
    if sum(rank.graph_nodes for rank in ranks) <= MOST_NODES or len(ranks) == 1:
        return sorted(rank.rank for rank in ranks)
    by_path = [rank for rank, why in told.items() if "critical path" in why]
    return (by_path or list(told))[:1]
