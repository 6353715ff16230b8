"""What a rank's graph says of its communication, and how the ranks of public traces meet."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from graphlink.depend.build import BuildOptions, build
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, Comm, CommKind
from graphlink.ranks.columns import rank_comms
from graphlink.ranks.group_ids import first_id
from graphlink.ranks.match import match
from graphlink.ranks.records import RankComms
from graphlink.run import job
from tests.build import Call, Device, Host, build_trace

TRACES = Path(__file__).parents[3] / "shared/traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/traces")


@cache
def recorded(folder: str) -> tuple[RankComms, ...]:
    out = []
    for kineto in sorted((TRACES / folder).glob("kineto_*.json.gz")):
        files = job.Inputs(kineto=kineto, et=kineto.with_name(kineto.name.replace("kineto", "et")))
        one = job.prepare(files, job.Options(sync="cuda"))
        out.append(rank_comms(one.built.graph, one.linked, one.comm, one.rank, one.world_size))
    return tuple(out)


@needs_traces
@pytest.mark.parametrize(("folder", "ranks", "ops"), [("megatron-tp2-v100", 2, 13), ("dlrm8-v100", 8, 8)])
@pytest.mark.parametrize("numbered", [True, False])
def test_collectives_of_public_traces_meet(folder: str, ranks: int, ops: int, numbered: bool) -> None:
    comms = [one if numbered else without_numbers(one) for one in recorded(folder)]
    assert [len(one.node) for one in comms] == [ops] * ranks
    found = match(comms, {})
    assert (found.unmatched, found.conflicts, found.alone) == ((), (), {})
    assert (len(found.matches.kind), found.by_sequence) == (ops, ops if numbered else 0)
    assert found.matches.complete.all()
    assert [np.sort(of_op).tolist() for of_op in found.matches.of_op] == [list(range(ops))] * ranks


def without_numbers(one: RankComms) -> RankComms:
    return replace(one, seq=np.full_like(one.seq, NOWHERE))


@needs_traces
@pytest.mark.parametrize(("folder", "messages"), [("1f1b", 96), ("interleaved-zb", 224)])
def test_all_sends_of_public_traces_have_their_receive(folder: str, messages: int) -> None:
    comms = recorded(f"pipelining-cpu/{folder}")
    found = match(comms, {})
    assert (found.unmatched, found.conflicts, found.alone) == ((), (), {})
    m = found.matches
    assert len(m.kind) == messages
    assert set(m.kind.tolist()) == {CommKind.SEND}
    assert (np.diff(m.first) == 2).all()
    for low in m.first[:-1].tolist():
        (one, a), (other, b) = zip(m.rank[low : low + 2].tolist(), m.op[low : low + 2].tolist(), strict=True)
        assert comms[one].peer[a] == comms[other].rank
        assert comms[one].bytes[a] == comms[other].bytes[b]
        assert {int(comms[one].kind[a]), int(comms[other].kind[b])} == {CommKind.SEND, CommKind.RECV}


@needs_traces
def test_the_host_of_a_public_trace_is_in_its_name() -> None:
    assert {one.host for one in recorded("megatron-tp2-v100")} == {"9c44bd29b3f0"}
    assert {one.host for one in recorded("dlrm8-v100")} == {""}  # worker0_step_12: no pid of that rank


def test_a_rank_tells_its_communication_with_times_of_its_own_clock() -> None:
    reduce = Comm("allreduce", "Float", 256, 256, pg_name="13", ranks=(4, 6), group_size=2, seq=7)
    spread = Comm("all_to_allv", "Float", 256, 256, (100, 156), (128, 128), "14", ranks=(4, 6), group_size=2)
    send = Comm("send", "Float", 10, 10, pg_name="13", ranks=(4, 6), group_size=2, dst_rank=1, tag=3)
    recv = Comm("recv", "Float", 10, 10, pg_name="13", ranks=(4, 6), group_size=2, src_rank=1)
    unknown = Comm("allreduce", "Float", None, None, pg_name="13", ranks=(4, 6), group_size=2)
    comms = [reduce, spread, send, recv, unknown]
    trace = build_trace(
        [Host("record_param_comms", 1000 + 10 * k, 1009 + 10 * k, comm=comm) for k, comm in enumerate(comms)],
        [Call("cudaLaunchKernel", 1002 + 10 * k, 1004 + 10 * k, k + 1) for k in range(5)],
        [Device("ncclDevKernel", 1100 + 10 * k, 1108 + 10 * k, k + 1) for k in range(5)],
        rank=4,
        world_size=8,
    )
    linked = link(trace, None, match_hosts(trace, None))
    comm = communication(linked)
    graph = build(linked, comm, BuildOptions(sync="cuda", gap_ns=20_000)).graph
    got = rank_comms(graph, linked, comm, 4, 8)
    assert (got.rank, got.world_size, got.host, got.resolution_ns) == (4, 8, "", 1)
    assert got.groups == (((4, 6), "13"), ((4, 6), "14"))
    assert (got.began_ns, got.ended_ns) == (1_000_000, 1_148_000)
    assert graph.row[got.node].tolist() == [0, 1, 2, 3]
    assert got.kind.tolist() == [CommKind.COLLECTIVE, CommKind.COLLECTIVE, CommKind.SEND, CommKind.RECV]
    assert got.type.tolist() == [0, 6, NOWHERE, NOWHERE]
    assert got.bytes.tolist() == [1024, 1024, 40, 40]
    assert got.group.tolist() == [0, 1, 0, 0]
    assert got.peer.tolist() == [NOWHERE, NOWHERE, 6, 6]
    assert got.tag.tolist() == [0, 0, 3, 0]
    assert got.seq.tolist() == [7, NOWHERE, NOWHERE, NOWHERE]
    assert got.start_ns.tolist() == [1_100_000 + 10_000 * k for k in range(4)]
    assert got.end_ns.tolist() == [1_108_000 + 10_000 * k for k in range(4)]
    assert got.uneven.tolist() == [False, True, False, False]
    assert not got.on_host.any()
    assert first_id([got, replace(got, kind=np.full_like(got.kind, CommKind.SEND))], 8) == 8 * 2
    assert first_id([replace(got, groups=(((4,), "13"), ((4, 6), "14")))], 8) == 8, "those of a rank alone are none"


def test_collectives_of_gloo_stand_in_the_order_in_which_they_were_asked_for() -> None:
    """Two threads of gloo's take them up the other way round."""
    one, other = (Comm("allreduce", "Float", n, n, pg_name="0", ranks=(0, 1), group_size=2) for n in (256, 64))
    trace = build_trace(
        [
            Host("c10d::allreduce_", 1000, 1010, rf_id=2),
            Host("c10d::allreduce_", 1020, 1030, rf_id=4),
            Host("gloo:all_reduce", 1050, 1100, tid=8, annotation=True, rf_id=3, comm=one),
            Host("gloo:all_reduce", 1040, 1090, tid=9, annotation=True, rf_id=5, comm=other),
        ],
        rank=0,
        world_size=2,
    )
    linked = link(trace, None, match_hosts(trace, None))
    comm = communication(linked)
    got = rank_comms(build(linked, comm, BuildOptions(sync="cuda", gap_ns=20_000)).graph, linked, comm, 0, 2)
    assert got.bytes.tolist() == [1024, 256]
    assert got.start_ns.tolist() == [1_039_999, 1_040_000]
    assert got.end_ns.tolist() == [1_100_000, 1_090_000]


def test_a_send_of_gloos_begins_with_its_op() -> None:
    """Its row begins when its thread goes on, 30 us later, where the receive may have ended."""
    sent = Comm("send", "Float", 16, 16, pg_name="0", ranks=(0, 1), group_size=2, dst_rank=1)
    trace = build_trace(
        [
            Host("c10d::send", 1000, 1040, rf_id=2),
            Host("gloo:send", 1030, 1100, annotation=True, rf_id=3, comm=sent),
            Host("gloo:send", 1150, 1200, annotation=True, rf_id=4, comm=sent),
        ],
        rank=0,
        world_size=2,
    )
    linked = link(trace, None, match_hosts(trace, None))
    comm = communication(linked)
    built = build(linked, comm, BuildOptions(sync="cuda", gap_ns=20_000))
    got = rank_comms(built.graph, linked, comm, 0, 2)
    assert got.start_ns.tolist() == [1_000_000, 1_150_000], "the second has none"
    assert got.end_ns.tolist() == [1_100_000, 1_200_000]
