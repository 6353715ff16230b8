"""Regular expressions of users: as ``re`` has them, and never endless."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink import patterns
from graphlink.errors import UsageError
from graphlink.patterns import UserPattern
from graphlink.pipeline.named_ranges import user_rules
from graphlink.replay.changes import parse_scale

CATASTROPHIC = r"(?P<phase>F)(a|aa)+c?d"
NAME = "F" + "a" * 80
PIECES = st.sampled_from(
    ["a", "b", ".", "\\d", "1", "[ab]", "(?:ab|a)", "(a)", "x*", "b+", "a?", "^", "$", "{2}", "a{1,3}", " "]
)


@given(st.lists(PIECES, max_size=6).map("".join), st.text("ab1x {}", max_size=8))
def test_it_finds_what_re_finds(text: str, name: str) -> None:
    try:
        expected = re.compile(text)
    except re.error:
        with pytest.raises(UsageError, match="no regular expression"):
            UserPattern(text, "--x")
        return
    made = UserPattern(text, "--x")
    for found, wanted in ((made.fullmatch(name), expected.fullmatch(name)), (made.search(name), expected.search(name))):
        assert (found and found.span()) == (wanted and wanted.span())


@pytest.mark.parametrize(
    "name", ["aten::add", "torch::autograd::AccumulateGrad", "ReluBackward1", "MulBackward0 (cont.)", "a\n::b"]
)
def test_an_operator_is_one(name: str) -> None:
    assert patterns.OPERATOR.search(name)


@pytest.mark.parametrize("name", ["forward", "ReluBackward1 of mine", "record_param_comms_2", "MulBackward0\n", "end"])
def test_what_is_no_operator_is_none(name: str) -> None:
    assert not patterns.OPERATOR.search(name)


def test_a_catastrophic_expression_ends_with_its_name_and_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_SECONDS", 0.05)
    (rule,) = user_rules([CATASTROPHIC])
    with pytest.raises(UsageError, match="--range-rule") as said:
        rule.read(NAME)
    assert len(said.value.text().splitlines()) <= 5
    pattern = parse_scale("kernel:(a|aa)+c?d=0.5").name
    assert pattern is not None
    with pytest.raises(UsageError, match="--scale kernel:"):
        pattern.search(NAME)


def test_the_time_is_of_all_names_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_SECONDS", 0.2)
    made = UserPattern(r"(a|aa)+c?d", "--x")
    with pytest.raises(UsageError):
        for _ in range(10_000):
            made.fullmatch("a" * 22)


@pytest.mark.parametrize("text", ["(?:a{1000}){1000}", "((a{99}){99}){99}", "a" * 10_001, "(a){99999999999999999999}"])
def test_an_expression_that_takes_gigabytes_to_compile_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="too large"):
        UserPattern(text, "--x")


@pytest.mark.parametrize("text", [r"(\d{1,3}\.){3}\d{1,3}", r"\w{1,60}", r"x{,5}", r"layer_(?P<phase>[fb])"])
def test_counts_that_people_write_are_taken(text: str) -> None:
    UserPattern(text, "--x")
