"""The whole command on simulated clusters, in this process, and what must come out of it by the truth of the
simulation.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.cli import main
from tests.e2e.graph_rules import File, read
from tests.simulator import ClusterRun
from tests.simulator.cluster_records import COLLECTIVE, I64, SEND, TYPE_NAMES


@dataclass(frozen=True)
class Done:
    """``out``: what went to stdout; ``folder``: of the files."""

    status: int
    out: str
    err: str
    folder: Path

    @cached_property
    def summary(self) -> Any:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def run(self) -> Any:
        return self.summary["run"]

    @cached_property
    def members(self) -> dict[str, tuple[int, ...]]:
        """Of each id of a group."""
        return {id_: tuple(ranks) for id_, ranks in json.loads((self.folder / "comm_group.json").read_text()).items()}

    @cached_property
    def graphs(self) -> dict[int, File]:
        return {rank["rank"]: read(self.folder / f"trace.{rank['rank']}.et") for rank in self.summary["ranks"]}


def command(*arguments: str | Path, folder: Path) -> Done:
    """``folder``: where the files are to be looked for."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(a) for a in arguments])
    return Done(status, out.getvalue(), err.getvalue(), folder)


def linked(
    run: ClusterRun, folder: Path, *options: str, seq: bool = True, timeline: bool = False, status: int = 0
) -> Done:
    """Writes the recordings into ``folder/traces`` and links them into ``folder/out``."""
    run.write(folder / "traces", seq=seq)
    shown = () if timeline else ("--no-timeline",)
    done = command(folder / "traces", "--out", folder / "out", "--jobs", "1", *shown, *options, folder=folder / "out")
    assert done.status == status, done.err
    return done


def told_op(run: ClusterRun, rank: int, op: int) -> str:
    c = run.ranks[rank]
    if c.kind[op] == COLLECTIVE:
        return f"{TYPE_NAMES[int(c.type[op])]} of {c.bytes[op]:,} bytes"
    way = "SEND of {:,} bytes to" if c.kind[op] == SEND else "RECV of {:,} bytes from"
    return f"{way.format(c.bytes[op])} rank {c.peer[op]}, tag 0"


def told_unmatched(done: Done) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            *(
                u["rank"],
                done.members[u["group"].removeprefix("group ")],
                u["where"],
                u["count"],
                u["first"],
                u["last"],
            ),
            *(u["first_told"], u["last_told"], tuple(u["lacking"])),
        )
        for u in done.run["matched"]["listed"]
    )


def true_unmatched(run: ClusterRun) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            *(u.rank, run.groups[u.group].members, u.where, u.count, u.first, u.last),
            *(told_op(run, u.rank, u.ops[0]), told_op(run, u.rank, u.ops[-1]), u.lacking),
        )
        for u in run.expected.unmatched
    )


@dataclass(frozen=True)
class Written:
    """A node of a communication op: ``op`` is its position in the rank's columns."""

    rank: int
    op: int
    node: Any
    attributes: dict[str, Any]


def written(run: ClusterRun, done: Done) -> dict[int, list[Written]]:
    """Of each rank what stands in its graph for its ops, all of them, in the order of columns; found by start and
    stream.
    """
    found = {}
    for rank, file in done.graphs.items():
        c = run.ranks[rank]
        at = {
            (a["start_ns"] + a.get("device_clock_ns", 0) + file.head["epoch_ns"], a["stream"]): (node, a)
            for node, a in zip(file.nodes, file.attributes, strict=True)
            if "correlation" in a
        }
        found[rank] = [
            Written(rank, op, *at[start, stream])
            for op, (start, stream) in enumerate(zip(c.start_ns.tolist(), c.stream.tolist(), strict=True))
        ]
    return found


def unlike(run: ClusterRun, done: Done) -> list[str]:
    """Groups whose collectives differ over ranks in number, type, size or order, and messages without their other end,
    by id order.
    """
    collectives: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    messages: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for rank, file in done.graphs.items():
        for group, members in done.members.items():
            if rank in members:
                collectives[group][rank] = []
        for node, a in zip(file.nodes, file.attributes, strict=True):
            if node.type == pb.COMM_COLL_NODE:
                collectives[a["pg_name"]][rank].append((a["comm_type"], a["comm_size"]))
            elif node.type != pb.COMP_NODE and {a["comm_src"], a["comm_dst"]} <= set(run.ranks):
                messages[a["comm_src"], a["comm_dst"], a["comm_tag"], a["comm_size"]][node.type] += 1
    out = [
        f"group {group}: {of_rank}"
        for group, of_rank in collectives.items()
        if len({tuple(c) for c in of_rank.values()}) > 1
    ]
    return out + [f"{way}: {ends}" for way, ends in messages.items() if len(ends) != 2 or len(set(ends.values())) > 1]


def true_waits(run: ClusterRun, rank: int) -> I64:
    """Of each op of a rank in what all recorded: from its own start to the last start of those recorded, or to its own
    end; else 0.
    """
    m, c = run.meetings, run.ranks[rank]
    last = {}
    for k in run.expected.meetings.tolist():
        low, high = int(m.first[k]), int(m.first[k + 1])
        last[k] = max(
            int(ns) for r, ns in zip(m.rank[low:high], m.start_ns[low:high], strict=True) if int(r) in run.ranks
        )
    until = np.array([last.get(k, 0) for k in c.meeting.tolist()], np.int64)
    waits: I64 = np.where(until > 0, np.clip(until - c.true_start_ns, 0, c.true_end_ns - c.true_start_ns), 0)
    return waits


def reference_ns(run: ClusterRun, true_ns: I64) -> I64:
    """What the run's clock shows: that of the lowest rank."""
    return run.ranks[min(run.ranks)].clock.recorded(true_ns)


def moments(run: ClusterRun, rank: int) -> I64:
    """The first and the last moment of a recording, in true time."""
    c = run.ranks[rank]
    return np.array([c.true_start_ns.min(), c.true_end_ns.max()], np.int64)
