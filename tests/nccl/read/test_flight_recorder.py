"""Dumps of PyTorch's Flight Recorder: real ones of gloo, written ones whose truth is known, and pickles that mean harm.

``real/``: rank 1 of two, PyTorch 2.13, gloo on CPU: all_reduce of 8, all_gather of 6, all_reduce of 3 x 5 BFloat16 in
the group "pair", barrier; ``_dump_fr_trace(True, False, False)`` and ``_dump_fr_trace_json()``.
"""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.nccl.read import pickled
from graphlink.nccl.read.pickled import Refused, load
from graphlink.nccl.read.read import read_dump, read_dump_head
from graphlink.nccl.read.records import Dump
from graphlink.read.kinds import DumpKind

REAL = Path(__file__).parent / "real"
FEW_CONTAINERS = 1 << 10  # as many as are refused, in a test


def entry(name: str, group: str, seq: int, shapes: tuple[Any, Any], **more: Any) -> dict[str, Any]:
    taken, given_ = shapes
    return {
        "record_id": seq, "op_id": seq, "pg_id": 0, "process_group": (group, "default_pg" if group == "0" else "tp"),
        "collective_seq_id": seq, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": name,
        "input_sizes": taken, "input_dtypes": ["Float"] * len(taken), "output_sizes": given_, "output_dtypes": ["Float"] * len(given_),
        "time_created_ns": 10**18 + seq, "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "state": "scheduled",
        "retired": False, "timeout_ms": 600000, "frames": [{"name": "f", "filename": "x.py", "line": 1}],
    } | more  # fmt: skip


ENTRIES = [
    entry("nccl:all_reduce", "0", 1, ([[2, 3], [4]], [[2, 3], [4]]), duration_ms=1.5, state="completed",
          time_discovered_completed_ns=10**18 + 500),
    entry("nccl:_reduce_scatter_base", "5", 7, ([[8]], [[2]])),
    entry("nccl:_all_gather_base", "5", 8, ([[2]], [[8]])),
    entry("nccl:send 1->2", "5", 0, ([[10]], []), is_p2p=True, p2p_seq_id=3),
    entry("xccl:recv 1<-0", "5", 0, ([[5]], [[7]]), is_p2p=True, p2p_seq_id=4),
    entry("nccl:all_reduce_barrier", "0", 2, ([[1]], [[1]])),
]  # fmt: skip
CONFIG = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
    "5": {"name": "5", "desc": "tp", "ranks": "[4, 5, 6, 7]"},
}
WHOLE = {"version": "2.10", "pg_config": CONFIG, "comm_lib_version": "2.27.3", "pg_status": {}, "entries": ENTRIES}
WRITERS: dict[str, Callable[[Any], bytes]] = {
    f"pickle {number}": lambda value, number=number: pickle.dumps(value, number) for number in range(2, 6)
}
WRITERS["json"] = lambda value: json.dumps(value).encode()
WRITERS["indented json"] = lambda value: json.dumps(value, indent=1).encode()


def texts(dump: Dump, column: Any) -> list[str]:
    return [dump.strings[number] for number in column.tolist()]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_real_dumps_of_gloo(form: str) -> None:
    dump = read_dump(REAL / f"gloo_rank_1.{form}")
    calls = dump.calls
    assert (dump.kind, dump.rank, dump.events, dump.left_out, dump.warnings) == (
        DumpKind.FLIGHT_RECORDER,
        1,
        4,
        {},
        (),
    )
    assert [(group.key, group.desc, group.ranks) for group in dump.communicators] == [
        ("0", "default_pg", None),
        ("1", "pair", None),
    ]
    assert texts(dump, calls.function) == ["allreduce", "allgather", "allreduce", "barrier"]
    assert texts(dump, calls.dtype) == ["Float", "Float", "BFloat16", ""]
    assert (calls.communicator.tolist(), calls.seq.tolist(), calls.rank.tolist()) == (
        [0, 0, 1, 0],
        [1, 2, 1, 3],
        [1] * 4,
    )
    assert (calls.count.tolist(), calls.bytes.tolist()) == ([8, 6, 15, NOWHERE], [32, 48, 30, NOWHERE])
    assert calls.start_ns.tolist() == [
        1795307787541607147,
        1795307787542268126,
        1795307787542652856,
        1795307787543257211,
    ]
    assert calls.end_ns.tolist() == [0] * 4


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_field_is_read(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    path = tmp_path / "no_number_in_the_name"
    path.write_bytes(write(WHOLE))
    dump = read_dump(path)
    calls = dump.calls
    assert dump.rank == 5, "rank 1 of the group 4, 5, 6, 7"
    assert [group.ranks for group in dump.communicators] == [tuple(range(8)), (4, 5, 6, 7)]
    assert [group.size for group in dump.communicators] == [8, 4]
    assert texts(dump, calls.function) == ["allreduce", "reducescatter", "allgather", "send", "recv", "barrier"]
    assert calls.count.tolist() == [10, 2, 2, 10, 7, 1]
    assert calls.bytes.tolist() == [40, 32, 32, 40, 28, 4]
    assert (calls.peer.tolist(), calls.seq.tolist()) == ([NOWHERE] * 3 + [2, 0, NOWHERE], [1, 7, 8, 3, 4, 2])
    assert (calls.exec_ns.tolist()[0], calls.end_ns.tolist()) == (1_500_000, [10**18 + 500] + [0] * 5)
    assert set(calls.rank.tolist()) == {5}
    head = read_dump_head(path)
    assert head is not None
    assert (head.rank, [rank for _, rank in head.members]) == (5, [5, 1])


@pytest.mark.parametrize(
    "config",
    [
        {"4": CONFIG},
        [CONFIG["0"], CONFIG["5"]],
        [{"uid": "0", "desc": "default_pg", "ranks": list(range(8))}, {"uid": "5", "ranks": [4, 5, 6, 7]}],
        {0: CONFIG["0"], "5": CONFIG["5"] | {"ranks": [4, 5, 6, 7]}},
    ],
)
def test_groups_are_listed_in_several_ways(tmp_path: Path, config: Any) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps(WHOLE | {"pg_config": config}, 2))
    assert [group.ranks for group in read_dump(tmp_path / "x").communicators] == [tuple(range(8)), (4, 5, 6, 7)]


