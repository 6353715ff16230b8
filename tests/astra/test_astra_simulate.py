"""What is read from ASTRA-sim: texts that both versions printed (two ranks: compute 5 us, an ALL_REDUCE of 1 MiB,
compute 5 us).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from graphlink.astra.files import Dimension, Plan
from graphlink.astra.simulate import (
    RankNodes,
    Simulation,
    Simulator,
    SimulatorRun,
    find_simulator,
    judged,
    last_line,
    nodes_of,
    read_log,
    reader_of,
    simulate,
)
from graphlink.errors import InputError
from graphlink.graph.read_et import read_et
from graphlink.replay.workload import workload
from tests.astra.et_files import node, written

HEAD = b"""\
[2026-11-24 11:52:16.320] [system::topology::RingTopology] [info] ring of node 0, id: 0 dimension: local total nodes in ring: 2 index in
[2026-11-24 11:52:16.320] [workload] [info] sys[0] finished, 16010 cycles, exposed communication 6010 cycles.
[2026-11-24 11:52:16.321] [statistics] [info] sys[0]. Post statistics processing start.
[2026-11-24 11:52:16.321] [statistics] [info] sys[0]. Post statistics processing end.
[2026-11-24 11:52:16.321] [statistics] [info] sys[0], Wall time: 16010
[2026-11-24 11:52:16.321] [statistics] [info] sys[0], GPU time: 10000
[2026-11-24 11:52:16.321] [statistics] [info] sys[0], Comm time: 6010
[2026-11-24 11:52:16.321] [workload] [info] sys[1] finished, 16010 cycles, exposed communication 6010 cycles.
[2026-11-24 11:52:16.375] [system] [critical] warning! a callable is removed before call Only GPU and COMM types are supported for overlap
[2026-11-24 11:52:16.321] [system] [warning] Exiting
"""
LEGACY = b"""\
[2026-11-24 11:52:16.339] [workload] [info] sys[0] finished, 16010 cycles, exposed communication 6010 cycles.
[2026-11-24 11:52:16.339] [workload] [info] sys[1] finished, 16010 cycles, exposed communication 6010 cycles.
"""
LOG = b"""\
[2026-11-24 11:52:16.320] [workload] [debug] issue,sys->id=0, tick=0, node->id=0, node->name=op0, node->type=4
[2026-11-24 11:52:16.320] [workload] [debug] issue,sys->id=1, tick=0, node->id=0, node->name=op0, node->type=4
[2026-11-24 11:52:16.320] [workload] [debug] callback,sys->id=0, tick=5000, node->id=0, node->name=op0, node->type=4
[2026-11-24 11:52:16.320] [workload] [debug] issue,sys->id=0, tick=5000, node->id=1, node->name=op1, node->type=7
[2026-11-24 11:52:16.320] [workload] [debug] callback,sys->id=1, tick=5000, node->id=0, node->name=op0, node->type=4
[2026-11-24 11:52:16.320] [workload] [debug] issue,sys->id=1, tick=5000, node->id=1, node->name=op1, node->type=7
[2026-11-24 11:52:16.320] [workload] [debug] callback,sys->id=0, tick=11010, node->id=1, node->name=op1, node->type=7
[2026-11-24 11:52:16.320] [workload] [debug] issue,sys->id=0, tick=11010, node->id=2, node->name=op2, node->type=4
[2026-11-24 11:52:16.320] [workload] [debug] callback,sys->id=1, tick=11010, node->id=1, node->name=op1, node->type=7
[2026-11-24 11:52:16.320] [workload] [debug] issue,sys->id=1, tick=11010, node->id=2, node->name=op2, node->type=4
[2026-11-24 11:52:16.320] [workload] [debug] callback,sys->id=0, tick=16010, node->id=2, node->name=op2, node->type=4
[2026-11-24 11:52:16.321] [workload] [debug] callback,sys->id=1, tick=16010, node->id=2, node->name=op2, node->type=4
"""
ENDED = b"callback,sys->id=1, tick=16010, node->id=2"


def verdict(
    said: bytes, log: bytes, folder: Path, status: int | None = 0, reasons: tuple[str, ...] = ()
) -> SimulatorRun:
    of = RankNodes(np.array([0, 1, 2]), np.array([1, 2, 1], np.uint8), np.ones(3, np.bool_))
    network = (Dimension("Ring", 2, 50e9, 500, ()),)
    plan = Plan(
        folder, "x", 2, {"head": 6, "legacy": 6}, frozenset(), network, replay_only=False, alone=None, warnings=()
    )
    task = Simulation(plan, folder, Simulator(folder, "head", 9.0), {0: of, 1: of}, reasons)
    (folder / "log.log").write_bytes(log)
    return judged(task, status, said, read_log([folder / "log.log"], task.nodes))


@pytest.mark.parametrize("said", [HEAD, LEGACY])
def test_both_versions_are_read(tmp_path: Path, said: bytes) -> None:
    run = verdict(said, LOG, tmp_path)
    assert (run.ok, run.finished, run.executed, run.expected, run.total_ns) == (True, 2, 6, 6, 16_010)
    assert [(one.simulated_ns, one.not_computing_ns) for one in run.ranks] == [(16_010, 6_010)] * 2
    assert run.ranks[1].work_ns == {"host": 0, "compute": 10_000, "communication": 6_010, "copy": 0, "unexplained": 0}
    assert (run.failed, run.reasons, run.said) == ([], [], "")


def test_a_hang_with_exit_status_0_is_none_that_went_well(tmp_path: Path) -> None:
    said = b"".join(line for line in HEAD.splitlines(keepends=True) if b"sys[1] finished" not in line)
    log = b"".join(line for line in LOG.splitlines(keepends=True) if ENDED not in line)
    run = verdict(said, log, tmp_path, reasons=("may hang",))
    assert run.failed == [
        "1 of 2 ranks finished (not: 1)",
        "1 of 6 nodes not executed, the first of them node 2 of rank 1",
        "its exit status is 0 all the same",
    ]
    assert (run.ok, run.total_ns, run.reasons, run.executed) == (False, None, ["may hang"], 5)
    assert run.said.endswith("[warning] Exiting")
    assert [one.simulated_ns for one in run.ranks] == [16_010, None]
    assert all(one.work_ns is None for one in run.ranks)


def test_skipped_nodes_are_found_though_all_ranks_finish(tmp_path: Path) -> None:
    run = verdict(HEAD, LOG.replace(ENDED, b"callback,sys->id=1, tick=16010, node->id=7"), tmp_path)
    assert run.failed[0] == "1 of 6 nodes not executed, the first of them node 2 of rank 1"


def test_a_run_whose_time_is_up_failed(tmp_path: Path) -> None:
    run = verdict(HEAD, LOG, tmp_path, None)
    assert not run.ok
    assert run.failed[0].startswith("not done after 9 s")


@pytest.mark.parametrize(("status", "why"), [(-6, "killed by signal 6 (Aborted)"), (134, "exit status 134")])
def test_an_abort_at_the_end_with_all_executed_is_a_run_that_went_well(tmp_path: Path, status: int, why: str) -> None:
    run = verdict(HEAD, LOG, tmp_path, status)
    assert run.ok
    assert run.total_ns == 16_010
    assert run.failed == [f"{why} as it ended, with all ranks finished and all nodes executed"]
    short = verdict(HEAD, LOG.replace(ENDED, b"callback,sys->id=1, tick=16010, node->id=7"), tmp_path, status)
    assert not short.ok
    assert short.failed[0] == why


def test_statistics_that_contradict_the_log(tmp_path: Path) -> None:
    run = verdict(HEAD.replace(b"sys[1] finished, 16010", b"sys[1] finished, 11010"), LOG, tmp_path)
    assert run.failed[0] == "rank 1 says 11,010 cycles, but its log has a node that ended at 16,010"


def test_names_of_nodes_are_no_entries(tmp_path: Path) -> None:
    """A name is anybody's: what is in it counts for nothing, nor does a second entry of a node."""
    spoof = LOG.replace(
        b"node->name=op1,",
        b"node->name=callback,sys->id=1, tick=1, node->id=2\n[x] [y] callback,sys->id=9, tick=1, node->id=2,",
        1,
    )
    later = spoof + b"[t] [workload] [debug] callback,sys->id=0, tick=9, node->id=1, node->name=op1, node->type=7\n"
    assert verdict(HEAD, later, tmp_path) == verdict(HEAD, LOG, tmp_path)


