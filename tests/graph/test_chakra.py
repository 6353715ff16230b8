from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from graphlink.graph import attributes
from graphlink.graph import write_et as chakra
from graphlink.graph.critical import cost_ns
from graphlink.graph.target import plan
from graphlink.graph.target import written as as_written
from graphlink.graph.write_et import lanes, micros
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import NOWHERE, CommKind, Communication
from graphlink.ranks import group_ids as groups
from tests.comm_ops import Op
from tests.pipeline.hand import ALL_REDUCE, EPOCH_NS, N, communication, every_kind, graph, recorded_as, records


def written(g: Graph, comm: Communication, target: str = "astra-sim", rank: int = 0) -> tuple[Any, list[Any], bytes]:
    out = io.BytesIO()
    comms = plan(g, comm, rank, target)
    ids = groups.assign({rank: comms.groups})[rank]
    assert chakra.write_et(out, as_written(g.of_rank(rank, 2), comm, comms, ids)) == len(out.getvalue())
    parts = frames(out.getvalue())
    return pb.GlobalMetadata.FromString(parts[0]), [pb.Node.FromString(p) for p in parts[1:]], out.getvalue()


def frames(data: bytes) -> list[bytes]:
    out, at = [], 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        out.append(data[at : at + size])
        at += size
    return out


def attrs(node: Any) -> dict[str, tuple[str, Any]]:
    out = {}
    for a in node.attr:
        kind = a.WhichOneof("value")
        value = getattr(a, kind)
        assert a.name not in out
        out[a.name] = kind, tuple(value.values) if kind.endswith("_list") else value
    return out


HOST = {"is_cpu_op", "start_ns", "end_ns", "duration_ns", "dep_kinds", "tid", "self_ns", "wait_ns"}
DEVICE = {
    "is_cpu_op",
    "start_ns",
    "end_ns",
    "duration_ns",
    "dep_kinds",
    "device",
    "stream",
    "start_delay_ns",
    "overlap_ns",
    "launch_latency_ns",
}
FROM_ET = {"rf_id", "fw_parent", "seq_id", "scope", "fw_tid", "et_tid", "op_schema"}
COLLECTIVE = {"comm_type", "comm_size", "pg_name", "pg_desc"}


def test_every_kind_of_node_has_the_attributes_of_the_contract_and_no_others() -> None:
    _, nodes, _ = written(every_kind(), communication(ALL_REDUCE, host=(ALL_REDUCE,)))
    expected = [
        ("aten::mm", HOST | FROM_ET),
        ("device delay", DEVICE),
        ("aten::mm (cont.)", HOST | {"rf_id"}),
        ("gemm", DEVICE | {"correlation"}),
        ("gloo:all_reduce", HOST | FROM_ET),
        ("gloo:all_reduce", DEVICE | COLLECTIVE),
        ("host gap", HOST),
        ("aten::é ☃", HOST),
        ("cudaDeviceSynchronize", HOST),
        ("ncclDevKernel_AllReduce", DEVICE | {"correlation"} | COLLECTIVE),
        ("end", HOST),
    ]
    assert [(n.name, set(attrs(n))) for n in nodes] == expected


def test_values_and_oneof_fields() -> None:
    head, nodes, _ = written(every_kind(), communication(ALL_REDUCE))
    assert head.version
    assert attrs(head) | {"graphlink": None} == {
        "epoch_ns": ("int64_val", EPOCH_NS),
        "rank": ("int64_val", 0),
        "world_size": ("int64_val", 2),
        "graphlink": None,
    }
    assert [n.id for n in nodes] == list(range(11))
    assert attrs(nodes[0]) == {
        "is_cpu_op": ("bool_val", True),
        "start_ns": ("int64_val", 0),
        "end_ns": ("int64_val", 30_000),
        "duration_ns": ("int64_val", 10_400),
        "dep_kinds": ("string_list", ()),
        "tid": ("int64_val", 1),
        "self_ns": ("int64_val", 10_400),
        "wait_ns": ("int64_val", 0),
        "rf_id": ("int64_val", 1),
        "fw_parent": ("int64_val", 5),
        "seq_id": ("int64_val", -1),
        "scope": ("int64_val", 0),
        "et_tid": ("int64_val", 1),
        "fw_tid": ("int64_val", 0),
        "op_schema": ("string_val", "aten::mm(Tensor a) -> Tensor"),
    }
    nccl = nodes[9]
    assert (nccl.type, list(nccl.ctrl_deps), list(nccl.data_deps)) == (pb.COMM_COLL_NODE, [7], [3, 7])
    assert attrs(nccl)["dep_kinds"] == ("string_list", ("event", "launch"))
    assert {k: attrs(nccl)[k] for k in ("comm_type", "comm_size", "pg_name", "pg_desc", "correlation", "stream")} == {
        "comm_type": ("int64_val", 0),
        "comm_size": ("int64_val", 4096),
        "pg_name": ("string_val", "1"),
        "pg_desc": ("string_val", "dp"),
        "correlation": ("int64_val", 8),
        "stream": ("int64_val", 22),
    }
    assert attrs(nodes[3])["overlap_ns"] == ("int64_val", 500)


