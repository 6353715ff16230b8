"""The communication of a rank as the joins see it, against what the simulated cluster did."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE
from graphlink.nccl.ops import function_of, function_of_kernel, op_side
from graphlink.read.columns import Strings
from graphlink.read.kineto import read_kineto
from tests.simulator import EPOCH_NS, ClusterTraining, cluster_run


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "allreduce"),
        ("ncclAllReduceRingLLKernel_sum_f32", "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reducescatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv", ""),
        ("ncclDevKernel_Generic", ""),
    ],
)
def test_a_kernels_name_tells_its_function(name: str, function: str) -> None:
    assert function_of_kernel(name) == function


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("_allgather_base", "allgather"),
        ("nccl:_reduce_scatter_base", "reducescatter"),
        ("all_to_allv", "alltoall"),
        ("nccl:send 0->1", "send"),
        ("gloo:recv", "recv"),
        ("barrier", "barrier"),
        ("coalesced", ""),
    ],
)
def test_a_recorded_name_tells_its_function(name: str, function: str) -> None:
    assert function_of(name) == function


def test_every_kernel_of_communication_is_an_op_with_what_is_recorded_of_it(tmp_path: Path) -> None:
    run = cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2, expert=2))
    run.write(tmp_path)
    for rank, columns in run.ranks.items():
        trace = read_kineto(tmp_path / f"kineto_{rank}.json")
        linked = link(trace, None, match_hosts(trace, None))
        comm, codes = communication(linked), Strings()
        ops, side = comm.ops, op_side(linked, comm, rank, codes)
        words = list(codes)
        order = [int(c) for c in trace.device.correlation[ops.row]]
        recording = run.recordings[rank]
        rows = {
            correlation: (run.ops[rank][i], kernel.call)
            for i, (correlation, kernel) in recording.communication().items()
        }
        assert ops.start_ns.tolist() == sorted(columns.start_ns.tolist())
        assert sorted(order) == sorted(rows)
        for i, correlation in enumerate(order):
            op, call = rows[correlation]
            group = side.groups[side.group[i]]
            assert side.seq[i] == op.seq
            assert ops.peer[i] == op.peer
            assert group.ranks == run.groups[op.group].members
            assert op.peer == NOWHERE or group.ranks[side.peer[i]] == op.peer
            assert group.name == run.groups[op.group].name
            assert side.issued_ns[i] == EPOCH_NS + recording.execution.calls[call].start_ns
            assert (
                words[side.function[i]]
                == {
                    0: {0: "allreduce", 2: "allgather", 5: "broadcast", 6: "alltoall"}.get(op.type),
                    1: "send",
                    2: "recv",
                }[op.kind]
            )
