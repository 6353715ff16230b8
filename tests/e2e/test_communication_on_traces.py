"""Communication of real recordings: what ../shared/traces/README.md says of them, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.graph.read_et import read_et
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import DeviceKind, Trace
from graphlink.read.commnames import kernel_path
from graphlink.read.kineto import read_kineto
from graphlink.read.nsys.report import read_report
from graphlink.replay.workload import Work, works_of
from graphlink.run.job import Inputs, Options, run_rank
from tests.e2e.conftest import ROOT

TRACES = ROOT.parent / "shared" / "traces"
DUALPIPE = "deepseek/dualpipe_train.json.gz"

# recording -> of each place the communication kernels and their time, in us
TIMES: dict[str, list[tuple[int, int]]] = {
    "cuda-sync/alexnet.json.gz": [(0, 0)],
    "ddp/many_allreduces.json.gz": [(2020, 357_343)],
    DUALPIPE: [(36, 113_440)],
    "dlrm8-v100/kineto_1.json.gz": [(8, 11_336)],
    "inference/h100_vit.json.gz": [(0, 0)],
    "inference/mi300_vit.json.gz": [(0, 0)],
    "inference/sglang_decode_graph.json.gz": [(0, 0)],
    "late-wakeup/v100_resnet50_slow_event_sync.json.gz": [(0, 0)],
    "legacy/sendrecv_graph_launch_5streams.json.gz": [(80, 190_345)],
    "megatron-tp2-v100/kineto_0.json.gz": [(13, 269)],
    "megatron-tp2-v100/kineto_1.json.gz": [(13, 48_428)],
    "nsys/h100_2gpu_1s.sqlite": [(0, 0), (0, 0)],
    "nsys/h100_2gpu_train_skewed.sqlite": [(33, 17_173), (33, 8_229)],
    "resnet-ddp2-a100/kineto_0.json.gz": [(21, 46_876)],
    "rocm/mi300_resnet_rank0of8.json.gz": [(17, 71_517)],
}


def recording(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path


def traces_of(path: Path) -> tuple[Trace, ...]:
    return read_report(path)[1] if path.suffix == ".sqlite" else (read_kineto(path),)


@pytest.mark.parametrize("name", TIMES)
def test_the_communication_of_a_recording_is_all_of_it_and_nothing_else(name: str) -> None:
    found = []
    for trace in traces_of(recording(name)):
        comm = communication(link(trace, None, match_hosts(trace, None)))
        device, rows = trace.device, comm.device_row
        assert not comm.doubtful
        assert (device.kind[rows] == DeviceKind.KERNEL).all()
        paths = {kernel_path(trace.strings[code]) for code in np.unique(device.name[rows]).tolist()}
        assert all(path.startswith(("nccl", "dpsk::ep::")) for path in paths), paths
        found.append((len(rows), round(int((device.end_ns[rows] - device.start_ns[rows]).sum()) / 1000)))
    assert found == TIMES[name]


def test_what_is_communication_in_the_summary_is_communication_in_the_graph_file(tmp_path: Path) -> None:
    result = run_rank(Inputs(kineto=recording(DUALPIPE)), Options(timeline="none"), tmp_path)
    file = read_et(tmp_path / "trace.0.et")
    ours = works_of(file) == Work.COMM
    assert int(ours.sum()) == 36
    assert {file.strings[code].split("(")[0].split("<")[0] for code in file.name[ours].tolist()} == {
        "void dpsk::ep::cuda::get_dispatch_layout",
        *(
            f"void dpsk::ep::internode::{kernel}"
            for kernel in ("cached_notify", "combine", "dispatch", "notify_dispatch")
        ),
    }
    assert result.ranks[0].critical_path.share_ns.communication > 0
