"""Writes a simulated cluster with its side files, joins them, and holds the result against the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphlink.linking.communication import Communication, communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Linked
from graphlink.nccl.join import join
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.read.records import Dump
from graphlink.nccl.summary import SideFiles
from graphlink.read.kineto import read_kineto
from tests.simulator import ClusterRun
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_records import NcclProfile, TrueFile


@dataclass(frozen=True)
class Joined:
    rank: int
    linked: Linked
    files: tuple[TrueFile, ...]
    dumps: tuple[Dump, ...]
    joined: SideFiles

    def correlation(self, op: int) -> int:
        return int(self.linked.trace.device.correlation[self.joined.ops.row[op]])

    def possible(self) -> int:
        """Calls whose kernel is in the trace."""
        return sum(call.kernel is not None and call.rank == self.rank for file in self.files for call in file.calls)

    def wrong(self) -> list[tuple[int, int]]:
        found = []
        for op, dump, call in zip(
            self.joined.op.tolist(), self.joined.dump.tolist(), self.joined.call.tolist(), strict=True
        ):
            true = self.files[dump].calls[call]
            if true.rank != self.rank or true.kernel != self.correlation(op):
                found.append((dump, call))
        return found

    def left(self) -> Counter[str]:
        return sum((Counter(group.calls_left) for group in self.joined.groups), Counter())

    def check_counts(self) -> None:
        """Every call and op is matched or counted by reason."""
        groups = self.joined.groups
        assert sum(g.calls for g in groups) == sum(len(d.calls.rank) for d in self.dumps)
        for g in groups:
            assert g.calls == g.matched + sum(g.calls_left.values()), g
            assert g.ops == g.matched + sum(g.ops_left.values()), g
        assert sum(g.matched for g in groups) == len(self.joined.op)
        assert len(set(zip(self.joined.op.tolist(), self.joined.dump.tolist(), strict=True))) == len(self.joined.op)
        assert len(set(zip(self.joined.dump.tolist(), self.joined.call.tolist(), strict=True))) == len(self.joined.op)


def join_run(
    run: ClusterRun, folder: Path, profile: NcclProfile, *, ranks: Sequence[int] = (), seq: bool = True
) -> list[Joined]:
    """Of some ranks, or all, each beside the files that hold its calls, where there are any."""
    if _LAST.run is not run or _LAST.seq != seq:  # what one test after the other joins with other side files
        run.write(folder / "kineto", seq=seq)
        _LAST.run, _LAST.seq, _LAST.folder, _LAST.linked = run, seq, folder / "kineto", {}
    files = write_nccl(run, folder / "nccl", profile)
    written = {rank for file in files for rank in file.process}
    return [join_rank(files, rank) for rank in ranks or run.ranks if rank in written]


@dataclass
class _Last:
    """The run whose recordings were written last, and its ranks that were linked since."""

    run: ClusterRun | None = None
    seq: bool = True
    folder: Path = Path()
    linked: dict[int, tuple[Linked, Communication]] = field(default_factory=dict)


_LAST = _Last()


def join_rank(files: Sequence[TrueFile], rank: int) -> Joined:
    if rank not in _LAST.linked:
        trace = read_kineto(_LAST.folder / f"kineto_{rank}.json")
        linked = link(trace, None, match_hosts(trace, None))
        _LAST.linked[rank] = linked, communication(linked)
    linked, comm = _LAST.linked[rank]
    own = tuple(file for file in files if rank in file.process)
    dumps = tuple(read_dump(file.path) for file in own)
    return Joined(rank, linked, own, dumps, join(linked, comm, dumps, rank))
