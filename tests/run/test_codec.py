"""Records come back from files as they were; files that are anything else are refused with a message, and nothing in
them runs.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
import zlib
from collections.abc import Callable
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
from graphlink.run.job import Inputs, Options, prepare, to_join
from graphlink.run.records import PreparedRank, RankRows

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
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    else:
        assert one == other, where


def test_all_of_a_rank_comes_back(prepared: PreparedRank, tmp_path: Path) -> None:
    assert_same(read(written(prepared), PreparedRank, tmp_path), prepared)
    comms = rank_comms(prepared.built.graph, prepared.linked, prepared.comm, prepared.rank, prepared.world_size)
    rows = RankRows(comms, prepared.plan.groups, to_join(prepared.parts), len(prepared.built.graph.kind))
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
    table = CommTable(
        np.array(row, np.int32), tuple(Comm(text, tag=number + k % 2, ranks=ranks) for k in range(len(row)))
    )
    assert_same(read(written(table), CommTable, tmp_path_factory.getbasetemp()), table)


def test_values_that_repeat_are_one_object_again(tmp_path: Path) -> None:
    table = CommTable(
        np.arange(1000, dtype=np.int32), tuple(Comm("all_reduce", ranks=tuple(range(64))) for _ in range(1000))
    )
    back = read(written(table), CommTable, tmp_path)
    assert len({id(comm) for comm in back.comms}) == 1
    assert_same(back, table)
    assert len(written(table)) < 10_000


def test_a_column_that_is_not_as_declared_is_a_bug_unless_its_values_are(tmp_path: Path) -> None:
    wide = EventRows(*(np.array([1, 2], np.int32) for _ in range(3)))  # type: ignore[arg-type]
    assert read(written(wide), EventRows, tmp_path).stream.dtype == np.int64
    with pytest.raises(AssertionError, match="declared"):
        written(CommTable(np.array([1 << 40]), (Comm("x"),)))


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


def section(sort: bytes, data: bytes) -> bytes:
    return sort.ljust(8, b"\0") + len(data).to_bytes(8, "little") + data


def table_of(*sections: bytes, kind: str = "CommTable") -> bytes:
    first = written(CommTable(np.zeros(0, np.int32), ())).partition(b"CommTable")[0]
    fields = section(b"msgpack", msgspec.msgpack.encode(["row", "comms"]))
    return checked(first + kind.encode() + b"\n" + fields + b"".join(sections) + b"....")


ROW = section(b"<i4", b"\1\0\0\0")
NO_COMMS = section(b"<i4", b"") + section(b"msgpack", b"\x90")


def test_the_sections_of_these_tests_are_those_of_the_format(tmp_path: Path) -> None:
    assert table_of(section(b"<i4", b""), NO_COMMS) == written(CommTable(np.zeros(0, np.int32), ()))


@pytest.mark.parametrize(
    ("sections", "words"),
    {
        "ragged columns": ((ROW, NO_COMMS), "not of one length"),
        "another dtype": ((section(b"<i8", b"\1" + b"\0" * 7), NO_COMMS), "'<i8' where '<i4' belongs"),
        "no dtype that numpy should see": ((section(b"|O", b"\0" * 8), NO_COMMS), "'|O'"),
        "half an entry": ((section(b"<i4", b"\1\0"), NO_COMMS), "a column"),
        "a length beyond the file": ((b"<i4\0\0\0\0\0" + b"\xff" * 8, NO_COMMS), "cut off"),
        "a type that is not declared": (
            (ROW, section(b"<i4", b"\0" * 4) + section(b"msgpack", b"\x91\xa1x")),
            "Expected `object`, got `str`",
        ),
        "a row of nothing": ((ROW, section(b"<i4", b"\1\0\0\0") + section(b"msgpack", b"\x90")), "points nowhere"),
        "nesting without end": ((ROW, section(b"<i4", b"\0" * 4) + section(b"msgpack", b"\x91" * 100_000)), ""),
        "an array of 4 billion": ((ROW, section(b"<i4", b"\0" * 4) + section(b"msgpack", b"\xdd\xff\xff\xff\xff")), ""),
        "JSON that is none": ((ROW, section(b"<i4", b"\0" * 4) + section(b"json", b"{")), ""),
        "sections that no field has": ((section(b"<i4", b""), NO_COMMS, NO_COMMS), "checksum"),
    }.values(),
)
def test_what_is_not_as_declared_is_refused(sections: tuple[bytes, ...], words: str, tmp_path: Path) -> None:
    refused(table_of(*sections), CommTable, tmp_path, words)


def test_truth_values_are_0_or_1(tmp_path: Path, prepared: PreparedRank) -> None:
    rows = prepared.linked.trace.host
    data = written(rows)
    at = data.index(b"|b1\0\0\0\0\0") + 16
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
    refused(table_of(ROW, section(b"<i4", b"\0" * 4) + section(b"msgpack", pickled)), CommTable, tmp_path)
    refused(table_of(section(b"|O", pickled), NO_COMMS), CommTable, tmp_path)
    assert not mark.exists()
    pickle.loads(pickled)
    assert mark.exists(), "else the pickle is harmless"


def test_every_struct_that_is_kept_once_is_frozen() -> None:
    for kind in (Comm, ProcessGroup):
        assert kind.__struct_config__.frozen
