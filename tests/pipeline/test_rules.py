"""Names of pipeline ranges by framework; the names are those that the frameworks' sources write."""

from __future__ import annotations

import pytest

from graphlink.errors import UsageError
from graphlink.model import NOWHERE
from graphlink.pipeline.named_ranges import OPTIMIZER, RULES, Reading, readings, user_rules
from graphlink.pipeline.records import Pass
from graphlink.steps import STEP_MARK

F, B, I, W, OPT = Pass.F, Pass.B, Pass.I, Pass.W, Pass.OPT  # noqa: E741


@pytest.mark.parametrize(
    ("name", "rule", "says"),
    [
        ("PP:2F0", "torch-pipelining", [Reading(F, stage=2, microbatch=0)]),
        ("PP:12W31", "torch-pipelining", [Reading(W, stage=12, microbatch=31)]),
        ("PP:4I7", "torch-pipelining", [Reading(I, stage=4, microbatch=7)]),
        (
            "PP:(0F8;3B2)OVERLAP_F_B",
            "torch-pipelining",
            [Reading(F, stage=0, microbatch=8), Reading(B, stage=3, microbatch=2)],
        ),
        ("PP:3SEND_F1", "torch-pipelining", []),
        ("PP:1UNSHARD", "torch-pipelining", []),
        ("F128.10.10", "zero-bubble", [Reading(F, chunk=10, microbatch=128)]),
        ("B0.1.0", "zero-bubble", [Reading(B, chunk=1, microbatch=0)]),
        ("W_clear.0.0", "zero-bubble", [Reading(W, chunk=0)]),
        ("R3.0.0", "zero-bubble", []),
        ("SEND_BACKWARD.7.0.0_RECV_FORWARD.28.0.0", "zero-bubble", []),
        ("Optimizer", "zero-bubble", [Reading(OPT)]),
        ("Forward 3", "torch-gpipe", [Reading(F, microbatch=3)]),
        ("Stage 2 Backward", "torch-gpipe", [Reading(B, stage=2)]),
        ("Cooldown 1", "torch-gpipe", []),
        ("attn(F)", "dualpipe", [Reading(F)]),
        ("mlp(W)", "dualpipe", [Reading(W)]),
        ("dispatch(B)", "dualpipe", []),
        ("layer_3f", "megatron", [Reading(F, layer=3)]),
        ("layer_3b", "megatron", [Reading(B, layer=3)]),
        ("layer_11f-layer_0b", "megatron", []),
        ("send_forward_recv_backward", "megatron", []),
        ("send_forward_backward_recv_forward_backward", "megatron", []),
        ("megatron.core.pipeline_parallel.p2p_communication.recv_forward", "megatron", []),
        ("DeepSpeedEngine.forward", "deepspeed", [Reading(F)]),
        ("DeepSpeedEngine.step", "deepspeed", [Reading(OPT)]),
        ("DeepSpeedEngine.allreduce_gradients", "deepspeed", []),
        ("backward-compute", "vescale", [Reading(B)]),
        ("cross-mesh-recv", "vescale", []),
        ("forward-send-backward-recv", "vescale", []),
        ("forward", "generic", [Reading(F)]),
        ("bwd_7", "generic", [Reading(B, microbatch=7)]),
        ("W", "generic", [Reading(W)]),
        ("Optimizer.step#AdamW.step", "optimizer", [Reading(OPT)]),
    ],
)
def test_a_name_says(name: str, rule: str, says: list[Reading]) -> None:
    found, read = readings([name], (*RULES, OPTIMIZER))[name]
    assert found.name == rule
    assert list(read) == says


@pytest.mark.parametrize(
    "name", ["aten::forward_hook", "Forward 3x", "PP:F0", "layer_norm", "Backward", "F0.0", "nccl:send", "", "1F1B "]
)
def test_a_name_that_is_no_range_says_nothing(name: str) -> None:
    assert name not in readings([name], (*RULES, OPTIMIZER))


@pytest.mark.parametrize("name", ["ProfilerStep#3", "iteration7", "train_step", "iter_0_12", "iteration 7"])
def test_a_step_mark_is_one(name: str) -> None:
    assert STEP_MARK.fullmatch(name)
    assert STEP_MARK.search(name)
    assert not STEP_MARK.search(f"after_{name}")


def test_a_rule_of_the_user_goes_first_and_its_words_are_translated() -> None:
    rules = user_rules([r"(?P<phase>fwd|bwd) mb(?P<microbatch>\d+) st(?P<stage>\d+)"])
    found = readings(["bwd mb3 st1", "fwd mb3 st1", "PP:0F0"], (*rules, *RULES))
    assert found["bwd mb3 st1"][1] == (Reading(B, stage=1, chunk=NOWHERE, microbatch=3),)
    assert found["fwd mb3 st1"][0] is rules[0]
    assert found["PP:0F0"][0].name == "torch-pipelining"


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(", "is no regular expression"),
        (r"F(?P<microbatch>\d+)", "has no group"),
        (r"(?P<phase>F)(?P<rank>\d)", "has a group 'rank'"),
    ],
)
def test_a_rule_of_the_user_that_cannot_be_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        user_rules([pattern])
