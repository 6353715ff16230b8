"""Accounting on runs made by hand: what simulated recordings do not show."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from graphlink import spans
from graphlink.causes import Cause
from graphlink.model import CommKind
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.autograd import RULE
from graphlink.pipeline.delays import joined, while_it_ran, with_exchanges
from graphlink.pipeline.recognise import recognise
from graphlink.pipeline.records import Delays, Pass, Ranges, StageRun
from graphlink.pipeline.schedules import orders, simulate
from graphlink.pipeline.stages import pipes, with_stages
from tests.comm_ops import Op, comm_ops
from tests.pipeline.made import even_times
from tests.pipeline.pipelines import Box, ranges_of

MS = 1_000_000
NONE, CODES = np.zeros(0, np.int64), np.zeros(0, np.int32)
NO_EXCHANGES = comm_ops([])
NO_DELAYS = Delays(NONE, NONE, np.zeros(0, np.uint8), CODES, CODES, ("",))


def runs(schedule: str, stages: int, microbatches: int, steps: int, every_ns: int) -> list[StageRun]:
    """A run in which each step begins ``every_ns`` after the one before on every rank."""
    order = orders(schedule, stages, microbatches, 1 + (schedule == "DualPipe"))
    timed = simulate(order, even_times(stages * (1 + (schedule == "DualPipe")), MS, MS, MS))
    out = []
    for rank in range(stages):
        count = len(order[rank].phase)
        step = np.repeat(np.arange(steps), count)
        start, end = (np.tile(c, steps) + step * every_ns for c in (timed.start_ns[rank], timed.end_ns[rank]))
        phase, stage, microbatch = (
            np.tile(c, steps) for c in (order[rank].phase, order[rank].stage, order[rank].microbatch)
        )
        zero = np.zeros(len(step), np.int64)
        ranges = Ranges(
            start,
            end,
            phase,
            step,
            stage,
            zero,
            microbatch,
            zero.astype(np.int32),
            ("zero-bubble",),
            end - start,
            zero + 1,
        )
        work = spans.union_by(step, start, end)
        run = StageRun(rank, rank - 1, 0, ranges, work, spans.NONE, NO_EXCHANGES, NONE, NO_DELAYS, True, False, {}, ())
        out.append(run)
    return out


def test_steps_may_overlap_in_time() -> None:
    """ZB-H2 goes on on each rank as soon as it is done: its own windows have no bubble, and a step counts its own work
    alone.
    """
    found = analyse(runs("ZB-H2", 4, 8, 3, 24 * MS))
    assert found is not None
    assert found.schedule == "ZB-H2"
    assert all(a.end_ns > b.start_ns for a, b in pairwise(found.steps))
    for step in found.steps:
        assert (step.end_ns - step.start_ns, step.work_ns, step.own_ns) == (27 * MS, (24 * MS,) * 4, (24 * MS,) * 4)
        mine = found.idle.step == step.number
        length = (found.idle.end_ns - found.idle.start_ns)[mine].tolist()
        rows = zip(found.idle.rank[mine].tolist(), found.idle.cause[mine].tolist(), length, strict=True)
        idle = {(rank, Cause(cause).name): ns for rank, cause, ns in rows}
        warm, cool = {(r, "WARMUP"): r * MS for r in range(1, 4)}, {(r, "COOLDOWN"): (3 - r) * MS for r in range(3)}
        assert idle == {**warm, **cool}
    assert found.rates.bubble_rate_makespan == pytest.approx(1 / 9)
    assert found.rates.bubble_rate_zb == 0
    assert found.theory is not None
    assert found.theory.parts_ns.rest == 0


def test_a_short_gap_that_nothing_explains_is_from_one_kernel_to_the_next() -> None:
    """Also where the table of delays was put together of several."""
    (run,) = runs("1F1B", 1, 2, 1, 24 * MS)
    late = np.where(np.arange(4) > 1, 10_000, 0) + np.where(np.arange(4) > 2, 30_000, 0)
    ranges = replace(run.ranges, start_ns=run.ranges.start_ns + late, end_ns=run.ranges.end_ns + late)
    work = spans.union_by(ranges.step, ranges.start_ns, ranges.end_ns)
    start, end = ranges.end_ns[1:3], ranges.start_ns[2:]
    texts = ("", "cudaLaunchKernel came late")
    other = Delays(NONE, NONE, np.zeros(0, np.uint8), CODES, CODES, texts)
    unexplained = Delays(
        start, end, np.full(2, Cause.UNKNOWN, np.uint8), np.zeros(2, np.int32), np.full(2, -1, np.int32), texts
    )
    delays = joined(other, unexplained)
    assert (delays.texts, delays.evidence.tolist()) == (texts, [0, 0])
    found = analyse([replace(run, ranges=ranges, work=work, delays=delays, sees_causes=True)])
    assert found is not None
    told = [found.idle.texts[k] for k in found.idle.evidence.tolist()]
    assert found.idle.cause.tolist() == [Cause.LAUNCH_STARVED, Cause.UNKNOWN]
    assert told == ["from one kernel to the next", ""]
    assert (found.idle.end_ns - found.idle.start_ns).tolist() == [10_000, 30_000]


def test_of_receives_in_flight_only_one_that_ended_before_work_went_on_was_waited_for() -> None:
    """Two were posted early: one lasts through a gap between kernels and a wait, the other into the work after it."""
    start, end = np.array([100, 5000]), np.array([1100, 9000])
    zero = np.zeros(2, np.int32)
    unexplained = Delays(start, end, np.full(2, Cause.UNKNOWN, np.uint8), zero, zero - 1, ("",))
    posted = comm_ops(Op(CommKind.RECV, "recv", start_ns=0, end_ns=end_ns) for end_ns in (20_000, 8500))
    found = with_exchanges(unexplained, posted)
    rows = zip(found.start_ns.tolist(), found.end_ns.tolist(), found.exchange.tolist(), strict=True)
    assert list(rows) == [(100, 1100, -1), (5000, 8500, 1), (8500, 9000, -1)]


def test_a_wait_for_communication_is_communication_until_that_ended() -> None:
    """The device waits on while the thread that was blocked goes on in Python."""
    rows = np.array([[0, 1000, 0], [1000, 4000, 0], [4000, 5000, -1]])
    cause = np.array([Cause.UNKNOWN, Cause.UNKNOWN, Cause.LAUNCH_STARVED], np.uint8)
    none = np.zeros(3, np.int32)
    waited = Delays(rows[:, 0], rows[:, 1], cause, none, rows[:, 2].astype(np.int32), ("",))
    found = while_it_ran(waited, comm_ops([Op(CommKind.RECV, "recv", start_ns=0, end_ns=1500)]))
    parts = zip(found.start_ns.tolist(), found.end_ns.tolist(), found.exchange.tolist(), strict=True)
    assert list(parts) == [(0, 1000, 0), (1000, 1500, 0), (1500, 4000, -1), (4000, 5000, -1)]
    assert found.cause.tolist() == [Cause.UNKNOWN, Cause.UNKNOWN, Cause.HOST_SYNC, Cause.LAUNCH_STARVED]


@pytest.mark.parametrize(("name", "pipeline"), [("RECV", True), ("ncclKernel_SendRecv", True), ("ALL_REDUCE", False)])
def test_names_of_any_training_are_a_pipeline_where_communication_is_named_as_messages(
    name: str, pipeline: bool
) -> None:
    """NVTX ranges of NCCL without their payload tell no more than a name."""
    named = comm_ops([Op(CommKind.UNKNOWN, name)])
    ranks = [
        replace(run, previous=-1, exchanges=named, ranges=replace(run.ranges, rules=("deepspeed",)))
        for run in runs("1F1B", 2, 4, 1, 24 * MS)
    ]
    found = [replace(run, ordinal=np.full(1, -1)) for run in ranks]
    assert (analyse(found) is not None) == pipeline
    assert analyse([None, *found[1:]]) is None  # DeepSpeed's pipeline names the backward of its last stage alone


def test_part_of_a_pipeline_is_near_no_schedule() -> None:
    """Ranks 0, 2 and 3 of 1F1B are in no order of three ranks."""
    passed = comm_ops([Op(CommKind.SEND, "send", peer=1)])
    some = [
        replace(run, exchanges=passed, ordinal=np.zeros(1, np.int64))
        for run in runs("1F1B", 4, 8, 1, 100 * MS)
        if run.rank != 1
    ]
    found = analyse(some)
    assert found is not None
    assert (found.schedule, found.nearest) == ("unknown", "not compared, as ranks of it were not recorded")


@pytest.mark.parametrize("rule", ["zero-bubble", RULE])
def test_stages_without_their_first_are_no_schedule_of_fewer(rule: str) -> None:
    """Ranks 1 to 3 of 1F1B run the orders of three stages, and stand in their order, whoever started first."""
    named = comm_ops([Op(CommKind.UNKNOWN, "ncclRecv")])
    some = [
        replace(
            run,
            peers=peers,
            exchanges=named,
            ordinal=np.full(1, -1),
            ranges=replace(run.ranges, rules=(rule,), stage=np.full(len(run.ranges.stage), -1)),
        )
        for run, peers in zip(runs("1F1B", 4, 8, 1, 100 * MS)[1:], ((0, 2), (1, 3), (2,)), strict=True)
    ]
    found = analyse(some)
    assert found is not None
    assert (found.schedule, found.nearest) == ("unknown", "not compared, as ranks of it were not recorded")
    assert not any("first forwards" in warning for warning in found.warnings)
    ring = [*some[:2], replace(some[2], peers=(2, 0))]
    assert (analyse(ring) is None) == (rule == RULE)  # rank 0 may close a ring
    broken = [replace(some[0], previous=-1, peers=(2,)), replace(some[2], peers=(2,))]
    found = analyse(broken)  # rank 1 receives nothing before its first forward, so rank 2 closes no ring
    assert found is not None
    assert (found.schedule, found.nearest) == ("unknown", "not compared, as ranks of it were not recorded")


@pytest.mark.parametrize(
    ("recorded", "lacks"), [((0, 1, 2, 3), False), ((1, 2, 3), True), ((0, 1, 2), True), ((1, 2), True)]
)
def test_messages_without_peers_tell_that_an_end_was_not_recorded(recorded: tuple[int, ...], lacks: bool) -> None:
    """An end of a pipeline exchanges messages with one side alone. Ranks 1 to 3 run the orders of three stages."""
    named = comm_ops([Op(CommKind.UNKNOWN, "ncclRecv")])
    some = [
        replace(
            run,
            peers=(-1,) * (2 - (run.rank in (0, 3))),
            previous=-1,
            exchanges=named,
            ordinal=np.full(1, -1),
            ranges=replace(run.ranges, rules=(RULE,), stage=np.full(len(run.ranges.stage), -1)),
        )
        for run in runs("1F1B", 4, 8, 1, 100 * MS)
        if run.rank in recorded
    ]
    found = analyse(some)
    assert found is not None
    assert (found.schedule == "unknown") == lacks
    assert any("at an end of the pipeline were not recorded" in text for text in found.warnings) == lacks


Passes = tuple[tuple[Pass, int, int, int, int], ...]


def waiting(run: StageRun, passes: Passes, from_ns: int, until_ns: int) -> StageRun:
    """A rank with one kernel of unknown parameters, which sends and receives."""
    ranges = ranges_of([Box(*one) for one in passes], ("zero-bubble",))
    none = np.zeros(1, np.int32)
    delays = Delays(none + from_ns, none + until_ns, np.full(1, Cause.UNKNOWN, np.uint8), none, none, ("",))
    passed = comm_ops([Op(CommKind.UNKNOWN, "coalesced SEND, RECV", start_ns=from_ns, end_ns=until_ns)])
    work = spans.union_by(ranges.step, ranges.start_ns, ranges.end_ns)
    return replace(run, ranges=ranges, work=work, exchanges=passed, ordinal=np.full(1, -1), delays=delays)


def stalls(ranks: list[StageRun]) -> list[tuple[int, ...]]:
    """Rank, cause, start and end of what was a stall or communication."""
    found = analyse(ranks)
    assert found is not None
    columns = (found.idle.rank, found.idle.cause, found.idle.start_ns, found.idle.end_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [row for row in rows if row[1] in (Cause.DEPENDENCY_STALL, Cause.EXPOSED_COMMUNICATION)]


def test_a_receive_among_other_calls_waits_for_a_rank_that_was_not_recorded() -> None:
    """One kernel sends F0 and receives B0. If rank 1 was recorded it is known that B0 was there to be sent at 30."""
    F, B = Pass.F, Pass.B
    first, second = runs("1F1B", 2, 1, 1, 0)
    first = replace(waiting(first, ((F, 0, 0, 0, 10), (B, 0, 0, 40, 50)), 10, 40), peers=(1,))
    second = waiting(second, ((F, 1, 0, 10, 20), (B, 1, 0, 20, 30)), 30, 31)
    assert stalls([first, second]) == [(0, Cause.DEPENDENCY_STALL, 10, 30), (0, Cause.EXPOSED_COMMUNICATION, 30, 40)]
    assert stalls([first]) == [(0, Cause.DEPENDENCY_STALL, 10, 40)]


def test_a_pair_waits_for_both_inputs_and_sends_both_outputs_when_it_ends() -> None:
    """F1 of rank 0 has its input, and B0 beside it comes from rank 1 at 30; F1 ends at 44, the pair at 60."""
    F, B = Pass.F, Pass.B
    first, second = runs("1F1B", 2, 2, 1, 0)
    first = waiting(first, ((F, 0, 0, 0, 10), (F, 0, 1, 34, 44), (B, 0, 0, 35, 60), (B, 0, 1, 80, 90)), 10, 34)
    second = waiting(second, ((F, 1, 0, 10, 20), (B, 1, 0, 20, 30), (F, 1, 1, 62, 70), (B, 1, 1, 70, 80)), 30, 62)
    assert stalls([first, second]) == [
        (0, Cause.DEPENDENCY_STALL, 10, 30),
        (0, Cause.EXPOSED_COMMUNICATION, 30, 34),
        (0, Cause.DEPENDENCY_STALL, 60, 80),
        (1, Cause.DEPENDENCY_STALL, 30, 60),
        (1, Cause.EXPOSED_COMMUNICATION, 60, 62),
    ]


def test_a_pair_of_dualpipe_is_one_also_where_its_passes_run_one_after_the_other() -> None:
    ranks = [
        replace(run, ranges=replace(run.ranges, chunk=run.ranges.stage // 4)) for run in runs("DualPipe", 4, 8, 1, 0)
    ]
    recorded = pipes(ranks)
    followed = recognise([run.ranges for run in recorded.runs])
    (step,), whole = followed.steps, with_stages(recorded, [followed])
    for rows, order, together in zip(step.rows, step.orders, whole.together, strict=True):
        first = np.flatnonzero(order.paired)
        assert len(first)
        assert (together[rows[first]] == together[rows[first + 1]]).all()
        assert len(np.unique(together)) == len(together) - len(first)


def test_chains_whose_last_ranks_exchange_messages_are_one_pipeline() -> None:
    """DualPipe's microbatches enter at both ends."""
    peers = ((1,), (0, 2), (1, 3), (2,))
    both_ways = [
        replace(run, previous=previous, peers=others)
        for run, previous, others in zip(runs("1F1B", 4, 8, 1, 100 * MS), (-1, 0, 3, -1), peers, strict=True)
    ]
    found = pipes(both_ways)
    assert (found.pipe, found.position) == ((0, 0, 0, 0), (0, 1, 2, 3))
    apart = pipes([replace(run, peers=()) for run in both_ways])
    assert (apart.pipe, apart.position) == ((0, 0, 1, 1), (0, 1, 1, 0))


