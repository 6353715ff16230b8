"""Whether late starts of one length are told, and irregular, usual or few ones are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.causes import CauseName
from graphlink.gpu.records import IdleEntry
from graphlink.gpu.table import late_starts

SLICE_NS = 2_400_000
USUAL_NS = 2_000


def entry(start_ns: int, end_ns: int, cause: CauseName) -> IdleEntry:
    return IdleEntry(device=0, start_ns=start_ns, end_ns=end_ns, cause=cause, evidence="")


def gaps(late: list[tuple[int, int]], usual: int = 40) -> list[IdleEntry]:
    """Idle time, each as long as the first of a pair, of which the host had the second; and before it some
    short ones.
    """
    out, at = [], 0
    for length, host in [*[(USUAL_NS, 0)] * usual, *late]:
        out += [entry(at, at + host, "host_work")] if host else []
        out.append(entry(at + host, at + length, "start_delay"))
        at += length + 5_000
    return out


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 90)), min_size=10, max_size=30))
def test_time_slices_are_told_whatever_the_host_did_in_them(drawn: list[tuple[int, int]]) -> None:
    late = [(SLICE_NS + wide * SLICE_NS // 100, host * SLICE_NS // 100) for wide, host in drawn]
    found = late_starts(gaps(late))
    assert found is not None
    assert (found.count, found.alike) == (len(late), len(late))
    assert abs(found.gap_ns - SLICE_NS) <= SLICE_NS // 50
    assert found.late_ns + found.other_ns == sum(length for length, _ in late)
    assert found.other_ns == sum(host for _, host in late)


@pytest.mark.parametrize(
    ("late", "usual"),
    [
        ([(SLICE_NS, 0)] * 9, 40),  # few
        ([(SLICE_NS * (8 + k) // 16, 0) for k in range(20)], 40),  # of any length
        ([(30_000, 0)] * 30, 0),  # what starts take on this device
        ([], 40),
        ([(SLICE_NS, SLICE_NS - 1_000)] * 20, 40),  # the host's time is as regular, but no start is late
    ],
)
def test_nothing_is_told_without_evidence(late: list[tuple[int, int]], usual: int) -> None:
    assert late_starts(gaps(late, usual)) is None


def test_a_device_that_was_never_idle_has_none() -> None:
    assert late_starts([]) is None
