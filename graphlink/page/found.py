"""What the page of a run is made of, read from its folder: each file once, and of many ranks only those that are told
in detail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from graphlink import output_names
from graphlink.errors import InputError
from graphlink.graph import path_file
from graphlink.graph.read_et import read_metadata
from graphlink.graph_model import Graph, Groups, Metadata
from graphlink.output_names import PATH_ACROSS, TIMELINE
from graphlink.page.parts import Cell
from graphlink.ranks.records import Line
from graphlink.read.document import AGAIN
from graphlink.records import time
from graphlink.replay.across import CriticalAcross, share_gains
from graphlink.replay.across import load as load_across
from graphlink.replay.folder import load, load_groups
from graphlink.replay.workload import Workload, workload
from graphlink.report.summary import MOST_BLOCKS, Rank, Summary
from graphlink.wings import Parts, RecordT, each

MOST_NODES: Final = (
    300_000  # of the graphs that are replayed once for each piece of advice: more would take more than some seconds
)
_MOST_TOLD: Final = 4  # ranks in detail, of more than ``MOST_BLOCKS``


@dataclass(frozen=True, slots=True)
class Reading:
    """What wings read their part of a page from. ``told``: the ranks that are told in detail, and why each; ``graphs``:
    those that are replayed, together in ``work``; ``parts``: of the wings before.
    """

    folder: Path
    summary: Summary
    told: Mapping[int, str]
    graphs: Mapping[int, Graph]
    work: Workload | None
    groups: Groups
    parts: Parts

    def of_rank(self, rank: int, path: Path, load_file: Callable[[Path], RecordT]) -> RecordT:
        """Read a file of a rank.

        Raises:
            InputError: it cannot be read, or is of another rank.
        """
        file: Any = load_file(path)
        if file.rank != rank:
            raise InputError(
                f"is of rank {file.rank}, not of the rank in its name",
                path=path,
                todo=AGAIN,
            )
        read: RecordT = file
        return read


@dataclass(frozen=True, slots=True)
class Found(Reading):
    """The outputs of a run. ``at``: where each rank stands in the summary; ``paths`` are of the ranks that are told in
    detail, ``metadata`` of all.
    """

    at: Mapping[int, int]
    paths: Mapping[int, path_file.PathFile]
    metadata: Mapping[int, Metadata]
    across: CriticalAcross | None

    @property
    def ranks(self) -> list[Rank]:
        return self.summary.ranks

    @property
    def has_gpus(self) -> bool:
        return any(getattr(rank, "gpu", ()) for rank in self.ranks)

    def rank(self, number: int) -> Rank:
        return self.ranks[self.at[number]]

    def place(self, rank: int, start_ns: int, lead_ns: int = 0) -> int | None:
        """Return where in the timeline a time of a rank is, ns on its clock; None where there is no timeline.

        ``lead_ns``: by how much the clock of the time is ahead of the host's.
        """
        known = self.metadata.get(rank)
        if TIMELINE not in self.summary.files or known is None or known.epoch_ns is None:
            return None
        return self.run_ns(rank, start_ns - lead_ns)

    def run_ns(self, rank: int, start_ns: int) -> int:
        """Return a time of a rank on the clock of the run, in ns; since its own start where the recording tells no
        clock.
        """
        known = self.metadata.get(rank)
        if known is None or known.epoch_ns is None:
            return start_ns
        return Line(known.clock_offset_ns, known.clock_drift_ppb / 1e9, known.epoch_ns).at(known.epoch_ns + start_ns)

    def place_cell(self, rank: int, start_ns: int, lead_ns: int = 0) -> Cell:
        """Return the cell of a time of a rank, with its place in the timeline where there is one."""
        return Cell(time(start_ns), start_ns, place=self.place(rank, start_ns, lead_ns))


def find(folder: Path, summary: Summary) -> Found:
    """Read the outputs of the run in ``folder``.

    Raises:
        InputError: a file cannot be read, or is none of this version.
    """
    ranks = summary.ranks
    told, at = told_ranks(ranks, summary), {rank.rank: k for k, rank in enumerate(ranks)}
    replayed = _replayed(ranks, told)
    groups = load_groups(folder)
    graphs = load({one: folder / output_names.graph(summary.options.name, one) for one in replayed})
    reading = Reading(folder, summary, told, graphs, workload(graphs) if graphs else None, groups, Parts())
    for name, hooks in each():
        part = hooks.page_part(reading)
        if part is not None:
            reading.parts[name] = part
    across = load_across(folder / PATH_ACROSS) if (folder / PATH_ACROSS).is_file() and len(ranks) > 1 else None
    if across is not None and not across.stuck and len(graphs) == len(ranks):
        across = replace(across, gain_ns=share_gains(graphs, groups))
    return Found(
        **{field.name: getattr(reading, field.name) for field in fields(reading)},
        at=at,
        paths={one: reading.of_rank(one, folder / output_names.critical_path(one), path_file.load) for one in told},
        metadata={one: read_metadata(folder / output_names.graph(summary.options.name, one)) for one in at},
        across=across,
    )


def told_ranks(ranks: Sequence[Rank], summary: Summary) -> dict[int, str]:
    """Choose the ranks that are told in detail, and say why: of few all, of many the worst, the median, and who is far
    from it.
    """
    if len(ranks) <= MOST_BLOCKS:
        return {rank.rank: "" for rank in ranks}
    first, last = dict[int, str](), dict[int, str]()
    for _, hooks in each():
        telling = hooks.worth_telling(ranks)
        first |= telling.first
        last |= telling.last
    told = first or {max(ranks, key=lambda one: (one.replay.measured_ns, -one.rank)).rank: "longest recording"}
    if summary.run and summary.run.straggler:
        told.setdefault(summary.run.straggler.rank, "arrives late")
    on_path = summary.run.replay.path_rank_ns if summary.run and summary.run.replay else {}
    most = max(on_path, key=on_path.__getitem__, default="")
    if most.isascii() and most.isdecimal():
        told.setdefault(int(most), "most of the critical path over ranks")
    told = told | {rank: why for rank, why in last.items() if rank not in told}
    there = {rank.rank for rank in ranks}
    return {rank: why for rank, why in list(told.items())[:_MOST_TOLD] if rank in there}


def _replayed(ranks: Sequence[Rank], told: Mapping[int, str]) -> list[int]:
    """Return the ranks whose graphs are replayed for advice: all, or where that would take long, the one that matters
    most.
    """
    if sum(rank.graph_nodes for rank in ranks) <= MOST_NODES or len(ranks) == 1:
        return sorted(rank.rank for rank in ranks)
    by_path = [rank for rank, why in told.items() if "critical path" in why]
    return (by_path or list(told))[:1]
