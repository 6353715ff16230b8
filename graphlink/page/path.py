"""The critical path: what held the run, or each rank, when; its shares, and what would be gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from msgspec import UNSET

from graphlink.figures import column, columns
from graphlink.graph.gains import FamilyGain
from graphlink.graph.path_file import PathFile
from graphlink.model import I64
from graphlink.output_names import PATH_ACROSS
from graphlink.page.found import Found
from graphlink.page.parts import Cell, Folded, Part, Section, Segment, Sentence, Strip, StripCell, Table
from graphlink.page.words import table
from graphlink.records import IDLE_HOST, began_late, counted, time
from graphlink.replay.across import AcrossFamily, CriticalAcross, Hop
from graphlink.replay.path_words import Stretch, gap_ns, sentences, stretches
from graphlink.spans import overlap_ns, union

CELLS: Final = 640
MOST_LANES: Final = 12
MOST_ROWS: Final = 50
_IDLE: Final = "idle"
_ALL: Final = "all ranks"


def critical_path(found: Found) -> Section:
    """Return the section: the path over all ranks where there is one, then that of each rank in detail."""
    title = "Critical path: what decided when it ended"
    if not found.paths:
        return Section("path", title, [Sentence(["Without a graph there is no critical path."], note=True)])
    parts = _across(found.across) if found.across is not None and found.across.nodes.id else []
    for rank, file in found.paths.items():
        of = _of_rank(found, rank, file)
        why = f" ({found.told[rank]})" if found.told[rank] else ""
        parts += of if len(found.ranks) == 1 else [Folded(f"Rank {rank}{why}: path of this rank alone", of, open=False)]
    return Section("path", title, parts)


@dataclass(frozen=True, slots=True)
class _Walk:
    """A path with its shares, as its ``file`` has it. Columns have an entry per node. ``begin_ns``: since the start of
    the path; ``lane`` is a position in ``lanes``. ``share_ns`` sums up to the length.
    """

    file: PathFile | CriticalAcross
    name: str
    whose: str
    at: str
    lanes: tuple[str, ...]
    begin_ns: I64
    cost_ns: I64
    lane: I64
    share_ns: Mapping[str, int]
    gain_ns: Mapping[str, int] | None


def _across(found: CriticalAcross) -> list[Part]:
    nodes = found.nodes
    on = [rank.rank for rank in sorted(found.ranks, key=lambda one: (-one.ns, one.rank)) if rank.ns]
    lanes = sorted(on[:MOST_LANES])
    lane_of = {rank: k for k, rank in enumerate(lanes)}
    others = (f"{len(on) - len(lanes)} other ranks",) if len(on) > len(lanes) else ()
    start, end = np.array(nodes.start_ns, np.int64), np.array(nodes.end_ns, np.int64)
    walk = _Walk(
        file=found,
        name="path",
        whose=_ALL,
        at=f"{PATH_ACROSS}#/share_ns",
        lanes=(*(f"rank {rank}" for rank in lanes), *others),
        begin_ns=start - start[0],
        cost_ns=end - start,
        lane=np.array([lane_of.get(rank, len(lanes)) for rank in nodes.rank], np.int64),
        share_ns=found.share_ns,
        gain_ns=None if found.gain_ns is UNSET else found.gain_ns,
    )
    lead = (
        f"The path over all ranks takes {time(found.length_ns)}, on {len(on)} of {counted(len(found.ranks), 'rank')}: "
        "where a rank waited, it goes on at the rank that arrived late."
    )
    if found.before_ns:
        lead += f" It begins {time(found.before_ns)} after the first recording did, on rank {nodes.rank[0]}."
    families = found.families[:MOST_ROWS]
    of_path = column("of the path", "part", [(family.ns, found.length_ns) for family in families], means="on_path")
    shown = columns(AcrossFamily, families, "ns", of_path, "share", "nodes", "name")
    caption = "What the path over all ranks is made of, by name"
    by_name = table("path-families", caption, shown, f"{PATH_ACROSS}#/families")
    notes = [Sentence([f"{line}."], note=True) for line in (*found.stuck, *(f"Note: {note}" for note in found.notes))]
    return [Sentence([lead]), _strip(walk), _shares(walk), *_hops(found), by_name, *notes]


def _hops(found: CriticalAcross) -> list[Part]:
    hops = found.hops[:MOST_ROWS]
    shown = columns(
        Hop,
        hops,
        "waited_ns",
        column("who", "number", [Cell(f"rank {hop.rank}", hop.rank) for hop in hops]),
        column("in", "word", [hop.what for hop in hops]),
        column("for", "number", [Cell(f"rank {hop.other_rank}", hop.other_rank) for hop in hops]),
        "other_name",
        "stretch_ns",
        "most",
    )
    left = len(found.hops) - len(hops)
    more = f"{left:,} more in {PATH_ACROSS}." if left else ""
    return [table("path-hops", "Where the path changes ranks", shown, f"{PATH_ACROSS}#/hops", more)] if hops else []


def _of_rank(found: Found, rank: int, file: PathFile) -> list[Part]:
    cost = np.array(file.nodes.cost_ns, np.int64)
    walk = _Walk(
        file=file,
        name=f"path-{rank}",
        whose=f"rank {rank}",
        at=f"critical_path.{rank}.json#/share_ns",
        lanes=("",),
        begin_ns=np.cumsum(cost) - cost,
        cost_ns=cost,
        lane=np.zeros(len(cost), np.int64),
        share_ns=msgspec.structs.asdict(file.share_ns),
        gain_ns=msgspec.structs.asdict(file.gains.shares),
    )
    notes = [Sentence([f"Note: {note}."], note=True) for note in file.notes]
    longest = [*stretches(file, 20)]
    of_path = column("of the path", "part", [(one.ns, file.length_ns) for one in longest], means="on_path")
    places = [found.place_cell(rank, one.start_ns) for one in longest]
    recorded = column("recorded at", "place", places)
    shown = columns(Stretch, longest, "ns", of_path, "share", "from_ns", recorded, "count", "most", "most_ns")
    return [
        Sentence([" ".join(sentences(file))]),
        _strip(walk),
        _shares(walk),
        table(f"path-{rank}-stretches", f"Longest stretches of one kind on rank {rank}", shown),
        Sentence(
            [
                "From: when its first node was due in the replay. Recorded at: when that node began, after its start "
                "delay."
            ],
            note=True,
        ),
        _families(rank, file),
        *notes,
    ]


def _strip(walk: _Walk) -> Strip:
    """Cut the path into cells; what comes before the work of a node is unexplained."""
    nodes, length_ns = walk.file.nodes, walk.file.length_ns
    shares = list(dict.fromkeys([*walk.file.shares, _IDLE]))
    late_ns = np.minimum(np.array(nodes.start_delay_ns, np.int64), walk.cost_ns)
    pieces = (
        (walk.begin_ns, late_ns, np.full(len(late_ns), shares.index(_IDLE), np.int64)),
        (walk.begin_ns + late_ns, walk.cost_ns - late_ns, np.array(nodes.share, np.int64)),
    )
    edges = np.rint(np.linspace(0, length_ns, CELLS + 1)).astype(np.int64)
    parts: dict[tuple[int, int], I64] = {}
    for lane in range(len(walk.lanes)):
        for code in range(len(shares)):
            chosen = [
                (at[mine], ns[mine])
                for at, ns, key in pieces
                for mine in ((walk.lane == lane) & (key == code) & (ns > 0),)
            ]
            start, ns = (np.concatenate(column) for column in zip(*chosen, strict=True))
            if len(start):
                parts[lane, code] = overlap_ns(union(start, start + ns), edges[:-1], edges[1:])
    says = (
        "From left to right the time of the replay. The colour is the kind of work that delayed the end then; "
        "several kinds are stacked."
    )
    cells = strip_cells(parts, shares, CELLS)
    return Strip(
        f"{walk.name}-strip", f"What held {walk.whose} up, and when", says, [*walk.lanes], length_ns, CELLS, cells
    )


def strip_cells(parts: Mapping[tuple[int, int], I64], shares: Sequence[str], cells: int) -> list[StripCell]:
    """Return the cells of each lane that are not empty; equal neighbours of one share are one entry. ``parts``: by lane
    and position in ``shares``, time in each of the ``cells`` in ns.
    """
    out: list[StripCell] = []
    for lane in sorted({lane for lane, _ in parts}):
        of = {code: column.tolist() for (k, code), column in parts.items() if k == lane}
        for cell in range(cells):
            segments = [Segment(shares[code], column[cell]) for code, column in of.items() if column[cell]]
            before = out[-1] if out else None
            alone = len(segments) == 1 and before is not None and len(before.segments) == 1 and before.lane == lane
            if (
                alone
                and before is not None
                and before.first + before.count == cell
                and before.segments[0].key == segments[0].key
                and abs(before.segments[0].value - segments[0].value) <= 1
            ):
                out[-1] = StripCell(lane, before.first, before.count + 1, before.segments)
            elif segments:
                out.append(StripCell(lane, cell, 1, segments))
    return out


def _shares(walk: _Walk) -> Table:
    """Return what the path is made of beside what each would gain: a share is no gain."""
    share_ns, length_ns, gaps_ns = walk.share_ns, walk.file.length_ns, gap_ns(walk.file, walk.cost_ns.tolist())
    idle = share_ns.get(_IDLE, 0)
    inside = {began_late(share_ns): idle - gaps_ns, IDLE_HOST: gaps_ns} if idle else {}
    every = [*share_ns.values(), *inside.values()]
    gains = [(walk.gain_ns or {}).get(share) for share in [*share_ns, *inside]]
    shown = [
        column("kind", "share", [*share_ns, *(Cell(f"of which {part}") for part in inside)]),
        column("on the path", "ns", every, means="on_path", name="."),
        column("of the path", "part", [(ns, length_ns) for ns in every], means="on_path"),
        column("gain if it took no time", "ns", gains, means="gain"),
        column(
            "gain of the path",
            "part",
            [None if gain is None else (gain, length_ns) for gain in gains],
            means="gain",
        ),
    ]
    rows = [*((f"/{share}",) for share in share_ns), *(("",) for _ in inside)]
    return table(f"{walk.name}-shares", f"Shares of the path of {walk.whose}", shown, walk.at, rows=rows)


def _families(rank: int, file: PathFile) -> Table:
    families = file.gains.families[:MOST_ROWS]
    of_rank = column("of the rank", "part", [(family.gain_ns, file.length_ns) for family in families], means="gain")
    shown = columns(FamilyGain, families, "gain_ns", of_rank, "on_path_ns", "share", "count", "name")
    beyond = [family.gain_ns for family in file.gains.families[MOST_ROWS:]]
    left = max([file.gains.families_others_at_most_ns, *beyond])
    more = f"No other name gains more than {time(left)}." if left else ""
    caption = f"What rank {rank} would gain if all nodes of a name took no time"
    return table(f"path-{rank}-gains", caption, shown, f"critical_path.{rank}.json#/gains/families", more)
