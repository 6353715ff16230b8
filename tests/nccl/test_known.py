"""What side files add to a trace: details of ops, clocks, and members of groups that it does not list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import CommKind, Linked
from graphlink.nccl.join import known_groups
from graphlink.nccl.outputs import details
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.read.records import Dump
from graphlink.read.kineto import read_kineto
from tests.nccl.joined import join_run
from tests.simulator import ClusterRun, ClusterTraining, cluster_run
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_records import NcclProfile

TRAINING = ClusterTraining(data=2, tensor=2, pipeline=2, steps=6, host_jitter_ns=20_000, seed=6)


@pytest.fixture(scope="module")
def run() -> ClusterRun:
    return cluster_run(TRAINING)


def test_details_are_those_of_the_calls(run: ClusterRun, tmp_path: Path) -> None:
    (one,) = join_run(run, tmp_path, NcclProfile(proxy_steps=True), ranks=(2,))
    told = details(one.joined)
    assert told["nccl_comm"].node.tolist() == one.joined.op.tolist()
    of_op = {name: dict(zip(column.node.tolist(), column.value.tolist(), strict=True)) for name, column in told.items()}
    texts = told["nccl_comm"].texts
    for op, dump, call in zip(one.joined.op.tolist(), one.joined.dump.tolist(), one.joined.call.tolist(), strict=True):
        true = one.files[dump].calls[call]
        assert texts[of_op["nccl_comm"][op]] == str(true.communicator)
        assert of_op["nccl_seq"].get(op, -1) == true.seq
        assert of_op["nccl_wire_bytes"].get(op, 0) == true.wire_bytes
        assert of_op["nccl_channels"][op] == 2
        message = true.function in ("Send", "Recv")
        said = tuple(texts[of_op[name].get(op, 0)] for name in ("nccl_algorithm", "nccl_protocol"))
        assert said == (("", "") if message else ("RING", "LL"))


def test_a_file_that_does_not_tell_leaves_details_open(run: ClusterRun, tmp_path: Path) -> None:
    (one,) = join_run(run, tmp_path, NcclProfile(kind="flight-json"), ranks=(2,))
    told = details(one.joined)
    assert not any(len(told[name].node) for name in ("nccl_wire_bytes", "nccl_channels", "nccl_algorithm"))
    assert told["nccl_seq"].value.tolist() == one.joined.ops.seq.tolist()


@pytest.mark.parametrize("offset_ns", [0, 250_000_000])
def test_clocks_are_those_of_the_simulation(offset_ns: int, tmp_path: Path) -> None:
    run = cluster_run(
        ClusterTraining(data=2, tensor=2, steps=6, host_jitter_ns=20_000, host_clock_offset_ns=offset_ns, seed=7)
    )
    for one in join_run(run, tmp_path, NcclProfile(kernel_channels=True)):
        for clock, file in zip(one.joined.clocks, one.files, strict=True):
            assert clock.offset_ns is not None and clock.gpu_offset_ns is not None
            assert abs(clock.offset_ns - file.calls[0].offset_ns) < 5_000
            assert clock.residual_ns < 3_000
            assert clock.inside == clock.checked == 2 * len(file.calls)
        assert len({clock.offset_ns for clock in one.joined.clocks}) == 1  # one process


def test_a_flight_recorders_clock_is_the_traces(run: ClusterRun, tmp_path: Path) -> None:
    (one,) = join_run(run, tmp_path, NcclProfile(kind="flight-pickle"), ranks=(0,))
    (clock,) = one.joined.clocks
    assert clock.offset_ns is not None and abs(clock.offset_ns) < 20_000
    assert (clock.gpu_offset_ns, clock.checked) == (None, 0)


def _without_members(path: Path) -> Linked:
    """A trace that names its groups and does not list their ranks."""
    document = json.loads(path.read_text())
    document["distributedInfo"].pop("pg_config")
    for event in document["traceEvents"]:
        for key in ("Process Group Ranks", "Global rank start", "Global rank stride"):
            event["args"].pop(key, None)
    path.write_text(json.dumps(document))
    trace = read_kineto(path)
    return link(trace, None, match_hosts(trace, None))


def _read(
    run: ClusterRun, folder: Path, kind: str, rank: int
) -> tuple[Linked, tuple[Dump, ...], dict[str, tuple[int, ...]]]:
    run.write(folder / "kineto")
    files = write_nccl(run, folder / "nccl", NcclProfile(kind=kind))
    members: dict[str, set[int]] = {}
    for file in files:
        for call in file.calls:
            members.setdefault(str(call.communicator), set()).add(call.rank)
    ranks = {key: tuple(sorted(of_key)) for key, of_key in members.items()}
    dumps = tuple(read_dump(file.path) for file in files if rank in file.ranks)
    return _without_members(folder / "kineto" / f"kineto_{rank}.json"), dumps, ranks


@pytest.mark.parametrize("kind", ["plugin", "inspector-verbose", "flight-json"])
@pytest.mark.parametrize("rank", [0, 5])
def test_members_that_the_trace_lacks_are_told_by_side_files(
    run: ClusterRun, kind: str, rank: int, tmp_path: Path
) -> None:
    linked, dumps, members = _read(run, tmp_path, kind, rank)
    before = communication(linked)
    known = known_groups(linked, dumps, members)
    listed = {group.name: group.ranks for group in known}
    everyone = {"0": tuple(range(8))}  # as many as the world has: that the trace tells
    assert everyone | listed == {group.name: group.members for group in run.groups if rank in group.members}
    after = communication(linked, known)
    assert (before.ops.kind == CommKind.UNKNOWN).any()
    assert not (after.ops.kind == CommKind.UNKNOWN).any()
    columns = run.ranks[rank]
    assert [after.ops.groups[g][0] for g in after.ops.group.tolist()] == [
        columns.groups[g][0] for g in columns.group.tolist()
    ]


def test_what_the_trace_says_of_members_holds(run: ClusterRun, tmp_path: Path) -> None:
    run.write(tmp_path)
    trace = read_kineto(tmp_path / "kineto_0.json")
    linked = link(trace, None, match_hosts(trace, None))
    other = tuple(
        group.__class__(name=group.name, size=8, ranks=(7, 6, 5, 4, 3, 2, 1, 0)) for group in trace.process_groups
    )
    assert communication(linked, other).ops.groups == communication(linked).ops.groups
