from __future__ import annotations

import numpy as np
import pytest

from graphlink.errors import UsageError
from graphlink.linking.match import match_hosts
from graphlink.linking.step_cut import Steps, cut, parse_steps
from graphlink.model import Comm, SyncKind, Trace
from tests.build import Call, Device, Flow, Host, Node, Sync, build_et, build_trace


def trace() -> Trace:
    """Steps 4 and 5; the kernel of step 4's second call runs in step 5; one kernel has no call."""
    return build_trace(
        host=[
            Host("whole run", -5, 300, annotation=True),
            Host("ProfilerStep#4", 0, 100, annotation=True, rf_id=1),
            Host("aten::a", 10, 20, rf_id=2),
            Host("ProfilerStep#5", 100, 200, annotation=True, rf_id=3),
            Host("aten::b", 110, 120, rf_id=4, comm=Comm("allreduce")),
            Host("backward", 150, 260, tid=2, rf_id=5),
            Host("late", 210, 220, rf_id=6),
        ],
        calls=[
            Call("cudaLaunchKernel", 12, 13, 7),
            Call("cudaLaunchKernel", 14, 15, 8),
            Call("cudaLaunchKernel", 111, 112, 9),
            Call("cudaStreamSynchronize", 115, 118, 10),
        ],
        device=[
            Device("k7", 20, 30, 7),
            Device("k8", 120, 130, 8),
            Device("k9", 140, 250, 9, comm=Comm("allreduce")),
            Device("orphan", 150, 160, 0),
        ],
        syncs=[Sync(SyncKind.STREAM, 116, 117, 10, stream=7)],
        flows=[Flow(1, 110, 2, 150), Flow(1, 10, 2, 150)],
    )


def names(t: Trace, column: np.ndarray) -> list[str]:
    return [t.strings[k] for k in column.tolist()]


def test_a_step_keeps_what_starts_in_it_and_what_it_launched() -> None:
    et = build_et([Node("aten::b", 4), Node("aten::a", 2), Node("ProfilerStep#5", 3)])
    whole = trace()
    part = cut(whole, match_hosts(whole, et), Steps(5, 5))
    t = part.trace
    assert names(t, t.host.name) == ["ProfilerStep#5", "aten::b", "backward"]
    assert t.calls.correlation.tolist() == [9, 10]
    assert names(t, t.device.name) == ["k9", "orphan"]
    assert (len(t.syncs.kind), len(t.flows.fwd_ns)) == (1, 1)
    assert [(r, t.strings[t.host.name[r]]) for r in t.host.comm.row.tolist()] == [(1, "aten::b")]
    assert t.device.comm.row.tolist() == [0]
    assert [et.strings[et.name[k]] if k >= 0 else None for k in part.match.et.tolist()] == [
        "ProfilerStep#5",
        "aten::b",
        None,
    ]
    assert part.match.only_kineto == {"backward": 1}
    assert t.left_out == {"host rows of other steps": 4, "calls of other steps": 2, "device ops of other steps": 2}


def test_a_range_of_all_steps_keeps_both() -> None:
    whole = trace()
    part = cut(whole, match_hosts(whole, None), Steps(4, 5))
    assert names(part.trace, part.trace.device.name) == ["k7", "k8", "k9", "orphan"]
    assert part.trace.left_out == {"host rows of other steps": 2}


@pytest.mark.parametrize("steps", [Steps(3, 3), Steps(4, 6), Steps(10**17, 10**18)])
def test_an_unknown_step_names_those_that_there_are(steps: Steps) -> None:
    whole = trace()
    with pytest.raises(UsageError, match="4, 5"):
        cut(whole, match_hosts(whole, None), steps)


def test_a_recording_without_marks() -> None:
    whole = build_trace(host=[Host("aten::a", 0, 1)])
    with pytest.raises(UsageError, match="it has no steps"):
        cut(whole, match_hosts(whole, None), Steps(1, 1))


@pytest.mark.parametrize(
    ("text", "steps"), [("all", None), ("3", Steps(3, 3)), ("2-5", Steps(2, 5)), ("7-7", Steps(7, 7))]
)
def test_how_steps_are_written(text: str, steps: Steps | None) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", "x", "-1", "3-", "5-2", "1,2", "9" * 30, "²"])
def test_how_they_are_not(text: str) -> None:
    with pytest.raises(UsageError):
        parse_steps(text)


def test_steps_that_others_tell_are_cut_too() -> None:
    """By their names, several scopes of one number, and by an optimizer."""
    scopes = [Host(f"step[{k}]", 100 * k + at, 100 * k + at + 30, annotation=True) for k in range(3) for at in (0, 40)]
    ops = [Host(f"aten::{k}", 100 * k + 45, 100 * k + 50) for k in range(3)]
    whole = build_trace(host=[*scopes, *ops])
    part = cut(whole, match_hosts(whole, None), Steps(1, 1)).trace
    assert [part.strings[k] for k in part.host.name] == ["step[1]", "step[1]", "aten::1"]
    ends = [Host("Optimizer.step#SGD.step", 100 * k + 60, 100 * k + 70, annotation=True) for k in range(3)]
    whole = build_trace(host=[*ends, *ops])
    part = cut(whole, match_hosts(whole, None), Steps(2, 3)).trace
    assert [part.strings[k] for k in part.host.name if part.strings[k].startswith("aten")] == ["aten::1", "aten::2"]


def test_steps_that_a_kernel_begins_are_cut_where_it_was_launched() -> None:
    """Without host ops; the device is 130 us, more than a step, behind the host."""
    names_of = ("first", "gemm_3", "SoftmaxBackward_kernel")
    every = [(1 + 3 * k + j, 100 * k + 30 * j + 5, name) for k in range(6) for j, name in enumerate(names_of)]
    calls = [Call("cudaLaunchKernel", at, at + 4, number) for number, at, _ in every]
    device = [Device(name, at + 130, at + 150, number) for number, at, name in every]
    whole = build_trace(calls=calls, device=device)
    part = cut(whole, match_hosts(whole, None), Steps(2, 3)).trace
    assert part.device.correlation.tolist() == part.calls.correlation.tolist() == [4, 5, 6, 7, 8, 9]
