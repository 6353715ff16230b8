"""``graphlink bubbles``: where the bubbles of an earlier run come from, and what another schedule would make of its
times.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graphlink import output_names
from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import RUN_DIR, at_least_one, between, count, run_folder
from graphlink.cli.out import tell
from graphlink.errors import UsageError
from graphlink.records import Lines, Table, first_few, joined, like_it, ms, shares_words, shortened
from graphlink.tables import grouped

if TYPE_CHECKING:
    from graphlink.pipeline.file import Bubbles
    from graphlink.pipeline.records import Other, Searched, StepEntry, StepTime

_RATED: Final = ("bubble_rate_makespan", "bubble_rate_zb")
_TEXT: Final = 100  # characters of an evidence that are shown
_FOR_ANOTHER: Final = ("microbatches", "chunks", "input_share", "memory", "weight_memory", "et")
_ABOUT: Final = """Times are summed over the steps of the run. Communication is not work, and the optimizer is outside.
docs/bubbles.md has the definitions, the causes, and how to read the picture."""


BUBBLES_OPTIONS: Final = VerbOptions(
    (
        RUN_DIR,
        Option(
            "--top",
            type=count,
            default=10,
            metavar="N",
            help="how many of the longest idle intervals to print (default 10)",
        ),
        Option("--compare", metavar="FILE.svg", help="also draw the computed schedule above the recorded one"),
    ),
    groups={
        "what if": (
            Option(
                "--schedule",
                metavar="NAME",
                help="another schedule on the measured times, such as 1f1b, interleaved, zb-h1, zb-v;"
                " zb-1p, zb-2p and auto are searched for these times under a limit of activation memory",
            ),
            Option("--microbatches", type=at_least_one, metavar="M", help="of a step (default: as recorded)"),
            Option(
                "--chunks", type=at_least_one, metavar="V", help="model chunks a rank (default: what the schedule has)"
            ),
            Option(
                "--input-share",
                type=between(0, math.nextafter(1, 2), "share from 0 to 1"),
                metavar="X",
                help="of a backward, what its input gradient takes (0 to 1), where the run did not split",
            ),
            Option(
                "--memory",
                type=between(1e-6, 1e6, "multiple of 1F1B's memory"),
                metavar="X",
                help="with --schedule auto: activations that a rank may store, in multiples of 1F1B's most (default 1; "
                "zb-1p is 1, zb-2p 2)",
            ),
            Option(
                "--weight-memory",
                type=between(0, math.nextafter(1, 2), "share from 0 to 1"),
                metavar="X",
                help="of a microbatch's activations, what its weight gradient still needs after the input gradient"
                " (0 to 1, default 0.5; with FlashAttention 0.94)",
            ),
            Option(
                "--et",
                metavar="FOLDER",
                help="also write the computed step as Chakra graphs, one a rank, for simulators",
            ),
        )
    },
    epilog=_ABOUT,
)


def bubbles(arguments: argparse.Namespace) -> int:
    """Print the report; return 0. With ``--et`` and ``--compare`` graphs and the picture are written first.

    Raises:
        InputError: there is no ``bubbles.json``, or it is none of ours.
        UsageError: an option is out of range, or there is no such schedule for these numbers.
        OutputError: the graphs or the picture cannot be written.
    """
    from msgspec import structs

    from graphlink.pipeline import file as file_of
    from graphlink.pipeline import graphs
    from graphlink.pipeline import what_if_schedule as schedules

    extra = [f"--{name.replace('_', '-')}" for name in _FOR_ANOTHER if getattr(arguments, name) is not None]
    if extra and arguments.schedule is None:
        raise UsageError(f"{extra[0]} is for another schedule", todo="name it with --schedule")
    folder = run_folder(arguments.dir)
    file = file_of.load(folder / output_names.BUBBLES)
    offer = None
    if arguments.schedule is not None:
        asked = (
            arguments.microbatches,
            arguments.chunks,
            arguments.input_share,
            arguments.memory,
            arguments.weight_memory,
        )
        offer = schedules.offer(file, arguments.schedule, *asked)
    wrote = []
    if offer is not None and arguments.et is not None:
        graphs.write(Path(arguments.et), offer.orders, offer.timed, offer.times)
        wrote.append(f"wrote {len(offer.orders)} graphs into {arguments.et}")
    if arguments.compare is not None:
        schedules.compare(file, offer, Path(arguments.compare))
        wrote.append(f"wrote {arguments.compare}")

    def text() -> Lines:
        blocks: list[Sequence[str | Table]] = [
            *report(file, arguments.top),
            *([what_if(file, offer.other)] if offer else []),
        ]
        return joined([*blocks, *([wrote] if wrote else [])])

    tell(arguments.json, file_of.Compared(**structs.asdict(file), what_if=offer.other) if offer else file, text)
    return 0


def report(file: Bubbles, top: int) -> list[Lines]:
    """Return the blocks of the report."""
    blocks = [_head(file), _stages(file), _longest(file, top) if top else [], _theory(file), _notes(file)]
    return [block for block in blocks if block]


def what_if(file: Bubbles, offer: Other) -> Lines:
    """Compare what another schedule gives with what was measured, and if it was searched with 1F1B."""
    from msgspec import UNSET

    from graphlink.pipeline.records import sized

    recorded, steps = file.pipeline, max(len(file.steps), 1)
    measured_ns = sum(s.end_ns - s.start_ns for s in file.steps) / steps
    computed_ns = offer.makespan_ns
    rows = [
        ("makespan", f"{ms(computed_ns)} ms", f"{ms(measured_ns)} ms"),
        ("per microbatch", _per(computed_ns, offer.microbatches), _per(measured_ns, recorded.microbatches)),
    ]
    rows += [(name, _rate(getattr(offer, name)), _rate(getattr(recorded, name))) for name in _RATED]
    size = sized(offer.stages, offer.microbatches, offer.chunks)
    like = f"; --schedule {recorded.schedule.lower()} --microbatches {recorded.microbatches} computes these likewise"
    return [
        f"what if: {offer.schedule}, {size}, on the measured times of a step",
        Table([(name, computed, f"(measured {said})") for name, computed, said in rows], align="<>"),
        f"    {offer.microbatches:,} microbatches at their median times, without jitter and host; measured are "
        f"{recorded.microbatches:,}, with both{like * (recorded.schedule != 'unknown')}",
        f"  activations at their peak, by rank: {', '.join(f'{a:g}' for a in offer.activations)}",
        "    of one microbatch in one rank's share of the model",
        *([] if offer.searched is UNSET else _searched(offer.searched)),
        *([] if offer.step is UNSET else _step(offer.step, offer.microbatches, recorded.microbatches)),
        *(f"  assumed: {text}" for text in offer.assumed),
    ]


def _step(found: StepTime, count: int, measured_count: int) -> Lines:
    """Return the predicted time of a step of ``count`` microbatches, what it is made of on each rank, and what it rests
    on.
    """
    from msgspec import UNSET

    measured = (
        ""
        if found.measured_ns is UNSET
        else f"  (measured {ms(found.measured_ns)} ms, {_per(found.measured_ns, measured_count)} a microbatch)"
    )
    missed = (
        ""
        if found.missed is UNSET
        else f", {found.missed:+.2%} of it added, as the recorded steps took longer than computed"
    )
    if found.missed is not UNSET and found.missed < 0:
        missed = f", {found.missed:+.2%} of it, as the recorded steps took less than computed"
    rows = [(str(r.rank), ms(r.work_ns), ms(r.optimizer_ns), ms(r.rest_ns)) for r in found.ranks]
    return [
        f"  a step would take {ms(found.step_ns)} ms, {_per(found.step_ns, count)} a microbatch{measured}: with jitter "
        "and host, from its first action to that of the next",
        *([] if found.doubt is UNSET else [f"    not to be relied on: {found.doubt}"]),
        f"    pipeline {ms(found.pipeline_ns)} ms{missed}; between two steps {ms(found.between_ns)} ms",
        Table(rows, ("rank", "work ms", "optimizer ms", "idle, loading, host ms"), ">>>>", indent=4),
        f"    {found.rests_on}",
        f"    {found.cannot_know}",
    ]


def _searched(found: Searched) -> Lines:
    """Return the memory of each rank, and where it is less idle than with 1F1B."""
    from msgspec import structs

    limit, most = found.memory, max(found.peak)
    total, before = (sum(map(sum, structs.astuple(parts))) for parts in (found.idle, found.idle_1f1b))
    head = ("stage", "memory at most", "until its first backward", "until its last forward ends", "after it")
    cells = [
        [
            f"{ms(ns)} ({ms(was)})"
            for ns, was in zip(getattr(found.idle, name), getattr(found.idle_1f1b, name), strict=True)
        ]
        for name in ("until_backward_ns", "between_ns", "after_forward_ns")
    ]
    rows = [
        (str(stage), f"{peak:.2f}", *parts) for stage, (peak, *parts) in enumerate(zip(found.peak, *cells, strict=True))
    ]
    return [
        f"  memory of activations: at most {most:.2f} of what 1F1B stores at most, limit {limit:g}",
        f"  idle time of all stages between their first and last work: {ms(total)} ms, with 1F1B on the same times "
        f"{ms(before)} ms",
        "  where it gains: idle ms of each stage (with 1F1B)",
        Table(rows, head, ">>>>>", indent=4),
    ]


def _head(file: Bubbles) -> Lines:
    from msgspec import UNSET

    from graphlink.pipeline.file import FORMULAS
    from graphlink.pipeline.records import shape

    pipeline, definition = file.pipeline, file.definition
    steps = [s.number for s in file.steps]
    nearest = [f"  nearest schedule: {pipeline.nearest}"] if pipeline.nearest is not UNSET else []
    spans = first_few([ms(step.end_ns - step.start_ns) for step in file.steps], 8)
    numbered = (
        f"step {steps[0]}"
        if len(steps) == 1
        else f"{len(steps)} steps ({steps[0]} to {steps[-1]})"
        if steps
        else "no step"
    )
    rates = [(name, getattr(definition, name)) for name in FORMULAS]
    of_ranks = (r"(all |\()stages\b", r"\1ranks") if pipeline.chunks > 1 else ("", "")
    return [
        shape(pipeline),
        *nearest,
        f"  {numbered}, makespan {spans or '-'} ms; communication is no work (exposed_communication: stages idle for "
        "transfers alone); the optimizer is outside",
        Table([(name, _rate(rate.value), re.sub(*of_ranks, rate.formula)) for name, rate in rates]),
    ]


def _stages(file: Bubbles) -> Lines:
    """Return a row per rank, with its stages: work, idle, and each cause that took any time, ``unknown`` always."""
    of_all, stages = file.pipeline.causes_ns, _numbers(file)
    causes = [cause for cause, ns in of_all.items() if cause == "unknown" or ns]
    idle, work = sum(of_all.values()), sum(entry.work_ns for entry in file.stages)
    rows = [
        (str(one.rank), stages[one.rank], *_idle(one.work_ns, one.lost_ns), *_by_cause(one.idle_ns, causes))
        for one in file.stages
    ]
    rows.append(("all", "", *_idle(work, idle), *_by_cause(of_all, causes)))
    head = ("rank", "stage", "work", "idle", "share", *causes)
    return [
        f"idle time by {'stage' if file.pipeline.chunks == 1 else 'rank'}, ms",
        Table(rows, head, ">" * len(head), spare=("stage", "share", "work")),
        f"  of the idle time: {shares_words(of_all, idle) or 'nothing'}",
    ]


def _by_cause(idle_ns: Mapping[Any, int], causes: Sequence[str]) -> list[str]:
    return [ms(idle_ns[cause]) if cause in idle_ns else "-" for cause in causes]


def _numbers(file: Bubbles) -> dict[int, str]:
    """Return the numbers of the stages of each rank, as evidence has them: one for each chunk."""
    each = grouped((one.rank, one.stage) for one in file.ranges if isinstance(one.stage, int))
    return {entry.rank: first_few(sorted({*each.get(entry.rank, [entry.stage])}), 3) for entry in file.stages}


def _idle(work_ns: int, idle_ns: int) -> tuple[str, str, str]:
    return ms(work_ns), ms(idle_ns), _percent(idle_ns, work_ns + idle_ns)


def _longest(file: Bubbles, top: int) -> Lines:
    from graphlink.figures import column, columns, table
    from graphlink.pipeline.file import IdleEntry

    inside = [e for e in file.idle if e.cause != "optimizer_sync"]
    if not inside:
        return ["no idle intervals"]
    by_number: dict[Any, StepEntry] = {s.number: s for s in file.steps}
    numbers = _numbers(file)
    order = sorted(inside, key=lambda e: (-e.duration_ns, e.start_ns, e.rank))[:top]
    pairs = [(e, by_number.get(e.step)) for e in order]
    shown = columns(
        IdleEntry,
        order,
        "duration_ns",
        column("of its step", "part", [(e.duration_ns, s.end_ns - s.start_ns) if s else None for e, s in pairs]),
        "rank",
        column("stage", "word", [numbers.get(e.rank, str(e.stage)) for e in order]),
        column("step", "number", [e.step for e in order]),
        column("from", "ns", [e.start_ns - s.start_ns if s else None for e, s in pairs]),
        "cause",
        column("evidence", "word", [shortened(e.evidence, _TEXT, 37) for e in order]),
    )
    return [f"longest idle intervals ({len(order)} of {len(inside):,})", table(shown)]


def _theory(file: Bubbles) -> Lines:
    from msgspec import UNSET, structs

    from graphlink.figures import declared
    from graphlink.pipeline.records import PartsNs
    from graphlink.pipeline.schedules import SCHEDULES

    pipeline = file.pipeline
    if pipeline.theory is UNSET:
        names = ", ".join(SCHEDULES)
        unknown = f"the schedule is unknown: the order is not on all ranks, in all steps, that of one of {names}"
        why = unknown if pipeline.schedule == "unknown" else "this run gives too little to compute it"
        return [f"theory against measured: none, as {why}"]
    parts = structs.asdict(pipeline.theory.parts_ns)
    about = {name: declared(PartsNs, name).text for name in parts} | {"measured": ""}
    rows = [(name, f"{ms(ns)} ms", _percent(ns, parts["measured"]), about[name]) for name, ns in parts.items()]
    rates = ", ".join(f"{name} {_rate(getattr(pipeline.theory, name))}" for name in _RATED)
    return [
        "theory against measured: what the idle time is made of",
        Table(rows, align="<>>"),
        f"  the schedule itself: {rates}",
    ]


def _notes(file: Bubbles) -> Lines:
    from msgspec import UNSET

    from graphlink.report.summary import alike

    sync, optimizer = file.pipeline.optimizer_sync_ns, sum(entry.optimizer_ns for entry in file.stages)
    waited = "" if sync is UNSET else f", optimizer_sync {ms(sync)} ms"
    unseen = ", ".join(file.definition.causes_not_seen)
    left_out = [
        f"rank {rank} left out: {', '.join(f'{reason} {n:,}' for reason, n in sorted(reasons.items()))}"
        for rank, reasons in file.left_out.items()
    ]
    said = [*left_out, *(f"warning: {text}" for text in file.warnings)]
    lines = [
        f"after the makespan, all ranks: optimizer {ms(optimizer)} ms{waited}"
        if optimizer or (sync is not UNSET and sync)
        else "",
        f"this recording cannot show, so their time is elsewhere: {unseen}" if unseen else "",
        *(f"{text}{like_it(count)}" for text, count in alike(said)),
    ]
    return [line for line in lines if line]


def _per(ns: float, count: int) -> str:
    return f"{ms(ns / count)} ms" if count else "-"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _rate(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "unknown"
