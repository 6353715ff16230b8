"""Matching and launches on public traces; what is expected of each is in their README."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from graphlink.errors import InputError
from graphlink.linking.communication import communication
from graphlink.linking.launch import BEFORE_WINDOW, link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, CommKind, Linked
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from tests.comm_ops import listed

TRACES = Path(__file__).parents[3] / "shared" / "traces"
long = pytest.mark.long
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")


def linked(kineto: str, et: str | None = None) -> Linked:
    trace = read_kineto(TRACES / f"{kineto}.json.gz")
    nodes = read_host(TRACES / f"{et}.json.gz") if et else None
    return link(trace, nodes, match_hosts(trace, nodes))


@pytest.mark.parametrize(
    ("kineto", "et", "method", "matched", "unmatched"),
    [
        ("megatron-tp2-v100/kineto_0", "megatron-tp2-v100/et_0", "rf_id", 1880, 0),
        ("megatron-tp2-v100/kineto_1", "megatron-tp2-v100/et_1", "rf_id", 1880, 0),
        pytest.param("resnet-ddp2-a100/kineto_0", "resnet-ddp2-a100/et_0", "rf_id", 14388, 0, marks=long),
        *((f"dlrm8-v100/kineto_{r}", f"dlrm8-v100/et_{r}", "order", 1672, 1) for r in range(8)),
        ("dlrm8-v100/kineto_0", "dlrm8-v100/et_plus_reference_0", "order", 1672, 1),
        ("vgg13-h100/kineto_0", "vgg13-h100/et_0", "order", 900, 0),
        ("simple-add-a100/kineto_0", "simple-add-a100/et_0", "order", 36, 0),
        pytest.param("partial-et/kineto_0", "partial-et/et_0", "order", 1310, 38196, marks=long),
        *(
            pytest.param(
                f"pipelining-cpu/{run}/kineto_{r}", f"pipelining-cpu/{run}/et_{r}", "rf_id", None, 0, marks=long
            )
            for run in ("1f1b", "interleaved-zb")
            for r in range(4)
        ),
    ],
)
def test_pairs_match_under_equal_names(kineto: str, et: str, method: str, matched: int | None, unmatched: int) -> None:
    got = linked(kineto, et)
    assert got.et is not None
    rows = np.flatnonzero(got.match.et != NOWHERE)
    assert got.match.method == method
    assert len(rows) == (matched if matched is not None else len(got.match.et))
    assert len(got.match.et) - len(rows) == unmatched == sum(got.match.only_kineto.values())
    nodes = got.match.et[rows]
    assert len(set(nodes.tolist())) == len(nodes)
    host = got.trace.host
    names = zip(host.name[rows].tolist(), got.et.name[nodes].tolist(), strict=True)
    assert all(got.trace.strings[a] == got.et.strings[b] for a, b in names)


@long
def test_two_runs_are_refused() -> None:
    with pytest.raises(InputError, match=r"14388 ids are in both, but only 3658"):
        linked("mismatched-pair/kineto_0", "mismatched-pair/et_0")


@long
def test_two_runs_of_one_program_link_with_warnings() -> None:
    got = linked("resnet-ddp2-a100/kineto_0", "resnet-ddp2-a100/et_0")
    text = "\n".join(got.warnings)
    assert "pid (ET 3233936, Kineto 2910249)" in text
    assert "date (ET 2024-04-17" in text
    assert "size of process group '0' (ET 1, Kineto 2)" in text
    assert communication(got).ops.groups[0][0] == (0, 1)


@long
def test_a_partial_et_lies_in_the_iteration_with_its_sequence_numbers() -> None:
    got = linked("partial-et/kineto_0", "partial-et/et_0")
    assert got.et is not None
    rows = np.flatnonzero(got.match.et != NOWHERE)
    ours, theirs = got.trace.host.seq_id[rows], got.et.seq_id[got.match.et[rows]]
    known = (ours >= 0) & (theirs >= 0)
    assert known.any()
    assert (ours[known] == theirs[known]).all()
    assert any("the ET covers 1310 of 39506" in w for w in got.warnings)


@pytest.mark.parametrize(
    ("kineto", "ops", "before_window"),
    [
        ("megatron-tp2-v100/kineto_0", 245, 0),
        pytest.param("resnet-ddp2-a100/kineto_0", 3774, 0, marks=long),
        ("dlrm8-v100/kineto_1", 326, 64),
        ("vgg13-h100/kineto_0", 325, 0),
        pytest.param("rocm/mi300_resnet_rank0of8", 3653, 968, marks=long),
        pytest.param("legacy/sendrecv_graph_launch_5streams", 7747, 872, marks=long),
        ("legacy/categories_2021", 4, 0),
        ("legacy/triton_example", 1, 0),
    ],
)
def test_device_ops_have_a_call_or_a_reason(kineto: str, ops: int, before_window: int) -> None:
    got = linked(kineto)
    assert len(got.device_call) == ops
    assert got.orphans == ({BEFORE_WINDOW: before_window} if before_window else {})
    assert np.count_nonzero(got.device_call == NOWHERE) == before_window


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("megatron-tp2-v100", {("ALL_REDUCE", 24576): 10, ("ALL_REDUCE", 2048): 3}),
        (
            "dlrm8-v100",
            {
                ("ALL_TO_ALL", 24576): 2,
                ("ALL_TO_ALL", 192): 1,
                ("ALL_TO_ALL", 1536): 1,
                ("ALL_TO_ALL", 13568): 1,
                ("ALL_REDUCE", 1576964): 1,
                ("ALL_REDUCE", 448): 1,
                ("ALL_REDUCE", 907840): 1,
            },
        ),
    ],
)
def test_collectives_are_typed_and_sized(folder: str, expected: dict[tuple[str, int], int]) -> None:
    got = communication(linked(f"{folder}/kineto_0", f"{folder}/et_0"))
    assert Counter((n.name, n.bytes) for n in listed(got.ops)) == expected
    assert len(got.ops.groups) == 1


@pytest.mark.parametrize("run", ["1f1b", pytest.param("interleaved-zb", marks=long)])
def test_every_gloo_range_is_a_send_or_receive_and_both_ends_agree(run: str) -> None:
    sends: Counter[tuple[int, ...]] = Counter()
    recvs = Counter(sends)
    for rank in range(4):
        got = linked(f"pipelining-cpu/{run}/kineto_{rank}", f"pipelining-cpu/{run}/et_{rank}")
        comm = communication(got)
        assert len(comm.host_row) == np.count_nonzero(got.crossing)
        for op in listed(comm.ops):
            ends, way = (sends, (rank, op.peer)) if op.kind is CommKind.SEND else (recvs, (op.peer, rank))
            ends[(*way, op.tag, op.bytes)] += 1
    assert sends == recvs
    assert sum(sends.values()) > 0
