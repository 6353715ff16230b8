from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from graphlink.linking.commtypes import (
    CollectiveType,
    collective_type,
    element_bytes,
    kind_of,
    size_bytes,
    sizes_may_differ,
)
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, Comm, CommKind, Communication, DeviceKind, HostTrace, ProcessGroup, Trace
from tests.build import Call, Device, Host, Node, build_et, build_trace
from tests.comm_ops import listed

PAIR = ProcessGroup("13", "tp", size=2, ranks=(4, 6))
REDUCE = Comm("allreduce", "BFloat16", 512, 512, pg_name="13", ranks=(4, 6), group_size=2)


def typed(trace: Trace, et: HostTrace | None = None) -> Communication:
    return communication(link(trace, et, match_hosts(trace, et)))


def launched(
    comm: Comm | None, kernels: Iterable[Device] = (Device("ncclDevKernel_X", 10, 20, 1),), **about: object
) -> Communication:
    """A ``record_param_comms`` op of rank 4 with these kernels launched in it."""
    trace = build_trace(
        [Host("record_param_comms", 0, 9, comm=comm)], [Call("cudaLaunchKernelExC", 2, 3, 1)], kernels, rank=4, **about
    )
    return typed(trace)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("allreduce", CollectiveType.ALL_REDUCE),
        ("allreduce_coalesced", CollectiveType.ALL_REDUCE),
        ("nccl:all_reduce", CollectiveType.ALL_REDUCE),
        ("broadcast", CollectiveType.BROADCAST),
        ("_broadcast_oop", CollectiveType.BROADCAST),
        ("all_gather", CollectiveType.ALL_GATHER),
        ("_allgather_base", CollectiveType.ALL_GATHER),
        ("allgather_into_tensor_coalesced", CollectiveType.ALL_GATHER),
        ("reduce_scatter", CollectiveType.REDUCE_SCATTER),
        ("_reduce_scatter_base", CollectiveType.REDUCE_SCATTER),
        ("reduce_scatter_tensor_coalesced", CollectiveType.REDUCE_SCATTER),
        ("reduce", CollectiveType.REDUCE),
        ("gather", CollectiveType.GATHER),
        ("scatter", CollectiveType.SCATTER),
        ("all_to_all", CollectiveType.ALL_TO_ALL),
        ("all_to_allv", CollectiveType.ALL_TO_ALL),
        ("c10d::alltoall_base_", CollectiveType.ALL_TO_ALL),
        ("barrier", CollectiveType.BARRIER),
        ("wait", None),
        ("coalesced", None),
        ("send", None),
    ],
)
def test_recorded_names_are_typed(name: str, expected: CollectiveType | None) -> None:
    assert collective_type(name) is expected


def test_sends_and_receives_are_told_from_collectives() -> None:
    assert [kind_of(n) for n in ("send", "gloo:send", "nccl:send 0->1")] == [CommKind.SEND] * 3
    assert [kind_of(n) for n in ("recv", "c10d::recv_", "recvAnySource")] == [CommKind.RECV] * 3
    assert [kind_of(n) for n in ("wait", "coalesced", "")] == [CommKind.UNKNOWN] * 3


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("Float", 4),
        ("BFloat16", 2),
        ("Half", 2),
        ("Long", 8),
        ("Int", 4),
        ("Byte", 1),
        ("Char", 1),
        ("Bool", 1),
        ("Double", 8),
        ("Float8_e4m3fn", 1),
        ("ComplexFloat", 8),
        ("c10::complex<float>", 8),
        ("c10::BFloat16", 2),
        ("long int", 8),
        ("Tensor(unsigned char)", 1),
        ("GenericList[Tensor(c10::Half),Tensor(c10::Half)]", 2),
        ("", None),
        ("Nonsense", None),
    ],
)
def test_bytes_of_an_element(dtype: str, expected: int | None) -> None:
    assert element_bytes(dtype) == expected


