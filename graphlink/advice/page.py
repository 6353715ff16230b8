"""What would gain most, each with its evidence and the command that computes it again."""

from __future__ import annotations

from typing import Final

from graphlink.advice.records import LEAST_PCT, Advice
from graphlink.advice.table import advice_rows, of_steps, saves_most
from graphlink.page.found import Found
from graphlink.page.parts import Bar, Bars, Figure, Part, Proposal, Proposals, Section, Segment, Sentence, Words
from graphlink.page.words import time_figure
from graphlink.records import counted, time
from graphlink.replay.band import uncertain

MOST: Final = 12


def gains(found: Found) -> Section:
    """Return the section: advice as ``graphlink advice`` prints it."""
    title, report = "Where most can be gained", found.parts.get("advice")
    if report is None:
        return Section(
            "gains", title, [Sentence(["Without a graph nothing can be replayed, so no gain is known."], note=True)]
        )
    one = len(report.ranks) == 1
    whose = (
        f"rank {report.ranks[0]}"
        if one
        else "both ranks together"
        if len(report.ranks) == 2
        else f"all {len(report.ranks):,} ranks together"
    )
    path = time_figure(report.path_ns, "recorded", "advice#/path_ns")
    head: Words = [f"Each gain is of one change alone, on {whose} (critical path ", path, "): gains do not add up."]
    parts: list[Part] = [Sentence(head)]
    if len(report.ranks) < len(found.ranks):
        command = f"graphlink advice {found.folder}"
        why = (
            f"Of {len(found.ranks):,} ranks only this one was replayed, as the run is large. {command} replays all "
            "together."
        )
        parts.append(Sentence([why], note=True))
    shown = [(k, told) for k, told in enumerate(report.advice) if told.most_pct is None or told.most_pct >= LEAST_PCT]
    gaining = [(k, told) for k, told in shown if told.gain_ns]
    if gaining:
        parts.append(_bars([told for _, told in gaining[:MOST]], report.replayed_ns))
    parts.append(Proposals([_proposal(k, told, report.path_ns) for k, told in shown[:MOST]]))
    if not report.advice:
        parts.append(Sentence(["No change was found that would save time."]))
    left = len(report.advice) - len(shown[:MOST])
    parts += (
        [Sentence([f"{counted(left, 'more finding')} with less or no gain: graphlink advice prints them."], note=True)]
        if left
        else []
    )
    return Section("gains", title, [*parts, *(Sentence([f"Note: {note}."], note=True) for note in report.notes)])


def _bars(told: list[Advice], replayed_ns: int) -> Bars:
    bars = [Bar(one.what, [Segment("gain", one.gain_ns or 0)], _note(one, replayed_ns)) for one in told]
    says = (
        "What each change saves alone. What each supposes, as half of the time or none, is "
        'in the row "gain" '
        "of its box below. The gains of the critical path always suppose none."
    )
    if any(uncertain(one.band, replayed_ns) for one in told):
        says += " An uncertain gain cannot be told from none."
    return Bars("gains-bars", "Gains", says, bars)


def _note(one: Advice, replayed_ns: int) -> str:
    doubt = ", uncertain" * uncertain(one.band, replayed_ns)
    step = "" if one.gain_step_pct is None else f", a step {max(one.gain_step_pct, 0.0):.1f} %"
    return f"{time(one.gain_ns or 0)}, {one.gain_pct:.1f} %{step}{doubt}"


def _proposal(k: int, one: Advice, path_ns: int) -> Proposal:
    heading: Words = [one.what] if one.gain_ns is None else ["saves ", *_saves(k, one), f"): {one.what}"]
    return Proposal(heading, advice_rows(one, path_ns), one.command)


def _saves(k: int, one: Advice) -> Words:
    """Return what an advice saves, first what it is ordered by: ``26.6 % of a step (19.8 ms in all, 25.1 %``."""
    gain, shares = (
        time_figure(one.gain_ns or 0, "gain", f"advice#/advice/{k}/gain_ns"),
        (one.gain_pct, one.gain_step_pct),
    )
    of_run, *step = (Figure(f"{max(pct, 0.0):.1f} %", pct / 100, "gain") for pct in shares if pct is not None)
    return [*step, " of a step (", gain, " in all, ", of_run] if step else [gain, " (", of_run]


def gain_words(found: Found) -> Words | None:
    """Tell what stands first: what would gain most, or what matters more without a gain; None without advice."""
    report = found.parts.get("advice")
    if report is None:
        return None
    best = next(iter(report.advice), None)
    if best is None or best.gain_ns is None:
        return best and [f"To look at first: {best.what}: {best.evidence}. To do: {best.todo}."]
    some = "" if len(report.ranks) == len(found.ranks) else f" on rank {report.ranks[0]}"
    which = "saves most" if saves_most(best, report.advice) else "to change first"
    steps = of_steps(best)
    doubt = f" In a second run {steps}." if steps else " A second run varies too much to tell this from no gain."
    doubt = doubt if steps or uncertain(best.band, report.replayed_ns) else ""
    end = f" of the critical path) {best.supposed}.{doubt} To do: {best.todo}."
    return [f"What {which}{some}: {best.what}. It saves ", *_saves(report.advice.index(best), best), end]
