"""Simulates training on CPUs over gloo, where rows end when a thread of gloo's ends them and not when who waits goes on.

Each rank has a main thread, and two threads of gloo's that take up one collective each, in the order in which they were
asked for. A collective is done so long after the last rank took it up as its transfer takes. Who waits goes on some us
later; the row ends up to ``late_us`` later. Between ops Python runs, now and then for long, with collectives pending.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

BASE_NS = 1_790_000_000_000_000_000
STEPS = 6
MAIN, THREADS = 100, (201, 202)
STYLES = ("ddp", "wait", "range", "sync")


@dataclass(frozen=True)
class GlooTraining:
    """``style``: who waits: DDP's reducer, Python for each work, Python in ranges of graphlink.capture, or each
    collective at once. ``late_us``: how much later than done rows end at most. ``ids``: rows have record function ids.
    ``straggler``: rank 1 has so much more Python in each step. ``host``: what ops and Python take, in parts of it.
    """

    seed: int
    style: str
    late_us: int = 1000
    ids: bool = True
    ranks: int = 2
    straggler_us: int = 0
    host: float = 1.0


class Row(NamedTuple):
    name: str
    tid: int
    start: float
    end: float
    annotation: bool = False
    rf_id: int = 0
    shape: str = "[]"


@dataclass
class Rank:
    """``waits``: what of its thread's time was waiting, [from, until) in us."""

    number: int
    rows: list[Row] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    free: list[float] = field(default_factory=lambda: [0.0, 0.0])
    now: float = 0.0
    at: int = 0
    ids: int = 0
    begun: list[tuple[str, float, int, bool]] = field(default_factory=list)


Action = tuple[Any, ...]


def program(training: GlooTraining) -> list[list[Action]]:
    """One list of actions a rank: the same on all, with times of their own."""
    shared = Random(training.seed)
    buckets = [shared.randint(20_000, 400_000) for _ in range(shared.randint(1, 4))]
    kinds = [
        [shared.choice(("aten::mm", "aten::add", "aten::gelu")) for _ in range(shared.randint(5, 20))] for _ in "fbo"
    ]
    usual = {kind: shared.uniform(50, 900) for kind in ("aten::mm", "aten::add", "aten::gelu")}
    gap, overlap = shared.uniform(20, 120), shared.choice((0.0, 0.0, 0.3))
    out = []
    for rank in range(training.ranks):
        rng = Random(training.seed * 31 + rank)
        actions: list[Action] = []

        def ops(names: list[str], rng: Random = rng, actions: list[Action] = actions) -> None:
            for name in names:
                actions.append(("op", name, usual[name] * rng.uniform(0.9, 1.1)))
                actions.append(("python", gap * rng.expovariate(1) + 3))

        for step in range(STEPS):
            actions += [("begin", f"ProfilerStep#{step}", True), ("python", 60 * rng.uniform(0.5, 1.5))]
            ops(kinds[0])
            if training.straggler_us and rank == 1:
                actions.append(("python", training.straggler_us * rng.uniform(0.98, 1.02)))
            actions.append(("op", "aten::sum", 30.0))
            done = 0
            for k, size in enumerate(buckets):
                key = (step, k)
                if training.style != "sync":
                    ops(kinds[1][done : done + 3])
                    done += 3
                actions += [("ask", key, size)]
                if training.style == "sync":
                    actions += [("wait", key), ("python", rng.uniform(5, 30)), ("op", "aten::div_", 20.0)]
                    ops(kinds[1][:3])
            if training.style != "sync":
                if rng.random() < overlap:
                    actions += [("python", rng.uniform(100, 3000)), ("op", "aten::mul", 30.0)]
                for k in range(len(buckets)):
                    actions += [("begin", "graphlink::wait", True)] * (training.style == "range")
                    actions.append(("wait", (step, k)))
                    actions += [("end",)] * (training.style == "range")
                    actions.append(("python", rng.uniform(3, 15)))
                    if training.style == "ddp":
                        for name in ["aten::as_strided"] * 4 + [
                            "torch.distributed.ddp.reducer::copy_bucket_to_grad"
                        ] * 4:
                            actions += [("op", name, rng.uniform(2, 25)), ("python", 1.5)]
                    else:
                        actions += [("op", "aten::copy_", 40.0), ("python", gap)]
            ops(kinds[2])
            actions += [("end",), ("python", 15.0)]
        out.append(actions)
    return out


