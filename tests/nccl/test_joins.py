"""Calls of side files of simulated clusters meet their kernels, or are left with a reason; none meets another's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlink.linking.communication import communication
from tests.nccl.joined import Joined, join_run
from tests.simulator import (
    ClusterRun,
    ClusterTraining,
    Differs,
    Dropped,
    EarlyEnd,
    Fault,
    LateStart,
    OtherOrder,
    cluster_run,
)
from tests.simulator.nccl_records import KINDS, NcclProfile

TRAINING = ClusterTraining(data=2, tensor=2, pipeline=2, steps=6, host_jitter_ns=20_000, seed=1)
FAULTS = {
    "none": {},
    "began late": {"began": 0.4},
    "ended early": {"ended": 0.5},
    "ring": {"last": 8},
    "gaps": {"dropped": 0.2},
    "small messages left out": {"min_bytes": 8_192},
    "messages in pairs": {"message_pairs": True},
    "proxies": {"proxy_steps": True},
    "GPU clocks off": {"kernel_channels": True},
}
TIMED = tuple(kind for kind in KINDS if kind != "inspector")


@pytest.fixture(scope="module")
def run() -> ClusterRun:
    return cluster_run(TRAINING)


def _check(found: list[Joined]) -> None:
    for one in found:
        one.check_counts()
        assert one.wrong() == []


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(
            kind, fault, marks=() if kind == "plugin" or fault == "none" or (k + n) % 3 == 0 else pytest.mark.long
        )
        for k, kind in enumerate(TIMED)
        for n, fault in enumerate(FAULTS)
    ],
)
def test_calls_with_times_or_numbers_all_meet_their_kernels(
    run: ClusterRun, kind: str, fault: str, tmp_path: Path
) -> None:
    found = join_run(run, tmp_path, NcclProfile(kind=kind, **FAULTS[fault]), ranks=(0, 5))
    _check(found)
    for one in found:
        assert len(one.joined.op) == one.possible()


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_another_rank_of_the_process_are_not_taken_for_ones_own(
    run: ClusterRun, kind: str, tmp_path: Path
) -> None:
    found = join_run(run, tmp_path, NcclProfile(kind=kind, ranks_a_process=2), ranks=(0, 5))
    _check(found)
    for one in found:
        assert set(one.left()) <= {"several ranks in a process", "another rank", "no group of the trace", "ambiguous"}
        named = kind.startswith(("flight", "proxy"))  # a file a rank
        assert len(one.joined.op) == (one.possible() if named else 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_logs_without_times_are_left_with_that_reason(run: ClusterRun, fault: str, tmp_path: Path) -> None:
    found = join_run(run, tmp_path, NcclProfile(kind="inspector", **FAULTS[fault]), ranks=(0, 5))
    _check(found)
    assert all(set(one.left()) <= {"no time", "another rank"} for one in found)
    assert all(one.left()["no time"] >= one.possible() for one in found)
    assert not any(len(one.joined.op) for one in found)


@pytest.mark.parametrize("kind", ["plugin", "plugin-2.30", "proxy", "inspector", "inspector-verbose"])
def test_a_cut_file_gives_what_it_holds(run: ClusterRun, kind: str, tmp_path: Path) -> None:
    found = join_run(run, tmp_path, NcclProfile(kind=kind, cut=0.7), ranks=(0,))
    _check(found)
    assert found[0].joined.groups
    if kind != "inspector":
        assert sum(len(dump.calls.rank) for dump in found[0].dumps) == len(found[0].joined.op)


@pytest.mark.parametrize("kind", ["plugin", "inspector-verbose"])
def test_numbers_place_calls_without_times_where_none_is_missing(run: ClusterRun, kind: str, tmp_path: Path) -> None:
    (one,) = join_run(run, tmp_path, NcclProfile(kind=kind, zero_times=0.3), ranks=(0,))
    _check([one])
    untimed = sum(int((dump.calls.start_ns == 0).sum()) for dump in one.dumps)
    assert one.left().keys() == {"no time"}
    assert 0 < one.left()["no time"] < untimed


def test_a_file_without_any_times_is_left_whole(run: ClusterRun, tmp_path: Path) -> None:
    (one,) = join_run(run, tmp_path, NcclProfile(zero_times=1.0), ranks=(0,))
    _check([one])
    assert one.left() == {"no time": one.possible()}


def test_gpu_clocks_alone_place_calls_without_times(run: ClusterRun, tmp_path: Path) -> None:
    (one,) = join_run(run, tmp_path, NcclProfile(zero_times=1.0, kernel_channels=True), ranks=(0,))
    _check([one])
    assert len(one.joined.op) >= 0.9 * one.possible()


@pytest.fixture(scope="module")
def alike() -> ClusterRun:
    """Steps that are all alike."""
    return cluster_run(ClusterTraining(data=2, tensor=2, steps=6, jitter=0, end_jitter_ns=0))


@pytest.mark.parametrize(
    ("seq", "fault"), [(False, "began late"), (False, "ring"), (True, "began late"), (True, "ring")]
)
def test_steps_that_are_all_alike_are_ambiguous(alike: ClusterRun, fault: str, seq: bool, tmp_path: Path) -> None:
    for one in join_run(alike, tmp_path, NcclProfile(kernel_channels=True, **FAULTS[fault]), seq=seq):
        _check([one])
        assert one.left() == {"ambiguous": one.possible()}


def test_steps_that_are_all_alike_are_told_apart_by_numbers_from_the_first_call_on(
    alike: ClusterRun, tmp_path: Path
) -> None:
    for one in join_run(alike, tmp_path, NcclProfile()):
        _check([one])
        assert len(one.joined.op) == one.possible() > 0


def test_one_step_of_another_time_is_not_taken_for_the_recorded_one(tmp_path: Path) -> None:
    two = cluster_run(
        ClusterTraining(data=2, tensor=2, steps=2, layers=3), [EarlyEnd(rank, share=0.5) for rank in range(4)]
    )
    for one in join_run(two, tmp_path, NcclProfile(began=0.52), seq=False):
        _check([one])
        assert not len(one.joined.op)


@pytest.mark.parametrize("kind", ["plugin", "flight-json"])
def test_the_first_call_that_is_something_else_in_the_trace_is_shown(kind: str, tmp_path: Path) -> None:
    wrong = cluster_run(TRAINING, [Differs(0, "world", 4)])
    (one,) = join_run(wrong, tmp_path, NcclProfile(kind=kind), ranks=(0,))
    one.check_counts()
    (line,) = [group for group in one.joined.groups if group.mismatch]
    assert line.calls_left == {"differs": 1}
    assert line.ranks == tuple(range(8))
    assert (
        line.mismatch is not None
        and "allreduce of 1 Float" in line.mismatch
        and "allreduce of 2 Float" in line.mismatch
    )


def test_calls_that_share_a_kernel_are_named(tmp_path: Path) -> None:
    experts = cluster_run(dataclasses.replace(TRAINING, pipeline=1, expert=2))
    (one,) = join_run(experts, tmp_path, NcclProfile(), ranks=(0,))
    _check([one])
    (line,) = [group for group in one.joined.groups if group.calls_left]
    assert line.calls_left == {"several calls in one kernel": line.calls}
    assert line.ops_left == {"several calls in one kernel": line.ops}
    assert line.calls == 4 * line.ops > 0  # a send to and a receive from each of two
    assert len(one.joined.op) == one.possible()


def test_files_of_several_kinds_meet_one_op_each(run: ClusterRun, tmp_path: Path) -> None:
    from graphlink.nccl.join import join

    kinds = [
        join_run(run, tmp_path / kind, NcclProfile(kind=kind), ranks=(3,))[0]
        for kind in ("plugin", "flight-json", "proxy")
    ]
    dumps = tuple(dump for one in kinds for dump in one.dumps)
    files = tuple(file for one in kinds for file in one.files)
    linked = kinds[0].linked
    both = dataclasses.replace(kinds[0], dumps=dumps, files=files, joined=join(linked, communication(linked), dumps, 3))
    _check([both])
    assert len(both.joined.op) == both.possible() == 3 * len(kinds[0].joined.op)


def test_a_trace_that_began_late_or_lacks_kernels_leaves_calls_by_their_place(tmp_path: Path) -> None:
    late = cluster_run(TRAINING, [LateStart(0, share=0.3), Dropped(0, "world", 6)])
    (one,) = join_run(late, tmp_path, NcclProfile(), ranks=(0,))
    _check([one])
    assert one.left()["before"] > 10
    assert one.left()["between"] == 1
    assert len(one.joined.op) == one.possible()


trainings = st.builds(
    ClusterTraining,
    data=st.sampled_from([2, 4]),
    tensor=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2, 3]),
    steps=st.integers(1, 6),
    layers=st.integers(1, 3),
    microbatches=st.integers(1, 3),
    seed=st.integers(0, 999),
    sequence_parallel=st.booleans(),
    twin=st.booleans(),
    expert=st.sampled_from([1, 2]),
    jitter=st.sampled_from([0.0, 0.1]),
    end_jitter_ns=st.sampled_from([0, 1_500]),
    host_jitter_ns=st.sampled_from([0, 500, 5_000, 20_000]),
    host_clock_offset_ns=st.sampled_from([0, 3_000_000]),
    drift_ppm=st.sampled_from([0.0, 20.0]),
    address_names=st.booleans(),
)
profiles = st.builds(
    NcclProfile,
    kind=st.sampled_from(KINDS),
    began=st.sampled_from([0.0, 0.3, 0.7]),
    ended=st.sampled_from([0.8, 1.0]),
    last=st.sampled_from([None, 3, 8, 20]),
    dropped=st.sampled_from([0.0, 0.1, 0.3]),
    zero_times=st.sampled_from([0.0, 0.2, 1.0]),
    ranks_a_process=st.sampled_from([1, 2]),
    min_bytes=st.sampled_from([0, 8_192]),
    kernel_channels=st.booleans(),
    message_pairs=st.booleans(),
    jitter_ns=st.sampled_from([200, 1_500, 6_000]),
    seed=st.integers(0, 999),
)
faults: st.SearchStrategy[list[Fault]] = st.lists(
    st.one_of(
        st.builds(LateStart, st.just(0), share=st.sampled_from([0.2, 0.5])),
        st.builds(EarlyEnd, st.just(0), share=st.sampled_from([0.9, 0.6])),
        st.builds(Dropped, st.just(0), st.just("world"), st.integers(0, 1)),
        st.just(OtherOrder(0, "world", 0)),
    ),
    max_size=3,
    unique_by=lambda fault: (type(fault), getattr(fault, "k", 0)),
)


@settings(max_examples=settings().max_examples // 4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(training=trainings, profile=profiles, faulty=faults, seq=st.booleans())
def test_no_call_ever_meets_another_kernel(
    training: ClusterTraining,
    profile: NcclProfile,
    faulty: list[Fault],
    seq: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = cluster_run(training, faulty)
    _check(join_run(run, tmp_path_factory.mktemp("run"), profile, ranks=(0, training.world - 1), seq=seq))
