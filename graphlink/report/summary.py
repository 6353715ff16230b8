"""``summary.json``: counts, provenance, replay error and critical path of every rank, and the table printed of it."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.errors import InputError
from graphlink.figures import figure
from graphlink.graph.critical import ShareNs
from graphlink.graph.gains import FamilyGain
from graphlink.graph_model import Sync
from graphlink.model import DeviceClock, DeviceMemory, System
from graphlink.output_names import SUMMARY
from graphlink.ranks.summary import Run, run_table
from graphlink.read import document
from graphlink.read.document import AGAIN
from graphlink.records import (
    Lines,
    Short,
    Table,
    against_recorded,
    joined,
    like_it,
    ms,
    path_words,
    percent,
    share_word,
    shortened,
    told,
)
from graphlink.tables import grouped
from graphlink.version import __version__
from graphlink.wings import all_of, each, with_fields

FORMAT: Final = 1
TOP_NAMES: Final = 20  # names without a partner that are listed one by one
MOST_BLOCKS: Final = 2  # ranks that are printed in a block each; of more, a line each
MOST_LINES: Final = 64
WIDE: Final = 100  # columns of what is printed of a run, at most
SHOWN_ONCE: Final = 3
_HEAD: Final = {  # columns of the line of a rank, with their sides
    "rank": ">",
    "ms": ">",
    "idle %": ">",
    "idle because": "<",
    "comm %": ">",
    "path mostly": "<",
    "error %": ">",
    "explained %": ">",
}
_RANK_WORDS: Final = {  # what a column says, where it is shown
    "rank": "sorted by rank",
    "idle %": "sorted by idle %, the most idle first; idle, comm: of the time from the GPU's first op to its last, "
    "without what counts nowhere, comm where no compute hides it",
    "ms": "ms: from the rank's first row to its last",
    "path mostly": "path: the critical path, what decides when the rank ends",
    "error %": "error: replayed against recorded",
    "explained %": "explained: of the time that calls, threads and streams waited, the share whose cause is known",
}
MOST_WARNINGS: Final = 12
_FIGURES: Final = re.compile(r"[+-]?\d[\d,.]*")  # in warnings: of two that differ in no more the cause is the same


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the rank."""

    et: str | None
    kineto: str | None
    nsys: str | None = None  # an export; the rank is the process ``pid`` on this ``device``
    device: int | None = None
    et_schema: str | None = None
    recorded_at: str | None = None  # of the ET, local time without zone
    pid: int | None = None
    resolution_ns: int = 1  # of the recorded times
    began_ns: int | None = (
        None  # since 1970 in UTC, on the rank's own clock; None where the recording has no time of day
    )
    ended_ns: int | None = None
    node: int | None = None  # number of the machine, and of the rank on it, as the names of the run's files tell
    local_rank: int | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded ``cpu_op`` and ``user_annotation`` rows; nodes = matched + unmatched."""

    nodes: int
    matched: int
    unmatched: int
    method: str
    only_kineto: dict[str, int]  # rows that the ET lacks: nodes without ET attributes, the most frequent names
    only_et: dict[str, int]  # ops that Kineto lacks: not in the graph, the most frequent names


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels, copies and memsets; ops = linked + sum(orphans)."""

    ops: int
    linked: int
    orphans: dict[str, int]


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The lead of the clocks of the devices over the host's; device times are given less this."""

    devices: list[DeviceClock]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Self-consistency: the graph replayed from its own durations and edges, against the recording."""

    measured_ns: Annotated[int, figure("time", means="recorded")]
    replayed_ns: int
    error_pct: float
    gap_share: float  # of the replayed critical path: host gaps
    delay_share: float  # of the replayed critical path: device delays and start delays


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    length_ns: int
    share_ns: ShareNs
    nodes: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a rank as its recording tells: name, names of its GPUs, versions; what it does not tell is empty
    or absent. ``capability``: of CUDA, (major, minor), the least of its GPUs.
    """

    host: str
    gpus: list[str]
    capability: tuple[int, int] | UnsetType = UNSET
    system: System


