"""Whether launches that a full queue held up are told, by a plain simulation of such a queue, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import graphlink
from graphlink.depend.launch_queue import ROWS, held_launches
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Linked, OverheadRows
from graphlink.standstill.standstill import QUEUE
from tests.build import Call, Device, Host, build_trace
from tests.standstill.test_standstill import stood

PLACES, LAUNCHES = 1_000, 1_400


def queued(places: int, *, kernel: float, slow: float = 0, seed: int = 0) -> tuple[Linked, list[int]]:
    """Launches of 5 us onto one stream; one returns no sooner than the op ``places`` before it begins. Of them the held
    ones, and a share of ``slow`` takes 200 us for reasons of its own.
    """
    calls, ops, held = run_of(places, kernel=kernel, slow=slow, seed=seed)
    at = calls[-1].end + 3
    trace = build_trace(host=[Host("aten::mm", 0, at), Host("aten::end", at + 1, at + 2)], calls=calls, device=ops)
    return link(trace, None, match_hosts(trace, None)), held


def run_of(places: int, *, kernel: float, slow: float = 0, seed: int = 0) -> tuple[list[Call], list[Device], list[int]]:
    """Return the calls, the ops, and which of the calls were held."""
    random = Random(seed)
    calls: list[Call] = []
    ops: list[Device] = []
    held = []
    at = 0.0
    for i in range(LAUNCHES):
        until = at + (200 if random.random() < slow else 5)
        if i >= places and ops[i - places].start > until:
            until = ops[i - places].start + 4
            held.append(i)
        calls.append(Call("cudaLaunchKernel", at, until, i + 1))
        start = max(until + 2, ops[-1].end + 1 if ops else 0)
        ops.append(Device("k", start, start + kernel, i + 1))
        at = until + 3
    return calls, ops, held


def test_launches_that_a_full_queue_held_up_are_told_with_their_time() -> None:
    linked, truth = queued(PLACES, kernel=150)
    call, held_ns = held_launches(linked)
    assert call.tolist() == truth
    calls = linked.trace.calls
    assert held_ns.tolist() == (calls.end_ns[truth] - calls.start_ns[truth] - 5_000).tolist()
    found = stood(linked)
    (warning,) = [w for w in found.warnings if "full queue" in w]
    assert warning.startswith(f"{len(truth):,} launches were blocked for {held_ns.sum() / 1e6:,.3f} ms")
    assert found.beside_ns == held_ns.sum()
    assert found.standstill.largest[0].record == QUEUE
    assert found.standstill.calls.ns == 0


@pytest.mark.parametrize("seed", range(4))
def test_slow_launches_without_a_full_queue_are_none(seed: int) -> None:
    linked, truth = queued(LAUNCHES, kernel=400, slow=0.1, seed=seed)
    assert (truth, held_launches(linked)[0].tolist()) == ([], [])


def test_a_host_that_is_never_far_ahead_fills_no_queue() -> None:
    linked, _ = queued(LAUNCHES, kernel=4, slow=0.1)
    assert held_launches(linked)[0].tolist() == []
    linked, truth = queued(100, kernel=150)
    assert truth
    assert held_launches(linked)[0].tolist() == []


def test_rows_tell_of_launches_that_were_held_up() -> None:
    linked, truth = queued(100, kernel=150)
    trace, full = linked.trace, truth[3:6]
    rows = OverheadRows(
        trace.calls.start_ns[full] + 500, trace.calls.end_ns[full] - 700, np.full(3, len(trace.strings), np.int32)
    )
    call, held_ns = held_launches(replace(linked, trace=replace(trace, strings=(*trace.strings, ROWS), overhead=rows)))
    assert call.tolist() == full
    assert held_ns.tolist() == (rows.end_ns - rows.start_ns).tolist()


@pytest.mark.parametrize("factor", [0.5, 0.05])
def test_what_a_full_queue_held_goes_with_the_device(tmp_path: Path, factor: float) -> None:
    """A what-if of quicker kernels, against the same program with quicker kernels."""
    calls, ops, held = run_of(PLACES, kernel=150)
    assert held
    rows = [row("cpu_op", "aten::mm", call.start - 1, call.end + 1, 1) for call in calls]
    rows += [row("cuda_runtime", call.name, call.start, call.end, 1, correlation=k + 1) for k, call in enumerate(calls)]
    rows += [row("kernel", "k", op.start, op.end, 7, correlation=k + 1, device=0, stream=7) for k, op in enumerate(ops)]
    (tmp_path / "kineto_0.json").write_text(json.dumps({"traceEvents": rows}))
    options = graphlink.Options(timeline="none")
    run = graphlink.link(tmp_path / "kineto_0.json", out=tmp_path / "out", options=options)
    (predicted,) = run.replay(scale=[f"kernel={factor}"]).what_if
    quicker = run_of(PLACES, kernel=150 * factor)[1]
    assert predicted.after_ns == pytest.approx(1000 * (quicker[-1].end + 1), rel=0.02)


def row(category: str, name: str, start_us: float, end_us: float, thread: int, **args: int) -> dict[str, Any]:
    """Return a row as Kineto writes it."""
    place = {"pid": 0 if category == "kernel" else 1, "tid": thread, "ts": start_us, "dur": end_us - start_us}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}
