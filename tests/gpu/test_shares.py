"""What a device did by window, group and stream, and how much of it kernels fill: against a count of every moment, and
HTA's figures.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.page import _devices
from graphlink.gpu.records import DeviceTime
from graphlink.gpu.table import spent
from graphlink.gpu.time import gpu_time
from graphlink.graph_model import Column
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Comm, DeviceKind, Linked
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank
from tests.build import Call, Device, Host, build_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
GROUPS = (("tp", (0, 1)), ("dp", (0, 2)))
KINDS = ("kernel", "memset", "copy", "tp", "dp")

ops = st.tuples(
    st.integers(0, 40), st.integers(0, 12), st.sampled_from(KINDS), st.integers(1, 3), st.sampled_from([0.0, 0.25, 1.0])
)


def rank_of(drawn: list[tuple[int, int, str, int, float]], steps: list[tuple[int, int]]) -> Linked:
    device = []
    groups = dict(GROUPS)
    for k, (start, took, kind, stream, filled) in enumerate(drawn):
        comm = (
            Comm("allreduce", "Float", 4, 4, pg_name=kind, ranks=groups[kind], group_size=2, rank=0)
            if kind in groups
            else None
        )
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if comm else kind
        sort = {"memset": DeviceKind.MEMSET, "copy": DeviceKind.MEMCPY}.get(kind, DeviceKind.KERNEL)
        share = filled if sort == DeviceKind.KERNEL else 0.0
        device.append(Device(name, start, start + took, k + 1, stream=stream, kind=sort, comm=comm, sm_share=share))
    host = [Host(f"ProfilerStep#{k}", low, high, annotation=True) for k, (low, high) in enumerate(steps)]
    trace = build_trace(host=host, device=device)
    return link(trace, None, match_hosts(trace, None))


@given(st.lists(ops, min_size=1, max_size=12), st.lists(st.integers(1, 15), min_size=1, max_size=4))
def test_every_figure_is_that_of_every_moment(
    drawn: list[tuple[int, int, str, int, float]], lengths: list[int]
) -> None:
    ends = np.cumsum([0, *lengths]).tolist()
    steps = list(pairwise(ends))
    x = rank_of(drawn, steps)
    comm = communication(x)
    found = gpu_time(build(x, comm, BuildOptions(sync="cuda")).graph, x, comm)
    (whole,) = found.gpu
    first, last = min(start for start, *_ in drawn), max(start + took for start, took, *_ in drawn)
    check(whole, drawn, range(first, last))
    for one, (low, high) in zip(found.steps, steps, strict=True):
        (part,) = one.gpu
        check(part, drawn, range(low, high))
        assert part.by_stream is UNSET and part.by_group is UNSET
    moments = [running(drawn, at) for at in range(first, last)]
    assert isinstance(whole.by_stream, list)
    assert {one.stream: one.busy_ns // 1000 for one in whole.by_stream} == {
        stream: sum(any(op[3] == stream for op in now) for now in moments) for stream in {op[3] for op in drawn}
    }
    assert all(one.busy_ns + one.idle_ns == (last - first) * 1000 for one in whole.by_stream)
    groups = [] if whole.by_group is UNSET else whole.by_group
    assert {one.name: (one.comm_ns // 1000, one.exposed_ns // 1000) for one in groups} == {
        name: (
            sum(name in kinds(now) for now in moments),
            sum(name in kinds(now) and not {"kernel", "memset"} & kinds(now) for now in moments),
        )
        for name in {op[2] for op in drawn} & {*dict(GROUPS)}
    }
    assert {one.name: tuple(one.ranks) for one in groups}.items() <= dict(GROUPS).items()


def running(drawn: list[tuple[int, int, str, int, float]], at: int) -> list[tuple[int, int, str, int, float]]:
    return [op for op in drawn if op[0] <= at < op[0] + op[1]]


def kinds(now: list[tuple[int, int, str, int, float]]) -> set[str]:
    return {op[2] for op in now}


def check(one: DeviceTime, drawn: list[tuple[int, int, str, int, float]], window: range) -> None:
    spent: Counter[str] = Counter()
    kernel_us = filled = 0.0
    for at in window:
        now = running(drawn, at)
        comm = bool(kinds(now) & {"tp", "dp"})
        spent["busy"] += bool(now)
        spent["comm"] += comm
        spent["hidden"] += comm and bool({"kernel", "memset"} & kinds(now))
        spent["beside"] += comm and "kernel" in kinds(now)
        for _, _, kind, _, share in now:
            if kind not in ("copy", "memset") and share:
                kernel_us += 1
                filled += share
    assert one.utilisation == (round(spent["busy"] / len(window), 6) if len(window) else UNSET)
    assert one.hidden_share == (round(spent["hidden"] / spent["comm"], 6) if spent["comm"] else UNSET)
    assert one.hta_overlap_share == (round(spent["beside"] / spent["comm"], 6) if spent["comm"] else UNSET)
    assert one.est_sm_efficiency == (pytest.approx(filled / kernel_us, abs=2e-6) if kernel_us else UNSET)


def test_what_a_kernel_waited_in_what_is_excluded_counts_where_nothing_computes() -> None:
    """Of 60 us that the collective waited, the first 50 lie beside the gemm; the step begins 5 us later."""
    host = [Host("ProfilerStep#0", 107, 400, annotation=True), Host("ops", 0, 30)]
    calls = [Call("cudaLaunchKernel", 5.0 * k, 5.0 * k + 2, k) for k in (1, 2)]
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    device = [Device("gemm", 40, 100, 1, stream=7), Device(nccl, 50, 200, 2, stream=8)]
    trace = build_trace(host=host, calls=calls, device=device)
    x = link(trace, None, match_hosts(trace, None))
    comm = communication(x)
    graph = build(x, comm, BuildOptions(sync="cuda")).graph
    (node,) = (k for k in range(len(graph.kind)) if graph.name_of(k) == nccl)
    excluded = Column.of(np.array([node]), np.array([60_000]))
    found = gpu_time(graph, x, comm, excluded=excluded)
    assert (found.gpu[0].exposed_comm_ns, found.gpu[0].excluded_ns) == (100_000, 10_000)
    assert found.steps[0].gpu[0].excluded_ns == 3_000
    assert spent(found.gpu) == Counter(compute_ns=60_000, exposed_comm_ns=90_000)
    assert gpu_time(graph, x, comm).gpu[0].excluded_ns is UNSET
    counting = found.gpu[0].counting()
    assert (counting.whole_ns, counting.exposed_comm_ns, counting.idle_share) == (150_000, 90_000, (0, 150_000))


def test_the_page_shows_and_orders_gpus_by_what_counts() -> None:
    """Of the first GPU 20 % of all its time were idle, but 60 % of what counts."""
    parts = {"from_ns": 0, "to_ns": 900, "exposed_copy_ns": 0, "copy_ns": 0, "idle_by_cause_ns": {}, "device": 0}
    gpus = [
        DeviceTime(**parts, compute_ns=120, exposed_comm_ns=600, comm_ns=600, idle_ns=180, excluded_ns=600),
        DeviceTime(**parts, compute_ns=300, exposed_comm_ns=240, comm_ns=240, idle_ns=360),
    ]
    ranks = [SimpleNamespace(rank=number, gpu=[gpu]) for number, gpu in enumerate(gpus)]
    shown = _devices(SimpleNamespace(ranks=ranks))
    assert [[row.cells[0].value, row.cells[2].value] for row in shown.rows] == [[0, 300], [1, 900]]


@pytest.mark.parametrize(
    ("recording", "theirs"),
    [
        ("dlrm8-v100/kineto_0.json.gz", 4.50),
        ("dlrm8-v100/kineto_3.json.gz", 3.31),  # a memset ran beside communication, too: of it 3.42 % are hidden
        ("dlrm8-v100/kineto_7.json.gz", 9.51),
    ],
)
def test_overlap_is_what_hta_computes(recording: str, theirs: float) -> None:
    """``TraceAnalysis.get_comm_comp_overlap`` of HTA 0.5.0."""
    path = TRACES / recording
    if not path.exists():
        pytest.skip(f"{path} is not here")
    x = link_rank(Inputs(kineto=path)).linked
    comm = communication(x)
    (one,) = gpu_time(build(x, comm, BuildOptions(sync="cuda")).graph, x, comm).gpu
    assert isinstance(one.hta_overlap_share, float) and abs(100 * one.hta_overlap_share - theirs) <= 0.01