def test_last_lines() -> None:
    assert last_line(b"a\nb \n\n") == "b"
    assert last_line(b"") == ""


def test_versions_by_their_binaries(tmp_path: Path) -> None:
    binary = tmp_path / "sim"
    for data, reader in (
        (b"..N6Chakra12ETFeederNodeE..", "legacy"),
        (b"..N6Chakra8FeederV312ETFeederNode..", "head"),
        (b"#!/bin/sh\n", "head"),
    ):
        binary.write_bytes(data)
        assert reader_of(binary) == reader


def test_no_simulator_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    for given, why in (
        ("", "no ASTRA-sim is named"),
        (str(tmp_path / "none"), "there is no such program"),
        (str(tmp_path / "plain"), "is no program"),
    ):
        with pytest.raises(InputError, match=why) as caught:
            find_simulator(given)
        assert "docs/simulate.md" in str(caught.value)
        assert "graphlink replay DIR --machine ranks" in str(caught.value)


def test_computation_of_no_time_need_not_be_in_the_legacy_log(tmp_path: Path) -> None:
    written(tmp_path, [node(0, is_cpu_op=False), node(1, data=[0], micros=0, is_cpu_op=False)])
    work = workload({0: read_et(tmp_path / "trace.0.et")})
    assert nodes_of(work, "legacy")[0].expected.tolist() == [True, False]
    assert nodes_of(work, "head")[0].expected.tolist() == [True, True]


SCRIPT = """#!/bin/sh
mkfifo log/log.fifo.log
ln -s /dev/zero log/log.link.log
yes | head -c 3000 > big
(sleep 300 & echo $! > ../../pid; sleep 300)
"""


def test_all_that_a_simulator_started_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphlink.astra.simulate._MOST_BYTES", 2_000)
    of = RankNodes(np.array([0]), np.array([1], np.uint8), np.ones(1, np.bool_))
    network = (Dimension("Ring", 2, 50e9, 500, ()),)
    script = tmp_path / "simulator"
    script.write_text(SCRIPT.replace("mkfifo", "mkdir log; mkfifo"))
    script.chmod(0o755)
    nodes = {"head": 1, "legacy": 1}
    plan = Plan(tmp_path, "x", 2, nodes, frozenset(), network, replay_only=False, alone=None, warnings=())
    run = simulate(Simulation(plan, tmp_path / "out", Simulator(script, "head", 1.0), {0: of, 1: of}, ()))
    assert not run.ok and any("not done after 1 s" in why for why in run.failed)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):  # it is somebody else's to reap
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("it goes on")
