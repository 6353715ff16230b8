"""Advice for people."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from graphlink.advice.records import ENOUGH_PCT, LEAST_PCT, Advice, AdviceReport
from graphlink.records import Lines, Table, counted, ms
from graphlink.replay.band import BOUND, band_head, band_words


def advice_table(report: AdviceReport, top: int) -> Lines:
    """Return the report: of each advice what it gains, why, what to do, and the command that computes the gain."""
    some = f"rank {report.ranks[0]}" if len(report.ranks) == 1 else f"{len(report.ranks):,} ranks together"
    out: Lines = [f"{some}, {_took(report)}: each gain is of one change alone, they do not add up"]
    shown = [one for one in report.advice if one.most_pct is None or one.most_pct >= LEAST_PCT]
    first = [
        (k, one) for k, one in enumerate(shown, 1) if k <= top or one.gain_pct is None
    ]  # all that has no gain: no order says how much it is
    for k, one in first:
        head = f"also: {one.what}" if one.gain_ns is None and k > 1 else f"{k}. {one.what}"
        head = head if one.gain_ns is None else f"{k}. saves {gain_words(one)}{one.what}"
        out += ["", head, Table(advice_rows(one, report.path_ns), indent=3)]
    left, small = len(shown) - len(first), len(report.advice) - len(shown)
    rest = [f"{left} more with a larger --top"] if left else []
    rest += [f"{small} more {'gains' if small == 1 else 'gain'} less than 0.1 %"] if small else []
    if not report.advice:
        rest = ["no change was found that would save time"]
    if rest:
        out += ["", "; ".join(rest)]
    if report.notes:
        out += ["", Table([("note", note) for note in report.notes])]
    return out


def first_lines(report: AdviceReport, folder: str) -> Lines:
    """Return the first advice, as it stands below the main fact of a run."""
    shown = [one for one in report.advice if one.most_pct is None or one.most_pct >= LEAST_PCT]
    rows = [("saves most", "" if shown else "no change of those that were tried would save time")]
    for best in shown[:1]:
        at_most = "at most " * (best.band is not None and best.band.why == BOUND)
        name = "what to do" if best.gain_ns is None else "saves most" if saves_most(best, shown) else "saves"
        rows = [
            (
                name,
                f"{at_most}{gain_words(best, ' of the critical path')}{best.what}",
            ),
            ("do", best.todo),
            ("gain", best.supposed),
            ("sure", _band(best, report.path_ns)),
            ("check it by", best.command),
        ]
        if best.most_pct is not None and best.most_pct < ENOUGH_PCT:
            rows = rows[:1]
    if len(shown) > 1:
        rows.append(("then", f"{counted(len(shown) - 1, 'more change')}: graphlink advice {shlex.quote(folder)}"))
    return ["", Table([row for row in rows if row[1]])]


def saves_most(advice: Advice, among: Sequence[Advice]) -> bool:
    """Tell whether none of others saves more of a step that counts, where that is known, else of the run."""
    return advice.share_pct >= max(one.share_pct for one in (advice, *among))


def gain_words(advice: Advice, of_path: str = "") -> str:
    """Return ahead of an advice what it saves: ``19.750 ms (26.6 %, a step 26.6 %): ``; "" where that is not known."""
    of_step = f"({advice.gain_pct or 0:.1f} %{of_path}{advice.of_step}): "
    return "" if advice.gain_ns is None else f"{ms(advice.gain_ns)} ms {of_step}"


def advice_rows(one: Advice, path_ns: int) -> list[tuple[str, str]]:
    """Return name and text of what there is to say of an advice on a critical path of ``path_ns``."""
    gain = f"not computed: {one.why_not}" if one.why_not else one.supposed
    rows = [
        ("seen", one.evidence),
        ("do", one.todo),
        ("gain", gain),
        ("sure", _band(one, path_ns)),
        ("from", one.command),
    ]
    return [(name, text) for name, text in rows if text]


def _band(one: Advice, path_ns: int) -> str:
    """Return the band of a gain in words; "" where there is none to say."""
    if one.band is None or one.gain_ns is None:
        return ""
    before_ns = one.gain_ns + (one.band.run.ns if one.band.run else 0)
    return f"{band_head(one.band)}: {band_words(one.band, before_ns, path_ns)[0]}"


def _took(report: AdviceReport) -> str:
    """Return what the gains are of: the critical path, and where the recordings began apart the whole replay."""
    whole = "" if report.path_ns == report.replayed_ns else f" of {ms(report.replayed_ns)} ms replayed"
    return f"critical path {ms(report.path_ns)} ms{whole}"
