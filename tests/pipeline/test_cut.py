"""Stages cut into parts of as many layers, which take what was recorded."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.pipeline.records import Pass
from graphlink.pipeline.theory import ByPhase, cut, shares, told

EMBEDDED: ByPhase = {
    Pass.F: (2, 10, 10, 0),
    Pass.B: (0, 10, 30, 0),
}  # an embedding; the first layer has no input gradient
LOSS: ByPhase = {Pass.F: (0, 10, 10, 5), Pass.B: (0, 30, 30, 15)}


def parts(phase: Pass, durations: list[int], count: int, *layers: ByPhase) -> list[int]:
    return cut(np.array(durations), count, [shares(phase, of) for of in layers]).tolist()


def test_a_part_takes_what_its_layers_do_and_the_sum_stays() -> None:
    assert parts(Pass.F, [44, 50], 4, EMBEDDED, LOSS) == [24, 20, 20, 30]
    assert parts(Pass.B, [400, 750], 4, EMBEDDED, LOSS) == [100, 300, 300, 450]
    assert parts(Pass.B, [400, 750], 8, EMBEDDED, LOSS) == [50, 50, 150, 150, 150, 150, 150, 300]
    assert parts(Pass.B, [400, 750], 1, EMBEDDED, LOSS) == [1150]
    assert parts(Pass.B, [400, 750], 3, EMBEDDED, LOSS) == [200, 400, 550]


def test_what_is_not_known_is_spread_evenly() -> None:
    assert parts(Pass.F, [44, 50], 4, {}, LOSS) == [22, 22, 20, 30]
    assert parts(Pass.W, [400, 400], 4, EMBEDDED, {}) == [100, 300, 200, 200]  # as the backward that it is a part of


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([EMBEDDED, LOSS], "a layer takes what the recording shows"),
        (
            [EMBEDDED, {Pass.F: LOSS[Pass.F]}],
            "a layer takes what the recording shows; it shows none for 1 part, whose time is spread evenly",
        ),
        ([{}, {}], "the recording does not show layers, so a part's time is spread evenly over them"),
    ],
)
def test_it_is_said_which(layers: list[ByPhase], words: str) -> None:
    assert told(layers) == words