def test_host_side_communication_has_no_device_and_is_no_cpu_op() -> None:
    _, nodes, _ = written(every_kind(), communication(host=(ALL_REDUCE,)))
    values = attrs(nodes[5])
    assert nodes[5].type == pb.COMM_COLL_NODE
    assert (values["is_cpu_op"][1], values["device"][1], values["stream"][1]) == (False, -1, -1)


def test_the_calls_behind_sync_edges_are_named_once_where_they_agree() -> None:
    k, e = NodeKind, EdgeKind
    calls = records().trace.strings
    launch, sync = (calls[c] for c in records().trace.calls.name[[0, 2]])
    nodes = [
        N(k.HOST_OP, 0, 0, 1, 1, tid=1),
        N(k.DEVICE_OP, 0, 0, 2, 2, ((0, e.LAUNCH),)),
        N(k.DEVICE_OP, 1, 0, 2, 2, ((0, e.LAUNCH),)),
        N(k.HOST_PART, 0, 3, 4, 1, ((0, e.HOST), (1, e.SYNC), (2, e.SYNC)), tid=1, wake=1),
        N(k.HOST_OP, 2, 5, 6, 1, ((1, e.SYNC), (2, e.SYNC), (3, e.HOST)), tid=1),
        N(k.HOST_OP, 2, 7, 8, 1, ((1, e.SYNC), (4, e.HOST)), tid=1),
        N(k.END, NOWHERE, 9, 9, 0, ((2, e.SYNC), (5, e.HOST)), tid=1),
    ]
    waits = [(1, 3, 2), (2, 3, 2), (1, 4, 2), (1, 5, 0), (1, 5, 2)]
    as_written = [attrs(n) for n in written(graph(nodes, waits=waits), communication())[1]]
    assert [a.get("wake_ns") for a in as_written] == [None, None, None, ("int64_val", 1), None, None, None]
    made = [a.get("sync_call") for a in as_written]
    assert made[:3] == [None] * 3
    assert made[3] == ("string_val", sync)
    assert made[4] == ("string_list", (sync, "", ""))
    assert made[5] == ("string_list", (f"{launch} {sync}", ""))
    assert made[6] is None


def test_bytes_are_those_that_protobuf_makes_of_the_messages() -> None:
    _, nodes, data = written(every_kind(), communication(ALL_REDUCE, host=(ALL_REDUCE,)))
    for node, part in zip(nodes, frames(data)[1:], strict=True):
        assert node.SerializeToString() == part


def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, whole = written(every_kind(), communication(ALL_REDUCE))
    monkeypatch.setattr(chakra, "BLOCK", 3)
    assert written(every_kind(), communication(ALL_REDUCE))[2] == whole


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**21), st.booleans()), max_size=40))
def test_integer_columns_equal_plain_messages(rows: list[tuple[int, int, bool]]) -> None:
    big, small = (np.array([r[i] for r in rows], np.int64) for i in (0, 1))
    where = np.array([r[2] for r in rows], np.bool_)
    blobs = attributes.int_attributes([("a", big, None), ("start_ns", small, where)], big > 0)
    plain = [
        pb.Node(
            attr=[pb.AttributeProto(name="a", int64_val=a)]
            + ([pb.AttributeProto(name="start_ns", int64_val=b)] if there else [])
        ).SerializeToString()
        for a, b, there in rows
    ]
    assert blobs == plain


