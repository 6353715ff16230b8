"""Pairs prove nothing until enough of them in a row agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.nccl.bylength import NEEDED_BITS, _sure


def _plain(agrees: list[bool], bits: list[float]) -> list[bool]:
    """Looks both ways from each pair, to the next that does not agree or to the end."""
    kept = []
    for at in range(len(agrees)):
        before = after = 0.0
        for k in range(at - 1, -1, -1):
            if not agrees[k]:
                break
            before += bits[k]
        for k in range(at + 1, len(agrees)):
            if not agrees[k]:
                break
            after += bits[k]
        kept.append(agrees[at] and before >= NEEDED_BITS and after >= NEEDED_BITS)
    return kept


@given(st.lists(st.tuples(st.booleans() | st.just(True), st.sampled_from([0.0, 1.0, 4.0, 8.0])), max_size=30))
def test_pairs_are_sure_that_have_enough_agreement_on_both_sides(pairs: list[tuple[bool, float]]) -> None:
    agrees, bits = [agree for agree, _ in pairs], [bit for _, bit in pairs]
    found = _sure(np.array(agrees, np.bool_), np.array(bits, np.float64), whole=False)
    assert found.tolist() == _plain(agrees, bits)


def test_where_no_kernel_is_missing_all_that_agree_are_sure() -> None:
    agrees, bits = np.ones(5, np.bool_), np.ones(5)
    assert _sure(agrees, bits, whole=True).all()
    assert not _sure(agrees, bits, whole=False).any()