@pytest.mark.parametrize(
    ("name", "sent", "got", "expected"),
    [
        ("allreduce", 100, 100, 400),
        ("all_gather", 100, 800, 400),  # the shard of a rank
        ("all_gather", None, 800, 400),
        ("reduce_scatter", 800, 100, 3200),  # the whole buffer of a rank
        ("reduce_scatter", None, 100, 3200),
        ("all_to_allv", 96, 120, 384),
        ("scatter", 800, 100, 400),
        ("gather", 100, 800, 400),
        ("recv", None, 7, 28),
        ("barrier", 0, 0, 0),
        ("allreduce", None, None, None),
    ],
)
def test_sizes_are_as_astra_sim_counts_them(name: str, sent: int | None, got: int | None, expected: int | None) -> None:
    assert size_bytes(Comm(name, "Float", sent, got), 8) == expected


def test_the_tensor_tells_the_element_size_of_a_type_that_is_not_known() -> None:
    assert size_bytes(Comm("allreduce", "New4Bit", 100, 100, elem_bytes=3), 2) == 300


def test_a_kernel_takes_type_size_and_group_from_the_op_that_launched_it() -> None:
    got = launched(REDUCE)
    (node,) = listed(got.ops)
    assert (node.kind, node.name, node.type, node.bytes) == (CommKind.COLLECTIVE, "ALL_REDUCE", 0, 1024)
    assert got.ops.groups[0] == ((4, 6), "13")
    assert got.warnings == ()


def test_what_only_the_et_says_is_taken_from_it() -> None:
    rows = [Host("record_param_comms", 0, 9, rf_id=1), Host("x", 10, 11, rf_id=2)]
    trace = build_trace(
        rows, [Call("cudaLaunchKernel", 2, 3, 1)], [Device("ncclKernel_SendRecv", 10, 20, 1)], world_size=2
    )
    call = Comm("all_to_allv", "", 96, 96, (48, 48), (48, 48), pg_name="94594108284448", elem_bytes=8)
    got = typed(trace, build_et([Node("record_param_comms", 1, comm=call), Node("x", 2)]))
    assert [(n.name, n.bytes) for n in listed(got.ops)] == [("ALL_TO_ALL", 768)]
    assert got.ops.groups[0][0] == (0, 1)


def test_kineto_holds_where_the_et_has_another_group() -> None:
    rows = [Host("record_param_comms", 0, 9, rf_id=1, comm=REDUCE), Host("x", 10, 11, rf_id=2)]
    trace = build_trace(rows, [Call("cudaLaunchKernel", 2, 3, 1)], [Device("nccl", 10, 20, 1)])
    other = Comm("allreduce", "BFloat16", 512, 512, pg_name="13", ranks=(4,), group_size=1)
    got = typed(trace, build_et([Node("record_param_comms", 1, comm=other), Node("x", 2)]))
    assert got.ops.groups[0][0] == (4, 6)
    assert any("13 has ranks [4] in the ET, [4, 6] in Kineto (1 calls)" in w for w in got.warnings)


def test_copies_and_computation_in_a_call_are_no_communication() -> None:
    trace = build_trace(
        [Host("record_param_comms", 0, 90, comm=REDUCE), Host("aten::copy_", 10, 20)],
        [Call("cudaLaunchKernel", 12, 13, 1), Call("cudaMemcpyAsync", 30, 31, 2), Call("cudaLaunchKernel", 40, 41, 3)],
        [
            Device("elementwise_kernel", 100, 110, 1),
            Device("Memcpy DtoD", 110, 120, 2, kind=DeviceKind.MEMCPY),
            Device("ncclDevKernel", 120, 130, 3),
        ],
    )
    assert typed(trace).device_row.tolist() == [2]


def test_the_bytes_of_a_call_with_two_kernels_count_once() -> None:
    got = launched(REDUCE, [Device("ncclDevKernel_X", 10, 20, 1), Device("ncclDevKernel_X", 20, 30, 1)])
    assert [n.bytes for n in listed(got.ops)] == [1024, 0]
    assert listed(got.ops)[1].kind is CommKind.UNKNOWN


