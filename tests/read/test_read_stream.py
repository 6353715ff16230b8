"""The block reader gives what json.loads gives, and names the place where a file is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.read import source, stream
from graphlink.read.stream import guess_cut, open_array, separator_at

NASTY = st.sampled_from(
    ["},{", "traceEvents", '"traceEvents": [', "}, {", "\\", '"', "]}", "[{", '\\"},{', "\n", "é", "{}", ","]
)
TEXT = st.lists(NASTY | st.text(max_size=4), max_size=4).map("".join)
LEAF = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
ELEMENT = st.dictionaries(TEXT, VALUE, max_size=4) | VALUE
AROUND = st.dictionaries(TEXT.filter(lambda key: key != "traceEvents"), VALUE, max_size=3)
SPACE = st.text(" \t\r\n", max_size=3)


class Spaced(json.JSONEncoder):
    """json with any white space around separators."""

    def __init__(self, comma: str, colon: str):
        super().__init__(separators=(comma, colon), ensure_ascii=False)


def read(path: Path, block_bytes: int) -> tuple[list[Any], dict[str, Any]]:
    rows: list[Any] = []
    with open_array(path, ("traceEvents",), block_bytes) as array:
        for block in array.blocks(msgspec.Raw):
            assert [*block.index[:1]] == [len(rows)][: len(block.rows)]
            rows += [json.loads(bytes(raw)) for raw in block.rows]
        return rows, {key: json.loads(bytes(raw)) for key, raw in array.around.items()}


@given(elements=st.lists(ELEMENT, max_size=12), before=AROUND, after=AROUND, spaces=st.tuples(SPACE, SPACE, SPACE, SPACE),
       block_bytes=st.integers(1, 80))  # fmt: skip
def test_blocks_equal_json_loads(tmp_path_factory, elements, before, after, spaces, block_bytes):
    one, two, three, four = spaces
    after = {key: value for key, value in after.items() if key not in before}
    document = before | {"traceEvents": elements} | after
    path = tmp_path_factory.mktemp("d") / "t.json"
    path.write_text(
        one + Spaced(two + "," + three, four + ":" + one).encode(document) + two, encoding="utf-8", newline=""
    )
    rows, around = read(path, block_bytes)
    assert rows == elements
    assert around == before | after


@pytest.mark.parametrize("key", ['"traceEvents', 'x"traceEvents', '\\"traceEvents'])
def test_a_key_that_ends_like_that_of_the_list_is_another(tmp_path, key):
    document = {key: [1], "traceEvents": [{"a": 1}]}
    (tmp_path / "t.json").write_text(json.dumps(document))
    for block_bytes in (1, 3, 20, 80):
        assert read(tmp_path / "t.json", block_bytes) == ([{"a": 1}], {key: [1]})


@given(
    elements=st.lists(ELEMENT, max_size=12), comma=st.sampled_from([",", " ,\n", ", "]), block_bytes=st.integers(1, 80)
)
def test_bare_list(tmp_path_factory, elements, comma, block_bytes):
    path = tmp_path_factory.mktemp("d") / "t.json"
    path.write_text(Spaced(comma, ":").encode(elements), encoding="utf-8", newline="")
    assert read(path, block_bytes) == (elements, {})


@given(elements=st.lists(st.dictionaries(TEXT, VALUE, max_size=4), min_size=1, max_size=8))
def test_scan_finds_the_end_over_any_slice(elements):
    text = json.dumps(elements, ensure_ascii=False).encode()
    before, stream._SLICE = stream._SLICE, 7
    try:
        cut, end = stream.scan(text + b', "x": [{}, {}]}')
    finally:
        stream._SLICE = before
    assert end == len(text) - 1
    if len(elements) > 1:
        assert json.loads(text[:cut] + b"]") == elements[:-1]


def test_separator_is_learned_where_elements_hold_lists_of_objects():
    buffer = b'[{"id":1,"attrs":[{"name":1},{"name":2}]},{"id":2,"attrs":[{"name":1},{"name":2}]'
    cut = stream.scan(buffer)[0]
    assert guess_cut(buffer) != cut
    assert guess_cut(buffer, separator_at(buffer, cut)) == cut


def test_a_wrong_guess_of_where_a_block_ends_is_not_taken_for_text_to_be_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(text: bytes) -> bytes:
        raise AssertionError(text)

    elements = [{"id": number, "attrs": [{"name": "a"}, {"name": "b"}]} for number in range(3)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": elements}))
    monkeypatch.setattr(stream, "mended", refused)
    assert read(tmp_path / "t.json", 1 << 20) == (elements, {})


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.ZstdCompressor().compress, lambda data: b"\xef\xbb\xbf" + data]
)
def test_packing_is_told_by_content(tmp_path, pack):
    path = tmp_path / "t.json"
    path.write_bytes(pack(b'{"traceEvents": [{"a": 1}, {"a": 2}], "z": 3}'))
    assert read(path, 10) == ([{"a": 1}, {"a": 2}], {"z": 3})


@pytest.mark.parametrize(
    ("text", "byte"),
    [
        (b'{"traceEvents": [{"a": 1}, {"a": Nix}, {"a": 1}]}', 33),
        (b'{"traceEvents": [{"a": 1},, {"a": 1}]}', 26),
        (b'{"traceEvents": [{"a": 1}, {"a": 1},,]}', 36),
        (b'{"traceEvents": [, {"a": 1}]}', 17),
        (b'{"traceEvents": [{"a": 1}] "b": 1}', 27),
        (b'{"traceEvents": [{"a": 1}], "b": 1} {}', 36),
        (b'{"b": tru, "traceEvents": [{"a": 1}]}', 6),
        (b'[{"a": 1}] x', 11),
        (b"[{}, }", 5),
        (b"hello", 0),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 9, 4096])
def test_malformed_text_names_the_byte(tmp_path, text, byte, block_bytes):
    path = tmp_path / "t.json"
    path.write_bytes(text)
    with pytest.raises(InputError) as error:
        read(path, block_bytes)
    assert error.value.path == path
    assert abs(int(error.value.where.split()[1]) - byte) <= 1


def test_cut_files(tmp_path):
    whole = b'{"traceEvents": [' + b", ".join(b'{"a": %d}' % i for i in range(1000)) + b'], "z": 1}'
    path = tmp_path / "t.json"
    for data, what in (
        (whole[:5000], "ends inside"),
        (gzip.compress(whole[:5000]), "ends inside"),
        (gzip.compress(whole)[:-300], "cut off"),
        (zstandard.compress(whole)[:-300], "cut off"),
        (whole[:-1], "not valid JSON"),
        (whole + whole[100:], "not valid JSON"),
        (whole.decode().encode("utf-16"), "UTF-16"),
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"events": []}', "no list"),
        (b'{"traceEvents": {}}', "no list"),
        (b'{"a": {"traceEvents": [1]}}', "no list"),
        (b'{"traceEvents": [{}], "traceEvents": [{}]}', "a second"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=what):
            read(path, 512)


def test_damaged_packing_says_decompressed(tmp_path):
    data = bytearray(gzip.compress(b"[" + b", ".join(b'{"a": %d}' % (i * i) for i in range(30000)) + b"]"))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "t.json.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match="decompressed text"):
        read(path, 512)


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.json", 512)
    with pytest.raises(InputError, match="folder"):
        read(tmp_path, 512)
    with pytest.raises(InputError, match="cannot be read"):
        read(Path("a\0b"), 512)


def test_nesting_and_bombs_stay_bounded(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    path.write_bytes(b'[{"a": 1}, {"a": ' + b"[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        read(path, 4096)
    monkeypatch.setattr(stream, "MAX_ELEMENT_BYTES", 1 << 20)
    monkeypatch.setattr(stream, "MAX_AROUND_BYTES", 1 << 20)
    for text, what in (
        (b'[{"a": 1}, {"a": "' + b"x" * (1 << 23), "larger than 1 MB"),
        (b" " * (1 << 23), "in the first 1 MB"),
        (b'{"traceEvents": []' + b" " * (1 << 23), "follow the list"),
    ):
        path.write_bytes(gzip.compress(text))
        with pytest.raises(InputError, match=what):
            read(path, 1 << 16)


def test_rows_of_another_shape_are_told_apart(tmp_path):
    class Row(msgspec.Struct):
        a: int

    path = tmp_path / "t.json"
    path.write_bytes(b'[{"a": 1}, {"a": "x"}, 7, {"a": 2}]')
    with open_array(path, ("traceEvents",), 5) as array:
        blocks = list(array.blocks(Row))
    assert [(i, row.a) for block in blocks for i, row in zip(block.index, block.rows, strict=True)] == [(0, 1), (3, 2)]
    assert [bad for block in blocks for bad in block.bad.items()] == [(1, b'{"a": "x"}'), (2, b"7")]


def test_mangled_utf8_in_a_row_is_replaced(tmp_path):
    class Row(msgspec.Struct):
        a: str

    path = tmp_path / "t.json"
    path.write_bytes(b'[{"a": "x\xffy"}, {"a": "z"}]')
    with open_array(path, ()) as array:
        assert [row.a for block in array.blocks(Row) for row in block.rows] == ["x\ufffdy", "z"]


def test_a_file_that_unpacks_to_far_more_than_recordings_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SURELY_BYTES", 1 << 20)
    text = b'{"traceEvents":[' + (b'{"name":"' + b"a" * 200 + b'"},') * 20_000 + b"{}]}"
    for packed in (gzip.compress(text, 9), zstandard.compress(text, 19)):
        (tmp_path / "bomb").write_bytes(packed)
        with pytest.raises(InputError, match="256 times its size"):
            read(tmp_path / "bomb", 1 << 16)
    (tmp_path / "bomb").write_bytes(text)  # a plain file is as long as it is
    assert len(read(tmp_path / "bomb", 1 << 16)[0]) == 20_001


@given(sizes=st.lists(st.sampled_from([1, 5, 60, 300]), min_size=1, max_size=12))
def test_a_long_element_among_short_ones_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    elements = [{"a": "x" * size} if size > 5 else {} for size in sizes]
    path = tmp_path_factory.mktemp("long") / "trace.json"
    path.write_text(json.dumps({"traceEvents": elements, "after": 1}))
    rows, around = read(path, 16)
    assert rows == elements
    assert around == {"after": 1}


def test_what_follows_a_long_element_is_no_block_of_its_length(tmp_path: Path) -> None:
    long = '{"a": "' + "x" * 100_000 + '"}'
    (tmp_path / "trace.json").write_text(
        '{"traceEvents": [' + ", ".join(["{}"] * 100 + [long] + ["{}"] * 40_000) + "]}"
    )
    with open_array(tmp_path / "trace.json", ("traceEvents",), 1 << 10) as array:
        sizes = [len(block.rows) for block in array.blocks(msgspec.Raw)]
    assert sum(sizes) == 40_101
    assert max(sizes) < 2_000


def test_more_keys_around_the_list_than_any_recording_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_KEYS", 1_000)
    keys = b'"a":1,' * 2_000
    for text in (b"{" + keys + b'"traceEvents":[{}]}', b'{"traceEvents":[{}],' + keys + b'"b":1}'):
        (tmp_path / "trace.json").write_bytes(text)
        with pytest.raises(InputError, match="1,000 keys"):
            read(tmp_path / "trace.json", 1 << 12)


def test_elements_without_end_that_are_none_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_BAD", 1_000)
    (tmp_path / "trace.json").write_bytes(b'{"traceEvents":[' + b"1," * 5_000 + b"{}]}")
    with (
        pytest.raises(InputError, match="1,000"),
        open_array(tmp_path / "trace.json", ("traceEvents",), 1 << 10) as array,
    ):
        list(array.blocks(dict))
