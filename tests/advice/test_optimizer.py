"""Optimizers that update each tensor by several ops on the CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import graphlink


def recorded(folder: Path, ops: Sequence[str], kernel: bool, optimizer: str) -> graphlink.Run:
    """Link four steps of 100 us of a product and then an optimizer with 25 us of each op, without an ET."""
    rows, at = list[dict[str, object]](), 0

    def row(name: str, cat: str, start: int, us: int, **more: object) -> None:
        at = {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": start, "dur": us}
        rows.append({**at, **more})

    for step in range(4):
        row(f"ProfilerStep#{step}", "user_annotation", at, 100 + 25 * len(ops))
        row("aten::mm", "cpu_op", at, 100)
        row(f"Optimizer.step#{optimizer}.step", "user_annotation", at + 100, 25 * len(ops))
        for k, name in enumerate(ops):
            row(name, "cpu_op", at + 100 + 25 * k, 25)
        if kernel:
            row("cudaLaunchKernel", "cuda_runtime", at + 110, 5, args={"correlation": step + 1})
            where = {"correlation": step + 1, "device": 0, "stream": 7}
            row("add_kernel", "kernel", at + 120, 9, pid=0, tid=7, args=where)
        at += 110 + 25 * len(ops)
    (folder / "kineto_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    return graphlink.link(folder, out=folder / "out")


ADAM = ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")


@pytest.mark.parametrize(
    ("ops", "kernel", "optimizer", "told"),
    [
        (ADAM, False, "AdamW", True),
        (ADAM, False, "SparseAdam", False),  # has no fused=True
        (ADAM, True, "AdamW", False),  # launched: as one launch
        (("aten::add_",) * 5, False, "SGD", False),  # SGD, which gains nothing
        (("aten::_fused_adamw_", *ADAM[1:]), False, "AdamW", False),  # fused already
    ],
)
def test_an_optimizer_of_several_ops_a_tensor_is_to_be_fused(
    tmp_path: Path, ops: Sequence[str], kernel: bool, optimizer: str, told: bool
) -> None:
    run = recorded(tmp_path, ops, kernel, optimizer)
    found = [one for one in run.advice().advice if one.what == "the optimizer updates each tensor by several ops"]
    assert bool(found) == told
    if told:
        assert found[0].gain_ns == pytest.approx(4 * 125_000 * 0.75, rel=0.1) and "5 names" in found[0].evidence
