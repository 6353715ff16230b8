"""Every public trace of the neighbouring folder, with the counts that its README gives or that a plain count of the
JSON gave.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.errors import InputError
from graphlink.read.heads import looks_like
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/traces is not there")

# host rows, calls, device rows, cuda_sync rows, flows, rank, world size, resolution
KINETO = {
    "megatron-tp2-v100/kineto_0": (1880, 567, 245, 0, 91, 0, 2, 1),
    "megatron-tp2-v100/kineto_1": (1880, 737, 245, 0, 91, 1, 2, 1),
    "resnet-ddp2-a100/kineto_0": (14388, 8740, 3774, 0, 543, 0, 2, 1),
    "dlrm8-v100/kineto_0": (1673, 525, 261, 0, 0, 0, 8, 1000),
    "dlrm8-v100/kineto_1": (1673, 527, 326, 0, 0, 1, 8, 1000),
    "vgg13-h100/kineto_0": (900, 518, 325, 0, 39, None, None, 1000),
    "simple-add-a100/kineto_0": (36, 15, 4, 0, 0, 0, None, 1000),
    "partial-et/kineto_0": (39506, 25928, 10113, 0, 0, None, None, 1000),
    "cuda-sync/alexnet": (367, 361, 98, 41, 0, 0, None, 1000),
    "cuda-sync/event_sync": (11, 12, 5, 4, 0, 0, None, 1000),
    "rocm/mi250_minitoy": (73, 21, 16, 0, 4, None, None, 1),
    "rocm/mi300_resnet_rank0of8": (8028, 3100, 3653, 0, 213, 0, 8, 1),
    "legacy/categories_2021": (0, 8, 4, 0, 0, 1, None, 1000),
    "legacy/triton_example": (4, 2, 1, 0, 0, None, None, 1),
    "legacy/sendrecv_graph_launch_5streams": (25545, 33924, 7747, 0, 0, 0, 16, 1000),
    "host-only/no_gpu_no_rank": (2467, 0, 0, 0, 0, None, None, 1000),
    "pipelining-cpu/1f1b/kineto_1": (4658, 0, 0, 0, 224, 1, 4, 1),
    "pipelining-cpu/interleaved-zb/kineto_3": (11490, 0, 0, 0, 464, 3, 4, 1),
}

# nodes, device nodes, comms, process groups, pid
ET = {
    "megatron-tp2-v100/et_0": (1884, 0, 26, 19, 1375),
    "resnet-ddp2-a100/et_0": (14391, 0, 27, 0, 3233936),
    "mismatched-pair/et_0": (14392, 0, 27, 1, 2254958),
    "dlrm8-v100/et_0": (1675, 0, 13, 0, 59811),
    "dlrm8-v100/et_plus_reference_0": (1675, 261, 13, 0, 59811),
    "vgg13-h100/et_0": (903, 0, 0, 0, 42741),
    "simple-add-a100/et_0": (38, 0, 0, 0, 563677),
    "partial-et/et_0": (1313, 0, 0, 0, 23442),
    "pipelining-cpu/1f1b/et_1": (4662, 0, 64, 1, 26092),
    "pipelining-cpu/interleaved-zb/et_1": (11138, 0, 128, 1, 26121),
}


@pytest.mark.parametrize("name", KINETO)
def test_kineto(name):
    path = TRACES / f"{name}.json.gz"
    assert looks_like(path) == "kineto"
    trace = read_kineto(path)
    found = (len(trace.host.start_ns), len(trace.calls.start_ns), len(trace.device.start_ns), len(trace.syncs.kind),
             len(trace.flows.fwd_ns), trace.rank, trace.world_size, trace.resolution_ns)  # fmt: skip
    assert found == KINETO[name]
    assert "unreadable" not in trace.left_out
    host, device = trace.host, trace.device
    assert (np.lexsort((host.order, -host.end_ns, host.start_ns)) == np.arange(len(host.start_ns))).all()
    assert (np.diff(device.start_ns) >= 0).all()


@pytest.mark.parametrize("name", ET)
def test_host(name):
    path = TRACES / f"{name}.json.gz"
    assert looks_like(path) == "et"
    trace = read_host(path)
    found = (len(trace.id), trace.device_nodes_left_aside, len(trace.comm.row), len(trace.process_groups), trace.pid)
    assert found == ET[name]
    assert trace.left_out == {}
    assert (np.lexsort((trace.id, trace.rf_id)) == np.arange(len(trace.id))).all()
    assert set(trace.parent.tolist()) <= set(trace.id.tolist())


def test_small_blocks_give_the_same():
    for name in ("cuda-sync/alexnet", "megatron-tp2-v100/kineto_0"):
        whole, parts = (read_kineto(TRACES / f"{name}.json.gz", block_bytes=size) for size in (1 << 26, 700))
        for table in ("host", "calls", "device", "syncs", "flows"):
            one, other = getattr(whole, table), getattr(parts, table)
            for column in one.__slots__:
                if column in (
                    "name",
                    "input_shapes",
                    "input_types",
                ):  # numbered in order of first use, which blocks change
                    texts = [
                        [trace.strings[i] for i in getattr(getattr(trace, table), column)] for trace in (whole, parts)
                    ]
                    assert texts[0] == texts[1]
                elif column != "comm":
                    assert np.array_equal(getattr(one, column), getattr(other, column)), (name, table, column)
                else:
                    assert one.comm.comms == other.comm.comms
        assert whole.left_out == parts.left_out
    one, other = (read_host(TRACES / "megatron-tp2-v100/et_0.json.gz", block_bytes=size) for size in (1 << 26, 700))
    assert np.array_equal(one.parent, other.parent)
    assert one.comm.comms == other.comm.comms


def test_megatron_collectives():
    trace = read_kineto(TRACES / "megatron-tp2-v100/kineto_0.json.gz")
    assert set(trace.device.stream[trace.device.comm.row].tolist()) == {22}
    assert {(comm.name, comm.ranks, comm.dtype) for comm in trace.device.comm.comms} == {("allreduce", (0, 1), "Float")}
    assert len(trace.process_groups) == 19


def test_pipeline_peers():
    trace = read_host(TRACES / "pipelining-cpu/1f1b/et_1.json.gz")
    peers = {(comm.name, comm.src_rank, comm.dst_rank, comm.in_nelems, comm.elem_bytes) for comm in trace.comm.comms}
    assert peers == {
        ("recv", 0, None, 4096, 4),
        ("send", None, 2, 4096, 4),
        ("recv", 2, None, 4096, 4),
        ("send", None, 0, 4096, 4),
    }


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [("megatron-tp2-v100/chakra-2024.0.et", "chakra", "Chakra"), ("nsys/h100_2gpu_1s.sqlite", "nsys", "nsys"),
     ("megatron-tp2-v100/et_0.json.gz", "et", "execution trace"), ("nccl/nccl_trace_p2p_4rank.json", "nccl", "side file of NCCL")],
)  # fmt: skip
def test_wrong_files(name, kind, what):
    with pytest.raises(InputError, match=what):
        read_kineto(TRACES / name)
    assert looks_like(TRACES / name) == kind
