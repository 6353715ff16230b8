"""Messages that share a kernel (``batch_isend_irecv``) meet it as one call. Times are us."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Comm
from graphlink.nccl.join import join
from graphlink.nccl.outputs import details
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.summary import SideFiles
from tests.build import Call, Device, Host, build_trace
from tests.nccl.read.test_plugin_dump import api, event, span

RANK, RANKS, ELEMENTS = 1, (0, 1, 2, 3), 1_000
OFFSET = 7_000_000  # the plugin's clock shows so much more than the trace's
# what a stage between two others sends and receives: one message alone, or several in one kernel
BATCHES = ((("recv", 0),), (("send", 2), ("recv", 2)), (("send", 0), ("recv", 0), ("send", 2)), (("send", 0),))


def joined(folder: Path, *, peers: bool = True) -> SideFiles:
    rng, at = random.Random(1), 1_000.0
    rows, calls, kernels, lines = [], [], [], []
    for turn in range(40):
        at += rng.uniform(300, 3_000)
        batch = BATCHES[turn % len(BATCHES)]
        for k, (way, peer) in enumerate(batch):
            end = {"dst_rank" if way == "send" else "src_rank": peer} if peers else {}
            comm = Comm(
                way, "BFloat16", ELEMENTS, ELEMENTS, pg_name="5", pg_desc="pp", ranks=RANKS, group_size=4, **end
            )
            rows.append(Host("record_param_comms", at + 10 * k, at + 10 * k + 5, comm=comm))
        launch = at + 60
        calls.append(Call("cudaLaunchKernelExC", launch, launch + 5, turn + 1))
        kernels.append(Device("ncclDevKernel_SendRecv", launch + 8, launch + 208, turn + 1))
        own = launch + OFFSET - rng.uniform(0.5, 2)
        lines.append(event("Group API", "GROUP_API", "b", own - 1, ident=turn))
        for k, (way, peer) in enumerate(batch):
            args = f'"CommHash": 77, "Rank": {RANK}, "Peer": {peer}, "Count": {ELEMENTS}, "Datatype": "ncclBfloat16", "nChannels": 2'
            state = "SendWait" if way == "send" else "RecvWait"
            step = span(state, "NET", own + 30 + k, own + 80 + k, '"Step": 0')
            name = "ProgressSend" if way == "send" else "ProgressRecv"
            op = span(name, "PROXY", own + 10, own + 90, f'"Channel": {k}, "Peer": {peer}, "transSize": 2000', step)
            lines += api(span(way.title(), "P2P", own + 0.1 * k, own + 0.1 * k + 0.7, args, op, ident=k), k)
        lines.append(event("Group API", "GROUP_API", "e", own + 6, ident=turn))
    file = folder / "nccl_77_1.json"
    file.write_text("\n".join(["[", *lines]) + "\n")
    linked = link(trace := build_trace(rows, calls, kernels, rank=RANK, world_size=4), None, match_hosts(trace, None))
    return join(linked, communication(linked), (read_dump(file),), RANK)


def test_messages_of_one_kernel_are_joined_with_it(tmp_path: Path) -> None:
    found = joined(tmp_path)
    assert (found.op.tolist(), found.call.tolist()) == ([*range(40)], [*range(40)])
    (group,) = found.groups
    assert (group.group, group.ranks, group.calls, group.ops) == ("5", RANKS, 40, 40)


def test_the_proxy_steps_of_all_messages_are_of_the_kernel(tmp_path: Path) -> None:
    found = joined(tmp_path)
    split = found.split
    assert split.op.tolist() == [*range(40)]
    one, two = split.wire_ns[3::4].tolist(), split.wire_ns[1::4].tolist()  # one sends, one sends and receives
    assert one == pytest.approx([50_000] * 10, abs=2)
    assert two == pytest.approx([25_500] * 10, abs=2), "the time in which both are on their way is divided"
    assert details(found)["nccl_wire_bytes"].value.reshape(10, 3).tolist() == [[2_000, 4_000, 2_000]] * 10


def test_messages_whose_peers_the_trace_lacks_are_left(tmp_path: Path) -> None:
    found = joined(tmp_path, peers=False)
    batched = [k for k in range(40) if len(BATCHES[k % 4]) > 1]
    assert not {*found.op.tolist()} & {*batched}
