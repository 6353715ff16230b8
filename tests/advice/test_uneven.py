"""Why the same kernels take longer in some steps than in others."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.advice.uneven import why_uneven


@pytest.mark.parametrize(
    ("own_us", "what", "why"),
    [
        ([2510, 2565, 3300, 7690], "another process takes turns on the GPU", "of 0.023 to 5.180 ms each take 2.5"),
        (
            [35, 90, 1210, 7770],
            "the clock of the GPU is lower in some steps",
            "of 0.023 to 5.180 ms each take 1.50 times",
        ),
        ([35, 62, 2400, 5190], "the same kernels take longer in some steps", "1.3 times as long"),
    ],
)
def test_equal_turns_and_equal_factors_have_a_cause(own_us: list[int], what: str, why: str) -> None:
    """As in ``shared-gpu`` of the kit, where kernels of any length take 2.50 to 2.54 ms more."""
    told = why_uneven(*(np.array(us, np.int64) * 1000 for us in (own_us, [23, 60, 800, 5180])))
    assert told[0] == what and why in told[1]


def test_kernels_of_one_length_tell_neither() -> None:
    told = why_uneven(np.array([2510, 2520, 2530]) * 1000, np.array([23, 24, 25]) * 1000)
    assert told[0] == "the same kernels take longer in some steps"
