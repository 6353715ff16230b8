"""Changes whose size is known: each is the first of the list, named as what it is, and within 2 % of its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest

from graphlink.diff.compare import compare
from graphlink.diff.records import DiffReport
from tests.diff.conftest import Link, Recorded
from tests.diff.planted import (
    COMM,
    COMPUTE,
    COPY,
    LOADER,
    Edit,
    Where,
    a_step,
    base,
    before_end,
    behind,
    calls_longer,
    device_ns,
    edited,
    host_slower,
    launch,
    longer,
    moved,
    op,
    renamed,
    scaled,
    sync,
    walk,
    without,
)
from tests.simulator import (
    ClusterRun,
    ClusterTraining,
    Loss,
    PipelineRun,
    PipelineTraining,
    Place,
    Program,
    cluster_run,
    pipeline_run,
)
from tests.simulator.program import Action, Api, Begin, Call, End, Host, Work

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")


class Kind(NamedTuple):
    """A change: how it is made, what the first change must say (kind, words), and its size: a factor, ns a step, or
    before and after.
    """

    name: str
    edit: Edit
    kind: str
    words: str
    factor: float | None = None
    change_ns: Callable[[Program], float] | None = None
    counts: tuple[float, float] | None = None
    quick: bool = False


def inside(name: str) -> Callable[[Work, Where], bool]:
    return lambda _, where: where.within(name)


def op_kind(
    name: str,
    factor: float,
    which: Callable[[Work, Where], bool],
    words: str,
    kind: str = "operation",
    quick: bool = False,
) -> Kind:
    return Kind(
        name,
        scaled(factor, which),
        kind,
        words,
        factor,
        lambda p: (factor - 1) * a_step(p, device_ns(which)),
        None,
        quick,
    )


def is_compute(work: Work, _: Where) -> bool:
    return work.kind == "kernel" and work.comm is None


def each(name: str, ns: float) -> Callable[[Program], float]:
    """``ns`` for each op of this name, a step."""
    return lambda program: ns * a_step(program, lambda action, _: isinstance(action, Begin) and action.name == name)


def launches(program: Program) -> float:
    return a_step(
        program, lambda action, _: isinstance(action, Call) and action.name in LAUNCHES and "Memcpy" not in action.name
    )


def no_call(name: str) -> Edit:
    return lambda action, _: [] if isinstance(action, Call) and action.name == name else [action]


def no_work(name: str) -> Edit:
    return lambda action, where: [] if isinstance(action, Call) and action.work and where.within(name) else [action]


def item() -> list[object]:
    return op("aten::nonzero", launch("Memcpy DtoH (Device -> Pageable)", 2_000, kind="gpu_memcpy"), sync())  # type: ignore[return-value]


def with_workers(action: Action, where: Where) -> list[Action]:
    """A loader of another kind, which needs 5 us a step and does nothing else inside."""
    if isinstance(action, Begin) and action.name == LOADER:
        return [replace(action, name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", ns=5_000)]
    return [] if isinstance(action, Host) and where.stack[-1:] == (LOADER,) else [action]


def loader_ns(program: Program) -> float:
    def host_ns(action: Action, where: Where) -> float:
        return action.ns if isinstance(action, Begin | Host) and where.stack[-1:] == (LOADER,) else 0.0

    return 5_000 - a_step(program, host_ns)


KINDS = (
    op_kind("convolution x 2", 2, inside("aten::convolution"), "aten::convolution", quick=True),
    op_kind("addmm x 2", 2, inside("aten::addmm"), "aten::addmm"),
    op_kind("relu x 2", 2, inside("aten::relu"), "aten::relu"),
    op_kind("addmm x 3", 3, inside("aten::addmm"), "aten::addmm"),
    op_kind("convolution x 0.5", 0.5, inside("aten::convolution"), "aten::convolution", quick=True),
    op_kind("backward of relu x 0.5", 0.5, inside("ReluBackward0"), "backward of aten::relu"),
    op_kind("backward of linear x 1.2", 1.2, inside("AddmmBackward0"), "backward of aten::linear"),
    op_kind("optimizer x 2", 2, inside("_foreach_add_"), "_foreach_add_"),
    op_kind("memset x 3", 3, lambda work, _: work.kind == "gpu_memset", "Memset"),
    op_kind("a kernel x 2", 2, lambda work, _: "ampere_sgemm" in work.name, "ampere_sgemm_128x64_tn", quick=True),
    op_kind("device slower", 1.5, is_compute, "the device takes 1.50 x", "device_speed", quick=True),
    op_kind("device faster", 0.8, is_compute, "the device takes 0.80 x", "device_speed"),
    op_kind("copies x 3", 3, lambda work, _: work.kind == "gpu_memcpy", "copying", "copy_speed"),
    op_kind("copies to the device x 3", 3, lambda work, _: "HtoD" in work.name, "HtoD", "copy"),
    op_kind("collectives x 1.5", 1.5, lambda work, _: work.comm is not None, "allreduce", "collective"),
    Kind("sync behind", behind("aten::conv2d", lambda: [sync()]), "synchronisation", "cudaStreamSynchronize", counts=(0, 2), quick=True),
    Kind("sync inside", before_end("aten::conv2d", lambda: [sync()]), "synchronisation", "aten::conv2d", counts=(0, 2)),
    Kind(
        "device sync",
        behind("Optimizer.step#SGD.step", lambda: [sync(Api.DEVICE_SYNC, "cudaDeviceSynchronize")]),
        "synchronisation",
        "cudaDeviceSynchronize",
        counts=(0, 1),
    ),
    Kind("op that waits", behind("aten::linear", item), "synchronisation", "aten::nonzero came", counts=(0, 2)),  # type: ignore[arg-type]
    Kind("item gone", without("aten::item"), "synchronisation", "aten::item went", counts=(1, 0)),
    Kind("sync gone", no_call("cudaStreamSynchronize"), "synchronisation", "went", counts=(1, 0), quick=True),
    Kind(
        "extra kernel", before_end("aten::relu", lambda: [launch()]), "kernel", "ampere_sgemm_64x64_nn",
        None, lambda _: 600_000, (0, 4), True,
    ),
    Kind(
        "extra memset", before_end("aten::linear", lambda: [launch("Memset (Device)", 30_000, kind="gpu_memset")]), "kernel", "Memset",
        None, lambda _: 60_000, (0, 2),
    ),
    Kind("kernels gone", no_work("ReluBackward0"), "kernel", "aten::relu", None, lambda p: -a_step(p, device_ns(inside("ReluBackward0")))),
    Kind(
        "optimizer op gone", without("aten::_foreach_add_"), "operation", "aten::_foreach_add_ went",
        None, lambda p: -a_step(p, device_ns(inside("_foreach_add_"))), (2, 0),
    ),
    Kind(
        "op came", behind("aten::relu", lambda: op("aten::dropout", launch())), "operation", "aten::dropout came",
        None, lambda _: 600_000, (0, 4),
    ),
    Kind("other kernels", renamed("", "sm80_xmma_gemm", "aten::addmm"), "kernels", "sm80_xmma_gemm"),
    Kind("data loading longer", longer(1_000_000, LOADER), "data_loading", "loading data", None, lambda _: 1_000_000, None, True),
    Kind("other loader", with_workers, "data_loading", "loading data", None, loader_ns),
    Kind("python longer", behind("aten::relu", lambda: [Host(50_000)]), "python", "between ops", None, lambda _: 200_000, None, True),
    Kind("host slower", host_slower(1.5), "host_speed", "the host takes 1.50 x", 1.5),
    Kind("host twice as fast", host_slower(0.5), "host_speed", "the host takes 0.50 x", 0.5),
    Kind("an op slower on the host", longer(100_000, "aten::linear"), "host", "aten::linear", None, each("aten::linear", 100_000)),
    Kind("launches cost more", calls_longer(10_000, LAUNCHES), "launch_cost", "+10.00 us a call", None, lambda p: 10_000 * launches(p)),
    Kind("collectives on the stream of compute", moved(COMM, COMPUTE), "stream", "runs on stream 7, not 24"),
    Kind("copies on the stream of compute", moved(COPY, COMPUTE), "stream", "runs on stream 7, not 20"),
    Kind(
        "allocation", before_end("aten::conv2d", lambda: [Call(Api.OTHER, "cudaMalloc", 200_000)]), "call", "cudaMalloc",
        None, lambda _: 400_000, (0, 2),
    ),
)  # fmt: skip


def check_size(
    report: DiffReport, factor: float | None, change_ns: float | None, counts: tuple[float, float] | None
) -> None:
    first = report.changes[0]
    if factor is not None:
        assert first.factor == pytest.approx(factor, rel=0.02)
    if change_ns is not None:
        assert first.change_ns == pytest.approx(change_ns, rel=0.02)
    if counts is not None:
        assert (first.before, first.after) == counts


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.name, marks=() if kind.quick else pytest.mark.long) for kind in KINDS]
)
def test_the_change_of_a_rank_is_named_first(kind: Kind, linked: Link, training: Program) -> None:
    report = compare(linked(training).folder, linked(edited(training, kind.edit)).folder)
    assert report.comparable.score > 70
    first = report.changes[0]
    assert (first.kind, first.ranks) == (kind.kind, [])
    assert kind.words in first.what
    check_size(report, kind.factor, kind.change_ns(training) if kind.change_ns else None, kind.counts)


PIPELINE = PipelineTraining(
    "1F1B", stages=4, microbatches=8, steps=3, optimizer_ns=500_000, norm_ns=100_000, visible=True, transfer_ns=50_000
)
CLUSTER = ClusterTraining(data=2, tensor=2, steps=4, layers=2)


@cache
def pipeline() -> PipelineRun:
    return pipeline_run(PIPELINE)


@cache
def cluster() -> ClusterRun:
    return cluster_run(CLUSTER)


class RunKind(NamedTuple):
    name: str
    before: Callable[[], Recorded]
    after: Callable[[], Recorded]
    kind: str
    words: str
    ranks: list[int]
    factor: float | None = None
    change_ns: float | None = None
    quick: bool = False


def at(cause: str, rank: int, ns: int) -> tuple[Loss, ...]:
    """A loss in the second of three steps, so half of it a step without the first."""
    return (Loss(cause, ns, (Place(rank, "F", 3, step=1),)),)


def staged(**changed: Any) -> Callable[[], Recorded]:
    return lambda: pipeline_run(replace(PIPELINE, **changed))


def clustered(**changed: Any) -> Callable[[], Recorded]:
    return lambda: cluster_run(replace(CLUSTER, **changed))


SLOW_STAGE = (1_000_000, 1_500_000, 1_000_000, 1_000_000)
RUN_KINDS = (
    RunKind("microbatches", pipeline, staged(microbatches=4), "microbatches", "8 -> 4", [], 0.5, None, True),
    RunKind("schedule", pipeline, staged(schedule="GPipe"), "schedule", "1F1B -> GPipe", []),
    RunKind(
        "a slow kernel",
        pipeline,
        staged(losses=at("dependency_stall", 1, 800_000)),
        "operation",
        "rank 1 alone",
        [1],
        1.4,
        400_000,
    ),
    RunKind("a slow stage", pipeline, staged(forward_ns=SLOW_STAGE), "operation", "rank 1 alone", [1], 1.5, 4_000_000),
    RunKind(
        "a wait on a stage",
        pipeline,
        staged(losses=at("host_sync", 1, 600_000)),
        "synchronisation",
        "rank 1 alone",
        [1],
    ),
    RunKind("optimizer", pipeline, staged(optimizer_ns=1_000_000), "operation", "_fused_adam_", [], 2.0, 500_000),
    RunKind(
        "straggler",
        cluster,
        clustered(straggler=(1, 1.5)),
        "device_speed",
        "rank 1 is a straggler",
        [1],
        1.5,
        None,
        True,
    ),
    RunKind("all slower", cluster, clustered(compute_ns=600_000), "device_speed", "1.50 x", [], 1.5),
    RunKind("more ranks", cluster, clustered(data=4), "ranks", "4 ranks -> 8", [], 2.0),
    RunKind("slower network", cluster, clustered(bytes_per_us=50_000), "network", "ALL_REDUCE", []),
    RunKind("larger gradients", cluster, clustered(gradient_bytes=16 << 20), "collective_bytes", "ALL_REDUCE", []),
)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.name, marks=() if kind.quick else pytest.mark.long) for kind in RUN_KINDS]
)
def test_the_change_of_a_run_is_named_first(kind: RunKind, linked: Link) -> None:
    report = compare(linked(kind.before()).folder, linked(kind.after()).folder)
    first = report.changes[0]
    assert (first.kind, first.ranks) == (kind.kind, kind.ranks)
    assert kind.words in first.what
    check_size(report, kind.factor, kind.change_ns, None)


def test_a_slower_network_is_as_slow_as_planted(linked: Link) -> None:
    after = replace(CLUSTER, bytes_per_us=50_000)
    report = compare(linked(cluster()).folder, linked(cluster_run(after)).folder)
    first = report.changes[0]
    counted = [group for group in report.communication if group.type == "ALL_REDUCE"]
    planted = [
        sum(group.count_before * side.alpha_ns + group.bytes_before * 1_000 / side.bytes_per_us for group in counted)
        for side in (CLUSTER, after)
    ]
    assert first.factor == pytest.approx(planted[1] / planted[0], rel=0.02)
    assert first.change_ns == pytest.approx(planted[1] - planted[0], rel=0.02)


def test_40_kinds_are_planted() -> None:
    assert len(KINDS) + len(RUN_KINDS) >= 40
    assert {type(action) for _, action, _ in walk(base())} >= {Begin, End, Host, Call}
