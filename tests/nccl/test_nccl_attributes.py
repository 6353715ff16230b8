"""What side files of NCCL add to the nodes of a graph."""

from __future__ import annotations

import io
from typing import Any

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.graph import target
from graphlink.graph import write_et as chakra
from graphlink.nccl.outputs import columns
from graphlink.nccl.read.records import Communicator
from graphlink.nccl.summary import SideFiles
from graphlink.read.kinds import DumpKind
from tests.graph.test_chakra import frames
from tests.nccl_records import Proxy, dump, ops, side_files
from tests.pipeline.hand import ALL_REDUCE, communication, every_kind

KERNEL, GLOO = 9, 5  # nodes of ``every_kind``
OPS = ops([{"row": 1, "on_host": True}, {"row": 1}])
RING = {"seq": 7, "algorithm": "Ring", "protocol": "LL128", "channels": 16, "communicator": 0}
SPLIT = [(1, 1_000, 0, 30_000, 4_000, 5_000)]


def written(files: SideFiles | None) -> bytes:
    g, comm = every_kind(), communication(ALL_REDUCE, host=(ALL_REDUCE,))
    out = io.BytesIO()
    of_rank = target.written(g.of_rank(0, 2), comm, target.plan(g, comm, 0, "astra-sim"), {comm.ops.groups[0]: 5})
    chakra.write_et(out, of_rank.with_columns(columns(g, files) if files else {}))
    return out.getvalue()


def attributes(files: SideFiles) -> dict[int, dict[str, Any]]:
    """By node, those of NCCL."""
    told = {}
    for node in map(pb.Node.FromString, frames(written(files))[1:]):
        mine = {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr if a.name.startswith("nccl_")}
        if mine:
            told[node.id] = mine
    return told


def test_a_matched_kernel_and_a_host_row_have_what_is_recorded_of_them() -> None:
    proxies = [
        Proxy(0, 0, True, bytes=100),
        Proxy(0, 1, True, bytes=28),
        Proxy(0, 0, False, bytes=999),
        Proxy(1, 0, True, bytes=5),
    ]
    found = attributes(
        side_files([dump([RING, {"communicator": 0}], proxies=proxies)], OPS, [(0, 0, 1), (1, 0, 0)], SPLIT)
    )
    assert found == {
        GLOO: {"nccl_wire_bytes": 5, "nccl_comm": "12715772615376301750"},
        KERNEL: {
            "nccl_seq": 7,
            "nccl_algorithm": "Ring",
            "nccl_protocol": "LL128",
            "nccl_channels": 16,
            "nccl_wire_bytes": 128,
            "nccl_comm": "12715772615376301750",
            "nccl_gpu_wait_ns": 1_000,
            "nccl_peer_wait_ns": 0,
            "nccl_wire_ns": 30_000,
            "nccl_receive_ns": 4_000,
        },
    }


def test_of_several_files_that_know_a_call_nccls_own_comes_first() -> None:
    recorder = dump(
        [{"seq": 3, "communicator": 0, "algorithm": ""}],
        kind=DumpKind.FLIGHT_RECORDER,
        communicators=[Communicator("0", ranks=(0, 1))],
    )
    inspector = dump([{"seq": 5, "protocol": "Simple"}], kind=DumpKind.INSPECTOR)
    plugin = dump([{"channels": 4, "communicator": 0}])
    files = side_files([recorder, inspector, plugin], OPS, [(1, 0, 0), (1, 1, 0), (1, 2, 0)])
    assert attributes(files)[KERNEL] == {
        "nccl_seq": 5,
        "nccl_protocol": "Simple",
        "nccl_channels": 4,
        "nccl_comm": "12715772615376301750",
    }


@pytest.mark.parametrize("dumps", [[], [dump([RING])]])
def test_where_nothing_matched_the_graph_is_as_without_side_files(dumps: list[Any]) -> None:
    assert written(side_files(dumps, OPS, [])) == written(None)