def test_an_orphan_kernel_with_its_own_arguments_is_typed() -> None:
    got = typed(build_trace([], [], [Device("ncclDevKernel_X", 10, 20, 1, comm=REDUCE)]))
    assert listed(got.ops)[0].name == "ALL_REDUCE"


def test_a_kernel_without_parameters_is_unknown_under_the_name_of_its_range() -> None:
    rows = [Host("record_param_comms", 0, 9), Host("nccl:all_to_all", 1, 8, annotation=True)]
    kernels = [Device("ncclKernel_SendRecv_RING(ncclDevComm*)", 10, 20, c) for c in (1, 2)]
    got = typed(build_trace(rows, [Call("cudaLaunchKernel", 2, 3, 1)], kernels))
    assert [(n.kind, n.name) for n in listed(got.ops)] == [
        (CommKind.UNKNOWN, "ALL_TO_ALL"),
        (CommKind.UNKNOWN, "ncclKernel_SendRecv_RING"),
    ]
    assert len(got.warnings) == 1


@pytest.mark.parametrize("elems", [1 << 62, -5])
def test_bytes_that_make_no_int64_are_unknown(elems: int) -> None:
    got = launched(msgspec.structs.replace(REDUCE, in_nelems=elems))
    assert listed(got.ops)[0].kind is CommKind.UNKNOWN


@pytest.mark.parametrize(
    ("call", "uneven"),
    [
        (Comm("allreduce"), False),
        (Comm("all_to_allv"), True),
        (Comm("nccl:_allgatherv"), True),
        (Comm("all_to_all", in_split=(48, 16)), True),
        (Comm("allgather_into_tensor_coalesced"), True),
        (Comm("broadcast"), False),
    ],
)
def test_which_calls_may_differ_in_size(call: Comm, uneven: bool) -> None:
    assert sizes_may_differ(call) is uneven


def test_a_node_has_the_number_of_its_call() -> None:
    (node,) = listed(launched(msgspec.structs.replace(REDUCE, seq=17)).ops)
    assert (node.seq, node.uneven) == (17, False)


def test_peers_are_global_ranks() -> None:
    send = Comm("send", "Float", 10, 10, pg_name="13", ranks=(4, 6), group_size=2, dst_rank=1)
    (node,) = listed(launched(send).ops)
    assert (node.kind, node.peer, node.tag, node.bytes) == (CommKind.SEND, 6, 0, 40)
    recv = Comm("recv", "Float", 10, 10, pg_name="13", ranks=(4, 6), group_size=2, rank=1)  # before "Src Rank"
    (node,) = listed(launched(recv).ops)
    assert (node.kind, node.peer) == (CommKind.RECV, 6)


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"process_groups": (PAIR,)}, (4, 6)),
        ({"process_groups": (ProcessGroup("13", size=2),), "world_size": 2}, (0, 1)),
        ({"world_size": 2}, (0, 1)),  # as many members as the world has
        ({"world_size": 8}, None),
        ({}, None),
    ],
)
def test_where_the_ranks_of_a_group_come_from(about: dict[str, object], expected: tuple[int, ...] | None) -> None:
    got = launched(Comm("allreduce", "Float", 1, 1, pg_name="13", group_size=2), **about)
    assert (got.ops.groups[0][0] if got.ops.groups else None) == expected
    assert (listed(got.ops)[0].kind is CommKind.UNKNOWN) == (expected is None)


def test_the_only_group_of_unknown_size_is_taken_as_the_world_with_a_warning() -> None:
    got = launched(Comm("allreduce", "Float", 1, 1, pg_name="9459"), world_size=8)
    assert got.ops.groups[0][0] == tuple(range(8))
    assert any("taken as all ranks" in w for w in got.warnings)