@with_fields
class Rank(Short, msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    world_size: int
    inputs: Inputs
    machine: Machine | UnsetType = UNSET  # absent where the recording tells nothing of it
    memory: list[DeviceMemory] | UnsetType = UNSET  # absent where the allocator was not recorded
    graph_nodes: int
    node_kinds: dict[str, int]
    host: Host
    device: Device
    clock: Clock
    edges: dict[str, int]
    sync: Sync
    communication: dict[str, int]  # communication nodes written, by type
    replaced: dict[str, int]  # communication ops written as something else than recorded, by what
    replay: Replay
    critical_path: CriticalPath
    top_gain: FamilyGain | UnsetType = (
        UNSET  # the nodes of one name without which the replay ends earliest, without ``once``; absent where none gains
    )
    once: list[FamilyGain] = []  # those of which one op took most, and that gain a hundredth, longest first
    left_out: dict[str, int]  # recorded rows that are no nodes, by reason
    warnings: list[str]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field of a wing."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options that shape the outputs."""

    step: str
    sync: str
    hta_limit: int
    target: str
    gap_us: float
    comm_time: str = "recorded"
    keep_unmatched: bool = False
    host: str = "full"
    range_rules: list[str] = []
    linked: bool = False
    timeline: str = "recorded"
    name: str = "trace"


@with_fields
class Summary(Short, msgspec.Struct, frozen=True, kw_only=True):
    graphlink: str = __version__
    format: Literal[1] = FORMAT
    options: Options
    ranks: list[Rank]
    run: Run | None = None  # None: a rank alone
    warnings: list[str] = []  # of no single rank: recordings in the folder that were left aside
    files: list[str]  # what this run wrote into the folder; --force removes these and no others

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field of a wing."""


def top(counts: dict[str, int]) -> dict[str, int]:
    """Return the most frequent names; what is not named is summed up under ``...``."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(n for _, n in order[TOP_NAMES:])
    return {**dict(order[:TOP_NAMES]), **({"...": rest} if rest else {})}


def todo_run(folder: Path) -> str:
    """Return what to do where ``folder`` is none that a run wrote."""
    named, todo = shlex.quote(str(folder)), "name the folder that an earlier run wrote with --out"
    some = [folder] if folder.is_file() else [*folder.iterdir()] if folder.is_dir() else []
    some = [] if folder / SUMMARY in some else [file for file in some if file.is_file()]
    return todo + f"; if this one has recordings, link them first: graphlink {named} --out OUT" * bool(some)


def load(path: Path) -> Summary:
    """Read an earlier run's summary.

    Raises:
        InputError: it is missing or no summary of ours.
    """
    if not path.is_file():
        file = path.parent if path.parent.is_file() else path
        raise InputError("cannot read the summary: there is no such file", path=file, todo=todo_run(path.parent))
    document.refuse_made(path)
    return document.load(path, Summary, "summary of this version of graphlink", AGAIN)


def ranks_of(folder: Path) -> Sequence[Rank]:
    """Return the ranks in the summary of a folder of graphs; none where it has no summary, or its graphs were made.

    Raises:
        InputError: as ``load``.
    """
    path = folder / SUMMARY
    return load(path).ranks if path.exists() and not document.made(path) else ()


def table(summary: Summary, *, verbose: bool = False, folder: str = "") -> Lines:
    """Return the summary for people: the main fact, a block per rank (of many, a line), one of all, those of wings, and
    one of warnings of no rank.

    ``verbose``: with notes, and what was counted while the graphs were made; ``folder``: where the files of the run
    lie, for what to do about the main fact.
    """
    first = [*all_of("first", summary, folder)]
    ranks, of_wings = summary.ranks, [hooks.blocks(summary) for _, hooks in each()]
    blocks: list[Sequence[str | Table]] = [
        first,
        *(
            [_rank_table(rank, alone=len(ranks) == 1, verbose=verbose) for rank in ranks]
            if len(ranks) <= MOST_BLOCKS
            else [_rank_lines(ranks, verbose=verbose)]
        ),
        _rank_warnings(ranks, verbose=verbose) if len(ranks) > 1 else [],
        *(blocks.ahead for blocks in of_wings),
        run_table(summary.run) if summary.run else [],
        *(blocks.behind for blocks in of_wings),
        [
            f"{kind}: {text}{like_it(count)}"
            for warning, count in alike(summary.warnings)
            for kind, text in told(warning, verbose=verbose)
        ],
    ]
    return joined(block for block in blocks if block)


def alike(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Return the first of the texts that differ in nothing but figures, and how many they are."""
    of_cause = grouped((_FIGURES.sub("#", text), text) for text in texts)
    return [(same[0], len(same)) for same in of_cause.values()]


def _rank_table(rank: Rank, *, alone: bool, verbose: bool) -> Lines:
    trust = [f"the replay {against_recorded(rank.replay.error_pct)}", *(hooks.trust(rank) for _, hooks in each())]
    rows = [
        ("critical path", _path(rank)),
        ("took long once", once_words(rank)),
        ("trust", "; ".join(filter(None, trust))),
        *(_counted(rank) if verbose else (("not linked", lost(rank)),)),
        *(line for text in rank.warnings if alone for line in told(text, verbose=verbose)),
    ]
    more = grouped(all_of("rank_lines", rank))
    rows = [line for row in rows for line in (*more.get(row[0], ()), row)]
    return [f"rank {rank.rank} of {rank.world_size}", Table([row for row in rows if row[1]])]


def _counted(rank: Rank) -> list[tuple[str, str]]:
    """Return what was counted while the graph was made, by its name."""
    replay, rejected = rank.replay, sum(rank.sync.rejected.values())
    method = "no execution trace given" if rank.inputs.et is None else f"by {rank.host.method}"
    return [
        ("machine", "" if rank.machine is UNSET else machine_line(rank.machine)),
        *((f"memory {one.device}", _memory(one)) for one in (rank.memory if rank.memory is not UNSET else ())),
        ("graph", f"{rank.graph_nodes:,} nodes: {_counts(rank.node_kinds)}"),
        ("edges", _counts(rank.edges) or "none"),
        (
            "host rows",
            f"{rank.host.nodes:,} = {rank.host.matched:,} matched + {rank.host.unmatched:,} unmatched ({method})",
        ),
        (
            "device ops",
            f"{rank.device.ops:,} = {rank.device.linked:,} linked + {sum(rank.device.orphans.values()):,} orphans",
        ),
        ("  orphans", _counts(rank.device.orphans)),
        *(("device clock", _clock(one)) for one in rank.clock.devices),
        ("sync", f"{rank.sync.found:,} found = {rank.sync.kept:,} kept + {rejected:,} rejected"),
        ("  by source", _counts(rank.sync.by_source) if rank.sync.found else ""),
        ("  rejected", _counts(rank.sync.rejected) if rejected else ""),
        ("communication", _counts(rank.communication)),
        ("  replaced", _counts(rank.replaced)),
        ("recorded", f"{ms(replay.measured_ns)} ms"),
        (
            "replayed",
            f"{ms(replay.replayed_ns)} ms, {replay.error_pct:+.3f} % from recorded (of the replayed path "
            f"{100 * replay.gap_share:.1f} % host gaps, {100 * replay.delay_share:.1f} % device delays)",
        ),
        ("left out", _counts(rank.left_out)),
        ("  only in ET", _counts(rank.host.only_et, 3)),
        ("  only in Kineto", _counts(rank.host.only_kineto, 3) if rank.inputs.et else ""),
    ]


def machine_line(told: Machine) -> str:
    """Format a machine: ``node7: 8 x NVIDIA H100, driver 580.95, CUDA 12.4``."""
    gpus = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in Counter(told.gpus).items())
    system = told.system
    cuda = (("driver", system.driver), ("CUDA", system.cuda), ("CUDA of the driver", system.cuda_driver))
    versions = (*cuda, ("HIP", system.hip), ("HIP of the driver", system.hip_driver), ("NCCL", system.nccl))
    parts = [gpus, system.cpu, *(f"{name} {version}" for name, version in versions if version)]
    return f"{told.host}: " * bool(told.host) + (", ".join(filter(None, parts)) or "nothing else is recorded")


def _memory(one: DeviceMemory) -> str:
    """Format the memory of a device: ``at most 37.613 GB allocated, 61.652 GB reserved, of 84.929 GB (72.6 %
    reserved)``.
    """
    of = (
        f", of {one.total_bytes / 1e9:,.3f} GB ({percent(one.reserved_bytes, one.total_bytes)} reserved)"
        if one.total_bytes
        else ""
    )
    return f"at most {one.allocated_bytes / 1e9:,.3f} GB allocated, {one.reserved_bytes / 1e9:,.3f} GB reserved{of}"


def once_words(rank: Rank) -> str:
    """Return what took its time once, the longest first."""
    length_ns = rank.critical_path.length_ns
    words = [
        f"{shortened(gain.name)} {ms(gain.once_ns)} ms ({percent(min(gain.once_ns, gain.on_path_ns), length_ns)} of "
        "the path)"
        for gain in rank.once
    ]
    more = [f"{len(words) - SHOWN_ONCE} more"] if len(words) > SHOWN_ONCE else []
    return "; ".join([*words[:SHOWN_ONCE], *more])


def once_ns(rank: Any) -> int:
    """Return how much of the critical path of a rank came once."""
    return sum(min(gain.once_ns, gain.on_path_ns) for gain in rank.once)


def lost(rank: Rank) -> str:
    """Return what of the recording found no partner; nothing where all did."""
    unmatched = rank.host.unmatched if rank.inputs.et is not None else 0
    counts = {
        "host rows without ET node": unmatched,
        "device ops without launch call": sum(rank.device.orphans.values()),
    }
    return _counts({name: n for name, n in counts.items() if n})


def _rank_lines(ranks: Sequence[Rank], *, verbose: bool) -> Lines:
    """Return a line per rank, in the order that a wing wants (the most idle first), and what it remarks of them."""
    every = [hooks for _, hooks in each()]
    order = next((order for hooks in every if (order := hooks.ranked(ranks)) is not None), ranks)
    cells = [
        {**_rank_cells(rank), **{k: v for hooks in every for k, v in (hooks.rank_cells(rank) or {}).items()}}
        for rank in order[:MOST_LINES]
    ]
    head = [name for name in _HEAD if any(of_rank.get(name) for of_rank in cells)]
    more = [f"... and {len(ranks) - MOST_LINES:,} more ranks in {SUMMARY}"] if len(ranks) > MOST_LINES else []
    rows = [tuple(of_rank.get(name, "") for name in head) for of_rank in cells]
    align = "".join(_HEAD[name] for name in head)
    parts: Lines = [
        Table(rows, head, align, indent=0, spare=("error %", "path mostly")),
        *more,
        "; ".join(
            words for name, words in _RANK_WORDS.items() if name in head and (name != "rank" or "idle %" not in head)
        ),
    ]
    parts += all_of("remarks", ranks)
    if verbose:
        counts = ("rank", "nodes", "edges", "device ops", "orphans", "sync kept", "comm nodes", "gaps %", "delays %")
        parts += [
            "",
            Table(
                [_rank_counts(one) for one in order[:MOST_LINES]],
                counts,
                ">" * len(counts),
                indent=0,
                spare=("comm nodes", "orphans"),
            ),
        ]
    return parts


def _rank_warnings(ranks: Sequence[Rank], *, verbose: bool) -> Lines:
    """Return each warning once, with the number of ranks that have it; where its figures differ between them, with
    those of the first. Notes only where ``verbose`` asks for them.
    """
    of_cause: dict[
        tuple[str, int], dict[int, str]
    ] = {}  # by text without figures, and by its place among the equal ones of its rank
    for rank in ranks:
        so_far: Counter[str] = Counter()
        for text in (text for text in dict.fromkeys(rank.warnings) if told(text, verbose=verbose)):
            cause = _FIGURES.sub("#", text)
            of_cause.setdefault((cause, so_far[cause]), {})[rank.rank] = text
            so_far[cause] += 1
    causes = sorted(of_cause.values(), key=len, reverse=True)
    lines: Lines = []
    for texts in causes[:MOST_WARNINGS]:
        (first, text), count = next(iter(texts.items())), len(texts)
        whose = (
            f"rank {first}"
            if count == 1
            else f"{count:,} ranks" + (f", as rank {first}" if len({*texts.values()}) > 1 else "")
        )
        ((kind, words),) = told(text, verbose=True)
        lines.append(f"{kind}, {whose}: {words}")
    more = (
        [f"... and {len(causes) - MOST_WARNINGS:,} more warnings in {SUMMARY}"] if len(causes) > MOST_WARNINGS else []
    )
    return [*lines, *more]


def _rank_cells(rank: Rank) -> dict[str, str]:
    shares = msgspec.structs.asdict(rank.critical_path.share_ns)
    return {
        "rank": str(rank.rank),
        "ms": ms(rank.replay.measured_ns),
        "path mostly": share_word(max(shares, key=shares.__getitem__)),
        "error %": f"{rank.replay.error_pct:+.3f}" if abs(rank.replay.error_pct) >= 0.0005 else "",
    }


def _rank_counts(rank: Rank) -> tuple[str, ...]:
    comm = sum(n for kind, n in rank.communication.items() if kind.startswith("COMM"))
    return (
        str(rank.rank),
        f"{rank.graph_nodes:,}",
        f"{sum(rank.edges.values()):,}",
        f"{rank.device.ops:,}",
        f"{sum(rank.device.orphans.values()):,}",
        f"{rank.sync.kept:,}",
        f"{comm:,}",
        f"{100 * rank.replay.gap_share:.1f}",
        f"{100 * rank.replay.delay_share:.1f}",
    )


def _clock(clock: DeviceClock) -> str:
    if not clock.anchored:
        return f"device {clock.device}: neither launches on an idle stream nor waits show it; left as recorded"
    least, largest = (f"{ns / 1000:+.1f}" for ns in clock.offset_ns)
    ahead = least if least == largest else f"{least} to {largest}"
    steps = f", {clock.steps} step{'s' * (clock.steps != 1)}" if clock.steps else ""
    return f"device {clock.device}: {ahead} us ahead of the host's{steps}; taken off"


def _path(rank: Rank) -> str:
    """Return the parts of the path, the largest first."""
    path = rank.critical_path
    shares = {share_word(name): ns for name, ns in msgspec.structs.asdict(path.share_ns).items()}
    words = path_words(shares, path.length_ns, rank.replay.gap_share, rank.replay.delay_share)
    return f"{ms(path.length_ns)} ms in the longest chain of work: {words}"


def _counts(counts: dict[str, int], most: int = 12) -> str:
    """Return the largest counts, the rest summed up."""
    order = sorted(counts.items(), key=lambda item: (item[0] == "...", -item[1], item[0]))
    named = [f"{name} {n:,}" for name, n in order[:most]]
    rest = sum(n for _, n in order[most:])
    return ", ".join([*named, *([f"others {rest:,}"] if rest else [])])
