"""NCCL's ranges: payloads, the kernels that they launch, communicators and the ranks that they tell."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.model import Comm, Trace
from graphlink.read.nsys.nccl import Member, comm_of, kernel_comms, members, operation
from graphlink.read.nsys.places import Contents, Place, number
from graphlink.read.nsys.report import read_nsys
from tests.simulator import CommArgs, Execution, Group, Program, ThreadBuilder, Training, run, training_program
from tests.simulator.nsys import NsysVariation, write_nsys

ID = (1 << 63) + 17


def pipeline(rank: int) -> Execution:
    """Rank 0 sends to rank 1 of a group of two, in a run of three."""
    import random

    to = ThreadBuilder("python", random.Random(rank))
    peers = {"dst_rank": 2} if rank == 1 else {"src_rank": 1}
    comm = CommArgs("send" if rank == 1 else "recv", "Float", 4, 1000, 1000, "0", 1, **peers)
    with to.op("aten::mm"):
        to.launch(7, 50_000)
        to.launch(24, 20_000, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", comm=comm)
    return run(Program((to.thread(),), (Group("0", "pipeline", (1, 2)),), rank, 3))


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Trace, ...]:
    executions = [run(training_program(1, Training(steps=2, layers=2, ranks=2, rank=rank))) for rank in (1, 0)]
    write_nsys(executions, tmp_path / "run.sqlite", vary=NsysVariation(nccl=True, first_device=1))
    return read_nsys(tmp_path / "run.sqlite")


def test_ranks_and_groups_are_those_of_the_communicator(traces: tuple[Trace, ...]) -> None:
    """Not those of the order of processes, which is the other way round here."""
    assert [(trace.rank, trace.world_size, trace.pid) for trace in traces] == [(0, 2, 6001), (1, 2, 5001)]
    for trace in traces:
        (group,) = trace.process_groups
        assert (group.name, group.size, group.ranks) == (str(ID), 2, (0, 1))


def test_kernels_and_ranges_have_the_call(traces: tuple[Trace, ...]) -> None:
    for trace in traces:
        names = [trace.strings[trace.device.name[row]] for row in trace.device.comm.row]
        assert len(names) == 4
        assert all(name.startswith("ncclDevKernel_AllReduce") for name in names)
        assert {(c.name, c.in_nelems, c.elem_bytes, c.pg_name, c.group_size) for c in trace.device.comm.comms} == {
            ("allreduce", 4 * 4096 * layer, 1, str(ID), 2) for layer in (1, 2)
        }
        assert [trace.strings[trace.host.name[row]] for row in trace.host.comm.row] == ["ncclAllReduce"] * 4


def test_peers_are_members_of_the_communicator(tmp_path: Path) -> None:
    write_nsys([pipeline(1), pipeline(2)], tmp_path / "run.sqlite", vary=NsysVariation(nccl=True))
    sends, receives = read_nsys(tmp_path / "run.sqlite")
    (sent,), (received,) = sends.device.comm.comms, receives.device.comm.comms
    assert (sent.name, sent.dst_rank, sent.in_nelems) == ("send", 1, 4000)
    assert (received.name, received.src_rank, received.out_nelems) == ("recv", 0, 4000)


def test_without_payloads_the_names_tell_the_call(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys([run(training_program(1, Training(steps=1)))], path, vary=NsysVariation(nccl=True))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
    connection.close()
    (trace,) = read_nsys(path)
    assert set(trace.device.comm.comms) == {Comm("allreduce")}
    assert (trace.rank, trace.world_size, trace.process_groups) == (0, None, ())


def test_payloads_that_were_kept_as_hexadecimal_text(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys([run(training_program(1, Training(steps=1)))], path, vary=NsysVariation(nccl=True))
    (before,) = read_nsys(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE NVTX_EVENTS SET binaryData = lower(hex(binaryData)) WHERE binaryData IS NOT NULL")
    connection.close()
    (trace,) = read_nsys(path)
    assert trace.device.comm.comms == before.device.comm.comms


def test_a_range_of_the_same_name_in_another_domain_is_the_users(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys([run(training_program(1, Training(steps=1)))], path, vary=NsysVariation(nccl=True))
    for statement in (
        "UPDATE NVTX_EVENTS SET text = 'mine' WHERE eventType = 75",
        "UPDATE NVTX_EVENTS SET domainId = 0",
    ):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)
        connection.close()
        (trace,) = read_nsys(path)
        assert trace.device.comm.comms == trace.host.comm.comms == ()


@pytest.mark.parametrize(
    ("name", "sent", "received"),
    [
        ("allreduce", 100, 100), ("allgather", 100, None), ("gather", 100, None), ("reducescatter", None, 100), ("scatter", None, 100),
        ("alltoall", 400, 400), ("broadcast", 100, 100), ("send", 100, 100), ("recv", None, 100),
    ],
)  # fmt: skip
def test_sizes_are_of_the_side_that_nccl_counts(name: str, sent: int | None, received: int | None) -> None:
    comm = comm_of(name, {"communicator": 5, "size_bytes": 100}, {5: 4})
    assert (comm.in_nelems, comm.out_nelems, comm.elem_bytes, comm.group_size) == (sent, received, 1, 4)


def test_operations() -> None:
    names = ("ncclAllReduce", "ncclBcast", "ncclAlltoAllConfig", "ncclGroupEnd", "ncclCommInitRank", "myncclSend")
    assert [operation(name) for name in names] == ["allreduce", "broadcast", "alltoall", None, None, None]


# kernels of calls: ranges are (name, comm) each 10 long, launches at odd places

SEND, RECV = Comm("send", dst_rank=1, in_nelems=5, pg_name="1"), Comm("recv", src_rank=1, out_nelems=5, pg_name="1")
REDUCE = Comm("allreduce", in_nelems=8, out_nelems=8, elem_bytes=1, pg_name="1")
START, END = ("ncclGroupStart", None), ("ncclGroupEnd", None)


def kernels(*ranges: tuple[str, Comm | None] | int) -> list[Comm | None]:
    """Ranges after each other; a number: so many kernels are launched in the range before it. The calls of the
    kernels.
    """
    names, comms, launches = [], {}, []
    for one in ranges:
        if isinstance(one, int):
            launches += [(1, 10 * len(names) - 9 + k, len(launches) + k) for k in range(one)]
        else:
            if one[1] is not None:
                comms[len(names)] = one[1]
            names.append(one[0])
    start = 10 * np.arange(len(names), dtype=np.int64)
    found = kernel_comms(np.ones(len(names), np.int64), start, start + 9, names, comms, launches)
    return [found.get(kernel) for _, _, kernel in launches]


def alone(comm: Comm) -> tuple[str, Comm]:
    return "ncclCall", comm


def test_a_kernel_is_of_the_range_around_its_launch() -> None:
    assert kernels(alone(REDUCE), 1, alone(SEND), 1) == [REDUCE, SEND]
    assert kernels(alone(REDUCE), 2) == [REDUCE, None]


def test_a_group_is_launched_where_it_ends() -> None:
    assert kernels(START, alone(SEND), END, 1) == [SEND]
    assert kernels(START, START, alone(SEND), END, 0, END, 1) == [SEND]
    assert kernels(START, alone(REDUCE), END, 1, START, alone(SEND), END, 1) == [REDUCE, SEND]
    assert kernels(alone(SEND), END, 1) == [SEND]  # the beginning was cut away


def test_what_was_captured_is_no_part_of_a_later_group() -> None:
    assert kernels(alone(REDUCE), 0, START, alone(SEND), END, 1) == [SEND]


def test_calls_of_a_group_become_one_where_one_says_it() -> None:
    (both,) = kernels(START, alone(REDUCE), alone(REDUCE), END, 1)
    assert both is not None
    assert (both.name, both.in_nelems, both.out_nelems) == ("allreduce", 16, 16)
    (pair,) = kernels(START, alone(SEND), alone(RECV), END, 1)
    assert pair == Comm("coalesced SEND, RECV", pg_name="1")
    (two,) = kernels(START, alone(SEND), alone(SEND), END, 1)
    assert two == Comm("coalesced SEND, SEND", pg_name="1")


def test_sends_and_receives_between_all_are_an_all_to_all() -> None:
    def call(name: str, peer: int) -> tuple[str, Comm]:
        return alone(comm_of(name, {"communicator": 1, "size_bytes": 10 + peer, "peer": peer}, {1: 3}))

    calls = [call(name, peer) for peer in range(3) for name in ("send", "recv")]
    (comm,) = kernels(START, *calls, END, 1)
    assert comm is not None
    assert (comm.name, comm.in_nelems, comm.out_nelems, comm.group_size, comm.dst_rank) == ("alltoall", 33, 33, 3, None)
    (less,) = kernels(START, *calls[:-1], END, 1)
    assert less is not None
    assert less.name.startswith("coalesced")


# numbering

P, Q, R, S = (Place(process, device) for process, device in ((1, 0), (2, 0), (2, 1), (9, 3)))


def member(communicator: int, size: int, rank: int, place: Place) -> Member:
    return Member(communicator, size, rank, place.process, place.device)


def test_without_communicators_ranks_follow_the_order() -> None:
    files = [Contents((P, Q, R), ()), Contents((S,), ())]
    assert [n.ranks for n in number(files)] == [(0, 1, 2), (3,)]
    assert all(n.world_size is None for n in number(files))


def test_names_count_for_files_of_one_rank_only() -> None:
    one = [Contents((P,), ()), Contents((Q,), ())]
    assert [n.ranks for n in number(one, (4, 2))] == [(4,), (2,)]
    assert [n.ranks for n in number(one, (4, 4))] == [(0,), (1,)]
    assert [n.ranks for n in number(one, (4, None))] == [(0,), (1,)]
    assert [n.ranks for n in number([Contents((P, Q), ())], (4,))] == [(0, 1)]


def test_the_largest_communicator_of_all_tells() -> None:
    files = [
        Contents(
            (P, Q), (member(7, 2, 0, Q), member(7, 2, 1, P), member(8, 8, 5, P), member(8, 8, 4, Q), member(6, 1, 0, P))
        ),
        Contents((S,), (member(8, 8, 0, S),)),
    ]
    found = number(files, (None, 1))
    assert [n.ranks for n in found] == [(5, 4), (0,)]
    assert {n.world_size for n in found} == {8}
    assert {g.name: (g.size, g.ranks) for g in found[0].groups} == {
        "6": (1, (5,)),
        "7": (2, (4, 5)),
        "8": (8, tuple(range(8))),
    }


def test_a_communicator_that_contradicts_itself_tells_nothing() -> None:
    for wrong in (member(8, 2, 0, Q), member(8, 3, 1, Q)):
        (found,) = number([Contents((P, Q), (member(8, 2, 0, P), wrong))])
        assert (found.ranks, found.world_size, found.groups[0].ranks) == ((0, 1), None, None)


def test_a_member_on_a_device_without_work_is_the_only_one_of_its_process() -> None:
    (found,) = number([Contents((P, S), (member(8, 2, 1, Place(1, 5)), member(8, 2, 0, S)))])
    assert found.ranks == (1, 0)


def test_members_are_of_the_processes_that_recorded_them() -> None:
    one = {"communicator": 3, "ranks": 2, "rank": 1, "device": 0}
    without = {"communicator": 3, "rank": 1, "device": 0}
    assert members([(5, one), (5, one), (6, one | {"rank": 2}), (6, without)]) == (Member(3, 2, 1, 5, 0),)


@given(
    order=st.permutations([P, Q, R, S]),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    spare=st.integers(0, 3),
)
def test_ranks_are_different_and_groups_are_ranks(order: list[Place], sizes: list[int], spare: int) -> None:
    world = [member(99, 4 + spare, rank, place) for rank, place in enumerate(order)]
    found = [member(k, n, rank, place) for k, n in enumerate(sizes) for rank, place in enumerate(order[-n:])]
    (numbering,) = number([Contents((P, Q, R, S), tuple(itertools.chain(world, found)))])
    rank_of = dict(zip((P, Q, R, S), numbering.ranks, strict=True))
    assert [rank_of[place] for place in order] == [0, 1, 2, 3]
    for k, n in enumerate(sizes):
        group = next(g for g in numbering.groups if g.name == str(k))
        assert group.ranks == tuple(range(4 - n, 4))