def test_the_name_gives_the_rank_that_the_content_does_not(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(pickle.dumps(WHOLE | {"entries": ENTRIES[:1]}, 2))
    assert read_dump(path).rank == 3
    path.write_bytes(pickle.dumps(WHOLE, 2))
    assert read_dump(path).rank == 5
    (tmp_path / "x").write_bytes(pickle.dumps(WHOLE | {"entries": ENTRIES[:1]}, 2))
    assert read_dump(tmp_path / "x").rank is None


def test_a_recorder_that_recorded_nothing_still_lists_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({key: value for key, value in WHOLE.items() if key != "entries"}))
    dump = read_dump(path)
    assert (dump.events, [group.key for group in dump.communicators]) == (0, ["0", "5"])


def test_early_recorders_wrote_a_bare_list_and_one_sequence_number(tmp_path: Path) -> None:
    early = [
        {"profiling_name": "nccl:all_reduce", "pg_id": 2, "seq_id": seq, "input_sizes": [[4]], "input_dtypes": ["Half"]}
        for seq in (8, 9)
    ]
    (tmp_path / "x").write_bytes(pickle.dumps(early, 2))
    dump = read_dump(tmp_path / "x")
    assert ([group.key for group in dump.communicators], dump.calls.seq.tolist(), dump.calls.bytes.tolist()) == (
        ["2"],
        [8, 9],
        [8, 8],
    )
    assert dump.warnings == ("its version is not said: 2.x is known, other fields may be missing",)


def test_what_is_no_entry_is_counted(tmp_path: Path) -> None:
    for write in (WRITERS["json"], WRITERS["pickle 2"]):
        (tmp_path / "x").write_bytes(
            write(WHOLE | {"entries": [ENTRIES[0], 7, None, {"profiling_name": 3}], "version": "1.0"})
        )
        dump = read_dump(tmp_path / "x")
        assert (dump.events, dump.left_out) == (4, {"entries that are no objects": 2, "entries without a name": 1})
        assert dump.warnings == ("its version is another one: 2.x is known, other fields may be missing",)


