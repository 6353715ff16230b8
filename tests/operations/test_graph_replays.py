"""What ran behind graph launches, by node: with recorded ids and without, on programs whose launches are known, on
recordings.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Linked, Trace
from graphlink.operations.on_device import graph_replays
from graphlink.operations.records import GraphReplays
from graphlink.operations.table import _graph
from graphlink.read.kineto import read_kineto
from graphlink.read.nsys.report import read_nsys
from graphlink.records import Table
from tests.build import Call, Device, Host, build_trace
from tests.depend.programs import shape
from tests.simulator import Execution, random_program, run, write_kineto
from tests.simulator.nsys import NsysVariation, write_nsys

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def of(trace: Trace) -> list[GraphReplays]:
    return graph_replays(linked_of(trace))


def linked_of(trace: Trace) -> Linked:
    return link(trace, None, match_hosts(trace, None))


def replayed(*, ids: bool) -> list[GraphReplays]:
    """Three launches of one graph (a, b, a on two streams that change places), one of another; a kernel of its own
    between.
    """
    calls, device = [], []
    for k, (a, b, last) in enumerate(((10, 20, 5), (10, 20, 5), (13, 20, 8))):
        at = 100 * k
        calls.append(Call("cudaGraphLaunch_v10000" if k else "cudaGraphLaunch", at, at + 3, k + 1))
        for turn, (name, start, us, node) in enumerate(
            (("a", at + 5, a, 71), ("b", at + 6, b, 72), ("a", at + 40, last, 73))
        ):
            device.append(
                Device(name, start, start + us, k + 1, 7 + (turn + k) % 2, graph=3 * ids, graph_node=node * ids)
            )
    calls += [Call("cudaLaunchKernel", 300, 302, 10), Call("hipGraphLaunch", 310, 312, 11)]
    device += [Device("a", 305, 306, 10), Device("c", 320, 330, 11, graph=4 * ids, graph_node=99 * ids)]
    return of(build_trace(host=[Host("op", 0, 400)], calls=calls, device=device))


@pytest.mark.parametrize("ids", [True, False])
def test_nodes_over_their_replays(ids: bool) -> None:
    first, second = replayed(ids=ids)
    assert (first.graph, first.replays, first.device_ops, first.device_ns, first.call) == (
        3 if ids else None,
        3,
        9,
        111_000,
        "cudaGraphLaunch",
    )
    figures = [(one.name, one.node, one.replays, one.mean_ns, one.spread_ns, one.longest_ns) for one in first.nodes]
    nodes = (71, 72, 73) if ids else (None,) * 3
    assert figures == [
        ("a", nodes[0], 3, 11_000, 1_414, 13_000),
        ("b", nodes[1], 3, 20_000, 0, 20_000),
        ("a", nodes[2], 3, 6_000, 1_414, 8_000),
    ]
    assert (second.graph, second.replays, second.call, [one.node for one in second.nodes]) == (
        4 if ids else None,
        1,
        "hipGraphLaunch",
        [99 if ids else None],
    )


def test_what_shares_a_launch_that_was_not_recorded_is_of_a_graph() -> None:
    device = [
        Device("a", 1, 2, 5),
        Device("b", 3, 4, 5),
        Device("alone", 5, 6, 6),
        Device("no id", 7, 8, 0),
        Device("no id", 9, 10, 0),
    ]
    (graph,) = of(build_trace(host=[Host("op", 0, 20)], calls=[], device=device))
    assert (graph.call, graph.replays, [one.name for one in graph.nodes]) == ("", 1, ["a", "b"])
    head, replay, table = _graph(graph, whole=False)
    assert (
        head
        == "behind 1 launch of a graph, its nodes known by name and order (launch not recorded): 0.002 ms in 2 device ops"
    )
    assert replay == "  a replay takes 0.003 ms (spread 0.000)"
    assert isinstance(table, Table) and [row[-1] for row in table.rows] == ["a", "b"]


def test_a_recording_without_graphs_has_none() -> None:
    assert (
        of(
            build_trace(
                host=[Host("op", 0, 20)], calls=[Call("cudaLaunchKernel", 1, 2, 5)], device=[Device("a", 3, 4, 5)]
            )
        )
        == []
    )
    assert of(build_trace(host=[], calls=[], device=[])) == []


def truth(execution: Execution) -> tuple[int, Counter[str], int]:
    """Launches of graphs, their kernels by name, and what they took."""
    ops = [op for op in execution.device if "Graph" in execution.calls[op.call].call.name]
    return len({op.call for op in ops}), Counter(op.work.name for op in ops), sum(op.end_ns - op.start_ns for op in ops)


@pytest.mark.parametrize("seed", range(6))
def test_launches_of_random_programs(seed: int, tmp_path: Path) -> None:
    """With ids (the dialect of 2026, nsys by node), without (2024), and of nsys with a row a launch."""
    execution = run(random_program(seed, shape(Random(seed))), seed)
    launches, names, ns = truth(execution)
    for dialect in ("2026", "2024"):
        write_kineto(execution, tmp_path / f"{dialect}.json", dialect=dialect)
        found = of(read_kineto(tmp_path / f"{dialect}.json"))
        assert sum(one.device_ns for one in found) == ns
        assert (
            sum((Counter({node.whole_name: node.replays for node in one.nodes}) for one in found), Counter()).keys()
            == names.keys()
        )
        assert sum(one.device_ops for one in found) == names.total()
        if dialect == "2024":
            assert sum(one.replays for one in found) == launches
        else:
            assert {one.graph for one in found} <= {3, None}
    for rows in (False, True):
        write_nsys([execution], tmp_path / f"{rows}.sqlite", vary=NsysVariation(graph_rows=rows))
        found = [one for trace in read_nsys(tmp_path / f"{rows}.sqlite") for one in of(trace)]
        assert sum(one.replays for one in found) == launches or not rows
        assert all(one.graph == 3 and one.nodes[0].name == "CUDA graph 3" for one in found) or not rows


@pytest.mark.parametrize(
    ("name", "graphs", "ops"),
    [("legacy/sendrecv_graph_launch_5streams", 17, (5, 5)), ("inference/sglang_decode_graph", 1, (1, 544))],
)
def test_recordings(name: str, graphs: int, ops: tuple[int, int]) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the public recordings of ../shared/traces are not here")
    found = of(read_kineto(path))
    assert len(found) == graphs and (ops[0] if graphs > 1 else 1, found[-1].device_ops) == ops
    assert all(sum(node.replays for node in one.nodes) == one.device_ops for one in found)
    assert all(node.mean_ns <= node.longest_ns <= node.ns for one in found for node in one.nodes)
