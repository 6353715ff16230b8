from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.linking.launch import cut_calls, link
from graphlink.linking.match import match_hosts
from tests.build import Call, Host, build_trace

times = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
threads = st.integers(1, 2)


def test_a_call_ends_where_the_next_call_or_op_begins_or_its_op_ends() -> None:
    rows = [Host("op", 0, 20), Host("late", 60, 70), Host("range", 41, 99, annotation=True, tid=2)]
    calls = [
        Call("over", 5, 12, 1),
        Call("next", 10, 11, 2),
        Call("out", 15, 30, 3),
        Call("onto", 50, 65, 4),
        Call("elsewhere", 40, 45, 5, tid=2),
    ]
    trace = build_trace(rows, calls)
    cut = link(trace, None, match_hosts(trace, None))
    assert dict(
        zip(
            [1, 2, 3, 4, 5],
            (cut.trace.calls.end_ns[np.argsort(cut.trace.calls.correlation)] // 1000).tolist(),
            strict=True,
        )
    ) == {
        1: 10,
        2: 11,
        3: 20,
        4: 60,
        5: 41,
    }
    assert any(w.startswith("4 API calls") for w in cut.warnings)


@given(
    st.lists(st.tuples(times, threads), max_size=8),
    st.lists(st.tuples(times, threads), max_size=8),
    st.sampled_from([0, 1000]),
)
def test_no_call_runs_over_anything_of_its_thread(
    calls: list[tuple[list[int], int]], rows: list[tuple[list[int], int]], slack_ns: int
) -> None:
    trace = build_trace(
        [Host("op", a, b, tid=t) for (a, b), t in rows], [Call("call", a, b, 0, tid=t) for (a, b), t in calls]
    )
    ends = cut_calls(trace, np.zeros(len(rows), np.bool_), slack_ns)
    made = sorted(
        zip(
            trace.calls.tid.tolist(),
            trace.calls.start_ns.tolist(),
            ends.tolist(),
            trace.calls.end_ns.tolist(),
            strict=True,
        )
    )
    marks = [(t, at) for (a, b), tid in rows for t, at in ((tid, a * 1000), (tid, b * 1000))]
    for k, (tid, start, end, before) in enumerate(made):
        stops = [at for t, at in marks if t == tid and at > start + slack_ns] + [
            s for t, s, _, _ in made[k + 1 :] if t == tid
        ]
        stop = min([before, *stops])
        assert end == (stop if before - stop > slack_ns else before)
