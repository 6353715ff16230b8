"""Which ranks are stages of one pipeline, in which order, and the virtual stage of every range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.pipeline.recognise import Recognised
from graphlink.pipeline.records import KeyedSpans, Phase, Ranges, StageRun


@dataclass(frozen=True, slots=True)
class Pipes:
    """``runs`` sorted by rank. ``pipe`` and ``position``: of each run the pipeline (replica), and its place in it.

    ``length`` is p, ``chunks`` v. ``steps``: numbers of the recording that all ranks have, in order; ranges of others are left out, and
    the ranges count steps from 0. Their stages are those of the recording. ``recorded``: which ranges of each run these are.
    """

    runs: tuple[StageRun, ...]
    recorded: tuple[I64, ...]
    pipe: tuple[int, ...]
    position: tuple[int, ...]
    length: int
    chunks: int
    steps: tuple[int, ...]
    missing: tuple[int, ...]  # ranks that these exchange activations with, but that were not recorded
    warnings: tuple[str, ...]


def pipes(runs: Sequence[StageRun]) -> Pipes:
    """Puts ranks together by whom their first activations came from; where that is unknown, by stage numbers, else by first forwards."""
    runs = sorted(runs, key=lambda run: run.rank)
    warnings: list[str] = []
    steps = sorted(set.intersection(*(set(_steps(run)) for run in runs)))
    left = sorted({s for run in runs for s in _steps(run)} - set(steps))
    if left:
        warnings.append(f"steps that not all ranks recorded are left out: {', '.join(map(str, left[:8]))}")
    ranks = {run.rank for run in runs}
    missing = sorted({int(r) for run in runs for r in np.unique(run.exchanges.peer).tolist()} - ranks - {NOWHERE})
    if missing:
        warnings.append(f"ranks that these exchange activations with were not recorded: {', '.join(map(str, missing[:8]))}")
    chunks = max(int(run.ranges.chunk.max(initial=0)) for run in runs) + 1
    order = _by_sources(runs) or _by_stages(runs) or _by_orders(runs)
    if order is None:
        order = [(0, place) for place in _by_first_forward(runs)]
        if len(runs) > 1:
            warnings.append("stages are in the order of the ranks' first forwards: neither names nor communication tell it")
    length = max((position for _, position in order), default=0) + 1
    pipe, position = tuple(p for p, _ in order), tuple(q for _, q in order)
    recorded = tuple(np.flatnonzero(np.isin(run.ranges.step, steps)) for run in runs)
    kept = tuple(_of_steps(run, steps, rows) for run, rows in zip(runs, recorded, strict=True))
    return Pipes(kept, recorded, pipe, position, length, chunks, tuple(steps), tuple(missing), tuple(warnings))


def _steps(run: StageRun) -> list[int]:
    out: list[int] = np.unique(run.ranges.step[run.ranges.phase != Phase.OPT]).tolist()
    return out


def _of_steps(run: StageRun, steps: list[int], rows: I64) -> StageRun:
    r = run.ranges
    columns = {name: getattr(r, name)[rows] for name in Ranges.__slots__ if name != "rules"}
    inside = np.isin(run.work.key, steps)
    work = KeyedSpans(run.work.start_ns[inside], run.work.end_ns[inside], np.searchsorted(steps, run.work.key[inside]))
    return replace(run, work=work, ranges=Ranges(**{**columns, "step": np.searchsorted(steps, columns["step"])}, rules=r.rules))


def members(pipes: Pipes, pipe: int) -> list[int]:
    """The runs of one pipeline, in the order of their places."""
    return sorted((i for i, p in enumerate(pipes.pipe) if p == pipe), key=lambda i: pipes.position[i])


def with_stages(pipes: Pipes, recognised: Sequence[Recognised]) -> Pipes:
    """Virtual stages filled in: those of the schedule (and its microbatches) where one was recognised, ``recognised`` having one entry a
    pipeline; else of the recording, else chunk * p + place."""
    runs = list(pipes.runs)
    for pipe, found in enumerate(recognised):
        for place, i in enumerate(members(pipes, pipe)):
            r = runs[i].ranges
            plain = np.maximum(r.chunk, 0) * pipes.length + pipes.position[i]
            stage = np.where((r.stage == NOWHERE) & (r.phase != Phase.OPT), plain, r.stage)
            microbatch = r.microbatch.copy()
            for step in found.steps:
                stage[step.rows[place]] = step.orders[place].stage
                microbatch[step.rows[place]] = step.orders[place].microbatch
            runs[i] = replace(runs[i], ranges=replace(r, stage=stage, microbatch=microbatch))
    return replace(pipes, runs=tuple(runs))


def _by_sources(runs: Sequence[StageRun]) -> list[tuple[int, int]] | None:
    """Chains of ``previous`` ranks, all of one length; None where they are not such chains."""
    index = {run.rank: i for i, run in enumerate(runs)}
    before = [index.get(run.previous, NOWHERE) if run.previous != NOWHERE else NOWHERE for run in runs]
    if len(runs) > 1 and all(b == NOWHERE for b in before):
        return None
    if any(run.previous != NOWHERE and b == NOWHERE for run, b in zip(runs, before, strict=True)):
        return None
    heads = [i for i, b in enumerate(before) if b == NOWHERE]
    follows: dict[int, int] = {}
    for i, b in enumerate(before):
        if b != NOWHERE and follows.setdefault(b, i) != i:
            return None
    out: dict[int, tuple[int, int]] = {}
    for pipe, head in enumerate(heads):
        at, place = head, 0
        while at != NOWHERE and at not in out:
            out[at] = pipe, place
            at, place = follows.get(at, NOWHERE), place + 1
    lengths = {sum(1 for p, _ in out.values() if p == pipe) for pipe in range(len(heads))}
    return [out[i] for i in range(len(runs))] if len(out) == len(runs) and len(lengths) == 1 else None


def _by_stages(runs: Sequence[StageRun]) -> list[tuple[int, int]] | None:
    """By the lowest virtual stage that each rank names; several ranks of one stage are replicas, in the order of their ranks."""
    lowest = [_lowest(run.ranges.stage) for run in runs]
    if any(stage == NOWHERE for stage in lowest):
        return None
    distinct = sorted(set(lowest))
    seen = dict.fromkeys(distinct, 0)
    out = []
    for stage in lowest:
        out.append((seen[stage], distinct.index(stage)))
        seen[stage] += 1
    return out if len(set(seen.values())) == 1 else None


def _by_orders(runs: Sequence[StageRun]) -> list[tuple[int, int]] | None:
    """Replicas run the same order of phases: where each order occurs equally often, and more than once, it is a stage each."""
    orders: dict[bytes, list[int]] = {}
    for i, run in enumerate(runs):
        r = run.ranges
        mine = r.phase != Phase.OPT
        orders.setdefault(b"".join(c[mine].tobytes() for c in (r.phase, r.chunk, r.microbatch)), []).append(i)
    sizes = {len(group) for group in orders.values()}
    if len(orders) < 2 or len(sizes) != 1 or sizes == {1}:
        return None
    place = _by_first_forward(runs)
    groups = sorted(orders.values(), key=lambda group: sum(place[i] for i in group))
    out = {i: (pipe, position) for position, group in enumerate(groups) for pipe, i in enumerate(group)}
    return [out[i] for i in range(len(runs))]


def _lowest(stage: I64) -> int:
    named = stage[stage != NOWHERE]
    return int(named.min()) if len(named) else NOWHERE


def _by_first_forward(runs: Sequence[StageRun]) -> list[int]:
    """Place of each run by the start of its first forward (of equals, by rank)."""
    first = [int(run.ranges.start_ns[run.ranges.phase == Phase.F].min(initial=np.iinfo(np.int64).max)) for run in runs]
    place = [0] * len(runs)
    for position, i in enumerate(sorted(range(len(runs)), key=lambda i: (first[i], runs[i].rank))):
        place[i] = position
    return place
