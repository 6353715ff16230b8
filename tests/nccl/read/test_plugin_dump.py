"""Dumps of NCCL's example profiler plugin: small ones whose truth is known, and the real one."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.nccl.read import events
from graphlink.nccl.read.events import ends_of, inside
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.read.records import Dump, State
from graphlink.read.kinds import DumpKind

REAL = Path(__file__).parents[4] / "shared" / "traces" / "nccl" / "nccl_trace_p2p_4rank.json"
HASH = 12715772615376301750  # above 2**63


def event(name: str, cat: str, ph: str, ts: float, args: str = "", ident: int = 0) -> str:
    tail = f', "args": {{{args}}}' if args else ""
    return (
        f'{{"name": "{name}", "cat": "{cat}", "ph": "{ph}", "id": {ident}, "pid": 77, "tid": 1, "ts": {ts:f}{tail}}},'
    )


def span(
    name: str, cat: str, begin: float, end: float, args: str = "", within: list[str] | None = None, ident: int = 0
) -> list[str]:
    return [event(name, cat, "b", begin, args, ident), *(within or []), event(name, cat, "e", end, ident=ident)]


def coll(begin: float, end: float, seq: int, within: list[str], *, rank: int = 3, hash_: int = HASH) -> list[str]:
    args = (
        f'"SeqNum": {seq}, "CommHash": {hash_}, "Rank": {rank}, "Count": 1000, "Datatype": "ncclBfloat16", '
        '"Algorithm": "RING", "Protocol": "LL128", "nChannels": 2'
    )
    return span("AllReduce", "COLL", begin, end, args, within, ident=seq)


def api(within: list[str], ident: int, stream: str = "0x262ca50") -> list[str]:
    args = f'"count": 1000, "datatype": ncclBfloat16, "root": 0, "GraphCaptured":0, "Stream": {stream}'
    return span("AllReduce", "COLL_API", 0, 0, args, within, ident)


def kernel(channel: int, begin: float, clock: int) -> list[str]:
    return span("KernelCh", "GPU", begin, 0, f'"Channel": {channel}, "StartGpuClk": {clock}, "StopGpuClk": 0')


SEND_STEP = [
    *span("SendGpuWait", "NET", 20, 21.5, '"Step": 4'),
    *span("SendPeerWait", "NET", 21.5, 22, '"Step": 4'),
    event("SendWait", "NET", "b", 22, '"Step": 4'),
    *span("Qp", "NET_IB", 22.1, 22.9, '"device": 0, "qp_num": 5, "opcode": 1, "wr_id": 7, "size": 4096'),
    event("SendWait", "NET", "e", 23),
]
RECEIVE_STEP = [
    *span("RecvWait", "NET", 19, 20, '"Step": 9'),
    *span("RecvFlushWait", "NET", 20, 20.25, '"Step": 9'),
    *span("RecvGpuWait", "NET", 20.25, 21, '"Step": 9'),
]
OP_ARGS = '"Channel": 1, "Peer": 2, "Steps": 8, "ChunkSize": 524288, "transSize": 4096'
PROXY = [
    *span("ScheduleSend", "PROXY", 15, 19, OP_ARGS),
    *span("ProgressSend", "PROXY", 19, 25, OP_ARGS, SEND_STEP),
    *span("ScheduleRecv", "PROXY", 15, 18, OP_ARGS, ident=1),
    *span("ProgressRecv", "PROXY", 18, 24, OP_ARGS.replace('"Peer": 2', '"Peer": 0'), RECEIVE_STEP, ident=1),
]
# two calls of one function; the second on another communicator; then a proxy op that no call of this process asked for
EVENTS = [
    event("Group API", "GROUP_API", "b", 9, '"groupApiId": 0, "groupDepth":2'),
    *span("KernelLaunch", "KERNEL_LAUNCH", 0, 12, '"groupId": 0, "Stream": 0x262ca50'),
    *api(coll(13, 14, 0, [*kernel(0, 30, 10**18), *kernel(1, 30.0005, 10**18 + 7), *PROXY]), 0),
    *api(coll(40, 41, 0, kernel(0, 50, 10**18 + 9), rank=1, hash_=5), 1, "(nil)"),
    event("Group API", "GROUP_API", "e", 60),
    *span("ProgressSend", "PROXY", 61, 62, OP_ARGS, ident=2),
    *span("Idle", "PROXY", 63, 64),
    *span("Append", "PROXY", 64, 65, '"appended": 1', ident=1),
]


def written(path: Path, events: list[str], end: str = "") -> Path:
    path.write_text("\n".join(["[", *events]) + "\n" + end)
    return path


def texts(dump: Dump, column: Any) -> list[str]:
    return [dump.strings[number] for number in column.tolist()]


def account(dump: Dump) -> int:
    """Events in tables, with their ends, and those left out."""
    rows = len(dump.calls.rank) + len(dump.kernels.call) + len(dump.proxies.call) + len(dump.steps.proxy)
    return rows * 2 + sum(dump.left_out.values())


def test_every_event_has_its_place(tmp_path: Path) -> None:
    dump = read_dump(written(tmp_path / "x.json", EVENTS))
    assert (dump.kind, dump.pid, dump.rank, dump.warnings) == (DumpKind.PLUGIN, 77, None, ())
    assert [communicator.key for communicator in dump.communicators] == [str(HASH), "5"]
    calls = dump.calls
    assert (calls.communicator.tolist(), calls.rank.tolist(), calls.seq.tolist()) == ([0, 1], [3, 1], [0, 0])
    assert (texts(dump, calls.function), texts(dump, calls.dtype)) == (["allreduce"] * 2, ["BFloat16"] * 2)
    assert (texts(dump, calls.algorithm), texts(dump, calls.protocol), calls.channels.tolist()) == (
        ["RING"] * 2,
        ["LL128"] * 2,
        [2, 2],
    )
    assert (calls.count.tolist(), calls.bytes.tolist(), calls.peer.tolist()) == ([1000] * 2, [2000] * 2, [NOWHERE] * 2)
    assert (calls.start_ns.tolist(), calls.end_ns.tolist()) == ([13_000, 40_000], [14_000, 41_000])
    kernels = dump.kernels
    assert (kernels.call.tolist(), kernels.channel.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert (kernels.start_ns.tolist(), kernels.end_ns.tolist()) == ([30_000, 30_000, 50_000], [0, 0, 0]), (
        "30.0005 us rounds to even"
    )
    assert kernels.gpu_start_ns.tolist() == [10**18, 10**18 + 7, 10**18 + 9]
    proxies = dump.proxies
    assert (proxies.call.tolist(), proxies.sends.tolist()) == ([0, 0, NOWHERE], [True, False, True])
    assert (proxies.peer.tolist(), proxies.channel.tolist(), proxies.bytes.tolist()) == (
        [2, 0, 2],
        [1, 1, 1],
        [4096] * 3,
    )
    steps = dump.steps
    assert [
        (proxy, step, State(state).name, start, end)
        for proxy, step, state, start, end in zip(
            *(column.tolist() for column in (steps.proxy, steps.step, steps.state, steps.start_ns, steps.end_ns)),
            strict=True,
        )
    ] == [
        (1, 9, "RECEIVE", 19_000, 20_000),
        (1, 9, "WIRE", 20_000, 20_250),
        (0, 4, "GPU", 20_000, 21_500),
        (1, 9, "GPU", 20_250, 21_000),
        (0, 4, "PEER", 21_500, 22_000),
        (0, 4, "WIRE", 22_000, 23_000),
    ]
    assert dump.left_out == {
        "GROUP_API": 2, "KERNEL_LAUNCH": 2, "COLL_API": 4, "PROXY ScheduleSend": 2, "PROXY ScheduleRecv": 2, "NET_IB": 2,
        "PROXY Idle": 2, "PROXY Append": 2,
    }  # fmt: skip
    assert account(dump) == dump.events == len(EVENTS)


def quoted(line: str) -> str:
    return re.sub(r": (ncclBfloat16|0x[0-9a-f]+|\(nil\))", r': "\1"', line)


@pytest.mark.parametrize("end", ["", "{}]", "{}\n]\n", "]\n", "{} ]"])
@pytest.mark.parametrize("change", [str, quoted, lambda line: line + "\r"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_all_ways_to_write_it_say_the_same(
    tmp_path: Path, end: str, change: Callable[[str], str], pack: Callable[[bytes], bytes]
) -> None:
    plain = read_dump(written(tmp_path / "x.json", EVENTS))
    path = written(tmp_path / "x.json", [change(line) for line in EVENTS], end)
    path.write_bytes(pack(path.read_bytes()))
    assert repr(read_dump(path)) == repr(plain)


@pytest.mark.parametrize("block_bytes", [1, 300, 4096])
def test_blocks_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    path = written(tmp_path / "x.json", [*EVENTS, "lost line"], "{}]")
    whole = read_dump(path)
    monkeypatch.setattr(events, "BLOCK_BYTES", block_bytes)
    assert repr(read_dump(path)) == repr(whole)


@pytest.mark.parametrize("between", ["", "\n", "\n  "])
def test_valid_json_may_be_laid_out_in_any_way(tmp_path: Path, between: str) -> None:
    plain = read_dump(written(tmp_path / "x.json", EVENTS))
    text = "".join(map(quoted, EVENTS)).rstrip(",").replace("{", "{" + between).replace(", ", "," + between)
    (tmp_path / "x.json").write_text(f"[{text}]")
    assert repr(read_dump(tmp_path / "x.json")) == repr(plain)


def test_a_cut_dump_gives_what_came_before(tmp_path: Path) -> None:
    whole = "\n".join(["[", *EVENTS]) + "\n"
    path = tmp_path / "x.json"
    path.write_text(whole[: whole.index("RecvFlushWait")])
    dump = read_dump(path)
    assert dump.left_out["a last line that is cut off"] == 1
    assert (len(dump.calls.rank), len(dump.proxies.call), len(dump.steps.proxy)) == (1, 2, 4)
    assert dump.calls.end_ns.tolist() == [0]
    assert dump.warnings == ("4 events have no end: the dump was cut, or written while they ran",)


def test_lost_lines_lose_no_others(tmp_path: Path) -> None:
    damaged = [*EVENTS[:5], "\x00" * 50, '{"name": "Send", "ca', "Segmentation fault", *EVENTS[5:]]
    dump, whole = read_dump(written(tmp_path / "x.json", damaged)), read_dump(written(tmp_path / "y.json", EVENTS))
    assert dump.left_out == whole.left_out | {"lines that are no event": 3}
    assert dump.events == whole.events + 3
    for table in ("calls", "kernels", "proxies", "steps", "strings"):
        assert repr(getattr(dump, table)) == repr(getattr(whole, table)), "block by block = line by line"


def test_ends_pair_in_file_order_though_ids_repeat(tmp_path: Path) -> None:
    events = [
        *coll(1, 2, 0, [*kernel(0, 3, 10), *kernel(1, 4, 11)]),
        *coll(5, 6, 0, kernel(0, 7, 12)),
        event("AllReduce", "COLL", "e", 8),
        event("AllReduce", "COLL", "b", 9),
    ]
    dump = read_dump(written(tmp_path / "x.json", events))
    assert dump.calls.end_ns.tolist() == [2000, 6000, 0]
    assert dump.kernels.call.tolist() == [0, 0, 1]
    assert dump.left_out == {"ends without a begin": 1}


def test_an_event_after_the_end_of_a_call_is_not_of_it(tmp_path: Path) -> None:
    dump = read_dump(written(tmp_path / "x.json", [*coll(1, 2, 0, []), *kernel(0, 3, 10), *SEND_STEP[:2]]))
    assert dump.kernels.call.tolist() == [NOWHERE]
    assert dump.left_out == {"steps of no proxy op": 2}


def test_steps_without_times_are_left_out(tmp_path: Path) -> None:
    steps = [
        *span("SendGpuWait", "NET", 20, 0, '"Step": 4'),
        *span("SendPeerWait", "NET", 0, 22, '"Step": 4'),
        *span("SendWait", "NET", 22, 21, '"Step": 4'),
        *span("SendBufferWait", "NET", 18, 20, '"Step": 4'),
    ]
    dump = read_dump(written(tmp_path / "x.json", coll(1, 2, 0, span("ProgressSend", "PROXY", 19, 25, OP_ARGS, steps))))
    assert len(dump.steps.proxy) == 0
    assert dump.left_out == {"steps without a time": 4, "steps that end before they begin": 2, "NET SendBufferWait": 2}


def test_older_proxy_ops_have_other_names(tmp_path: Path) -> None:
    states = ', "POSTED": {"step": 1, "ts": 1.0}, "DONE": {"step": 8, "ts": 2.0}'
    events = coll(1, 2, 0, span("Recv", "PROXY", 19, 25, OP_ARGS + states))
    dump = read_dump(written(tmp_path / "x.json", [line.replace("nChannels", "nMaxChannels") for line in events]))
    assert (dump.proxies.sends.tolist(), dump.proxies.call.tolist(), dump.calls.channels.tolist()) == (
        [False],
        [0],
        [2],
    )


def test_values_of_other_types_are_not_recorded(tmp_path: Path) -> None:
    args = (
        '"SeqNum": -1, "CommHash": "x", "Rank": 99999999999, "Count": 18446744073709551615, "Datatype": 3, '
        '"nChannels": null'
    )
    dump = read_dump(written(tmp_path / "x.json", span("AllReduce", "COLL", 1e300, 2, args)))
    calls = dump.calls
    assert [
        column.tolist()
        for column in (calls.communicator, calls.rank, calls.seq, calls.count, calls.bytes, calls.channels)
    ] == [[NOWHERE]] * 6
    assert (calls.start_ns.tolist(), calls.end_ns.tolist(), texts(dump, calls.dtype)) == ([0], [2000], [""])


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here")
def test_the_real_dump_of_four_ranks() -> None:
    dump = read_dump(REAL)
    calls, kernels = dump.calls, dump.kernels
    assert (dump.events, dump.warnings) == (310, ())
    assert dump.left_out == {
        "messages in the kernel of another": 8,
        "GROUP_API": 2, "KERNEL_LAUNCH": 8, "P2P_API": 16, "PROXY Idle": 4, "PROXY Sleep": 4, "PROXY Append": 4,
    }  # fmt: skip
    assert account(dump) == 310
    assert [communicator.key for communicator in dump.communicators] == [str(HASH)]
    ring = list(zip(calls.rank.tolist(), texts(dump, calls.function), strict=True))
    assert ring == [(rank, f"recv {(rank - 1) % 4}, send {(rank + 1) % 4}") for rank in range(4)]
    assert set(calls.bytes.tolist()) == {2 << 30}
    zeros = len(re.findall(rb'"ts": 0\.000000', REAL.read_bytes()))
    assert zeros == 140 == int((kernels.end_ns == 0).sum()) + 4 + 8, (
        "ends of KernelCh, begins of KernelLaunch and P2P_API"
    )
    assert np.unique(kernels.call, return_counts=True)[1].tolist() == [32] * 4
    rank = calls.rank[kernels.call]
    offsets = kernels.gpu_start_ns - kernels.start_ns
    assert [round(int(np.ptp(offsets[rank == each])) / 1000, 1) for each in range(4)] == [4.8, 5.5, 3.8, 5.0], "us"
    median = [int(np.median(offsets[rank == each])) for each in range(4)]
    assert sorted(round((each - min(median)) / 1e9, 1) for each in median) == [0.0, 4.0, 7.7, 8.9]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)), max_size=40))
def test_pairs_are_those_of_a_walk_through_the_file(rows: list[tuple[int, int, int, int]]) -> None:
    category, name, ident, phase = (
        np.array(column, np.int32) for column in (zip(*rows, strict=True) if rows else ([], [], [], []))
    )
    wanted = [NOWHERE] * len(rows)
    open_: dict[tuple[int, int, int], int] = {}
    for at, (*key, kind) in enumerate(rows):
        if kind == 0:
            open_[tuple(key)] = at
        elif kind == 1 and (begin := open_.pop(tuple(key), None)) is not None:
            wanted[begin] = at
    assert ends_of(category, name, ident, phase == 0, phase == 1).tolist() == wanted


@given(st.lists(st.sampled_from("beo"), max_size=30))
def test_what_is_inside_is_what_a_walk_finds(phases: list[str]) -> None:
    begins = [at for at, phase in enumerate(phases) if phase == "b"]
    same = np.zeros(len(phases), np.int32)
    kind = np.array(phases, "U1")
    end = ends_of(same, same, same, kind == "b", kind == "e")
    at = np.flatnonzero(kind == "o")
    wanted, current = [], NOWHERE
    for phase in phases:
        current = current + 1 if phase == "b" else current
        if phase == "o":
            wanted.append(current)
    ended = [
        row != NOWHERE and end[begins[row]] != NOWHERE and end[begins[row]] < place
        for row, place in zip(wanted, at, strict=True)
    ]
    wanted = [NOWHERE if over else row for row, over in zip(wanted, ended, strict=True)]
    assert inside(np.array(begins, np.int64), end[begins] if begins else np.zeros(0, np.int64), at).tolist() == wanted


def test_a_dump_without_events_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[\n{}]")
    with pytest.raises(InputError, match="NCCL_PROFILE_EVENT_MASK"):
        read_dump(tmp_path / "x.json")
