"""The pipeline: its picture, bubbles by stage and cause, and what of them the schedule itself must lose."""

from __future__ import annotations

import base64
from typing import Final

from msgspec import UNSET

from graphlink.page.found import Found
from graphlink.page.look import LOOKS
from graphlink.page.parts import Bar, Bars, Cell, Column, Part, Picture, Row, Section, Segment, Sentence, Table
from graphlink.page.words import share_cell, time_cell
from graphlink.pipeline import summary, svg
from graphlink.pipeline.file import Bubbles, IdleEntry
from graphlink.records import counted, shortened, time

MOST_BARS: Final = 16
MOST_ROWS: Final = 50
MOST_PICTURE: Final = 1_500_000  # bytes
RATES: Final = ("bubble_rate_makespan", "bubble_rate_zb", "bubble_ratio_ideal")
PARTS: Final = {
    "schedule": "lost by the schedule itself: equal stages, no transfers",
    "imbalance": "added by stages of unequal times",
    "communication": "added by transfers between stages",
    "rest": "added by all else: jitter, host, collectives",
}


def pipeline(found: Found) -> Section | None:
    """Return the section; None where no pipeline was found."""
    file = found.bubbles
    if file is None:
        return None
    parts: list[Part] = [Sentence([f"{summary.shape(file.pipeline)}."])]
    if file.pipeline.nearest is not UNSET:
        parts.append(Sentence([f"Nearest schedule: {file.pipeline.nearest}."]))
    parts += [_picture(file), _bars(file), _stages(file), _rates(file), *_theory(file), *_longest(file)]
    unseen = ", ".join(file.definition.causes_not_seen)
    notes = [f"This recording cannot show, so their time is elsewhere: {unseen}."] if unseen else []
    return Section(
        "pipelines", "Pipeline", [*parts, *(Sentence([note], note=True) for note in [*notes, *file.warnings])]
    )


def _picture(file: Bubbles) -> Part:
    """Return the picture no wider than the page: ``pipeline.svg`` is wider where that shows more numbers."""
    data = svg.redraw(file, svg.NARROWEST)
    if len(data) > MOST_PICTURE:
        text = f"The picture has {len(data) / 1e6:.1f} MB, too much for a page: open {svg.NAME}."
        return Sentence([text], note=True)
    says = f"The schedule as recorded, a row for each stage: {summary.shape(file.pipeline)}. {svg.NAME} may be wider."
    return Picture("pipeline", says, base64.b64encode(data).decode("ascii"))


def _bars(file: Bubbles) -> Bars:
    order = sorted(file.stages, key=lambda one: -sum(one.idle_ns.values()))
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
    causes = [cause for cause in file.pipeline.causes_ns if cause == "unknown" or file.pipeline.causes_ns[cause]]
    rows = []
    for k, one in enumerate(file.stages):
        idle, of = sum(one.idle_ns.values()), {str(cause): ns for cause, ns in one.idle_ns.items()}
        cells = [
            Cell(str(one.rank), one.rank),
            Cell(str(one.stage), one.stage),
            time_cell(one.work_ns),
            time_cell(idle),
        ]
        cells += [share_cell(idle, idle + one.work_ns), *(time_cell(of.get(cause)) for cause in causes)]
        rows.append(Row(cells, f"/{k}"))
    columns = [
        *(Column("rank", "number", field="rank"), Column("stage", "number", field="stage")),
        *(
            Column("work", "number", "stage_work", "work_ns"),
            Column("idle", "number", "bubble"),
            Column("idle share", "number", "bubble"),
        ),
        *(Column(cause, "number", "bubble", f"idle_ns/{cause}") for cause in causes),
    ]
    return Table("stages", "Idle time by stage and cause, over all steps", columns, rows, "bubbles.json#/stages")


def _rates(file: Bubbles) -> Table:
    theory = file.pipeline.theory
    rows = []
    for name in RATES:
        rate = getattr(file.definition, name)
        measured = Cell("unknown") if rate.value is UNSET else Cell(f"{rate.value:.4f}", rate.value)
        must = getattr(theory, name, UNSET) if theory is not UNSET and name != RATES[2] else UNSET
        rows.append(
            Row(
                [Cell(name), measured, Cell("") if must is UNSET else Cell(f"{must:.4f}", must), Cell(rate.formula)],
                f"/{name}",
            )
        )
    columns = [
        Column("rate"),
        Column("measured", "number", "bubble_rate", "value"),
        Column("the schedule itself", "number", "bubble_rate"),
        Column("formula"),
    ]
    return Table("rates", "Bubble rates", columns, rows, "bubbles.json#/definition")


def _theory(file: Bubbles) -> list[Part]:
    theory = file.pipeline.theory
    if theory is UNSET:
        why = (
            "the schedule is unknown"
            if file.pipeline.schedule == "unknown"
            else "this run gives too little to compute it"
        )
        return [Sentence([f"How much the schedule itself must lose is not known, as {why}."], note=True)]
    whole = theory.parts_ns.measured
    rows = [
        Row(
            [
                Cell(name),
                time_cell(getattr(theory.parts_ns, name)),
                share_cell(getattr(theory.parts_ns, name), whole),
                Cell(told),
            ],
            f"/{name}",
        )
        for name, told in (*PARTS.items(), ("measured", "all of it"))
    ]
    columns = [
        Column("part"),
        Column("time", "number", "bubble", "."),
        Column("of it", "number", "bubble"),
        Column("what it is"),
    ]
    return [Table("theory", "What the idle time is made of", columns, rows, "bubbles.json#/pipeline/theory/parts_ns")]


def _longest(file: Bubbles) -> list[Part]:
    inside = [(k, one) for k, one in enumerate(file.idle) if one.cause != "optimizer_sync"]
    order = sorted(inside, key=lambda pair: (pair[1].start_ns - pair[1].end_ns, pair[1].start_ns, pair[1].rank))[
        :MOST_ROWS
    ]
    if not order:
        return []
    starts = {step.number: step.start_ns for step in file.steps}
    rows = [Row(_interval(one, starts), f"/{k}") for k, one in order]
    columns = [
        *(
            Column("time", "number", "bubble"),
            Column("rank", "number", field="rank"),
            Column("stage", "number", field="stage"),
        ),
        *(
            Column("step", "number"),
            Column("from, in its step", "number"),
            Column("cause", field="cause"),
            Column("evidence", means="evidence"),
        ),
    ]
    left = len(inside) - len(order)
    more = f"{counted(left, 'shorter bubble')} in bubbles.json." if left else ""
    return [Table("bubbles", "Longest bubbles", columns, rows, "bubbles.json#/idle", more)]


def _interval(one: IdleEntry, starts: dict[int, int]) -> list[Cell]:
    step = None if one.step is UNSET else one.step
    since = one.start_ns - starts[step] if step in starts else None
    return [
        time_cell(one.end_ns - one.start_ns),
        Cell(str(one.rank), one.rank),
        Cell(str(one.stage), one.stage),
        Cell("") if step is None else Cell(str(step), step),
        time_cell(since),
        Cell(one.cause, key=one.cause if one.cause in LOOKS else ""),
        Cell(shortened(one.evidence, 100), whole=one.evidence),
    ]
