"""Ranges among the ops, as recordings of 2021 have them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from graphlink.read.kineto import read_kineto

SHARED = Path(__file__).parents[3] / "shared/traces"
MODERN = ("megatron-tp2-v100/kineto_0", "resnet-ddp2-a100/kineto_0", "dlrm8-v100/kineto_0", "deepseek/dualpipe_train")


def op(name, ts, dur, *, cat="Operator", tid="25738", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": tid, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def ranges_of(tmp_path):
    def names(*rows):
        path = tmp_path / "kineto.json"
        path.write_text(json.dumps({"traceEvents": rows}))
        host = (trace := read_kineto(path)).host
        return [trace.strings[k] for k in host.name[host.annotation]]

    return names


@pytest.mark.parametrize("category", ["Operator", "cpu_op"])
@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#7",
        "ProfilerStep #7",
        "Optimizer.step#SGD.step",
        "enumerate(DataLoader)#_Iter.__next__",
        "nccl:all_reduce",
    ],
)
def test_names_that_pytorch_gives_to_ranges_are_ranges_in_any_category(ranges_of, category, name):
    assert ranges_of(op(name, 0, 90, cat=category), op("aten::add", 10, 5, cat=category)) == [name]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::add", {}),
        ("mylib::block", {}),
        ("ReluBackward1", {}),
        ("torch::autograd::CppNode<Lookup>", {}),
        ("autograd::engine::evaluate_function: AddmmBackward0", {}),
        ("record_param_comms", {}),
        ("MyFunction", {"Input Dims": [[4, 4]]}),
        ("MyFunction", {"Input dims": [[4, 4]]}),  # as written early in 2021
        ("MyFunction", {"Sequence number": 12}),
        ("MyFunction", {"Fwd thread id": 1}),
    ],
)
def test_operators_and_autograd_nodes_are_ops_though_others_run_inside(ranges_of, name, args):
    assert ranges_of(op(name, 0, 90, **args), op("aten::add", 10, 5)) == []


def test_what_a_user_named_is_a_range_if_it_has_neither_inputs_nor_a_number_and_ops_run_inside(ranges_of):
    assert ranges_of(op("forward", 0, 90, **{"Input dims": []}), op("aten::add", 10, 5)) == ["forward"]


def test_a_name_that_no_op_can_have_is_a_range_with_nothing_inside(ranges_of):
    assert ranges_of(op("## zero grad ##", 0, 9), op("aten::add", 10, 5)) == ["## zero grad ##"]


def test_a_bare_name_with_nothing_inside_stays_an_op(ranges_of):
    inside_of_another_thread = op("aten::add", 1, 2, tid="9")
    assert ranges_of(op("detach_", 0, 9), inside_of_another_thread, op("aten::add", 9, 5)) == []


def test_where_the_writer_tells_ranges_apart_it_is_believed(ranges_of):
    rows = [op("forward", 0, 90, cat="cpu_op"), op("aten::add", 10, 5, cat="cpu_op")]
    assert ranges_of(*rows) == []
    assert ranges_of(*rows, op("step", 0, 99, cat="user_annotation")) == ["step"]


@pytest.mark.parametrize("name", MODERN)
def test_ranges_of_new_recordings_are_found_without_their_category(name, tmp_path):
    """Written as in 2021, all of the ranges are found and nothing else."""
    path = SHARED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    document = json.loads(gzip.decompress(path.read_bytes()))
    rows = [row for row in document["traceEvents"] if row.get("cat") in ("cpu_op", "user_annotation")]
    true = sorted((row["ts"], row["name"]) for row in rows if row["cat"] == "user_annotation")
    old = tmp_path / "old.json"
    old.write_text(json.dumps(document | {"traceEvents": [row | {"cat": "Operator"} for row in rows]}))
    trace = read_kineto(old)
    found = np.flatnonzero(trace.host.annotation)
    assert sorted(trace.strings[k] for k in trace.host.name[found].tolist()) == sorted(text for _, text in true)
