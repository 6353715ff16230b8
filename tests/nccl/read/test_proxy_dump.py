"""Dumps of NCCL's proxy profiler, as pull request 1210 and as NCCL up to 2.22 write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.model import NOWHERE
from graphlink.nccl.read.proxy import op_of
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.read.records import Dump, State
from graphlink.read.kinds import DumpKind

SEND = ("BufferWait", "GPUWait", "SendWait")
RECEIVE = ("BufferWait", "RecvWait", "FlushWait", "GPUWait")


@dataclass
class Written:
    """Writes what the profiler writes. ``pr``: with the keys of pull request 1210."""

    pr: bool = True
    lines: list[str] = field(default_factory=lambda: ["["])
    number: int = 0

    def beside(self, collective: str, *, begins: bool) -> str:
        channels = ' "totalChannels": 2,' if begins else ""
        return (
            f', "chunkSize": 131072, "totalSteps": 4,{channels} "collectiveName": "{collective}" , "totalbytes": -7 ,  '
            '"proto": 2'
            if self.pr
            else ""
        )

    def step(
        self,
        name: str,
        channel: int,
        times_us: list[float],
        collective: str = "allreduce-1",
        op: int = 4,
        slot: int = 9,
    ) -> None:
        """``times_us``: when each state begins, and the end of the last."""
        states = SEND if name.startswith("Send") else RECEIVE
        head = f'"cat": "NET", "ph": "%s", "id": {self.number}, "pid": {channel}, "tid": 1, "ts": %f'
        more = self.beside(collective, begins=False)
        args = f', "args": {{ "opCount": {op}, "proxyOpIndex":{slot} }}' + self.beside(collective, begins=True)
        self.lines.append(f'{{"name": "{name}", {head % ("b", times_us[0])}{args} }},')
        for state, begin, end in zip(states, times_us, times_us[1:], strict=False):
            self.lines.append(f'{{"name": "{state}", {head % ("b", begin)}{more} }},')
            self.lines.append(f'{{"name": "{state}", {head % ("e", end)}{more} }},')
        self.lines.append(f'{{"name": "{name}", {head % ("e", times_us[-1])}{more} }},')
        self.number += 1

    def idle(self, name: str, begin: float, end: float) -> None:
        args = ', "args": { "added": 3 }' if name == "Append" else ""
        for phase, ts, more in (("b", begin, args), ("e", end, "")):
            self.lines.append(
                f'{{"name": "{name}", "cat": "NET", "ph": "{phase}", "id": {self.number}, "pid": -1, "tid": 1, "ts": '
                f"{ts:f}{more} }},"
            )
        self.number += 1

    def collective(self, name: str, number: int, begin: float, end: float) -> None:
        for phase, ts in (("b", begin), ("e", end)):
            self.lines.append(
                f'{{"name": "{name}-{number}", "cat": "COL", "id": {number}, "ph": "{phase}", "pid": -1, "tid": 1, '
                f'"ts": {ts:f} }},'
            )

    def read(self, path: Path) -> Dump:
        path.write_text("\n".join(self.lines) + "\n{} ]\n")
        dump = read_dump(path)
        assert dump.events == len(self.lines) - 1
        whole = sum('"Send-' in line or '"Recv-' in line or '"COL"' in line for line in self.lines)
        assert dump.events == whole + 2 * len(dump.steps.proxy) + sum(dump.left_out.values())
        return dump


def texts(dump: Dump, column: Any) -> list[str]:
    return [dump.strings[number] for number in column.tolist()]


def steps_of(dump: Dump) -> list[tuple[int, int, str, int, int]]:
    steps = dump.steps
    columns = (steps.proxy, steps.step, steps.state, steps.start_ns, steps.end_ns)
    return [
        (proxy, step, State(state).name, start, end)
        for proxy, step, state, start, end in zip(*(c.tolist() for c in columns), strict=True)
    ]


def two_ops(pr: bool) -> Written:
    out = Written(pr)
    out.step("Send-1-0", 3, [5000, 5001, 5003, 5009])
    out.step("Recv-2-0", 3, [5000.5, 5002, 5004, 5005.5, 5007])
    out.idle("Idle", 5008, 5010)
    out.step("Send-1-1", 3, [5010, 5011, 5013, 5019])
    out.step("Send-1-0", 3, [6000, 6001, 6002, 6004], "broadcast-2")
    out.idle("Append", 6005, 6006)
    return out


STEPS = [
    (0, 0, "GPU", 5_001_000, 5_003_000),
    (1, 0, "RECEIVE", 5_002_000, 5_004_000),
    (0, 0, "WIRE", 5_003_000, 5_009_000),
    (1, 0, "WIRE", 5_004_000, 5_005_500),
    (1, 0, "GPU", 5_005_500, 5_007_000),
    (0, 1, "GPU", 5_011_000, 5_013_000),
    (0, 1, "WIRE", 5_013_000, 5_019_000),
    (2, 0, "GPU", 6_001_000, 6_002_000),
    (2, 0, "WIRE", 6_002_000, 6_004_000),
]


@pytest.mark.parametrize("pr", [True, False])
def test_steps_make_ops_and_ops_belong_to_calls(tmp_path: Path, pr: bool) -> None:
    out = two_ops(pr)
    if pr:
        out.collective("allreduce", 1, 4990, 5019)
        out.collective("broadcast", 2, 5990, 6004)
    dump = out.read(tmp_path / "x.json")
    assert (dump.kind, dump.communicators, dump.warnings) == (DumpKind.PROXY, (), ())
    proxies = dump.proxies
    assert (proxies.peer.tolist(), proxies.channel.tolist(), proxies.sends.tolist()) == (
        [1, 2, 1],
        [3] * 3,
        [True, False, True],
    )
    assert proxies.bytes.tolist() == [NOWHERE] * 3, "totalbytes is not what goes over the wire"
    assert steps_of(dump) == STEPS
    assert dump.left_out == {"NET BufferWait": 8, "NET Idle": 2, "NET Append": 2}
    calls = dump.calls
    if not pr:
        assert (len(calls.seq), proxies.call.tolist()) == (0, [NOWHERE] * 3)
        return
    assert proxies.call.tolist() == [0, 0, 1]
    assert (texts(dump, calls.function), calls.seq.tolist()) == (["allreduce", "broadcast"], [1, 2])
    assert (calls.start_ns.tolist(), calls.end_ns.tolist()) == ([4_990_000, 5_990_000], [5_019_000, 6_004_000])
    assert (texts(dump, calls.protocol), calls.channels.tolist(), calls.communicator.tolist()) == (
        ["Simple"] * 2,
        [2, 2],
        [NOWHERE] * 2,
    )


def test_a_cut_dump_has_calls_by_the_names_that_steps_say(tmp_path: Path) -> None:
    text = "\n".join(two_ops(pr=True).lines)
    path = tmp_path / "x.json"
    path.write_text(text[: text.rindex("SendWait")])
    dump = read_dump(path)
    assert (texts(dump, dump.calls.function), dump.calls.start_ns.tolist()) == (["allreduce", "broadcast"], [0, 0])
    assert dump.proxies.call.tolist() == [0, 0, 1]
    assert dump.left_out["a last line that is cut off"] == 1


def test_a_collective_that_ends_before_it_begins_has_no_end(tmp_path: Path) -> None:
    out = two_ops(pr=True)
    out.collective("allreduce", 1, 4990, 4980)
    dump = out.read(tmp_path / "x.json")
    assert (dump.calls.start_ns.tolist(), dump.calls.end_ns.tolist()) == ([4_990_000, 0], [0, 0])
    assert dump.warnings == ("1 events end before they begin: their ends are not used",)


def test_steps_before_the_first_collective_have_another_zero(tmp_path: Path) -> None:
    """The first collective sets the clock to zero again, so that its own time is 0.2 us."""
    out = Written()
    out.step("Send-1-0", 0, [100, 101, 102, 103], "N/A-0", op=1)
    out.step("Send-1-0", 0, [50, 51, 52, 53], op=2)
    out.collective("allreduce", 1, 0.2, 53)
    dump = out.read(tmp_path / "x.json")
    assert dump.warnings == ("1 steps came before the profiler set its clock to zero again: their times are not used",)
    assert dump.left_out == {"NET BufferWait": 4, "steps timed from another zero of the clock": 4}
    assert steps_of(dump) == [(1, 0, "GPU", 51_000, 52_000), (1, 0, "WIRE", 52_000, 53_000)]
    assert (dump.proxies.call.tolist(), dump.calls.start_ns.tolist()) == ([NOWHERE, 0], [200])


def test_collectives_before_the_first_step_have_another_zero(tmp_path: Path) -> None:
    """Three collectives; the first step, during the second, sets the clock to zero again."""
    out = Written()
    out.step("Send-1-0", 0, [0.1, 1, 2, 3], "allreduce-2")
    out.collective("allreduce", 1, 0.2, 0)
    out.collective("allreduce", 2, 700, 3)
    out.collective("allreduce", 3, 500, 600)
    dump = out.read(tmp_path / "x.json")
    assert dump.calls.start_ns.tolist() == [0, 0, 500_000]
    assert (
        dump.warnings[0]
        == "2 collectives came before the profiler set its clock to zero again: their times are not used"
    )
    assert len(dump.steps.proxy) == 2


def test_steps_before_the_collectives_of_a_second_window_keep_their_times(tmp_path: Path) -> None:
    """Switched on again without a dump between, the clock goes on."""
    out = Written()
    out.step("Send-1-0", 0, [9000, 9001, 9002, 9003], "N/A-0", op=1)
    out.collective("allreduce", 1, 9500, 9600)
    dump = out.read(tmp_path / "x.json")
    assert (dump.warnings, dump.calls.start_ns.tolist(), len(dump.steps.proxy)) == ((), [9_500_000], 2)


def test_channels_peers_and_op_counts_tell_ops_apart(tmp_path: Path) -> None:
    out = Written()
    for step in range(2):  # interleaved, as proxies of several channels run at once
        for name, channel, op, slot in (
            ("Send-1", 0, 4, 9),
            ("Send-1", 1, 4, 9),
            ("Send-2", 0, 4, 9),
            ("Send-1", 0, 5, 9),
            ("Send-1", 0, 4, 8),
        ):
            begin = 7000 + out.number
            out.step(f"{name}-{step}", channel, [begin, begin + 1, begin + 2, begin + 3], op=op, slot=slot)
    dump = out.read(tmp_path / "x.json")
    assert (dump.proxies.channel.tolist(), dump.proxies.peer.tolist()) == ([0, 1, 0, 0, 0], [1, 1, 2, 1, 1])
    assert sorted(set(zip(dump.steps.proxy.tolist(), dump.steps.step.tolist(), strict=True))) == [
        (op, step) for op in range(5) for step in range(2)
    ]


def test_states_of_a_step_that_is_lost_are_left_out(tmp_path: Path) -> None:
    out = Written()
    out.step("Send-1-0", 0, [7000, 7001, 7002, 7003])
    out.step("Send-1-1", 0, [7010, 7011, 7012, 7013])
    lines = [line for line in out.lines if "Send-1-1" not in line]
    (tmp_path / "x.json").write_text("\n".join(lines))
    dump = read_dump(tmp_path / "x.json")
    assert (len(dump.steps.proxy), dump.left_out) == (2, {"NET BufferWait": 4, "steps of no proxy op": 4})


STEP_ROWS = st.lists(st.tuples(*[st.integers(0, 1)] * 3, st.integers(0, 4)), max_size=40)


@given(STEP_ROWS)
def test_ops_are_those_of_a_walk_through_the_file(rows: list[tuple[int, int, int, int]]) -> None:
    peer, channel, slot, step = (
        np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else [()] * 4)
    )
    same = np.zeros(len(rows), np.int64)
    wanted, last, count = [], {}, 0
    for *key, number in rows:
        before = last.get(tuple(key))
        if before is None or number <= before[0]:
            op, count = count, count + 1
        else:
            op = before[1]
        last[tuple(key)] = (number, op)
        wanted.append(op)
    columns = {"slot": slot, "op": same, "channel": channel, "peer": peer, "sends": same, "step": step}
    assert op_of(columns).tolist() == wanted
