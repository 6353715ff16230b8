"""How the time of ops divides over their proxies' states: exact, as a count of every ns has it, and as the simulation
had it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.nccl.join import shares
from graphlink.nccl.read.records import State
from tests.nccl.joined import Joined, join_run
from tests.simulator import ClusterTraining, cluster_run
from tests.simulator.nccl_records import NcclProfile, TrueStep

Step = tuple[int, int, int, int]  # op, state, start, end
NAMES = {"gpu": State.GPU, "peer": State.PEER, "wire": State.WIRE, "receive": State.RECEIVE}
steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(list(State)), st.integers(0, 30), st.integers(0, 30)).map(
        lambda s: (s[0], int(s[1]), min(s[2:]), max(s[2:]))
    ),
    max_size=12,
)


def ns_by_ns(given_steps: list[Step], count: int) -> list[list[Fraction]]:
    """Each ns belongs in equal parts to the steps in progress."""
    sums = [[Fraction(0)] * len(State) for _ in range(count)]
    for op in range(count):
        own = [step for step in given_steps if step[0] == op]
        for ns in range(max((step[3] for step in own), default=0)):
            active = [step for step in own if step[2] <= ns < step[3]]
            for _, state, _, _ in active:
                sums[op][state] += Fraction(1, len(active))
    return sums


@given(steps)
def test_shares_are_those_of_a_count_of_every_ns(given_steps: list[Step]) -> None:
    own, state, start, end = (np.array([step[k] for step in given_steps], np.int64) for k in range(4))
    found = shares(own, state.astype(np.uint8), start, end, 3)
    expected = ns_by_ns(given_steps, 3)
    for op in range(3):
        covered = {ns for step in given_steps if step[0] == op for ns in range(step[2], step[3])}
        assert found[op].sum() == len(covered)
        for state_of in State:  # each of at most 24 pieces is cut at rounded places
            assert abs(found[op, state_of] - expected[op][state_of]) <= 24


def test_one_state_alone_has_all_of_its_time_and_two_share() -> None:
    own = np.zeros(2, np.int64)
    state = np.array([State.GPU, State.WIRE], np.uint8)
    found = shares(own, state, np.array([0, 50]), np.array([100, 150]), 1)
    assert found.tolist() == [[75, 0, 75, 0]]


@pytest.fixture(scope="module", params=["plugin", "plugin-2.30", "proxy"])
def joined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Joined:
    run = cluster_run(ClusterTraining(data=2, tensor=2, steps=6, host_jitter_ns=20_000, seed=4))
    return join_run(run, tmp_path_factory.mktemp("run"), NcclProfile(kind=request.param, proxy_steps=True), ranks=(1,))[
        0
    ]


def test_the_parts_are_the_whole(joined: Joined) -> None:
    split, ops = joined.joined.split, joined.joined.ops
    parts = split.gpu_ns + split.peer_ns + split.wire_ns + split.receive_ns + split.other_ns
    assert (parts == ops.end_ns[split.op] - ops.start_ns[split.op]).all()
    assert (np.stack([split.gpu_ns, split.peer_ns, split.wire_ns, split.receive_ns, split.other_ns]) >= 0).all()
    assert split.op.tolist() == joined.joined.op.tolist()


def test_the_parts_are_those_of_the_simulation(joined: Joined) -> None:
    """Within what the offset of the dump's clock, told by launches, is off by."""
    split = joined.joined.split
    true = dict(
        zip(
            joined.joined.op.tolist(),
            zip(joined.joined.dump.tolist(), joined.joined.call.tolist(), strict=True),
            strict=True,
        )
    )
    offsets = [clock.offset_ns for clock in joined.joined.clocks]
    kind = joined.dumps[0].kind.value
    for k, op in enumerate(split.op.tolist()):
        dump, call = true[op]
        told = joined.files[dump].calls[call]
        offset = offsets[dump]
        assert offset is not None
        off_ns = abs(offset - told.offset_ns)
        assert off_ns < 5_000
        expected = _shares(told.steps, kind)
        found = (split.gpu_ns[k], split.peer_ns[k], split.wire_ns[k], split.receive_ns[k])
        assert found == pytest.approx(expected, abs=2 * off_ns + 100)


def _shares(steps_of: tuple[TrueStep, ...], kind: str) -> list[float]:
    """One moment after the other; the proxy profiler has no state of its own for the peer."""
    bounds = sorted({ns for step in steps_of for ns in step[1:]})
    sums = [0.0] * len(State)
    for low, high in pairwise(bounds):
        active = [step for step in steps_of if step.start_ns <= low and step.end_ns >= high]
        for step in active:
            state = "gpu" if kind == "proxy" and step.state == "peer" else step.state
            sums[NAMES[state]] += (high - low) / len(active)
    return sums


def test_ops_without_steps_are_not_split(tmp_path: Path) -> None:
    run = cluster_run(ClusterTraining(data=2, tensor=2, steps=6, host_jitter_ns=20_000, seed=4))
    (one,) = join_run(run, tmp_path, NcclProfile(), ranks=(1,))
    assert len(one.joined.op) > 0
    assert len(one.joined.split.op) == 0
