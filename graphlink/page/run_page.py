"""The page of a run, from the outputs in its folder: the verdict in three sentences, and its sections in their order.

The sentences: what a step takes and why GPUs are idle, what would gain most, how far to trust it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import UNSET

from graphlink.page.found import Found, find
from graphlink.page.parts import Figure, Page, Sentence, Words
from graphlink.page.path import critical_path
from graphlink.page.sections import communication, recording, syncs
from graphlink.page.words import meanings, time_figure
from graphlink.records import NOTE, against_recorded, counted, shortened
from graphlink.report.summary import Rank, Summary
from graphlink.wings import declarations, each, imported


def verdict(found: Found) -> list[Sentence]:
    """Return the sentences; of a folder without graphs (Paddle's logs) what its pipeline says."""
    lead = {about: words for about, text in declarations("lead") if (words := imported(text)(found))}
    bubbles = lead.get("bubbles")
    if not found.ranks:
        if bubbles is None:
            return [Sentence(["The folder holds no graph and no pipeline: there is nothing to tell."])]
        why = "No gain was computed: the recording has no graph that could be replayed."
        trust = "The figures are those of the log: how long jobs of the pipeline took, and when."
        return [Sentence(bubbles), Sentence([why]), Sentence([trust])]
    gain = lead.get("gain", ["No change of those that were tried would save time."])
    trusted = _trust(found, lead.get("trust", []))
    return [Sentence([*_step(found), *lead.get("fact", [])]), Sentence(gain), Sentence(trusted)]


def _step_ns(rank: Rank) -> int:
    """Return how long the usual step of a rank takes, or else its recording."""
    told = getattr(rank, "iterations", UNSET)
    return rank.replay.measured_ns if told is UNSET else told.first_ns if told.mean_ns is None else told.mean_ns


def _step(found: Found) -> Words:
    rank = max(found.ranks, key=lambda one: (_step_ns(one), -one.rank))
    at, told = f"summary.json#/ranks/{found.at[rank.rank]}", getattr(rank, "iterations", UNSET)
    on = f" on rank {rank.rank}, the slowest" if len(found.ranks) > 1 else ""
    if told is UNSET:
        took = time_figure(rank.replay.measured_ns, "recorded", f"{at}/replay/measured_ns")
        return ["The recording takes ", took, f"{on}; it marks no steps."]
    if told.mean_ns is None:
        return ["The recorded step takes ", time_figure(told.first_ns, "step", f"{at}/iterations/first_ns"), f"{on}."]
    mean = time_figure(told.mean_ns, "step", f"{at}/iterations/mean_ns")
    of = f"mean of {told.count - 1:,} steps, without the first" if told.count > 2 else "without the first step"
    if told.on_device_ns is UNSET:
        return ["A step takes ", mean, f" ({of}){on}."]
    device = time_figure(told.on_device_ns, "step", f"{at}/iterations/on_device_ns")
    return ["A step takes ", device, f" on the GPU{on}; the host ran ahead of it, with ", mean, f" ({of})."]


def _trust(found: Found, explained: Words) -> Words:
    texts = {text for rank in found.ranks for text in rank.warnings}.union(found.summary.warnings)
    count = sum(not text.startswith(NOTE) for text in texts)
    noted = f" {counted(count, 'warning')} below {'changes' if count == 1 else 'change'} figures." if count else ""
    *words, last = [*_error(found), *([" ", *explained] if explained else [])]
    return ["How far to trust it: ", *words, last, noted]


def _error(found: Found) -> Words:
    """Tell the error of the replay that the gains are differences of: of all ranks together, where they were replayed
    so.
    """
    run, advice = found.summary.run.replay if found.summary.run else None, found.parts.get("advice")
    worst = max((rank.replay for rank in found.ranks), key=lambda replay: abs(replay.error_pct))
    at = f"summary.json#/ranks/{[rank.replay for rank in found.ranks].index(worst)}"
    who, error_pct = "the replay ", worst.error_pct
    if run is not None and run.error_pct is not None and advice and len(advice.ranks) == len(found.ranks):
        who, error_pct, at = "the replay of all ranks together ", run.error_pct, "summary.json#/run"
    return [who, Figure(against_recorded(error_pct), error_pct, "replay", f"{at}/replay/error_pct"), "."]


def about(found: Found) -> str:
    """Return a line on what was recorded: ranks, GPUs, host, when."""
    ranks = found.ranks
    if not ranks:
        return next((text for _, hooks in each() if (text := hooks.about(found.summary))), "")
    world = max(rank.world_size for rank in ranks)
    parts = [counted(len(ranks), "rank") if len(ranks) == world else f"{len(ranks):,} of {counted(world, 'rank')}"]
    gpus = {gpu for rank in ranks if rank.machine is not UNSET for gpu in rank.machine.gpus}
    hosts = {rank.machine.host for rank in ranks if rank.machine is not UNSET and rank.machine.host}
    parts += [", ".join(shortened(gpu) for gpu in sorted(gpus)[:3])] if gpus else []
    parts += [f"on {shortened(next(iter(hosts)))}" if len(hosts) == 1 else f"on {len(hosts)} hosts"] if hosts else []
    when = sorted(rank.inputs.recorded_at for rank in ranks if rank.inputs.recorded_at)
    return ", ".join([*parts, *([f"recorded {when[0]}"] if when else [])])


def _name(folder: Path) -> str:
    """Return the name of the run: that of its folder, of one that is called as usual with the folder around it."""
    folder = folder if folder.name else folder.resolve()
    return "/".join(folder.parts[-2:]) if folder.name in ("out", "graphlink-out") else folder.name


_OF_CORE: Final = {30: critical_path, 50: syncs, 60: communication, 80: recording}
_OF_A_GRAPH: Final = ("gpu", "gains", "path", "operations", "syncs", "communication")


def run_page(folder: Path, summary: Summary) -> Page:
    """Return the page of the run whose outputs lie in ``folder``.

    Raises:
        InputError: a file cannot be read, or is none of this version.
    """
    found = find(folder, summary)
    makers = dict(_OF_CORE) | {place: imported(text) for place, text in declarations("sections")}
    sections = [section for place in sorted(makers) if (section := makers[place](found)) is not None]
    if not found.ranks:
        sections = [section for section in sections if section.name not in _OF_A_GRAPH]
    lead = verdict(found)
    return Page(
        title=f"{_name(folder)}: where the time goes",
        about=about(found),
        lead=lead,
        sections=sections,
        meanings=meanings(lead, sections),
    )
