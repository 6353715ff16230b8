"""The channels of NCCL in the timeline, as Perfetto's own trace processor reads them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from msgspec.structs import replace as changed

from graphlink.nccl.outputs import channel_rows
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.summary import NcclClock, SideFiles
from graphlink.ranks.records import AlignedClock
from graphlink.report.timeline import Shown
from tests.nccl_records import CLOCK, Proxy, Step, dump, ops, side_files
from tests.pipeline.hand import ALL_REDUCE, EPOCH_NS, communication, every_kind, records
from tests.report.test_timeline import ERRORS, shown, written
from tests.trace_processor import Row, query

CHANNELS = """
select s.ts, s.dur, s.name, s.depth, t.name as row, p.name as rank, extract_arg(s.arg_set_id, 'debug.peer') as peer,
  extract_arg(s.arg_set_id, 'debug.step') as step, extract_arg(s.arg_set_id, 'debug.bytes') as bytes,
  extract_arg(s.arg_set_id, 'debug.communicator') as communicator, extract_arg(s.arg_set_id, 'debug.correlation') as correlation,
  extract_arg(s.arg_set_id, 'debug.node') as node
from slice s join process_track t on t.id = s.track_id join process p using (upid)
where t.name glob 'NCCL channel *' order by s.ts, s.id"""
OTHERS = """select s.ts, s.dur, s.name, extract_arg(s.arg_set_id, 'debug.node') as node from slice s join track t on t.id = s.track_id
where t.name not glob 'NCCL channel *' order by s.ts, s.id"""
OPS = ops([{"row": 1}])  # the kernel of correlation 8, from 100 to 140 us
HASH = "12715772615376301750"
OWN_NS = 5_000_000_000  # what the dump's clock shows when the graph's epoch is
OFFSET = changed(CLOCK, offset_ns=EPOCH_NS - OWN_NS)


def made(files: SideFiles | None) -> Shown:
    comm = communication(ALL_REDUCE)
    one = shown(every_kind(), records(), comm, {comm.ops.groups[0]: 5})
    if files is None:
        return one
    ended_ns = one.graph.epoch_ns + int(one.graph.end_ns.max())
    return replace(one, features=[channel_rows(files, one.linked.trace.device, one.graph.epoch_ns, ended_ns)])


@cache
def without() -> list[Row]:
    return query(written(made(None)), OTHERS)[0]


def told(*dumps: Dump, clock: NcclClock = OFFSET) -> list[Row]:
    """The rows of channels; what else is in the timeline is as without them."""
    files = side_files(dumps, OPS, [(0, 0, 0)], clocks=[clock] * len(dumps))
    errors, rows, others = query(written(made(files)), ERRORS, CHANNELS, OTHERS)
    assert errors == []
    assert others == without()
    assert {(row["rank"], row["depth"], row["node"]) for row in rows} <= {("rank 0", 0, None)}
    return rows


def placed(rows: list[Row]) -> list[tuple[str, str, int, int]]:
    return [(row["row"], row["name"], row["ts"] - EPOCH_NS, row["dur"]) for row in rows]


def at(us: int) -> int:
    return OWN_NS + 1_000 * us


CALL = {"function": "allreduce", "communicator": 0, "rank": 0}


def test_states_of_steps_lie_on_the_clock_of_the_trace_with_what_is_known_of_them() -> None:
    proxies = [Proxy(0, 3, True, peer=1, bytes=4_096), Proxy(0, 3, False, peer=2)]
    steps = [
        Step(0, 0, State.GPU, at(100), at(105)),
        Step(0, 0, State.PEER, at(105), at(110)),
        Step(0, 0, State.WIRE, at(110), at(130)),
        Step(0, 1, State.GPU, at(105), at(112)),  # while the first is on its way: on a row of its own
        Step(1, 0, State.RECEIVE, at(100), at(131)),
    ]
    rows = told(dump([CALL], proxies=proxies, steps=steps))
    assert sorted(placed(rows)) == [
        ("NCCL channel 3 receive", "receive", 100_000, 31_000),
        ("NCCL channel 3 send", "GPU wait", 100_000, 5_000),
        ("NCCL channel 3 send", "GPU wait", 105_000, 7_000),
        ("NCCL channel 3 send", "peer wait", 105_000, 5_000),
        ("NCCL channel 3 send", "wire", 110_000, 20_000),
    ]
    assert {(row["peer"], row["bytes"]) for row in rows} == {(1, 4_096), (2, None)}
    assert {(row["communicator"], row["correlation"]) for row in rows} == {(HASH, 8)}
    assert sorted(row["step"] for row in rows) == [0, 0, 0, 0, 1]


def test_blocks_of_kernels_take_the_clock_of_the_gpu_where_it_is_known() -> None:
    kernels = [
        {"call": 0, "channel": 0, "start_ns": at(109), "end_ns": at(150), "gpu_start_ns": 7_000, "gpu_end_ns": 45_000},
        {"call": 0, "channel": 1, "start_ns": at(109), "gpu_start_ns": 8_000},  # without any end
        {"call": 0, "channel": 2, "start_ns": at(110), "end_ns": at(150)},
        {"call": 0, "channel": 3},
    ]
    assert placed(told(dump([CALL], kernels), clock=changed(OFFSET, gpu_offset_ns=EPOCH_NS + 95_000))) == [
        ("NCCL channel 0", "allreduce", 102_000, 38_000),
        ("NCCL channel 1", "allreduce", 103_000, 0),
        ("NCCL channel 2", "allreduce", 110_000, 40_000),
    ]
    assert placed(told(dump([CALL], kernels))) == [
        ("NCCL channel 0", "allreduce", 109_000, 41_000),
        ("NCCL channel 1", "allreduce", 109_000, 0),
        ("NCCL channel 2", "allreduce", 110_000, 40_000),
    ]


def test_a_file_that_nothing_ties_to_the_trace_has_no_rows() -> None:
    loose = changed(CLOCK, offset_ns=None)
    rows = told(dump([CALL], [{"call": 0, "channel": 0, "start_ns": 5, "end_ns": 9, "gpu_start_ns": 3}]), clock=loose)
    assert rows == []


def test_of_what_the_dump_holds_beside_the_trace_nothing_is_shown() -> None:
    """The graph lasts 150 us."""
    times = [(-5_000, -4_000), (-3, -1), (-2, 4), (10, None), (-1, None), (149, 160), (151, 152), (90_000, 90_001)]
    kernels = [{"call": 0, "channel": 0, "start_ns": at(a), "end_ns": 0 if b is None else at(b)} for a, b in times]
    steps = [Step(0, k, State.WIRE, at(a), at(b)) for k, (a, b) in enumerate(times) if b is not None]
    rows = placed(told(dump([CALL], kernels, [Proxy(0, 0, True)], steps)))
    inside = [(0, 4_000), (149_000, 11_000)]
    assert [row[2:] for row in rows if row[1] == "wire"] == inside
    assert [row[2:] for row in rows if row[1] == "allreduce"] == sorted([*inside, (10_000, 0)])


def test_calls_of_other_ranks_of_a_process_are_not_shown_and_unmatched_ones_of_the_own_are() -> None:
    def kernels(calls: int) -> list[dict[str, int]]:
        return [{"call": k, "channel": k, "start_ns": at(100 + k), "end_ns": at(101 + k)} for k in [*range(calls), -1]]

    calls = [CALL, {**CALL, "function": "broadcast"}]
    assert [row["name"] for row in told(dump(calls, kernels(2)))] == ["kernel", "allreduce", "broadcast"]
    calls[1] = {**calls[1], "rank": 1}
    assert [row["name"] for row in told(dump(calls, kernels(2)))] == ["allreduce"]


def test_on_the_clock_of_the_run_they_move_with_the_rank() -> None:
    files = side_files(
        [dump([CALL], [{"call": 0, "channel": 0, "start_ns": at(100), "end_ns": at(140)}])],
        OPS,
        [(0, 0, 0)],
        clocks=[OFFSET],
    )
    clock = AlignedClock(rank=0, offset_ns=7_000, drift=0.0, from_ns=EPOCH_NS, residual_ns=0, shares=0, known=True)
    moved = replace(made(files), clock=clock)
    assert placed(query(written(moved), CHANNELS)[0]) == [("NCCL channel 0", "allreduce", 107_000, 40_000)]
