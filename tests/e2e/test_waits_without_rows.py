"""Waits that no row and no call tells of, in public recordings of which it is known what waited for what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.depend.build import BuildOptions, Built, build
from graphlink.graph_model import EdgeKind, NodeKind
from graphlink.linking.communication import communication
from graphlink.model import Linked
from tests.depend.programs import linked_of

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")


def of(name: str) -> tuple[Linked, Built]:
    linked = linked_of(TRACES / f"{name}.json.gz")
    return linked, build(linked, communication(linked), BuildOptions(sync="cuda"))


def collectives_and_the_compute_before(linked: Linked) -> list[tuple[int, int]]:
    """(last op of the launching thread's compute stream, collective) of device rows, where a stream was made to wait in
    between.
    """
    trace = linked.trace
    collective = set(communication(linked).device_row.tolist())
    op_of = {call: row for row, call in reversed(list(enumerate(linked.device_call.tolist()))) if call >= 0}
    names = [trace.strings[name] for name in trace.calls.name]
    tail: dict[int, int] = {}  # of a stream
    current: dict[int, int] = {}  # the stream that a thread computes on
    waited: set[int] = set()
    out = []
    for call in np.lexsort((trace.calls.correlation, trace.calls.start_ns)).tolist():
        tid, op = int(trace.calls.tid[call]), op_of.get(call)
        if names[call].endswith("StreamWaitEvent"):
            waited.add(tid)
        if op is None:
            continue
        if op not in collective:
            current[tid] = int(trace.device.stream[op])
        elif tid in waited and tid in current:
            out.append((tail[current[tid]], op))
        tail[int(trace.device.stream[op])] = op
        waited.discard(tid)
    return out


def implied(built: Built, source: int, target: int) -> bool:
    """Is there a path between the nodes of two device rows?"""
    graph = built.graph
    first, last = (
        int(np.flatnonzero((graph.kind == NodeKind.DEVICE_OP) & (graph.row == row))[0]) for row in (source, target)
    )
    open_, seen = [last], {last}
    while open_:
        n = open_.pop()
        if n == first:
            return True
        new = [s for s in graph.source[graph.first[n] : graph.first[n + 1]].tolist() if s >= first and s not in seen]
        seen.update(new)
        open_ += new
    return False


@pytest.mark.parametrize(
    ("name", "collectives"),
    [
        ("megatron-tp2-v100/kineto_0", 13),
        ("megatron-tp2-v100/kineto_1", 13),
        ("dlrm8-v100/kineto_0", 8),
        ("rocm/mi300_resnet_rank0of8", 12),
        pytest.param("ddp/many_allreduces", 2_020, marks=pytest.mark.long),
        pytest.param("legacy/sendrecv_graph_launch_5streams", 75, marks=pytest.mark.long),
    ],
)
def test_every_collective_comes_after_the_compute_before_it(name: str, collectives: int) -> None:
    linked, built = of(name)
    pairs = collectives_and_the_compute_before(linked)
    device = linked.trace.device
    assert len(pairs) == collectives
    assert all(device.end_ns[a] <= device.start_ns[b] for a, b in pairs)
    assert [pair for pair in pairs[:: max(1, len(pairs) // 200)] if not implied(built, *pair)] == []


@pytest.mark.long
def test_compute_waits_for_each_of_many_all_reduces() -> None:
    graph = of("ddp/many_allreduces")[1].graph
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    event = graph.edge_kind == EdgeKind.EVENT
    from_stream, to_stream = graph.stream[graph.source[event]], graph.stream[target[event]]
    assert np.count_nonzero((from_stream == 14) & (to_stream == 7)) == 2_020
    assert np.count_nonzero((from_stream == 7) & (to_stream == 14)) == 2_020


def test_a_host_that_spins_in_dispatch_waits_for_what_its_kernel_waited_for() -> None:
    linked, built = of("deepseek/dualpipe_train")
    graph, device = built.graph, linked.trace.device

    def name(node: int) -> str:
        rows = device.name if graph.kind[node] == NodeKind.DEVICE_OP else linked.trace.host.name
        text: str = linked.trace.strings[rows[graph.row[node]]]
        return text

    spun = [n for n in np.flatnonzero(graph.wait_ns > 0).tolist() if name(n) == "dispatch(F)"]
    sources = [
        name(int(n)) for n in graph.source[graph.edge_kind == EdgeKind.SYNC] if graph.kind[n] == NodeKind.DEVICE_OP
    ]
    assert (len(spun), built.untold.spins) == (4, 0)
    assert sum("get_dispatch_layout" in source for source in sources) == 4  # what the kernel had to wait for
    assert sum("notify_dispatch" in source for source in sources) == 8  # from where it ended, and to the next operator
    assert 65e6 < int(graph.wait_ns[spun].sum()) < 68e6