def test_gloo_ranges_take_peer_and_tag_from_the_op_in_which_they_began() -> None:
    rows = [
        Host("c10d::send", 0, 10, comm=Comm("send", "Float", 4096, 4096, dst_rank=2, tag=3)),
        Host("gloo:send", 5, 80, annotation=True),
        Host("c10d::recv_", 20, 90, comm=Comm("recv", "Float", 4096, 4096, src_rank=0, tag=0)),
        Host("gloo:recv", 25, 30, annotation=True),  # nests, and is asynchronous all the same
        Host("gloo:recv", 95, 99, annotation=True),
    ]
    world = ProcessGroup("0", "default_pg", size=4, ranks=(0, 1, 2, 3))
    got = typed(build_trace(rows, rank=1, world_size=4, process_groups=(world,)))
    assert got.host_row.tolist() == [1, 3, 4]
    assert [(n.kind, n.peer, n.tag, n.bytes) for n in listed(got.ops)[:2]] == [
        (CommKind.SEND, 2, 3, 16384),
        (CommKind.RECV, 0, 0, 16384),
    ]
    assert listed(got.ops)[2].kind is CommKind.UNKNOWN


def coalesced(*comms: Comm) -> Communication:
    """One kernel, launched after these calls by nobody's op."""
    rows = [Host("record_param_comms", 10 * i, 10 * i + 5, comm=comm) for i, comm in enumerate(comms)]
    calls = [Call("cudaLaunchKernelExC", 90, 95, 1)]
    world = ProcessGroup("13", size=2, ranks=(4, 6))
    trace = build_trace(rows, calls, [Device("ncclDevKernel_SendRecv", 96, 99, 1)], rank=4, process_groups=(world,))
    return typed(trace)


def test_a_kernel_that_follows_one_coalesced_call_is_that_call() -> None:
    (node,) = listed(coalesced(Comm("send", "Float", 10, 10, pg_name="13", dst_rank=1)).ops)
    assert (node.kind, node.peer, node.bytes) == (CommKind.SEND, 6, 40)


def test_coalesced_collectives_of_one_type_add_up() -> None:
    (node,) = listed(coalesced(REDUCE, REDUCE).ops)
    assert (node.name, node.bytes) == ("ALL_REDUCE", 2048)


def test_a_kernel_that_sends_and_receives_is_unknown_and_says_what_it_does() -> None:
    p2p = [Comm(name, "Float", 10, 10, pg_name="13", rank=1) for name in ("send", "recv")]
    (node,) = listed(coalesced(*p2p).ops)
    assert (node.kind, node.name) == (CommKind.UNKNOWN, "coalesced SEND, RECV")


def test_an_unnamed_call_belongs_to_the_only_group() -> None:
    got = launched(Comm("allreduce", "Float", 1, 1), process_groups=(PAIR,))
    assert got.ops.groups[0][1] == "13"


WORLD, TP, DP = (
    ProcessGroup("0", "default_pg", size=4),
    ProcessGroup("3", "mesh_tp", size=2, ranks=(0, 1)),
    ProcessGroup("1", "mesh_dp", size=2, ranks=(0, 2)),
)


def reduced(*groups: ProcessGroup, names: tuple[str | None, ...], named: dict[int, str] | None = None) -> Communication:
    """All-reduces on gloo: each asked for in an op of ``functional``, whose ET node may name the group, run in turn by
    threads 8 and 9 of gloo's."""
    rows, nodes = [], []
    for k, name in enumerate(names):
        at, first = 1_000 * k, 3 * k + 1
        rows.append(Host("_c10d_functional::all_reduce", at, at + 50, rf_id=first))
        rows.append(Host("c10d::allreduce_", at + 10, at + 40, rf_id=first + 1))
        rows.append(
            Host("gloo:all_reduce", at + 60, at + 500, tid=8 + k % 2, annotation=True, rf_id=first + 2)._replace(
                comm=Comm("gloo:all_reduce", "Float", 8, 8)
            )
        )
        told = None if name is None else Comm("names", pg_name=name)
        nodes.append(Node("_c10d_functional::all_reduce", first, comm=told))
        nodes.append(Node("c10d::allreduce_", first + 1, parent=1000 + first))
    trace, et = build_trace(rows, rank=0, world_size=4), build_et(nodes, process_groups=groups)
    return communication(link(trace, et, match_hosts(trace, et)), (), named or {})


