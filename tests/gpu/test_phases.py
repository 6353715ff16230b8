"""Prefill and decode told apart: by names, with figures that are known, and on a recording of sglang."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import graphlink
from graphlink.gpu.phases import told_phase

SGLANG = Path(__file__).resolve().parents[3] / "shared" / "traces" / "inference" / "sglang_decode_graph.json.gz"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("step[DECODE bs=32]", ("decode", 32, None)),
        ("step[EXTEND bs=2 toks=1024]", ("prefill", 2, 1024)),
        ("step[MIXED bs=4]", ("mixed", 4, None)),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785)", ("decode", 32, 32)),
        ("execute_context_2(512)_generation_0()", ("prefill", 2, None)),
        ("execute_700_context_1(sq668)_generation_32(sq32)", ("mixed", 33, 700)),
        ("execute_new_1_cached_0", ("prefill", 1, None)),
        ("execute_new_0_cached_8", ("decode", 8, None)),
        ("Prefill", ("prefill", None, None)),
        ("prefill_step 3", ("prefill", None, None)),
        ("decode, batch size: 16, num_tokens=16", ("decode", 16, 16)),
        ("prefill and decode", ("mixed", None, None)),
        ("decoder.layers.3", None),
        ("TransformerDecoder", None),
        ("predecode", None),
        ("execute_context_0()_generation_0()", None),
        ("ProfilerStep#3", None),
        ("", None),
    ],
)
def test_names(name: str, told: object) -> None:
    assert told_phase(name) == told


def test_sglang(tmp_path: Path) -> None:
    if not SGLANG.exists():
        pytest.skip("the public recordings of ../shared/traces are not here")
    (rank,) = graphlink.link(SGLANG, out=tmp_path / "out").summary.ranks
    assert not isinstance(rank.phases, msgspec.UnsetType)
    (decode,) = rank.phases
    assert (decode.phase, decode.steps, decode.mean_batch) == ("decode", 1, 32)
    (step,) = rank.steps
    (gpu,) = step.gpu
    assert (decode.mean_ns, decode.gpu_ns, decode.idle_ns) == (
        step.end_ns - step.start_ns,
        gpu.to_ns - gpu.from_ns,
        gpu.idle_ns,
    )
