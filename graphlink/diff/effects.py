"""Where a change shows: idle time of GPUs by cause, waits of the host, waits for late ranks, bubbles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from graphlink.causes import CAUSES, MEANING
from graphlink.diff.facts import Basis, RankFacts, RankPair
from graphlink.diff.noise import Noise
from graphlink.diff.pairs import Both, Pair
from graphlink.diff.records import Change, GroupChange, PipelineChange
from graphlink.diff.structure import place
from graphlink.model import F64
from graphlink.records import ms, percent

_EXPOSED: Final = {"exposed_comm_ns": "exposed communication", "exposed_copy_ns": "exposed copies"}


def rank_effects(pair: RankPair, parts: Sequence[Pair], basis: Basis, noise: Noise, per: str) -> Iterator[Change]:
    """Yield the effects on a rank: idle time, exposed time and waits that changed beyond noise."""
    what = {cause: (f"GPU idle: {cause}", "idle", MEANING[cause]) for cause in CAUSES} | {
        field: (words, "exposed", "") for field, words in _EXPOSED.items()
    }
    for name, (words, kind, meaning) in what.items():
        before, after = _sums(pair.before, basis, basis.before, name), _sums(pair.after, basis, basis.after, name)
        if noise.differs(before, after):
            yield _effect(kind, words, before, after, per, meaning)
    for part in parts:
        if part.of == "waiting_call" and all(part.counts) and noise.part_differs(part):
            where = f" in {place(part.path)}" if part.path else ""
            yield _effect(
                "wait",
                f"the host waits for the GPU in {part.name}{where}",
                part.before_ns,
                part.after_ns,
                per,
                path=part.path,
            )


def _sums(rank: RankFacts, basis: Basis, count: int, what: str) -> F64:
    """Return the time of all devices of a rank, of one cause or one field, in the steps that count."""
    devices = [rank.entry.gpu] if basis.per == "run" else [step.gpu for step in rank.entry.steps]
    if basis.per != "run":
        devices = devices[1 : count + 1] if basis.per == "step" else devices[:1]
    ns = [
        sum(getattr(one, what) if what.endswith("_ns") else one.idle_by_cause_ns.get(what, 0) for one in each)
        for each in devices
    ]
    return np.array(ns, np.float64)


def _effect(
    kind: str, what: str, before: F64, after: F64, per: str, evidence: str = "", path: Sequence[str] = ()
) -> Change:
    one, other = float(before.mean()), float(after.mean())
    more = "more" if other > one else "less"
    return Change(
        tier="effect",
        kind=kind,
        what=f"{what}: {ms(abs(other - one))} ms {more} {per}",
        ranks=[],
        path=list(path),
        name="",
        unit=f"ns {per}",
        before=round(one, 3),
        after=round(other, 3),
        factor=round(other / one, 6) if one else None,
        change_ns=round(other - one),
        change_pct=None,
        evidence="; ".join(text for text in (f"{ms(one)} -> {ms(other)} ms {per}", evidence) if text),
    )


def run_effects(
    both: Both, found: Sequence[GroupChange], pipeline: PipelineChange | None, noise: Noise, per: str
) -> Iterator[Change]:
    """Yield the effects on the run: waiting for late ranks, and bubbles."""
    before = sum(one.wait_before_ns for one in found) / max(len(both.before.ranks), 1)
    after = sum(one.wait_after_ns for one in found) / max(len(both.after.ranks), 1)
    if noise.beyond(before, after):
        told = both.stragglers[after > before]
        what = "ranks wait for late ranks in communication, mean over ranks"
        yield _effect("straggler_wait", what, np.array([before]), np.array([after]), per, told)
    if pipeline and pipeline.bubble_rate_before is not None and pipeline.bubble_rate_after is not None:
        one, other = pipeline.bubble_rate_before, pipeline.bubble_rate_after
        causes = sum(pipeline.causes_before_ns.values()), sum(pipeline.causes_after_ns.values())
        if noise.beyond(*causes):
            yield _bubbles(one, other, causes, pipeline)


def _bubbles(one: float, other: float, causes: tuple[int, int], pipeline: PipelineChange) -> Change:
    names = dict.fromkeys([*pipeline.causes_before_ns, *pipeline.causes_after_ns])
    changes = {name: pipeline.causes_after_ns.get(name, 0) - pipeline.causes_before_ns.get(name, 0) for name in names}
    most = max(changes, key=lambda name: abs(changes[name]), default="")
    return Change(
        tier="effect",
        kind="bubbles",
        what=f"bubbles take {percent(one, 1)} -> {percent(other, 1)} of the pipeline's time, {most} most",
        ranks=[],
        path=[],
        name=most,
        unit="bubble rate",
        before=one,
        after=other,
        factor=round(other / one, 6) if one else None,
        change_ns=causes[1] - causes[0],
        change_pct=None,
        evidence=f"{ms(causes[0])} -> {ms(causes[1])} ms of idle time over all stages in the recording",
    )