def test_stages_that_are_guessed_tell_nothing_of_clocks() -> None:
    """Activations go from rank 3 to rank 0 by what is recorded, and the other way by the times."""
    backwards = [
        replace(run, previous=previous, ranges=replace(run.ranges, stage=np.full(len(run.ranges.stage), -1)))
        for run, previous in zip(runs("1F1B", 4, 8, 1, 100 * MS), (1, 2, 3, -1), strict=True)
    ]
    found = analyse(backwards)
    assert found is not None and found.schedule == "unknown"
    assert not any("clocks" in warning for warning in found.warnings)


@pytest.mark.parametrize("schedule", ["1F1B", "interleaved"])
@pytest.mark.parametrize("missing", range(4))
def test_a_rank_that_was_not_recorded_keeps_its_place(schedule: str, missing: int) -> None:
    """Without the first one the others are no pipeline of three stages; interleaved messages go around in a ring."""
    wraps = schedule == "interleaved"
    some = []
    for run in runs("1F1B", 4, 8, 1, 100 * MS):
        others = {run.rank - 1, run.rank + 1} if not wraps else {(run.rank - 1) % 4, (run.rank + 1) % 4}
        peers = [peer for peer in others if 0 <= peer < 4]
        passed = comm_ops([Op(CommKind.SEND, "send", peer=peer) for peer in peers])
        unnamed = replace(run.ranges, stage=np.full(len(run.ranges.stage), -1))
        some.append(replace(run, exchanges=passed, ordinal=np.arange(len(peers)), ranges=unnamed))
    found = analyse([run for run in some if run.rank != missing])
    assert found is not None
    assert (found.schedule, found.stages) == ("unknown", 4)
    assert {run.rank: run.ranges.stage.tolist() for run in found.runs} == {
        rank: [rank] * 16 for rank in range(4) if rank != missing
    }


def test_two_directions_that_meet_are_one_pipeline() -> None:
    """DualPipe, its stages numbered by their layers: each direction begins on a rank that receives nothing before."""
    whole = []
    for run in runs("DualPipe", 4, 8, 1, 100 * MS):
        peers = [peer for peer in (run.rank - 1, run.rank + 1) if 0 <= peer < 4]
        passed = comm_ops([Op(CommKind.SEND, "send", peer=peer) for peer in peers])
        layer, source = run.ranges.stage % 4, (-1, 0, 3, -1)[run.rank]
        ranges = replace(run.ranges, stage=layer, chunk=(layer == max(layer)).astype(np.int64))
        whole.append(replace(run, previous=source, exchanges=passed, ordinal=np.arange(len(peers)), ranges=ranges))
    found = analyse(whole)
    assert found is not None
    assert (found.schedule, found.stages, found.pipe) == ("DualPipe", 4, (0,) * 4)