@given(
    st.lists(
        st.tuples(
            st.sampled_from([NodeKind.HOST_OP, NodeKind.DEVICE_OP, NodeKind.HOST_COMM]),
            st.integers(0, 2),
            st.integers(0, 5_000),
            st.integers(0, 900),
        ),
        max_size=60,
    )
)
def test_whole_micros_are_exact_along_every_lane_at_every_node(rows: list[tuple[NodeKind, int, int, int]]) -> None:
    g = graph(
        [
            N(kind, 0, i, i, took, delay=0 if kind == NodeKind.HOST_OP else late, tid=lane, stream=lane)
            for i, (kind, lane, took, late) in enumerate(rows)
        ]
    )
    cost, whole = cost_ns(g), micros(g)
    sums: dict[tuple[int, int, bool], tuple[int, int]] = {}
    for lane, ns, us in zip(
        zip(*(x.tolist() for x in lanes(g)), g.host.tolist(), strict=True), cost.tolist(), whole.tolist(), strict=True
    ):
        before = sums.get(lane, (0, 0))
        sums[lane] = before[0] + ns, before[1] + us
        assert us >= 0
        assert abs(sums[lane][1] * 1000 - sums[lane][0]) <= 500


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (ALL_REDUCE, (pb.COMM_COLL_NODE, 0, None)),
        (
            Op(CommKind.COLLECTIVE, "REDUCE", type=pb.REDUCE, bytes=8, group=0),
            (pb.COMM_COLL_NODE, pb.ALL_REDUCE, "REDUCE"),
        ),
        (
            Op(CommKind.COLLECTIVE, "GATHER", type=pb.GATHER, bytes=8, group=0),
            (pb.COMM_COLL_NODE, pb.ALL_GATHER, "GATHER"),
        ),
        (
            Op(CommKind.COLLECTIVE, "SCATTER", type=pb.SCATTER, bytes=8, group=0),
            (pb.COMM_COLL_NODE, pb.BROADCAST, "SCATTER"),
        ),
        (
            Op(CommKind.COLLECTIVE, "REDUCE_SCATTER_BLOCK", type=pb.REDUCE_SCATTER_BLOCK, bytes=8, group=0),
            (pb.COMM_COLL_NODE, pb.REDUCE_SCATTER, "REDUCE_SCATTER_BLOCK"),
        ),
        (Op(CommKind.COLLECTIVE, "BARRIER", type=pb.BARRIER, bytes=8, group=0), (pb.COMP_NODE, None, "BARRIER")),
        (Op(CommKind.COLLECTIVE, "ALL_GATHER", type=pb.ALL_GATHER, group=0), (pb.COMP_NODE, None, "ALL_GATHER")),
        (Op(CommKind.COLLECTIVE, "ALL_REDUCE", type=0, bytes=8, group=1), (pb.COMP_NODE, None, "ALL_REDUCE")),
        (Op(CommKind.UNKNOWN, "ncclKernel_X"), (pb.COMP_NODE, None, "ncclKernel_X")),
        (Op(CommKind.SEND, "SEND", bytes=8, group=0, peer=0), (pb.COMP_NODE, None, "SEND")),
    ],
)
def test_what_astra_sim_cannot_run_is_replaced_and_said(node: Op, expected: tuple[int, int | None, str | None]) -> None:
    _, nodes, _ = written(every_kind(), communication(node))
    values = attrs(nodes[9])
    got = nodes[9].type, values.get("comm_type", (0, None))[1], values.get("comm_type_recorded", (0, None))[1]
    assert got == expected
    if nodes[9].type == pb.COMP_NODE:
        assert not values.keys() & {"comm_size", "pg_name", "comm_src", "comm_dst", "comm_tag"}


def test_target_chakra_writes_what_was_recorded() -> None:
    node = Op(CommKind.COLLECTIVE, "REDUCE", type=pb.REDUCE, bytes=8, group=1)
    _, nodes, _ = written(every_kind(), communication(node), target="chakra")
    values = attrs(nodes[9])
    assert (nodes[9].type, values["comm_type"][1], values["pg_desc"][1]) == (pb.COMM_COLL_NODE, pb.REDUCE, "self")
    assert "comm_type_recorded" not in values


