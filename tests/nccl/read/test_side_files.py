"""Side files of all kinds: told apart, their heads, and what damage, size and depth do to reading them."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.nccl.read.read import read_dump, read_dump_head
from graphlink.nccl.read.records import Dump, DumpHead
from graphlink.read.heads import looks_like
from graphlink.read.kinds import DumpKind
from tests.nccl.read.test_flight_recorder import WHOLE
from tests.nccl.read.test_inspector_log import LINES
from tests.nccl.read.test_plugin_dump import EVENTS, quoted
from tests.nccl.read.test_proxy_dump import two_ops
from tests.tiny_traces import et, info, kineto

FILES: dict[str, tuple[DumpKind, bytes]] = {
    "plugin": (DumpKind.PLUGIN, "\n".join(["[", *EVENTS]).encode()),
    "plugin of NCCL 2.30": (DumpKind.PLUGIN, "\n".join(["[", *map(quoted, EVENTS), "{}]"]).encode()),
    "proxy profiler": (DumpKind.PROXY, "\n".join([*two_ops(pr=True).lines, "{} ]"]).encode()),
    "proxy profiler of NCCL 2.20": (DumpKind.PROXY, "\n".join([*two_ops(pr=False).lines, "{} ]"]).encode()),
    "inspector": (DumpKind.INSPECTOR, "\n".join(map(json.dumps, LINES)).encode()),
    "inspector, pretty": (DumpKind.INSPECTOR, "\n".join(json.dumps(line, indent=2) for line in LINES).encode()),
    "Flight Recorder, pickle": (DumpKind.FLIGHT_RECORDER, pickle.dumps(WHOLE, 2)),
    "Flight Recorder, JSON": (DumpKind.FLIGHT_RECORDER, json.dumps(WHOLE).encode()),
}
OTHERS = {
    "CoMMA": b'[{"args": {"size": 4}, "cat": "COLL", "comm_hash": "0x1", "dur": 5, "name": "AllReduce", "ph": "X", '
    b'"pid": 1, "ts": 2}]',
    "other plugin": b'{"type": "CollApi", "func": "AllReduce", "commId": 5, "start": {"ts": 12.5}}\n' * 3,
    "Prometheus": b'# HELP nccl_algorithm_bandwidth_gbs x\nnccl_algorithm_bandwidth_gbs{rank="4"} 2\n',
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_kinds_are_told_by_content(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    kind, text = FILES[name]
    path = tmp_path / "x"
    path.write_bytes(pack(text))
    head = read_dump_head(path)
    assert head is not None
    assert head.kind == read_dump(path).kind == kind
    assert looks_like(path) == "nccl"


def test_traces_are_no_side_files(tmp_path: Path) -> None:
    groups = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    rows = b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7}]'
    (tmp_path / "bare.json").write_bytes(rows)
    traces = [kineto(tmp_path / "k.json", info(0, 2) | groups), et(tmp_path / "e.json", pid=3), tmp_path / "bare.json"]
    assert [looks_like(path) for path in traces] == ["kineto", "et", "kineto"]
    assert [read_dump_head(path) for path in traces] == [None] * 3
    with pytest.raises(InputError, match="is no side file"):
        read_dump(traces[0])


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_tools_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(OTHERS[name])
    assert read_dump_head(path) is None
    assert looks_like(path) == "nccl", "no trace"
    with pytest.raises(
        InputError,
        match={"CoMMA": "CoMMA", "other plugin": "another profiler plugin", "Prometheus": "Prometheus"}[name],
    ):
        read_dump(path)


def head_of(path: Path, text: bytes) -> DumpHead:
    path.write_bytes(text)
    head = read_dump_head(path)
    assert head is not None
    return head


def test_heads_say_who_wrote_the_file(tmp_path: Path) -> None:
    plugin = head_of(tmp_path / "a", FILES["plugin"][1])
    assert (plugin.pid, plugin.rank) == (77, None)
    assert [(communicator.key, rank) for communicator, rank in plugin.members] == [
        ("12715772615376301750", 3),
        ("5", 1),
    ]
    inspector = head_of(tmp_path / "b", FILES["inspector"][1])
    assert (inspector.pid, inspector.host) == (438776, "node-7")
    assert [(communicator.name, rank) for communicator, rank in inspector.members][:2] == [("tp", 4), ("", 2)]
    recorder = head_of(tmp_path / "c", FILES["Flight Recorder, JSON"][1])
    assert (recorder.rank, [communicator.key for communicator, _ in recorder.members]) == (5, ["0", "5"])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("fr_rank3.json", 3),
        ("proxy-rank-4.json.gz", 4),
        ("rank7_of_rank9.json", 9),
        ("frank.json", None),
        ("x_3.json", None),
    ],
)
def test_names_give_the_rank(tmp_path: Path, name: str, rank: int | None) -> None:
    assert head_of(tmp_path / name, FILES["proxy profiler"][1]).rank == rank
    assert read_dump(tmp_path / name).rank == rank


def test_the_plugins_name_gives_communicator_and_rank(tmp_path: Path) -> None:
    head = head_of(tmp_path / "out_12715772615376301750_6.json", EVENTS[-1].join(["[\n", "\n"]).encode())
    assert [(communicator.key, rank) for communicator, rank in head.members] == [("12715772615376301750", 6)]
    host = head_of(
        tmp_path / "gpu-1-pid31.log", b'{"header": {"id": "0x5", "rank": 1}, "coll_perf": {"coll": "AllReduce"}}'
    )
    assert (host.host, host.pid) == ("gpu-1", 31)


@pytest.mark.parametrize("name", FILES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_gives_a_dump_or_an_input_error(tmp_path: Path, name: str, data: st.DataObject) -> None:
    text = bytearray(FILES[name][1])
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(0, 255)), max_size=4)):
        text[at] = byte
    cut = data.draw(st.none() | st.integers(0, len(text)))
    path = tmp_path / "x"
    path.write_bytes(text[:cut])
    try:
        dump = read_dump(path)
    except InputError as problem:
        assert len(str(problem).splitlines()) <= 5
        assert str(path) in str(problem)
    else:
        assert_whole(dump)
    read_dump_head(path)


def assert_whole(dump: Dump) -> None:
    """Every index points into its table, every time is one."""
    for rows, into in (
        (dump.calls.communicator, len(dump.communicators)),
        (dump.kernels.call, len(dump.calls.rank)),
        (dump.proxies.call, len(dump.calls.rank)),
        (dump.steps.proxy, len(dump.proxies.call)),
    ):
        assert ((rows >= -1) & (rows < into)).all()
    for column in (dump.calls.function, dump.calls.dtype, dump.calls.algorithm, dump.calls.protocol):
        assert ((column >= 0) & (column < len(dump.strings))).all()
    assert (dump.steps.end_ns >= dump.steps.start_ns).all()
    assert (dump.steps.start_ns[1:] >= dump.steps.start_ns[:-1]).all()
    assert all(count > 0 for count in dump.left_out.values())


DEEP = b'{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "ts": 1.0, "args": ' + b'{"x": ' * 100_000


@pytest.mark.parametrize("name", ["plugin", "proxy profiler", "inspector"])
def test_a_deep_line_is_one_that_is_no_event(tmp_path: Path, name: str) -> None:
    _, text = FILES[name]
    path = tmp_path / "x"
    path.write_bytes(text + b"\n" + DEEP + b"\n")
    dump = read_dump(path)
    assert sum(count for reason, count in dump.left_out.items() if reason.startswith("lines that are no")) == 1


@pytest.mark.parametrize(
    "text",
    [
        b'{"entries": [' + b"[" * 10**6,
        b'{"entries": [{"profiling_name": ' + b'{"a":' * 10**6,
        b'[{"cat": "COLL"}, {"a": ' + b"[" * 10**6,
    ],
)
def test_depth_elsewhere_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(text.replace(b'"entries"', b'"profiling_name": 1, "entries"', 1))
    with pytest.raises(InputError, match=r"nested too deeply|no JSON|not valid JSON|no event|without events"):
        read_dump(path)


GIGABYTE = 1 << 30
STARTS = {
    "plugin": b'[\n{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "pid": 1, "tid": 1, "ts": 1.0, "args": '
    b'{}},\n{"name": "',
    "plugin on one line": b'[{"name": "A", "cat": "COLL", "ph": "b", "ts": 1.0}, {"name": "B", "cat": "COLL", "ph": '
    b'"b", "ts": "',
    "proxy profiler": b'[\n{"name": "Send-1-0", "cat": "NET", "ph": "b", "id": 0, "pid": 1, "tid": 1, "ts": '
    b'1.0},\n{"name": "',
    "inspector": json.dumps(LINES[0]).encode() + b"\n" + b'{"header": {"id": "',
    "inspector, pretty": json.dumps(LINES[0], indent=2).encode() + b"\n{\n" + b'"header": {"id": "',
    "Flight Recorder, JSON": b'{"entries": [{"profiling_name": "',
    "Flight Recorder, pickle": b"\x80\x02}X\x09\x00\x00\x00pg_configX\xff\xff\xff\x3f",
}


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


@pytest.mark.long
@linux
@pytest.mark.parametrize("name", STARTS)
def test_a_line_of_a_gigabyte_takes_little_memory(tmp_path: Path, name: str) -> None:
    """The rest of the line is a hole in the file: zeros that no disk holds."""
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(STARTS[name])
        file.truncate(GIGABYTE if name == "plugin" else GIGABYTE // 8)
    assert peak_mb(path) < 150


@linux
def test_a_line_packed_a_thousandfold_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    with path.open("wb") as file:
        file.write(gzip.compress(STARTS["plugin"]))
        part = gzip.compress(b"x" * (32 << 20), 1)
        for _ in range(32):
            file.write(part)
    assert path.stat().st_size < 10 << 20
    assert peak_mb(path) < 150


def peak_mb(path: Path) -> int:
    """Of a process that reads ``path``, with or without success. (``ru_maxrss`` would begin with that of this
    process.)
    """
    program = """
        import sys
        from pathlib import Path
        from graphlink.errors import InputError
        from graphlink.nccl.read.read import read_dump
        try:
            print(read_dump(sys.argv[1]).left_out)
        except InputError as problem:
            print(problem)
        print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return int(ran.stdout.splitlines()[-1].split()[1]) >> 10
