"""Public recordings of machines that wake late: what calls and threads waited for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.depend.build import BuildOptions, find
from graphlink.graph_model import EdgeKind, NodeKind
from graphlink.linking.call_roles import Role
from tests.depend.programs import built, linked_of

TRACES = Path(__file__).parents[3] / "shared/traces/late-wakeup"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")


def test_calls_that_return_145_us_after_their_op_are_explained_by_the_last_that_had_ended() -> None:
    linked = linked_of(TRACES / "v100_resnet50_slow_event_sync.json.gz")
    found = find(linked, BuildOptions(sync="cuda"))
    calls, device = linked.trace.calls, linked.trace.device
    launched_ns = np.where(linked.device_call < 0, 0, calls.start_ns[linked.device_call])
    explained = 0
    for source, call in zip(
        found.dependencies.host.source.tolist(), found.dependencies.host.call.tolist(), strict=True
    ):
        if found.cuda.role[call] != Role.EVENT_SYNC:
            continue
        explained += 1
        ended = (device.end_ns <= calls.end_ns[call]) & (launched_ns < calls.start_ns[call])
        assert device.end_ns[source] == device.end_ns[ended].max()
    assert explained >= 340


def test_a_cold_autograd_thread_was_woken_by_the_forward_before_it() -> None:
    """2.3 ms after it: 102 arrows from forward to backward say so. Its 991 ms before are no work."""
    graph = built(linked_of(TRACES / "mi300_normalization_cold_autograd.json.gz"), sync="cuda").graph
    (autograd,) = set(np.unique(graph.tid[graph.kind == NodeKind.HOST_OP]).tolist()) - {2300490}
    first = int(np.flatnonzero((graph.tid == autograd) & (graph.kind != NodeKind.END))[0])
    (edge,) = range(graph.first[first], graph.first[first + 1])
    assert graph.edge_kind[edge] == EdgeKind.THREAD
    assert graph.tid[graph.source[edge]] == 2300490
    assert graph.duration_ns[first] < 3_000_000
