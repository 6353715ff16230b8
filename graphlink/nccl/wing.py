"""What side files of NCCL and c10d add to a run: groups, columns of collectives, rows of channels, a join table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from graphlink.choices import Option
from graphlink.errors import log
from graphlink.wings import Columns, Made, RankPart, SideFile, Wing

if TYPE_CHECKING:
    from pathlib import Path

    from graphlink.depend.build import Built
    from graphlink.doctor.records import Finding
    from graphlink.graph_model import Graph
    from graphlink.model import Linked, ProcessGroup
    from graphlink.run.discover.pairing import Discovered
    from graphlink.run.options import Inputs
    from graphlink.run.records import GraphedRank, Joined, PreparedRank, RankWork

_SUFFIX: Final = re.compile(r"(?:\.(?:json|jsonl|log|txt|pickle|pkl|trace|gz|zst))+$", re.IGNORECASE)


class Hooks(Wing):
    stored = ("summary:SideFiles",)
    input_options = (
        Option(
            "--nccl",
            action="extend",
            default=[],
            nargs="+",
            metavar="FILE",
            help="side files of NCCL or the Flight Recorder beside Kineto, or folders of them: files or quoted globs, "
            "repeatable",
        ),
    )
    fields = {"Rank": "summary:RANK_FIELDS", "Run": "summary:RUN_FIELDS"}

    def may_be_side_file(self, name: str) -> bool:
        return not name.startswith(".") and ("." not in name or _SUFFIX.search(name) is not None)

    def is_named_as_side_file(self, path: Path) -> bool:
        from graphlink.nccl.read.names import NAMED

        return NAMED.search(path.name) is not None

    def side_file(self, path: Path) -> SideFile | None:
        from graphlink.nccl.read.read import read_dump_head

        return read_dump_head(path)

    def paired(self, found: Discovered, named: Sequence[Path]) -> Discovered:
        from graphlink.nccl.side_files import paired

        return paired(found, named) if named or found.dumps else found

    def beside(self, inputs: Inputs) -> Made:
        if not inputs.nccl:
            return Made()
        from graphlink.nccl.read.read import read_dumps

        dumps, unread = read_dumps({path: inputs.name_of(path) for path in inputs.nccl}, inputs.found)
        return Made(dumps or None, unread)

    def groups(self, part: Any, linked: Linked, inputs: Inputs) -> Sequence[ProcessGroup]:
        from graphlink.nccl.join import known_groups

        return known_groups(linked, part, dict(inputs.members))

    def group_names(self, part: Any, linked: Linked) -> Mapping[int, str]:
        from graphlink.nccl.named import group_names

        return group_names(linked, part)

    def of_graph(self, rank: GraphedRank) -> Made:
        dumps = rank.beside.get("nccl")
        if not dumps:
            return Made()
        from graphlink.nccl.join import join
        from graphlink.nccl.summary import warnings

        log.info("joining %d calls of NCCL", sum(len(dump.calls.rank) for dump in dumps))
        files = join(rank.linked, rank.comm, dumps, rank.rank)
        return Made(files, warnings(files))

    def columns(self, graph: Graph, prepared: PreparedRank, joined: Joined) -> Columns:
        files = prepared.parts.get("nccl")
        if files is None:
            return Columns()
        from graphlink.nccl.outputs import columns

        added = columns(graph, files)
        texts = {name: column for name, column in added.items() if column.texts}
        return Columns(texts, {name: column for name, column in added.items() if name not in texts})

    def finish(self, work: RankWork) -> RankPart:
        files = work.prepared.parts.get("nccl")
        if files is None:
            return RankPart()
        from graphlink.nccl.outputs import channel_rows
        from graphlink.nccl.summary import summarised

        graph, fields = work.graph, {"nccl": summarised(files)}
        if work.options.timeline == "none":
            return RankPart(fields)
        ended_ns = graph.epoch_ns + int(graph.end_ns.max(initial=0))
        return RankPart(fields, rows=(channel_rows(files, work.linked.trace.device, graph.epoch_ns, ended_ns),))

    def files_of(self, rank: Any) -> Iterable[str]:
        from msgspec import UNSET

        return [] if rank.nccl is UNSET else [file.path for file in rank.nccl.files]

    def of_records(self, ranks: Sequence[Any]) -> Mapping[str, Any]:
        from msgspec import UNSET

        from graphlink.nccl.summary import over_ranks

        side_files = [(rank.rank, rank.nccl) for rank in ranks if rank.nccl is not UNSET]
        return {"nccl": over_ranks(side_files)} if side_files else {}

    def rank_lines(self, rank: Any) -> Iterable[tuple[str, tuple[str, str]]]:
        from msgspec import UNSET

        from graphlink.nccl.summary import rank_rows

        return () if rank.nccl is UNSET else [("recorded", line) for line in rank_rows(rank.nccl)]

    def run_lines(self, run: Any) -> Iterable[tuple[str, str]]:
        from msgspec import UNSET

        from graphlink.nccl.summary import run_rows

        return () if run.nccl is UNSET else run_rows(run.nccl)

    def lacks(self, rank: GraphedRank, built: Built) -> Iterable[Finding]:
        from graphlink.nccl.lacking import join_lacking

        files = rank.parts.get("nccl")
        return () if files is None else join_lacking(files)

    def file_lacks(self, path: Path, *, found: bool, alone: bool) -> Iterable[Finding]:
        from graphlink.doctor.records import Finding
        from graphlink.nccl.lacking import dump_lacking
        from graphlink.nccl.read.read import read_dumps

        dumps, unread = read_dumps({path: str(path)}, {path} if found else ())
        if unread:
            yield Finding("left-aside", 0.0, told=unread)
        for dump in dumps:
            yield from dump_lacking(dump)
            if alone:
                yield Finding("nccl-alone", figures={"calls": len(dump.calls.seq)}, files=(dump.path,))
