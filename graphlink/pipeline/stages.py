"""Find the ranks that are stages of one pipeline, their order, and the virtual stage of every range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.pipeline.recognise import Recognised
from graphlink.pipeline.records import Pass, Ranges, StageRun
from graphlink.tables import MOST, codes, grouped, spread, take, tuples, turns


@dataclass(frozen=True, slots=True)
class Pipes:
    """``runs`` sorted by rank. ``pipe`` and ``position``: of each run the pipeline (replica), and its place in it.

    ``length`` is p, ``chunks`` v. ``steps``: numbers of the recording that all ranks have, in order; ranges of others
    are left out, and the ranges count steps from 0. Their stages are those of the recording. ``recorded``: which ranges
    of each run these are.
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
    together: tuple[I64, ...] = ()  # of each run the number of each range, equal where several run at the same time


def pipes(runs: Sequence[StageRun]) -> Pipes:
    """Put ranks together by whom their first activations came from; where that is unknown, by stage numbers, else by
    first forwards.
    """
    runs = sorted(runs, key=lambda run: run.rank)
    steps_of = [set(run.ranges.step[run.ranges.phase != Pass.OPT].tolist()) for run in runs]
    steps = sorted(set.intersection(*steps_of))
    left = sorted(set.union(*steps_of) - set(steps))
    missing = sorted(set.union(*map(peers_of, runs)) - {run.rank for run in runs} - {NOWHERE})
    known = _by_sources(runs, missing) or _by_stages(runs) or _by_orders(runs)
    pipe, position = zip(*(known or ((0, position) for position in _by_first_forward(runs))), strict=True)
    lack = _ends_lack(runs, max(pipe) + 1)
    warnings = (
        (left, f"steps that not all ranks recorded are left out: {', '.join(map(str, left[:8]))}"),
        (missing, f"ranks that these exchange activations with were not recorded: {', '.join(map(str, missing[:8]))}"),
        (lack, "ranks at an end of the pipeline were not recorded, as too few exchange messages with one side alone"),
        (
            known is None and len(runs) > 1,
            "stages are in the order of the ranks' first forwards: neither names nor communication tell it",
        ),
    )
    recorded = tuple(np.flatnonzero(np.isin(run.ranges.step, steps)) for run in runs)
    return Pipes(
        runs=tuple(_of_steps(run, steps, rows) for run, rows in zip(runs, recorded, strict=True)),
        recorded=recorded,
        pipe=pipe[: len(runs)],
        position=position[: len(runs)],
        length=max(position) + 1,
        chunks=max(int(run.ranges.chunk.max(initial=0)) for run in runs) + 1,
        steps=tuple(steps),
        missing=(*missing, *[NOWHERE] * lack),
        warnings=tuple(text for holds, text in warnings if holds),
    )


def _ends_lack(runs: Sequence[StageRun], pipes: int) -> bool:
    """Tell of ranks that name no peer whether some of their pipelines were not recorded: each has two ends, that
    exchange messages with one side alone.
    """
    sides = [len(run.peers) for run in runs if {*run.peers} == {NOWHERE}]
    return len(sides) == len(runs) > 1 and set(sides) <= {1, 2} and sides.count(1) < 2 * pipes


def _of_steps(run: StageRun, steps: list[int], rows: I64) -> StageRun:
    """Return a run with the ranges ``rows``, and its work in ``steps``, which are counted from 0."""
    ranges, work = take(run.ranges, rows), take(run.work, np.isin(run.work.key, steps))
    return replace(
        run,
        ranges=replace(ranges, step=np.searchsorted(steps, ranges.step)),
        work=replace(work, key=np.searchsorted(steps, work.key)),
    )


def members(pipes: Pipes, pipe: int) -> list[int]:
    """Return the runs of one pipeline, in the order of their places."""
    return sorted((i for i, p in enumerate(pipes.pipe) if p == pipe), key=lambda i: pipes.position[i])


def with_stages(pipes: Pipes, recognised: Sequence[Recognised]) -> Pipes:
    """Fill in virtual stages: those of the schedule (and its microbatches) where one was recognised, ``recognised``
    having one entry a pipeline; else of the recording, else chunk * p + place."""
    runs, together = list(pipes.runs), [simultaneous(run.ranges) for run in pipes.runs]
    for pipe, found in enumerate(recognised):
        for place, i in enumerate(members(pipes, pipe)):
            ranges = runs[i].ranges
            plain = np.maximum(ranges.chunk, 0) * pipes.length + pipes.position[i]
            stage = np.where((ranges.stage == NOWHERE) & (ranges.phase != Pass.OPT), plain, ranges.stage)
            microbatch, chunk = ranges.microbatch.copy(), ranges.chunk.copy()
            for step in found.steps:
                rows, order = step.rows[place], step.orders[place]
                stage[rows], microbatch[rows], chunk[rows] = order.stage, order.microbatch, order.stage // pipes.length
                first = np.flatnonzero(order.paired)
                together[i][rows[first + 1]] = together[i][rows[first]]
            runs[i] = replace(runs[i], ranges=replace(ranges, stage=stage, chunk=chunk, microbatch=microbatch))
    return replace(pipes, runs=tuple(runs), together=tuple(together))


