"""Advice for people."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from graphlink.advice.records import ENOUGH_PCT, LEAST_PCT, Advice, AdviceReport
from graphlink.records import Lines, Table, command_lines, counted, ms, percent
from graphlink.replay.band import BOUND, band_head, band_words, uncertain

_PATH: Final = "the chain of work that decides when the run ends"


def advice_table(report: AdviceReport, top: int) -> Lines:
    """Return the report: what came once, where that is most; of each advice what it gains, why, what to do, and the
    command that computes the gain."""
    some = f"rank {report.ranks[0]}" if len(report.ranks) == 1 else f"{len(report.ranks):,} ranks together"
    basis = path_of(report, f", {ms(report.path_ns)} ms")
    shown = [one for one in report.advice if one.most_pct is None or one.most_pct >= LEAST_PCT]
    head = (
        f"{some}: gains are per cent of {basis}. Each is of one change alone, two do not save their sum"
        + "; times in seen are added up over the ranks" * (len(report.ranks) > 1)
    )
    out: Lines = [*([report.once, ""] if report.once else []), head]
    first = [
        (k, one) for k, one in enumerate(shown, 1) if k <= top or one.gain_pct is None
    ]  # all that has no gain: no order says how much it is
    for k, one in first:
        head = f"also: {one.what}" if one.gain_ns is None and k > 1 else f"{k}. {one.what}"
        head = head if one.gain_ns is None else f"{k}. saves {gain_words(one)}{one.what}"
        less = next(
            (
                at
                for at, ahead in enumerate(shown[: k - 1], 1)
                if ahead.gain_ns is not None and ahead.share_pct < one.share_pct
            ),
            0,
        )
        order = [("order", f"behind {less}: a cause stands before what follows from it, which may gain more")]
        out += [
            "",
            head,
            Table([*order * bool(less), *advice_rows(one, report.path_ns)], indent=3),
            *([f"   {one.command}"] * bool(one.command)),
        ]
    left, small = len(shown) - len(first), len(report.advice) - len(shown)
    rest = {
        f"{left} more with a larger --top": left,
        f"{small} more {'gains' if small == 1 else 'gain'} less than 0.1 %": small,
        "no change was found that would save time": not report.advice,
    }
    said = "; ".join(text for text, holds in rest.items() if holds)
    out += ["", said] if said else []
    return [*out, "", Table([("note", note) for note in report.notes])] if report.notes else out


def first_lines(report: AdviceReport, folder: str, *, whole: bool = True) -> Lines:
    """Return the first advice, as it stands below the main fact of a run, with its command; ``whole``: all was tried,
    and not only what the main fact is about."""
    shown = [one for one in report.advice if one.most_pct is None or one.most_pct >= LEAST_PCT]
    length = f", {ms(report.path_ns)} ms"
    rows, commands = [("saves most", "no change of those that were tried would save time")], dict[str, str]()
    for best in shown[:1]:
        name = "look at" if best.gain_ns is None else "saves most" if whole and saves_most(best, shown) else "saves"
        rows = [(name, f"{gain_words(best)}{best.what}")]
        rows += [("per cent", f"of {path_of(report, length)}: {_PATH}")] * (best.gain_ns is not None)
        if best.most_pct is None or best.most_pct >= ENOUGH_PCT:
            rows += [
                ("do", best.todo),
                ("code", best.code),
                ("gain", best.supposed),
                ("sure", _band(best, report.path_ns)),
            ]
            known = best.command and (whole or " --advice " not in best.command)  # a number is among all of them
            commands = {best.command: "computes that gain"} if known else {}
    if len(shown) > 1 or not whole:
        more = counted(len(shown) - 1, "more change") if whole else "tries all other changes, too"
        commands[f"graphlink advice {shlex.quote(folder)}"] = more
    return ["", Table([row for row in rows if row[1]]), *command_lines(commands)]


def saves_most(advice: Advice, among: Sequence[Advice]) -> bool:
    """Tell whether none of others saves more of a step that counts, where that is known, else of the run."""
    return advice.share_pct >= max(one.share_pct for one in (advice, *among))


def gain_words(advice: Advice) -> str:
    """Return ahead of an advice what it saves, first what advice is ordered by: ``26.6 % of a step (19.750 ms in all,
    25.1 %): ``, or where no steps are marked ``19.750 ms (25.1 %): ``; "" where that is not known."""
    at_most = "at most " * (advice.band is not None and advice.band.why == BOUND)
    step = "" if advice.gain_step_pct is None else f"{max(advice.gain_step_pct, 0.0):.1f} % of a step ("
    of_run = f"{ms(advice.gain_ns or 0)} ms{' in all, ' if step else ' ('}{advice.gain_pct or 0:.1f} %): "
    return "" if advice.gain_ns is None else f"{at_most}{step}{of_run}"


def advice_rows(one: Advice, path_ns: int) -> list[tuple[str, str]]:
    """Return name and text of what there is to say of an advice on a critical path of ``path_ns``."""
    gain = f"not computed: {one.why_not}" if one.why_not else one.supposed
    rows = [
        ("seen", one.evidence),
        ("do", one.todo),
        ("code", one.code),
        ("gain", gain),
        ("sure", _band(one, path_ns)),
    ]
    return [(name, text) for name, text in rows if text]


def _band(one: Advice, path_ns: int) -> str:
    """Return the band of a gain in words, or why there is none; "" where there is nothing to say."""
    if one.band is None or one.gain_ns is None:
        return ""
    before_ns = one.gain_ns + (one.band.run.ns if one.band.run else 0)
    head = f"{band_head(one.band)}: " * (one.band.run is not None)
    return head + (of_steps(one) or band_words(one.band, before_ns, path_ns)[0])


def of_steps(one: Advice) -> str:
    """Return what steps take with a change, in words, where a second run as a whole is too uncertain to tell from no
    gain, by its first step or what came once, and its steps are not; else "".
    """
    band, gain = one.band, (one.gain_step_pct or 0) / 100
    if band is None or band.run is None or band.step is None or one.gain_ns is None or not 0 < gain < 1:
        return ""
    step, was_ns = band.step, round(band.step.ns / (1 - gain))
    if step.high_ns >= was_ns or not uncertain(band, one.gain_ns + band.run.ns):
        return ""
    saves = " to ".join(percent(was_ns - ns, was_ns) for ns in (step.high_ns, step.low_ns))
    return f"steps take {ms(step.low_ns)} to {ms(step.high_ns)} ms on average: saves {saves} of a step"


def path_of(report: AdviceReport, alone: str = "") -> str:
    """Return what the gains are of: the critical path, and where the recordings began apart by a hundredth of the run
    or more, how long that is; else behind it what is said of one ``alone``."""
    of_run = f", {ms(report.path_ns)} ms of the run's {ms(report.replayed_ns)}"
    return f"the critical path{alone if 100 * report.path_ns >= 99 * report.replayed_ns else of_run}"