def groups_of(found: Communication) -> list[str | None]:
    """The name of the group of each op, None where it is not known."""
    return [None if node.group == NOWHERE else found.ops.groups[node.group][1] for node in listed(found.ops)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("3", "3"), ["3", "3"]),
        (("3", None), ["3", None]),
        (("3", None, None, "1"), ["3", "1", "3", "1"]),  # one thread each
        (("3", None, "1", None), ["3", None, "1", None]),  # no thread of gloo's works for two groups
        ((None, None), [None, None]),
    ],
)
def test_functional_ops_name_the_groups_of_gloos_threads(
    names: tuple[str | None, ...], expected: list[str | None]
) -> None:
    found = reduced(WORLD, TP, DP, names=names)
    assert groups_of(found) == expected
    unsure = expected.count(None)
    assert found.unknown == ({"ALL_REDUCE": unsure} if unsure else {})
    assert any("several process groups" in text for text in found.warnings) == bool(unsure)


def test_a_range_names_the_group_of_a_message_in_it() -> None:
    rows = [
        Host("graphlink::group 3", 0, 12, annotation=True, rf_id=1),
        Host("c10d::send", 1, 10, rf_id=2, comm=Comm("send", "Float", 8, 8, dst_rank=1, tag=0)),
        Host("gloo:send", 5, 80, annotation=True, rf_id=3),
        Host("c10d::send", 20, 30, rf_id=4, comm=Comm("send", "Float", 8, 8, dst_rank=1, tag=0)),
        Host("gloo:send", 25, 90, annotation=True, rf_id=5),
    ]
    found = typed(build_trace(rows, rank=0, world_size=4, process_groups=(WORLD, TP, DP)))
    assert groups_of(found) == ["3", None]


def test_other_files_name_the_groups_of_gloos_threads() -> None:
    assert groups_of(reduced(WORLD, TP, DP, names=(None,) * 4, named={2: "1", 5: "3"})) == ["1", "3", "1", "3"]


def test_what_names_no_group_is_of_the_only_one_that_the_rank_is_in() -> None:
    """The group of ranks 4 and 6 is none of rank 0's."""
    assert groups_of(reduced(WORLD, PAIR, names=(None,))) == ["0"]


def beside(
    name: str, op: str = "aten::x", *, annotation: bool = False, kind: DeviceKind = DeviceKind.KERNEL
) -> Communication:
    """One kernel (or copy) of 10 us, launched in one op or range without parameters."""
    trace = build_trace(
        [Host(op, 0, 9, annotation=annotation)],
        [Call("cudaLaunchKernel", 2, 3, 1)],
        [Device(name, 10, 20, 1, kind=kind)],
    )
    return typed(trace)


def test_kernels_of_libraries_that_communicate_are_communication_under_their_own_name() -> None:
    got = beside("void dpsk::ep::internode::combine<false, 8>(int4*)")
    assert [(n.kind, n.name) for n in listed(got.ops)] == [(CommKind.UNKNOWN, "dpsk::ep::internode::combine")]
    assert got.warnings == (
        "communication without parameters or group, written as COMP_NODE, and its time counts as communication: 1 x "
        "dpsk::ep::internode::combine",
    )


@pytest.mark.parametrize(
    ("name", "op", "annotation", "is_comm", "doubtful"),
    [
        ("_foo_kernel", "vllm::all_reduce", False, True, False),
        ("_foo_kernel", "symm_mem::two_shot_all_reduce_", False, True, False),
        ("_foo_kernel", "nccl:all_reduce", True, True, False),
        ("_foo_kernel", "symm_mem::fused_all_gather_matmul", False, False, True),
        ("_foo_kernel", "FSDP::all_gather", True, False, True),  # a range of a program
        ("_foo_kernel", "dispatch(F)", True, False, False),
        ("void at::native::vectorized_elementwise_kernel<4>()", "vllm::all_reduce", False, False, False),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>()", "nccl:all_gather", True, False, False),
        ("triton_poi_fused_all_reduce_0", "_c10d_functional::all_reduce", False, False, False),
        ("moe_dispatch_kernel", "aten::x", False, False, True),
        ("moe_dispatch_kernel", "trtllm::alltoall", False, True, False),
        ("void vllm::cross_device_reduce_1stage<float, 2>()", "aten::x", False, True, False),
    ],
)
def test_what_a_kernel_is_counts_more_than_what_is_around_it(
    name: str, op: str, annotation: bool, is_comm: bool, doubtful: bool
) -> None:
    got = beside(name, op, annotation=annotation)
    assert (len(got.device_row) == 1, bool(got.doubtful)) == (is_comm, doubtful)


