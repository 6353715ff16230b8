"""``read_et`` against the protobuf messages themselves, and on files that are none."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as pb
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from graphlink.depend.build import BuildOptions, build
from graphlink.errors import InputError
from graphlink.graph import et_nodes
from graphlink.graph import read_et as chakra
from graphlink.graph.fold import fold
from graphlink.graph.read_et import read_et
from graphlink.graph.target import plan
from graphlink.graph.target import written as as_written
from graphlink.graph.write_et import micros, write_et
from graphlink.graph_model import BAD_GROUP, HAS, UNKNOWN_DEP, EdgeKind, Fault, Graph, NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.linking.communication import communication as find_communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import CommKind
from graphlink.ranks.group_ids import assign
from graphlink.read.kineto import read_kineto
from tests.comm_ops import Op
from tests.pipeline.hand import ALL_REDUCE, communication, every_kind
from tests.simulator import Execution, write_kineto
from tests.simulator.strategies import Limits, executions

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


def reference(path: Path) -> tuple[dict[str, list[Any]], list[tuple[int, str, str, str]], dict[int, tuple[str, ...]]]:
    """Columns, odd attributes and calls as they stand in the messages, each looked up by itself."""
    with chakra.open_source(path) as source:
        given_nodes = [pb.Node.FromString(m) for _, m in list(chakra.frames(source))[1:]]
    columns: dict[str, list[Any]] = {}
    odd, calls = [], {}
    for i, node in enumerate(given_nodes):
        last = {a.name: a for a in node.attr}
        for name, value in row_of(node, last).items():
            columns.setdefault(name, []).append(value)
        for k, a in enumerate(node.attr):
            first = next(b for b in node.attr if b.name == a.name)
            if a.name in FIELDS and k and shown(first) != shown(a):
                odd.append((i, a.name, "twice", f"{shown(first)}, then {shown(a)}"))
            if a.name in FIELDS and (a.WhichOneof("value") != FIELDS[a.name] or number(a, NO_NUMBER) == NO_NUMBER):
                odd.append((i, a.name, a.WhichOneof("value") or "", shown(a)))
            if a.name == "dep_kinds" and len(a.string_list.values) != len(node.data_deps):
                odd.append((i, a.name, a.WhichOneof("value") or "", f"{len(a.string_list.values)} entries"))
        if "sync_call" in last:
            calls[i] = tuple(last["sync_call"].string_list.values) or (last["sync_call"].string_val,)
    return columns, odd, calls


def shown(a: Any) -> str:
    kind = a.WhichOneof("value")
    return str(getattr(a, kind)).strip()[:80] if kind else ""


def number(a: Any, bad_group: int = BAD_GROUP) -> int:
    kind = a.WhichOneof("value")
    value = getattr(a, kind) if kind else None
    if a.name == "pg_name" and kind == "string_val":
        return 0 if value == "" else int(value) if re.fullmatch("[0-9]{1,18}", value) else bad_group
    if isinstance(value, int):
        return min(int(value), 2**63 - 1)
    return BAD_GROUP if a.name == "pg_name" else 0


def row_of(node: Any, last: dict[str, Any]) -> dict[str, Any]:
    """The columns that hold what one node says itself."""
    most = (2**63 - 1) // 1000
    value = {name: number(last[name]) if name in last else -1 if name in NONE_IS_NOWHERE else 0 for name in FIELDS}
    bits = [HAS[n] for n in (*FIELDS, "dep_kinds", "involved_dim", "comm_type_recorded") if n in last]
    micros = min(node.duration_micros, most)
    start = value["start_ns"] if "start_ns" in last else min(node.start_time_micros, most) * 1000
    duration = value["duration_ns"] if "duration_ns" in last else micros * 1000
    out = {
        name: wrapped(v, 32) if name in INT32 else v
        for name, v in value.items()
        if name not in ("is_cpu_op", "pg_name")
    }
    host = value["is_cpu_op"] != 0
    return out | {
        "id": node.id,
        "name": node.name,
        "type": node.type,
        "host": host,
        "has": sum(bits),
        "start_ns": start,
        "end_ns": value["end_ns"] if "end_ns" in last else wrapped(start + duration),
        "duration_ns": duration,
        "cost_ns": duration if host else wrapped(duration + value["start_delay_ns"]),
        "duration_micros": micros,
        "group": value["pg_name"],
    }


def wrapped(n: int, bits: int = 64) -> int:
    half: int = 1 << (bits - 1)
    return (n + half) % (2 * half) - half


def dependencies(
    path: Path,
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]], list[tuple[int, int, bool, int]]]:
    """Data and control edges (target, source, kind), and faults, by one look-up an entry."""
    with chakra.open_source(path) as source:
        given_nodes = [pb.Node.FromString(m) for _, m in list(chakra.frames(source))[1:]]
    at = {node.id: i for i, node in enumerate(given_nodes)}
    code = {k.name.lower(): int(k) for k in EdgeKind}
    data: list[tuple[int, int, int]] = []
    ctrl: list[tuple[int, int]] = []
    faults = []
    for is_data in (True, False):
        for i, node in enumerate(given_nodes):
            told = next((a.string_list.values for a in reversed(node.attr) if a.name == "dep_kinds"), [])
            kinds = [code.get(w, UNKNOWN_DEP) for w in told]
            before: set[int] = set()
            for k, wanted in enumerate(node.data_deps if is_data else node.ctrl_deps):
                position = at.get(wanted)
                if position is None:
                    faults.append((i, wanted, is_data, int(Fault.DANGLING)))
                elif position == i:
                    faults.append((i, wanted, is_data, int(Fault.SELF)))
                elif position in before:
                    faults.append((i, wanted, is_data, int(Fault.DUPLICATE)))
                elif is_data:
                    data.append((i, position, kinds[k] if len(kinds) == len(node.data_deps) else UNKNOWN_DEP))
                else:
                    ctrl.append((i, position))
                if position is not None:
                    before.add(position)
    return data, ctrl, faults


def assert_as_in_messages(file: Graph, path: Path) -> None:
    columns, odd, calls = reference(path)
    in_file = {name: file.file if name in ("has", "duration_micros") else file for name in columns}
    got = {name: getattr(of, name).tolist() for name, of in in_file.items() if name not in ("name", "correlation")}
    if columns:
        got["name"] = [file.name_of(i) for i in range(len(file.id))]
        got["correlation"] = file.integers("correlation").tolist()
    assert got == columns
    assert [(o.node, o.name, o.kind, o.value) for o in file.file.odd] == odd
    assert file.file.sync_call == calls
    data, ctrl, faults = dependencies(path)
    target = [np.repeat(np.arange(len(file.id)), np.diff(deps.first)).tolist() for deps in (file.data, file.file.ctrl)]
    assert list(zip(target[0], file.data.source.tolist(), file.data.kind.tolist(), strict=True)) == data
    assert list(zip(target[1], file.file.ctrl.source.tolist(), strict=True)) == ctrl
    assert set(file.file.ctrl.kind.tolist()) <= {UNKNOWN_DEP}
    assert (
        list(zip(*(getattr(file.file.faults, c).tolist() for c in ("node", "id", "data", "fault")), strict=True))
        == faults
    )
    ids = file.id.tolist()
    assert file.file.duplicate_ids.tolist() == [i for i, one in enumerate(ids) if one in ids[:i]]
    wanted = HAS["start_ns"] | HAS["duration_ns"]
    assert file.timed == all(has & wanted == wanted for has in file.file.has.tolist())


FIELDS = {
    **dict.fromkeys(
        ("start_ns", "end_ns", "duration_ns", "start_delay_ns", "launch_latency_ns", "overlap_ns"), "int64_val"
    ),
    **dict.fromkeys(("self_ns", "wait_ns", "wake_ns", "tid", "device", "stream", "correlation"), "int64_val"),
    **dict.fromkeys(("comm_type", "comm_size"), "int64_val"),
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val"),
    "is_cpu_op": "bool_val",
    "pg_name": "string_val",
}
INT32 = ("comm_type", "comm_src", "comm_dst", "comm_tag")
NO_NUMBER = 1 << 64  # which no attribute holds
NONE_IS_NOWHERE = ("comm_type", "comm_src", "comm_dst")


def assert_same(a: Any, b: Any) -> None:
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype and x.tolist() == y.tolist(), f.name
        elif is_dataclass(x):
            assert_same(x, y)
        elif f.name == "columns":
            assert [*x] == [*y]
            for name in x:
                assert_same(x[name], y[name])
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
    name = draw(
        st.sampled_from(
            [*FIELDS, "involved_dim", "comm_type_recorded", "rf_id", "other", "start_ns2", "xomm_type_recorded"]
        )
    )
    expected = FIELDS.get(name, "int64_val")
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
    extra = draw(
        st.sampled_from(
            [b""] * 8 + [b"\x28\x07", b"\x22\x02\x03\x04", b"\x2a\x01\x05", b"\x12\x01z", b"\x78\x01", b"\x2a\x00"]
        )
    )
    return raw + extra


@given(st.lists(nodes(), max_size=6))
def test_columns_are_those_of_the_messages(tmp_path_factory: pytest.TempPathFactory, given_nodes: list[bytes]) -> None:
    path = written(tmp_path_factory.mktemp("et"), *given_nodes)
    assert_as_in_messages(read_et(path), path)


@st.composite
def plain_nodes(draw: Any) -> bytes:
    """A node as graphlink writes them: the same few names, integers of every length."""
    near = [2**k + d for k in (0, 7, 14, 21, 28, 35, 42, 49) for d in (-1, 0, 1)]
    values = st.sampled_from([*near[:-2], -1, -2, -(2**56)])
    names = draw(st.sampled_from([("start_ns", "tid", "rf_id"), ("start_ns", "comm_size", "launch_latency_ns"), ()]))
    attr = [A(name=name, int64_val=draw(values)) for name in names] + [
        A(name="is_cpu_op", bool_val=draw(st.booleans()))
    ]
    deps = draw(st.lists(st.sampled_from([i for i in near[:-2] if i >= 0]), max_size=3))
    attr += [A(name="dep_kinds", string_list=pb.StringList(values=["host"] * len(deps)))] * draw(st.booleans())
    attr += [A(name="sync_call", string_val="cudaMemcpy"), A(name="pg_desc", string_val="dp")] * draw(st.booleans())
    number = draw(st.sampled_from(near[:-2]))
    text = draw(st.sampled_from(["a", "b" * 200, ""]))
    some = pb.Node(id=number, name=text, type=4, data_deps=deps, ctrl_deps=deps[:1], duration_micros=number, attr=attr)
    return bytes(some.SerializeToString())


def one_by_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph | str:
    with monkeypatch.context() as patch:
        patch.setattr(et_nodes, "_at_once", lambda *_: None)
        return outcome(path)


def outcome(path: Path) -> Graph | str:
    try:
        return read_et(path)
    except InputError as problem:
        return str(problem)


@given(st.lists(plain_nodes(), min_size=1, max_size=12), st.data())
def test_nodes_of_a_block_at_once_are_those_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, given_nodes: list[bytes], data: st.DataObject
) -> None:
    path, monkeypatch = written(tmp_path_factory.mktemp("et"), *given_nodes), pytest.MonkeyPatch()
    assert et_nodes._at_once(given_nodes, {}, et_nodes.Forms(), 0) is not None
    whole = outcome(path)
    assert isinstance(whole, Graph)
    assert_same(whole, one_by_one(path, monkeypatch))
    assert_as_in_messages(whole, path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        raw[data.draw(st.integers(len(framed(HEAD)), len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    got, plain = outcome(path), one_by_one(path, monkeypatch)
    if isinstance(got, str) or isinstance(plain, str):
        assert got == plain
    else:
        assert_same(got, plain)


def test_a_node_of_ours(tmp_path: Path) -> None:
    attr = [A(name="is_cpu_op", bool_val=False), A(name="start_ns", int64_val=7), A(name="end_ns", int64_val=19)]
    attr += [A(name="duration_ns", int64_val=12), A(name="start_delay_ns", int64_val=5), A(name="stream", int64_val=-1)]
    attr += [
        A(name="dep_kinds", string_list=pb.StringList(values=["launch", "stream"])),
        A(name="pg_name", string_val="2"),
    ]
    attr += [A(name="comm_type", int64_val=CollectiveType.ALL_GATHER), A(name="comm_tag", int32_val=-4)]
    node = pb.Node(
        id=9, name="k", type=NodeType.COMM_COLL, data_deps=[4, 5], ctrl_deps=[4], duration_micros=3, attr=attr
    )
    host = [
        pb.Node(id=i, name="h", type=4, duration_micros=1, attr=[A(name="is_cpu_op", bool_val=True)]) for i in (4, 5)
    ]
    file = read_et(written(tmp_path, *host, node))
    assert (file.metadata.rank, file.metadata.graphlink, file.metadata.epoch_ns) == (3, "9.9", None)
    assert file.host.tolist() == [True, True, False]
    assert file.duration_ns.tolist() == [1000, 1000, 12]
    assert file.cost_ns.tolist() == [1000, 1000, 17]
    assert (file.start_ns[2], file.end_ns[2], file.stream[2], file.group[2], file.comm_tag[2]) == (7, 19, -1, 2, -4)
    assert file.comm_type.tolist() == [-1, -1, 2]
    assert file.data.source.tolist() == [0, 1] and file.data.first.tolist() == [0, 0, 0, 2]
    assert file.data.kind.tolist() == [EdgeKind.LAUNCH, EdgeKind.STREAM]
    assert file.file.ctrl.source.tolist() == [0]
    assert not file.timed and bool(file.says("pg_name")[2])
    assert not len(file.file.faults.node) and not file.file.odd


def test_what_is_no_edge_is_kept_aside(tmp_path: Path) -> None:
    file = read_et(
        written(tmp_path, pb.Node(id=1, data_deps=[1, 2, 2, 7, 2]), pb.Node(id=2, ctrl_deps=[8]), pb.Node(id=2))
    )
    assert file.data.source.tolist() == [2]  # of equal ids the last
    assert file.file.duplicate_ids.tolist() == [2]
    columns = (getattr(file.file.faults, name).tolist() for name in ("node", "id", "data", "fault"))
    assert sorted(zip(*columns, strict=True)) == [
        (0, 1, True, Fault.SELF),
        (0, 2, True, Fault.DUPLICATE),
        (0, 2, True, Fault.DUPLICATE),
        (0, 7, True, Fault.DANGLING),
        (1, 8, False, Fault.DANGLING),
    ]


def test_attributes_of_other_kinds_are_read_and_named(tmp_path: Path) -> None:
    attr = [A(name="is_cpu_op", int32_val=1), A(name="comm_size", uint64_val=64), A(name="pg_name", string_val="dp")]
    file = read_et(written(tmp_path, pb.Node(id=1, attr=attr)))
    assert (bool(file.host[0]), int(file.comm_size[0]), int(file.group[0])) == (True, 64, BAD_GROUP)
    assert [(o.name, o.kind, o.value) for o in file.file.odd] == [
        ("is_cpu_op", "int32_val", "1"),
        ("comm_size", "uint64_val", "64"),
        ("pg_name", "string_val", "dp"),
    ]


def test_blocks_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_nodes = [
        pb.Node(id=i, name=f"n{i % 7}", data_deps=[i - 1] if i else [], attr=[A(name="tid", int64_val=i)])
        for i in range(500)
    ]
    given_nodes[250].attr.append(A(name="tid", int32_val=3))
    path = written(tmp_path, *given_nodes)
    whole = read_et(path)
    monkeypatch.setattr(chakra, "_READ", 100)
    assert_same(read_et(path), whole)
    packed = tmp_path / "z.et"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_et(packed).data.source.tolist() == list(range(499))
    assert [(o.node, o.kind, o.value) for o in whole.file.odd] == [
        (250, "twice", "250, then 3"),
        (250, "int32_val", "3"),
    ]


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
        read_et(path)
    assert where is None or problem.value.where == where


@given(st.data())
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    raw = bytearray(framed(HEAD, *data.draw(st.lists(nodes(), min_size=1, max_size=3))))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("et") / "m.et"
    path.write_bytes(raw)
    with contextlib.suppress(InputError):
        read_et(path)


def test_a_converter_file_of_2024() -> None:
    path = TRACES / "megatron-tp2-v100" / "chakra-2024.0.et"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    got = read_et(path)
    assert_as_in_messages(got, path)
    assert (len(got.id), len(got.file.faults.node), got.timed) == (2128, 2, False)


def assert_read_back_equal(graph: Graph, folder: Path) -> None:
    path = folder / "written.et"
    with path.open("wb") as out:
        write_et(out, graph)
    back = read_et(path)
    assert back.metadata == graph.metadata
    assert [back.name_of(i) for i in range(len(back.name))] == [graph.name_of(i) for i in range(len(graph.name))]
    for column in (
        *_ALIKE,
        "id",
        "target",
        "cost_ns",
        "comm_type",
        "comm_size",
        "comm_src",
        "comm_dst",
        "comm_tag",
        "group",
    ):
        assert getattr(back, column).tolist() == getattr(graph, column).tolist(), column
    assert back.timed and graph.timed
    assert back.file.duration_micros.tolist() == micros(graph).tolist()
    assert back.says("comm_type_recorded").tolist() == graph.says("comm_type_recorded").tolist()
    assert not back.file.odd and not len(back.file.faults.node) and not len(back.file.duplicate_ids)


_OTHER: Final = ("metadata", "strings", "name", "columns", "rows", "read", "first_id")
_ALIKE = [f.name for f in fields(Graph) if f.name not in _OTHER]


@pytest.mark.parametrize("target", ["astra-sim", "chakra"])
def test_a_graph_with_every_kind_of_node_is_read_back_equal(tmp_path: Path, target: str) -> None:
    ops = (
        Op(CommKind.SEND, "SEND", bytes=8, peer=1, tag=3, group=0),
        Op(CommKind.COLLECTIVE, "GATHER", type=pb.GATHER, bytes=8, group=0),
    )
    for device_op in (ALL_REDUCE, *ops):
        comm, graph = communication(device_op, host=(ALL_REDUCE,)), every_kind()
        ids = {group: 5 + k for k, group in enumerate(comm.ops.groups)}
        assert_read_back_equal(
            as_written(graph.of_rank(0, 2, 5, (-7, 3)), comm, plan(graph, comm, 0, target), ids), tmp_path
        )


def test_a_graph_that_was_read_is_not_written_without_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read from a file"):
        write_et(io.BytesIO(), read_et(written(tmp_path, pb.Node(id=1))))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(execution=executions(Limits(devices=2)))
def test_the_graph_of_any_program_is_read_back_equal(tmp_path: Path, execution: Execution) -> None:
    assume(execution.device)
    write_kineto(execution, tmp_path / "kineto.json", dialect="2026")
    trace = read_kineto(tmp_path / "kineto.json")
    linked = link(trace, None, match_hosts(trace, None))
    comm = find_communication(linked)
    built = build(linked, comm, BuildOptions(sync="cuda"))
    for graph in (built.graph, fold(built.graph)):
        shown = plan(graph, comm, 0, "astra-sim")
        ids = assign({0: shown.groups})[0]
        assert_read_back_equal(as_written(graph.of_rank(0, 1, 1 << 40), comm, shown, ids), tmp_path)
