"""What NCCL's own records tell of waiting for ranks that were not recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed

from graphlink import spans
from graphlink.causes import Cause
from graphlink.model import NOWHERE, CommKind
from graphlink.nccl.read.records import State
from graphlink.nccl.summary import NcclClock, SideFiles
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.records import NO_TIME, Delays, Pass, Ranges, StageRun, Witness
from graphlink.pipeline.stagerun import on_run_clock, stage_run, witness_of
from graphlink.ranks.records import AlignedClock
from graphlink.run import job
from tests.comm_ops import Op, comm_ops
from tests.nccl_records import CLOCK, Proxy, Step, dump, ops, side_files
from tests.pipeline.test_causes import MS
from tests.simulator import PipelineTraining, pipeline_run

WORDS = "NCCL: 2.800 ms waiting for the peer, 0.200 ms on the wire"
STALL, EXPOSED, STRAGGLER = Cause.DEPENDENCY_STALL, Cause.EXPOSED_COMMUNICATION, Cause.STRAGGLER_WAIT
TRANSFER_NS = 200_000
TIED = changed(CLOCK, offset_ns=1_000)
ALONE = "F1 of stage 1 waited for a peer that was not recorded"


def run(kind: CommKind, told: Witness | None, cause: Cause = Cause.UNKNOWN) -> StageRun:
    """The last of two stages alone: it is idle from 12 to 15 ms, in which one exchange with rank 0 runs."""

    def i64(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    phase = np.array([Pass.F, Pass.B, Pass.F, Pass.B], np.uint8)
    start, end = MS * i64(10, 11, 15, 16), MS * i64(11, 12, 16, 17)
    zero = np.zeros(4, np.int64)
    ranges = Ranges(
        start,
        end,
        phase,
        zero,
        zero + 1,
        zero,
        i64(0, 0, 1, 1),
        zero.astype(np.int32),
        ("zero-bubble",),
        end - start,
        zero + 1,
    )
    group, ordinal = (0, 0) if kind != CommKind.UNKNOWN else (NOWHERE, NOWHERE)
    peer = NOWHERE if kind == CommKind.COLLECTIVE else 0
    exchange = Op(kind, "COMM", bytes=4, group=group, peer=peer, start_ns=12 * MS, end_ns=15 * MS)
    exchanges = comm_ops([exchange], (((0, 1), "pp"),))
    holds = Delays(
        MS * i64(12), MS * i64(15), np.array([cause], np.uint8), np.zeros(1, np.int32), np.zeros(1, np.int32), ("",)
    )
    work = spans.union_by(zero, start, end)
    return StageRun(1, 0, 0, ranges, work, spans.NONE, exchanges, i64(ordinal), holds, True, True, {}, (), told)


def causes(given: StageRun) -> list[tuple[Cause, float, str]]:
    """Cause, ms and evidence of its idle time; work and idle are the makespan."""
    found = analyse([given])
    assert found is not None
    idle, (step,) = found.idle, found.steps
    assert step.work_ns[0] + int((idle.end_ns - idle.start_ns).sum()) == step.end_ns - step.start_ns == 7 * MS
    rows = zip(idle.cause.tolist(), (idle.end_ns - idle.start_ns).tolist(), idle.evidence.tolist(), strict=True)
    return [(Cause(cause), ns / MS, idle.texts[text]) for cause, ns, text in rows]


def came(at_ns: int) -> Witness:
    return Witness(np.zeros(1, np.int64), np.array([at_ns], np.int64), (WORDS,))


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (CommKind.RECV, [(STALL, 3.0, ALONE)], [(STALL, 2.8, f"{ALONE}; {WORDS}"), (EXPOSED, 0.2, f"COMM; {WORDS}")]),
        (
            CommKind.COLLECTIVE,
            [(EXPOSED, 3.0, "COMM")],
            [(STRAGGLER, 2.8, f"COMM; {WORDS}"), (EXPOSED, 0.2, f"COMM; {WORDS}")],
        ),
        (
            CommKind.SEND,
            [(EXPOSED, 3.0, "COMM")],
            [(STRAGGLER, 2.8, f"COMM; {WORDS}"), (EXPOSED, 0.2, f"COMM; {WORDS}")],
        ),
        (
            CommKind.UNKNOWN,
            [(EXPOSED, 3.0, "COMM")],
            [(STRAGGLER, 2.8, f"COMM; {WORDS}"), (EXPOSED, 0.2, f"COMM; {WORDS}")],
        ),
    ],
)
def test_waiting_for_a_rank_that_was_not_recorded_is_told_from_the_transfer(
    kind: CommKind, before: list[tuple[Cause, float, str]], after: list[tuple[Cause, float, str]]
) -> None:
    assert causes(run(kind, None)) == before
    assert causes(run(kind, came(14_800_000))) == after
    untold = [(cause, ms, f"{text}; {WORDS}") for cause, ms, text in before]
    assert causes(run(kind, came(NO_TIME))) == untold  # the split alone changes no figure
    assert causes(run(kind, came(11 * MS))) == [(EXPOSED, 3.0, f"COMM; {WORDS}")]
    assert [row[:2] for row in causes(run(kind, came(16 * MS)))] == [(after[0][0], 3.0)]


def test_where_the_host_was_late_only_the_transfer_is_communication() -> None:
    kind = CommKind.COLLECTIVE
    assert [row[:2] for row in causes(run(kind, None, Cause.LAUNCH_STARVED))] == [(Cause.LAUNCH_STARVED, 3.0)]
    told = causes(run(kind, came(14_800_000), Cause.LAUNCH_STARVED))
    assert [row[:2] for row in told] == [(Cause.LAUNCH_STARVED, 2.8), (EXPOSED, 0.2)]


def test_where_all_sides_were_recorded_they_decide() -> None:
    own = run(CommKind.COLLECTIVE, came(14_800_000))
    moved = replace(
        own.exchanges, start_ns=own.exchanges.start_ns + 2 * MS
    )  # the other comes 2 ms later: 1 ms is transfer
    other = replace(
        run(CommKind.COLLECTIVE, None),
        rank=0,
        previous=NOWHERE,
        exchanges=moved,
        ranges=replace(own.ranges, stage=own.ranges.stage - 1),
    )
    found = analyse([other, own])
    assert found is not None
    mine = (found.idle.rank == 1) & np.isin(found.idle.cause, (STRAGGLER, EXPOSED))
    length = (found.idle.end_ns - found.idle.start_ns)[mine].tolist()
    assert dict(zip(found.idle.cause[mine].tolist(), length, strict=True)) == {STRAGGLER: 2 * MS, EXPOSED: MS}
    assert {found.idle.texts[k] for k in found.idle.evidence[mine].tolist()} == {
        f"COMM: rank 0 came last; {WORDS}",
        f"COMM; {WORDS}",
    }


def test_the_run_s_clock_moves_what_is_told_and_not_what_is_not() -> None:
    clock = AlignedClock(rank=1, offset_ns=5, drift=0.0, from_ns=0, residual_ns=0, shares=1, known=True)
    for given, want in ((14_800_000, 14_800_005), (NO_TIME, NO_TIME)):
        told = on_run_clock(run(CommKind.RECV, came(given)), clock).witness
        assert told is not None
        assert told.came_ns.tolist() == [want]


def told_of(steps: list[tuple[bool, State, int, int]], clock: NcclClock = TIED) -> tuple[int, str]:
    """``steps`` of one matched call: sends, state, start, end on the dump's clock."""
    proxies = [Proxy(0, k, sends) for k, (sends, *_) in enumerate(steps)]
    made = dump([{}], proxies=proxies, steps=[Step(k, 0, *rest) for k, (_, *rest) in enumerate(steps)])
    files = side_files([made], ops([{"row": 3}]), [(0, 0, 0)], [(0, 400_000, 2_500_000, 0, 1_000, 0)], [clock])
    found = witness_of(files)
    assert found.exchange.tolist() == [0]
    return int(found.came_ns[0]), found.words[0]


