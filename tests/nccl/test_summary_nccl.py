"""What the summary says of side files of NCCL, and how it is printed."""

from __future__ import annotations

from graphlink.nccl.summary import Nccl, NcclClock, NcclFile, NcclGroup, NcclTimes, over_ranks, rank_rows, run_rows

TIED = NcclClock(offset_ns=-5, residual_ns=1_250, gpu_offset_ns=7, inside=31, checked=32)
LOOSE = NcclClock(offset_ns=None, residual_ns=0, gpu_offset_ns=None, inside=0, checked=0)


def file(path: str, clock: NcclClock = TIED, kind: str = "plugin") -> NcclFile:
    return NcclFile(
        path=path, kind=kind, events=1_310, calls=20, left_out={"idle": 3} if clock is TIED else {}, clock=clock
    )


def line(
    group: str | None, matched: int, file: int | None = 0, mismatch: str | None = None, ops: int = 10
) -> NcclGroup:
    return NcclGroup(
        file=file,
        communicator="77" if file is not None else None,
        group=group,
        ranks=None if group is None else (0, 1),
        calls=10 if file is not None else 0,
        ops=ops,
        matched=matched,
        calls_left={"before": 10 - matched} if matched < 10 and file is not None else {},
        ops_left={"after": ops - matched} if matched < ops else {},
        rule="time",
        mismatch=mismatch,
    )


def times(group: str, ops: int = 1, **ns: int) -> NcclTimes:
    return NcclTimes(
        group=group, ops=ops, **{**dict.fromkeys(("gpu_ns", "peer_ns", "wire_ns", "receive_ns", "other_ns"), 0), **ns}
    )


FIRST = Nccl(
    files=[file("a.json"), file("b.log", LOOSE, "inspector")],
    join=[
        line("dp", 10),
        line("dp", 8, file=1, mismatch="AllReduce of 4, ALL_REDUCE of 8"),
        line(None, 0, ops=0),
        line("pp", 0, file=None),
    ],
    times=[times("dp", 9, peer_ns=3_000_000, wire_ns=1_500_000, other_ns=20)],
)
SECOND = Nccl(
    files=[file("c.json")],
    join=[line("dp", 9, mismatch="late")],
    times=[times("dp", 8, peer_ns=1), times("pp", gpu_ns=5)],
)


def test_a_rank_prints_its_files_its_join_table_and_its_times() -> None:
    assert rank_rows(FIRST) == [
        (
            "NCCL",
            "a.json (plugin): 1,310 events, 20 calls, left out: idle 3; its clock fits to 1.2 us, 31 of 32 kernel "
            "starts in their kernel",
        ),
        ("NCCL", "b.log (inspector): 1,310 events, 20 calls; its clock is tied to nothing"),
        ("  joined", "group dp: 10 of 10 calls, of 10 ops"),
        (
            "  joined",
            "group dp: 8 of 10 calls (before 2), of 10 ops (after 2); first mismatch: AllReduce of 4, ALL_REDUCE of 8",
        ),
        ("  joined", "communicator 77: 0 of 10 calls (before 10), of 0 ops"),
        ("  joined", "group pp: 0 of 0 calls, of 10 ops (after 10)"),
        ("  time", "group dp, 9 ops: 3.000 ms waiting for the peer, 1.500 ms on the wire, 0.000 ms none of these"),
    ]


def test_over_ranks_lines_of_a_group_and_kind_of_file_add_up() -> None:
    found = over_ranks([(0, FIRST), (3, SECOND)])
    assert (found.ranks, found.files) == (2, 3)
    assert [
        (g.kind, g.group, g.communicator, g.calls, g.ops, g.matched, g.calls_left, g.ops_left, g.mismatch)
        for g in found.join
    ] == [
        ("plugin", "dp", None, 20, 20, 19, {"before": 1}, {"after": 1}, "rank 3: late"),
        ("inspector", "dp", None, 10, 10, 8, {"before": 2}, {"after": 2}, "rank 0: AllReduce of 4, ALL_REDUCE of 8"),
        ("plugin", None, "77", 10, 0, 0, {"before": 10}, {}, None),
        (None, "pp", None, 0, 10, 0, {}, {"after": 10}, None),
    ]
    assert found.times == [times("dp", 17, peer_ns=3_000_001, wire_ns=1_500_000, other_ns=20), times("pp", gpu_ns=5)]
    assert run_rows(found)[:2] == [
        ("NCCL", "3 side files of 2 ranks"),
        ("  joined", "group dp: 19 of 20 calls (before 1), of 20 ops (after 1); first mismatch: rank 3: late"),
    ]


def test_of_many_lines_the_first_are_printed_and_the_rest_counted() -> None:
    many = Nccl(files=[file("a.json")], join=[line(str(k), 10) for k in range(15)], times=[])
    assert [text for name, text in rank_rows(many) if name != "NCCL"][-2:] == [
        "group 11: 10 of 10 calls, of 10 ops",
        "and 3 more",
    ]
