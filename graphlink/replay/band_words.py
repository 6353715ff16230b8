"""What there is to say of the band of a prediction."""

from __future__ import annotations

from collections.abc import Sequence

from graphlink.records import ms, percent
from graphlink.replay.records import Band, Span


def band_words(band: Band, before_ns: int) -> list[str]:
    """Return the band in words, of the run, of its steps, and what makes it so wide; or why there is none. ``before_ns``: what the run
    takes as recorded."""
    if band.run is None:
        return [f"{band.why}: record more steps"]
    again = f"a second run of {band.steps} steps" if band.steps > 1 else "a second run"
    doubt = "too uncertain to tell from no gain: " if uncertain(band, before_ns) else ""
    lines = [f"{doubt}{again}, so changed, takes {_span(band.run)}: {_gain(band.run, before_ns)}"]
    if band.step is not None:
        lines.append(f"its steps take {_span(band.step)} on average; predicted are {ms(band.step.ns)} ms")
    lines.append(f"+- {ms(band.spread_ns or 0)} ms: {'steps' if band.steps > 2 else 'nodes of one name'} differ")
    lines += _sides(band.unexplained_ns, "time that nothing explains may change too, or may not")
    lines += _sides(band.latency_ns, "latency of communication may stay as it is")
    return lines


def uncertain(band: Band | None, before_ns: int) -> bool:
    """Tell whether a second run may as well end earlier as later: then the gain cannot be told from none."""
    return band is not None and band.run is not None and band.run.low_ns < before_ns < band.run.high_ns


def band_head(band: Band) -> str:
    """Return what ``band_words`` are about."""
    return "no band" if band.run is None else f"{band.level_pct} % band"


def _span(span: Span) -> str:
    return f"{ms(span.low_ns)} to {ms(span.high_ns)} ms"


def _gain(span: Span, before_ns: int) -> str:
    """Return between which gains it lies, the least first."""
    ends = [before_ns - span.high_ns, before_ns - span.low_ns]
    way = ["later" if gain < 0 else "earlier" for gain in ends]
    least, most = (percent(abs(gain), before_ns) for gain in ends)
    if way[0] != way[1]:
        return f"{least} later to {most} earlier"
    return f"{most} to {least} later" if way[0] == "later" else f"{least} to {most} earlier"


def _sides(sides_ns: Sequence[int], why: str) -> list[str]:
    told = [f"{sign} {ms(ns)}" for sign, ns in zip("-+", sides_ns, strict=True) if ns]
    return [f"{' '.join(told)} ms: {why}"] if told else []