def test_the_first_data_ends_the_waiting_of_a_call_that_receives() -> None:
    receives = [(False, State.RECEIVE, 10, 90), (False, State.RECEIVE, 10, 70), (False, State.RECEIVE, 80, 85)]
    sends = [(True, State.PEER, 10, 20), (True, State.WIRE, 20, 30)]
    words = "NCCL: 2.500 ms waiting for the peer, 0.400 ms waiting for the GPU, 0.001 ms waiting for data"
    assert told_of([*receives, *sends]) == (1_070, words)
    assert told_of(sends) == (1_020, words)
    assert told_of([(True, State.WIRE, 20, 30), (False, State.GPU, 1, 2)]) == (NO_TIME, words)
    assert told_of(receives, changed(CLOCK, offset_ns=None)) == (NO_TIME, words)


def test_only_ops_with_steps_tell_something() -> None:
    files = side_files([dump([{}])], ops([{"row": 0}, {"row": 0, "on_host": True}]), [(0, 0, 0)], [(1, 0, 1, 0, 0, 0)])
    found = witness_of(files)
    assert (found.exchange.tolist(), found.words) == ([1], ("NCCL: 0.000 ms waiting for the peer",))


def test_a_rank_alone_tells_with_its_side_file_what_all_ranks_together_tell(tmp_path: Path) -> None:
    """Of each receive the last ``TRANSFER_NS`` are the transfer: until then no data had come."""
    true = pipeline_run(PipelineTraining("1F1B", transfer_ns=TRANSFER_NS, visible=True, kernels=2))
    path = true.write(tmp_path)[1]
    prepared = job.prepare(job.Inputs(kineto=path), job.Options(timeline="none"))
    of = prepared.comm.ops
    receives = np.flatnonzero(of.kind == CommKind.RECV).tolist()
    steps = [
        Step(n, 0, State.RECEIVE, int(of.start_ns[k]), int(of.end_ns[k]) - TRANSFER_NS) for n, k in enumerate(receives)
    ]
    made = dump([{}] * len(receives), proxies=[Proxy(n, 0, False) for n in range(len(receives))], steps=steps)
    split = [(k, 0, 0, 0, int(of.end_ns[k] - of.start_ns[k]), 0) for k in receives]
    files = side_files([made], of, [(k, 0, n) for n, k in enumerate(receives)], split)

    def idle(nccl: SideFiles | None) -> dict[Cause, int]:
        staged = stage_run(prepared.built.graph, prepared.linked, prepared.comm, 1, (), nccl and witness_of(nccl))
        found = analyse([staged.run])
        assert found is not None
        out = dict.fromkeys((STALL, EXPOSED), 0)
        for cause, ns in zip(
            found.idle.cause.tolist(), (found.idle.end_ns - found.idle.start_ns).tolist(), strict=True
        ):
            out[Cause(cause)] = out.get(Cause(cause), 0) + ns
        return out

    without, told, want = idle(None), idle(files), true.idle_ns(rank=1)
    assert told[STALL] == pytest.approx(want["dependency_stall"], abs=5_000)
    assert told[EXPOSED] == pytest.approx(want["exposed_communication"], abs=5_000)
    assert without[EXPOSED] == 0 < TRANSFER_NS < told[EXPOSED]
    assert without[STALL] == told[STALL] + told[EXPOSED]
    assert {cause: ns for cause, ns in told.items() if cause not in (STALL, EXPOSED)} == {
        cause: ns for cause, ns in without.items() if cause not in (STALL, EXPOSED)
    }
