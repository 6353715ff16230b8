"""The pipeline: its picture, bubbles by stage and cause, and what of them the schedule itself must lose."""

from __future__ import annotations

import base64
from typing import Final

from msgspec import UNSET, structs

from graphlink.figures import column, columns, declared
from graphlink.output_names import PIPELINE
from graphlink.page.charts import LOOKS
from graphlink.page.found import Found
from graphlink.page.parts import Bar, Bars, Cell, Part, Picture, Section, Segment, Sentence, Table, Words
from graphlink.page.words import entries, share_figure, table, time_figure
from graphlink.page.words import name as named
from graphlink.pipeline import svg
from graphlink.pipeline.file import CAUSES, FORMULAS, Bubbles, IdleEntry, StageEntry
from graphlink.pipeline.records import PartsNs, shape
from graphlink.records import counted, shortened, time

MOST_BARS: Final = 16
MOST_ROWS: Final = 50
MOST_PICTURE: Final = 1_500_000  # bytes


def pipeline(found: Found) -> Section | None:
    """Return the section; None where no pipeline was found."""
    file = found.parts.get("pipeline")
    if file is None:
        return None
    nearest = "" if file.pipeline.nearest is UNSET else f"Nearest schedule: {file.pipeline.nearest}."
    told = [Sentence([text]) for text in (f"{shape(file.pipeline)}.", nearest) if text]
    parts = [*told, _picture(file), _bars(file), _stages(file), _rates(file), *_theory(file), *_longest(file)]
    unseen = ", ".join(file.definition.causes_not_seen)
    notes = [f"This recording cannot show, so their time is elsewhere: {unseen}."] if unseen else []
    return Section(
        "pipelines", "Pipeline", [*parts, *(Sentence([note], note=True) for note in [*notes, *file.warnings])]
    )


def _picture(file: Bubbles) -> Part:
    """Return the picture no wider than the page: ``pipeline.svg`` is wider where that shows more numbers."""
    data = svg.redraw(file, svg.NARROWEST)
    if len(data) > MOST_PICTURE:
        text = f"The picture has {len(data) / 1e6:.1f} MB, too much for a page: open {PIPELINE}."
        return Sentence([text], note=True)
    says = f"The schedule as recorded, a row for each stage: {shape(file.pipeline)}. {PIPELINE} may be wider."
    return Picture("pipeline", says, base64.b64encode(data).decode("ascii"))


def _bars(file: Bubbles) -> Bars:
    order = sorted(file.stages, key=lambda one: -one.lost_ns)
    shown = sorted(order[:MOST_BARS], key=lambda one: (one.replica, one.stage, one.rank))
    bars = [
        Bar(
            f"rank {one.rank}, stage {one.stage}",
            [
                Segment("stage_work", one.work_ns),
                *(Segment(cause, ns) for cause, ns in one.idle_ns.items() if cause in LOOKS),
            ],
            time(one.makespan_ns),
        )
        for one in shown
    ]
    some = f", the {len(shown)} most idle of {len(file.stages)}" if len(file.stages) > len(shown) else ""
    says = "The makespans of all steps, cut into work and the causes of idle time."
    return Bars("stages-bars", f"Work and bubbles by stage{some}", says, bars)


def _stages(file: Bubbles) -> Table:
    causes = [cause for cause in CAUSES if cause == "unknown" or file.pipeline.causes_ns.get(cause)]
    by_cause = [
        column(cause, "ns", [one.idle_ns.get(cause) for one in file.stages], means="bubble", name=f"idle_ns/{cause}")
        for cause in causes
    ]
    shown = columns(StageEntry, file.stages, "rank", "stage", "work_ns", "lost_ns", "lost", *by_cause)
    return table("stages", "Idle time by stage and cause, over all steps", shown, "bubbles.json#/stages")


def _rates(file: Bubbles) -> Table:
    measured = [getattr(file.definition, name) for name in FORMULAS]
    theory = [getattr(file.pipeline.theory, name, UNSET) for name in FORMULAS]
    values = [Cell("unknown") if rate.value is UNSET else rate.value for rate in measured]
    shown = [
        column("rate", "word", FORMULAS),
        column("measured", "ratio", values, means="bubble_rate", name="value"),
        column("the schedule itself", "ratio", [*theory[:2], UNSET], means="bubble_rate"),
        column("formula", "word", [rate.formula for rate in measured]),
    ]
    places = [(f"/{name}",) for name in FORMULAS]
    return table("rates", "Bubble rates", shown, "bubbles.json#/definition", rows=places)


def _theory(file: Bubbles) -> list[Part]:
    theory = file.pipeline.theory
    if theory is UNSET:
        why = (
            "the schedule is unknown"
            if file.pipeline.schedule == "unknown"
            else "this run gives too little to compute it"
        )
        return [Sentence([f"How much the schedule itself must lose is not known, as {why}."], note=True)]
    parts = structs.asdict(theory.parts_ns)
    shown = [
        column("part", "word", parts),
        column("time", "ns", parts.values(), means="bubble", name="."),
        column("of it", "part", [(ns, theory.parts_ns.measured) for ns in parts.values()], means="bubble"),
        column("what it is", "word", [declared(PartsNs, name).text for name in parts]),
    ]
    at, places = "bubbles.json#/pipeline/theory/parts_ns", [(f"/{name}",) for name in parts]
    return [table("theory", "What the idle time is made of", shown, at, rows=places)]


def _longest(file: Bubbles) -> list[Part]:
    inside = [entry for entry in entries(file.idle) if entry[1].cause != "optimizer_sync"]
    order = sorted(inside, key=lambda entry: (-entry[1].duration_ns, entry[1].start_ns, entry[1].rank))[:MOST_ROWS]
    if not order:
        return []
    idle = [one for _, one in order]
    starts = {step.number: step.start_ns for step in file.steps}
    since = [one.start_ns - starts[one.step] if one.step in starts else None for one in idle]
    shown = columns(
        IdleEntry,
        idle,
        "duration_ns",
        "rank",
        "stage",
        column("step", "number", [one.step for one in idle]),
        column("from, in its step", "ns", since),
        "cause",
        column(
            "evidence",
            "text",
            [Cell(shortened(one.evidence, 100), whole=one.evidence) for one in idle],
            means="evidence",
        ),
    )
    left = len(inside) - len(order)
    more = f"{counted(left, 'shorter bubble')} in bubbles.json." if left else ""
    return [table("bubbles", "Longest bubbles", shown, "bubbles.json#/idle", more, order)]


def bubble_words(found: Found) -> Words:
    """Tell how long stages stood idle, and mostly why; nothing without a pipeline."""
    pipeline = found.summary.pipeline
    if pipeline is None:
        return []
    lost = sum(pipeline.causes_ns.values())
    most = max(pipeline.causes_ns, key=pipeline.causes_ns.__getitem__, default="unknown")
    share = share_figure(pipeline.causes_ns.get(most, 0), lost, "bubble")
    stages = f", summed over {counted(pipeline.stages, 'stage')}, mostly "
    return ["The pipeline stood idle for ", time_figure(lost, "bubble"), stages, named(most), " (", share, ")."]
