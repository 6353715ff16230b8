"""Two ranks that communicate in two groups of the same members, over gloo: which, the recording says."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlink.capture.window import GROUP, WAIT
from graphlink.linking.communication import GROUP_RANGE, communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE
from graphlink.nccl.named import group_names
from graphlink.nccl.read.read import read_dump
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from tests.capture.forked import Forked

pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")

TWO = """
import os, sys, torch, torch.distributed as dist, graphlink
store, folder = sys.argv[1:]
hasattr(torch, "_inductor")  # its profiler imports it: once for both ranks
other = os.fork()
rank = 0 if other else 1
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
reducing, sending = dist.new_group([0, 1]), dist.new_group([0, 1])
def train():
    dist.all_reduce(torch.ones(64), group=reducing)
    (dist.send if rank == 0 else dist.recv)(torch.ones(8), 1 - rank, group=sending)
with graphlink.capture(folder, steps=1) as capture:
    for _ in range(5):  # two of them after the recording
        train()
        capture.step()
dist.barrier()
dist.destroy_process_group()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def test_what_gloo_did_is_of_the_group_that_was_asked(forked: Forked, tmp_path: Path) -> None:
    ran = forked.run(TWO, tmp_path / "store", tmp_path)
    assert ran.returncode == 0, ran.stderr
    for rank in (0, 1):
        trace, et = read_kineto(tmp_path / f"kineto_{rank}.json"), read_host(tmp_path / f"et_{rank}.json")
        linked = link(trace, et, match_hosts(trace, et))
        recorder = tmp_path / f"flight_recorder_{rank}.json"
        named = group_names(linked, (read_dump(recorder),)) if recorder.exists() else {}
        ops = communication(linked, named=named).ops
        names = [None if group == NOWHERE else ops.groups[group][1] for group in ops.group.tolist()]
        assert names == (["1", "2"] if recorder.exists() else [None, "2"])


def test_recorder_and_reader_know_a_group_by_one_name() -> None:
    assert GROUP == GROUP_RANGE


FUTURE = """
import sys, torch, torch.distributed as dist, graphlink
from torch.distributed import rpc
if sys.argv[2] == "rpc":
    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[1] + "/rpc", _transports=["uv"])
    rpc.init_rpc("one", rank=0, world_size=1, rpc_backend_options=options)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=0, world_size=1)
before = vars(torch._C.Future)["wait"]
with graphlink.capture(sys.argv[1], steps=1) as capture:
    for _ in range(4):
        dist.all_reduce(torch.ones(64), async_op=True).get_future().wait()
        capture.step()
assert vars(torch._C.Future)["wait"] is before
if sys.argv[2] == "rpc":
    rpc.shutdown()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("beside", "waits"), [("nothing", 1), ("rpc", 0)])
def test_who_waits_for_the_future_of_a_collective_is_recorded_where_rpc_has_no_futures(
    forked: Forked, tmp_path: Path, beside: str, waits: int
) -> None:
    done = forked.run(FUTURE, tmp_path, beside)
    assert done.returncode == 0, done.stderr
    trace = read_kineto(tmp_path / "kineto_0.json")
    assert [trace.strings[name] for name in trace.host.name.tolist()].count(WAIT) == waits
