"""Compare Chakra graphs of the same ranks that others left among the recordings with graphlink's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from graphlink.astra.ranks import judge
from graphlink.astra.rules import RankFile as Judged
from graphlink.errors import InputError, log
from graphlink.graph.read_et import read_et
from graphlink.graph_model import Graph, NodeType
from graphlink.ranks.summary import Compared
from graphlink.replay.machines import error_pct, play_ideal
from graphlink.replay.workload import workload
from graphlink.run.discover.standins import MOST_GRAPHS
from graphlink.tables import in_order, tuples


def compare(found: Sequence[Path], own: Mapping[int, Path]) -> tuple[list[Compared], list[str]]:
    """Compare each of ``found`` with the graph of its rank in ``own``, and warnings of those that are none of these
    ranks or no graphs.
    """
    out, warnings = [], []
    for path in found[:MOST_GRAPHS]:
        file = Judged.of(path)
        if file.rank is None or file.rank not in own:
            warnings.append(f"{path} is not used: a Chakra graph of no rank of this run")
            continue
        log.info("comparing with %s", path)
        try:
            out.append(_compared(path, file.rank, read_et(path), read_et(own[file.rank])))
        except InputError as problem:
            warnings.append(f"{path} is left aside: {problem.what}")
    if len(found) > MOST_GRAPHS:
        warnings.append(
            f"{len(found) - MOST_GRAPHS} more Chakra graphs beside the recordings are not used, as {found[MOST_GRAPHS]}"
        )
    return out, warnings


def _compared(path: Path, rank: int, theirs: Graph, ours: Graph) -> Compared:
    played = play_ideal(workload({rank: theirs}))
    measured = int(ours.end_ns.max() - ours.start_ns.min())
    mine, others = _collectives(ours), _collectives(theirs)
    return Compared(
        file=path.name,
        rank=rank,
        nodes=len(theirs.id),
        own_nodes=len(ours.id),
        dependencies=len(theirs.data.source),
        own_dependencies=len(ours.data.source),
        collectives=len(others),
        own_collectives=len(mine),
        same_collectives=sum((Counter(mine) & Counter(others)).values()),
        ordered_alike=others == mine,
        replayed_ns=played.total_ns,
        error_pct=error_pct(played.total_ns, measured),
        finished=bool(played.ran.all()),
        check_errors=judge([Judged.of(path)], None).errors,
    )


def _collectives(file: Graph) -> list[tuple[int, int]]:
    """Return (type, bytes) of the collectives on the device that say both, in the order of their ids."""
    at = np.flatnonzero((file.type == NodeType.COMM_COLL) & file.says("comm_type") & file.says("comm_size"))
    at = in_order(at, file.id)
    return list(tuples(file.comm_type[at], file.comm_size[at]))
