"""Ranges as a rank's host recorded them."""

from __future__ import annotations

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import Comm
from graphlink.pipeline.autograd import partners, peer_ops
from graphlink.pipeline.named_ranges import Entries, named_entries
from graphlink.pipeline.records import Pass
from graphlink.pipeline.work import device_work
from tests.build import Call, Device, Host, build_trace


def found(*rows: Host) -> tuple[Entries | None, tuple[str, ...]]:
    trace = build_trace(rows)
    return named_entries(link(trace, None, match_hosts(trace, None)))


def test_ranges_that_cross_others_are_told() -> None:
    """Of two that cross, the later one stands outside the nesting; names of no phase do not count."""
    rows = [Host(name, start, end, annotation=True) for name, start, end in (
        ("around", 1000, 2000), ("PP:0F0", 1500, 2500), ("PP:0SEND_F0", 1600, 2600), ("other", 1700, 2700), ("PP:0B0", 1800, 2800),
        ("PP:0F1", 3000, 4000), ("PP:0F1", 3000, 4000), ("PP:0B1", 4000, 5000),
    )]  # fmt: skip
    said = (
        "pipeline ranges that cross others of their thread are left out: 2, the first is PP:0F0, 0.500 ms after "
        "the "
        "first row of the host"
    )
    assert [text for text in found(*rows)[1] if "cross" in text] == [said]
    assert [text for text in found(rows[0], *rows[5:])[1] if "cross" in text] == []


def test_ranges_that_cross_others_are_told_where_the_rest_explains_the_run() -> None:
    rows = [Host(f"PP:0{phase}{k}", at, at + 90, annotation=True) for at, phase, k in (
        (0, "F", 0), (100, "F", 1), (200, "B", 0), (300, "B", 1),
    )]  # fmt: skip
    entries, warnings = found(*rows, Host("PP:0F2", 350, 395, annotation=True))
    assert entries is not None
    assert len(entries.tid) == 4
    assert [text.rpartition("are left out: ")[2] for text in warnings] == [
        "1, the first is PP:0F2, 0.350 ms after the first row of the host"
    ]


def test_a_backward_with_a_weight_gradient_of_its_own_is_the_input_gradient() -> None:
    """DualPipe splits some backwards. Where weight gradients have no number any backward may be split."""
    for weight, phases in (("W1.0.0", [Pass.B, Pass.I, Pass.W]), ("W_clear.0.0", [Pass.I, Pass.I, Pass.W])):
        names = ("F0.0.0", "F1.0.0", "B0.0.0", "B1.0.0", weight)
        entries, _ = found(*(Host(name, 100 * k, 100 * k + 90, annotation=True) for k, name in enumerate(names, 1)))
        assert entries is not None
        assert entries.phase.tolist()[2:] == phases


def test_layers_of_dualpipe_are_parts_of_the_pair_around_them() -> None:
    """Two steps of two pairs each, whose forward and backward have two layers: two microbatches, not eight."""
    names = ("attn(F)", "mlp(B)", "mlp(W)", "mlp(F)", "attn(B)", "attn(W)")
    rows = [Host(f"ProfilerStep#{step}", 3000 * step, 3000 * step + 2900, annotation=True) for step in (0, 1)]
    for pair in range(4):
        at = 100 + 1400 * pair + 200 * (pair // 2)
        rows.append(Host("1F1B", at, at + 1300, annotation=True))
        rows += [Host(name, at + 100 * k, at + 100 * k + 90, annotation=True) for k, name in enumerate(2 * names, 1)]
    entries, _ = found(*rows)
    assert entries is not None
    order = list(zip(entries.step.tolist(), entries.microbatch.tolist(), strict=True))
    assert order == [(step, pair) for step in (0, 1) for pair in (0, 1) for _ in range(12)]
    assert entries.inferred.all()
    assert set(entries.phase.tolist()) == {Pass.F, Pass.I, Pass.W}  # W apart: B is the input gradient


def test_passes_outside_of_pairs_have_as_many_parts_as_inside() -> None:
    """Two forwards before the only pair, two backwards after it, of two layers each: three microbatches."""
    forward, backward = ("attn(F)", "mlp(F)"), ("mlp(B)", "attn(B)")
    names = (*2 * forward, *forward, *backward, *2 * backward)
    rows = [Host(name, 100 * k, 100 * k + 90, annotation=True) for k, name in enumerate(names, 1)]
    pair = Host("1F1B", 490, 895, annotation=True)
    entries, _ = found(pair, *rows)
    assert entries is not None
    assert entries.microbatch.tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]
    calls = [Call("cudaLaunchKernel", 100 * k + 20, 100 * k + 25, k) for k in range(1, len(names) + 1)]
    kernels = [Device("gemm", 2000 + 100 * k, 2050 + 100 * k, correlation=k) for k in range(1, len(names) + 1)]
    for some, passes in (([pair, *rows], 6), (rows, 12)):  # without a pair nothing tells which parts are of one pass
        trace = build_trace(some, calls, kernels)
        linked = link(trace, None, match_hosts(trace, None))
        entries, _ = named_entries(linked)
        assert entries is not None
        worked = device_work(linked, communication(linked), entries)
        assert worked.ranges.device_ops.tolist() == [12 // passes] * passes
        assert worked.ranges.busy_ns.tolist() == [50_000 * (12 // passes)] * passes
        assert not worked.left_out


def test_a_message_that_nested_rows_record_counts_once_also_where_neither_names_its_peer() -> None:
    """PyTorch 2.4 records no peer. A rank exchanges as many messages with each side as it has passes."""
    send = Comm("send", "Float", 4, 4, group_size=4)
    passes = [Host("forward", 10, 20, annotation=True), Host("backward", 30, 40, annotation=True)]
    for count, sides in ((2, (-1,)), (4, (-1, -1)), (1, (-1, -1, -1)), (3, (-1, -1, -1))):
        rows = [
            Host(name, 100 * k + at, 100 * k + 90 - at, comm=send)
            for k in range(1, count + 1)
            for at, name in enumerate(("c10d::send", "record_param_comms"))
        ]
        trace = build_trace([*passes, *rows])
        linked = link(trace, None, match_hosts(trace, None))
        entries, _ = named_entries(linked)
        assert entries is not None
        assert len(peer_ops(linked).peer) == count
        assert partners(linked, entries) == sides
