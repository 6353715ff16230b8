"""Waits for gloo on simulated training whose rows end late, against the truth. Times are us."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

import graphlink
from graphlink.graph_model import CHAINED
from graphlink.linking.communication import communication
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank
from tests.depend.programs import built
from tests.simulator.gloo import BASE_NS, STYLES, GlooTraining, Rank, simulate, write

FEW, MANY = range(6), pytest.param(range(75), marks=pytest.mark.long)
Spans = list[tuple[float, float]]


def training(seed: int, style: str) -> GlooTraining:
    return GlooTraining(
        seed,
        style,
        late_us=(0, 300, 1000)[seed % 3],
        ids=seed % 2 == 0,
        ranks=2 + (seed % 5 == 4),
        straggler_us=(0, 8000)[seed // 2 % 2],
    )


def common(some: Spans, others: Spans) -> float:
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in some for c, d in others)


def length(spans: Spans) -> float:
    return sum(b - a for a, b in spans)


def times(path: Path) -> tuple[Spans, Spans]:
    """When the main thread waits in the graph, as no node has that time; and what nothing explains."""
    linked = link_rank(Inputs(kineto=path)).linked
    build = built(linked)
    graph = build.graph
    assert len(communication(linked).host_row)
    node = np.flatnonzero(np.isin(graph.kind, CHAINED))
    start = (graph.start_ns[node] + graph.epoch_ns - BASE_NS) / 1e3 - 1000
    end = np.maximum.accumulate(start + graph.duration_ns[node] / 1e3)
    silent = build.pending
    unknown = zip((silent.from_ns - BASE_NS) / 1e3 - 1000, (silent.until_ns - BASE_NS) / 1e3 - 1000, strict=True)
    return [(a, b) for a, b in zip(end[:-1], start[1:], strict=True) if b > a], list(unknown)


def rows_ending_late(ranks: list[Rank]) -> int:
    ends = [row.end for rank in ranks for row in rank.rows if row.name.startswith("gloo")]
    return sum(until < end < until + 1000 for rank in ranks for _, until in rank.waits for end in ends)


# of all waiting: what is found at least, and what is taken for waiting that is none at most
@pytest.mark.parametrize("seeds", [FEW, MANY])
@pytest.mark.parametrize(
    ("style", "found", "wrong"), [("ddp", 98, 3), ("wait", 97, 6), ("range", 96, 2), ("sync", 98, 1)]
)
def test_waits_are_found_and_work_is_none(tmp_path: Path, seeds: range, style: str, found: float, wrong: float) -> None:
    assert style in STYLES
    true = hit = false = left = ended_late = 0.0
    for seed in seeds:
        ranks = simulate(training(seed, style))
        ended_late += rows_ending_late(ranks)
        write(ranks, tmp_path, ids=training(seed, style).ids)
        for rank in ranks:
            waits, unknown = times(tmp_path / f"kineto_{rank.number}.json")
            true += length(rank.waits)
            both = common(waits, rank.waits)
            hit, false = hit + both, false + length(waits) - both
            long = [(a, b) for a, b in rank.waits if b - a >= 150]
            left += length(long) - common(long, waits) - common(long, unknown)
    assert ended_late > len(seeds), "rows end after who waited went on"
    assert 100 * hit / true >= found
    assert 100 * false / true <= wrong
    assert 100 * left / true <= 2, "waiting is a wait, or nothing explains it: it is no work"


@pytest.mark.parametrize("backend", ["ucc", "mpi", "nccl"])
def test_any_backend_is_waited_for_as_gloo_where_no_device_does_anything(tmp_path: Path, backend: str) -> None:
    """Whatever a backend is called: the rows are those of gloo under another name."""
    write(simulate(training(1, "ddp")), tmp_path, ids=False)
    path = tmp_path / "kineto_0.json"
    waits = times(path)
    path.write_text(path.read_text().replace("gloo:", f"{backend}:"))
    assert times(path) == waits and waits[0]


@pytest.mark.parametrize("seeds", [FEW[:2], MANY])
@pytest.mark.parametrize("style", STYLES)
def test_programs_with_half_the_work_take_what_is_predicted(tmp_path: Path, seeds: range, style: str) -> None:
    errors = []
    for seed in seeds:
        program = training(seed, style)
        ranks, half = simulate(program), simulate(replace(program, host=0.5))
        write(ranks, tmp_path / f"rec{seed}", ids=program.ids)
        run = graphlink.link(
            tmp_path / f"rec{seed}", options=graphlink.Options(timeline="none"), out=tmp_path / f"out{seed}"
        )
        change = '[[time]]\nsort = "host"\nscale = 0.5\n'
        if (run.nodes()["name"] == "host gap").any():
            change += '[[time]]\nsort = "gap"\nscale = 0.5\n'
        (tmp_path / "half.toml").write_text(change)
        [found] = run.replay(what_if=tmp_path / "half.toml").what_if
        errors.append(abs(found.after_ns / 1e3 / length_of(half) - 1))
    assert median(errors) <= (0.01 if len(seeds) > 2 else 0.02)
    assert max(errors) <= 0.06


def length_of(ranks: list[Rank]) -> float:
    """Time from the first begin to the last end of a main thread."""
    steps = [row for rank in ranks for row in rank.rows if row.name.startswith("ProfilerStep")]
    return max(row.end for row in steps) - min(row.start for row in steps)
