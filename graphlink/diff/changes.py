"""The list of changes: of all ranks, what is of one cause once, causes before effects and the larger before the
smaller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from graphlink.causes import CAUSES, MEANING
from graphlink.diff.facts import Basis, RankFacts, RankPair
from graphlink.diff.noise import Noise, noise_of
from graphlink.diff.pairs import Both, Pair
from graphlink.diff.records import Change, GroupChange, PipelineChange, Verdict, change
from graphlink.diff.run_level import communication_changes, run_changes
from graphlink.diff.structure import place, structure
from graphlink.diff.work import is_own, work
from graphlink.model import F64
from graphlink.records import counted, first_few, ms, percent

WORDS: Final = {"step": "a step", "first step": "in the step", "run": "in all"}
_SPEED: Final = ("device_speed", "host_speed")
_SMALL: Final = 0.1  # of the largest change: a smaller one is not its cause
_ALWAYS: Final = ("synchronisation", "stream")  # causes that may take no time themselves
_LEFT_OVER: Final = 0.9
_EXPOSED: Final = {"exposed_comm_ns": "exposed communication", "exposed_copy_ns": "exposed copies"}


def changes(both: Both, found: Verdict, groups: Sequence[GroupChange], pipeline: PipelineChange | None) -> list[Change]:
    """Return what changed, causes first. Linear in parts x steps, but n log n in changes."""
    per, together, matched, basis = WORDS[both.basis.per], both.together, both.matched, both.basis
    noises = [
        noise_of(
            mine,
            basis,
            float(basis.steps(pair.before).mean()),
            max(rank.entry.inputs.resolution_ns for rank in (pair.before, pair.after)),
        )
        for pair, mine in zip(both.ranks, both.parts, strict=True)
    ]
    by_rank = [
        [
            *structure(mine, noise, matched, per),
            *work(mine, noise, matched.repeats, per, together=together),
            *rank_effects(pair, mine, basis, noise, per),
        ]
        for pair, mine, noise in zip(both.ranks, both.parts, noises, strict=True)
    ]
    merged = _merged(by_rank, [pair.rank for pair in both.ranks])
    if together and noises:
        widest = max(noises, key=lambda noise: (not noise.exact, noise.device.relative))
        if len(both.before.ranks) == len(both.after.ranks):
            merged += communication_changes(groups, widest, matched.repeats, per)
        merged += run_effects(both, groups, pipeline, widest, per)
    causes = _causes([one for one in merged if one.tier != "effect"], together=together)
    ordered = [*run_changes(both), *causes, *_by_size(one for one in merged if one.tier == "effect")]
    return [_with_share(one, found.before_ns) for one in ordered]


def _causes(found: Sequence[Change], *, together: bool) -> list[Change]:
    """Return the changes that are no effects: what has a cause of its own first, then what may follow from it, then
    what is small.
    """
    structure = {tuple(one.path) for one in found if one.tier == "structure"}
    follow = [one for one in found if one.kind == "host" and tuple(one.path) in structure]
    largest_ns = max((abs(one.change_ns or 0) for one in found if one not in follow), default=0)
    first = [one for one in found if one not in follow and is_own(one, together)]
    first = [
        one
        for one in first
        if one.change_ns is None or abs(one.change_ns) >= _SMALL * largest_ns or one.kind in _ALWAYS
    ]
    rest = [one for one in found if one not in first]
    return [*_by_size(first), *_by_size(rest)]


def _by_size(found: Iterable[Change]) -> list[Change]:
    """Return changes, the largest first; of about one size time between ops last, which is what is left over."""
    return sorted(found, key=lambda one: -abs(one.change_ns or 0) * (_LEFT_OVER if one.kind == "python" else 1))


def _with_share(one: Change, step_ns: int) -> Change:
    if one.change_ns is None or not step_ns or one.kind == "bubbles":  # whose time is that of all stages and steps
        return one
    return msgspec.structs.replace(one, change_pct=round(100 * one.change_ns / step_ns, 4))


def _merged(by_rank: Sequence[Sequence[Change]], ranks: Sequence[int]) -> list[Change]:
    """Put equal changes of several ranks together: ranks that all have it are not named, a rank alone is."""
    same: dict[tuple[str, str, tuple[str, ...], str, bool], dict[int, Change]] = defaultdict(dict)
    for rank, mine in zip(ranks, by_rank, strict=True):
        for one in mine:
            key = (
                one.tier,
                one.kind,
                tuple(one.path),
                one.name if one.tier != "effect" else one.what.split(":")[0],
                (one.change_ns or 0) > 0,
            )
            same[key].setdefault(rank, one)
    return [_of_ranks(of, len(ranks)) for of in same.values()]


def _of_ranks(of: dict[int, Change], count: int) -> Change:
    first = max(of.values(), key=lambda one: abs(one.change_ns or 0))
    if count == 1:
        return first
    mean_ns = sum(one.change_ns or 0 for one in of.values()) / len(of)
    over = "over ranks" if len(of) == count else f"of {counted(len(of), 'rank')}"
    evidence = first.evidence if len(of) == 1 else f"{mean_ns / 1e6:+,.3f} ms mean {over}; the most: {first.evidence}"
    if len(of) == count:
        return msgspec.structs.replace(first, change_ns=round(mean_ns), evidence=evidence)
    if len(of) > 1:
        alone = ""
    elif first.kind in _SPEED:
        alone = " is a straggler" if mean_ns > 0 else " is faster than before"
    else:
        alone = " alone"
    what = f"rank{'s' * (len(of) > 1)} {first_few(list(of), 8)}{alone}: {first.what}"
    return msgspec.structs.replace(first, what=what, ranks=list(of), change_ns=round(mean_ns), evidence=evidence)


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
    steps = rank.entry.steps[1 : count + 1] if basis.per == "step" else rank.entry.steps[:1]
    devices = [rank.entry.gpu] if basis.per == "run" else [step.gpu for step in steps]
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
    return change(
        "effect",
        kind,
        f"{what}: {ms(abs(other - one))} ms {more} {per}",
        (round(one, 3), round(other, 3)),
        f"ns {per}",
        path=list(path),
        factor=round(other / one, 6) if one else None,
        change_ns=round(other - one),
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
        what = "ranks wait in communication for ranks that arrive late, mean over ranks"
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
    return change(
        "effect",
        "bubbles",
        f"bubbles take {percent(one, 1)} -> {percent(other, 1)} of the pipeline's time, {most} most",
        (one, other),
        "bubble rate",
        name=most,
        change_ns=causes[1] - causes[0],
        evidence=f"{ms(causes[0])} -> {ms(causes[1])} ms of idle time over all stages in the recording",
    )