@pytest.mark.parametrize(("kind", "type_"), [(CommKind.SEND, pb.COMM_SEND_NODE), (CommKind.RECV, pb.COMM_RECV_NODE)])
def test_messages_name_both_ends_and_a_tag(kind: CommKind, type_: int) -> None:
    node = Op(kind, kind.name, bytes=64, group=0, peer=1)
    _, nodes, _ = written(every_kind(), communication(node))
    values = attrs(nodes[9])
    ends = ("int32_val", 0), ("int32_val", 1)
    assert nodes[9].type == type_
    assert (values["comm_src"], values["comm_dst"]) == (ends if kind == CommKind.SEND else ends[::-1])
    assert (values["comm_tag"], values["comm_size"]) == (("int32_val", 0), ("int64_val", 64))
    assert "comm_type" not in values


def test_group_ids_depend_on_members_and_names_alone() -> None:
    keys = [((0, 1), "dp"), ((0, 1, 2, 3), "world"), ((0, 1), "2"), ((0, 1), "10")]
    ids = groups.assign({0: keys, 1: keys[::-1]})
    assert ids[0] == ids[1]
    assert sorted(ids[0], key=ids[0].__getitem__) == [
        ((0, 1, 2, 3), "world"),
        ((0, 1), "2"),
        ((0, 1), "10"),
        ((0, 1), "dp"),
    ]
    assert groups.comm_group_json(ids) == b'{"1": [0, 1, 2, 3], "2": [0, 1], "3": [0, 1], "4": [0, 1]}\n'


def test_groups_named_by_address_are_told_apart_by_their_order() -> None:
    ids = groups.assign(
        {0: [((0, 1), "94594108"), ((0, 1), "94594999")], 1: [((0, 1), "93891384"), ((0, 1), "11111111")]}
    )
    assert ids == {
        0: {((0, 1), "94594108"): 1, ((0, 1), "94594999"): 2},
        1: {((0, 1), "93891384"): 1, ((0, 1), "11111111"): 2},
    }
    assert groups.comm_group_json(ids) == b'{"1": [0, 1], "2": [0, 1]}\n'


def test_inputs_and_outputs_come_from_the_et_else_from_kineto() -> None:
    linked = records()
    host, et = linked.trace.host, linked.et
    assert et is not None
    at = len(linked.trace.strings)
    trace = replace(
        linked.trace,
        strings=(*linked.trace.strings, "[[2]]", '["float"]'),
        host=replace(host, input_shapes=np.full(3, at, np.int32), input_types=np.full(3, at + 1, np.int32)),
    )
    of_et = replace(
        et,
        strings=(*et.strings, "[[3]]"),
        input_shapes=np.full(len(et.id), len(et.strings), np.int32),
        output_shapes=np.full(len(et.id), len(et.strings), np.int32),
    )
    _, nodes, _ = written(recorded_as(every_kind(), replace(linked, trace=trace, et=of_et)), communication())
    assert (nodes[0].inputs.shapes, nodes[0].inputs.types, nodes[0].outputs.shapes) == ("[[3]]", "", "[[3]]")
    assert (nodes[7].inputs.shapes, nodes[7].inputs.types) == ("[[2]]", '["float"]')
    assert not nodes[7].HasField("outputs")
    assert not nodes[2].HasField("inputs")


def test_a_node_with_very_many_dependencies() -> None:
    count = 5_000
    fan = [N(NodeKind.HOST_GAP, NOWHERE, i, i, 1, tid=i) for i in range(count)]
    end = N(NodeKind.END, NOWHERE, count, count, 0, tuple((i, EdgeKind.THREAD) for i in range(count)))
    _, nodes, _ = written(graph([*fan, end]), communication())
    assert list(nodes[-1].data_deps) == list(range(count))
    assert attrs(nodes[-1])["dep_kinds"] == ("string_list", ("thread",) * count)


def test_nodes_that_differ_only_in_what_is_not_written_share_how_they_are() -> None:
    comm = communication(ALL_REDUCE, ALL_REDUCE._replace(seq=1), host=(ALL_REDUCE._replace(uneven=True),))
    one, other, third = plan(every_kind(), comm, 0, "astra-sim").by_node.values()
    assert one is other is third