def simultaneous(ranges: Ranges) -> I64:
    """Number the ranges of a rank, by start; those that run at the same time, for half of one of them, have one number:
    a pair of DualPipe waits for the inputs of both, and both of its outputs leave when it ends.
    """
    order = np.argsort(ranges.start_ns, kind="stable")
    start, end = ranges.start_ns[order], ranges.end_ns[order]
    shorter = np.minimum((end - start)[:-1], (end - start)[1:])
    apart = 2 * (np.maximum.accumulate(end)[:-1] - start[1:]) <= shorter
    return spread(len(order), order, np.cumsum(np.append(0, apart)[: len(order)]))


def _by_sources(runs: Sequence[StageRun], missing: Sequence[int]) -> list[tuple[int, int]] | None:
    """Follow chains of ``previous`` ranks, all of one length; None where they are not such chains. The ``missing`` ones
    stand behind the recorded.

    A rank that was not recorded comes after one that exchanges messages with it and does not receive its first
    activation from it; else, and where it would close a ring, it is the first.
    """
    peers = {run.rank: peers_of(run) for run in runs}
    previous = {run.rank: run.previous for run in runs}
    senders = {m: next((r for r in peers if m in peers[r] and previous[r] != m), NOWHERE) for m in missing}
    first = dict.fromkeys(missing, NOWHERE)
    return _chained(previous | senders, peers) or _chained(previous | first, peers)


def _chained(previous: dict[int, int], peers: dict[int, set[int]]) -> list[tuple[int, int]] | None:
    after = {source: rank for rank, source in previous.items() if source != NOWHERE}
    heads = [rank for rank, source in sorted(previous.items()) if source == NOWHERE]
    if (len(previous) > 1 and not after) or len(after) + len(heads) < len(previous):
        return None
    chains = [[rank] for rank in heads]
    for chain in chains:
        while chain[-1] in after:
            chain.append(after[chain[-1]])
    chains = _facing(chains, peers) or chains
    place = {rank: (pipe, position) for pipe, chain in enumerate(chains) for position, rank in enumerate(chain)}
    if len(place) < len(previous) or len(set(map(len, chains))) != 1:
        return None
    return [place[rank] for rank in previous]


def peers_of(run: StageRun) -> set[int]:
    """Return the ranks that a rank exchanges messages with, as its host or its device rows name them."""
    return {*run.peers, *run.exchanges.peer.tolist()}


def _facing(chains: list[list[int]], peers: dict[int, set[int]]) -> list[list[int]]:
    """Join chains whose last ranks exchange messages: microbatches enter such a pipeline at both ends (DualPipe)."""
    by_last = {chain[-1]: chain for chain in chains}
    pairs = [
        (chain, by_last[peer]) for chain in chains for peer in peers.get(chain[-1], set()) & {*by_last} - {chain[-1]}
    ]
    return [chain + other[::-1] for chain, other in pairs if chain[0] < other[0]]


def _by_stages(runs: Sequence[StageRun]) -> list[tuple[int, int]] | None:
    """Order by the lowest virtual stage that each rank names; several ranks of one stage are replicas, in the order of
    their ranks.
    """
    named = [run.ranges.stage[run.ranges.stage != NOWHERE] for run in runs]
    if not all(map(len, named)):
        return None
    position = codes(np.array([stage.min() for stage in named]))
    if len(set(np.bincount(position).tolist())) != 1:
        return None
    return list(tuples(turns(position), position))


def _by_orders(runs: Sequence[StageRun]) -> list[tuple[int, int]] | None:
    """Find replicas, which run the same order of phases: where each order occurs equally often, and more than once, it
    is a stage each.
    """
    passes = [take(run.ranges, run.ranges.phase != Pass.OPT) for run in runs]
    groups = grouped(
        (b"".join(column.tobytes() for column in (p.phase, p.chunk, p.microbatch)), i) for i, p in enumerate(passes)
    )
    sizes = {len(group) for group in groups.values()}
    if len(groups) < 2 or len(sizes) != 1 or sizes == {1}:
        return None
    first = _by_first_forward(runs)
    stages = sorted(groups.values(), key=lambda group: sum(first[i] for i in group))
    place = {i: (pipe, position) for position, group in enumerate(stages) for pipe, i in enumerate(group)}
    return [place[i] for i in range(len(runs))]


def _by_first_forward(runs: Sequence[StageRun]) -> list[int]:
    """Return the place of each run by the start of its first forward (of equals, by rank)."""
    first = [int(run.ranges.start_ns[run.ranges.phase == Pass.F].min(initial=MOST)) for run in runs]
    return [int(place) for place in np.argsort(np.lexsort(([run.rank for run in runs], first)))]
