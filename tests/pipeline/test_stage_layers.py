"""What the layers of a stage take, in passes made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Linked
from graphlink.pipeline.autograd import launched, layers_of, waitless
from graphlink.pipeline.named_ranges import named_entries
from graphlink.pipeline.records import Layers, Pass
from graphlink.spans import Spans
from tests.build import Call, Device, Host, build_trace
from tests.pipeline.hand import communication

ENGINE = "autograd::engine::evaluate_function: "
OPS = (("embedding", 20), ("linear", 100), ("relu", 10), ("linear", 100), ("relu", 10), ("loss", 30))
BACK = (60, 400, 20, 200, 20, 15)  # of the ops, the first first


def passes(microbatches: int = 2, ops: Sequence[tuple[str, int]] = OPS, back: Sequence[int] = BACK) -> Iterator[Host]:
    """Forwards, then backwards; each op has another inside, and after each linear's backward its gradient is stored
    without a number.
    """
    at = 1000
    for k in range(microbatches):
        begin = at
        for i, (name, takes) in enumerate(ops):
            yield Host(name, at, at + takes, seq_id=10 * k + i)
            yield Host("inside", at + 1, at + 2, seq_id=10 * k + i)
            at += takes
        yield Host(f"PP:0F{k}", begin, at, annotation=True)
        at += 50
    for k in range(microbatches):
        begin = at
        for i, takes in reversed(list(enumerate(back))):
            stores = 5 if ops[i][0] == "linear" else 0
            yield Host(f"{ENGINE}{ops[i][0]}Backward0", at, at + takes - stores, seq_id=10 * k + i)
            if stores:
                yield Host(f"{ENGINE}torch::autograd::AccumulateGrad", at + takes - stores, at + takes)
            at += takes
        yield Host(f"PP:0B{k}", begin, at, annotation=True)
        at += 50


def found(linked: Linked, waits: Spans | None = None, *, device: bool = False) -> dict[Pass, tuple[int, ...]]:
    entries, _ = named_entries(linked)
    assert entries is not None
    none = np.zeros(0, np.int64)
    work = launched(linked, communication()) if device else waitless(waits or Spans(none, none))
    layers: tuple[Layers, ...] = layers_of(linked, entries, work)
    assert all(one.chunk == 0 for one in layers)
    return {Pass(one.phase): tuple(ns // 1000 for ns in one.mean_ns) for one in layers}


def linked(rows: Iterator[Host], calls: Sequence[Call] = (), device: Sequence[Device] = ()) -> Linked:
    trace = build_trace(rows, calls, device)
    return link(trace, None, match_hosts(trace, None))


def test_layers_repeat_and_a_backward_op_is_of_the_layer_of_its_forward_op() -> None:
    assert found(linked(passes())) == {Pass.F: (20, 110, 110, 30), Pass.B: (60, 420, 220, 15)}


def test_waits_are_no_work() -> None:
    """The first forward waits for 30 us inside its second linear, the second one not at all."""
    waits = Spans(np.array([1_150_000]), np.array([1_180_000]))
    assert found(linked(passes()), waits)[Pass.F] == (20, 110, 95, 30)


def test_a_device_works_on_what_a_layer_launched() -> None:
    rows = list(passes(1))
    ops = [row for row in rows if not row.annotation and row.name != "inside" and "Accumulate" not in row.name]
    calls = [Call("cudaLaunchKernel", row.start + 3, row.start + 4, k) for k, row in enumerate(ops, 1)]
    kernels = [Device("kernel", 9000 + 100 * k, 9000 + 101 * k, correlation=k) for k in range(1, len(ops) + 1)]
    assert found(linked(iter(rows), calls, kernels), device=True) == {Pass.F: (1, 5, 9, 6), Pass.B: (12, 21, 17, 7)}


@pytest.mark.parametrize("ops", [OPS[:3], (("linear", 100),), (("a", 10), ("b", 10), ("c", 10))])
def test_without_repetition_there_are_no_layers(ops: Sequence[tuple[str, int]]) -> None:
    assert found(linked(passes(2, ops, BACK[: len(ops)]))) == {}


def test_forwards_with_other_ops_do_not_count() -> None:
    """The second microbatch has one more op in its first layer, so that its layers are not those of the first."""
    rows = [
        row._replace(name="dropout") if row.seq_id == 12 and not row.name.startswith(ENGINE) else row
        for row in passes()
    ]
    assert found(linked(iter(rows))) == found(linked(passes(1)))
