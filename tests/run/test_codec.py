"""Records come back from files as they were; files that are anything else are refused with a message, and nothing in
them runs.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.model import Comm, CommTable, EventRows, HostRows, ProcessGroup, Trace
from graphlink.ranks.columns import rank_comms
from graphlink.run import codec
from graphlink.run.job import Inputs, Options, prepare
from graphlink.run.records import PreparedRank, RankRows
from graphlink.tables import comm_table
from graphlink.wings import Parts

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"


@pytest.fixture(scope="module")
def prepared() -> PreparedRank:
    inputs = Inputs(kineto=DEMO / "kineto_0.json", et=DEMO / "et_0.json")
    return prepare(inputs, Options(sync="cuda", linked=True))


def written(record: object) -> bytes:
    parts: list[bytes] = []
    codec.dump(record, lambda data: parts.append(bytes(data)))
    return b"".join(parts)


def read(data: bytes, kind: type[Any], folder: Path) -> Any:
    path = folder / "record.columns"
    path.write_bytes(data)
    with path.open("rb") as file:
        return codec.load(file, kind, path, "run it again")


def checked(data: bytes) -> bytes:
    """With the checksum that belongs to it."""
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


def assert_same(one: Any, other: Any, where: str = "") -> None:
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and np.array_equal(one, other), where
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, dict | Parts):
        assert list(one) == list(other), where
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    else:
        assert one == other, where


def test_all_of_a_rank_comes_back(prepared: PreparedRank, tmp_path: Path) -> None:
    assert_same(read(written(prepared), PreparedRank, tmp_path), prepared)
    comms = rank_comms(prepared.built.graph, prepared.linked, prepared.comm, prepared.rank, prepared.world_size)
    rows = RankRows(comms, prepared.plan.groups, prepared.parts.asked("to_join"), len(prepared.built.graph.kind))
    assert_same(read(written(rows), RankRows, tmp_path), rows)
    assert written(prepared) == written(read(written(prepared), PreparedRank, tmp_path)), (
        "so that a digest is of values"
    )


@settings(deadline=None)
@given(
    row=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=5),
    text=st.text(st.characters(), max_size=5),
    number=st.integers(-(1 << 80), 1 << 80),
    ranks=st.none() | st.lists(st.integers(0, 9)).map(tuple),
)
def test_any_text_and_number_comes_back(
    row: list[int], text: str, number: int, ranks: tuple[int, ...] | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = comm_table({k: Comm(text, tag=number + k % 2, ranks=ranks) for k in row})
    assert_same(read(written(table), CommTable, tmp_path_factory.getbasetemp()), table)


def test_values_that_repeat_are_one_object_again(tmp_path: Path) -> None:
    table = comm_table({k: Comm("all_reduce", ranks=tuple(range(64))) for k in range(1000)})
    back = read(written(table), CommTable, tmp_path)
    assert len({id(comm) for comm in back.comms}) == 1
    assert_same(back, table)
    assert len(written(table)) < 10_000


def test_a_column_that_is_not_as_declared_is_refused_unless_its_values_are(tmp_path: Path) -> None:
    wide = EventRows(*(np.array([1, 2], np.int32) for _ in range(3)))  # type: ignore[arg-type]
    assert read(written(wide), EventRows, tmp_path).stream.dtype == np.int64
    refused(written(replace(NO_COMMS, row=np.array([1 << 40]))), CommTable, tmp_path, "declared")


def refused(data: bytes, kind: type[Any], folder: Path, *words: str) -> None:
    with pytest.raises(InputError) as said:
        read(data, kind, folder)
    for word in (str(folder / "record.columns"), "run it again", *words):
        assert word in str(said.value)


def test_a_file_that_is_cut_anywhere_is_refused(prepared: PreparedRank, tmp_path: Path) -> None:
    data = written(prepared.built)
    for end in {0, 1, 20, *range(21, len(data), 997), len(data) - 4, len(data) - 1}:
        refused(data[:end], type(prepared.built), tmp_path)
    refused(data + b"\0", type(prepared.built), tmp_path, "checksum")


def test_a_file_in_which_a_byte_is_another_is_refused(prepared: PreparedRank, tmp_path: Path) -> None:
    data, rng = written(prepared.built), random.Random(1)
    for _ in range(300):
        at = rng.randrange(len(data))
        refused(
            data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :], type(prepared.built), tmp_path
        )


def test_a_byte_that_is_another_with_its_checksum_is_refused_or_read(prepared: PreparedRank, tmp_path: Path) -> None:
    data, rng = written(prepared.linked.trace), random.Random(2)
    for _ in range(300):
        at = rng.randrange(len(data) - 4)
        changed = checked(data[:at] + rng.randbytes(1) + data[at + 1 :])
        try:
            assert isinstance(read(changed, Trace, tmp_path), Trace)
        except InputError as problem:
            assert str(tmp_path) in str(problem)


def table_of(*fields: object, columns: bytes = b"", sort: bytes = b"msgpack", kind: str = "CommTable") -> bytes:
    """Return the file of a table of communication with these ``fields``, or with the bytes of its head."""
    first = written(NO_COMMS).partition(b"CommTable")[0]
    named = dict(zip(("row", "number", "distinct"), fields, strict=False))
    head = fields[0] if isinstance(fields[0], bytes) else msgspec.msgpack.encode(named)
    head = sort.ljust(8, b"\0") + len(head).to_bytes(8, "little") + head
    return checked(first + kind.encode() + b"\n" + head + columns + b"....")


NO_COMMS = comm_table({})
ROW, NO_ROW = ("<i4", 4), ("<i4", 0)


def test_the_files_of_these_tests_are_those_of_the_format() -> None:
    assert table_of(NO_ROW, NO_ROW, ()) == written(NO_COMMS)
    one = table_of(ROW, ROW, (Comm("x"),), columns=b"\5\0\0\0" + bytes(4))
    assert one == written(comm_table({5: Comm("x")}))


@pytest.mark.parametrize(
    ("made", "words"),
    {
        "ragged columns": ({"fields": (ROW, NO_ROW, ()), "columns": bytes(4)}, "not of one length"),
        "a dtype of other values": (
            {"fields": (("<i8", 8), NO_ROW, ()), "columns": bytes(7) + b"\1"},
            "a column of <i8 is declared as int32",
        ),
        "no dtype that numpy should see": ({"fields": (("|O", 8), NO_ROW, ()), "columns": bytes(8)}, "'|O'"),
        "half an entry": ({"fields": (("<i4", 2), NO_ROW, ()), "columns": bytes(2)}, "a column"),
        "a length beyond the file": ({"fields": (("<i4", (1 << 64) - 1), NO_ROW, ())}, "cut off"),
        "a length below 0": ({"fields": (("<i4", -4), NO_ROW, ())}, "negative"),
        "a column that is none": ({"fields": (7, NO_ROW, ())}, "row"),
        "a type that is not declared": ({"fields": (NO_ROW, NO_ROW, ("x",))}, "Expected `object`, got `str`"),
        "a field that is not there": ({"fields": (NO_ROW, NO_ROW)}, "distinct"),
        "nesting without end": ({"fields": (b"\x91" * 100_000,)}, ""),
        "an array of 4 billion": ({"fields": (b"\xdd\xff\xff\xff\xff",)}, ""),
        "JSON that is none": ({"fields": (b"{",), "sort": b"json"}, ""),
        "columns that no field has": ({"fields": (NO_ROW, NO_ROW, ()), "columns": bytes(4)}, "checksum"),
    }.values(),
)
def test_what_is_not_as_declared_is_refused(made: dict[str, Any], words: str, tmp_path: Path) -> None:
    refused(table_of(*made.pop("fields"), **made), CommTable, tmp_path, words)


def test_truth_values_are_0_or_1(tmp_path: Path, prepared: PreparedRank) -> None:
    rows = prepared.linked.trace.host
    data = written(rows)
    at = data.index(rows.annotation.tobytes())
    refused(checked(data[:at] + b"\2" + data[at + 1 :]), HostRows, tmp_path, "a column")


def test_the_file_of_another_record_or_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = EventRows(*(np.zeros(0, np.int64) for _ in range(3)))
    refused(written(group), CommTable, tmp_path, "another version")
    monkeypatch.setattr(codec, "__version__", "0.0.1")
    data = written(group)
    monkeypatch.undo()
    refused(data, EventRows, tmp_path, "another version")


class Runs:
    """A value whose pickle calls something when it is loaded."""

    def __init__(self, call: Callable[..., object], *given: object) -> None:
        self.made = call, given

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.made


def test_a_planted_pickle_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pickled = pickle.dumps(Runs(Path.touch, mark))
    refused(pickled, PreparedRank, tmp_path)
    refused(table_of(pickled), CommTable, tmp_path)
    refused(table_of(("|O", len(pickled)), NO_ROW, (), columns=pickled), CommTable, tmp_path)
    assert not mark.exists()
    pickle.loads(pickled)
    assert mark.exists(), "else the pickle is harmless"


def test_every_struct_that_is_kept_once_is_frozen() -> None:
    for kind in (Comm, ProcessGroup):
        assert kind.__struct_config__.frozen
