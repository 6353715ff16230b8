"""Options and the names of recordings are refused where they are made, with the field, the value and what is
allowed.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from graphlink.depend.build import BuildOptions
from graphlink.errors import InputError, UsageError
from graphlink.run.options import Inputs, Options, Recordings

BAD: list[tuple[str, Any, str]] = [
    ("step", "last", "neither all"),
    ("step", 3, "'3'"),
    ("sync", "cupti", "both, hta, cuda"),
    ("hta_limit", -1, "from 0"),
    ("hta_limit", 1e6, "whole number"),
    ("target", "astra", "astra-sim, chakra"),
    ("gap_ns", -5, "from 0"),
    ("gap_ns", 20.5, "whole number"),
    ("gap_ns", True, "whole number"),
    ("linked", "yes", "True or False"),
    ("host", "half", "full, launches"),
    ("timeline", "", "recorded, both, none"),
    ("name", "a/b", "file name"),
    ("name", ".hidden", "file name"),
    ("comm_time", None, "recorded, transfer"),
    ("keep_unmatched", 1, "True or False"),
    ("range_rules", "F.*", "tuple"),
    ("range_rules", ("F[",), "F["),
    ("range_rules", ("F.*",), "phase"),
]


@pytest.mark.parametrize(("field", "value", "allowed"), BAD)
def test_a_bad_value_is_refused_where_it_is_made(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(UsageError) as refused:
        Options(**{field: value})
    text = refused.value.text()
    shown = str(value[0] if isinstance(value, tuple) else value)
    assert field.replace("_", "-").rstrip("s") in text.replace("_", "-") and shown in text and allowed in text
    assert len(text.splitlines()) <= 5


def test_every_field_of_the_options_has_a_bad_value_here_and_a_line_in_the_help() -> None:
    fields = {field.name for field in dataclasses.fields(Options)}
    assert {field for field, _, _ in BAD} == fields
    for kind in (Options, Inputs, BuildOptions, Recordings):
        for field in dataclasses.fields(kind):
            assert f"\n    {field.name}: " in (inspect.getdoc(kind) or ""), (kind, field.name)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, v, _ in BAD if f in ("sync", "gap_ns", "hta_limit")])
def test_the_options_of_the_stage_are_refused_alike(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=field):
        BuildOptions(**{field: value})


def test_a_rank_without_a_recording_is_refused() -> None:
    with pytest.raises(UsageError, match="kineto and nsys"):
        Inputs()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({}, "no Kineto trace"),
        ({"et": ("et_0.json",)}, "no Kineto trace"),
        ({"folders": ("a",), "kineto": ("b",)}, "folders and kineto"),
        ({"kineto": ("a",), "nsys": ("b",)}, "kineto and nsys"),
        ({"folders": ("a",), "et": ("b",)}, "folders and et"),
        ({"nsys": ("a",), "nccl": ("b",)}, "nsys and nccl"),
        ({"nsys": ("a",), "strict": True}, "nsys and strict"),
        ({"paddle_logs": "a", "rank": 0}, "paddle_logs and rank"),
        ({"paddle_logs": "a", "kineto": ("b",)}, "kineto and paddle_logs"),
        ({"paddle_logs": ""}, "paddle_logs=''"),
        ({"folders": ("a",), "rank": -1}, "rank=-1"),
    ],
)
def test_recordings_that_do_not_go_together_are_refused(named: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Recordings(**named)


def test_a_recording_whose_name_no_json_can_hold_is_refused() -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        Inputs(kineto=Path(os.fsdecode(b"kineto_\xff.json")))
