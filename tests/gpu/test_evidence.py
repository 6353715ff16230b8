"""What the evidence of idle time says of calls that waited, and of host work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.causes import NAMES
from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.time import gpu_time
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import DeviceKind, FrameRows, SyncKind, Trace
from tests.build import Call, Device, Host, Sync, build_trace


def said(trace: Trace, cause: str) -> dict[str, int]:
    """The evidence of a cause on device 0, with its time in us."""
    rank = link(trace, None, match_hosts(trace, None))
    comm = communication(rank)
    found = gpu_time(build(rank, comm, BuildOptions(sync="cuda")).graph, rank, comm)
    out: dict[str, int] = {}
    for device, idle in found.idle:
        for start, end, why, text in zip(
            *(x.tolist() for x in (idle.start_ns, idle.end_ns, idle.cause, idle.evidence)), strict=True
        ):
            if device == 0 and NAMES[why] == cause:
                out[idle.texts[text]] = out.get(idle.texts[text], 0) + (end - start) // 1000
    return out


def blocked(op: bool, awaited: bool, frames: Sequence[tuple[str, float, float]] = ()) -> Trace:
    """A copy of the other device ends at 400; the host waits for it from 100 on, and launches on device 0 then."""
    host = [Host("aten::item", 90, 410), Host("aten::nonzero", 95, 405)] if op else []
    host += [Host("aten::mm", 0, 20), Host("aten::mm", 420, 440)]
    calls = [
        Call("cudaLaunchKernel", 2, 6, 1),
        Call("cudaMemcpyAsync", 30, 35, 2),
        Call("cudaStreamSynchronize", 100, 401, 3),
    ]
    calls.append(Call("cudaLaunchKernel", 425, 430, 4))
    device = [Device("gemm", 10, 60, 1), Device("gemm", 435, 460, 4)]
    device.append(Device("Memcpy DtoH", 40, 400 if awaited else 50, 2, stream=8, device=1, kind=DeviceKind.MEMCPY))
    syncs = [Sync(SyncKind.STREAM, 100, 401, 3, stream=8, device=1)] if awaited else []
    out = build_trace(host=host, calls=calls, device=device, syncs=syncs)
    if not frames:
        return out
    start, end = (np.array([row[k] * 1000 for row in frames], np.int64) for k in (1, 2))
    names = (np.arange(len(frames)) + len(out.strings)).astype(np.int32)
    rows = FrameRows(start, end, np.ones(len(frames), np.int64), names)
    return replace(out, strings=(*out.strings, *(name for name, *_ in frames)), frames=rows)


@pytest.mark.parametrize(
    ("op", "awaited", "text"),
    [
        (True, True, "the host was in aten::nonzero, which waited for Memcpy DtoH in cudaStreamSynchronize"),
        (False, True, "the host waited for Memcpy DtoH in cudaStreamSynchronize"),
        (True, False, "the host was in aten::nonzero, which was blocked in cudaStreamSynchronize"),
        (False, False, "the host was blocked in cudaStreamSynchronize"),
    ],
)
def test_a_blocked_host_names_op_awaited_work_and_call(op: bool, awaited: bool, text: str) -> None:
    found = said(blocked(op, awaited), "host_blocked")
    assert max(found, key=found.__getitem__) == text
    assert 295 <= sum(found.values()) <= 302


def test_the_line_of_python_is_named_where_stacks_were_recorded() -> None:
    frames = [("train.py(3): main", 0, 460), ("train.py(34): step", 80, 415), ("torch/_tensor.py(5): item", 85, 412)]
    (text,) = said(blocked(True, True, [(name, float(low), float(high)) for name, low, high in frames]), "host_blocked")
    assert text.endswith(" in cudaStreamSynchronize, called in function step (train.py:34)")


def working(inner: list[tuple[str, int, int]], outer: str = "aten::linear") -> dict[str, int]:
    """Idle from 60 to 500 while ``outer`` runs from 0 to 480, and rows of ``inner`` in it."""
    host = [
        Host("ProfilerStep#1", 0, 600, annotation=True),
        Host("forward", 0, 590, annotation=True),
        Host(outer, 0, 480),
    ]
    host += [Host(name, low, high) for name, low, high in inner]
    calls = [Call("cudaLaunchKernel", 2, 6, 1), Call("cudaLaunchKernel", 470, 475, 2)]
    return said(
        build_trace(host=host, calls=calls, device=[Device("gemm", 10, 60, 1), Device("gemm", 480, 500, 2)]),
        "host_work",
    )


def test_host_work_names_the_innermost_op_that_ran_for_most_of_it_and_the_outermost_range() -> None:
    assert [*working([("aten::empty", 70, 100), ("aten::addmm", 100, 400), ("aten::copy_", 150, 250)])] == [
        "host: aten::addmm in forward"
    ]
    assert [*working([("aten::addmm", 100, 400), ("aten::copy_", 120, 380)])] == ["host: aten::copy_ in forward"]
    assert [*working([("aten::t", 100 + 40 * k, 125 + 40 * k) for k in range(8)])] == ["host: aten::linear in forward"]
    assert [*working([("aten::t", 100 + 40 * k, 135 + 40 * k) for k in range(8)])] == ["host: aten::t in forward"]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.sampled_from("abc")), max_size=8))
def test_the_named_op_is_the_one_of_most_moments(drawn: list[tuple[int, int, str]]) -> None:
    """Ops one after the other, every second one with another one inside that covers half of it."""
    inner, owner, at = [], ["aten::linear"] * 480, 61
    for k, (took, pause, name) in enumerate(drawn):
        if at + took > 465:
            break
        inner.append((name, at, at + took))
        owner[at : at + took] = [name] * took
        if k % 2 and took > 3:
            inner.append(("d", at + 1, at + 1 + took // 2))
            owner[at + 1 : at + 1 + took // 2] = ["d"] * (took // 2)
        at += took + pause
    ran = {name: owner[60:475].count(name) for name in {*owner}}
    ((text, _),) = working(inner).items()
    assert ran[text.removeprefix("host: ").removesuffix(" in forward")] == max(ran.values())
