"""What the operations of a rank add to a run: ``ops.<rank>.json``, and what each operation would gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphlink import output_names, publish
from graphlink.wings import Grouped, RankPart, Wing

if TYPE_CHECKING:
    from graphlink.graph_model import Graph
    from graphlink.model import Linked
    from graphlink.run.records import RankWork


class _Operations(Wing):
    def gaining(self, graph: Graph, linked: Linked) -> Grouped:
        from graphlink.operations.find import find_operations

        found = find_operations(graph, linked)
        return Grouped(found.of_node, found)

    def finish(self, work: RankWork) -> RankPart:
        from graphlink.operations import file
        from graphlink.operations.find import measured

        found, gain_ns = work.grouped["operations"].found, work.explained.operation_gain_ns
        ops = measured(found, work.graph, work.linked, work.comm, gain_ns, work.rank)
        name = output_names.operations(work.rank)
        publish.write(work.folder / name, file.encode(ops))
        return RankPart(files=(name,))


WING = _Operations()