class Runs:
    """A value whose pickle runs a command when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


class Slots:
    """Pickled with NEWOBJ and BUILD."""


def around(body: bytes) -> bytes:
    """A pickle of ``{"pg_config": <body>}``."""
    return b"\x80\x02}X" + struct.pack("<I", 9) + b"pg_config" + body + b"s."


def short(text: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text


def hostile(mark: Path) -> dict[str, bytes]:
    command = short(f"touch {mark}".encode())
    return {
        **{
            f"REDUCE, protocol {number}": pickle.dumps({"entries": [], "pg_config": Runs(mark)}, number)
            for number in (2, 3, 4, 5)
        },
        "NEWOBJ": pickle.dumps({"pg_config": Slots()}, 2),
        "NEWOBJ_EX": around(b"cos\nsystem\n(" + command + b"t}\x92"),
        "GLOBAL": around(b"cos\nsystem\n"),
        "STACK_GLOBAL": around(short(b"os") + short(b"system") + b"\x93"),
        "INST": around(b"(" + command + b"ios\nsystem\n"),
        "OBJ": around(b"(cos\nsystem\n" + command + b"o"),
        "BUILD": around(b"]}b"),
        "EXT1": around(b"\x82\x01"),
        "EXT2": around(b"\x83\x01\x00"),
        "EXT4": around(b"\x84\x01\x00\x00\x00"),
        "PERSID": around(b"Pos.system\n"),
        "BINPERSID": around(command + b"Q"),
        "NEXT_BUFFER": around(b"\x97"),
    }


@pytest.mark.parametrize("name", sorted(hostile(Path("x"))))
def test_a_pickle_never_runs(tmp_path: Path, name: str) -> None:
    mark, path = tmp_path / "ran", tmp_path / "nccl_trace_rank_0"
    path.write_bytes(hostile(mark)[name])
    with pytest.raises(InputError, match="asks for more than plain values"):
        read_dump(path)
    head = read_dump_head(path)
    assert head is not None
    assert head.rank == 0
    assert not mark.exists()


def test_the_payload_would_have_run(tmp_path: Path) -> None:
    """The pickles above are real ones: Python's own reader runs them."""
    for name in ("REDUCE, protocol 2", "INST", "OBJ"):
        mark = tmp_path / name.replace(" ", "")
        pickle.loads(hostile(mark)[name])
        assert mark.exists(), name


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"r\xff\xff\xff\xff", None),  # a memo place far out: Python's own reader would ask for 64 GB
        (b"\x8d" + struct.pack("<Q", 1 << 60), "damaged or cut"),  # a text of 2**60 bytes
        (b"X\xff\xff\xff\xffabc", "damaged or cut"),
        (b"\x96" + struct.pack("<Q", 1 << 40), "BYTEARRAY8"),
        (b"]" * (FEW_CONTAINERS + 1), "lists and dicts"),
        (b"(" * (FEW_CONTAINERS + 1), "lists and dicts"),
        (b"h\x63", "damaged or cut"),  # a memo place that was never set
        (b"(]u", "damaged or cut"),
        (b"\x87", "damaged or cut"),
        (b"e", "damaged or cut"),
        (b"\x8a\xff", "damaged or cut"),
        (short(b"\xff\xfe"), "damaged or cut"),
        (b"}" + b"K\x01\x85" + b"K\x01s", "damaged or cut"),  # a tuple as a key
        (b"", "damaged or cut"),
    ],
)
def test_a_few_bytes_cannot_ask_for_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, what: str | None
) -> None:
    monkeypatch.setattr(pickled, "MOST_CONTAINERS", FEW_CONTAINERS)
    path = tmp_path / "x"
    path.write_bytes(around(b"}" + body if what is None else body))
    if what is None:
        assert read_dump(path).events == 0
        return
    with pytest.raises(InputError, match=what):
        read_dump(path)


def test_values_that_hold_themselves_or_are_deep_are_read(tmp_path: Path) -> None:
    itself = b"]q\x00h\x00a"
    deep = b"]" * 100_000 + b"a" * 99_999
    nested = (
        short(b"entries")
        + b"](}"
        + short(b"profiling_name")
        + short(b"nccl:all_reduce")
        + b"s}"
        + short(b"profiling_name")
        + deep
        + b"se"
    )
    sizes = b"}" + short(b"profiling_name") + short(b"nccl:send 0->1") + b"s" + short(b"input_sizes") + itself + b"s"
    for entries in (nested, short(b"entries") + b"](" + sizes + b"e", short(b"entries") + itself):
        (tmp_path / "x").write_bytes(b"\x80\x02}" + short(b"pg_config") + itself + b"s" + entries + b"s.")
        dump = read_dump(tmp_path / "x")
        assert dump.events == (2 if entries is nested else 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
        | st.lists(inner).map(tuple)
    ),
    max_leaves=20,
)


@given(VALUES, st.integers(2, 5))
def test_plain_values_are_what_pickle_says(value: Any, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(text: bytes) -> None:
    try:
        load(b"\x80\x02" + text)
    except Refused as problem:
        assert 0 <= problem.args[1] <= len(text) + 20


def test_no_opcode_can_reach_code() -> None:
    """Of all opcodes alone on a full stack, the reader has none that it carries out beyond plain values."""
    carried_out = set()
    for opcode in pickletools.opcodes:
        try:
            load(b"\x80\x02}](K\x01K\x02K\x03" + opcode.code.encode("latin-1") + b"\x00" * 8 + b".")
        except Refused as problem:
            if f"({opcode.name})" in problem.args[0]:
                continue
        carried_out.add(opcode.name)
    assert carried_out.isdisjoint({
        "GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID",
    })  # fmt: skip
    assert {"EMPTY_DICT", "SETITEMS", "BINUNICODE", "MEMOIZE"} <= carried_out
