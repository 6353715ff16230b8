"""Steps as the TensorBoard plugin of PyTorch defines them, from the same record as ours: its published figures, and
ours beside them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink import spans
from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.busy import own_clock_ns
from graphlink.gpu.time import gpu_time
from graphlink.linking.communication import communication
from graphlink.model import I64, NOWHERE, DeviceKind, Linked
from graphlink.patterns import LOADER
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank
from graphlink.steps import Steps, steps_of

RECORDING = (
    Path(__file__).resolve().parents[3] / "shared" / "traces" / "legacy" / "v100_resnet50_2021_operator_steps.json.gz"
)
# of the plugin's own tests: average of the steps in us, and shares in per cent
PUBLISHED = {
    "kernel": 98_589,
    "memcpy": 1_915,
    "memset": 89,
    "runtime": 2_908,
    "DataLoader": 59_262,
    "CPU": 13_674,
    "other": 1_156,
}
STEP_US, UTILISATION, SM_EFFICIENCY = 177_592, 55.51, 54.68
# of steps that are cut at their marks; the last one's kernels run for 16.6 ms behind it
OUR_STEP_US, OUR_UTILISATION, OUR_SM_EFFICIENCY = (
    174_829,
    56.02,
    98.61,
)  # copies are busy time; SM efficiency is of the time of kernels
OUR_US = {"compute_ns": 96_026, "exposed_copy_ns": 1_915, "idle_ns": 76_888}


@pytest.fixture(scope="module")
def rank() -> Linked:
    if not RECORDING.exists():
        pytest.skip(f"{RECORDING} is not here")
    return link_rank(Inputs(kineto=RECORDING)).linked


def on_device(rank: Linked) -> tuple[I64, I64]:
    """As recorded."""
    device, offset_ns = rank.trace.device, own_clock_ns(rank)
    return device.start_ns + offset_ns, device.end_ns + offset_ns


def plugin_steps(rank: Linked, marks: Steps) -> tuple[I64, I64]:
    """From the start of the mark, or the end of the device work of the step before, to its end, or that of the device
    work it launched.
    """
    call, (_, end_ns) = rank.device_call, on_device(rank)
    launched_ns = np.where(call == NOWHERE, 0, rank.trace.calls.start_ns[call])
    step = np.searchsorted(marks.end_ns, launched_ns, side="right")
    step[launched_ns < marks.start_ns[0]] = len(marks.names)
    last_ns = np.array([end_ns[step == k].max() for k in range(len(marks.names))])
    return np.maximum(marks.start_ns, np.append(marks.start_ns[0], last_ns[:-1])), np.maximum(marks.end_ns, last_ns)


def plugin_parts(rank: Linked, from_ns: I64, to_ns: I64) -> dict[str, float]:
    """The average step in us: each moment counts for the first of these that holds."""
    trace, (start_ns, end_ns) = rank.trace, on_device(rank)
    host, kind = trace.host, trace.device.kind
    loads, marks = (np.array(found, np.bool_)[host.name] for found in zip(*map(kinds_of, trace.strings), strict=True))
    roles = {
        **{
            k.name.lower(): (start_ns[kind == k], end_ns[kind == k])
            for k in (DeviceKind.KERNEL, DeviceKind.MEMCPY, DeviceKind.MEMSET)
        },
        "runtime": (trace.calls.start_ns, trace.calls.end_ns),
        **{
            name: (host.start_ns[rows], host.end_ns[rows])
            for name, rows in (("DataLoader", loads), ("CPU", ~loads & ~marks))
        },
    }
    covered, before, out = spans.NONE, np.zeros(len(from_ns), np.int64), {}
    for name, (start, end) in roles.items():
        covered = spans.union(np.append(covered.start_ns, start), np.append(covered.end_ns, end))
        so_far = spans.overlap_ns(covered, from_ns, to_ns)
        out[name], before = float((so_far - before).mean()) / 1000, so_far
    return out | {"other": float((to_ns - from_ns - before).mean()) / 1000}


def kinds_of(text: str) -> tuple[bool, bool]:
    return LOADER.fullmatch(text) is not None, text.startswith("ProfilerStep#")


def test_the_published_figures_follow_from_the_plugins_definition(rank: Linked) -> None:
    from_ns, to_ns = plugin_steps(rank, steps_of(rank))
    assert (to_ns - from_ns).mean() / 1000 == pytest.approx(STEP_US, rel=1e-5)
    assert plugin_parts(rank, from_ns, to_ns) == pytest.approx(PUBLISHED, rel=0.01)
    (start_ns, end_ns), device = on_device(rank), rank.trace.device
    inside = np.minimum(end_ns, to_ns[-1]) - np.maximum(start_ns, from_ns[0])
    took_ns = np.where(device.kind == DeviceKind.KERNEL, np.maximum(inside, 0), 0)
    whole_ns = (to_ns - from_ns).sum()
    assert 100 * took_ns.sum() / whole_ns == pytest.approx(UTILISATION, rel=0.01)
    assert 100 * (took_ns * device.sm_share).sum() / whole_ns == pytest.approx(SM_EFFICIENCY, rel=0.01)


def test_ours_are_cut_at_the_marks(rank: Linked) -> None:
    comm = communication(rank)
    found = gpu_time(build(rank, comm, BuildOptions(sync="cuda")).graph, rank, comm)
    steps = [step.gpu[0] for step in found.steps]
    whole_ns = sum(one.to_ns - one.from_ns for one in steps)
    assert whole_ns / len(steps) / 1000 == pytest.approx(OUR_STEP_US, abs=1)
    busy = sum(one.utilisation * (one.to_ns - one.from_ns) for one in steps if isinstance(one.utilisation, float))
    filled = [one.est_sm_efficiency for one in steps if isinstance(one.est_sm_efficiency, float)]
    assert len(filled) == len(steps)
    assert 100 * busy / whole_ns == pytest.approx(OUR_UTILISATION, abs=0.01)
    assert 100 * sum(filled) / len(filled) == pytest.approx(OUR_SM_EFFICIENCY, abs=0.01)
    assert {name: round(sum(getattr(one, name) for one in steps) / len(steps) / 1000) for name in OUR_US} == OUR_US
