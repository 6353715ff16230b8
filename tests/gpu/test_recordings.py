"""GPU time of every public recording: sums, what no cause explains, and HTA's breakdown of one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.causes import Cause
from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.busy import own_clock_ns
from graphlink.gpu.causes import BEFORE_WINDOW, BEHIND_GRAPH
from graphlink.gpu.records import Idle
from graphlink.gpu.time import GpuTime, gpu_time
from graphlink.linking.communication import communication
from graphlink.linking.launch import BEFORE_WINDOW as LAUNCHED_BEFORE
from graphlink.model import NOWHERE, Linked
from graphlink.read.nsys.report import read_report
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank
from tests.gpu.sums import check_sums

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
RECORDINGS = sorted(
    path
    for path in TRACES.rglob("*")
    if path.name.endswith((".json.gz", ".sqlite")) and not path.name.startswith("et_")
)
SAID = (BEHIND_GRAPH, LAUNCHED_BEFORE, BEFORE_WINDOW)  # reasons that are warned of
MOST_UNKNOWN = 0.05


def time_of(linked: Linked) -> GpuTime:
    comm = communication(linked)
    return gpu_time(build(linked, comm, BuildOptions(sync="cuda")).graph, linked, comm)


def unknown_ns(idle: Idle) -> dict[str, int]:
    """Idle time of no known cause, by reason."""
    out: dict[str, int] = {}
    for k in np.flatnonzero(idle.cause == Cause.UNKNOWN).tolist():
        text = idle.texts[idle.evidence[k]]
        out[text] = out.get(text, 0) + int(idle.end_ns[k] - idle.start_ns[k])
    return out


@pytest.mark.skipif(not RECORDINGS, reason="needs the public traces")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.long if k % 2 == 1 else ()) for k, path in enumerate(RECORDINGS)],
    ids=[f"{path.parent.name}/{path.name}" for path in RECORDINGS],
)
def test_every_recording_adds_up_and_little_is_unknown(path: Path) -> None:
    inputs = [Inputs(kineto=path)]
    if path.suffix == ".sqlite":
        inputs = [Inputs(nsys=path, place=place) for place in range(len(read_report(path)[1]))]
    for one in inputs:
        found = time_of(link_rank(one).linked)
        check_sums(found)
        for time, (device, idle) in zip(found.gpu, found.idle, strict=True):
            reasons = unknown_ns(idle)
            assert sum(reasons.values()) == time.idle_by_cause_ns.get("unknown", 0)
            said = sum(ns for text, ns in reasons.items() if text in SAID)
            assert sum(reasons.values()) - said <= MOST_UNKNOWN * time.idle_ns, reasons
            if said > MOST_UNKNOWN * time.idle_ns * len(SAID):
                assert any(text.startswith(f"GPU {device}: ") for text in found.warnings)


def test_what_hta_calls_host_wait_lies_behind_launches_that_had_returned() -> None:
    """HTA 0.5.0 says of rank 0, stream 7: 57.3 ms (95 %) host_wait, 0.6 (1 %) kernel_wait, 2.4 (4 %) other.

    Its rule: a gap is host_wait if the launch call of what ended it began after the op before had ended. But in most of
    those gaps that call had returned long before the op began.
    """
    path = TRACES / "megatron-tp2-v100" / "kineto_0.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    linked = link_rank(Inputs(kineto=path)).linked
    device, calls, offset_ns = linked.trace.device, linked.trace.calls, own_clock_ns(linked)
    rows = np.flatnonzero(device.stream == 7)
    start_ns, end_ns, call = (
        (device.start_ns + offset_ns)[rows][1:],
        (device.end_ns + offset_ns)[rows][:-1],
        linked.device_call[rows][1:],
    )
    assert (call != NOWHERE).all()
    gap_ns, theirs = start_ns - end_ns, calls.start_ns[call] > end_ns
    short = ~theirs & (gap_ns < 30_000)
    shares = [round(100 * int(gap_ns[which].sum()) / int(gap_ns.sum())) for which in (theirs, short, ~theirs & ~short)]
    assert shares == [95, 1, 4]
    waited_ns = int((start_ns - np.maximum(calls.end_ns[call], end_ns))[theirs].sum())
    assert 0.87 <= waited_ns / int(gap_ns[theirs].sum()) <= 0.89, "the call had returned, and the op had not begun"
    (one,) = time_of(linked).gpu
    causes = {name: ns / one.idle_ns for name, ns in one.idle_by_cause_ns.items()}
    host = sum(
        causes.get(name, 0) for name in ("data_loading", "host_work", "python", "host_blocked", "memory_management")
    )
    assert causes["start_delay"] == pytest.approx(0.883, abs=0.005) and host == pytest.approx(0.117, abs=0.005)
