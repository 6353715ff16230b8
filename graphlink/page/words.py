"""Numbers and words of a page: few digits with a unit, and what each figure means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from graphlink import figures
from graphlink.causes import MEANING
from graphlink.figures import REWORDED, UNITS, WORDS
from graphlink.page.parts import (
    Bar,
    Bars,
    Cell,
    Column,
    Figure,
    Meaning,
    Part,
    Proposals,
    Row,
    Section,
    Sentence,
    Sort,
    Strip,
    StripCell,
    Table,
    flat,
)
from graphlink.records import percent, time

_FEW: Final = 6  # numbers that are shown
_TITLES: Final = {"device": "GPU", "share": "kind"}  # which are others on a terminal
_SORTS: Final[dict[str, Sort]] = {**dict.fromkeys(WORDS, "text"), "place": "place"}

MEANINGS: Final[dict[str, tuple[str, str]]] = {
    "step": (
        "step",
        "The range that marks it (ProfilerStep), or else from one optimizer step, or what repeats, to the next. The "
        "first step is set "
        "aside, as it may hold what is done once.",
    ),
    "recorded": ("recorded time", "From the first recorded start of a rank to its last recorded end."),
    "gpu_time": (
        "GPU time",
        "From the start of the first op of the GPU to the end of the last one. Of a step: from its begin to its end.",
    ),
    "compute": (
        "compute",
        "A kernel that is no communication ran, or a memset. The critical path counts memsets as copies.",
    ),
    "communication": (
        "communication",
        "Time in which any communication ran on the GPU, waiting for other ranks included.",
    ),
    "exposed_communication": ("exposed communication", "Communication ran, and no computation beside it."),
    "exposed_copy": ("exposed copies", "A copy ran, and neither computation nor communication beside it."),
    "idle": ("idle", "Nothing ran on the GPU. Each moment has one cause; the causes add up to the idle time."),
    **{cause: (cause, f"Idle, and the cause is: {text}.") for cause, text in MEANING.items()},
    "warmup": ("warmup", "Idle stage of a pipeline: before its first forward of the step."),
    "cooldown": ("cooldown", "Idle stage of a pipeline: after its last backward, until the step ends."),
    "launch_starved": (
        "launch_starved",
        "Idle stage of a pipeline: the host launched late. Without a GPU: the host did other work.",
    ),
    "host_sync": (
        "host_sync",
        "Idle stage of a pipeline: the host launched late, as it was blocked in a call that waits.",
    ),
    "until": ("until this began", "The op of the GPU that began at the end of the idle interval."),
    "mostly": ("mostly", "The cause with most of the idle time."),
    "utilisation": (
        "utilisation",
        "Of the time of the GPU: the share in which kernels, communication or copies ran on it.",
    ),
    "sm_efficiency": (
        "SM efficiency",
        "Estimated: of the time of kernels, weighted by how many of the multiprocessors their blocks can fill. Empty "
        "where they do "
        "not tell their grid.",
    ),
    "hidden": ("hidden communication", "Of the time in communication: the share in which computation ran beside it."),
    "memory": ("memory", "As PyTorch's allocator recorded it: the most at a time."),
    "intervals": ("intervals", "How many pieces of idle time have this cause."),
    "evidence": ("evidence", "What in the recording says so, most by time."),
    "gain": (
        "gain",
        "What the run, or the rank, would save if this alone took no time or were changed as supposed: the "
        "difference of two "
        "replays. Gains do not add up. A gain can be larger than the time of the op: its nodes also hold the pause "
        "after it and the last "
        "moments (below 20 us each) of the ops that contain it.",
    ),
    "band": (
        "90 % band",
        "What a second run with this change would take, in 90 of 100 cases. Its steps vary as those of the recording "
        "do, so it "
        "may gain more or less than the change alone. Where the band reaches from more to less time, the change may "
        "gain nothing.",
    ),
    "on_path": (
        "on the path",
        "Time of the critical path: the chain of work that decides when the replay ends. A share of it is no gain.",
    ),
    "kind": ("kind", "The sort of work: host, compute, communication, copy, or unexplained."),
    "host": (
        "host",
        "Ops and calls on host threads. Waiting inside them counts if nothing recorded tells for what, as in a data "
        "loader.",
    ),
    "copy": ("copy", "Of the critical path: copies, and memsets."),
    "nodes": ("nodes", "A node of the graph is an op, a part of an op, or an op of the GPU. This is how many of them."),
    "from": ("from", "When the stretch begins in the replay."),
    "most_in": ("most in", "The name with most of the time of the stretch."),
    "of_it": ("of it", "How much of the time of the stretch this name has."),
    "unexplained": (
        "unexplained",
        "Time of the path between ops: a GPU stream or a host thread was idle, and nothing recorded says why.",
    ),
    "fixed": (
        "fixed on the path",
        "Time of the path that stays when ops, kernels or communication change: idle streams and threads, without the "
        "latency of launches, "
        "and blocked calls that nothing explains.",
    ),
    "calls": (
        "calls",
        "How often it was called. The GPU work of its backward counts with it; what the host does there may stand in "
        "rows of its own, "
        "as ...Backward0.",
    ),
    "device_time": (
        "device time",
        "Sum over the device ops that it launched, forward and backward. Ops that ran side by side count twice.",
    ),
    "device_share": ("share of device time", "Of the device time of the rank."),
    "backward": ("backward", "The part of its device time that the backward took."),
    "host_time": (
        "host time",
        "What these ops took on host threads, without the ops that they call and without recognised waits. A data "
        "loader's wait counts.",
    ),
    "tensor_cores": (
        "tensor cores",
        "Whether the names of its kernels tell that they use tensor cores: used, not used, not used because of the "
        "type, or unknown. "
        "Empty where libraries have no such kernels for it.",
    ),
    "types": ("type", "Types of its inputs, the one with most device time first."),
    "line": (
        "Python function",
        "With the line where it begins: the innermost Python frame outside of PyTorch around its ops. Recorded only "
        "with with_stack=True.",
    ),
    "place": (
        "place in the timeline",
        "Time since the start of the rank. The button copies a query: open timeline.perfetto-trace in ui.perfetto.dev, "
        "type a colon in the "
        "search box, paste it, press Enter and click a row.",
    ),
    "waited_host": ("waited", "How long the host thread stood still in these calls, as recorded."),
    "wait": (
        "waited for other ranks",
        "Time in communication until the last rank came, summed over the ranks that waited.",
    ),
    "transfer": ("transfer", "Time of communication after all ranks had arrived, once for each collective."),
    "skew": ("skew", "By how much the last rank came later than the first, on the clock of the run."),
    "bandwidth": (
        "bus bandwidth",
        "Bytes per second of transfer, latency included, with the factors of nccl-tests (1 GB = 1e9 bytes).",
    ),
    "bytes": ("bytes", "Bytes of one rank, as ASTRA-sim counts them."),
    "apart": ("excluded", "Collectives that the profiler disturbed. They count in no sum."),
    "last": ("came last", "In how many collectives the rank arrived last by more than the clocks tell."),
    "replay": (
        "replay error",
        "How far a replay of the graph, from its own times and dependencies, is from the recording: self-consistency, "
        "no prediction.",
    ),
    "explained": (
        "standstill explained",
        "Of the time in which calls, threads and streams stood still, summed over all of them: what a dependency of "
        "the graph explains.",
    ),
    "bubble": (
        "bubble",
        "Idle time of a pipeline stage inside the makespan. Communication is no work, the optimizer is outside.",
    ),
    "makespan": ("makespan", "From the first start to the last end of the forward and backward ranges of a step."),
    "bubble_rate": ("bubble rate", "The formula stands beside it; docs/bubbles.md compares the definitions."),
    "of_a_step": (
        "time",
        "Of a step: the mean over the steps without the first, of several ranks over ranks. Where a run has too few "
        "steps, of the first "
        "step or of all that was recorded; the first sentence says which.",
    ),
    "change": ("change", "B less A: with + it takes longer in B, with - it takes less."),
    "factor": ("factor", "B divided by A: 2.00 means twice as much in B. Empty where one of them has none."),
    "margin": ("margin", "Where the true change lies with the confidence that stands beside it, in per cent of A."),
    "chance": (
        "chance",
        "How often steps that vary as these do would differ by so much or more if nothing had changed.",
    ),
    "score": (
        "score",
        "How far two runs compare, from 0 to 100: the share of their work that both have and do as often, less points "
        "for other "
        "differences. Runs below the least score are refused.",
    ),
    "points": ("points", "What a difference takes off the score."),
    "of_step": ("of the step", "The change, in per cent of the time of a step of A."),
    "came": ("in", "Whether both runs have it: A alone (it went), B alone (it came), more often or less often in B."),
    "other": ("other", "The rest: all that has no name in this chart."),
    "alike": ("alike", "How many warnings say this, some with other figures in them."),
    "stage_work": ("work", "Time of the stage in its ranges, without communication."),
}
HEADINGS: Final = {  # what columns without a key of their own mean
    "kind": "kind",
    "share": "kind",
    "from": "from",
    "nodes": "nodes",
    "most in": "most_in",
    "most of it in": "most_in",
    "of it": "of_it",
    "until this began": "until",
    "mostly": "mostly",
    "excluded": "apart",
    "alike": "alike",
}
_NOT_BY_NAME: Final = {"step", "evidence", "last", *HEADINGS.values()}  # columns of that name are something else
_LOOKS: Final = {"idle": "unexplained"}  # what keys of ``look.LOOKS`` mean that are no keys of MEANINGS


def time_figure(ns: int, means: str, at: str = "") -> Figure:
    return Figure(time(ns), ns, means, at)


def share_figure(part: int, whole: int, means: str) -> Figure:
    """Return a share in per cent, as the texts print it."""
    return Figure(percent(part, whole), part / whole if whole else 0.0, means)


def share_of_one(share: float, means: str, at: str) -> Figure:
    """Return a share of 1 that a file has."""
    return Figure(percent(share, 1), share, means, at)


def name(text: str) -> Figure:
    """Return a name of the recording, for a sentence."""
    return Figure(text)


def cell(unit: str, value: Any) -> Cell:
    """Return the cell of a figure; an empty one where a row has none."""
    if isinstance(value, Cell):
        return value
    text = figures.text(unit, value, page=True)
    if unit in WORDS or value is None or value is UNSET:
        whole = figures.text(unit, value, whole=True) if UNITS[unit].whole else ""
        return Cell(text, whole=whole, key=(value or "") if unit in ("cause", "share") else "")
    return Cell(text, (value[0] / value[1] if value[1] else 0.0) if isinstance(value, tuple) else value)


def _cells(shown: figures.Column) -> list[Cell]:
    """Return the cells of a column; its times are in one unit: ms as on the screen, or us where all are below one."""
    cells = [cell(shown.unit, value) for value in shown.values]
    most_ns = max((abs(each.value or 0) for each in cells), default=0) if shown.unit == "ns" else 0
    if most_ns < 1000:
        return cells
    size, unit = (1_000_000, "ms") if most_ns >= 1_000_000 else (1000, "us")
    return [each if each.value is None else replace(each, text=f"{each.value / size:,.3f} {unit}") for each in cells]


def _head(shown: figures.Column, at: str) -> Column:
    """Return the head of a column. It means what its figure declares, else what has its name or title."""
    keys = (
        ("place",) if shown.unit == "place" else (shown.name.removesuffix("_ns"), shown.title.lower().replace(" ", "_"))
    )
    means = shown.means or next((key for key in keys if key in MEANINGS and key not in _NOT_BY_NAME), "")
    return Column(
        _TITLES.get(shown.name, shown.title),
        _SORTS.get(shown.unit, "number"),
        means,
        shown.name if at and shown.unit not in REWORDED else "",
        shown.text if means and means not in MEANINGS else UNSET,
    )


def entries(records: Iterable[Any], *fields: str) -> list[tuple[Any, ...]]:
    """Return what is in the lists of lists that ``fields`` lead to, each behind its place and the records around it."""
    every = [(f"/{k}", record) for k, record in enumerate(records)]
    for field in fields:
        every = [
            (f"{place}/{field}/{k}", *around, inner)
            for place, *around in every
            for k, inner in enumerate(getattr(around[-1], field) or ())
        ]
    return every


def table(
    name: str,
    caption: str,
    columns: Sequence[figures.Column],
    at: str = "",
    more: str = "",
    rows: Sequence[tuple[Any, ...]] = (),
) -> Table:
    """Return a table of figures. ``rows``: as ``entries`` has them; left out, they are those of the list ``at``."""
    heads = [_head(shown, at) for shown in columns]
    cells = [_cells(shown) for shown in columns]
    places = [row[0] for row in rows] if rows else [f"/{k}" if at else "" for k in range(len(cells[0]))]
    return Table(name, caption, heads, [Row(row, place) for *row, place in zip(*cells, places, strict=True)], at, more)


def meanings(lead: list[Sentence], sections: list[Section]) -> list[Meaning]:
    """Return what the figures, headings, causes and colours of a page mean, of those that it has."""
    parts = flat([*lead, *(part for section in sections for part in section.parts)])
    used = {key for part in parts for key in (*_figures(part), *_colours(part))}
    own = {
        head.means: (head.name, head.text)
        for part in parts
        if isinstance(part, Table)
        for head in part.columns
        if head.text
    }
    return [Meaning(key, title, text) for key, (title, text) in {**MEANINGS, **own}.items() if key in used]


def _figures(part: Part) -> Iterator[str]:
    """Yield the meanings of what a part says in words and headings."""
    if isinstance(part, Table):
        yield from (column.means or HEADINGS.get(column.name, "") for column in part.columns)
    elif isinstance(part, Sentence):
        yield from (word.means for word in part.words if not isinstance(word, str))
    elif isinstance(part, Proposals):
        yield from (word.means for item in part.items for word in item.heading if not isinstance(word, str))
        yield from ("band" for item in part.items for name, _ in item.rows if name == "sure")


def _colours(part: Part) -> Iterator[str]:
    """Yield the meanings of the causes and kinds of work that a part shows by their colours."""
    keys = [cell.key for row in part.rows for cell in row.cells] if isinstance(part, Table) else []
    of: Sequence[Bar | StripCell] = (
        part.bars if isinstance(part, Bars) else part.parts if isinstance(part, Strip) else ()
    )
    yield from (
        _LOOKS.get(key, key)
        for key in (*keys, *(segment.key for one in of for segment in one.segments if segment.value))
    )
