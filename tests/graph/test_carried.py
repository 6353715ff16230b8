"""Time of ops that nodes inside them carry, as it is too short for nodes of its own, goes with these ops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphlink
from graphlink.graph.relief import carried
from graphlink.model import NOWHERE
from graphlink.replay.folder import load
from graphlink.replay.selection import Selection
from graphlink.replay.workload import Work, workload

OPTIONS = graphlink.Options(sync="cuda", timeline="none")
DEMO = Path(__file__).parents[2] / "fixtures" / "demo"


def linked(folder: Path, *rows: tuple[str, int, int]) -> graphlink.Run:
    """Link ops of one thread: name, start and end in us."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start}
        for name, start, end in rows
    ]
    path = folder / "kineto_0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return graphlink.link(path, out=folder / "out", options=OPTIONS)


def test_rests_are_those_of_the_innermost_op_that_lacks_them() -> None:
    """0 is around 1, that around 2 and 3: 3 carries a rest of each, and 5 ns that were between ops."""
    host, caller = np.ones(4, np.bool_), np.array([NOWHERE, 0, 1, 1])
    found = carried(host, caller, np.array([10, 10, 24, 49]), np.array([24, 20, 20, 24]))
    rows = sorted(zip(found.column.tolist(), found.node.tolist(), found.less_ns.tolist(), strict=True))
    assert rows == [(0, 3, 14), (1, 2, 4), (1, 3, 6)]
    assert not len(carried(host, caller, np.array([10, 10, 24, 49]), np.zeros(4, np.int64)).node)  # of others


@pytest.mark.parametrize(("name", "own_us"), [("outer", 45), ("first", 5), ("second", 5), ("next", 20)])
def test_an_op_gains_what_it_takes_itself(tmp_path: Path, name: str, own_us: int) -> None:
    """``outer`` takes 10 us before, 15 between and 20 - 5 behind two ops, which is no node of its own."""
    run = linked(tmp_path, ("outer", 0, 55), ("first", 10, 15), ("second", 30, 35), ("next", 55, 75))
    gains = run.gains(0, of="families").set_index("name").gain_ns
    assert gains[name] == own_us * 1000
    replayed = run.replay(scale=[f"host:^{name}$=0"])
    (what_if,) = replayed.what_if
    assert what_if.before_ns - what_if.after_ns == own_us * 1000
    assert {op.name: op.ns for op in replayed.runs[0].path.top}[name] == own_us * 1000


def test_all_of_a_recording_is_of_the_ops_whose_time_it_was(tmp_path: Path) -> None:
    run = graphlink.link(DEMO, out=tmp_path / "out", options=OPTIONS)
    work = workload(load({rank.rank: run.folder / f"trace.{rank.rank}.et" for rank in run.summary.ranks}))
    selection, host, self_ns = Selection(work), work.work == Work.HOST, work.column("self_ns")
    family, _ = work.names()
    nodes = [host & (family == k) for k in np.unique(family[host]).tolist()]
    own_ns = [selection.own_ns(mine) for mine in nodes]
    between_ns = [ns - int(self_ns[mine].sum()) for mine, ns in zip(nodes, own_ns, strict=True)]
    assert len(nodes) > 10 and min(between_ns) >= 0  # nothing that an op took is of another one
    assert sum(between_ns) == (work.cost_ns - self_ns)[host].sum()
    assert sum(own_ns) == work.cost_ns[host].sum() == selection.own_ns(host)
