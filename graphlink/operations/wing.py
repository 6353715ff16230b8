"""What the operations of a rank add to a run: ``ops.<rank>.json``, and what each operation would gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphlink import output_names
from graphlink.wings import Columns, Grouped, RankPart, Verb, Wing

if TYPE_CHECKING:
    from graphlink.graph_model import Graph
    from graphlink.model import Linked
    from graphlink.page.found import Reading
    from graphlink.run.records import Joined, PreparedRank, RankWork


class Hooks(Wing):
    verbs = (
        Verb(
            80,
            "ops",
            "DIR",
            "print which operations the device time goes to, and whether they use tensor cores",
            "operations.verb_ops:ops",
            tells=("ops.report",),
        ),
    )
    tables = {"operations": "records:TABLE"}
    answers = {"node_operations": "records:of_nodes"}
    schemas = {"ops": "records:Operations", "ops.report": "table:OperationsReport"}
    sections = {40: "page:operations"}

    def columns(self, graph: Graph, prepared: PreparedRank, joined: Joined) -> Columns:
        from graphlink.operations.on_device import lane_column

        return Columns(lane_column(graph, prepared.linked))

    def gaining(self, graph: Graph, linked: Linked) -> Grouped:
        from graphlink.operations.find import find_operations

        found = find_operations(graph, linked)
        return Grouped(found.of_node, found)

    def finish(self, work: RankWork) -> RankPart:
        import msgspec

        from graphlink import publish
        from graphlink.operations.find import measured
        from graphlink.operations.on_device import device_rows

        found = work.grouped["operations"].found
        ops = measured(found, work.graph, work.linked, work.comm, work.explained, work.rank)
        name = output_names.operations(work.rank)
        publish.write(work.folder / name, msgspec.json.encode(ops) + b"\n")
        deep = found.host.deep
        told = f"{deep:,} ops and ranges lie too deep for paths of their own: they count as those around them"
        rows = device_rows(work.graph, work.linked)
        shown = (rows,) if work.options.timeline != "none" and (rows.tracks or rows.counters) else ()
        return RankPart(files=(name,), rows=shown, warnings=(told,) if deep else ())

    def page_part(self, reading: Reading) -> Any:
        from graphlink.operations.records import load

        ranks = sorted({*reading.told, *reading.graphs})
        return {rank: reading.of_rank(rank, reading.folder / output_names.operations(rank), load) for rank in ranks}