def simulate(training: GlooTraining, actions: list[list[Action]] | None = None) -> list[Rank]:
    """Run the program of ``training``, or other ``actions`` of each rank with its draws."""
    actions = actions or program(training)
    rng = Random(training.seed + 1_000_003)
    ranks = [Rank(r, now=50.0 * r) for r in range(training.ranks)]
    asked: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    order: list[tuple[int, int]] = []
    done: dict[tuple[int, int], float] = {}
    draws = {
        (key, r): (rng.uniform(10, 60), rng.uniform(5, 60), rng.uniform(0, training.late_us), rng.uniform(150, 1500))
        for key in [(s, k) for s in range(STEPS) for k in range(4)]
        for r in range(training.ranks)
    }
    while any(rank.at < len(actions[rank.number]) for rank in ranks):
        for rank in ranks:
            _advance(rank, actions[rank.number], training, asked, order, done, draws)
        for key in order:
            if key not in done and len(asked[key]) == len(ranks):
                took_up = []
                for rank in ranks:
                    at, rf_id, size = next(one for one in asked[key] if one[3] == rank.number)[:3]  # type: ignore[misc]
                    which = min(range(2), key=rank.free.__getitem__)
                    took_up.append((max(at + draws[key, rank.number][0], rank.free[which]), which, rf_id, size))
                done[key] = max(start for start, *_ in took_up) + draws[key, 0][3]
                for rank, (start, which, rf_id, size) in zip(ranks, took_up, strict=True):
                    end = done[key] + draws[key, rank.number][2]
                    rank.free[which] = end
                    rank.rows.append(Row("gloo:all_reduce", THREADS[which], start, end, True, rf_id, f"[[{size}]]"))
    return ranks


def _advance(
    rank: Rank, actions: list[Action], training: GlooTraining, asked: Any, order: Any, done: Any, draws: Any
) -> None:
    while rank.at < len(actions):
        what, *of = actions[rank.at]
        if what == "op":
            rank.ids += 1
            rank.rows.append(Row(of[0], MAIN, rank.now, rank.now + of[1] * training.host, False, rank.ids))
            rank.now += of[1] * training.host
        elif what == "python":
            rank.now += of[0] * training.host
        elif what == "begin":
            rank.ids += 1
            rank.begun.append((of[0], rank.now, rank.ids, of[1]))
            rank.now += 2
        elif what == "end":
            name, start, rf_id, annotation = rank.begun.pop()
            rank.now += 2
            rank.rows.append(Row(name, MAIN, start, rank.now, annotation, rf_id))
        elif what == "ask":
            rank.ids += 2
            rank.rows.append(
                Row("c10d::allreduce_", MAIN, rank.now, rank.now + 40, False, rank.ids - 1, f"[[[{of[1]}]], [], []]")
            )
            if of[0] not in asked:
                order.append(of[0])
            asked.setdefault(of[0], []).append((rank.now + 30, rank.ids, of[1], rank.number))
            rank.now += 40
        elif of[0] not in done:
            return
        else:
            until = max(rank.now, done[of[0]] + draws[of[0], rank.number][1])
            if until > rank.now:
                rank.waits.append((rank.now, until))
            rank.now = until
        rank.at += 1


def write(ranks: list[Rank], folder: Path, *, ids: bool = True) -> None:
    """Write a Kineto trace for each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    members = list(range(len(ranks)))
    group = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cpu:gloo",
        "pg_size": len(ranks),
        "ranks": members,
    }
    for rank in ranks:
        events = [
            {
                "ph": "X",
                "cat": "user_annotation" if row.annotation else "cpu_op",
                "name": row.name,
                "pid": MAIN,
                "tid": row.tid,
                "ts": round(1000 + row.start, 3),
                "dur": round(
                    round(row.end, 3) - round(row.start, 3), 3
                ),  # ends where the next row of its thread begins
                "args": {
                    "External id": k + 1,
                    "Record function id": row.rf_id if ids else 0,
                    "Input Dims": json.loads(row.shape),
                    "Input type": ["float"],
                },
            }
            for k, row in enumerate(sorted(rank.rows, key=lambda row: (row.start, -row.end)))
        ]
        document = {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": "gloo",
                "rank": rank.number,
                "world_size": len(ranks),
                "pg_count": 1,
                "pg_config": [group],
            },
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": events,
        }
        (folder / f"kineto_{rank.number}.json").write_text(json.dumps(document))
