"""The doctor on real recordings: what ../shared/traces/README.md says of them."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from graphlink.cli import main
from tests.doctor.told import untold
from tests.e2e.conftest import ROOT

TRACES = ROOT.parent / "shared" / "traces"

KNOWN: dict[str, set[str]] = {
    "megatron-tp2-v100": {"no-cuda-sync", "first-meeting-late", "late-starts"},
    "resnet-ddp2-a100": {"no-cuda-sync", "et-differs", "missing-ranks"},
    "dlrm8-v100": {"no-cuda-sync", "matched-by-order", "integer-us", "launches-before-window", "began-apart", "left-aside"},
    "vgg13-h100": {"no-cuda-sync", "matched-by-order", "integer-us", "no-steps"},
    "simple-add-a100": {"no-cuda-sync", "matched-by-order", "integer-us", "no-steps"},
    "mismatched-pair": {"et-of-other-run", "no-cuda-sync", "missing-ranks", "no-shapes"},
    "partial-et": {"et-partial", "no-cuda-sync", "matched-by-order", "integer-us"},
    "cuda-sync/alexnet.json.gz": {"no-et", "no-shapes", "integer-us", "no-steps", "no-record-function-ids"},
    "cuda-sync/event_sync.json.gz": {"no-et", "no-shapes", "integer-us", "no-record-function-ids"},
    "nsys/h100_2gpu_1s.sqlite": {
        "nsys-cut", "launches-before-window", "nsys-no-event-records", "nsys-rank-by-order", "profiler-overhead", "standstill",
        "launches-without-ops",
    },
    "nsys/no_nvtx_table.sqlite": {"nsys-no-nvtx", "profiler-overhead", "nsys-odd-rows"},
    "nccl/nccl_trace_p2p_4rank.json": {"nccl-alone", "nccl-no-gpu-stop", "nccl-no-proxy-steps", "nccl-no-seq"},
    "rocm/mi250_minitoy.json.gz": {"no-et", "no-hip-sync"},
    "rocm/mi300_resnet_rank0of8.json.gz": {
        "no-et", "no-hip-sync", "missing-ranks", "comm-unknown", "launches-before-window", "no-record-function-ids",
    },
    "legacy/categories_2021.json.gz": {"no-et", "no-host-rows", "no-cuda-sync", "integer-us", "missing-ranks"},
    "legacy/triton_example.json.gz": {"no-et", "no-cuda-sync", "no-record-function-ids"},
    "legacy/sendrecv_graph_launch_5streams.json.gz": {
        "no-et", "no-cuda-sync", "comm-unknown", "launches-before-window", "missing-ranks", "integer-us", "no-record-function-ids",
        "standstill", "late-starts",
    },
    "host-only/no_gpu_no_rank.json.gz": {"no-et", "host-only", "no-rank", "integer-us", "no-record-function-ids"},
    "pipelining-cpu/1f1b": {"host-only", "host-comm", "no-seq", "no-pipeline-ranges", "began-apart", "first-meeting-late"},
    "pipelining-cpu/interleaved-zb": {"host-only", "host-comm", "no-seq", "began-apart"},
}  # fmt: skip


pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")


@cache
def findings(name: str) -> dict[str, Any]:
    """Findings of a recording by name."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["doctor", str(TRACES / name), "--json", "-"])
    assert (status, err.getvalue()) == (0, "")
    return {finding["name"]: finding for finding in json.loads(out.getvalue())["findings"]}


SMALL = (
    "megatron-tp2-v100",
    "cuda-sync/alexnet.json.gz",
    "rocm/mi250_minitoy.json.gz",
    "nccl/nccl_trace_p2p_4rank.json",
)


@pytest.mark.parametrize(
    "name", [name if name in SMALL else pytest.param(name, marks=pytest.mark.long) for name in KNOWN]
)
def test_what_is_known_of_a_recording_is_found(name: str) -> None:
    assert set(findings(name)) == KNOWN[name]


def test_figures_are_those_of_the_readme() -> None:
    megatron = findings("megatron-tp2-v100")["no-cuda-sync"]
    assert megatron["parts"] == {"cudaStreamSynchronize": 24, "cudaDeviceSynchronize": 2}  # 12 and 1 a rank


@pytest.mark.long
def test_figures_of_large_recordings_are_those_of_the_readme() -> None:
    dlrm = findings("dlrm8-v100")
    assert dlrm["launches-before-window"]["ranks"] == [1, 3]
    partial = findings("partial-et")["et-partial"]["figures"]
    assert partial == {"covered": 1310, "rows": 39506}
    mi300 = findings("rocm/mi300_resnet_rank0of8.json.gz")
    assert mi300["launches-before-window"]["figures"] == {"orphans": 968, "ops": 3653}
    assert mi300["comm-unknown"]["figures"] == {"unknown": 5, "comms": 17}
    sendrecv = findings("legacy/sendrecv_graph_launch_5streams.json.gz")
    assert sendrecv["no-cuda-sync"]["parts"]["cudaStreamSynchronize"] == 75
    assert sendrecv["no-cuda-sync"]["figures"]["waits"] == 425
    mismatched = findings("mismatched-pair")["et-of-other-run"]["told"][0]
    assert "14388 ids are in both, but only 3658 under the same name" in mismatched


@pytest.mark.parametrize(
    "name",
    [
        "megatron-tp2-v100",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("resnet-ddp2-a100", "vgg13-h100", "rocm/mi300_resnet_rank0of8.json.gz")
        ),
    ],
)
def test_the_summary_of_the_main_job_agrees(name: str, tmp_path: Path) -> None:
    found = findings(name)
    path = TRACES / name
    given = [str(path)] if path.is_dir() else ["--kineto", str(path)]
    assert main([*given, "--no-timeline", "-q", "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    warnings = [*summary["warnings"], *(w for rank in summary["ranks"] for w in rank["warnings"])]
    assert untold(warnings, set(found)) == []
    waits = found.get("no-cuda-sync") or found["no-hip-sync"]
    assert waits["figures"]["inferred"] == sum(rank["sync"]["by_source"]["inferred"] for rank in summary["ranks"])
    before = sum(rank["device"]["orphans"].get("launched before the recording", 0) for rank in summary["ranks"])
    assert found.get("launches-before-window", {"figures": {"orphans": 0}})["figures"]["orphans"] == before
