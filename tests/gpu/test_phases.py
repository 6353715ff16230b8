"""Prefill and decode told apart: by names, with figures that are known, and on a recording of sglang."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphlink
from graphlink.depend.build import BuildOptions, build
from graphlink.gpu.phases import Phase, _overlap, phases, phases_line, told_phase
from graphlink.gpu.time import gpu_time
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Trace
from tests.build import Call, Device, Host, build_trace

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


@given(st.text("execute_context_generation_0()step[DECODE bs=]\n <", max_size=60))
def test_any_name_is_read(name: str) -> None:
    told_phase(name)


def found(trace: Trace) -> list[Phase]:
    linked = link(trace, None, match_hosts(trace, None))
    comm = communication(linked)
    graph = build(linked, comm, BuildOptions(sync="cuda")).graph
    return phases(gpu_time(graph, linked, comm), linked, graph.epoch_ns)


def recorded(names: list[str], *, annotation: bool = True) -> Trace:
    """A range of 100 us each, in which a kernel of 10 (20, ...) us is launched; an image is decoded in a range of its
    own.
    """
    host = [Host("decode jpeg", 1, 5, tid=9, annotation=True), Host("decode jpeg", 101, 105, tid=9, annotation=True)]
    calls, device = [], []
    for k, name in enumerate(names):
        at = 100 * k
        host += [Host(name, at, at + 100, annotation=annotation), Host("aten::mm", at + 1, at + 9)]
        calls.append(Call("cudaLaunchKernel", at + 2, at + 4, k + 1))
        device.append(Device("gemm", at + 30, at + 40 + 10 * k, k + 1))
    return build_trace(host=host, calls=calls, device=device)


@pytest.mark.parametrize("form", ["step[{} bs={}]", "{} bs={}"])
def test_steps_and_ranges_have_the_same_figures(form: str) -> None:
    """Kernels of 10, 20 and 30 us; what lies before the first and behind the last is idle, too."""
    named = [form.format(*told) for told in (("EXTEND", 1), ("DECODE", 4), ("DECODE", 6))]
    decode, prefill = found(recorded(named))
    assert decode == Phase(
        phase="decode", steps=2, mean_ns=100_000, longest_ns=100_000, gpu_ns=200_000, idle_ns=150_000, mean_batch=5
    )
    assert (prefill.steps, prefill.gpu_ns, prefill.idle_ns, prefill.mean_batch) == (1, 100_000, 90_000, 1)
    line = (
        "decode 2: 0.100 ms on average, GPU idle 75.0 %, 5 requests a step; prefill 1: 0.100 ms, GPU idle 90.0 %, "
        "1 "
        "requests a step"
    )
    assert phases_line([decode, prefill]) == line


def test_where_no_name_tells_there_are_none() -> None:
    assert found(recorded(["step 1", "step 2", "decoder"])) == []
    assert found(recorded(["decode"], annotation=False)) == []


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=6),
    st.lists(st.tuples(st.integers(-5, 90), st.integers(0, 60))),
)
def test_overlap(gaps: list[tuple[int, int]], spans: list[tuple[int, int]]) -> None:
    ends = np.cumsum([n for pair in gaps for n in pair]).astype(np.int64)
    low, high = ends[::2], ends[1::2]
    inside = {at for a, b in zip(low.tolist(), high.tolist(), strict=True) for at in range(a, b)}
    start = np.array([a for a, _ in spans], np.int64)
    end = start + np.array([n for _, n in spans], np.int64)
    plain = [len(inside & {*range(a, b)}) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    assert _overlap(start, end, low, high).tolist() == plain


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