@pytest.mark.parametrize("kind", [DeviceKind.MEMCPY, DeviceKind.MEMSET])
def test_a_copy_in_an_op_that_communicates_is_a_copy(kind: DeviceKind) -> None:
    got = beside("Memcpy PtoP (Device -> Device)", "c10d::allgather_", kind=kind)
    assert (len(got.device_row), got.doubtful) == (0, {})


def test_kernels_that_may_be_either_stay_computation_and_are_named_with_their_time() -> None:
    kernels = [
        Device("moe_dispatch_kernel", 10, 20, 1),
        Device("p2p_copy", 20, 50, 2),
        Device("void moe_dispatch_kernel<2>(int)", 60, 65, 3),
    ]
    got = typed(build_trace([], [], kernels))
    assert got.doubtful == {"p2p_copy": (1, 30_000), "moe_dispatch_kernel": (2, 15_000)}
    assert got.warnings == (
        "may be communication, kept as computation: 1 x p2p_copy, 0.030 ms, 2 x moe_dispatch_kernel, 0.015 ms",
    )


def test_computation_by_its_name_in_a_recorded_call_is_computation() -> None:
    got = launched(
        REDUCE,
        [Device("void at::native::vectorized_elementwise_kernel<4>()", 5, 9, 1), Device("ncclDevKernel_X", 10, 20, 1)],
    )
    assert (got.device_row.tolist(), listed(got.ops)[0].name) == ([1], "ALL_REDUCE")


def test_a_kernel_of_another_library_stands_for_no_recorded_call_of_a_process_group() -> None:
    rows = [Host("record_param_comms", 0, 5, comm=REDUCE)]
    calls = [Call("cudaLaunchKernel", 10, 11, 1), Call("cudaLaunchKernelExC", 20, 21, 2)]
    kernels = [Device("void deep_ep::intranode::dispatch<8>()", 30, 40, 1), Device("ncclDevKernel_X", 40, 50, 2)]
    got = typed(build_trace(rows, calls, kernels, rank=4, process_groups=(PAIR,)))
    assert [n.name for n in listed(got.ops)] == ["deep_ep::intranode::dispatch", "ALL_REDUCE"]


@pytest.mark.parametrize(("names", "found"), [(["ncclDevKernel_X"] * 3, 3), (["copy_in", "ncclDevKernel_X"], 1)])
@pytest.mark.parametrize("seq", [None, 5])
def test_each_kernel_of_a_replay_that_says_what_it_is_is_a_collective(
    names: list[str], found: int, seq: int | None
) -> None:
    """Cuspy writes a collective's descriptor into the args of the kernel of a graph; two replays in one op."""
    comms = [msgspec.structs.replace(REDUCE, seq=seq and (seq + k if found > 1 else seq)) for k in range(len(names))]
    kernels = [
        Device(
            name, 20 + 100 * replay + 20 * k, 30 + 100 * replay + 20 * k, 1 + replay, comm=comm, graph=2, graph_node=k
        )
        for replay in range(2)
        for k, (name, comm) in enumerate(zip(names, comms, strict=True))
    ]
    calls = [Call("cudaGraphLaunch", 2 + 2 * replay, 3 + 2 * replay, 1 + replay) for replay in range(2)]
    got = typed(build_trace([Host("decode", 0, 9)], calls, kernels, rank=4))
    assert [node.kind for node in listed(got.ops)].count(CommKind.COLLECTIVE) == 2 * found
