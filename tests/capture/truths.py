"""Holds a recording of a script in ``fixtures/capture`` to what the script itself knows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import CommKind
from graphlink.ranks.columns import rank_comms
from graphlink.ranks.match import match
from graphlink.ranks.records import RankComms
from graphlink.run import job

ERROR_PCT = 5.0
# a thread got its core back late: no recording can prevent that
LATE = (
    "host-side receive or collective was pending",
    "arrived late in collectives while this rank ran Python",
    "of silence of threads count as not explained",
)


@dataclass(frozen=True)
class Rank:
    prepared: job.PreparedRank
    comms: RankComms

    @property
    def graph(self) -> Graph:
        return self.prepared.built.graph

    def name(self, node: int) -> str:
        trace, row = self.prepared.linked.trace, int(self.graph.row[node])
        return trace.strings[trace.host.name[row]] if row >= 0 else ""


def unexpected(warnings: Iterable[str]) -> list[str]:
    """Return the warnings that do not come of a thread that got its core back late."""
    return [warning for warning in warnings if not any(text in warning for text in LATE)]


def ranks(folder: Path) -> tuple[Rank, ...]:
    out = []
    for kineto in sorted(folder.glob("kineto_*.json*")):
        prepared = job.prepare(
            job.Inputs(kineto=kineto, et=kineto.with_name(kineto.name.replace("kineto", "et"))), job.Options()
        )
        comms = rank_comms(prepared.built.graph, prepared.linked, prepared.comm, prepared.rank, prepared.world_size)
        out.append(Rank(prepared, comms))
    return tuple(out)


def hold(folder: Path) -> dict[str, Any]:
    """What every recording must keep; returns the truth."""
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    recorded = ranks(folder)
    assert len(recorded) == truth["ranks"]
    for one in recorded:
        linked = one.prepared.linked
        assert (linked.match.method, linked.match.only_kineto) == ("rf_id", {})
        assert set(linked.match.only_et) <= {"## process_group:init ##"}
        steps = [
            one.name(node)
            for node in np.flatnonzero(one.graph.kind == NodeKind.HOST_OP)
            if one.name(node).startswith("ProfilerStep#")
        ]
        assert steps == [f"ProfilerStep#{2 + step}" for step in range(truth["steps"])]
        assert unexpected(one.prepared.built.warnings) == []
    return truth


def hold_ddp(folder: Path) -> None:
    truth, recorded = hold(folder), ranks(folder)
    for one in recorded:
        assert one.comms.bytes.tolist() == truth["all_reduce_bytes_of_a_step"] * truth["steps"]
        assert all(key[0] == tuple(range(truth["ranks"])) for key in one.comms.groups)
        _asked_by_the_main_thread(one)
    _reduced_before_the_optimizer(recorded, truth["steps"])
    found = match([one.comms for one in recorded], {})
    assert (found.unmatched, found.conflicts, found.alone) == ((), (), {})
    assert [of_op.tolist() for of_op in found.matches.of_op] == [list(range(len(recorded[0].comms.node)))] * truth[
        "ranks"
    ]


def _asked_by_the_main_thread(one: Rank) -> None:
    graph, tid = one.graph, one.prepared.linked.trace.pid
    for row in np.flatnonzero(graph.kind == NodeKind.HOST_ASYNC).tolist():
        edges = slice(int(graph.first[row]), int(graph.first[row + 1]))
        assert graph.edge_kind[edges].tolist() == [EdgeKind.THREAD]
        (asker,) = graph.source[edges].tolist()
        assert graph.tid[asker] == tid
        assert one.name(asker) == "c10d::allreduce_"


def _reduced_before_the_optimizer(recorded: tuple[Rank, ...], steps: int) -> None:
    """On each rank a step's optimizer begins after all ranks have asked for all of its all-reduces. (The clock is one.)

    Not after their rows end: a thread of gloo's tells who waits before it ends its row.
    """
    asked_ns = np.stack([one.comms.start_ns for one in recorded]).max(axis=0).reshape(steps, -1).max(axis=1)
    for one in recorded:
        ops = np.flatnonzero(one.graph.kind == NodeKind.HOST_OP)
        optimizers = [node for node in ops if one.name(node).startswith("Optimizer.step")]
        assert (one.graph.epoch_ns + one.graph.start_ns[optimizers] > asked_ns).all()


def hold_pipeline(folder: Path) -> None:
    truth, recorded = hold(folder), ranks(folder)
    for one, messages in zip(recorded, truth["messages"], strict=True):
        got = zip(
            one.comms.kind.tolist(),
            one.comms.peer.tolist(),
            one.comms.bytes.tolist(),
            one.comms.tag.tolist(),
            strict=True,
        )
        assert list(got) == [(CommKind[m["kind"].upper()], m["peer"], m["bytes"], m["tag"]) for m in messages]
        assert unexpected(one.prepared.built.warnings) == []
        _waited_for_receives(one)
    found = match([one.comms for one in recorded], {})
    assert (found.unmatched, found.conflicts, found.alone) == ((), (), {})


def _waited_for_receives(one: Rank) -> None:
    """Every receive that took more than 1 ms holds up what its thread did next. (A shorter one may have been there
    already.)
    """
    graph, comms = one.graph, one.comms
    receives = comms.node[comms.kind == CommKind.RECV]
    long = receives[graph.end_ns[receives] - graph.start_ns[receives] > 1_000_000]
    assert len(long)
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    waits = (graph.edge_kind == EdgeKind.SYNC) & (graph.kind[target] != NodeKind.END)
    assert set(long.tolist()) <= set(graph.source[waits].tolist())


def hold_dataloader(folder: Path) -> None:
    truth = hold(folder)
    (one,) = ranks(folder)
    graph, main = one.graph, one.prepared.linked.trace.pid
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    handed = graph.edge_kind == EdgeKind.THREAD
    between = [
        (graph.tid[a] == main, graph.tid[b] == main)
        for a, b in zip(graph.source[handed], target[handed], strict=True)
        if b != target[-1]
    ]
    assert sorted(between) == [(False, True)] * truth["steps"] + [(True, False)] * truth["steps"]
    loads = [node for node in np.flatnonzero(graph.kind == NodeKind.HOST_OP) if "DataLoader" in one.name(node)]
    assert len(loads) == truth["steps"]
    took_ns = graph.end_ns[loads] - graph.start_ns[loads]
    if truth["workers"] == 1:
        assert (took_ns > truth["loading_ns"] / 2).all(), "the step before took less than loading does"
    else:
        assert (took_ns < truth["loading_ns"] / 2).all(), "some worker had the batch ready"


def hold_replay(summary: Any) -> None:
    hold_whole_replay(summary)
    replays = [part["replay"] for part in (*summary["ranks"], summary["run"]) if part is not None]
    assert max(abs(float(replay["error_pct"])) for replay in replays) <= ERROR_PCT, "each rank alone, and all together"


def hold_whole_replay(summary: Any) -> None:
    if summary["run"] is not None:
        assert summary["run"]["replay"]["ran"] == summary["run"]["replay"]["nodes"]
    assert unexpected(summary["warnings"]) == []
    assert unexpected(w for rank in summary["ranks"] for w in rank["warnings"]) == []
