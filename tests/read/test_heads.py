"""What the head of a file says, and that a hostile one says nothing."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from graphlink.errors import InputError
from graphlink.read.heads import HEAD_BYTES, deep_rank, read_head
from graphlink.read.kineto import read_kineto
from tests.tiny_traces import et, info, kineto

WORLD = {"pg_name": "0", "pg_desc": "default_pg", "ranks": []}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_kineto_says_its_rank_behind_nested_values(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = kineto(tmp_path / "x.json", info(3, 8, pg_count=30), pid=77, us=5)
    path.write_bytes(pack(path.read_bytes()))
    head = read_head(path)
    assert (head.kind, head.rank, head.world_size, head.group_count, head.backend) == ("kineto", 3, 8, 30, "nccl")
    assert (head.pid, head.start_ns) == (77, 5000)


def test_an_et_says_its_rank_by_the_groups_it_is_in(tmp_path: Path) -> None:
    groups = [WORLD | {"group_size": 8}, {"pg_name": "1", "ranks": [4, 5, 6, 7]}, {"pg_name": "2", "ranks": [2, 6]}]
    head = read_head(et(tmp_path / "x.json", pid=9, groups=groups))
    assert (head.kind, head.rank, head.world_size, head.pid) == ("et", 6, 8, 9)
    assert read_head(et(tmp_path / "y.json", groups=[*groups[:2], {"pg_name": "2", "ranks": [2, 3]}])).rank is None
    assert read_head(et(tmp_path / "z.json", groups=groups[:2])).rank is None


@pytest.mark.parametrize(
    ("inputs", "rank"),
    [
        ([[[1]], 79, ["0", "default_pg"], 1, "allreduce", [], [], 0, 1, 2], 1),
        ([79, ["0", "default_pg"], 1, "_allgather_base", [], [], 0, 1, 8], 1),
        ([[[1]], 79, ["0", "default_pg"], 1, "broadcast", [], [], 0, 1, 2], None),  # its root
        ([[[1]], 79, ["0", "default_pg"], 1, "send", [], [], 0, 1, 2], None),  # its peer
        (
            [[[1]], 79, ["4", "tp"], 1, "allreduce", [], [], 4, 1, 2],
            None,
        ),  # the rank in a group that does not begin with rank 0
        ([[[1]], 79, ["4", "dp"], 1, "allreduce", [], [], 0, 4, 2], None),
        ([[[1]], 79, ["0", "default_pg"], 0, "allreduce", [], [], 0, 1, 1], None),  # a job of one
        ([79, ["", ""], 1, "wait", [], [], -1, -1, 1], None),
        ([[1], 147, 94398426290464, 3, "all_to_allv", [768], [768]], None),  # 1.0.1: no group
        (["allreduce"], None),
    ],
)
def test_an_et_says_its_rank_by_a_collective_of_the_world(tmp_path: Path, inputs: list[Any], rank: int | None) -> None:
    path = et(tmp_path / "x.json", inputs=inputs)
    assert deep_rank(path) == rank
    path.write_bytes(path.read_bytes()[:-60])
    assert deep_rank(path) in (rank, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        b'{"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": ',
        b'{"schemaVersion": 1, "distributedInfo": {"rank": 3, "traceEvents": [',
        b'{"distributedInfo": {"rank":' + b"[" * 100_000 + b'"traceEvents": [',
        b'{"a": "\\"traceEvents\\": [{}]", "distributedInfo": "rank 3"}',
        b'{"schema": "1.0.1", "nodes": {"a": "b"}}',
        b"\x00" * 1000,
    ],
)
def test_a_head_that_is_no_trace_says_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kineto_3.json"
    path.write_bytes(content)
    assert (read_head(path).rank, deep_rank(path)) == (None, None)


@pytest.mark.parametrize(
    "rows",
    [
        b"[",
        b"[1, 2, 3]",
        b"[{}]",
        b'[{"cat": 7, "pid": {}, "ts": "soon"}]',
        b'[{"cat": "cpu_op", "pid": 7, "ts": 1e306}]',
        b'[{"name": "' + b"x" * 200_000,
    ],
)
def test_rows_that_say_nothing_spoil_no_rank(tmp_path: Path, rows: bytes) -> None:
    (path := tmp_path / "x.json").write_bytes(b'{"distributedInfo": {"rank": 3}, "traceEvents": ' + rows)
    head = read_head(path)
    assert (head.kind, head.rank, head.start_ns) == ("kineto", 3, None)


@pytest.mark.long
def test_a_head_without_end_is_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "kineto_4.json"
    path.write_bytes(
        b'{"deviceProperties": ['
        + b'{"id": 0}, ' * HEAD_BYTES
        + b'{}], "distributedInfo": {"rank": 3}, "traceEvents": []}'
    )
    path.write_bytes(gzip.compress(path.read_bytes(), 1)[:-1000])  # read to its end, it would be refused
    head = read_head(path)
    assert (head.kind, head.rank) == ("kineto", None)
    with pytest.raises(InputError, match="cut off"):
        read_kineto(path)


def test_a_head_with_groups_of_many_ranks(tmp_path: Path) -> None:
    groups = [{"pg_name": str(k), "ranks": list(range(10_000))} for k in range(20)]
    assert (
        read_head(kineto(tmp_path / "x.json", {"pg_config": groups, "rank": 9_999, "world_size": 10_000})).rank == 9_999
    )
