"""``read_chakra`` against the protobuf messages themselves, and on files that are none."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.graph import chakra
from graphlink.graph.chakra import BAD_GROUP, UNKNOWN_DEP, ChakraFile, CommType, Fault, Has, NodeType, read_chakra
from graphlink.graph.chakra_columns import EXPECTED, NodeBlock, NodeRow, assemble
from graphlink.model import EdgeKind

A = pb.AttributeProto
TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def framed(*messages: Any) -> bytes:
    raw = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
    return b"".join(varint(len(m)) + m for m in raw)


HEAD = pb.GlobalMetadata(version="0.0.4", attr=[A(name="rank", int64_val=3), A(name="graphlink", string_val="9.9")])


def written(folder: Path, *nodes: Any, head: Any = HEAD) -> Path:
    path = folder / "t.0.et"
    path.write_bytes(framed(head, *nodes))
    return path


def reference(path: Path) -> ChakraFile:
    """The same file, every node through protobuf."""
    codes: dict[str, int] = {}
    messages = []
    with chakra.open_source(path) as source:
        messages = [m for _, m in chakra.frames(source)]
    rows = [chakra.node_row(path, 0, m, i, codes) for i, m in enumerate(messages[1:])]
    return assemble(str(path), read_chakra(path).metadata, tuple(codes), [as_block(i, r) for i, r in enumerate(rows)])


def as_block(i: int, r: NodeRow) -> NodeBlock:
    return NodeBlock(
        np.array([r.row]),
        np.array([r.id], np.uint64),
        np.array(r.data_deps, np.uint64),
        np.frombuffer(bytes([UNKNOWN_DEP]) * len(r.data_deps) if r.kinds is None else r.kinds, np.uint8),
        np.array(r.ctrl_deps, np.uint64),
        tuple(r.odd),
        {i: r.sync_call} if r.sync_call else {},
    )


def assert_same(a: Any, b: Any) -> None:
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype and x.tolist() == y.tolist(), f.name
        elif f.name == "strings":
            continue  # in order of appearance here, there as it comes: compared by name below
        elif f.name in ("data", "ctrl", "faults"):
            assert_same(x, y)
        else:
            assert x == y, f.name


ids = st.one_of(st.integers(0, 12), st.sampled_from([127, 128, 2**32, 2**56 - 1, 2**56, 2**63 - 1, 2**64 - 1]))
int64s = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
int32s = st.integers(-(2**31), 2**31 - 1)
texts = st.sampled_from(["", "0", "1", "17", "x", "1abc", "é", "9" * 18, "9" * 19, "٣"])
VALUES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "int64_val": lambda draw: {"int64_val": draw(int64s)},
    "int32_val": lambda draw: {"int32_val": draw(int32s)},
    "uint64_val": lambda draw: {"uint64_val": draw(st.integers(0, 2**64 - 1))},
    "bool_val": lambda draw: {"bool_val": draw(st.booleans())},
    "string_val": lambda draw: {"string_val": draw(texts)},
    "double_val": lambda draw: {"double_val": draw(st.sampled_from([0.0, 1.5]))},
    "none": lambda draw: {},
    "string_list": lambda draw: {"string_list": pb.StringList(values=draw(st.lists(texts, max_size=2)))},
}


@st.composite
def attributes(draw: Any) -> Any:
    name = draw(st.sampled_from([*EXPECTED, "involved_dim", "comm_type_recorded", "rf_id", "other", "start_ns2", "xomm_type_recorded"]))
    expected = EXPECTED[name][1] if name in EXPECTED else "int64_val"
    kind = draw(st.sampled_from([expected] * 12 + list(VALUES)))
    return A(name=name, doc_string=draw(st.sampled_from(["", "", "", "", "d"])), **VALUES[kind](draw))


@st.composite
def nodes(draw: Any) -> bytes:
    deps = draw(st.lists(ids, max_size=4))
    attr = draw(st.lists(attributes(), max_size=8))
    if draw(st.booleans()):
        count = len(deps) + draw(st.sampled_from([0, 0, 0, 1]))
        words = [*(k.name.lower() for k in EdgeKind), "strange", "schön"]
        values = draw(st.lists(st.sampled_from(words), min_size=count, max_size=count))
        attr.append(A(name="dep_kinds", string_list=pb.StringList(values=values)))
    if draw(st.integers(0, 9)) == 0:
        attr.append(A(name="sync_call", string_list=pb.StringList(values=["cudaStreamSynchronize"])))
    if draw(st.integers(0, 4)) == 0:
        attr.append(A(name="sync_call", string_val=draw(st.sampled_from(["", "cudaMemcpy", "é"]))))
    node = pb.Node(
        id=draw(ids),
        name=draw(st.sampled_from(["", "a", "aten::mm", "ü" * 100])),
        type=draw(st.integers(0, 9)),
        data_deps=deps,
        ctrl_deps=draw(st.lists(ids, max_size=2)),
        start_time_micros=draw(st.integers(0, 2**64 - 1)) if draw(st.booleans()) else 5,
        duration_micros=draw(st.integers(0, 2**40)),
        inputs=pb.IOInfo(shapes="[1]"),
        attr=attr,
    )
    raw: bytes = node.SerializeToString()
    # unknown fields, unpacked and repeated lists, a second name: all proper protobuf
    extra = draw(st.sampled_from([b""] * 8 + [b"\x28\x07", b"\x22\x02\x03\x04", b"\x2a\x01\x05", b"\x12\x01z", b"\x78\x01", b"\x2a\x00"]))
    return raw + extra


@settings(max_examples=300, deadline=None)
@given(st.lists(nodes(), max_size=6))
def test_columns_are_those_of_the_messages(tmp_path_factory: pytest.TempPathFactory, given_nodes: list[bytes]) -> None:
    path = written(tmp_path_factory.mktemp("et"), *given_nodes)
    got, wanted = read_chakra(path), reference(path)
    assert [got.name_of(i) for i in range(len(got.id))] == [wanted.name_of(i) for i in range(len(wanted.id))]
    object.__setattr__(got, "name", wanted.name)
    assert_same(got, wanted)


def test_a_node_of_ours(tmp_path: Path) -> None:
    attr = [A(name="is_cpu_op", bool_val=False), A(name="start_ns", int64_val=7), A(name="end_ns", int64_val=19)]
    attr += [A(name="duration_ns", int64_val=12), A(name="start_delay_ns", int64_val=5), A(name="stream", int64_val=-1)]
    attr += [A(name="dep_kinds", string_list=pb.StringList(values=["launch", "stream"])), A(name="pg_name", string_val="2")]
    attr += [A(name="comm_type", int64_val=CommType.ALL_GATHER), A(name="comm_tag", int32_val=-4)]
    node = pb.Node(id=9, name="k", type=NodeType.COMM_COLL, data_deps=[4, 5], ctrl_deps=[4], duration_micros=3, attr=attr)
    host = [pb.Node(id=i, name="h", type=4, duration_micros=1, attr=[A(name="is_cpu_op", bool_val=True)]) for i in (4, 5)]
    file = read_chakra(written(tmp_path, *host, node))
    assert (file.metadata.rank, file.metadata.graphlink, file.metadata.epoch_ns) == (3, "9.9", None)
    assert file.host.tolist() == [True, True, False]
    assert file.duration_ns.tolist() == [1000, 1000, 12]
    assert file.cost_ns.tolist() == [1000, 1000, 17]
    assert (file.start_ns[2], file.end_ns[2], file.stream[2], file.group[2], file.comm_tag[2]) == (7, 19, -1, 2, -4)
    assert file.comm_type.tolist() == [-1, -1, 2]
    assert file.data.source.tolist() == [0, 1] and file.data.first.tolist() == [0, 0, 0, 2]
    assert file.data.kind.tolist() == [EdgeKind.LAUNCH, EdgeKind.STREAM]
    assert file.ctrl.source.tolist() == [0]
    assert not file.timed and bool(file.has[2] & Has.PG_NAME)
    assert not len(file.faults.node) and not file.odd


def test_what_is_no_edge_is_kept_aside(tmp_path: Path) -> None:
    file = read_chakra(written(tmp_path, pb.Node(id=1, data_deps=[1, 2, 2, 7, 2]), pb.Node(id=2, ctrl_deps=[8]), pb.Node(id=2)))
    assert file.data.source.tolist() == [2]  # of equal ids the last
    assert file.duplicate_ids.tolist() == [2]
    assert sorted(
        zip(file.faults.node.tolist(), file.faults.id.tolist(), file.faults.data.tolist(), file.faults.fault.tolist(), strict=True)
    ) == [
        (0, 1, True, Fault.SELF),
        (0, 2, True, Fault.DUPLICATE),
        (0, 2, True, Fault.DUPLICATE),
        (0, 7, True, Fault.DANGLING),
        (1, 8, False, Fault.DANGLING),
    ]


def test_attributes_of_other_kinds_are_read_and_named(tmp_path: Path) -> None:
    attr = [A(name="is_cpu_op", int32_val=1), A(name="comm_size", uint64_val=64), A(name="pg_name", string_val="dp")]
    file = read_chakra(written(tmp_path, pb.Node(id=1, attr=attr)))
    assert (bool(file.host[0]), int(file.comm_size[0]), int(file.group[0])) == (True, 64, BAD_GROUP)
    assert [(o.name, o.kind, o.value) for o in file.odd] == [
        ("is_cpu_op", "int32_val", "1"),
        ("comm_size", "uint64_val", "64"),
        ("pg_name", "string_val", "dp"),
    ]


def test_blocks_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_nodes = [pb.Node(id=i, name=f"n{i % 7}", data_deps=[i - 1] if i else [], attr=[A(name="tid", int64_val=i)]) for i in range(500)]
    given_nodes[250].attr.append(A(name="tid", int32_val=3))
    path = written(tmp_path, *given_nodes)
    whole = read_chakra(path)
    monkeypatch.setattr(chakra, "_READ", 100)
    assert_same(read_chakra(path), whole)
    packed = tmp_path / "z.et"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_chakra(packed).data.source.tolist() == list(range(499))
    assert [(o.node, o.kind, o.value) for o in whole.odd] == [(250, "twice", "250, then 3"), (250, "int32_val", "3")]


@pytest.mark.parametrize(
    ("data", "what", "where"),
    [
        (b"", "empty", None),
        (framed(HEAD, pb.Node(id=1))[:-1], "cut off", f"byte {len(framed(HEAD))}"),
        (framed(HEAD) + b"\xff", "cut off", f"byte {len(framed(HEAD))}"),
        (framed(HEAD) + b"\xff" * 7, "no proper length", f"byte {len(framed(HEAD))}"),
        (framed(pb.Node(id=1, name="a"), pb.Node(id=2)), "GlobalMetadata", "byte 0"),
        (framed(pb.Node(name="a"), pb.Node(id=2)), "GlobalMetadata", "byte 0"),
        (framed(HEAD, b"\x12\x01\xff"), "no node", f"byte {len(framed(HEAD))}"),
        (framed(HEAD, pb.Node(id=1), b"\x0a\x03ab"), "no node", f"byte {len(framed(HEAD, pb.Node(id=1)))}"),
        (b'{"schema": "1.1.0", "nodes": []}', "no Chakra graph", None),
    ],
)
def test_broken_files(tmp_path: Path, data: bytes, what: str, where: str | None) -> None:
    path = tmp_path / "x.et"
    path.write_bytes(data)
    with pytest.raises(InputError, match=what) as problem:
        read_chakra(path)
    assert where is None or problem.value.where == where


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    raw = bytearray(framed(HEAD, *data.draw(st.lists(nodes(), min_size=1, max_size=3))))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("et") / "m.et"
    path.write_bytes(raw)
    with contextlib.suppress(InputError):
        read_chakra(path)


def test_a_converter_file_of_2024() -> None:
    path = TRACES / "megatron-tp2-v100" / "chakra-2024.0.et"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    got = read_chakra(path)
    assert_same(got, reference(path))
    assert (len(got.id), len(got.faults.node), got.timed) == (2128, 2, False)
