"""What standstill adds to a run: how much of what stood still an edge explains, in the summary of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphlink.wings import RankPart, Wing

if TYPE_CHECKING:
    from graphlink.depend.build import Built
    from graphlink.doctor.records import Finding
    from graphlink.run.records import GraphedRank, RankWork


class Hooks(Wing):
    fields = {"Rank": "records:FIELDS"}
    lead = {"trust": "page:trust"}
    parts_of = {"recording": "page:recording_parts"}

    def finish(self, work: RankWork) -> RankPart:
        from graphlink.standstill.standstill import stood_still

        built = replace(work.prepared.built, graph=work.graph)
        stood = stood_still(built, work.linked, work.explained.path, work.joined.wait_ns)
        return RankPart({"standstill": stood.standstill}, warnings=stood.warnings)

    def rank_lines(self, rank: Any) -> Iterable[tuple[str, tuple[str, str]]]:
        return (("left out", ("stood still", rank.standstill.line)),)

    def trust(self, rank: Any) -> str:
        return str(rank.standstill.trust(rank.replay.measured_ns))

    def rank_cells(self, rank: Any) -> Mapping[str, str]:
        return {"explained %": rank.standstill.whole.explained}

    def lacks(self, rank: GraphedRank, built: Built) -> Iterable[Finding]:
        from graphlink.standstill.lacking import standing_lacking

        return standing_lacking(built, rank.linked, rank.comm)
